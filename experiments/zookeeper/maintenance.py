#!/usr/bin/env python3
"""How long writes take while a cluster maintains itself, for the figure zookeeper/maintenance.

ZooKeeper clients write 2,000 nodes of 1 KiB per second for ten minutes, to three nodes of Atoll, at even intervals whether earlier writes
were answered or not. Meanwhile the nodes compare their replicas every second (the patrol), read their whole stores again (scrub), back up the
database with a snapshot of its state every minute, trim the log, and merge the files of the store.

Prints one JSON line for each second, each action and the whole. Its exit status is 1 if a write took longer than 100 ms.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "drills")]

from apps import find_program
from cluster import Cluster, find_binary

MOST_MS = 100
SCRUB_EVERY_S = 60
SNAPSHOT_EVERY = "60s"


def tell(row):
    print(json.dumps(row, sort_keys=True), flush=True)


def maintain(cluster, over, began, every_s):
    """Asks the nodes to read their stores again, one after the other, until the load is over."""
    turn = 0
    while not over.wait(every_s / len(cluster.ids())):
        node = cluster.ids()[turn % len(cluster.ids())]
        turn += 1
        cluster.atoll("database", "scrub", "--node", node)
        tell({"part": "action", "what": "scrub", "node": node, "at_s": round(time.monotonic() - began, 1)})


def snapshots(cluster, over, began):
    """Tells when a snapshot is there."""
    seen = None
    while not over.wait(0.5):
        status = json.loads(cluster.atoll("backup", "status", "--json").stdout)
        if status.get("snapshot_below") not in (seen, None):
            seen = status["snapshot_below"]
            tell({"part": "action", "what": "snapshot", "below": seen, "at_s": round(time.monotonic() - began, 1)})


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 s with fewer nodes, to see that it works")
    parser.add_argument("--seconds", type=int, help="[default: 600]")
    parser.add_argument("--rate", type=int, help="[default: 2000]")
    parser.add_argument("--folder", help="where the data goes [default: a temporary folder]")
    args = parser.parse_args()
    seconds, rate, nodes = args.seconds or (10 if args.quick else 600), args.rate or (200 if args.quick else 2_000), 1_000 if args.quick else 100_000
    with tempfile.TemporaryDirectory(prefix="atoll-maintenance-", dir=args.folder) as folder:
        folder = pathlib.Path(folder)
        store = folder / "store"
        store.mkdir()
        with Cluster(find_binary(None), folder / "cluster") as cluster:
            cluster.configure("[zookeeper]\nmax_connections_of_address = 0")
            addresses = ",".join(node.zookeeper for node in cluster.nodes())
            words = ["--addresses", addresses, "--rate", rate, "--seconds", seconds, "--nodes", nodes]
            load = subprocess.Popen([find_program(), "steady", *map(str, words)], stdout=subprocess.PIPE, text=True)
            if json.loads(load.stdout.readline() or "{}").get("part") != "begins":
                sys.exit("the load did not begin")
            began, over = time.monotonic(), threading.Event()
            every = "2s" if args.quick else SNAPSHOT_EVERY
            cluster.atoll("backup", "start", "--to", f"file://{store}", "--every", "5s", "--snapshot-every", every)
            tell({"part": "action", "what": "backup", "at_s": round(time.monotonic() - began, 1)})
            scrubs = threading.Thread(target=maintain, args=(cluster, over, began, 6 if args.quick else SCRUB_EVERY_S))
            beside = [scrubs, threading.Thread(target=snapshots, args=(cluster, over, began))]
            for thread in beside:
                thread.start()
            rows = [json.loads(line) for line in load.stdout]
            over.set()
            for thread in beside:
                thread.join()
            if load.wait() or not rows:
                sys.exit("the load did not finish")
    for row in rows:
        tell(row | ({"load_1m": round(os.getloadavg()[0], 2), "cores": os.cpu_count()} if row["part"] == "steady" else {}))
    sys.exit(rows[-1]["max_ms"] > MOST_MS and not args.quick)


if __name__ == "__main__":
    main()
