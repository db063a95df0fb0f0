#!/usr/bin/env python3
"""A closed journal, a full disk and a hanging disk, on each node in turn, under load, on real processes.

Each node's data is on its own file system. Write errors close the journal, a filled file system refuses writes, and a frozen one never
answers. The faulty node holds the sequencer of one log and is a server of all logs. While the fault lasts, the other nodes show it by name,
and the logs leave the node (with three nodes, only the sequencer does). Two dead ZooKeeper clients, one of them connected to the faulty
node, lose their ephemerals; a living client keeps its session. Both the log and the database's own log are trimmed. Appends and ZooKeeper
writes at the other doors pause for less than 1 s. When the disk works again (after a closed journal, an operator checks it and restarts the
node), the node gets everything that it missed. In the end nothing is lost or doubled. Needs root, ext4 and loop mounts.
"""

import contextlib
import json
import signal
import subprocess
import threading
import time

import jute
from cluster import Drill, Failed, holders, need, orderer, poll, say, table
from faulty_disks import Disks
from load import Load, verify
from served import Counter, Fresh, Serving

# A log that is trimmed all the time, and the database's.
TRIMMED, DB = "trimmed", "db"
# One line or write so often.
EVERY_S = 0.005
# A journal on a full disk takes entries until the segments that it had prepared are used up: long lines of this log do that.
BULK_LINE_BYTES = 16 << 10
COPIES = 3
# A door of a node with a full disk refuses writes of ZooKeeper with this error.
DISK_FULL = -1
# What other nodes call it. Where the node's own thread writes to a quick disk (decision 0009), it hangs as a whole.
FAULTS = {"closed": ("failed",), "full": ("full",), "hanging": ("hanging", "suspect")}
MOST_PAUSE_S = 1.0
# Time for another node to show a fault, and for logs to leave a server: `replace_server_after_ms`, a round, and the least life of a segment.
SHOWN_WITHIN_S = 10.0
# A disk is full for a journal once the segments that it had prepared are used up.
FULL_WITHIN_S = 45.0
LEFT_WITHIN_S = 20.0
# A dead client's: its timeout, and the time until another node takes its session over.
SESSION_MS = 4000
GONE_WITHIN_S = 20.0
# A replica whose store takes nothing is not waited for after 10 s; the upkeep comes every 10 s.
TRIMMED_WITHIN_S = 60.0
# After a planned move nothing else is done for so long.
PLANNED_S = 1.0
# The least for which a fault lasts, and the time for the node to have everything again.
LEAST_S = 6.0
BACK_WITHIN_S = 90.0
# SIGTERM to a node with a closed journal: `drain_at_most_ms`, and some.
ENDED_WITHIN_S = 20.0
SETTINGS = "\n[database]\nleast_free_mb = 64\nkeep_entries = 100\n"


class Nodes(Serving):
    """Nodes whose data is on disks that can fail."""

    def __init__(self, binary, folder, count):
        super().__init__(binary, folder, count)
        self.disks = Disks(folder / "disks", self.ids(), lambda number: self.node(number).folder / "data")
        for node in self.all:
            node.config.write_text(node.config.read_text() + SETTINGS)

    def __enter__(self):
        self.disks.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.stop()
        self.disks.__exit__()

    def stop(self):
        self.disks.thaw()
        super().stop()

    def others(self, victim):
        """The nodes without the fault."""
        return [n for n in self.all if n.id != victim]

    def restart(self, number):
        """Ends a node as an operator does, has its disk checked, and starts it again; how long it took to end."""
        node, began = self.node(number), time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        try:
            node.process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"node {number} has not ended {ENDED_WITHIN_S:.0f} s after SIGTERM") from None
        took = time.monotonic() - began
        self.disks[number].repair()
        node.start(self.binary)
        return took


class Living:
    """A client of ZooKeeper that lives, at one door: its session and its ephemeral must stay."""

    def __init__(self, door):
        self.path = f"/living-{time.monotonic_ns()}"
        self.wire = jute.Wire(door, timeout_ms=SESSION_MS, read_only=None)
        made(self.wire, self.path)
        self.over = threading.Event()
        self.failed = None
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        try:
            while not self.over.wait(SESSION_MS / 1e3 / 4):
                _, error, _ = self.wire.call(jute.EXISTS, jute.watched(self.path))
                need(error == 0, f"the ephemeral of a living client is away: error {error}")
        except Exception as error:  # Told at the end, on the drill's own thread.
            self.failed = error

    def finish(self):
        """Judges it, and closes the session."""
        self.over.set()
        self.thread.join(10)
        if self.failed:
            raise Failed(f"a living client of a healthy node: {self.failed!r}")
        self.wire.call(jute.CLOSE, xid=0)
        self.wire.close()


def made(wire, path):
    """An ephemeral."""
    _, error, _ = wire.call(jute.CREATE, jute.create(path, b"", flags=1))
    need(error == 0, f"{path} is not created: error {error}")


class Dead:
    """A client with an ephemeral, which dies without a word."""

    def __init__(self, node):
        self.path = f"/dead-{node.id}-{time.monotonic_ns()}"
        self.wire = jute.Wire(node.zookeeper, timeout_ms=SESSION_MS, read_only=None)
        made(self.wire, self.path)

    def die(self):
        """No close of the session."""
        self.wire.close()


def is_away(door, path):
    """Whether a znode is not there, by one door, behind all that was written; None if the door does not say."""
    try:
        wire = jute.Wire(door, patience_s=3, read_only=None)
        with contextlib.closing(wire):
            wire.call(jute.SYNC, jute.string(path))
            _, error, _ = wire.call(jute.EXISTS, jute.watched(path))
            wire.call(jute.CLOSE, xid=0)
            return error == -101
    except (OSError, ValueError, AssertionError):
        return None


class Door:
    """A healthy node's door under load."""

    def __init__(self, drill, cluster, node, log):
        self.node = node
        self.load = Load(cluster, drill.folder, log, f"n{node.id}", node.grpc, depth=16, every_s=EVERY_S).start()
        self.counter = Counter([node.zookeeper], f"/{log}-{node.id}", every_s=EVERY_S).start()

    def watch(self):
        """From now on acknowledgements are looked at."""
        self.since, self.fresh = time.time(), Fresh(self.load)

    def pauses(self, until):
        """(longest time without an acknowledged append since `watch`, when it began), and the same of acknowledged writes."""
        self.load._alive()
        if self.counter.failed:
            raise self.counter.failed
        longest = []
        for at in (self.fresh.read(), self.counter.at):
            moments = [self.since, *(m for m in at if self.since < m < until), until]
            longest.append(max((b - a, a - self.since) for a, b in zip(moments, moments[1:])))
        return longest


def rows_of(cluster, connect):
    """The status as one node shows it: nodes by number, logs by name; None if it does not answer."""
    done = cluster.atoll("status", "--json", connect=connect, check=False, timeout=20)
    if done.returncode != 0:
        return None
    status = json.loads(done.stdout)
    return {n["id"]: n for n in status["nodes"]}, {row["name"]: row for row in status["logs"]}


def active(cluster, log, connect):
    """(servers, sequencer) of a log's active segment."""
    segment = cluster.active(log, connect=connect)
    return holders(segment), orderer(segment)


class Fault:
    """One fault of one node, and what is asked of the others."""

    def __init__(self, drill, cluster, kind, victim, judges_db):
        self.drill, self.cluster, self.kind, self.victim, self.judges_db = drill, cluster, kind, victim, judges_db
        self.what = f"{kind}, node {victim} of {len(cluster.ids())}"
        self.healthy = cluster.others(victim)
        self.connect = ",".join(n.grpc for n in self.healthy)
        self.door = self.healthy[0]
        # A log of its own, whose sequencer is on the node with the fault.
        self.log = f"{kind}{victim}of{len(cluster.ids())}"
        self.took = {}

    def begin(self):
        disk = self.cluster.disks[self.victim]
        {"closed": disk.fail, "full": disk.fill, "hanging": disk.freeze}[self.kind]()

    def end(self):
        disk = self.cluster.disks[self.victim]
        if self.kind == "closed":
            self.took["ended"] = self.cluster.restart(self.victim)
        else:
            {"full": disk.empty, "hanging": disk.thaw}[self.kind]()

    def within(self, name, words, seconds, ask, every=0.2):
        """Waits for what the fault must lead to, so long at most, and notes how long after its beginning it was."""
        def again():
            if self.kind == "full":
                # What the node gives back is taken, too.
                self.cluster.disks[self.victim].fill()
            return ask()

        poll(f"{self.what}: {words}", seconds, again, every)
        self.took[name] = time.time() - self.began

    def shown(self):
        """Every other node names the fault."""
        told = {}
        for node in self.healthy:
            rows = rows_of(self.cluster, node.grpc)
            told[node.id] = rows and rows[0][self.victim]["state"]
        self.told = told
        return all(state in FAULTS[self.kind] for state in told.values())

    def left(self):
        """The logs have left the node."""
        at = {log: active(self.cluster, log, self.connect) for log in (self.log, TRIMMED, DB)}
        if len(self.cluster.ids()) > COPIES:
            return all(self.victim not in (*servers, sequencer) for servers, sequencer in at.values())
        # Its place as a server stays with it. A sequencer needs no disk as long as it is not the disk's node that fails.
        return self.kind == "full" or all(sequencer != self.victim for _, sequencer in at.values())

    def trims(self, load, tail):
        """The trim points pass what was there when the fault began; in the short form the database's own does for one fault only."""
        rows = rows_of(self.cluster, self.connect)
        if not rows:
            return False
        logs = rows[1]
        if logs[TRIMMED]["trim"] < self.trim_to:
            self.cluster.atoll("log", "trim", "--log", TRIMMED, self.trim_to, connect=self.connect, check=False)
        self.trims_at = {log: logs[log]["trim"] for log in (TRIMMED, DB)}
        return logs[TRIMMED]["trim"] >= self.trim_to and (not self.judges_db or logs[DB]["trim"] > tail)

    def run(self, trimmed):
        """The fault and its end; a row of the table."""
        self.cluster.create_log(self.log, self.drill.args.loglet)
        doors = [Door(self.drill, self.cluster, node, self.log) for node in self.healthy]
        planned = self.lay_out(doors)
        bulk = self.bulk() if self.kind == "full" else None
        living = Living(self.door.zookeeper)
        dead = [Dead(self.cluster.node(self.victim)), Dead(self.door)]
        db_tail = rows_of(self.cluster, self.connect)[1][DB]["tail"]
        self.trim_to = trimmed.acknowledged()
        for door in doors:
            door.watch()
        held = self.placed()
        need(held == self.victim, f"{self.what}: the sequencer of {self.log} is on node {held}, where the disk does not fail")
        self.began = time.time()
        self.begin()
        for client in dead:
            client.die()
        try:
            self.within("shown", "the other nodes show it", FULL_WITHIN_S if bulk else SHOWN_WITHIN_S, self.shown)
        except Failed as words:
            raise Failed(f"{words}: they show {self.told}") from None
        if bulk:
            # No more is needed; the rest is the other doors'.
            bulk.abandon()
        self.within("left", "the logs leave the node", LEFT_WITHIN_S, self.left)
        for client, whose in zip(dead, ("its", "others'")):
            self.within(f"gone {whose}", f"{client.path} goes", GONE_WITHIN_S, lambda c=client: is_away(self.door.zookeeper, c.path))
        try:
            self.within("trimmed", "the trims continue", TRIMMED_WITHIN_S, lambda: self.trims(trimmed, db_tail), every=0.5)
        except Failed as words:
            raise Failed(f"{words}: {self.trims_at}, wanted {self.trim_to} and above {db_tail}") from None
        time.sleep(max(0.0, self.began + LEAST_S - time.time()))
        now = time.time()
        pauses = {door.node.id: door.pauses(now) for door in doors}
        # A full disk may have room again by itself: what the logs had there goes with them.
        if self.kind != "full":
            self.within("shown to the end", "the other nodes show it still", SHOWN_WITHIN_S, self.shown)
        living.finish()
        ended = time.time()
        self.end()
        self.back(ended)
        for door in doors:
            door.load.finish()
        records = self.read(doors)
        if bulk:
            self.drop(bulk)
        written = sum(door.counter.finish() for door in doors)
        return records, written, self.judged(planned, pauses)

    def placed(self):
        """The node that orders the log. On a machine that has other work, a late heartbeat may have moved it since it was laid out."""
        for _ in range(3):
            held = self.cluster.sequencer(self.log)
            if held == self.victim:
                return held
            say(f"  {self.log} was moved to node {held} before the fault, and goes back")
            self.cluster.extend(self.log, "--sequencer", self.victim)
        return held

    def lay_out(self, doors):
        """The node is a server of all logs, the sequencer of one, and of the database's every second time. The longest pause by that: what a
        move costs on this machine when nothing fails."""
        rest = [n.id for n in self.healthy][: COPIES - 1]
        servers = ",".join(map(str, [self.victim, *rest]))
        for door in doors:
            door.watch()
        for log, sequencer in ((self.log, self.victim), (TRIMMED, rest[0]), (DB, self.victim if self.victim % 2 else rest[0])):
            self.cluster.extend(log, "--servers", servers, "--sequencer", sequencer)
        time.sleep(PLANNED_S)
        now = time.time()
        return max(seconds for door in doors for seconds, _ in door.pauses(now))

    def read(self, doors):
        """Every record is there once, and goes, for the disks are small; how many there were."""
        records = verify(self.cluster, [door.load for door in doors], self.log)
        self.cluster.atoll("log", "trim", "--log", self.log, records)
        return records

    def bulk(self):
        """A log of its own for what fills the journal."""
        log = f"{self.log}-bulk"
        self.cluster.create_log(log, self.drill.args.loglet)
        servers, _ = active(self.cluster, self.log, self.connect)
        self.cluster.extend(log, "--servers", ",".join(map(str, servers)), "--sequencer", servers[-1])
        return Load(self.cluster, self.drill.folder, log, "bulk", self.connect, depth=4, line_bytes=BULK_LINE_BYTES).start()

    def drop(self, bulk):
        """All of it that was acknowledged is there, and goes."""
        there = bulk.acknowledged()
        out = self.cluster.spawn("log", "read", "--raw", "--log", bulk.log, "--to", there, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        lines = sum(line == bulk.line(number) for number, line in enumerate(out.stdout))
        need(out.wait() == 0 and lines == there, f"{self.what}: {there} records of {bulk.log} were acknowledged, {lines} are read in order")
        self.cluster.atoll("log", "trim", "--log", bulk.log, there)

    def back(self, ended):
        """The node has all that it missed, by everybody's word."""
        tail = rows_of(self.cluster, self.connect)[1][DB]["tail"]

        def whole():
            self.last = rows_of(self.cluster, self.connect)
            if not self.last:
                return False
            nodes, logs = self.last
            rows = [s for row in logs.values() for s in row["servers"]]
            return (
                all(n["state"] == "up" for n in nodes.values())
                and all(row["healthy"] for row in logs.values())
                and all(s["lacks"] == 0 and s["has_up_to"] is not None for s in rows)
            )

        def replica():
            done = self.cluster.atoll("database", "status", "--node", self.victim, "--json", connect=self.connect, check=False)
            self.last = done.stdout.decode(errors="replace")
            return done.returncode == 0 and json.loads(self.last)["applied_below"] >= tail

        for ask, words in ((replica, "its replica has the state"), (whole, "nothing lacks")):
            try:
                poll(f"{self.what}: {words} after the disk works again", BACK_WITHIN_S, ask, every=0.2)
            except Failed as failed:
                raise Failed(f"{failed}: {json.dumps(self.last)[-2500:]}") from None
        self.took["back"] = time.time() - ended

    def judged(self, planned, pauses):
        """The row of the table."""
        most = self.drill.within(MOST_PAUSE_S)
        (append, append_at), (write, write_at) = (max(p[i] for p in pauses.values()) for i in (0, 1))
        for what, pause in (("appends", append), ("writes of ZooKeeper", write)):
            self.drill.promise(pause < most, f"{self.what}: {what} paused for {pause:.2f} s at a healthy door; under {most} s is promised")
        took = {name: f"{seconds:.1f}" for name, seconds in self.took.items()}
        ms = lambda seconds: f"{1e3 * seconds:.0f} ms"
        say(f"  {self.what}: pauses {ms(append)} after {append_at:.1f} s and {ms(write)} after {write_at:.1f} s; by a planned move before {ms(planned)}")
        say(f"    seconds from its beginning, and `back` from its end: {took}")
        names = ("shown", "left", "gone its", "gone others'", "trimmed", "back")
        return [f"{self.what}: {self.told[self.healthy[0].id]}", f"{1e3 * append:.0f}", f"{1e3 * write:.0f}", f"{1e3 * planned:.0f}", *(took[name] for name in names)]


def cluster_of(drill, count, cases):
    """All cases on one cluster."""
    say(f"{count} nodes:")
    with Nodes(drill.binary, drill.folder / f"cluster-{count}", count) as cluster:
        cluster.create_log(TRIMMED, drill.args.loglet)
        trimmed = Load(cluster, drill.folder, TRIMMED, f"t{count}", depth=16, every_s=EVERY_S).start()
        doors = [n.zookeeper for n in cluster.nodes()]
        traveller = Counter(doors, "/traveller", every_s=0.05, leaves_on=(DISK_FULL,)).start()
        rows, read, written = [], 0, 0
        slow = drill.random.randrange(len(cases))
        for number, (kind, victim) in enumerate(cases):
            judges_db = not drill.args.quick or number == slow
            records, versions, row = Fault(drill, cluster, kind, victim, judges_db).run(trimmed)
            rows, read, written = [*rows, row], read + records, written + versions
        trimmed.finish()
        written += traveller.finish()
        since = rows_of(cluster, cluster.connect())[1][TRIMMED]["trim"]
        read += verify(cluster, [trimmed], TRIMMED, since=since)
        say(f"  {read} records and {written} versions of znodes: none lost, none doubled")
    drill.result[f"nodes_{count}"] = {
        "cases": len(rows),
        "longest_pause_ms": max(int(row[i]) for row in rows for i in (1, 2)),
        "longest_return_s": max(float(row[-1]) for row in rows),
        "records": read,
    }
    return rows


def body(drill):
    rows = []
    counts = [int(n) for n in drill.args.nodes.split(",")]
    for count in counts:
        cases = [(kind, victim) for victim in range(1, count + 1) for kind in FAULTS]
        if drill.args.cases:
            # Each fault, each on another node.
            first = drill.random.randrange(count)
            cases = [(kind, (first + i) % count + 1) for i, kind in enumerate(FAULTS)][: drill.args.cases]
        if drill.args.only:
            cases = [(kind, int(victim)) for kind, victim in (case.split(":") for case in drill.args.only.split(","))]
        rows += cluster_of(drill, count, cases)
    say("\nlongest pause of appends and of writes of ZooKeeper at healthy doors, and of either by a planned move, in milliseconds; the rest in seconds: from the fault, and from its end")
    table(rows, ("fault", "appends", "writes", "planned move", "shown", "logs left", "its client's gone", "others' gone", "trimmed", "back"))


if __name__ == "__main__":
    Drill(
        "disk_faults",
        __doc__,
        refuses={"local": "its one copy would be gone with the disk"},
        nodes=("3,5", "5", "clusters of how many nodes"),
        cases=(0, 3, "how many faults of each cluster are tried; 0 is every fault on every node"),
        only=("", "", "these instead, as closed:1,hanging:2"),
    ).run(body)
