"""A small client of the wire protocol (src/net/wire.h), independent of the C one.

The tests use it to make buckets without a command line, and to send what no good client would send. Strings are bytes;
integers are little endian. Only the operations that tests need have their fields written down here.
"""

import os
import socket
import struct

HEADER = struct.Struct("<IHHQiI")
FLAG_REPLY = 1
VERSION = 1
VIA_API = 3
INLINE = 4
STAGED, LASTING = 1 << 4, 1 << 29

CHALLENGE, HELLO = 1, 2
BUCKET_CREATE, BUCKET_LIST, BUCKET_GET, BUCKET_SET, BUCKET_REMOVE = 10, 11, 12, 13, 14
OPEN, FETCH, CLOSE = 22, 23, 24
PUT_OPEN, PUT_ABORT, UPLOAD_KEEP = 30, 33, 109
WATCH, TREE_GETATTR, WATCH_NAMES = 25, 81, 112
STATUS = 50

_TABLE = []
for _i in range(256):
    _v = _i
    for _ in range(8):
        _v = (_v >> 1) ^ 0x82F63B78 if _v & 1 else _v >> 1
    _TABLE.append(_v)


def crc32c(data):
    """CRC-32C of bytes, as in the frame header."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(value):
    """A `str` field: length, bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return u32(len(raw)) + raw


def frame(op, body, request_id=1):
    """One request frame."""
    return HEADER.pack(len(body), op, 0, request_id, 0, crc32c(body)) + body


class WireError(Exception):
    """A failed reply: the code of base/err.h (negative) and its text."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Wire:
    """A connection over the Unix socket of a node; the uid is trusted, so nothing is signed."""

    def __init__(self, path, timeout=200):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.descriptors = []
        self.socket.connect(str(path))
        self.next_id = 1
        self.call(HELLO, u32(VERSION) + text(os.urandom(16)) + text("system test") + u32(VIA_API) + text("") + text(""))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _receive(self, n):
        data = b""
        while len(data) < n:
            piece, passed, _, _ = socket.recv_fds(self.socket, n - len(data), 1)
            self.descriptors += passed
            if not piece:
                raise ConnectionError("the node closed the connection")
            data += piece
        return data

    def call(self, op, body):
        """Sends one request; gives the reply's body, or raises WireError."""
        request_id, self.next_id = self.next_id, self.next_id + 1
        self.socket.sendall(frame(op, body, request_id))
        length, reply_op, flags, reply_id, status, crc = HEADER.unpack(self._receive(HEADER.size))
        reply = self._receive(length)
        assert (reply_op, reply_id, flags & FLAG_REPLY, crc) == (op, request_id, FLAG_REPLY, crc32c(reply))
        if status:
            raise WireError(status, reply[4:].decode(errors="replace"))
        return reply

    def watch(self, bucket):
        """The reading end of the pipe with the hashes of what is let go; the caller's to close."""
        self.call(WATCH, text(bucket))
        return self.descriptors.pop()

    def watch_names(self, bucket, prefix):
        """The reading end of the pipe with the names that are changed; the caller's to close."""
        self.call(WATCH_NAMES, text(bucket) + text(prefix))
        return self.descriptors.pop()

    def bucket_create(self, name, settings):
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self.call(BUCKET_CREATE, text(name) + text(lines))

    def bucket_set(self, name, settings):
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self.call(BUCKET_SET, text(name) + text(lines))

    def bucket_remove(self, name):
        self.call(BUCKET_REMOVE, text(name))

    def tree_getattr(self, bucket, ino):
        """(mode, links, mtime_ns, ctime_ns) of an inode of a scratch bucket, as the node knows them."""
        reply = self.call(TREE_GETATTR, text(bucket) + u64(ino))
        _, mode, _, _, links, _, _, _, _, _, mtime, ctime, _ = struct.unpack_from("<QIIIIIIQQqqqq", reply)
        return mode, links, mtime, ctime

    def upload_keep(self, bucket, key):
        """Begins an upload in parts whose bytes are on the node, as its S3 front does, lets go of it, and gives its id."""
        asked = text(bucket) + text(key) + u64(2**64 - 1) + 3 * text("") + u32(0) + text("") + u32(VIA_API) + u32(STAGED | LASTING)
        handle = self.call(PUT_OPEN, asked)
        os.close(self.descriptors.pop())
        reply = self.call(UPLOAD_KEEP, handle + text("") + text(" ;md5;0"))
        self.call(PUT_ABORT, handle)
        return reply[4:].decode()
