"""Who may ask, and what happens to requests that are unsigned, wrongly signed, expired, malformed or cut.

Each refusal is S3's XML error with Code, Message, Resource and RequestId; nothing of a refused PUT reaches the origin.
"""

import base64
import datetime
import email.utils
import hashlib
import hmac
import http.client
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.exceptions
import pytest

import harness

pytestmark = pytest.mark.usefixtures("leaves_nothing")

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, {k.lower(): v for k, v in headers}, body

    def error(self):
        """The fields of the XML error; checks that what clients look for is there."""
        assert self.headers["content-type"] == "application/xml"
        root = ET.fromstring(self.body)
        assert root.tag == "Error"
        fields = {child.tag: child.text for child in root}
        assert {"Code", "Message", "Resource", "RequestId"} <= set(fields)
        assert fields["Message"]
        assert fields["RequestId"] == self.headers["x-amz-request-id"]
        return fields


def send(node, method, path, headers=None, body=b""):
    """One request as written, without any client's help."""
    host = urllib.parse.urlsplit(node.endpoint).netloc
    connection = http.client.HTTPConnection(host, timeout=200)
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    if (body or method == "PUT") and not {"content-length", "transfer-encoding"} & {name.lower() for name in headers or {}}:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body or None)
    answer = connection.getresponse()
    reply = Reply(answer.status, answer.getheaders(), answer.read())
    connection.close()
    return reply


def signed(node, method, path, headers=None, body=b"", now=None, keys=None, region=harness.REGION, payload=None):
    """Headers of a correctly signed request; `now`, `keys`, `region` and `payload` make it wrong in one way."""
    access_key, secret_key = keys or node.credentials
    request = botocore.awsrequest.AWSRequest(method, node.endpoint + path, headers=headers or {}, data=body)
    request.context["payload_signing_enabled"] = True
    signer = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(access_key, secret_key), "s3", region)
    if payload:
        signer.payload = lambda _: payload
    time = now or datetime.datetime.now(datetime.timezone.utc)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: time.replace(
            tzinfo=None if remove_tzinfo else datetime.timezone.utc))
        signer.add_auth(request)
    return dict(request.headers.items())


def ask(node, method, path, body=b"", **how):
    return send(node, method, path, signed(node, method, path, body=body, **how), body)


def at_origin(bucket):
    return [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name).get("Contents", [])]


def test_a_signed_request_passes(bucket):
    """The requests that the tests below break are good ones to begin with."""
    path = f"/{bucket.name}/k"
    assert ask(bucket.node, "PUT", path, b"data").status == 200
    assert ask(bucket.node, "GET", path).body == b"data"


def test_unsigned_requests(bucket):
    """Nothing is said to those who do not sign, for every kind of request."""
    for method, path in (("GET", "/"), ("GET", f"/{bucket.name}"), ("GET", f"/{bucket.name}/k"), ("HEAD", "/nothing"),
                         ("PUT", f"/{bucket.name}/k"), ("DELETE", f"/{bucket.name}/k"), ("POST", f"/{bucket.name}?delete"),
                         ("PUT", f"/{bucket.name}"), ("DELETE", "/nothing"), ("PUT", f"/{bucket.name}?cors")):
        reply = send(bucket.node, method, path, body=b"x" if method in ("PUT", "POST") else b"")
        assert reply.status == 403
        empty = send(bucket.node, method, path, {"Authorization": ""}, b"x" if method in ("PUT", "POST") else b"")
        assert empty.status == 403
        if method != "HEAD":
            assert reply.error()["Code"] == empty.error()["Code"] == "AccessDenied"
            assert reply.error()["Resource"] == path.split("?")[0]
    assert at_origin(bucket) == []


def test_wrong_keys_and_signatures(bucket):
    """Unknown keys, wrong secrets, changed requests and other regions are refused, each with its own code."""
    node, path = bucket.node, f"/{bucket.name}/k"
    access_key, secret_key = node.credentials
    assert ask(node, "GET", path, keys=("AKIDUNKNOWN", secret_key)).error()["Code"] == "InvalidAccessKeyId"
    for method, body in (("GET", b""), ("PUT", b"data")):
        reply = ask(node, method, path, body, keys=(access_key, "wrong"))
        assert (reply.status, reply.error()["Code"]) == (403, "SignatureDoesNotMatch")
    headers = signed(node, "GET", path)
    assert send(node, "GET", path + "2", headers).error()["Code"] == "SignatureDoesNotMatch"
    assert send(node, "DELETE", path, headers).error()["Code"] == "SignatureDoesNotMatch"
    assert send(node, "GET", path + "?prefix=a", headers).error()["Code"] == "SignatureDoesNotMatch"
    assert send(node, "GET", path, {**headers, "x-amz-meta-more": "1"}).error()["Code"] == "AccessDenied"
    reply = ask(node, "GET", path, region="eu-west-1")
    assert (reply.status, reply.error()["Code"]) == (400, "AuthorizationHeaderMalformed")
    assert reply.error()["Region"] == harness.REGION
    elsewhere = fetch(signed_url(node, "GET", path, region="eu-west-1"))
    assert (elsewhere.status, elsewhere.error()["Code"]) == (400, "AuthorizationQueryParametersError")
    assert elsewhere.error()["Region"] == harness.REGION
    for more in ("x", headers["Authorization"]):
        reply = send(node, "GET", path, {**headers, "authorization": more})
        assert (reply.status, reply.error()["Code"]) == (400, "InvalidArgument"), "signed twice"
    for value in ("", "Basic eDp5", "AWS4-HMAC-SHA256 nonsense", "AWS4-HMAC-SHA256 Credential=a/b/c,Signature=d"):
        reply = send(node, "GET", path, {**headers, "Authorization": value})
        assert reply.status in (400, 403) and reply.error()["Code"]
    assert at_origin(bucket) == []


@pytest.mark.parametrize("version, header, value, status, code", [
    ("s3v4", "Authorization", "", 403, "AccessDenied"), ("s3v4", "Authorization", None, 403, "AccessDenied"),
    ("s3", "Authorization", "AWS AKIAIGR7ZNNBHC5BKSUB:FWeDfwojDSdS2Ztmpfeubhd9isU=", 403, "InvalidAccessKeyId"),
    ("s3", "Authorization", "AWS HAHAHA", 400, "InvalidArgument"), ("s3", "Date", None, 403, "AccessDenied"),
    ("s3v4", "X-Amz-Date", None, 403, "AccessDenied")])
def test_headers_spoiled_after_the_signature(node, version, header, value, status, code):
    """What boto3 has signed and somebody changes then, of an object and of a bucket: S3's refusals, and nothing is made. (An empty
    Authorization was taken for a signature of a kind that nobody knows, 400, where auth_parse asks whether the header is there.)"""
    def spoil(request, **_):
        del request.headers[header]
        if value is not None:
            request.headers[header] = value

    name, made = harness.scratch_bucket(node), harness.random_name("made")
    client = node.s3(signature_version=version)
    client.meta.events.register("before-send.s3", spoil)
    for call, more in ((client.put_object, {"Bucket": name, "Key": "k", "Body": b"bar"}), (client.create_bucket, {"Bucket": made})):
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            call(**more)
        answer = caught.value.response
        assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]) == (status, code)
    s3 = node.s3()
    assert "Contents" not in s3.list_objects_v2(Bucket=name) and made not in [b["Name"] for b in s3.list_buckets()["Buckets"]]


def test_clocks_that_differ(bucket):
    """Up to 15 minutes either way are accepted, more are not."""
    now = datetime.datetime.now(datetime.timezone.utc)
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    for minutes in (-14, 14):
        reply = ask(bucket.node, "GET", f"/{bucket.name}/k", now=now + datetime.timedelta(minutes=minutes))
        assert reply.status == 200
    for minutes in (-16, 16, -100000):
        reply = ask(bucket.node, "GET", f"/{bucket.name}/k", now=now + datetime.timedelta(minutes=minutes))
        assert (reply.status, reply.error()["Code"]) == (403, "RequestTimeTooSkewed")


def fetch(url, method="GET", data=None, headers=None):
    request = urllib.request.Request(url, method=method, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=200) as answer:
            return Reply(answer.status, answer.headers.items(), answer.read())
    except urllib.error.HTTPError as answer:
        return Reply(answer.code, answer.headers.items(), answer.read())


@pytest.mark.parametrize("version", ["s3v4", None], ids=["version 4", "as boto3 comes"])
def test_presigned_urls(bucket, version):
    """Presigned GET and PUT work until they expire, and only for what was signed."""
    client = bucket.node.s3(**({"signature_version": version} if version else {}))
    where = {"Bucket": bucket.name, "Key": "a key/ü+%"}
    bucket.s3.put_object(**where, Body=b"data", ContentType="text/plain")
    url = client.generate_presigned_url("get_object", Params=where, ExpiresIn=60)
    assert ("AWSAccessKeyId=" in url, "X-Amz-Signature=" in url) == (version is None, version is not None)
    reply = fetch(url)
    assert (reply.status, reply.body) == (200, b"data")
    assert fetch(url, headers={"Range": "bytes=1-2"}).body == b"at"
    assert fetch(url, "DELETE").error()["Code"] == "SignatureDoesNotMatch"
    assert fetch(url.replace("a%20key", "b%20key")).error()["Code"] == "SignatureDoesNotMatch"
    shown = client.generate_presigned_url("get_object", Params={**where, "ResponseContentType": "x/y"}, ExpiresIn=60)
    assert fetch(shown).headers["content-type"] == "x/y"
    assert fetch(shown.replace("x%2Fy", "x%2Fz")).error()["Code"] == "SignatureDoesNotMatch"
    put = client.generate_presigned_url("put_object", Params={"Bucket": bucket.name, "Key": "put"}, ExpiresIn=60)
    assert fetch(put, "PUT", b"new", {"Content-Type": ""}).status == 200
    assert bucket.truth.get_object(Bucket=bucket.name, Key="put")["Body"].read() == b"new"


def signed_url(node, method, path, expires=60, region=harness.REGION):
    """A presigned URL of version 4 with whatever is in its query."""
    request = botocore.awsrequest.AWSRequest(method, node.endpoint + path)
    credentials = botocore.credentials.Credentials(*node.credentials)
    botocore.auth.S3SigV4QueryAuth(credentials, "s3", region, expires=expires).add_auth(request)
    return request.url


def test_headers_in_signed_urls(bucket):
    """As the SDK for JavaScript signs: what it puts into the URL counts as if it were sent, is refused as that would be, and
    cannot be used to write anything else into the object's metadata. Checksums of the body that it did not have do not count."""
    node, path = bucket.node, f"/{bucket.name}/k"
    url = signed_url(node, "PUT", path + "?x-amz-meta-colour=light%20blue&x-amz-tagging=a%3Db&x-amz-checksum-crc32=AAAAAA%3D%3D"
                                         "&x-amz-sdk-checksum-algorithm=CRC32&x-amz-acl=private&x-id=PutObject")
    assert fetch(url, "PUT", b"data", {"Content-Type": "text/x"}).status == 200
    got = bucket.s3.get_object(Bucket=bucket.name, Key="k")
    assert (got["Body"].read(), got["Metadata"], got["TagCount"]) == (b"data", {"colour": "light blue"}, 1)
    assert fetch(url.replace("light", "dark"), "PUT", b"data").error()["Code"] == "SignatureDoesNotMatch"
    for query, code in (("x-amz-acl=public-read", "NotImplemented"), ("x-amz-server-side-encryption=AES256", "NotImplemented"),
                        ("x-amz-storage-class=GLACIER", "InvalidStorageClass"), ("x-amz-meta-a=b%0Ac", "InvalidArgument"),
                        ("x-amz-meta-a%0Ax-forebay-expires:=1", "InvalidArgument")):
        assert fetch(signed_url(node, "PUT", f"{path}2?{query}"), "PUT", b"data").error()["Code"] == code, query
    copy = signed_url(node, "PUT", f"{path}3?x-amz-copy-source=%2F{bucket.name}%2Fk")
    assert b"<CopyObjectResult" in fetch(copy, "PUT", b"").body
    assert bucket.s3.get_object(Bucket=bucket.name, Key="k3")["Body"].read() == b"data"
    assert sorted(at_origin(bucket)) == ["k", "k3"]


def test_our_own_headers_are_signed(node):
    """Who sees a request, or was given a signed URL, does not choose the origin of the bucket that it makes, nor its properties.
    Version 2 cannot sign them. (Each was seen to make a bucket.)"""
    name = harness.random_name("made")
    path = f"/{name}"
    version_2 = node.s3(signature_version="s3")
    for header in ({"x-forebay-origin": "file:///"}, {"X-Forebay-Set": "anonymous=read"}):
        assert send(node, "PUT", path, {**signed(node, "PUT", path), **header}).error()["Code"] == "AccessDenied"
        assert fetch(signed_url(node, "PUT", path), "PUT", b"", header).error()["Code"] == "AccessDenied"
        url = version_2.generate_presigned_url("create_bucket", Params={"Bucket": name}, ExpiresIn=60)
        assert fetch(url, "PUT", b"", {**header, "Content-Type": ""}).error()["Code"] == "AccessDenied"
        assert ask(node, "HEAD", path).status == 404
    assert send(node, "PUT", path, signed(node, "PUT", path, {"x-forebay-set": "ttl=1h"})).status == 200
    node.s3().delete_bucket(Bucket=name)


@pytest.mark.parametrize("version", ["s3v4", None], ids=["version 4", "as boto3 comes"])
def test_expired_urls(bucket, version):
    """A presigned URL of the past is refused with the words that S3 uses."""
    client = bucket.node.s3(**({"signature_version": version} if version else {}))
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket.name, "Key": "k"}, ExpiresIn=1)

    def expired():
        reply = fetch(url)
        return reply if reply.status != 200 else None

    reply = harness.wait_until(expired, what="URL expires")
    assert reply.status == 403
    assert (reply.error()["Code"], reply.error()["Message"]) == ("AccessDenied", "Request has expired")


def test_bodies_that_do_not_match(bucket):
    """A body other than the signed one is refused, whatever its size, and nothing of it reaches the origin."""
    for size in (4, 100_000, 5_000_000):
        body = harness.random_bytes(size)
        path = f"/{bucket.name}/wrong"
        headers = signed(bucket.node, "PUT", path, body=body)
        reply = send(bucket.node, "PUT", path, headers, body[:-1] + bytes([body[-1] ^ 1]))
        assert (reply.status, reply.error()["Code"]) == (400, "XAmzContentSHA256Mismatch")
    headers = signed(bucket.node, "PUT", path, body=b"data", payload="nonsense")
    assert send(bucket.node, "PUT", path, headers, b"data").error()["Code"] == "InvalidArgument"
    assert at_origin(bucket) == []


def test_wrong_content_md5(bucket):
    """Content-MD5 is compared, and must be one."""
    path = f"/{bucket.name}/wrong"
    for value, code in (("1B2M2Y8AsgTpgAmY7PhCfg==", "BadDigest"), ("short", "InvalidDigest")):
        headers = signed(bucket.node, "PUT", path, {"Content-MD5": value}, b"data")
        assert send(bucket.node, "PUT", path, headers, b"data").error()["Code"] == code
    assert at_origin(bucket) == []


def chunk_signature(key, time, scope, previous, data):
    text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", time, scope, previous, EMPTY_SHA256, hashlib.sha256(data).hexdigest()])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def signing_key(secret, date):
    key = ("AWS4" + secret).encode()
    for part in (date, harness.REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


class ChunkSigner:
    """The headers of an upload in signed chunks, and the signatures that follow from theirs, each from the one before."""

    def __init__(self, bucket, path, size, payload, **headers):
        signed_headers = signed(bucket.node, "PUT", path, {"Content-Encoding": "aws-chunked",
                                                           "x-amz-decoded-content-length": str(size), **headers}, payload=payload)
        text = {k.lower(): v.decode() if isinstance(v, bytes) else v for k, v in signed_headers.items()}
        text.pop("content-length", None)
        self.headers, self.time = text, text["x-amz-date"]
        self.scope = f"{self.time[:8]}/{harness.REGION}/s3/aws4_request"
        self.key = signing_key(bucket.node.credentials[1], self.time[:8])
        self.previous = text["authorization"].rpartition("=")[2]

    def chunk(self, data):
        self.previous = chunk_signature(self.key, self.time, self.scope, self.previous, data)
        return self.previous

    def trailer(self, lines):
        text = "\n".join(["AWS4-HMAC-SHA256-TRAILER", self.time, self.scope, self.previous, hashlib.sha256(lines).hexdigest()])
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def chunks_on_the_wire(pieces):
    return b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (len(d), s.encode(), d) for d, s in pieces)


@pytest.mark.parametrize("broken", [None, "payload", "signature", "order", "missing end", "length", "replayed", "another's"])
def test_signed_chunks(bucket, broken):
    """STREAMING-AWS4-HMAC-SHA256-PAYLOAD: each chunk's signature counts."""
    chunks = [harness.random_bytes(70_000), harness.random_bytes(200_000), harness.random_bytes(1)]
    size = sum(map(len, chunks)) + (1 if broken == "length" else 0)
    path = f"/{bucket.name}/k"
    signer = ChunkSigner(bucket, path, size, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    pieces = [[data, signer.chunk(data)] for data in chunks + [b""]]
    if broken == "payload":
        pieces[1][0] = bytes([pieces[1][0][0] ^ 1]) + pieces[1][0][1:]
    elif broken == "signature":
        pieces[2][1] = "0" * 64
    elif broken == "order":
        pieces[0], pieces[1] = pieces[1], pieces[0]
    elif broken == "missing end":
        pieces.pop()
    elif broken == "replayed":
        pieces[1] = pieces[0]
    elif broken == "another's":  # right by itself, but of an upload that began with another signature
        signer.previous = "0" * 64
        pieces[1][1] = signer.chunk(pieces[1][0])
    body = chunks_on_the_wire(pieces)
    reply = send(bucket.node, "PUT", path, signer.headers | {"Content-Length": str(len(body))}, body)
    if broken is None:
        assert reply.status == 200
        found = bucket.truth.get_object(Bucket=bucket.name, Key="k")
        assert found["Body"].read() == b"".join(chunks)
        assert "ContentEncoding" not in found
    else:
        expected = "IncompleteBody" if broken in ("missing end", "length") else "SignatureDoesNotMatch"
        assert reply.error()["Code"] == expected
        assert at_origin(bucket) == []


@pytest.mark.parametrize("broken, code", [(None, None), ("payload", "SignatureDoesNotMatch"), ("checksum", "BadDigest"),
                                          ("changed", "SignatureDoesNotMatch"), ("signature", "SignatureDoesNotMatch"),
                                          ("unsigned", "SignatureDoesNotMatch"), ("another", "MalformedTrailerError")])
def test_signed_chunks_with_a_trailer(bucket, broken, code):
    """STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER: each chunk's signature counts, the trailer's, and the checksum that it has.
    (Where plan_payload in s3/body.c does not know the word the upload is refused.)"""
    chunks = [harness.random_bytes(70_000), harness.random_bytes(1)]
    path, right = f"/{bucket.name}/k", base64.b64encode(hashlib.sha256(b"".join(chunks)).digest())
    signer = ChunkSigner(bucket, path, sum(map(len, chunks)), "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
                         **{"x-amz-trailer": "x-amz-checksum-sha256"})
    pieces = [[data, signer.chunk(data)] for data in chunks + [b""]]
    if broken == "payload":
        pieces[1][0] = bytes([pieces[1][0][0] ^ 1])
    value = base64.b64encode(bytes(32)) if broken == "checksum" else right
    name = b"x-amz-checksum-" + (b"sha1" if broken == "another" else b"sha256")
    signature = signer.trailer(name + b":" + value + b"\n")
    body = chunks_on_the_wire(pieces)[:-2]  # the last chunk has no data, and the trailer is in its place
    body += name + b":" + (base64.b64encode(bytes(32)) if broken == "changed" else value) + b"\r\n"
    if broken != "unsigned":
        body += b"x-amz-trailer-signature:" + (b"0" * 64 if broken == "signature" else signature.encode()) + b"\r\n"
    body += b"\r\n"
    reply = send(bucket.node, "PUT", path, signer.headers | {"Content-Length": str(len(body))}, body)
    if broken is None:
        assert reply.status == 200
        assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"".join(chunks)
        head = bucket.s3.head_object(Bucket=bucket.name, Key="k", ChecksumMode="ENABLED")
        assert head["ChecksumSHA256"] == right.decode()
    else:
        assert reply.error()["Code"] == code
        assert at_origin(bucket) == []


def raw(node, data, half_close=False, timeout=200):
    """Sends bytes, gives all that comes back until the node closes or is silent."""
    host, port = urllib.parse.urlsplit(node.endpoint).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


@pytest.mark.parametrize("request_bytes,status", [
    (b"nonsense\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nHeader : x\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", b"400"),
    (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", b"505"),
    (b"GET /%zz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"400"),
    (b"GET /b/%ff HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"403"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 40000 + b"\r\n\r\n", b"431"),
    (b"GET /" + b"y" * 40000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", b"4"),
], ids=["nonsense", "no host", "blank before colon", "two lengths", "negative length", "version", "escape", "not UTF-8",
        "long header", "long target"])
def test_malformed_requests(node, request_bytes, status):
    """What is no HTTP, or too much of it, is refused with a status, and the node goes on."""
    answer = raw(node, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert send(node, "GET", "/-/health").status == 200


def test_bad_xml(bucket):
    """DeleteObjects takes what is its XML and nothing else; entities are never expanded."""
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    path = f"/{bucket.name}?delete="
    many = b"".join(b"<Object><Key>k%d</Key></Object>" % i for i in range(1001))
    for body in (b"", b"nonsense", b"<Delete></Delete>", b"<Delete><Object></Object></Delete>",
                 b"<Delete><Object><Key>k</Key></Object>", b"<Delete>" + many + b"</Delete>",
                 b'<!DOCTYPE x [<!ENTITY e "k">]><Delete><Object><Key>&e;</Key></Object></Delete>',
                 b"<Delete><Object><Key>a</Key><Key>k</Key></Object></Delete>", b"<a>" * 100):
        reply = ask(bucket.node, "POST", path, body)
        assert (reply.status, reply.error()["Code"]) == (400, "MalformedXML"), body[:60]
    assert at_origin(bucket) == ["k"]


@pytest.mark.parametrize("size", [300_000, 3_000_000, 7_000_000, 9_000_000, 40_000_000])
@pytest.mark.parametrize("known", ["nothing", "SHA-256", "MD5"])
def test_uploads_that_are_cut(bucket, size, known):
    """A client that goes away in the middle of a PUT leaves nothing, here or at the origin; also where its body went there as one
    PUT, because a header had told what it is."""
    path, body = f"/{bucket.name}/cut", b"x" * size
    md5 = {"Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode()} if known == "MD5" else {}
    headers = signed(bucket.node, "PUT", path, md5, body=body, payload=None if known == "SHA-256" else "UNSIGNED-PAYLOAD")
    headers["Content-Length"] = str(size)
    head = f"PUT {path} HTTP/1.1\r\nHost: {urllib.parse.urlsplit(bucket.node.endpoint).netloc}\r\n"
    head += "".join(f"{k}: {v.decode() if isinstance(v, bytes) else v}\r\n" for k, v in headers.items()
                    if k.lower() != "host") + "\r\n"
    raw(bucket.node, head.encode() + body[:-1], half_close=True)
    with pytest.raises(botocore.exceptions.ClientError) as error:
        bucket.s3.head_object(Bucket=bucket.name, Key="cut")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert at_origin(bucket) == []
    harness.wait_until(lambda: bucket.node.metric("forebay_handles", kind="write") == 0, what="handles closed")


def test_expect_continue(bucket):
    """The body of a request that is refused is never asked for; that of a good one is."""
    host = urllib.parse.urlsplit(bucket.node.endpoint).netloc
    good, body = f"/{bucket.name}/k", b"d" * 100_000
    for path, keys, more, status in ((good, None, {}, b"100"), (good, ("AKIDUNKNOWN", "x"), {}, b"403"), ("/nobodys-bucket/k", None, {}, b"404"),
                                     (f"{good}?partNumber=1&uploadId=none", None, {}, b"404"),
                                     (good, None, {"x-amz-storage-class": "GLACIER"}, b"400")):
        headers = signed(bucket.node, "PUT", path, more, body=body, keys=keys)
        head = f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
        head += "".join(f"{k}: {v.decode() if isinstance(v, bytes) else v}\r\n" for k, v in headers.items()
                        if k.lower() not in ("host", "content-length")) + "\r\n"
        name, port = host.split(":")
        with socket.create_connection((name, int(port)), timeout=200) as connection:
            connection.sendall(head.encode())
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 " + status)
            if status == b"100":
                connection.sendall(body)
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == body


def test_credentials_are_private(node):
    """The first start makes credentials that only the owner can read; the next start keeps them."""
    path = node.data / "credentials"
    assert path.stat().st_mode & 0o777 == 0o600
    before = node.credentials
    assert len(before[0]) >= 16 and len(before[1]) >= 32
    node.restart()
    assert node.credentials == before
    node.s3().list_buckets()


def test_secrets_are_not_logged(bucket):
    """Neither the node's nor the origin's secret appears in the log."""
    ask(bucket.node, "GET", f"/{bucket.name}/k", keys=(bucket.node.credentials[0], "wrong"))
    log = bucket.node.log()
    assert bucket.node.credentials[1] not in log
    assert bucket.origin.secret_key not in log


def test_signature_version_2_in_the_header(bucket):
    """Older clients sign this way: accepted when right, refused when changed, too old or without a date."""
    client = bucket.node.s3(signature_version="s3")
    client.put_object(Bucket=bucket.name, Key="a key/\u00fc", Body=b"data", Metadata={"a": "b"})
    got = client.get_object(Bucket=bucket.name, Key="a key/\u00fc", ResponseContentType="x/y")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"]) == (b"data", {"a": "b"}, "x/y")
    assert [o["Key"] for o in client.list_objects_v2(Bucket=bucket.name, Prefix="a")["Contents"]] == ["a key/\u00fc"]
    url = f"{bucket.node.endpoint}/{bucket.name}/k"
    now = email.utils.formatdate(usegmt=True)

    def ask_v2(date, text=None, key=None, query=""):
        access_key, secret_key = bucket.node.credentials
        text = text or f"GET\n\n\n{date}\n/{bucket.name}/k"
        signature = base64.b64encode(hmac.new(secret_key.encode(), text.encode(), hashlib.sha1).digest()).decode()
        headers = {"Date": date, "Authorization": f"AWS {key or access_key}:{signature}"}
        return fetch(url + query, headers={k: v for k, v in headers.items() if v}).error()["Code"]

    assert ask_v2(now) == "NoSuchKey"
    assert ask_v2(now, text="GET\n\n\n\n/other") == "SignatureDoesNotMatch"
    assert ask_v2(now, key="nobody") == "InvalidAccessKeyId"
    for name in ("retention", "legal-hold"):  # botocore signs neither of them, MinIO's clients both
        assert ask_v2(now, query=f"?{name}") == "NoSuchKey"
        assert ask_v2(now, f"GET\n\n\n{now}\n/{bucket.name}/k?{name}", query=f"?{name}") == "NoSuchKey"
        assert ask_v2(now, f"GET\n\n\n{now}\n/{bucket.name}/k?tagging", query=f"?{name}") == "SignatureDoesNotMatch"
    assert ask_v2(now, query="?tagging") == "SignatureDoesNotMatch"
    with pytest.raises(botocore.exceptions.ClientError, match="ServerSideEncryptionConfigurationNotFoundError"):
        client.get_bucket_encryption(Bucket=bucket.name)
    with pytest.raises(botocore.exceptions.ClientError, match="NoSuchPublicAccessBlockConfiguration"):
        client.get_public_access_block(Bucket=bucket.name)
    assert ask_v2("") == "AccessDenied" and ask_v2("yesterday") == "AccessDenied"
    for seconds in (-1000, 1000):
        assert ask_v2(email.utils.formatdate(time.time() + seconds, usegmt=True)) == "RequestTimeTooSkewed"
    signed = bucket.s3.generate_presigned_url("get_object", Params={"Bucket": bucket.name, "Key": "k"}, ExpiresIn=60)
    assert fetch(signed, headers={"Authorization": "AWS a:b", "Date": now}).error()["Code"] == "InvalidArgument"


def test_pages_of_buckets(new_node, origin):
    """ListBuckets by pages, by prefix and by region shows each bucket once. (Seen to show them in every region where bucket-region is not
    looked at.)"""
    node = new_node()
    shared = origin.new_bucket()
    names = sorted(["one-a", "one-b", "one-c", "two-a", "two-b"])
    for name in names:
        node.create_bucket(name, f"s3://{shared}/{name}", **origin.properties())
    s3 = node.s3()
    seen, pages, token = [], 0, {}
    while True:
        page = s3.list_buckets(MaxBuckets=2, **token)
        seen += [b["Name"] for b in page["Buckets"]]
        pages += 1
        if "ContinuationToken" not in page:
            break
        token = {"ContinuationToken": page["ContinuationToken"]}
    assert (seen, pages) == (names, 3)
    assert [b["Name"] for b in s3.list_buckets(Prefix="two-")["Buckets"]] == ["two-a", "two-b"]
    assert [b["Name"] for b in s3.list_buckets(BucketRegion=harness.REGION)["Buckets"]] == names
    assert s3.list_buckets(BucketRegion="eu-west-1").get("Buckets", []) == []
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        s3.list_buckets(MaxBuckets=10001)
    assert caught.value.response["Error"]["Code"] == "InvalidArgument"
