"""Files of a bucket without origin that programs change in place, read, and make by the thousand, without a goal."""

import os
import random
import shutil
import time

import lab as lab_module
from lab import GIB, MIB, pair_row, say
from measures import QUICK_SHARE, WAYS, rate
from work import scratch_mount

FILE_BYTES, QUICK_FILE_BYTES = GIB, 64 * MIB
WRITE_WAYS = [("4 KiB", 4096, 100_000, False), ("128 KiB", 128 << 10, 8_000, False), ("4 KiB, each with fdatasync", 4096, 800, True)]
CREATED, QUICK_CREATED, PER_DIRECTORY, CREATED_BYTES = 10_000, 800, 1_000, 4096


def file_bytes(lab):
    return QUICK_FILE_BYTES if lab.quick else FILE_BYTES


def plain_row(title, taken, share, unit, scale=1.0):
    return {**pair_row(f"{title}, of the disk's", 1, taken, share, unit, scale), "goal": "-", "met": None}


def both_files(lab, mount):
    """A file on the disk and one on the mount, of the same bytes, written back."""
    plain, ours = lab.path("plain") / "file", mount.dir / "file"
    for path in (plain, ours):
        lab_module.write_random(path, file_bytes(lab), "scratch")
    return plain, ours


def write_in_place(path, block, count, is_synced, seed):
    """Bytes per second of random writes over what the file has, opened O_RDWR, from the first to the last of them."""
    source = random.Random(seed)
    n_blocks = path.stat().st_size // block
    places = [source.randrange(n_blocks) * block for _ in range(count)]
    body = source.randbytes(block)
    fd = os.open(path, os.O_RDWR)
    try:
        start = time.perf_counter()
        for place in places:
            if os.pwrite(fd, body, place) != block:
                raise RuntimeError(f"{path}: a short write")
            if is_synced:
                os.fdatasync(fd)
        seconds = time.perf_counter() - start
        os.fsync(fd)  # its writing back shall not be measured by the other side
    finally:
        os.close(fd)
    return block * count / seconds


def scratch_writes(lab):
    """Random writes in place of one program into a large file that it has open O_RDWR, through a mount of a bucket without origin and into a
    copy on the same disk: into the page cache, and each with an fdatasync. Both have the same bytes afterwards."""
    rows = []
    with scratch_mount(lab) as (_node, mount):
        plain, ours = both_files(lab, mount)
        for title, block, count, is_synced in WRITE_WAYS:
            count = count // QUICK_SHARE if lab.quick else count
            say(f"writes in place: {title}, {lab.pairs} pairs")
            seeds = {plain: iter(range(lab.pairs)), ours: iter(range(lab.pairs))}  # the same writes on both sides
            taken, share = lab.take_pairs(*(lambda path=path: write_in_place(path, block, count, is_synced, next(seeds[path]))
                                            for path in (ours, plain)))
            rows.append(plain_row(f"Random writes in place through the mount, {title}", taken, share, "MB/s", 1e-6))
        lab_module.must_be_same(plain, ours)
    return rows


def scratch_reads(lab):
    """Warm reads of a large file of a bucket without origin through the mount against the same reads of its copy on the same disk, as in `warm`."""
    rows = []
    with scratch_mount(lab) as (_node, mount):
        plain, ours = both_files(lab, mount)
        lab_module.must_be_same(plain, ours)
        for title, mode, block, count in WAYS:
            count = count // QUICK_SHARE if lab.quick and mode == "random" else count
            say(f"reads of a scratch file: {title}, {lab.pairs} pairs")
            taken, share = lab.take_pairs(*(lambda path=path: rate(lab.read(mode, path, block, count)) for path in (ours, plain)))
            rows.append(plain_row(f"Reads of a scratch file through the mount, {title}", taken, share, "MB/s", 1e-6))
    return rows


def create_files(top, count, is_synced):
    """Files per second that are created, written and closed by one thread; then they are compared, and removed."""
    body = random.Random(count).randbytes(CREATED_BYTES)
    start = time.perf_counter()
    for number in range(count):
        folder = top / str(number // PER_DIRECTORY)
        if number % PER_DIRECTORY == 0:
            folder.mkdir(parents=True)
        fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, body)
        if is_synced:
            os.fsync(fd)
        os.close(fd)
    seconds = time.perf_counter() - start
    for number in range(count):
        path = top / str(number // PER_DIRECTORY) / str(number)
        if path.read_bytes() != body:
            raise RuntimeError(f"{path}: gave other bytes than were written")
    shutil.rmtree(top)
    return count / seconds


def scratch_creates(lab):
    """10,000 files of 4 KiB (a quick run: 800) in directories of 1,000, each created, written and closed by one thread, without and with an fsync
    of each, in a bucket without origin through the mount and in a directory of the same disk."""
    rows, count = [], QUICK_CREATED if lab.quick else CREATED
    plain = lab.path("created")
    plain.mkdir()
    with scratch_mount(lab) as (_node, mount):
        for title, is_synced in (("create, write, close", False), ("create, write, fsync, close", True)):
            say(f"{count} files of {CREATED_BYTES} bytes: {title}, {lab.pairs} pairs")
            taken, share = lab.take_pairs(*(lambda top=top: create_files(top / "files", count, is_synced) for top in (mount.dir, plain)))
            rows.append(plain_row(f"{count:,} files of 4 KiB on scratch through the mount: {title}", taken, share, "files/s"))
    return rows


MEASURES = {"scratch_writes": scratch_writes, "scratch_reads": scratch_reads, "scratch_creates": scratch_creates}
