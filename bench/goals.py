"""The promised ratios: which rows of the measurements each goal stands for, and the table of goal and result that they make."""

import json
import pathlib
import re

# what, reference, goal; measurement and the titles of its rows. In the order of the page.
GOALS = [
    ("warm reads through the mount: 1 MiB sequential, 128 KiB and 4 KiB random, mmap", "the same file on the disk's own file system",
     "at least 0.95", [("warm", r"^Warm reads through the mount")]),
    ("checkpoint write through the mount, fsync included; read back", "the same on the disk's own file system", "at least 0.90",
     [("checkpoint", r"^Checkpoint"), ("checkpoint_shards", r"^Checkpoint"), ("checkpoint_back", r"^Checkpoint")]),
    ("20,000 warm files of 110 KB, open + read + close, random order", "the same on the disk's own file system",
     "at least 0.40 through the mount, 0.50 read-only, 1.0 through the library", [("small", r"of the disk's$")]),
    ("names on scratch: 100,000 empty files", "-", "10,000 creates/s, 40,000 stats/s, find under 3 s cold",
     [("meta", r"^(create|stat) of"), ("find", r"^find")]),
    ("warm S3 GET at 4 KiB, 100 KiB, 1 MiB, 10 MiB, signatures verified", "nginx with sendfile, same connections",
     "at least 1.0; 0.5 at 4 KiB", [("s3", r"nginx with sendfile( and our congestion control)?$")]),
    ("warm S3 GET over TLS", "the lower of plain and AES-GCM x cores", "at least 0.7", [("tls", r"^Warm S3 GET")]),
    ("S3 PUT of 64 x 16 MiB to scratch, durable", "receive + MD5 + crc + write + fsync; versitygw and MinIO; without MD5 the lower of fio and loopback", "at least 0.8; 1.5; 0.8",
     [("put", r"^PUT"), ("put_opaque", r"^PUT")]),
    ("write-back acknowledges a PUT of 1 GiB", "the scratch PUT", "at least 0.8", [("write_back", r"^PUT")]),
    ("S3 gets of 1 KiB values", "-", "50,000/s", [("values", r"^Gets")]),
    ("S3 listing of 1 million objects", "-", "under 30 s, memory flat", [("listing", r"")]),
    ("cold read through mount and S3 from a shaped origin", "the origin's own shaped rate",
     "at least 0.95 of the rate, first byte within 1.2 origin round trips, 2.2 when not listed",
     [("cold", r"^Cold sequential read"), ("first", r"^First byte")]),
    ("cold safetensors model, mmap, shuffled tensors", "one cold sequential read", "at most 1.3 of its time", [("model_cold", r"^Cold model")]),
    ("prefetch, import, export from and to a shaped origin", "what the origin allows", "at least 0.9",
     [("prefetch", r"^Prefetch"), ("jobs", r"^(Import|Export)")]),
    ("origin bytes, first epoch / later epochs / cache of half the data set", "the data set's bytes", "at most 1.02 / 0 / 0.55",
     [("epoch", r"^Bytes from the origin"), ("half", r"^Origin bytes")]),
    ("emulated training, accelerator utilisation", "the same loop on tmpfs", "warm: no less than tmpfs minus 1 point",
     [("train", r"^Emulated training")]),
    ("resident memory under 64 streams", "`--memory`", "never above it plus 64 MiB", [("memory", r"^Memory of")]),
    ("index of 50 million entries", "-", "ready within 10 s, memory within `--memory`", [("scale", r"entries: (ready|anonymous memory)")]),
]
PEER_GOAL = "ahead of each, CPU seconds per GB too"
PEER_GOALS = {"peers_train": "within a hundredth of each, CPU seconds per GB too"}  # nobody can be ahead of an accelerator that never waits
PEER_MEASURES = ["peers_warm", "peers_cold", "peers_small", "peers_checkpoint", "peers_train", "peers_s3"]


def load(directory):
    """{measurement: result} of the files of a directory."""
    found = {}
    for path in sorted(pathlib.Path(directory).glob("*.json")):
        result = json.loads(path.read_text())
        if isinstance(result, dict) and "rows" in result:
            found[path.stem] = result
    return found


def result_text(row):
    if "ratio" in row:
        return f"{row['ratio']['median']:.2f} ({row['ratio']['min']:.2f} to {row['ratio']['max']:.2f})"
    return row["value"] + (f" ({row['detail']})" if row["value"] == "not run" else "")


def verdict(met):
    return {True: "met", False: "**missed**", None: ""}[met]


def without(title, work):
    """What a row's title adds to its goal's own words."""
    short = re.sub(r"^(Warm reads through the mount|Checkpoint write through the mount, fsync included|Emulated training|"
                   r"Bytes from the origin in|Memory of)[, ]*", "", title)
    return re.sub(r", of the (disk's|data set's|origin's 300 MB/s)|, against nginx with sendfile$|, of tmpfs's$", "", short)


def goal_rows(results):
    """Lines of (work, reference, goal, what, result, met) for every row of every goal; goals without a row are told as not run, and so is a
    row of its own that has a goal and could not be measured."""
    lines = []
    for work, reference, goal, sources in GOALS:
        for measure, pattern in sources:
            rows = [row for row in results.get(measure, {}).get("rows", [])
                    if re.search(pattern, row["title"]) and (row.get("value") != "not run" or row["goal"] != "-")]
            if not rows:
                reason = next((row["detail"] for row in results.get(measure, {}).get("rows", []) if row.get("value") == "not run"),
                              f"`bench/run --only {measure}` has no result here")
                lines.append((work, reference, goal, "", f"not run ({reason})", None))
            for row in rows:
                lines.append((work, reference, row["goal"], without(row["title"], work), result_text(row), row["met"]))
    return lines


def cheaper(row):
    """Their CPU seconds per GB over ours, or None."""
    ours, theirs = (row.get(key, {}).get("cpu_s_per_gb") for key in ("ours_cost", "reference_cost"))
    return theirs / ours if ours and theirs else None


def peer_rows(results):
    """(title, result, met, goal) for each kind of work: every peer's ratio, and how many times our CPU time it takes for a GB; and those that were not run.
    What the machine and the origin give by themselves ("beside") is shown, and no peer to be ahead of."""
    lines = []
    for measure in PEER_MEASURES:
        titles, absent, goal = {}, [], PEER_GOALS.get(measure, PEER_GOAL)
        for row in results.get(measure, {}).get("rows", []):
            if "peer" in row and "ratio" in row:
                titles.setdefault(row["title"].rsplit(", against ", 1)[0], []).append(row)
            elif "peer" in row:
                absent.append(f"{row['peer']} not run ({row['detail']})")
        for title, rows in titles.items():
            parts, verdicts = [], []
            for row in rows:
                times = cheaper(row)
                parts.append(f"{row['peer']} {row['ratio']['median']:.2f}" + (f", CPU {times:.1f}" if times else ""))
                if not row.get("beside"):
                    verdicts.append(row["met"] and (times is None or times >= 1))
            lines.append((title, "; ".join(parts + absent), all(verdicts) if verdicts else None, goal))
        if not titles:
            lines.append((f"`bench/run --only {measure}`", "not run", None, goal))
    return lines


def runs(directory):
    """Which runs the rows of the table are of: for each commit its measurements, and when it was first and last measured."""
    results, commits = load(directory), {}
    for measure in [*dict.fromkeys(measure for *_, sources in GOALS for measure, _ in sources), *PEER_MEASURES]:
        if measure in results:
            commits.setdefault(results[measure]["commit"], []).append(measure)
    parts = []
    for commit, measures in sorted(commits.items(), key=lambda one: max(results[m]["date"] for m in one[1]), reverse=True):
        dates = sorted(results[measure]["date"] for measure in measures)
        span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        parts.append(f"* commit {commit}, {span}: " + ", ".join(f"`{measure}`" for measure in measures))
    return "\n".join(parts)


def table(directory):
    """The page's last table, from the results alone."""
    results = load(directory)
    lines = ["| work | reference in the same run | goal | | result | |", "| --- | --- | --- | --- | --- | --- |"]
    last = None
    for work, reference, goal, what, result, met in goal_rows(results):
        first = work != last
        lines.append(f"| {work if first else ''} | {reference if first else ''} | {goal} | {what} | {result} | {verdict(met)} |")
        last = work
    for i, (title, result, ahead, goal) in enumerate(peer_rows(results)):
        lines.append(f"| {'peers on all of the above' if i == 0 else ''} | {'each peer in the same rounds: our rate over theirs, their CPU seconds per GB over ours' if i == 0 else ''} "
                     f"| {goal} | {title} | {result} | {verdict(ahead)} |")
    return "\n".join(lines) + "\n"
