"""bench/shaper in front of a small recording server and of a real S3 server: bytes unchanged, counts exact, rates as
asked, faults as described. Rates are what this tool is for, so they are checked here: never faster than asked, and in
one of several attempts within 5 % of it (a loaded machine may slow an attempt down)."""

import contextlib
import functools
import hashlib
import http.client
import io
import json
import os
import pathlib
import signal
import socket
import socketserver
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPER = pathlib.Path(os.environ.get("FOREBAY_BUILD", ROOT / "build")) / "bench" / "shaper"
VERSITYGW = ROOT / ".deps" / "bin" / "versitygw"
MB = 1000 * 1000


@functools.lru_cache(maxsize=8)
def pattern(n):
    """n bytes that differ from place to place."""
    block = hashlib.sha256(b"shaper").digest() * 2048  # 64 KiB
    return (block * (n // len(block) + 1))[:n]


class Upstream:
    """An HTTP/1.1 server over raw sockets that records what it was sent, byte for byte.

    GET /b/N[...] answers N bytes of `pattern` (206 with Range). Paths with a meaning of their own: /b/chunked,
    /b/until-close, /b/last (closes soon after the answer), /b/deny (403 before the body is read), /b/silent (never answers), /b/hangup (closes without an
    answer). PUT stores nothing but records the body; DELETE answers 204; HEAD as GET without the body."""

    def __init__(self):
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                outer.serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 512

        self.heads, self.bodies = [], []
        self.connections = 0
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def serve(self, sock):
        with self.lock:
            self.connections += 1
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = sock.makefile("rb")
        with contextlib.suppress(OSError):
            while self.serve_one(sock, stream):
                pass
        self.ended.set()

    def serve_one(self, sock, stream):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            if not line:
                return False
            head += line
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        with self.lock:
            self.heads.append(head)
        if target == "/b/deny":
            sock.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\ndeny")
            stream.read(1 << 30)
            return False
        if fields.get("expect") == "100-continue":
            sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.read_body(stream, fields)
        with self.lock:
            self.bodies.append(body)
        return self.answer(sock, stream, method, target, fields)

    @staticmethod
    def read_body(stream, fields):
        if "chunked" in fields.get("transfer-encoding", ""):
            body = b""
            while size := int(stream.readline().split(b";")[0], 16):
                body += stream.read(size)
                stream.readline()
            while stream.readline() != b"\r\n":
                pass
            return body
        return stream.read(int(fields.get("content-length", 0)))

    def answer(self, sock, stream, method, target, fields):
        if target == "/b/silent":
            stream.read(1)
            return False
        if target == "/b/hangup":
            return False
        if target == "/b/last":
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            time.sleep(0.1)
            return False
        if target == "/b/chunked":
            sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in (b"5;ext=1\r\nhello\r\n", b"1", b"0\r\n" + b"x" * 16 + b"\r\n0\r\nTrailer: t\r\n", b"\r\n"):
                sock.sendall(part)
                time.sleep(0.01)
            return True
        if target == "/b/until-close":
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + pattern(300000))
            return False
        if method in ("PUT", "POST", "DELETE"):
            status = b"204 No Content\r\n\r\n" if method == "DELETE" else b"200 OK\r\nContent-Length: 0\r\n\r\n"
            sock.sendall(b"HTTP/1.1 " + status)
            return True
        digits = target.split("?")[0].rsplit("/", 1)[-1]
        data = pattern(int(digits)) if digits.isdigit() else b"<List/>"
        status = "200 OK"
        if "range" in fields:
            first, last = fields["range"][len("bytes=") :].split("-")
            data, status = data[int(first) : int(last) + 1], "206 Partial Content"
        sock.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nETag: \"e\"\r\n\r\n".encode())
        if method != "HEAD":
            sock.sendall(data)
        return True


class Shaper:
    def __init__(self, upstream_port, *options):
        command = [SHAPER, "--listen", "127.0.0.1:0", "--upstream", f"127.0.0.1:{upstream_port}", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("shaper: listening on 127.0.0.1:"), line
        self.port = int(line.rsplit(":", 1)[1])

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=20)
        self.process.stdout.close()
        return status

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def request(self, method, target, body=None, headers=None, connection=None):
        """Status, headers and body of one request, over a connection of its own unless one is given."""
        own = connection or self.connect()
        try:
            own.request(method, target, body=body, headers=headers or {})
            response = own.getresponse()
            return response.status, response.headers, response.read()
        finally:
            if connection is None:
                own.close()

    def control(self, method, name):
        status, _, body = self.request(method, "/-/shaper/" + name)
        return status, json.loads(body)

    def stats(self):
        return self.control("GET", "stats")[1]

    def fault(self, query):
        status, body = self.control("POST", "fault?" + query)
        assert status == 200, body


@pytest.fixture
def upstream():
    server = Upstream()
    yield server
    server.close()


@pytest.fixture
def start(upstream):
    """A function that starts shapers in front of `upstream`; all are stopped at the end."""
    running = []

    def start_one(*options):
        running.append(Shaper(upstream.port, *options))
        return running[-1]

    yield start_one
    for shaper in running:
        assert shaper.stop() == 0


def settled(read, expected, seconds=10):
    """Waits until read() gives what is expected; gives the last value."""
    until = time.monotonic() + seconds
    while (value := read()) != expected and time.monotonic() < until:
        time.sleep(0.02)
    return value


def raw_exchange(port, request, n):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(request)
        data = b""
        while len(data) < n and (part := s.recv(65536)):
            data += part
        return data


# ---- passing through ----


def test_heads_pass_unchanged(upstream, start):
    """Every byte of a head arrives as sent, Host with the client's own value above all, and unusual spacing too."""
    shaper = start()
    head = b"GET /b/3?x=%20y&z HTTP/1.1\r\nhOST: bucket.example:1234\r\nX-Odd:   a  b \r\nAuthorization: AWS4 q=1,w\r\n\r\n"
    answer = raw_exchange(shaper.port, head, 52)
    assert upstream.heads == [head]
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\n" + pattern(3))


def test_each_client_connection_has_one_upstream_connection(upstream, start):
    """Keep-alive holds on both sides, and connections are not shared between clients."""
    shaper = start()
    first, second = shaper.connect(), shaper.connect()
    for _ in range(10):
        assert shaper.request("GET", "/b/100", connection=first)[2] == pattern(100)
    assert upstream.connections == 1
    assert shaper.request("GET", "/b/100", connection=second)[0] == 200
    assert upstream.connections == 2
    first.close()
    second.close()
    assert settled(lambda: shaper.stats()["connections"], 1) == 1  # the one that asks


@pytest.mark.parametrize("size", [0, 1, 1000, 65535, 65536, 65537, 5 * MB, 40 * MB])
def test_bodies_pass_unchanged(upstream, start, size):
    """Both ways, at sizes on both sides of the step from buffers to splice."""
    shaper = start()
    connection = shaper.connect()
    for _ in range(2):
        assert shaper.request("GET", f"/b/{size}", connection=connection)[2] == pattern(size)
        assert shaper.request("PUT", "/b/key", body=pattern(size), connection=connection)[0] == 200
        assert upstream.bodies[-1] == pattern(size)
    connection.close()


def test_other_framings_pass(upstream, start):
    """Chunked bodies in both directions with extensions and trailers, bodies that end with the connection, bodies of
    HEAD, and answers without any."""
    shaper = start()
    connection = shaper.connect()
    assert shaper.request("GET", "/b/chunked", connection=connection)[2] == b"hello" + b"x" * 16
    body = (part for part in (b"a" * 10, pattern(200000), b"z"))
    assert shaper.request("PUT", "/b/key", body=body, connection=connection)[0] == 200
    assert upstream.bodies[-1] == b"a" * 10 + pattern(200000) + b"z"
    status, headers, data = shaper.request("HEAD", "/b/5000", connection=connection)
    assert (status, headers["Content-Length"], data) == (200, "5000", b"")
    assert shaper.request("DELETE", "/b/key", connection=connection)[0] == 204
    assert shaper.request("GET", "/b/7", connection=connection)[2] == pattern(7)
    assert upstream.connections == 1
    assert shaper.request("GET", "/b/until-close", connection=connection)[2] == pattern(300000)
    connection.close()


def test_expect_continue_and_early_answers(upstream, start):
    """The client waits for 100 Continue and gets it; an answer that comes before the body is passed on at once, and
    ends the connection, because nobody can tell any more where the next request would begin."""
    shaper = start()
    head = b"PUT /b/k HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    with socket.create_connection(("127.0.0.1", shaper.port), timeout=20) as s:
        s.sendall(head)
        assert s.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"12345")
        assert s.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert upstream.bodies == [b"12345"]
    with socket.create_connection(("127.0.0.1", shaper.port), timeout=20) as s:
        s.sendall(b"PUT /b/deny HTTP/1.1\r\nHost: h\r\nContent-Length: 5000000\r\n\r\nsome")
        stream = s.makefile("rb")
        assert stream.readline() == b"HTTP/1.1 403 Forbidden\r\n"
        assert stream.read().endswith(b"deny")


def test_ends_of_connections_are_passed_on(upstream, start):
    """A client that hangs up has its upstream connection closed; an upstream that closes or refuses has the client's."""
    shaper = start()
    with socket.create_connection(("127.0.0.1", shaper.port), timeout=20) as s:
        s.sendall(b"GET /b/silent HTTP/1.1\r\nHost: h\r\n\r\n")
        assert settled(lambda: len(upstream.heads), 1) == 1
        assert shaper.stats()["in_flight"] == 1
    assert upstream.ended.wait(20)
    assert settled(lambda: shaper.stats()["in_flight"], 0) == 0
    assert raw_exchange(shaper.port, b"GET /b/hangup HTTP/1.1\r\nHost: h\r\n\r\n", 1) == b""
    assert shaper.stats()["kinds"]["get"]["cut"] == 2
    assert raw_exchange(shaper.port, b"GET /b/last HTTP/1.1\r\nHost: h\r\n\r\n", 10**6).endswith(b"\r\n\r\n")
    closed = Shaper(unused_port())
    try:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            closed.request("GET", "/b/1")
    finally:
        assert closed.stop() == 0


def unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /b/1 HTTP/2.0\r\n\r\n", 400),
        (b"PUT /b/1 HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"PUT /b/1 HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"PUT /b/1 HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /b/1 HTTP/1.1\r\nX: " + b"y" * 70000 + b"\r\n\r\n", 431),
    ],
)
def test_broken_requests_are_refused(upstream, start, request_bytes, status):
    """They are answered by the proxy and never reach the server."""
    shaper = start()
    assert raw_exchange(shaper.port, request_bytes, 12).startswith(b"HTTP/1.1 %d " % status)
    assert upstream.heads == []


# ---- counting ----


def test_requests_and_bytes_are_counted_by_verb_and_kind(upstream, start):
    """Each operation in its row, body bytes exact; reset empties all rows."""
    shaper = start()
    for method, target, headers, body in [
        ("GET", "/b/1000", {}, None),
        ("GET", "/b/dir/key/2000", {}, None),
        ("GET", "/b/1000", {"Range": "bytes=10-19"}, None),
        ("HEAD", "/b/1000", {}, None),
        ("GET", "/b?list-type=2&prefix=1", {}, None),
        ("GET", "/b/", {}, None),
        ("GET", "/", {}, None),
        ("GET", "/b?location", {}, None),
        ("PUT", "/b/k", {}, b"12345"),
        ("POST", "/b?delete", {}, b"<Delete/>"),
        ("DELETE", "/b/k", {}, None),
    ]:
        assert shaper.request(method, target, body, headers)[0] in (200, 204, 206)
    stats = shaper.stats()
    kinds = {k: (v["requests"], v["request_bytes"], v["response_bytes"]) for k, v in stats["kinds"].items()}
    listed = len(b"<List/>")
    assert kinds == {
        "get": (2, 0, 3000),
        "get_range": (1, 0, 10),
        "head": (1, 0, 0),
        "list": (3, 0, 3 * listed),
        "put": (1, 5, 0),
        "post": (1, len(b"<Delete/>"), 0),
        "delete": (1, 0, 0),
        "other": (1, 0, listed),
    }
    assert stats["verbs"]["GET"]["requests"] == 7 and stats["verbs"]["GET"]["response_bytes"] == 3010 + 4 * listed
    assert stats["requests"] == 11 and stats["request_bytes"] == 5 + len(b"<Delete/>")
    assert stats["verbs"]["DELETE"]["2xx"] == 1 and stats["in_flight"] == 0 and stats["max_in_flight"] == 1
    assert shaper.control("POST", "reset")[0] == 200
    stats = shaper.stats()
    assert stats["requests"] == 0 and stats["response_bytes"] == 0
    assert all(row["requests"] == 0 for row in stats["kinds"].values())


def test_systems_in_turn_are_counted_apart(upstream, start):
    """Requests belong to the system named when they began; those before the first name to none; sums hold all, and ranges are
    kept by number, bytes, smallest and largest."""
    shaper = start()
    shaper.request("GET", "/b/100")
    for name, ranges in (("one", ["bytes=0-9", "bytes=0-99", "bytes=5-"]), ("two", ["bytes=0-999"])):
        assert shaper.control("POST", f"set?system={name}")[0] == 200
        for header in ranges:
            if header != "bytes=5-":
                shaper.request("GET", "/b/1000", headers={"Range": header})
    shaper.request("PUT", "/b/k", body=b"12345")
    shaper.control("POST", "set?system=one")
    shaper.request("GET", "/b/7")
    stats = shaper.stats()
    systems = stats["systems"]
    assert {name: (row["requests"], row["response_bytes"]) for name, row in systems.items()} == {
        "": (1, 100), "one": (3, 117), "two": (2, 1000)}
    assert systems["one"]["ranges"] == {"requests": 2, "bytes": 110, "smallest": 10, "largest": 100}
    assert systems["two"]["verbs"]["PUT"]["request_bytes"] == 5 and systems["one"]["kinds"]["get_range"]["2xx"] == 2
    assert stats["requests"] == 6 and stats["ranges"]["bytes"] == 1110
    assert shaper.control("POST", "reset")[0] == 200
    assert all(row["requests"] == 0 and row["ranges"]["requests"] == 0 for row in shaper.stats()["systems"].values())
    assert shaper.control("POST", "set?system=a%20b")[0] == 400


def test_three_hundred_connections_at_once(upstream, start):
    """All are served side by side: with half a second to the first byte they are in flight together."""
    shaper = start("--first-byte", "500ms")
    failures = []

    def one():
        try:
            assert shaper.request("GET", "/b/1000")[2] == pattern(1000)
        except Exception as e:  # noqa: BLE001 - told below
            failures.append(e)

    threads = [threading.Thread(target=one) for _ in range(300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    stats = shaper.stats()
    assert stats["kinds"]["get"]["requests"] == 300 and stats["kinds"]["get"]["response_bytes"] == 300000
    assert 100 < stats["max_in_flight"] <= 300 and stats["max_connections"] <= 301


def test_counters_are_written_at_the_end(upstream, tmp_path):
    """--stats FILE holds the same JSON after SIGTERM."""
    path = tmp_path / "stats.json"
    shaper = Shaper(upstream.port, "--stats", str(path))
    shaper.request("GET", "/b/123")
    assert shaper.stop() == 0
    assert json.loads(path.read_text())["kinds"]["get"]["response_bytes"] == 123


# ---- shaping ----


def transfer(shaper, workers, size, upload=False):
    """MB/s of `workers` connections that each move `size` bytes at once, from the first to the last byte."""
    connections = [shaper.connect() for _ in range(workers)]
    for connection in connections:
        shaper.request("GET", "/b/1", connection=connection)
    results = []

    def one(connection):
        if upload:
            results.append(shaper.request("PUT", "/b/k", body=pattern(size), connection=connection)[0] == 200)
        else:
            results.append(len(shaper.request("GET", f"/b/{size}", connection=connection)[2]) == size)

    threads = [threading.Thread(target=one, args=(c,)) for c in connections]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    for connection in connections:
        connection.close()
    assert results == [True] * workers
    return workers * size / seconds / MB


def assert_rate(measure, asked):
    """measure() gives MB/s: never above 1.05 of what was asked, and at least 0.95 of it in one of the attempts."""
    rates = []
    for _ in range(5):
        rates.append(measure())
        assert rates[-1] <= asked * 1.05, rates
        if rates[-1] >= asked * 0.95:
            return
    raise AssertionError(f"asked for {asked} MB/s, got {rates}")


@pytest.mark.parametrize("upload", [False, True])
def test_the_rate_of_one_connection(upstream, start, upload):
    shaper = start("--per-connection", "20MB/s", "--total", "300MB/s")
    assert_rate(lambda: transfer(shaper, 1, 20 * MB, upload), 20)


@pytest.mark.parametrize("upload", [False, True])
def test_the_rate_of_all_connections(upstream, start, upload):
    """Eight connections of 20 MB/s each share 60 MB/s; a setting changed at run time holds at once."""
    shaper = start("--per-connection", "20MB/s", "--total", "60MB/s")
    assert_rate(lambda: transfer(shaper, 8, 8 * MB, upload), 60)
    assert shaper.control("POST", "set?total=30MB/s&per-connection=0")[0] == 200
    assert_rate(lambda: transfer(shaper, 2, 15 * MB, upload), 30)


def test_requests_above_a_rate_are_told_to_slow_down(upstream, start):
    """Of far more requests than asked for, as many as asked come through, within 5 % and the tenth of a second that may come at
    once; the others get 503 SlowDown, and the server behind does not see them."""
    shaper = start("--busy-above", "200")
    connection, answers = shaper.connect(), []
    began = time.monotonic()
    while time.monotonic() - began < 2:
        answers.append(shaper.request("GET", "/b/10", connection=connection)[0])
    through, seconds = answers.count(200), time.monotonic() - began
    if len(answers) >= 3 * 200:  # on a machine too loaded to ask so often, the limit cannot be seen
        assert 0.95 * 200 * seconds - 1 <= through <= 1.05 * 200 * seconds + 21, (through, seconds)
    assert through <= 1.05 * 200 * seconds + 21 and set(answers) <= {200, 503} and 503 in answers
    assert len(upstream.heads) == through and shaper.stats()["busy"] == answers.count(503)
    assert b"<Code>SlowDown</Code>" in [shaper.request("GET", "/b/10", connection=connection) for _ in range(60)][-1][2]
    assert shaper.control("POST", "set?busy-above=0")[0] == 200
    assert [shaper.request("GET", "/b/10", connection=connection)[0] for _ in range(60)] == [200] * 60
    connection.close()


def first_byte_times(shaper, n, target="/b/10"):
    times, connection = [], shaper.connect()
    for _ in range(n):
        began = time.monotonic()
        shaper.request("GET", target, connection=connection)
        times.append(time.monotonic() - began)
    connection.close()
    return times


def test_the_time_to_the_first_byte(upstream, start):
    """Never below what was asked; --slow-list adds to listings alone."""
    shaper = start("--first-byte", "30ms", "--slow-list", "60ms")
    assert 0.030 <= min(first_byte_times(shaper, 10)) < 0.060
    assert 0.090 <= min(first_byte_times(shaper, 5, "/b?list-type=2"))


def test_random_times_to_the_first_byte_follow_the_seed(upstream, start):
    """With p99 the times vary; the same seed draws the same ones again, another seed others."""
    runs = []
    for seed in ("7", "7", "8"):
        shaper = start("--first-byte", "20ms,p99=100ms", "--seed", seed)
        runs.append(first_byte_times(shaper, 12))
    assert max(runs[0]) > 1.5 * min(runs[0])
    rank = [sorted(range(12), key=run.__getitem__)[-3:] for run in runs]
    assert set(rank[0]) & set(rank[1]) and runs[0] != runs[2]


def drawn(seed, n, median_ms, p99_ms):
    """The n-th delay of a seed as bench/shaper/shape.c draws it, in seconds."""
    import math
    mask = (1 << 64) - 1

    def finish(x):
        x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & mask
        x = ((x ^ x >> 27) * 0x94d049bb133111eb) & mask
        return x ^ x >> 31

    def mix(a, b):
        return finish(finish((a + 0x9e3779b97f4a7c15) & mask) ^ ((b + 0x9e3779b97f4a7c15) & mask))

    u, v = (((mix(seed, 2 * n + i) >> 11) + 0.5) / 2**53 for i in range(2))
    normal = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
    return median_ms / 1000 * math.exp(math.log(p99_ms / median_ms) / 2.3263478740408408 * normal)


def test_random_times_are_those_that_the_seed_draws(upstream, start):
    """Each request waits for its own number of the sequence, not less, and in one of several attempts not much more."""
    expected = [drawn(3, n, 20, 80) for n in range(10)]
    assert max(expected) > 1.5 * min(expected)
    for _ in range(5):
        times = first_byte_times(start("--first-byte", "20ms,p99=80ms", "--seed", "3"), 10)
        assert all(t >= e for t, e in zip(times, expected)), (times, expected)
        if all(t <= e * 1.05 + 0.005 for t, e in zip(times, expected)):
            return
    raise AssertionError(f"expected {expected}, got {times}")


# ---- faults ----


def test_truncate_ends_the_body_early(upstream, start):
    """The length is announced in full, half of the bytes come (or as many as asked for), then the connection ends."""
    shaper = start()
    shaper.fault("kind=truncate&match=/b/100000")
    assert shaper.request("GET", "/b/5")[2] == pattern(5)
    with pytest.raises(http.client.IncompleteRead) as cut:
        shaper.request("GET", "/b/100000")
    assert cut.value.partial == pattern(50000) and cut.value.expected == 50000
    shaper.fault("kind=truncate&at=3")
    with pytest.raises(http.client.IncompleteRead) as cut:
        shaper.request("GET", "/b/100000")
    assert cut.value.partial == pattern(3)
    assert shaper.request("GET", "/b/100000")[2] == pattern(100000)
    stats = shaper.stats()
    assert stats["faults_injected"] == 2 and stats["faults_armed"] == 0 and stats["kinds"]["get"]["cut"] == 2


def test_truncate_without_a_body_gives_no_answer_at_all(upstream, start):
    shaper = start()
    shaper.fault("kind=truncate&match=DELETE")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        shaper.request("DELETE", "/b/k")
    assert shaper.request("DELETE", "/b/k")[0] == 204


def test_reset_resets_the_connection(upstream, start):
    shaper = start()
    shaper.fault("kind=reset&at=1000")
    with socket.create_connection(("127.0.0.1", shaper.port), timeout=20) as s:
        s.sendall(b"GET /b/100000 HTTP/1.1\r\nHost: h\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while s.recv(65536):
                pass


@pytest.mark.parametrize("code, word", [(503, b"SlowDown"), (500, b"InternalError"), (403, b"AccessDenied")])
def test_status_answers_in_the_servers_place(upstream, start, code, word):
    """The server never sees the request; the connection stays usable, also after a body; count and skip hold."""
    shaper = start()
    connection = shaper.connect()
    shaper.fault(f"kind=status:{code}&count=2&skip=1&match=PUT%20/b/")
    for expected in (200, code, code, 200):
        status, _, body = shaper.request("PUT", "/b/key", body=pattern(100000), connection=connection)
        assert status == expected and (status == 200 or word in body)
    assert len(upstream.heads) == 2
    shaper.fault(f"kind=status:{code}")
    status, headers, body = shaper.request("HEAD", "/b/10", connection=connection)
    assert (status, body) == (code, b"")
    assert shaper.request("GET", "/b/10", connection=connection)[2] == pattern(10)
    connection.close()
    assert shaper.stats()["kinds"]["put"]["2xx"] == 2


def test_stall_stops_and_goes_on(upstream, start):
    shaper = start()
    shaper.fault("kind=stall&for=700ms")
    began = time.monotonic()
    assert shaper.request("GET", "/b/100000")[2] == pattern(100000)
    assert time.monotonic() - began >= 0.7
    shaper.fault("kind=stall")  # without end: until the client gives up
    with socket.create_connection(("127.0.0.1", shaper.port), timeout=0.5) as s:
        s.sendall(b"GET /b/1000 HTTP/1.1\r\nHost: h\r\n\r\n")
        data = b""
        with pytest.raises(TimeoutError):
            while part := s.recv(65536):
                data += part
        assert data.endswith(b"\r\n\r\n" + pattern(500))
    assert settled(lambda: shaper.stats()["in_flight"], 0) == 0


@pytest.mark.parametrize("size, at, place", [(1, "", 0), (100001, "", 50000), (3 * MB, "&at=2000000", 2000000), (9, "&at=99", 8)])
def test_flip_inverts_one_bit(upstream, start, size, at, place):
    shaper = start()
    shaper.fault("kind=flip" + at)
    expected = bytearray(pattern(size))
    expected[place] ^= 1
    connection = shaper.connect()
    assert shaper.request("GET", f"/b/{size}", connection=connection)[2] == bytes(expected)
    assert shaper.request("GET", f"/b/{size}", connection=connection)[2] == pattern(size)
    connection.close()


def test_wrong_length_announces_and_sends_one_byte_less(upstream, start):
    """The message itself is sound; only its length is not the one asked for. The connection stays usable."""
    shaper = start()
    connection = shaper.connect()
    shaper.fault("kind=wrong-length&count=3")
    for size in (100, 200000):
        status, headers, body = shaper.request("GET", f"/b/{size}", connection=connection)
        assert (status, headers["Content-Length"], headers["ETag"], body) == (200, str(size - 1), '"e"', pattern(size - 1))
    assert shaper.request("HEAD", "/b/100", connection=connection)[1]["Content-Length"] == "99"
    assert shaper.request("GET", "/b/100", connection=connection)[2] == pattern(100)
    assert upstream.connections == 1
    connection.close()


def test_faults_are_taken_in_order_and_cleared_by_reset(upstream, start):
    shaper = start()
    shaper.fault("kind=status:500&match=/b/1")
    shaper.fault("kind=status:503&count=5")
    assert [shaper.request("GET", "/b/1")[0] for _ in range(2)] == [500, 503]
    assert shaper.stats()["faults_armed"] == 4
    assert shaper.control("POST", "reset")[0] == 200
    assert shaper.request("GET", "/b/1")[0] == 200


@pytest.mark.parametrize("query", ["", "kind=none", "kind=status", "kind=status:200", "kind=flip:1", "kind=flip&count=x",
                                   "kind=flip&count=0", "kind=flip&for=never", "kind=flip&what=1", "kind=flip&match=%zz"])
def test_unknown_faults_are_refused(upstream, start, query):
    shaper = start()
    status, body = shaper.control("POST", "fault?" + query)
    assert status == 400 and body["error"]
    assert shaper.stats()["faults_armed"] == 0
    assert shaper.control("POST", "nothing")[0] == 404
    assert shaper.control("POST", "set?total=fast")[0] == 400
    assert shaper.control("POST", "set?color=1MB/s")[0] == 400


@pytest.mark.parametrize("options, word", [
    (["--total", "fast"], "total fast"),
    (["--per-connection", "1"], "at least 1KiB/s"),
    (["--first-byte", "soon"], "first-byte soon"),
    (["--first-byte", "20ms,p99=10ms"], "99th percentile"),
    (["--slow-list", "-1s"], "slow-list"),
    (["--busy-above", "many"], "busy-above many"),
    (["--color"], "--color"),
])
def test_bad_options_end_with_status_two(options, word):
    done = subprocess.run([SHAPER, "--upstream", "127.0.0.1:1", *options], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1


def test_the_upstream_is_required():
    done = subprocess.run([SHAPER], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "--upstream" in done.stderr


# ---- a real S3 server ----


@pytest.fixture
def s3_server(tmp_path):
    if not VERSITYGW.exists():
        pytest.skip("not run: scripts/origin-server build has not been run")
    port, directory = unused_port(), tmp_path / "origin"
    script = ROOT / "scripts" / "origin-server"
    subprocess.run([script, "start", directory, str(port), "AKSHAPER", "secretsecret"], check=True, timeout=120)
    yield port
    subprocess.run([script, "stop", directory], check=True, timeout=60)


def test_signed_requests_of_boto3_work_through_it(s3_server):
    """Signatures cover the shaper's own host and port and are verified by the server behind."""
    boto3 = pytest.importorskip("boto3")
    shaper = Shaper(s3_server, "--first-byte", "5ms")
    try:
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{shaper.port}", aws_access_key_id="AKSHAPER",
                              aws_secret_access_key="secretsecret", region_name="us-east-1")
        client.create_bucket(Bucket="data")
        for i in range(5):
            client.put_object(Bucket="data", Key=f"a b/{i}", Body=pattern(i * 100000))
        client.upload_fileobj(io.BytesIO(pattern(20 * MB)), "data", "large")  # multipart
        listed = client.list_objects_v2(Bucket="data")["Contents"]
        assert {o["Key"]: o["Size"] for o in listed} == {**{f"a b/{i}": i * 100000 for i in range(5)}, "large": 20 * MB}
        assert client.get_object(Bucket="data", Key="large")["Body"].read() == pattern(20 * MB)
        part = client.get_object(Bucket="data", Key="a b/3", Range="bytes=1000-1999")
        assert part["ContentRange"] == "bytes 1000-1999/300000" and part["Body"].read() == pattern(2000)[1000:]
        assert client.head_object(Bucket="data", Key="a b/1")["ContentLength"] == 100000
        shaper.fault("kind=status:503&match=GET%20/data/large")
        assert client.get_object(Bucket="data", Key="large")["ResponseMetadata"]["RetryAttempts"] == 1
        client.delete_object(Bucket="data", Key="large")
        kinds = shaper.stats()["kinds"]
        assert kinds["list"]["requests"] == 1 and kinds["delete"]["requests"] == 1 and kinds["get_range"]["requests"] == 1
        assert kinds["get_range"]["response_bytes"] == 1000 and kinds["put"]["request_bytes"] >= 21 * MB
    finally:
        assert shaper.stop() == 0
