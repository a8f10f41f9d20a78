"""The measurements. Each takes a Lab and gives rows for the results; their names are those of MEASURES below."""

import contextlib
import http.client
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import dataset
import harness
import lab as lab_module
from peers import tree
from lab import GIB, MIB, SHAPE, SHAPED_BYTES_PER_S, MemoryWatch, pair_row, say, stolen, value_row
from versus import DISK, OURS, Taken, asked, cost_row, costs, layouts, measured, no_processes, rounds, straight

BIG_BYTES, QUICK_BIG_BYTES = GIB, 256 * MIB
SEQUENTIAL_PASSES = 4
RANDOM_BLOCK = 4096
RANDOM_READS = 400_000
RANDOM_LARGE_BLOCK, RANDOM_LARGE_READS = 128 << 10, 32_000
DIRECT_EVERY = 3
MMAP_PASSES = 2
QUICK_SHARE = 8  # of random reads and of the bytes of streams, in a quick run
QUICK_IMAGES, QUICK_SHARDS = 400, 2
FIRST_SAMPLES, QUICK_FIRST_SAMPLES = 21, 7
FIRST_BYTES = 4096
FIRST_SIZES = [4 * MIB, MIB, 128 << 10]
STREAMS, STREAM_BYTES = 64, 32 * MIB
MEMORY_BYTES, MEMORY_SLACK_BYTES = 512 * MIB, 64 * MIB


def rate(result):
    """Bytes per second of a program's JSON."""
    return result["bytes"] / result["seconds"]


def big_bytes(lab):
    return QUICK_BIG_BYTES if lab.quick else BIG_BYTES


def big_file(lab):
    """A large file on the disk, once per lab, and its bucket at the origin."""
    if not hasattr(lab, "big"):
        path = lab.dir / "plain" / "big.bin"
        say(f"making a file of {big_bytes(lab) // MIB} MiB, on the disk and at the origin")
        lab_module.write_random(path, big_bytes(lab), "big")
        lab.big = path, lab.upload({"big.bin": path})
    return lab.big


def passthrough_of(node):
    """What the node's status says about its mount, as one short text."""
    mounts = json.loads(node.cli("status", "--json").stdout)["mounts"]
    return "; ".join(f"passthrough {m['passthrough']}" + (f" ({m['reason']})" if m["reason"] else "") for m in mounts)


# ---- warm reads through the mount ----

WAYS = [("1 MiB sequential", "seq", MIB, SEQUENTIAL_PASSES), ("128 KiB random", "random", RANDOM_LARGE_BLOCK, RANDOM_LARGE_READS),
        ("4 KiB random", "random", RANDOM_BLOCK, RANDOM_READS),
        ("mmap", "mmap", MIB, MMAP_PASSES)]


READERS_AT_ONCE = 4


def warm_rounds(lab, title, pids, read, ours, plain, which):
    """read(path) of both in turns."""
    say(f"warm: {title}, {len(which)} of {lab.pairs} pairs")
    return rounds(lab, {OURS: lambda: measured(pids, lambda: read(ours)), DISK: lambda: measured(no_processes, lambda: read(plain))}, which=which)


def take_warm(lab, taken, plain, ours, pids, state, which):
    """All ways of reading in one state of the page cache; adds them to `taken` by their titles."""
    for way, mode, block, count in WAYS:
        count = count // QUICK_SHARE if lab.quick and mode == "random" else count
        title = f"{way}, {state}"
        taken.add(title, *warm_rounds(lab, title, pids, lambda path: lab.read(mode, path, block, count), ours, plain, which))
        if lab.quick:
            continue
        title, each = f"{way}, {READERS_AT_ONCE} readers at once, {state}", max(1, count // READERS_AT_ONCE)
        taken.add(title, *warm_rounds(lab, title, pids, lambda path: lab.read_at_once(READERS_AT_ONCE, mode, path, block, each), ours, plain,
                                      which))


@contextlib.contextmanager
def copied(lab, source, copy):
    """What copy(source, path) makes of a file, on the same disk, written back; gone at the end."""
    path = lab.path("copy")
    copy(source, path)
    os.sync()  # its writing back shall not be measured
    try:
        yield path
    finally:
        path.unlink()


def by_cp(source, path):
    subprocess.run(["cp", source, path], check=True)


def warm(lab):
    """Warm reads of a large file through the mount against the same reads of its copy on the same disk. Both are in the page
    cache: as they got there when they were written (ours by the fill from the origin, the copy in pieces of 8 MiB, or by cp), and as
    they get there when they are read from the disk. The kernel keeps them in larger or smaller pieces accordingly, and otherwise each
    time: both are written anew before each pair."""
    source, bucket = big_file(lab)
    taken = Taken()
    for which in layouts(lab):
        with copied(lab, source, lab_module.write_again) as plain, lab.node(bucket) as node, lab.mount(node, bucket) as mount:
            ours = mount.dir / "big.bin"
            lab_module.must_be_same(plain, ours)

            def pids():
                return tree([node.pid, mount.pid])

            take_warm(lab, taken, plain, ours, pids, "as written", which)
            with copied(lab, source, by_cp) as copy:
                take_warm(lab, taken, copy, ours, pids, "as written, the copy by cp", which)
            extents = [p for p in node.data.rglob("*") if p.is_file() and p.stat().st_size == big_bytes(lab)]
            lab_module.forget([plain, *extents])
            lab_module.read_through(plain)
            lab_module.read_through(ours)
            take_warm(lab, taken, plain, ours, pids, "read from the disk before", which)
            mounts = passthrough_of(node)
    return [{**cost_row(f"Warm reads through the mount, {title}, of the disk's", 0.95, samples[OURS], samples[DISK], share, "MB/s", 1e-6),
             "mounts": mounts} for title, (samples, share) in taken.items()]


# ---- cold reads ----

def cold_mount(lab, bucket, shaper):
    with lab.node(bucket, endpoint=shaper.endpoint) as node, lab.mount(node, bucket) as mount:
        shaper.reset()
        os.listdir(mount.dir)
        sample = measured(lambda: tree([node.pid, mount.pid]), lambda: lab.read("seq", mount.dir / "big.bin", MIB, 1))
        sample |= asked(shaper, big_bytes(lab))
        lab_module.must_be_same(big_file(lab)[0], mount.dir / "big.bin")
        return sample


def cold_s3(lab, bucket, shaper):
    with lab.node(bucket, endpoint=shaper.endpoint) as node:
        targets, address = lab.targets(node.s3(signature_version="s3v4"), bucket, ["big.bin"])
        shaper.reset()
        sample = measured(lambda: tree([node.pid]), lambda: lab.get(address, targets, 1))
        sample |= asked(shaper, big_bytes(lab))
        lab.get(address, targets, 1, compare=big_file(lab)[0].parent)
        return sample


def cold(lab):
    """Cold sequential reads of a large object from the shaped origin, by a node with nothing in it, against the rate that the
    origin is shaped to. What parallel ranges straight from the origin give between them is shown beside it. The
    machine's memory is full of page cache before, as on any machine that has run for a while."""
    _, bucket = big_file(lab)
    rows = []
    lab.fill_memory()
    with lab.shaper(**SHAPE) as shaper:
        for title, measure in (("the mount", cold_mount), ("S3 GET", cold_s3)):
            say(f"cold: {big_bytes(lab) // MIB} MiB through {title}, {lab.pairs} pairs")
            ours, direct = [], []
            with stolen() as share:
                for i in range(lab.pairs):
                    ours.append(measure(lab, bucket, shaper))
                    if i % DIRECT_EVERY == 0:
                        direct.append(rate(straight(lab, shaper, bucket, "big.bin", big_bytes(lab))) * 1e-6)
            row = pair_row(f"Cold sequential read of {big_bytes(lab) // MIB} MiB through {title}, of the origin's 300 MB/s", 0.95,
                           [(sample["rate"], SHAPED_BYTES_PER_S) for sample in ours], share[0], "MB/s", 1e-6)
            rows.append({**row, "direct": lab_module.spread(direct), "ours_cost": costs(ours)})
    return rows


# ---- first byte ----

def first_of_get(connection, target, expected):
    """Seconds to the first byte of a body over a connection that is open; the body must be the expected bytes."""
    start = time.perf_counter()
    connection.request("GET", target)
    reply = connection.getresponse()
    body = reply.read(1)
    seconds = time.perf_counter() - start
    body += reply.read()
    if reply.status != 200:
        raise RuntimeError(f"GET {target}: {reply.status}")
    if body != expected:
        raise RuntimeError(f"GET {target}: gave other bytes than were put there")
    return seconds


FIRST_WAYS = [("mount/listed", "the mount, listed before", 1.2), ("mount-unlisted", "the mount, not listed", 2.2),
              ("s3/listed", "S3, listed before", 1.2), ("s3-unlisted", "S3, not listed", 2.2)]


def first_samples(lab, size, n):
    """Times of every way, and of the origin itself ("direct"), for n objects each of `size` bytes; the share of stolen time."""
    source = lab.dir / "plain" / f"first-{size}.bin"
    lab_module.write_random(source, size, f"first {size}")
    groups = ["direct"] + [way[0] for way in FIRST_WAYS]
    bucket = lab.upload({f"{group}-{i:03d}": source for group in groups for i in range(n)})
    times, expected = {group: [] for group in groups}, source.read_bytes()
    with lab.shaper(**SHAPE) as shaper, lab.node(bucket, endpoint=shaper.endpoint) as node, \
            lab.mount(node, bucket) as mount, stolen() as share, contextlib.ExitStack() as stack:
        at_origin = harness.s3_client(shaper.endpoint, lab.origin.access_key, lab.origin.secret_key, signature_version="s3v4")
        targets, connections = {}, {}
        for group in groups:
            client = at_origin if group == "direct" else node.s3(signature_version="s3v4")
            targets[group], address = lab.targets(client, bucket, [f"{group}-{i:03d}" for i in range(n)])
            connections[group] = stack.enter_context(contextlib.closing(http.client.HTTPConnection(address)))
            connections[group].connect()
        node.s3().list_objects_v2(Bucket=bucket, Prefix="s3/")
        os.listdir(mount.dir / "mount")
        for i in range(n):
            for group in groups:
                if group.startswith("mount"):
                    times[group].append(lab.read("first", mount.dir / f"{group}-{i:03d}", FIRST_BYTES)["first_s"])
                else:
                    times[group].append(first_of_get(connections[group], targets[group][i], expected))
                time.sleep(size / 50e6)  # what is read ahead shall not share the origin with the next one
        for name in (f"{group}-{i:03d}" for group in groups if group.startswith("mount") for i in range(n)):
            lab_module.must_be_same(source, mount.dir / name)
    return times, share[0]


def first(lab):
    """Time until the first 4 KiB of an object that nobody has read are there (S3: its first byte), through the mount and S3,
    with its attributes listed before and not, against a GET straight from the shaped origin, which is one round trip. Objects
    of 4 MiB, of 1 MiB, and of 128 KiB, the largest that a mount's open waits for as a whole."""
    n = QUICK_FIRST_SAMPLES if lab.quick else FIRST_SAMPLES
    rows = []
    for size in FIRST_SIZES:
        text = f"{size // MIB} MiB" if size >= MIB else f"{size >> 10} KiB"
        say(f"first byte: {n} objects of {text} each way")
        times, share = first_samples(lab, size, n)
        for group, title, goal in FIRST_WAYS:
            rows.append(pair_row(f"First byte of a cold object of {text} through {title}, in round trips", goal,
                                 list(zip(times[group], times["direct"])), share, "ms", 1e3, at_most=True))
    return rows


# ---- two epochs ----

def epoch(lab):
    """Two epochs of the demonstration's data set through the mount. Bytes from the origin are those that a proxy in front of
    it counts."""
    say("epochs: images and shards, twice")
    plain = lab.path("dataset")
    dataset.make(plain, QUICK_IMAGES, QUICK_SHARDS) if lab.quick else dataset.make(plain)
    bucket = harness.random_name()
    total = dataset.upload(lab.origin.s3(), bucket, plain)
    counted, details = [], []
    with lab.shaper() as shaper, lab.node(bucket, endpoint=shaper.endpoint) as node, lab.mount(node, bucket) as mount:
        lines = []
        with stolen() as share:
            for number in range(2):
                shaper.reset()
                lines.append(bench_epoch(node, mount.dir, "--epochs", 1, "--seed", number + 1)[0])
                stats = shaper.stats()
                counted.append(stats["response_bytes"])
                details.append(f"{stats['requests']:,} requests; {lines[-1]['seconds']:.2f} s, {lines[-1]['bytes'] / lines[-1]['seconds'] / 1e6:.0f} MB/s")
        told = bench_epoch(node, plain, "--epochs", 1)[0]
        taken, pair_share = lab.take_pairs(
            lambda: 1 / bench_epoch(node, mount.dir, "--epochs", 3)[-1]["seconds"],
            lambda: 1 / bench_epoch(node, plain, "--epochs", 3)[-1]["seconds"])
    small = pair_row("Warm epoch through the mount, open + read + close of every file, 2 workers, of the disk's (no goal here)",
                     0.4, taken, pair_share, "epochs/s")
    small["goal"], small["met"] = "-", None
    first_ratio = counted[0] / total
    same_bytes = all(line["checksum"] == told["checksum"] and line["bytes"] == total for line in lines)
    if not same_bytes:
        raise RuntimeError("the mount gave other bytes than the data set has")
    return [
        value_row("Bytes from the origin in epoch 1, of the data set's", "at most 1.02",
                  f"{first_ratio:.4f} ({counted[0]:,} of {total:,}, listings included)",
                  first_ratio <= 1.02, share[0], detail=details[0] + " while the cache fills, origin unshaped"),
        value_row("Bytes from the origin in epoch 2", "0", f"{counted[1]:,}", counted[1] == 0, share[0], detail=details[1] + ", warm"),
        small,
    ]


def bench_epoch(node, directory, *options):
    done = node.cli("bench", "epoch", directory, "--json", "--workers", 2, *options, timeout=600)
    return json.loads(done.stdout)


# ---- memory ----

def read_all(paths):
    """Reads files through the mount to their ends, one thread each."""
    def one(path):
        with open(path, "rb", buffering=0) as file:
            left = os.fstat(file.fileno()).st_size
            while piece := file.read(MIB):
                left -= len(piece)
        if left != 0:
            raise RuntimeError(f"{path}: {left} bytes did not come")

    with ThreadPoolExecutor(len(paths)) as pool:
        for done in [pool.submit(one, path) for path in paths]:
            done.result()


def memory_row(title, watch, share):
    goal = MEMORY_BYTES + MEMORY_SLACK_BYTES
    return value_row(title, f"under {goal // MIB} MiB", f"{watch.peak_bytes / MIB:.0f} MiB at most",
                     watch.peak_bytes < goal, share[0], peak_bytes=watch.peak_bytes)


def memory(lab):
    """Resident memory (RssAnon + RssShmem, sampled every 10 ms) of a node with the default --memory while 64 clients read 64
    cold objects of 32 MiB (a quick run: 4 MiB): through S3 and through the mount, from the shaped origin and as fast as the origin gives."""
    say(f"memory: {STREAMS} cold streams")
    plain = lab.path("stream")
    lab_module.write_random(plain, STREAM_BYTES // (QUICK_SHARE if lab.quick else 1), "stream")
    keys = [f"stream-{i:02d}" for i in range(STREAMS)]
    links = lab_module.links_of(lab.path("streams"), keys, plain)
    bucket = lab.upload({key: plain for key in keys})
    rows = []
    for shaped, shape in (("shaped", SHAPE), ("unshaped", {})):
        with lab.shaper(**shape) as shaper:
            with lab.node(bucket, endpoint=shaper.endpoint) as node:
                targets, address = lab.targets(node.s3(signature_version="s3v4"), bucket, keys)
                with stolen() as share, MemoryWatch([node.pid]) as watch:
                    lab.get(address, targets, STREAMS)
                lab.get(address, targets, STREAMS, compare=links)
                rows.append(memory_row(f"Memory of the node, 64 cold S3 streams, {shaped} origin", watch, share))
            with lab.node(bucket, endpoint=shaper.endpoint) as node, lab.mount(node, bucket) as mount:
                with stolen() as share, MemoryWatch(tree([node.pid, mount.pid])) as watch:
                    read_all([mount.dir / key for key in keys])
                for key in keys:
                    lab_module.must_be_same(plain, mount.dir / key)
                rows.append(memory_row(f"Memory of node and mount together, 64 cold streams through the mount, {shaped} origin",
                                       watch, share))
    return rows


# ---- index ----

def scale(lab):
    """50 million synthetic index entries: see bench/scale."""
    entries = os.environ.get("FOREBAY_SCALE_ENTRIES", "50000000")
    say(f"scale: {entries} index entries")
    done = subprocess.run([str(lab_module.ROOT / "bench/scale"), "--json", "--dir", lab.dir, entries], stdout=subprocess.PIPE,
                          text=True, check=True)
    return json.loads(done.stdout)["rows"]


MEASURES = {"warm": warm, "cold": cold, "first": first, "epoch": epoch, "memory": memory, "scale": scale}
