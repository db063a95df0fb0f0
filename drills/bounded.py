#!/usr/bin/env python3
"""A log that is trimmed to its last part stays within a fixed amount of disk and memory, however much is appended.

5 GB are appended to a log that is trimmed to its last 500 MB. No node ever uses more than 1 GB of disk or 400 MB of memory.
"""

import pathlib
import time

from alone import folder_bytes
from cluster import Cluster, Drill, need, say, table
from load import Load, verify

LOG = "bounded"
RECORD_BYTES = 4096
# Most disk and memory of one node. Of the disk, this much does not depend on what stays: segments of the journal that are prepared, being
# emptied, or kept for reuse.
DISK_BYTES, DISK_FIXED_BYTES = 1_000_000_000, 250_000_000
MEMORY_BYTES = 400_000_000


def memory_of(pid):
    """The resident memory of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def body(drill):
    disk = round(drill.scaled(DISK_BYTES, "keep_megabytes", DISK_FIXED_BYTES))
    goal, keep = drill.args.megabytes * 1_000_000, drill.args.keep_megabytes * 1_000_000
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", drill.args.nodes) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        load = Load(cluster, drill.folder, LOG, line_bytes=RECORD_BYTES, depth=64).start()
        most = {n.id: [0, 0] for n in cluster.nodes()}
        trimmed, shown = 0, time.monotonic()
        while (tail := cluster.json("log", "check-tail", "--log", LOG)["tail"]) * RECORD_BYTES < goal:
            to = tail - keep // RECORD_BYTES
            if to > trimmed:
                cluster.atoll("log", "trim", "--log", LOG, to)
                trimmed = to
            for node in cluster.nodes():
                seen = most[node.id]
                seen[0] = max(seen[0], folder_bytes(node.data))
                seen[1] = max(seen[1], memory_of(node.pid))
                need(seen[0] <= disk, f"node {node.id} uses {seen[0]} bytes of disk; at most {disk} is promised")
                need(seen[1] <= MEMORY_BYTES, f"node {node.id} uses {seen[1]} bytes of memory; at most {MEMORY_BYTES} is promised")
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                say(f"{tail * RECORD_BYTES / 1e6:.0f} MB in, trimmed to the last {(tail - trimmed) * RECORD_BYTES / 1e6:.0f} MB")
            need(load.process.poll() is None, f"the load ended: {load.words()}")
            time.sleep(0.25)
        done = load.finish()
        count = verify(cluster, [load], LOG, since=trimmed)
        need(count == done - trimmed, f"{done} acknowledged, trimmed to {trimmed}, {count} read")
        table([(i, f"{d / 1e6:.0f}", f"{m / 1e6:.0f}") for i, (d, m) in most.items()], ("node", "most disk MB", "most memory MB"))
        drill.result.update(
            megabytes=round(done * RECORD_BYTES / 1e6),
            most_disk_mb=round(max(d for d, _ in most.values()) / 1e6),
            most_memory_mb=round(max(m for _, m in most.values()) / 1e6),
        )
    need(done * RECORD_BYTES >= goal, "less went through than asked for")


if __name__ == "__main__":
    Drill(
        "bounded",
        __doc__,
        refuses={},
        nodes=(3, 1, "how many nodes"),
        megabytes=(5000, 700, "how much goes through"),
        keep_megabytes=(500, 50, "how much stays"),
    ).run(body)
