#!/usr/bin/env python3
"""Figures 5 and 6 of "Towards Log-Less, Fine-Granular State Machine Replication" (§6), with keyspaces on this machine:

    experiments/keyspaces/in_place.py keys     figure 5: operations against the number of keys; 95 % reads, Pareto 80/20
    experiments/keyspaces/in_place.py sizes    figure 6: writes against the size of a value; a table, one in-place key, many of them
    experiments/keyspaces/in_place.py bytes    what a key of 50 bytes costs on disk and in memory, and what a restart after kill -9 takes

All operations are linearizable, and all writes durable on a majority of three nodes, except where a row says that the keyspace is in
memory. The paper measures figure 6 on the storage of one machine alone; here it goes through the whole product. Prints one JSON line per
run.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import load

KEYS = (1, 10, 100, 1000, 10_000, 100_000)
SIZES = (8, 64, 256, 1024, 4096)
DEPTH, VALUE_BYTES, READS = 64, 50, 95
MANY = 100_000
# The keys of which the bytes are counted, without the first ones, and how often a node that has them is killed.
COUNTED, COUNTED_FROM, REPLICAS, RESTARTS = 100_000, 1000, 3, 5
# Where a figure puts its keys: the name of the row's system, and how the keyspace is created. None: a table.
TABLE = ("table", None)
IN_PLACE = ("in-place", {"engine": "in-place"})
IN_MEMORY = ("in-place in memory", {"engine": "in-place", "durability": "memory"})
BIZUR = ("bizur", {"engine": "bizur", "shards": 256, "buckets": 64})


def place(cluster, settings):
    """The flags of the bench for a fresh table or keyspace."""
    if settings is None:
        return {"table": "bench"}
    cluster.create("bench", **settings)
    return {"keyspace": "bench"}


def keys(args):
    """Figure 5."""
    for system, settings in (TABLE, BIZUR, IN_PLACE):
        with load.cluster(args) as cluster:
            where = place(cluster, settings)
            for count in load.some(args, KEYS):
                row = cluster.bench(**where, keys=count, depth=DEPTH, payload=VALUE_BYTES, reads=READS, distribution="pareto", fill=True,
                                    seconds=args.seconds, warmup=args.warm)
                yield dict(row, system=system)


def sizes(args):
    """Figure 6."""
    for system, settings, count in ((*TABLE, MANY), (*IN_PLACE, 1), (*IN_PLACE, MANY), (*IN_MEMORY, 1), (*IN_MEMORY, MANY)):
        with load.cluster(args) as cluster:
            where = place(cluster, settings)
            for size in load.some(args, SIZES):
                row = cluster.bench(**where, keys=count, depth=DEPTH, payload=size, seconds=args.seconds, warmup=args.warm)
                yield dict(row, system=system, many=count > 1)


def memory_bytes(pid):
    """Anonymous memory of a process: what it holds, without its program and the pages of files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def disk_bytes(folder):
    """Allocated bytes of a folder."""
    out = subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[0])


def held(cluster):
    """Bytes of all nodes on disk, and in memory."""
    return disk_bytes(cluster.data), sum(map(memory_bytes, cluster.pids))


def restart_s(cluster, where):
    """Kills a node with signal 9; the seconds until `atoll dev` has started it again and it has answered a write through its own door."""
    node = json.loads(pathlib.Path(cluster.data, "dev", "dev.json").read_text())["nodes"][0]
    os.kill(node["pid"], signal.SIGKILL)
    began = time.monotonic()
    word = ["bench", "kv", *load.flags(**where), "--keys", "1", "--depth", "1", "--seconds", "0.01", "--connect", node["grpc"]]
    while time.monotonic() < began + 60:
        if subprocess.run([cluster.program, *word], capture_output=True).returncode == 0:
            return round(time.monotonic() - began, 2)
    sys.exit("the node did not come back")


def costs(args):
    """Bytes per key and replica, and restarts: of what holds the keys in a log and a store, and of what overwrites them in place."""
    keys = 5_000 if args.quick else COUNTED
    for system, settings in (TABLE, BIZUR, IN_PLACE):
        with load.cluster(args) as cluster:
            where = place(cluster, settings)
            # What does not grow with the keys is there before they are counted.
            cluster.bench(**where, keys=COUNTED_FROM, payload=VALUE_BYTES, seconds=0.1, fill=True)
            time.sleep(1)
            disk, memory = held(cluster)
            filled = cluster.bench(**where, keys=keys, payload=VALUE_BYTES, depth=1, seconds=0.1, fill=True)
            time.sleep(1)
            more_disk, more_memory = (after - before for after, before in zip(held(cluster), (disk, memory)))
            per = REPLICAS * (keys - COUNTED_FROM)
            restarts = [restart_s(cluster, where) for _ in range(1 if args.quick else RESTARTS)]
            yield {"system": system, "keys": keys, "payload_bytes": VALUE_BYTES, "disk_bytes_key": round(more_disk / per),
                   "memory_bytes_key": round(more_memory / per), "fill_keys_s": round(keys / filled["fill_seconds"]),
                   "restarts_s": restarts, "restart_s": statistics.median(restarts), "load_1m": filled["load_1m"]}


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keys", "sizes", "bytes"))
    load.arguments(parser)
    args = load.parsed(parser)
    for number in range(1, args.rounds + 1):
        for row in {"keys": keys, "sizes": sizes, "bytes": costs}[args.what](args):
            load.tell(row, number)


if __name__ == "__main__":
    main()
