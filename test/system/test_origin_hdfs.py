"""The HDFS origin before a namenode and a datanode: nodes that end and start again, safe mode, rights, odd names, long folders, faults on
the way, bodies that break off, wrong settings."""

import json
import os
import socket
import threading

import botocore.exceptions
import pytest
import urllib3.exceptions

import harness
import origins
import wire
from relay import Listener
from test_origins import check, fill, s3_keys

pytestmark = pytest.mark.timeout(1500)  # two Java programs start


@pytest.fixture(scope="module")
def server(work):
    reason = origins.Hadoop.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    with origins.Hadoop(work / "hdfs-origin") as running:
        yield running


@pytest.fixture(scope="module")
def node(work):
    with harness.Node(work / "hdfs-node") as running:
        yield running


def new_bucket(node, server, url=None, **properties):
    name = harness.random_name()
    server.make_folder(name)
    node.create_bucket(name, url(name) if url else server.url(name), **{**server.properties(), **properties})
    return name


class Relay(Listener):
    """A TCP relay before the namenode that breaks on purpose: the next `times` connections whose request has `match` are answered
    with `answer` (bytes), or closed when that is empty. What the namenode tells as `told` becomes `instead`. Of the next `cuts` answers
    no more than `cut_after` bytes come, then nothing until `cut_go` is set, and then the end."""

    def __init__(self, port, told=b"", instead=b""):
        self.upstream, self.told, self.instead = port, told, instead
        self.cuts, self.cut_after, self.cut_go, self.held = 0, 0, threading.Event(), threading.Event()
        self.cut_go.set()
        self.match, self.answer, self.times = None, b"", 0
        super().__init__()

    def fault(self, match, answer=b"", times=1):
        self.answer, self.times, self.match = answer, times, match

    def _serve(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.upstream))
        except OSError:  # it is away
            client.close()
            return
        with client, server:
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            while data := self._read(client):
                if self.times > 0 and self.match in data:
                    self.times -= 1
                    if self.answer:
                        client.sendall(self.answer)
                    client.shutdown(socket.SHUT_RDWR)
                    return
                server.sendall(data)

    @staticmethod
    def _read(connection):
        try:
            return connection.recv(65536)
        except OSError:
            return b""

    def cut(self, after, times=1, waits=False):
        self.held.clear()
        self.cut_go.clear() if waits else self.cut_go.set()
        self.cut_after, self.cuts = after, times

    def _copy(self, source, target):
        left = None
        try:
            while data := self._read(source):
                if self.told:
                    data = data.replace(self.told, self.instead)
                if left is None and self.cuts > 0:
                    self.cuts, left = self.cuts - 1, self.cut_after
                if left is not None and len(data) > left:
                    target.sendall(data[:left])
                    self.held.set()
                    self.cut_go.wait(600)
                    break
                left = None if left is None else left - len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.fixture
def relay(server):
    with Relay(server.port) as running:
        yield running


def test_long_folder(node, server):
    """A folder that the namenode tells in many batches is listed whole, and in order."""
    name = new_bucket(node, server)
    s3 = node.s3()
    keys = sorted([f"k{i:02d}" for i in range(20)] + ["k-1", "k00-1", "k/x"])
    fill(server, name + "/", {key: key.encode() for key in keys})  # batches are of 7 here
    assert s3_keys(s3, name) == keys
    assert s3_keys(s3, name, PaginationConfig={"PageSize": 4}) == keys


def test_rights(node, server):
    """What the user may not is refused in the namenode's words; another user sees what is open to all."""
    name = new_bucket(node, server)
    fill(server, name + "/", {"k": b"data"})
    assert server.ask("PUT", f"work/{name}/k", "SETPERMISSION", permission="600")[0] == 200
    other = harness.random_name()
    node.create_bucket(other, server.url(name), **{"origin.user": "somebody"})
    s3 = node.s3()
    assert s3_keys(s3, other) == ["k"]
    for call in (lambda: s3.get_object(Bucket=other, Key="k"), lambda: s3.put_object(Bucket=other, Key="n", Body=b"x")):
        with pytest.raises(s3.exceptions.ClientError) as refused:
            call()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    said = check(node, server.url(name), {"origin.user": "somebody"}, status=1)
    assert "AccessControlException" in said["write"]["text"], said


def test_no_temporary_file_is_left(node, server):
    """After writes, good and refused, the folder holds the objects and nothing else."""
    name = new_bucket(node, server)
    s3 = node.s3()
    for i in range(3):
        s3.put_object(Bucket=name, Key="k", Body=os.urandom(100000 + i))
    with pytest.raises(s3.exceptions.ClientError):
        s3.put_object(Bucket=name, Key="k", Body=b"x", IfNoneMatch="*")
    assert list(server.names(f"{name}/")) == ["k"]
    assert server.names(f"{name}/")["k"]["length"] == 100002


def test_modification_time(node, server):
    """The time that metadata tells is given to the file."""
    name = new_bucket(node, server)
    node.s3().put_object(Bucket=name, Key="k", Body=b"data", Metadata={"mtime": "1500000000.25"})
    assert server.names(f"{name}/")["k"]["modificationTime"] == 1500000000250


def test_datanode_restarts(node, server):
    """While the datanode is away reads end with an error that says so; afterwards they work, without anyone's help."""
    name = new_bucket(node, server)
    data = os.urandom(500000)
    fill(server, name + "/", {"k": data})
    server.datanode.kill()
    s3 = node.s3()
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.get_object(Bucket=name, Key="k")["Body"].read()
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] >= 500
    server.start_datanode()
    harness.wait_until(server._answers, 120, "the datanode is back")
    assert s3.get_object(Bucket=name, Key="k")["Body"].read() == data


def test_faults_on_the_way(node, server, relay):
    """A namenode that is busy, breaks off or answers with a page of some proxy now and then is asked again."""
    def url(name):
        return f"hdfs://127.0.0.1:{relay.port}/work/{name}"

    name = new_bucket(node, server, url, validate="always")
    s3 = node.s3()
    body = b'{"RemoteException":{"exception":"RetriableException","message":"later"}}'
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    page = b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
    cut = b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"FileStatus"'
    for i, answer in enumerate((busy, page, cut, b"")):
        data = os.urandom(50000)
        server.put(f"{name}/k{i}", data)
        for match in (b"op=GETFILESTATUS", b"op=OPEN"):
            relay.fault(match, answer)
            assert s3.get_object(Bucket=name, Key=f"k{i}")["Body"].read() == data
        relay.fault(b"op=LISTSTATUS", answer)
        assert f"k{i}" in s3_keys(s3, name)


@pytest.fixture
def data_relay(server):
    """(relay before the datanode, relay before the namenode, which sends readers and writers to the former)."""
    http = server.ports["http"]
    with Relay(http) as data, Relay(server.port, f":{http}/".encode(), f":{data.port}/".encode()) as names:
        yield data, names


def test_bodies_that_break_off(node, server, data_relay):
    """Bytes that the datanode sends only in part are fetched again, and what came meanwhile is not taken for the file. Where nobody
    repeats them the reader hears of it, and nothing wrong is kept: a later read is whole. (Seen to fail where ORIGIN_SHORT is not tried
    again.)"""
    data, names = data_relay
    body = os.urandom(3_000_000)
    bucket = new_bucket(node, server, lambda name: f"hdfs://127.0.0.1:{names.port}/work/{name}")
    hasty = new_bucket(node, server, lambda name: f"hdfs://127.0.0.1:{names.port}/work/{name}", retry="0s")
    for name in (bucket, hasty):
        server.put(f"{name}/k", body)
    s3 = node.s3()
    data.cut(after=700_000, times=2)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body and data.cuts == 0
    data.cut(after=700_000, times=1000)
    with pytest.raises((botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, urllib3.exceptions.HTTPError)):
        s3.get_object(Bucket=hasty, Key="k")["Body"].read()
    assert data.cuts < 1000
    data.cut(after=0, times=0)
    assert s3.get_object(Bucket=hasty, Key="k")["Body"].read() == body


def test_datanode_that_goes_while_it_is_read(node, server, data_relay):
    """A datanode is killed while a reader gets bytes of it: the reader waits as long as the bucket's `retry` says, and has the whole file
    when it is back. (Seen to fail where nothing is tried again.)"""
    data, names = data_relay
    body = os.urandom(3_000_000)
    name = new_bucket(node, server, lambda name: f"hdfs://127.0.0.1:{names.port}/work/{name}", retry="10m")
    server.put(f"{name}/k", body)
    data.cut(after=700_000, times=1, waits=True)
    got = []
    reader = threading.Thread(target=lambda: got.append(node.cli("cat", f"{name}/k", stdin=b"", timeout=900).stdout), daemon=True)
    reader.start()
    try:
        assert data.held.wait(120)
        server.datanode.kill()
        data.cut_go.set()
        harness.wait_until(lambda: node.metric("forebay_origin_retries_total", bucket=name) > 0, 120, "it is tried again")
        assert reader.is_alive()
    finally:
        data.cut_go.set()
        if not server.datanode.running():
            server.start_datanode()
            harness.wait_until(server._answers, 300, "the datanode is back")
    reader.join(600)
    assert got == [body]


def test_namenode_that_restarts_in_mid_job(node, server):
    """The namenode is killed while a job reads and started again: the job waits for it, and all of it is here in the end, byte for byte;
    what is written then is there. (Seen to fail where nothing is tried again.)"""
    name = new_bucket(node, server, retry="10m")
    contents = {f"d/{i:02}": bytes([i]) * (20_000 + i) for i in range(20)}
    fill(server, name + "/", contents)
    job = json.loads(node.cli("prefetch", "--json", "--rate", "40kB/s", "--parallel", "2", name).stdout)["id"]

    def show():
        return json.loads(node.cli("job", "show", job, "--json").stdout)

    harness.wait_until(lambda: show()["done_objects"] >= 3, 120, "it has begun")
    server.restart_namenode()
    harness.wait_until(server._answers, 400, "the namenode is back")
    node.cli("job", "wait", job, "--quiet", check=False)
    now = show()
    assert (now["state"], now["done_objects"], now["failed_objects"]) == ("done", 20, 0), (now, node.cli("job", "errors", job).stdout)
    before = node.metric("forebay_origin_read_bytes_total", bucket=name)
    assert all(node.s3().get_object(Bucket=name, Key=key)["Body"].read() == data for key, data in contents.items())
    assert node.metric("forebay_origin_read_bytes_total", bucket=name) == before
    node.s3().put_object(Bucket=name, Key="after", Body=b"after")
    assert server.get(f"{name}/after") == b"after"


def test_safe_mode(node, server):
    """In safe mode HDFS is read as ever, and whatever changes it is refused in the namenode's words: writes and removals, each object of an
    export, with nothing left there. With write=back what is written waits, and goes there when safe mode ends; a retry does the export's
    rest. (Seen to fail where hdfs_json.c knows no SafeModeException: a client of S3 is not told to come again.)"""
    name, later = new_bucket(node, server, retry="1s"), new_bucket(node, server, write="back", retry="1s")
    scratch, s3 = harness.scratch_bucket(node), node.s3()
    fill(server, name + "/", {"k": b"data"})
    for i in range(4):
        s3.put_object(Bucket=scratch, Key=f"e/{i}", Body=b"e" * (1000 + i))
    once = node.s3(retries={"max_attempts": 0})
    server.safe_mode(True)
    try:
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"data" and s3_keys(s3, name) == ["k"]
        for refused in (lambda: once.put_object(Bucket=name, Key="new", Body=b"n"), lambda: once.delete_object(Bucket=name, Key="k")):
            with pytest.raises(once.exceptions.ClientError) as told:
                refused()
            assert told.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503, told.value
            assert "safe mode" in told.value.response["Error"]["Message"], told.value
        s3.put_object(Bucket=later, Key="kept", Body=b"kept")
        assert s3.get_object(Bucket=later, Key="kept")["Body"].read() == b"kept"
        done = node.cli("export", "--set", f"origin.user={server.user}", scratch + "/e/", server.url(name), "--wait", "--json", check=False)
        job = json.loads(done.stdout)
        assert (job["state"], job["done_objects"], job["failed_objects"]) == ("partly failed", 0, 4), job
        told = json.loads(node.cli("job", "errors", job["id"], "--json").stdout)
        assert all("safe mode" in x["reason"] for x in told) and "safe mode" in job["reason"], (told, job)
    finally:
        server.safe_mode(False)
    assert server.keys(name + "/") == [name + "/k"]
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"], "--quiet")
    assert all(server.get(f"{name}/{i}") == b"e" * (1000 + i) for i in range(4))
    harness.wait_until(lambda: server.get(f"{later}/kept") == b"kept", 120, "what waited is there")


def test_secrets_stay_secret(node, server, relay):
    """A delegation token that is refused is told of, and is in no text and no log; nor is where a redirect would take it."""
    token = "HQADd2hvA3dobwAhush"
    body = b'{"RemoteException":{"exception":"InvalidToken","message":"token is expired"}}'
    for answer, words in ((b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body), "InvalidToken"),
                          (b"HTTP/1.1 302 Found\r\nLocation: http://login/?back=" + token.encode() + b"\r\nContent-Length: 0\r\n\r\n",
                           "is this its port")):
        relay.fault(b"delegation=" + token.encode(), answer, times=100)
        with pytest.raises(wire.WireError) as refused:
            node.create_bucket(harness.random_name(), f"hdfs://127.0.0.1:{relay.port}/work", **{"origin.delegation_token": token})
        assert words in str(refused.value) and token not in str(refused.value), refused.value
    assert token not in node.log()


def test_odd_names(node, server):
    """Names with every kind of character arrive as they are; those that HDFS cannot have are refused."""
    name = new_bucket(node, server)
    s3 = node.s3()
    keys = ["a+b", "a b", "a%20b", "a&b=c", "ünï", "q?x#y", "semi;colon", "x" * 200, "deep/" + "y" * 200]
    for key in keys:
        s3.put_object(Bucket=name, Key=key, Body=key.encode())
    assert s3_keys(s3, name) == sorted(keys, key=lambda k: k.encode())
    for key in keys:
        assert server.get(f"{name}/{key}") == key.encode(), key
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == key.encode()
    with pytest.raises(s3.exceptions.ClientError):
        s3.put_object(Bucket=name, Key="a:b", Body=b"x")


def test_names_below_a_file(node, server):
    """Below a file there is nothing: not found, not refused; and nothing can be made there."""
    name = new_bucket(node, server)
    fill(server, name + "/", {"k": b"data"})
    s3 = node.s3()
    for call in (s3.get_object, s3.head_object):
        with pytest.raises(s3.exceptions.ClientError) as refused:
            call(Bucket=name, Key="k/x")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    s3.delete_object(Bucket=name, Key="k/x")
    assert s3.list_objects_v2(Bucket=name, Prefix="k/").get("KeyCount") == 0
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.put_object(Bucket=name, Key="k/x", Body=b"x")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert server.get(f"{name}/k") == b"data"


def test_wrong_settings(node, server):
    """One line says what is wrong and what to do."""
    said = check(node, server.url("not-there"), server.properties(), status=1)
    assert "correct the path" in said["list"]["text"], said
    said = check(node, f"hdfs://127.0.0.1:{server.ports['rpc']}/work", {**server.properties(), "origin.timeout": "5s"}, status=1)
    assert said["list"]["state"] == "failed", said  # the port of the RPC protocol
    said = check(node, f"hdfs://127.0.0.1:{harness.free_port()}/work", server.properties(), status=1)
    assert "check origin.endpoint" in said["list"]["text"], said
    said = check(node, "hdfs://cluster/work", {**server.properties(), "origin.endpoint": server.endpoint})
    assert said["list"]["state"] == "ok", said
    for url, words in (("hdfs://nn/x", "9870"), ("hdfs://nn:9870/x?user.name=me", "origin.user"), ("hdfs://", "hdfs://HOST")):
        done = node.cli("origin", "check", url, check=False)
        assert done.returncode == 2 and words in done.stderr, done.stderr
