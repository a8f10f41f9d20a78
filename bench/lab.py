"""What the measurements share: an origin, a proxy in front of it, nodes, mounts, the two load programs, and pairs.

Everything lies in one directory of the lab, on one file system, and is gone when the lab is closed. Processes are those
of the system tests (test/system/harness.py): they listen on free ports of the loopback and end with this one.
"""

import contextlib
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import flames
from goals import PAIRS

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("BUILD") or ROOT / "build").resolve()
os.environ.setdefault("FOREBAY_BIN", str(BUILD / "forebay"))
os.environ.setdefault("FOREBAY_SHAPER_BIN", str(BUILD / "bench/shaper"))
sys.path.insert(0, str(ROOT / "test/system"))

import harness  # noqa: E402  (needs the path above)

MIB = 1 << 20
GIB = 1 << 30
OURS = "forebay"  # the name of our side; of others that are ours it is the beginning
QUICK_PAIRS, FLAME_PAIRS = 3, 2
SHAPE = {"first_byte": "20ms", "per_connection": "50MB/s", "total": "300MB/s"}
SHAPED_BYTES_PER_S = 300e6
VALIDATE = "ttl:1h"  # by default attributes are checked again after 60 s: requests to the origin in the middle of longer epochs
HALT_POLL = pathlib.Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")  # of a virtual machine
PROGRAM_SECONDS = 1800  # no sample takes as long: a file system that answers nobody does not stop the run for ever
MOUNT_SECONDS, UMOUNT_SECONDS = 30, 90  # `forebay umount` itself gives up after 60
FILL_ABOVE_MIB = 2048  # what fills go to has been touched before; this much free memory more does not matter
FREE_BYTES, QUICK_FREE_BYTES = 40 * GIB, 10 * GIB


def steal():
    """(stolen, all) CPU time of the machine so far, in ticks."""
    ticks = [int(t) for t in open("/proc/stat").readline().split()[1:9]]
    return ticks[7], sum(ticks)


@contextlib.contextmanager
def stolen():
    """Gives a list that holds, afterwards, the share of CPU time the hypervisor took during the block, in percent."""
    share = []
    before = steal()
    yield share
    after = steal()
    share.append(100 * (after[0] - before[0]) / max(1, after[1] - before[1]))


def spread(values):
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


last_said = ""


def say(text):
    global last_said
    last_said = text
    print(f"bench: {text}", file=sys.stderr, flush=True)


def machine():
    """What a reader of the results must know of this computer."""
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               platform.machine())
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    release = next((line.split("=", 1)[1].strip().strip('"') for line in open("/etc/os-release")
                    if line.startswith("PRETTY_NAME=")), "")
    known = {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory / MIB, 1), "kernel": platform.release(),
             "system": release}
    return {**known, "halt_poll_ns": int(HALT_POLL.read_text())} if HALT_POLL.exists() else known


def file_system(path):
    """Type of the file system that holds path."""
    for command in (["findmnt", "-n", "-o", "FSTYPE", "-T", path], ["stat", "-f", "-c", "%T", path]):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)  # a chroot has no mount of its own to find
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return "unknown"


def write_random(path, size, seed):
    """A file of pseudo-random bytes, on the disk when this returns."""
    import random
    source = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for at in range(0, size, 8 * MIB):
            file.write(source.randbytes(min(8 * MIB, size - at)))
        file.flush()
        os.fsync(file.fileno())


def read_through(path):
    """Reads a file once, so that it is in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(8 * MIB):
            pass


def forget(paths):
    """Writes files back and drops them from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def write_again(source, path):
    """Writes the bytes of a file into another one, as write_random writes them."""
    with open(source, "rb", buffering=0) as read, open(path, "wb") as file:
        while piece := read.read(8 * MIB):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def empty(directory):
    """Takes the bytes of all files below a directory away, of the disk and of memory; their names stay."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.truncate(path, 0)


def same(a, b):
    """Whether two files hold the same bytes."""
    return subprocess.run(["cmp", "-s", a, b]).returncode == 0


def must_be_same(source, path):
    """Who is fast with other bytes has no figure: a file that was read holds those of its source."""
    if not same(source, path):
        raise RuntimeError(f"{path}: gave other bytes than {source}")


def links_of(directory, names, source):
    """A directory with one file by all these names, for what compares objects by their names."""
    directory.mkdir()
    for name in names:
        os.link(source, directory / name)
    return directory


class Mount:
    """`forebay mount`, until unmounted."""

    def __init__(self, node, bucket, directory, *options):
        self.node, self.dir = node, pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.process = None
        self.log = open(self.dir.parent / (self.dir.name + ".log"), "ab")
        argv = ["setpriv", "--pdeathsig", "TERM", "--", str(node.binary), "mount", "--foreground", *options, bucket, str(self.dir)]
        self.process = subprocess.Popen(argv, env={**os.environ, "FOREBAY_SOCKET": str(node.socket_path)},
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            harness.wait_until(self._up, MOUNT_SECONDS, f"mount of {bucket}")
        except BaseException:
            self.close()
            raise

    def mounted(self):
        return any(line.split()[4] == str(self.dir) for line in open("/proc/self/mountinfo"))

    def _up(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"forebay mount failed: {pathlib.Path(self.log.name).read_text()}")
        return self.mounted()

    @property
    def pid(self):
        return self.process.pid

    def close(self):
        try:
            if self.mounted():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run([str(self.node.binary), "umount", str(self.dir)], timeout=UMOUNT_SECONDS, stdout=self.log, stderr=self.log)
            if self.mounted():
                subprocess.run(["fusermount3", "-u", "-z", str(self.dir)], check=False)
            if self.process.poll() is None:
                self.process.terminate()
            self.process.wait(MOUNT_SECONDS)
        finally:  # whatever happened, nothing goes on: the directory is removed next
            self.process.kill()
            self.process.wait()
            self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class MemoryWatch:
    """Samples the anonymous and shared memory of processes until the end of the block; `peak_bytes` afterwards."""

    def __init__(self, pids, every_s=0.01):
        self.pids, self.every_s, self.peak_bytes = pids, every_s, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @staticmethod
    def resident(pid):
        """RssAnon and RssShmem; mapped files and page cache do not count."""
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
            return sum(int(lines[key].split()[0]) for key in ("RssAnon", "RssShmem") if key in lines) * 1024
        return 0

    def _watch(self):
        while True:  # once at least, however short the block is
            self.peak_bytes = max(self.peak_bytes, sum(self.resident(pid) for pid in self.pids))
            if self._end.wait(self.every_s):
                return

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


class NoRoom(RuntimeError):
    """The directory has too little room; the text says how much."""


class Lab:
    """The directory, the origin, and how many pairs to take."""

    flames = None  # flames.Flames, where graphs are asked for in place of figures

    def __init__(self, directory=None, quick=False):
        self.quick = quick
        self.pairs = QUICK_PAIRS if quick else PAIRS
        self._stack = contextlib.ExitStack()
        base = pathlib.Path(directory or os.environ.get("TMPDIR") or "/var/tmp").resolve()
        free = shutil.disk_usage(base).free
        needed = QUICK_FREE_BYTES if quick else FREE_BYTES
        if free < needed:
            raise NoRoom(f"{base} has {free // GIB} GiB free and {needed // GIB} are needed: give another directory with --dir")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=base))
        self._stack.callback(harness.tree_remove, self.dir)
        self._count = 0
        self._origin = None

    def close(self):
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def origin(self):
        if self._origin is None:
            self._origin = self._stack.enter_context(harness.Origin(self.dir / "origin"))
        return self._origin

    def path(self, name):
        """A path that nothing has used yet."""
        self._count += 1
        return self.dir / f"{self._count:03d}-{name}"

    def upload(self, files, bucket=None, origin=None):
        """Makes a bucket at the origin and puts files, {key: path}, into it; gives its name."""
        origin = origin or self.origin
        bucket = origin.new_bucket(bucket)
        client = origin.s3()
        for key, path in files.items():
            client.upload_file(str(path), bucket, key)
        return bucket

    @contextlib.contextmanager
    def shaper(self, origin=None, **shape):
        with harness.Shaper(self.path("shaper"), origin or self.origin, **shape) as running:
            yield running

    @contextlib.contextmanager
    def node(self, bucket=None, endpoint=None, keep=False, origin=None, **options):
        """A node with nothing in it, gone with its data at the end; it mirrors `bucket` of the origin, and looks as rarely as its peers do
        whether objects changed there. keep: the data stays until the lab closes. For half a minute after files were removed an ext4
        without a journal passes over each of their inodes whenever it makes a file, which is the time of the next node with many files."""
        directory = self.path("node")
        try:
            with harness.Node(directory, **options) as running:
                if bucket:
                    running.create_bucket(bucket, f"s3://{bucket}", validate=VALIDATE, **(origin or self.origin).properties(endpoint))
                yield running
        finally:
            if not keep:
                harness.tree_remove(directory)

    @contextlib.contextmanager
    def mount(self, node, bucket, *options):
        with Mount(node, bucket, self.path("mnt"), *options) as running:
            yield running

    def fill_memory(self):
        """Fills the free memory with page cache of a sparse file, as it is on a machine that has run for a while; not in a quick run. A
        virtual machine's free memory may not be there at all until it is touched: where it is not, a page costs the hypervisor ten
        times what reading 4 KiB costs us, and every cold figure is that of the hypervisor."""
        with open("/proc/meminfo", encoding="ascii") as lines:
            free_mib = next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemFree:"))
        if self.quick or free_mib < FILL_ABOVE_MIB:
            return
        path = self.path("sparse")
        say(f"filling {free_mib} MiB of free memory with page cache")
        with open(path, "wb") as f:
            f.truncate(free_mib * MIB)
        half = free_mib // 2
        readers = [subprocess.Popen(["dd", f"if={path}", "of=/dev/null", "bs=1M", f"skip={i * half}", f"count={half}"],
                                    stderr=subprocess.DEVNULL) for i in range(2)]
        try:
            if any(reader.wait() for reader in readers):
                raise RuntimeError(f"{path}: could not be read")
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()

    def program(self, name, *arguments):
        """Runs a program of the build that prints JSON."""
        done = subprocess.run([str(BUILD / "bench" / name), *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=PROGRAM_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"{name} {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def read(self, mode, path, block=MIB, count=0, seed=1):
        return self.program("reader", mode, path, block, count, seed)

    def read_at_once(self, readers, mode, path, block, count):
        """As many readers at the same time, each with places of its own; bytes of all over the time of the slowest."""
        return Lab.read_each(mode, [path] * readers, block, count)

    @staticmethod
    def read_each(mode, paths, block, count):
        """One reader for each path, all at the same time."""
        with contextlib.ExitStack() as stack:  # none goes on reading after another one failed, or the run was ended
            running = []
            for seed, path in enumerate(paths, 1):
                argv = [str(BUILD / "bench/reader"), mode, str(path), str(block), str(count), str(seed)]
                running.append(stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)))
                stack.callback(running[-1].kill)
            texts = [one.communicate(timeout=PROGRAM_SECONDS)[0] for one in running]
        if any(one.returncode for one in running):
            raise RuntimeError(f"reader {paths[0]}: failed")
        said = [json.loads(text) for text in texts]
        return {"bytes": sum(one["bytes"] for one in said), "seconds": max(one["seconds"] for one in said)}

    def get(self, address, targets, connections, requests=None, sealed=None, compare=None, keep=None, piece_kib=None):
        """Sends GETs for targets (lines of getload's list) to an address; with `sealed`, a directory of files, most of what comes over TLS
        is not decrypted, and what is, is compared with them; with `compare`, every byte is, which takes time that no figure is made of; with
        `keep`, every body becomes a file of that directory; `piece_kib`: what is taken out of a socket at a time."""
        listing = self.dir / "targets"
        listing.write_text("".join(t + "\n" for t in targets))
        options = ["--piece", piece_kib] if piece_kib else []
        options += ["--sealed", sealed] if sealed else ["--compare", compare] if compare else ["--keep", keep] if keep else []
        return self.program("getload", *options, address, listing, connections, requests or len(targets))

    @staticmethod
    def targets(client, bucket, keys, ranges=None):
        """Presigned request targets, and the address they are for: one per key, or one per range "0-1023" of one key."""
        parameters = [{"Bucket": bucket, "Key": key} for key in keys]
        if ranges:
            parameters = [{**parameters[0], "Range": f"bytes={one}"} for one in ranges]
        urls = [client.generate_presigned_url("get_object", Params=p, ExpiresIn=86400) for p in parameters]
        address = urls[0].split("/")[2]
        targets = [url.split(address, 1)[1] for url in urls]
        address = "https://" + address if urls[0].startswith("https:") else address
        return [f"{t} {r}" for t, r in zip(targets, ranges)] if ranges else targets, address

    def watching(self, side=OURS, part=""):
        """While a sample of a side is taken: perf looks on where that is ours and flame graphs are asked for. part: of what was said."""
        if self.flames is None or not side.startswith(OURS):
            return contextlib.nullcontext()
        return self.flames.sampling(flames.titled(last_said, side, OURS) + (f": {part}" if part else ""))

    def take_pairs(self, ours, reference, pairs=None):
        """Runs both functions in turns, the first one changing with every pair; each gives a number. Gives the list of
        (ours, reference) and the share of stolen time."""
        taken = []
        with stolen() as share:
            for i in range(pairs or self.pairs):
                b = reference() if i % 2 else None
                with self.watching():
                    a = ours()
                b = b if i % 2 else reference()
                taken.append((a, b))
        return taken, share[0]


def pair_row(title, goal, taken, stolen_percent, unit, scale=1.0, at_most=False):
    """A row of the results from pairs: the ratio of each, its median against the goal."""
    ratios = [a / b for a, b in taken]
    middle = statistics.median(ratios)
    return {"title": title, "goal": ("at most " if at_most else "at least ") + f"{goal:g}", "ratio": spread(ratios),
            "ours": spread([a * scale for a, _ in taken]), "reference": spread([b * scale for _, b in taken]), "unit": unit,
            "n": len(taken), "steal_percent": stolen_percent, "met": middle <= goal if at_most else middle >= goal,
            "pairs": [[round(a * scale, 4), round(b * scale, 4)] for a, b in taken]}


def value_row(title, goal_text, value_text, met, stolen_percent=None, **more):
    """A row whose result is one figure. met None: no goal."""
    return {"title": title, "goal": goal_text, "value": value_text, "steal_percent": stolen_percent, "met": met, **more}


def now():
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
