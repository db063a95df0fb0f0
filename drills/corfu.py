#!/usr/bin/env python3
"""CORFU's own interface keeps what it acknowledged, while its nodes are replaced and killed with `kill -9`.

Several clients append single entries with `atoll corfu append` to a log with two chains of two units each, on six real nodes. Under this
load, a unit is replaced by another node, the node of a unit is killed, and the node of the sequencer is killed. Then the node through which
a client appends is killed in the middle of a batch: it has taken positions that it never writes. Every such hole is found with
`atoll corfu show` and filled with `atoll corfu fill`.

Afterwards every acknowledged entry is at its position and nowhere else, and what was filled is junk. All nodes read the same log, which has
none of the junk. Positions are trimmed, one alone and all below one, and readers of the log pass them. Wrong requests are refused by name.
"""

import json
import threading
import time

from cluster import Cluster, Drill, need, poll, say, table
from load import Load

LOG, PLAIN = "reef", "plain"
UNITS, SEQUENCER, SPARE = (1, 2, 3, 4), 5, 6
NO, UNKNOWN = 1, 3
READ_AT_ONCE = 200


class Client(threading.Thread):
    """Appends one entry after the other until it is told to stop."""

    def __init__(self, cluster, number):
        super().__init__(daemon=True)
        self.cluster, self.number = cluster, number
        self.connect = cluster.connect()
        # Where each acknowledged entry is; and the entries whose outcome is unknown.
        self.placed, self.open = {}, set()
        self.refused = 0
        self.stopping = threading.Event()
        self.error = None

    def run(self):
        try:
            turn = 0
            while not self.stopping.is_set():
                entry = f"{self.number}.{turn}"
                done = self.cluster.atoll("corfu", "append", entry, "--log", LOG, "--json", connect=self.connect, check=False)
                if done.returncode == 0:
                    self.placed[entry] = json.loads(done.stdout)["position"]
                elif done.returncode == UNKNOWN:
                    self.open.add(entry)
                elif done.returncode == NO:
                    self.refused += 1
                else:
                    raise RuntimeError(f"`atoll corfu append` ended with {done.returncode}: {done.stderr.decode()}")
                turn += 1
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for this thread
            self.error = error

    def finish(self):
        self.stopping.set()
        self.join(90)
        need(not self.is_alive(), f"client {self.number} does not end")
        if self.error:
            raise self.error


def more(clients, count=2):
    """Waits until every client has so many more acknowledged entries; the seconds that it took. One of each may have been on its way."""
    goals, began = [len(c.placed) + count for c in clients], time.monotonic()
    poll("appends continue", 120, lambda: all(len(c.placed) >= goal or c.error for c, goal in zip(clients, goals)), every=0.02)
    return time.monotonic() - began


def show(cluster):
    """The projection, once it can be shown with the position that an append gets next."""
    def ask():
        done = cluster.atoll("corfu", "show", "--log", LOG, "--json", check=False)
        shown = json.loads(done.stdout) if done.returncode == 0 else None
        return shown if shown and shown["next"] is not None else None

    return poll("`atoll corfu show` answers", 60, ask, every=0.1)


def wait_up(cluster):
    """Until every node is up and the log is healthy."""
    def ask():
        status = cluster.status()
        rows = [row for row in status["logs"] if row["name"] == LOG]
        return all(n["state"] == "up" for n in status["nodes"]) and rows and rows[0]["healthy"]

    poll("all nodes are up and the log is healthy", 120, ask, every=0.2)


def cells(cluster, positions):
    """What is at these positions, by position."""
    found = {}
    for at in range(0, len(positions), READ_AT_ONCE):
        part = positions[at:at + READ_AT_ONCE]
        out = cluster.atoll("corfu", "read", *part, "--log", LOG, "--json", timeout=120).stdout
        found.update((row["position"], row) for row in map(json.loads, out.splitlines()))
    return found


def refused(cluster, reason, words, *args):
    """A wrong request: it is refused for this reason and in these words, and has not happened."""
    done = cluster.atoll("corfu", *args, "--json", check=False)
    need(done.returncode in (NO, 2), f"`atoll corfu {args}` ended with {done.returncode}")
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    need(error["happened"] == "no" and error["reason"] == reason, f"`atoll corfu {args}` was refused with {error}")
    need(words in error["message"], f"`atoll corfu {args}` was refused with the words {error['message']!r}, not {words!r}")


def bad_input(cluster):
    """Wrong requests."""
    cluster.atoll("log", "append", "--log", PLAIN, "x")
    position = cluster.json("corfu", "append", "first", "--log", LOG)["position"]
    refused(cluster, "no-such-log", "no log", "append", "x", "--log", "sand")
    refused(cluster, "refused", "has no operations on single positions", "read", 0, "--log", PLAIN)
    refused(cluster, "beyond-tail", "position 1000000 is beyond the tail", "read", 1_000_000, "--log", LOG)
    refused(cluster, "beyond-tail", "position 1000000 is beyond the tail", "fill", 1_000_000, "--log", LOG)
    refused(cluster, "conflict", f"position {position} is already written", "fill", position, "--log", LOG)
    refused(cluster, "refused", f"node {SEQUENCER} is not a unit", "replace", "--unit", SEQUENCER, "--by", SPARE, "--log", LOG)
    return "first", position


def replace_unit(cluster, clients):
    """A unit is replaced under load."""
    before = show(cluster)
    old = before["chains"][0][1]
    new = next(n for n in cluster.ids() if n != before["sequencer"] and all(n not in chain for chain in before["chains"]))
    after = cluster.json("corfu", "replace", "--unit", old, "--by", new, "--log", LOG, timeout=90)
    need(after["loglet"] != before["loglet"], "the log did not continue in another segment")
    need(after["chains"][0] == [before["chains"][0][0], new], f"node {new} did not take the place of {old}: {after['chains']}")
    need(len(after["chains"]) == len(before["chains"]), f"the chains were {before['chains']}, and are {after['chains']}")
    return more(clients)


def lose(cluster, clients, role):
    """The node of a unit, or of the sequencer, is killed under load; the seconds until every client is acknowledged again."""
    wait_up(cluster)
    shown = show(cluster)
    victim = shown["sequencer"] if role == "sequencer" else shown["chains"][-1][0]
    pids, _ = cluster.signal([victim])
    need(pids, f"node {victim} ended before it was killed")
    took = more(clients)
    cluster.wait_back(pids)
    more(clients)
    return took


def make_holes(drill, cluster):
    """Kills the node through which a client appends until it leaves holes at the end; the positions of the holes."""
    for attempt in range(drill.args.attempts):
        wait_up(cluster)
        shown = show(cluster)
        busy = {shown["sequencer"], *(unit for chain in shown["chains"] for unit in chain)}
        through = next(n for n in cluster.ids() if n not in busy)
        load = Load(cluster, drill.folder, LOG, name=f"x{attempt}", connect=cluster.node(through).grpc, depth=512).start()
        time.sleep(drill.random.uniform(0.2, 0.6))
        pids, _ = cluster.signal([through])
        load.abandon()
        # What the node has sent is written by now, or soon.
        cluster.wait_back(pids)
        wait_up(cluster)
        after = show(cluster)
        need(after["loglet"] == shown["loglet"], "the log moved although its units and its sequencer were up")
        holes = range(after["written"], after["next"])
        say(f"killed node {through}: written below {after['written']}, positions below {after['next']} are taken")
        if holes:
            return list(holes)
    return []


def fill(cluster, holes):
    """Fills holes; what an append had begun to write is an entry. The number of holes that became junk, and the slowest fill in seconds."""
    junk, slowest = 0, 0.0
    for position in holes:
        began = time.monotonic()
        done = cluster.atoll("corfu", "fill", position, "--log", LOG, "--json", check=False)
        slowest = max(slowest, time.monotonic() - began)
        if done.returncode == 0:
            need(json.loads(done.stdout)["what"] == "junk", f"a fill of {position} said {done.stdout}")
            junk += 1
        else:
            error = json.loads(done.stderr.splitlines()[-1])["error"]
            need(error["reason"] == "conflict", f"a fill of {position} was refused with {error}")
    return junk, slowest


def check(cluster, clients, first):
    """Every acknowledged entry is at its position and nowhere else, and all nodes read the same; how many there are."""
    placed = {first[0]: first[1]}
    for client in clients:
        placed.update(client.placed)
    need(len(set(placed.values())) == len(placed), "two acknowledged entries have one position")
    found = cells(cluster, sorted(placed.values()))
    for entry, position in placed.items():
        row = found[position]
        need(row["what"] == "data" and row["data"] == entry, f"{entry} was acknowledged at {position}, and there is {row}")
    logs = set()
    for node in cluster.nodes():
        lines = cluster.atoll("log", "read", "--raw", "--log", LOG, connect=node.grpc, timeout=120).stdout
        logs.add(lines)
    need(len(logs) == 1, f"{len(logs)} different logs were read from the nodes")
    entries = logs.pop().decode().splitlines()
    own = [entry for entry in entries if not entry.startswith("x")]
    need(len(set(own)) == len(own), "an entry is in the log twice")
    allowed = set(placed) | {entry for client in clients for entry in client.open}
    strangers = [entry for entry in own if entry not in allowed]
    need(not strangers, f"entries that nobody appended: {strangers[:3]}")
    return len(placed)


def trims(cluster, clients):
    """One position is trimmed alone, and then all below one."""
    entry, position = max(clients[0].placed.items(), key=lambda item: item[1])
    need(cluster.json("corfu", "trim", position, "--log", LOG)["what"] == "trimmed", "a trim of one position")
    need(cells(cluster, [position])[position]["what"] == "trimmed", f"{position} was trimmed")
    lines = cluster.atoll("log", "read", "--raw", "--log", LOG, timeout=120).stdout.decode().splitlines()
    need(entry not in lines and lines, f"{entry} was trimmed, and is read")
    below = position + 1
    cluster.atoll("corfu", "trim", "--below", below, "--log", LOG)
    need(show(cluster)["trim"] == below, f"the log was trimmed below {below}")
    need(cells(cluster, [0])[0]["what"] == "trimmed", "0 was trimmed")


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 6) as cluster:
        units = ",".join(map(str, UNITS))
        cluster.atoll(
            "log", "create", "--log", LOG, "--loglet", "corfu", "--place", f"unit={units}", "--place", f"sequencer={SEQUENCER}",
            "--option", "chains=2", "--option", "stripe=4",
        )
        first = bad_input(cluster)
        clients = [Client(cluster, n) for n in range(drill.args.clients)]
        for client in clients:
            client.start()
        more(clients)
        rows = [("a unit is replaced", f"{replace_unit(cluster, clients):.1f}")]
        for _ in range(drill.args.rounds):
            for role in ("unit", "sequencer"):
                rows.append((f"the node of the {role} is killed", f"{lose(cluster, clients, role):.1f}"))
        for client in clients:
            client.finish()
        holes = make_holes(drill, cluster)
        need(holes, f"no holes after {drill.args.attempts} kills")
        junk, slowest = fill(cluster, holes)
        need(junk, f"none of {len(holes)} positions that were taken and not written became junk")
        after = cells(cluster, holes)
        need(sum(row["what"] == "junk" for row in after.values()) == junk, "what was filled is not all junk")
        position = cluster.json("corfu", "append", "last", "--log", LOG)["position"]
        need(position >= holes[-1] + 1, f"an entry was appended at {position}, among the holes up to {holes[-1]}")
        clients[0].placed["last"] = position
        entries = check(cluster, clients, first)
        trims(cluster, clients)
        say()
        table(rows, ("what happens", "seconds until every client has two more entries"))
        say(f"{entries} acknowledged entries, {sum(len(c.open) for c in clients)} of unknown outcome, {junk} of {len(holes)} holes became junk")
        drill.result.update(
            entries=entries, unknown=sum(len(c.open) for c in clients), refused=sum(c.refused for c in clients), holes=len(holes),
            junk=junk, slowest_fill_s=round(slowest, 3), waits_s=[float(seconds) for _, seconds in rows],
        )


if __name__ == "__main__":
    Drill(
        "corfu", __doc__,
        clients=(4, 3, "clients that append one entry after the other"),
        rounds=(5, 1, "how often the node of a unit and that of the sequencer are killed"),
        attempts=(10, 10, "how often a node is killed at most until it leaves holes"),
    ).run(body)
