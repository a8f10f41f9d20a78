"""Files that a mount keeps open after their last close: opening them again asks nobody, and what they had is never served
once the key has something else."""

import concurrent.futures
import errno
import fcntl
import json
import os
import pathlib
import tempfile
import time

import pytest

import harness
import wire

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture(params=["auto", "off"])
def mount(request, bucket, new_mount):
    """mount(kept_files="2", ...) mounts the test's bucket, by passthrough and without."""
    def make(node=None, name=None, **options):
        one = new_mount(node or bucket.node, name or bucket.name, **{"passthrough": request.param} | options)
        if "auto" in (request.param, options.get("passthrough")) and options.get("profile") != "read-only" and not one.uses_passthrough():
            pytest.skip("passthrough is not to be had here")
        return one

    return make


def opens(node, bucket):
    return node.metric("forebay_opens_total", bucket=bucket, via="mount")


def costs_nothing(node, bucket, path):
    """Whether reading a file once more asks the node nothing."""
    before = opens(node, bucket)
    path.read_bytes()
    return opens(node, bucket) == before


def read(path):
    return path.read_bytes()


def handles(node):
    return node.metric("forebay_handles", kind="read")


@pytest.mark.parametrize("listed", [False, True], ids=["by-name", "listed"])
def test_a_second_open_asks_nobody(bucket, mount, listed):
    """After the first round, rounds of opening and reading every file cost the node no request at all."""
    bodies = {f"f{i}": harness.random_bytes(1000 * (i + 1), seed=i) for i in range(20)}
    bucket.node.cli("bucket", "set", bucket.name, "validate=ttl:1h")
    for key, body in bodies.items():
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=body)
    one = mount(attr_timeout="10ms")
    path = one.path
    if listed:
        assert sorted(os.listdir(path)) == sorted(bodies)
    for key, body in bodies.items():
        assert read(path / key) == body
    harness.wait_until(lambda: one.open_files() == 0, what="all are closed")
    before = bucket.node.metric("forebay_requests_total", via="mount")
    for _ in range(3):
        for key, body in bodies.items():
            assert read(path / key) == body
            assert (path / key).stat().st_size == len(body)
    assert bucket.node.metric("forebay_requests_total", via="mount") == before > 0


@pytest.mark.parametrize("how", ["put", "remove", "multipart"])
def test_what_others_write_is_seen_at_the_next_open(bucket, mount, how):
    """A file that is kept and written, removed or completed through S3 of the node shows the new state within a second, though the
    bucket never asks the origin again."""
    node, name = bucket.node, bucket.name
    node.cli("bucket", "set", name, "validate=never")
    old, new = harness.random_bytes(200_000, seed=1), harness.random_bytes(200_001, seed=2)
    bucket.truth.put_object(Bucket=name, Key="k", Body=old)
    path = mount().path / "k"
    for _ in range(3):
        assert read(path) == old
    if how == "put":
        bucket.s3.put_object(Bucket=name, Key="k", Body=new)
    elif how == "remove":
        bucket.s3.delete_object(Bucket=name, Key="k")
    else:
        upload = bucket.s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        etag = bucket.s3.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=new)["ETag"]
        bucket.s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload,
                                            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    if how == "remove":
        harness.wait_until(lambda: not path.exists(), what="gone")
    else:
        harness.wait_until(lambda: read(path) == new, what="new bytes")
        for _ in range(3):
            assert read(path) == new


def test_the_kernel_itself_believes_what_is_kept(bucket, mount):
    """Long after --attr-timeout the name and mode of a kept file are known without the mount's process, which may even be stopped;
    those of a file that was only listed are asked for. (Times are not: the kernel forgets them at each read.)"""
    bucket.node.cli("bucket", "set", bucket.name, "validate=never")
    for key in ("kept", "listed"):
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"x" * 1000)
    one = mount(attr_timeout="50ms")
    assert sorted(os.listdir(one.path)) == ["kept", "listed"]

    def is_believed():
        """Once it was looked up as one that is kept, which a slow machine may bring later."""
        for _ in range(3):
            time.sleep(0.1)
            assert read(one.path / "kept") == b"x" * 1000
        time.sleep(0.2)
        with one.stopped():
            known, asked = (pool.submit(os.access, one.path / name, os.R_OK) for name in ("kept", "listed"))
            done, _ = concurrent.futures.wait([known], 10)
            with pytest.raises(concurrent.futures.TimeoutError):
                asked.result(timeout=0.5)
        assert known.result(timeout=200) and asked.result(timeout=200)
        return bool(done)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        harness.wait_until(is_believed, what="the kernel believes it")


def test_what_is_let_go_for_others_is_believed_no_longer(bucket, mount):
    """A name that the kernel was told to believe is asked for again once the file is not watched any more."""
    bucket.node.cli("bucket", "set", bucket.name, "validate=never")
    for key in ("a", "b", "c"):
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"old")
    path = mount(kept_files="2", attr_timeout="50ms").path
    for key in ("a", "a", "b", "c"):
        time.sleep(0.1)
        assert read(path / key) == b"old"
    bucket.s3.put_object(Bucket=bucket.name, Key="a", Body=b"newer")
    harness.wait_until(lambda: (path / "a").stat().st_size == 5, what="the new size")
    assert read(path / "a") == b"newer"


def test_what_the_origin_changes_is_seen_when_the_bucket_says_so(bucket, mount):
    """A kept file is not believed for longer than `validate` allows."""
    bucket.node.cli("bucket", "set", bucket.name, "validate=ttl:1s")
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"old")
    path = mount(attr_timeout="100ms").path / "k"
    for _ in range(3):
        assert read(path) == b"old"
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"newer")
    harness.wait_until(lambda: read(path) == b"newer", what="new bytes")


def test_writing_a_kept_file(bucket, mount):
    """Opened for writing it is what was there; the next reader gets what was written, and both mounts do."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"x" * 100_000)
    one, other = mount().path / "k", mount().path / "k"
    for _ in range(2):
        assert read(one) == read(other) == b"x" * 100_000
    with open(one, "r+b") as f:
        f.seek(50_000)
        f.write(b"y")
    changed = b"x" * 50_000 + b"y" + b"x" * 49_999
    assert read(one) == changed
    harness.wait_until(lambda: read(other) == changed, what="seen by the other mount")
    os.unlink(one)
    assert not one.exists()
    harness.wait_until(lambda: not other.exists(), what="gone at the other mount")


def test_no_more_than_allowed_are_kept(bucket, mount):
    """With --kept-files 3 the node has at most three files open once all are closed; with 0 none."""
    for i in range(12):
        bucket.truth.put_object(Bucket=bucket.name, Key=f"f{i}", Body=b"%d" % i)
    harness.wait_until(lambda: handles(bucket.node) == 0, what="what mounts before had is closed")
    for kept in (3, 0):
        one = mount(kept_files=str(kept))
        for _ in range(2):
            for i in range(12):
                assert read(one.path / f"f{i}") == b"%d" % i
        harness.wait_until(lambda: handles(bucket.node) == kept, what=f"{kept} are kept")
        one.stop()
        harness.wait_until(lambda: handles(bucket.node) == 0, what="none is kept")


def test_kept_files_hold_no_space(origin, new_node, mount, tmp_path):
    """Files that are evicted are let go: what they occupied is free for others, and they are fetched again when asked for."""
    node = new_node(disk=f"{tmp_path}/disk:64MiB")
    bucket = node.new_bucket(origin)
    bodies = {f"f{i}": harness.random_bytes(8 * MIB, seed=i) for i in range(12)}
    for key, body in bodies.items():
        origin.s3().put_object(Bucket=bucket, Key=key, Body=body)
    path = mount(node, bucket).path
    for _ in range(2):
        for key, body in bodies.items():
            assert read(path / key) == body
    for key in bodies:  # what is written is admitted, and others are evicted for it
        node.s3().put_object(Bucket=bucket, Key="new-" + key, Body=bodies[key])
    for key, body in bodies.items():
        assert read(path / ("new-" + key)) == body
        assert read(path / key) == body

    def disk():
        [found] = json.loads(node.cli("status", "--json").stdout)["disks"]
        return found

    harness.wait_until(lambda: disk()["leased_bytes"] == 0, what="what was read last is closed")
    assert disk()["used_bytes"] <= 64 * MIB


def test_a_restart_of_the_node_lets_everything_go(origin, new_node, mount):
    """What was kept when the node was killed is asked for again: changes made by way of the new one are seen."""
    node = new_node()
    bucket = node.new_bucket(origin, validate="never")
    for i in range(5):
        origin.s3().put_object(Bucket=bucket, Key=f"f{i}", Body=b"old")
    path = mount(node, bucket).path
    for _ in range(2):
        for i in range(5):
            assert read(path / f"f{i}") == b"old"
    node.kill()
    node.start()
    for i in range(5):
        node.s3().put_object(Bucket=bucket, Key=f"f{i}", Body=b"newer")
    for i in range(5):
        harness.wait_until(lambda: read(path / f"f{i}") == b"newer", what="new bytes")
    harness.wait_until(lambda: costs_nothing(node, bucket, path / "f0"), what="kept again")


def test_removing_the_bucket_lets_everything_go(origin, new_node, mount):
    """Nothing of a bucket that is gone is served from what was kept."""
    node = new_node()
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=b"bytes")
    path = mount(node, bucket).path / "k"
    for _ in range(2):
        assert read(path) == b"bytes"
    node.cli("bucket", "rm", bucket)

    def is_refused():
        try:
            read(path)
        except OSError:
            return True
        return False

    harness.wait_until(is_refused, what="refused")


def test_readers_at_the_same_time_share_one_file(bucket, new_mount):
    """Without passthrough a file that is whole here is open once at the node, however many have it open, and each reads its own
    version to the end, also when the first of them closes before the others and another version comes."""
    node, name = bucket.node, bucket.name
    old, new = harness.random_bytes(300_000, seed=1), harness.random_bytes(300_001, seed=2)
    bucket.truth.put_object(Bucket=name, Key="k", Body=old)
    harness.wait_until(lambda: handles(node) == 0, what="what mounts before had is closed")
    path = new_mount(node, name, passthrough="off").path / "k"
    for _ in range(2):  # whole at the second open
        assert read(path) == old
    harness.wait_until(lambda: handles(node) == 1, what="the first open closed")  # the kernel tells later than close returns
    base, asked = handles(node), opens(node, name)
    readers = [open(path, "rb", buffering=0) for _ in range(5)]
    try:
        assert (handles(node), opens(node, name)) == (base, asked)
        readers[0].close()
        bucket.s3.put_object(Bucket=name, Key="k", Body=new)
        harness.wait_until(lambda: read(path) == new, what="new bytes")
        for reader in readers[1:]:
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert reader.read(len(old) + 1) == old
        with open(path, "r+b") as f:
            f.write(b"written")
        assert read(path) == b"written" + new[7:]
    finally:
        for reader in readers:
            reader.close()
    assert read(path) == b"written" + new[7:]


# ---- the pipe ----


def test_records_are_eight_bytes_of_the_keys_hash(bucket):
    """Each change of a cached object gives one record before it is acknowledged, the same for the same key."""
    with bucket.node.wire() as w:
        pipe = w.watch(bucket.name)
        os.set_blocking(pipe, False)
        seen = []
        for key in ["a", "b/c", "a"]:
            bucket.s3.put_object(Bucket=bucket.name, Key=key, Body=b"1")
            bucket.s3.delete_object(Bucket=bucket.name, Key=key)
            seen.append(os.read(pipe, 4096))
        assert [len(r) % 8 for r in seen] == [0, 0, 0] and all(seen)
        assert set(seen[0]) == set(seen[2]) and seen[0][:8] != seen[1][:8]
        with pytest.raises(BlockingIOError):
            os.read(pipe, 4096)
        os.close(pipe)


def test_a_watcher_that_does_not_keep_up_loses_its_pipe(bucket):
    """Nobody waits for it: when the pipe is full it ends, and the changes go on."""
    with bucket.node.wire() as w:
        pipe = w.watch(bucket.name)
        room = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096) // 8
        for i in range(room + 10):
            bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"%d" % i)
        read_bytes = b"".join(iter(lambda: os.read(pipe, 65536), b""))
        assert 0 < len(read_bytes) <= room * 8
        os.close(pipe)
        bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"on")
        assert bucket.s3.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"on"


def test_other_settings_end_what_was_believed(bucket):
    """With `validate` set otherwise nobody goes on believing for as long as it allowed before."""
    with bucket.node.wire() as w:
        pipe = w.watch(bucket.name)
        os.set_blocking(pipe, False)
        w.bucket_set(bucket.name, {"validate": "always"})
        assert os.read(pipe, 4096) == b""
        os.close(pipe)


def test_a_watch_of_nothing(bucket):
    """A bucket that is not there is named."""
    with bucket.node.wire() as w, pytest.raises(wire.WireError, match="no-such-bucket"):
        w.watch("no-such-bucket")


def with_few_files(path, n):
    """A program that is forebay with n descriptors at most, which it cannot raise."""
    lowered = "setpriv --bounding-set -sys_resource" if os.getuid() == 0 else ""
    path.write_text(f'#!/bin/sh\nexec prlimit --nofile={n}:{n} {lowered} {harness.forebay_bin()} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("profile", ["default", "read-only"])
def test_more_files_are_kept_than_there_are_descriptors(new_node, work, mount, profile):
    """A file that is kept open needs no descriptor, neither of its mount's process nor of the node's. (Without passthrough it does, to
    be opened again; those that were read last have one.)"""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="few-", dir=work))
    few = with_few_files(directory / "forebay", 1000)
    node = new_node(binary=few)
    node.create_bucket("few", f"file://{directory}", validate="ttl:1h")
    names = [f"f{i}" for i in range(2600)]
    for name in names:
        (directory / name).write_text(name)
    mounts = [mount(node, "few", profile=profile, binary=few) for _ in range(2)]
    for m in mounts:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda name: (m.path / name).read_text(), names)) == names
    assert len(os.listdir(f"/proc/{node.pid}/fd")) < 600
    for m in mounts:
        assert len(os.listdir(f"/proc/{m.serving()}/fd")) < 600
        kept = sum(costs_nothing(node, "few", m.path / name) for name in names[::100])
        assert kept > (20 if m.uses_passthrough() or profile == "read-only" else 2)
        assert all((m.path / name).read_text() == name for name in names[::7])


@pytest.mark.parametrize("passthrough", ["auto", "off"])
@pytest.mark.parametrize("kind", ["scratch", "mirror"])
def test_more_files_are_open_than_there_are_descriptors(new_node, new_mount, work, kind, passthrough):
    """Who opens more files for writing than the mount's process may have descriptors is told so, and nothing is made for it; what is
    open goes on, and once it is closed others can be opened and nothing was lost. (Without has_descriptor in mount/tree_file.c
    a file that is refused has been made.)"""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="few-", dir=work))
    node, n = new_node(), 600
    (directory / "origin").mkdir()
    node.create_bucket("few", f"file://{directory}/origin") if kind == "mirror" else node.cli("bucket", "create", "few")
    top = new_mount(node, "few", binary=with_few_files(directory / "forebay", 300), passthrough=passthrough).path
    fds = []
    try:
        for i in range(n):
            try:
                fds.append(os.open(top / f"f{i}", os.O_CREAT | os.O_WRONLY))
            except OSError as error:
                assert error.errno in (errno.EMFILE, errno.ENFILE), error
                break
        assert 100 < len(fds) < n
        for _ in range(3):
            with pytest.raises(OSError):
                os.open(top / "refused", os.O_CREAT | os.O_WRONLY)
        for i, fd in enumerate(fds):
            assert os.write(fd, b"%d" % i) == len(str(i))
    finally:
        for fd in fds:
            os.close(fd)

    def can_be_made():
        try:
            (top / "refused").write_bytes(b"made")
            return True
        except OSError as error:
            assert error.errno in (errno.EMFILE, errno.ENFILE), error
            return False

    assert not (top / "refused").exists()
    harness.wait_until(can_be_made, 60, "room for one")
    assert sorted(os.listdir(top)) == sorted(["refused"] + [f"f{i}" for i in range(len(fds))])
    for i in range(len(fds)):
        assert (top / f"f{i}").read_bytes() == b"%d" % i
    assert (top / "refused").read_bytes() == b"made"


def test_a_kept_file_that_is_cut_by_its_name(mount):
    """truncate(2) of a file that is kept open: whoever opens it next gets what is left."""
    path = mount().path / "f"
    for _ in range(50):
        path.write_bytes(b"0123456789")
        assert path.read_bytes() == b"0123456789"
        os.truncate(path, 5)
        assert path.read_bytes() == b"01234"
