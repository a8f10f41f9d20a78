"""Users with roles and patterns of buckets, for S3 and for the wire protocol; keys come, go and survive a restart;
buckets that anybody may read."""

import json
import subprocess

import boto3
import botocore
import botocore.client
import botocore.exceptions
import pytest

import harness
from test_s3_security import ask, fetch, send


def refused(call, **arguments):
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"]


def user(node, name, **options):
    """A new user's keys."""
    flags = [f"--{key}={value}" for key, value in options.items()]
    made = json.loads(node.cli("user", "create", name, "--json", *flags).stdout)
    return made["access_key"], made["secret_key"]


def s3_of(node, keys):
    return harness.s3_client(node.endpoint, *keys)


def wire_cli(node, keys, *arguments):
    """`forebay` as a user on another machine runs it."""
    env = {"FOREBAY_ACCESS_KEY": keys[0], "FOREBAY_SECRET_KEY": keys[1], "PATH": "/usr/bin:/bin"}
    return subprocess.run([harness.forebay_bin(), *arguments, "--endpoint", node.wire_address], env=env,
                          capture_output=True, text=True, timeout=200)


def test_roles_and_patterns_in_s3(bucket):
    """A reader reads, a writer also writes, each only where its pattern fits; a listing shows no other buckets."""
    node, name = bucket.node, bucket.name
    other = node.new_bucket(bucket.origin)
    bucket.s3.put_object(Bucket=name, Key="k", Body=b"data")
    bucket.s3.put_object(Bucket=other, Key="k", Body=b"data")
    tag = harness.random_name("u")
    reader = s3_of(node, user(node, f"{tag}-r", buckets=name))
    writer = s3_of(node, user(node, f"{tag}-w", role="writer", buckets=f"{name},nothing-*"))
    admin = s3_of(node, user(node, f"{tag}-a", role="admin"))
    for client in (reader, writer, admin):
        assert client.get_object(Bucket=name, Key="k")["Body"].read() == b"data"
        assert [o["Key"] for o in client.list_objects_v2(Bucket=name)["Contents"]] == ["k"]
    assert [b["Name"] for b in reader.list_buckets()["Buckets"]] == [name]
    assert {name, other} <= {b["Name"] for b in admin.list_buckets()["Buckets"]}
    for client in (reader, writer):
        assert refused(client.get_object, Bucket=other, Key="k") == "AccessDenied"
        assert refused(client.list_objects_v2, Bucket=other) == "AccessDenied"
        assert refused(client.get_object, Bucket="there-is-none", Key="k") == "AccessDenied"
        assert refused(client.copy_object, Bucket=name, Key="c", CopySource=f"{other}/k") == "AccessDenied"
    for call, arguments in ((reader.put_object, {"Key": "new", "Body": b"x"}), (reader.delete_object, {"Key": "k"}),
                            (reader.delete_objects, {"Delete": {"Objects": [{"Key": "k"}]}}),
                            (reader.create_multipart_upload, {"Key": "new"}), (reader.list_multipart_uploads, {}),
                            (reader.copy_object, {"Key": "c", "CopySource": f"{name}/k"})):
        assert refused(call, Bucket=name, **arguments) == "AccessDenied"
    writer.put_object(Bucket=name, Key="new", Body=b"x" * 100_000)
    writer.copy_object(Bucket=name, Key="c", CopySource=f"{name}/k")
    writer.delete_object(Bucket=name, Key="k")
    assert refused(writer.put_object, Bucket=other, Key="new", Body=b"x") == "AccessDenied"
    admin.put_object(Bucket=other, Key="new", Body=b"x")
    assert sorted(o["Key"] for o in bucket.truth.list_objects_v2(Bucket=name)["Contents"]) == ["c", "new"]


def test_keys_are_rotated_and_revoked(bucket):
    """Two keys of one user work side by side; a removed one is unknown at once; the last one cannot be removed."""
    node, name = bucket.node, bucket.name
    who = harness.random_name("u")
    old = user(node, who, role="writer")
    new = json.loads(node.cli("user", "add-key", who, "--json").stdout)
    new = new["access_key"], new["secret_key"]
    for keys in (old, new):
        s3_of(node, keys).put_object(Bucket=name, Key=keys[0], Body=b"x")
    shown = json.loads(node.cli("user", "show", who, "--json").stdout)
    assert shown["access_keys"] == [old[0], new[0]] and shown["role"] == "writer" and shown["buckets"] == "*"
    assert old[1] not in node.cli("user", "show", who).stdout + node.cli("user", "ls").stdout
    assert refused(s3_of(node, (old[0], new[1])).list_buckets) == "SignatureDoesNotMatch"
    node.cli("user", "rm-key", who, old[0])
    assert refused(s3_of(node, old).list_buckets) == "InvalidAccessKeyId"
    s3_of(node, new).get_object(Bucket=name, Key=old[0])
    assert "last key" in node.cli("user", "rm-key", who, new[0], check=False).stderr
    assert who in [u["name"] for u in json.loads(node.cli("user", "ls", "--json").stdout)]
    node.cli("user", "rm", who)
    assert refused(s3_of(node, new).list_buckets) == "InvalidAccessKeyId"


def test_mistakes_are_one_line(node):
    """What is wrong with a user that cannot be made, on one line."""
    for arguments, says in ((("create", "a b"), "user name"), (("create", "x", "--role=king"), "one of admin"),
                            (("create", "x", "--role=admin", "--buckets=a*"), "give *"), (("rm", "nobody"), "nobody"),
                            (("show", "nobody"), "nobody"), (("rm-key", "nobody", "K"), "nobody"), (("create",), "expects")):
        done = node.cli("user", *arguments, check=False)
        assert done.returncode in (1, 2) and says in done.stderr
        assert done.stderr.startswith("forebay user: ") and done.stderr.count("\n") == 1


def test_users_over_the_wire(bucket, tmp_path):
    """The same roles hold for `forebay` itself on another machine, and only an admin manages buckets and users.

    Seen to fail without the call of access_check in object_call.
    """
    node, name = bucket.node, bucket.name
    other = node.new_bucket(bucket.origin)
    bucket.s3.put_object(Bucket=name, Key="k", Body=b"data")
    tag = harness.random_name("u")
    reader, admin = user(node, f"{tag}-r", buckets=name), user(node, f"{tag}-a", role="admin")
    assert wire_cli(node, reader, "cat", f"{name}/k").stdout == "data"
    listed = wire_cli(node, reader, "bucket", "ls").stdout
    assert name in listed and other not in listed
    source = tmp_path / "f"
    source.write_bytes(b"new")
    for arguments in (("cat", f"{other}/k"), ("put", str(source), f"{name}/new"), ("rm", f"{name}/k"),
                      ("bucket", "rm", name), ("bucket", "set", name, "anonymous=read"), ("user", "ls"), ("status",),
                      ("user", "create", "eve", "--role=admin")):
        done = wire_cli(node, reader, *arguments)
        assert done.returncode == 1 and "may not" in done.stderr and done.stderr.count("\n") == 1, arguments
    assert wire_cli(node, admin, "put", str(source), f"{name}/new").returncode == 0
    assert f"{tag}-r" in wire_cli(node, admin, "user", "ls").stdout
    node.cli("user", "rm", f"{tag}-r")
    done = wire_cli(node, reader, "cat", f"{name}/k")
    assert done.returncode == 1 and "credentials" in done.stderr
    assert sorted(o["Key"] for o in bucket.truth.list_objects_v2(Bucket=name)["Contents"]) == ["k", "new"]


def test_users_survive_a_kill(new_node, origin):
    """A user that was acknowledged is there after the node was killed and started again; a removed one is not."""
    node = new_node()
    name = node.new_bucket(origin)
    stays, goes = user(node, "stays", role="writer"), user(node, "goes", role="writer")
    node.cli("user", "rm", "goes")
    node.kill()
    node.start()
    s3_of(node, stays).put_object(Bucket=name, Key="k", Body=b"x")
    assert refused(s3_of(node, goes).list_buckets) == "InvalidAccessKeyId"


def test_status_takes_an_admin(node):
    """The node's state names all buckets: it is for admins."""
    tag = harness.random_name("u")
    reader, admin = user(node, f"{tag}-r"), user(node, f"{tag}-a", role="admin")
    assert ask(node, "GET", "/-/api/v1/status").status == 200
    assert ask(node, "GET", "/-/api/v1/status", keys=admin).status == 200
    assert ask(node, "GET", "/-/api/v1/status", keys=reader).status == 403


def test_anonymous_reads_where_the_bucket_says_so(bucket):
    """Without a signature a bucket with anonymous=read is listed and read; nothing else is done or told."""
    node, name = bucket.node, bucket.name
    bucket.s3.put_object(Bucket=name, Key="k", Body=b"data")
    url = f"{node.endpoint}/{name}"
    assert fetch(f"{url}/k").error()["Code"] == "AccessDenied"
    node.cli("bucket", "set", name, "anonymous=read")
    plain = boto3.client("s3", endpoint_url=node.endpoint, region_name=harness.REGION,
                         config=botocore.client.Config(signature_version=botocore.UNSIGNED))
    assert plain.get_object(Bucket=name, Key="k", Range="bytes=1-2")["Body"].read() == b"at"
    assert plain.head_object(Bucket=name, Key="k")["ContentLength"] == 4
    assert [o["Key"] for o in plain.list_objects_v2(Bucket=name)["Contents"]] == ["k"]
    assert refused(plain.get_object, Bucket=name, Key="none") == "NoSuchKey"
    assert refused(plain.get_object, Bucket=name, Key="k", ResponseContentType="x/y") == "InvalidRequest"
    for call, arguments in ((plain.put_object, {"Key": "new", "Body": b"x"}), (plain.delete_object, {"Key": "k"}),
                            (plain.create_multipart_upload, {"Key": "n"}), (plain.list_multipart_uploads, {})):
        assert refused(call, Bucket=name, **arguments) == "AccessDenied"
    for call, arguments in ((plain.get_bucket_tagging, {}), (plain.get_bucket_lifecycle_configuration, {}), (plain.get_bucket_cors, {}),
                            (plain.get_bucket_policy, {}), (plain.get_bucket_acl, {}), (plain.get_object_acl, {"Key": "k"})):
        assert refused(call, Bucket=name, **arguments) == "AccessDenied"
    assert refused(plain.list_buckets) == "AccessDenied"
    assert send(node, "POST", f"/{name}?delete", body=b"<Delete/>").error()["Code"] == "AccessDenied"
    node.cli("bucket", "set", name, "anonymous=")
    assert fetch(f"{url}/k").error()["Code"] == "AccessDenied"


def test_who_signs_reads_what_strangers_may(bucket):
    """A user whose pattern does not fit a bucket with anonymous=read reads and lists it as whoever does not sign, copies from it too, and
    does and hears no more; his own list of buckets does not have it. (Seen to be refused everything where s3_check_access asks the
    pattern alone.)"""
    node, name, own = bucket.node, bucket.name, bucket.node.new_bucket(bucket.origin)
    bucket.s3.put_object(Bucket=name, Key="k", Body=b"data")
    who = s3_of(node, user(node, harness.random_name("u"), role="writer", buckets=own))
    assert refused(who.get_object, Bucket=name, Key="k") == "AccessDenied"
    node.cli("bucket", "set", name, "anonymous=read")
    got = who.get_object(Bucket=name, Key="k", ResponseContentType="x/y")
    assert (got["Body"].read(), got["ContentType"]) == (b"data", "x/y")
    assert who.head_object(Bucket=name, Key="k")["ContentLength"] == 4
    assert who.head_bucket(Bucket=name)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert [o["Key"] for o in who.list_objects_v2(Bucket=name)["Contents"]] == ["k"]
    assert fetch(who.generate_presigned_url("get_object", {"Bucket": name, "Key": "k"})).body == b"data"
    who.copy_object(Bucket=own, Key="c", CopySource=f"{name}/k")
    assert who.get_object(Bucket=own, Key="c")["Body"].read() == b"data"
    assert refused(who.get_object, Bucket=name, Key="none") == "NoSuchKey"
    for call, arguments in ((who.put_object, {"Key": "new", "Body": b"x"}), (who.delete_object, {"Key": "k"}),
                            (who.create_multipart_upload, {"Key": "n"}), (who.list_multipart_uploads, {}),
                            (who.copy_object, {"Key": "n", "CopySource": f"{own}/c"}), (who.get_bucket_tagging, {}),
                            (who.get_bucket_cors, {}), (who.get_bucket_acl, {}), (who.get_object_acl, {"Key": "k"})):
        assert refused(call, Bucket=name, **arguments) == "AccessDenied"
    assert [b["Name"] for b in who.list_buckets()["Buckets"]] == [own]
    node.cli("bucket", "set", name, "anonymous=")
    assert refused(who.get_object, Bucket=name, Key="k") == "AccessDenied"
    assert refused(who.copy_object, Bucket=own, Key="c", CopySource=f"{name}/k") == "AccessDenied"
