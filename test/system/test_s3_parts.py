"""What an object keeps of the parts that it was uploaded in: their numbers, sizes and checksums, through listings, reads of
one part, attributes, copies, restarts and writes by a mount."""

import base64
import hashlib
import os
import urllib.parse
import zlib

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.exceptions
import pytest

import harness
import mounted
from test_s3_security import fetch
from test_s3_settings import refused

MIB = 1 << 20
SIZES = {1: 5 * MIB, 2: 5 * MIB + 7, 9: 11}  # numbers may leave gaps


def b64(data):
    return base64.b64encode(data).decode()


def crc64nvme(data):
    """Of a few bytes, bit by bit, as the specification writes it."""
    crc = (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return (crc ^ ((1 << 64) - 1)).to_bytes(8, "big")


DIGESTS = {
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}


def expected(algorithm, kind, parts):
    digest = DIGESTS[algorithm]
    if kind == "FULL_OBJECT":
        return b64(digest(b"".join(parts)))
    return f"{b64(digest(b''.join(map(digest, parts))))}-{len(parts)}"


class Made:
    """An object of a scratch bucket that was uploaded in parts."""

    def __init__(self, s3, bucket, key="k", sizes=SIZES, **more):
        self.s3, self.where = s3, {"Bucket": bucket, "Key": key}
        self.parts = {n: harness.random_bytes(size, seed=n) for n, size in sizes.items()}
        self.upload = s3.create_multipart_upload(**self.where, **more)
        self.open = {**self.where, "UploadId": self.upload["UploadId"]}
        self.answers = {n: s3.upload_part(**self.open, PartNumber=n, Body=data,
                                          **{k: v for k, v in more.items() if k == "ChecksumAlgorithm"})
                        for n, data in self.parts.items()}

    def listed(self, **more):
        return {"Parts": [{"PartNumber": n, "ETag": a["ETag"], **more.get(str(n), {})} for n, a in self.answers.items()]}

    def complete(self, **more):
        return self.s3.complete_multipart_upload(**self.open, MultipartUpload=self.listed(), **more)


@pytest.fixture
def scratch(node):
    name = harness.random_name("scratch")
    node.s3().create_bucket(Bucket=name)
    return name


@pytest.mark.parametrize("algorithm,kind", [("CRC32", "FULL_OBJECT"), ("CRC32", "COMPOSITE"), ("SHA1", "COMPOSITE"),
                                            ("SHA256", "COMPOSITE")])
def test_checksums_of_parts(node, scratch, algorithm, kind):
    """They are shown with each part and with the object, in every way that asks for them, also after a restart."""
    s3, name = node.s3(), f"Checksum{algorithm}"
    made = Made(s3, scratch, ChecksumAlgorithm=algorithm, ChecksumType=kind)
    assert (made.upload["ChecksumAlgorithm"], made.upload["ChecksumType"]) == (algorithm, kind)
    each = {n: b64(DIGESTS[algorithm](data)) for n, data in made.parts.items()}
    whole = expected(algorithm, kind, made.parts.values())
    listing = s3.list_parts(**made.open)
    assert (listing["ChecksumAlgorithm"], listing["ChecksumType"]) == (algorithm, kind)
    assert {p["PartNumber"]: p[name] for p in listing["Parts"]} == each
    assert {n: a[name] for n, a in made.answers.items()} == each
    done = made.complete()
    assert (done[name], done["ChecksumType"]) == (whole, kind)
    again = made.complete()
    assert (again["ETag"], again[name]) == (done["ETag"], whole)
    for restarted in (False, True):
        if restarted:
            node.restart()
            s3 = node.s3()
        head = s3.head_object(**made.where, ChecksumMode="ENABLED")
        assert (head[name], head["ChecksumType"]) == (whole, kind)
        offset = 0
        for number, data in made.parts.items():
            got = s3.get_object(**made.where, PartNumber=number, ChecksumMode="ENABLED")
            assert got["Body"].read() == data and got["ETag"] == done["ETag"]
            assert (got["PartsCount"], got[name], got["ChecksumType"]) == (3, each[number], kind)
            assert got["ContentRange"] == f"bytes {offset}-{offset + len(data) - 1}/{sum(SIZES.values())}"
            head = s3.head_object(**made.where, PartNumber=number)
            assert (head["ContentLength"], head["PartsCount"]) == (len(data), 3)
            offset += len(data)
        got = s3.get_object_attributes(**made.where, ObjectAttributes=["Checksum", "ObjectParts", "ETag"])
        assert got["Checksum"] == {name: whole, "ChecksumType": kind}
        assert [(p["PartNumber"], p["Size"], p[name]) for p in got["ObjectParts"]["Parts"]] == [
            (n, SIZES[n], each[n]) for n in SIZES]
        pages, marker = [], 0
        while marker is not None:
            page = s3.get_object_attributes(**made.where, ObjectAttributes=["ObjectParts"], MaxParts=2,
                                            PartNumberMarker=marker)["ObjectParts"]
            pages.append([p["PartNumber"] for p in page["Parts"]])
            assert page["TotalPartsCount"] == 3
            marker = page["NextPartNumberMarker"] if page["IsTruncated"] else None
        assert pages == [[1, 2], [9]]


def test_crc64nvme_of_parts(node, scratch):
    """It is of the whole object without being asked for so, and computed where the client sends another kind."""
    s3 = node.s3(request_checksum_calculation="when_required")
    upload = s3.create_multipart_upload(Bucket=scratch, Key="k", ChecksumAlgorithm="CRC64NVME")
    assert upload["ChecksumType"] == "FULL_OBJECT"
    where = {"Bucket": scratch, "Key": "k", "UploadId": upload["UploadId"]}
    etag = s3.upload_part(**where, PartNumber=1, Body=b"a few bytes")
    assert etag["ChecksumCRC64NVME"] == b64(crc64nvme(b"a few bytes"))
    done = s3.complete_multipart_upload(**where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag["ETag"]}]})
    assert (done["ChecksumCRC64NVME"], done["ChecksumType"]) == (b64(crc64nvme(b"a few bytes")), "FULL_OBJECT")


def test_what_an_upload_may_not_ask_for(bucket):
    """Combinations that S3 has not are refused before there is an upload, in buckets of both kinds."""
    for wrong in ({"ChecksumAlgorithm": "SHA256", "ChecksumType": "FULL_OBJECT"},
                  {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "COMPOSITE"}, {"ChecksumAlgorithm": "MD4"}):
        assert refused(bucket.s3.create_multipart_upload, Bucket=bucket.name, Key="k", **wrong) == (400, "InvalidRequest")
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name)


@pytest.mark.parametrize("kind", ["scratch", "mirror"])
def test_completions_with_wrong_checksums(node, origin, scratch, kind):
    """A wrong checksum of the object or of a part in the list, another type or size: refused, and the upload is as it was."""
    where = scratch if kind == "scratch" else node.new_bucket(origin)
    s3 = node.s3()
    made = Made(s3, where, ChecksumAlgorithm="SHA256")
    whole = expected("SHA256", "COMPOSITE", made.parts.values())
    for wrong in ("bad", "A" * 43 + "=-3", whole[:-1] + "2"):
        assert refused(made.complete, ChecksumSHA256=wrong) == (400, "BadDigest"), wrong
    assert refused(made.complete, ChecksumType="FULL_OBJECT") == (400, "InvalidRequest")
    assert refused(made.complete, MpuObjectSize=5) == (400, "InvalidRequest")
    assert refused(made.complete, ChecksumSHA256=whole, ChecksumCRC32="AAAAAA==") == (400, "InvalidRequest")
    bad_part = made.listed(**{"2": {"ChecksumSHA256": b64(bytes(32))}})
    assert refused(s3.complete_multipart_upload, **made.open, MultipartUpload=bad_part) == (400, "InvalidPart")
    assert refused(s3.head_object, **made.where)[0] == 404
    right = {str(n): {"ChecksumSHA256": a["ChecksumSHA256"]} for n, a in made.answers.items()}
    done = s3.complete_multipart_upload(**made.open, MultipartUpload=made.listed(**right), ChecksumSHA256=whole,
                                        ChecksumType="COMPOSITE", MpuObjectSize=sum(SIZES.values()))
    assert done["ChecksumSHA256"] == whole and made.complete()["ChecksumSHA256"] == whole
    assert s3.head_object(**made.where, ChecksumMode="ENABLED")["ChecksumSHA256"] == whole


def test_parts_of_an_upload_at_the_origin(node, origin):
    """Checksums of parts that went to an origin are listed; what the origin does not keep is not in the way of anything. Of
    the object it tells the parts, as the origin counts them."""
    name, s3 = node.new_bucket(origin), node.s3()
    made = Made(s3, name, ChecksumAlgorithm="SHA256")
    node.restart()
    s3 = made.s3 = node.s3()
    assert {p["PartNumber"]: p["ChecksumSHA256"] for p in s3.list_parts(**made.open)["Parts"]} == {
        n: b64(hashlib.sha256(data).digest()) for n, data in made.parts.items()}
    made.complete()
    found = origin.s3().head_object(**made.where)
    assert found["Metadata"] == {}
    assert s3.get_object(**made.where)["Body"].read() == b"".join(made.parts.values())
    for number in (1, 2):
        got = s3.get_object(**made.where, PartNumber=number)
        assert (got["Body"].read(), got["PartsCount"]) == (made.parts[number], len(made.parts))
    shown = s3.get_object_attributes(**made.where, ObjectAttributes=["ObjectParts", "ETag"])
    assert [p["Size"] for p in shown["ObjectParts"]["Parts"]] == [len(data) for data in made.parts.values()]
    assert shown["ObjectParts"]["TotalPartsCount"] == len(made.parts)
    s3.put_object(Bucket=name, Key="whole", Body=b"whole")
    assert "ObjectParts" not in s3.get_object_attributes(Bucket=name, Key="whole", ObjectAttributes=["ObjectParts"])


def test_part_numbers_of_reads(bucket, scratch):
    """Part 1 of what was not uploaded in parts is all of it; other numbers are no part; a range beside it is refused."""
    s3 = bucket.s3
    for name in (bucket.name, scratch):
        where = {"Bucket": name, "Key": "k"}
        etag = s3.put_object(**where, Body=b"body")["ETag"]
        got = s3.get_object(**where, PartNumber=1)
        assert got["Body"].read() == b"body" and got["ETag"] == etag and "PartsCount" not in got
        for call in (s3.get_object, s3.head_object):
            assert refused(call, **where, PartNumber=2)[0] == 416
        assert refused(s3.get_object, **where, PartNumber=2) == (416, "InvalidPartNumber")
        assert refused(s3.get_object, **where, PartNumber=0) == (400, "InvalidArgument")
        assert refused(s3.get_object, **where, PartNumber=1, Range="bytes=0-1") == (400, "InvalidRequest")
        assert refused(s3.get_object, Bucket=name, Key="none", PartNumber=1) == (404, "NoSuchKey")
        s3.put_object(**where, Body=b"")
        assert s3.get_object(**where, PartNumber=1)["Body"].read() == b""


def test_part_numbers_at_an_origin_that_tells(node, scratch):
    """Of an object that was uploaded in parts to an S3 origin which knows them, here another bucket of the node by its S3
    port, each part can be read by its number, and is as it was sent; also once the object was replaced."""
    s3, name = node.s3(), harness.random_name()
    endpoint = urllib.parse.urlsplit(node.endpoint).netloc
    access, secret = node.credentials
    node.create_bucket(name, f"forebay://{endpoint}/{scratch}",
                       **{"origin.access_key": access, "origin.secret_key": secret, "validate": "always"})
    for more in ({}, {"Metadata": {"again": "1"}}):
        made = Made(s3, scratch, **more)
        made.complete()
        assert s3.head_object(Bucket=name, Key="k")["Metadata"] == more.get("Metadata", {})
        for number, data in made.parts.items():
            got = s3.get_object(Bucket=name, Key="k", PartNumber=number)
            assert got["Body"].read() == data and got["PartsCount"] == len(made.parts)
            head = s3.head_object(Bucket=name, Key="k", PartNumber=number)
            assert (head["ContentLength"], head["PartsCount"]) == (len(data), len(made.parts))
        beyond = max(made.parts) + 1
        assert refused(s3.get_object, Bucket=name, Key="k", PartNumber=beyond) == (416, "InvalidPartNumber")
    assert refused(s3.get_object, Bucket=name, Key="none", PartNumber=1) == (404, "NoSuchKey")


def test_attributes_of_parts_at_an_origin_that_tells(node, scratch, origin):
    """GetObjectAttributes of an object whose origin knows its parts, here another bucket of the node by its S3 port, lists them with
    numbers, sizes and checksums, by pages, also where numbers leave gaps; at versitygw as that counts them. (Seen to fail, with the
    count alone, without page_at_origin.)"""
    s3, name = node.s3(), harness.random_name()
    endpoint = urllib.parse.urlsplit(node.endpoint).netloc
    access, secret = node.credentials
    node.create_bucket(name, f"forebay://{endpoint}/{scratch}",
                       **{"origin.access_key": access, "origin.secret_key": secret, "validate": "always"})

    def shown(where=name, **more):
        return s3.get_object_attributes(Bucket=where, Key="k", ObjectAttributes=["ObjectParts", "ETag"], **more)["ObjectParts"]

    for sizes in (SIZES, {1: 5 * MIB, 3: 5 * MIB, 7: 11}):
        made = Made(s3, scratch, sizes=sizes, ChecksumAlgorithm="SHA256")
        made.complete()
        there = shown(scratch)
        assert [(p["PartNumber"], p["Size"]) for p in there["Parts"]] == list(sizes.items())
        here = shown()
        assert (here["Parts"], here["TotalPartsCount"], here["IsTruncated"]) == (there["Parts"], len(sizes), False)
        assert here["NextPartNumberMarker"] == max(sizes)
        pages, after = [], 0
        while not pages or pages[-1]["IsTruncated"]:
            pages.append(shown(MaxParts=1, PartNumberMarker=after))
            assert after < pages[-1]["NextPartNumberMarker"] and pages[-1]["TotalPartsCount"] == len(sizes)
            after = pages[-1]["NextPartNumberMarker"]
        assert [p for page in pages for p in page.get("Parts", [])] == there["Parts"]
    at_origin = node.new_bucket(origin)
    made = Made(s3, at_origin)
    made.complete()
    assert [p["Size"] for p in shown(at_origin)["Parts"]] == [len(data) for _, data in sorted(made.parts.items())]
    behind = shown(at_origin, PartNumberMarker=len(made.parts))
    assert (behind.get("Parts", []), behind["IsTruncated"]) == ([], False)
    s3.put_object(Bucket=at_origin, Key="k", Body=b"one piece")
    assert "ObjectParts" not in s3.get_object_attributes(Bucket=at_origin, Key="k", ObjectAttributes=["ObjectParts", "ETag"])


def test_values_in_memory_have_no_parts(node):
    """An object of a bucket with values=memory is one piece: part 1 is all of it, and its tags can be changed."""
    name, s3 = harness.random_name("values"), node.s3()
    node.cli("bucket", "create", name, "values=memory")
    where = {"Bucket": name, "Key": "k"}
    made = s3.put_object(**where, Body=b"value", ChecksumAlgorithm="CRC32")
    got = s3.get_object(**where, PartNumber=1, ChecksumMode="ENABLED")
    assert got["Body"].read() == b"value" and got["ChecksumCRC32"] == made["ChecksumCRC32"]
    assert refused(s3.get_object, **where, PartNumber=2) == (416, "InvalidPartNumber")
    assert "ObjectParts" not in s3.get_object_attributes(**where, ObjectAttributes=["ObjectParts", "ETag"])
    s3.put_object_tagging(**where, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert s3.head_object(**where, ChecksumMode="ENABLED")["ChecksumCRC32"] == made["ChecksumCRC32"]
    assert refused(s3.put_object, **where, Body=b"x", IfNoneMatch='"0123"') == (501, "NotImplemented")


def test_parts_have_the_numbers_of_the_completion(node, scratch):
    """Of parts 3 and 7 there is no first or second one: partNumber, attributes and the listing have the numbers of the upload."""
    s3, made = node.s3(), Made(node.s3(), scratch, sizes={3: 5 * MIB, 7: 11})
    assert made.complete()["ETag"].endswith('-2"')
    for number, data in made.parts.items():
        got = s3.get_object(**made.where, PartNumber=number)
        assert (got["Body"].read(), got["PartsCount"]) == (data, 2)
        assert s3.head_object(**made.where, PartNumber=number)["ContentLength"] == len(data)
    for number in (1, 2, 5, 8, 10_000):
        assert refused(s3.get_object, **made.where, PartNumber=number) == (416, "InvalidPartNumber")
    with pytest.raises(botocore.exceptions.ClientError) as beyond:
        s3.get_object(**made.where, PartNumber=5)
    assert {k: beyond.value.response["Error"][k] for k in ("PartNumberRequested", "ActualPartCount")} == {
        "PartNumberRequested": "5", "ActualPartCount": "2"}
    assert refused(s3.get_object, **made.where, PartNumber=10_001) == (400, "InvalidArgument")
    shown = s3.get_object_attributes(**made.where, ObjectAttributes=["ObjectParts"])["ObjectParts"]
    assert [(p["PartNumber"], p["Size"]) for p in shown["Parts"]] == [(3, 5 * MIB), (7, 11)]


def test_copies_and_tags_keep_parts(node, scratch):
    """A copy inside the bucket, a rename by the command line and new tags leave ETag, parts and checksum as they are; a
    copy with other metadata is one piece, and does not show a checksum of parts."""
    s3 = node.s3()
    made = Made(s3, scratch, ChecksumAlgorithm="SHA256")
    done = made.complete()

    def look(key):
        where = {"Bucket": scratch, "Key": key}
        shown = s3.head_object(**where, ChecksumMode="ENABLED")
        parts = s3.get_object_attributes(**where, ObjectAttributes=["ObjectParts"]).get("ObjectParts", {})
        return shown["ETag"], shown.get("ChecksumSHA256"), [p["PartNumber"] for p in parts.get("Parts", [])]

    same = (done["ETag"], done["ChecksumSHA256"], list(SIZES))
    assert look("k") == same
    source = {"Bucket": scratch, "Key": "k"}
    s3.copy_object(Bucket=scratch, Key="copy", CopySource=source)
    s3.put_object_tagging(**source, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert look("copy") == look("k") == same
    s3.delete_object(Bucket=scratch, Key="k")
    assert s3.get_object(Bucket=scratch, Key="copy", PartNumber=9)["Body"].read() == made.parts[9]
    s3.copy_object(Bucket=scratch, Key="new", CopySource={"Bucket": scratch, "Key": "copy"}, MetadataDirective="REPLACE")
    etag, checksum, parts = look("new")
    assert "-" not in etag and checksum is None and parts == []
    s3.put_object(Bucket=scratch, Key="copy", Body=b"other")
    assert refused(s3.get_object, Bucket=scratch, Key="copy", PartNumber=9) == (416, "InvalidPartNumber")


def test_parts_end_with_their_bytes(node, scratch, tmp_path, need_fuse):
    """Once a mount wrote to the file nothing is said of parts any more."""
    s3 = node.s3()
    made = Made(s3, scratch, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    made.complete()
    with mounted.Mount(tmp_path, node, scratch) as mount:
        top = mount.path
        os.chmod(top / "k", 0o600)
        assert s3.get_object(**made.where, PartNumber=2)["Body"].read() == made.parts[2]
        with open(top / "k", "r+b") as file:
            file.write(b"changed")
    assert "ObjectParts" not in s3.get_object_attributes(**made.where, ObjectAttributes=["ObjectParts"])
    assert "ChecksumCRC32" not in s3.head_object(**made.where, ChecksumMode="ENABLED")
    got = s3.get_object(**made.where, PartNumber=1)
    assert got["ContentLength"] == sum(SIZES.values()) and "PartsCount" not in got


def put_with_trailer(node, path, data):
    """PUT as SDKs send it over TLS: the checksum behind the body, in a trailer."""
    checksum = b64(zlib.crc32(data).to_bytes(4, "big"))
    body = b"%x\r\n" % len(data) + data + f"\r\n0\r\nx-amz-checksum-crc32:{checksum}\r\n\r\n".encode()
    request = botocore.awsrequest.AWSRequest("PUT", f"{node.endpoint}/{path}", data=body, headers={
        "x-amz-trailer": "x-amz-checksum-crc32", "x-amz-decoded-content-length": str(len(data)), "Content-Encoding": "aws-chunked"})
    request.context["checksum"] = {"request_algorithm": {"in": "trailer"}}
    credentials = botocore.credentials.Credentials(*node.credentials)
    botocore.auth.S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    assert request.headers["X-Amz-Content-SHA256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    assert fetch(request.url, "PUT", body, dict(request.headers)).status == 200
    return checksum


def test_a_checksum_behind_a_long_body(node, scratch, origin):
    """That of a trailer is known only at the end, and kept all the same."""
    s3 = node.s3()
    data = harness.random_bytes(9 * MIB)
    for name in (scratch, node.new_bucket(origin)):
        where = {"Bucket": name, "Key": "k"}
        made = put_with_trailer(node, f"{name}/k", data)
        assert s3.head_object(**where, ChecksumMode="ENABLED")["ChecksumCRC32"] == made
