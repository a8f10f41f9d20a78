"""The NFS origin before nfs-ganesha: servers that end and start again, links, wrong settings."""

import concurrent.futures
import http.client
import os
import threading
import time
import urllib.parse

import pytest

import harness
import origins
from test_origin_file import kill_while_it_writes, left_in
from test_origins import check, fill, s3_keys


class OnlyFour(origins.Ganesha):
    protocol = 4


@pytest.fixture(scope="module")
def server(work):
    reason = origins.Ganesha.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    with origins.Ganesha(work / "nfs-origin") as running:
        yield running


@pytest.fixture(scope="module")
def node(work):
    with harness.Node(work / "nfs-node") as running:
        yield running


def new_bucket(node, server, **properties):
    name = harness.random_name()
    server.make_folder(name)
    node.create_bucket(name, server.url(name), **{**server.properties(), **properties})
    return name


def test_server_restarts(node, server):
    """A server that was killed and started again is used again without anyone's help; what was written before is there."""
    name = new_bucket(node, server, validate="always")
    s3 = node.s3()
    data = os.urandom(100000)
    s3.put_object(Bucket=name, Key="a/k", Body=data)
    server.restart()
    assert s3.get_object(Bucket=name, Key="a/k")["Body"].read() == data
    s3.put_object(Bucket=name, Key="a/l", Body=data)
    assert server.get(f"{name}/a/l") == data
    assert s3_keys(s3, name) == ["a/k", "a/l"]


def test_server_killed_in_the_middle(node, server):
    """Reads and writes that run while the server is killed and started again end well, or with an error and nothing half written."""
    name = new_bucket(node, server)
    data = {f"k{i}": os.urandom(3 << 20) for i in range(6)}
    fill(server, name + "/", data)
    s3 = node.s3()

    def work(key):
        bad = []
        try:
            if s3.get_object(Bucket=name, Key=key)["Body"].read() != data[key]:
                bad.append(f"{key}: other bytes")
        except Exception as error:  # an error is an answer; other bytes are not
            print(key, error)
        try:
            s3.put_object(Bucket=name, Key="new-" + key, Body=data[key])
            if server.get(f"{name}/new-{key}") != data[key]:
                bad.append(f"new-{key}: acknowledged, but not there")
        except Exception as error:
            print("new", key, error)
        return bad

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        running = [pool.submit(work, key) for key in data]
        time.sleep(0.1)  # somewhere in the middle; where does not matter
        server.restart()
        assert [bad for one in running for bad in one.result(300)] == []
    for key, value in data.items():
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == value
        assert server.get(f"{name}/new-{key}") in (None, value)


def test_no_temporary_file_is_seen(node, server):
    """While an object is being written, no listing and no read shows it; afterwards no other file is left."""
    name = new_bucket(node, server, validate="always", write="through")
    s3 = node.s3()
    folder = server.data / name
    seen, stop = set(), threading.Event()

    def watch():
        while not stop.is_set():
            seen.update(s3_keys(s3, name))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for i in range(5):
            s3.put_object(Bucket=name, Key=f"k{i}", Body=os.urandom(2 << 20))
    finally:
        stop.set()
        watcher.join()
    assert seen <= {f"k{i}" for i in range(5)}
    assert sorted(os.listdir(folder)) == [f"k{i}" for i in range(5)]


def test_a_listing_leaves_alone_what_is_being_written(node, server):
    """It may have the time that the file shall have already, which is an old one."""
    name = new_bucket(node, server, validate="always")
    old, young = (server.data / name / f".forebay-tmp-{digit * 32}" for digit in "ab")
    for path in (old, young):
        path.write_bytes(b"part")
    os.utime(old, (0, time.time() - 25 * 3600))
    assert s3_keys(node.s3(), name) == []
    assert old.exists() and young.exists()


def test_what_a_killed_node_was_writing_goes(server, new_node):
    """When it runs again its next listing removes that, so that the directory can go, too. (Seen to fail where file_tmp_is_of_killed,
    origin/file.c, says no.)"""
    node = new_node()
    name = new_bucket(node, server, validate="always", write="through")
    folder = server.data / name / "d"
    for _ in range(20):
        node.s3().put_object(Bucket=name, Key="d/f", Body=b"")
        if kill_while_it_writes(node, name, "d/f", folder):
            break
    else:
        pytest.fail("no write was cut")
    assert s3_keys(node.s3(), name) == ["d/f"]
    assert not left_in(folder)
    node.s3().delete_object(Bucket=name, Key="d/f")
    node.s3().delete_object(Bucket=name, Key="d/")
    assert not folder.exists()


def test_client_goes_away_in_the_middle(node, server):
    """An upload whose client goes away leaves no file at the server, neither under its name nor under the reserved one."""
    name = new_bucket(node, server, write="through")
    folder = server.data / name
    url = urllib.parse.urlsplit(node.s3().generate_presigned_url("put_object", Params={"Bucket": name, "Key": "k"}))
    client = http.client.HTTPConnection(url.hostname, url.port, timeout=200)
    client.putrequest("PUT", f"{url.path}?{url.query}")
    client.putheader("Content-Length", str(16 << 20))
    client.endheaders()
    client.send(os.urandom(6 << 20))
    harness.wait_until(lambda: os.listdir(folder), what="something is sent to the server")
    client.close()
    harness.wait_until(lambda: not os.listdir(folder), what="nothing is left of it")


def test_slow_uploads_keep_nobody_from_reading(node, server):
    """Uploads whose clients hesitate leave a connection to those who read, of which the sender may be one, and to small objects."""
    name = new_bucket(node, server, write="through", validate="always", **{"origin.connections": 2})
    data = os.urandom(100000)
    fill(server, name + "/", {"k": data})
    s3 = node.s3()
    clients = []
    try:
        for i in range(3):
            url = urllib.parse.urlsplit(s3.generate_presigned_url("put_object", Params={"Bucket": name, "Key": f"slow{i}"}))
            client = http.client.HTTPConnection(url.hostname, url.port, timeout=200)
            clients.append(client)
            client.putrequest("PUT", f"{url.path}?{url.query}")
            client.putheader("Content-Length", str(8 << 20))
            client.endheaders()
            client.send(os.urandom(6 << 20))
        harness.wait_until(lambda: len(os.listdir(server.data / name)) > 1, 60, "an upload reaches the server")
        time.sleep(1)  # the others would by now, too
        reader = node.s3()
        reader.put_object(Bucket=name, Key="small", Body=b"x")
        assert reader.get_object(Bucket=name, Key="k")["Body"].read() == data
        for client in clients:
            client.send(os.urandom(2 << 20))
        assert [client.getresponse().status for client in clients] == [200] * 3
    finally:
        for client in clients:
            client.close()
    assert {key: len(server.get(f"{name}/{key}")) for key in ("slow0", "slow1", "slow2")} == dict.fromkeys(
        ("slow0", "slow1", "slow2"), 8 << 20)


def test_links_and_odd_files(node, server):
    """Links to files and folders are followed, one that leads back once; pipes and links to nowhere are no objects."""
    name = new_bucket(node, server)
    fill(server, name + "/", {"real/f": b"data", "g": b"other"})
    folder = server.data / name
    (folder / "link").symlink_to("real/f")
    (folder / "dir").symlink_to("real")
    (folder / "real" / "back").symlink_to("..")
    (folder / "nowhere").symlink_to("not-there")
    os.mkfifo(folder / "pipe")
    s3 = node.s3()
    keys = s3_keys(s3, name)
    assert {"real/f", "g", "link", "dir/f"} <= set(keys) and not {"nowhere", "pipe"} & set(keys), keys
    assert len(keys) < 20, keys
    assert s3.get_object(Bucket=name, Key="link")["Body"].read() == b"data"
    assert s3.get_object(Bucket=name, Key="dir/f")["Body"].read() == b"data"
    for key in ("nowhere", "pipe", "real"):
        with pytest.raises(s3.exceptions.ClientError) as refused:
            s3.get_object(Bucket=name, Key=key)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (403, 404)


def test_user_and_group(node, server):
    """origin.uid and origin.gid are who writes, and what that user may not is refused with the reason."""
    name = harness.random_name()
    server.make_folder(name)
    os.chmod(server.data / name, 0o777)
    os.chmod(server.data, 0o755)
    node.create_bucket(name, server.url(name), **server.properties(), **{"origin.uid": "4711", "origin.gid": "4712"})
    s3 = node.s3()
    s3.put_object(Bucket=name, Key="k", Body=b"data")
    st = os.stat(server.data / name / "k")
    assert (st.st_uid, st.st_gid) == (4711, 4712)
    fill(server, name + "/", {"secret": b"x"})
    os.chmod(server.data / name / "secret", 0o600)
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.get_object(Bucket=name, Key="secret")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_modification_time(node, server):
    """The time that metadata tells is given to the file."""
    name = new_bucket(node, server)
    node.s3().put_object(Bucket=name, Key="k", Body=b"data", Metadata={"mtime": "1500000000.25"})
    assert os.stat(server.data / name / "k").st_mtime == 1500000000.25


def test_wrong_settings(node, server):
    """One line says what is wrong and what to do: paths, ports, URLs."""
    for url, properties, words in (
            (server.url("not-there"), server.properties(), "is the directory there, and exported"),
            (server.root_url.replace(f":{server.port}/", f":{harness.free_port()}/"), server.properties(), "is this its address"),
            (server.root_url, {"origin.mount_port": harness.free_port()}, "origin.mount_port")):
        said = check(node, url, {**properties, "origin.connect_timeout": "5s"}, status=1)
        assert said["list"]["state"] == "failed" and words in said["list"]["text"], said["list"]
        assert said["read"]["state"] == "skipped"
    for url, words in (("nfs://", "nfs://HOST"), ("nfs://nas", "nfs://HOST"), ("nfs://nas/x?uid=0", "origin.uid"),
                       ("nfs://nas/x?version=4", "version 3"), ("nfs://nas/x?sec=krb5", "Kerberos is not spoken")):
        done = node.cli("origin", "check", url, check=False)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    done = node.cli("origin", "check", "nfs://nas/x", "--set", "origin.uid=me", check=False)
    assert done.returncode == 2 and 'origin.uid "me"' in done.stderr, done.stderr


def test_a_server_of_another_version(node, work):
    """A server that serves version 4 alone: one line that names the version, for a bucket and for a job, and no bucket."""
    reason = OnlyFour.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    with OnlyFour(work / "nfs-four") as server:
        server.make_folder("x")
        said = check(node, server.url("x"), {**server.properties(), "origin.connect_timeout": "5s"}, status=1)
        assert said["list"]["state"] == "failed" and "version 3" in said["list"]["text"], said["list"]
        name = harness.random_name()
        settings = [f"--set={k}={v}" for k, v in server.properties().items()]
        done = node.cli("bucket", "create", name, "--origin", server.url("x"), *settings, check=False)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "version 3" in done.stderr, done.stderr
