#!/usr/bin/env python3
"""Apache ZooKeeper's own Java client and its command line, zkCli, unmodified, from Maven Central.

Both run first against one node (`atoll serve --data`), then against three, and then (not with `--quick`; zookeeper_clients.py does it there)
against three while one of these, usually the client's own, is killed again and again and the log is moved. Every acknowledged write is
there, no client reads an older state than it has seen, and no session is lost. `--hosts` runs the checks against any ensemble instead. Needs
a JDK and mvn.
"""

import subprocess
import time

from alone import Alone
from cluster import Cluster, Drill, atexit, end, need, say
from zookeeper_disturb import Disturber
from zookeeper_maven import command, compiled, jars, java

VERSION = "3.9.5"
LIBRARIES = [
    f"org.apache.zookeeper:zookeeper:{VERSION}", "commons-cli:commons-cli:1.5.0", "org.xerial.snappy:snappy-java:1.1.10.7",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
]
# What zkCli prints for a command whose connection was lost. It repeats none. Most commands fail with an exception that says so. `sync` and
# `deleteall` are asynchronous: one prints the number of its result, the other only that a deletion failed.
LOST = ("ConnectionLoss", "Sync has failed. rc=-4", "Failed to delete some node(s) in the subtree!")
# What is typed into zkCli, and a word of each answer.
TYPED = [
    ("create /cli hello", "Created /cli"),
    ("get /cli", "hello"),
    ("set /cli again", ""),
    ("get -s /cli", "dataVersion = 1"),
    ("create -e /cli/e", "Created /cli/e"),
    ("create -s /cli/s- x", "Created /cli/s-0000000001"),
    ("ls /cli", "[e, s-0000000001]"),
    ("stat /cli", "numChildren = 2"),
    ("getAcl /cli", "'world,'anyone"),
    ("sync /cli", "Sync is OK"),
    ("getEphemerals", "/cli/e"),
    ("getAllChildrenNumber /cli", "2"),
    ("whoami", "ip: "),
    ("delete /none", "Node does not exist: /none"),
    ("reconfig -add 4=host:1:2;3", "Reconfig is disabled"),
    ("config", ":participant;127.0.0.1:"),
    ("setquota -n 2 /cli", "the count quota you create is less than the existing count:3"),
    ("setquota -B 1000 /cli", ""),
    ("listquota /cli", "Output quota for /cli count=2,bytes=-1=;byteHardLimit=1000;countHardLimit=-1"),
    ("create /cli/q 12345", "Output stat for /cli count=3,bytes=6"),
    ("listquota /cli", "Output stat for /cli count=4,bytes=11"),
    ("delquota -n /cli", ""),
    ("listquota /cli", "Output quota for /cli count=-1,bytes=-1=;byteHardLimit=1000;countHardLimit=-1"),
    ("delquota /cli", ""),
    ("listquota /cli", "quota for /cli does not exist."),
    ("ls -R /zookeeper", ""),
    ("deleteall /cli", ""),
    ("ls /cli", "Node does not exist: /cli"),
]


def library():
    """The class path of ZooKeeper's client and server."""
    return jars(f"zookeeper-{VERSION}", *LIBRARIES)


def zkcli(path, hosts, top):
    """A session of zkCli below `top`: the lines that were not answered as they should be, and what it said."""
    typed = [(line.replace("/cli", top), answer.replace("/cli", top)) for line, answer in TYPED]
    lines = "".join(line + "\n" for line, _ in typed) + "quit\n"
    done = java(path, "org.apache.zookeeper.ZooKeeperMain", "-server", hosts, "-timeout", "10000", input=lines)
    told = done.stdout + done.stderr
    return [line for line, answer in typed if answer not in told], told


def counter_and_zkcli(drill, path, hosts, sessions):
    """The client's counter, and sessions of zkCli beside it, for the drill's time while nodes are killed. Adds the client's session to
    `sessions`."""
    whole, cut = 0, 0
    line = command(path, "ZooKeeperCheck", hosts, drill.args.seconds)
    client = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    atexit.register(end, client)
    # The first line of its output names its session.
    sessions += [int(word, 16) for word in client.stdout.readline().split()[1:]]
    until = time.monotonic() + drill.args.seconds
    while time.monotonic() < until and client.poll() is None:
        missing, told = zkcli(path, hosts, f"/cli-{whole + cut}")
        need(not missing or any(words in told for words in LOST), f"under kills: zkCli does not answer to {missing[:3]}: {told[-1500:]}")
        whole, cut = whole + (not missing), cut + bool(missing)
    told, errors = client.communicate(timeout=300)
    need(client.returncode == 0, f"under kills: {told[-500:]} {errors[-1500:]}")
    need(whole > 0, "no session of zkCli reached its end")
    say(f"  the Java client under kills: {told.strip()}; {whole + cut} sessions of zkCli, {cut} of which lost an answer")
    drill.result.update(zkcli_sessions=whole + cut, zkcli_cut=cut)


def under_kills(drill, path, ensemble):
    """The client's counter and zkCli while nodes are killed: mostly the one that the client is connected to."""
    sessions = []
    with Disturber(ensemble, drill.random, sessions) as disturber:
        counter_and_zkcli(drill, path, ensemble.zookeeper(), sessions)
    disturber.report(drill)


def check(path, hosts, words):
    """The Java client's checks, and a session of zkCli."""
    done = java(path, "ZooKeeperCheck", hosts)
    need(done.returncode == 0, f"{words}: {done.stderr[-1500:]}")
    say(f"  {words}: all checks of the Java client hold")
    missing, told = zkcli(path, hosts, "/cli")
    need(not missing, f"{words}: zkCli does not answer to {missing[:3]}: {told[-1500:]}")
    say(f"  {words}: zkCli, {len(TYPED)} commands")


def body(drill):
    path = compiled(drill, library(), "ZooKeeperCheck.java")
    if drill.args.hosts:
        check(path, drill.args.hosts, drill.args.hosts)
        return
    with Alone(drill.binary, drill.folder / "one" / "data") as node:
        check(path, node.zookeeper(), "one node")
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        check(path, cluster.zookeeper(), "three nodes")
        if drill.args.seconds:
            under_kills(drill, path, cluster)


if __name__ == "__main__":
    Drill(
        "zookeeper-java",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        seconds=(120, 0, "how long the client works while nodes are killed; 0: not at all"),
    ).run(body)
