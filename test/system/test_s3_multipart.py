"""Multipart uploads: what boto3 and aws-cli do by themselves above 8 MiB, and every way in which an upload can go wrong."""

import base64
import concurrent.futures
import contextlib
import hashlib
import os
import re
import socket
import threading
import time
import urllib.parse
import zlib

import boto3.s3.transfer
import botocore.exceptions
import pytest

import harness
import keyorigin

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


class Coming:
    """A part of which the node has the head and some bytes, and that ends when it is told to. (Fewer than are looked at together: it
    waits for more, and hears of what became of its upload only then.)"""

    def __init__(self, upload, number, data, some=1000):
        client = upload.bucket.node.s3(signature_version="s3v4")
        url = urllib.parse.urlsplit(client.generate_presigned_url(
            "upload_part", {**upload.where, "UploadId": upload.id, "PartNumber": number}))
        self.rest = data[some:]
        self.connection = socket.create_connection((url.hostname, url.port))
        self.connection.settimeout(harness.PATIENCE)
        head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(data)}\r\n"
        self.connection.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert self.connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the part has begun
        self.connection.sendall(data[:some])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def end(self):
        """Sends the rest: the answer's status, and all of it as text."""
        answer = b""
        try:
            self.connection.sendall(self.rest)
        except OSError:
            pass  # it was answered before all had come
        while not (answer.startswith(b"HTTP/1.1 200 ") and b"\r\n\r\n" in answer) and b"</Error>" not in answer:
            more = self.connection.recv(65536)
            if not more:
                break
            answer += more
        return int(answer.split()[1]), answer.decode()


def check(bucket, data):
    for client in (bucket.truth, bucket.s3):
        assert client.get_object(Bucket=bucket.name, Key="k")["Body"].read() == data


@pytest.mark.parametrize("mib", [8, 20])  # 8: what clients take by themselves, and small enough to be hashed
def test_parts_larger_than_the_memory_for_them(new_node, origin, mib):
    """With the least --memory a part goes through that does not fit into what all parts together may hold."""
    node = new_node(memory="64MiB")
    s3, data = node.s3(), harness.random_bytes(mib * MIB)
    where = {"Bucket": node.new_bucket(origin), "Key": "k"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    etag = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=data)["ETag"]
    s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert origin.s3().get_object(**where)["Body"].read() == data


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
    bucket.s3.create_bucket(Bucket="scratch-of-uploads")
    upload.where["Bucket"] = "scratch-of-uploads"
    for call in (lambda: upload.part(1, b"x"), upload.abort, lambda: upload.complete([1])):
        assert code_of(call) == "NoSuchUpload"
    bucket.s3.delete_bucket(Bucket="scratch-of-uploads")


def test_part_numbers(bucket):
    """Numbers from 1 to 10000."""
    upload = Upload(bucket)
    for number in (0, 10001):
        assert code_of(lambda: upload.part(number, b"x")) == "InvalidArgument"
    upload.part(10000, b"last")
    upload.complete()
    check(bucket, b"last")


def test_wrong_checksums_of_parts(bucket):
    """A part with a wrong checksum is no part; the one before it stays, also where the wrong one has no bytes."""
    data = harness.random_bytes(5 * MIB)
    upload = Upload(bucket)
    upload.part(1, data)
    for body, wrong in ((b"other", {"ChecksumCRC32": "AAAAAA=="}), (b"", {"ContentMD5": base64.b64encode(bytes(16)).decode()})):
        assert code_of(lambda body=body, wrong=wrong: bucket.s3.upload_part(
            **upload.where, UploadId=upload.id, PartNumber=1, Body=body, **wrong)) == "BadDigest"
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


def test_copied_parts_that_no_byte_of_comes_here_for(bucket, node, origin):
    """Parts that are copied from a bucket of the same service, whole or by range, are the origin's own copies; those of an upload
    with checksums, which the origin does not tell of parts, and those from a scratch bucket go through the node. The object is
    right, and read from the origin. (Seen to fail without `copy_part_beside` in s3/multipart.c.)"""
    source, other, scratch = harness.random_bytes(6 * MIB), node.new_bucket(origin), harness.scratch_bucket(node)
    for name in (bucket.name, other):
        bucket.truth.put_object(Bucket=name, Key="source + \u00fc", Body=source)
    bucket.s3.put_object(Bucket=scratch, Key="source + \u00fc", Body=source)

    def moved():
        return [node.metric(f"forebay_origin_{way}_bytes_total", bucket=name) for way in ("written", "read")
                for name in (bucket.name, other)]

    def copy(upload, number, name, **more):
        made = bucket.s3.upload_part_copy(**upload.where, UploadId=upload.id, PartNumber=number,
                                          CopySource={"Bucket": name, "Key": "source + \u00fc"}, **more)
        upload.etags[number] = made["CopyPartResult"]["ETag"]

    upload, before = Upload(bucket), moved()
    copy(upload, 1, bucket.name)
    copy(upload, 2, other, CopySourceRange=f"bytes=100-{100 + 5 * MIB - 1}")
    copy(upload, 3, other)
    copy(upload, 3, other, CopySourceRange="bytes=7-7")
    assert moved() == before
    assert upload.etags[1] == f'"{hashlib.md5(source).hexdigest()}"'
    listed = bucket.s3.list_parts(**upload.where, UploadId=upload.id)["Parts"]
    assert [(p["PartNumber"], p["Size"], p["ETag"]) for p in listed] == [
        (n, size, upload.etags[n]) for n, size in ((1, 6 * MIB), (2, 5 * MIB), (3, 1))]
    upload.complete()
    assert moved() == before
    check(bucket, source + source[100:100 + 5 * MIB] + source[7:8])
    upload = Upload(bucket, ChecksumAlgorithm="CRC32")
    part = bucket.s3.upload_part_copy(**upload.where, UploadId=upload.id, PartNumber=1, CopySource=f"{other}/source + \u00fc")
    assert part["CopyPartResult"]["ChecksumCRC32"]
    upload.abort()
    upload, sent = Upload(bucket), node.metric("forebay_origin_written_bytes_total", bucket=bucket.name)
    copy(upload, 1, scratch)
    assert node.metric("forebay_origin_written_bytes_total", bucket=bucket.name) == sent + len(source)
    upload.complete()
    check(bucket, source)


class Capitals(keyorigin.Handler):
    """Copies parts, and writes their MD5 in capitals, as some services do: in these it wants to have them back, too."""

    def do_POST(self):
        self._parse()
        told = re.findall(r"[0-9A-Fa-f]{32}", self.body().decode())
        if "uploads" in self.query:
            return self.send(200, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
        if told != [etag for etag, _ in self.owner.parts]:
            return self._error(400, "InvalidPart")
        self.owner.objects[self.bucket, self.key] = keyorigin.Object(b"".join(data for _, data in self.owner.parts))
        return self.send(200, b'<CompleteMultipartUploadResult><ETag>"AB-1"</ETag></CompleteMultipartUploadResult>')

    def do_PUT(self):
        if "partNumber" not in self.path:
            return super().do_PUT()
        self._parse()
        self.body()
        bucket, _, key = urllib.parse.unquote(self.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        data = self.owner.objects[bucket, key].data
        self.owner.parts.append((hashlib.md5(data).hexdigest().upper(), data))
        return self.send(200, f'<CopyPartResult><ETag>"{self.owner.parts[-1][0]}"</ETag></CopyPartResult>'.encode())


def test_parts_that_the_origin_copies_with_etags_in_capitals(node):
    """A part that the origin copied by itself is found at the end of its upload however the service writes its ETag. It was an InvalidPart
    for ever."""
    name, source = harness.random_name(), harness.random_bytes(1000)
    with keyorigin.KeyOrigin(Capitals) as at:
        at.parts = []
        at.objects[name, "source"] = keyorigin.Object(source)
        node.create_bucket(name, f"s3://{name}", **at.properties())
        s3, where = node.s3(), {"Bucket": name, "Key": "k"}
        where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
        etag = s3.upload_part_copy(**where, PartNumber=1, CopySource=f"{name}/source")["CopyPartResult"]["ETag"]
        assert len(at.parts) == 1
        assert [p["ETag"] for p in s3.list_parts(**where)["Parts"]] == [etag]
        s3.complete_multipart_upload(**where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert at.objects[name, "k"].data == source


def test_listings(bucket):
    """ListParts and ListMultipartUploads show what is open."""
    upload = Upload(bucket)
    for number in range(1, 6):
        upload.part(number, b"x" * number)
    pages = bucket.s3.get_paginator("list_parts").paginate(**upload.where, UploadId=upload.id,
                                                           PaginationConfig={"PageSize": 2})
    assert [(p["PartNumber"], p["Size"], p["ETag"]) for page in pages for p in page["Parts"]] == [
        (n, n, upload.etags[n]) for n in range(1, 6)]
    owner = bucket.s3.list_buckets()["Owner"]
    assert all((page["Owner"], page["Initiator"], page["StorageClass"]) == (owner, owner, "STANDARD") for page in pages)
    [entry] = bucket.s3.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    assert (entry["Key"], entry["UploadId"]) == ("k", upload.id)
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name, Prefix="other")
    upload.abort()
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name)


@pytest.mark.parametrize("where", ["at the origin", "here"])
def test_pages_of_uploads(bucket, node, where):
    """However small its pages are a listing of uploads has all of them once, in the order of their keys, and of one key as they were begun."""
    name = bucket.name if where == "at the origin" else harness.random_name("scratch")
    if name != bucket.name:
        bucket.s3.create_bucket(Bucket=name)
    begun = sorted([(key, bucket.s3.create_multipart_upload(Bucket=name, Key=key)["UploadId"])
                    for key in ("c", "a/2", "b", "a/1", "b", "a", "b", "b", "d/1")], key=lambda upload: upload[0])

    def pages(size, **more):
        found = bucket.s3.get_paginator("list_multipart_uploads").paginate(
            Bucket=name, PaginationConfig={"PageSize": size}, **more)
        return [page for page in found]

    for size in (1, 2, 3, 8, 1000):
        some = pages(size)
        assert all(len(page.get("Uploads", [])) <= size for page in some)
        assert [(u["Key"], u["UploadId"]) for page in some for u in page.get("Uploads", [])] == begun
        some = pages(size, Delimiter="/")
        assert [u["Key"] for page in some for u in page.get("Uploads", [])] == ["a", "b", "b", "b", "b", "c"]
        assert [p["Prefix"] for page in some for p in page.get("CommonPrefixes", [])] == ["a/", "d/"]
    [page] = pages(1000, Prefix="a/", EncodingType="url")
    assert [u["Key"] for u in page["Uploads"]] == ["a/1", "a/2"] and not page["IsTruncated"]
    _, second, third, _ = [u for u in begun if u[0] == "b"]
    found = bucket.s3.list_multipart_uploads(Bucket=name, KeyMarker="b", UploadIdMarker=second[1], MaxUploads=1)
    assert [(u["Key"], u["UploadId"]) for u in found["Uploads"]] == [third] and found["IsTruncated"]
    assert code_of(lambda: bucket.s3.list_multipart_uploads(Bucket=name, MaxUploads=-1)) == "InvalidArgument"


def test_a_failed_completion_can_be_repeated(bucket, new_shaper, node, origin):
    """When the origin fails for good at the end, the parts are still there."""
    shaper = new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s")
    data = harness.random_bytes(6 * MIB)
    here = type(bucket)(name, node.s3(), origin.s3(), node, origin)
    upload = Upload(here)
    upload.part(1, data)
    shaper.fault("status:403", match="POST", count=20)
    assert code_of(upload.complete) == "AccessDenied"
    assert keys_at_origin(here) == []
    shaper.reset()
    upload.complete()
    check(here, data)


def test_a_slow_completion_keeps_the_client(new_shaper, node, origin, bucket):
    """While the origin takes longer than ten seconds the client gets signs of life, and then how it ended: one that succeeds, and one
    that is refused, at the same time."""
    slow, refusing = new_shaper(), new_shaper()

    def upload_at(shaper, data):
        name = node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s", **{"origin.timeout": "1h"})
        here = type(bucket)(name, node.s3(read_timeout=40), origin.s3(), node, origin)
        here.s3.put_object(Bucket=name, Key="k", Body=b"before")
        upload = Upload(here)
        upload.part(1, data)
        return upload

    good, bad = upload_at(slow, b"data"), upload_at(refusing, b"more")
    slow.fault("stall", match="POST", at=0, for_="45s", count=1)
    refusing.set(first_byte="45s")
    refusing.fault("status:403", match="POST", count=50)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = pool.submit(good.complete), pool.submit(code_of, bad.complete)
        assert ends[0].result()["ETag"]
        assert ends[1].result() == "AccessDenied"
    check(good.bucket, b"data")
    refusing.reset()
    refusing.set(first_byte="0ms")
    check(bad.bucket, b"before")


def open_at(bucket):
    return bucket.truth.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])


def own(bucket, node, name=None):
    """The bucket of that name at another node."""
    return type(bucket)(name or node.new_bucket(bucket.origin), node.s3(), bucket.truth, node, bucket.origin)


def test_parts_go_to_the_origin(bucket):
    """Parts are at the origin before the upload is completed; what becomes of them is cached when it was written in
    order, and an abort leaves nothing at the origin."""
    parts = {n: harness.random_bytes(5 * MIB) for n in (1, 2)}
    written = bucket.node.metric("forebay_origin_written_bytes_total", bucket=bucket.name)
    upload = Upload(bucket)
    for number, data in parts.items():
        upload.part(number, data)
    assert bucket.node.metric("forebay_origin_written_bytes_total", bucket=bucket.name) == written + 10 * MIB
    assert len(open_at(bucket)) == 1
    upload.complete()
    assert open_at(bucket) == []
    read = bucket.node.metric("forebay_origin_read_bytes_total", bucket=bucket.name)
    check(bucket, parts[1] + parts[2])
    assert bucket.node.metric("forebay_origin_read_bytes_total", bucket=bucket.name) == read
    upload = Upload(bucket)
    upload.part(1, b"x")
    upload.abort()
    assert open_at(bucket) == []


def test_parts_pass_through_side_by_side_and_while_they_come(new_shaper, node, origin, bucket):
    """A part that the origin does not answer keeps no other one from getting there, and the bytes of a part are at the origin before its
    client has sent all of them."""
    shaper = new_shaper()
    here = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint, **{"origin.timeout": "1h"}))
    first, second = (harness.random_bytes(5 * MIB) for _ in range(2))
    upload = Upload(here)
    shaper.fault("stall", match="PUT", at=0, count=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(upload.part, 1, first)
        try:
            harness.wait_until(lambda: shaper.stats()["faults_injected"] == 1, what="the origin does not answer")
            upload.part(2, second)
            assert not waiting.done()
        finally:
            shaper.release()
        waiting.result()
    upload.complete()
    check(here, first + second)
    upload, sent = Upload(here), shaper.stats()["verbs"]["PUT"]["request_bytes"]
    with half_a_part(here, upload):
        harness.wait_until(lambda: shaper.stats()["verbs"]["PUT"]["request_bytes"] - sent >= MIB, what="the beginning is there")


def test_uploads_outlive_kills(new_node, bucket, route):
    """kill -9 between parts, in the middle of one, and after the completion: uploads are listed and completed as if
    nothing had been, with the ETag of all parts."""
    node = new_node(route=route)
    here = own(bucket, node)
    parts = {n: harness.random_bytes(5 * MIB + n) for n in (1, 2, 3)}
    upload = Upload(here, ContentType="a/b", Metadata={"m": "1"}, ChecksumAlgorithm="CRC32",
                    ChecksumType="FULL_OBJECT")

    def again():
        node.kill()
        node.start()
        here.s3 = node.s3()

    upload.part(1, parts[1])
    again()
    [entry] = here.s3.list_multipart_uploads(Bucket=here.name)["Uploads"]
    assert (entry["Key"], entry["UploadId"]) == ("k", upload.id)
    with half_a_part(here, upload):
        again()
    listed = here.s3.list_parts(**upload.where, UploadId=upload.id)["Parts"]
    assert [(p["PartNumber"], p["ETag"]) for p in listed] == [(1, upload.etags[1])]
    upload.part(2, parts[2])
    upload.part(3, parts[3])
    again()
    whole = b"".join(parts.values())
    right = base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode()
    etag = upload.complete(ChecksumCRC32=right, ChecksumType="FULL_OBJECT")["ETag"]
    md5s = b"".join(hashlib.md5(parts[n]).digest() for n in (1, 2, 3))
    assert etag == f'"{hashlib.md5(md5s).hexdigest()}-3"'
    again()
    assert upload.complete()["ETag"] == etag
    check(here, whole)
    found = here.truth.head_object(Bucket=here.name, Key="k")
    assert (found["ContentType"], found["Metadata"]) == ("a/b", {"m": "1"})
    assert "Uploads" not in here.s3.list_multipart_uploads(Bucket=here.name)


def half_a_part(bucket, upload):
    """A connection that has sent the head and half of the body of part 2."""
    url = bucket.s3.generate_presigned_url("upload_part", {**upload.where, "UploadId": upload.id, "PartNumber": 2})
    parsed = urllib.parse.urlsplit(url)
    connection = socket.create_connection((parsed.hostname, parsed.port))
    head = f"PUT {parsed.path}?{parsed.query} HTTP/1.1\r\nHost: {parsed.netloc}\r\nContent-Length: {9 * MIB}\r\n\r\n"
    connection.sendall(head.encode() + bytes(4 * MIB))
    return connection


@pytest.fixture
def unheard(bucket, new_shaper, node, origin):
    """(bucket, its upload, the bytes): the first answer to the upload's completion will be lost."""
    shaper = new_shaper()
    here = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s"))
    data = harness.random_bytes(6 * MIB)
    upload = Upload(here)
    upload.part(1, data)
    shaper.fault("truncate", match="POST", at=0, count=1)
    return here, upload, data


def test_a_lost_answer_of_the_origin(unheard):
    """The origin completed the upload, but nobody heard of it: the client's next try finds the object."""
    here, upload, data = unheard
    try:
        upload.complete()
    except botocore.exceptions.ClientError:
        upload.complete()
    check(here, data)
    assert open_at(here) == []


def test_a_lost_answer_to_a_condition(unheard):
    """The origin completed the upload under its condition, but nobody heard of it: whoever asks, now or again, is told that it is
    done. Another upload of the same bytes under that condition is refused, as the object is not its own."""
    here, upload, data = unheard
    etag = upload.complete(IfNoneMatch="*")["ETag"]
    check(here, data)
    second = Upload(here)
    second.part(1, data)
    assert code_of(lambda: second.complete(IfNoneMatch="*")) == "PreconditionFailed"
    assert upload.complete(IfNoneMatch="*")["ETag"] == etag


def test_uploads_that_the_origin_ended(bucket):
    """An origin's own rule has ended the upload: clients are told so, and can be rid of it."""
    upload = Upload(bucket)
    upload.part(1, b"x")
    for one in open_at(bucket):
        bucket.truth.abort_multipart_upload(Bucket=bucket.name, Key=one["Key"], UploadId=one["UploadId"])
    assert code_of(lambda: upload.part(2, b"y")) == "NoSuchUpload"
    assert code_of(lambda: upload.complete()) == "NoSuchUpload"
    upload.abort()
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name)


def test_a_bucket_whose_uploads_do_not_end(bucket, new_shaper, new_node, origin):
    """Uploads of one bucket cannot be aborted at its origin: those of others are, when their time has come."""
    shaper, node = new_shaper(), new_node()
    stuck = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint, upload_expiry="10s"))
    here = own(bucket, node, node.new_bucket(origin, upload_expiry="10s"))
    shaper.fault("status:403", match="DELETE", count="1000000")
    Upload(stuck).part(1, b"x")
    Upload(here).part(1, b"x")
    node.kill()
    time.sleep(10)  # both are due in the first turn after the start
    node.start()
    harness.wait_until(lambda: open_at(here) == [], what="aborted at the origin")
    assert len(open_at(stuck)) == 1


def test_parts_are_sent_again(bucket, new_shaper, node, origin):
    """An origin that fails in the middle of a part is asked again, without the client."""
    shaper = new_shaper()
    here = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint))
    data = harness.random_bytes(6 * MIB)
    upload = Upload(here)
    shaper.fault("status:503", match="PUT", count=2)
    upload.part(1, data)
    upload.complete()
    check(here, data)


def test_abandoned_uploads_end(bucket, node, origin):
    """What nobody adds to is aborted after the bucket's upload_expiry, at the origin too; a bucket that is removed
    takes its uploads along."""
    here = own(bucket, node, node.new_bucket(origin))
    upload = Upload(here)
    upload.part(1, b"x")
    node.cli("bucket", "set", here.name, "upload_expiry=2s")
    harness.wait_until(lambda: open_at(here) == [], what="aborted at the origin")
    harness.wait_until(lambda: "Uploads" not in here.s3.list_multipart_uploads(Bucket=here.name), what="forgotten")
    assert code_of(lambda: upload.complete()) == "NoSuchUpload"
    other = own(bucket, node)
    Upload(other).part(1, b"x")
    node.cli("bucket", "rm", other.name)
    assert open_at(other) == []


def test_an_upload_whose_part_is_on_its_way_is_not_abandoned(bucket, new_shaper, node, origin):
    """A part that takes longer than the bucket's upload_expiry and a turn of the steward: acknowledged, and the upload with
    it is there to be completed."""
    shaper = new_shaper()
    here = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint))
    data = harness.random_bytes(6 * MIB)
    upload = Upload(here)
    shaper.set(total="50KiB/s")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sending = pool.submit(upload.part, 1, data)
        harness.wait_until(lambda: shaper.stats()["request_bytes"] > 0, what="the part is on its way")
        node.cli("bucket", "set", here.name, "upload_expiry=1s")
        time.sleep(8)  # a turn of the steward is five
        node.cli("bucket", "set", here.name, "upload_expiry=7d")
        shaper.set(total="1GB/s")
        sending.result()
    upload.complete()
    check(here, data)


@contextlib.contextmanager
def most_memory(node):
    """Gives a list of one number: how much more memory the node had than at the beginning, at most."""
    before, most, done = node.metric("forebay_resident_bytes", kind="anon"), [0], threading.Event()

    def watch():
        while not done.wait(0.2):
            most[0] = max(most[0], node.metric("forebay_resident_bytes", kind="anon") - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def numbered_file(path, n):
    """n times 8 MiB, each beginning with its number."""
    piece = harness.random_bytes(8 * MIB)
    with open(path, "wb") as out:
        for i in range(n):
            out.write(i.to_bytes(8, "big") + piece[8:])
    return path


def send_file(s3, name, file, way):
    if way == "put":
        with open(file, "rb") as body:
            s3.put_object(Bucket=name, Key="k", Body=body)
    else:
        config = boto3.s3.transfer.TransferConfig(multipart_chunksize=8 * MIB, max_concurrency=4)
        s3.upload_file(str(file), name, "k", Config=config)


@pytest.mark.parametrize("way", ["put", "multipart"])
def test_larger_than_the_cache(new_node, bucket, tmp_path, way):
    """Three times what the cache holds: it arrives whole, and the node's memory stays flat."""
    node = new_node(binary=harness.forebay_release_bin(), disk=f"{tmp_path / 'disk'}:64MiB", memory="512MiB")
    here = own(bucket, node)
    here.s3.put_object(Bucket=here.name, Key="small", Body=b"kept")
    file = numbered_file(tmp_path / "in", 24)
    with most_memory(node) as most:
        send_file(here.s3, here.name, file, way)
    assert most[0] < 96 * MIB
    got = here.truth.get_object(Bucket=here.name, Key="k")["Body"]
    with open(file, "rb") as body:
        while expected := body.read(8 * MIB):
            assert got.read(8 * MIB) == expected
    assert open_at(here) == []
    assert here.s3.head_object(Bucket=here.name, Key="k")["ContentLength"] == 192 * MIB
    assert here.s3.get_object(Bucket=here.name, Key="k", Range="bytes=8388608-8388615")["Body"].read() == (1).to_bytes(8, "big")


def counters(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as f:
        return {name: int(value) for name, value in (line.split(":") for line in f)}


@pytest.mark.parametrize("way", ["put", "multipart"])
def test_large_bodies_of_scratch_buckets(new_node, tmp_path, way):
    """They go to the disk once and through little memory, and come back without a copy in the node. (Where the body is collected
    or spooled first memory grows with it or it is written twice; what sendfile sends counts as written to the connection, what
    send(2) sends from memory does not.)"""
    node = new_node(binary=harness.forebay_release_bin(), memory="512MiB")
    name, s3 = harness.scratch_bucket(node), node.s3()
    file = numbered_file(tmp_path / "in", 24)
    before = counters(node.pid)
    with most_memory(node) as most:
        send_file(s3, name, file, way)
    put = counters(node.pid)
    assert most[0] < 96 * MIB
    assert 192 * MIB <= put["write_bytes"] - before["write_bytes"] < 1.1 * 192 * MIB
    got = s3.get_object(Bucket=name, Key="k")["Body"]
    with open(file, "rb") as body:
        while expected := body.read(8 * MIB):
            assert got.read(8 * MIB) == expected
    assert counters(node.pid)["wchar"] - put["wchar"] >= 192 * MIB


def test_a_put_through_that_ends_early(new_node, bucket, tmp_path):
    """A client that goes away in the middle of a body that is not kept leaves nothing, here or at the origin."""
    node = new_node(disk=f"{tmp_path / 'disk'}:64MiB")
    here = own(bucket, node)
    url = here.s3.generate_presigned_url("put_object", {"Bucket": here.name, "Key": "k"})
    parsed = urllib.parse.urlsplit(url)
    with socket.create_connection((parsed.hostname, parsed.port)) as connection:
        head = f"PUT {parsed.path}?{parsed.query} HTTP/1.1\r\nHost: {parsed.netloc}\r\nContent-Length: {99 * MIB}\r\n\r\n"
        connection.sendall(head.encode() + bytes(20 * MIB))
    harness.wait_until(lambda: open_at(here) == [], what="aborted")
    harness.wait_until(lambda: node.metric("forebay_handles", kind="write") == 0, what="handles closed")
    assert keys_at_origin(here) == []


class LatePart(keyorigin.Handler):
    """Takes parts, and answers none until `late` is set; one of them is kept when its upload has been aborted."""

    def do_POST(self):
        self._parse()
        self.body()
        self.owner.uploads.add("u1")
        self.send(200, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")

    def do_PUT(self):
        if "partNumber" not in self.path:
            return super().do_PUT()
        self._parse()
        if len(self.body()) == int(self.headers["Content-Length"]):
            self.owner.whole.set()
            self.owner.late.wait(harness.PATIENCE)
        self.close_connection = True

    def do_DELETE(self):
        self._parse()
        there = "u1" in self.owner.uploads
        self.owner.uploads.discard("u1")
        self.owner.aborts.append(there)
        if len(self.owner.aborts) == 1:
            self.owner.uploads.add("u1")
        return self.send(204) if there else self._error(404, "NoSuchUpload")


def test_a_part_that_the_origin_keeps_late_is_removed(new_node, tmp_path):
    """A part that the origin has all bytes of, but did not acknowledge, may be kept after the abort of its upload: that is aborted once
    more a little later. (Fails where through_unref notes the upload as gone.)"""
    node, name = new_node(disk=f"{tmp_path / 'disk'}:64MiB"), harness.random_name()
    with keyorigin.KeyOrigin(LatePart) as at:
        at.uploads, at.aborts, at.whole, at.late = set(), [], threading.Event(), threading.Event()
        node.create_bucket(name, f"s3://{name}", **at.properties())
        url = urllib.parse.urlsplit(node.s3().generate_presigned_url("put_object", {"Bucket": name, "Key": "k"}))
        with socket.create_connection((url.hostname, url.port)) as connection:
            head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {99 * MIB}\r\n\r\n"
            connection.sendall(head.encode() + bytes(20 * MIB))
            assert at.whole.wait(harness.PATIENCE)
        harness.wait_until(lambda: at.aborts == [True, True], what=lambda: f"aborted twice: {at.aborts}")
        at.late.set()
        assert at.uploads == set()


@pytest.mark.parametrize("kind", ["scratch", "mirror"])
def test_an_abort_waits_for_no_part(node, bucket, kind):
    """However long the client of a part takes: the upload is gone at once, here and at the origin, and the part is told so when it goes
    on. (Where an abort waits, the part has come to its timeout before the abort is answered.)"""
    name = harness.scratch_bucket(node) if kind == "scratch" else bucket.name
    s3 = node.s3(signature_version="s3v4")
    where = {"Bucket": name, "Key": "k"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    url = urllib.parse.urlsplit(s3.generate_presigned_url("upload_part", {**where, "PartNumber": 1}))
    answer = b""
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.settimeout(harness.PATIENCE)
        head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {MIB}\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the part has begun
        s3.abort_multipart_upload(**where)
        assert "Uploads" not in s3.list_multipart_uploads(Bucket=name)
        assert open_at(bucket) == []
        connection.sendall(bytes(MIB))
        while b"</Error>" not in answer and (more := connection.recv(65536)):
            answer += more
    assert answer.startswith(b"HTTP/1.1 404 ") and b"<Code>NoSuchUpload</Code>" in answer
    assert "Contents" not in s3.list_objects_v2(Bucket=name)
    assert open_at(bucket) == []


def test_an_abort_stops_what_the_origin_does_not_answer(new_shaper, node, origin, bucket):
    """A part whose origin takes none of it, or all of it without an answer, ends with the abort of its upload, whose other parts are gone,
    too. (Where an abort waits, the part is tried again meanwhile, and succeeds.)"""
    shaper = new_shaper()
    here = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint))
    for size in (100, 20 * MIB):
        upload, faults = Upload(here), shaper.stats()["faults_injected"]
        upload.part(1, harness.random_bytes(5 * MIB))
        shaper.fault("stall", match="PUT", at=0, count=1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(code_of, lambda: upload.part(2, bytes(size)))
            harness.wait_until(lambda: shaper.stats()["faults_injected"] > faults, what="the origin does not answer")
            upload.abort()
            assert waiting.result() == "NoSuchUpload"
        assert open_at(here) == []
        assert code_of(lambda: here.s3.list_parts(**upload.where, UploadId=upload.id)) == "NoSuchUpload"
        assert keys_at_origin(here) == []


def test_an_abort_stops_what_the_origin_copies(new_shaper, node, origin, bucket):
    """A part that the origin copies by itself, and does not answer for: the abort of its upload gives it five seconds, and then ends it,
    here and at the origin. (Seen to wait for the origin's time-out, here ten minutes, without upload_slot_copy.)"""
    shaper = new_shaper()
    here = own(bucket, node, node.new_bucket(origin, endpoint=shaper.endpoint, **{"origin.timeout": "10m", "retry": "30m"}))
    here.truth.put_object(Bucket=here.name, Key="source", Body=harness.random_bytes(5 * MIB))
    upload = Upload(here)
    copy = lambda: here.s3.upload_part_copy(**upload.where, UploadId=upload.id, PartNumber=1, CopySource=f"{here.name}/source")
    shaper.fault("stall", match="PUT", at=0, count=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(code_of, copy)
            harness.wait_until(lambda: shaper.stats()["faults_injected"] > 0, what="the origin does not answer")
            upload.abort()
            assert waiting.result(harness.PATIENCE) == "NoSuchUpload"
        finally:
            shaper.release()
    assert open_at(here) == []
    assert code_of(lambda: here.s3.list_parts(**upload.where, UploadId=upload.id)) == "NoSuchUpload"
    assert keys_at_origin(here) == ["source"]


def bytes_on_disk(directory):
    """What the files below it have there; those that go meanwhile do not count."""
    taken = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                taken += os.stat(os.path.join(place, name)).st_blocks * 512
    return taken


@pytest.mark.parametrize("by", ["S3", "command"])
def test_scratch_uploads_end_with_their_bucket(new_node, by):
    """Of a bucket that is made again with the name of a former one no upload is known, listed or gone on with; what its uploads took of
    the disk is free again when the bucket is gone, whoever removed it."""
    node = new_node()
    name, s3 = harness.scratch_bucket(node), node.s3()
    where = {"Bucket": name, "Key": "k"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    before = bytes_on_disk(node.data)
    part = s3.upload_part(**where, PartNumber=1, Body=bytes(20 * MIB))
    assert bytes_on_disk(node.data) >= before + 20 * MIB
    if by == "S3":
        s3.delete_bucket(Bucket=name)
    else:
        node.cli("bucket", "rm", name)
    assert node.metric("forebay_handles", kind="write") == 0
    harness.wait_until(lambda: bytes_on_disk(node.data) < before + 10 * MIB, what="the room is free")
    assert code_of(lambda: s3.upload_part(**where, PartNumber=2, Body=b"y")) in ("NoSuchUpload", "NoSuchBucket")
    s3.create_bucket(Bucket=name)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=name)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    for call in (lambda: s3.upload_part(**where, PartNumber=2, Body=b"y"), lambda: s3.list_parts(**where),
                 lambda: s3.complete_multipart_upload(**where, MultipartUpload=parts), lambda: s3.abort_multipart_upload(**where)):
        assert code_of(call) == "NoSuchUpload"
