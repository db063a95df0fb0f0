#!/usr/bin/env python3
"""kazoo, the Python client of ZooKeeper, unmodified: every check and every recipe.

They run first against one node (`atoll serve --data`), then against three, and then (not with `--quick`; zookeeper_clients.py does it there)
against three while one of these is killed again and again and the log is moved (`atoll chain extend`). `--hosts` runs the checks against any
ensemble instead, including Apache ZooKeeper. The first run installs kazoo into a separate folder (`ATOLL_DRILL_CACHE`).
"""

import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from kazoo.exceptions import ConnectionLoss

from alone import Alone
from cluster import Cluster, Drill, Failed, say
from zookeeper_checks import CHECKS, RECIPES, Bench
from zookeeper_disturb import Disturber


def attempt(hosts, check):
    """A check with clients of its own."""
    bench = Bench(hosts)
    try:
        check(bench)
    finally:
        bench.close()


def run_checks(hosts, checks, words, tries=1):
    """Runs checks one after the other; how many had to begin anew.

    With more tries than one a check that ends because an answer was lost begins anew: kazoo does not repeat all that a recipe does. What
    does not hold, ends it.
    """
    failed, anew = [], 0
    for check in checks:
        began = time.monotonic()
        for left in reversed(range(tries)):
            try:
                attempt(hosts, check)
                say(f"  {words}: {check.__name__} ({time.monotonic() - began:.1f} s)")
                break
            except Exception as error:  # All checks run, and all that fail are told.
                if left and isinstance(error, ConnectionLoss):
                    say(f"  {words}: {check.__name__}: an answer was lost, it begins anew")
                    anew += 1
                    continue
                failed.append(f"{words}: {check.__name__}: {type(error).__name__}: {error}")
                say("  FAILS", failed[-1])
                break
    if failed:
        raise Failed("; ".join(failed))
    return anew


def recipes(drill, hosts):
    """All recipes again and again for the drill's time, while nodes are killed."""
    rounds, anew, until = 0, 0, time.monotonic() + drill.args.seconds
    while time.monotonic() < until:
        anew += run_checks(hosts, RECIPES, "kazoo under kills", tries=4)
        rounds += 1
    drill.result.update(rounds_disturbed=rounds, begun_anew=anew, recipes_disturbed=len(RECIPES))


def body(drill):
    if drill.args.hosts:
        run_checks(drill.args.hosts, CHECKS, drill.args.hosts)
        return
    drill.result.update(checks=len(CHECKS))
    with Alone(drill.binary, drill.folder / "one" / "data") as node:
        run_checks(node.zookeeper(), CHECKS, "one node")
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        run_checks(cluster.zookeeper(), CHECKS, "three nodes")
        if drill.args.seconds:
            with Disturber(cluster, drill.random) as disturber:
                recipes(drill, cluster.zookeeper())
            disturber.report(drill)


if __name__ == "__main__":
    Drill(
        "zookeeper-kazoo",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        seconds=(300, 0, "how long the recipes run while nodes are killed; 0: not at all"),
    ).run(body)
