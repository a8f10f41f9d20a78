"""Modes, owners, times and symbolic links of a scratch bucket's files: to origins and back, by export and import."""

import json
import os
import stat

import pytest

import harness
import origins
from test_jobs_export import settings

IS_ROOT = os.geteuid() == 0
BEFORE = 1_234_567_890  # long ago, and never the time of a test


def make_tree(root):
    """A tree with what tools leave behind: odd modes, other owners, times to the nanosecond, links that lead nowhere."""
    (root / "d/deep").mkdir(parents=True)
    (root / "d/private").mkdir()
    for name, data, mode in [("d/report", b"report" * 1000, 0o640), ("d/deep/secret", b"s" * 70_000, 0o400),
                             ("d/run.sh", b"#!/bin/sh\n", 0o755), ("d/empty", b"", 0o600), ("top", b"t", 0o604)]:
        (root / name).write_bytes(data)
        os.chmod(root / name, mode)
    os.symlink("deep/secret", root / "d/link")
    os.symlink("../../nowhere/ü", root / "d/deep/lost")
    for name, mode in [("d/deep", 0o555), ("d/private", 0o700), ("d", 0o2750)]:
        os.chmod(root / name, mode)
    if IS_ROOT:
        for i, name in enumerate(["d/report", "d/link", "d/deep/secret", "d/private", "d"]):
            os.chown(root / name, 4000 + i, 5000 + i, follow_symlinks=False)
        os.chmod(root / "d", 0o2750)  # the bit goes with a change of owner
    for i, path in enumerate(sorted(root.rglob("*"), reverse=True)):  # what lies in a directory before it
        os.utime(path, ns=(0, BEFORE * 10**9 + i * 1_000_000_007), follow_symlinks=False)


def tree_of(root):
    """{path: what it is} of all but the manifests of exports."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.name.startswith(".forebay-export-"):
            continue
        s = path.lstat()
        is_link, is_dir = stat.S_ISLNK(s.st_mode), stat.S_ISDIR(s.st_mode)
        data = os.readlink(path) if is_link else None if is_dir else path.read_bytes()
        found[str(path.relative_to(root))] = (oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, data)
    return found


def run(node, *arguments):
    job = json.loads(node.cli(*arguments, "--wait", "--json").stdout)
    assert (job["state"], job["failed_objects"], job["modes_lost"]) == ("done", 0, 0), job
    return job


@pytest.fixture
def folders(tmp_path):
    """Directories a, b, c."""
    made = [tmp_path / name for name in "abc"]
    for path in made:
        path.mkdir()
    return made


def test_a_tree_goes_to_a_directory_and_back(node, folders):
    """A tree of files is imported into a scratch bucket and exported to another directory: everything of it is the same
    there. A second run of both moves nothing."""
    a, b, _ = folders
    make_tree(a)
    name = harness.scratch_bucket(node)
    first = run(node, "import", f"file://{a}", name)
    run(node, "export", name, f"file://{b}")
    assert tree_of(b) == tree_of(a)
    again = run(node, "import", f"file://{a}", name)
    assert again["skipped_objects"] == again["done_objects"] == first["done_objects"] == len(tree_of(a))
    inodes = {p: p.lstat().st_ino for p in b.rglob("*")}
    run(node, "export", name, f"file://{b}")
    assert {p: p.lstat().st_ino for p in inodes} == inodes and tree_of(b) == tree_of(a)


def test_a_tree_goes_to_a_service_and_back(node, origin, folders):
    """The same by way of an S3 bucket, where modes, owners and times are metadata and a link is an object whose bytes are its
    target."""
    a, b, _ = folders
    make_tree(a)
    name, other, there = harness.scratch_bucket(node), harness.scratch_bucket(node), origin.new_bucket()
    truth = origin.s3()
    run(node, "import", f"file://{a}", name)
    run(node, "export", *settings(origin), name, f"s3://{there}/out")
    found = (a / "d/report").stat()
    meta = truth.head_object(Bucket=there, Key="out/d/report")["Metadata"]
    assert meta == {"mode": str(found.st_mode), "uid": str(found.st_uid), "gid": str(found.st_gid),
                    "mtime": f"{found.st_mtime_ns // 10**9}.{found.st_mtime_ns % 10**9:09}"}
    link = truth.get_object(Bucket=there, Key="out/d/link")
    assert (link["Body"].read(), link["Metadata"]["mode"]) == (b"deep/secret", str(0o120777))
    assert truth.head_object(Bucket=there, Key="out/d/private/")["Metadata"]["mode"] == str(0o40700)
    run(node, "import", *settings(origin), f"s3://{there}/out", other)
    run(node, "export", other, f"file://{b}")
    assert tree_of(b) == tree_of(a)
    assert node.s3().head_object(Bucket=other, Key="d/report")["Metadata"] == {}  # they are the inode's now


def test_modes_that_changed_alone_go_without_the_bytes(node, origin, folders):
    """A file whose mode changed, and nothing else, is the same file at the target with the new mode; so is an object of a
    service."""
    a, b, _ = folders
    make_tree(a)
    name, there, truth = harness.scratch_bucket(node), origin.new_bucket(), origin.s3()
    run(node, "import", f"file://{a}", name)
    run(node, "export", name, f"file://{b}")
    run(node, "export", *settings(origin), name, f"s3://{there}")
    inode = (b / "top").stat().st_ino
    written = node.metric("forebay_written_bytes_total", bucket=name)
    os.chmod(a / "top", 0o444)
    os.chmod(a / "d/private", 0o711)
    run(node, "import", f"file://{a}", name)
    assert node.metric("forebay_written_bytes_total", bucket=name) == written
    run(node, "export", name, f"file://{b}")
    assert tree_of(b) == tree_of(a) and (b / "top").stat().st_ino == inode
    run(node, "export", *settings(origin), name, f"s3://{there}")
    assert truth.head_object(Bucket=there, Key="top")["Metadata"]["mode"] == str(0o100444)
    assert truth.head_object(Bucket=there, Key="d/private/")["Metadata"]["mode"] == str(0o40711)


def test_links_and_files_take_each_others_place(node, folders):
    """A link where a file was, and a file where a link was, replace each other both ways."""
    a, b, _ = folders
    (a / "x").write_bytes(b"x")
    os.symlink("x", a / "y")
    name = harness.scratch_bucket(node)
    run(node, "import", f"file://{a}", name)
    run(node, "export", name, f"file://{b}")
    os.unlink(a / "x")
    os.unlink(a / "y")
    (a / "y").write_bytes(b"y")
    os.symlink("y", a / "x")
    run(node, "import", f"file://{a}", name)
    run(node, "export", name, f"file://{b}")
    assert tree_of(b) == tree_of(a)


def test_no_file_gets_the_rights_of_another(node, folders):
    """Set-user-ID and set-group-ID bits of files stay behind."""
    a, b, _ = folders
    (a / "su").write_bytes(b"su")
    os.chmod(a / "su", 0o6755)
    name = harness.scratch_bucket(node)
    run(node, "import", f"file://{a}", name)
    run(node, "export", name, f"file://{b}")
    assert stat.S_IMODE((b / "su").stat().st_mode) == 0o755


def test_a_tree_goes_to_a_server_of_files(node, work, folders):
    """nfs:// keeps modes, owners and times (to the microsecond) and no links: those are listed with the reason. What the
    server does not let be given is counted."""
    reason = origins.Ganesha.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    a, b, _ = folders
    make_tree(a)
    name, other = harness.scratch_bucket(node), harness.scratch_bucket(node)
    run(node, "import", f"file://{a}", name)
    with origins.Ganesha(work / harness.random_name("nfs")) as server:
        server.make_folder("all")
        server.make_folder("own")
        os.chown(server.data / "own", 3000, 3000)
        flags = [x for n, v in server.properties().items() for x in ("--set", f"{n}={v}")]
        done = node.cli("export", "--wait", "--json", *flags, name, server.url("all"), check=False)
        job = json.loads(done.stdout)
        assert (done.returncode, job["failed_objects"], job["modes_lost"]) == (3, 2, 0)
        reasons = json.loads(node.cli("job", "errors", job["id"], "--json").stdout)
        assert [x["key"] for x in reasons] == ["d/deep/lost", "d/link"]
        assert all("symbolic link" in x["reason"] for x in reasons)
        wanted = {k: (*v[:3], v[3] // 1000 * 1000, v[4]) for k, v in tree_of(a).items() if k not in ("d/deep/lost", "d/link")}
        assert tree_of(server.data / "all") == wanted
        run(node, "import", *flags, server.url("all"), other)
        run(node, "export", other, f"file://{b}")
        assert tree_of(b) == wanted
        done = node.cli("export", "--wait", "--json", *flags, "--set", "origin.uid=3000", "--set", "origin.gid=3000",
                        "--include", "d/report", name, server.url("own"), check=False)
        job = json.loads(done.stdout)
        assert (done.returncode, job["done_objects"], job["modes_lost"]) == (0, 1, 1)
        there = (server.data / "own/d/report").stat()
        assert (there.st_uid, stat.S_IMODE(there.st_mode)) == (3000, 0o640)
