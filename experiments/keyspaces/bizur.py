#!/usr/bin/env python3
"""Bizur's figures (§5), beside etcd and ZooKeeper of the rig of peers, on this machine, in one run:

    experiments/keyspaces/bizur.py keys     figure 1: writes against the number of keys, 64 in flight
    experiments/keyspaces/bizur.py depth    figure 2: writes against the number in flight, 16,000 keys
    experiments/keyspaces/bizur.py loss     figure 3: writes while packets are lost, 16,000 keys, 64 in flight; needs root, `ip` and `nft`
    experiments/keyspaces/bizur.py kill     figure 4: the leader is killed 5 s into 25, 16,000 keys, 64 in flight

Every write is of 50 B and durable on a majority of three nodes. Keyspaces on Bizur are measured with one shard, as in the paper, and with
256. Both have 16,384 buckets. --rig names the folder of the rig (see peers/rig.py); without it, only Atoll is measured. Prints one JSON
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
ALL_KEYS, DEPTH, VALUE_BYTES = 16_000, 64, 50
BUCKETS = 16_384
SHARDS = (1, 256)
PEERS = ("etcd", "zookeeper")
KILL_AT_S, KILL_RUN_S = 5, 25
# Against the best peer, at 64 in flight and 16,000 keys.
WANTED_OPS, WANTED_RECOVERY_MS = 3.0, 300
# With the most packets lost, against none lost.
WANTED_KEPT = 0.75


def points(args):
    """The keys and the depth of each run of a figure."""
    if args.what == "keys":
        return [(keys, DEPTH) for keys in load.some(args, KEYS)]
    return [(ALL_KEYS, depth) for depth in load.some(args, DEPTHS)]


def create(cluster, shards):
    """A keyspace on Bizur, and its name."""
    name = f"bizur-{shards}"
    cluster.create(name, engine="bizur", shards=shards, buckets=BUCKETS // shards, durability="disk")
    return name


def ours(args, shards):
    """Every point with a keyspace of so many shards, all in one fresh cluster."""
    with load.cluster(args) as cluster:
        name = create(cluster, shards)
        for number, (keys, depth) in enumerate(points(args)):
            fill = args.what == "keys" or number == 0
            row = cluster.bench(keyspace=name, keys=keys, depth=depth, payload=VALUE_BYTES, seconds=args.seconds, warmup=args.warm,
                                fill=fill)
            yield dict(row, system=f"atoll-{shards}", shards=shards, buckets=BUCKETS)


def load_peer(args, system, addresses, keys, depth, preload):
    """One run of the rig's generator: its row, or none if it failed."""
    words = ("-w", "w1", "-keys", str(keys), "-depth", str(depth), "-value", str(VALUE_BYTES), "-secs", f"{args.seconds}s",
             "-warm", f"{args.warm}s", "-preload", preload)
    return peers.load(args.rig, system, system, addresses, *words)


def theirs(args, system):
    """Every point with a peer, all in one fresh cluster."""
    with load.peer(args.rig, system) as addresses:
        for number, (keys, depth) in enumerate(points(args)):
            preload = "auto" if args.what == "keys" or number == 0 else "no"
            yield from load_peer(args, system, addresses, keys, depth, preload)


def losing(args, network, measure):
    """A row for each share of lost packets; `measure` gives one, and is told whether it is the first."""
    for number, percent in enumerate(load.some(args, LOSSES_PERCENT)):
        network.lose(percent)
        row = measure(number == 0)
        if row is not None:
            yield dict(row, loss_percent=percent, network=network.seen(), load_1m=round(os.getloadavg()[0], 2))


def ours_losing(args, shards):
    """Every share of lost packets with a keyspace of so many shards, all in one fresh cluster."""
    with lossy.Network() as network, load.cluster(args) as cluster:
        name = create(cluster, shards)

        def measure(first):
            row = cluster.bench(keyspace=name, keys=ALL_KEYS, depth=DEPTH, payload=VALUE_BYTES, seconds=args.seconds, warmup=args.warm,
                                fill=first)
            return dict(row, system=f"atoll-{shards}", shards=shards, buckets=BUCKETS)

        yield from losing(args, network, measure)


def theirs_losing(args, system):
    """Every share of lost packets with a peer, all in one fresh cluster."""
    # What the rig still has to install needs another network.
    with load.peer(args.rig, system):
        pass
    with lossy.Network() as network, load.peer(args.rig, system) as addresses:
        yield from losing(args, network, lambda first: next(
            iter(load_peer(args, system, addresses, ALL_KEYS, DEPTH, "auto" if first else "no")), None))


def killed(args, shards):
    """A fresh cluster, one of whose nodes is killed under load: with one shard, the node that leads it."""
    with load.cluster(args, "--no-restart") as cluster:
        name = create(cluster, shards)
        led = {row["node"]: row["first"] for row in cluster.run("kv", "describe", name)["nodes"]}
        node = max(led, key=led.get)
        victim = next(row["pid"] for row in cluster.nodes if row["id"] == node)
        # The keys first, so that the time of the kill is known.
        cluster.bench(keyspace=name, keys=ALL_KEYS, depth=DEPTH, payload=VALUE_BYTES, seconds=1, fill=True)
        killed_at = []

        def kill():
            killed_at.append(time.time())
            os.kill(victim, signal.SIGKILL)

        timer = threading.Timer(args.warm + KILL_AT_S, kill)
        timer.start()
        # The dead node's processor time cannot be read.
        cluster.pids = [pid for pid in cluster.pids if pid != victim]
        row = cluster.bench(keyspace=name, keys=ALL_KEYS, depth=DEPTH, payload=VALUE_BYTES, seconds=KILL_RUN_S, warmup=args.warm,
                            timeline=True)
        timer.join()
        line, errors = row.pop("answers_per_100ms"), row.pop("errors_per_100ms")
        at = killed_at[0] - row["started_unix_ms"] / 1000
        yield dict(row, system=f"atoll-{shards}", shards=shards, buckets=BUCKETS, led=led[node], per_100ms=line,
                   errors_per_100ms=errors, kill_at_s=round(at, 3))


def theirs_killed(args, system):
    """A fresh cluster of a peer whose leader the rig kills."""
    for row in peers.run(args.rig, system, "w3", "-secs", f"{KILL_RUN_S}s", "-warm", f"{args.warm}s", "-keys", str(ALL_KEYS)):
        yield dict(row, kill_at_s=float(KILL_AT_S))


def settled(row):
    """The row of a kill with what its timeline says: the throughput before, and from when on half a second had 80 % of it, as the rig
    counts that."""
    line, first = row["per_100ms"][:KILL_RUN_S * 10], int(row["kill_at_s"] * 10)
    before = line[10:first]
    enough = 0.8 * sum(before) / len(before)
    dip = next((n for n in range(first, first + 20) if line[n] < enough), None)
    good = (n for n in range(dip or first, len(line) - 4) if line[n] >= enough and sum(line[n:n + 5]) >= 5 * enough)
    back = first if dip is None else next(good, None)
    return dict(row, before_ops_s=round(sum(before) / len(before) * 10), windows_after=len(line) - first,
                silent_windows=sum(answers == 0 for answers in line[first:]),
                slow_windows=sum(answers < enough for answers in line[first:]),
                back_ms=None if back is None else max(0, round(back * 100 - row["kill_at_s"] * 1000)))


def measure(args):
    """All rows of a figure."""
    mine, others = {"kill": (killed, theirs_killed), "loss": (ours_losing, theirs_losing)}.get(args.what, (ours, theirs))
    for number in range(1, args.rounds + 1):
        for shards in SHARDS:
            for row in mine(args, shards):
                yield row, number
        for system in PEERS if args.rig else ():
            for row in others(args, system):
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


def judge_best(rows):
    """Prints the ratios to the better peer; whether the targets are reached."""
    ratios, good = {}, True
    for shards in SHARDS:
        at = {"keys": ALL_KEYS, "depth": DEPTH}
        mine = {key: peers.median(rows, key, system=f"atoll-{shards}", **at) for key in ("ops_s", "p99_ms")}
        others = {s: {key: peers.median(rows, key, system=s, **at) for key in ("ops_s", "p99_ms")} for s in PEERS}
        others = {system: found for system, found in others.items() if found["ops_s"]}
        if not others:
            continue
        best = max(others.values(), key=lambda found: found["ops_s"])
        ratios[f"atoll-{shards}"] = {"ops_s": round(mine["ops_s"]), "to_best": round(mine["ops_s"] / best["ops_s"], 2),
                                     "p99_ms": mine["p99_ms"], "best_p99_ms": best["p99_ms"]}
        good &= mine["ops_s"] >= WANTED_OPS * best["ops_s"] and mine["p99_ms"] < best["p99_ms"]
    print(json.dumps({"ratios": ratios, "wanted_to_best": WANTED_OPS}))
    return good


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keys", "depth", "loss", "kill"))
    parser.add_argument("--rig", default=os.environ.get("ATOLL_RIG"), help="folder of the peers' rig [default: ATOLL_RIG]")
    load.arguments(parser)
    args = load.parsed(parser)
    rows = []
    for row, number in measure(args):
        row = settled(row) if args.what == "kill" else row
        load.tell(row, number)
        rows.append(row)
    judge = {"kill": judge_kill, "loss": judge_loss}.get(args.what, judge_best)
    if not judge(rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
