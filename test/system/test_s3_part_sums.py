"""Checksums of uploads in parts whose bytes go to an S3 origin: verified here, given to the origin, and shown by whoever asks
that one."""

import base64
import hashlib
import http.client
import urllib.parse

import pytest

import harness
from test_s3_checksums import KINDS, MIB, b64, check_shown, keys_of
from test_s3_security import Reply, signed
from test_s3_settings import refused

LONG = 9 * MIB  # what does not wait for its end to be signed
TYPES = [("crc32", "COMPOSITE"), ("crc32", "FULL_OBJECT"), ("crc32c", "COMPOSITE"), ("crc32c", "FULL_OBJECT"),
         ("crc64nvme", "FULL_OBJECT"), ("sha1", "COMPOSITE"), ("sha256", "COMPOSITE")]
QUICK = ("crc32", "sha1", "sha256")  # computed by C here


class Place:
    """A mirror bucket and what lies behind it: `truth` is a client of the origin, straight."""

    def __init__(self, node, truth, name, name_there, url, properties):
        self.node, self.truth, self.name, self.name_there = node, truth, name, name_there
        self.url, self.properties = url, properties
        node.create_bucket(name, url, **properties)

    def seen_by(self, other):
        """The same objects by another node, which shares only the origin."""
        return Place(other, self.truth, self.name, self.name_there, self.url, self.properties)

    def open_there(self):
        """The one upload that is open at the origin."""
        [upload] = self.truth.list_multipart_uploads(Bucket=self.name_there)["Uploads"]
        return {"Bucket": self.name_there, "Key": "k", "UploadId": upload["UploadId"]}


def at_versitygw(node, origin, **more):
    name = origin.new_bucket()
    return Place(node, origin.s3(), name, name, f"s3://{name}", {**origin.properties(), **more})


def at_a_node(node, new_node):
    there = new_node()
    bucket = harness.scratch_bucket(there)
    access, secret = there.credentials
    url = f"forebay://{urllib.parse.urlsplit(there.endpoint).netloc}/{bucket}"
    return Place(node, there.s3(), harness.random_name(), bucket, url,
                 {"origin.access_key": access, "origin.secret_key": secret})


class Upload:
    """One of key "k"; clients that compute nothing by themselves."""

    def __init__(self, place, kind, how):
        self.place, self.kind, self.how, self.name = place, kind, how, f"Checksum{kind.upper()}"
        self.where = {"Bucket": place.name, "Key": "k"}
        begun = self.s3.create_multipart_upload(**self.where, ChecksumAlgorithm=kind.upper(), ChecksumType=how,
                                                Metadata={"a": "b"})
        assert (begun["ChecksumAlgorithm"], begun["ChecksumType"]) == (kind.upper(), how)
        self.open, self.parts, self.sums, self.etags = {**self.where, "UploadId": begun["UploadId"]}, {}, {}, {}

    @property
    def s3(self):
        return self.place.node.s3(request_checksum_calculation="when_required")

    def sum(self, number):
        return b64(self.sums[number])

    def has(self, number, data, etag):
        self.parts[number], self.sums[number], self.etags[number] = data, KINDS[self.kind](data), etag

    def part(self, number, data, said=True):
        self.has(number, data, None)
        answer = self.s3.upload_part(**self.open, PartNumber=number, Body=data, **({self.name: self.sum(number)} if said else {}))
        assert answer[self.name] == self.sum(number)
        self.etags[number] = answer["ETag"]

    def path(self, number):
        return f"/{self.place.name}/k?partNumber={number}&uploadId={self.open['UploadId']}"

    def listed(self, client, upload):
        told = client.list_parts(**upload)
        assert (told["ChecksumAlgorithm"], told["ChecksumType"]) == (self.kind.upper(), self.how)
        return {p["PartNumber"]: p[self.name] for p in told.get("Parts", [])}

    def check_listed(self):
        """Here and there: these parts, with these checksums."""
        right = {n: self.sum(n) for n in self.parts}
        assert self.listed(self.s3, self.open) == self.listed(self.place.truth, self.place.open_there()) == right

    def whole(self):
        digest, numbers = KINDS[self.kind], sorted(self.parts)
        if self.how == "COMPOSITE":
            return f"{b64(digest(b''.join(self.sums[n] for n in numbers)))}-{len(numbers)}"
        return b64(digest(b"".join(self.parts[n] for n in numbers)))

    def complete(self, **more):
        listed = [{"PartNumber": n, "ETag": self.etags[n]} for n in sorted(self.etags)]
        return self.s3.complete_multipart_upload(**self.open, MultipartUpload={"Parts": listed}, **more)

    def check_done(self, done, *places):
        """The answer, the origin, and each of these nodes tell the one checksum, and have the bytes."""
        assert (done[self.name], done["ChecksumType"]) == (self.whole(), self.how)
        there = self.place.truth.head_object(Bucket=self.place.name_there, Key="k", ChecksumMode="ENABLED")
        assert (there[self.name], there["ChecksumType"], there["Metadata"]) == (self.whole(), self.how, {"a": "b"})
        for place in places:
            check_shown(place.node, f"/{place.name}/k", self.kind, self.whole(), self.how)
            assert place.node.s3().get_object(**self.where)["Body"].read() == b"".join(self.parts[n] for n in sorted(self.parts))


@pytest.fixture(params=["versitygw", "node"])
def place(request, node, origin, new_node):
    return at_versitygw(node, origin) if request.param == "versitygw" else at_a_node(node, new_node)


@pytest.mark.parametrize("kind, how", TYPES)
def test_an_origin_gets_them(place, new_node, kind, how):
    """Of each kind and form: parts whose clients say their checksum, small and long ones, and those for which it is computed
    here, long ones too, are at the origin with it; the object has there what the answer says, and another node shows that, which
    has only the origin. (Seen to fail where UPLOAD_CREATE asks for none, and where a completion lists none.)"""
    upload = Upload(place, kind, how)
    if kind in QUICK:
        upload.part(1, harness.random_bytes(LONG, seed=1))
        upload.part(2, harness.random_bytes(LONG + 1, seed=2), said=False)
    upload.part(3, harness.random_bytes(5 * MIB, seed=3), said=kind not in QUICK)
    upload.part(4, b"end", said=kind in QUICK)
    upload.check_listed()
    done = upload.complete(**{upload.name: upload.whole()})
    upload.check_done(done, place, place.seen_by(new_node()))


def put_in_pieces(node, path, data, trailer):
    """UploadPart as SDKs send it over TLS: aws-chunked, the checksum behind the bytes."""
    name = trailer.split(":")[0]
    announced = {"Content-Encoding": "aws-chunked", "x-amz-trailer": name, "x-amz-decoded-content-length": str(len(data))}
    headers = signed(node, "PUT", path, announced, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    pieces = [data[at:at + MIB] for at in range(0, len(data), MIB)]
    body = b"".join(b"%x\r\n" % len(p) + p + b"\r\n" for p in pieces) + f"0\r\n{trailer}\r\n\r\n".encode()
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(node.endpoint).netloc, timeout=200)
    connection.request("PUT", path, body, headers)
    answer = connection.getresponse()
    reply = Reply(answer.status, answer.getheaders(), answer.read())
    connection.close()
    return reply


@pytest.mark.parametrize("size", [0, 3000, LONG])
def test_checksums_behind_the_bytes(place, new_node, size):
    """A part whose checksum comes in its trailer reaches the origin with it; with a wrong one there is no such part, neither here
    nor there, and what was there of its number stays. (Seen to fail where the sender is not told the checksum.)"""
    upload, data = Upload(place, "crc32", "COMPOSITE"), harness.random_bytes(size, seed=5)
    name = "x-amz-checksum-crc32"
    wrong = put_in_pieces(place.node, upload.path(1), data, f"{name}:{b64(KINDS['crc32'](data + b'x'))}")
    assert (wrong.status, wrong.error()["Code"]) == (400, "BadDigest")
    upload.check_listed()
    upload.part(1, b"former")
    wrong = put_in_pieces(place.node, upload.path(1), data, f"{name}:{b64(KINDS['crc32'](data + b'x'))}")
    assert (wrong.status, wrong.error()["Code"]) == (400, "BadDigest")
    upload.check_listed()
    right = put_in_pieces(place.node, upload.path(1), data, f"{name}:{b64(KINDS['crc32'](data))}")
    assert right.status == 200, right.body
    upload.has(1, data, right.headers["etag"])
    upload.check_listed()
    upload.check_done(upload.complete(), place, place.seen_by(new_node()))


@pytest.mark.parametrize("size", [3000, LONG])
def test_a_wrong_checksum_of_a_part_stores_nothing(place, size):
    """In a header, of the upload's kind or another: BadDigest, and the origin has no part; nor has it an object after a
    completion with a wrong one. (Seen to fail where a part is ended whatever its body was, and where the kind of a header's is
    not compared.)"""
    upload, data = Upload(place, "sha256", "COMPOSITE"), harness.random_bytes(size, seed=6)
    for kind in ("sha256", "crc32"):
        wrong = {f"Checksum{kind.upper()}": b64(KINDS[kind](b"other"))}
        assert refused(upload.s3.upload_part, **upload.open, PartNumber=1, Body=data, **wrong) == (400, "BadDigest")
    upload.check_listed()
    upload.part(1, data)
    assert refused(upload.complete, ChecksumSHA256=b64(bytes(32)) + "-1") == (400, "BadDigest")
    upload.check_listed()
    assert keys_of(place.node, place.name) == []
    # One of another kind is verified, and the upload's computed.
    other = upload.s3.upload_part(**upload.open, PartNumber=1, Body=data, ChecksumCRC32=b64(KINDS["crc32"](data)))
    assert other["ETag"] == upload.etags[1]
    upload.check_listed()
    upload.check_done(upload.complete(ChecksumSHA256=upload.whole()), place)


@pytest.mark.parametrize("kind, how", [("crc32", "FULL_OBJECT"), ("sha256", "COMPOSITE")])
def test_they_outlive_the_node(new_node, origin, kind, how):
    """An upload over kills of its node, between parts and after its completion: parts of each run are at the origin with their
    checksums, and the object's is told by the answer, also when it is asked for again, and afterwards by HEAD and GET. (Seen to
    fail where the upload's record does not say that the origin gets them.)"""
    place = at_versitygw(new_node(), origin)
    upload = Upload(place, kind, how)
    for number, said in ((1, True), (2, False), (3, True)):
        upload.part(number, harness.random_bytes(LONG if number < 3 else 7, seed=number), said)
        place.node.kill()
        place.node.start()
        upload.check_listed()
    done = upload.complete()
    for _ in range(2):
        upload.check_done(done, place)
        place.node.kill()
        place.node.start()
        done = upload.complete()
    upload.check_done(done, place, place.seen_by(new_node()))


def test_an_origin_that_is_not_given_any(node, origin, new_node):
    """With origin.checksums=false the node alone verifies them, lists them and tells the object's as long as its cache has the
    attributes; another node tells what the origin makes of itself, if it does, which is one of all bytes. (Seen to fail where the
    property is not looked at.)"""
    place = at_versitygw(node, origin, **{"origin.checksums": "false"})
    upload = Upload(place, "sha256", "COMPOSITE")
    upload.part(1, harness.random_bytes(LONG, seed=7))
    assert upload.listed(upload.s3, upload.open) == {1: upload.sum(1)}
    [there] = place.truth.list_parts(**place.open_there())["Parts"]
    assert "ChecksumSHA256" not in there
    done = upload.complete()
    assert done["ChecksumSHA256"] == upload.whole()
    check_shown(node, f"/{place.name}/k", "sha256", upload.whole(), "COMPOSITE")
    other = new_node()
    place.seen_by(other)
    there = place.truth.head_object(**upload.where, ChecksumMode="ENABLED")
    shown = other.s3().head_object(**upload.where, ChecksumMode="ENABLED")
    names = [name for name in {**there, **shown} if name.startswith("Checksum")]
    assert "ChecksumSHA256" not in names and {n: shown.get(n) for n in names} == {n: there.get(n) for n in names}


def test_uploads_that_ask_for_none(place):
    """Nothing of checksums is sent for them; those that clients send with parts are verified here. (Seen to fail
    where the origin is asked for some all the same.)"""
    s3, where = place.node.s3(), {"Bucket": place.name, "Key": "k"}
    open_ = {**where, "UploadId": s3.create_multipart_upload(**where)["UploadId"]}
    assert "ChecksumCRC32" not in str(place.truth.list_parts(**place.open_there()))
    data = harness.random_bytes(LONG, seed=8)
    etag = s3.upload_part(**open_, PartNumber=1, Body=data)["ETag"]
    assert refused(s3.upload_part, **open_, PartNumber=2, Body=b"x", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    s3.complete_multipart_upload(**open_, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert s3.get_object(**where)["Body"].read() == data
    assert "ChecksumCRC32" not in s3.head_object(**where, ChecksumMode="ENABLED")


def test_a_copied_part_gets_one(place):
    """UploadPartCopy of an upload with checksums: computed of its bytes, which go to the origin with it. (Seen to fail
    where UPLOAD_CREATE asks for none.)"""
    upload, data = Upload(place, "sha256", "COMPOSITE"), harness.random_bytes(LONG, seed=9)
    upload.s3.put_object(Bucket=place.name, Key="source", Body=data)
    source = {"Bucket": place.name, "Key": "source"}
    made = upload.s3.upload_part_copy(**upload.open, PartNumber=1, CopySource=source)["CopyPartResult"]
    upload.has(1, data, made["ETag"])
    assert made["ChecksumSHA256"] == upload.sum(1)
    upload.check_listed()
    upload.check_done(upload.complete(), place)


def test_boto3_as_it_comes(place, tmp_path, new_node):
    """upload_file, whose client computes checksums by itself: the object has the one that it asks for, everywhere. (Seen
    to fail where UPLOAD_CREATE asks for none.)"""
    data, s3 = harness.random_bytes(21 * MIB, seed=10), place.node.s3()
    (tmp_path / "in").write_bytes(data)
    s3.upload_file(str(tmp_path / "in"), place.name, "k", ExtraArgs={"ChecksumAlgorithm": "SHA256"})
    parts = [data[at:at + 8 * MIB] for at in range(0, len(data), 8 * MIB)]
    right = f"{b64(hashlib.sha256(b''.join(hashlib.sha256(p).digest() for p in parts)).digest())}-{len(parts)}"
    there = place.truth.head_object(Bucket=place.name_there, Key="k", ChecksumMode="ENABLED")
    assert there["ChecksumSHA256"] == right
    for one in (place, place.seen_by(new_node())):
        check_shown(one.node, f"/{one.name}/k", "sha256", right, "COMPOSITE")


def test_a_part_that_is_read_has_its_own(node, new_node):
    """GET and HEAD with partNumber of an object whose origin tells checksums of parts, here another node: that of the part, with
    the object's type. (Seen to fail where PART does not tell it, and where the origin is not asked for it.)"""
    upload = Upload(at_a_node(node, new_node), "sha1", "COMPOSITE")
    for number, data in ((1, harness.random_bytes(5 * MIB, seed=11)), (2, b"end")):
        upload.part(number, data)
    upload.complete()
    other = new_node()
    upload.place.seen_by(other)
    for client in (node.s3(), other.s3()):
        client.head_object(**upload.where)
        for number in (1, 2):
            for call in (client.head_object, client.get_object):
                got = call(**upload.where, PartNumber=number, ChecksumMode="ENABLED")
                assert (got["PartsCount"], got["ChecksumSHA1"], got["ChecksumType"]) == (2, upload.sum(number), "COMPOSITE")
            assert base64.b64encode(hashlib.sha1(got["Body"].read()).digest()).decode() == upload.sum(number)
