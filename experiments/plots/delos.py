"""Delos's figures: what virtual consensus costs and how it scales."""

from statistics import median

from plots.canvas import BASE, OURS, PAPER, lines, loads, plt, save


def changes_on(axis, runs, what):
    """A line for each change of a timeline, with what it is, one below the other."""
    for number, run in enumerate(r for r in runs if r["workload"] == "change"):
        axis.axvline(run["at_s"], color="black", lw=0.8, ls=":")
        axis.annotate(what[run["what"]], (run["at_s"], 0.98 - 0.07 * number), xycoords=("data", "axes fraction"), va="top", fontsize=7)


def timeline(axis, runs):
    """p99 and p50 of puts and gets in slices of a second."""
    for kind, colour in (("put", OURS), ("get", PAPER)):
        for quantile, style in (("p99", "-"), ("p50", ":")):
            at = [(r["at_s"], r[f"{kind}_{quantile}_ms"]) for r in runs if r["workload"] == "slice"]
            axis.plot([x for x, _ in at], [y for _, y in at], style, color=colour, label=f"{kind}s, {quantile}")
    axis.set_yscale("log")
    axis.set_ylabel("ms (log), of each second")
    axis.set_xlabel("seconds")


def figure_8(name):
    """The upgrade from a Loglet in ZooKeeper to a native one, while tables are used."""
    runs = lines(name)
    settings = next(r for r in runs if r["workload"] == "settings")
    figure, axis = plt.subplots(figsize=(9, 4.2))
    timeline(axis, runs)
    what = {"extend": " extended: the native Loglet is active", "modify": " the old segment is rebuilt on the nodes",
            "ensemble stopped": " ZooKeeper is stopped"}
    changes_on(axis, runs, what)
    axis.legend(fontsize=7, loc="lower left")
    axis.set_title(
        f"The database's log moves from Apache ZooKeeper to NativeLoglet: {settings['rate']} operations per second on rows of"
        f" {settings['payload_bytes']} B, {settings['failed']} failed\n{settings['nodes']} nodes and three servers of ZooKeeper on"
        f" {settings['cores']} cores. Delos: five to ten times lower p99 after the change, as its text says", fontsize=8)
    save(figure, name)


def figure_9(name):
    """The log beside the replicas of the database and on nodes of its own, and a shift of load that a move answers."""
    runs = lines(name)
    settings = next(r for r in runs if r["workload"] == "settings")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), width_ratios=(2, 3))
    at_rates = [r for r in runs if r.get("part") == "rates"]
    for mode, marker in (("converged", "o"), ("disaggregated", "s")):
        for kind, colour in (("put", OURS), ("get", PAPER)):
            mine = [r for r in at_rates if r["mode"] == mode]
            rates = sorted({r["rate"] for r in mine})
            of = lambda rate, key: median([r[key] for r in mine if r["rate"] == rate])
            style = "-" if mode == "converged" else "--"
            left.plot([of(rate, "ops_s") for rate in rates], [of(rate, f"{kind}_p99_ms") for rate in rates], marker + style, color=colour,
                      label=f"{kind}s, {mode}")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("operations per second, as many puts as gets (log)")
    left.set_ylabel("p99, ms (log)")
    left.legend(fontsize=7)
    shift = [r for r in runs if r.get("part") == "shift" or r["workload"] == "change"]
    timeline(right, shift)
    changes_on(right, shift, {"rate": f" {settings['low']} operations per second become {settings['high']}",
                              "disaggregate": " the log moves to nodes of its own"})
    right.legend(fontsize=7, loc="lower right")
    figure.suptitle(
        f"Rows of {settings['payload_bytes']} B. The disk of each of the {settings['nodes']} nodes does {settings['writes_per_second']} writes per"
        f" second; all share {settings['cores']} cores, so a log of its own gains disks and no processors. {settings['failed']} operations failed.\n"
        "Delos on shared disks, as its text says: ten times the operations per second within 15 ms at p99, with twice the machines", fontsize=8)
    save(figure, name)


def figure_10(name):
    """Appends per second against the number of stripes: modelled machines, and what one machine carries."""
    everything = lines(name)
    runs = [r for r in everything if "ops_s" in r]
    ratios = ", ".join(f"{r['ratio']:.2f}" for r in everything if r["workload"] == "model_to_real")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))

    def points(workload):
        mine = [r for r in runs if r["workload"] == workload]
        counts = sorted({r["stripes"] for r in mine})
        return counts, [median([r["ops_s"] for r in mine if r["stripes"] == c]) for c in counts]

    counts, rates = points("rotating")
    left.plot(counts, [r / rates[0] for r in rates], "s--", color=BASE, label="Atoll, modelled")
    left.plot([2], [1.25], "D", color=PAPER, label="Delos, as its text says: 25 % faster")
    left.set_xlabel("sequencers that take turns, over the same nine LogServers")
    left.set_ylabel("appends per second, times those of one")
    counts, rates = points("sharded")
    right.plot(counts, rates, "s--", color=BASE, label="Atoll, modelled: three machines of its own for each stripe")
    right.plot(*points("modelled_one_machine"), "x:", color="black", label="Atoll, modelled: all on one machine like this")
    right.plot(*points("real"), "o-", color=OURS, label="Atoll, real: all on this machine")
    right.plot([30], [1_000_000], "D", color=PAPER, label="Delos, as its text says: over 1 million")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xticks([1, 2, 4, 8, 16, 30], ["1", "2", "4", "8", "16", "30"])
    right.set_xlabel("stripes of three LogServers")
    right.set_ylabel("appends per second (log)")
    for axis in (left, right):
        axis.set_ylim(bottom=0) if axis is left else None
        axis.legend(fontsize=7)
    settings = next(r["settings"] for r in runs if r["workload"] == "sharded")
    figure.suptitle(
        f"{settings['payload_bytes']} B. The parameters of the model were measured on this machine: a sync"
        f" {settings['parameters']['sync_ns'] / 1e3:,.0f} µs, a step {settings['parameters']['step_ns'] / 1e3:.1f} µs; {loads(runs)}."
        + (f"\nThe model of one machine gives so many times what is real: {ratios}" if ratios else ""),
        fontsize=8,
    )
    save(figure, name)


def figure_11_left(name):
    """What virtualization costs: p99 of each operation, bare and virtual; and what it adds."""
    runs = [r for r in lines(name) if "round" in r]
    operations = ["append", "check_tail", "read_next"]
    labels = ["append", "checkTail", "readNext"]
    # The text gives what is added at p99: 100 to 150 us for append and checkTail, 6 us for readNext.
    paper_low, paper_high = [100, 100, 6], [150, 150, 6]

    def figures(system, key):
        return [[r[key] for r in runs if r["system"] == system and r["workload"] == o] for o in operations]

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    places = range(len(operations))
    for shift, system, colour in ((-0.2, "NativeLoglet", BASE), (0.2, "VirtualLog", OURS)):
        for key, hatch, alpha in (("p99_us", None, 0.45), ("p50_us", None, 1.0)):
            heights = [median(v) for v in figures(system, key)]
            at = [p + shift for p in places]
            quantile = key.split("_")[0]
            left.bar(at, heights, 0.38, color=colour, alpha=alpha, hatch=hatch, label=f"{system} {quantile}")
    settings = runs[0]["settings"]
    loads = sorted(r["settings"]["load_1m_after"] for r in runs)
    left.set_title(f"Atoll: latency, median of {max(r['round'] for r in runs)} rounds of {runs[0]['ops']:,}", fontsize=10)
    left.set_ylabel("µs (log)")
    left.set_yscale("log")
    left.set_xticks(list(places), labels)
    left.legend(fontsize=8)
    left.set_xlabel(
        f"{settings['payload_bytes']} B, {settings['servers']} LogServers, journals in memory, one thread;"
        f" load of the machine {loads[0]:.1f} to {loads[-1]:.1f}",
        fontsize=7,
    )

    added = [
        median([v - b for b, v in zip(bare, virtual)])
        for bare, virtual in zip(figures("NativeLoglet", "p99_us"), figures("VirtualLog", "p99_us"))
    ]
    middles = [(low + high) / 2 for low, high in zip(paper_low, paper_high)]
    spread = [[m - low for m, low in zip(middles, paper_low)], [high - m for m, high in zip(middles, paper_high)]]
    right.bar([p - 0.2 for p in places], middles, 0.38, yerr=spread, color=PAPER, capsize=4, label="Delos, as its text says")
    right.bar([p + 0.2 for p in places], [max(a, 0) for a in added], 0.38, color=OURS, label="Atoll")
    for at, value in zip(places, added):
        right.annotate(f"{value:.1f}", (at + 0.2, max(value, 0)), ha="center", va="bottom", fontsize=8)
    right.set_title("What the VirtualLog adds at p99", fontsize=10)
    right.set_ylabel("µs")
    right.set_xticks(list(places), labels)
    right.legend(fontsize=8)
    right.set_xlabel(
        "Delos: an hour of a production cluster, §5.2; Atoll: this machine, no network or disk in it.\n"
        "Compare what is added, and that readNext adds least; not the bars' heights.",
        fontsize=7,
    )
    save(figure, name)


def figure_11_middle(name):
    """Histograms of what a reconfiguration takes, by kind."""
    runs = {r["workload"]: r for r in lines(name)}
    kinds = [k for k in ("extend", "truncate", "no_change") if k in runs]
    edges = [10 ** (i / 10) for i in range(48)]
    figure, axes = plt.subplots(len(kinds), 1, figsize=(8, 2.6 * len(kinds)), sharex=True, squeeze=False)
    for axis, kind in zip(axes[:, 0], kinds):
        run = runs[kind]
        # The text gives an order of magnitude only, and that truncate, which does not seal, is the faster one.
        axis.axvspan(10, 100, color=PAPER, alpha=0.25, lw=0, label="Delos: “10s of ms”, as its text says")
        changed = kind != "no_change"
        if changed:
            axis.hist(run["commands_ms"], edges, color=BASE, label="the command, from start to return")
        axis.hist(run["pauses_ms"], edges, color=OURS, alpha=0.75, label="pause: longest gap between two acknowledgements")
        axis.set_xscale("log")
        axis.set_ylabel("changes")
        what = f"reconfig_{kind}: {run['count']} changes" if changed else f"no change: {run['count']} times a second"
        axis.set_title(f"{what}, pause p50 {run['p50_ms']} ms, p99 {run['p99_ms']} ms", fontsize=10)
    axes[0, 0].legend(fontsize=7, loc="upper right", bbox_to_anchor=(1, 1.5))
    settings = runs[kinds[0]]["settings"]
    axes[-1, 0].set_xlabel(
        f"ms (log); {settings['nodes']} processes on one machine, {settings['depth']} appends in flight,"
        f" load of the machine {settings['load_1m']:.1f}",
        fontsize=8,
    )
    save(figure, name)


def figure_11_right(name):
    """Latency against throughput: ZooKeeper, and Atoll with its state on disk and in memory."""
    runs = [r for r in lines(name) if r.get("name") == "sweep"]
    kinds = (("zookeeper", "ZooKeeper", PAPER), ("atoll-disk", "Atoll, state on disk", OURS),
             ("atoll-memory", "Atoll, state in memory", BASE))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
    for axis, key in zip(axes, ("p50_ms", "p99_ms")):
        for system, label, colour in kinds:
            mine = [r for r in runs if r["system"] == system]
            depths = sorted({r["depth"] for r in mine})
            at = [(median([r["ops_s"] for r in mine if r["depth"] == d]), median([r[key] for r in mine if r["depth"] == d]))
                  for d in depths]
            axis.plot([x for x, _ in at], [y for _, y in at], "o-", color=colour, label=label)
            for depth, (x, y) in zip(depths, at):
                axis.annotate(str(depth), (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7, color=colour)
        axis.set_yscale("log")
        axis.set_xlim(left=0)
        axis.set_ylabel(f"{key.split('_')[0]}, ms (log)")
        axis.set_xlabel("writes per second")
        axis.legend(fontsize=8)
    first = runs[0]
    rounds = max(r["round"] for r in runs)
    figure.suptitle(
        f"setData of {first['value_bytes']} B over {first['keys']:,} znodes, by ZooKeeper's protocol; the number at a point is how many"
        f" are under way.\nThree servers and the load on {first['use']['cores']:.0f} cores of one machine, fsync on; median of {rounds}"
        " rounds. The paper's own data are not public.",
        fontsize=8,
    )
    save(figure, name)


def striped_depth_1(name):
    """A lone append over native and over striped logs."""
    runs = [r for r in lines(name) if "p50_us" in r]
    ratio = next(r for r in lines(name) if r["workload"] == "ratio")
    figure, axis = plt.subplots(figsize=(6, 4))
    for at, system, colour in ((0, "native", BASE), (1, "striped", OURS)):
        mine = [r["p50_us"] for r in runs if r["system"] == system]
        axis.bar([at], [median(mine)], 0.5, color=colour)
        axis.plot([at] * len(mine), mine, "k_", ms=12)
    axis.set_xticks([0, 1], ["native", "striped, two stripes on the same servers"])
    axis.set_ylabel("p50 of an append, µs; each round is a line")
    settings = runs[0]["settings"]
    axis.set_title(
        f"One append of {settings['payload_bytes']} B at a time: {ratio['p50_striped_to_native']} times as long, at most {ratio['target']}\n"
        f"{settings['nodes']} processes on one machine, {loads(runs)}",
        fontsize=8,
    )
    save(figure, name)


FIGURES = {
    "delos/figure_8": figure_8,
    "delos/figure_9": figure_9,
    "delos/figure_10": figure_10,
    "delos/figure_11_left": figure_11_left,
    "delos/figure_11_middle": figure_11_middle,
    "delos/figure_11_right": figure_11_right,
    "delos/striped_depth_1": striped_depth_1,
}
