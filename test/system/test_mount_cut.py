"""The node is killed in the midst of a change that a program makes through a mount of a bucket with an origin: the program waits,
and is answered as if nothing had happened, with the change made once."""

import errno
import json
import pathlib
import random
import subprocess
import sys
import time

import pytest

import harness

pytestmark = pytest.mark.usefixtures("need_fuse")

CALL = """
import errno, json, os, sys
top, what, args = sys.argv[1], sys.argv[2], [tuple(x) if isinstance(x, list) else x for x in json.loads(sys.argv[3])]
os.chdir(top)
try:
    if what == "close":
        f = open(args[0], "wb", buffering=0)
        f.write(b"written")
        f.close()
    elif what == "noreplace":
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(-100, args[0].encode(), -100, args[1].encode(), 1) < 0:
            raise OSError(ctypes.get_errno(), "renameat2")
    else:
        getattr(os, what)(*args)
    print("done")
except OSError as e:
    print(errno.errorcode[e.errno])
"""


class Cut:
    """A bucket behind a shaper, its node, a mount of it, and a call of a program that the node does not survive."""

    def __init__(self, origin, node, new_shaper, new_mount, **properties):
        self.node, self.shaper, self.s3 = node, new_shaper(), origin.s3()
        self.bucket = self.node.new_bucket(origin, endpoint=self.shaper.endpoint, **properties)
        self.mount = new_mount(self.node, self.bucket, timeout="60s")
        self.path = self.mount.path

    def put(self, key, body=b""):
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def get(self, key):
        return self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def meta(self, key):
        return self.s3.head_object(Bucket=self.bucket, Key=key)["Metadata"]

    def keys(self):
        return {x["Key"] for x in self.s3.list_objects_v2(Bucket=self.bucket).get("Contents", [])}

    def program(self, what, *args):
        return subprocess.Popen([sys.executable, "-c", CALL, self.path, what, json.dumps(args)], stdout=subprocess.PIPE, text=True)

    def call(self, at, there, what, *args, meanwhile=None, answered=True):
        """Runs the call, and kills the node when the origin has got the request `at` ("PUT key") and `there` says that it is done,
        without an answer to the node; `answered` False: the origin refuses it until the node is killed. Gives what the call
        said in the end."""
        method, key = at.split()
        kind = {"kind": "stall", "for_": "1h"} if answered else {"kind": "status:503", "count": 1000}
        self.shaper.fault(match=f"{method} /{self.bucket}/{key}", **kind)
        program = self.program(what, *args)
        try:
            self.wait(there, at, answered)
            self.node.kill()
            self.shaper.reset()
            if meanwhile:
                meanwhile()
            self.node.start()
            said = program.communicate(timeout=120)[0].strip()
        finally:
            program.kill()
            program.communicate()
        time.sleep(1.1)  # for which names are believed
        return said

    def wait(self, there, at, answered):
        if answered:
            harness.wait_until(there, what=f"{at} at the origin", step=0.01)
        else:
            harness.wait_until(lambda: self.node.metric("forebay_origin_retries_total", bucket=self.bucket) > 0, what="it is refused")
            assert not there()


@pytest.fixture
def cut(origin, new_node, route, new_shaper, new_mount):
    return lambda **properties: Cut(origin, new_node(route=route), new_shaper, new_mount, **properties)


BOTH = pytest.mark.parametrize("answered", [True, False], ids=["done", "refused"])


@BOTH
def test_unlink(cut, answered):
    """A file that the origin has removed, and one that it has not, is gone, and unlink says so."""
    c = cut()
    c.put("f", b"bytes")
    c.put("g", b"other")
    assert c.call("DELETE f", lambda: c.keys() == {"g"}, "unlink", "f", answered=answered) == "done"
    assert c.keys() == {"g"} and not (c.path / "f").exists() and (c.path / "g").read_bytes() == b"other"


@BOTH
def test_mkdir(cut, answered):
    """A directory that the origin has, and one that it has not yet, is made, and mkdir says so; a second one is told of it."""
    c = cut()
    assert c.call("PUT d/", lambda: c.keys() == {"d/"}, "mkdir", "d", answered=answered) == "done"
    assert c.keys() == {"d/"} and (c.path / "d").is_dir()
    assert c.program("mkdir", "d").communicate(timeout=60)[0].strip() == "EEXIST"
    (c.path / "d/f").write_bytes(b"inside")
    assert c.get("d/f") == b"inside"


@BOTH
def test_rmdir(cut, answered):
    """A directory whose marker the origin has removed, or not, is gone, and rmdir says so."""
    c = cut()
    c.put("d/")
    assert c.call("DELETE d/", lambda: c.keys() == set(), "rmdir", "d", answered=answered) == "done"
    assert c.keys() == set() and not (c.path / "d").exists()


@pytest.mark.parametrize("call", ["rename", "noreplace"])
@pytest.mark.parametrize("at", ["PUT new", "DELETE old"])
@BOTH
def test_rename(cut, call, at, answered):
    """A file is under its new name alone, whether the origin had copied it, or not, or removed the old one."""
    c = cut()
    c.put("old", b"bytes")
    done = {"PUT new": {"old", "new"}, "DELETE old": {"new"}}[at]
    assert c.call(at, lambda: c.keys() == done, call, "old", "new", answered=answered) == "done"
    assert c.keys() == {"new"} and c.get("new") == b"bytes"
    assert (c.path / "new").read_bytes() == b"bytes" and not (c.path / "old").exists()


@BOTH
def test_rename_over_a_file(cut, answered):
    """What is replaced is gone, and what replaced it is there once."""
    c = cut()
    c.put("old", b"bytes")
    c.put("new", b"what was there")
    assert (c.path / "new").read_bytes() == b"what was there"
    assert c.call("PUT new", lambda: c.get("new") == b"bytes", "rename", "old", "new", answered=answered) == "done"
    assert c.keys() == {"new"} and (c.path / "new").read_bytes() == b"bytes"


@pytest.mark.parametrize("at", ["PUT e/f07", "DELETE d/f07"])
@BOTH
def test_rename_of_a_directory(cut, at, answered):
    """Between two copies, and between two removals: all files are under the new name, none under the old one."""
    c = cut()
    names = [f"f{i:02}" for i in range(40)] + ["sub/g", "sub/"]
    for name in names:
        c.put(f"d/{name}", name.encode() if not name.endswith("/") else b"")
    key, is_there = ("e/f07", True) if at.startswith("PUT") else ("d/f07", False)
    assert c.call(at, lambda: (key in c.keys()) == is_there, "rename", "d", "e", answered=answered) == "done"
    assert {k for k in c.keys() if not k.endswith("/")} == {f"e/{name}" for name in names if not name.endswith("/")}
    assert not (c.path / "d").exists()
    for name in names:
        if not name.endswith("/"):
            assert (c.path / "e" / name).read_bytes() == name.encode()


@BOTH
def test_close(cut, answered):
    """What is written is published by the close that was cut."""
    c = cut()
    c.put("f", b"old")
    assert c.call("PUT f", lambda: c.get("f") == b"written", "close", "f", answered=answered) == "done"
    assert c.keys() == {"f"} and c.get("f") == b"written" and (c.path / "f").read_bytes() == b"written"


@BOTH
def test_truncate(cut, answered):
    """A file that is cut by name has its new size."""
    c = cut()
    c.put("f", b"0123456789")
    assert c.call("PUT f", lambda: c.get("f") == b"0123", "truncate", "f", 4, answered=answered) == "done"
    assert c.get("f") == b"0123" and (c.path / "f").stat().st_size == 4


@BOTH
def test_symlink(cut, answered):
    """A link is made once, and symlink says so; another one of that name is told of it."""
    c = cut(posix="on")
    assert c.call("PUT l", lambda: c.keys() == {"l"}, "symlink", "target", "l", answered=answered) == "done"
    assert c.keys() == {"l"} and (c.path / "l").readlink().name == "target"
    assert c.program("symlink", "target", "l").communicate(timeout=60)[0].strip() == "EEXIST"


@pytest.mark.parametrize("what", ["f", "d"])
@BOTH
def test_chmod_and_times(cut, what, answered):
    """A mode and a time are set, of a file, and of a directory without marker."""
    c = cut(posix="on")
    c.put("f", b"bytes")
    c.put("d/f", b"bytes")
    key = "f" if what == "f" else "d/"

    def has(field, value):
        return key in c.keys() and c.meta(key).get(field) == value

    mode = str((0o100000 if what == "f" else 0o040000) | 0o640)
    assert c.call(f"PUT {key}", lambda: has("mode", mode), "chmod", what, 0o640, answered=answered) == "done"
    assert has("mode", mode) and (c.path / what).stat().st_mode & 0o777 == 0o640
    assert c.call(f"PUT {key}", lambda: has("mtime", "5.000000000"), "utime", what, [5, 5], answered=answered) == "done"
    assert (c.path / what).stat().st_mtime == 5 and (c.path / what).stat().st_mode & 0o777 == 0o640
    assert c.get("f") == b"bytes"


def test_what_came_after_a_removal_stays(cut):
    """Somebody makes the name anew while the node is away: it is not what was to be removed."""
    c = cut()
    c.put("f", b"bytes")
    assert c.call("DELETE f", lambda: c.keys() == set(), "unlink", "f", meanwhile=lambda: c.put("f", b"of somebody else")) == "done"
    assert c.get("f") == b"of somebody else" == (c.path / "f").read_bytes()


def test_what_came_after_a_rename_stays(cut):
    """The old name is made anew while the node is away: it is not what was renamed."""
    c = cut()
    c.put("log", b"bytes")
    assert c.call("DELETE log", lambda: c.keys() == {"log.1"}, "rename", "log", "log.1", meanwhile=lambda: c.put("log", b"new one")) == "done"
    assert c.get("log") == b"new one" and c.get("log.1") == b"bytes"


def test_what_came_into_a_renamed_directory_stays(cut):
    """Files that somebody else puts below the old name, or has changed there, are neither moved nor removed once all was copied."""
    c = cut()
    for i in range(20):
        c.put(f"d/f{i:02}", b"%d" % i)

    def meanwhile():
        c.put("d/f19", b"changed")
        c.put("d/more", b"more")

    said = c.call("DELETE d/f07", lambda: "d/f07" not in c.keys(), "rename", "d", "e", meanwhile=meanwhile)
    assert said == "done" and {k for k in c.keys() if k.startswith("d/")} == {"d/f19", "d/more"}
    assert c.get("d/f19") == b"changed" and c.get("e/f19") == b"19"
    assert {k for k in c.keys() if k.startswith("e/")} == {f"e/f{i:02}" for i in range(20)}


WORKER = """
import json, os, random, sys
top, chance = sys.argv[1], random.Random(int(sys.argv[2]))
files, dirs, steps = {}, {"."}, 0

def step():
    name, other = (f"{chance.choice(sorted(dirs))}/n{chance.randrange(3)}" for _ in range(2))
    what = chance.randrange(7)
    if what < 2:
        files[name] = f"{name} {steps}"
        with open(name, "w") as f:
            f.write(files[name])
    elif what == 2 and name in files:
        os.unlink(name)
        del files[name]
    elif what == 3 and name in files and name != other:
        os.rename(name, other)
        files[other] = files.pop(name)
    elif what == 4:
        new = f"d{chance.randrange(3)}"
        if new in dirs:
            for name in [x for x in files if x.startswith(new + "/")]:
                os.unlink(name)
                del files[name]
            os.rmdir(new)
            dirs.remove(new)
        else:
            os.mkdir(new)
            dirs.add(new)
    elif what == 5:
        old, new = f"d{chance.randrange(3)}", f"d{chance.randrange(3)}"
        if old in dirs and new not in dirs:
            os.rename(old, new)
            dirs.remove(old)
            dirs.add(new)
            for name in [x for x in files if x.startswith(old + "/")]:
                files[new + name[len(old):]] = files.pop(name)
    elif name in files:
        with open(name) as f:
            assert f.read() == files[name], name

os.chdir(top)
for line in sys.stdin:
    for _ in range(int(line)):
        step()
        steps += 1
        print(json.dumps([files, sorted(dirs)]), flush=True)
"""


@pytest.mark.parametrize("write", ["through", "back"])
def test_every_change_happens_once(cut, write):
    """A program makes, writes, renames and removes files and directories while the node is killed again and again: none of its calls
    fails, and what is there at the end, in the mount and in the origin, is what it has made."""
    c = cut(write=write, **({"write_delay": "0s"} if write == "back" else {}))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, c.path, "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    chance, steps, model = random.Random(9), 300, None
    try:
        worker.stdin.write(f"{steps}\n")
        worker.stdin.close()
        kills = set(chance.sample(range(steps), 25))
        for i in range(steps):
            line = worker.stdout.readline()
            assert line, f"step {i} failed"
            model = json.loads(line)
            if i in kills:
                time.sleep(chance.uniform(0, 0.03))
                c.node.kill()
                c.node.start()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
    files, dirs = model
    want = {str(pathlib.Path(name)): body for name, body in files.items()}
    time.sleep(1.1)
    assert {str(p.relative_to(c.path)): p.read_text() for p in c.path.rglob("*") if p.is_file()} == want
    assert {str(p.relative_to(c.path)) for p in c.path.rglob("*") if p.is_dir()} == set(dirs) - {"."}
    if write == "back":
        c.node.cli("flush", "--wait", c.bucket)
    assert {key: c.get(key).decode() for key in c.keys() if not key.endswith("/")} == want


def test_a_node_that_does_not_come_back(origin, new_node, new_shaper, new_mount):
    """--timeout bounds how long a change that was cut waits: EIO then."""
    node, shaper = new_node(), new_shaper()
    bucket = node.new_bucket(origin, endpoint=shaper.endpoint)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"bytes")
    mount = new_mount(node, bucket, timeout="6s")
    shaper.fault("stall", match=f"DELETE /{bucket}/f", for_="1h")
    program = subprocess.Popen([sys.executable, "-c", CALL, mount.path, "unlink", json.dumps(["f"])], stdout=subprocess.PIPE, text=True)
    harness.wait_until(lambda: not origin.s3().list_objects_v2(Bucket=bucket).get("Contents"), what="it is removed")
    began = time.monotonic()
    node.kill()
    assert program.communicate(timeout=120)[0].strip() == errno.errorcode[errno.EIO]
    assert time.monotonic() - began > 3
    shaper.reset()
    node.start()
