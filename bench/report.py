"""Writes bench/RESULTS.md from the files of bench/results: the last run of each measurement, goal beside result. Nothing of it is written
by hand; where the time goes of what misses its goal is in bench/NOTES.md, which the page points to."""

import json
import math
import pathlib
import re

import flames
import goals

NOTES = pathlib.Path(__file__).resolve().parent / "NOTES.md"
SAME_SHARE = 0.01  # two runs are not told apart by less than this of a median

HEAD = """# Measured

Written by `bench/run`; `make bench` renews it. Each figure is the median of interleaved pairs (ours, reference) on one machine
in one run, with minimum and maximum, and there is no verdict where who came first in a round decides it, nor beside a peer whose processor
time for each GB is more than ours in some pairs and less in others; *steal* is the share of
CPU time that the hypervisor gave to others meanwhile. Warm means in the page cache, for both sides. Cold means a node with nothing in it, behind `bench/shaper`: 20 ms to the first byte, 50 MB/s
per connection, 300 MB/s in all. Buckets have `validate=ttl:1h`, so that attributes are trusted as long as the peers trust theirs.
The raw numbers of every pair are in `bench/results/`.
"""
TITLES = {"warm": "Warm reads through the mount", "small": "Small files", "small_polling": "Small files, idle processors polling", "small_costs": "Calls of small files", "dropped": "With the page cache dropped", "cold": "Cold reads",
          "model_cold": "A cold model", "first": "First byte", "s3": "Warm S3", "values": "Small values", "tls": "TLS", "listing": "Long listings",
          "put": "Uploads", "put_opaque": "Uploads without MD5", "put_mirror": "Uploads to a mirror", "write_back": "Write-back",
          "epoch": "Two epochs", "half": "Half a cache", "train": "Training", "checkpoint": "Checkpoints",
          "checkpoint_shards": "Checkpoints in shards", "checkpoint_back": "Checkpoints with write-back", "meta": "Names",
          "find": "Listing names", "scratch_writes": "Writes in place", "scratch_reads": "Reads of scratch files",
          "scratch_creates": "Files with contents", "model": "Models", "prefetch": "Prefetch", "prefetch_https": "Prefetch over https", "cold_names": "Cold files by name", "jobs": "Import and export", "jobs_small": "Import and export of small objects",
          "jobs_large": "Import and export of 10 GB", "memory": "Memory",
          "peers_warm": "Warm, beside peers", "peers_cold": "Cold, beside peers", "peers_small": "Small files, beside peers",
          "peers_checkpoint": "Checkpoints, beside peers", "peers_train": "Training, beside peers", "peers_s3": "Warm S3, beside peers",
          "peers_first": "First byte, beside peers", "peers_epochs": "Two epochs and half a cache, beside peers", "peers_memory": "Memory, beside peers",
          "peers_dropped": "With the page cache dropped, beside peers", "uneven": "An uneven origin, beside peers", "ceiling": "The shaper itself", "scale": "Index"}
PLOTS = {"goals.svg": "Results as shares of their goals", "costs.svg": "CPU seconds per GB", "peers_warm.svg": "Warm reads of all systems",
         "peers_cold.svg": "Cold reads of all systems", "peers_small.svg": "Small files of all systems", "s3.svg": "Warm S3",
         "peers_checkpoint.svg": "Checkpoints of all systems", "peers_train.svg": "Training on all systems", "peers_s3.svg": "Warm S3 of all systems",
         "peers_first.svg": "First bytes of all systems", "peers_epochs.svg": "Bytes from the origin of all systems", "peers_memory.svg": "Memory of all systems"}
README_PLOTS = ["goals.svg", "peers_cold.svg", "costs.svg", "s3.svg"]  # the first two that there are
REASON_LETTERS = 40  # a reason is longer
README_BEGIN, README_END = "<!-- written by bench/run: begin -->", "<!-- written by bench/run: end -->"


def noted():
    """The measurements that NOTES.md has a part about: {name}."""
    return set(re.findall(r"(?m)^## `(\w+)`$", NOTES.read_text()))


def explained(name):
    """What the part of NOTES.md about a measurement says it knows the reason of: the words between backquotes in its paragraphs that begin with "Missed:" and
    have more in them than those words."""
    part = re.search(rf"(?ms)^## `{name}`$(.*?)(?=^## |\Z)", NOTES.read_text())
    paragraphs = [text for text in re.split(r"\n\s*\n", part.group(1)) if text.lstrip().startswith("Missed:")] if part else []
    return [key for text in paragraphs if len(re.sub(r"`[^`]*`|\W", "", text)) > len("Missed") + REASON_LETTERS for key in re.findall(r"`([^`]+)`", text)]


def unexplained(name, rows):
    """The titles of missed rows that no such words are part of."""
    missed = [row["title"] for row in rows
              if row["met"] is False or (name in goals.PEER_MEASURES and not row.get("beside") and goals.peer_met(row) is False)]
    keys = explained(name)
    return missed, [title for title in missed if not any(key in title for key in keys)]


def where_the_time_goes(name, rows):
    """Below a table with a miss in it."""
    missed, unknown = unexplained(name, rows)
    parts = [f"Where the time goes: [NOTES.md](NOTES.md#{name})."] if missed and name in noted() else []
    return " ".join(parts + ([f"It was not looked into where it goes in: {'; '.join(unknown)}."] if unknown else [])) or None


def flames_of(directory, name, rows):
    """Below that: the flame graphs, as `bench/run --flames` drew them last."""
    path = directory / "flames" / f"{name}.json"
    if not unexplained(name, rows)[0] or not path.exists():
        return []
    found, folder = json.loads(path.read_text()), "" if directory.name != "results" else "results/"
    return ["", f"Flame graphs of ours (`{found['command']}`, {found['date']}, commit {found['commit']}; {goals.machine_text(found['machine'])}), and whose the "
            "processors' time was:", "",
            *(f"* [{one['title']}]({folder}flames/{one['file']}): {flames.shares(one)}" for one in found["graphs"])]


def same_sources(before, now):
    """Whether two runs measured the same: all that a figure depends on, by its name in git; not where something was changed and not committed."""
    return bool(now.get("measured")) and before.get("measured") == now["measured"]


def spread_of(row):
    """Median, minimum and maximum of a row's ratio, or of its figure; None where it is of one run."""
    return row.get("ratio") or row.get("spread")


def same_machine(before, now):
    """As far as the older result tells: newer ones may say more of a machine."""
    return all(now.get(key) == value for key, value in before.items())


def is_outside(median, former):
    """Whether a median is not that of the run before. Nine pairs of a rate that the shaper holds differ by less than two runs of one program do, so
    that a spread counts as SAME_SHARE of its median at least, to both sides."""
    least = SAME_SHARE * former["median"]
    return not min(former["min"], former["median"] - least) <= median <= max(former["max"], former["median"] + least)


def by_chance(pairs):
    """The share of medians that lie outside of the spread of the run before where both runs measure the very same: of 2 * pairs samples in any order,
    those orders in which more than half of the second run's come before, or behind, all of the first's."""
    return 2 * math.comb(2 * pairs - (pairs // 2 + 1), pairs) / math.comb(2 * pairs, pairs)


def agreement(before, now):
    """How many medians of a run lie within the spread of the run before on the same machine, and what each was then; None where there is none to
    compare with."""
    if not before or not same_machine(before["machine"], now["machine"]) or before["quick"] != now["quick"]:
        return None
    former = {row["title"]: {**spread_of(row), "met": goals.judged(row)["met"]} for row in before["rows"] if spread_of(row)}
    both = [row for row in now["rows"] if spread_of(row) and row["title"] in former]
    return {"date": before["date"], "commit": before["commit"], "same": same_sources(before, now), "rows": len(both),
            "former": {row["title"]: former[row["title"]] for row in both}} if both else None


def outside_of(result):
    """The titles of the rows whose medians lie outside of the spread of the run before; `outside` is how results of before 2026-11-28 have it."""
    found, rows = result["before"], {row["title"]: row for row in result["rows"]}
    if "former" not in found:
        return found["outside"]
    return [title for title, then in found["former"].items() if title in rows and is_outside(spread_of(rows[title])["median"], then)]


def compared(result):
    """Of the run before: (title, medians then and now, verdicts then and now where that turned, whether outside, whether there is a goal) for each row
    that lies outside of its spread or whose verdict turned. Medians are None where the run before was written down without them."""
    found, lines, all_outside = result["before"], [], outside_of(result)
    rows = {row["title"]: row for row in result["rows"]}
    for title in found.get("former", all_outside):
        then, row, outside = found.get("former", {}).get(title), rows.get(title), title in all_outside
        turned = then is not None and row is not None and then["met"] != row["met"]
        if outside or turned:
            medians = None if then is None or row is None else [figure(one["median"], "ratio" in row) for one in (then, spread_of(row))]
            judged = row is not None and (row["goal"] != "-" or turned)
            lines.append((title, medians, (then["met"], row["met"]) if turned else None, outside, judged))
    return lines


def figure(value, ratio):
    return f"{value:.3f}" if ratio else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def compared_text(title, medians, turned, outside, judged):
    """One row of them, as a person reads it."""
    words = [f"{medians[0]} before, {medians[1]} now"] if medians else []
    words += [] if outside else ["within the spread"]
    if turned:
        words.append("the verdict turned: " + ", ".join(goals.verdict(met) or "none" for met in turned))
    elif medians and judged:
        words.append("the same verdict")
    return title + (f" ({'; '.join(words)})" if words else "")


def agreement_text(result):
    found = result["before"]
    inside = f"{found['rows'] - len(outside_of(result))} of {found['rows']} medians lie within the spread of the run of {found['date']} at commit " \
             f"{found['commit']}" + (", which measured the same sources" if found.get("same") else "")
    outside, turned = ([compared_text(*one) for one in compared(result) if one[3] == which] for which in (True, False))
    return inside + (", not that of: " + "; ".join(outside) if outside else "") + (". Beside these: " + "; ".join(turned) if turned else "")


def again(results):
    """Of {measurement: result} those that were made twice of the same sources on one machine, and the sum of them as a sentence."""
    twice = {name: results[name] for name in TITLES if (results.get(name, {}).get("before") or {}).get("same")}
    rows, outside = sum(one["before"]["rows"] for one in twice.values()), sum(len(outside_of(one)) for one in twice.values())
    if not twice:
        return twice, "No measurement was made twice on one machine with the same sources."
    text = f"Made twice on one machine with the same sources: {rows - outside} of {rows} medians lie within the spread that the run before " \
           f"printed (or {SAME_SHARE:.0%} of its median, where the spread is less), {len(twice)} measurement{'s' if len(twice) > 1 else ''}; " \
           f"where two runs differ by chance alone, {by_chance(9):.1%} of medians of nine pairs lie outside."
    if all("former" in one["before"] for one in twice.values()):
        turned = sum(1 for one in twice.values() for row in compared(one) if row[2])
        text += f" {turned or 'No'} verdict{'' if turned == 1 else 's'} turned."
    return twice, text


def again_section(results):
    """Each measurement that was made twice, and below it each row that is not as it was."""
    twice, text = again(results)
    lines = []
    for name, result in twice.items():
        found = result["before"]
        lines.append(f"* `{name}`: {found['rows'] - len(outside_of(result))} of {found['rows']}, before at {found['date']}")
        lines += [f"  * {compared_text(*one)}" for one in compared(result)]
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
            more = f" (theirs over ours {span(row['cpu'], '.2f')})" if key == "cpu_s_per_gb" and "cpu" in row else ""
            parts.append(f"{name} {ours[key] * scale:{form}}" + (f" against {theirs[key] * scale:{form}}" if key in theirs else "") + more)
    return "; ".join(parts)


def row_line(row):
    if "ratio" in row:
        form = ".0f" if row["ours"]["median"] >= 100 else ".1f"
        result = f"**{row['ratio']['median']:.3f}** ({row['ratio']['min']:.2f} to {row['ratio']['max']:.2f})"
        detail = f"{span(row['ours'], form)} against {span(row['reference'], form)} {row['unit']}, {row['n']} pair{'' if row['n'] == 1 else 's'}"
        if "direct" in row:
            detail += f"; parallel ranges straight from the shaped origin: {span(row['direct'], form)}"
        if "note" in row:
            detail += "; " + row["note"]
    else:
        result, detail = f"**{row['value']}**", row.get("detail", "")
    detail = "; ".join(part for part in (detail, cost_text(row)) if part)
    stolen = "" if row.get("steal_percent") is None else f"{row['steal_percent']:.1f} %"
    return f"| {row['title']} | {row['goal']} | {result} | {goals.row_verdict(row)} | {detail} | {stolen} |"


def failed_lines(result):
    """Above a table that is older than the last try."""
    found = result.get("failed")
    return [f"**The last try, of {found['date']} at commit {found['commit']}, failed: {found['why']}.** What follows is the result of before.", ""] if found else []


def section(name, result, directory=None):
    m = result["machine"]
    lines = [f"## {TITLES.get(name, name)}", "",
             f"`{result['command']}`, {result['date']}, forebay {result['version']} at commit {result['commit']}"
             + (f" (src {result['sources']})" if result.get("sources") else "") + f"; {goals.machine_text(m)}, {result['file_system']}"
             + (f", load average {result['load']:.1f} before" if "load" in result else "")
             + (f", took {result['seconds']} s" if "seconds" in result else "")
             + (". **Quick run: fewer pairs than a goal asks for.**" if result["quick"] else "."), "",
             result["about"], "",
             *failed_lines(result),
             "| what | goal | result | | how much | steal |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [row_line(row) for row in result["rows"]]
    if where_the_time_goes(name, result["rows"]):
        lines += ["", where_the_time_goes(name, result["rows"])]
    lines += flames_of(directory, name, result["rows"]) if directory else []
    if result.get("before"):
        lines += ["", f"Run again: {agreement_text(result)}."]
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


README_TEXT = """Goal beside result, made by `make bench` and, where the measurement is a heavy one (shards, a million names), `make bench ALL=1`
each on one machine: medians of interleaved pairs with minimum and maximum. Every other round goes in the opposite order: where the medians of the
two orders lie on different sides of the goal and differ by more than a factor of two, both stand there in place of a verdict. Spread, machine, versions and
commands are in [bench/RESULTS.md](bench/RESULTS.md), and above its last table the runs that the rows are of. Beside peers the processor time is compared
in the same pairs, and there is no verdict where it was more in some and less in others. Cold means a node with nothing in it behind a
proxy that shapes the origin to 20 ms to the first byte, 50 MB/s per connection, 300 MB/s in all."""


def readme_block(directory):
    """What README carries: the table of goals and two plots."""
    directory = pathlib.Path(directory)
    return "\n\n".join([README_TEXT, *goals.notes(directory), goals.table(directory).rstrip(), *(line.format(folder="bench/results/") for line in plots_of(directory, README_PLOTS)[:2])])


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
    results = goals.load(directory)
    sections = [section(name, results[name], directory) for name in TITLES if name in results]
    sections.append(again_section(results))
    if (directory / "systems.json").exists():
        sections.append(systems_section(directory / "systems.json"))
    folder = "" if not directory.name == "results" else "results/"
    pictures = [line.format(folder=folder) for line in plots_of(directory, list(PLOTS))]
    if pictures:
        sections.append("## Pictures\n\n" + "\n\n".join(pictures) + "\n")
    sections.append("## The promised ratios\n\nMade from the results above by `bench/goals.py`: goal beside result. The rows are of these runs:\n\n"
                    + "\n\n".join([goals.runs(directory), *goals.notes(directory), goals.table(directory)]))
    return HEAD + "\n" + "\n".join(sections)


def text_rows(rows):
    """For the terminal."""
    lines = []
    for row in rows:
        if "ratio" in row:
            result = f"{row['ratio']['median']:.3f} ({row['ratio']['min']:.3f} to {row['ratio']['max']:.3f})"
        else:
            result = row["value"] + (f" ({row['detail']})" if row["value"] == "not run" else "")
        said = goals.row_verdict(row).replace("**missed**", "MISSED")
        lines.append(f"  {row['title']}: {result}, goal {row['goal']}: {said}")
    return "\n".join(lines)


def text_before(result):
    """For the terminal, below the rows: how they agree with the run before."""
    return f"  {agreement_text(result)}\n".replace("**missed**", "MISSED") if result.get("before") else ""
