"""The read-only profile of a mount: the kernel opens files by itself and reads them through its page cache."""

import errno
import mmap
import os
import subprocess

import pytest

import harness

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def mount(bucket, new_mount):
    """mount(kept_files="2", ...) mounts the test's bucket with this profile."""
    return lambda node=None, name=None, **options: new_mount(node or bucket.node, name or bucket.name, profile="read-only",
                                                             **options)


def test_bytes(bucket, mount):
    """Files of all sizes read right, cold and warm, whole and by pieces, through read, pread and mmap, more than are kept open."""
    bodies = {f"d/f{i}": harness.random_bytes(size, seed=i)
              for i, size in enumerate((0, 1, 4095, 4096, 110_000, MIB, 3 * MIB + 17, 40 * MIB + 5))}
    for key, body in bodies.items():
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=body)
    path = mount(kept_files="3").path
    for _ in range(2):
        for key, body in bodies.items():
            assert (path / key).read_bytes() == body
    with open(path / "d/f7", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        body = bodies["d/f7"]
        assert os.pread(f.fileno(), 100_000, 30 * MIB + 3) == body[30 * MIB + 3:30 * MIB + 3 + 100_000]
        assert m[20 * MIB:20 * MIB + 50] == body[20 * MIB:20 * MIB + 50] and m[-5:] == body[-5:]


def test_nothing_is_asked_once_it_was_read(bucket, mount):
    """Opening and reading again costs no request to the node."""
    bucket.node.cli("bucket", "set", bucket.name, "validate=never")
    for i in range(10):
        bucket.truth.put_object(Bucket=bucket.name, Key=f"f{i}", Body=b"%d" % i * 1000)
    path = mount(attr_timeout="50ms").path
    for _ in range(3):
        for i in range(10):
            assert (path / f"f{i}").read_bytes() == b"%d" % i * 1000
    before = bucket.node.metric("forebay_requests_total", via="mount")
    for i in range(10):
        assert (path / f"f{i}").read_bytes() == b"%d" % i * 1000
    assert bucket.node.metric("forebay_requests_total", via="mount") == before > 0


def read_unless_stale(path):
    """What a file holds; None when it was replaced between the open and the read of a page."""
    try:
        return path.read_bytes()
    except OSError as e:
        assert e.errno == errno.ESTALE
        return None


def test_what_others_write_is_seen(bucket, mount):
    """A file that is written or removed through S3 of the node shows its new state within a second, though pages and names
    of the old one are believed for ever."""
    bucket.node.cli("bucket", "set", bucket.name, "validate=never")
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"o" * 200_000)
    path = mount().path / "k"
    for _ in range(3):
        assert path.read_bytes() == b"o" * 200_000
    with open(path, "rb") as f:
        assert f.read(10) == b"o" * 10
        bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"n" * 100_000)
        harness.wait_until(lambda: read_unless_stale(path) == b"n" * 100_000, what="the new bytes")
        f.seek(150_000)
        assert f.read(10) == b"o" * 10  # what was open keeps its version
    bucket.s3.delete_object(Bucket=bucket.name, Key="k")
    harness.wait_until(lambda: not path.exists(), what="gone")


def test_nothing_can_be_changed(bucket, mount):
    """Every change is refused with EROFS."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"1")
    path = mount(o="rw").path
    for change in (lambda: (path / "k").write_bytes(b"2"), lambda: (path / "new").touch(), lambda: os.unlink(path / "k"),
                   lambda: os.mkdir(path / "d"), lambda: os.rename(path / "k", path / "l"), lambda: os.truncate(path / "k", 0)):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS


def test_a_restart_of_the_node(origin, new_node, mount):
    """Reading goes on after the node was killed and started again, and sees what the new one wrote."""
    node = new_node()
    bucket = node.new_bucket(origin, validate="never")
    for i in range(5):
        origin.s3().put_object(Bucket=bucket, Key=f"f{i}", Body=b"old" * 100_000)
    path = mount(node, bucket).path
    for i in range(5):
        assert (path / f"f{i}").read_bytes() == b"old" * 100_000
    node.kill()
    node.start()
    for i in range(4):
        node.s3().put_object(Bucket=bucket, Key=f"f{i}", Body=b"newer" * 100_000)

    def is_new(i):
        try:
            return (path / f"f{i}").read_bytes() == b"newer" * 100_000
        except OSError as e:  # opened by the name that the kernel still believed, of a version that is gone
            assert e.errno == errno.ESTALE
            return False

    for i in range(4):
        harness.wait_until(lambda: is_new(i), what="the new bytes")
    assert (path / "f4").read_bytes() == b"old" * 100_000


def test_wrong_uses(node, bucket, tmp_path):
    """It is told what does not go with it."""
    (tmp_path / "m").mkdir()
    node.cli("bucket", "create", "openless-scratch")
    try:
        for arguments, text in ((("--passthrough", "on", bucket.name), "passthrough"), (("openless-scratch",), "with an origin")):
            done = node.cli("mount", "--profile", "read-only", *arguments, tmp_path / "m", check=False)
            assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1
    finally:
        node.cli("bucket", "rm", "openless-scratch")
        subprocess.run(["umount", "-l", tmp_path / "m"], stderr=subprocess.DEVNULL, check=False)
