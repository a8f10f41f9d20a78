"""Looking inside: forebay explain, forebay mount --stats."""

import concurrent.futures
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import threading
import time

import pytest

import harness

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def mount(node, new_mount):
    """mount("bucket", passthrough="off", ...)"""
    return lambda what, node=node, **options: new_mount(node, what, **options)


def run(node, *argv, status=0, env=None):
    done = subprocess.run([str(node.binary), *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **node.env, **(env or {})}, timeout=200)
    assert done.returncode == status, (argv, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def explain(node, what):
    """By a path the mount's own node is asked; by BUCKET/KEY it must be named."""
    where = [] if str(what).startswith("/") else ["--socket", node.socket_path]
    answer, text, after = None, None, json.loads(run(node, "explain", "--json", *where, what))
    while answer is None or any(answer.get(of) != after.get(of) for of in ("passthrough", "why_not")):  # more of it may arrive between the two
        answer, text = after, run(node, "explain", *where, what)
        after = json.loads(run(node, "explain", "--json", *where, what))
    assert ("passthrough  yes" in text) == answer["passthrough"], text
    if not answer["passthrough"]:
        assert f"passthrough  no: {answer['why_not']}" in text
    return answer


def stats(node, path):
    answer = json.loads(run(node, "mount", "--stats", "--json", path))
    text = run(node, "mount", "--stats", path)
    assert answer["directory"] in text and "operation" in text
    return answer


def counted(node, path):
    """The same, when all that was answered by now counts: an operation does when its thread is through with it, a moment after its answer."""
    harness.wait_until(lambda: not json.loads(run(node, "mount", "--stats", "--json", path))["running"], what="nothing runs")
    return stats(node, path)


def put(bucket, key, n, seed=1):
    body = harness.random_bytes(n, seed=seed)
    bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=body)
    return body


# ---- explain ----


def test_explaining_an_object_as_it_arrives(bucket):
    """Nothing here, then a part, then all of it, in a file that holds the object's bytes; the origin is not asked and no read is
    counted for it."""
    node, key = bucket.node, "dir/ob ject"
    body = put(bucket, key, 5 * MIB + 7)
    name = f"{bucket.name}/{key}"
    cold = explain(node, name)
    assert not cold["cached"] and not cold["passthrough"] and "nothing of it is here" in cold["why_not"]
    bucket.node.cli("bucket", "set", bucket.name, "readahead=0", "validate=ttl:1h")  # fresh however long all of this takes
    bucket.s3.get_object(Bucket=bucket.name, Key=key, Range="bytes=0-99")["Body"].read()
    requests = node.metric("forebay_origin_requests_total", bucket=bucket.name)
    part = harness.wait_until(lambda: (lambda x: x["cached"] and x["blocks_present"] > 0 and x)(explain(node, name)), what="a part")
    if not part["complete"]:
        assert 0 < part["present_bytes"] < len(body) and part["blocks"] == 6
        assert f"of {part['blocks']} blocks are not here" in part["why_not"] and part["first_missing_at"] % MIB == 0
    assert bucket.s3.get_object(Bucket=bucket.name, Key=key)["Body"].read() == body
    whole = harness.wait_until(lambda: (lambda x: x["complete"] and x)(explain(node, name)), what="all")

    def requests_of_explaining():
        before = node.metric("forebay_origin_requests_total", bucket=bucket.name)
        assert explain(node, name)["complete"]
        return node.metric("forebay_origin_requests_total", bucket=bucket.name) - before

    # That of the last read is counted when it has ended, which may be after its bytes were passed on.
    harness.wait_until(lambda: requests_of_explaining() == 0, what="nobody is asked")
    assert whole["size_bytes"] == whole["present_bytes"] == len(body) and whole["blocks_present"] == 6
    assert whole["passthrough"] and whole["fresh"] and whole["keep"] == "auto" and "first_missing_at" not in whole
    assert pathlib.Path(whole["file"]).read_bytes() == body and whole["file"].startswith(whole["disk"])
    assert whole["etag"] == bucket.truth.head_object(Bucket=bucket.name, Key=key)["ETag"].strip('"')
    assert node.metric("forebay_origin_requests_total", bucket=bucket.name) >= requests


def test_explaining_why_there_is_no_passthrough(bucket, mount):
    """A bucket that verifies each read, one that is never cached, a mount without passthrough, a file that is open plainly, the
    read-only profile: each is named."""
    node = bucket.node
    node.cli("bucket", "set", bucket.name, "validate=ttl:1h")
    body = put(bucket, "f", 2 * MIB)
    assert bucket.s3.get_object(Bucket=bucket.name, Key="f")["Body"].read() == body
    name = f"{bucket.name}/f"
    harness.wait_until(lambda: explain(node, name)["passthrough"], what="complete")
    off = mount(bucket.name, passthrough="off").path
    assert explain(node, off / "f")["why_not"] == "switched off"
    openless = mount(bucket.name, profile="read-only").path
    assert "read-only profile" in explain(node, openless / "f")["why_not"]
    node.cli("bucket", "set", bucket.name, "verify=read")
    assert "verify=read" in explain(node, name)["why_not"]
    node.cli("bucket", "set", bucket.name, "verify=fill")
    node.cli("rules", f"{bucket.name}/never/", "cache=never")
    put(bucket, "never/f", 100)
    assert "cache=never" in explain(node, f"{bucket.name}/never/f")["why_not"]
    if not mount(bucket.name).uses_passthrough():
        pytest.skip("passthrough is not to be had here")
    on = mount(bucket.name).path
    answer = explain(node, on / "f")
    assert answer["passthrough"] and answer["bucket"] == bucket.name and answer["key"] == "f"
    with open(on / "f", "rb") as f:
        assert f.read(10) == body[:10]
        assert explain(node, on / "f")["mount"]["opens_by_passthrough"] == 1
    harness.wait_until(lambda: explain(node, on / "f")["mount"]["opens_by_passthrough"] == 0, what="closed")
    with open(on / "f", "r+b") as f:
        f.write(b"new")
        answer = explain(node, on / "f")
        assert answer["mount"]["being_written"] and answer["mount"]["other_opens"] == 1
        assert not answer["passthrough"] and "open through the mount's process" in answer["why_not"]


def test_explaining_from_another_directory(origin, new_node, mount, tmp_path):
    """A node and a mount that were told of their places by relative paths say where they are from anywhere. (Seen to fail without getcwd
    in set_socket, client/client.c, and in put_path, object/explain.c.)"""
    node = new_node(start=False)
    node.data = os.path.relpath(node.data)
    node.start()
    assert not node.socket_path.startswith("/")
    name, body = node.new_bucket(origin), harness.random_bytes(1000, seed=1)
    origin.s3().put_object(Bucket=name, Key="f", Body=body)
    path = mount(name, node=node).path
    assert (path / "f").read_bytes() == body
    done = subprocess.run([node.binary, "explain", "--json", path / "f"], cwd=tmp_path, stdout=subprocess.PIPE, timeout=200,
                          env={**os.environ, **node.env}, check=True)
    answer = json.loads(done.stdout)
    assert answer["key"] == "f" and pathlib.Path(answer["file"]).is_absolute() and pathlib.Path(answer["file"]).read_bytes() == body
    assert answer["file"].startswith(answer["disk"])


def test_explaining_below_a_prefix_and_by_odd_paths(bucket, mount, tmp_path):
    """A mount of a prefix, a relative path, a symbolic link from outside and a name that is no UTF-8 lead to the right key."""
    node = bucket.node
    put(bucket, "a/b/c", 10)
    path = mount(f"{bucket.name}/a").path
    assert explain(node, path / "b/c")["key"] == "a/b/c"
    (tmp_path / "link").symlink_to(path / "b/c")
    assert explain(node, tmp_path / "link")["key"] == "a/b/c"
    done = subprocess.run([str(node.binary), "explain", "--json", "./c"], cwd=path / "b", stdout=subprocess.PIPE, timeout=200,
                          env={**os.environ, **node.env}, check=True)
    assert json.loads(done.stdout)["key"] == "a/b/c"
    (tmp_path / "origin").mkdir()
    files = harness.random_name()
    node.create_bucket(files, f"file://{tmp_path}/origin")
    odd = os.fsencode(mount(files).path) + b"/\xff\xfe"  # object services have no such keys
    with open(odd, "wb") as f:
        f.write(b"odd")
    done = subprocess.run([str(node.binary).encode(), b"explain", b"--json", odd], stdout=subprocess.PIPE, timeout=200,
                          env={**os.environ, **node.env}, check=True)
    assert json.loads(done.stdout)["key"] == "\ufffd\ufffd"


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_explaining_scratch_files(node, scratch, mount, passthrough):
    """The file on the disk, whether it is being written, sealed, how it is open; by path and by key."""
    m = mount(scratch, passthrough=passthrough)
    path, uses = m.path, m.uses_passthrough()
    body = harness.random_bytes(3 * MIB, seed=2)
    (path / "d").mkdir()
    with open(path / "d/f", "wb") as f:
        f.write(body)
        f.flush()
        answer = explain(node, path / "d/f")
        assert answer["kind"] == "scratch" and answer["state"] == "open for writing" and answer["mount"]["being_written"]
        assert answer["mount"]["opens_by_passthrough" if uses else "other_opens"] == 1
        assert answer["passthrough"] == uses
    done = harness.wait_until(lambda: (lambda x: x["state"] == "sealed" and x)(explain(node, path / "d/f")), 60, "sealed")
    assert done["inode"] == (path / "d/f").stat().st_ino and done["size_bytes"] == len(body) and done["complete"]
    assert pathlib.Path(done["file"]).read_bytes() == body
    by_key = explain(node, f"{scratch}/d/f")
    assert by_key["file"] == done["file"] and by_key["key"] == "d/f" and by_key["passthrough"]
    (path / "empty").touch()
    assert "file" not in explain(node, path / "empty") or explain(node, path / "empty")["size_bytes"] == 0
    os.mkfifo(path / "fifo")
    assert "no bytes" in explain(node, path / "fifo")["why_not"]
    os.symlink("d/f", path / "link")
    assert explain(node, path / "link")["inode"] == done["inode"]


def test_what_cannot_be_explained(bucket, mount, tmp_path):
    """Directories, what is not there, paths outside of mounts, bad names: one line and status 1 or 2."""
    node = bucket.node
    put(bucket, "d/f", 10)
    path = mount(bucket.name).path
    at = ("--socket", node.socket_path)
    assert "is a directory" in run(node, "explain", path / "d", status=1)
    assert "is a directory" in run(node, "explain", path, status=1)
    assert "No such file" in run(node, "explain", path / "nothing", status=1)
    (tmp_path / "f").write_text("outside")
    assert "not a mount of forebay" in run(node, "explain", tmp_path / "f", status=1)
    assert "nobucket" in run(node, "explain", *at, "nobucket/f", status=1)
    assert "is a bucket" in run(node, "explain", *at, bucket.name, status=2)
    run(node, "explain", *at, f"{bucket.name}/{'k' * 1025}", status=1)
    assert run(node, "explain", status=2) and run(node, "explain", "a", "b", status=2)


def test_explaining_takes_an_admin(bucket):
    """Paths of disks are not for users that may only read."""
    node = bucket.node
    put(bucket, "f", 10)
    made = json.loads(node.cli("user", "create", harness.random_name("u"), "--json").stdout)
    env = {"FOREBAY_ACCESS_KEY": made["access_key"], "FOREBAY_SECRET_KEY": made["secret_key"]}
    text = run(node, "explain", "--endpoint", node.wire_address, f"{bucket.name}/f", status=1, env=env)
    assert "takes an admin" in text


# ---- stats ----


def test_counting_a_mirror_bucket(bucket, mount):
    """Opens, hits, bytes and operations are what was done; passthrough and its absence are told: what is complete is read by it, and
    what is written only, written. (Seen to fail when cold opens count as hits, and when files being written are not registered.)"""
    node = bucket.node
    for i in range(4):
        put(bucket, f"d/f{i}", 300_000, seed=i)
    m = mount(bucket.name)
    path, uses = m.path, m.uses_passthrough()
    first = stats(node, path)
    assert first["bucket"] == bucket.name and first["kind"] == "mirror" and first["pid"] == m.serving()
    assert first["passthrough"] == uses and first["hit_share"] is None and first["passthrough_share"] is None
    assert first["node"] == f"unix:{node.socket_path}" and first["reading_opens"] == 0
    for i in range(3):
        for k in range(4):
            assert (path / f"d/f{k}").read_bytes() == harness.random_bytes(300_000, seed=k)
        if i == 0:
            cold = stats(node, path)
            assert cold["here_opens"] == 0 == cold["hit_share"] and cold["passthrough_opens"] == 0
            harness.wait_until(lambda: m.open_files() == 0, what="all are closed")  # how they were open binds nobody then
    (path / "d/new").write_bytes(b"x" * 1000)
    harness.wait_until(lambda: m.open_files() == 0, what="all are closed")
    now = counted(node, path)
    assert now["reading_opens"] == 12 and now["writing_opens"] == 1 and now["open_files"] == 0
    assert now["here_opens"] == 8 and now["hit_share"] == now["here_opens"] / 12
    if uses:
        assert now["passthrough_opens"] == 9 and 0 < now["unasked_opens"] <= 8
        assert now["passthrough_share"] == now["passthrough_opens"] / 13 and now["written_bytes"] == 0
    else:
        assert now["passthrough_share"] == 0 and now["written_bytes"] == 1000
    assert now["operations"]["open"]["count"] == 12 and now["operations"]["create"]["count"] == 1
    for one in now["operations"].values():
        assert one["count"] > 0 and 0 <= one["median_us"] <= one["p99_us"] <= one["max_us"]
        assert 0 < one["mean_us"] <= one["max_us"]
    assert now["failures"] == 0 and now["up_ms"] >= first["up_ms"]
    with open(path / "d/f0", "rb"):
        assert stats(node, path)["open_files"] == 1
    assert stats(node, path / "d")["reading_opens"] == 13  # any directory of the mount answers


def test_opening_right_after_a_close(bucket, mount):
    """Nobody waits for the RELEASE of a file that was written by passthrough: an open to read and write that follows at once is
    plain, else nobody would hear of an msync. (When RELEASE passes the lead on first, some of these are by passthrough.)"""
    m = mount(bucket.name)

    def work(k):
        for i in range(100):
            (m.path / f"{k}.{i}").write_bytes(b"x")
            os.close(os.open(m.path / f"{k}.{i}", os.O_RDWR))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    now = stats(bucket.node, m.path)
    assert (now["writing_opens"], now["passthrough_opens"]) == (1600, 800 if m.uses_passthrough() else 0)


def test_counting_without_passthrough(bucket, mount):
    """Bytes that the mount's process moves are counted, and which of them were here before; the read-only profile has no opens,
    and its share of hits is one of bytes."""
    node = bucket.node
    body = put(bucket, "f", 2 * MIB)
    path = mount(bucket.name, passthrough="off", attr_timeout="0").path
    assert (path / "f").read_bytes() == body
    cold = stats(node, path)
    assert cold["read_bytes"] == len(body) and cold["passthrough_share"] == 0 and cold["reason"] == "switched off"
    openless = mount(bucket.name, profile="read-only").path
    assert (openless / "f").read_bytes() == body
    warm = stats(node, openless)
    assert warm["profile"] == "read-only" and warm["reading_opens"] == 0
    assert warm["read_bytes"] == warm["here_read_bytes"] == len(body) and warm["hit_share"] == 1


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_counting_a_scratch_bucket(node, scratch, mount, passthrough):
    """Every byte is here; changes are counted by their names. Files that are there, sealed, and opened for writing are written by
    passthrough as new ones are."""
    m = mount(scratch, passthrough=passthrough)
    path = m.path
    for i in range(5):
        (path / f"f{i}").write_bytes(b"y" * 4096)
        os.rename(path / f"f{i}", path / f"g{i}")
    assert (path / "g0").read_bytes() == b"y" * 4096
    now = counted(node, path)
    assert now["kind"] == "scratch" and now["writing_opens"] == 5 and now["reading_opens"] == 1 and now["hit_share"] == 1
    assert now["operations"]["rename"]["count"] == 5 and now["operations"]["create"]["count"] == 5
    assert now["passthrough_share"] == (1 if m.uses_passthrough() else 0)
    assert now["written_bytes"] == (0 if m.uses_passthrough() else 5 * 4096)
    harness.wait_until(lambda: explain(node, path / "g0")["state"] == "sealed", 60, "sealed")
    for i, flags in enumerate((os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC)):
        fd = os.open(path / "g0", flags)
        by_passthrough = 1 if m.uses_passthrough() else 0
        harness.wait_until(lambda: explain(node, path / "g0")["mount"]["opens_by_passthrough"] == by_passthrough, what="one open, so")
        assert os.write(fd, b"z" * 100) == 100
        os.close(fd)
        now = stats(node, path)
        assert now["writing_opens"] == 6 + i
        assert now["written_bytes"] == (0 if m.uses_passthrough() else 5 * 4096 + 100 * (i + 1))
    assert now["passthrough_share"] == (1 if m.uses_passthrough() else 0)
    assert (path / "g0").read_bytes() == b"z" * 100


def calls(node, path):
    """How often the kernel has asked for what: {operation: count}."""
    return {name: one["count"] for name, one in counted(node, path)["operations"].items()}


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_a_small_file_costs_few_calls(bucket, mount, passthrough):
    """A file of 110 KB that nobody has read: opened, read by one reply at most, closed without a FLUSH. Written it is flushed once.
    (Seen to fail without noflush in reply_flags, mount/open.c.)"""
    body = put(bucket, "f", 110_000)
    one = mount(bucket.name, passthrough=passthrough, attr_timeout="10m")
    path = one.path
    one.wait_until_told(bucket.s3, bucket.name)
    (path / "f").stat()
    before = calls(bucket.node, path)
    fd = os.open(path / "f", os.O_RDONLY)
    assert os.read(fd, len(body)) == body
    os.close(fd)
    read = calls(bucket.node, path)
    assert read["open"] == 1 and read.get("read", 0) <= 1 and read["lookup"] <= before["lookup"] + 1, (before, read)
    assert read.get("flush", 0) == read.get("write", 0) == 0
    (path / "new").write_bytes(body)
    assert calls(bucket.node, path)["flush"] == 1


@pytest.mark.parametrize("kind", ["mirror", "scratch"])
def test_a_listing_brings_the_attributes(node, bucket, scratch, mount, kind):
    """Names of a directory come with their attributes: looking at each of 300 files while they are listed asks for hardly any by
    name. (Without readdirplus in the table of operations it asks for all.)"""
    s3, name = (bucket.truth, bucket.name) if kind == "mirror" else (node.s3(), scratch)
    for i in range(300):
        s3.put_object(Bucket=name, Key=f"d/f{i:03}", Body=b"x" * i)
    one = mount(name, attr_timeout="10m")  # however slowly the program goes on
    path = one.path
    one.wait_until_told(node.s3(), name)
    os.stat(path / "d")
    before = calls(node, path)
    with os.scandir(path / "d") as entries:
        assert sorted(e.stat().st_size for e in entries) == list(range(300))
    now = calls(node, path)
    assert now["readdirplus"] >= 1 and now["lookup"] - before["lookup"] < 100 and now.get("getattr", 0) - before.get("getattr", 0) < 100


def test_what_runs_and_what_was_slow(bucket, new_shaper, mount):
    """An operation that waits for the origin is shown while it waits, and among the slow ones with its path and what it waited for
    afterwards, reads too, which explain tells of the file; one that fails because the origin does is counted. (Seen to fail when note_slow, mount/stats.c, is not
    told of reads.)"""
    node = bucket.node
    shaper = new_shaper(before=bucket.origin, first_byte="5s")
    name = node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    bucket.origin.s3().put_object(Bucket=name, Key="slow/file", Body=b"z" * 200_000)
    path = mount(name).path
    got = []
    reader = threading.Thread(target=lambda: got.append((path / "slow/file").read_bytes()))
    reader.start()
    try:
        harness.wait_until(lambda: [x for x in stats(node, path)["running"] if x["for_ms"] > 100], 60, "something runs")
    finally:
        reader.join(200)
    assert got == [b"z" * 200_000]
    now = counted(node, path)
    slow = now["slow"]
    assert now["failures"] == 0 and slow and all(x["took_ms"] >= 100 for x in slow)
    assert any("slow" in x["target"] for x in slow), slow
    assert all(x["waited_ms"] <= x["took_ms"] for x in slow), slow
    assert any(x["waited_for"] == "stat" and x["waited_ms"] >= 100 for x in slow), slow
    reads = [x for x in slow if x["operation"] == "read"]
    waited = [x for x in reads if x["waited_ms"] >= 100]  # others are slow on a busy machine by themselves
    assert waited and all(x["waited_for"] == "fetch" for x in waited) and all(x["target"] == "slow/file" for x in reads), slow
    assert "of which the node's " in run(node, "mount", "--stats", path)
    of_file = explain(node, path / "slow/file")["mount"]["slow"]
    assert [(x["operation"], x["took_ms"]) for x in of_file] == [(x["operation"], x["took_ms"]) for x in slow if x["target"] == "slow/file"]
    assert any(x["operation"] == "read" and x["waited_for"] == "fetch" and x["waited_ms"] >= 100 for x in of_file)
    assert re.search(r"slow +\w+ took +\S+(.*\n +\w+ took +\S+)*, of which the node's fetch", run(node, "explain", path / "slow/file"))
    (path / "slow/new").write_bytes(b"")
    assert all(x["target"] == "slow/new" for x in explain(node, path / "slow/new")["mount"]["slow"])
    shaper.stop()
    with pytest.raises(OSError):
        (path / "slow/other").read_bytes()
    assert stats(node, path)["failures"] > 0


def test_what_was_slow_of_a_scratch_file(node, scratch, mount):
    """Explaining a file tells which of the mount's last slow operations were about it and what they waited for, of no other file's.
    (Seen to fail when tell_tree, mount/explain.c, asks for none.)"""
    path = mount(scratch).path
    (path / "f").write_bytes(b"f")
    (path / "g").write_bytes(b"g")

    def slow_open():
        os.kill(node.pid, signal.SIGSTOP)
        try:
            reader = threading.Thread(target=lambda: os.close(os.open(path / "f", os.O_RDWR)))
            reader.start()
            time.sleep(0.3)
        finally:
            os.kill(node.pid, signal.SIGCONT)
        reader.join(200)
        opens = [x for x in explain(node, path / "f")["mount"]["slow"] if x["operation"] == "open"]
        return [x for x in opens if x["waited_for"] == "tree_open" and 100 <= x["waited_ms"] <= x["took_ms"]]

    harness.wait_until(slow_open, 100, "an open that waited while the node did nothing")
    assert not [x for x in explain(node, path / "g")["mount"]["slow"] if x["operation"] == "open"]


def test_what_was_slow_is_told_by_its_path(node, scratch, mount):
    """Of a scratch bucket too, after renames of the file and of its directory, and when the names came with a listing. (Seen to
    fail without tree_named_path in mount/stats.c, without tree_named_moved in mount/tree_names.c, and without tree_named_note in
    mount/tree_dir.c.)"""
    node.s3().put_object(Bucket=scratch, Key="listed/by s3", Body=b"x")
    path = mount(scratch).path
    (path / "a/b").mkdir(parents=True)
    (path / "a/b/f").write_bytes(b"f")
    (path / "a/b/f").rename(path / "a/b/g")
    (path / "a").rename(path / "z")
    next(os.scandir(path / "listed")).stat()
    files = [os.open(path / name, os.O_RDONLY) for name in ("z/b/g", "listed/by s3")]  # no name is looked up while it is slow

    def slow():
        os.kill(node.pid, signal.SIGSTOP)
        try:
            changers = [threading.Thread(target=lambda fd=fd: os.fchmod(fd, 0o600)) for fd in files]
            for changer in changers:
                changer.start()
            time.sleep(0.3)
        finally:
            os.kill(node.pid, signal.SIGCONT)
        for changer in changers:
            changer.join(200)
        found = {x["target"] for x in stats(node, path)["slow"] if x["operation"] == "setattr"}
        return found if len(found) > 1 else None

    try:
        assert harness.wait_until(slow, 100, "changes that waited while the node did nothing") == {"z/b/g", "listed/by s3"}
    finally:
        for fd in files:
            os.close(fd)


def test_stats_on_a_terminal(node, scratch, mount):
    """On a terminal the numbers are drawn again every second, with rates, until it is interrupted or the mount ends."""
    m = mount(scratch)
    for end in ("interrupt", "unmount"):
        master, slave = pty.openpty()
        process = subprocess.Popen([str(node.binary), "mount", "--stats", str(m.path)], stdin=slave, stdout=slave,
                                   stderr=subprocess.PIPE, env={**os.environ, **node.env})
        os.close(slave)
        seen = b""
        try:
            deadline = time.monotonic() + 200
            while seen.count(b"\033[H") < 3:
                assert time.monotonic() < deadline, seen
                os.listdir(m.path)
                if select.select([master], [], [], 0.2)[0]:
                    seen += os.read(master, 65536)
            assert b"per second" in seen and b"readdir" in seen
            if end == "interrupt":
                process.send_signal(signal.SIGINT)
            else:
                m.stop()
            while process.poll() is None and time.monotonic() < deadline:
                if select.select([master], [], [], 0.2)[0]:
                    try:
                        os.read(master, 65536)
                    except OSError:
                        break
            assert process.wait(200) == (0 if end == "interrupt" else 1)
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
            os.close(master)


def test_stats_end_with_their_terminal(node, scratch, mount):
    """Where the terminal goes away, and no signal tells of it, the numbers end when they cannot be written. They went on for ever."""
    m = mount(scratch)
    master, slave = pty.openpty()
    process = subprocess.Popen([str(node.binary), "mount", "--stats", str(m.path)], stdin=slave, stdout=slave,
                               stderr=subprocess.PIPE, env={**os.environ, **node.env})
    os.close(slave)
    try:
        assert os.read(master, 100)
        os.close(master)
        assert process.wait(200) == 1
        assert b"standard output" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_stats_of_what_is_no_mount(node, tmp_path):
    """One line says so; nonsense on the command line is status 2."""
    assert "not a mount of forebay" in run(node, "mount", "--stats", tmp_path, status=1)
    assert "No such file" in run(node, "mount", "--stats", tmp_path / "nothing", status=1)
    assert "--stats" in run(node, "mount", "--stats", "bucket", tmp_path, status=2)
    assert "--json" in run(node, "mount", "--json", "bucket", tmp_path, status=2)
    assert re.search(r"BUCKET.*DIR", run(node, "mount", tmp_path, status=2))


# ---- what the node counts ----

def test_the_node_counts_what_mounts_and_commands_read(node, origin, mount):
    """Bytes by who read them and from where: what a mount reads through the node is told when the file is closed, or let go where it
    is kept open, what the command line reads is of the API. What the kernel reads by itself is not counted."""
    name = node.new_bucket(origin)
    bodies = {"cold": harness.random_bytes(3 * MIB, seed=1), "warm": harness.random_bytes(2 * MIB, seed=2),
              "small": harness.random_bytes(100_000, seed=3)}
    for key, body in bodies.items():
        origin.s3().put_object(Bucket=name, Key=key, Body=body)

    def counted(via, *sources):
        return sum(node.metric("forebay_read_bytes_total", bucket=name, via=via, **{"from": source}) for source in sources)

    assert node.s3().get_object(Bucket=name, Key="warm")["Body"].read() == bodies["warm"]
    harness.wait_until(lambda: counted("s3", "cache", "origin") == 2 * MIB, what="the GET is counted")
    path = mount(name, passthrough="off", kept_files="0").path
    assert (path / "warm").read_bytes() == bodies["warm"]
    harness.wait_until(lambda: counted("mount", "cache") == 2 * MIB, what="counted when the warm file is closed")
    assert counted("mount", "origin") == 0
    for key, of_origin in (("cold", 3 * MIB), ("small", 3 * MIB + 100_000)):
        assert (path / key).read_bytes() == bodies[key]
        harness.wait_until(lambda: counted("mount", "cache", "origin") == 2 * MIB + of_origin, what="counted when it is closed")
        assert counted("mount", "origin") == of_origin, "all of it was missing, however fast the origin"
    assert counted("api", "cache", "origin") == 0
    assert node.cli("cat", f"{name}/warm", stdin=b"").stdout == bodies["warm"]
    harness.wait_until(lambda: counted("api", "cache") == 2 * MIB, what="the command is counted")
    assert counted("s3", "cache", "origin") == 2 * MIB
    keeping = mount(name, passthrough="off")
    for _ in range(3):
        assert (keeping.path / "warm").read_bytes() == bodies["warm"]
    keeping.stop()
    harness.wait_until(lambda: counted("mount", "cache", "origin") >= 7 * MIB + 100_000, what="counted when the warm file is let go")
    # Once, or as often as the kernel's pages of it had been dropped, which others on the machine may do.
    assert counted("mount", "cache", "origin") in [5 * MIB + 100_000 + n * 2 * MIB for n in (1, 2, 3)]
