"""Mounts of scratch buckets by another uid than the node's, with a key, through the node's Unix socket.

The node gives such a mount no file, knows its uid from the kernel and checks permissions itself.
"""

import ctypes
import fcntl
import json
import os
import pathlib
import platform
import shutil
import stat
import struct
import subprocess
import tempfile
import threading
import time

import pytest

import harness
import restarted
import walked
from test_scratch_crash import check_store
from test_scratch_faults import (NEEDS_MTAB, as_nobody, descriptors_below, do_as_nobody, fuse_for_all,  # noqa: F401
                                 mounted_with_keys)
from test_scratch_mount import NOBODY, libc
from test_scratch_walk import WALK_SECONDS, ManyWalk, compare_with_s3

MIB = 1 << 20


def open_the_way(node):
    """What an administrator does who lets others reach the socket."""
    for path in pathlib.Path(node.socket_path).parents:
        if os.stat(path).st_mode & 0o777 == 0o700:
            os.chmod(path, 0o711)
    os.chmod(node.socket_path, 0o666)


@pytest.fixture
def shared(node, new_mount, scratch):
    """A scratch bucket of a node of root, which root mounts, too, and whose root directory is everybody's."""
    open_the_way(node)
    root = new_mount(node, scratch)
    os.chmod(root.path, 0o1777)
    return root


@pytest.fixture
def ours(as_nobody, node, scratch, shared):  # noqa: F811
    with mounted_with_keys(as_nobody, node, scratch, scratch, socket_path=node.socket_path) as one:
        yield one


ORDINARY = """
import errno, fcntl, json, mmap
os.chdir(sys.argv[1])
MIB = 1 << 20
body = bytes(range(256)) * 4096 * 3
with open("f", "wb") as f:
    f.write(body)
    f.flush()
    os.fsync(f.fileno())
assert open("f", "rb").read() == body
os.rename("f", "g")
with open("g", "r+b") as f:
    with mmap.mmap(f.fileno(), 0) as m:
        assert m[:] == body
        m[5:10] = b"store"
        m.flush()
    os.fsync(f.fileno())
    assert os.pread(f.fileno(), 5, 5) == b"store"
    f.truncate(100)
assert os.stat("g").st_size == 100 and open("g", "rb").read() == body[:5] + b"store" + body[10:100]
for i in range(3):
    with open("log", "ab", 0) as f:
        f.write(b"line %d\\n" % i)
        f.write(b"more\\n")
assert open("log", "rb").read() == b"".join(b"line %d\\nmore\\n" % i for i in range(3))
fd = os.open("holes", os.O_RDWR | os.O_CREAT, 0o600)
os.pwrite(fd, b"x" * MIB, 4 * MIB)
assert os.lseek(fd, 0, os.SEEK_DATA) == 4 * MIB and os.lseek(fd, 4 * MIB, os.SEEK_HOLE) == 5 * MIB
try:
    os.lseek(fd, 5 * MIB, os.SEEK_DATA)
    print("found data beyond the end")
except OSError as e:
    assert e.errno == errno.ENXIO
os.posix_fallocate(fd, 0, 6 * MIB)
os.fsync(fd)
assert os.fstat(fd).st_size == 6 * MIB and os.fstat(fd).st_blocks * 512 >= 6 * MIB
os.pwrite(fd, b"", 0)
assert os.copy_file_range(fd, os.open("copy", os.O_RDWR | os.O_CREAT), MIB, 4 * MIB) == MIB
os.close(fd)
assert open("copy", "rb").read() == b"x" * MIB
fd = os.open("made", os.O_WRONLY | os.O_CREAT, 0o444)  # as git makes objects
os.write(fd, b"for reading")
os.close(fd)
assert open("made").read() == "for reading"
fd = os.open("removed", os.O_RDWR | os.O_CREAT)
os.unlink("removed")
os.write(fd, b"still there")
assert os.pread(fd, 100, 0) == b"still there" and os.fstat(fd).st_nlink == 0
os.close(fd)
os.mkdir("d", 0o750)
os.symlink("g", "l")
os.link("g", "d/h")
assert os.stat("l").st_ino == os.stat("d/h").st_ino and os.stat("g").st_nlink == 2
os.setxattr("g", "user.a", b"value")
assert os.getxattr("g", "user.a") == b"value" and os.listxattr("g") == ["user.a"]
os.utime("g", ns=(5, 7))
assert os.stat("g").st_mtime_ns == 7
os.chmod("g", 0o640)
with open("log", "r+b") as f:
    fcntl.lockf(f, fcntl.LOCK_EX)
    fcntl.flock(f, fcntl.LOCK_EX)
print(json.dumps(sorted(os.listdir("."))))
"""


@NEEDS_MTAB
def test_ordinary_work(node, shared, ours, scratch):
    """Another uid than the node's mounts a scratch bucket with a key and fusermount3, is told that there is no passthrough, never
    has a file of the node, and does what programs do: writes, appends, maps, renames, truncates, holes, links, attributes, locks.
    Root sees the files with their owner and their bytes, and S3 does. (Seen to fail before there was TREE_READ.)"""
    assert "no passthrough: the node at" in ours.log()
    names = json.loads(do_as_nobody(ORDINARY, ours.path))
    assert names == ["copy", "d", "g", "holes", "l", "log", "made"]
    for pid in (ours.pid, ours.serving()):
        assert not descriptors_below(pid, node.data), pid
    for name in names:
        found = os.lstat(shared.path / name)
        assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY), name
    assert stat.S_IMODE(os.stat(shared.path / "d").st_mode) == 0o750
    assert (shared.path / "copy").read_bytes() == b"x" * MIB
    assert node.s3().get_object(Bucket=scratch, Key="log")["Body"].read() == (shared.path / "log").read_bytes()
    (shared.path / "log").write_bytes(b"by root")
    (shared.path / "fresh").write_bytes(b"a new one")
    assert do_as_nobody("os.chdir(sys.argv[1]); print(open('fresh').read())", ours.path) == "a new one"
    read = "os.chdir(sys.argv[1]); print(open('log').read())"
    harness.wait_until(lambda: do_as_nobody(read, ours.path) == "by root", 60, "read what root has written")


@NEEDS_MTAB
def test_a_part_of_a_bucket_that_comes_again(as_nobody, node, shared, scratch):  # noqa: F811
    """The directory that is mounted goes with its last key; what has its name after that is what the mount shows, although the node does
    not tell it of changes. (tree_find_root_again in tree_op_getattr, mount/tree_attr.c.)"""
    s3, socket_path = node.s3(), node.socket_path
    s3.put_object(Bucket=scratch, Key="a/b/c", Body=b"old")
    with mounted_with_keys(as_nobody, node, f"{scratch}/a/b", scratch, socket_path=socket_path) as one:
        names = "print(*os.listdir(sys.argv[1]))"
        assert do_as_nobody(names, one.path) == "c"
        s3.delete_object(Bucket=scratch, Key="a/b/c")
        exists = "print(os.path.exists(sys.argv[1]))"
        harness.wait_until(lambda: do_as_nobody(exists, one.path / "c") == "False", what="a removed file to be gone")
        s3.put_object(Bucket=scratch, Key="a/b/d", Body=b"new")
        harness.wait_until(lambda: do_as_nobody(exists, one.path / "d") == "True", what="a file in the new directory")
        assert do_as_nobody(names, one.path) == "d"
        assert do_as_nobody("print(open(sys.argv[1]).read())", one.path / "d") == "new"


REFUSED = """
import errno, json, socket, stat
os.chdir(sys.argv[1])
said = {}
def attempt(name, do):
    try:
        do()
        said[name] = "done"
    except OSError as e:
        said[name] = errno.errorcode[e.errno]
attempt("read", lambda: open("secret").read())
attempt("write", lambda: open("secret", "r+"))
attempt("write what can be read", lambda: open("public", "r+"))
attempt("truncate", lambda: os.truncate("public", 0))
attempt("chmod", lambda: os.chmod("public", 0o666))
attempt("chown", lambda: os.chown("public", os.getuid(), -1))
attempt("utime", lambda: os.utime("public", ns=(1, 1)))
attempt("setxattr", lambda: os.setxattr("public", "user.a", b"b"))
attempt("unlink in a sticky directory", lambda: os.unlink("public"))
attempt("rename in a sticky directory", lambda: os.rename("public", "mine"))
attempt("list", lambda: os.listdir("closed"))
attempt("pass", lambda: open("closed/inside").read())
attempt("make", lambda: open("closed/new", "w"))
attempt("remove", lambda: os.unlink("closed/inside"))
open("own", "w").close()
attempt("give away", lambda: os.chown("own", 0, 0))
attempt("device", lambda: os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
attempt("trusted", lambda: os.setxattr("own", "trusted.a", b"b"))
print(json.dumps(said))
"""


@NEEDS_MTAB
def test_what_is_not_theirs(shared, ours):
    """What a mode denies is denied, with the errno that POSIX names, and what only root may do is refused."""
    (shared.path / "secret").write_bytes(b"of root")
    os.chmod(shared.path / "secret", 0o600)
    (shared.path / "public").write_bytes(b"for all")
    os.chmod(shared.path / "public", 0o644)
    (shared.path / "closed").mkdir(mode=0o700)
    (shared.path / "closed" / "inside").write_bytes(b"x")
    said = json.loads(do_as_nobody(REFUSED, ours.path))
    owner = {"chmod", "chown", "utime", "unlink in a sticky directory", "rename in a sticky directory", "give away", "device",
             "trusted"}
    assert said == {name: "EPERM" if name in owner else "EACCES" for name in said}
    assert (shared.path / "public").read_bytes() == b"for all" and (shared.path / "secret").read_bytes() == b"of root"
    assert (shared.path / "closed" / "inside").exists()


@NEEDS_MTAB
def test_what_makes_it_run_as_its_owner_goes(shared, ours):
    """A write by who is not root takes set-user-ID from a file of root that everybody may write."""
    (shared.path / "tool").write_bytes(b"program")
    os.chmod(shared.path / "tool", 0o6777)
    do_as_nobody("os.chdir(sys.argv[1]); f = open('tool', 'r+b', 0); f.write(b'P')", ours.path)
    harness.wait_until(lambda: stat.S_IMODE(os.stat(shared.path / "tool").st_mode) == 0o777, 60, "lost its set-user-ID bit")
    assert (shared.path / "tool").read_bytes() == b"Program"


@NEEDS_MTAB
def test_roles_and_the_way(as_nobody, node, shared, scratch):  # noqa: F811
    """A reader's key writes nothing, another bucket is not mounted, and by TCP no scratch bucket is: each is told why."""
    (shared.path / "there").write_bytes(b"bytes")
    os.chmod(shared.path / "there", 0o666)
    with mounted_with_keys(as_nobody, node, scratch, scratch, role="reader", socket_path=node.socket_path) as one:
        code = """
os.chdir(sys.argv[1])
print(open("there").read())
for do in (lambda: open("there", "r+"), lambda: open("new", "w"), lambda: os.unlink("there"), lambda: os.mkdir("d"),
           lambda: os.chmod("there", 0o600)):
    try:
        do()
        print("done")
    except PermissionError:
        print("refused")
"""
        assert do_as_nobody(code, one.path).split("\n") == ["bytes"] + ["refused"] * 5
        wrapper, directory_of = as_nobody
        at = directory_of("mount-")
        other = harness.scratch_bucket(node)
        for where, bucket, words in ((["--socket", node.socket_path], other, "may not read from bucket"),
                                     (["--endpoint", node.wire_address], scratch, "through the node's Unix socket only")):
            done = subprocess.run([str(wrapper), "mount", *where, bucket, str(at)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=200, env={**os.environ, **one.node.env})
            assert done.returncode == 1 and words in done.stderr, done
    assert (shared.path / "there").read_bytes() == b"bytes"


WRITER = """
import os, sys
f = open(sys.argv[1], 'r+b', 0)
g = open(sys.argv[2], 'ab', 0)
h = open(sys.argv[3], 'w+b', 0)
os.unlink(sys.argv[3])
for line in sys.stdin:
    f.seek(0, 2)
    f.write(line.encode())
    g.write(line.encode())
    h.write(line.encode())
    h.seek(0)
    assert h.read().endswith(line.encode()) and h.tell() == f.tell()
    print(os.fstat(f.fileno()).st_size, os.pread(f.fileno(), 6, 0).decode().strip(), flush=True)
"""


@NEEDS_MTAB
def test_open_files_outlive_node_and_mount(node, shared, ours):
    """What is open for writing, also by a mode that would not let it be opened again, without a name, and for appending is written to
    after the process that serves the mount was killed, and after the node was. (Seen to fail where is_good, mount/tree_file.c, is
    true of whatever handle is held, and without stree_note_opened in stree_give, object/scratch_open.c.)"""
    do_as_nobody("os.chdir(sys.argv[1]); open('f', 'w').close(); open('g', 'w').close()", ours.path)
    process = subprocess.Popen(["/usr/bin/python3", "-c", WRITER, *(str(ours.path / name) for name in "fgh")], user=NOBODY,
                               group=NOBODY, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = []

    def tell(line):
        lines.append(line)
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline().split() == [str(len("".join(lines))), "first"]

    try:
        tell("first\n")
        do_as_nobody("os.chmod(sys.argv[1], 0o444)", ours.path / "f")
        before = ours.serving()
        os.kill(before, 9)
        harness.wait_until(lambda: ours.serving() not in (None, before), 200, "taken over")
        tell("second\n")
        node.kill()
        node.start()
        os.chmod(node.socket_path, 0o666)
        tell("third\n")
    finally:
        process.communicate(timeout=200)
    assert process.returncode == 0
    assert (shared.path / "f").read_text() == (shared.path / "g").read_text() == "".join(lines)


PROGRAMS = """
import sqlite3, subprocess
os.chdir(sys.argv[1])
os.environ["HOME"] = os.getcwd()
db = sqlite3.connect("db")
db.execute("create table t (a, b)")
for i in range(20):
    with db:
        db.executemany("insert into t values (?, ?)", [(i, "x" * 100)] * 10)
assert db.execute("select count(*) from t").fetchone() == (200,)
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
db.close()
def git(*argv):
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *argv], check=True, stdout=subprocess.DEVNULL)
git("init", "-q", "repo")
os.chdir("repo")
for i in range(20):
    with open(f"f{i}", "w") as f:
        f.write(str(i) * 1000)
git("add", ".")
git("commit", "-q", "-m", "all")
os.chdir("..")
git("clone", "-q", "repo", "other")
git("-C", "other", "fsck", "--strict")
print(open("other/f7").read() == "7" * 1000)
"""


@NEEDS_MTAB
@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_programs(ours):
    """SQLite and git do their work there."""
    assert do_as_nobody(PROGRAMS, ours.path) == "True"


@NEEDS_MTAB
def test_a_quota_holds(node, shared, ours, scratch):
    """The bucket's quota is the node's to keep: who writes beyond it gets EDQUOT, what fits is there, and what is removed can be
    written again. (Seen to fail without take_room in write_by, object/scratch_io.c.)"""
    node.cli("bucket", "set", scratch, f"quota={4 * MIB}")
    code = """
import errno
os.chdir(sys.argv[1])
done = 0
try:
    with open("f", "wb", 0) as f:
        for _ in range(64):
            done += f.write(b"x" * (256 << 10))
except OSError as e:
    print(errno.errorcode[e.errno])
print(done <= 4 << 20, done >= 3 << 20, os.stat("f").st_size == done)
os.unlink("f")
with open("f", "wb", 0) as f:
    f.write(b"x" * (1 << 20))
"""
    assert do_as_nobody(code, ours.path).split("\n") == ["EDQUOT", "True True True"]


STORES = """
import errno, mmap
os.chdir(sys.argv[1])
SIZE = 128 << 10  # written back by one request
fd = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, SIZE)
m = mmap.mmap(fd, SIZE)
for at in range(0, SIZE, 4096):
    m[at:at + 8] = at.to_bytes(8, "little")
said = []
for sync in (m.flush, lambda: os.fsync(fd)):
    try:
        sync()
        said.append("stored")
    except OSError as e:
        said.append(errno.errorcode[e.errno])
print(*said)
"""


@NEEDS_MTAB
def test_stores_that_find_no_room_are_told(node, shared, ours, scratch):
    """Of what is stored into a mapping beyond the quota msync says so, also where a part of what is written back at once did fit: the
    kernel takes a part that was written for all of it. (Seen to fail where write_at, mount/tree_remote.c, answers with the part.)"""
    node.cli("bucket", "set", scratch, "quota=64KiB")
    assert do_as_nobody(STORES, ours.path).split()[0] == "EDQUOT"


HOLDER = """
import fcntl, os, sys
f = open(sys.argv[1], "r+b", 0)
fcntl.lockf(f, fcntl.LOCK_EX)
g = open(sys.argv[2], "w+b", 0)
g.write(b"no name")
os.unlink(sys.argv[2])
print("has it", flush=True)
sys.stdin.readline()
print(os.pread(g.fileno(), 100, 0).decode(), flush=True)
"""


def is_locked(mount):
    """Without taking the lock for a moment, in which its owner might miss it."""
    with open(mount.path / "locked", "r+b") as f:
        query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, query))[0] != fcntl.F_UNLCK


@NEEDS_MTAB
def test_an_idle_mount_hears_that_the_node_was_restarted(node, shared, ours):
    """A program that has a lock, and a file without a name, and does nothing, has them again after the node was killed: the lock against
    other mounts, too. (Seen to fail without client_look in ask, client/client_watch.c.)"""
    do_as_nobody("os.chdir(sys.argv[1]); open('locked', 'w').close()", ours.path)
    os.chmod(shared.path / "locked", 0o666)
    holder = subprocess.Popen(["/usr/bin/python3", "-c", HOLDER, str(ours.path / "locked"), str(ours.path / "g")], user=NOBODY,
                              group=NOBODY, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "has it\n" and is_locked(shared)
        node.kill()
        node.start()
        os.chmod(node.socket_path, 0o666)
        harness.wait_until(lambda: is_locked(shared), 60, "the lock was taken again")
        said, _ = holder.communicate("\n", timeout=200)
        assert said == "no name\n"
    finally:
        holder.kill()
        holder.wait()
    harness.wait_until(lambda: not is_locked(shared), 60, "the lock went with its program")


GROWER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 0)
assert os.fstat(fd).st_size == 0
os.pwrite(fd, b"w" * 300000, 0)
print("written", flush=True)
sys.stdin.readline()
size = os.fstat(fd).st_size
print(size, os.pread(fd, 10, 299990), os.stat(sys.argv[1]).st_size)
"""


@NEEDS_MTAB
def test_a_file_is_as_large_as_it_was_while_the_node_is_away(node, shared, ours):
    """A program that asks how large a file is that it has written to, while the node is killed and started again, waits for the node, and
    is not told what it was before: the kernel would drop what lies behind that. (Seen to fail where get_attr, mount/tree_attr.c, tells
    what is remembered of a file whose bytes the node has.)"""
    writer = subprocess.Popen(["/usr/bin/python3", "-c", GROWER, str(ours.path / "written")], user=NOBODY, group=NOBODY, extra_groups=[],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "written\n"
        node.kill()
        time.sleep(2)  # what the kernel believes without asking is over
        writer.stdin.write("\n")
        writer.stdin.flush()
        time.sleep(1)  # it asks meanwhile
        node.start()
        os.chmod(node.socket_path, 0o666)
        said, _ = writer.communicate(timeout=200)
        assert said == f"300000 {b'w' * 10} 300000\n"
    finally:
        writer.kill()
        writer.wait()


@NEEDS_MTAB
def test_a_lock_stays_with_who_could_not_open_the_file_again(shared, ours):
    """When another process takes the mount over, the lock of a file whose mode was changed since is taken again, too. (Seen to fail
    where tree_relock, mount/tree_lock.c, gives up at the first EACCES.)"""
    (shared.path / "locked").write_bytes(b"x")
    os.chmod(shared.path / "locked", 0o666)
    holder = subprocess.Popen(["/usr/bin/python3", "-c", HOLDER, str(ours.path / "locked"), str(ours.path / "g")], user=NOBODY,
                              group=NOBODY, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "has it\n" and is_locked(shared)
        os.chmod(shared.path / "locked", 0o600)
        before = ours.serving()
        os.kill(before, 9)
        harness.wait_until(lambda: ours.serving() not in (None, before), 200, "taken over")
        do_as_nobody("os.stat(sys.argv[1])", ours.path)
        harness.wait_until(lambda: is_locked(shared), 60, "the lock was taken again")
        said, _ = holder.communicate("\n", timeout=200)
        assert said == "no name\n"
    finally:
        holder.kill()
        holder.wait()


@NEEDS_MTAB
@pytest.mark.parametrize("killed", [False, True], ids=["served", "taken-over"])
def test_the_way_is_opened_later(node, shared, ours, killed):
    """What a program asks for between a start of the node and the moment in which somebody opens the way to its new socket waits for
    that, also where another process takes the mount over meanwhile. (Seen to fail where EACCES of connect(2) is final in try_once,
    client/client_call.c, and where is_away, mount/mount.c, does not know it.)"""
    do_as_nobody("os.stat(sys.argv[1])", ours.path)
    node.kill()
    node.start()
    if killed:
        os.kill(ours.serving(), 9)
    opens = threading.Timer(1.5, os.chmod, (node.socket_path, 0o666))
    opens.start()
    try:
        do_as_nobody("os.chdir(sys.argv[1]); os.mkdir('d'); open('d/f', 'w').write('bytes')", ours.path)
    finally:
        opens.join()
    assert (shared.path / "d/f").read_text() == "bytes"


APPENDER = """
import os, sys
f = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for i in range(10**9):
    line = f"{sys.argv[2]} {i}\\n".encode()
    assert os.write(f, line) == len(line)
    if os.path.exists(sys.argv[3]):
        break
print(i + 1)
"""


@NEEDS_MTAB
def test_appends_while_the_node_is_killed(as_nobody, node, shared, ours, scratch, tmp_path):  # noqa: F811
    """Lines that programs of two mounts append to one file are there once each, in their order, however often the node was killed.
    (test_object_scratch_rights has what decides it, seen to fail.)"""
    do_as_nobody("os.chdir(sys.argv[1]); open('log', 'w').close()", ours.path)
    stop = pathlib.Path(ours.dir) / "stop"
    with mounted_with_keys(as_nobody, node, scratch, scratch, socket_path=node.socket_path) as other:
        writers = [subprocess.Popen(["/usr/bin/python3", "-c", APPENDER, str(at / "log"), str(i), str(stop)], user=NOBODY, group=NOBODY,
                                    extra_groups=[], stdout=subprocess.PIPE, text=True)
                   for i, at in enumerate((ours.path, ours.path, other.path, other.path))]
        try:
            for _ in range(6):
                time.sleep(0.4)
                node.kill()
                node.start()
                os.chmod(node.socket_path, 0o666)
            time.sleep(0.5)
            stop.touch()
            counts = [int(writer.communicate(timeout=200)[0]) for writer in writers]
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
    lines = (shared.path / "log").read_text().split("\n")[:-1]
    for i, count in enumerate(counts):
        assert [line for line in lines if line.startswith(f"{i} ")] == [f"{i} {k}" for k in range(count)]
    assert len(lines) == sum(counts)


class OpenNode(restarted.Node):
    def start(self):
        super().start()
        open_the_way(self)


class Killer(walked.Killer):
    """Begins before its walk, whose thread is another's. Of what has no name records and cells tell, whoever is killed."""

    def __init__(self, *args):
        super().__init__(*args)
        self.begun = threading.Event()

    def begin(self, walk):
        self.walk = walk
        self.begun.set()

    def kinds(self):
        return [self.kill_node, self.kill_serving, lambda: self.kill_node(meanwhile=self.kill_serving)]

    def run(self):
        self.begun.wait()
        super().run()

    def __exit__(self, *args):
        self.stopped.set()
        self.begun.set()
        return super().__exit__(*args)


CREDENTIALS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}  # setgroups, setresgid, setresuid: of one thread


def in_a_thread_of_nobody(do):
    def run():
        try:
            for number, args in zip(CREDENTIALS[platform.machine()], ((0, 0), (NOBODY,) * 3, (NOBODY,) * 3)):
                assert libc.syscall(*map(ctypes.c_long, (number, *args))) == 0
            result.append(do())
        except BaseException as error:
            result.append(error)

    result = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


@NEEDS_MTAB
@pytest.mark.skipif(platform.machine() not in CREDENTIALS, reason="needs the numbers of system calls")
@pytest.mark.timeout(WALK_SECONDS + 400)
@pytest.mark.parametrize("who", [("key",), ("key", "root")], ids="-".join)
def test_a_walk_while_node_and_mounts_are_killed(as_nobody, work, new_mount, who):  # noqa: F811
    """Random operations of another uid on many files through a mount with a key, and through one of root beside it, while the node and
    the processes of both are killed: no call fails, each is made once, what is open goes on, and in the end root and S3 have what the
    model says."""
    options = {"timeout": "120s", **({"attr_timeout": "0"} if len(who) > 1 else {})}
    with OpenNode(tempfile.mkdtemp(prefix="node-", dir=work)) as node:
        bucket, seed = harness.scratch_bucket(node), walked.seed_of("keys", *who)
        root = new_mount(node, bucket, allow_other=True, **options)
        os.chmod(root.path, 0o1777)
        os.chmod(root.dir, 0o711)
        if len(who) == 1:
            root.stop()
        with mounted_with_keys(as_nobody, node, bucket, bucket, socket_path=node.socket_path, **options) as ours:
            mounts = [ours, root][:len(who)]
            with Killer(node, mounts, seed) as killer:
                killer.start()
                walk, steps = in_a_thread_of_nobody(lambda: walk_of([one.path for one in mounts], seed, killer))
            print(f"{'-'.join(who)}: {steps} steps, {killer.kills} kills, no difference")
            compare_with_s3(node, bucket, walk)
        if len(who) == 1:
            root = new_mount(node, bucket)
        walk.tops = [root.path]
        for f in walk.files:
            f.top = root.path
        walk.finish()
        root.stop()
        node.stop()
        check_store(node)


def walk_of(tops, seed, killer):
    walk = ManyWalk(seed, tops, may_pass=len(tops) > 1)
    return walk, walk.run(WALK_SECONDS, killer)
