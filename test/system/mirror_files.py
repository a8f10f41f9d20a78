"""What the random walks on mirrors do with files: opening, closing, bytes, mappings."""

import os

import walked
from mirror_model import MIB, MODES, SMALL, Model
from test_scratch_mount import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE

MOST_FDS, MOST_MAPPINGS = 6, 4


class Files(Model):
    def do_open(self):
        seat = self.seat()
        if len(seat.all_fds()) >= MOST_FDS:
            return self.do_close()
        key = self.some_key(seat)
        if self.is_late(key, seat):
            return None
        is_there = key in self.visible(seat)
        if is_there and self.chance(0.4):
            flags = os.O_RDONLY
        else:
            flags = self.random.choice([os.O_RDWR, os.O_RDWR, os.O_WRONLY]) | os.O_CREAT
            for flag, p in ((os.O_TRUNC, 0.2), (os.O_APPEND, 0.2), (os.O_SYNC, 0.05), (0 if is_there else os.O_EXCL, 0.2)):
                flags |= flag if self.chance(p) else 0
            if self.is_busy(key, seat):
                return None
        mode = self.random.choice(MODES)
        self.note(f"open {seat.number}:{key} {flags:#o}")
        return self.open(seat, key, flags, mode)

    def do_duplicate(self):
        """Each close of one publishes what was written by both."""
        seat, f, fd = self.some_fd(lambda flags: True)
        if f and len(seat.all_fds()) < MOST_FDS:
            other = os.dup(fd)
            self.note(f"dup {seat.number}:{f.key}#{f.serial} fd {fd} {other}")
            f.fds[other] = f.fds[fd]

    def do_close(self):
        seat, f, fd = self.some_fd(lambda flags: True)
        if f:
            self.note(f"close {seat.number}:{f.key}#{f.serial} fd {fd}")
            self.close(seat, f, fd)

    def do_whole(self):
        """As most programs write a file."""
        seat = self.seat()
        key = self.some_key(seat)
        if self.is_busy(key, seat):
            return
        self.note(f"whole {seat.number}:{key}")
        f, fd = self.open(seat, key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        body = self.body(self.limit(key))
        at = 0
        while at < len(body):
            at += os.write(fd, body[at:at + MIB])
        f.put(0, body)
        self.close(seat, f, fd)

    # ---- bytes ----

    def did_write(self, seat, f, fd):
        """With O_SYNC each write publishes, unless the file was open for writing by passthrough before."""
        if f.fds[fd] & os.O_DSYNC:
            if f.is_passthrough is not False or f.is_stored:
                os.fsync(fd)
            self.publish(f, seat)

    def do_write(self):
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND)
        if f:
            at, n = self.range(self.limit(f.key))
            body = self.random.randbytes(n)
            self.note(f"write {seat.number}:{f.key}#{f.serial} {at}+{n}")
            assert os.pwrite(fd, body, at) == n
            f.put(at, body)
            self.did_write(seat, f, fd)

    def do_append(self):
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_APPEND)
        if f and len(f.body) < SMALL:
            body = self.random.randbytes(self.random.randrange(1, 5000))
            self.note(f"append {seat.number}:{f.key}#{f.serial} {len(f.body)}+{len(body)}")
            assert os.write(fd, body) == len(body)
            f.put(len(f.body), body)
            self.did_write(seat, f, fd)

    def do_read(self):
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_WRONLY)
        if f:
            at, n = self.range(self.limit(f.key))
            self.note(f"read {seat.number}:{f.key}#{f.serial} {at}+{n}")
            self.compare(seat, f, fd, at, n)

    def do_copy_range(self):
        """Within one mount, from one open file to another one."""
        seat, f, source = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_WRONLY)
        targets = [(g, fd) for g, fd in seat.all_fds() if g is not f and g.fds[fd] & os.O_ACCMODE != os.O_RDONLY
                   and not g.fds[fd] & (os.O_APPEND | os.O_DSYNC)] if f else []
        if not targets or not f.body or f.is_removed and not f.is_staged:
            return
        g, target = self.random.choice(targets)
        at, n = self.range(min(len(f.body), SMALL))
        to = self.random.randrange(SMALL - n)
        self.note(f"copy {seat.number}:{f.key}#{f.serial} {at}+{n} to {g.key}#{g.serial} {to}")
        walked.copy_range(source, at, target, to, n)
        g.put(to, bytes(f.body[at:at + n]))

    def do_send(self):
        """As a server sends a file."""
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_WRONLY)
        if not f or not f.body or f.is_removed and not f.is_staged:
            return
        at, n = self.range(len(f.body))
        self.note(f"send {seat.number}:{f.key}#{f.serial} {at}+{n}")
        target, found = os.memfd_create("sent"), 0
        try:
            while found < n and (sent := os.sendfile(target, fd, at + found, n - found)):
                found += sent
            self.same(os.pread(target, n, 0), f.body[at:at + n], f"{f.key} sent at {at}")
        finally:
            os.close(target)

    def do_truncate(self):
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_RDONLY)
        if f:
            size = self.random.choice([0, len(f.body) // 2, self.random.randrange(SMALL)])
            self.note(f"ftruncate {seat.number}:{f.key}#{f.serial} {size}")
            os.ftruncate(fd, size)
            f.cut(size)

    def do_truncate_by_name(self):
        seat = self.seat()
        key = self.some_key(seat, p_new=0)
        if key not in self.visible(seat) or self.is_busy(key, seat):
            return
        size = self.random.choice([0, len(self.visible(seat)[key].body) // 2, self.random.randrange(SMALL)])
        self.note(f"truncate {seat.number}:{key} {size}")
        os.truncate(seat.path / key, size)
        f = self.file_for_writing(seat, key)
        f.cut(size)
        self.publish(f, seat)
        self.leave(seat, f)

    def do_allocate(self):
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_RDONLY)
        if not f:
            return
        at, n = self.range(SMALL)
        mode = self.random.choice([PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, 0])
        self.note(f"allocate {seat.number}:{f.key}#{f.serial} {mode} {at}+{n}")
        walked.fallocate(fd, mode, at, n)
        if mode & KEEP_SIZE:
            n = min(n, max(0, len(f.body) - at))
        if mode:
            f.put(at, bytes(n))
        elif at + n > len(f.body):
            f.cut(at + n)
        f.touched()

    def do_fsync(self):
        seat, f, fd = self.some_fd(lambda flags: True)
        if f:
            self.note(f"fsync {seat.number}:{f.key}#{f.serial}")
            os.fsync(fd)
            self.publish(f, seat)

    # ---- mappings ----

    def do_map(self):
        seat, f, fd = self.some_fd(lambda flags: flags & os.O_ACCMODE != os.O_WRONLY)
        if f and f.body and len(seat.all_mappings()) < MOST_MAPPINGS:
            self.note(f"map {seat.number}:{f.key}#{f.serial} {len(f.body)}")
            f.mappings.append(walked.Mapping(fd, len(f.body), f.fds[fd] & os.O_ACCMODE == os.O_RDWR))
            f.was_mapped |= f.mappings[-1].is_writable

    def some_mapping(self, is_writable=False):
        found = [(s, f, m) for s in self.seats for f, m in s.all_mappings() if m.is_writable or not is_writable]
        return self.random.choice(found) if found else (None, None, None)

    def mapped_range(self, f, m):
        size = min(m.size, len(f.body))
        at, n = self.range(size)
        return at, n

    def do_store(self):
        seat, f, m = self.some_mapping(is_writable=True)
        if f and f.body:
            at, n = self.mapped_range(f, m)
            self.note(f"store {seat.number}:{f.key}#{f.serial} {at}+{n}")
            body = self.random.randbytes(n)
            m.store(at, body)
            f.put(at, body)
            f.is_stored = True
            for other in self.seats if f.key else []:
                g = other.named(f.key)
                if g and other is not seat:
                    g.is_removed = True  # some time

    def do_load(self):
        seat, f, m = self.some_mapping()
        if f and f.body and (f.is_staged or not f.is_removed):
            at, n = self.mapped_range(f, m)
            self.note(f"load {seat.number}:{f.key}#{f.serial} {at}+{n}")
            self.same(m.load(at, n), f.body[at:at + n], f"{f.key} mapped at {at}")

    def do_msync(self):
        seat, f, m = self.some_mapping(is_writable=True)
        if f and m.size == max(other.size for other in f.mappings):  # it is about the pages of the mapping
            self.note(f"msync {seat.number}:{f.key}#{f.serial}")
            m.sync()
            if f.is_passthrough is False:  # else nobody but the disk has heard of it
                self.publish(f, seat)

    def do_unmap(self):
        seat, f, m = self.some_mapping()
        if f:
            self.note(f"unmap {seat.number}:{f.key}#{f.serial}")
            m.close()
            f.mappings.remove(m)
            self.leave(seat, f)
