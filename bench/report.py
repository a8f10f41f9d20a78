"""Writes bench/RESULTS.md from the files of bench/results: the last run of each measurement, goal beside result."""

import json
import pathlib

HEAD = """# Measured

Written by `bench/run`; `make bench` renews it. Each figure is the median of interleaved pairs (ours, reference) on one machine
in one run, with minimum and maximum; *steal* is the share of CPU time that the hypervisor gave to others meanwhile. Warm means
in the page cache, for both sides. Cold means a node with nothing in it, behind `bench/shaper`: 20 ms to the first byte, 50 MB/s
per connection, 300 MB/s in all. The raw numbers of every pair are in `bench/results/`.
"""
TITLES = {"warm": "Warm reads through the mount", "cold": "Cold reads", "first": "First byte", "s3": "Warm S3",
          "epoch": "Two epochs", "memory": "Memory", "scale": "Index"}

# Why a goal is missed where it is, as far as it was looked into; shown below a table with a miss in it.
CAUSES = {
    "warm": "To 4 KiB random reads the kernel's passthrough adds about 0.13 microseconds to about 1.05: fuse_file_read_iter, "
            "backing_file_read_iter, vfs_iter_read and fuse_invalidate_atime, in a profile. Extents have no access times, which gives "
            "part of that back. The page cache keeps a file in folios as large as the writes that made it, until it is evicted: "
            "fills write 512 KiB at once, the file that they are compared with was written by 1 MiB. Larger writes of fills were "
            "tried and made cold reads slower by more than they gave here.",
}


def span(value, form):
    return f"{value['median']:{form}} ({value['min']:{form}} to {value['max']:{form}})"


def row_line(row):
    if "ratio" in row:
        form = ".0f" if row["ours"]["median"] >= 100 else ".1f"
        result = f"**{row['ratio']['median']:.3f}** ({row['ratio']['min']:.2f} to {row['ratio']['max']:.2f})"
        detail = f"{span(row['ours'], form)} against {span(row['reference'], form)} {row['unit']}, {row['n']} pairs"
        if "direct" in row:
            detail += f"; parallel ranges straight from the shaped origin: {span(row['direct'], form)}"
    else:
        result, detail = f"**{row['value']}**", row.get("detail", "")
    met = {True: "met", False: "**missed**", None: ""}[row["met"]]
    stolen = "" if row.get("steal_percent") is None else f"{row['steal_percent']:.1f} %"
    return f"| {row['title']} | {row['goal']} | {result} | {met} | {detail} | {stolen} |"


def section(name, result):
    m = result["machine"]
    lines = [f"## {TITLES.get(name, name)}", "",
             f"`{result['command']}`, {result['date']}, forebay {result['version']} at commit {result['commit']}; {m['cpu']}, "
             f"{m['cores']} cores, {m['memory_gib']} GiB, Linux {m['kernel']}, {m['system']}, {result['file_system']}"
             + (f", load average {result['load']:.1f} before" if "load" in result else "")
             + (". **Quick run: fewer pairs than a goal asks for.**" if result["quick"] else "."), "",
             result["about"], "",
             "| what | goal | result | | how much | steal |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [row_line(row) for row in result["rows"]]
    if name in CAUSES and any(row["met"] is False for row in result["rows"]):
        lines += ["", CAUSES[name]]
    notes = sorted({row["mounts"] for row in result["rows"] if "mounts" in row})
    for note in notes:
        lines += ["", f"What the node said of its mount: {note}."]
    return "\n".join(lines) + "\n"


def render(directory):
    """The whole page from the JSON files of a directory."""
    directory = pathlib.Path(directory)
    sections = []
    for name in TITLES:
        path = directory / f"{name}.json"
        if path.exists():
            sections.append(section(name, json.loads(path.read_text())))
    return HEAD + "\n" + "\n".join(sections)


def text_rows(rows):
    """For the terminal."""
    lines = []
    for row in rows:
        if "ratio" in row:
            result = f"{row['ratio']['median']:.3f} ({row['ratio']['min']:.3f} to {row['ratio']['max']:.3f})"
        else:
            result = row["value"]
        met = {True: "met", False: "MISSED", None: ""}[row["met"]]
        lines.append(f"  {row['title']}: {result}, goal {row['goal']}: {met}")
    return "\n".join(lines)
