"""The HDFS origin before a namenode and a datanode: nodes that end and start again, rights, odd names, long folders, faults on the
way, wrong settings."""

import os
import socket
import threading

import pytest

import harness
import origins
import wire
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


class Relay:
    """A TCP relay before the namenode that breaks on purpose: the next `times` connections whose request has `match` are answered
    with `answer` (bytes), or closed when that is empty."""

    def __init__(self, port):
        self.upstream = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.match, self.answer, self.times = None, b"", 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def fault(self, match, answer=b"", times=1):
        self.answer, self.times, self.match = answer, times, match

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self.upstream)) as server:
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

    def _copy(self, source, target):
        try:
            while data := self._read(source):
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
