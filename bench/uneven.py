"""Cold reads from an origin whose first bytes come now sooner and now later, log-normal with a median of 20 ms and a 99th
percentile of 80 ms, beside peers and beside the same requests straight to it. Before each sample the shaper begins the sequence
of that round's seed anew: whoever's turn it is waits for the same times, in the order in which it asks.
"""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

import lab as lab_module
import peers
from cold_peers import EQUAL, at_shaper, cold_front
from front import CACHE
from lab import MIB, SHAPE, SHAPED_BYTES_PER_S, pair_row, say
from measures import FIRST_BYTES
from versus import (OURS, SMALL_BYTES, STRAIGHT, asked, costs, make_files, make_objects, measured, no_processes, quiet,
                    reads_ahead_as, rounds, rows_against, rows_left_out, skipping, sources_of, straight)

UNEVEN = {**SHAPE, "first_byte": "20ms,p99=80ms"}
FILES, QUICK_FILES, AT_ONCE = 400, 80, 8
LARGE_BYTES, QUICK_LARGE_BYTES = 256 * MIB, 32 * MIB
WANTED = ["rclone full"]  # of the mounts: it keeps what it read, as ours does
FIGURES = {"p50": ("first bytes in the median", "ms", 1e3), "p99": ("first bytes, 99th percentile", "ms", 1e3),
           "rate": ("rate", "MB/s", 1e-6)}


class Seeds:
    """A side of rounds: before its n-th sample the n-th seed begins, and the shaper's counters."""

    def __init__(self, shaper, name):
        self.shaper, self.name, self.round = shaper, name.replace(" ", "-"), 0

    def begin(self):
        self.round += 1
        quiet(self.shaper)
        self.shaper.set(seed=self.round, system=self.name)
        self.shaper.reset()

    def counted(self, sample, n_bytes):
        """With what the origin was asked for, and the mean of the times that it let wait."""
        waits = self.shaper.stats()["first_byte"]
        return {**sample, **asked(self.shaper, n_bytes), "waited_s": waits["seconds"] / max(1, waits["requests"])}


def percentile(values, share):
    """As getload has it: the least value that is not below so large a share, in percent, of all."""
    return sorted(values)[(len(values) * share + 99) // 100 - 1]


def read_files(directory, sources):
    """Reads files, AT_ONCE at a time, each to its first 4 KiB, which are timed, and then to its end; all of their bytes must be
    right."""
    expected = {name: path.read_bytes() for name, path in sources.items()}

    def one(name):
        start = time.perf_counter()
        with open(directory / name, "rb", buffering=0) as file:
            body = file.read(FIRST_BYTES)
            first_s = time.perf_counter() - start
            while piece := file.read(MIB):
                body += piece
        if body != expected[name]:
            raise RuntimeError(f"{directory / name}: gave other bytes than the origin")
        return first_s

    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        times = list(pool.map(one, sources))
    seconds = time.perf_counter() - start
    return {"p50": percentile(times, 50), "p99": percentile(times, 99), "rate": sum(map(len, expected.values())) / seconds}


def of_getload(said):
    return {"p50": said["first_p50_s"], "p99": said["first_p99_s"], "rate": said["bytes"] / said["seconds"]}


class Small:
    """The data set of small files: a bucket of the origin, and the same on the disk."""

    def __init__(self, lab):
        count = QUICK_FILES if lab.quick else FILES
        self.bucket, self.sources = make_objects(lab, count, SMALL_BYTES), sources_of(make_files(lab, count, SMALL_BYTES))
        self.files = lab.path("uneven-files")
        self.files.mkdir()
        for path in self.sources.values():
            os.link(path, self.files / path.name)
        self.bytes, self.text = count * SMALL_BYTES, f"{count} cold files of 110 KB from an uneven origin, {AT_ONCE} at once"


# ---- small files ----

def look_at_all(directory):
    """What a program that lists before has a mount know."""
    for folder, _folders, names in os.walk(directory):
        for name in names:
            os.stat(os.path.join(folder, name))


def straight_side(lab, shaper, small):
    """GETs of the same objects, as many at once, thrown away."""
    seeds, (targets, address) = Seeds(shaper, "straight"), lab.targets(at_shaper(lab, shaper), small.bucket, list(small.sources))

    def once():
        seeds.begin()
        return seeds.counted(of_getload(lab.get(address, targets, AT_ONCE)), small.bytes)

    return once


def small_rows(taken, share, left_out, small, way, **more):
    """Beside the origin itself: the first bytes' median has the goal of a cold one. Beside peers: that and the whole rate."""
    rows = []
    for key, (what, unit, scale) in FIGURES.items():
        title = f"{small.text}, through {way}: {what}"
        sides = {name: [{**sample, "rate": sample[key]} for sample in samples] for name, samples in taken.items()}
        pairs = [(a["rate"], b["rate"]) for a, b in zip(sides[OURS], sides[STRAIGHT])]
        row = pair_row(f"{title}, of the origin's own", 1.2, pairs, share, unit, scale, at_most=key != "rate")
        waits = [lab_module.spread([sample["waited_s"] * 1e3 for sample in taken[name]])["median"] for name in (OURS, STRAIGHT)]
        row["note"] = f"the origin let wait {waits[0]:.1f} ms in the mean, and {waits[1]:.1f}"
        rows.append(row if key == "p50" else {**row, "goal": "-", "met": None})
        beside = rows_against({name: samples for name, samples in sides.items() if name != STRAIGHT}, share, title, unit, scale,
                              EQUAL if key != "rate" else 1.0, at_most=key != "rate", **more)
        rows += beside if key == "p50" else [{**row, "goal": "-", "met": None} for row in beside]
    return rows + rows_left_out(left_out, f"{small.text}, through {way}")


def small_through_mounts(lab, shaper, small):
    left_out, missing = {}, {}
    wanted = [peer for peer in peers.before_origin(peers.present(missing)) if peer.name in WANTED]
    left_out |= {name: reason for name, reason in missing.items() if name in WANTED}
    ours = []

    def side(start, name):
        seeds = Seeds(shaper, name)

        def once():
            with start() as running:
                ours.append(running.read_ahead_kb)
                reads_ahead_as(peers.Running(None, [], read_ahead_kb=ours[0]), name, running)
                look_at_all(running.dir)
                seeds.begin()
                return seeds.counted(read_files(running.dir, small.sources), small.bytes)

        return once

    with contextlib.ExitStack() as stack:
        sides = {}
        for peer in [peers.FOREBAY, *wanted]:
            with skipping(peer.name, left_out):
                start = stack.enter_context(peer.volume(lab, small.bucket, shaper.endpoint, small.sources))
                sides[peer.name] = side(start, peer.name)
        say(f"small files from an uneven origin through mounts: {', '.join(sides)}")
        taken, share = rounds(lab, {**sides, STRAIGHT: straight_side(lab, shaper, small)}, left_out)
    return small_rows(taken, share, left_out, small, "the mount", read_ahead_kb=ours[0])


def small_through_s3(lab, shaper, small):
    left_out = {}

    def side(name):
        seeds = Seeds(shaper, name)

        def once():
            with cold_front(lab, name, small.bucket, shaper, list(small.sources), listed=True) as (address, targets, _pids):
                seeds.begin()
                sample = seeds.counted(of_getload(lab.get(address, targets, AT_ONCE)), small.bytes)
                lab.get(address, targets, AT_ONCE, compare=small.files)
                return sample

        return once

    say(f"small files from an uneven origin through S3: {OURS}, {CACHE}")
    sides = {name: side(name) for name in (OURS, CACHE)}
    taken, share = rounds(lab, {**sides, STRAIGHT: straight_side(lab, shaper, small)}, left_out)
    return small_rows(taken, share, left_out, small, "S3")


# ---- a large one ----

def allowed_row(taken, share, way, size):
    """Our rate as a share of what the origin gives: its limit, or what parallel ranges straight from it come to in the same
    round."""
    pairs = [(ours["rate"], min(SHAPED_BYTES_PER_S, origin["rate"])) for ours, origin in zip(taken[OURS], taken[STRAIGHT])]
    title = f"Cold read of {size // MIB} MiB through {way} from an uneven origin, of parallel ranges straight from it"
    row = pair_row(title, 0.95, pairs, share, "MB/s", 1e-6)
    return {**row, "ours_cost": costs(taken[OURS]), "reference_cost": costs(taken[STRAIGHT])}


def large_rows(lab, shaper, source, bucket):
    size, key, left_out = source.stat().st_size, "large.bin", {}
    files = lab_module.links_of(lab.path("large-files"), [key], source)

    def through_mount(seeds):
        with lab.node(bucket, endpoint=shaper.endpoint) as node, lab.mount(node, bucket) as mount:
            look_at_all(mount.dir)
            seeds.begin()
            sample = measured(lambda: peers.tree([node.pid, mount.pid]), lambda: lab.read("seq", mount.dir / key, MIB, 1))
            sample = seeds.counted(sample, size)
            lab_module.must_be_same(source, mount.dir / key)
            return sample

    def through_s3(seeds, name):
        with cold_front(lab, name, bucket, shaper, [key], listed=True) as (address, targets, pids):
            seeds.begin()
            sample = seeds.counted(measured(pids, lambda: lab.get(address, targets, 1)), size)
            lab.get(address, targets, 1, compare=files)
            return sample

    def straight_on(seeds):
        seeds.begin()
        return seeds.counted(measured(no_processes, lambda: straight(lab, shaper, bucket, key, size)), size)

    def with_seeds(name, once, *more):
        seeds = Seeds(shaper, name)
        return lambda: once(seeds, *more)

    say(f"a file of {size // MIB} MiB from an uneven origin")
    sides = {OURS: with_seeds(OURS, through_mount), "S3": with_seeds("S3", through_s3, OURS),
             CACHE: with_seeds(CACHE, through_s3, CACHE), STRAIGHT: with_seeds("straight", straight_on)}
    if peers.program("nginx") is None:
        left_out[CACHE] = "nginx is not installed"
        del sides[CACHE]
    taken, share = rounds(lab, sides)
    mounted, through = {OURS: taken[OURS], STRAIGHT: taken[STRAIGHT]}, {OURS: taken["S3"], STRAIGHT: taken[STRAIGHT]}
    rows = [allowed_row(mounted, share, "the mount", size), allowed_row(through, share, "S3", size)]
    title = f"Cold read of {size // MIB} MiB through S3 from an uneven origin"
    beside = {OURS: taken["S3"], CACHE: taken[CACHE]} if CACHE in taken else {OURS: taken["S3"]}
    return rows + rows_against(beside, share, title, "MB/s", 1e-6) + rows_left_out(left_out, title)


def uneven(lab):
    """From an origin whose first bytes are log-normal (20 ms in the median, 80 ms at the 99th percentile; 50 MB/s per connection,
    300 MB/s in all), by systems with nothing in them, each in turn with the same sequence of delays: 400 files of 110 KB, eight
    at a time, listed before, with the median and the 99th percentile of the time to their first bytes (through the mount the
    first 4 KiB) and the rate of all, and one file of 256 MiB. Through the mount beside rclone full, and through S3 beside nginx
    with proxy_cache; the same GETs, and parallel ranges of the large file, straight from the origin are what it allows. A quick
    run has 80 files and 32 MiB."""
    lab.fill_memory()
    small, size = Small(lab), QUICK_LARGE_BYTES if lab.quick else LARGE_BYTES
    source = lab.path("uneven-large")
    lab_module.write_random(source, size, "uneven")
    bucket = lab.upload({"large.bin": source})
    with lab.shaper(**UNEVEN) as shaper:
        rows = small_through_mounts(lab, shaper, small) + small_through_s3(lab, shaper, small)
        return rows + large_rows(lab, shaper, source, bucket)


MEASURES = {"uneven": uneven}
