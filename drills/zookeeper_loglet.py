#!/usr/bin/env python3
"""A log moves from three nodes into ZooKeeper and back, again and again, while it is written.

The ensemble is behind Atoll's own ZooKeeper door, on another cluster of three nodes; with `--apache 1`, it is three servers of Apache
ZooKeeper. Two clients on different nodes keep records in flight. In every second stay in ZooKeeper, a server of the ensemble is killed and
comes back. A plan with servers that do not answer is refused before anything is sealed. No append fails, and none is lost or doubled. Each
pause is the longest gap between two acknowledgements from the start of a command to 1 s after its return.
"""

import time

from cluster import Cluster, Drill, need, poll, quantile, say
from load import Load, verify
from zookeeper_disturb import word
from zookeeper_ensemble import Apache
from zookeeper_java import library

LOG = "moves"
KIND = "zookeeper-loglet"
# How long a log stays where it is between two moves, in seconds.
STAY_S = 1.0


def ensemble_of(drill):
    """The ensemble, not started yet."""
    if drill.args.apache:
        return Apache(library(), drill.folder / "apache")
    return Cluster(drill.binary, drill.folder / "ensemble", "--nodes", 3)


def takes_writes(address):
    """Whether a server of the ensemble serves, and not only reads."""
    try:
        return word(address, "isro") == "rw"
    except OSError:
        return False


def move(cluster, kind, *options):
    """Extends the log to a kind of Loglet; (start, return + 1 s) in seconds since 1970."""
    began = time.time()
    words = [word for option in options for word in ("--option", option)]
    cluster.atoll("chain", "extend", "--log", LOG, "--loglet", kind, *words)
    now = cluster.active(LOG)["kind"]
    need(now == kind, f"after the extend to {kind} the active segment is {now}")
    end = time.time() + STAY_S
    time.sleep(STAY_S)
    return began, end


def lose_a_server(ensemble, number):
    """Kills a server of the ensemble, and waits until it is back."""
    pids, _ = ensemble.signal([number])
    need(len(pids) == 1, f"server {number} of the ensemble did not run")
    ensemble.wait_back(pids)


def refused(cluster):
    """A plan that cannot work changes nothing."""
    before = cluster.chain(LOG)
    for options in (["connect=127.0.0.1:1"], ["connect=nowhere"], ["connect=127.0.0.1:1", "root=/a/../b"], []):
        words = [word for option in options for word in ("--option", option)]
        tried = cluster.atoll("chain", "extend", "--log", LOG, "--loglet", KIND, *words, check=False)
        need(tried.returncode != 0, f"{options} was not refused")
    need(cluster.chain(LOG)["version"] == before["version"], "a refused plan has changed the chain")


def body(drill):
    args = drill.args
    with ensemble_of(drill) as ensemble, Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster:
        poll("the ensemble takes writes", 60, lambda: all(map(takes_writes, ensemble.zookeeper().split(","))))
        cluster.create_log(LOG)
        refused(cluster)
        grpc = [node.grpc for node in cluster.nodes()]
        loads = [Load(cluster, drill.folder, LOG, name=name, depth=16, connect=grpc[at]).start() for at, name in enumerate("ab")]
        time.sleep(STAY_S)
        windows = {KIND: [], "native": []}
        for number in range(args.moves):
            windows[KIND].append(move(cluster, KIND, f"connect={ensemble.zookeeper()}", f"root=/drill-{number % 2}"))
            if number % 2:
                lose_a_server(ensemble, ensemble.ids()[number // 2 % 3])
            windows["native"].append(move(cluster, "native"))
        done = [load.finish() for load in loads]
        acks = [load.acks() for load in loads]
        count = verify(cluster, loads, LOG)
        need(count == sum(done), f"{sum(done)} acknowledged, {count} read")
        kinds = {segment["kind"] for segment in cluster.chain(LOG)["segments"]}
        need(kinds <= {KIND, "native"}, f"the chain has {sorted(kinds)}")
    for kind, all_of_kind in windows.items():
        pauses = [1e3 * max(one.longest_gap(*window) for one in acks) for window in all_of_kind]
        drill.result[kind] = {"moves": len(pauses), "p50_ms": round(quantile(pauses, 0.5), 1), "max_ms": round(max(pauses), 1)}
        say(f"to {kind}: {len(pauses)} moves, pause p50 {quantile(pauses, 0.5):.1f} ms, most {max(pauses):.1f} ms")
    drill.result["records"] = sum(done)
    say(f"{sum(done)} records acknowledged; none failed, lost or doubled")


if __name__ == "__main__":
    Drill(
        "zookeeper-loglet",
        __doc__,
        apache=(0, 0, "1: Apache ZooKeeper instead of Atoll's own door; needs a JDK and mvn"),
        moves=(20, 2, "how often the log moves into ZooKeeper and back"),
    ).run(body)
