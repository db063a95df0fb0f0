#!/usr/bin/env python3
"""Hostile but well-formed requests at ZooKeeper's door, beside a healthy client.

Three nodes run under `atoll dev`. A separate process (hostile_zookeeper.py) draws requests from a seed: every operation, with extreme
counts, depths, sizes and pipelines, from clients that read their replies or do not. Meanwhile a healthy client at each node writes and
reads small nodes, one after the other. Its longest write takes at most half a second, no session of it ends, and in the end every node has
everything that it wrote. Each node's memory stays below 1.2 GB. The table shows the longest write for each kind of hostile request. The
drill also measures how long the machine or its disk stood still (stalls.py), because such a stall is not the program's fault.
"""

import bisect
import collections
import json
import pathlib
import subprocess
import sys
import threading
import time

import jute
from bounded import memory_of
from cluster import Cluster, Drill, Failed, need, say, table
from jute import Wire
from stalls import Machine

# The longest write of the healthy client, seconds.
WRITE_WITHIN = 0.5
# Most memory of one node: stores and caches, what waits for the log, four replies of 32 MiB, a frame for each connection, their watches.
MEMORY_BYTES = 1_200_000_000
# Writes that take longer are reported as they happen, with the cases that were under way: seconds.
SLOW = 0.25
# Between two writes of the healthy client.
PAUSE = 0.005


class Healthy(threading.Thread):
    """Writes a small node of its own at one server, and reads it back, again and again."""

    def __init__(self, host, name, machine):
        super().__init__(daemon=True)
        self.host, self.machine = host, machine
        self.path, self.trouble, self.over = f"/healthy-{name}", None, threading.Event()
        self.wire = Wire(host, timeout_ms=20_000, patience_s=60)
        need(self.wire.call(jute.CREATE, jute.create(self.path, b"0"))[1] == 0, "the healthy client cannot create")
        need(self.wire.call(jute.CREATE, jute.create(self.path + "/mine", flags=1))[1] == 0, "the healthy client cannot create")
        # (began, seconds)
        self.writes, self.reads, self.count = [], [], 0
        # Of the writes, those that are not reported yet.
        self.slow = collections.deque()
        self.start()

    def run(self):
        try:
            while not self.over.wait(PAUSE):
                self.count += 1
                began = time.monotonic()
                _, error, _ = self.wire.call(jute.SET, jute.written(self.path, b"%d" % self.count))
                wrote = time.monotonic()
                need(error == 0, f"a write of the healthy client ended with {error}")
                _, error, reply = self.wire.call(jute.GET, jute.watched(self.path))
                read = time.monotonic()
                need(error == 0 and reply.buffer() == b"%d" % self.count, f"the healthy client reads what it did not write: {error}")
                self.writes.append((began, wrote - began))
                self.reads.append((wrote, read - wrote))
                if wrote - began > SLOW:
                    self.slow.append(self.writes[-1])
        except (OSError, ConnectionError, Failed, AssertionError) as error:
            self.trouble = f"at {self.host} after {self.count} writes: {error!r}"

    def without_stalls(self, rows):
        """These calls, and for how long the machine stood still during each. Not asked at once, because a stall is noted after it ended."""
        return [(at, took, min(took, self.machine.stalled(at, at + took)) if took > 0.1 else 0.0) for at, took in rows]


class Memory(threading.Thread):
    """The most memory of each node."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.over = cluster, threading.Event()
        self.pids = {n.id: n.pid for n in cluster.nodes()}
        self.rows = []
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            for pid in self.pids.values():
                try:
                    self.rows.append((time.monotonic(), memory_of(pid)))
                except OSError:
                    return

    def most(self, begin, end):
        # Rows come in the order of time. The table asks for thousands of spans of an hour.
        first, last = (bisect.bisect_left(self.rows, (at,)) for at in (begin - 0.2, end + 0.2))
        return max((m for _, m in self.rows[first:last]), default=0)


class Calls:
    """Calls of the healthy clients, to be asked for spans of time: an hour has millions of calls and thousands of spans."""

    def __init__(self, rows):
        self.rows = sorted(rows)
        # Whatever was under way at a moment began at most so long before.
        self.most = max((took for _, took, _ in rows), default=0.0)

    def longest(self, begin, end):
        """The longest of those that were under way between two moments, without what the machine took."""
        first, last = (bisect.bisect_left(self.rows, (at,)) for at in (begin - self.most, end))
        return max((took - stalled for at, took, stalled in self.rows[first:last] if at + took > begin), default=0.0)


def by_case(spans, healthy, memory):
    """Rows of the table: a case, how often, the longest write and read of the healthy clients, most memory."""
    cases = {}
    writes = Calls([row for h in healthy for row in h.without_stalls(h.writes)])
    reads = Calls([row for h in healthy for row in h.without_stalls(h.reads)])
    for case, begin, end in spans:
        row = cases.setdefault(case, [0, 0.0, 0.0, 0.0, 0])
        row[0] += 1
        row[1] = max(row[1], end - begin)
        row[2] = max(row[2], writes.longest(begin, end))
        row[3] = max(row[3], reads.longest(begin, end))
        row[4] = max(row[4], memory.most(begin, end))
    return cases


def report_slow(case, healthy):
    """Reports the slow writes of the healthy clients since the last report: in an hour nobody waits for the table to see the first."""
    for h in healthy:
        while h.slow:
            _, took, stalled = h.without_stalls([h.slow.popleft()])[0]
            say(f"  {case}: a write at {h.host} took {took * 1e3:.0f} ms, of which the machine stood still for {stalled * 1e3:.0f}")


def attack(drill, cluster, healthy):
    """Runs the hostile process to its end; when which case was under way."""
    nodes = cluster.nodes()
    own = pathlib.Path(__file__).with_name("hostile_zookeeper.py")
    hosts, admin = ",".join(n.zookeeper for n in nodes), ",".join(n.admin for n in nodes)
    command = [sys.executable, own, hosts, admin, drill.seed, drill.args.seconds, drill.args.scale, *drill.args.cases.split()]
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    spans, began = [], {}
    try:
        for line in process.stdout:
            told = json.loads(line)
            if told["what"] == "begin":
                began[told["case"]] = told["at"]
            else:
                spans.append((told["case"], began[told["case"]], told["at"]))
                say(f"  {told['case']} {told['at'] - began[told['case']]:.1f} s")
                report_slow(told["case"], healthy)
        need(process.wait() == 0, "the hostile process failed")
    finally:
        if process.poll() is None:
            process.kill()
    return spans


def check_data(cluster, healthy):
    """All that was acknowledged is there, at every node."""
    for node in cluster.nodes():
        wire = Wire(node.zookeeper, patience_s=60)
        wire.call(jute.SYNC, jute.string("/"))
        for h in healthy:
            _, error, reply = wire.call(jute.GET, jute.watched(h.path))
            found = reply.buffer() if error == 0 else error
            need(found == b"%d" % h.count, f"node {node.id} has {found} at {h.path}, and {h.count} was acknowledged")
            need(wire.call(jute.EXISTS, jute.watched(h.path + "/mine"))[1] == 0, f"node {node.id} has lost an ephemeral of a session that lives")
        wire.close()


def body(drill):
    machine = Machine(drill.folder)
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        cluster.configure('[zookeeper]\nwords = "*"')
        before = {n.id: n.pid for n in cluster.nodes()}
        healthy = [Healthy(n.zookeeper, n.id, machine) for n in cluster.nodes()]
        memory = Memory(cluster)
        spans = attack(drill, cluster, healthy)
        # What was asked last may still be under way.
        time.sleep(2)
        for h in healthy:
            h.over.set()
            h.join(70)
        memory.over.set()
        rows = by_case(spans, healthy, memory)
        table(
            [(case, n, f"{t:.1f}", f"{w * 1e3:.0f}", f"{r * 1e3:.0f}", f"{m / 1e6:.0f}") for case, (n, t, w, r, m) in rows.items()],
            ("asked", "times", "took s", "longest write ms", "longest read ms", "most memory MB"),
        )
        for h in healthy:
            need(not h.trouble, f"the healthy client {h.trouble}")
        need({n.id: n.pid for n in cluster.nodes()} == before, "a node ended")
        check_data(cluster, healthy)
        all_writes = [row for h in healthy for row in h.without_stalls(h.writes)]
        most = max((took - stalled for at, took, stalled in all_writes), default=0.0)
        most_memory = memory.most(0, time.monotonic())
        drill.result.update(
            writes=len(all_writes), longest_write_ms=round(most * 1e3), processor_stalled_ms=round(machine.processor.longest() * 1e3), disk_stalled_ms=round(machine.disk.longest() * 1e3),
            most_memory_mb=round(most_memory / 1e6), requests=len(spans),
        )
        need(most_memory <= MEMORY_BYTES, f"a node took {most_memory} bytes of memory; at most {MEMORY_BYTES} is stated")
        bound = drill.within(WRITE_WITHIN)
        drill.promise(most <= bound, f"the longest write of the healthy client took {most * 1e3:.0f} ms; at most {bound * 1e3:.0f} is promised")


if __name__ == "__main__":
    Drill(
        "hostile",
        __doc__,
        seconds=(3600, 60, "for how long"),
        scale=(1.0, 1.0, "of all counts"),
        cases=("", "", "only these, by name"),
    ).run(body)
