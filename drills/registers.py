#!/usr/bin/env python3
"""The chain of a log moves from the cluster to etcd, on to an S3 server, and back, while the log is written and nodes are killed.

Three real nodes have two logs. Each is appended to without a pause, and every record is accounted for at the end, through every node. The
chain of one log moves around, `--rounds` times, and at each place the log is reconfigured; at each place a node is killed with `kill -9`. The
stores show that the chain was there. The etcd is a real server, built from its Go module, and so is the S3 server.

Then, while the chain is in etcd, etcd is killed. Appends to both logs go on. The other log is reconfigured as ever; the first one is not, and
the refusal and the status name the registers that do not answer. A node that is killed meanwhile comes back. Once etcd is there again, the log
is reconfigured, and its chain goes home.

Registers that no node has, a chain that is not there, and registers that one node lacks are refused by name, and nothing moves.
"""

import contextlib
import os
import time

import etcd_server
import object_server
from cluster import Cluster, Drill, holders, need, poll, say, table
from load import Load, verify

MOVED, STAYS = "moved", "stays"
HOME, ETCD, STORE = "home", "etcd", "s3"
# The longest time between two acknowledgements while chains move and nodes that order nothing are killed, in seconds.
MOST_GAP_S = 5.0
# How often a move is tried while a node that was killed is on its way back, in seconds.
MOVE_WITHIN_S = 60


def place(cluster, log, connect=None):
    """Where the chain of a log is."""
    return cluster.chain(log, connect=connect)["registers"]


def move(cluster, to):
    """Moves the chain; the seconds that the command took that did it."""
    def ask():
        began = time.monotonic()
        done = cluster.atoll("chain", "move", "--log", MOVED, "--to", to, "--json", check=False)
        return time.monotonic() - began if done.returncode == 0 else None

    took = poll(f"the chain moves to {to}", MOVE_WITHIN_S, ask, every=0.2)
    for number in cluster.ids():
        with_node = cluster.connect(number)
        poll(f"node {number} finds the chain in {to}", 30, lambda: place(cluster, MOVED, with_node) == to, every=0.2)
    return took


def extend(cluster, log):
    """Reconfigures a log."""
    poll(f"{log} is reconfigured", 30, lambda: cluster.extend(log, check=False), every=0.2)


def kill_one(drill, cluster):
    """Kills a node, whichever, and waits until it is back."""
    number = drill.random.choice(cluster.ids())
    pids, _ = cluster.signal([number])
    cluster.wait_back(pids)
    return number


def around(drill, cluster, etcd, bucket):
    """Moves the chain through all places."""
    took = {ETCD: [], STORE: [], HOME: []}
    for turn in range(drill.args.rounds):
        for to in took:
            took[to].append(move(cluster, to))
            extend(cluster, MOVED)
            extend(cluster, STAYS)
            say(f"turn {turn}: the chain is in {to}, and node {kill_one(drill, cluster)} was killed")
            need(place(cluster, STAYS) == HOME, "a chain has moved that nobody moved")
    need(any(key.startswith("/drill/registers/log") for key in etcd.keys("/drill/")), f"etcd has no chain: {etcd.keys('/')}")
    need(list(bucket.glob("chains/registers/at/log*")), "the object store has no chain")
    say()
    table([(to, len(all_), f"{min(all_):.3f}", f"{max(all_):.3f}") for to, all_ in took.items()], ("moved to", "times", "shortest s", "longest s"))


def words_of(done):
    """What a command said."""
    return (done.stdout + done.stderr).decode(errors="replace")


def refused(cluster, *args, words):
    """A command that must be refused with all these words."""
    said = cluster.atoll("chain", "move", *args, "--json", check=False)
    need(said.returncode != 0 and all(word in words_of(said) for word in words), f"{args} was answered with {words_of(said)!r}")


def bad_moves(cluster):
    """What cannot be moved stays."""
    refused(cluster, "--log", MOVED, "--to", "nowhere", words=("nowhere", HOME, ETCD, STORE))
    refused(cluster, "--log", "none", "--to", ETCD, words=("no-such-log",))
    need(place(cluster, MOVED) == HOME, "a refused move has moved a chain")


def outage(drill, cluster, etcd, loads):
    """etcd is away while it has the chain."""
    move(cluster, ETCD)
    ordered = cluster.sequencer(MOVED)
    before = {log: load.acknowledged() for log, load in loads.items()}
    etcd.kill()
    began = time.time()
    time.sleep(drill.args.outage_s)
    done = cluster.atoll("chain", "extend", "--log", MOVED, "--json", check=False, timeout=120)
    named = f'registers \\"{ETCD}\\"', "do not answer"
    need(done.returncode != 0 and all(word in words_of(done) for word in named), f"a reconfiguration without etcd: {words_of(done)!r}")
    need(cluster.extend(STAYS), "the other log is not reconfigured while etcd is away")
    rows = {row["name"]: row for row in cluster.status()["logs"]}
    need(not rows[MOVED]["healthy"] and ETCD in rows[MOVED]["reason"], f"the status is {rows[MOVED]}")
    need(rows[STAYS]["healthy"], f"the status is {rows[STAYS]}")
    refused(cluster, "--log", MOVED, "--to", HOME, words=("registers", "answer"))
    # Without the node that orders the appends of this log, they would wait for a reconfiguration, and so for etcd.
    pids, _ = cluster.signal([next(n for n in cluster.ids() if n not in (ordered, cluster.sequencer(STAYS)))])
    cluster.wait_back(pids)
    for log, load in loads.items():
        poll(f"{log} is appended to while etcd is away", 30, lambda: load.acknowledged() > before[log] + 100, every=0.1)
    until = time.time()
    etcd.start()
    extend(cluster, MOVED)
    poll("the status is well again", 30, lambda: all(row["healthy"] for row in cluster.status()["logs"]), every=0.2)
    for log, load in loads.items():
        gap = load.acks().longest_gap(began, until)
        say(f"while etcd was away, the longest time between two acknowledgements of {log} was {gap:.3f} s")
        drill.promise(gap <= drill.within(MOST_GAP_S), f"{log} was not appended to for {gap:.3f} s while etcd was away")
        drill.result[f"gap_{log}_s"] = round(gap, 3)
    move(cluster, HOME)


def lacking(cluster):
    """Registers that one node does not have are refused, and the node is named."""
    node = cluster.node(3)
    text = node.config.read_text()
    node.config.write_text(text.replace("/drill\"", "/other\""))
    pids, _ = cluster.signal([node.id])
    cluster.wait_back(pids)
    # The others may not have noticed yet that it was away; it knows who hears it now.
    for number in (3, 1, 2):
        states = lambda at=cluster.connect(number): [n["state"] for n in cluster.status(connect=at)["nodes"]]
        poll(f"all are up for node {number}", 30, lambda: set(states()) == {"up"}, every=0.2)
    refused(cluster, "--log", MOVED, "--to", ETCD, words=("node 3 has etcd://",))
    node.config.write_text(text)
    need(place(cluster, MOVED) == HOME, "a refused move has moved a chain")


def body(drill):
    with contextlib.ExitStack() as until:
        etcd = until.enter_context(etcd_server.Server(drill.folder / "etcd"))
        server = until.enter_context(object_server.Server(drill.folder / "s3"))
        os.environ.update(until.enter_context(object_server.Proxy(server, drill.seed)).environment())
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3))
        tables = {ETCD: f"etcd://{etcd.address}/drill", STORE: f"s3://{object_server.BUCKET}/chains"}
        cluster.configure("".join(f'[[registers]]\nname = "{name}"\nurl = "{url}"\n' for name, url in tables.items()))
        loads = {}
        for log in (MOVED, STAYS):
            cluster.create_log(log)
            loads[log] = Load(cluster, drill.folder, log=log, every_s=0.005).start()
        need(len(holders(cluster.active(MOVED))) == 3, "the log is not on all nodes")
        around(drill, cluster, etcd, server.bucket)
        bad_moves(cluster)
        outage(drill, cluster, etcd, loads)
        lacking(cluster)
        appended = {log: load.finish() for log, load in loads.items()}
        for number in cluster.ids():
            for log, load in loads.items():
                verify(cluster, [load], log, connect=cluster.connect(number))
    drill.result.update(appended=appended)
    say(f"every record is there once, in order, through every node: {appended}")


if __name__ == "__main__":
    Drill(
        "registers",
        __doc__,
        rounds=(10, 1, "how often the chain goes through all places"),
        outage_s=(30.0, 3.0, "how long etcd is away before anything is asked of it"),
    ).run(body)
