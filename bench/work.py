"""Measurements of whole kinds of work: training that computes, a cache of half the data, checkpoints, names, models."""

import contextlib
import json
import os
import shutil
import subprocess
import time

import lab as lab_module
import peers
from lab import GIB, MIB, SHAPE, harness, pair_row, say, spread, stolen, value_row
from peers import tree
from usage import ClientLimit, Usage, tmpfs
from versus import (BESIDE, DISK, OURS, TMPFS, NotRun, asked, bench, cost_row, costs, epoch, make_files, make_objects, measured, mounted, no_processes,
                    quiet, rounds, rows_against, rows_left_out, sources_of, those_that, upload_all)

TRAIN_FILES, PEER_TRAIN_FILES, QUICK_TRAIN_FILES, TRAIN_BYTES = 4000, 2000, 960, 110_000
TRAIN = ["--batch", "64", "--compute", "40ms", "--prefetch", "4", "--workers", "2"]
HALF_FILES, QUICK_HALF_FILES, HALF_BYTES = 200, 60, 2 * MIB
HALF_EPOCHS = 4
DROPPED_BYTES, QUICK_DROPPED_BYTES = GIB, 128 * MIB
CHECKPOINT_BYTES, QUICK_CHECKPOINT_BYTES = 2 * GIB, 128 * MIB
META_FILES, QUICK_META_FILES, META_PER_DIRECTORY = 100_000, 2_000, 1_000
SYNCED_DIRECTORIES = 10
DISK_EVERY = 3  # rounds of names: no goal is a share of the disk's, which takes as long as ours
PEER_CHECKPOINT_BYTES, QUICK_PEER_CHECKPOINT_BYTES = 256 * MIB, 64 * MIB
MODEL_BYTES, QUICK_MODEL_BYTES = 512 * MIB, 64 * MIB
COLD_MODEL_BYTES, QUICK_COLD_MODEL_BYTES = GIB, 128 * MIB


# ---- training ----

def train_sample(pids, directory):
    said = {}
    sample = measured(pids, lambda: said.update(epoch(directory, 2, *TRAIN)) or said)
    return {**sample, "utilisation": 100 * said["accelerator_utilisation"]}


def train(lab):
    """Emulated training: batches of 64 files of 110 KB, 40 ms of computing in each step, shuffled, two workers that read four batches
    ahead, every byte verified. The accelerator's utilisation is the share of the time in which it computes. Ours: through the mount, all
    in the cache; reference: the same files on tmpfs."""
    memory = tmpfs(lab)
    if memory is None:
        raise NotRun("/dev/shm has no room for the reference")
    count = QUICK_TRAIN_FILES if lab.quick else TRAIN_FILES
    plain, bucket = make_files(lab, count, TRAIN_BYTES), make_objects(lab, count, TRAIN_BYTES)
    try:
        shutil.copytree(plain, memory)
        with lab.node(bucket) as node, lab.mount(node, bucket) as mount:
            for directory in (mount.dir, memory):
                epoch(directory, 8)
            say(f"emulated training, {lab.pairs} pairs")
            taken, share = rounds(lab, {OURS: lambda: train_sample(lambda: tree([node.pid, mount.pid]), mount.dir),
                                        TMPFS: lambda: train_sample(no_processes, memory)})
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    pairs = [(a["utilisation"], b["utilisation"]) for a, b in zip(taken[OURS], taken[TMPFS])]
    ours, reference = (spread([pair[i] for pair in pairs]) for i in (0, 1))
    points = spread([b - a for a, b in pairs])
    lost = points["median"]
    text = f"{ours['median']:.1f} % ({ours['min']:.1f} to {ours['max']:.1f}) against {reference['median']:.1f} %"
    return [value_row("Emulated training, accelerator utilisation, warm, of tmpfs's", "no less than tmpfs minus 1 point", text, lost <= 1,
                      share, detail=f"{lost:.2f} points less in the median of {len(pairs)} pairs", lost_points=lost, spread=points,
                      pairs=[[round(a, 3), round(b, 3)] for a, b in pairs], ours_cost=costs(taken[OURS]), reference_cost=costs(taken[TMPFS]))]


def peers_train(lab):
    """The same training through the mounts of all systems and on the disk, beside tmpfs: the accelerator's utilisation. All of the files were
    read before."""
    count = QUICK_TRAIN_FILES if lab.quick else PEER_TRAIN_FILES
    plain = make_files(lab, count, TRAIN_BYTES)
    bucket, sources = make_objects(lab, count, TRAIN_BYTES), sources_of(plain)
    title, left_out = f"Emulated training on {count:,} files of 110 KB through the mount, accelerator utilisation", {}

    def once(system):
        sample = train_sample(system.pids, system.dir)
        return {**sample, "rate": sample["utilisation"]}

    with lab.shaper() as shaper, mounted(lab, bucket, shaper.endpoint, sources, left_out) as running:
        running = those_that(running, left_out, lambda system: epoch(system.dir, 8))
        say(f"emulated training through all mounts: {', '.join(running)}")
        taken, share = rounds(lab, {name: lambda s=system: once(s) for name, system in running.items()}, left_out)
        read_ahead_kb = running[OURS].read_ahead_kb
    return rows_against(taken, share, title, "%", 1.0, goal=0.99, read_ahead_kb=read_ahead_kb) + rows_left_out(left_out, title)


# ---- half a cache ----

def half(lab):
    """A cache of half the data set and shuffled epochs: bytes that a proxy in front of the origin counts from the third of them on. Each item
    is read once per epoch, so that one which evicts what was used longest ago keeps nothing; what is kept unread here gives half."""
    count = QUICK_HALF_FILES if lab.quick else HALF_FILES
    bucket = make_objects(lab, count, HALF_BYTES)
    total, shares, requests = count * HALF_BYTES, [], []
    cache = lab.path("half-cache")
    with stolen() as share, lab.shaper() as shaper, lab.node(bucket, endpoint=shaper.endpoint, disk=f"{cache}:{total // 2}") as node, \
            lab.mount(node, bucket) as mount:
        for number in range(HALF_EPOCHS):
            shaper.reset()
            epoch(mount.dir, 2, "--seed", number + 1)
            found = asked(shaper, total)
            shares.append(found["origin_bytes"])
            requests.append(found["origin_requests"])
    harness.tree_remove(cache)
    worst = max(shares[2:])
    return [value_row("Origin bytes of an epoch with a cache of half the data set, of the data set's", "at most 0.55", f"{worst:.3f}",
                      worst <= 0.55, share[0], detail="the most of the third epoch and later; all: " + ", ".join(f"{s:.3f}" for s in shares) +
                      "; requests " + ", ".join(f"{n:,}" for n in requests))]


# ---- the page cache dropped ----

def dropped(lab):
    """Warm in the node's cache, but not in memory: sequential reads of 1 MiB with the page cache dropped before each, through the mount
    and of a copy on the same disk. The client runs in a memory cgroup of a fifth of the file where the machine allows one."""
    size = QUICK_DROPPED_BYTES if lab.quick else DROPPED_BYTES
    plain = lab.path("plain") / "dropped.bin"
    lab_module.write_random(plain, size, "dropped")
    bucket = lab.upload({"dropped.bin": plain})
    with lab.node(bucket) as node, lab.mount(node, bucket) as mount, ClientLimit(size // 5) as limit:
        ours = mount.dir / "dropped.bin"
        lab_module.must_be_same(plain, ours)
        extents = [p for p in node.data.rglob("*") if p.is_file() and p.stat().st_size == size]

        def read(path):
            lab_module.forget([plain, *extents])
            with open(ours, "rb") as file:  # the mount's own pages, too: there are some where it has no passthrough
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            argv = limit.wrap([lab_module.BUILD / "bench/reader", "seq", path, MIB, 1])
            return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)

        say(f"page cache dropped, {lab.pairs} pairs")
        taken, share = rounds(lab, {OURS: lambda: measured(lambda: tree([node.pid, mount.pid]), lambda: read(ours)),
                                    DISK: lambda: measured(no_processes, lambda: read(plain))})
        note = f"client limited to {limit.limit_bytes // MIB} MiB" if limit.limit_bytes else "no memory cgroup for the client here"
    row = cost_row(f"Sequential reads of {size // MIB} MiB, page cache dropped, of the disk's (no goal here)", 0.95, taken[OURS], taken[DISK], share,
                   "MB/s", 1e-6)
    return [{**row, "goal": "-", "met": None, "note": note}]


# ---- scratch: checkpoints and names ----

@contextlib.contextmanager
def scratch_node(lab):
    """A node with a bucket "scratch" without origin, or NotRun where this version has none."""
    with lab.node() as node:
        made = node.cli("bucket", "create", "scratch", check=False)
        if made.returncode != 0:
            raise NotRun(f"no bucket without origin can be made: {made.stderr.strip()}")
        yield node


@contextlib.contextmanager
def scratch_mount(lab):
    """(node, mount) of a bucket without origin, or NotRun where this version has none that can be mounted and written."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(scratch_node(lab))
        try:
            mount = stack.enter_context(lab.mount(node, "scratch"))
            (mount.dir / "probe").mkdir()
            (mount.dir / "probe").rmdir()
        except (RuntimeError, OSError, AssertionError) as error:
            raise NotRun(f"a bucket without origin cannot be mounted and written: {str(error).splitlines()[0]}") from error
        yield node, mount


def checkpoint_once(pids, directory, size, *options):
    """Rates of writing and of reading back, and what both cost for each GB that was moved."""
    with Usage(pids) as usage:
        said = bench("checkpoint", directory, "--size", size, "--tensor", "64MiB", "--repeat", 1, *options)
    return {"rate": said["write_bytes_per_s"], "back": said["read_back_bytes_per_s"], "memory_bytes": usage.memory_bytes,
            "cpu_s_per_gb": usage.cpu_s / (2 * said["bytes"] / 1e9)}


FREED_SECONDS = 60
CHECKPOINT_TITLE = "Checkpoint write through the mount, fsync included"


def wait_freed(node, size):
    """Removing a scratch file returns before its bytes are given back: until they are, whoever writes next shares disk and memory with
    that. The file system gives them back before it returns."""
    def left():
        held = 0
        for path in node.data.glob("*/hard/*/*"):
            with contextlib.suppress(FileNotFoundError):
                held += path.stat().st_blocks * 512
        return held

    harness.wait_until(lambda: left() < size // 4, FREED_SECONDS, "the checkpoint's bytes given back")


def checkpoint_rows(lab, title, *options, mounted=scratch_mount, settle=wait_freed):
    """settle: called after each of ours, with the node and the bytes of a checkpoint."""
    size = QUICK_CHECKPOINT_BYTES if lab.quick else CHECKPOINT_BYTES
    plain = lab.path("checkpoints")
    plain.mkdir()

    def ours():
        sample = checkpoint_once(lambda: tree([node.pid, mount.pid]), mount.dir, size, *options)
        settle(node, size)
        return sample

    lab.fill_memory()
    with mounted(lab) as (node, mount):
        say(f"checkpoints of {size // MIB} MiB, {title}, {lab.pairs} pairs")
        taken, share = rounds(lab, {OURS: ours, DISK: lambda: checkpoint_once(no_processes, plain, size, *options)})
    back = [(a["back"], b["back"]) for a, b in zip(taken[OURS], taken[DISK])]
    written = cost_row(f"{CHECKPOINT_TITLE}, {title}, of the disk's", 0.9, taken[OURS], taken[DISK], share, "MB/s", 1e-6)
    return [{**written, "note": "costs are those of writing and reading back"},
            pair_row(f"Checkpoint read back through the mount, {title}, of the disk's", 0.9, back, share, "MB/s", 1e-6)]


def checkpoint(lab):
    """Checkpoints as torch.save writes them: one large write per tensor of 64 MiB, small ones between, fsync, close, rename; then read
    back and compared. Into a scratch bucket through the mount, and into a directory of the same disk."""
    return checkpoint_rows(lab, "one file")


def checkpoint_shards(lab):
    """The same in four files that are written at the same time."""
    return checkpoint_rows(lab, "4 shards", "--shards", 4)


@contextlib.contextmanager
def back_mount(lab):
    """(node, mount) of a mirror bucket with write=back, the only one there is."""
    bucket = lab.origin.new_bucket()
    with lab.node(bucket) as node:
        node.cli("bucket", "set", bucket, "write=back")
        node.back_bucket = bucket
        with lab.mount(node, bucket) as mount:
            yield node, mount


def checkpoint_back(lab):
    """The same as one file into a mirror bucket with write=back, whose fsync returns when the bytes are durable here; they are carried to the
    origin, and waited for, before the disk's turn comes."""
    def settle(node, _size):
        node.cli("flush", "--wait", node.back_bucket, timeout=600)
        os.sync()  # the origin's own

    return checkpoint_rows(lab, "one file, write=back", mounted=back_mount, settle=settle)


def as_after_nobody(lab, shaper, size):
    """The same before each sample, whoever was before it: nothing is on its way to the origin, nothing waits to be written back, and what was
    used last is memory that a file on the disk gave back: free memory that nobody has touched for some seconds costs a virtual machine more."""
    quiet(shaper)
    os.sync()
    path, zeros = lab.path("before"), bytes(MIB)
    with open(path, "wb", buffering=0) as file:
        for _ in range(2 * size // MIB):  # the client's bytes, and those of who keeps them
            file.write(zeros)
    path.unlink()


def peers_checkpoint(lab):
    """Checkpoints as torch.save writes them, without rename, which not all can, written through the mounts of all systems from the first byte
    to the end of close, without and with an fsync before it, then read back and compared; on the disk and on tmpfs, too. When close returns the
    origin has the bytes of forebay, s3fs, rclone off and JuiceFS, and SeaweedFS keeps them itself. rclone full carries them there afterwards,
    as forebay does with write=back, which is what stands beside it; with fsync that has them on its disk by then. Before each sample nobody
    asks the origin, everything is written back, and a file of twice the size was written and removed, whoever came before."""
    size = QUICK_PEER_CHECKPOINT_BYTES if lab.quick else PEER_CHECKPOINT_BYTES
    title, left_out = f"Checkpoint of {size // MIB} MiB written through the mount", {}
    back, others = peers.FOREBAY_BACK, peers.present(left_out)
    late = {back.name, *(peer.name for peer in others if peer.late)}

    def once(system, *options):
        as_after_nobody(lab, shaper, size)
        sample = checkpoint_once(system.pids, system.dir, size, "--no-rename", *options)
        system.settle()
        return sample

    rows = []
    with lab.shaper() as shaper, mounted(lab, lab.origin.new_bucket(), shaper.endpoint, {}, left_out, [back, *peers.LOCAL, *others]) as running:
        for named, options in ((title, ["--no-fsync"]), (f"{title}, with fsync", [])):
            say(f"checkpoints through all mounts: {', '.join(running)}; {named}")
            taken, share = rounds(lab, {name: lambda s=system: once(s, *options) for name, system in running.items() if name not in left_out},
                                  left_out)
            read_ahead_kb = running[OURS].read_ahead_kb
            rows += rows_against({name: samples for name, samples in taken.items() if name not in late}, share, named, "MB/s", 1e-6,
                                 read_ahead_kb=read_ahead_kb)
            if back.name in taken:
                behind = {name: samples for name, samples in taken.items() if name in late or name in BESIDE}
                rows += rows_against(behind, share, f"{named}, write=back", "MB/s", 1e-6, ours=back.name, read_ahead_kb=read_ahead_kb)
            rows += rows_left_out(left_out, named)
    return rows


META_GOALS = {"create": 10_000, "stat": 40_000, "rename": None, "unlink": None}


def created_with_synced_directories(directory, per_directory):
    """Files created per second when each directory is synced after its last one."""
    start = time.monotonic()
    for number in range(SYNCED_DIRECTORIES):
        folder = directory / f"synced-{number}"
        folder.mkdir(parents=True)
        for name in range(per_directory):
            os.close(os.open(folder / str(name), os.O_CREAT | os.O_WRONLY | os.O_EXCL))
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    rate = SYNCED_DIRECTORIES * per_directory / (time.monotonic() - start)
    shutil.rmtree(directory)
    return rate


def meta(lab):
    """Names on a scratch bucket: empty files in directories of 1,000, created, looked at, renamed and removed by four threads of
    one process, through the mount, and in every third round in a directory of the same disk, too; and created by one thread with an fsync of
    each directory."""
    count = QUICK_META_FILES if lab.quick else META_FILES
    plain = lab.path("names")
    plain.mkdir()
    options = ["--files", count // 4, "--per-directory", META_PER_DIRECTORY, "--workers", 4]
    with scratch_mount(lab) as (_node, mount):
        say(f"{count} empty files, {lab.pairs} rounds")
        taken, disk_taken = [], []
        with stolen() as share:
            for i in range(lab.pairs):
                with lab.watching():
                    taken.append(bench("meta", mount.dir, *options))
                if i % DISK_EVERY == 0:
                    disk_taken.append(bench("meta", plain, *options))
        synced, synced_share = [], 0
        if not lab.quick:
            synced, synced_share = lab.take_pairs(*(lambda d=d: created_with_synced_directories(d / "synced", META_PER_DIRECTORY)
                                                    for d in (mount.dir, plain)))
    rows = []
    for phase, goal in META_GOALS.items():
        ours, disk = (spread([one[phase]["per_s"] for one in side]) for side in (taken, disk_taken))
        rows.append(value_row(f"{phase} of {count:,} empty files on scratch, through the mount", f"at least {goal:,}/s" if goal else "-",
                              f"{ours['median']:,.0f}/s ({ours['min']:,.0f} to {ours['max']:,.0f})",
                              ours["median"] >= goal if goal else None, share[0],
                              detail=f"the disk's own file system: {disk['median']:,.0f}/s; {len(taken)} rounds", spread=ours))
    if synced:
        ours, disk = (spread([pair[i] for pair in synced]) for i in (0, 1))
        rows.append(value_row(f"create with an fsync of each directory of {META_PER_DIRECTORY:,}, one thread", "-",
                              f"{ours['median']:,.0f}/s ({ours['min']:,.0f} to {ours['max']:,.0f})", None, synced_share,
                              detail=f"the disk's own file system: {disk['median']:,.0f}/s", spread=ours))
    return rows


FIND_SECONDS = 3


def find(lab):
    """`find` over empty files of a scratch bucket in directories of 1,000, by a mount that was just made, so that nothing is cached in
    the kernel."""
    count = QUICK_META_FILES if lab.quick else META_FILES
    times = []
    with scratch_node(lab) as node, stolen() as share:
        with lab.mount(node, "scratch") as mount:
            bench("epoch", mount.dir, "--make", f"{count}x0", "--epochs", 1, "--workers", 8)
        for _ in range(lab.pairs):
            with lab.mount(node, "scratch") as mount:
                start = time.monotonic()
                found = subprocess.run(["find", str(mount.dir), "-type", "f"], stdout=subprocess.PIPE, check=True).stdout.count(b"\n")
                times.append(time.monotonic() - start)
                if found != count:
                    raise RuntimeError(f"find saw {found} of {count} files")
    taken = spread(times)
    return [value_row(f"find over {count:,} files on scratch, cold mount", f"under {FIND_SECONDS} s", f"{taken['median']:.2f} s",
                      taken["median"] < FIND_SECONDS, share[0], detail=f"{taken['min']:.2f} to {taken['max']:.2f} s, {len(times)} mounts", spread=taken)]


# ---- models ----

def model(lab):
    """A safetensors file of 100 tensors, loaded as its readers do by default: a mapping, tensors in any order; and by one pread per tensor,
    and as a whole. Through the mount, all of it in the cache, against its copy on the same disk; both in the page cache. Only reading
    is timed; every byte is compared afterwards."""
    size = QUICK_MODEL_BYTES if lab.quick else MODEL_BYTES
    plain = lab.path("model")
    plain.mkdir()
    bench("model", plain / "m.safetensors", "--size", size, "--passes", 1)
    bucket = upload_all(lab, plain)
    rows = []
    with lab.node(bucket) as node, lab.mount(node, bucket) as mount:
        bench("model", mount.dir / "m.safetensors", "--ways", "pread", "--passes", 1)
        for way in ("mmap", "pread", "whole"):
            say(f"model by {way}, {lab.pairs} pairs")

            def once(pids, directory):
                with Usage(pids) as usage:
                    said = bench("model", directory / "m.safetensors", "--ways", way, "--passes", 1)
                return {"rate": said[way]["bytes_per_s"], "cpu_s_per_gb": usage.cpu_s / (said["bytes"] / 1e9), "memory_bytes": usage.memory_bytes}

            taken, share = rounds(lab, {OURS: lambda: once(lambda: tree([node.pid, mount.pid]), mount.dir),
                                        DISK: lambda: once(no_processes, plain)})
            row = cost_row(f"Model of {size // MIB} MiB by {way}, through the mount, of the disk's (no goal here)", 0.95, taken[OURS], taken[DISK],
                           share, "MB/s", 1e-6)
            rows.append({**row, "goal": "-", "met": None, "note": "costs include comparing every byte"})
    return rows


def model_cold(lab):
    """A safetensors file that the node does not have: mapped, its tensors touched in shuffled order, from the shaped origin, against the
    time of one cold sequential read of the same file; each through a mount of a node with nothing in it."""
    size = QUICK_COLD_MODEL_BYTES if lab.quick else COLD_MODEL_BYTES
    plain = lab.path("cold-model")
    plain.mkdir()
    bench("model", plain / "m.safetensors", "--size", size, "--passes", 1)
    bucket = upload_all(lab, plain)
    lab.fill_memory()
    with lab.shaper(**SHAPE) as shaper:

        def once(read):
            with lab.node(bucket, endpoint=shaper.endpoint) as node, lab.mount(node, bucket) as mount:
                shaper.reset()
                os.listdir(mount.dir)
                with Usage(lambda: tree([node.pid, mount.pid])) as usage:
                    seconds = read(mount.dir / "m.safetensors")
                return {"rate": seconds, "cpu_s_per_gb": usage.cpu_s / (size / 1e9), "memory_bytes": usage.memory_bytes, **asked(shaper, size)}

        say(f"cold model of {size // MIB} MiB, {lab.pairs} pairs")
        by_mmap, in_order = "mmap", "a sequential read"
        taken, share = rounds(lab, {by_mmap: lambda: once(lambda path: bench("model", path, "--ways", "mmap", "--passes", 1)["mmap"]["seconds"]),
                                    in_order: lambda: once(lambda path: lab.read("seq", path, MIB, 1)["seconds"])})
    row = cost_row(f"Cold model of {size // MIB} MiB by mmap, tensors in shuffled order, of the time of a sequential read", 1.3, taken[by_mmap],
                   taken[in_order], share, "s", at_most=True)
    return [{**row, "note": "costs of the first include comparing every byte"}]


# ---- the shaper itself ----

def ceiling(lab):
    """What bench/shaper itself can move when it is asked for no limits: between threads of one process, and through the proxy between
    them. Shaped figures mean something far below this."""
    done = subprocess.run([str(lab_module.BUILD / "bench/shaper"), "--ceiling"], stdout=subprocess.PIPE, text=True, check=True)
    return [value_row(f"bench/shaper, {line.split(': ', 1)[0]}", "-", line.split(": ", 1)[1], None) for line in done.stdout.strip().splitlines()]


MEASURES = {"train": train, "peers_train": peers_train, "half": half, "dropped": dropped, "checkpoint": checkpoint, "checkpoint_shards": checkpoint_shards,
            "checkpoint_back": checkpoint_back,
            "peers_checkpoint": peers_checkpoint, "meta": meta,
            "find": find, "model": model, "model_cold": model_cold, "ceiling": ceiling}
