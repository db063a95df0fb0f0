#!/usr/bin/env python3
"""Measures how a StripedLoglet scales, for the figure delos/figure_10, and what a lone append costs, for delos/striped_depth_1:

    experiments/delos/striping.py scale      modelled machines, and real processes as far as this machine carries them
    experiments/delos/striping.py depth-1    one append at a time, over native and over striped logs

`scale` runs `atoll-experiments striping`, which measures the parameters of its model on this machine. Then it measures real processes: three
for each stripe, all on this machine. The model computes the same, with all nodes on one machine. So the two can be compared.

Prints one JSON line per run. `depth-1` fails if a striped log takes more than 1.5 times as long as a native one, in the median.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from statistics import median

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "drills"))

from apps import find_program
from cluster import Cluster, find_binary

# Of real processes. Twelve of them do not come up within a minute on two processors; the model goes further.
STRIPES = (1, 2)
SERVERS_PER_STRIPE = 3
PAYLOAD_BYTES = 1024
# Appends under way for each stripe, as in the model.
DEPTH = 240
# How much longer a lone append may take over a striped log.
TARGET = 1.5
# The model of one machine has as many processors as this machine.
PROCESSORS = os.cpu_count() or 1


def model(args, *words):
    """Runs the model; its lines. A missed target is one of them."""
    command = [str(args.program), "striping", "--folder", args.folder, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if not done.stdout:
        sys.exit(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def tell(line):
    """Prints a line."""
    print(json.dumps(line), flush=True)


def bench(cluster, log, depth, seconds):
    """Appends of 1 KiB; the report."""
    words = ("--log", log, "--payload", PAYLOAD_BYTES, "--depth", depth, "--seconds", seconds, "--warmup", 1)
    return cluster.json("bench", "log", *words, timeout=seconds + 60)


def create(cluster, log, stripes):
    """A log with so many stripes, each on three nodes of its own; a single one is a native log, as in the model."""
    nodes = list(range(1, stripes * SERVERS_PER_STRIPE + 1))
    firsts = nodes[::SERVERS_PER_STRIPE]
    if stripes == 1:
        cluster.atoll("log", "create", "--log", log, "--loglet", "native", "--servers", "1,2,3", "--sequencer", 1)
        return
    servers, sequencers = ",".join(map(str, nodes)), ",".join(map(str, firsts))
    cluster.atoll(
        "log", "create", "--log", log, "--loglet", "striped", "--option", "mode=sharded", "--option", f"stripes={stripes}",
        "--place", f"server={servers}", "--place", f"sequencer={sequencers}",
    )


def scale(args):
    """Modelled machines, real processes, and the model of one machine with them."""
    modelled = model(args)
    for line in modelled:
        tell(line)
    parameters = next(line["settings"]["parameters"] for line in modelled if "settings" in line)
    for stripes in STRIPES:
        if stripes > args.stripes:
            continue
        with tempfile.TemporaryDirectory(prefix="atoll-striping-", dir=args.folder) as folder:
            nodes = stripes * SERVERS_PER_STRIPE
            with Cluster(find_binary(args.bin), pathlib.Path(folder) / "cluster", "--nodes", nodes) as cluster:
                create(cluster, "scale", stripes)
                for number in range(1, args.rounds + 1):
                    got = bench(cluster, "scale", DEPTH * stripes, args.seconds)
                    settings = {"kind": "real", "servers": nodes, "depth": DEPTH * stripes, "payload_bytes": PAYLOAD_BYTES,
                                "seconds": args.seconds, "load_1m": round(os.getloadavg()[0], 2)}
                    tell({"system": "StripedLoglet, sharded", "workload": "real", "stripes": stripes, "round": number,
                          "ops_s": round(got["ops_s"]), "p50_us": got["p50_ms"] * 1e3, "p99_us": got["p99_ms"] * 1e3,
                          "errors": got["errors"], "settings": settings})
    words = ("--only", "sharded", "--stripes", max(s for s in STRIPES if s <= args.stripes), "--one-machine", PROCESSORS, "--clients", 1)
    for line in model(args, *words, "--parameters", json.dumps(parameters)):
        if "settings" in line:
            tell(dict(line, workload="modelled_one_machine"))


def depth_1(args):
    """One append at a time, in turns over a native and a striped log of the same nodes. Whether the target is met."""
    kinds = {"native": ("--loglet", "native"), "striped": ("--loglet", "striped")}
    p50_ms = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="atoll-depth-1-", dir=args.folder) as folder:
        with Cluster(find_binary(args.bin), pathlib.Path(folder) / "cluster", "--nodes", 3) as cluster:
            for kind, words in kinds.items():
                cluster.atoll("log", "create", "--log", kind, *words)
            for number in range(1, args.rounds + 1):
                for kind in kinds if number % 2 else reversed(kinds):
                    got = bench(cluster, kind, 1, args.seconds)
                    p50_ms[kind].append(got["p50_ms"])
                    settings = {"kind": "real", "nodes": 3, "depth": 1, "payload_bytes": PAYLOAD_BYTES, "seconds": args.seconds,
                                "load_1m": round(os.getloadavg()[0], 2)}
                    tell({"system": kind, "workload": "append", "round": number, "ops_s": round(got["ops_s"]),
                          "p50_us": got["p50_ms"] * 1e3, "p99_us": got["p99_ms"] * 1e3, "errors": got["errors"], "settings": settings,
                          "ping_pong_p50_us": got.get("ping_pong_p50_us")})
    ratio = median(striped / native for native, striped in zip(p50_ms["native"], p50_ms["striped"]))
    tell({"workload": "ratio", "p50_striped_to_native": round(ratio, 3), "target": TARGET, "holds": ratio <= TARGET})
    return ratio <= TARGET


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scale", "depth-1"))
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--rounds", type=int, default=5, help="how often each real point is measured [default: 5]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement [default: 4]")
    parser.add_argument("--stripes", type=int, default=2, help="of real processes, at most [default: 2]")
    args = parser.parse_args()
    if args.what == "depth-1":
        sys.exit(0 if depth_1(args) else 1)
    args.program = find_program()
    scale(args)


if __name__ == "__main__":
    main()
