"""forebay store check beside what test_cli.py shows of it: which disks it looks at, and what it says of a node that was killed."""

import json
import threading

import harness
from test_cli import fails


def test_store_check_finds_the_disks_of_its_node(new_node, origin, tmp_path):
    """What serve was given with --disk is what is checked, without saying it again; --disk says otherwise. Nothing is made
    where there is no disk, and a node of which no disks are known is told what to do."""
    disks = [tmp_path / "a", tmp_path / "b c"]
    node = new_node(disk=disks)
    name = node.new_bucket(origin)
    for i in range(20):
        node.s3().put_object(Bucket=name, Key=f"k{i}", Body=b"x" * 1000)
    node.stop()

    def check(*flags, **options):
        return node.cli("store", "check", "--json", "--data", node.data, *flags, **options)

    for flags in [], ["--repair"]:
        assert json.loads(check(*flags).stdout)["extents"] == 20
        shares = [json.loads(check("--disk", disk, *flags).stdout)["extents"] for disk in disks]
        assert min(shares) >= 1 and sum(shares) == 20
        fails(check("--disk", tmp_path / "c", *flags, check=False), 1, tmp_path / "c", "no forebay disk")
    (node.data / "disks").unlink()
    for flags in [], ["--repair"]:
        fails(check(*flags, check=False), 1, node.data, "--disk")
    assert not (tmp_path / "c").exists() and not (node.data / "cache").exists()


def test_a_kill_amid_replacements_leaves_nothing_wrong(new_node, origin):
    """Objects are replaced and removed all the time: whenever the node is killed, the check finds nothing wrong, neither before
    its next start nor after that; what was cut short is counted. (Seen to fail without dying_note in store/doom.c.)"""
    node = new_node()
    name = node.new_bucket(origin)
    keys = [f"k{i}" for i in range(12)]

    def check():
        done = node.cli("store", "check", "--json", "--data", node.data, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr)
        found = json.loads(done.stdout)
        assert found["problems"] == [], found
        return found

    def change(number, stop):
        s3 = node.s3(retries={"max_attempts": 1})
        try:
            for i in range(number, 1 << 20, 4):
                if stop.is_set():
                    return
                s3.put_object(Bucket=name, Key=keys[i % len(keys)], Body=b"x" * (i % 5000))
                changed.append(i)
                if i % 7 == 0:
                    s3.delete_object(Bucket=name, Key=keys[i % len(keys)])
        except Exception:  # noqa: B902: the node is killed
            return

    unfinished = rounds = 0
    while rounds < 8 or (unfinished == 0 and rounds < 60):  # a kill need not hit anything
        rounds += 1
        stop, changed = threading.Event(), []
        threads = [threading.Thread(target=change, args=(n, stop)) for n in range(4)]
        [t.start() for t in threads]
        harness.wait_until(lambda: len(changed) >= 3 * len(keys), what="each was replaced")
        node.kill()
        stop.set()
        [t.join() for t in threads]
        unfinished += check()["unfinished"]
        node.start()
        node.kill()
        assert check()["unfinished"] == 0
        node.start()
    assert unfinished > 0
    body = harness.random_bytes(5000)
    node.s3().put_object(Bucket=name, Key=keys[0], Body=body)
    assert node.s3().get_object(Bucket=name, Key=keys[0])["Body"].read() == body
