"""Warm GETs over HTTP: ours with signatures verified, beside nginx serving the same files, nginx as a cache in front of the origin, and
the origin's own server."""

import contextlib
import http.client
import os
import shutil

import lab as lab_module
from lab import MIB, harness, say
from usage import Usage
from versus import rounds, rows_against

# title, bytes of an object, objects, requests, connections, goal against nginx with sendfile
LOADS = [
    ("4 KiB", 4 << 10, 512, 40_000, 16, 0.5),
    ("100 KiB", 100 << 10, 256, 20_000, 16, 1.0),
    ("1 MiB", MIB, 128, 4_096, 16, 1.0),
    ("10 MiB", 10 * MIB, 24, 400, 16, 1.0),
    ("100 KiB", 100 << 10, 256, 20_000, 256, 1.0),
    ("1 MiB", MIB, 128, 4_096, 256, 1.0),
]
QUICK_SHARE = 8
OURS, STATIC, CACHE, DIRECT = "forebay", "nginx with sendfile", "nginx with proxy_cache", "versitygw itself"

CONFIG = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log warn; worker_processes auto; {user}
events {{ worker_connections 2048; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 600s;
    client_body_temp_path {dir}; proxy_temp_path {dir}; fastcgi_temp_path {dir}; uwsgi_temp_path {dir}; scgi_temp_path {dir};
    open_file_cache max=10000 inactive=600s; open_file_cache_valid 600s;
{servers}
}}
"""
STATIC_SERVER = "    server {{ listen 127.0.0.1:{port} backlog=1024; root {root}; }}"
# What is signed for the origin passes on; the key of the cache is the path alone.
CACHE_SERVER = """
    proxy_cache_path {dir}/cache levels=1:2 keys_zone=objects:64m max_size=20g inactive=24h use_temp_path=off;
    upstream origin {{ server {origin}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024; tcp_nopush off; # with it small answers out of the cache wait for a timer
        location / {{
            proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host {origin};
            proxy_cache objects; proxy_cache_key $uri; proxy_cache_valid 200 24h; proxy_cache_lock on;
            proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;
        }}
    }}"""


class Nginx(harness.Program):
    """nginx with one server: over a directory, or as a cache in front of `origin` (HOST:PORT)."""

    def __init__(self, directory, root=None, origin=None):
        super().__init__(directory, "nginx")
        self.port = harness.free_port()
        config = self.dir / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        server = STATIC_SERVER.format(port=self.port, root=root) if root else \
            CACHE_SERVER.format(port=self.port, dir=self.dir, origin=origin)
        config.write_text(CONFIG.format(dir=self.dir, user=user, servers=server))
        self.spawn([shutil.which("nginx") or "/usr/sbin/nginx", "-p", self.dir, "-c", config])
        harness.wait_until(self._answers, 20, "nginx answers")

    def _answers(self):
        connection = http.client.HTTPConnection(self.address, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        return False

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"


def sample(lab, pids, address, targets, connections, requests):
    with Usage(pids) as usage:
        said = lab.get(address, targets, connections, requests)
    return {"rate": said["bytes"] / said["seconds"], "memory_bytes": usage.memory_bytes,
            "cpu_s_per_gb": usage.cpu_s / (said["bytes"] / 1e9)}


def one_load(lab, size_title, size, objects, requests, connections, goal):
    import peers
    if lab.quick:
        objects, requests = max(8, objects // QUICK_SHARE), requests // QUICK_SHARE
    plain = lab.path("objects")
    keys = [f"object-{i:03d}" for i in range(objects)]
    for key in keys:
        lab_module.write_random(plain / key, size, key)
    bucket = lab.upload({key: plain / key for key in keys})
    at_origin = harness.s3_client(lab.origin.endpoint, lab.origin.access_key, lab.origin.secret_key, signature_version="s3v4")
    with lab.node(bucket) as node, Nginx(lab.path("nginx"), root=plain) as static, \
            Nginx(lab.path("proxy"), origin=lab.origin.endpoint.split("//")[1]) as cache:
        signed, address = lab.targets(node.s3(signature_version="s3v4"), bucket, keys)
        presigned, origin_address = lab.targets(at_origin, bucket, keys)
        sides = {OURS: (address, signed, node.pid), STATIC: (static.address, ["/" + key for key in keys], static.pid),
                 CACHE: (cache.address, presigned, cache.pid), DIRECT: (origin_address, presigned, lab.origin.pid)}
        for _ in range(2):
            for where, targets, _pid in sides.values():
                lab.get(where, targets, min(connections, objects))
        say(f"warm S3 GET of {size_title}, {connections} connections, {lab.pairs} rounds of {len(sides)} systems")
        taken, share = rounds(lab, {
            name: lambda w=where, t=targets, p=pid: sample(lab, lambda: peers.tree([p]), w, t, connections, requests)
            for name, (where, targets, pid) in sides.items()})
    rows = rows_against(taken, share, f"Warm S3 GET of {size_title} objects, {connections} connections", "MB/s", 1e-6)
    for row in rows:
        if row["peer"] == STATIC:
            row["goal"], row["met"] = f"at least {goal:g}", row["ratio"]["median"] >= goal
    return rows


def s3(lab):
    """Warm GETs by presigned URLs: signed requests to the node, verified each time, beside the same files from nginx with sendfile
    without signatures (the reference of the goal), from nginx with proxy_cache in front of the origin, and from the origin's own server.
    All in the page cache."""
    rows = []
    for load in LOADS[:4] if lab.quick else LOADS:
        rows += one_load(lab, *load)
    return rows


MEASURES = {"s3": s3}
