"""A mount when things break: the node is killed, the origin refuses, the mount's own process dies, options are wrong."""

import concurrent.futures
import contextlib
import ctypes
import errno
import json
import mmap
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import pytest

import harness
import mounted

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def mount(new_mount):
    """mount(node, bucket, passthrough="off", ...)."""
    return new_mount


def error_of(action):
    with pytest.raises(OSError) as caught:
        action()
    return caught.value.errno


# ---- the disk ----

SIZES_UNKNOWN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int fstat64(int fd, struct stat64 *ret)
{
    int (*real)(int, struct stat64 *) = (int (*)(int, struct stat64 *))dlsym(RTLD_NEXT, "fstat64");
    int status = real(fd, ret);
    if (status < 0 || !S_ISREG(ret->st_mode) || ret->st_size == 0 || access(getenv("SIZES_UNKNOWN"), F_OK) < 0)
        return status;
    errno = EIO;
    return -1;
}
"""


@pytest.fixture
def unknowing(mount, tmp_path):
    """(make, unknown): make(node, bucket) mounts by a process to which no file's size is told while the file `unknown` is there."""
    (tmp_path / "sizes.c").write_text(SIZES_UNKNOWN)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "sizes.so", tmp_path / "sizes.c", "-ldl"], check=True)
    unknown, program = tmp_path / "unknown", harness.forebay_release_bin()

    def make(node, bucket):
        env = {**node.env, "LD_PRELOAD": str(tmp_path / "sizes.so"), "SIZES_UNKNOWN": str(unknown)}
        return mount(types.SimpleNamespace(binary=program, socket_path=node.socket_path, env=env), bucket, passthrough="off")

    return make, unknown


def test_a_disk_that_tells_no_sizes(origin, node, unknowing):
    """While it does not say how large a file is, as one that has shut itself down, fsync and close of what was written say so; what the
    origin has stays, and is replaced by all of it once the disk tells. (Seen to fail, by an empty object and no error, where look,
    mount/staging_publish.c, takes what it is not told for 0.)"""
    make, unknown = unknowing
    bucket, body = node.new_bucket(origin), harness.random_bytes(3 * MIB, seed=1)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=b"before")

    def there():
        return origin.s3().get_object(Bucket=bucket, Key="k")["Body"].read()

    m = make(node, bucket)
    fd, closed = os.open(m.path / "k", os.O_WRONLY | os.O_TRUNC), None
    try:
        assert os.write(fd, body) == len(body)
        unknown.touch()
        assert error_of(lambda: os.fsync(fd)) == errno.EIO
        assert there() == b"before"
        unknown.unlink()
        os.fsync(fd)
        assert there() == body
        assert os.pwrite(fd, b"more", len(body)) == 4
        unknown.touch()
    finally:
        try:
            os.close(fd)
        except OSError as error:
            closed = error.errno
    assert closed == errno.EIO
    assert there() == body
    unknown.unlink()
    with pytest.raises(AssertionError, match="status 1:(?s:.*)1 files could not be written"):
        m.stop()


def test_an_older_file_of_which_the_disk_tells_nothing_stays_the_older_one(origin, node, unknowing, new_shaper):
    """A file that the origin refused is tried again by each fsync, until its name has been written anew: also when nobody could see
    for a moment whether it has changed since. (Seen to fail, by the older file in the place of the newer one, where is_overtaken,
    mount/staging_publish.c, takes that for a change.)"""
    make, unknown = unknowing
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    path = make(node, bucket).path / "k"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        assert os.write(fd, b"older") == 5
        shaper.fault("status:403", match="PUT /", count=1000)
        assert error_of(lambda: os.close(os.dup(fd))) == errno.EACCES
        shaper.reset()
        path.write_bytes(b"newer")
        assert error_of(lambda: os.fsync(fd)) == errno.EACCES
        unknown.touch()
        assert error_of(lambda: os.fsync(fd)) == errno.EACCES
        unknown.unlink()
        assert error_of(lambda: os.fsync(fd)) == errno.EACCES
        assert origin.s3().get_object(Bucket=bucket, Key="k")["Body"].read() == b"newer"
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


# ---- the node ----


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_node_killed_under_a_reader(origin, new_node, new_shaper, mount, passthrough):
    """kill -9 of the node in the middle of a cold read: after its restart the reader goes on, with the right bytes."""
    node = new_node()
    shaper = new_shaper(total="20MB/s", per_connection="20MB/s")
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    body = harness.random_bytes(40 * MIB, seed=1)
    origin.s3().put_object(Bucket=bucket, Key="big", Body=body)
    path = mount(node, bucket, passthrough=passthrough).path / "big"

    got = bytearray()

    def read():
        with open(path, "rb", buffering=0) as f:
            while part := f.read(MIB):
                got.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    harness.wait_until(lambda: len(got) > 8 * MIB, 60, "the reader is in the middle")
    node.kill()
    time.sleep(0.5)
    node.start()  # in this thread: the node's life is tied to the thread that starts it
    reader.join()
    assert got == body
    assert path.read_bytes() == body


def test_open_file_survives_restarts(origin, new_node, mount):
    """A file that is open by passthrough is read on while the node is down, and its version after the node came back;
    one that is open plainly waits for the node."""
    node = new_node()
    bucket = node.new_bucket(origin)
    body, cold = harness.random_bytes(2 * MIB, seed=2), harness.random_bytes(12 * MIB, seed=3)
    origin.s3().put_object(Bucket=bucket, Key="warm", Body=body)
    origin.s3().put_object(Bucket=bucket, Key="cold", Body=cold)
    path = mount(node, bucket).path
    assert (path / "warm").read_bytes() == body
    with open(path / "warm", "rb", buffering=0) as warm, open(path / "cold", "rb", buffering=0) as plain:
        assert plain.read(10) == cold[:10]
        node.kill()
        assert warm.read(3 * MIB) == body
        node.start()
        assert os.pread(plain.fileno(), MIB, 10 * MIB) == cold[10 * MIB:11 * MIB]
        assert os.pread(warm.fileno(), 100, 0) == body[:100]
    assert (path / "cold").read_bytes() == cold


def test_changed_while_the_node_was_down(origin, new_node, mount):
    """The version that was open is gone after the restart: ESTALE, never a mixture; a new open has the new bytes."""
    node = new_node()
    bucket = node.new_bucket(origin, validate="always")
    old, new = harness.random_bytes(12 * MIB, seed=4), harness.random_bytes(12 * MIB, seed=5)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=old)
    path = mount(node, bucket, passthrough="off").path / "f"
    with open(path, "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 10, 0) == old[:10]
        node.kill()
        origin.s3().put_object(Bucket=bucket, Key="f", Body=new)
        node.start()
        assert error_of(lambda: os.pread(f.fileno(), MIB, 10 * MIB)) == errno.ESTALE
    time.sleep(1.1)
    assert path.read_bytes() == new


WRITER = """
import os, sys
body = open(sys.argv[2], "rb")
f = open(sys.argv[1], "wb", buffering=0)
for word in sys.stdin:
    if word == "write\\n":
        f.write(body.read(1 << 20))
    elif word == "fsync\\n":
        os.fsync(f.fileno())
    else:
        f.close()
    print(word, end="", flush=True)
"""


def test_node_killed_under_a_writer(origin, new_node, mount, tmp_path):
    """Bytes written before the node was killed are published by a close after it came back.

    The writer is another process: this one could not start the node, because starting a process closes the copies of its
    open files in the child, which is a close like any other and waits for the node."""
    node = new_node()
    bucket = node.new_bucket(origin)
    path = mount(node, bucket).path
    body = harness.random_bytes(3 * MIB, seed=6)
    (tmp_path / "body").write_bytes(body)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path / "f", tmp_path / "body"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, bufsize=1)

    def tell(word):
        writer.stdin.write(word + "\n")
        writer.stdin.flush()
        assert writer.stdout.readline().strip() == word

    try:
        for word in ("write", "fsync", "write"):
            tell(word)
        node.kill()
        tell("write")
        node.start()
        tell("close")
    finally:
        writer.kill()
        writer.communicate()
    assert origin.s3().get_object(Bucket=bucket, Key="f")["Body"].read() == body
    assert (path / "f").read_bytes() == body


def test_node_down(origin, new_node, mount):
    """Operations wait for --timeout and give EIO; nothing hangs, and all works again when the node is back."""
    node = new_node()
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="d/f", Body=b"x")
    one = mount(node, bucket, timeout="10s")
    assert (one.path / "d/f").read_bytes() == b"x"
    writer = open(one.path / "w", "wb", buffering=0)
    writer.write(b"1")
    node.kill()
    time.sleep(1.1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tries = [lambda: os.stat(one.path / "d/f"), lambda: os.listdir(one.path / "d"),
                 lambda: (one.path / "new").write_bytes(b""), lambda: os.unlink(one.path / "d/f"),
                 lambda: os.stat(one.path / "nothing"), writer.close]
        assert list(pool.map(error_of, tries, timeout=200)) == [errno.EIO] * len(tries)
    node.start()
    assert (one.path / "d/f").read_bytes() == b"x"
    (one.path / "new").write_bytes(b"2")
    assert origin.s3().get_object(Bucket=bucket, Key="new")["Body"].read() == b"2"


@pytest.mark.parametrize("request_, change, made", [
    ("DELETE f", lambda top: os.unlink(top / "f"), lambda keys: "f" not in keys),
    ("PUT new/", lambda top: os.mkdir(top / "new"), lambda keys: "new/" in keys),
    ("DELETE d/", lambda top: os.rmdir(top / "d"), lambda keys: "d/" not in keys),
    ("PUT f", lambda top: os.chmod(top / "f", 0o640), lambda keys: "f" in keys),
], ids=["unlink", "mkdir", "rmdir", "chmod"])
def test_a_change_that_takes_the_origin_longer_than_the_timeout_is_waited_for(origin, new_node, new_shaper, mount, request_, change, made):
    """--timeout is about a node that does not answer. One that waits for its origin answers others meanwhile, and nobody is told
    EIO of a change that is made all the same. (Seen to fail without REMOVE, MKDIR, RMDIR, SET_META in client_op_is_long.)"""
    node, shaper = new_node(), new_shaper()
    bucket, s3 = node.new_bucket(origin, endpoint=shaper.endpoint, posix="on"), origin.s3()
    for key in ("f", "d/"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    top = mount(node, bucket, timeout="10s").path
    assert sorted(os.listdir(top)) == ["d", "f"] and (top / "f").stat().st_size == 0
    method, key = request_.split()
    shaper.fault("stall", match=f"{method} /{bucket}/{key}", for_="25s")
    change(top)
    assert made({x["Key"] for x in s3.list_objects_v2(Bucket=bucket).get("Contents", [])})
    assert request_ != "PUT f" or s3.head_object(Bucket=bucket, Key="f")["Metadata"]["mode"] == str(0o100640)


def test_reads_are_waited_for_while_the_origin_is_away(origin, new_node, new_shaper, mount):
    """Nor is --timeout about what reads: while the node asks an origin that is away, for as long as `retry` says, opening, looking up
    and listing wait, and go on when the origin is back. Longer where a busy machine's node has no answer for others in half of the timeout.
    (Seen to fail without OPEN, STAT and LIST in client_op_is_long.)"""
    node, shaper, s3 = new_node(), new_shaper(), origin.s3()
    for seconds in (5, 20):
        bucket = node.new_bucket(origin, endpoint=shaper.endpoint, retry="10m")
        for key in ("f", "g", "d/h"):
            s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        top = mount(node, bucket, timeout=f"{seconds}s").path
        assert (top / "f").stat().st_size == 1
        shaper.fault("status:503", count="1000000")
        back = threading.Timer(3 * seconds + 1, shaper.reset)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(x) for x in ((top / "f").read_bytes, (top / "g").stat, lambda: os.listdir(top / "d"))]
            back.start()
        back.join()
        if not any(x.exception() for x in asked):
            break
    read, looked_up, listed = [x.result() for x in asked]
    assert read == b"f" and looked_up.st_size == 1 and listed == ["h"]


@pytest.mark.parametrize("moment", ["copying", "removing"])
def test_node_killed_while_a_directory_is_renamed(origin, new_node, new_shaper, mount, moment):
    """kill -9 between two copies, or between two removals: one of the two names has every file with its bytes, and when the node
    is back the rename is made. (Seen to fail when each original is removed right after it was copied, object/move_tree.c.)"""
    node, shaper = new_node(), new_shaper(first_byte="150ms")
    bucket, s3 = node.new_bucket(origin, endpoint=shaper.endpoint), origin.s3()
    names = [f"f{i:02}" for i in range(48)]
    for name in names:
        s3.put_object(Bucket=bucket, Key=f"d/{name}", Body=name.encode())
    one = mount(node, bucket, timeout="60s")
    renamer = subprocess.Popen([sys.executable, "-c", "import os, sys; os.rename(sys.argv[1], sys.argv[2])", one.path / "d", one.path / "e"],
                               stderr=subprocess.PIPE)

    def there(name):
        return {x["Key"].split("/")[1] for x in s3.list_objects_v2(Bucket=bucket, Prefix=name + "/").get("Contents", [])} - {""}

    harness.wait_until(lambda: there("e") if moment == "copying" else len(there("d")) < len(names), what=moment, step=0.01)
    node.kill()
    left = there("d"), there("e")
    node.start()
    renamer.communicate(timeout=200)
    assert left[0] == set(names) or left[1] == set(names), left
    assert renamer.returncode == 0 and (there("d"), there("e")) == (set(), set(names))
    time.sleep(1.1)
    for name in names:
        assert (one.path / "e" / name).read_bytes() == name.encode()


def test_many_restarts_under_load(origin, new_node, mount):
    """Four readers in a loop while the node is killed four times: every byte that was read is right."""
    node = new_node()
    bucket = node.new_bucket(origin)
    bodies = {f"f{i}": harness.random_bytes(300_000 * (i + 1), seed=i) for i in range(8)}
    for key, body in bodies.items():
        origin.s3().put_object(Bucket=bucket, Key=key, Body=body)
    path = mount(node, bucket).path
    stop = threading.Event()
    wrong = []

    def read():
        while not stop.is_set():
            for key, body in bodies.items():
                if (path / key).read_bytes() != body:
                    wrong.append(key)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for r in readers:
        r.start()
    for _ in range(4):
        time.sleep(0.8)
        node.kill()
        node.start()
    stop.set()
    for r in readers:
        r.join()
    assert not wrong


# ---- the origin ----


def test_origin_refuses_a_write(origin, new_node, new_shaper, mount):
    """close and fsync say so, the log has the origin's words, the old object stays, and a later write works."""
    node = new_node()
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"old")
    one = mount(node, bucket)
    shaper.fault("status:403", match="PUT", count=1000)
    f = open(one.path / "f", "wb", buffering=0)
    f.write(b"new")
    assert error_of(lambda: os.fsync(f.fileno())) == errno.EACCES
    assert error_of(f.close) == errno.EACCES
    assert error_of(lambda: (one.path / "g").write_bytes(b"g")) == errno.EACCES
    assert "403" in one.log()
    assert origin.s3().get_object(Bucket=bucket, Key="f")["Body"].read() == b"old"
    shaper.reset()
    time.sleep(1.1)
    assert (one.path / "f").read_bytes() == b"old"
    assert not (one.path / "g").exists()
    (one.path / "g").write_bytes(b"works")
    assert origin.s3().get_object(Bucket=bucket, Key="g")["Body"].read() == b"works"


@pytest.mark.parametrize("passthrough", ["auto", "off"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_what_the_origin_refused_is_read_by_nobody(origin, new_node, new_shaper, mount, passthrough, is_cut):
    """Bytes that close could not publish are in none of the kernel's pages any more: the name has the origin's bytes, at once, for
    who reads it and for who goes on writing."""
    node = new_node()
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    old = harness.random_bytes(16384, seed=8)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=old)
    path = mount(node, bucket, passthrough=passthrough).path / "f"
    shaper.fault("status:403", match="PUT", count=1000)
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes(8192), 0)
    if is_cut:
        os.ftruncate(fd, 8192)
    assert error_of(lambda: os.close(fd)) == errno.EACCES
    assert path.read_bytes() == old
    assert path.stat().st_size == len(old)
    shaper.reset()
    new = old[:4096] + b"x" + old[4097:]
    with open(path, "r+b", buffering=0) as f:
        assert f.read(len(old)) == old
        os.pwrite(f.fileno(), b"x", 4096)
    assert path.read_bytes() == new
    assert origin.s3().get_object(Bucket=bucket, Key="f")["Body"].read() == new


@pytest.mark.parametrize("passthrough", ["auto", "off"])
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY])
def test_what_a_close_could_not_publish_is_read_by_nobody_from_then_on(origin, new_node, new_shaper, mount, passthrough, flags):
    """When close returns the origin's refusal the name has the origin's bytes already, and not only after the release, which another
    descriptor of the same open file holds back here. That one has its bytes, and once its own fsync or close publishes them the
    name is that file's again. (Seen to fail without spoil and without mend in staging.c.)"""
    node = new_node()
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    old, new = harness.random_bytes(16384, seed=8), harness.random_bytes(8192, seed=9)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=old)
    one = mount(node, bucket, passthrough=passthrough)
    path = one.path / "f"
    shaper.fault("status:403", match="PUT", count=1000)
    fd = os.open(path, flags)
    held = os.dup(fd)
    os.pwrite(fd, new, 0)
    os.ftruncate(fd, len(new))
    assert error_of(lambda: os.close(fd)) == errno.EACCES
    assert path.read_bytes() == old
    assert path.stat().st_size == len(old)
    with open(path, "r+b", buffering=0) as f:
        assert f.read(len(old)) == old
    harness.wait_until(lambda: one.open_files() == 1, what="nobody else has it open to write")
    assert os.fstat(held).st_size == len(new)
    assert flags == os.O_WRONLY or os.pread(held, 2 * len(new), 0) == new
    shaper.reset()
    os.fsync(held)
    assert path.read_bytes() == new
    new = new[:-4] + b"more"
    os.pwrite(held, b"more", len(new) - 4)
    assert path.read_bytes() == new, "of a file that is written here others see the bytes at once"
    os.close(held)
    assert path.read_bytes() == new
    assert path.stat().st_size == len(new)
    assert origin.s3().get_object(Bucket=bucket, Key="f")["Body"].read() == new


def held_after_a_failed_close(shaper, path, written):
    """A descriptor of a file whose close, by another one, the origin refused to take; it is well again."""
    shaper.fault("status:403", match="PUT", count=1000)
    fd = os.open(path, os.O_RDWR)
    held = os.dup(fd)
    os.pwrite(fd, written, 0)
    assert error_of(lambda: os.close(fd)) == errno.EACCES
    shaper.reset()
    return held


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_what_is_published_after_all_is_found_beside_who_reads_the_name(origin, new_node, new_shaper, mount, passthrough):
    """After a close that failed somebody opens the name to write, writes nothing and is gone again, and who opened it to read beside him is
    left: once the fsync of another descriptor has published its bytes the name has those, for whoever opens it."""
    node, shaper = new_node(), new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"old" * 4096)
    one = mount(node, bucket, passthrough=passthrough)
    path = one.path / "f"
    held = held_after_a_failed_close(shaper, path, b"new" * 4096)
    with open(path, "r+b", buffering=0) as third:
        assert third.read() == b"old" * 4096
        reader = open(path, "rb", buffering=0)
    with reader:
        harness.wait_until(lambda: one.open_files() == 2, what="the third one's release")
        os.fsync(held)
        harness.wait_until(lambda: path.read_bytes() == b"new" * 4096, what="the name has what was published")
        assert reader.read() == b"old" * 4096
    os.close(held)
    assert path.read_bytes() == b"new" * 4096


@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
def test_what_a_close_could_not_publish_does_not_come_back_under_a_name_that_is_gone(origin, new_node, new_shaper, mount, how):
    """A descriptor that is left after a close that failed: when the name is removed, or another file takes it, its file has no name
    any more, as with any open file, and what its own close says changes nothing there. When the origin refuses the removal it keeps
    its name; when the file is moved it has the new one. (Seen to fail without target_begin_unlink and target_begin_follow in names.c.)"""
    node, shaper, s3 = new_node(), new_shaper(), origin.s3()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    for key in ("f", "g"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    top = mount(node, bucket).path
    held = held_after_a_failed_close(shaper, top / "f", b"refused")
    assert (top / "f").read_bytes() == b"f"
    if how == "removed":
        shaper.fault("status:403", match="DELETE", count=1)
        assert error_of(lambda: os.unlink(top / "f")) == errno.EACCES
        os.unlink(top / "f")
    elif how == "replaced":
        os.rename(top / "g", top / "f")
    else:
        shaper.fault("status:403", match="PUT", count=1)
        assert error_of(lambda: os.rename(top / "f", top / "h")) == errno.EACCES
        os.rename(top / "f", top / "h")
    os.pwrite(held, b"more", 7)
    os.fsync(held)
    assert os.pread(held, 100, 0) == b"refusedmore"
    os.close(held)
    left = {x["Key"]: s3.get_object(Bucket=bucket, Key=x["Key"])["Body"].read() for x in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}
    assert left == {"removed": {"g": b"g"}, "replaced": {"f": b"g"}, "moved": {"g": b"g", "h": b"refusedmore"}}[how]
    assert sorted(os.listdir(top)) == sorted(left)
    assert {x: (top / x).read_bytes() for x in left} == left


@pytest.mark.parametrize("how", ["fsync", "close"])
def test_an_fsync_beside_a_removal_that_the_origin_refuses(origin, new_node, new_shaper, mount, how):
    """While nobody knows yet whether a name goes, nothing that was written under it is called safe: the origin has it when fsync or
    close says so, and the removal was refused. By a descriptor of before a close that failed: the kernel lets nobody else write or
    sync beside a removal. (Seen to fail without is_doubtful in staging.c.)"""
    node, shaper, s3 = new_node(), new_shaper(), origin.s3()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    s3.put_object(Bucket=bucket, Key="f", Body=b"before")
    top = mount(node, bucket).path
    held = held_after_a_failed_close(shaper, top / "f", b"during")
    assert (top / "f").read_bytes() == b"before"
    shaper.fault("status:403", match="DELETE", count=1)
    os.kill(shaper.process.pid, signal.SIGSTOP)
    go_on = threading.Timer(3, os.kill, (shaper.process.pid, signal.SIGCONT))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        removal = pool.submit(error_of, lambda: os.unlink(top / "f"))
        time.sleep(1)  # the node asks the origin
        go_on.start()
        os.pwrite(held, b"after!", 0)
        os.fsync(held) if how == "fsync" else os.close(held)
        assert s3.get_object(Bucket=bucket, Key="f")["Body"].read() == b"after!"
        assert removal.result(60) == errno.EACCES
    go_on.join()
    if how == "fsync":
        os.close(held)
    assert (top / "f").read_bytes() == b"after!"


def test_a_new_file_that_the_origin_may_have_is_removed_there(origin, new_node, new_shaper, mount):
    """Its fsync failed because the origin's answers were lost: the origin has it nevertheless. Who removes it, while it is open still, finds
    it gone. (Seen to fail where publish_once, mount/staging_publish.c, notes may_be_published for who takes over alone.)"""
    node, shaper, s3 = new_node(), new_shaper(), origin.s3()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s")
    top = mount(node, bucket).path
    with open(top / "f", "wb", buffering=0) as f:
        f.write(b"written")
        shaper.fault("reset", match="PUT", count=1000)
        with pytest.raises(OSError):
            os.fsync(f.fileno())
        shaper.reset()
        assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
        os.unlink(top / "f")
        assert not os.listdir(top)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_origin_fails_a_read(origin, new_node, new_shaper, mount):
    """A read that the origin refuses fails with an error and its words in the log, and is not remembered."""
    node = new_node()
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    body = harness.random_bytes(3 * MIB, seed=7)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=body)
    one = mount(node, bucket)
    assert (one.path / "f").stat().st_size == len(body)
    shaper.fault("status:403", match="GET", count=1000)
    assert error_of((one.path / "f").read_bytes) in (errno.EACCES, errno.EIO)
    assert "403" in one.log()
    shaper.reset()
    assert (one.path / "f").read_bytes() == body


# ---- the mount's process ----


def test_umount_reports_and_waits(node, origin, mount):
    """`forebay umount` refuses while files are open, then waits for the end of the mount's process, or says that it has not
    ended; on what is no mount it says so. (Seen to fail without wait_for_end.)"""
    bucket = node.new_bucket(origin)
    one = mount(node, bucket)
    f = open(one.path / "f", "wb", buffering=0)
    f.write(b"pending")
    busy = node.cli("umount", one.path, check=False)
    assert busy.returncode == 1 and "in use" in busy.stderr
    assert origin.s3().get_object(Bucket=bucket, Key="f")["Body"].read() == b"pending", "flushed by the attempt"
    f.close()
    other = mount(node, bucket)
    os.kill(other.pid, signal.SIGSTOP)
    try:
        late = node.cli("umount", "--timeout", "1s", other.path, check=False)
        assert late.returncode == 1 and "has not ended yet" in late.stderr and not mounted.is_mounted(other.path)
    finally:
        os.kill(other.pid, signal.SIGCONT)
    assert other.process.wait(200) == 0
    node.cli("umount", one.path)
    assert not mounted.is_mounted(one.path)
    assert one.process.poll() == 0
    again = node.cli("umount", one.path, check=False)
    assert again.returncode == 1 and "not a mount" in again.stderr


def test_umount_does_not_wait_for_a_node_that_is_away(origin, new_node, mount):
    """A mount that has nothing to write ends at once, also while its node is away: what asks for the node beside programs, to be told of
    changes and to tell of the mount, gives up."""
    node = new_node()
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"x")
    one = mount(node, bucket, timeout="1h")
    assert (one.path / "f").read_bytes() == b"x"
    node.kill()
    time.sleep(2)  # until its threads know
    node.cli("umount", "--timeout", "100s", one.path)
    assert one.process.wait(200) == 0


def test_umount_says_that_the_node_is_away(new_node, mount):
    """Where the mount cannot be asked what is pending without the node, as of a scratch bucket, it stays, and the command says why and what
    to do."""
    node, bucket = new_node(), harness.random_name()
    node.cli("bucket", "create", bucket)
    one = mount(node, bucket, timeout="2s")
    node.kill()
    time.sleep(1.1)  # until the kernel asks for attributes
    done = node.cli("umount", one.path, check=False)
    assert done.returncode == 1 and "node does not answer" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert mounted.is_mounted(one.path)
    node.start()
    node.cli("umount", one.path)
    assert one.process.wait(200) == 0


HAS_A_COPY = """
awk '$3 ~ /^fuse/ && $2 != "'"$1"'" { print $2 }' /proc/self/mounts | xargs -r umount -l 2>/dev/null
echo there
exec sleep 1000
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_umount_tells_who_has_a_copy_of_the_mount(node, origin, mount):
    """A mount namespace that was made meanwhile has a copy of each mount: after umount the mount's process goes on, the command says
    for which process and where, and it ends with that one. SIGTERM ends it at once. (Seen to fail without explain_no_end,
    mount/unmount.c.)"""
    bucket = node.new_bucket(origin)
    for how in ("the copy ends", "SIGTERM"):
        one = mount(node, bucket)
        holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", HAS_A_COPY, "sh", one.path], stdout=subprocess.PIPE)
        try:
            assert holder.stdout.readline() == b"there\n"
            late = node.cli("umount", "--timeout", "1s", one.path, check=False)
            assert late.returncode == 1 and not mounted.is_mounted(one.path) and one.running(), late.stderr
            said = re.search(r"has not ended yet: process (\d+) \(.+\) has it mounted at (\S+) in a mount namespace of its own", late.stderr)
            assert said and said[2] == str(one.path), late.stderr
            if int(said[1]) == holder.pid:  # a namespace of another test, which has just been made, lets go of its copy at once
                assert f" {one.path} " in pathlib.Path(f"/proc/{said[1]}/mountinfo").read_text()
            if how == "SIGTERM":
                one.process.send_signal(signal.SIGTERM)
                assert one.process.wait(200) == 0
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()
        assert one.process.wait(200) == 0
        one.process = None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_umount_tells_where_else_it_is_mounted(node, origin, mount, tmp_path):
    """The same of a bind mount: it is named, and the process ends when it is unmounted, too."""
    one, elsewhere = mount(node, node.new_bucket(origin)), tmp_path / "else where"
    elsewhere.mkdir()
    subprocess.run(["mount", "--bind", one.path, elsewhere], check=True)
    try:
        late = node.cli("umount", "--timeout", "1s", one.path, check=False)
        assert late.returncode == 1 and f"has not ended yet: it is mounted at {elsewhere} as well" in late.stderr, late.stderr
        assert one.running()
    finally:
        subprocess.run(["umount", elsewhere], check=True)
    assert one.process.wait(200) == 0
    one.process = None


def test_umount_tells_of_lost_writes(origin, new_node, new_shaper, work):
    """A store into a mapping after close, which the origin then refuses, can be told to nobody but umount."""
    node = new_node()
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    one = mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, bucket)
    try:
        (one.path / "f").write_bytes(bytes(8192))
        fd = os.open(one.path / "f", os.O_RDWR)
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        mapping = libc.mmap(None, 8192, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, ctypes.c_long(0))
        os.close(fd)
        ctypes.memmove(mapping + 100, b"late", 4)
        shaper.fault("status:403", match="PUT", count=1000)
        assert libc.munmap(ctypes.c_void_p(mapping), 8192) == 0
        harness.wait_until(lambda: "could not be written" in one.log(), what="the failure in the log")
        done = node.cli("umount", one.path, check=False)
        assert done.returncode == 1 and "1 files could not be written" in done.stderr and "403" in done.stderr
        assert one.process.wait(200) == 1
    finally:
        one.clean_up()


def test_umount_tells_of_no_write_that_was_published_after_all(origin, new_node, new_shaper, mount):
    """What the origin refused while umount found the file in use, however often, and took when the file was closed, is not told as lost.
    [Seen to fail, with "3 files could not be written".]"""
    node = new_node()
    shaper = new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    one = mount(node, bucket)
    with open(one.path / "f", "wb", buffering=0) as f:
        f.write(b"written")
        shaper.fault("status:403", match="PUT", count=1000)
        for _ in range(3):
            busy = node.cli("umount", one.path, check=False)
            assert busy.returncode == 1 and "in use" in busy.stderr
        shaper.reset()
    assert origin.s3().get_object(Bucket=bucket, Key="f")["Body"].read() == b"written"
    node.cli("umount", one.path)
    assert one.process.wait(200) == 0
    one.process = None


def test_a_signal_unmounts(node, origin, work):
    """SIGTERM ends the mount cleanly, also while the node is busy."""
    bucket = node.new_bucket(origin)
    one = mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, bucket)
    try:
        (one.path / "f").write_bytes(b"1")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(200) == 0, one.log_tail()
        assert not mounted.is_mounted(one.path)
    finally:
        one.clean_up()


def test_a_signal_while_files_are_open(node, origin, work):
    """What was written is published before the mount's process ends; its descriptors are dead then."""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="r", Body=b"read")
    one = mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, bucket)
    try:
        listing = os.scandir(one.path)
        next(listing)
        reader, writer = open(one.path / "r", "rb"), open(one.path / "w", "wb", buffering=0)
        assert reader.read() == b"read"
        writer.write(b"pending")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(200) == 0, one.log_tail()
        assert origin.s3().get_object(Bucket=bucket, Key="w")["Body"].read() == b"pending"
        assert not mounted.is_mounted(one.path)
        assert error_of(writer.close) == errno.ENOTCONN
        reader.close()
        listing.close()
    finally:
        one.clean_up()


def test_a_dead_mount_is_replaced(node, origin, work):
    """After kill -9 of the mount's process its directory is dead; mounting there again works."""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"1")
    one = mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, bucket)
    try:
        one.kill()

        def is_dead():
            """Of what was asked before the other process ended, a moment after the first, some is answered, and some broken off."""
            try:
                os.listdir(one.path)
            except OSError as error:
                assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
                return error.errno == errno.ENOTCONN
            return False

        harness.wait_until(is_dead, what="the mount is dead")
        one.start()
        assert (one.path / "f").read_bytes() == b"1"
        one.stop()
        assert not mounted.is_mounted(one.path)
    finally:
        one.clean_up()


# ---- the command ----


def mounts_below(directory):
    with open("/proc/self/mountinfo") as lines:
        return [line for line in lines if str(directory) in line]


def test_background(node, origin, tmp_path):
    """Without --foreground the command returns when the mount works, and leaves no descriptor of the caller open."""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"1")
    where = tmp_path / "mnt"
    where.mkdir()
    try:
        done = node.cli("mount", "--log", tmp_path / "mount.log", bucket, where)
        assert done.stdout == "" and (where / "f").read_bytes() == b"1"
        is_used = "passthrough is used" in (tmp_path / "mount.log").read_text()
        [line] = [line for line in node.cli("status").stdout.splitlines() if str(where) in line]
        [said] = [m for m in json.loads(node.cli("status", "--json").stdout)["mounts"] if m["mount_point"] == str(where)]
        assert said["passthrough"] is is_used and (", passthrough" in line) is is_used and ("no passthrough" in line) is not is_used
        node.cli("umount", where)
        assert not mounts_below(tmp_path)
        assert is_used or "no passthrough: " in (tmp_path / "mount.log").read_text()
    finally:
        subprocess.run(["umount", "-l", where], stderr=subprocess.DEVNULL, check=False)


def test_mistakes_are_told_and_leave_nothing_mounted(node, origin, tmp_path):
    """Each wrong use ends with one line that names it, and the right status."""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="file", Body=b"1")
    where = tmp_path / "mnt"
    where.mkdir()
    (tmp_path / "plain").write_bytes(b"")
    cases = [
        (["no-such-bucket", where], 1, "no-such-bucket"),
        ([bucket, tmp_path / "missing"], 1, "missing"),
        ([bucket, tmp_path / "plain"], 1, "Not a directory"),
        ([f"{bucket}/file", where], 1, "is a file"),
        ([bucket], 2, "BUCKET"),
        ([bucket, where, "--threads", "1025"], 2, "--threads"),
        ([bucket, where, "--umask", "9"], 2, "--umask"),
        ([bucket, where, "--uid", "x"], 2, "--uid"),
        ([bucket, where, "--passthrough", "maybe"], 2, "--passthrough"),
        ([bucket, where, "--nonsense"], 2, "--nonsense"),
        ([bucket, where, "--socket", tmp_path / "nothing.sock"], 1, "nothing.sock"),
        ([bucket, where, "--endpoint", node.wire_address], 1, "FOREBAY_ACCESS_KEY"),
        ([bucket, where, "-o", "no_such_option=1"], 2, "options"),
        ([bucket, where, "--log", "/nonexistent/dir/log"], 1, "/nonexistent/dir/log"),
    ]
    try:
        for arguments, status, words in cases:
            done = node.cli("mount", *arguments, check=False)
            assert (done.returncode, words.lower() in done.stderr.lower()) == (status, True), (arguments, done.returncode, done.stderr)
            assert not mounts_below(tmp_path), arguments
    finally:
        subprocess.run(["umount", "-l", where], stderr=subprocess.DEVNULL, check=False)


def take_away(directory):
    """All that is mounted there, one on the other."""
    while mounted.is_mounted(directory):
        subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, who may mount")
def test_a_mount_of_others_whose_source_is_cut(node, origin, tmp_path):
    """The kernel's list gives each blank as four characters; a source of many is cut within one. (unescape in mount/mountinfo.c went on
    behind the end of it, which a sanitizer tells.)"""
    bucket, strange, where = node.new_bucket(origin), tmp_path / "strange", tmp_path / "mnt"
    for directory in (strange, where):
        directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", " " * 100, str(strange)], check=True)
    try:
        node.cli("mount", bucket, where)
        node.cli("umount", where)
    finally:
        take_away(where)
        take_away(strange)


def test_one_mount_at_a_directory(node, origin, tmp_path):
    """A second mount on top of a first would hide it: it is refused, whatever bucket it is of and by whatever name the directory
    goes, and the first is as it was. A directory inside of a mount is another one."""
    one, two = node.new_bucket(origin), node.new_bucket(origin)
    origin.s3().put_object(Bucket=one, Key="inside/first", Body=b"1")
    where, link = tmp_path / "mnt", tmp_path / "link"
    where.mkdir()
    link.symlink_to("mnt")
    try:
        node.cli("mount", one, where)
        for bucket, directory in ((one, where), (two, where), (two, link), (two, f"{where}/")):
            done = node.cli("mount", bucket, directory, check=False)
            assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
            assert one in done.stderr and "mounted there already" in done.stderr
            assert len(mounts_below(tmp_path)) == 1 and (where / "inside/first").read_bytes() == b"1"
        node.cli("mount", two, where / "inside")
        assert os.listdir(where / "inside") == []
        inner = node.cli("umount", where, check=False)
        assert inner.returncode == 1 and "in use" in inner.stderr
        node.cli("umount", where / "inside")
        below = node.cli("umount", where / "inside", check=False)
        assert below.returncode == 1 and "not the top of a mount" in below.stderr
        node.cli("umount", link)
        assert mounts_below(tmp_path) == []
    finally:
        take_away(where / "inside")
        take_away(where)


def test_of_several_that_mount_at_once_one_does(node, origin, tmp_path):
    """At one directory; the others are told so."""
    bucket = node.new_bucket(origin)
    where = tmp_path / "mnt"
    where.mkdir()
    try:
        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                done = [one.result() for one in [pool.submit(node.cli, "mount", bucket, where, check=False) for _ in range(4)]]
            assert sorted(one.returncode for one in done) == [0, 1, 1, 1], [one.stderr for one in done]
            assert all("mounted there already" in one.stderr for one in done if one.returncode)
            assert len(mounts_below(tmp_path)) == 1
            node.cli("umount", where)
            assert mounts_below(tmp_path) == []
    finally:
        take_away(where)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_dead_mount_of_others_is_left_alone(node, origin, tmp_path):
    """What another program mounted and left behind is not ours to take away, neither by mount nor by umount."""
    bucket = node.new_bucket(origin)
    where = tmp_path / "a directory"
    where.mkdir()
    fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    assert libc.mount(b"other", os.fsencode(where), b"fuse.other", ctypes.c_ulong(0), options) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    try:
        for command in (["umount", where], ["mount", bucket, where], ["mount", bucket, f"{where}/"]):
            done = node.cli(*command, check=False)
            assert done.returncode == 1 and done.stderr.count("\n") == 1 and "fuse.other" in done.stderr, done.stderr
            assert mounted.is_mounted(str(where).replace(" ", "\\040"))
    finally:
        subprocess.run(["umount", "-l", where], check=False)


def test_passthrough_demanded_without_the_right(node, origin, tmp_path):
    """--passthrough on fails where the kernel refuses it, says why, and leaves nothing mounted."""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"1")
    where = tmp_path / "mnt"
    where.mkdir()
    env = {**os.environ, "FOREBAY_SOCKET": str(node.socket_path), **node.env}

    # In a user namespace of its own: all rights there, but not the one that the kernel asks for passthrough.
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("needs user namespaces")
    argv = [*unshare, node.binary, "mount", "--foreground", "--passthrough", "on", bucket, where]
    done = subprocess.run(argv, env=env, stderr=subprocess.PIPE, text=True, timeout=200, check=False)
    assert done.returncode == 1 and "CAP_SYS_ADMIN" in done.stderr, done.stderr
    assert not mounts_below(tmp_path)


def test_mount_options_of_mount_8(node, origin, tmp_path):
    """-o takes what fstab gives: ro is ours, others go to the library."""
    bucket = node.new_bucket(origin)
    where = tmp_path / "mnt"
    where.mkdir()
    try:
        node.cli("mount", "-o", "ro,nosuid,nodev", bucket, where)
        line = mounts_below(tmp_path)[0]
        assert " ro," in line and "nosuid" in line and "fuse.forebay" in line
        assert error_of(lambda: (where / "f").write_bytes(b"")) == errno.EROFS
        node.cli("umount", where)
    finally:
        subprocess.run(["umount", "-l", where], stderr=subprocess.DEVNULL, check=False)
