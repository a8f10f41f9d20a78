"""A mount of a mirror bucket whose process is killed: another takes over, and programs have only waited."""

import collections
import contextlib
import errno
import mmap
import os
import pathlib
import random
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import pytest

import harness
import mounted
import relay

KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))
pytestmark = [pytest.mark.usefixtures("need_fuse"),
              pytest.mark.skipif(KERNEL < (6, 9), reason="the kernel cannot send requests again before Linux 6.9")]
MODES = ["auto", "off"]
MIB = 1 << 20


@pytest.fixture
def mount(node, bucket, new_mount):
    return lambda what=None, **options: new_mount(node, what or bucket.name, **options)


@pytest.fixture
def there(bucket):
    """The bucket at its origin."""
    return Objects(bucket.truth, bucket.name)


@pytest.fixture
def here(bucket):
    """The bucket through the node, which tells the mounts of changes."""
    return Objects(bucket.s3, bucket.name)


class Objects:
    def __init__(self, client, name):
        self.client, self.name = client, name

    def put(self, key, body):
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def get(self, key):
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def etag_and_time(self, key):
        head = self.client.head_object(Bucket=self.name, Key=key)
        return head["ETag"], head["LastModified"]

    def keys(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return {entry["Key"] for page in pages for entry in page.get("Contents", [])}


def kill_serving(one):
    pid = one.serving()
    os.kill(pid, signal.SIGKILL)
    harness.wait_until(lambda: one.serving() not in (pid, None), what="another process")


@pytest.mark.parametrize("passthrough", MODES)
def test_readers_go_on(there, here, mount, passthrough):
    """Files open for reading, complete ones and one that is not, a mapping, a directory that was read in part and a working
    directory go on after the process was killed; so do names that were looked up before."""
    small, big = random.Random(1).randbytes(100_000), random.Random(2).randbytes(9 * MIB)
    names = {f"n{i:03}" for i in range(300)}
    for name in names:
        there.put(f"d/{name}", name.encode())
    there.put("d/e/small", small)
    there.put("big", big)
    one = mount(passthrough=passthrough)
    assert (one.path / "d/e/small").read_bytes() == small  # is kept open by the mount
    with open(one.path / "d/e/small", "rb", buffering=0) as warm, open(one.path / "big", "rb", buffering=0) as cold, \
            os.scandir(one.path / "d") as listing:
        inside = os.open(one.path / "d/e", os.O_RDONLY | os.O_DIRECTORY)
        mapped = mmap.mmap(warm.fileno(), 0, prot=mmap.PROT_READ)
        assert cold.read(1000) == big[:1000]
        met = {next(listing).name}
        kill_serving(one)
        assert warm.read() == small and mapped[-100:] == small[-100:]
        assert cold.read(1000) == big[1000:2000]
        with open("small", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=inside)) as again:
            assert again.read() == small
        met |= {entry.name for entry in listing}
        assert met == names | {"e"}
        mapped.close()
        os.close(inside)
        assert os.pread(cold.fileno(), 1000, 5 * MIB) == big[5 * MIB:5 * MIB + 1000]
    assert (one.path / "big").read_bytes() == big
    assert (one.path / "d/n007").read_bytes() == b"n007"
    here.put("d/n007", b"another")
    harness.wait_until(lambda: (one.path / "d/n007").read_bytes() == b"another", what="the new version")


def test_what_was_only_looked_up_outlives_two_processes(there, mount):
    """A program has a file's inode and not its name, as in the middle of a call: after two processes were killed it is still the
    file. (Without keep_recent_locked in mount/node.c the first successor says ESTALE, and to a call that meets two of
    them the kernel passes that on.)"""
    there.put("d/f", b"bytes")
    there.put("d/other", b"other")
    one = mount(attr_timeout="0")
    fds = [os.open(one.path / "d" / name, os.O_PATH) for name in ("f", "other")]
    try:
        for _ in range(2):
            kill_serving(one)
            os.statvfs(one.path)  # is answered by the new process
        for fd, body in zip(fds, (b"bytes", b"other")):
            assert os.stat(f"/proc/self/fd/{fd}").st_size == len(body)
            with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as f:
                assert f.read() == body
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_version_that_is_gone_is_told_as_such(there, here, mount, how):
    """A file that is open, was not read yet, and is not there any more when another process takes over: its reads give ESTALE, as
    src/mount/README.md has it. [They gave ENOENT where its name was removed.]"""
    there.put("f", b"first" * 1000)
    one = mount(passthrough="off")
    with open(one.path / "f", "rb", buffering=0) as f:
        if how == "removed":
            here.client.delete_object(Bucket=here.name, Key="f")
        else:
            here.put("f", b"second" * 1000)
        kill_serving(one)
        with pytest.raises(OSError) as caught:
            f.read(10)
        assert caught.value.errno == errno.ESTALE


def test_an_open_directory_whose_path_has_become_too_long(there, mount):
    """What lay in it was removed at the origin, and a directory above it was moved so deep that no key can be below it any more:
    the successor serves all the same, and who reads the directory is told."""
    deep = "/".join(c * 230 for c in "pqrs")
    there.put(f"a/{'d' * 200}/x", b"x")
    there.put(f"{deep}/y", b"y")
    top = mount()
    fd = os.open(top.path / "a" / ("d" * 200), os.O_RDONLY | os.O_DIRECTORY)
    there.put("a/z", b"z")
    there.client.delete_object(Bucket=there.name, Key=f"a/{'d' * 200}/x")
    os.rename(top.path / "a", top.path / deep / "a")
    kill_serving(top)
    assert (top.path / deep / "y").read_bytes() == b"y" and (top.path / deep / "a/z").read_bytes() == b"z"
    with pytest.raises(OSError) as caught:
        os.listdir(fd)
    assert caught.value.errno == errno.ENAMETOOLONG
    os.close(fd)


def test_files_that_are_not_opened_go_on_too(there, mount):
    """In the read-only profile, where the kernel opens files without asking, an open file goes on being read."""
    body = random.Random(3).randbytes(3 * MIB)
    there.put("d/f", body)
    one = mount(profile="read-only")
    with open(one.path / "d/f", "rb", buffering=0) as f:
        assert f.read(1000) == body[:1000]
        kill_serving(one)
        assert os.pread(f.fileno(), 1000, 2 * MIB) == body[2 * MIB:2 * MIB + 1000]
    assert (one.path / "d/f").read_bytes() == body


@pytest.mark.parametrize("passthrough", MODES)
def test_what_is_being_written_is_not_lost(there, mount, passthrough):
    """A new file, one that is changed in the middle and one without a name any more go on being written, and what was written
    before the kill and after it is in the origin at the end. A file that was only opened is not written again."""
    there.put("old", b"0123456789")
    there.put("same", b"as it was")
    one = mount(passthrough=passthrough)
    before = there.etag_and_time("same")
    time.sleep(1)  # the origin tells times in seconds
    with open(one.path / "new", "wb", buffering=0) as new, open(one.path / "old", "r+b", buffering=0) as old, \
            open(one.path / "gone", "w+b", buffering=0) as gone, open(one.path / "same", "r+b", buffering=0) as same:
        new.write(b"before ")
        old.seek(3)
        old.write(b"abc")
        gone.write(b"secret")
        (one.path / "gone").unlink()
        kill_serving(one)
        new.write(b"after")
        old.write(b"def")
        gone.write(b" more")
        assert os.pread(gone.fileno(), 100, 0) == b"secret more"
        assert os.fstat(new.fileno()).st_size == 12
        assert set(os.listdir(one.path)) == {"new", "old", "same"}
        assert same.read() == b"as it was"
        os.fsync(old.fileno())
        assert there.get("old") == b"012abcdef9"
    assert there.get("new") == b"before after"
    assert there.keys() == {"new", "old", "same"}
    assert there.etag_and_time("same") == before
    (one.path / "new").write_bytes(b"again")
    assert there.get("new") == b"again" and (one.path / "new").read_bytes() == b"again"


def test_what_was_closed_and_not_answered_is_published(there, mount):
    """The process is killed while a close is on its way to the origin: the close returns when the bytes are there."""
    one = mount()
    f = open(one.path / "f", "wb", buffering=0)
    f.write(b"x" * MIB)
    closing = threading.Thread(target=f.close)
    closing.start()
    os.kill(one.serving(), signal.SIGKILL)
    closing.join(200)
    assert not closing.is_alive() and there.get("f") == b"x" * MIB


def waits_in_kernel(pid, where):
    """Whether a thread of the process waits in that function of the kernel."""
    def place_of(task):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            return (task / "wchan").read_text()

    return any(place_of(task) == where for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


@pytest.fixture
def late(bucket, new_shaper):
    """A shaper that may hold back the origin's answers, what lies in a bucket behind it, and that bucket through the node."""
    shaper = new_shaper(before=bucket.origin)
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    return shaper, Objects(bucket.truth, name), Objects(bucket.s3, name)


def rename_while_killed(one, late, source, target):
    """The process is killed while the node waits for the origin, which has made the copy; returns when the rename has."""
    shaper, there, _ = late
    body = there.get(source)
    shaper.fault("stall", match=f"PUT /{there.name}/{target}", for_="2s")
    renaming = threading.Thread(target=os.rename, args=(one.path / source, one.path / target))
    renaming.start()
    harness.wait_until(lambda: target in there.keys() and there.get(target) == body, what="the copy", step=0.01)
    kill_serving(one)
    renaming.join(200)
    assert not renaming.is_alive()


def test_what_an_unanswered_rename_replaced_is_not_seen_by_its_name(late, mount):
    """The target is being written, the source was never open: the successor knows only what is open."""
    _, there, _ = late
    there.put("new", b"new one")
    there.put("old", b"old")
    one = mount(there.name)
    with open(one.path / "old", "r+b", buffering=0) as f:
        f.write(b"older")
        rename_while_killed(one, late, "new", "old")
        assert (one.path / "old").read_bytes() == b"new one" == there.get("old")
        assert os.pread(f.fileno(), 100, 0) == b"older"
    assert os.listdir(one.path) == ["old"]
    assert there.get("old") == b"new one"


def test_what_runs_for_a_killed_process_is_over_before_its_successor_changes_anything(late, mount):
    """A rename waits for the origin while its process is killed. A file that is made under the old name afterwards, with the
    same bytes, so that the origin cannot tell it from what was moved, is not removed by the first one."""
    _, there, _ = late
    one = mount(there.name)
    (one.path / "log").write_bytes(b"")
    rename_while_killed(one, late, "log", "log.1")
    (one.path / "log").write_bytes(b"")
    time.sleep(3)  # longer than the first one waits
    assert there.keys() == {"log", "log.1"}
    assert sorted(os.listdir(one.path)) == ["log", "log.1"]


def test_a_directory_is_renamed_once_while_a_file_in_it_is_written(late, mount):
    """The process is killed when the origin has all under the new name; what was written to a file in the directory meanwhile
    goes there, too, and does not make the old directory again."""
    shaper, there, _ = late
    one = mount(there.name)
    (one.path / "d").mkdir()
    (one.path / "d/other").write_bytes(b"other")
    with open(one.path / "d/log", "wb", buffering=0) as f:
        f.write(b"one")
        os.fsync(f.fileno())
        shaper.fault("stall", match=f"DELETE /{there.name}/d/other", for_="2s")
        renaming = threading.Thread(target=os.rename, args=(one.path / "d", one.path / "e"))
        renaming.start()
        harness.wait_until(lambda: "d/other" not in there.keys(), what="the removal", step=0.01)
        f.write(b" two")
        kill_serving(one)
        renaming.join(200)
        assert not renaming.is_alive()
        assert os.listdir(one.path) == ["e"]
        f.write(b" three")
        os.fsync(f.fileno())
        assert there.get("e/log") == b"one two three"
    assert {key for key in there.keys() if not key.endswith("/")} == {"e/log", "e/other"}


@pytest.mark.parametrize("replaces", [False, True], ids=["a new name", "one that is written"])
def test_what_is_closed_during_a_long_rename_has_the_new_name(late, mount, replaces):
    """The process is killed while the node waits for the origin, which has made the copy of a file that is being written, for longer than its
    successor waits for requests that come again (GRACE_NS in mount/takeover.c). An fsync of what was written since waits for the
    rename, however long, and does not make the old name again. (staging_hold in rename_file before anything that waits; where the rename
    first waits to take the name from another file, stagings_are_awaited in settle.)"""
    shaper, there, _ = late
    one = mount(there.name)
    with contextlib.ExitStack() as left:
        if replaces:
            (one.path / "new").write_bytes(b"another")
            left.enter_context(open(one.path / "new", "r+b", buffering=0))
        f = left.enter_context(open(one.path / "old", "wb", buffering=0))
        f.write(b"one")
        os.fsync(f.fileno())
        shaper.fault("stall", match=f"PUT /{there.name}/new", for_="8s")
        renaming = threading.Thread(target=os.rename, args=(one.path / "old", one.path / "new"))
        renaming.start()
        harness.wait_until(lambda: "new" in there.keys() and there.get("new") == b"one", what="the copy", step=0.01)
        f.write(b" two")
        kill_serving(one)
        os.fsync(f.fileno())
        renaming.join(200)
        assert not renaming.is_alive()
        assert os.listdir(one.path) == ["new"] and there.keys() == {"new"}
        assert there.get("new") == b"one two" == (one.path / "new").read_bytes()
        f.write(b" three")
    assert there.keys() == {"new"} and there.get("new") == b"one two three"


def test_what_is_removed_while_its_close_is_not_answered_stays_removed(late, mount):
    """The process is killed while new files are on their way to the origin, and programs that remove them wait for that: the
    successor may be asked to remove them first."""
    shaper, there, _ = late
    one = mount(there.name)
    waiting = []
    for i in range(3):
        (one.path / str(i)).mkdir()
        f = open(one.path / f"{i}/f", "wb", buffering=0)
        f.write(b"body")
        shaper.fault("stall", match=f"PUT /{there.name}/{i}/f", for_="2s")
        waiting.append(threading.Thread(target=f.close))
        waiting[-1].start()
        harness.wait_until(lambda: f"{i}/f" in there.keys(), what="the object", step=0.01)
        waiting.append(threading.Thread(target=os.unlink, args=(one.path / f"{i}/f",)))
        waiting[-1].start()
    time.sleep(0.2)
    kill_serving(one)
    for one_of_them in waiting:
        one_of_them.join(200)
        assert not one_of_them.is_alive()
    time.sleep(3)  # longer than what was asked for before the kill
    assert not [key for key in there.keys() if key.endswith("/f")]


@pytest.mark.parametrize("passthrough", MODES)
def test_a_file_that_is_written_keeps_its_last_name(there, mount, passthrough):
    """A program renames the file that it writes again and again, and the process is killed, also when a rename was done and not
    answered: what is written afterwards is under the last name."""
    one = mount(passthrough=passthrough)
    name, other, body = "a", "b", b""
    with open(one.path / name, "wb", buffering=0) as f:
        for i in range(5):
            killing = threading.Timer(0.2 + i * 0.0013, kill_serving, [one])
            killing.start()
            while killing.is_alive():
                body += f.write(b"x") * b"x"
                os.rename(one.path / name, one.path / other)
                name, other = other, name
            body += f.write(b"y") * b"y"
            os.fsync(f.fileno())
            assert there.get(name) == body
            assert there.keys() == {name}


def test_a_kill_while_a_name_is_dropped(late, mount):
    """The process tells the kernel to drop a name in a directory in which a program removes another one, which takes long: it
    waits inside the kernel for the program, and the program for it. Killed then, it cannot end; another takes over all the
    same."""
    shaper, there, here = late
    one = mount(there.name)
    for key in ("d/told", "d/gone"):
        there.put(key, b"body")
    for _ in range(3):  # is kept open by the mount, and its name believed by the kernel
        assert (one.path / "d/told").read_bytes() == b"body"
        time.sleep(1.1)
    shaper.fault("stall", match=f"DELETE /{there.name}/d/gone")
    removing = threading.Thread(target=os.unlink, args=(one.path / "d/gone",))
    removing.start()
    harness.wait_until(lambda: there.keys() == {"d/told"}, what="the removal", step=0.01)
    here.put("d/told", b"another")
    serving = one.serving()
    harness.wait_until(lambda: waits_in_kernel(serving, "fuse_reverse_inval_entry"), what="the telling")
    kill_serving(one)
    shaper.release()
    removing.join(200)
    assert not removing.is_alive()
    harness.wait_until(lambda: (one.path / "d/told").read_bytes() == b"another", what="the new version")
    assert os.listdir(one.path / "d") == ["told"]


class Worker(threading.Thread):
    """Makes, replaces, renames, reads and removes files in a directory of its own; every operation must succeed, once."""

    def __init__(self, top, seed):
        super().__init__()
        self.top, self.random, self.stopped = top, random.Random(seed), threading.Event()
        self.model, self.steps, self.failure = {}, 0, None
        self.done = collections.deque(maxlen=30)  # what was done last, for whoever looks at a failure

    def write(self, name, flags):
        fd = os.open(self.top / name, flags | os.O_WRONLY)
        body = self.random.randbytes(self.random.randrange(20000))
        assert os.write(fd, body) == len(body)
        os.close(fd)
        self.model[name] = body
        self.done.append(f"{time.time() % 60:.3f} wrote {name} {flags:x}: {len(body)} bytes from {body[:4]}")

    def step(self):
        name, other = (f"f{self.random.randrange(8)}" for _ in range(2))
        if name not in self.model:
            self.write(name, os.O_CREAT | os.O_EXCL)
            return
        match self.random.randrange(4):
            case 0:
                os.unlink(self.top / name)
                del self.model[name]
                self.done.append(f"{time.time() % 60:.3f} removed {name}")
            case 1:
                self.write(name, os.O_TRUNC)
            case 2 if name != other:
                os.rename(self.top / name, self.top / other)
                self.model[other] = self.model.pop(name)
                self.done.append(f"{time.time() % 60:.3f} renamed {name} to {other}")
            case _:
                found, body = (self.top / name).read_bytes(), self.model[name]
                assert found == body, "\n".join(
                    [f"{time.time() % 60:.3f} {name} has {len(found)} bytes from {found[:4]}, not {len(body)} from {body[:4]}", *self.done])
                self.done.append(f"{time.time() % 60:.3f} read {name}")

    def run(self):
        try:
            while not self.stopped.is_set():
                self.step()
                self.steps += 1
        except BaseException as e:  # told by the test
            self.failure = e


def kill_between_steps(one, workers):
    """Runs the workers while the process that serves the mount is killed five times, and a little longer. No call of theirs
    sees two kills: the kernel tries a call with a forgotten inode again only once."""
    pause = random.Random(7)

    def go_on(steps):
        before = [w.steps for w in workers]
        harness.wait_until(lambda: all(w.failure or w.steps > n + steps for w, n in zip(workers, before)), 120, "going on", 0.01)

    for w in workers:
        w.start()
    try:
        for _ in range(5):
            time.sleep(pause.uniform(0.05, 0.6))
            kill_serving(one)
            go_on(1)
        go_on(5)
    finally:
        for w in workers:
            w.stopped.set()
            w.join()


@pytest.mark.parametrize("passthrough", MODES)
def test_every_change_happens_once(there, mount, passthrough):
    """Two programs write, rename and remove while the process is killed again and again: none of their calls fails, and what
    is there at the end, here and in the origin, is what they made."""
    one = mount(passthrough=passthrough)
    workers = []
    for i in range(2):
        (one.path / str(i)).mkdir()
        workers.append(Worker(one.path / str(i), seed=i))
    kill_between_steps(one, workers)
    for i, w in enumerate(workers):
        assert w.failure is None, "".join(traceback.format_exception(w.failure)) + one.log()
        assert {p.name: p.read_bytes() for p in w.top.iterdir()} == w.model
        assert {key.removeprefix(f"{i}/"): there.get(key) for key in there.keys()
                if key.startswith(f"{i}/") and not key.endswith("/")} == w.model


class PosixWorker(Worker):
    """A Worker whose files and links also have modes, owners and times."""

    def __init__(self, top, seed):
        super().__init__(top, seed)
        self.meta, self.links = {}, {}

    def change(self, name):
        mode, uid, mtime = self.random.randrange(0o1000), self.random.randrange(5000), self.random.randrange(1 << 60)
        os.chmod(self.top / name, mode)
        os.chown(self.top / name, uid, -1)
        os.utime(self.top / name, ns=(1, mtime))
        self.meta[name] = mode, uid, mtime

    def link(self, name):
        if name in self.links:
            assert os.readlink(self.top / name) == self.links.pop(name)
            os.unlink(self.top / name)
        else:
            self.links[name] = "to-" + "x" * self.random.randrange(100)
            os.symlink(self.links[name], self.top / name)

    def step(self):
        self.link(f"l{self.random.randrange(4)}")
        name = f"m{self.random.randrange(4)}"
        if name not in self.meta:
            (self.top / name).write_bytes(name.encode())
        self.change(name)
        (self.top / f"d{self.steps}").mkdir(0o700)

    def seen(self, top):
        """What is there, in the form of expected()."""
        found = {}
        for path in top.iterdir():
            s = path.lstat()
            found[path.name] = (os.readlink(path) if path.is_symlink() else stat.S_IMODE(s.st_mode) if path.is_dir() else
                                (stat.S_IMODE(s.st_mode), s.st_uid, s.st_mtime_ns))
        return found

    def expected(self):
        return self.links | self.meta | {f"d{i}": 0o700 for i in range(self.steps)}


def test_every_change_of_modes_and_links_happens_once(node, origin, mount):
    """With posix=on: links, modes, owners, times and directories are as two programs made them, however often the process
    is killed meanwhile; a second mount, which asks, sees the same."""
    name = node.new_bucket(origin, posix="on")
    one = mount(name)
    workers = []
    for i in range(2):
        (one.path / str(i)).mkdir()
        workers.append(PosixWorker(one.path / str(i), seed=i))
    kill_between_steps(one, workers)
    other = mount(name)
    for i, w in enumerate(workers):
        assert w.failure is None, "".join(traceback.format_exception(w.failure)) + one.log()
        assert w.seen(one.path / str(i)) == w.expected()
        assert w.seen(other.path / str(i)) == w.expected()


@pytest.mark.parametrize("passthrough", MODES)
def test_modes_owners_and_times_of_what_is_open_are_kept(node, origin, mount, passthrough):
    """With posix=on: what a file that is open, one that is being written and a directory have been given is there after the
    kill, at once, and in the origin when the file was closed."""
    name = node.new_bucket(origin, posix="on")
    one = mount(name, passthrough=passthrough)

    def of(what):
        s = os.stat(what)
        return stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns

    def give(what, mode):
        os.chmod(what, mode)
        os.chown(what, mode + 1, mode + 2)
        os.utime(what, ns=(1, mode + 1_600_000_000_000_000_003))
        assert of(what) == (mode, mode + 1, mode + 2, mode + 1_600_000_000_000_000_003)
        return of(what)

    (one.path / "d").mkdir()
    (one.path / "d/read").write_bytes(b"bytes")
    with open(one.path / "d/read", "rb", buffering=0) as read, open(one.path / "d/new", "wb", buffering=0) as new, \
            open(one.path / "d/gone", "wb", buffering=0) as gone:
        new.write(b"new")
        os.unlink(one.path / "d/gone")
        expected = give(read.fileno(), 0o640), give(new.fileno(), 0o601), give(gone.fileno(), 0o444)
        inside = give(one.path / "d", 0o751)
        kill_serving(one)
        assert (of(read.fileno()), of(new.fileno()), of(gone.fileno())) == expected
        assert of(one.path / "d") == inside and read.read() == b"bytes"
    other = mount(name)
    for top in one.path, other.path:
        assert (of(top / "d/read"), of(top / "d/new")) == expected[:2]
        assert of(top / "d") == inside and (top / "d/new").read_bytes() == b"new"


def test_files_that_were_kept_open_are_not_believed_in_any_more(there, here, mount):
    """Hundreds of files that the killed process had kept open for the next reader, and whose names the kernel believed for
    long, are looked up again: what replaces them is seen."""
    for i in range(300):
        there.put(f"f{i}", b"%03d" % i * 1000)
    one = mount()
    for i in range(300):
        (one.path / f"f{i}").read_bytes()
    kill_serving(one)
    for i in range(300):
        here.put(f"f{i}", b"%03d" % (i + 1) * 1000)
    harness.wait_until(lambda: (one.path / "f299").read_bytes() == b"300" * 1000, what="the new version")
    time.sleep(1.1)  # for which names are believed
    assert all((one.path / f"f{i}").read_bytes() == b"%03d" % (i + 1) * 1000 for i in range(300))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_mount_that_lies_elsewhere_is_taken_over_as_any(there, here, mount, work):
    """It was bound to another directory and detached from its own when its process is killed: what replaces a file whose name the
    kernel believed for long is seen all the same."""
    there.put("f", b"old")
    one, elsewhere = mount(), pathlib.Path(tempfile.mkdtemp(prefix="elsewhere-", dir=work))
    for _ in range(2):
        assert (one.path / "f").read_bytes() == b"old"
        time.sleep(1.1)  # looked up again, it is believed for long
    assert (one.path / "f").stat().st_size == 3
    subprocess.run(["mount", "--bind", one.path, elsewhere], check=True)
    try:
        subprocess.run(["umount", "-l", one.path], check=True)
        kill_serving(one)
        here.put("f", b"and new")
        harness.wait_until(lambda: (elsewhere / "f").stat().st_size == 7, what="the new version")
        assert (elsewhere / "f").read_bytes() == b"and new"
    finally:
        subprocess.run(["umount", elsewhere], check=True)
    assert one.process.wait(200) == 0
    one.process = None


@pytest.mark.parametrize("how", ["umount", "SIGTERM"])
def test_the_successor_ends_as_its_predecessor_would(there, mount, how):
    """After a take-over the mount ends with status 0 and nothing left mounted, and what was still being written is published."""
    one = mount()
    f = open(one.path / "f", "wb", buffering=0)
    f.write(b"kept")
    kill_serving(one)
    f.close()
    if how == "umount":
        one.node.cli("umount", str(one.path))
    else:
        one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(200) == 0
    assert not mounted.is_mounted(one.path)
    one.process = None
    assert there.get("f") == b"kept"


def test_killed_while_the_node_is_away(origin, new_node, work):
    """The next process waits for the node, and what was written before is published then."""
    code = """
f = open(sys.argv[1], "wb", buffering=0)
f.write(b"before ")
print("written", flush=True)
input()
f.write(b"after")
f.close()
print("closed")
"""
    node = new_node()
    name = node.new_bucket(origin)
    with mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, name) as one:
        # Not this process: a program that it starts closes what it inherits, and would wait for the node.
        writer = subprocess.Popen([sys.executable, "-c", "import sys" + code, one.path / "f"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout.readline() == "written\n"
            node.kill()
            os.kill(one.serving(), signal.SIGKILL)
            time.sleep(5)  # six deaths, after which nobody takes over, take less
            assert one.running()
            node.start()
            assert writer.communicate("\n", timeout=200)[0] == "closed\n"
        finally:
            writer.kill()
        assert origin.s3().get_object(Bucket=name, Key="f")["Body"].read() == b"before after"


def test_a_successor_that_waits_for_a_silent_origin_ends_when_it_is_unmounted(origin, new_node, new_mount):
    """What is open by passthrough the successor asks the node for again, and the node the origin, which says nothing: nobody else waits for
    that, nor does the end of the mount. (Mutation: nobody_waits in mount/mount.c that leaves only what programs have asked for.)"""
    with relay.Relay(origin.port) as line:
        node = new_node()
        name = node.new_bucket(origin, endpoint=line.endpoint, validate="always",
                               **{"origin.timeout": "10m", "origin.connect_timeout": "10m", "retry": "30m"})
        Objects(origin.s3(), name).put("f", b"bytes")
        one = new_mount(node, name)
        with open(one.path / "f", "rb", buffering=0) as f:
            assert f.read() == b"bytes"
            line.hush()
            try:
                kill_serving(one)
                if one.uses_passthrough():
                    harness.wait_until(line.held, what="the origin is asked")
                    assert os.pread(f.fileno(), 5, 0) == b"bytes"
                f.close()
                one.stop()
            finally:
                line.speak()


def holds(pid, path):
    """Whether a process has the file open."""
    found = []
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return path in found


def sleeps(pid):
    """How often the process has waited so far."""
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1])


@pytest.mark.parametrize("passthrough", MODES)
def test_close_tells_what_is_lost(there, mount, passthrough):
    """A file that the keeper could not hold is lost with the process that wrote it: close says so, and nobody reads it any more,
    from the kernel's pages either."""
    old = harness.random_bytes(16384, seed=1)
    there.put("old", old)
    one = mount(passthrough=passthrough)
    harness.wait_until(lambda: holds(one.pid, "/dev/fuse"), what="the keeper holds the connection")
    limits = resource.prlimit(one.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # no descriptor arrives there
    f = open(one.path / "f", "wb", buffering=0)
    f.write(b"lost")
    changed = open(one.path / "old", "r+b", buffering=0)
    changed.write(bytes(8192))
    before = sleeps(one.pid)  # it has been sent the descriptor, and looks every second
    harness.wait_until(lambda: sleeps(one.pid) >= before + 2, what="the keeper has looked")
    resource.prlimit(one.pid, resource.RLIMIT_NOFILE, limits)
    kill_serving(one)
    assert (one.path / "old").read_bytes() == old
    for lost in (f, changed):
        with pytest.raises(OSError) as caught:
            lost.close()
        assert caught.value.errno == errno.EIO
    assert "f" not in there.keys()
    assert (one.path / "old").read_bytes() == old == there.get("old")
