#!/usr/bin/env python3
"""Two programs of Atoll beside each other, on this machine, in one run.

Three processes each, fsync on. The rounds alternate between the programs, and every second round begins with the other one, so that a
machine that becomes slower affects both alike. Both programs have to be built with the same profile. Without --rig (see rig.py) only the
log is measured.

    log-1 log-64 log-256   appends of 1 KB at a depth (`atoll bench log`)
    w1-1 w1-64 w1-256      ZooKeeper writes of 50 B over 16,000 keys at a depth
    w2-sync w2-plain       90 % ZooKeeper reads and 10 % writes of 1 KB, depth 64: reads behind a sync, and without

Prints one JSON line per run, then a table of medians, then a JSON line with the ratios of the new program to the old one. Its exit status
is 1 if the new program does fewer operations per second than --at-least allows.
"""

import argparse
import json
import sys
import tempfile
from types import SimpleNamespace

import compare
import rig as peers
import zookeeper

LOG = ("log-1", "log-64", "log-256")
KEYS = (*peers.KEYS, "server_switches_op")


def measured(program, name, args):
    """The rows of one fresh cluster for the log, and of one for each kind of ZooKeeper load."""
    if any(w in LOG for w in args.workloads):
        for row in compare.atoll(program, args.seconds, args.warm, args.folder):
            yield {**row, "name": f"log-{row['depth']}", "system": name}
    if args.rig:
        of_zookeeper = SimpleNamespace(**{**vars(args), "bin": program, "state": "disk"})
        for row in zookeeper.atoll(of_zookeeper, args.workloads):
            yield {**row, "system": name}


def report(rows, args):
    """The table and the ratios; whether no ratio is below what is allowed."""
    print(f"\n{'workload':<10}{'program':<12}" + "".join(f"{k:>20}" for k in KEYS))
    ratios = {}
    for name in args.workloads:
        median = {p: {k: peers.median(rows, k, name=name, system=p) for k in KEYS} for p in ("old", "new")}
        for program, figures in median.items():
            print(f"{name:<10}{program:<12}" + peers.cells(figures.values(), width=20))
        old, new = median["old"], median["new"]
        if old["ops_s"] and new["ops_s"]:
            ratios[name] = {k: round(new[k] / old[k], 3) for k in KEYS if old[k] and new[k] is not None}
    good = len(ratios) == len(args.workloads) and all(r["ops_s"] >= args.at_least for r in ratios.values())
    print(json.dumps({"ratios": ratios, "at_least": args.at_least, "holds": good}))
    return good


def main():
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", required=True, help="the program to compare with")
    parser.add_argument("--new", default=str(peers.ROOT / "target" / "dist" / "atoll"))
    parser.add_argument("--rig", help="folder of the peers' rig, whose generator loads the ZooKeeper door")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--warm", type=int, default=2, help="seconds of load before each measurement")
    parser.add_argument("--workloads", help="comma-separated [default: all that can be measured]")
    parser.add_argument("--at-least", type=float, default=0.97, help="the lowest ratio of operations per second that passes")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the data goes: a disk, not memory")
    args = parser.parse_args()
    known = (*LOG, *zookeeper.WANTED) if args.rig else LOG
    args.workloads = args.workloads.split(",") if args.workloads else list(known)
    if unknown := [name for name in args.workloads if name not in known]:
        parser.error(f"cannot measure {', '.join(unknown)}; there are: {', '.join(known)}")
    rows = []
    for number in range(args.rounds):
        programs = [("old", args.old), ("new", args.new)]
        for name, program in programs if number % 2 == 0 else reversed(programs):
            for row in measured(program, name, args):
                peers.tell(rows, number, row)
    if not report(rows, args):
        sys.exit(1)


if __name__ == "__main__":
    main()
