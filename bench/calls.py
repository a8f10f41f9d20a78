"""What each call costs that reading a warm small file takes, and how many requests it makes."""

import json
import statistics

from lab import pair_row, say
from versus import DISK, QUICK_SMALL_FILES, SMALL_BYTES, Taken, epoch, files_laid, layouts, make_objects, rounds, sources_of

FILES, PASSES = 5_000, 2
PROFILES = {"as it comes": [], "without passthrough": ["--passthrough", "off"], "--read-only": ["--read-only"],
            "--profile read-only": ["--profile", "read-only"]}
CALLS = ("lookup", "open", "read", "close")
REQUESTS = ("lookup", "getattr", "open", "read", "flush", "release", "forget")  # that a file can cause


def requests_of(node, mount):
    """What the kernel asked the mount's process so far, and what mounts asked the node."""
    operations = json.loads(node.cli("mount", "--stats", "--json", mount.dir).stdout)["operations"]
    asked = {name: operations.get(name, {"count": 0})["count"] for name in REQUESTS}
    return {**asked, "node": node.metric("forebay_requests_total", via="mount")}


def sample(lab, directory, listing, node=None, mount=None):
    """The JSON of filecosts; of a mount, with the requests for each file as `requests`."""
    before = requests_of(node, mount) if mount else {}
    said = lab.program("filecosts", directory, listing, PASSES)
    if mount:
        after, read = requests_of(node, mount), said["files"] * PASSES // (PASSES - 1)
        said["requests"] = {name: (after[name] - before[name]) / read for name in after}
    return said


def requests_text(samples):
    """Requests for each file, of all samples."""
    means = {name: sum(one["requests"][name] for one in samples) / len(samples) for name in samples[0]["requests"]}
    reached = [f"{name} {mean:.3f}" for name, mean in means.items() if name != "node" and mean >= 0.0005]
    return f"requests for each file: of the mount {', '.join(reached) or 'none'}; of the node {means['node']:.3f}"


def rows_of(taken, share, title):
    """For each profile one row for each call, and one for all of them, with the requests."""
    rows = []
    for profile in PROFILES:
        for call in CALLS:
            pairs = [(ours["calls"][call]["mean_us"], disk["calls"][call]["mean_us"]) for ours, disk in zip(taken[profile], taken[DISK])]
            middle = [statistics.median(one["calls"][call]["median_us"] for one in taken[name]) for name in (profile, DISK)]
            rows.append({**pair_row(f"{title}, {profile}: {call}, of the disk's", 1, pairs, share, "us", at_most=True),
                         "note": f"the file in the middle {middle[0]:.2f} against {middle[1]:.2f}"})
        pairs = [(ours["whole_us"], disk["whole_us"]) for ours, disk in zip(taken[profile], taken[DISK])]
        rows.append({**pair_row(f"{title}, {profile}: all four, of the disk's", 1, pairs, share, "us", at_most=True),
                     "note": requests_text(taken[profile])})
    return [{**row, "goal": "-", "met": None} for row in rows]


def small_costs(lab):
    """Each call apart that reading a warm file of 110 KB takes, one file after the other in random order by one program: lookup (stat by its
    path), open, read (all of it at once), close. Microseconds per call, the mean of all files of a pass, and beside it the median of the
    files, through a mount as it comes, without passthrough, with --read-only and with --profile read-only, which answers OPEN with ENOSYS,
    and on the disk's own file system. How many requests reached the mount's process (forebay mount --stats) and the node (its metrics) for
    each file stands beside all four. Every byte is verified before. The files are written anew on all sides before each round."""
    count = QUICK_SMALL_FILES if lab.quick else FILES
    bucket, taken = make_objects(lab, count, SMALL_BYTES), Taken()
    for which in layouts(lab):
        with files_laid(lab, bucket, count, SMALL_BYTES, PROFILES) as (plain, node, mounts):
            listing = lab.path("list")
            listing.write_text("".join(name + "\n" for name in sources_of(plain)))
            for directory in (plain, *(mount.dir for mount in mounts.values())):
                epoch(directory, 8)
            say(f"the calls of {count} small files, {len(which)} of {lab.pairs} rounds of {len(mounts) + 1}")
            taken.add(count, *rounds(lab, {**{name: lambda m=mount: sample(lab, m.dir, listing, node, m) for name, mount in mounts.items()},
                                           DISK: lambda: sample(lab, plain, listing)}, which=which))
    return [row for _, (samples, share) in taken.items() for row in rows_of(samples, share, f"{count:,} warm files of 110 KB")]


MEASURES = {"small_costs": small_costs}
