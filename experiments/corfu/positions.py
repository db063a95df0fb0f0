#!/usr/bin/env python3
"""Measures single positions of a log on CORFU, for the figures corfu/figure_6 and corfu/figure_8, through the gRPC door of real nodes:

    experiments/corfu/positions.py operations    what append, read and fill take, on disk and in memory
    experiments/corfu/positions.py kills         an appender and a reader while a unit, or the sequencer, is killed; planned replacements

The client is this program, over one connection to a node that is neither a unit nor the sequencer. So each figure includes the way to that
node and back, and what Python takes. Prints one JSON line per run; the last one has the target.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time
from statistics import median

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "drills"))

from cluster import Cluster, find_binary, need, poll, quantile
from http2 import Closed, Http2, fields, fixed, number, text
from load import Load

LOG = "figure"
SERVICE = "/atoll.corfu.v1.CorfuService/"
# Bytes of an entry, as in the paper.
PAGE_BYTES = 4096
# A fill takes less than this in the median.
FILL_TARGET_US = 1000
# How long a killed node is given to come back before the next round.
BACK_WITHIN = 60


class Client:
    """One connection to the door of a node."""

    def __init__(self, address, log=LOG):
        self.address, self.log, self.connection = address, log, None

    def call(self, verb, *rest):
        """The messages of the answer; None if it was refused or the connection is lost."""
        try:
            self.connection = self.connection or Http2(self.address, timeout=20)
            return self.connection.call(SERVICE + verb, text(1, self.log) + b"".join(rest)) or None
        except (Closed, OSError):
            self.connection = None
            return None

    def append(self, data):
        """The position; None if it is not known."""
        got = self.call("Append", text(2, data), fixed(3, random.getrandbits(63) + 1))
        return dict(fields(got[0])).get(1, 0) if got else None

    def read(self, position):
        """What is there: fields 1 (data), 2 (junk) or 3 (trimmed)."""
        got = self.call("Read", number(2, position))
        return dict(fields(got[0])) if got else None

    def fill(self, position):
        """Whether it is junk now."""
        return self.call("Fill", number(2, position)) is not None


def tell(line):
    """Prints a line."""
    print(json.dumps(line), flush=True)


def load_1m():
    return round(os.getloadavg()[0], 2)


def timed(count, operate):
    """Latencies of `count` operations in microseconds, and how many failed."""
    took, failed = [], 0
    for number_of in range(count):
        began = time.perf_counter()
        done = operate(number_of)
        if done:
            took.append((time.perf_counter() - began) * 1e6)
        else:
            failed += 1
    return took, failed


def create(cluster, units, sequencer, chains):
    cluster.atoll(
        "log", "create", "--log", LOG, "--loglet", "corfu", "--place", f"unit={units}", "--place", f"sequencer={sequencer}",
        "--option", f"chains={chains}", "--option", "stripe=1",
    )


def show(cluster):
    """The projection."""
    def ask():
        done = cluster.atoll("corfu", "show", "--log", LOG, "--json", check=False)
        shown = json.loads(done.stdout) if done.returncode == 0 else None
        return shown if shown and shown["next"] is not None else None

    return poll("`atoll corfu show` answers", 60, ask, every=0.1)


def make_holes(cluster, folder, through, attempts=25, enough=20):
    """Kills the node through which a client appends large entries, until it leaves positions that nobody writes."""
    for attempt in range(attempts):
        load = Load(cluster, folder, LOG, name=f"x{attempt}", connect=cluster.node(through).grpc, depth=512, line_bytes=PAGE_BYTES).start()
        time.sleep(random.uniform(0.2, 0.5))
        pids, _ = cluster.signal([through])
        load.abandon()
        cluster.wait_back(pids)
        shown = show(cluster)
        holes = list(range(shown["written"], shown["next"]))
        if len(holes) >= enough:
            return holes
    return []


def operations_on(args, storage, under, number_of):
    """One round on a cluster of its own; what its fills took."""
    with tempfile.TemporaryDirectory(prefix="atoll-positions-", dir=under) as folder:
        folder = pathlib.Path(folder)
        with Cluster(find_binary(args.bin), folder / "cluster", "--nodes", 4) as cluster:
            create(cluster, "1,2", 3, 1)
            client = Client(cluster.node(4).grpc)
            data, positions = bytes(PAGE_BYTES), []

            def append(_):
                position = client.append(data)
                if position is not None:
                    positions.append(position)
                return position is not None

            timed(args.operations // 4, append)
            rows = {"append": timed(args.operations, append)}
            rows["read"] = timed(args.operations, lambda _: 1 in (client.read(random.choice(positions)) or {}))
            holes = make_holes(cluster, folder, 4)
            need(holes, "too few holes after all kills")
            client = Client(cluster.node(4).grpc)
            # The first call makes the connection.
            client.read(positions[0])
            rows["fill"] = timed(len(holes), lambda n: client.fill(holes[n]))
            for operation, (took, failed) in rows.items():
                settings = {"kind": "real", "storage": storage, "payload_bytes": PAGE_BYTES, "units_of_a_chain": 2, "depth": 1,
                            "load_1m": load_1m()}
                tell({"system": "CORFU", "workload": operation, "round": number_of, "ops": len(took), "errors": failed,
                      "p50_us": round(median(took), 1), "p99_us": round(quantile(took, 0.99), 1), "settings": settings})
            return rows["fill"][0]


def operations(args):
    """Both storages, in turns. Whether the median of all fills is below the target."""
    fills = {"disk": [], "memory": []}
    for number_of in range(1, args.rounds + 1):
        for storage, under in (("disk", args.folder), ("memory", args.memory_folder)):
            fills[storage] += operations_on(args, storage, under, number_of)
    medians = {storage: round(median(took), 1) for storage, took in fills.items()}
    holds = all(value < FILL_TARGET_US for value in medians.values())
    tell({"workload": "fill_median_us", "medians": medians, "fills": {s: len(f) for s, f in fills.items()},
          "target": FILL_TARGET_US, "holds": holds})
    return holds


def keep_on(address, what, first, until, pipe):
    """A process that appends, or reads one of the first entries, one operation at a time; when each ended, in seconds since 1970."""
    client, ends, failed = Client(address), [], 0
    data = bytes(PAGE_BYTES)
    while time.time() < until.value:
        done = client.append(data) is not None if what == "append" else 1 in (client.read(random.randrange(first)) or {})
        if done:
            ends.append(time.time())
        else:
            failed += 1
            time.sleep(0.002)
    pipe.send((ends, failed))


def longest_gap_ms(ends, begin, finish):
    gaps = [(b - a) * 1e3 for a, b in zip(ends, ends[1:]) if b >= begin and a <= finish]
    return round(max(gaps, default=float("inf")), 1)


def wait_up(cluster):
    def ask():
        status = cluster.status()
        rows = [row for row in status["logs"] if row["name"] == LOG]
        return all(n["state"] == "up" for n in status["nodes"]) and rows and rows[0]["healthy"]

    poll("all nodes are up and the log is healthy", BACK_WITHIN, ask, every=0.2)


def bins(ends, begin, width_s=0.01):
    counts = [0] * (int((ends[-1] - begin) / width_s) + 1 if ends else 0)
    for end in ends:
        counts[max(0, int((end - begin) / width_s))] += 1
    return counts


def kill(args, cluster, role, number_of, first):
    """One kill under load; its line."""
    wait_up(cluster)
    shown = show(cluster)
    victim = shown["sequencer"] if role == "sequencer" else shown["chains"][0][0 if role == "first unit" else -1]
    busy = {shown["sequencer"], *(unit for chain in shown["chains"] for unit in chain)}
    through = next(n for n in cluster.ids() if n not in busy)
    address = cluster.node(through).grpc
    began = time.time()
    until = multiprocessing.Value("d", began + args.before + args.after)
    workers = []
    for what in ("append", "read"):
        mine, theirs = multiprocessing.Pipe(False)
        process = multiprocessing.Process(target=keep_on, args=(address, what, first, until, theirs), daemon=True)
        process.start()
        workers.append((process, mine))
    time.sleep(args.before)
    pids, killed = cluster.signal([victim])
    (appends, append_errors), (reads, read_errors) = (pipe.recv() for _, pipe in workers)
    for process, _ in workers:
        process.join(10)
    cluster.wait_back(pids, BACK_WITHIN)
    settings = {"kind": "real", "storage": "disk", "units": 4, "units_of_a_chain": 2, "depth": 1, "payload_bytes": PAGE_BYTES,
                "load_1m": load_1m()}
    return {
        "system": "CORFU", "workload": "kill", "victim": role, "round": number_of, "killed_ms": round((killed - began) * 1e3, 1),
        "append_gap_ms": longest_gap_ms(appends, killed, killed + args.after),
        "read_gap_ms": longest_gap_ms(reads, killed, killed + args.after),
        "append_gap_before_ms": longest_gap_ms(appends, began, killed - 0.01), "append_errors": append_errors, "read_errors": read_errors,
        "bin_ms": 10, "appends": bins(appends, began), "reads": bins(reads, began), "settings": settings,
    }


def planned(args, cluster):
    """A unit is replaced by the spare node, to and fro: what the call takes, in microseconds."""
    wait_up(cluster)
    shown = show(cluster)
    busy = {shown["sequencer"], *(unit for chain in shown["chains"] for unit in chain)}
    old, spare = shown["chains"][0][-1], next(n for n in cluster.ids() if n not in busy)
    client, took = Client(cluster.node(shown["sequencer"]).grpc), []
    for _ in range(args.planned):
        began = time.perf_counter()
        got = client.call("Replace", text(2, number(1, old) + number(2, spare)))
        if got:
            took.append(round((time.perf_counter() - began) * 1e6, 1))
            old, spare = spare, old
    tell({"system": "CORFU", "workload": "planned", "asked": args.planned, "total_us": took,
          "settings": {"kind": "real", "storage": "disk", "units": 4, "units_of_a_chain": 2, "load_1m": load_1m()}})


def kills(args):
    """Kills under load, in turns, and planned replacements. Whether no read failed."""
    with tempfile.TemporaryDirectory(prefix="atoll-positions-", dir=args.folder) as folder:
        with Cluster(find_binary(args.bin), pathlib.Path(folder) / "cluster", "--nodes", 7) as cluster:
            create(cluster, "1,2,3,4", 5, 2)
            client, first = Client(cluster.node(6).grpc), 300
            timed(first, lambda _: client.append(bytes(PAGE_BYTES)) is not None)
            planned(args, cluster)
            lines = []
            for number_of in range(1, args.rounds + 1):
                for role in ("first unit", "last unit", "sequencer"):
                    lines.append(kill(args, cluster, role, number_of, first))
                    tell(lines[-1])
    units = [line for line in lines if line["victim"] != "sequencer"]
    failed = sum(line["read_errors"] for line in lines)
    tell({"workload": "recovery", "kills": len(lines), "read_errors": failed, "holds": failed == 0,
          "unit_append_gap_median_ms": median(line["append_gap_ms"] for line in units),
          "unit_read_gap_median_ms": median(line["read_gap_ms"] for line in units),
          "sequencer_append_gap_median_ms": median(line["append_gap_ms"] for line in lines if line["victim"] == "sequencer")})
    return failed == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("operations", "kills"))
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--memory-folder", default="/dev/shm", help="a file system in memory [default: /dev/shm]")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured [default: 3]")
    parser.add_argument("--operations", type=int, default=3000, help="appends, and reads, of each round [default: 3000]")
    parser.add_argument("--planned", type=int, default=50, help="planned replacements of a unit [default: 50]")
    parser.add_argument("--before", type=float, default=1.0, help="seconds of load before a kill [default: 1]")
    parser.add_argument("--after", type=float, default=2.5, help="seconds of load after a kill [default: 2.5]")
    args = parser.parse_args()
    sys.exit(0 if {"operations": operations, "kills": kills}[args.what](args) else 1)


if __name__ == "__main__":
    main()
