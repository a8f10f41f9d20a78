"""Jobs before origins that fail, and what they do at the edges: nothing counts as done that is not."""

import json
import os
import random
import re
import subprocess
import threading
import time

import pytest

import harness
import origins
from keyorigin import KeyOrigin, Object
from test_jobs import checked, fill, keys_of, origin_bytes, place, requests, show, start, until
from test_jobs_export import settings

MIB = 1 << 20


@pytest.fixture
def shaped(new_node, new_shaper, origin):
    """(node, bucket, shaper before its origin, client of the origin); a request is tried again for a minute."""
    node, shaper = new_node(), new_shaper()
    return node, node.new_bucket(origin, endpoint=shaper.endpoint, retry="60s"), shaper, origin.s3()


def put_all(truth, name, count, size=20_000, prefix="d/"):
    contents = {f"{prefix}{i:03}": bytes([i % 251]) * (size + i) for i in range(count)}
    for key, data in contents.items():
        truth.put_object(Bucket=name, Key=key, Body=data)
    return contents


def finished(node, *arguments):
    """(exit status, job) of a job that is waited for."""
    done = node.cli(*arguments, "--wait", "--json", check=False)
    return done.returncode, json.loads(done.stdout)


def errors(node, job):
    return json.loads(node.cli("job", "errors", job["id"], "--json").stdout)


# ---- faults ----

@pytest.mark.parametrize("kind", ["prefetch", "copy"])
def test_every_third_request_fails(shaped, kind):
    """500 on every third request: what is done is there and right, what is not is listed with the origin's words, and when the
    origin is well again the rest gets there, too."""
    node, name, shaper, truth = shaped
    contents = put_all(truth, name, 30)
    for i in range(60):
        shaper.fault("status:500", skip=str(2 * (i + 1)))  # one leaves alone what another one takes
    status, job = finished(node, kind, name + "/d/", *([name + "/to/"] if kind == "copy" else []))
    assert shaper.stats()["faults_injected"] >= 10
    shaper.reset()
    if job["state"] == "failed":  # the listing
        node.cli("job", "resume", job["id"])
        node.cli("job", "wait", job["id"], "--quiet", check=False)
        job = show(node, job["id"])
    assert job["done_objects"] + job["failed_objects"] == 30
    assert all("500" in x["reason"] for x in errors(node, job))
    there = len(keys_of(truth, name, "to/")) if kind == "copy" else checked(node, name + "/d/")["cached_objects"]
    assert job["done_objects"] <= there <= 30  # of a put whose proof failed the object may be there
    if job["failed_objects"] > 0:
        assert status in (1, 3)
        node.cli("job", "retry", job["id"])
        node.cli("job", "wait", job["id"], "--quiet")
    assert show(node, job["id"])["done_objects"] == 30
    if kind == "prefetch":
        assert checked(node, name + "/d/")["cached_objects"] == 30
        return
    for key, data in contents.items():
        assert truth.get_object(Bucket=name, Key="to/" + key[2:])["Body"].read() == data


def test_truncated_bodies(shaped):
    """Bodies that break off are taken up where they broke; those that always do are failures, with the object's name, and
    nothing of them counts as complete."""
    node, name, shaper, truth = shaped
    put_all(truth, name, 12, size=300_000)
    shaper.fault("truncate", match="/d/00", count="6", at="1000")
    status, job = finished(node, "prefetch", name + "/d/")
    assert (status, job["state"], job["done_objects"]) == (0, "done", 12)
    node.cli("evict", "--wait", name)
    node.cli("bucket", "set", name, "retry=0s")
    shaper.reset()
    shaper.fault("truncate", match="/d/00", count="1000000", at="0")
    status, job = finished(node, "prefetch", name + "/d/")
    assert (status, job["state"], job["done_objects"], job["failed_objects"]) == (3, "partly failed", 2, 10)
    assert [x["key"] for x in errors(node, job)] == [f"d/{i:03}" for i in range(10)]
    assert checked(node, name + "/d/")["cached_objects"] == 2


def test_an_evict_needs_no_origin(shaped):
    """An evict drops what is cached while its origin answers nothing but errors, which it does not even see; the origin keeps
    all. (Seen to fail where kind.c has it walk the origin.)"""
    node, name, shaper, truth = shaped
    contents = put_all(truth, name, 12)
    assert finished(node, "prefetch", name)[0] == 0
    shaper.reset()
    shaper.fault("status:500", count="1000000")
    status, job = finished(node, "evict", name + "/d/")
    assert (status, job["done_objects"], job["failed_objects"], shaper.stats()["requests"]) == (0, 12, 0, 0)
    shaper.reset()
    assert checked(node, name)["cached_objects"] == 0 and keys_of(truth, name) == sorted(contents)


def test_credentials_that_end_in_mid_job(shaped):
    """From some object on the origin refuses: the job ends partly failed with the origin's words for each of the others,
    and what counts as done is there; with credentials that are good again a retry does the rest."""
    node, name, shaper, truth = shaped
    put_all(truth, name, 40)
    shaper.fault("status:403", match="/d/0", skip="10", count="1000000")
    status, after = finished(node, "prefetch", name + "/d/", "--parallel", "2")
    job = after["id"]
    assert (status, after["state"]) == (3, "partly failed") and after["done_objects"] + after["failed_objects"] == 40
    assert 0 < after["done_objects"] <= 10
    told = errors(node, after)
    assert len(told) == after["failed_objects"] and all("403" in x["reason"] for x in told), told[:1]
    assert checked(node, name + "/d/")["cached_objects"] == after["done_objects"]
    shaper.reset()
    node.cli("job", "retry", job)
    node.cli("job", "wait", job, "--quiet")
    assert (show(node, job)["done_objects"], checked(node, name + "/d/")["cached_objects"]) == (40, 40)


@pytest.fixture
def replaced(request, new_node, new_shaper, origin, tmp_path):
    """(node, job, shaper, look) of a sync, or of the kind that the test asks for, that has read a file from the cache, and sends it, when another one as large took its place: the
    target will have the former one, and a later time. look() says which it has."""
    node, shaper = new_node(), new_shaper(per_connection="1MB/s")
    source, target = harness.random_name(), node.new_bucket(origin, endpoint=shaper.endpoint, retry="1s")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"1" * 3 * MIB)
    node.create_bucket(source, f"file://{tmp_path}/tree")
    node.cli("prefetch", source, "--wait")
    shaper.reset()
    job = start(node, getattr(request, "param", "sync"), source + "/", target + "/")
    harness.wait_until(lambda: shaper.stats()["request_bytes"] > 0, what="it is being sent")
    (tmp_path / "new").write_bytes(b"2" * 3 * MIB)
    (tmp_path / "new").rename(tmp_path / "tree/file")

    def look():
        if not keys_of(origin.s3(), target):
            return None
        body = origin.s3().get_object(Bucket=target, Key="file")["Body"].read()
        return {b"1" * 3 * MIB: "former", b"2" * 3 * MIB: "latter"}[body]

    yield node, job, shaper, look
    shaper.reset()


@pytest.mark.parametrize("replaced", ["copy"], indirect=True)
def test_a_copy_of_what_was_replaced_is_no_younger_than_what_replaced_it(replaced):
    """A later sync goes by times, and would take the former version for what is there. (Fails where send, kind_copy.c, asks for syncs alone.)"""
    node, job, _, look = replaced
    node.cli("job", "wait", job, "--quiet")
    assert look() == "latter"


def test_what_was_replaced_is_copied_again_though_nothing_can_be_verified(replaced):
    """A sync that cannot look at what it has sent fails, but leaves no former version that is younger than what replaced it, which no
    later sync would see. (Fails where send, kind_copy.c, asks only after what was verified.)"""
    node, job, shaper, look = replaced
    shaper.fault("status:503", match="HEAD /", count="1000000")
    assert node.cli("job", "wait", job, "--quiet", check=False).returncode == 3
    assert look() == "latter"


def test_a_sync_that_goes_on_does_not_believe_its_own_copy(replaced):
    """A node that is killed when a sync has sent a file, and has not asked yet whether it is still the same, copies it again. (Fails where
    is_younger, kind_copy.c, goes by times alone.)"""
    node, job, shaper, look = replaced
    shaper.fault("stall", match="HEAD /", count="1000000")
    harness.wait_until(lambda: look() == "former", what="it was sent")
    node.kill()
    shaper.reset()
    shaper.release()
    node.start()
    node.cli("job", "wait", job, "--quiet")
    assert look() == "latter"


def test_an_origin_that_is_away_for_long(shaped):
    """Away for longer than requests are repeated: the job ends, with the reason of each object; nothing counts as done;
    when it is back a retry does all."""
    node, name, shaper, truth = shaped
    put_all(truth, name, 10)
    node.cli("bucket", "set", name, "retry=100ms")
    shaper.fault("reset", match="/d/0", count="1000000")
    status, job = finished(node, "prefetch", name + "/d/")
    assert (status, job["state"], job["done_objects"], job["failed_objects"]) == (3, "partly failed", 0, 10)
    assert checked(node, name + "/d/")["cached_objects"] == 0
    shaper.reset()
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"], "--quiet")
    assert (show(node, job["id"])["done_objects"], checked(node, name + "/d/")["cached_objects"]) == (10, 10)


class Shifting:
    """An origin whose objects change while they are listed for the first time, two keys a page: with every fourth page that is
    asked for one goes, one is replaced and one comes, before the place where the listing goes on and behind it."""

    def __init__(self, source, name, seed):
        self.source, self.name, self.rng, self.marks = source, name, random.Random(seed), [""]
        self.first = {f"d/{i:03}": b"%d " % i * (500 + i) for i in range(120)}
        self.touched = set()  # gone or replaced
        self.before, self.behind = {}, {}  # what came, by where
        source.page_keys = 2
        source.objects.update({(name, key): Object(data) for key, data in self.first.items()})
        source.before_list = self.change

    def change(self, query):
        mark = place(query)
        if mark <= self.marks[-1]:  # also another listing, of directories
            return
        self.marks.append(mark)
        if len(self.marks) % 4 > 0:
            return
        with self.source.lock:
            left = [key for key in self.first if key not in self.touched]
            for side in ([key for key in left if key <= mark], [key for key in left if key > mark]):
                if len(side) < 2:
                    continue
                gone, replaced = self.rng.sample(side, 2)
                self.touched |= {gone, replaced}
                del self.source.objects[self.name, gone]
                self.source.objects[self.name, replaced] = Object(b"another " * 300)
            for came, key in ((self.before, "d/!" + mark[2:]), (self.behind, mark + "~")):
                came[key] = b"new " + key.encode()
                self.source.objects[self.name, key] = Object(came[key])

    def now(self):
        return {key: one.data for (name, key), one in self.source.objects.items() if name == self.name}


@pytest.mark.parametrize("kind", ["prefetch", "copy", "import", "sync"])
def test_a_listing_that_changes_while_it_is_read(new_node, kind):
    """While a listing is read, page by page, objects go, come and are replaced before the place where it goes on and behind
    it: each that was there throughout, and each that came behind that place, is fetched once and counted once; what failed
    has gone meanwhile. The next job brings what came before it. (Seen to fail where list_page in source.c goes on one key
    later; a sync also without WIRE_FRESH there.)"""
    node, name = new_node(), harness.random_name()
    with KeyOrigin() as source:
        moving = Shifting(source, name, seed=kind)
        node.create_bucket(name, f"s3://{name}", **source.properties(), validate="ttl:1h")
        scratch, s3 = harness.scratch_bucket(node), node.s3()
        job = {"prefetch": [name + "/d/"], "copy": [name + "/d/", scratch + "/d/"], "sync": [name + "/d/", scratch + "/d/"],
               "import": [*settings(source), f"s3://{name}/d", scratch + "/d"]}[kind]
        place_of = name if kind == "prefetch" else scratch
        with source.lock:
            source.requests.clear()
        status, first = finished(node, kind, *job)
        always = {key: data for key, data in moving.first.items() if key not in moving.touched}
        assert min(len(always), len(moving.before), len(moving.behind), len(moving.touched)) >= 10
        failed = {key if key.startswith("d/") else "d/" + key for key in (x["key"] for x in errors(node, first))}
        assert status == (3 if failed else 0) and failed <= moving.touched, failed
        assert first["done_objects"] + len(failed) == first["total_objects"]
        fetched, again = requests(source, "get"), []
        for key, data in {**always, **moving.behind}.items():
            times = fetched.count(f"/{name}/{key}")
            assert times >= 1, key
            again += [key] * (times > 1)
            assert s3.get_object(Bucket=place_of, Key=key)["Body"].read() == data
        # A busy machine answers one so late that it is asked for twice.
        twice = sum(node.metric(f"forebay_origin_{why}_total") for why in ("hedges", "retries"))
        assert len(again) <= twice <= 10, again
        assert kind == "prefetch" or not set(keys_of(s3, scratch)) & set(moving.before)
        source.before_list = None
        status, second = finished(node, kind, *job)
        now = moving.now()
        assert (status, second["done_objects"]) == (0, len(now))
        assert all(s3.get_object(Bucket=place_of, Key=key)["Body"].read() == data for key, data in now.items())
        assert requests(source, "get").count(f"/{name}/{min(moving.before)}") in (1, 2)


def test_no_permission_to_write(shaped, origin, tmp_path):
    """A target that may not be written: every object is a failure with the target's words, and nothing is there."""
    node, name, shaper, truth = shaped
    (tmp_path / "in").mkdir()
    for i in range(5):
        (tmp_path / "in" / f"{i}").write_bytes(b"x" * 100)
    shaper.fault("status:403", match="PUT", count="1000000")
    status, job = finished(node, "import", f"file://{tmp_path}/in", name)
    assert (status, job["state"], job["done_objects"], job["failed_objects"]) == (3, "partly failed", 0, 5)
    assert all("403" in x["reason"] for x in errors(node, job))
    assert keys_of(truth, name) == []
    shaper.reset()
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"], "--quiet")
    assert keys_of(truth, name) == [f"{i}" for i in range(5)]


def test_a_target_that_does_not_exist(node, bucket, origin):
    """An export to a bucket that is not there is none that is done: it is refused or fails with the service's word for it."""
    fill(bucket, 3)
    done = node.cli("export", "--wait", *settings(origin), bucket.name, "s3://no-such-bucket-here/x", check=False)
    assert done.returncode in (1, 2, 3)
    said = done.stderr + "".join(x["reason"] for job in json.loads(node.cli("job", "ls", "--json").stdout)
                                 if job.get("target") == "s3://no-such-bucket-here/x" for x in errors(node, job))
    assert "NoSuchBucket" in said, said


# ---- edges ----

def test_attributes_only(new_node, origin):
    """prefetch --metadata-only asks for every object's attributes and no bytes; afterwards nobody is asked for them."""
    node = new_node()
    name = node.new_bucket(origin, validate="never")
    truth = origin.s3()
    for i in range(10):
        truth.put_object(Bucket=name, Key=f"d/{i}", Body=b"x" * 1000, Metadata={"n": str(i)})
    status, job = finished(node, "prefetch", "--metadata-only", name + "/d/")
    assert (status, job["done_objects"]) == (0, 10)
    assert origin_bytes(node, name) == 0 and checked(node, name)["cached_bytes"] == 0

    def asked():
        return sum(node.metric("forebay_origin_requests_total", bucket=name, op=op) for op in ("head", "get"))

    before, s3 = asked(), node.s3()
    for i in range(10):
        node.cli("stat", f"{name}/d/{i}")
    assert asked() == before
    assert s3.get_object(Bucket=name, Key="d/3")["Body"].read() == b"x" * 1000


def test_storage_class_of_an_export(bucket, node, work):
    """--storage-class is the class that the target says its objects have."""
    reason = origins.Azurite.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    fill(bucket, 2)
    server = origins.Azurite(work / f"azurite-{harness.random_name()}")
    try:
        sets = [x for k, v in server.properties().items() for x in ("--set", f"{k}={v}")]
        node.cli("export", "--wait", "--storage-class", "Cool", *sets, bucket.name + "/d/", server.url("out"))
        for key in ("out/0000.bin", "out/0001.bin"):
            status, headers, _ = server.ask("HEAD", f"bucket/{key}")
            assert status == 200
            assert {k.lower(): v for k, v in dict(headers).items()}["x-ms-access-tier"] == "Cool"
    finally:
        server.stop()


def test_an_export_of_a_scratch_bucket_comes_back(node, scratch, tmp_path):
    """What is exported from a scratch bucket to a directory and imported into another scratch bucket is the same bytes, with
    the same times."""
    contents = {f"ckpt/{i}": os.urandom(30_000 + i) for i in range(6)}
    s3, other = node.s3(), harness.scratch_bucket(node)
    for key, data in contents.items():
        s3.put_object(Bucket=scratch, Key=key, Body=data)
    status, job = finished(node, "export", scratch + "/ckpt/", f"file://{tmp_path}")
    assert (status, job["done_objects"]) == (0, 6)
    status, job = finished(node, "import", f"file://{tmp_path}", other + "/back")
    assert (status, job["done_objects"]) == (0, 6)
    assert keys_of(s3, other) == sorted("back/" + key[5:] for key in contents)
    for key, data in contents.items():
        assert s3.get_object(Bucket=other, Key="back/" + key[5:])["Body"].read() == data
    status, job = finished(node, "import", f"file://{tmp_path}", other + "/back")
    assert (job["done_objects"], job["skipped_objects"]) == (6, 6)


def test_change_of_vendor(new_node, origin):
    """Another origin for a bucket, after a sync that is verified: who reads all the while reads without an error, and what is
    written goes to the new one."""
    node = new_node()
    name, other = node.new_bucket(origin), origin.new_bucket()
    truth, s3 = origin.s3(), node.s3()
    contents = put_all(truth, name, 20)
    status, job = finished(node, "sync", *settings(origin), name, f"s3://{other}")
    assert (status, job["state"]) == (0, "done")
    stop, wrong, reads = threading.Event(), [], [0]

    def read():
        client = node.s3(retries={"max_attempts": 0})
        while not stop.is_set():
            for key, data in contents.items():
                try:
                    if client.get_object(Bucket=name, Key=key)["Body"].read() != data:
                        wrong.append(key)
                except Exception as error:  # whatever it is
                    wrong.append((key, repr(error)))
            reads[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        harness.wait_until(lambda: reads[0] > 0 or wrong, 120, "the first pass")
        node.cli("bucket", "set", name, f"origin=s3://{other}")
        before = reads[0]
        harness.wait_until(lambda: reads[0] > before + 1 or wrong, 120, "passes behind the change")
    finally:
        stop.set()
        reader.join()
    assert not wrong, wrong[:3]
    s3.put_object(Bucket=name, Key="new", Body=b"new")
    assert truth.get_object(Bucket=other, Key="new")["Body"].read() == b"new"
    assert "new" not in keys_of(truth, name)
    for key in contents:
        truth.delete_object(Bucket=name, Key=key)
    assert keys_of(s3, name) == sorted([*contents, "new"])


def test_evict_leaves_what_is_not_in_the_origin(new_node, new_shaper, origin):
    """Dirty data is shown as such by prefix, and an evict job refuses it, each object with its reason, and drops what is clean
    beside it; in the origin it is dirty no more, and goes. (Without WIRE_UNSENT in source.c nobody is told; without the
    question to back_has_bytes in cached.c it counts as done.)"""
    node, shaper = new_node(), new_shaper()
    name = node.new_bucket(origin, endpoint=shaper.endpoint, write="back", retry="200ms")
    s3 = node.s3()
    for key in ("a/1-clean", "c/clean"):
        origin.s3().put_object(Bucket=name, Key=key, Body=b"c" * 100)
        s3.get_object(Bucket=name, Key=key)["Body"].read()
    shaper.fault("status:503", match="PUT", count="1000000")
    for i in range(3):
        s3.put_object(Bucket=name, Key=f"a/{i}", Body=b"x" * 1000)
    s3.put_object(Bucket=name, Key="b/0", Body=b"y" * 500)

    def dirty():
        return {prefix: row["dirty_bytes"] for prefix, row in json.loads(node.cli("du", "--json", name).stdout).items()}

    assert dirty() == {f"{name}/a/": 3000, f"{name}/b/": 500, f"{name}/c/": 0}
    assert json.loads(node.cli("du", "--json", name + "/a/").stdout)[f"{name}/a/"]["dirty_bytes"] == 3000
    status, job = finished(node, "evict", name)
    assert (status, job["done_objects"], job["failed_objects"]) == (3, 2, 4)
    told = errors(node, job)
    assert [x["key"] for x in told] == ["a/0", "a/1", "a/2", "b/0"] and all("forebay flush" in x["reason"] for x in told), told
    assert {k: v for k, v in dirty().items() if v > 0} == {f"{name}/a/": 3000, f"{name}/b/": 500}
    assert checked(node, name)["cached_objects"] == 0
    for i in range(3):
        assert s3.get_object(Bucket=name, Key=f"a/{i}")["Body"].read() == b"x" * 1000
    shaper.reset()
    node.cli("flush", "--wait", name)
    assert sum(dirty().values()) == 0
    assert keys_of(origin.s3(), name) == ["a/0", "a/1", "a/1-clean", "a/2", "b/0", "c/clean"]
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"], "--quiet")
    assert show(node, job["id"])["failed_objects"] == 0 and checked(node, name)["cached_objects"] == 0


def test_who_waits_asks_seldom(bucket, node):
    """--wait waits in the node, a second at a time, and the answer comes with the end. (With JOB_GET every hundredth of the time that was
    waited, as of older nodes, it asks a hundred times.)"""
    def asked():
        return sum(node.metric("forebay_requests_total", op=op) for op in ("JOB_WAIT", "JOB_GET", "job_wait", "job_get"))
    fill(bucket, 12, size=50_000)
    before, began = asked(), time.monotonic()
    node.cli("prefetch", "--wait", "--quiet", "--rate", "150kB/s", "--parallel", "2", bucket.name)
    seconds = time.monotonic() - began
    assert seconds > 2 and 1 <= asked() - before <= seconds + 3


def test_progress_of_a_job_is_drawn_on_a_terminal(shaped):
    """--wait on a terminal redraws one line while the job runs: objects, bytes, rate, time left, and errors when there are some. Slower jobs
    where a busy machine was not there while they ran."""
    node, name, shaper, truth = shaped
    put_all(truth, name, 12, size=50_000)

    def draws(status, *wanted):
        for rate in ("150kB/s", "40kB/s", "10kB/s"):
            drawn = node.drawn("prefetch", "--wait", "--rate", rate, "--parallel", "2", name, status=status)
            node.cli("evict", "--wait", name)
            if drawn.count("\r") > 3 and all(re.search(one, drawn) for one in wanted):
                return
        pytest.fail(drawn)

    draws(0, r"[1-9]\d*/12 objects, [\d.]+ KiB of 586 KiB, 0 failed", r"[\d.]+ (B|.iB)/s", r"[\dhms]+ left")
    node.cli("bucket", "set", name, "retry=0s")
    shaper.fault("status:403", match="/d/000", count="1000000")
    draws(3, r"running: [1-9]\d*/12 objects, [\d.]+ KiB of 586 KiB, 1 failed")


def test_progress_stays_in_its_line(shaped):
    """On a terminal that is narrower than the line of progress it is cut: what a terminal puts into the next line nobody could draw over."""
    node, name, shaper, truth = shaped
    put_all(truth, name, 4, size=50_000)

    def draws(*command):
        for rate in ("100kB/s", "20kB/s"):
            shaper.set(total=rate)
            drawn = node.drawn(*command, columns=30)
            node.cli("evict", "--wait", name)
            if drawn.count("\r") > 3:
                pieces = drawn.rstrip().rpartition("\r")[0].replace("\x1b[K", "").split("\r")
                return max(map(len, pieces))
        return pytest.fail(drawn)

    assert draws("prefetch", "--wait", "--parallel", "1", name) == 29
    assert draws("get", "-r", "-j", "1", f"{name}/", node.dir / "gotten") == 29


def test_time_left_where_no_bytes_move(new_node, new_shaper, origin):
    """A job that moves no bytes tells the time left by its objects. (By bytes alone there is none.) A slower origin where a busy machine
    was not there while it ran."""
    node = new_node()
    for late in ("300ms", "1s", "4s"):
        name = node.new_bucket(origin, endpoint=new_shaper(first_byte=late).endpoint)
        put_all(origin.s3(), name, 30, size=100)
        drawn = node.drawn("prefetch", "--metadata-only", "--wait", "--parallel", "2", name)
        if re.search(r"running: [1-9]\d*/30 objects, 0 B of [\d.]+ KiB, 0 failed, 0 B/s, [\dhms]+ left", drawn):
            return
    pytest.fail(drawn)


def test_a_command_killed_within_its_list(bucket):
    """A command that is killed while it sends its list leaves a job that says so and cannot be resumed: it would end as done, without
    the rest of the list. (Without list_comes it does.)"""
    node = bucket.node
    fill(bucket, 3)
    before = {j["id"] for j in json.loads(node.cli("job", "ls", "--json").stdout)}
    env = {**os.environ, "FOREBAY_SOCKET": str(node.socket_path), **node.env}
    command = subprocess.Popen([str(node.binary), "prefetch", "--wait", "--list", "-", bucket.name], env=env, stdin=subprocess.PIPE)
    lines = b"".join(b"d/%04d.bin\n" % i for i in range(3)) + b"".join(b"d/missing-%054d\n" % i for i in range(20_000))
    command.stdin.write(lines)
    command.stdin.flush()  # more than one piece, so that some of it has left

    def made():
        return [j for j in json.loads(node.cli("job", "ls", "--json").stdout) if j["id"] not in before]

    [job] = harness.wait_until(made, what="the job is there")
    command.kill()
    command.wait(60)
    assert job["state"] == "paused" and job["reason"] == "its list has not come whole"
    refused = node.cli("job", "resume", job["id"], check=False)
    assert refused.returncode == 1 and "start it again" in refused.stderr
    assert show(node, job["id"])["state"] == "paused"
    node.cli("job", "cancel", job["id"])
    node.cli("job", "rm", job["id"])
