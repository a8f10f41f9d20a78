"""scripts/demo as a newcomer runs it: both epochs, with FUSE and without, and nothing left behind, however it ends."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest

import harness

DEMO = harness.ROOT / "scripts/demo"
pytestmark = pytest.mark.timeout(1800)


def left_behind(directory):
    """What a run under this TMPDIR has not cleaned up: files, mounts, processes."""
    found = [str(p) for p in pathlib.Path(directory).iterdir()]
    found += [line for line in open("/proc/self/mountinfo") if str(directory) in line]
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.fsencode(directory) in (entry / "cmdline").read_bytes():
                found.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def base(work):
    """TMPDIR of a run, short enough for a socket's path."""
    path = tempfile.mkdtemp(prefix="demo-", dir=work)
    if shutil.disk_usage(path).free < 3 << 30:
        pytest.skip("needs 3 GiB of free disk")
    return path


SMALL = {"FOREBAY_DEMO_IMAGES": "500", "FOREBAY_DEMO_SHARDS": "2"}


def heed_interrupts():
    """What is started in the background of a shell ignores SIGINT, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(base, **env):
    return subprocess.Popen([str(DEMO)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                            preexec_fn=heed_interrupts,
                            env={**os.environ, "TMPDIR": base, "BUILD": str(harness.forebay_release_bin().parent), **env})


def table_line(text, name):
    """The numbers of one line of the table; the amount from the origin as it is written."""
    match = re.search(rf"^{name} +([\d.]+) +(\d+) +([\d.]+) +(\S+ \S+|-) .* (\d+) %$", text, re.M)
    assert match, f"no line '{name}' in:\n{text}"
    return match.groups()


def check_table(text, files=2008, mib="46"):
    [size] = re.findall(rf"^{files} files, ({mib}\d(?:\.\d)?) MiB", text, re.M)
    fetched = float(table_line(text, "epoch 1")[3].split()[0])
    assert 0.99 * float(size) < fetched < 1.1 * float(size)  # on a busy machine a request may have been sent twice
    assert float(table_line(text, "epoch 2")[3].split()[0]) == 0
    assert table_line(text, "plain disk")[4] == "100"


def test_two_epochs_through_the_mount(base, need_fuse):
    """The whole demonstration: exit 0, a table in which epoch 1 took the data set from the origin and epoch 2 nothing; no file,
    mount or process stays."""
    demo = start(base)
    out, log = demo.communicate(timeout=1500)
    assert demo.returncode == 0, log
    check_table(out)
    assert "mounting" in log and "not run" not in log
    assert left_behind(base) == []


def test_two_epochs_without_fuse(base):
    """Without /dev/fuse it says that the mount part was not run, reads both epochs all the same, and ends well."""
    demo = start(base, FOREBAY_DEMO_FUSE=f"{base}/no-fuse", **SMALL)
    out, log = demo.communicate(timeout=1500)
    assert demo.returncode == 0, log
    assert "the mount part was not run: no " in log
    check_table(out, files=502, mib="11")
    assert left_behind(base) == []


@pytest.mark.parametrize("stage, number, status", [
    ("making", signal.SIGINT, 130),
    ("uploading", signal.SIGTERM, 143),
    ("shuffled order", signal.SIGINT, 130),
    ("shuffled order", signal.SIGTERM, 143),
])
def test_interrupted(base, need_fuse, stage, number, status):
    """Ctrl-C and SIGTERM, while it makes, uploads or reads the data: it stops at once and leaves nothing behind."""
    demo = start(base, **SMALL)
    seen = threading.Event()
    lines = []

    def watch():
        for line in demo.stderr:
            lines.append(line)
            if stage in line:
                seen.set()
        seen.set()

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    assert seen.wait(1500)
    if stage == "shuffled order":
        harness.wait_until(lambda: any(base in line for line in open("/proc/self/mountinfo")), 60, "mounted")
    if number == signal.SIGINT:
        os.killpg(demo.pid, number)  # as a terminal does
    else:
        demo.send_signal(number)
    assert demo.wait(200) == status, "".join(lines)
    reader.join(200)
    demo.stdout.close()
    demo.stderr.close()
    assert left_behind(base) == []


def test_interrupted_right_behind_a_start(base, need_fuse, tmp_path):
    """Ctrl-C when a program has been started in the background, and before the script has looked at it: it ends, too, and
    writes nothing into the directory that is being removed."""
    slowly = tmp_path / "slowly"
    slowly.write_text("set -T\ntrap 'case $BASH_COMMAND in wait* | child=*) sleep 2 ;; esac' DEBUG\n")
    demo = start(base, BASH_ENV=str(slowly), **SMALL)
    lines = iter(demo.stderr.readline, "")
    assert any("making" in line for line in lines)
    harness.wait_until(lambda: any("dataset.py make" in line for line in left_behind(base)), 60, "the program that makes files")
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(200) == 130, "".join(lines)
    demo.stdout.close()
    demo.stderr.close()
    assert left_behind(base) == []


def test_no_room(work):
    """A disk without room: one line that names the directory and what is needed, exit 1, nothing made."""
    small = tempfile.mkdtemp(prefix="small-", dir="/dev/shm")
    try:
        if shutil.disk_usage(small).free >= 3 << 30:
            pretend = pathlib.Path(tempfile.mkdtemp(prefix="bin-", dir=work))
            (pretend / "df").write_text("#!/bin/sh\necho Filesystem Blocks Used Available\necho none 1000 0 1000 x y\n")
            (pretend / "df").chmod(0o755)
            env = {"PATH": f"{pretend}:{os.environ['PATH']}"}
        else:
            env = {}
        demo = start(small, **env)
        _, log = demo.communicate(timeout=1500)
        assert demo.returncode == 1
        assert small in log.splitlines()[-1] and "needed" in log.splitlines()[-1]
        assert left_behind(small) == []
    finally:
        shutil.rmtree(small)


def test_unknown_argument():
    """An argument it does not know is named, exit 2; --help explains."""
    done = subprocess.run([str(DEMO), "--fast"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "--fast" in done.stderr
    done = subprocess.run([str(DEMO), "--help"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "two epochs" in done.stdout
