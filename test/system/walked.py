"""What the random walks share: the loop, mappings that need no descriptor, and who kills the node and the processes of mounts meanwhile.

    class Walk(walked.Walk):
        def do_something(self): ...          # one step; what it finds is compared with the model
        def check(self): ...                 # after each step

    Walk(seed).run(seconds)
    with walked.Killer(node, mounts, seed) as killer:
        Walk(seed).run(seconds, killer)

Environment:
    FOREBAY_WALK_SECONDS   how long each walk is
    FOREBAY_TEST_SEED      what they begin with (1)
    FOREBAY_WALK_SHOWN     how many of the last steps are printed when one finds a difference (40)
"""

import contextlib
import ctypes
import os
import random
import signal
import threading
import time

import harness

SHOWN_NOTES = int(os.environ.get("FOREBAY_WALK_SHOWN", 40))
PAGE = os.sysconf("SC_PAGESIZE")
PROT_READ, PROT_WRITE, MAP_SHARED, MS_SYNC = 1, 2, 1, 4

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def walk_seconds(default):
    return float(os.environ.get("FOREBAY_WALK_SECONDS", default))


def seed_of(*words):
    """A seed for each walk, from the run's own."""
    return int(os.environ.get("FOREBAY_TEST_SEED", 1)) + sum(map(ord, "".join(words)))


def _errno():
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def fallocate(fd, mode, at, n):
    if libc.fallocate(fd, mode, at, n) != 0:
        raise _errno()


def copy_range(source, at, target, to, n):
    """n bytes within the kernel, however many pieces it takes."""
    done = 0
    while done < n:
        moved = os.copy_file_range(source, target, n - done, at + done, to + done)
        assert moved > 0, f"{done} of {n} bytes copied"
        done += moved


class Mapping:
    """A shared mapping of the first bytes of a file. It has no descriptor of its own, as Python's have: what is stored into it after
    the last close has nobody else to be told of."""

    def __init__(self, fd, size, is_writable):
        self.fd, self.size, self.is_writable = fd, size, is_writable
        self.address = libc.mmap(None, size, PROT_READ | (PROT_WRITE if is_writable else 0), MAP_SHARED, fd, 0)
        if self.address == ctypes.c_void_p(-1).value:
            raise _errno()

    def load(self, at, n):
        body = ctypes.create_string_buffer(n)
        ctypes.memmove(body, self.address + at, n)  # without Python's lock: whoever serves the page may be started by another thread
        return body.raw

    def store(self, at, body):
        ctypes.memmove(self.address + at, body, len(body))

    def sync(self):
        if libc.msync(self.address, self.size, MS_SYNC) != 0:
            raise _errno()

    def close(self):
        if libc.munmap(self.address, self.size) != 0:
            raise _errno()


class Walk:
    """Steps are the methods do_*, each taken as often as `weights` says (1)."""

    weights = {}

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(seed)
        self.trace = []
        self.steps = 0

    def note(self, *words):
        """Says in the trace what a step does."""
        self.trace = self.trace[1 - SHOWN_NOTES:] + [" ".join(map(str, words))]

    def chance(self, p):
        return self.random.random() < p

    def check(self):
        """What holds after each step."""

    def run(self, seconds, killer=None):
        """For so long, and until the killer has killed some."""
        names = [name for name in dir(self) if name.startswith("do_")]
        weights = [self.weights.get(name, 1) for name in names]
        end = time.monotonic() + seconds
        if killer:
            killer.begin(self)
        try:
            while time.monotonic() < end or killer and killer.goes_on():
                name = self.random.choices(names, weights)[0]
                getattr(self, name)()
                self.check()
                self.steps += 1
            self.finish()
        except BaseException:
            print(f"seed {self.seed}, step {self.steps}:\n  " + "\n  ".join(self.trace))
            raise
        finally:
            self.abandon()
        return self.steps

    def finish(self):
        """Closes what is open, and compares what is left."""

    def abandon(self):
        """Closes what is still open, so that what was mounted can be unmounted."""


class Killer(threading.Thread):
    """kill -9 of a node (restarted.Node), and of the processes that serve its mounts, again and again, at any moment of a walk. The node
    is started again, the processes are replaced by themselves. An error of the killer's ends its walk.

    is_gentle: no step of the walk sees two kills.
    """

    KILLS = 4  # that a walk sees at least
    DEATHS, WITHIN_S = 4, 61  # of one mount: its keeper bears five within a minute

    def __init__(self, node, mounts, seed, is_gentle=False):
        super().__init__(daemon=True)
        self.node, self.mounts, self.is_gentle = node, mounts, is_gentle
        self.random = random.Random(seed)
        self.node_lock = threading.RLock()  # held while the node does not run
        self.stopped = threading.Event()
        self.deaths = {mount: [] for mount in mounts}
        self.kills, self.step, self.walk, self.error = 0, 0, None, None
        self.served = 0  # changes around each kill of a process that serves

    def begin(self, walk):
        self.walk = walk
        self.start()

    def goes_on(self):
        """Whether the walk has to go on for more kills."""
        if self.error:
            raise self.error
        return self.kills < self.KILLS

    @contextlib.contextmanager
    def node_runs(self):
        """Within it the node is not killed."""
        with self.node_lock:
            yield

    # ---- the thread ----

    def run(self):
        kinds = self.kinds()
        try:
            while not self.stopped.wait(self.random.uniform(0, 1.5)):
                if not self.is_gentle or self.walk.steps > self.step + 1:
                    self.kills += self.random.choice(kinds)()
                    self.step = self.walk.steps
        except Exception as error:  # told by goes_on
            self.error = error

    def kinds(self):
        """What is killed. Of what has no name any more, and is open without passthrough, nobody knows when the node and the process that
        serves it die one before the other has all again, of which nothing tells: so of such mounts it is the one or the other."""
        kept = [mount for mount in self.mounts if mount.uses_passthrough()]
        if self.is_gentle:
            return [self.kill_node, self.kill_serving]
        if len(kept) == len(self.mounts):
            return [self.kill_node, self.kill_serving, self.kill_both]
        if self.random.random() < 0.5:
            return [self.kill_serving]
        return [self.kill_node, lambda: self.kill_serving(kept), self.kill_both] if kept else [self.kill_node]

    def kill_node(self, meanwhile=lambda: 0):
        if self.is_gentle:
            for mount in self.mounts:
                if not mount.uses_passthrough():
                    os.statvfs(mount.path)  # who takes over answers when it has what is open again
        with self.node_lock:
            self.walk.note("-- kill -9 of the node")
            self.node.kill()
            time.sleep(self.random.choice([0, 0, 0.1]))
            n = meanwhile()
            self.node.start()
            self.walk.note("-- the node was started")
        return 1 + n

    def kill_serving(self, mounts=None):
        mount = self.random.choice(mounts or self.mounts)
        now, pid = time.monotonic(), mount.serving()
        self.deaths[mount] = [at for at in self.deaths[mount] if now - at < self.WITHIN_S]
        if pid is None or len(self.deaths[mount]) >= self.DEATHS:
            return 0
        self.deaths[mount].append(now)
        self.walk.note(f"-- kill -9 of process {pid}, which served mount {self.mounts.index(mount)}")
        self.served += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.served += 1
        return 1

    def kill_both(self):
        """By passthrough the kernel has what is open and has no name; else it is gone with both."""
        return self.kill_node(meanwhile=lambda: self.kill_serving([m for m in self.mounts if m.uses_passthrough()]))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.stopped.set()
        if self.walk:
            self.join(harness.STOP_SECONDS + harness.READY_SECONDS)
        if kind is None and self.error:
            raise self.error
