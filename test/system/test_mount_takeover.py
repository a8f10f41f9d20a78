"""A mount of a scratch bucket whose process is killed: another takes over, and programs have only waited."""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time
import traceback

import pytest

import harness
import mounted
from test_scratch_crash import check_store

KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))
need_strace = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
pytestmark = [pytest.mark.usefixtures("need_fuse"),
              pytest.mark.skipif(KERNEL < (6, 9), reason="the kernel cannot send requests again before Linux 6.9")]
MODES = ["auto", "off"]
DEATHS = 5  # that a keeper bears within a minute


@pytest.fixture
def mount(node, scratch, new_mount):
    return lambda what=None, **options: new_mount(node, what or scratch, **options)


def kill_serving(one):
    pid = one.serving()
    os.kill(pid, signal.SIGKILL)
    harness.wait_until(lambda: one.serving() not in (pid, None), what="another process")


@pytest.mark.parametrize("passthrough", MODES)
def test_what_is_open_stays_open(mount, passthrough):
    """Files open for reading and writing, one without a name, and a directory that was read in part, go on where they were."""
    one = mount(passthrough=passthrough)
    top = one.path
    names = {f"n{i:03}" for i in range(300)}
    (top / "d").mkdir()
    for name in names:
        (top / "d" / name).touch()
    with open(top / "w", "w+b", buffering=0) as written, open(top / "gone", "w+b", buffering=0) as gone, \
            os.scandir(top / "d") as listing:
        written.write(b"before ")
        gone.write(b"secret")
        (top / "gone").unlink()
        met = {next(listing).name}
        with open(top / "w", "rb", buffering=0) as read:
            kill_serving(one)
            written.write(b"after")
            assert read.read() == b"before after" and os.fstat(read.fileno()).st_size == 12
        gone.seek(0)
        assert gone.read() == b"secret" and os.fstat(gone.fileno()).st_nlink == 0
        gone.write(b" more")
        assert os.pread(gone.fileno(), 100, 0) == b"secret more"
        met |= {entry.name for entry in listing}
        assert met == names
        os.fsync(written.fileno())
    assert (top / "w").read_bytes() == b"before after"
    (top / "new").write_bytes(b"x")
    assert (top / "new").read_bytes() == b"x"


@pytest.mark.parametrize("passthrough", MODES)
def test_the_node_and_the_process_are_killed_together(restarted_node, new_mount, passthrough):
    """The next process waits for the node: what is open for reading and writing goes on then, by passthrough also what has no name. In
    the end the store is in order. (Seen to fail where connect_again, mount/mount.c, does not wait.)"""
    bucket = harness.scratch_bucket(restarted_node)
    one = new_mount(restarted_node, bucket, passthrough=passthrough, timeout="120s")
    top, body = one.path, harness.random_bytes(300_000, seed=3)
    (top / "r").write_bytes(body)
    with open(top / "r", "rb", buffering=0) as read, open(top / "w", "w+b", buffering=0) as written, open(top / "gone", "w+b", buffering=0) as gone:
        assert read.read(1000) == body[:1000]
        written.write(b"before ")
        gone.write(b"secret")
        (top / "gone").unlink()
        restarted_node.kill()
        os.kill(one.serving(), signal.SIGKILL)
        time.sleep(3)  # six deaths, after which nobody takes over, take less
        restarted_node.start()
        written.write(b"after")
        assert read.read(1000) == body[1000:2000]
        os.fsync(written.fileno())
        assert os.pread(written.fileno(), 100, 0) == b"before after" == (top / "w").read_bytes()
        if one.uses_passthrough():
            gone.write(b" more")
            assert os.pread(gone.fileno(), 100, 0) == b"secret more" and os.fstat(gone.fileno()).st_nlink == 0
    assert sorted(os.listdir(top)) == ["r", "w"]
    one.stop()
    restarted_node.stop()
    check_store(restarted_node)


def test_locks_are_still_held(mount):
    """Locks of both kinds hold against another mount after one process took over from another, and end when they are given back."""
    one, two = mount(), mount()
    (one.path / "f").touch()
    with open(one.path / "f", "r+b") as posix, open(one.path / "f", "r+b") as whole, open(two.path / "f", "r+b") as other:
        fcntl.lockf(posix, fcntl.LOCK_EX, 10, 5)
        fcntl.flock(whole, fcntl.LOCK_SH)
        kill_serving(one)
        os.statvfs(one.path)  # is answered by the new process, which has the locks by then
        with pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 14)
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(posix, fcntl.LOCK_UN, 10, 5)
        fcntl.flock(whole, fcntl.LOCK_UN)
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 14)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def traced(pid, *options, follow=True):
    """strace of a process and all of its threads, for what it does to them (-e inject=). follow: and of those that it begins."""
    def is_traced():
        try:
            states = [(task / "status").read_text() for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):  # a thread that was just ending
            return False
        return not any("TracerPid:\t0\n" in state for state in states)

    tracer = subprocess.Popen(["strace", *(["-f"] if follow else []), "-qq", "-o", os.devnull, "-p", str(pid), *options])
    try:
        harness.wait_until(is_traced, what="traced", step=0.01)
        yield
    finally:
        tracer.terminate()
        tracer.wait(200)


@contextlib.contextmanager
def killed_at_its_answer(one, when=1):
    """Within it a request is done, and the process is killed before it can answer: a thread's first, or a later one."""
    with traced(one.serving(), "-e", "trace=writev", "-e", f"inject=writev:signal=SIGKILL:when={when}"):
        yield


def in_background(act):
    got = []
    thread = threading.Thread(target=lambda: got.append(act()))
    thread.start()

    def wait():
        thread.join(200)
        return got[0]

    return wait


@need_strace
def test_locks_are_held_while_something_runs_for_who_was_killed(node, mount):
    """A program that has a lock is in an fsync that takes long when the process is killed: the lock is still its own."""
    one, two = mount(), mount()
    with open(one.path / "f", "w+b", buffering=0) as owner, open(two.path / "f", "r+b") as other:
        owner.write(b"x" * 100_000)
        fcntl.lockf(owner, fcntl.LOCK_EX)
        with traced(node.pid, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=3000000"):
            wait = in_background(lambda: os.fsync(owner.fileno()))
            time.sleep(1)
            kill_serving(one)
            os.statvfs(one.path)
            wait()
        with pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert "a lock was lost" not in one.log()


@need_strace
@pytest.mark.parametrize("passthrough", MODES)
def test_an_open_that_was_not_answered_is_one_open(mount, passthrough):
    """A file that was opened twice, because the first time was not answered, is closed by one close: removed, it is gone."""
    one = mount(passthrough=passthrough)
    n_before = os.statvfs(one.path).f_files
    (one.path / "f").write_bytes(b"x" * 1000)
    name = os.open(one.path / "f", os.O_PATH)
    time.sleep(1.5)  # the kernel asks for attributes again, and believes them longer: not when the file is opened
    os.stat(name)
    with killed_at_its_answer(one):
        fd = in_background(lambda: os.open(f"/proc/self/fd/{name}", os.O_RDWR))()
    os.close(name)
    assert os.read(fd, 2000) == b"x" * 1000
    os.unlink(one.path / "f")
    os.close(fd)
    harness.wait_until(lambda: os.statvfs(one.path).f_files == n_before, 40, "freed")


@need_strace
def test_an_open_that_was_not_answered_empties_its_file_once(mount):
    """What is written after a file was emptied stays, although the program that had it emptied was not told and asks again."""
    one = mount()
    if not one.uses_passthrough():
        pytest.skip("needs passthrough: else nobody writes while no process serves")
    (one.path / "f").write_bytes(b"old")
    name = os.open(one.path / "f", os.O_PATH)
    pid = one.serving()
    with open(one.path / "f", "ab", buffering=0) as log:
        log.write(b"er")  # the first asks for security.capability
        with killed_at_its_answer(one):
            os.kill(one.process.pid, signal.SIGSTOP)
            try:
                wait = in_background(lambda: os.open(f"/proc/self/fd/{name}", os.O_WRONLY | os.O_TRUNC))
                harness.wait_until(lambda: ") Z " in pathlib.Path(f"/proc/{pid}/stat").read_text(), what="killed")
                writer = threading.Thread(target=log.write, args=(b"new",))
                writer.start()
                writer.join(200)
                assert not writer.is_alive()
            finally:
                os.kill(one.process.pid, signal.SIGCONT)
            os.close(wait())
    os.close(name)
    assert (one.path / "f").read_bytes() == b"new"


@need_strace
def test_a_directory_that_was_not_answered_is_not_taken_for_empty(node, scratch, mount):
    """Others have put something into it before the process that takes over says that it is made: it is found there."""
    one = mount(threads=1)

    def attributes_asked_for():
        told = json.loads(node.cli("mount", "--stats", "--json", one.path).stdout)
        return told["operations"].get("getattr", {}).get("count", 0)

    def is_alone():
        """And knows it: the kernel believes attributes for a minute then, not for a second, and asks for none in between."""
        os.stat(one.path)
        before = attributes_asked_for()
        time.sleep(1.5)
        os.stat(one.path)
        return attributes_asked_for() == before

    harness.wait_until(is_alone, what="it knows that it is alone")
    pid = one.serving()
    with killed_at_its_answer(one, when=2):  # the first is that there is no such name
        os.kill(one.process.pid, signal.SIGSTOP)
        try:
            wait = in_background(lambda: os.mkdir(one.path / "d"))
            harness.wait_until(lambda: ") Z " in pathlib.Path(f"/proc/{pid}/stat").read_text(), what="killed")
            node.s3().put_object(Bucket=scratch, Key="d/x", Body=b"x")
        finally:
            os.kill(one.process.pid, signal.SIGCONT)
        wait()
    assert (one.path / "d/x").exists()
    assert one.path.stat().st_nlink == 3


@need_strace
def test_an_append_that_was_not_answered_is_made_once(mount):
    """Without passthrough, appending goes through the process: what it had appended when it was killed is not appended again."""
    one = mount(passthrough="off")
    with open(one.path / "f", "ab", buffering=0) as f:
        f.write(b"first ")
        with killed_at_its_answer(one):
            assert in_background(lambda: f.write(b"second "))() == 7
        f.write(b"third")
    assert (one.path / "f").read_bytes() == b"first second third"


def test_long_appends_are_made_once(mount):
    """The same of appends that the kill interrupts."""
    one = mount(passthrough="off")
    parts = [bytes([65 + i % 26]) * 1_000_000 for i in range(200)]
    done = []

    def append():
        with open(one.path / "f", "ab", buffering=0) as f:
            for part in parts:
                assert f.write(part) == len(part)
                done.append(part)

    wait = in_background(append)
    for i in range(DEATHS):
        harness.wait_until(lambda: len(done) >= 30 * (i + 1), 60, "going on", 0.001)
        kill_serving(one)
    wait()
    assert (one.path / "f").read_bytes() == b"".join(parts)


class Worker(threading.Thread):
    """Makes, renames, writes, links and removes in a directory of its own; every operation must succeed, once."""

    def __init__(self, top, seed):
        super().__init__()
        self.top, self.random, self.stopped = top, random.Random(seed), threading.Event()
        self.model, self.steps, self.failure = {}, 0, None

    def step(self):
        name, other = (f"f{self.random.randrange(12)}" for _ in range(2))
        path, target = self.top / name, self.top / other
        if name not in self.model:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            body = self.random.randbytes(self.random.randrange(20000))
            assert os.write(fd, body) == len(body)
            os.close(fd)
            self.model[name] = body
        elif self.random.random() < 0.3:
            os.unlink(path)
            del self.model[name]
        elif other in self.model and name != other:
            with open(path, "ab") as f:
                f.write(b"tail")
            self.model[name] += b"tail"
            assert target.read_bytes() == self.model[other]
        elif name != other:
            self.random.choice([os.rename, os.link])(path, target)
            self.model[other] = self.model[name]
            if not path.exists():
                del self.model[name]
            else:  # two names of one file: written again by neither
                os.unlink(path)
                del self.model[name]

    def run(self):
        try:
            while not self.stopped.is_set():
                self.step()
                self.steps += 1
        except BaseException as e:  # told by the test
            self.failure = e


@pytest.mark.parametrize("passthrough", MODES)
def test_every_change_happens_once(mount, passthrough):
    """Two programs change names and bytes while the process is killed again and again: none of their calls fails, none is made
    twice, and what is there at the end is what they made."""
    one = mount(passthrough=passthrough)
    workers = []
    for i in range(2):
        (one.path / str(i)).mkdir()
        workers.append(Worker(one.path / str(i), seed=i))
        workers[-1].start()
    pause = random.Random(7)
    try:
        for _ in range(DEATHS):
            time.sleep(pause.uniform(0.05, 0.4))
            kill_serving(one)
        before = [w.steps for w in workers]
        harness.wait_until(lambda: all(w.failure or w.steps > n + 5 for w, n in zip(workers, before)), 60, "going on")
    finally:
        for w in workers:
            w.stopped.set()
            w.join()
    for w in workers:
        assert w.failure is None, "".join(traceback.format_exception(w.failure)) + one.log()
        assert {p.name: p.read_bytes() for p in w.top.iterdir()} == w.model


@pytest.mark.parametrize("how", ["umount", "fusermount3", "SIGTERM"])
def test_the_successor_ends_as_its_predecessor_would(mount, how):
    """After a take-over the mount ends by each of its ends, with status 0 and nothing left mounted."""
    one = mount()
    (one.path / "f").write_bytes(b"kept")
    kill_serving(one)
    assert (one.path / "f").read_bytes() == b"kept"
    if how == "umount":
        one.node.cli("umount", str(one.path))
    elif how == "fusermount3":
        subprocess.run(["fusermount3", "-u", str(one.path)], check=True)
    else:
        one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(200) == 0
    assert not mounted.is_mounted(one.path)
    one.process = None


def test_a_broken_way_to_the_node_is_waited_for(node, mount, work):
    """The node's socket cannot be reached, by an error that is none of a node which does not run: who takes over waits for it as well,
    and programs with it. (Seen to fail where connect_again, mount/mount.c, knew some errors only: six of them ended the mount.)"""
    way, run = work / harness.random_name("way"), os.path.split(node.socket_path)
    way.symlink_to(run[0])
    one = mount(socket=str(way / run[1]))
    (one.path / "f").write_bytes(b"before")
    with open(one.path / "f", "rb", buffering=0) as f:
        way.unlink()
        way.symlink_to(way.name)  # ELOOP
        os.kill(one.serving(), signal.SIGKILL)
        harness.wait_until(lambda: "taking over when the node answers" in one.log(), what="the word for it")
        time.sleep(5)  # longer than six tries take
        assert one.process.poll() is None, one.log_tail()
        way.unlink()
        way.symlink_to(run[0])
        assert f.read() == b"before"


@need_strace
def test_a_machine_without_room_for_a_process_is_waited_for(mount):
    """No process can be made for a while when one is to take over: it is tried again, and programs wait. (Seen to fail without
    start_process, keeper.c: the mount was dead.)"""
    one = mount()
    (one.path / "f").write_bytes(b"before")
    with open(one.path / "f", "rb", buffering=0) as f:
        calls = "clone,clone3,fork,vfork"
        with traced(one.process.pid, "-e", f"trace={calls}", "-e", f"inject={calls}:error=EAGAIN:when=1..5", follow=False):
            kill_serving(one)
            assert f.read() == b"before"
    assert "nobody can take over so far" in one.log()


def test_who_kills_the_keeper_ends_the_mount(mount):
    """The process that was started stands for the mount: kill -9 of it leaves a dead mount, and the process that served ends."""
    one = mount()
    pid = one.serving()
    os.kill(one.process.pid, signal.SIGKILL)
    harness.wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), what="its end")
    with pytest.raises(OSError) as caught:
        os.listdir(one.path)
    assert caught.value.errno == errno.ENOTCONN
    one.clean_up()
    one.process = None


def test_who_dies_again_and_again_is_not_replaced(mount):
    """More deaths than a keeper bears end the mount, and the log says why."""
    one, kills = mount(), 0

    def gives_up():
        return "giving up" in one.log()

    while not gives_up() and kills < 10 * DEATHS:  # a slow machine does not bring so many into a minute at once
        pid = one.serving()
        os.kill(pid, signal.SIGKILL)
        kills += 1
        # Not by its children alone: at its end the keeper has one that looks for leaks.
        harness.wait_until(lambda: gives_up() or one.log().count("another one takes over") == kills, 200, "what becomes of it")
        harness.wait_until(lambda: gives_up() or one.serving() not in (pid, None), 200, "another process")
    assert kills > DEATHS and one.process.wait(200) == 1
    assert gives_up()
    with pytest.raises(OSError) as caught:
        os.listdir(one.path)
    assert caught.value.errno == errno.ENOTCONN
    one.clean_up()
    one.process = None


