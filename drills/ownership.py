#!/usr/bin/env python3
"""An ownership table: each package of the Debian index gets exactly one owner, while every node is killed in turn with `kill -9`.

The names of the packages are those of the index that `apt-get update` left on this machine; without one, the drill makes up names and says so.
Clients claim them in a keyspace on disk, through three real nodes: a put under the condition that the key does not exist. Several clients
claim each package, at about the same time. A claim without an answer is sent again under its name, through another node, until it is
answered.

Afterwards, each package belongs to the one client whose claim was acknowledged, whichever node is asked; every refused claim was shown this
owner; and a listing has these keys and no others. All of it is done with each engine.

`--mutant-bin` is a program that honours `ATOLL_MUTANT`: `cargo build -p atoll --features testing`. The drill must find a known bug of each
engine with it.
"""

import collections
import contextlib
import random
import threading
import time

from grpc_venv import grpc_or_again, keyspace_service

grpc_or_again()

import grpc  # noqa: E402, the line before finds an interpreter that has it

import known_bugs  # noqa: E402
from cluster import Cluster, Drill, need, poll, say, table  # noqa: E402
from known_bugs import right  # noqa: E402
from tables import index_lines  # noqa: E402

messages, services = keyspace_service()

CHANNEL = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
# Another attempt, through another node, may be answered after these. None: the connection was lost.
FOR_NOW = {None, "busy", "unavailable", "storage-failed", "stopping", "abandoned"}
# How long a claim may go without an answer, in seconds, and how long one attempt waits for it.
WITHIN_S = 60
PATIENCE_S = 12
# How many keys a request may name.
KEYS = 256
# Known bugs that the drill must find, and the engine that has each.
BUGS = {"BizurB6": "bizur", "InPlaceT7": "in-place"}
# Among how many packages it looks for one.
BUG_PACKAGES = 2_000


def names(wanted):
    """Names of packages, and where they are from."""
    lines, origin = index_lines()
    found = sorted({line.removeprefix(b"Package: ") for line in lines if line.startswith(b"Package: ")})
    return found[:wanted], origin


class Gate:
    """Lets claims of the first packages through, and counts the answers."""

    def __init__(self):
        self.changed = threading.Condition()
        self.open_below = self.answered = 0
        self.failed = None

    def open(self, below):
        with self.changed:
            self.open_below = below
            self.changed.notify_all()

    def wait(self, index):
        with self.changed:
            self.changed.wait_for(lambda: index < self.open_below or self.failed)
        return not self.failed

    def answer(self):
        with self.changed:
            self.answered += 1

    def fail(self, error):
        with self.changed:
            self.failed = self.failed or error
            self.changed.notify_all()


class Client(threading.Thread):
    """Claims its packages in their order."""

    def __init__(self, gate, addresses, keyspace, number, packages, rng):
        super().__init__(daemon=True)
        self.gate, self.keyspace, self.packages, self.rng = gate, keyspace, packages, rng
        self.channels = [grpc.insecure_channel(address, options=CHANNEL) for address in addresses]
        self.stubs = [services.KeyspaceServiceStub(channel) for channel in self.channels]
        self.owner, self.life, self.seq, self.at = b"client-%02d" % number, rng.randrange(1, 1 << 64), 0, number
        # What was acknowledged, and of what was refused, the owner that was shown, if any was.
        self.won, self.lost = [], {}
        self.repeated = self.forgotten = 0

    def run(self):
        try:
            for index, package in self.packages:
                if not self.gate.wait(index):
                    return
                self.claim(package)
                self.gate.answer()
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for the clients
            self.gate.fail(error)
        finally:
            for channel in self.channels:
                channel.close()

    def stub(self):
        return self.stubs[self.at % len(self.stubs)]

    def claim(self, package):
        """Claims a package until the answer is known."""
        self.seq += 1
        # Whether an attempt under this name was sent before, and whether any attempt may have happened.
        again, maybe, until = False, False, time.monotonic() + WITHIN_S
        while True:
            write = messages.WriteName(client=self.life, seq=self.seq, again=again)
            request = messages.PutRequest(
                keyspace=self.keyspace, write=write, key=package, value=self.owner, condition=messages.Condition(absent=True)
            )
            try:
                return self.learn(package, self.stub().Put(request, timeout=PATIENCE_S), maybe)
            except grpc.RpcError as error:
                told = dict(error.trailing_metadata() or ())
                happened, reason = told.get("atoll-happened"), told.get("atoll-reason")
                if reason == "forgotten":
                    # The condition makes another write of the same claim harmless.
                    self.forgotten += 1
                    self.seq += 1
                    again, maybe = False, True
                    continue
                if happened == "yes":
                    # Its answer is no longer known.
                    self.won.append(package)
                    return None
                if reason == "conflict":
                    # An earlier attempt was refused. What the key held then is no longer known.
                    self.lost[package] = None
                    return None
                need(reason in FOR_NOW, f"a claim of {package} was refused: {error.details()}")
                again, maybe = True, maybe or happened != "no"
            need(time.monotonic() < until, f"a claim of {package} has no answer after {WITHIN_S} s")
            self.repeated += 1
            self.at += 1
            time.sleep(self.rng.uniform(0.01, 0.05))

    def learn(self, package, reply, maybe):
        """Notes an answer. `maybe`: an earlier attempt may have happened."""
        if reply.done:
            self.won.append(package)
            return
        owner = reply.current.value
        right(owner, f"a claim of {package} was refused, and nobody owns it")
        if owner == self.owner:
            right(maybe, f"{package} belonged to {owner} before its only claim was sent")
            self.won.append(package)
        else:
            self.lost[package] = owner


def claim_under_kills(drill, cluster, gate, count, total):
    """Opens the gate part by part, and kills a node in the middle of each; how many processes were killed."""
    victims = cluster.ids() * drill.args.rounds
    kills = 0

    def answered(many):
        return lambda: gate.answered >= many or gate.failed

    for turn, victim in enumerate(victims):
        gate.open(count * (turn + 1) // len(victims))
        poll("claims are answered", WITHIN_S * 5, answered(total * (4 * turn + 1) // (4 * len(victims))))
        pids, _ = cluster.signal([victim])
        kills += len(pids)
        poll("claims are answered after a kill", WITHIN_S, answered(gate.answered + 1))
        cluster.wait_back(pids)
    poll("all claims are answered", WITHIN_S * 5, answered(total), every=0.1)
    if gate.failed:
        raise gate.failed
    return kills


def owners_at(address, keyspace, packages):
    """The owner of each package, and the listed keys, as one node tells."""
    with contextlib.closing(grpc.insecure_channel(address, options=CHANNEL)) as channel:
        stub = services.KeyspaceServiceStub(channel)
        owners = {}
        for start in range(0, len(packages), KEYS):
            some = packages[start : start + KEYS]
            reply = stub.Get(messages.GetRequest(keyspace=keyspace, keys=some), timeout=WITHIN_S, wait_for_ready=True)
            owners.update((package, found.held.value) for package, found in zip(some, reply.found))
        listed = [key.key for page in stub.Keys(messages.KeysRequest(keyspace=keyspace), timeout=WITHIN_S) for key in page.keys]
    return owners, listed


def judge(cluster, keyspace, clients, packages):
    """Each package has one owner, and everybody knows it."""
    winners = collections.defaultdict(list)
    for client in clients:
        for package in client.won:
            winners[package].append(client.owner)
    for package in packages:
        right(len(winners[package]) == 1, f"{package} was given to {winners[package]}")
    for client in clients:
        for package, owner in client.lost.items():
            shown = winners[package] if owner is None else [owner]
            words = f"{client.owner} was told that {package} belongs to {owner}; it was given to {winners[package]}"
            right(shown == winners[package] != [client.owner], words)
    for node in cluster.nodes():
        owners, listed = owners_at(node.grpc, keyspace, packages)
        for package in packages:
            right([owners[package]] == winners[package], f"on node {node.id}, {package} belongs to {owners[package]}, not to {winners[package]}")
        right(listed == packages, f"node {node.id} lists {len(listed)} keys, and not the {len(packages)} packages in their order")


def with_engine(drill, cluster, engine, packages):
    """All packages are claimed in a keyspace on this engine; a row of the table."""
    keyspace = f"owners-{engine}"
    cluster.atoll("kv", "create", keyspace, "--engine", engine, "--replicas", 3, "--durability", "disk")
    shares = collections.defaultdict(list)
    for index, package in enumerate(packages):
        for client in drill.random.sample(range(drill.args.clients), drill.args.rivals):
            shares[client].append((index, package))
    gate, addresses = Gate(), [node.grpc for node in cluster.nodes()]
    clients = [
        Client(gate, addresses, keyspace, number, shares[number], random.Random(drill.random.random())) for number in range(drill.args.clients)
    ]
    total, began = sum(map(len, shares.values())), time.monotonic()
    for client in clients:
        client.start()
    try:
        kills = claim_under_kills(drill, cluster, gate, len(packages), total)
        took = time.monotonic() - began
    except BaseException as error:
        gate.fail(error)
        raise
    for client in clients:
        client.join(WITHIN_S)
        need(not client.is_alive(), f"{client.owner} does not end")
    judge(cluster, keyspace, clients, packages)
    row = (len(packages), total, sum(len(c.lost) for c in clients), sum(c.repeated for c in clients), sum(c.forgotten for c in clients), kills)
    return (engine, *row, round(total / took))


def hunt(engine, packages):
    """What looks for a known bug of an engine."""
    return lambda drill, cluster: with_engine(drill, cluster, engine, packages[:BUG_PACKAGES])


def body(drill):
    need(drill.args.rivals <= drill.args.clients, f"--rivals is {drill.args.rivals}, at most --clients, {drill.args.clients}, are allowed")
    packages, origin = names(drill.args.packages)
    if len(packages) < drill.args.packages:
        say(f"there are only {len(packages)} packages")
    say(f"{len(packages)} names from {origin}")
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        rows = [with_engine(drill, cluster, engine, packages) for engine in ("bizur", "in-place")]
    say()
    table(rows, ("engine", "packages", "claims", "refused", "sent again", "forgotten", "kills", "claims per second"))
    known_bugs.find(drill, {bug: hunt(engine, packages) for bug, engine in BUGS.items()}, 3)
    drill.result.update(input=origin, packages=len(packages), claims=sum(r[2] for r in rows), kills=sum(r[6] for r in rows))


if __name__ == "__main__":
    Drill(
        "ownership",
        __doc__,
        packages=(60_000, 2_000, "how many packages are claimed"),
        clients=(64, 16, "how many clients claim them"),
        rivals=(2, 2, "how many clients claim each package"),
        rounds=(3, 1, "how often every node is killed"),
        mutant_bin=("", "", "a program with known bugs, which are looked for"),
    ).run(body)
