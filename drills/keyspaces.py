#!/usr/bin/env python3
"""Keyspaces keep what they acknowledged, while the nodes that lead their shards are killed with `kill -9`.

Several clients write to a keyspace on disk through three real nodes, each its own keys, and claim shared keys with conditional puts. Every
node is killed in turn, the one that leads most shards first, and started again. Afterwards each key holds the last acknowledged value or a
later one whose outcome is unknown, and no claim has two owners.

The same with a keyspace in memory: one node is killed. Its replicas are refused when it is back, because they have forgotten what they
promised, and the others continue without a loss. Once a second node was killed, the keyspace says that its content is lost, and never
answers as if it were empty. It can be deleted and created again.
"""

import contextlib
import json
import threading
import time
import urllib.request

from cluster import Cluster, Drill, need, poll, say, table

SHARDS = 24
NO, UNKNOWN = 1, 3


def led(node):
    """How many shards a node leads, as its metrics say."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=5) as reply:
        for line in reply.read().decode().splitlines():
            name, _, value = line.partition(" ")
            if name.startswith("atoll_") and name.endswith("_led_shards"):
                return int(float(value))
    return 0


def leader_of_most(cluster):
    """The node that leads most shards; it leads at least one."""
    def ask():
        node = max(cluster.nodes(), key=led)
        return node.id if led(node) else None

    return poll("some node leads shards", 30, ask, every=0.2)


class Client(threading.Thread):
    """Writes to its own keys, one after the other, and claims shared ones, until it is told to stop."""

    def __init__(self, cluster, keyspace, number, keys, claims):
        super().__init__(daemon=True)
        self.cluster, self.keyspace, self.number, self.keys, self.claims = cluster, keyspace, number, keys, claims
        self.connect = cluster.connect()
        # Per key: what was acknowledged last, and what was sent since and may have happened.
        self.acknowledged, self.open = {}, {}
        self.won, self.maybe_won = set(), set()
        self.written = self.unknown = self.refused = 0
        self.stopping = threading.Event()
        self.error = None

    def verb(self, *args):
        done = self.cluster.atoll("kv", *args, "--json", "--timeout", "20", connect=self.connect, check=False)
        if done.returncode not in (0, NO, UNKNOWN):
            raise RuntimeError(f"`atoll kv {' '.join(map(str, args))}` ended with {done.returncode}: {done.stderr.decode()}")
        return done

    def put(self, turn):
        key, value = f"c{self.number}-{turn % self.keys}", f"{self.number}.{turn}"
        done = self.verb("put", self.keyspace, key, value)
        if done.returncode == 0:
            self.acknowledged[key] = value
            self.open[key] = set()
            self.written += 1
        elif done.returncode == UNKNOWN:
            self.open.setdefault(key, set()).add(value)
            self.unknown += 1
        else:
            self.refused += 1

    def claim(self, turn):
        key = f"claim-{turn % self.claims}"
        if key in self.won:
            return
        done = self.verb("put", self.keyspace, key, f"owner-{self.number}", "--if-absent")
        if done.returncode == 0:
            self.won.add(key)
        elif done.returncode == UNKNOWN:
            self.maybe_won.add(key)

    def run(self):
        try:
            turn = 0
            while not self.stopping.is_set():
                self.put(turn)
                if turn % 3 == 0:
                    self.claim(turn // 3)
                turn += 1
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for this thread
            self.error = error

    def finish(self):
        self.stopping.set()
        self.join(90)
        need(not self.is_alive(), f"client {self.number} does not end")
        if self.error:
            raise self.error


def held(cluster, keyspace, keys):
    """What keys hold, as a map; None for one that does not exist."""
    found = {}
    for at in range(0, len(keys), 200):
        part = keys[at:at + 200]
        done = cluster.atoll("kv", "get", keyspace, *part, "--json", check=False)
        need(done.stdout, f"`kv get` ended with {done.returncode}: {done.stderr.decode()}")
        for line in done.stdout.splitlines():
            row = json.loads(line)
            found[row["key"]] = row["value"]
    return found


def check(cluster, keyspace, clients):
    """Nothing acknowledged is lost, nothing is invented, and no claim has two owners."""
    now = held(cluster, keyspace, sorted({key for c in clients for key in [*c.acknowledged, *c.open]}))
    for client in clients:
        for key in {*client.acknowledged, *client.open}:
            allowed = {client.acknowledged.get(key)} | client.open.get(key, set())
            need(now[key] in allowed, f"{key} holds {now[key]!r}; acknowledged or open are {sorted(map(str, allowed))}")
    claims = sorted({key for c in clients for key in c.won | c.maybe_won})
    owners = held(cluster, keyspace, claims) if claims else {}
    for key in claims:
        won = [f"owner-{c.number}" for c in clients if key in c.won]
        maybe = [f"owner-{c.number}" for c in clients if key in c.maybe_won]
        need(len(won) <= 1, f"{key} was given to {won}")
        need(owners[key] in (won or [*maybe, None]), f"{key} belongs to {owners[key]}, and was given to {won}, perhaps to {maybe}")
    listed = [json.loads(line)["key"] for line in cluster.atoll("kv", "keys", keyspace, "--json").stdout.splitlines()]
    there = sorted([key for key, value in [*now.items(), *owners.items()] if value is not None])
    need(listed == there, f"{len(listed)} keys are listed, and {len(there)} exist")
    return len(now), len(claims)


def start(drill, cluster, keyspace):
    """Starts the clients, and waits until each of them has written something."""
    clients = [Client(cluster, keyspace, n, drill.args.keys, drill.args.claims) for n in range(drill.args.clients)]
    for client in clients:
        client.start()
    poll("every client writes", 60, lambda: all(c.written or c.error for c in clients), every=0.1)
    return clients


def more_writes(clients, count):
    """Waits until every client has so many more acknowledged writes; the seconds that it took."""
    goals, began = [c.written + count for c in clients], time.monotonic()
    poll("writes continue", 60, lambda: all(c.written >= goal or c.error for c, goal in zip(clients, goals)), every=0.02)
    return time.monotonic() - began


def row(name, clients, kills, checked):
    """A row of the table at the end."""
    return (name, sum(c.written for c in clients), sum(c.unknown for c in clients), sum(c.refused for c in clients), kills, *checked)


def on_disk(drill, cluster):
    """Every node is killed in turn."""
    cluster.atoll("kv", "create", "reef", "--replicas", 3, "--shards", SHARDS, "--buckets", 16, "--durability", "disk")
    clients = start(drill, cluster, "reef")
    first = leader_of_most(cluster)
    order = [first, *[n for n in cluster.ids() if n != first]]
    kills = 0
    for number in order * drill.args.rounds:
        pids, _ = cluster.signal([number])
        kills += len(pids)
        more_writes(clients, 2)
        cluster.wait_back(pids)
        more_writes(clients, 3)
    for client in clients:
        client.finish()
    return row("disk", clients, kills, check(cluster, "reef", clients))


def reason(done):
    """The reason of a verb that failed."""
    return json.loads(done.stderr.splitlines()[-1])["error"]["reason"]


def in_memory(drill, cluster):
    """One node is killed, and then a second one."""
    cluster.atoll("kv", "create", "lagoon", "--replicas", 3, "--shards", SHARDS, "--buckets", 16, "--durability", "memory")
    clients = start(drill, cluster, "lagoon")
    first = leader_of_most(cluster)
    second = next(n for n in cluster.ids() if n != first)
    pids, _ = cluster.signal([first])
    more_writes(clients, 2)
    cluster.wait_back(pids)
    # The replicas of the node that is back are nobody: the other two have to acknowledge every write.
    more_writes(clients, 3)
    for client in clients:
        client.finish()
    checked = check(cluster, "lagoon", clients)
    through_first = cluster.atoll("kv", "keys", "lagoon", "--json", "--limit", 1, connect=cluster.connect(first))
    need(through_first.stdout, "the node that is back does not serve the keyspace through the others")
    pids, _ = cluster.signal([second])
    cluster.wait_back(pids)
    key = next(iter(clients[0].acknowledged))

    def says_lost():
        done = cluster.atoll("kv", "get", "lagoon", key, "--json", "--timeout", "10", check=False)
        need(done.returncode != 0, f"a keyspace that lost its majority answers {done.stdout!r}")
        return reason(done) == "keyspace-lost"

    poll("the keyspace says that it is lost", 60, says_lost, every=0.2)
    cluster.atoll("kv", "delete", "lagoon", "--yes")
    gone = cluster.atoll("kv", "get", "lagoon", key, "--json", check=False)
    need(gone.returncode != 0 and reason(gone) == "no-such-keyspace", "a deleted keyspace answers")
    cluster.atoll("kv", "create", "lagoon", "--replicas", 3, "--durability", "memory")
    cluster.atoll("kv", "put", "lagoon", key, "new")
    need(held(cluster, "lagoon", [key]) == {key: "new"}, "the new keyspace does not keep a write")
    return row("memory", clients, 2, checked)


def bad_input(cluster):
    """What cannot be is refused, with what is allowed."""
    for words, args in {
        "known engines": ("create", "x", "--engine", "sand"),
        "suitable nodes": ("create", "x", "--replicas", 5),
        "there is a keyspace": ("create", "reef"),
        "there is no keyspace": ("get", "x", "k"),
        "the condition does not hold": ("put", "reef", "c0-0", "v", "--if-version", 1),
        "at most 32768 are allowed": ("put", "reef", "k", "v" * 100_000),
    }.items():
        done = cluster.atoll("kv", *args, check=False)
        need(done.returncode in (1, 2) and words in done.stderr.decode(), f"{args[:3]}: {done.stderr.decode()}")


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        rows = [on_disk(drill, cluster)]
        bad_input(cluster)
        rows.append(in_memory(drill, cluster))
    say()
    table(rows, ("keyspace", "acknowledged", "unknown", "refused", "kills", "keys", "claims"))
    drill.result.update(acknowledged=sum(r[1] for r in rows), unknown=sum(r[2] for r in rows), kills=sum(r[4] for r in rows))


if __name__ == "__main__":
    Drill(
        "keyspaces",
        __doc__,
        clients=(6, 3, "how many clients write"),
        keys=(40, 10, "how many keys each client has"),
        claims=(60, 20, "how many keys are claimed"),
        rounds=(5, 1, "how often every node is killed"),
    ).run(body)
