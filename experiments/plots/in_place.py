"""The figures of in-place consensus."""

from statistics import median

from plots.canvas import BASE, OURS, PAPER, keyspaces_foot, lines, plt, save


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
    figure.suptitle(keyspaces_foot(runs, words), fontsize=8)
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
    figure.suptitle(keyspaces_foot(runs, words, "durable on disk but for the dotted lines"), fontsize=8)
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
    figure.suptitle(keyspaces_foot(runs, words), fontsize=8)
    save(figure, name)


FIGURES = {
    "in-place/bytes": in_place_bytes,
    "in-place/figure_5": in_place_5,
    "in-place/figure_6": in_place_6,
}
