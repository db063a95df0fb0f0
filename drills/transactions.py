#!/usr/bin/env python3
"""Transactions of several keys change all of them or none, while every node and every client is killed in turn with `kill -9`.

Clients move amounts between accounts of an in-place keyspace on disk, through three real nodes. Each transfer is one `atoll kv txn` process.
The accounts are in groups of ten, and transfers stay in their group. Auditors read a whole group in one transaction: the sum must be the same
at every moment. Every node is killed in turn and started again, and so is the process of every client, in the middle of a transfer. After each
kill, every key of a transfer that was under way is read: none may be blocked for longer than a second. After each round, two readings of all
accounts between which nothing has changed must show the whole sum.

All requests and answers are a history. `atoll check linearizable` must find one order of all of them that explains every answer.

`--mutant-bin` is a program that honours `ATOLL_MUTANT`: `cargo build -p atoll --features testing`. The drill must find two known bugs with
it: keys that are only read are not locked, and only the coordinator knows what a committed transaction does to its keys.
"""

import json
import random
import subprocess
import threading
import time

import known_bugs
from cluster import Cluster, Drill, need, poll, say, table
from known_bugs import right

GROUP = 10
START = 100
NO, UNKNOWN, KILLED = 1, 3, -9
# A key may be blocked for so long, in seconds, with the time that it takes to start a process.
BLOCKED_AT_MOST = 1.0
# Known bugs of transactions that the drill must find, and for how many rounds it looks for one.
BUGS = ("InPlaceTx6", "InPlaceTx3")
BUG_ROUNDS = 20


def account(number):
    return f"account-{number:04d}"


def balance(value):
    """A value is the balance and the name of its transfer, which makes it the only one of its kind."""
    return int(value.split()[0])


def reason(done):
    """The reason of a verb that failed."""
    return json.loads(done.stderr.splitlines()[-1])["error"]["reason"]


class History:
    """Requests and answers, as `atoll check linearizable` reads them."""

    def __init__(self, path):
        self.lock, self.lines = threading.Lock(), 0
        self.file = open(path, "w", encoding="utf-8")
        self.path = path
        self.file.write('{"type": "table"}\n')

    def add(self, client, call, outcome, do, result=None):
        line = {"client": client, "call": call, "return": None, "outcome": outcome, "do": do}
        if outcome == "yes":
            line.update({"return": time.monotonic_ns(), "result": result})
        elif outcome == "no":
            line["return"] = time.monotonic_ns()
        with self.lock:
            self.lines += 1
            self.file.write(json.dumps(line) + "\n")

    def close(self):
        self.file.close()


class Client(threading.Thread):
    """Makes transfers, each in a process of its own, and audits, until it is told to stop."""

    def __init__(self, drill, cluster, history, number, rng):
        super().__init__(daemon=True)
        self.cluster, self.history, self.number, self.rng = cluster, history, number, rng
        self.groups = drill.args.accounts // GROUP
        addresses = cluster.connect().split(",")
        # Each client begins at another node.
        self.connect = ",".join(addresses[number % len(addresses):] + addresses[:number % len(addresses)])
        self.process, self.under_way, self.lock = None, [], threading.Lock()
        self.done = self.refused = self.unknown = self.audits = self.kills = self.turn = 0
        self.pausing, self.paused, self.stopping = threading.Event(), threading.Event(), threading.Event()
        self.error = None

    def txn(self, keys, lines):
        """Runs a transaction in a process that may be killed."""
        with self.lock:
            self.process = self.cluster.spawn(
                "kv", "txn", "bank", *lines, "--json", "--timeout", "20", connect=self.connect, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            self.under_way = keys
        out, error = self.process.communicate()
        with self.lock:
            self.under_way = []
        return subprocess.CompletedProcess(lines, self.process.returncode, out, error)

    def kill(self):
        """Kills the process of a transaction, if one is running. Gives back its keys."""
        with self.lock:
            if not self.under_way or self.process.poll() is not None:
                return []
            self.process.kill()
            self.kills += 1
            return list(self.under_way)

    def outcome(self, done):
        """yes, no or unknown."""
        if done.returncode == 0:
            return "yes"
        if done.returncode in (UNKNOWN, KILLED):
            return "unknown"
        need(done.returncode == NO, f"`atoll kv txn` ended with {done.returncode}: {done.stderr.decode()}")
        return "no"

    def read(self, keys):
        """What keys hold, each on its own; None if nobody answers."""
        call = time.monotonic_ns()
        done = self.cluster.atoll("kv", "get", "bank", *keys, "--json", "--timeout", "20", connect=self.connect, check=False)
        if done.returncode != 0:
            need(done.returncode == NO and reason(done) in ("unavailable", "busy", "stopping"), done.stderr.decode())
            return None
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        for row in rows:
            read = [{"value": row["value"], "version": row["version"]}]
            self.history.add(self.number, call, "yes", [{"get": {"key": row["key"]}}], {"done": {"read": read}})
        return rows

    def transfer(self):
        base = self.rng.randrange(self.groups) * GROUP
        keys = [account(n) for n in self.rng.sample(range(base, base + GROUP), 2)]
        rows = self.read(keys)
        if rows is None:
            return
        self.turn += 1
        amount = self.rng.randrange(1, 30)
        lines, steps = [], []
        for row, change in zip(rows, (-amount, amount)):
            value = f"{balance(row['value']) + change} c{self.number}.{self.turn}"
            lines += [f"if {row['key']} version {row['version']}", f'put {row["key"]} "{value}"']
            steps.append({"put": {"key": row["key"], "value": value, "expect": {"value": row["value"]}}})
        call = time.monotonic_ns()
        done = self.txn(keys, lines)
        outcome = self.outcome(done)
        if outcome == "yes":
            self.done += 1
            self.history.add(self.number, call, "yes", steps, {"done": {}})
        elif outcome == "unknown":
            self.unknown += 1
            self.history.add(self.number, call, "unknown", steps)
        else:
            self.refused += 1
            if reason(done) == "conflict":
                self.history.add(self.number, call, "yes", steps, "conflict")
            else:
                self.history.add(self.number, call, "no", steps)

    def audit(self):
        base = self.rng.randrange(self.groups) * GROUP
        keys = [account(n) for n in range(base, base + GROUP)]
        call = time.monotonic_ns()
        done = self.txn(keys, [f"get {key}" for key in keys])
        if self.outcome(done) != "yes":
            # It changes nothing, so it does not matter whether it happened.
            return
        rows = json.loads(done.stdout)["keys"]
        self.audits += 1
        read = [{"value": row["value"], "version": row["version"]} for row in rows]
        self.history.add(self.number, call, "yes", [{"get": {"key": key}} for key in keys], {"done": {"read": read}})
        total = sum(balance(row["value"]) for row in rows)
        right(total == GROUP * START, f"group {base // GROUP} has {total} instead of {GROUP * START}: {rows}")

    def run(self):
        try:
            while not self.stopping.is_set():
                if self.pausing.is_set():
                    self.paused.set()
                    time.sleep(0.01)
                elif self.rng.random() < 0.2:
                    self.audit()
                else:
                    self.transfer()
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for this thread
            self.error = error
        self.paused.set()

    def finish(self):
        self.stopping.set()
        self.join(90)
        need(not self.is_alive(), f"client {self.number} does not end")
        if self.error:
            raise self.error


class Bank:
    """The accounts, the clients, and what the drill measures."""

    def __init__(self, drill, cluster):
        self.drill, self.cluster = drill, cluster
        self.history = History(drill.folder / "history.jsonl")
        self.accounts = [account(n) for n in range(drill.args.accounts)]
        self.longest_block, self.probes, self.node_kills = 0.0, 0, 0
        self.open()
        self.clients = [
            Client(drill, cluster, self.history, n, random.Random(drill.random.random())) for n in range(1, drill.args.clients + 1)
        ]

    def open(self):
        self.cluster.atoll("kv", "create", "bank", "--engine", "in-place", "--replicas", 3, "--shards", 8)
        for at in range(0, len(self.accounts), 50):
            part, call = self.accounts[at:at + 50], time.monotonic_ns()
            self.cluster.atoll("kv", "txn", "bank", *[line for key in part for line in (f"if {key} absent", f'put {key} "{START} open"')])
            steps = [{"put": {"key": key, "value": f"{START} open", "expect": "absent"}} for key in part]
            self.history.add(0, call, "yes", steps, {"done": {}})

    def progress(self, count=3):
        """Waits until every client has made so many more transfers."""
        goals = [client.done + count for client in self.clients]
        poll(
            "transfers continue", 90, lambda: all(c.done >= goal or c.error for c, goal in zip(self.clients, goals)), every=0.02
        )
        for client in self.clients:
            if client.error:
                raise client.error

    def probe(self, keys, connect):
        """Reads keys whose transactions have lost their client or their node, and measures how long they are blocked."""
        if not keys:
            return
        began = time.monotonic()
        done = self.cluster.atoll("kv", "get", "bank", *keys, "--json", "--timeout", "20", connect=connect, check=False)
        right(done.returncode == 0, f"one of {keys} cannot be read: {done.stderr.decode()}")
        self.longest_block = max(self.longest_block, time.monotonic() - began)
        self.probes += len(keys)

    def kill_node(self, number):
        """Kills a node, and reads the keys of all transfers that were under way, through the others."""
        others = self.cluster.connect(*[n for n in self.cluster.ids() if n != number])
        keys = sorted({key for client in self.clients for key in client.under_way})
        pids, _ = self.cluster.signal([number])
        self.node_kills += len(pids)
        self.probe(keys, others)
        self.progress()
        self.cluster.wait_back(pids)
        self.progress()

    def kill_client(self, client):
        keys = poll(f"client {client.number} executes a transaction", 60, lambda: client.kill() or client.error, every=0.003)
        if client.error:
            raise client.error
        self.probe(keys, self.cluster.connect())
        self.progress(1)

    def read_all(self):
        rows = {}
        for at in range(0, len(self.accounts), 250):
            done = self.cluster.atoll("kv", "get", "bank", *self.accounts[at:at + 250], "--json", "--timeout", "30")
            rows.update((row["key"], row) for row in map(json.loads, done.stdout.splitlines()))
        return rows

    def check_sum(self):
        """While all clients pause: two readings between which nothing has changed show one moment."""
        for client in self.clients:
            client.paused.clear()
            client.pausing.set()
        poll("all clients pause", 60, lambda: all(c.paused.is_set() or not c.is_alive() for c in self.clients))
        last = [self.read_all()]

        def quiet():
            last.append(self.read_all())
            return last[-1] == last[-2] and last[-1]

        rows = poll("nothing changes between two readings", 60, quiet)
        total = sum(balance(row["value"]) for row in rows.values())
        right(total == START * len(self.accounts), f"all accounts have {total} instead of {START * len(self.accounts)}")
        for client in self.clients:
            client.pausing.clear()
            if client.error:
                raise client.error


def bad_input(cluster):
    """What cannot be is refused, with what is allowed."""
    cluster.atoll("kv", "create", "reef", "--engine", "bizur", "--shards", 1, "--buckets", 1)
    for words, keyspace, lines in (
        ('line 2: "pat" begins no line', "bank", ["get a", "pat a 1"]),
        ("is read and changed", "bank", ["get a", "put a 1"]),
        ("at most 64 are allowed", "bank", [f"get k{n}" for n in range(65)]),
        ("1 to 200 are allowed", "bank", [f"get {'k' * 300}"]),
        ("at most 262144 are allowed", "bank", [f"put k{n} {'v' * 30_000}" for n in range(9)]),
        ("have no transactions of several keys", "reef", ["get a"]),
        ("there is no keyspace", "sand", ["get a"]),
        ("account-0000 has version", "bank", ["if account-0000 absent", "put account-0000 1"]),
    ):
        done = cluster.atoll("kv", "txn", keyspace, *lines, check=False)
        need(done.returncode in (NO, 2) and words in done.stderr.decode(), f"{lines[0][:80]}: {done.stderr.decode()}")


def rounds(drill, cluster, count):
    """Kills every node and every client so many times while the others make transfers. Gives back the bank."""
    bank = Bank(drill, cluster)
    try:
        for client in bank.clients:
            client.start()
        bank.progress()
        for _ in range(count):
            for number in cluster.ids():
                bank.kill_node(number)
            for client in bank.clients:
                bank.kill_client(client)
            bank.check_sum()
        for client in bank.clients:
            client.finish()
    finally:
        for client in bank.clients:
            client.stopping.set()
    bank.check_sum()
    bank.history.close()
    checked = cluster.atoll("check", "linearizable", "--history", bank.history.path, timeout=400, check=False)
    right(checked.returncode == 0, f"the history is not explained: {checked.stdout.decode()[-3000:]}{checked.stderr.decode()[-1000:]}")
    return bank


def hunt(drill, cluster):
    """Looks for a known bug."""
    # In few accounts, transactions meet.
    drill.args.accounts = 50
    rounds(drill, cluster, BUG_ROUNDS)


def body(drill):
    args = drill.args
    need(args.accounts % 50 == 0, "the number of accounts must be a multiple of 50")
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        bank = rounds(drill, cluster, args.rounds)
        bad_input(cluster)
    clients = bank.clients
    say()
    rows = [(c.number, c.done, c.refused, c.unknown, c.audits, c.kills) for c in clients]
    table(rows, ("client", "transfers", "refused", "unknown", "audits", "kills"))
    drill.promise(
        bank.longest_block <= drill.within(BLOCKED_AT_MOST),
        f"a key was blocked for {bank.longest_block:.2f} s; at most {drill.within(BLOCKED_AT_MOST)} s are allowed",
    )
    drill.result.update(
        transfers=sum(c.done for c in clients),
        audits=sum(c.audits for c in clients),
        unknown=sum(c.unknown for c in clients),
        node_kills=bank.node_kills,
        client_kills=sum(c.kills for c in clients),
        probes=bank.probes,
        longest_block_s=round(bank.longest_block, 3),
        history=bank.history.lines,
    )
    known_bugs.find(drill, {bug: hunt for bug in BUGS}, nodes=3)


if __name__ == "__main__":
    Drill(
        "transactions",
        __doc__,
        accounts=(1000, 100, "how many accounts there are"),
        clients=(8, 3, "how many clients make transfers"),
        rounds=(5, 1, "how often every node and every client is killed"),
        mutant_bin=("", "", "a program with mutants, to be found wrong"),
    ).run(body)
