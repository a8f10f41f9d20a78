"""Jobs end to end: prefetch, evict, copy and sync against a real S3 server, with faults, kills, pauses."""

import contextlib
import json
import threading
import time
import types

import pytest

import harness
from keyorigin import KeyOrigin, Object


def keys_of(client, name, prefix=""):
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=prefix)
    return sorted(item["Key"] for page in pages for item in page.get("Contents", []))


def fill(bucket, count, size=20_000, prefix="d/"):
    """Writes objects at the origin; gives their contents by key."""
    contents = {f"{prefix}{i:04}.bin": bytes([i % 251]) * (size + i) for i in range(count)}
    for key, data in contents.items():
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=data)
    return contents


@pytest.mark.parametrize("connections", [1, 2])
def test_a_copy_within_a_bucket_whose_origin_takes_few_requests(node, origin, connections):
    """What comes from the origin and goes there at the same time has connections for both. (With one, fails without web_wait_for_part in
    s3_multipart.c: the part that has it waits for bytes, and those for it.)"""
    name, data = node.new_bucket(origin, **{"origin.connections": connections}), harness.random_bytes(40 << 20)
    origin.s3().put_object(Bucket=name, Key="d/large", Body=data)
    job = start(node, "copy", f"{name}/d/", f"{name}/c/")
    assert until(node, job, lambda j: j["final"])["state"] == "done"
    assert origin.s3().get_object(Bucket=name, Key="c/large")["Body"].read() == data


def show(node, job):
    return json.loads(node.cli("job", "show", job, "--json").stdout)


def start(node, *arguments):
    return int(node.cli(*arguments).stdout)


def until(node, job, what, seconds=120):
    """Polls the job until what(job) holds."""
    end = time.monotonic() + seconds
    while not what(now := show(node, job)):
        assert time.monotonic() < end, now
        time.sleep(0.05)
    return now


def origin_bytes(node, name):
    return node.metric("forebay_origin_read_bytes_total", bucket=name)


def checked(node, path):
    return json.loads(node.cli("prefetch", "--check", "--json", path).stdout)


def test_prefetch_then_reads_cost_nothing(bucket):
    """A prefetched prefix is whole in the cache, by --check and by the origin's bytes: reading it asks for none."""
    contents = fill(bucket, 30)
    before = checked(bucket.node, bucket.name + "/d/")
    assert (before["objects"], before["cached_bytes"]) == (30, 0)
    done = bucket.node.cli("prefetch", "--wait", bucket.name + "/d/")
    assert "30/30 objects" in done.stdout and "0 failed" in done.stdout
    assert checked(bucket.node, bucket.name + "/d/")["cached_objects"] == 30
    read = origin_bytes(bucket.node, bucket.name)
    for key, data in contents.items():
        assert bucket.s3.get_object(Bucket=bucket.name, Key=key)["Body"].read() == data
    assert origin_bytes(bucket.node, bucket.name) == read
    again = json.loads(bucket.node.cli("prefetch", "--wait", "--json", bucket.name + "/d/").stdout)
    assert again["skipped_objects"] == 30


def test_check_tells_how_much_of_it_is_cached(bucket):
    """--check prints the percentage of bytes, of JSON too, rounded down: half read, all but one byte in two thousand, all.
    (Without the rounding of check_permille the second is 100.0.)"""
    for key, size in {"d/a": 50_000, "d/b": 49_975, "d/c": 25}.items():
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"x" * size)
    for key, objects, percent in (("d/a", 1, 50.0), ("d/b", 2, 99.9), ("d/c", 3, 100.0)):
        assert len(bucket.s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()) > 0
        now = checked(bucket.node, bucket.name + "/d/")
        assert (now["objects"], now["cached_objects"], now["percent"]) == (3, objects, percent)
        line = bucket.node.cli("prefetch", "--check", bucket.name + "/d/").stdout
        assert line == f"{percent}% cached: {objects} of 3 objects whole, {now['cached_bytes']} of 100000 bytes\n"


def test_check_of_nothing(bucket):
    """--check of a prefix without objects says so, and is no percentage; of objects without bytes it counts the objects."""
    assert bucket.node.cli("prefetch", "--check", bucket.name + "/no/").stdout == f"no objects below {bucket.name}/no/\n"
    assert checked(bucket.node, bucket.name + "/no/")["percent"] is None
    for key in ("e/1", "e/2", "e/3"):
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"")
    assert checked(bucket.node, bucket.name + "/e/")["percent"] == 0.0
    bucket.node.cli("prefetch", "--wait", bucket.name + "/e/")
    assert checked(bucket.node, bucket.name + "/e/")["percent"] == 100.0


def test_check_compares_versions(new_node, origin):
    """An object that the origin replaced by one of the same size is not cached: --check asks for a listing of now, whatever
    `validate` says, and counts what is here of it as another version; after a prefetch it is cached. (Without the ETags in
    is_same_version of job_start.c, or without WIRE_FRESH there, it stays at 100 %.)"""
    node = new_node()
    name = node.new_bucket(origin, validate="never")
    truth = origin.s3()
    contents = fill(types.SimpleNamespace(name=name, truth=truth), 4, size=1000)
    node.cli("prefetch", "--wait", name)
    assert checked(node, name)["percent"] == 100.0
    key, data = next(iter(contents.items()))
    truth.put_object(Bucket=name, Key=key, Body=b"n" * len(data))
    now = checked(node, name)
    assert (now["objects"], now["cached_objects"], now["stale_objects"]) == (4, 3, 1)
    assert now["cached_bytes"] == now["bytes"] - len(data)
    assert node.cli("prefetch", "--check", name).stdout.endswith("; of 1 there is another version\n")
    node.cli("prefetch", "--wait", name)
    now = checked(node, name)
    assert (now["cached_objects"], now["stale_objects"], now["percent"]) == (4, 0, 100.0)


def test_what_was_counted_is_not_listed_again(bucket):
    """A job lists its objects once: the walk goes over what the count before it went over. (Without source_follow in run.c the
    origin is asked for the listing twice.)"""
    fill(bucket, 5)
    before = bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="list")
    bucket.node.cli("prefetch", "--wait", bucket.name + "/d/")
    assert bucket.node.metric("forebay_origin_requests_total", bucket=bucket.name, op="list") == before + 1
    assert checked(bucket.node, bucket.name + "/d/")["cached_objects"] == 5


@pytest.fixture
def slow_listing(new_node):
    """(node, bucket, origin, event): six objects, two in each page of the origin's listings, whose second page waits for the event."""
    go = threading.Event()
    with KeyOrigin() as source:
        name = harness.random_name()
        node = new_node()
        source.page_keys = 2
        source.objects.update({(name, f"d/{i}"): Object(b"x" * (1000 + i)) for i in range(6)})
        source.before_list = lambda query: place(query) and go.wait(300)
        node.create_bucket(name, f"s3://{name}", **source.properties(), **{"origin.timeout": "300s"})
        with source.lock:
            source.requests.clear()
        try:
            yield node, name, source, go
        finally:
            go.set()


def place(query):
    """Behind which key a listing goes on; "" for its beginning."""
    return query.get("continuation-token") or query.get("start-after", "")


def requests(source, what):
    with source.lock:
        return sorted(place(query) if what == "list" else path for method, path, query in source.requests
                      if method == "GET" and ("list-type" in query) == (what == "list"))


def test_work_begins_before_the_listing_is_whole(slow_listing):
    """What the first page of a listing names is fetched while the second is waited for; until the listing is whole nobody is told
    how much it is. Each page is asked for once. (Without counts_beside in run.c nothing is done until then.)"""
    node, name, source, go = slow_listing
    job = start(node, "prefetch", name + "/d/")
    until(node, job, lambda j: j["done_objects"] == 2)
    now = show(node, job)
    assert (now["state"], now["counted"], now["total_objects"], now["done_bytes"]) == ("running", False, 0, 2001)
    assert "2 objects" in node.cli("job", "show", job).stdout
    go.set()
    node.cli("job", "wait", job, "--quiet")
    after = show(node, job)
    assert (after["counted"], after["total_objects"], after["total_bytes"]) == (True, 6, 6015)
    assert (after["done_objects"], after["done_bytes"], after["skipped_objects"]) == (6, 6015, 0)
    lists = requests(source, "list")
    assert len(lists) == len(set(lists)) == 3
    assert set(requests(source, "get")) == {f"/{name}/d/{i}" for i in range(6)}
    with source.lock:
        assert [query["max-keys"] for _, _, query in source.requests if "list-type" in query] == ["250", "1000", "1000"]


def test_a_job_that_is_paused_while_it_is_counted_goes_on(slow_listing):
    """Paused before its listing was whole, a job keeps what it has done, and is counted when it goes on. (Without the cursor in
    run.c, open_source, two objects are done twice; with the count behind the cursor it is of four objects.)"""
    node, name, source, go = slow_listing
    job = start(node, "prefetch", name + "/d/")
    until(node, job, lambda j: j["done_objects"] == 2)
    node.cli("job", "pause", job)
    go.set()
    now = show(node, job)
    assert (now["state"], now["counted"], now["done_objects"]) == ("paused", False, 2)
    node.cli("job", "resume", job)
    node.cli("job", "wait", job, "--quiet")
    after = show(node, job)
    assert (after["counted"], after["total_objects"], after["total_bytes"]) == (True, 6, 6015)
    assert (after["done_objects"], after["done_bytes"], after["skipped_objects"]) == (6, 6015, 0)
    assert set(requests(source, "get")) == {f"/{name}/d/{i}" for i in range(6)}


def test_a_walk_goes_on_alone_where_no_more_was_kept(new_node):
    """A page that is too large to be kept for the walk is listed again by it, from where the kept ones end, and nothing is left
    out. (Without the place behind a page in source.c, taken_page, what was walked over is walked over again.)"""
    name, node = harness.random_name(), new_node()
    keys = [f"d/a{i:04}" for i in range(1000)] + [f"d/b{'k' * 1005}{i:04}" for i in range(1450)]
    with KeyOrigin() as source:
        source.objects.update({(name, key): Object(b"x") for key in keys})
        node.create_bucket(name, f"s3://{name}", **source.properties())
        with source.lock:
            source.requests.clear()
        done = json.loads(node.cli("prefetch", "--wait", "--json", "--include", "*99", name + "/d/").stdout)
        chosen = sorted(f"/{name}/{key}" for key in keys if key.endswith("99"))
        assert (done["state"], done["total_objects"], done["done_objects"], done["skipped_objects"]) == ("done", len(chosen), len(chosen), 0)
        assert sorted(set(requests(source, "get"))) == chosen
        assert len(requests(source, "list")) > len(set(requests(source, "list")))


def test_filters_and_dry_run(bucket):
    """A dry run counts what filters select and fetches nothing; the same job without it fetches just that."""
    fill(bucket, 20)
    arguments = [bucket.name + "/d/", "--include", "*1?.bin", "--exclude", "*9.bin", "--wait", "--json"]
    dry = json.loads(bucket.node.cli("prefetch", "--dry-run", *arguments).stdout)
    assert (dry["total_objects"], dry["done_objects"]) == (9, 0)
    assert checked(bucket.node, bucket.name + "/")["cached_objects"] == 0
    assert json.loads(bucket.node.cli("prefetch", *arguments).stdout)["done_objects"] == 9
    assert checked(bucket.node, bucket.name + "/")["cached_objects"] == 9


def test_dry_runs_change_nothing(bucket, node, tmp_path):
    """A dry run of any kind counts what it would work on and changes nothing: neither what is cached and pinned, nor what is at
    its target, not even a manifest. (Without the look at dry_run in `before` of jobs_ops.c the prefix is pinned, and without that
    in next_phase of run.c all of them work.)"""
    fill(bucket, 5)
    scratch = harness.scratch_bucket(node)
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    for i in range(5):
        (tmp_path / "in" / f"{i}").write_bytes(b"in")

    def dry(*words):
        job = json.loads(node.cli(*words, "--dry-run", "--wait", "--json").stdout)
        assert (job["state"], job["total_objects"], job["done_objects"], job["failed_objects"]) == ("done", 5, 0, 0), job

    dry("prefetch", "--pin", bucket.name + "/d/")
    assert checked(node, bucket.name)["cached_bytes"] == 0 and node.cli("rules", bucket.name).stdout == ""
    node.cli("prefetch", "--wait", bucket.name)
    bucket.truth.delete_object(Bucket=bucket.name, Key="d/0000.bin")  # which a validation would find
    for words in (["evict", bucket.name], ["validate", bucket.name]):
        dry(*words)
        assert json.loads(node.cli("du", "--json", bucket.name).stdout)[bucket.name + "/d/"]["objects"] == 5
    bucket.truth.put_object(Bucket=bucket.name, Key="d/0000.bin", Body=b"0")
    dry("copy", bucket.name + "/d/", scratch + "/c/")
    dry("sync", bucket.name + "/d/", scratch + "/s/")
    dry("import", f"file://{tmp_path}/in", scratch + "/i")
    dry("export", bucket.name + "/d/", f"file://{tmp_path}/out")
    assert keys_of(node.s3(), scratch) == [] and list((tmp_path / "out").iterdir()) == []


def test_evict_drops_a_prefix(bucket):
    """evict empties the cache of a prefix and leaves the rest and the origin alone."""
    fill(bucket, 6, prefix="a/")
    fill(bucket, 4, prefix="b/")
    bucket.node.cli("prefetch", "--wait", bucket.name)
    bucket.node.cli("evict", "--wait", bucket.name + "/a/")
    assert checked(bucket.node, bucket.name + "/a/")["cached_bytes"] == 0
    assert checked(bucket.node, bucket.name + "/b/")["cached_objects"] == 4
    assert len(keys_of(bucket.truth, bucket.name)) == 10


@pytest.mark.parametrize("kind", ["evict", "validate"])
def test_jobs_over_what_is_cached_count_what_is_here(bucket, kind):
    """Of an object of which a part is cached that part, in what is done and in what is to be done; filters go by its size. (Seen to
    fail: its whole size was counted.)"""
    size, small = 40 << 20, 1000
    bucket.truth.put_object(Bucket=bucket.name, Key="large", Body=bytes(size))
    bucket.truth.put_object(Bucket=bucket.name, Key="small", Body=bytes(small))
    bucket.s3.get_object(Bucket=bucket.name, Key="small")["Body"].read()
    bucket.s3.get_object(Bucket=bucket.name, Key="large", Range="bytes=0-9")["Body"].read()
    here = harness.wait_until(lambda: checked(bucket.node, bucket.name)["cached_bytes"] - small)
    assert 0 < here < size / 2
    rest = (0, 0, 1) if kind == "evict" else (here, size / 2, 2)  # of the large one, and how many objects
    for words, few, least, most, objects in ((["--min-size", "1MiB"], 0, here, size / 2, 1), ([], small, *rest)):
        done = json.loads(bucket.node.cli(kind, "--wait", "--json", *words, bucket.name).stdout)
        assert (done["done_objects"], done["total_objects"]) == (objects, objects)
        assert all(least <= done[what] - few <= most for what in ("done_bytes", "total_bytes")), done


def test_copy_and_sync(bucket, node, origin):
    """copy brings every byte and the metadata; sync skips what is there and removes the rest only with --delete."""
    other = node.new_bucket(origin)
    contents = fill(bucket, 12)
    bucket.truth.put_object(Bucket=bucket.name, Key="d/meta", Body=b"m", ContentType="text/x", Metadata={"a": "b"})
    node.cli("copy", "--wait", bucket.name + "/d/", other + "/to/")
    for key, data in contents.items():
        assert bucket.truth.get_object(Bucket=other, Key="to/" + key[2:])["Body"].read() == data
    head = bucket.truth.head_object(Bucket=other, Key="to/meta")
    assert (head["ContentType"], head["Metadata"]) == ("text/x", {"a": "b"})
    bucket.truth.put_object(Bucket=other, Key="to/extra", Body=b"x")
    bucket.truth.put_object(Bucket=bucket.name, Key="d/new", Body=b"new")
    kept = json.loads(node.cli("sync", "--wait", "--json", bucket.name + "/d/", other + "/to/").stdout)
    assert (kept["skipped_objects"], kept["done_objects"], kept["removed_objects"]) == (13, 14, 0)
    assert "to/extra" in keys_of(bucket.truth, other)
    node.cli("sync", "--delete", "--wait", bucket.name + "/d/", other + "/to/")
    assert keys_of(bucket.truth, other) == sorted("to/" + k[2:] for k in keys_of(bucket.truth, bucket.name))


def test_tags_go_along(bucket, node, origin):
    """Copies of a job have the tags that their source has at its origin, in a bucket with an origin, in one without, and at a
    URL. (Seen to fail without `take_tags` in jobs/kind_copy.c.)"""
    source, mirror, scratch, there = bucket.name, node.new_bucket(origin), harness.scratch_bucket(node), origin.new_bucket()
    for key, tags in (("tagged", "a=1&b=%C3%BC"), ("plain", "")):
        bucket.truth.put_object(Bucket=source, Key=key, Body=key.encode(), Tagging=tags)
    node.cli("copy", f"{source}/", f"{mirror}/", "--wait")
    node.cli("copy", f"{source}/", f"{scratch}/", "--wait")
    settings = [word for name, value in origin.properties().items() for word in ("--set", f"{name}={value}")]
    node.cli("export", f"{source}/", f"s3://{there}", *settings, "--wait")
    for s3, name in ((node.s3(), mirror), (node.s3(), scratch), (origin.s3(), mirror), (origin.s3(), there)):
        found = {key: s3.get_object_tagging(Bucket=name, Key=key)["TagSet"] for key in ("tagged", "plain")}
        assert {t["Key"]: t["Value"] for t in found["tagged"]} == {"a": "1", "b": "\u00fc"} and found["plain"] == [], name


def test_copy_and_sync_with_origins(bucket, node, origin, tmp_path):
    """Instead of one of the two buckets a URL may stand, with what its origin needs: copy and sync bring the objects there and
    back, leave alone what is there, and remove only with --delete; what exports wrote down beside them stays. (Without
    KIND_EITHER in kind.c a URL is refused.)"""
    contents = fill(bucket, 8)
    sets = [x for k, v in origin.properties().items() for x in ("--set", f"{k}={v}")]
    there, back, truth = origin.new_bucket(), harness.scratch_bucket(node), bucket.truth
    truth.put_object(Bucket=bucket.name, Key="d/meta", Body=b"m", ContentType="text/x", Metadata={"a": "b"})
    contents["d/meta"] = b"m"

    def run(*arguments):
        return json.loads(node.cli(*arguments, *sets, "--wait", "--json").stdout)

    def left(name, prefix):
        return sorted(k.removeprefix(prefix) for k in keys_of(truth if name == there else node.s3(), name, prefix))

    names = sorted(k[2:] for k in contents)
    assert run("copy", bucket.name + "/d", f"s3://{there}/out")["done_objects"] == 9  # a prefix that is no folder
    assert left(there, "out/") == names
    head = truth.head_object(Bucket=there, Key="out/meta")
    assert (head["ContentType"], head["Metadata"]) == ("text/x", {"a": "b"})
    for key, data in contents.items():
        assert truth.get_object(Bucket=there, Key="out/" + key[2:])["Body"].read() == data
    truth.put_object(Bucket=there, Key="out/extra", Body=b"x")
    truth.put_object(Bucket=there, Key="out/.forebay-export-20260101T000000Z-1.tsv", Body=b"#")
    bucket.s3.delete_object(Bucket=bucket.name, Key="d/0003.bin")
    kept = run("sync", bucket.name + "/d/", f"s3://{there}/out")
    assert (kept["skipped_objects"], kept["done_objects"], kept["removed_objects"]) == (8, 8, 0)
    assert run("sync", "--delete", bucket.name + "/d/", f"s3://{there}/out")["removed_objects"] == 2
    names.remove("0003.bin")
    assert left(there, "out/") == [".forebay-export-20260101T000000Z-1.tsv", *names]
    assert run("sync", f"s3://{there}/out", back + "/in")["done_objects"] == 8  # below it, as an import is
    assert left(back, "in/") == names
    for name in names:
        assert node.s3().get_object(Bucket=back, Key="in/" + name)["Body"].read() == contents["d/" + name]
    truth.delete_object(Bucket=there, Key="out/0004.bin")
    assert run("sync", "--delete", f"s3://{there}/out", back + "/in/")["removed_objects"] == 1
    names.remove("0004.bin")
    assert left(back, "in/") == names
    sets = []
    assert run("sync", "--delete", back + "/in/", f"file://{tmp_path}")["done_objects"] == 7
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert all((tmp_path / name).read_bytes() == contents["d/" + name] for name in names)
    assert run("sync", back + "/in/", f"file://{tmp_path}")["skipped_objects"] == 7
    assert run("copy", f"file://{tmp_path}", back + "/again/")["done_objects"] == 7


def test_prefetch_reads_back_what_the_disk_has(bucket):
    """A bit flips in what is cached: the index does not know, and prefetch leaves it alone; with --verify read the disk is read,
    and the block alone is fetched anew. (Without read_back in kind.c it is skipped.)"""
    contents = fill(bucket, 3, size=3 * 2**20)
    node = bucket.node
    node.cli("prefetch", "--wait", bucket.name)
    [file] = [p for p, stat in harness.files_below(node.data / "cache" / "extents").items() if stat.st_size == len(contents["d/0001.bin"])]
    with open(file, "r+b") as f:
        f.seek(2**20 + 5)
        byte = f.read(1)[0]
        f.seek(2**20 + 5)
        f.write(bytes([byte ^ 4]))
    before = origin_bytes(node, bucket.name)
    assert json.loads(node.cli("prefetch", "--wait", "--json", bucket.name).stdout)["skipped_objects"] == 3
    assert origin_bytes(node, bucket.name) == before
    job = json.loads(node.cli("prefetch", "--verify", "read", "--wait", "--json", bucket.name).stdout)
    assert (job["done_objects"], job["skipped_objects"], job["failed_objects"]) == (3, 2, 0)
    assert origin_bytes(node, bucket.name) == before + 2**20
    assert sum(v for (name, _), v in node.metrics().items() if name == "forebay_corrupt_blocks_total") == 1
    assert checked(node, bucket.name)["cached_objects"] == 3
    for key, data in contents.items():
        assert bucket.s3.get_object(Bucket=bucket.name, Key=key)["Body"].read() == data
    node.cli("evict", "--wait", bucket.name)
    job = json.loads(node.cli("prefetch", "--verify", "read", "--wait", "--json", bucket.name).stdout)
    assert (job["done_objects"], job["skipped_objects"]) == (3, 0)


def test_partly_failed_lists_and_retries(new_node, new_shaper, origin):
    """With an origin that refuses some objects the job ends partly failed (status 3), names each with its reason, and
    a retry after the origin is well completes it."""
    node, shaper = new_node(), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, retry="0s")
    for i in range(12):
        origin.s3().put_object(Bucket=name, Key=f"d/{i:02}", Body=b"x" * 5000)
    shaper.fault("status:500", count="1000", match="/d/0")
    done = node.cli("prefetch", "--wait", "--json", name + "/d/", check=False)
    job = json.loads(done.stdout)
    assert (done.returncode, job["state"], job["done_objects"], job["failed_objects"]) == (3, "partly failed", 2, 10)
    errors = json.loads(node.cli("job", "errors", job["id"], "--json").stdout)
    assert [x["key"] for x in errors] == [f"d/{i:02}" for i in range(10)]
    assert all("500" in x["reason"] for x in errors), errors[0]
    shaper.reset()
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"])
    after = show(node, job["id"])
    assert (after["state"], after["done_objects"], after["failed_objects"]) == ("done", 12, 0)
    assert json.loads(node.cli("job", "errors", job["id"], "--json").stdout) == []


def test_every_failure_is_listed(bucket):
    """However many objects fail, each is listed once, with its reason, in the order of keys."""
    keys = [f"none/{i:04}" for i in range(2345)]
    done = bucket.node.cli("prefetch", "--list", "-", "--wait", "--json", bucket.name, stdin="\n".join(keys), check=False)
    job = json.loads(done.stdout)
    assert (done.returncode, job["failed_objects"]) == (3, len(keys))
    told = json.loads(bucket.node.cli("job", "errors", job["id"], "--json").stdout)
    assert [x["key"] for x in told] == keys and all(x["reason"] for x in told)
    assert len(bucket.node.cli("job", "errors", job["id"]).stdout.splitlines()) == len(keys)


def test_a_list_without_lines(bucket):
    """What is no list, and of any length, is refused when its first line is longer than any key; nothing is left of the job. All of it
    was read into memory."""
    done = bucket.node.cli("prefetch", "--list", "/dev/zero", bucket.name, check=False)
    assert done.returncode == 2 and "line 1 is longer than any key" in done.stderr
    keys = "a" * 1024 + "\n\n" + "b" * 8192 + "\n"
    done = bucket.node.cli("prefetch", "--list", "-", bucket.name, stdin=keys, check=False)
    assert done.returncode == 2 and "line 2 is longer than any key" in done.stderr


@contextlib.contextmanager
def held_back(name, n, size):
    """(origin, begun, held): an origin with n objects, of which it gives the first, and the others once `held` is set, at the end at the
    latest; `begun` has the keys that were asked for."""
    begun, held, body = set(), threading.Event(), Object(b"x" * size)

    def hold(_, key):
        with origin.lock:
            begun.add(key)
        assert key == "k00" or held.wait(200)

    with KeyOrigin() as origin:
        for i in range(n):
            origin.objects[name, f"k{i:02}"] = body
        origin.before_get = hold
        try:
            yield origin, begun, held
        finally:
            held.set()


@pytest.mark.parametrize("size, words, most", [(1000, [], 39), ((1 << 20) + 1, [], 16), ((1 << 20) + 1, ["--parallel", "20"], 20)])
def test_as_many_objects_at_a_time_as_suits_them(new_node, size, words, most):
    """Nobody who prefetches small objects has to say how many at a time: as many as their origin may be asked for, but one place, which is
    for others. Of large ones 16, or what was said. (Seen to fail with 16 for all, and without `may_begin_locked`.)"""
    node, name = new_node(), harness.random_name()
    with held_back(name, 60, size) as (origin, begun, held):
        node.create_bucket(name, f"s3://{name}", **{**origin.properties(), "origin.connections": 40})
        job = start(node, "prefetch", name, *words)
        harness.wait_until(lambda: len(begun) > most, 100, "one has ended and the next was begun")  # all but k00 wait
        assert len(begun) == most + 1
        held.set()
        done = until(node, job, lambda j: j["state"] == "done")
        assert done["done_objects"] == 60 and checked(node, name)["cached_objects"] == 60


def test_few_of_the_largest_are_copied_at_a_time(new_node):
    """Of objects of 65 MiB an import has four under way, so that one ends while others come, and not all at the same moment; the fifth is
    begun when one has ended. (Seen to fail without PARALLEL_HUGE.)"""
    node, name, most = new_node(), harness.random_name(), 4
    scratch = harness.scratch_bucket(node)
    with held_back(name, 12, 65 << 20) as (origin, begun, held):
        words = [word for name_, value in origin.properties().items() for word in ("--set", f"{name_}={value}")]
        job = start(node, "import", f"s3://{name}", f"{scratch}/in", *words)
        until(node, job, lambda j: j["done_objects"] == 1)
        harness.wait_until(lambda: len(begun) > most, 100, "the next was begun")
        assert len(begun) == most + 1
        node.cli("job", "cancel", job)
        held.set()
        assert until(node, job, lambda j: j["state"] == "cancelled")["failed_objects"] == 0


def test_killed_node_goes_on(new_node, origin):
    """kill -9 in mid-job: the next start goes on, and in the end every object is done and counted exactly once."""
    node = new_node()
    name = node.new_bucket(origin)
    for i in range(60):
        origin.s3().put_object(Bucket=name, Key=f"d/{i:02}", Body=bytes([i]) * 40_000)
    job = start(node, "prefetch", name, "--rate", "500kB/s", "--parallel", "2")
    until(node, job, lambda j: j["done_objects"] >= 20)
    node.kill()
    node.start()
    node.cli("job", "wait", job, "--quiet")
    after = show(node, job)
    assert (after["state"], after["done_objects"], after["done_bytes"]) == ("done", 60, 60 * 40_000)
    assert checked(node, name)["cached_objects"] == 60


def test_pause_resume_cancel_rm(bucket):
    """A paused job stands still and goes on where it was; a cancelled one ends with status 1 and can be removed."""
    fill(bucket, 40)
    node = bucket.node
    job = start(node, "prefetch", bucket.name, "--rate", "20kB/s", "--parallel", "2")  # one a second
    until(node, job, lambda j: j["done_objects"] >= 2)
    node.cli("job", "pause", job)

    def stands_still():
        before = show(node, job)
        time.sleep(4)
        return show(node, job) == before and before

    first = harness.wait_until(stands_still, 120, "it stands still")  # what was under way has ended
    assert first["state"] == "paused" and first["done_objects"] < 40
    node.cli("job", "resume", job)
    until(node, job, lambda j: j["done_objects"] > first["done_objects"])
    assert node.cli("job", "rm", job, check=False).returncode == 1
    node.cli("job", "cancel", job)
    assert node.cli("job", "wait", job, "--quiet", check=False).returncode == 1
    assert show(node, job)["state"] == "cancelled"
    harness.wait_until(lambda: node.cli("job", "rm", job, check=False).returncode == 0, what="the end of what was under way")
    assert node.cli("job", "show", job, check=False).returncode == 1


@pytest.mark.parametrize("arguments, words", [
    (["prefetch", "no-such-bucket"], ["no-such-bucket"]),
    (["prefetch", "B", "--regex", "("], ["--regex"]),
    (["prefetch", "B", "--rate", "fast"], ["--rate"]),
    (["prefetch", "B", "--newer", "soon"], ["--newer"]),
    (["prefetch", "B", "--newer", "2026-01-02", "--older", "2026-01-01"], ["--older", "--newer"]),
    (["prefetch", "B", "--newer", "2026-02-30"], ["--newer", "2026-01-31"]),
    (["prefetch", "B", "--delete"], ["--delete"]),
    (["prefetch", "B", "--verify", "size"], ["--verify"]),
    (["prefetch", "B", "--verify", "read", "--metadata-only"], ["--verify"]),
    (["evict", "B", "--verify", "read"], ["--verify"]),
    (["copy", "s3://a/b", "file:///tmp"], ["one of them must be a bucket"]),
    (["copy", "B/a", "http://127.0.0.1:1/x"], ["read-only"]),
    (["sync", "B", "file:///no/such/dir"], ["/no/such/dir"]),
    (["sync", "--delete", "B/a", "file:///tmp"], ["--delete", "end with '/'"]),
    (["copy", "B/a", "B/b", "--set", "origin.region=x"], ["--set", "URL"]),
    (["copy", "B/a", "file:///tmp", "--set", "region=x"], ["origin.NAME"]),
    (["copy", "--metadata-only", "B/a", "B/b"], ["--metadata-only", "prefetch"]),
    (["evict", "B", "--older", "2001-01-01T00:00:00Z"], ["--older"]),
    (["copy", "B/a", "B/a/b"], ["overlap"]),
    (["prefetch", "B", "--check", "--include", "*.bin"], ["--check"]),
    (["job", "show", "999999"], ["999999"]),
    (["job", "dance", "1"], ["dance"]),
])
def test_wrong_jobs_are_refused(bucket, arguments, words):
    """What cannot work is refused before anything is queued, in one line that names the fault. (Of --newer behind --older: seen to
    fail without the comparison in filter.c.)"""
    done = bucket.node.cli(*[a.replace("B", bucket.name, 1) if a[:1] == "B" else a for a in arguments], check=False)
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in words), done.stderr


def test_days_are_dates(bucket):
    """--newer and --older take days, too: their beginnings."""
    fill(bucket, 3)
    for option, count in (("--newer", 3), ("--older", 0)):
        job = json.loads(bucket.node.cli("prefetch", "--dry-run", "--wait", "--json", option, "2020-01-31", bucket.name).stdout)
        assert job["total_objects"] == count


def test_a_job_about_nothing_says_so(bucket):
    """A prefix with a typing error is a job without failures; who waits for it is told that nothing was chosen."""
    fill(bucket, 2)
    done = bucket.node.cli("prefetch", "--wait", bucket.name + "/dd/")
    assert "no object was chosen" in done.stderr and bucket.name + "/dd/" in done.stderr
    assert "no object was chosen" not in bucket.node.cli("prefetch", "--wait", bucket.name + "/d/").stderr
    assert bucket.node.cli("prefetch", "--wait", "--quiet", bucket.name + "/dd/").stderr == ""


def test_help_shows_the_options_of_the_kind(node):
    """The help of each kind of job has its own options and not those of the others."""
    own = {"prefetch": ["--pin", "--metadata-only", "--check"], "sync": ["--delete", "--set"], "export": ["--storage-class", "--set"],
           "import": ["--set", "--as-of", "--version", "--tag", "--manifest"], "copy": ["--set"], "evict": [], "validate": []}
    every = {option for options in own.values() for option in options}
    for kind, options in own.items():
        words = node.cli(kind, "--help").stdout.split()
        shown = {option for option in every if option in words}
        assert shown == set(options), kind
        assert "--include" in words and "--list" in words
