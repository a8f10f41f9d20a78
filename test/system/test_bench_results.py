"""What `make bench` makes of what it measured: ratios, verdicts, pages and pictures."""

import contextlib
import importlib.util
import itertools
import json
import re
import shutil
import subprocess
import sys
import types

import pytest

import harness
from benched import BENCH, MIB, Unwatched, bench_run, lab_module, promised, result_of  # noqa: F401 (lab_module is a fixture)


# ---- judging ----

def test_a_goal_is_judged_by_the_median(lab_module):
    """The middle pair decides, not the best one; at_most turns the comparison around."""
    good, bad = (96.0, 100.0), (50.0, 100.0)
    assert lab_module.pair_row("t", 0.95, [good] * 5 + [bad] * 4, 0, "MB/s")["met"]
    row = lab_module.pair_row("t", 0.95, [good] * 4 + [bad] * 5, 0, "MB/s")
    assert not row["met"] and row["ratio"] == {"median": 0.5, "min": 0.5, "max": 0.96} and row["n"] == 9
    assert lab_module.pair_row("t", 1.2, [(1.1, 1.0)] * 9, 0, "ms", at_most=True)["met"]
    assert not lab_module.pair_row("t", 1.2, [(1.3, 1.0)] * 9, 0, "ms", at_most=True)["met"]


class Fake(Unwatched):
    """A lab in which nothing runs: nodes, mounts and the shaper are there by name alone."""
    quick, pairs = True, 3

    def __init__(self, directory, counted=()):
        self.dir, self.counted = directory, iter(counted)
        self.origin = types.SimpleNamespace(s3=lambda **_: None, new_bucket=lambda: "bucket", access_key="", secret_key="")

    def path(self, name):
        return self.dir / name

    def node(self, *_, **__):
        done, client = subprocess.CompletedProcess([], 0, "", ""), types.SimpleNamespace(put_object=lambda **_: None)
        return contextlib.nullcontext(types.SimpleNamespace(pid=0, cli=lambda *_, **__: done, s3=lambda **_: client))

    def mount(self, *_):
        self.path("mount").mkdir(exist_ok=True)
        return contextlib.nullcontext(types.SimpleNamespace(pid=0, dir=self.path("mount")))

    def shaper(self, **_):
        stats = lambda: {"response_bytes": next(self.counted), "requests": 1}  # noqa: E731
        return contextlib.nullcontext(types.SimpleNamespace(endpoint="", reset=lambda: None, stats=stats))

    def take_pairs(self, *sides):
        return [tuple(side() for side in sides) for _ in range(self.pairs)], 0

    def targets(self, *_):
        return [], "127.0.0.1:1"

    def get(self, *_, **__):
        return {}


def train_rows(monkeypatch, directory, ours):
    import work
    memory = directory / "memory"

    def sample(_pids, place):
        return {"rate": 1.0, "utilisation": 100.0 if place == memory else ours}

    for name in ("make_files", "make_objects", "epoch"):
        monkeypatch.setattr(work, name, lambda *_: None)
    monkeypatch.setattr(work, "tmpfs", lambda _lab: memory)
    monkeypatch.setattr(work, "train_sample", sample)
    monkeypatch.setattr(work.shutil, "copytree", lambda *_: None)
    return work.train(Fake(directory))


def half_rows(monkeypatch, directory, *shares):
    import work
    found = iter(shares)
    monkeypatch.setattr(work, "make_objects", lambda *_: None)
    monkeypatch.setattr(work, "epoch", lambda *_: None)
    monkeypatch.setattr(work, "asked", lambda *_: {"origin_bytes": next(found), "origin_requests": 1})
    (directory / "half-cache").mkdir()
    return work.half(Fake(directory))


def epoch_rows(monkeypatch, directory, *counted):
    import measures
    monkeypatch.setattr(measures.dataset, "make", lambda *_: None)
    monkeypatch.setattr(measures.dataset, "upload", lambda *_: 10_000)
    monkeypatch.setattr(measures, "bench_epoch", lambda *_: [{"seconds": 1.0, "bytes": 10_000, "checksum": 7}])
    return measures.epoch(Fake(directory, counted))[:2]


def memory_rows(monkeypatch, directory, mib):
    import measures
    return [measures.memory_row("Memory", types.SimpleNamespace(peak_bytes=mib * MIB), [0])]


def values_rows(monkeypatch, directory, rate):
    import front
    nginx = types.SimpleNamespace(pid=0, address="127.0.0.1:2")
    monkeypatch.setattr(front, "Nginx", lambda *_, **__: contextlib.nullcontext(nginx))
    monkeypatch.setattr(front, "sample", lambda *_, **__: {"requests_per_s": rate, "cpu_s_per_100k": 1.0})
    return front.values(Fake(directory))


def listing_rows(monkeypatch, directory, seconds, growth):
    import front

    class Watch:
        peak_bytes = 100 + growth

        def __init__(self, *_):
            pass

        @staticmethod
        def resident(_pid):
            return 100

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(front, "MemoryWatch", Watch)
    monkeypatch.setattr(front, "make_names", lambda *_: None)
    monkeypatch.setattr(front, "list_all", lambda *_: (seconds, front.QUICK_LIST_OBJECTS))
    return front.listing(Fake(directory))


def meta_rows(monkeypatch, directory, created, stat):
    import work
    said = {phase: {"per_s": rate} for phase, rate in (("create", created), ("stat", stat), ("rename", 1), ("unlink", 1))}
    monkeypatch.setattr(work, "scratch_mount", lambda _lab: contextlib.nullcontext((None, types.SimpleNamespace(dir=directory))))
    monkeypatch.setattr(work, "bench", lambda *_: said)
    return work.meta(Fake(directory))


def find_rows(monkeypatch, directory, seconds):
    import work
    clock = iter([at for i in range(Fake.pairs) for at in (100 * i, 100 * i + seconds)])
    found = subprocess.CompletedProcess([], 0, b"name\n" * work.QUICK_META_FILES, b"")
    monkeypatch.setattr(work, "scratch_node", lambda _lab: contextlib.nullcontext(types.SimpleNamespace()))
    monkeypatch.setattr(work, "bench", lambda *_: None)
    monkeypatch.setattr(work, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(work, "subprocess", types.SimpleNamespace(run=lambda *_, **__: found, PIPE=None))
    return work.find(Fake(directory))


@pytest.mark.parametrize("rows, figures, verdicts", [
    (train_rows, (99.0,), [True]), (train_rows, (98.9375,), [False]),
    (half_rows, (1.0, 0.9, 0.5, 0.55), [True]), (half_rows, (0.5, 0.5, 0.5, 0.5625), [False]),
    (half_rows, (0.5, 0.5, 0.5625, 0.5), [False]),
    (epoch_rows, (10_200, 0), [True, True]), (epoch_rows, (10_201, 1), [False, False]),
    (memory_rows, (575,), [True]), (memory_rows, (577,), [False]),
    (values_rows, (50_000,), [True]), (values_rows, (49_999,), [False]),
    (listing_rows, (29.9, 64 * MIB), [True, True]), (listing_rows, (30, 64 * MIB + 1), [False, False]),
    (meta_rows, (10_000, 40_000), [True, True, None, None]), (meta_rows, (9_999, 39_999), [False, False, None, None]),
    (find_rows, (2.75,), [True]), (find_rows, (3,), [False])])
def test_a_figure_is_judged_at_its_goal(lab_module, monkeypatch, tmp_path, rows, figures, verdicts):
    """What is no ratio of two sides reaches what was promised, or does not: utilisation within a point of tmpfs's, bytes from the
    origin, memory, rates and times. (Seen to fail with each of the goals a tenth easier and a tenth harder.)"""
    assert [row["met"] for row in rows(monkeypatch, tmp_path, *figures)] == verdicts


def test_each_row_has_the_goal_that_is_promised(lab_module):
    """In the published results, and in the words of the table: no row is held to less."""
    import goals
    for work, _reference, text, sources in goals.GOALS:
        numbers = {float(number) for number in re.findall(r"(?<![\d,.])\d+(?:\.\d+)?(?![\d,])", text)}
        for measure, pattern in sources:
            for row in goals.load(BENCH / "results").get(measure, {}).get("rows", []):
                if re.search(pattern, row["title"]) and goals.goal_of(row):
                    assert goals.goal_of(row)[0] == promised(measure, row["title"]), (work, row["title"], row["goal"])
                    assert promised(measure, row["title"]) in numbers, (work, row["title"])


def test_small_files_are_read_alone_too(lab_module, monkeypatch, tmp_path):
    """Besides epochs that compare what comes, of which the second of a process counts, there are such whose bytes are compared before
    and after, and those have the same goals, and no costs, which are those of comparing. (Seen to fail with the same epochs for both.)"""
    import versus
    asked = []

    def epoch(_directory, _workers, *options, epochs=0):
        asked.append(("--verify-apart" in options, epochs))
        return {"bytes": versus.SMALL_BYTES, "all_bytes": 2 * versus.SMALL_BYTES, "seconds": 1.0}

    monkeypatch.setattr(versus, "epoch", epoch)
    monkeypatch.setattr(versus, "make_files", lambda *_: tmp_path)
    monkeypatch.setattr(versus, "make_objects", lambda *_: "bucket")
    monkeypatch.setattr(versus, "QUICK_SMALL_WORKERS", (1,))
    fake = Fake(tmp_path)
    node = types.SimpleNamespace(pid=0, socket_path="socket", data=tmp_path)
    monkeypatch.setattr(fake, "node", lambda *_, **__: contextlib.nullcontext(node))
    rows = versus.small(fake)
    assert asked[4:] == [(False, 2)] * 4 * Fake.pairs + [(True, 1)] * 4 * Fake.pairs
    ways = [("at least 0.4", "through the mount"), ("at least 0.5", "through the mount, read-only"), ("at least 1", "through the library")]
    assert [(row["goal"], row["title"].split("1 worker, ")[1]) for row in rows] == [
        (goal, f"{way}{how}, of the disk's") for how in ("", ", compared before and after") for goal, way in ways]
    assert ["ours_cost" in row for row in rows] == [True] * 3 + [False] * 3


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
    assert any("mmap, as written | 0.90 (0.90 to 0.90) | **missed** | 20" in line for line in lines)
    assert any("not run (no such bucket)" in line for line in lines)
    assert any("slow 3.00 (3.00 to 3.00), CPU 2.0; greedy 2.00 (2.00 to 2.00), CPU 0.5 | **missed** |" in line for line in lines)
    peer[1]["reference_cost"]["cpu_s_per_gb"] = 1.5
    (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, peer)))
    assert any("greedy 2.00 (2.00 to 2.00), CPU 1.5 | met |" in line for line in goals.table(tmp_path).splitlines())
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
    assert "the disk 0.50 (0.50 to 0.50), CPU 0.10 (0.10 to 0.10)" in line
    assert "slow 2.00 (2.00 to 2.00), CPU 1.00 (1.00 to 1.00); gone not run (ended) | met |" in line


def test_where_less_is_better_peers_are_judged_so(lab_module, tmp_path):
    """At most as much as each; the goal speaks of processor time only where there is some; and a peer that was not run is told in the line of its own
    work, or in all where it was left out of all. (Seen to fail with the goals of PEER_GOALS for all, and with every peer told everywhere.)"""
    import goals
    import versus
    sample = {"rate": 1.0}
    first = versus.rows_against({"forebay": [sample] * 9, "slow": [{"rate": 2.0}] * 9, versus.ONE_GET: [{"rate": 0.5}] * 9}, 0, "First byte", "ms", 1, 1.01,
                                at_most=True)
    assert [(row["goal"], row["met"]) for row in first] == [("at most 1.01", True), ("-", None)]
    costly = [{**sample, "cpu_s_per_gb": 1.0}] * 9
    bytes_ = versus.rows_against({"forebay": costly, "slow": costly}, 0, "Bytes", "bytes", 1, at_most=True)
    rows = first + bytes_ + versus.rows_left_out({"unlimited": "no size"}, "Bytes") + versus.rows_left_out({"gone": "ended"}, "All of it")
    lines = {title: (result, met, goal) for title, result, met, goal, *_ in goals.peer_rows({"peers_first": {"rows": rows}}) if not title.startswith("`")}
    assert lines["First byte"] == ("slow 0.50 (0.50 to 0.50); one GET straight from the origin 2.00 (2.00 to 2.00); gone not run (ended)", True, "at most 1.01 of each's")
    assert lines["Bytes"] == ("slow 1.00 (1.00 to 1.00), CPU 1.00 (1.00 to 1.00); unlimited not run (no size); gone not run (ended)", True, "at most 1 of each's, CPU seconds per GB too")


@pytest.mark.parametrize("theirs, met, words", [
    ([1.1] * 9, True, "met"), ([0.9] * 9, False, "**missed**"), ([1.0] * 9, True, "met"),
    ([0.9] * 8 + [1.1], None, "CPU within the spread: peer"), ([1.1] * 8 + [0.9], None, "CPU within the spread: peer"),
    ([0.1] * 4 + [24.0] * 5, None, "CPU within the spread: peer")])
def test_processor_time_within_the_spread_has_no_verdict(lab_module, tmp_path, theirs, met, words):
    """It is compared in the same pairs as the rates, and told with median, minimum and maximum: neither met nor missed where ours
    took more in some and less in others. Who is ahead of us in the rate makes the line missed all the same. (Seen to fail with
    the ratio of the medians, and with the median of the ratios, in cpu_met.)"""
    import goals
    import report
    import versus
    ours = [{"rate": 2.0, "cpu_s_per_gb": 3.0 * (i + 1)} for i in range(9)]  # a slow round is slow for both: the ratio is that of the round
    peer = [{"rate": 1.0, "cpu_s_per_gb": one["cpu_s_per_gb"] * times} for one, times in zip(ours, theirs)]
    beside = [{"rate": 4.0, "cpu_s_per_gb": one["cpu_s_per_gb"] / 9 if i % 2 else 99.0} for i, one in enumerate(ours)]
    rows = versus.rows_against({"forebay": ours, "peer": peer, versus.DISK: beside}, 0, "Warm mmap reads", "MB/s", 1.0)
    assert rows[0]["cpu"] == {"median": pytest.approx(sorted(theirs)[4]), "min": pytest.approx(min(theirs)), "max": pytest.approx(max(theirs))}
    (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, rows)))
    results = goals.load(tmp_path)
    [line] = [line for line in goals.peer_rows(results) if line[0] == "Warm mmap reads"]
    assert line[2] is met and line[4] == words and f"(theirs over ours {rows[0]['cpu']['median']:.2f} (" in report.row_line(rows[0])
    assert any(f"| {words} | 20" in one for one in goals.table(tmp_path).splitlines())
    slower = [{**one, "rate": 3.0} for one in peer]
    rows = versus.rows_against({"forebay": ours, "peer": slower}, 0, "Warm mmap reads", "MB/s", 1.0)
    assert goals.peer_met(rows[0]) is False and goals.peer_verdict(rows) == (False, "**missed**")
    assert report.unexplained("peers_warm", rows)[0] == ["Warm mmap reads, against peer"]


def in_turn(even, odd, rounds=9):
    """Pairs whose ratio is one in the even rounds and another in the odd ones."""
    return [((odd if i % 2 else even), 1.0) for i in range(rounds)]


@pytest.mark.parametrize("even, odd, goal, at_most, rounds, order", [
    (24.3, 0.22, 1.0, False, 9, [24.3, 0.22]), (0.22, 24.3, 1.0, False, 9, [0.22, 24.3]), (3.0, 1.1, 1.2, True, 9, [3.0, 1.1]),
    (24.3, 1.5, 1.0, False, 9, None),   # both ahead, however far apart
    (0.9, 0.2, 1.0, False, 9, None),    # both behind
    (1.01, 0.6, 1.0, False, 9, None),   # on both sides, but near
    (24.3, 1.0, 1.0, False, 9, None), (3.0, 1.2, 1.2, True, 9, [3.0, 1.2]),  # what reaches its goal is on the good side
    (24.3, 0.22, 1.0, False, 5, None), (24.3, 0.22, 1.0, False, 6, [24.3, 0.22])])  # three rounds of each order tell
def test_a_result_of_the_order_has_no_verdict(lab_module, even, odd, goal, at_most, rounds, order):
    """Where the even rounds are on one side of the goal and the odd ones on the other, and far apart, the median of all says who came first
    once more often. (Seen to fail with each of the two conditions left out in by_order, goals.py.)"""
    import goals
    import report
    row = lab_module.pair_row("t", goal, in_turn(even, odd, rounds), 0, "x", at_most=at_most)
    assert goals.by_order(row) == order
    judged = goals.judged(row)
    assert goals.judged(judged) == judged and judged["met"] == (None if order else row["met"])
    if order == [24.3, 0.22]:
        assert "| depends on the order: 24.3 and 0.22 |" in report.row_line(judged) and report.text_rows([judged]).endswith(": depends on the order: 24.3 and 0.22")
    assert goals.by_order({**row, "goal": "-"}) is None and goals.by_order(lab_module.value_row("v", "at least 1", "7", True)) is None


def test_peers_beside_whom_the_order_decides(lab_module, tmp_path):
    """They leave the line without a verdict, and stand there with both medians; who is ahead of us in something else makes it missed all the same."""
    import goals
    import report

    def peer(name, even, odd, cpu=2.0):
        return {**lab_module.pair_row(f"Warm mmap reads through the mount, against {name}", 1.0, in_turn(even, odd), 0, "MB/s"), "peer": name,
                "ours_cost": {"cpu_s_per_gb": 1.0}, "reference_cost": {"cpu_s_per_gb": cpu}}

    def line(*rows):
        (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, rows)))
        return next(one for one in goals.table(tmp_path).splitlines() if "| Warm mmap" in one)

    turns = "turns 24.30 (0.22 to 24.30), CPU 2.0, depends on the order: 24.3 and 0.22"
    assert f"good 3.00 (3.00 to 3.00), CPU 2.0; {turns} | depends on the order |" in line(peer("good", 3, 3), peer("turns", 24.3, 0.22))
    assert "| depends on the order: 24.3 and 0.22 |" in report.render(tmp_path)
    assert f"{turns} | **missed** |" in line(peer("bad", 0.5, 0.5), peer("turns", 24.3, 0.22))
    assert "depends on the order: 24.3 and 0.22 | **missed** |" in line(peer("turns", 24.3, 0.22, cpu=0.5))
    drawn = plots_text(tmp_path, "peers_warm.svg")
    assert drawn is None or "turns (depends on the order)" in drawn


def plots_text(directory, name):
    """What a picture says, or None without matplotlib."""
    import plots
    return None if plots.draw(directory) is None else (directory / name).read_text()


def test_few_pairs_are_said_beside_the_verdict(lab_module, tmp_path):
    """Of fewer than nine, on the page, in the table and in the line of all peers; of nine nothing is said."""
    import goals
    import report
    assert goals.PAIRS == lab_module.PAIRS == 9
    for pairs, words in ((1, "**missed** (1 pair) |"), (3, "**missed** (3 pairs) |"), (9, "**missed** |")):
        row = lab_module.pair_row("Export of 100 objects", 0.9, [(0.5, 1.0)] * pairs, 0, "MB/s")
        (tmp_path / "jobs_large.json").write_text(json.dumps(result_of(lab_module, [row])))
        (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, [{**row, "title": "Warm, against a", "peer": "a"}])))
        table = goals.table(tmp_path).splitlines()
        assert all(any(words in line and title in line for line in table) for title in ("Export of 100 objects", "| Warm |"))
        assert words in report.row_line(row) and f"{pairs} pair{'s' if pairs > 1 else ''} |" in report.row_line(row)


def test_lines_of_other_runs_say_so(lab_module, tmp_path):
    """Each line has the day of its run, the processor where it is not that of the newest run, and whether src/ was another one then."""
    import goals
    import report
    row = lab_module.pair_row("Warm reads through the mount, mmap", 0.95, [(0.9, 1.0)] * 9, 0, "MB/s")
    machine = {**lab_module.machine(), "cpu": "Newer"}
    for name, date, cpu, sources in (("warm", "2026-01-03 01:00 UTC", "Newer", "bbb"), ("cold", "2026-01-02 01:00 UTC", "Newer", "aaa"),
                                     ("s3", "2026-01-01 01:00 UTC", "Older", "bbb"), ("small", "2026-01-01 00:00 UTC", "Older", None),
                                     ("dropped", "2026-01-04 00:00 UTC", "Not of the table", "ccc")):
        titled = {**row, "title": {"cold": "Cold sequential read", "s3": "Warm GET, nginx with sendfile", "small": "files, of the disk's"}.get(name, row["title"])}
        (tmp_path / f"{name}.json").write_text(json.dumps({**result_of(lab_module, [titled]), "date": date, "machine": {**machine, "cpu": cpu}, "sources": sources}))
    ends = [line.split(" | ")[-1] for line in goals.table(tmp_path).splitlines() if "0.90 (0.90 to 0.90)" in line]
    assert ends == ["2026-01-03 |", "2026-01-01, Older, older sources |", "2026-01-01, Older |", "2026-01-02, older sources |"]
    told = goals.machines(tmp_path)
    assert "of 2026-01-03 01:00 UTC at commit c, is of this machine: Newer," in told and told in report.render(tmp_path) and told in report.readme_block(tmp_path)


def test_peers_that_could_not_be_had_stand_above_the_table(tmp_path):
    """With the reason, on both pages; where all are there, nothing stands there."""
    import goals
    import report
    path = tmp_path / "systems.json"
    for missing, words in (("no such module", "Peers that are not in the table: gone (no such module)."), (None, None)):
        path.write_text(json.dumps({"systems": [{"name": "there", "version": "1", "missing": None, "tuning": ""},
                                                {"name": "gone", "version": None if missing else "2", "missing": missing, "tuning": ""}]}))
        assert goals.absent(tmp_path) == words
        assert all(("Peers that are not in the table" in page) == (words is not None) for page in (report.render(tmp_path), report.readme_block(tmp_path)))


def test_a_run_is_compared_with_the_one_before(lab_module):
    """On the same machine: how many medians lie within the spread that was printed then, and which do not."""
    import report

    def run(*medians, **more):
        rows = [lab_module.pair_row(f"row {i}", 1.0, [(m - 0.1, 1.0), (m, 1.0), (m + 0.1, 1.0)], 0, "MB/s") for i, m in enumerate(medians)]
        return {**result_of(lab_module, [*rows, lab_module.value_row("bytes", "0", "17", False)]), "date": "then", **more}

    def outside(before, now):
        return report.outside_of({**now, "before": report.agreement(before, now)})

    found = report.agreement(run(1.0, 2.0), run(1.05, 1.95, 9.0))
    former = found.pop("former")
    assert found == {"date": "then", "commit": "c", "same": False, "rows": 2} and outside(run(1.0, 2.0), run(1.05, 1.95, 9.0)) == []
    assert list(former) == ["row 0", "row 1"] and {key: round(former["row 1"][key], 1) for key in ("median", "min", "max")} == {"median": 2.0, "min": 1.9, "max": 2.1}
    assert [one["met"] for one in former.values()] == [True, True]
    assert outside(run(1.0, 2.0), run(1.95, 1.15)) == ["row 0", "row 1"]  # above, and below
    now = run(0.85, 1.95)
    now["before"] = found = report.agreement(run(1.0, 2.0), now)
    assert report.outside_of(now) == ["row 0"] and report.agreement_text(now).startswith("1 of 2 medians lie within the spread of the run of then")
    page = report.section("warm", now)
    assert "Run again: 1 of 2 medians" in page
    assert page.rstrip().endswith("not that of: row 0 (1.000 before, 0.850 now; the verdict turned: met, **missed**).")
    del found["former"]  # as results of before 2026-11-28 have it
    found["outside"] = ["row 0"]
    assert report.section("warm", now).rstrip().endswith("not that of: row 0.")
    for other in (None, run(1.0, quick=True), run(1.0, machine={"cpu": "another"})):
        assert report.agreement(other, run(1.0)) is None
    assert "Run again" not in report.section("warm", {**run(1.0), "before": None})


@pytest.mark.parametrize("more, seconds, warned", [
    ({}, 301, True), ({}, 299, False), ({"quick": False}, 9999, False), ({"all": True}, 9999, False), ({"only": "warm"}, 9999, False)])
def test_a_quick_run_that_is_not_warns(lab_module, monkeypatch, tmp_path, capsys, more, seconds, warned):
    """One line when the default measurements took more than five minutes; it is no failure, and nothing is said of a run that was not to be short. How
    long the run took is the last that each prints, and how long it took before to set up and build. (Seen to fail without prepared_text.)"""
    import versus
    run = bench_run()
    monkeypatch.setenv("FOREBAY_BIN", str(harness.forebay_bin()))
    monkeypatch.setattr(lab_module, "QUICK_FREE_BYTES", 0)
    monkeypatch.setattr(lab_module, "FREE_BYTES", 0)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "README.md").write_text("")
    monkeypatch.setenv("FOREBAY_BENCH_PREPARED", "90")
    clock = [0.0]
    monkeypatch.setattr(run, "time", type("Clock", (), {"monotonic": staticmethod(lambda: clock[0])}))

    def small(_lab):
        """Some."""
        clock[0] += seconds
        return [lab_module.value_row("bytes", "0", "17", False)]

    monkeypatch.setattr(versus, "MEASURES", {"small": small})
    given = type("Given", (), {"dir": str(tmp_path), "quick": True, "all": False, "only": None, **more})
    (tmp_path / "into").mkdir()
    assert run.measure(given, ["small"], tmp_path / "into") == []
    out, err = capsys.readouterr()
    assert out.rstrip().endswith(f"1 measurements in {seconds / 60:.1f} minutes, after 1.5 to set up and build")
    warnings = [line for line in err.splitlines() if "warning" in line]
    assert len(warnings) == int(warned) and all("this quick run took 5.0 minutes" in line for line in warnings)


@pytest.mark.parametrize("options, lists", [([], ["NAMES", "PEERS"]), (["--quick"], ["NAMES"]), (["--flames"], ["NAMES"]), (["--all"], ["NAMES", "PEERS", "HEAVY"])])
def test_which_measurements_a_run_makes(monkeypatch, tmp_path, options, lists):
    """The peers are in a run without options: what it is compared with is measured with it, but their processors' time is nobody's to look into. Only what is named runs with --only, each once."""
    run = bench_run()
    monkeypatch.setattr(sys, "argv", ["bench/run", "--dir", str(tmp_path), *options])
    given, chosen = run.arguments()
    assert chosen == sum((getattr(run, name) for name in lists), []) == run.wanted(given)
    monkeypatch.setattr(sys, "argv", ["bench/run", "--dir", str(tmp_path), "--only", "peers_s3,warm,peers_s3"])
    assert run.arguments()[1] == ["peers_s3", "warm"]


def test_a_result_that_could_not_be_had_again_says_so(lab_module, monkeypatch, tmp_path):
    """A measurement that fails leaves its result of before, on whose page and in whose lines of the table that stands, with the reason, until it is made
    again; one that never was made leaves none. (Seen to fail without note_failure: the figures of before stood there as if nothing had happened.)"""
    import goals
    import versus
    run = bench_run()
    monkeypatch.setenv("FOREBAY_BIN", str(harness.forebay_bin()))
    monkeypatch.setattr(lab_module, "QUICK_FREE_BYTES", 0)
    failure = []

    def small(_lab):
        """Some."""
        if failure:
            raise failure[0]
        return [lab_module.pair_row("files, of the disk's", 0.4, [(1.0, 1.0)] * 9, 0, "files/s")]

    monkeypatch.setattr(versus, "MEASURES", {"small": small, "peers_small": small})
    (tmp_path / "into").mkdir()
    given = type("Given", (), {"dir": str(tmp_path), "quick": True, "all": False, "only": None})

    def again(failed):
        assert run.measure(given, ["small"], tmp_path / "into") == failed
        [line] = [line for line in goals.table(tmp_path / "into").splitlines() if "1.00 (1.00 to 1.00)" in line]
        return line, (tmp_path / "into/RESULTS.md").read_text()

    line, page = again([])
    assert "failed" not in line and "last try" not in page
    for error, why in ((RuntimeError("mount: gave other bytes than disk\nand more"), "mount: gave other bytes than disk"), (AssertionError(), "AssertionError")):
        failure[:] = [error]
        line, page = again(["small"])
        assert line.endswith(", **failed when tried again** |") and "| met |" in line
        assert f", failed: {why}.** What follows is the result of before." in page
    assert run.measure(given, ["peers_small"], tmp_path / "into") == ["peers_small"] and not (tmp_path / "into/peers_small.json").exists()
    failure.clear()
    line, page = again([])
    assert "failed" not in line and "last try" not in page


def test_figures_with_a_spread_are_compared_too(lab_module):
    """Not only ratios: what is told as a rate or a time with its minimum and maximum."""
    import report

    def run(median):
        spread = {"median": median, "min": median - 1, "max": median + 1}
        return result_of(lab_module, [lab_module.value_row("creates", "-", "7/s", None, spread=spread), lab_module.value_row("bytes", "0", "17", False)])

    for then, now, outside in ((10, 11, []), (10, 12, ["creates"]), (1000, 1009, []), (1000, 991, []), (1000, 1011, ["creates"]), (1000, 989, ["creates"])):
        before = report.agreement(run(then), run(now))
        assert before["rows"] == 1 and report.outside_of({**run(now), "before": before}) == outside  # a spread of less than 1 % counts as that


def test_how_many_lie_outside_by_chance():
    """Of two runs of the very same: counted over all orders in which their samples can come, and tried."""
    import random
    import report
    orders = list(itertools.combinations(range(6), 3))  # which three of six samples are of the second run
    outside = sum(1 for of_second in orders for first in [sorted(set(range(6)) - set(of_second))] if not first[0] < of_second[1] < first[2])
    assert report.by_chance(3) == outside / len(orders)
    random.seed(1)
    tries = [([random.random() for _ in range(9)], sorted(random.random() for _ in range(9))[4]) for _ in range(20000)]
    assert abs(sum(1 for first, median in tries if not min(first) <= median <= max(first)) / len(tries) - report.by_chance(9)) < 0.005


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
    given = type("Given", (), {"dir": str(tmp_path), "quick": True, "all": False, "only": None})

    def again():
        assert run.measure(given, list(medians), tmp_path / "into") == []
        return capsys.readouterr().out, (tmp_path / "into/RESULTS.md").read_text()

    none = "No measurement was made twice on one machine with the same sources."
    said, page = again()
    assert none in said and none in page and "Run again" not in page
    medians["small"] = (1.05, 2.5)
    said, page = again()
    told = "Made twice on one machine with the same sources: 2 of 3 medians lie within the spread that the run before printed (or 1% of its median, " \
           "where the spread is less), 2 measurements; where two runs differ by chance alone, 2.9% of medians of nine pairs lie outside."
    assert told in said and told in page
    assert re.search(r"\* `small`: 1 of 2, before at .*\n  \* small 1 \(2.000 before, 2.500 now; the same verdict\)\n\* `peers_warm`: 1 of 1, before at", page)
    assert "at commit abc, which measured the same sources, not that of: small 1 (2.000 before, 2.500 now; the same verdict)." in page
    assert "No verdicts turned." in said
    medians["small"] = (0.98, 2.5)  # within what the run before printed, and on the other side of the goal
    said, page = again()
    assert "3 of 3 medians lie within" in said and "1 verdict turned." in said and "Beside these: small 0 (1.050 before, 0.980 now; within the spread; the verdict turned: met, MISSED)" in said
    assert "  * small 0 (1.050 before, 0.980 now; within the spread; the verdict turned: met, **missed**)\n" in page
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
    """To the part of NOTES.md with the name of the measurement, and names what no reason is known of; no part has a name that nobody takes."""
    import report
    assert report.noted() <= set(report.TITLES) and "small" in report.noted()
    notes = tmp_path / "NOTES.md"
    notes.write_text("# Notes\n\n## `warm`\n\nText of mmap and seq.\n\nMissed: `mmap`,\n`4 KiB`: the kernel, with each read, has to do what the disk has not.\n\n## `small`\n\nMissed: `mmap`.\n")
    monkeypatch.setattr(report, "NOTES", notes)

    def row(title, met=False, **more):
        return {"title": title, "met": met, **more}

    linked, met = "Where the time goes: [NOTES.md](NOTES.md#warm).", [row("a", True), row("b", None)]
    assert report.where_the_time_goes("warm", [*met, row("Reads by mmap"), row("Reads of 4 KiB, by four")]) == linked
    assert report.where_the_time_goes("warm", [*met, row("Reads by mmap"), row("Reads seq")]) == f"{linked} It was not looked into where it goes in: Reads seq."
    assert "not looked into where it goes in: Reads by mmap." in report.where_the_time_goes("small", [row("Reads by mmap")])  # words, and no reason
    assert report.where_the_time_goes("peers_warm", [row("x, against a")]) == "It was not looked into where it goes in: x, against a."
    dear = {"ours_cost": {"cpu_s_per_gb": 2.0}, "reference_cost": {"cpu_s_per_gb": 1.0}}
    assert report.unexplained("peers_warm", [row("dear", True, **dear), row("beside", None, beside=True, **dear)])[0] == ["dear"]
    assert report.where_the_time_goes("warm", met) is None


def test_each_published_miss_has_its_reason():
    """NOTES.md names each missed row in a paragraph "Missed:" of its measurement's part, and RESULTS.md says of none that it was not looked into."""
    import goals
    import report
    unknown = [f"{name}: {title}" for name, result in goals.load(BENCH / "results").items() for title in report.unexplained(name, result["rows"])[1]]
    assert not unknown, "bench/NOTES.md has no reason (a paragraph in the part of the measurement that begins with Missed: and has words of the row's title between " \
                        "backquotes) of:\n  " + "\n  ".join(unknown)
    assert "not looked into" not in (BENCH / "RESULTS.md").read_text()


def test_every_measurement_is_known_everywhere(lab_module):
    """Each name that bench/run takes has a function and a title, and each goal stands for measurements that it takes."""
    import calls
    import cold_peers
    import front
    import goals
    import measures
    import moving
    import report
    import polling
    import scratch
    import uneven
    import uploads
    import versus
    import work
    run = bench_run()
    names = run.ALL
    modules = (measures, calls, front, uploads, work, moving, versus, cold_peers, scratch, polling, uneven)
    functions = [name for module in modules for name in module.MEASURES]
    assert sorted(names) == sorted(functions) == sorted(report.TITLES) and len(set(names)) == len(names)
    assert {measure for *_, sources in goals.GOALS for measure, _ in sources} | set(goals.PEER_MEASURES) <= set(names)
    assert run.BESIDE_MINIO <= set(names) and {f"{name}.svg" for name in goals.PEER_MEASURES} <= set(report.PLOTS)


def test_the_words_are_those_of_the_measurements(lab_module):
    """What page, README.md and the texts of the measurements say of sizes, rates and numbers is what is taken, also after one of
    them was changed. (Seen to fail with each of the constants changed.)"""
    import cold_peers
    import front
    import goals
    import measures
    import moving
    import report
    import scratch
    import uneven
    import uploads
    import work
    run, shape = bench_run(), lab_module.SHAPE
    link = [shape["first_byte"].replace("ms", " ms"), *(shape[name].replace("MB/s", " MB/s") for name in ("per_connection", "total"))]
    assert lab_module.SHAPED_BYTES_PER_S == int(shape["total"].removesuffix("MB/s")) * 1e6
    for text in (report.HEAD, report.README_TEXT):
        said = " ".join(text.split())
        assert f"{link[0]} to the first byte, {link[1]} per connection, {link[2]} in all" in said
    assert f"`validate={lab_module.VALIDATE}`" in report.HEAD
    assert goals.ORDER_FACTOR == 2 and "differ by more than a factor of two" in report.README_TEXT
    assert {**uneven.UNEVEN, "first_byte": shape["first_byte"]} == shape and uneven.UNEVEN["first_byte"] == f"{shape['first_byte']},p99=80ms"

    def mib(size):
        return f"{size // MIB} MiB" if size >= MIB else f"{size >> 10} KiB"

    words = {
        measures.first: [f"Objects of {mib(measures.FIRST_SIZES[0])}, of {mib(measures.FIRST_SIZES[1])}, and of {mib(measures.FIRST_SIZES[2])}"],
        measures.memory: [f"{measures.STREAMS} clients read {measures.STREAMS} cold objects of {mib(measures.STREAM_BYTES)} "
                          f"(a quick run: {mib(measures.STREAM_BYTES // measures.QUICK_SHARE)})"],
        front.values: [f"values of {mib(front.VALUE_BYTES)}"], front.tls: [f"GETs of {mib(front.TLS_BYTES)}"],
        uploads.put: [f"{uploads.PUT_REQUESTS} objects of {mib(uploads.PUT_BYTES)} with {uploads.CONNECTIONS[0]} and {uploads.CONNECTIONS[1]} connections"],
        work.train: [f"batches of {work.TRAIN[1]} files of {work.TRAIN_BYTES // 1000} KB", f"{work.TRAIN[3].replace('ms', ' ms')} of computing"],
        work.meta: [f"directories of {work.META_PER_DIRECTORY:,}"],
        moving.jobs: [f"objects of {moving.LARGE_BYTES // 10**6} MB", link[2]],
        moving.jobs_large: [f"{moving.MANY_LARGE_FILES} objects of {moving.LARGE_BYTES // 10**6} MB"],
        moving.jobs_small: [f"objects of {moving.SMALL_BYTES // 1000} KB"],
        scratch.scratch_creates: [f"{scratch.CREATED:,} files of {mib(scratch.CREATED_BYTES)} (a quick run: {scratch.QUICK_CREATED}) in directories of "
                                  f"{scratch.PER_DIRECTORY:,}"],
        cold_peers.peers_first: [f"Objects of {mib(cold_peers.FIRST_SIZES[0])} and of {mib(cold_peers.FIRST_SIZES[1])}"],
        cold_peers.peers_memory: [f"{cold_peers.STREAMS} clients read {cold_peers.STREAMS} cold objects"],
        uneven.uneven: [f"({link[0]} in the median, 80 ms at the 99th percentile; {link[1]} per connection, {link[2]} in all)",
                        f"{uneven.FILES} files of 110 KB, eight at a time", f"one file of {mib(uneven.LARGE_BYTES)}",
                        f"{uneven.QUICK_FILES} files and {mib(uneven.QUICK_LARGE_BYTES)}"],
    }
    for function, phrases in words.items():
        said = " ".join(function.__doc__.split())
        assert all(phrase in said for phrase in phrases), (function.__name__, phrases)
    assert uneven.AT_ONCE == 8 and uneven.SMALL_BYTES == 110_000
    readme = (BENCH / "README.md").read_text()
    assert f"{lab_module.FREE_BYTES >> 30} GiB free ({lab_module.QUICK_FREE_BYTES >> 30} for a quick run)" in " ".join(readme.split())
    assert run.QUICK_MINUTES == 5 and "under five minutes" in readme and goals.PAIRS == 9 and "at least nine times" in readme
    by_default, heavy = readme.split("The heavy ones, with `--all` or by name:")
    by_default, beside = by_default.split("Beside peers, unless `--quick`")
    for names, table in ((run.NAMES, by_default), (run.PEERS, beside), (run.HEAVY, heavy)):
        rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
        missing = [name for name in names if not any(f"`{name}`" in row for row in rows)]
        assert not missing, f"README.md of bench/ has them in no row, or in that of the others: {missing}"


def test_idle_processors_poll_for_one_measurement(lab_module, monkeypatch, tmp_path):
    """They do while it runs, and are as before afterwards, also when it fails; where they poll anyway or cannot be told to it is not run, with
    the reason; its rows and its text say what is different. (Seen to fail without `finally`, and with the setting written only.)"""
    import polling
    import versus
    halt_poll = tmp_path / "guest_halt_poll_ns"
    monkeypatch.setattr(lab_module, "HALT_POLL", halt_poll)
    with pytest.raises(versus.NotRun, match="no haltpoll"), polling.polling():
        pass
    seen = []

    def measure(fails):
        """Reads."""
        seen.append(halt_poll.read_text())
        if fails:
            raise RuntimeError("no")
        return [{"title": "Reads", "goal": "-"}]

    polled = polling.once_more(measure)
    for before, poll in (("0\n", "200000"), ("50000\n", "200000")):
        halt_poll.write_text(before)
        assert polled(False) == [{"title": "Idle processors polling: Reads", "goal": "-"}]
        with pytest.raises(RuntimeError):
            polled(True)
        assert seen == [poll] * 2 and halt_poll.read_text() == before
        seen.clear()
    assert polled.__doc__.startswith("Reads.") and "200 microseconds" in polled.__doc__
    halt_poll.write_text("200000\n")
    with pytest.raises(versus.NotRun, match="200,000 ns already"), polling.polling():
        pass


def test_a_machine_is_told_by_what_the_older_result_knows(lab_module):
    """A result that says more of its machine is of the same one, and one that says otherwise is not; how idle processors wait is part of it."""
    import goals
    import report
    now = {"cpu": "One", "cores": 2, "memory_gib": 1.0, "kernel": "6", "system": "Some", "halt_poll_ns": 0}
    before = {key: value for key, value in now.items() if key != "halt_poll_ns"}
    assert report.same_machine(before, now) and report.same_machine(now, now)
    assert not report.same_machine(now, {**now, "halt_poll_ns": 200000}) and not report.same_machine({**before, "cpu": "Two"}, now)
    assert goals.machine_text(now).endswith(", Some, idle processors halt at once") and goals.machine_text(before).endswith(", Some")
    assert goals.machine_text({**now, "halt_poll_ns": 5}).endswith("poll for 5 ns")


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


def test_the_published_pages_are_what_the_results_say(lab_module, tmp_path):
    """Nothing in RESULTS.md, in README's block and in the pictures was written by hand: they are what bench/run --pages makes of bench/results. README says
    nothing else about the machine, which is another one after the next run."""
    import report
    assert (BENCH / "RESULTS.md").read_text() == report.render(BENCH / "results"), "bench/run --pages writes it anew"
    assert f"{report.README_BEGIN}\n\n{report.readme_block(BENCH / 'results')}\n\n{report.README_END}" in (harness.ROOT / "README.md").read_text()
    around = (harness.ROOT / "README.md").read_text().partition(report.README_END)[2]
    assert not re.search(r"20\d\d-\d\d-\d\d|processor", around), around
    import plots
    published = {path.name: path.read_text() for path in (BENCH / "results").glob("*.svg")}
    shutil.copytree(BENCH / "results", tmp_path / "results")
    if plots.draw(tmp_path / "results") is not None:  # without matplotlib they cannot be drawn here
        assert {path.name: path.read_text() for path in (tmp_path / "results").glob("*.svg")} == published, "bench/run --pages draws them anew"
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
