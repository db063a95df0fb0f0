#!/usr/bin/env python3
"""Two programs of Atoll beside each other, on this machine, in one run.

Three processes each, fsync on. In a round, a fresh cluster of each program is up, and short slices of load alternate between the two, so
that a machine that becomes slower for a while affects both alike. One of the two is idle meanwhile. The rounds alternate which program
begins. Both programs have to be built with the same profile. Without --rig (see rig.py) only the log is measured.

    log-1 log-64 log-256   appends of 1 KB at a depth (`atoll bench log`)
    w1-1 w1-64 w1-256      ZooKeeper writes of 50 B over 16,000 keys at a depth
    w2-sync w2-plain       90 % ZooKeeper reads and 10 % writes of 1 KB, depth 64: reads behind a sync, and without

Prints one JSON line per slice, then a table, then a JSON line with the ratios of the new program to the old one. A ratio is the geometric
mean over all pairs of neighbouring slices. `spread` is its standard error, from the means of the rounds, because two clusters of one
program differ by more than two slices of one cluster do. The exit status is 1 if the new program does fewer operations per second than
--at-least allows.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
from types import SimpleNamespace

import compare
import rig as peers
import zookeeper

LOG = ("log-1", "log-64", "log-256")
KEYS = (*peers.KEYS, "server_switches_op")
# Each with clusters of its own: what it reads and writes is in no other's way.
KINDS = ("log", "w1", "w2")
# A first run of the generator for a kind fills the keys, and warms up a cluster that has just started.
FIRST_S = 3


class Cluster:
    """A cluster of one program that is up."""

    def __init__(self, name, program, args):
        self.name, self.program, self.args = name, program, args
        self.nodes = self.data = None

    @contextlib.contextmanager
    def up(self):
        """While the block runs."""
        with peers.cluster(self.program, self.args.folder, "--state", "disk") as (nodes, data):
            self.nodes, self.data = nodes, data
            yield

    def load(self, workload, seconds, fill=False):
        """One slice of a workload: its row."""
        kind, _, how = workload.partition("-")
        if kind == "log":
            row = compare.log_load(self.program, self.nodes, self.data, int(how), seconds, 0)
        else:
            of_zookeeper = SimpleNamespace(**{**vars(self.args), "state": "disk"})
            flags = ("-secs", f"{seconds}s", "-warm", "0s", "-preload", "auto" if fill else "no")
            rows = zookeeper.loaded(of_zookeeper, self.nodes, *zookeeper.flags_of(workload), *flags)
            if len(rows) != 1:
                sys.exit(f"{workload} gave no result with the {self.name} program")
            row = rows[0]
        return {**row, "name": workload, "system": self.name}


def measured(number, workloads, args):
    """The rows of all slices of one round and one kind of load; each with the number of its pair."""
    clusters = [Cluster("old", args.old, args), Cluster("new", args.new, args)]
    if number % 2:
        clusters.reverse()
    with contextlib.ExitStack() as up:
        for cluster in clusters:
            up.enter_context(cluster.up())
        for at, workload in enumerate(workloads):
            for cluster in clusters:
                cluster.load(workload, FIRST_S, fill=at == 0)
            for pair in range(args.slices):
                for cluster in clusters if pair % 2 == 0 else reversed(clusters):
                    yield {**cluster.load(workload, args.seconds), "pair": pair}


def pairs(rows, name):
    """For each round, the two rows of each pair of slices."""
    of_rounds = {}
    for row in rows:
        if row["name"] == name:
            of_rounds.setdefault(row["round"], {}).setdefault(row["pair"], {})[row["system"]] = row
    return [list(found.values()) for found in of_rounds.values()]


def ratio(rounds, key):
    """The geometric mean of the ratios of a figure over all pairs, and its standard error; None where a pair has no such figure."""
    logs = [[math.log(p["new"][key] / p["old"][key]) for p in found if p["old"].get(key) and p["new"].get(key)] for found in rounds]
    means = [statistics.mean(found) for found in logs if found]
    if not means:
        return None, None
    spread = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return round(math.exp(statistics.mean(means)), 3), spread and round(spread, 3)


def report(rows, args):
    """The table and the ratios; whether no ratio is below what is allowed."""
    print(f"\n{'workload':<10}{'program':<12}" + "".join(f"{k:>20}" for k in KEYS))
    ratios = {}
    for name in args.workloads:
        for program in ("old", "new"):
            figures = [peers.median(rows, k, name=name, system=program) for k in KEYS]
            print(f"{name:<10}{program:<12}" + peers.cells(figures, width=20))
        rounds = pairs(rows, name)
        found = {k: ratio(rounds, k) for k in KEYS}
        ratios[name] = {k: value for k, (value, _) in found.items() if value is not None}
        ratios[name]["spread"] = found["ops_s"][1]
    good = all(r.get("ops_s", 0) >= args.at_least for r in ratios.values())
    print(json.dumps({"ratios": ratios, "at_least": args.at_least, "holds": good}))
    return good


def main():
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", required=True, help="the program to compare with")
    parser.add_argument("--new", default=peers.program(), help="the other program [default: ATOLL_BIN, or target/dist/atoll]")
    parser.add_argument("--rig", help="folder of the peers' rig, whose generator loads the ZooKeeper door")
    parser.add_argument("--rounds", type=int, default=6, help="with fresh clusters each")
    parser.add_argument("--slices", type=int, default=8, help="of each program and workload in a round")
    parser.add_argument("--seconds", type=int, default=1, help="that a slice takes")
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
        for kind in KINDS:
            workloads = [name for name in args.workloads if name.startswith(kind)]
            for row in measured(number, workloads, args) if workloads else ():
                peers.tell(rows, number, row)
    if not report(rows, args):
        sys.exit(1)


if __name__ == "__main__":
    main()
