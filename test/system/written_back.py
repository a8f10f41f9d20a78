"""What the tests of write=back share."""

import json

import pytest

DOWN = {"kind": "status:503", "count": "100000000"}


def status(node, name):
    buckets = json.loads(node.cli("status", "--json").stdout)["buckets"]
    return next(b for b in buckets if b["name"] == name)["write_back"]


def flushed(node, name):
    assert "0 objects" in node.cli("flush", "--wait", name).stdout


def down(shaper, match=None):
    """The origin answers nothing but errors."""
    shaper.fault(DOWN["kind"], count=DOWN["count"], **({"match": match} if match else {}))


@pytest.fixture
def away(new_node, new_shaper, origin):
    """A bucket with write=back whose origin can be made to fail."""
    node, shaper = new_node(), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="1s", validate="ttl:1s")
    return node, name, shaper, origin.s3()
