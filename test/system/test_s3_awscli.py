"""aws-cli as it comes: the commands people type, against a node, with and without TLS."""

import json

import pytest

import harness
from conftest import Bucket


@pytest.fixture(params=["plain", "tls"])
def bucket(request, route, origin):
    node = request.getfixturevalue("node_with_tls" if request.param == "tls" else "node")
    return Bucket(node.new_bucket(origin), node.s3(), origin.s3(), node, origin)


@pytest.fixture
def files(tmp_path):
    """A small tree: name to bytes."""
    tree = {"a.txt": b"alpha", "dir/b bin": harness.random_bytes(300_000), "dir/sub/ünï.txt": "ü".encode(), "empty": b""}
    for name, data in tree.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "in", tree


def read_tree(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def at_origin(bucket):
    found = bucket.truth.list_objects_v2(Bucket=bucket.name).get("Contents", [])
    return {o["Key"]: bucket.truth.get_object(Bucket=bucket.name, Key=o["Key"])["Body"].read() for o in found}


def test_cp_sync_and_rm(bucket, files, tmp_path):
    """cp --recursive, sync in both directions and rm --recursive move exactly the tree."""
    directory, tree = files
    aws = bucket.node.aws
    aws("s3", "cp", "--recursive", directory, f"s3://{bucket.name}/up/")
    assert at_origin(bucket) == {"up/" + k: v for k, v in tree.items()}
    aws("s3", "sync", f"s3://{bucket.name}/up/", tmp_path / "out")
    assert read_tree(tmp_path / "out") == tree
    assert aws("s3", "sync", tmp_path / "out", f"s3://{bucket.name}/up/").stdout.strip() == ""
    (tmp_path / "out" / "a.txt").write_bytes(b"changed, and longer")
    aws("s3", "sync", "--delete", tmp_path / "out", f"s3://{bucket.name}/up/")
    assert at_origin(bucket)["up/a.txt"] == b"changed, and longer"
    aws("s3", "rm", "--recursive", f"s3://{bucket.name}/up/dir")
    assert set(at_origin(bucket)) == {"up/a.txt", "up/empty"}


def test_ls_mv_and_cat(bucket):
    """ls shows keys and prefixes, mv renames, cp to stdout prints."""
    aws = bucket.node.aws
    bucket.truth.put_object(Bucket=bucket.name, Key="d/one", Body=b"1")
    bucket.truth.put_object(Bucket=bucket.name, Key="two", Body=b"22")
    assert bucket.name in aws("s3", "ls").stdout
    lines = [line.split()[-1] for line in aws("s3", "ls", f"s3://{bucket.name}").stdout.splitlines()]
    assert lines == ["d/", "two"]
    summary = aws("s3", "ls", "--recursive", "--summarize", f"s3://{bucket.name}").stdout
    assert "Total Objects: 2" in summary and "Total Size: 3" in summary
    aws("s3", "mv", f"s3://{bucket.name}/two", f"s3://{bucket.name}/d/2")
    assert at_origin(bucket) == {"d/one": b"1", "d/2": b"22"}
    assert aws("s3", "cp", f"s3://{bucket.name}/d/2", "-").stdout == "22"


def test_api_commands(bucket, tmp_path):
    """s3api: put, head, get with a range, delete, list."""
    aws, name = bucket.node.aws, bucket.name
    source = tmp_path / "source"
    source.write_bytes(harness.random_bytes(100_000))
    put = json.loads(aws("s3api", "put-object", "--bucket", name, "--key", "k", "--body", source, "--metadata",
                         "color=blue", "--content-type", "x/y").stdout)
    head = json.loads(aws("s3api", "head-object", "--bucket", name, "--key", "k").stdout)
    assert (head["ETag"], head["ContentLength"], head["Metadata"]) == (put["ETag"], 100_000, {"color": "blue"})
    target = tmp_path / "target"
    aws("s3api", "get-object", "--bucket", name, "--key", "k", "--range", "bytes=10-19", target)
    assert target.read_bytes() == source.read_bytes()[10:20]
    listed = json.loads(aws("s3api", "list-objects-v2", "--bucket", name).stdout)
    assert [o["Key"] for o in listed["Contents"]] == ["k"]
    aws("s3api", "delete-object", "--bucket", name, "--key", "k")
    failed = aws("s3api", "head-object", "--bucket", name, "--key", "k", check=False)
    assert failed.returncode != 0 and "404" in failed.stderr


def test_errors_are_readable(bucket):
    """What goes wrong is said in words, with S3's codes."""
    failed = bucket.node.aws("s3", "ls", "s3://no-such-bucket", check=False)
    assert failed.returncode != 0 and "NoSuchBucket" in failed.stderr
    failed = bucket.node.aws("s3", "cp", f"s3://{bucket.name}/missing", "-", check=False)
    assert failed.returncode != 0 and "404" in failed.stderr
