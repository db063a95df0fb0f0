#!/usr/bin/env python3
"""A rolling restart under load: every node is stopped with SIGTERM and started again, one after the other.

A stopping node first hands over its sequencers, and each round stops a node that has the log's sequencer. No append fails. The pause, which
is the longest gap between two acknowledgements from the SIGTERM to 1 s after the node is back, has a p99 of at most 50 ms. Before the next
node is stopped, the active segment has as many servers as at first, and each of them answers, so a majority survives the next stop.
"""

import signal
import time

from cluster import Cluster, Drill, holders, need, poll, quantile, say, table
from load import Load, verify

LOG = "rolling"
P99_MS = 50.0


def all_up(cluster):
    """Whether every node is up and the log is healthy."""
    status = cluster.status()
    rows = [row for row in status["logs"] if row["name"] == LOG]
    return all(n["state"] == "up" for n in status["nodes"]) and rows and rows[0]["healthy"]


def active_servers(cluster):
    """The servers of the active segment."""
    return holders(cluster.active(LOG))


def check_segment(cluster, first):
    """The active segment is as it was laid out, and whole."""
    servers = active_servers(cluster)
    need(servers == first, f"the active segment has servers {servers}, and had {first} before the restarts")

    def whole():
        row = cluster.log_info(LOG)
        up = {s["node"] for s in row["servers"] if s["has_up_to"] is not None} if row else set()
        return up >= set(first)

    poll("every server of the active segment answers", 60, whole, every=0.1)
    return len(servers)


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        first = active_servers(cluster)
        need(len(first) == 3, f"the log has servers {first}; three are wanted")
        fewest = len(first)
        load = Load(cluster, drill.folder, LOG, depth=64).start()
        windows, handed_over = [], 0
        for turn in range(drill.args.rounds):
            for number in cluster.ids():
                poll("all nodes are up", 60, lambda: all_up(cluster), every=0.1)
                fewest = min(fewest, check_segment(cluster, first))
                before = cluster.active(LOG)["loglet"]
                was_sequencer = cluster.sequencer(LOG) == number
                pids, at = cluster.signal([number], signal.SIGTERM)
                cluster.wait_back(pids)
                poll("the node is up again", 60, lambda: all_up(cluster), every=0.1)
                need(not was_sequencer or cluster.active(LOG)["loglet"] != before, f"node {number} stopped, and has handed over nothing")
                handed_over += was_sequencer
                time.sleep(1)
                windows.append((turn + 1, number, was_sequencer, at, time.time()))
        fewest = min(fewest, check_segment(cluster, first))
        done = load.finish()
        count = verify(cluster, [load], LOG)
        acks = load.acks()
    need(count == done, f"{done} acknowledged, {count} read")
    need(handed_over >= drill.args.rounds, f"in {drill.args.rounds} rounds the sequencer was handed over {handed_over} times")
    gaps = [acks.longest_gap_and_end(at, until) for *_, at, until in windows]
    pauses = [1e3 * gap for gap, _ in gaps]
    table(
        [
            (turn, number, "yes" if s else "", f"{p:.1f}", f"{1e3 * (end - at):.0f}")
            for (turn, number, s, at, _), p, (_, end) in zip(windows, pauses, gaps)
        ],
        ("round", "node", "sequencer", "pause ms", "ends ms after SIGTERM"),
    )
    p50, p99 = quantile(pauses, 0.5), quantile(pauses, 0.99)
    say(f"{done} records, none failed, lost or doubled; pause p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    drill.result.update(records=done, restarts=len(pauses), handed_over=handed_over, fewest_servers=fewest, p50_ms=round(p50, 2), p99_ms=round(p99, 2))
    bound = drill.within(P99_MS)
    drill.promise(p99 <= bound, f"pause p99 is {p99:.1f} ms; at most {bound} ms is promised")


if __name__ == "__main__":
    Drill("rolling", __doc__, refuses={"local": "its log waits for the one node that has it, and nobody takes over"}, rounds=(10, 1, "how often every node is restarted")).run(body)
