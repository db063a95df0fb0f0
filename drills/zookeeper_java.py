#!/usr/bin/env python3
"""Apache ZooKeeper's own Java client and its command line, zkCli, unchanged, from Maven Central.

First against one node (`atoll serve --data`), then against three, then against three of which one is killed again and again while the log is moved:
every acknowledged write is there, no client reads an older state than it has seen, no session is lost. `--hosts` runs the checks
against any ensemble instead. Needs a JDK and mvn.
"""

import os
import pathlib
import shutil
import subprocess

from alone import Alone
from cluster import Cluster, Drill, NotRun, need, say
from zookeeper_disturb import Disturber

VERSION = "3.9.5"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>drill</groupId><artifactId>drill</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>%s</version></dependency>
<dependency><groupId>commons-cli</groupId><artifactId>commons-cli</artifactId><version>1.5.0</version></dependency>
<dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.7</version></dependency>
<dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version></dependency>
</dependencies></project>
"""
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


def jars():
    """The class path, fetched once."""
    if not all(shutil.which(tool) for tool in ("java", "javac", "mvn")):
        raise NotRun("java, javac and mvn are needed")
    cache = pathlib.Path(os.environ.get("ATOLL_DRILL_CACHE") or pathlib.Path.home() / ".cache" / "atoll-drills")
    folder = cache / f"zookeeper-{VERSION}"
    if not (folder / "fetched").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM % VERSION)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=folder, check=True)
        (folder / "fetched").touch()
    return f"{folder}/lib/*"


def java(path, name, *args, **kwargs):
    """Runs a class to its end."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = ["java", "-Xmx256m", quiet, "-cp", path, name, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, **kwargs)


def check(path, hosts, words):
    """The Java client's checks, and a session of zkCli."""
    done = java(path, "ZooKeeperCheck", hosts)
    need(done.returncode == 0, f"{words}: {done.stderr[-1500:]}")
    say(f"  {words}: all checks of the Java client hold")
    typed = "".join(line + "\n" for line, _ in TYPED) + "quit\n"
    done = java(path, "org.apache.zookeeper.ZooKeeperMain", "-server", hosts, "-timeout", "10000", input=typed)
    told = done.stdout + done.stderr
    for line, answer in TYPED:
        need(answer in told, f"{words}: zkCli does not answer {answer!r} to {line!r}: {told[-1500:]}")
    say(f"  {words}: zkCli, {len(TYPED)} commands")


def body(drill):
    lib = jars()
    classes = drill.folder / "classes"
    source = pathlib.Path(__file__).resolve().parent / "ZooKeeperCheck.java"
    subprocess.run(["javac", "-cp", lib, "-d", classes, source], check=True)
    path = f"{classes}:{lib}"
    if drill.args.hosts:
        check(path, drill.args.hosts, drill.args.hosts)
        return
    with Alone(drill.binary, drill.folder / "one" / "data") as node:
        check(path, node.zookeeper(), "one node")
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        check(path, cluster.zookeeper(), "three nodes")
        with Disturber(cluster, drill.random) as disturber:
            done = java(path, "ZooKeeperCheck", cluster.zookeeper(), str(drill.args.seconds))
        need(done.returncode == 0, f"under kills: {done.stdout[-500:]} {done.stderr[-1500:]}")
        told = [line for line in done.stdout.splitlines() if line.startswith("counted")]
        say(f"  {disturber.kills} kills, {disturber.moves} moves: {' '.join(told)}")
        drill.result.update(kills=disturber.kills, moves=disturber.moves)


if __name__ == "__main__":
    Drill(
        "zookeeper-java",
        __doc__,
        hosts=("", "", "check this ensemble alone, HOST:PORT,..."),
        seconds=(120, 20, "how long the client works while nodes are killed"),
    ).run(body)
