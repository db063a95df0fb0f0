#!/usr/bin/env python3
"""Slow and lossy links between three nodes, on real processes, each with its own network.

Every node's door serves appends, a ZooKeeper client and a table client. The faults are: all links lose 1 % and then 10 % of their packets;
all links between nodes take 20 ms, plus or minus 10; the link between the sequencer's node and one other takes 100 ms; all links of the
sequencer's node take 100 ms, including those to clients. During a fault every door serves all three clients, and the longest pause is 1 s
(3 s if the sequencer's node is slow, 5 s at 10 % loss). The two logs together are reconfigured at most twice per fault (six times at 10 %
loss), including the time after its end. Within 10 s of its end, every client is back to at least half of its earlier pace. In the end
nothing is lost, doubled or out of order. nftables draws the losses (`numgen random`), and slow_cables.py makes the delays, because not
every kernel has netem. Needs root, iproute2, nftables and /dev/net/tun.
"""

import itertools
import os
import shutil
import time
from dataclasses import dataclass

import slow_cables
from cluster import Drill, NotRun, need, poll, say, table
from load import Load, verify
from networks import DRILL, Networks
from partitions import CALM_S, HEALED_S, moved, settle
from row_counter import RowCounter, make_table
from served import Counter, Fresh, Serving
from slow_cables import SlowCables

LOG = "slow"
LOGS = (LOG, "db")
NODES = 3
# The node that has the sequencers when a fault begins.
FIRST = 1
# Each client writes so often, or as often as it is answered.
APPEND_EVERY_S, WRITE_EVERY_S = 0.005, 0.02
KINDS = ("appends", "znodes", "rows")
# The pace is back when each kind of write comes at each door this many times as often as before the fault, within this time.
PACE, PACE_WITHIN_S = 0.5, 10.0
# Of so many seconds.
PACE_OF_S = 2.0


def both(pairs):
    """Each pair in both directions."""
    return [way for a, b in pairs for way in ((a, b), (b, a))]


BETWEEN_NODES = both(itertools.combinations(range(1, NODES + 1), 2))
ALL = both(itertools.combinations([*range(1, NODES + 1), DRILL], 2))


@dataclass(frozen=True)
class Case:
    """A fault. Each log may be reconfigured `moves` times for it; `pause` is the longest time without an acknowledgement."""

    words: str
    links: list
    moves: int
    pause: float
    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0

    def begin(self, networks, cables):
        """From now on it is there."""
        if self.loss:
            networks.lose(self.links, self.loss)
        if self.delay_ms:
            cables.slow(self.links, self.delay_ms, self.jitter_ms)

    def end(self, networks, cables):
        """It is over; it must have been there."""
        held, lost = cables.carried() if self.delay_ms else 0, networks.lost()
        networks.heal()
        cables.heal()
        need(bool(held) == bool(self.delay_ms) and bool(lost) == bool(self.loss), f"{self.words}: {held} packets were held, {lost} lost")
        return held, lost


CASES = (
    Case("10 % lost on all links", ALL, 3, 5.0, loss=0.1),
    Case("the sequencer's node slow, 100 ± 30 ms", both((FIRST, n) for n in (2, 3, DRILL)), 1, 3.0, delay_ms=100, jitter_ms=30),
    Case("one link of three slow, 100 ± 30 ms", both([(FIRST, 2)]), 1, 1.0, delay_ms=100, jitter_ms=30),
    Case("all links 20 ± 10 ms", BETWEEN_NODES, 1, 1.0, delay_ms=20, jitter_ms=10),
    Case("1 % lost on all links", ALL, 1, 1.0, loss=0.01),
)


class Door:
    """A node's doors under load."""

    def __init__(self, drill, cluster, node):
        self.id = node.id
        self.load = Load(cluster, drill.folder, LOG, name=f"n{node.id}", connect=node.grpc, depth=4, every_s=APPEND_EVERY_S).start()
        self.counter = Counter([node.zookeeper], f"/counter-{node.id}", every_s=WRITE_EVERY_S).start()
        self.rows = RowCounter([node.grpc], f"counter-{node.id}", every_s=WRITE_EVERY_S).start()
        self.watch()

    def watch(self):
        """From now on acknowledgements are looked at."""
        self.since = time.time()
        self.fresh = Fresh(self.load)
        self.seen = [len(self.counter.at), len(self.rows.at)]

    def moments(self, until):
        """The acknowledgements since `watch`, of each kind."""
        self.load._alive()
        for counter in (self.counter, self.rows):
            if counter.failed:
                raise counter.failed
        znodes, rows = self.seen
        return [[at for at in kind if self.since < at < until] for kind in (self.fresh.read(), self.counter.at[znodes:], self.rows.at[rows:])]

    def pauses(self, until):
        """The longest time without an acknowledgement since `watch`, of each kind."""
        steps = [[self.since, *kind, until] for kind in self.moments(until)]
        return [max(b - a for a, b in zip(moments, moments[1:])) for moments in steps]

    def pace(self, until, last_s=None):
        """Acknowledgements a second, of each kind: since `watch`, or of the last seconds."""
        begin = max(self.since, until - last_s) if last_s else self.since
        return [sum(1 for at in kind if at > begin) / (until - begin) for kind in self.moments(until)]

    def finish(self):
        """No more writes: (versions of its znode, writes of its row)."""
        self.load.finish()
        return self.counter.finish(), self.rows.finish()


def lay_out(cluster):
    """Both logs are ordered by the first node, and left alone for as long as a log rests after a move."""
    for log in LOGS:
        if cluster.sequencer(log) != FIRST:
            cluster.extend(log, "--servers", ",".join(map(str, cluster.ids())), "--sequencer", FIRST)
    time.sleep(CALM_S)
    found = {log: cluster.sequencer(log) for log in LOGS}
    need(set(found.values()) == {FIRST}, f"the sequencers were given to node {FIRST}, and are at {found}")


def pace_returns(drill, doors, before, what):
    """Seconds until every kind of write comes at every door as often as it should."""
    began, slowest = time.time(), {}

    def back():
        now = time.time()
        if now < began + PACE_OF_S:
            return False
        slowest.clear()
        for door in doors:
            shares = [pace / max(1e-9, was) for pace, was in zip(door.pace(now, PACE_OF_S), before[door.id])]
            slowest.update({f"{kind} at node {door.id}": round(share, 2) for kind, share in zip(KINDS, shares) if share < PACE})
        return not slowest

    bound = drill.within(PACE_WITHIN_S)
    # Longer than the bound, so that what is missed is told with its time.
    poll(f"{what}: the pace returns", 2 * bound, back, every=0.2)
    took = time.time() - began
    drill.promise(took <= bound, f"{what}: half of the earlier throughput was back after {took:.1f} s; {bound:.0f} s are promised")
    return took


def one(drill, cluster, networks, cables, doors, case):
    """One fault and its end; a row of the table."""
    cluster.wait_up()
    settle(doors)
    lay_out(cluster)
    for door in doors:
        door.watch()
    time.sleep(drill.args.calm_seconds)
    now = time.time()
    before = {door.id: door.pace(now) for door in doors}
    moves = moved(cluster)
    for door in doors:
        door.watch()
    case.begin(networks, cables)
    time.sleep(drill.args.seconds)
    now = time.time()
    pauses = [max(kind) for kind in zip(*(door.pauses(now) for door in doors))]
    paces = [sum(kind) for kind in zip(*(door.pace(now) for door in doors))]
    still = [sum(kind) for kind in zip(*before.values())]
    held, lost = case.end(networks, cables)
    for door in doors:
        door.watch()
    took = pace_returns(drill, doors, before, case.words)
    time.sleep(max(0.0, HEALED_S - took))
    moves = moved(cluster) - moves
    most = drill.within(case.pause)
    for kind, pause in zip(KINDS, pauses):
        need(pause < drill.args.seconds - 0.05, f"{case.words}: no {kind} were acknowledged at some door, which all could be reached")
        drill.promise(pause <= most, f"{case.words}: {kind} paused for {pause:.2f} s at a door; at most {most} s is promised")
    drill.promise(moves <= case.moves * len(LOGS), f"{case.words}: {moves} reconfigurations of {len(LOGS)} logs together; {case.moves * len(LOGS)} are allowed")
    shares = " ".join(f"{100 * pace / max(1e-9, was):.0f}" for pace, was in zip(paces, still))
    row = [case.words, held + lost, moves, *(f"{1e3 * pause:.0f}" for pause in pauses), shares, f"{took:.1f}"]
    say(f"  {case.words}: {held} packets held, {lost} lost; {moves} reconfigurations; pauses {', '.join(row[3:6])} ms; pace {shares} %, back after {took:.1f} s")
    return row


def check_machine():
    """`NotRun` where this machine or user cannot do it."""
    if os.geteuid() != 0:
        raise NotRun("network namespaces need root")
    missing = [name for name in ("ip", "nft") if not shutil.which(name)]
    if missing:
        raise NotRun(f"{' and '.join(missing)} not found: install the packages iproute2 and nftables")
    slow_cables.check_machine()


def chosen(drill):
    """The cases of this run: all, or the first and some others."""
    first, *rest = CASES
    drill.random.shuffle(rest)
    return [first, *rest][: drill.args.cases or None]


def body(drill):
    check_machine()
    with Networks(NODES) as networks, SlowCables(networks) as cables:
        place = lambda n: (networks.host(n), (7411, 7412, 7413, 2181), networks.within(n))
        with Serving(drill.binary, drill.folder / "cluster", NODES, place) as cluster:
            cluster.create_log(LOG, drill.args.loglet)
            make_table(cluster)
            doors = [Door(drill, cluster, node) for node in cluster.nodes()]
            rows = [one(drill, cluster, networks, cables, doors, case) for case in chosen(drill)]
            settle(doors)
            written = [sum(kind) for kind in zip(*(door.finish() for door in doors))]
            read = verify(cluster, [door.load for door in doors], LOG)
    say(f"\n{read} records, {written[0]} versions of znodes and {written[1]} of rows: none lost, none doubled, all in order")
    say("longest pauses in milliseconds; the pace of each kind in per cent of that before, and the seconds until it was back")
    table(rows, ("fault", "packets held or lost", "moves", *KINDS, "pace", "back"))
    drill.result.update(cases=len(rows), most_reconfigurations=max(r[2] for r in rows), records=read, znodes=written[0], rows=written[1])
    drill.result["longest_pause_ms"] = {r[0]: max(map(int, r[3:6])) for r in rows}


if __name__ == "__main__":
    Drill(
        "slow_links",
        __doc__,
        refuses={"local": "its log needs no other node, whatever the links between them are like"},
        seconds=(30, 12, "how long each fault lasts"),
        calm_seconds=(10, 4, "how long the pace is measured before it"),
        cases=(0, 3, "how many faults are tried; 0 is all"),
    ).run(body)
