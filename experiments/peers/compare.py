#!/usr/bin/env python3
"""Atoll's log beside other systems, on this machine, in one run.

Three processes each, fsync on, 1 KB records, at depths 64, 1 and 256; rounds interleave the systems, and medians are compared. The
others are run by a rig that is not part of this repository: --rig names its folder, which has `run.sh SYSTEM WORKLOAD
FLAGS` printing one JSON line per depth (ops_s, p50_ms, p99_ms, server_us_op). Without --rig only Atoll is measured.

Prints one JSON line per run, then a table, then a JSON line with the ratios.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import rig as peers

DEPTHS = (64, 1, 256)
PEERS = {"nats": "log", "etcd": "w1", "bookkeeper": "log"}
# What is to be reached: operations per second against the best peer at each depth.
WANTED = {64: 4.0, 256: 3.0}


def log_load(program, nodes, data, depth, seconds, warm):
    """Appends at a depth to a cluster of Atoll that is up: the row of its bench, with what the servers took."""
    connect = ",".join(n["grpc"] for n in nodes)
    pids = [n["pid"] for n in nodes]
    bench = [program, "bench", "log", "--connect", connect, "--payload", "1024", "--depth", str(depth), "--json"]
    if warm:
        subprocess.run([*bench, "--seconds", str(warm)], check=True, capture_output=True)
    before, slept, flushed = peers.cpu_s(pids), peers.voluntary_switches(pids), peers.flushes()
    out = subprocess.run([*bench, "--seconds", str(seconds), "--count-after"], capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"bench failed: {out.stderr}")
    used, slept = peers.cpu_s(pids) - before, peers.voluntary_switches(pids) - slept
    row = json.loads(out.stdout.splitlines()[-1])
    row.update(system="atoll", workload="log", disk=peers.file_system(data),
               server_us_op=round(1e6 * used / max(1, row["ops"]), 2),
               server_switches_op=round(slept / max(1, row["ops"]), 2))
    if flushed is not None:
        row["flushes_s"] = round((peers.flushes() - flushed) / row["seconds"])
    return row


def atoll(program, seconds, warm, folder):
    """One fresh cluster of three, measured at every depth."""
    with peers.cluster(program, folder) as (nodes, data):
        for depth in DEPTHS:
            yield log_load(program, nodes, data, depth, seconds, warm)


def peer(rig, name, seconds):
    """One fresh cluster of a peer, measured by the rig at every depth."""
    flags = ["-secs", f"{seconds}s"] + (["-value", "1024"] if name == "etcd" else [])
    rows = peers.run(rig, name, PEERS[name], *flags)
    if len(rows) != len(DEPTHS):
        print(f"-- {name}: {len(rows)} of {len(DEPTHS)} runs", file=sys.stderr)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rig", help="folder of the peers' rig")
    parser.add_argument("--bin", default=peers.program(), help="the program [default: ATOLL_BIN, or target/dist/atoll]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where Atoll's data goes: a disk, not memory")
    args = parser.parse_args()
    rows = []
    for number in range(args.rounds):
        systems = [lambda: atoll(args.bin, args.seconds, args.warm, args.folder)]
        if args.rig:
            systems += [lambda name=name: peer(args.rig, name, args.seconds) for name in PEERS]
        for system in systems:
            for row in system():
                peers.tell(rows, number, row)
    report(rows)


def median(rows, system, depth, key):
    """The median of a figure of a system at a depth."""
    return peers.median(rows, key, system=system, depth=depth)


def report(rows):
    systems = list(dict.fromkeys(r["system"] for r in rows))
    print(f"\n{'depth':>5}  {'system':<12}" + "".join(f"{k:>14}" for k in peers.KEYS))
    for depth in sorted(DEPTHS):
        for system in systems:
            print(f"{depth:>5}  {system:<12}" + peers.cells(median(rows, system, depth, k) for k in peers.KEYS))
    ratios = {}
    for depth in DEPTHS:
        others = [s for s in systems if s != "atoll" and median(rows, s, depth, "ops_s")]
        if others:
            ours = median(rows, "atoll", depth, "ops_s")
            best = max(median(rows, s, depth, "ops_s") for s in others)
            p99 = {s: median(rows, s, depth, "p99_ms") for s in others}
            cpu = [median(rows, s, depth, "server_us_op") for s in others]
            cpu = min((c for c in cpu if c), default=None)
            mine = median(rows, "atoll", depth, "server_us_op")
            ratios[depth] = {"ops_to_best": round(ours / best, 2), "wanted": WANTED.get(depth),
                             "p50_ms": median(rows, "atoll", depth, "p50_ms"),
                             "best_p50_ms": min(median(rows, s, depth, "p50_ms") for s in others),
                             "p99_ms": median(rows, "atoll", depth, "p99_ms"), "peers_p99_ms": p99,
                             "server_cpu_to_best": round(mine / cpu, 3) if cpu else None}
    if ratios:
        print(json.dumps({"ratios": ratios}))


if __name__ == "__main__":
    main()
