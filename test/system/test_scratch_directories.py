"""Reading directories of a scratch bucket: each name once, positions that hold, a million of them."""

import ctypes
import os

import pytest

from test_scratch_mount import libc, mount, top  # noqa: F401

pytestmark = pytest.mark.usefixtures("need_fuse")


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16), ("type", ctypes.c_uint8),
                ("name", ctypes.c_char * 256)]


libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.opendir.argtypes = [ctypes.c_char_p]
libc.readdir.argtypes = libc.closedir.argtypes = libc.telldir.argtypes = libc.rewinddir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


def next_entry(directory):
    p = libc.readdir(directory)
    return os.fsdecode(ctypes.cast(p, ctypes.POINTER(Dirent)).contents.name) if p else None


def test_listing_many_names(top):  # noqa: F811
    """Each once, with type and number, and removing all of them while reading leaves none."""
    n = 3000
    os.mkdir(top / "d")
    for i in range(n):
        if i % 3 == 0:
            os.symlink("x" * (i % 300 + 1), top / f"d/{i}")
        else:
            os.close(os.open(top / f"d/{i}", os.O_CREAT | os.O_WRONLY))
    with os.scandir(top / "d") as entries:
        seen = {e.name: (e.is_symlink(), e.inode()) for e in entries}
    assert sorted(map(int, seen)) == list(range(n))
    assert all(seen[str(i)][0] == (i % 3 == 0) for i in range(n))
    assert all(seen[str(i)][1] == (top / f"d/{i}").lstat().st_ino for i in range(0, n, 97))
    with os.scandir(top / "d") as entries:
        for e in entries:
            os.remove(e.path)
    assert os.listdir(top / "d") == []


def test_positions_in_directories_are_stable(top):  # noqa: F811
    """telldir's positions hold while entries come and go, also in another descriptor's reading."""
    os.mkdir(top / "d")
    for i in range(500):
        (top / f"d/{i:03}").touch()
    directory = libc.opendir(os.fsencode(top / "d"))
    names, places = [], []
    while True:
        places.append(libc.telldir(directory))
        name = next_entry(directory)
        if name is None:
            break
        names.append(name)
    assert len(names) == 502 and set(names) >= {".", ".."}
    for i in range(0, 500, 7):
        os.remove(top / f"d/{i:03}")
        (top / f"d/new{i}").touch()
    for k in (2, 100, 333, 480):
        libc.seekdir(directory, places[k])
        expected = [x for x in names[k:] if x in (".", "..") or int(x) % 7]
        got = []
        while (name := next_entry(directory)) is not None:
            got.append(name)
        assert [x for x in got if not x.startswith("new")] == expected
    libc.rewinddir(directory)
    got = set()
    while (name := next_entry(directory)) is not None:
        got.add(name)
    assert got == set(os.listdir(top / "d")) | {".", ".."}
    libc.closedir(directory)


@pytest.mark.soak
def test_a_million_entries(mount):  # noqa: F811
    """A directory of a million files is read to its end with flat memory."""
    one = mount()
    os.mkdir(one.path / "d")
    fd = os.open(one.path / "d", os.O_RDONLY)
    for i in range(1_000_000):
        os.mknod(f"{i}", 0o600, dir_fd=fd)
    os.close(fd)

    def resident():
        with open(f"/proc/{one.serving()}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    before = resident()
    assert sum(1 for _ in os.scandir(one.path / "d")) == 1_000_000
    assert resident() - before < 64 * 1024
