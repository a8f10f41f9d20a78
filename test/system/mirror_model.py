"""The model of the random walks on mounts of buckets with an origin: what is published, what each mount has open, and how what is found is
compared with it. What the walks do is in mirror_files.py (what is open), mirror_names.py and test_mirror_walk.py."""

import contextlib
import errno
import os
import stat

import botocore.exceptions

import harness
import walked

KIB, MIB = 1 << 10, 1 << 20
SMALL, LARGE = 300_000, 11 * MIB  # an origin gets what is larger than 8 MiB in parts
MOST_FILES = 14
MODES = [0o600, 0o640, 0o644, 0o755]
LIVE = 8 * MIB  # what is written through a mount of a bucket with write=back is not copied, from this size on


def parent_of(key):
    return key.rpartition("/")[0]


def is_below(key, directory):
    return key.startswith(directory + "/")


class Object:
    """What is published under a key. mode, time: None where nobody has said it."""

    def __init__(self, body, mode=None, time_ns=None):
        self.body, self.mode, self.time_ns = bytes(body), mode, time_ns


class Open:
    """A file as one mount has it open. `key` is None once it is not found by a name any more. is_staged: it was opened for writing, and
    whoever opens the name in the same mount shares it. Else it is a version, which stays as it is."""
    n = 0

    def __init__(self, key, of, is_staged):
        self.key, self.is_staged = key, is_staged
        Open.n += 1
        self.serial = f"{Open.n}{'s' if is_staged else 'v'}"
        self.body, self.mode, self.time_ns = bytearray(of.body), of.mode, of.time_ns
        self.fds, self.mappings = {}, []
        self.was_mapped = False  # for writing
        self.is_passthrough = None  # how it is open for writing; None where the model does not know
        self.is_looked_at = False  # O_RDWR was by passthrough: it ends with the last mapping, also one for reading
        self.is_vague = False  # whether it is a version, or follows who writes the name, the model does not know: nobody does
        self.is_dirty = False  # not as it was published
        self.is_stored = False  # stores into a mapping were not synced
        self.is_changed = False  # another mount gave it another mode or time: this one's descriptors may give ESTALE (docs/POSIX.md)
        self.is_removed = False  # it, or what replaced it, was taken away: a version that is not here any more cannot be read

    def as_object(self):
        return Object(self.body, self.mode, self.time_ns)

    def put(self, at, body):
        if body:
            self.body.extend(bytes(max(0, at + len(body) - len(self.body))))
            self.body[at:at + len(body)] = body
            self.touched()

    def cut(self, size):
        del self.body[size:]
        self.body.extend(bytes(size - len(self.body)))
        self.touched()

    def touched(self):
        self.is_dirty, self.time_ns = True, None


class Seat:
    """One mount and what is open in it."""

    def __init__(self, mount, number):
        self.mount, self.path, self.number = mount, mount.path, number
        self.files = []
        self.open_directories = {}  # {descriptor: its name}

    def named(self, key):
        return next((f for f in self.files if f.key == key), None)

    def all_fds(self):
        return [(f, fd) for f in self.files for fd in f.fds]

    def all_mappings(self):
        return [(f, m) for f in self.files for m in f.mappings]


class Model(walked.Walk):
    def __init__(self, seed, mounts, s3, bucket, command, truth=None, posix=False):
        super().__init__(seed)
        self.seats = [Seat(mount, i) for i, mount in enumerate(mounts)]
        self.s3, self.bucket, self.command, self.truth, self.posix = s3, bucket, command, truth, posix
        self.is_back = not truth
        self.objects, self.directories = {}, set()
        self.links = {}  # {key: what it leads to}

    # ---- the model ----

    def seat(self):
        return self.random.choice(self.seats)

    def visible(self, seat):
        """{key: what it holds} as a mount has it."""
        shown = dict(self.objects)
        shown.update((f.key, f.as_object()) for f in seat.files if f.key and f.is_staged)
        return shown

    def is_busy(self, key, seat=None):
        """Whether the key, or one below it, is written by another mount: what then comes of it nobody promises. Nor do they what becomes of
        stores into a mapping before msync, fsync or close."""
        return any(f.is_staged and f.key and (f.key == key or is_below(f.key, key)) and (s is not seat or f.is_stored or f.is_vague) for s in self.seats
                   for f in s.files)

    def is_late(self, key, seat):
        """Whether another mount's program has the file mapped and stores into it: what it stored may be published at any time. Or goes on
        writing what it has published of a large file, with write=back: who reads it first gets a copy of what the file is then (docs/DATA.md)."""
        is_live = self.is_back and key in self.objects and len(self.objects[key].body) >= LIVE
        return any(f.key == key and f.is_dirty and (f.was_mapped or is_live) for s in self.seats if s is not seat for f in s.files)

    def forget(self, key, seat, is_removed=False):
        """The name has become another one's: who has it open keeps what there was."""
        for s in self.seats:
            f = s.named(key)
            if f and (s is not seat or not f.is_staged):
                f.key = None
                f.is_removed = True

    def publish(self, f, seat):
        if self.published(f, seat):
            self.compare_published(f.key)

    def published(self, f, seat):
        f.is_stored = False
        if not f.key or not f.is_dirty:
            return False
        f.is_dirty = False
        self.objects[f.key] = f.as_object()
        self.forget(f.key, seat)
        return True

    def compare_published(self, key):
        """The origin has it by now."""
        if self.truth:
            self.same(self.truth(key), self.objects[key].body, f"{key} at the origin")

    def same(self, found, expected, what):
        if found == expected:
            return
        if found is None or expected is None:
            raise AssertionError(f"{what}: {found if found is None else len(found)}, expected "
                                 f"{expected if expected is None else len(expected)} bytes")
        at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
        raise AssertionError(f"{what}: {len(found)} bytes, expected {len(expected)}; other ones from {at}: {bytes(found[at:at + 16])!r}, "
                             f"expected {bytes(expected[at:at + 16])!r}")

    def new_key(self):
        name = "large" if self.chance(0.08) else f"f{self.random.randrange(6)}"
        return "/".join(filter(None, [self.random.choice(["", *sorted(self.directories)]), name]))

    def some_key(self, seat, p_new=0.3):
        """One that the mount has, or a new one."""
        there = sorted(self.visible(seat))
        if not there or len(there) < MOST_FILES and self.chance(p_new):
            return self.new_key()
        return self.random.choice(there)

    def limit(self, key):
        return LARGE if key and key.endswith("large") else SMALL

    def body(self, limit):
        size = self.random.choice([0, 1, 100, 4096, 5000, 60_000, 200_000])
        return self.random.randbytes(limit - 5 if limit > SMALL and self.chance(0.3) else size)

    def range(self, limit):
        at = self.random.randrange(limit)
        if self.chance(0.4):
            at = at // walked.PAGE * walked.PAGE
        return at, min(self.random.choice([1, 100, 4096, 5000, 60_000]), limit - at)

    # ---- opening and closing ----

    def file_for_writing(self, seat, key, is_cut=False):
        """What an open of the name for writing gives, in the model; None where it makes a new file."""
        f = seat.named(key)
        if f and f.is_staged:
            pass
        elif key in self.objects:
            self.forget(key, seat)  # who reads it goes on with its version
            f = Open(key, self.objects[key], is_staged=True)
            seat.files.append(f)
        else:
            f = Open(key, Object(b""), is_staged=True)
            f.is_dirty = True
            seat.files.append(f)
        if is_cut:
            f.cut(0)
        return f

    def open(self, seat, key, flags, mode=0o644):
        is_new = key not in self.visible(seat)
        fd = os.open(seat.path / key, flags, mode)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            f = seat.named(key)
            if not f:
                f = Open(key, self.objects[key], is_staged=False)
                seat.files.append(f)
        else:
            f = self.file_for_writing(seat, key, flags & os.O_TRUNC)
            if is_new:
                f.mode = mode
        if not f.fds:
            is_plain = flags & os.O_DSYNC or flags & os.O_ACCMODE != os.O_WRONLY or not self.may_pass(seat)
            f.is_passthrough = f.is_looked_at or None if f.mappings and self.may_pass(seat) else not is_plain
        elif flags & os.O_ACCMODE == os.O_RDWR and f.is_passthrough:
            f.is_looked_at = True
        f.fds[fd] = flags
        self.note(f"   gave {f.key}#{f.serial} fd {fd} passthrough {f.is_passthrough} vague {f.is_vague}")
        return f, fd

    @staticmethod
    def may_pass(seat):
        return seat.mount.options["passthrough"] != "off"

    def close(self, seat, f, fd):
        os.close(fd)
        flags = f.fds.pop(fd)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self.publish(f, seat)
        self.leave(seat, f)

    def leave(self, seat, f):
        """Where nobody writes it any more, what was stored after the last close is published by the release, which nobody waits for."""
        if f.fds or any(m.is_writable for m in f.mappings) or f.mappings and (f.is_passthrough is False or f.is_looked_at):
            return
        if f.mappings and f.is_passthrough is None:
            f.is_vague = True
            return
        key, f.key = f.key, None
        if not f.mappings:
            seat.files.remove(f)
        if f.is_dirty and key:
            self.objects[key] = f.as_object()
            self.forget(key, seat)
            self.wait_published(key)
        if (f.was_mapped or f.is_looked_at) and f.is_passthrough is not False and key:
            # Looked at once a second, and found by its name until that is over.
            harness.wait_until(lambda: self.is_over(seat, key), what="nobody looks any more")
        f.is_staged, f.is_dirty = False, False  # by passthrough the kernel has dropped the mount's file: what is left maps what there was

    def is_over(self, seat, key):
        return '"being_written": false' in self.command(f"explain --json {seat.path / key}")

    def wait_published(self, key):
        def is_there():
            with contextlib.suppress(botocore.exceptions.ResponseStreamingError):  # was just being replaced
                return (self.truth or self.get)(key) == self.objects[key].body

        try:
            harness.wait_until(is_there, what="stores after the last close published", step=0.01)
        except AssertionError:
            self.same((self.truth or self.get)(key), self.objects[key].body, f"{key} after the mapping ended")
            raise

    def some_fd(self, wanted):
        """(seat, file, descriptor) whose flags satisfy `wanted`, or None."""
        found = [(s, f, fd) for s in self.seats for f, fd in s.all_fds() if wanted(f.fds[fd])]
        return self.random.choice(found) if found else (None, None, None)

    def set_attributes(self, seat, key, **attributes):
        if not self.posix:
            return
        f = seat.named(key)
        for other in self.seats:
            if other is not seat and other.named(key):
                other.named(key).is_changed = True
        if f and f.is_stored and "time_ns" in attributes:
            attributes["time_ns"] = None  # the kernel may write the stores back after that
        for name, value in attributes.items():
            if f:
                setattr(f, name, value)
            if key in self.objects and not (f and f.is_dirty):
                setattr(self.objects[key], name, value)

    # ---- looking ----

    def compare(self, seat, f, fd, at, n):
        found = b""
        try:
            while len(found) < n and (piece := os.pread(fd, n - len(found), at + len(found))):
                found += piece
        except OSError as error:
            if not f.is_removed or f.is_staged or error.errno not in (errno.ESTALE, errno.EIO):
                raise
            n = len(found)  # another version took its place, and not all of it was here
        self.same(found, f.body[at:at + n], f"{seat.number}:{f.key}#{f.serial} at {at}")

    def check_open(self, seat, f):
        if not f.fds:
            return
        size = os.fstat(next(iter(f.fds))).st_size
        assert size == len(f.body), f"{seat.number}:{f.key}#{f.serial}: {size}, expected {len(f.body)} bytes"
        mode = stat.S_IMODE(os.fstat(next(iter(f.fds))).st_mode)
        if self.posix and f.is_staged and f.mode is not None:
            assert mode == f.mode, f"{seat.number}:{f.key}#{f.serial}: mode {mode:#o}, expected {f.mode:#o}"
        fd = next((fd for fd, flags in f.fds.items() if flags & os.O_ACCMODE != os.O_WRONLY), None)
        if fd is not None:
            self.compare(seat, f, fd, 0, len(f.body) + 1)

    def do_read_by_name(self):
        seat = self.seat()
        key = self.some_key(seat)
        self.check_name(seat, key)

    def check_name(self, seat, key):
        shown = self.visible(seat).get(key)
        if self.is_late(key, seat):
            return
        self.note(f"look {seat.number}:{key}")
        if shown is None:
            assert not os.path.lexists(seat.path / key), f"{key} is there"
            return
        self.check_attributes(seat, key, shown)
        self.same((seat.path / key).read_bytes(), shown.body, f"{seat.number}:{key} by name")

    def check(self):
        opened = [(s, f) for s in self.seats for f in s.files if len(f.body) <= SMALL or self.chance(0.1)]
        for seat, f in self.random.sample(opened, min(2, len(opened))):
            self.check_open(seat, f)
