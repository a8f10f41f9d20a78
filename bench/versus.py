"""Measurements of Forebay beside its peers: every system in turn, round after round, the order turned around each time.

A ratio is that of the two systems of one round. Beside each stand the CPU seconds per GB of all processes of a system (the reader's
included), the memory of its processes at their peak, and what it asked the origin for.
"""

import contextlib
import json
import os
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor

import lab as lab_module
import peers
from lab import GIB, MIB, SHAPE, harness, pair_row, say, stolen
from usage import Usage

COLD_BYTES, QUICK_COLD_BYTES = GIB, 32 * MIB
WARM_BYTES, QUICK_WARM_BYTES = 512 * MIB, 64 * MIB
RANDOM_READS, QUICK_RANDOM_READS = 50_000, 2_000
SMALL_FILES, QUICK_SMALL_FILES, SMALL_BYTES = 20_000, 300, 110_000
PEER_FILES = 4_000
SMALL_WORKERS, QUICK_SMALL_WORKERS = (1, 4), (4,)
DISK, READ_ONLY, LIBRARY = "the disk", "forebay, read-only", "forebay, library"


def bench(*arguments, env=None):
    """The JSON of a `forebay bench`."""
    done = subprocess.run([str(harness.forebay_bin()), "bench", *map(str, arguments), "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


class NotRun(Exception):
    """A measurement that this machine or this version cannot make; the text says why."""


def not_run_row(title, goal, reason, **more):
    return {"title": title, "goal": goal, "value": "not run", "detail": reason, "met": None, "steal_percent": None, **more}


def rounds(lab, sides):
    """Each of {name: function} once a round; gives {name: [results]} and the share of stolen time."""
    taken = {name: [] for name in sides}
    with stolen() as share:
        for i in range(lab.pairs):
            for name in (list(sides) if i % 2 == 0 else reversed(list(sides))):
                taken[name].append(sides[name]())
    return taken, share[0]


def costs(samples):
    """Medians of what each sample carries beside its rate."""
    found = {}
    for key in ("cpu_s_per_gb", "cpu_s_per_100k", "memory_bytes", "origin_bytes", "origin_requests"):
        values = [s[key] for s in samples if s.get(key) is not None]
        if values:
            found[key] = statistics.median(values)
    return found


def rows_against(taken, share, title, unit, scale, goal=1.0, ours="forebay"):
    """One row for each system but ours. `taken`: {name: [{"rate": ...}]}."""
    rows = []
    for name, samples in taken.items():
        if name == ours:
            continue
        pairs = [(a["rate"], b["rate"]) for a, b in zip(taken[ours], samples)]
        row = pair_row(f"{title}, against {name}", goal, pairs, share, unit, scale)
        rows.append({**row, "peer": name, "ours_cost": costs(taken[ours]), "reference_cost": costs(samples)})
    return rows


@contextlib.contextmanager
def mounted(lab, bucket, endpoint, sources, wanted=None):
    """All present systems with the objects of a bucket, mounted at once: {name: Running}. One that fails is left out, and said."""
    with contextlib.ExitStack() as stack:
        running = {}
        for peer in [peers.FOREBAY, *(wanted if wanted is not None else peers.present())]:
            with skipping(peer.name):
                start = stack.enter_context(peer.volume(lab, bucket, endpoint, sources))
                running[peer.name] = stack.enter_context(start())
        if "forebay" not in running:
            raise RuntimeError("forebay itself could not be mounted")
        yield running


@contextlib.contextmanager
def skipping(name):
    """A peer that does not start does not take the run with it."""
    try:
        yield
    except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
        if name == "forebay":
            raise
        say(f"{name}: not run ({str(error).splitlines()[0] if str(error) else type(error).__name__})")


def measured(pids, read, n_bytes=None):
    """Runs read(), which gives a program's JSON; gives its rate and what it cost."""
    with Usage(pids) as usage:
        said = read()
    moved = n_bytes or said["bytes"]
    return {"rate": moved / said["seconds"], "cpu_s_per_gb": usage.cpu_s / (said.get("all_bytes", moved) / 1e9),
            "memory_bytes": usage.memory_bytes}


def no_processes():
    return []


# ---- cold ----

def cold_once(lab, start, shaper, name, size):
    """A mount with an empty cache reads the file once."""
    with start() as running:
        shaper.set(system=name.replace(" ", "-"))
        shaper.reset()
        sample = measured(running.pids, lambda: lab.read("seq", running.dir / "big.bin", MIB, 1))
        stats = shaper.stats()
        if sample["rate"] <= 0:
            raise RuntimeError(f"{name} read nothing")
    return {**sample, "origin_bytes": stats["response_bytes"] / size, "origin_requests": stats["requests"]}


def peers_cold(lab):
    """Cold sequential reads of one large object through the mounts of all systems, each started anew with an empty cache, from the
    shaped origin. Origin bytes are those of the object's. JuiceFS reads its own blocks of a copy from the same origin; SeaweedFS keeps
    its copy itself and is left out."""
    size = QUICK_COLD_BYTES if lab.quick else COLD_BYTES
    source = lab.path("big")
    lab_module.write_random(source, size, "peers cold")
    bucket = lab.upload({"big.bin": source})
    with lab.shaper(**SHAPE) as shaper, contextlib.ExitStack() as stack:
        starts = {}
        for peer in [peers.FOREBAY, *(p for p in peers.present() if p.name != "SeaweedFS")]:
            with skipping(peer.name):
                start = stack.enter_context(peer.volume(lab, bucket, shaper.endpoint, {"big.bin": source}))
                with start() as running:  # right bytes, before anything is measured
                    if not lab_module.same(source, running.dir / "big.bin"):
                        raise RuntimeError("gave other bytes than the origin")
                starts[peer.name] = start
        say(f"cold through all mounts: {', '.join(starts)}")
        taken, share = rounds(lab, {name: lambda name=name: cold_once(lab, starts[name], shaper, name, size) for name in starts})
    return rows_against(taken, share, f"Cold sequential read of {size // MIB} MiB through the mount", "MB/s", 1e-6)


# ---- warm ----

WARM_WAYS = [("1 MiB sequential", "seq", MIB), ("128 KiB random", "random", 128 << 10), ("4 KiB random", "random", 4096),
             ("mmap", "mmap", MIB)]


def warm_count(lab, name, mode, block, size):
    """Blocks of random reads, at most as many bytes as four passes; passes for the others."""
    if mode != "random":
        return 1
    count = min(QUICK_RANDOM_READS if lab.quick else RANDOM_READS, 4 * size // block)
    share = next((p.random_share for p in peers.MOUNTS if p.name == name), 1)
    return max(int(count * share), 16)


def peers_warm(lab):
    """Warm reads through the mounts of all systems: the file was read before, and lies in the page cache or in the system's own
    cache. All mounts have the same read_ahead_kb."""
    size = QUICK_WARM_BYTES if lab.quick else WARM_BYTES
    source = lab.path("warm")
    lab_module.write_random(source, size, "peers warm")
    bucket = lab.upload({"warm.bin": source})
    rows = []
    with lab.shaper() as shaper, mounted(lab, bucket, shaper.endpoint, {"warm.bin": source}) as running:
        for name, system in running.items():
            if not lab_module.same(source, system.dir / "warm.bin"):
                raise RuntimeError(f"{name} gave other bytes than the origin")
        for title, mode, block in WARM_WAYS:
            say(f"warm through all mounts, {title}: {', '.join(running)}")
            taken, share = rounds(lab, {
                name: lambda s=system, c=warm_count(lab, name, mode, block, size): measured(s.pids, lambda: lab.read(mode, s.dir / "warm.bin", block, c))
                for name, system in running.items()})
            rows += rows_against(taken, share, f"Warm {title} reads through the mount", "MB/s", 1e-6)
    return rows


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
                           "--workers", str(workers), *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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


def make_objects(lab, count, size):
    """A bucket of the origin with the same objects as make_files makes."""
    bucket = lab.origin.new_bucket()
    env = {"AWS_ENDPOINT_URL": lab.origin.endpoint, "AWS_ACCESS_KEY_ID": lab.origin.access_key, "AWS_SECRET_ACCESS_KEY": lab.origin.secret_key}
    bench("epoch", f"s3://{bucket}", "--make", f"{count}x{size}", "--epochs", 1, "--workers", 16, env=env)
    return bucket


SMALL_GOALS = {"forebay": ("through the mount", 0.4), READ_ONLY: ("through the mount, read-only", 0.5), LIBRARY: ("through the library", 1.0)}


def small_rows(taken, share, title):
    """Ours in three ways against the disk."""
    rows = []
    for side, (way, goal) in SMALL_GOALS.items():
        pairs = [(a["rate"], b["rate"]) for a, b in zip(taken[side], taken[DISK])]
        rows.append({**pair_row(f"{title}, {way}, of the disk's", goal, pairs, share, "files/s"), "ours_cost": costs(taken[side]),
                     "reference_cost": costs(taken[DISK])})
    return rows


def small_rounds(lab, places, workers):
    """Epochs in all places in turns, the second of each process: {name: samples} and the share of stolen time."""
    say(f"small files, {workers} workers: {', '.join(places)}")
    return rounds(lab, {name: lambda w=where, o=options, p=pids: files_per_s(measured(p, lambda: epoch(w, workers, "--prefetch", 1000, *o,
                                                                                                       epochs=2)))
                        for name, (where, options, pids) in places.items()})


def small(lab):
    """Warm small files in random order, each opened, read, verified and closed, by 1 and by 4 workers: on the disk's own file system,
    through the mount as it comes and with --profile read-only, and straight from the node by libforebay. Each process reads every file
    twice, as a training that lasts longer than one epoch does, and the second time counts."""
    count = QUICK_SMALL_FILES if lab.quick else SMALL_FILES
    plain, bucket = make_files(lab, count, SMALL_BYTES), make_objects(lab, count, SMALL_BYTES)
    rows = []
    with lab.node(bucket) as node, lab.mount(node, bucket) as mount, lab.mount(node, bucket, "--profile", "read-only") as read_only:
        places = {"forebay": (mount.dir, [], lambda: peers.tree([node.pid, mount.pid])),
                  READ_ONLY: (read_only.dir, [], lambda: peers.tree([node.pid, read_only.pid])),
                  LIBRARY: (bucket, ["--socket", node.socket_path], lambda: peers.tree([node.pid])), DISK: (plain, [], no_processes)}
        for where, options, _ in places.values():
            epoch(where, 8, *options)
        for workers in QUICK_SMALL_WORKERS if lab.quick else SMALL_WORKERS:
            taken, share = small_rounds(lab, places, workers)
            rows += small_rows(taken, share, f"{count:,} warm files of 110 KB, {workers} worker{'s' if workers > 1 else ''}")
    return rows


def peers_small(lab):
    """The same work through the mounts of all systems, with fewer files."""
    count = QUICK_SMALL_FILES if lab.quick else PEER_FILES
    plain = make_files(lab, count, SMALL_BYTES)
    say(f"{count} small files: to the origin and into the systems that need a copy")
    bucket, sources = make_objects(lab, count, SMALL_BYTES), sources_of(plain)
    rows = []
    with lab.shaper() as shaper, mounted(lab, bucket, shaper.endpoint, sources) as running:
        places = {name: (system.dir, [], system.pids) for name, system in running.items()}
        for where, options, _ in places.values():
            epoch(where, 8, *options)
        for workers in QUICK_SMALL_WORKERS if lab.quick else SMALL_WORKERS:
            taken, share = small_rounds(lab, places, workers)
            rows += rows_against(taken, share, f"{count:,} warm files of 110 KB, {workers} worker{'s' if workers > 1 else ''}, through the mount",
                                 "files/s", 1.0)
    return rows


def files_per_s(sample):
    return {**sample, "rate": sample["rate"] / SMALL_BYTES}


MEASURES = {"small": small, "peers_cold": peers_cold, "peers_warm": peers_warm, "peers_small": peers_small}
