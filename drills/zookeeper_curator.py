#!/usr/bin/env python3
"""Apache Curator's recipes, unmodified, from Maven Central: leaders, locks, barriers, counters, caches, discovery, transactions.

They run first against one node and then against three. Then (not with `--quick`; zookeeper_clients.py does it there) they run repeatedly
against three nodes, while one of these is killed, usually the one that a client is connected to, and the log is moved. Every recipe does
what it promises, and no session is lost. `--hosts` runs the checks against any ensemble instead; `--control 1` does everything with three
Apache ZooKeeper servers. Needs a JDK and mvn.
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


def recipes(drill, path, hosts, sessions):
    """All recipes again and again for the drill's time, while nodes are killed. Adds the session of the first client to `sessions`."""
    line = command(path, "CuratorCheck", hosts, drill.args.seconds)
    client = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    atexit.register(end, client)
    # The first line of its output names that session.
    sessions += [int(word, 16) for word in client.stdout.readline().split()[1:]]
    told, errors = client.communicate(timeout=drill.args.seconds + 600)
    need(client.returncode == 0, f"under kills: {errors[-2500:]}")
    say(f"  Curator under kills: {told.strip()}")
    drill.result.update(curator=told.strip())


def under_kills(drill, path, ensemble):
    """All recipes while nodes are killed: mostly the one that the first client is connected to."""
    sessions = []
    with Disturber(ensemble, drill.random, sessions) as disturber:
        recipes(drill, path, ensemble.zookeeper(), sessions)
    disturber.report(drill)


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
        check(path, ensemble.zookeeper(), "three nodes")
        if drill.args.seconds:
            under_kills(drill, path, ensemble)


if __name__ == "__main__":
    Drill(
        "zookeeper-curator",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        control=(0, 0, "1: three servers of Apache ZooKeeper instead of Atoll"),
        seconds=(240, 0, "how long the recipes run while nodes are killed; 0: not at all"),
    ).run(body)
