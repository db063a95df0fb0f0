#!/usr/bin/env python3
"""Keyspaces keep what they acknowledged, while the nodes that lead their shards are killed with `kill -9`.

Several clients write to a keyspace on disk through three real nodes, each its own keys, and claim shared keys with conditional puts. Every
node is killed in turn, the one that leads most shards first, and started again. Afterwards each key holds the last acknowledged value or a
later one whose outcome is unknown, and no claim has two owners.

The same with a keyspace in memory: one node is killed. Its replicas are refused when it is back, because they have forgotten what they
promised, and the others continue without a loss. Once a second node was killed, the keyspace says that its content is lost, and never
answers as if it were empty. It can be deleted and created again.

Leases with fencing numbers guard a real file, while every node is killed in turn. Some holders vanish without a word. The file refuses
numbers that are lower than one it has seen. Every number has one owner, and the file never has two writers.
"""

import contextlib
import json
import random
import threading
import time
import urllib.request

from cluster import Cluster, Drill, need, poll, say, table

SHARDS = 24
NO, UNKNOWN = 1, 3
LEASE_MS = 2_000


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


def wait_up(cluster):
    """Until every node is up: a keyspace is created only on nodes that answer."""
    poll("all nodes are up", 60, lambda: all(n["state"] == "up" for n in cluster.status()["nodes"]), every=0.1)


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


class GuardedFile:
    """A file that takes lines only from the newest holder of a lease: it refuses lower fencing numbers than it has seen."""

    def __init__(self, path):
        self.path, self.highest, self.lock = path, 0, threading.Lock()
        self.refused = 0

    def write(self, fencing, owner):
        with self.lock:
            if fencing < self.highest:
                self.refused += 1
                return
            self.highest = fencing
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{fencing} {owner}\n")


class Holder(threading.Thread):
    """Takes the lease, writes to the file under it, and gives it up or vanishes."""

    def __init__(self, cluster, guarded, number, rng):
        super().__init__(daemon=True)
        self.cluster, self.guarded, self.owner, self.rng = cluster, guarded, f"holder-{number}", rng
        self.connect = cluster.connect()
        self.grants, self.lost = [], 0
        self.stopping = threading.Event()
        self.error = None

    def lease(self, verb, *args):
        """The answer to `kv lease`, and until when the lease may be used; None if it is not held, or if nobody knows."""
        sent = time.monotonic()
        done = self.cluster.atoll("kv", "lease", verb, "locks", "file", *args, "--json", "--timeout", "20", connect=self.connect, check=False)
        if done.returncode == 0:
            answer = json.loads(done.stdout)
            return answer, sent + answer.get("usable_ms", 0) / 1000
        need(done.returncode in (NO, UNKNOWN), f"`kv lease {verb}` ended with {done.returncode}: {done.stderr.decode()}")
        if done.returncode == NO:
            need(reason(done) in ("conflict", "lease-not-held", "unavailable", "stopping", "busy"), done.stderr.decode())
        return None, 0

    def hold(self, grant, until):
        fencing = grant["fencing"]
        self.grants.append(fencing)
        for _ in range(self.rng.randrange(1, 5)):
            if time.monotonic() >= until:
                break
            self.guarded.write(fencing, self.owner)
            renewed, longer = self.lease("renew", "--fencing", fencing, "--for-ms", LEASE_MS)
            if renewed is None:
                self.lost += 1
                return
            until = longer
        # A holder that vanishes leaves its lease to those who watch it expire.
        if self.rng.random() < 0.7:
            self.lease("release", "--fencing", fencing)

    def run(self):
        try:
            while not self.stopping.is_set():
                grant, until = self.lease("acquire", "--owner", self.owner, "--for-ms", LEASE_MS)
                if grant is not None:
                    self.hold(grant, until)
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for this thread
            self.error = error

    def finish(self):
        self.stopping.set()
        self.join(90)
        need(not self.is_alive(), f"{self.owner} does not end")
        if self.error:
            raise self.error


def locks(drill, cluster):
    """Leases guard a file while every node is killed in turn."""
    cluster.atoll("kv", "create", "locks", "--replicas", 3, "--shards", 4, "--buckets", 4, "--durability", "disk")
    nobody = cluster.atoll("kv", "lease", "holder", "locks", "file", "--json", check=False)
    need(nobody.returncode == NO and reason(nobody) == "lease-not-held", "nobody holds the lease, and that is not said")
    guarded = GuardedFile(drill.folder / "guarded")
    holders = [Holder(cluster, guarded, n, random.Random(drill.random.random())) for n in range(drill.args.clients)]
    for holder in holders:
        holder.start()

    def granted(count):
        return lambda: sum(len(h.grants) for h in holders) >= count or any(h.error for h in holders)

    poll("the first grants", 60, granted(2), every=0.1)
    kills = 0
    for number in cluster.ids() * drill.args.rounds:
        pids, _ = cluster.signal([number])
        kills += len(pids)
        poll("a grant after the kill", 60, granted(sum(len(h.grants) for h in holders) + 1), every=0.1)
        cluster.wait_back(pids)
    for holder in holders:
        holder.finish()
    lines = [line.split() for line in guarded.path.read_text(encoding="utf-8").splitlines()]
    numbers = [int(fencing) for fencing, _ in lines]
    need(numbers == sorted(numbers), "the file has a line of an earlier holder after one of a later holder")
    owners = {}
    for fencing, owner in lines:
        need(owners.setdefault(fencing, owner) == owner, f"{fencing} belongs to {owners[fencing]} and to {owner}")
    grants = [fencing for holder in holders for fencing in holder.grants]
    need(len(grants) == len(set(grants)), "a fencing number was granted twice")
    return ("locks", len(lines), sum(h.lost for h in holders), guarded.refused, kills, len(grants), 0)


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
        wait_up(cluster)
        rows.append(locks(drill, cluster))
        wait_up(cluster)
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
