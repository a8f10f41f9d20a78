"""The node as a process: start, lock, stop, signals, options; and what it does to clients that are slow, idle, many or
broken. Raw sockets, because proper clients do not behave like that."""

import json
import os
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import harness

GET = b"GET /-/health HTTP/1.1\r\nHost: test\r\n\r\n"


def dial(node, timeout=200):
    host, port = node.endpoint.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout)


def read_answer(connection):
    """(status, headers, body) of one answer with a Content-Length; None when the connection ended before it."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    while len(body) < int(headers.get("content-length", 0)):
        part = connection.recv(65536)
        if not part:
            return None
        body += part
    return int(lines[0].split()[1]), headers, body


def health(node):
    with urllib.request.urlopen(node.endpoint + "/-/health", timeout=200) as reply:
        return json.load(reply)


def resident(pid):
    """Anonymous and shared memory of a process in bytes."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def serve(*arguments, **env):
    return subprocess.run([str(harness.forebay_bin()), "serve", *map(str, arguments)], env={**os.environ, **env},
                          capture_output=True, text=True, timeout=200)


# ---- start and stop ----


def test_first_start_makes_private_credentials_that_stay(new_node):
    node = new_node()
    before = node.credentials
    assert [len(key) for key in before] == [20, 40]
    assert (node.data / "credentials").stat().st_mode & 0o777 == 0o600
    assert node.data.stat().st_mode & 0o777 == 0o700
    identity = health(node)["node"]
    node.restart()
    assert node.credentials == before
    assert health(node)["node"] == identity


def status(node):
    return json.loads(node.cli("status", "--json").stdout)


def test_metrics_of_a_removed_bucket_end(node, origin):
    """Of both kinds of buckets; one that is made under the same name begins anew."""
    s3, scratch, mirror = node.s3(), harness.random_name("scratch"), node.new_bucket(origin)

    def shown(name):
        return [metric for metric, labels in node.metrics() if name in dict(labels).values()]

    for name in scratch, mirror:
        if name == scratch:
            s3.create_bucket(Bucket=name)
        s3.put_object(Bucket=name, Key="k", Body=b"12345")
        assert node.metric("forebay_written_bytes_total", bucket=name, via="s3") == 5 and shown(name)
        s3.delete_object(Bucket=name, Key="k")
        with node.wire() as connection:
            connection.bucket_remove(name)
        harness.wait_until(lambda: not shown(name), 100, "nothing is said of it")
    s3.create_bucket(Bucket=scratch)
    s3.put_object(Bucket=scratch, Key="k", Body=b"123")
    assert node.metric("forebay_written_bytes_total", bucket=scratch, via="s3") == 3


def spoilt(directory, word):
    """A directory in which the loader finds, in place of the library with `word` in its name, files that are none."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in cache.splitlines() if word in line}
    assert names, f"no {word} on this machine"
    directory.mkdir()
    for name in names:
        (directory / name).touch()
    return {"LD_LIBRARY_PATH": str(directory)}


def test_commands_load_nothing_that_only_a_node_needs():
    """RocksDB and libcurl, with what they bring, are loaded by those who call them and not with the program."""
    done = subprocess.run([str(harness.forebay_bin()), "--version"], env={**os.environ, "LD_DEBUG": "files"}, capture_output=True,
                          text=True, timeout=200)
    assert done.returncode == 0 and "libcrypto.so" in done.stderr, "the loader does not say what it loads"
    assert "librocksdb" not in done.stderr and "libcurl" not in done.stderr


def test_a_library_that_is_missing_is_named(new_node, tmp_path):
    """A node does not start without RocksDB; without libcurl it does, and those are told that need it, one line each."""
    done = serve("--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--wire", "127.0.0.1:0", **spoilt(tmp_path / "a", "librocksdb.so"))
    assert done.returncode == 1 and "librocksdb.so" in done.stderr.splitlines()[-1], done.stderr
    node = new_node(env=spoilt(tmp_path / "b", "libcurl.so"))
    made = node.cli("bucket", "create", "far", "--origin", "s3://far", "--set", "origin.endpoint=http://127.0.0.1:9", check=False)
    assert made.returncode == 1 and "libcurl.so" in made.stderr and len(made.stderr.splitlines()) == 1, made.stderr
    harness.scratch_bucket(node)
    assert health(node)["status"] == "ok"


def test_several_disks_are_used_evenly(new_node, origin, tmp_path):
    """Each --disk gets its share, its size is its limit, and all is found again after a restart."""
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    node = new_node(disk=[f"{path}:64MiB" for path in paths])
    name, bodies = node.new_bucket(origin), {f"k{i}": b"%d" % i for i in range(60)}
    for key, body in bodies.items():
        node.s3().put_object(Bucket=name, Key=key, Body=body)
    disks = status(node)["disks"]
    assert [d["path"] for d in disks] == paths and [d["limit_bytes"] for d in disks] == [64 << 20] * 2
    assert min(d["extents"] for d in disks) >= 10 and sum(d["extents"] for d in disks) == len(bodies)
    node.restart()
    for key, body in bodies.items():
        assert node.s3().get_object(Bucket=name, Key=key)["Body"].read() == body
    assert node.metric("forebay_origin_read_bytes_total", bucket=name) == 0


def test_a_stop_is_marked_clean_and_a_kill_is_not(new_node):
    """The next start knows how the node ended, says so, and lets the state tell it."""
    node = new_node()
    node.restart()
    assert [d["was_clean"] for d in status(node)["disks"]] == [True]
    assert "was not stopped cleanly" not in node.log()
    node.kill()
    node.start()
    assert [d["was_clean"] for d in status(node)["disks"]] == [False]
    assert "was not stopped cleanly" in node.log()


def test_a_node_prints_one_line(tmp_path):
    """Standard output is the line with its addresses and nothing else, from start to stop; the log goes elsewhere."""
    node = subprocess.Popen([str(harness.forebay_bin()), "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0",
                             "--wire", "127.0.0.1:0", "--reserve", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = node.stdout.readline()
        node.terminate()
        rest, log = node.communicate(timeout=harness.STOP_SECONDS)
    finally:
        node.kill()
        node.wait()
    assert "ready: s3 http://127.0.0.1:" in line and line.endswith("\n") and rest == "" and "stopping" in log


def test_a_node_without_standard_output_ends_well(tmp_path):
    """A node whose output is closed, or goes to a full disk, works as any other, and its clean stop is one."""
    for i, where in enumerate((">&-", ">/dev/full")):
        data = tmp_path / str(i)
        node = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {where}', harness.forebay_bin(), "serve", "--data", data, "--listen",
                                 "127.0.0.1:0", "--wire", "127.0.0.1:0", "--reserve", "0"], stderr=subprocess.PIPE, text=True)
        try:
            def answers():
                return subprocess.run([harness.forebay_bin(), "status", "--data", data], capture_output=True).returncode == 0

            harness.wait_until(answers, harness.READY_SECONDS, "the node answers")
            node.terminate()
            _, log = node.communicate(timeout=harness.STOP_SECONDS)
        finally:
            node.kill()
            node.wait()
        assert node.returncode == 0 and "ready: s3 " in log, log


def test_a_second_node_on_the_directory_is_refused_and_told_by_whom(new_node):
    node = new_node()
    second = serve("--data", node.data, "--listen", "127.0.0.1:0", "--wire", "127.0.0.1:0")
    assert second.returncode == 1
    # setpriv became the node: the pid is the same
    assert second.stderr.startswith("forebay serve: --data: ") and f"process {node.pid} (" in second.stderr
    assert second.stderr.count("\n") == 1
    assert health(node)["status"] == "ok"


def test_a_killed_node_leaves_no_lock_and_no_socket_in_the_way(new_node):
    node = new_node()
    node.kill()
    assert node.socket_path and os.path.exists(node.socket_path)
    node.start()
    assert health(node)["status"] == "ok"


@pytest.mark.parametrize("arguments, words", [
    (["--data", "{tmp}", "--memory", "64K"], "--memory 64K: below the minimum of 64MiB"),
    (["--data", "{tmp}", "--nonsense"], "--nonsense"),
    (["--data", "{tmp}", "--threads", "1"], "--threads 1"),
    (["--data", "{tmp}", "--listen", "nowhere"], "--listen"),
    (["--data", "{tmp}", "--dirty-max", "0"], "--dirty-max 0: below the minimum of 1"),
    (["--data", "{tmp}", "--dirty-max", "96"], "--dirty-max 96: above the maximum of 95"),
    (["--data", "{tmp}", "--dirty-max", "60%"], "--dirty-max 60%: not a whole number"),
    ([], "--data"),
])
def test_bad_options_are_named_in_one_line(tmp_path, arguments, words):
    done = serve(*[a.replace("{tmp}", str(tmp_path / "d")) for a in arguments])
    assert done.returncode == 2
    assert done.stderr.startswith("forebay serve: ") and words in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_a_taken_port_is_named(new_node, tmp_path):
    node = new_node()
    taken = node.endpoint.removeprefix("http://")
    done = serve("--data", tmp_path / "d", "--listen", taken, "--wire", "127.0.0.1:0")
    assert done.returncode == 1
    assert taken in done.stderr.splitlines()[-1] and "in use" in done.stderr


def test_stop_lets_a_running_request_end(new_node, origin, new_shaper):
    shaper = new_shaper()
    node = new_node()
    name = node.new_bucket(origin, endpoint=shaper.endpoint)
    body = harness.random_bytes(100000)
    origin.s3().put_object(Bucket=name, Key="k", Body=body)
    url = node.s3(signature_version="s3v4").generate_presigned_url("get_object", Params={"Bucket": name, "Key": "k"})
    host, port = node.endpoint.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=200) as busy, dial(node) as idle:
        shaper.fault("stall", match=f"GET /{name}/k", at=0)
        busy.sendall(f"GET {url.removeprefix(node.endpoint)} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        harness.wait_until(lambda: shaper.stats()["in_flight"] > 0, what="the origin is asked")
        node.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""  # at once; the other one is served
        shaper.release()
        status, _, got = read_answer(busy)
        assert (status, got) == (200, body)
    assert node.process.wait(harness.STOP_SECONDS) == 0  # a second signal would cut it short


def test_a_second_signal_ends_it_at_once(work):
    node = harness.Node(work / "second-signal", drain_timeout="1h")
    with dial(node) as waits:
        waits.sendall(b"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nAuthorization: x\r\n\r\n")
        waits.sendall(b"GET /-/hea")  # keeps the drain busy in one way or the other
        node.process.send_signal(signal.SIGTERM)
        harness.wait_until(lambda: "stopping" in node.log(), what="the first one is heeded")
        node.process.send_signal(signal.SIGTERM)
        node.process.wait(200)
    node.kill()


def test_a_reload_while_it_stops_is_no_matter(new_node):
    """SIGHUP after SIGTERM: what runs ends as it would have, and the node with status 0."""
    node = new_node(drain_timeout="1h", request_timeout="1h")
    with node.wire() as connection:
        connection.bucket_create("kept", {})
    url = node.s3(signature_version="s3v4").generate_presigned_url("put_object", Params={"Bucket": "kept", "Key": "k"})
    with dial(node) as busy:
        path = url.removeprefix(node.endpoint)
        host = node.endpoint.removeprefix("http://")
        busy.sendall(f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\nhe".encode())
        # The one that asks for the metrics is active, too.
        harness.wait_until(lambda: node.metric("forebay_connections_active", via="http") >= 2, what="the PUT runs")
        node.process.send_signal(signal.SIGTERM)
        harness.wait_until(lambda: "SIGTERM: stopping" in node.log(), what="it stops")
        node.process.send_signal(signal.SIGHUP)
        busy.sendall(b"llo")
        assert read_answer(busy)[0] == 200
    assert node.process.wait(harness.STOP_SECONDS) == 0


# ---- clients that are slow, idle, many or broken ----


def test_slow_senders_hold_nobody_up_and_are_told(new_node):
    node = new_node(threads="4", request_timeout="15s")
    slow = [dial(node) for _ in range(100)]
    for i, connection in enumerate(slow):
        connection.sendall(GET[: 1 + i % (len(GET) - 2)])
    began = time.monotonic()
    for _ in range(20):
        assert health(node)["status"] == "ok"
    with dial(node) as quick:
        quick.sendall(GET)
        assert read_answer(quick)[0] == 200
    assert time.monotonic() - began < 200  # it were 25 times the timeout
    for connection in slow:
        answer = read_answer(connection)
        assert answer is not None and answer[0] == 408
        assert connection.recv(1) == b""
        connection.close()
    assert node.metric("forebay_refused_total", reason="timeout") == 100


def test_answers_that_nobody_takes_hold_nobody_up(new_node):
    """Clients that ask for page after page and read nothing, one for each thread and more: others are served."""
    node = new_node(threads="4", request_timeout="1h")
    with node.wire() as connection:
        connection.bucket_create("kept", {})
    ask = b"GET /-/metrics HTTP/1.1\r\nHost: test\r\n\r\n" * 400
    greedy = []
    for _ in range(12):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = node.endpoint.removeprefix("http://").rsplit(":", 1)
        connection.connect((host, int(port)))
        connection.sendall(ask)
        greedy.append(connection)
    s3 = node.s3()
    for i in range(20):
        s3.put_object(Bucket="kept", Key=f"k{i}", Body=b"x" * 1000)
        assert s3.get_object(Bucket="kept", Key=f"k{i}")["Body"].read() == b"x" * 1000
    for connection in greedy:
        connection.close()


def test_pipelined_requests_are_answered_in_order(new_node):
    node = new_node(threads="4")
    with dial(node) as connection:
        paths = ["/-/health" if i % 3 else f"/-/missing{i}" for i in range(200)]
        connection.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in paths))
        stream = connection.makefile("rb")
        for path in paths:
            status = int(stream.readline().split()[1])
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split()[1])
            stream.read(length)
            assert status == (200 if path == "/-/health" else 404)


@pytest.mark.parametrize("request_bytes, status", [
    (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    (b"GET /" + b"x" * 40000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    (b"GET / HTTP/7.0\r\n\r\n", 505),
    (b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),  # somebody speaks TLS
])
def test_oversized_and_broken_heads_are_refused(new_node, request_bytes, status):
    node = new_node()
    with dial(node) as connection:
        connection.sendall(request_bytes)
        assert read_answer(connection)[0] == status
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass  # what was left unread
    assert health(node)["status"] == "ok"


def test_connections_beyond_the_maximum_are_refused_and_then_welcome(new_node):
    """With 503 and when to come again. (Seen to fail without Retry-After in front.c.)"""
    node = new_node(max_connections="20")
    held = [dial(node) for _ in range(20)]
    for connection in held:
        connection.sendall(GET)
        assert read_answer(connection)[0] == 200
    with dial(node) as one_more:
        status, headers, body = read_answer(one_more)
    assert (status, headers["retry-after"], body) == (503, "1", b"too many connections\n")
    for connection in held:
        connection.close()
    harness.wait_until(lambda: _connects(node), what="a place becomes free")
    assert node.metric("forebay_refused_total", reason="connections") >= 1


def _connects(node):
    with dial(node) as connection:
        connection.sendall(GET)
        answer = read_answer(connection)
        return answer is not None and answer[0] == 200


def test_ten_thousand_idle_connections_cost_little(work):
    """Prints what they cost. In user space a connection is a small struct; the rest is the kernel's."""
    wanted = 10000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted + 2000:
        pytest.skip(f"needs {wanted + 2000} open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = []
    try:
        with harness.Node(work / "idle", binary=harness.forebay_release_bin()) as node:
            for _ in range(100):  # buffers of the threads are there before the measurement
                health(node)
            before = resident(node.pid)
            for _ in range(wanted):
                connection = dial(node)
                connection.sendall(GET)
                held.append(connection)
                if len(held) % 500 == 0:
                    for one in held[-500:]:
                        assert read_answer(one)[0] == 200
            after = resident(node.pid)
            assert node.metric("forebay_connections", via="http") >= wanted
            print(f"\n{wanted} idle connections: {(after - before) / wanted:.0f} bytes each "
                  f"({before / 2**20:.1f} MiB before, {after / 2**20:.1f} MiB with them)")
            assert (after - before) / wanted < 1024
            for connection in held[::100]:  # they are alive
                connection.sendall(GET)
                assert read_answer(connection)[0] == 200
    finally:
        for connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- what the node says of itself ----


def test_metrics_need_no_signature_and_name_what_is_promised(node, origin):
    name = node.new_bucket(origin)
    node.s3().put_object(Bucket=name, Key="k", Body=b"12345")
    node.s3().get_object(Bucket=name, Key="k")["Body"].read()
    names = {name for name, _ in node.metrics()}
    assert {"forebay_origin_requests_total", "forebay_read_bytes_total", "forebay_disk_used_bytes",
            "forebay_resident_bytes", "forebay_connections", "forebay_request_seconds_bucket", "forebay_info"} <= names
    assert node.metric("forebay_resident_bytes", kind="anon") > 2**20
    before = node.metric("forebay_disk_used_bytes")
    node.s3().put_object(Bucket=name, Key="large", Body=b"x" * (3 << 20))
    harness.wait_until(lambda: node.metric("forebay_disk_used_bytes") >= before + (3 << 20), what="the disk's bytes are counted")
    harness.wait_until(lambda: node.metric("forebay_disk_used_bytes") == status(node)["disks"][0]["used_bytes"], what="the same number")
    secret = node.credentials[1]
    with urllib.request.urlopen(node.endpoint + "/-/metrics", timeout=200) as reply:
        assert secret not in reply.read().decode()


def test_the_status_page_wants_a_signature(node):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(node.endpoint + "/-/api/v1/status", timeout=200)
    assert error.value.code == 403
    request = urllib.request.Request(node.endpoint + "/-/health", method="POST", data=b"")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=200)
    assert error.value.code == 405


def test_the_status_page_tells_the_nodes_state(node):
    import botocore.auth
    import botocore.awsrequest
    import botocore.credentials
    url = node.endpoint + "/-/api/v1/status"
    signed = botocore.awsrequest.AWSRequest(method="GET", url=url)
    botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(*node.credentials), "s3",
                              harness.REGION).add_auth(signed)
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(signed.headers)), timeout=200) as reply:
        status = json.load(reply)
    assert status["node"] == health(node)["node"]
    assert status["disks"] and status["connections"] >= 1 and status["resident_bytes"] > 0


def test_help_names_every_option():
    done = serve("--help")
    assert done.returncode == 0 and done.stderr == ""
    for name in ("--data", "--disk", "--listen", "--wire", "--memory", "--config"):
        assert name in done.stdout


# ---- options that change while the node runs ----


def hang_up(node, says):
    """SIGHUP, until the node has logged this once more; gives what it logged since."""
    before = node.log()
    os.kill(node.pid, signal.SIGHUP)
    harness.wait_until(lambda: says in node.log()[len(before):], what=says)
    return node.log()[len(before):]


def test_sighup_reads_the_options_again(new_node, tmp_path):
    """What may change does so at once, the rest is named and stays; a wrong file changes nothing."""
    path = tmp_path / "f.yaml"
    path.write_text("idle-timeout: 1h\nmemory: 128MiB\n")
    node = new_node(config=path)
    quiet = dial(node)
    assert health(node)["status"] == "ok"  # who comes later is let in later: that one has its deadline
    hang_up(node, "the options are the same")
    path.write_text("idle-timeout: 1s\nmemory: 256MiB\n")
    logged = hang_up(node, "idle-timeout: 1s, was 1h")
    assert "memory: stays as it was" in logged  # in their order in the log
    hang_up(node, "memory: stays as it was")  # what the signal before has brought holds by now, which is told before it does
    impatient = dial(node)
    impatient.settimeout(100)
    assert impatient.recv(1) == b"", "closed after the new idle timeout"
    quiet.sendall(GET)
    assert read_answer(quiet)[0] == 200, "deadlines that ran already stay"
    path.write_text("idle-timeout: never\n")
    assert "idle-timeout" in hang_up(node, "nothing changed")
    path.unlink()
    hang_up(node, "nothing changed")
    assert health(node)["status"] == "ok"


def test_sighup_changes_the_log_level(new_node, tmp_path):
    """A node can be made to log more while something goes wrong; flags still win over the file."""
    path = tmp_path / "f.yaml"
    path.write_text("log-level: info\nregion: from-file\n")
    node = new_node(config=path, region=harness.REGION)
    path.write_text("log-level: debug\nregion: elsewhere\n")
    logged = hang_up(node, "log-level: debug, was info")
    assert "region" not in logged
    # It is told before it holds.
    harness.wait_until(lambda: node.cli("bucket", "ls") and " debug " in node.log(), what="lines of the new level")


def test_a_limit_of_the_size_of_files_ends_no_node(new_node):
    """`ulimit -f`: what would be larger is refused in words, the rest goes on. (Without SIGXFSZ ignored in main the node is killed.)"""
    node, bucket, body = new_node(), harness.random_name(), harness.random_bytes(3 << 20)
    node.cli("bucket", "create", bucket)
    node.cli("put", "-q", "-", f"{bucket}/before", stdin=body)
    before = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    refused = node.cli("put", "-q", "-", f"{bucket}/k", stdin=body, check=False)
    assert refused.returncode == 1 and b"File too large" in refused.stderr
    assert node.cli("cat", f"{bucket}/before", stdin=b"").stdout == body
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, before)
    node.cli("put", "-q", "-", f"{bucket}/k", stdin=body)
    assert node.cli("cat", f"{bucket}/k", stdin=b"").stdout == body


@pytest.mark.parametrize("limit", [4, 9, 16])
def test_a_node_without_threads_is_refused_in_words(tmp_path, limit):
    """`ulimit -u` or a cgroup's pids.max. (Without take_threads in kv_rocksdb.c it ends by an abort.)"""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    user = 70000 + os.getpid()  # whose other processes would count
    os.chown(tmp_path, user, user)
    done = subprocess.run(["prlimit", f"--nproc={limit}", "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", harness.forebay_bin(), "serve",
                           "--data", ".", "--listen", "127.0.0.1:0", "--wire", "127.0.0.1:0"], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}, timeout=60, check=False)
    assert done.returncode == 1 and "threads can be made (ulimit -u, pids.max)" in done.stderr, done.stderr
