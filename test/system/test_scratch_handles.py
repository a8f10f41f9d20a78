"""Handles of a scratch mount: those that name a file (name_to_handle_at, open_by_handle_at), as an NFS server has them, and descriptors that run out."""

import contextlib
import ctypes
import errno
import os
import resource
import stat

import pytest

pytestmark = pytest.mark.usefixtures("need_fuse")
libc = ctypes.CDLL(None, use_errno=True)
HANDLE_BYTES = 128
AT_FDCWD = -100
MS_NOSUID, MS_NODEV, MS_REMOUNT = 2, 4, 32


class Handle(ctypes.Structure):
    _fields_ = [("n", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


def handle_of(path):
    handle, mount_id = Handle(n=HANDLE_BYTES), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return handle


@contextlib.contextmanager
def opened(top, handle, flags=os.O_RDONLY):
    where = os.open(top, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(where, ctypes.byref(handle), flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(where)


def forget(top):
    """Has the kernel forget all that nobody uses of the mount: each remount begins so."""
    if libc.mount(b"none", os.fsencode(top), None, MS_REMOUNT | MS_NOSUID | MS_NODEV, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(top))


@pytest.fixture
def remount(node, scratch, new_mount):
    """remount() mounts the bucket anew, so that the kernel knows no inode of it."""
    mounts = []

    def make(what=None):
        if mounts:
            mounts.pop().stop()
        mounts.append(new_mount(node, what or scratch, passthrough="off"))
        return mounts[0].path

    return make


def test_a_handle_outlives_the_mount(node, remount):
    """What a handle names is found by it in a later mount and after a rename: file, directory, link; also by a node that was started
    again. [Without FUSE_CAP_EXPORT_SUPPORT, or LOOKUP of "." for what is no directory, ESTALE.]"""
    top = remount()
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/f").write_bytes(b"held")
    os.symlink("b/f", top / "a/link")
    handles = {name: handle_of(top / name) for name in ("a/b/f", "a/b", "a", "")}
    os.rename(top / "a/b/f", top / "a/g")
    top = remount()
    with opened(top, handles["a/b/f"]) as fd:
        assert os.read(fd, 10) == b"held"
    with opened(top, handles["a/b"]) as fd:
        assert stat.S_ISDIR(os.fstat(fd).st_mode) and os.readlink(f"/proc/self/fd/{fd}") == str(top / "a/b")
    node.stop()
    node.start()
    top = remount()
    with opened(top, handles["a/b/f"], os.O_RDWR) as fd:
        assert os.pwrite(fd, b"new", 0) == 3
    with opened(top, handles["a"]) as fd:
        assert sorted(os.listdir(fd)) == ["b", "g", "link"]
    with opened(top, handles[""]) as fd:
        assert os.fstat(fd).st_ino == top.stat().st_ino
    assert (top / "a/g").read_bytes() == b"newd"


def test_a_handle_of_what_the_kernel_has_forgotten(remount):
    """Within one mount, of directories that it has made itself and knows whole, too. [Without asking the node for "..": ESTALE.]"""
    top = remount()
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/f").write_bytes(b"held")
    handles = {name: handle_of(top / name) for name in ("a/b/f", "a/b", "a")}
    forget(top)
    with opened(top, handles["a/b"]) as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(top / "a/b") and os.listdir(fd) == ["f"]
    forget(top)
    with opened(top, handles["a"]) as fd:
        assert os.listdir(fd) == ["b"]
    with opened(top, handles["a/b/f"]) as fd:
        assert os.read(fd, 10) == b"held"


def test_a_handle_of_what_was_removed_is_stale(remount):
    """ESTALE, also while a program has the removed file open, and never another file."""
    top = remount()
    (top / "f").write_bytes(b"1")
    handle = handle_of(top / "f")
    os.remove(top / "f")
    (top / "f").write_bytes(b"2")
    top = remount()
    with pytest.raises(OSError) as refused, opened(top, handle):
        pass
    assert refused.value.errno == errno.ESTALE


def test_a_handle_leads_to_its_parents_but_not_above_the_mount(scratch, remount):
    """A directory opened by its handle finds its parents, up to the root of a mount of a prefix and no further."""
    top = remount()
    (top / "a/b/c").mkdir(parents=True)
    top = remount(f"{scratch}/a")
    handle = handle_of(top / "b/c")
    top = remount(f"{scratch}/a")
    with opened(top, handle) as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(top / "b/c")
    with opened(top, handle_of(top)) as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(top)


def test_no_name_is_made_when_descriptors_run_out(node, scratch, new_mount):
    """A node that has no descriptor left refuses a new file with ENFILE, as the program's own table is not full, and makes no name;
    what is open works on, and when something was closed there is room again. [With the descriptor opened after the name: the name is
    there; without mount_errno's case: EMFILE.]"""
    top = new_mount(node, scratch).path
    (top / "d").mkdir()
    used = len(os.listdir(f"/proc/{node.pid}/fd"))
    before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (used + 61, before[1]))
        with pytest.raises(OSError) as refused:
            for i in range(200):
                held.append(open(top / f"d/{i}", "wb", buffering=0))
        names = set(os.listdir(top / "d"))
        held[0].write(b"goes on")
        held[0].flush()
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)
        made = {f.name.rpartition("/")[2] for f in held}
        for f in held:
            f.close()
    assert refused.value.errno == errno.ENFILE and len(held) > 5
    listed = {o["Key"].rpartition("/")[2] for o in node.s3().list_objects_v2(Bucket=scratch, Prefix="d/")["Contents"]} - {""}
    assert names == made == listed
    assert (top / "d/0").read_bytes() == b"goes on"
    (top / f"d/{len(held)}").write_bytes(b"there is room again")
