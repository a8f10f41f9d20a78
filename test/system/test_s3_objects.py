"""Objects through S3 with boto3: what goes in comes out, here and at the origin, for every kind of key and range."""

import base64
import datetime
import hashlib
import http.client
import re
import threading
import time
import urllib.parse
import zlib

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.exceptions
import pytest

import harness
from keyorigin import Handler, KeyOrigin, Object
from test_s3_security import ask, send, signed

MIB = 1 << 20
SIZES = [0, 1, 4095, 128 * 1024, 128 * 1024 + 1, MIB, 9 * MIB + 17]

ODD_KEYS = [
    "plain", "with space", " leading and trailing ", "a//b", "/leading", "trailing/", "//", ".", "..", "../up", "a/../b",
    "a/./b", "plus+sign", "per%cent", "%2F", "100%25", "a&b=c?d#e", "quote\"'`", "semi;colon:at@", "back\\slash",
    "<xml>&amp;", "tilde~()*!$,[]{}|^", "ünïcödé", "日本語", "🌊 forebay", "\u00e9", "e\u0301", "tab\tnewline\n",
    "x" * 1024, "ä" * 512, "/".join(["d"] * 500),
]


def status_of(error):
    return error.value.response["ResponseMetadata"]["HTTPStatusCode"]


def code_of(error):
    return error.value.response["Error"]["Code"]


@pytest.mark.parametrize("size", SIZES)
def test_put_reaches_the_origin_and_comes_back(bucket, size):
    """A PUT is in the origin when it is acknowledged, byte for byte, and a GET gives the same, warm and after a restart."""
    data = harness.random_bytes(size)
    etag = bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=data)["ETag"]
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data
    found = bucket.s3.get_object(Bucket=bucket.name, Key="k")
    assert found["Body"].read() == data
    assert found["ContentLength"] == size
    assert found["ETag"] == etag == bucket.truth.head_object(Bucket=bucket.name, Key="k")["ETag"]


@pytest.mark.parametrize("size", SIZES)
def test_cold_get_brings_what_the_origin_has(bucket, size):
    """What only the origin has is read through, and the second read costs the origin nothing."""
    data = harness.random_bytes(size)
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=data)
    assert bucket.s3.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data

    def from_origin():
        return bucket.node.metric("forebay_origin_read_bytes_total", bucket=bucket.name)

    harness.wait_until(lambda: from_origin() == size, what="bytes counted")
    assert bucket.s3.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data
    assert from_origin() == size


def test_attributes_are_kept(bucket):
    """Content type, the standard headers and user metadata come back, from the cache and from the origin."""
    kept = {"ContentType": "text/x-test; charset=utf-8", "CacheControl": "max-age=7", "ContentEncoding": "gzip",
            "ContentDisposition": 'attachment; filename="a b.txt"', "ContentLanguage": "de"}
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x", Metadata={"first": "1", "second": "two words"}, **kept)
    for client in (bucket.s3, bucket.truth):
        for found in (client.get_object(Bucket=bucket.name, Key="k"), client.head_object(Bucket=bucket.name, Key="k")):
            assert {name: found[name] for name in kept} == kept
            assert found["Metadata"] == {"first": "1", "second": "two words"}
            assert found["AcceptRanges"] == "bytes"
    bucket.s3.put_object(Bucket=bucket.name, Key="bare", Body=b"x")
    assert bucket.s3.head_object(Bucket=bucket.name, Key="bare")["Metadata"] == {}


def test_headers_that_come_twice_are_one(bucket):
    """As S3 joins them, by commas and without blanks, in the order of the request, whatever the case of their names; the coding of the transfer
    is left out of them. (Seen to fail: each was a line of its own.)"""
    lines = [("x-amz-meta-colour", "red"), ("Cache-Control", "no-store"), ("X-Amz-Meta-Colour", ""), ("x-amz-meta-other", "1"), ("x-amz-meta-empty", ""),
             ("Content-Encoding", "aws-chunked"), ("cache-control", "max-age=5"), ("x-amz-meta-colour", "blue"), ("content-encoding", "gzip")]
    status, body = put_signed(bucket.node, f"/{bucket.name}/k", lines)
    assert status == 200, body
    for s3 in (bucket.s3, bucket.truth):
        found = s3.head_object(Bucket=bucket.name, Key="k")
        assert found["Metadata"] == {"colour": "red,,blue", "other": "1", "empty": ""}
        assert found["CacheControl"] == "no-store,max-age=5" and found["ContentEncoding"] == "gzip"


def test_response_headers_can_be_overridden(bucket):
    """The response-* parameters replace what is stored, for this answer only."""
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x", ContentType="text/plain", CacheControl="no-store")
    wanted = {"ContentType": "application/x-other", "ContentDisposition": 'attachment; filename="n"', "CacheControl": "private",
              "ContentEncoding": "x-other", "ContentLanguage": "tlh"}
    found = bucket.s3.get_object(Bucket=bucket.name, Key="k", ResponseExpires=datetime.datetime(2037, 1, 1),
                                 **{f"Response{name}": value for name, value in wanted.items()})
    assert {name: found[name] for name in wanted} == wanted
    headers = found["ResponseMetadata"]["HTTPHeaders"]
    assert headers["expires"] == LATE_DATE
    assert headers["x-amz-request-id"] and headers["x-amz-id-2"]
    plain = bucket.s3.get_object(Bucket=bucket.name, Key="k")
    assert (plain["ContentType"], plain["CacheControl"]) == ("text/plain", "no-store")
    assert not {"expires", "content-encoding", "content-language", "content-disposition"} & set(plain["ResponseMetadata"]["HTTPHeaders"])


@pytest.mark.parametrize("warm", [False, True])
def test_ranges(bucket, warm):
    """Every form of a range gives exactly its bytes, cold and warm; ranges outside say so."""
    size = 3 * MIB + 123
    data = harness.random_bytes(size)
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=data)
    if warm:
        bucket.s3.get_object(Bucket=bucket.name, Key="k")["Body"].read()
    ranges = [("bytes=0-0", 0, 1), ("bytes=0-9", 0, 10), ("bytes=1048575-1048577", MIB - 1, MIB + 2),
              (f"bytes={size - 1}-", size - 1, size), ("bytes=100-", 100, size), ("bytes=-1", size - 1, size),
              ("bytes=-1000000", size - 1000000, size), (f"bytes=-{size * 2}", 0, size),
              ("bytes=5-99999999999", 5, size), (f"bytes=0-{size - 1}", 0, size)]
    for text, start, end in ranges:
        found = bucket.s3.get_object(Bucket=bucket.name, Key="k", Range=text)
        assert found["Body"].read() == data[start:end], text
        assert status_ok(found) == 206
        assert found["ContentRange"] == f"bytes {start}-{end - 1}/{size}"
    for text in (f"bytes={size}-", "bytes=99999999-", "bytes=-0"):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            bucket.s3.get_object(Bucket=bucket.name, Key="k", Range=text)
        assert (status_of(error), code_of(error)) == (416, "InvalidRange")
        assert error.value.response["Error"]["ActualObjectSize"] == str(size)
        assert error.value.response["Error"]["RangeRequested"] == text
    whole = bucket.s3.get_object(Bucket=bucket.name, Key="k", Range="bytes=0-1,5-9")
    assert status_ok(whole) == 200 and whole["Body"].read() == data
    for version, expected in ((whole["ETag"], (206, data[5:10])), ('"other"', (200, data))):
        reply = ask(bucket.node, "GET", f"/{bucket.name}/k", headers={"Range": "bytes=5-9", "If-Range": version})
        assert (reply.status, reply.body) == expected, version


def status_ok(found):
    return found["ResponseMetadata"]["HTTPStatusCode"]


def test_first_touch_by_range_fetches_little(bucket):
    """A small range of a large cold object does not fetch the object."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=harness.random_bytes(40 * MIB))
    bucket.s3.get_object(Bucket=bucket.name, Key="k", Range="bytes=20000000-20004095")["Body"].read()
    assert bucket.node.metric("forebay_origin_read_bytes_total", bucket=bucket.name) <= 10 * MIB


def test_range_fetches_at_most_twice_itself(bucket):
    """A range of 16 MiB of a large cold object does not bring windows behind it that its request can never read."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=harness.random_bytes(120 * MIB))
    bucket.s3.get_object(Bucket=bucket.name, Key="k", Range=f"bytes=0-{16 * MIB - 1}")["Body"].read()
    time.sleep(2)  # what was asked for ahead
    assert bucket.node.metric("forebay_origin_read_bytes_total", bucket=bucket.name) <= 40 * MIB


def test_conditions(bucket):
    """If-Match and its kin decide on GET and HEAD as RFC 9110 says, and what is not sent again has the headers that caches go by."""
    etag = bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"data", CacheControl="max-age=7",
                                Expires=datetime.datetime(2030, 1, 2))["ETag"]
    found = bucket.s3.get_object(Bucket=bucket.name, Key="k")
    modified = found["LastModified"]
    holds = [{"IfMatch": etag}, {"IfMatch": "*"}, {"IfNoneMatch": '"other"'}, {"IfUnmodifiedSince": modified},
             {"IfModifiedSince": "Thu, 01 Jan 1998 00:00:00 GMT"}, {"IfMatch": f'"other", {etag}'}]
    fails = [({"IfMatch": '"other"'}, 412), ({"IfNoneMatch": etag}, 304), ({"IfNoneMatch": "*"}, 304),
             ({"IfModifiedSince": modified}, 304), ({"IfUnmodifiedSince": "Thu, 01 Jan 1998 00:00:00 GMT"}, 412)]
    for call in (bucket.s3.get_object, bucket.s3.head_object):
        for condition in holds:
            assert status_ok(call(Bucket=bucket.name, Key="k", **condition)) == 200
        for condition, status in fails:
            with pytest.raises(botocore.exceptions.ClientError) as error:
                call(Bucket=bucket.name, Key="k", **condition)
            assert status_of(error) == status, condition
            if status == 304:
                headers = error.value.response["ResponseMetadata"]["HTTPHeaders"]
                assert headers["etag"] == etag and headers["cache-control"] == "max-age=7"
                assert headers["expires"] == "Wed, 02 Jan 2030 00:00:00 GMT"


def test_conditional_puts(bucket):
    """If-None-Match: * creates only, If-Match replaces only what the writer saw."""
    etag = bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"one", IfNoneMatch="*")["ETag"]
    for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"0123456789abcdef0123456789abcdef"'}):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"two", **condition)
        assert code_of(error) == "PreconditionFailed"
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"one"
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"three", IfMatch=etag)
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"three"
    assert bucket.s3.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"three"


def test_conditional_copies(bucket):
    """Conditions on the target of a copy are those of a PUT, also where the origin could copy by itself."""
    node, path = bucket.node, f"/{bucket.name}/to"
    bucket.s3.put_object(Bucket=bucket.name, Key="from", Body=b"new")
    etag = bucket.s3.put_object(Bucket=bucket.name, Key="to", Body=b"old")["ETag"]

    def copy(**condition):
        headers = {"x-amz-copy-source": f"/{bucket.name}/from", **{k.replace("_", "-"): v for k, v in condition.items()}}
        return send(node, "PUT", path, signed(node, "PUT", path, headers))

    for condition in ({"If_None_Match": "*"}, {"If_Match": '"0123456789abcdef0123456789abcdef"'}, {"If_Match": '""'}):
        assert copy(**condition).status == 412, condition
        assert bucket.truth.get_object(Bucket=bucket.name, Key="to")["Body"].read() == b"old"
    assert copy(If_Match=etag).status == 200
    assert bucket.s3.get_object(Bucket=bucket.name, Key="to")["Body"].read() == b"new"


def test_a_condition_on_no_etag_at_all_does_not_hold(bucket):
    """An empty ETag is that of no object; it does not mean that there is no condition."""
    path = f"/{bucket.name}/k"
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"old")
    for method, body in (("PUT", b"new"), ("DELETE", b"")):
        headers = signed(bucket.node, method, path, {"If-Match": '""'}, body=body)
        assert send(bucket.node, method, path, headers, body).error()["Code"] == "PreconditionFailed"
    document = b"<Delete><Object><Key>k</Key><ETag></ETag></Object></Delete>"
    assert b"PreconditionFailed" in ask(bucket.node, "POST", f"/{bucket.name}?delete=", document).body
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"old"


def spoken(client, method, where, lines, body=b""):
    """(status, code of the error) of a request with exactly these header lines beside those that it cannot be without."""
    url = urllib.parse.urlsplit(client.generate_presigned_url(f"{method.lower()}_object", Params=where))
    connection = http.client.HTTPConnection(url.netloc, timeout=200)
    connection.putrequest(method, f"{url.path}?{url.query}", skip_accept_encoding=True)
    for name, value in lines:
        connection.putheader(name, value)
    connection.endheaders(body or None)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    code = re.search(rb"<Code>(\w+)</Code>", text)
    return answer.status, code and code.group(1).decode()


OLD_DATE, LATE_DATE = "Mon, 01 Jan 2001 00:00:00 GMT", "Thu, 01 Jan 2037 00:00:00 GMT"


@pytest.mark.parametrize("method, lines, status, code", [
    ("PUT", [("If-Match", "")], 412, "PreconditionFailed"),
    ("PUT", [("If-None-Match", '"x", ETAG')], 501, "NotImplemented"),
    ("PUT", [("If-None-Match", '*, "x"')], 501, "NotImplemented"),
    ("PUT", [("If-None-Match", '"x"'), ("If-None-Match", "*")], 501, "NotImplemented"),
    ("PUT", [("If-Match", "ETAG"), ("If-Match", '"x"')], 501, "NotImplemented"),
    ("PUT", [("If-Unmodified-Since", OLD_DATE)], 501, "NotImplemented"),
    ("DELETE", [("If-Match", "")], 412, "PreconditionFailed"),
    ("DELETE", [("If-None-Match", "*")], 501, "NotImplemented"),
    ("DELETE", [("If-None-Match", "ETAG")], 501, "NotImplemented"),
    ("DELETE", [("If-Match", "ETAG"), ("If-Match", '"x"')], 501, "NotImplemented"),
    ("DELETE", [("If-Unmodified-Since", OLD_DATE)], 501, "NotImplemented"),
])
def test_nothing_is_written_in_spite_of_a_condition(node, method, lines, status, code):
    """Conditions that no write or removal can decide with what it does (lists, repeated headers, dates) are refused, none is left out."""
    client, where = node.s3(signature_version="s3v4"), {"Bucket": "conditions", "Key": "k"}
    client.create_bucket(Bucket="conditions")
    try:
        etag = client.put_object(**where, Body=b"old")["ETag"]
        body = b"new" if method == "PUT" else b""
        sent = [(name, value.replace("ETAG", etag)) for name, value in lines] + [("Content-Length", str(len(body)))]
        assert spoken(client, method, where, sent, body) == (status, code)
        assert client.get_object(**where)["Body"].read() == b"old"
        # what says the same in a form that can be decided, or nothing at all, is served
        assert spoken(client, method, where, [("If-Match", etag), ("If-Unmodified-Since", OLD_DATE), sent[-1]], body)[0] in (200, 204)
        assert spoken(client, "PUT", where, [("If-Unmodified-Since", "yesterday"), ("If-None-Match", ""), ("Content-Length", "1")], b"x")[0] == 200
    finally:
        client.delete_object(**where)
        client.delete_bucket(Bucket="conditions")


@pytest.mark.parametrize("close", [False, True])
def test_a_body_of_no_length_is_not_an_empty_one(bucket, close):
    """A PUT that announces no body is refused, as S3 does: whoever ends its body with the connection would have made the object empty."""
    where = {"Bucket": bucket.name, "Key": "k"}
    bucket.s3.put_object(**where, Body=b"old")
    client = bucket.node.s3(signature_version="s3v4")
    assert spoken(client, "PUT", where, [("Connection", "close")] if close else []) == (411, "MissingContentLength")
    assert bucket.truth.get_object(**where)["Body"].read() == b"old"
    assert spoken(client, "PUT", where, [("Content-Length", "0")]) == (200, None)
    assert bucket.truth.get_object(**where)["Body"].read() == b""


def test_overwriting_and_deleting_are_seen_at_once(bucket):
    """Read-after-write: GET, HEAD and listings show the last acknowledged state."""
    for i in range(5):
        data = f"version {i}".encode() * (i + 1)
        bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=data)
        assert bucket.s3.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data
        assert bucket.s3.head_object(Bucket=bucket.name, Key="k")["ContentLength"] == len(data)
        assert bucket.s3.list_objects_v2(Bucket=bucket.name)["Contents"][0]["Size"] == len(data)
    bucket.s3.delete_object(Bucket=bucket.name, Key="k")
    with pytest.raises(botocore.exceptions.ClientError) as error:
        bucket.s3.get_object(Bucket=bucket.name, Key="k")
    assert code_of(error) == "NoSuchKey"
    assert bucket.s3.list_objects_v2(Bucket=bucket.name)["KeyCount"] == 0
    assert "Contents" not in bucket.truth.list_objects_v2(Bucket=bucket.name)
    bucket.s3.delete_object(Bucket=bucket.name, Key="k")


def test_what_is_not_there(bucket):
    """Missing keys and buckets are told apart; HEAD gives the bare status."""
    for call, code in ((bucket.s3.get_object, "NoSuchKey"), (bucket.s3.head_object, "404")):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            call(Bucket=bucket.name, Key="missing")
        assert (status_of(error), code_of(error)) == (404, code)
    for call in (lambda: bucket.s3.get_object(Bucket="no-such-bucket", Key="k"),
                 lambda: bucket.s3.list_objects_v2(Bucket="no-such-bucket"),
                 lambda: bucket.s3.put_object(Bucket="no-such-bucket", Key="k", Body=b"x" * 300000),
                 lambda: bucket.s3.delete_object(Bucket="no-such-bucket", Key="k"),
                 lambda: bucket.s3.get_bucket_location(Bucket="no-such-bucket")):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            call()
        assert code_of(error) == "NoSuchBucket"
    with pytest.raises(botocore.exceptions.ClientError) as error:
        bucket.s3.head_bucket(Bucket="no-such-bucket")
    assert status_of(error) == 404


def test_buckets(bucket):
    """ListBuckets, HeadBucket, GetBucketLocation."""
    assert bucket.name in [b["Name"] for b in bucket.s3.list_buckets()["Buckets"]]
    assert bucket.s3.head_bucket(Bucket=bucket.name)["BucketRegion"] == harness.REGION
    assert bucket.s3.get_bucket_location(Bucket=bucket.name)["LocationConstraint"] in (None, harness.REGION)


def test_every_key_is_right(node):
    """Keys of any bytes that S3 allows: written, read, listed, copied and deleted under exactly their name."""
    with KeyOrigin() as origin:
        name = harness.random_name()
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        s3 = node.s3()
        for i, key in enumerate(ODD_KEYS):
            s3.put_object(Bucket=name, Key=key, Body=f"{i} {key}".encode())
        assert {k for b, k in origin.objects if b == name} == set(ODD_KEYS)
        for i, key in enumerate(ODD_KEYS):
            data = f"{i} {key}".encode()
            assert origin.objects[name, key].data == data
            assert s3.get_object(Bucket=name, Key=key)["Body"].read() == data
            assert s3.head_object(Bucket=name, Key=key)["ContentLength"] == len(data)
        listed = [o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name, PaginationConfig={
            "PageSize": 3}) for o in page["Contents"]]
        assert listed == sorted(ODD_KEYS, key=lambda k: k.encode())
        for key in ODD_KEYS[:24]:
            s3.copy_object(Bucket=name, Key="copy of " + key, CopySource={"Bucket": name, "Key": key})
            assert origin.objects[name, "copy of " + key].data == origin.objects[name, key].data
        s3.delete_object(Bucket=name, Key=ODD_KEYS[0])
        answer = s3.delete_objects(Bucket=name, Delete={"Objects": [
            {"Key": k} for k in ODD_KEYS[1:] if "\t" not in k]})
        assert "Errors" not in answer
        s3.delete_object(Bucket=name, Key="tab\tnewline\n")
        assert {k for b, k in origin.objects if b == name} == {"copy of " + k for k in ODD_KEYS[:24]}


def test_copy_of_what_is_replaced_meanwhile(node):
    """CopyObject without conditions of a source that is replaced after the node looked at it, before the origin copies it:
    the copy is of what is there now. It was answered with 412, which clients do not repeat."""
    with KeyOrigin() as origin:
        name, puts = harness.random_name(), []
        origin.objects[name, "from"] = Object(b"before")
        node.create_bucket(name, f"s3://{name}", **origin.properties())

        def replace(method, key):
            if (method, key) == ("PUT", "to"):
                puts.append(key)
                if len(puts) == 1:
                    origin.objects[name, "from"] = Object(b"what is there now")

        origin.before = replace
        node.s3().copy_object(Bucket=name, Key="to", CopySource={"Bucket": name, "Key": "from"})
        assert len(puts) == 2
        assert origin.objects[name, "to"].data == b"what is there now"


def test_keys_cold(node):
    """The same keys when only the origin has them."""
    with KeyOrigin() as origin:
        name = harness.random_name()
        for i, key in enumerate(ODD_KEYS):
            origin.objects[name, key] = Object(f"{i} {key}".encode())
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        s3 = node.s3()
        for i, key in enumerate(ODD_KEYS):
            assert s3.get_object(Bucket=name, Key=key)["Body"].read() == f"{i} {key}".encode()
        heads = [r for r in origin.requests if r[0] == "HEAD"]
        assert not heads, "a cold GET needs no HEAD first"


class SlowBodies(Handler):
    """Sends the heads of objects, and their bytes once `gate` of the origin is set."""

    def send(self, status, body=b"", **headers):
        if status != 206:
            return super().send(status, body, **headers)
        super().send(status, **{"Content-Length": len(body)}, **headers)
        assert self.owner.gate.wait(100)
        return self.wfile.write(body)


@pytest.mark.parametrize("size", [110_000, 3 * MIB])
def test_head_goes_ahead_of_a_cold_body(node, size):
    """A client learns what will come as soon as the node does, and need not wait for the first bytes. (Seen to fail where
    neither the node was told of a head before its body nor its client.)"""
    with KeyOrigin(SlowBodies) as origin:
        name, data, origin.gate = harness.random_name(), harness.random_bytes(size), threading.Event()
        origin.objects[name, "k"] = Object(data)
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        url = urllib.parse.urlsplit(node.s3(signature_version="s3v4").generate_presigned_url("get_object", {"Bucket": name, "Key": "k"}))
        connection = http.client.HTTPConnection(url.netloc, timeout=harness.PATIENCE)
        connection.request("GET", f"{url.path}?{url.query}")
        try:
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Content-Length")) == (200, str(size))
        finally:
            origin.gate.set()
        assert answer.read() == data
        connection.close()


def test_weak_etags(node, tmp_path):
    """The ETag of an origin that has weak ones can be used as it was given: boto3 pins downloads in pieces with it."""
    with KeyOrigin() as origin:
        name, data = harness.random_name(), harness.random_bytes(9 << 20)
        origin.objects[name, "k"] = Object(data, {"ETag": 'W/"v1"'})
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        s3, where = node.s3(), {"Bucket": name, "Key": "k"}
        etag = s3.head_object(**where)["ETag"]
        assert etag == 'W/"v1"'
        assert s3.get_object(**where, IfMatch=etag, Range="bytes=1-5")["Body"].read() == data[1:6]
        for arguments, status in (({"IfNoneMatch": etag}, 304), ({"IfMatch": 'W/"v2"'}, 412)):
            with pytest.raises(botocore.exceptions.ClientError) as error:
                s3.get_object(**where, **arguments)
            assert status_of(error) == status
        s3.download_file(name, "k", str(tmp_path / "k"))
        assert (tmp_path / "k").read_bytes() == data


def test_keys_that_are_too_long(bucket):
    """1,025 bytes are one too many, for every operation that takes a key."""
    key = "k" * 1025
    for call in (lambda: bucket.s3.get_object(Bucket=bucket.name, Key=key),
                 lambda: bucket.s3.put_object(Bucket=bucket.name, Key=key, Body=b"x"),
                 lambda: bucket.s3.delete_object(Bucket=bucket.name, Key=key)):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            call()
        assert (status_of(error), code_of(error)) == (400, "KeyTooLongError")


def test_checksums_of_every_kind(bucket):
    """Checksums that clients send are verified; a wrong one is refused, and the origin never sees the object."""
    data = harness.random_bytes(700_000)
    right = {
        "ChecksumCRC32": base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode(),
        "ChecksumSHA1": base64.b64encode(hashlib.sha1(data).digest()).decode(),
        "ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode(),
        "ContentMD5": base64.b64encode(hashlib.md5(data).digest()).decode(),
    }
    for name, value in right.items():
        answer = bucket.s3.put_object(Bucket=bucket.name, Key=name, Body=data, **{name: value})
        assert name == "ContentMD5" or answer[name] == value
        assert bucket.truth.head_object(Bucket=bucket.name, Key=name)["ContentLength"] == len(data)
    for name, value in right.items():
        wrong = base64.b64encode(bytes(len(base64.b64decode(value)))).decode()
        with pytest.raises(botocore.exceptions.ClientError) as error:
            bucket.s3.put_object(Bucket=bucket.name, Key="wrong", Body=data, **{name: wrong})
        assert code_of(error) == "BadDigest"
    assert "wrong" not in [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]]


def put_known_by(bucket, path, data, known):
    """PUT of a body of which a header says this before it comes; gives its ETag. A checksum goes along."""
    headers = {"x-amz-checksum-crc32": base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()}
    if known == "MD5":
        headers["Content-MD5"] = base64.b64encode(hashlib.md5(data).digest()).decode()
    payload = None if known == "SHA-256" else "UNSIGNED-PAYLOAD"
    reply = send(bucket.node, "PUT", path, signed(bucket.node, "PUT", path, headers, data, payload=payload), data)
    assert reply.status == 200, reply.body
    return reply.headers["etag"]


@pytest.mark.parametrize("size", [8 * MIB, 8 * MIB + 1, 70 * MIB])
@pytest.mark.parametrize("known", ["SHA-256", "MD5", "nothing"])
def test_when_the_etag_is_the_md5(bucket, size, known):
    """In a bucket whose origin is S3 a PUT has the MD5 of its bytes as ETag up to 8 MiB, and above where the SHA-256 or the MD5
    was in a header: it streams to the origin as one PUT then, with the checksum that came with it. Else it goes in parts of 16
    MiB, and the ETag says so. (Seen to fail without `announce_digests` in s3/put.c: `-1` and `-5` of all above 8 MiB.)"""
    data, path = harness.random_bytes(size), f"/{bucket.name}/k"
    etag, is_one = put_known_by(bucket, path, data, known), known != "nothing" or size <= 8 * MIB
    there = bucket.truth.head_object(Bucket=bucket.name, Key="k", ChecksumMode="ENABLED")
    assert etag == there["ETag"] == bucket.s3.head_object(Bucket=bucket.name, Key="k")["ETag"]
    if is_one:
        assert etag == f'"{hashlib.md5(data).hexdigest()}"'
        assert there["ChecksumCRC32"] == base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    else:
        assert etag.endswith(f'-{-(-size // (16 * MIB))}"')
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data
    assert ask(bucket.node, "GET", path).body == data
    asked = {op: bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op=op) for op in ("put", "put_part")}
    assert asked == ({"put": 1, "put_part": 0} if is_one else {"put": 0, "put_part": -(-size // (16 * MIB))})


def test_delete_many(bucket):
    """DeleteObjects removes what is named, tells of each key, is quiet when asked, and counts missing keys as done."""
    keys = [f"dir/{i:03}" for i in range(120)]
    for key in keys:
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"x")
    answer = bucket.s3.delete_objects(Bucket=bucket.name, Delete={"Quiet": False, "Objects": [
        {"Key": k} for k in keys[:100] + ["missing"]]})
    assert {d["Key"] for d in answer["Deleted"]} == set(keys[:100]) | {"missing"}
    assert "Errors" not in answer
    quiet = bucket.s3.delete_objects(Bucket=bucket.name, Delete={"Quiet": True, "Objects": [
        {"Key": keys[100]}, {"Key": "k" * 1025}]})
    assert "Deleted" not in quiet
    assert [e["Code"] for e in quiet["Errors"]] == ["KeyTooLongError"]
    left = [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]]
    assert left == keys[101:]
    assert [o["Key"] for o in bucket.s3.list_objects_v2(Bucket=bucket.name)["Contents"]] == left


def test_keys_that_are_too_long_to_be_removed(bucket):
    """Each is told of, cut to what a key can be: the answer is not too long either, and says what was removed."""
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    long = [f"{i:03}" + '"' * 4000 for i in range(999)]
    answer = bucket.s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": k} for k in ["k", *long]]})
    assert [d["Key"] for d in answer["Deleted"]] == ["k"]
    assert [(e["Code"], e["Key"]) for e in answer["Errors"]] == [("KeyTooLongError", k[:1024]) for k in long]


def test_conditions_of_deletion_that_are_not_here(bucket):
    """By size or time: refused, never ignored, and the object stays."""
    where = {"Bucket": bucket.name, "Key": "k"}
    bucket.s3.put_object(**where, Body=b"data")
    for condition in ({"IfMatchSize": 1}, {"IfMatchLastModifiedTime": datetime.datetime(2020, 1, 1)}):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            bucket.s3.delete_object(**where, **condition)
        assert code_of(error) == "NotImplemented"
    for condition in ({"Size": 1}, {"LastModifiedTime": datetime.datetime(2020, 1, 1)}):
        answer = bucket.s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": "k", **condition}, {"Key": "none"}]})
        assert [e["Code"] for e in answer["Errors"]] == ["NotImplemented"]
        assert [d["Key"] for d in answer["Deleted"]] == ["none"]
    assert bucket.truth.head_object(**where)["ContentLength"] == 4


def test_copies(bucket, node, origin):
    """Copies within a bucket and across, with the source's attributes or new ones, under conditions."""
    data = harness.random_bytes(2 * MIB + 5)
    etag = bucket.s3.put_object(Bucket=bucket.name, Key="from", Body=data, ContentType="text/a",
                                Metadata={"m": "1"})["ETag"]
    other = node.new_bucket(origin)
    source = {"Bucket": bucket.name, "Key": "from"}
    sent = node.metric("forebay_origin_written_bytes_total", bucket=bucket.name)
    copied = bucket.s3.copy_object(Bucket=bucket.name, Key="to", CopySource=source)["CopyObjectResult"]
    assert node.metric("forebay_origin_written_bytes_total", bucket=bucket.name) == sent, "the origin copies by itself"
    assert copied["ETag"] == bucket.truth.head_object(Bucket=bucket.name, Key="to")["ETag"]
    bucket.s3.copy_object(Bucket=other, Key="to", CopySource=source)
    bucket.s3.copy_object(Bucket=bucket.name, Key="new", CopySource=source, MetadataDirective="REPLACE",
                          ContentType="text/b", Metadata={"m": "2"})
    bucket.s3.copy_object(Bucket=bucket.name, Key="same", CopySource=source, CopySourceIfMatch=etag)
    expected = {(bucket.name, "to"): ("text/a", "1"), (other, "to"): ("text/a", "1"),
                (bucket.name, "new"): ("text/b", "2"), (bucket.name, "same"): ("text/a", "1")}
    for (name, key), (kind, value) in expected.items():
        for client in (bucket.truth, bucket.s3):
            found = client.get_object(Bucket=name, Key=key)
            assert found["Body"].read() == data
            assert (found["ContentType"], found["Metadata"]) == (kind, {"m": value})
    for arguments, code in (({"CopySourceIfMatch": '"x"'}, "PreconditionFailed"),
                            ({"CopySourceIfNoneMatch": etag}, "PreconditionFailed"),
                            ({"CopySource": {"Bucket": bucket.name, "Key": "missing"}}, "NoSuchKey"),
                            ({"CopySource": {"Bucket": "no-such-bucket", "Key": "k"}}, "NoSuchBucket")):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            bucket.s3.copy_object(**{"Bucket": bucket.name, "Key": "fail", "CopySource": source, **arguments})
        assert code_of(error) == code, arguments
    with pytest.raises(botocore.exceptions.ClientError) as error:
        bucket.s3.copy_object(Bucket=bucket.name, Key="from", CopySource=source)
    assert code_of(error) == "InvalidRequest"


def test_copies_that_no_byte_of_comes_here_for(bucket, node, origin, new_shaper):
    """Copies with other metadata or other tags, onto themselves, between buckets of one service, and under conditions on their
    source are the origin's own: no byte goes through the node. A bucket of the same service that is reached by another address
    is another one. (Seen to fail without `copy_beside` in s3/copy.c.)"""
    data, other = harness.random_bytes(2 * MIB + 5), node.new_bucket(origin, prefix="in")
    apart = node.new_bucket(origin, endpoint=new_shaper(origin).endpoint)
    source = {"Bucket": bucket.name, "Key": "a + \u00fc/k"}
    bucket.truth.put_object(**source, Body=data, ContentType="text/a", Metadata={"m": "1"}, Tagging="t=1",
                            ChecksumAlgorithm="SHA256")
    etag = bucket.truth.head_object(**source)["ETag"]
    replaced = {"MetadataDirective": "REPLACE", "ContentType": "text/b", "Metadata": {"m": "2"}}
    tagged = {"TaggingDirective": "REPLACE", "Tagging": "x=y"}
    cases = {"plain": ({}, "text/a", "1", {"t": "1"}), "meta": (replaced, "text/b", "2", {"t": "1"}),
             "tags": (tagged, "text/a", "1", {"x": "y"}), "no tags": ({"TaggingDirective": "REPLACE"}, "text/a", "1", {}),
             "both": ({**replaced, **tagged}, "text/b", "2", {"x": "y"}),
             "if": ({"CopySourceIfMatch": etag}, "text/a", "1", {"t": "1"})}

    def moved(*names):
        return [node.metric(f"forebay_origin_{way}_bytes_total", bucket=name) for way in ("written", "read") for name in names]

    before = moved(bucket.name, other)
    for name, there in ((bucket.name, ""), (other, "in/")):
        for key, (how, kind, value, tags) in cases.items():
            bucket.s3.copy_object(Bucket=name, Key=key, CopySource=source, **how)
            assert moved(bucket.name, other) == before, key
            found = bucket.truth.get_object(Bucket=name, Key=there + key, ChecksumMode="ENABLED")
            assert found["Body"].read() == data and found["ChecksumSHA256"], key
            assert (found["ContentType"], found["Metadata"]) == (kind, {"m": value}), key
            tagging = bucket.truth.get_object_tagging(Bucket=name, Key=there + key)
            assert {t["Key"]: t["Value"] for t in tagging["TagSet"]} == tags, key
            head = bucket.s3.head_object(Bucket=name, Key=key)
            assert (head["ETag"], head["ContentType"], head["Metadata"]) == (found["ETag"], kind, {"m": value}), key
    bucket.s3.copy_object(**source, CopySource=source, MetadataDirective="REPLACE", Metadata={"m": "3"})
    assert moved(bucket.name, other) == before
    assert bucket.s3.get_object(**source)["Metadata"] == bucket.truth.get_object(**source)["Metadata"] == {"m": "3"}
    before = moved(apart)
    bucket.s3.copy_object(Bucket=apart, Key="k", CopySource=source)
    assert moved(apart) == [before[0] + len(data), before[1]]
    assert bucket.truth.get_object(Bucket=apart, Key="k")["Body"].read() == data


def put_signed(node, path, lines):
    """(status, body) of a PUT of nothing with these header lines, signed, also where a name comes twice."""
    request = botocore.awsrequest.AWSRequest("PUT", node.endpoint + path)
    for line in lines:
        request.headers.add_header(*line)
    botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(*node.credentials), "s3", harness.REGION).add_auth(request)
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(node.endpoint).netloc, timeout=200)
    connection.putrequest("PUT", path, skip_accept_encoding=True)
    for line in [*request.headers.items(), ("Content-Length", "0")]:
        connection.putheader(*line)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.mark.parametrize("name, values", [
    ("if-match", ['"x"', '"y"']),
    ("if-none-match", ['"x"', "ETAG"]),
    ("if-unmodified-since", [LATE_DATE, OLD_DATE]),
    ("if-modified-since", [OLD_DATE, LATE_DATE]),
])
def test_conditions_of_copies_that_are_said_twice(bucket, name, values):
    """Each line of a condition on the source counts, the second as the first: nothing is copied in spite of it."""
    s3, node, where = bucket.s3, bucket.node, {"Bucket": bucket.name, "Key": "from"}
    etag = s3.put_object(**where, Body=b"data")["ETag"]
    upload = s3.create_multipart_upload(Bucket=bucket.name, Key="parts")["UploadId"]
    for path in (f"/{bucket.name}/to", f"/{bucket.name}/parts?partNumber=1&uploadId={upload}"):
        lines = [("x-amz-copy-source", f"/{bucket.name}/from"), *((f"x-amz-copy-source-{name}", value.replace("ETAG", etag)) for value in values)]
        status, body = put_signed(node, path, lines)
        assert status == 412 and b"PreconditionFailed" in body, path
    assert [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]] == ["from"]
    assert "Parts" not in s3.list_parts(Bucket=bucket.name, Key="parts", UploadId=upload)


@pytest.mark.parametrize("name, values, more", [
    ("x-amz-acl", ("private", "public-read"), []),
    ("X-Amz-Storage-Class", ("STANDARD", "GLACIER"), []),
    ("x-amz-tagging", ("a=b", "c=d"), []),
    ("x-amz-server-side-encryption-bucket-key-enabled", ("false", "true"), []),
    ("x-amz-copy-source", ("/{0}/from", "/{0}/other"), []),
    ("x-amz-metadata-directive", ("COPY", "REPLACE"), [("x-amz-copy-source", "/{0}/from")]),
    ("x-forebay-ttl", ("1h", "2h"), []),
])
def test_a_header_that_says_two_things(bucket, name, values, more):
    """It is refused, whichever comes first, and nothing is written; one that is repeated as it is is taken."""
    bucket.s3.put_object(Bucket=bucket.name, Key="from", Body=b"data")

    def ask(*values):
        lines = [*more, *((name, value) for value in values)]
        return put_signed(bucket.node, f"/{bucket.name}/to", [(n, v.format(bucket.name)) for n, v in lines])

    for pair in (values, values[::-1]):
        status, body = ask(*pair)
        assert status == 400 and b"InvalidRequest" in body and b"says two things" in body
    assert [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]] == ["from"]
    if name != "x-forebay-ttl":
        assert ask(values[0], values[0])[0] == 200


def test_what_is_not_here_says_so(bucket):
    """Functions of S3 that are absent answer NotImplemented; nothing pretends."""
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    calls = [
        lambda: bucket.s3.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}),
        lambda: bucket.s3.put_bucket_policy(Bucket=bucket.name, Policy="{}"),
        lambda: bucket.s3.put_object(Bucket=bucket.name, Key="t", Body=b"x", ServerSideEncryption="AES256"),
        lambda: bucket.s3.get_object(Bucket=bucket.name, Key="k", VersionId="1"),
    ]
    for call in calls:
        with pytest.raises(botocore.exceptions.ClientError) as error:
            call()
        assert (status_of(error), code_of(error)) == (501, "NotImplemented")
    assert "t" not in [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]]


def test_requests_and_bytes_are_counted(bucket):
    """Metrics: requests by operation and status, bytes read by where they came from, bytes written."""
    node, data = bucket.node, harness.random_bytes(300_000)
    before = node.metric("forebay_requests_total", via="s3", op="GetObject", code="200")
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=data)
    bucket.truth.put_object(Bucket=bucket.name, Key="cold", Body=data)
    for key in ("k", "cold", "cold"):
        bucket.s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()

    def read(source):
        return node.metric("forebay_read_bytes_total", bucket=bucket.name, via="s3", **{"from": source})

    harness.wait_until(lambda: read("cache") + read("origin") == 900_000, what="bytes counted")
    assert (read("cache"), read("origin")) == (600_000, 300_000)
    harness.wait_until(lambda: node.metric("forebay_requests_total", via="s3", op="GetObject", code="200") == before + 3, what="requests counted")
    assert node.metric("forebay_written_bytes_total", bucket=bucket.name, via="s3") == 300_000
    assert node.metric("forebay_request_seconds_count", via="s3", op="GetObject") >= 3
