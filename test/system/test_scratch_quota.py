"""The quota of a scratch bucket: what its files have on disk never passes it, whoever writes, and each writer is told.

Seen to fail: without tree_room_begin in tree_op_write (mount/tree_io.c) everything that writes through a mount; without
ledger_end in stree_free and sroom_end in stree_linger (object/scratch_open.c) test_what_is_reserved_ends_with_the_mount.
"""

import contextlib
import errno
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess

import botocore.exceptions
import pytest

import harness
from test_scratch_mount import KEEP_SIZE, MODES, PUNCH_HOLE, fallocate, refused
from test_mount_takeover import in_background, killed_at_its_answer
from test_scratch_s3 import code_of

MIB = 1 << 20
QUOTA = 32 * MIB
SMALL = 64 * 1024  # of the disk's own blocks about where a file lies, and of what was rounded

pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def node(new_node):
    return new_node()


@pytest.fixture
def bucket(node):
    name = harness.random_name("quota")
    with node.wire() as connection:
        connection.bucket_create(name, {"quota": str(QUOTA)})
    return name


@pytest.fixture
def mount(node, bucket, new_mount):
    """mount(passthrough="off", ...): ended while the node runs."""
    return lambda **options: new_mount(node, bucket, **{"timeout": "180s", **options})


def free(path):
    found = os.statvfs(path)
    return found.f_bfree * found.f_frsize


def fill(path, most=2 * QUOTA, piece=MIB):
    """Writes until the quota says no; gives how many bytes were taken."""
    with open(path, "wb", buffering=0) as f, refused(errno.EDQUOT):
        for _ in range(most // piece):
            f.write(bytes(piece))
    return os.path.getsize(path)


def counted(node, bucket):
    return node.metric("forebay_scratch_bytes", bucket=bucket)


@pytest.mark.parametrize("mode", MODES)
def test_writing_ends_at_the_quota(node, bucket, mount, mode):
    """dd into a mount gets EDQUOT where the quota ends and not before, with passthrough too; what was written stays whole,
    rewriting it needs no room, rm gives room at once."""
    top = mount(passthrough=mode).path
    done = subprocess.run(["dd", "if=/dev/zero", f"of={top}/big", "bs=1M", "count=64"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and os.strerror(errno.EDQUOT) in done.stderr, done.stderr
    assert QUOTA - SMALL <= os.path.getsize(top / "big") <= QUOTA
    assert QUOTA - SMALL <= counted(node, bucket) <= QUOTA + SMALL
    with open(top / "big", "r+b", buffering=0) as f:
        assert f.write(b"x" * MIB) == MIB
        os.fsync(f.fileno())
    assert (top / "big").read_bytes()[:MIB] == b"x" * MIB
    assert json.loads(node.cli("explain", "--json", f"{bucket}/big").stdout)["passthrough"] is False
    with open(top / "big", "ab", buffering=0) as f, refused(errno.EDQUOT):
        for _ in range(2):  # of the first one what there is room for, if there is some
            f.write(bytes(MIB))
    with open(top / "other", "wb", buffering=0) as f, refused(errno.EDQUOT):
        f.write(bytes(SMALL))
    (top / "big").unlink()
    (top / "other").write_bytes(bytes(20 * MIB))


def test_many_small_files_fill_it(node, bucket, mount):
    """Files of a block each, one after the other: none is refused while there is room, one is when there is none."""
    node.cli("bucket", "set", bucket, "quota=1MiB")
    top = mount().path
    made = 0
    with refused(errno.EDQUOT):
        for i in range(300):
            (top / f"f{i}").write_bytes(bytes(4096))
            made += 1
    assert 250 <= made <= 256
    for i in range(100):
        (top / f"f{i}").unlink()
    for i in range(100):
        (top / f"g{i}").write_bytes(bytes(4096))


def test_statfs_tells_of_the_quota(node, bucket, mount):
    """df shows the quota, and what of it is free; the disk's own when the quota goes."""
    top = mount().path
    total = os.statvfs(top).f_blocks * os.statvfs(top).f_frsize
    assert total == QUOTA and free(top) == QUOTA
    (top / "f").write_bytes(bytes(10 * MIB))
    harness.wait_until(lambda: QUOTA - 10 * MIB - SMALL <= free(top) <= QUOTA - 10 * MIB, what="what the file has is missing")
    shown = subprocess.run(["df", "--output=size", "-B1", top], stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    assert int(shown) == QUOTA
    node.cli("bucket", "set", bucket, "quota=")
    assert os.statvfs(top).f_blocks * os.statvfs(top).f_frsize == shutil.disk_usage(node.dir).total or free(top) > QUOTA


def test_idle_files_hold_nothing_back(mount):
    """Ninety files that are open for writing and not written any more take what they have on disk, and no more. (Without
    tree_room_giver_start in mount/tree.c they have the whole quota.)"""
    top = mount().path
    with contextlib.ExitStack() as stack:
        for i in range(90):
            stack.enter_context(open(top / f"idle{i}", "wb", buffering=0)).write(b"x")
        harness.wait_until(lambda: free(top) >= QUOTA - 90 * 4096 - SMALL, 60, "what idle files do not need is free")
        assert fill(top / "big") >= QUOTA - 90 * 4096 - 2 * SMALL


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_an_append_that_comes_again_needs_no_room(mount):
    """What was appended when the mount's process was killed before its answer is told as appended by the next one, also where the
    quota has no room for it a second time. (Without appended_before in mount/tree_io.c the write comes back short, or fails.)"""
    one = mount(passthrough="off")
    n = 900_000
    with open(one.path / "f", "ab", buffering=0) as f:
        for _ in range(36):
            assert f.write(b"a" * n) == n
        with killed_at_its_answer(one):
            assert in_background(lambda: f.write(b"b" * n))() == n
    assert (one.path / "f").read_bytes() == b"a" * 36 * n + b"b" * n


def test_two_mounts_share_it(node, bucket, mount):
    """What one mount writes is missing to the other, also while files are open."""
    one, two = mount().path, mount(passthrough="off").path
    with open(one / "first", "wb", buffering=0) as f:
        f.write(bytes(20 * MIB))
        written = fill(two / "second")
        assert QUOTA - 22 * MIB <= written <= QUOTA - 20 * MIB
        with refused(errno.EDQUOT):
            for _ in range(4):
                f.write(bytes(MIB))
    assert counted(node, bucket) <= QUOTA + SMALL
    (two / "second").unlink()
    assert fill(one / "third") >= QUOTA - 22 * MIB


@pytest.mark.parametrize("has", ["bytes", "room"])
def test_a_write_takes_what_is_there_already(mount, has):
    """One that begins in blocks that the file has, written or got by fallocate, and ends where there are none: the first part
    is taken."""
    top = mount().path
    with open(top / "f", "w+b", buffering=0) as f:
        if has == "bytes":
            f.write(bytes(MIB))
        else:
            fallocate(f.fileno(), 0, 0, MIB)
        fill(top / "rest")
        assert os.pwrite(f.fileno(), b"x" * 8192, MIB - 4096) == 4096
        with refused(errno.EDQUOT):
            os.pwrite(f.fileno(), b"x" * 8192, MIB)
        assert os.pread(f.fileno(), 8192, MIB - 4096) == b"x" * 4096


def test_truncation_and_punching_give_room_back(mount):
    """ftruncate, opening with O_TRUNC, and a hole."""
    top = mount().path
    fill(top / "f")
    os.truncate(top / "f", 8 * MIB)
    assert fill(top / "g") >= QUOTA - 8 * MIB - SMALL
    with open(top / "g", "wb"):
        pass
    with open(top / "f", "r+b") as f:
        fallocate(f.fileno(), PUNCH_HOLE | KEEP_SIZE, 0, 8 * MIB)
        assert fill(top / "h") >= QUOTA - SMALL


def test_fallocate_takes_room(mount):
    """EDQUOT when there is less; what it got may be written when nothing else is left."""
    top = mount().path
    with open(top / "f", "wb", buffering=0) as f:
        fallocate(f.fileno(), 0, 0, 20 * MIB)
        assert os.fstat(f.fileno()).st_blocks * 512 >= 20 * MIB
        fill(top / "rest")
        with refused(errno.EDQUOT):
            fallocate(f.fileno(), 0, 20 * MIB, 4 * MIB)
        fallocate(f.fileno(), 0, 0, 20 * MIB)
        with refused(errno.EDQUOT):
            os.pwrite(f.fileno(), bytes(MIB), 20 * MIB)
        for i in range(20):
            assert os.pwrite(f.fileno(), b"a" * MIB, i * MIB) == MIB
    assert (top / "f").read_bytes() == b"a" * 20 * MIB


def test_copy_file_range_takes_room(mount):
    """It copies as much as there is room for, and then says why no more."""
    top = mount().path
    (top / "f").write_bytes(os.urandom(20 * MIB))
    with open(top / "f", "rb") as source, open(top / "g", "wb") as target, refused(errno.EDQUOT):
        for _ in range(100):
            assert os.copy_file_range(source.fileno(), target.fileno(), 4 * MIB) > 0
    copied = (top / "g").read_bytes()
    assert 8 * MIB <= len(copied) <= QUOTA - 20 * MIB and (top / "f").read_bytes().startswith(copied)


def test_stores_into_a_mapping_are_told_by_msync(mount):
    """What found no room is told by msync, and by fsync to who has the file open besides, once."""
    top = mount().path
    fill(top / "rest")
    os.truncate(top / "rest", QUOTA - 2 * MIB)
    with open(top / "f", "w+b") as f, open(top / "f", "r+b") as other:
        os.truncate(top / "f", 8 * MIB)
        with mmap.mmap(f.fileno(), 8 * MIB) as m:
            for at in range(0, 8 * MIB, 4096):
                m[at] = 1
            with refused(errno.EDQUOT):
                m.flush()
            with refused(errno.EDQUOT):
                os.fsync(other.fileno())
            os.fsync(other.fileno())


def test_s3_put_is_refused(node, bucket, mount):
    """403 QuotaExceeded before the body, of known size or not; nothing is left of it, and the bucket is told of by name."""
    s3 = node.s3()
    s3.put_object(Bucket=bucket, Key="a", Body=bytes(20 * MIB))
    with pytest.raises(botocore.exceptions.ClientError) as error:
        s3.put_object(Bucket=bucket, Key="b", Body=bytes(16 * MIB))
    assert code_of(error) == "QuotaExceeded"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    message = error.value.response["Error"]["Message"]
    assert bucket in message and "32MiB" in message.replace(" ", "") and "quota=" in message
    s3.put_object(Bucket=bucket, Key="c", Body=bytes(10 * MIB))
    assert [x["Key"] for x in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a", "c"]
    with pytest.raises(botocore.exceptions.ClientError) as error:
        s3.copy_object(Bucket=bucket, Key="d", CopySource={"Bucket": bucket, "Key": "c"})
    assert code_of(error) == "QuotaExceeded"
    s3.delete_object(Bucket=bucket, Key="a")
    s3.copy_object(Bucket=bucket, Key="d", CopySource={"Bucket": bucket, "Key": "c"})
    harness.wait_until(lambda: 20 * MIB <= counted(node, bucket) <= 20 * MIB + SMALL, what="what went is free")
    assert free(mount().path) >= QUOTA - 20 * MIB - SMALL


def test_s3_parts_are_refused(node, bucket, mount):
    """A part that does not fit gives QuotaExceeded; what is there can be completed, and aborting gives all of it back."""
    s3, top = node.s3(), mount().path
    parts = []
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    with pytest.raises(botocore.exceptions.ClientError) as error:
        for i in range(1, 10):
            etag = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=i, Body=bytes(6 * MIB))["ETag"]
            parts.append({"PartNumber": i, "ETag": etag})
    assert code_of(error) == "QuotaExceeded" and len(parts) == 5
    assert fill(top / "f") <= 2 * MIB
    (top / "f").unlink()
    s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == 30 * MIB
    s3.delete_object(Bucket=bucket, Key="k")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=bytes(30 * MIB))
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    assert fill(top / "g") >= QUOTA - SMALL


def test_the_command_line_says_why(node, bucket, work):
    """forebay put and cp, from a file and from a pipe: one line, and nothing is left."""
    big = work / "big"
    big.write_bytes(bytes(40 * MIB))
    done = node.cli("put", big, f"{bucket}/k", check=False)
    assert done.returncode != 0 and len(done.stderr.strip().splitlines()) == 1
    assert bucket in done.stderr and "quota=SIZE" in done.stderr
    done = node.cli("put", "-", f"{bucket}/k", check=False, stdin=bytes(40 * MIB))
    assert done.returncode != 0 and b"quota=SIZE" in done.stderr
    assert "Contents" not in node.s3().list_objects_v2(Bucket=bucket)
    node.cli("bucket", "set", bucket, "quota=64MiB")
    node.cli("put", big, f"{bucket}/k")


def test_what_is_reserved_ends_with_the_mount(node, bucket, mount):
    """An open file holds room back; kill -9 of the mount gives it back."""
    one, two = mount(), mount().path
    f = open(one.path / "f", "wb", buffering=0)

    def is_held():  # who has not written for a second gives its room back
        f.write(bytes(4096))
        return QUOTA - free(two) > 3 * SMALL

    harness.wait_until(is_held, what="room is reserved ahead")
    one.kill()
    harness.wait_until(lambda: free(two) >= QUOTA - SMALL, what="its room is free")
    with contextlib.suppress(OSError):
        f.close()
    one.clean_up()
    assert fill(two / "g") >= QUOTA - 2 * SMALL


def test_an_upload_that_breaks_off_gives_back(node, bucket, mount):
    """What a PUT had announced and not sent."""
    top = mount().path
    url = node.s3().generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "k"})
    host, port = node.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as s:
        path = url.removeprefix(node.endpoint)
        s.sendall(f"PUT {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {20 * MIB}\r\n\r\n".encode() + bytes(MIB))
        harness.wait_until(lambda: free(top) <= QUOTA - 20 * MIB, what="its room is taken")
    harness.wait_until(lambda: free(top) >= QUOTA - SMALL, what="its room is free")


def test_another_process_takes_the_mount_over(node, bucket, mount):
    """kill -9 of the process that serves: who writes goes on, and finds the quota where it was."""
    one = mount()
    with open(one.path / "f", "wb", buffering=0) as f:
        f.write(bytes(10 * MIB))
        os.kill(one.serving(), signal.SIGKILL)
        with refused(errno.EDQUOT):
            for _ in range(40):
                f.write(bytes(MIB))
    assert QUOTA - SMALL <= os.path.getsize(one.path / "f") <= QUOTA
    assert counted(node, bucket) <= QUOTA + SMALL


def test_what_was_granted_before_a_restart_is_not_used(node, bucket, mount):
    """A mount that holds room back when the node is killed asks again: others may have it by now. (Without room_epoch and
    rooms_lost in look_for_loss of mount/tree_room.c the first pieces go in, unless the file has been idle meanwhile.)"""
    one, two = mount().path, mount().path
    with open(one / "f", "wb", buffering=0) as f, open(two / "g", "wb", buffering=0) as g:
        f.write(bytes(4096))
        node.kill()
        node.start()
        taken = 0
        for piece in (16 * MIB, MIB, 4096):
            with refused(errno.EDQUOT):
                while True:
                    fallocate(g.fileno(), 0, taken, piece)
                    taken += piece
        assert taken >= QUOTA - SMALL
        assert free(one) <= SMALL
        with refused(errno.EDQUOT):
            for _ in range(4):
                f.write(bytes(MIB // 8))
    assert counted(node, bucket) <= QUOTA + SMALL


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_restart_of_the_node_keeps_count(node, bucket, mount, end):
    """What was written before, and by files that stayed open, counts afterwards; what was only reserved does not."""
    one = mount()
    node.s3().put_object(Bucket=bucket, Key="a", Body=bytes(10 * MIB))
    with open(one.path / "f", "wb", buffering=0) as f:
        f.write(bytes(10 * MIB))
        getattr(node, end)()
        node.start()
        assert fill(one.path / "g") <= QUOTA - 20 * MIB + SMALL
        with refused(errno.EDQUOT):
            for _ in range(4):
                f.write(bytes(MIB))
    assert QUOTA - 2 * MIB <= counted(node, bucket) <= QUOTA + SMALL
    (one.path / "g").unlink()
    assert fill(one.path / "h") >= QUOTA - 22 * MIB


def test_the_quota_can_be_changed(node, bucket, mount):
    """Lowered below what is there it takes nothing away, and writing fails until there is room; buckets without files have
    none; both meanings are in the help."""
    top = mount().path
    (top / "f").write_bytes(bytes(20 * MIB))
    node.cli("bucket", "set", bucket, "quota=8MiB")
    assert "8MiB" in node.cli("bucket", "show", bucket).stdout.replace(" ", "")
    with open(top / "g", "wb", buffering=0) as f, refused(errno.EDQUOT):
        f.write(bytes(SMALL))
    assert (top / "f").read_bytes() == bytes(20 * MIB) and free(top) == 0
    (top / "f").unlink()
    assert fill(top / "g") >= 8 * MIB - SMALL
    node.cli("bucket", "set", bucket, "quota=0")
    (top / "g").write_bytes(bytes(40 * MIB))
    memory = harness.random_name("memory")
    with node.wire() as connection:
        connection.bucket_create(memory, {"values": "memory"})
    assert node.cli("bucket", "set", memory, "quota=1MiB", check=False).returncode != 0


def test_files_open_by_passthrough_follow_at_their_next_open(node, bucket, mount):
    """A quota that is set while a file is written does not stop that file; every later open knows it."""
    node.cli("bucket", "set", bucket, "quota=0")
    top = mount().path
    with open(top / "f", "wb", buffering=0) as f:
        f.write(bytes(4 * MIB))
        node.cli("bucket", "set", bucket, f"quota={QUOTA}")
        assert f.write(bytes(MIB)) == MIB
        assert fill(top / "g") >= QUOTA - 8 * MIB
    with open(top / "f", "ab", buffering=0) as f, refused(errno.EDQUOT):
        for _ in range(8):
            f.write(bytes(MIB))
