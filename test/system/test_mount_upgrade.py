"""`forebay mount --upgrade`: the program that is installed now takes over a mount, and what is open stays open."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import harness
import mounted

KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))
pytestmark = [pytest.mark.usefixtures("need_fuse"),
              pytest.mark.skipif(KERNEL < (6, 9), reason="the kernel cannot send requests again before Linux 6.9")]


@pytest.fixture(params=["scratch", "mirror"])
def what(request, node, bucket):
    if request.param == "mirror":
        return bucket.name
    return harness.scratch_bucket(node)


@pytest.fixture
def program(node, work):
    """A copy of the program, to be replaced."""
    path = pathlib.Path(work) / "forebay"
    shutil.copy(node.binary, path)
    return path


@pytest.fixture
def one(node, what, work, program):
    mount = mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, what, binary=program)
    yield mount
    mount.stop()


def install(program, make):
    new = program.with_name("new")
    make(new)
    new.chmod(0o755)
    new.rename(program)


def upgrade(one, check=True):
    return one.node.cli("mount", "--upgrade", str(one.path), check=check)


def program_of(pid):
    return os.stat(f"/proc/{pid}/exe").st_ino


def test_the_installed_program_takes_over(node, one, program):
    """Files that are read and written, and a directory, stay open over two upgrades and a kill in between; the program on the
    disk serves afterwards, and the mount's process is still the one that was started."""
    top = one.path
    keeper, before = one.pid, one.serving()
    (top / "d").mkdir()
    (top / "d/old").write_bytes(b"0123456789")
    with open(top / "d/old", "rb", buffering=0) as old, open(top / "d/new", "w+b", buffering=0) as new:
        assert old.read(4) == b"0123"
        new.write(b"one ")
        install(program, lambda path: shutil.copy(node.binary, path))
        said = upgrade(one)
        assert one.serving() != before and program_of(one.serving()) == program.stat().st_ino
        assert f"process {one.serving()}" in said.stdout
        assert old.read(3) == b"456"
        new.write(b"two ")
        os.kill(one.serving(), 9)
        assert old.read() == b"789"
        new.write(b"three ")
        install(program, lambda path: shutil.copy(node.binary, path))
        upgrade(one)
        assert program_of(one.serving()) == program.stat().st_ino
        new.write(b"four")
        assert os.pread(new.fileno(), 100, 0) == b"one two three four"
    assert (top / "d/new").read_bytes() == b"one two three four"
    assert set(os.listdir(top / "d")) == {"old", "new"}
    assert one.pid == keeper


@pytest.mark.parametrize("body", ["#!/bin/sh\nexit 3\n", "no program at all"])
def test_a_program_that_cannot_take_over_does_no_harm(one, program, body):
    """What is installed ends at once, or is none: the command says so with status 1, and the mount goes on with what it was
    started from."""
    (one.path / "f").write_bytes(b"before")
    with open(one.path / "f", "rb", buffering=0) as f:
        install(program, lambda path: path.write_text(body))
        said = upgrade(one, check=False)
        assert said.returncode == 1 and "cannot take over" in said.stderr and "unmount and mount again" in said.stderr
        assert f.read() == b"before"
    (one.path / "f").write_bytes(b"after")
    assert (one.path / "f").read_bytes() == b"after"


def test_where_there_is_no_mount_the_command_says_so(node, work):
    """A directory that is no mount: one line, and status 1."""
    said = node.cli("mount", "--upgrade", str(work), check=False)
    assert said.returncode == 1 and "not a mount of forebay" in said.stderr and said.stderr.count("\n") == 1


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_mount_in_the_background_is_upgraded_too(node, what, work, program, by):
    """A mount that was started in the background, by relative names, keeps nobody in the directory where it was started, and goes
    on in the background and ends as it would have, after an upgrade and a kill too. (Seen to fail without chdir in
    background.c, and to hang, by option, without the directory in keeper.c's SEAT.)"""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="mount-", dir=work))
    log = directory.with_suffix(".log")
    start = pathlib.Path(tempfile.mkdtemp(prefix="start-", dir=work))
    (start / "node.sock").symlink_to(node.socket_path)
    environment = {**os.environ, **node.env, **({"FOREBAY_SOCKET": "node.sock"} if by == "variable" else {})}
    option = ["--socket", "node.sock"] if by == "option" else []

    def processes():
        """Keeper and serving process: those whose program is ours."""
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and mounted_by(pid)]

    def mounted_by(pid):
        with contextlib.suppress(OSError):
            return str(directory.name).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()

    def check():
        harness.wait_until(lambda: [os.readlink(f"/proc/{pid}/cwd") for pid in processes()] == ["/", "/"], what="both are in /")

    try:
        subprocess.run([program, "mount", *option, "--log", f"../{log.name}", what, f"../{directory.name}"],
                       cwd=start, env=environment, check=True, timeout=200)
        (directory / "f").write_bytes(b"x")
        check()
        install(program, lambda path: shutil.copy(node.binary, path))
        said = node.cli("mount", "--upgrade", str(directory))
        check()
        assert (directory / "f").read_bytes() == b"x"
        os.kill(int(re.search(r"process (\d+)", said.stdout).group(1)), 9)
        assert (directory / "f").read_bytes() == b"x"
        check()
    finally:
        node.cli("umount", str(directory), check=False)
        if mounted.is_mounted(directory):
            subprocess.run(["umount", "-l", directory], check=False)
    assert not harness.SANITIZER_REPORT.search(log.read_text()), log.read_text()
