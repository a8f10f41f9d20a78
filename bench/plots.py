"""Pictures of the results: one SVG for the goals, one for each comparison with peers. Without matplotlib there are none; a picture of
figures that are no longer there, or of older ones, does not stay beside the tables."""

import pathlib
import statistics

import goals


def _pyplot():
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "forebay", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False})
    from matplotlib import pyplot
    return pyplot


def _save(pyplot, figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def goals_plot(pyplot, results, path):
    """Every ratio with a goal, as its share of the goal, with minimum and maximum; right of the line is good."""
    unique = {}
    for *_, what, _result, _said, _measure, row in goals.goal_rows(results):
        if row is not None and "ratio" in row and goals.goal_of(row):
            unique.setdefault(row["title"], (what + (" (depends on the order)" if "order" in row else ""), row))
    unique = list(unique.values())
    if not unique:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(unique) + 1.2))
    for i, (name, row) in enumerate(reversed(unique)):
        goal, at_most = goals.goal_of(row)
        share = [row["ratio"][key] / goal for key in ("median", "min", "max")]
        if at_most:
            share = [1 / s for s in (share[0], share[2], share[1])]
        axes.barh(i, share[0], color={True: "#2a7f62", False: "#c2542d", None: "#999999"}[row["met"]], height=0.6)
        axes.plot([share[1], share[2]], [i, i], color="#333333", linewidth=1)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(unique)), [name for name, _ in reversed(unique)])
    axes.set_xlabel("share of the goal reached (median; line: minimum to maximum; cut off at 2)")
    axes.set_xlim(0, 2)
    _save(pyplot, figure, path)
    return True


def systems_plot(pyplot, result, path, unit_scale):
    """Rates of every system of a comparison, grouped by kind of work; that of one beside which ours depends on the order says so."""
    groups, unsure = {}, set()
    for row in result["rows"]:
        if "peer" in row and "ratio" in row:
            title = row["title"].rsplit(", against ", 1)[0]
            group = groups.setdefault(title, {"forebay": row["ours"]["median"]})
            group[row["peer"]] = row["reference"]["median"]
            if "order" in row:
                unsure.add((title, row["peer"]))
    if not groups:
        return False
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.28 * sum(len(g) for g in groups.values())))
    y, ticks = 0, []
    colors = pyplot.get_cmap("tab10").colors
    for title, group in reversed(groups.items()):
        for name in reversed(names):
            if name in group:
                axes.barh(y, group[name] * unit_scale, color=colors[names.index(name) % 10], height=0.8)
                named = name + (" (depends on the order)" if (title, name) in unsure else "")
                ticks.append((y, named if len(groups) == 1 else f"{title.split(',')[0]}: {named}"))
                y += 1
        y += 0.6
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_xlabel(next(row["unit"] for row in result["rows"] if "unit" in row))
    axes.set_title(result["about"].split(":")[0].split(".")[0], fontsize=9)
    _save(pyplot, figure, path)
    return True


def costs_by_work(results):
    """{system: {(measurement, work): CPU seconds per GB}}. Ours stands in the row of each peer, and is of the same samples in all of them."""
    found = {}
    for measure in [*goals.PEER_MEASURES, "s3"]:
        for row in results.get(measure, {}).get("rows", []):
            for name, key in (("forebay", "ours_cost"), (row.get("peer"), "reference_cost")):
                cost = row.get(key, {}).get("cpu_s_per_gb")
                if name and cost:
                    found.setdefault(name, {})[measure, row["title"].replace(f", against {row.get('peer')}", "")] = cost
    return found


def costs_plot(pyplot, results, path):
    """CPU seconds per GB of every system, the median over all the work in which it was measured, each of it once."""
    found = {name: list(by_work.values()) for name, by_work in costs_by_work(results).items()}
    if not found:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.3 * len(found)))
    for i, (name, values) in enumerate(reversed(found.items())):
        axes.barh(i, statistics.median(values), color="#2a7f62" if name == "forebay" else "#8899aa", height=0.6)
        axes.plot([min(values), max(values)], [i, i], color="#333333", linewidth=1)
    axes.set_yticks(range(len(found)), list(reversed(found)))
    axes.set_xlabel("CPU seconds per GB, reader included (median of all work; line: minimum to maximum)")
    _save(pyplot, figure, path)
    return True


def draw(directory):
    """Draws what there are results for, and removes what was drawn before; gives the names of the files written, or None without
    matplotlib."""
    directory, pyplot = pathlib.Path(directory), _pyplot()
    for name in ("goals", "costs", "s3", *goals.PEER_MEASURES):
        (directory / f"{name}.svg").unlink(missing_ok=True)
    if pyplot is None:
        return None
    results = goals.load(directory)
    written = []
    if goals_plot(pyplot, results, directory / "goals.svg"):
        written.append("goals.svg")
    for measure in [*goals.PEER_MEASURES, "s3"]:
        if measure in results and systems_plot(pyplot, results[measure], directory / f"{measure}.svg", 1.0):
            written.append(f"{measure}.svg")
    if costs_plot(pyplot, results, directory / "costs.svg"):
        written.append("costs.svg")
    return written
