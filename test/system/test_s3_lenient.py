"""What S3 refuses and a node takes, because no client is better off with an error: docs/S3.md, "Where a node takes more than S3"."""

import re

from test_s3_security import ask, send, signed
from test_s3_settings import refused


def delete_body(*keys):
    return ("<Delete>" + "".join(f"<Object><Key>{key}</Key></Object>" for key in keys) + "</Delete>").encode()


def test_many_are_removed_without_a_sum_of_the_list(node, scratch):
    """The signature covers the body."""
    s3 = node.s3()
    s3.put_object(Bucket=scratch, Key="a", Body=b"1")
    s3.put_object(Bucket=scratch, Key="b", Body=b"2")
    reply = ask(node, "POST", f"/{scratch}?delete=", delete_body("a", "b"))
    assert reply.status == 200 and reply.body.count(b"<Deleted>") == 2, reply.body
    assert "Contents" not in s3.list_objects_v2(Bucket=scratch)


def test_parts_may_have_sums_that_the_upload_was_not_made_with(node, scratch):
    """They are verified all the same, and the completion need not repeat them."""
    s3 = node.s3(request_checksum_calculation="when_required")
    upload = s3.create_multipart_upload(Bucket=scratch, Key="k")["UploadId"]
    part = {"Bucket": scratch, "Key": "k", "UploadId": upload, "PartNumber": 1}
    assert refused(s3.upload_part, **part, Body=b"data", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    etag = s3.upload_part(**part, Body=b"data", ChecksumCRC32="rfPzYw==")["ETag"]
    s3.complete_multipart_upload(Bucket=scratch, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert s3.get_object(Bucket=scratch, Key="k")["Body"].read() == b"data"


def test_a_composite_completion_need_not_list_the_sums(node, scratch):
    """ETags say which parts are meant; the sum of the whole is that of the parts."""
    s3 = node.s3()
    upload = s3.create_multipart_upload(Bucket=scratch, Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    part = {"Bucket": scratch, "Key": "k", "UploadId": upload, "PartNumber": 1}
    etag = s3.upload_part(**part, Body=b"data", ChecksumAlgorithm="SHA256")["ETag"]
    done = s3.complete_multipart_upload(Bucket=scratch, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert re.fullmatch(r"[A-Za-z0-9+/]{43}=-1", done["ChecksumSHA256"])


def test_more_metadata_than_s3_has_room_for(node, scratch):
    """S3 ends at 2 KiB; origins have limits of their own, and say so."""
    path, headers = f"/{scratch}/k", {"x-amz-meta-long": "v" * 2100}
    assert send(node, "PUT", path, signed(node, "PUT", path, headers, b"data"), b"data").status == 200
    assert node.s3().head_object(Bucket=scratch, Key="k")["Metadata"] == {"long": "v" * 2100}


def test_buckets_with_names_that_are_none_of_dns(node):
    """They are reached by path."""
    for name in ("192.168.1.1", "a..b", "a.-b", "xn--a"):
        s3 = node.s3()
        s3.create_bucket(Bucket=name)
        s3.put_object(Bucket=name, Key="k", Body=b"data")
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"data"
        s3.delete_object(Bucket=name, Key="k")
        s3.delete_bucket(Bucket=name)
