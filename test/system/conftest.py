"""Fixtures of the system tests; what they are made of is in harness.py.

    origin      versitygw, one for the whole run
    route       "local" or "loop": a test that uses it, directly or through node, runs in one of them, half of the tests in
                each; in both with FOREBAY_TEST_ROUTES=local,loop, as CI does
    node        a running node, one per test file and route
    node_with_tls   another one, which speaks TLS, with a certificate of an authority that its clients are given
    bucket      a fresh bucket, at the origin and in `node` (an object with .name, .s3, .truth)
    either_bucket   the same, and in a second test a scratch bucket
    new_node    makes more nodes, stopped at the end of the test: new_node(memory="64MiB", ...)
    restarted_node  one that can be killed and started while files of its mounts are open
    new_shaper  makes proxies in front of an origin: new_shaper(first_byte="20ms", ...)

    leaves_nothing  for @pytest.mark.usefixtures: what the test has sent holds nothing of its nodes afterwards

A test that the machine cannot run ends as "not run", by pytest.skip with the reason; see need_fuse below.

The tests run on several workers (pytest-xdist, --dist loadgroup). Those that share a node, a server that is slow to start, or, as
those of the demonstration, a build directory, stay together; every other test goes wherever there is room.
"""

import dataclasses
import os
import pathlib
import tempfile
import zlib

import pytest

import harness
import held
import mounted
import restarted
from authority import Authority

ROUTES = ("local", "loop")
TOGETHER = {"test_demo", "test_origins", "test_origin_hdfs", "test_origin_nfs"}


def group_of(nodeid):
    """The tests that must run on one worker, by name; None: it stands alone. By the test's name alone, which is all that a scheduler
    knows."""
    path, _, test = nodeid.partition("::")
    module = pathlib.PurePath(path).stem
    if module in TOGETHER:
        return module
    route = next((part for part in test.partition("[")[2].rstrip("]").split("-") if part in ROUTES), None)
    return f"{module}-{route}" if route else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Groups as above, in their order. xdist's own loadgroup changes the tests' names for it, which pytest 9 does not let it do any
    more: every test went to any worker, and each worker made nodes and servers of its own."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid) or nodeid

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def is_in_its_route(item):
    """Whether this is the one route in which the test runs where nobody asked for routes. By its name: always the same."""
    callspec = getattr(item, "callspec", None)
    route = callspec.params.get("route") if callspec else None
    if route is None:
        return True
    rest = "-".join(part for part in callspec.id.split("-") if part != route)
    return ROUTES[zlib.crc32(f"{item.module.__name__}.{item.originalname}-{rest}".encode()) % len(ROUTES)] == route


def pytest_collection_modifyitems(config, items):
    """Large groups first, so that no worker is left alone with one at the end; the demonstration takes longest. Tests
    marked `soak` are there only when FOREBAY_SOAK asks for them."""
    if not os.environ.get("FOREBAY_SOAK"):
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    if not os.environ.get("FOREBAY_TEST_ROUTES"):
        config.hook.pytest_deselected(items=[item for item in items if not is_in_its_route(item)])
        items[:] = [item for item in items if is_in_its_route(item)]
    groups = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)
    alone = groups.pop(None, [])
    ordered = sorted(groups.items(), key=lambda g: (g[0] not in TOGETHER, -len(g[1])))
    items[:] = [item for _, members in ordered for item in members] + alone


@pytest.fixture(scope="session")
def work():
    """Directory of this run, removed at its end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="forebay-test-"))
    yield path
    if os.environ.get("FOREBAY_TEST_KEEP"):
        print(f"\nkept: {path}")
    else:
        harness.tree_remove(path)


@pytest.fixture(scope="session")
def origin(work):
    with harness.Origin(work / "origin") as running:
        yield running


@pytest.fixture(scope="module", params=(os.environ.get("FOREBAY_TEST_ROUTES") or ",".join(ROUTES)).split(","))
def route(request):
    return request.param


@pytest.fixture(scope="module")
def node(work, route, request):
    directory = tempfile.mkdtemp(prefix=f"{request.module.__name__}-{route}-", dir=work)
    with harness.Node(directory, route=route) as running:
        yield running


@pytest.fixture(scope="module")
def node_with_tls(work, route, request):
    directory = pathlib.Path(tempfile.mkdtemp(prefix=f"{request.module.__name__}-{route}-tls-", dir=work))
    authority = Authority(directory / "authority")
    cert, key = authority.issue("node")
    with harness.Node(directory, route=route, ca=authority.ca, tls_cert=cert, tls_key=key) as running:
        yield running


@dataclasses.dataclass
class Bucket:
    """One bucket seen twice: `s3` is a client of the node, `truth` one of the origin."""

    name: str
    s3: object
    truth: object
    node: harness.Node
    origin: harness.Origin


@pytest.fixture
def bucket(node, origin):
    name = node.new_bucket(origin)
    return Bucket(name, node.s3(), origin.s3(), node, origin)


@pytest.fixture
def new_node(work, request):
    """new_node(**options) starts a node in a directory of its own; options as for harness.Node."""
    nodes = []

    def make(**options):
        nodes.append(harness.Node(tempfile.mkdtemp(prefix="node-", dir=work), **options))
        return nodes[-1]

    make.nodes = nodes
    yield make
    for one in reversed(nodes):
        one.stop()


@pytest.fixture
def restarted_node(work):
    """A node to be killed and started while the test has files of its mounts open."""
    with restarted.Node(tempfile.mkdtemp(prefix="node-", dir=work)) as running:
        yield running


@pytest.fixture(params=["mirror", "scratch"])
def either_bucket(request, node, origin):
    """A bucket with an origin, and one without, whose truth is what the node's S3 shows."""
    if request.param == "mirror":
        return Bucket(node.new_bucket(origin), node.s3(), origin.s3(), node, origin)
    return Bucket(harness.scratch_bucket(node), node.s3(), node.s3(), node, origin)


@pytest.fixture
def leaves_nothing(request, new_node):
    """After the test no node of it has a request, a session or a handle open, holds a connection whose client has gone or memory that
    requests share, or has other descriptors than before, but those of files that are there. It waits until that is so: a node may take
    its time, but must come there. (Fails behind test_bodies_that_do_not_match where put_fini leaves the sink open; test_s3_left has
    more.)"""
    shared = request.getfixturevalue("node") if "node" in request.fixturenames else None
    before = held.other_descriptors(shared) if shared else None
    yield
    for one in ([shared] if shared else []) + [n for n in new_node.nodes if n.running()]:
        harness.wait_until(lambda one=one: not held.by_requests(one), what=lambda one=one: f"nothing is held: {held.by_requests(one)}")
    if shared:
        harness.wait_until(lambda: held.other_descriptors(shared) <= before,
                           what=lambda: f"descriptors as before: {held.other_descriptors(shared) - before}")


@pytest.fixture
def new_mount(work):
    """new_mount(node, bucket, **options) mounts it in a directory of its own; options as for mounted.Mount. Ask for it behind
    the node: mounts end while that runs."""
    mounts = []

    def make(node, bucket, **options):
        mounts.append(mounted.Mount(tempfile.mkdtemp(prefix="mount-", dir=work), node, bucket, **options))
        return mounts[-1]

    make.mounts = mounts
    yield make
    for one in reversed(mounts):
        one.stop()


@pytest.fixture
def scratch(node):
    """The name of a new scratch bucket."""
    return harness.scratch_bucket(node)


@pytest.fixture
def new_shaper(work, origin):
    """new_shaper(origin=None, **options) puts bench/shaper in front of an origin (default: the run's)."""
    shapers = []

    def make(before=None, **options):
        shapers.append(harness.Shaper(tempfile.mkdtemp(prefix="shaper-", dir=work), before or origin, **options))
        return shapers[-1]

    yield make
    for one in reversed(shapers):
        one.stop()


@pytest.fixture
def need_fuse():
    """Not run where the kernel's FUSE cannot be used."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"needs /dev/fuse: {error.strerror}")
