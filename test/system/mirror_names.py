"""What the random walks on mirrors do with names: of files, directories and symbolic links, and their attributes."""

import errno
import os
import stat

from mirror_model import MODES, Model, is_below, parent_of
from test_scratch_mount import RENAME_NOREPLACE, renameat2

NS = 1_600_000_000_000_000_007


class Names(Model):
    # ---- names ----

    def do_rename(self):
        seat = self.seat()
        shown = self.visible(seat)
        if not shown:
            return
        old, new = self.random.choice(sorted(shown)), self.new_key()
        if old == new or self.is_busy(old, seat) or self.is_busy(new, seat):
            return
        keeps = self.chance(0.2)
        self.note(f"rename {seat.number}:{old} {new}{' if there is none' if keeps else ''}")
        try:
            renameat2(seat.path / old, seat.path / new, RENAME_NOREPLACE if keeps else 0)
        except FileExistsError:
            assert keeps and new in shown, f"{new} is not there"
            return
        assert not keeps or new not in shown, f"{new} was replaced"
        self.gone(seat, new)
        self.moved(seat, old, new)
        self.compare_published(new)

    def gone(self, seat, key):
        """A name that was removed or replaced."""
        self.objects.pop(key, None)
        self.forget(key, seat, is_removed=True)
        f = seat.named(key)
        if f:
            f.key, f.is_removed = None, True

    def moved(self, seat, old, new):
        f = seat.named(old)
        if f and f.is_staged:
            self.published(f, seat)
        self.objects[new] = self.objects.pop(old)
        self.forget(old, seat, is_removed=True)
        for other in self.seats:
            g = other.named(old)
            if g:
                g.key = new if other is seat else None
        if f:
            f.key = new

    def do_rename_directory(self):
        seat = self.seat()
        if not self.directories:
            return
        old = self.random.choice(sorted(self.directories))
        new = "/".join(filter(None, [self.random.choice(["", *sorted(self.directories)]), f"d{self.random.randrange(4)}"]))
        if old == new or is_below(new, old) or is_below(old, new) or self.is_busy(old, seat) or self.is_busy(new, seat):
            return
        self.note(f"rename {seat.number}:{old}/ {new}/")
        is_full = not self.is_empty(new, seat)
        try:
            os.rename(seat.path / old, seat.path / new)
            assert not is_full, f"{new} was not empty"
        except OSError as error:
            assert is_full and error.errno == errno.ENOTEMPTY, error
            return
        self.lose_directories(new)
        for other in self.seats:
            for fd, name in list(other.open_directories.items()):
                if name == old or is_below(name, old):
                    other.open_directories[fd] = new + name[len(old):]
                    if other is not seat:  # which knows it by its former name
                        os.close(fd)
                        other.open_directories.pop(fd)
        self.links = {new + k[len(old):] if is_below(k, old) else k: to for k, to in self.links.items()}
        for key in [k for k in self.visible(seat) if is_below(k, old)]:
            self.moved(seat, key, new + key[len(old):])
        self.directories = {new + d[len(old):] if d == old or is_below(d, old) else d for d in self.directories}
        for key in [k for k in self.objects if is_below(k, new)]:
            self.compare_published(key)

    def is_empty(self, name, seat):
        return not any(is_below(k, name) for k in [*self.visible(seat), *self.directories, *self.links])

    def lose_directories(self, name):
        """Who has one open that is gone does not read it."""
        for seat in self.seats:
            for fd in [fd for fd, of in seat.open_directories.items() if of == name]:
                os.close(fd)
                seat.open_directories.pop(fd)

    def do_mix_kinds(self):
        """A file does not take the place of a directory, nor the other way round."""
        seat = self.seat()
        files = [k for k in sorted(self.visible(seat)) if not self.is_busy(k, seat)]
        if not files or not self.directories:
            return
        file, name = self.random.choice(files), self.random.choice(sorted(self.directories))
        if self.is_busy(name, seat) or is_below(file, name):
            return
        self.note(f"rename {seat.number}:{file} {name}/ and back")
        for old, new, code in ((file, name, errno.EISDIR), (name, file, errno.ENOTDIR)):
            try:
                os.rename(seat.path / old, seat.path / new)
                raise AssertionError(f"{old} took the place of {new}")
            except OSError as error:
                assert error.errno == code, error

    def do_unlink(self):
        seat = self.seat()
        shown = sorted(self.visible(seat))
        if not shown:
            return
        key = self.random.choice(shown)
        if self.is_busy(key, seat):
            return
        self.note(f"unlink {seat.number}:{key}")
        os.unlink(seat.path / key)
        self.gone(seat, key)
        if self.truth:
            assert self.truth(key) is None

    def do_mkdir(self):
        seat = self.seat()
        name = "/".join(filter(None, [self.random.choice(["", *sorted(self.directories)]), f"d{self.random.randrange(4)}"]))
        if len(self.directories) < 6 and name.count("/") < 4:
            self.note(f"mkdir {seat.number}:{name}")
            try:
                os.mkdir(seat.path / name)
                assert name not in self.directories
            except FileExistsError:
                assert name in self.directories
            self.directories.add(name)

    def do_rmdir(self):
        seat = self.seat()
        if not self.directories:
            return
        name = self.random.choice(sorted(self.directories))
        if self.is_busy(name, seat):
            return
        is_empty = self.is_empty(name, seat)
        self.note(f"rmdir {seat.number}:{name}")
        try:
            os.rmdir(seat.path / name)
            assert is_empty, f"{name} was not empty"
            self.directories.discard(name)
            self.lose_directories(name)
        except OSError as error:
            assert error.errno == errno.ENOTEMPTY and not is_empty, error

    def do_list(self):
        seat = self.seat()
        self.check_list(seat, self.random.choice(["", *sorted(self.directories)]))

    def do_open_directory(self):
        seat = self.seat()
        if self.directories and len(seat.open_directories) < 2:
            name = self.random.choice(sorted(self.directories))
            self.note(f"open {seat.number}:{name}/")
            seat.open_directories[os.open(seat.path / name, os.O_RDONLY | os.O_DIRECTORY)] = name

    def do_list_open(self):
        """A directory that is open is what it was, also when it has another name since."""
        seat = self.seat()
        if seat.open_directories:
            fd = self.random.choice(sorted(seat.open_directories))
            self.check_list(seat, seat.open_directories[fd], fd)
            if self.chance(0.3):
                seat.open_directories.pop(fd)
                os.close(fd)

    def check_list(self, seat, name, fd=None):
        self.note(f"list {seat.number}:{name}/{'' if fd is None else f' fd {fd}'}")
        expected = {k.rpartition("/")[2] for k in [*self.visible(seat), *self.directories, *self.links] if parent_of(k) == name}
        found = set(os.listdir(seat.path / name if fd is None else fd))
        for key in sorted("/".join(filter(None, [name, one])) for one in found ^ expected):
            self.note(f"{key}: {'' if os.path.lexists(seat.path / key) else 'not '}found by name; "
                      f"{'' if self.truth and self.truth(key) is not None else 'not '}at the origin")
        assert found == expected, f"{name or 'the root'}: {sorted(found - expected)} too many, {sorted(expected - found)} too few"

    # ---- symbolic links ----

    def do_symlink(self):
        if not self.posix or len(self.links) > 4:
            return
        seat = self.seat()
        key = "/".join(filter(None, [self.random.choice(["", *sorted(self.directories)]), f"l{self.random.randrange(3)}"]))
        to = self.random.choice(["f0", "../large", "nowhere", "/" + "x" * self.random.choice([1, 200, 4000])])
        self.note(f"symlink {seat.number}:{key} {len(to)}")
        try:
            os.symlink(to, seat.path / key)
            assert key not in self.links, f"{key} was replaced"
            self.links[key] = to
        except FileExistsError:
            assert key in self.links, f"{key} is not there"

    def do_readlink(self):
        if self.links:
            seat, key = self.seat(), self.random.choice(sorted(self.links))
            self.note(f"readlink {seat.number}:{key}")
            assert os.readlink(seat.path / key) == self.links[key]
            assert stat.S_ISLNK(os.lstat(seat.path / key).st_mode)

    def do_move_link(self):
        if self.links:
            seat, old = self.seat(), self.random.choice(sorted(self.links))
            new = "/".join(filter(None, [parent_of(old), f"l{self.random.randrange(3)}"]))
            if self.chance(0.5):
                self.note(f"unlink {seat.number}:{old}")
                os.unlink(seat.path / old)
                self.links.pop(old)
            elif new != old:
                self.note(f"rename {seat.number}:{old} {new}")
                os.rename(seat.path / old, seat.path / new)
                self.links[new] = self.links.pop(old)

    # ---- attributes ----

    def do_fchmod(self):
        """Of what is open: by its descriptor as by its name, and of what has none any more."""
        seat, f, fd = self.some_fd(lambda flags: True)
        if not self.posix or not f or f.is_vague or not (f.is_staged if f.key is None else not self.is_busy(f.key, seat)):
            return
        mode, time_ns = self.random.choice(MODES), NS + self.random.randrange(10**9)
        self.note(f"fchmod {seat.number}:{f.key}#{f.serial} {mode:#o}, and its time")
        try:
            os.fchmod(fd, mode)
            os.utime(fd, ns=(time_ns, time_ns))
        except OSError as error:
            if error.errno != errno.ESTALE or not f.is_changed:
                raise
            return  # at the first of them: the name has a version that this mount does not know
        if f.key:
            self.set_attributes(seat, f.key, mode=mode, time_ns=time_ns)
        else:
            f.mode, f.time_ns = mode, None if f.is_stored else time_ns

    def do_chmod(self):
        seat = self.seat()
        key, mode = self.some_key(seat, p_new=0), self.random.choice(MODES)
        if key in self.visible(seat) and not self.is_busy(key, seat):
            self.note(f"chmod {seat.number}:{key} {mode:#o}")
            os.chmod(seat.path / key, mode)
            self.set_attributes(seat, key, mode=mode)

    def do_utime(self):
        seat = self.seat()
        key, time_ns = self.some_key(seat, p_new=0), NS + self.random.randrange(10**9)
        if key in self.visible(seat) and not self.is_busy(key, seat):
            self.note(f"utime {seat.number}:{key}")
            os.utime(seat.path / key, ns=(time_ns, time_ns))
            self.set_attributes(seat, key, time_ns=time_ns)

    def check_attributes(self, seat, key, of):
        found = os.stat(seat.path / key)
        assert found.st_size == len(of.body), f"{key}: {found.st_size}, expected {len(of.body)} bytes"
        if self.posix and of.mode is not None:
            assert stat.S_IMODE(found.st_mode) == of.mode, f"{key}: mode {found.st_mode:#o}, expected {of.mode:#o}"
        if self.posix and of.time_ns is not None:
            assert found.st_mtime_ns == of.time_ns, f"{key}: time {found.st_mtime_ns}, expected {of.time_ns}"
