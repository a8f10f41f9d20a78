"""The systems that are measured side by side, each started as its own documentation advises for reading large data.

A Peer says whether it is there, its version, and the command that starts it. `volume` makes what lives as long as the data set
(a metadata store, a copy of the data where a system cannot read objects in place); `Volume.run` mounts it once with an empty
cache, and gives a Running with its directory and its processes. Everything ends with its block, and nothing stays mounted.

All read the same objects through the same URL, that of bench/shaper, and all mounts are asked to have the same read_ahead_kb; each tells
what it has then.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

from botocore.exceptions import BotoCoreError, ClientError

from lab import MOUNT_SECONDS, ROOT, harness, say
from usage import tmpfs

DISK, TMPFS, MINIO = "the disk", "tmpfs", "MinIO"
READ_AHEAD_KB = 1024  # what Forebay's own mount asks for; given to all
OWN_BINS = [ROOT / ".deps/venv/bin", ROOT / ".deps/bin"]
IN_ORDER = ["setpriv", "--pdeathsig", "TERM", "--"]  # what has children or a mount ends in order when this process is killed
# What its documentation advises; the file is CONFIG in front.py.
NGINX_TUNING = ("worker_processes auto; listen with reuseport; sendfile on; tcp_nopush on; open_file_cache; keepalive_requests 1000000000; "
                "access_log off; as a cache: proxy_cache with use_temp_path=off, proxy_cache_key by the path, proxy_cache_lock on, "
                "proxy_http_version 1.1 with keepalive 64 to the origin, tcp_nopush off, which delays small answers")
MISSING = {
    # 2026-11-28: the crate mountpoint-s3-fs 0.11.0 has no program but examples; mount_from_config mounts what a manifest lists, to be read only
    "mountpoint-s3": "its program is not in the package registries that can be reached, nor in Debian: the crates mountpoint-s3 and mount-s3 are "
                     "placeholders; its library, the crate mountpoint-s3-fs, has no program but examples, and was not tried",
    "goofys": "its module cannot be fetched, and Debian has none",
    "geesefs": "its module cannot be fetched, and Debian has none",
    "AIStore": "its module cannot be fetched",
}


def program(name):
    """Path of a program: of the venv, built by the scripts, of Debian, or None."""
    own = next((folder / name for folder in OWN_BINS if (folder / name).exists()), None)
    return str(own) if own else shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")


def first_line(*argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown"


def is_mounted(path):
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        return any(line.split()[4] == str(path) for line in lines)


def read_ahead_setting(path):
    """The file that says how far the kernel reads ahead; it is missing where a file system has no device of its own."""
    device = os.stat(path).st_dev
    return pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")


def raise_read_ahead(path):
    """The same for every mount, where we may say so. Gives what it is then; None: nobody says."""
    setting = read_ahead_setting(path)
    with contextlib.suppress(OSError):
        setting.write_text(str(READ_AHEAD_KB))
    with contextlib.suppress(OSError):
        return int(setting.read_text())
    return None


@dataclasses.dataclass
class Running:
    dir: pathlib.Path
    processes: list  # roots of the process trees that belong to it
    node: object = None
    settle: Callable = lambda: None  # waits until nothing is on its way to the origin
    read_ahead_kb: int | None = None  # of its mount, as the kernel says; None: nobody says

    def pids(self):
        return tree(self.processes)


def tree(roots):
    """These processes and all that descend from them."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{entry.name}/stat", encoding="utf-8",
                                                                            errors="replace") as stat:
                parents[int(entry.name)] = int(stat.read().rsplit(")", 1)[1].split()[1])
    found = [pid for pid in roots if pid in parents]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


class FuseProgram(harness.Program):
    """A program in the foreground that mounts a directory, until the block ends."""

    def __init__(self, directory, name, argv, env=None, what=None):
        super().__init__(directory, name)
        self.mount_dir = self.dir / "mnt"
        self.mount_dir.mkdir()
        self.spawn(IN_ORDER + [str(self.mount_dir) if a == "MOUNT" else a for a in argv], env=env)
        try:
            harness.wait_until(self._up, MOUNT_SECONDS, what or f"mount of {name}")
        except BaseException:
            self.stop()
            raise
        self.read_ahead_kb = raise_read_ahead(self.mount_dir)

    def _up(self):
        if not self.running():
            said = self.log_tail(8)
            raise RuntimeError(f"{self.name} ended: {(said.strip() or 'it says nothing').splitlines()[-1]}\n{said}")
        return is_mounted(self.mount_dir)

    def stop(self):
        for flags in ([], ["-z"]):
            if is_mounted(self.mount_dir):
                subprocess.run(["fusermount3", "-u", *flags, str(self.mount_dir)], stderr=subprocess.DEVNULL, check=False)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            if self.process.poll() is None:
                self.process.kill()
            self._finish()


class Peer:
    name = ""
    tuning = ""     # how it is started, for the page
    random_share = 1  # of the random reads of a measurement: fewer where each asks the origin
    in_place = True  # reads existing objects of the origin; others need a copy
    late = False     # what was closed is carried to the origin afterwards
    unlimited = None  # why its cache cannot be given a size, or None
    programs = ()

    def missing(self):
        """Why it cannot be run here, or None."""
        absent = [p for p in self.programs if not program(p)]
        return f"{', '.join(absent)} not installed" if absent else None

    def version(self):
        return "unknown"

    @contextlib.contextmanager
    def volume(self, lab, bucket, endpoint, sources):
        """sources: {name: path} of the objects of the bucket, for systems that need a copy. Gives a function that makes a context of a
        Running; `cache_bytes` limits its cache."""
        yield lambda **limits: self.run(lab, bucket, endpoint, **limits)

    def run(self, lab, bucket, endpoint, cache_bytes=None):
        raise NotImplementedError


class Forebay(Peer):
    name = "forebay"
    tuning = "forebay serve, forebay mount; no options; bucket with validate=ttl:1h, as long as the caches of the others"

    def version(self):
        return first_line(str(harness.forebay_bin()), "--version")

    @contextlib.contextmanager
    def run(self, lab, bucket, endpoint, cache_bytes=None):
        cache = lab.path("cache")
        limits = {"disk": f"{cache}:{cache_bytes}"} if cache_bytes else {}
        try:
            with lab.node(bucket, endpoint=endpoint, **limits) as node, lab.mount(node, bucket) as mount:
                yield Running(mount.dir, [node.pid, mount.pid], node, read_ahead_kb=raise_read_ahead(mount.dir))
        finally:
            if cache.exists():
                harness.tree_remove(cache)


class ForebayBack(Peer):
    """Ours as the systems are that carry to the origin afterwards, with a bucket of its own: what is still on its way when others write
    there would be a conflict."""
    name = "forebay, write=back"
    late = True

    @contextlib.contextmanager
    def run(self, lab, bucket, endpoint, cache_bytes=None):
        bucket = lab.origin.new_bucket()
        with lab.node(bucket, endpoint=endpoint) as node:
            node.cli("bucket", "set", bucket, "write=back")
            with lab.mount(node, bucket) as mount:
                yield Running(mount.dir, [node.pid, mount.pid], node, lambda: node.cli("flush", bucket, "--wait", timeout=600),
                              raise_read_ahead(mount.dir))


class Local(Peer):
    """A copy in a directory of this machine, with no system between: what the others can be compared with."""
    in_place = False

    def __init__(self, name, place):
        self.name, self.place = name, place

    @contextlib.contextmanager
    def volume(self, lab, bucket, endpoint, sources):
        directory = self.place(lab)
        if directory is None:
            raise RuntimeError("no room for a copy")
        directory.mkdir(parents=True)
        try:
            for name, path in sources.items():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, directory / name)
            os.sync()  # its writing back shall not be measured
            yield lambda **_: contextlib.nullcontext(Running(directory, []))
        finally:
            harness.tree_remove(directory)


class S3fs(Peer):
    name = "s3fs"
    options = "parallel_count=20,multipart_size=16,multireq_max=50,max_stat_cache_size=200000,stat_cache_expire=3600,enable_noobj_cache"
    tuning = f"s3fs -o use_cache=DIR,{options}"
    unlimited = "its cache has no size, only what it leaves free on a disk that others use, too (ensure_diskfree)"
    programs = ("s3fs",)

    def version(self):
        return first_line(program("s3fs"), "--version")

    @contextlib.contextmanager
    def run(self, lab, bucket, endpoint, cache_bytes=None):
        directory = lab.path("s3fs")
        (directory / "cache").mkdir(parents=True)
        secret = directory / "passwd"
        secret.touch(mode=0o600)
        secret.write_text(f"{lab.origin.access_key}:{lab.origin.secret_key}\n")
        options = (f"url={endpoint},use_path_request_style,passwd_file={secret},use_cache={directory / 'cache'},{self.options},sigv4,"
                   f"endpoint={harness.REGION}")
        try:
            with FuseProgram(directory, "s3fs", [program("s3fs"), bucket, "MOUNT", "-f", "-o", options]) as mount:
                yield Running(mount.mount_dir, [mount.pid], read_ahead_kb=mount.read_ahead_kb)
        finally:
            harness.tree_remove(directory)


def mounting_rclone():
    """An rclone that has `mount`, which not every build has, or None."""
    found = [program("rclone"), shutil.which("rclone")]
    return next((one for one in found if one and subprocess.run([one, "mount", "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                                stdin=subprocess.DEVNULL).returncode == 0), None)


class Rclone(Peer):
    def __init__(self, mode):
        self.mode = mode
        self.name = f"rclone {mode}"
        self.random_share = 1 / 64 if mode == "off" else 1
        self.late = mode == "full"
        self.unlimited = "it has no cache" if mode == "off" else None
        self.flags = ["--vfs-cache-mode", mode, "--dir-cache-time", "1h", "--attr-timeout", "1h", "--no-modtime", "--no-checksum",
                      "--buffer-size", "32M", "--max-read-ahead", "4M", "--transfers", "16"]
        if mode == "off":  # reads that the kernel sends at the same time arrive out of order, and each would cost a new request
            self.flags += ["--async-read=false"]
        if mode == "full":
            self.flags += ["--vfs-read-ahead", "128M", "--vfs-cache-max-age", "24h"]
        self.tuning = "rclone mount " + " ".join(self.flags)

    def missing(self):
        return None if mounting_rclone() else "no rclone with `mount` is installed"

    def version(self):
        return first_line(mounting_rclone(), "version")

    @contextlib.contextmanager
    def run(self, lab, bucket, endpoint, cache_bytes=None):
        directory = lab.path("rclone")
        directory.mkdir()
        env = {"RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_O_TYPE": "s3", "RCLONE_CONFIG_O_PROVIDER": "Other",
               "RCLONE_CONFIG_O_ENDPOINT": endpoint, "RCLONE_CONFIG_O_ACCESS_KEY_ID": lab.origin.access_key,
               "RCLONE_CONFIG_O_SECRET_ACCESS_KEY": lab.origin.secret_key, "RCLONE_CONFIG_O_REGION": harness.REGION}
        # without the variable of a certificate bundle, which its transport does not know
        limits = ["--vfs-cache-max-size", f"{cache_bytes}B", "--vfs-cache-poll-interval", "1s"] if cache_bytes else []  # by default each minute
        argv = ["env", "-u", "AWS_CA_BUNDLE", mounting_rclone(), "mount", f"o:{bucket}", "MOUNT", *self.flags, *limits, "--cache-dir",
                str(directory / "cache")]
        try:
            with FuseProgram(directory, "rclone", argv, env=env) as mount:
                yield Running(mount.mount_dir, [mount.pid], read_ahead_kb=mount.read_ahead_kb)
        finally:
            harness.tree_remove(directory)


class Juicefs(Peer):
    name = "JuiceFS"
    flags = ["--cache-size", "20480", "--buffer-size", "1024", "--max-readahead", "128", "--open-cache", "3600", "--attr-cache", "3600",
             "--entry-cache", "3600"]
    tuning = "juicefs format --storage s3 --trash-days 0; redis-server; juicefs mount --cache-dir DIR " + " ".join(flags)
    in_place = False
    programs = ("juicefs", "redis-server")

    def version(self):
        return first_line(program("juicefs"), "version")

    @contextlib.contextmanager
    def volume(self, lab, bucket, endpoint, sources):
        directory = lab.path("juicefs")
        directory.mkdir()
        port = harness.free_port()
        redis = harness.Program(directory / "redis", "redis")
        try:
            redis.spawn([program("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                         "--dir", directory / "redis"], ready="Ready to accept|ready to accept")
            meta = f"redis://127.0.0.1:{port}/1"
            own = lab.origin.new_bucket()
            done = subprocess.run([program("juicefs"), "format", "--storage", "s3", "--bucket", f"{endpoint}/{own}", "--access-key",
                                   lab.origin.access_key, "--secret-key", lab.origin.secret_key, "--trash-days", "0", meta, "bench"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"juicefs format: {done.stdout.strip().splitlines()[-1:]}")
            with self._mounted(lab, meta, redis) as running:
                for name, path in sources.items():
                    (running.dir / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, running.dir / name)
            yield lambda **limits: self._mounted(lab, meta, redis, **limits)
        finally:
            if redis.process is not None:
                redis.kill()
            harness.tree_remove(directory)

    @contextlib.contextmanager
    def _mounted(self, lab, meta, redis, cache_bytes=None):
        directory = lab.path("juicefs-mount")
        limits = ["--cache-size", str(cache_bytes >> 20)] if cache_bytes else []  # the last of the same name counts
        argv = [program("juicefs"), "mount", "--no-usage-report", "--no-syslog", "--cache-dir", str(directory / "cache"), *self.flags, *limits, meta,
                "MOUNT"]
        try:
            with FuseProgram(directory, "juicefs", argv) as mount:
                yield Running(mount.mount_dir, [mount.pid, redis.pid], read_ahead_kb=mount.read_ahead_kb)
        finally:
            harness.tree_remove(directory)


class Seaweed(Peer):
    name = "SeaweedFS"
    flags = ["-cacheCapacityMB=20480", "-concurrentReaders=32"]
    tuning = f"weed server -filer; weed mount {' '.join(flags)}; the data is its own copy, not the origin's"
    in_place = False
    unlimited = "the data is its own copy, not the origin's"
    programs = ("weed",)

    def version(self):
        return first_line(program("weed"), "version")

    @contextlib.contextmanager
    def volume(self, lab, bucket, endpoint, sources):
        directory = lab.path("weed")
        (directory / "data").mkdir(parents=True)
        ports = {name: harness.free_port() for name in ("master", "volume", "filer", "mg", "vg", "fg")}
        server = harness.Program(directory / "server", "weed")
        try:
            server.spawn([program("weed"), "-logtostderr=true", "server", f"-dir={directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                          f"-master.port={ports['master']}", f"-master.port.grpc={ports['mg']}", f"-volume.port={ports['volume']}",
                          f"-volume.port.grpc={ports['vg']}", "-filer", f"-filer.port={ports['filer']}", f"-filer.port.grpc={ports['fg']}",
                          "-volume.max=64", "-master.volumeSizeLimitMB=1024"])
            filer = f"127.0.0.1:{ports['filer']}.{ports['fg']}"
            with self._mounted(lab, filer, server) as running:
                for name, path in sources.items():
                    (running.dir / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, running.dir / name)
            yield lambda **_: self._mounted(lab, filer, server)
        finally:
            server.kill()
            harness.tree_remove(directory)

    @contextlib.contextmanager
    def _mounted(self, lab, filer, server):
        directory = lab.path("weed-mount")
        argv = [program("weed"), "-logtostderr=true", "mount", f"-filer={filer}", "-dir=MOUNT", f"-cacheDir={directory / 'cache'}",
                *self.flags, "-dirAutoCreate"]
        directory.mkdir()
        (directory / "cache").mkdir()
        argv = [a.replace("MOUNT", str(directory / "mnt")) if a.startswith("-dir=") else a for a in argv]
        try:
            with FuseProgram(directory, "weed", argv) as mount:
                yield Running(mount.mount_dir, [mount.pid, server.pid], read_ahead_kb=mount.read_ahead_kb)
        finally:
            harness.tree_remove(directory)


class Minio(harness.Program):
    """MinIO over a directory of the lab's disk: one server with one drive, whose data is gone with the block."""
    access_key, secret_key = "peer-access-key", "peer-secret-key"
    settings = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}  # asks nobody whether there is a newer one
    tuning = ("minio server DIR, one drive on the same disk; " + " ".join(f"{name}={value}" for name, value in settings.items()) + "; what its "
              "guide to tuning sets besides are sysctls, which all systems of the machine share")

    @staticmethod
    def missing():
        """Why it cannot be run here, or None."""
        return None if program("minio") else "not built (scripts/bench-peers build minio)"

    def __init__(self, lab):
        if self.missing():
            raise RuntimeError(self.missing())
        super().__init__(lab.path("minio"), "minio")
        self.port = None
        try:
            harness.start_on_free_port(self, self._spawn)
        except BaseException:
            self.stop()
            raise

    def _spawn(self, port):
        env = {**self.settings, "MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key, "HOME": str(self.dir)}
        self.spawn([*IN_ORDER, program("minio"), "server", "--quiet", "--address", f"127.0.0.1:{port}", self.dir / "data"], env=env)

    def _answers(self):
        if not self.running():
            raise harness.Ended(f"MinIO ended:\n{self.log_tail(8)}")
        with contextlib.suppress(BotoCoreError, ClientError):  # its health page says that it is ready before it takes requests
            self.s3().list_buckets()
            return True
        return False

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def s3(self, **config):
        return harness.s3_client(self.endpoint, self.access_key, self.secret_key, **config)

    def new_bucket(self, name=None):
        name = name or harness.random_name()
        self.s3().create_bucket(Bucket=name)
        return name

    def stop(self):
        self.kill()
        harness.tree_remove(self.dir)


FOREBAY, FOREBAY_BACK = Forebay(), ForebayBack()
LOCAL = [Local(DISK, lambda lab: lab.path("disk")), Local(TMPFS, tmpfs)]
MOUNTS = [S3fs(), Rclone("off"), Rclone("full"), Juicefs(), Seaweed()]


def before_origin(found):
    """Of these, those whose data is at the origin: SeaweedFS keeps its copy itself."""
    return [peer for peer in found if peer.name != Seaweed.name]


def present(left_out):
    """Peers that can be run here; says which cannot, and puts them into `left_out` with the reason."""
    there = []
    for peer in MOUNTS:
        reason = peer.missing()
        if reason:
            left_out[peer.name] = reason
            say(f"{peer.name}: not run ({reason})")
        else:
            there.append(peer)
    return there


def describe():
    """Rows for the page: every system, with version and configuration, or why it is not there."""
    rows = [{"name": p.name, "version": None if p.missing() else p.version(), "missing": p.missing(), "tuning": p.tuning}
            for p in [FOREBAY, *MOUNTS]]
    nginx, s3 = program("nginx"), harness.versitygw_bin()
    rows.append({"name": "nginx", "version": first_line(nginx, "-v") if nginx else None, "missing": None if nginx else "not installed",
                 "tuning": NGINX_TUNING})
    rows.append({"name": "versitygw", "version": first_line(str(s3), "--version") if s3.exists() else None,
                 "missing": None if s3.exists() else "not built", "tuning": "posix, over a directory: the origin of all, and the reference for PUT"})
    absent = Minio.missing()
    rows.append({"name": MINIO, "version": None if absent else first_line(program("minio"), "--version"), "missing": absent,
                 "tuning": Minio.tuning})
    rows += [{"name": name, "version": None, "missing": reason, "tuning": ""} for name, reason in MISSING.items()]
    return rows


if __name__ == "__main__":
    for row in describe():
        print(f"{row['name']:15} {row['version'] or 'not run: ' + row['missing']}", file=sys.stdout)
