#!/usr/bin/env python3
"""Which kind of Loglet: what each costs on 1, 3 and 9 nodes of this machine, for the figure logs/kinds.

Each kind has a log of its own on the same fresh cluster. The kinds take turns: a lone appender, then 64 appends in flight, each of 1 KiB.
Then, on three nodes and on nine, a node that orders or holds the log is killed while 16 appends are in flight; `atoll dev` starts it again.
A failure costs the longest time without an acknowledgement from the kill on. All processes share this machine, so more nodes show what a
kind costs, and not how it scales. So `atoll-experiments kinds` then models the same kinds on machines of their own, without doors and
virtual logs, with parameters that it measures on this machine.

Prints one JSON line per run, then one per kind and number of nodes with the medians.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from statistics import median

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "drills"), str(HERE.parent / "peers")]

from apps import find_program
from cluster import Cluster, find_binary, poll
from load import Load
from rig import cpu_s

# What a log is created with, apart from its kind. Nothing: the nodes choose.
NINE = {
    "native": ("--servers", "1,2,3", "--sequencer", 4),
    "striped": ("--option", "mode=sharded", "--option", "stripes=3", "--place", "server=1,2,3,4,5,6,7,8,9", "--place", "sequencer=1,4,7"),
    "corfu": ("--place", "unit=1,2,3,4,5,6,7,8", "--place", "sequencer=9", "--option", "chains=4"),
    "scalog": (),
}
KINDS = tuple(NINE)
NODES = (1, 3, 9)
DEPTHS = (1, 64)
PAYLOAD_BYTES = 1024
KILL_DEPTH = 16
BACK_WITHIN_S = 60
MODELLED_WITHIN_S = 1800


def tell(line):
    """Prints a line."""
    print(json.dumps(line), flush=True)


def newest(cluster, log):
    """The newest segment of a log."""
    return cluster.json("chain", "show", "--log", log)["segments"][-1]


def holders(segment):
    """The nodes that hold each part of a log. The log inside of a kind, which only orders, is no such part."""
    parts = {}
    for duty in segment["duties"]:
        if duty["binding"] == "holds" and duty["part"] != "ordering":
            parts.setdefault(duty["part"], []).append(duty["node"])
    return parts


def copies(segment):
    """How many nodes store a record: those that hold the same part of the log, or that are in the same chain."""
    return min(map(len, holders(segment).values()))


def victims(segment, role):
    """The nodes with a role: those that order appends, or those that hold them."""
    if role == "holds":
        return [node for nodes in holders(segment).values() for node in nodes]
    return [duty["node"] for duty in segment["duties"] if duty["binding"] == "orders"]


def bench(cluster, log, depth, seconds):
    """Appends at a depth; the report, with the processor time that the nodes took for an append."""
    pids = [node.pid for node in cluster.nodes()]
    before = cpu_s(pids)
    words = ("--log", log, "--payload", PAYLOAD_BYTES, "--depth", depth, "--seconds", seconds, "--warmup", 1)
    got = cluster.json("bench", "log", *words, timeout=seconds + 60)
    # The warm-up costs as much per second.
    appends = got["ops_s"] * (got["seconds"] + got["warmup_seconds"])
    return got, 1e6 * (cpu_s(pids) - before) / max(1, appends)


def wait_whole(cluster, log):
    """Waits until all nodes are up and the log is healthy."""
    def whole():
        status = cluster.status()
        rows = [row for row in status["logs"] if row["name"] == log]
        return all(node["state"] == "up" for node in status["nodes"]) and rows and rows[0]["healthy"]

    poll(f"all nodes are up, and {log} is healthy", BACK_WITHIN_S, whole, every=0.2)


def kill(cluster, folder, log, role, number, args):
    """Kills a node with a role while appends are in flight through another node: the longest pause, in milliseconds."""
    wait_whole(cluster, log)
    with_role = victims(newest(cluster, log), role)
    victim = with_role[number % len(with_role)]
    through = next(node for node in reversed(cluster.nodes()) if node.id != victim)
    load = Load(cluster, folder, log, name=f"{role}{number}", connect=through.grpc, depth=KILL_DEPTH, line_bytes=PAYLOAD_BYTES).start()
    time.sleep(args.before)
    pids, killed = cluster.signal([victim])
    time.sleep(args.after)
    load.finish()
    cluster.wait_back(pids, BACK_WITHIN_S)
    return round(1e3 * load.acks().longest_gap(killed, killed + args.after), 1)


def on_cluster(count, args):
    """All kinds on so many nodes; the lines of their runs."""
    with tempfile.TemporaryDirectory(prefix="atoll-kinds-", dir=args.folder) as folder:
        folder = pathlib.Path(folder)
        with Cluster(find_binary(args.bin), folder / "cluster", "--nodes", count) as cluster:
            for kind in args.kinds:
                cluster.atoll("log", "create", "--log", kind, "--loglet", kind, *(NINE[kind] if count == 9 else ()))
            held = {kind: copies(newest(cluster, kind)) for kind in args.kinds}
            for number in range(1, args.rounds + 1):
                for kind in args.kinds if number % 2 else reversed(args.kinds):
                    common = {"loglet": kind, "nodes": count, "copies": held[kind], "round": number}
                    for depth in DEPTHS:
                        got, cpu_us = bench(cluster, kind, depth, args.seconds)
                        yield dict(common, workload="append", depth=depth, payload_bytes=PAYLOAD_BYTES, ops_s=round(got["ops_s"], 1),
                                   p50_ms=got["p50_ms"], p99_ms=got["p99_ms"], errors=got["errors"], server_us_op=round(cpu_us, 1),
                                   load_1m=round(os.getloadavg()[0], 2))
            for number in range(1, args.kills + 1) if count > 1 else ():
                for kind in args.kinds:
                    for role in ("orders", "holds"):
                        pause = kill(cluster, folder, kind, role, number, args)
                        yield {"loglet": kind, "nodes": count, "round": number, "workload": "kill", "victim": role, "pause_ms": pause,
                               "depth": KILL_DEPTH, "load_1m": round(os.getloadavg()[0], 2)}


def summary(rows, kind, count):
    """The medians of a kind on so many nodes."""
    mine = [row for row in rows if (row["loglet"], row["nodes"]) == (kind, count)]
    line = {"workload": "summary", "loglet": kind, "nodes": count, "copies": mine[0]["copies"]}
    for depth in DEPTHS:
        runs = [row for row in mine if row["workload"] == "append" and row["depth"] == depth]
        for key in ("ops_s", "p50_ms", "p99_ms", "server_us_op"):
            line[f"{key}_{depth}"] = round(median(row[key] for row in runs), 3)
    for role in ("orders", "holds"):
        pauses = [row["pause_ms"] for row in mine if row["workload"] == "kill" and row["victim"] == role]
        line[f"pause_ms_{role}"] = round(median(pauses), 1) if pauses else None
    return line


def modelled(args):
    """The lines of all kinds on machines of their own."""
    command = [str(find_program()), "kinds", "--folder", args.folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=MODELLED_WITHIN_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is measured [default: 3]")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load [default: 3]")
    parser.add_argument("--kills", type=int, default=2, help="of nodes with each role [default: 2]")
    parser.add_argument("--before", type=float, default=0.5, help="seconds of load before a kill [default: 0.5]")
    parser.add_argument("--after", type=float, default=2.5, help="seconds of load after a kill [default: 2.5]")
    parser.add_argument("--nodes", type=int, nargs="+", choices=NODES, default=NODES, help="of the clusters [default: 1 3 9]")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of Loglets [default: all]")
    parser.add_argument("--without-model", action="store_true", help="real nodes only")
    args = parser.parse_args()
    rows = []
    for count in args.nodes:
        for row in on_cluster(count, args):
            tell(row)
            rows.append(row)
    for count in args.nodes:
        for kind in args.kinds:
            tell(summary(rows, kind, count))
    for line in () if args.without_model else modelled(args):
        tell(line)


if __name__ == "__main__":
    main()
