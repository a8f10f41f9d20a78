"""What the system tests are made of: an origin, a node, a proxy that slows and breaks, each a real process.

Everything a test starts lives in a directory of its own below a temporary one, listens on a free port of 127.0.0.1 and
is stopped by the object that started it. Processes also end when the test run dies (parent-death signal).

    with Origin(tmp / "origin") as origin, Node(tmp / "node") as node:
        bucket = node.new_bucket(origin)          # there and here, with the same name
        node.s3().put_object(Bucket=bucket, Key="k", Body=b"data")
        assert origin.s3().get_object(Bucket=bucket, Key="k")["Body"].read() == b"data"

Environment:
    FOREBAY_BIN            the program to test; default build-asan/forebay, then build/forebay
    FOREBAY_RELEASE_BIN    the same without sanitizers, for tests of memory; default build/forebay
    FOREBAY_SHAPER_BIN     bench/shaper; default beside the builds above
    FOREBAY_TEST_ROUTES    the routes that every test runs in, as "local,loop"; without it each test runs in one of them
    FOREBAY_TEST_KEEP      set: directories of the run are kept and printed
"""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import socket
import ssl
import string
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import boto3
import botocore.config

import wire

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
import free_port as ports  # noqa: E402 (shared with scripts/demo)

REGION = "us-east-1"
READY_SECONDS = 180
STOP_SECONDS = 180

# First in the shell of a mount namespace of its own: it has copies of the mounts of tests that run meanwhile, none of which ends while
# there is one.
LET_GO_OF_MOUNTS = "awk '$3 ~ /^fuse/ { print $2 }' /proc/self/mounts | xargs -r umount -l 2>/dev/null; "
PATIENCE = 50  # seconds for what takes a moment; below the minute for which a bucket believes its origin by itself
SANITIZER_REPORT = re.compile(r"(ERROR: \w+Sanitizer|runtime error:|WARNING: ThreadSanitizer|: Assertion `)")


# One for all clients: a session reads its description of S3 once, and that takes longer than most tests.
_session = boto3.session.Session()
_session_lock = threading.Lock()


def _find(variable, *candidates):
    """A program: what the environment names, else the first candidate that is there, else the first."""
    named = os.environ.get(variable)
    if named:
        return pathlib.Path(named)
    paths = [ROOT / c for c in candidates]
    return next((p for p in paths if p.exists()), paths[0])


def forebay_bin():
    return _find("FOREBAY_BIN", "build-asan/forebay", "build/forebay")


def forebay_release_bin():
    return _find("FOREBAY_RELEASE_BIN", "build/forebay")


def shaper_bin():
    return _find("FOREBAY_SHAPER_BIN", "build/bench/shaper", "build-asan/bench/shaper")


def versitygw_bin():
    return ROOT / ".deps/bin/versitygw"


_ports = None  # a file, of which each process of tests has those bytes locked whose numbers it has given as ports
_ports_given = set()


def _is_ours(port):
    """Whether no other process of tests has given the port, nor this one: who was given it may not listen there yet. Until this one ends."""
    global _ports
    if _ports is None:
        _ports = open(pathlib.Path(tempfile.gettempdir(), f"forebay-test-ports-{os.getuid()}"), "wb")
    if port in _ports_given:
        return False
    try:
        fcntl.lockf(_ports, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _ports_given.add(port)
    return True


def free_port():
    """A port nobody listens on now, and that the kernel gives to nobody by itself, nor this to another test: who wants it need not be
    quick."""
    return ports.free_port(_is_ours)


def random_name(prefix="b"):
    """A name that is legal for a bucket."""
    return prefix + "-" + "".join(random.choices(string.ascii_lowercase + string.digits, k=12))


def random_bytes(n, seed=None):
    """n bytes; the same ones for the same seed."""
    return random.Random(seed).randbytes(n) if seed is not None else os.urandom(n)


def s3_client(endpoint, access_key, secret_key, verify=None, **config):
    """A boto3 client as it comes, but path style, one try, and patience for a node under sanitizers. verify: a file
    with the authority to trust."""
    settings = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}, "read_timeout": 120,
                "connect_timeout": 60, "max_pool_connections": 32}
    settings.update(config)
    with _session_lock:
        return _session.client(
            "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id=access_key,
            aws_secret_access_key=secret_key, verify=verify, config=botocore.config.Config(**settings))


def wait_until(condition, seconds=PATIENCE, what="condition", step=0.05):
    """Polls until condition() is true and gives its value; fails after `seconds`. `what`: the condition in words, or
    what gives them then."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what() if callable(what) else what}: not so within {seconds} s"
        time.sleep(step)


def has_stopped(pid):
    """Whether each thread of the process has, as SIGSTOP makes them one after the other."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][0] for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that was just ending
        return False
    return set(states) == {"T"}


class Program:
    """A child process whose output goes to DIR/log (appended over restarts); never outlives the test run."""

    def __init__(self, directory, name):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.process = None
        self.log_path = self.dir / "log"
        self.ready_line = None

    def spawn(self, argv, env=None, ready=None, pass_fds=()):
        """Starts it; with `ready` (a pattern) waits for the line of stdout that matches, and gives the match. It has the descriptors of
        `pass_fds`, too."""
        assert self.process is None, f"{self.name} runs already"
        argv = ["setpriv", "--pdeathsig", "KILL", "--"] + [str(a) for a in argv]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            env={**os.environ, **(env or {})}, pass_fds=pass_fds)
        found = threading.Event()
        result = []

        def read(stdout):
            for raw in stdout:
                line = raw.decode(errors="replace")
                with open(self.log_path, "a") as log:
                    log.write(line)
                match = re.search(ready, line) if ready else None
                if match and not result:
                    result.append(match)
                    self.ready_line = line.strip()
                    found.set()
            found.set()

        self._reader = threading.Thread(target=read, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        if ready:
            found.wait(READY_SECONDS)
            if not result:
                self.kill()
                raise RuntimeError(f"{self.name} did not become ready:\n{self.log_tail()}")
            return result[0]
        return None

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines=40):
        return "\n".join(self.log().splitlines()[-lines:])

    def _stacks(self):
        """What each thread of the process and of its children does, as far as the machine tells."""
        with contextlib.suppress(OSError):
            pids = [str(self.pid), *pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
            if shutil.which("gdb"):
                return "\n".join(subprocess.run(["gdb", "-p", pid, "-batch", "-ex", "thread apply all bt 12"], capture_output=True, text=True,
                                                timeout=120, check=False).stdout for pid in pids)
            return "\n".join(f"{task}: {(task / 'comm').read_text().strip()} {(task / 'wchan').read_text()}"
                             for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir())
        return ""

    def _finish(self):
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.name} did not end within {STOP_SECONDS} s:\n{self.log_tail()}\n{self._stacks()}") from None
        self._reader.join(STOP_SECONDS)
        self.process.stdout.close()
        self.process = None
        return status

    def terminate(self):
        """SIGTERM, and SIGKILL when that does not end it; gives the exit status."""
        if self.process is None:
            return None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._finish()
            raise RuntimeError(f"{self.name} did not stop within {STOP_SECONDS} s:\n{self.log_tail()}") from None
        return self._finish()

    def kill(self):
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self._finish()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.terminate()


class Ended(RuntimeError):
    """A server that is no more, where it should answer."""


def start_on_free_port(program, spawn):
    """Starts a server that is told its port, and waits for its answers: on the one that it has, else on a free one, and on another
    one when somebody was quicker."""
    fixed = program.port is not None
    for left in range(5, 0, -1):
        program.port = program.port if fixed else free_port()
        spawn(program.port)
        try:
            return wait_until(program._answers, READY_SECONDS, f"{program.name} answers")
        except Ended:
            program.kill()
            if fixed or left == 1:
                raise


class Origin(Program):
    """versitygw over a directory: a real S3 server that is not ours. Buckets are made with new_bucket()."""

    access_key = "origin-access-key"
    secret_key = "origin-secret-key"

    def __init__(self, directory, versions=False):
        """`versions`: buckets may keep them (put_bucket_versioning)."""
        super().__init__(directory, "origin")
        self.port = None
        self.versions = versions
        self.start()

    def start(self):
        data = self.dir / "data"
        data.mkdir(exist_ok=True)
        options = ["posix"]
        if not _keeps_attributes(data):
            (self.dir / "meta").mkdir(exist_ok=True)
            options += ["--sidecar", self.dir / "meta"]
        if self.versions:
            (self.dir / "versions").mkdir(exist_ok=True)
            options += ["--versioning-dir", self.dir / "versions"]
        start_on_free_port(self, lambda port: self._spawn(port, [*options, data]))

    def _spawn(self, port, options):
        self.spawn([versitygw_bin(), "--keep-alive", "--quiet", "--health", "/-health", "--port", f"127.0.0.1:{port}", *options],
                   env={"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key})

    def _answers(self):
        if not self.running():
            raise Ended(f"the origin ended:\n{self.log_tail()}")
        try:
            with urllib.request.urlopen(self.endpoint + "/-health", timeout=60) as reply:
                return reply.status == 200
        except OSError:
            return False

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def s3(self, **config):
        """A client straight at the origin: what is true."""
        return s3_client(self.endpoint, self.access_key, self.secret_key, **config)

    def new_bucket(self, name=None):
        name = name or random_name()
        self.s3().create_bucket(Bucket=name)
        return name

    def properties(self, endpoint=None):
        """Bucket properties with which a node reaches this origin; `endpoint` for a proxy in front of it."""
        return {"origin.endpoint": endpoint or self.endpoint, "origin.region": REGION,
                "origin.access_key": self.access_key, "origin.secret_key": self.secret_key}


def _keeps_attributes(directory):
    probe = directory / ".probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"1")
        return True
    except OSError:
        return False
    finally:
        probe.unlink()


class Shaper(Program):
    """bench/shaper in front of an origin: slow on purpose, and with faults when told. `options` are its flags:
    Shaper(dir, origin, first_byte="20ms", per_connection="50MB/s", total="300MB/s")."""

    def __init__(self, directory, origin, **options):
        super().__init__(directory, "shaper")
        argv = [shaper_bin(), "--upstream", f"127.0.0.1:{origin.port}", "--listen", "127.0.0.1:0"]
        for name, value in options.items():
            argv += ["--" + name.replace("_", "-"), value]
        match = self.spawn(argv, ready=r"listening on (\S+)")
        self.endpoint = "http://" + match.group(1)

    def _control(self, method, path, **query):
        url = f"{self.endpoint}/-/shaper/{path}"
        if query:
            url += "?" + urllib.parse.urlencode({k.replace("_", "-"): v for k, v in query.items()})
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=120) as reply:
            return json.loads(reply.read() or b"{}")

    def stats(self):
        return self._control("GET", "stats")

    def reset(self):
        return self._control("POST", "reset")

    def set(self, **options):
        return self._control("POST", "set", **options)

    def fault(self, kind, **details):
        """Arms a fault: kind truncate, reset, stall, flip, wrong-length or status:CODE; count, match, at, skip, and
        for (as for_) as bench/shaper says."""
        return self._control("POST", "fault", kind=kind, **{k.rstrip("_"): v for k, v in details.items()})

    def release(self):
        """Whatever stalls goes on."""
        return self._control("POST", "release")


class Node(Program):
    """`forebay serve` with a data directory of its own. Extra flags: Node(dir, memory="128MiB", listen=...).

    route: "local" or "loop" (every object operation goes through encode, socket and decode).
    ca: a file with the authority that its clients trust, for a node with TLS.
    """

    def __init__(self, directory, route="local", binary=None, env=None, start=True, ca=None, **options):
        super().__init__(directory, "node")
        self.route = route
        self.ca = str(ca) if ca else None
        self.binary = binary or forebay_bin()
        self.env = {"FOREBAY_ROUTE": route, "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:handle_abort=1",
                    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", **(env or {})}
        self.options = {"listen": "127.0.0.1:0", "wire": "127.0.0.1:0", "reserve": "0", **options}
        self.data = self.dir / "data"
        self.endpoint = self.wire_address = self.socket_path = None
        if start:
            self.start()

    def argv(self):
        argv = [self.binary, "serve", "--data", self.data]
        for name, value in self.options.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                argv += ["--" + name.replace("_", "-"), one]
        return argv

    def start(self):
        match = self.spawn(self.argv(), env=self.env, ready=r"ready: s3 (https?://\S+) wire (\S+) socket (\S+)")
        self.endpoint, self.wire_address, self.socket_path = match.groups()

    def stop(self):
        """SIGTERM; a node must end with status 0 and without a sanitizer's report."""
        status = self.terminate()
        self.check_log()
        assert status in (None, 0), f"the node ended with status {status}:\n{self.log_tail()}"

    def restart(self):
        self.stop()
        self.start()

    def check_log(self):
        report = SANITIZER_REPORT.search(self.log())
        assert not report, f"the node's log holds a report:\n{self.log()[max(0, report.start() - 200):][:8000]}"

    # ---- clients ----

    @property
    def credentials(self):
        """(access key, secret key) from DIR/credentials."""
        lines = (self.data / "credentials").read_text().splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line)
        return pairs["FOREBAY_ACCESS_KEY"], pairs["FOREBAY_SECRET_KEY"]

    def s3(self, **config):
        """A boto3 client of the node."""
        return s3_client(self.endpoint, *self.credentials, verify=self.ca, **config)

    def put_unsigned(self, bucket, key, body):
        """PUT of a body of which the node is told no digest before it comes: to an S3 origin it goes in parts."""
        url = self.s3(signature_version="s3v4").generate_presigned_url("put_object", {"Bucket": bucket, "Key": key})
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT"), timeout=300) as reply:
            assert reply.status == 200

    def wire(self):
        """A connection of the wire protocol; use as a context manager."""
        return wire.Wire(self.socket_path)

    def cli(self, *arguments, check=True, stdin=None, timeout=300):
        """Runs `forebay ARGUMENTS` against this node; gives the CompletedProcess with text output."""
        env = {**os.environ, "FOREBAY_SOCKET": str(self.socket_path), **self.env}
        done = subprocess.run([str(self.binary), *map(str, arguments)], input=stdin, env=env, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=not isinstance(stdin, bytes))
        assert not check or done.returncode == 0, f"forebay {arguments}: {done.returncode}: {done.stderr}"
        return done

    def drawn(self, *arguments, timeout=400, status=0, columns=None):
        """What `forebay ARGUMENTS` against this node, which must end with `status`, writes to standard error when that is a terminal,
        of so many columns."""
        master, slave = pty.openpty()
        if columns:
            termios.tcsetwinsize(slave, (24, columns))
        pieces = []

        def drain():
            try:
                while piece := os.read(master, 65536):
                    pieces.append(piece)
            except OSError:  # nobody has the terminal open any more
                pass

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        env = {**os.environ, "FOREBAY_SOCKET": str(self.socket_path), **self.env}
        try:
            done = subprocess.run([str(self.binary), *map(str, arguments)], env=env, timeout=timeout, stdout=subprocess.DEVNULL,
                                  stderr=slave)
        finally:
            os.close(slave)
            reader.join(200)
            os.close(master)
        text = b"".join(pieces).decode()
        assert done.returncode == status, f"forebay {arguments}: {done.returncode}: {text}"
        return text

    def aws(self, *arguments, check=True, timeout=300):
        """Runs aws-cli as it comes, with this node as endpoint."""
        access_key, secret_key = self.credentials
        home = self.dir / "home"
        home.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "AWS_ACCESS_KEY_ID": access_key,
               "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_DEFAULT_REGION": REGION, "LANG": "C.UTF-8", "AWS_EC2_METADATA_DISABLED": "true",
               **({"AWS_CA_BUNDLE": self.ca} if self.ca else {})}
        done = subprocess.run([str(ROOT / ".deps/venv/bin/aws"), "--endpoint-url", self.endpoint, *map(str, arguments)],
                              env=env, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert not check or done.returncode == 0, f"aws {arguments}: {done.returncode}: {done.stderr}"
        return done

    # ---- buckets and numbers ----

    def create_bucket(self, name, url, **properties):
        with self.wire() as connection:
            connection.bucket_create(name, {"origin": url, **properties})

    def new_bucket(self, origin, endpoint=None, prefix="", **properties):
        """Makes a bucket at the origin and one of the same name here; gives the name. `endpoint`: of a proxy."""
        name = origin.new_bucket()
        url = f"s3://{name}" + (f"/{prefix}" if prefix else "")
        self.create_bucket(name, url, **{**origin.properties(endpoint), **properties})
        return name

    def metrics(self):
        """{(name, frozenset of label pairs): value} of /-/metrics."""
        context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        with urllib.request.urlopen(self.endpoint + "/-/metrics", timeout=120, context=context) as reply:
            lines = reply.read().decode().splitlines()
        values = {}
        for line in lines:
            match = re.match(r'(\w+)(?:\{(.*)\})? (\S+)$', line)
            if match and not line.startswith("#"):
                labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
                values[match.group(1), labels] = float(match.group(3))
        return values

    def metric(self, name, **labels):
        """Sum of all series of a metric that have these labels."""
        wanted = set(labels.items())
        return sum(value for (n, l), value in self.metrics().items() if n == name and wanted <= l)


def scratch_bucket(node):
    """Makes a scratch bucket and gives its name."""
    name = random_name()
    with node.wire() as connection:
        connection.bucket_create(name, {})
    return name


def files_below(directory):
    """The files below a directory and what stat says of them; without some of those that a node removes or moves meanwhile."""
    found = {}
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = pathlib.Path(place, name)
                found[path] = path.lstat()
    return found


def tree_remove(directory):
    """Removes a test's directory, whatever modes it left behind."""
    def make_writable(function, path, _):
        os.chmod(os.path.dirname(path), 0o700)
        function(path)
    shutil.rmtree(directory, onerror=make_writable)
