"""The programs behind `make bench`: that they read what they say, count right, judge right, and fail when they should. How fast
anything is, no test asks."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import importlib.util
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

import harness

BENCH = harness.ROOT / "bench"
BUILD = harness.forebay_release_bin().parent
MIB = 1 << 20
sys.path.insert(0, str(BENCH))


@pytest.fixture
def lab_module(monkeypatch):
    """bench/lab.py, which picks its programs by the environment."""
    monkeypatch.setenv("BUILD", str(BUILD))
    import lab
    monkeypatch.setattr(lab, "BUILD", BUILD)
    return lab


def program(name, *arguments):
    return subprocess.run([str(BUILD / "bench" / name), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


# ---- reader ----

@pytest.mark.parametrize("mode, count, expected", [("seq", 1, 3 * MIB + 5), ("seq", 4, 4 * (3 * MIB + 5)), ("random", 100, 409600),
                                                   ("mmap", 2, 2 * (3 * MIB + 5)), ("first", 0, 4096)])
def test_reader_counts_what_it_reads(tmp_path, mode, count, expected):
    """Every way of reading reports the bytes it read, a time above zero, and the first block before the last."""
    path = tmp_path / "f"
    path.write_bytes(harness.random_bytes(3 * MIB + 5))
    said = json.loads(program("reader", mode, path, 4096, count).stdout)
    assert said["bytes"] == expected
    assert 0 < said["first_s"] <= said["seconds"]


def test_reader_reads_for_real(tmp_path):
    """The bytes come from the file: the process reads as many as it reports."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * (8 * MIB))
    trace = tmp_path / "io"
    script = f'"{BUILD}/bench/reader" seq "{path}" 65536 3 && cat /proc/$$/io >"{trace}"'
    subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.PIPE)
    read = int(next(line.split()[1] for line in trace.read_text().splitlines() if line.startswith("rchar")))
    assert read >= 3 * 8 * MIB


def test_reader_says_what_it_cannot_read(tmp_path):
    """A file that is not there, or empty: one line that names it, exit 1; a way it does not know: exit 2."""
    done = program("reader", "seq", tmp_path / "none")
    assert done.returncode == 1 and str(tmp_path / "none") in done.stderr
    (tmp_path / "empty").touch()
    assert program("reader", "random", tmp_path / "empty", 4096, 1).returncode == 1
    assert program("reader", "backwards", tmp_path / "empty").returncode == 2


# ---- getload ----

def test_getload_against_the_origin(origin, lab_module, tmp_path):
    """Presigned requests over several connections, whole and in ranges: the bytes add up, and as many requests were sent as asked."""
    bucket = origin.new_bucket()
    client = origin.s3(signature_version="s3v4")
    for i in range(5):
        client.put_object(Bucket=bucket, Key=f"k {i}", Body=harness.random_bytes(100_000 + i))
    targets, address = lab_module.Lab.targets(client, bucket, [f"k {i}" for i in range(5)])
    (tmp_path / "list").write_text("\n".join(targets))
    said = json.loads(program("getload", address, tmp_path / "list", 3, 10).stdout)
    assert (said["requests"], said["bytes"]) == (10, 2 * sum(100_000 + i for i in range(5)))
    assert 0 < said["first_p50_s"] <= said["first_max_s"] <= said["whole_max_s"] <= said["seconds"]
    ranges, address = lab_module.Lab.targets(client, bucket, ["k 0"], ["0-9", "10-29"])
    (tmp_path / "list").write_text("\n".join(ranges))
    assert json.loads(program("getload", address, tmp_path / "list", 1, 2).stdout)["bytes"] == 30


@pytest.mark.parametrize("fault, words", [("status:503", "503"), ("truncate", "body ends early")])
def test_getload_ends_at_the_first_wrong_answer(origin, new_shaper, lab_module, tmp_path, fault, words):
    """An error status or a short body is no result: one line with what came, exit 1."""
    shaper = new_shaper()
    bucket = origin.new_bucket()
    origin.s3().put_object(Bucket=bucket, Key="k", Body=harness.random_bytes(MIB))
    client = harness.s3_client(shaper.endpoint, origin.access_key, origin.secret_key, signature_version="s3v4")
    targets, address = lab_module.Lab.targets(client, bucket, ["k"])
    (tmp_path / "list").write_text(targets[0])
    assert program("getload", address, tmp_path / "list", 1, 3).returncode == 0
    shaper.fault(fault, skip=1)
    done = program("getload", address, tmp_path / "list", 1, 3)
    assert done.returncode == 1 and words in done.stderr and done.stdout == ""


def test_getload_percentiles_are_of_the_requests(origin, new_shaper, lab_module, tmp_path):
    """Of two answers of which one is late, the median is the other one's time, and the maximum the late one's."""
    shaper = new_shaper()
    bucket = origin.new_bucket()
    origin.s3().put_object(Bucket=bucket, Key="k", Body=b"data")
    client = harness.s3_client(shaper.endpoint, origin.access_key, origin.secret_key, signature_version="s3v4")
    targets, address = lab_module.Lab.targets(client, bucket, ["k"])
    (tmp_path / "list").write_text(targets[0])
    shaper.fault("stall", skip=1, for_="12s")
    said = json.loads(program("getload", address, tmp_path / "list", 1, 2).stdout)
    assert said["whole_p50_s"] < said["whole_max_s"] - 1 and said["whole_p99_s"] == said["whole_max_s"] >= 11  # the stall counts whole milliseconds


def test_getload_over_tls(new_node, origin, lab_module, tmp_path):
    """With https:// the same bytes come through TLS; a plain server behind it is a failure to connect, exit 1."""
    import front
    cert, key = front.certificate(tmp_path / "tls")
    node = new_node(tls_cert=cert, tls_key=key)
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="k", Body=harness.random_bytes(300_000))
    targets, address = lab_module.Lab.targets(node.s3(signature_version="s3v4"), bucket, ["k"])
    assert address.startswith("https://127.0.0.1:")
    (tmp_path / "list").write_text(targets[0])
    assert json.loads(program("getload", address, tmp_path / "list", 2, 6).stdout)["bytes"] == 6 * 300_000
    done = program("getload", origin.endpoint.replace("http:", "https:"), tmp_path / "list", 1, 1)
    assert done.returncode == 1 and "connect" in done.stderr


@pytest.fixture
def sealed_load(new_node, origin, lab_module, tmp_path):
    """Files, the same as objects of a node with TLS, and a list of requests for them: load(*options, connections, requests)."""
    import front
    cert, key = front.certificate(tmp_path / "tls")
    node = new_node(tls_cert=cert, tls_key=key)
    bucket = node.new_bucket(origin)
    (tmp_path / "files").mkdir()
    for name, size in (("large", 5 * MIB + 1), ("small", 100), ("empty", 0)):
        (tmp_path / "files" / name).write_bytes(harness.random_bytes(size))
        origin.s3().put_object(Bucket=bucket, Key=f"a/{name}", Body=(tmp_path / "files" / name).read_bytes())
    client = node.s3(signature_version="s3v4")
    targets, address = lab_module.Lab.targets(client, bucket, ["a/large", "a/small", "a/empty"])
    ranges, _ = lab_module.Lab.targets(client, bucket, ["a/large"], ["1000-2999999"])
    (tmp_path / "list").write_text("\n".join(targets + ranges))
    return lambda files, connections, requests: program("getload", "--sealed", files, address, tmp_path / "list", connections, requests)


def test_getload_leaves_tls_sealed(sealed_load, tmp_path):
    """With --sealed all bytes of the requests are counted, the first connection's and some of the others' are compared, and the rest is
    not looked at."""
    done = sealed_load(tmp_path / "files", 3, 40)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["requests"], said["bytes"]) == (40, 10 * (5 * MIB + 1 + 100 + 2_999_000))
    assert said["cipher"].startswith("TLS_AES_") and 0 < said["compared"] <= said["bytes"]


def test_getload_finds_other_bytes_in_tls(sealed_load, tmp_path):
    """What is decrypted and is not the file's ends the run, exit 1: other bytes, another length, no file at all."""
    path = tmp_path / "files/large"
    right = path.read_bytes()
    for wrong, words in ((right[:-1] + bytes([right[-1] ^ 1]), "other bytes"), (right[:-1], "not as long"), (None, "the file of a target")):
        if wrong is None:
            path.unlink()
        else:
            path.write_bytes(wrong)
        done = sealed_load(tmp_path / "files", 2, 8)
        assert done.returncode == 1 and words in done.stderr and done.stdout == ""


def test_getload_seals_nothing_but_tls(tmp_path):
    """--sealed without TLS, or with one connection, of which nothing would be sealed: one line, exit 2."""
    (tmp_path / "list").write_text("/")
    for address, connections in (("127.0.0.1:9", 2), ("https://127.0.0.1:9", 1)):
        done = program("getload", "--sealed", tmp_path, address, tmp_path / "list", connections, 1)
        assert done.returncode == 2 and "--sealed" in done.stderr


@pytest.mark.parametrize("server", ["plain", "TLS"])
def test_getload_compares_with_files(new_node, origin, lab_module, tmp_path, server):
    """With --compare every byte of every answer is compared, whole objects and ranges: the first other byte, another length, and a file
    that is not there end the run, exit 1."""
    import front
    options = dict(zip(("tls_cert", "tls_key"), front.certificate(tmp_path / "tls"))) if server == "TLS" else {}
    node = new_node(**options)
    bucket, files = node.new_bucket(origin), tmp_path / "files"
    files.mkdir()
    for name, size in (("large", 3 * MIB + 1), ("small", 100)):
        (files / name).write_bytes(harness.random_bytes(size))
        origin.s3().put_object(Bucket=bucket, Key=f"a/{name}", Body=(files / name).read_bytes())
    client = node.s3(signature_version="s3v4")
    whole, address = lab_module.Lab.targets(client, bucket, ["a/large", "a/small"])
    parts, _ = lab_module.Lab.targets(client, bucket, ["a/large"], ["1000-1999999"])

    def load(targets):
        (tmp_path / "list").write_text("\n".join(targets))
        return program("getload", "--compare", files, address, tmp_path / "list", 2, 2 * len(targets))

    done = load(whole + parts)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["compared"] == said["bytes"] == 2 * (3 * MIB + 1 + 100 + 1_999_000)
    right = (files / "large").read_bytes()
    for at, targets in ((0, whole), (len(right) - 1, whole), (1_999_999, parts)):
        (files / "large").write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1:])
        done = load(targets)
        assert done.returncode == 1 and "other bytes" in done.stderr and done.stdout == ""
    (files / "large").write_bytes(right[:-1])
    assert "not as long" in load(whole).stderr
    (files / "large").unlink()
    done = load(whole)
    assert done.returncode == 1 and "the file of a target" in done.stderr


# ---- putceiling ----

@contextlib.contextmanager
def put_ceiling(directory, *options):
    directory.mkdir(parents=True)
    process = subprocess.Popen([BUILD / "bench/putceiling", directory, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("size", [0, 1, 1_000_000, 9 * MIB + 7])
def test_putceiling_keeps_what_it_answers(tmp_path, size):
    """The ETag is the body's MD5, or none with "opaque", and the directory holds the bytes of each connection's last body."""
    body = harness.random_bytes(size)
    for options in ([], ["opaque"]):
        with put_ceiling(tmp_path / "-".join(["d", *options]), *options) as address, \
                contextlib.closing(http.client.HTTPConnection(address, timeout=200)) as connection:
            for data in (b"before", body):
                connection.request("PUT", "/b/k", body=data, headers={"Expect": "100-continue"} if data else {})
                reply = connection.getresponse()
                assert reply.read() == b"" and reply.status == 200
            etag = reply.headers["ETag"].strip('"')
        assert etag == ("0" * 32 + "-1" if options else hashlib.md5(body).hexdigest())
        assert [p.read_bytes() for p in (tmp_path / "-".join(["d", *options])).iterdir()] == [body]


def test_putceiling_refuses_what_it_does_not_know(tmp_path):
    """A GET, or a body without length, ends the connection; a directory that is not there: one line, exit 1."""
    with put_ceiling(tmp_path / "d") as address:
        for head in (b"GET /b/k HTTP/1.1\r\n\r\n", b"PUT /b/k HTTP/1.1\r\nHost: h\r\n\r\n"):
            with socket.create_connection(address.split(":"), timeout=200) as s:
                s.sendall(head)
                assert s.recv(100) == b""
        assert os.listdir(tmp_path / "d") == []
    done = program("putceiling", tmp_path / "none")
    assert done.returncode == 1 and str(tmp_path / "none") in done.stderr
    assert program("putceiling").returncode == 2


# ---- lab ----

def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("heeds", [True, False])
def test_a_mount_that_does_not_end_by_itself_is_ended(lab_module, monkeypatch, tmp_path, heeds):
    """When `forebay umount` does not come back, the mount's process is told to end; when it does not heed that, it is killed and the
    measurement fails."""
    class Stuck(lab_module.Mount):
        def mounted(self):
            return True

    class Node:
        binary = script(tmp_path / "forebay", ("" if heeds else 'trap "" TERM\n') + "exec sleep 600\n")
        socket_path = tmp_path / "socket"

    monkeypatch.setattr(lab_module, "UMOUNT_SECONDS", 0.5, raising=False)
    mount = Stuck(Node, "bucket", tmp_path / "mnt")
    harness.wait_until(lambda: (pathlib.Path(f"/proc/{mount.pid}/cmdline").read_bytes()).startswith(b"sleep"), what="what it runs")
    monkeypatch.setattr(lab_module, "MOUNT_SECONDS", 200 if heeds else 0.5)
    with contextlib.nullcontext() if heeds else pytest.raises(subprocess.TimeoutExpired):
        mount.close()
    assert mount.process.poll() is not None and mount.log.closed


def test_readers_at_once_fail_together(lab_module, tmp_path):
    """What one of them cannot read is an error that names the file, and none of them goes on."""
    with pytest.raises(RuntimeError, match="none"):
        lab_module.Lab.read_at_once(None, 3, "seq", tmp_path / "none", 4096, 1)
    (tmp_path / "f").write_bytes(bytes(8192))
    assert lab_module.Lab.read_at_once(None, 3, "seq", tmp_path / "f", 4096, 2)["bytes"] == 3 * 2 * 8192


@pytest.mark.parametrize("read", ["program", "read_at_once"])
def test_a_reader_that_never_ends_is_no_measurement(lab_module, monkeypatch, tmp_path, read):
    """Whoever answers nobody, as a file system may, is given up after a time, and what read from it is ended: a peer is left out then."""
    import versus
    os.mkfifo(tmp_path / "silent")
    monkeypatch.setattr(lab_module, "PROGRAM_SECONDS", 0.5)
    left_out = {}
    with versus.skipping("silent", left_out):
        if read == "program":
            lab_module.Lab.program(None, "reader", "seq", tmp_path / "silent", 4096, 1)
        else:
            lab_module.Lab.read_at_once(None, 2, "seq", tmp_path / "silent", 4096, 1)
    assert "timed out" in left_out["silent"]
    with pytest.raises(OSError):  # nobody holds it any more
        os.open(tmp_path / "silent", os.O_WRONLY | os.O_NONBLOCK)


def test_a_stream_that_fails_is_no_measurement(lab_module, tmp_path):
    """What one of many readers cannot read ends the measurement."""
    import measures
    (tmp_path / "f").write_bytes(bytes(3 * MIB))
    measures.read_all([tmp_path / "f"] * 5)
    with pytest.raises(FileNotFoundError):
        measures.read_all([tmp_path / "f", tmp_path / "none"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("measure", ["warm", "cold", "first", "epoch", "memory", "s3", "values", "put", "write_back", "jobs"])
def test_who_gives_other_bytes_has_no_figure(lab_module, monkeypatch, work, measure):
    """One bit is another one than in what the measurement compares with: it fails, however fast it was."""
    import dataset
    import front
    import measures
    import moving
    import uploads
    real = {"upload": lab_module.Lab.upload, "data set": dataset.upload, "puts": uploads.expected_puts, "targets": lab_module.Lab.targets}

    def flipped(path, to):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        to.write_bytes(data)
        return to

    def upload(self, files, *rest, **more):
        return real["upload"](self, {key: flipped(path, self.path("wrong")) for key, path in files.items()}, *rest, **more)

    def upload_data_set(client, bucket, directory):
        total = real["data set"](client, bucket, directory)
        image = next(pathlib.Path(directory).rglob("00000.jpg"))
        flipped(image, image)
        return total

    def puts(*rest, **more):
        directory = real["puts"](*rest, **more)
        flipped(directory / "000000", directory / "000000")
        return directory

    def targets(client, bucket, keys, *rest):
        if bucket == "values":  # which were put by now
            [path] = pathlib.Path(directory).rglob(keys[-1])
            flipped(path, path)
        return real["targets"](client, bucket, keys, *rest)

    monkeypatch.setattr(lab_module.Lab, "upload", upload)
    monkeypatch.setattr(lab_module.Lab, "targets", staticmethod(targets))
    monkeypatch.setattr(dataset, "upload", upload_data_set)
    monkeypatch.setattr(uploads, "expected_puts", puts)
    for module, sizes in ((measures, {"QUICK_BIG_BYTES": 2 * MIB, "FIRST_SIZES": [8192], "STREAM_BYTES": MIB, "QUICK_IMAGES": 3, "QUICK_SHARDS": 0}),
                          (moving, {"LARGE_BYTES": MIB}), (uploads, {"PUT_SIZE": "64KiB", "QUICK_BACK_BYTES": MIB})):
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    table = {**measures.MEASURES, **front.MEASURES, **uploads.MEASURES, **moving.MEASURES}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory, lab_module.Lab(directory, quick=True) as lab:
        with pytest.raises(RuntimeError, match="other bytes"):
            table[measure](lab)


def test_each_side_of_write_back_begins_with_nothing_on_its_way(lab_module, monkeypatch):
    """What one PUT left to be carried to the origin is there before the next one is measured, whichever side that is."""
    import uploads
    calls = []

    class Node:
        pid, endpoint, credentials = 1, "http://node", ("a", "b")

        def s3(self, **_config):
            return "node"

        def cli(self, *words, **_options):
            calls.append(words)
            return subprocess.CompletedProcess(words, 0, "", "")

    class Origin:
        def new_bucket(self):
            return "mirror"

        def properties(self):
            return {}

        def s3(self, **_config):
            return "origin"

    class Fake:
        quick, pairs, origin = True, 3, Origin()

        def node(self):
            return contextlib.nullcontext(Node())

    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(uploads, "put_sample", lambda pid, endpoint, keys, bucket, *_: calls.append(("put", bucket)) or {"rate": 1.0})
    monkeypatch.setattr(uploads, "expected_puts", lambda *_, **__: "expected")
    monkeypatch.setattr(uploads, "compare_puts", lambda _lab, client, bucket, _expected: calls.append(("compare", client, bucket)))
    uploads.write_back(Fake())
    assert calls.count(("put", "mirror")) == calls.count(("put", "scratch")) == 3
    assert calls[-3][:2] == ("flush", "mirror") and calls[-2:] == [("compare", "node", "scratch"), ("compare", "origin", "mirror")]
    on_its_way = False
    for words in calls:
        if words[:2] == ("flush", "mirror") and "--wait" in words:
            on_its_way = False
        elif words[0] == "put":
            assert not on_its_way, calls
            on_its_way = words[1] == "mirror"


def test_training_leaves_no_memory_behind(lab_module, monkeypatch, tmp_path):
    """Also when it is ended while it makes the copy in memory."""
    import work

    def interrupted(_source, to):
        to.mkdir()
        (to / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "tmpfs", lambda _lab: tmp_path / "memory")
    monkeypatch.setattr(work, "make_files", lambda *_: tmp_path)
    monkeypatch.setattr(work, "make_objects", lambda *_: "bucket")
    monkeypatch.setattr(work.shutil, "copytree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.train(type("Fake", (), {"quick": True}))
    assert not (tmp_path / "memory").exists()


# ---- nginx ----

def test_without_nginx_its_measurements_are_not_run(lab_module, monkeypatch, tmp_path):
    import front
    import peers
    import versus
    monkeypatch.setattr(peers, "program", lambda name: None)
    with pytest.raises(versus.NotRun, match="nginx"):
        front.Nginx(tmp_path / "nginx", root=tmp_path)


def test_nginx_has_the_congestion_control_of_ours(lab_module, monkeypatch, tmp_path):
    """Where it is measured alike: it serves the listener that was made for it, and connections have what their listener has."""
    import front
    import peers
    with front.listener(port := harness.free_port(), front.OUR_CONGESTION) as listening, socket.create_connection(("127.0.0.1", port)):
        assert select.select([listening], [], [], 200)[0] and not os.get_blocking(listening.fileno())
        accepted = listening.accept()[0]
        said = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        accepted.close()
        assert said.decode() == front.OUR_CONGESTION
    if peers.program("nginx") is None:
        pytest.skip("not run: nginx is not installed")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f").write_bytes(b"data")
    made, listener = [], front.listener

    def noted(*arguments):
        listening = listener(*arguments)
        made.append(f"socket:[{os.fstat(listening.fileno()).st_ino}]")
        return listening

    monkeypatch.setattr(front, "listener", noted)
    for alike in (True, False):
        with front.Nginx(tmp_path / f"nginx-{alike}", root=tmp_path / "root", alike=alike) as nginx:
            connection = http.client.HTTPConnection(nginx.address)
            connection.request("GET", "/f")
            assert connection.getresponse().read() == b"data"
            connection.close()
            held = {os.readlink(path) for path in pathlib.Path(f"/proc/{nginx.pid}/fd").iterdir()}
            assert len(made) == (1 if alike else 0) and set(made) <= held
            made.clear()


def gone(pid):
    """Ended, whether somebody took note or not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def killed_in_the_middle(code, n, *arguments):
    """Runs Python code that prints a process id and waits; kills it when that process has n processes; gives them all."""
    import peers
    with subprocess.Popen([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}", *map(str, arguments)], text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "BUILD": str(BUILD)}) as process:
        first = int(process.stdout.readline())
        pids = harness.wait_until(lambda: len(peers.tree([first])) >= n and peers.tree([first]), 60, "its children")
        process.kill()
    return pids


def test_nginx_ends_with_the_run(lab_module, tmp_path):
    """When the run is killed, its workers end, too."""
    import peers
    if peers.program("nginx") is None:
        pytest.skip("not run: nginx is not installed")
    code = "import front, time; print(front.Nginx(sys.argv[1], root=sys.argv[1]).pid, flush=True); time.sleep(600)"
    pids = killed_in_the_middle(code, 2, tmp_path / "nginx")
    harness.wait_until(lambda: all(gone(pid) for pid in pids), what="the end of nginx")


def test_the_index_is_not_made_for_nobody(lab_module, tmp_path):
    """When bench/scale is killed, what makes the entries for it ends, too."""
    code = ("import importlib.machinery, importlib.util, os\n"
            "loader = importlib.machinery.SourceFileLoader('scale', sys.argv[1])\n"
            "scale = importlib.util.module_from_spec(importlib.util.spec_from_loader('scale', loader))\n"
            "loader.exec_module(scale)\nprint(os.getpid(), flush=True)\nscale.run(sys.argv[2], 50_000_000, '--load')")
    pids = killed_in_the_middle(code, 2, BENCH / "scale", tmp_path / "index")
    try:
        harness.wait_until(lambda: all(gone(pid) for pid in pids), what="the end of index_scale")
    finally:
        for pid in pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


# ---- listings ----

def test_a_full_listing_counts_every_object(node, origin, lab_module):
    """By pages, with what continues them, whatever is beside the prefix."""
    import front
    bucket, client = node.new_bucket(origin), origin.s3()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: client.put_object(Bucket=bucket, Key=f"all/object-{i:07d}", Body=b""), range(1_203)))
    client.put_object(Bucket=bucket, Key="beside", Body=b"")
    seconds, found = front.list_all(node.s3(signature_version="s3v4"), bucket, "all/object-")
    assert found == 1_203 and seconds > 0


# ---- judging ----

def test_a_goal_is_judged_by_the_median(lab_module):
    """The middle pair decides, not the best one; at_most turns the comparison around."""
    good, bad = (96.0, 100.0), (50.0, 100.0)
    assert lab_module.pair_row("t", 0.95, [good] * 5 + [bad] * 4, 0, "MB/s")["met"]
    row = lab_module.pair_row("t", 0.95, [good] * 4 + [bad] * 5, 0, "MB/s")
    assert not row["met"] and row["ratio"] == {"median": 0.5, "min": 0.5, "max": 0.96} and row["n"] == 9
    assert lab_module.pair_row("t", 1.2, [(1.1, 1.0)] * 9, 0, "ms", at_most=True)["met"]
    assert not lab_module.pair_row("t", 1.2, [(1.3, 1.0)] * 9, 0, "ms", at_most=True)["met"]


def test_pairs_alternate(lab_module):
    """Each pair has both sides, and the side that begins changes; there are at least nine, but for quick runs."""
    order = []

    class Quiet(lab_module.Lab):
        def __init__(self):
            self.pairs = 4

    def side(name):
        return lambda: order.append(name) or 1.0

    assert lab_module.PAIRS >= 9
    taken, share = Quiet().take_pairs(side("a"), side("b"))
    assert "".join(order) == "abbaabba" and taken == [(1.0, 1.0)] * 4 and 0 <= share <= 100


def test_memory_watch_sees_memory(lab_module):
    """What a process allocates and frees again is in the peak."""
    script = "x = bytearray(64 << 20); print(flush=True); input(); del x; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        with lab_module.MemoryWatch([process.pid]) as watch:
            process.stdout.readline()
            harness.wait_until(lambda: watch.peak_bytes >= 64 * MIB, 60, "a sample of its memory")
            for _ in range(2):
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
            assert watch.resident(process.pid) < 64 * MIB
    assert watch.peak_bytes >= 64 * MIB


def test_results_page(lab_module, tmp_path):
    """The page shows goal, result and verdict of every row, and says which run was a quick one."""
    import report
    rows = [lab_module.pair_row("fast enough", 0.9, [(2.0, 1.0)] * 9, 1.5, "MB/s"),
            lab_module.pair_row("too slow", 0.9, [(0.5, 1.0)] * 9, 0.0, "MB/s"),
            lab_module.value_row("bytes", "0", "17", False)]
    result = {"command": "bench/run --quick", "date": lab_module.now(), "machine": lab_module.machine(), "quick": True,
              "file_system": "ext4", "version": "0", "commit": "c", "about": "About.", "rows": rows}
    (tmp_path / "warm.json").write_text(json.dumps(result))
    page = report.render(tmp_path)
    assert "Where the time goes: [NOTES.md](NOTES.md#warm)." in page
    fast, slow, value = [line for line in page.splitlines() if line.startswith(("| fast", "| too", "| bytes"))]
    assert "| met |" in fast and "**2.000**" in fast and "1.5 %" in fast
    assert "| **missed** |" in slow and "**0.500**" in slow
    assert "| **missed** |" in value and "**17**" in value
    assert "Quick run" in page and "bench/run --quick" in page


def result_of(lab_module, rows):
    return {"command": "bench/run", "date": lab_module.now(), "machine": lab_module.machine(), "quick": False, "file_system": "ext4",
            "version": "0", "commit": "c", "about": "About.", "rows": rows}


def test_promised_ratios_are_made_from_the_results(lab_module, tmp_path):
    """Every goal has a line: with the result and verdict of its rows, or as not run with the reason; peers stand together, and ahead
    of them means rate and CPU time."""
    import goals
    import report
    import versus
    warm = [lab_module.pair_row("Warm reads through the mount, mmap, as written, of the disk's", 0.95, [(0.9, 1.0)] * 9, 0, "MB/s")]
    peer = [{**lab_module.pair_row(f"Warm mmap reads through the mount, against {name}", 1.0, [(ratio, 1.0)] * 9, 0, "MB/s"), "peer": name,
             "ours_cost": {"cpu_s_per_gb": 1.0}, "reference_cost": {"cpu_s_per_gb": cpu}}
            for name, ratio, cpu in (("slow", 3.0, 2.0), ("greedy", 2.0, 0.5))]
    for name, rows in (("warm", warm), ("peers_warm", peer), ("checkpoint", [versus.not_run_row("Checkpoints", "-", "no such bucket")])):
        (tmp_path / f"{name}.json").write_text(json.dumps(result_of(lab_module, rows)))
    table = goals.table(tmp_path)
    lines = table.splitlines()
    assert len({work for work, *_ in goals.GOALS}) == len(goals.GOALS) == 17
    assert all(any(line.startswith(f"| {work} |") for line in lines) for work, *_ in goals.GOALS)
    assert any("mmap, as written | 0.90 (0.90 to 0.90) | **missed** |" in line for line in lines)
    assert any("not run (no such bucket)" in line for line in lines)
    assert any("slow 3.00, CPU 2.0; greedy 2.00, CPU 0.5 | **missed** |" in line for line in lines)
    peer[1]["reference_cost"]["cpu_s_per_gb"] = 1.5
    (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, peer)))
    assert any("greedy 2.00, CPU 1.5 | met |" in line for line in goals.table(tmp_path).splitlines())
    assert report.render(tmp_path).rstrip().endswith(goals.table(tmp_path).rstrip())


def test_what_stands_beside_peers_is_none(lab_module, tmp_path):
    """The disk, tmpfs and the origin itself are shown and are nobody to be ahead of; a peer that was not run is named with the reason."""
    import goals
    import versus
    sample = {"rate": 1.0, "cpu_s_per_gb": 1.0, "memory_bytes": MIB}
    taken = {"forebay": [sample] * 9, **{name: [{**sample, "rate": 2.0, "cpu_s_per_gb": 0.1}] * 9 for name in (versus.DISK, versus.TMPFS, versus.STRAIGHT)},
             "slow": [{**sample, "rate": 0.5}] * 9}
    rows = versus.rows_against(taken, 0, "Warm mmap reads through the mount", "MB/s", 1.0) + versus.rows_left_out({"gone": "ended"}, "Warm reads")
    assert [(row["peer"], row["goal"], row["met"]) for row in rows] == [
        (versus.DISK, "-", None), (versus.TMPFS, "-", None), (versus.STRAIGHT, "-", None), ("slow", "at least 1", True), ("gone", "-", None)]
    (tmp_path / "peers_warm.json").write_text(json.dumps(result_of(lab_module, rows)))
    [line] = [line for line in goals.table(tmp_path).splitlines() if "slow" in line]
    assert "the disk 0.50, CPU 0.1" in line and "slow 2.00, CPU 1.0; gone not run (ended) | met |" in line


def test_a_run_is_compared_with_the_one_before(lab_module):
    """On the same machine: how many medians lie within the spread that was printed then, and which do not."""
    import report

    def run(*medians, **more):
        rows = [lab_module.pair_row(f"row {i}", 1.0, [(m - 0.1, 1.0), (m, 1.0), (m + 0.1, 1.0)], 0, "MB/s") for i, m in enumerate(medians)]
        return {**result_of(lab_module, [*rows, lab_module.value_row("bytes", "0", "17", False)]), "date": "then", **more}

    assert report.agreement(run(1.0, 2.0), run(1.05, 1.95, 9.0)) == {"date": "then", "commit": "c", "rows": 2, "outside": []}
    found = report.agreement(run(1.0, 2.0), run(1.95, 1.15))
    assert found["outside"] == ["row 0", "row 1"]  # above, and below
    found = report.agreement(run(1.0, 2.0), run(1.15, 1.95))
    assert found["outside"] == ["row 0"] and report.agreement_text(found).startswith("1 of 2 medians lie within the spread of the run of then")
    page = report.section("warm", {**run(1.15, 1.95), "before": found})
    assert "Run again: 1 of 2 medians" in page and page.rstrip().endswith("not that of: row 0.")
    for other in (None, run(1.0, quick=True), run(1.0, machine={"cpu": "another"})):
        assert report.agreement(other, run(1.0)) is None
    assert "Run again" not in report.section("warm", {**run(1.0), "before": None})


def test_costs_stand_beside_the_rates(lab_module):
    """Of both sides, or of ours alone where the other one is a number."""
    import report
    import versus
    ours, theirs = ({"rate": 1.0, "cpu_s_per_gb": cpu, "memory_bytes": 3 * MIB, "origin_bytes": 1.01, "origin_requests": 17} for cpu in (0.5, 0.25))
    row = versus.cost_row("both", 0.9, [ours] * 9, [theirs] * 9, 0, "MB/s")
    assert "CPU s/GB 0.50 against 0.25; memory MiB 3 against 3; origin bytes of the object's 1.01 against 1.01; requests 17 against 17" in report.row_line(row)
    value = {**lab_module.value_row("one", "-", "7", None, detail="seven"), "ours_cost": versus.costs([ours])}
    assert "| seven; CPU s/GB 0.50; memory MiB 3; origin bytes of the object's 1.01; requests 17 |" in report.row_line(value)


def test_a_miss_points_to_where_the_time_goes(monkeypatch, tmp_path):
    """To the part of NOTES.md with the name of the measurement, or says that there is none; no part has a name that nobody takes."""
    import report
    assert report.noted() <= set(report.TITLES) and "small" in report.noted()
    notes = tmp_path / "NOTES.md"
    notes.write_text("# Notes\n\n## `warm`\n\nText.\n")
    monkeypatch.setattr(report, "NOTES", notes)
    missed, met = [{"met": True}, {"met": False}, {"met": None}], [{"met": True}, {"met": None}]
    assert report.where_the_time_goes("warm", missed) == "Where the time goes: [NOTES.md](NOTES.md#warm)."
    assert "not looked into" in report.where_the_time_goes("small", missed)
    assert report.where_the_time_goes("warm", met) is None

def test_every_measurement_is_known_everywhere(lab_module):
    """Each name that bench/run takes has a function and a title, and each goal stands for measurements that it takes."""
    import front
    import goals
    import measures
    import moving
    import report
    import uploads
    import versus
    import work
    run = bench_run()
    names = run.NAMES + run.HEAVY
    functions = [name for module in (measures, front, uploads, work, moving, versus) for name in module.MEASURES]
    assert sorted(names) == sorted(functions) == sorted(report.TITLES) and len(set(names)) == len(names)
    assert {measure for *_, sources in goals.GOALS for measure, _ in sources} | set(goals.PEER_MEASURES) <= set(names)


def test_what_the_processors_would_allow_is_computed(lab_module, monkeypatch):
    """From the medians of what node, shaper and origin took for each GB in the run itself."""
    import moving
    monkeypatch.setattr(moving.os, "cpu_count", lambda: 2)
    samples = [{"cpu_s_per_gb": node, "beside": {"shaper": 1.0, "versitygw": 2.5}} for node in (4.0, 3.5, 9.0)]
    text = moving.processors(samples)
    assert "node and command 4.00, shaper 1.00, versitygw 2.50" in text
    assert "2 processors that never wait would allow 0.89 of the cap" in text


def test_the_readme_block_is_replaced_and_nothing_else(lab_module, tmp_path):
    """Between its marks, with the table and the first two pictures that there are; a page without them stays as it is."""
    import goals
    import report
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.README_BEGIN}\nwhat was there\n{report.README_END}\nafter\n")
    for _ in range(2):
        report.update_readme(page, tmp_path)
        text = page.read_text()
        assert text.startswith("before\n") and text.endswith("\nafter\n") and "what was there" not in text and goals.table(tmp_path).rstrip() in text
        assert text.count("](bench/results/") == 0
    for name in report.PLOTS:
        (tmp_path / name).write_text("<svg></svg>")
    report.update_readme(page, tmp_path)
    assert re.findall(r"\]\(bench/results/(\w+\.svg)\)", page.read_text()) == ["goals.svg", "peers_cold.svg"]
    (tmp_path / "peers_cold.svg").unlink()
    report.update_readme(page, tmp_path)
    assert re.findall(r"\]\(bench/results/(\w+\.svg)\)", page.read_text()) == ["goals.svg", "costs.svg"]
    page.write_text("no marks")
    report.update_readme(page, tmp_path)
    assert page.read_text() == "no marks"
    readme = (harness.ROOT / "README.md").read_text()
    assert report.README_BEGIN in readme and report.README_END in readme


def test_the_published_pages_are_what_the_results_say(lab_module):
    """Nothing in RESULTS.md and in README's block was written by hand: both are what bench/run --pages makes of bench/results."""
    import report
    assert (BENCH / "RESULTS.md").read_text() == report.render(BENCH / "results"), "bench/run --pages writes it anew"
    assert f"{report.README_BEGIN}\n\n{report.readme_block(BENCH / 'results')}\n\n{report.README_END}" in (harness.ROOT / "README.md").read_text()
    done = subprocess.run([BENCH / "run", "--pages", "--quick"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "--pages" in done.stderr


def test_pictures_of_results(lab_module, tmp_path):
    """Where matplotlib is, every comparison has a picture; where it is not, there is none and no error. What was drawn of results that are
    gone does not stay."""
    import plots
    import versus
    rows = [{**lab_module.pair_row(f"Cold reads, against {name}", 1.0, [(2.0, 1.0)] * 9, 0, "MB/s"), "peer": name,
             "ours_cost": {"cpu_s_per_gb": 1.0}, "reference_cost": {"cpu_s_per_gb": 2.0}} for name in ("a", "b")]
    rows.insert(0, versus.not_run_row("Cold reads, against c", "-", "ended", peer="c"))
    for name in ("peers_warm.svg", "goals.svg"):
        (tmp_path / name).write_text("of results that are gone")
    (tmp_path / "peers_cold.json").write_text(json.dumps(result_of(lab_module, rows)))
    drawn = plots.draw(tmp_path)
    if drawn is None:
        assert importlib.util.find_spec("matplotlib") is None and not list(tmp_path.glob("*.svg"))
        return
    assert drawn == ["peers_cold.svg", "costs.svg"] and sorted(p.name for p in tmp_path.glob("*.svg")) == sorted(drawn)
    assert all("</svg>" in (tmp_path / name).read_text() for name in drawn)


def test_ours_counts_once_for_each_work(lab_module):
    """In the picture of costs: its cost stands in the row of every peer of the same work."""
    import plots

    def row(title, ours, theirs, peer):
        return {"title": title, "peer": peer, "ours_cost": {"cpu_s_per_gb": ours}, "reference_cost": {"cpu_s_per_gb": theirs}}

    rows = [row(f"Work A, against {peer}", 1.0, 5.0, peer) for peer in ("a", "b", "c")] + [row("Work B, against a", 9.0, 2.0, "a")]
    found = plots.costs_by_work({"peers_warm": {"rows": rows}, "peers_cold": {"rows": rows[:1]}, "s3": {"rows": [row("Work A, against a, neither signed", 3.0, 5.0, "a"), rows[0]]}})
    assert sorted(found["forebay"].values()) == [1.0, 1.0, 1.0, 3.0, 9.0] and sorted(found["a"].values()) == [2.0, 5.0, 5.0, 5.0, 5.0]
    assert list(found["b"].values()) == list(found["c"].values()) == [5.0]


# ---- costs, rounds and peers ----

def test_usage_counts_the_system_and_its_reader(lab_module):
    """CPU time of the named processes, of their children, and of programs that ran meanwhile; memory at its peak."""
    import peers
    import usage
    burn = "import time; x = bytearray(64 << 20); t = time.process_time()\nwhile time.process_time() - t < 0.4: pass\ntime.sleep({})"
    with subprocess.Popen(["sh", "-c", f"'{sys.executable}' -c '{burn.format(300)}' & wait"]) as system:
        try:
            harness.wait_until(lambda: len(peers.tree([system.pid])) == 2, 60, "a child")
            child = peers.tree([system.pid])[1]
            with usage.Usage(lambda: peers.tree([system.pid])) as used:
                subprocess.run([sys.executable, "-c", burn.format(0)], check=True)
                harness.wait_until(lambda: usage.cpu_seconds([child]).get(child, 0) >= 0.4, 200, "the child's work")
        finally:
            for pid in reversed(peers.tree([system.pid])):
                os.kill(pid, 9)
    assert 0.6 <= used.cpu_s <= 8 and used.memory_bytes >= 60 * MIB


def test_rounds_turn_the_order_around(lab_module):
    """Every system once a round, in one order and then in the other; a ratio is that of one round."""
    import versus
    order = []

    class Quiet:
        pairs = 3

    taken, _share = versus.rounds(Quiet(), {name: lambda name=name: order.append(name) or {"rate": 1.0 + len(order)} for name in "abc"})
    assert "".join(order) == "abccbaabc" and all(len(samples) == 3 for samples in taken.values())
    rows = versus.rows_against({"forebay": [{"rate": 4.0, "cpu_s_per_gb": 1.0}], "x": [{"rate": 2.0, "cpu_s_per_gb": 3.0}]}, 0, "T", "MB/s", 1.0)
    assert rows[0]["ratio"]["median"] == 2.0 and rows[0]["peer"] == "x" and rows[0]["reference_cost"] == {"cpu_s_per_gb": 3.0}


def test_a_peer_that_is_missing_or_does_not_start_is_left_out(lab_module, capsys, monkeypatch):
    """It is named with the reason, and the others go on; Forebay itself must start."""
    import peers
    import versus

    class Absent(peers.Peer):
        name, programs = "absent", ("no-such-program-anywhere",)

    left_out = {}
    monkeypatch.setattr(peers, "MOUNTS", [Absent()])
    assert peers.present(left_out) == [] and "no-such-program-anywhere" in left_out["absent"]
    with versus.skipping("late", left_out):
        raise RuntimeError("does not start\nmore")
    assert "late: not run (does not start)" in capsys.readouterr().err and left_out["late"] == "does not start"
    with pytest.raises(RuntimeError), versus.skipping("forebay", left_out):
        raise RuntimeError("does not start")
    monkeypatch.undo()
    rows = {row["name"]: row for row in peers.describe()}
    assert all(row["version"] or row["missing"] for row in rows.values())
    assert {"forebay", "s3fs", "rclone full", "JuiceFS", "SeaweedFS", "nginx", "versitygw", "mountpoint-s3"} <= set(rows)


def test_a_peer_that_fails_in_the_middle_is_left_out(lab_module, tmp_path):
    """One that gives other bytes before anything is measured, and one that fails in a later round; the others have all their rounds."""
    import peers
    import versus

    class Quiet:
        pairs = 5

    (tmp_path / "source").write_bytes(b"right")
    systems, left_out = {}, {}
    for name, data in (("forebay", b"right"), ("fails", b"right"), ("other", b"wrong"), ("goes on", b"right")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(data)
        systems[name] = peers.Running(tmp_path / name, [])
    systems = versus.those_that(systems, left_out, versus.gives(tmp_path / "source", "f"))
    assert list(systems) == ["forebay", "fails", "goes on"] and "other bytes" in left_out["other"]
    calls = {name: 0 for name in systems}

    def one(name, failing):
        calls[name] += 1
        if name == failing and calls[name] == 3:
            raise OSError("Transport endpoint is not connected")
        return {"rate": 1.0}

    taken, _share = versus.rounds(Quiet(), {name: lambda n=name: one(n, "fails") for name in systems}, left_out)
    assert calls == {"forebay": 5, "fails": 3, "goes on": 5} and list(taken) == ["forebay", "goes on"]
    assert left_out["fails"] == "Transport endpoint is not connected"
    calls["forebay"] = 0
    with pytest.raises(OSError):  # ours is no peer
        versus.rounds(Quiet(), {name: lambda n=name: one(n, "forebay") for name in systems}, {})


@pytest.mark.parametrize("place", ["the disk", "tmpfs"])
def test_copies_to_compare_with(lab_module, monkeypatch, tmp_path, place):
    """The disk and tmpfs hold the data as long as they are measured; without room they are left out."""
    import peers
    import versus
    [local] = [one for one in peers.LOCAL if one.name == place]
    (tmp_path / "a").write_bytes(b"data")

    class Fake:
        def path(self, name):
            return tmp_path / "lab" / name

    left_out = {}
    if local.place(Fake()) is not None:  # a small /dev/shm has no room
        with local.volume(Fake(), None, None, {"sub/a": tmp_path / "a"}) as start, start() as running:
            assert (running.dir / "sub/a").read_bytes() == b"data" and running.pids() == []
        assert not running.dir.exists()
    monkeypatch.setattr(local, "place", lambda _lab: None)
    with versus.skipping(place, left_out):
        with local.volume(Fake(), None, None, {"a": tmp_path / "a"}):
            pass
    assert left_out == {place: "no room for a copy"}


@pytest.fixture
def stand_ins(lab_module, monkeypatch):
    """Directories in the place of the systems: ours, one more, and one that holds other bytes. Gives the URLs that they were given."""
    import peers
    urls = []

    class StandIn(peers.Peer):
        def __init__(self, name, wrong=0):
            self.name, self.wrong = name, wrong

        @contextlib.contextmanager
        def volume(self, lab, bucket, endpoint, sources):
            urls.append(endpoint)
            directory = lab.path("stand-in")
            directory.mkdir()
            if not sources and self.wrong:
                raise OSError("nothing to give other bytes of")
            for name, source in sources.items():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                data = bytearray(source.read_bytes())
                data[0] ^= self.wrong
                (directory / name).write_bytes(data)
            yield lambda: contextlib.nullcontext(peers.Running(directory, [os.getpid()]))

    monkeypatch.setattr(peers, "FOREBAY", StandIn("forebay"))
    monkeypatch.setattr(peers, "FOREBAY_BACK", StandIn("forebay, write=back"))
    monkeypatch.setattr(peers, "MOUNTS", [StandIn("another"), StandIn("wrong", 1)])
    return urls


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("measure, titles, beside", [
    ("peers_cold", 1, ["parallel ranges straight from the origin"]), ("peers_warm", 4, ["the disk", "tmpfs"]), ("peers_small", 1, ["the disk", "tmpfs"]),
    ("peers_checkpoint", 2, ["the disk", "tmpfs"])])
def test_peers_are_measured_side_by_side(lab_module, stand_ins, work, measure, titles, beside):
    """All by the same URL, that of the shaped origin, each in every round, with CPU time and memory; who gives other bytes is not measured; and
    beside them what the machine and the origin give by themselves."""
    import versus
    import work as work_module
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory:
        with lab_module.Lab(directory, quick=True) as lab:
            rows = {**versus.MEASURES, **work_module.MEASURES}[measure](lab)
            assert len(set(stand_ins)) == 1 and stand_ins[0] != lab.origin.endpoint
        assert os.listdir(directory) == []
    measured = [row for row in rows if "ratio" in row]
    left_out = {row["peer"]: row["detail"] for row in rows if "ratio" not in row}
    assert {row["peer"] for row in measured} | set(left_out) == {"another", "wrong", *beside}
    assert {"wrong"} <= set(left_out) <= {"wrong", "tmpfs"}  # a small /dev/shm has no room
    assert "other bytes" in left_out["wrong"] or "not what was" in left_out["wrong"]
    assert len({row["title"].rsplit(", against ", 1)[0] for row in measured}) == titles
    for row in measured:
        assert row["n"] == lab_module.QUICK_PAIRS and row.get("beside", False) == (row["peer"] in beside)
        assert all(row[side]["cpu_s_per_gb"] > 0 for side in ("ours_cost", "reference_cost"))
        assert row["ours_cost"]["memory_bytes"] > MIB
    if measure == "peers_cold":
        cost = {row["peer"]: row["reference_cost"] for row in measured}
        assert (cost[versus.STRAIGHT]["origin_bytes"], cost[versus.STRAIGHT]["origin_requests"]) == (1, 4)
        assert (cost["another"]["origin_bytes"], cost["another"]["origin_requests"]) == (0, 0)


def test_a_client_limit_holds_or_is_said(lab_module, capsys):
    """Where a memory cgroup can be made, a reader runs inside it; where not, it runs all the same."""
    import usage
    with usage.ClientLimit(64 * MIB) as limit:
        inside = subprocess.run(limit.wrap(["cat", "/proc/self/cgroup"]), stdout=subprocess.PIPE, text=True, check=True).stdout
        assert (limit.limit_bytes is None) != (f"forebay-bench-{os.getpid()}" in inside)
        directory = limit._dir
    assert directory is None or not directory.exists()
    assert limit.limit_bytes or "without a memory limit" in capsys.readouterr().err


# ---- the commands ----

def test_data_set_is_the_same_every_time(tmp_path):
    """Two runs give the same files; shards are tar files of 32 MiB that hold images and labels."""
    import tarfile
    for name in ("a", "b"):
        subprocess.run([sys.executable, BENCH / "dataset.py", "make", tmp_path / name, "--images", "30", "--shards", "1"], check=True)
    assert subprocess.run(["diff", "-r", tmp_path / "a", tmp_path / "b"]).returncode == 0
    images = list((tmp_path / "a" / "images").rglob("*.jpg"))
    assert len(images) == 30 and all(90_000 <= p.stat().st_size <= 130_000 for p in images)
    shard = tmp_path / "a/shards/shard-00000.tar"
    assert shard.stat().st_size == 32 * MIB
    with tarfile.open(shard) as archive:
        names = archive.getnames()
    assert len(names) > 400 and {n.rsplit(".", 1)[1] for n in names} == {"jpg", "cls"}


@pytest.mark.parametrize("arguments, words", [
    (["--only", "warmth"], "warmth"), (["--only", ""], "--only ''"), (["--fast"], "--fast"), (["--all", "--only", "s3"], "--all and --only"),
    (["--dir", "/no/such/directory"], "/no/such/directory"), (["--dir", "/dev/null"], "/dev/null"), (["--only", "scale"], "FOREBAY_SCALE_ENTRIES=many")])
def test_run_refuses_what_it_does_not_know(arguments, words):
    """An unknown measurement or option, and a directory that cannot be measured, are named in one line before anything is built, exit 2."""
    done = subprocess.run([BENCH / "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "FOREBAY_BENCH_PREPARED": "1", "FOREBAY_SCALE_ENTRIES": "many"})
    assert done.returncode == 2 and words in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def bench_run():
    """bench/run as a module."""
    import importlib.machinery
    loader = importlib.machinery.SourceFileLoader("bench_run", str(BENCH / "run"))
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(run)
    return run


def test_too_little_room_is_told(lab_module, monkeypatch, tmp_path, capsys):
    """In one line with what to do, exit 1, and nothing is left there."""
    run = bench_run()
    monkeypatch.setattr(run, "end_in_order", lambda: None)  # the signals are those of the tests
    monkeypatch.setattr(lab_module, "QUICK_FREE_BYTES", 1 << 60)
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(sys, "argv", ["bench/run", "--quick", "--only", "ceiling", "--dir", str(tmp_path / "data")])
    for name, value in {**environment(), "BUILD": str(tmp_path), "FOREBAY_BIN": str(harness.forebay_bin())}.items():
        monkeypatch.setenv(name, value)
    assert run.main() == 1
    said = capsys.readouterr().err
    assert "are needed: give another directory with --dir" in said.splitlines()[-1] and os.listdir(tmp_path / "data") == []


def test_a_result_names_the_sources_it_is_of(lab_module, monkeypatch, tmp_path):
    """The commit, and whether anything that a figure depends on was changed since; the results that the run itself writes are no change.
    The name of the sources is the same on top of another history."""
    run = bench_run()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setenv("FOREBAY_BIN", str(harness.forebay_bin()))
    lab = type("Fake", (), {"quick": False, "dir": tmp_path})

    def git(*words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip()

    def described():
        return run.describe(lab, lab_module, test_a_result_names_the_sources_it_is_of)

    git("init", "-q")
    for name in ("src/a.c", "bench/lab.py", "bench/results/s3.json", "bench/RESULTS.md", "bench/NOTES.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    first = described()
    assert first["commit"] == git("rev-parse", "--short", "HEAD") and first["sources"] == git("rev-parse", "--short", "HEAD:src")
    for name, changed in (("bench/results/s3.json", False), ("bench/RESULTS.md", False), ("bench/NOTES.md", False), ("bench/lab.py", True), ("src/a.c", True)):
        (tmp_path / name).write_text("two")
        assert described()["commit"].endswith(" with changes") == changed, name
        git("checkout", "-q", "--", name)
    git("commit", "-q", "--amend", "-m", "another")
    again = described()
    assert again["commit"] != first["commit"] and again["sources"] == first["sources"]
    import report
    page = report.section("warm", {**result_of(lab_module, []), "sources": again["sources"]})
    assert f"at commit c (src {again['sources']});" in page


def test_the_runs_of_the_rows_are_told(lab_module, tmp_path):
    """Each commit once, with when and what was measured there; measurements that no goal stands for are left out."""
    import goals
    import report
    row = lab_module.pair_row("Warm reads through the mount, mmap", 0.95, [(0.9, 1.0)] * 9, 0, "MB/s")
    for name, commit, date in (("warm", "aaa", "2026-01-01 01:00 UTC"), ("cold", "aaa", "2026-01-01 02:00 UTC"), ("peers_warm", "bbb", "2026-01-02 00:00 UTC"),
                               ("ceiling", "ccc", "2026-01-03 00:00 UTC")):
        (tmp_path / f"{name}.json").write_text(json.dumps({**result_of(lab_module, [row]), "commit": commit, "date": date}))
    told = goals.runs(tmp_path)
    assert told.splitlines() == ["* commit bbb, 2026-01-02 00:00 UTC: `peers_warm`",
                                 "* commit aaa, 2026-01-01 01:00 UTC to 2026-01-01 02:00 UTC: `warm`, `cold`"]
    assert told in report.render(tmp_path)


def environment():
    variables = {k: v for k, v in os.environ.items() if k not in ("FOREBAY_BIN", "FOREBAY_SHAPER_BIN")}
    return {**variables, "BUILD": str(BUILD), "FOREBAY_BENCH_PREPARED": "1"}


@pytest.mark.timeout(1800)
def test_a_quick_run_end_to_end(work):
    """bench/run --quick measures for real, with the right bytes on both sides, says that it was quick, keeps the published page
    as it is, and leaves nothing behind."""
    page = BENCH / "RESULTS.md"
    before = page.read_bytes() if page.exists() else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory:
        done = subprocess.run([sys.executable, BENCH / "run", "--quick", "--only", "s3", "--dir", directory], env=environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr
        assert os.listdir(directory) == []
    assert "quick run" in done.stdout and "nginx with sendfile" in done.stdout
    *_, table, last = done.stdout.strip().split("\n\n")
    assert table.startswith("| work | reference in the same run | goal |") and last.startswith("1 measurements in ")
    result = json.loads((BUILD / "bench-quick/s3.json").read_text())
    assert result["quick"] and result["rows"][0]["n"] == 3 and all(a > 0 and b > 0 for a, b in result["rows"][0]["pairs"])
    assert (page.read_bytes() if page.exists() else None) == before


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path, number):
    """Neither its directory nor a process, also when its terminal goes away."""
    import peers
    build = tmp_path / "build"  # of its own: others measure meanwhile
    build.mkdir()
    for name in ("forebay", "bench"):
        (build / name).symlink_to(BUILD / name)
    (tmp_path / "data").mkdir()
    with subprocess.Popen([sys.executable, BENCH / "run", "--quick", "--only", "ceiling", "--dir", tmp_path / "data"],
                          env={**environment(), "BUILD": str(build)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as process:
        harness.wait_until(lambda: os.listdir(tmp_path / "data") and len(peers.tree([process.pid])) > 1, 200, "the run")
        pids = peers.tree([process.pid])
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 128 + number
    assert os.listdir(tmp_path / "data") == [] and all(gone(pid) for pid in pids)


@pytest.mark.timeout(1800)
def test_one_run_at_a_time(tmp_path):
    """Two runs at once would measure each other: the second ends, exit 1."""
    import fcntl
    with open(tmp_path / "bench.lock", "w") as lock:  # of a build of its own: others measure meanwhile
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = subprocess.run([sys.executable, BENCH / "run", "--quick", "--only", "s3", "--dir", tmp_path],
                              env={**environment(), "BUILD": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and "another run" in done.stderr


@pytest.mark.timeout(1800)
def test_scale_with_few_entries(work):
    """bench/scale makes an index, opens it cold, answers look-ups, prints the rows with their goals, and removes it."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir=work) as directory:
        done = subprocess.run([BENCH / "scale", "--json", "--dir", directory, "20000"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env={**os.environ, "BUILD": str(BUILD)})
        assert done.returncode == 0, done.stderr
        assert os.listdir(directory) == []
    rows = {row["title"].split(": ", 1)[1]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["ready after a clean stop"]["goal"] == "within 10 s"
    assert rows["anonymous memory when ready"]["goal"] == "at most 512 MiB"
    assert any(title.startswith("lookups of random entries") for title in rows)
