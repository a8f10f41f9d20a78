"""Multipart uploads: what boto3 and aws-cli do by themselves above 8 MiB, and every way in which an upload can go wrong."""

import base64
import concurrent.futures
import json
import zlib

import boto3.s3.transfer
import botocore.exceptions
import pytest

import harness

MIB = 1 << 20


def code_of(call):
    with pytest.raises(botocore.exceptions.ClientError) as error:
        call()
    return error.value.response["Error"]["Code"]


def keys_at_origin(bucket):
    return [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name).get("Contents", [])]


class Upload:
    """One upload of key "k", part by part."""

    def __init__(self, bucket, **arguments):
        self.bucket, self.where = bucket, {"Bucket": bucket.name, "Key": "k"}
        self.id = bucket.s3.create_multipart_upload(**self.where, **arguments)["UploadId"]
        self.etags = {}

    def part(self, number, data):
        answer = self.bucket.s3.upload_part(**self.where, UploadId=self.id, PartNumber=number, Body=data)
        self.etags[number] = answer["ETag"]
        return answer

    def complete(self, numbers=None, **arguments):
        parts = [{"PartNumber": n, "ETag": self.etags.get(n, '"0"')} for n in numbers or sorted(self.etags)]
        return self.bucket.s3.complete_multipart_upload(**self.where, UploadId=self.id,
                                                        MultipartUpload={"Parts": parts}, **arguments)

    def abort(self):
        return self.bucket.s3.abort_multipart_upload(**self.where, UploadId=self.id)


def check(bucket, data):
    for client in (bucket.truth, bucket.s3):
        assert client.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data


def test_upload_file_of_boto3(bucket, tmp_path):
    """upload_file and download_file as they come, with their threads."""
    data = harness.random_bytes(50 * MIB + 12345)
    (tmp_path / "in").write_bytes(data)
    bucket.s3.upload_file(str(tmp_path / "in"), bucket.name, "k", ExtraArgs={"ContentType": "a/b", "Metadata": {"m": "1"}})
    check(bucket, data)
    found = bucket.truth.head_object(Bucket=bucket.name, Key="k")
    assert (found["ContentType"], found["Metadata"]) == ("a/b", {"m": "1"})
    bucket.s3.download_file(bucket.name, "k", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data


def test_cp_of_awscli(bucket, tmp_path):
    """aws s3 cp of large files, up, across and down."""
    data = harness.random_bytes(20 * MIB + 1)
    (tmp_path / "in").write_bytes(data)
    bucket.node.aws("s3", "cp", tmp_path / "in", f"s3://{bucket.name}/from")
    bucket.node.aws("s3", "cp", f"s3://{bucket.name}/from", f"s3://{bucket.name}/k")
    check(bucket, data)
    bucket.node.aws("s3", "cp", f"s3://{bucket.name}/k", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data


def test_parts_in_any_order(bucket):
    """Parts may come in any order and in parallel; the list decides."""
    parts = {n: harness.random_bytes(5 * MIB) for n in range(1, 6)}
    parts[6] = harness.random_bytes(77)
    upload = Upload(bucket)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: upload.part(n, parts[n]), [3, 1, 6, 2, 5, 4]))
    etag = upload.complete()["ETag"]
    check(bucket, b"".join(parts[n] for n in range(1, 7)))
    assert bucket.s3.head_object(Bucket=bucket.name, Key="k")["ETag"] == etag


def test_parts_of_unequal_size(bucket):
    """A small part seen first, larger ones later, numbers with gaps: put together in the order of the list."""
    parts = {9: harness.random_bytes(10), 2: harness.random_bytes(7 * MIB), 5: harness.random_bytes(5 * MIB + 3)}
    upload = Upload(bucket)
    for number in (9, 5, 2):
        upload.part(number, parts[number])
    upload.complete()
    check(bucket, parts[2] + parts[5] + parts[9])


def test_parts_sent_again(bucket):
    """The last upload of a number counts; parts that are not listed do not."""
    first, second, third = (harness.random_bytes(5 * MIB) for _ in range(3))
    upload = Upload(bucket)
    upload.part(1, first)
    upload.part(2, first)
    upload.part(1, second)
    upload.part(3, third)
    upload.complete([1, 3])
    check(bucket, second + third)


def test_bad_lists_are_refused(bucket):
    """Wrong order, missing parts, wrong ETags and small parts: refused, and the upload can still be completed."""
    parts = [harness.random_bytes(5 * MIB), harness.random_bytes(100), harness.random_bytes(200)]
    upload = Upload(bucket)
    for number, data in enumerate(parts, 1):
        upload.part(number, data)
    assert code_of(lambda: upload.complete([2, 1])) == "InvalidPartOrder"
    assert code_of(lambda: upload.complete([1, 1])) == "InvalidPartOrder"
    assert code_of(lambda: upload.complete([1, 7])) == "InvalidPart"
    assert code_of(lambda: upload.complete([1, 2, 3])) == "EntityTooSmall"
    right = upload.etags[1]
    upload.etags[1] = '"00000000000000000000000000000000"'
    assert code_of(lambda: upload.complete([1, 2])) == "InvalidPart"
    upload.etags[1] = right
    assert keys_at_origin(bucket) == []
    upload.complete([1, 3])
    check(bucket, parts[0] + parts[2])


def test_abort(bucket):
    """After an abort nothing is left, and the id is unknown."""
    before = bucket.node.metric("forebay_handles", kind="write")
    upload = Upload(bucket)
    upload.part(1, harness.random_bytes(5 * MIB))
    upload.abort()
    assert keys_at_origin(bucket) == []
    for call in (lambda: upload.part(2, b"x"), lambda: upload.complete([1]), upload.abort):
        assert code_of(call) == "NoSuchUpload"
    harness.wait_until(lambda: bucket.node.metric("forebay_handles", kind="write") == before, what="handles closed")


def test_uploads_of_other_keys_are_not_found(bucket):
    """An id is good for its own bucket and key only."""
    upload = Upload(bucket)
    upload.where = {"Bucket": bucket.name, "Key": "other"}
    assert code_of(lambda: upload.part(1, b"x")) == "NoSuchUpload"
    upload.id = "0" * 32
    assert code_of(lambda: upload.part(1, b"x")) == "NoSuchUpload"


def test_part_numbers(bucket):
    """Numbers from 1 to 10000."""
    upload = Upload(bucket)
    for number in (0, 10001):
        assert code_of(lambda: upload.part(number, b"x")) == "InvalidArgument"
    upload.part(10000, b"last")
    upload.complete()
    check(bucket, b"last")


def test_wrong_checksums_of_parts(bucket):
    """A part with a wrong checksum is no part; the one before it stays."""
    data = harness.random_bytes(5 * MIB)
    upload = Upload(bucket)
    upload.part(1, data)
    assert code_of(lambda: bucket.s3.upload_part(**upload.where, UploadId=upload.id, PartNumber=1, Body=b"other",
                                                 ChecksumCRC32="AAAAAA==")) == "BadDigest"
    upload.complete()
    check(bucket, data)


def test_checksum_of_the_object(bucket):
    """A checksum of the whole object in the completion is compared."""
    parts = [harness.random_bytes(5 * MIB), b"end"]
    whole = b"".join(parts)
    upload = Upload(bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    for number, data in enumerate(parts, 1):
        upload.part(number, data)
    assert code_of(lambda: upload.complete(ChecksumCRC32="AAAAAA==", ChecksumType="FULL_OBJECT")) == "BadDigest"
    assert keys_at_origin(bucket) == []
    right = base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode()
    upload.complete(ChecksumCRC32=right, ChecksumType="FULL_OBJECT")
    check(bucket, whole)


def test_conditional_completion(bucket):
    """If-None-Match: * on the completion creates only."""
    upload = Upload(bucket)
    upload.part(1, b"one")
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"there")
    assert code_of(lambda: upload.complete(IfNoneMatch="*")) == "PreconditionFailed"
    check(bucket, b"there")
    bucket.s3.delete_object(Bucket=bucket.name, Key="k")
    upload.complete(IfNoneMatch="*")
    check(bucket, b"one")


def test_completing_twice(bucket):
    """A client that did not hear the first answer gets it again."""
    upload = Upload(bucket)
    upload.part(1, b"data")
    assert upload.complete()["ETag"] == upload.complete()["ETag"]


def test_copied_parts(bucket):
    """Parts copied from objects, whole and by range."""
    source = harness.random_bytes(6 * MIB)
    bucket.truth.put_object(Bucket=bucket.name, Key="source", Body=source)
    upload = Upload(bucket)
    for number, more in ((1, {}), (2, {"CopySourceRange": "bytes=100-299"})):
        answer = bucket.s3.upload_part_copy(**upload.where, UploadId=upload.id, PartNumber=number,
                                            CopySource={"Bucket": bucket.name, "Key": "source"}, **more)
        upload.etags[number] = answer["CopyPartResult"]["ETag"]
    for range_, code in (("bytes=0-99999999", "InvalidRange"), ("bytes=-5", "InvalidArgument"), ("bytes=5-", "InvalidArgument"),
                         ("all", "InvalidArgument")):
        assert code_of(lambda: bucket.s3.upload_part_copy(
            **upload.where, UploadId=upload.id, PartNumber=3, CopySourceRange=range_,
            CopySource={"Bucket": bucket.name, "Key": "source"})) == code
    upload.complete()
    check(bucket, source + source[100:300])


def test_listings(bucket):
    """ListParts and ListMultipartUploads show what is open."""
    upload = Upload(bucket)
    for number in range(1, 6):
        upload.part(number, b"x" * number)
    pages = bucket.s3.get_paginator("list_parts").paginate(**upload.where, UploadId=upload.id,
                                                           PaginationConfig={"PageSize": 2})
    assert [(p["PartNumber"], p["Size"], p["ETag"]) for page in pages for p in page["Parts"]] == [
        (n, n, upload.etags[n]) for n in range(1, 6)]
    [entry] = bucket.s3.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    assert (entry["Key"], entry["UploadId"]) == ("k", upload.id)
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name, Prefix="other")
    upload.abort()
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name)


def test_a_failed_completion_can_be_repeated(bucket, new_shaper, node, origin):
    """When the origin fails for good at the end, the parts are still there."""
    shaper = new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s")
    data = harness.random_bytes(6 * MIB)
    here = type(bucket)(name, node.s3(), origin.s3(), node, origin)
    upload = Upload(here)
    upload.part(1, data)
    shaper.fault("status:403", match="PUT", count=20)
    assert code_of(upload.complete) == "AccessDenied"
    assert keys_at_origin(here) == []
    shaper.reset()
    upload.complete()
    check(here, data)


def test_a_slow_completion_keeps_the_client(new_shaper, node, origin, bucket):
    """While the origin takes longer than ten seconds the client gets signs of life, and then how it ended."""
    shaper = new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s")
    here = type(bucket)(name, node.s3(read_timeout=11), origin.s3(), node, origin)
    upload = Upload(here)
    upload.part(1, b"data")
    shaper.fault("stall", match="PUT", at=0, for_="12s", count=1)
    assert upload.complete()["ETag"]
    check(here, b"data")
    upload = Upload(here)
    upload.part(1, b"more")
    shaper.set(first_byte="12s")
    shaper.fault("status:403", match="PUT", count=50)
    assert code_of(upload.complete) == "AccessDenied"
    shaper.reset()
    shaper.set(first_byte="0ms")
    check(here, b"data")


def test_a_restart_forgets_uploads(new_node, origin, route):
    """Open uploads do not survive a restart; the client is told, nothing was acknowledged."""
    node = new_node(route=route)
    name = node.new_bucket(origin)
    s3 = node.s3()
    upload_id = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    s3.upload_part(Bucket=name, Key="k", UploadId=upload_id, PartNumber=1, Body=b"x")
    node.restart()
    s3 = node.s3()
    assert code_of(lambda: s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload_id, MultipartUpload={
        "Parts": [{"PartNumber": 1, "ETag": '"x"'}]})) == "NoSuchUpload"
    assert "Contents" not in origin.s3().list_objects_v2(Bucket=name)
