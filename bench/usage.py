"""What a measurement costs: CPU time and memory of all processes of a system and of the client that measures, and a limit on
the memory of clients where the machine allows one."""

import contextlib
import os
import pathlib
import resource
import shutil
import time

from lab import MemoryWatch, say

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CGROUP = pathlib.Path("/sys/fs/cgroup")
LEAST_LIMIT_BYTES = 24 << 20  # a reader of blocks of 1 MiB with read-ahead was killed each time in 5 MiB, and now and then in 10


def process_clock(pid):
    """The clock of the time that all threads of a process ran, those that ended included, as clock_getcpuclockid(3) makes it: what
    /proc tells of the same is rounded down to ticks of 10 ms, twice for each process."""
    return ~pid << 3 | 2


def cpu_seconds(pids):
    """User and system time of these processes and of those of their children that ended, by pid."""
    seconds = {}
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
            of_children = int(fields[13]) + int(fields[14])
            seconds[pid] = time.clock_gettime(process_clock(pid)) + of_children / TICKS_PER_S
    return seconds


class Usage:
    """Of the processes that pids() names, during the block: `cpu_s`, and `memory_bytes` at its peak. The programs of the lab that
    ran meanwhile (the readers) are counted in cpu_s: work that one system does in the kernel on behalf of its reader is another's in a
    daemon."""

    def __init__(self, pids):
        self.pids, self.cpu_s, self.memory_bytes = pids, 0.0, 0
        self._watch = None

    @staticmethod
    def _clients():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def __enter__(self):
        now = self.pids()
        self._before, self._clients_before = cpu_seconds(now), self._clients()
        self._watch = MemoryWatch(now, every_s=0.05)
        self._watch.__enter__()
        return self

    def __exit__(self, *_):
        self._watch.__exit__()
        after = cpu_seconds(self.pids())
        self.cpu_s = sum(s - self._before.get(pid, 0) for pid, s in after.items()) + self._clients() - self._clients_before
        self.memory_bytes = self._watch.peak_bytes


class ClientLimit:
    """A memory cgroup for the programs that read, so that the page cache they fill is bounded: `wrap(argv)` gives the command that
    runs inside it. `limit_bytes` is what it came to: a limit too small for a reader's own pages is raised to LEAST_LIMIT_BYTES.
    Without the rights, or the controller, wrap changes nothing and `limit_bytes` is None."""

    def __init__(self, limit_bytes):
        limit_bytes = max(limit_bytes, LEAST_LIMIT_BYTES)
        self.limit_bytes = self._dir = None
        for parent, name in ((CGROUP / "memory", "memory.limit_in_bytes"), (CGROUP, "memory.max")):
            directory = parent / f"forebay-bench-{os.getpid()}"
            try:
                directory.mkdir()
                self._dir = directory
                (directory / name).write_text(str(limit_bytes))
                self.limit_bytes = limit_bytes
                return
            except OSError:
                self.close()
        say("clients run without a memory limit: no memory cgroup can be made here")

    def wrap(self, argv):
        if self.limit_bytes is None:
            return [str(a) for a in argv]
        return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(self._dir), *map(str, argv)]

    def close(self):
        if self._dir is not None:
            with contextlib.suppress(OSError):
                self._dir.rmdir()
            self._dir = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def tmpfs(lab):
    """A directory in memory, or None: /dev/shm, when it has room for `lab`'s small data sets."""
    shm = pathlib.Path("/dev/shm")
    with contextlib.suppress(OSError):
        if shutil.disk_usage(shm).free > 2 << 30:
            return shm / f"forebay-bench-{os.getpid()}"
    return None
