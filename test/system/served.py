"""A small HTTP server in the test process: a thread for each connection, a free port of the loopback.

    class Handler(served.Handler):
        def do_GET(self):
            self.send(200, b"body", ETag='"e"')

    with served.Server(Handler) as server:
        urllib.request.urlopen(server.endpoint)
"""

import http.server
import sys
import threading


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of more than the usual five that come at once the others would try again after a second, and after three

    def handle_error(self, *arguments):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients may go, and are killed
            super().handle_error(*arguments)


class Server:
    """Its handlers find it as `self.owner`. `requests` is for them to fill, under `lock`."""

    def __init__(self, handler):
        self.requests = []
        self.lock = threading.Lock()
        self.server = _Server(("127.0.0.1", 0), handler)
        self.server.owner = self
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(200)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits for the acknowledgement of its head

    @property
    def owner(self):
        return self.server.owner

    def log_message(self, *_):
        pass

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send(self, status, body=b"", **headers):
        """An answer with these headers, "_" for "-", and a Content-Length unless one is given."""
        self.send_response(status)
        headers.setdefault("Content-Length", len(body))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
