"""A bucket gets an origin of another kind while a mount reads it and a client writes to it: docs/DATA.md, Changing the vendor."""

import json
import os
import threading

import pytest

import harness
import origins
from test_jobs import keys_of

BODIES = {f"d/{i:02}": bytes([i]) * (50_000 + i) for i in range(24)}


@pytest.fixture
def azurite(work):
    reason = origins.Azurite.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    with origins.Azurite(work / harness.random_name("azurite")) as server:
        yield server


class Writer(threading.Thread):
    """Puts objects one after the other: `done` has those that were acknowledged, `wrong` what was not. It stands still within
    `held`."""

    def __init__(self, node, name):
        super().__init__(daemon=True)
        self.s3, self.name, self.done, self.wrong = node.s3(retries={"max_attempts": 0}), name, {}, []
        self.ended, self.held = threading.Event(), threading.Lock()
        self.start()

    def run(self):
        while not self.ended.is_set() and not self.wrong:
            with self.held:
                key, body = f"w/{len(self.done):04}", os.urandom(3000)
                try:
                    self.s3.put_object(Bucket=self.name, Key=key, Body=body)
                    self.done[key] = body
                except Exception as error:  # whatever it is
                    self.wrong.append((key, repr(error)))
            self.ended.wait(0.01)  # a lock that is taken again at once may be nobody else's for very long


class Reader(threading.Thread):
    """Reads all files of a mount over and over, one of them by a descriptor that was opened before."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.wrong, self.passes, self.ended = path, [], 0, threading.Event()
        self.open = os.open(path / "d/05", os.O_RDONLY)
        self.start()

    def run(self):
        while not self.ended.is_set() and not self.wrong:
            try:
                self.wrong += [key for key, body in BODIES.items() if (self.path / key).read_bytes() != body]
                if os.pread(self.open, 100_000, 0) != BODIES["d/05"]:
                    self.wrong.append("the open one")
            except OSError as error:
                self.wrong.append(repr(error))
            self.passes += 1


def test_another_kind_of_origin_while_it_is_used(new_node, need_fuse, new_mount, origin, azurite):
    """From S3 to Azure: a first sync beside everything, a second one while writers stand still, and the change. Who reads a
    mount sees no error and no wrong byte, also through a file that was open; each write that was acknowledged is at the new
    service, and what comes later goes there alone. Nothing is left of the old keys. (Seen to fail without
    settings_that_stay in bucket.c: the old keys are there.)"""
    node = new_node()
    name = node.new_bucket(origin)
    truth, prefix = origin.s3(), harness.random_name()
    for key, body in BODIES.items():
        truth.put_object(Bucket=name, Key=key, Body=body)
    mount = new_mount(node, name)
    properties = {**azurite.properties(), "origin.part_size": "8MiB"}
    sets = [x for k, v in properties.items() for x in ("--set", f"{k}={v}")]
    sync = ["sync", "--wait", "--json", *sets, name, azurite.url(prefix)]
    reader, writer = Reader(mount.path), Writer(node, name)

    def go_on(passes, writes):
        harness.wait_until(lambda: reader.wrong or writer.wrong or (reader.passes > passes and len(writer.done) > writes),
                           120, "both go on")

    try:
        go_on(0, 5)
        assert json.loads(node.cli(*sync).stdout)["state"] == "done"
        go_on(reader.passes, len(writer.done) + 5)
        with writer.held:
            second = json.loads(node.cli(*sync).stdout)
            old, moved = keys_of(truth, name), dict(writer.done)
            node.cli("bucket", "set", name, f"origin={azurite.url(prefix)}", *(f"{k}={v}" for k, v in properties.items()))
        # What the first one copied within the second in which it was written may be copied again: Azure's times are seconds.
        assert second["state"] == "done" and second["done_objects"] + second["skipped_objects"] >= len(BODIES)
        go_on(reader.passes + 2, len(moved) + 5)
    finally:
        for one in (reader, writer):
            one.ended.set()
            one.join(120)
        os.close(reader.open)
    assert not reader.wrong and not writer.wrong, (reader.wrong[:3], writer.wrong[:3])
    assert {key: azurite.get(f"{prefix}/{key}") for key in [*BODIES, *writer.done]} == {**BODIES, **writer.done}
    assert keys_of(truth, name) == old and not set(writer.done) - set(moved) & set(old)
    shown = node.cli("bucket", "show", name).stdout
    assert azurite.url(prefix) in shown and origin.endpoint not in shown and "origin.secret_key" not in shown
    assert (mount.path / "w" / max(key[2:] for key in writer.done)).read_bytes() == writer.done[max(writer.done)]
