"""A blob service in the test process whose copies stay pending until they are aborted, as no emulator's do.

It speaks as much as a node asks of it for a bucket, an object `a` and copies of it, checks no signatures, and remembers
each request.
"""

import threading
import urllib.parse

import served

DATA = b"the bytes of a"


class PendingCopies(served.Server):
    """`requests` is a list of (method, key, comp). `looked`: somebody has asked for a target that is pending."""

    def __init__(self):
        super().__init__(_Handler)
        self.targets = {}  # key: "pending" or "aborted"
        self.looked = threading.Event()

    def properties(self):
        return {"origin.endpoint": f"{self.endpoint}/acc", "origin.account": "acc",
                "origin.account_key": "a2V5"}


class _Handler(served.Handler):
    def _parse(self):
        path, _, query = self.path.partition("?")
        comp = urllib.parse.parse_qs(query).get("comp", [""])[0]
        key = "/".join(path.split("/")[3:])  # /acc/container/key
        self.body()
        with self.owner.lock:
            self.owner.requests.append((self.command, key, comp))
        return self.owner, key, comp

    def _read(self):
        origin, key, comp = self._parse()
        if comp == "list":
            return self.send(200, b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>")
        if key == "a":
            return self.send(200, DATA, ETag='"0x1"')
        with origin.lock:
            state = origin.targets.get(key)
        if state is None:
            return self.send(404, x_ms_error_code="BlobNotFound")
        if state == "pending":
            origin.looked.set()
        return self.send(200, ETag='"0x2"', x_ms_copy_id="copy-1", x_ms_copy_status=state)

    do_GET = do_HEAD = _read

    def do_PUT(self):
        origin, key, comp = self._parse()
        with origin.lock:
            if comp == "copy":
                origin.targets[key] = "aborted"
            elif "x-ms-copy-source" in self.headers:
                origin.targets[key] = "pending"
        return self.send(204 if comp == "copy" else 202, x_ms_copy_id="copy-1", x_ms_copy_status="pending")

    def do_DELETE(self):
        origin, key, _ = self._parse()
        with origin.lock:
            origin.targets.pop(key, None)
        return self.send(202)
