"""What changes at the origin behind the node's back: asked for on demand, and told by notifications."""

import datetime
import hashlib
import itertools
import json
import os
import re
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import botocore.exceptions
import pytest

import origins
from harness import scratch_bucket, wait_until
from keyorigin import Handler, KeyOrigin, Object
from test_jobs import checked, keys_of

KEYS = ["d/same", "d/changed ü", "d/gone", "other"]


@pytest.fixture
def stale(new_node, origin):
    """A bucket that never asks by itself, with everything cached, and then changed at its origin."""
    node = new_node()
    name = node.new_bucket(origin, validate="never", **{"events.token": "hush"})
    truth, s3 = origin.s3(), node.s3()
    for key in KEYS:
        truth.put_object(Bucket=name, Key=key, Body=b"old " + key.encode())
        s3.get_object(Bucket=name, Key=key)["Body"].read()
    assert keys_of(s3, name) == sorted(KEYS)
    truth.put_object(Bucket=name, Key="d/changed ü", Body=b"new")
    truth.delete_object(Bucket=name, Key="d/gone")
    truth.put_object(Bucket=name, Key="d/added", Body=b"added")
    assert s3.get_object(Bucket=name, Key="d/changed ü")["Body"].read().startswith(b"old")
    assert keys_of(s3, name) == sorted(KEYS)
    return node, name, truth


def post(node, name, body, token="hush", method="POST"):
    """POST of an event; gives (status, answer)."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + token} if token else {}
    request = urllib.request.Request(f"{node.endpoint}/-/api/v1/events/{name}", data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=200) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def record(event, bucket, key, etag=None, time=None):
    thing = {"key": key, "size": 1, **({"eTag": etag} if etag else {})}
    when = {"eventTime": time.strftime("%Y-%m-%dT%H:%M:%S.000Z")} if time else {}
    return {"eventVersion": "2.1", "eventName": event, **when, "s3": {"bucket": {"name": bucket}, "object": thing}}


FORMER = {"ContentType": "text/former", "Metadata": {"colour": "red"}}
LATTER = {"ContentType": "text/latter", "Metadata": {"taste": "sweet"}, "CacheControl": "no-store", "ContentLanguage": "en"}


def shown(answer):
    """What an answer to GET or HEAD says of an object but its bytes."""
    return {name: answer.get(name) for name in (*LATTER, "LastModified", "ETag")}


def replace_attributes(truth, name, key, body):
    """Other attributes at the origin for the same bytes and ETag, so much later that seconds tell; gives what it says of them."""
    before = truth.head_object(Bucket=name, Key=key)

    def much_later():
        truth.put_object(Bucket=name, Key=key, Body=body, **LATTER)
        return truth.head_object(Bucket=name, Key=key)["LastModified"] - before["LastModified"] > datetime.timedelta(seconds=3)
    wait_until(much_later, what="the origin's clock went on")
    now = truth.head_object(Bucket=name, Key=key)
    assert now["ETag"] == before["ETag"] and now["Metadata"] == LATTER["Metadata"]
    return shown(now)


@pytest.fixture
def same_bytes(new_node, origin):
    """same_bytes(**properties) gives (node, bucket, origin's client, bytes, get) of a bucket with these properties, in which `k` is
    cached; get() reads it, checks that its bytes came from the cache, and gives what is shown of it."""
    node, body = new_node(), b"the same bytes" * 1000

    def make(**properties):
        name, truth = node.new_bucket(origin, **properties), origin.s3()
        truth.put_object(Bucket=name, Key="k", Body=body, **FORMER)
        fetched = lambda: node.metric("forebay_origin_requests_total", bucket=name, op="get")

        def get():
            before = fetched()
            answer = node.s3().get_object(Bucket=name, Key="k")
            assert answer["Body"].read() == body
            assert before == 0 or fetched() == before
            return shown(answer)
        assert get() == get() == shown(truth.head_object(Bucket=name, Key="k"))
        return node, name, truth, body, get
    return make


def test_validate_finds_what_changed(stale):
    """validate drops what the origin changed or removed, keeps the rest, and shows what was added at once."""
    node, name, truth = stale
    s3 = node.s3()
    job = json.loads(node.cli("validate", "--wait", "--json", name + "/d/").stdout)
    assert (job["done_objects"], job["skipped_objects"], job["failed_objects"]) == (3, 1, 0)
    assert checked(node, name)["cached_objects"] == 2
    assert keys_of(s3, name) == sorted(["d/same", "d/changed ü", "d/added", "other"])
    assert s3.get_object(Bucket=name, Key="d/changed ü")["Body"].read() == b"new"
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=name, Key="d/gone")
    assert "3 unchanged" in node.cli("validate", "--wait", name).stdout


def test_after_power_loss_the_origin_is_asked_once(stale):
    """Power loss can bring back what was replaced or removed last. So the origin is asked about what was cached before,
    once, whatever `validate` says; after a mere kill it is not."""
    node, name, truth = stale
    body = lambda key: node.s3().get_object(Bucket=name, Key=key)["Body"].read()
    asked = lambda: node.metric("forebay_origin_requests_total", bucket=name, op="head")
    node.stop()  # what is cached is in the index
    node.start()
    node.kill()
    node.start()
    assert body("d/changed ü").startswith(b"old") and asked() == 0
    node.kill()
    for mark in node.data.rglob("forebay-disk"):
        mark.write_text(re.sub(r"(?m)^boot .*", "boot 00000000-0000-0000-0000-000000000000", mark.read_text()))
    node.start()
    assert body("d/changed ü") == b"new"
    assert body("d/same") == b"old d/same"
    with pytest.raises(node.s3().exceptions.NoSuchKey):
        body("d/gone")
    before = asked()
    assert before > 0
    truth.put_object(Bucket=name, Key="d/same", Body=b"newer")
    assert body("d/same") == b"old d/same" and asked() == before


def test_validate_with_an_origin_that_is_away(new_node, new_shaper, origin):
    """What cannot be asked is neither dropped nor called valid: the job is partly failed."""
    node, shaper = new_node(), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, retry="0s", validate="never")
    for i in range(3):
        origin.s3().put_object(Bucket=name, Key=f"k{i}", Body=b"x")
    node.cli("prefetch", "--wait", name)
    shaper.fault("status:500", count="100", match="/k1")
    done = node.cli("validate", "--wait", "--json", name, check=False)
    job = json.loads(done.stdout)
    assert (done.returncode, job["failed_objects"], job["skipped_objects"]) == (3, 1, 2)
    assert node.cli("cat", name + "/k1").stdout == "x"


def test_events_invalidate_at_once(stale):
    """A notification of a change or removal shows at the next read; one of the version that is cached, of another
    bucket, or of another kind changes nothing."""
    node, name, truth = stale
    s3 = node.s3()
    same = truth.head_object(Bucket=name, Key="d/same")["ETag"].strip('"')
    before = checked(node, name)["cached_objects"]
    assert post(node, name, {"Records": [record("ObjectCreated:Put", name, "d/same", same),
                                         record("ObjectCreated:Put", "elsewhere", "other"),
                                         record("ObjectTagging:Put", name, "other")]}) == (200, {"changed": 0, "ignored": 3})
    assert checked(node, name)["cached_objects"] == before
    status, answer = post(node, name, {"Records": [record("s3:ObjectCreated:Put", name, "d/changed+%C3%BC", "x"),
                                                   record("ObjectRemoved:Delete", name, "d/gone"),
                                                   record("ObjectCreated:CompleteMultipartUpload", name, "d/added")]})
    assert (status, answer) == (200, {"changed": 3, "ignored": 0})
    assert s3.get_object(Bucket=name, Key="d/changed ü")["Body"].read() == b"new"
    assert s3.get_object(Bucket=name, Key="d/added")["Body"].read() == b"added"
    assert keys_of(s3, name) == sorted(["d/same", "d/changed ü", "d/added", "other"])


def test_listings_have_an_age_of_their_own(new_node, origin):
    """validate.listing makes listings younger or older than what is cached: with validate=never a name that is new at the origin
    is listed, and the bytes stay as they were; without it again it is not. (With the ages of objects in mirror_listing_is_fresh
    it is not listed.)"""
    node = new_node()
    name = node.new_bucket(origin, **{"validate": "never", "validate.listing": "always"})
    s3, truth = node.s3(), origin.s3()
    truth.put_object(Bucket=name, Key="a", Body=b"old")
    assert keys_of(s3, name) == ["a"] and s3.get_object(Bucket=name, Key="a")["Body"].read() == b"old"
    truth.put_object(Bucket=name, Key="b", Body=b"new")
    assert keys_of(s3, name) == ["a", "b"]
    # Counted when the request has ended, which may be after its bytes were passed on.
    wait_until(lambda: node.metric("forebay_origin_requests_total", bucket=name, op="get") == 1, what="the first read is counted")
    assert s3.get_object(Bucket=name, Key="a")["Body"].read() == b"old"
    assert node.metric("forebay_origin_requests_total", bucket=name, op="get") == 1
    node.cli("bucket", "set", name, "validate.listing=")
    assert keys_of(s3, name) == ["a", "b"]
    truth.put_object(Bucket=name, Key="c", Body=b"new")
    assert keys_of(s3, name) == ["a", "b"]
    refused = node.cli("bucket", "set", name, "validate.listing=often", check=False)
    assert refused.returncode != 0 and "validate.listing 'often'" in refused.stderr and len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("told, asks", [
    (["own"], 0), ([], 0), (["own", "own"], 1), (["other"], 1), (["own", "other"], 1), (["gone"], 1)])
def test_events_before_their_writer_is_answered(new_node, told, asks):
    """An event of the version that is being written through the node, which comes before the origin has answered the writer,
    takes nothing from the cache; one of another version does, and so does a second one, of which nobody knows whose it is.
    (Without the note in forget_told_attributes of object.c the first is asked for again, without the ETag in
    object_making_begin_own one of another version takes nothing either.)"""
    node = new_node()
    with KeyOrigin() as origin:
        node.create_bucket("told", "s3://told", validate="never", **{**origin.properties(), "events.token": "hush"})
        body = b"what is written"
        tags = {"own": hashlib.md5(body).hexdigest(), "other": hashlib.md5(b"other").hexdigest(), "gone": None}

        def tell(bucket, key):
            for which in told:
                event = "ObjectRemoved:Delete" if which == "gone" else "ObjectCreated:Put"
                said = post(node, "told", {"Records": [record(event, bucket, key, tags[which])]})
                assert said == (200, {"changed": 1, "ignored": 0})
        origin.before_put = tell
        s3 = node.s3()
        s3.put_object(Bucket="told", Key="k", Body=body)
        assert s3.get_object(Bucket="told", Key="k")["Body"].read() == body
        assert sum(method == "GET" for method, path, _ in origin.requests if path == "/told/k") == asks


@pytest.fixture
def minio(new_node, tmp_path):
    """(node, MinIO), whose webhook is the node."""
    if reason := origins.Minio.missing():
        pytest.skip("not run: " + reason)
    node = new_node()
    with origins.Minio(tmp_path / "minio", node) as running:
        yield node, running


@pytest.mark.parametrize("prefix", ["", "below ü"])
def test_events_of_minio(minio, prefix):
    """What MinIO's own webhook sends of keys with blanks, plus signs, percent signs and letters beyond ASCII makes the node see
    at once what was written, put together of parts, removed, one or many at a time, and added, although it would ask by itself
    in an hour. What was written through the node stays cached. (Without object_forget_told in take_event of fresh.c nothing
    changes, without `plus_is_space` in own_key no key with a blank.)"""
    node, origin = minio
    name = node.new_bucket(origin, prefix=prefix, validate="ttl:1h", **{"events.token": origin.token})
    truth, s3, at = origin.s3(), node.s3(), prefix and prefix + "/"
    keys = ["plain", "d/with blanks", "d/a+b", "d/ü ö/+", "d/50%41", "d/&=?#;", "d/parts", "gone", "d/gone ü+", "gone too"]
    for key in keys:
        truth.put_object(Bucket=name, Key=at + key, Body=b"old " + key.encode())
    heard = lambda: node.metric("forebay_requests_total", op="events")
    wait_until(lambda: heard() >= len(keys), what="all that was written before is told")
    read = lambda key: s3.get_object(Bucket=name, Key=key)["Body"].read()
    s3.put_object(Bucket=name, Key="own ü", Body=b"of our own")
    wait_until(lambda: heard() >= len(keys) + 1, what="what the node wrote is told")
    assert checked(node, name + "/own")["percent"] == 100.0
    assert [read(key) for key in keys] == [b"old " + key.encode() for key in keys]
    assert keys_of(s3, name) == sorted([*keys, "own ü"])

    for key in keys[:6]:
        truth.put_object(Bucket=name, Key=at + key, Body=b"new " + key.encode())
        wait_until(lambda: read(key) == b"new " + key.encode(), what=f"the new {key!r}")
    upload = truth.create_multipart_upload(Bucket=name, Key=at + "d/parts")["UploadId"]
    part = truth.upload_part(Bucket=name, Key=at + "d/parts", UploadId=upload, PartNumber=1, Body=b"one part")
    truth.complete_multipart_upload(Bucket=name, Key=at + "d/parts", UploadId=upload,
                                    MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    wait_until(lambda: read("d/parts") == b"one part", what="what was put together")

    def is_gone(key):
        try:
            return read(key) is None
        except s3.exceptions.NoSuchKey:
            return True
    truth.delete_object(Bucket=name, Key=at + "gone")
    truth.delete_objects(Bucket=name, Delete={"Objects": [{"Key": at + key} for key in keys[8:]]})
    for key in keys[7:]:
        wait_until(lambda: is_gone(key), what=f"{key!r} is gone")
    truth.put_object(Bucket=name, Key=at + "d/added", Body=b"added")
    wait_until(lambda: "d/added" in keys_of(s3, name), what="the new name is listed")
    assert keys_of(s3, name) == sorted([*keys[:7], "d/added", "own ü"])


def test_events_below_a_prefix(new_node, origin):
    """Of a bucket before a folder of the origin's, keys are those below it; others are ignored."""
    node = new_node()
    name = node.new_bucket(origin, prefix="in/side", validate="never", **{"events.token": "hush"})
    truth = origin.s3()
    truth.put_object(Bucket=name, Key="in/side/k", Body=b"old")
    assert node.s3().get_object(Bucket=name, Key="k")["Body"].read() == b"old"
    truth.put_object(Bucket=name, Key="in/side/k", Body=b"new")
    for key, expected in (("k", 0), ("in/side", 0), ("in/sidek", 0), ("in/side/k", 1)):
        assert post(node, name, {"Records": [record("ObjectCreated:Put", name, key)]})[1]["changed"] == expected
    assert node.s3().get_object(Bucket=name, Key="k")["Body"].read() == b"new"


def test_events_from_strangers_are_refused(stale, origin):
    """Without the bucket's token, without a token of the bucket, with other methods, with what is no event. Strangers hear the same of each
    name, also of one that no bucket has. (Seen to be told 404 of that where the bucket is looked for before the token.)"""
    node, name, _ = stale
    good = {"Records": [record("ObjectRemoved:Delete", name, "other")]}
    silent, scratch = node.new_bucket(origin), scratch_bucket(node)
    before = checked(node, name)["cached_objects"]
    refusals = [post(node, name, good, token=None), post(node, name, good, token="hush!"), post(node, silent, good, token=""),
                post(node, silent, good), post(node, scratch, good), post(node, "no-such-bucket", good), post(node, "", good)]
    assert [status for status, _ in refusals] == [403] * 7 and all(answer == refusals[0][1] for _, answer in refusals)
    assert post(node, name, good, method="PUT")[0] == 405
    for bad in (b"", b"{", b"[]", b"{}", b'{"Records": 7}', b'{"Records": [7, {"s3": []}, {"eventName": 3}]}'):
        status, answer = post(node, name, bad)
        assert status == 400 or answer["changed"] == 0, bad
    assert post(node, name, b'{"Records": ' + b"[" * 2000 + b"]" * 2000 + b"}")[0] == 400  # deeper than a thread's stack
    assert post(node, name, b" " * (5 * 2**20))[0] == 413
    host = urllib.parse.urlsplit(node.endpoint)
    with socket.create_connection((host.hostname, host.port), timeout=200) as connection:  # nothing is read of who has no token
        connection.sendall(f"POST /-/api/v1/events/{name} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer hush!\r\n"
                           "Content-Length: 4000000\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403 ")
    assert checked(node, name)["cached_objects"] == before
    assert "hush" not in node.cli("bucket", "show", name).stdout
    assert "hush" not in node.log()


def test_attributes_that_changed_alone(same_bytes):
    """With validate=always each read asks the origin once, and shows the type, metadata and time that the same bytes have
    there now, without fetching them again; also after a copy of the object onto itself."""
    node, name, truth, body, get = same_bytes(validate="always")
    now = replace_attributes(truth, name, "k", body)
    assert get() == now
    asked = lambda: node.metric("forebay_origin_requests_total", bucket=name, op="head")
    before = asked()
    truth.copy_object(Bucket=name, Key="k", CopySource={"Bucket": name, "Key": "k"}, MetadataDirective="REPLACE", **FORMER)
    assert get() == shown(truth.head_object(Bucket=name, Key="k"))
    assert get()["Metadata"] == FORMER["Metadata"]
    assert asked() == before + 2


def test_attributes_that_a_head_has_heard_of(same_bytes):
    """What HEAD has shown of an object GET shows, too."""
    node, name, truth, body, get = same_bytes(validate="ttl:1s")
    now = replace_attributes(truth, name, "k", body)
    wait_until(lambda: shown(node.s3().head_object(Bucket=name, Key="k")) == now, what="the time to live is over")
    assert get() == now


def test_listings_do_not_confirm_attributes(same_bytes):
    """A listing that tells of another time of the same version keeps nobody from asking when the time to live is over."""
    node, name, truth, body, get = same_bytes(validate="ttl:1s")
    now, pages = replace_attributes(truth, name, "k", body), itertools.count()

    def listed_and_read():
        listed = node.s3().list_objects_v2(Bucket=name, StartAfter=f"a{next(pages)}")  # not a page that is remembered
        return [o["Key"] for o in listed["Contents"]] == ["k"] and get() == now
    wait_until(listed_and_read, what="the new attributes are shown")


def test_validate_finds_attributes_that_changed_alone(same_bytes):
    """So does `forebay validate`: what is cached stays, with its attributes of now."""
    node, name, truth, body, get = same_bytes(validate="never")
    before, now = get(), replace_attributes(truth, name, "k", body)
    assert get() == before
    job = json.loads(node.cli("validate", "--wait", "--json", name).stdout)
    assert (job["done_objects"], job["skipped_objects"]) == (1, 1)
    assert get() == now


def test_events_of_attributes_that_changed_alone(same_bytes):
    """An event of the same version at another time has its attributes asked for again, also after a kill; one of the time
    that is known changes nothing."""
    node, name, truth, body, get = same_bytes(validate="never", **{"events.token": "hush"})
    before = get()
    etag = before["ETag"].strip('"')
    tell = lambda time: post(node, name, {"Records": [record("ObjectCreated:Put", name, "k", etag, time)]})[1]["changed"]
    now = replace_attributes(truth, name, "k", body)
    assert tell(before["LastModified"]) == 0 and get() == before
    assert tell(now["LastModified"]) == 1
    node.kill()
    node.start()
    assert get() == now
    assert tell(now["LastModified"]) == 0 and checked(node, name)["cached_objects"] == 1


def test_killed_while_a_bucket_gets_another_origin(new_node, new_mount, need_fuse, tmp_path):
    """kill -9 as soon as anybody is told of the new origin, while what is cached of the former one is being dropped: with
    validate=never nothing of that is ever read again, by S3 or by a mount that lived on. Back and forth."""
    node = new_node()
    places = [tmp_path / "one", tmp_path / "two"]
    for i, place in enumerate(places):
        place.mkdir()
        for k in range(1500):
            (place / f"k{k}").write_text(f"{i} is where k{k} is")
        (place / f"only-{i}").write_text("here")
    node.cli("bucket", "create", "data", "--origin", f"file://{places[0]}", "--set", "validate=never")
    mount = new_mount(node, "data", read_only=True)
    names, own = [f"k{k}" for k in range(1500)], [0, 700, 1499]

    def expect(s3, i):
        """What both ways show is of the place i; a mount may show for a second what it was told before."""
        for name in names[::50]:
            assert s3.get_object(Bucket="data", Key=name)["Body"].read().decode() == f"{i} is where {name} is"
        assert f"only-{i}" in keys_of(s3, "data") and f"only-{1 - i}" not in keys_of(s3, "data")
        for k in own:
            wait_until(lambda: (mount.path / f"k{k}").read_text() == f"{i} is where k{k} is", what="the mount has the new bytes")
        wait_until(lambda: (mount.path / f"only-{i}").exists() and not (mount.path / f"only-{1 - i}").exists(), what="and its names")
        wait_until(lambda: f"only-{1 - i}" not in os.listdir(mount.path), what="and its listings")

    for turn in range(4):
        now, then = turn % 2, 1 - turn % 2
        s3 = node.s3()
        for name in names:
            s3.get_object(Bucket="data", Key=name)["Body"].read()
        expect(s3, now)
        with pytest.raises(s3.exceptions.NoSuchKey):
            s3.get_object(Bucket="data", Key=f"only-{then}")
        change = subprocess.Popen([node.binary, "bucket", "set", "data", f"origin=file://{places[then]}"],
                                  env={**os.environ, "FOREBAY_SOCKET": str(node.socket_path), **node.env},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: str(places[then]) in node.cli("bucket", "show", "data").stdout, what="the change", step=0)
            node.kill()
        finally:
            change.kill()
            change.wait()
        node.start()
        expect(node.s3(), then)


class Told(Handler):
    """Calls `origin.beside(key)` when all of a PUT or DELETE has come, and it was neither carried out nor answered."""

    def body(self):
        data = super().body()
        if self.command == "PUT":
            self.owner.beside(self.key)
        return data

    def do_DELETE(self):
        self.owner.beside(urllib.parse.unquote(self.path.rpartition("/")[2]))
        super().do_DELETE()


@pytest.mark.parametrize("change", ["put", "delete"])
def test_killed_while_what_is_changed_is_read(new_node, change):
    """Somebody reads a key, which is cached by that, while another one changes it through the node, and kill -9 comes when the
    origin has carried the change out and before the node heard of it: whoever reads it after that gets what there is, although
    the bucket never asks by itself. (Without is_changing in object_encode_attr he gets the former bytes, for good.)"""
    node = new_node()
    with KeyOrigin(Told) as origin:
        node.create_bucket("told", "s3://told", validate="never", **origin.properties())
        origin.objects["told", "k"] = Object(b"former")
        read, killed = [], threading.Event()

        def beside(key):
            read.append(node.s3().get_object(Bucket="told", Key=key)["Body"].read())
            read.append(checked(node, "told")["cached_objects"])  # and the index has it
            if change == "put":
                origin.objects["told", key] = Object(b"new")
            else:
                del origin.objects["told", key]
            node.kill()
            killed.set()

        origin.beside = beside
        with pytest.raises((botocore.exceptions.HTTPClientError, botocore.exceptions.ConnectionError)):
            if change == "put":
                node.s3().put_object(Bucket="told", Key="k", Body=b"new")
            else:
                node.s3().delete_object(Bucket="told", Key="k")
        assert killed.wait(200) and read == [b"former", 1]
        origin.beside = lambda key: None
        node.start()
        s3 = node.s3()
        if change == "put":
            assert s3.get_object(Bucket="told", Key="k")["Body"].read() == b"new"
        else:
            with pytest.raises(s3.exceptions.NoSuchKey):
                s3.get_object(Bucket="told", Key="k")
