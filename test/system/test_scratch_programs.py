"""Programs on a scratch mount: random operations against a model, and real tools.

FOREBAY_WALK_SECONDS: how long each of the five random walks is (24: two minutes together; 720 in `make soak`: an hour).
FOREBAY_TEST_SEED: what they begin with (1).
"""

import contextlib
import mmap
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile

import pytest

import harness
from test_scratch_mount import KEEP_SIZE, MODES, PUNCH_HOLE, ZERO_RANGE, fallocate, mount  # noqa: F401

MAX_SIZE = 300_000
WALK_SECONDS = float(os.environ.get("FOREBAY_WALK_SECONDS", 24))
PAGE = 4096

pytestmark = pytest.mark.usefixtures("need_fuse")


def run(*argv, cwd, env=None, stdin=None):
    done = subprocess.run(list(map(str, argv)), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, input=stdin,
                          env={**os.environ, **(env or {})}, timeout=800)
    assert done.returncode == 0, f"{argv}: {done.stdout.decode(errors='replace')[-4000:]}"
    return done.stdout


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"needs {program}")


@pytest.fixture(scope="module")
def route():
    """What goes through encode and decode is in test_scratch_mount.py; programs run as they would."""
    return "local"


class Walk:
    """Random operations on one file that has several names over time and is reached through several mounts. The model
    is the file's bytes; whoever goes to another mount closes the file first and opens it there, as close-to-open asks.
    """

    def __init__(self, tops, seed, renames=True):
        self.tops = tops
        self.renames = renames
        self.seed = seed
        self.random = random.Random(seed)
        self.model = bytearray()
        self.top = tops[0]
        self.name = "walk"
        self.fd = os.open(self.path, os.O_CREAT | os.O_RDWR)
        self.trace = []

    @property
    def path(self):
        return self.top / self.name

    def range(self, limit=MAX_SIZE):
        at = self.random.randrange(limit)
        if self.random.random() < 0.4:
            at = at // PAGE * PAGE
        return at, min(self.random.choice([1, 100, PAGE, 5000, 60_000]), limit - at)

    def put(self, at, body):
        self.model.extend(bytes(max(0, at + len(body) - len(self.model))))
        self.model[at:at + len(body)] = body

    def bytes(self, n):
        return self.random.randbytes(n)

    def do_write(self):
        at, n = self.range()
        body = self.bytes(n)
        assert os.pwrite(self.fd, body, at) == n
        self.put(at, body)

    def do_append(self):
        body = self.bytes(self.random.randrange(1, 3000))
        if len(self.model) + len(body) > MAX_SIZE:
            return
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        assert os.write(fd, body) == len(body)
        os.close(fd)
        self.put(len(self.model), body)

    def do_read(self):
        at, n = self.range()
        assert os.pread(self.fd, n, at) == self.model[at:at + n]

    def do_truncate(self):
        size = self.random.choice([0, len(self.model) // 2, self.random.randrange(MAX_SIZE)])
        if self.random.random() < 0.5:
            os.ftruncate(self.fd, size)
        else:
            os.truncate(self.path, size)
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    def do_punch(self):
        at, n = self.range()
        fallocate(self.fd, PUNCH_HOLE | KEEP_SIZE, at, n)
        end = min(at + n, len(self.model))
        if at < end:
            self.model[at:end] = bytes(end - at)

    def do_zero(self):
        at, n = self.range()
        fallocate(self.fd, ZERO_RANGE, at, n)
        self.put(at, bytes(n))

    def do_allocate(self):
        at, n = self.range()
        fallocate(self.fd, 0, at, n)
        self.model.extend(bytes(max(0, at + n - len(self.model))))

    def do_copy(self):
        if not self.model:
            return
        at, n = self.range(len(self.model))
        to = self.random.randrange(MAX_SIZE - n)
        if at < to + n and to < at + n:
            return
        done = 0
        while done < n:
            done += os.copy_file_range(self.fd, self.fd, n - done, at + done, to + done)
        self.put(to, bytes(self.model[at:at + n]))

    def do_map_write(self):
        if not self.model:
            return
        at, n = self.range(len(self.model))
        body = self.bytes(n)
        with mmap.mmap(self.fd, len(self.model)) as view:
            view[at:at + n] = body
            if self.random.random() < 0.5:
                view.flush()
        self.put(at, body)

    def do_map_read(self):
        if not self.model:
            return
        with mmap.mmap(self.fd, len(self.model), prot=mmap.PROT_READ) as view:
            at, n = self.range(len(self.model))
            assert view[at:at + n] == self.model[at:at + n]

    def do_rename(self):
        name = f"walk-{self.random.randrange(5)}"
        os.rename(self.path, self.top / name)
        self.name = name

    def do_sync(self):
        os.fsync(self.fd)

    def do_reopen(self):
        os.close(self.fd)
        self.top = self.random.choice(self.tops)
        self.fd = os.open(self.path, os.O_RDWR)

    def check(self):
        assert os.fstat(self.fd).st_size == len(self.model)
        assert os.pread(self.fd, MAX_SIZE + 1, 0) == self.model
        assert self.path.stat().st_size == len(self.model)

    def run(self, seconds):
        acts = [getattr(self, name) for name in dir(self) if name.startswith("do_") and (self.renames or name != "do_rename")]
        end = time.monotonic() + seconds
        step = 0
        while time.monotonic() < end:
            act = self.random.choice(acts)
            self.trace = self.trace[-19:] + [act.__name__]
            try:
                act()
                self.check()
            except BaseException:
                print(f"seed {self.seed}, step {step}: {self.trace}")
                raise
            step += 1
        os.close(self.fd)
        return step


@pytest.mark.timeout(WALK_SECONDS + 240)
@pytest.mark.parametrize("modes", [("auto",), ("off",), ("auto", "auto"), ("off", "off"), ("auto", "off")], ids="-".join)
def test_random_operations(node, scratch, mount, modes):
    """A file is what the model says after every step, through one mount or two, and S3 has the same in the end. Two mounts of one
    kind have the default timeouts, and the file keeps its name, of which the kernel may know late; the others believe nothing."""
    seed = int(os.environ.get("FOREBAY_TEST_SEED", 1)) + sum(map(ord, "".join(modes)))
    is_default = len(modes) == 2 and len(set(modes)) == 1
    options = {} if is_default else {"attr_timeout": "0"}
    walk = Walk([mount(passthrough=mode, **options).path for mode in modes], seed, renames=not is_default)
    print(f"{'-'.join(modes)}: {walk.run(WALK_SECONDS)} steps, no difference")
    assert node.s3().get_object(Bucket=scratch, Key=walk.name)["Body"].read() == walk.model


@pytest.fixture(params=MODES)
def top(request, mount):  # noqa: F811
    return mount(passthrough=request.param).path


def test_git(top, tmp_path):
    """Clone, commit, branch, repack, fsck."""
    need("git")
    env = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
           "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(tmp_path),
           # else it leaves a process behind that goes on in the mount
           "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "maintenance.auto", "GIT_CONFIG_VALUE_0": "false"}
    source = top / "source"
    source.mkdir()
    run("git", "init", "-q", "-b", "main", cwd=source, env=env)
    for i in range(40):
        (source / f"file{i}").write_bytes(harness.random_bytes(2000, seed=i))
    run("git", "add", ".", cwd=source, env=env)
    run("git", "commit", "-q", "-m", "first", cwd=source, env=env)
    run("git", "clone", "-q", source, top / "clone", cwd=top, env=env)
    (top / "clone/file0").write_text("changed")
    run("git", "commit", "-qam", "second", cwd=top / "clone", env=env)
    run("git", "gc", "-q", cwd=top / "clone", env=env)
    run("git", "fsck", "--strict", cwd=top / "clone", env=env)
    run("git", "pull", "-q", top / "clone", "main", cwd=source, env=env)
    assert (source / "file0").read_text() == "changed"
    assert run("git", "status", "--porcelain", cwd=source, env=env) == b""


def test_building_a_program(top):
    """A C program of some files, compiled, archived, linked and run where it lies."""
    need("gcc", "ar", "make")
    for i in range(8):
        (top / f"f{i}.c").write_text(f"int f{i}(int x);\nint f{i}(int x) {{ return x + {i}; }}\n")
    calls = "".join(f"int f{i}(int x);\n" for i in range(8)) + "#include <stdio.h>\nint main(void) { int x = 0;\n" + \
        "".join(f"x = f{i}(x);\n" for i in range(8)) + 'printf("%d\\n", x); return 0; }\n'
    (top / "main.c").write_text(calls)
    objects = " ".join(f"f{i}.o" for i in range(8))
    (top / "Makefile").write_text(f"program: main.o libf.a\n\tgcc -o $@ $^\nlibf.a: {objects}\n\tar rcs $@ $^\n")
    run("make", "-j2", cwd=top)
    assert run("./program", cwd=top) == b"28\n"
    assert b"up to date" in run("make", cwd=top)


def test_sqlite(top):
    """A database with a write-ahead log: two writers at once, a reader, integrity, vacuum."""
    path = top / "db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
        db.execute("create table t (writer integer, n integer)")
    code = ("import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], timeout=200)\nfor i in range(100):\n"
            "    with db:\n        db.execute('insert into t values (?, ?)', (sys.argv[2], i))\n")
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(k)]) for k in range(2)]
    db = sqlite3.connect(path, timeout=200)
    counts = [0]
    while any(w.poll() is None for w in writers):
        counts.append(db.execute("select count(*) from t").fetchone()[0])
    assert all(w.wait() == 0 for w in writers) and counts == sorted(counts)
    assert db.execute("select writer, count(*), sum(n) from t group by writer").fetchall() == [(0, 100, 4950), (1, 100, 4950)]
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.execute("vacuum")
    db.close()
    assert sorted(os.listdir(top)) == ["db"]


def make_tree(path):
    """Everything that tar and rsync -a carry."""
    (path / "dir/empty").mkdir(parents=True)
    for i in range(30):
        (path / f"dir/f{i}").write_bytes(harness.random_bytes(i * 997, seed=i))
        os.utime(path / f"dir/f{i}", ns=(0, 1_500_000_000_000_000_000 + i))
    os.chmod(path / "dir/f1", 0o4751)
    os.chown(path / "dir/f2", 1234, 4321)
    os.link(path / "dir/f3", path / "dir/linked")
    os.symlink("dir/f4", path / "link")
    os.mkfifo(path / "fifo")
    os.mknod(path / "null", 0o20666, os.makedev(1, 3))
    with open(path / "sparse", "wb") as f:
        f.truncate(5 << 20)
        f.seek(3 << 20)
        f.write(b"data")
    os.setxattr(path / "dir/f5", "user.note", b"kept")
    os.chmod(path / "dir", 0o2750)


def describe(path):
    """What a tree is, by path."""
    found, links = {}, {}
    for p in sorted(path.rglob("*")):
        st = p.lstat()
        what = (st.st_mode, st.st_uid, st.st_gid, st.st_rdev, links.setdefault(st.st_ino, str(p.relative_to(path))))
        if p.is_symlink():
            what += (os.readlink(p),)
        elif p.is_file():
            what += (st.st_size, st.st_mtime_ns, p.read_bytes(), tuple(
                (n, os.getxattr(p, n)) for n in sorted(os.listxattr(p)) if n.startswith("user.")))
        found[str(p.relative_to(path))] = what
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_tar(top, tmp_path):
    """A tree goes in and out again with owners, modes, times, links, devices, holes and attributes."""
    need("tar")
    make_tree(tmp_path / "tree" if (tmp_path / "tree").mkdir() is None else None)
    pack = ("tar", "--xattrs", "--sparse", "--format=posix", "-cf")
    run(*pack, tmp_path / "in.tar", ".", cwd=tmp_path / "tree")
    (top / "tree").mkdir()
    run("tar", "--xattrs", "-xpf", tmp_path / "in.tar", cwd=top / "tree")
    assert describe(top / "tree") == describe(tmp_path / "tree")
    assert (top / "tree/sparse").stat().st_blocks * 512 < 1 << 20
    run(*pack, top / "out.tar", ".", cwd=top / "tree")
    (tmp_path / "back").mkdir()
    run("tar", "--xattrs", "-xpf", top / "out.tar", cwd=tmp_path / "back")
    assert describe(tmp_path / "back") == describe(tmp_path / "tree")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_rsync(top, tmp_path):
    """rsync -a there and back gives the same tree, a second run finds nothing to do, a changed file is updated."""
    need("rsync")
    (tmp_path / "tree").mkdir()
    make_tree(tmp_path / "tree")
    there = ("rsync", "-aHXS", "--itemize-changes")
    run(*there, f"{tmp_path}/tree/", f"{top}/tree/", cwd=top)
    assert describe(top / "tree") == describe(tmp_path / "tree")
    assert run(*there, "--checksum", f"{tmp_path}/tree/", f"{top}/tree/", cwd=top) == b""
    with open(tmp_path / "tree/dir/f9", "r+b") as f:
        f.write(b"changed")
    run(*there, "--inplace", "--no-sparse", "--no-whole-file", f"{tmp_path}/tree/", f"{top}/tree/", cwd=top)
    run(*there, f"{top}/tree/", f"{tmp_path}/back/", cwd=top)
    assert describe(tmp_path / "back") == describe(tmp_path / "tree")


def test_a_python_environment(top, tmp_path):
    """A virtual environment with a package from a wheel on the same mount, imported and run there."""
    wheel = top / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("thing/__init__.py", "def answer():\n    return 42\n")
        z.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        z.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                   "Tag: py3-none-any\n")
        z.writestr("thing-1.0.dist-info/entry_points.txt", "[console_scripts]\nthing = thing:answer\n")
        z.writestr("thing-1.0.dist-info/RECORD", "thing/__init__.py,,\nthing-1.0.dist-info/METADATA,,\n"
                   "thing-1.0.dist-info/WHEEL,,\nthing-1.0.dist-info/entry_points.txt,,\nthing-1.0.dist-info/RECORD,,\n")
    run(sys.executable, "-m", "venv", "--without-pip", top / "venv", cwd=top)
    run(sys.executable, "-m", "pip", "--python", top / "venv/bin/python", "install", "-q", "--no-index", "--no-deps",
        "--no-cache-dir", wheel, cwd=top)
    assert run(top / "venv/bin/python", "-c", "import thing; print(thing.answer())", cwd=top) == b"42\n"
    assert subprocess.run([str(top / "venv/bin/thing")], timeout=200).returncode == 42
