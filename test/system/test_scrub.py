"""The scrub: what rots on a disk is found though nobody reads it, and others go first."""

import concurrent.futures
import json
import os

import harness
from test_jobs import checked

BLOCK = 2**20


def scrub_of(node):
    return json.loads(node.cli("status", "--json").stdout)["scrub"]["disks"][0]


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def files_of(node, kind):
    return [p for p in (node.data / "cache" / kind).rglob("*") if p.is_file()]


def start(node, rate):
    node.options["scrub_rate"] = rate
    node.start()


def end_of_pass(node):
    harness.wait_until(lambda: scrub_of(node)["ended_ms"] > 0, what="the pass ended")
    return scrub_of(node)


def test_a_flipped_byte_is_found_and_healed(new_node, origin):
    """A bit flips in a cached object that nobody reads: its block alone is dropped, and fetched again by the next read. One
    that flips in a scratch file is told, by status, metric and log, and nothing is changed. What is whole stays."""
    node = new_node()
    name, scratch = node.new_bucket(origin), harness.scratch_bucket(node)
    data, own = os.urandom(4 * BLOCK + 77), os.urandom(2 * BLOCK)
    origin.s3().put_object(Bucket=name, Key="k", Body=data)
    origin.s3().put_object(Bucket=name, Key="other", Body=data)
    node.cli("prefetch", "--wait", name)
    node.s3().put_object(Bucket=scratch, Key="own", Body=own)
    harness.wait_until(lambda: json.loads(node.cli("status", "--json").stdout)["scratch"]["unsettled_files"] == 0, what="settled")
    assert "scrub" not in json.loads(node.cli("status", "--json").stdout)
    node.stop()
    cached, = [p for p in files_of(node, "extents") if p.stat().st_size == len(data)][:1]
    flip(cached, 2 * BLOCK + 5)
    hard, = [p for p in files_of(node, "hard") if p.read_bytes() == own]
    flip(hard, BLOCK + 9)
    start(node, "10GiB")
    found = end_of_pass(node)
    assert (found["blocks"], found["dropped"], found["bad_scratch_files"]) == (12, 1, 1)
    assert node.metric("forebay_corrupt_blocks_total", found="scrub") == 2
    assert f"hard extent {hard.name}" in node.log() and "block 2 failed its check (scrub)" in node.log()
    assert "bad bytes" in node.cli("status").stdout
    state = checked(node, name)
    assert (state["cached_objects"], state["cached_bytes"]) == (1, 2 * len(data) - BLOCK)
    before = node.metric("forebay_origin_read_bytes_total", bucket=name)
    for key in "k", "other":
        assert node.s3().get_object(Bucket=name, Key=key)["Body"].read() == data
    harness.wait_until(lambda: node.metric("forebay_origin_read_bytes_total", bucket=name) == before + BLOCK, what="one block is fetched")
    assert hard.read_bytes() != own and hard.stat().st_size == len(own)


def test_it_goes_on_where_it_was(new_node, origin):
    """A node that is stopped in the middle of a pass goes on with it: each block is read once. The next pass is not begun
    before a day is over."""
    node = new_node()
    name = node.new_bucket(origin)
    for i in range(12):
        origin.s3().put_object(Bucket=name, Key=f"k{i}", Body=os.urandom(BLOCK))
    node.cli("prefetch", "--wait", name)
    node.stop()
    start(node, "1MiB")
    harness.wait_until(lambda: node.metric("forebay_scrubbed_bytes_total") >= 3 * BLOCK, what="a part of the pass")
    node.stop()
    start(node, "10GiB")
    assert end_of_pass(node)["blocks"] == 12
    assert node.metric("forebay_scrubbed_bytes_total") <= 9 * BLOCK
    node.restart()
    assert end_of_pass(node)["blocks"] == 12 and node.metric("forebay_scrubbed_bytes_total") == 0


def test_it_waits_for_who_reads(new_node, new_shaper, origin):
    """While somebody reads no block is begun, also while the read waits for its origin; afterwards it goes on. (Without
    scrub_must_wait in `before` of scrub.c it never waits.)"""
    node, shaper = new_node(), new_shaper()
    name = node.new_bucket(origin)
    slow = node.new_bucket(origin, endpoint=shaper.endpoint, **{"origin.timeout": "10m"})
    data = os.urandom(BLOCK)
    for i in range(16):
        origin.s3().put_object(Bucket=name, Key=f"k{i}", Body=data)
    origin.s3().put_object(Bucket=slow, Key="k", Body=data)
    node.cli("prefetch", "--wait", name)
    node.stop()
    shaper.fault("stall", count="100", match=f"/{slow}/k")
    start(node, "128KiB")

    def seen():
        return node.metric("forebay_scrub_waits_total"), node.metric("forebay_scrubbed_bytes_total")

    def is_held():
        waits, read = seen()
        harness.wait_until(lambda: seen()[0] >= waits + 5, what="the scrub waits")
        return seen()[1] == read

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: node.s3().get_object(Bucket=slow, Key="k")["Body"].read())
        try:
            harness.wait_until(is_held, what="no block is begun meanwhile")
            read = seen()[1]
            assert not reading.done()
        finally:
            shaper.release()
        assert reading.result() == data
    harness.wait_until(lambda: seen()[1] > read, what="it goes on")
