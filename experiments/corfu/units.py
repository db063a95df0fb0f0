#!/usr/bin/env python3
"""Measures how CORFU scales with its storage units, for the figure corfu/figure_7:

    experiments/corfu/units.py            real units, the model of one machine beside them, and modelled units
    experiments/corfu/units.py --quick    the same in a minute or two, with figures that say little

`atoll-experiments corfu units` measures the parameters of its model on this machine, and then 1 to 4 units in processes of their own. It
computes the same with all nodes on one modelled machine, and compares the two. `atoll-experiments corfu modelled` computes up to 64 units,
each on a machine of its own, with the same parameters: in chains of one unit, and of two as in the paper.

Prints one JSON line per run. Fails if a target is missed: the model is not within 20 % of the real units, or reads do not grow linearly.
"""

import argparse
import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "drills"))

from apps import find_program

# Units of a chain.
REPLICAS = (1, 2)
# No part takes longer, in seconds.
AT_MOST = 3600


def run(program, *words):
    """Runs a part and tells its lines; the lines, and whether its targets were met."""
    command = [str(program), "corfu", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=AT_MOST)
    if not done.stdout:
        sys.exit(f"`{' '.join(command)}` ended with {done.returncode}, and has printed nothing")
    print(done.stdout, end="", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--rounds", type=int, default=5, help="how often each real point is measured [default: 5]")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each real measurement [default: 3]")
    parser.add_argument("--units", type=int, default=64, help="modelled units, at most [default: 64]")
    parser.add_argument("--quick", action="store_true", help="one short round, and 4 modelled units at most")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.units = 1, 0.5, 4
    program = find_program()
    place = ("--folder", args.folder)
    lines, fine = run(program, "units", "--rounds", args.rounds, "--seconds", args.seconds, *place)
    parameters = next(line["settings"]["parameters"] for line in lines if line.get("settings", {}).get("kind") == "modelled")
    for replicas in REPLICAS:
        words = ("--replicas", replicas, "--units", args.units, "--parameters", json.dumps(parameters))
        fine &= run(program, "modelled", *words, *place)[1]
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
