#!/usr/bin/env python3
"""Apache Curator's recipes, unmodified, from Maven Central: leaders, locks, barriers, counters, caches, discovery, transactions.

They run first against one node and then (not with `--quick`) against three. Then they run repeatedly against three nodes, while one of
these is killed, usually the one that a client is connected to, and the log is moved. Every recipe does what it promises, and no session is
lost. `--hosts` runs the checks against any ensemble instead; `--control 1` does everything with three Apache ZooKeeper servers. Needs a JDK
and mvn.
"""

import subprocess

from cluster import Cluster, Drill, atexit, end, need, say
from zookeeper_ensemble import Apache
from zookeeper_disturb import Disturber
from zookeeper_maven import command, compiled, jars, java

VERSION = "5.9.0"
LIBRARIES = [
    f"org.apache.curator:curator-x-discovery:{VERSION}", "org.apache.zookeeper:zookeeper:3.9.5", "org.xerial.snappy:snappy-java:1.1.10.7",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
]


def check(path, hosts, words):
    """All recipes once."""
    done = java(path, "CuratorCheck", hosts)
    need(done.returncode == 0, f"{words}: {done.stderr[-2500:]}")
    say(f"  {words}: {done.stdout.splitlines()[-1]}")


def under_kills(drill, path, ensemble):
    """All recipes again and again while nodes are killed."""
    found = []
    with Disturber(ensemble, drill.random, session=lambda: found[0] if found else None) as disturber:
        client = subprocess.Popen(command(path, "CuratorCheck", ensemble.zookeeper(), drill.args.seconds), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(end, client)
        # It says first which session is its own.
        found += [int(word, 16) for word in client.stdout.readline().split()[1:]]
        told, errors = client.communicate(timeout=drill.args.seconds + 600)
    need(client.returncode == 0, f"under kills: {errors[-2500:]}")
    say(f"  {disturber.kills} kills, {disturber.hits} of them of the first client's node, {disturber.moves} moves: {told.strip()}")
    drill.result.update(kills=disturber.kills, moves=disturber.moves, told=told.strip())


def body(drill):
    path = compiled(drill, jars(f"curator-{VERSION}", *LIBRARIES), "CuratorCheck.java")
    if drill.args.hosts:
        check(path, drill.args.hosts, drill.args.hosts)
        return
    if drill.args.control:
        ensemble = Apache(path, drill.folder / "control")
    else:
        with Cluster(drill.binary, drill.folder / "one", "--nodes", 1) as cluster:
            check(path, cluster.zookeeper(), "one node")
        ensemble = Cluster(drill.binary, drill.folder / "three", "--nodes", 3)
    with ensemble:
        if not drill.args.quick:
            check(path, ensemble.zookeeper(), "three nodes")
        under_kills(drill, path, ensemble)


if __name__ == "__main__":
    Drill(
        "zookeeper-curator",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        control=(0, 0, "1: three servers of Apache ZooKeeper instead of Atoll"),
        seconds=(240, 10, "how long the recipes run while nodes are killed"),
    ).run(body)
