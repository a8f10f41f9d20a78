"""Accounts of Azure as Azurite is none: a hierarchical namespace, which has a blob for each of its directories."""

import os
import tempfile
import urllib.parse

import botocore.exceptions
import pytest

import harness
import mounted
import served

FILES = {"d/x": b"bytes of x", "d/s/y": b"bytes of y", "top": b"bytes of top"}
FOLDERS = ["d", "d/s"]


class Lake(served.Server):
    """Reads and lists; each directory is a blob of no bytes that says so in its metadata."""

    def __init__(self):
        super().__init__(_Handler)

    def properties(self):
        return {"origin.endpoint": f"{self.endpoint}/acc", "origin.account": "acc", "origin.account_key": "a2V5"}


class _Handler(served.Handler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        key = "/".join(path.split("/")[3:])  # /acc/container/key
        if asked.get("comp") == "list":
            return self.send(200, self.page(asked).encode())
        if key in FOLDERS:
            self.send_response(200)
            for header, value in (("Content-Length", 0), ("ETag", '"0x1"'), ("x-ms-meta-hdi_isfolder", "true")):
                self.send_header(header, str(value))
            return self.end_headers()
        if key in FILES:
            return self.send(200, FILES[key], ETag='"0x2"')
        return self.send(404, x_ms_error_code="BlobNotFound")

    do_HEAD = do_GET

    @staticmethod
    def page(asked):
        prefix, entries = asked.get("prefix", ""), {}
        for name in sorted([*FILES, *FOLDERS]):
            folder, slash, _ = name[len(prefix):].partition("/")
            if not name.startswith(prefix):
                continue
            if slash and "delimiter" in asked:
                entries[f"{prefix}{folder}/"] = f"<BlobPrefix><Name>{prefix}{folder}/</Name></BlobPrefix>"
                continue
            metadata = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>" if name in FOLDERS and "include" in asked else ""
            entries[name] = (f"<Blob><Name>{name}</Name><Properties><Content-Length>{len(FILES.get(name, b''))}</Content-Length>"
                             f"<Etag>0x2</Etag></Properties>{metadata}</Blob>")
        names = [name for name in sorted(entries) if name >= asked.get("marker", "")]
        here, behind = names[:int(asked["maxresults"])], names[int(asked["maxresults"]):]
        return (f"<EnumerationResults><Blobs>{''.join(entries[name] for name in here)}</Blobs>"
                f"<NextMarker>{behind[0] if behind else ''}</NextMarker></EnumerationResults>")


@pytest.fixture
def lake(node):
    with Lake() as service:
        name = harness.random_name()
        node.create_bucket(name, f"az://{name}", **service.properties())
        yield name
        node.cli("bucket", "rm", name)


@pytest.mark.usefixtures("need_fuse")
def test_a_mount_finds_what_lies_below_its_directories(node, work, lake):
    """By name before anything was listed, too. (Seen to fail: `d` was a file without bytes.)"""
    with mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, lake) as mount:
        assert (mount.path / "d/s/y").read_bytes() == FILES["d/s/y"]
        assert (mount.path / "d").is_dir() and (mount.path / "d/s").is_dir()
        found = {os.path.relpath(os.path.join(at, name), mount.path) for at, _, names in os.walk(mount.path) for name in names}
        assert found == set(FILES)


def test_a_listing_has_objects_alone(node, lake):
    """(Seen to fail: with both directories as objects of no bytes.)"""
    client = node.s3()
    listed = client.list_objects_v2(Bucket=lake)["Contents"]
    assert [one["Key"] for one in listed] == sorted(FILES)
    assert client.get_object(Bucket=lake, Key="d/x")["Body"].read() == FILES["d/x"]
    with pytest.raises(botocore.exceptions.ClientError) as error:
        client.head_object(Bucket=lake, Key="d")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
