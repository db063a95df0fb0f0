#!/usr/bin/env python3
"""The database over one Loglet and then over another, for two of Delos's figures:

    experiments/delos/database.py upgrade      delos/figure_8: from a Loglet in Apache ZooKeeper to a native one, while tables are used
    experiments/delos/database.py converged    delos/figure_9: LogServers beside the replicas of the database or on nodes of their own

`upgrade` runs three servers of Apache ZooKeeper and three nodes. The database's log is in the ensemble. Clients put and get rows, alternately
and at a fixed rate. Then the log is extended by a native Loglet, and later its old segment is rebuilt on the nodes, so that the ensemble is
needed no more: it is stopped.

`converged` runs three nodes with replicas of the database and three that only store entries. Each node has a disk that does a limited number of
writes per second, by a control group (this needs root). With the log on the first three, its writes and those of the database share a disk;
with the log on the others, they do not. First both are measured at rising rates. Then the rate rises while the log is converged, and some
seconds later the log moves to the other nodes.

Latencies are those that `atoll bench db` reports for slices of a second, counted from when an operation was due. Prints one JSON line per
slice and per change.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "drills"))

from cluster import Cluster, find_binary, need, poll
from served import Serving
from zookeeper_ensemble import Apache
from zookeeper_java import library

TABLE, ROWS, PAYLOAD_BYTES = "figure", 20_000, 500
SLICE_S = 1
KEYS = ("put_p50_ms", "put_p99_ms", "put_max_ms", "get_p50_ms", "get_p99_ms", "get_max_ms", "ops_s", "errors")
# Delos's production load: 425 queries and 150 puts per second.
PRODUCTION_RATE = 575
RATES = (250, 500, 1_000, 2_000, 4_000, 8_000)
LOW_RATE, HIGH_RATE = 250, 4_000
# Of each node, on a disk that several nodes share.
WRITES_PER_SECOND = 600
BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")


def tell(line):
    """Prints a line."""
    print(json.dumps(line), flush=True)


class Timeline:
    """Slices of load one after the other, and changes beside them."""

    def __init__(self, cluster):
        self.cluster, self.began = cluster, time.time()
        self.failed = 0

    def now_s(self):
        """Seconds since the first slice."""
        return round(time.time() - self.began, 3)

    def load(self, rate, seconds, **labels):
        """Slices at a rate."""
        until = time.time() + seconds
        while time.time() < until - SLICE_S / 2:
            at = self.now_s()
            words = ("--table", TABLE, "--rows", ROWS, "--payload", PAYLOAD_BYTES, "--rate", rate, "--seconds", SLICE_S)
            got = self.cluster.json("bench", "db", *words, timeout=SLICE_S + 60)
            self.failed += got["errors"]
            tell({"workload": "slice", "at_s": at, "rate": rate, **labels, **{key: got[key] for key in KEYS}})

    def change(self, what, *command):
        """Runs a command beside the load. Returns what waits for its end."""
        def run():
            began, at = time.time(), self.now_s()
            self.cluster.atoll(*command, timeout=120)
            tell({"workload": "change", "what": what, "at_s": at, "took_ms": round(1e3 * (time.time() - began), 1)})

        thread = threading.Thread(target=run)
        thread.start()
        return thread.join


def fill(cluster):
    """Writes all rows, before anything is measured."""
    words = ("--table", TABLE, "--rows", ROWS, "--payload", PAYLOAD_BYTES, "--fill-from", 0, "--rate", 100, "--seconds", 1)
    cluster.json("bench", "db", *words, timeout=300)


def settings(**more):
    """What a figure tells about its runs."""
    return {"workload": "settings", "rows": ROWS, "payload_bytes": PAYLOAD_BYTES, "cores": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 2), **more}


def upgrade(args, folder):
    """delos/figure_8."""
    with Apache(library(), folder / "ensemble") as ensemble, Cluster(find_binary(args.bin), folder / "nodes", "--nodes", 3) as cluster:
        fill(cluster)
        place = f"connect={ensemble.zookeeper()}"
        cluster.atoll("chain", "extend", "--log", "db", "--loglet", "zookeeper-loglet", "--option", place)
        timeline = Timeline(cluster)
        timeline.load(PRODUCTION_RATE, args.seconds)
        joined = timeline.change("extend", "chain", "extend", "--log", "db", "--loglet", "native", "--servers", "1,2,3", "--sequencer", 1)
        timeline.load(PRODUCTION_RATE, args.seconds)
        joined()
        kinds = lambda: [segment["kind"] for segment in cluster.json("chain", "show", "--log", "db")["segments"]]
        before = kinds()
        need("zookeeper-loglet" in before and before[-1] == "native", f"the segments are {before}")
        joined = timeline.change("modify", "chain", "modify", "--log", "db", "--segment", before.index("zookeeper-loglet"), "--loglet", "native")
        timeline.load(PRODUCTION_RATE, args.seconds / 2)
        joined()
        need("zookeeper-loglet" not in kinds(), f"the segments are {kinds()}")
        at = timeline.now_s()
        ensemble.__exit__(None, None, None)
        tell({"workload": "change", "what": "ensemble stopped", "at_s": at, "took_ms": 0})
        timeline.load(PRODUCTION_RATE, args.seconds / 2)
        tell(settings(rate=PRODUCTION_RATE, nodes=3, failed=timeline.failed))
        return timeline.failed


@contextlib.contextmanager
def limited(cluster, folder, writes_per_second):
    """Gives the disk of each node a limit while the block runs."""
    device = os.stat(folder).st_dev
    line = f"{os.major(device)}:{os.minor(device)} {writes_per_second}"
    groups = []
    try:
        for node in cluster.nodes():
            group = BLKIO / f"atoll-figure-{node.id}"
            group.mkdir(exist_ok=True)
            groups.append(group)
            (group / "blkio.throttle.write_iops_device").write_text(line)
            (group / "cgroup.procs").write_text(str(node.pid))
        yield
    finally:
        for group in groups:
            for pid in (group / "cgroup.procs").read_text().split():
                (BLKIO / "cgroup.procs").write_text(pid)
            group.rmdir()


def only_log(cluster, numbers):
    """Makes nodes, which have not started yet, such that only store entries."""
    roles = 'roles = ["log"]\n'
    for node in cluster.nodes():
        text = node.config.read_text()
        for number in numbers:
            text = text.replace(f"[[peer]]\nid = {number}\n", f"[[peer]]\nid = {number}\n{roles}")
        if node.id in numbers:
            text = text.replace('data = "data"\n', f'data = "data"\n{roles}', 1)
        node.config.write_text(text)


def converged(args, folder):
    """delos/figure_9."""
    cluster = Serving(find_binary(args.bin), folder / "nodes", 6)
    only_log(cluster, (4, 5, 6))
    with cluster:
        place = lambda servers: ("chain", "extend", "--log", "db", "--loglet", "native", "--servers", servers, "--sequencer", 1)
        modes = {"converged": place("1,2,3"), "disaggregated": place("4,5,6")}
        cluster.atoll(*modes["converged"])
        fill(cluster)
        timeline = Timeline(cluster)
        with limited(cluster, folder, args.writes):
            for rate in args.rates:
                for mode, command in modes.items():
                    cluster.atoll(*command)
                    # The first seconds after a change would count what piled up before it.
                    poll("the database answers", 60, lambda: cluster.atoll("log", "list", check=False).returncode == 0)
                    timeline.load(rate, args.seconds, mode=mode, part="rates")
            cluster.atoll(*modes["converged"])
            timeline.load(LOW_RATE, args.seconds * 2, part="shift")
            at = timeline.now_s()
            tell({"workload": "change", "what": "rate", "at_s": at, "took_ms": 0})
            timeline.load(args.high, args.seconds * 3, part="shift")
            joined = timeline.change("disaggregate", *modes["disaggregated"])
            timeline.load(args.high, args.seconds * 4, part="shift")
            joined()
        tell(settings(writes_per_second=args.writes, nodes=6, low=LOW_RATE, high=args.high, failed=timeline.failed))
        return timeline.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["upgrade", "converged"])
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--seconds", type=float, help="of each part of the timeline [default: 20 for upgrade, 4 for converged]")
    parser.add_argument("--writes", type=int, default=WRITES_PER_SECOND, help="that the disk of each node does in a second")
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="of operations per second")
    parser.add_argument("--high", type=int, default=HIGH_RATE, help="the rate after the load has risen")
    args = parser.parse_args()
    args.seconds = args.seconds or {"upgrade": 20.0, "converged": 4.0}[args.figure]
    with tempfile.TemporaryDirectory(prefix="atoll-figure-", dir=args.folder) as folder:
        failed = {"upgrade": upgrade, "converged": converged}[args.figure](args, pathlib.Path(folder))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
