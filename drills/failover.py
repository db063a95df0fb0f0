#!/usr/bin/env python3
"""The sequencer's node is lost: how long until the next append is acknowledged?

The cluster has default settings, and one client prefers each node. The sequencer's node is killed (`kill -9`) again and again, and then
stopped (SIGSTOP) and continued again and again; a node that was away must do no harm. At the slowest client, the time to the next
acknowledgement is at most 300 ms at the median and 1 s at worst after a kill, and 1 s and 2 s after a stop. No acknowledged record is lost.
Finally the cluster runs at depth 256 with all cores busy, and no reconfiguration may happen.
"""

import bisect
import json
import signal
import time

from cluster import Cluster, Drill, need, poll, quantile, say, table
from load import Load, verify

LOG = "failover"
# The bounds that are shown, in seconds: median, worst.
KILL_S = (0.3, 1.0)
STOP_S = (1.0, 2.0)
# A stopped node stays stopped for longer than the worst loss may last by so long: what comes with its return is no recovery.
STOPPED_S = 2.0
# The log of the busy cluster, and how many records of it are kept.
BUSY_LOG, BUSY_KEPT = "busy", 300_000


def wait_whole(cluster):
    """Until every node is up, and the log has a sequencer that lives."""
    def whole():
        status = cluster.status()
        up = all(n["state"] == "up" for n in status["nodes"])
        rows = [row for row in status["logs"] if row["name"] == LOG]
        return up and rows and rows[0]["healthy"]

    poll("all nodes are up and the log is healthy", 60, whole, every=0.1)


def lose(cluster, loads, which, stay):
    """Loses the sequencer's node once: (its id; moment of the loss)."""
    wait_whole(cluster)
    # Some time of quiet, so that the last loss is over for the clients, too.
    time.sleep(0.5)
    loss = cluster.lose_sequencer(LOG, which)
    if which == signal.SIGKILL:
        cluster.wait_back(loss.pids)
    time.sleep(stay)
    if which == signal.SIGSTOP:
        cluster.signal([loss.node], signal.SIGCONT)
    for load in loads:
        load._alive()
    cluster.wait_moved(LOG, loss)
    return loss.node, loss.at


def settle(loads, losses, bounds, words, drill):
    """Times from each loss to the next acknowledgement, over all clients and at the slowest client."""
    acks = [load.acks() for load in loads]
    rows, first, slowest = [], [], []
    for number, (victim, at) in enumerate(losses):
        # What was on its way when the node went is no sign of recovery: an acknowledgement counts after the longest gap.
        waits = [recovered_after(a, at) for a in acks]
        first.append(min(waits))
        slowest.append(max(waits))
        rows.append((number + 1, victim, *(f"{1e3 * w:.0f}" for w in waits)))
    say(f"\n{words}: milliseconds until the next acknowledgement, for the client that prefers each node")
    table(rows, ("loss", "node", *(f"client {load.name}" for load in loads)))
    median, worst = quantile(slowest, 0.5), max(slowest)
    say(f"at the slowest client: median {1e3 * median:.0f} ms, worst {1e3 * worst:.0f} ms; at the quickest: median {1e3 * quantile(first, 0.5):.0f} ms")
    drill.result[words] = {"count": len(losses), "median_ms": round(1e3 * median), "worst_ms": round(1e3 * worst)}
    for what, seconds, bound in (("median", median, drill.within(bounds[0])), ("worst", worst, drill.within(bounds[1]))):
        drill.promise(seconds <= bound, f"{words}: the {what} is {seconds:.3f} s; at most {bound} s is promised")


def recovered_after(acks, at):
    """Seconds from a loss to the end of the gap that it made: the longest one that begins within 200 ms of it."""
    place = max(1, bisect.bisect_right(acks.at, at))
    best, gap = acks.at[min(place, len(acks.at) - 1)], 0.0
    while place < len(acks.at) and acks.at[place - 1] <= at + 0.2:
        if acks.at[place] - acks.at[place - 1] > gap:
            best, gap = acks.at[place], acks.at[place] - acks.at[place - 1]
        place += 1
    return max(0.0, best - at)


def segments(cluster):
    """The segments of the busy log: where each starts, and its Loglet. A trim changes the chain, too, and is no reconfiguration."""
    return {(s["start"], json.dumps(s["config"], sort_keys=True)) for s in cluster.chain(BUSY_LOG)["segments"]}


def quiet(drill, cluster):
    """A busy cluster is left alone; how many records were read back. The log is trimmed to its last part meanwhile."""
    seconds = drill.args.busy_seconds
    cluster.create_log(BUSY_LOG, drill.args.loglet)
    loads = [Load(cluster, drill.folder, BUSY_LOG, name=f"busy{n}", depth=256, line_bytes=1024).start() for n in range(2)]
    before = segments(cluster)
    ends, trimmed = time.monotonic() + seconds, 0
    while (left := ends - time.monotonic()) > 0:
        time.sleep(min(5, left))
        to = cluster.json("log", "check-tail", "--log", BUSY_LOG)["tail"] - BUSY_KEPT
        if to > trimmed:
            cluster.atoll("log", "trim", "--log", BUSY_LOG, to)
            trimmed = to
    done = sum(load.finish() for load in loads)
    more = len(segments(cluster) - before)
    say(f"\n{seconds} s at depth 256 twice: {done} records, {done / seconds:.0f}/s, {more} reconfigurations")
    drill.result["busy"] = {"seconds": seconds, "ops_s": round(done / seconds), "reconfigurations": more}
    need(not more, f"{more} reconfigurations that nobody asked for, under load alone: the chain was {before}")
    return verify(cluster, loads, BUSY_LOG, since=trimmed)


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        doors = {n.id: n.grpc for n in cluster.nodes()}
        loads = []
        for number in doors:
            order = [doors[number]] + [door for i, door in doors.items() if i != number]
            load = Load(cluster, drill.folder, LOG, name=f"n{number}", connect=",".join(order), depth=4)
            loads.append(load.start())
        kills = [lose(cluster, loads, signal.SIGKILL, 1.0) for _ in range(drill.args.kills)]
        stops = [lose(cluster, loads, signal.SIGSTOP, drill.within(STOP_S[1]) + STOPPED_S) for _ in range(drill.args.stops)]
        for load in loads:
            load.finish()
        count = verify(cluster, loads, LOG)
        count += quiet(drill, cluster)
        say(f"{count} records read back: none lost, none doubled, each client's in order")
        drill.result["records"] = count
    for losses, bounds, words in ((kills, KILL_S, "kill -9"), (stops, STOP_S, "SIGSTOP")):
        if losses:
            settle(loads, losses, bounds, words, drill)


if __name__ == "__main__":
    Drill(
        "failover",
        __doc__,
        refuses={"local": "its log waits for the one node that has it, and nobody takes over"},
        kills=(20, 3, "how often the sequencer's node is killed"),
        stops=(20, 2, "how often it is stopped and continued"),
        busy_seconds=(600, 10, "how long the busy cluster is watched"),
    ).run(body)
