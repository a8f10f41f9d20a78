"""Measurements of jobs that move data, from and to the shaped origin."""

import contextlib
import os
import random
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import lab as lab_module
from front import certificate
from lab import SHAPE, SHAPED_BYTES_PER_S, harness, pair_row, say, stolen, value_row
from peers import tree
from uploads import made_bucket
from usage import Usage, cpu_seconds
from versus import NotRun, asked, bench, costs, make_files, make_objects, rounds, sources_of

PREFETCH_FILES, QUICK_PREFETCH_FILES, PREFETCH_BYTES, PREFETCH_PARALLEL = 2000, 300, 110_000, 128  # what a node asks of an origin at a time
LARGE_FILES, QUICK_LARGE_FILES, LARGE_BYTES = 10, 2, 100_000_000
MANY_LARGE_FILES, QUICK_MANY_LARGE_FILES = 100, 3
BARE_RANGE_BYTES, BARE_RANGES, BARE_PART_BYTES, BARE_PARTS, BARE_OBJECTS = 4 << 20, 4, 16 << 20, 6, 4  # as jobs fetch and send
SMALL_FILES, QUICK_SMALL_FILES, SMALL_BYTES = 100_000, 1_000, 10_000
COMPARED_MAX = 2_000
NAMED_FILES, QUICK_NAMED_FILES, NAMED_READERS = 1000, 100, 32  # as the loaders of a training job on one machine
SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"  # Debian, Fedora, SUSE


class NodeOrigin:
    """Another node as an origin: scratch buckets over S3. It costs little processor time for what it gives, as an origin on a machine of its own
    costs none here."""

    def __init__(self, node, ca_file=None):
        self.node, self.endpoint, self.port, self.ca_file = node, node.endpoint, int(node.endpoint.rsplit(":", 1)[1]), ca_file
        self.access_key, self.secret_key = node.credentials

    @property
    def pid(self):
        return self.node.pid

    def s3(self, **config):
        return self.node.s3(**config)

    def new_bucket(self, name=None):
        name = name or harness.random_name()
        made_bucket(self.node, name)
        return name

    def properties(self, endpoint=None):
        return {"origin.endpoint": endpoint or self.endpoint, "origin.region": harness.REGION, "origin.access_key": self.access_key,
                "origin.secret_key": self.secret_key, **({"origin.ca_file": str(self.ca_file)} if self.ca_file else {})}


@contextlib.contextmanager
def origins(lab):
    """{name: origin}, each as the other."""
    with lab.node() as node:
        yield {"versitygw": lab.origin, "another node": NodeOrigin(node)}


def timed_job(lab, node, n_bytes, *words, timeout, beside=None):
    """A command of the node that waits for its job: seconds, rate, and what node and command cost; `beside`: {name: pid} of processes of
    which is told what they took for each GB."""
    before = cpu_seconds((beside or {}).values())
    with lab.watching(part=words[0]), Usage(lambda: tree([node.pid])) as usage:
        start = time.monotonic()
        node.cli(*words, "--quiet", "--wait", timeout=timeout)
        seconds = time.monotonic() - start
    after, gb = cpu_seconds((beside or {}).values()), n_bytes / 1e9
    return {"seconds": seconds, "rate": n_bytes / seconds, "cpu_s_per_gb": usage.cpu_s / gb, "memory_bytes": usage.memory_bytes,
            "beside": {name: (after[pid] - before[pid]) / gb for name, pid in (beside or {}).items()}}


def processors(samples):
    """What the machine's processors would allow if they worked from the first moment to the last, from what each process took."""
    parts = {"node and command": statistics.median(sample["cpu_s_per_gb"] for sample in samples)}
    parts.update({name: statistics.median(sample["beside"][name] for sample in samples) for name in samples[0]["beside"]})
    most = os.cpu_count() / sum(parts.values()) * 1e9 / SHAPED_BYTES_PER_S
    return ("CPU s per GB: " + ", ".join(f"{name} {value:.2f}" for name, value in parts.items()) +
            f"; {os.cpu_count()} processors that never wait would allow {most:.2f} of the cap")


def bare(lab, address, targets):
    """What as many connections as a job has get from the same shaper: thrown away, and written into new files. Bytes a second."""
    kept = lab.path("kept")
    kept.mkdir()
    rates = {}
    for way, more in (("thrown away", {}), ("written into new files", {"keep": kept})):
        said = lab.get(address, targets, PREFETCH_PARALLEL, **more)
        rates[way] = said["bytes"] / said["seconds"]
    return rates


def bare_rows(title, name, rates, possible, taken, share):
    """The job beside clients that do nothing else, and the lowest of what the shaper allows and they reached."""
    rows = []
    for way in taken[0]:
        pairs = [(rate, min(possible, one[way])) for rate, one in zip(rates, taken)]
        rows.append(pair_row(f"Prefetch of {title} by a job, from {name}, of what {PREFETCH_PARALLEL} connections get, {way}", 0.9, pairs, share,
                             "MB/s", 1e-6))
    return rows


def prefetch_from(lab, name, origin):
    """The rows of `prefetch` for one origin."""
    count = QUICK_PREFETCH_FILES if lab.quick else PREFETCH_FILES
    bucket = make_objects(lab, count, PREFETCH_BYTES, origin)
    total, samples, taken = count * PREFETCH_BYTES, [], []
    possible = min(SHAPED_BYTES_PER_S, PREFETCH_PARALLEL * PREFETCH_BYTES / (0.020 + PREFETCH_BYTES / 50e6))
    with lab.shaper(origin=origin, **SHAPE) as shaper, stolen() as share:
        client = harness.s3_client(shaper.endpoint, origin.access_key, origin.secret_key, signature_version="s3v4")
        keys = [entry["Key"] for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket) for entry in page["Contents"]]
        targets, address = lab.targets(client, bucket, keys)
        say(f"prefetch of {count} files, {lab.pairs} times, from {name}")
        for _ in range(lab.pairs):
            with lab.node(bucket, endpoint=shaper.endpoint, keep=True, origin=origin) as node:
                shaper.reset()
                samples.append({**timed_job(lab, node, total, "prefetch", bucket, timeout=600,
                                            beside={"shaper": shaper.pid, name: origin.pid}), **asked(shaper, total)})
                shaper.reset()
                bench("epoch", bucket, "--socket", node.socket_path, "--verify", "--epochs", 1)
                if shaper.stats()["kinds"]["get"]["requests"] + shaper.stats()["kinds"]["get_range"]["requests"]:
                    raise RuntimeError("the job did not fetch everything")
            taken.append(bare(lab, address, targets))
    title, rates = f"{count:,} files of 110 KB", [sample["rate"] for sample in samples]
    row = pair_row(f"Prefetch of {title} by a job, from {name}, of what the origin allows", 0.9, [(rate, possible) for rate in rates], share[0],
                   "MB/s", 1e-6)
    return [{**row, "ours_cost": costs(samples), "note": processors(samples)}, *bare_rows(title, name, rates, possible, taken, share[0])]


def prefetch(lab):
    """A prefetch job over files of 110 KB from the shaped origin, each time by a node with nothing in it, from the command to its
    end, against what the shaper allows: 300 MB/s, or as many requests at a time as a node may have of which nobody has said how many
    (origin.connections), over the time of each. Shaper and origin share the processors with the node; versitygw takes more of them than
    the shaper, another node as the origin little, which is nearer to an origin on a machine of its own. After each job as many connections
    fetch the same files from the same shaper, in presigned requests that are known before the clock starts: once they throw them away, which is
    what server and shaper can give anybody here, and once each becomes a new file, which is the least that keeping them costs."""
    lab.fill_memory()
    with origins(lab) as servers:
        return [row for name, origin in servers.items() for row in prefetch_from(lab, name, origin)]


def authorities(lab, certificate):
    """A file with those of the system and one more, as where a company has one of its own."""
    system = next((path for path in SYSTEM_AUTHORITIES if os.path.exists(path)), None)
    if system is None:
        raise NotRun("the system has no file of authorities")
    path = lab.path("authorities")
    with open(path, "wb") as out:
        for one in (system, certificate):
            with open(one, "rb") as f:
                out.write(f.read())
    return path


def prefetch_https(lab):
    """A prefetch job over files of 110 KB from another node over https, each time by a node that has just begun, against the same over http; neither
    is shaped, as the shaper speaks http. The node trusts the system's authorities and the other node's. What is measured is what an origin in a
    cloud costs besides: shaking hands on each connection, verifying certificates, and the cipher, which both nodes work at on the same processors."""
    count = QUICK_PREFETCH_FILES if lab.quick else PREFETCH_FILES
    cert, key = certificate(lab.path("certificate"))
    with lab.node() as plain, lab.node(ca=cert, tls_cert=cert, tls_key=key) as secure:
        origins_by = {"http": NodeOrigin(plain), "https": NodeOrigin(secure, authorities(lab, cert))}
        buckets = {name: make_objects(lab, count, PREFETCH_BYTES, origin) for name, origin in origins_by.items()}

        def taking(name):
            def once():
                with lab.node(buckets[name], keep=True, origin=origins_by[name]) as node:
                    return timed_job(lab, node, count * PREFETCH_BYTES, "prefetch", buckets[name], timeout=600)
            return once

        taken, share = rounds(lab, {name: taking(name) for name in origins_by})
    row = pair_row(f"Prefetch of {count:,} files of 110 KB by a job from another node over https, of the rate over http (no goal here)", 0,
                   [(ours["rate"], other["rate"]) for ours, other in zip(taken["https"], taken["http"])], share, "MB/s", 1e-6)
    return [{**row, "goal": "-", "met": None, "ours_cost": costs(taken["https"]), "reference_cost": costs(taken["http"])}]


def read_named(mount, names):
    """Every file by its name, by as many threads as there are readers; seconds."""
    def read_one(name):
        with open(mount.dir / name, "rb", buffering=0) as f:
            return len(f.readall())
    start = time.monotonic()
    with ThreadPoolExecutor(NAMED_READERS) as readers:
        n_bytes = sum(readers.map(read_one, names))
    seconds = time.monotonic() - start
    if n_bytes != len(names) * PREFETCH_BYTES:
        raise RuntimeError(f"the mount gave {n_bytes} bytes")
    return seconds


def cold_names(lab):
    """Files of 110 KB that are not here, read through a mount by programs that know their names and list nothing, as from the index of a data set:
    32 readers at a time, in an order of their own, each time by a node with nothing in it; against presigned requests for the same files straight from
    the shaped origin over as many connections. The kernel asks whether a name is there before it opens it; one round trip is both, once the node
    has seen that such names are opened."""
    count = QUICK_NAMED_FILES if lab.quick else NAMED_FILES
    with lab.node() as far:
        origin = NodeOrigin(far)
        bucket = make_objects(lab, count, PREFETCH_BYTES, origin)
        with lab.shaper(origin=origin, **SHAPE) as shaper:
            client = harness.s3_client(shaper.endpoint, origin.access_key, origin.secret_key, signature_version="s3v4")
            names = [entry["Key"] for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket) for entry in page["Contents"]]
            targets, address = lab.targets(client, bucket, names)
            orders = random.Random(1)

            def by_mount():
                orders.shuffle(names)
                with lab.node(bucket, endpoint=shaper.endpoint, keep=True, origin=origin) as node, lab.mount(node, bucket) as mount:
                    shaper.reset()
                    with Usage(lambda: tree([node.pid, mount.pid])) as usage:
                        seconds = read_named(mount, names)
                    total = count * PREFETCH_BYTES
                    sample = {"rate": count / seconds, "cpu_s_per_gb": usage.cpu_s / (total / 1e9), "memory_bytes": usage.memory_bytes, **asked(shaper, total)}
                    bench("epoch", mount.dir, "--verify", "--epochs", 1)
                return sample

            def straight():
                said = lab.get(address, targets, NAMED_READERS)
                return {"rate": said["bytes"] / said["seconds"] / PREFETCH_BYTES}

            taken, share = rounds(lab, {"mount": by_mount, "straight": straight})
    row = pair_row(f"{count:,} cold files of 110 KB by their names through the mount, {NAMED_READERS} readers, of as many connections straight from the shaped origin "
                   "(no goal here)", 0, [(ours["rate"], other["rate"]) for ours, other in zip(taken["mount"], taken["straight"])], share, "files/s")
    return [{**row, "goal": "-", "met": None, "ours_cost": costs(taken["mount"])}]


def empty(client, bucket):
    """Removes all objects of a bucket."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        keys = [{"Key": entry["Key"]} for entry in page.get("Contents", [])]
        if keys:
            client.delete_objects(Bucket=bucket, Delete={"Objects": keys})


class Both:
    """A scratch bucket of a node with nothing in it and a bucket of the origin, and jobs from one to the other and back."""

    def __init__(self, lab, node, endpoint, source, origin):
        self.lab, self.node, self.source, self.client = lab, node, source, origin.s3()
        self.signed = origin.s3(signature_version="s3v4")
        self.target = origin.new_bucket()
        self.settings = [word for name, value in origin.properties(endpoint).items() for word in ("--set", f"{name}={value}")]
        made_bucket(node, "scratch")

    def once(self, total, shaper=None, beside=None):
        """Samples of an import and of an export of the same objects, into empty places; with what the origin gave and took where a shaper
        counts it."""
        empty(self.client, self.target)
        self.node.cli("rm", "--recursive", "scratch/in/", check=False, timeout=600)
        samples = []
        for words, direction in ((("import", f"s3://{self.source}", "scratch/in"), "response_bytes"),
                                 (("export", "scratch/in", f"s3://{self.target}"), "request_bytes")):
            if shaper:
                shaper.reset()
            sample = timed_job(self.lab, self.node, total, *words, *self.settings, timeout=3600, beside=beside)
            samples.append({**sample, **(asked(shaper, total, direction) if shaper else {})})
        return samples

    def check(self, lab, count, total, files):
        """Whether everything arrived, at either end: so many objects, so many bytes, and those of the files with the names of the keys'
        last parts (of many objects, of COMPARED_MAX)."""
        for where, client, bucket, prefix in (("import", self.node.s3(signature_version="s3v4"), "scratch", "in/"),
                                              ("export", self.signed, self.target, "")):
            found = [entry for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
                     for entry in page.get("Contents", []) if ".forebay-export-" not in entry["Key"]]
            arrived = len(found), sum(entry["Size"] for entry in found)
            if arrived != (count, total):
                raise RuntimeError(f"{where}: {arrived[0]} objects of {arrived[1]} bytes arrived, not {count} of {total}")
            keys = [entry["Key"] for entry in found[::-(-count // COMPARED_MAX)]]
            targets, address = lab.targets(client, bucket, keys)
            lab.get(address, targets, min(4, len(targets)), compare=files)


def bare_import(lab, client, bucket, names, size):
    """Bytes a second of a client that throws the same objects away, in ranges that are signed before the clock starts."""
    ranges = [f"{at}-{min(at + BARE_RANGE_BYTES, size) - 1}" for at in range(0, size, BARE_RANGE_BYTES)]
    signed = [lab.targets(client, bucket, [name], ranges) for name in names]
    said = lab.get(signed[0][1], [target for targets, _ in signed for target in targets], BARE_OBJECTS * BARE_RANGES)
    return said["bytes"] / said["seconds"]


def send_alone(lab, client, bucket, key, parts):
    """One object by curl, from files of one part each, until the server has put it together."""
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = client.create_multipart_upload(**where)["UploadId"]
    config = lab.dir / f"curl-{key}"
    with open(config, "w", encoding="utf-8") as lines:
        for number, part in enumerate(parts, 1):
            url = client.generate_presigned_url("upload_part", Params={**where, "PartNumber": number}, ExpiresIn=3600)
            lines.write(f'upload-file = "{part}"\nurl = "{url}"\noutput = "/dev/null"\n')
    done = subprocess.run(["curl", "--disable", "--silent", "--show-error", "--fail", "--noproxy", "*", "--header", "Expect:", "--parallel",
                           "--parallel-max", str(BARE_PARTS), "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"curl: {done.stderr.decode(errors='replace')[-400:]}")
    sent = [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in client.list_parts(**where)["Parts"]]
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": sent})


def bare_export(lab, client, bucket, names, parts):
    """Bytes a second of a client that only sends the same objects, as many at a time and in as many parts at a time as a job. Neither sums nor
    a manifest, nor a look at what arrived."""
    start = time.monotonic()
    with ThreadPoolExecutor(BARE_OBJECTS) as pool:
        list(pool.map(lambda name: send_alone(lab, client, bucket, name, parts), names))
    rate = len(names) * sum(part.stat().st_size for part in parts) / (time.monotonic() - start)
    empty(client, bucket)
    return rate


def parts_of(lab, plain):
    """Files of an object's parts, as they are sent."""
    directory = lab.path("parts")
    directory.mkdir()
    body = plain.read_bytes()
    for number, at in enumerate(range(0, len(body), BARE_PART_BYTES)):
        (directory / f"{number:03d}").write_bytes(body[at:at + BARE_PART_BYTES])
    return sorted(directory.iterdir())


def jobs_with(lab, name, origin, plain, count, rounds):
    """The rows of `jobs` for one origin."""
    names = [f"{i:03d}" for i in range(count)]
    source, files = lab.upload({name: plain for name in names}, origin=origin), lab_module.links_of(lab.path("moved"), names, plain)
    total, times, bare = count * LARGE_BYTES, [], ([], [])
    with lab.shaper(origin=origin, **SHAPE) as shaper, lab.node() as node, stolen() as share:
        both = Both(lab, node, shaper.endpoint, source, origin)
        client = harness.s3_client(shaper.endpoint, origin.access_key, origin.secret_key, signature_version="s3v4")
        sends, parts = origin.new_bucket() if shutil.which("curl") else None, parts_of(lab, plain)
        say(f"import and export of {count} objects of 100 MB, {rounds} times, {name}")
        for _ in range(rounds):
            times.append(both.once(total, shaper, {"shaper": shaper.pid, name: origin.pid}))
            both.check(lab, count, total, files)
            bare[0].append(bare_import(lab, client, source, names, LARGE_BYTES))
            if sends:
                bare[1].append(bare_export(lab, client, sends, names, parts))
    empty(both.client, both.target)
    empty(both.client, source)
    rows = []
    for i, (word, where) in enumerate((("Import", "from"), ("Export", "to"))):
        samples = [pair[i] for pair in times]
        row = pair_row(f"{word} of {count} objects of 100 MB by a job, {where} {name}, of the origin's 300 MB/s", 0.9,
                       [(sample["rate"], SHAPED_BYTES_PER_S) for sample in samples], share[0], "MB/s", 1e-6)
        rows.append({**row, "ours_cost": costs(samples), "note": processors(samples)})
        title = f"{word} of {count} objects of 100 MB by a job, {where} {name}, of what a client alone {('gets', 'sends')[i]}"
        pairs = [(sample["rate"], min(SHAPED_BYTES_PER_S, rate)) for sample, rate in zip(samples, bare[i])]
        rows.append(pair_row(title, 0.9, pairs, share[0], "MB/s", 1e-6) if pairs else
                    value_row(title, "-", "not run", None, detail="there is no curl"))
    return rows


def jobs(lab):
    """Import of objects of 100 MB from the shaped origin into a scratch bucket, and export of the same to another bucket of the origin,
    verified, each from the command to its end, against the 300 MB/s that the shaper allows in either direction. After each pair a client that
    does nothing else fetches the same objects from the same shaper and throws them away, and another sends them (curl, files of 16 MiB as
    parts), four objects of four ranges or six parts at a time: what server and shaper can give and take here. Neither sums up nor keeps anything. The same with another node as the
origin, which takes less of the processors that all of them share, as in `prefetch`."""
    lab.fill_memory()
    count = QUICK_LARGE_FILES if lab.quick else LARGE_FILES
    plain = lab.path("large") / "object"
    lab_module.write_random(plain, LARGE_BYTES, "large")
    with origins(lab) as servers:
        return [row for name, origin in servers.items() for row in jobs_with(lab, name, origin, plain, count, lab.pairs)]


def jobs_large(lab):
    """The same with 100 objects of 100 MB, once each way: 10 GB, and as much room again at either end."""
    lab.fill_memory()
    count = QUICK_MANY_LARGE_FILES if lab.quick else MANY_LARGE_FILES
    plain = lab.path("large") / "object"
    lab_module.write_random(plain, LARGE_BYTES, "large")
    return jobs_with(lab, "versitygw", lab.origin, plain, count, rounds=1)


def jobs_small(lab):
    """Import and export of many objects of 10 KB, unshaped, once each: objects per second. Versitygw gives and takes them."""
    count = QUICK_SMALL_FILES if lab.quick else SMALL_FILES
    say(f"making {count} objects of 10 KB at the origin")
    source = make_objects(lab, count, SMALL_BYTES)
    files = lab.path("moved")
    files.mkdir()
    for path in sources_of(make_files(lab, count, SMALL_BYTES)).values():
        os.link(path, files / path.name)
    with lab.node() as node:
        both = Both(lab, node, None, source, lab.origin)
        with stolen() as share:
            samples = both.once(count * SMALL_BYTES)
        both.check(lab, count, count * SMALL_BYTES, files)
    return [value_row(f"{word} of {count:,} objects of 10 KB by a job", "-", f"{count / one['seconds']:,.0f} objects/s", None, share[0],
                      detail=f"{one['seconds']:.0f} s", ours_cost=costs([one])) for word, one in zip(("Import", "Export"), samples)]


MEASURES = {"cold_names": cold_names, "prefetch": prefetch, "prefetch_https": prefetch_https, "jobs": jobs, "jobs_small": jobs_small, "jobs_large": jobs_large}
