"""Draws a figure from its raw results, the paper's beside ours: `plot.py delos/figure_11_left`.

The papers' own data are not public. What stands beside ours is what their text says, and is labelled so.
"""

import json
import pathlib
import sys
from statistics import median

import matplotlib

matplotlib.use("svg")
# The same input gives the same bytes.
matplotlib.rcParams["svg.hashsalt"] = "atoll"
matplotlib.rcParams["svg.fonttype"] = "none"

import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)

HERE = pathlib.Path(__file__).parent
OURS, BASE, PAPER = "#1f6f8b", "#99a8b2", "#d98032"


def lines(name):
    """The raw results of a figure."""
    text = (HERE / name / "run.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def save(figure, name):
    figure.tight_layout()
    file = HERE / name / "figure.svg"
    figure.savefig(file, metadata={"Date": None})
    # Lines without white space at their end: the tree's rule, which the library does not know.
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")
    print(f"{file.relative_to(HERE.parent)}")


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


def medians(runs, workload, setting, key):
    """The values of a setting, in order, and the median of a result over the rounds of each."""
    mine = [r for r in runs if r["workload"] == workload]
    values = sorted({r["settings"][setting] for r in mine})
    return values, [median([r[key] for r in mine if r["settings"][setting] == value]) for value in values]


def corfu_settings(runs, what):
    """What else decides a figure of CORFU's applications, for its foot."""
    settings = runs[0]["settings"]
    loads = sorted(r["settings"]["load_1m"] for r in runs)
    return (
        f"{what}; Loglet {settings['loglet']}, {settings['nodes']} nodes and the clients on one machine;"
        f" load of the machine {loads[0]:.1f} to {loads[-1]:.1f}; median of {max(r['round'] for r in runs)} rounds"
    )


def figure_9(name):
    """Multi-puts and multi-gets against the number of keys."""
    runs = lines(name)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
    for axis, key, label in ((axes[0], "ops_s", "operations per second"), (axes[1], "p50_us", "p50, µs")):
        for workload, words, colour in (("multi_get", "multi-get", OURS), ("multi_put", "multi-put", BASE)):
            axis.plot(*medians(runs, workload, "per_operation", key), "o-", color=colour, label=f"Atoll, {words}")
        axis.set_xlabel("keys of an operation")
        axis.set_ylabel(label)
    # The text has these two points.
    for value, words in ((40_000, "multi-get"), (20_000, "multi-put")):
        axes[0].plot([10], [value], "D", color=PAPER, label=f"CORFU, {words}, as its text says")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    settings = runs[0]["settings"]
    figure.suptitle(corfu_settings(runs, f"{settings['clients']} clients, values of {settings['value_bytes']} B"), fontsize=8)
    save(figure, name)


def figure_10(name):
    """Commands of a replicated service against the number of its replicas."""
    runs = lines(name)
    figure, axis = plt.subplots(figsize=(7, 4.2))
    axis.plot(*medians(runs, "smr", "replicas", "ops_s"), "o-", color=OURS, label="Atoll")
    axis.plot([10], [70_000], "D", color=PAPER, label="CORFU, as its text says")
    axis.set_xlabel("replicas, all of which propose")
    axis.set_ylabel("commands per second")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    settings = runs[0]["settings"]
    words = f"{settings['command_bytes']} B, {settings['commands']} commands in an entry"
    figure.suptitle(corfu_settings(runs, words).replace("; load", ";\nload"), fontsize=8)
    save(figure, name)


def loads(runs):
    """The load of the machine over these runs, in words."""
    all_of_them = sorted(r["settings"]["load_1m"] for r in runs if "load_1m" in r.get("settings", {}))
    return f"load of the machine {all_of_them[0]:.1f} to {all_of_them[-1]:.1f}"


def figure_6(name):
    """Latency of append, read and fill of single positions on CORFU, on disk and in memory."""
    runs = [r for r in lines(name) if "p50_us" in r]
    operations = ["read", "append", "fill"]
    # The text gives these for the FPGA unit: a read takes less than that.
    paper = [500, 750, 650]
    figure, axis = plt.subplots(figsize=(8, 4.4))
    for shift, storage, colour in ((-0.27, "disk", OURS), (0.0, "memory", BASE)):
        for key, alpha in (("p99_us", 0.45), ("p50_us", 1.0)):
            of = {o: [r[key] for r in runs if r["workload"] == o and r["settings"]["storage"] == storage] for o in operations}
            heights = [median(of[o]) for o in operations]
            at = [p + shift for p in range(len(operations))]
            axis.bar(at, heights, 0.25, color=colour, alpha=alpha, label=f"Atoll, {storage}, {key.split('_')[0]}")
            if key == "p50_us":
                for x, height in zip(at, heights):
                    axis.annotate(f"{height:,.0f}", (x, height), ha="center", va="bottom", fontsize=7)
    axis.bar([p + 0.27 for p in range(3)], paper, 0.25, color=PAPER, label="CORFU, FPGA with flash, as its text says (read: less than this)")
    axis.set_ylabel("µs")
    axis.set_xticks(range(len(operations)), operations)
    axis.legend(fontsize=7)
    settings = runs[0]["settings"]
    client = "One client in a node that serves nothing" if settings.get("client") == "a node" else "One client in Python through gRPC"
    figure.suptitle(
        f"{client}, one operation under way, {settings['payload_bytes']} B, a chain of {settings['units_of_a_chain']} units,"
        f"\nall processes on one machine; {loads(runs)}; median of the rounds",
        fontsize=8,
    )
    save(figure, name)


def figure_8(name):
    """An appender and a reader around kills of a unit and of the sequencer, and what planned replacements take."""
    runs = lines(name)
    kills = [r for r in runs if r.get("workload") == "kill"]
    planned = next(r for r in runs if r.get("workload") == "planned")
    roles = ("first unit", "last unit", "sequencer")
    figure, axes = plt.subplots(2, 3, figsize=(15, 7.5))
    for axis, role in zip(axes[0], roles):
        mine = sorted((r for r in kills if r["victim"] == role), key=lambda r: r["append_gap_ms"])
        run = mine[len(mine) // 2]
        for key, colour in (("reads", BASE), ("appends", OURS)):
            at = [i * run["bin_ms"] - run["killed_ms"] for i in range(len(run[key]))]
            axis.plot(at, [count * 1000 / run["bin_ms"] for count in run[key]], color=colour, lw=0.9, label=key)
        axis.axvline(0, color=PAPER, lw=1, label="killed")
        axis.set_xlim(-400, 1400)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("ms after the kill")
        axis.set_ylabel("per second, in 10 ms")
        axis.set_title(f"{role} killed: no append for {run['append_gap_ms']:.0f} ms, no read for {run['read_gap_ms']:.0f} ms", fontsize=8)
        axis.legend(fontsize=6)
    for axis, key, words in ((axes[1][0], "append_gap_ms", "longest time without an append"), (axes[1][1], "read_gap_ms", "longest time without a read")):
        for at, role in enumerate(roles):
            gaps = [r[key] for r in kills if r["victim"] == role]
            axis.plot([at] * len(gaps), gaps, "_", color=OURS, ms=18)
            axis.plot([at], [median(gaps)], "o", color=OURS)
        axis.set_xticks(range(len(roles)), roles)
        axis.set_ylabel(f"{words} after a kill, ms")
        axis.set_ylim(bottom=0)
        axis.set_xlim(-0.5, len(roles) - 0.5)
    ordered = sorted(us / 1e3 for us in planned["total_us"])
    last = axes[1][2]
    last.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post", color=OURS, label="Atoll, a unit replaced as planned, 4 units")
    last.axvline(30, color=PAPER, label="CORFU, 32 drives, as its text says")
    last.set_xlabel("ms")
    last.set_ylabel("share of replacements")
    last.legend(fontsize=7)
    settings = kills[0]["settings"]
    figure.suptitle(
        f"One append and one read of {settings['payload_bytes']} B under way, by clients in Python through gRPC; {settings['units']} units in chains of"
        f" {settings['units_of_a_chain']}; real processes and disk of one machine; {loads(kills)}."
        "\nCORFU's text: its client waits one second for a failed unit, and then 30 ms. Atoll's nodes first have to notice, too.",
        fontsize=8,
    )
    save(figure, name)


def corfu_foot(runs, words):
    """What else decides a figure of CORFU's nodes."""
    return f"{words}\nReal nodes are processes of one machine; {loads(runs)}; median of {max(r.get('round', 1) for r in runs)} rounds"


def corfu_sequencer(name):
    """Positions per second from the sequencer, one per request and in batches."""
    runs = [r for r in lines(name) if r["workload"] == "tokens"]
    figure, axis = plt.subplots(figsize=(6.5, 4.2))
    batches = sorted({r["batch"] for r in runs})
    for at, batch in enumerate(batches):
        mine = [r["tokens_s"] for r in runs if r["batch"] == batch]
        axis.bar([at], [median(mine)], 0.5, color=OURS, label="Atoll; each round is a line" if at == 0 else None)
        axis.plot([at] * len(mine), mine, "k_", ms=12)
        axis.annotate(f"{median(mine):,.0f}", (at, median(mine)), ha="center", va="bottom", fontsize=8)
    axis.axhspan(200_000, 500_000, color=PAPER, alpha=0.25, lw=0, label="CORFU, one per request, as its text says")
    axis.set_xticks(range(len(batches)), ["one per request" if batch == 1 else f"{batch} per request" for batch in batches])
    axis.set_ylabel("positions per second")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)
    settings = runs[0]["settings"]
    words = f"{settings['clients']} processes with clients, {settings['depth']} requests of each under way."
    figure.suptitle(corfu_foot(runs, words), fontsize=8)
    save(figure, name)


def without_sequencer(name):
    """Appends with a sequencer, and while it is dead."""
    runs = [r for r in lines(name) if "p50_us" in r]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
    for axis, key, label in ((axes[0], "ops_s", "appends per second"), (axes[1], "p50_us", "p50, µs")):
        for workload, words, colour in (("with", "with a sequencer", BASE), ("without", "the sequencer is dead", OURS)):
            axis.plot(*medians(runs, workload, "depth", key), "o-", color=colour, label=f"Atoll, {words}")
        axis.set_xscale("log", base=2)
        axis.set_xlabel("appends under way (log)")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    settings = runs[0]["settings"]
    words = (f"Entries of {settings['payload_bytes']} B, a chain of {settings['units_of_a_chain']} units. The paper says that appends go on,"
             " slower, and gives no figure.")
    figure.suptitle(corfu_foot(runs, words), fontsize=8)
    save(figure, name)


def figure_7(name):
    """Appends and reads per second against the number of units: modelled machines, and what one machine carries."""
    runs = [r for r in lines(name) if "ops_s" in r]
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6))
    kinds = (
        ("s--", BASE, "Atoll, modelled: each unit on a machine of its own, chains of 1",
         lambda s: s["kind"] == "modelled" and s["one_machine"] is None and s["units_of_a_chain"] == 1),
        ("^--", "#5d7f6a", "Atoll, modelled: the same, chains of 2",
         lambda s: s["kind"] == "modelled" and s["one_machine"] is None and s["units_of_a_chain"] == 2),
        ("x:", "black", "Atoll, modelled: all on one machine like this", lambda s: s["kind"] == "modelled" and s["one_machine"] is not None),
        ("o-", OURS, "Atoll, real: all on this machine", lambda s: s["kind"] == "real"),
    )
    # The text: 32 drives in chains of 2. Appends end at what its sequencer gave out.
    paper = {"append": ([32, 32], [180_000, 200_000], "180,000 to 200,000 appends"), "read": ([32], [400_000], "400,000 reads")}
    for axis, what in zip(axes, ("append", "read")):
        for style, colour, label, wanted in kinds:
            mine = [r for r in runs if r["workload"] == what and wanted(r["settings"])]
            counts = sorted({r["units"] for r in mine})
            axis.plot(counts, [median([r["ops_s"] for r in mine if r["units"] == c]) for c in counts], style, color=colour, label=label)
        at, rates, words = paper[what]
        axis.plot(at, rates, "D", color=PAPER, label=f"CORFU, as its text says: {words}")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = sorted({r["units"] for r in runs})
        axis.set_xticks(ticks, map(str, ticks))
        axis.set_xlabel("units (log)")
        axis.set_ylabel(f"{what}s per second (log)")
        axis.legend(fontsize=6)
    modelled = next(r["settings"] for r in runs if r["settings"]["kind"] == "modelled")
    figure.suptitle(
        f"{modelled['payload_bytes']} B. The parameters of the model were measured on this machine: a sync"
        f" {modelled['parameters']['sync_ns'] / 1e3:,.0f} µs, a step {modelled['parameters']['step_ns'] / 1e3:.1f} µs; {loads(runs)}",
        fontsize=8,
    )
    save(figure, name)


def figure_8_seal(name):
    """How long seals take against the number of units, and how long whole changes take."""
    runs = [r for r in lines(name) if "p50_us" in r]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    for kind, colour, style in (("modelled", BASE, "s--"), ("real", OURS, "o-")):
        mine = sorted((r for r in runs if r["workload"] == "seal" and r["settings"]["kind"] == kind), key=lambda r: r["units"])
        counts = [r["units"] for r in mine]
        where = "each on a machine of its own" if kind == "modelled" else "all on this machine"
        left.plot(counts, [r["p50_us"] / 1e3 for r in mine], style, color=colour, label=f"Atoll, {kind}, p50: {where}")
        left.plot(counts, [r["p99_us"] / 1e3 for r in mine], style, color=colour, alpha=0.4, label=f"Atoll, {kind}, p99")
    left.plot([32], [5], "D", color=PAPER, label="CORFU, median, as its text says: about 5 ms")
    left.set_xscale("log", base=2)
    ticks = sorted({r["units"] for r in runs if r["workload"] == "seal"} | {32})
    left.set_xticks(ticks, map(str, ticks))
    left.set_xlabel("units (log)")
    left.set_ylabel("a seal, ms")
    left.set_ylim(bottom=0)
    left.legend(fontsize=6)
    totals = [r for r in runs if r["workload"].startswith("change of")]
    keys = ("p50_us", "p90_us", "p99_us", "max_us")
    for number, (run, colour) in enumerate(zip(totals, (BASE, OURS))):
        places = [at + (number - 0.5) * 0.35 for at in range(len(keys))]
        right.bar(places, [run[key] / 1e3 for key in keys], 0.33, color=colour, label=f"Atoll, {run['workload']}, {run['settings']['units']} units")
    right.axhline(30, color=PAPER, label="CORFU, 32 drives, as its text says: about 30 ms")
    right.set_xticks(range(len(keys)), [key.split("_")[0] for key in keys])
    right.set_ylabel("a planned change in total, ms")
    right.legend(fontsize=7)
    figure.suptitle(f"{min(r['ops'] for r in runs):,} seals or changes for each point. Real nodes are processes of one machine; {loads(runs)}", fontsize=8)
    save(figure, name)


def figure_8_recovery(name):
    """What a killed unit and a killed sequencer cost: from the kill to its detection, and from there to the next append."""
    runs = [r for r in lines(name) if r["workload"] == "kill"]
    roles = ("first unit", "last unit", "sequencer")
    figure, axes = plt.subplots(1, 4, figsize=(16, 4.2))
    run = sorted((r for r in runs if r["victim"] == "last unit"), key=lambda r: r["append_gap_ms"])
    run = run[len(run) // 2]
    for key, colour in (("reads", BASE), ("appends", OURS)):
        at = [i * run["bin_ms"] - run["killed_ms"] for i in range(len(run[key]))]
        axes[0].plot(at, [count * 1000 / run["bin_ms"] for count in run[key]], color=colour, lw=0.9, label=key)
    axes[0].axvline(0, color=PAPER, lw=1, label="killed")
    axes[0].axvline(run["noticed_ms"], color=PAPER, lw=1, ls=":", label="noticed")
    axes[0].set_xlim(-200, 600)
    axes[0].set_ylim(bottom=0)
    axes[0].set_xlabel("ms after the kill of the last unit of a chain")
    axes[0].set_ylabel("per second, in 10 ms")
    axes[0].legend(fontsize=6)
    panels = (("noticed_ms", "from the kill to its detection, ms"), ("recovery_ms", "from the detection to the next append, ms"),
              ("read_gap_ms", "longest time without a read, ms"))
    for axis, (key, words) in zip(axes[1:], panels):
        for at, role in enumerate(roles):
            values = [r[key] for r in runs if r["victim"] == role]
            axis.plot([at] * len(values), values, "_", color=OURS, ms=18)
            axis.plot([at], [median(values)], "o", color=OURS)
        axis.set_xticks(range(len(roles)), roles)
        axis.set_ylabel(words)
        axis.set_xlim(-0.5, len(roles) - 0.5)
        if key == "recovery_ms":
            axis.axhline(30, color=PAPER, label="CORFU, as its text says: 30 ms,\nafter a wait of one second")
            axis.legend(fontsize=7)
        axis.set_ylim(bottom=0)
    settings = runs[0]["settings"]
    figure.suptitle(
        f"One append and one read of {settings['payload_bytes']} B under way; {settings['units']} units in chains of {settings['units_of_a_chain']};"
        f" real processes and disk of one machine; {loads(runs)}", fontsize=8)
    save(figure, name)


def figure_10_of_delos(name):
    """Appends per second against the number of stripes: modelled machines, and what one machine carries."""
    runs = [r for r in lines(name) if "ops_s" in r]
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
        f" {settings['parameters']['sync_ns'] / 1e3:,.0f} µs, a step {settings['parameters']['step_ns'] / 1e3:.1f} µs; {loads(runs)}",
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


SYSTEMS = (("zookeeper", "ZooKeeper", PAPER), ("etcd", "etcd", "#8a6fae"), ("oxia", "Oxia", "#c0504d"), ("atoll-1", "Atoll, 1 shard", BASE),
           ("atoll-256-led-by-one", "Atoll, 256 shards that one node leads", "#6a994e"), ("atoll-256", "Atoll, 256 shards", OURS))


def bizur_foot(runs, words, durable="durable on disk"):
    """What else decides a figure of keyspaces, for its head."""
    loads = sorted(r["load_1m"] for r in runs if "load_1m" in r)
    return (f"{words}\nThree nodes and the load on one machine, {durable}; load of the machine {loads[0]:.1f} to {loads[-1]:.1f};"
            f" median of {max(r['round'] for r in runs)} rounds.")


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
    figure.suptitle(bizur_foot(runs, words), fontsize=8)
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
    figure.suptitle(bizur_foot(runs, "Writes of 50 B over 16,000 keys, 64 in flight, in windows of 100 ms."), fontsize=8)
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
    figure.suptitle(bizur_foot(runs, f"{run['keys']:,} keys in order, {run['shards']} shards of {run['buckets'] // run['shards']:,} buckets."),
                    fontsize=8)
    save(figure, name)


def in_place_5(name):
    """Operations against the number of keys, under a skewed load that mostly reads."""
    runs = [r for r in lines(name) if "system" in r]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    kinds = (("table", "table (log)", PAPER), ("bizur", "Bizur, 256 shards", BASE), ("in-place", "in-place", OURS))
    for axis, key, label in ((axes[0], "ops_s", "operations per second"), (axes[1], "p99_ms", "p99, ms (log)")):
        for system, title, colour in kinds:
            mine = [r for r in runs if r["system"] == system]
            values = sorted({r["keys"] for r in mine})
            at = [median([r[key] for r in mine if r["keys"] == value]) for value in values]
            axis.plot(values, at, "o-", color=colour, label=title)
        axis.set_xscale("log")
        axis.set_xlabel("keys (log)")
        axis.set_ylabel(label)
        axis.legend(fontsize=7)
    axes[0].set_ylim(bottom=0)
    axes[1].set_yscale("log")
    words = "95 % reads, 5 % writes of 50 B, Pareto 80/20, 64 in flight. The paper has a picture of five nodes in memory, no numbers."
    figure.suptitle(bizur_foot(runs, words), fontsize=8)
    save(figure, name)


def in_place_6(name):
    """Writes against the size of a value."""
    runs = [r for r in lines(name) if "system" in r]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    kinds = (("table", True, "table (log), 100,000 rows", PAPER, "-"), ("in-place", False, "in-place, one key", BASE, "-"),
             ("in-place", True, "in-place, 100,000 keys", OURS, "-"), ("in-place in memory", False, "one key, in memory", BASE, ":"),
             ("in-place in memory", True, "100,000 keys, in memory", OURS, ":"))
    for axis, key, label in ((axes[0], "ops_s", "writes per second"), (axes[1], "p99_ms", "p99, ms (log)")):
        for system, many, title, colour, style in kinds:
            mine = [r for r in runs if r["system"] == system and r["many"] == many]
            values = sorted({r["payload_bytes"] for r in mine})
            at = [median([r[key] for r in mine if r["payload_bytes"] == value]) for value in values]
            axis.plot(values, at, f"o{style}", color=colour, label=title)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("bytes of a value (log)")
        axis.set_ylabel(label)
        axis.legend(fontsize=7)
    axes[0].set_ylim(bottom=0)
    axes[1].set_yscale("log")
    words = ("Writes through the whole product, 64 in flight. The paper measures the storage of one machine alone, on persistent memory:\n"
             "more than a million writes per second up to 1 KiB for log and many in-place; a single one is slowest there.")
    figure.suptitle(bizur_foot(runs, words, "durable on disk but for the dotted lines"), fontsize=8)
    save(figure, name)


def in_place_bytes(name):
    """What a key costs on disk and in memory, and what a restart takes."""
    runs = lines(name)
    kinds = (("table", "table (log)", PAPER), ("bizur", "Bizur", BASE), ("in-place", "in-place", OURS))
    panels = (("disk_bytes_key", "bytes on disk, per key and replica"), ("memory_bytes_key", "bytes in memory, per key and replica"),
              ("restart_s", "s from kill -9 to a write through the node"))
    figure, axes = plt.subplots(1, 3, figsize=(11, 4))
    for axis, (key, title) in zip(axes, panels):
        for at, (system, _, colour) in enumerate(kinds):
            mine = [r for r in runs if r["system"] == system]
            each = [value for r in mine for value in (r["restarts_s"] if key == "restart_s" else [r[key]])]
            axis.bar([at], [median(each)], 0.6, color=colour)
            axis.plot([at] * len(each), each, "k_", ms=12)
        axis.set_xticks(range(len(kinds)), [title for _, title, _ in kinds], fontsize=8)
        axis.set_title(title, fontsize=9)
    words = f"{runs[0]['keys']:,} keys with values of {runs[0]['payload_bytes']} B, each written once. A line is a run, or a restart."
    figure.suptitle(bizur_foot(runs, words), fontsize=8)
    save(figure, name)


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


def over_time(axis, run, colour):
    """Acknowledgements per second in short windows, against milliseconds."""
    width = run["bin_ms"]
    axis.step([(n + 1) * width for n in range(len(run["acks"]))], [count * 1000 / width for count in run["acks"]], color=colour, lw=0.7)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(f"per second, in {width} ms", fontsize=7)


def strips(axis, columns):
    """Each value as a line, and the median of a column as a dot."""
    for at, (_, values, colour) in enumerate(columns):
        axis.plot([at] * len(values), values, "_", color=colour, ms=16, alpha=0.5)
        if values:
            axis.plot([at], [median(values)], "o", color=colour)
    axis.set_xticks(range(len(columns)), [title for title, _, _ in columns], fontsize=7)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(bottom=0)


def scalog_reconfigure(name):
    """Appends while shards come and go, beside CORFU's reconfiguration; and the gaps."""
    runs = [r for r in lines(name) if r["workload"] == "reconfigure"]
    systems = (("Scalog", OURS), ("CORFU", BASE))
    figure, axes = plt.subplots(3, 1, figsize=(11, 9))
    marks = {"shard added": "-", "shard ended": "--", "unit replaced": "-"}
    for axis, (system, colour) in zip(axes, systems):
        run = next(r for r in runs if r["system"] == system)
        over_time(axis, run, colour)
        shown = set()
        for window in run["windows"]:
            what = window["what"]
            if what in marks and window["at_ms"] < len(run["acks"]) * run["bin_ms"]:
                axis.axvline(window["at_ms"], color=PAPER, lw=0.8, ls=marks[what], label=None if what in shown else what)
                shown.add(what)
        axis.legend(fontsize=7, loc="lower right")
        axis.set_title(f"{system}: acknowledged appends", fontsize=8)
    axes[1].set_xlabel("ms")
    kinds = [("Scalog", "no change"), ("Scalog", "shard added"), ("Scalog", "shard ended"), ("CORFU", "no change"), ("CORFU", "unit replaced")]
    columns = [
        (f"{system}, {what}", [w["gap_ms"] for r in runs if r["system"] == system for w in r["windows"] if w["what"] == what],
         dict(systems)[system])
        for system, what in kinds
    ]
    strips(axes[2], columns)
    axes[2].axhline(30, color=PAPER, lw=0.8, label="CORFU's pause, as Scalog's slides say: about 30 ms")
    axes[2].set_ylabel("longest gap of a window, ms", fontsize=7)
    axes[2].legend(fontsize=7)
    settings = runs[0]["settings"]
    figure.suptitle(
        f"{settings['shards']} shards of two servers, and as many chains of two units, {settings['nodes']} processes on one machine;"
        f" {settings['clients']} clients, {settings['payload_bytes']} B,\nhalf of CORFU's peak: {settings['rate']:,} appends per second; {loads(runs)}",
        fontsize=8,
    )
    save(figure, name)


def scalog_kills(name):
    """What clients see of a killed node: of the shard, and others."""
    runs = [r for r in lines(name) if r["workload"] == "kill"]
    roles = list(dict.fromkeys(r["victim"] for r in runs))
    killed = [role for role in roles if role != "nobody"]
    figure = plt.figure(figsize=(12, 8))
    for at, role in enumerate(killed):
        axis = figure.add_subplot(2, len(killed), at + 1)
        run = next(r for r in runs if r["victim"] == role)
        over_time(axis, run, OURS)
        axis.axvline(run["killed_ms"], color="black", lw=0.6, ls=":")
        axis.set_title(f"{role} killed", fontsize=8)
        axis.set_xlabel("ms", fontsize=7)
    columns = []
    for role in roles:
        mine = [r for r in runs if r["victim"] == role]
        for which, words, colour in (("of the shard", ", clients of its shard", PAPER), ("others", ", other clients", OURS)):
            gaps = [gap for r in mine for gap in r["gaps_ms"][which]]
            words = words if role == "storage server" else ""
            if gaps:
                columns.append((f"{role}{words}".replace(", ", ",\n"), gaps, colour))
    axis = figure.add_subplot(2, 1, 2)
    strips(axis, columns)
    axis.set_ylabel("longest time of a client without an acknowledgement, ms", fontsize=7)
    settings = runs[0]["settings"]
    figure.suptitle(
        f"{settings['shards']} shards of two servers, {settings['nodes']} processes on one machine, {settings['clients']} clients with one append of"
        f" {settings['payload_bytes']} B under way each;\nthe dotted line is the kill; {loads(runs)}", fontsize=8)
    save(figure, name)


def scalog_ordering(name):
    """What a real ordering layer carries on this machine, against the number of emulated shards."""
    runs = [r for r in lines(name) if r.get("carried")]
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2))
    kinds = (("ordering", "one follows the ordering log", "o-", OURS), ("ordering, followed by all servers", "all servers follow it", "s-", BASE))
    panels = (("interval_us", "shortest interval of reports that is carried, ms (log)", 1e-3), ("report_to_cut_p50_us", "from a report to its cut, p50, ms (log)", 1e-3),
              ("writes_s", "records ordered per second (log)", 1))
    for axis, (key, label, scale) in zip(axes, panels):
        for workload, title, style, colour in kinds:
            mine = sorted((r for r in runs if r["workload"] == workload), key=lambda r: r["shards"])
            axis.plot([r["shards"] for r in mine], [r[key] * scale for r in mine], style, color=colour, label=title)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("shards of two servers, emulated (log)")
        axis.set_ylabel(label, fontsize=8)
    axes[0].plot([3500], [0.1], "D", color=PAPER, mfc="none", label="Scalog's slides: 0.1 ms")
    axes[1].plot([3500], [1.6], "D", color=PAPER, mfc="none", label="Scalog's slides: 1.6 ms for an append")
    axes[2].plot([3500], [52e6], "D", color=PAPER, mfc="none", label="Scalog's slides: 52 million")
    for axis in axes:
        axis.legend(fontsize=7)
    settings = runs[0]["settings"]
    figure.suptitle(
        f"Real aggregators, orderer and ordering log of {settings['ordering_servers']} servers, sockets and disk of one machine; emulated servers on it, too."
        f"\nEach shard grows by {settings['shard_rate']:,.0f} records per second, so the records follow from the number of shards.", fontsize=8)
    save(figure, name)


def scalog_modelled(name):
    """Writes and the ordering layer on modelled machines."""
    runs = lines(name)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6))
    series = (("Scalog", "write", "Scalog", "o--", OURS), ("CORFU", "write", "CORFU", "s--", BASE),
              ("CORFU", "write, 4 records per entry", "CORFU, 4 records per entry", "x--", "black"))
    for system, workload, title, style, colour in series:
        mine = [r for r in runs if (r["system"], r["workload"]) == (system, workload)]
        left.plot([r["settings"]["servers"] for r in mine], [r["records_s"] for r in mine], style, color=colour, label=f"{title}, modelled")
    left.plot([34], [2.34e6], "D", color=PAPER, mfc="none", label="Scalog's slides: 2.34 million below 40 servers")
    left.plot([34], [530e3], "v", color=PAPER, mfc="none", label="CORFU, Scalog's slides: 530,000 below 40 servers")
    left.set_xlabel("servers, two copies each (log)")
    left.set_ylabel("records per second (log)")
    layers = [r for r in runs if r.get("carried") and r["workload"] in ("ordering layer", "ordering layer, followed")]
    for (fan_in, colour) in zip(dict.fromkeys(r["fan_in"] for r in layers), (OURS, BASE, "black")):
        mine = sorted((r for r in layers if r["fan_in"] == fan_in and r["followers"] == 0), key=lambda r: r["shards"])
        shards = [r["shards"] for r in mine]
        middle.plot(shards, [r["report_to_cut_p50_us"] / 1e3 for r in mine], "o--", color=colour, label=f"modelled, fan-in {fan_in}")
        right.plot(shards, [r["interval_us"] / 1e3 for r in mine], "o--", color=colour, label=f"modelled, fan-in {fan_in}")
        for run in (r for r in layers if r["fan_in"] == fan_in and r["followers"] > 0):
            for axis, value in ((middle, run["report_to_cut_p50_us"] / 1e3), (right, run["interval_us"] / 1e3)):
                axis.plot([run["shards"]], [value], "x", color=colour)
                axis.annotate(f"{run['followers']:,} follow", (run["shards"], value), textcoords="offset points", xytext=(4, 2), fontsize=6)
    middle.plot([3500], [1.6], "D", color=PAPER, mfc="none", label="Scalog's slides: 1.6 ms for an append")
    right.plot([3500], [0.1], "D", color=PAPER, mfc="none", label="Scalog's slides: 0.1 ms")
    middle.set_ylabel("from a report to its cut, p50, ms (log)")
    right.set_ylabel("shortest interval of reports that is carried, ms (log)")
    for axis in (left, middle, right):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.legend(fontsize=7)
    for axis in (middle, right):
        axis.set_xlabel("shards of two servers (log)")
    parameters = next(r["settings"]["parameters"] for r in runs if "parameters" in r.get("settings", {}))
    figure.suptitle(
        "All modelled: each node has a machine of its own, with parameters that were measured on this one: a sync"
        f" {parameters['sync_ns'] / 1e3:,.0f} µs, a step {parameters['step_ns'] / 1e3:.1f} µs.", fontsize=8)
    save(figure, name)


def scalog_throughput(name):
    """Real writes and reads against the number of servers."""
    runs = lines(name)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    series = (("Scalog", "o-", OURS), ("CORFU", "s-", BASE), ("CORFU, 4 records per entry", "x-", "black"))
    for axis, workload in zip(axes, ("write", "read")):
        for system, style, colour in series:
            mine = [r for r in runs if (r["system"], r["workload"]) == (system, workload)]
            servers = sorted({r["settings"]["servers"] for r in mine})
            rates = [median([r["records_s"] for r in mine if r["settings"]["servers"] == count]) for count in servers]
            if servers:
                axis.plot(servers, rates, style, color=colour, label=system)
        axis.set_xlabel("servers, two copies each, all on one machine")
        axis.set_ylabel(f"records per second, {workload}s")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    settings = runs[0]["settings"]
    figure.suptitle(
        f"{settings['clients']} clients with one operation of {settings['payload_bytes']} B records under way each, on the same machine; {loads(runs)}."
        "\nIt shows what a record costs here, not how a log scales over machines.", fontsize=8)
    save(figure, name)


FIGURES = {
    "logs/kinds": logs_kinds,
    "scalog/reconfigure": scalog_reconfigure,
    "scalog/kills": scalog_kills,
    "scalog/ordering": scalog_ordering,
    "scalog/modelled": scalog_modelled,
    "scalog/throughput": scalog_throughput,
    "bizur/figure_1": bizur_1,
    "bizur/figure_2": bizur_2,
    "bizur/figure_3": bizur_3,
    "bizur/figure_4": bizur_4,
    "bizur/shards": bizur_shards,
    "bizur/iterate": bizur_iterate,
    "in-place/figure_5": in_place_5,
    "in-place/figure_6": in_place_6,
    "in-place/bytes": in_place_bytes,
    "corfu/figure_6": figure_6,
    "corfu/figure_6_node": figure_6,
    "corfu/sequencer": corfu_sequencer,
    "corfu/without_sequencer": without_sequencer,
    "corfu/figure_7": figure_7,
    "corfu/figure_8_seal": figure_8_seal,
    "corfu/figure_8_recovery": figure_8_recovery,
    "corfu/figure_8": figure_8,
    "corfu/figure_9": figure_9,
    "corfu/figure_10": figure_10,
    "delos/figure_10": figure_10_of_delos,
    "delos/figure_11_left": figure_11_left,
    "delos/figure_11_middle": figure_11_middle,
    "delos/figure_11_right": figure_11_right,
    "delos/striped_depth_1": striped_depth_1,
}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or [name for name in FIGURES if (HERE / name / "run.jsonl").is_file()]:
        FIGURES[wanted](wanted)
