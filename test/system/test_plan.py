"""`forebay plan`: the published figures that docs/PLANNING.md names come out of the command; bad options give one clear line."""

import json
import re
import subprocess

import pytest

import harness

GIB, TIB = 1 << 30, 1 << 40
MONTH_S = 30.4375 * 86400


def plan(*options):
    return subprocess.run([str(harness.forebay_bin()), "plan", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def planned(*options):
    done = plan("--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tib_of(plan_of):
    return plan_of["raw_bytes"] / TIB


def test_published_figures():
    """178 GiB/s of sixteen nodes with 100 Gb/s; 1.15 and 0.5 GiB/s per TiB of rented disks; two months at 100 TiB, four at 48 and sixteen at 12.
    What docs/PLANNING.md says was computed is what the command computes, with by how much it differs, and so is what the code of that service gives.
    (Seen to fail with the century that the page promised.)"""
    wire = planned("--nodes", "16", "--disks", "12", "--network", "100Gb")
    assert wire["read"]["bottleneck"] == "network" and abs(wire["read"]["bytes_per_s"] / GIB - 178) < 2
    rented = planned("--nodes", "12", "--disks", "24", "--capacity", "108000GiB", "--disk-read", "390MiB/s", "--disk-write", "195MiB/s",
                     "--clients", "256")
    assert rented["read"]["bytes_per_s"] / GIB / tib_of(rented) == pytest.approx(1.15, rel=0.125)
    assert rented["write"]["bytes_per_s"] / GIB / tib_of(rented) == pytest.approx(0.5, rel=0.125)
    coded = planned("--nodes", "12", "--disks", "24", "--capacity", "108000GiB", "--disk-read", "390MiB/s", "--disk-write", "195MiB/s",
                    "--clients", "256", "--redundancy", "ec=2+1")
    coded_rate = coded["write"]["bytes_per_s"] / GIB / (coded["usable_bytes"] / TIB)
    assert coded["write"]["bottleneck"] == "disks" and coded["usable_bytes"] / coded["raw_bytes"] == pytest.approx(2 / 3)
    at_once = coded_rate * 3.5 / 1.5  # bytes to disks: with an open file's copies, and without
    months = {}
    for tib, disks, published in ((100, 273, 2), (48, 131, 4), (12, 33, 16)):  # of 375 GiB each, which fail 2.3 times in 100 years
        lost = planned("--disks", str(disks), "--capacity", f"{tib}TiB", "--disk-mttf", f"{365.25 * 24 / 0.023:.0f}h")
        months[tib] = lost["mean_time_to_data_loss_s"] / MONTH_S
        assert months[tib] == pytest.approx(published, rel=0.05)
    alone = planned("--disks", "273", "--capacity", "100TiB", "--disk-mttf", f"{365.25 * 24 / 0.023:.0f}h", "--redundancy", "ec=2+1",
                    "--disk-read", "390MiB/s", "--disk-write", "195MiB/s")  # the same disks, were they to fail independently
    years = alone["mean_time_to_data_loss_s"] / (365.25 * 86400)
    page = (harness.ROOT / "docs/PLANNING.md").read_text()
    computed = [f"{wire['read']['bytes_per_s'] / GIB:.1f} GiB/s, bound by the network at 95 % of its rate | {100 - wire['read']['bytes_per_s'] / GIB / 1.78:.1f} % |", f"| {rented['read']['bytes_per_s'] / GIB / tib_of(rented):.2f}, with",
                f"| {rented['write']['bytes_per_s'] / GIB / tib_of(rented):.2f}, with", f"| {coded_rate:.2f} per usable TiB | {100 - coded_rate / 0.005:.0f} % |",
                f"and {at_once:.2f} GiB/s per usable TiB again", f"are {178 * GIB / (16 * 12.5e9) * 100:.1f} % of 16 times 100 Gb/s", f"| {months[100]:.1f}, {months[48]:.1f} and {months[12]:.1f} months",
                f"would promise it {years:.0f} years at 100 TiB"]
    assert all(page.count(text) == 1 for text in computed), computed


def test_the_table_says_what_a_person_asks():
    """Usable capacity, both rates with their bottleneck, rebuild and loss, for the shape that was given."""
    done = plan("--capacity", "100TiB", "--nodes", "16", "--disks", "12", "--network", "100Gb", "--redundancy", "ec=8+2",
                "--clients", "32x8")
    assert done.returncode == 0
    for word in ("16 nodes", "ec=8+2", "80 TiB", "177 GiB/s", "bound by the network", "rebuild of a full disk", "rebuild of a full node",
                 "mean time to data loss"):
        assert word in done.stdout, word


@pytest.mark.parametrize("options", [
    ["--redundancy", "mirror=64", "--nodes", "64", "--disks", "1000", "--disk-mttf", "100000000000h", "--grace", "1ms"],
    ["--nodes", "100000", "--disks", "1000", "--disk-read", "16000000TB/s", "--network", "10000000Tb", "--clients", "1000000x1"],
    ["--capacity", "15000000TiB", "--disks", "2", "--redundancy", "mirror=2", "--disk-read", "1B/s", "--disk-write", "1B/s"],
    ["--capacity", "1", "--disk-mttf", "1ms", "--grace", "0", "--disks", "3", "--redundancy", "ec=2+1"],
], ids=["eternal", "fast", "slow", "tiny"])
def test_extremes_are_numbers(options):
    """What is larger than any machine gives numbers all the same, in JSON and in the table, and no rate below what bounds it."""
    said = planned(*options)
    for rate in ("read", "write", "read_through_any_node", "write_through_any_node"):
        limits = [said[rate][f"{limit}_bytes_per_s"] for limit in ("disks", "network", "clients")]
        assert said[rate]["bytes_per_s"] == min(limits)
    assert 0 < said["mean_time_to_data_loss_s"] <= 1e100 and said["rebuild_disk_s"] >= 0
    done = plan(*options)
    assert done.returncode == 0 and not re.search(r"\binf\b|\bnan\b", done.stdout), done.stdout


@pytest.mark.parametrize("options, words", [
    (["--network", "fast"], "--network fast"),
    (["--network", "100G"], "100Gb"),
    (["--redundancy", "raid5"], "--redundancy raid5"),
    (["--redundancy", "ec=8+2"], "do not fit on 1 disks"),
    (["--clients", "8by4"], "--clients 8by4"),
    (["--disk-read", "0GB"], "--disk-read 0GB"),
    (["--nodes", "0"], "--nodes 0"),
    (["--efficiency", "101"], "--efficiency 101"),
    (["--capacity", "lots"], "--capacity lots"),
    (["surprise"], "plan --help"),
])
def test_bad_options(options, words):
    """One line that names the option and what it takes, status 2."""
    done = plan(*options)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
