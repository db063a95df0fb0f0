#!/usr/bin/env python3
"""Power is lost, or a node is killed, in the middle of a commit to the database's store; after the restart nothing is lost.

Each of three nodes has its data on one file system and its folder `database/` on another, so that no sync of the journal also writes what
the store has not synced. ZooKeeper and table clients write at all doors. A node is stopped (SIGSTOP) while its store thread works on a
commit; a stop that comes too late is undone and does not count. Then either all nodes lose power, which leaves only what was synced
(unsynced_disks.py), or this node is killed (`kill -9`). After the restart everything acknowledged is there, once, at every node, and the
hashes of all replicas are equal. As a control, the drill does the same with stores that are older than what the log still has, and must
notice the loss. Needs root, ext4 and loop mounts.
"""

import contextlib
import pathlib
import platform
import re
import signal
import threading
import time

from cluster import Drill, Failed, need, poll, say, table
from database_faults import equal_hashes, replica
from database_load import Znodes, check_znodes
from row_counter import RowCounter, make_table
from served import Counter, Serving
from unsynced_disks import Disks, check_machine

# The log that the database is on.
LOG = "db"
NODES = 3
MEGABYTES = 1024
# Without a commit of its own for so long: a file system keeps what is not synced in memory.
MOUNT = "commit=300"
SETTINGS = "\n[database]\nleast_free_mb = 64\nkeep_entries = 100\n"
# The name of the thread that commits, and the system call in which it waits for work.
THREAD, FUTEX = "store", {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
# A replica commits at least every 10 s while it is written to.
COMMIT_WITHIN_S = 30.0
# From the first write of a commit to the stop: up to so long, in seconds.
INTO_IT_S = 0.02
# Stops that may come too late before one that does not.
TRIES = 20
# The log is trimmed behind the stores within so long.
TRIMMED_WITHIN_S = 90.0
# With stores that are too old nobody has to wait for longer.
CONTROL_S = 20.0
# What else is written, so that commits have something to write: rows of so many bytes.
ROWS, PAYLOAD = 10_000, 1_000
# A client writes so often, or as often as it is answered.
EVERY_S = 0.005
# A file that nobody syncs.
PROBE = "not-synced"


class Nodes(Serving):
    """Nodes whose journal and store lose what was not synced when the power goes."""

    def __init__(self, binary, folder):
        super().__init__(binary, folder, NODES)
        places = {}
        for node in self.all:
            node.config.write_text(node.config.read_text() + SETTINGS)
            node.data = node.folder / "data"
            places |= {f"{node.id}-data": node.data, f"{node.id}-database": node.data / "database"}
        self.disks = Disks.make(folder / "disks", places, MEGABYTES, MOUNT)
        self.places = list(places.values())
        self.stores = [name for name in places if name.endswith("-database")]

    def __enter__(self):
        self.disks.__enter__()
        try:
            for node in self.all:
                # What the store has no use for.
                (node.data / "database" / "lost+found").rmdir()
            self.disks.sync()
            return super().__enter__()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        # A stopped process does not end by SIGTERM.
        self.signal(self.ids(), signal.SIGCONT)
        self.stop()
        self.disks.__exit__()


class Paced(Znodes):
    """Creates znodes, not as fast as it can: they are all listed at the end."""

    def write(self, number):
        super().write(number)
        self.over.wait(EVERY_S)


class StoreThread:
    """The thread of a node's process that writes commits to its store."""

    def __init__(self, pid):
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        self.task = next((t for t in tasks if (t / "comm").read_text().strip() == THREAD), None)
        need(self.task, f"process {pid} has no thread {THREAD!r}")

    def written(self):
        """Bytes that it has written so far."""
        return int(re.search(r"(?m)^wchar: (\d+)$", (self.task / "io").read_text())[1])

    def works(self):
        """Whether it does anything but wait for work; of a process that is stopped."""
        return (self.task / "syscall").read_text().split()[0] != FUTEX


def is_still(pid):
    """Whether no thread of a process that was stopped runs on, or is in the middle of a sync."""
    stats = [(task / "stat").read_text() for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rsplit(") ", 1)[1][0] in "tT" for stat in stats)


def stop_in_commit(drill, cluster, victim, others=()):
    """Stops a node in the middle of a commit to its store, and others with it; how many stops came too late before that."""
    store = StoreThread(cluster.node(victim).pid)
    for late in range(TRIES):
        before = store.written()
        poll(f"node {victim} commits", COMMIT_WITHIN_S, lambda: store.written() > before, every=0.0005)
        time.sleep(drill.random.uniform(0, INTO_IT_S))
        pids, _ = cluster.signal([victim, *others], signal.SIGSTOP)
        need(len(pids) == 1 + len(others), f"of {[victim, *others]} only {sorted(pids)} ran")
        poll("the stopped nodes stand still", 30, lambda: all(map(is_still, pids.values())), every=0.002)
        if store.works():
            return late
        cluster.signal(list(pids), signal.SIGCONT)
    raise Failed(f"node {victim}: {TRIES} stops came when its store had nothing to do")


class Filler(threading.Thread):
    """Rows that nobody counts, so that commits are large. What fails is not asked for again."""

    def __init__(self, cluster, rate):
        super().__init__(daemon=True)
        self.cluster, self.rate, self.over = cluster, rate, threading.Event()
        cluster.atoll("bench", "db", "--rows", ROWS, "--payload", PAYLOAD, "--fill-from", 0, "--rate", 1, "--seconds", 0.01, timeout=300)
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            with contextlib.suppress(Failed):
                self.cluster.atoll("bench", "db", "--rows", ROWS, "--payload", PAYLOAD, "--rate", self.rate, "--seconds", 3, check=False, timeout=60)

    def finish(self):
        """Ends it."""
        self.over.set()
        self.join(90)


class Clients:
    """All who write, and know what was acknowledged."""

    def __init__(self, drill, cluster):
        make_table(cluster)
        zookeeper, grpc = [n.zookeeper for n in cluster.nodes()], [n.grpc for n in cluster.nodes()]
        self.counters = [Counter(zookeeper[n:] + zookeeper[:n], f"/counter-{n}", every_s=EVERY_S).start() for n in range(NODES)]
        self.counters += [RowCounter(grpc[n:] + grpc[:n], f"row-{n}", every_s=EVERY_S).start() for n in range(NODES)]
        self.znodes = Paced(lambda: zookeeper).begin()
        self.filler = Filler(cluster, drill.args.rate)

    def go_on(self):
        """Waits until every client is acknowledged again; each finds what it had written."""
        for counter in self.counters:
            before = counter.done

            def more():
                if counter.failed:
                    raise counter.failed
                return counter.done > before + 1

            poll(f"{counter.path} continues", 60, more)
        self.znodes.goes_on(60)

    def finish(self):
        """No more writes: how many there were of znodes' versions, of rows, and of znodes."""
        self.filler.finish()
        done = [counter.finish() for counter in self.counters]
        return sum(done[:NODES]), sum(done[NODES:]), self.znodes.finish()

    def are_read(self):
        """Whether what was acknowledged is read, after the end."""
        try:
            return not any(counter._settle() for counter in self.counters)
        except self.counters[-1].TROUBLE:
            for counter in self.counters:
                counter._drop()
            return False


def trimmed(cluster):
    """The first entry of the database's log that is still there."""
    row = cluster.log_info(LOG)
    return row["trim"] if row else 0


def wait_trimmed(cluster, beyond):
    """Waits until the log has no entries up to there any more: then the stores alone hold what they said."""
    poll(f"the log is trimmed beyond {beyond}", TRIMMED_WITHIN_S, lambda: trimmed(cluster) > beyond, every=0.5)


def whole(cluster, clients):
    """After a restart: all nodes serve, every client continues, and the replicas are equal. How many hashes were compared, and how many
    replicas had to have their state from a peer."""
    cluster.wait_up()
    clients.go_on()
    in_service = lambda n: poll(f"the replica of node {n} is in service", 60, lambda: replica(cluster, n), every=0.2)
    _, compared = equal_hashes(cluster, max(in_service(n)["applied_below"] for n in cluster.ids()))
    told = {n: in_service(n) for n in cluster.ids()}
    for number, one in told.items():
        need(not one["halted"] and one["found_total"] == 0, f"the replica of node {number}: {one['halted']} {one['found']}")
    return compared, sum(one["refills"] for one in told.values())


def lose_power(drill, cluster, clients, victim):
    """All nodes lose what was not synced, while one of them commits."""
    others = [n for n in cluster.ids() if n != victim]
    late = stop_in_commit(drill, cluster, victim, others)
    probes = [place / PROBE for place in cluster.places]
    for probe in probes:
        probe.write_text("this goes with the power")
    cluster.disks.copy(drill.folder / "copies")
    if not (drill.folder / "first").exists():
        # These are to be too old one day.
        cluster.disks.copy(drill.folder / "first", cluster.stores)
    cluster.kill(cluster.ids())
    cluster.disks.put_back(drill.folder / "copies")
    need(not any(probe.exists() for probe in probes), "what was not synced is on the disks after the power went")
    cluster.boot(cluster.ids())
    return late, *whole(cluster, clients)


def kill(drill, cluster, clients, victim):
    """One node is killed while it commits, and started again."""
    late = stop_in_commit(drill, cluster, victim)
    cluster.kill([victim])
    cluster.boot([victim])
    return late, *whole(cluster, clients)


def control(drill, cluster, clients):
    """With stores from before the log's first entry what was acknowledged is gone, and must not be read as if it were there."""
    cluster.kill(cluster.ids())
    cluster.disks.put_back(drill.folder / "first")
    try:
        cluster.boot(cluster.ids())
        poll("what was acknowledged is read from stores that are too old", CONTROL_S, clients.are_read, every=0.5)
    except Failed as words:
        say(f"  stores that are too old: {words}")
        return str(words)
    raise Failed("with stores that are too old nothing was missed: this drill cannot tell the difference here")


def body(drill):
    check_machine()
    kinds = [lose_power] * drill.args.cuts + [kill] * drill.args.kills
    drill.random.shuffle(kinds)
    with Nodes(drill.binary, drill.folder / "cluster") as cluster:
        clients = Clients(drill, cluster)
        rows, tail, victim = [], None, drill.random.randrange(NODES)
        for number, fault in enumerate(kinds):
            # Only what is gone from the log shows whether the stores keep it.
            wait_trimmed(cluster, trimmed(cluster))
            victim = victim % NODES + 1
            began = time.monotonic()
            row = (fault.__name__.replace("_", " "), victim, *fault(drill, cluster, clients, victim), f"{time.monotonic() - began:.1f}")
            rows.append(row)
            if fault is lose_power and tail is None:
                tail = cluster.log_info(LOG)["tail"]
            say(f"  {row[0]}, node {victim} in a commit after {row[2]} late stops: {row[3]} hashes equal, {row[4]} replicas refilled")
        if tail is not None:
            wait_trimmed(cluster, tail)
        versions, puts, znodes = clients.finish()
        for node in cluster.nodes():
            check_znodes(node.zookeeper, clients.znodes)
        missed = control(drill, cluster, clients) if tail is not None else "no power was lost"
        # Nothing more is asked of nodes that have lost their state.
        cluster.kill(cluster.ids())
    say(f"\n{versions} versions of znodes, {puts} of rows and {znodes} znodes were acknowledged: none lost, none doubled, at every node")
    table(rows, ("fault", "node in a commit", "late stops", "hashes equal", "refilled", "seconds"))
    drill.result.update(faults=len(rows), late_stops=sum(r[2] for r in rows), hashes=sum(r[3] for r in rows), refills=sum(r[4] for r in rows))
    drill.result.update(versions=versions, rows=puts, znodes=znodes, with_old_stores=missed)


if __name__ == "__main__":
    Drill(
        "store_faults",
        __doc__,
        cuts=(6, 1, "how often the power goes"),
        kills=(9, 1, "how often a node is killed"),
        rate=(1_000, 400, "operations per second that make commits large"),
    ).run(body)
