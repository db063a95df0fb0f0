#!/usr/bin/env python3
"""A rolling upgrade of three nodes to a program that is one feature level ahead, under kazoo and log load.

The nodes change to the new program one after the other, versions stay mixed for a while, the nodes return to the old program, and then
change to the new one again. While one node is left behind, a switch of the level is refused with an error that names the node. Then the
level is raised. Throughout, every append and every write of a znode is acknowledged or retried, no acknowledged write is lost, no replica
halts, and replicas that are compared have equal hashes. Afterwards the old program is refused: on a node that was up at the switch, its own
disk refuses it at the start; on a node that was down, the cluster refuses it when it joins. Both errors name the cluster's level and the
level that the program reads. With `--first-bin`, a program from before feature levels, the cluster starts with that program and changes
from it to the old one.
"""

import atexit
import os
import pathlib
import shlex
import signal
import subprocess
import threading
import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from kazoo.exceptions import KazooException

from cluster import ROOT, Cluster, Drill, Node, end, need, poll, say, table
from load import Load, verify
from ports import free_ports
from zookeeper_checks import Bench

LOG = "upgrade"
CURRENT, NEXT = 2, 3


def test_build():
    """A test build of this tree: from ATOLL_TEST_BIN, or as cargo builds it."""
    if given := os.environ.get("ATOLL_TEST_BIN"):
        return pathlib.Path(given).resolve()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "testing"
    command = ["cargo", "build", "--quiet", "-p", "atoll", "--features", "testing", "--target-dir", target]
    subprocess.run(command, cwd=ROOT, check=True)
    return target / "debug/atoll"


def next_program(drill):
    """The program one level ahead: as given, or a test build that is told to be ahead."""
    if drill.args.next_bin:
        return pathlib.Path(drill.args.next_bin).resolve()
    program = drill.folder / "atoll-next-level"
    program.write_text(f'#!/bin/sh\nATOLL_NEXT_LEVEL=1 exec {shlex.quote(str(test_build()))} "$@"\n')
    program.chmod(0o755)
    return program


class Fleet(Cluster):
    """Nodes that are started by hand, each with a program of its own."""

    def __init__(self, verbs, program, folder, nodes=3):
        super().__init__(verbs, folder)
        self.folder.mkdir(parents=True)
        self.programs = dict.fromkeys(range(1, nodes + 1), program)
        self.processes = dict.fromkeys(self.programs)
        # The highest level that each program reads.
        self.reads = {}
        ports = iter(free_ports(3 * nodes))
        self.ports = {number: (next(ports), next(ports), next(ports)) for number in self.programs}
        for number in self.programs:
            self._configure(number)

    def _configure(self, number):
        grpc, peer, zookeeper = self.ports[number]
        lines = ["[node]", f"id = {number}", 'cluster = "reef"', f'data = "n{number}"', "[listen]"]
        lines += [f'grpc = "127.0.0.1:{grpc}"', f'peer = "127.0.0.1:{peer}"', 'metrics = ""', f'zookeeper = "127.0.0.1:{zookeeper}"']
        for other, (grpc, peer, _) in self.ports.items():
            lines += ["[[peer]]", f"id = {other}", f'address = "127.0.0.1:{peer}"', f'grpc = "127.0.0.1:{grpc}"']
        (self.folder / f"n{number}.toml").write_text("\n".join(lines) + "\n")

    def start(self, within=60):
        atexit.register(self._kill)
        for number in self.programs:
            self.run(number)
        poll("the cluster answers", within, lambda: self.atoll("log", "list", check=False).returncode == 0, every=0.1)

    def run(self, number, program=None):
        """Starts a node, with another program if one is given."""
        self.programs[number] = program or self.programs[number]
        with open(self.folder / f"n{number}.log", "ab") as log:
            command = [self.programs[number], "serve", "--config", self.folder / f"n{number}.toml"]
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def down(self, number):
        """Stops a node in good order."""
        self.processes[number].send_signal(signal.SIGTERM)
        self.processes[number].wait(30)

    def nodes(self):
        rows = []
        for number, (grpc, peer, zookeeper) in self.ports.items():
            process = self.processes[number]
            up = process and process.poll() is None
            at = {"grpc": f"127.0.0.1:{grpc}", "peer": f"127.0.0.1:{peer}", "zookeeper": f"127.0.0.1:{zookeeper}"}
            files = {"data": self.folder / f"n{number}", "log": self.folder / f"n{number}.log", "config": self.folder / f"n{number}.toml"}
            rows.append(Node({"id": number, "pid": process.pid if up else None, "metrics": "", **at, **files}))
        return rows

    def words(self, number):
        """The end of a node's own log."""
        return (self.folder / f"n{number}.log").read_text(errors="replace")[-4000:]

    def move(self, number, program):
        """One node to another program: stopped in good order, started, waited for.

        A restart is shorter than the silence after which the others miss a node, so their status cannot tell when it is back. What it
        announces that it reads can.
        """
        self.down(number)
        self.run(number, program)
        if program in self.reads:
            poll(f"node {number} announces its program", 60, lambda: self.highest(number) == self.reads[program], every=0.1)
        self.wait_whole()

    def highest(self, number):
        """The highest level that a node has announced to read."""
        return next((m["highest"] for m in self.level()["members"] if m["node"] == number and m["announced"]), None)

    def wait_whole(self):
        """Until all nodes are up and all logs healthy."""
        def whole():
            for number, process in self.processes.items():
                need(process.poll() is None, f"node {number} ended by itself: {self.words(number)}")
            status = self.status()
            return status["healthy"] and all(n["state"] == "up" for n in status["nodes"])

        poll("all nodes are up and the logs healthy", 60, whole, every=0.1)

    def level(self):
        """`atoll cluster level`."""
        return self.json("cluster", "level")

    def stop(self):
        for process in self.processes.values():
            if process and process.poll() is None:
                process.terminate()
        for process in filter(None, self.processes.values()):
            process.wait(30)

    def _kill(self):
        for process in self.processes.values():
            end(process)


class Counter:
    """Writes rising numbers into znodes until told to end; what was acknowledged must stay."""

    def __init__(self, bench):
        self.client = bench.client()
        self.client.ensure_path("/upgrade")
        self.made, self.failed, self.over = {}, 0, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        number = 0
        while not self.over.is_set():
            path = f"/upgrade/n{number % 50}"
            try:
                if number < 50:
                    self.client.create(path, b"%d" % number)
                else:
                    self.client.set(path, b"%d" % number)
                self.made[path] = number
                number += 1
            except KazooException:
                # Its node went; what became of the write shows when it is done again.
                self.failed += 1
                if number < 50 and self.client.retry(self.client.exists, path):
                    self.made[path], number = 0, number + 1

    def finish(self):
        """Stops, and gives back how many were acknowledged."""
        self.over.set()
        self.thread.join(60)
        need(not self.thread.is_alive(), "a write of a znode hangs")
        return sum(1 for _ in self.made), max(self.made.values())

    def check(self):
        """Every znode has what was acknowledged last, or a write whose answer was lost."""
        for path, number in self.made.items():
            self.client.sync(path)
            data, _ = self.client.get(path)
            need(int(data) >= number, f"{path} has {data}, {number} was acknowledged")


def check_replicas(cluster):
    """No replica has stopped or found anything wrong; hashes at the same place are the same. How many places were compared."""
    seen, compared = {}, 0
    for number in cluster.ids():
        health = cluster.json("database", "status", "--node", number)
        need(not health["halted"], f"node {number} has stopped applying: {health['halted']}")
        need(health["found_total"] == 0, f"node {number} found: {health['found']}")
        for row in health["hashes"]:
            known = seen.setdefault(row["below"], row["hash"])
            need(known == row["hash"], f"the hashes below {row['below']} differ")
            compared += known is not row["hash"]
    return compared


def check_refused(cluster, number, program, words):
    """Starts a program on a node, which must end by itself, and say why."""
    before = len((cluster.folder / f"n{number}.log").read_bytes())
    cluster.run(number, program)
    poll(f"the old program ends on node {number}, {words}", 60, lambda: cluster.processes[number].poll() is not None, every=0.05)
    need(cluster.processes[number].returncode != 0, "it ended as if all were well")
    said = (cluster.folder / f"n{number}.log").read_bytes()[before:].decode(errors="replace")
    names_both = f"level {NEXT}" in said and (f"1 to {CURRENT}" in said or f"up to {CURRENT}" in said)
    need("too old" in said and names_both, f"it says: {said}")
    say(f"  node {number}, {words}: {[line for line in said.splitlines() if 'too old' in line][-1][-260:]}")


def body(drill):
    old, new = drill.binary, next_program(drill)
    first = pathlib.Path(drill.args.first_bin).resolve() if drill.args.first_bin else None
    stay, compared, rows = drill.args.stay, 0, []
    with Fleet(old, first or old, drill.folder / "cluster") as cluster:
        cluster.reads = {old: CURRENT, new: NEXT}
        cluster.atoll("log", "create", "--log", LOG)
        load = Load(cluster, drill.folder, LOG, depth=32).start()
        bench = Bench(cluster.zookeeper())
        counter = Counter(bench)

        def mark(what):
            nonlocal compared
            time.sleep(stay)
            compared += check_replicas(cluster)
            levels = cluster.level() if cluster.programs[1] != first else {"active": 1}
            rows.append((what, levels["active"], load.acknowledged(), max(counter.made.values(), default=0)))
            say(f"  {what}: level {levels['active']}")
            return levels["active"]

        def roll(program, numbers):
            for number in numbers:
                cluster.move(number, program)

        try:
            if first:
                mark("before there were levels")
                roll(old, [1, 2])
                mark("the old program beside the one before levels")
                refused = cluster.atoll("cluster", "upgrade", "--to", CURRENT, check=False)
                need(refused.returncode == 1 and b"node 3" in refused.stderr, f"raised over a program without levels: {refused.stderr}")
                roll(old, [3])
                need(mark("all on the old program") == 1, "a cluster from before levels rises by an operator only")
                cluster.atoll("cluster", "upgrade")
            poll("the cluster is at its level", 30, lambda: cluster.level()["active"] == CURRENT, every=0.1)
            mark("all on the old program")
            roll(new, [1, 2])
            mark("mixed")
            refused = cluster.atoll("cluster", "upgrade", "--to", NEXT, check=False)
            need(refused.returncode == 1 and b"node 3" in refused.stderr, f"raised over an old program: {refused.stderr}")
            roll(new, [3])
            need(mark("all on the new program, not switched") == CURRENT, "raised by itself")
            roll(old, [2, 1, 3])
            mark("rolled back")
            roll(new, [3, 1, 2])
            # One node is down at the switch: its disk does not know of it.
            cluster.down(3)
            levels = cluster.json("cluster", "upgrade")
            need(levels["active"] == NEXT and levels["changed"], f"not raised: {levels}")
            check_refused(cluster, 3, old, "which was down at the switch")
            cluster.run(3, new)
            cluster.wait_whole()
            need(mark("switched") == NEXT, "not raised")
            cluster.down(2)
            check_refused(cluster, 2, old, "which was up at the switch")
            if first:
                # It knows nothing of levels: its journal holds what it cannot read.
                cluster.run(2, first)
                poll("it ends", 30, lambda: cluster.processes[2].poll() is not None, every=0.1)
            cluster.run(2, new)
            cluster.wait_whole()
            mark("all on the new program")
            done = load.finish()
            counter.finish()
            counter.check()
            need(verify(cluster, [load], LOG) == done, "records are missing")
            compared += check_replicas(cluster)
        finally:
            counter.over.set()
            load.abandon()
            bench.close()
    table(rows, ("when", "level", "records", "znodes"))
    need(compared > 0, "no hashes were compared")
    say(f"{done} records and {max(counter.made.values())} writes of znodes, none lost; {compared} hashes compared, all the same")
    drill.result.update(records=done, writes=max(counter.made.values()), retried=counter.failed, hashes=compared)


if __name__ == "__main__":
    Drill(
        "upgrade",
        __doc__,
        stay=(8.0, 1.5, "how long each mixture stays, in seconds"),
        next_bin=("", "", "the program one feature level ahead; otherwise a test build stands for it"),
        first_bin=("", "", "a program from before there were feature levels, to begin with"),
    ).run(body)
