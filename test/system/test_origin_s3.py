"""What `s3://` buckets say of how they are asked: whether requests are signed, and how the service is to encrypt."""

import json
import os

import boto3
import pytest

import harness
import mounted
import origins
from wire import WireError


@pytest.fixture
def stranger(tmp_path):
    """A node whose environment has keys that nobody knows."""
    with harness.Node(tmp_path / "stranger", env={"AWS_ACCESS_KEY_ID": "AKIANOBODY", "AWS_SECRET_ACCESS_KEY": "unknown",
                                                  "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}) as node:
        yield node


def test_public_buckets_are_read_without_keys(origin, stranger):
    """A bucket that everybody may read: by the keys of the environment it cannot be, with origin.anonymous it can."""
    name = origin.new_bucket()
    origin.s3().put_object(Bucket=name, Key="open", Body=b"for everybody")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:ListBucket"],
                                                      "Resource": [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]}]}
    origin.s3().put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
    with pytest.raises(WireError, match="access key"):
        stranger.create_bucket("signed", f"s3://{name}", **{"origin.endpoint": origin.endpoint})
    stranger.create_bucket("unsigned", f"s3://{name}", **{"origin.endpoint": origin.endpoint, "origin.anonymous": "true"})
    assert stranger.s3().get_object(Bucket="unsigned", Key="open")["Body"].read() == b"for everybody"
    assert [o["Key"] for o in stranger.s3().list_objects_v2(Bucket="unsigned")["Contents"]] == ["open"]
    said = stranger.cli("origin", "check", f"s3://{name}", "--json", "--read-only", "--set", f"origin.endpoint={origin.endpoint}",
                        "--set", "origin.anonymous=true")
    assert "origin.anonymous" in said.stdout


def test_the_service_encrypts_as_the_bucket_says(tmp_path, new_node):
    """What is written, in one request or in parts, has the encryption and the key of the bucket's properties, and a chmod through a
    mount keeps them, also by a bucket that says nothing of it."""
    reason = origins.Moto.missing() or (None if os.access("/dev/fuse", os.R_OK) else "no /dev/fuse here")
    if reason:
        pytest.skip(f"not run: {reason}")
    server = origins.Moto(tmp_path / "moto")
    try:
        key = boto3.client("kms", endpoint_url=server.endpoint, region_name="us-east-1", aws_access_key_id="root",
                           aws_secret_access_key="root").create_key()["KeyMetadata"]["Arn"]
        node, s3 = new_node(), server.client("s3")
        common = {"origin.endpoint": server.endpoint, "origin.access_key": "root", "origin.secret_key": "root",
                  "origin.region": "us-east-1", "origin.part_size": "5MiB", "posix": "on"}
        node.create_bucket("kms", "s3://bucket", **common, **{"origin.sse": "aws:kms", "origin.sse_key": key})
        node.create_bucket("plain", "s3://bucket", **common)
        node.s3().put_object(Bucket="kms", Key="small", Body=b"x")
        node.s3().put_object(Bucket="kms", Key="large", Body=bytes(21 << 20))

        def kept(name):
            head = s3.head_object(Bucket="bucket", Key=name)
            return head.get("ServerSideEncryption"), head.get("SSEKMSKeyId")

        assert kept("small") == kept("large") == ("aws:kms", key)
        for bucket, mode in (("kms", 0o600), ("plain", 0o640)):
            with mounted.Mount(tmp_path / bucket, node, bucket) as mount:
                os.chmod(mount.path / "small", mode)
            assert int(s3.head_object(Bucket="bucket", Key="small")["Metadata"]["mode"]) == 0o100000 | mode
            assert kept("small") == ("aws:kms", key)
    finally:
        server.stop()
