"""Names that are too long for where a job brings them, or for a key at all: each is listed among the errors, and the others arrive."""

import json
import os
import urllib.parse

import botocore.exceptions
import pytest

from keyorigin import KeyOrigin, Object

TWO = "é" * 127  # 254 bytes
KEYS = {"fits", "n" * 255, "u/" + TWO, "deep/" + "a/" * 508 + "b", "x" * 200 + "/" + "y" * 200 + "/z"}
NO_FILE = {"n" * 256, "d/" + "n" * 300, TWO + "éé/x", "k" * 1024}  # a component of more than 255 bytes
LONG = {"p/" * 508 + "q" * 8, "p/" * 507 + "q" * 10}  # 1,024 bytes: as long as a key may be, and too long behind any prefix


def bytes_of(key):
    return key.encode()[-40:] * 3


@pytest.fixture
def store():
    with KeyOrigin() as running:
        yield running


@pytest.fixture
def there(new_node, route):
    return new_node(route=route)


def at(store, bucket):
    return {key: found.data for (name, key), found in store.objects.items() if name == bucket and ".forebay-" not in key}


def files_below(top):
    """{path below: bytes}, also of paths that are longer than the system takes at once."""
    found = {}

    def walk(directory, prefix):
        with os.scandir(directory) as entries:
            names = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for name, is_dir in names:
            fd = os.open(name, os.O_RDONLY, dir_fd=directory)
            try:
                if is_dir:
                    walk(fd, prefix + name + "/")
                elif not name.startswith(".forebay-"):
                    found[prefix + name] = os.read(fd, 1 << 20)
            finally:
                os.close(fd)

    top = os.open(top, os.O_RDONLY)
    try:
        walk(top, "")
    finally:
        os.close(top)
    return found


def make_file(top, path, data):
    """Names of any depth: one directory after the other."""
    fd = os.open(top, os.O_RDONLY)
    *directories, name = path.split("/")
    for directory in directories:
        try:
            os.mkdir(directory, dir_fd=fd)
        except FileExistsError:
            pass
        fd, before = os.open(directory, os.O_RDONLY, dir_fd=fd), fd
        os.close(before)
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as file:
        file.write(data)
    os.close(fd)


def run(node, *arguments):
    """(exit status, the job, {key: reason} of its errors)."""
    done = node.cli(*arguments, "--wait", "--json", check=False)
    assert done.stdout, done.stderr
    job = json.loads(done.stdout)
    errors = json.loads(node.cli("job", "errors", job["id"], "--json").stdout)
    return done.returncode, job, {x["key"]: x["reason"] for x in errors}


def check(result, failing, n_all, words):
    status, job, errors = result
    assert set(errors) == failing, (sorted(errors), job)
    assert all(any(word in reason for word in words) for reason in errors.values()), set(x[:150] + " ... " + x[-150:] for x in errors.values())
    assert (status, job["state"]) == ((3, "partly failed") if failing else (0, "done"))
    assert (job["failed_objects"], job["done_objects"]) == (len(failing), n_all - len(failing))


def settings(store):
    return [x for name, value in store.properties().items() for x in ("--set", f"{name}={value}")]


@pytest.mark.parametrize("kind", ["copy", "sync", "export", "import"])
@pytest.mark.parametrize("target", ["file", "scratch"])
def test_objects_whose_names_no_file_can_have(there, store, tmp_path, kind, target):
    """From S3 to a directory, by every kind of job; a scratch bucket has keys, and takes them all."""
    if (kind, target) == ("export", "scratch"):
        pytest.skip("not run: an export goes to a URL")
    node, all_keys = there, KEYS | NO_FILE
    store.objects.update({("b", key): Object(bytes_of(key)) for key in all_keys})
    node.create_bucket("from", "s3://b", **store.properties())
    node.cli("bucket", "create", "into", *([f"origin=file://{tmp_path}"] if target == "file" else []))
    how = {"copy": ["copy", "from", "into"], "sync": ["sync", "from", "into"], "export": ["export", "from", f"file://{tmp_path}"],
           "import": ["import", *settings(store), "s3://b", "into"]}[kind]
    failing = NO_FILE if target == "file" else set()
    for _ in range(2):  # the second one has nothing to do for the others
        check(run(node, *how), failing, len(all_keys), ["255", "long"])
        if target == "file":
            assert files_below(tmp_path) == {key: bytes_of(key) for key in KEYS}
        else:
            s3 = node.s3()
            assert {x["Key"] for x in s3.list_objects_v2(Bucket="into")["Contents"] if ".forebay-" not in x["Key"]} == all_keys
            for key in all_keys:
                assert s3.get_object(Bucket="into", Key=key)["Body"].read() == bytes_of(key)
    if kind == "sync" and target == "file":
        check(run(node, *how, "--delete"), NO_FILE, len(all_keys), ["255", "long"])


@pytest.mark.parametrize("kind", ["copy", "sync", "export", "import"])
def test_keys_that_are_too_long_behind_a_prefix(there, store, kind):
    """Of an origin with a prefix, and of a job's target: the whole has at most 1,024 bytes."""
    node, all_keys = there, KEYS | LONG
    store.objects.update({("b", key): Object(bytes_of(key)) for key in all_keys})
    node.create_bucket("from", "s3://b", **store.properties())
    node.create_bucket("into", "s3://t/some/prefix", **store.properties())
    how = {"copy": ["copy", "from", "into"], "sync": ["sync", "from", "into/below/"], "export": ["export", *settings(store), "from", "s3://t/some/prefix"],
           "import": ["import", *settings(store), "s3://b", "into/below/"]}[kind]
    prefix = "some/prefix/" + ("below/" if kind in ("sync", "import") else "")
    failing = {key for key in all_keys if len((prefix + key).encode()) > 1024}
    assert failing >= LONG
    check(run(node, *how), failing, len(all_keys), ["1024", "long"])
    assert at(store, "t") == {prefix + key: bytes_of(key) for key in all_keys - failing}


@pytest.mark.parametrize("kind", ["copy", "sync", "export", "import"])
def test_files_whose_names_no_key_can_have(there, store, tmp_path, kind):
    """From a directory, as a bucket and as a URL: what is longer than any key is told by how it begins, and paths longer than the
    system's 4,096 bytes are no other matter. (Without WIRE_UNFIT copies and syncs of a bucket are done without them.)"""
    node, top = there, tmp_path / "top"
    top.mkdir()
    endless = ["e" * 250 + "/" + "f" * 250 + "/" + "g" * 250 + "/" + "h" * 250 + "/" + "i" * 250 + "/file", "/".join(["w" * 200] * 25) + "/file"]
    for key in KEYS:
        make_file(top, key, bytes_of(key))
    for path in endless:
        make_file(top, path, b"far away")
    node.cli("bucket", "create", "from", f"origin=file://{top}")
    node.create_bucket("into", "s3://t", **store.properties())
    how = {"copy": ["copy", "from", "into"], "sync": ["sync", "from", "into"], "export": ["export", *settings(store), "from", "s3://t"],
           "import": ["import", f"file://{top}", "into"]}[kind]
    told = {path.encode()[:1024].decode() for path in endless}
    check(run(node, *how), told, len(KEYS) + 2, ["longer than any key"])
    assert at(store, "t") == {key: bytes_of(key) for key in KEYS}
    if kind == "sync":  # and what the target has beside is left, as the sync has failed in part
        store.objects["t", "beside"] = Object(b"beside")
        check(run(node, *how, "--delete"), told, len(KEYS) + 2, ["longer than any key"])
        assert ("t", "beside") in store.objects
    with pytest.raises(botocore.exceptions.ClientError):  # nothing was learned of a key that begins so
        node.s3().head_object(Bucket="from", Key=min(told))
    assert {urllib.parse.unquote(x["Key"]) for x in node.s3().list_objects_v2(Bucket="from")["Contents"]} == KEYS
