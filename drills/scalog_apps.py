#!/usr/bin/env python3
"""Scalog's applications run over a real cluster, while their processes are killed with `kill -9`.

Scalog-Store: clients in two processes put and get single keys, while every node is killed in turn, and a replica of the map, which a new one
replaces. `atoll check` finds one order of all puts and gets that agrees with real time and with the log. All replicas of the map have the same
hash at the same index. Then the log is compacted and trimmed: no value changes, and a new replica starts from the checkpoint.

Objects with streams of their own: clients in two processes change several objects at once and read several at one index, while every node and
the index servers of the streams are killed. `atoll check` finds one order. A reader of one object reads exactly the entries of its stream,
from the newest checkpoint on: they are counted, and compared with the log, which the drill decodes by itself. A trim changes no object.

The market: producers append what users do, and an analyser counts it and serves a page. Nodes, the producers and the analyser are killed. The
counts on the page equal a scan of the log.

`--mutant-bin` is a program of the applications with the feature `testing`: known bugs must be found.
"""

import json
import re
import urllib.request

import app_records
from apps import Apps, find_mutants, find_program, hashes, judge, kill_each, load_twice, more
from cluster import Cluster, Drill, need, poll, say, table
from ports import free_ports

KEYS = [f"key-{n}" for n in range(8)]
# Between two hashes that a replica of the map tells, in positions.
EVERY = 25
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


class Shares:
    """Index servers: two for each share of the positions."""

    def __init__(self, apps, log, shares):
        self.apps, self.log, self.of = apps, log, shares
        keys = [(number, copy) for number in range(shares) for copy in range(2)]
        self.addresses = {key: f"127.0.0.1:{port}" for key, port in zip(keys, free_ports(len(keys)))}
        self.servers = {}
        self.again(*keys)

    def start(self, number, listen="127.0.0.1:0"):
        return self.apps.start("stream-index", "--log", self.log, "--number", number, "--of", self.of, "--listen", listen)

    def address(self, server):
        return poll("an index server listens", 60, lambda: server.runs() and server.lines(), every=0.02)[0]["listens"]

    def options(self, **instead):
        """What tells clients where the servers are; `instead` has other addresses by share."""
        of = lambda number: instead.get(f"share{number}") or ",".join(self.addresses[number, copy] for copy in range(2))
        return [word for number in range(self.of) for word in ("--share", of(number))]

    def kill(self, *keys):
        for key in keys:
            self.servers[key].kill()

    def again(self, *keys):
        """Starts servers. They play the log from its beginning, also those in place of killed ones."""
        self.servers.update({key: self.start(key[0], self.addresses[key]) for key in keys})
        for key in keys:
            self.address(self.servers[key])


def objects(drill, program, cluster):
    """Objects with streams of their own, and servers that index them."""
    apps = Apps(drill, program, cluster.connect())
    shares = Shares(apps, "objects", 2)
    started, histories = load_twice(drill, apps, "objects", "objects", options=shares.options())
    more(started, histories, drill.args.operations)
    kills = kill_each(drill, cluster, started, histories) + 3
    shares.kill((0, 0))
    more(started, histories, drill.args.operations)
    # Nobody can answer for a share: readers wait.
    shares.kill((1, 0), (1, 1))
    shares.again((0, 0), (1, 0), (1, 1))
    more(started, histories, drill.args.operations)
    results = [app.finish() for app in started]
    say(f"  {[result['counts'] for result in results]}")
    need(not any(result["foreign"] for result in results), f"readers read entries of other streams: {results}")
    is_explained, judged = judge(cluster, histories, drill.folder / "objects.jsonl")
    need(is_explained, "no order explains the updates and reads of objects")
    found, saved = app_records.streams(cluster, "objects")
    entries = len({position for positions in found.values() for position in positions}) + len(saved)
    reads = read_objects(apps, shares.options(), found, saved)
    most = max(line["entries_read"] for line in reads)
    trimmed = trim_objects(apps, shares, sorted(found), reads)
    drill.result.update(entries_of_all_objects=entries, most_entries_read_for_one=most)
    return ("objects", judged, kills, f"one order; one object: at most {most} of {entries} entries read; trimmed below {trimmed}")


def read_objects(apps, options, found, saved):
    """Each object, by a reader that reads exactly the entries of its stream from the newest checkpoint on. Their lines."""
    app = apps.start("object-read", "--log", "objects", *options, *sorted(found))
    app.finish(120, tell=False)
    for line in app.lines():
        name = line["object"]
        begin = saved.get(name, (0, -1))[1]
        due = len([position for position in found[name] if position >= begin])
        loaded = int(begin > 0)
        told = (line["delivered"], line["loaded"], line["foreign"], line["entries_read"])
        need(told == (due, loaded, 0, due + loaded), f"{name}: the log has {due} entries and {loaded} checkpoint for a reader, which says {line}")
    return app.lines()


def trim_objects(apps, shares, names, before):
    """Writes checkpoints and trims; the objects stay as they are, also for an index server that never sees what is gone."""
    fields = lambda options: [line["fields"] for line in read_lines(apps, "object-read", "--log", "objects", *options, *names)]
    done = apps.run("object-trim", "--log", "objects")
    need(done["objects"] == len(names) and done["trimmed_below"] > 0, f"nothing was trimmed: {done}")
    expected = [line["fields"] for line in before]
    need(fields(shares.options()) == expected, "the trim changed an object")
    fresh = shares.start(0)
    address = shares.address(fresh)
    need(fields(shares.options(share0=address)) == expected, "a new index server shows other objects")
    states = [json.load(urllib.request.urlopen(f"http://{one}/state", timeout=10)) for one in (address, shares.addresses[0, 0])]
    need(states[0] == states[1], f"a new index server differs from an old one: {states}")
    return done["trimmed_below"]


def read_lines(apps, *args):
    """All lines of a program that ends by itself."""
    app = apps.start(*args)
    app.finish(120, tell=False)
    return app.lines()


def market(drill, program, cluster):
    """The market: producers, and an analyser with its page. Both are killed, too."""
    apps, log, file = Apps(drill, program, cluster.connect()), ("--log", "market"), drill.folder / "market.state"
    produce = lambda: apps.start("market-produce", *log, "--users", 6, "--pause-ms", 10, "--seconds", 3600)
    serve = lambda listen: apps.start("market-serve", *log, "--state", file, "--save-every", 0.1, "--listen", listen)
    page_of = lambda app: poll("the page is served", 60, lambda: app.runs() and app.lines(), every=0.02)[0]
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    producers, analyser = [produce()], serve(listen)
    page = page_of(analyser)["page"]
    told = lambda: json.load(urllib.request.urlopen(f"{page}counts", timeout=10))

    def grows():
        goal = told()["events"] + 2 * drill.args.operations
        poll("more events are counted", 90, lambda: analyser.runs() and producers[-1].runs() and told()["events"] >= goal, every=0.1)

    grows()
    for number in cluster.ids():
        pids, _ = cluster.signal([number])
        need(pids, f"node {number} was not there to be killed")
        grows()
        cluster.wait_back(pids)
    continued = []
    for _ in range(drill.args.samples):
        poll("the counts were saved", 60, file.is_file)
        analyser.kill()
        analyser = serve(listen)
        continued.append(page_of(analyser)["continues_at"])
        grows()
    need(all(continued) and continued == sorted(continued), f"the analyser did not continue from what it saved: {continued}")
    producers[-1].kill()
    producers.append(produce())
    grows()
    last = producers[-1].finish()
    tail = cluster.log_info("market")["tail"]
    poll("the analyser is at the tail", 60, lambda: told()["applied"] >= tail, every=0.1)
    shown, events = told(), list(app_records.events(cluster, "market"))
    scanned = app_records.count(events)
    counted = {item.pop("item"): item for item in shown["items"]}
    need(counted == scanned, f"the analyser counts {counted}; a scan of the log finds {scanned}")
    need(shown["events"] == len(events), f"the analyser counts {shown['events']} events; the log has {len(events)}")
    # What was acknowledged to a producer that was killed, as far as it said so, and to the other one.
    acknowledged = (producers[0].lines() or [{"acknowledged": 0}])[-1]["acknowledged"] + last["acknowledged"]
    need(acknowledged <= len(events), f"{acknowledged} events were acknowledged; the log has {len(events)}")
    with urllib.request.urlopen(f"{page}events", timeout=10) as live:
        news = json.loads(live.readline().removeprefix(b"data: "))
    need(news["events"] == len(events) and news["applied"] == shown["applied"], f"the page shows {news}")
    html = urllib.request.urlopen(page, timeout=10).read().decode()
    outside = [word for word in re.findall(r"https?://[^\"' ]+", html) if word != "http://www.w3.org/2000/svg"]
    need(not outside, f"the page needs something from elsewhere: {outside}")
    drill.result.update(market_events=len(events), market_continued=len(continued))
    return ("market", len(events), len(cluster.ids()) + len(continued) + 1, "counts equal a scan of the log")


# Known bugs, the programs that have them, and the servers that these need.
with_index = lambda apps, log: Shares(apps, log, 2).options()
MUTANTS = (
    ("AppsA1", "scalog-store"), ("AppsA5", "scalog-store"),
    ("AppsV1", "objects", with_index), ("AppsV3", "objects", with_index), ("AppsV5", "objects", with_index),
)


def body(drill):
    program = find_program()
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", drill.args.nodes) as cluster:
        # Before the first kill: some kinds begin only on nodes that are all up.
        for log in ("scalog-store", "objects", "market", *(f"mutant-{name}" for name, *_ in MUTANTS if drill.args.mutant_bin)):
            cluster.create_log(log, drill.args.loglet)
        if drill.args.mutant_bin:
            find_mutants(drill, cluster, MUTANTS)
        rows = [run(drill, program, cluster) for run in (store, objects, market)]
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
        samples=(5, 2, "times that the analyser of the market is killed"),
        mutant_bin=("", "", "a program of the applications with mutants, to be found wrong"),
    ).run(body)
