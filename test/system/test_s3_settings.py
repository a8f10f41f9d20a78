"""What clients ask of a bucket on their way to something else: versions, ACLs, attributes, and settings that it lacks.

Each answer is the one that S3 gives for a bucket on which nothing was ever set.
"""

import socket

import boto3
import botocore.exceptions
import pytest

import harness
from test_s3_security import ask, fetch, send, signed

# Operation of boto3, and S3's error code for a bucket without it.
NOT_SET = [
    ("bucket_cors", "NoSuchCORSConfiguration"), ("bucket_encryption", "ServerSideEncryptionConfigurationNotFoundError"),
    ("bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration"), ("bucket_policy", "NoSuchBucketPolicy"),
    ("bucket_policy_status", "NoSuchBucketPolicy"), ("bucket_replication", "ReplicationConfigurationNotFoundError"),
    ("bucket_ownership_controls", "OwnershipControlsNotFoundError"), ("bucket_tagging", "NoSuchTagSet"),
    ("public_access_block", "NoSuchPublicAccessBlockConfiguration"), ("bucket_website", "NoSuchWebsiteConfiguration"),
    ("object_lock_configuration", "ObjectLockConfigurationNotFoundError"),
]


def refused(call, **arguments):
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_settings_that_were_never_made(bucket):
    """Each has its own code of S3, removing it succeeds, and a bucket that is not there says that instead."""
    s3, where = bucket.s3, {"Bucket": bucket.name}
    for name, code in NOT_SET:
        assert refused(getattr(s3, f"get_{name}"), **where) == (404, code), name
        assert refused(getattr(s3, f"get_{name}"), Bucket="there-is-none") == (404, "NoSuchBucket"), name
    assert "Status" not in s3.get_bucket_versioning(**where)
    assert "LoggingEnabled" not in s3.get_bucket_logging(**where)
    assert "Status" not in s3.get_bucket_accelerate_configuration(**where)
    assert "QueueConfigurations" not in s3.get_bucket_notification_configuration(**where)
    assert s3.get_bucket_request_payment(**where)["Payer"] == "BucketOwner"
    for call in (s3.delete_bucket_policy, s3.delete_bucket_cors, s3.delete_bucket_tagging, s3.delete_bucket_lifecycle,
                 s3.delete_bucket_encryption, s3.delete_bucket_website, s3.delete_public_access_block):
        assert call(**where)["ResponseMetadata"]["HTTPStatusCode"] == 204
        assert refused(call, Bucket="there-is-none") == (404, "NoSuchBucket")


def test_the_acl_is_private(bucket):
    """Buckets and objects show the canned ACL called private; setting it changes nothing, another one is refused."""
    s3, where = bucket.s3, {"Bucket": bucket.name, "Key": "k"}
    s3.put_object(**where, Body=b"x")
    for acl in (s3.get_bucket_acl(Bucket=bucket.name), s3.get_object_acl(**where)):
        assert [g["Permission"] for g in acl["Grants"]] == ["FULL_CONTROL"]
        assert acl["Grants"][0]["Grantee"]["ID"] == acl["Owner"]["ID"]
        assert acl["Grants"][0]["Grantee"]["Type"] == "CanonicalUser"
    s3.put_bucket_acl(Bucket=bucket.name, ACL="private")
    s3.put_object_acl(**where, ACL="private")
    assert refused(s3.put_object_acl, **where, ACL="public-read") == (400, "AccessControlListNotSupported")
    assert refused(s3.put_bucket_acl, Bucket=bucket.name, ACL="public-read") == (400, "AccessControlListNotSupported")
    assert refused(s3.get_object_acl, Bucket=bucket.name, Key="none") == (404, "NoSuchKey")
    assert refused(s3.put_object_acl, Bucket=bucket.name, Key="none", ACL="private") == (404, "NoSuchKey")
    assert refused(s3.get_object_retention, **where) == (400, "InvalidRequest")
    assert refused(s3.get_object_legal_hold, **where) == (400, "InvalidRequest")
    shown = {name: s3.get_object_acl(**where)[name] for name in ("Owner", "Grants")}
    s3.put_object_acl(**where, AccessControlPolicy=shown)
    stranger = {**shown["Grants"][0], "Grantee": {"Type": "CanonicalUser", "ID": "stranger"}}
    everybody = {"Grantee": {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AllUsers"}, "Permission": "FULL_CONTROL"}
    by_mail = {"Grantee": {"Type": "AmazonCustomerByEmail", "EmailAddress": "a@example.org"}, "Permission": "FULL_CONTROL"}
    for grants in ([stranger], [*shown["Grants"], everybody], [by_mail], [{**shown["Grants"][0], "Permission": "READ"}], [],
                   [*shown["Grants"], stranger], [stranger, *shown["Grants"]]):
        assert refused(s3.put_object_acl, **where, AccessControlPolicy={**shown, "Grants": grants}) == (
            400, "AccessControlListNotSupported")
    assert ask(bucket.node, "PUT", f"/{bucket.name}/k?acl", b"<AccessControlPolicy>").error()["Code"] == "MalformedXML"
    for path in (f"/{bucket.name}/k?acl", f"/{bucket.name}?acl"):
        granting = signed(bucket.node, "PUT", path, {"x-amz-acl": "private", "x-amz-grant-read": 'id="stranger"'})
        assert send(bucket.node, "PUT", path, granting).error()["Code"] == "AccessControlListNotSupported"
    assert s3.get_object(**where)["Body"].read() == b"x"


@pytest.mark.parametrize("name, value, code", [
    *[(f"x-amz-grant-{what}", 'id="x"', "NotImplemented") for what in ("full-control", "read", "read-acp", "write-acp")],
    ("x-amz-acl", "public-read", "NotImplemented"), ("x-amz-object-lock-mode", "GOVERNANCE", "NotImplemented"),
    ("x-amz-object-lock-legal-hold", "ON", "NotImplemented"), ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
    ("x-amz-server-side-encryption-customer-algorithm", "AES256", "NotImplemented"),
    ("x-amz-website-redirect-location", "/x", "NotImplemented"), ("x-amz-write-offset-bytes", "0", "NotImplemented"),
    ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
])
def test_headers_that_ask_for_what_is_not_here(bucket, name, value, code):
    """They are refused by everything that makes an object: it would be there without what its writer asked for."""
    bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    for method, path, more in (("PUT", "new", {}), ("PUT", "new", {"x-amz-copy-source": f"/{bucket.name}/k"}), ("POST", "new?uploads", {})):
        path = f"/{bucket.name}/{path}"
        reply = send(bucket.node, method, path, signed(bucket.node, method, path, {name: value, **more}))
        assert reply.error()["Code"] == code, (method, path, more)
    assert [o["Key"] for o in bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]] == ["k"]
    assert "Uploads" not in bucket.s3.list_multipart_uploads(Bucket=bucket.name)


def test_another_region(new_node):
    """Its name is the location of every bucket, clients that sign for it are served, others are told it, and a bucket is not made twice."""
    node = new_node(region="eu-west-1")
    access_key, secret_key = node.credentials
    s3 = boto3.client("s3", endpoint_url=node.endpoint, region_name="eu-west-1", aws_access_key_id=access_key,
                      aws_secret_access_key=secret_key)
    here, there = {"LocationConstraint": "eu-west-1"}, {"LocationConstraint": "eu-west-2"}
    assert refused(s3.create_bucket, Bucket="some-bucket", CreateBucketConfiguration=there) == (400, "InvalidLocationConstraint")
    s3.create_bucket(Bucket="some-bucket", CreateBucketConfiguration=here)
    assert s3.get_bucket_location(Bucket="some-bucket")["LocationConstraint"] == "eu-west-1"
    assert s3.head_bucket(Bucket="some-bucket")["BucketRegion"] == "eu-west-1"
    assert refused(s3.create_bucket, Bucket="some-bucket", CreateBucketConfiguration=here) == (409, "BucketAlreadyOwnedByYou")
    reply = ask(node, "GET", "/some-bucket", region="us-east-1")
    assert (reply.error()["Code"], reply.error()["Region"]) == ("AuthorizationHeaderMalformed", "eu-west-1")


def test_a_bucket_of_somebody_else(bucket):
    """A client that says whose bucket it means is refused when that is not the owner that listings and ACLs show."""
    s3, where = bucket.s3, {"Bucket": bucket.name, "Key": "k"}
    right, wrong = s3.get_bucket_acl(Bucket=bucket.name)["Owner"]["ID"], "111122223333"
    s3.put_object(**where, Body=b"x", ExpectedBucketOwner=right)
    assert s3.get_object(**where, ExpectedBucketOwner=right)["Body"].read() == b"x"
    assert refused(s3.get_object, **where, ExpectedBucketOwner=wrong) == (403, "AccessDenied")
    assert refused(s3.delete_object, **where, ExpectedBucketOwner=wrong) == (403, "AccessDenied")
    assert refused(s3.list_objects_v2, Bucket=bucket.name, ExpectedBucketOwner=wrong) == (403, "AccessDenied")
    copy = {"Bucket": bucket.name, "Key": "copy", "CopySource": f"{bucket.name}/k"}
    assert refused(s3.copy_object, **copy, ExpectedSourceBucketOwner=wrong) == (403, "AccessDenied")
    s3.copy_object(**copy, ExpectedSourceBucketOwner=right)
    assert s3.get_object(**where)["Body"].read() == b"x"


def test_one_version_of_each_object(bucket):
    """Versions are listed by pages as objects are, each object with one called null."""
    keys = sorted(["a/1", "a/2", "b", "c d", "\u00fc"], key=str.encode)
    for key in keys:
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=key.encode())
    seen = []
    for page in bucket.s3.get_paginator("list_object_versions").paginate(Bucket=bucket.name, PaginationConfig={"PageSize": 2}):
        assert len(page["Versions"]) <= 2
        seen += page["Versions"]
    assert [v["Key"] for v in seen] == keys
    assert all(v["VersionId"] == "null" and v["IsLatest"] and v["Size"] == len(v["Key"].encode()) for v in seen)
    page = bucket.s3.list_object_versions(Bucket=bucket.name, Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["a/"] and [v["Key"] for v in page["Versions"]] == keys[2:]
    assert [v["Key"] for v in bucket.s3.list_object_versions(Bucket=bucket.name, Prefix="a/")["Versions"]] == ["a/1", "a/2"]
    assert refused(bucket.s3.list_object_versions, Bucket=bucket.name, VersionIdMarker="null") == (400, "InvalidArgument")
    done = bucket.s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [
        {"Key": "b", "VersionId": "null"}, {"Key": "c d"}, {"Key": "a/1", "VersionId": "1" * 2000}]})
    assert done["Deleted"] == [{"Key": "b", "VersionId": "null"}, {"Key": "c d"}]
    [error] = done["Errors"]
    assert (error["Key"], error["Code"], error["VersionId"][:32]) == ("a/1", "NotImplemented", "1" * 32)


def test_attributes_of_an_object(bucket):
    """Only what was asked for is told; ETag and size are those of HEAD."""
    where = {"Bucket": bucket.name, "Key": "k"}
    bucket.s3.put_object(**where, Body=b"data")
    head = bucket.s3.head_object(**where)
    got = bucket.s3.get_object_attributes(**where, ObjectAttributes=["ETag", "ObjectSize", "StorageClass", "Checksum"])
    assert got["ETag"] == head["ETag"].strip('"') and got["ObjectSize"] == 4 and got["StorageClass"] == "STANDARD"
    assert got["LastModified"] == head["LastModified"]
    assert "ETag" not in bucket.s3.get_object_attributes(**where, ObjectAttributes=["ObjectSize"])
    assert refused(bucket.s3.get_object_attributes, **where, ObjectAttributes=["Colour"]) == (400, "InvalidArgument")
    assert refused(bucket.s3.get_object_attributes, Bucket=bucket.name, Key="none",
                   ObjectAttributes=["ETag"]) == (404, "NoSuchKey")


def test_functions_that_are_not_here_change_nothing(bucket):
    """What boto3 knows of S3 beyond what is here is refused, and no bucket or object is made, replaced or removed for it."""
    s3, node, where = bucket.s3, bucket.node, {"Bucket": bucket.name, "Key": "k"}
    s3.put_object(**where, Body=b"data")
    empty = harness.random_name()
    s3.create_bucket(Bucket=empty)
    for method, path in (("DELETE", f"/{empty}?metadataTable"), ("DELETE", f"/{empty}?metadataConfiguration"),
                         ("DELETE", f"/{empty}?uploads"), ("PUT", "/never-made?metadataInventoryTable"),
                         ("GET", f"/{empty}?abac"), ("PUT", f"/{bucket.name}/k?renameObject"),
                         ("PUT", f"/{bucket.name}/k?annotation&annotationName=a"),
                         ("DELETE", f"/{bucket.name}/k?annotation&annotationName=a")):
        reply = ask(node, method, path)
        assert (reply.status, reply.error()["Code"]) == (501, "NotImplemented"), path
    assert s3.get_object(**where)["Body"].read() == b"data"
    assert refused(s3.head_bucket, Bucket="never-made") == (404, "404")
    s3.delete_bucket(Bucket=empty)


def test_create_bucket_reads_all_that_is_asked(node):
    """Grants are refused however their header is written; a document with two regions is none, and one that asks for tags or for a
    directory bucket is not done by half. (Seen to make the bucket without them where on_element looks for the region alone.)"""
    path = "/some-bucket"
    for name in ("x-amz-grant-read", "X-Amz-Grant-Read"):
        headers = signed(node, "PUT", path, {name: 'id="x"'})
        assert name in headers
        assert send(node, "PUT", path, headers).error()["Code"] == "AccessControlListNotSupported"
    location = f"<LocationConstraint>{harness.REGION}</LocationConstraint>"
    body = f"<CreateBucketConfiguration>{location * 2}</CreateBucketConfiguration>".encode()
    assert ask(node, "PUT", path, body).error()["Code"] == "MalformedXML"
    for more in ("<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>", "<Bucket><Type>Directory</Type></Bucket>", "<Location/>"):
        body = f"<CreateBucketConfiguration>{location}{more}</CreateBucketConfiguration>".encode()
        assert ask(node, "PUT", path, body).error()["Code"] == "NotImplemented", more
    for body in (b"<Other/>", b"<CreateBucketConfigurations><A/></CreateBucketConfigurations>"):
        assert ask(node, "PUT", path, body).error()["Code"] == "MalformedXML", body
    assert refused(node.s3().head_bucket, Bucket="some-bucket") == (404, "404")


def test_buckets_by_host(new_node, origin, monkeypatch):
    """With --domain the host may name the bucket, for signed requests and presigned URLs of both versions."""
    ask_names = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: ask_names(
        "127.0.0.1" if str(host).endswith("localhost") else host, *rest, **more))
    node = new_node(domain="localhost")
    name = node.new_bucket(origin)
    port = node.endpoint.rsplit(":", 1)[1]
    for version in ("s3v4", "s3"):
        client = harness.s3_client(f"http://localhost:{port}", *node.credentials, signature_version="s3v4",
                                   s3={"addressing_style": "virtual"})
        signer = harness.s3_client(f"http://localhost:{port}", *node.credentials, signature_version=version,
                                   s3={"addressing_style": "virtual"})
        key = f"a key/{version}"
        client.put_object(Bucket=name, Key=key, Body=b"data")
        assert client.get_object(Bucket=name, Key=key)["Body"].read() == b"data"
        assert key in [o["Key"] for o in client.list_objects_v2(Bucket=name)["Contents"]]
        url = signer.generate_presigned_url("get_object", Params={"Bucket": name, "Key": key}, ExpiresIn=60)
        assert url.startswith(f"http://{name}.localhost:")
        assert fetch(url).body == b"data"
        assert fetch(url.replace(f"/{version}?", "/other?")).status == 403
        where = {"Bucket": name, "Key": "in parts/\u00fc"}
        upload = client.create_multipart_upload(**where)["UploadId"]
        etag = client.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"data")["ETag"]
        done = client.complete_multipart_upload(**where, UploadId=upload,
                                                MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert done["Location"] == f"http://{name}.localhost:{port}/in%20parts/%C3%BC"
        client.delete_object(**where)
    for key in ("-/health", "-/metrics", "-/api/v1/status"):  # the node's own pages, at hosts that name no bucket
        assert fetch(f"http://{name}.localhost:{port}/{key}").status == 403
        client.put_object(Bucket=name, Key=key, Body=key.encode())
        assert client.get_object(Bucket=name, Key=key)["Body"].read() == key.encode()
        client.delete_object(Bucket=name, Key=key)
    assert fetch(f"http://localhost:{port}/-/health").status == 200
    assert [b["Name"] for b in client.list_buckets()["Buckets"]] == [name]
    assert node.s3().get_object(Bucket=name, Key="a key/s3")["Body"].read() == b"data"
