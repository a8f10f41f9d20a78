"""forebay store check beside what test_cli.py shows of it: which disks it looks at."""

import json

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
