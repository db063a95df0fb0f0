#!/usr/bin/env python3
"""All nodes lose power, and one never returns: how long until the next write is acknowledged?

Three nodes are under load, from appends and from ZooKeeper clients. All nodes are killed (`kill -9`) at once, two are started again, and
nothing else is done. The first append and the first ZooKeeper write are acknowledged within 3 s of the moment when both nodes listen. Each
node in turn is the missing one; three times out of four it held the sequencers. In the end no acknowledged write is lost or doubled.
"""

import time

from cluster import Drill, need, quantile, say, table
from load import Load, verify
from served import Counter, Fresh, Serving

LOG = "power"
WITHIN_S = 3.0
# How long the drill looks for the first write before it gives up.
PATIENCE_S = 20.0


def cut(cluster, load, counter, missing, holds):
    """One power cut: seconds from the majority being up to the first append and to the first write of ZooKeeper."""
    cluster.wait_up()
    if holds:
        for log in (LOG, "db"):
            if cluster.sequencer(log) != missing:
                cluster.extend(log, "--sequencer", missing)
        waits = first_writes(load, Fresh(load), counter, time.time(), PATIENCE_S)
        need(None not in waits, "appends or writes stopped after a planned move of the logs")
        found = {log: cluster.sequencer(log) for log in (LOG, "db")}
        need(set(found.values()) == {missing}, f"node {missing} was to hold the sequencers when the power goes; they are at {found}")
    cluster.kill(cluster.ids())
    fresh = Fresh(load)
    up = cluster.boot([n for n in cluster.ids() if n != missing])
    waits = first_writes(load, fresh, counter, up, PATIENCE_S)
    cluster.boot([missing])
    return waits


def first_writes(load, fresh, counter, since, patience):
    """Seconds from a moment to the first acknowledgement of each kind; None if there was none."""
    until = time.time() + patience
    append = write = None
    while time.time() < until and None in (append, write):
        append = append or next((at for at in fresh.read() if at > since), None)
        write = write or next((at for at in counter.at[-2000:] if at > since), None)
        load._alive()
        if counter.failed:
            raise counter.failed
        time.sleep(0.005)
    return [at - since if at else None for at in (append, write)]


def body(drill):
    with Serving(drill.binary, drill.folder / "cluster", 3) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        load = Load(cluster, drill.folder, LOG, depth=2).start()
        counter = Counter([n.zookeeper for n in cluster.nodes()], "/counter", every_s=0.01).start()
        rows, count = [], drill.args.cuts * len(cluster.ids())
        plan = [number < 0.75 * count for number in range(count)]
        drill.random.shuffle(plan)
        for turn in range(drill.args.cuts):
            for missing in cluster.ids():
                holds = plan[len(rows)]
                append, write = cut(cluster, load, counter, missing, holds)
                shown = [f"{1e3 * s:.0f}" if s is not None else "never" for s in (append, write)]
                rows.append((turn + 1, missing, "yes" if holds else "", *shown, append, write))
                say(f"  cut {len(rows)}: node {missing} does not return{', which held the sequencers' if holds else ''}: append {shown[0]} ms, write {shown[1]} ms")
                need(None not in (append, write), f"node {missing} did not return: no write within {PATIENCE_S:.0f} s: append {shown[0]}, ZooKeeper {shown[1]}")
        cluster.wait_up()
        done = load.finish()
        written = counter.finish()
        count = verify(cluster, [load], LOG)
    need(count == done, f"{done} acknowledged, {count} read")
    say("\nmilliseconds from the majority being up to the first acknowledged write")
    table([row[:5] for row in rows], ("turn", "missing", "held the sequencers", "append", "write of ZooKeeper"))
    waits = [s for row in rows for s in row[5:]]
    say(f"median {1e3 * quantile(waits, 0.5):.0f} ms, most {1e3 * max(waits):.0f} ms; {count} records and {written} versions, none lost, none doubled")
    drill.result.update(cuts=len(rows), held_the_sequencers=sum(plan), median_ms=round(1e3 * quantile(waits, 0.5)), worst_ms=round(1e3 * max(waits)), records=count)
    bound = drill.within(WITHIN_S)
    drill.promise(max(waits) <= bound, f"the first write came {max(waits):.2f} s after the majority was up; {bound:.0f} s are promised")


if __name__ == "__main__":
    Drill(
        "power_cut",
        __doc__,
        refuses={"local": "its log waits for the one node that has it, and nobody takes over"},
        cuts=(10, 2, "how often each node is the one that does not return"),
    ).run(body)
