"""What can be set: tags of objects and buckets, CORS rules and what browsers get by them, lifecycle rules and their passes."""

import concurrent.futures
import datetime
import email.utils
import http.client
import os
import subprocess
import time
import urllib.parse

import botocore.exceptions
import pytest

import harness
import mounted
from keyorigin import KeyOrigin, Object
from test_s3_security import fetch
from test_s3_settings import refused
from test_s3_users import user


def tag_set(**tags):
    return {"TagSet": [{"Key": key, "Value": value} for key, value in tags.items()]}


def tags_of(reply):
    return {tag["Key"]: tag["Value"] for tag in reply["TagSet"]}


def test_tags_of_an_object(either_bucket):
    """They come with the upload or later, are counted, copied or replaced, and metadata and bytes stay."""
    bucket = either_bucket
    s3, where = bucket.s3, {"Bucket": bucket.name, "Key": "k"}
    s3.put_object(**where, Body=b"data" * 1000, Metadata={"a": "b"}, ContentType="text/x", Tagging="one=1&zwei=%C3%BC+x")
    assert tags_of(s3.get_object_tagging(**where)) == {"one": "1", "zwei": "\u00fc x"}
    got = s3.get_object(**where)
    assert got["TagCount"] == 2 and got["Metadata"] == {"a": "b"}
    s3.put_object_tagging(**where, Tagging=tag_set(three="3"))
    assert tags_of(s3.get_object_tagging(**where)) == {"three": "3"}
    got = s3.get_object(**where)
    assert got["Body"].read() == b"data" * 1000 and got["ContentType"] == "text/x" and got["Metadata"] == {"a": "b"}
    copy = {"Bucket": bucket.name, "CopySource": f"{bucket.name}/k"}
    s3.copy_object(**copy, Key="same")
    s3.copy_object(**copy, Key="other", TaggingDirective="REPLACE", Tagging="x=y")
    s3.copy_object(**copy, Key="bare", MetadataDirective="REPLACE", Metadata={"c": "d"})
    assert tags_of(s3.get_object_tagging(Bucket=bucket.name, Key="same")) == {"three": "3"}
    assert tags_of(s3.get_object_tagging(Bucket=bucket.name, Key="other")) == {"x": "y"}
    assert tags_of(s3.get_object_tagging(Bucket=bucket.name, Key="bare")) == {"three": "3"}
    assert s3.head_object(Bucket=bucket.name, Key="other")["Metadata"] == {"a": "b"}
    assert s3.head_object(Bucket=bucket.name, Key="bare")["Metadata"] == {"c": "d"}
    s3.delete_object_tagging(**where)
    assert s3.get_object_tagging(**where)["TagSet"] == [] and "TagCount" not in s3.get_object(**where)
    assert refused(s3.get_object_tagging, Bucket=bucket.name, Key="none") == (404, "NoSuchKey")
    assert refused(s3.put_object_tagging, Bucket=bucket.name, Key="none", Tagging=tag_set(a="b")) == (404, "NoSuchKey")


def test_tags_beside_a_put_of_the_same_bytes(node):
    """New tags of an object of a scratch bucket change nothing else of it: who puts the same bytes with other metadata meanwhile, so
    that the ETag stays, has them there once he is answered; and its time stays. (Seen to fail where it is written anew over what
    has its ETag.)"""
    s3, name, body = node.s3(), harness.scratch_bucket(node), harness.random_bytes(24 << 20)
    where, there = {"Bucket": name, "Key": "k"}, urllib.parse.urlsplit(node.endpoint)
    for wait_s in (0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2):
        s3.put_object(**where, Body=body, Metadata={"m": "old"})
        url = urllib.parse.urlsplit(s3.generate_presigned_url("put_object", Params={**where, "Metadata": {"m": "new"}}, ExpiresIn=60))
        put = http.client.HTTPConnection(there.hostname, there.port, timeout=100)
        put.putrequest("PUT", f"{url.path}?{url.query}")
        put.putheader("x-amz-meta-m", "new")
        put.putheader("Content-Length", str(len(body)))
        put.endheaders(body[:-1])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            tagging = pool.submit(s3.put_object_tagging, **where, Tagging=tag_set(a="b"))
            time.sleep(wait_s)
            put.send(body[-1:])
            answer = put.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            refused_tags = tagging.exception()
        put.close()
        assert refused_tags is None
        got = s3.get_object(**where)
        assert (got["Metadata"], got["Body"].read() == body) == ({"m": "new"}, True)
    listed = s3.list_objects_v2(Bucket=name)["Contents"]
    s3.put_object_tagging(**where, Tagging=tag_set(c="d"))
    assert s3.list_objects_v2(Bucket=name)["Contents"] == listed and tags_of(s3.get_object_tagging(**where)) == {"c": "d"}


def test_tags_are_those_of_the_origin(bucket, node, origin):
    """In a bucket whose origin is S3 tags are the origin's: those that were set there are shown, at once and after others take
    their place, and those that are set here are there. No byte of the object is written for it, its ETag, of parts, and its
    time stay, and what is cached of it. (Seen to fail where `tagging_of_object` asks the metadata alone, and `change` only
    rewrites.)"""
    s3, truth, where = bucket.s3, bucket.truth, {"Bucket": bucket.name, "Key": "k"}
    upload = {**where, "UploadId": truth.create_multipart_upload(**where)["UploadId"]}
    sizes = [harness.random_bytes(5 << 20), b"end"]
    parts = [truth.upload_part(**upload, PartNumber=n, Body=part)["ETag"] for n, part in enumerate(sizes, 1)]
    listed = {"Parts": [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(parts, 1)]}
    truth.complete_multipart_upload(**upload, MultipartUpload=listed)
    truth.put_object_tagging(**where, Tagging=tag_set(there="1"))
    assert tags_of(s3.get_object_tagging(**where)) == {"there": "1"}
    before, got = truth.head_object(**where), s3.get_object(**where)
    assert got["Body"].read() == b"".join(sizes) and got["TagCount"] == 1 and before["ETag"].endswith('-2"')
    moved = [node.metric(f"forebay_origin_{way}_bytes_total", bucket=bucket.name) for way in ("written", "read")]
    odd = {"zwei +": "\u00fc x", "a": "", "\u65e5\u672c": "1+1=2 /@:_"}
    for tags in ({"here": "2", "too": ""}, odd, {}):
        if tags:
            s3.put_object_tagging(**where, Tagging=tag_set(**tags))
        else:
            s3.delete_object_tagging(**where)
        assert tags_of(truth.get_object_tagging(**where)) == tags_of(s3.get_object_tagging(**where)) == tags
        head = s3.head_object(**where)
        assert (head["ETag"], head["LastModified"]) == (before["ETag"], before["LastModified"])
        assert int(head["ResponseMetadata"]["HTTPHeaders"].get("x-amz-tagging-count", 0)) == len(tags)
        assert truth.head_object(**where)["LastModified"] == before["LastModified"]
    truth.put_object_tagging(**where, Tagging=tag_set(changed="there"))
    assert tags_of(s3.get_object_tagging(**where)) == {"changed": "there"}
    assert s3.get_object(**where)["Body"].read() == b"".join(sizes)
    assert moved == [node.metric(f"forebay_origin_{way}_bytes_total", bucket=bucket.name) for way in ("written", "read")]
    assert refused(s3.delete_object_tagging, Bucket=bucket.name, Key="none") == (404, "NoSuchKey")


def test_tags_of_a_write_are_those_of_the_origin(bucket, node):
    """Those that come with a PUT or a multipart upload are tags at the origin, and no metadata; a copy of an object that was
    tagged there has them, within the bucket, into a scratch bucket, and back from one."""
    s3, truth, scratch = bucket.s3, bucket.truth, harness.scratch_bucket(node)
    s3.put_object(Bucket=bucket.name, Key="put", Body=b"x", Tagging="a=1&b=%C3%BC", Metadata={"m": "n"})
    upload = {"Bucket": bucket.name, "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload, Tagging="a=1&b=%C3%BC", Metadata={"m": "n"})["UploadId"]
    etag = s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    for key in ("put", "parts"):
        assert tags_of(truth.get_object_tagging(Bucket=bucket.name, Key=key)) == {"a": "1", "b": "\u00fc"}
        assert truth.head_object(Bucket=bucket.name, Key=key)["Metadata"] == {"m": "n"}
    truth.put_object_tagging(Bucket=bucket.name, Key="put", Tagging=tag_set(c="3"))
    for name, key, source, more in ((bucket.name, "same", f"{bucket.name}/put", {}), (scratch, "s", f"{bucket.name}/put", {}),
                                    (bucket.name, "back", f"{scratch}/s", {}),
                                    (bucket.name, "meta", f"{bucket.name}/put", {"MetadataDirective": "REPLACE"})):
        s3.copy_object(Bucket=name, Key=key, CopySource=source, **more)
        assert tags_of(s3.get_object_tagging(Bucket=name, Key=key)) == {"c": "3"}, key
        assert s3.get_object(Bucket=name, Key=key)["TagCount"] == 1, key
        assert name == scratch or tags_of(truth.get_object_tagging(Bucket=name, Key=key)) == {"c": "3"}, key


def test_tags_where_the_origin_has_none(node, origin):
    """With origin.tags=false they are kept as metadata; without it the refusal of a service that has none is the answer, in its
    words and with what to set, and the object stays as it was."""
    name = node.new_bucket(origin, **{"origin.tags": "false"})
    s3, where = node.s3(), {"Bucket": name, "Key": "k"}
    s3.put_object(**where, Body=b"x", Tagging="a=1")
    s3.put_object_tagging(**where, Tagging=tag_set(b="2"))
    assert tags_of(s3.get_object_tagging(**where)) == {"b": "2"} and s3.get_object(**where)["TagCount"] == 1
    assert origin.s3().get_object_tagging(**where)["TagSet"] == []
    with KeyOrigin() as other:
        name = harness.random_name()
        other.objects[name, "k"] = Object(b"old")
        node.create_bucket(name, f"s3://{name}", **other.properties())
        for call, more in ((s3.get_object_tagging, {}), (s3.put_object_tagging, {"Tagging": tag_set(a="b")}),
                           (s3.delete_object_tagging, {})):
            with pytest.raises(botocore.exceptions.ClientError) as caught:
                call(Bucket=name, Key="k", **more)
            assert caught.value.response["Error"]["Code"] == "NotImplemented"
            assert "origin.tags=false" in caught.value.response["Error"]["Message"]
        assert other.objects[name, "k"].data == b"old"
        assert not [query for method, _, query in other.requests if method == "PUT" and "tagging" not in query]
        s3.copy_object(Bucket=name, Key="copy", CopySource=f"{name}/k", MetadataDirective="REPLACE")
        assert other.objects[name, "copy"].data == b"old"


def test_new_tags_spare_what_somebody_writes_meanwhile(node):
    """Where the origin keeps none they are written with the bytes of one version and only over that version: a write in between
    stays, and who set them is told."""
    with KeyOrigin() as origin:
        name, where = harness.random_name(), {"Key": "k"}
        origin.objects[name, "k"] = Object(b"old")
        node.create_bucket(name, f"s3://{name}", **{"origin.tags": "false"}, **origin.properties())
        written = []

        def write_first(bucket, key):
            written.append(key)
            origin.objects[bucket, key] = Object(b"new")

        origin.before_put = write_first
        assert refused(node.s3().put_object_tagging, Bucket=name, **where, Tagging=tag_set(a="b")) == (409, "OperationAborted")
        assert written == ["k"] and origin.objects[name, "k"].data == b"new"


def test_tags_of_a_multipart_upload(either_bucket):
    bucket = either_bucket
    upload = bucket.s3.create_multipart_upload(Bucket=bucket.name, Key="m", Tagging="a=b")
    part = {"Bucket": bucket.name, "Key": "m", "UploadId": upload["UploadId"]}
    etag = bucket.s3.upload_part(**part, PartNumber=1, Body=b"x")["ETag"]
    bucket.s3.complete_multipart_upload(**part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert tags_of(bucket.s3.get_object_tagging(Bucket=bucket.name, Key="m")) == {"a": "b"}


@pytest.mark.parametrize("tags", [
    {f"key{i}": "v" for i in range(11)}, {"k" * 129: "v"}, {"k": "v" * 257}, {"aws:mine": "v"}])
def test_tags_that_are_not_allowed(either_bucket, tags):
    bucket = either_bucket
    s3, where = bucket.s3, {"Bucket": bucket.name, "Key": "k"}
    s3.put_object(**where, Body=b"x", Tagging="kept=yes")
    assert refused(s3.put_object_tagging, **where, Tagging=tag_set(**tags)) == (400, "InvalidTag")
    header = "&".join(f"{key}={value}" for key, value in tags.items())
    assert refused(s3.put_object, Bucket=bucket.name, Key="new", Body=b"x", Tagging=header) == (400, "InvalidTag")
    assert refused(s3.head_object, Bucket=bucket.name, Key="new") == (404, "404")
    assert tags_of(s3.get_object_tagging(**where)) == {"kept": "yes"}


def test_the_line_that_keeps_tags_is_reserved(either_bucket):
    bucket = either_bucket
    assert refused(bucket.s3.put_object, Bucket=bucket.name, Key="k", Body=b"x",
                   Metadata={"forebay-tags": "a=b"}) == (501, "NotImplemented")
    assert refused(bucket.s3.head_object, Bucket=bucket.name, Key="k") == (404, "404")


@pytest.fixture
def far(node):
    """(its client, name of a scratch bucket, makes buckets whose origin that is): another node, here the same by its S3 port."""
    s3, name = node.s3(), harness.random_name("far")
    s3.create_bucket(Bucket=name)
    address, keys = node.endpoint.removeprefix("http://"), dict(zip(("origin.access_key", "origin.secret_key"), node.credentials))

    def near(scheme, **more):
        made = harness.random_name("near")
        url = f"forebay://{address}/{name}" if scheme == "forebay" else f"s3://{name}"
        where = {} if scheme == "forebay" else {"origin.endpoint": node.endpoint}
        node.create_bucket(made, url, validate="always", **keys, **where, **more)
        return made

    return s3, name, near


def test_tags_at_another_node(far):
    """A bucket whose origin is another node has its tags, and gives it those that are set here: one by one, with uploads, copied,
    removed; what was set there is shown here, and neither shows them as metadata."""
    s3, there, near = far
    here, where = near("forebay"), {"Key": "k"}

    def tags(key="k", buckets=(there, here)):
        found = [tags_of(s3.get_object_tagging(Bucket=name, Key=key)) for name in buckets]
        assert all(one == found[0] for one in found), found
        for head in [s3.head_object(Bucket=name, Key=key) for name in buckets]:
            assert head["Metadata"] == {"a": "b"}
            assert int(head["ResponseMetadata"]["HTTPHeaders"].get("x-amz-tagging-count", 0)) == len(found[0])
        return found[0]

    s3.put_object(Bucket=here, **where, Body=b"data" * 1000, Tagging="one=1&zwei=%C3%BC+x", Metadata={"a": "b"})
    assert tags() == {"one": "1", "zwei": "\u00fc x"}
    s3.put_object_tagging(Bucket=here, **where, Tagging=tag_set(three="3", four=""))
    assert tags() == {"three": "3", "four": ""}
    assert s3.get_object(Bucket=there, **where)["Body"].read() == b"data" * 1000
    s3.put_object_tagging(Bucket=there, **where, Tagging=tag_set(five="5"))
    assert tags() == {"five": "5"}
    cold = near("forebay")  # knows nothing yet: what a GET brings is kept
    assert s3.get_object(Bucket=cold, **where)["TagCount"] == 1
    assert tags(buckets=(there, here, cold)) == {"five": "5"}
    s3.copy_object(Bucket=here, Key="copy", CopySource=f"{here}/k")
    assert tags("copy") == {"five": "5"}
    upload = {"Bucket": here, "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload, Tagging="six=6", Metadata={"a": "b"})["UploadId"]
    etag = s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert tags("parts") == {"six": "6"}
    s3.delete_object_tagging(Bucket=here, **where)
    assert tags() == {}


def test_tags_at_a_node_that_is_taken_for_a_service(far):
    """Also with s3://, where nobody knows that a node is there."""
    s3, there, near = far
    here, where = near("s3"), {"Key": "k"}
    s3.put_object(Bucket=here, **where, Body=b"data", Metadata={"a": "b"}, Tagging="a=1")
    for tags in ({"a": "1"}, {"b": "2", "c": ""}, {}):
        if tags.get("b"):
            s3.put_object_tagging(Bucket=here, **where, Tagging=tag_set(**tags))
        elif not tags:
            s3.delete_object_tagging(Bucket=here, **where)
        for name in (here, there):
            assert tags_of(s3.get_object_tagging(Bucket=name, **where)) == tags
            got = s3.get_object(Bucket=name, **where)
            assert got["Body"].read() == b"data" and got["Metadata"] == {"a": "b"} and got.get("TagCount", 0) == len(tags)


def test_tags_as_metadata_at_a_node_that_is_taken_for_a_service(far):
    """With s3:// and origin.tags=false tags are refused in words, and the object stays as it was."""
    s3, there, near = far
    here, where = near("s3", **{"origin.tags": "false"}), {"Key": "k"}
    s3.put_object(Bucket=here, **where, Body=b"data", Metadata={"a": "b"})
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        s3.put_object_tagging(Bucket=here, **where, Tagging=tag_set(a="b"))
    answer = caught.value.response
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]) == (501, "NotImplemented")
    assert "forebay://" in answer["Error"]["Message"]
    assert refused(s3.put_object, Bucket=here, Key="other", Body=b"x", Tagging="a=b") == (501, "NotImplemented")
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=there)["Contents"]] == ["k"]
    got = s3.get_object(Bucket=here, **where)
    assert got["Body"].read() == b"data" and got["Metadata"] == {"a": "b"} and "TagCount" not in got


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_are_kept(bucket, algorithm):
    """What was verified with an upload is shown to who asks, with a copy too, and nobody else sees a trace of it; the
    origin's object has nothing of ours."""
    s3, name = bucket.s3, f"Checksum{algorithm}"
    for key, size in (("small", 1000), ("large", 300_000)):
        where = {"Bucket": bucket.name, "Key": key}
        made = s3.put_object(**where, Body=harness.random_bytes(size), ChecksumAlgorithm=algorithm, Metadata={"a": "b"})
        for shown in (s3.head_object(**where, ChecksumMode="ENABLED"), s3.get_object(**where, ChecksumMode="ENABLED")):
            assert shown[name] == made[name] and shown["ChecksumType"] == "FULL_OBJECT" and shown["Metadata"] == {"a": "b"}
        plain = bucket.node.s3(response_checksum_validation="when_required").head_object(**where)
        assert name not in plain and plain["Metadata"] == {"a": "b"}
        attributes = s3.get_object_attributes(**where, ObjectAttributes=["Checksum"])
        assert attributes["Checksum"] == {name: made[name], "ChecksumType": "FULL_OBJECT"}
        truth = bucket.truth.head_object(**where)
        assert truth["Metadata"] == {"a": "b"} and not [x for x in truth["ResponseMetadata"]["HTTPHeaders"] if "forebay" in x]
    s3.copy_object(Bucket=bucket.name, Key="copy", CopySource=f"{bucket.name}/large", MetadataDirective="REPLACE")
    assert s3.head_object(Bucket=bucket.name, Key="copy", ChecksumMode="ENABLED")[name] == made[name]
    assert name not in s3.get_object(**where, ChecksumMode="ENABLED", Range="bytes=0-9")


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_go_to_the_origin_and_come_from_there(bucket, new_node, origin, algorithm):
    """What a client sent with its bytes the origin verifies, too, and keeps; what the origin has is shown by a node that never saw
    the upload, of parts as well."""
    name, where = f"Checksum{algorithm}", {"Bucket": bucket.name, "Key": "k"}
    made = bucket.s3.put_object(**where, Body=harness.random_bytes(2_000_000), ChecksumAlgorithm=algorithm)
    assert bucket.truth.head_object(**where, ChecksumMode="ENABLED")[name] == made[name]
    upload = {"Bucket": bucket.name, "Key": "parts"}
    upload["UploadId"] = bucket.truth.create_multipart_upload(**upload, ChecksumAlgorithm=algorithm)["UploadId"]
    part = bucket.truth.upload_part(**upload, PartNumber=1, Body=b"x", ChecksumAlgorithm=algorithm)
    bucket.truth.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"], name: part[name]}]})
    other = new_node()
    other.create_bucket(bucket.name, f"s3://{bucket.name}", **origin.properties())
    for key in ("k", "parts"):
        there = bucket.truth.head_object(Bucket=bucket.name, Key=key, ChecksumMode="ENABLED")
        here = other.s3().head_object(Bucket=bucket.name, Key=key, ChecksumMode="ENABLED")
        assert (here[name], here["ChecksumType"]) == (there[name], there["ChecksumType"])


@pytest.mark.parametrize("kind", ["mirror", "scratch"])
def test_settings_outlive_a_restart(new_node, origin, kind):
    """Tags, CORS and lifecycle rules are shown as they were set, also after a restart, until they are removed."""
    node = new_node()
    name = node.new_bucket(origin) if kind == "mirror" else harness.scratch_bucket(node)
    cors = [{"ID": "first", "AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["https://*.example.org"],
             "AllowedHeaders": ["x-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60},
            {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]
    rules = [{"ID": "days", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 7}},
             {"ID": "both", "Status": "Disabled", "Expiration": {"Date": datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)},
              "Filter": {"And": {"Prefix": "<&>", "ObjectSizeGreaterThan": 5, "ObjectSizeLessThan": 50}}},
             {"ID": "tagged", "Status": "Enabled", "Expiration": {"Days": 1},
              "Filter": {"And": {"Prefix": "t", "Tags": [{"Key": "a b", "Value": "\u00e4"}, {"Key": "c", "Value": ""}]}}},
             {"ID": "tag", "Status": "Enabled", "Expiration": {"Days": 1}, "Filter": {"Tag": {"Key": "x", "Value": "y"}}},
             {"ID": "uploads", "Status": "Enabled", "Prefix": "", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3}}]
    s3 = node.s3()
    s3.put_bucket_tagging(Bucket=name, Tagging=tag_set(team="\u00e4", empty=""))
    s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": cors})
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": rules})
    node.restart()
    s3 = node.s3()
    assert tags_of(s3.get_bucket_tagging(Bucket=name)) == {"team": "\u00e4", "empty": ""}
    assert s3.get_bucket_cors(Bucket=name)["CORSRules"] == cors
    assert s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"] == rules
    for remove in (s3.delete_bucket_tagging, s3.delete_bucket_cors, s3.delete_bucket_lifecycle):
        assert remove(Bucket=name)["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert refused(s3.get_bucket_tagging, Bucket=name) == (404, "NoSuchTagSet")
    assert refused(s3.get_bucket_cors, Bucket=name) == (404, "NoSuchCORSConfiguration")
    assert refused(s3.get_bucket_lifecycle_configuration, Bucket=name) == (404, "NoSuchLifecycleConfiguration")


def test_settings_that_are_refused(either_bucket):
    bucket = either_bucket
    s3, name = bucket.s3, bucket.name
    rule = {"Status": "Enabled", "Filter": {"Prefix": ""}}

    def lifecycle(*rules):
        return refused(s3.put_bucket_lifecycle_configuration, Bucket=name, LifecycleConfiguration={"Rules": list(rules)})

    def cors(**changed):
        rules = [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], **changed}]
        return refused(s3.put_bucket_cors, Bucket=name, CORSConfiguration={"CORSRules": rules})

    assert lifecycle({**rule, "Expiration": {"Days": 0}}) == (400, "InvalidArgument")
    assert lifecycle({**rule, "Expiration": {"Date": datetime.datetime(2026, 1, 1, 5)}}) == (400, "InvalidArgument")
    assert lifecycle({**rule, "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}) == (501, "NotImplemented")
    assert lifecycle({**rule, "Transitions": [{"Date": datetime.datetime(2026, 1, 1, 5), "StorageClass": "GLACIER"}]}) == (
        400, "InvalidArgument")
    assert lifecycle({**rule, "Filter": {"Tag": {"Key": "a", "Value": "b"}},
                      "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}) == (400, "InvalidRequest")
    for size in ("ObjectSizeGreaterThan", "ObjectSizeLessThan"):
        assert lifecycle({**rule, "Filter": {size: 1}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}) == (
            400, "InvalidRequest")
    assert lifecycle({**rule}) == (400, "InvalidRequest")
    assert lifecycle({**rule, "Prefix": "a/", "Expiration": {"Days": 1}}) == (400, "MalformedXML")
    assert lifecycle(*[{**rule, "ID": "same", "Expiration": {"Days": 1}}] * 2) == (400, "InvalidArgument")
    assert cors(AllowedMethods=["PATCH"]) == (400, "InvalidRequest")
    assert cors(AllowedOrigins=["*.*"]) == (400, "InvalidRequest")
    assert cors(AllowedOrigins=[]) == (400, "MalformedXML")
    assert refused(s3.put_bucket_tagging, Bucket=name, Tagging=tag_set(**{f"k{i}": "" for i in range(51)})) == (
        400, "InvalidTag")
    assert refused(s3.put_bucket_tagging, Bucket="there-is-none", Tagging=tag_set(a="b")) == (404, "NoSuchBucket")


def test_only_an_admin_sets(new_node, origin):
    node = new_node()
    name = node.new_bucket(origin)
    writer = harness.s3_client(node.endpoint, *user(node, "w", role="writer"))
    rule = {"Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    assert refused(writer.put_bucket_lifecycle_configuration, Bucket=name, LifecycleConfiguration={"Rules": [rule]}) == (
        403, "AccessDenied")
    assert refused(writer.delete_bucket_cors, Bucket=name) == (403, "AccessDenied")
    assert refused(writer.put_bucket_tagging, Bucket=name, Tagging=tag_set(a="b")) == (403, "AccessDenied")
    writer.put_object(Bucket=name, Key="k", Body=b"x", Tagging="a=b")
    assert tags_of(writer.get_object_tagging(Bucket=name, Key="k")) == {"a": "b"}


def test_what_browsers_get(either_bucket):
    """Preflights need no signature and give no right; later answers, errors too, carry the headers of the rule."""
    bucket = either_bucket
    s3, name = bucket.s3, bucket.name
    url = f"{bucket.node.endpoint}/{name}/k"
    ask = {"Origin": "https://a.example.org", "Access-Control-Request-Method": "PUT",
           "Access-Control-Request-Headers": "x-amz-date, Content-Type"}
    assert fetch(url, method="OPTIONS", headers=ask).status == 403
    s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": [
        {"AllowedMethods": ["PUT", "GET"], "AllowedOrigins": ["https://*.example.org"], "AllowedHeaders": ["x-amz-*", "content-type"],
         "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 77}, {"AllowedMethods": ["HEAD"], "AllowedOrigins": ["*"]}]})
    got = fetch(url, method="OPTIONS", headers=ask)
    assert got.status == 200
    assert got.headers["access-control-allow-origin"] == "https://a.example.org"
    assert got.headers["access-control-allow-methods"] == "PUT, GET"
    assert got.headers["access-control-allow-headers"] == "x-amz-date, Content-Type"
    assert got.headers["access-control-max-age"] == "77"
    assert got.headers["access-control-allow-credentials"] == "true"
    varies = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"
    assert got.headers["vary"] == varies and got.headers["access-control-expose-headers"] == "ETag"
    anywhere = fetch(url, method="OPTIONS", headers={"Origin": "https://other", "Access-Control-Request-Method": "HEAD"})
    assert anywhere.status == 200 and anywhere.headers["access-control-allow-origin"] == "*"
    assert not {"access-control-allow-credentials", "access-control-max-age", "access-control-allow-headers"} & set(anywhere.headers)
    for changed in ({"Origin": "https://a.example.com"}, {"Access-Control-Request-Method": "DELETE"},
                    {"Access-Control-Request-Headers": "authorization"}):
        assert fetch(url, method="OPTIONS", headers={**ask, **changed}).status == 403
    assert fetch(url, method="OPTIONS", headers={"Origin": "https://a.example.org"}).status == 400
    s3.put_object(Bucket=name, Key="k", Body=b"data")
    signed = s3.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "k"}, ExpiresIn=60)
    got = fetch(signed, headers={"Origin": "https://a.example.org"})
    assert got.body == b"data" and got.headers["access-control-allow-origin"] == "https://a.example.org"
    assert got.headers["access-control-expose-headers"] == "ETag" and got.headers["vary"] == varies
    assert got.headers["access-control-allow-credentials"] == "true" and "access-control-max-age" not in got.headers
    assert "access-control-allow-origin" not in fetch(signed, headers={"Origin": "https://other"}).headers
    refused_read = fetch(url, headers={"Origin": "https://a.example.org"})
    assert refused_read.status == 403 and refused_read.headers["access-control-allow-origin"] == "https://a.example.org"


def test_preflights_of_signed_urls(either_bucket):
    """A browser asks with OPTIONS for the very URL that its page was given, which somebody signed for another method: rules
    alone decide, as with a signature that is nobody's, and what is said gives no right. (Seen to fail where OPTIONS is
    authenticated like any other method.)"""
    bucket = either_bucket
    s3, name = bucket.s3, bucket.name
    s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": [
        {"AllowedMethods": ["PUT"], "AllowedOrigins": ["https://a.example.org"], "AllowedHeaders": ["*"]}]})
    signed = s3.generate_presigned_url("put_object", Params={"Bucket": name, "Key": "k"}, ExpiresIn=60)
    older = harness.s3_client(bucket.node.endpoint, *bucket.node.credentials, signature_version="s3").generate_presigned_url(
        "put_object", Params={"Bucket": name, "Key": "k"}, ExpiresIn=60)
    ask = {"Origin": "https://a.example.org", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
    for url in (signed, older, signed[:-4] + "0000", signed + "&response-content-type=text/plain"):
        got = fetch(url, method="OPTIONS", headers=ask)
        assert got.status == 200 and got.headers["access-control-allow-origin"] == "https://a.example.org"
        assert fetch(url, method="OPTIONS", headers={**ask, "Origin": "https://b.example.org"}).status == 403
    refused_write = fetch(signed[:-4] + "0000", method="PUT", headers={"Origin": "https://a.example.org"})
    assert refused_write.status == 403 and refused_write.headers["access-control-allow-origin"] == "https://a.example.org"
    assert "access-control-allow-origin" not in fetch(signed[:-4] + "0000", "PUT", headers={"Origin": "https://b.example.org"}).headers
    assert fetch(signed, method="PUT", headers={"Origin": "https://a.example.org"}).status == 200


def test_lifecycle_passes(new_node, origin):
    """Objects that a rule means end, here and at the origin; others stay, and so do all when the rule is disabled."""
    node = new_node(lifecycle_interval="300ms")
    name = node.new_bucket(origin)
    s3, truth = node.s3(), origin.s3()
    for key in ("tmp/a", "tmp/b", "tmp/sub/c", "tmp/large", "kept", "tmpx"):
        s3.put_object(Bucket=name, Key=key, Body=b"x" * (100 if key == "tmp/large" else 1))
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)

    def rules(status, **more):
        s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [
            {"ID": "d", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}},
            {"ID": "p", "Status": status, "Filter": {"And": {"Prefix": "tmp/", "ObjectSizeLessThan": 50}},
             "Expiration": {"Date": past}}]})

    def keys(client):
        return [o["Key"] for o in client.list_objects_v2(Bucket=name)["Contents"]]

    rules("Disabled")
    harness.wait_until(lambda: node.metric("forebay_requests_total", via="s3", op="PutBucketSetting") == 1, what="the request is counted")
    assert len(keys(truth)) == 6
    rules("Enabled")
    harness.wait_until(lambda: keys(truth) == ["kept", "tmp/large", "tmpx"], what="the pass has run")
    harness.wait_until(lambda: keys(s3) == ["kept", "tmp/large", "tmpx"], what="the listing shows it")
    assert refused(s3.get_object, Bucket=name, Key="tmp/a") == (404, "NoSuchKey")
    s3.delete_bucket_lifecycle(Bucket=name)
    s3.put_object(Bucket=name, Key="tmp/late", Body=b"x")
    assert s3.get_object(Bucket=name, Key="tmp/late")["Body"].read() == b"x"


class Rewritten(Object):
    """Written again with the same bytes, and so the same ETag, right after it was listed as an old one."""

    def __init__(self, data):
        super().__init__(data)
        self.seen = 0

    @property
    def mtime(self):
        self.seen += 1
        return 1e9 if self.seen == 1 else time.time()

    @mtime.setter
    def mtime(self, value):
        pass


def test_lifecycle_spares_what_was_written_again(new_node):
    """An object that was written since the pass listed it stays, although its ETag is the one that was listed."""
    node = new_node(lifecycle_interval="300ms")
    with KeyOrigin() as origin:
        name = harness.random_name()
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        origin.objects[name, "again"] = Rewritten(b"same")
        origin.objects[name, "old"] = Object(b"same", mtime=1e9)
        node.s3().put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [
            {"ID": "d", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}]})
        harness.wait_until(lambda: (name, "old") not in origin.objects, what="the pass has run")
        assert (name, "again") in origin.objects


def test_lifecycle_counts_from_when_a_file_came(new_node, tmp_path, need_fuse):
    """A file that a mount brings with the time that it had elsewhere (cp -p, rsync -a) is as old as it is here."""
    node = new_node(lifecycle_interval="300ms")
    s3, name = node.s3(), harness.random_name("scratch")
    s3.create_bucket(Bucket=name)
    with mounted.Mount(tmp_path, node, name) as mount:
        (mount.path / "old").write_bytes(b"kept")
        os.utime(mount.path / "old", (1e9, 1e9))
        s3.put_object(Bucket=name, Key="seen", Body=b"x")  # comes behind it in each pass
        s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [
            {"ID": "days", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}},
            {"ID": "date", "Status": "Enabled", "Filter": {"Prefix": "seen"},
             "Expiration": {"Date": datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)}}]})
        harness.wait_until(lambda: "seen" not in [o["Key"] for o in s3.list_objects_v2(Bucket=name).get("Contents", [])],
                           60, "the pass has run")
        got = s3.get_object(Bucket=name, Key="old")
        assert got["Body"].read() == b"kept" and got["LastModified"].timestamp() == 1e9
        ends = got["ResponseMetadata"]["HTTPHeaders"]["x-amz-expiration"].split('"')[1]
        assert email.utils.parsedate_to_datetime(ends).timestamp() > time.time()


def test_lifecycle_passes_for_tags(new_node, origin):
    """Of objects that a rule means by tags those end that have all of them, whatever else they have; also those that were tagged
    at the origin. (Seen to fail where `has_tags` in s3/expire.c asks the metadata alone: `behind` stays.)"""
    node = new_node(lifecycle_interval="300ms")
    name = node.new_bucket(origin)
    scratch = harness.random_name("scratch")
    s3 = node.s3()
    s3.create_bucket(Bucket=scratch)
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    tags = {"both": "a=1&b=2", "more": "a=1&b=2&c=3", "one": "a=1", "other": "a=1&b=3", "none": ""}
    origin.s3().put_object(Bucket=name, Key="behind", Body=b"x", Tagging="b=2&a=1")
    for where in (name, scratch):
        for key, value in tags.items():
            s3.put_object(Bucket=where, Key=key, Body=b"x", Tagging=value)
        s3.put_bucket_lifecycle_configuration(Bucket=where, LifecycleConfiguration={"Rules": [
            {"ID": "t", "Status": "Enabled", "Expiration": {"Date": past},
             "Filter": {"And": {"Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]}}}]})
    for where in (name, scratch):
        harness.wait_until(lambda: [o["Key"] for o in s3.list_objects_v2(Bucket=where)["Contents"]] == [
            "none", "one", "other"], what=f"the pass over {where} has run")


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static const long *seconds;

__attribute__((constructor)) static void begin(void)
{
    seconds = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, open(getenv("CLOCK_AHEAD"), O_RDONLY), 0);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    now->tv_sec += clock == CLOCK_REALTIME ? *seconds : 0;
    return status;
}
"""


@pytest.fixture
def ahead(tmp_path):
    """(environment, set): a program with this environment has a clock that set(seconds) puts forward while it runs."""
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "clock.so", tmp_path / "clock.c", "-ldl"], check=True)

    def put(seconds):
        with open(tmp_path / "ahead", "r+b") as file:
            file.write(seconds.to_bytes(8, "little"))

    (tmp_path / "ahead").write_bytes(bytes(8))
    return {"LD_PRELOAD": str(tmp_path / "clock.so"), "CLOCK_AHEAD": str(tmp_path / "ahead")}, put


def test_lifecycle_aborts_uploads(new_node, ahead):
    """Uploads that a rule means, and that began longer ago than it says, are aborted, at the origin too; a part that came later does
    not put that off. Others stay, and can be completed. (Seen to fail without abort_uploads in a pass.)"""
    environment, put_clock = ahead
    far, node = (new_node(binary=harness.forebay_release_bin(), env=environment, lifecycle_interval="300ms") for _ in range(2))
    s3, truth = node.s3(), far.s3()  # an origin with the same clock: requests to it are signed
    there, names = harness.scratch_bucket(far), [harness.random_name(), harness.scratch_bucket(node)]
    node.create_bucket(names[0], f"forebay://{far.endpoint.removeprefix('http://')}/{there}", **{
        "origin.access_key": far.credentials[0], "origin.secret_key": far.credentials[1]})
    begun = {}
    for name in names:
        s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [
            {"ID": "u", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}},
            {"ID": "off", "Status": "Disabled", "Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}]})
        for key in ("tmp/a", "tmp/b", "kept"):
            upload = {"Bucket": name, "Key": key, "UploadId": s3.create_multipart_upload(Bucket=name, Key=key)["UploadId"]}
            begun[name, key] = upload, s3.upload_part(**upload, PartNumber=1, Body=key.encode())["ETag"]

    def open_uploads(client, name):
        return [u["Key"] for u in client.list_multipart_uploads(Bucket=name).get("Uploads", [])]

    def passes_end(name, days):
        put_clock(days * 86400)
        text = f"lifecycle of bucket {name}: 2 objects and uploads ended"
        harness.wait_until(lambda: text in node.log(), what=f"the pass over {name} has run")

    put_clock(86400)
    time.sleep(1)
    put_clock(0)
    for name in names:
        assert open_uploads(s3, name) == ["kept", "tmp/a", "tmp/b"], "a day is too early"
    s3.upload_part(**begun[names[0], "tmp/a"][0], PartNumber=2, Body=b"later")
    for name in names:
        passes_end(name, days=4)
    put_clock(0)
    assert open_uploads(truth, there) == ["kept"]
    for name in names:
        assert open_uploads(s3, name) == ["kept"]
        upload, etag = begun[name, "tmp/b"]
        assert refused(s3.upload_part, **upload, PartNumber=2, Body=b"x") == (404, "NoSuchUpload")
        upload, etag = begun[name, "kept"]
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert s3.get_object(Bucket=name, Key="kept")["Body"].read() == b"kept"
        assert [o["Key"] for o in s3.list_objects_v2(Bucket=name)["Contents"]] == ["kept"]


def test_when_an_object_ends(either_bucket):
    """x-amz-expiration of PUT, GET and HEAD: the midnight after the rule's days, by the rule that comes first."""
    bucket = either_bucket
    s3, where = bucket.s3, {"Bucket": bucket.name, "Key": "t/k"}

    def shown(answer):
        return answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-expiration")

    assert shown(s3.put_object(**where, Body=b"x", Tagging="a=1")) is None
    s3.put_bucket_lifecycle_configuration(Bucket=bucket.name, LifecycleConfiguration={"Rules": [
        {"ID": "late", "Status": "Enabled", "Filter": {"Prefix": "t/"}, "Expiration": {"Days": 9}},
        {"ID": "a rule", "Status": "Enabled", "Filter": {"Prefix": "t/"}, "Expiration": {"Days": 3}},
        {"ID": "never", "Status": "Disabled", "Filter": {"Prefix": "t/"}, "Expiration": {"Days": 1}},
        {"ID": "tag", "Status": "Enabled", "Filter": {"Tag": {"Key": "a", "Value": "2"}}, "Expiration": {"Days": 1}}]})
    head = s3.head_object(**where)
    ends = (head["LastModified"] + datetime.timedelta(days=4)).replace(hour=0, minute=0, second=0)
    expected = f'expiry-date="{ends.strftime("%a, %d %b %Y %H:%M:%S GMT")}", rule-id="a%20rule"'
    assert shown(head) == shown(s3.get_object(**where)) == expected
    assert shown(s3.head_object(**where)) == expected
    assert 'rule-id="tag"' in shown(s3.put_object(**where, Body=b"x", Tagging="a=2"))
    bucket.truth.put_object(Bucket=bucket.name, Key="t/there", Body=b"x", Tagging="a=2")
    assert 'rule-id="tag"' in shown(s3.get_object(Bucket=bucket.name, Key="t/there"))
    s3.put_object(Bucket=bucket.name, Key="other", Body=b"x")
    assert shown(s3.head_object(Bucket=bucket.name, Key="other")) is None
