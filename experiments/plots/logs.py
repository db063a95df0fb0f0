"""The kinds of Loglets beside each other."""

from plots.canvas import BASE, OURS, PAPER, lines, plt, save


def logs_kinds(name):
    """What each kind of Loglet costs on 1, 3 and 9 nodes."""
    runs = lines(name)
    found = [r for r in runs if r["workload"] == "summary"]
    kinds, counts = list(dict.fromkeys(r["loglet"] for r in found)), sorted({r["nodes"] for r in found})
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.8))
    panels = (("ops_s_64", "appends per second, 64 in flight"), ("p50_ms_1", "p50 of a lone append, ms"),
              ("server_us_op_64", "processor time of the nodes for an append, µs"), ("pause_ms_orders", "pause after the death of what orders, ms"))
    width = 0.8 / len(counts)
    for axis, (key, title) in zip(axes, panels):
        for number, (count, colour) in enumerate(zip(counts, (BASE, OURS, PAPER))):
            of = {r["loglet"]: r[key] for r in found if r["nodes"] == count}
            places = [n + (number - (len(counts) - 1) / 2) * width for n in range(len(kinds))]
            axis.bar(places, [of.get(kind) or 0 for kind in kinds], width, color=colour, label=f"{count} nodes" if count > 1 else "1 node")
        axis.set_xticks(range(len(kinds)), kinds)
        axis.set_title(title, fontsize=9)
    axes[0].legend(fontsize=7)
    loads = [r["load_1m"] for r in runs if "load_1m" in r]
    figure.suptitle(f"Appends of 1 KiB, durable on disk, all nodes on one machine; load of the machine {min(loads):.1f} to {max(loads):.1f}."
                    " No bar: not measured with one node.", fontsize=8)
    save(figure, name)


FIGURES = {
    "logs/kinds": logs_kinds,
}
