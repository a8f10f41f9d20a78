"""A disk of the node whose files' times go in steps, of whole seconds here: a change right after another one leaves them as they were."""

import os
import tempfile

import pytest

import harness
import mounted
from test_scratch_faults import MIB, new_disk  # noqa: F401 (new_disk: a fixture)

pytestmark = pytest.mark.usefixtures("need_fuse")
WHOLE_SECONDS = ("-I", "128")  # inodes that have no room for more


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_what_is_written_right_after_it_was_published(new_disk, origin, work, passthrough):  # noqa: F811
    """It gets to the origin all the same when the file is closed, though neither size nor times tell of it: such files are not written by
    the kernel itself. (has_fine_times in mount/staging.c.)"""
    size, truth = 128 * MIB, origin.s3()
    node = harness.Node(tempfile.mkdtemp(prefix="node-", dir=work), disk=f"{new_disk(size, options=WHOLE_SECONDS)}:{size}")
    try:
        bucket = node.new_bucket(origin)
        with mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, bucket, passthrough=passthrough) as one:
            for name in "abcde":  # a second may end between the two
                fd = os.open(one.path / name, os.O_WRONLY | os.O_CREAT)
                try:
                    os.write(fd, b"first")
                    os.fsync(fd)
                    os.pwrite(fd, b"again", 0)
                finally:
                    os.close(fd)
                assert truth.get_object(Bucket=bucket, Key=name)["Body"].read() == b"again" == (one.path / name).read_bytes()
    finally:
        node.stop()
