"""kill -9 of the node at any point of any job: it goes on where it was, nothing is done twice, nothing is lost.

What is settled is on disk within a second, so what a test has seen done a second ago must not be done again: the origin, which
is in the test process, tells each request by its key, and lets no more of them through than the test wants. Kills come within
a request to it.
"""

import collections
import contextlib
import json
import os
import random
import signal
import threading
import time
import types

import pytest

import harness
from keyorigin import KeyOrigin, Object
from test_jobs import checked, show, start, until
from test_jobs_export import manifest_of, settings

N, SIZE = 60, 20_000
CONTENTS = {f"k{i:03}": bytes([i]) * SIZE for i in range(N)}
KEYS = sorted(CONTENTS)


class Origin(KeyOrigin):
    """One that lets requests of the method `gated` through for the first `limit` of the keys in `order`, and kills the node
    with a request: `kill(node, method, n)`, the n-th from now on of this method for a key."""

    def __init__(self):
        super().__init__()
        self.before, self.gate, self.killed = self.look, threading.Condition(), threading.Event()
        self.gated, self.limit, self.order, self.fatal, self.held = "", 0, KEYS, None, None

    def let(self, n):
        with self.gate:
            self.limit = n
            self.gate.notify_all()

    @contextlib.contextmanager
    def holding(self, method):
        """Within it no request of this method gets on, nor does one kill the node."""
        with self.gate:
            self.held = method
        try:
            yield
        finally:
            with self.gate:
                self.held = None
                self.gate.notify_all()

    def look(self, method, key):
        with self.gate:
            self.gate.wait_for(lambda: method != self.held, 200)
            if key and self.fatal and method == self.fatal[1]:
                self.fatal[2] -= 1
                if self.fatal[2] == 0:
                    os.kill(self.fatal[0].pid, signal.SIGKILL)
                    self.fatal = None
                    self.killed.set()
            if method == self.gated and key in self.order:
                self.gate.wait_for(lambda: self.order.index(key) < self.limit, 200)

    def kill(self, node, method, n):
        self.killed.clear()
        with self.gate:
            self.fatal = [node, method, n]

    def asked(self):
        """{method: {key: how often}}"""
        with self.lock:
            found = collections.defaultdict(collections.Counter)
            for method, path, _ in self.requests:
                found[method][path.partition("/")[2].partition("/")[2]] += 1
            return found

    def dies_and_lives(self, node):
        """Waits for the kill, and gives what was asked for by then. The next node finds the gate as it was before."""
        assert self.killed.wait(harness.PATIENCE), self.asked()
        node.kill()
        asked = self.asked()
        node.start()
        return asked

    def stored(self, name):
        return {key: one.data for (bucket, key), one in self.objects.items() if bucket == name}


@pytest.fixture
def origin():
    with Origin() as running:
        yield running
        running.let(N)


def settled(node, job, origin, n, field="done_objects"):
    """Lets n objects through, and waits until they are done and on disk: a round in which the job's thread settles what was
    finished ends with a checkpoint when the last one is a second old. Two more objects show that there was such a round."""
    for i, allowed in enumerate((n, n + 1, n + 2)):
        origin.let(allowed)
        until(node, job, lambda j: j[field] == allowed)
        time.sleep(1.1 if i == 0 else 0)


def ended(node, job, origin):
    origin.let(N)
    node.cli("job", "wait", job, "--quiet")
    return show(node, job)


METHODS = {"prefetch": "GET", "validate": "HEAD", "copy": "PUT", "sync": "PUT", "export": "PUT", "import": "GET"}


@pytest.mark.parametrize("kind", sorted(METHODS))
def test_killed_in_its_walk(new_node, origin, kind):
    """Twice in the walk of each kind of job, within some request: what was on disk by then is not done again, and each object
    counts once. (Seen to fail without the cursor in open_source of run.c, and without its checkpoints.)"""
    node, name, method, rng = new_node(), harness.random_name(), METHODS[kind], random.Random(kind)
    scratch, s3 = harness.scratch_bucket(node), node.s3()
    away = method == "PUT"
    for key, data in CONTENTS.items():
        if away:
            s3.put_object(Bucket=scratch, Key=key, Body=data)
        else:
            origin.objects[name, key] = Object(data)
    node.create_bucket(name, f"s3://{name}", **origin.properties())
    if kind == "validate":
        node.cli("prefetch", "--wait", name)
    there = f"s3://{name}"
    words = {"prefetch": [name], "validate": [name], "copy": [scratch, name], "sync": [scratch, name],
             "export": [*settings(origin), scratch, there], "import": [*settings(origin), there, scratch]}[kind]
    with origin.lock:
        origin.requests.clear()
    origin.gated = method
    job = start(node, kind, *words, "--parallel", "3")
    asked = {}
    for done in (10, 30):
        settled(node, job, origin, done)
        origin.kill(node, method, rng.randrange(1, 8))
        origin.let(done + 12)
        before = origin.dies_and_lives(node)[method]
        assert all(before[key] == n for key, n in asked.items())
        asked = {key: before[key] for key in KEYS[:done]}
        assert done <= show(node, job)["done_objects"] <= done + 12
    after = ended(node, job, origin)
    assert (after["state"], after["done_objects"], after["failed_objects"], after["total_objects"]) == ("done", N, 0, N)
    assert all(origin.asked()[method][key] == n for key, n in asked.items())
    # Found done: no more than what was under way with each kill.
    assert kind == "validate" or (after["done_bytes"] == N * SIZE and after["skipped_objects"] <= 2 * 12)
    if kind in ("prefetch", "validate"):
        assert checked(node, name)["cached_objects"] == N
    elif kind == "import":
        assert all(node.s3().get_object(Bucket=scratch, Key=key)["Body"].read() == data for key, data in CONTENTS.items())
    else:
        found = origin.stored(name)
        manifests = [found.pop(key) for key in list(found) if key.startswith(".forebay-export-")]
        assert found == CONTENTS and len(manifests) == (kind == "export")
        assert all(manifest_of(text.decode())[0].keys() == CONTENTS.keys() for text in manifests)


def test_killed_in_its_sweep(new_node, origin):
    """While a sync removes what the source lacks: what was on disk by then is not removed again, nothing is copied or looked
    at again, and what the source has stays. (Seen to fail without the checkpoints of run.c.)"""
    node, name, rng = new_node(), harness.random_name(), random.Random("sweep")
    scratch, s3 = harness.scratch_bucket(node), node.s3()
    kept = {key: CONTENTS[key] for key in KEYS[::4]}
    for key, data in kept.items():
        s3.put_object(Bucket=scratch, Key=key, Body=data)
    node.create_bucket(name, f"s3://{name}", **origin.properties())
    origin.order = [key + "-spare" for key in KEYS]
    origin.objects.update({(name, key): Object(b"x") for key in origin.order})
    origin.gated = "DELETE"
    job = start(node, "sync", "--delete", scratch, name, "--parallel", "3")
    settled(node, job, origin, 30, "removed_objects")
    origin.kill(node, "DELETE", rng.randrange(1, 8))
    origin.let(42)
    before = origin.dies_and_lives(node)
    assert 30 <= show(node, job)["removed_objects"] <= 42
    after = ended(node, job, origin)
    # What was removed in the moment before the kill is not found by the next walk, and not counted.
    assert (after["state"], after["done_objects"]) == ("done", len(kept)) and N - 12 <= after["removed_objects"] <= N
    then = origin.asked()
    assert all(then["DELETE"][key] == before["DELETE"][key] == 1 for key in origin.order[:30])
    assert all(then[method][key] == before[method][key] for method in ("PUT", "HEAD", "GET") for key in kept)
    assert all(then["PUT"][key] == 1 for key in kept) and origin.stored(name) == kept


def test_killed_in_a_retry(new_node, new_shaper, origin):
    """Twice while what failed is worked on again: what was done of it by then and is on disk is not done again, each counts
    once, and in the end none is listed. (Seen to fail without the checkpoints of run.c.)"""
    shaper = new_shaper(types.SimpleNamespace(port=int(origin.endpoint.rpartition(":")[2])))
    node, name, rng = new_node(), harness.random_name(), random.Random("retry")
    scratch, s3 = harness.scratch_bucket(node), node.s3()
    for key, data in CONTENTS.items():
        s3.put_object(Bucket=scratch, Key=key, Body=data)
    node.create_bucket(name, f"s3://{name}", **origin.properties(shaper.endpoint), retry="0s")
    shaper.fault("status:403", match="PUT", count="1000000")
    done = node.cli("copy", scratch, name, "--parallel", "3", "--wait", "--json", check=False)
    job = json.loads(done.stdout)["id"]
    assert done.returncode == 3 and show(node, job)["failed_objects"] == N
    shaper.reset()
    origin.gated = "PUT"
    node.cli("job", "retry", job)
    asked = {}
    for done in (10, 30):
        settled(node, job, origin, done)
        origin.kill(node, "PUT", rng.randrange(1, 8))
        origin.let(done + 12)
        before = origin.dies_and_lives(node)["PUT"]
        assert all(before[key] == n for key, n in asked.items())
        asked = {key: before[key] for key in KEYS[:done]}
        now = show(node, job)
        assert done <= now["done_objects"] <= done + 12 and now["done_objects"] + now["failed_objects"] == N
        listed = {x["key"] for x in json.loads(node.cli("job", "errors", job, "--json").stdout)}
        assert set(KEYS[done + 12:]) <= listed <= set(KEYS[done:])
    after = ended(node, job, origin)
    assert (after["state"], after["done_objects"], after["failed_objects"], after["done_bytes"]) == ("done", N, 0, N * SIZE)
    assert json.loads(node.cli("job", "errors", job, "--json").stdout) == []
    assert all(origin.asked()["PUT"][key] == n for key, n in asked.items()) and origin.stored(name) == CONTENTS


def make_tree(root, n):
    """{key: data} of the files of a tree with n directories, nobody's to write to."""
    files = {}
    for i in range(n):
        (root / f"d{i:03}").mkdir(parents=True)
        files[f"d{i:03}/f"] = b"%d " % i * 300
        (root / f"d{i:03}/f").write_bytes(files[f"d{i:03}/f"])
        (root / f"d{i:03}").chmod(0o555)
    return files


@pytest.mark.parametrize("n", [1, 13, 24, 31])
def test_killed_in_an_export_with_modes(new_node, origin, tmp_path, n):
    """Within the n-th write of an export of a tree to a service: of one of its 15 directories and files, or of the manifest.
    Bytes and modes are there in the end, and one manifest with all of them; what it is about is not written again. (Seen to
    fail without the commit of run_phases in run.c: lines of the manifest are missing.)"""
    files = make_tree(tmp_path, 15)
    node, there = new_node(), harness.random_name()
    scratch = harness.scratch_bucket(node)
    node.cli("import", "--wait", f"file://{tmp_path}", scratch)
    origin.kill(node, "PUT", n)
    with origin.holding("PUT"):  # who starts the job has its answer before the node is killed
        job = start(node, "export", scratch, f"s3://{there}", *settings(origin), "--parallel", "2")
    origin.dies_and_lives(node)
    after = ended(node, job, origin)
    assert (after["state"], after["done_objects"], after["failed_objects"], after["modes_lost"]) == ("done", 30, 0, 0)
    asked, stored = origin.asked()["PUT"], origin.stored(there)
    [manifest] = [stored.pop(key) for key in list(stored) if key.startswith(".forebay-export-")]
    assert stored == {**files, **{key[:-1]: b"" for key in files}}
    assert n < 31 or all(asked[key] == 1 for key in stored)
    headers = [{k.lower(): v for k, v in origin.objects[there, key[:-1]].headers.items()} for key in files]
    assert {int(one["x-amz-meta-mode"]) for one in headers} == {0o40555}
    lines, _ = manifest_of(manifest.decode())
    assert {key: row[0] for key, row in lines.items()} == {key: len(data) for key, data in stored.items()}


@pytest.mark.parametrize("name, least", [("f", 1), ("f", 40), ("", 1), ("", 40)])
def test_killed_in_an_export_to_files(new_node, tmp_path, name, least):
    """Once so many files of a tree, or modes of its directories, which are given behind all files, are at a target that is a
    directory: all of them are in the end, and a file that was there when the directories' turn had come is the same file.
    (Seen to fail as the one before it.)"""
    files = make_tree(tmp_path / "from", 120)
    (tmp_path / "to").mkdir()
    node = new_node()
    scratch = harness.scratch_bucket(node)
    node.cli("import", "--wait", f"file://{tmp_path}/from", scratch)
    job = start(node, "export", scratch, f"file://{tmp_path}/to", "--parallel", "2")
    places = [tmp_path / "to" / key for key in files]

    def are_there():
        if name:
            return sum(p.exists() for p in places) >= least
        return sum(p.parent.exists() and p.parent.stat().st_mode == 0o40555 for p in places) >= least

    harness.wait_until(are_there, what="so many are there", step=0.001)
    node.kill()
    inodes = {p: p.stat().st_ino for p in places if p.exists()}
    node.start()
    node.cli("job", "wait", job, "--quiet")
    after = show(node, job)
    assert (after["state"], after["done_objects"], after["failed_objects"], after["modes_lost"]) == ("done", 240, 0, 0)
    assert name or inodes == {p: p.stat().st_ino for p in places}
    assert {str(p.relative_to(tmp_path / "to")): p.read_bytes() for p in places} == files
    assert {p.parent.stat().st_mode for p in places} == {0o40555}
    [manifest] = (tmp_path / "to").glob(".forebay-export-*")
    assert manifest_of(manifest.read_text())[0].keys() == files.keys() | {key[:-1] for key in files}
