"""What the tests of bench/ share: its modules and programs as they lie in the tree, built for release."""

import importlib.machinery
import importlib.util
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
    """bench/lab.py, which picks its programs by the environment."""
    monkeypatch.setenv("BUILD", str(BUILD))
    import lab
    monkeypatch.setattr(lab, "BUILD", BUILD)
    return lab


def program(name, *arguments):
    return subprocess.run([str(BUILD / "bench" / name), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def result_of(lab_module, rows):
    return {"command": "bench/run", "date": lab_module.now(), "machine": lab_module.machine(), "quick": False, "file_system": "ext4",
            "version": "0", "commit": "c", "about": "About.", "rows": rows}


def bench_run():
    """bench/run as a module."""
    loader = importlib.machinery.SourceFileLoader("bench_run", str(BENCH / "run"))
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(run)
    return run
