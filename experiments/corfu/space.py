#!/usr/bin/env python3
"""Measures what entries of a log on CORFU take on the disks of its units once most of them are trimmed, for the claim corfu-space:

    experiments/corfu/space.py

Four nodes run: two units of one chain, a sequencer, and one through which the clients work. After appends of 4 KiB, nine of ten positions,
drawn at random, are trimmed one by one. Then the ones that are left are moved: each is read and appended again, and all positions below the
first moved one are trimmed, as the compaction helper of the applications does it. What the units then take must be in proportion to what is
left, but for a constant. Each line has the bytes that the two units' data directories take on disk, once they do not change any more. What
is left is read, and must be what was appended.
"""

import argparse
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "drills"))

from cluster import Cluster, find_binary, need
from http2 import number
from positions import LOG, Client, create, load_1m, show, tell

UNITS = (1, 2)
SEQUENCER, DOOR = 3, 4
# As a page of the paper.
PAYLOAD_BYTES = 4096
# What a unit may take on disk: so many percent of what its entries take, and so many bytes that wait to be used again (`sparse_percent` and
# `dead_segments` of the journal).
LIVE_PERCENT = 150
DEAD_BYTES = 6 * 64 * 1024 * 1024
# The disk use has settled when it was the same for so long, in seconds; it must within so many.
SETTLED_S = 6
SETTLES_WITHIN_S = 120


def on_disk(cluster):
    """The bytes that the files of the units' data directories take."""
    total = 0
    for node in cluster.nodes():
        if node.id in UNITS:
            for folder, _, files in os.walk(node.data):
                for name in files:
                    try:
                        total += os.stat(os.path.join(folder, name)).st_blocks * 512
                    except FileNotFoundError:
                        # Deleted meanwhile.
                        continue
    return total


def settled(cluster):
    """The disk use once it does not change any more, and after how many seconds that was so."""
    began = since = time.monotonic()
    seen = on_disk(cluster)
    while time.monotonic() - since < SETTLED_S:
        need(time.monotonic() - began < SETTLES_WITHIN_S, f"the disk use still changes after {SETTLES_WITHIN_S} s: {seen} bytes")
        time.sleep(0.5)
        now = on_disk(cluster)
        if now != seen:
            seen, since = now, time.monotonic()
    return seen, round(since - began, 1)


def content(index):
    """What entry `index` holds."""
    return random.Random(index).randbytes(PAYLOAD_BYTES)


def append(address, indices):
    """Appends entries; their positions."""
    client = Client(address)
    return [(client.append(content(index)), index) for index in indices]


def trim(address, positions):
    """Trims positions one by one; how many were refused."""
    client = Client(address)
    return sum(client.call("Trim", number(2, position)) is None for position in positions)


def shares(of, parts):
    return [of[part::parts] for part in range(parts)]


def body(args, folder):
    with Cluster(find_binary(args.bin), folder / "cluster", "--nodes", 4) as cluster, multiprocessing.Pool(args.clients) as pool:
        create(cluster, f"{UNITS[0]},{UNITS[1]}", SEQUENCER, 1)
        address = cluster.node(DOOR).grpc

        def each(work, of):
            return pool.starmap(work, [(address, share) for share in shares(of, args.clients)])

        def line(step, entries, **more):
            used, after_s = settled(cluster)
            tell({"workload": "space", "step": step, "entries": entries, "payload_bytes": entries * PAYLOAD_BYTES * len(UNITS),
                  "disk_bytes": used, "settled_after_s": after_s, **more, "load_1m": load_1m()})
            return used

        empty = line("empty", 0)
        placed = [pair for some in each(append, range(args.entries)) for pair in some]
        need(all(position is not None for position, _ in placed), "an append was not answered")
        full = line("appended", len(placed))
        random.Random(args.seed).shuffle(placed)
        left = sorted(placed[: len(placed) // 10])
        refused = sum(each(trim, [position for position, _ in placed[len(placed) // 10 :]]))
        need(refused == 0, f"{refused} trims were refused")
        sparse = line("trimmed", len(left))
        client, below = Client(address), show(cluster)["next"]
        for position, index in left:
            got = client.read(position)
            need(got and got.get(1) == content(index), f"position {position} does not hold what was appended: {got and list(got)}")
        kept = [pair for some in each(append, [index for _, index in left]) for pair in some]
        need(client.call("Trim", number(3, below)) is not None, "the trim of all positions below was refused")
        compact = line("moved", len(kept))
        # The old connection has answered no ping for long, and may be closed.
        client = Client(address)
        for position, index in kept:
            got = client.read(position)
            need(got and got.get(1) == content(index), f"position {position} does not hold what was moved there: {got and list(got)}")
        live = (full - empty) * len(left) // len(placed)
        allowed = live * LIVE_PERCENT // 100 + DEAD_BYTES * len(UNITS)
        holds = compact - empty <= allowed
        trimmed, moved = (round((used - empty) / (full - empty), 3) for used in (sparse, compact))
        tell({"workload": "space", "step": "ratio", "live_bytes": live, "allowed_bytes": allowed, "holds": holds,
              "trimmed_of_full": trimmed, "moved_of_full": moved})
    return holds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--entries", type=int, default=200_000, help="appended [default: 200000]")
    parser.add_argument("--clients", type=int, default=8, help="processes that append and trim [default: 8]")
    parser.add_argument("--seed", type=int, default=1, help="of the positions that are trimmed [default: 1]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="atoll-space-", dir=args.folder) as folder:
        if not body(args, pathlib.Path(folder)):
            sys.exit(1)


if __name__ == "__main__":
    main()
