#!/usr/bin/env python3
"""kazoo, the Java client, zkCli and Curator beside each other on one cluster, while its nodes are killed and the log is moved.

Each does what its own drill does under kills: kazoo and Curator all their recipes, the Java client a counter, zkCli one session after the
other. Two of three times, the killed node is one that a Java client is connected to. Nothing acknowledged is lost, no client reads an older
state than it has seen, and no session ends. Without a JDK and mvn, kazoo runs alone.
"""

import concurrent.futures

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

import zookeeper_curator
import zookeeper_java
import zookeeper_kazoo
from cluster import Cluster, Drill, NotRun, say
from zookeeper_disturb import Disturber
from zookeeper_maven import compiled, jars


def java_clients(drill):
    """The work of the Java client with zkCli, and of Curator: (function, class path). None where there is no Java."""
    try:
        client = compiled(drill, zookeeper_java.library(), "ZooKeeperCheck.java")
        curator = compiled(drill, jars(f"curator-{zookeeper_curator.VERSION}", *zookeeper_curator.LIBRARIES), "CuratorCheck.java")
    except NotRun as reason:
        say(f"  the Java clients: not run: {reason}")
        drill.result["java"] = "not run"
        return []
    return [(zookeeper_java.counter_and_zkcli, client), (zookeeper_curator.recipes, curator)]


def body(drill):
    of_java = java_clients(drill)
    sessions = []
    with Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster, concurrent.futures.ThreadPoolExecutor() as pool:
        hosts = cluster.zookeeper()
        with Disturber(cluster, drill.random, sessions, drill.kinds) as disturber:
            others = [pool.submit(work, drill, path, hosts, sessions) for work, path in of_java]
            zookeeper_kazoo.recipes(drill, hosts)
            for other in others:
                other.result()
        disturber.report(drill)


if __name__ == "__main__":
    Drill(
        "zookeeper-clients",
        __doc__,
        seconds=(300, 30, "how long the clients work while nodes are killed"),
        swap=("", "", "kinds of Loglet among which the log moves, comma-separated [default: the one that it has]"),
    ).run(body)
