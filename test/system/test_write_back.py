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

import botocore.exceptions
import pytest

from harness import files_below, random_bytes, wait_until
from test_jobs import keys_of
from test_jobs_export import uploads_of
from written_back import away, down, flushed, status  # noqa: F401


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
    # The node has the answer, and with that its record: one that is killed between the two leaves the upload.
    wait_until(lambda: shaper.stats()["faults_injected"] > 0, what="a part on its way")
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
    [extent] = [path for path, stat in files_below(node.data / "cache" / "hard").items() if stat.st_size == len(body)]
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


def test_what_was_heard_outlives_a_validate_of_another_bucket(away, origin):
    """What a node has heard of the objects of a bucket it knows while the origin is away, also when another bucket is validated meanwhile:
    writing over that, or removing it, is no conflict. (Fails where mirror_forget_bucket forgets what is remembered of all buckets.)"""
    node, name, shaper, truth = away
    other = node.new_bucket(origin)
    node.cli("bucket", "set", name, "cache=never")
    for key in ("written", "removed"):
        truth.put_object(Bucket=name, Key=key, Body=b"old")
        assert node.s3().get_object(Bucket=name, Key=key)["Body"].read() == b"old"
    down(shaper)
    node.cli("validate", other, "--wait")
    node.s3().put_object(Bucket=name, Key="written", Body=b"new")
    node.s3().delete_object(Bucket=name, Key="removed")
    shaper.reset()
    flushed(node, name)
    assert status(node, name)["conflicts"] == 0 and keys_of(truth, name) == ["written"]
    assert truth.get_object(Bucket=name, Key="written")["Body"].read() == b"new"


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
    down(shaper)  # else it may look between the two: the object gone, and the bucket there
    truth.delete_object(Bucket=name, Key="k")
    truth.delete_bucket(Bucket=name)
    shaper.reset()
    wait_until(lambda: "bucket is not there" in status(node, name)["error"], what=lambda: f"the other failure: {status(node, name)}")
    truth.create_bucket(Bucket=name)
    truth.put_object(Bucket=name, Key="k", Body=b"here")
    flushed(node, name)
    assert keys_of(truth, name) == []
    s3.put_object(Bucket=name, Key="k", Body=b"again")
    flushed(node, name)
    truth.delete_object(Bucket=name, Key="k")
    s3.delete_object(Bucket=name, Key="k")  # gone there already, in a bucket that is there: nothing is left to do
    flushed(node, name)


def test_a_version_is_found_by_the_etag_that_its_writer_was_told(new_node, tmp_path):
    """An origin that gives an object another ETag than it had here breaks no reader's conditions: the earlier one means the same
    version, in GET, HEAD and as the source of a copy, until another one is there. (Seen to fail without object_other_etag.)"""
    node, name, body = new_node(), "found", b"0123456789"
    (tmp_path / "origin").mkdir()
    node.create_bucket(name, f"file://{tmp_path}/origin", write="back")
    s3 = node.s3()

    def refused(call, **how):
        with pytest.raises(botocore.exceptions.ClientError) as e:
            call(Bucket=name, **how)
        return e.value.response["ResponseMetadata"]["HTTPStatusCode"]

    told = s3.put_object(Bucket=name, Key="k", Body=body)["ETag"]
    flushed(node, name)
    wait_until(lambda: s3.head_object(Bucket=name, Key="k")["ETag"] != told, what="the origin's ETag")
    assert s3.get_object(Bucket=name, Key="k", IfMatch=told, Range="bytes=3-5")["Body"].read() == b"345"
    assert s3.head_object(Bucket=name, Key="k", IfMatch=told)["ContentLength"] == len(body)
    assert refused(s3.get_object, Key="k", IfNoneMatch=told) == 304
    s3.copy_object(Bucket=name, Key="copy", CopySource=f"{name}/k", CopySourceIfMatch=told)
    assert s3.get_object(Bucket=name, Key="copy")["Body"].read() == body
    s3.put_object(Bucket=name, Key="k", Body=b"another", IfMatch=told)  # as writes have it
    for when in ("here", "in the origin"):
        assert refused(s3.get_object, Key="k", IfMatch=told) == 412, when
        assert s3.get_object(Bucket=name, Key="k", IfNoneMatch=told)["Body"].read() == b"another", when
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
    shaper.fault("status:412", match="PUT", count="1000000")
    os.kill(node.pid, signal.SIGCONT)
    wait_until(lambda: "412" in status(node, name)["error"], what="the second one refused")
    truth.put_object(Bucket=name, Key="k", Body=b"first")
    shaper.reset()
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


def test_copies_and_renames_move_no_bytes(away):
    """What is copied or renamed before it is in the origin has its bytes on the disk once, also after a kill; they stay as long as
    one of its names does, and go when the origin has the last."""
    node, name, shaper, truth = away
    s3, body = node.s3(), random_bytes(6 * 2**20, seed=7)

    def extents():
        return [path for path, stat in files_below(node.data / "cache" / "hard").items() if stat.st_size == len(body)]

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


def test_uploads_that_take_long_keep_no_other_bucket(away, origin):
    """Uploads of one bucket that are under way for minutes, as of large bodies, leave threads for what another bucket has, however many wait.
    (Fails where the first in the queue is next, whoever's it is.)"""
    node, _, shaper, truth = away
    n = 20
    slow = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", write_delay="0s", **{"origin.timeout": "10m"})
    other = node.new_bucket(origin, write="back", write_delay="0s")
    s3 = node.s3()
    for i in range(100):  # until so many are sent at once
        s3.put_object(Bucket=slow, Key=f"before{i}", Body=b"x")
    flushed(node, slow)
    shaper.fault("stall", match="PUT", at="0", count="1000000")
    for i in range(n):
        s3.put_object(Bucket=slow, Key=f"k{i}", Body=b"x")
    wait_until(lambda: shaper.stats()["in_flight"] == 8, what="uploads are under way")
    for i in range(3):
        s3.put_object(Bucket=other, Key=f"k{i}", Body=b"y")
    wait_until(lambda: status(node, other)["objects"] == 0, what="the other bucket's writes at its origin")
    assert truth.get_object(Bucket=other, Key="k2")["Body"].read() == b"y"
    assert status(node, slow)["objects"] == n
