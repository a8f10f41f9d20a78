"""What the origin does wrong is retried or reported in its own words; never short, mixed or foreign bytes, and none of
it is remembered."""

import concurrent.futures
import contextlib
import http.client
import http.server
import itertools
import json
import os
import threading
import time
import urllib.parse
import urllib.request

import botocore.exceptions
import pytest

import harness

MIB = 1 << 20


@pytest.fixture
def shaped(new_shaper, node, origin):
    """A bucket reached through the shaper, whose faults are told per test; they are borne for a minute."""
    shaper = new_shaper()
    return shaper, node.new_bucket(origin, endpoint=shaper.endpoint)


@pytest.fixture
def impatient(shaped, node):
    """The same, and failures are told soon."""
    node.cli("bucket", "set", shaped[1], "retry=1s")
    return shaped


def get(node, bucket, key):
    return node.s3(retries={"max_attempts": 1}).get_object(Bucket=bucket, Key=key)["Body"].read()


def error_of(node, bucket, key):
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        get(node, bucket, key)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


@pytest.mark.parametrize("kind", ["truncate", "reset", "status:500", "status:503", "stall", "wrong-length"])
def test_a_passing_fault_is_retried_and_the_bytes_are_right(shaped, node, origin, kind):
    shaper, bucket = shaped
    node.cli("bucket", "set", bucket, "origin.timeout=2s")  # for what stalls
    body = harness.random_bytes(12 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    shaper.fault(kind, count=2, match="GET /")
    assert get(node, bucket, "k") == body
    assert shaper.stats()["faults_injected"] >= 1
    assert node.metric("forebay_origin_retries_total", bucket=bucket) >= 1


def test_a_lasting_fault_is_reported_with_the_origins_words_and_not_remembered(impatient, node, origin):
    shaper, bucket = impatient
    body = harness.random_bytes(100_000)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    shaper.fault("status:500", count=1000, match="/k")
    code, message = error_of(node, bucket, "k")
    assert code in ("InternalError", "ServiceUnavailable", "BadGateway") and "500" in message
    shaper.reset()
    assert get(node, bucket, "k") == body


def test_a_body_that_always_breaks_off_gives_an_error_not_a_short_object(impatient, node, origin):
    shaper, bucket = impatient
    body = harness.random_bytes(3 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    shaper.fault("truncate", count=1000, at="0", match="/k")
    with pytest.raises((botocore.exceptions.ClientError, botocore.exceptions.HTTPClientError,
                        botocore.exceptions.IncompleteReadError)):
        get(node, bucket, "k")
    shaper.reset()
    assert get(node, bucket, "k") == body


def test_no_such_key_and_refused_access_are_told_apart(node, origin):
    bucket = node.new_bucket(origin)
    assert error_of(node, bucket, "nothing")[0] == "NoSuchKey"
    # The origin's policy changes under the bucket: wrong keys from now on.
    with node.wire() as connection:
        connection.bucket_set(bucket, {"origin.secret_key": "wrong"})
    code, message = error_of(node, bucket, "other")
    assert code == "AccessDenied" and "SignatureDoesNotMatch" in message


def test_an_origin_that_is_down_is_named_and_cached_bytes_are_still_served(new_node, work, tmp_path):
    with harness.Origin(tmp_path / "origin") as own:
        node = new_node()
        bucket = node.new_bucket(own, retry="1s", validate="ttl:1s")
        own.s3().put_object(Bucket=bucket, Key="cached", Body=b"here")
        own.s3().put_object(Bucket=bucket, Key="cold", Body=b"there")
        assert get(node, bucket, "cached") == b"here"
        own.stop()
        time.sleep(1.2)  # the ttl has passed: the entry must be confirmed, and nobody answers
        assert get(node, bucket, "cached") == b"here"
        code, message = error_of(node, bucket, "cold")
        assert code in ("ServiceUnavailable", "BadGateway", "InternalError")
        assert "onnect" in message


def test_an_origin_that_refuses_connections_for_a_moment_fails_nobody(new_node, tmp_path):
    """The node waits for it, as long as the bucket's `retry` says, also with writes that have a condition, with parts of any size, and
    with the end of an upload. (Fails for what has a condition without origin_set_reach in s3_put.c, for the large part with fits_whole
    in send_part, and for the end without patience_ms in upstream_upload_complete.)"""
    with harness.Origin(tmp_path / "origin") as own:
        node = new_node()
        bucket, s3 = node.new_bucket(own), node.s3()
        body, part = harness.random_bytes(21 * MIB), harness.random_bytes(6 * MIB)
        uploads = {key: s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in ("whole", "more")}
        etag = s3.upload_part(Bucket=bucket, Key="whole", UploadId=uploads["whole"], PartNumber=1, Body=part)["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        own.stop()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(s3.put_object, Bucket=bucket, Key="small", Body=b"new", IfNoneMatch="*"),
                     pool.submit(s3.put_object, Bucket=bucket, Key="large", Body=body, IfNoneMatch="*"),
                     pool.submit(s3.upload_part, Bucket=bucket, Key="more", UploadId=uploads["more"], PartNumber=1, Body=body),
                     pool.submit(s3.complete_multipart_upload, Bucket=bucket, Key="whole", UploadId=uploads["whole"],
                                 MultipartUpload=parts)]
            time.sleep(4)
            own.start()
            for one in asked:
                one.result()
        truth = own.s3()
        for key, data in (("small", b"new"), ("large", body), ("whole", part)):
            assert truth.get_object(Bucket=bucket, Key=key)["Body"].read() == data
        upload = truth.list_multipart_uploads(Bucket=bucket)["Uploads"][0]
        assert len(truth.list_parts(Bucket=bucket, Key="more", UploadId=upload["UploadId"])["Parts"]) == 1


def questions(node, bucket):
    """How many were asked of the origin; one that is asked again is the same."""
    metrics = node.metrics().items()
    asked, again = (sum(value for (found, labels), value in metrics if found == name and ("bucket", bucket) in labels)
                    for name in ("forebay_origin_requests_total", "forebay_origin_retries_total"))
    return asked - again


def test_what_is_cached_is_served_by_all_ways_while_the_origin_is_away(new_node, new_mount, tmp_path):
    """Also to a mount, and to who asks for a head: its `validate` has passed, and nobody answers. The origin is waited for once, and not
    by each reader. So are listings that were read before. (The mount fails without stat_doubted in name_ops.c, and so does the head; the
    listings without upstream_doubt_begin in mirror_list.c, the retries without it in the others.)"""
    with harness.Origin(tmp_path / "origin") as own:
        node = new_node()
        bucket, keys = node.new_bucket(own, retry="3s", validate="ttl:1s"), [f"d/{i}" for i in range(20)]
        for key in keys:
            own.s3().put_object(Bucket=bucket, Key=key, Body=key.encode())
        path = new_mount(node, bucket).path
        assert [(path / key).read_text() for key in keys] == keys

        def listed():
            return len(list((path / "d").iterdir())), len(node.s3().list_objects_v2(Bucket=bucket, Prefix="d/")["Contents"])

        assert listed() == (20, 20)
        own.stop()
        time.sleep(1.2)
        asked, began = questions(node, bucket), time.monotonic()
        for read in (lambda key: (path / key).read_text(), lambda key: get(node, bucket, key).decode()):
            assert [read(key) for key in keys] == keys
            time.sleep(1.2)
        assert all(node.s3().head_object(Bucket=bucket, Key=key)["ContentLength"] == len(key) for key in keys)
        assert listed() == (20, 20)
        # One after all that time, and one in five seconds from then on.
        assert questions(node, bucket) - asked <= 4 + (time.monotonic() - began) / 5


def test_an_object_that_changes_while_it_is_read_gives_an_error_never_a_mixture(new_shaper, node, origin):
    shaper = new_shaper(total="20MB/s")
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s", validate="always")
    old, new = b"o" * (48 * MIB), b"n" * (48 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=old)
    body = node.s3(retries={"max_attempts": 1}).get_object(Bucket=bucket, Key="k")["Body"]
    first = body.read(MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=new)
    rest = b""
    try:
        while True:
            piece = body.read(MIB)
            if not piece:
                break
            rest += piece
    except Exception:  # the connection is cut: what came before must be of the old version all the same
        pass
    got = first + rest
    assert set(got) == {ord("o")}, "bytes of two versions in one read"
    assert len(got) < len(old) or got == old
    assert get(node, bucket, "k") == new


def test_readers_of_one_cold_object_cost_the_origin_its_bytes_once(shaped, node, origin):
    shaper, bucket = shaped
    body = harness.random_bytes(30 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    shaper.reset()
    results = []
    threads = [threading.Thread(target=lambda: results.append(get(node, bucket, "k") == body)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [True] * 8
    assert shaper.stats()["response_bytes"] <= 1.02 * len(body)
    assert shaper.stats()["kinds"]["head"]["requests"] == 0


def test_bytes_are_passed_on_while_parts_arrive_side_by_side(new_shaper, node, origin):
    """The first bytes of a cold object reach its reader long before the last ones have left the origin, and parts come
    over several connections at once."""
    shaper = new_shaper(total="1MB/s")  # half a minute for half of it
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    body = harness.random_bytes(64 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    stream = node.s3().get_object(Bucket=bucket, Key="k")["Body"]
    first = stream.read(64 * 1024)
    assert shaper.stats()["response_bytes"] < len(body) / 2
    shaper.set(total="1GB/s")
    assert first + stream.read() == body
    assert shaper.stats()["max_in_flight"] >= 3


def test_a_flipped_byte_of_a_cached_disk_block_is_found(new_node, origin):
    """A bit flipped in an extent file of what was filled just before kill -9: never served, its block alone is fetched
    again, and that is counted and logged. The kill may come before the index knew of the fill: then with another object."""
    node = new_node(flush_interval="10m")  # what was recorded since the last flush is looked at again
    bucket = node.new_bucket(origin)
    extents = node.data / "cache" / "extents"
    for key in "abcde":
        body = harness.random_bytes(5 * MIB)
        origin.s3().put_object(Bucket=bucket, Key=key, Body=body)
        before = {p for p in extents.rglob("*") if p.is_file()}
        assert get(node, bucket, key) == body
        time.sleep(1)  # the index batch of the fill is written
        node.kill()
        [path] = {p for p in extents.rglob("*") if p.is_file()} - before
        with open(path, "r+b") as f:
            byte = os.pread(f.fileno(), 1, 2 * MIB + 17)[0]
            os.pwrite(f.fileno(), bytes([byte ^ 1]), 2 * MIB + 17)
        node.start()
        is_kept = path.exists()
        assert get(node, bucket, key) == body
        if is_kept:
            break
    assert is_kept
    assert node.metric("forebay_corrupt_blocks_total", found="start") == 1
    number = json.loads(node.cli("bucket", "show", bucket, "--json").stdout)["id"]
    assert f"extent {path.name} of #{number}/{key}: block 2 failed its check" in node.log(), node.log()
    harness.wait_until(lambda: node.metric("forebay_origin_read_bytes_total", bucket=bucket) == MIB, what="one block fetched")


def test_a_cached_file_that_was_cut_is_whole_again_for_all(new_node, origin):
    """The file of a cached object is cut while the node runs: a GET that has begun ends short of what it announced, and
    later ones have every byte, of the end and of what is before it."""
    node = new_node()
    bucket = node.new_bucket(origin)
    body = harness.random_bytes(6 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    assert get(node, bucket, "k") == body
    [path] = [p for p in (node.data / "cache" / "extents").rglob("*") if p.is_file() and p.stat().st_size == len(body)]
    for by in "S3", "library":
        os.truncate(path, 2 * MIB + 17)
        if by == "S3":
            with pytest.raises(botocore.exceptions.BotoCoreError):
                get(node, bucket, "k")
        else:
            assert node.cli("cat", f"{bucket}/k", stdin=b"").stdout == body
        end = node.s3().get_object(Bucket=bucket, Key="k", Range=f"bytes={5 * MIB}-")["Body"].read()
        assert end == body[5 * MIB :]
        assert get(node, bucket, "k") == body


def test_the_check_finds_a_flipped_bit_and_repair_makes_it_fetched_again(new_node, origin):
    node = new_node()
    bucket = node.new_bucket(origin)
    body = harness.random_bytes(5 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    assert get(node, bucket, "k") == body
    number = json.loads(node.cli("bucket", "show", bucket, "--json").stdout)["id"]
    node.stop()
    check = ["store", "check", "--data", node.data]
    assert "0 bad blocks" in node.cli(*check).stdout
    path = next(p for p in (node.data / "cache" / "extents").rglob("*") if p.is_file())
    with open(path, "r+b") as f:
        f.seek(3 * MIB)
        byte = f.read(1)
        f.seek(3 * MIB)
        f.write(bytes([byte[0] ^ 128]))
    found = node.cli(*check, check=False)
    assert found.returncode == 3 and "1 bad blocks" in found.stdout
    assert f"extent {path.name} of #{number}/k: 1 blocks with wrong checksum, the first is 3" in found.stdout
    assert node.cli(*check, "--repair").returncode == 0
    node.start()
    assert get(node, bucket, "k") == body
    # Counted when the request has ended, which may be after its bytes were passed on.
    harness.wait_until(lambda: node.metric("forebay_origin_read_bytes_total", bucket=bucket) == MIB, what="one block fetched")


def test_a_full_disk_serves_without_caching(new_node, origin, tmp_path):
    """The cache's limit is below the object: served, right, and counted as not admitted."""
    node = new_node(disk=f"{tmp_path}/disk:8MiB")
    bucket = node.new_bucket(origin)
    body = harness.random_bytes(20 * MIB)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=body)
    for _ in range(2):
        assert get(node, bucket, "k") == body
    assert node.metric("forebay_not_admitted_total") >= 1


def test_kill_9_during_puts_loses_no_acknowledged_object(new_node, origin):
    """A model: every put that was acknowledged is in the origin, whole, after the node was killed at any time; of one that was
    not, there is all or nothing. Small bodies go to the origin when they are here, large ones while they come."""
    node = new_node()
    bucket = node.new_bucket(origin)
    begun, acknowledged, stop = {}, set(), threading.Event()

    def writer(turn, number):
        s3 = node.s3(retries={"max_attempts": 1})
        for i in itertools.count():
            key, n = f"turn{turn}/w{number}/{i}", 9 * MIB + i if number == 0 else 20_000 + 300_000 * (i % 3)
            begun[key] = harness.random_bytes(n, seed=key)
            try:
                s3.put_object(Bucket=bucket, Key=key, Body=begun[key])
                acknowledged.add(key)
            except Exception:
                return
            if stop.is_set():
                return

    def body_or_none(read):
        try:
            return read()
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == "NoSuchKey"
            return None

    def is_time_to_kill(turn):
        done = [key for key in tuple(acknowledged) if key.startswith(f"turn{turn}/")]
        return len(done) >= 8 and any("/w0/" in key for key in done)

    truth = origin.s3()
    for turn in range(3):
        threads = [threading.Thread(target=writer, args=(turn, n)) for n in range(4)]
        for t in threads:
            t.start()
        harness.wait_until(lambda: is_time_to_kill(turn), 200, "puts acknowledged")
        node.kill()
        stop.set()
        for t in threads:
            t.join()
        stop.clear()
        node.start()
        for key, body in begun.items():
            at_origin = body_or_none(lambda: truth.get_object(Bucket=bucket, Key=key)["Body"].read())
            here = body_or_none(lambda: get(node, bucket, key))
            assert at_origin == body or (at_origin is None and key not in acknowledged), key
            assert here == body or (here is None and key not in acknowledged), key
        begun.clear()


def test_kill_9_during_fills_never_leads_to_wrong_bytes(new_node, new_shaper, origin):
    """Neither while objects are fetched, by one node after the other that is killed, nor when all is here. Goes on until some of
    what one node had fetched was found, and looked at, by the next."""
    shaper = new_shaper(total="40MB/s")
    node = new_node()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    bodies = {f"k{i}": harness.random_bytes(6 * MIB + i, seed=i) for i in range(6)}
    for key, body in bodies.items():
        origin.s3().put_object(Bucket=bucket, Key=key, Body=body)
    wrong, verified = [], 0

    def read(key):
        got = b""
        with contextlib.suppress(Exception):  # the node is killed
            stream = node.s3(retries={"max_attempts": 1}).get_object(Bucket=bucket, Key=key)["Body"]
            while piece := stream.read(64 * 1024):
                got += piece
        if not bodies[key].startswith(got):
            wrong.append(key)

    for turn in range(20):
        sent = shaper.stats()["response_bytes"]
        threads = [threading.Thread(target=read, args=(key,)) for key in bodies]
        for t in threads:
            t.start()
        harness.wait_until(lambda: not any(t.is_alive() for t in threads) or shaper.stats()["response_bytes"] >= sent + 12 * MIB, 200,
                           "much is on its way")
        verified += node.metric("forebay_verified_blocks_total")
        node.kill()
        for t in threads:
            t.join()
        node.start()
        if turn >= 3 and verified > 0:
            break
    for key, body in bodies.items():
        assert get(node, bucket, key) == body
    assert not wrong and verified > 0


def test_health_answers_while_the_origin_stalls(impatient, node, origin):
    """For as long as it does: more requests wait for it than the node has threads. (Seen to fail with admin_is_express that
    knows no page.)"""
    shaper, bucket = impatient
    node.cli("bucket", "set", bucket, "origin.timeout=1h")
    origin.s3().put_object(Bucket=bucket, Key="k", Body=b"x" * 1000)
    shaper.fault("stall", count=100, match="/k")
    s3 = node.s3(retries={"max_attempts": 1}, max_pool_connections=100)  # which keeps connections that were answered

    def read_somehow():
        with contextlib.suppress(botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            s3.get_object(Bucket=bucket, Key="k")["Body"].read()

    threads = [threading.Thread(target=read_somehow) for _ in range(80)]
    for t in threads:
        t.start()
    try:
        harness.wait_until(lambda: node.metric("forebay_connections", via="http") >= len(threads), 100, "all are connected")
        harness.wait_until(lambda: shaper.stats()["in_flight"] > 0, 100, "the origin is asked")
        with urllib.request.urlopen(node.endpoint + "/-/health", timeout=200) as reply:
            assert reply.status == 200
    finally:
        shaper.stop()  # what stalls is cut
        for t in threads:
            t.join()


def test_an_origin_without_etags_is_told_apart_by_time_and_size(new_node, tmp_path):
    """Files copied under the server's feet have no ETag: their version is then made of time and size."""
    with harness.Origin(tmp_path / "origin") as own:
        node = new_node()
        bucket = node.new_bucket(own, validate="always")
        path = own.dir / "data" / bucket / "k"
        path.write_bytes(b"old")
        assert not own.s3().head_object(Bucket=bucket, Key="k").get("ETag", "").strip('"')
        assert get(node, bucket, "k") == b"old"
        path.write_bytes(b"newer")
        assert get(node, bucket, "k") == b"newer"


class _Unversioned(http.server.BaseHTTPRequestHandler):
    """Tells of its one file neither an ETag nor a time."""

    protocol_version = "HTTP/1.1"
    body = b""

    def do_GET(self):
        first, last = 0, len(self.body) - 1
        asked = self.headers.get("Range")
        if asked:
            first, last = (int(x) for x in asked.removeprefix("bytes=").split("-"))
            last = min(last, len(self.body) - 1)
        self.send_response_only(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.body)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body[first : last + 1])

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def test_an_origin_that_tells_no_version_confirms_none(new_node):
    """A server that tells neither an ETag nor a time says of no copy that it is the present one, however often it is asked."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Unversioned)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.closing(server.socket):
        node = new_node()
        node.create_bucket("plain", f"http://127.0.0.1:{server.server_port}", validate="always")
        for body in b"one", b"two", b"six":
            _Unversioned.body = body
            assert get(node, "plain", "k") == body
            assert node.cli("cat", "plain/k", stdin=b"").stdout == body
        server.shutdown()


def test_uploads_whose_clients_hesitate_leave_room_for_others(node, origin):
    """Whoever waits for a connection that a slow upload has holds none of the places that others need: small objects are written and
    read meanwhile."""
    bucket = node.new_bucket(origin, validate="always", **{"origin.connections": 2})
    origin.s3().put_object(Bucket=bucket, Key="k", Body=b"data")
    body = harness.random_bytes(48 * MIB)
    url = urllib.parse.urlsplit(node.s3().generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "slow"}))
    with contextlib.closing(http.client.HTTPConnection(url.hostname, url.port, timeout=120)) as client:
        client.putrequest("PUT", f"{url.path}?{url.query}")
        client.putheader("Content-Length", str(len(body)))
        client.endheaders()
        client.send(body[:20 * MIB])  # its second part of 16 MiB has a connection, and waits
        harness.wait_until(lambda: node.metric("forebay_origin_requests_total", bucket=bucket, op="put_part") >= 1, what="a part is there")
        time.sleep(1)
        s3 = node.s3()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda i: s3.put_object(Bucket=bucket, Key=f"small{i}", Body=b"x"), range(3)))
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"data"
        client.send(body[20 * MIB:])
        assert client.getresponse().status == 200
    assert origin.s3().get_object(Bucket=bucket, Key="slow")["Body"].read() == body
