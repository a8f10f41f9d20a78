"""Misdeeds again and again: what one of them leaves behind would add up. Of a single one the fixture leaves_nothing of the tests that
these are says that no handle, connection or descriptor stays, and LeakSanitizer at the end of each node that no memory is lost; here
memory that somebody still knows, and would keep for ever, is looked for as well, without sanitizers, which have memory of their own.
"""

import contextlib
import socket
import urllib.parse

import pytest

import harness
import held
import test_s3_bad_input as bad_input
import test_s3_post as post
import test_s3_security as security
from conftest import Bucket

ROUNDS = 30
GROWTH = 4 << 20  # of the resident memory, for all rounds: what the allocator keeps is under 1 MiB, and 140 KiB each time are more


def slow_loris(bucket):
    """Heads and bodies that stop in the midst, of clients that then go away."""
    host, port = urllib.parse.urlsplit(bucket.node.endpoint).netloc.split(":")
    s3 = bucket.node.s3(signature_version="s3v4")
    url = urllib.parse.urlsplit(s3.generate_presigned_url("put_object", Params={"Bucket": bucket.name, "Key": "slow"}))
    whole = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 5000000\r\n\r\n".encode() + b"x" * 600_000
    with contextlib.ExitStack() as stack:
        for end in (1, 20, len(whole) - 600_002, len(whole) - 600_000, len(whole) - 599_000, len(whole) - 300_000, len(whole)):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=200))
            connection.sendall(whole[:end])


def wrong_checksums(bucket):
    security.test_bodies_that_do_not_match(bucket)
    security.test_wrong_content_md5(bucket)
    security.test_signed_chunks_with_a_trailer(bucket, "checksum", "BadDigest")


def cut_uploads(bucket):
    security.test_uploads_that_are_cut(bucket, 300_000, "nothing")
    security.test_uploads_that_are_cut(bucket, 9_000_000, "SHA-256")


def broken_chunks(bucket):
    for broken in ("payload", "signature", "missing end", "replayed", "another's"):
        security.test_signed_chunks(bucket, broken)


def keys(bucket):
    for key, code in (("a%00b", "InvalidURI"), ("%zz", "InvalidURI"), ("k" * 1025, "KeyTooLongError")):
        bad_input.test_keys_that_are_none(bucket, key, code)
    for path, status in (("/../x", 404), ("/%2e%2e/x", 403), ("/UPPER/x", 404)):
        bad_input.test_bucket_names_that_look_like_ways_out(bucket.node, path, status)


def headers(bucket):
    head = f"PUT /{bucket.name}/k HTTP/1.1\r\nHost: h\r\n".encode()
    answer = bad_input.flood(bucket.node, head + b"x-amz-meta-a: v\r\n" * 100_000 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


def parts(bucket):
    bad_input.test_ten_thousand_and_one_parts(bucket)
    bucket.s3.delete_object(Bucket=bucket.name, Key="k")


def forms(bucket):
    post.test_forms_that_are_refused_store_nothing(bucket)
    bucket.s3.delete_object(Bucket=bucket.name, Key="k")  # its last one is good


MISDEEDS = {"slow loris": slow_loris, "headers": headers, "parts": parts, "checksums": wrong_checksums, "cut": cut_uploads,
            "chunks": broken_chunks, "keys": keys, "documents": bad_input.test_documents_that_are_too_large,
            "forms": forms}


@pytest.mark.parametrize("kind", ["scratch", "mirror"])
def test_misdeeds_add_up_to_nothing(new_node, origin, kind):
    """After each misdeed, many times, the node holds no handle, connection or descriptor of it, and no memory that it had not after the
    first times. (Fails where put_fini leaves the sink open, where front_close does not free connections, and where put_fini puts one of its
    two pieces into a list.)"""
    node = new_node(binary=harness.forebay_release_bin(), threads="4", request_timeout="1h", env={"MALLOC_ARENA_MAX": "1"})
    name = harness.scratch_bucket(node) if kind == "scratch" else node.new_bucket(origin)
    bucket = Bucket(name, node.s3(), node.s3() if kind == "scratch" else origin.s3(), node, origin)
    for what, misdeed in MISDEEDS.items():
        for _ in range(5):
            misdeed(bucket)
        descriptors, before = held.other_descriptors(node), bad_input.memory_of(node)
        for _ in range(ROUNDS):
            misdeed(bucket)
        harness.wait_until(lambda: not held.by_requests(node), what=lambda: f"{what}: nothing is held: {held.by_requests(node)}")
        grown = bad_input.memory_of(node) - before
        assert grown < GROWTH, (what, grown)
        harness.wait_until(lambda: held.other_descriptors(node) <= descriptors, what=f"{what}: descriptors as before")
