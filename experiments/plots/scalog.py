"""Scalog's figures."""

from statistics import median

from plots.canvas import BASE, OURS, PAPER, lines, loads, plt, save


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
    "scalog/kills": scalog_kills,
    "scalog/modelled": scalog_modelled,
    "scalog/ordering": scalog_ordering,
    "scalog/reconfigure": scalog_reconfigure,
    "scalog/throughput": scalog_throughput,
}
