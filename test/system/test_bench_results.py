"""What `make bench` makes of what it measured: ratios, verdicts, pages and pictures."""

import importlib.util
import json
import re
import subprocess
import sys

import harness
from benched import BENCH, MIB, bench_run, lab_module, result_of  # noqa: F401 (lab_module is a fixture)


# ---- judging ----

def test_a_goal_is_judged_by_the_median(lab_module):
    """The middle pair decides, not the best one; at_most turns the comparison around."""
    good, bad = (96.0, 100.0), (50.0, 100.0)
    assert lab_module.pair_row("t", 0.95, [good] * 5 + [bad] * 4, 0, "MB/s")["met"]
    row = lab_module.pair_row("t", 0.95, [good] * 4 + [bad] * 5, 0, "MB/s")
    assert not row["met"] and row["ratio"] == {"median": 0.5, "min": 0.5, "max": 0.96} and row["n"] == 9
    assert lab_module.pair_row("t", 1.2, [(1.1, 1.0)] * 9, 0, "ms", at_most=True)["met"]
    assert not lab_module.pair_row("t", 1.2, [(1.3, 1.0)] * 9, 0, "ms", at_most=True)["met"]


def test_pairs_alternate(lab_module):
    """Each pair has both sides, and the side that begins changes; there are at least nine, but for quick runs."""
    order = []

    class Quiet(lab_module.Lab):
        def __init__(self):
            self.pairs = 4

    def side(name):
        return lambda: order.append(name) or 1.0

    assert lab_module.PAIRS >= 9
    taken, share = Quiet().take_pairs(side("a"), side("b"))
    assert "".join(order) == "abbaabba" and taken == [(1.0, 1.0)] * 4 and 0 <= share <= 100


def test_memory_watch_sees_memory(lab_module):
    """What a process allocates and frees again is in the peak."""
    script = "x = bytearray(64 << 20); print(flush=True); input(); del x; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        with lab_module.MemoryWatch([process.pid]) as watch:
            process.stdout.readline()
            harness.wait_until(lambda: watch.peak_bytes >= 64 * MIB, 60, "a sample of its memory")
            for _ in range(2):
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
            assert watch.resident(process.pid) < 64 * MIB
    assert watch.peak_bytes >= 64 * MIB


def test_results_page(lab_module, tmp_path):
    """The page shows goal, result and verdict of every row, and says which run was a quick one."""
    import report
    rows = [lab_module.pair_row("fast enough", 0.9, [(2.0, 1.0)] * 9, 1.5, "MB/s"),
            lab_module.pair_row("too slow", 0.9, [(0.5, 1.0)] * 9, 0.0, "MB/s"),
            lab_module.value_row("bytes", "0", "17", False)]
    result = {"command": "bench/run --quick", "date": lab_module.now(), "machine": lab_module.machine(), "quick": True,
              "file_system": "ext4", "version": "0", "commit": "c", "about": "About.", "rows": rows}
    (tmp_path / "warm.json").write_text(json.dumps(result))
    page = report.render(tmp_path)
    assert "Where the time goes: [NOTES.md](NOTES.md#warm)." in page
    fast, slow, value = [line for line in page.splitlines() if line.startswith(("| fast", "| too", "| bytes"))]
    assert "| met |" in fast and "**2.000**" in fast and "1.5 %" in fast
    assert "| **missed** |" in slow and "**0.500**" in slow
    assert "| **missed** |" in value and "**17**" in value
    assert "Quick run" in page and "bench/run --quick" in page and "read_ahead_kb" not in page
    (tmp_path / "warm.json").write_text(json.dumps({**result, "rows": [{**rows[0], "read_ahead_kb": 1024}]}))
    assert "All mounts had read_ahead_kb 1024, read back from the kernel." in report.render(tmp_path)


def test_promised_ratios_are_made_from_the_results(lab_module, tmp_path):
    """Every goal has a line: with the result and verdict of its rows, or as not run with the reason; peers stand together, and ahead
    of them means rate and CPU time."""
    import goals
    import report
    import versus
    warm = [lab_module.pair_row("Warm reads through the mount, mmap, as written, of the disk's", 0.95, [(0.9, 1.0)] * 9, 0, "MB/s")]
    peer = [{**lab_module.pair_row(f"Warm mmap reads through the mount, against {name}", 1.0, [(ratio, 1.0)] * 9, 0, "MB/s"), "peer": name,
             "ours_cost": {"cpu_s_per_gb": 1.0}, "reference_cost": {"cpu_s_per_gb": cpu}}
            for name, ratio, cpu in (("slow", 3.0, 2.0), ("greedy", 2.0, 0.5))]
    for name, rows in (("warm", warm), ("peers_warm", peer), ("checkpoint", [versus.not_run_row("Checkpoints", "-", "no such bucket")])):
        (tmp_path / f"{name}.json").write_text(json.dumps(result_of(lab_module, rows)))
    table = goals.table(tmp_path)
    lines = table.splitlines()
    assert len({work for work, *_ in goals.GOALS}) == len(goals.GOALS) == 17
    assert all(any(line.startswith(f"| {work} |") for line in lines) for work, *_ in goals.GOALS)
    assert any("mmap, as written | 0.90 (0.90 to 0.90) | **missed** |" in line for line in lines)
    assert any("not run (no such bucket)" in line for line in lines)
    assert any("slow 3.00, CPU 2.0; greedy 2.00, CPU 0.5 | **missed** |" in line for line in lines)
    peer[1]["reference_cost"]["cpu_s_per_gb"] = 1.5
    (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, peer)))
    assert any("greedy 2.00, CPU 1.5 | met |" in line for line in goals.table(tmp_path).splitlines())
    assert report.render(tmp_path).rstrip().endswith(goals.table(tmp_path).rstrip())


def test_what_stands_beside_peers_is_none(lab_module, tmp_path):
    """The disk, tmpfs and the origin itself are shown and are nobody to be ahead of; a peer that was not run is named with the reason."""
    import goals
    import versus
    sample = {"rate": 1.0, "cpu_s_per_gb": 1.0, "memory_bytes": MIB}
    taken = {"forebay": [sample] * 9, **{name: [{**sample, "rate": 2.0, "cpu_s_per_gb": 0.1}] * 9 for name in (versus.DISK, versus.TMPFS, versus.STRAIGHT)},
             "slow": [{**sample, "rate": 0.5}] * 9}
    rows = versus.rows_against(taken, 0, "Warm mmap reads through the mount", "MB/s", 1.0) + versus.rows_left_out({"gone": "ended"}, "Warm reads")
    assert [(row["peer"], row["goal"], row["met"]) for row in rows] == [
        (versus.DISK, "-", None), (versus.TMPFS, "-", None), (versus.STRAIGHT, "-", None), ("slow", "at least 1", True), ("gone", "-", None)]
    (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, rows)))
    [line] = [line for line in goals.table(tmp_path).splitlines() if "slow" in line]
    assert "the disk 0.50, CPU 0.1" in line and "slow 2.00, CPU 1.0; gone not run (ended) | met |" in line


def test_a_run_is_compared_with_the_one_before(lab_module):
    """On the same machine: how many medians lie within the spread that was printed then, and which do not."""
    import report

    def run(*medians, **more):
        rows = [lab_module.pair_row(f"row {i}", 1.0, [(m - 0.1, 1.0), (m, 1.0), (m + 0.1, 1.0)], 0, "MB/s") for i, m in enumerate(medians)]
        return {**result_of(lab_module, [*rows, lab_module.value_row("bytes", "0", "17", False)]), "date": "then", **more}

    assert report.agreement(run(1.0, 2.0), run(1.05, 1.95, 9.0)) == {"date": "then", "commit": "c", "same": False, "rows": 2, "outside": []}
    found = report.agreement(run(1.0, 2.0), run(1.95, 1.15))
    assert found["outside"] == ["row 0", "row 1"]  # above, and below
    found = report.agreement(run(1.0, 2.0), run(1.15, 1.95))
    assert found["outside"] == ["row 0"] and report.agreement_text(found).startswith("1 of 2 medians lie within the spread of the run of then")
    page = report.section("warm", {**run(1.15, 1.95), "before": found})
    assert "Run again: 1 of 2 medians" in page and page.rstrip().endswith("not that of: row 0.")
    for other in (None, run(1.0, quick=True), run(1.0, machine={"cpu": "another"})):
        assert report.agreement(other, run(1.0)) is None
    assert "Run again" not in report.section("warm", {**run(1.0), "before": None})


def test_figures_with_a_spread_are_compared_too(lab_module):
    """Not only ratios: what is told as a rate or a time with its minimum and maximum."""
    import report

    def run(median):
        spread = {"median": median, "min": median - 1, "max": median + 1}
        return result_of(lab_module, [lab_module.value_row("creates", "-", "7/s", None, spread=spread), lab_module.value_row("bytes", "0", "17", False)])

    assert report.agreement(run(10), run(11))["rows"] == 1 and report.agreement(run(10), run(11))["outside"] == []
    assert report.agreement(run(10), run(12))["outside"] == ["creates"]


def test_a_second_run_of_the_same_sources_is_told(lab_module, monkeypatch, tmp_path, capsys):
    """bench/run twice: the second says how many medians lie within the spread of the first, measurement by measurement on the page and as a
    sum on the terminal; after the sources changed, or with changes that were not committed, that is no second run."""
    import report
    import versus
    run = bench_run()
    monkeypatch.setenv("FOREBAY_BIN", str(harness.forebay_bin()))
    monkeypatch.setattr(lab_module, "QUICK_FREE_BYTES", 0)
    git = {"ls-files": "100644 aaa 0\tsrc/a.c", "status": "", "rev-parse": "abc"}
    monkeypatch.setattr(run, "git", lambda word, *_: git[word])
    medians = {"small": (1.0, 2.0), "peers_warm": (3.0,)}

    def measurement(name):
        def made(_lab):
            """Some."""
            return [lab_module.pair_row(f"{name} {i}", 1.0, [(m - 0.1, 1.0), (m, 1.0), (m + 0.1, 1.0)], 0, "x") for i, m in enumerate(medians[name])]

        return made

    monkeypatch.setattr(versus, "MEASURES", {name: measurement(name) for name in medians})
    (tmp_path / "into").mkdir()
    given = type("Given", (), {"dir": str(tmp_path), "quick": True})

    def again():
        assert run.measure(given, list(medians), tmp_path / "into") == []
        return capsys.readouterr().out, (tmp_path / "into/RESULTS.md").read_text()

    none = "No measurement was made twice on one machine with the same sources."
    said, page = again()
    assert none in said and none in page and "Run again" not in page
    medians["small"] = (1.05, 2.5)
    said, page = again()
    told = "Made twice on one machine with the same sources: 2 of 3 medians lie within the spread that the run before printed, 2 measurements."
    assert told in said and told in page
    assert re.search(r"\* `small`: 1 of 2, before at .*, not that of: small 1\n\* `peers_warm`: 1 of 1, before at", page)
    assert "at commit abc, which measured the same sources, not that of: small 1." in page
    for changed, value in (("ls-files", "100644 bbb 0\tsrc/a.c"), ("status", " M src/a.c")):
        again()
        git[changed] = value
        said, page = again()
        assert none in said and none in page and "Run again: " in page and report.again({})[1] == none
    assert none in again()[0]  # of two runs with changes nobody knows whether they are the same


def test_costs_stand_beside_the_rates(lab_module):
    """Medians of both sides, or of ours alone where the other one is a number. (Seen to fail when costs, versus.py, takes the largest, and
    when the sides are exchanged.)"""
    import report
    import versus
    ours, theirs = ([{"rate": 1.0, "cpu_s_per_gb": cpu * i, "memory_bytes": i * MIB, "origin_bytes": 1.01, "origin_requests": 17} for i in (1, 5, 2, 4, 3)]
                    for cpu in (0.5 / 3, 0.25 / 3))
    row = versus.cost_row("both", 0.9, ours, theirs, 0, "MB/s")
    assert "CPU s/GB 0.50 against 0.25; memory MiB 3 against 3; origin bytes of the object's 1.01 against 1.01; requests 17 against 17" in report.row_line(row)
    value = {**lab_module.value_row("one", "-", "7", None, detail="seven"), "ours_cost": versus.costs(ours)}
    assert "| seven; CPU s/GB 0.50; memory MiB 3; origin bytes of the object's 1.01; requests 17 |" in report.row_line(value)


def test_a_miss_points_to_where_the_time_goes(monkeypatch, tmp_path):
    """To the part of NOTES.md with the name of the measurement, or says that there is none; no part has a name that nobody takes."""
    import report
    assert report.noted() <= set(report.TITLES) and "small" in report.noted()
    notes = tmp_path / "NOTES.md"
    notes.write_text("# Notes\n\n## `warm`\n\nText.\n")
    monkeypatch.setattr(report, "NOTES", notes)
    missed, met = [{"met": True}, {"met": False}, {"met": None}], [{"met": True}, {"met": None}]
    assert report.where_the_time_goes("warm", missed) == "Where the time goes: [NOTES.md](NOTES.md#warm)."
    assert "not looked into" in report.where_the_time_goes("small", missed)
    assert report.where_the_time_goes("warm", met) is None

def test_every_measurement_is_known_everywhere(lab_module):
    """Each name that bench/run takes has a function and a title, and each goal stands for measurements that it takes."""
    import calls
    import front
    import goals
    import measures
    import moving
    import report
    import uploads
    import versus
    import work
    run = bench_run()
    names = run.NAMES + run.HEAVY
    functions = [name for module in (measures, calls, front, uploads, work, moving, versus) for name in module.MEASURES]
    assert sorted(names) == sorted(functions) == sorted(report.TITLES) and len(set(names)) == len(names)
    assert {measure for *_, sources in goals.GOALS for measure, _ in sources} | set(goals.PEER_MEASURES) <= set(names)
    assert run.BESIDE_MINIO <= set(names) and {f"{name}.svg" for name in goals.PEER_MEASURES} <= set(report.PLOTS)


def test_what_the_processors_would_allow_is_computed(lab_module, monkeypatch):
    """From the medians of what node, shaper and origin took for each GB in the run itself."""
    import moving
    monkeypatch.setattr(moving.os, "cpu_count", lambda: 2)
    samples = [{"cpu_s_per_gb": node, "beside": {"shaper": 1.0, "versitygw": 2.5}} for node in (4.0, 3.5, 9.0)]
    text = moving.processors(samples)
    assert "node and command 4.00, shaper 1.00, versitygw 2.50" in text
    assert "2 processors that never wait would allow 0.89 of the cap" in text


def test_the_readme_block_is_replaced_and_nothing_else(lab_module, tmp_path):
    """Between its marks, with the table and the first two pictures that there are; a page without them stays as it is."""
    import goals
    import report
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.README_BEGIN}\nwhat was there\n{report.README_END}\nafter\n")
    for _ in range(2):
        report.update_readme(page, tmp_path)
        text = page.read_text()
        assert text.startswith("before\n") and text.endswith("\nafter\n") and "what was there" not in text and goals.table(tmp_path).rstrip() in text
        assert text.count("](bench/results/") == 0
    for name in report.PLOTS:
        (tmp_path / name).write_text("<svg></svg>")
    report.update_readme(page, tmp_path)
    assert re.findall(r"\]\(bench/results/(\w+\.svg)\)", page.read_text()) == ["goals.svg", "peers_cold.svg"]
    (tmp_path / "peers_cold.svg").unlink()
    report.update_readme(page, tmp_path)
    assert re.findall(r"\]\(bench/results/(\w+\.svg)\)", page.read_text()) == ["goals.svg", "costs.svg"]
    page.write_text("no marks")
    report.update_readme(page, tmp_path)
    assert page.read_text() == "no marks"
    readme = (harness.ROOT / "README.md").read_text()
    assert report.README_BEGIN in readme and report.README_END in readme


def test_the_published_pages_are_what_the_results_say(lab_module):
    """Nothing in RESULTS.md and in README's block was written by hand: both are what bench/run --pages makes of bench/results."""
    import report
    assert (BENCH / "RESULTS.md").read_text() == report.render(BENCH / "results"), "bench/run --pages writes it anew"
    assert f"{report.README_BEGIN}\n\n{report.readme_block(BENCH / 'results')}\n\n{report.README_END}" in (harness.ROOT / "README.md").read_text()
    done = subprocess.run([BENCH / "run", "--pages", "--quick"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "--pages" in done.stderr


def test_pictures_of_results(lab_module, tmp_path):
    """Where matplotlib is, every comparison has a picture; where it is not, there is none and no error. What was drawn of results that are
    gone does not stay."""
    import plots
    import versus
    rows = [{**lab_module.pair_row(f"Cold reads, against {name}", 1.0, [(2.0, 1.0)] * 9, 0, "MB/s"), "peer": name,
             "ours_cost": {"cpu_s_per_gb": 1.0}, "reference_cost": {"cpu_s_per_gb": 2.0}} for name in ("a", "b")]
    rows.insert(0, versus.not_run_row("Cold reads, against c", "-", "ended", peer="c"))
    for name in ("peers_warm.svg", "goals.svg"):
        (tmp_path / name).write_text("of results that are gone")
    (tmp_path / "peers_cold.json").write_text(json.dumps(result_of(lab_module, rows)))
    drawn = plots.draw(tmp_path)
    if drawn is None:
        assert importlib.util.find_spec("matplotlib") is None and not list(tmp_path.glob("*.svg"))
        return
    assert drawn == ["peers_cold.svg", "costs.svg"] and sorted(p.name for p in tmp_path.glob("*.svg")) == sorted(drawn)
    assert all("</svg>" in (tmp_path / name).read_text() for name in drawn)


def test_ours_counts_once_for_each_work(lab_module):
    """In the picture of costs: its cost stands in the row of every peer of the same work. (Seen to fail with the peer's name left in the
    work, and without the measurement in it, in costs_by_work.)"""
    import plots

    def row(title, ours, theirs, peer):
        return {"title": title, "peer": peer, "ours_cost": {"cpu_s_per_gb": ours}, "reference_cost": {"cpu_s_per_gb": theirs}}

    rows = [row(f"Work A, against {peer}", 1.0, 5.0, peer) for peer in ("a", "b", "c")] + [row("Work B, against a", 9.0, 2.0, "a")]
    found = plots.costs_by_work({"peers_warm": {"rows": rows}, "peers_cold": {"rows": rows[:1]}, "s3": {"rows": [row("Work A, against a, neither signed", 3.0, 5.0, "a"), rows[0]]}})
    assert sorted(found["forebay"].values()) == [1.0, 1.0, 1.0, 3.0, 9.0] and sorted(found["a"].values()) == [2.0, 5.0, 5.0, 5.0, 5.0]
    assert list(found["b"].values()) == list(found["c"].values()) == [5.0]


# ---- which sources and runs ----

def test_a_result_names_the_sources_it_is_of(lab_module, monkeypatch, tmp_path):
    """The commit, and whether anything that a figure depends on was changed since; the results that the run itself writes are no change.
    The name of the sources is the same on top of another history."""
    run = bench_run()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setenv("FOREBAY_BIN", str(harness.forebay_bin()))
    lab = type("Fake", (), {"quick": False, "dir": tmp_path})

    def git(*words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip()

    def described():
        return run.describe(lab, lab_module, test_a_result_names_the_sources_it_is_of)

    git("init", "-q")
    for name in ("src/a.c", "bench/lab.py", "bench/results/s3.json", "bench/RESULTS.md", "bench/NOTES.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    first = described()
    assert first["commit"] == git("rev-parse", "--short", "HEAD") and first["sources"] == git("rev-parse", "--short", "HEAD:src")
    for name, changed in (("bench/results/s3.json", False), ("bench/RESULTS.md", False), ("bench/NOTES.md", False), ("bench/lab.py", True), ("src/a.c", True)):
        (tmp_path / name).write_text("two")
        assert described()["commit"].endswith(" with changes") == changed, name
        git("checkout", "-q", "--", name)
    git("commit", "-q", "--amend", "-m", "another")
    again = described()
    assert again["commit"] != first["commit"] and again["sources"] == first["sources"]
    import report
    page = report.section("warm", {**result_of(lab_module, []), "sources": again["sources"]})
    assert f"at commit c (src {again['sources']});" in page


def test_the_runs_of_the_rows_are_told(lab_module, tmp_path):
    """Each commit once, with when and what was measured there; measurements that no goal stands for are left out."""
    import goals
    import report
    row = lab_module.pair_row("Warm reads through the mount, mmap", 0.95, [(0.9, 1.0)] * 9, 0, "MB/s")
    for name, commit, date in (("warm", "aaa", "2026-01-01 01:00 UTC"), ("cold", "aaa", "2026-01-01 02:00 UTC"), ("peers_warm", "bbb", "2026-01-02 00:00 UTC"),
                               ("ceiling", "ccc", "2026-01-03 00:00 UTC")):
        (tmp_path / f"{name}.json").write_text(json.dumps({**result_of(lab_module, [row]), "commit": commit, "date": date}))
    told = goals.runs(tmp_path)
    assert told.splitlines() == ["* commit bbb, 2026-01-02 00:00 UTC: `peers_warm`",
                                 "* commit aaa, 2026-01-01 01:00 UTC to 2026-01-01 02:00 UTC: `warm`, `cold`"]
    assert told in report.render(tmp_path)
