#!/usr/bin/env python3
"""Measures what clients see of a reconfiguration under load, Scalog's and CORFU's, for the figure scalog/reconfigure:

    experiments/scalog/reconfigure.py

Real nodes keep two logs on the same servers: one on Scalog, in shards of two servers, and one on CORFU, in chains of two units. First the
peak of CORFU is measured. Then clients append to one log and to the other, in turns, at half of that peak. Under this load, a shard is added
and another one is ended, with notice, again and again; and a unit of CORFU is replaced by another node, to and fro. Between two changes, the
same connection asks for the state of the log and changes nothing: what the machine does by itself shows in these windows.

The gap of a window is the longest time without an acknowledgement to any client, from the call to some time after its answer. Prints one JSON
line per run; the last one has the target: no gap of an added or ended shard is longer than the longest one of a window without a change.
"""

import argparse
import itertools
import pathlib
import sys
import tempfile
import time
from statistics import median

from clients import (
    Clients, CorfuDoor, ScalogDoor, cluster_of, create_corfu, create_scalog, load_1m, longest_gap_ms, options, say,
    scalog_words, servers_of, tell, wait_healthy,
)
from apps import find_program

SCALOG, CORFU = "scalog", "corfu"
BIN_MS = 10
# Windows without a change for each one with a change: the longest of more windows is longer by chance.
CALM_PER_CHANGE = 4
# A shard ends after so many cuts, so that clients can leave before.
NOTICE_CUTS = 20


class Scalog:
    """Adds a shard on the nodes that keep none, and ends the oldest one, in turns."""

    log, interface, title = SCALOG, "scalog", "Scalog"

    def __init__(self, address, shards):
        self.door = ScalogDoor(address, SCALOG)
        nodes = servers_of(shards + 1)
        # (number, nodes) of each shard, the oldest first; and the nodes that keep none.
        self.live = [(n, nodes[2 * n : 2 * n + 2]) for n in range(shards)]
        self.free = nodes[2 * shards :]
        self.changes = itertools.cycle((self.add, self.finalize))

    def add(self):
        self.live.append((self.door.add(self.free), self.free))
        return "shard added"

    def finalize(self):
        number, self.free = self.live.pop(0)
        self.door.finalize(number, NOTICE_CUTS)
        return "shard ended"


class Corfu:
    """Replaces a unit by the node that is none, to and fro."""

    log, interface, title = CORFU, "corfu", "CORFU"

    def __init__(self, address, chains):
        self.door = CorfuDoor(address, CORFU)
        units = servers_of(chains)
        self.old, self.spare = units[-1], units[-1] + 1
        self.changes = itertools.repeat(self.replace)

    def replace(self):
        self.door.replace(self.old, self.spare)
        self.old, self.spare = self.spare, self.old
        return "unit replaced"


def look(system):
    """A window without a change: the same connection only asks."""
    system.door.look()
    return "no change"


def windows(args, system, changes):
    """(what, begin, answered) of windows, with and without a change, in seconds since 1970."""
    found = []
    plan = itertools.chain.from_iterable([None] * CALM_PER_CHANGE + [next(system.changes)] for _ in range(changes))
    for change in plan:
        began = time.time()
        what = change() if change else look(system)
        found.append((what, began, time.time()))
        time.sleep(args.settle)
    return found


def bins(moments, begin, finish):
    """How many there are in each window of the timeline."""
    counts = [0] * (int(1e3 * (finish - begin) / BIN_MS) + 1)
    for at in moments:
        if begin <= at <= finish:
            counts[int(1e3 * (at - begin) / BIN_MS)] += 1
    return counts


def run(args, folder, cluster, system, rate, number):
    """One load with its changes; the line of its run."""
    wait_healthy(cluster, system.log)
    changes = args.changes
    seconds = changes * (1 + CALM_PER_CHANGE) * (args.settle + 0.2) + 2
    clients = Clients(
        args, folder, system.log, system.interface, cluster.connect(), seconds, rate=rate, payload=args.payload, clients=args.clients,
        warm_up=0.5,
    ).begin()
    system.door.open()
    # Until all clients have begun.
    time.sleep(1)
    found = windows(args, system, changes)
    line = clients.finish()
    moments = [at for at, _, _ in clients.answers()]
    begin = found[0][1]
    rows = [
        {"what": what, "at_ms": round(1e3 * (began - begin), 1), "took_ms": round(1e3 * (answered - began), 2),
         "gap_ms": longest_gap_ms(moments, began, answered + args.settle)}
        for what, began, answered in found
    ]
    settings = {"kind": "real", "storage": "disk", "shards": args.shards, "servers_per_shard": 2, "nodes": len(cluster.ids()),
                "clients": args.clients, "payload_bytes": args.payload, "rate": round(rate), "notice_cuts": NOTICE_CUTS,
                "load_1m": load_1m()}
    return {"system": system.title, "workload": "reconfigure", "round": number, "ops_s": line["ops_s"], "p50_us": line["p50_us"],
            "p99_us": line["p99_us"], "errors": line["errors"], "last_error": line["last_error"], "moves": line["moves"], "windows": rows,
            "bin_ms": BIN_MS, "acks": bins(moments, begin, min(found[-1][2] + args.settle, begin + args.shown)), "settings": settings}


def summary(lines):
    """The gaps by what was done, and whether the target is met."""
    gaps = {}
    for line in lines:
        for window in line["windows"]:
            gaps.setdefault(f"{line['system']}, {window['what']}", []).append(window["gap_ms"])
    calm = gaps["Scalog, no change"]
    changed = gaps["Scalog, shard added"] + gaps["Scalog, shard ended"]
    rows = {what: {"windows": len(all), "median_ms": round(median(all), 1), "max_ms": max(all)} for what, all in gaps.items()}
    failed = sum(line["errors"] for line in lines if line["system"] == "Scalog")
    return {"workload": "gaps", "gaps": rows, "scalog_errors": failed, "target": "no longer gap than without a change, no append fails",
            "holds": max(changed) <= max(calm) and failed == 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options(parser)
    parser.add_argument("--shards", type=int, help="shards, and chains [default: 6, as in the paper; 2 with --quick]")
    parser.add_argument("--rounds", type=int, help="how often each log is measured [default: 3; 1 with --quick]")
    parser.add_argument("--changes", type=int, help="changes of each round [default: 8; 2 with --quick]")
    parser.add_argument("--settle", type=float, default=0.7, help="seconds of a window after the answer [default: 0.7]")
    parser.add_argument("--shown", type=float, default=8.0, help="seconds of the timeline [default: 8]")
    parser.add_argument("--peak-seconds", type=float, help="of the measurement of CORFU's peak [default: 5; 2 with --quick]")
    args = parser.parse_args()
    for name, whole, quick in (("shards", 6, 2), ("rounds", 3, 1), ("changes", 8, 2), ("peak_seconds", 5.0, 2.0)):
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else whole)
    args.program = find_program()
    # One shard more than there are at a time, and a node that orders.
    nodes = 2 * (args.shards + 1) + 1
    with tempfile.TemporaryDirectory(prefix="atoll-reconfigure-", dir=args.folder) as folder:
        folder = pathlib.Path(folder)
        with cluster_of(args, folder, nodes) as cluster:
            create_scalog(cluster, SCALOG, scalog_words(args.shards, {"orderer": [nodes], "ordering__sequencer": [nodes]}))
            create_corfu(cluster, CORFU, args.shards, nodes)
            peak = Clients(args, folder, CORFU, "corfu", cluster.connect(), args.peak_seconds, payload=args.payload, clients=args.clients).finish()
            tell({"system": "CORFU", "workload": "peak", "ops_s": peak["ops_s"], "p50_us": peak["p50_us"], "p99_us": peak["p99_us"],
                  "errors": peak["errors"], "settings": {"clients": args.clients, "payload_bytes": args.payload, "load_1m": load_1m()}})
            address = cluster.node(nodes).grpc
            systems = (Scalog(address, args.shards), Corfu(address, args.shards))
            lines = []
            for number in range(1, args.rounds + 1):
                for system in systems if number % 2 else reversed(systems):
                    lines.append(run(args, folder, cluster, system, peak["ops_s"] / 2, number))
                    tell(lines[-1])
                    say(f"round {number}, {system.title}: done")
    last = summary(lines)
    tell(last)
    sys.exit(0 if last["holds"] else 1)


if __name__ == "__main__":
    main()
