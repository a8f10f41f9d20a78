"""The promised ratios: which rows of the measurements each goal stands for, and the table of goal and result that they make."""

import json
import pathlib
import re
import statistics

PAIRS = 9  # what a goal asks for: of fewer the verdict says how many
ORDER_ROUNDS, ORDER_FACTOR = 3, 2  # of each order at least; by more than that their medians differ

# what, reference, goal; measurement and the titles of its rows. In the order of the page.
GOALS = [
    ("warm reads through the mount: 1 MiB sequential, 128 KiB and 4 KiB random, mmap", "the same file on the disk's own file system",
     "at least 0.95", [("warm", r"^Warm reads through the mount")]),
    ("checkpoint write through the mount, fsync included; read back", "the same on the disk's own file system", "at least 0.90",
     [("checkpoint", r"^Checkpoint"), ("checkpoint_shards", r"^Checkpoint"), ("checkpoint_back", r"^Checkpoint")]),
    ("20,000 warm files of 110 KB, open + read + close, random order", "the same on the disk's own file system",
     "at least 0.40 through the mount, 0.50 read-only, 1.0 through the library", [("small", r"of the disk's$"), ("small_polling", r"of the disk's$")]),
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
     [("cold", r"^Cold sequential read"), ("first", r"^First byte"),
      ("uneven", r"of the origin's own$|of parallel ranges straight from it$")]),
    ("cold safetensors model, mmap, shuffled tensors", "one cold sequential read", "at most 1.3 of its time", [("model_cold", r"^Cold model")]),
    ("prefetch, import, export from and to a shaped origin", "what the origin allows", "at least 0.9",
     [("prefetch", r"^Prefetch"), ("jobs", r"^(Import|Export)"), ("jobs_large", r"^(Import|Export)")]),
    ("origin bytes, first epoch / later epochs / cache of half the data set", "the data set's bytes", "at most 1.02 / 0 / 0.55",
     [("epoch", r"^Bytes from the origin"), ("half", r"^Origin bytes")]),
    ("emulated training, accelerator utilisation", "the same loop on tmpfs", "warm: no less than tmpfs minus 1 point",
     [("train", r"^Emulated training")]),
    ("resident memory under 64 streams", "`--memory`", "never above it plus 64 MiB", [("memory", r"^Memory of")]),
    ("index of 50 million entries", "-", "ready within 10 s, memory within `--memory`", [("scale", r"entries: (ready|anonymous memory)")]),
]
PEER_GOAL = "ahead of each, CPU seconds per GB too"
PEER_GOALS = {"peers_train": "within a hundredth of each, CPU seconds per GB too"}  # nobody can be ahead of an accelerator that never waits
PEER_LESS_GOAL = "at most {:g} of each's"  # where less is better
PEER_MEASURES = ["peers_warm", "peers_cold", "peers_small", "peers_checkpoint", "peers_train", "peers_s3", "peers_first", "peers_epochs", "peers_memory"]


def goal_of(row):
    """(the ratio that is promised, whether at most), or None."""
    words = row["goal"].split()
    return (float(words[-1]), words[1] == "most") if words[0] == "at" and words[-1].replace(".", "").isdigit() else None


def by_order(row):
    """The medians of the even and of the odd rounds, which go in opposite orders, where they lie on different sides of the goal and differ by
    more than a factor of two: what decides then is who came first, and the median of all is that of the order with one round more. Else None."""
    pairs, goal = row.get("pairs", []), goal_of(row)
    if "ratio" not in row or goal is None or len(pairs) < 2 * ORDER_ROUNDS or not all(min(pair) > 0 for pair in pairs):
        return None
    even, odd = (statistics.median(ours / theirs for ours, theirs in pairs[first::2]) for first in (0, 1))
    sides = {even == goal[0] or (even < goal[0]) == goal[1], odd == goal[0] or (odd < goal[0]) == goal[1]}
    return [even, odd] if len(sides) == 2 and max(even, odd) > ORDER_FACTOR * min(even, odd) else None


def judged(row):
    """A row whose result is that of the order has no verdict."""
    order = by_order(row)
    return {**row, "met": None, "order": order} if order else row


def load(directory):
    """{measurement: result} of the files of a directory."""
    found = {}
    for path in sorted(pathlib.Path(directory).glob("*.json")):
        result = json.loads(path.read_text())
        if isinstance(result, dict) and "rows" in result:
            found[path.stem] = {**result, "rows": [judged(row) for row in result["rows"]]}
    return found


def result_text(row):
    if "ratio" in row:
        return f"{row['ratio']['median']:.2f} ({row['ratio']['min']:.2f} to {row['ratio']['max']:.2f})"
    return row["value"] + (f" ({row['detail']})" if row["value"] == "not run" else "")


def order_text(order):
    return "depends on the order: " + " and ".join(f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}" for ratio in order)


def verdict(met, n=None):
    """With the number of pairs where it is below what a goal asks for."""
    few = f" ({n} pair{'' if n == 1 else 's'})" if met is not None and n is not None and n < PAIRS else ""
    return {True: "met", False: "**missed**", None: ""}[met] + few


def row_verdict(row):
    return order_text(row["order"]) if "order" in row else verdict(row["met"], row.get("n"))


def without(title, work):
    """What a row's title adds to its goal's own words."""
    short = re.sub(r"^(Warm reads through the mount|Checkpoint write through the mount, fsync included|Emulated training|"
                   r"Bytes from the origin in|Memory of)[, ]*", "", title)
    return re.sub(r", of the (disk's|data set's|origin's 300 MB/s)|, against nginx with sendfile$|, of tmpfs's$", "", short)


def goal_rows(results):
    """Lines of (work, reference, goal, what, result, verdict, measurement, row) for every row of every goal; goals without a row are told as not
    run, with None as the row, and so is a row of its own that has a goal and could not be measured."""
    lines = []
    for work, reference, goal, sources in GOALS:
        for measure, pattern in sources:
            rows = [row for row in results.get(measure, {}).get("rows", [])
                    if re.search(pattern, row["title"]) and (row.get("value") != "not run" or row["goal"] != "-")]
            if not rows:
                reason = next((row["detail"] for row in results.get(measure, {}).get("rows", []) if row.get("value") == "not run"),
                              f"`bench/run --only {measure}` has no result here")
                lines.append((work, reference, goal, "", f"not run ({reason})", "", measure, None))
            for row in rows:
                lines.append((work, reference, row["goal"], without(row["title"], work), result_text(row), row_verdict(row), measure, row))
    return lines


def cheaper(row):
    """Their CPU seconds per GB over ours: {"median", "min", "max"} of the pairs, as of a rate; of a row without them, as older
    results have it, the ratio of the medians for all three; or None."""
    if "cpu" in row:
        return row["cpu"]
    ours, theirs = (row.get(key, {}).get("cpu_s_per_gb") for key in ("ours_cost", "reference_cost"))
    return dict.fromkeys(("median", "min", "max"), theirs / ours) if ours and theirs else None


def cpu_met(row):
    """Whether ours takes no more processor time than a peer in any pair, or more in each; None where it is more in some and less
    in others: the difference lies within the spread, and says nothing. True where it is not compared."""
    times = cheaper(row)
    return True if times is None or times["min"] >= 1 else False if times["max"] < 1 else None


def peer_met(row):
    """Whether we are ahead of a peer in both; None where one of the two has no verdict and the other is no miss."""
    both = row["met"], cpu_met(row)
    return False if False in both else None if None in both else True


def cpu_text(row):
    times = cheaper(row)
    if times is None:
        return ""
    if "cpu" not in row:
        return f", CPU {times['median']:.1f}"
    form = ".1f" if times["median"] >= 10 else ".2f"
    return f", CPU {times['median']:{form}} ({times['min']:{form}} to {times['max']:{form}})"


def peer_text(row):
    return f"{row['peer']} {result_text(row)}{cpu_text(row)}" + (f", {order_text(row['order'])}" if "order" in row else "")


def peer_verdict(rows):
    """Of one kind of work: (met, what stands there). Behind one is missed, whatever the others are; else a ratio that depends on
    the order, or processor time within the spread, leaves no verdict."""
    others = [row for row in rows if not row.get("beside")]
    verdicts = [peer_met(row) for row in others]
    met = False if False in verdicts else True if verdicts and None not in verdicts else None
    if met is None and any("order" in row for row in rows):
        return met, "depends on the order"
    if met is None and all(row["met"] for row in others) and others:
        return met, "CPU within the spread: " + ", ".join(row["peer"] for row in others if cpu_met(row) is None)
    return met, verdict(met, min(row["n"] for row in rows))


def peer_goal(measure, rows):
    """What the rows of one kind of work are to reach beside each peer."""
    promised = next((goal_of(row) for row in rows if goal_of(row)), None)
    if not promised or not promised[1]:
        return PEER_GOALS.get(measure, PEER_GOAL)
    return PEER_LESS_GOAL.format(promised[0]) + (", CPU seconds per GB too" if any(cheaper(row) for row in rows) else "")


def peer_rows(results):
    """(title, result, met, goal, verdict, measurement) for each kind of work: every peer's ratio, and how many times our CPU time
    it takes for a GB; and those that were not run. What the machine and the origin give by themselves ("beside") is shown, and no
    peer to be ahead of."""
    lines = []
    for measure in PEER_MEASURES:
        titles, absent = {}, {}
        for row in results.get(measure, {}).get("rows", []):
            if "peer" in row:
                (titles if "ratio" in row else absent).setdefault(row["title"].rsplit(", against ", 1)[0], []).append(row)
        of_all = [row for title, rows in absent.items() if title not in titles for row in rows]
        for title, rows in titles.items():
            met, said = peer_verdict(rows)
            missing = [f"{row['peer']} not run ({row['detail']})" for row in absent.get(title, []) + of_all]
            lines.append((title, "; ".join([peer_text(row) for row in rows] + missing), met, peer_goal(measure, rows), said, measure))
        if not titles:
            lines.append((f"`bench/run --only {measure}`", "not run", None, peer_goal(measure, []), "", measure))
    return lines


def in_table(results):
    """The measurements that the table has rows of, as far as there are results."""
    named = [*dict.fromkeys(measure for *_, sources in GOALS for measure, _ in sources), *PEER_MEASURES]
    return {measure: results[measure] for measure in named if measure in results}


def newest(results):
    """The last of the runs that the table has rows of, or None."""
    return max(in_table(results).values(), key=lambda result: result["date"], default=None)


def run_text(results, measure):
    """When a line was measured; and of which processor, and that it is of older sources, where that is not as in the newest run; and that it could not be
    measured again."""
    if measure not in results:
        return ""
    result, last = results[measure], newest(results)
    parts = [result["date"].split()[0]]
    if result["machine"].get("cpu") != last["machine"].get("cpu"):
        parts.append(result["machine"].get("cpu", "another processor"))
    parts += ["older sources"] if result.get("sources") != last.get("sources") else []
    return ", ".join(parts + (["**failed when tried again**"] if "failed" in result else []))


def machine_text(machine):
    idle = {None: "", 0: ", idle processors halt at once"}.get(machine.get("halt_poll_ns"), f", idle processors poll for {machine.get('halt_poll_ns')} ns")
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, {machine['system']}{idle}"


def machines(directory):
    """A sentence about the machines of the table's rows."""
    last = newest(load(directory))
    if last is None:
        return "There are no results."
    return (f"The newest run, of {last['date']} at commit {last['commit']}, is of this machine: {machine_text(last['machine'])}. The last column tells when a row was "
            "measured, and names the processor where it was another one, and older sources where src/ was not that of the newest run.")


def notes(directory):
    """What stands above the table: machines, and peers that are not in it."""
    return [machines(directory), *([absent(directory)] if absent(directory) else [])]


def absent(directory):
    """A sentence about the systems that could not be had when the last run began, or None."""
    path = pathlib.Path(directory) / "systems.json"
    systems = json.loads(path.read_text())["systems"] if path.exists() else []
    missing = [f"{system['name']} ({system['missing']})" for system in systems if system["missing"]]
    return f"Peers that are not in the table: {'; '.join(missing)}." if missing else None


def runs(directory):
    """Which runs the rows of the table are of: for each commit its measurements, and when it was first and last measured."""
    results, commits = load(directory), {}
    for measure in in_table(results):
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
    lines = ["| work | reference in the same run | goal | | result | | run |", "| --- | --- | --- | --- | --- | --- | --- |"]
    last = None
    for work, reference, goal, what, result, said, measure, _row in goal_rows(results):
        first = work != last
        lines.append(f"| {work if first else ''} | {reference if first else ''} | {goal} | {what} | {result} | {said} | {run_text(results, measure)} |")
        last = work
    for i, (title, result, _met, goal, said, measure) in enumerate(peer_rows(results)):
        lines.append(f"| {'peers on all of the above' if i == 0 else ''} | {'each peer in the same rounds: our rate over theirs (where less is better ours over theirs, too), their CPU seconds per GB over ours' if i == 0 else ''} "
                     f"| {goal} | {title} | {result} | {said} | {run_text(results, measure)} |")
    return "\n".join(lines) + "\n"
