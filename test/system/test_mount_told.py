"""Names of a mirror bucket that the kernel believes for long, and which somebody else changes: the node tells, and the next question
finds what there is. Every mount here has an attribute timeout of ten minutes, which no test can wait for. (Seen to fail where
watch_changed does nothing, but for what a job copies, of which the mirror's own news tell, and for scratch buckets.)"""

import contextlib
import os
import select
import signal
import struct
import subprocess

import pytest

import harness
import wire

pytestmark = pytest.mark.usefixtures("need_fuse")
TIMEOUT = "10m"


@pytest.fixture
def mount(bucket, new_mount):
    """mount(...) mounts the test's bucket, with an attribute timeout that is not over before the test is."""
    return lambda name=None, **options: new_mount(bucket.node, name or bucket.name, **{"attr_timeout": TIMEOUT, **options})


def put(bucket, key, body):
    bucket.s3.put_object(Bucket=bucket.name, Key=key, Body=body)


def asked(node):
    return sum(node.metric("forebay_requests_total", via="mount", op=op) or 0 for op in ("stat", "open"))


def wait_for_belief(bucket, path):
    """Until looking at the name asks the node nothing: a record that was on its way is over then."""
    def is_believed():
        path.exists()
        before = asked(bucket.node)
        path.exists()
        return asked(bucket.node) == before

    harness.wait_until(is_believed, what="belief")


@pytest.mark.parametrize("below", ["", "dir/", "new/dir/"])
def test_a_name_that_was_absent_and_is_put_is_there(bucket, mount, below):
    """After a lookup that found nothing, of the name itself or of a directory that the new object brings into being. (Mutations:
    notifier_expire_name for names of which there is a node only; pass_on that does not ask again for the first name that is absent.)"""
    put(bucket, "dir/other", b"x")
    top = mount().path
    first = top / (below + "k").split("/")[0]
    assert not (top / below / "k").exists()
    wait_for_belief(bucket, top / below / "k")
    assert first.exists() == (below == "dir/")
    put(bucket, below + "k", b"body")
    harness.wait_until(lambda: (top / below / "k").exists(), what="the name")
    assert (top / below / "k").read_bytes() == b"body"
    assert "k" in os.listdir(top / below)


@pytest.mark.parametrize("profile", ["posix", "read-only"])
def test_an_object_that_is_replaced_has_its_new_size(bucket, mount, profile):
    """Also without opening it."""
    put(bucket, "dir/k", b"first")
    path = mount(**({"profile": "read-only"} if profile == "read-only" else {})).path / "dir/k"
    assert path.stat().st_size == 5
    for size in (7, 3, 11):
        wait_for_belief(bucket, path)
        put(bucket, "dir/k", bytes(size))
        harness.wait_until(lambda size=size: path.stat().st_size == size, what="the new size")
        assert path.read_bytes() == bytes(size)


def truth(bucket, key):
    return bucket.truth.get_object(Bucket=bucket.name, Key=key)["Body"].read()


@contextlib.contextmanager
def left_reader(path, body):
    """A file that this mount has written, and in which only a reader is left who opened it meanwhile."""
    with open(path, "wb", buffering=0) as writer:
        writer.write(body[:-1])
        reader = open(path, "rb", buffering=0)
    with reader:
        with open(path, "ab") as again:  # of the file that the reader has
            again.write(body[-1:])
        assert reader.read() == body == path.read_bytes()
        yield reader
        assert os.pread(reader.fileno(), 1000, 0) == body


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_what_replaces_a_file_that_is_still_read_where_it_was_written(bucket, mount, passthrough):
    """Who opens, appends to, cuts or renames it by its name has what others have put there; the reader goes on with its bytes. Also where
    the kernel has not been told yet. (Without staging_check_left, mount/staging.c, they have the old bytes as long as
    the reader is there, and what is appended brings those back to the origin.)"""
    top = mount(passthrough=passthrough).path
    with left_reader(top / "read", b"old"):
        put(bucket, "read", b"new bytes")
        assert (top / "read").read_bytes() == b"new bytes"
        assert (top / "read").stat().st_size == 9
    with left_reader(top / "grown", b"old"):
        put(bucket, "grown", b"new bytes")
        with open(top / "grown", "ab") as f:
            f.write(b"+")
        assert truth(bucket, "grown") == b"new bytes+" == (top / "grown").read_bytes()
    with left_reader(top / "cut", b"old"):
        put(bucket, "cut", b"new bytes")
        os.truncate(top / "cut", 5)
        assert truth(bucket, "cut") == b"new b" == (top / "cut").read_bytes()
    with left_reader(top / "renamed", b"old"):
        put(bucket, "renamed", b"new")
        os.rename(top / "renamed", top / "name")
        assert truth(bucket, "name") == b"new" == (top / "name").read_bytes()
    with left_reader(top / "seen", b"old"):
        put(bucket, "seen", b"new bytes")
        harness.wait_until(lambda: (top / "seen").stat().st_size == 9, what="the new size")
        with os.scandir(top) as listed:
            assert {x.name: x.stat().st_size for x in listed} == {"read": 9, "grown": 10, "cut": 5, "name": 3, "seen": 9}
    assert (top / "grown").read_bytes() == b"new bytes+"


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_what_is_removed_while_it_is_still_read_where_it_was_written(bucket, mount, passthrough):
    """Its name goes, and can be made anew; the reader goes on."""
    path = mount(passthrough=passthrough).path / "f"
    with left_reader(path, b"old") as reader:
        bucket.s3.delete_object(Bucket=bucket.name, Key="f")
        with pytest.raises(FileNotFoundError):
            path.read_bytes()
        with open(path, "xb") as f:
            f.write(b"new")
        assert truth(bucket, "f") == b"new" == path.read_bytes()
        assert os.fstat(reader.fileno()).st_size == 3
    assert path.read_bytes() == b"new"


def test_what_is_deleted_is_gone_and_its_directories_too(bucket, mount):
    """An object that was the last in two directories: those are no longer there. (Mutation: watch_gone does nothing.)"""
    put(bucket, "a/b/k", b"x")
    put(bucket, "stays/k", b"x")
    top = mount().path
    for name in ("a/b/k", "a/b", "a", "stays/k", "stays"):
        assert (top / name).exists()
        wait_for_belief(bucket, top / name)
    bucket.s3.delete_object(Bucket=bucket.name, Key="a/b/k")
    harness.wait_until(lambda: not (top / "a/b/k").exists(), what="that it is gone")
    harness.wait_until(lambda: not (top / "a/b").exists() and not (top / "a").exists(), what="that the directories are gone")
    assert os.listdir(top) == ["stays"]
    with pytest.raises(FileNotFoundError):
        open(top / "a/b/k", "rb")


def test_a_directory_that_somebody_is_in_comes_back(bucket, mount):
    """It was gone, and a program that has it open, or as its working directory, keeps the mount from forgetting it: what is made in it
    again brings the name back. (Seen to fail where the mount took a directory that it has an inode of for one that is there.)"""
    put(bucket, "d/k", b"x")
    top = mount().path
    held = os.open(top / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        bucket.s3.delete_object(Bucket=bucket.name, Key="d/k")
        harness.wait_until(lambda: not (top / "d").exists(), what="that it is gone")
        wait_for_belief(bucket, top / "d")
        put(bucket, "d/new", b"22")
        harness.wait_until(lambda: (top / "d/new").exists(), what="the directory")
        assert os.listdir(top / "d") == ["new"]
    finally:
        os.close(held)


def test_what_another_mount_makes_renames_and_removes(bucket, mount):
    """Files and directories, each seen by a mount that knew the name as absent, or as there."""
    one, two = mount().path, mount().path
    (two / "d").mkdir()
    harness.wait_until(lambda: (one / "d").is_dir(), what="the directory")
    for name in ("f", "d/g", "d2"):
        assert not (one / name).exists()
        wait_for_belief(bucket, one / name)
    (two / "f").write_bytes(b"from two")
    harness.wait_until(lambda: (one / "f").exists(), what="the file")
    assert (one / "f").read_bytes() == b"from two"
    (two / "f").rename(two / "d/g")
    harness.wait_until(lambda: not (one / "f").exists() and (one / "d/g").exists(), what="the new name")
    wait_for_belief(bucket, one / "d/g")
    (two / "d").rename(two / "d2")
    harness.wait_until(lambda: not (one / "d").exists() and (one / "d2/g").exists(), what="the directory's new name")
    assert (one / "d2/g").read_bytes() == b"from two"
    wait_for_belief(bucket, one / "d2/g")
    (two / "d2/g").unlink()
    (two / "d2").rmdir()
    harness.wait_until(lambda: not (one / "d2").exists() and os.listdir(one) == [], what="that all is gone")


def test_modes_that_another_mount_gives(bucket, mount):
    """Of a file and of a directory, whose attributes are asked for without a name, too. (Mutation: tell that drops no attributes.)"""
    bucket.node.cli("bucket", "set", bucket.name, "posix=on")
    one, two = mount().path, mount().path
    (two / "d").mkdir(mode=0o755)
    (two / "d/f").write_bytes(b"x")
    harness.wait_until(lambda: (one / "d/f").exists(), what="the file")
    held = os.open(one / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for path in (one / "d", one / "d/f"):
            wait_for_belief(bucket, path)
        assert os.fstat(held).st_mode & 0o777 == 0o755
        os.chmod(two / "d", 0o711)  # by its name nobody asks the first mount for it meanwhile
        harness.wait_until(lambda: os.fstat(held).st_mode & 0o777 == 0o711, what="the directory's mode")
        assert (one / "d").stat().st_mode & 0o777 == 0o711
        os.chmod(two / "d/f", 0o600)
        harness.wait_until(lambda: (one / "d/f").stat().st_mode & 0o777 == 0o600, what="the file's mode")
    finally:
        os.close(held)


def test_what_a_job_copies_is_there(bucket, mount, origin):
    """Objects that a job of the node writes into the bucket."""
    source = bucket.node.new_bucket(origin)
    names = [f"k{i}" for i in range(5)]
    for name in names:
        bucket.s3.put_object(Bucket=source, Key=name, Body=name.encode())
    top = mount().path
    for name in names:
        assert not (top / "to" / name).exists()
        wait_for_belief(bucket, top / "to" / name)
    bucket.node.cli("copy", f"{source}/", f"{bucket.name}/to/")
    harness.wait_until(lambda: all((top / "to" / name).exists() for name in names), what="the copies")
    assert sorted(os.listdir(top / "to")) == names


def test_a_mount_of_a_prefix_is_told_of_what_lies_there(bucket, mount):
    """And its names are those behind the prefix. (Mutation: path = key in on_name.)"""
    put(bucket, "p/q/there", b"1")
    top = mount(f"{bucket.name}/p/q").path
    assert not (top / "k").exists()
    wait_for_belief(bucket, top / "k")
    put(bucket, "p/q/k", b"22")
    harness.wait_until(lambda: (top / "k").exists(), what="the name")


def test_what_the_node_hears_of_the_origin_is_passed_on(bucket, mount):
    """An object that was replaced behind the node's back, which it finds when it asks the origin for somebody else."""
    put(bucket, "k", b"first")
    path = mount().path / "k"
    assert path.stat().st_size == 5
    wait_for_belief(bucket, path)
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"the second")
    bucket.node.cli("bucket", "set", bucket.name, "validate=always")
    assert bucket.s3.head_object(Bucket=bucket.name, Key="k")["ContentLength"] == 10
    harness.wait_until(lambda: path.stat().st_size == 10, what="the new size")


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, who may mount")
@pytest.mark.parametrize("what", ["names", "everything"])
def test_what_is_mounted_below_stays_there(bucket, mount, what):
    """Neither what is told of a directory and of names in it, nor that anything may have changed, takes away what is in use there.
    (Mutations: names are dropped instead of expired; expire_all by the kernel's epoch alone.)"""
    put(bucket, "d/e/k", b"x")
    top = mount().path
    assert (top / "d/e/k").exists()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(top / "d/e")], check=True)
    try:
        (top / "d/e/mine").write_bytes(b"x")
        for name in ("last", "other"):
            assert not (top / "d" / name).exists()
            wait_for_belief(bucket, top / "d" / name)
        if what == "everything":
            bucket.node.cli("bucket", "set", bucket.name, "validate=ttl:2h")  # ends the pipe
            wait_for_belief(bucket, top / "d/last")
        put(bucket, "d/other", b"x")
        bucket.s3.delete_object(Bucket=bucket.name, Key="d/other")
        put(bucket, "d/last", b"x")
        harness.wait_until(lambda: (top / "d/last").exists(), what="the name")
        assert os.listdir(top / "d/e") == ["mine"]
    finally:
        subprocess.run(["umount", "-l", str(top / "d/e")], check=False)


def has_ended(pipe):
    """Whether the node has closed its end, though what it wrote is still there."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def test_more_than_a_pipe_takes_is_everything(bucket, mount):
    """While the mount's process does not run more is changed than its pipe takes; afterwards it has the names of then, though
    nobody told of each. (Mutation: on_begun that forgets nothing.)"""
    one = mount()
    put(bucket, "there", b"x")
    harness.wait_until(lambda: (one.path / "there").exists(), what="the name")
    assert not (one.path / "k").exists()
    for name in ("there", "k"):
        wait_for_belief(bucket, one.path / name)
    long = "/".join(letter * 200 for letter in "abcde")

    def fill():
        for _ in range(20):
            bucket.s3.delete_object(Bucket=bucket.name, Key=long)
        return has_ended(pipe)

    with one.stopped(), bucket.node.wire() as w:
        pipe = w.watch_names(bucket.name, "")  # which ends when the mount's does
        try:
            harness.wait_until(fill, 120, "the end of the pipe", step=0)
            put(bucket, "k", b"body")
            bucket.s3.delete_object(Bucket=bucket.name, Key="there")
        finally:
            os.close(pipe)
    harness.wait_until(lambda: (one.path / "k").exists() and not (one.path / "there").exists(), what="what there is")
    assert (one.path / "k").read_bytes() == b"body"


def test_a_restarted_node_is_asked_again(bucket, mount):
    """What was believed of a node that ended is not believed of its successor."""
    node = bucket.node
    top = mount().path
    assert not (top / "k").exists()
    wait_for_belief(bucket, top / "k")
    node.restart()
    node.s3().put_object(Bucket=bucket.name, Key="k", Body=b"body")
    harness.wait_until(lambda: (top / "k").exists(), 60, "the name")


def test_a_process_that_takes_over_is_told(bucket, mount):
    """What the process before it was told of, and what is changed after it was killed."""
    one = mount()
    top = one.path
    for name in ("k", "l"):
        assert not (top / name).exists()
        wait_for_belief(bucket, top / name)
    pid = one.serving()
    os.kill(pid, signal.SIGKILL)
    put(bucket, "k", b"1")
    harness.wait_until(lambda: one.serving() not in (pid, None), what="another process")
    harness.wait_until(lambda: (top / "k").exists(), what="the name of meanwhile")
    assert not (top / "l").exists()
    wait_for_belief(bucket, top / "l")
    put(bucket, "l", b"22")
    harness.wait_until(lambda: (top / "l").exists(), what="the next name")


def test_a_name_that_changes_while_it_is_asked_for(bucket, mount):
    """Lookups of a name that S3 replaces again and again meanwhile: after each answer of S3 the size becomes the last one."""
    put(bucket, "k", b"")
    path = mount().path / "k"
    for size in range(1, 60):
        path.stat()
        put(bucket, "k", bytes(size))
        path.stat()
        harness.wait_until(lambda size=size: path.stat().st_size == size, what="the size")


KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))


@pytest.mark.skipif(KERNEL < (6, 16), reason="the kernel knows no epochs of names before Linux 6.16")
def test_mounts_of_a_scratch_bucket_are_told(node, scratch, new_mount):
    """What one mount makes, renames, changes and removes is seen by another one whose kernel believes for ten minutes. (Mutation:
    watch_tree_changed does nothing.)"""
    one, two = (new_mount(node, scratch, attr_timeout=TIMEOUT).path for _ in range(2))
    (one / "d").mkdir()
    harness.wait_until(lambda: (two / "d").is_dir(), what="the directory")
    assert not (two / "d/f").exists() and not (two / "g").exists()
    (one / "d/f").write_bytes(b"body")
    harness.wait_until(lambda: (two / "d/f").exists(), what="the file")
    assert (two / "d/f").read_bytes() == b"body"
    os.chmod(one / "d/f", 0o600)
    harness.wait_until(lambda: (two / "d/f").stat().st_mode & 0o777 == 0o600, what="the mode")
    (one / "d/f").rename(one / "g")
    harness.wait_until(lambda: (two / "g").exists() and not (two / "d/f").exists(), what="the new name")
    (one / "g").unlink()
    (one / "d").rmdir()
    harness.wait_until(lambda: os.listdir(two) == [] and not (two / "g").exists() and not (two / "d").exists(), what="that all is gone")


# ---- the pipe ----


def records(pipe):
    """[(key, whether it is gone)] that the pipe has now."""
    found, data = [], b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(pipe, 65536):
            data += piece
    while data:
        n, flags = struct.unpack_from("<II", data)
        found.append((data[8:8 + n].decode(), flags))
        data = data[8 + -(-n // 8) * 8:]
    return found


def test_records_of_names(bucket):
    """Each change below the prefix is in the pipe when it is acknowledged, whether anything of it is cached or not; removals are
    marked. (Mutation: watch_changed before forget_entry cannot be seen here; without it nothing is.)"""
    with bucket.node.wire() as w:
        pipe = w.watch_names(bucket.name, "in/")
        os.set_blocking(pipe, False)
        try:
            for key in ("in/a", "in/some/longer key", "out/a", "inside"):
                put(bucket, key, b"1")
            assert {key for key, _ in records(pipe)} == {"in/a", "in/some/longer key"}
            bucket.s3.delete_object(Bucket=bucket.name, Key="in/a")
            assert ("in/a", 1) in records(pipe)
            bucket.s3.copy_object(Bucket=bucket.name, Key="in/b", CopySource={"Bucket": bucket.name, "Key": "out/a"})
            assert {key for key, _ in records(pipe)} == {"in/b"}
            w.bucket_set(bucket.name, {"validate": "always"})
            assert os.read(pipe, 4096) == b""
        finally:
            os.close(pipe)


def test_names_of_a_scratch_bucket_are_not_told(node, scratch):
    """Its mounts are told by WATCH."""
    with node.wire() as w, pytest.raises(wire.WireError, match="has no origin"):
        w.watch_names(scratch, "")
