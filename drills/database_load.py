"""Writes to the database, each of them known: znodes by a bare client, rows through the command line. Standard library only."""

import json
import threading
import time

import jute
from cluster import Failed, need, poll

# ZooKeeper's code for a node that is there.
NODE_EXISTS = -110


class Writer(threading.Thread):
    """Writes one thing after the other, and again what has no good end, until it is told to end."""

    def __init__(self, name):
        super().__init__(daemon=True, name=name)
        self.acknowledged = 0
        self.failures = 0
        self.over = threading.Event()
        self.broken = None

    def run(self):
        while not self.over.is_set():
            try:
                self.write(self.acknowledged)
                self.acknowledged += 1
            except (OSError, ConnectionError, Failed, AssertionError) as error:
                self.failures += 1
                self.broken = repr(error)
                self.again()
                time.sleep(0.05)

    def begin(self):
        """Starts, and waits for the first acknowledgement."""
        self.start()
        poll(f"{self.name} is acknowledged", 30, lambda: self.acknowledged > 0)
        return self

    def goes_on(self, within=30):
        """Waits for further acknowledgements."""
        reached = self.acknowledged
        poll(f"{self.name} continues (last trouble: {self.broken})", within, lambda: self.acknowledged > reached + 1)

    def finish(self):
        """Ends it; how many were acknowledged."""
        self.over.set()
        self.join(120)
        need(not self.is_alive(), f"{self.name} hangs")
        return self.acknowledged

    def again(self):
        """After a failure."""


class Znodes(Writer):
    """Creates `/NAME/0`, `/NAME/1` and so on; through whichever node takes it."""

    def __init__(self, hosts, name="znodes"):
        super().__init__(name)
        self.hosts = hosts
        self.turn = 0
        self.wire = None

    def again(self):
        self.wire = None
        self.turn += 1

    def connect(self):
        hosts = self.hosts()
        self.wire = jute.Wire(hosts[self.turn % len(hosts)])
        if not self.wire.session:
            raise ConnectionError("no session")

    def write(self, number):
        if self.wire is None:
            self.connect()
            self.create(f"/{self.name}")
        self.create(f"/{self.name}/{number:07}")

    def create(self, path):
        _, error, _ = self.wire.call(jute.CREATE, jute.create(path, path.encode()))
        # One that has no good end may have happened.
        if error not in (0, NODE_EXISTS):
            raise ConnectionError(f"error {error}")


class Rows(Writer):
    """Puts row 0, 1 and so on, each by a process of its own."""

    def __init__(self, cluster, table="rows"):
        super().__init__(table)
        self.cluster = cluster
        cluster.atoll("table", "create", table, "--column", "id:int64", "--column", "words:text", "--key", "id")

    def write(self, number):
        self.cluster.atoll("table", "put", self.name, json.dumps({"id": number, "words": f"row {number}"}))


class Busy(threading.Thread):
    """`atoll bench db` again and again: no operation may fail."""

    def __init__(self, cluster, rows, rate):
        super().__init__(daemon=True, name="load")
        self.cluster, self.rows, self.rate = cluster, rows, rate
        self.over = threading.Event()
        self.ops = self.errors = 0
        self.last_error = None

    def run(self):
        while not self.over.is_set():
            try:
                told = self.cluster.json("bench", "db", "--rows", self.rows, "--rate", self.rate, "--seconds", 3, timeout=120)
            except Failed as error:
                self.errors, self.last_error = self.errors + 1, str(error)
                continue
            self.ops += told["ops"]
            self.errors += told["errors"]
            self.last_error = told.get("last_error", self.last_error)

    def finish(self):
        """Ends it; how many operations were answered."""
        self.over.set()
        self.join(180)
        need(not self.errors, f"{self.errors} operations of the load failed, the last one: {self.last_error}")
        return self.ops


def check_znodes(host, writer):
    """Every acknowledged znode is there, at this node."""
    wire = jute.Wire(host)
    _, error, _ = wire.call(jute.SYNC, jute.string("/"))
    need(error == 0, f"sync at {host}: error {error}")
    _, error, reply = wire.call(jute.CHILDREN, jute.watched(f"/{writer.name}"))
    need(error == 0, f"children of /{writer.name} at {host}: error {error}")
    there = set(reply.strings())
    lost = [n for n in range(writer.acknowledged) if f"{n:07}" not in there]
    need(not lost, f"{len(lost)} acknowledged znodes are not at {host}: {lost[:5]}")
    for number in range(0, writer.acknowledged, max(1, writer.acknowledged // 200)):
        path = f"/{writer.name}/{number:07}"
        _, error, reply = wire.call(jute.GET, jute.watched(path))
        need(error == 0 and reply.buffer() == path.encode(), f"{path} at {host} is not what was written: error {error}")
    wire.close()
    return len(there)


def check_rows(cluster, node, writer):
    """Every acknowledged row is there, at this node."""
    out = cluster.atoll("table", "export", writer.name, "--node", node, timeout=300).stdout
    rows = {row["id"]: row["words"] for row in map(json.loads, out.splitlines())}
    lost = [n for n in range(writer.acknowledged) if rows.get(n) != f"row {n}"]
    need(not lost, f"{len(lost)} acknowledged rows are not at node {node}: {lost[:5]}")
    return len(rows)
