"""Writes bench/RESULTS.md from the files of bench/results: the last run of each measurement, goal beside result. Nothing of it is written
by hand; where the time goes of what misses its goal is in bench/NOTES.md, which the page points to."""

import json
import pathlib
import re

import goals

NOTES = pathlib.Path(__file__).resolve().parent / "NOTES.md"

HEAD = """# Measured

Written by `bench/run`; `make bench` renews it. Each figure is the median of interleaved pairs (ours, reference) on one machine
in one run, with minimum and maximum; *steal* is the share of CPU time that the hypervisor gave to others meanwhile. Warm means
in the page cache, for both sides. Cold means a node with nothing in it, behind `bench/shaper`: 20 ms to the first byte, 50 MB/s
per connection, 300 MB/s in all. Buckets have `validate=ttl:1h`, so that attributes are trusted as long as the peers trust theirs.
The raw numbers of every pair are in `bench/results/`.
"""
TITLES = {"warm": "Warm reads through the mount", "small": "Small files", "small_costs": "Calls of small files", "dropped": "With the page cache dropped", "cold": "Cold reads",
          "model_cold": "A cold model", "first": "First byte", "s3": "Warm S3", "values": "Small values", "tls": "TLS", "listing": "Long listings",
          "put": "Uploads", "put_opaque": "Uploads without MD5", "put_mirror": "Uploads to a mirror", "write_back": "Write-back",
          "epoch": "Two epochs", "half": "Half a cache", "train": "Training", "checkpoint": "Checkpoints",
          "checkpoint_shards": "Checkpoints in shards", "checkpoint_back": "Checkpoints with write-back", "meta": "Names",
          "find": "Listing names", "model": "Models", "prefetch": "Prefetch", "jobs": "Import and export", "jobs_small": "Import and export of small objects",
          "jobs_large": "Import and export of 10 GB", "memory": "Memory",
          "peers_warm": "Warm, beside peers", "peers_cold": "Cold, beside peers", "peers_small": "Small files, beside peers",
          "peers_checkpoint": "Checkpoints, beside peers", "peers_train": "Training, beside peers", "peers_s3": "Warm S3, beside peers", "ceiling": "The shaper itself", "scale": "Index"}
PLOTS = {"goals.svg": "Results as shares of their goals", "costs.svg": "CPU seconds per GB", "peers_warm.svg": "Warm reads of all systems",
         "peers_cold.svg": "Cold reads of all systems", "peers_small.svg": "Small files of all systems", "s3.svg": "Warm S3",
         "peers_checkpoint.svg": "Checkpoints of all systems", "peers_train.svg": "Training on all systems", "peers_s3.svg": "Warm S3 of all systems"}
README_PLOTS = ["goals.svg", "peers_cold.svg", "costs.svg", "s3.svg"]  # the first two that there are
README_BEGIN, README_END = "<!-- written by bench/run: begin -->", "<!-- written by bench/run: end -->"


def noted():
    """The measurements that NOTES.md has a part about: {name}."""
    return set(re.findall(r"(?m)^## `(\w+)`$", NOTES.read_text()))


def where_the_time_goes(name, rows):
    """Below a table with a miss in it."""
    if all(row["met"] is not False for row in rows):
        return None
    return f"Where the time goes: [NOTES.md](NOTES.md#{name})." if name in noted() else "Where the time goes was not looked into yet."


def same_sources(before, now):
    """Whether two runs measured the same: all that a figure depends on, by its name in git; not where something was changed and not committed."""
    return bool(now.get("measured")) and before.get("measured") == now["measured"]


def spread_of(row):
    """Median, minimum and maximum of a row's ratio, or of its figure; None where it is of one run."""
    return row.get("ratio") or row.get("spread")


def agreement(before, now):
    """How many medians of a run lie within the spread of the run before on the same machine; None where there is none to compare with."""
    if not before or before["machine"] != now["machine"] or before["quick"] != now["quick"]:
        return None
    spreads = {row["title"]: spread_of(row) for row in before["rows"] if spread_of(row)}
    both = [row for row in now["rows"] if spread_of(row) and row["title"] in spreads]
    outside = [row["title"] for row in both
               if not spreads[row["title"]]["min"] <= spread_of(row)["median"] <= spreads[row["title"]]["max"]]
    return {"date": before["date"], "commit": before["commit"], "same": same_sources(before, now), "rows": len(both),
            "outside": outside} if both else None


def outside_text(found):
    return ", not that of: " + "; ".join(found["outside"]) if found["outside"] else ""


def agreement_text(found):
    inside = f"{found['rows'] - len(found['outside'])} of {found['rows']} medians lie within the spread of the run of {found['date']} at commit " \
             f"{found['commit']}" + (", which measured the same sources" if found.get("same") else "")
    return inside + outside_text(found)


def again(results):
    """Of {measurement: result} those that were made twice of the same sources on one machine, and the sum of them as a sentence."""
    twice = {name: results[name]["before"] for name in TITLES if (results.get(name, {}).get("before") or {}).get("same")}
    rows, outside = sum(one["rows"] for one in twice.values()), sum(len(one["outside"]) for one in twice.values())
    if not twice:
        return twice, "No measurement was made twice on one machine with the same sources."
    return twice, f"Made twice on one machine with the same sources: {rows - outside} of {rows} medians lie within the spread that the run before " \
                  f"printed, {len(twice)} measurement{'s' if len(twice) > 1 else ''}."


def again_section(results):
    twice, text = again(results)
    lines = [f"* `{name}`: {one['rows'] - len(one['outside'])} of {one['rows']}, before at {one['date']}{outside_text(one)}" for name, one in twice.items()]
    return "\n".join(["## A second run", "", text, *([""] + lines if lines else [])]) + "\n"


def span(value, form):
    return f"{value['median']:{form}} ({value['min']:{form}} to {value['max']:{form}})"


def cost_text(row):
    """What both sides cost beside their rates, as far as it was measured; ours alone where the other side is a number."""
    parts = []
    ours, theirs = row.get("ours_cost", {}), row.get("reference_cost", {})
    for key, name, form, scale in (("cpu_s_per_gb", "CPU s/GB", ".2f", 1), ("cpu_s_per_100k", "CPU s/100,000 requests", ".2f", 1), ("memory_bytes", "memory MiB", ".0f", 1 / (1 << 20)),
                                   ("origin_bytes", "origin bytes of the object's", ".2f", 1), ("origin_requests", "requests", ".0f", 1)):
        if key in ours:
            parts.append(f"{name} {ours[key] * scale:{form}}" + (f" against {theirs[key] * scale:{form}}" if key in theirs else ""))
    return "; ".join(parts)


def row_line(row):
    if "ratio" in row:
        form = ".0f" if row["ours"]["median"] >= 100 else ".1f"
        result = f"**{row['ratio']['median']:.3f}** ({row['ratio']['min']:.2f} to {row['ratio']['max']:.2f})"
        detail = f"{span(row['ours'], form)} against {span(row['reference'], form)} {row['unit']}, {row['n']} pairs"
        if "direct" in row:
            detail += f"; parallel ranges straight from the shaped origin: {span(row['direct'], form)}"
        if "note" in row:
            detail += "; " + row["note"]
    else:
        result, detail = f"**{row['value']}**", row.get("detail", "")
    detail = "; ".join(part for part in (detail, cost_text(row)) if part)
    met = {True: "met", False: "**missed**", None: ""}[row["met"]]
    stolen = "" if row.get("steal_percent") is None else f"{row['steal_percent']:.1f} %"
    return f"| {row['title']} | {row['goal']} | {result} | {met} | {detail} | {stolen} |"


def section(name, result):
    m = result["machine"]
    lines = [f"## {TITLES.get(name, name)}", "",
             f"`{result['command']}`, {result['date']}, forebay {result['version']} at commit {result['commit']}"
             + (f" (src {result['sources']})" if result.get("sources") else "") + f"; {m['cpu']}, "
             f"{m['cores']} cores, {m['memory_gib']} GiB, Linux {m['kernel']}, {m['system']}, {result['file_system']}"
             + (f", load average {result['load']:.1f} before" if "load" in result else "")
             + (". **Quick run: fewer pairs than a goal asks for.**" if result["quick"] else "."), "",
             result["about"], "",
             "| what | goal | result | | how much | steal |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [row_line(row) for row in result["rows"]]
    if where_the_time_goes(name, result["rows"]):
        lines += ["", where_the_time_goes(name, result["rows"])]
    if result.get("before"):
        lines += ["", f"Run again: {agreement_text(result['before'])}."]
    notes = sorted({row["mounts"] for row in result["rows"] if "mounts" in row})
    for note in notes:
        lines += ["", f"What the node said of its mount: {note}."]
    ahead = sorted({row["read_ahead_kb"] for row in result["rows"] if "read_ahead_kb" in row})
    lines += ["", f"All mounts had read_ahead_kb {' or '.join(map(str, ahead))}, read back from the kernel."] if ahead else []
    return "\n".join(lines) + "\n"


def systems_section(path):
    found = json.loads(path.read_text())
    lines = ["## Systems", "", "Each as its own documentation advises for reading large data; all mounts have the same `read_ahead_kb`. The commands "
             "are in `bench/peers.py` and `bench/front.py`." + (f" As of {found['date']}." if "date" in found else ""), "",
             "| system | version | configuration |", "| --- | --- | --- |"]
    for row in found["systems"]:
        lines.append(f"| {row['name']} | {row['version'] or 'not run: ' + row['missing']} | {row['tuning']} |")
    return "\n".join(lines) + "\n"


def plots_of(directory, names):
    return [f"![{PLOTS[name]}]({{folder}}{name})" for name in names if (directory / name).exists()]


README_TEXT = """Goal beside result, made by `make bench` and, where the measurement is a heavy one (peers, shards, a million names), `make bench ALL=1`
each on one machine: medians of interleaved pairs with minimum and maximum. Spread, machine, versions and commands are in
[bench/RESULTS.md](bench/RESULTS.md), and above its last table the runs that the rows are of. Cold means a node with nothing in it behind a proxy
that shapes the origin to 20 ms to the first byte, 50 MB/s per connection, 300 MB/s in all."""


def readme_block(directory):
    """What README carries: the table of goals and two plots."""
    directory = pathlib.Path(directory)
    return "\n\n".join([README_TEXT, goals.table(directory).rstrip(), *(line.format(folder="bench/results/") for line in plots_of(directory, README_PLOTS)[:2])])


def update_readme(path, directory):
    """Puts the block between its marks; a page without them stays as it is."""
    text = path.read_text()
    before, begin, rest = text.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if begin and end:
        path.write_text(f"{before}{begin}\n\n{readme_block(directory)}\n\n{end}{after}")


def render(directory):
    """The whole page from the JSON files of a directory."""
    directory = pathlib.Path(directory)
    sections = []
    for name in TITLES:
        path = directory / f"{name}.json"
        if path.exists():
            sections.append(section(name, json.loads(path.read_text())))
    sections.append(again_section(goals.load(directory)))
    if (directory / "systems.json").exists():
        sections.append(systems_section(directory / "systems.json"))
    folder = "" if not directory.name == "results" else "results/"
    pictures = [line.format(folder=folder) for line in plots_of(directory, list(PLOTS))]
    if pictures:
        sections.append("## Pictures\n\n" + "\n\n".join(pictures) + "\n")
    sections.append("## The promised ratios\n\nMade from the results above by `bench/goals.py`: goal beside result. The rows are of these runs:\n\n"
                    + goals.runs(directory) + "\n\n" + goals.table(directory))
    return HEAD + "\n" + "\n".join(sections)


def text_rows(rows):
    """For the terminal."""
    lines = []
    for row in rows:
        if "ratio" in row:
            result = f"{row['ratio']['median']:.3f} ({row['ratio']['min']:.3f} to {row['ratio']['max']:.3f})"
        else:
            result = row["value"] + (f" ({row['detail']})" if row["value"] == "not run" else "")
        met = {True: "met", False: "MISSED", None: ""}[row["met"]]
        lines.append(f"  {row['title']}: {result}, goal {row['goal']}: {met}")
    return "\n".join(lines)


def text_before(result):
    """For the terminal, below the rows: how they agree with the run before."""
    return f"  {agreement_text(result['before'])}\n" if result.get("before") else ""
