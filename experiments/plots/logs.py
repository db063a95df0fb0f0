"""The kinds of Loglets beside each other."""

from plots.canvas import BASE, OURS, PAPER, lines, plt, save


COLOURS = (BASE, OURS, PAPER)


def bars(axis, rows, key, kinds, counts):
    """One bar for each kind and number of nodes."""
    width = 0.8 / len(counts)
    for number, (count, colour) in enumerate(zip(counts, COLOURS)):
        of = {r["loglet"]: r[key] for r in rows if r["nodes"] == count}
        places = [n + (number - (len(counts) - 1) / 2) * width for n in range(len(kinds))]
        axis.bar(places, [of.get(kind) or 0 for kind in kinds], width, color=colour, label=f"{count} nodes" if count > 1 else "1 node")
    axis.set_xticks(range(len(kinds)), kinds)


def logs_kinds(name):
    """What each kind of Loglet costs on 1, 3 and 9 nodes of one machine, and gives on machines of their own."""
    runs = lines(name)
    found = [r for r in runs if r["workload"] == "summary"]
    modelled = [r for r in runs if r["workload"] == "modelled"]
    kinds, counts = list(dict.fromkeys(r["loglet"] for r in found)), sorted({r["nodes"] for r in found})
    figure, axes = plt.subplots(2 if modelled else 1, 4, figsize=(15, 7.2 if modelled else 3.8), squeeze=False)
    panels = (("ops_s_64", "appends per second, 64 in flight"), ("p50_ms_1", "p50 of a lone append, ms"),
              ("server_us_op_64", "processor time of the nodes for an append, µs"), ("pause_ms_orders", "pause after the death of what orders, ms"))
    for axis, (key, title) in zip(axes[0], panels):
        bars(axis, found, key, kinds, counts)
        axis.set_title(title, fontsize=9)
    axes[0][0].legend(fontsize=7)
    axes[0][0].set_ylabel("real: all nodes on one machine")
    if modelled:
        lone, some, most = (sorted({r["depth"] for r in modelled}))
        modelled = [dict(r, p50_ms=r["p50_us"] / 1e3) for r in modelled]
        of_depth = {depth: [r for r in modelled if r["depth"] == depth] for depth in (lone, some, most)}
        below = ((of_depth[some], "ops_s", f"appends per second, {some} in flight, one client"), (of_depth[lone], "p50_ms", "p50 of a lone append, ms"),
                 (of_depth[some], "server_us_op", "processor time of the nodes for an append, µs"),
                 (of_depth[most], "ops_s", f"appends per second, {most} in flight, many clients"))
        for axis, (rows, key, title) in zip(axes[1], below):
            bars(axis, rows, key, kinds, counts)
            axis.set_title(title, fontsize=9)
        axes[1][0].set_ylabel("modelled: machines of their own")
    loads = [r["load_1m"] for r in runs if "load_1m" in r]
    figure.suptitle(f"Appends of 1 KiB, durable on disk; real nodes share one machine; load of the machine {min(loads):.1f} to {max(loads):.1f}."
                    " No bar: not measured with one node. The model leaves out doors and virtual logs.", fontsize=8)
    save(figure, name)


FIGURES = {
    "logs/kinds": logs_kinds,
}
