#!/usr/bin/env python3
"""Keyspaces of both engines move from three to five to three other nodes under load, and no operation fails.

Clients write and read their own keys in a keyspace on Bizur and in one in place, through six real nodes. Each move is one `atoll kv move`.
Afterwards the replicas are where the move wanted them, and each key holds what was acknowledged last.

Then an in-place keyspace has the rule that each zone holds one replica of each shard. Both nodes of each zone in turn stop, all at once, and
are killed with `kill -9`, while the clients write through the others: again, no operation fails. At the end, a node is drained. The
replicas still keep to their zones, and another zone may fail.

At last, a node with replicas of an in-place keyspace in memory is killed. It comes back without what it promised, so the others refuse to
count it: while another node is stopped, nothing is answered. A move to the same nodes admits it again. Then the other node may stop, and
nothing is lost.

`--mutant-bin` is a program that honours `ATOLL_MUTANT`: `cargo build -p atoll --features testing`. The drill must find two known bugs with
it: acceptors that still serve a group that they have sealed, and one that takes part again although it has forgotten everything.
"""

import contextlib
import json
import signal
import subprocess
import threading
import time

import known_bugs
from cluster import Cluster, Drill, need, poll, say, table
from known_bugs import right

ENGINES = ("bizur", "in-place")
ZONES = {"a": (1, 4), "b": (2, 5), "c": (3, 6)}
# From three nodes to five, to three others, and back: nodes and replicas.
MOVES = (((1, 2, 3, 4, 5), 5), ((4, 5, 6), 3), ((1, 2, 3), 3))
# How long a node that must not be counted is asked, in seconds. A node tries for 3 s before it answers.
REFUSED_FOR = 4
# How many keys the keyspace in memory has.
FORGOTTEN_KEYS = 24


class Client(threading.Thread):
    """Writes its own keys, and reads them, one after the other, until it is told to stop. No operation may fail."""

    def __init__(self, cluster, keyspace, number, keys):
        super().__init__(daemon=True)
        self.cluster, self.keyspace, self.number, self.keys = cluster, keyspace, number, keys
        self.connect = cluster.connect()
        self.acknowledged = {}
        self.done, self.longest = 0, 0.0
        self.stopping = threading.Event()
        self.error = None

    def verb(self, *args):
        began = time.monotonic()
        done = self.cluster.atoll("kv", *args, "--json", "--timeout", "30", connect=self.connect, check=False)
        self.longest = max(self.longest, time.monotonic() - began)
        right(done.returncode == 0, f"`atoll kv {' '.join(args)}` ended with {done.returncode}: {done.stderr.decode()}")
        self.done += 1
        return json.loads(done.stdout)

    def run(self):
        try:
            turn = 0
            while not self.stopping.is_set():
                key, value = f"c{self.number}-{turn % self.keys}", f"{self.number}.{turn}"
                self.verb("put", self.keyspace, key, value)
                self.acknowledged[key] = value
                held = self.verb("get", self.keyspace, key)["value"]
                right(held == value, f"{key} of {self.keyspace} holds {held!r}; acknowledged is {value!r}")
                turn += 1
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for this thread
            self.error = error

    def finish(self):
        self.stopping.set()
        self.join(90)
        need(not self.is_alive(), f"client {self.number} of {self.keyspace} does not end")
        self.check()

    def check(self):
        if self.error:
            raise self.error


class Load:
    """Clients of some keyspaces. Use as a context."""

    def __init__(self, drill, cluster, keyspaces):
        self.clients = [
            Client(cluster, keyspace, number, drill.args.keys) for keyspace in keyspaces for number in range(drill.args.clients)
        ]
        for client in self.clients:
            client.start()

    def reach(self, addresses):
        """From now on, clients use only these nodes."""
        for client in self.clients:
            client.connect = addresses

    def progress(self, count=2):
        """Waits until every client has done so many more operations, none of which may fail."""
        goals = [client.done + count for client in self.clients]
        poll("all clients go on", 90, lambda: all(c.done >= goal or c.error for c, goal in zip(self.clients, goals)), every=0.05)
        for client in self.clients:
            client.check()

    def __enter__(self):
        self.progress()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.stopping.set()

    def finish(self):
        for client in self.clients:
            client.finish()
        for client in self.clients:
            held = holds(client.cluster, client.keyspace, client.acknowledged)
            for key, value in client.acknowledged.items():
                right(held[key] == value, f"{key} of {client.keyspace} holds {held[key]!r}; acknowledged is {value!r}")


def holds(cluster, keyspace, keys, **kwargs):
    """What keys hold."""
    done = cluster.atoll("kv", "get", keyspace, *keys, "--json", "--timeout", 30, **kwargs)
    return {row["key"]: row["value"] for row in map(json.loads, done.stdout.splitlines())}


def replicas(cluster, keyspace):
    """How many replicas each node holds."""
    shown = cluster.json("kv", "describe", keyspace)
    need(shown["left_to_move"] == 0, f"{shown['left_to_move']} shards of {keyspace} are still to move")
    return {row["node"]: row["replicas"] for row in shown["nodes"]}


def moves(drill, cluster):
    """Three nodes, five, three others."""
    for engine in ENGINES:
        args = ("--engine", engine, "--replicas", 3, "--shards", drill.args.shards, "--nodes", "1,2,3")
        cluster.atoll("kv", "create", engine, *args, *(("--buckets", 16) if engine == "bizur" else ()))
    rows = []
    with Load(drill, cluster, ENGINES) as load:
        for nodes, count in (MOVES * drill.args.rounds)[:-1]:
            for engine in ENGINES:
                before, began = sum(c.done for c in load.clients), time.monotonic()
                cluster.atoll("kv", "move", engine, "--nodes", ",".join(map(str, nodes)), "--replicas", count, timeout=240)
                took = time.monotonic() - began
                held = replicas(cluster, engine)
                right(set(held) <= set(nodes), f"{engine} has replicas on {sorted(held)} after a move to {nodes}")
                right(sum(held.values()) == drill.args.shards * count, f"{engine} has {held} after a move to {count} replicas")
                load.progress()
                rows.append((engine, f"{count} on {nodes}", f"{took:.1f}", sum(c.done for c in load.clients) - before))
        load.finish()
    say()
    table(rows, ("engine", "replicas", "seconds", "operations"))
    drill.result.update(
        moves=len(rows), operations=sum(c.done for c in load.clients), longest_s=round(max(c.longest for c in load.clients), 2)
    )


def check_zones(drill, cluster, when):
    held = replicas(cluster, "zoned")
    for zone, nodes in ZONES.items():
        count = sum(held.get(node, 0) for node in nodes)
        right(count == drill.args.shards, f"{when}, zone {zone} holds {count} replicas of {drill.args.shards} shards: {held}")


def lose(drill, cluster, load, zone):
    """A zone falls silent, and then dies."""
    nodes = ZONES[zone]
    load.reach(cluster.connect(*[number for number in cluster.ids() if number not in nodes]))
    load.progress(1)
    began = time.monotonic()
    pids, _ = cluster.signal(nodes, signal.SIGSTOP)
    while time.monotonic() < began + drill.args.silent:
        load.progress(1)
    cluster.signal(nodes, signal.SIGKILL)
    load.progress()
    cluster.wait_back(pids)
    load.progress()
    load.reach(cluster.connect())


def zones(drill, cluster):
    """A rule of zones, under which each zone may fail, also after a node was drained."""
    rule = ",".join(f"{node}:{zone}" for zone, nodes in ZONES.items() for node in nodes)
    cluster.atoll("kv", "create", "zoned", "--engine", "in-place", "--replicas", 3, "--shards", drill.args.shards, "--option", f"zones={rule}")
    check_zones(drill, cluster, "at first")
    lost = drill.random.sample(sorted(ZONES), drill.args.zones)
    with Load(drill, cluster, ["zoned"]) as load:
        for zone in lost:
            lose(drill, cluster, load, zone)
        load.reach(cluster.connect(1, 2, 3, 4, 5))
        cluster.atoll("node", "drain", 6, timeout=240)
        check_zones(drill, cluster, "after the drain of node 6")
        load.progress()
        lose(drill, cluster, load, drill.random.choice("ab"))
        load.finish()
    drill.result.update(zones_lost=len(lost) + 1, zoned_longest_s=round(max(c.longest for c in load.clients), 2))


def forgetful(drill, cluster):
    """A replica in memory is refused when it is back, until a move admits it again."""
    where, others = ("--nodes", "1,2,3", "--replicas", 3), cluster.connect(1, 3)
    cluster.atoll("kv", "create", "lagoon", "--engine", "in-place", "--shards", drill.args.shards, "--durability", "memory", *where)
    keys = [f"k{n}" for n in range(FORGOTTEN_KEYS)]

    def write(value, **kwargs):
        cluster.atoll("kv", "txn", "lagoon", *[f"put {key} {value}" for key in keys], "--timeout", 30, **kwargs)

    write("before")
    cluster.wait_back(cluster.signal([1])[0])
    write("after")
    with stopped(cluster, 2):
        asked = [("get", "lagoon", key) for key in keys[::2]] + [("put", "lagoon", key, "now") for key in keys[::2]]
        ended = [cluster.spawn("kv", *ask, "--timeout", REFUSED_FOR, connect=others, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for ask in asked]
        answered = [" ".join(ask) for ask, process in zip(asked, ended) if process.wait() == 0]
        right(not answered, f"answered with a replica that has forgotten everything: {', '.join(answered)}")
    cluster.atoll("kv", "move", "lagoon", *where, timeout=240)
    write("at-last")
    with stopped(cluster, 2):
        shown = holds(cluster, "lagoon", keys, connect=others)
        right(set(shown.values()) == {"at-last"}, f"not every key holds what was acknowledged last: {shown}")
        write("without-node-2", connect=others)
    drill.result["refused"] = len(asked)


@contextlib.contextmanager
def stopped(cluster, number):
    """Stops a node. It continues however this ends, since the supervisor cannot end a stopped one."""
    cluster.signal([number], signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.signal([number], signal.SIGCONT)


# The known bugs that a program may have, each with the part of the drill that finds it.
BUGS = {"InPlaceUnsealed": moves, "InPlaceT9": forgetful}


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 6) as cluster:
        moves(drill, cluster)
        zones(drill, cluster)
        forgetful(drill, cluster)
    known_bugs.find(drill, BUGS, nodes=6)


if __name__ == "__main__":
    Drill(
        "keyspace_moves",
        __doc__,
        clients=(4, 2, "how many clients each keyspace has"),
        keys=(200, 10, "how many keys each client writes"),
        shards=(64, 4, "how many shards each keyspace has"),
        rounds=(3, 1, "how often the keyspaces move there, and back before the next time"),
        zones=(3, 1, "how many zones fail, one after the other, before the drain"),
        silent=(4.0, 1.0, "how long a zone is silent before its nodes are killed, in seconds"),
        mutant_bin=("", "", "a program with mutants, to be found wrong"),
    ).run(body)
