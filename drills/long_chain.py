#!/usr/bin/env python3
"""A log that is reconfigured again and again while it is written: the last change costs what the first did.

On three nodes one log is extended so many times under load; then its whole length is read and compared with what was written.
At the beginning and at the end the drill measures an extend, an append and a read of an old position (each as a command, so
with the start of a process), and looks at the memory of the nodes, their data and the size of the chain. Old segments live in
index pages, so the chain stays short. Each sealed segment still costs a few hundred bytes at every server that holds it.
"""

import time

from cluster import Cluster, Drill, Failed, need, quantile, say, table
from load import Load, verify

LOG = "long"
# Extends, appends and reads that one measurement is the median of.
SAMPLES = 100
# The last measurement may be so much slower than the first: the median of commands on a busy machine moves by itself.
SLOWER = 1.5
# A chain may take so much of its register, of which there are 256 KiB.
CHAIN_BYTES = 64 * 1024
# Memory per segment at one node.
NODE_BYTES_PER_SEGMENT = 4096


def memory_bytes(pid):
    """Resident memory of a process."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise Failed(f"process {pid} has no memory")


def median_ms(work, times):
    """How long a command takes, in milliseconds."""
    took = []
    for i in range(times):
        began = time.monotonic()
        work(i)
        took.append(1e3 * (time.monotonic() - began))
    return round(quantile(took, 0.5), 2)


def measure(drill, cluster, load):
    """What one change, one append and one read of an old position cost now, and what the log takes."""
    def extend(_):
        cluster.atoll("chain", "extend", "--log", LOG)

    def append(_):
        cluster.atoll("log", "append", "--log", "beside", "one record")

    def read_old(_):
        at = drill.random.randrange(max(1, load.acknowledged() // 2))
        cluster.atoll("log", "read", "--log", LOG, "--from", at, "--limit", 1)

    info = cluster.log_info(LOG)
    return {
        "extend_ms": median_ms(extend, SAMPLES),
        "append_ms": median_ms(append, SAMPLES),
        "read_ms": median_ms(read_old, SAMPLES),
        "segments": info["segments"],
        "chain_bytes": info.get("chain_bytes", 0),
        "memory_mb": round(max(memory_bytes(n.pid) for n in cluster.nodes()) / 1e6, 1),
    }


def body(drill):
    args = drill.args
    with Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster:
        cluster.atoll("log", "create", "--log", LOG)
        cluster.atoll("log", "create", "--log", "beside")
        load = Load(cluster, drill.folder, LOG, depth=2).start()
        for _ in range(SAMPLES):
            cluster.atoll("chain", "extend", "--log", LOG)
        first = measure(drill, cluster, load)
        began = time.monotonic()
        for i in range(args.extends):
            cluster.atoll("chain", "extend", "--log", LOG)
            if i % 1000 == 999:
                say(f"{i + 1} extends, {(i + 1) / (time.monotonic() - began):.0f} per second")
        last = measure(drill, cluster, load)
        written = load.finish()
        segments = last["segments"] - first["segments"]
        per_segment = (last["memory_mb"] - first["memory_mb"]) * 1e6 / max(1, segments)
        table([(k, first[k], last[k]) for k in first], ("", "first", "last"))
        need(segments >= args.extends, f"only {segments} segments came to be: the load was too slow for the extends")
        read = verify(cluster, [load], LOG)
        say(f"{read} records read and compared; {per_segment:.0f} bytes of memory per segment at the largest node")
        drill.result.update(
            extends=args.extends,
            records=written,
            first=first,
            last=last,
            ratios={k: round(last[k] / first[k], 2) for k in ("extend_ms", "append_ms", "read_ms")},
            node_bytes_per_segment=round(per_segment),
        )
        need(last["chain_bytes"] <= CHAIN_BYTES, f"the chain takes {last['chain_bytes']} bytes")
        drill.promise(per_segment <= NODE_BYTES_PER_SEGMENT, f"{per_segment:.0f} bytes of memory per segment")
        for what in ("extend_ms", "append_ms", "read_ms"):
            drill.promise(last[what] <= SLOWER * first[what], f"{what}: {first[what]} at first, {last[what]} at last")


if __name__ == "__main__":
    Drill("long_chain", __doc__, extends=(50000, 2000, "how often the log is extended")).run(body)
