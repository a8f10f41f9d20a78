"""Origins of other kinds for the system tests: each a real server that is not ours, with one face.

    with Gcs(directory) as origin:
        node.create_bucket("b", origin.url("prefix"), **origin.properties())
        origin.put("prefix/k", b"data"); origin.get("prefix/k"); origin.keys(); origin.delete("prefix/k")

`missing()` of a class says why it cannot run here, or None.
"""

import base64
import datetime
import hashlib
import hmac
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree

import harness


def request(url, method="GET", data=None, headers=None):
    """(status, headers, body); refusals are answers too."""
    asked = urllib.request.Request(url, method=method, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Server(harness.Program):
    """What they share: a port, and the wait until it answers."""

    writable = True
    lists_meta = True

    def __init__(self, directory):
        super().__init__(directory, type(self).__name__.lower())
        self.port = harness.free_port()
        self.data = self.dir / "data"
        self.data.mkdir(exist_ok=True)
        self.start()
        harness.wait_until(self._answers, harness.READY_SECONDS, f"{self.name} answers")
        self.prepare()

    def _answers(self):
        if not self.running():
            raise RuntimeError(f"{self.name} ended:\n{self.log_tail()}")
        try:
            return request(self.endpoint + "/")[0] > 0
        except OSError:
            return False

    def prepare(self):
        """Makes the container that the tests use."""

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"


class Gcs(Server):
    """fake-gcs-server, in memory."""

    program = harness.ROOT / ".deps/bin/fake-gcs-server"

    @classmethod
    def missing(cls):
        return None if cls.program.exists() else "no fake-gcs-server; make it with scripts/origin-emulators build"

    def start(self):
        self.spawn([self.program, "-scheme", "http", "-host", "127.0.0.1", "-port", self.port, "-backend", "memory",
                    "-public-host", f"127.0.0.1:{self.port}", "-external-url", self.endpoint, "-log-level", "error"])

    def prepare(self):
        status, _, body = request(self.endpoint + "/storage/v1/b?project=p", "POST", json.dumps({"name": "bucket"}).encode(),
                                  {"Content-Type": "application/json"})
        assert status == 200, body

    def url(self, prefix=""):
        return "gs://bucket" + (f"/{prefix}" if prefix else "")

    def properties(self):
        return {"origin.endpoint": self.endpoint}

    def _object(self, key):
        return f"{self.endpoint}/storage/v1/b/bucket/o/{urllib.parse.quote(key, safe='')}"

    def put(self, key, data):
        status, _, body = request(f"{self.endpoint}/upload/storage/v1/b/bucket/o?uploadType=media&name="
                                  + urllib.parse.quote(key, safe=""), "POST", data)
        assert status == 200, body

    def get(self, key):
        status, _, body = request(self._object(key) + "?alt=media")
        return body if status == 200 else None

    def delete(self, key):
        assert request(self._object(key), "DELETE")[0] in (200, 204)

    def keys(self):
        return sorted(item["name"] for item in
                      json.loads(request(self.endpoint + "/storage/v1/b/bucket/o")[2]).get("items", []))
