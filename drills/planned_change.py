#!/usr/bin/env python3
"""Planned changes under load: the Loglet under a log is replaced again and again, and clients do not notice.

On five nodes with segments of three servers, the log is extended to other servers and other sequencers, converged and disaggregated, with
64 appends in flight and truncates in between. Then one node changes from native to local and back. Then the log moves from three nodes to
five, and to three others. With `--loglet local`, the log moves from node to node instead of from servers to servers; with `--loglet corfu`,
the servers are the units of one chain; with `--loglet scalog`, those of one shard, and the sequencer orders the ordering log, on the same
servers; with `--loglet striped`, the sequencer orders the first of two stripes. No append fails, and none is lost or doubled. The pause of
a change is the longest gap between two acknowledgements from the start of its command to 1 s after its return. In the first part, the
pauses have a median of at most 10 ms and a 99th percentile of at most 50 ms, and the median of the last pauses is at most 1.5 times that of
the first, plus 3 ms.
"""

import json
import os
import time

from cluster import Cluster, Drill, Failed, need, orderer, quantile, say, table
from load import Load, verify

LOG = "change"
# The bounds that are shown, in milliseconds, for extend and for truncate alike.
P50_MS, P99_MS = 10.0, 50.0
# A pause lasts until this long after the command's return, in seconds.
AFTER_S = 1.0
# The last changes are as fast as the first when their median pause is at most this much longer.
SLOWER, SLOWER_MS = 1.5, 3.0


def timed(verb):
    """Runs a command; (start, return) in seconds since 1970, once the second after it has passed."""
    began = time.time()
    verb()
    returned = time.time()
    time.sleep(AFTER_S)
    return began, returned + AFTER_S


def histogram(pauses_ms):
    """Counts in steps that double from 1 ms."""
    edges = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, float("inf")]
    rows, below = [], 0
    for edge in edges:
        count = sum(1 for p in pauses_ms if below <= p < edge)
        if count:
            rows.append((f"{below} to {edge} ms", count, "#" * max(1, round(60 * count / len(pauses_ms)))))
        below = edge
    table(rows, ("pause", "changes", ""))


def summary(pauses_ms):
    """The figures of a kind of change."""
    return {
        "count": len(pauses_ms),
        "p50_ms": round(quantile(pauses_ms, 0.5), 2),
        "p99_ms": round(quantile(pauses_ms, 0.99), 2),
        "max_ms": round(max(pauses_ms, default=0.0), 2),
    }


def keep(drill, kind, windows, pauses_ms, acks):
    """Adds a line with every pause of a kind of change to the file that was asked for."""
    if not drill.args.pauses:
        return
    line = {"system": "atoll", "workload": kind, **summary(pauses_ms), "ops_s": round(acks.rate()), "errors": 0}
    line["settings"] = {"nodes": 5, "servers": 3, "depth": 64, "seed": drill.seed, "load_1m": os.getloadavg()[0]}
    line["pauses_ms"] = [round(p, 3) for p in pauses_ms]
    line["commands_ms"] = [round(1e3 * (end - began - AFTER_S), 3) for began, end in windows]
    with open(drill.args.pauses, "a") as lines:
        lines.write(json.dumps(line) + "\n")


def placed(drill, servers, sequencer):
    """Words that place the next Loglet of the drill's kind. One with a single copy goes where the sequencer would."""
    kind, nodes = drill.args.loglet, ",".join(map(str, servers))
    if kind == "local":
        return ["--loglet", kind, "--servers", sequencer]
    if kind == "corfu":
        return ["--loglet", kind, "--place", f"unit={nodes}", "--sequencer", sequencer]
    if kind == "scalog":
        where = [f"storage={nodes}", f"ordering/server={nodes}", f"ordering/sequencer={sequencer}"]
        return ["--loglet", kind, "--option", "shards=1", *[word for place in where for word in ("--place", place)]]
    if kind == "striped":
        # The stripes take turns: the first is ordered by the sequencer, the second by a server.
        return ["--loglet", kind, "--servers", nodes, "--place", f"sequencer={sequencer},{servers[0]}"]
    return ["--loglet", kind, "--servers", nodes, "--sequencer", sequencer]


def changed(cluster, since, least):
    """Every change has left its trace in the chain, as often as it was made; `since` is the version before the first of them."""
    version = cluster.chain(LOG)["version"]
    need(version - since >= least, f"{least} changes were made, and the chain went from version {since} to {version}")


def change_again_and_again(drill):
    """The 200 extends."""
    args, rng = drill.args, drill.random
    with Cluster(drill.binary, drill.folder / "five", "--nodes", 5) as cluster:
        ids = cluster.ids()

        def extend(servers, sequencer):
            cluster.atoll("chain", "extend", "--log", LOG, *placed(drill, servers, sequencer))

        cluster.create_log(LOG, drill.args.loglet)
        load = Load(cluster, drill.folder, LOG, depth=64).start()
        time.sleep(1)
        # What the machine does by itself: the longest gap where nothing was changed.
        quiet = [timed(lambda: None) for _ in range(min(20, args.changes))]
        kinds = {"extend": [], "truncate": []}
        trimmed, version = 0, cluster.chain(LOG)["version"]
        sequencer = ids[0]
        for number in range(args.changes):
            servers = rng.sample(ids, 3)
            # Every other change is disaggregated: the sequencer is none of the servers.
            others = [n for n in (ids if number % 2 else servers) if n != sequencer and (number % 2 == 0 or n not in servers)]
            sequencer = rng.choice(others or [n for n in ids if n != sequencer])
            kinds["extend"].append(timed(lambda: extend(servers, sequencer)))
            now = orderer(cluster.active(LOG))
            need(now == sequencer, f"after the extend to the sequencer on node {sequencer} it is on node {now}")
            if number % 2 == 1:
                # All but the active segment and the one before may go. So often that also a quick drill has a median of the pauses.
                start = cluster.chain(LOG)["segments"][-2]["start"]
                cluster.atoll("log", "trim", "--log", LOG, start)
                kinds["truncate"].append(timed(lambda: cluster.atoll("chain", "truncate", "--log", LOG)))
                trimmed = start
        changed(cluster, version, sum(map(len, kinds.values())))
        done = load.finish()
        acks = load.acks()
        pauses = {k: [1e3 * acks.longest_gap(*w) for w in windows] for k, windows in kinds.items()}
        count = verify(cluster, [load], LOG, since=trimmed)
        need(count == done - trimmed, f"{done} acknowledged, trimmed to {trimmed}, {count} read")
        say(f"{done} records acknowledged at {acks.rate():.0f}/s, {args.changes} extends; none failed, lost or doubled")
    gaps = [1e3 * acks.longest_gap(*w) for w in quiet]
    drill.result["no_change"] = summary(gaps)
    keep(drill, "no_change", quiet, gaps, acks)
    say(f"longest gap in a second without a change: median {quantile(gaps, 0.5):.1f} ms, most {max(gaps):.1f} ms")
    for kind, values in pauses.items():
        say(f"\n{kind}:")
        histogram(values)
        drill.result[kind] = summary(values)
        keep(drill, kind, kinds[kind], values, acks)
    extends = pauses["extend"]
    tenth = max(1, min(20, len(extends) // 2))
    first, last = quantile(extends[:tenth], 0.5), quantile(extends[-tenth:], 0.5)
    drill.result.update(records=done, ops_s=round(acks.rate()), first_p50_ms=round(first, 2), last_p50_ms=round(last, 2))
    say(f"\nmedian pause of the first {tenth} {first:.1f} ms, of the last {tenth} {last:.1f} ms")
    for kind, values in pauses.items():
        for q, bound in ((0.5, P50_MS), (0.99, P99_MS)):
            got, bound = quantile(values, q), drill.within(bound)
            drill.promise(got <= bound, f"{kind}: pause p{q * 100:.0f} is {got:.1f} ms; at most {bound} ms is promised")
    drill.promise(last <= drill.within(SLOWER * first + SLOWER_MS), f"the last changes are slower than the first: {last:.1f} ms, {first:.1f} ms")


def native_to_local_and_back(drill):
    """Another kind of Loglet, on one node."""
    with Cluster(drill.binary, drill.folder / "one", "--nodes", 1) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        load = Load(cluster, drill.folder, LOG, name="b", depth=64).start()
        windows, version = [], cluster.chain(LOG)["version"]
        for number in range(drill.args.swaps):
            kind = ("local", "native")[number % 2]
            where = ["--servers", 1] + (["--sequencer", 1] if kind == "native" else [])
            windows.append(timed(lambda: cluster.atoll("chain", "extend", "--log", LOG, "--loglet", kind, *where)))
            now = cluster.active(LOG)["kind"]
            need(now == kind, f"after the extend to {kind} the active segment is {now}")
        changed(cluster, version, len(windows))
        load.finish()
        acks = load.acks()
        verify(cluster, [load], LOG)
        kinds = [s["kind"] for s in cluster.chain(LOG)["segments"]]
        need("local" in kinds and "native" in kinds, f"the chain has {kinds}")
    pauses = [1e3 * acks.longest_gap(*w) for w in windows]
    drill.result["swap"] = summary(pauses)
    say(f"\nnative and local on one node: {len(pauses)} swaps, pause p50 {quantile(pauses, 0.5):.1f} ms, most {max(pauses):.1f} ms")


def three_to_five_to_three_others(drill):
    """Members: two come, two of the first go; the log follows by itself."""
    with Cluster(drill.binary, drill.folder / "members", "--nodes", 5) as cluster:
        ids = cluster.ids()
        cluster.create_log(LOG, drill.args.loglet)
        load = Load(cluster, drill.folder, LOG, name="c", depth=64).start()
        windows, version = [], cluster.chain(LOG)["version"]
        for servers in (ids[:3], ids, ids[2:]):
            windows.append(timed(lambda: cluster.atoll("chain", "extend", "--log", LOG, *placed(drill, servers, servers[-1]))))
        changed(cluster, version, len(windows))
        for leaving in ids[:2]:
            windows.append(timed(lambda: cluster.atoll("node", "drain", leaving)))
        load.finish()
        verify(cluster, [load], LOG)
        acks = load.acks()
    pauses = [1e3 * acks.longest_gap(*w) for w in windows]
    drill.result["members"] = summary(pauses)
    say(f"three servers, five, three others, two nodes drained: pauses {', '.join(f'{p:.1f}' for p in pauses)} ms")


def body(drill):
    failed = []
    for part in (change_again_and_again, native_to_local_and_back, three_to_five_to_three_others):
        try:
            part(drill)
        except Failed as words:
            say(f"{part.__name__.replace('_', ' ')}: {words}")
            failed.append(str(words))
    need(not failed, "; ".join(failed))


if __name__ == "__main__":
    Drill(
        "planned_change",
        __doc__,
        refuses={},
        changes=(200, 10, "how many extends"),
        swaps=(20, 4, "how many changes of kind on one node"),
        pauses=("", "", "a file that gets every pause of the first part, as JSON lines"),
    ).run(body)
