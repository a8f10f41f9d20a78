"""The HTTP port with TLS: real clients that verify the certificate, reload, what is refused, idle connections.

Other people's clients with TLS are in test_s3_clients.
"""

import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.parse
import warnings

import pytest

import harness
from authority import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture
def tls_node(new_node, authority):
    cert, key = authority.issue("first")
    return new_node(ca=authority.ca, tls_cert=cert, tls_key=key, request_timeout="60s")


def dial(node, version=None, authority=None):
    """A connection with its handshake done; it trusts everybody unless an authority is given."""
    if authority is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the machine's certificates, which take 20 ms to read
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=str(authority.ca))
    if version is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
    host, port = node.endpoint.removeprefix("https://").split(":")
    plain = socket.create_connection((host, int(port)), timeout=200)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def cipher_of(node, version, ciphers=None):
    """What is agreed on with a client that offers these ciphers of TLS 1.2, in this order, or OpenSSL's usual ones."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if ciphers:
        context.set_ciphers(ciphers)
    host, port = node.endpoint.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=200) as plain, context.wrap_socket(plain, server_hostname=host) as connection:
        return connection.cipher()[0]


def test_the_quicker_cipher_is_chosen(tls_node):
    """AES with 128 bits, though clients name that with 256 first; that one with who offers nothing else, and ChaCha20 with who would rather
    have it."""
    assert cipher_of(tls_node, ssl.TLSVersion.TLSv1_3) == "TLS_AES_128_GCM_SHA256"
    assert cipher_of(tls_node, ssl.TLSVersion.TLSv1_2) == "ECDHE-ECDSA-AES128-GCM-SHA256"
    assert cipher_of(tls_node, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-GCM-SHA384") == "ECDHE-ECDSA-AES256-GCM-SHA384"
    assert cipher_of(tls_node, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-GCM-SHA256") == "ECDHE-ECDSA-CHACHA20-POLY1305"


def name_shown(node, authority):
    with dial(node, authority=authority) as connection:
        subject = dict(pair for part in connection.getpeercert()["subject"] for pair in part)
        return subject["commonName"]


def test_boto3_verifies_and_its_bytes_come_back(tls_node, origin, authority):
    name = tls_node.new_bucket(origin)
    s3 = tls_node.s3()
    sizes = {"empty": 0, "small": 3000, "record": 16384, "odd": 1234567, "large": 24 << 20}
    bodies = {key: harness.random_bytes(n, seed=n) for key, n in sizes.items()}
    for key, body in bodies.items():
        s3.put_object(Bucket=name, Key=key, Body=body)
    s3.upload_file(str(_write(authority.dir / "parts", bodies["large"])), name, "parts")
    bodies["parts"] = bodies["large"]
    for key, body in bodies.items():
        for _ in range(2):  # filled, then cached
            got = s3.get_object(Bucket=name, Key=key)["Body"].read()
            assert hashlib.sha256(got).digest() == hashlib.sha256(body).digest()
    part = s3.get_object(Bucket=name, Key="large", Range="bytes=5000000-15000000")["Body"].read()
    assert part == bodies["large"][5000000:15000001]
    assert {o["Key"] for o in s3.list_objects_v2(Bucket=name)["Contents"]} == set(bodies)
    assert origin.s3().get_object(Bucket=name, Key="odd")["Body"].read() == bodies["odd"]


def _write(path, data):
    path.write_bytes(data)
    return path


def test_addresses_say_https(tls_node, authority):
    """Where a completed upload is, as its client reaches it."""
    s3, where = tls_node.s3(), {"Bucket": "in-parts", "Key": "k"}
    s3.create_bucket(Bucket="in-parts")
    upload = s3.create_multipart_upload(**where)["UploadId"]
    etag = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"data")["ETag"]
    done = s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert done["Location"] == f"{tls_node.endpoint}/in-parts/k"


def test_a_cold_object_streams_through(tls_node, origin, authority):
    """The first read of an object that only the origin has: bytes are sent while they arrive."""
    name = tls_node.new_bucket(origin)
    body = harness.random_bytes(20 << 20, seed=1)
    origin.s3().put_object(Bucket=name, Key="cold", Body=body)
    assert tls_node.s3().get_object(Bucket=name, Key="cold")["Body"].read() == body


def test_old_versions_are_refused(tls_node):
    with pytest.raises(ssl.SSLError):
        dial(tls_node, ssl.TLSVersion.TLSv1_1)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with dial(tls_node, version) as connection:
            connection.sendall(b"GET /-/health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_plain_http_is_told_to_speak_tls(tls_node):
    host, port = tls_node.endpoint.removeprefix("https://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=200)
    connection.request("GET", "/-/health")
    reply = connection.getresponse()
    assert reply.status == 400
    assert b"https://" in reply.read()
    connection.close()


def test_reload_takes_up_a_new_certificate_and_keeps_the_old_one_when_it_is_bad(tls_node, authority):
    assert name_shown(tls_node, authority) == "first"
    first_cert, first_key = (authority.dir / f"first.{end}" for end in ("crt", "key"))
    second_cert, second_key = authority.issue("second")
    with dial(tls_node) as old:
        os.replace(second_key, first_key)  # the certificate is still that of another key
        os.kill(tls_node.pid, signal.SIGHUP)
        harness.wait_until(lambda: "is not the key of the certificate" in tls_node.log(), what="the mismatch is logged")
        assert name_shown(tls_node, authority) == "first"
        os.replace(second_cert, first_cert)
        os.kill(tls_node.pid, signal.SIGHUP)
        harness.wait_until(lambda: name_shown(tls_node, authority) == "second", what="the new certificate")
        old.sendall(b"GET /-/health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert old.recv(100).startswith(b"HTTP/1.1 200 ")


def test_reload_in_the_midst_of_a_download_and_an_upload(tls_node, authority):
    """What is on its way when a new certificate is taken up arrives whole, on its own connection, and so does what its client sends next;
    who comes anew sees the new one. (Where tls_server_reload
    takes away the context that open connections were made of, the node dies by it.)"""
    name, s3, body = harness.scratch_bucket(tls_node), tls_node.s3(signature_version="s3v4"), harness.random_bytes(24 << 20, seed=5)
    s3.put_object(Bucket=name, Key="k", Body=body)
    cert, key = (authority.dir / f"first.{end}" for end in ("crt", "key"))

    def reload(common_name):
        new_cert, new_key = authority.issue(common_name)
        os.replace(new_key, key)
        os.replace(new_cert, cert)
        os.kill(tls_node.pid, signal.SIGHUP)
        harness.wait_until(lambda: name_shown(tls_node, authority) == common_name, what="the new certificate")

    got = s3.get_object(Bucket=name, Key="k")["Body"]
    first = got.read(1 << 20)
    reload("second")
    assert first + got.read() == body
    assert s3.get_object(Bucket=name, Key="k", Range="bytes=5-9")["Body"].read() == body[5:10]
    url = urllib.parse.urlsplit(s3.generate_presigned_url("put_object", Params={"Bucket": name, "Key": "up"}))
    with dial(tls_node, authority=authority) as connection:
        connection.sendall(f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body[:len(body) // 2])
        reload("third")
        connection.sendall(body[len(body) // 2:])
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    assert s3.get_object(Bucket=name, Key="up")["Body"].read() == body


@pytest.mark.parametrize("wrong, words", [
    ("cert", ["--tls-cert", "No such file or directory"]),
    ("key", ["--tls-key", "No such file or directory"]),
    ("mismatch", ["--tls-key", "is not the key of the certificate"]),
    ("alone", ["--tls-cert", "--tls-key is missing"]),
])
def test_what_cannot_be_served_is_said_in_one_line(tmp_path, authority, wrong, words):
    cert, key = authority.issue("first")
    other = authority.issue("other")
    flags = {"cert": [tmp_path / "none", key], "key": [cert, tmp_path / "none"], "mismatch": [cert, other[1]],
             "alone": [cert, None]}[wrong]
    argv = [harness.forebay_bin(), "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--wire",
            "127.0.0.1:0", "--tls-cert", flags[0]] + (["--tls-key", flags[1]] if flags[1] else [])
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200)
    assert done.returncode == 2
    line = done.stderr.strip().splitlines()[-1]
    assert all(word in line for word in words), done.stderr


def test_another_node_is_an_origin_over_https(tls_node, new_node, origin, authority):
    name = tls_node.new_bucket(origin)
    access_key, secret_key = tls_node.credentials
    near = new_node()
    near.create_bucket("near", f"forebay://{tls_node.endpoint.removeprefix('https://')}/{name}", **{
        "origin.endpoint": tls_node.endpoint, "origin.ca_file": str(authority.ca), "origin.access_key": access_key,
        "origin.secret_key": secret_key})
    body = harness.random_bytes(9 << 20, seed=9)
    near.s3().put_object(Bucket="near", Key="k", Body=body)
    assert origin.s3().get_object(Bucket=name, Key="k")["Body"].read() == body
    origin.s3().put_object(Bucket=name, Key="far", Body=body)
    assert near.s3().get_object(Bucket="near", Key="far")["Body"].read() == body


def test_bench_trusts_the_authorities_of_the_environment(tls_node, authority):
    """`forebay bench load` over https: with AWS_CA_BUNDLE it trusts the node's authority, without it the system's alone; a file that
    is not there is named."""
    tls_node.s3().create_bucket(Bucket="benched")
    access_key, secret_key = tls_node.credentials

    def load(**env):
        env = {"PATH": os.environ["PATH"], "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, **env}
        return subprocess.run([harness.forebay_bin(), "bench", "load", "s3://benched", "--s3-endpoint", tls_node.endpoint, "--size", "1KiB",
                               "--objects", "4", "--connections", "2", "--requests", "8", "--warm-up", "0ms", "--json"],
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200)

    done = load(AWS_CA_BUNDLE=str(authority.ca))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["get"]["requests"] >= 1
    done = load()
    assert done.returncode == 1 and "certificate" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    done = load(AWS_CA_BUNDLE="/nowhere/authorities.pem")
    assert done.returncode == 1 and "/nowhere/authorities.pem" in done.stderr


def test_a_thousand_idle_connections(tls_node, origin, authority):
    """They cost no threads and little memory, and others are served beside them."""
    name = tls_node.new_bucket(origin)
    s3 = tls_node.s3()
    s3.put_object(Bucket=name, Key="k", Body=b"data")
    idle = []
    try:
        for _ in range(1000):
            idle.append(dial(tls_node))
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"data"
        threads = len(os.listdir(f"/proc/{tls_node.pid}/task"))
        assert threads < 200
        for connection in idle[::100]:
            connection.sendall(b"GET /-/health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in idle:
            connection.close()
