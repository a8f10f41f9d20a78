"""The programs behind `make bench`: that they read what they say, count right, judge right, and fail when they should. How fast
anything is, no test asks."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

import harness
from benched import BENCH, BUILD, MIB, Unwatched, bench_run, lab_module, program  # noqa: F401 (lab_module is a fixture)


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
    assert json.loads(program("getload", "--piece", 1, address, tmp_path / "list", 1, 2).stdout)["bytes"] == 30
    for piece in (0, 4097, "x"):
        done = program("getload", "--piece", piece, address, tmp_path / "list", 1, 2)
        assert done.returncode == 2 and "KIB 1 to 4096" in done.stderr


def test_getload_keeps_what_comes(origin, lab_module, tmp_path):
    """With --keep every answer is a file with its bytes, named by its request's number; one that is there already ends the run."""
    bucket, bodies = origin.new_bucket(), [harness.random_bytes(n) for n in (200_000, 1, 0)]
    client = origin.s3(signature_version="s3v4")
    for i, body in enumerate(bodies):
        client.put_object(Bucket=bucket, Key=f"k{i}", Body=body)
    targets, address = lab_module.Lab.targets(client, bucket, [f"k{i}" for i in range(3)])
    (tmp_path / "list").write_text("\n".join(targets))
    (tmp_path / "kept").mkdir()
    said = json.loads(program("getload", "--keep", tmp_path / "kept", address, tmp_path / "list", 2, 6).stdout)
    assert said["bytes"] == 2 * sum(map(len, bodies)) and "compared" not in said
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == {str(i): bodies[i % 3] for i in range(6)}
    done = program("getload", "--keep", tmp_path / "kept", address, tmp_path / "list", 2, 6)
    assert done.returncode == 1 and "File exists" in done.stderr


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


def with_bytes(directory):
    """The contents of all files that have some."""
    found = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found.append(path.read_bytes())
    return [body for body in found if body]


@pytest.mark.parametrize("size", [0, 1, 1_000_000, 9 * MIB + 7])
def test_putceiling_keeps_what_it_answers(tmp_path, size):
    """The ETag is the body's MD5, or none with "opaque", and the directory holds the bytes of each connection's last body,
    besides empty files."""
    body = harness.random_bytes(size)
    for options in ([], ["opaque"]):
        with put_ceiling(tmp_path / "-".join(["d", *options]), *options) as address, \
                contextlib.closing(http.client.HTTPConnection(address, timeout=200)) as connection:
            for data in (b"before", body):
                connection.request("PUT", "/b/k", body=data, headers={"Expect": "100-continue"} if data else {})
                reply = connection.getresponse()
                assert reply.read() == b"" and reply.status == 200
            etag = reply.headers["ETag"].strip('"')
            kept = tmp_path / "-".join(["d", *options])
            harness.wait_until(lambda: with_bytes(kept) == ([body] if size else []), what="what was replaced gone")
        assert etag == ("0" * 32 + "-1" if options else hashlib.md5(body).hexdigest())


def test_putceiling_serves_several_connections_at_once(tmp_path):
    """Each body has its own MD5 and bytes, and what connections had is gone when they are. (Seen to fail where two connections
    share their pieces, and without the give_back at the end of a connection.)"""
    with put_ceiling(tmp_path / "d") as address:
        bodies = [harness.random_bytes(3 * MIB + i) for i in range(4)]

        def put(connection, body):
            for data in (body[:1000], body):
                connection.request("PUT", "/b/k", body=data)
                reply = connection.getresponse()
                assert reply.read() == b"" and reply.headers["ETag"].strip('"') == hashlib.md5(data).hexdigest()

        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(4) as pool:
            connections = [stack.enter_context(contextlib.closing(http.client.HTTPConnection(address, timeout=200))) for _ in bodies]
            list(pool.map(put, connections, bodies))
            harness.wait_until(lambda: sorted(with_bytes(tmp_path / "d")) == sorted(bodies), what="what was replaced gone")
        harness.wait_until(lambda: with_bytes(tmp_path / "d") == [], what="what connections had gone")


def test_putceiling_takes_requests_that_come_at_once(tmp_path):
    """Heads and bodies that arrive together, the next head behind the body before it. (Seen to fail with what came with a body
    left where it was, in piece_receive.)"""
    bodies = [harness.random_bytes(n) for n in (7, 0, 5000, 300_000, 1, 11)]
    with put_ceiling(tmp_path / "d") as address, socket.create_connection(address.split(":"), timeout=200) as s:
        s.sendall(b"".join(b"PUT /b/k HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body for body in bodies))
        said = b""
        while said.count(b"\r\n\r\n") < len(bodies):
            more = s.recv(4096)
            assert more, said
            said += more
        assert [part.split(b'"')[1].decode() for part in said.split(b"HTTP/1.1 200 OK")[1:]] == [hashlib.md5(body).hexdigest() for body in bodies]
        harness.wait_until(lambda: with_bytes(tmp_path / "d") == [bodies[-1]], what="what was replaced gone")


def test_putceiling_forgets_what_it_is_told_to(tmp_path):
    """With "discard" bodies are received to their end, one after the other, and nothing is kept."""
    with put_ceiling(tmp_path / "d", "discard") as address, contextlib.closing(http.client.HTTPConnection(address, timeout=200)) as connection:
        for size in (0, 9 * MIB + 7, 1):
            connection.request("PUT", "/b/k", body=bytes(size))
            reply = connection.getresponse()
            assert reply.read() == b"" and reply.status == 200
    assert os.listdir(tmp_path / "d") == []


FIO = """for a in "$@"; do case $a in --directory=*) d=${a#*=};; --filesize=*) n=${a#*=};; --fsync_on_close=1) synced=1;; esac; done
[ -n "$synced" ] || exit 1
for i in %s; do head -c $n /dev/zero >$d/files.$i; done
echo '{"jobs": [{"write": {"io_bytes": 4194304, "runtime": 500}}]}'
"""


@pytest.mark.parametrize("made", ["1 2 3 4", "1 2 3"])
def test_what_fio_did_not_write_is_no_rate(lab_module, monkeypatch, tmp_path, made):
    """The bytes that fio says it wrote by the time that it took, each file synced; files that are missing are an error."""
    import uploads  # needs the path of the benchmarks
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/fio", FIO % made)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with contextlib.nullcontext() if made == "1 2 3 4" else pytest.raises(RuntimeError, match="3 files"):
        assert uploads.fio_sample(tmp_path / "files", MIB, 2, 4)["rate"] == 4 * MIB / 0.5
    assert not (tmp_path / "files").exists()


def test_putceiling_refuses_what_it_does_not_know(tmp_path):
    """A GET, or a body without length, ends the connection; a directory that is not there: one line, exit 1."""
    with put_ceiling(tmp_path / "d") as address:
        for head in (b"GET /b/k HTTP/1.1\r\n\r\n", b"PUT /b/k HTTP/1.1\r\nHost: h\r\n\r\n"):
            with socket.create_connection(address.split(":"), timeout=200) as s:
                s.sendall(head)
                assert s.recv(100) == b""
        assert with_bytes(tmp_path / "d") == []
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


@pytest.fixture
def unchanged():
    """The environment, behind all that the test has asked for after this one."""
    before = dict(os.environ)
    yield
    assert {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST" and before.get(name) != value} == {}


def test_the_lab_leaves_nothing_in_the_environment(unchanged, lab_module):
    """Which program the tests behind it run is not its to say: it took that without sanitizers for all of them. (Seen to fail, alone, where
    lab_module leaves to lab.py what it sets.)"""
    assert "FOREBAY_BIN" in os.environ and "FOREBAY_SHAPER_BIN" in os.environ


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
@pytest.mark.parametrize("measure", ["warm", "cold", "first", "epoch", "memory", "s3", "values", "put", "write_back", "jobs", "uneven"])
def test_who_gives_other_bytes_has_no_figure(lab_module, monkeypatch, work, measure):
    """One bit is another one than in what the measurement compares with: it fails, however fast it was."""
    import dataset
    import front
    import measures
    import moving
    import uneven
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
                          (moving, {"LARGE_BYTES": MIB}), (uneven, {"QUICK_FILES": 8, "QUICK_LARGE_BYTES": MIB}), (uploads, {"PUT_SIZE": "64KiB", "QUICK_BACK_BYTES": MIB})):
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    table = {**measures.MEASURES, **front.MEASURES, **uploads.MEASURES, **moving.MEASURES, **uneven.MEASURES}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory, lab_module.Lab(directory, quick=True) as lab:
        with pytest.raises(RuntimeError, match="other bytes"):
            table[measure](lab)


def test_clients_alone_beside_import_and_export(lab_module, origin, monkeypatch, work):
    """All objects come and are sent whole, in ranges and parts, and nothing stays; a part that is refused is no rate but an error."""
    import moving
    monkeypatch.setattr(moving, "BARE_RANGE_BYTES", MIB)
    monkeypatch.setattr(moving, "BARE_PART_BYTES", 5 * MIB)
    emptied = []
    monkeypatch.setattr(moving, "empty", lambda client, bucket: emptied.extend(
        (entry["Key"], entry["Size"]) for entry in client.list_objects_v2(Bucket=bucket)["Contents"]))
    with tempfile.TemporaryDirectory(prefix="bench-", dir=work) as directory, lab_module.Lab(directory, quick=True) as lab:
        plain, client, bucket = lab.path("plain"), origin.s3(signature_version="s3v4"), origin.new_bucket()
        plain.write_bytes(harness.random_bytes(7 * MIB))
        parts = moving.parts_of(lab, plain)
        assert b"".join(part.read_bytes() for part in parts) == plain.read_bytes() and len(parts) == 2
        assert moving.bare_export(lab, client, bucket, ["a", "b"], parts) > 0
        assert emptied == [("a", 7 * MIB), ("b", 7 * MIB)]
        assert moving.bare_import(lab, client, bucket, ["a", "b"], 7 * MIB) > 0
        parts[1].unlink()
        with pytest.raises(RuntimeError, match="curl"):
            moving.bare_export(lab, client, bucket, ["c"], parts)


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

    class Fake(Unwatched):
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
    """They say so. (Seen to fail without the look whether there is a program, in front.py.)"""
    import front
    import peers
    import versus
    monkeypatch.setattr(peers, "program", lambda name: None)
    with pytest.raises(versus.NotRun, match="nginx"):
        front.Nginx(tmp_path / "nginx", root=tmp_path)


def test_nginx_has_the_congestion_control_of_ours(lab_module, monkeypatch, tmp_path):
    """Where it is measured alike: it serves the listeners that were made for it, one for each worker, and connections have what
    their listener has; also where it makes them itself each worker has one (reuseport). (Seen to fail without the variable NGINX
    in front.py, with it always, with one listener for all workers, and without reuseport.)"""
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
            assert len(made) == (front.workers() if alike else 0) and set(made) <= held
            # The table is no snapshot: what others close and open meanwhile may have it told twice, or not at all.
            harness.wait_until(lambda: len(there := listening_at(nginx.port)) == front.workers() and set(made) <= there, what="its listeners")
            harness.wait_until(lambda: len(peers.tree([nginx.pid])) == 1 + front.workers(), what="its workers")
            made.clear()


def listening_at(port):
    """The sockets that listen at a port of the loopback, as /proc names descriptors."""
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{line[9]}]" for line in lines if line[1] == f"0100007F:{port:04X}" and line[3] == "0A"}


def gone(pid):
    """Ended, whether somebody took note or not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter between the opening and the reading
        return True


def named(pids, name):
    """Those of the processes that run the program of this name."""
    def program_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()

    return [pid for pid in pids if program_of(pid) == name]


def killed_in_the_middle(code, name, *arguments):
    """Runs Python code that prints a process id and waits; kills it when that process has one below it that runs the program of this name,
    which then knows by whose death it is to end; gives them all."""
    import peers

    def all_of_them():
        pids = peers.tree([first])
        return pids if named(pids[1:], name) else None

    with subprocess.Popen([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}", *map(str, arguments)], text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "BUILD": str(BUILD)}) as process:
        first = int(process.stdout.readline())
        pids = harness.wait_until(all_of_them, 60, "its children")
        process.kill()
    return pids


def test_nginx_ends_with_the_run(lab_module, tmp_path):
    """When the run is killed, its workers end, too. (Seen to fail without IN_ORDER in front.py.)"""
    import peers
    if peers.program("nginx") is None:
        pytest.skip("not run: nginx is not installed")
    code = "import front, time; print(front.Nginx(sys.argv[1], root=sys.argv[1]).pid, flush=True); time.sleep(600)"
    pids = killed_in_the_middle(code, "nginx", tmp_path / "nginx")
    harness.wait_until(lambda: all(gone(pid) for pid in pids), what="the end of nginx")


def test_the_index_is_not_made_for_nobody(lab_module, tmp_path):
    """When bench/scale is killed, what makes the entries for it ends, too."""
    code = ("import importlib.machinery, importlib.util, os\n"
            "loader = importlib.machinery.SourceFileLoader('scale', sys.argv[1])\n"
            "scale = importlib.util.module_from_spec(importlib.util.spec_from_loader('scale', loader))\n"
            "loader.exec_module(scale)\nprint(os.getpid(), flush=True)\nscale.run(sys.argv[2], 50_000_000, '--load')")
    pids = killed_in_the_middle(code, "index_scale", BENCH / "scale", tmp_path / "index")
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
@pytest.mark.parametrize("number, before", [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.SIG_DFL),
                                            (signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_IGN)])
def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path, number, before):
    """Neither its directory nor a process, also when its terminal goes away, and where a shell that began it in the background
    had it ignore the signal. (Seen to fail for both that are ignored with the handlers installed only where a signal is not, in
    end_in_order.)"""
    import peers
    build = tmp_path / "build"  # of its own: others measure meanwhile
    build.mkdir()
    for name in ("forebay", "bench"):
        (build / name).symlink_to(BUILD / name)
    (tmp_path / "data").mkdir()
    with subprocess.Popen([sys.executable, BENCH / "run", "--quick", "--only", "ceiling", "--dir", tmp_path / "data"],
                          env={**environment(), "BUILD": str(build)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(number, before)) as process:
        try:
            harness.wait_until(lambda: os.listdir(tmp_path / "data") and len(peers.tree([process.pid])) > 1, 200, "the run")
            pids = peers.tree([process.pid])
            process.send_signal(number)
            process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert os.listdir(tmp_path / "data") == []
    harness.wait_until(lambda: all(gone(pid) for pid in pids), what="the end of all processes")  # some by the death of the first


@pytest.mark.timeout(1800)
def test_a_run_without_a_terminal_goes_on_when_that_goes_away(tmp_path, monkeypatch):
    """Who began it with nohup wants that: SIGHUP stays ignored. (Seen to fail with SIGHUP among those that are always
    handled.)"""
    run = bench_run()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        run.end_in_order()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and callable(signal.getsignal(signal.SIGINT))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_scale_that_is_ended_leaves_nothing_behind(work, number):
    """While it makes entries, and where it was begun to ignore the signal. (Seen to fail with the handlers installed only where a
    signal is not ignored.)"""
    import peers
    with tempfile.TemporaryDirectory(prefix="scale-", dir=work) as directory, \
            subprocess.Popen([BENCH / "scale", "--dir", directory, "2000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={**os.environ, "BUILD": str(BUILD)}, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN)) as process:
        try:
            [pid] = harness.wait_until(lambda: os.listdir(directory) and named(peers.tree([process.pid]), "index_scale"), 600,
                                       "what makes the entries")
            process.send_signal(number)
            process.communicate(timeout=600)
        finally:
            process.kill()
        assert process.returncode == 128 + number and os.listdir(directory) == []
        harness.wait_until(lambda: gone(pid), what="its end")


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
