"""Roles that STS gives: a node with the environment of a pod or a user, before moto's S3, IAM and STS. Once a test lets moto
watch, it refuses every request that is not signed with keys it gave out, with their session token."""

import json
import socket
import ssl
import subprocess

import pytest

import harness
import origins
from relay import Listener

SECRET = b"what only the role may read"


@pytest.fixture
def moto(tmp_path):
    reason = origins.Moto.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    server = origins.Moto(tmp_path / "moto")
    for key in ("d/k", "d/other"):
        server.client("s3").put_object(Bucket="bucket", Key=key, Body=SECRET)
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path, request):
    """start(moto, config text, VARIABLE=value...): a node with that environment."""
    nodes = []

    def make(moto, config="", **variables):
        (tmp_path / "config").write_text(config)
        environment = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
                       "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL_STS": moto.endpoint,
                       "AWS_REGION": "us-east-1", **{k: str(v) for k, v in variables.items()}}
        nodes.append(harness.Node(tmp_path / "node", env=environment))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


def check(node, moto, *sets, status=0, flags=()):
    arguments = [a for one in (f"origin.endpoint={moto.endpoint}", *sets) for a in ("--set", one)]
    done = node.cli("origin", "check", "s3://bucket/d", "--json", *arguments, *flags, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return {one["name"]: one for one in json.loads(done.stdout)["results"]}


def read(node, moto, name, **properties):
    node.create_bucket(name, "s3://bucket/d", **{"origin.endpoint": moto.endpoint, **properties})
    return node.s3().get_object(Bucket=name, Key="k")["Body"].read()


def test_service_account(moto, start, tmp_path):
    """A pod's role (IRSA): the token in the file becomes keys, which sign everything; the check says whose they are, and neither it
    nor the log has the token or a key."""
    token = tmp_path / "token"
    token.write_text("a.web.token\n")
    arn = moto.role("reader", "*", "s3:*")
    node = start(moto, AWS_WEB_IDENTITY_TOKEN_FILE=token, AWS_ROLE_ARN=arn, AWS_ROLE_SESSION_NAME="pod-1")
    moto.watch("1")  # the question itself
    said = check(node, moto, flags=("--read-only",))
    assert said["credentials"]["state"] == "ok", said
    assert said["credentials"]["text"] == f"role {arn}, asked of {moto.endpoint} with the web identity in {token}"
    assert said["read"]["state"] == "ok", said
    moto.watch("inf")
    assert read(node, moto, "irsa") == SECRET
    moto.watch()  # the keys are kept: nobody is asked again
    node.s3().put_object(Bucket="irsa", Key="new", Body=b"x")
    assert node.s3().get_object(Bucket="irsa", Key="other")["Body"].read() == SECRET
    assert "a.web.token" not in node.log() and "a.web.token" not in str(said)
    token.unlink()
    said = check(node, moto, status=1)
    assert said["credentials"]["state"] == "failed" and str(token) in said["credentials"]["text"], said


def test_refused_in_the_words_of_sts(moto, start, tmp_path):
    """moto watches from the first request and refuses AssumeRole of somebody whom the role does not trust: its words are told, by the
    check and to the client."""
    key, secret = moto.user("nobody", "sts:*")
    arn = moto.role("closed", f"arn:aws:iam::{moto.account}:user/other", "s3:*")
    node = start(moto, f"[profile closed]\nrole_arn={arn}\nsource_profile=me\n"
                       f"[profile me]\naws_access_key_id={key}\naws_secret_access_key={secret}\n"
                       f"[profile wrong]\nrole_arn={arn}\nsource_profile=guess\n"
                       f"[profile guess]\naws_access_key_id={key}\naws_secret_access_key=guess\n")
    moto.watch()
    said = check(node, moto, "origin.profile=closed", status=1)["credentials"]
    assert said["state"] == "failed" and f"role {arn}" in said["text"] and "403 AccessDenied" in said["text"], said
    said = check(node, moto, "origin.profile=wrong", status=1)["credentials"]
    assert "403 SignatureDoesNotMatch" in said["text"] and secret not in said["text"], said
    done = node.cli("origin", "check", "s3://bucket", "--set", "origin.profile=none", check=False)
    assert done.returncode == 2 and "no such profile" in done.stderr, done.stderr


def test_two_accounts_at_once(moto, start):
    """Two buckets of a node with roles of two profiles, one of them through another role: each is signed with its own, beside keys in
    the environment that may do nothing."""
    key, secret = moto.user("trainer", "sts:*")
    near = moto.role("near", f"arn:aws:iam::{moto.account}:user/trainer", "sts:*", "s3:*")
    far = moto.role("far", "*", "s3:*")
    nobody = moto.user("powerless")
    node = start(moto, f"[profile far]\nrole_arn={far}\nsource_profile=near\nrole_session_name=chained\nexternal_id=x1\n"
                       f"[profile near]\nrole_arn={near}\nsource_profile=user\nduration_seconds=900\n"
                       f"[profile user]\naws_access_key_id={key}\naws_secret_access_key={secret}\n",
                 AWS_ACCESS_KEY_ID=nobody[0], AWS_SECRET_ACCESS_KEY=nobody[1])
    moto.watch()
    assert read(node, moto, "one", **{"origin.profile": "near"}) == SECRET
    assert read(node, moto, "two", **{"origin.profile": "far"}) == SECRET
    said = check(node, moto, "origin.profile=far", flags=("--read-only",))["credentials"]["text"]
    assert said.startswith(f"role {far}, asked of") and f"by role {near}, asked of" in said, said
    assert said.endswith("keys of the AWS profile user")
    said = check(node, moto, status=1, flags=("--read-only",))
    assert said["credentials"]["text"] == "AWS_ACCESS_KEY_ID of the environment" and said["list"]["state"] == "failed", said


def test_over_https(moto, start, tmp_path):
    """STS over https: by AWS_CA_BUNDLE it is known, without it is refused, and plain http elsewhere is no place for a token."""
    bundle = tmp_path / "ca.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", bundle], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle, tmp_path / "key.pem")
    with Tunnel(moto.port, context) as tunnel:
        (tmp_path / "token").write_text("a.web.token")
        arn = moto.role("reader", "*", "s3:*")
        identity = {"AWS_WEB_IDENTITY_TOKEN_FILE": tmp_path / "token", "AWS_ROLE_ARN": arn}
        node = start(moto, **{**identity, "AWS_ENDPOINT_URL_STS": f"https://127.0.0.1:{tunnel.port}", "AWS_CA_BUNDLE": bundle})
        assert read(node, moto, "https") == SECRET
        moto.watch()
        assert node.s3().get_object(Bucket="https", Key="other")["Body"].read() == SECRET
        moto.watch("inf")
        node.stop()
        node.env = {k: v for k, v in node.env.items() if k != "AWS_CA_BUNDLE"}
        node.start()
        assert "certificate" in check(node, moto, status=1)["credentials"]["text"]
        node.stop()
        node.env["AWS_ENDPOINT_URL_STS"] = "http://198.51.100.1"
        node.start()
        done = node.cli("origin", "check", "s3://bucket", check=False)
        assert done.returncode != 0 and "https only" in done.stderr, done.stderr


def received(connection):
    """What comes next; a client that has gone is an error."""
    piece = connection.recv(65536)
    if not piece:
        raise ConnectionResetError("the client has gone")
    return piece


class Tunnel(Listener):
    """https before a port of this machine."""

    def __init__(self, port, context):
        self.to = port
        self.context = context
        super().__init__()

    def _serve(self, plain):
        try:
            self._answer(plain)
        except OSError:  # a client that does not believe the certificate goes away
            plain.close()

    def _answer(self, plain):
        """One request and its answer, which ends with the connection."""
        with self.context.wrap_socket(plain, server_side=True) as near, socket.create_connection(("127.0.0.1", self.to)) as far:
            head = b""
            while b"\r\n\r\n" not in head:
                head += received(near)
            lines, _, body = head.partition(b"\r\n\r\n")
            length = next(int(one.split(b":")[1]) for one in lines.split(b"\r\n") if one.lower().startswith(b"content-length:"))
            while len(body) < length:
                body += received(near)
            far.sendall(lines + b"\r\nConnection: close\r\n\r\n" + body)
            while piece := far.recv(65536):
                near.sendall(piece)
