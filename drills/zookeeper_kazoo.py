#!/usr/bin/env python3
"""kazoo, the ZooKeeper client in Python, unchanged: every check and every recipe.

First against one node (`atoll serve --data`), then against three, then against three of which one is killed again and again
while the log is moved (`atoll chain extend`). `--hosts` runs the checks against any ensemble instead, Apache ZooKeeper too.
The first run installs kazoo into a folder of its own (`ATOLL_DRILL_CACHE`).
"""

import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from alone import Alone
from cluster import Cluster, Drill, Failed, say
from zookeeper_checks import CHECKS, RECIPES, Bench
from zookeeper_disturb import Disturber


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


def body(drill):
    if drill.args.hosts:
        drill.result["checks"] = run_checks(drill.args.hosts, CHECKS, drill.args.hosts)
        return
    with Alone(drill.binary, drill.folder / "one" / "data") as node:
        drill.result["one_node"] = run_checks(node.zookeeper(), CHECKS, "one node")
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        drill.result["three_nodes"] = run_checks(cluster.zookeeper(), CHECKS, "three nodes")
        with Disturber(cluster, drill.random) as disturber:
            rounds, until = 0, time.monotonic() + drill.args.seconds
            while time.monotonic() < until:
                run_checks(cluster.zookeeper(), RECIPES, "three nodes, one killed")
                rounds += 1
        drill.result["rounds_disturbed"] = rounds
        drill.result.update(kills=disturber.kills, moves=disturber.moves)


if __name__ == "__main__":
    Drill(
        "zookeeper-kazoo",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        seconds=(300, 30, "how long the recipes run while nodes are killed"),
    ).run(body)
