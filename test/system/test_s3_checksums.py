"""Checksums of each kind that S3 has, in buckets with an origin and without: verified with an upload, in a header and behind the body,
kept, and shown, of whole objects and of parts."""

import base64
import hashlib
import http.client
import urllib.parse
import zlib

import pytest

import harness
from test_s3_security import Reply, ask, send, signed
from test_s3_settings import refused

MIB = 1 << 20


def reflected(polynomial, bits):
    """The CRC of this polynomial, whose bits are in reverse, as a function of bytes; a second argument, its result for what stands
    before them, makes it go on there."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
        table.append(crc)
    mask = (1 << bits) - 1

    def crc_of(data, before=bytes(bits // 8)):
        crc = int.from_bytes(before, "big") ^ mask
        for byte in data:
            crc = table[(crc ^ byte) & 255] ^ crc >> 8
        return (crc ^ mask).to_bytes(bits // 8, "big")

    return crc_of


KINDS = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": reflected(0x82F63B78, 32),
    "crc64nvme": reflected(0x9A6C9329AC4BC9B5, 64),
    "sha1": lambda data: hashlib.sha1(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


def b64(data):
    return base64.b64encode(data).decode()


@pytest.fixture(params=["scratch", "mirror"])
def place(request, node, origin):
    return harness.scratch_bucket(node) if request.param == "scratch" else node.new_bucket(origin)


def check_shown(node, path, kind, value, how="FULL_OBJECT"):
    """HEAD, GET and the object's attributes show it to those who ask, others hear nothing of it."""
    for method in ("HEAD", "GET"):
        shown = send(node, method, path, signed(node, method, path, {"x-amz-checksum-mode": "ENABLED"})).headers
        assert (shown[f"x-amz-checksum-{kind}"], shown["x-amz-checksum-type"]) == (value, how)
        assert f"x-amz-checksum-{kind}" not in ask(node, method, path).headers
    asked = f"{path}?attributes"
    told = send(node, "GET", asked, signed(node, "GET", asked, {"x-amz-object-attributes": "Checksum"})).body.decode()
    assert f"<Checksum{kind.upper()}>{value}</" in told and f"<ChecksumType>{how}</" in told


def keys_of(node, place):
    return [o["Key"] for o in node.s3().list_objects_v2(Bucket=place).get("Contents", [])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checksum_in_a_header(node, place, kind):
    """The right one is sent back, kept and shown; a wrong one, and what is none of its kind, store nothing."""
    data, name, path = harness.random_bytes(3000), f"x-amz-checksum-{kind}", f"/{place}/k"

    def put(value):
        return send(node, "PUT", path, signed(node, "PUT", path, {name: value}, data), data)

    right = KINDS[kind](data)
    for wrong in (KINDS[kind](data[:-1]), right[:-1], right + b"\0"):
        reply = put(b64(wrong))
        assert (reply.status, reply.error()["Code"]) == (400, "BadDigest")
    assert keys_of(node, place) == []
    reply = put(b64(right))
    assert (reply.status, reply.headers[name]) == (200, b64(right))
    check_shown(node, path, kind, b64(right))


def put_in_pieces(node, path, data, announced, trailer):
    """PUT as SDKs send a body whose checksum they compute on the way: aws-chunked, in chunks of HTTP, without Content-Length."""
    headers = signed(node, "PUT", path, {"Content-Encoding": "aws-chunked", "x-amz-trailer": announced,
                                         "x-amz-decoded-content-length": str(len(data))}, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    assert "content-length" not in {name.lower() for name in headers}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(node.endpoint).netloc, timeout=200)
    connection.putrequest("PUT", path, skip_accept_encoding=True)
    for line in [*headers.items(), ("Transfer-Encoding", "chunked")]:
        connection.putheader(*line)
    half = len(data) // 2
    pieces = [b"%x\r\n" % half + data[:half] + b"\r\n", b"%x\r\n" % (len(data) - half), data[half:] + b"\r\n0\r\n",
              trailer.encode() + b"\r\n\r\n" if trailer else b"\r\n"]
    connection.endheaders(iter(pieces), encode_chunked=True)
    answer = connection.getresponse()
    reply = Reply(answer.status, answer.getheaders(), answer.read())
    connection.close()
    return reply


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3000, 300_000])
def test_a_checksum_behind_a_body_of_no_length(node, place, kind, size):
    """In the trailer of a body whose length no header tells: verified before the object is there, kept and shown; a trailer with a
    wrong one, with another kind than was announced, or without any stores nothing."""
    data, name, path = harness.random_bytes(size), f"x-amz-checksum-{kind}", f"/{place}/k"
    right, other = b64(KINDS[kind](data)), "sha1" if kind != "sha1" else "crc32"
    for trailer, code in ((f"{name}:{b64(KINDS[kind](data[1:]))}", "BadDigest"), ("", "MalformedTrailerError"),
                          (f"x-amz-checksum-{other}:{b64(KINDS[other](data))}", "MalformedTrailerError")):
        reply = put_in_pieces(node, path, data, name, trailer)
        assert (reply.status, reply.error()["Code"]) == (400, code), trailer
    assert keys_of(node, place) == []
    reply = put_in_pieces(node, path, data, name, f"{name}:{right}")
    assert (reply.status, reply.headers[name]) == (200, right), reply.body
    assert ask(node, "GET", path).body == data
    check_shown(node, path, kind, right)


@pytest.mark.parametrize("kind, how", [("crc32c", "COMPOSITE"), ("crc32c", "FULL_OBJECT"), ("crc64nvme", "FULL_OBJECT")])
def test_checksums_of_parts_that_boto3_does_not_compute(node, place, kind, how):
    """Of parts and of the object, as the client says them or computed here; a wrong one of either is refused. The other kinds are
    those of test_s3_parts.test_checksums_of_parts."""
    s3, digest, name = node.s3(request_checksum_calculation="when_required"), KINDS[kind], f"Checksum{kind.upper()}"
    parts = [harness.random_bytes(5 * MIB, seed=1), b"end"]
    sums = [digest(part) for part in parts]
    whole = b64(digest(parts[1], before=sums[0])) if how == "FULL_OBJECT" else b64(digest(b"".join(sums))) + "-2"
    where = {"Bucket": place, "Key": "k"}
    begun = s3.create_multipart_upload(**where, ChecksumAlgorithm=kind.upper(), ChecksumType=how)
    assert (begun["ChecksumAlgorithm"], begun["ChecksumType"]) == (kind.upper(), how)
    upload = {**where, "UploadId": begun["UploadId"]}
    wrong = {name: b64(digest(b"other"))}
    assert refused(s3.upload_part, **upload, PartNumber=1, Body=parts[0], **wrong) == (400, "BadDigest")
    said = s3.upload_part(**upload, PartNumber=1, Body=parts[0], **{name: b64(sums[0])})
    computed = s3.upload_part(**upload, PartNumber=2, Body=parts[1])
    assert [said[name], computed[name]] == list(map(b64, sums))
    assert [p[name] for p in s3.list_parts(**upload)["Parts"]] == list(map(b64, sums))
    listed = {"Parts": [{"PartNumber": n, "ETag": part["ETag"]} for n, part in enumerate((said, computed), 1)]}
    for bad in (b64(digest(b"other")), whole.replace("-2", "-3") if how == "COMPOSITE" else whole + "-2"):
        assert refused(s3.complete_multipart_upload, **upload, MultipartUpload=listed, **{name: bad}) == (400, "BadDigest"), bad
    assert keys_of(node, place) == []
    done = s3.complete_multipart_upload(**upload, MultipartUpload=listed, ChecksumType=how, **{name: whole})
    assert (done[name], done["ChecksumType"]) == (whole, how)
    check_shown(node, f"/{place}/k", kind, whole, how)


@pytest.mark.parametrize("size", [0, 3000, 3_000_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checksum_that_a_copy_asks_for(node, place, kind, size):
    """x-amz-checksum-algorithm of a copy: computed of its bytes, in the answer, kept and shown, also of an object that is copied onto
    itself for it; the metadata stays."""
    data, s3 = harness.random_bytes(size), node.s3()
    right = b64(KINDS[kind](data))
    s3.put_object(Bucket=place, Key="k", Body=data, Metadata={"a": "b"}, ContentType="text/x")
    for key in ("copy", "k"):
        made = s3.copy_object(Bucket=place, Key=key, CopySource={"Bucket": place, "Key": "k"}, ChecksumAlgorithm=kind.upper())
        assert made["CopyObjectResult"][f"Checksum{kind.upper()}"] == right
        check_shown(node, f"/{place}/{key}", kind, right)
        got = s3.get_object(Bucket=place, Key=key)
        assert got["Body"].read() == data and (got["Metadata"], got["ContentType"]) == ({"a": "b"}, "text/x")
    path = f"/{place}/again"
    for algorithm in ("MD5", "crc31"):
        headers = signed(node, "PUT", path, {"x-amz-copy-source": f"/{place}/k", "x-amz-checksum-algorithm": algorithm})
        assert send(node, "PUT", path, headers).error()["Code"] == "InvalidRequest"
    assert keys_of(node, place) == ["copy", "k"]


def test_a_checksum_of_a_copied_value(node):
    """Also in a bucket that keeps its values in memory."""
    place, s3, data = harness.random_name(), node.s3(), b"a value"
    with node.wire() as connection:
        connection.bucket_create(place, {"values": "memory"})
    s3.put_object(Bucket=place, Key="k", Body=data)
    made = s3.copy_object(Bucket=place, Key="copy", CopySource={"Bucket": place, "Key": "k"}, ChecksumAlgorithm="SHA256")
    right = b64(KINDS["sha256"](data))
    assert made["CopyObjectResult"]["ChecksumSHA256"] == right
    check_shown(node, f"/{place}/copy", "sha256", right)
