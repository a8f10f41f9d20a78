"""write=back when room is short: who waits, who is refused, and who is not held up."""

import concurrent.futures
import os
import types

import botocore.exceptions
import pytest

from harness import scratch_bucket, wait_until
from test_jobs import fill, keys_of
from written_back import down, flushed


def test_backpressure_and_what_is_refused(new_node, new_shaper, origin, tmp_path):
    """At the watermark writers wait, then get a clear error; nothing acknowledged goes. While writes are not in the
    origin the bucket is neither removed nor moved, and write=through ends nothing of them."""
    node, shaper = new_node(disk=f"{tmp_path}/disk:256MiB"), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms")
    s3, body, n = node.s3(retries={"max_attempts": 0}), os.urandom(16 * 2**20), 0
    down(shaper, match="PUT")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        while n < 64:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n += 1
    assert n >= 2 and "are not in the origin yet, at most" in str(refused.value)  # and not that the disk is full
    assert s3.get_object(Bucket=name, Key="k0")["Body"].read() == body
    assert node.metric("forebay_write_back_objects", bucket=name) == n
    for command in (("rm", name), ("set", name, "origin.endpoint=http://127.0.0.1:1")):
        done = node.cli("bucket", *command, check=False)
        assert done.returncode != 0 and "flush" in done.stderr
    node.cli("bucket", "set", name, "write=through")
    assert s3.get_object(Bucket=name, Key="k1")["Body"].read() == body
    shaper.reset()
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n


def test_a_lower_mark_slows_writers_earlier(new_node, new_shaper, origin, tmp_path):
    """--dirty-max PERCENT: writers wait, and are refused in the end, when so much of the disks is not in the origin; a restart may
    set it higher or lower, and what was acknowledged stays. (With the constant in object/back.c the first number is 9.)"""
    node, shaper, body = new_node(disk=f"{tmp_path}/disk:256MiB", dirty_max="20"), new_shaper(), os.urandom(16 * 2**20)
    name, n = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms"), 0
    down(shaper, match="PUT")
    for percent, most in (("20", 3), ("55", 8), ("1", 8)):
        node.stop()
        node.options["dirty_max"] = percent
        node.start()
        s3 = node.s3(retries={"max_attempts": 0})
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            while n < 16:
                s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
                n += 1
        assert n == most and f"at most {2**28 // 100 * int(percent)} bytes" in str(refused.value)
    shaper.reset()
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n


def test_writers_that_wait_take_no_thread_from_readers(new_node, new_shaper, origin, tmp_path):
    """At the watermark as many S3 writers wait as may wait for limits, half of the threads; more of them are told to come
    again, at once, so that others are served meanwhile. (Without back_begin_wait in back_wait_room nothing is, until the
    bucket's `retry` has passed.)"""
    node, shaper = new_node(disk=f"{tmp_path}/disk:256MiB", threads=8), new_shaper()
    name, other = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms"), scratch_bucket(node)
    s3, body = node.s3(retries={"max_attempts": 0}, max_pool_connections=64, read_timeout=900), os.urandom(16 * 2**20)
    s3.put_object(Bucket=other, Key="k", Body=b"data")
    down(shaper, match="PUT")
    n = 0
    with pytest.raises(botocore.exceptions.ClientError):
        while n < 64:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n += 1
    node.cli("bucket", "set", name, "retry=10m")
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        late = [pool.submit(s3.put_object, Bucket=name, Key=f"late{i}", Body=body) for i in range(24)]
        wait_until(lambda: sum(one.done() for one in late) == 20, what="refusals")
        for _ in range(10):
            assert s3.get_object(Bucket=other, Key="k")["Body"].read() == b"data"
        refused = [one for one in late if one.done()]
        assert len(refused) == 20
        for one in refused:
            error = one.exception()
            assert error.response["Error"]["Code"] == "ServiceUnavailable" and "not in the origin yet" in str(error)
        shaper.reset()
        for one in late:
            assert one in refused or one.result()
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n + 4


def test_writers_that_wait_end_with_the_node(new_node, new_shaper, origin, tmp_path):
    """SIGTERM: writers that wait for room are answered 503 and why, and the node ends; what was acknowledged gets to the origin after the
    next start. (Without stopping_soon in back.c they wait for --drain-timeout, here ten minutes.)"""
    node, shaper = new_node(disk=f"{tmp_path}/disk:256MiB", drain_timeout="10m"), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms")
    s3, body, n = node.s3(retries={"max_attempts": 0}, read_timeout=900), os.urandom(16 * 2**20), 0
    down(shaper, match="PUT")
    with pytest.raises(botocore.exceptions.ClientError):
        while n < 64:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n += 1
    node.cli("bucket", "set", name, "retry=1h")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        late = [pool.submit(s3.put_object, Bucket=name, Key=f"late{i}", Body=body) for i in range(3)]
        wait_until(lambda: node.metric("forebay_connections_active", via="http") > len(late), what="writers that wait")
        node.stop()
        for one in late:
            refused = one.exception(timeout=200)
            assert refused.response["ResponseMetadata"]["HTTPStatusCode"] == 503 and "the node is stopping" in str(refused)
    node.start()
    shaper.reset()
    flushed(node, name)
    assert keys_of(origin.s3(), name) == sorted(f"k{i}" for i in range(n))


def test_a_full_disk_makes_writers_wait(new_node, new_shaper, origin, tmp_path):
    """Pins and writes that are not in the origin yet fill the disk, below the watermark: a writer gets a clear error after
    the bucket's `retry`, with a longer one it waits, and goes on as the origin takes what was before it; nothing
    acknowledged goes. (Without back_wait_freed in writer.c and back_layer.c it fails at once.)"""
    node, shaper = new_node(disk=f"{tmp_path}/disk:64MiB"), new_shaper()
    pinned = node.new_bucket(origin)
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms", write_delay="0s")
    fill(types.SimpleNamespace(name=pinned, truth=origin.s3()), 40, size=2**20)
    node.cli("prefetch", "--pin", "--wait", pinned)
    s3, body, n, refused = node.s3(retries={"max_attempts": 0}), os.urandom(4 * 2**20), 0, []
    down(shaper, match="PUT")
    while n < 64 and len(refused) < 3:
        try:
            s3.put_object(Bucket=name, Key=f"k{n}", Body=body)
            n, refused = n + 1, []
        except botocore.exceptions.ClientError as error:
            refused.append(str(error))
    assert 3 <= n <= 6 and all("have no room" in words for words in refused), (n, refused)
    node.cli("bucket", "set", name, "retry=10m")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        late = [pool.submit(s3.put_object, Bucket=name, Key=f"late{i}", Body=body) for i in range(4)]
        assert concurrent.futures.wait(late, timeout=2).not_done  # seven do not fit
        shaper.reset()
        for one in late:
            one.result()
    for key in [f"k{i}" for i in range(n)] + [f"late{i}" for i in range(4)]:
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == body
    flushed(node, name)
    assert len(keys_of(origin.s3(), name)) == n + 4
