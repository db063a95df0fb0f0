#!/usr/bin/env python3
"""Partial partitions of three and of five nodes, on real processes, each with its own network.

Packet filters cut the links between some nodes while other nodes still reach both ends: between two nodes, in both directions or in one;
between two sides that are connected only through one node; or all links but those of one node. Every node's door serves appends and a
ZooKeeper client. In each case no log is reconfigured more than 3 times, nor after the links are healed. Where a node reaches a majority,
appends and writes continue, the longest pause is under 1 s, and no other node takes over the sessions of its clients. In the end nothing is
lost or doubled. Needs root, iproute2 and nftables.
"""

import itertools
import time
import urllib.request

from cluster import Drill, need, say, table
from load import Load, verify
from networks import Networks
from served import Counter, Fresh, Serving

LOG = "parted"
LOGS = (LOG, "db")
MOST_RECONFIGURATIONS = 3
MOST_PAUSE_S = 1.0
# A log that was just moved rests before it moves for a reason that is not urgent (V18): between the drill's own move of it and the
# first cut there is so much time, in seconds.
CALM_S = 4.0
# After a cut is healed nothing else is done for so long, in seconds.
HEALED_S = 5.0


def both(*pairs):
    """Each pair in both directions."""
    return [d for a, b in pairs for d in ((a, b), (b, a))]


def partitions(count):
    """(words, directions that are cut) for every partial partition that is tried."""
    nodes = range(1, count + 1)
    cases = [(f"{a} and {b} apart", both((a, b))) for a, b in itertools.combinations(nodes, 2)]
    cases += [(f"{a} unheard by {b}", [(a, b)]) for a, b in itertools.permutations(nodes, 2)]
    if count == 5:
        for middle in nodes:
            rest = [n for n in nodes if n != middle]
            for other in rest[1:]:
                left = [rest[0], other]
                right = [n for n in rest if n not in left]
                words = f"{left[0]},{left[1]} and {right[0]},{right[1]} apart but for {middle}"
                cases.append((words, both(*itertools.product(left, right))))
        for middle in nodes:
            rest = [n for n in nodes if n != middle]
            cases.append((f"all apart but for {middle}", both(*itertools.combinations(rest, 2))))
    return cases


def doors_that_work(count, directions):
    """The nodes that reach a majority, themselves included, in both directions."""
    cut = set(directions)
    reaches = lambda a, b: (a, b) not in cut and (b, a) not in cut
    nodes = range(1, count + 1)
    return [a for a in nodes if 2 * sum(reaches(a, b) for b in nodes) > count]


class Door:
    """A node's door under load."""

    def __init__(self, drill, cluster, node):
        self.id = node.id
        every_s = drill.args.every_ms / 1000
        self.load = Load(cluster, drill.folder, LOG, name=f"n{node.id}", connect=node.grpc, depth=2, every_s=every_s).start()
        self.counter = Counter([node.zookeeper], f"/counter-{node.id}", every_s=0.02).start()

    def watch(self):
        """From now on acknowledgements are looked at."""
        self.since = time.time()
        self.fresh = Fresh(self.load)

    def pauses(self, until):
        """The longest time without an acknowledged append, and without an acknowledged write, since `watch`."""
        self.load._alive()
        if self.counter.failed:
            raise self.counter.failed
        longest = []
        for at in (self.fresh.read(), self.counter.at[-200_000:]):
            moments = [self.since, *(m for m in at if self.since < m < until), until]
            longest.append(max(b - a for a, b in zip(moments, moments[1:])))
        return longest


def moved(cluster):
    """How many segments guardians have made so far, by the metrics of all nodes."""
    total = 0
    for node in cluster.nodes():
        with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("atoll_reconfigurations_total{") and 'reason="failure"' in line:
                    total += int(float(line.split()[-1]))
    return total


def taken_over(cluster):
    """How often nodes have taken over the sessions of another node's clients so far, by their own words."""
    words = "took over the ZooKeeper sessions of a node that is gone"
    return sum(node.log.read_text(errors="replace").count(words) for node in cluster.nodes())


def settle(doors):
    """Waits until every door has an acknowledgement of each kind, so that one case does not judge the one before."""
    until = time.time() + 30
    for door in doors:
        door.watch()
    while time.time() < until:
        now = time.time()
        if all(max(door.pauses(now)) < now - door.since for door in doors):
            return
        time.sleep(0.05)
    need(False, f"doors {[d.id for d in doors]} do not all serve 30 s after everything was healed")


def judge(doors, working, what):
    """The longest pauses of the doors that must work since they were watched."""
    now = time.time()
    pauses = {door.id: door.pauses(now) for door in doors if door.id in working}
    stuck = [d for d, p in pauses.items() if max(p) >= now - doors[0].since - 0.05]
    need(not stuck, f"{what}: nothing is acknowledged at the doors of {stuck}, which reach a majority: pauses {pauses}")
    return max(p[0] for p in pauses.values()), max(p[1] for p in pauses.values())


def one(drill, cluster, networks, doors, words, directions):
    """One partition, and its end; a row of the table."""
    most = drill.within(MOST_PAUSE_S)
    working = doors_that_work(len(doors), directions)
    cluster.wait_up()
    settle(doors)
    row = [words]
    for what, seconds, act in (
        (words, drill.args.seconds, lambda: networks.cut(directions)),
        (f"healed after {words}", HEALED_S, networks.heal),
    ):
        before, taken = moved(cluster), taken_over(cluster)
        for door in doors:
            door.watch()
        act()
        time.sleep(seconds)
        # A door that was cut off may need longer than one that was not: it is judged by the next case.
        append, write = judge(doors, working, what)
        count = moved(cluster) - before
        row += [count, f"{1e3 * append:.0f}", f"{1e3 * write:.0f}"]
        need(count <= MOST_RECONFIGURATIONS * len(LOGS), f"{what}: {count} reconfigurations of {len(LOGS)} logs together; {MOST_RECONFIGURATIONS * len(LOGS)} are allowed")
        # No node is gone that reaches a majority, whoever does not hear it.
        taken = taken_over(cluster) - taken
        need(len(working) < len(doors) or not taken, f"{what}: sessions of nodes that serve their clients were taken over {taken} times")
        for kind, pause in (("appends", append), ("writes of ZooKeeper", write)):
            drill.promise(pause < most, f"{what}: {kind} paused for {pause:.2f} s at a door that reaches a majority; under {most} s is promised")
    say(f"  {words}: {row[1]} reconfigurations, pauses {row[2]} and {row[3]} ms; healed: {row[4]}, {row[5]} and {row[6]} ms")
    return row


def chosen(drill, count):
    """The cases of this run."""
    cases = partitions(count)
    if drill.args.cases and drill.args.cases < len(cases):
        # Those that were found to storm first, then some of each kind.
        kinds = [c for c in cases if c[0] == "1 and 2 apart"]
        rest = [c for c in cases if c not in kinds]
        drill.random.shuffle(rest)
        cases = (kinds + rest)[: drill.args.cases]
    return cases


def cluster_of(drill, count):
    """All cases on one cluster."""
    say(f"{count} nodes:")
    with Networks(count) as networks:
        place = lambda n: (networks.host(n), (7411, 7412, 7413, 2181), networks.within(n))
        with Serving(drill.binary, drill.folder / f"cluster-{count}", count, place) as cluster:
            servers = ",".join(str(n) for n in cluster.ids())
            for log in LOGS:
                if log == LOG:
                    cluster.create_log(LOG, drill.args.loglet)
                cluster.extend(log, "--servers", servers, "--sequencer", 1)
            doors = [Door(drill, cluster, node) for node in cluster.nodes()]
            time.sleep(CALM_S)
            rows = [one(drill, cluster, networks, doors, *case) for case in chosen(drill, count)]
            settle(doors)
            for door in doors:
                door.load.finish()
            written = sum(door.counter.finish() for door in doors)
            read = verify(cluster, [door.load for door in doors], LOG)
            say(f"  {read} records and {written} versions of znodes: none lost, none doubled")
    drill.result[f"nodes_{count}"] = {
        "cases": len(rows),
        "most_reconfigurations": max(max(r[1], r[4]) for r in rows),
        "longest_pause_ms": max(int(r[i]) for r in rows for i in (2, 3, 5, 6)),
        "records": read,
    }
    return [(count, *row) for row in rows]


def body(drill):
    rows = [row for count in (3, 5) for row in cluster_of(drill, count)]
    say("\nreconfigurations by nodes of both logs together; longest pause of appends and of writes of ZooKeeper, in milliseconds")
    table(rows, ("nodes", "cut", "moves", "appends", "writes", "healed: moves", "appends", "writes"))


if __name__ == "__main__":
    Drill(
        "partitions",
        __doc__,
        refuses={"local": "its log waits for the one node that has it, and nobody takes over"},
        seconds=(20, 6, "how long each partition lasts"),
        cases=(0, 3, "how many partitions of each cluster are tried; 0 is all"),
        # Pauses are found as well with a gap of a hundredth of the bound between two appends, for half of the processor time.
        every_ms=(0, 10, "milliseconds from one append at a door to the next; 0 is as fast as they are taken"),
    ).run(body)
