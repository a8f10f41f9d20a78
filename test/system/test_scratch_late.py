"""Files of a scratch bucket that are made where files stay empty: they have no data on the disk until they are written (mount/tree_habit.h), and
nobody shall see a difference.
"""

import mmap
import os
import signal

import pytest

import harness
from test_mount_inside import stats
from test_scratch_crash import check_store, kill_and_start
from test_scratch_mount import MODES

KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))
MIB = 1 << 20
EMPTY = 16  # TREE_HABIT_FIRST
pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def node(new_node):
    return new_node()


@pytest.fixture(params=MODES)
def mount(request, node, new_mount):
    """A mount of a bucket of its own."""
    return new_mount(node, harness.scratch_bucket(node), passthrough=request.param, timeout="180s")


def all_are_closed(m, but=0):
    """The kernel does not wait for our end of a close."""
    done = {name: one["count"] for name, one in stats(m.node, m.path)["operations"].items()}
    return done.get("release", 0) + but == done.get("create", 0) + done.get("open", 0)


def late(m, directory, open_files=0):
    """A new file, open for writing, in a new directory where files stay empty, beside so many that are open."""
    (m.path / directory).mkdir()
    for i in range(EMPTY):
        (m.path / directory / f"empty{i}").touch()
    harness.wait_until(lambda: all_are_closed(m, open_files), what="the files are closed")
    return os.open(m.path / directory / "late", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def test_what_is_written_late_is_there(node, mount):
    """Written, synced, closed and read again, here and through S3. Its bytes go through the mount's process; those of the next file of that
    directory do not, where the kernel takes them."""
    body = harness.random_bytes(3 * MIB + 5, seed=1)
    before = stats(node, mount.path)["written_bytes"]
    fd = late(mount, "d")
    assert os.fstat(fd).st_size == 0 and os.fstat(fd).st_blocks == 0
    os.fsync(fd)
    os.write(fd, body)
    assert os.fstat(fd).st_size == len(body)
    os.fsync(fd)
    assert (mount.path / "d" / "late").read_bytes() == body
    os.close(fd)
    assert stats(node, mount.path)["written_bytes"] == before + len(body)
    assert (mount.path / "d" / "late").read_bytes() == body
    harness.wait_until(lambda: all_are_closed(mount), what="the file is closed")
    (mount.path / "d" / "next").write_bytes(body)
    through = 1 if mount.uses_passthrough() else 2
    assert stats(node, mount.path)["written_bytes"] == before + through * len(body)
    s3 = node.s3()
    for key in ("d/late", "d/next"):
        assert s3.get_object(Bucket=mount.bucket, Key=key)["Body"].read() == body
    assert s3.get_object(Bucket=mount.bucket, Key="d/empty0")["Body"].read() == b""


def test_everything_works_on_a_late_file(mount):
    """Sizes, holes, room, copies, times, other descriptors, mappings and removal."""
    source = mount.path / "source"
    source.write_bytes(b"s" * 100_000)

    fd = late(mount, "holes")
    os.ftruncate(fd, 10 * 4096)
    os.pwrite(fd, b"x", 5 * 4096)
    assert os.fstat(fd).st_size == 10 * 4096
    assert os.lseek(fd, 0, os.SEEK_DATA) == 5 * 4096 and os.lseek(fd, 5 * 4096, os.SEEK_HOLE) == 6 * 4096
    os.close(fd)
    assert (mount.path / "holes" / "late").read_bytes() == bytes(5 * 4096) + b"x" + bytes(5 * 4096 - 1)

    fd = late(mount, "room")
    os.posix_fallocate(fd, 0, MIB)
    assert os.fstat(fd).st_size == MIB and os.fstat(fd).st_blocks >= MIB // 512
    os.close(fd)

    fd = late(mount, "copy")
    with open(source, "rb") as f:
        assert os.copy_file_range(f.fileno(), fd, 100_000) == 100_000
    os.close(fd)
    assert (mount.path / "copy" / "late").read_bytes() == b"s" * 100_000

    fd = late(mount, "times")
    os.utime(fd, ns=(5, 7_000_000_001))
    os.fchmod(fd, 0o600)
    assert os.fstat(fd).st_mtime_ns == 7_000_000_001 and os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)
    assert os.stat(mount.path / "times" / "late").st_mtime_ns == 7_000_000_001

    fd = late(mount, "mapped")
    with open(mount.path / "mapped" / "late", "r+b", buffering=0) as other:
        os.write(fd, b"one by write ")
        other.seek(0, os.SEEK_END)
        other.write(b"two by another")
        with mmap.mmap(other.fileno(), 0) as shared:
            shared[0:3] = b"ONE"
    os.close(fd)
    assert (mount.path / "mapped" / "late").read_bytes() == b"ONE by write two by another"

    fd = late(mount, "removed")
    os.remove(mount.path / "removed" / "late")
    os.write(fd, b"bytes")
    assert os.fstat(fd).st_size == 5 and os.fstat(fd).st_nlink == 0
    os.close(fd)

    fd = late(mount, "renamed")
    os.rename(mount.path / "renamed" / "late", mount.path / "renamed" / "empty0")
    os.write(fd, b"bytes")
    os.close(fd)
    assert (mount.path / "renamed" / "empty0").read_bytes() == b"bytes"


@pytest.mark.parametrize("what", ["node", "mount"])
def test_late_files_outlive_kills(node, mount, what):
    """What was open and had no data when the node, or the process that serves the mount, was killed is written after that, also without a name."""
    if what == "mount" and KERNEL < (6, 9):
        pytest.skip("the kernel cannot send requests again before Linux 6.9")
    named = late(mount, "named")
    nameless = late(mount, "nameless", open_files=1)
    os.remove(mount.path / "nameless" / "late")
    if what == "node":
        kill_and_start(node)
    else:
        pid = mount.serving()
        os.kill(pid, signal.SIGKILL)
        harness.wait_until(lambda: mount.serving() not in (pid, None), what="another process")
    assert os.fstat(named).st_size == 0 and os.fstat(nameless).st_nlink == 0
    for fd in (named, nameless):
        assert os.write(fd, b"after") == 5
        os.fsync(fd)
        assert os.fstat(fd).st_size == 5
        os.close(fd)
    assert (mount.path / "named" / "late").read_bytes() == b"after"
    mount.stop()
    node.stop()
    check_store(node)
