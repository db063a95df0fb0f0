#!/usr/bin/env python3
"""Bizur's figures (§5), beside etcd, ZooKeeper and Oxia, on this machine, in one run:

    experiments/keyspaces/bizur.py keys     figure 1: writes against the number of keys, 64 in flight
    experiments/keyspaces/bizur.py depth    figure 2: writes against the number in flight, 16,000 keys
    experiments/keyspaces/bizur.py loss     figure 3: writes while packets are lost, 16,000 keys, 64 in flight; needs root, `ip` and `nft`
    experiments/keyspaces/bizur.py kill     figure 4: the leader is killed 5 s into 25, 16,000 keys, 64 in flight
    experiments/keyspaces/bizur.py shards   writes with 1 to 256 shards on 3, 6 and 9 nodes, without the peers; 16,000 keys, 256 in flight

Every write is of 50 B and durable on a majority of three nodes. Keyspaces on Bizur are measured with one shard, as in the paper, with 256
that one node leads, and with 256 whose leaders are spread. All have 16,384 buckets. --rig names the folder of the rig that runs etcd and
ZooKeeper (see peers/rig.py), and ATOLL_OXIA the source of Oxia (see peers/oxia.py); a peer without them is not measured. Prints one JSON
line per run, and the last one has the ratios. The exit status is 1 if a target is missed.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time

import load
import lossy
from load import peers

KEYS = (1, 16, 64, 256, 1000, 4000, 16_000)
DEPTHS = (1, 4, 16, 64, 128, 256)
LOSSES_PERCENT = (0, 1, 2, 3, 4, 5)
NODES, SCALED_SHARDS, SCALED_DEPTH = (3, 6, 9), (1, 4, 16, 256), 256
ALL_KEYS, DEPTH, VALUE_BYTES, REPLICAS = 16_000, 64, 50, 3
BUCKETS = 16_384
# The keyspaces of a figure: how many shards each has, and whether one node leads all of them.
KEYSPACES = {"atoll-1": (1, False), "atoll-256-led-by-one": (256, True), "atoll-256": (256, False)}
# How long the election of their leaders may take.
LEADS_WITHIN_S = 30
KILL_AT_S, KILL_RUN_S = 5, 25
# Against the best peer, at 64 in flight and 16,000 keys.
WANTED_OPS, WANTED_RECOVERY_MS = 3.0, 300
# With the most packets lost, against none lost.
WANTED_KEPT = 0.75


def points(args):
    """The keys and the depth of each run of a figure."""
    if args.what == "keys":
        return [(keys, DEPTH) for keys in load.some(args, KEYS)]
    return [(ALL_KEYS, depth) for depth in load.some(args, DEPTHS, (1, DEPTH))]


def create(cluster, shards, led_by_one=False):
    """A keyspace on Bizur, and its name."""
    name = f"bizur-{shards}"
    settings = {"engine": "bizur", "shards": shards, "buckets": BUCKETS // shards, "durability": "disk"}
    if not led_by_one:
        cluster.create(name, **settings)
        return name
    # A replica that stays keeps its place in a move, and the first one leads.
    cluster.create(name, **settings, replicas=1, nodes=cluster.nodes[0]["id"])
    cluster.run("kv", "move", name, "--replicas", REPLICAS)
    until = time.monotonic() + LEADS_WITHIN_S
    while max((led := cluster.led()).values()) != shards:
        if time.monotonic() > until:
            sys.exit(f"one node should lead all {shards} shards; they lead {led}")
        time.sleep(0.2)
    return name


def ours(args, system):
    """Every point with a keyspace, all in one fresh cluster."""
    with load.cluster(args) as cluster:
        name = create(cluster, *KEYSPACES[system])
        for number, (keys, depth) in enumerate(points(args)):
            fill = args.what == "keys" or number == 0
            row = cluster.bench(keyspace=name, keys=keys, depth=depth, clients=min(args.clients, depth), payload=VALUE_BYTES,
                                seconds=args.seconds, warmup=args.warm, fill=fill)
            yield dict(row, system=system, shards=KEYSPACES[system][0], buckets=BUCKETS)


def theirs(args, system):
    """Every point with a peer, all in one fresh cluster."""
    with load.peer(args, system) as peer:
        for number, (keys, depth) in enumerate(points(args)):
            row = peer.bench(keys, depth, VALUE_BYTES, args.seconds, args.warm, fill=args.what == "keys" or number == 0)
            if row is not None:
                yield row


def losing(args, network, measure):
    """A row for each share of lost packets; `measure` gives one, and is told whether it is the first."""
    for number, percent in enumerate(load.some(args, LOSSES_PERCENT)):
        network.lose(percent)
        row = measure(number == 0)
        if row is not None:
            yield dict(row, loss_percent=percent, network=network.seen(), load_1m=round(os.getloadavg()[0], 2))


def ours_losing(args, system):
    """Every share of lost packets with a keyspace, all in one fresh cluster."""
    with lossy.Network() as network, load.cluster(args) as cluster:
        name = create(cluster, *KEYSPACES[system])

        def measure(first):
            row = cluster.bench(keyspace=name, keys=ALL_KEYS, depth=DEPTH, clients=args.clients, payload=VALUE_BYTES, seconds=args.seconds,
                                warmup=args.warm, fill=first)
            return dict(row, system=system, shards=KEYSPACES[system][0], buckets=BUCKETS)

        yield from losing(args, network, measure)


def theirs_losing(args, system):
    """Every share of lost packets with a peer, all in one fresh cluster."""
    # What is still to be installed needs another network.
    with load.peer(args, system):
        pass
    with lossy.Network() as network, load.peer(args, system) as peer:
        yield from losing(args, network, lambda first: peer.bench(ALL_KEYS, DEPTH, VALUE_BYTES, args.seconds, args.warm, fill=first))


class Kill:
    """Kills a process at the moment of a run at which the paper does. Its start is given when the run has ended."""

    def __init__(self, args, pid):
        self.pid, self.at = pid, None
        self.timer = threading.Timer(args.warm + KILL_AT_S, self._kill)
        self.timer.start()

    def _kill(self):
        self.at = time.time()
        os.kill(self.pid, signal.SIGKILL)

    def after(self, started_unix_ms):
        """When it was, in seconds from the start of the run."""
        self.timer.join()
        return round(self.at - started_unix_ms / 1000, 3)


def killed(args, system):
    """A fresh cluster, the node of which that leads most shards is killed under load."""
    with load.cluster(args, "--no-restart") as cluster:
        name = create(cluster, *KEYSPACES[system])
        # The keys first, so that the time of the kill is known, and every shard has a leader.
        cluster.bench(keyspace=name, keys=ALL_KEYS, depth=DEPTH, payload=VALUE_BYTES, seconds=1, fill=True)
        led = cluster.led()
        node = max(led, key=led.get)
        victim = next(row["pid"] for row in cluster.nodes if row["id"] == node)
        kill = Kill(args, victim)
        # The dead node's processor time cannot be read.
        cluster.pids = [pid for pid in cluster.pids if pid != victim]
        row = cluster.bench(keyspace=name, keys=ALL_KEYS, depth=DEPTH, clients=args.clients, payload=VALUE_BYTES, seconds=KILL_RUN_S,
                            warmup=args.warm, timeline=True)
        yield dict(row, system=system, shards=KEYSPACES[system][0], buckets=BUCKETS, led=led[node],
                   per_100ms=row.pop("answers_per_100ms"), kill_at_s=kill.after(row["started_unix_ms"]))


def theirs_killed(args, system):
    """A fresh cluster of a peer whose leader is killed, as far as the peer is one of the rig's by the rig."""
    if system != "oxia":
        for row in peers.run(args.rig, system, "w3", "-secs", f"{KILL_RUN_S}s", "-warm", f"{args.warm}s", "-keys", str(ALL_KEYS)):
            yield dict(row, kill_at_s=float(KILL_AT_S))
        return
    with load.peer(args, system) as peer:
        peer.bench(ALL_KEYS, DEPTH, VALUE_BYTES, 1, 1, fill=True)
        kill = Kill(args, peer.leader_pid())
        row = peer.bench(ALL_KEYS, DEPTH, VALUE_BYTES, KILL_RUN_S, args.warm)
        if row is not None:
            yield dict(row, kill_at_s=kill.after(row["started_unix_ms"]))


def settled(row):
    """The row of a kill with what its timeline says: the throughput before, and from when on half a second had 80 % of it, as the rig
    counts that."""
    line, first = row["per_100ms"][:KILL_RUN_S * 10], int(row["kill_at_s"] * 10)
    before = line[10:first]
    enough = 0.8 * sum(before) / len(before)
    dip = next((n for n in range(first, min(first + 20, len(line))) if line[n] < enough), None)
    good = (n for n in range(dip or first, len(line) - 4) if line[n] >= enough and sum(line[n:n + 5]) >= 5 * enough)
    back = first if dip is None else next(good, None)
    return dict(row, before_ops_s=round(sum(before) / len(before) * 10), windows_after=len(line) - first,
                silent_windows=sum(answers == 0 for answers in line[first:]),
                slow_windows=sum(answers < enough for answers in line[first:]),
                back_ms=None if back is None else max(0, round(back * 100 - row["kill_at_s"] * 1000)))


def scaled(args, nodes):
    """Keyspaces of few and of many shards, one after the other in a fresh cluster of so many nodes. Each shard has three replicas."""
    with load.cluster(args, nodes=nodes) as cluster:
        for shards in SCALED_SHARDS:
            name = create(cluster, shards)
            row = cluster.bench(keyspace=name, keys=ALL_KEYS, depth=SCALED_DEPTH, payload=VALUE_BYTES, seconds=args.seconds,
                                warmup=args.warm, fill=True)
            leading = sum(node["first"] > 0 for node in cluster.run("kv", "describe", name)["nodes"])
            yield dict(row, system=f"atoll-{shards}", shards=shards, buckets=BUCKETS, nodes=nodes, nodes_that_lead=leading)


def runs(args):
    """What a figure measures, one after the other: functions that give rows, and what each is given."""
    if args.what == "shards":
        return [(scaled, nodes) for nodes in load.some(args, NODES)]
    mine, others = {"kill": (killed, theirs_killed), "loss": (ours_losing, theirs_losing)}.get(args.what, (ours, theirs))
    return [(mine, system) for system in KEYSPACES] + [(others, system) for system in load.others(args)]


def measure(args):
    """All rows of a figure."""
    for number in range(1, args.rounds + 1):
        for run, of in runs(args):
            for row in run(args, of):
                yield row, number


def judge_kill(rows):
    """Prints what the death of the leader cost; whether the target is reached."""
    found = {row["system"]: {key: row[key] for key in ("before_ops_s", "back_ms", "silent_windows", "slow_windows", "errors")}
             for row in rows}
    print(json.dumps({"kill": found, "wanted_back_ms": WANTED_RECOVERY_MS}))
    return all(row["back_ms"] is not None and row["back_ms"] <= WANTED_RECOVERY_MS
               for row in rows if row["system"].startswith("atoll"))


def judge_loss(rows):
    """Prints which share of the throughput is left with the most packets lost, and p99; whether the target is reached."""
    most = max(row["loss_percent"] for row in rows)
    found = {}
    for system in dict.fromkeys(row["system"] for row in rows):
        none, lost = ({key: peers.median(rows, key, system=system, loss_percent=percent) for key in ("ops_s", "p99_ms")}
                      for percent in (0, most))
        if none["ops_s"] and lost["ops_s"]:
            found[system] = {"ops_s": round(none["ops_s"]), "lossy_ops_s": round(lost["ops_s"]),
                             "kept": round(lost["ops_s"] / none["ops_s"], 2), "p99_ms": none["p99_ms"], "lossy_p99_ms": lost["p99_ms"]}
    print(json.dumps({"loss_percent": most, "loss": found, "wanted_kept": WANTED_KEPT}))
    return all(told["kept"] >= WANTED_KEPT for system, told in found.items() if system.startswith("atoll"))


def judge_shards(rows):
    """Prints writes per second by the numbers of nodes and of shards. There is no target."""
    nodes = dict.fromkeys(row["nodes"] for row in rows)
    print(json.dumps({"ops_s": {count: {shards: round(peers.median(rows, "ops_s", nodes=count, shards=shards)) for shards in SCALED_SHARDS}
                                for count in nodes}}))
    return True


def judge_best(rows):
    """Prints the ratios to the better peer; whether the targets are reached."""
    ratios, good = {}, True
    for system in KEYSPACES:
        at = {"keys": ALL_KEYS, "depth": DEPTH}
        mine = {key: peers.median(rows, key, system=system, **at) for key in ("ops_s", "p99_ms")}
        others = {row["system"]: None for row in rows if not row["system"].startswith("atoll")}
        others = {peer: {key: peers.median(rows, key, system=peer, **at) for key in ("ops_s", "p99_ms")} for peer in others}
        others = {peer: found for peer, found in others.items() if found["ops_s"]}
        if not others:
            continue
        best = max(others.values(), key=lambda found: found["ops_s"])
        ratios[system] = {"ops_s": round(mine["ops_s"]), "to_best": round(mine["ops_s"] / best["ops_s"], 2),
                          "p99_ms": mine["p99_ms"], "best_p99_ms": best["p99_ms"]}
        good &= mine["ops_s"] >= WANTED_OPS * best["ops_s"] and mine["p99_ms"] < best["p99_ms"]
    print(json.dumps({"ratios": ratios, "wanted_to_best": WANTED_OPS}))
    return good


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keys", "depth", "loss", "kill", "shards"))
    parser.add_argument("--rig", default=os.environ.get("ATOLL_RIG"), help="folder of the peers' rig [default: ATOLL_RIG]")
    parser.add_argument("--clients", type=int, default=1, help="how many clients of Atoll share what is in flight; the peers' generators use "
                                                               "16 connections [default: 1]")
    load.arguments(parser)
    args = load.parsed(parser)
    rows = []
    for row, number in measure(args):
        row = settled(row) if args.what == "kill" else row
        load.tell(row, number)
        rows.append(row)
    judge = {"kill": judge_kill, "loss": judge_loss, "shards": judge_shards}.get(args.what, judge_best)
    if not judge(rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
