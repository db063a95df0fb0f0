#!/usr/bin/env python3
"""Serialla finds known bugs of keyspaces through the public interface alone.

Real nodes run a test build with one known bug, which `ATOLL_MUTANT` names. `atoll check run --against kv` lets clients loose on a keyspace,
while nodes are killed with `kill -9` and started again, stopped for a moment, or cut off from the others. For some bugs, race points in the
nodes delay what follows (`ATOLL_RACES`). It must refute a history of each bug in the list. Without a bug, the same clients, disturbances and
race points find nothing. docs/internals.md says which bugs are not in the list, and why.

`--mutant-bin` is a program that honours `ATOLL_MUTANT`: `cargo build -p atoll --features testing`. Without it, only the healthy program
runs, without race points. Cuts need root, iproute2 and nftables.
"""

import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

from cluster import Cluster, Drill, need, poll, say, table
from known_bugs import environment, test_build
from networks import Networks, can_cut
from served import Serving

# The keyspaces: for each kind, the arguments of `atoll kv create`. One shard with one bucket lets all keys meet.
KEYSPACES = {
    "bizur": ("--engine", "bizur", "--shards", 1, "--buckets", 1),
    "bizur in memory": ("--engine", "bizur", "--shards", 1, "--buckets", 1, "--durability", "memory"),
    "in-place": ("--engine", "in-place", "--shards", 1),
    "in-place in memory": ("--engine", "in-place", "--shards", 1, "--durability", "memory"),
}
# A bug: its name, its keyspace, what disturbs the nodes, the race points that delay, and whether the quick form looks for it.
Bug = collections.namedtuple("Bug", "name keyspace disturbs races quick", defaults=("", False))
BUGS = [
    Bug("BizurB3", "bizur", "a kill while the others stop"),
    Bug("BizurB6", "bizur", "kills"),
    Bug("BizurNoDedupe", "bizur", "stops"),
    Bug("BizurB14", "bizur", "nothing", quick=True),
    Bug("BizurAmnesia", "bizur in memory", "kills"),
    Bug("InPlaceT2", "in-place", "stops"),
    Bug("InPlaceT3", "in-place", "stops"),
    Bug("InPlaceT5", "in-place", "kills"),
    Bug("InPlaceT8", "in-place", "nothing", "in-place.write.with_token"),
    Bug("InPlaceT11", "in-place", "stops"),
    Bug("InPlaceT4", "in-place", "cuts"),
    Bug("BizurB12", "bizur", "cuts", "bizur.leader.sends"),
    Bug("InPlaceT1", "in-place", "nothing", "in-place.courier.sends,in-place.acceptor.answers"),
]
# The ways in which nodes are disturbed while nothing is wrong. In memory, a second kill would lose the keyspace, which then says so.
HEALTHY = {
    "bizur": ("stops", "kills", "two stop", "cuts"),
    "in-place": ("stops", "kills", "two stop", "cuts"),
    "bizur in memory": ("stops",),
    "in-place in memory": ("stops",),
}
NODES = (1, 2, 3)
REFUTED = 1


class Nemesis:
    """Disturbs nodes, in one way, for as long as a process runs."""

    def __init__(self, drill, cluster, how):
        self.random, self.cluster, self.how, self.count = drill.random, cluster, how, 0

    def once(self):
        """Kills a node, which is started again, stops some for a while, or cuts one off."""
        ids = self.cluster.ids()
        if self.how == "cuts":
            self.cut(self.random.choice(ids), self.random.uniform(0.3, 1.5))
            time.sleep(self.random.uniform(0.1, 1.5))
        elif self.how == "kills":
            self.kill(self.random.choice(ids))
            time.sleep(self.random.uniform(0.5, 2.0))
        elif self.how == "a kill while the others stop":
            one = self.random.choice(ids)
            others = [n for n in ids if n != one]
            with self.stopped(others):
                self.kill(one)
                time.sleep(self.random.uniform(0.3, 0.8))
            time.sleep(self.random.uniform(0.5, 2.0))
        else:
            two = self.how == "two stop"
            stopped = self.random.sample(ids, 2 if two else 1)
            # A node tries for 3 s before it says that a write did not happen.
            with self.stopped(stopped):
                time.sleep(self.random.uniform(3.5, 4.5) if two else self.random.uniform(0.2, 1.5))
            time.sleep(self.random.uniform(1.0, 2.5) if two else self.random.uniform(0.1, 1.0))
        self.count += 1

    @contextlib.contextmanager
    def stopped(self, numbers):
        """Stops nodes; they continue however this ends, since the supervisor cannot end a stopped one."""
        self.cluster.signal(numbers, signal.SIGSTOP)
        try:
            yield
        finally:
            self.cluster.signal(numbers, signal.SIGCONT)

    def cut(self, one, seconds):
        """Cuts a node off from the others for a while: it hears nothing of them, they hear nothing of it, or both."""
        others = [n for n in self.cluster.ids() if n != one]
        hears, is_heard = [(n, one) for n in others], [(one, n) for n in others]
        self.cluster.networks.cut(self.random.choice((hears, is_heard, hears + is_heard, hears + is_heard)))
        time.sleep(seconds)
        self.cluster.networks.heal()

    def kill(self, number):
        pids, _ = self.cluster.signal([number])
        self.cluster.wait_back(pids)

    def run(self, process):
        while process.poll() is None:
            if self.how != "nothing":
                self.once()
            else:
                time.sleep(0.1)


class Search:
    """Rounds of `atoll check run` against one keyspace."""

    def __init__(self, drill, cluster, keyspace, disturbs, races=""):
        self.drill, self.cluster, self.keyspace, self.races = drill, cluster, keyspace, races
        self.nemesis = Nemesis(drill, cluster, disturbs)
        self.operations = self.unknown = self.rounds = 0
        self.began = time.monotonic()

    def create(self):
        def created():
            done = self.cluster.atoll("kv", "create", self.keyspace.replace(" ", "-"), *KEYSPACES[self.keyspace], check=False)
            return done.returncode == 0 or b"there is a keyspace" in done.stderr

        poll("the keyspace is created", 60, created, every=0.2)

    def round(self):
        """One run; whether its history was refuted."""
        args, drill = self.drill.args, self.drill
        history = drill.folder / "history.jsonl"
        command = ["check", "run", "--against", "kv", "--keyspace", self.keyspace.replace(" ", "-"), "--clients", args.clients, "--keys", args.keys]
        command += ["--seconds", args.seconds, "--seed", drill.random.randrange(1 << 32), "--history", history, "--json"]
        process = self.cluster.spawn(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.nemesis.run(process)
        out, err = process.communicate()
        self.rounds += 1
        if not out:
            # The nodes were too disturbed to answer anything: this shows nothing.
            say(f"    a round without answers: {err.decode()[-300:]}")
            return False
        report = json.loads(out)
        self.operations += report["operations"]
        self.unknown += report["unknown"]
        need(report["verdict"] != "not decided", f"a history was not decided: {report.get('why')}")
        return process.returncode == REFUTED

    def row(self, name, found):
        how = f"{self.nemesis.how}, races" if self.races else self.nemesis.how
        return (name, self.keyspace, how, found, self.rounds, self.operations, self.unknown, self.nemesis.count, round(time.monotonic() - self.began, 1))


@contextlib.contextmanager
def nodes_of(binary, folder, cuts):
    """Three nodes that a supervisor starts again; or, to be cut off from each other, with a network each and without a supervisor."""
    if not cuts:
        with Cluster(binary, folder, "--nodes", len(NODES)) as cluster:
            yield cluster
        return
    with Networks(len(NODES)) as networks:
        place = lambda n: (networks.host(n), (7411, 7412, 7413, 2181), networks.within(n))
        with Serving(binary, folder, len(NODES), place) as cluster:
            cluster.networks = networks
            yield cluster


@contextlib.contextmanager
def cluster_with(drill, binary, name, disturbs, bug="", races=""):
    """Three nodes, with a bug or without, with race points or without. `all` is all race points, as a seed says."""
    folder = drill.folder / name.replace(" ", "-")
    seed = str(drill.random.randrange(1 << 32))
    races = {"": "", "all": seed}.get(races, f"{seed}:{races}")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # The nodes have it from here. The clients are healthy.
        with environment(ATOLL_MUTANT=bug, ATOLL_RACES=races):
            cluster = stack.enter_context(nodes_of(binary, folder, disturbs.startswith("cuts")))
        yield cluster


def healthy(drill, binary, races):
    """Without a bug nothing is found, whatever disturbs the nodes."""
    rows = []
    ways = [(keyspace, how) for keyspace, all in HEALTHY.items() for how in (all[:1] if drill.args.quick else all)]
    for cuts in (False, True):
        of_these = [way for way in ways if way[1].startswith("cuts") == cuts]
        if not of_these:
            continue
        if cuts and not can_cut():
            say("cuts: not run: they need root, ip and nft")
            continue
        with cluster_with(drill, binary, "healthy", of_these[0][1], races=races) as cluster:
            rows += [healthy_way(drill, cluster, *way, races) for way in of_these]
    return rows


def healthy_way(drill, cluster, keyspace, how, races):
    """One keyspace, disturbed in one way."""
    search = Search(drill, cluster, keyspace, how, races)
    search.create()
    for _ in range(drill.args.rounds):
        found = search.round()
        need(not found, f"{keyspace}, {how}: a history is refuted: {drill.folder / 'history.jsonl'}")
    need(search.operations, f"{keyspace}, {how}: no operation was answered")
    say(f"  {keyspace}, {how}{', races' if races else ''}: {search.operations} operations, nothing found")
    return search.row("none", "nothing found")


def with_bug(drill, binary, bug):
    """Looks for a bug until it is found, or the time is over."""
    with cluster_with(drill, binary, bug.name, bug.disturbs, bug.name, bug.races) as cluster:
        search = Search(drill, cluster, bug.keyspace, bug.disturbs, bug.races)
        search.create()
        found = False
        while not found and time.monotonic() - search.began < drill.args.minutes * 60:
            found = search.round()
    words = f"{bug.name}: {search.rounds} rounds, {search.operations} operations, {time.monotonic() - search.began:.1f} s"
    say(f"  {words}{': found' if found else ''}")
    drill.promise(found, f"{words}: not found")
    if found and drill.args.keep:
        shutil.copy(drill.folder / "history.jsonl", drill.folder / f"{bug.name}.jsonl")
    return search.row(bug.name, "found" if found else "not found")


def bugs(drill, binary, only):
    """All bugs that this form looks for, and that this machine can show."""
    wanted = [bug for bug in BUGS if bug.name in only or not only and (bug.quick or not drill.args.quick)]
    here = [bug for bug in wanted if can_cut() or not bug.disturbs.startswith("cuts")]
    if len(here) < len(wanted):
        say(f"{len(wanted) - len(here)} bugs: not run: cuts need root, ip and nft")
    return [with_bug(drill, binary, bug) for bug in here]


def body(drill):
    only = [name for name in drill.args.only.split(",") if name]
    unknown = set(only) - {bug.name for bug in BUGS}
    need(not unknown, f"no bug is called {sorted(unknown)}")
    rows = [] if only else healthy(drill, drill.binary, "")
    if drill.args.mutant_bin:
        binary = test_build(drill.args.mutant_bin)
        if not only and not drill.args.quick:
            rows += healthy(drill, binary, "all")
        rows += bugs(drill, binary, only)
    else:
        say("bugs: not run: --mutant-bin names no program")
    say()
    table(rows, ("bug", "keyspace", "disturbed by", "outcome", "rounds", "operations", "unknown", "disturbances", "seconds"))
    drill.result.update(operations=sum(row[5] for row in rows), found=sum(row[3] == "found" for row in rows), sought=sum(row[0] != "none" for row in rows))


if __name__ == "__main__":
    Drill(
        "serialla",
        __doc__,
        clients=(12, 12, "how many clients"),
        keys=(4, 4, "how many keys they share"),
        seconds=(6.0, 2.0, "how long a round is"),
        rounds=(10, 1, "rounds of each way to disturb the healthy program"),
        minutes=(5.0, 1.0, "after how long a bug counts as not found"),
        mutant_bin=("", os.environ.get("ATOLL_TEST_BIN", ""), "a program with mutants, to be found wrong; in the quick form ATOLL_TEST_BIN, if it is set"),
        only=("", "", "only these bugs, comma-separated"),
    ).run(body)
