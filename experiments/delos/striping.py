#!/usr/bin/env python3
"""Measures how a StripedLoglet scales, for the figure delos/figure_10, and what a lone append costs, for delos/striped_depth_1:

    experiments/delos/striping.py scale      modelled machines, and real processes as far as this machine carries them
    experiments/delos/striping.py depth-1    one append at a time, over native and over striped logs

`scale` runs `atoll-experiments striping`, which measures the parameters of its model on this machine. Then `atoll-experiments striping --real`
measures real processes: three for each stripe, all on this machine. The model computes the same, with all nodes on one machine, and the two
are compared.

Prints one JSON line per run. `scale` fails if the model is not within 20 % of the real processes, or stripes do not scale. `depth-1` fails if a
striped log takes more than 1.5 times as long as a native one, in the median.
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

PAYLOAD_BYTES = 1024
# How much longer a lone append may take over a striped log.
TARGET = 1.5


def model(args, *words):
    """Runs a part of the experiment and tells its lines; the lines, and whether its targets were met."""
    command = [str(args.program), "striping", "--folder", args.folder, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900)
    if not done.stdout:
        sys.exit(f"`{' '.join(command)}` ended with {done.returncode}, and has printed nothing")
    print(done.stdout, end="", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode == 0


def tell(line):
    """Prints a line."""
    print(json.dumps(line), flush=True)


def bench(cluster, log, depth, seconds):
    """Appends of 1 KiB; the report."""
    words = ("--log", log, "--payload", PAYLOAD_BYTES, "--depth", depth, "--seconds", seconds, "--warmup", 1)
    return cluster.json("bench", "log", *words, timeout=seconds + 60)


def scale(args):
    """Modelled machines, real processes, and the model of one machine with them. Whether the targets are met."""
    lines, fine = model(args)
    parameters = next(line["settings"]["parameters"] for line in lines if line.get("settings", {}).get("kind") == "modelled")
    words = ("--stripes", args.stripes, "--rounds", args.rounds, "--seconds", args.seconds)
    return model(args, "--real", *words, "--parameters", json.dumps(parameters))[1] and fine


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
    sys.exit(0 if scale(args) else 1)


if __name__ == "__main__":
    main()
