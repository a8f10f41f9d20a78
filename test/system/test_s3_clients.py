"""Clients as they come: each uploads, lists, reads whole and in part, and deletes, and the bytes are compared
with those at the origin, or with what boto3 reads from a scratch bucket. With TLS, too, where each is told of the authority as its users
tell it. `scripts/clients` installs them; one that is not there ends its test as not run.

The files are small, but for one that every client sends in parts.
"""

import json
import os
import pathlib
import shutil
import subprocess
import types

import boto3.s3.transfer
import pytest

import harness
from conftest import Bucket

PART = 5 << 20
TREE = {"a.txt": b"alpha", "dir/b c": b"b" * 70_000, "dir/sub/d\u00fc.bin": harness.random_bytes(300_000, seed=3),
        "large": harness.random_bytes(2 * PART + 12345, seed=4)}


@pytest.fixture(params=["mirror", "scratch", "mirror-tls", "scratch-tls"])
def bucket(request, route, origin):
    """A bucket of each kind, without and with TLS; of a scratch bucket the truth is what boto3 sees."""
    node = request.getfixturevalue("node_with_tls" if request.param.endswith("tls") else "node")
    if request.param.startswith("mirror"):
        return Bucket(node.new_bucket(origin), node.s3(), origin.s3(), node, origin)
    return Bucket(harness.scratch_bucket(node), node.s3(), node.s3(), node, origin)


@pytest.fixture
def source(tmp_path):
    for name, data in TREE.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "in"


def at_origin(bucket):
    found = bucket.truth.list_objects_v2(Bucket=bucket.name).get("Contents", [])
    return {o["Key"]: bucket.truth.get_object(Bucket=bucket.name, Key=o["Key"])["Body"].read() for o in found}


def read_tree(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def program(name, *places):
    """A program's path, or the end of the test as not run."""
    for place in places:
        if place.exists():
            return str(place)
    found = shutil.which(name)
    if not found:
        pytest.skip(f"not run: {name} is not installed (scripts/clients build)")
    return found


def run(bucket, *argv, **more):
    access_key, secret_key = bucket.node.credentials
    home = bucket.node.dir / "clients-home"
    home.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "AWS_ACCESS_KEY_ID": access_key,
           "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_REGION": harness.REGION, "AWS_DEFAULT_REGION": harness.REGION,
           "AWS_EC2_METADATA_DISABLED": "true", **({"AWS_CA_BUNDLE": bucket.node.ca} if bucket.node.ca else {}), **more}
    done = subprocess.run([str(a) for a in argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 0, f"{argv}: {done.returncode}: {done.stderr.decode()} {done.stdout.decode()}"
    return done.stdout


def test_boto3(bucket, source, tmp_path):
    """In parts and whole, ranges, listings, removals. With TLS it leaves bodies unsigned and sends their checksums behind them, as all of
    Amazon's newer clients do: the node takes both kinds, and the bytes are those that were sent. (Fails with TLS where plan_payload in
    s3/body.c does not know STREAMING-UNSIGNED-PAYLOAD-TRAILER.)"""
    sent, s3, in_parts = set(), bucket.s3, boto3.s3.transfer.TransferConfig(PART, multipart_chunksize=PART)
    s3.meta.events.register("before-send.s3", lambda request, **_: sent.add(bytes(request.headers.get("x-amz-content-sha256", b""))))
    for name in TREE:
        s3.upload_file(str(source / name), bucket.name, f"up/{name}", Config=in_parts)
    assert (b"STREAMING-UNSIGNED-PAYLOAD-TRAILER" in sent) == bool(bucket.node.ca), sent
    assert at_origin(bucket) == {"up/" + k: v for k, v in TREE.items()}
    assert bucket.truth.head_object(Bucket=bucket.name, Key="up/large")["ETag"].endswith('-3"')
    listed = s3.list_objects_v2(Bucket=bucket.name, Prefix="up/dir/")["Contents"]
    assert [o["Key"] for o in listed] == ["up/dir/b c", "up/dir/sub/d\u00fc.bin"]
    for name in TREE:
        s3.download_file(bucket.name, f"up/{name}", str(tmp_path / "got"))
        assert (tmp_path / "got").read_bytes() == TREE[name]
    part = s3.get_object(Bucket=bucket.name, Key="up/large", Range="bytes=6000000-6000776")["Body"].read()
    assert part == TREE["large"][6000000:6000777]
    s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": f"up/{name}"} for name in TREE]})
    assert at_origin(bucket) == {}


def awscli_round(bucket, source, tmp_path, aws):
    config = tmp_path / "config"
    config.write_text("[default]\ns3 =\n  multipart_threshold = 5MB\n  multipart_chunksize = 5MB\n  addressing_style = path\n")

    def s3(*arguments):
        return run(bucket, aws, "--endpoint-url", bucket.node.endpoint, *arguments, AWS_CONFIG_FILE=str(config), AWS_PAGER="")

    up = f"s3://{bucket.name}/up"
    s3("s3", "cp", "--recursive", source, up)
    assert at_origin(bucket) == {"up/" + k: v for k, v in TREE.items()}
    assert bucket.truth.head_object(Bucket=bucket.name, Key="up/large")["ETag"].endswith('-3"')
    listed = s3("s3", "ls", "--recursive", up + "/").decode().splitlines()
    assert len(listed) == len(TREE) and any("d\u00fc.bin" in line for line in listed)
    s3("s3", "sync", up, tmp_path / "out")
    assert read_tree(tmp_path / "out") == TREE
    assert s3("s3", "sync", tmp_path / "out", up).strip() == b""
    s3("s3api", "get-object", "--bucket", bucket.name, "--key", "up/large", "--range", "bytes=6000000-6000776", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == TREE["large"][6000000:6000777]
    made = json.loads(s3("s3api", "put-object", "--bucket", bucket.name, "--key", "summed", "--body", source / "large",
                         "--checksum-algorithm", "CRC32C"))
    shown = json.loads(s3("s3api", "head-object", "--bucket", bucket.name, "--key", "summed", "--checksum-mode", "ENABLED"))
    assert made["ChecksumCRC32C"] == shown["ChecksumCRC32C"]
    s3("s3", "mv", f"{up}/a.txt", f"s3://{bucket.name}/moved")
    # The server behind the bucket takes a directory away with its last object, also under an upload that needs it, and answers that with 409.
    bucket.truth.put_object(Bucket=bucket.name, Key="up/stays", Body=b"stays")
    s3("s3", "sync", "--delete", "--exclude", "stays", source / "dir", up)
    s3("s3", "rm", "--recursive", f"{up}/sub")
    s3("s3", "rm", f"s3://{bucket.name}/summed")
    assert at_origin(bucket) == {"moved": TREE["a.txt"], "up/b c": TREE["dir/b c"], "up/stays": b"stays"}


def test_awscli_2(bucket, source, tmp_path):
    """Version 2 as Amazon builds it, with checksums by default. test_s3_awscli has version 1, of the Python packages."""
    awscli_round(bucket, source, tmp_path, program("aws of .deps/awscli", harness.ROOT / ".deps/awscli/aws"))


@pytest.mark.parametrize("bucket", ["mirror"], indirect=True)  # it takes seconds to start, twelve times
def test_awscli_2_of_the_distribution(bucket, source, tmp_path):
    """As Debian has it, of 2023: no checksums but where they are asked for."""
    aws = "/usr/bin/aws"
    if not os.path.exists(aws) or not run(bucket, aws, "--version").startswith(b"aws-cli/2."):
        pytest.skip("not run: /usr/bin/aws is not version 2 (scripts/clients build)")
    awscli_round(bucket, source, tmp_path, aws)


def test_s5cmd(bucket, source, tmp_path):
    s5cmd = [program("s5cmd", harness.ROOT / ".deps/bin/s5cmd"), "--endpoint-url", bucket.node.endpoint]
    run(bucket, *s5cmd, "cp", "--part-size", "5", f"{source}/", f"s3://{bucket.name}/up/")
    assert at_origin(bucket) == {"up/" + k: v for k, v in TREE.items()}
    listed = run(bucket, *s5cmd, "ls", f"s3://{bucket.name}/up/*").decode()
    assert len(listed.splitlines()) == len(TREE) and "d\u00fc.bin" in listed
    run(bucket, *s5cmd, "cp", "--part-size", "5", f"s3://{bucket.name}/up/*", f"{tmp_path}/out/")
    assert read_tree(tmp_path / "out") == TREE
    assert run(bucket, *s5cmd, "cat", f"s3://{bucket.name}/up/large") == TREE["large"]
    run(bucket, *s5cmd, "mv", f"s3://{bucket.name}/up/a.txt", f"s3://{bucket.name}/moved")
    run(bucket, *s5cmd, "sync", "--delete", f"{source}/dir/", f"s3://{bucket.name}/up/")
    run(bucket, *s5cmd, "rm", f"s3://{bucket.name}/up/sub/*")
    assert at_origin(bucket) == {"moved": TREE["a.txt"], "up/b c": TREE["dir/b c"]}


RCLONES = {"rclone": harness.ROOT / ".deps/bin/rclone", "distribution": pathlib.Path("/usr/bin/rclone")}  # of this year, and of 2022


def rclone_of(node):
    """The environment in which rclone knows a node as n:"""
    access_key, secret_key = node.credentials
    return {"RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_N_TYPE": "s3", "RCLONE_CONFIG_N_PROVIDER": "Other",
            "RCLONE_CONFIG_N_ENDPOINT": node.endpoint, "RCLONE_CONFIG_N_ACCESS_KEY_ID": access_key,
            "RCLONE_CONFIG_N_SECRET_ACCESS_KEY": secret_key, "RCLONE_S3_UPLOAD_CUTOFF": "5M", "RCLONE_S3_CHUNK_SIZE": "5M",
            **({"RCLONE_CA_CERT": node.ca, "AWS_CA_BUNDLE": ""} if node.ca else {})}


@pytest.mark.parametrize("which", list(RCLONES))
def test_rclone(bucket, source, tmp_path, which):
    env, rclone, remote = rclone_of(bucket.node), program("rclone (scripts/clients)", RCLONES[which]), f"n:{bucket.name}"
    run(bucket, rclone, "sync", source, remote, **env)
    assert at_origin(bucket) == TREE
    run(bucket, rclone, "check", "--download", source, remote, **env)
    assert sorted(run(bucket, rclone, "lsf", "-R", "--files-only", remote, **env).decode().splitlines()) == sorted(TREE)
    run(bucket, rclone, "copy", remote, tmp_path / "out", **env)
    assert read_tree(tmp_path / "out") == TREE
    assert run(bucket, rclone, "cat", "--offset", "6000000", "--count", "777", f"{remote}/large", **env) == (
        TREE["large"][6000000:6000777])
    run(bucket, rclone, "moveto", f"{remote}/a.txt", f"{remote}/renamed", **env)
    run(bucket, rclone, "purge", f"{remote}/dir", **env)
    run(bucket, rclone, "deletefile", f"{remote}/large", **env)
    assert at_origin(bucket) == {"renamed": TREE["a.txt"]}


def test_rclone_and_s5cmd_take_opaque_etags(node, source):
    """Clients that compare ETags with the MD5 of what they sent see that a bucket with etag=opaque promises none."""
    name = harness.random_name("opaque")
    node.cli("bucket", "create", name, "etag=opaque")
    env, here = rclone_of(node), types.SimpleNamespace(node=node)
    for rclone in RCLONES.values():
        run(here, program("rclone (scripts/clients)", rclone), "sync", source, f"n:{name}", **env)
        run(here, program("rclone (scripts/clients)", rclone), "check", "--download", source, f"n:{name}", **env)
    s5cmd = [program("s5cmd", harness.ROOT / ".deps/bin/s5cmd"), "--endpoint-url", node.endpoint]
    run(here, *s5cmd, "cp", "--part-size", "5", f"{source}/", f"s3://{name}/up/")
    assert run(here, *s5cmd, "cat", f"s3://{name}/up/large") == TREE["large"]


def test_s3cmd(bucket, source, tmp_path):
    access_key, secret_key = bucket.node.credentials
    host = bucket.node.endpoint.split("://")[1]
    scheme = ["--ssl", f"--ca-certs={bucket.node.ca}"] if bucket.node.ca else ["--no-ssl"]
    python, script = (harness.ROOT / ".deps/clients/bin" / name for name in ("python", "s3cmd"))
    s3cmd = [program("s3cmd of .deps/clients", python), script, f"--access_key={access_key}", f"--secret_key={secret_key}",
             f"--host={host}", f"--host-bucket={host}", *scheme, "--config=/dev/null", f"--region={harness.REGION}", "--no-progress",
             "--multipart-chunk-size-mb=5"]
    run(bucket, *s3cmd, "sync", f"{source}/", f"s3://{bucket.name}/up/")
    assert at_origin(bucket) == {"up/" + k: v for k, v in TREE.items()}
    assert len(run(bucket, *s3cmd, "ls", "--recursive", f"s3://{bucket.name}").decode().splitlines()) == len(TREE)
    (tmp_path / "out").mkdir()
    run(bucket, *s3cmd, "get", "--recursive", f"s3://{bucket.name}/up/", f"{tmp_path}/out/")
    assert read_tree(tmp_path / "out") == TREE
    (tmp_path / "rest").write_bytes(TREE["large"][:6000000])  # it asks for what is missing
    run(bucket, *s3cmd, "get", "--continue", f"s3://{bucket.name}/up/large", tmp_path / "rest")
    assert (tmp_path / "rest").read_bytes() == TREE["large"]
    assert b"MD5 sum" in run(bucket, *s3cmd, "info", f"s3://{bucket.name}/up/a.txt")
    run(bucket, *s3cmd, "mv", f"s3://{bucket.name}/up/a.txt", f"s3://{bucket.name}/moved")
    run(bucket, *s3cmd, "--signature-v2", "put", source / "a.txt", f"s3://{bucket.name}/older")
    run(bucket, *s3cmd, "del", "--recursive", "--force", f"s3://{bucket.name}/up/")
    assert at_origin(bucket) == {"moved": TREE["a.txt"], "older": TREE["a.txt"]}


S3A_SITE = """<configuration>
<property><name>fs.s3a.endpoint</name><value>{endpoint}</value></property>
<property><name>fs.s3a.endpoint.region</name><value>us-east-1</value></property>
<property><name>fs.s3a.path.style.access</name><value>true</value></property>
<property><name>fs.s3a.connection.ssl.enabled</name><value>{tls}</value></property>
<property><name>fs.s3a.access.key</name><value>{keys[0]}</value></property>
<property><name>fs.s3a.secret.key</name><value>{keys[1]}</value></property>
<property><name>fs.s3a.multipart.size</name><value>5M</value></property>
<property><name>fs.s3a.multipart.threshold</name><value>5M</value></property>
<property><name>fs.s3a.attempts.maximum</name><value>1</value></property>
</configuration>
"""
S3A_LOG = """log4j.rootLogger=ERROR, e
log4j.appender.e=org.apache.log4j.ConsoleAppender
log4j.appender.e.target=System.err
log4j.appender.e.layout=org.apache.log4j.PatternLayout
"""


@pytest.mark.parametrize("bucket", ["mirror", "mirror-tls"], indirect=True)  # it takes six times as long as the others
def test_s3a(bucket, source, tmp_path):
    """What Spark and Hadoop reach S3 by, with Amazon's SDK for Java: bodies in signed chunks, for which it waits for 100 Continue;
    directories are objects whose names end in a slash; renaming is copying, of large files in parts."""
    site = tmp_path / "site"
    site.mkdir()
    tls, more = "true" if bucket.node.ca else "false", {}
    (site / "core-site.xml").write_text(S3A_SITE.format(endpoint=bucket.node.endpoint, keys=bucket.node.credentials, tls=tls))
    (site / "log4j.properties").write_text(S3A_LOG)
    fs = [program("S3A", harness.ROOT / ".deps/s3a/run"), site]
    if bucket.node.ca:
        run(bucket, "keytool", "-importcert", "-noprompt", "-alias", "node", "-storepass", "changeit", "-file", bucket.node.ca,
            "-keystore", tmp_path / "trusted")
        more["JAVA_TOOL_OPTIONS"] = f"-Djavax.net.ssl.trustStore={tmp_path}/trusted -Djavax.net.ssl.trustStorePassword=changeit"
    at = f"s3a://{bucket.name}"

    def files():
        return {key: data for key, data in at_origin(bucket).items() if data or not key.endswith("/")}

    run(bucket, *fs, "-put", source, f"{at}/up", **more)
    assert files() == {"up/" + k: v for k, v in TREE.items()}
    assert bucket.truth.head_object(Bucket=bucket.name, Key="up/large")["ETag"].endswith('-3"')
    listed = run(bucket, *fs, "-ls", "-R", f"{at}/up", **more).decode().splitlines()
    assert len([line for line in listed if line.startswith("-")]) == len(TREE) and any("d\u00fc.bin" in line for line in listed)
    run(bucket, *fs, "-get", f"{at}/up", tmp_path / "out", **more)
    assert read_tree(tmp_path / "out") == TREE
    assert run(bucket, *fs, "-tail", f"{at}/up/large", **more) == TREE["large"][-1024:]
    run(bucket, *fs, "-mv", f"{at}/up/dir", f"{at}/up/large", f"{at}/up/a.txt", f"{at}/", **more)
    assert files() == TREE
    run(bucket, *fs, "-rm", "-r", "-skipTrash", f"{at}/dir", f"{at}/large", f"{at}/up", **more)
    assert at_origin(bucket) == {"a.txt": TREE["a.txt"]}


PYARROW = """
import json, sys
import pyarrow, pyarrow.fs, pyarrow.parquet
how = json.load(sys.stdin)
fs = pyarrow.fs.S3FileSystem(access_key=how["access_key"], secret_key=how["secret_key"], region="us-east-1", scheme=how["scheme"],
                             endpoint_override=how["host"], tls_ca_file_path=how["ca"], allow_bucket_creation=False)
pyarrow.fs.copy_files(how["source"], how["bucket"] + "/up", destination_filesystem=fs)
infos = fs.get_file_info(pyarrow.fs.FileSelector(how["bucket"] + "/up", recursive=True))
assert sorted(i.path.split("/up/")[1] for i in infos if i.is_file) == how["names"], infos
pyarrow.fs.copy_files(how["bucket"] + "/up", how["out"], source_filesystem=fs)
with fs.open_input_file(how["bucket"] + "/up/large") as f:
    assert f.size() == how["size"]
    f.seek(6000000)
    part = f.read(777)
    open(how["out"] + ".part", "wb").write(part)
table = pyarrow.table({"n": list(range(200000)), "text": [str(i % 97) for i in range(200000)]})
pyarrow.parquet.write_table(table, how["bucket"] + "/t.parquet", filesystem=fs)
again = pyarrow.parquet.read_table(how["bucket"] + "/t.parquet", filesystem=fs, columns=["n"], filters=[("n", ">=", 199990)])
assert again["n"].to_pylist() == list(range(199990, 200000))
fs.delete_dir(how["bucket"] + "/up")
fs.delete_file(how["bucket"] + "/t.parquet")
"""

S3FS = """
import json, sys
import s3fs
how = json.load(sys.stdin)
fs = s3fs.S3FileSystem(key=how["access_key"], secret=how["secret_key"], endpoint_url=how["endpoint"], default_block_size=5 << 20,
                       client_kwargs={"verify": how["ca"]})
up = how["bucket"] + "/up"
fs.put(how["source"] + "/", up + "/", recursive=True)
assert sorted(p.split("/up/")[1] for p in fs.find(up)) == how["names"], fs.find(up)
fs.get(up + "/", how["out"], recursive=True)
open(how["out"] + ".part", "wb").write(fs.cat_file(up + "/large", start=6000000, end=6000777))
with fs.open(up + "/written", "wb") as f:
    for i in range(3):
        f.write(b"w" * (4 << 20))
with fs.open(up + "/written", "rb") as f:
    f.seek(-10, 2)
    assert f.read() == b"w" * 10 and f.tell() == 12 << 20
fs.mv(up + "/written", up + "/moved")
assert fs.info(up + "/moved")["size"] == 12 << 20 and not fs.exists(up + "/written")
fs.rm(up, recursive=True)
"""

TORCH = """
import json, sys, pathlib
from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client
how = json.load(sys.stdin)
client = MountpointS3Client(region="us-east-1", user_agent_prefix="test", throughput_target_gbps=1.0, part_size=5 << 20,
                            endpoint=how["endpoint"], force_path_style=True)
for name in how["names"]:
    data = pathlib.Path(how["source"], name).read_bytes()
    writer = client.put_object(how["bucket"], "up/" + name)
    for at in range(0, len(data), 1 << 20):
        writer.write(data[at:at + (1 << 20)])
    writer.close()
found = [o.key for page in client.list_objects(how["bucket"], prefix="up/") for o in page.object_info]
assert sorted(k[3:] for k in found) == how["names"], found
for name in how["names"]:
    path = pathlib.Path(how["out"], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(client.get_object(how["bucket"], "up/" + name)))
part = b"".join(client.get_object(how["bucket"], "up/large", start=6000000, end=6000777))
open(how["out"] + ".part", "wb").write(part)
assert client.head_object(how["bucket"], "up/large").size == how["size"]
for name in how["names"]:
    client.delete_object(how["bucket"], "up/" + name)
"""


def run_python(bucket, tmp_path, script, **more):
    """A script in a process of its own, with its own versions of what it needs."""
    access_key, secret_key = bucket.node.credentials
    python = program("the venv of .deps/clients", harness.ROOT / ".deps/clients/bin/python")
    scheme, host = bucket.node.endpoint.split("://")
    how = {"access_key": access_key, "secret_key": secret_key, "endpoint": bucket.node.endpoint, "scheme": scheme, "host": host,
           "ca": bucket.node.ca, "bucket": bucket.name, "out": str(tmp_path / "out"), "names": sorted(TREE),
           "size": len(TREE["large"]), **more}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": access_key,
           "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_EC2_METADATA_DISABLED": "true", "LANG": "C.UTF-8",
           **({"SSL_CERT_FILE": bucket.node.ca} if bucket.node.ca else {})}
    done = subprocess.run([python, "-c", script], input=json.dumps(how), env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", [PYARROW, S3FS, TORCH], ids=["pyarrow", "s3fs", "s3torchconnector"])
def test_python_clients(bucket, source, tmp_path, script):
    (tmp_path / "out").mkdir()
    run_python(bucket, tmp_path, script, source=str(source))
    assert read_tree(tmp_path / "out") == TREE
    assert (tmp_path / "out.part").read_bytes() == TREE["large"][6000000:6000777]
    assert at_origin(bucket) == {}


CRT = """
import json, sys
import awscrt.s3, botocore.config, botocore.session, s3transfer.crt
how = json.load(sys.stdin)
session = botocore.session.Session()
keys = s3transfer.crt.BotocoreCRTCredentialsWrapper(session.get_credentials())
requests = s3transfer.crt.BotocoreCRTRequestSerializer(session, {"region_name": "us-east-1", "endpoint_url": how["endpoint"],
                                                                "config": botocore.config.Config(s3={"addressing_style": "path"})})
client = s3transfer.crt.create_s3_crt_client("us-east-1", keys.to_crt_credentials_provider(), part_size=5 << 20, num_threads=2,
                                             use_ssl=how["endpoint"].startswith("https://"), verify=how["ca"])
with s3transfer.crt.CRTTransferManager(client, requests) as manager:
    for sent in [manager.upload(how["source"] + "/" + name, how["bucket"], name) for name in how["names"]]:
        sent.result()
    for i, got in enumerate([manager.download(how["bucket"], name, how["out"] + "/" + str(i)) for i, name in enumerate(how["names"])]):
        got.result()
    manager.delete(how["bucket"], "a.txt").result()
"""


def test_the_crt_client_of_boto3(bucket, source, tmp_path):
    """What boto3 calls its CRT transfer client, at the node: parts and ranges of a large object side by side, with checksums. boto3 itself
    (preferred_transfer_client="crt") takes neither an endpoint nor an authority along."""
    (tmp_path / "out").mkdir()
    run_python(bucket, tmp_path, CRT, source=str(source))
    for i, name in enumerate(sorted(TREE)):
        assert (tmp_path / "out" / str(i)).read_bytes() == TREE[name]
    assert at_origin(bucket) == {name: data for name, data in TREE.items() if name != "a.txt"}
    kept = bucket.s3.head_object(Bucket=bucket.name, Key="large", ChecksumMode="ENABLED")
    assert kept["ETag"].endswith('-3"') and kept["ChecksumCRC32"].endswith("-3")


DUCKDB = """
import glob, json, os, pathlib, sys
import duckdb, duckdb_extension_httpfs
how = json.load(sys.stdin)
db = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
db.load_extension(glob.glob(os.path.dirname(duckdb_extension_httpfs.__file__) + "/extensions/*/httpfs.duckdb_extension")[0])
db.execute(f"CREATE SECRET (TYPE s3, KEY_ID '{how['access_key']}', SECRET '{how['secret_key']}', REGION 'us-east-1', "
           f"ENDPOINT '{how['host']}', URL_STYLE 'path', USE_SSL {how['scheme'] == 'https'})")
if how["ca"]:
    db.execute(f"SET ca_cert_file = '{how['ca']}'")
    db.execute("SET enable_server_cert_verification = true")
at = "s3://" + how["bucket"]
for name, content in db.execute(f"SELECT filename, content FROM read_blob('{at}/up/**')").fetchall():
    path = pathlib.Path(how["out"], name.split("/up/")[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
db.execute("CREATE TABLE t AS SELECT range AS n, md5(range::VARCHAR) AS text, range % 3 AS part FROM range(500000)")
db.execute(f"COPY t TO '{at}/t.parquet' (ROW_GROUP_SIZE 50000)")
db.execute(f"COPY t TO '{at}/parted' (FORMAT csv, PARTITION_BY (part))")
some = "SELECT count(*), min(text), max(n) FROM {} WHERE n >= 499000"
expected = db.execute(some.format("t")).fetchone()
assert db.execute(some.format(f"'{at}/t.parquet'")).fetchone() == expected
assert db.execute(some.format(f"read_csv('{at}/parted/*/*.csv', hive_partitioning = true)")).fetchone() == expected
assert db.execute(f"SELECT count(*) FROM glob('{at}/parted/part=1/*')").fetchone() == (1,)
"""


def test_duckdb(bucket, tmp_path):
    """Globs, whole objects, Parquet by ranges of it, and tables written in parts; it removes nothing."""
    for name, data in TREE.items():
        bucket.s3.put_object(Bucket=bucket.name, Key=f"up/{name}", Body=data)
    (tmp_path / "out").mkdir()
    run_python(bucket, tmp_path, DUCKDB)
    assert read_tree(tmp_path / "out") == TREE
    found = at_origin(bucket)
    assert found["t.parquet"][:4] == found["t.parquet"][-4:] == b"PAR1" and len(found["t.parquet"]) > 2 * PART
    assert sum(body.count(b"\n") for key, body in found.items() if key.startswith("parted/part=")) == 500_003
