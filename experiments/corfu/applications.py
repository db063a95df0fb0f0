#!/usr/bin/env python3
"""Measures CORFU's applications over a cluster of real processes, for the figures corfu/figure_9 and corfu/figure_10:

    experiments/corfu/applications.py store    multi-puts and multi-gets of 1 to 10 keys
    experiments/corfu/applications.py smr      a replicated service with 1 to 16 replicas

Prints one JSON line per run. All processes are on one machine: the clients take their part of its processors.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "drills"))

from apps import find_program
from cluster import LOGLETS, Cluster, find_binary

REPLICAS = (1, 2, 4, 8, 16)
KEYS = range(1, 11)
# Of all keys of the store.
ALL_KEYS = 100
# As in the paper.
COMMAND_BYTES = 512


def app(args, cluster, *words):
    """Runs an application to its end; its result."""
    env = dict(os.environ, ATOLL_CONNECT=cluster.connect())
    command = [str(args.program), "apps", *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=args.seconds + 120)
    if done.returncode:
        sys.exit(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def tell(args, line, number):
    """Prints the line of a run, with what else decides it."""
    settings = dict(line["settings"], loglet=args.loglet, nodes=args.nodes, load_1m=round(os.getloadavg()[0], 2), seconds=args.seconds)
    print(json.dumps(dict(line, round=number, settings=settings)), flush=True)


def store(args, cluster, number):
    """Every number of keys, puts and gets: each on a log that only this round has written."""
    log = ("--log", f"store-{number}")
    cluster.create_log(log[1], args.loglet)
    load = ("store", *log, "--keys", ALL_KEYS, "--exact", "--value-bytes", args.value_bytes)
    # So that gets find every key.
    app(args, cluster, *load, "--operations", "put", "--per-operation", ALL_KEYS, "--clients", 1, "--seconds", 1)
    for operations, key in (("put", "puts"), ("get", "gets")):
        for keys in KEYS:
            words = ("--operations", operations, "--per-operation", keys, "--clients", args.clients, "--seconds", args.seconds)
            tell(args, app(args, cluster, *load, *words)[key], number)


def smr(args, cluster, number):
    """Every number of replicas: each on a log of its own."""
    for replicas in REPLICAS:
        log = f"smr-{number}-{replicas}"
        cluster.create_log(log, args.loglet)
        words = ("--log", log, "--replicas", replicas, "--commands", args.commands, "--command-bytes", COMMAND_BYTES, "--seconds", args.seconds)
        tell(args, app(args, cluster, "smr", *words)["commands"], number)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("store", "smr"))
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--loglet", choices=LOGLETS, default="corfu", help="the kind of Loglet [default: corfu]")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the cluster [default: 3]")
    parser.add_argument("--rounds", type=int, default=3, help="how often each point is measured [default: 3]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement [default: 5]")
    parser.add_argument("--clients", type=int, default=16, help="clients of the store [default: 16]")
    parser.add_argument("--value-bytes", type=int, default=512, help="bytes of a value, at least [default: 512]")
    parser.add_argument("--commands", type=int, default=16, help="commands of an entry of the service [default: 16]")
    args = parser.parse_args()
    args.program = find_program()
    with tempfile.TemporaryDirectory(prefix="atoll-applications-") as folder:
        with Cluster(find_binary(args.bin), pathlib.Path(folder) / "cluster", "--nodes", args.nodes) as cluster:
            for number in range(1, args.rounds + 1):
                {"store": store, "smr": smr}[args.what](args, cluster, number)


if __name__ == "__main__":
    main()
