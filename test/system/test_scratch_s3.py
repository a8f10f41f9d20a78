"""Scratch buckets through S3 with boto3: there is no origin, so what a node acknowledged must be there, whole, whatever
happens to the node."""

import base64
import concurrent.futures
import datetime
import hashlib
import http.client
import io
import random
import threading
import urllib.parse

import boto3.s3.transfer
import botocore.exceptions
import pytest

import harness
import wire

MIB = 1 << 20


def code_of(error):
    return error.value.response["Error"]["Code"]


def md5(data):
    return hashlib.md5(data).hexdigest()


class Bucket:
    """A scratch bucket of a node."""

    def __init__(self, node):
        self.node, self.s3, self.name = node, node.s3(), harness.random_name("scratch")
        self.s3.create_bucket(Bucket=self.name)

    def put(self, key, data, **more):
        return self.s3.put_object(Bucket=self.name, Key=key, Body=data, **more)

    def get(self, key, **more):
        return self.s3.get_object(Bucket=self.name, Key=key, **more)["Body"].read()

    def keys(self, **more):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, **more)
        return [x["Key"] for page in pages for x in page.get("Contents", [])]


@pytest.fixture
def scratch(node):
    return Bucket(node)


@pytest.mark.parametrize("size", [0, 1, 4095, 128 * 1024 + 1, MIB, 9 * MIB + 17])
def test_put_comes_back(scratch, size):
    """What was put comes back with its MD5 as ETag, whole and by ranges, and again after a restart."""
    data = harness.random_bytes(size)
    assert scratch.put("dir/k", data)["ETag"] == f'"{md5(data)}"'
    for _ in range(2):
        found = scratch.s3.get_object(Bucket=scratch.name, Key="dir/k")
        assert found["Body"].read() == data and found["ContentLength"] == size
        assert found["ETag"] == f'"{md5(data)}"'
        if size > 10:
            assert scratch.get("dir/k", Range="bytes=3-9") == data[3:10]
            assert scratch.get("dir/k", Range="bytes=-5") == data[-5:]
        scratch.node.restart()
        scratch.s3 = scratch.node.s3()
    counted = scratch.node.metric("forebay_read_bytes_total", bucket=scratch.name)
    assert counted == scratch.node.metric("forebay_read_bytes_total", bucket=scratch.name, **{"from": "cache"})


# Around the size from which on another thread hashes a body, and around its pieces of 128 KiB and blocks of 64 bytes.
HASHED_SIZES = [256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 384 * 1024, MIB - 1, 2 * MIB + 63, 3 * MIB]


class Uploader:
    """Uploads objects in every way, and looks what becomes of them."""

    def __init__(self, scratch, number):
        self.scratch, self.s3, self.name = scratch, scratch.s3, f"{number}/"
        self.random = random.Random(number)

    def connect(self, key, headers):
        """A connection on which the head of a PUT was sent, by a signed URL."""
        signed = {"ContentMD5": headers["Content-MD5"]} if "Content-MD5" in headers else {}
        named = {"Bucket": self.scratch.name, "Key": key, **signed}
        url = urllib.parse.urlsplit(self.s3.generate_presigned_url("put_object", Params=named))
        connection = http.client.HTTPConnection(url.netloc, timeout=harness.PATIENCE)
        connection.putrequest("PUT", f"{url.path}?{url.query}")
        for header, value in headers.items():
            connection.putheader(header, value)
        connection.endheaders()
        return connection

    def raw(self, key, body, headers):
        """The response to a PUT whose headers and body are sent as they are given."""
        connection = self.connect(key, headers)
        connection.send(body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def check(self, key, data, etag):
        assert etag == f'"{md5(data)}"', f"{key} of {len(data)} bytes"
        assert self.scratch.get(key) == data

    def puts(self, data):
        key, shorter = self.name + "put", data[:-1]
        self.check(key, shorter, self.scratch.put(key, shorter)["ETag"])
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(shorter), shorter)
        self.check(key, shorter, self.raw(key, chunks, {"Transfer-Encoding": "chunked"}).headers["ETag"])
        self.check(key, data, self.scratch.put(key, data, ContentMD5=base64.b64encode(hashlib.md5(data).digest()).decode())["ETag"])

    def refused(self, data):
        """A body that is not what was promised, and one that breaks off: what was there before stays."""
        key, other = self.name + "put", data[:-1] + bytes([data[-1] ^ 1])
        length = {"Content-Length": str(len(other))}
        assert self.raw(key, other, {**length, "Content-MD5": base64.b64encode(hashlib.md5(data).digest()).decode()}).status == 400
        connection = self.connect(key, length)
        connection.send(other[:self.random.randrange(1, len(other))])
        connection.close()
        assert self.scratch.get(key) == data

    def copies(self, data):
        key, source = self.name + "copy", {"Bucket": self.scratch.name, "Key": self.name + "put"}
        done = self.s3.copy_object(Bucket=self.scratch.name, Key=key, CopySource=source, MetadataDirective="REPLACE", Metadata={"new": "1"})
        self.check(key, data, done["CopyObjectResult"]["ETag"])

    def parts(self, data):
        whole = {"Bucket": self.scratch.name, "Key": self.name + "parts"}
        upload = {**whole, "UploadId": self.s3.create_multipart_upload(**whole)["UploadId"]}
        first = data * (5 * MIB // len(data) + 1)
        source = {"Bucket": self.scratch.name, "Key": self.name + "put"}
        etags = [self.s3.upload_part(PartNumber=1, Body=first, **upload)["ETag"],
                 self.s3.upload_part_copy(PartNumber=2, CopySource=source, **upload)["CopyPartResult"]["ETag"]]
        assert etags == [f'"{md5(first)}"', f'"{md5(data)}"']
        listed = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]}
        done = self.s3.complete_multipart_upload(MultipartUpload=listed, **upload)
        sums = b"".join(hashlib.md5(part).digest() for part in (first, data))
        assert done["ETag"] == f'"{md5(sums)}-2"'
        assert self.scratch.get(whole["Key"]) == first + data

    def run(self):
        for size in self.random.sample(HASHED_SIZES, 4):
            data = self.random.randbytes(size)
            self.puts(data)
            self.refused(data)
            self.copies(data)
            self.parts(data)


def test_etags_of_uploads_at_the_same_time(scratch):
    """Large bodies that arrive at the same time are hashed together. Whichever way they come (PUT, of known length or not, with the MD5
    promised or not, as a part, as a copy of an object or of a part), and although others break off or promise another MD5: every ETag is the MD5
    of its bytes, and nothing is stored of what was refused."""
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(Uploader(scratch, number).run) for number in range(5)]:
            done.result()


def test_etags_of_copies_in_pieces(node, scratch):
    """A copy that is written anew is read piece by piece; none is given back before it is in the MD5. (Seen to give another MD5, or to end the node, without
    hasher_stream_wait in src/s3/copy.c.)"""
    other = harness.scratch_bucket(node)
    for size in (2 * MIB, 3 * MIB + 1, 8 * MIB):
        data = harness.random_bytes(size)
        scratch.put("k", data)
        for bucket in (scratch.name, other):
            done = scratch.s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": scratch.name, "Key": "k"},
                                          MetadataDirective="REPLACE", Metadata={"new": "1"})
            assert done["CopyObjectResult"]["ETag"] == f'"{md5(data)}"'
            assert scratch.s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == data


def test_attributes_are_kept(scratch):
    """Content type, standard headers and user metadata come back, and go along with a copy."""
    kept = {"ContentType": "text/x-test; charset=utf-8", "CacheControl": "max-age=7", "ContentEncoding": "gzip",
            "ContentDisposition": 'attachment; filename="a b.txt"', "ContentLanguage": "de"}
    scratch.put("k", b"x", Metadata={"first": "1"}, Expires=datetime.datetime(2037, 1, 1), **kept)
    scratch.s3.copy_object(Bucket=scratch.name, Key="copy", CopySource={"Bucket": scratch.name, "Key": "k"})
    for key in ("k", "copy"):
        found = scratch.s3.head_object(Bucket=scratch.name, Key=key)
        assert {name: found[name] for name in kept} == kept
        assert found["ResponseMetadata"]["HTTPHeaders"]["expires"] == "Thu, 01 Jan 2037 00:00:00 GMT"
        assert found["Metadata"] == {"first": "1"}
        assert found["ETag"] == f'"{md5(b"x")}"'


def test_only_headers_of_objects_are_shown(scratch):
    """What a client of the wire protocol wrote as metadata cannot add a header that frames the answer, or a line."""
    meta = "Content-Length: 0\nTransfer-Encoding: chunked\nSet-Cookie: a=b\nx-amz-meta-a\rb: c\nx-amz-meta-good: yes\n" \
           "x-amz-checksum: crc32:x\rset-cookie:a AAAAAA==\n"
    with scratch.node.wire() as w:
        handle = w.call(30, wire.text(scratch.name) + wire.text("k") + wire.u64(4) + wire.text("text/x") +  # PUT_OPEN
                        wire.text(meta) + wire.text("") + wire.u32(0) + wire.text("") + wire.u32(wire.VIA_API) + wire.u32(0))
        w.call(31, handle + wire.u64(0) + wire.text("data"))  # PUT_WRITE
        w.call(32, handle + wire.u64(4) + wire.text("") * 6 + wire.u32(0))  # PUT_COMMIT
    found = scratch.s3.get_object(Bucket=scratch.name, Key="k", ChecksumMode="ENABLED")
    assert found["Body"].read() == b"data" and found["Metadata"] == {"good": "yes"}
    headers = found["ResponseMetadata"]["HTTPHeaders"]
    assert headers["content-length"] == "4" and not {"transfer-encoding", "set-cookie"} & set(headers)


def test_checksums_are_kept(scratch):
    """What was verified with an upload is shown to who asks, also of a copy and after a restart; it is no metadata."""
    made = {size: scratch.put(f"k{size}", harness.random_bytes(size), ChecksumAlgorithm="SHA256", Metadata={"a": "b"})
            for size in (0, 1000, 300_000)}
    for size in made:
        scratch.s3.copy_object(Bucket=scratch.name, Key=f"copy{size}", CopySource={"Bucket": scratch.name, "Key": f"k{size}"})
    for s3 in (scratch.s3, None):
        if s3 is None:
            scratch.node.restart()
            s3 = scratch.node.s3()
        for key, size in [(f"{how}{size}", size) for how in ("k", "copy") for size in made]:
            for call in (s3.head_object, s3.get_object):
                shown = call(Bucket=scratch.name, Key=key, ChecksumMode="ENABLED")
                assert shown["ChecksumSHA256"] == made[size]["ChecksumSHA256"] and shown["Metadata"] == {"a": "b"}


def test_keys_of_every_kind(scratch):
    """Keys that are paths, keys that clash with paths and keys that are none are all there, in order, until removed."""
    keys = ["a", "a/b", "a/b/c", "a//b", "/leading", "trailing/", "..", "a/../b", "with space", "日本語", "x" * 1024,
            "ä" * 512, "a-", "a0", "dir/" + "n" * 300]
    for key in keys:
        scratch.put(key, key.encode())
    assert scratch.keys() == sorted(keys, key=str.encode)
    for key in keys:
        assert scratch.get(key) == key.encode()
    listed = scratch.s3.list_objects_v2(Bucket=scratch.name, Delimiter="/", Prefix="a/")
    assert [p["Prefix"] for p in listed["CommonPrefixes"]] == ["a/../", "a//", "a/b/"]
    assert scratch.keys(PaginationConfig={"PageSize": 3}) == sorted(keys, key=str.encode)
    gone = scratch.s3.delete_objects(Bucket=scratch.name, Delete={"Objects": [{"Key": k} for k in keys]})
    assert not gone.get("Errors")
    assert scratch.keys() == []
    scratch.s3.delete_bucket(Bucket=scratch.name)


def test_multipart(scratch):
    """An object of parts has their bytes in order, and the ETag that S3 makes of parts; what is aborted never was."""
    parts = [harness.random_bytes(n) for n in (5 * MIB, 5 * MIB + 3, 7)]
    upload = scratch.s3.create_multipart_upload(Bucket=scratch.name, Key="m", ContentType="x/y")["UploadId"]
    etags = {}
    for number in (3, 1, 2):
        etags[number] = scratch.s3.upload_part(Bucket=scratch.name, Key="m", UploadId=upload, PartNumber=number,
                                               Body=parts[number - 1])["ETag"]
    assert scratch.keys() == []
    listed = [{"PartNumber": n, "ETag": etags[n]} for n in (1, 2, 3)]
    done = scratch.s3.complete_multipart_upload(Bucket=scratch.name, Key="m", UploadId=upload,
                                                MultipartUpload={"Parts": listed})
    digest = hashlib.md5(b"".join(hashlib.md5(p).digest() for p in parts)).hexdigest()
    assert done["ETag"] == f'"{digest}-3"'
    found = scratch.s3.get_object(Bucket=scratch.name, Key="m")
    assert found["Body"].read() == b"".join(parts)
    assert (found["ETag"], found["ContentType"]) == (done["ETag"], "x/y")
    upload = scratch.s3.create_multipart_upload(Bucket=scratch.name, Key="n")["UploadId"]
    scratch.s3.upload_part(Bucket=scratch.name, Key="n", UploadId=upload, PartNumber=1, Body=b"x")
    scratch.s3.abort_multipart_upload(Bucket=scratch.name, Key="n", UploadId=upload)
    assert scratch.keys() == ["m"]
    assert scratch.node.metric("forebay_scratch_inodes", bucket=scratch.name) == 1
    assert scratch.node.metric("forebay_scratch_bytes", bucket=scratch.name) >= sum(map(len, parts))
    data = harness.random_bytes(20 * MIB + 1)
    scratch.s3.upload_fileobj(io.BytesIO(data), scratch.name, "by-transfer",
                              Config=boto3.s3.transfer.TransferConfig(multipart_chunksize=8 * MIB))
    assert scratch.get("by-transfer") == data


def test_opaque_etags(scratch):
    """With etag=opaque no ETag is what a client could take for an MD5, of parts neither; a Content-MD5 is still verified, and an
    ETag still names what was written."""
    scratch.node.cli("bucket", "set", scratch.name, "etag=opaque")
    data = harness.random_bytes(9 * MIB + 17)
    etags = [scratch.put("k", body)["ETag"] for body in (data, b"x", data)]
    assert len(set(etags)) == 3 and all(e.endswith('-1"') and len(e) == 36 for e in etags)
    assert scratch.s3.head_object(Bucket=scratch.name, Key="k")["ETag"] == etags[-1]
    assert scratch.get("k", IfMatch=etags[-1]) == data
    with pytest.raises(botocore.exceptions.ClientError) as error:
        scratch.put("k", b"other", IfMatch=etags[0])
    assert code_of(error) == "PreconditionFailed"
    with pytest.raises(botocore.exceptions.ClientError) as error:
        scratch.put("k", b"other", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")
    assert code_of(error) == "BadDigest"
    upload = {"Bucket": scratch.name, "Key": "m"}
    upload["UploadId"] = scratch.s3.create_multipart_upload(**upload)["UploadId"]
    halves = data[:5 * MIB], data[5 * MIB:]
    parts = [{"PartNumber": n, "ETag": scratch.s3.upload_part(**upload, PartNumber=n, Body=half)["ETag"]}
             for n, half in enumerate(halves, 1)]
    assert parts[0]["ETag"] != f'"{md5(halves[0])}"' and all(p["ETag"].endswith('-1"') for p in parts)
    assert [{name: p[name] for name in parts[0]} for p in scratch.s3.list_parts(**upload)["Parts"]] == parts
    done = scratch.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})["ETag"]
    assert done.endswith('-2"') and scratch.get("m", IfMatch=done) == data
    scratch.node.cli("bucket", "set", scratch.name, "etag=md5")
    assert scratch.put("k", b"x")["ETag"] == f'"{md5(b"x")}"' and scratch.get("m", IfMatch=done) == data


def test_conditions(scratch):
    """If-None-Match and If-Match of a PUT decide with the write itself: of many that want to be first one is."""
    scratch.put("k", b"one", IfNoneMatch="*")
    with pytest.raises(botocore.exceptions.ClientError) as error:
        scratch.put("k", b"two", IfNoneMatch="*")
    assert code_of(error) == "PreconditionFailed"
    with pytest.raises(botocore.exceptions.ClientError) as error:
        scratch.put("k", b"two", IfMatch='"0123"')
    assert code_of(error) == "PreconditionFailed"
    with pytest.raises(botocore.exceptions.ClientError) as error:
        scratch.put("k", b"two", IfNoneMatch=f'"{md5(b"one")}"')
    assert code_of(error) == "PreconditionFailed"
    for wanted in ("*", '"0123"'):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            scratch.put("none", b"two", IfMatch=wanted)
        assert code_of(error) == "NoSuchKey" and scratch.keys() == ["k"]
    scratch.put("k", b"two", IfMatch=f'"{md5(b"one")}"')
    assert scratch.get("k") == b"two"
    scratch.put("k", b"two", IfNoneMatch='"0123"')
    scratch.put("k", b"two", IfMatch="*")
    won = []

    def race(n):
        try:
            scratch.put("race", b"%d" % n, IfNoneMatch="*")
            won.append(n)
        except botocore.exceptions.ClientError:
            pass

    threads = [threading.Thread(target=race, args=(n,)) for n in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(won) == 1 and scratch.get("race") == b"%d" % won[0]
    with pytest.raises(botocore.exceptions.ClientError) as error:
        scratch.get("k", IfNoneMatch=f'"{md5(b"two")}"')
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 304


def test_buckets(node):
    """A bucket with objects is not removed; an empty one is, and its name can be used again."""
    b = Bucket(node)
    b.put("dir/k", b"x")
    with pytest.raises(botocore.exceptions.ClientError) as error:
        b.s3.delete_bucket(Bucket=b.name)
    assert code_of(error) == "BucketNotEmpty"
    b.s3.delete_object(Bucket=b.name, Key="dir/k")
    b.s3.delete_bucket(Bucket=b.name)
    with pytest.raises(botocore.exceptions.ClientError) as error:
        b.get("dir/k")
    assert code_of(error) == "NoSuchBucket"
    b.s3.create_bucket(Bucket=b.name)
    assert b.keys() == []


def test_command_line(node, tmp_path):
    """A scratch bucket by the command line: made, shown, written to, read, what it cannot do named, removed."""
    name = harness.random_name("cli")
    node.cli("bucket", "create", name, "owner=12:34", "mode=0750")
    shown = node.cli("bucket", "show", name).stdout
    assert "owner=12:34" in shown and "mode=0750" in shown and "origin" not in shown and "validate" not in shown
    refused = node.cli("bucket", "set", name, "validate=always", check=False)
    assert refused.returncode != 0 and "scratch" in refused.stderr
    (tmp_path / "f").write_bytes(b"bytes of f")
    node.cli("put", tmp_path / "f", f"{name}/dir/f")
    node.cli("get", f"{name}/dir/f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == b"bytes of f"
    assert "dir/f" in node.cli("ls", "-r", name).stdout
    evicted = node.cli("evict", f"{name}/dir/f", "--wait", check=False)
    assert evicted.returncode != 0 and "scratch" in evicted.stdout + evicted.stderr, evicted
    assert node.cli("bucket", "rm", name, check=False).returncode != 0
    node.s3().delete_object(Bucket=name, Key="dir/f")
    node.cli("bucket", "rm", name)


def test_jobs_take_it_elsewhere(scratch, origin, tmp_path):
    """Jobs export a scratch bucket, import into it, and copy between it and a mirror, both ways."""
    node, data = scratch.node, {f"d/k{n}": harness.random_bytes(n * 100000) for n in range(4)}
    for key, body in data.items():
        scratch.put(key, body)
    target = tmp_path / "target"
    target.mkdir()
    node.cli("export", f"{scratch.name}/d/", f"file://{target}", "--wait")
    for key, body in data.items():
        assert (target / key.removeprefix("d/")).read_bytes() == body
    node.cli("import", f"file://{target}", f"{scratch.name}/back", "--wait")
    mirror = node.new_bucket(origin)
    node.cli("copy", f"{scratch.name}/d/", f"{mirror}/e/", "--wait")
    node.cli("copy", f"{mirror}/e/", f"{scratch.name}/f/", "--wait")
    for key, body in data.items():
        name = key.removeprefix("d/")
        assert scratch.get(f"back/{name}") == body
        assert origin.s3().get_object(Bucket=mirror, Key=f"e/{name}")["Body"].read() == body
        assert scratch.get(f"f/{name}") == body


def test_a_full_disk(new_node, tmp_path):
    """What does not fit is refused and leaves nothing; what was acknowledged stays; removing makes room."""
    scratch = Bucket(new_node(disk=f"{tmp_path / 'disk'}:64MiB"))
    data, kept = harness.random_bytes(5 * MIB), []
    for n in range(16):
        try:
            scratch.put(f"k{n}", data)
            kept.append(f"k{n}")
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == "ServiceUnavailable"
    assert 4 <= len(kept) < 16
    assert scratch.keys() == sorted(kept)
    assert all(scratch.get(key) == data for key in kept)
    for key in kept:
        scratch.s3.delete_object(Bucket=scratch.name, Key=key)

    def fits():
        try:
            return scratch.put("again", data)
        except botocore.exceptions.ClientError:
            return None

    harness.wait_until(fits, what="room for an object")
    assert scratch.get("again") == data


class Writer(threading.Thread):
    """Puts and removes objects of its own keys until the node is gone, noting what was begun and acknowledged."""

    def __init__(self, scratch, seed):
        super().__init__(daemon=True)
        self.scratch, self.random, self.prefix = scratch, random.Random(seed), f"w{seed}"
        self.client = scratch.node.s3()
        self.may_be = {}  # key: the contents (bytes or None) that are possible now

    def run(self):
        while True:
            key = f"{self.prefix}/d{self.random.randrange(3)}/k{self.random.randrange(8)}"
            known = self.may_be.get(key, {None})
            data = None
            if self.random.random() < 0.8:
                size = self.random.choice([0, 10, 5000, 300000, 2 * MIB])
                data = self.random.randbytes(min(size, 16)) * (size // 16 + 1)
            self.may_be[key] = known | {data}
            try:
                if data is None:
                    self.client.delete_object(Bucket=self.scratch.name, Key=key)
                else:
                    self.client.put_object(Bucket=self.scratch.name, Key=key, Body=data)
            except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, OSError):
                return
            self.may_be[key] = {data}


def check(scratch, writer):
    listed = set(scratch.keys(Prefix=writer.prefix + "/"))
    for key, possible in writer.may_be.items():
        found = scratch.get(key) if key in listed else None
        assert found in possible, f"{key}: {None if found is None else len(found)} bytes, not what was written last"
        writer.may_be[key] = {found}
    assert listed <= set(writer.may_be)


@pytest.mark.parametrize("rounds", [4])
def test_kill_during_puts(new_node, route, rounds):
    """kill -9 while objects are put and removed: what was acknowledged is there, what was not is there whole or not at
    all, and nothing that nobody names is left on the disk. Seen to fail when a PUT is acknowledged before scratch_put."""
    node = new_node(route=route)
    scratch = Bucket(node)
    writers = [Writer(scratch, seed) for seed in range(3)]
    for n in range(rounds):
        for w in writers:
            w.start()
        threading.Event().wait(1.5)
        node.kill()
        for w in writers:
            w.join(200)
        node.check_log()
        node.start()
        scratch.s3 = node.s3()
        for w in writers:
            check(scratch, w)
        fresh = [Writer(scratch, w.random.randrange(1 << 30)) for w in writers]
        for old, new in zip(writers, fresh):
            new.prefix, new.may_be = old.prefix, old.may_be
        writers = fresh
    for key in scratch.keys():
        scratch.s3.delete_object(Bucket=scratch.name, Key=key)
    harness.wait_until(lambda: removed(scratch), what="an empty bucket is removed")


def removed(scratch):
    try:
        scratch.s3.delete_bucket(Bucket=scratch.name)
        return True
    except botocore.exceptions.ClientError:
        return False
