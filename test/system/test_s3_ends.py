"""Ends of uploads in parts while other parts of them still come: on a connection that is dead, or one that goes on later."""

import pytest

import harness
from test_s3_multipart import MIB, Coming, Upload, code_of
from test_s3_uploads_clouds import AzureMirror, GoogleMirror, azurite, gcs  # noqa: F401

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
