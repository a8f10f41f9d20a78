"""What the random walks share: the loop, and mappings that need no descriptor.

    class Walk(walked.Walk):
        def do_something(self): ...          # one step; what it finds is compared with the model
        def check(self): ...                 # after each step

    Walk(seed).run(seconds)

Environment:
    FOREBAY_WALK_SECONDS   how long each walk is
    FOREBAY_TEST_SEED      what they begin with (1)
    FOREBAY_WALK_SHOWN     how many of the last steps are printed when one finds a difference (40)
"""

import ctypes
import os
import random
import time

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


class Mapping:
    """A shared mapping of the first bytes of a file. It has no descriptor of its own, as Python's have: what is stored into it after
    the last close has nobody else to be told of."""

    def __init__(self, fd, size, is_writable):
        self.size, self.is_writable = size, is_writable
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

    def run(self, seconds):
        names = [name for name in dir(self) if name.startswith("do_")]
        weights = [self.weights.get(name, 1) for name in names]
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
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
