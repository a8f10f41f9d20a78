"""What the tests of bench/ share: its modules and programs as they lie in the tree, built for release."""

import contextlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys

import pytest

import harness

BENCH = harness.ROOT / "bench"
BUILD = harness.forebay_release_bin().parent
MIB = 1 << 20
sys.path.insert(0, str(BENCH))


@pytest.fixture
def lab_module(monkeypatch):
    """bench/lab.py, which picks its programs by the environment, and would leave them there for whatever test comes next."""
    monkeypatch.setenv("BUILD", str(BUILD))
    for name, path in (("FOREBAY_BIN", "forebay"), ("FOREBAY_SHAPER_BIN", "bench/shaper")):
        monkeypatch.setenv(name, os.environ.get(name) or str(BUILD / path))
    import lab
    import peers
    monkeypatch.setattr(lab, "BUILD", BUILD)
    for module in (lab, peers):  # who measures has the machine for himself
        monkeypatch.setattr(module, "MOUNT_SECONDS", harness.READY_SECONDS)
    return lab


class Unwatched:
    """A lab, or what stands for one, of which no flame graphs are asked for."""

    def watching(self, *_, **__):
        return contextlib.nullcontext()


def program(name, *arguments):
    return subprocess.run([str(BUILD / "bench" / name), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def result_of(lab_module, rows):
    return {"command": "bench/run", "date": lab_module.now(), "machine": lab_module.machine(), "quick": False, "file_system": "ext4",
            "version": "0", "commit": "c", "about": "About.", "rows": rows}


PROMISED = {"warm": 0.95, "checkpoint": 0.9, "checkpoint_shards": 0.9, "checkpoint_back": 0.9, "tls": 0.7, "put_opaque": 0.8,
            "write_back": 0.8, "cold": 0.95, "model_cold": 1.3, "epoch": 1.02, "half": 0.55, "prefetch": 0.9, "jobs": 0.9,
            "jobs_large": 0.9}


def promised(measure, title):
    """The ratio that is promised of a row of a goal."""
    measure = measure.removesuffix("_polling")
    if measure == "small":
        return 0.5 if "read-only" in title else 1.0 if "library" in title else 0.4
    if measure == "s3":
        return 0.5 if " 4 KiB " in title else 1.0
    if measure == "first":
        return 2.2 if "not listed" in title else 1.2
    if measure == "uneven":
        return 0.95 if "parallel ranges" in title else 1.2
    if measure == "put":
        return 0.8 if "the ceiling's" in title else 1.5
    return PROMISED[measure]


def bench_run():
    """bench/run as a module."""
    loader = importlib.machinery.SourceFileLoader("bench_run", str(BENCH / "run"))
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(run)
    return run
