"""Browser forms (PostObject) as boto3 signs them, and as nobody should send them, to mirror and scratch buckets;
buckets made and removed by S3."""

import base64
import hashlib
import hmac
import json
import time
import urllib.parse

import pytest

import harness
from test_s3_security import fetch
from test_s3_settings import refused
from test_s3_users import user

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def bucket(either_bucket):
    return either_bucket


BOUNDARY = "----a boundary 'with' signs"


def form(fields, body, filename="file.bin", file_first=False, boundary=BOUNDARY):
    """(body, headers) of a form; `fields` is a mapping or a list of pairs."""
    pairs = list(fields.items() if isinstance(fields, dict) else fields)
    parts = [f'Content-Disposition: form-data; name="{k}"\r\n\r\n'.encode() + (v if isinstance(v, bytes) else str(v).encode())
             for k, v in pairs]
    if body is not None:
        part = (f'Content-Disposition: form-data; name="file"; filename="{filename}"\r\n'
                "Content-Type: text/html\r\n\r\n").encode() + body
        parts.insert(0 if file_first else len(parts), part)
    mark = b"--" + boundary.encode()
    data = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
    return data, {"Content-Type": f'multipart/form-data; boundary="{boundary}"'}


def post(bucket, fields, body=b"data", **how):
    data, headers = form(fields, body, **how)
    return fetch(f"{bucket.node.endpoint}/{bucket.name}", method="POST", data=data, headers=headers)


def signed(bucket, key, version="s3v4", conditions=None, expires=60, **fields):
    client = bucket.node.s3(signature_version=version)
    made = client.generate_presigned_post(bucket.name, key, Fields=fields, ExpiresIn=expires,
                                          Conditions=(conditions or []) + [{k: v} for k, v in fields.items()])
    assert made["url"] == f"{bucket.node.endpoint}/{bucket.name}"
    return made["fields"]


def by_hand(bucket, policy, **fields):
    """A form with any text as its policy, signed with version 2."""
    access_key, secret_key = bucket.node.credentials
    text = base64.b64encode(policy if isinstance(policy, bytes) else json.dumps(policy).encode())
    signature = base64.b64encode(hmac.new(secret_key.encode(), text, hashlib.sha1).digest())
    return {"AWSAccessKeyId": access_key, "policy": text, "signature": signature, **fields}


def nothing_there(bucket):
    return "Contents" not in bucket.truth.list_objects_v2(Bucket=bucket.name)


@pytest.mark.parametrize("version", ["s3v4", "s3"])
@pytest.mark.parametrize("size", [0, 1, 127 << 10, 6 << 20])
def test_a_form_makes_an_object(bucket, version, size):
    """Of every size, with what looks like a boundary inside, and the fields that are headers elsewhere."""
    body = (b"\r\n--" + BOUNDARY[:-1].encode() + b"\r\n" + harness.random_bytes(size, seed=size))[:size]
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag></TagSet></Tagging>"
    fields = signed(bucket, "dir/key \u00fc", version, **{"Content-Type": "text/x", "x-amz-meta-colour": "blue", "tagging": tags,
                                                     "acl": "private", "Cache-Control": "no-store"})
    reply = post(bucket, {**fields, "x-ignore-this": "x"}, body)
    assert reply.status == 204, reply.body
    got = bucket.truth.get_object(Bucket=bucket.name, Key="dir/key \u00fc")
    assert got["Body"].read() == body and reply.headers["etag"] == got["ETag"]
    got = bucket.s3.get_object(Bucket=bucket.name, Key="dir/key \u00fc")
    assert (got["ContentType"], got["Metadata"], got["CacheControl"], got["TagCount"]) == (
        "text/x", {"colour": "blue"}, "no-store", 1)


def test_the_answers_that_a_form_may_ask_for(bucket):
    fields = signed(bucket, "up/${filename}", conditions=[["starts-with", "$success_action_status", ""]])
    reply = post(bucket, {**fields, "success_action_status": "201"}, filename="C:\\\\dir\\\\name.txt")
    assert reply.status == 201 and b"<Key>up/name.txt</Key>" in reply.body
    assert reply.headers["location"].endswith(f"/{bucket.name}/up/name.txt")
    assert post(bucket, {**fields, "success_action_status": "200"}, filename="b").status == 200
    assert post(bucket, {**fields, "success_action_status": "404"}, filename="c").status == 204
    target = f"{bucket.node.endpoint}/-/health?x=y"
    fields = signed(bucket, "redirected", success_action_redirect=target)
    assert post(bucket, fields).status == 200  # urllib follows
    keys = [o["Key"] for o in bucket.s3.list_objects_v2(Bucket=bucket.name)["Contents"]]
    assert keys == ["redirected", "up/b", "up/c", "up/name.txt"]


def test_a_file_name_is_not_cut(bucket):
    """Of a file name that is too long to be read no beginning is taken for the key. (Seen to make the key "name" where parameter() says of
    what is too long that it is not there.)"""
    fields = signed(bucket, "${filename}")
    reply = post(bucket, fields, filename="d/" * 510 + "name.txt")
    assert (reply.status, reply.error()["Code"]) == (400, "MalformedPOSTRequest")
    assert nothing_there(bucket)
    assert post(bucket, fields, filename="d/" * 508 + "name.txt").status == 204
    assert [o["Key"] for o in bucket.s3.list_objects_v2(Bucket=bucket.name)["Contents"]] == ["name.txt"]


def test_an_answer_names_the_object_as_its_client_reaches_it(new_node, origin, bucket):
    """By the host that names the bucket, too; a host of any length does no harm."""
    fields = signed(bucket, "k", success_action_status="201")
    data, headers = form(fields, b"data")
    url = f"{bucket.node.endpoint}/{bucket.name}"
    reply = fetch(url, method="POST", data=data, headers={**headers, "Host": "&" * 12000})
    assert reply.status == 201 and f"<Location>/{bucket.name}/k</Location>".encode() in reply.body, reply.body
    assert reply.headers["location"] == f"/{bucket.name}/k"
    assert fetch(url, method="POST", data=data, headers=headers).headers["location"] == url + "/k"
    node = new_node(domain="forebay.test")
    name = node.new_bucket(origin)
    made = node.s3(signature_version="s3v4").generate_presigned_post(name, "a b", ExpiresIn=60)
    data, headers = form(made["fields"], b"data")
    reply = fetch(node.endpoint, method="POST", data=data, headers={**headers, "Host": f"{name}.forebay.test"})
    assert reply.status == 204 and reply.headers["location"] == f"http://{name}.forebay.test/a%20b"


def test_forms_that_are_refused_store_nothing(bucket):
    """Wrong or missing signatures, policies that do not hold or are none, and broken forms."""
    whole = {"expiration": "2099-01-01T00:00:00Z", "conditions": [{"bucket": bucket.name}, ["starts-with", "$key", "k"]]}

    def policy(conditions=None, **changed):
        return {**whole, **({} if conditions is None else {"conditions": whole["conditions"] + conditions}), **changed}

    good = by_hand(bucket, whole, key="k")
    v4 = signed(bucket, "k")
    access_key = v4["x-amz-credential"].split("/")[0]
    cases = [
        ({**v4, "x-amz-credential": v4["x-amz-credential"].replace("us-east-1", "eu-west-9")}, 400, "InvalidArgument"),
        ({**v4, "x-amz-credential": f"{access_key}/20200101/us-east-1/s3/aws4_request", "x-amz-date": "20200101T000000Z"}, 403, "AccessDenied"),
        (by_hand(bucket, policy([{"x-amz-meta-a": "b"}]), key="k"), 403, "AccessDenied"),
        (by_hand(bucket, policy([{"x-amz-meta-a": "b"}]), key="k", **{"x-amz-meta-a": "c"}), 403, "AccessDenied"),
        (by_hand(bucket, policy([["eq", "$x-amz-meta-a", "b"]]), key="k", **{"x-amz-meta-a": "bc"}), 403, "AccessDenied"),
        (by_hand(bucket, policy([["starts-with", "$x-amz-meta-a", ""]]), key="k"), 403, "AccessDenied"),
        ({**good, "signature": "AAAA"}, 403, "SignatureDoesNotMatch"),
        ({**good, "AWSAccessKeyId": "nobody"}, 403, "InvalidAccessKeyId"),
        ({"key": "k"}, 403, "AccessDenied"),
        ({k: v for k, v in good.items() if k != "signature"}, 400, "InvalidArgument"),
        ({k: v for k, v in good.items() if k != "key"}, 400, "InvalidArgument"),
        ({**good, "x-amz-meta-more": "x"}, 403, "AccessDenied"),
        ({**good, "key": "other"}, 403, "AccessDenied"),
        (by_hand(bucket, policy(expiration="2020-01-01T00:00:00Z"), key="k"), 403, "AccessDenied"),
        (by_hand(bucket, policy(expiration="tomorrow"), key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, {"conditions": []}, key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, {"expiration": "2099-01-01T00:00:00Z"}, key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, b"no json", key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, policy([["content-length-range", 0]]), key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, policy([["content-length-range", -1, 5]]), key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, policy([{}]), key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, policy([["ends-with", "$key", "k"]]), key="k"), 400, "InvalidPolicyDocument"),
        (by_hand(bucket, policy([["content-length-range", 0, 3]]), key="k"), 400, "EntityTooLarge"),
        (by_hand(bucket, policy([["content-length-range", 5, 9]]), key="k"), 400, "EntityTooSmall"),
        (by_hand(bucket, policy([["eq", "$x-amz-server-side-encryption", "AES256"]]), key="k",
                 **{"x-amz-server-side-encryption": "AES256"}), 501, "NotImplemented"),
        (by_hand(bucket, policy([["starts-with", "$tagging", ""]]), key="k", tagging="no xml"), 400, "MalformedXML"),
        (by_hand(bucket, policy([["starts-with", "$x-amz-meta-forebay-tags:", ""]]), key="k",
                 **{"x-amz-meta-forebay-tags:": "no=tags&%"}), 400, "InvalidArgument"),
        (by_hand(bucket, policy([["starts-with", "$x-amz-meta-a b", ""]]), key="k", **{"x-amz-meta-a b": "c"}), 400, "InvalidArgument"),
        (by_hand(bucket, policy([["content-length-range", 0, 3], ["content-length-range", 0, 9]]), key="k"), 400, "EntityTooLarge"),
        (by_hand(bucket, b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}", key="k"), 400, "InvalidPolicyDocument"),
        ([("f%d" % i, "x") for i in range(100)] + list(good.items()), 400, "MalformedPOSTRequest"),
        ({"long": "x" * 70000, **good}, 400, "MalformedPOSTRequest"),
    ]
    for fields, status, code in cases:
        reply = post(bucket, fields)
        assert (reply.status, reply.error()["Code"]) == (status, code), (fields, reply.body)
    large = by_hand(bucket, policy([["content-length-range", 0, 1 << 20]]), key="k")
    assert post(bucket, large, harness.random_bytes(3 << 20)).error()["Code"] == "EntityTooLarge"
    assert post(bucket, good, None).error()["Code"] == "InvalidArgument"
    assert post(bucket, good, file_first=True).error()["Code"] == "AccessDenied"
    data, headers = form(good, b"data")
    url = f"{bucket.node.endpoint}/{bucket.name}"
    assert fetch(url, method="POST", data=data[:-20], headers=headers).error()["Code"] == "IncompleteBody"
    for wrong in ("multipart/form-data", "multipart/form-data; boundary=other", "multipart/form-data; boundary=" + "x" * 71):
        assert fetch(url, method="POST", data=data, headers={"Content-Type": wrong}).error()["Code"] == "MalformedPOSTRequest"
    assert nothing_there(bucket)
    assert post(bucket, good).status == 204  # what was changed in each case was the reason


def test_a_policy_is_about_the_bucket_that_is_posted_to(bucket):
    """Not about the one that a field of the form names."""
    other, node = harness.random_name("other"), bucket.node
    bucket.s3.create_bucket(Bucket=other)
    policy = {"expiration": "2099-01-01T00:00:00Z", "conditions": [{"bucket": bucket.name}, {"key": "k"}]}
    for named in (None, bucket.name, other):
        fields = {**({"bucket": named} if named else {}), **by_hand(bucket, policy, key="k")}
        data, headers = form(fields, b"data")
        answer = fetch(f"{node.endpoint}/{other}", method="POST", data=data, headers=headers)
        assert answer.status == 403 and b"<Code>AccessDenied</Code>" in answer.body, (named, answer.body)
        assert post(bucket, fields).status == 204
    assert "Contents" not in bucket.s3.list_objects_v2(Bucket=other)
    bucket.s3.delete_bucket(Bucket=other)


def test_a_form_has_the_rights_of_who_signed_it(bucket):
    name = harness.random_name("u")
    keys = user(bucket.node, name, role="reader")
    client = harness.s3_client(bucket.node.endpoint, *keys, signature_version="s3v4")
    made = client.generate_presigned_post(bucket.name, "k", ExpiresIn=60)
    assert post(bucket, made["fields"]).error()["Code"] == "AccessDenied"
    expired = signed(bucket, "k", expires=-5)
    assert post(bucket, expired).error()["Code"] == "AccessDenied"
    assert nothing_there(bucket)


# ---- buckets ----


def with_headers(client, operation, headers):
    """Adds headers of our own to an operation of this client."""
    client.meta.events.register(f"before-call.s3.{operation}",
                                lambda params, **_: params["headers"].update(headers))
    return client


def test_a_mirror_bucket_is_made_and_removed_by_s3(node, origin):
    """The origin and its keys come in headers; an origin that does not answer makes no bucket; one that still shows
    objects is not removed, and its origin is not touched."""
    name = origin.new_bucket()
    origin.s3().put_object(Bucket=name, Key="k", Body=b"data")
    s3 = node.s3()
    headers = {"x-forebay-origin": f"s3://{name}", "x-forebay-set": "origin.endpoint=http%3A%2F%2F127.0.0.1:1"}
    wrong = with_headers(node.s3(), "CreateBucket", headers)
    assert refused(wrong.create_bucket, Bucket=name)[0] in (502, 503)
    assert refused(s3.head_bucket, Bucket=name) == (404, "404")
    maker = with_headers(node.s3(), "CreateBucket", {"x-forebay-origin": f"s3://{name}",
                                                     "x-forebay-set": urllib.parse.urlencode(origin.properties())})
    maker.create_bucket(Bucket=name)
    assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"data"
    assert refused(maker.create_bucket, Bucket=name) == (409, "BucketAlreadyOwnedByYou")
    assert refused(s3.delete_bucket, Bucket=name) == (409, "BucketNotEmpty")
    s3.delete_object(Bucket=name, Key="k")
    s3.delete_bucket(Bucket=name)
    assert refused(s3.head_bucket, Bucket=name) == (404, "404")
    assert refused(s3.delete_bucket, Bucket=name) == (404, "NoSuchBucket")
    origin.s3().head_bucket(Bucket=name)


def test_bucket_requests_that_are_refused(node):
    s3 = node.s3()
    assert refused(s3.create_bucket, Bucket="some-bucket", ACL="public-read") == (400, "AccessControlListNotSupported")
    assert refused(s3.create_bucket, Bucket="some-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}) == (
        400, "InvalidLocationConstraint")
    assert refused(s3.create_bucket, Bucket="some-bucket", ObjectLockEnabledForBucket=True) == (501, "NotImplemented")
    assert refused(s3.create_bucket, Bucket="Upper") == (400, "InvalidBucketName")
    writer = harness.s3_client(node.endpoint, *user(node, harness.random_name("w"), role="writer"))
    assert refused(writer.create_bucket, Bucket="some-bucket") == (403, "AccessDenied")
    assert refused(writer.delete_bucket, Bucket="some-bucket") == (403, "AccessDenied")


def test_a_credential_longer_than_any_key(bucket):
    """The whole key of the credential is looked for, not what stands before its first slash; the node goes on."""
    access_key, _ = bucket.node.credentials
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    fields = {"key": "k", "policy": base64.b64encode(b"{}").decode(), "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-date": now,
              "x-amz-credential": f"{access_key}/{'A' * 50000}/{now[:8]}/{harness.REGION}/s3/aws4_request",
              "x-amz-signature": "0" * 64}
    for _ in range(3):
        assert post(bucket, fields).error()["Code"] == "InvalidAccessKeyId"
    assert nothing_there(bucket)
