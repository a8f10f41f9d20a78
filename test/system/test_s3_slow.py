"""Operations that wait long for an origin: their clients hear something meanwhile, and learn in the end how it went."""

import concurrent.futures
import hashlib
import http.client
import os
import urllib.parse
import xml.etree.ElementTree as ET

import pytest

import harness
from keyorigin import KeyOrigin, Object
from test_s3_security import signed_url

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def ask(node, method, path, body=None):
    """Sends a request, and gives the answer as soon as its head is there."""
    url = urllib.parse.urlsplit(signed_url(node, method, path))
    connection = http.client.HTTPConnection(url.netloc, timeout=300)
    connection.request(method, f"{url.path}?{url.query}", body)
    return connection.getresponse()


def document(answer):
    """(root, fields, texts) of an answer's XML; root and fields without their name space."""
    assert answer.status == 200 and answer.getheader("content-type") == "application/xml"
    elements = list(ET.fromstring(answer.read()).iter())
    names = [element.tag.rpartition("}")[2] for element in elements]
    return names[0], dict(zip(names[1:], (e.text for e in elements[1:]))), [e.text for e in elements]


@pytest.fixture
def slow(node):
    """(origin, bucket): while somebody holds origin.lock it answers nothing."""
    with KeyOrigin() as origin:
        name = harness.random_name()
        node.create_bucket(name, f"s3://{name}", retry="5m", **origin.properties())
        for key in ("from", "gone", "one", "two"):
            origin.objects[name, key] = Object(b"data of " + key.encode() * 1000)
        yield origin, name


def test_slow_copies_keep_the_client(node, slow):
    """While the origin says nothing, clients of copies and removals have the head of their answers; what was sent behind it
    when the origin spoke is one document, and says what happened, good or bad."""
    origin, name = slow
    s3, target = node.s3(), harness.random_name("scratch")
    s3.create_bucket(Bucket=target)
    upload = s3.create_multipart_upload(Bucket=target, Key="parts")["UploadId"]
    source, part = f"x-amz-copy-source=%2F{name}%2F", f"/{target}/parts?partNumber=1&uploadId={upload}"
    keys = "".join(f"<Object><Key>{key}</Key></Object>" for key in ("one", "two"))
    requests = [("PUT", f"/{target}/copy?{source}from"), ("PUT", f"/{target}/none?{source}gone"),
                ("PUT", f"{part}&{source}from"), ("POST", f"/{name}?delete", f"<Delete>{keys}</Delete>")]
    whole = origin.objects[name, "from"].data
    etag = f'"{hashlib.md5(whole).hexdigest()}"'
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        with origin.lock:
            answers = list(pool.map(lambda request: ask(node, *request), requests))
            del origin.objects[name, "gone"]
        copied, gone, part_copied, deleted = map(document, answers)
    assert copied[0] == "CopyObjectResult" and copied[1]["ETag"] == etag
    assert (gone[0], gone[1]["Code"]) == ("Error", "NoSuchKey")
    assert part_copied[0] == "CopyPartResult" and part_copied[1]["ETag"] == etag
    assert deleted[0] == "DeleteResult" and {"one", "two"} <= set(deleted[2])
    assert [key for _, key in origin.objects] == ["from"]
    assert s3.get_object(Bucket=target, Key="copy")["Body"].read() == whole
    s3.complete_multipart_upload(Bucket=target, Key="parts", UploadId=upload,
                                 MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert s3.get_object(Bucket=target, Key="parts")["Body"].read() == whole
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=target)["Contents"]] == ["copy", "parts"]


def test_many_slow_copies_share_a_thread(new_node):
    """A hundred clients hear something while the origin says nothing, and one thread of the node sees to that. (Seen to fail
    with a thread for each.)"""
    n = 100
    node = new_node(threads=str(2 * n + 32))  # no more than half of them wait for a silent origin
    with KeyOrigin() as origin, concurrent.futures.ThreadPoolExecutor(n) as pool:
        source, target = harness.random_name(), harness.random_name("scratch")
        node.create_bucket(source, f"s3://{source}", retry="5m", **origin.properties())
        origin.objects[source, "k"] = Object(b"data" * 1000)
        node.s3().create_bucket(Bucket=target)

        def copy(number):
            return ask(node, "PUT", f"/{target}/{number}?x-amz-copy-source=%2F{source}%2Fk")

        def threads():
            return len(os.listdir(f"/proc/{node.pid}/task"))

        with origin.lock:
            first = copy("first")  # from now on the threads that fetch are there
            before = threads()
            answers = list(pool.map(copy, range(n)))
            more = threads() - before
        for answer in [first, *answers]:
            assert document(answer)[0] == "CopyObjectResult"
    assert more < 2 * n  # one each that works, and those that were called up for others
    assert len(node.s3().list_objects_v2(Bucket=target)["Contents"]) == n + 1
