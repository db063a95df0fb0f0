#!/usr/bin/env python3
"""Atoll beside ZooKeeper, by ZooKeeper's own protocol, on this machine, in one run.

Three processes each, fsync on; rounds interleave the two, and medians are compared. --rig names the folder of the peers' rig (see
rig.py), whose generator loads both.

    w1-64 w1-1 w1-256   writes of 50 B over 16,000 keys at a depth
    w2-sync w2-plain    90 % reads and 10 % writes of 1 KB over 100,000 keys, depth 64: reads behind a sync, and without
    w3                  w1 at depth 64; after 5 s the leader, or the node with the sequencer of the log `db`, is killed and stays dead
    sweep               w1 at depths 1 to 256, and Atoll with its state in memory besides: latency against throughput

Prints one JSON line per run, then a table, then a JSON line with the ratios. Its exit status is 1 if a target is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import rig as peers

# Operations per second against ZooKeeper's, and whether p99 is to be lower.
WANTED = {"w1-64": 2.5, "w1-1": 1.3, "w1-256": 2.0, "w2-sync": 2.5, "w2-plain": 2.0}
WANTED_CPU = {"w1-64": 0.4}
WANTED_RECOVERY_MS = 500
W3_ROUNDS = 10
SWEEP_DEPTHS = (1, 4, 16, 64, 128, 256)


def addresses(nodes):
    """Where clients of ZooKeeper find the nodes."""
    return ",".join(n["zookeeper"] for n in nodes)


def pids(nodes):
    """Of the nodes, for the generator."""
    return ",".join(str(n["pid"]) for n in nodes)


def named(row):
    """A result with the name of its workload here."""
    kind = row.get("read") if row["workload"] == "w2" else row["depth"]
    name = "w3" if row["workload"] == "w3" else f"{row['workload']}-{kind}"
    failover = row.get("failover") or {}
    return {**row, "name": name, "silence_ms": failover.get("silence_ms"), "recovered_ms": failover.get("recovered_ms")}


def flags_of(name):
    """The generator's flags for a workload of `WANTED`."""
    workload, kind = name.split("-")
    return ("-w", "w1", "-depth", kind) if workload == "w1" else ("-w", workload, "-depth", "64", "-read", kind)


def loaded(args, nodes, *flags):
    """The rows of one run of the generator against a cluster of Atoll that is up."""
    rows = peers.load(args.rig, "zookeeper", "atoll", addresses(nodes), "-pids", pids(nodes), *flags)
    return [{**named(row), "state": args.state} for row in rows]


def atoll(args, wanted):
    """One fresh cluster for each kind of workload."""
    seconds, warm = f"{args.seconds}s", f"{args.warm}s"
    depths = [d for d in (64, 1, 256) if f"w1-{d}" in wanted]
    reads = [r for r in ("sync", "plain") if f"w2-{r}" in wanted]
    for runs in ([f"w1-{d}" for d in depths], [f"w2-{r}" for r in reads]):
        if not runs:
            continue
        with peers.cluster(args.bin, args.folder, "--state", args.state) as (nodes, _):
            for number, name in enumerate(runs):
                preload = "no" if number else "auto"
                yield from loaded(args, nodes, *flags_of(name), "-secs", seconds, "-warm", warm, "-preload", preload)


def atoll_killed(args):
    """One fresh cluster whose sequencer's node is killed under load."""
    with peers.cluster(args.bin, args.folder, "--state", args.state, "--no-restart") as (nodes, _):
        # The log is made by the first that needs it.
        peers.load(args.rig, "zookeeper", "atoll", addresses(nodes), "-w", "w1", "-depth", "1", "-secs", "1s", "-warm", "0s")
        connect = ",".join(n["grpc"] for n in nodes)
        show = [args.bin, "chain", "show", "--log", "db", "--json", "--connect", connect]
        chain = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
        sequencer = int(chain["segments"][-1]["config"]["sequencer"])
        victim = next(n["pid"] for n in nodes if n["id"] == sequencer)
        flags = ("-w", "w3", "-depth", "64", "-kill-pid", str(victim), "-pids", pids(nodes))
        for row in peers.load(args.rig, "zookeeper", "atoll", addresses(nodes), *flags):
            yield {**named(row), "state": args.state}


def zookeeper(args, wanted):
    """Fresh clusters of ZooKeeper, measured by the rig with all depths or reads of a workload."""
    for workload in ("w1", "w2"):
        if any(name.startswith(workload) for name in wanted):
            rows = peers.run(args.rig, "zookeeper", workload, "-secs", f"{args.seconds}s", "-warm", f"{args.warm}s")
            yield from (row for row in map(named, rows) if row["name"] in wanted)


def sweep_atoll(args, state):
    """Atoll at every depth of the sweep, with its state on disk or in memory."""
    with peers.cluster(args.bin, args.folder, "--state", state) as (nodes, _):
        yield from sweep(args, f"atoll-{state}", addresses(nodes), "-pids", pids(nodes))


def sweep_zookeeper(args):
    """ZooKeeper at every depth of the sweep."""
    up = subprocess.Popen([f"{args.rig}/run.sh", "zookeeper", "up"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    try:
        found = (line.partition("addresses:")[2].split() for line in up.stdout)
        told = next((words for words in found if words), None)
        if told is None:
            sys.exit("ZooKeeper did not start")
        yield from sweep(args, "zookeeper", told[0])
    finally:
        up.communicate("\n", timeout=60)


def sweep(args, system, where, *flags):
    """Every depth, one after the other."""
    for depth in SWEEP_DEPTHS:
        preload = "auto" if depth == SWEEP_DEPTHS[0] else "no"
        run = ("-w", "w1", "-depth", str(depth), "-secs", f"{args.seconds}s", "-preload", preload, *flags)
        for row in peers.load(args.rig, "zookeeper", system, where, *run):
            yield {**named(row), "name": "sweep"}


def report(rows, wanted):
    """The table and the ratios; whether all that is wanted is there."""
    print(f"\n{'workload':<10}{'system':<12}" + "".join(f"{k:>14}" for k in (*peers.KEYS, "recovered_ms")))
    ratios, good = {}, True
    for name in wanted:
        figures = {}
        for system in ("atoll", "zookeeper"):
            which = {"name": name, "system": system}
            figures[system] = {k: peers.median(rows, k, **which) for k in (*peers.KEYS, "recovered_ms", "silence_ms")}
            print(f"{name:<10}{system:<12}" + peers.cells(figures[system][k] for k in (*peers.KEYS, "recovered_ms")))
        ours, theirs = figures["atoll"], figures["zookeeper"]
        if name == "w3":
            found = {"recovered_ms": ours["recovered_ms"], "wanted_below": WANTED_RECOVERY_MS,
                     "silence_ms": ours["silence_ms"], "zookeeper_recovered_ms": theirs["recovered_ms"]}
            good &= ours["recovered_ms"] is not None and ours["recovered_ms"] <= WANTED_RECOVERY_MS
        elif ours["ops_s"] and theirs["ops_s"]:
            cpu = ours["server_us_op"] / theirs["server_us_op"] if theirs["server_us_op"] else None
            found = {"ops": round(ours["ops_s"] / theirs["ops_s"], 2), "wanted": WANTED[name],
                     "p99_ms": ours["p99_ms"], "zookeeper_p99_ms": theirs["p99_ms"],
                     "server_cpu": round(cpu, 3) if cpu else None, "server_cpu_wanted": WANTED_CPU.get(name)}
            good &= found["ops"] >= WANTED[name] and (not name.startswith("w1") or ours["p99_ms"] < theirs["p99_ms"])
            good &= cpu is None or cpu <= WANTED_CPU.get(name, cpu)
        else:
            continue
        ratios[name] = found
    print(json.dumps({"ratios": ratios}))
    return good


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rig", required=True, help="folder of the peers' rig")
    parser.add_argument("--bin", default=peers.program(), help="the program [default: ATOLL_BIN, or target/dist/atoll]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--warm", type=int, default=2, help="seconds of load before each measurement: a fresh JVM compiles for longer")
    parser.add_argument("--workloads", default=",".join(WANTED), help="comma-separated; or w3, or sweep")
    parser.add_argument("--state", choices=("disk", "memory"), default="disk", help="where Atoll has its state")
    parser.add_argument("--kills", type=int, default=W3_ROUNDS, help="how often w3 is run")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where Atoll's data goes: a disk, not memory")
    args = parser.parse_args()
    wanted = args.workloads.split(",")
    unknown = [name for name in wanted if name not in (*WANTED, "w3", "sweep")]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}")
    rows = []
    for number in range(args.rounds):
        for system in (atoll, zookeeper):
            for row in system(args, wanted):
                peers.tell(rows, number, row)
        if "sweep" in wanted:
            for system in (sweep_atoll(args, "disk"), sweep_zookeeper(args), sweep_atoll(args, "memory")):
                for row in system:
                    peers.tell(rows, number, row)
    if "w3" in wanted:
        for number in range(args.kills):
            for row in (*atoll_killed(args), *map(named, peers.run(args.rig, "zookeeper", "w3"))):
                peers.tell(rows, number, row)
    compared = [name for name in wanted if name != "sweep"]
    if compared and not report(rows, compared):
        sys.exit(1)


if __name__ == "__main__":
    main()
