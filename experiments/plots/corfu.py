"""CORFU's figures."""

from statistics import median

from plots.canvas import BASE, OURS, PAPER, lines, loads, medians, plt, save


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


def in_words(ratios):
    """Ratios of the model to the real system, for a head."""
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


def figure_7(name):
    """Appends and reads per second against the number of units: modelled machines, and what one machine carries."""
    everything = lines(name)
    runs = [r for r in everything if "ops_s" in r and "units" in r]
    ratios = {what: [r["ratio"] for r in everything if r["workload"] == "model_to_real" and r["of"] == what] for what in ("append", "read")}
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
        f" {modelled['parameters']['sync_ns'] / 1e3:,.0f} µs, a step {modelled['parameters']['step_ns'] / 1e3:.1f} µs; {loads(runs)}."
        f"\nThe model of one machine gives so many times what is real: {in_words(ratios['append'])} of appends, {in_words(ratios['read'])} of reads",
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


FIGURES = {
    "corfu/figure_10": figure_10,
    "corfu/figure_6": figure_6,
    "corfu/figure_6_node": figure_6,
    "corfu/figure_7": figure_7,
    "corfu/figure_8": figure_8,
    "corfu/figure_8_recovery": figure_8_recovery,
    "corfu/figure_8_seal": figure_8_seal,
    "corfu/figure_9": figure_9,
    "corfu/sequencer": corfu_sequencer,
    "corfu/without_sequencer": without_sequencer,
}
