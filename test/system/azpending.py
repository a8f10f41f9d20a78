"""A blob service in the test process whose copies stay pending until they are aborted, as no emulator's do.

It speaks as much as a node asks of it for a bucket, an object `a` and copies of it, checks no signatures, and remembers
each request.
"""

import http.server
import threading
import urllib.parse

DATA = b"the bytes of a"


class PendingCopies:
    """`requests` is a list of (method, key, comp). `looked`: somebody has asked for a target that is pending."""

    def __init__(self):
        self.requests = []
        self.targets = {}  # key: "pending" or "aborted"
        self.looked = threading.Event()
        self.lock = threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.origin = self
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def properties(self):
        return {"origin.endpoint": f"http://127.0.0.1:{self.server.server_address[1]}/acc", "origin.account": "acc",
                "origin.account_key": "a2V5"}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(200)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _send(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content-Length", len(body))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _parse(self):
        path, _, query = self.path.partition("?")
        comp = urllib.parse.parse_qs(query).get("comp", [""])[0]
        key = "/".join(path.split("/")[3:])  # /acc/container/key
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.origin.lock:
            self.server.origin.requests.append((self.command, key, comp))
        return self.server.origin, key, comp

    def _read(self):
        origin, key, comp = self._parse()
        if comp == "list":
            return self._send(200, b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>")
        if key == "a":
            return self._send(200, DATA, ETag='"0x1"')
        with origin.lock:
            state = origin.targets.get(key)
        if state is None:
            return self._send(404, x_ms_error_code="BlobNotFound")
        if state == "pending":
            origin.looked.set()
        return self._send(200, ETag='"0x2"', x_ms_copy_id="copy-1", x_ms_copy_status=state)

    do_GET = do_HEAD = _read

    def do_PUT(self):
        origin, key, comp = self._parse()
        with origin.lock:
            if comp == "copy":
                origin.targets[key] = "aborted"
            elif "x-ms-copy-source" in self.headers:
                origin.targets[key] = "pending"
        return self._send(204 if comp == "copy" else 202, x_ms_copy_id="copy-1", x_ms_copy_status="pending")

    def do_DELETE(self):
        origin, key, _ = self._parse()
        with origin.lock:
            origin.targets.pop(key, None)
        return self._send(202)
