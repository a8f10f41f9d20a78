"""The flame graphs of bench/run --flames."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import types
import xml.dom.minidom

import pytest

import harness
from benched import MIB, bench_run, lab_module, result_of  # noqa: F401 (lab_module is a fixture)

import flames

RUN = bench_run()
SAMPLES = """forebay
\t          1234 inner<int>
\t          1235 [unknown]
\t          1236 outer
\tffffffffffffffff [unknown]

forebay
\t          1236 outer

swapper
\t          99 default_idle

reader
\t          77 memcpy

"""


def drawn(text):
    """{name: (x, y, width)} of the boxes of a picture."""
    found = {}
    for box in xml.dom.minidom.parseString(text).getElementsByTagName("g"):
        title = box.getElementsByTagName("title")[0].firstChild.data
        rect = box.getElementsByTagName("rect")[0]
        found[title] = tuple(float(rect.getAttribute(name)) for name in ("x", "y", "width"))
    return found


def test_a_box_is_as_wide_as_its_share_and_stands_on_its_caller():
    root = flames.folded(SAMPLES.splitlines())
    assert root.count == 4
    assert flames.programs(root) == {"forebay": 0.5, "idle": 0.25, "reader": 0.25}
    boxes = drawn(flames.svg(root, "a <b>"))
    assert set(boxes) == {"forebay: 50.0 %", "outer: 50.0 %", "inner<int>: 25.0 %", "idle: 25.0 %", "reader: 25.0 %", "memcpy: 25.0 %"}
    ours, outer, inner = (boxes[name] for name in ("forebay: 50.0 %", "outer: 50.0 %", "inner<int>: 25.0 %"))
    assert ours[0] == outer[0] == inner[0] == 0 and ours[2] == outer[2] == flames.WIDTH / 2 == inner[2] * 2
    assert ours[1] > outer[1] > inner[1]  # upwards
    assert boxes["memcpy: 25.0 %"][0] == boxes["reader: 25.0 %"][0] >= ours[2]


def test_what_is_too_narrow_has_no_box():
    """Of 1,000 samples nine, and ten, which is the least share."""
    many = ["a", "\t1 f", ""] * 981 + ["b", "\t1 g", ""] * 9 + ["c", "\t1 h", ""] * 10
    root = flames.folded(many)
    assert list(flames.programs(root)) == ["a", "c"]
    assert {name.split(":")[0] for name in drawn(flames.svg(root, "t"))} == {"a", "f", "c", "h"}


def test_graphs_are_called_as_the_run_says():
    for said, side, title in (("warm: mmap, as written, 9 pairs", "forebay", "warm: mmap, as written"),
                              ("GET of 4 KiB, 16 connections, 9 rounds of 4 systems", "forebay, unsigned", "GET of 4 KiB, 16 connections; forebay, unsigned"),
                              ("prefetch of 8 files, 9 times, from versitygw", "forebay", "prefetch of 8 files, from versitygw"),
                              ("TLS, 2 rounds; AES at 5 MB/s", "forebay", "TLS"), ("two epochs: forebay, nginx", "forebay", "two epochs"),
                              ("two epochs: forebay", "forebay", "two epochs")):
        assert flames.titled(said, side, "forebay") == title


class Watched:
    """Instead of Flames: the titles of what perf would have looked at."""

    def __init__(self):
        self.titles = []

    @contextlib.contextmanager
    def sampling(self, title):
        self.titles.append(title)
        yield


def test_perf_looks_at_our_samples_alone(lab_module, tmp_path):
    """(Seen to fail where rounds and take_pairs have no `watching`.)"""
    import versus
    with lab_module.Lab(tmp_path, quick=True) as lab:
        lab.flames = Watched()
        lab_module.say("some work, 3 pairs")
        seen = []
        sides = {name: lambda n=name: seen.append((n, len(lab.flames.titles))) or {"rate": 1} for name in ("forebay", "the disk", "forebay, library")}
        versus.rounds(lab, sides, pairs=1)
        assert seen == [("forebay", 1), ("the disk", 1), ("forebay, library", 2)]
        assert lab.flames.titles == ["some work", "some work; forebay, library"]
        lab.flames.titles.clear()
        assert lab.take_pairs(lambda: len(lab.flames.titles), lambda: 10 + len(lab.flames.titles), pairs=2)[0] == [(1, 11), (2, 11)]
        assert lab.flames.titles == ["some work"] * 2


def test_perf_sees_who_works(lab_module, tmp_path, monkeypatch):
    """A program that ran before, and one that begins meanwhile, each by its name; not what ran when nobody looked."""
    import usage  # needs the path of the benchmarks, and their environment
    monkeypatch.setattr(flames, "LEAST_SHARE", 1e-6)  # on a machine with much to do it may be little
    lab = types.SimpleNamespace(path=lambda name, n=iter(range(9)): tmp_path / f"{next(n)}-{name}")
    for name in ("sum-before", "sum-meanwhile", "sum-after"):
        (tmp_path / name).symlink_to(shutil.which("cksum"))

    def sums(name):
        return subprocess.Popen([tmp_path / name, "/dev/zero"], stdout=subprocess.DEVNULL)

    def works(*those):
        """Waits until each has computed for a third of a second more, of which some hundred samples tell."""
        pids = [one.pid for one in those]
        before = usage.cpu_seconds(pids)
        harness.wait_until(lambda: all(now >= before[pid] + 0.3 for pid, now in usage.cpu_seconds(pids).items()), 200, "what they compute")

    def ended(one):
        one.kill()
        one.wait()

    try:
        graphs = flames.Flames(lab)
        before = sums("sum-before")
        try:
            with graphs.sampling("both"):
                meanwhile = sums("sum-meanwhile")
                try:
                    works(before, meanwhile)
                finally:
                    ended(meanwhile)
        finally:
            ended(before)
        after = sums("sum-after")
        try:
            works(after)
        finally:
            ended(after)
        found = graphs.written(tmp_path / "flames", "burnt", {"date": "now"})
    except flames.NoPerf as reason:
        pytest.skip(f"not run: {reason}")
    (one,) = found["graphs"]
    assert one["title"] == "both" and {name for name in one["programs"] if name.startswith("sum-")} == {"sum-before", "sum-meanwhile"}
    text = (tmp_path / "flames" / one["file"]).read_text()
    assert re.search(r"<title>sum-meanwhile: [\d.]+ %", text) and xml.dom.minidom.parseString(text)
    assert json.loads((tmp_path / "flames/burnt.json").read_text()) == found
    assert sorted(os.listdir(tmp_path / "flames")) == ["burnt-1.svg", "burnt.json"] and not list(tmp_path.glob("*perf.data"))


def test_graphs_of_before_are_gone(tmp_path):
    graphs = flames.Flames.__new__(flames.Flames)
    graphs.recordings = {"t": [types.SimpleNamespace(lines=lambda: SAMPLES.splitlines())]}
    for name in ("warm-1.svg", "warm-7.svg", "small-1.svg"):
        (tmp_path / name).write_text("old")
    found = graphs.written(tmp_path, "warm", {})
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["small-1.svg", "warm-1.svg"] and (tmp_path / "warm-1.svg").read_text() != "old"
    assert [one["samples"] for one in found["graphs"]] == [4]


def test_a_page_points_to_the_graphs_of_what_missed(lab_module, tmp_path):
    import report
    directory = tmp_path / "results"
    (directory / "flames").mkdir(parents=True)
    found = {"command": "bench/run --flames", "date": "then", "commit": "abc", "machine": lab_module.machine(),
             "graphs": [{"title": "warm: mmap", "file": "warm-1.svg", "samples": 9, "programs": {"forebay": 0.756, "idle": 0.2}}]}
    (directory / "flames/warm.json").write_text(json.dumps(found))

    def page(ratio):
        row = lab_module.pair_row("a row", 1.0, [(ratio, 1.0)], 0, "MB/s")
        return report.section("warm", result_of(lab_module, [row]), directory)

    assert "* [warm: mmap](results/flames/warm-1.svg): forebay 76 %, idle 20 %\n" in page(0.5) and "commit abc" in page(0.5)
    assert "flames" not in page(1.5)


def test_without_perf_one_line_says_so(lab_module, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(flames.NoPerf, match="perf is not installed"):
        flames.Flames(None)


@pytest.mark.parametrize("script, said", [("echo 'Access to performance monitoring is limited' >&2; exit 255", "perf record: Access to performance"),
                                          ("exit 1", "perf record: it ended")])
def test_where_perf_may_not_look_its_words_are_told(tmp_path, monkeypatch, script, said):
    perf = tmp_path / "perf"
    perf.write_text(f"#!/bin/sh\n{script}\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    graphs = flames.Flames(types.SimpleNamespace(path=lambda name: tmp_path / name))
    with pytest.raises(flames.NoPerf, match=said), graphs.sampling("t"):
        pass


def test_a_run_for_graphs_takes_no_figures(lab_module, monkeypatch, tmp_path, capfd, work):
    """From the first file to the page, one measurement in small, and one that fails beside it."""
    import moving
    import peers
    monkeypatch.setattr(peers, "MOUNTS", peers.MOUNTS)  # left out of such a run
    monkeypatch.setattr(moving, "LARGE_BYTES", MIB)
    monkeypatch.setattr(lab_module, "QUICK_FREE_BYTES", 1 << 30)
    monkeypatch.setattr(moving, "MEASURES", {**moving.MEASURES, "prefetch": lambda lab: 1 / 0})
    monkeypatch.setenv("FOREBAY_BIN", str(lab_module.BUILD / "forebay"))
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory:
        given = types.SimpleNamespace(dir=directory, quick=True, flames=True)
        try:
            assert RUN.draw_flames(given, ["prefetch", "jobs"], tmp_path) == ["prefetch"]
        except flames.NoPerf as reason:
            pytest.skip(f"not run: {reason}")
        assert os.listdir(directory) == []
    assert not (tmp_path / "jobs.json").exists()
    graphs = json.loads((tmp_path / "flames/jobs.json").read_text())["graphs"]
    assert [one["title"] for one in graphs] == [f"import and export of 2 objects of 100 MB, {where}: {word}"
                                                for where in ("versitygw", "another node") for word in ("import", "export")]
    assert all((tmp_path / "flames" / one["file"]).exists() for one in graphs)
    assert "ZeroDivisionError" in capfd.readouterr().err
