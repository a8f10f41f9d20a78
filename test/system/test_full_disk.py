"""A node on a disk that others have filled."""

import errno
import os

import pytest

import harness
from test_scratch_faults import MIB, new_disk, new_node  # noqa: F401 (new_disk: a fixture)
from test_scratch_mount import refused


def test_a_disk_that_others_have_filled(new_disk, work):
    """With everything of a node on it: what is there is read, what is written is refused, both in words, and a start, too. When there is
    room again, all is as it was. (Without take_room of kv_rocksdb.c the start ends by an abort; without the word of other files in
    back_no_room the refusal blames what the cache holds.)"""
    node = new_node(work, new_disk(64 * MIB), "node")
    body, filler = harness.random_bytes(MIB, seed=3), node.data.resolve().parent / "filler"

    def fill():
        for piece in (MIB, 1024):
            with refused(errno.ENOSPC), open(filler, "ab", buffering=0) as f:
                while f.write(bytes(piece)):
                    pass

    try:
        bucket = harness.scratch_bucket(node)
        node.cli("put", "-q", "-", f"{bucket}/before", stdin=body)
        fill()
        late = node.cli("put", "-q", "-", f"{bucket}/late", stdin=body, check=False)
        assert late.returncode == 1 and b"other files have filled" in late.stderr
        assert node.cli("cat", f"{bucket}/before", stdin=b"").stdout == body
        node.stop()
        fill()  # what was ready for files to come
        with pytest.raises(RuntimeError, match="needs 4 MiB of room, which is not there: No space left on device"):
            node.start()
        os.remove(filler)
        node.start()
        assert node.cli("cat", f"{bucket}/before", stdin=b"").stdout == body
        node.cli("put", "-q", "-", f"{bucket}/late", stdin=body)
        assert node.cli("cat", f"{bucket}/late", stdin=b"").stdout == body
    finally:
        node.kill()
