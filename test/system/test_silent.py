"""An origin that accepts connections and never answers, or breaks off in the middle of an answer without a word: what waits for it ends
when a job is cancelled or the node is told to stop, and not when the origin's time-out, here ten minutes, is over."""

import http.client
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

import harness
from relay import Relay
from test_jobs import fill, keys_of, show, start, until

BOUND = 60  # seconds; sanitizers are slow. Time-outs are ten times as long
PATIENT = {"origin.timeout": "10m", "origin.connect_timeout": "10m", "retry": "30m"}
SILENCES = [0, 700]  # bytes that come first: nothing at all; a head and some of a body


@pytest.fixture
def silent(new_node, route, origin):
    """(node, bucket, relay before its origin, client of the origin)."""
    with Relay(origin.port) as relay:
        node = new_node(route=route, drain_timeout="10m")
        name = node.new_bucket(origin, endpoint=relay.endpoint, **PATIENT)
        yield node, name, relay, origin.s3()


def settings(origin, relay):
    properties = {**origin.properties(relay.endpoint), **PATIENT}
    return [x for name, value in properties.items() if name != "retry" for x in ("--set", f"{name}={value}")]


def put_all(truth, name, count=6, size=20_000, folder="d"):
    for i in range(count):
        truth.put_object(Bucket=name, Key=f"{folder}/{i}", Body=bytes([i]) * (size + i))


def starters(node, name, origin, relay):
    """Arguments of a job of each kind that asks the origin, by its name."""
    scratch = harness.scratch_bucket(node)
    node.s3().put_object(Bucket=scratch, Key="d/small", Body=b"s" * 1000)
    node.s3().put_object(Bucket=scratch, Key="d/large", Body=b"l" * (20 << 20))
    return {"prefetch": ["prefetch", name], "copy": ["copy", name + "/d/", scratch + "/c/"],
            "import": ["import", *settings(origin, relay), f"s3://{name}/d", scratch + "/i"],
            "export": ["export", *settings(origin, relay), scratch + "/d/", f"s3://{name}/e"],
            "sync": ["sync", scratch + "/d/", name + "/s/"]}


@pytest.mark.parametrize("after", SILENCES)
@pytest.mark.parametrize("kind", ["prefetch", "copy", "import", "export", "sync"])
def test_a_cancelled_job_ends(silent, origin, kind, after):
    """A job that is cancelled or paused while it waits gives its place among the running ones, and those at the origin, to others at
    once. (Without object_session_set_quit in run.c they are held for ten minutes.)"""
    node, name, relay, truth = silent
    put_all(truth, name)
    how = starters(node, name, origin, relay)[kind]
    other = node.new_bucket(origin)
    truth.put_object(Bucket=other, Key="k", Body=b"k")
    if kind in ("import", "export"):  # these look at the URL before they begin, as who asks for them waits
        jobs = []
        for _ in range(4):  # each is paused at once, as it may be done when the last one begins
            jobs.append(start(node, *how, "--rate", "5kB/s" if kind == "import" else "1MB/s"))
            node.cli("job", "pause", jobs[-1])
        relay.hush(after)
        for job in jobs:
            node.cli("job", "resume", job)
    else:
        relay.hush(after)
        jobs = [start(node, *how) for _ in range(4)]
    harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
    last = start(node, "prefetch", other)
    time.sleep(0.5)
    assert show(node, last)["state"] == "queued"
    for i, job in enumerate(jobs):
        node.cli("job", "pause" if i % 2 else "cancel", job)
    until(node, last, lambda j: j["state"] == "done", BOUND)
    harness.wait_until(lambda: relay.held() == 0, BOUND, "nothing is asked of the origin any more")
    relay.speak()
    for i, job in enumerate(jobs):
        assert show(node, job)["state"] == ("paused" if i % 2 else "cancelled")
    node.cli("job", "resume", jobs[1])
    until(node, jobs[1], lambda j: j["state"] == "done", 4 * BOUND)


def test_name_servers_that_say_nothing(new_node, tmp_path):
    """The time to connect is over when it is over, and not when the resolver gives its name servers up, which is two minutes later here.
    (Fails without CURLOPT_QUICK_EXIT in web_conn.c; nfs:// without host_address in nfs_conn.c.)"""
    apart = ["unshare", "--mount"]
    if subprocess.run([*apart, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("needs a mount namespace")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        names.bind((f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}", 53))
        (tmp_path / "resolv.conf").write_text(f"nameserver {names.getsockname()[0]}\noptions timeout:30 attempts:4\n")
        inside, wrapped = tmp_path / "inside", tmp_path / "forebay"
        inside.write_text(f"{harness.LET_GO_OF_MOUNTS}\nmount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec {harness.forebay_bin()} \"$@\"")
        wrapped.write_text(f"#!/bin/sh\nexec {' '.join(apart)} sh {inside} \"$@\"\n")
        wrapped.chmod(0o755)
        node = new_node(binary=wrapped)
        for url, more in (("s3://named", ["--set", "origin.endpoint=http://origin.example.org"]), ("nfs://origin.example.org/export", [])):
            began = time.monotonic()
            done = node.cli("bucket", "create", "named", "--origin", url, *more, "--set", "origin.connect_timeout=1s", check=False)
            assert done.returncode != 0 and any(x in done.stderr for x in ("Resolving timed out", "no answer of the name servers")), done
            assert time.monotonic() - began < BOUND, done.stderr


def signed(node, method, **params):
    return node.s3(signature_version="s3v4").generate_presigned_url(method, Params=params).removeprefix(node.endpoint)


class Request(threading.Thread):
    """One request to the node, whose answer is waited for: .is_sent, .status, .retry_after, and .whole once all of it came."""

    def __init__(self, node, method, path, body=None):
        super().__init__(daemon=True)
        self.node, self.method, self.path, self.body = node, method, path, body
        self.is_sent, self.status, self.retry_after, self.whole = False, None, None, False
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(self.node.endpoint.removeprefix("http://"), timeout=300)
        try:
            connection.request(self.method, self.path, self.body)
            self.is_sent = True
            answer = connection.getresponse()
            self.retry_after, self.status = answer.getheader("Retry-After"), answer.status
            answer.read()
            self.whole = True
        except (OSError, http.client.HTTPException):
            pass


def test_readers_of_a_silent_origin_leave_threads_to_others(new_node, route, origin):
    """Readers of an origin that accepts and never answers wait on half of the threads; those of S3 beyond that are told to slow
    down, and for how long, and are counted; libforebay's ask again by themselves. What is cached is read meanwhile, status
    answers, and a job is cancelled; the readers that wait get their objects when the origin speaks. (Without is_crowded in
    object.c all threads wait until it does.) [Not counted without the metrics_count in run_in_crowd; no
    time without the header in reply_error.]"""
    with Relay(origin.port) as relay:
        node = new_node(route=route, threads=8)
        name, warm = node.new_bucket(origin, endpoint=relay.endpoint, **PATIENT), node.new_bucket(origin)
        truth = origin.s3()
        put_all(truth, name, 40)
        truth.put_object(Bucket=warm, Key="k", Body=b"warm")
        assert node.s3().get_object(Bucket=warm, Key="k")["Body"].read() == b"warm"
        put_all(truth, name, 10, folder="other")  # what the job has before the silence is not asked for
        job = start(node, "prefetch", name + "/other/", "--rate", "1kB/s")
        relay.hush(0)
        asked = [Request(node, "GET", signed(node, "get_object", Bucket=name, Key=f"d/{i}")) for i in range(10, 34)]
        env = {**node.env, "FOREBAY_SOCKET": str(node.socket_path)}
        commands = [subprocess.Popen([node.binary, "cat", f"{name}/d/{i}"], env=env, stdout=subprocess.PIPE) for i in range(34, 40)]
        try:
            harness.wait_until(lambda: sum(one.status == 503 for one in asked) >= 16, BOUND, "others are told to come again")
            for _ in range(10):
                assert node.s3().get_object(Bucket=warm, Key="k")["Body"].read() == b"warm"
            node.cli("status")
            node.cli("job", "cancel", job)
            until(node, job, lambda j: j["state"] == "cancelled", BOUND)
            assert all(one.status in (None, 503) for one in asked)
            assert {one.retry_after for one in asked if one.status == 503} == {"1"}
            assert node.metric("forebay_crowd_refused_total", **{"for": "origins"}) >= 16
        finally:
            relay.speak()
        for one in asked:
            one.join(BOUND)
            assert one.whole and one.status in (200, 503)
        for i, one in zip(range(34, 40), commands):
            assert one.communicate(timeout=BOUND)[0] == bytes([i]) * (20_000 + i) and one.returncode == 0


def begun(calls):
    """Each of the calls in a thread of its own; (the threads, a list to which each adds None or its error when it ends)."""
    ended = []

    def run(call):
        try:
            call()
            ended.append(None)
        except OSError as error:
            ended.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in calls]
    for one in threads:
        one.start()
    return threads, ended


def served_beside(node, warm, seconds):
    """Whether the node serves others, for so long at least: what is cached, and its status."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        one = Request(node, "GET", signed(node, "get_object", Bucket=warm, Key="k"))
        one.join(BOUND)
        if not one.whole or one.status != 200:
            return False
        node.cli("status")
    return True


def test_writers_to_a_silent_origin_leave_threads_to_others(new_node, route, origin):
    """Bodies, parts, removals and copies of S3 clients wait for an origin that never answers on half of the threads; those beyond that are
    told to slow down. What is cached is read meanwhile, status answers, and a job is cancelled; those that wait get their answers when the
    origin speaks. (Without the writes in is_crowded in object.c all threads wait until it does; without wait_uploader, or wait_done, those
    of large bodies and of parts.)"""
    with Relay(origin.port) as relay:
        node = new_node(route=route, threads=8)
        name, warm = node.new_bucket(origin, endpoint=relay.endpoint, **PATIENT), node.new_bucket(origin)
        truth = origin.s3()
        put_all(truth, name, 40)
        truth.put_object(Bucket=warm, Key="k", Body=b"warm")
        assert node.s3().get_object(Bucket=warm, Key="k")["Body"].read() == b"warm"
        big = b"b" * (5 << 20)
        upload = node.s3().create_multipart_upload(Bucket=name, Key="parts")["UploadId"]
        job = start(node, "prefetch", name, "--rate", "1kB/s")
        relay.hush(0)
        asked = [Request(node, "PUT", signed(node, "put_object", Bucket=name, Key=f"small/{i}"), b"s" * 1000) for i in range(6)]
        asked += [Request(node, "PUT", signed(node, "put_object", Bucket=name, Key=f"big/{i}"), big) for i in range(6)]
        asked += [Request(node, "PUT", signed(node, "upload_part", Bucket=name, Key="parts", UploadId=upload, PartNumber=i + 1), big)
                  for i in range(6)]
        asked += [Request(node, "DELETE", signed(node, "delete_object", Bucket=name, Key=f"d/{i}")) for i in range(6)]
        try:
            harness.wait_until(lambda: sum(one.status == 503 for one in asked) >= 16, BOUND, "others are told to come again")
            assert served_beside(node, warm, seconds=0)
            node.cli("job", "cancel", job)
            until(node, job, lambda j: j["state"] == "cancelled", BOUND)
            assert all(one.status in (None, 503) for one in asked)
        finally:
            relay.speak()
        for one in asked:
            one.join(BOUND)
            assert one.whole and one.status in (200, 204, 503), (one.method, one.path, one.status)
        for one in asked:
            if one.status == 200 and one.path.startswith(f"/{name}/big/"):
                key = one.path.split("?")[0].removeprefix(f"/{name}/")
                assert truth.get_object(Bucket=name, Key=key)["Body"].read() == big


def test_mounts_that_write_to_a_silent_origin_leave_threads_to_others(new_node, new_mount, route, origin):
    """Files that are closed while the origin never answers wait for it on half of the threads; mounts ask again for the others by
    themselves, also for longer than their own time-out. What is cached is read meanwhile, and status answers; each close succeeds when the
    origin speaks, and the origin has all of each file. (Without PUT_COMMIT of mounts in is_crowded in object.c nobody else is served;
    without the time that client_call.c grants a long operation closes fail.)"""
    with Relay(origin.port) as relay:
        node = new_node(route=route, threads=8)
        name, warm = node.new_bucket(origin, endpoint=relay.endpoint, **PATIENT), node.new_bucket(origin)
        truth = origin.s3()
        truth.put_object(Bucket=warm, Key="k", Body=b"warm")
        assert node.s3().get_object(Bucket=warm, Key="k")["Body"].read() == b"warm"
        tops = [new_mount(node, name, timeout="10s").path for _ in range(2)]
        files = [(tops[i % 2] / f"w{i}", bytes([65 + i]) * (10_000 + i)) for i in range(14)]
        opened = [(open(path, "wb"), path) for path, _ in files]
        for (file, _), (_, body) in zip(opened, files):
            file.write(body)
        relay.hush(0)
        closers, ended = begun([file.close for file, _ in opened])
        try:
            harness.wait_until(lambda: relay.held() >= 4, BOUND, "the origin is asked")
            assert served_beside(node, warm, seconds=14)
            assert not ended
        finally:
            relay.speak()
        for one in closers:
            one.join(2 * BOUND)
        assert ended == [None] * len(files), ended
        for path, body in files:
            assert truth.get_object(Bucket=name, Key=path.name)["Body"].read() == body


@pytest.mark.usefixtures("need_fuse")
def test_mounts_that_change_names_at_a_silent_origin_leave_threads_to_others(new_node, new_mount, route, origin):
    """Removals, renames and directories that mounts ask for while the origin never answers wait for it on half of the threads;
    mounts ask again for the others, under the numbers that they had, also for longer than their time-out. What is cached is
    read meanwhile, and status answers; each succeeds when the origin speaks, also one that the origin made long ago and did not
    answer. (Without is_known_again in object.c nobody else is served; without is_asked_again in intent.c removals end with
    ENOENT.)"""
    with Relay(origin.port) as relay:
        node = new_node(route=route, threads=8)
        # Whether a name is there is not asked again within the test: a question ends with the time-out.
        name, warm = node.new_bucket(origin, endpoint=relay.endpoint, validate="ttl:1h", **PATIENT), node.new_bucket(origin)
        truth = origin.s3()
        truth.put_object(Bucket=warm, Key="k", Body=b"warm")
        assert node.s3().get_object(Bucket=warm, Key="k")["Body"].read() == b"warm"
        for i in range(14):  # a directory each, as the kernel changes one name of a directory at a time
            for key in ("f", "old", "empty/"):
                truth.put_object(Bucket=name, Key=f"p{i:02}/{key}", Body=b"" if key == "empty/" else b"%d" % i)
        # Names that are not there yet are looked up first, which is a question, and ends with the time-out.
        tops = [new_mount(node, name, timeout=timeout).path for timeout in ("10s", "300s")]
        places = [tops[i % 2] / f"p{i:02}" for i in range(14)]
        assert all((place / one).exists() for place in places for one in ("f", "old", "empty"))
        calls = [[(p / "f").unlink, (p / "new").mkdir, (p / "empty").rmdir, lambda p=p: (p / "old").rename(p / "moved")][i % 4]
                 for i, p in enumerate(places)]
        relay.hush(0)
        threads, ended = begun(calls)
        try:
            harness.wait_until(lambda: relay.held() >= 4, BOUND, "the origin is asked")
            assert served_beside(node, warm, seconds=14)
            assert not ended
        finally:
            relay.speak()
        for one in threads:
            one.join(2 * BOUND)
        assert ended == [None] * len(calls), ended
        expected = {f"p{i:02}/{key}" for i in range(14) for key in ("f", "old", "empty/")}
        for i in range(14):
            gone, made = [("f", None), (None, "new/"), ("empty/", None), ("old", "moved")][i % 4]
            expected -= {f"p{i:02}/{gone}"}
            expected |= {f"p{i:02}/{made}"} if made else set()
        assert keys_of(truth, name) == sorted(expected)


@pytest.mark.usefixtures("need_fuse")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_who_is_killed_at_a_silent_origin_ends(silent, new_mount, number):
    """Programs that read, look up and list by a mount while the origin says nothing end when they are killed, and leave the threads
    of the mount to others: all are held until then. (Without is_unwanted in mount.c they end with the origin's time-out.)"""
    node, name, relay, truth = silent
    put_all(truth, name, 6)
    put_all(truth, name, 1, folder="warm")
    top = new_mount(node, name, threads=4).path
    assert len(os.listdir(top / "d")) == 6
    assert (top / "warm/0").read_bytes() == bytes([0]) * 20_000
    relay.hush(0)
    commands = [["cat", top / f"d/{i}"] for i in range(4)] + [["ls", top / "other"], ["stat", top / "nobody/knows"]]
    programs = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for one in commands]
    try:
        harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
        time.sleep(1)
        assert all(one.poll() is None for one in programs)
        for one in programs:
            one.send_signal(number)
        for one in programs:
            assert one.wait(BOUND) == -number
        done = subprocess.run(["cat", top / "warm/0"], stdout=subprocess.PIPE, check=True, timeout=BOUND)
        assert done.stdout == bytes([0]) * 20_000
    finally:
        relay.speak()
    assert (top / "d/5").read_bytes() == bytes([5]) * 20_005


@pytest.mark.usefixtures("need_fuse")
def test_a_mount_ends_before_a_silent_origin(silent, new_mount):
    """SIGTERM to a mount while a program reads what the origin does not give: it is unmounted at once. (Without is_unwanted in mount.c
    it ends with the origin's time-out.)"""
    node, name, relay, truth = silent
    put_all(truth, name)
    mount = new_mount(node, name)
    assert len(os.listdir(mount.path / "d")) == 6
    relay.hush(0)
    reader = subprocess.Popen(["cat", mount.path / "d/0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
        os.kill(mount.pid, signal.SIGTERM)
        assert mount.process.wait(BOUND) == 0
        assert reader.wait(BOUND) != 0
    finally:
        relay.speak()


@pytest.mark.usefixtures("need_fuse")
def test_a_removal_that_a_stop_cuts_is_known_to_the_next_node(silent, new_mount):
    """A node is told to stop while its origin has made a removal and says nothing of it: the program only waits, the next node is
    asked for the same removal, and it succeeds. (Without is_asked_again in intent.c it ends with ENOENT.)"""
    node, name, relay, truth = silent
    put_all(truth, name, 3)
    top = new_mount(node, name, timeout="120s").path
    files = [top / f"d/{i}" for i in range(3)]
    assert all(one.stat().st_size > 0 for one in files)
    relay.hush(0)
    threads, ended = begun([one.unlink for one in files[:1]])
    try:
        harness.wait_until(lambda: keys_of(truth, name) == ["d/1", "d/2"], BOUND, "the origin has removed it")
        node.stop()
        assert not ended
    finally:
        relay.speak()
    node.start()
    for one in threads:
        one.join(2 * BOUND)
    assert ended == [None], ended
    assert sorted(one.name for one in (top / "d").iterdir()) == ["1", "2"]


@pytest.mark.usefixtures("need_fuse")
def test_a_share_that_hangs_leaves_threads_to_others(new_node, new_mount, route):
    """The file system of a file:// origin says nothing, as that of a server of NFS that is away, and no call of it can be given up: half of
    the threads wait for it, and requests beyond that are told to slow down. What is cached is read meanwhile, and status answers; those that
    wait get their answers when it speaks. (Without is_deaf in file.c nobody else is served; without expect_life in writer.c large bodies
    take all threads.)"""
    far, node = new_node(), new_node(route=route, threads=8)
    share, warm = harness.scratch_bucket(far), harness.scratch_bucket(node)
    for i in range(12):
        far.s3().put_object(Bucket=share, Key=f"o/d/{i}", Body=b"%d" % i)
    mount = new_mount(far, share)
    node.create_bucket("hung", f"file://{mount.path}/o")
    node.s3().put_object(Bucket=warm, Key="k", Body=b"warm")
    with mount.stopped():
        asked = [Request(node, "GET", signed(node, "get_object", Bucket="hung", Key=f"d/{i}")) for i in range(6)]
        asked += [Request(node, "HEAD", signed(node, "head_object", Bucket="hung", Key=f"d/{i}")) for i in range(6, 12)]
        asked += [Request(node, "GET", signed(node, "list_objects_v2", Bucket="hung", Prefix=f"d/{i}")) for i in range(6)]
        asked += [Request(node, "PUT", signed(node, "put_object", Bucket="hung", Key=f"w/{i}"), b"s" * 1000) for i in range(6)]
        asked += [Request(node, "PUT", signed(node, "put_object", Bucket="hung", Key=f"b/{i}"), b"b" * (5 << 20)) for i in range(6)]
        harness.wait_until(lambda: sum(one.status == 503 for one in asked) >= 22, BOUND, "others are told to come again")
        assert served_beside(node, warm, seconds=4)
        assert all(one.status in (None, 503) for one in asked)
    for one in asked:
        one.join(BOUND)
        assert one.whole and one.status in (200, 503), (one.method, one.path, one.status)


@pytest.mark.usefixtures("need_fuse")
def test_an_origin_inside_a_mount_of_the_same_node(new_node, new_mount, route):
    """Each call of a file:// origin that lies in a mount of the node itself is served by the threads of that node: it keeps some for them.
    (Without is_deaf in file.c all of them wait for one another, until the mounts' time-out is over.)"""
    node = new_node(route=route, threads=8)
    inner = new_mount(node, harness.scratch_bucket(node)).path
    (inner / "o").mkdir()
    node.create_bucket("outer", f"file://{inner}/o")
    top = new_mount(node, "outer").path
    body = harness.random_bytes(3 << 20)
    began = time.monotonic()
    threads, ended = begun([lambda i=i: (top / f"{i}").write_bytes(body) for i in range(40)])
    for one in threads:
        one.join(2 * BOUND)
    assert ended == [None] * 40, ended
    assert time.monotonic() - began < BOUND
    assert all((inner / f"o/{i}").read_bytes() == body for i in range(40))


@pytest.mark.parametrize("after", SILENCES)
def test_a_node_stops_before_a_silent_origin(silent, origin, after):
    """SIGTERM: clients of S3 are answered 503, jobs are for the next start, in which they go on; the node ends well within
    seconds. (Without object_stop_soon in server.c it takes --drain-timeout, here ten minutes, too, and so without quit_patience_ms in
    web_conn.c.)"""
    node, name, relay, truth = silent
    put_all(truth, name)
    big = b"b" * (6 << 20)
    jobs = []
    how = starters(node, name, origin, relay)
    relay.hush(after)
    for kind in ("prefetch", "copy"):
        jobs.append(start(node, *how[kind]))
    asked = [Request(node, "GET", signed(node, "get_object", Bucket=name, Key="d/0")),
             Request(node, "HEAD", signed(node, "head_object", Bucket=name, Key="d/1")),
             Request(node, "GET", signed(node, "list_objects_v2", Bucket=name)),
             Request(node, "PUT", signed(node, "put_object", Bucket=name, Key="small"), b"s" * 1000),
             Request(node, "PUT", signed(node, "put_object", Bucket=name, Key="big"), big)]
    env = {**node.env, "FOREBAY_SOCKET": str(node.socket_path)}
    command = subprocess.Popen([node.binary, "cat", f"{name}/d/2"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    harness.wait_until(lambda: relay.held() >= 4, BOUND, "the origin is asked")
    if after == 0:  # the one that asks for the metrics is active, too; else some are answered in their first bytes
        harness.wait_until(lambda: node.metric("forebay_connections_active", via="http") > len(asked), BOUND, "all of them run")
        harness.wait_until(lambda: all(one.is_sent for one in asked), BOUND, "all of them sent")
    began = time.monotonic()
    node.stop()
    assert time.monotonic() - began < BOUND
    for one in asked:
        one.join(BOUND)
        assert not one.is_alive()
        assert one.status == 503 or after > 0, (one.method, one.path, one.status)
    assert asked[0].status == 503 or not asked[0].whole
    relay.speak()
    node.start()
    command.communicate(timeout=2 * BOUND)  # it asks the next node, or says that this one went away
    for job in jobs:
        until(node, job, lambda j: j["state"] == "done", 4 * BOUND)
        assert show(node, job)["failed_objects"] == 0


def test_a_node_stops_before_an_origin_that_is_checked(silent, origin):
    """`forebay origin check` waits for an origin that no bucket has: a node that stops ends that, too. (Without the flags that
    op_origin_check gives to it the node waits until the origin does not trickle any more, or its time-out is over.)"""
    node, name, relay, _ = silent
    relay.hush()
    env = {**node.env, "FOREBAY_SOCKET": str(node.socket_path)}
    command = subprocess.Popen([node.binary, "origin", "check", *settings(origin, relay), f"s3://{name}"], env=env,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
    began = time.monotonic()
    node.stop()
    assert time.monotonic() - began < BOUND
    command.kill()  # or it waits for the next node
    command.wait(BOUND)


def test_parts_of_a_node_that_stops(new_node, route, origin):
    """Parts of an upload that wait when the node is told to stop, for the origin's answer or for a connection to it, are
    answered 503, and none of them that there is no such upload: it is there after the next start, and is completed. (Seen to
    fail where whatever gives a part up tells its client NoSuchUpload.)"""
    with Relay(origin.port) as relay:
        node = new_node(route=route, threads=32, drain_timeout="10m")
        name = node.new_bucket(origin, endpoint=relay.endpoint, **{**PATIENT, "origin.connections": 2})
        where = {"Bucket": name, "Key": "k"}
        upload = node.s3().create_multipart_upload(**where)["UploadId"]
        relay.hush(0)
        path = signed(node, "upload_part", **where, UploadId=upload, PartNumber=1)
        asked = [Request(node, "PUT", path, b"p" * 1000) for _ in range(6)]
        harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
        active = lambda: node.metric("forebay_connections_active", via="http")
        harness.wait_until(lambda: active() > len(asked), BOUND, "all of them run")
        node.stop()
        for one in asked:
            one.join(BOUND)
        assert [one.status for one in asked] == [503] * len(asked)
        relay.speak()
        node.start()
        s3 = node.s3()
        assert [u["UploadId"] for u in s3.list_multipart_uploads(Bucket=name)["Uploads"]] == [upload]
        etag = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"whole")["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
        assert origin.s3().get_object(**where)["Body"].read() == b"whole"


class Reader(threading.Thread):
    """Reads a file from its beginning in a thread of its own: .got is what it read, or its error; None as long as it waits."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.got = path, None
        self.start()

    def run(self):
        try:
            self.got = self.path.read_bytes()
        except OSError as error:
            self.got = error


def body_of(i):
    return bytes([i]) * (20_000 + i)  # as put_all makes them


def is_read_beside(top):
    """Reads what is cached by a mount: a file that was read by it before, and others that it opens for the first time."""
    for i in range(30):
        one = Reader(top / ("again/0" if i % 3 == 0 else f"warm/{i}"))
        one.join(BOUND / 4)
        if one.got != body_of(0 if i % 3 == 0 else i):
            return False
    return True


def warm_up(node, name, top):
    for i in range(40):
        node.s3().get_object(Bucket=name, Key=f"warm/{i}")["Body"].read()
    assert len(os.listdir(top / "warm")) == 40
    assert (top / "again/0").read_bytes() == body_of(0)


@pytest.mark.usefixtures("need_fuse")
@pytest.mark.parametrize("how", [{}, {"passthrough": "off"}, {"profile": "read-only"}], ids=["direct", "cached", "read-only"])
def test_readers_of_a_silent_origin_leave_threads_of_their_mount_to_others(new_node, new_mount, route, origin, how):
    """Programs that read what is not here, more than the mount has threads, wait for an origin that says nothing. What is cached is looked
    up, opened and read by the same mount meanwhile; who is killed ends, also those that no thread waits for; and the others get their
    bytes when the origin speaks. (Seen to fail, in each of the three ways, without the places of parking.c: nobody else is served.)"""
    with Relay(origin.port) as relay:
        node = new_node(route=route)
        name = node.new_bucket(origin, endpoint=relay.endpoint, validate="ttl:1h", **PATIENT)
        truth = origin.s3()
        for folder, count in (("cold", 100), ("warm", 40), ("again", 1)):
            put_all(truth, name, count, folder=folder)
        top = new_mount(node, name, read_only=True, **how).path
        warm_up(node, name, top)
        assert len(os.listdir(top / "cold")) == 100
        with open(top / "warm/39", "rb", buffering=0) as opened:
            relay.hush(0)
            readers = [Reader(top / f"cold/{i}") for i in range(90)]
            programs = [subprocess.Popen(["cat", top / f"cold/{i}"], stdout=subprocess.DEVNULL) for i in range(90, 100)]
            try:
                harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
                time.sleep(2)
                assert is_read_beside(top)
                assert opened.read(100) == bytes([39]) * 100
                assert all(one.got is None for one in readers) and all(one.poll() is None for one in programs)
                for one in programs:
                    one.kill()
                for one in programs:
                    assert one.wait(BOUND) == -signal.SIGKILL
                assert is_read_beside(top)
            finally:
                relay.speak()
        for i, one in enumerate(readers):
            one.join(2 * BOUND)
            assert one.got == body_of(i), (i, one.got)


@pytest.mark.usefixtures("need_fuse")
def test_writers_to_a_silent_origin_leave_threads_of_their_mount_to_others(new_node, new_mount, route, origin):
    """More files than the mount has threads are closed while the origin says nothing. What is cached is read by the same mount meanwhile,
    and each close succeeds when the origin speaks. (Seen to fail without mount_parks in publish of write.c.)"""
    with Relay(origin.port) as relay:
        node = new_node(route=route)
        name = node.new_bucket(origin, endpoint=relay.endpoint, validate="ttl:1h", **PATIENT)
        truth = origin.s3()
        for folder, count in (("warm", 40), ("again", 1)):
            put_all(truth, name, count, folder=folder)
        top = new_mount(node, name, timeout="120s").path
        warm_up(node, name, top)
        opened = [open(top / f"w{i}", "wb") for i in range(80)]
        for i, file in enumerate(opened):
            file.write(body_of(i))
        relay.hush(0)
        closers, ended = begun([file.close for file in opened])
        try:
            harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
            time.sleep(2)
            assert is_read_beside(top)
            assert not ended
        finally:
            relay.speak()
        for one in closers:
            one.join(2 * BOUND)
        assert ended == [None] * len(opened), ended
        for i in range(len(opened)):
            assert truth.get_object(Bucket=name, Key=f"w{i}")["Body"].read() == body_of(i)


@pytest.mark.usefixtures("need_fuse")
@pytest.mark.skipif(tuple(map(int, os.uname().release.split(".")[:2])) < (6, 9), reason="the kernel cannot send requests again before Linux 6.9")
def test_who_waits_for_a_thread_of_a_killed_mount_waits_for_the_next(new_node, new_mount, route, origin):
    """The process that serves a mount is killed while more programs wait for the origin than it has threads: all of them wait on for the
    one that takes over, which reads what is cached meanwhile, and get their bytes when the origin speaks."""
    with Relay(origin.port) as relay:
        node = new_node(route=route)
        name = node.new_bucket(origin, endpoint=relay.endpoint, validate="ttl:1h", **PATIENT)
        truth = origin.s3()
        for folder, count in (("cold", 90), ("warm", 40), ("again", 1)):
            put_all(truth, name, count, folder=folder)
        mount = new_mount(node, name, read_only=True)
        warm_up(node, name, mount.path)
        assert len(os.listdir(mount.path / "cold")) == 90
        relay.hush(0)
        readers = [Reader(mount.path / f"cold/{i}") for i in range(90)]
        try:
            harness.wait_until(lambda: relay.held() > 0, BOUND, "the origin is asked")
            time.sleep(2)
            pid = mount.serving()
            os.kill(pid, signal.SIGKILL)
            harness.wait_until(lambda: mount.serving() not in (pid, None), BOUND, "another process")
            assert is_read_beside(mount.path)
            assert all(one.got is None for one in readers)
        finally:
            relay.speak()
        for i, one in enumerate(readers):
            one.join(2 * BOUND)
            assert one.got == body_of(i), (i, one.got)
