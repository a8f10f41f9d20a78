"""Measurements of uploads: PUTs that are durable when they are answered, beside the least that one can cost and beside another server."""

import contextlib
import json
import os
import resource
import statistics
import subprocess

import lab as lab_module
import peers
from lab import OURS, harness, say
from usage import Usage
from versus import NotRun, bench, cost_row, not_run_row, rounds, skipping

PUT_REQUESTS, QUICK_PUT_REQUESTS, PUT_SIZE, PUT_BYTES = 64, 4, "16MiB", 16 << 20
BACK_BYTES, QUICK_BACK_BYTES = 1 << 30, 64 << 20
CONNECTIONS = (1, 4)
OWN_OBJECTS, PUT_PREFIX = 16, "forebay-bench-1/put-0"  # of each connection of `bench load`; of the first one
CEILING, OTHER, FIO, LOOPBACK = "the ceiling", "versitygw", "fio", "the loopback"
MINIO = peers.MINIO
LOWER = "the lower of fio's and the loopback"


class Ceiling(harness.Program):
    """bench/putceiling over a directory of the lab's disk."""

    def __init__(self, lab, *options):
        super().__init__(lab.path("-".join(["ceiling", *options])), "putceiling")
        (self.dir / "objects").mkdir()
        match = self.spawn([lab_module.BUILD / "bench/putceiling", self.dir / "objects", *options], ready=r"listening on (\S+)")
        self.endpoint = "http://" + match.group(1)

    def stop(self):
        self.kill()
        harness.tree_remove(self.dir)


def put_sample(pid, endpoint, keys, bucket, size, connections, requests, seed):
    """Bytes per second of PUTs of objects that replace those of the call before, and what they cost, the client included."""
    env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]}
    with Usage(lambda: peers.tree([pid])) as usage:
        said = bench("load", f"s3://{bucket}", "--mix", "put=1", "--size", size, "--connections", connections, "--requests", requests,
                     "--warm-up", "0ms", "--duration", "10m", "--seed", seed, "--keep", env=env)["put"]
    return {"rate": said["bytes_per_s"], "cpu_s_per_gb": usage.cpu_s / (said["bytes"] / 1e9), "memory_bytes": usage.memory_bytes}


def expected_puts(lab, size, objects=OWN_OBJECTS):
    """A directory with what `bench load` puts as the objects of its first connection, by their names: the bytes follow from the seed and
    the names, so that it writes the same here."""
    directory = lab.path("expected")
    directory.mkdir()
    bench("load", directory, "--mix", "put=1", "--size", size, "--connections", 1, "--requests", objects, "--warm-up", "0ms",
          "--duration", "10m", "--seed", 1, "--keep")
    os.sync()  # its writing back shall not be measured
    return directory / PUT_PREFIX


def compare_puts(lab, client, bucket, expected):
    """What was acknowledged is there, as it was sent: the objects of the first connection."""
    found = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket, Prefix=PUT_PREFIX + "/").get("Contents", [])]
    if not found:
        raise RuntimeError(f"{bucket}: nothing is there of what was put")
    targets, address = lab.targets(client, bucket, found)
    lab.get(address, targets, min(4, len(targets)), compare=expected)


def fio_sample(directory, size, writers, files):
    """Bytes per second at which fio makes files of this many bytes, each with an fsync at its end, and what that costs."""
    directory.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["fio", "--name=files", f"--directory={directory}", "--rw=write", "--bs=1M", f"--filesize={size}",
                           f"--nrfiles={max(1, files // writers)}", f"--numjobs={writers}", "--openfiles=1", "--file_service_type=sequential",
                           "--create_on_open=1", "--fsync_on_close=1", "--fallocate=none", "--ioengine=psync", "--thread",
                           "--group_reporting", "--output-format=json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"fio: {done.stderr.strip() or done.stdout.strip()}")
    wrote = [p.stat().st_size for p in directory.iterdir()]
    harness.tree_remove(directory)
    if set(wrote) != {size} or len(wrote) != max(1, files // writers) * writers:
        raise RuntimeError(f"fio made {len(wrote)} files of {sorted(set(wrote))} bytes")
    said = json.loads(done.stdout)["jobs"][0]["write"]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rate": said["io_bytes"] / (said["runtime"] / 1e3), "cpu_s_per_gb": cpu_s / (said["io_bytes"] / 1e9), "memory_bytes": 0}


def made_bucket(node, name, *properties):
    """Makes a bucket with properties, or raises NotRun with the node's words."""
    flags = [word for one in properties for word in ("--set", one)]
    made = node.cli("bucket", "create", name, *flags, check=False)
    if made.returncode != 0:
        raise NotRun(made.stderr.strip())


def rows_of(taken, share, title, goals, left_out=None):
    """One row for each other side, with its goal; of those that were left out, with the reason."""
    rows = []
    for name, goal in goals.items():
        named = f"{title}, of {name}'s rate"
        if left_out and name in left_out:
            rows.append(not_run_row(named, f"at least {goal:g}", left_out[name]))
        else:
            rows.append(cost_row(named, goal, taken[OURS], taken[name], share, "MB/s", 1e-6))
    return rows


def lower_row(taken, share, title, goal):
    """Our rate as a share of the lower, in each round, of what the disk takes from fio and what the loopback carries."""
    lower = [min(pair, key=lambda one: one["rate"]) for pair in zip(taken[FIO], taken[LOOPBACK])]
    row = rows_of({OURS: taken[OURS], LOWER: lower}, share, title, {LOWER: goal})[0]
    rates = {name: statistics.median(one["rate"] for one in taken[name]) / 1e6 for name in (FIO, LOOPBACK)}
    return {**row, "note": f"fio {rates[FIO]:.0f} MB/s, the loopback {rates[LOOPBACK]:.0f} MB/s"}


def others_kept(lab, others, expected, left_out):
    """What was acknowledged by the other servers is there; of the peers among them, whoever does not have it is left out."""
    for name, (server, bucket) in others.items():
        with contextlib.nullcontext() if name != MINIO else skipping(name, left_out):
            if name not in left_out:
                compare_puts(lab, server.s3(signature_version="s3v4"), bucket, expected)


def load_rows(lab, node, bucket, ceiling, title, goals, others=None, loopback=None, left_out=None):
    """PUTs into a bucket of a node, the ceiling and the other servers in turns, {name: (server, bucket)}, with one and with several
    connections; with `loopback`, what only receives, beside fio over the same disk, too. A peer that fails goes to `left_out`."""
    requests = QUICK_PUT_REQUESTS if lab.quick else PUT_REQUESTS
    rows, expected, others = [], expected_puts(lab, PUT_SIZE), others or {}
    left_out = {} if left_out is None else left_out
    for connections in CONNECTIONS:
        sides = {OURS: (node.pid, node.endpoint, node.credentials, bucket), CEILING: (ceiling.pid, ceiling.endpoint, ("none", "none"), "b")}
        for name, (server, theirs) in others.items():
            if name not in left_out:
                sides[name] = (server.pid, server.endpoint, (server.access_key, server.secret_key), theirs)
        if loopback:
            sides[LOOPBACK] = (loopback.pid, loopback.endpoint, ("none", "none"), "b")
        ways = {name: lambda s=side: put_sample(*s, PUT_SIZE, connections, requests, 1) for name, side in sides.items()}
        if loopback:
            ways[FIO] = lambda: fio_sample(lab.path("fio"), PUT_BYTES, connections, requests)
        say(f"{title}, {connections} connections, {lab.pairs} rounds of {len(ways)}")
        taken, share = rounds(lab, ways, left_out)
        for name in set(left_out) - {MINIO}:  # no peer
            raise RuntimeError(f"{name}: {left_out[name]}")
        compare_puts(lab, node.s3(signature_version="s3v4"), bucket, expected)
        others_kept(lab, others, expected, left_out)
        named = f"{title}, {connections} connection{'s' if connections > 1 else ''}"
        rows += rows_of(taken, share, named, goals, left_out)
        if loopback:
            rows.append(lower_row(taken, share, named, goals[CEILING]))
    return rows


def put(lab):
    """PUT of 64 objects of 16 MiB with 1 and 4 connections into a scratch bucket, durable when answered, against bench/putceiling, which
    receives, computes MD5 and CRC, writes and syncs, against versitygw, which syncs nothing (none of its calls does, seen by strace), and against
    MinIO with one drive, which syncs the data of each object once (fdatasync, seen by strace); all over the same disk, by the same client."""
    left_out, others = {}, {OTHER: (lab.origin, lab.origin.new_bucket())}
    with lab.node() as node, Ceiling(lab) as ceiling, contextlib.ExitStack() as stack:
        made_bucket(node, "scratch")
        with skipping(MINIO, left_out):
            minio = stack.enter_context(peers.Minio(lab))
            others[MINIO] = minio, minio.new_bucket()
        return load_rows(lab, node, "scratch", ceiling, "PUT of 16 MiB objects into a scratch bucket", {CEILING: 0.8, OTHER: 1.5, MINIO: 1.5},
                         others, left_out=left_out)


def put_opaque(lab):
    """The same into a bucket with etag=opaque, which promises no MD5, against bench/putceiling without MD5, what disk and loopback together
    allow, and against the lower of two rates that each has the machine to itself: fio's, which writes as many files of 16 MiB with an fsync
    at the end of each, and the loopback's, to a server that forgets what it receives."""
    if not peers.program("fio"):
        raise NotRun("fio is not installed (scripts/setup --bench)")
    with lab.node() as node, Ceiling(lab, "opaque") as ceiling, Ceiling(lab, "discard") as loopback:
        made_bucket(node, "scratch", "etag=opaque")
        return load_rows(lab, node, "scratch", ceiling, "PUT of 16 MiB objects, etag=opaque", {CEILING: 0.8}, loopback=loopback)


def put_mirror(lab):
    """PUT of objects of 16 MiB into a mirror bucket, acknowledged when versitygw has them, against the same straight to versitygw, which can
    at best be as fast."""
    mirrored, direct = lab.origin.new_bucket(), lab.origin.new_bucket()
    requests = QUICK_PUT_REQUESTS if lab.quick else PUT_REQUESTS // 4
    keys = (lab.origin.access_key, lab.origin.secret_key)
    rows, expected = [], expected_puts(lab, PUT_SIZE)
    with lab.node(mirrored) as node:
        for connections in CONNECTIONS:
            say(f"PUT into a mirror bucket, {connections} connections, {lab.pairs} rounds")
            taken, share = rounds(lab, {
                OURS: lambda: put_sample(node.pid, node.endpoint, node.credentials, mirrored, PUT_SIZE, connections, requests, 1),
                OTHER: lambda: put_sample(lab.origin.pid, lab.origin.endpoint, keys, direct, PUT_SIZE, connections, requests, 1)})
            for bucket in (mirrored, direct):  # both at the origin
                compare_puts(lab, lab.origin.s3(signature_version="s3v4"), bucket, expected)
            rows += rows_of(taken, share, f"PUT of 16 MiB objects into a mirror bucket, {connections} connection{'s' if connections > 1 else ''}",
                            {OTHER: 1.0})
    return [{**row, "goal": "-", "met": None} for row in rows]


def write_back(lab):
    """PUT of one object of 1 GiB into a mirror bucket with write=back, acknowledged when it is durable here, against the same into a scratch
    bucket."""
    size = QUICK_BACK_BYTES if lab.quick else BACK_BYTES
    with lab.node() as node:
        made_bucket(node, "scratch")
        name = lab.origin.new_bucket()
        origin = [f"{key}={value}" for key, value in lab.origin.properties().items()]
        made_bucket(node, name, f"origin=s3://{name}", *origin, "write=back")

        def one(bucket):
            node.cli("flush", name, "--wait", timeout=600)  # what is still on its way would share the disk with the next
            os.sync()  # nor shall what the origin has not written yet
            return put_sample(node.pid, node.endpoint, node.credentials, bucket, size, 1, 1, 1)

        say(f"PUT of {size >> 20} MiB with write-back, {lab.pairs} rounds")
        taken, share = rounds(lab, {OURS: lambda: one(name), "scratch": lambda: one("scratch")})
        node.cli("flush", name, "--wait", timeout=600)
        expected = expected_puts(lab, size, objects=1)
        for client, bucket in ((node.s3(signature_version="s3v4"), "scratch"), (lab.origin.s3(signature_version="s3v4"), name)):
            compare_puts(lab, client, bucket, expected)
    return rows_of(taken, share, f"PUT of {size >> 20} MiB, write=back", {"scratch": 0.8})


MEASURES = {"put": put, "put_opaque": put_opaque, "put_mirror": put_mirror, "write_back": write_back}
