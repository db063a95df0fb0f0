"""The drawings of the ZooKeeper door."""

from plots.canvas import BASE, OURS, PAPER, lines, plt, save

COLOURS = {"scrub": PAPER, "snapshot": "black", "backup": "black"}
WORDS = {"scrub": "a node reads its store again", "snapshot": "a snapshot is in the backup", "backup": "the backup begins"}
MOST_MS = 100


def maintenance(name):
    """How long writes take in each second while the nodes maintain themselves."""
    runs = lines(name)
    seconds = [r for r in runs if r["part"] == "second"]
    whole = next(r for r in runs if r["part"] == "steady")
    figure, axis = plt.subplots(figsize=(11, 4.2))
    at = [r["at_s"] for r in seconds]
    for key, colour, words in (("max_ms", PAPER, "longest"), ("p99_ms", OURS, "p99"), ("p50_ms", BASE, "p50")):
        axis.plot(at, [r[key] for r in seconds], color=colour, lw=0.9, label=words)
    axis.axhline(MOST_MS, color="black", lw=0.8, ls="--", label=f"{MOST_MS} ms")
    told = set()
    for row in (r for r in runs if r["part"] == "action"):
        label = None if row["what"] in told else WORDS[row["what"]]
        told.add(row["what"])
        axis.plot([row["at_s"]], [1], "|", color=COLOURS[row["what"]], transform=axis.get_xaxis_transform(), clip_on=False, ms=12, label=label)
    axis.set_yscale("log")
    axis.set_xlabel("seconds")
    axis.set_ylabel("ms (log), of each second")
    axis.legend(fontsize=7, loc="lower right", ncols=2)
    axis.set_title(
        f"{whole['rate']} writes of {whole['payload_bytes']} B per second to {whole['nodes']} nodes, while replicas are compared every second, stores"
        f" are read again,\nsnapshots are taken, the log is trimmed and files are merged. p99.9 {whole['p999_ms']:.1f} ms, longest"
        f" {whole['max_ms']:.1f} ms. Three nodes and the load on {whole['cores']} cores", fontsize=8)
    save(figure, name)


FIGURES = {"zookeeper/maintenance": maintenance}
