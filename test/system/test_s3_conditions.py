"""Conditional writes of many clients against each other, and reads of many while somebody writes."""

import concurrent.futures
import hashlib
import threading

import botocore.exceptions
import pytest

import harness

LOST = {"PreconditionFailed", "NoSuchKey"}  # the second where the winner removed the object


def run_together(calls):
    """[None or code of the error] of calls that begin together."""
    ready = threading.Barrier(len(calls))

    def run(call):
        ready.wait(200)
        try:
            call()
            return None
        except botocore.exceptions.ClientError as error:
            return error.response["Error"]["Code"]

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def upload_of(s3, where, body):
    """What completes an upload of one part, under conditions."""
    upload = {**where, "UploadId": s3.create_multipart_upload(**where)["UploadId"]}
    listed = {"Parts": [{"PartNumber": 1, "ETag": s3.upload_part(**upload, PartNumber=1, Body=body)["ETag"]}]}
    return lambda **condition: s3.complete_multipart_upload(**upload, MultipartUpload=listed, **condition)


def content(s3, where):
    try:
        return s3.get_object(**where)["Body"].read()
    except s3.exceptions.NoSuchKey:
        return None


@pytest.mark.parametrize("seen", [True, False], ids=["If-Match", "If-None-Match"])
def test_one_of_many_conditional_writes_is_made(node, scratch, seen):
    """Of PUTs, completions, copies and removals that want the object as it was, or none to be there, exactly one is done, and what it
    did is what is there afterwards. (A removal after a removal finds nothing, which is no error.)"""
    s3 = node.s3()
    s3.put_object(Bucket=scratch, Key="source", Body=b"copied")
    for turn in range(9):
        where = {"Bucket": scratch, "Key": f"k{turn}"}
        condition = {"IfMatch": s3.put_object(**where, Body=b"old")["ETag"]} if seen else {"IfNoneMatch": "*"}
        bodies = [b"put 1", b"put 2", b"put 3", b"part 1", b"part 2", b"copied"]
        calls = [lambda body=body: s3.put_object(**where, Body=body, **condition) for body in bodies[:3]]
        calls += [lambda done=upload_of(s3, where, body): done(**condition) for body in bodies[3:5]]
        calls.append(lambda: s3.copy_object(**where, CopySource=f"{scratch}/source", **condition))
        removals = turn % 3 if seen else 0
        bodies += [None] * removals  # they send no body, and would always be first
        calls += [lambda: (s3.list_buckets(), s3.delete_object(**where, **condition))] * removals
        errors = run_together(calls)
        winners = [n for n, error in enumerate(errors) if error is None]
        assert set(errors) - {None} <= LOST, errors
        assert len(winners) == 1 or (winners and all(bodies[n] is None for n in winners)), errors
        made = bodies[winners[0]]
        assert content(s3, where) == made
        for n, call in enumerate(calls):  # nor is one of them done later
            if n not in winners and (made is not None or bodies[n] is not None):
                assert run_together([call]) == ["PreconditionFailed" if made is not None else "NoSuchKey"], (n, errors)
        assert content(s3, where) == made
        if made is not None:
            s3.delete_object(**where, IfMatch=s3.head_object(**where)["ETag"])
            assert content(s3, where) is None


def test_ranges_of_many_clients_are_of_one_version(node, scratch):
    """Who reads an object piece by piece with the ETag of its beginning has the bytes of that version or is told that it is no more,
    while others read and somebody writes."""
    s3, where, ended = node.s3(), {"Bucket": scratch, "Key": "k"}, threading.Event()

    def body(turn):
        return b"%07d\n" % turn * 40_000

    def read():
        etag = s3.head_object(**where)["ETag"]
        try:
            pieces = [s3.get_object(**where, IfMatch=etag, Range=f"bytes={at}-{at + 99_999}")["Body"].read()
                      for at in range(0, 320_000, 100_000)]
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed"
            return False
        assert f'"{hashlib.md5(b"".join(pieces)).hexdigest()}"' == etag
        return True

    def read_on():
        while not ended.is_set():
            read()
        return read()  # nobody writes any more

    s3.put_object(**where, Body=body(0))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read_on) for _ in range(6)]
        try:
            for turn in range(1, 31):
                s3.put_object(**where, Body=body(turn))
        finally:
            ended.set()
        assert all(reader.result() for reader in readers)


@pytest.mark.parametrize("kind", ["scratch", "mirror"])
def test_a_range_of_a_version_that_is_no_more(node, origin, kind):
    """If-Match on a range: 412 once the object is another one, also when the range lies behind the new end."""
    s3 = node.s3()
    where = {"Bucket": harness.scratch_bucket(node) if kind == "scratch" else node.new_bucket(origin), "Key": "k"}
    old = s3.put_object(**where, Body=b"0123456789")["ETag"]
    got = s3.get_object(**where, IfMatch=old, Range="bytes=-3")
    assert (got["Body"].read(), got["ContentRange"]) == (b"789", "bytes 7-9/10")
    new = s3.put_object(**where, Body=b"abcde")["ETag"]
    for text in ("bytes=0-1", "bytes=-1", "bytes=8-9"):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            s3.get_object(**where, IfMatch=old, Range=text)
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412, text
    assert s3.get_object(**where, IfMatch=new, Range="bytes=3-99")["Body"].read() == b"de"


@pytest.mark.parametrize("kind", ["scratch", "mirror", "file"])
def test_a_star_fits_whatever_is_there(node, origin, tmp_path, kind):
    """If-Match: * of a PUT, a completion and a removal holds for every object, and for none that is not there; removing that is no
    error. At an origin too that does not know "*" there (versitygw)."""
    s3 = node.s3()
    if kind == "file":
        bucket = harness.random_name()
        node.create_bucket(bucket, f"file://{tmp_path}")
    else:
        bucket = harness.scratch_bucket(node) if kind == "scratch" else node.new_bucket(origin)
    where, missing = {"Bucket": bucket, "Key": "k"}, {"NoSuchKey", "PreconditionFailed"}
    s3.put_object(**where, Body=b"first")
    s3.put_object(**where, Body=b"second", IfMatch="*")
    assert content(s3, where) == b"second"
    upload_of(s3, where, b"third")(IfMatch="*")
    assert content(s3, where) == b"third"
    s3.delete_object(**where, IfMatch="*")
    assert content(s3, where) is None
    s3.delete_object(**where, IfMatch="*")
    s3.delete_object(**where, IfMatch='"0123456789abcdef0123456789abcdef"')
    calls = [lambda: s3.put_object(**where, Body=b"x", IfMatch="*"), lambda: upload_of(s3, where, b"x")(IfMatch="*")]
    for call in calls:
        assert run_together([call])[0] in missing
        assert content(s3, where) is None
    for asked in ("*", '"0123456789abcdef0123456789abcdef"'):
        assert run_together([lambda: upload_of(s3, where, b"x")(IfMatch=asked)]) == ["NoSuchKey"], asked
        assert content(s3, where) is None
    s3.put_object(**where, Body=b"fourth")
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "ETag": "*"}]})
    assert [d["Key"] for d in answer["Deleted"]] == ["k"] and content(s3, where) is None
