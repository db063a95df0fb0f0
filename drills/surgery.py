#!/usr/bin/env python3
"""Surgery on the log of the database: an entry stops every replica, and an operator takes it out, or puts another one in its place.

Real nodes run a test build with a known bug: creating a ZooKeeper node of the name `poison` panics at every replica (`ATOLL_MUTANT`). All
replicas stop at that entry, say where, and serve reads of the state before it (to ZooKeeper clients that allow read-only mode). Surgery
without `--yes` or a reason is refused, and so is one beyond the tail, below the trim point, with a file that is too long or no entry, on
another log, while another surgery is under way, and while a replica does not answer. A node dies in the middle of a surgery. Then `atoll
chain excise` takes that over, and takes the entry out. All replicas continue without a restart, with equal state hashes. `atoll chain
replace` does the same with another entry in its place. The audit shows who did what and why. After `kill -9` of all nodes, the replicas
come back past both positions.

`--test-bin` is a program that honours `ATOLL_MUTANT`: `cargo build -p atoll --features testing`. By default, ATOLL_TEST_BIN.
"""

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import threading
import time

from cluster import Cluster, Drill, NotRun, need, poll, say
from jute import CREATE, DELETE, EXISTS, GET, Wire, create, versioned, watched
from known_bugs import environment, test_build

NODES = 3
LOG = "db"
# Replicas keep a hash every so many entries.
HASH_EVERY = 256
# As few entries as the configuration allows: the log is trimmed soon.
KEEP = 100
# Replicas that have stopped look every half second whether the entry has changed.
CONTINUE_WITHIN = 20
# The longest replacement, in bytes.
LONGEST = 16 * 1024
NO_NODE, EXISTS_ALREADY = -101, -110


def replica(cluster, node):
    """What a node says of its replica. A replica that has stopped makes the verb fail."""
    done = cluster.atoll("database", "status", "--json", "--node", node, check=False)
    return json.loads(done.stdout.splitlines()[0])


def stopped(cluster):
    """Where each replica has stopped, by node; only of those that have."""
    where = {}
    for node in cluster.ids():
        found = re.search(r"log position (\d+)", replica(cluster, node)["halted"])
        if found:
            where[node] = int(found.group(1))
    return where


class Readers:
    """Clients that read through every node, in read-only mode while its replica has stopped, until they are stopped."""

    def __init__(self, cluster):
        self.counts = dict.fromkeys(cluster.ids(), 0)
        self.wrong = []
        self.over = False
        self.threads = [threading.Thread(target=self.read, args=(n.id, n.zookeeper)) for n in cluster.nodes()]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        for thread in self.threads:
            thread.join()

    def read(self, node, host):
        """Reads what was written before the poison. A node ends its connections when its replica stops, and when it continues."""
        while not self.over:
            with contextlib.suppress(OSError, struct.error):
                with contextlib.closing(Wire(host, patience_s=5, read_only=True)) as wire:
                    while not self.over:
                        _, error, reply = wire.call(GET, watched("/before"))
                        if error or reply.buffer() != b"it stays":
                            self.wrong.append(f"node {node}: error {error}")
                        self.counts[node] += 1
                        time.sleep(0.05)
            time.sleep(0.2)

    def served(self):
        """Waits until every node has answered again."""
        then = dict(self.counts)
        poll("every node answers reads", 20, lambda: self.wrong or all(self.counts[n] > then[n] for n in then), every=0.05)
        need(not self.wrong, f"reads fail: {self.wrong[:3]}")


def write(cluster, path, data=b""):
    """Creates a node through whichever node takes it."""
    def once():
        for node in cluster.nodes():
            with contextlib.suppress(OSError):
                wire = Wire(node.zookeeper, patience_s=5)
                try:
                    return wire.call(CREATE, create(path, data))[1] in (0, EXISTS_ALREADY)
                finally:
                    wire.close()
        return False

    poll(f"{path} is created", 60, once, every=0.2)


def fill(cluster, name, count):
    """Writes so many entries, one after the other. A node ends its connections when it begins to serve without the log, and when it has the
    log back."""
    def once():
        with contextlib.suppress(OSError), contextlib.closing(Wire(cluster.nodes()[0].zookeeper)) as wire:
            for _ in range(count):
                made, gone = wire.call(CREATE, create(f"/{name}"))[1], wire.call(DELETE, versioned(f"/{name}"))[1]
                need(made in (0, EXISTS_ALREADY) and gone in (0, NO_NODE), f"writes of {name} fail: {made}, {gone}")
            return True
        return False

    poll(f"{count} writes of {name}", 60, once, every=0.2)


def plant(cluster, path):
    """Creates the node that stops every replica; where they have stopped."""
    wire = Wire(cluster.nodes()[0].zookeeper, patience_s=3)
    with contextlib.suppress(OSError):
        wire.call(CREATE, create(path))
    wire.close()
    poll("all replicas have stopped", 30, lambda: len(stopped(cluster)) == NODES, every=0.2)
    where = stopped(cluster)
    need(len(set(where.values())) == 1, f"replicas have stopped at different entries: {where}")
    return where.popitem()[1]


def refused(cluster, words, *args, reason="it stops every replica", yes=True, timeout=60):
    """Surgery that must be refused with these words, and with an exit status that says so."""
    given = [*args, *(("--reason", reason) if reason is not None else ()), *(("--yes",) if yes else ())]
    done = cluster.atoll("chain", *given, check=False, timeout=timeout)
    error = done.stderr.decode(errors="replace")
    need(done.returncode in (1, 2) and words in error and "panicked" not in error, f"`{' '.join(map(str, given))}`: {done.returncode}: {error}")


def held(cluster):
    """The surgery that is under way."""
    return cluster.json("chain", "audit")["held"]


def refusals(drill, cluster, at):
    """What is no surgery. Nothing changes."""
    files = {name: drill.folder / name for name in ("garbage", "missing")}
    files["garbage"].write_bytes(b"no entry of a database")
    here, trim = ("--position", at), cluster.chain(LOG)["trim"]
    need(0 < trim <= at, f"the log is trimmed below {trim}, and the poison is at {at}")
    before = cluster.chain(LOG)["version"]
    refused(cluster, "--yes", "excise", *here, yes=False)
    refused(cluster, "--reason", "excise", *here, reason=None)
    refused(cluster, "reason", "excise", *here, reason=" ")
    refused(cluster, "beyond the tail", "excise", "--position", at + 1_000_000)
    refused(cluster, "was trimmed", "excise", "--position", trim - 1)
    refused(cluster, "not an entry", "replace", *here, "--with", files["garbage"])
    refused(cluster, "No such file", "replace", *here, "--with", files["missing"])
    refused(cluster, "has applied it", "excise", "--position", at - 1)
    cluster.create_log("other")
    refused(cluster, "only the log of the database", "excise", *here, "--log", "other")
    say(f"  refused: all that is no surgery, at chain version {before}")


def too_long(drill, cluster, at):
    """A valid entry that is longer than a replacement may be."""
    file = drill.folder / "longer"
    file.write_bytes(entry(cluster, at)[:32] + b"\x02\x01" + (LONGEST).to_bytes(4, "little") + bytes(LONGEST))
    refused(cluster, f"at most {LONGEST}", "replace", "--position", at, "--with", file)


def silent(cluster, at):
    """A replica that does not answer: surgery waits for it, another one meanwhile is refused, and then it is given up."""
    third = cluster.ids()[-1]
    others = cluster.connect(*cluster.ids()[:-1])
    with paused(cluster, third):
        args = ("chain", "excise", "--position", at, "--reason", "the first", "--yes")
        first = cluster.spawn(*args, connect=others, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        poll("the first surgery is under way", 20, lambda: held(cluster), every=0.2)
        done = cluster.atoll("chain", "excise", "--position", at, "--reason", "the second", "--yes", connect=others, check=False)
        need(done.returncode == 1 and b"another surgery is under way" in done.stderr, f"the second surgery: {done.stderr.decode()}")
        _, error = first.communicate(timeout=60)
        need(first.returncode == 1 and f"[{third}]" in error.decode(), f"the first surgery: {first.returncode}: {error.decode()}")
    need(held(cluster) is None and len(stopped(cluster)) == NODES, "a surgery that was given up has left something")
    say(f"  given up: node {third} did not answer")


def cut_short(cluster, at):
    """The node that does a surgery dies in the middle. The position stays held, so that another surgery can be refused, or take it over."""
    third = cluster.ids()[-1]
    with paused(cluster, third):
        args = ("chain", "excise", "--position", at, "--reason", "cut short", "--yes")
        first = cluster.spawn(*args, connect=cluster.connect(*cluster.ids()[:-1]), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        node = poll("the surgery is under way", 20, lambda: held(cluster), every=0.2)["node"]
        pids, _ = cluster.signal([node])
        first.communicate(timeout=60)
        need(first.returncode == 3, f"the surgery whose node has died: {first.returncode}")
    cluster.wait_back(pids)
    # It does not even read the entry, because the position is held.
    poll(f"the replica of node {node} is before the entry", 30, lambda: replica(cluster, node)["applied_below"] == at, every=0.2)
    refused(cluster, "another surgery is under way", "excise", "--position", at)
    say(f"  cut short: node {node} has died in the middle")


@contextlib.contextmanager
def paused(cluster, node):
    """A node that stands still in this block."""
    cluster.signal([node], signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.signal([node], signal.SIGCONT)


def entry(cluster, at):
    """The bytes of an entry."""
    return cluster.atoll("log", "read", "--log", LOG, "--from", at, "--limit", 1, "--raw").stdout[:-1]


def continues(cluster, at, name):
    """All replicas are behind the entry, and have equal hashes there."""
    began = time.monotonic()
    poll("all replicas continue", CONTINUE_WITHIN, lambda: not stopped(cluster), every=0.1)
    took = time.monotonic() - began
    write(cluster, f"/{name}")
    fill(cluster, f"{name}-more", HASH_EVERY)

    def hashes():
        all_of = [{h["below"]: h["hash"] for h in replica(cluster, node)["hashes"]} for node in cluster.ids()]
        common = [below for below in all_of[0] if below > at and all(below in other for other in all_of)]
        return [{other[below] for other in all_of} for below in common]

    poll("replicas have hashes at equal positions", 30, hashes, every=0.2)
    need(all(len(values) == 1 for values in hashes()), f"the hashes differ: {hashes()}")
    for node in cluster.ids():
        status = replica(cluster, node)
        need(not status["found"] and not status["out_of_service"], f"node {node}: {status}")
    return took


def exists(cluster, path):
    """Whether each node has a node of this name."""
    found = set()
    for node in cluster.nodes():
        wire = Wire(node.zookeeper)
        wire.call(9, b"\0\0\0\1/")
        error = wire.call(EXISTS, watched(path))[1]
        wire.close()
        need(error in (0, NO_NODE), f"exists {path}: {error}")
        found.add(error == 0)
    need(len(found) == 1, f"nodes disagree about {path}")
    return found.pop()


def operate(cluster, verb, at, *args):
    """Surgery; its record."""
    reason = f"{verb} of what the drill has planted"
    record = cluster.json("chain", verb, "--position", at, "--reason", reason, "--operator", "the drill", "--yes", *args)
    audited = cluster.json("chain", "audit")
    need(audited["records"][-1] == record and audited["held"] is None and at in audited["changed"], f"the audit: {audited}")
    need((record["position"], record["done"], record["operator"], record["reason"]) == (at, verb, "the drill", reason), f"the record: {record}")
    need(cluster.json("chain", "show", "--log", LOG)["surgery"]["records"] == audited["records"], "`chain show` has other records")
    return record


def body(drill):
    if not drill.args.test_bin:
        raise NotRun("no test build: set ATOLL_TEST_BIN")
    binary = test_build(drill.args.test_bin)
    with environment(ATOLL_MUTANT="ZkPoison"), Cluster(binary, drill.folder / "cluster", "--nodes", NODES) as cluster:
        cluster.configure(f"[database]\nkeep_entries = {KEEP}\n[zookeeper]\nread_only_mode = true")
        write(cluster, "/before", b"it stays")
        fill(cluster, "filler", 2 * KEEP)
        poll("the log is trimmed", 60, lambda: cluster.chain(LOG)["trim"] > 0, every=0.5)
        with Readers(cluster) as readers:
            at = plant(cluster, "/poison")
            say(f"  all {NODES} replicas have stopped at {at}")
            readers.served()
            refusals(drill, cluster, at)
            too_long(drill, cluster, at)
            readers.served()
            silent(cluster, at)
            old = entry(cluster, at)
            cut_short(cluster, at)
            record = operate(cluster, "excise", at, "--take-over")
            need(record["old_bytes"] == len(old) and record["new_hash"] is None, f"the record: {record}, of {len(old)} bytes")
            drill.result["excised_s"] = round(continues(cluster, at, "after-excise"), 2)
            readers.served()
        need(not exists(cluster, "/poison"), "the excised entry has taken effect")
        say(f"  excised: all replicas have continued after {drill.result['excised_s']} s")

        with Readers(cluster) as readers:
            second = plant(cluster, "/poison")
            file = drill.folder / "replacement"
            new = entry(cluster, second).replace(b"/poison", b"/potion")
            file.write_bytes(new)
            record = operate(cluster, "replace", second, "--with", file)
            need(record["new_hash"] not in (None, record["old_hash"]), f"the record: {record}")
            need(entry(cluster, second) == new, "readers of the log get another entry")
            drill.result["replaced_s"] = round(continues(cluster, second, "after-replace"), 2)
            readers.served()
        need(exists(cluster, "/potion") and not exists(cluster, "/poison"), "the replacement has not taken effect")
        say(f"  replaced: all replicas have continued after {drill.result['replaced_s']} s")

        pids, _ = cluster.signal(cluster.ids())
        cluster.wait_back(pids)
        poll("the cluster is back", 60, lambda: not stopped(cluster), every=0.5)
        continues(cluster, second, "after-restart")
        need(exists(cluster, "/potion") and not exists(cluster, "/poison"), "a restart has undone surgery")
        say(cluster.atoll("chain", "audit").stdout.decode().rstrip())
        drill.result["surgeries"] = len(cluster.json("chain", "audit")["records"])


if __name__ == "__main__":
    given = os.environ.get("ATOLL_TEST_BIN", "")
    Drill("surgery", __doc__, test_bin=(given, given, "a program with mutants")).run(body)
