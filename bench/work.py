"""Measurements of whole kinds of work: training that computes, a cache of half the data, checkpoints, names, uploads, jobs."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time

import lab as lab_module
from lab import GIB, MIB, SHAPE, harness, pair_row, say, spread, stolen, value_row
from usage import ClientLimit, tmpfs
from versus import NotRun, epoch, make_files, not_run_row, upload_all

TRAIN_FILES, QUICK_TRAIN_FILES, TRAIN_BYTES = 4000, 960, 110_000
TRAIN = ["--batch", "64", "--compute", "40ms", "--prefetch", "4", "--workers", "2"]
HALF_FILES, QUICK_HALF_FILES, HALF_BYTES = 200, 60, 2 * MIB
HALF_EPOCHS = 4
DROPPED_BYTES, QUICK_DROPPED_BYTES = GIB, 128 * MIB
CHECKPOINT_BYTES, QUICK_CHECKPOINT_BYTES = 2 * GIB, 128 * MIB
META_FILES, QUICK_META_FILES, META_PER_DIRECTORY = 100_000, 2_000, 1_000
PUT_REQUESTS, QUICK_PUT_REQUESTS, PUT_SIZE = 64, 6, "16MiB"
PREFETCH_FILES, QUICK_PREFETCH_FILES, PREFETCH_BYTES = 2000, 300, 110_000
PREFETCH_PARALLEL = 64
MODEL_BYTES, QUICK_MODEL_BYTES = 512 * MIB, 64 * MIB


def bench(*arguments, env=None):
    """The JSON of a `forebay bench`."""
    done = subprocess.run([str(harness.forebay_bin()), "bench", *map(str, arguments), "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


# ---- training ----

def train(lab):
    """Emulated training: batches of 64 files of 110 KB, 40 ms of computing in each step, shuffled, two workers that read four batches
    ahead, every byte verified. The accelerator's utilisation is the share of the time in which it computes. Ours: through the mount, all
    in the cache; reference: the same files on tmpfs."""
    memory = tmpfs(lab)
    if memory is None:
        raise NotRun("/dev/shm has no room for the reference")
    plain = make_files(lab, QUICK_TRAIN_FILES if lab.quick else TRAIN_FILES, TRAIN_BYTES)
    bucket, _ = upload_all(lab, plain)
    shutil.copytree(plain, memory)
    try:
        with lab.node(bucket) as node, lab.mount(node, bucket) as mount:
            for directory in (mount.dir, memory):
                epoch(directory, 8)
            say(f"emulated training, {lab.pairs} pairs")
            taken, share = lab.take_pairs(lambda: epoch(mount.dir, 2, *TRAIN)["accelerator_utilisation"],
                                          lambda: epoch(memory, 2, *TRAIN)["accelerator_utilisation"])
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    ours, reference = (spread([100 * pair[i] for pair in taken]) for i in (0, 1))
    lost = statistics.median(100 * (b - a) for a, b in taken)
    text = f"{ours['median']:.1f} % ({ours['min']:.1f} to {ours['max']:.1f}) against {reference['median']:.1f} %"
    return [value_row("Emulated training, accelerator utilisation, warm, of tmpfs's", "no less than tmpfs minus 1 point", text, lost <= 1,
                      share, detail=f"{lost:.2f} points less in the median of {len(taken)} pairs", lost_points=lost,
                      pairs=[[round(100 * a, 3), round(100 * b, 3)] for a, b in taken])]


# ---- half a cache ----

def half(lab):
    """A cache of half the data set and shuffled epochs: bytes that a proxy in front of the origin counts in the last of them. Each item
    is read once per epoch, so that one which evicts what was used longest ago keeps nothing; what is kept unread here gives half."""
    count = QUICK_HALF_FILES if lab.quick else HALF_FILES
    plain = make_files(lab, count, HALF_BYTES)
    bucket, _ = upload_all(lab, plain)
    total, shares = count * HALF_BYTES, []
    cache = lab.path("half-cache")
    with stolen() as share, lab.shaper() as shaper, lab.node(bucket, endpoint=shaper.endpoint, disk=f"{cache}:{total // 2}") as node, \
            lab.mount(node, bucket) as mount:
        for number in range(HALF_EPOCHS):
            shaper.reset()
            epoch(mount.dir, 2, "--seed", number + 1)
            shares.append(shaper.stats()["response_bytes"] / total)
    harness.tree_remove(cache)
    return [value_row("Origin bytes of an epoch with a cache of half the data set, of the data set's", "at most 0.55",
                      f"{shares[-1]:.3f}", shares[-1] <= 0.55, share[0], detail="epochs before: " + ", ".join(f"{s:.3f}" for s in shares[:-1]))]


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
        if not lab_module.same(plain, ours):
            raise RuntimeError("the mount gave other bytes than the disk")
        extents = [p for p in node.data.rglob("*") if p.is_file() and p.stat().st_size == size]

        def read(path):
            lab_module.forget([plain, *extents])
            argv = limit.wrap([lab_module.BUILD / "bench/reader", "seq", path, MIB, 1])
            said = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)
            return said["bytes"] / said["seconds"]

        say(f"page cache dropped, {lab.pairs} pairs")
        taken, share = lab.take_pairs(lambda: read(ours), lambda: read(plain))
        note = f"client limited to {limit.limit_bytes // MIB} MiB" if limit.limit_bytes else "no memory cgroup for the client here"
    row = pair_row(f"Sequential reads of {size // MIB} MiB, page cache dropped, of the disk's (no goal here)", 0.95, taken, share, "MB/s", 1e-6)
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
    """A mount of a bucket without origin, or NotRun where this version has none that can be mounted and written."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(scratch_node(lab))
        try:
            mount = stack.enter_context(lab.mount(node, "scratch"))
            (mount.dir / "probe").mkdir()
            (mount.dir / "probe").rmdir()
        except (RuntimeError, OSError, AssertionError) as error:
            raise NotRun(f"a bucket without origin cannot be mounted and written: {str(error).splitlines()[0]}") from error
        yield mount


def checkpoint_once(directory, size, *options):
    return bench("checkpoint", directory, "--size", size, "--tensor", "64MiB", "--repeat", 1, *options)


CHECKPOINT_TITLE = "Checkpoint write through the mount, fsync included"


def checkpoint(lab):
    """Checkpoints as torch.save writes them: one large write per tensor of 64 MiB, small ones between, fsync, close, rename; then read
    back and compared. Into a scratch bucket through the mount, and into a directory of the same disk."""
    size = QUICK_CHECKPOINT_BYTES if lab.quick else CHECKPOINT_BYTES
    plain = lab.path("checkpoints")
    plain.mkdir()
    rows = []
    with scratch_mount(lab) as mount:
        for title, options in (("one file", []), ("4 shards", ["--shards", 4])):
            say(f"checkpoints of {size // MIB} MiB, {title}, {lab.pairs} pairs")
            said = {"ours": [], "reference": []}

            def once(side, directory):
                said[side].append(checkpoint_once(directory, size, *options))
                return said[side][-1]["write_bytes_per_s"]

            taken, share = lab.take_pairs(lambda: once("ours", mount.dir), lambda: once("reference", plain))
            rows.append(pair_row(f"{CHECKPOINT_TITLE}, {title}, of the disk's", 0.9, taken, share, "MB/s", 1e-6))
            back = [(a["read_back_bytes_per_s"], b["read_back_bytes_per_s"]) for a, b in zip(said["ours"], said["reference"])]
            rows.append(pair_row(f"Checkpoint read back through the mount, {title}, of the disk's", 0.9, back, share, "MB/s", 1e-6))
    return rows


META_GOALS = {"create": 10_000, "stat": 40_000, "rename": None, "unlink": None}


def meta(lab):
    """Names on a scratch bucket: empty files in directories of 1,000, created, looked at, renamed and removed by four threads of
    one process, through the mount and in a directory of the same disk."""
    count = QUICK_META_FILES if lab.quick else META_FILES
    plain = lab.path("names")
    plain.mkdir()
    options = ["--files", count // 4, "--per-directory", META_PER_DIRECTORY, "--workers", 4]
    with scratch_mount(lab) as mount:
        say(f"{count} empty files, {lab.pairs} pairs")
        taken, share = lab.take_pairs(lambda: bench("meta", mount.dir, *options), lambda: bench("meta", plain, *options))
    rows = []
    for phase, goal in META_GOALS.items():
        ours = spread([a[phase]["per_s"] for a, _ in taken])
        disk = spread([b[phase]["per_s"] for _, b in taken])
        rows.append(value_row(f"{phase} of {count:,} empty files on scratch, through the mount", f"at least {goal:,}/s" if goal else "-",
                              f"{ours['median']:,.0f}/s ({ours['min']:,.0f} to {ours['max']:,.0f})",
                              ours["median"] >= goal if goal else None, share, detail=f"the disk's own file system: {disk['median']:,.0f}/s"))
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
                      taken["median"] < FIND_SECONDS, share[0], detail=f"{taken['min']:.2f} to {taken['max']:.2f} s, {len(times)} mounts")]


# ---- models ----

def model(lab):
    """A safetensors file of 100 tensors, loaded as its readers do by default: a mapping, tensors in any order; and by one pread per tensor,
    and as a whole. Through the mount, all of it in the cache, against its copy on the same disk; both in the page cache. Only reading
    is timed; every byte is compared afterwards."""
    size = QUICK_MODEL_BYTES if lab.quick else MODEL_BYTES
    plain = lab.path("model")
    plain.mkdir()
    bench("model", plain / "m.safetensors", "--size", size, "--passes", 1)
    bucket, _ = upload_all(lab, plain)
    rows = []
    with lab.node(bucket) as node, lab.mount(node, bucket) as mount:
        bench("model", mount.dir / "m.safetensors", "--ways", "pread", "--passes", 1)
        for way in ("mmap", "pread", "whole"):
            say(f"model by {way}, {lab.pairs} pairs")

            def once(directory):
                return bench("model", directory / "m.safetensors", "--ways", way, "--passes", 1)[way]["bytes_per_s"]

            taken, share = lab.take_pairs(lambda: once(mount.dir), lambda: once(plain))
            row = pair_row(f"Model of {size // MIB} MiB by {way}, through the mount, of the disk's (no goal here)", 0.95, taken, share, "MB/s", 1e-6)
            rows.append({**row, "goal": "-", "met": None})
    return rows


# ---- uploads ----

def put_rate(endpoint, keys, bucket, connections, requests, seed):
    env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]}
    said = bench("load", f"s3://{bucket}", "--mix", "put=1", "--size", PUT_SIZE, "--connections", connections, "--requests", requests,
                 "--warm-up", "0ms", "--duration", "10m", "--seed", seed, env=env)
    return said["put"]["bytes_per_s"]


def put(lab):
    """PUT of 64 objects of 16 MiB with 1 and 4 connections: into a scratch bucket, durable here, against versitygw over a
    directory of the same disk; and into a mirror bucket, acknowledged when that versitygw has them, which can at best be as fast."""
    requests = QUICK_PUT_REQUESTS if lab.quick else PUT_REQUESTS
    direct = lab.origin.new_bucket()
    origin_keys = (lab.origin.access_key, lab.origin.secret_key)
    mirrored = lab.origin.new_bucket()
    rows = []
    with lab.node(mirrored) as node:
        made = node.cli("bucket", "create", "scratch", check=False)
        kinds = [("a mirror bucket", mirrored, None)]
        if made.returncode == 0:
            kinds.insert(0, ("a scratch bucket", "scratch", 1.5))
        else:
            rows.append(not_run_row("PUT of 16 MiB objects into a scratch bucket, of versitygw's rate", "at least 1.5", made.stderr.strip()))
        for connections in (1, 4):
            for kind, bucket, goal in kinds:
                say(f"PUT into {kind}, {connections} connections, {lab.pairs} pairs")
                taken, share = lab.take_pairs(
                    lambda: put_rate(node.endpoint, node.credentials, bucket, connections, requests, 1),
                    lambda: put_rate(lab.origin.endpoint, origin_keys, direct, connections, requests, 2))
                row = pair_row(f"PUT of 16 MiB objects into {kind}, {connections} connection{'s' if connections > 1 else ''}, of versitygw's rate",
                               goal or 1.0, taken, share, "MB/s", 1e-6)
                rows.append(row if goal else {**row, "goal": "-", "met": None})
    return rows


# ---- jobs ----

def prefetch(lab):
    """A prefetch job over files of 110 KB from the shaped origin, each time by a node with nothing in it, from the command to its
    end, against what the shaper allows: 300 MB/s, or as many requests at a time as the job may have, over the time of each."""
    count = QUICK_PREFETCH_FILES if lab.quick else PREFETCH_FILES
    plain = make_files(lab, count, PREFETCH_BYTES)
    bucket, _ = upload_all(lab, plain)
    total, rates = count * PREFETCH_BYTES, []
    possible = min(lab_module.SHAPED_BYTES_PER_S, PREFETCH_PARALLEL * PREFETCH_BYTES / (0.020 + PREFETCH_BYTES / 50e6))
    with lab.shaper(**SHAPE) as shaper, stolen() as share:
        for _ in range(lab.pairs):
            with lab.node(bucket, endpoint=shaper.endpoint) as node:
                start = time.monotonic()
                node.cli("prefetch", bucket, "--parallel", PREFETCH_PARALLEL, "--quiet", "--wait", timeout=600)
                rates.append(total / (time.monotonic() - start))
                shaper.reset()
                bench("epoch", bucket, "--socket", node.socket_path, "--verify", "--epochs", 1)
                if shaper.stats()["kinds"]["get"]["requests"] + shaper.stats()["kinds"]["get_range"]["requests"]:
                    raise RuntimeError("the job did not fetch everything")
    return [pair_row(f"Prefetch of {count:,} files of 110 KB by a job, of what the origin allows", 0.9,
                     [(rate, possible) for rate in rates], share[0], "MB/s", 1e-6)]


# ---- the shaper itself ----

def ceiling(lab):
    """What bench/shaper itself can move when it is asked for no limits: between threads of one process, and through the proxy between
    them. Shaped figures mean something far below this."""
    done = subprocess.run([str(lab_module.BUILD / "bench/shaper"), "--ceiling"], stdout=subprocess.PIPE, text=True, check=True)
    return [value_row(f"bench/shaper, {line.split(': ', 1)[0]}", "-", line.split(": ", 1)[1], None) for line in done.stdout.strip().splitlines()]


MEASURES = {"train": train, "half": half, "dropped": dropped, "checkpoint": checkpoint, "meta": meta, "find": find, "model": model, "put": put, "prefetch": prefetch,
            "ceiling": ceiling}
