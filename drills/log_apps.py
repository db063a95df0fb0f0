#!/usr/bin/env python3
"""CORFU's applications run over real clusters, while their processes are killed with `kill -9`.

CORFU-Store: clients in two processes put and get several keys at once, two map replicas play the log, and a mirror copies it to a second
cluster. Every node of the first cluster is killed in turn, and a map replica, and the mirror. Then the clusters are parted: the mirror falls
behind, by no more than the bound that writers keep, and catches up after the partition. `atoll check` finds one order of all multi-puts and
multi-gets, which agrees with real time and with the log. A new map replica plays the log again. All replicas have the same hash at the same
index, the mirror's, too. Clients that are killed in the middle of a multi-put leave all of it or nothing. The store is rolled back to an
index, and its log is compacted and trimmed.

Optimistic transactions in two processes, and a replicated service in several, run while all nodes are killed in turn. `atoll check` finds the
transactions serializable, and every command of the service takes effect once. `--mutant-bin` is a program of the applications with the
feature `testing`: known bugs must be found.
"""

import json
import time

from apps import Apps, find_mutants, find_program, hashes, judge, kill_each, load_twice, more
from cables import Cable
from cluster import Cluster, Drill, need, poll, say, table

KEYS = [f"key-{n}" for n in range(8)]
# The most positions that writers let the mirror fall behind.
BOUND = 300
# Besides, there is what is appended until all writers notice, on a machine that is busy, and a batch that the mirror has appended without
# hearing of it. Then the log does not grow at all.
UNNOTICED = 300
# Between two hashes that a map replica tells, in positions.
EVERY = 25
# Known bugs, and what must find each of them.
MUTANTS = (("AppsM1", "store"), ("AppsA4", "store"), ("AppsA5", "store"), ("AppsT1", "transactions"), ("AppsT2", "transactions"))


class Stores:
    """The store of the first cluster, with map replicas, and its mirror in the second one."""

    def __init__(self, drill, program, first, second, cable):
        self.drill, self.first, self.cable = drill, first, cable
        self.here, self.there = Apps(drill, program, first.connect()), Apps(drill, program, second.connect())
        second.create_log("store-mirror", drill.args.loglet)
        self.log, self.copy = ("--log", "store"), ("--log", "store-mirror")
        self.histories = []
        self.mirrors = [self.start_mirror()]
        self.maps = [self.start_map(), self.start_map()]

    def start_mirror(self):
        return self.here.start("mirror", *self.log, "--to", self.cable.connect, "--to-log", "store-mirror", "--timeout", 2)

    def start_map(self):
        return self.here.start("map", *self.log, "--every", EVERY)

    def load(self, first_client, *args):
        """Starts clients in one process."""
        self.histories.append(self.drill.folder / f"store-{len(self.histories)}.history")
        return self.here.start(
            "store", *self.log, "--clients", 3, "--first-client", first_client, "--seconds", 3600, "--history", self.histories[-1],
            "--mirror", self.cable.connect, "--mirror-log", "store-mirror", "--mirror-bound", BOUND, *args,
        )

    def hash_at(self, index):
        """The hash of the first cluster's map at an index, by a replica that plays the log from its beginning."""
        line = self.here.run("map", *self.log, "--until", index)
        need(line["applied"] == index, f"a replica was to play to {index}, and is at {line['applied']}")
        return line["hash"]

    def get(self, at=None):
        """All keys at an index."""
        return self.here.run("get", *self.log, *KEYS, *(["--at", at] if at else []))

    def mirrored(self):
        """The newest line of the mirror."""
        self.mirrors[-1].runs()
        lines = self.mirrors[-1].lines()
        return lines[-1] if lines else None

    def caught_up(self, within=60):
        """Waits until the mirror has everything of a primary that rests; its line."""
        tail = self.get()["index"]

        def ask():
            line = self.mirrored()
            return line if line and line["error"] is None and line["applied"] >= tail else None

        return poll("the mirror has everything", within, ask, every=0.1)


def part(drill, stores, apps):
    """Parts the clusters: the mirror falls behind, until writers wait for it. The longest lag that the mirror saw."""
    mirror = stores.mirrors[-1]
    waiting = lambda: [bool((app.runs() and app.lines() or [{}])[-1].get("mirror_behind")) for app in apps]
    near = lambda: (line := stores.mirrored()) and line["error"] is None and line["lag_positions"] < BOUND / 3 and not any(waiting())
    poll("the mirror is near, and nobody waits for it", 90, near, every=0.1)
    before = len(mirror.lines())
    stores.cable.cut()
    poll("writers wait for the mirror", 90, lambda: all(waiting()), every=0.1)
    # Each of them has noticed by then, and has ended what was under way.
    time.sleep(drill.args.parted)
    tail = stores.get()["index"]
    time.sleep(drill.args.parted)
    need(stores.get()["index"] == tail, "the log of the store grows although the mirror is behind by more than its bound")
    measured = lambda: any(line["lag_positions"] == tail - line["applied"] for line in mirror.runs() and mirror.lines()[before:])
    poll("the mirror tells how far it is behind", 60, measured, every=0.1)
    longest = max(line["lag_positions"] for line in mirror.lines()[before:])
    need(longest <= BOUND + UNNOTICED, f"parted, the mirror fell {longest} positions behind; writers wait from {BOUND} on")
    stores.cable.heal()
    more(apps, stores.histories, drill.args.operations)
    say(f"  parted: the mirror fell {longest} positions behind")
    return longest


def store(drill, program, first, second):
    """CORFU-Store with its map replicas and its mirror."""
    with Cable(second.connect()) as cable:
        stores = Stores(drill, program, first, second, cable)
        apps = [stores.load(0), stores.load(100)]
        more(apps, stores.histories, drill.args.operations)
        kills = kill_each(drill, first, apps, stores.histories)
        lost = stores.maps[0]
        poll("the map replica that is to be lost has told something", 60, lambda: lost.runs() and lost.lines())
        lost.kill()
        stores.mirrors[-1].kill()
        more(apps, stores.histories, drill.args.operations)
        stores.maps.append(stores.start_map())
        stores.mirrors.append(stores.start_mirror())
        more(apps, stores.histories, drill.args.operations)
        longest = part(drill, stores, apps)
        results = [app.finish() for app in apps]
        behind = sum(result["counts"].get("mirror_behind", 0) for result in results)
        need(behind, "no write was refused while the mirror was behind by more than its bound")
        say(f"  {[result['counts'] for result in results]}")
        is_explained, judged = judge(first, stores.histories, drill.folder / "store.jsonl")
        need(is_explained, "no order explains the multi-puts and multi-gets")
        compare(drill, stores, results)
        kills += lose_clients(drill, stores)
        rolled_back = roll_back(drill, stores)
        trimmed = compact(drill, stores)
        drill.result.update(longest_lag=longest, refused=behind, trimmed_below=trimmed)
        return ("store", judged, kills + 2, f"one order; mirror at most {longest} behind; rolled back to {rolled_back}; trimmed below {trimmed}")


def lose_clients(drill, stores):
    """Kills clients in the middle of multi-puts of all keys: each leaves all of it or nothing. How many were killed."""
    keys = [f"lost-{n}" for n in range(8)]
    for turn in range(drill.args.samples):
        history = drill.folder / f"lost-{turn}.history"
        options = ("--prefix", "lost-", "--keys", len(keys), "--per-operation", len(keys), "--exact", "--operations", "put", "--clients", 1)
        client = stores.here.start("store", *stores.log, *options, "--first-client", 900 + turn, "--seconds", 3600, "--history", history)
        more([client], [history], 3)
        client.kill()
        text = history.read_text()
        done = [json.loads(line) for line in text[: text.rfind("\n")].splitlines()[1:]]
        # The number of the last multi-put that was acknowledged, and that of the one which is seen.
        last = [int(one["do"][0]["put"]["value"].partition("-")[2]) for one in done if one["outcome"] == "yes"][-1]
        values = {value.rstrip(".") for value in stores.here.run("get", *stores.log, *keys)["values"]}
        need(len(values) == 1, f"a client that was killed left a part of a multi-put: {sorted(values)}")
        of, _, number = values.pop().partition("-")
        need(int(of) == 900 + turn and int(number) >= last, f"multi-put {number} of client {of} is seen; {last} of {900 + turn} was acknowledged")
    return drill.args.samples


def compare(drill, stores, results):
    """All replicas and mirrors have the same hash at the same index."""
    line = stores.caught_up()
    fresh = stores.there.run("map", *stores.copy, "--mirrored")
    need((fresh["applied"], fresh["hash"]) == (line["applied"], line["hash"]), f"a new replica of the mirror has {fresh}, the mirror {line}")
    need(stores.hash_at(line["applied"]) == line["hash"], f"the primary has another hash at index {line['applied']} than the mirror: {line}")
    # Earlier states of the mirror, also of the one that was killed.
    for mirror in stores.mirrors:
        told = mirror.lines()
        for line in drill.random.sample(told, min(len(told), drill.args.samples)):
            need(line["applied"] == 0 or stores.hash_at(line["applied"]) == line["hash"], f"at index {line['applied']}, the mirror's hash is not the primary's")
    tail = max(result["applied"] for result in results)

    def played():
        return all(replica.runs() and (lines := replica.lines()) and lines[-1]["applied"] > tail - EVERY for replica in stores.maps[1:])

    poll("all map replicas are at the end", 60, played, every=0.1)
    found = hashes(*stores.maps)
    alone = {line["applied"] for line in stores.maps[0].lines()} & {line["applied"] for line in stores.maps[2].lines()}
    need(alone, "the new map replica has played nothing that the lost one had")
    for result in results:
        need(stores.hash_at(result["applied"]) == result["hash"], f"the clients' own map differs from a new one at {result['applied']}")
    say(f"  {len(found)} hashes of map replicas agree, {len(alone)} of them are told again by the one that replaces the lost one")


def roll_back(drill, stores):
    """Rolls the store back to an index, while nobody writes. Returns the index."""
    then = stores.get()
    writer = stores.load(200)
    more([writer], stores.histories[-1:], drill.args.operations)
    writer.finish()
    before = stores.get()
    need(before["values"] != then["values"], "nothing was written in between")
    index = stores.here.run("roll-back", *stores.log, "--to", then["index"])["index"]
    need(stores.get()["values"] == then["values"], "after the roll-back, the values are not those of the index")
    need(stores.get(index)["values"] == then["values"], "at the index of the roll-back, the values are not those of the index")
    need(stores.get(index - 1)["values"] == before["values"], "what was written before the roll-back is no longer in the history")
    line = stores.caught_up()
    need(line["applied"] >= index and stores.hash_at(line["applied"]) == line["hash"], f"the mirror did not roll back: {line}")
    return then["index"]


def compact(drill, stores):
    """Compacts the log of the store, and lets a new replica start from the checkpoint. Returns what was trimmed."""
    before, line = stores.get()["values"], stores.caught_up()
    done = stores.here.run("compact", *stores.log, "--patience", 5, "--history", 5, "--needed-from", line["applied"])
    need(0 < done["trimmed_below"] <= line["applied"], f"the compaction trimmed wrongly: {done}; the mirror needs {line['applied']}")
    need(stores.get()["values"] == before, "the compaction changed values")
    writer = stores.load(300)
    more([writer], stores.histories[-1:], drill.args.operations)
    result = writer.finish()
    need(stores.hash_at(result["applied"]) == result["hash"], "a replica that starts from the checkpoint has another hash")
    need(stores.caught_up()["hash"] == stores.hash_at(stores.mirrored()["applied"]), "the mirror's hash after a compaction is not the primary's")
    hashes(*stores.maps)
    return done["trimmed_below"]


def transactions(drill, program, cluster):
    """Optimistic transactions."""
    apps = Apps(drill, program, cluster.connect())
    started, histories = load_twice(drill, apps, "transactions", "transactions")
    more(started, histories, drill.args.operations)
    kills = kill_each(drill, cluster, started, histories)
    results = [app.finish() for app in started]
    say(f"  {[result['counts'] for result in results]}")
    need(any(result["counts"].get("conflicts") for result in results), "no transaction met a conflict")
    is_explained, judged = judge(cluster, histories, drill.folder / "transactions.jsonl")
    need(is_explained, "the transactions are not serializable")
    again = apps.run("transactions", "--log", "transactions", "--replay")
    at_tail = [result["hash"] for result in results if result["applied"] == again["applied"]]
    need(at_tail and set(at_tail) == {again["hash"]}, f"a new replica has {again}; those that ran have {results}")
    return ("transactions", judged, kills, "serializable; a new replica has the same hash")


def service(drill, program, cluster):
    """A replicated service. One of its processes is killed, too."""
    apps = Apps(drill, program, cluster.connect())
    options = ("--log", "service", "--seconds", 3600)
    started = [apps.start("smr", *options, "--replicas", 2), apps.start("smr", *options, "--replicas", 1)]
    tail = lambda: cluster.log_info("service")["tail"]

    def grows(by):
        goal = tail() + by
        poll(f"{by} more entries", 90, lambda: all(app.runs() for app in started) and tail() >= goal, every=0.2)

    grows(drill.args.operations)
    for number in cluster.ids():
        pids, _ = cluster.signal([number])
        grows(drill.args.operations)
        cluster.wait_back(pids)
    started.pop().kill()
    started.append(apps.start("smr", *options, "--replicas", drill.args.replicas))
    grows(drill.args.operations)
    results = [app.finish() for app in started]
    again = apps.run("smr", "--log", "service", "--replay")
    at_tail = [result["hash"] for result in results if result["applied"] == again["applied"]]
    need(at_tail and set(at_tail) == {again["hash"]}, f"a new replica has {again}; those that ran have {results}")
    commands = sum(result["commands"]["ops"] for result in results)
    return ("service", commands, len(cluster.ids()) + 1, "each command once; a new replica has the same hash")


def body(drill):
    program = find_program()
    nodes = ("--nodes", drill.args.nodes)
    rows = []
    with Cluster(drill.binary, drill.folder / "first", *nodes) as first:
        # Before the first kill: some kinds begin only on nodes that are all up.
        for log in ("store", "transactions", "service", *(f"mutant-{name}" for name, _ in MUTANTS if drill.args.mutant_bin)):
            first.create_log(log, drill.args.loglet)
        if drill.args.mutant_bin:
            find_mutants(drill, first, MUTANTS)
        with Cluster(drill.binary, drill.folder / "second", *nodes) as second:
            rows.append(store(drill, program, first, second))
        rows += [transactions(drill, program, first), service(drill, program, first)]
    say()
    table(rows, ("application", "operations", "kills", "what holds"))
    drill.result.update({f"{row[0]}_operations": row[1] for row in rows}, kills=sum(row[2] for row in rows))


if __name__ == "__main__":
    Drill(
        "log_apps",
        __doc__,
        refuses={},
        nodes=(3, 3, "nodes of each cluster"),
        operations=(200, 15, "operations of each process between two events"),
        parted=(10.0, 2.0, "seconds for which the clusters stay parted after writers wait, twice"),
        samples=(5, 2, "earlier states of each mirror that are compared"),
        replicas=(3, 2, "replicas of the service in the process that is started late"),
        mutant_bin=("", "", "a program of the applications with mutants, to be found wrong"),
    ).run(body)
