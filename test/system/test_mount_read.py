"""Reading through a mount: the same bytes, names and sizes that the origin has, with passthrough and without."""

import concurrent.futures
import ctypes
import errno
import json
import mmap
import os
import random
import stat
import tempfile
import time

import pytest

import harness
import keyorigin
import mounted

MIB = 1 << 20
MODES = ["auto", "off"]

pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def mount(bucket, new_mount):
    """mount(passthrough="off", ...) mounts the test's bucket."""
    return lambda what=None, node=None, **options: new_mount(node or bucket.node, what or bucket.name, **options)


def put(bucket, **objects):
    for key, body in objects.items():
        bucket.truth.put_object(Bucket=bucket.name, Key=key, Body=body)


@pytest.mark.parametrize("passthrough", MODES)
def test_files_have_the_bytes_and_sizes_of_the_origin(bucket, mount, passthrough):
    """Sizes around the block size, cold and then warm."""
    sizes = [0, 1, 4095, 4096, 110 * 1024, MIB - 1, MIB, MIB + 1, 9 * MIB + 17]
    bodies = {f"f{n}": harness.random_bytes(n, seed=n) for n in sizes}
    put(bucket, **bodies)
    path = mount(passthrough=passthrough).path
    for _ in range(2):
        for name, body in bodies.items():
            assert (path / name).stat().st_size == len(body)
            assert (path / name).read_bytes() == body, name


def test_many_readers_wait_for_the_origin_together(bucket, mount, new_shaper):
    """The workers of a training job each open by its name a file of one directory that is not here, and read it: by a mount as people make
    it some dozens are looked up and fetched at once. (Seen to fail with 16 threads, and where the kernel looks up names of a
    directory one after the other, PASSTHROUGH_FLAG_DIROPS in mount/passthrough.c.)"""
    shaper = new_shaper(before=bucket.origin, first_byte="2s")
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    top = mount(name).path
    for turn in range(5):  # a busy machine may not have all of them begin within a round trip
        bodies = {f"f{turn}-{i}": bytes([i]) * 5000 for i in range(48)}
        for key, body in bodies.items():
            bucket.truth.put_object(Bucket=name, Key=key, Body=body)
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as readers:
            assert dict(zip(bodies, readers.map(lambda key: (top / key).read_bytes(), bodies))) == bodies
        if shaper.stats()["max_in_flight"] > 32:
            break
    assert shaper.stats()["max_in_flight"] > 32


def test_a_cold_file_that_nobody_listed_costs_one_request(bucket, mount, new_shaper):
    """Its look-up and its open ask the origin once together, where such files were opened when they had been looked up before. What is only
    looked at is not fetched."""
    shaper = new_shaper(before=bucket.origin)
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint)
    top = mount(name).path
    bodies = {f"train/{i}/{i}.jpg": harness.random_bytes(5000 + i, seed=i) for i in range(24)}
    looked_at = [f"train/{i}/{i}.json" for i in range(24)]
    for key, body in [*bodies.items(), *((key, b"{}") for key in looked_at)]:
        bucket.truth.put_object(Bucket=name, Key=key, Body=body)
        os.listdir(top / "train")  # and so there are directories, which are asked for no more
        (top / key).parent.stat()
    for key in list(bodies)[:8]:
        assert (top / key).read_bytes() == bodies[key]
    shaper.reset()
    for key in list(bodies)[8:]:
        assert (top / key).read_bytes() == bodies[key]
    for key in looked_at:
        assert (top / key).stat().st_size == 2
    kinds = {kind: said["requests"] for kind, said in shaper.stats()["kinds"].items() if said["requests"]}
    assert kinds == {"get_range": 16, "head": len(looked_at)}


def test_a_look_up_that_fetches_and_fails(bucket, mount, new_shaper):
    """An origin that is away is not asked twice as long for it, by GETs and then by HEADs; one that gives no bytes, as of what it has archived, says
    what there is."""
    shaper = new_shaper(before=bucket.origin)
    name = bucket.node.new_bucket(bucket.origin, endpoint=shaper.endpoint, retry="1s")
    top = mount(name).path
    for i in range(10):
        bucket.truth.put_object(Bucket=name, Key=f"{i}.jpg", Body=b"x" * i)
    for i in range(1, 9):
        assert (top / f"{i}.jpg").stat().st_size == len((top / f"{i}.jpg").read_bytes()) == i
    shaper.reset()
    shaper.fault("status:500", match="GET /", count=1000)
    shaper.fault("status:500", match="HEAD /", count=1000)
    with pytest.raises(OSError) as refused:
        (top / "10.jpg").stat()
    assert refused.value.errno == errno.EIO
    assert {kind for kind, said in shaper.stats()["kinds"].items() if said["requests"]} == {"get_range"}
    shaper.reset()
    shaper.fault("status:403", match="GET /", count=1)
    assert (top / "9.jpg").stat().st_size == 9
    assert {kind: said["requests"] for kind, said in shaper.stats()["kinds"].items() if said["requests"]} == {"get_range": 1, "head": 1}


@pytest.mark.parametrize("passthrough", MODES)
def test_random_reads_of_a_cold_file(bucket, mount, passthrough):
    """Reads at random places and lengths give the bytes of those places, and none beyond the end."""
    body = harness.random_bytes(24 * MIB + 123, seed=1)
    put(bucket, big=body)
    fd = os.open(mount(passthrough=passthrough).path / "big", os.O_RDONLY)
    rng = random.Random(2)
    try:
        for _ in range(200):
            offset, n = rng.randrange(len(body) + 1000), rng.choice([1, 17, 4096, 100_000, 2 * MIB])
            assert os.pread(fd, n, offset) == body[offset:offset + n]
    finally:
        os.close(fd)


@pytest.mark.parametrize("passthrough", MODES)
def test_tail_first(bucket, mount, passthrough):
    """As npz and parquet readers do: the end, the beginning, then the middle."""
    body = harness.random_bytes(20 * MIB + 5, seed=3)
    put(bucket, archive=body)
    with open(mount(passthrough=passthrough).path / "archive", "rb") as f:
        f.seek(-100, os.SEEK_END)
        assert f.read() == body[-100:]
        f.seek(0)
        assert f.read(4096) == body[:4096]
        f.seek(10 * MIB)
        assert f.read(3 * MIB) == body[10 * MIB:13 * MIB]


@pytest.mark.parametrize("passthrough", MODES)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_mapped_file(bucket, mount, passthrough, warm, flags):
    """A mapping has the bytes, whether the file was complete when it was opened or not; and a file that was mapped
    while cold can be opened by others afterwards."""
    body = harness.random_bytes(12 * MIB + 77, seed=4)
    put(bucket, tensors=body)
    path = mount(passthrough=passthrough).path / "tensors"
    if warm:
        assert path.read_bytes() == body
        time.sleep(1.1)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as m:
        for offset in random.Random(5).sample(range(len(body) - 5000), 50):
            assert m[offset:offset + 5000] == body[offset:offset + 5000]
        assert m[:] == body
        assert path.read_bytes() == body
        time.sleep(1.1)
        assert path.read_bytes() == body


@pytest.mark.parametrize("passthrough", MODES)
def test_a_complete_file_is_read_by_the_kernel(bucket, mount, passthrough):
    """Once complete, reads no longer reach the process that serves: it may even be stopped. Without passthrough they wait
    for it. The file is fetched by S3, so that no page of it is in the kernel before."""
    body, node = harness.random_bytes(3 * MIB, seed=6), bucket.node
    put(bucket, warm=body)
    assert bucket.s3.get_object(Bucket=bucket.name, Key="warm")["Body"].read() == body
    harness.wait_until(lambda: json.loads(node.cli("explain", "--json", f"{bucket.name}/warm").stdout)["complete"])
    one = mount(passthrough=passthrough)
    fd = os.open(one.path / "warm", os.O_RDONLY)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with one.stopped():
            got = pool.submit(os.pread, fd, len(body), 0)
            if one.uses_passthrough():
                assert got.result(timeout=200) == body
            else:
                with pytest.raises(concurrent.futures.TimeoutError):
                    got.result(timeout=1)
        assert got.result(timeout=200) == body
    os.close(fd)


def test_two_readers_of_a_cold_file_and_one_after(bucket, mount):
    """Readers that opened before the file was complete and readers that open after see the same bytes side by side."""
    body = harness.random_bytes(16 * MIB, seed=7)
    put(bucket, shared=body)
    path = mount().path / "shared"
    early = [os.open(path, os.O_RDONLY) for _ in range(2)]
    try:
        assert path.read_bytes() == body
        for _ in range(3):
            assert path.read_bytes() == body
            time.sleep(0.6)
        for fd in early:
            assert os.pread(fd, MIB, 5 * MIB) == body[5 * MIB:6 * MIB]
            with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as m:
                assert m[7 * MIB:8 * MIB] == body[7 * MIB:8 * MIB]
    finally:
        for fd in early:
            os.close(fd)


def test_many_threads_read_one_cold_file(bucket, mount):
    """Eight threads, each its own part and order."""
    body = harness.random_bytes(32 * MIB, seed=8)
    put(bucket, big=body)
    path = mount().path / "big"

    def read(k):
        offsets = list(range(k * MIB // 2, len(body), 8 * MIB // 2))
        random.Random(k).shuffle(offsets)
        with open(path, "rb", buffering=0) as f:
            for offset in offsets:
                f.seek(offset)
                if f.read(300_000) != body[offset:offset + 300_000]:
                    return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


# ---- names ----


def test_the_tree_is_the_listing(bucket, mount):
    """Every object is a file in the directories that its key names, and nothing else is there."""
    keys = ["a", "b/c", "b/d/e", "b/d/f", "g/h/i/j/k", "z z/ö", "b/d e/1"]
    put(bucket, **{key: key.encode() for key in keys})
    path = mount().path
    found = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert found == set(keys)
    for key in keys:
        assert (path / key).read_bytes() == key.encode()
    assert sorted(os.listdir(path / "b")) == ["c", "d", "d e"]
    assert not (path / "nothing").exists()
    assert not (path / "b/nothing").exists()


def test_a_large_directory(bucket, mount):
    """More entries than a page of the listing: each once, and telldir positions stay usable."""
    names = [f"f{i:05d}" for i in range(2345)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: bucket.truth.put_object(Bucket=bucket.name, Key="d/" + n, Body=n.encode()), names))
    path = mount().path
    assert sorted(os.listdir(path / "d")) == names
    assert sum(1 for e in os.scandir(path / "d") if e.is_file() and e.stat().st_size == 6) == len(names)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    libc.opendir.argtypes = [ctypes.c_char_p]
    libc.readdir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    directory = libc.opendir(str(path / "d").encode())
    seen = []
    while True:
        position = libc.telldir(directory)
        entry = libc.readdir(directory)
        if not entry:
            break
        seen.append((position, ctypes.string_at(entry + 19)))
    for position, name in [seen[1500], seen[10], seen[2340], seen[0], seen[1001], seen[1000]]:
        libc.seekdir(directory, position)
        assert ctypes.string_at(libc.readdir(directory) + 19) == name
    libc.closedir(directory)
    assert sorted(n for _, n in seen) == sorted([b".", b".."] + [n.encode() for n in names])


@pytest.mark.soak
def test_more_names_than_are_remembered(node, new_mount, tmp_path):
    """Of a bucket with more files than the mount remembers it is asked about all, and takes hardly more memory than for those that it
    does: 500,000. (Seen to fail without malloc_trim in mount/notify.c: 48 MiB more, 13 with it. A sanitizer keeps what was freed, hence the program
    without one.)"""
    for d in range(80):
        (tmp_path / f"{d:02}").mkdir()
        at = os.open(tmp_path / f"{d:02}", os.O_RDONLY)
        for i in range(10_000):
            os.mknod(f"f{i}", 0o644, dir_fd=at)
        os.close(at)
    name = harness.random_name()
    node.create_bucket(name, f"file://{tmp_path}")
    one = new_mount(node, name, attr_timeout="1h", binary=harness.ROOT / "build/forebay")

    def resident():
        with open(f"/proc/{one.serving()}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def look(directories):
        return sum(e.stat().st_size + 1 for d in directories for e in os.scandir(one.path / f"{d:02}"))

    assert look(range(50)) == 500_000
    before = resident()
    assert look(range(50, 80)) == 300_000
    assert resident() - before < 24 * 1024
    assert look(range(1)) == 10_000


def test_odd_names(node, work, tmp_path):
    """What a directory can hold is shown and readable; what it cannot is left out, here and in a lookup."""
    good = ["space name", "ünïcode-名前", "semi;colon", "a" * 255, "new\nline", "-dash", "'quote\"", "back\\slash",
            "dir with space/x", "percent%20", ".hidden"]
    tree = tmp_path / "tree"
    for name in good:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(name.encode())
    name = harness.random_name()
    node.create_bucket(name, f"file://{tree}")
    with mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, name) as one:
        found = {str(p.relative_to(one.path)) for p in one.path.rglob("*") if p.is_file()}
        assert found == set(good)
        for key in good:
            assert (one.path / key).read_bytes() == key.encode()


def test_names_that_a_directory_cannot_hold(node, work):
    """Keys with empty parts or dots, and parts of more than 255 bytes, are in the bucket and not in the tree; where a
    key is both an object and a directory, the directory is shown."""
    name = harness.random_name()
    with keyorigin.KeyOrigin() as odd:
        for key in ["good/file", "a//b", "good/../x", "./y", "z/.", "n" * 300, "tail/", "both", "both/under"]:
            odd.objects[name, key] = keyorigin.Object(b"odd")
        node.create_bucket(name, f"s3://{name}", **odd.properties())
        with mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, name) as one:
            files = {str(p.relative_to(one.path)) for p in one.path.rglob("*") if p.is_file()}
            assert files == {"good/file", "both/under"}
            assert sorted(os.listdir(one.path / "good")) == ["file"]
            assert (one.path / "both").is_dir() and (one.path / "tail").is_dir()
            assert (one.path / "good/file").read_bytes() == b"odd"
            with pytest.raises(OSError) as caught:
                os.stat(one.path / ("n" * 300))
            assert caught.value.errno == errno.ENAMETOOLONG


def test_a_prefix_as_root(bucket, mount):
    """BUCKET/PREFIX shows what lies below the prefix, and creates below it."""
    put(bucket, **{"p/q/one": b"1", "p/q/r/two": b"2", "other": b"3"})
    path = mount(bucket.name + "/p/q").path
    assert sorted(os.listdir(path)) == ["one", "r"]
    assert (path / "r/two").read_bytes() == b"2"
    (path / "three").write_bytes(b"3")
    assert bucket.truth.get_object(Bucket=bucket.name, Key="p/q/three")["Body"].read() == b"3"


# ---- attributes ----


def test_attributes(bucket, mount):
    """Owner, mode, block size and blocks are what the options and the size say."""
    put(bucket, **{"d/f": b"x" * 1000})
    path = mount(uid="1234", gid="2345", umask="027").path
    st = (path / "d/f").stat()
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode), st.st_nlink) == (1234, 2345, 0o640, 1)
    assert (st.st_size, st.st_blocks, st.st_blksize) == (1000, 2, MIB)
    assert stat.S_IMODE((path / "d").stat().st_mode) == 0o750
    mtime = bucket.truth.head_object(Bucket=bucket.name, Key="d/f")["LastModified"].timestamp()
    assert int(st.st_mtime) == int(mtime)
    assert os.statvfs(path).f_bavail > 0


def test_attributes_are_cached(bucket, mount):
    """For as long as --attr-timeout says nobody is asked for what was asked for once, present or not: the process that serves may
    be stopped. With 0 each question comes to it."""
    put(bucket, **{"d/f": b"x" * 1000})
    for timeout, is_asked in (("1h", False), ("0", True)):
        one = mount(passthrough="off", attr_timeout=timeout)
        one.wait_until_told(bucket.s3, bucket.name)
        path, absent = one.path / "d/f", one.path / "d/nothing"

        def look():
            return path.stat().st_size, absent.exists()

        assert look() == (1000, False)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with one.stopped():
                answer = pool.submit(look)
                if is_asked:
                    with pytest.raises(concurrent.futures.TimeoutError):
                        answer.result(timeout=0.5)
                else:
                    assert answer.result(timeout=200) == (1000, False)
            assert answer.result(timeout=200) == (1000, False)
        one.stop()


def test_inode_numbers_are_stable(bucket, mount):
    """The number belongs to the path: readdir and stat agree, before and after a remount."""
    put(bucket, **{"d/f": b"x", "g": b"y"})
    one = mount()
    numbers = {e.name: e.inode() for e in os.scandir(one.path)}
    assert numbers == {e.name: e.stat().st_ino for e in os.scandir(one.path)}
    one.stop()
    one.start()
    assert numbers == {e.name: e.inode() for e in os.scandir(one.path)}


def test_read_only(bucket, mount):
    """Every change is refused with EROFS and the modes say so."""
    put(bucket, f=b"x")
    path = mount(read_only=True).path
    assert stat.S_IMODE((path / "f").stat().st_mode) == 0o444
    for change in (lambda: (path / "new").write_bytes(b""), lambda: (path / "f").write_bytes(b""),
                   lambda: os.unlink(path / "f"), lambda: os.mkdir(path / "d"),
                   lambda: os.rename(path / "f", path / "g"), lambda: os.truncate(path / "f", 0)):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS
    assert (path / "f").read_bytes() == b"x"


# ---- versions ----


def test_a_reader_keeps_its_version(bucket, mount):
    """Who has a complete file open keeps reading the old bytes after it was replaced at the node; who opens a moment later reads
    the new ones."""
    old, new = harness.random_bytes(2 * MIB, seed=10), harness.random_bytes(3 * MIB, seed=11)
    bucket.s3.put_object(Bucket=bucket.name, Key="f", Body=old)
    path = mount().path / "f"
    with open(path, "rb", buffering=0) as f:
        assert f.read(MIB) == old[:MIB]
        bucket.s3.put_object(Bucket=bucket.name, Key="f", Body=new)
        harness.wait_until(lambda: path.read_bytes() == new, what="the new version")
        assert path.stat().st_size == len(new)
        assert f.read() == old[MIB:]


def test_new_and_removed_names_show(bucket, mount):
    """Names that were looked up before, present or absent, follow what S3 does to them."""
    put(bucket, old=b"1")
    path = mount().path
    assert not (path / "new").exists() and (path / "old").exists()
    bucket.s3.put_object(Bucket=bucket.name, Key="new", Body=b"2")
    bucket.s3.delete_object(Bucket=bucket.name, Key="old")
    harness.wait_until(lambda: (path / "new").exists() and not (path / "old").exists(), what="the names")
    assert (path / "new").read_bytes() == b"2"
    assert os.listdir(path) == ["new"]


# ---- the second epoch ----


def test_the_second_pass_asks_the_origin_nothing(bucket, mount):
    """After one pass over the tree, another one brings no byte and no question about objects to the origin."""
    bodies = {f"d{i % 3}/f{i:03d}": harness.random_bytes(20_000 + i, seed=i) for i in range(60)}
    bucket.node.cli("bucket", "set", bucket.name, "validate=ttl:1h")
    put(bucket, **bodies)
    path = mount().path

    def read_all():
        for key in random.Random(12).sample(sorted(bodies), len(bodies)):
            assert (path / key).read_bytes() == bodies[key]

    read_all()
    node = bucket.node
    size = sum(map(len, bodies.values()))
    # Counted when the request has ended, which may be after its bytes were passed on. On a busy machine a request may have been
    # sent twice.
    harness.wait_until(lambda: node.metric("forebay_origin_read_bytes_total", bucket=bucket.name) >= size, 60, "all counted")

    def asked():
        names = ("forebay_origin_read_bytes_total", "forebay_origin_requests_total", "forebay_origin_hedges_total", "forebay_origin_retries_total")
        return [node.metric(name, bucket=bucket.name, **({"op": "get"} if "requests" in name else {})) for name in names]

    harness.wait_until(lambda: (lambda n: n[1] >= len(bodies) + n[2] + n[3])(asked()), 60, "each request has ended")
    before = asked()
    assert before[0] < 1.1 * size
    read_all()
    assert asked() == before


def test_names_that_no_key_can_have(bucket, mount):
    """Refused with an error when they are made, and nothing reaches the origin: keys above 1,024 bytes, names above 255 bytes,
    bytes that are no UTF-8. A key of exactly 1,024 bytes is made."""
    path = os.fsencode(mount().path)
    parts = [b"d" * 250] * 4  # 1,004 bytes with their slashes
    deep = os.path.join(path, *parts)
    os.makedirs(deep)
    for name, number in ((os.path.join(deep, b"n" * 21), errno.ENAMETOOLONG), (os.path.join(path, b"n" * 256), errno.ENAMETOOLONG),
                         (os.path.join(path, b"\xff\xfe"), errno.EILSEQ)):
        for make in (lambda: os.close(os.open(name, os.O_CREAT | os.O_WRONLY)), lambda: os.mkdir(name)):
            with pytest.raises(OSError) as caught:
                make()
            assert caught.value.errno == number, name
    before = set(os.listdir(path))
    with open(os.path.join(deep, b"n" * 20), "wb") as file:
        file.write(b"longest")
    key = b"/".join(parts + [b"n" * 20]).decode()
    assert bucket.truth.get_object(Bucket=bucket.name, Key=key)["Body"].read() == b"longest"
    assert set(os.listdir(path)) == before == {b"d" * 250}
