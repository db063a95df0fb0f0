"""Bizur's figures."""

from statistics import median

from plots.canvas import BASE, OURS, PAPER, keyspaces_foot, lines, plt, save


SYSTEMS = (("zookeeper", "ZooKeeper", PAPER), ("etcd", "etcd", "#8a6fae"), ("oxia", "Oxia", "#c0504d"), ("atoll-1", "Atoll, 1 shard", BASE),
           ("atoll-256-led-by-one", "Atoll, 256 shards that one node leads", "#6a994e"), ("atoll-256", "Atoll, 256 shards", OURS))


def bizur_lines(name, setting, words, paper, axis_words=None, log=True):
    """Writes per second and p99 of all systems against a setting; beside them what the paper's text says of throughput."""
    runs = [r for r in lines(name) if "system" in r]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    for axis, key, label in ((axes[0], "ops_s", "writes per second"), (axes[1], "p99_ms", "p99, ms (log)")):
        for system, title, colour in SYSTEMS:
            mine = [r for r in runs if r["system"] == system]
            if not mine:
                continue
            values = sorted({r[setting] for r in mine})
            at = [median([r[key] for r in mine if r[setting] == value]) for value in values]
            axis.plot(values, at, "o-", color=colour, label=title)
        if log:
            axis.set_xscale("log")
        axis.set_xlabel((axis_words or setting) + (" (log)" if log else ""))
        axis.set_ylabel(label)
    for x, y, title, colour in paper:
        axes[0].plot([x], [y], "D", color=colour, mfc="none", label=title)
    axes[0].set_ylim(bottom=0)
    axes[1].set_yscale("log")
    for axis in axes:
        axis.legend(fontsize=7)
    figure.suptitle(keyspaces_foot(runs, words), fontsize=8)
    save(figure, name)


def bizur_1(name):
    """Writes against the number of keys."""
    # Without packet drops: §5.2. The text has no such number for Bizur.
    paper = [(16_000, 31_000, "ZooKeeper 3.4.9, as the paper says", PAPER), (16_000, 11_000, "etcd 3.1, as the paper says", "#8a6fae")]
    bizur_lines(name, "keys", "Writes of 50 B, 64 in flight, against the number of keys.", paper)


def bizur_2(name):
    """Writes against the number in flight."""
    paper = [(64, 31_000, "ZooKeeper 3.4.9, as the paper says", PAPER), (64, 11_000, "etcd 3.1, as the paper says", "#8a6fae")]
    bizur_lines(name, "depth", "Writes of 50 B over 16,000 keys, against how many are in flight.", paper)


def bizur_3(name):
    """Writes while packets are lost."""
    # §5.2. The text has no absolute throughput for Bizur, and no p99 for 5 % of the others but "more than 400 ms".
    paper = [(0, 31_000, "ZooKeeper 3.4.9, as the paper says", PAPER), (5, 2_000, None, PAPER),
             (0, 11_000, "etcd 3.1, as the paper says", "#8a6fae"), (5, 2_000, None, "#8a6fae")]
    words = ("Writes of 50 B over 16,000 keys, 64 in flight, against the share of lost packets, those of clients included. The paper's text:\n"
             "with 5 %, Bizur keeps 75 % of its throughput, with a p99 of 45 ms; the p99 of ZooKeeper and etcd is more than 400 ms.")
    bizur_lines(name, "loss_percent", words, paper, axis_words="packets lost, %", log=False)


def bizur_4(name):
    """The throughput around the death of the leader."""
    runs = [r for r in lines(name) if "per_100ms" in r]
    measured = [kind for kind in SYSTEMS if any(r["system"] == kind[0] for r in runs)]
    figure, axes = plt.subplots(len(measured), 1, figsize=(9, 2 * len(measured)), sharex=True, squeeze=False)
    axes = axes[:, 0]
    for axis, (system, title, colour) in zip(axes, measured):
        run = next(r for r in runs if r["system"] == system)
        line = run["per_100ms"][:250]
        axis.plot([(n + 0.5) / 10 for n in range(len(line))], [10 * answers for answers in line], color=colour, lw=1)
        axis.axvline(run["kill_at_s"], color="black", lw=0.6, ls=":")
        back = "not within the run" if run["back_ms"] is None else f"after {run['back_ms']} ms"
        axis.set_title(f"{title}: 80 % of {run['before_ops_s']:,} writes per second again {back}; {run['silent_windows']} of"
                       f" {run['windows_after']} windows without a write", fontsize=8)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("writes per second", fontsize=7)
    axes[-1].set_xlabel(
        "s. The dotted line is the death of the leader, or of the node that leads most shards.\n"
        "The paper's text: Bizur dips shortly; ZooKeeper takes about 7 s, the first without any; etcd loses 60 % for 7 s.", fontsize=8)
    figure.suptitle(keyspaces_foot(runs, "Writes of 50 B over 16,000 keys, 64 in flight, in windows of 100 ms."), fontsize=8)
    save(figure, name)


def bizur_shards(name):
    """Writes per second against the number of shards."""
    runs = [r for r in lines(name) if "system" in r]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    for axis, key, label in ((axes[0], "ops_s", "writes per second"), (axes[1], "p99_ms", "p99, ms")):
        for nodes, colour in zip(sorted({r["nodes"] for r in runs}), (BASE, OURS, PAPER)):
            mine = [r for r in runs if r["nodes"] == nodes]
            values = sorted({r["shards"] for r in mine})
            axis.plot(values, [median([r[key] for r in mine if r["shards"] == value]) for value in values], "o-", color=colour,
                      label=f"{nodes} nodes")
        axis.set_xscale("log", base=2)
        axis.set_xlabel("shards (log)")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    words = (f"Writes of 50 B over 16,000 keys, {runs[0]['depth']} in flight, against the number of shards, each with three replicas.\n"
             "More nodes on the same machine show what they cost, and not how they scale. The paper has no such measurement (§3).")
    loads = sorted(r["load_1m"] for r in runs)
    figure.suptitle(f"{words}\nAll nodes and the load on one machine, durable on disk; load of the machine {loads[0]:.1f} to"
                    f" {loads[-1]:.1f}; median of {max(r['round'] for r in runs)} rounds.", fontsize=8)
    save(figure, name)


def bizur_iterate(name):
    """Round trips and time of listings."""
    runs = [r for r in lines(name) if "pages" in r]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6))
    number = range(1, len(runs) + 1)
    axes[0].bar([n - 0.2 for n in number], [r["pages"] for r in runs], 0.38, color=OURS, label="a node asks a leader for a page")
    axes[0].bar([n + 0.2 for n in number], [r["confirmations"] for r in runs], 0.38, color=BASE, label="a leader asks its replicas")
    axes[0].set_title("round trips", fontsize=9)
    axes[0].legend(fontsize=7)
    axes[1].bar(number, [r["seconds"] for r in runs], 0.6, color=OURS)
    axes[1].set_title("s", fontsize=9)
    for axis in axes:
        axis.set_xticks(list(number), [f"listing {n}" for n in number])
    run = runs[0]
    figure.suptitle(keyspaces_foot(runs, f"{run['keys']:,} keys in order, {run['shards']} shards of {run['buckets'] // run['shards']:,} buckets."),
                    fontsize=8)
    save(figure, name)


FIGURES = {
    "bizur/figure_1": bizur_1,
    "bizur/figure_2": bizur_2,
    "bizur/figure_3": bizur_3,
    "bizur/figure_4": bizur_4,
    "bizur/iterate": bizur_iterate,
    "bizur/shards": bizur_shards,
}
