"""Each measurement of bench/run, from its first file to the page, with sizes of which no figure means anything: whether it can
still be made."""

import json
import math
import os
import tempfile

import pytest

import harness
from benched import BUILD, MIB, bench_run, lab_module, promised  # noqa: F401 (lab_module is a fixture)

RUN = bench_run()
KIB = 1 << 10
# What the measurements take in a quick run, by module; one pair of each.
SIZES = {
    "lab": {"QUICK_PAIRS": 1, "QUICK_FREE_BYTES": 1 << 30},
    "measures": {"QUICK_BIG_BYTES": 2 * MIB, "SEQUENTIAL_PASSES": 1, "MMAP_PASSES": 1, "RANDOM_READS": 80,
                 "RANDOM_LARGE_READS": 16, "QUICK_FIRST_SAMPLES": 2, "FIRST_SIZES": [64 * KIB], "STREAMS": 4, "STREAM_BYTES": MIB, "QUICK_IMAGES": 4,
                 "QUICK_SHARDS": 0},
    "versus": {"QUICK_COLD_BYTES": MIB, "QUICK_WARM_BYTES": MIB, "QUICK_RANDOM_READS": 16, "QUICK_SMALL_FILES": 8,
               "WARM_READERS": (2,)},
    "calls": {"QUICK_SMALL_FILES": 8},
    "work": {"QUICK_TRAIN_FILES": 8, "QUICK_HALF_FILES": 8, "QUICK_DROPPED_BYTES": 50 * MIB, "QUICK_CHECKPOINT_BYTES": MIB,
             "QUICK_META_FILES": 8, "QUICK_PEER_CHECKPOINT_BYTES": MIB, "QUICK_MODEL_BYTES": MIB, "QUICK_COLD_MODEL_BYTES": MIB},
    "front": {"LOADS": [("4 KiB", 4 * KIB, 64, 80, 4, 0.5), ("10 MiB", 10 * MIB, 8, 16, 4, 1.0)], "PEER_LOADS": [0],
              "TLS_QUICK_OBJECTS": 2, "TLS_QUICK_REQUESTS": 16, "TLS_BYTES": MIB, "QUICK_LIST_OBJECTS": 50},
    "uploads": {"PUT_SIZE": "1MiB", "PUT_BYTES": MIB, "QUICK_PUT_REQUESTS": 4, "QUICK_BACK_BYTES": MIB},
    "moving": {"QUICK_PREFETCH_FILES": 8, "LARGE_BYTES": MIB, "QUICK_LARGE_FILES": 2, "QUICK_MANY_LARGE_FILES": 2,
               "QUICK_SMALL_FILES": 8},
    "cold_peers": {"QUICK_FIRST_OBJECTS": 2, "FIRST_SIZES": [64 * KIB], "QUICK_EPOCH_FILES": 8, "QUICK_HALF_FILES": 4,
                   "HALF_EPOCHS": 3, "HALF_PAUSE_SECONDS": 0, "STREAMS": 4, "QUICK_STREAM_BYTES": MIB,
                   "QUICK_DROPPED_BYTES": 50 * MIB},
    "uneven": {"QUICK_FILES": 16, "QUICK_LARGE_BYTES": 2 * MIB},
}
# Which of the peers a measurement is made with: starting all of them takes longer than it. Each is in one at least.
BESIDE = {"peers_warm": ["SeaweedFS"], "peers_cold": ["s3fs"], "peers_small": ["rclone off"], "peers_checkpoint": ["rclone full"],
          "peers_train": ["s3fs"], "peers_first": ["JuiceFS"], "peers_epochs": ["rclone full"], "peers_memory": ["rclone off"],
          "peers_dropped": ["s3fs"], "peers_s3": [], "uneven": ["rclone full"]}
NEED_NGINX = {"s3", "tls", "values"}


def finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def has_numbers(row):
    """A ratio of something to something, or a text with a figure in it."""
    if "ratio" in row:
        sides = [row[side][which] for side in ("ratio", "ours", "reference") for which in ("median", "min", "max")]
        return row["n"] >= 1 and len(row["pairs"]) == row["n"] and row["unit"] and all(map(finite, sides))
    return row["value"] != "not run" and any(letter.isdigit() for letter in row["value"])


def may_be_missing(row, absent):
    """A peer that cannot be had on this machine: its row has the reason instead."""
    named = any(row["title"].endswith(name) or f" {name}'s" in row["title"] for name in absent)
    return row["value"] == "not run" and row["detail"] and named


def absent_here():
    """Names of what a measurement may be without."""
    import cold_peers
    import front
    import peers
    import usage
    absent = {peers.MINIO} if peers.Minio.missing() else set()
    absent |= {"of what a client alone sends"} if peers.program("curl") is None else set()
    absent |= {"against all"} if not os.access(cold_peers.DROP_CACHES, os.W_OK) else set()
    absent |= {front.CACHE} if peers.program("nginx") is None else set()
    absent |= {front.ALIKE.format(name) for name in (front.DIRECT, peers.MINIO)} if os.geteuid() != 0 else set()
    return absent | ({peers.TMPFS} if usage.tmpfs(None) is None else set())


@pytest.fixture
def tiny(lab_module, monkeypatch):
    """The modules of bench/ with the sizes above, and the release build."""
    import importlib
    monkeypatch.setenv("FOREBAY_BIN", str(BUILD / "forebay"))
    monkeypatch.setenv("FOREBAY_SCALE_ENTRIES", "2000")
    for module, sizes in SIZES.items():
        for name, value in sizes.items():
            monkeypatch.setattr(importlib.import_module(module), name, value)
    return lab_module


def test_every_peer_is_in_one_of_them(lab_module):
    """Of the measurements below, and each measurement beside peers says with which."""
    import goals
    import peers
    assert {peer.name for peer in peers.MOUNTS} == {name for names in BESIDE.values() for name in names}
    assert set(goals.PEER_MEASURES) <= set(BESIDE)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUN.ALL)
def test_each_measurement_can_be_made(tiny, monkeypatch, need_fuse, work, tmp_path, capfd, name):
    """It ends, each of its rows has numbers and stands on the page and on the terminal, and every goal that is for it has a row
    of it, with the ratio that is promised; nothing is left in its directory. (Seen to fail with a measurement that raises, with a
    row without a figure, with titles that no goal knows, and with another ratio.)"""
    import goals
    import moving
    import peers
    import report
    chosen = [peer for peer in peers.MOUNTS if peer.name in BESIDE.get(name, [])]
    reasons = [f"{peer.name}: {peer.missing()}" for peer in chosen if peer.missing()]
    reasons += ["nginx is not installed"] if name in NEED_NGINX and peers.program("nginx") is None else []
    reasons += ["fio is not installed"] if name == "put_opaque" and peers.program("fio") is None else []
    reasons += ["the system has no file of authorities"] if name == "prefetch_https" and not any(map(os.path.exists, moving.SYSTEM_AUTHORITIES)) else []
    if reasons:
        pytest.skip("not run: " + "; ".join(reasons))
    monkeypatch.setattr(peers, "MOUNTS", chosen)
    halt_poll = tmp_path / "guest_halt_poll_ns"
    halt_poll.write_text("0\n")
    monkeypatch.setattr(tiny, "HALT_POLL", halt_poll)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory:
        given = type("Given", (), {"dir": directory, "quick": True, "all": False, "only": name})
        assert RUN.measure(given, [name], tmp_path) == [], capfd.readouterr().err
        assert os.listdir(directory) == []
    result = json.loads((tmp_path / f"{name}.json").read_text())
    page, said, absent = (tmp_path / "RESULTS.md").read_text(), capfd.readouterr().out, absent_here()
    assert result["rows"] and result["quick"] and f"## {report.TITLES[name]}\n" in page
    for row in result["rows"]:
        assert has_numbers(row) or may_be_missing(row, absent), row
        assert row["met"] in (True, False, None) and f"| {row['title']} | {row['goal']} | **" in page and row["title"] in said
        assert report.row_line(row) in page
    found = goals.load(tmp_path)
    rows = [row for *_, measure, row in goals.goal_rows(found) if measure == name]
    assert all(row is not None for row in rows)
    assert all(goals.goal_of(row)[0] == promised(name, row["title"]) for row in rows if goals.goal_of(row))
    assert all(result != "not run" for _title, result, *_, measure in goals.peer_rows(found) if measure == name)
