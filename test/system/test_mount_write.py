"""Writing through a mount: what close and fsync acknowledge is in the origin, what they refuse is reported."""

import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import botocore.exceptions
import pytest

import harness
import walked

MIB = 1 << 20
MODES = ["auto", "off"]

pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def mount(bucket, new_mount):
    """mount(passthrough="off", ...) mounts the test's bucket."""
    return lambda what=None, node=None, **options: new_mount(node or bucket.node, what or bucket.name, **options)


def truth(bucket, key):
    """What the origin has, or None."""
    try:
        return bucket.truth.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    except botocore.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] in ("NoSuchKey", "404")
        return None


def some_names(fd):
    """The next entries of an open directory, as many as fit into 16 KiB."""
    libc, buffer, names, at = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(16384), [], 0
    n = libc.getdents64(fd, buffer, ctypes.c_size_t(len(buffer)))
    assert n >= 0, os.strerror(ctypes.get_errno())
    while at < n:
        length = int.from_bytes(buffer.raw[at + 16:at + 18], sys.byteorder)
        names.append(os.fsdecode(buffer.raw[at + 19:at + length].split(b"\0")[0]))
        at += length
    return names


def test_names_of_files_that_move_while_a_directory_is_read(mount):
    """Files that are being written are in no listing of the origin yet. One that is moved to another directory, or removed, while
    a program reads the first directory is not shown there under a name that it never had there."""
    top = mount().path
    (top / "d").mkdir()
    (top / "e").mkdir()
    names = [f"{i:03}" + "x" * 250 for i in range(200)]  # more than one reply holds
    with contextlib.ExitStack() as files:
        for name in names:
            files.enter_context(open(top / "d" / name, "wb", buffering=0)).write(b"x")
        fd = os.open(top / "d", os.O_RDONLY | os.O_DIRECTORY)
        met = some_names(fd)
        os.rename(top / "d" / names[-1], top / "e/moved")
        os.unlink(top / "d" / names[-2])
        while more := some_names(fd):
            met += more
        os.close(fd)
        assert sorted(met) == [".", ".."] + names[:-2]
        assert os.listdir(top / "e") == ["moved"]


@pytest.mark.parametrize("passthrough", MODES)
@pytest.mark.parametrize("size", [0, 1, 4096, MIB, 9 * MIB + 123])
def test_a_closed_file_is_in_the_origin(bucket, mount, passthrough, size):
    """When close returns, the origin has the bytes, and so have readers of the mount and of S3."""
    body = harness.random_bytes(size, seed=size)
    path = mount(passthrough=passthrough).path / "new"
    path.write_bytes(body)
    assert truth(bucket, "new") == body
    assert path.read_bytes() == body and path.stat().st_size == size
    assert bucket.s3.get_object(Bucket=bucket.name, Key="new")["Body"].read() == body


def test_parts_of_a_large_file_go_side_by_side(bucket, mount, new_shaper):
    """The close of a file of 40 MiB sends its parts to the origin several at a time. (One connection after the other would never have
    two requests there at once; a busy machine may not have them at the first try.)"""
    shaper = new_shaper(before=bucket.origin, first_byte="300ms")
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    body = harness.random_bytes(40 * MIB, seed=3)
    path = mount(name).path / "large"
    for _ in range(5):
        with open(path, "wb", buffering=0) as f:
            f.write(body)
            shaper.reset()
        counted = shaper.stats()
        if counted["max_in_flight"] >= 2:
            break
    assert counted["max_in_flight"] >= 2 and counted["verbs"]["PUT"]["2xx"] >= 3
    assert bucket.truth.get_object(Bucket=name, Key="large")["Body"].read() == body


@pytest.mark.parametrize("passthrough", MODES)
def test_replacing_a_whole_file(bucket, mount, passthrough):
    """Opened with O_TRUNC, longer or shorter than before; the old bytes stay at the origin until close."""
    bucket.truth.put_object(Bucket=bucket.name, Key="f", Body=b"o" * 100_000)
    path = mount(passthrough=passthrough).path / "f"
    assert path.read_bytes() == b"o" * 100_000
    for body in [b"short", harness.random_bytes(3 * MIB, seed=1), b""]:
        before = truth(bucket, "f")
        with open(path, "wb", buffering=0) as f:
            f.write(body)
            assert truth(bucket, "f") == before
        assert truth(bucket, "f") == body
        assert path.read_bytes() == body and path.stat().st_size == len(body)


@pytest.mark.parametrize("passthrough", MODES)
def test_changing_a_part(bucket, mount, passthrough):
    """Opened without O_TRUNC the file begins with what it has; append, overwrite, truncate, holes."""
    body = bytearray(harness.random_bytes(2 * MIB + 50, seed=2))
    bucket.truth.put_object(Bucket=bucket.name, Key="f", Body=bytes(body))
    path = mount(passthrough=passthrough).path / "f"
    with open(path, "r+b") as f:
        f.seek(1000)
        f.write(b"changed")
    body[1000:1007] = b"changed"
    assert truth(bucket, "f") == body
    with open(path, "ab") as f:
        f.write(b"appended")
    body += b"appended"
    assert truth(bucket, "f") == body
    os.truncate(path, 1_500_000)
    del body[1_500_000:]
    assert truth(bucket, "f") == body
    with open(path, "r+b") as f:
        f.truncate(1_600_000)
        f.seek(1_700_000)
        f.write(b"end")
    body += bytes(200_000) + b"end"
    assert truth(bucket, "f") == body
    assert path.read_bytes() == body


def test_opening_for_writing_without_writing_uploads_nothing(bucket, mount):
    """A file opened for update and closed unchanged is not sent again."""
    bucket.truth.put_object(Bucket=bucket.name, Key="f", Body=b"x" * 1000)
    path = mount().path / "f"
    puts = bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="put")
    with open(path, "r+b") as f:
        assert f.read() == b"x" * 1000
    assert bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="put") == puts
    assert truth(bucket, "f") == b"x" * 1000


@pytest.mark.parametrize("passthrough", MODES)
def test_appending_writers(bucket, mount, passthrough):
    """O_APPEND from several descriptors, all at once: every record is there, whole."""
    path = mount(passthrough=passthrough).path / "log"
    path.write_bytes(b"")
    fds = [os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(4)]

    def append(k, fd):
        for i in range(200):
            os.write(fd, b"%d:%03d\n" % (k, i))

    with concurrent.futures.ThreadPoolExecutor(len(fds)) as pool:
        list(pool.map(append, range(len(fds)), fds))
    for fd in fds:
        os.close(fd)
    lines = truth(bucket, "log").splitlines()
    assert sorted(lines) == sorted(b"%d:%03d" % (k, i) for i in range(200) for k in range(4))


@pytest.mark.parametrize("passthrough", MODES)
def test_fsync_publishes(bucket, mount, passthrough):
    """fsync means that the origin has it; more writes and another fsync replace it; unchanged, nothing is sent."""
    path = mount(passthrough=passthrough).path / "f"
    with open(path, "wb", buffering=0) as f:
        for part in (b"one", b"two" * 100_000):
            f.write(part)
            os.fsync(f.fileno())
            assert truth(bucket, "f").endswith(part)
        puts = bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="put")
        os.fsync(f.fileno())
        os.fsync(f.fileno())
        assert bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="put") == puts
    assert truth(bucket, "f") == b"one" + b"two" * 100_000
    assert bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="put") == puts


@pytest.mark.parametrize("passthrough", MODES)
def test_fsync_by_who_only_reads(bucket, mount, passthrough):
    """fsync is about the file, however it was opened: `sync FILE` opens it to be read. Its close publishes nothing."""
    path = mount(passthrough=passthrough).path / "f"
    with open(path, "wb", buffering=0) as f:
        f.write(b"one")
        with open(path, "rb") as reader:
            assert truth(bucket, "f") is None
            os.fsync(reader.fileno())
            assert truth(bucket, "f") == b"one"
            f.write(b" two")
        assert truth(bucket, "f") == b"one"
        subprocess.run(["sync", path], check=True)
        assert truth(bucket, "f") == b"one two"


@pytest.mark.parametrize("passthrough", MODES)
@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_what_o_sync_writes_is_in_the_origin(bucket, mount, passthrough, flag):
    """Each write to a file that was opened so returns when the origin has it, as fsync would."""
    path, body = mount(passthrough=passthrough).path / "f", b""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o644)
    for part in (b"one", b"two" * 100_000, b"three"):
        os.write(fd, part)
        body += part
        assert truth(bucket, "f") == body
    os.close(fd)


@pytest.mark.parametrize("passthrough", MODES)
def test_each_small_change_counts(bucket, mount, passthrough):
    """Changes that follow a publication at once, of the same size, are not missed."""
    path = mount(passthrough=passthrough).path / "f"
    with open(path, "wb", buffering=0) as f:
        for i in range(30):
            os.pwrite(f.fileno(), b"%08d" % i, 0)
            os.fsync(f.fileno())
            assert truth(bucket, "f") == b"%08d" % i


@pytest.mark.parametrize("passthrough", MODES)
def test_what_is_read_ahead_of_a_file_that_is_being_written(bucket, mount, passthrough):
    """On advice, which the kernel passes on also for files that it reads itself. Who opens the file then to read and write, and maps
    it, has what was written after that, and so has the origin what is stored beside it. No failure is told of it. (Seen to fail without the answer for
    passthrough in mount_op_read: the old bytes are read and published.)"""
    where, old, new = mount(passthrough=passthrough), b"a" * 65536, b"b" * 65536
    path = where.path / "f"
    with open(path, "wb", buffering=0) as f:
        f.write(old)
        for _ in range(3):  # nobody waits for what is read ahead
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            time.sleep(0.1)
        f.seek(0)
        f.write(new)
    with open(path, "r+b", buffering=0) as f:
        assert os.pread(f.fileno(), len(new), 0) == new
        with mmap.mmap(f.fileno(), len(new)) as view:
            view[1:2] = b"c"
            view.flush()
    with open(path, "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        assert f.read() == b"bc" + new[2:]
    assert truth(bucket, "f") == b"bc" + new[2:]
    assert "Input/output error" not in where.log()


@pytest.mark.parametrize("passthrough", MODES)
def test_mapped_writes(bucket, mount, passthrough):
    """Stores into a shared mapping are published by msync, by fsync and by the last close, each by itself."""
    path = mount(passthrough=passthrough).path / "f"
    path.write_bytes(bytes(MIB))
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), MIB) as m:
        m[5000:5005] = b"first"
        m.flush()
        assert truth(bucket, "f")[5000:5005] == b"first"
        m[7000:7006] = b"second"
        os.fsync(f.fileno())
        assert truth(bucket, "f")[7000:7006] == b"second"
        m[9000:9005] = b"third"
    harness.wait_until(lambda: truth(bucket, "f")[9000:9005] == b"third", what="published by the last release")


def test_readers_see_what_is_being_written(bucket, mount):
    """Within the mount: size and bytes at once, in a lookup, a listing and for who opens it."""
    path = mount().path
    (path / "d").mkdir()
    with open(path / "d/f", "wb", buffering=0) as f:
        f.write(b"abc")
        assert (path / "d/f").read_bytes() == b"abc"
        f.write(b"def")
        assert os.listdir(path / "d") == ["f"]
        assert os.fstat(f.fileno()).st_size == 6
        with open(path / "d/f", "rb") as reader:
            assert reader.read() == b"abcdef"
            f.write(b"ghi")
            assert reader.read() == b"ghi"
        assert truth(bucket, "d/f") is None
    assert truth(bucket, "d/f") == b"abcdefghi"
    time.sleep(1.1)
    assert (path / "d/f").stat().st_size == 9


def test_parallel_writers_of_many_files(bucket, mount):
    """Files written and read back from eight threads at once."""
    path = mount().path

    def work(k):
        (path / f"d{k}").mkdir()
        for i in range(10):
            body = harness.random_bytes(50_000 + 1000 * i, seed=100 * k + i)
            (path / f"d{k}/f{i}").write_bytes(body)
            if (path / f"d{k}/f{i}").read_bytes() != body or truth(bucket, f"d{k}/f{i}") != body:
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


# ---- names ----


def test_unlink(bucket, mount):
    """Gone here and at the origin; an open reader keeps its bytes, an open writer publishes nothing any more."""
    path = mount().path
    (path / "f").write_bytes(b"data")
    with open(path / "f", "rb") as reader:
        os.unlink(path / "f")
        assert truth(bucket, "f") is None and not (path / "f").exists()
        assert reader.read() == b"data"
    with open(path / "g", "wb", buffering=0) as writer:
        writer.write(b"x")
        os.unlink(path / "g")
        writer.write(b"y")
        os.fsync(writer.fileno())
        assert os.fstat(writer.fileno()).st_nlink == 0
    assert truth(bucket, "g") is None
    with pytest.raises(FileNotFoundError):
        os.unlink(path / "nothing")


def test_directories(bucket, mount):
    """mkdir makes a directory that lasts, rmdir removes only empty ones."""
    path = mount().path
    (path / "d").mkdir()
    (path / "d/e").mkdir()
    with pytest.raises(FileExistsError):
        (path / "d").mkdir()
    (path / "d/e/f").write_bytes(b"1")
    for refused in ("d", "d/e"):
        with pytest.raises(OSError) as caught:
            (path / refused).rmdir()
        assert caught.value.errno == errno.ENOTEMPTY
    (path / "d/e/f").unlink()
    (path / "d/e").rmdir()
    assert os.listdir(path / "d") == []
    (path / "d").rmdir()
    assert os.listdir(path) == []


def test_a_working_directory_that_is_removed(bucket, mount):
    """Whoever is in it finds nothing there and makes nothing there, so that the origin does not get it back, and is told ENOENT, or that
    the directory has no links; it goes on when it leaves."""
    path = mount().path
    (path / "d").mkdir()
    here = os.getcwd()
    os.chdir(path / "d")
    try:
        os.rmdir(path / "d")
        for act in (lambda: os.open("x", os.O_CREAT | os.O_WRONLY), lambda: os.mkdir("x"), os.getcwd, lambda: os.stat("x"),
                    lambda: os.rename(path / "f", "x")):
            (path / "f").write_bytes(b"f")
            with pytest.raises(FileNotFoundError):
                act()
        assert os.listdir() == [] and os.stat(".").st_nlink == 0
    finally:
        os.chdir(here)
    assert os.listdir(path) == ["f"]
    assert [x["Key"] for x in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]] == ["f"]


def test_rename_of_a_file(bucket, mount):
    """To a new name, over another file, and refused where the target must not exist."""
    path = mount().path
    (path / "a").write_bytes(b"A" * 1000)
    os.rename(path / "a", path / "b")
    assert truth(bucket, "a") is None and truth(bucket, "b") == b"A" * 1000
    assert (path / "b").read_bytes() == b"A" * 1000 and not (path / "a").exists()
    (path / "c").write_bytes(b"C")
    os.rename(path / "c", path / "b")
    assert truth(bucket, "b") == b"C" and (path / "b").read_bytes() == b"C"
    (path / "d").write_bytes(b"D")
    moved = subprocess.run(["mv", "-n", str(path / "d"), str(path / "b")], check=False)
    assert moved.returncode in (0, 1) and truth(bucket, "b") == b"C" and truth(bucket, "d") == b"D"
    (path / "sub").mkdir()
    os.rename(path / "d", path / "sub/d")
    assert truth(bucket, "sub/d") == b"D" and os.listdir(path / "sub") == ["d"]


def test_rename_while_open(bucket, mount):
    """A writer that goes on after its file was renamed writes to the new name."""
    path = mount().path
    with open(path / "tmp", "wb", buffering=0) as f:
        f.write(b"one")
        os.rename(path / "tmp", path / "final")
        assert truth(bucket, "final") == b"one" and truth(bucket, "tmp") is None
        f.write(b"two")
        os.fsync(f.fileno())
        assert truth(bucket, "final") == b"onetwo" and truth(bucket, "tmp") is None
        f.write(b"three")
    assert truth(bucket, "final") == b"onetwothree" and truth(bucket, "tmp") is None
    assert (path / "final").read_bytes() == b"onetwothree"


def test_rename_of_a_directory(bucket, mount):
    """Everything below it has the new name at the origin, and nothing the old one; a file that is being written goes along."""
    path = mount().path
    (path / "tmp/sub/empty").mkdir(parents=True)
    bodies = {f"sub/f{i}": harness.random_bytes(1000 * i, seed=i) for i in range(40)}
    for name, body in bodies.items():
        (path / "tmp" / name).write_bytes(body)
    with open(path / "tmp/log", "wb", buffering=0) as f:
        f.write(b"one")
        os.rename(path / "tmp", path / "checkpoint")
        f.write(b"two")
    assert not (path / "tmp").exists() and sorted(os.listdir(path)) == ["checkpoint"]
    assert sorted(os.listdir(path / "checkpoint/sub")) == sorted(["empty"] + [n.split("/")[1] for n in bodies])
    for name, body in bodies.items():
        assert (path / "checkpoint" / name).read_bytes() == body == truth(bucket, "checkpoint/" + name)
    assert truth(bucket, "checkpoint/log") == b"onetwo"
    keys = [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]]
    assert all(key.startswith("checkpoint/") for key in keys)


def test_writing_while_a_directory_is_renamed(bucket, mount, new_shaper):
    """What close acknowledges while the directory above moves at a slow origin has the new name afterwards, whether the file was
    open before or was opened meanwhile."""
    shaper = new_shaper(before=bucket.origin, first_byte="300ms")
    slow = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    path = mount(what=slow).path
    objects = [f"d/f{i:02}" for i in range(40)] + ["d/other"]
    for key in objects:
        bucket.truth.put_object(Bucket=slow, Key=key, Body=b"before")
    assert (path / "d/other").read_bytes() == b"before"

    def has(key):
        return "Contents" in bucket.truth.list_objects_v2(Bucket=slow, Prefix=key)

    directory = os.open(path / "d", os.O_RDONLY | os.O_DIRECTORY)  # by which "other" is found, however late

    def replace():
        with open("other", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as f:
            f.write(b"after")

    with contextlib.ExitStack() as left:
        left.callback(os.close, directory)
        pool = left.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        log = left.enter_context(open(path / "d/log", "wb", buffering=0))
        log.write(b"one")
        renamed = pool.submit(os.rename, path / "d", path / "e")
        harness.wait_until(lambda: has("e/"), what="copies", step=0.01)
        replaced = pool.submit(replace)
        log.write(b"two")
        log.close()
        renamed.result()
        replaced.result()
    assert bucket.truth.get_object(Bucket=slow, Key="e/log")["Body"].read() == b"onetwo"
    assert bucket.truth.get_object(Bucket=slow, Key="e/other")["Body"].read() == b"after"
    assert not has("d/")


def test_rename_of_a_directory_onto_another(bucket, mount):
    """An empty one is replaced, one with files is not; RENAME_NOREPLACE and a directory below itself are refused."""
    path = mount().path
    for name in ("d", "empty", "full"):
        (path / name).mkdir()
    (path / "d/f").write_bytes(b"1")
    (path / "full/g").write_bytes(b"2")
    with pytest.raises(OSError) as caught:
        os.rename(path / "d", path / "full")
    assert caught.value.errno == errno.ENOTEMPTY
    subprocess.run(["mv", "-n", "-T", path / "d", path / "full"], check=False, stderr=subprocess.DEVNULL)
    assert truth(bucket, "d/f") == b"1" and truth(bucket, "full/g") == b"2"
    os.rename(path / "d", path / "empty")
    assert truth(bucket, "empty/f") == b"1" and truth(bucket, "d/f") is None
    assert (path / "empty/f").read_bytes() == b"1" and not (path / "d").exists()


@pytest.mark.parametrize("passthrough", MODES)
def test_rename_of_a_directory_onto_one_with_a_file_that_is_being_written(mount, passthrough):
    """A directory with nothing but a file that the origin does not have yet is not empty."""
    path = mount(passthrough=passthrough).path
    (path / "from").mkdir()
    (path / "from/f").write_bytes(b"1")
    (path / "to").mkdir()
    with open(path / "to/new", "wb", buffering=0) as new:
        new.write(b"2")
        with pytest.raises(OSError) as caught:
            os.rename(path / "from", path / "to")
        assert caught.value.errno == errno.ENOTEMPTY
    assert os.listdir(path / "from") == ["f"] and os.listdir(path / "to") == ["new"]
    os.unlink(path / "to/new")
    os.rename(path / "from", path / "to")
    assert os.listdir(path / "to") == ["f"]


def test_what_was_renamed_is_another_file_than_what_is_made_under_its_old_name(mount):
    """By the numbers that stat tells, at once and later: cp, diff and rm believe them."""
    one = mount(attr_timeout="1h")
    path = one.path

    def tree(name, text):
        (path / name / "sub").mkdir(parents=True)
        (path / name / "sub/f").write_text(text)
        return [os.stat(path / name / below).st_ino for below in ("", "sub", "sub/f")]

    tree("p", "one")
    os.rename(path / "p", path / "q")
    made = tree("p", "two")
    for what in ("here", "taken over"):
        def moved():
            return [os.stat(path / "q" / below).st_ino for below in ("", "sub", "sub/f")]

        harness.wait_until(lambda: not set(made) & set(moved()), what=f"numbers of their own, {what}", step=0.01)
        assert not os.path.samefile(path / "p/sub/f", path / "q/sub/f")
        assert subprocess.run(["diff", "-rq", path / "p", path / "q"], stdout=subprocess.DEVNULL, check=False).returncode == 1
        was = one.serving()
        os.kill(was, signal.SIGKILL)
        harness.wait_until(lambda: one.serving() not in (None, was), what="another process")
    os.rename(path / "p", path / "q/sub/p")
    assert subprocess.run(["find", path / "q"], check=True, stdout=subprocess.PIPE).stdout.count(b"\n") == 6
    shutil.rmtree(path / "q")
    assert os.listdir(path) == []


@pytest.mark.parametrize("passthrough", MODES)
def test_what_was_removed_elsewhere_can_be_made_again_at_once(bucket, mount, passthrough):
    """Although the kernel believes its name still; who only opens it is told that it is gone."""
    path = mount(passthrough=passthrough, attr_timeout="1h", kept_files="0").path
    for name in ("made", "renamed", "read"):
        (path / "new").write_bytes(b"1")
        os.rename(path / "new", path / name)
        time.sleep(0.2)  # the kernel is told to ask for the attributes, and does before it opens the file
        if name != "renamed":
            os.stat(path / name)
        bucket.node.s3().delete_object(Bucket=bucket.name, Key=name)
    for name in ("made", "renamed"):
        (path / name).write_bytes(b"22")
        assert truth(bucket, name) == b"22" and (path / name).read_bytes() == b"22"
    with pytest.raises(FileNotFoundError):
        (path / "read").read_bytes()
    os.close(os.open(path / "read", os.O_WRONLY | os.O_CREAT))
    assert truth(bucket, "read") == b""


def test_a_rename_of_a_directory_that_fails_changes_nothing(bucket, mount):
    """When one of the objects below cannot have its new name, what was copied is taken back."""
    path = mount().path
    deep = "/".join(["p" * 250] * 4)
    bucket.truth.put_object(Bucket=bucket.name, Key=f"d/{deep}/f", Body=b"deep")
    for i in range(20):
        bucket.truth.put_object(Bucket=bucket.name, Key=f"d/f{i}", Body=b"%d" % i)
    with pytest.raises(OSError) as caught:
        os.rename(path / "d", path / ("e" * 100))
    assert caught.value.errno == errno.ENAMETOOLONG
    keys = [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]]
    assert sorted(keys) == sorted([f"d/{deep}/f"] + [f"d/f{i}" for i in range(20)])
    assert (path / "d/f7").read_bytes() == b"7"


def test_a_rename_of_a_directory_whose_originals_cannot_be_removed(bucket, mount, new_shaper):
    """It is an error, the new directory is whole, and so is what could not be removed."""
    shaper = new_shaper(before=bucket.origin)
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    for i in range(5):
        bucket.truth.put_object(Bucket=name, Key=f"d/f{i}", Body=b"%d" % i)
    one = mount(name)
    shaper.fault("status:403", match="DELETE", count=1000)
    with pytest.raises(OSError) as caught:
        os.rename(one.path / "d", one.path / "e")
    assert caught.value.errno == errno.EACCES and "403" in one.log()
    shaper.reset()
    for key in [f"{d}/f{i}" for d in "de" for i in range(5)]:
        assert bucket.truth.get_object(Bucket=name, Key=key)["Body"].read() == key[-1].encode()
    time.sleep(1.1)
    assert sorted(os.listdir(one.path)) == ["d", "e"]
    for i in range(5):
        (one.path / f"d/f{i}").unlink()
    harness.wait_until(lambda: os.listdir(one.path) == ["e"], what="an empty directory is none")
    assert sorted(os.listdir(one.path / "e")) == [f"f{i}" for i in range(5)] and (one.path / "e/f3").read_bytes() == b"3"


def test_rename_of_a_large_directory_is_left_to_the_program(node, mount, tmp_path):
    """Above 10,000 objects it gives EXDEV, on which mv copies, and nothing has changed."""
    (tmp_path / "d").mkdir()
    for i in range(10_001):
        (tmp_path / "d" / str(i)).touch()
    node.cli("bucket", "create", "large-directory", "--origin", f"file://{tmp_path}")
    try:
        path = mount("large-directory").path
        with pytest.raises(OSError) as caught:
            os.rename(path / "d", path / "e")
        assert caught.value.errno == errno.EXDEV
        for i in range(100, 10_001):
            (tmp_path / "d" / str(i)).unlink()
        os.rename(path / "d", path / "e")
        assert [p.name for p in tmp_path.iterdir()] == ["e"] and len(list((tmp_path / "e").iterdir())) == 100
    finally:
        node.cli("bucket", "rm", "large-directory")


def test_what_there_is_not(bucket, mount):
    """Links are refused with EPERM, another owner too; modes and times are accepted and not kept."""
    path = mount().path
    (path / "f").write_bytes(b"1")
    for refused in (lambda: os.symlink("f", path / "s"), lambda: os.link(path / "f", path / "h"),
                    lambda: os.chown(path / "f", 12345, 12345)):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EPERM
    os.utime(path / "f", (1, 1))
    os.chmod(path / "f", 0o600)
    shutil.copy2(path / "f", path / "g")
    assert truth(bucket, "g") == b"1"


def test_locks(bucket, mount):
    """They hold among those who have a file open through one mount. There is as much room as can be said of an object store. (Seen
    to fail when mirror.c answers flock itself, with yes, and with another STATFS_BYTES in lookup.c.)"""
    path = mount().path
    (path / "f").write_bytes(b"x" * 100)
    code = ("import fcntl, sys\nf = open(sys.argv[1], 'r+b')\nfor lock in (lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB),\n"
            "             lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 40), lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 60)):\n"
            "    try:\n        lock()\n        print('got', end=' ')\n    except BlockingIOError:\n        print('refused', end=' ')\n")

    def other_gets():
        return subprocess.run([sys.executable, "-c", code, path / "f"], stdout=subprocess.PIPE, check=True, timeout=200).stdout.split()

    with open(path / "f", "r+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        fcntl.lockf(f, fcntl.LOCK_EX, 10, 45)
        assert other_gets() == [b"refused", b"refused", b"got"]
        fcntl.flock(f, fcntl.LOCK_UN)
        assert other_gets() == [b"got", b"refused", b"got"]
    assert other_gets() == [b"got", b"got", b"got"]
    s = os.statvfs(path)
    assert s.f_blocks * s.f_frsize == s.f_bavail * s.f_frsize == 1 << 50 and s.f_namemax == 255


def test_exclusive_creation(bucket, mount):
    """O_EXCL is refused when the object exists, though the kernel remembers that it did not."""
    path = mount().path
    assert not (path / "f").exists()
    bucket.s3.put_object(Bucket=bucket.name, Key="f", Body=b"1")
    with pytest.raises(FileExistsError):
        os.open(path / "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert truth(bucket, "f") == b"1"


def test_common_tools(bucket, mount, tmp_path):
    """cp, tar, rsync-like copies and dd work as they come."""
    path = mount().path
    source = tmp_path / "source"
    for i in range(5):
        (source / f"d{i}").mkdir(parents=True)
        (source / f"d{i}/f").write_bytes(harness.random_bytes(10_000 * i, seed=i))
    subprocess.run(["cp", "-r", source, path / "copy"], check=True)
    subprocess.run(["tar", "-C", source, "-cf", path / "a.tar", "."], check=True)
    (path / "unpacked").mkdir()
    subprocess.run(["tar", "-C", path / "unpacked", "--no-same-owner", "-xf", path / "a.tar"], check=True)
    for target in ("copy", "unpacked"):
        subprocess.run(["diff", "-r", source, path / target], check=True)
    subprocess.run(["dd", f"if={source}/d4/f", f"of={path}/dd", "bs=1000", "conv=fsync"], check=True,
                   stderr=subprocess.DEVNULL)
    assert truth(bucket, "dd") == (source / "d4/f").read_bytes()
    subprocess.run(["rm", "-r", path / "copy"], check=True)
    assert not (path / "copy").exists()


def test_stores_after_close(bucket, mount):
    """A mapping may outlive the descriptor it was made with: what is stored then is published when it ends, and the
    cache never has other bytes than the origin."""
    path = mount().path / "f"
    path.write_bytes(bytes(MIB))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open(path, os.O_RDWR)
    mapping = libc.mmap(None, MIB, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    os.close(fd)
    time.sleep(0.5)
    ctypes.memmove(mapping + 5000, b"late", 4)
    assert libc.munmap(ctypes.c_void_p(mapping), MIB) == 0
    harness.wait_until(lambda: truth(bucket, "f")[5000:5004] == b"late", what="published")
    assert path.read_bytes() == truth(bucket, "f")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_mapping_beside_a_passthrough_writer(bucket, mount, is_killed):
    """Where the inode is open by passthrough already a mapping is the disk's own, and the mount hears of nothing: what is stored after the
    last close is published all the same, as long as it is mapped, also when the mount's process is killed meanwhile, and never comes
    into the cache alone. Then the file is open no more. (Seen to fail where staging_release, mount/staging.c, ends the staging.)"""
    m = mount()
    path = m.path / "f"
    path.write_bytes(bytes(MIB))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    writer = os.open(path, os.O_WRONLY)
    fd = os.open(path, os.O_RDWR)
    mapping = libc.mmap(None, MIB, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    try:
        os.pwrite(writer, b"written", 0)
        os.close(fd)
        os.close(writer)
        assert truth(bucket, "f")[:7] == b"written"
        for i in range(3):
            late = b"late%d" % i
            ctypes.memmove(mapping + 5000 * i, late, 5)
            harness.wait_until(lambda: truth(bucket, "f")[5000 * i:5000 * i + 5] == late, what="published")
            assert path.read_bytes()[5000 * i:5000 * i + 5] == late
            if is_killed and i == 0:
                pid = m.serving()
                os.kill(pid, signal.SIGKILL)
                harness.wait_until(lambda: m.serving() not in (None, pid), what="another one serves")
        ctypes.memmove(mapping + 70_000, b"last", 4)
    finally:
        assert libc.munmap(ctypes.c_void_p(mapping), MIB) == 0
    harness.wait_until(lambda: truth(bucket, "f")[70_000:70_004] == b"last", what="published")
    harness.wait_until(lambda: '"being_written": false' in bucket.node.cli("explain", "--json", str(path)).stdout, what="it is over")
    assert path.read_bytes() == truth(bucket, "f")


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside O_RDWR", "alone"])
def test_a_mapping_for_reading_beyond_the_last_close(bucket, mount, is_beside):
    """Of a file that was written by passthrough. Where O_RDWR joined, nobody can tell it from one that is stored into: the file is open until
    it has ended, and what is written by the name in this mount is seen in it. Else it keeps the version that was closed. After it, the
    name has what others put there. [Where staging_goes_on_late, mount/staging_late.c, ends the staging, the first keeps its version, too;
    where it goes on though nobody expects a mapping, the second sees what is written, and the file stays open.]"""
    path = mount().path / "f"
    with contextlib.ExitStack() as left:
        fds = [os.open(path, os.O_WRONLY | os.O_CREAT)]
        if is_beside:
            fds.append(os.open(path, os.O_RDWR))
        fds.append(os.open(path, os.O_RDONLY))
        try:
            os.pwrite(fds[0], b"first" * 1000, 0)
            mapping = walked.Mapping(fds[-1], 5000, is_writable=False)
            left.callback(mapping.close)
        finally:
            for fd in fds:
                os.close(fd)
        if not is_beside:
            harness.wait_until(lambda: '"being_written": false' in bucket.node.cli("explain", "--json", str(path)).stdout, what="it is closed")
        with open(path, "r+b") as f:
            f.write(b"other")
        assert truth(bucket, "f") == b"other" + b"first" * 999 == path.read_bytes()
        assert mapping.load(0, 10) == (b"otherfirst" if is_beside else b"firstfirst")
        path.write_bytes(b"whole" * 1000)
        assert truth(bucket, "f") == b"whole" * 1000 == path.read_bytes()
        assert mapping.load(0, 10) == (b"wholewhole" if is_beside else b"firstfirst")
        if is_beside:
            assert '"being_written": true' in bucket.node.cli("explain", "--json", str(path)).stdout
    harness.wait_until(lambda: '"being_written": false' in bucket.node.cli("explain", "--json", str(path)).stdout, what="it is over")
    bucket.s3.put_object(Bucket=bucket.name, Key="f", Body=b"put")
    harness.wait_until(lambda: path.read_bytes() == b"put", what="what was put there")


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_SYNC], ids=["reading", "writing", "O_SYNC"])
def test_a_file_that_is_opened_while_it_is_mapped_beyond_its_last_close(bucket, mount, flags):
    """By passthrough: who opens it then reads what is stored into the mapping, which has what they write, and of what two mappings store into
    one page nothing is lost. (Seen to fail where choose_for_staging_locked, mount/open.c, opens it through the page cache.)"""
    path = mount().path / "f"
    path.write_bytes(bytes(MIB))
    fds = [os.open(path, os.O_WRONLY), os.open(path, os.O_RDWR)]
    with contextlib.ExitStack() as left:
        try:
            mapping = walked.Mapping(fds[1], MIB, is_writable=True)
            left.callback(mapping.close)
            os.pwrite(fds[0], b"written", 0)
        finally:
            for fd in fds:
                os.close(fd)
        fd = os.open(path, flags)
        left.callback(os.close, fd)
        assert os.pread(fd, 7, 0) == b"written"
        for i, stored in enumerate((b"first", b"second", b"third")):
            mapping.store(70 + i, stored)
            assert os.pread(fd, len(stored), 70 + i) == stored
        if flags != os.O_RDONLY:
            os.pwrite(fd, b"by write", 8192)
            assert mapping.load(8192, 8) == b"by write"
            other = walked.Mapping(fd, MIB, is_writable=True)
            left.callback(other.close)
            other.store(200, b"one")
            mapping.store(300, b"another")
            assert mapping.load(200, 3) == b"one" and other.load(300, 7) == b"another"
            other.sync()
            os.fsync(fd)
            assert truth(bucket, "f")[200:203] == b"one"
        assert path.read_bytes()[70:77] == b"fsthird"
    harness.wait_until(lambda: '"being_written": false' in bucket.node.cli("explain", "--json", str(path)).stdout, what="it is over")
    found = truth(bucket, "f")
    assert found[:7] == b"written" and found[70:77] == b"fsthird" and found == path.read_bytes()
    if flags != os.O_RDONLY:
        assert found[200:203] == b"one" and found[300:307] == b"another" and found[8192:8200] == b"by write"


def test_the_last_store_before_a_mapping_ends(bucket, mount, new_shaper):
    """A mapping that outlived its last close ends while what was stored before is on its way to the origin: what was stored meanwhile is
    published all the same. (Seen to fail without the second publish_last in staging_release, mount/staging.c.)"""
    shaper = new_shaper(before=bucket.origin)
    slow = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    path = mount(what=slow).path / "f"
    path.write_bytes(bytes(MIB))
    writer, fd = os.open(path, os.O_WRONLY), os.open(path, os.O_RDWR)
    mapping = walked.Mapping(fd, MIB, is_writable=True)
    os.pwrite(writer, b"written", 0)
    os.close(fd)
    os.close(writer)

    def there():
        return bucket.truth.get_object(Bucket=slow, Key="f")["Body"].read()

    shaper.fault("stall", match=f"PUT /{slow}/f")
    mapping.store(5000, b"first")
    harness.wait_until(lambda: shaper.stats()["faults_injected"], what="on its way")
    mapping.store(9000, b"last")
    mapping.close()
    shaper.release()
    harness.wait_until(lambda: there()[5000:5005] == b"first", what="what was stored before")
    harness.wait_until(lambda: there()[9000:9004] == b"last", what="what was stored meanwhile")
    assert path.read_bytes() == there()


@pytest.mark.parametrize("passthrough", MODES)
@pytest.mark.parametrize("how", ["close", "fsync"])
@pytest.mark.parametrize("size, waits", [(MIB, "PUT"), (20 * MIB, "POST")], ids=["sent", "to be sent"])
def test_a_file_that_is_cut_while_it_is_published(bucket, mount, new_shaper, passthrough, how, size, waits):
    """Of two who write one file anew the second empties it while what the first wrote is on its way to the origin: neither close nor fsync
    of the first fails, whether the origin has its bytes by then or has not been sent them yet, and what the second closed is there in the
    end. [Without was_cut in mount/staging_publish.c what is to be sent gives ENODATA; where send_once in object/writer.c wants all bytes
    once more after they were sent, too, what was sent gives EIO.]"""
    shaper = new_shaper(before=bucket.origin)
    slow = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    path = mount(what=slow, passthrough=passthrough).path / "f"
    first = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(first, b"x" * size)
    shaper.fault("stall", match=f"{waits} /{slow}/f")
    with contextlib.ExitStack() as left:
        if how == "fsync":
            left.callback(os.close, first)
        pool = left.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        try:
            published = pool.submit(os.fsync if how == "fsync" else os.close, first)
            harness.wait_until(lambda: shaper.stats()["faults_injected"], what="on its way")
            opened = pool.submit(os.open, path, os.O_WRONLY | os.O_TRUNC)
            left.callback(lambda: os.close(opened.result(200)))
            harness.wait_until(lambda: path.stat().st_size == 0, what="cut")
        finally:
            shaper.release()
        assert published.result(200) is None
        os.write(opened.result(200), b"second")
    assert bucket.truth.get_object(Bucket=slow, Key="f")["Body"].read() == b"second" == path.read_bytes()


@pytest.mark.parametrize("passthrough", MODES)
def test_a_writer_and_readers_that_open_at_the_same_moment(bucket, mount, passthrough):
    """However the opens meet, what the writer closed is in the origin: it never writes into the file of a reader."""
    path = mount(passthrough=passthrough, kept_files="0").path / "f"
    path.write_bytes(b"0")
    stop = threading.Event()

    def read():
        while not stop.is_set():
            try:
                path.read_bytes()
            except OSError as error:
                assert error.errno == errno.ESTALE

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for i in range(150):
                body = b"%04d" % i * 1000
                try:
                    f = open(path, "wb", buffering=0)
                except OSError as error:  # readers had it open twice in a row
                    assert error.errno == errno.ESTALE
                    continue
                with f:
                    f.write(body)
                assert truth(bucket, "f") == body
        finally:
            stop.set()
        for one in readers:
            one.result()


@pytest.mark.parametrize("passthrough", MODES)
def test_a_file_that_is_written_anew_while_its_old_bytes_are_fetched(bucket, mount, new_shaper, passthrough):
    """An open waits for the bytes of a file that is not here, and before they have come another program writes the file anew and closes it.
    The first has one version, whole; whoever opens the file from then on has what was closed, also while the first has it open, and
    whatever the kernel keeps of it. (n_writings in mount/node.h: the file that the first was given is the one from before.)"""
    shaper = new_shaper(before=bucket.origin)
    slow = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    old, new = b"old" * 10_000, b"newer" * 10_000
    bucket.truth.put_object(Bucket=slow, Key="f", Body=old)
    path = mount(what=slow, passthrough=passthrough, attr_timeout="10m").path / "f"
    assert path.stat().st_size == len(old)  # nobody asks for the name again before the open
    shaper.fault("stall", match=f"GET /{slow}/f")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            opened = pool.submit(os.open, path, os.O_RDONLY)
            harness.wait_until(lambda: shaper.stats()["faults_injected"], what="on its way")
            path.write_bytes(new)
            harness.wait_until(lambda: '"being_written": false' in bucket.node.cli("explain", "--json", str(path)).stdout, what="it is closed")
        finally:
            shaper.release()
        fd = opened.result(200)
    try:
        assert path.read_bytes() == new
        assert os.pread(fd, len(new), 0) in (old, new)
        assert path.read_bytes() == new
    finally:
        os.close(fd)
    assert path.read_bytes() == new and path.stat().st_size == len(new)


def test_a_rename_loses_nothing_that_is_written_meanwhile(bucket, new_shaper, mount):
    """An object that somebody writes anew while a rename of its old version is under way is not removed with that: its
    bytes are there afterwards, under one name or the other."""
    shaper = new_shaper(before=bucket.origin, first_byte="700ms")
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    truth = bucket.origin.s3()
    truth.put_object(Bucket=name, Key="from", Body=b"old")
    top = mount(name).path
    renaming = threading.Thread(target=lambda: os.rename(top / "from", top / "to"))
    renaming.start()
    harness.wait_until(lambda: "Contents" in truth.list_objects_v2(Bucket=name, Prefix="to"), 60, "the copy is made", step=0.01)
    truth.put_object(Bucket=name, Key="from", Body=b"new")
    renaming.join(200)
    left = {x["Key"]: truth.get_object(Bucket=name, Key=x["Key"])["Body"].read() for x in truth.list_objects_v2(Bucket=name)["Contents"]}
    assert b"new" in left.values(), left
    assert (top / "to").read_bytes() in (b"old", b"new")
