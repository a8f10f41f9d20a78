"""Limits and shares: who waits, who is refused, and who does not notice."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import socket
import threading
import time

import pytest

import keyorigin
import mounted
import wire
from harness import Node, random_bytes, s3_client, wait_until
from test_s3_post import form
from test_s3_security import fetch

SIZE = 64 << 10
TOTAL = 60 * SIZE  # of what is read to compare two


def state(node):
    return json.loads(node.cli("status", "--json").stdout)


def limit_of(node, limit, name):
    """What status says of one limit; zeros before anybody met it."""
    found = [x for x in state(node)["shaping"]["limits"] if (x["limit"], x["name"]) == (limit, name)]
    return found[0] if found else {"requests": 0, "bytes": 0, "waited": 0, "refused": 0}


def user(node, name, *limits):
    """A user with limits, as a client of S3."""
    made = json.loads(node.cli("user", "create", name, "--json").stdout)
    node.cli("user", "limit", name, *limits)
    return s3_client(node.endpoint, made["access_key"], made["secret_key"])


def send_get(node, path):
    """A GET whose answer is left for later."""
    host, port = re.match(r"http://(.*):(\d+)", node.endpoint).groups()
    connection = socket.create_connection((host, int(port)), timeout=400)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    return connection


def answer(connection):
    """(status, head) of a GET that was sent."""
    with connection:
        data = b""
        while True:
            piece = connection.recv(1 << 16)
            if not piece:
                break
            data += piece
    head = data.partition(b"\r\n\r\n")[0].decode()
    return int(head.split(" ")[1]), head


def bytes_of_two(readers):
    """What each of two got of TOTAL bytes. readers: (which of the two, what reads once and gives how many bytes), each one a
    thread."""
    got, lock, end = [0, 0], threading.Lock(), threading.Event()

    def read(who, once):
        try:
            while not end.is_set():
                n = once()
                with lock:
                    got[who] += n
                    if sum(got) >= TOTAL:
                        end.set()
        finally:
            end.set()

    with concurrent.futures.ThreadPoolExecutor(len(readers)) as pool:
        for one in [pool.submit(read, *reader) for reader in readers]:
            one.result()
    return got


def assert_ratio(least, most, readers):
    """The first of two gets so many times what the second gets, when both always want more than there is."""
    tries = []
    while not tries or not least < tries[-1] < most:  # a client that stood still asked for nothing meanwhile
        assert len(tries) < 4, tries
        first, second = bytes_of_two(readers)
        tries.append(first / max(second, 1))


@pytest.mark.parametrize("apart", [False, True])
def test_users_get_what_their_shares_say(tmp_path, apart):
    """Two users with shares 3:1 who always want more than the node may give get bytes at about 3:1, whether or not they read the same
    bucket and however many connections they have."""
    with Node(tmp_path / "node", limit_bytes="256KiB") as node:
        buckets = ["one", "two" if apart else "one"]
        for bucket in set(buckets):
            node.cli("bucket", "create", bucket)
            node.s3().put_object(Bucket=bucket, Key="k", Body=random_bytes(SIZE))
        clients = [user(node, "more", "share=300"), user(node, "less", "share=100")]

        def read(i):
            return lambda: len(clients[i].get_object(Bucket=buckets[i], Key="k")["Body"].read())

        assert_ratio(2, 4.5, [(i, read(i)) for i in (0,) * 6 + (1,) * 8])  # of more than 16 of one address some were refused
        assert limit_of(node, "user", "more")["bytes"] > limit_of(node, "user", "less")["bytes"] > 0
        assert "limits:" in node.cli("status").stdout
        assert node.metric("forebay_limit_waited_seconds_count") > 0


def test_buckets_of_a_user_get_what_their_shares_say(tmp_path):
    """Of what a user reads two buckets with shares of 25 and 100 get bytes at about 1:4, though the first is asked by more
    connections. (With SHAPE_WEIGHT_ONE for USER_BUCKET in gate.c they get alike.)"""
    with Node(tmp_path / "node", limit_bytes="256KiB") as node:
        for bucket, share in (("less", 25), ("more", 100)):
            node.cli("bucket", "create", bucket, f"share={share}")
            node.s3().put_object(Bucket=bucket, Key="k", Body=random_bytes(SIZE))
        client = user(node, "ann", "share=100")

        def read(bucket):
            return lambda: len(client.get_object(Bucket=bucket, Key="k")["Body"].read())

        assert_ratio(2.5, 6.5, [(0, read("more"))] * 6 + [(1, read("less"))] * 8)
        assert limit_of(node, "bucket", "more")["bytes"] > limit_of(node, "bucket", "less")["bytes"] > 0


def test_a_client_of_one_connection_gets_as_much_as_one_of_twelve(tmp_path):
    """Two clients of one bucket, told apart by their addresses, get bytes about alike: not by their connections. (With
    USER_BUCKET in the place of USER_BUCKET_CLIENT in gate.c's share_kinds the first gets a twelfth.)"""
    with Node(tmp_path / "node", limit_bytes="256KiB") as node, contextlib.ExitStack() as stack:
        node.cli("bucket", "create", "open", "anonymous=read")
        node.s3().put_object(Bucket="open", Key="k", Body=random_bytes(SIZE))

        def reader(address):
            port = int(node.endpoint.rsplit(":", 1)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=400, source_address=(address, 0))
            stack.callback(connection.close)

            def read():
                connection.request("GET", "/open/k")
                reply = connection.getresponse()
                body = reply.read()
                assert (reply.status, len(body)) == (200, SIZE)
                return len(body)

            return read

        assert_ratio(0.5, 2, [(0, reader("127.0.0.1"))] + [(1, reader("127.0.0.2")) for _ in range(12)])
        assert limit_of(node, "client", "127.0.0.1")["bytes"] > 0 < limit_of(node, "client", "127.0.0.2")["bytes"]


def test_a_limited_bucket_refuses_and_others_do_not_notice(tmp_path):
    """Requests beyond the limit of a bucket wait; when too many do, SlowDown; another bucket is served meanwhile."""
    with Node(tmp_path / "node") as node:
        for bucket, settings in (("limited", ["limit.requests=1"]), ("free", [])):
            node.cli("bucket", "create", bucket, "anonymous=read", *settings)
            node.s3().put_object(Bucket=bucket, Key="k", Body=b"v")
        sent = [send_get(node, "/limited/k") for _ in range(26)]
        assert answer(send_get(node, "/free/k"))[0] == 200
        answers = [answer(one) for one in sent]
        refused = [head for status, head in answers if status == 503]
        assert {status for status, _ in answers} == {200, 503}
        assert all("Retry-After: 1" in head for head in refused)
        assert limit_of(node, "bucket", "limited")["refused"] == len(refused)
        assert limit_of(node, "bucket", "limited")["waited"] > 0 == limit_of(node, "bucket", "free")["waited"]
        assert node.metric("forebay_limit_refused_total", limit="bucket") == len(refused)
        node.cli("bucket", "set", "limited", "limit.requests=0")
        assert {answer(send_get(node, "/limited/k"))[0] for _ in range(30)} == {200}


@pytest.mark.parametrize("limit", ["requests", "bytes"])
def test_a_limited_client_or_user_waits_and_others_do_not(tmp_path, limit):
    """A client (by its address), and a user, that asked for more than its limit waits for it, by requests and by bytes; another
    one that asks for the same meanwhile does not. (Without its row of set_limits in gate.c nobody waits.)"""
    body, most = random_bytes(SIZE), {"requests": "1", "bytes": "8KiB"}[limit]
    with Node(tmp_path / "node", **{f"client_limit_{limit}": most}) as node:
        node.cli("bucket", "create", "open", "anonymous=read")
        node.s3().put_object(Bucket="open", Key="k", Body=body)
        port = int(node.endpoint.rsplit(":", 1)[1])

        def sent_from(address):
            connection = socket.create_connection(("127.0.0.1", port), timeout=400, source_address=(address, 0))
            connection.sendall(b"GET /open/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            return connection

        one = [sent_from("127.0.0.2") for _ in range(4)]
        assert answer(sent_from("127.0.0.3"))[0] == 200
        wait_until(lambda: limit_of(node, "client", "127.0.0.2")["waited"] > 0, what="the client has waited")
        assert limit_of(node, "client", "127.0.0.3")["waited"] == 0
        for connection in one:
            connection.close()
    with Node(tmp_path / "users") as node:
        node.cli("bucket", "create", "open")
        node.s3().put_object(Bucket="open", Key="k", Body=body)
        slow, free = user(node, "slow", f"limit.{limit}={most}"), user(node, "free", "limit.requests=0")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            reads = [pool.submit(lambda: slow.get_object(Bucket="open", Key="k")["Body"].read()) for _ in range(4)]
            assert free.get_object(Bucket="open", Key="k")["Body"].read() == body
            wait_until(lambda: limit_of(node, "user", "slow")["waited"] > 0, what="the user has waited")
            node.cli("user", "limit", "slow", f"limit.{limit}=0")
            assert all(one.result() == body for one in reads)
        assert limit_of(node, "user", "slow")["waited"] > 0 and limit_of(node, "user", "free")["waited"] == 0


@pytest.mark.usefixtures("need_fuse")
def test_a_mount_and_s3_clients_do_not_starve_each_other(origin, tmp_path):
    """One program that reads a data set through a mount, and twelve connections that are served another bucket by S3, at a node
    that gives less than they want: each gets a part that is worth something, a quarter of the other's at least. (Without the
    shares in is_before of shape.c, the first that came goes first, and the mount gets a tenth.)"""
    with Node(tmp_path / "node", limit_bytes="256KiB") as node:
        name = node.new_bucket(origin)
        for i in range(4 * TOTAL // SIZE):
            origin.s3().put_object(Bucket=name, Key=f"k{i:03d}", Body=random_bytes(SIZE, seed=i))
        node.cli("bucket", "create", "served")
        s3 = node.s3()
        s3.put_object(Bucket="served", Key="k", Body=random_bytes(SIZE))
        with mounted.Mount(tmp_path / "mount", node, name, read_only=True) as mount:
            files = iter(sorted(mount.path.iterdir()))
            readers = [(0, lambda: len(next(files).read_bytes()))]  # each once: what was read is read again without the node
            readers += [(1, lambda: len(s3.get_object(Bucket="served", Key="k")["Body"].read()))] * 12
            assert_ratio(0.25, 4, readers)
        assert limit_of(node, "bucket", name)["requests"] > 0 < limit_of(node, "bucket", "served")["requests"]


def test_limits_hold_for_the_wire_and_outlive_the_node(tmp_path):
    """The command line waits like everybody; a user's limits are there after a restart; wrong settings are refused."""
    with Node(tmp_path / "node", client_limit_requests="1000") as node:
        node.cli("bucket", "create", "data", "limit.bytes=8KiB")
        node.s3().put_object(Bucket="data", Key="k", Body=random_bytes(SIZE, seed=1))
        for _ in range(8):  # each owes 8 s for what comes behind it
            assert node.cli("cat", "data/k", stdin=b"").stdout == random_bytes(SIZE, seed=1)
            if limit_of(node, "bucket", "data")["waited"] > 0:
                break
        assert limit_of(node, "bucket", "data")["waited"] > 0
        user(node, "reader", "share=250", "limit.requests=7", "limit.bytes=2MiB")
        node.restart()
        shown = json.loads(node.cli("user", "show", "reader", "--json").stdout)
        assert (shown["share"], shown["limit_requests"], shown["limit_bytes"]) == (250, 7, 2 << 20)
        assert "share=250" in node.cli("user", "ls").stdout
        for words in ("share=0", "share=many", "limit.bytes=x", "speed=1"):
            failed = node.cli("user", "limit", "reader", words, check=False)
            assert failed.returncode != 0 and "share=N" in failed.stderr
        for words in ("share=0", "limit.bytes=x", "limit.origin-bytes=1MiB"):
            assert node.cli("bucket", "set", "data", words, check=False).returncode != 0


def test_a_read_overtakes_a_prefetch_at_a_limited_origin(origin, tmp_path):
    """With a limit to the origin a prefetch takes its time, and an object that is read meanwhile does not wait for its end."""
    with Node(tmp_path / "node") as node:
        bucket = node.new_bucket(origin, **{"limit.origin-bytes": "256KiB", "limit.origin-requests": "100"})
        body = random_bytes(256 << 10, seed=3)
        for i in range(96):
            origin.s3().put_object(Bucket=bucket, Key=f"k{i:02d}", Body=body)
        node.cli("prefetch", bucket)

        def job():
            return json.loads(node.cli("job", "show", "1", "--json").stdout)

        wait_until(lambda: job()["done_objects"] > 0, what="the prefetch began")
        assert node.s3().get_object(Bucket=bucket, Key="k95")["Body"].read() == body
        assert job()["state"] == "running"  # not so where it has more than 16 on their way, which are paid for when they have come
        node.cli("job", "cancel", "1")


@pytest.mark.parametrize("way", ["through", "back", "copy"])
def test_what_is_written_to_a_limited_origin_is_held_to_its_rate(origin, tmp_path, way):
    """limit.origin-bytes holds for what goes to an origin: uploads through, what is written back, and what a job copies take the
    time that their bytes need at that rate, and the origin has them all. (Without origin_moved in web_conn.c nothing waits.)"""
    rate, n = 256 << 10, 12
    with Node(tmp_path / "node") as node:
        name = node.new_bucket(origin, write="back" if way == "back" else "through", write_delay="0s",
                               **{"limit.origin-bytes": rate, "origin.connections": 1})
        node.cli("bucket", "create", "here")
        s3, bodies = node.s3(), {f"k{i:02d}": random_bytes(SIZE, seed=i) for i in range(n)}
        if way == "copy":
            for key, body in bodies.items():
                s3.put_object(Bucket="here", Key=key, Body=body)
        began = time.monotonic()
        if way == "copy":
            node.cli("copy", "--wait", "--parallel=1", "here", name)
        else:
            for key, body in bodies.items():
                s3.put_object(Bucket=name, Key=key, Body=body)
        if way == "back":
            node.cli("flush", "--wait", name)
        # The last one is paid for afterwards, and a tenth of a second may be saved up.
        assert time.monotonic() - began > (n - 1) * SIZE / rate - 0.2
        truth = origin.s3()
        assert all(truth.get_object(Bucket=name, Key=key)["Body"].read() == body for key, body in bodies.items())


def test_the_parts_of_a_large_object_are_held_to_the_rate(origin, tmp_path):
    """An object that goes in parts is held to the limit part by part: the last one does not begin before those that went before
    it are paid for. (Without origin_wait_turn in web_parts.c they go at once.)"""
    part, n, rate = 5 << 20, 5, 8 << 20
    with Node(tmp_path / "node") as node:
        name = node.new_bucket(origin, **{"limit.origin-bytes": rate, "origin.connections": 1, "origin.part_size": part})
        body = random_bytes(part * n, seed=1)
        began = time.monotonic()
        node.put_unsigned(name, "k", body)
        assert time.monotonic() - began > (n - 1) * part / rate - 0.2
        assert origin.s3().get_object(Bucket=name, Key="k")["Body"].read() == body


def test_a_prefetch_goes_before_write_back(origin, tmp_path):
    """With a limit to the origin what a prefetch asks for goes before what is written back, which is put off, not given up: it
    is not all there before the prefetch has ended. (Without take_place in back_send.c it is.)"""
    with Node(tmp_path / "node") as node:
        bucket = node.new_bucket(origin, write="back", write_delay="0s", **{"limit.origin-requests": "5"})
        truth, s3 = origin.s3(), node.s3()
        for i in range(75):
            truth.put_object(Bucket=bucket, Key=f"old/{i:03d}", Body=b"o" * 100)
        node.cli("prefetch", bucket + "/old/")

        def job():
            return json.loads(node.cli("job", "show", "1", "--json").stdout)

        def left():
            return next(b for b in state(node)["buckets"] if b["name"] == bucket)["write_back"]["objects"]

        wait_until(lambda: job()["done_objects"] > 0, what="the prefetch began")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for one in [pool.submit(s3.put_object, Bucket=bucket, Key=f"new/{i:03d}", Body=b"n") for i in range(50)]:
                one.result()
        wait_until(lambda: left() == 0 or job()["state"] != "running", seconds=300, what="one of the two ended")
        assert job()["state"] == "done"
        node.cli("bucket", "set", bucket, "limit.origin-requests=0")
        assert "0 objects" in node.cli("flush", "--wait", bucket).stdout
        assert truth.list_objects_v2(Bucket=bucket, Prefix="new/")["KeyCount"] == 50


def test_a_pause_holds_for_all_buckets_of_a_service(tmp_path):
    """When a service answers for one bucket that it wants no request for five seconds, it gets none for another bucket of the
    same endpoint and account either. (Without shared_pause in upstream_join it does.)"""
    with keyorigin.KeyOrigin() as origin, Node(tmp_path / "node") as node, concurrent.futures.ThreadPoolExecutor(1) as pool:
        for bucket in ("one", "two"):
            origin.objects[bucket, "k"] = keyorigin.Object(bucket.encode())
            node.create_bucket(bucket, f"s3://{bucket}", **origin.properties())
        told, asked = [], []

        def busy(bucket, _key):
            if bucket == "two":
                asked.append(time.monotonic())
            elif not told:
                told.append(time.monotonic())
                return {"Retry_After": 5}
            return None

        origin.busy = busy
        one = pool.submit(lambda: node.s3().get_object(Bucket="one", Key="k")["Body"].read())
        wait_until(lambda: node.metric("forebay_origin_retries_total", bucket="one") > 0, what="the node heard of it")
        assert node.s3().get_object(Bucket="two", Key="k")["Body"].read() == b"two"
        assert one.result() == b"one"
        assert asked[0] - told[0] > 4.9


def test_a_read_goes_before_a_prefetch_of_another_bucket(tmp_path):
    """While a service is busy and a read of one bucket waits for a place there, a prefetch of another bucket asks it once a
    second; when nobody waits any more it goes on, to its end. (Without must_yield_locked in upstream.c it asks as often as it
    may.)"""
    with keyorigin.KeyOrigin() as origin, Node(tmp_path / "node") as node, concurrent.futures.ThreadPoolExecutor(2) as pool:
        origin.objects.update({("hot", key): keyorigin.Object(b"hot") for key in "ab"})
        origin.objects.update({("bulk", f"k{i:02d}"): keyorigin.Object(b"bulk") for i in range(50)})
        node.create_bucket("hot", "s3://hot", **origin.properties(), **{"origin.connections": 1})
        node.create_bucket("bulk", "s3://bulk", **origin.properties(), retry="1h")
        go_on, held = threading.Event(), []

        def before_get(bucket, _key):
            if bucket == "hot":
                held.append(bucket)
                go_on.wait(400)

        def asked():
            with origin.lock:
                return sum(path.startswith("/bulk/") for method, path, _ in origin.requests if method == "GET")

        try:
            origin.before_get = before_get
            origin.busy = lambda bucket, _key: {} if bucket == "bulk" and not go_on.is_set() else None
            busy = node.metric("forebay_connections_active", via="http")
            reads = [pool.submit(lambda key=key: node.s3().get_object(Bucket="hot", Key=key)["Body"].read()) for key in "ab"]
            wait_until(lambda: held and node.metric("forebay_connections_active", via="http") >= busy + 2,
                       what="a read has the only place, another one wants it")
            node.cli("prefetch", "bulk")
            wait_until(lambda: asked() > 0, what="the prefetch has asked")
            before = -1
            while before != asked():  # those that went before anybody knew that the service is busy
                began = time.monotonic()
                before = asked()
                time.sleep(0.5)
            wait_until(lambda: asked() >= before + 8, what="the prefetch asks all the same")
            assert time.monotonic() - began > 3.5  # seven, were it not for what was on its way when that began
        finally:
            go_on.set()
        assert [read.result() for read in reads] == [b"hot"] * 2 and len(held) == 2
        wait_until(lambda: json.loads(node.cli("job", "show", "1", "--json").stdout)["state"] == "done", 120,
                   "the prefetch ended")


def test_what_was_only_announced_is_not_paid_for(tmp_path):
    """A request that announces a body and never sends it owes nothing: the next one does not wait."""
    with Node(tmp_path / "node", limit_bytes="1MiB") as node:
        node.cli("bucket", "create", "data", "anonymous=read")
        node.s3().put_object(Bucket="data", Key="k", Body=b"v")
        host, port = re.match(r"http://(.*):(\d+)", node.endpoint).groups()
        one = socket.create_connection((host, int(port)), timeout=200)
        one.sendall(f"GET /data/k HTTP/1.1\r\nHost: {host}\r\nContent-Length: {4 * 10**18}\r\n\r\n".encode())
        assert answer(one)[0] == 200
        assert limit_of(node, "node", "all")["bytes"] < 1 << 20
        assert answer(send_get(node, "/data/k"))[0] == 200


def test_a_form_is_paid_for_by_who_signed_it(tmp_path):
    """Its bytes count for the user, and for nobody when it was not signed."""
    with Node(tmp_path / "node") as node:
        node.cli("bucket", "create", "data")
        made = json.loads(node.cli("user", "create", "forms", "--role=writer", "--json").stdout)
        node.cli("user", "limit", "forms", "limit.bytes=100MiB")
        client = s3_client(node.endpoint, made["access_key"], made["secret_key"], signature_version="s3v4")
        for fields, status in ((client.generate_presigned_post("data", "k", ExpiresIn=60)["fields"], 204), ({"key": "k"}, 403)):
            data, headers = form(fields, random_bytes(SIZE))
            assert fetch(f"{node.endpoint}/data", method="POST", data=data, headers=headers).status == status
        paid = limit_of(node, "user", "forms")
        assert paid["requests"] == 1 and SIZE < paid["bytes"] < 2 * SIZE, paid


def test_a_limit_that_comes_later_holds_for_what_is_open(tmp_path):
    """An object that was opened before anything was limited is read at the limit that was set meanwhile."""
    with Node(tmp_path / "node") as node:
        node.cli("bucket", "create", "data")
        node.s3().put_object(Bucket="data", Key="k", Body=random_bytes(SIZE))
        with node.wire() as w:
            reply = w.call(wire.OPEN, wire.text("data") + wire.text("k") + wire.text("") * 2 +
                           wire.u64(0) * 2 + wire.u32(wire.VIA_API) + wire.u32(0))
            handle = reply[:8]
            node.cli("bucket", "set", "data", "limit.bytes=10MiB")
            assert limit_of(node, "bucket", "data")["bytes"] == 0
            w.call(wire.FETCH, handle + wire.u64(0) + wire.u64(SIZE) + wire.u32(wire.INLINE))
            assert limit_of(node, "bucket", "data")["bytes"] == SIZE
            w.call(wire.CLOSE, handle + wire.u64(2**64 - 10**15) + wire.u64(2**63))
            assert SIZE < limit_of(node, "bucket", "data")["bytes"] <= SIZE + (1 << 40)


def test_a_node_stops_while_it_owes_its_origin(tmp_path, origin):
    """A limit of the origin that is owed for long does not keep a node from stopping."""
    with Node(tmp_path / "node", drain_timeout="1s") as node:
        name = node.new_bucket(origin, **{"limit.origin-bytes": "64KiB", "origin.connections": 1, "anonymous": "read"})
        origin.s3().put_object(Bucket=name, Key="k", Body=random_bytes(32 << 20))
        with contextlib.closing(send_get(node, f"/{name}/k")):
            wait_until(lambda: node.metric("forebay_origin_read_bytes_total", bucket=name) > 1 << 20, 60, "bytes from the origin")
            node.stop()  # in less than harness.STOP_SECONDS


def test_a_node_stops_while_readers_owe_an_earlier_limit(tmp_path, origin):
    """So it does when the bucket was changed since they opened what they read."""
    with Node(tmp_path / "node", drain_timeout="1s") as node:
        name = node.new_bucket(origin, **{"limit.origin-bytes": "64KiB", "origin.connections": 1, "anonymous": "read"})
        origin.s3().put_object(Bucket=name, Key="k", Body=random_bytes(32 << 20))
        with contextlib.closing(send_get(node, f"/{name}/k")):
            wait_until(lambda: node.metric("forebay_origin_read_bytes_total", bucket=name) > 1 << 20, 60, "bytes from the origin")
            node.cli("bucket", "set", name, "limit.origin-bytes=1MiB")
            node.stop()  # in less than harness.STOP_SECONDS
