#!/usr/bin/env python3
"""Measures writes and reads of Scalog and CORFU on real nodes, for the figure scalog/throughput:

    experiments/scalog/throughput.py

Writes: a log on Scalog in one to three shards of two servers each, and a log on CORFU in as many chains of two units, over the same nodes, which
all are on this machine. CORFU is also written with four records per entry, as the paper does. Reads: single records in a random order, from
Scalog by shard, and from CORFU by position. Clients use the kind's own interface, through all nodes.

Prints one JSON line per run. All nodes and the clients share the processors of one machine. So this shows what a record costs, and not how a
log scales over machines; that is modelled (`atoll-experiments scalog modelled`).
"""

import argparse
import pathlib
import tempfile

from clients import Clients, cluster_of, create_corfu, create_scalog, load_1m, options, say, scalog_words, servers_of, tell, wait_healthy
from apps import find_program

# As in the paper's CORFU with batches.
RECORDS_PER_ENTRY = 4
# Entries that are read, of each client.
READ_OF_EACH = 20


def measure(args, folder, cluster, system, interface, shards, number, records=1, read=False):
    """One run; prints its line."""
    words = {"payload": args.payload, "clients": args.clients, "records_per_entry": records}
    if read:
        words["read"] = READ_OF_EACH * args.clients
    wait_healthy(cluster, interface)
    line = Clients(args, folder, interface, interface, cluster.connect(), args.seconds, **words).finish()
    settings = {"kind": "real", "storage": "disk", "servers": len(servers_of(shards)), "nodes": len(cluster.ids()), "clients": args.clients,
                "payload_bytes": args.payload, "records_per_entry": records, "seconds": args.seconds, "load_1m": load_1m()}
    tell({"system": system, "workload": "read" if read else "write", "shards": shards, "round": number, "ops_s": line["ops_s"],
          "records_s": line["records_s"], "p50_us": line["p50_us"], "p99_us": line["p99_us"], "errors": line["errors"],
          "last_error": line["last_error"], "settings": settings})


def on_cluster(args, folder, shards):
    """All runs with so many shards, and chains."""
    nodes = len(servers_of(shards)) + 1
    with cluster_of(args, folder, nodes) as cluster:
        create_scalog(cluster, "scalog", scalog_words(shards, {"orderer": [nodes], "ordering__sequencer": [nodes]}))
        create_corfu(cluster, "corfu", shards, nodes)
        runs = [("Scalog", "scalog", {}), ("CORFU", "corfu", {}), ("CORFU, 4 records per entry", "corfu", {"records": RECORDS_PER_ENTRY}),
                ("Scalog", "scalog", {"read": True}), ("CORFU", "corfu", {"read": True})]
        for number in range(1, args.rounds + 1):
            for system, interface, words in runs if number % 2 else reversed(runs):
                measure(args, folder, cluster, system, interface, shards, number, **words)
        say(f"{shards} shards: done")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options(parser)
    parser.add_argument("--shards", type=int, nargs="+", help="of each log [default: 1 2 3; 1 with --quick]")
    parser.add_argument("--rounds", type=int, help="how often each point is measured [default: 3; 1 with --quick]")
    parser.add_argument("--seconds", type=float, help="of each measurement [default: 4; 1 with --quick]")
    args = parser.parse_args()
    args.shards = args.shards or ([1] if args.quick else [1, 2, 3])
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.seconds = args.seconds or (1.0 if args.quick else 4.0)
    args.program = find_program()
    for shards in args.shards:
        with tempfile.TemporaryDirectory(prefix="atoll-scalog-throughput-", dir=args.folder) as folder:
            on_cluster(args, pathlib.Path(folder), shards)


if __name__ == "__main__":
    main()
