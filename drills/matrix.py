#!/usr/bin/env python3
"""The log under the ZooKeeper door moves from every kind of Loglet to every other one while clients write.

Six nodes serve. The log of their database goes along a path that has each ordered pair of kinds once, and goes it `--rounds` times. One of
the kinds keeps the log in a ZooKeeper ensemble, which is another cluster of three nodes, one in an object store, which is a directory, and
one in three servers of NATS, which `go` builds. The short form leaves out the last one, and the whole form says so if it cannot be built.
Meanwhile clients on all nodes overwrite a znode of their own, each time under the version that the last answer gave, and wait for each
answer. No write fails; each answer has the next version, so none was lost or done twice. In the end, all nodes show the same. The pause of
a move is the longest time for which a client waited for an answer, of all waits that began before half a second after the return of the
command, and ended after its start.

`--table FILE` writes the pauses of all pairs into a page.
"""

import bisect
import contextlib
import os
import pathlib
import threading
import time

import jute
from cluster import Cluster, Drill, Failed, NotRun, need, poll, quantile, say, table
from log_service_servers import PASSWORD, USER, Service, program
from networks import Loopback
from zookeeper_disturb import takes_writes

LOG = "db"
# A pause lasts until this long after the command's return, in seconds.
AFTER_S = 0.5
# The longest median of the pauses of a pair, and the longest pause, in milliseconds.
P50_MS, MOST_MS = 250.0, 2000.0


def kinds(folder, ensemble, service):
    """The kinds, each with the words that place its next Loglet."""
    some = {
        "local": ("local", "--servers", 1),
        "native, 3": ("native", "--servers", "1,2,3", "--sequencer", 1),
        "native, 5": ("native", "--servers", "1,2,3,4,5", "--sequencer", 4),
        "rotating": ("striped", "--option", "mode=rotating", "--option", "stripes=2", "--servers", "1,2,3", "--place", "sequencer=1,2"),
        "sharded": (
            "striped", "--option", "mode=sharded", "--option", "stripes=2", "--place", "server=1,2,3,4,5,6", "--place", "sequencer=1,4",
        ),
        "corfu": ("corfu", "--option", "chains=1", "--place", "unit=1,2", "--place", "sequencer=3"),
        "scalog": (
            "scalog", "--option", "shards=2", "--place", "storage=1,2,3,4", "--place", "ordering/server=1,2,3", "--place", "ordering/sequencer=1",
        ),
        "zookeeper": ("zookeeper-loglet", "--option", f"connect={ensemble}", "--option", "root=/matrix"),
        "object": ("object", "--option", f"url=file://{folder / 'store'}"),
    }  # fmt: skip
    if service:
        some["log service"] = ("log-service", "--option", f"servers={service.addresses()}")
    return some


def log_service(drill):
    """Three servers of NATS, or None where they are not wanted, or cannot be built."""
    if not drill.args.log_service:
        return contextlib.nullcontext()
    try:
        return Service(program(), drill.folder / "service", Loopback())
    except NotRun as words:
        say(f"without the log service: {words}")
        drill.result["log_service"] = "not run"
        return contextlib.nullcontext()


def path_of_all_pairs(names, rng):
    """A walk that has each ordered pair once, and ends where it began: Hierholzer's algorithm on the complete graph."""
    left = {name: rng.sample([other for other in names if other != name], len(names) - 1) for name in names}
    stack, path = [names[0]], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            path.append(stack.pop())
    return path[::-1]


class Client(threading.Thread):
    """Overwrites its znode again and again, with one write under way."""

    def __init__(self, host, number):
        super().__init__(daemon=True, name=f"client {number}")
        self.path = f"/matrix-{number}"
        self.wire = jute.Wire(host)
        need(self.wire.session, f"no session with {host}")
        _, error, _ = self.wire.call(jute.CREATE, jute.create(self.path, b"0"))
        need(error == 0, f"{self.path} was not created: {error}")
        # When each write was acknowledged, in seconds since 1970; the first is the create.
        self.acks = [time.time()]
        self.over = threading.Event()
        self.trouble = None

    def run(self):
        try:
            while not self.over.is_set():
                version = len(self.acks) - 1
                _, error, reply = self.wire.call(jute.SET, jute.written(self.path, b"%d" % (version + 1), version))
                need(error == 0, f"write {version + 1} of {self.path} failed: {error}")
                got = reply.stat()[4]
                need(got == version + 1, f"write {version + 1} of {self.path} made version {got}")
                self.acks.append(time.time())
        except (OSError, ConnectionError, Failed, AssertionError) as trouble:
            self.trouble = trouble

    def longest_wait(self, begin, end):
        """The longest time between two answers of which a part is in this time, in seconds, once the client has ended."""
        first = max(0, bisect.bisect_right(self.acks, begin) - 1)
        acks = self.acks[first : bisect.bisect_right(self.acks, end) + 1]
        return max((b - a for a, b in zip(acks, acks[1:])), default=0.0)

    def finish(self):
        """Ends it; how many writes it did."""
        self.over.set()
        self.join(60)
        need(not self.is_alive(), f"{self.name} waits for an answer")
        need(self.trouble is None, f"{self.name}: {self.trouble}")
        return len(self.acks) - 1


def same_everywhere(cluster, clients):
    """Each node shows the last write of each client, and as many versions as were acknowledged."""
    for host in cluster.zookeeper().split(","):
        wire = jute.Wire(host)
        _, error, _ = wire.call(jute.SYNC, jute.string("/"))
        need(error == 0, f"a sync at {host} failed: {error}")
        for client in clients:
            _, error, reply = wire.call(jute.GET, jute.watched(client.path))
            need(error == 0, f"{client.path} cannot be read at {host}: {error}")
            value, version, wanted = reply.buffer(), reply.stat()[4], len(client.acks) - 1
            need((value, version) == (b"%d" % wanted, wanted), f"{client.path} is {value} in version {version} at {host}, not {wanted}")
        wire.close()


def move(cluster, clients, words):
    """Moves the log; the time in which it may show, in seconds since 1970."""
    kind, before, began = words[0], cluster.active(LOG)["loglet"], time.time()
    after = cluster.json("chain", "extend", "--log", LOG, "--loglet", *words)["segments"][-1]
    need(after["kind"] == kind and after["loglet"] != before, f"after the extend to {words} the active segment is {after}")
    end = time.time() + AFTER_S
    time.sleep(AFTER_S)
    for client in clients:
        need(client.trouble is None, f"{client.name}, while the log moved to {words}: {client.trouble}")
    return began, end


def page(names, pauses, rounds):
    """The page with the table."""
    lines = [
        "# Moves between all kinds of Loglets",
        "",
        f"What clients of the ZooKeeper door wait while the log under it moves, in milliseconds: the median and the longest of {rounds}",
        "moves from the kind of the row to that of the column. A line of the drill's result has the load of the machine.",
        "[reference.md](reference.md) has what the kinds are; `native` is on three and on five nodes, the stripes of `rotating` share three",
        "servers, those of `sharded` have three each, `zookeeper` is behind the ZooKeeper door of another cluster, `object` is a directory, and",
        "`log service` is three servers of NATS that sync every message.",
        "",
        "`drills/matrix.py --table docs/matrix.md` writes this page.",
        "",
        "| from | " + " | ".join(f"to {name}" for name in names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for source in names:
        cells = (f"{1e3 * quantile(some, 0.5):.0f}, {1e3 * max(some):.0f}" if (some := pauses.get((source, to))) else "" for to in names)
        lines.append(f"| {source} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def judge(drill, names, pauses):
    """Says what the pauses were, and holds them against the bounds."""
    rows = []
    for to in names:
        into = [1e3 * p for (_, reached), some in pauses.items() if reached == to for p in some]
        rows.append((to, len(into), *(f"{quantile(into, q):.0f}" for q in (0.5, 0.99)), f"{max(into):.0f}"))
    say()
    table(rows, ("to", "moves", "pause p50 ms", "p99 ms", "most ms"))
    everything = [1e3 * p for some in pauses.values() for p in some]
    drill.result.update(moves=len(everything), p50_ms=round(quantile(everything, 0.5), 1), p99_ms=round(quantile(everything, 0.99), 1), max_ms=round(max(everything), 1))
    worst = max(pauses, key=lambda pair: quantile(pauses[pair], 0.5))
    median = 1e3 * quantile(pauses[worst], 0.5)
    bound, most = drill.within(P50_MS), drill.within(MOST_MS)
    drill.promise(median <= bound, f"from {worst[0]} to {worst[1]} the median pause is {median:.0f} ms; at most {bound:.0f} ms is promised")
    drill.promise(max(everything) <= most, f"the longest pause is {max(everything):.0f} ms; at most {most:.0f} ms is promised")


def body(drill):
    args = drill.args
    os.environ.update(ATOLL_LOG_SERVICE_USER=USER, ATOLL_LOG_SERVICE_PASSWORD=PASSWORD)
    with (
        log_service(drill) as service,
        Cluster(drill.binary, drill.folder / "ensemble", "--nodes", 3) as ensemble,
        Cluster(drill.binary, drill.folder / "cluster", "--nodes", 6) as cluster,
    ):
        addresses = ensemble.zookeeper()
        for address in [*addresses.split(","), *cluster.zookeeper().split(",")]:
            poll(f"{address} takes writes", 60, lambda: takes_writes(address))
        all_kinds = kinds(drill.folder, addresses, service)
        names = list(all_kinds)
        clients = [Client(host, number) for number, host in enumerate(cluster.zookeeper().split(","))]
        for client in clients:
            client.start()
        windows = {}
        move(cluster, clients, all_kinds[names[0]])
        for number in range(args.rounds):
            path = path_of_all_pairs(names, drill.random)[: args.moves + 1 if args.moves else None]
            for source, to in zip(path, path[1:]):
                windows.setdefault((source, to), []).append(move(cluster, clients, all_kinds[to]))
            say(f"round {number + 1} of {args.rounds}: {len(path) - 1} moves, {sum(len(c.acks) for c in clients)} writes")
        drill.result["writes"] = sum(client.finish() for client in clients)
        same_everywhere(cluster, clients)
    pauses = {pair: [max(client.longest_wait(*window) for client in clients) for window in some] for pair, some in windows.items()}
    judge(drill, [name for name in names if any(name == to for _, to in pauses)], pauses)
    say(f"{drill.result['writes']} writes; none failed, was lost or done twice")
    if args.table:
        pathlib.Path(args.table).write_text(page(names, pauses, args.rounds))


if __name__ == "__main__":
    Drill(
        "matrix",
        __doc__,
        rounds=(5, 1, "how often the log goes through all pairs"),
        moves=(0, 24, "at most so many moves of each round; 0: all"),
        log_service=(1, 0, "1: one of the kinds is the log service"),
        table=("", "", "write the pauses of all pairs into this page"),
    ).run(body)
