#!/usr/bin/env python3
"""Measures what clients of a log on Scalog see of a killed node, for the figure scalog/kills:

    experiments/scalog/kills.py

Real nodes keep a log in shards of two servers each, with an aggregator, an orderer and an ordering log on nodes of their own. Clients append
to a shard of their choice, one record at a time, through nodes that stay alive, and go to another shard when theirs ends. Under this load, the
node of a storage server, of the aggregator, of the orderer or of the ordering log's sequencer is killed with `kill -9`.

What a client lost is its longest time without an acknowledgement, of all that touch the time from the kill to the end of the run. Of the kill
of a storage server, clients of its shard and others are counted apart. Prints one JSON line per run; the last one has the target: a killed
storage server costs only clients of its shard. So each of them waits longer than any other client, and these wait at most twice as long as
clients do without a kill, in the median: the killed node starts again on the same machine.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from statistics import median

from clients import (
    BACK_WITHIN_S, Clients, Failed, cluster_of, create_scalog, load_1m, longest_gap_ms, options, poll, say, scalog_words, servers_of, tell,
    wait_healthy,
)
from apps import find_program

LOG = "scalog"
BIN_MS = 10
NOBODY, STORAGE = "nobody", "storage server"
# So many times what clients wait without a kill, those of other shards may wait, in the median.
AS_LONG = 2.0
ROLES = (NOBODY, STORAGE, "aggregator", "orderer", "ordering log's sequencer")


def words_of(shards):
    """The log; its helpers are on nodes of their own: an aggregator, two orderers, and the ordering log's sequencer with the second one."""
    first = len(servers_of(shards)) + 1
    helpers = [first, first + 1, first + 2]
    places = {"aggregator": helpers[:1], "orderer": helpers[1:], "ordering__server": helpers, "ordering__sequencer": helpers[2:]}
    return scalog_words(shards, places, "--option", "fan_in=2")


def live(cluster):
    """The shards that take records: (number, nodes) of each."""
    shown = poll("the shards are told", 60, lambda: shards_once(cluster), every=0.1)
    return [(shard["number"], shard["nodes"]) for shard in shown["shards"] if shard["live"]]


def shards_once(cluster):
    try:
        return cluster.json("scalog", "shard", "list", "--log", LOG)
    except Failed:
        return None


def victim_of(cluster, role, number):
    """The node that is killed for a role, and the shard that it keeps."""
    duties = cluster.active(LOG)["duties"]
    if role == STORAGE:
        shards = live(cluster)
        shard, nodes = shards[number % len(shards)]
        return nodes[number // len(shards) % len(nodes)], shard
    if role == NOBODY:
        return None, None
    fits = {
        "aggregator": lambda duty: duty["role"] == "aggregator",
        "orderer": lambda duty: duty["role"] == "orderer",
        "ordering log's sequencer": lambda duty: duty["part"] == "ordering" and duty["binding"] == "orders",
    }[role]
    return next(duty["node"] for duty in duties if fits(duty)), None


class Layout:
    """The log as it was created."""

    def __init__(self, cluster, shards):
        self.cluster, self.shards, self.words = cluster, shards, words_of(shards)
        create_scalog(cluster, LOG, self.words)
        self.loglet = cluster.active(LOG)["loglet"]

    def restore(self):
        """Waits until all is well. If the nodes have moved the log meanwhile, it moves back to where it was. Shards that have ended are
        replaced, on the nodes that keep none."""
        wait_healthy(self.cluster, LOG)
        if self.cluster.active(LOG)["loglet"] != self.loglet:
            self.cluster.atoll("chain", "extend", "--log", LOG, *self.words, timeout=120)
            self.loglet = self.cluster.active(LOG)["loglet"]
        poll("there are as many shards as before", BACK_WITHIN_S, self.added, every=0.2)

    def added(self):
        """Adds a shard if one is missing. Whether none is."""
        is_missing = len(live(self.cluster)) < self.shards
        if is_missing:
            self.cluster.atoll("scalog", "shard", "add", "--log", LOG, check=False)
        return not is_missing


def kill(args, folder, layout, role, number):
    """One load with one kill; its line."""
    layout.restore()
    cluster = layout.cluster
    victim, shard = victim_of(cluster, role, number)
    through = [node for node in servers_of(args.shards) if node != victim]
    seconds = args.before + args.after + 1
    clients = Clients(
        args, folder, LOG, "scalog", cluster.connect(*through), seconds, payload=args.payload, clients=args.clients, warm_up=0.2,
    ).begin()
    time.sleep(args.before)
    pids, killed = cluster.signal([victim]) if victim else ({}, time.time())
    line = clients.finish()
    answers = clients.answers()
    cluster.wait_back(pids, BACK_WITHIN_S)
    by_client, homes = {}, {}
    for at, client, of in answers:
        by_client.setdefault(client, []).append(at)
        if at <= killed:
            homes[client] = of
    gaps = {"of the shard": [], "others": []}
    for client, moments in by_client.items():
        which = "of the shard" if shard is not None and homes.get(client) == shard else "others"
        # A client that was never answered again waited until the end, at least.
        ends = [*moments, answers[-1][0]]
        gaps[which].append(longest_gap_ms(ends, killed, killed + args.after))
    all_moments = [at for at, _, _ in answers]
    begin = killed - args.before
    counts = [0] * int(1e3 * (args.before + args.after) / BIN_MS + 1)
    for at in all_moments:
        if begin <= at <= begin + args.before + args.after:
            counts[int(1e3 * (at - begin) / BIN_MS)] += 1
    settings = {"kind": "real", "storage": "disk", "shards": args.shards, "servers_per_shard": 2, "nodes": len(cluster.ids()),
                "clients": args.clients, "payload_bytes": args.payload, "load_1m": load_1m()}
    return {"system": "Scalog", "workload": "kill", "victim": role, "round": number, "ops_s": line["ops_s"], "errors": line["errors"],
            "last_error": line["last_error"], "moves": line["moves"], "gap_of_all_ms": longest_gap_ms(all_moments, killed, killed + args.after),
            "gaps_ms": gaps, "bin_ms": BIN_MS, "killed_ms": 1e3 * args.before, "acks": counts, "settings": settings}


def summary(lines):
    """What the death of each role cost clients, and whether the target is met."""
    rows = {}
    for role in dict.fromkeys(line["victim"] for line in lines):
        mine = [line for line in lines if line["victim"] == role]
        for which in ("of the shard", "others"):
            gaps = [gap for line in mine for gap in line["gaps_ms"][which]]
            if gaps:
                rows.setdefault(role, {})[which] = {"clients": len(gaps), "median_ms": round(median(gaps), 1), "max_ms": max(gaps)}
    calm, others, mine = rows[NOBODY]["others"], rows[STORAGE]["others"], rows[STORAGE]["of the shard"]
    shortest = min(gap for line in lines if line["victim"] == STORAGE for gap in line["gaps_ms"]["of the shard"])
    times = others["median_ms"] / max(0.1, calm["median_ms"])
    return {"workload": "cost", "rows": rows, "errors": sum(line["errors"] for line in lines), "of_the_shard_min_ms": shortest,
            "of_the_shard_median_ms": mine["median_ms"], "others_max_ms": others["max_ms"], "others_times_no_kill": round(times, 2),
            "target": AS_LONG, "holds": others["max_ms"] < shortest and times <= AS_LONG}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options(parser)
    parser.set_defaults(clients=12)
    parser.add_argument("--shards", type=int, default=3, help="shards of two servers each [default: 3]")
    parser.add_argument("--rounds", type=int, help="how often a node of each role is killed [default: 6; 1 with --quick]")
    parser.add_argument("--before", type=float, default=1.0, help="seconds of load before a kill [default: 1]")
    parser.add_argument("--after", type=float, default=4.0, help="seconds of load after a kill [default: 4]")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 6)
    args.program = find_program()
    lines = []
    with tempfile.TemporaryDirectory(prefix="atoll-scalog-kills-", dir=args.folder) as folder:
        folder = pathlib.Path(folder)
        with cluster_of(args, folder, len(servers_of(args.shards)) + 3) as cluster:
            layout = Layout(cluster, args.shards)
            for number in range(1, args.rounds + 1):
                for role in ROLES:
                    lines.append(kill(args, folder, layout, role, number))
                    tell(lines[-1])
                    say(f"round {number}, {role}: done")
    last = summary(lines)
    tell(last)
    sys.exit(0 if last["holds"] else 1)


if __name__ == "__main__":
    main()
