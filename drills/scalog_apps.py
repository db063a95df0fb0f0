#!/usr/bin/env python3
"""Scalog's applications run over a real cluster, while their processes are killed with `kill -9`.

Scalog-Store: clients in two processes put and get single keys, while every node is killed in turn, and a replica of the map, which a new one
replaces. `atoll check` finds one order of all puts and gets that agrees with real time and with the log. All replicas of the map have the same
hash at the same index. Then the log is compacted and trimmed: no value changes, and a new replica starts from the checkpoint.

`--mutant-bin` is a program of the applications with the feature `testing`: known bugs must be found.
"""

from apps import Apps, find_mutants, find_program, hashes, judge, kill_each, load_twice, more
from cluster import Cluster, Drill, need, poll, say, table

KEYS = [f"key-{n}" for n in range(8)]
# Between two hashes that a replica of the map tells, in positions.
EVERY = 25
# Known bugs, and what must find each of them.
MUTANTS = (("AppsA1", "scalog-store"), ("AppsA5", "scalog-store"))


def store(drill, program, cluster):
    """Scalog-Store with replicas of its map."""
    apps, log = Apps(drill, program, cluster.connect()), ("--log", "scalog-store")
    follow = lambda: apps.start("map", *log, "--of", "scalog-store", "--every", EVERY)
    started, histories = load_twice(drill, apps, "scalog-store", "scalog-store")
    maps = [follow(), follow()]
    more(started, histories, drill.args.operations)
    kills = kill_each(drill, cluster, started, histories) + 1
    poll("the replica that is to be lost has told something", 60, lambda: maps[0].runs() and maps[0].lines())
    maps[0].kill()
    maps.append(follow())
    more(started, histories, drill.args.operations)
    results = [app.finish() for app in started]
    say(f"  {[result['counts'] for result in results]}")
    is_explained, judged = judge(cluster, histories, drill.folder / "scalog-store.jsonl")
    need(is_explained, "no order explains the puts and gets")
    tail = max(result["applied"] for result in results)
    hash_at = lambda index: apps.run("map", *log, "--of", "scalog-store", "--until", index)["hash"]
    for result in results:
        need(hash_at(result["applied"]) == result["hash"], f"the clients' own map differs from a new one at {result['applied']}")
    poll("the replicas are at the end", 60, lambda: all((r.runs() and r.lines() or [{"applied": 0}])[-1]["applied"] > tail - EVERY for r in maps[1:]), every=0.1)
    found = hashes(*maps)
    need({line["applied"] for line in maps[0].lines()} <= {line["applied"] for line in maps[2].lines()}, "the new replica has not told all that the lost one had")
    trimmed = compact(drill, cluster, apps, log)
    return ("scalog-store", judged, kills, f"one order; {len(found)} hashes agree; trimmed below {trimmed}")


def compact(drill, cluster, apps, log):
    """Compacts the log of the store; its values stay. Returns what was trimmed."""
    values = lambda: [line["value"] for line in read(apps, log)]
    before = values()
    need(any(before), "no key has a value")
    done = apps.run("scalog-thin", *log, "--patience", 0)
    need(0 < done["trimmed_below"] <= cluster.log_info("scalog-store")["tail"], f"the compaction trimmed wrongly: {done}")
    need(values() == before, "the compaction changed values")
    need(all(line["position"] is None or line["position"] >= done["trimmed_below"] for line in read(apps, log)), "a live value was trimmed")
    result = apps.start("scalog-store", *log, "--seconds", 1).finish(tell=False)
    again = apps.run("map", *log, "--of", "scalog-store", "--until", result["applied"])
    need(again["hash"] == result["hash"], "a replica that starts from the checkpoint has another hash")
    return done["trimmed_below"]


def read(apps, log):
    """All keys, where they are, and their values."""
    app = apps.start("scalog-get", *log, *KEYS)
    app.finish(tell=False)
    return app.lines()


def body(drill):
    program = find_program()
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", drill.args.nodes) as cluster:
        # Before the first kill: some kinds begin only on nodes that are all up.
        for log in ("scalog-store", *(f"mutant-{name}" for name, _ in MUTANTS if drill.args.mutant_bin)):
            cluster.create_log(log, drill.args.loglet)
        if drill.args.mutant_bin:
            find_mutants(drill, cluster, MUTANTS)
        rows = [store(drill, program, cluster)]
    say()
    table(rows, ("application", "operations", "kills", "what holds"))
    drill.result.update({f"{row[0]}_operations": row[1] for row in rows}, kills=sum(row[2] for row in rows))


if __name__ == "__main__":
    Drill(
        "scalog_apps",
        __doc__,
        refuses={},
        nodes=(3, 3, "nodes of the cluster"),
        operations=(200, 15, "operations of each process between two events"),
        mutant_bin=("", "", "a program of the applications with mutants, to be found wrong"),
    ).run(body)
