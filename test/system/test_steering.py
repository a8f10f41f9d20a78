"""Steering the cache: pins, prefixes that are never cached, times by prefix, quotas, what is used and what is hot."""

import errno
import json
import time
import types

import botocore.exceptions
import pytest

import harness
from test_jobs import checked, fill, keys_of, origin_bytes


def read_all(s3, name, contents):
    for key, data in contents.items():
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == data


def test_pinned_data_stays(new_node, origin, tmp_path):
    """What is pinned outlives scans and writes over several times the disk, a restart and an evict job, until it is
    unpinned. (Without the question to `keep` in space.c, judge, it does not.)"""
    node = new_node(disk=f"{tmp_path}:32MiB")
    name = node.new_bucket(origin)
    s3 = node.s3()

    bucket = types.SimpleNamespace(name=name, truth=origin.s3())
    kept = fill(bucket, 8, size=2**20, prefix="kept/")
    other = fill(bucket, 60, size=2**20, prefix="other/")
    node.cli("prefetch", "--pin", "--wait", name + "/kept/")
    rules = json.loads(node.cli("rules", "--json", name).stdout)
    assert rules == [{"rule": "pin", "prefix": "kept/"}]
    read_all(s3, name, other)
    for i in range(40):
        s3.put_object(Bucket=name, Key=f"written/{i}", Body=b"w" * 2**20)
    node.restart()
    assert checked(node, name + "/kept/")["cached_objects"] == 8
    done = node.cli("evict", "--wait", "--json", name, check=False)
    job = json.loads(done.stdout)
    assert (done.returncode, job["failed_objects"]) == (3, 8)
    assert "pinned" in json.loads(node.cli("job", "errors", job["id"], "--json").stdout)[0]["reason"]
    before = origin_bytes(node, name)
    read_all(node.s3(), name, kept)
    assert origin_bytes(node, name) == before
    node.cli("unpin", name + "/kept/")
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"])
    assert checked(node, name)["cached_objects"] == 0


def test_where_all_is_pinned_writes_are_refused_in_words(new_node, origin, tmp_path, need_fuse):
    """Where pins hold all of the disk a write has no room: 503 with the reason through S3, written through or back or to a
    scratch bucket, ENOSPC through a mount, one line from the command line; what is pinned stays, and when it is not any
    more there is room. (Without back_no_room in writer.c and its row in s3_error.c a PUT is a 500.)"""
    node = new_node(disk=f"{tmp_path}/disk:32MiB")
    pinned, through = node.new_bucket(origin), node.new_bucket(origin)
    back, scratch = node.new_bucket(origin, write="back", retry="1s"), harness.scratch_bucket(node)
    fill(types.SimpleNamespace(name=pinned, truth=origin.s3()), 40, size=2**20)
    node.cli("prefetch", "--pin", "--wait", pinned, check=False)
    held = checked(node, pinned)["cached_objects"]
    assert 28 <= held < 40
    body, s3 = b"b" * (8 * 2**20), node.s3(retries={"max_attempts": 0})
    for name in (through, back, scratch):
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            s3.put_object(Bucket=name, Key="k", Body=body)
        assert refused.value.response["Error"]["Code"] == "ServiceUnavailable"
        assert "no room" in str(refused.value) and "pinned" in str(refused.value) and str(tmp_path) not in str(refused.value)
        assert keys_of(s3, name) == []
    (tmp_path / "body").write_bytes(body)
    done = node.cli("put", str(tmp_path / "body"), through + "/k", check=False)
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 1 and "no room" in done.stderr, done.stderr
    (tmp_path / "mount").mkdir()
    node.cli("mount", back, str(tmp_path / "mount"))
    try:
        with pytest.raises(OSError) as refused:
            (tmp_path / "mount" / "k").write_bytes(body)
        assert refused.value.errno == errno.ENOSPC
    finally:
        node.cli("umount", str(tmp_path / "mount"))
    assert checked(node, pinned)["cached_objects"] == held
    node.cli("unpin", pinned + "/")
    for name in (through, back, scratch):
        s3.put_object(Bucket=name, Key="k", Body=body)
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == body


def test_prefixes_that_are_never_cached(bucket, node):
    """Below such a prefix nothing is kept, also what was there and what is written; a longer prefix may say otherwise."""
    contents = {**fill(bucket, 3, prefix="tmp/"), **fill(bucket, 3, prefix="tmp/keep/")}
    node.cli("prefetch", "--wait", bucket.name)
    node.cli("pin", bucket.name + "/tmp/keep/")
    node.cli("rules", bucket.name + "/tmp/", "cache=never")
    read_all(bucket.s3, bucket.name, contents)
    bucket.s3.put_object(Bucket=bucket.name, Key="tmp/new", Body=b"n")
    assert (checked(node, bucket.name)["cached_objects"], checked(node, bucket.name + "/tmp/keep/")["cached_objects"]) == (3, 3)
    node.cli("rules", bucket.name + "/tmp/", "cache=auto")
    read_all(bucket.s3, bucket.name, contents)
    assert checked(node, bucket.name)["cached_objects"] == 6
    node.cli("bucket", "set", bucket.name, "cache=never")  # the whole bucket; what is pinned stays
    assert checked(node, bucket.name)["cached_objects"] == checked(node, bucket.name + "/tmp/keep/")["cached_objects"] == 3
    node.cli("unpin", bucket.name + "/tmp/keep/")
    assert checked(node, bucket.name)["cached_objects"] == 0


def test_changes_of_rules_tell_them_as_json(bucket, node):
    """With --json pin, unpin and rules print the rules as they are then, and without it nothing."""
    said = [json.loads(node.cli(*command, "--json").stdout) for command in (
        ["pin", bucket.name + "/a/"], ["rules", bucket.name + "/b/", "ttl=5s"], ["unpin", bucket.name + "/a/"])]
    ttl = {"rule": "ttl", "prefix": "b/", "ms": 5000}
    assert said == [[{"rule": "pin", "prefix": "a/"}], [{"rule": "pin", "prefix": "a/"}, ttl], [ttl]]
    assert node.cli("pin", bucket.name + "/a/").stdout == ""


def test_times_by_prefix(new_node, origin):
    """A rule's ttl overrides the bucket's validate for its prefix, both ways, at once."""
    node = new_node()
    name = node.new_bucket(origin, validate="never")
    s3, truth = node.s3(), origin.s3()
    for key in ("live/x", "still/x"):
        truth.put_object(Bucket=name, Key=key, Body=b"old")
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == b"old"
        truth.put_object(Bucket=name, Key=key, Body=b"newer")
    assert s3.get_object(Bucket=name, Key="live/x")["Body"].read() == b"old"
    node.cli("rules", name + "/live/", "ttl=1ms")
    time.sleep(0.01)
    assert s3.get_object(Bucket=name, Key="live/x")["Body"].read() == b"newer"
    assert s3.get_object(Bucket=name, Key="still/x")["Body"].read() == b"old"
    assert "ttl=1ms" in node.cli("rules", name).stdout
    node.cli("rules", name + "/live/", "ttl=")
    assert node.cli("rules", name).stdout == ""


def du(node, *arguments):
    return json.loads(node.cli("du", "--json", *arguments).stdout)


def test_du_and_hot(new_node, origin):
    """du adds up what is cached, pinned and fetched by directory and agrees with what was read; hot --by bytes orders by bytes
    read; both know after a kill -9 what was written down, and after a restart everything."""
    node = new_node()
    name, idle = node.new_bucket(origin), node.new_bucket(origin)
    s3, truth = node.s3(), origin.s3()
    sizes = {"a/x/1": 3000, "a/x/2": 4000, "a/y/1": 5000, "b/1": 100_000, "top": 10, "a/x/unread": 7}
    for key, size in sizes.items():
        truth.put_object(Bucket=name, Key=key, Body=b"d" * size)
    for _ in range(3):
        for key in sizes:
            if key != "a/x/unread":
                s3.get_object(Bucket=name, Key=key)["Body"].read()
    node.cli("pin", name + "/a/y/")

    def expect():
        expected = {
            f"{name}/": dict(objects=1, bytes=10, cached_bytes=10, dirty_bytes=0, pinned_bytes=0, fetched_bytes=10),
            f"{name}/a/": dict(objects=3, bytes=12000, cached_bytes=12000, dirty_bytes=0, pinned_bytes=5000, fetched_bytes=12000),
            f"{name}/b/": dict(objects=1, bytes=100_000, cached_bytes=100_000, dirty_bytes=0, pinned_bytes=0, fetched_bytes=100_000)}
        # Each is counted a moment after who reads has the bytes.
        harness.wait_until(lambda: du(node, name) == expected, what=lambda: f"{du(node, name)}, not {expected}")
        assert set(du(node, "--depth", "2", name + "/a/")) == {f"{name}/a/x/", f"{name}/a/y/"}
        assert du(node)[f"{name}/"]["cached_bytes"] == 112_010
        harness.wait_until(hottest, what="what was read most")

    def hottest():
        rows = json.loads(node.cli("hot", "--json", "--by", "bytes", "--top", "2").stdout)
        return [(r["prefix"], r["read_bytes"], r["opens"]) for r in rows] == [("b/", 300_000, 3), ("a/x/", 21_000, 6)]

    expect()
    node.restart()
    expect()
    assert node.cli("du", name).stdout.splitlines()[0].split() == ["cached", "dirty", "pinned", "fetched", "objects", "prefix"]
    node.cli("bucket", "rm", name)
    assert json.loads(node.cli("hot", "--json").stdout) == []
    assert node.cli("du", name, check=False).returncode == 1
    assert du(node) == {} and idle


def test_hot_shows_what_mounts_open(new_node, new_mount, origin, need_fuse):
    """hot orders by opens, so that what a mount reads by passthrough is there, although its bytes are not seen; --by bytes puts
    first what most was read of through the node. What the mount keeps open it opens without asking, and such opens are not
    counted. (With by_bytes alone in run_hot the mount's prefix comes last.)"""
    node = new_node()
    name = node.new_bucket(origin, validate="never")
    files, truth = [f"m/{i}" for i in range(5)], origin.s3()
    for key in files:
        truth.put_object(Bucket=name, Key=key, Body=b"m" * 1000)
    truth.put_object(Bucket=name, Key="s/big", Body=b"s" * 100_000)
    node.cli("prefetch", "--wait", name)
    before = {row["prefix"]: row["opens"] for row in json.loads(node.cli("hot", "--json", name).stdout)}
    mount = new_mount(node, name, read_only=True)
    assert [(mount.path / key).read_bytes() for key in files] == [b"m" * 1000] * 5
    node.s3().get_object(Bucket=name, Key="s/big")["Body"].read()

    def hot(*arguments):
        rows = json.loads(node.cli("hot", "--json", name, *arguments).stdout)
        return [(row["prefix"], row["opens"] - before[row["prefix"]]) for row in rows]
    assert hot() == hot("--by", "opens") == [("m/", 5), ("s/", 1)]
    harness.wait_until(lambda: hot("--by", "bytes") == [("s/", 1), ("m/", 5)], what="the answer's bytes counted")
    assert node.cli("hot", name).stdout.splitlines()[1].endswith(f"{name}/m/")
    asked = node.metric("forebay_requests_total", op="open")
    for _ in range(20):
        assert all((mount.path / key).read_bytes() == b"m" * 1000 for key in files)
    assert json.loads(node.cli("mount", "--stats", "--json", str(mount.path)).stdout)["reading_opens"] == 105
    if mount.uses_passthrough():
        assert hot() == [("m/", 5), ("s/", 1)] and node.metric("forebay_requests_total", op="open") == asked > 0
    refused = node.cli("hot", "--by", "names", check=False)
    assert refused.returncode != 0 and "--by" in refused.stderr


def test_quota_holds_and_scans_do_not_empty_it(new_node, origin):
    """A bucket with a quota never has more cached than that, by reads and writes; a scan over more than it leaves what
    is there; a lowered quota lets go what was not read for longest; pinned data stays. (All of it is one data set, as its names have
    no folders: another one would give way to who reads for longer.)"""
    node = new_node()
    name = node.new_bucket(origin, quota="8MiB")
    s3 = node.s3()

    bucket = types.SimpleNamespace(name=name, truth=origin.s3())
    first = fill(bucket, 6, size=2**20, prefix="first-")
    scan = fill(bucket, 20, size=2**20, prefix="scan-")
    read_all(s3, name, first)
    for i in range(2):
        read_all(s3, name, scan)
        s3.put_object(Bucket=name, Key=f"written-{i}", Body=b"w" * 2**20)
        assert checked(node, name + "/first-")["cached_objects"] == 6
        assert du(node, name, "--depth", "0")[f"{name}/"]["bytes"] <= 8 * 2**20
    read_all(s3, name, first)  # the youngest now
    node.cli("bucket", "set", name, "quota=6500000")
    harness.wait_until(lambda: du(node, name, "--depth", "0")[f"{name}/"]["bytes"] <= 6_500_000, what="trimmed")
    assert checked(node, name + "/first-")["cached_objects"] == 6
    node.cli("pin", name + "/first-")
    node.cli("bucket", "set", name, "quota=1MiB")
    node.restart()
    read_all(node.s3(), name, scan)
    assert checked(node, name + "/first-")["cached_objects"] == 6
    harness.wait_until(lambda: checked(node, name + "/scan-")["cached_objects"] == 0, what="trimmed again")


def test_a_share_of_the_cache_is_kept(new_node, origin, tmp_path):
    """Of what a bucket has cached, so much as its `keep` says stays whatever is written to and read of another one, over
    several times the disk and a restart; what it has more goes. Where everything is kept others are served around the
    cache, and no more is promised than the disks hold. (Without the question to `keep` in evict_one and judge of space.c
    nothing is left of it.)"""
    node = new_node(disk=f"{tmp_path}:32MiB")
    mine, other, third = node.new_bucket(origin, keep="8MiB"), node.new_bucket(origin), node.new_bucket(origin)
    contents = fill(types.SimpleNamespace(name=mine, truth=origin.s3()), 16, size=2**20, prefix="mine/")
    scanned = fill(types.SimpleNamespace(name=other, truth=origin.s3()), 64, size=2**20, prefix="scan/")
    written = 0

    def cached():
        return checked(node, mine)["cached_objects"]

    def write(n=1):
        nonlocal written
        for _ in range(n):
            node.s3().put_object(Bucket=other, Key=f"written/{written}", Body=b"w" * 2**20)
            written += 1

    def what_is_left(wanted):
        write(8)
        return cached() == wanted

    read_all(node.s3(), mine, contents)
    assert cached() == 16
    harness.wait_until(lambda: what_is_left(8), what="the rest of what is cached went")
    for _ in range(2):
        read_all(node.s3(), other, scanned)
        write(64)
        assert cached() == 8
        node.restart()
    done = node.cli("bucket", "set", third, "keep=25MiB", check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "other buckets keep 8 MiB" in done.stderr
    assert node.cli("bucket", "set", mine, "quota=1MiB", check=False).returncode == 2
    node.cli("bucket", "set", other, "keep=20MiB")
    read_all(node.s3(), other, scanned)
    node.s3().put_object(Bucket=third, Key="k", Body=b"k" * 2**20)
    assert node.s3().get_object(Bucket=third, Key="k")["Body"].read() == b"k" * 2**20
    assert cached() == 8
    node.cli("bucket", "set", mine, "keep=0")
    harness.wait_until(lambda: what_is_left(0), what="all of it went")


@pytest.mark.parametrize("arguments", [["pin", "no-such-bucket"], ["rules", "B/x", "pin=perhaps"],
                                       ["rules", "B/x", "colour=red"], ["bucket", "set", "B", "rules=keep:x"]])
def test_wrong_rules_are_refused(bucket, arguments):
    """A rule that is not understood is refused in one line and changes nothing."""
    done = bucket.node.cli(*[a.replace("B", bucket.name, 1) if a[:1] == "B" else a for a in arguments], check=False)
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1
    assert bucket.node.cli("rules", bucket.name).stdout == ""
