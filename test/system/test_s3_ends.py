"""Ends of uploads in parts while other parts of them still come: on a connection that is dead, or one that goes on later."""

import concurrent.futures
import time

import pytest

import harness
from relay import Relay
from test_s3_multipart import MIB, Coming, Upload, code_of
from test_s3_uploads_clouds import AzureMirror, GoogleMirror, azurite, gcs  # noqa: F401
from test_silent import PATIENT

KINDS = ("scratch", "s3", "gs", "az")


class Scratch:
    def __init__(self, node):
        self.node, self.s3, self.name = node, node.s3(), harness.scratch_bucket(node)


class Mirror:
    def __init__(self, node, origin):
        self.node, self.s3, self.name = node, node.s3(), node.new_bucket(origin)


@pytest.fixture(params=KINDS)
def place(request, node):
    if request.param == "scratch":
        return Scratch(node)
    if request.param == "s3":
        return Mirror(node, request.getfixturevalue("origin"))
    server, kind = {"gs": ("gcs", GoogleMirror), "az": ("azurite", AzureMirror)}[request.param]
    return kind(node, request.getfixturevalue(server))


def read(place):
    return place.s3.get_object(Bucket=place.name, Key="k")["Body"].read()


def sent(place):
    """Sizes of what is at the origin of uploads that have not ended, where one can tell."""
    return place.sent() if isinstance(place, GoogleMirror) else []


@pytest.mark.parametrize("number", [2, 3])
def test_a_completion_waits_for_no_part(place, number):
    """The client of a part says nothing any more, one that replaces an acknowledged one or one that the list does not name: the
    completion is of the parts that its list names, at once. What still comes of the other is refused, changes nothing of the
    object, here and at the origin, and nothing of it stays. (Seen to wait until the node gave that client up, where an end waits
    for parts that have begun.)"""
    upload = Upload(place)
    parts = {n: harness.random_bytes(5 * MIB) for n in (1, 2)}
    for n, data in parts.items():
        upload.part(n, data)
    with Coming(upload, number, harness.random_bytes(5 * MIB)) as stale:
        done = upload.complete()
        assert read(place) == b"".join(parts.values())
        assert upload.complete()["ETag"] == done["ETag"]  # asked again, as after a lost answer
        status, answer = stale.end()
        assert (status, "<Code>NoSuchUpload</Code>" in answer) == (404, True), answer
    assert read(place) == b"".join(parts.values())
    assert sent(place) == []
    assert "Uploads" not in place.s3.list_multipart_uploads(Bucket=place.name)
    if place.__class__ not in (Scratch, Mirror):
        assert place.truth() == (b"".join(parts.values()), done["ETag"])


def test_a_list_that_is_refused_stops_no_part(place):
    """A completion whose list names what is not there leaves a part that comes meanwhile alone: it ends well, and counts in the
    next one. (Seen to fail where the upload is closed before its list is looked at.)"""
    upload = Upload(place)
    parts = {n: harness.random_bytes(5 * MIB) for n in (1, 2)}
    upload.part(1, parts[1])
    with Coming(upload, 2, parts[2]) as coming:
        assert code_of(lambda: upload.complete([1, 2])) == "InvalidPart"
        status, answer = coming.end()
        assert status == 200, answer
    [_, listed] = place.s3.list_parts(**upload.where, UploadId=upload.id)["Parts"]
    upload.etags[2] = listed["ETag"]
    upload.complete()
    assert read(place) == b"".join(parts.values())


def test_a_part_that_a_failed_completion_stopped(place):
    """A completion whose condition does not hold stops what comes meanwhile, and leaves the upload: the part is told to come again
    (503), and counts then. (Seen to be told that there is no such upload, which is there.)"""
    place.s3.put_object(Bucket=place.name, Key="k", Body=b"there")
    upload = Upload(place)
    parts = {n: harness.random_bytes(5 * MIB) for n in (1, 2)}
    upload.part(1, parts[1])
    with Coming(upload, 2, parts[2]) as coming:
        assert code_of(lambda: upload.complete([1], IfNoneMatch="*")) == "PreconditionFailed"
        status, answer = coming.end()
        assert status == 503, answer
    upload.part(2, parts[2])
    upload.complete()
    assert read(place) == b"".join(parts.values()) and sent(place) == []


@pytest.mark.parametrize("end", ["abort", "completion"])
@pytest.mark.parametrize("after", [0, 300_000])
@pytest.mark.parametrize("place", ["scratch", "s3"], indirect=True)
def test_a_copy_ends_with_its_upload(place, origin, after, end):
    """A part that is copied from an object whose origin says nothing any more, from the first or in the midst of its bytes, is told that
    there is no such upload as soon as that was aborted or completed, and its source is not waited for; nor is it where the upload was
    gone before. (Seen to wait for the source without uploads_tell_end and uploads_stop_copies_locked, and, asked again, without
    check_upload.)"""
    with Relay(origin.port) as relay:
        source = place.node.new_bucket(origin, endpoint=relay.endpoint, **PATIENT)
        origin.s3().put_object(Bucket=source, Key="source", Body=harness.random_bytes(8 * MIB))
        upload = Upload(place)
        upload.part(1, b"1")
        relay.hush(after)
        copy = lambda: place.s3.upload_part_copy(**upload.where, UploadId=upload.id, PartNumber=2, CopySource=f"{source}/source")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            try:
                waiting = pool.submit(code_of, copy)
                harness.wait_until(lambda: relay.held() > 0, what="the source is asked for")
                upload.abort() if end == "abort" else upload.complete([1])
                said = waiting.result(harness.PATIENCE)
                # A completion that takes long may fail still: the client is told to come again, and the next one below what became of it.
                assert said == "NoSuchUpload" or (end, said) == ("completion", "ServiceUnavailable")
                assert pool.submit(code_of, copy).result(harness.PATIENCE) == "NoSuchUpload"
            finally:
                relay.speak()
    assert "Uploads" not in place.s3.list_multipart_uploads(Bucket=place.name)
    assert end == "abort" or read(place) == b"1"


@pytest.mark.parametrize("place", ["scratch"], indirect=True)
def test_a_copy_of_what_is_cached_while_its_origin_is_away(place, origin):
    """A part is copied from an object that is cached, as it is read, though its origin says nothing. (Seen to be refused where recall_old
    takes every session that can be given up for a job's.)"""
    data = harness.random_bytes(6 * MIB)
    with Relay(origin.port) as relay:
        source = place.node.new_bucket(origin, endpoint=relay.endpoint, validate="ttl:100ms", retry="1s", **{"origin.timeout": "1s"})
        origin.s3().put_object(Bucket=source, Key="source", Body=data)
        assert place.s3.get_object(Bucket=source, Key="source")["Body"].read() == data
        upload = Upload(place)
        relay.hush(0)
        time.sleep(0.2)
        made = place.s3.upload_part_copy(**upload.where, UploadId=upload.id, PartNumber=1, CopySource=f"{source}/source")
        relay.speak()
    upload.etags[1] = made["CopyPartResult"]["ETag"]
    upload.complete()
    assert read(place) == data
