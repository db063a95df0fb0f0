#!/usr/bin/env python3
"""A log moves from three nodes into ZooKeeper and back, again and again, while it is written.

The ensemble is behind Atoll's own ZooKeeper door, on another cluster of three nodes; with `--apache 1`, it is three servers of Apache
ZooKeeper. Two clients on different nodes keep records in flight. In every second stay in ZooKeeper, a server of the ensemble is killed and
comes back. A plan with servers that do not answer is refused before anything is sealed. No append fails, and none is lost or doubled. Each
pause is the longest gap between two acknowledgements from the start of a command to 1 s after its return.
"""

import time

from cluster import Cluster, Drill, need, poll, say
from load import Load
from outside import STAY_S, finish, move, refused, report
from zookeeper_disturb import takes_writes
from zookeeper_ensemble import Apache
from zookeeper_java import library

LOG = "moves"
KIND = "zookeeper-loglet"


def ensemble_of(drill):
    """The ensemble, not started yet."""
    if drill.args.apache:
        return Apache(library(), drill.folder / "apache")
    return Cluster(drill.binary, drill.folder / "ensemble", "--nodes", 3)


def lose_a_server(ensemble, number):
    """Kills a server of the ensemble, and waits until it is back."""
    pids, _ = ensemble.signal([number])
    need(len(pids) == 1, f"server {number} of the ensemble did not run")
    ensemble.wait_back(pids)


def body(drill):
    args = drill.args
    with ensemble_of(drill) as ensemble, Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster:
        poll("the ensemble takes writes", 60, lambda: all(map(takes_writes, ensemble.zookeeper().split(","))))
        cluster.create_log(LOG)
        refused(cluster, LOG, KIND, (["connect=127.0.0.1:1"], ["connect=nowhere"], ["connect=127.0.0.1:1", "root=/a/../b"], []))
        grpc = [node.grpc for node in cluster.nodes()]
        loads = [Load(cluster, drill.folder, LOG, name=name, depth=16, connect=grpc[at]).start() for at, name in enumerate("ab")]
        time.sleep(STAY_S)
        windows = {KIND: [], "native": []}
        for number in range(args.moves):
            windows[KIND].append(move(cluster, LOG, KIND, f"connect={ensemble.zookeeper()}", f"root=/drill-{number % 2}"))
            if number % 2:
                lose_a_server(ensemble, ensemble.ids()[number // 2 % 3])
            windows["native"].append(move(cluster, LOG, "native"))
        acks, records = finish(cluster, loads, LOG, {KIND, "native"})
    report(drill, windows, acks)
    drill.result["records"] = records
    say(f"{records} records acknowledged; none failed, lost or doubled")


if __name__ == "__main__":
    Drill(
        "zookeeper-loglet",
        __doc__,
        apache=(0, 0, "1: Apache ZooKeeper instead of Atoll's own door; needs a JDK and mvn"),
        moves=(20, 2, "how often the log moves into ZooKeeper and back"),
    ).run(body)
