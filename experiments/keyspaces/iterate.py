#!/usr/bin/env python3
"""A million keys of a keyspace on Bizur, listed in order (§2.6): the time, and the round trips.

    experiments/keyspaces/iterate.py [--keys N]

The command line reads one stream. For each of its messages, the node that serves it asks the leader of each shard for a page of its keys,
and a leader that is asked proves with a round trip to its replicas that it still leads, for all buckets of the shard at once. Both are
counted by the metrics of the nodes. Prints one JSON line per listing. The exit status is 1 if a key is missing, twice there, or out of
order.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import load

SHARDS, BUCKETS, QUICK_SHARDS, QUICK_BUCKETS = 256, 256, 16, 16
VALUE_BYTES = 50
# Metrics are this old at most.
METRICS_S = 1.5
PAGES, CONFIRMATIONS = "atoll_bizur_pages_total", 'atoll_bizur_rounds_total{kind="confirm"}'


def totals(cluster):
    """What all nodes have counted so far: pages, and confirmations."""
    time.sleep(METRICS_S)
    nodes = cluster.metrics().values()
    return [int(sum(of.get(name, 0) for of in nodes)) for name in (PAGES, CONFIRMATIONS)]


def listed(cluster, keyspace):
    """Lists all keys: how many there were, whether each came after the one before, and the seconds until the first and until the last."""
    connect = ",".join(node["grpc"] for node in cluster.nodes)
    began = time.monotonic()
    listing = subprocess.Popen([cluster.program, "kv", "keys", keyspace, "--connect", connect], stdout=subprocess.PIPE)
    count, last, ordered, first_s = 0, b"", True, None
    for key in listing.stdout:
        first_s = first_s or time.monotonic() - began
        ordered &= key > last
        count, last = count + 1, key
    if listing.wait():
        sys.exit("the listing failed")
    return count, ordered, first_s, time.monotonic() - began


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="[default: a million]")
    load.arguments(parser)
    args = load.parsed(parser)
    keys, shards, buckets = (5_000, QUICK_SHARDS, QUICK_BUCKETS) if args.quick else (args.keys, SHARDS, BUCKETS)
    wrong = False
    with load.cluster(args) as cluster:
        cluster.create("listed", engine="bizur", shards=shards, buckets=buckets, durability="disk")
        filled = cluster.bench(keyspace="listed", keys=keys, payload=VALUE_BYTES, depth=1, seconds=0.1, fill=True)
        for number in range(1, args.rounds + 1):
            before = totals(cluster)
            count, ordered, first_s, took_s = listed(cluster, "listed")
            pages, confirmations = (after - earlier for after, earlier in zip(totals(cluster), before))
            wrong |= count != keys or not ordered
            row = {"system": f"atoll-{shards}", "shards": shards, "buckets": shards * buckets, "keys": count, "in_order": ordered,
                   "seconds": round(took_s, 2), "first_key_s": round(first_s, 3), "keys_s": round(count / took_s), "pages": pages,
                   "confirmations": confirmations, "keys_of_round_trip": round(count / max(1, pages + confirmations), 1),
                   "fill_keys_s": round(keys / filled["fill_seconds"]), "load_1m": round(os.getloadavg()[0], 2)}
            load.tell(row, number)
    if wrong:
        print(json.dumps({"wanted_keys": keys}))
        sys.exit(1)


if __name__ == "__main__":
    main()
