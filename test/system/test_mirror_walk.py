"""Random operations on mounts of buckets with an origin, against a model of what src/mount/README.md and docs/POSIX.md promise of them.

Files and directories are made, written, mapped, renamed and removed by two mounts of one bucket, and through S3. After each step the
mount has what the model has; what was published is in the origin (its own files are read), and through whatever else it is asked for.

The same once more while the node and the processes that serve the mounts are killed.

No process is started meanwhile: its closing of what it had inherited would publish what is open.

FOREBAY_WALK_SECONDS: how long each walk is (4; 720 in `make soak`). FOREBAY_TEST_SEED: what they begin with (1).
"""

import contextlib
import os
import subprocess

import botocore.exceptions
import pytest

import harness
import walked
from mirror_files import Files
from mirror_model import MOST_FILES, Object
from mirror_names import Names

WALK_SECONDS = walked.walk_seconds(4)

pytestmark = pytest.mark.usefixtures("need_fuse")


class MirrorWalk(Files, Names):
    weights = {"do_open": 5, "do_write": 5, "do_store": 4, "do_close": 4, "do_read_by_name": 3, "do_whole": 2, "do_s3_put": 2, "do_read": 2,
               "do_fsync": 2, "do_rename": 2, "do_map": 2, "do_load": 2, "do_append": 2}

    # ---- through S3 ----

    def get(self, key):
        try:
            return self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] in ("NoSuchKey", "404")
            return None

    def do_s3_get(self):
        key = self.random.choice([*sorted(self.objects), self.new_key()])
        if not self.is_busy(key):
            self.note(f"GET {key}")
            self.same(self.get(key), self.objects[key].body if key in self.objects else None, f"GET {key}")

    def do_s3_put(self):
        key = self.random.choice([*sorted(self.objects), self.new_key()])
        if self.is_busy(key) or len(self.objects) > MOST_FILES and key not in self.objects:
            return
        body = self.body(self.limit(key))
        self.note(f"PUT {key} {len(body)}")
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)
        self.made(key, body)

    def made(self, key, body):
        """What S3 has answered that it made."""
        self.objects[key] = Object(body)
        self.forget(key, None)
        self.compare_published(key)

    def do_s3_delete(self):
        if self.objects:
            key = self.random.choice(sorted(self.objects))
            if not self.is_busy(key):
                self.note(f"DELETE {key}")
                self.s3.delete_object(Bucket=self.bucket, Key=key)
                self.objects.pop(key)
                self.forget(key, None, is_removed=True)

    def do_s3_copy(self):
        if not self.objects:
            return
        old, new = self.random.choice(sorted(self.objects)), self.new_key()
        if old == new or self.is_busy(old) or self.is_busy(new):
            return
        self.note(f"COPY {old} {new}")
        self.s3.copy_object(Bucket=self.bucket, Key=new, CopySource={"Bucket": self.bucket, "Key": old})
        self.made(new, self.objects[old].body)

    # ---- the cache ----

    def do_evict(self):
        """What is cached goes, beside those who read it."""
        self.note("evict")
        self.command(f"evict {self.bucket}/ --wait")

    def do_prefetch(self):
        self.note("prefetch")
        self.command(f"prefetch {self.bucket}/ --wait")

    def finish(self):
        for seat in self.seats:
            self.close_directories(seat)
            for f, fd in seat.all_fds():
                self.note(f"close {seat.number}:{f.key}#{f.serial} at the end")
                self.close(seat, f, fd)
            for f, m in seat.all_mappings():
                self.note(f"unmap {seat.number}:{f.key}#{f.serial} at the end")
                m.close()
                f.mappings.remove(m)
                self.leave(seat, f)
        for seat in self.seats:
            for key in sorted(self.objects):
                self.check_name(seat, key)
            for name in ["", *sorted(self.directories)]:
                self.check_list(seat, name)
        for key in sorted(self.objects):
            self.same(self.get(key), self.objects[key].body, f"GET {key}")

    @staticmethod
    def close_directories(seat):
        for fd in seat.open_directories:
            os.close(fd)
        seat.open_directories = {}

    def abandon(self):
        for seat in self.seats:
            self.close_directories(seat)
            for f in seat.files:
                for m in f.mappings:
                    m.close()
                for fd in f.fds:
                    with contextlib.suppress(OSError):
                        os.close(fd)


class KilledWalk(MirrorWalk):
    """While the node is killed; S3 is asked only while it runs, because nobody could say what came of a request that was cut."""

    def __init__(self, node, killer, *arguments):
        self.node, self.killer, self.client, self.client_of, self.served = node, killer, None, None, 0
        super().__init__(*arguments)

    @property
    def s3(self):
        """A client of the node as it runs now: each has an address of its own."""
        if self.client_of != self.node.endpoint:
            self.client, self.client_of = self.node.s3(), self.node.endpoint
        return self.client

    @s3.setter
    def s3(self, _):
        pass

    def wait_over(self, seat, key):
        """A process that takes over keeps for some seconds what was being written by the one before: its name has that, whatever others
        put there meanwhile, and who opens it shares it."""
        if self.killer.served and key in self.objects and not (seat.named(key) and seat.named(key).is_staged):
            harness.wait_until(lambda: self.is_over(seat, key), what=f"{seat.number}:{key} is not being written")

    def leave(self, seat, f):
        key = f.key
        super().leave(seat, f)
        if f not in seat.files:
            self.wait_over(seat, key)

    def check(self):
        super().check()
        if self.served != self.killer.served:
            self.served = self.killer.served
            for seat in self.seats:
                for key in self.objects:
                    self.wait_over(seat, key)

    def get(self, key):
        with self.killer.node_runs():
            return super().get(key)

    def do_evict(self):
        with self.killer.node_runs():
            super().do_evict()

    def do_prefetch(self):
        with self.killer.node_runs():
            super().do_prefetch()

    def do_s3_get(self):
        with self.killer.node_runs():
            super().do_s3_get()

    def do_s3_put(self):
        with self.killer.node_runs():
            super().do_s3_put()

    def do_s3_delete(self):
        with self.killer.node_runs():
            super().do_s3_delete()

    def do_s3_copy(self):
        with self.killer.node_runs():
            super().do_s3_copy()


# ---- the places ----

class Place:
    """A bucket whose origin's files lie in a directory."""

    def __init__(self, kind, node, origin, work):
        self.node, self.is_back = node, kind.endswith("back")
        properties = {"write": "back"} if self.is_back else {}
        self.posix = "posix" in kind
        if self.posix:
            properties["posix"] = "on"
        if kind.startswith("s3"):
            self.name = node.new_bucket(origin, **properties)
            self.directory = origin.dir / "data" / self.name
        else:
            self.name = harness.random_name()
            self.directory = work / self.name
            self.directory.mkdir()
            node.create_bucket(self.name, f"file://{self.directory}", **properties)

    def truth(self, key):
        try:
            return (self.directory / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            return None

    def tree(self, with_left=True):
        """{key: bytes}, and the directories, of what the origin has. with_left: also what a killed node may have left of files that it wrote."""
        files, directories = {}, set()
        for where, names, found in os.walk(self.directory):
            top = os.path.relpath(where, self.directory)
            names[:] = [name for name in names if not name.startswith(".")]
            directories |= {os.path.normpath(os.path.join(top, name)) for name in names}
            for name in found:
                if name.startswith(".forebay-tmp-") and not with_left:
                    continue
                key = os.path.normpath(os.path.join(top, name))
                files[key] = None if os.path.islink(self.directory / key) else self.truth(key)
        return files, directories


@pytest.fixture
def node(new_node):
    return new_node()


KINDS = [("s3", "auto"), ("s3-back-posix", "off"), ("file-posix", "auto"), ("file-back", "auto"), ("s3-posix", "off")]


@contextlib.contextmanager
def commander(node):
    """A function that gives what `forebay COMMAND...` says; the process that asks was there before."""
    loop = 'while read -r -a words; do "$0" "${words[@]}" 2>&1 | tr -d "\\n"; echo; done'
    with subprocess.Popen(["bash", "-c", loop, str(node.binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, **node.env, "FOREBAY_SOCKET": str(node.socket_path)}) as asker:
        def command(words):
            asker.stdin.write(f"{words}\n")
            asker.stdin.flush()
            return asker.stdout.readline()

        yield command


def compare_with_origin(place, walk, was_killed=False):
    if place.is_back:
        assert "0 objects" in place.node.cli("flush", "--wait", place.name).stdout
    files, directories = place.tree(with_left=not was_killed)
    assert sorted(files) == sorted([*walk.objects, *walk.links])
    for key, of in walk.objects.items():
        walk.same(files[key], of.body, f"{key} at the origin in the end")
    assert directories >= walk.directories


@pytest.mark.timeout(WALK_SECONDS + 400)
@pytest.mark.parametrize("kind, passthrough", KINDS)
def test_random_operations_on_a_mirror(node, origin, work, new_mount, kind, passthrough):
    """Two mounts of a bucket, and S3, have what the model has after every step, and so has the origin in the end. (Seen to fail, within a
    minute or two, with what test_the_last_store_before_a_mapping_ends and test_a_renamed_directory_has_the_empty_ones_within are about,
    and where staging_release, mount/staging.c, publishes once more what was handed over.)"""
    place = Place(kind, node, origin, work)
    mounts = [new_mount(node, place.name, passthrough=passthrough, attr_timeout="0") for _ in range(2)]
    with commander(node) as command:
        walk = MirrorWalk(walked.seed_of(kind, passthrough), mounts, node.s3(), place.name, command, None if place.is_back else place.truth,
                          place.posix)
        print(f"{kind}-{passthrough}: {walk.run(WALK_SECONDS)} steps, no difference")
    compare_with_origin(place, walk)


@pytest.mark.timeout(WALK_SECONDS + 400)
@pytest.mark.parametrize("kind, passthrough", KINDS)
def test_random_operations_while_node_and_mounts_are_killed(restarted_node, origin, work, new_mount, kind, passthrough):
    """The same while the node, or a process that serves a mount, is killed again and again: no call fails and each is made once, what is
    open goes on, and what close has published is there. No call sees two kills. (Seen to fail where
    handle_file, mount/open.c, tells a reader that there is no such file.)"""
    place = Place(kind, restarted_node, origin, work)
    mounts = [new_mount(restarted_node, place.name, passthrough=passthrough, attr_timeout="0", timeout="120s") for _ in range(2)]
    seed = walked.seed_of("killed", kind, passthrough)
    with commander(restarted_node) as command, walked.Killer(restarted_node, mounts, seed, is_gentle=True) as killer:
        walk = KilledWalk(restarted_node, killer, seed, mounts, None, place.name, command, None if place.is_back else place.truth, place.posix)
        steps = walk.run(WALK_SECONDS, killer)
    print(f"{kind}-{passthrough}: {steps} steps, {killer.kills} kills, no difference")
    compare_with_origin(place, walk, was_killed=True)
