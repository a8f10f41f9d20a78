"""The command line end to end: every command against a real node and a real origin, its output, its errors, its statuses."""

import json
import os
import pathlib
import pty
import re
import socket
import subprocess
import tempfile
import threading
import time
import tty

import pytest

import harness
import wire
from keyorigin import KeyOrigin, Object

MIB = 1 << 20
NODE_COMMANDS = ["bucket", "origin", "ls", "stat", "cat", "get", "put", "rm", "prefetch", "evict", "copy", "sync", "job", "status"]
COMMANDS = NODE_COMMANDS + ["serve", "store", "bench", "plan", "mount", "umount"]
ODD_NAMES = ["plain", "with space", "ünïcödé/日本語", "plus+sign", "per%cent", "a&b=c?d#e", "quote\"'`", "semi;colon:at@",
             "back\\slash", "new\nline", "tab\there", "-dash", "--double", "deep/er/and/deeper", "🌊", ".hidden", "x" * 200]


def one_line(text):
    """The only line of an error, without its end."""
    lines = text.splitlines()
    assert len(lines) == 1, f"not one line: {text!r}"
    return lines[0]


def fails(done, status, *words):
    """The command ended with this status, and its one line on stderr holds the words."""
    assert done.returncode == status, (done.returncode, done.stderr)
    line = one_line(done.stderr)
    for word in words:
        assert str(word) in line, f"{word!r} is not in {line!r}"
    return line


def write_tree(directory, contents):
    for name, data in contents.items():
        path = pathlib.Path(directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_tree(directory):
    directory = pathlib.Path(directory)
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def keys_at_origin(bucket):
    pages = bucket.truth.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
    return sorted(item["Key"] for page in pages for item in page.get("Contents", []))


# ---- help, options ----

@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(node, command):
    """--help of every command explains it on stdout, with status 0; the list of commands names it."""
    done = node.cli(command, "--help")
    assert done.stdout.startswith("usage: forebay " + command)
    assert done.stderr == ""
    assert re.search(rf"^  {command}\s", node.cli("--help").stdout, re.M)


def test_version_and_unknown_command(node):
    """--version names the program; a command that is not there is named, exit 2; so is no command at all."""
    assert re.fullmatch(r"forebay \d+\.\d+\.\d+\n", node.cli("--version").stdout)
    fails(node.cli("lsx", check=False), 2, "lsx", "no such command")
    fails(node.cli("--json", "status", check=False), 2, "--json", "behind the command")
    done = node.cli(check=False)
    assert done.returncode == 2 and "usage:" in done.stderr


def test_secrets_of_a_command_line_are_hidden():
    """While a command waits, here for a node that does not answer, the secrets that it was given are not among the
    arguments that every user of the machine sees; what they are is."""
    given = ["bucket", "create", "b", "--origin", "s3://b", "--set", "origin.secret_key=HUSH1", "--set=origin.session_token=HUSH2",
             "--set", "events.token=HUSH=3", "--set", "origin.region=eu-west-1"]
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(directory + "/node")
        silent.listen()
        silent.settimeout(120)
        command = subprocess.Popen([str(harness.forebay_bin()), *given], env={**os.environ, "FOREBAY_SOCKET": directory + "/node"},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with silent.accept()[0]:
                shown = pathlib.Path(f"/proc/{command.pid}/cmdline").read_bytes()
        finally:
            command.kill()
            command.wait()
    assert b"origin.secret_key=" in shown and b"events.token=" in shown and b"origin.region=eu-west-1" in shown
    assert b"HUSH" not in shown, shown


@pytest.mark.parametrize("arguments, words", [
    (["ls", "--nope"], ["forebay ls", "--nope"]),
    (["ls", "b", "c"], ["forebay ls", "[BUCKET[/PREFIX]]"]),
    (["stat"], ["forebay stat", "BUCKET/KEY"]),
    (["stat", "b"], ["forebay stat", "'b'", "BUCKET/KEY"]),
    (["cat", "--offset", "-1", "b/k"], ["forebay cat", "--offset", "-1"]),
    (["cat", "--timeout", "1ms", "b/k"], ["forebay cat", "--timeout", "1ms", "100ms"]),
    (["get", "-r", "--jobs", "0", "b/"], ["forebay get", "--jobs", "0", "1"]),
    (["get", "-r", "--jobs", "257", "b/"], ["forebay get", "--jobs", "257", "256"]),
    (["get", "b"], ["forebay get", "'b'", "-r"]),
    (["put", "x"], ["forebay put", "FILE BUCKET/KEY"]),
    (["put", "--jobs", "many", "x", "b/k"], ["forebay put", "--jobs", "many"]),
    (["rm", "b"], ["forebay rm", "'b'", "-r"]),
    (["bucket", "create"], ["forebay bucket", "create NAME"]),
    (["bucket", "create", "b", "--set", "novalue"], ["forebay bucket", "'novalue'", "KEY=VALUE"]),
    (["bucket", "mend", "b"], ["forebay bucket", "'mend'"]),
    (["store", "mend"], ["forebay store", "'mend'", "check"]),
    (["serve"], ["forebay serve", "--data"]),
    (["serve", "--data", "/nonexistent/x", "--memory", "64K"], ["--memory 64K", "64MiB"]),
    (["serve", "--data", "/nonexistent/x", "--threads", "3"], ["--threads 3", "4"]),
    (["serve", "--data", "/nonexistent/x", "--threads", "5000"], ["--threads 5000", "4096"]),
    (["serve", "--data", "/nonexistent/x", "--log-level", "loud"], ["--log-level", "loud", "debug"]),
    (["serve", "--data", "/nonexistent/x", "--listen", "nowhere"], ["--listen", "nowhere"]),
    (["bench", "epoch", "--workers", "0", "."], ["forebay bench epoch", "--workers", "0", "1"]),
    (["bench", "epoch", "--block", "1", "."], ["forebay bench epoch", "--block", "512"]),
    (["mount", "--passthrough", "maybe", "b", "d"], ["forebay mount", "--passthrough", "maybe"]),
    (["mount", "--stats", "--upgrade", "d"], ["forebay mount", "--stats", "--upgrade"]),
    (["get", "--offset", "1", "b/k"], ["forebay get", "--offset"]),
    (["cat", "b/"], ["forebay cat", "'b/'", "BUCKET/KEY"]),
    (["status", "extra"], ["forebay status", "extra", "only options"]),
    (["ls", "--data", "", "b"], ["forebay ls", "--data", "empty"]),
    (["job", "ls", "1"], ["forebay job", "ls | show ID"]),
    (["put", "-r", "", "b/"], ["forebay put", "empty"]),
    (["get", "-r", "b/", ""], ["forebay get", "empty"]),
    (["bench", "meta", ""], ["forebay bench meta", "empty"]),
    (["user", "create", "ann", "--buckets", ""], ["forebay user", "--buckets", "empty"]),
    (["bucket", "create", "b", "--origin="], ["forebay bucket", "--origin", "empty"]),
    (["evict", "--list", "", "b/"], ["forebay evict", "--list", "empty"]),
    (["get", "-r", "b/", "-"], ["forebay get", "-r", "'-'"]),
    (["cat", "-r", "b/k"], ["forebay cat", "-r"]),
    (["stat", "-r", "b/k"], ["forebay stat", "-r"]),
    (["bucket", "rm", "b", "--set", "quota=1"], ["forebay bucket", "rm", "--set"]),
    (["user", "limit", "ann", "share=5", "--role", "admin"], ["forebay user", "limit", "--role"]),
])
def test_bad_options_are_named_with_their_range(node, arguments, words):
    """An option or operand that is not understood: one line that names it and what is allowed, exit 2."""
    fails(node.cli(*arguments, check=False), 2, *words)


@pytest.mark.parametrize("command", NODE_COMMANDS)
def test_no_node_is_said(node, tmp_path, command):
    """Where no node runs, every command that needs one says which socket it tried, and that none does, exit 1."""
    operands = {"bucket": ["ls"], "origin": ["check", "s3://b"], "status": [], "put": [__file__, "b/k"],
                "copy": ["b/k", "c/k"], "sync": ["b/k", "c/k"], "job": ["ls"]}.get(command, ["b/k"])
    done = node.cli(command, "--socket", tmp_path / "none.sock", "--timeout", "200ms", *operands, check=False)
    fails(done, 1, "forebay " + command, tmp_path / "none.sock", "no node runs there")


@pytest.mark.parametrize("arguments", [["bucket", "mend", "b"], ["bucket", "show"], ["user", "greet", "ann"],
                                       ["user", "rm"], ["user", "limit", "ann"], ["bucket", "ls", "b"], ["bucket", "rm", "b", "c"],
                                       ["job", "dance", "1"], ["job", "wait"], ["job", "wait", "soon"], ["job", "ls", "1"]])
def test_a_typing_error_needs_no_node(node, tmp_path, arguments):
    """What is asked for is understood before a node is looked for: exit 2 with what was given and what is expected, not 1 with a socket."""
    done = node.cli(arguments[0], "--socket", tmp_path / "none.sock", "--timeout", "200ms", *arguments[1:], check=False)
    fails(done, 2, "forebay " + arguments[0], f"'{arguments[1]}", "ls | show")


# ---- buckets ----

def test_bucket_lifecycle(node, origin):
    """create, ls, show, set, rm: each shows what the one before did; the origin keeps its objects when a bucket is
    forgotten, and secrets are not shown."""
    name = origin.new_bucket()
    origin.s3().put_object(Bucket=name, Key="kept", Body=b"data")
    settings = [w for k, v in origin.properties().items() for w in ("--set", f"{k}={v}")]
    done = node.cli("bucket", "create", name, "--origin", f"s3://{name}", *settings)
    assert (done.stdout, done.stderr) == ("", "")
    assert name in node.cli("bucket", "ls").stdout
    assert [b["origin"] for b in json.loads(node.cli("bucket", "ls", "--json").stdout) if b["name"] == name] == [f"s3://{name}"]
    assert json.loads(node.cli("ls", "--json").stdout) == json.loads(node.cli("bucket", "ls", "--json").stdout)
    shown = json.loads(node.cli("bucket", "show", name, "--json").stdout)
    assert shown["name"] == name and shown["properties"]["origin"] == f"s3://{name}"
    assert shown["properties"]["origin.secret_key"] == "***"
    assert harness.Origin.secret_key not in node.cli("bucket", "show", name).stdout
    node.cli("bucket", "set", name, "validate=always", "readahead=16MiB")
    shown = json.loads(node.cli("bucket", "show", name, "--json").stdout)["properties"]
    assert shown["validate"] == "always" and shown["readahead"] == "16MiB"
    assert node.cli("cat", f"{name}/kept").stdout == "data"
    node.cli("bucket", "rm", name)
    assert name not in node.cli("bucket", "ls").stdout
    fails(node.cli("bucket", "show", name, check=False), 1, name)
    fails(node.cli("cat", f"{name}/kept", check=False), 1, name)
    assert origin.s3().get_object(Bucket=name, Key="kept")["Body"].read() == b"data"


def test_bucket_create_twice(bucket):
    """A name that is taken: one line that says so, exit 1."""
    fails(bucket.node.cli("bucket", "create", bucket.name, "--origin", f"s3://{bucket.name}", check=False), 1, bucket.name)


def create(node, origin, name, url, **changed):
    properties = {**origin.properties(), **{k.replace("_", ".", 1): v for k, v in changed.items()}}
    settings = [w for k, v in properties.items() for w in ("--set", f"{k}={v}")]
    return node.cli("bucket", "create", name, "--origin", url, *settings, check=False)


@pytest.mark.parametrize("changed, words", [
    ({"origin_secret_key": "wrong"}, ["SignatureDoesNotMatch"]),
    ({"origin_access_key": "nobody"}, ["access key"]),
])
def test_wrong_credentials_are_said_at_create(node, origin, changed, words):
    """Keys that the origin refuses: `bucket create` gives the origin's words, exit 1, and makes no bucket."""
    name = origin.new_bucket()
    fails(create(node, origin, name, f"s3://{name}", **changed), 1, "forebay bucket", name, *words)
    assert name not in node.cli("bucket", "ls").stdout


def test_unreachable_origin_is_said_at_create(node, origin):
    """An origin that nobody listens at: `bucket create` names its address, exit 1, and makes no bucket."""
    name = harness.random_name()
    port = harness.free_port()
    done = create(node, origin, name, f"s3://{name}", origin_endpoint=f"http://127.0.0.1:{port}")
    fails(done, 1, "forebay bucket", name, "connect", "127.0.0.1", port)
    assert name not in node.cli("bucket", "ls").stdout


def test_missing_origin_bucket_is_said_at_create(node, origin):
    """An origin that has no such bucket: said in its words, exit 1, and no bucket here."""
    name = harness.random_name()
    fails(create(node, origin, name, f"s3://{name}"), 1, name, "NoSuchBucket")
    assert name not in node.cli("bucket", "ls").stdout


@pytest.mark.parametrize("name, url, setting, words", [
    ("Bad_Name", "s3://x", None, ["Bad_Name"]),
    ("good-name", "ftp://x", None, ["ftp://x"]),
    ("good-name", None, "retry=5s", ["retry", "origin"]),
    ("good-name", "file:///tmp", "colour=red", ["colour"]),
    ("good-name", "file:///tmp", "validate=sometimes", ["validate", "sometimes"]),
    ("good-name", "file:///tmp", "verify=never", ["verify never", "fill or read"]),
    ("good-name", "file:///tmp", "share=0", ["share 0", "minimum of 1"]),
    ("good-name", "file:///tmp", "readahead=5GiB", ["readahead 5GiB", "maximum of 4GiB"]),
    ("good-name", None, "ttl=366d", ["ttl 366d", "maximum of 365d"]),
])
def test_bad_bucket_settings(node, name, url, setting, words):
    """Names, URLs and properties that are not understood are named, with their range; no bucket appears."""
    extra = (["--origin", url] if url else []) + (["--set", setting] if setting else [])
    done = node.cli("bucket", "create", name, *extra, check=False)
    fails(done, 2, *words)
    assert name not in node.cli("bucket", "ls").stdout


def test_file_origin(node, tmp_path):
    """A directory as origin: listed, read and written."""
    write_tree(tmp_path, {"a/b.txt": b"from the directory"})
    name = harness.random_name()
    node.cli("bucket", "create", name, "--origin", f"file://{tmp_path}")
    assert node.cli("cat", f"{name}/a/b.txt").stdout == "from the directory"
    node.cli("put", "-", f"{name}/new", stdin="written")
    assert (tmp_path / "new").read_text() == "written"


# ---- objects ----

def test_ls_one_level_and_all(bucket):
    """ls shows one level with directories, -r every key, --json one object a line, and an empty prefix is an error."""
    for key in ("top", "dir/one", "dir/sub/two"):
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=key.encode())
    ls = bucket.node.cli
    assert [line.split()[-1] for line in ls("ls", bucket.name).stdout.splitlines()] == ["dir/", "top"]
    assert [line.split()[-1] for line in ls("ls", "-r", f"{bucket.name}/dir/").stdout.splitlines()] == ["dir/one", "dir/sub/two"]
    found = [json.loads(line) for line in ls("ls", "-r", "--json", bucket.name).stdout.splitlines()]
    assert [(x["key"], x["size_bytes"], x["kind"]) for x in found] == [("dir/one", 7, "file"), ("dir/sub/two", 11, "file"),
                                                                       ("top", 3, "file")]
    assert found[2]["etag"] == bucket.truth.head_object(Bucket=bucket.name, Key="top")["ETag"].strip('"')
    fails(ls("ls", f"{bucket.name}/none/", check=False), 1, f"{bucket.name}/none/")
    fails(ls("ls", "no-such-bucket", check=False), 1, "no-such-bucket")


def test_stat(bucket):
    """stat shows size, ETag and content type, as text and as JSON, for several keys; a missing one is named and the others
    are still shown."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"12345", ContentType="text/x-test")
    path = f"{bucket.name}/k"
    etag = bucket.truth.head_object(Bucket=bucket.name, Key="k")["ETag"].strip('"')
    shown = json.loads(bucket.node.cli("stat", "--json", path).stdout)
    assert (shown["path"], shown["size_bytes"], shown["etag"], shown["content_type"]) == (path, 5, etag, "text/x-test")
    text = bucket.node.cli("stat", path).stdout
    assert "size: 5\n" in text and etag in text and "text/x-test" in text
    done = bucket.node.cli("stat", f"{bucket.name}/missing", path, check=False)
    fails(done, 1, "forebay stat", "missing")
    assert "size: 5\n" in done.stdout


def test_cat_ranges(bucket):
    """cat gives the bytes of one key or several, and the part that --offset and --length name; beyond the end is an error."""
    data = harness.random_bytes(3 * MIB + 7)
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=data)
    bucket.truth.put_object(Bucket=bucket.name, Key="l", Body=b"tail")
    path = f"{bucket.name}/k"
    assert bucket.node.cli("cat", path, f"{bucket.name}/l", stdin=b"").stdout == data + b"tail"
    part = bucket.node.cli("cat", "--offset", "1MiB", "--length", "10", path, stdin=b"").stdout
    assert part == data[MIB:MIB + 10]
    assert bucket.node.cli("cat", "--offset", str(len(data)), path, stdin=b"").stdout == b""
    fails(bucket.node.cli("cat", "--offset", str(len(data) + 1), path, check=False), 1, path, len(data))
    fails(bucket.node.cli("cat", f"{bucket.name}/none", check=False), 1, "none")


def test_put_and_get_one(bucket, tmp_path):
    """put writes what the origin then has; get brings it back, under the last part of the key, a name, into a directory, or to
    standard output; no half file stays."""
    data = harness.random_bytes(9 * MIB + 3)
    (tmp_path / "in").write_bytes(data)
    cli = bucket.node.cli
    cli("put", "--content-type", "text/x-test", tmp_path / "in", f"{bucket.name}/dir/k")
    reply = bucket.truth.get_object(Bucket=bucket.name, Key="dir/k")
    assert reply["Body"].read() == data and reply["ContentType"] == "text/x-test"
    cli("put", tmp_path / "in", f"{bucket.name}/into/")
    assert bucket.truth.head_object(Bucket=bucket.name, Key="into/in")["ContentLength"] == len(data)
    cli("get", f"{bucket.name}/dir/k", tmp_path / "named")
    (tmp_path / "d").mkdir()
    cli("get", f"{bucket.name}/dir/k", tmp_path / "d")
    assert cli("get", f"{bucket.name}/dir/k", "-", stdin=b"").stdout == data
    subprocess.run([str(bucket.node.binary), "get", "-q", "--socket", bucket.node.socket_path, f"{bucket.name}/dir/k"], cwd=tmp_path,
                   env={**os.environ, **bucket.node.env}, check=True)
    assert read_tree(tmp_path) == {"in": data, "named": data, "d/k": data, "k": data}
    fails(cli("get", f"{bucket.name}/none", tmp_path / "none", check=False), 1, "none")
    fails(cli("put", tmp_path / "absent", f"{bucket.name}/x", check=False), 1, tmp_path / "absent")
    fails(cli("put", tmp_path / "d", f"{bucket.name}/x", check=False), 1, "directory", "-r")
    assert not (tmp_path / "none").exists() and not list(tmp_path.rglob("*.forebay-part"))


def start(bucket, *arguments, **more):
    """The command as a process of its own."""
    return subprocess.Popen([str(bucket.node.binary), *map(str, arguments)], stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **bucket.node.env, "FOREBAY_SOCKET": str(bucket.node.socket_path)}, **more)


def has_open_below(pid, directory):
    """Whether the process has a file open in this directory, also one without a name."""
    def leads_to(fd):
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:  # closed meanwhile
            return ""
    try:
        return any(leads_to(fd).startswith(f"{directory}/") for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it has ended
        return False


def test_gets_of_one_target_at_once(bucket, tmp_path):
    """Processes that get one object into one file, as the ranks of a training job do, do not write into each other's bytes."""
    data = harness.random_bytes(32 * MIB + 11)
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=data)
    for _ in range(3):
        ranks = [start(bucket, "get", "-q", f"{bucket.name}/k", tmp_path / "k") for _ in range(4)]
        said = [rank.communicate(timeout=400)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * 4, said
        assert read_tree(tmp_path) == {"k": data}


def test_get_into_a_pipe(bucket, tmp_path):
    """A target that is no file is written to and stays what it is: /dev/null must not become a file."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"through the pipe")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    bucket.node.cli("get", "-q", f"{bucket.name}/k", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert os.read(reader, 100) == b"through the pipe"
    os.close(reader)


def test_get_into_a_descriptor(bucket, tmp_path):
    """A link that leads to a descriptor, as /dev/stdout does, stays a link: the bytes go behind what the file holds that it is of."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"second")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    (tmp_path / "out").write_bytes(b"first ")
    with open(tmp_path / "out", "ab") as out:
        done = start(bucket, "get", "-q", f"{bucket.name}/k", tmp_path / "stdout", stdout=out)
        said = done.communicate(timeout=200)[1]
    assert done.returncode == 0, said
    assert (tmp_path / "stdout").is_symlink()
    assert (tmp_path / "out").read_bytes() == b"first second"


def test_get_of_a_long_name(bucket, tmp_path):
    """What a directory can hold can be fetched: also a name of 255 bytes, beside which no longer one fits."""
    bucket.truth.put_object(Bucket=bucket.name, Key="d/" + "n" * 255, Body=b"long")
    bucket.node.cli("get", "-q", f"{bucket.name}/d/{'n' * 255}", tmp_path / ("n" * 255))
    bucket.node.cli("get", "-q", "-r", f"{bucket.name}/d/", tmp_path / "tree")
    assert read_tree(tmp_path) == {"n" * 255: b"long", "tree/" + "n" * 255: b"long"}


def test_get_that_is_killed(bucket, tmp_path, new_shaper):
    """Nothing stays of a get that is killed, however often: its file has no name before it is whole."""
    try:
        os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE))
    except OSError as error:
        pytest.skip(f"needs files without names: {error.strerror}")
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=harness.random_bytes(64 * MIB))
    name, shaper = harness.random_name(), new_shaper(total="1MB/s")  # a minute: it is not there before the kill
    bucket.node.create_bucket(name, f"s3://{bucket.name}", **bucket.origin.properties(shaper.endpoint))
    for _ in range(3):
        one = start(bucket, "get", "-q", f"{name}/k", tmp_path / "k")
        while one.poll() is None and not has_open_below(one.pid, tmp_path):
            pass
        one.kill()
        one.communicate(timeout=200)
        assert one.returncode == -9
        assert read_tree(tmp_path) == {}


def test_output_that_cannot_be_written(bucket):
    """A list that a full disk cuts short does not end as a success."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"x")
    for arguments in (["ls", "-r", bucket.name], ["stat", f"{bucket.name}/k"], ["rm", "-r", "--dry-run", f"{bucket.name}/"], ["--help"],
                      ["--version"], ["cat", "--help"]):
        with open("/dev/full", "w") as full:
            done = start(bucket, *arguments, stdout=full)
            assert "standard output" in done.communicate(timeout=200)[1]
            assert done.returncode == 1


@pytest.fixture
def folder(node, tmp_path):
    """(name, directory) of a bucket whose origin is a directory."""
    name, directory = harness.random_name(), tmp_path / "origin"
    directory.mkdir()
    node.cli("bucket", "create", name, "--origin", f"file://{directory}")
    yield name, directory
    node.cli("bucket", "rm", name)


def test_closed_descriptors_are_not_given_out_again(node, folder):
    """With standard output closed, cat fails; the bytes do not go to what would get its number, the connection to the node."""
    name, directory = folder
    (directory / "k").write_bytes(b"x" * 1000)
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', node.binary, "cat", f"{name}/k"], stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **node.env, "FOREBAY_SOCKET": str(node.socket_path)}, timeout=200)
    fails(done, 1, "write")


def test_put_of_a_tree_with_a_way_back(node, folder, tmp_path):
    """A link to a directory that holds it is named and not followed; the rest goes, once."""
    name, directory = folder
    write_tree(tmp_path / "in", {"d/file": b"x"})
    (tmp_path / "in" / "d" / "back").symlink_to("..")
    done = node.cli("put", "-q", "-r", tmp_path / "in", f"{name}/one", check=False)
    assert done.returncode == 1 and "in/d/back" in done.stderr
    assert read_tree(directory) == {"one/d/file": b"x"}


def test_as_many_objects_as_jobs_at_the_same_time(node, tmp_path):
    """get -j N asks the node for N objects at once, not for as many as a client has connections by itself."""
    name = harness.random_name()
    go_on = threading.Event()
    with KeyOrigin() as keys:
        keys.objects.update({(name, f"k{i}"): Object(b"x") for i in range(96)})
        keys.before_get = lambda *_: go_on.wait(200)  # so that all of them are there at once, however slowly they come
        node.create_bucket(name, f"s3://{name}", **keys.properties())
        getting = subprocess.Popen([node.binary, "get", "-q", "-r", "-j", "32", f"{name}/", tmp_path / "out"],
                                   env={**os.environ, **node.env, "FOREBAY_SOCKET": str(node.socket_path)})
        try:
            harness.wait_until(lambda: node.metric("forebay_connections", via="unix") >= 30, what="connections")
        finally:
            go_on.set()
        assert getting.wait(400) == 0
        assert len(read_tree(tmp_path / "out")) == 96


def test_a_job_is_waited_for_longer_than_the_timeout(node):
    """--timeout is for an answer of the node, and --wait asks it for one that comes within that. Longer where a busy machine has no
    answer in so little time."""
    name = harness.random_name()
    with KeyOrigin() as keys:
        keys.objects[name, "k"] = Object(b"x")
        node.create_bucket(name, f"s3://{name}", **keys.properties(), **{"origin.timeout": "2m"})
        for quiet in ([], ["-q"]):
            for seconds in (0.9, 4, 16):
                keys.before_get = lambda *_: time.sleep(2 * seconds + 0.2)
                done = node.cli("prefetch", "--wait", "--timeout", f"{seconds * 1000:.0f}ms", "--json", *quiet, f"{name}/", check=False)
                if done.returncode == 0:
                    break
                node.cli("job", "wait", max(job["id"] for job in json.loads(node.cli("job", "ls", "--json").stdout)))
                node.cli("evict", "--wait", f"{name}/")
            assert done.returncode == 0 and json.loads(done.stdout)["done_objects"] == 1, done.stderr
            node.cli("evict", "--wait", f"{name}/")


def test_rm_recursive_takes_no_neighbours(node, folder):
    """rm -r of a name that others begin with is refused: with d it would take dd, too."""
    name, directory = folder
    write_tree(directory, {"d/one": b"x", "dd/two": b"x"})
    fails(node.cli("rm", "-r", f"{name}/d", check=False), 2, "'/'")
    assert set(read_tree(directory)) == {"d/one", "dd/two"}
    node.cli("rm", "-r", f"{name}/d/")
    assert set(read_tree(directory)) == {"dd/two"}


def test_errors_are_one_line_whatever_is_in_a_name(node, folder, tmp_path):
    """A name with a line break, or with what a terminal takes for a command, does not make two lines of one, nor colours."""
    name, _ = folder
    for bad in ("no\nsuch\nkey", "no\x1b[31mred", "no\x9b31mred"):  # the last byte is C1's CSI, in UTF-8
        line = fails(node.cli("cat", f"{name}/{bad}", check=False), 1, "forebay cat")
        assert "\x1b" not in line and "\x9b" not in line and "\\x" in line
        fails(node.cli("serve", "--data", tmp_path / "d", "--memory", bad, check=False), 2, "--memory")


def test_what_a_mount_says_of_itself_is_one_line(node, folder):
    """Whoever may read a bucket may say of a mount what it likes: it is told as text, and adds no lines to status."""
    name, _ = folder
    with node.wire() as connection:
        connection.call(51, wire.text("/mnt/x") + wire.text(name) + wire.u32(0) + wire.text("none\x1b[2J\nmounts:  /mnt/y: all is well"))
        [line] = [x for x in node.cli("status").stdout.split("\n") if "/mnt/" in x]
    assert "\x1b" not in line and r"none\x1b[2J\x0amounts:" in line


def test_json_of_names_that_are_not_utf8(node, folder):
    """What --json prints is JSON, whatever bytes a key has."""
    name, directory = folder
    with open(os.path.join(os.fsencode(directory), b"caf\xe9"), "wb") as file:
        file.write(b"x" * 10)
    key = os.fsdecode(name.encode() + b"/caf\xe9")
    for done in (node.cli("ls", "--json", name), node.cli("stat", "--json", key)):
        [shown] = [json.loads(line) for line in done.stdout.splitlines()]
        assert shown["size_bytes"] == 10 and (shown.get("key") or shown["path"]).endswith("caf\ufffd")
    assert json.loads(node.cli("explain", "--json", key).stdout)["key"] == "caf\ufffd"
    with node.wire() as connection:
        connection.call(51, wire.text(b"/mnt/caf\xe9") + wire.text(name) + wire.u32(0) + wire.text("because"))
        assert "/mnt/caf\ufffd" in [m["mount_point"] for m in json.loads(node.cli("status", "--json").stdout)["mounts"]]


def test_json_of_names_with_commands_for_terminals(node, folder):
    """What --json prints has no byte that a terminal takes for a command, and is the name all the same. (Seen to fail: U+009B, which begins
    one, was printed as it is.)"""
    name, directory = folder
    shown = "a\x9b31m\x7f\xa0\xe9"  # the last two are none
    (directory / shown).write_bytes(b"x")
    with node.wire() as connection:
        connection.call(51, wire.text(f"/mnt/{shown}") + wire.text(name) + wire.u32(0) + wire.text("because"))
        asked = [("ls", name), ("stat", f"{name}/{shown}"), ("explain", f"{name}/{shown}"), ("status",)]
        for command, *where in asked:
            done = node.cli(command, "--json", *where).stdout
            assert not set(done) & set("\x9b\x7f") and shown in json.dumps(json.loads(done), ensure_ascii=False), done


def test_every_bucket_is_shown(new_node):
    """Also of more than a page of them, by status and by bucket ls."""
    node = new_node()
    names = [f"bucket-{i:04d}" for i in range(1100)]
    with node.wire() as connection:
        for name in names:
            connection.bucket_create(name, {})
    assert [b["name"] for b in json.loads(node.cli("status", "--json").stdout)["buckets"]] == names
    assert names[-1] in node.cli("status").stdout
    assert [b["name"] for b in json.loads(node.cli("bucket", "ls", "--json").stdout)] == names
    assert [line.split()[1] for line in node.cli("ls").stdout.splitlines()] == names


def test_more_keys_than_a_page_holds(node, tmp_path):
    """What is done for a tree is done for all of it, however many pages its listing has."""
    name, names = harness.random_name(), [f"k{i:04}" for i in range(1100)]
    with KeyOrigin() as keys:
        keys.objects.update({(name, key): Object(key.encode()) for key in names})
        node.create_bucket(name, f"s3://{name}", **keys.properties())
        assert [json.loads(line)["key"] for line in node.cli("ls", "-r", "--json", name).stdout.splitlines()] == names
        assert node.cli("rm", "-r", "--dry-run", f"{name}/").stdout.split() == names
        node.cli("get", "-q", "-r", "-j", "8", f"{name}/", tmp_path / "out")
        assert read_tree(tmp_path / "out") == {key: key.encode() for key in names}
        node.cli("rm", "-q", "-r", f"{name}/")
        assert keys.objects == {}


def test_du_of_names_that_are_not_utf8(node, folder):
    """du adds up what lies below a directory whatever bytes its name has, and a job over it is shown."""
    name, directory = folder
    inside = os.path.join(os.fsencode(directory), b"caf\xe9")
    os.mkdir(inside)
    for file in (b"one", b"two"):
        pathlib.Path(os.fsdecode(os.path.join(inside, file))).write_bytes(b"x" * 1000)
    done = node.cli("prefetch", "--wait", "--json", os.fsdecode(name.encode() + b"/caf\xe9/"))
    assert json.loads(done.stdout)["done_bytes"] == 2000
    row = json.loads(node.cli("du", "--json", name).stdout)[f"{name}/caf%E9/"]
    fetched = row.pop("fetched_bytes")  # and every other member that a row of any name has
    assert fetched >= 0 and row == {"objects": 3, "bytes": 2000, "cached_bytes": 2000, "dirty_bytes": 0, "pinned_bytes": 0}


def test_a_bucket_gets_no_origin_that_is_not_there(bucket, node):
    """`bucket set origin=` to a typing error changes nothing and drops nothing, and no secret of the command line is said again."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=b"text")
    node.cli("prefetch", "--wait", bucket.name)
    before = node.cli("bucket", "show", bucket.name).stdout
    for url, words in ((f"s3://{bucket.name}-typo", "NoSuchBucket"), ("s4://b", "unknown kind"), ("s3://k:hush@b", "neither user nor query")):
        refused = node.cli("bucket", "set", bucket.name, "origin=" + url, check=False)
        assert refused.returncode in (1, 2) and words in refused.stderr and "hush" not in refused.stderr, refused.stderr
    cut = node.cli("bucket", "set", bucket.name, "origin.secret_key=hu\nsh", check=False)
    assert cut.returncode == 2 and "'origin.secret_key': must be KEY=VALUE" in cut.stderr and "hu" not in cut.stderr.replace("must", "")
    assert node.cli("bucket", "show", bucket.name).stdout == before
    assert "1 of 1 objects whole" in node.cli("prefetch", "--check", bucket.name).stdout


def test_list_that_breaks_off_starts_no_job(node, folder):
    """A list of keys that cannot be read to its end is not taken for a shorter one: the job does not begin."""
    name, directory = folder
    (directory / "k").write_bytes(b"x")
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    os.write(theirs, b"k\n")
    os.close(theirs)  # behind its bytes the terminal gives EIO
    done = subprocess.run([node.binary, "prefetch", "--list", "-", name], stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, **node.env, "FOREBAY_SOCKET": str(node.socket_path)}, timeout=200)
    os.close(ours)
    fails(done, 1, "--list")
    assert name not in node.cli("job", "ls").stdout


def test_put_of_a_tree_that_cannot_be_read(bucket, tmp_path):
    """What put -r cannot look at is named, and the command fails; the rest goes."""
    write_tree(tmp_path / "in", {"good": b"good"})
    bucket.node.cli("put", "-r", tmp_path / "in", f"{bucket.name}/one")
    for what, why in (("absent", "No such file"), ("in/good", "Not a directory")):
        done = bucket.node.cli("put", "-r", tmp_path / what, f"{bucket.name}/none", check=False)
        assert done.returncode == 1 and f"{tmp_path / what}: {why}" in done.stderr
    (tmp_path / "in" / "loop").symlink_to("loop")
    done = bucket.node.cli("put", "-r", tmp_path / "in", f"{bucket.name}/two", check=False)
    assert done.returncode == 1 and "in/loop" in done.stderr
    assert keys_at_origin(bucket) == ["one/good", "two/good"]


def test_put_of_a_tree_of_links_to_nowhere(bucket, tmp_path):
    """As of data whose drive is not mounted: what is no file and no directory is named, the rest is put, and the end is status 1. A link to
    a file is that file. (Seen to fail: status 0, and not a word.)"""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/whole").write_bytes(b"x")
    (tmp_path / "tree/link").symlink_to("whole")
    (tmp_path / "tree/nowhere").symlink_to("/not/mounted/file")
    os.mkfifo(tmp_path / "tree/pipe")
    done = bucket.node.cli("put", "-r", "-q", tmp_path / "tree", f"{bucket.name}/t", check=False)
    assert done.returncode == 1 and "tree/nowhere: is a link to what is not there" in done.stderr and "tree/pipe: is no file and no directory" in done.stderr
    assert done.stderr.endswith("forebay put: 2 files failed\n") and done.stderr.count("\n") == 3
    keys = [item["Key"] for item in bucket.truth.list_objects_v2(Bucket=bucket.name, Prefix="t/")["Contents"]]
    assert keys == ["t/link", "t/whole"]


def test_put_of_a_file_that_is_made_while_it_is_read(bucket):
    """Files of /proc have a size of 0 and bytes all the same."""
    bucket.node.cli("put", "/proc/version", f"{bucket.name}/version")
    assert bucket.truth.get_object(Bucket=bucket.name, Key="version")["Body"].read() == pathlib.Path("/proc/version").read_bytes()


def test_put_waits_for_its_turn(node, tmp_path):
    """--timeout is for a node that does not answer: one that lets a write wait, as for a limit, is waited for. Longer where a busy machine
    has no answer in so little time."""
    name, data = harness.random_name(), harness.random_bytes(3 * MIB)
    (tmp_path / "in").write_bytes(data)  # of which a MiB is sent at a time
    node.cli("bucket", "create", name)
    try:
        for limit, timeout in (("256KiB", "1s"), ("128KiB", "4s"), ("48KiB", "16s")):
            node.cli("bucket", "set", name, f"limit.bytes={limit}")
            done = node.cli("put", "-q", "--timeout", timeout, tmp_path / "in", f"{name}/k", check=False)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr
        node.cli("bucket", "set", name, "limit.bytes=0")
        assert node.cli("cat", f"{name}/k", stdin=b"").stdout == data
    finally:
        node.cli("rm", "-q", "-r", name, check=False)
        node.cli("bucket", "rm", name)


def test_put_no_overwrite(bucket, tmp_path):
    """put -n leaves an object that is there as it is, and says so."""
    bucket.node.cli("put", "-", f"{bucket.name}/k", stdin="first")
    assert bucket.node.cli("put", "-n", "-", f"{bucket.name}/k", stdin="second", check=False).returncode == 1
    assert bucket.truth.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"first"


def test_round_trip_of_a_tree(bucket, tmp_path):
    """put -r and get -r of names that are hard on shells, URLs and XML: the same files come back, and the origin has them."""
    contents = {name: harness.random_bytes(1000 + 7 * i, i) for i, name in enumerate(ODD_NAMES)}
    contents["empty"] = b""
    contents["large"] = harness.random_bytes(10 * MIB + 1, "large")
    write_tree(tmp_path / "in", contents)
    bucket.node.cli("put", "-r", tmp_path / "in", f"{bucket.name}/some/prefix")
    assert keys_at_origin(bucket) == sorted("some/prefix/" + name for name in contents)
    bucket.node.cli("get", "-r", "-j", "3", f"{bucket.name}/some/prefix/", tmp_path / "out")
    assert read_tree(tmp_path / "out") == contents


def test_get_of_a_tree_that_is_not_there(bucket, tmp_path):
    """A bucket that cannot be listed is said once, however many would fetch from it; a prefix below which nothing is is an error, as
    for ls, and a bucket that is empty is none."""
    cli = bucket.node.cli
    fails(cli("get", "-q", "-r", "no-such-bucket/", tmp_path, check=False), 1, "no-such-bucket")
    fails(cli("get", "-q", "-r", f"{bucket.name}/none/", tmp_path, check=False), 1, f"{bucket.name}/none/", "nothing there")
    cli("get", "-q", "-r", bucket.name, tmp_path)
    assert read_tree(tmp_path) == {}


def test_a_tree_of_which_one_cannot_be_written(bucket, tmp_path):
    """Of many objects the one that failed is named, and the others are there."""
    for key in ("d/fits", "d/full"):
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"x" * 1000)
    (tmp_path / "full").symlink_to("/dev/full")
    done = bucket.node.cli("get", "-q", "-r", f"{bucket.name}/d/", tmp_path, check=False)
    assert done.returncode == 1 and "forebay get: d/full: write: No space left" in done.stderr, done.stderr
    assert read_tree(tmp_path) == {"fits": b"x" * 1000}


def test_errors_say_which_object(node):
    """Of a scratch bucket, too."""
    name = harness.random_name()
    node.cli("bucket", "create", name)
    for command in (["stat"], ["cat"], ["get"], ["rm"], ["explain"]):
        fails(node.cli(*command, f"{name}/no/such", check=False), 1, "forebay " + command[0], f"{name}/no/such")
    node.cli("bucket", "rm", name)


@pytest.mark.parametrize("key", ["up/../../escape", "a//b", "./c"])
def test_get_tree_stays_in_its_target(node, tmp_path, key):
    """Keys that would leave the target directory, or cannot be files, are reported and skipped; the others are fetched."""
    name = harness.random_name()
    with KeyOrigin() as keys:
        keys.objects.update({(name, "good"): Object(b"good"), (name, key): Object(b"bad")})
        node.create_bucket(name, f"s3://{name}", **keys.properties())
        done = node.cli("get", "-r", f"{name}/", tmp_path / "deep" / "out", check=False)
    assert done.returncode == 1
    assert key in done.stderr and "not a name" in done.stderr
    assert read_tree(tmp_path) == {"deep/out/good": b"good"}


def test_rm(bucket):
    """rm removes here and at the origin; a missing key is an error; -r takes what lies below a prefix; --dry-run nothing."""
    for key in ("a", "b", "d/one", "d/two", "dd"):
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=b"x")
    cli = bucket.node.cli
    cli("rm", f"{bucket.name}/a")
    assert keys_at_origin(bucket) == ["b", "d/one", "d/two", "dd"]
    fails(cli("cat", f"{bucket.name}/a", check=False), 1, "a")
    fails(cli("rm", f"{bucket.name}/a", check=False), 1, "a")
    assert cli("rm", "-r", "--dry-run", f"{bucket.name}/d/").stdout.split() == ["d/one", "d/two"]
    assert keys_at_origin(bucket) == ["b", "d/one", "d/two", "dd"]
    cli("rm", "-r", f"{bucket.name}/d/")
    assert keys_at_origin(bucket) == ["b", "dd"]


def test_rm_recursive_leaves_no_directories(node, tmp_path):
    """On an origin of directories rm -r takes the directories along that it emptied, level by level, and no others."""
    (tmp_path / "kept").mkdir()
    name = "rm-directories"
    node.cli("bucket", "create", name, "--origin", f"file://{tmp_path}")
    try:
        (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
        (tmp_path / "tree" / "a" / "b" / "file").write_bytes(b"x")
        (tmp_path / "tree" / "other").write_bytes(b"x")
        node.cli("rm", "-r", f"{name}/tree/")
        assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    finally:
        node.cli("bucket", "rm", name)


def test_status(bucket):
    """status names the disks, the bucket and its origin, in lines for people or as JSON."""
    lines = bucket.node.cli("status").stdout.splitlines()
    assert lines[0].startswith("node:    forebay ") and any(line.startswith("disks:") for line in lines)
    assert any(f"{bucket.name} " in line and "s3://" in line for line in lines)
    status = json.loads(bucket.node.cli("status", "--json").stdout)
    assert status["version"] == bucket.node.cli("--version").stdout.split()[1]
    assert status["disks"][0]["path"].startswith(str(bucket.node.data))
    assert bucket.name in [b["name"] for b in status["buckets"]]


# ---- progress ----

def test_progress_is_one_plain_line_when_piped(bucket, tmp_path):
    """Piped, get -r and put -r write nothing to stdout and one plain line to stderr; -q takes that away too."""
    write_tree(tmp_path / "in", {f"f{i}": b"x" * 1000 for i in range(5)})
    done = bucket.node.cli("put", "-r", tmp_path / "in", f"{bucket.name}/p")
    assert done.stdout == "" and re.fullmatch(r"put 5 objects, .* in .*/s", one_line(done.stderr))
    done = bucket.node.cli("get", "-r", f"{bucket.name}/p/", tmp_path / "out")
    assert done.stdout == "" and re.fullmatch(r"got 5 objects, .* in .*/s", one_line(done.stderr))
    assert "\r" not in done.stderr and "\x1b" not in done.stderr
    done = bucket.node.cli("get", "-q", "-r", f"{bucket.name}/p/", tmp_path / "quiet")
    assert (done.stdout, done.stderr) == ("", "")


def test_progress_is_drawn_on_a_terminal(bucket, tmp_path, new_shaper):
    """On a terminal the line is redrawn while the bytes come, with rate and time left. Slower bytes where a busy machine was not there
    while they came."""
    bucket.truth.put_object(Bucket=bucket.name, Key="k", Body=harness.random_bytes(4 * MIB))
    shaper = new_shaper()
    for rate in ("4MB/s", "1MB/s", "200kB/s"):
        slow = harness.random_name()
        shaper.set(total=rate)
        bucket.node.create_bucket(slow, f"s3://{bucket.name}", **bucket.origin.properties(shaper.endpoint))
        drawn = bucket.node.drawn("get", "-r", f"{slow}/", tmp_path / rate.partition("/")[0])
        if drawn.count("\r") > 3 and re.search(r", [\d.]+ (B|.iB)/s, [\dhms]+ left", drawn):
            break
    assert drawn.count("\r") > 3 and re.search(r", [\d.]+ (B|.iB)/s, [\dhms]+ left", drawn), drawn
    assert drawn.rstrip().splitlines()[-1].replace("\x1b[K", "").lstrip("\r").startswith("got 1 object,")


# ---- ways to a node ----

def test_a_node_is_found_by_data_socket_and_endpoint(bucket, tmp_path):
    """--data, --socket and --endpoint lead to the node; over the network the keys come from the environment, and wrong ones
    are refused."""
    node = bucket.node
    bare = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    access_key, secret_key = node.credentials

    def ls(*flags, **env):
        return subprocess.run([str(node.binary), "ls", *map(str, flags)], env={**bare, **node.env, **env}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    assert bucket.name in ls("--data", node.data).stdout
    assert bucket.name in ls("--socket", node.socket_path).stdout
    keys = {"FOREBAY_ACCESS_KEY": access_key, "FOREBAY_SECRET_KEY": secret_key}
    assert bucket.name in ls("--endpoint", node.wire_address, **keys).stdout
    fails(ls("--endpoint", node.wire_address, **{**keys, "FOREBAY_SECRET_KEY": "wrong"}), 1, "forebay ls")
    fails(ls(), 2, "forebay ls", "--data", "--socket", "--endpoint")


# ---- the store ----

def test_store_check_of_a_stopped_node(new_node, origin):
    """store check refuses a node that runs, finds nothing wrong in one that stopped cleanly, finds a flipped bit (exit 3),
    repairs it, and the object is right again after that."""
    node = new_node()
    name = node.new_bucket(origin)
    data = harness.random_bytes(2 * MIB + 5)
    origin.s3().put_object(Bucket=name, Key="k", Body=data)
    assert node.cli("cat", f"{name}/k", stdin=b"").stdout == data
    fails(node.cli("store", "check", "--data", node.data, check=False), 1, node.data, "running")
    node.stop()
    report = json.loads(node.cli("store", "check", "--json", "--data", node.data).stdout)
    assert report["extents"] == 1 and report["bytes"] == len(data) and report["bad_blocks"] == 0 and report["problems"] == []
    by_environment = subprocess.run([node.binary, "store", "check", "--json", "-q"], stdout=subprocess.PIPE, check=True,
                                    env={**os.environ, **node.env, "FOREBAY_DATA": str(node.data)})
    assert json.loads(by_environment.stdout) == report
    extent = next(p for p in (node.data / "cache" / "extents").rglob("*") if p.is_file() and p.stat().st_size == len(data))
    with open(extent, "r+b") as file:
        file.seek(MIB + 3)
        byte = file.read(1)[0]
        file.seek(MIB + 3)
        file.write(bytes([byte ^ 1]))
    done = node.cli("store", "check", "--json", "--data", node.data, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 3 and found["bad_blocks"] == 1 and extent.name in found["problems"][0]
    assert node.cli("store", "check", "--repair", "--data", node.data).returncode == 0
    assert json.loads(node.cli("store", "check", "--json", "--data", node.data).stdout)["bad_blocks"] == 0
    node.start()
    assert node.cli("cat", f"{name}/k", stdin=b"").stdout == data


def test_store_check_of_scratch_files(new_node):
    """Files of a scratch bucket are verified once they are settled: a flipped bit is found (exit 3) and named, also with
    --repair, which leaves the bytes alone; they count in the status and are gone when their objects are."""
    node = new_node()
    name = harness.random_name()
    node.cli("bucket", "create", name)

    def disk():
        return json.loads(node.cli("status", "--json").stdout)["disks"][0]

    def check(*flags, status=0):
        done = node.cli("store", "check", "--json", "--data", node.data, *flags, check=False)
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def flip(path, offset):
        with open(path, "r+b") as file:
            byte = os.pread(file.fileno(), 1, offset)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1]), offset)

    bodies = {"small": b"x" * 1000, "a/large": harness.random_bytes(2 * MIB + 5)}
    for key, body in bodies.items():
        node.s3().put_object(Bucket=name, Key=key, Body=body)
    harness.wait_until(lambda: disk()["scratch_unsettled"] == 0, what="files to be settled")
    assert disk()["scratch_files"] == 2 and disk()["scratch_bytes"] >= sum(map(len, bodies.values()))
    node.stop()
    report = check()
    assert (report["hard_extents"], report["hard_blocks"], report["hard_bad"]) == (2, 4, 0)
    assert report["hard_bytes"] == sum(map(len, bodies.values()))
    large = next(p for p in (node.data / "cache" / "hard").rglob("*") if p.is_file() and p.stat().st_size > MIB)
    flip(large, MIB + 3)
    for flags in [], ["--repair"]:
        report = check(*flags, status=3)
        [problem] = report["problems"]
        assert report["hard_bad"] == 1 and large.name in problem and "the first is 1" in problem
    flip(large, MIB + 3)
    assert check()["hard_bad"] == 0
    node.start()
    for key, body in bodies.items():
        assert node.s3().get_object(Bucket=name, Key=key)["Body"].read() == body
        node.s3().delete_object(Bucket=name, Key=key)
    harness.wait_until(lambda: disk()["scratch_files"] == 0 and disk()["scratch_bytes"] == 0, what="the files to be removed")


def test_a_second_node_names_the_first(node):
    """One process per data directory: the second says who holds it, exit 1."""
    done = node.cli("serve", "--data", node.data, "--listen", "127.0.0.1:0", "--wire", "127.0.0.1:0", check=False)
    line = [x for x in done.stderr.splitlines() if x.startswith("forebay serve:")][-1]
    assert done.returncode == 1 and str(node.pid) in line and str(node.data) in line


def test_a_taken_port_is_named(node, tmp_path):
    """An address that is taken: one line names the option and the address, exit 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = node.cli("serve", "--data", tmp_path / "d", "--listen", address, "--wire", "127.0.0.1:0", check=False)
    assert done.returncode == 1
    assert address in [x for x in done.stderr.splitlines() if x.startswith("forebay serve:")][-1]


# ---- bench ----

def test_bench_epoch(tmp_path, node):
    """bench epoch reads every file once per epoch and compares with another directory; other bytes there are an error."""
    contents = {f"d{i % 3}/f{i}": harness.random_bytes(1000 + i, i) for i in range(20)}
    write_tree(tmp_path / "a", contents)
    write_tree(tmp_path / "b", contents)
    options = ["--epochs", "2", "--workers", "2", "--compare", tmp_path / "b"]
    lines = json.loads(node.cli("bench", "epoch", tmp_path / "a", "--json", *options).stdout)
    assert [x["name"] for x in lines] == ["epoch 1", "epoch 2", "plain disk"]
    assert {(x["files"], x["bytes"]) for x in lines} == {(20, sum(map(len, contents.values())))}
    assert len({x["checksum"] for x in lines}) == 1
    table = node.cli("bench", "epoch", tmp_path / "a", "--metrics", node.endpoint.split("//")[1], *options).stdout
    assert "files/s" in table and "epoch 2" in table and "plain disk" in table
    (tmp_path / "b/d0/f0").write_bytes(b"y" * 1000)
    fails(node.cli("bench", "epoch", tmp_path / "a", *options, "--json", check=False), 1, "other bytes")
    (tmp_path / "none").mkdir()
    fails(node.cli("bench", "epoch", tmp_path / "none", check=False), 1, "no files")
