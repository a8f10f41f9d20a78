"""Measurements of Forebay beside its peers: every system in turn, round after round, the order turned around each time.

A ratio is that of the two systems of one round. Beside each stand the CPU seconds per GB of all processes of a system (the reader's
included), the memory of its processes at their peak, and what it asked the origin for. A peer that is not there, does not start, gives
other bytes, reads ahead otherwise than ours or fails in the middle is left out, and the page says so; the others go on.
"""

import contextlib
import json
import os
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import BotoCoreError, ClientError

import lab as lab_module
import peers
from lab import MIB, OURS, SHAPE, harness, pair_row, say, spread, stolen
from usage import Usage

COLD_BYTES, QUICK_COLD_BYTES = 256 * MIB, 32 * MIB
WARM_BYTES, QUICK_WARM_BYTES = 256 * MIB, 64 * MIB
RANDOM_READS, QUICK_RANDOM_READS = 50_000, 2_000
SMALL_FILES, QUICK_SMALL_FILES, SMALL_BYTES = 20_000, 300, 110_000
PEER_FILES = 1_000
SMALL_WORKERS, QUICK_SMALL_WORKERS = (1, 4), (4,)
READ_ONLY, LIBRARY = "forebay, read-only", "forebay, library"
DISK, TMPFS, STRAIGHT, ONE_GET = peers.DISK, peers.TMPFS, "parallel ranges straight from the origin", "one GET straight from the origin"
BESIDE = {DISK, TMPFS, STRAIGHT, ONE_GET}  # what a machine and an origin can give by themselves: shown beside the peers, none of them
STRAIGHT_CONNECTIONS, STRAIGHT_BYTES = 8, 8 * MIB


def bench(*arguments, env=None):
    """The JSON of a `forebay bench`."""
    done = subprocess.run([str(harness.forebay_bin()), "bench", *map(str, arguments), "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}, timeout=lab_module.PROGRAM_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


class NotRun(Exception):
    """A measurement that this machine or this version cannot make; the text says why."""


def not_run_row(title, goal, reason, **more):
    return {"title": title, "goal": goal, "value": "not run", "detail": reason, "met": None, "steal_percent": None, **more}


def rounds(lab, sides, left_out=None, pairs=None, which=None):
    """Each of {name: function} once a round; gives {name: [results]} and the share of stolen time. With `left_out`, a peer that fails
    goes there and is not in the results. which: the numbers of these rounds among all of a measurement that takes them apart."""
    taken = {name: [] for name in sides}
    with stolen() as share:
        for i in which or range(pairs or lab.pairs):
            for name in (list(sides) if i % 2 == 0 else reversed(list(sides))):
                with contextlib.nullcontext() if left_out is None else skipping(name, left_out):
                    if left_out is None or name not in left_out:
                        with lab.watching(name):
                            taken[name].append(sides[name]())
    return {name: samples for name, samples in taken.items() if name not in (left_out or {})}, share[0]


def layouts(lab, n=1):
    """The rounds of a measurement of warm bytes, n and n apart: before each n its files are written anew on all sides. As they lie in memory
    then, which differs more from writing to writing than one reading from the next, they are read in all rounds of one layout: nine of one are
    one sample of what a run finds. A quick run, and flame graphs, have one layout for all."""
    return [range(lab.pairs)] if lab.quick or lab.flames else [range(i, min(i + n, lab.pairs)) for i in range(0, lab.pairs, n)]


class Taken:
    """What `rounds` gave of each of several rows, layout after layout: {key: ({name: [results]}, share of stolen time)}."""

    def __init__(self):
        self._of = {}

    def add(self, key, taken, share):
        samples, shares = self._of.setdefault(key, ({}, []))
        shares.append(share)
        for name, results in taken.items():
            samples.setdefault(name, []).extend(results)

    def items(self, left_out=()):
        """In the order in which the keys came first; without what was left out of a layout, whichever that was."""
        return [(key, ({name: of for name, of in samples.items() if name not in left_out}, statistics.mean(shares)))
                for key, (samples, shares) in self._of.items()]


def costs(samples):
    """Medians of what each sample carries beside its rate."""
    found = {}
    for key in ("cpu_s_per_gb", "cpu_s_per_100k", "memory_bytes", "origin_bytes", "origin_requests"):
        values = [s[key] for s in samples if s.get(key) is not None]
        if values:
            found[key] = statistics.median(values)
    return found


def cost_row(title, goal, ours, reference, share, unit, scale=1.0, at_most=False):
    """A row from samples of both sides, [{"rate": ...}], with what they cost."""
    row = pair_row(title, goal, [(a["rate"], b["rate"]) for a, b in zip(ours, reference)], share, unit, scale, at_most)
    return {**row, "ours_cost": costs(ours), "reference_cost": costs(reference)}


def cpu_of(ours, theirs):
    """{"cpu": their CPU seconds per GB over ours}, of the pairs, where both have some."""
    pairs = [(a.get("cpu_s_per_gb"), b.get("cpu_s_per_gb")) for a, b in zip(ours, theirs)]
    return {"cpu": spread([b / a for a, b in pairs])} if pairs and all(a and b for a, b in pairs) else {}


def rows_against(taken, share, title, unit, scale, goal=1.0, ours=OURS, read_ahead_kb=None, at_most=False):
    """One row for each system but ours. `taken`: {name: [{"rate": ...}]}; `read_ahead_kb`: what all of their mounts had; at_most: of what is
    compared less is better."""
    rows = []
    for name, samples in taken.items():
        if name == ours:
            continue
        row = {**cost_row(f"{title}, against {name}", goal, taken[ours], samples, share, unit, scale, at_most), "peer": name,
               **cpu_of(taken[ours], samples), **({"read_ahead_kb": read_ahead_kb} if read_ahead_kb is not None else {})}
        rows.append({**row, "goal": "-", "met": None, "beside": True} if name in BESIDE else row)
    return rows


def rows_left_out(left_out, title):
    """One row for each peer that was not measured, with the reason."""
    return [not_run_row(f"{title}, against {name}", "-", reason, peer=name) for name, reason in left_out.items()]


@contextlib.contextmanager
def mounted(lab, bucket, endpoint, sources, left_out, wanted=None):
    """All present systems with the objects of a bucket, mounted at once, ours first: {name: Running}. One that fails, or whose mount reads ahead
    otherwise than ours, is left out, and said."""
    with contextlib.ExitStack() as stack:
        running = {}
        for peer in [peers.FOREBAY, *(wanted if wanted is not None else [*peers.LOCAL, *peers.present(left_out)])]:
            with skipping(peer.name, left_out):
                start = stack.enter_context(peer.volume(lab, bucket, endpoint, sources))
                system = stack.enter_context(start())
                reads_ahead_as(running.get(OURS, system), peer.name, system)
                running[peer.name] = system
        yield running


def in_layouts(lab, bucket, endpoint, sources, left_out, check, take):
    """Calls take(its rounds, {name: Running}) for each layout, with all systems mounted anew: what each has of the objects, in its cache or as a copy
    of its own, was written for that layout. check(system): raises where its bytes are not right, and has read them all."""
    wanted = [*peers.LOCAL, *peers.present(left_out)]
    for which in layouts(lab):
        with mounted(lab, bucket, endpoint, sources, left_out, [peer for peer in wanted if peer.name not in left_out]) as running:
            take(which, those_that(running, left_out, check))


@contextlib.contextmanager
def skipping(name, left_out):
    """A peer that does not start, or fails, does not take the run with it: it goes into `left_out`, {name: reason}."""
    try:
        yield
    except (NotRun, RuntimeError, OSError, AssertionError, subprocess.SubprocessError, BotoCoreError, ClientError) as error:
        if name == OURS:
            raise
        left_out[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
        say(f"{name}: not run ({left_out[name]})")


def reads_ahead_as(ours, name, system):
    """Who has another read_ahead_kb than our mount is not compared with it. What is no mount is as it is."""
    if name not in BESIDE and system.read_ahead_kb != ours.read_ahead_kb:
        raise RuntimeError(f"its mount has read_ahead_kb {system.read_ahead_kb}, ours {ours.read_ahead_kb}")


def those_that(systems, left_out, check):
    """Of {name: Running} those that pass check(system); the others are left out."""
    for name, system in systems.items():
        with skipping(name, left_out):
            check(system)
    return {name: system for name, system in systems.items() if name not in left_out}


def gives(source, name):
    """A check that a system's file has the bytes of `source`."""
    def check(system):
        if not lab_module.same(source, system.dir / name):
            raise RuntimeError(f"gave other bytes of {name} than the origin")

    return check


def measured(pids, read, n_bytes=None):
    """Runs read(), which gives a program's JSON; gives its rate and what it cost."""
    with Usage(pids) as usage:
        said = read()
    moved = n_bytes or said["bytes"]
    return {"rate": moved / said["seconds"], "cpu_s_per_gb": usage.cpu_s / (said.get("all_bytes", moved) / 1e9),
            "memory_bytes": usage.memory_bytes}


def no_processes():
    return []


def asked(shaper, n_bytes, direction="response_bytes"):
    """What the origin was asked for since the shaper's last reset: bytes as a share of `n_bytes`, and requests."""
    stats = shaper.stats()
    return {"origin_bytes": stats[direction] / n_bytes, "origin_requests": stats["requests"]}


QUIET_STEP_SECONDS, QUIET_STEPS, QUIET_SECONDS = 0.05, 3, 120


def quiet(shaper):
    """Waits until nothing is on its way from or to the origin, and nobody asks for more: what one system fetches ahead or still has to send shall
    not share the origin with the next one."""
    seen = []

    def still():
        stats = shaper.stats()
        seen.append((stats["in_flight"], stats["requests"]))
        last = seen[-QUIET_STEPS:]
        return len(last) == QUIET_STEPS and last[-1][0] == 0 and len(set(last)) == 1

    harness.wait_until(still, QUIET_SECONDS, "nobody asks the origin", step=QUIET_STEP_SECONDS)


# ---- cold ----

def straight(lab, shaper, bucket, key, size):
    """One object straight from the shaped origin: 8 connections that take ranges of 8 MiB. The JSON of getload."""
    client = harness.s3_client(shaper.endpoint, lab.origin.access_key, lab.origin.secret_key, signature_version="s3v4")
    ranges = [f"{at}-{min(at + STRAIGHT_BYTES, size) - 1}" for at in range(0, size, STRAIGHT_BYTES)]
    targets, address = lab.targets(client, bucket, [key], ranges)
    return lab.get(address, targets, min(STRAIGHT_CONNECTIONS, len(targets)))


def straight_once(lab, shaper, bucket, size):
    shaper.set(system="straight")
    shaper.reset()
    return {**measured(no_processes, lambda: straight(lab, shaper, bucket, "big.bin", size)), **asked(shaper, size)}


def cold_once(lab, start, shaper, name, size, ours):
    """A mount with an empty cache reads the file once. `ours`: what reads ahead as it must."""
    with start() as running:
        reads_ahead_as(ours, name, running)
        shaper.set(system=name.replace(" ", "-"))
        shaper.reset()
        sample = measured(running.pids, lambda: lab.read("seq", running.dir / "big.bin", MIB, 1))
        if sample["rate"] <= 0:
            raise RuntimeError(f"{name} read nothing")
        return {**sample, **asked(shaper, size)}


def peers_cold(lab):
    """Cold sequential reads of one large object through the mounts of all systems, each started anew with an empty cache, from the
    shaped origin, and the same in parallel ranges straight from it, thrown away. Origin bytes are those of the object's. JuiceFS reads
    its own blocks of a copy from the same origin; SeaweedFS keeps its copy itself and is left out. The machine's memory is full of
    page cache before, as on any machine that has run for a while. And one GET of the same object through S3, beside nginx with
    proxy_cache."""
    import cold_peers  # which is made of what is here
    size = QUICK_COLD_BYTES if lab.quick else COLD_BYTES
    source = lab.path("big")
    lab_module.write_random(source, size, "peers cold")
    bucket = lab.upload({"big.bin": source})
    title, left_out = f"Cold sequential read of {size // MIB} MiB through the mount", {}
    with lab.shaper(**SHAPE) as shaper, contextlib.ExitStack() as stack:
        sides, ours = {}, None
        for peer in [peers.FOREBAY, *peers.before_origin(peers.present(left_out))]:
            with skipping(peer.name, left_out):
                start = stack.enter_context(peer.volume(lab, bucket, shaper.endpoint, {"big.bin": source}))
                with start() as running:  # right bytes, before anything is measured
                    gives(source, "big.bin")(running)
                    ours = ours or running
                    reads_ahead_as(ours, peer.name, running)
                sides[peer.name] = lambda s=start, n=peer.name: cold_once(lab, s, shaper, n, size, ours)
        sides[STRAIGHT] = lambda: straight_once(lab, shaper, bucket, size)
        lab.fill_memory()
        say(f"cold through all mounts: {', '.join(sides)}")
        taken, share = rounds(lab, sides, left_out)
        rows = rows_against(taken, share, title, "MB/s", 1e-6, read_ahead_kb=ours.read_ahead_kb) + rows_left_out(left_out, title)
        return rows + cold_peers.cold_through_s3(lab, shaper, bucket, "big.bin", source)


# ---- warm ----

WARM_WAYS = [("1 MiB sequential", "seq", MIB), ("128 KiB random", "random", 128 << 10), ("4 KiB random", "random", 4096),
             ("mmap", "mmap", MIB)]
WARM_READERS = (1, 4)


def warm_count(lab, name, mode, block, size):
    """Blocks of random reads, at most as many bytes as four passes; passes for the others."""
    if mode != "random":
        return 1
    count = min(QUICK_RANDOM_READS if lab.quick else RANDOM_READS, 4 * size // block)
    share = next((p.random_share for p in peers.MOUNTS if p.name == name), 1)
    return max(int(count * share), 16)


def read_by(lab, readers, mode, path, block, count):
    """By one reader or by several, which share random reads, and each of which reads all otherwise."""
    if readers == 1:
        return lab.read(mode, path, block, count)
    return lab.read_at_once(readers, mode, path, block, max(1, count // readers))


def warm_once(lab, system, readers, mode, block, count):
    """One sample of a system whose file was read right before, outside of its time and cost: what the others read and kept since its last turn
    may have put it out of the page cache, more of it the longer ago that was."""
    path = system.dir / "warm.bin"
    lab.read("seq", path, MIB, 1)
    return measured(system.pids, lambda: read_by(lab, readers, mode, path, block, count))


def peers_warm(lab):
    """Warm reads through the mounts of all systems, of the disk and of tmpfs, by one reader and by four at once: each reads the whole file once more
    right before its own sample, so that it lies in the page cache or in the system's own cache, whoever came between. Before each round all
    systems are mounted anew, with nothing in their caches, and read the file for the first time. All mounts have the same read_ahead_kb."""
    size = QUICK_WARM_BYTES if lab.quick else WARM_BYTES
    source = lab.path("warm")
    lab_module.write_random(source, size, "peers warm")
    bucket = lab.upload({"warm.bin": source})
    taken, left_out, read_ahead_kb = Taken(), {}, []

    def take(which, running):
        read_ahead_kb.append(running[OURS].read_ahead_kb)
        for title, mode, block in WARM_WAYS:
            for readers in WARM_READERS:
                sides = {name: lambda s=system, c=warm_count(lab, name, mode, block, size): warm_once(lab, s, readers, mode, block, c)
                         for name, system in running.items() if name not in left_out}
                at_once = f", {readers} readers at once" if readers > 1 else ""
                say(f"warm through all mounts, {title}, {readers} readers: {', '.join(sides)}")
                taken.add(f"Warm {title} reads through the mount{at_once}", *rounds(lab, sides, left_out, which=which))

    with lab.shaper() as shaper:
        in_layouts(lab, bucket, shaper.endpoint, {"warm.bin": source}, left_out, gives(source, "warm.bin"), take)
    rows = [row for title, (samples, share) in taken.items(left_out)
            for row in rows_against(samples, share, title, "MB/s", 1e-6, read_ahead_kb=read_ahead_kb[-1])]
    return rows + rows_left_out(left_out, "Warm reads through the mount")


# ---- small files ----

def sources_of(directory):
    """{name: path} of every file below a directory."""
    return {str(p.relative_to(directory)): p for p in sorted(directory.rglob("*")) if p.is_file()}


def upload_all(lab, directory):
    """Every file below a directory, by several connections; gives the bucket."""
    sources = sources_of(directory)
    bucket = lab.origin.new_bucket()
    client = lab.origin.s3()
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(lambda item: client.put_object(Bucket=bucket, Key=item[0], Body=item[1].read_bytes()), item)
                     for item in sources.items()]:
            done.result()
    return bucket


def epoch(directory, workers, *options, epochs=1):
    """Verified epochs in shuffled order by one `forebay bench epoch`; the JSON of the last, with the bytes of all as `all_bytes`."""
    done = subprocess.run([str(harness.forebay_bin()), "bench", "epoch", str(directory), "--verify", "--json", "--epochs", str(epochs),
                           "--workers", str(workers), *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=lab_module.PROGRAM_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"bench epoch {directory}: {done.stderr.strip()}")
    read = json.loads(done.stdout)
    return {**read[-1], "all_bytes": sum(e["bytes"] for e in read)}


def make_files(lab, count, size):
    """Files that `bench epoch --verify` knows, on the disk."""
    directory = lab.path("files")
    directory.mkdir()
    subprocess.run([str(harness.forebay_bin()), "bench", "epoch", str(directory), "--make", f"{count}x{size}", "--epochs", "1", "--json"],
                   check=True, stdout=subprocess.DEVNULL)
    os.sync()  # their writing back shall not be measured
    return directory


def make_objects(lab, count, size, origin=None):
    """A bucket of the origin with the same objects as make_files makes."""
    origin = origin or lab.origin
    bucket = origin.new_bucket()
    env = {"AWS_ENDPOINT_URL": origin.endpoint, "AWS_ACCESS_KEY_ID": origin.access_key, "AWS_SECRET_ACCESS_KEY": origin.secret_key}
    ca_file = getattr(origin, "ca_file", None)
    env |= {"AWS_CA_BUNDLE": str(ca_file)} if ca_file else {}
    bench("epoch", f"s3://{bucket}", "--make", f"{count}x{size}", "--epochs", 1, "--workers", 16, env=env)
    return bucket


SMALL_GOALS = {"forebay": ("through the mount", 0.4), READ_ONLY: ("through the mount, read-only", 0.5), LIBRARY: ("through the library", 1.0)}


def small_rows(taken, share, title):
    """Ours in three ways against the disk."""
    rows = []
    for side, (way, goal) in SMALL_GOALS.items():
        rows.append(cost_row(f"{title}, {way}, of the disk's", goal, taken[side], taken[DISK], share, "files/s"))
    return rows


def alone_rows(taken, share, title):
    """The same of reading alone. What it cost is not told: that is of comparing, too."""
    rows = [{**row, "title": row["title"].replace(", of the disk's", ", compared before and after, of the disk's")}
            for row in small_rows(taken, share, title)]
    return [{key: value for key, value in row.items() if not key.endswith("_cost")} for row in rows]


def small_rounds(lab, places, workers, left_out=None, alone=False, which=None):
    """Epochs in all places in turns, {name: samples} and the share of stolen time: the second of each process, whose bytes are
    compared as they come; alone: one that only reads, between two that compare."""
    say(f"small files, {workers} workers{', reading alone' if alone else ''}: {', '.join(places)}")
    how, epochs = (["--verify-apart"], 1) if alone else ([], 2)

    def once(where, options, pids):
        return files_per_s(measured(pids, lambda: epoch(where, workers, "--prefetch", 1000, *how, *options, epochs=epochs)))

    sides = {name: lambda p=place: once(*p) for name, place in places.items() if name not in (left_out or {})}
    return rounds(lab, sides, left_out, which=which)


@contextlib.contextmanager
def files_laid(lab, bucket, count, size, profiles):
    """Files on the disk and, by a node with nothing in it yet, the same objects through mounts with these options, {name: options}: (directory on
    the disk, node, {name: mount}). Emptied at the end and gone with the lab: the inodes of removed ones an ext4 without a journal passes over
    for half a minute, whenever the next layout makes a file."""
    plain = make_files(lab, count, size)
    with lab.node(bucket, keep=True) as node, contextlib.ExitStack() as stack:
        yield plain, node, {name: stack.enter_context(lab.mount(node, bucket, *options)) for name, options in profiles.items()}
    for directory in (plain, node.data):
        lab_module.empty(directory)


def small(lab):
    """Warm small files in random order, each opened, read, verified and closed, by 1 and by 4 workers: on the disk's own file system,
    through the mount as it comes and with --profile read-only, and straight from the node by libforebay. Each process reads every file
    twice, as a training that lasts longer than one epoch does, and the second time counts. To compare the bytes of a file as they
    come takes about as long as to read them, on both sides, so that a ratio is nearer to 1 than that of opening, reading and closing
    alone: in the rows "compared before and after" each process compares all files, then reads them in the time that counts, and
    compares them again. The files are written anew on all sides before each round."""
    count = QUICK_SMALL_FILES if lab.quick else SMALL_FILES
    bucket, taken = make_objects(lab, count, SMALL_BYTES), Taken()
    for which in layouts(lab):
        with files_laid(lab, bucket, count, SMALL_BYTES, {OURS: [], READ_ONLY: ["--profile", "read-only"]}) as (plain, node, mounts):
            places = {name: (mount.dir, [], lambda m=mount: peers.tree([node.pid, m.pid])) for name, mount in mounts.items()}
            places |= {LIBRARY: (bucket, ["--socket", node.socket_path], lambda: peers.tree([node.pid])), DISK: (plain, [], no_processes)}
            for where, options, _ in places.values():
                epoch(where, 8, *options)
            for workers in QUICK_SMALL_WORKERS if lab.quick else SMALL_WORKERS:
                for alone in (False, True):
                    taken.add((workers, alone), *small_rounds(lab, places, workers, alone=alone, which=which))
    rows = []
    for (workers, alone), (samples, share) in taken.items():
        title = f"{count:,} warm files of 110 KB, {workers} worker{'s' if workers > 1 else ''}"
        rows += (alone_rows if alone else small_rows)(samples, share, title)
    return rows


def peers_small(lab):
    """The same work through the mounts of all systems, on the disk and on tmpfs, with fewer files. Before each round all systems are mounted
    anew, with nothing in their caches, and read all files for the first time."""
    count = QUICK_SMALL_FILES if lab.quick else PEER_FILES
    plain = make_files(lab, count, SMALL_BYTES)
    say(f"{count} small files: to the origin and into the systems that need a copy")
    bucket, sources = make_objects(lab, count, SMALL_BYTES), sources_of(plain)
    taken, left_out, read_ahead_kb = Taken(), {}, []

    def take(which, running):
        read_ahead_kb.append(running[OURS].read_ahead_kb)
        places = {name: (system.dir, [], system.pids) for name, system in running.items()}
        for workers in QUICK_SMALL_WORKERS if lab.quick else SMALL_WORKERS:
            title = f"{count:,} warm files of 110 KB, {workers} worker{'s' if workers > 1 else ''}, through the mount"
            taken.add(title, *small_rounds(lab, places, workers, left_out, which=which))

    with lab.shaper() as shaper:
        in_layouts(lab, bucket, shaper.endpoint, sources, left_out, lambda system: epoch(system.dir, 8), take)
    rows = [row for title, (samples, share) in taken.items(left_out)
            for row in rows_against(samples, share, title, "files/s", 1.0, read_ahead_kb=read_ahead_kb[-1])]
    return rows + rows_left_out(left_out, f"{count:,} warm files of 110 KB, through the mount")


def files_per_s(sample):
    return {**sample, "rate": sample["rate"] / SMALL_BYTES}


MEASURES = {"small": small, "peers_cold": peers_cold, "peers_warm": peers_warm, "peers_small": peers_small}
