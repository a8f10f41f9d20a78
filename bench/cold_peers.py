"""What an empty or a small cache asks of the origin, of memory and of the disk, beside the peers: time to the first byte, bytes from
the origin, memory under many streams, reads with the page cache dropped. Each system in turn, as in versus.py; of all these figures
but rates less is better, so that a ratio is ours over theirs and a goal "at most".

Nobody has the first byte before the origin gives it, nor the data with fewer bytes than it has: there a hundredth more than a
peer is no miss. SeaweedFS keeps its copy itself and asks no origin; it is left out.
"""

import contextlib
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import lab as lab_module
import peers
from front import CACHE, Nginx
from lab import MIB, SHAPE, harness, say
from measures import FIRST_BYTES, first_of_get
from usage import ClientLimit, Usage
from versus import (DISK, ONE_GET, OURS, SMALL_BYTES, STRAIGHT, asked, epoch, gives, make_files, make_objects, measured, mounted,
                    not_run_row, quiet, reads_ahead_as, rounds, rows_against, rows_left_out, skipping, sources_of, straight_once,
                    those_that)

FIRST_OBJECTS, QUICK_FIRST_OBJECTS, FIRST_SIZES = 21, 5, [4 * MIB, 128 << 10]
EPOCH_FILES, QUICK_EPOCH_FILES, EPOCHS = 300, 150, 2
HALF_FILES, QUICK_HALF_FILES, HALF_BYTES, HALF_EPOCHS = 80, 24, 2 * MIB, 4
HALF_PAUSE_SECONDS = 1.5  # rclone cuts its cache back each second
STREAMS, STREAM_BYTES, QUICK_STREAM_BYTES = 64, 8 * MIB, 2 * MIB
DROPPED_BYTES, QUICK_DROPPED_BYTES = 512 * MIB, 128 * MIB
CONNECTIONS = 16
EQUAL = 1.01  # what is bound by the origin is the same for all
DROP_CACHES = pathlib.Path("/proc/sys/vm/drop_caches")


def at_shaper(lab, shaper):
    """A client that signs for the shaped origin."""
    return harness.s3_client(shaper.endpoint, lab.origin.access_key, lab.origin.secret_key, signature_version="s3v4")


@contextlib.contextmanager
def cold_front(lab, name, bucket, shaper, keys, listed=False):
    """A node with nothing in it, or nginx as an empty cache, in front of the shaped origin: (address, targets, processes).
    listed: a client has listed the bucket before; nginx has no use for that."""
    with contextlib.ExitStack() as stack:
        if name == OURS:
            server = stack.enter_context(lab.node(bucket, endpoint=shaper.endpoint))
            targets, address = lab.targets(server.s3(signature_version="s3v4"), bucket, keys)
            if listed:
                pages = server.s3().get_paginator("list_objects_v2").paginate(Bucket=bucket)
                assert sum(page["KeyCount"] for page in pages) == len(keys)
        else:
            directory = lab.path("proxy")
            stack.callback(lambda: directory.exists() and harness.tree_remove(directory))  # not where nginx is missing
            server = stack.enter_context(Nginx(directory, origin=shaper.endpoint.split("//")[1], alike=True))
            targets, address = lab.targets(at_shaper(lab, shaper), bucket, keys)[0], server.address
        yield address, targets, lambda: peers.tree([server.pid])


def cold_through_s3(lab, shaper, bucket, key, source):
    """Rows of one GET of an object through a node with nothing in it, and through nginx as an empty cache."""
    size, left_out = source.stat().st_size, {}
    title, files = f"Cold GET of {size // MIB} MiB through S3", lab_module.links_of(lab.path("cold-files"), [key], source)

    def once(name):
        with cold_front(lab, name, bucket, shaper, [key]) as (address, targets, pids):
            shaper.reset()
            sample = measured(pids, lambda: lab.get(address, targets, 1))
            sample |= asked(shaper, size)
            lab.get(address, targets, 1, compare=files)
            return sample

    say(f"cold through S3: {OURS}, {CACHE}")
    sides = {name: lambda n=name: once(n) for name in (OURS, CACHE)}
    taken, share = rounds(lab, {**sides, STRAIGHT: lambda: straight_once(lab, shaper, bucket, size)}, left_out)
    return rows_against(taken, share, title, "MB/s", 1e-6) + rows_left_out(left_out, title)


# ---- first byte ----

def in_turn(samples, shaper, take):
    """A side of rounds: each time the next of `samples`, and then nothing on its way."""
    left = iter(samples)

    def once():
        sample = {"rate": take(next(left))}
        quiet(shaper)
        return sample

    return once


def one_get(lab, stack, shaper, bucket, keys, expected):
    """The origin itself, through the same shaper."""
    targets, address = lab.targets(at_shaper(lab, shaper), bucket, keys)
    connection = stack.enter_context(contextlib.closing(http.client.HTTPConnection(address)))
    connection.connect()
    return in_turn(targets, shaper, lambda target: first_of_get(connection, target, expected))


def first_through_mounts(lab, shaper, bucket, sources, expected, title):
    left_out, keys = {}, list(sources)
    with mounted(lab, bucket, shaper.endpoint, sources, left_out, peers.before_origin(peers.present(left_out))) as running, \
            contextlib.ExitStack() as stack:
        sides = {}
        for name, system in running.items():
            with skipping(name, left_out):
                for key in os.listdir(system.dir):
                    os.stat(system.dir / key)
                sides[name] = in_turn(keys, shaper, lambda key, s=system: lab.read("first", s.dir / key, FIRST_BYTES)["first_s"])
        sides[ONE_GET] = one_get(lab, stack, shaper, bucket, keys, expected)
        quiet(shaper)
        taken, share = rounds(lab, sides, left_out, pairs=len(keys))
        right = those_that({name: running[name] for name in taken if name in running}, left_out,
                           lambda system: all_right(system, sources))
        read_ahead_kb = running[OURS].read_ahead_kb
    taken = {name: samples for name, samples in taken.items() if name in right or name == ONE_GET}
    rows = rows_against(taken, share, title, "ms", 1e3, EQUAL, read_ahead_kb=read_ahead_kb, at_most=True)
    return rows + rows_left_out(left_out, title)


def first_through_s3(lab, shaper, bucket, keys, expected, title):
    left_out, sides = {}, {}
    with contextlib.ExitStack() as stack:
        for name in (OURS, CACHE):
            with skipping(name, left_out):
                address, targets, _pids = stack.enter_context(cold_front(lab, name, bucket, shaper, keys))
                connection = stack.enter_context(contextlib.closing(http.client.HTTPConnection(address)))
                connection.connect()
                sides[name] = in_turn(targets, shaper, lambda target, c=connection: first_of_get(c, target, expected))
        sides[ONE_GET] = one_get(lab, stack, shaper, bucket, keys, expected)
        taken, share = rounds(lab, sides, left_out, pairs=len(keys))
    return rows_against(taken, share, title, "ms", 1e3, EQUAL, at_most=True) + rows_left_out(left_out, title)


def peers_first(lab):
    """Time until the first 4 KiB of an object that the system has not are there (S3: its first byte), from the shaped origin:
    through the mounts of all systems, after a listing and a look at each file, and through S3 beside nginx with proxy_cache. Each
    round takes another object, and the next system waits until nothing is on its way any more. A GET straight from the origin
    stands beside: nobody can be before it. JuiceFS reads its own blocks of a copy from the same origin. Objects of 4 MiB and of
    128 KiB."""
    n, rows = QUICK_FIRST_OBJECTS if lab.quick else FIRST_OBJECTS, []
    for size in FIRST_SIZES:
        text = f"{size // MIB} MiB" if size >= MIB else f"{size >> 10} KiB"
        source = lab.path(f"first-{size}.bin")
        lab_module.write_random(source, size, f"peers first {size}")
        sources = {f"object-{i:03d}": source for i in range(n)}
        bucket, expected, title = lab.upload(sources), source.read_bytes(), f"First byte of a cold object of {text} through"
        say(f"first byte beside peers: {n} objects of {text}")
        with lab.shaper(**SHAPE) as shaper:
            rows += first_through_mounts(lab, shaper, bucket, sources, expected, f"{title} the mount")
            rows += first_through_s3(lab, shaper, bucket, list(sources), expected, f"{title} S3")
    return rows


# ---- bytes from the origin ----

def noted(rows, taken, text):
    """The rows, each with text(its samples) of both sides beside it."""
    return [{**row, "note": f"{text(taken[OURS])} against {text(taken[row['peer']])}"} for row in rows]


def by_epoch(samples):
    """Medians of each epoch's bytes, and of all requests."""
    shares = [statistics.median(values) for values in zip(*(sample["epochs"] for sample in samples))]
    requests = statistics.median(sample["origin_requests"] for sample in samples)
    return f"{', '.join(f'{share:.3f}' for share in shares)} in {requests:,.0f} requests"


def counted(shaper, total, pids, reads, rate):
    """Each of reads() with the bytes that the origin gave for it, as shares of the data set; rate(shares) is what is compared,
    one byte at least, so that there is a ratio."""
    shares, requests = [], 0
    with Usage(pids) as usage:
        for read in reads:
            shaper.reset()
            read()
            quiet(shaper)
            found = asked(shaper, total)
            shares.append(found["origin_bytes"])
            requests += found["origin_requests"]
    return {"rate": max(rate(shares), 1 / total), "epochs": shares, "origin_requests": requests,
            "memory_bytes": usage.memory_bytes, "cpu_s_per_gb": usage.cpu_s / (len(shares) * total / 1e9)}


def mount_sides(lab, stack, shaper, bucket, sources, left_out, wanted, once, check=lambda system: None):
    """{name: what takes one sample of a system whose mount is made anew each time}, ours first. once(start, name, ours): with
    what starts it, and what reads ahead as it must. check(system): raises where its bytes are not right, before anything is
    measured."""
    sides, ours = {}, None
    for peer in [peers.FOREBAY, *wanted]:
        with skipping(peer.name, left_out):
            start = stack.enter_context(peer.volume(lab, bucket, shaper.endpoint, sources))
            with start() as running:
                ours = ours or running
                reads_ahead_as(ours, peer.name, running)
                check(running)
            sides[peer.name] = lambda s=start, n=peer.name: once(s, n, ours)
    return sides, ours.read_ahead_kb


def epochs_through_mounts(lab, shaper, bucket, sources, total):
    title = f"Bytes from the origin for two epochs of {len(sources):,} files of 110 KB through the mount, of the data set's"
    left_out = {}

    def once(start, name, ours):
        with start() as running:
            reads_ahead_as(ours, name, running)
            reads = [lambda n=n: epoch(running.dir, 2, "--seed", n + 1) for n in range(EPOCHS)]
            return counted(shaper, total, running.pids, reads, sum)

    with contextlib.ExitStack() as stack:
        wanted = peers.before_origin(peers.present(left_out))
        sides, read_ahead_kb = mount_sides(lab, stack, shaper, bucket, sources, left_out, wanted, once)
        say(f"two epochs through all mounts: {', '.join(sides)}")
        taken, share = rounds(lab, sides, left_out)
    rows = rows_against(taken, share, title, "of the data set's", 1.0, EQUAL, read_ahead_kb=read_ahead_kb, at_most=True)
    return noted(rows, taken, by_epoch) + rows_left_out(left_out, title)


def epochs_through_s3(lab, shaper, bucket, sources, total):
    title = f"Bytes from the origin for two epochs of {len(sources):,} objects of 110 KB through S3, of the data set's"
    left_out = {}
    files = lab.path("flat")
    files.mkdir()
    for path in sources.values():
        os.link(path, files / path.name)

    def once(name):
        with cold_front(lab, name, bucket, shaper, list(sources)) as (address, targets, pids):
            return counted(shaper, total, pids, [lambda: lab.get(address, targets, CONNECTIONS, compare=files)] * EPOCHS, sum)

    say(f"two epochs through S3: {OURS}, {CACHE}")
    taken, share = rounds(lab, {name: lambda n=name: once(n) for name in (OURS, CACHE)}, left_out)
    rows = rows_against(taken, share, title, "of the data set's", 1.0, EQUAL, at_most=True)
    return noted(rows, taken, by_epoch) + rows_left_out(left_out, title)


def drop_pages():
    """Everything that is in the page cache and need not be."""
    os.sync()
    DROP_CACHES.write_text("1")


def half_through_mounts(lab, shaper, count):
    title = (f"Bytes from the origin for an epoch of {count} files of 2 MiB through the mount with a cache of half of them, "
             "of the data set's")
    left_out, total = {}, count * HALF_BYTES
    bucket, sources = make_objects(lab, count, HALF_BYTES), sources_of(make_files(lab, count, HALF_BYTES))
    try:
        drop_pages()
    except OSError as error:
        reason = f"what the page cache holds cannot be dropped here: {error.strerror}"
        return [not_run_row(f"{title}, against all", "-", reason, peer="all")]

    def one_epoch(directory, number):
        time.sleep(HALF_PAUSE_SECONDS)
        drop_pages()
        epoch(directory, 2, "--seed", number + 1)

    def once(start, name, ours):
        with start(cache_bytes=total // 2) as running:
            reads_ahead_as(ours, name, running)
            return counted(shaper, total, running.pids, [lambda n=n: one_epoch(running.dir, n) for n in range(HALF_EPOCHS)],
                           lambda shares: max(shares[2:]))

    with contextlib.ExitStack() as stack:
        able = peers.before_origin(peers.present(left_out))
        left_out |= {peer.name: peer.unlimited for peer in able if peer.unlimited}
        wanted = [peer for peer in able if not peer.unlimited]
        sides, read_ahead_kb = mount_sides(lab, stack, shaper, bucket, sources, left_out, wanted, once)
        say(f"epochs with half a cache through mounts: {', '.join(sides)}")
        taken, share = rounds(lab, sides, left_out)
    rows = rows_against(taken, share, title, "of the data set's", 1.0, EQUAL, read_ahead_kb=read_ahead_kb, at_most=True)
    return noted(rows, taken, by_epoch) + rows_left_out(left_out, title)


def peers_epochs(lab):
    """Bytes from the origin, counted by the proxy in front of it: for two shuffled epochs of small files through the mounts of
    all systems, each started anew with an empty cache, and through S3 beside nginx with proxy_cache; and for an epoch with a
    cache of half the data set, the most of the third and the fourth one, what the page cache holds dropped before each. Every
    byte is verified. A cache without a size is left out of the last: that of s3fs, and nginx's, which is cut back each ten
    seconds, longer than an epoch. The origin is unshaped."""
    count = QUICK_EPOCH_FILES if lab.quick else EPOCH_FILES
    bucket, sources = make_objects(lab, count, SMALL_BYTES), sources_of(make_files(lab, count, SMALL_BYTES))
    with lab.shaper() as shaper:
        rows = epochs_through_mounts(lab, shaper, bucket, sources, count * SMALL_BYTES)
        rows += epochs_through_s3(lab, shaper, bucket, sources, count * SMALL_BYTES)
        return rows + half_through_mounts(lab, shaper, QUICK_HALF_FILES if lab.quick else HALF_FILES)


# ---- memory ----

def all_right(system, sources):
    """Whether all files of a mount have the bytes of their sources."""
    def one(key):
        if not lab_module.same(sources[key], system.dir / key):
            raise RuntimeError(f"gave other bytes of {key} than the origin")

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(one, key) for key in sources]:
            done.result()


def of_memory(samples):
    """Samples whose memory is compared."""
    return [{**sample, "rate": sample["memory_bytes"]} for sample in samples]


def at_rate(samples):
    return f"{statistics.median(sample['rate'] for sample in samples) / 1e6:.0f}"


def memory_rows(taken, share, left_out, title, **more):
    memory = {name: of_memory(samples) for name, samples in taken.items()}
    rows = rows_against(memory, share, title, "MiB", 1 / MIB, at_most=True, **more)
    return [{**row, "note": row["note"] + " MB/s"} for row in noted(rows, taken, at_rate)] + rows_left_out(left_out, title)


def streams_of(said, pids):
    """One sample of what said() reads."""
    with Usage(pids) as usage:
        start = time.monotonic()
        result = said()
        seconds = time.monotonic() - start  # of all, from the first to the last: not all begin at once
    return {"rate": result["bytes"] / seconds, "memory_bytes": usage.memory_bytes,
            "cpu_s_per_gb": usage.cpu_s / (result["bytes"] / 1e9)}


def memory_through_mounts(lab, shaper, bucket, sources, text):
    title, left_out = f"Memory under {len(sources)} cold streams of {text} through the mount", {}

    def once(start, name, ours):
        with start() as running:
            reads_ahead_as(ours, name, running)
            return streams_of(lambda: lab.read_each("seq", [running.dir / key for key in sources], MIB, 1), running.pids)

    with contextlib.ExitStack() as stack:
        wanted = peers.before_origin(peers.present(left_out))
        sides, read_ahead_kb = mount_sides(lab, stack, shaper, bucket, sources, left_out, wanted, once,
                                           lambda system: all_right(system, sources))
        say(f"{len(sources)} streams through all mounts: {', '.join(sides)}")
        taken, share = rounds(lab, sides, left_out)
    return memory_rows(taken, share, left_out, title, read_ahead_kb=read_ahead_kb)


def memory_through_s3(lab, shaper, bucket, sources, text):
    title, left_out = f"Memory under {len(sources)} cold streams of {text} through S3", {}
    files = lab_module.links_of(lab.path("streams"), sources, next(iter(sources.values())))

    def once(name):
        with cold_front(lab, name, bucket, shaper, list(sources)) as (address, targets, pids):
            sample = streams_of(lambda: lab.get(address, targets, len(targets)), pids)
            lab.get(address, targets, CONNECTIONS, compare=files)
            return sample

    say(f"{len(sources)} streams through S3: {OURS}, {CACHE}")
    taken, share = rounds(lab, {name: lambda n=name: once(n) for name in (OURS, CACHE)}, left_out)
    return memory_rows(taken, share, left_out, title)


def peers_memory(lab):
    """Memory (RssAnon + RssShmem, each 50 ms) of all processes of a system at its peak while 64 clients read 64 cold objects at
    once from the shaped origin: through the mounts of all systems, each started anew with an empty cache, and through S3 beside
    nginx with proxy_cache. The rates that they came to stand beside it, with the CPU seconds per GB."""
    size = QUICK_STREAM_BYTES if lab.quick else STREAM_BYTES
    plain = lab.path("stream")
    lab_module.write_random(plain, size, "peers stream")
    sources = {f"stream-{i:02d}": plain for i in range(STREAMS)}
    bucket = lab.upload(sources)
    with lab.shaper(**SHAPE) as shaper:
        text = f"{size // MIB} MiB"
        return memory_through_mounts(lab, shaper, bucket, sources, text) + memory_through_s3(lab, shaper, bucket, sources, text)


# ---- the page cache dropped ----

def dropped_once(limit, system, name):
    """One sample of a client in a memory cgroup, with nothing in the page cache."""
    drop_pages()
    argv = limit.wrap([lab_module.BUILD / "bench/reader", "seq", system.dir / name, MIB, 1])
    return measured(system.pids, lambda: json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True,
                                                                   timeout=lab_module.PROGRAM_SECONDS).stdout))


def peers_dropped(lab):
    """Sequential reads of 1 MiB of a large file that each system has in its own cache, what the page cache holds dropped before each,
    by a client in a memory cgroup of a fifth of the file where the machine allows one: through the mounts of all systems, and of a
    copy on the disk. Who keeps something in its own memory has that; rclone off has no cache, and asks the origin, unshaped."""
    size = QUICK_DROPPED_BYTES if lab.quick else DROPPED_BYTES
    source, name, left_out = lab.path("dropped"), "dropped.bin", {}
    title = f"Sequential reads of {size // MIB} MiB through the mount, page cache dropped"
    lab_module.write_random(source, size, "peers dropped")
    try:
        drop_pages()
    except OSError as error:
        reason = f"what the page cache holds cannot be dropped here: {error.strerror}"
        return [not_run_row(f"{title}, against all", "-", reason, peer="all")]
    bucket, disk = lab.upload({name: source}), [peer for peer in peers.LOCAL if peer.name == DISK]
    with lab.shaper() as shaper, ClientLimit(size // 5) as limit, \
            mounted(lab, bucket, shaper.endpoint, {name: source}, left_out, [*disk, *peers.present(left_out)]) as running:
        running = those_that(running, left_out, gives(source, name))
        quiet(shaper)
        say(f"page cache dropped, through all mounts: {', '.join(running)}")
        sides = {system: lambda r=one: dropped_once(limit, r, name) for system, one in running.items()}
        taken, share = rounds(lab, sides, left_out)
        limited = limit.limit_bytes
        note = f"client limited to {limited // MIB} MiB" if limited else "no memory cgroup for the client here"
        rows = rows_against(taken, share, title, "MB/s", 1e-6, read_ahead_kb=running[OURS].read_ahead_kb)
    return [{**row, "note": note} for row in rows] + rows_left_out(left_out, title)


MEASURES = {"peers_first": peers_first, "peers_epochs": peers_epochs, "peers_memory": peers_memory, "peers_dropped": peers_dropped}
