#!/usr/bin/env python3
"""A lost disk: a node's data folder is deleted, and the node is started again.

The node returns with a new identity. The log is extended away from the lost disk, and the sealed segments are rebuilt on living ones. Then
a second node loses its disk. Every acknowledged record is readable after each loss.
"""

import shutil
import signal
import time

from cluster import Cluster, Drill, need, poll, say, table
from load import Load, how_many_are_there, verify

LOG = "lost"


def storage_of(cluster, number):
    """The identity of a node's data folder, as the cluster knows it."""
    rows = [n for n in cluster.status()["nodes"] if n["id"] == number]
    return rows[0].get("storage") if rows and rows[0]["state"] == "up" else None


def lose_disk(cluster, number):
    """Kills a node and deletes its data before it is started again, if need be once more."""
    before = poll(f"node {number} is up", 30, lambda: storage_of(cluster, number), every=0.1)
    node = cluster.node(number)
    # The supervisor is stopped meanwhile: it would start the node before its data is gone.
    cluster.process.send_signal(signal.SIGSTOP)
    try:
        cluster.signal([number])
        shutil.rmtree(node.data)
    finally:
        cluster.process.send_signal(signal.SIGCONT)
    cluster.wait_back({number: node.pid})
    after = poll(
        f"node {number} has a new identity", 60,
        lambda: (s := storage_of(cluster, number)) and s != before and s, every=0.1,
    )
    return before, after


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        load = Load(cluster, drill.folder, LOG, line_bytes=512, depth=16).start()
        # Several sealed segments, so that there is something to rebuild.
        for sequencer in (2, 3, 1):
            time.sleep(drill.args.segment_seconds)
            cluster.extend(LOG, "--sequencer", sequencer)
        rows = []
        for number in (2, 3):
            began = time.monotonic()
            before, after = lose_disk(cluster, number)
            cluster.wait_nothing_lacks(LOG, 180)
            rows.append((number, before[:8], after[:8], f"{time.monotonic() - began:.1f}"))
            count = verify_so_far(cluster, load)
            say(f"node {number}'s disk is gone and its copies are made again; {count} records were readable meanwhile")
        done = load.finish()
        cluster.wait_nothing_lacks(LOG, 180)
        count = verify(cluster, [load], LOG)
        keepers = keep_all(cluster)
        for number in keepers:
            verify(cluster, [load], LOG, extra=("--node", number, "--local-only"))
        need(count == done, f"{done} acknowledged, {count} read")
        say()
        table(rows, ("node", "identity before", "after", "seconds until whole again"))
        say(f"{done} records: all readable, also from the own disks of these nodes: {', '.join(map(str, keepers)) or 'none'}")
        drill.result.update(records=done, disks_lost=len(rows), seconds_until_whole=[float(r[3]) for r in rows])


def keep_all(cluster):
    """The nodes that keep every record: all, but of a log on Scalog those in the shard of each segment, which has one shard here."""
    keepers = set(cluster.ids())
    for segment in cluster.chain(LOG)["segments"]:
        if segment["kind"] == "scalog":
            keepers &= {duty["node"] for duty in segment["duties"] if duty["role"] == "storage"}
    return sorted(keepers)


def verify_so_far(cluster, load):
    """Everything that was acknowledged before this call is readable."""
    acknowledged = load.acknowledged()
    there = how_many_are_there(cluster, load, LOG, acknowledged)
    need(there == acknowledged, f"{acknowledged} were acknowledged, {there} are there")
    return acknowledged


if __name__ == "__main__":
    Drill("lost_disk", __doc__, refuses={"local": "its one copy would be gone with the disk"}, segment_seconds=(5.0, 0.5, "load before each new segment")).run(body)
