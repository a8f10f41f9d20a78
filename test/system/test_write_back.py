"""write=back: acknowledged when durable here, carried to the origin afterwards, never lost and never over others' writes."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import io
import json
import os
import random
import signal
import subprocess
import threading
import time
import types

import botocore.exceptions
import pytest

from harness import random_bytes, scratch_bucket, wait_until
from test_jobs import fill, keys_of
from test_jobs_export import uploads_of

DOWN = {"kind": "status:503", "count": "100000000"}


def status(node, name):
    buckets = json.loads(node.cli("status", "--json").stdout)["buckets"]
    return next(b for b in buckets if b["name"] == name)["write_back"]


def flushed(node, name):
    assert "0 objects" in node.cli("flush", "--wait", name).stdout


def down(shaper, match=None):
    """The origin answers nothing but errors."""
    shaper.fault(DOWN["kind"], count=DOWN["count"], **({"match": match} if match else {}))


@pytest.fixture
def away(new_node, new_shaper, origin):
    """A bucket with write=back whose origin can be made to fail."""
    node, shaper = new_node(), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="1s", validate="ttl:1s")
    return node, name, shaper, origin.s3()


def test_a_write_is_seen_at_once_and_reaches_the_origin(new_node, origin):
    """PUT, multipart and CLI writes: read back at once with their attributes, and in the origin after a flush."""
    node = new_node()
    name = node.new_bucket(origin, write="back")
    s3, truth = node.s3(), origin.s3()
    large = random_bytes(12 * 2**20, seed=1)
    s3.put_object(Bucket=name, Key="a/small", Body=b"hello", ContentType="text/x", Metadata={"k": "v"})
    s3.put_object(Bucket=name, Key="a/empty", Body=b"")
    s3.put_object(Bucket=name, Key="large", Body=large)
    s3.upload_fileobj(io.BytesIO(large), name, "parts")
    assert node.cli("stat", name + "/parts").returncode == 0
    got = s3.get_object(Bucket=name, Key="a/small")
    assert (got["Body"].read(), got["ContentType"], got["Metadata"]) == (b"hello", "text/x", {"k": "v"})
    assert got["ETag"].strip('"') == hashlib.md5(b"hello").hexdigest()
    assert keys_of(s3, name) == ["a/empty", "a/small", "large", "parts"]
    flushed(node, name)
    at = truth.get_object(Bucket=name, Key="a/small")
    assert (at["Body"].read(), at["ContentType"], at["Metadata"]) == (b"hello", "text/x", {"k": "v"})
    for key in ("large", "parts"):
        assert truth.get_object(Bucket=name, Key=key)["Body"].read() == large
    assert truth.get_object(Bucket=name, Key="a/empty")["Body"].read() == b""
    assert s3.get_object(Bucket=name, Key="large")["Body"].read() == large
    assert status(node, name)["objects"] == 0


def test_several_writes_of_a_key_are_one(new_node, new_shaper, origin):
    """Within `write_delay` the origin gets the last write of a key alone, and nothing of a key that was removed again. (Without
    the delay in back.c each of them may go.)"""
    node, shaper, truth = new_node(), new_shaper(), origin.s3()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", write_delay="1h")
    s3 = node.s3()
    shaper.reset()
    for i in range(8):
        s3.put_object(Bucket=name, Key="k", Body=b"version %d" % i)
        s3.put_object(Bucket=name, Key="brief", Body=b"x")
        s3.delete_object(Bucket=name, Key="brief")
        time.sleep(0.3)  # longer than it takes to send one
    flushed(node, name)
    asked = {kind: count["requests"] for kind, count in shaper.stats()["kinds"].items()}
    assert (asked["put"], asked.get("delete", 0)) == (1, 0), asked
    assert keys_of(truth, name) == ["k"] and truth.get_object(Bucket=name, Key="k")["Body"].read() == b"version 7"


def expect_age(node, name):
    """What is not in the origin yet gets older, by status and metric, and its bytes are counted."""
    age = lambda: status(node, name)["oldest_ms"] / 1000
    first = age()
    wait_until(lambda: age() >= first + 2, what="the oldest gets older")
    assert 1 <= node.metric("forebay_write_back_oldest_seconds", bucket=name) <= age()
    assert node.metric("forebay_write_back_bytes", bucket=name) == status(node, name)["bytes"] > 0


def test_while_the_origin_is_away(away):
    """Writes, overwrites, removals, copies, renames, conditions and listings go on; all of it gets there later."""
    node, name, shaper, truth = away
    s3 = node.s3()
    for key in ("keep", "gone", "d/x", "d/y", "e/z"):
        truth.put_object(Bucket=name, Key=key, Body=b"old " + key.encode())
    assert len(keys_of(s3, name)) == 5
    down(shaper, match="PUT")
    for key in ("gone", "d/x", "d/y"):
        s3.delete_object(Bucket=name, Key=key)
    s3.put_object(Bucket=name, Key="new/1", Body=b"one")
    s3.put_object(Bucket=name, Key="new/1", Body=b"two")
    s3.copy_object(Bucket=name, Key="copied", CopySource={"Bucket": name, "Key": "new/1"})
    with pytest.raises(botocore.exceptions.ClientError):
        s3.put_object(Bucket=name, Key="new/1", Body=b"x", IfNoneMatch="*")
    assert keys_of(s3, name) == ["copied", "e/z", "keep", "new/1"]
    page = s3.list_objects_v2(Bucket=name, Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["e/", "new/"]
    assert [c["Key"] for c in page["Contents"]] == ["copied", "keep"]
    assert s3.get_object(Bucket=name, Key="new/1", Range="bytes=1-2")["Body"].read() == b"wo"
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=name, Key="gone")
    assert status(node, name)["objects"] >= 2
    expect_age(node, name)
    shaper.reset()
    flushed(node, name)
    assert status(node, name)["oldest_ms"] == node.metric("forebay_write_back_oldest_seconds", bucket=name) == 0
    assert keys_of(truth, name) == ["copied", "e/z", "keep", "new/1"]
    assert truth.get_object(Bucket=name, Key="new/1")["Body"].read() == b"two"


def test_listings_page_by_page(away):
    """Random keys, some of them written, some removed here: every page size and delimiter lists as a model says."""
    node, name, shaper, truth = away
    s3, rng, model = node.s3(), random.Random(5), set()
    keys = [f"{a}/{b}{c}" for a in "ab" for b in ("", "m/") for c in range(12)] + [f"t{i}" for i in range(8)]
    for key in keys[::2]:
        truth.put_object(Bucket=name, Key=key, Body=b"x")
        model.add(key)
    assert keys_of(s3, name) == sorted(model)
    down(shaper, match="PUT")
    down(shaper, match="DELETE")
    for key in rng.sample(keys, 40):
        if rng.random() < 0.5:
            s3.put_object(Bucket=name, Key=key, Body=b"here")
            model.add(key)
        else:
            s3.delete_object(Bucket=name, Key=key)
            model.discard(key)
    for size in (1, 2, 3, 7, 1000):
        for delimiter in ({}, {"Delimiter": "/"}):
            found, groups, more = [], [], {}
            while True:
                page = s3.list_objects_v2(Bucket=name, MaxKeys=size, **delimiter, **more)
                found += [c["Key"] for c in page.get("Contents", [])]
                groups += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
                if not page["IsTruncated"]:
                    break
                more = {"ContinuationToken": page["NextContinuationToken"]}
            if delimiter:
                assert groups == sorted({k.split("/")[0] + "/" for k in model if "/" in k})
            assert found == sorted(k for k in model if not (delimiter and "/" in k))
    shaper.reset()
    flushed(node, name)
    assert keys_of(truth, name) == sorted(model)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment(away, seed):
    """kill -9 while writers write and the origin fails now and then: what was acknowledged is there after the restart,
    and in the origin after a flush; nothing else is but what may have been under way."""
    node, name, shaper, truth = away
    rng = random.Random(seed)
    acked, tried, lock = {}, {}, threading.Lock()
    for kind, match in (("status:503", "PUT"), ("reset", "PUT"), ("reset", "DELETE")):  # a reset loses the answer only
        shaper.fault(kind, count="20", skip=str(rng.randrange(10)), match=match)
    shaper.fault("status:503", count="1000000", match="/k1/")

    def write(number):
        s3, mine = node.s3(retries={"max_attempts": 0}), random.Random(10 * seed + number)
        for i in range(400):
            key, body = f"k{number}/{mine.randrange(6)}", mine.randbytes(mine.choice([0, 10, 3000, 300000]))
            remove = mine.random() < 0.2
            with lock:
                tried.setdefault(key, []).append(None if remove else body)
            try:
                if remove:
                    s3.delete_object(Bucket=name, Key=key)
                else:
                    s3.put_object(Bucket=name, Key=key, Body=body)
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                return
            with lock:
                acked[key] = None if remove else body
                tried[key] = []

    writers = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for w in writers:
        w.start()
    wait_until(lambda: len(acked) > 8 + seed * 4, what="some writes")
    node.kill()
    for w in writers:
        w.join()
    node.start()
    s3 = node.s3()

    def check(where):
        for key, body in acked.items():
            try:
                now = where.get_object(Bucket=name, Key=key)["Body"].read()
            except where.exceptions.NoSuchKey:
                now = None
            assert now == body or now in tried[key], key
        assert set(keys_of(where, name)) <= set(tried)

    check(s3)
    shaper.reset()
    node.kill()
    node.start()
    flushed(node, name)
    check(truth)
    assert status(node, name)["conflicts"] == 0


@pytest.mark.parametrize("how", ["back", "through", "around"])
def test_uploads_of_a_killed_node_are_aborted(new_node, new_shaper, origin, tmp_path, how):
    """kill -9 while a large object is on its way in parts, by write-back, while it is put, and around disks that are too small for
    it: the next run aborts that upload, which would be paid for, once.
    (Without unfinished_turn in object/steward.c it stays.)"""
    node, shaper, truth = new_node(disk=f"{tmp_path}/disk:{64 if how == 'around' else 512}MiB"), new_shaper(), origin.s3()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back" if how == "back" else "through")
    body = random_bytes(48 * 2**20, seed=3)
    shaper.fault("stall", match="partNumber=2", count="1000", for_="1h", at="0")

    def put():
        with contextlib.suppress(OSError, http.client.HTTPException):
            node.put_unsigned(name, "k", body)

    writer = threading.Thread(target=put)
    writer.start()
    wait_until(lambda: uploads_of(truth, name) == ["k"], what="an upload")
    node.kill()
    writer.join()
    shaper.reset()
    assert uploads_of(truth, name) == ["k"]
    node.start()
    wait_until(lambda: uploads_of(truth, name) == [], what="the upload is aborted")
    flushed(node, name)
    assert keys_of(truth, name) == (["k"] if how == "back" else [])
    node.stop()
    node.start()
    assert uploads_of(truth, name) == [] and node.log().count("that was cut is aborted") == 1


def test_others_write_meanwhile(away):
    """The origin's object changed after the write was acknowledged: both stay, and status and log say so. What is read
    afterwards is the origin's."""
    node, name, shaper, truth = away
    s3 = node.s3()
    for key in ("both", "removed", "same"):
        truth.put_object(Bucket=name, Key=key, Body=b"base")
        s3.get_object(Bucket=name, Key=key)["Body"].read()
    down(shaper, match="PUT")
    down(shaper, match="DELETE")
    s3.put_object(Bucket=name, Key="both", Body=b"ours")
    s3.put_object(Bucket=name, Key="fresh", Body=b"ours too")
    s3.put_object(Bucket=name, Key="same", Body=b"ours as well")
    s3.delete_object(Bucket=name, Key="removed")
    for key in ("both", "removed", "fresh"):
        truth.put_object(Bucket=name, Key=key, Body=b"theirs")
    assert s3.get_object(Bucket=name, Key="both")["Body"].read() == b"ours"
    shaper.reset()
    flushed(node, name)
    assert status(node, name)["conflicts"] == 3
    assert node.metric("forebay_write_back_conflicts_total", bucket=name) == 3
    for key in ("both", "removed", "fresh"):
        assert truth.get_object(Bucket=name, Key=key)["Body"].read() == b"theirs"
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == b"theirs"
    assert truth.get_object(Bucket=name, Key="same")["Body"].read() == b"ours as well"
    copies = {k.split(".conflict-")[0]: truth.get_object(Bucket=name, Key=k)["Body"].read()
              for k in keys_of(truth, name) if ".conflict-" in k}
    assert copies == {"both": b"ours", "fresh": b"ours too"}
    assert "stays, ours is" in node.log()


def test_bytes_that_rot_before_they_are_sent(away):
    """What the disk changed between the acknowledgement and the upload, also of bodies that go in parts and so without
    their MD5, never becomes the origin's truth: it stays here, and status says why."""
    node, name, shaper, truth = away
    body = random_bytes(12 * 2**20, seed=2)
    down(shaper)
    node.s3().put_object(Bucket=name, Key="k", Body=body)
    extent = next(p for p in (node.data / "cache" / "hard").rglob("*") if p.is_file() and p.stat().st_size == len(body))
    with open(extent, "r+b") as f:
        f.seek(10 * 2**20)
        f.write(bytes([body[10 * 2**20] ^ 1]))
    shaper.reset()
    wait_until(lambda: "other bytes than were written" in status(node, name)["error"])
    assert keys_of(truth, name) == [] and status(node, name)["objects"] == 1


@pytest.mark.parametrize("fault", ["status:500", "stall"])
def test_a_question_without_an_answer_is_asked_again(new_node, new_shaper, origin, fault):
    """What the origin has under a key, when it is asked before a write, is an error or no answer at first: that is no conflict,
    and the write gets there. (With one try in ask_again, object/back_layer.c, there are two.)"""
    node, shaper, truth = new_node(), new_shaper(), origin.s3()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="120s", **{"origin.timeout": "2s"})
    s3 = node.s3()
    for key in ("written", "removed"):
        truth.put_object(Bucket=name, Key=key, Body=b"old")
    at = {"at": "0"} if fault == "stall" else {}
    shaper.fault(fault, match="HEAD", count="2", **at)
    s3.put_object(Bucket=name, Key="written", Body=b"new")
    shaper.reset()
    shaper.fault(fault, match="HEAD", count="2", **at)
    s3.delete_object(Bucket=name, Key="removed")
    shaper.reset()
    flushed(node, name)
    assert status(node, name)["conflicts"] == 0 and keys_of(truth, name) == ["written"]
    assert truth.get_object(Bucket=name, Key="written")["Body"].read() == b"new"


def test_what_was_cached_is_what_was_there(away, origin):
    """A node that starts while the origin is away knows what the origin had from what it has cached of it: writing over that is no
    conflict."""
    node, name, shaper, truth = away
    truth.put_object(Bucket=name, Key="k", Body=b"old")
    assert node.s3().get_object(Bucket=name, Key="k")["Body"].read() == b"old"
    node.stop()
    down(shaper)
    node.start()
    node.s3(retries={"max_attempts": 0}).put_object(Bucket=name, Key="k", Body=b"new")
    shaper.reset()
    flushed(node, name)
    assert status(node, name)["conflicts"] == 0 and keys_of(truth, name) == ["k"]
    assert truth.get_object(Bucket=name, Key="k")["Body"].read() == b"new"


def test_directories_that_are_removed_stay_away(new_node, need_fuse, tmp_path, work):
    """rm -r of a tree whose origin has directories: they go there, too, although each file that goes changes its directory; what
    somebody else put there meanwhile stays, and its directory with it. (Without removals_below in object/back_send.c, or with
    the ETags of directories compared, directories stay and come back.)"""
    node, origin = new_node(), tmp_path / "nas"
    origin.mkdir()
    node.cli("bucket", "create", "nas", "--origin", f"file://{origin}", "-s", "write=back", "-s", "posix=on", "-s", "validate=ttl:1s")
    where = work / "nas-mount"
    where.mkdir()
    node.cli("mount", "nas", str(where))
    try:
        for top in ("a", "b"):
            for i in range(4):
                (where / top / f"d{i}" / "e").mkdir(parents=True)
                for k in range(6):
                    (where / top / f"d{i}" / "e" / f"f{k}").write_bytes(b"x")
            os.chmod(where / top, 0o750)
        flushed(node, "nas")
        subprocess.run(["rm", "-r", str(where / "a")], check=True)
        (where / "a").mkdir()
        (where / "a" / "again").write_bytes(b"y")
        subprocess.run(["rm", "-r", str(where / "b")], check=True)
        flushed(node, "nas")
        assert os.listdir(origin) == ["a"] and os.listdir(origin / "a") == ["again"]
        for i in range(3):
            (where / "old" / f"d{i}" / "e").mkdir(parents=True)
            (where / "old" / f"d{i}" / "e" / "f").write_bytes(b"z")
        flushed(node, "nas")
        os.rename(where / "old", where / "new")
        flushed(node, "nas")
        assert sorted(os.listdir(origin)) == ["a", "new"] and sorted(os.listdir(where)) == ["a", "new"]
        assert [(where / "new" / f"d{i}" / "e" / "f").read_bytes() for i in range(3)] == [b"z"] * 3
        subprocess.run(["rm", "-r", str(where / "new")], check=True)
        subprocess.run(["rm", "-r", str(where / "a")], check=True)
        flushed(node, "nas")
        assert os.listdir(origin) == [] and os.listdir(where) == []
        assert status(node, "nas")["conflicts"] == 0
    finally:
        node.cli("umount", str(where))


def test_a_renamed_directory_has_the_empty_ones_within(new_node, need_fuse, tmp_path, work):
    """At an origin with directories: one that is empty here, but not there yet, moves with the one around it, which is what it is also when
    all of it is taken away before it was carried there. (Seen to fail where list_below in object/move_tree.c lists all at once.)"""
    node, origin, where = new_node(), tmp_path / "nas", work / "emptied-mount"
    origin.mkdir()
    where.mkdir()
    node.cli("bucket", "create", "emptied", "--origin", f"file://{origin}", "-s", "write=back", "-s", "write_delay=3s")
    node.cli("mount", "emptied", str(where))
    try:
        for sub in ("empty", "emptied"):
            (where / "d" / sub).mkdir(parents=True)
            (where / "d" / sub / "f").write_bytes(b"below")
        (where / "d/g").write_bytes(b"beside")
        flushed(node, "emptied")
        os.unlink(where / "d/empty/f")
        os.rename(where / "d", where / "e")
        os.rename(where / "e/emptied/f", where / "f")
        os.unlink(where / "e/g")
        for top in (where, where, origin):
            assert sorted(os.listdir(top)) == ["e", "f"] and sorted(os.listdir(top / "e")) == ["emptied", "empty"]
            assert os.listdir(top / "e/empty") == os.listdir(top / "e/emptied") == []
            flushed(node, "emptied")
        subprocess.run(["rm", "-r", str(where / "e")], check=True)
        flushed(node, "emptied")
        assert os.listdir(origin) == os.listdir(where) == ["f"] and (origin / "f").read_bytes() == b"below"
    finally:
        node.cli("umount", str(where))


def test_what_is_in_the_origin_takes_the_place_of_what_was_removed_just_now(new_node, need_fuse, tmp_path, work):
    """A directory is renamed to where a file was, and a file to where a directory was, before an origin with directories has heard
    of the removal. (Without wait_around in object/back_layer.c both renames fail with EINVAL.)"""
    node, origin, where = new_node(), tmp_path / "nas", work / "place-mount"
    origin.mkdir()
    where.mkdir()
    node.cli("bucket", "create", "place", "--origin", f"file://{origin}", "-s", "write=back", "-s", "write_delay=3s")
    node.cli("mount", "place", str(where))
    try:
        for directory in ("d/sub", "was-directory/sub"):
            (where / directory).mkdir(parents=True)
            (where / directory / "f").write_bytes(b"below")
        (where / "was-file").write_bytes(b"1")
        (where / "file").write_bytes(b"2")
        flushed(node, "place")
        os.unlink(where / "was-file")
        os.rename(where / "d", where / "was-file")
        subprocess.run(["rm", "-r", str(where / "was-directory")], check=True)
        os.rename(where / "file", where / "was-directory")
        for top in (where, origin):
            flushed(node, "place")
            assert sorted(os.listdir(top)) == ["was-directory", "was-file"]
            assert (top / "was-file/sub/f").read_bytes() == b"below" and (top / "was-directory").read_bytes() == b"2"
        assert status(node, "place")["conflicts"] == 0
    finally:
        node.cli("umount", str(where))


def test_overwrite_is_a_choice(away):
    """With conflict=overwrite ours takes the place of what others wrote; that is counted and logged all the same."""
    node, name, shaper, truth = away
    s3 = node.s3()
    node.cli("bucket", "set", name, "conflict=overwrite")
    truth.put_object(Bucket=name, Key="k", Body=b"base")
    s3.get_object(Bucket=name, Key="k")["Body"].read()
    down(shaper, match="PUT")
    s3.put_object(Bucket=name, Key="k", Body=b"ours")
    truth.put_object(Bucket=name, Key="k", Body=b"theirs")
    shaper.reset()
    flushed(node, name)
    assert truth.get_object(Bucket=name, Key="k")["Body"].read() == b"ours"
    assert status(node, name)["conflicts"] == 1 and keys_of(truth, name) == ["k"]


def test_a_removal_waits_for_the_bucket(away):
    """While the origin's bucket is gone, no removal counts as done: it is told as failing, and made when the bucket is back with the object in
    it. (Without bucket_is_there in back_send.c the record goes with the first 404, and the object comes back.)"""
    node, name, shaper, truth = away
    s3 = node.s3()
    s3.put_object(Bucket=name, Key="k", Body=b"here")
    flushed(node, name)
    down(shaper, match="DELETE")
    s3.delete_object(Bucket=name, Key="k")
    wait_until(lambda: status(node, name)["failing"] == 1, what="the failure")
    truth.delete_object(Bucket=name, Key="k")
    truth.delete_bucket(Bucket=name)
    shaper.reset()
    wait_until(lambda: "bucket is not there" in status(node, name)["error"], what="the other failure")
    truth.create_bucket(Bucket=name)
    truth.put_object(Bucket=name, Key="k", Body=b"here")
    flushed(node, name)
    assert keys_of(truth, name) == []
    s3.put_object(Bucket=name, Key="k", Body=b"again")
    flushed(node, name)
    truth.delete_object(Bucket=name, Key="k")
    s3.delete_object(Bucket=name, Key="k")  # gone there already, in a bucket that is there: nothing is left to do
    flushed(node, name)


def test_what_fails_is_told_whatever_its_name(new_node, tmp_path):
    """status and flush --json tell of a write that does not arrive, also when its name is no UTF-8 or is cut inside a character."""
    node = new_node()
    for i, name in enumerate((b"caf\xe9", ("\u65e5" * 60).encode())):
        origin = tmp_path / f"origin{i}"
        origin.mkdir()
        node.cli("bucket", "create", f"told{i}", "--origin", f"file://{origin}", "-s", "write=back", "-s", "retry=0s")
        (origin / os.fsdecode(name)).write_bytes(b"a file in the way")
        node.cli("put", "-q", "-", f"told{i}/{os.fsdecode(name)}/x", stdin="x")
        wait_until(lambda: status(node, f"told{i}")["failing"] == 1, what="the failure")
        assert json.loads(node.cli("flush", "--json", f"told{i}").stdout)["failing"] == 1


def test_backpressure_and_what_is_refused(new_node, new_shaper, origin, tmp_path):
    """At the watermark writers wait, then get a clear error; nothing acknowledged goes. While writes are not in the
    origin the bucket is neither removed nor moved, and write=through ends nothing of them."""
    node, shaper = new_node(disk=f"{tmp_path}/disk:256MiB"), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms")
    s3, body, n = node.s3(retries={"max_attempts": 0}), os.urandom(16 * 2**20), 0
    down(shaper, match="PUT")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        while n < 64:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n += 1
    assert n >= 2 and "are not in the origin yet, at most" in str(refused.value)  # and not that the disk is full
    assert s3.get_object(Bucket=name, Key="k0")["Body"].read() == body
    assert node.metric("forebay_write_back_objects", bucket=name) == n
    for command in (("rm", name), ("set", name, "origin.endpoint=http://127.0.0.1:1")):
        done = node.cli("bucket", *command, check=False)
        assert done.returncode != 0 and "flush" in done.stderr
    node.cli("bucket", "set", name, "write=through")
    assert s3.get_object(Bucket=name, Key="k1")["Body"].read() == body
    shaper.reset()
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n


def test_a_lower_mark_slows_writers_earlier(new_node, new_shaper, origin, tmp_path):
    """--dirty-max PERCENT: writers wait, and are refused in the end, when so much of the disks is not in the origin; a restart may
    set it higher or lower, and what was acknowledged stays. (With the constant in object/back.c the first number is 9.)"""
    node, shaper, body = new_node(disk=f"{tmp_path}/disk:256MiB", dirty_max="20"), new_shaper(), os.urandom(16 * 2**20)
    name, n = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms"), 0
    down(shaper, match="PUT")
    for percent, most in (("20", 3), ("55", 8), ("1", 8)):
        node.stop()
        node.options["dirty_max"] = percent
        node.start()
        s3 = node.s3(retries={"max_attempts": 0})
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            while n < 16:
                s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
                n += 1
        assert n == most and f"at most {2**28 // 100 * int(percent)} bytes" in str(refused.value)
    shaper.reset()
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n


def test_writers_that_wait_take_no_thread_from_readers(new_node, new_shaper, origin, tmp_path):
    """At the watermark as many S3 writers wait as may wait for limits, half of the threads; more of them are told to come
    again, at once, so that others are served meanwhile. (Without back_begin_wait in back_wait_room nothing is, until the
    bucket's `retry` has passed.)"""
    node, shaper = new_node(disk=f"{tmp_path}/disk:256MiB", threads=8), new_shaper()
    name, other = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms"), scratch_bucket(node)
    s3, body = node.s3(retries={"max_attempts": 0}, max_pool_connections=64, read_timeout=900), os.urandom(16 * 2**20)
    s3.put_object(Bucket=other, Key="k", Body=b"data")
    down(shaper, match="PUT")
    n = 0
    with pytest.raises(botocore.exceptions.ClientError):
        while n < 64:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n += 1
    node.cli("bucket", "set", name, "retry=10m")
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        late = [pool.submit(s3.put_object, Bucket=name, Key=f"late{i}", Body=body) for i in range(24)]
        wait_until(lambda: sum(one.done() for one in late) == 20, what="refusals")
        for _ in range(10):
            assert s3.get_object(Bucket=other, Key="k")["Body"].read() == b"data"
        refused = [one for one in late if one.done()]
        assert len(refused) == 20
        for one in refused:
            error = one.exception()
            assert error.response["Error"]["Code"] == "ServiceUnavailable" and "not in the origin yet" in str(error)
        shaper.reset()
        for one in late:
            assert one in refused or one.result()
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n + 4


def test_a_shorter_delay_holds_for_what_waits(new_node, origin):
    """write_delay is for what waits already, too. (Without back_hurry in op_bucket_set it waits for an hour.)"""
    node = new_node()
    name = node.new_bucket(origin, write="back", write_delay="1h")
    node.s3().put_object(Bucket=name, Key="k", Body=b"data")
    node.cli("bucket", "set", name, "write_delay=0s")
    wait_until(lambda: keys_of(origin.s3(), name) == ["k"], what="it is sent")


def test_a_flush_is_of_its_prefix(new_node, origin):
    """forebay flush BUCKET/PREFIX --wait sends what is below the prefix, ends, and says what is left of that; the rest of the bucket
    and other buckets keep to their write_delay. (With back_hurry for all in object/back.c, or the prefix left out in op_flush, the
    origin gets all of it; with it left out of the count the flush never ends.)"""
    node, truth = new_node(), origin.s3()
    name, other = [node.new_bucket(origin, write="back", write_delay="1h") for _ in range(2)]
    s3 = node.s3()
    for bucket in (name, other):
        for key in ("logs/1", "ckpt-old", "ckpt/1", "ckpt/2"):
            s3.put_object(Bucket=bucket, Key=key, Body=b"data")
    left = json.loads(node.cli("flush", "--json", f"{name}/ckpt/", "--wait").stdout)
    assert left["objects"] == 0 and keys_of(truth, name) == ["ckpt/1", "ckpt/2"]
    for i in range(8):  # each of these would have taken the others with it
        s3.put_object(Bucket=name, Key=f"ckpt/more{i}", Body=b"data")
        assert "0 objects" in node.cli("flush", f"{name}/ckpt/more", "--wait").stdout
    assert not {"logs/1", "ckpt-old"} & set(keys_of(truth, name)) and keys_of(truth, other) == []
    assert [status(node, bucket)["objects"] for bucket in (name, other)] == [2, 4]
    flushed(node, f"{name}/")
    assert len(keys_of(truth, name)) == 12 and keys_of(truth, other) == [] and status(node, other)["objects"] == 4


def test_flush_says_why_it_waits(away):
    """What a flush waits for, and cannot have, it says once on standard error, and goes on waiting."""
    node, name, shaper, _ = away
    shaper.fault("status:403", count="100000000", match="PUT")
    node.s3().put_object(Bucket=name, Key="k", Body=b"data")
    flush = subprocess.Popen([node.binary, "flush", "--wait", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "FOREBAY_SOCKET": str(node.socket_path), **node.env})
    try:
        line = flush.stderr.readline()
        assert "1 failed so far" in line and name + "/k" in line, line
        assert flush.poll() is None
        shaper.reset()
        out, more = flush.communicate(timeout=200)
        assert (flush.returncode, more) == (0, "") and "0 objects" in out
    finally:
        flush.kill()


def test_writers_that_wait_end_with_the_node(new_node, new_shaper, origin, tmp_path):
    """SIGTERM: writers that wait for room are answered 503 and why, and the node ends; what was acknowledged gets to the origin after the
    next start. (Without stopping_soon in back.c they wait for --drain-timeout, here ten minutes.)"""
    node, shaper = new_node(disk=f"{tmp_path}/disk:256MiB", drain_timeout="10m"), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms")
    s3, body, n = node.s3(retries={"max_attempts": 0}, read_timeout=900), os.urandom(16 * 2**20), 0
    down(shaper, match="PUT")
    with pytest.raises(botocore.exceptions.ClientError):
        while n < 64:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n += 1
    node.cli("bucket", "set", name, "retry=1h")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        late = [pool.submit(s3.put_object, Bucket=name, Key=f"late{i}", Body=body) for i in range(3)]
        wait_until(lambda: node.metric("forebay_connections_active", via="http") > len(late), what="writers that wait")
        node.stop()
        for one in late:
            refused = one.exception(timeout=200)
            assert refused.response["ResponseMetadata"]["HTTPStatusCode"] == 503 and "the node is stopping" in str(refused)
    node.start()
    shaper.reset()
    flushed(node, name)
    assert keys_of(origin.s3(), name) == sorted(f"k{i}" for i in range(n))


def test_a_full_disk_makes_writers_wait(new_node, new_shaper, origin, tmp_path):
    """Pins and writes that are not in the origin yet fill the disk, below the watermark: a writer gets a clear error after
    the bucket's `retry`, with a longer one it waits, and goes on as the origin takes what was before it; nothing
    acknowledged goes. (Without back_wait_freed in writer.c and back_layer.c it fails at once.)"""
    node, shaper = new_node(disk=f"{tmp_path}/disk:64MiB"), new_shaper()
    pinned = node.new_bucket(origin)
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms", write_delay="0s")
    fill(types.SimpleNamespace(name=pinned, truth=origin.s3()), 40, size=2**20)
    node.cli("prefetch", "--pin", "--wait", pinned)
    s3, body, n, refused = node.s3(retries={"max_attempts": 0}), os.urandom(4 * 2**20), 0, []
    down(shaper, match="PUT")
    while n < 64 and len(refused) < 3:
        try:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n, refused = n + 1, []
        except botocore.exceptions.ClientError as error:
            refused.append(str(error))
    assert 3 <= n <= 6 and all("have no room" in words for words in refused), (n, refused)
    node.cli("bucket", "set", name, "retry=10m")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        late = [pool.submit(s3.put_object, Bucket=name, Key=f"late{i}", Body=body) for i in range(4)]
        assert concurrent.futures.wait(late, timeout=2).not_done  # seven do not fit
        shaper.reset()
        for one in late:
            one.result()
    for key in [f"k{i}" for i in range(n)] + [f"late{i}" for i in range(4)]:
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == body
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n + 4


def test_a_mount_of_it(away, need_fuse, work):
    """Files written through a mount are durable at close, seen through S3 at once, and get to the origin; rm -r and mv
    work on what is not there yet."""
    node, name, shaper, truth = away
    where = work / (name + "-mount")
    where.mkdir()
    down(shaper, match="PUT")
    node.cli("mount", name, str(where))
    try:
        (where / "d").mkdir()
        for i in range(5):
            (where / "d" / f"f{i}").write_bytes(b"%d" % i)
        os.rename(where / "d" / "f0", where / "moved")
        assert sorted(os.listdir(where / "d")) == ["f1", "f2", "f3", "f4"]
        assert node.s3().get_object(Bucket=name, Key="moved")["Body"].read() == b"0"
        shaper.reset()
        flushed(node, name)
        down(shaper, match="DELETE")
        subprocess.run(["rm", "-r", str(where / "d")], check=True)
        assert os.listdir(where) == ["moved"]
        shaper.reset()
        flushed(node, name)
        assert keys_of(truth, name) == ["moved"]
    finally:
        node.cli("umount", str(where))


def test_a_checkpoint_through_a_mount(away, need_fuse, work):
    """A large file is written, synced, closed and renamed while the origin is away, the node is killed: it is there, once on the disk and
    by one ETag, and gets to the origin. What is read back is never asked of it."""
    node, name, shaper, truth = away
    where, body = work / (name + "-checkpoints"), random_bytes(24 * 2**20 + 5, seed=11)
    where.mkdir()
    down(shaper, match="PUT")
    down(shaper, match="POST")
    node.cli("mount", name, str(where))
    try:
        for i in range(3):  # over the one before it, as programs do
            with open(where / "tmp", "wb") as f:
                f.write(body[i:])
                f.flush()
                os.fsync(f.fileno())
            os.rename(where / "tmp", where / "ckpt")
            assert (where / "ckpt").read_bytes() == body[i:]
        etag = node.s3().head_object(Bucket=name, Key="ckpt")["ETag"]
        assert etag.endswith('-1"')
        node.kill()
        node.start()
        assert node.s3().head_object(Bucket=name, Key="ckpt")["ETag"] == etag
        assert (where / "ckpt").read_bytes() == body[2:]
        files = {p.stat().st_ino for p in (node.data / "cache").rglob("*") if p.is_file() and p.stat().st_size == len(body) - 2}
        assert len(files) == 1
        shaper.reset()
        flushed(node, name)
        assert truth.get_object(Bucket=name, Key="ckpt")["Body"].read() == body[2:]
        assert keys_of(truth, name) == ["ckpt"] and status(node, name)["conflicts"] == 0
        assert node.s3().get_object(Bucket=name, Key="ckpt")["Body"].read() == body[2:]
        assert shaper.stats()["kinds"]["get"]["response_bytes"] == 0
    finally:
        node.cli("umount", str(where))


def test_a_listing_that_is_overtaken(away):
    """What gets to the origin while the origin's answer to a listing is on its way is in the listing all the same."""
    node, name, shaper, truth = away
    s3 = node.s3()
    truth.put_object(Bucket=name, Key="gone", Body=b"old")
    down(shaper, match="PUT")
    down(shaper, match="DELETE")
    s3.put_object(Bucket=name, Key="k", Body=b"here")
    s3.delete_object(Bucket=name, Key="gone")
    shaper.fault("stall", match="list-type", at="0", for_="5s")
    before = shaper.stats()["kinds"]["list"]["requests"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        listing = pool.submit(keys_of, s3, name)
        wait_until(lambda: shaper.stats()["kinds"]["list"]["requests"] > before, what="the listing asked")
        time.sleep(1)  # the origin has answered; the proxy holds that back
        shaper.reset()
        flushed(node, name)
        assert listing.result() == ["k"]


def test_other_metadata_of_the_same_bytes(away):
    """The first write got to the origin and its answer was lost: a second one of the same bytes is not taken for it."""
    node, name, shaper, truth = away
    s3 = node.s3()
    shaper.fault("reset", match="PUT", count="1")
    shaper.fault("status:503", match="HEAD", skip="1", count="1000000")
    s3.put_object(Bucket=name, Key="k", Body=b"same", ContentType="text/a", Metadata={"v": "1", "w": "1"})
    wait_until(lambda: keys_of(truth, name) == ["k"], what="the first one at the origin")
    s3.put_object(Bucket=name, Key="k", Body=b"same", ContentType="text/b", Metadata={"v": "2"})
    shaper.reset()
    flushed(node, name)
    at = truth.head_object(Bucket=name, Key="k")
    assert (at["ContentType"], at["Metadata"]) == ("text/b", {"v": "2"})
    assert status(node, name)["conflicts"] == 0 and keys_of(truth, name) == ["k"]


def test_a_write_that_arrives_late_is_still_ours(away):
    """The first write seems to be lost, and arrives just before the second one, which is refused then: that is our own
    doing and no conflict, and the second one gets there."""
    node, name, shaper, truth = away
    s3 = node.s3()
    truth.put_object(Bucket=name, Key="k", Body=b"base")
    shaper.fault("status:503", match="PUT", count="1")
    shaper.fault("status:503", match="HEAD", skip="1", count="1000000")
    s3.put_object(Bucket=name, Key="k", Body=b"first")
    wait_until(lambda: status(node, name)["failing"] == 1, what="the first one tried")
    s3.put_object(Bucket=name, Key="k", Body=b"second")
    time.sleep(1)  # tries that fail at the question: the pauses between them get longer
    os.kill(node.pid, signal.SIGSTOP)  # no try between the two
    shaper.reset()
    shaper.fault("status:412", match="PUT", count="1")
    os.kill(node.pid, signal.SIGCONT)
    wait_until(lambda: "412" in status(node, name)["error"], what="the second one refused")
    truth.put_object(Bucket=name, Key="k", Body=b"first")
    flushed(node, name)
    assert truth.get_object(Bucket=name, Key="k")["Body"].read() == b"second"
    assert status(node, name)["conflicts"] == 0 and keys_of(truth, name) == ["k"]


def tried_twice(node, name):
    """Waits for two more answers to PUTs of the bucket. The second one is to a PUT that began after this call."""
    def answers():
        return sum(v for (metric, labels), v in node.metrics().items() if metric == "forebay_origin_requests_total" and
                   {("bucket", name), ("op", "put")} <= set(labels))

    def again():
        node.cli("flush", name)  # what failed is tried now
        return answers() >= enough

    enough = answers() + 2
    wait_until(again, what="the origin asked twice more")


def test_several_writes_that_arrive_late_are_still_ours(away):
    """Four writes of one key are sent, one after another, and seem to be lost. Whichever of them arrives late, and after
    a restart: it is our own, no conflict, and the last one gets there."""
    node, name, shaper, truth = away
    s3 = node.s3()
    truth.put_object(Bucket=name, Key="k", Body=b"base")
    shaper.fault("status:503", match="PUT", count="1000000")
    for i in range(4):
        s3.put_object(Bucket=name, Key="k", Body=b"version %d" % i)
        tried_twice(node, name)
    for late in (0, 2, 1):
        truth.put_object(Bucket=name, Key="k", Body=b"version %d" % late)
        tried_twice(node, name)
        assert status(node, name)["conflicts"] == 0
    node.restart()
    assert node.s3().get_object(Bucket=name, Key="k")["Body"].read() == b"version 3"
    truth.put_object(Bucket=name, Key="k", Body=b"version 0")
    shaper.reset()
    flushed(node, name)
    assert truth.get_object(Bucket=name, Key="k")["Body"].read() == b"version 3"
    assert status(node, name)["conflicts"] == 0 and keys_of(truth, name) == ["k"]


@pytest.mark.parametrize("directory", [False, True])
def test_a_rename_takes_no_other_write_with_it(away, need_fuse, work, directory):
    """Of a file that is written again while it, or its directory, is renamed, the last write is under the new name."""
    node, name, _, _ = away
    where, s3, stop = work / (name + "-rename"), node.s3(), threading.Event()
    where.mkdir()
    node.cli("mount", name, str(where))
    old, leaf = ("d", "d/k") if directory else ("k", "k")

    def rename():
        n = 0
        while not stop.is_set():
            n += 1  # also after an error, which may leave both names
            try:
                os.rename(where / old, where / f"moved{n}")
            except OSError:
                time.sleep(0.001)

    renamer = threading.Thread(target=rename)
    renamer.start()
    try:
        for i in range(20):
            for part in "abc":
                s3.put_object(Bucket=name, Key=leaf, Body=f"{i}{part}".encode())
            wait_until(lambda: leaf not in keys_of(s3, name), what="it renamed")
        stop.set()
        renamer.join()
        bodies = {s3.get_object(Bucket=name, Key=k)["Body"].read().decode() for k in keys_of(s3, name)}
        assert {f"{i}c" for i in range(20)} <= bodies
    finally:
        stop.set()
        renamer.join()
        node.cli("umount", str(where))


def test_copies_and_renames_move_no_bytes(away):
    """What is copied or renamed before it is in the origin has its bytes on the disk once, also after a kill; they stay as long as
    one of its names does, and go when the origin has the last."""
    node, name, shaper, truth = away
    s3, body = node.s3(), random_bytes(6 * 2**20, seed=7)

    def extents():
        return [p for p in node.data.rglob("hard/*/*") if p.is_file() and p.stat().st_size == len(body)]

    down(shaper, match="PUT")
    down(shaper, match="POST")
    s3.put_object(Bucket=name, Key="a", Body=body, Metadata={"k": "v"})
    for source, target in (("a", "b"), ("b", "c"), ("a", "b"), ("c", "d")):
        s3.copy_object(Bucket=name, Key=target, CopySource={"Bucket": name, "Key": source})
    s3.delete_object(Bucket=name, Key="a")
    assert len(extents()) == 1
    node.kill()
    node.start()
    s3 = node.s3()
    s3.put_object(Bucket=name, Key="d", Body=b"something else")
    s3.delete_object(Bucket=name, Key="b")
    assert len(extents()) == 1
    got = s3.get_object(Bucket=name, Key="c")
    assert (got["Body"].read(), got["Metadata"]) == (body, {"k": "v"})
    shaper.reset()
    flushed(node, name)
    assert truth.get_object(Bucket=name, Key="c")["Body"].read() == body
    assert keys_of(truth, name) == ["c", "d"]
    wait_until(lambda: extents() == [], what="the bytes went")


def test_an_origin_that_hangs_keeps_no_other_bucket(away, origin):
    """Every try at one origin takes its whole timeout: writes of another bucket get to theirs all the same."""
    node, _, shaper, truth = away
    n = 64
    stuck = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="1s", **{"origin.timeout": "20s"})
    other = node.new_bucket(origin, write="back")
    shaper.fault("stall", match="PUT", at="0", count="1000000")
    shaper.fault("stall", match="HEAD", at="0", skip=str(n), count="1000000")  # the first ones come with the writes
    s3 = node.s3()
    for i in range(n):
        s3.put_object(Bucket=stuck, Key=f"k{i}", Body=b"x")
    s3.put_object(Bucket=other, Key="k", Body=b"y")
    wait_until(lambda: status(node, other)["objects"] == 0, what="the other bucket's write at its origin")
    assert truth.get_object(Bucket=other, Key="k")["Body"].read() == b"y"
    assert status(node, stuck)["objects"] > 0
