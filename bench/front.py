"""Measurements of the S3 front end: warm GETs with signatures verified, beside nginx serving the same files, nginx as a cache in front of
the origin, and the origin's own server; over TLS; of small values; and listings."""

import contextlib
import ctypes
import errno
import http.client
import os
import re
import socket
import statistics
import subprocess
import threading
import time

import lab as lab_module
import peers
from lab import MIB, OURS, MemoryWatch, harness, pair_row, say, spread, stolen, value_row
from usage import Usage
from versus import NotRun, Taken, costs, layouts, rounds, rows_against, rows_left_out, skipping

# title, bytes of an object, objects, requests, connections, goal against nginx with sendfile
LOADS = [
    ("4 KiB", 4 << 10, 512, 20_000, 16, 0.5),
    ("100 KiB", 100 << 10, 256, 16_000, 16, 1.0),
    ("1 MiB", MIB, 128, 3_072, 16, 1.0),
    ("10 MiB", 10 * MIB, 24, 320, 16, 1.0),
    ("100 KiB", 100 << 10, 256, 16_000, 256, 1.0),
    ("1 MiB", MIB, 128, 3_072, 256, 1.0),
    ("10 MiB", 10 * MIB, 24, 512, 256, 1.0),
]
PEER_LOADS, PEER_ROUNDS = [0, 1, 2, 3, 5], 3  # which of them, and rounds between two writings of their objects
QUICK_SHARE = 8
UNSIGNED_BYTES = 100 << 10
PIECES_BYTES, PIECES_KIB = 10 * MIB, 256  # objects that are also taken in pieces as large as boto3's
TLS_BYTES, TLS_OBJECTS, TLS_REQUESTS, TLS_RECORD_BYTES = 10 * MIB, 24, 160, 16384
TLS_QUICK_OBJECTS, TLS_QUICK_REQUESTS = 8, 16
VALUE_BYTES, VALUES, VALUE_GETS, VALUE_GOAL = 1 << 10, 1_000, 60_000, 50_000
LIST_OBJECTS, QUICK_LIST_OBJECTS, LIST_SECONDS, LIST_THREADS = 1_000_000, 5_000, 30, 4
LIST_GROWTH_BYTES = 64 * MIB
STATIC, CACHE, DIRECT = "nginx with sendfile", "nginx with proxy_cache", "versitygw itself"
UNSIGNED, STATIC_TLS = "forebay, unsigned", "nginx over TLS"
STATIC_ALIKE = "nginx with sendfile and our congestion control"
OUR_CONGESTION = "reno"  # of a listener on the loopback (sock_free_of_clocks in src/net/sock_open.c)
ALIKE = "{} with our congestion control"  # of who lets nobody choose, but has a listener that can be told
SYS_PIDFD_GETFD = 438  # on every architecture
OURS_PIECES, STATIC_PIECES = f"forebay, taken by {PIECES_KIB} KiB", f"nginx with sendfile, taken by {PIECES_KIB} KiB"
OURS_OPENED, STATIC_OPENED = "forebay, decrypted by the client", "nginx over TLS, decrypted by the client"

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
STATIC_SERVER = "    server {{ listen 127.0.0.1:{port} reuseport backlog=1024; root {root}; }}"
TLS_SERVER = """    server {{ listen 127.0.0.1:{port} ssl reuseport backlog=1024; root {root}; ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]}; }}"""
# What is signed for the origin passes on; the key of the cache is the path alone.
CACHE_SERVER = """
    proxy_cache_path {dir}/cache levels=1:2 keys_zone=objects:64m max_size=20g inactive=24h use_temp_path=off;
    upstream origin {{ server {origin}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port} reuseport backlog=1024; tcp_nopush off; # with it small answers out of the cache wait for a timer
        location / {{
            proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host {origin};
            proxy_cache objects; proxy_cache_key $uri; proxy_cache_valid 200 24h; proxy_cache_lock on;
            proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;
        }}
    }}"""


def congestion():
    """The machine's congestion control, which who does not choose another one has."""
    with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="ascii") as said:
        return said.read().strip()


def listener(port, control):
    """A socket that listens with a congestion control, which its connections will have, too, and may have others beside it at the
    port."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(1024)
        listening.setblocking(False)  # nginx expects that of what it takes over: of two workers that are woken one would wait in accept
    except OSError as error:
        listening.close()
        raise NotRun(f"no listener with {control}: {error}") from error
    return listening


def tell_listener(pid, port, control):
    """The listener of another program gets a congestion control, which the connections that it accepts from now on have, too: a
    duplicate of a socket is the same socket. RuntimeError where nobody listens, or may not be told."""
    libc, told = ctypes.CDLL(None, use_errno=True), 0
    process = os.pidfd_open(pid)
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                    continue
            duplicate = libc.syscall(SYS_PIDFD_GETFD, process, int(number), 0)
            if duplicate < 0 and ctypes.get_errno() != errno.EBADF:  # closed meanwhile
                raise RuntimeError(f"sockets of another program cannot be told here: {os.strerror(ctypes.get_errno())}")
            if duplicate >= 0:
                told += tell_if_listening(duplicate, port, control)
    finally:
        os.close(process)
    if not told:
        raise RuntimeError(f"process {pid} does not listen at {port}")


def tell_if_listening(fd, port, control):
    """Whether this socket, which is closed here, listens at the port; then it is told."""
    with socket.socket(fileno=fd) as one:
        listens = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM \
            and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[1] == port
        if listens:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        return bool(listens)


def workers():
    """Of nginx with `worker_processes auto`."""
    return os.sysconf("SC_NPROCESSORS_ONLN")


class Nginx(harness.Program):
    """nginx with one server: over a directory (with TLS, given `certificate` and key), or as a cache in front of `origin` (HOST:PORT).
    Each of its workers, of which it has as many as there are processors, has a listener of its own (reuseport).
    alike: with the congestion control that our own listeners choose. It has no setting for that, but takes sockets over from one that
    it replaces (the variable NGINX), one for each worker, and connections have that of their listener."""

    def __init__(self, directory, root=None, origin=None, certificate=None, alike=False):
        nginx = peers.program("nginx")
        if nginx is None:
            raise NotRun("nginx is not installed")
        super().__init__(directory, "nginx")
        self.port = harness.free_port()
        config = self.dir / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        server = TLS_SERVER if certificate else STATIC_SERVER if root else CACHE_SERVER
        server = server.format(port=self.port, root=root, dir=self.dir, origin=origin, certificate=certificate)
        config.write_text(CONFIG.format(dir=self.dir, user=user, servers=server))
        argv = [*peers.IN_ORDER, nginx, "-p", self.dir, "-c", config]
        if alike:
            with contextlib.ExitStack() as stack:
                ready = [stack.enter_context(listener(self.port, OUR_CONGESTION)).fileno() for _ in range(workers())]
                self.spawn(argv, env={"NGINX": "".join(f"{one};" for one in ready)}, pass_fds=ready)
        else:
            self.spawn(argv)
        try:
            harness.wait_until(self._answers, 20, "nginx answers")
        except BaseException:
            self.stop()
            raise

    def _answers(self):
        if not self.running():
            raise RuntimeError(f"nginx ended:\n{self.log_tail(8)}")
        connection = http.client.HTTPConnection(self.address, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        return False

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"


def sample(lab, pids, address, targets, connections, requests, sealed=None, piece_kib=None):
    with Usage(pids) as usage:
        said = lab.get(address, targets, connections, requests, sealed, piece_kib=piece_kib)
    return {"rate": said["bytes"] / said["seconds"], "memory_bytes": usage.memory_bytes,
            "cpu_s_per_gb": usage.cpu_s / (said["bytes"] / 1e9), "cpu_s_per_100k": usage.cpu_s / (said["requests"] / 1e5),
            "requests_per_s": said["requests"] / said["seconds"], "cipher": said.get("cipher")}


def plain_objects(lab, size, objects):
    """Files on the disk, and the same as objects of a bucket at the origin: their directory, names and bucket."""
    plain = lab.path("objects")
    keys = [f"object-{i:03d}" for i in range(objects)]
    for key in keys:
        lab_module.write_random(plain / key, size, key)
    return plain, keys, lab.upload({key: plain / key for key in keys})


def port_of(address):
    return int(address.rsplit(":", 1)[1])


def both_ways(sides, left_out):
    """What versitygw and MinIO are told before each of their samples, {name: congestion control}, where ours is not that of the
    machine: they are there twice then, with that of the machine and with ours. Who cannot be told is there with that of the machine."""
    controls = {}
    for name in [name for name in (DIRECT, peers.MINIO) if name in sides and congestion() != OUR_CONGESTION]:
        alike, (address, _targets, pid) = ALIKE.format(name), sides[name]
        with skipping(alike, left_out):
            tell_listener(pid, port_of(address), congestion())
            sides[alike] = sides[name]
            controls |= {name: congestion(), alike: OUR_CONGESTION}
    return controls


def peer_sides(lab, stack, plain, keys, bucket, left_out):
    """{name: (address, targets, process)} of those that serve the same objects; MinIO has a copy of its own. It and nginx may be left
    out."""
    presigned, origin_address = lab.targets(lab.origin.s3(signature_version="s3v4"), bucket, keys)
    sides = {}
    with skipping(CACHE, left_out):
        cache = stack.enter_context(Nginx(lab.path("proxy"), origin=lab.origin.endpoint.split("//")[1], alike=True))
        sides[CACHE] = cache.address, presigned, cache.pid
    sides[DIRECT] = origin_address, presigned, lab.origin.pid
    with skipping(peers.MINIO, left_out):
        minio = stack.enter_context(peers.Minio(lab))
        theirs = lab.upload({key: plain / key for key in keys}, origin=minio)
        presigned, address = lab.targets(minio.s3(signature_version="s3v4"), theirs, keys)
        sides[peers.MINIO] = address, presigned, minio.pid
    return sides


def nginx_sides(lab, stack, plain, keys):
    """{name: (address, targets, process)} of nginx over the plain files, also with our congestion control where that is not the machine's."""
    sides = {}
    for name in [STATIC] + ([STATIC_ALIKE] if congestion() != OUR_CONGESTION else []):
        static = stack.enter_context(Nginx(lab.path("nginx"), root=plain, alike=name == STATIC_ALIKE))
        sides[name] = static.address, ["/" + key for key in keys], static.pid
    return sides


def ways_of(lab, sides, controls, size, connections, requests):
    """{name: function that takes a sample}; of the largest objects beside nginx also in larger pieces."""
    def taking(name, **how):
        where, targets, pid = sides[name]

        def once():
            if name in controls:
                tell_listener(pid, port_of(where), controls[name])
            return sample(lab, lambda: peers.tree([pid]), where, targets, connections, requests, **how)

        return once

    ways = {name: taking(name) for name in sides}
    if STATIC in sides and size >= PIECES_BYTES:
        ways |= {OURS_PIECES: taking(OURS, piece_kib=PIECES_KIB), STATIC_PIECES: taking(alike_of(sides), piece_kib=PIECES_KIB)}
    return ways


def alike_of(sides):
    """The nginx that has our congestion control."""
    return STATIC_ALIKE if STATIC_ALIKE in sides else STATIC


def take_load(lab, which, with_peers, left_out, size_title, size, objects, requests, connections):
    """These rounds of one load, of objects written anew: `rounds`."""
    plain, keys, bucket = plain_objects(lab, size, objects)
    controls = {}
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(lab.node(bucket))
        signed, address = lab.targets(node.s3(signature_version="s3v4"), bucket, keys)
        sides = {OURS: (address, signed, node.pid)}
        if with_peers:
            sides |= peer_sides(lab, stack, plain, keys, bucket, left_out)
            controls = both_ways(sides, left_out)
        else:
            sides |= nginx_sides(lab, stack, plain, keys)
            if size <= UNSIGNED_BYTES: # where a signature weighs: the same without it, which is what nginx is asked for
                node.cli("bucket", "set", bucket, "anonymous=read")
                sides[UNSIGNED] = address, [target.split("?")[0] for target in signed], node.pid
        for name, (where, targets, _pid) in list(sides.items()):
            with skipping(name, left_out) if with_peers else contextlib.nullcontext():
                for _ in range(2):
                    lab.get(where, targets, min(connections, objects), compare=plain)
        ways = {name: way for name, way in ways_of(lab, sides, controls, size, connections, requests).items() if name not in left_out}
        say(f"warm S3 GET of {size_title}, {connections} connections, {len(which)} of {lab.pairs} rounds of {len(ways)} systems")
        return rounds(lab, ways, left_out if with_peers else None, which=which)


def one_load(lab, with_peers, size_title, size, objects, requests, connections, goal):
    """The rows of one load. Beside the peers its objects are written anew before every third round: to start all of them takes as long as three."""
    if lab.quick:
        objects, requests = max(8, objects // QUICK_SHARE), requests // QUICK_SHARE
    title, left_out, all_taken = f"Warm S3 GET of {size_title} objects, {connections} connections", {}, Taken()
    for which in layouts(lab, PEER_ROUNDS if with_peers else 1):
        all_taken.add(title, *take_load(lab, which, with_peers, left_out, size_title, size, objects, requests, connections))
    (_, (taken, share)), = all_taken.items(left_out)
    unsigned, pieces = taken.pop(UNSIGNED, None), {name: taken.pop(name) for name in (OURS_PIECES, STATIC_PIECES) if name in taken}
    rows = rows_against(taken, share, title, "MB/s", 1e-6) + rows_left_out(left_out, title)
    for row in rows:
        if row["peer"] in (STATIC, STATIC_ALIKE):
            row["goal"], row["met"] = f"at least {goal:g}", row["ratio"]["median"] >= goal
    if unsigned:
        for row in rows_against({UNSIGNED: unsigned, STATIC: taken[STATIC]}, share, title, "MB/s", 1e-6, ours=UNSIGNED):
            rows.append({**row, "title": row["title"] + ", neither signed", "goal": "-", "met": None})
    if pieces:
        for row in rows_against({OURS: pieces[OURS_PIECES], alike_of(taken): pieces[STATIC_PIECES]}, share, title, "MB/s", 1e-6):
            rows.append({**row, "title": f"{row['title']}, taken by {PIECES_KIB} KiB at a time", "goal": "-", "met": None})
    return rows


def s3(lab):
    """Warm GETs by presigned URLs: signed requests to the node, verified each time, beside the same files from nginx with sendfile
    without signatures; of small objects also unsigned ones, out of a bucket that anybody may read. All in the page cache, and written anew on
    both sides before each round. The client takes 64 KiB at a time out of a socket; of the largest objects also 256. Where the machine's congestion control is another than the one which the node chooses on the loopback, nginx is measured with both."""
    return [row for load in (LOADS[:4] if lab.quick else LOADS) for row in one_load(lab, False, *load)]


def peers_s3(lab):
    """The same beside nginx with proxy_cache in front of the origin, its connections with the same congestion control as the node's, the
    origin's own server, and MinIO with one drive on the same disk and a copy of its own. These two have the machine's congestion
    control; where that is not ours, they are measured with ours, too, which their listeners are told before."""
    return [row for i in PEER_LOADS for row in one_load(lab, True, *LOADS[i])]


# ---- TLS ----

def certificate(directory):
    """A self-signed certificate for the loopback, and its key."""
    directory.mkdir()
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                           "/CN=forebay bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", directory / "key.pem", "-out",
                           directory / "cert.pem"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        raise NotRun(f"openssl makes no certificate: {made.stdout.strip().splitlines()[-1]}")
    return directory / "cert.pem", directory / "key.pem"


def gcm_bytes_per_s(suite):
    """What one core encrypts by the AES-GCM of a cipher suite of TLS 1.3, at the size of a record, as `openssl speed` says."""
    name = re.match(r"TLS_AES_(128|256)_GCM_", suite)
    if not name:
        raise NotRun(f"the connections speak {suite}, which has no AES-GCM")
    said = subprocess.run(["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(TLS_RECORD_BYTES), "-evp", f"aes-{name[1]}-gcm"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = re.search(r"^\+F:\d+:AES-\d+-GCM:([\d.]+)", said, re.M)
    if not found:
        raise NotRun("openssl speed does not say how fast AES-GCM is")
    return float(found.group(1))


def possible(plain, cipher, times=1):
    """Rate over TLS where all bytes went `times` through the cipher, at `cipher` bytes/s on all cores, and nothing else were added to what is
    done without TLS, on the same cores."""
    return 1 / (1 / plain + times / cipher)


def tls_sides(lab, plain_dir, keys, bucket, node, secure, static):
    """{name: what takes one sample}; both servers over TLS, each with a client that leaves the bytes sealed and with one that decrypts."""
    sides = {STATIC_TLS: ("https://" + static.address, ["/" + name for name in keys], static.pid)}
    for name, one in (("plain", node), (OURS, secure)):
        targets, address = lab.targets(one.s3(signature_version="s3v4"), bucket, keys)
        sides[name] = address, targets, one.pid
    for address, targets, _pid in sides.values():
        for _ in range(2):
            lab.get(address, targets, 8, compare=plain_dir)
    requests = TLS_QUICK_REQUESTS if lab.quick else TLS_REQUESTS

    def taking(name, sealed=None):
        address, targets, pid = sides[name]
        return lambda: sample(lab, lambda: peers.tree([pid]), address, targets, 16, requests, sealed)

    return {"plain": taking("plain"), OURS: taking(OURS, plain_dir), STATIC_TLS: taking(STATIC_TLS, plain_dir),
            OURS_OPENED: taking(OURS), STATIC_OPENED: taking(STATIC_TLS)}


def tls(lab):
    """Warm GETs of 10 MiB over 16 connections of TLS, against the lower of two rates: the same without TLS, and the connections' AES-GCM by
    `openssl speed` at the size of a record times the number of cores. Server and client share the cores. So that the server's part of
    TLS is measured and not the client's, the client receives as it does without TLS and leaves what it received sealed, except for one
    connection of the 16, which decrypts, and one record in 64 of the others; what is decrypted is compared with the files. The rate of a
    client that decrypts everything on the same cores stands beside it, and so does nginx over TLS, its connections with the same congestion
    control as the node's, with both clients."""
    plain_dir, keys, bucket = plain_objects(lab, TLS_BYTES, TLS_QUICK_OBJECTS if lab.quick else TLS_OBJECTS)
    cert, key = certificate(lab.path("certificate"))
    with lab.node(bucket) as node, lab.node(bucket, tls_cert=cert, tls_key=key) as secure, \
            Nginx(lab.path("nginx"), root=plain_dir, certificate=(cert, key), alike=True) as static:
        sides = tls_sides(lab, plain_dir, keys, bucket, node, secure, static)
        suite = sides[OURS]()["cipher"]
        cipher = gcm_bytes_per_s(suite) * os.cpu_count()
        say(f"TLS, {lab.pairs} rounds; {suite} on all cores {cipher / 1e6:.0f} MB/s")
        taken, share = rounds(lab, sides)
        kernel = re.search(r"kernel TLS: ([^;\n]*)", secure.log())
    plain_rate = statistics.median(one["rate"] for one in taken["plain"])
    notes = [f"plain {plain_rate / 1e6:.0f} MB/s, {suite} x cores {cipher / 1e6:.0f} MB/s; with both on the same cores, and nothing else, at most "
             f"{possible(plain_rate, cipher) / 1e6:.0f} MB/s; kernel TLS: {kernel.group(1) if kernel else 'unknown'}",
             f"with the client's half of the ciphers at most {possible(plain_rate, cipher, times=2) / 1e6:.0f} MB/s"]
    return tls_rows(taken, share, cipher, notes)


def tls_rows(taken, share, cipher, notes):
    """The goal's row, of the client that leaves the bytes sealed; the same of the one that decrypts, without a goal; nginx beside both."""
    rows = []
    title = "warm S3 GET of 10 MiB objects over TLS"
    for note, name, what in ((notes[0], OURS, f"{title}, of the lower of plain and AES-GCM x cores"),
                             (notes[1], OURS_OPENED, f"TLS: {title}, decrypted by the client on the same cores, of the lower of plain and AES-GCM x cores")):
        row = pair_row(what[0].upper() + what[1:], 0.7, [(ours["rate"], min(plain["rate"], cipher))
                                                         for ours, plain in zip(taken[name], taken["plain"])], share, "MB/s", 1e-6)
        rows.append({**row, "note": note, "ours_cost": costs(taken[name]), "reference_cost": costs(taken["plain"])})
    rows[1] |= {"goal": "-", "met": None}
    beside = rows_against({OURS: taken[OURS], STATIC_TLS: taken[STATIC_TLS]}, share, "TLS: warm GET of 10 MiB objects, 16 connections", "MB/s", 1e-6)
    opened = rows_against({OURS: taken[OURS_OPENED], STATIC_TLS: taken[STATIC_OPENED]}, share,
                          "TLS: warm GET of 10 MiB objects, 16 connections, decrypted by the client", "MB/s", 1e-6)
    return [rows[0], *beside, rows[1], *opened]


# ---- small values ----

def values(lab):
    """Gets of values of 1 KiB out of a bucket with values=memory, as an inference server looks predictions up: signed, 16 kept connections; beside
    nginx with sendfile without signatures."""
    count, requests = (100, 5_000) if lab.quick else (VALUES, VALUE_GETS)
    plain = lab.path("values")
    keys = [f"value-{i:05d}" for i in range(count)]
    with lab.node() as node, Nginx(lab.path("nginx"), root=plain) as static:
        made = node.cli("bucket", "create", "values", "values=memory", check=False)
        if made.returncode != 0:
            raise NotRun(made.stderr.strip())
        client = node.s3(signature_version="s3v4")
        for key in keys:
            lab_module.write_random(plain / key, VALUE_BYTES, key)
            client.put_object(Bucket="values", Key=key, Body=(plain / key).read_bytes())
        signed, address = lab.targets(client, "values", keys)
        sides = {OURS: (address, signed, node.pid), STATIC: (static.address, ["/" + key for key in keys], static.pid)}
        for where, targets, _pid in sides.values():
            lab.get(where, targets, 16, compare=plain)
        say(f"values of 1 KiB, {lab.pairs} rounds")
        taken, share = rounds(lab, {
            name: lambda w=where, t=targets, p=pid: sample(lab, lambda: peers.tree([p]), w, t, 16, requests)
            for name, (where, targets, pid) in sides.items()})
    ours, other = (spread([one["requests_per_s"] for one in taken[name]]) for name in (OURS, STATIC))
    return [value_row("Gets of 1 KiB values from a bucket with values=memory, 16 connections", f"at least {VALUE_GOAL:,}/s",
                      f"{ours['median']:,.0f}/s ({ours['min']:,.0f} to {ours['max']:,.0f})", ours["median"] >= VALUE_GOAL, share,
                      detail=f"nginx with sendfile, unsigned: {other['median']:,.0f}/s; CPU s per 100,000 requests "
                             f"{costs(taken[OURS])['cpu_s_per_100k']:.2f} against {costs(taken[STATIC])['cpu_s_per_100k']:.2f}", spread=ours)]


# ---- listings ----

def make_names(directory, count):
    """Empty files in one directory, by several threads."""
    def some(first):
        for i in range(first, count, LIST_THREADS):
            os.close(os.open(directory / f"object-{i:07d}", os.O_CREAT | os.O_WRONLY | os.O_EXCL))

    threads = [threading.Thread(target=some, args=(i,)) for i in range(LIST_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def list_all(client, bucket, prefix):
    """Seconds and number of objects of a full listing by pages of 1,000, over one connection, each request signed; the pages are only
    searched for keys and for what continues them, so that it is the server that is measured."""
    address = client.meta.endpoint_url.split("//")[1]
    connection, token, found, start = http.client.HTTPConnection(address), None, 0, time.monotonic()
    with contextlib.closing(connection):
        while True:
            parameters = {"Bucket": bucket, "Prefix": prefix, **({"ContinuationToken": token} if token else {})}
            url = client.generate_presigned_url("list_objects_v2", Params=parameters)
            connection.request("GET", url.split(address, 1)[1])
            reply = connection.getresponse()
            page = reply.read()
            if reply.status != 200:
                raise RuntimeError(f"listing: {reply.status}")
            found += page.count(b"<Key>")
            more = re.search(rb"<NextContinuationToken>([^<]*)<", page)
            if not more:
                return time.monotonic() - start, found
            token = more.group(1).decode()


def listing(lab):
    """A full listing by S3 of one prefix of a scratch bucket with a million objects (made as empty files through the mount), in turn,
    and the node's memory meanwhile."""
    count = QUICK_LIST_OBJECTS if lab.quick else LIST_OBJECTS
    with lab.node() as node:
        if node.cli("bucket", "create", "listed", check=False).returncode != 0:
            raise NotRun("no bucket without origin can be made")
        with lab.mount(node, "listed") as mount:
            (mount.dir / "all").mkdir()
            say(f"making {count} names")
            make_names(mount.dir / "all", count)
        client = node.s3(signature_version="s3v4")
        before, times = MemoryWatch.resident(node.pid), []
        with stolen() as share, MemoryWatch([node.pid]) as watch:
            for _ in range(lab.pairs):
                seconds, found = list_all(client, "listed", "all/object-")
                if found != count:
                    raise RuntimeError(f"{found} of {count} objects were listed")
                times.append(seconds)
    taken, growth = spread(times), watch.peak_bytes - before
    return [value_row(f"Full S3 listing of {count:,} objects in one prefix", f"under {LIST_SECONDS} s", f"{taken['median']:.1f} s",
                      taken["median"] < LIST_SECONDS, share[0], detail=f"{taken['min']:.1f} to {taken['max']:.1f} s, {len(times)} listings", spread=taken),
            value_row(f"Memory of the node more than before, while it lists {count:,} objects", f"flat: at most {LIST_GROWTH_BYTES // MIB} MiB",
                      f"{growth / MIB:.1f} MiB at most", growth <= LIST_GROWTH_BYTES, share[0], detail=f"before {before / MIB:.1f} MiB")]


MEASURES = {"s3": s3, "peers_s3": peers_s3, "tls": tls, "values": values, "listing": listing}
