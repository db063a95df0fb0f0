#!/usr/bin/env python3
"""kazoo, the ZooKeeper client in Python, unchanged: every check and every recipe.

First against one node (`atoll serve --data`), then against three, then against three of which one is killed again and again
while the log is moved (`atoll chain extend`). `--hosts` runs the checks against any ensemble instead, Apache ZooKeeper too.
The first run installs kazoo into a folder of its own (`ATOLL_DRILL_CACHE`).
"""

import os
import pathlib
import subprocess
import sys
import threading
import time
import venv

KAZOO = "2.11.0"


def in_venv():
    """Goes on in an interpreter that has kazoo."""
    cache = pathlib.Path(os.environ.get("ATOLL_DRILL_CACHE") or pathlib.Path.home() / ".cache" / "atoll-drills")
    folder = cache / f"kazoo-{KAZOO}"
    python = folder / "bin" / "python3"
    done = folder / "installed"
    if not done.is_file():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"kazoo=={KAZOO}"], check=True)
        done.touch()
    os.execv(python, [str(python), *sys.argv])


try:
    import kazoo  # noqa: F401
except ImportError:
    in_venv()

from cluster import Cluster, Drill, Failed, say
from zookeeper_checks import CHECKS, RECIPES, Bench


def run_checks(hosts, checks, words):
    """Runs checks one after the other, each with clients of its own."""
    failed = []
    for check in checks:
        began = time.monotonic()
        bench = None
        try:
            bench = Bench(hosts)
            check(bench)
            say(f"  {words}: {check.__name__} ({time.monotonic() - began:.1f} s)")
        except Exception as error:  # All checks run, and all that fail are told.
            failed.append(f"{words}: {check.__name__}: {type(error).__name__}: {error}")
            say("  FAILS", failed[-1])
        finally:
            if bench:
                bench.close()
    if failed:
        raise Failed("; ".join(failed))
    return len(checks)


class Disturber:
    """Kills a node, waits until it is back, moves the log, and again."""

    def __init__(self, cluster, random):
        self.cluster, self.random = cluster, random
        self.kills = self.moves = 0
        self.over = threading.Event()
        self.failed = None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        try:
            while not self.over.wait(self.random.uniform(1.0, 3.0)):
                victim = self.random.choice(self.cluster.ids())
                pids, _ = self.cluster.signal([victim])
                self.kills += 1
                self.over.wait(0.5)
                self.cluster.atoll("chain", "extend", "--log", LOG, check=False)
                self.moves += 1
                self.cluster.wait_back(pids)
                self.over.wait(3.0)
        except Exception as error:  # Told at the end, on the drill's own thread.
            self.failed = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.failed:
            raise self.failed


# The log that the database is on.
LOG = "main"


def body(drill):
    if drill.args.hosts:
        drill.result["checks"] = run_checks(drill.args.hosts, CHECKS, drill.args.hosts)
        return
    with Cluster(drill.binary, drill.folder / "one", "--nodes", 1) as cluster:
        drill.result["one_node"] = run_checks(cluster.zookeeper(), CHECKS, "one node")
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        drill.result["three_nodes"] = run_checks(cluster.zookeeper(), CHECKS, "three nodes")
        with Disturber(cluster, drill.random) as disturber:
            for _ in range(drill.args.rounds):
                drill.result["disturbed"] = run_checks(cluster.zookeeper(), RECIPES, "three nodes, one killed")
        drill.result.update(kills=disturber.kills, moves=disturber.moves)


if __name__ == "__main__":
    Drill(
        "zookeeper-kazoo",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        rounds=(10, 1, "how often the recipes run while nodes are killed"),
    ).run(body)
