#!/usr/bin/env python3
"""Shards are added and ended while a log on Scalog is written, and servers, an aggregator and an orderer are killed with `kill -9`.

Nine real nodes keep a log in three shards of two servers each, with an aggregator, two orderers and an ordering log. Python clients, which
are generated from the protobuf definition, append records by all policies and to shards of their choice. Under this load, shards are ended
and added again with `atoll scalog shard`: no append fails. Then the node of a storage server, of the aggregator and of the first orderer
are killed, alone and in pairs, while shards are added for those that ended.

All is judged from outside: every acknowledged record is at its position and nowhere else, all nodes read the same log, a record that was
sent after another one was acknowledged is behind it, and a subscriber has seen all records in order. Another subscriber, which does not
read, harms nobody. Wrong requests are refused by name.

On three other nodes with `logs.full_shard_records`, a log gets another shard each time its shards are full, until no node is free. The
status and the log of a node say why.
"""

import json
import threading
import time

from cluster import Cluster, Drill, Failed, need, poll, quantile, say, table
from scalog_client import Refused, Scalog, Unknown, messages

import grpc

LOG, PLAIN = "reef", "plain"
STORAGE, HELPERS = (1, 2, 3, 4, 5, 6), (7, 8, 9)
FULL = 50
POLICIES = ("hash", "round-robin", "nearest", None)
NO = 1


class Client(threading.Thread):
    """Appends one record after the other until it is told to stop, by a policy, or to shards of its choice."""

    def __init__(self, cluster, number):
        super().__init__(daemon=True)
        self.number = number
        self.log = Scalog(LOG, [node.grpc for node in cluster.nodes()], at=number % len(cluster.ids()))
        policy = POLICIES[number % len(POLICIES)]
        self.log.set_shard_policy(policy or (lambda live: live[-1].number))
        # (position, record, when it was sent, when it was acknowledged)
        self.placed, self.open, self.refused = [], set(), []
        self.stopping = threading.Event()
        self.error = None

    def run(self):
        try:
            turn = 0
            while not self.stopping.is_set():
                record, sent = f"{self.number}.{turn}", time.monotonic()
                try:
                    position, _ = self.log.append(record.encode())
                    self.placed.append((position, record, sent, time.monotonic()))
                except Unknown:
                    self.open.add(record)
                except Refused as refused:
                    self.refused.append((record, str(refused)))
                turn += 1
        except Exception as error:  # noqa: BLE001, it is raised again where the drill waits for this thread
            self.error = error

    def finish(self):
        self.stopping.set()
        self.join(120)
        need(not self.is_alive(), f"client {self.number} does not end")
        self.log.close()
        if self.error:
            raise self.error


class Follower(threading.Thread):
    """A subscriber that reads everything from the beginning."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.log = Scalog(LOG, [node.grpc for node in cluster.nodes()], at=3)
        self.seen, self.error = [], None

    def run(self):
        try:
            for position, record in self.log.subscribe(0):
                self.seen.append((position, record.decode()))
        except (Refused, grpc.RpcError, ValueError) as error:
            self.error = error


def more(clients, count=3):
    """Waits until every client has so many more acknowledged records; the seconds that it took. One of each may have been on its way."""
    goals, began = [len(c.placed) + count for c in clients], time.monotonic()
    poll("appends continue", 120, lambda: all(len(c.placed) >= goal or c.error for c, goal in zip(clients, goals)), every=0.02)
    return time.monotonic() - began


def shards(cluster):
    """The shards of the active segment, as `atoll scalog shard list` has them."""
    def ask():
        done = cluster.atoll("scalog", "shard", "list", "--log", LOG, "--json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    return poll("`atoll scalog shard list` answers", 60, ask, every=0.1)


def live(shown):
    """The shards that take records."""
    return [shard for shard in shown["shards"] if shard["live"]]


def wait_up(cluster):
    """Until every node is up and the log is healthy."""
    def ask():
        status = cluster.status()
        rows = [row for row in status["logs"] if row["name"] == LOG]
        return all(n["state"] == "up" for n in status["nodes"]) and rows and rows[0]["healthy"]

    poll("all nodes are up and the log is healthy", 120, ask, every=0.2)


def refused(cluster, reason, words, *args):
    """A wrong request: it is refused for this reason and in these words, and has not happened."""
    done = cluster.atoll("scalog", *args, "--json", check=False)
    need(done.returncode in (NO, 2), f"`atoll scalog {args}` ended with {done.returncode}")
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    need(error["happened"] == "no" and error["reason"] == reason, f"`atoll scalog {args}` was refused with {error}")
    need(words in error["message"], f"`atoll scalog {args}` was refused with the words {error['message']!r}, not {words!r}")


def bad_input(cluster):
    """Wrong requests."""
    cluster.atoll("log", "append", "--log", PLAIN, "x")
    refused(cluster, "no-such-log", "no log", "shard", "list", "--log", "sand")
    refused(cluster, "refused", "has no shards", "shard", "add", "--log", PLAIN)
    refused(cluster, "refused", "node 77 is unknown, or does not answer", "shard", "add", "--nodes", "7,77", "--log", LOG)
    refused(cluster, "refused", "node 1 is a server of shard 0", "shard", "add", "--nodes", "1,7", "--log", LOG)
    refused(cluster, "refused", "names a node twice", "shard", "add", "--nodes", "7,7", "--log", LOG)
    refused(cluster, "refused", "numbers are never used again", "shard", "add", "--nodes", "7,8", "--number", 0, "--log", LOG)
    refused(cluster, "refused", "no shard 9 that takes records", "shard", "finalize", 9, "--log", LOG)
    refused(cluster, "conflict", "shard 9 takes no records", "append", "x", "--shard", 9, "--log", LOG)
    refused(cluster, "beyond-tail", "beyond the tail", "read", 1_000_000, "--log", LOG)


class Moved(Exception):
    """The log has moved to another segment, which has shards of its own: after kills, the nodes do that by themselves."""


def same(cluster, before):
    """The shards, if the log is still in the same segment."""
    shown = shards(cluster)
    if shown["loglet"] != before["loglet"]:
        raise Moved
    return shown


def change(cluster, clients):
    """A shard is ended and its nodes keep a new one, under load: the longest time without an acknowledgement of each client meanwhile."""
    while True:
        before = shards(cluster)
        try:
            return change_once(cluster, clients, before)
        except Moved:
            say("  the log has moved to another segment meanwhile")
        except Failed:
            if shards(cluster)["loglet"] == before["loglet"]:
                raise


def change_once(cluster, clients, before):
    """The same, for the segment that there was before."""
    began = time.monotonic()
    old = live(before)[0]
    after = cluster.json("scalog", "shard", "finalize", old["number"], "--after", 3, "--log", LOG)
    need(old["number"] == after["shard"], f"shard {old['number']} was ended, and {after['shard']} is said to be")
    poll("the shard has ended", 30, lambda: old["number"] not in [s["number"] for s in live(same(cluster, before))], every=0.05)
    nodes = ",".join(map(str, old["nodes"]))
    added = cluster.json("scalog", "shard", "add", "--nodes", nodes, "--log", LOG)
    new = next(shard for shard in added["shards"] if shard["number"] == added["shard"])
    need(new["live"] and new["nodes"] == old["nodes"] and new["number"] > old["number"], f"the new shard is {new}")
    more(clients)
    poll("the new shard has records", 60, lambda: next(s["records"] for s in same(cluster, before)["shards"] if s["number"] == new["number"]), every=0.1)
    ended = time.monotonic()
    gaps = []
    for client in clients:
        times = [began, *(at for _, _, _, at in client.placed if began <= at <= ended), ended]
        gaps.append(max(b - a for a, b in zip(times, times[1:])))
    return gaps


def last_shard(cluster):
    """The last shard that takes records cannot be ended. The others are ended, and added again."""
    before = live(shards(cluster))
    for shard in before[1:]:
        cluster.atoll("scalog", "shard", "finalize", shard["number"], "--log", LOG)
    refused(cluster, "refused", f"shard {before[0]['number']} is the last one", "shard", "finalize", before[0]["number"], "--log", LOG)
    for shard in before[1:]:
        cluster.atoll("scalog", "shard", "add", "--nodes", ",".join(map(str, shard["nodes"])), "--log", LOG)
    need(len(live(shards(cluster))) == len(before), "not every shard came back")


def node_of(cluster, role):
    """A node that has this role for the active segment; of orderers, the first."""
    duties = cluster.active(LOG)["duties"]
    if role == "storage":
        return live(shards(cluster))[-1]["nodes"][0]
    return next((duty["node"] for duty in duties if duty["role"] == role), None)


def lose(cluster, clients, roles):
    """The nodes of some roles are killed under load; the seconds until every client is acknowledged again."""
    wait_up(cluster)
    victims = sorted({node for node in (node_of(cluster, role) for role in roles) if node})
    pids, _ = cluster.signal(victims)
    need(len(pids) == len(victims), f"of the nodes {victims}, some ended before they were killed")
    took = more(clients)
    cluster.wait_back(pids)
    wait_up(cluster)
    more(clients)
    # A shard whose server was killed has ended. Its nodes are free for another one.
    while len(live(shards(cluster))) < 3:
        done = cluster.atoll("scalog", "shard", "add", "--log", LOG, "--json", check=False)
        if done.returncode != 0:
            error = json.loads(done.stderr.splitlines()[-1])["error"]
            need("nodes are up that keep no shard" in error["message"] or error["happened"] != "no" or error["reason"] in ("unavailable", "busy"), f"a shard was not added: {error}")
            time.sleep(0.5)
    more(clients)
    return took


def is_in_order(placed):
    """Real time: of two records, one that was sent after the other one was acknowledged is behind it."""
    by_ack = sorted(placed, key=lambda one: one[3])
    by_send = sorted(placed, key=lambda one: one[2])
    highest, at = (-1, None), 0
    for position, record, sent, _ in by_send:
        while at < len(by_ack) and by_ack[at][3] < sent:
            highest = max(highest, (by_ack[at][0], by_ack[at][1]))
            at += 1
        need(position > highest[0], f"{record} is at {position}, although {highest[1]} at {highest[0]} was acknowledged before it was sent")


def check(cluster, clients, follower):
    """Every acknowledged record is at its position and nowhere else, and all read the same in the same order; how many there are."""
    placed = [one for client in clients for one in client.placed]
    positions = {record: position for position, record, _, _ in placed}
    need(len(set(positions.values())) == len(placed), "two acknowledged records have one position")
    is_in_order(placed)
    logs = set()
    for node in cluster.nodes():
        logs.add(cluster.atoll("log", "read", "--json", "--log", LOG, connect=node.grpc, timeout=180).stdout)
    need(len(logs) == 1, f"{len(logs)} different logs were read from the nodes")
    rows = [json.loads(line) for line in logs.pop().splitlines()]
    found = {row["position"]: row["payload"] for row in rows}
    for record, position in positions.items():
        need(found.get(position) == record, f"{record} was acknowledged at {position}, and there is {found.get(position)}")
    texts = list(found.values())
    need(len(set(texts)) == len(texts), "a record is in the log twice")
    allowed = set(positions) | {record for client in clients for record in client.open}
    strangers = [record for record in texts if record not in allowed]
    need(not strangers, f"records that nobody appended: {strangers[:3]}")
    poll("the subscriber has seen all records", 60, lambda: follower.error or len(follower.seen) >= len(found), every=0.1)
    need(follower.error is None, f"the subscriber ended: {follower.error}")
    need(follower.seen[: len(found)] == sorted(found.items()), "the subscriber saw other records, or another order")
    return len(placed), found


def not_read(stream, found):
    """What a subscriber gets that did not read for long: records in order, until its stream ends because it did not read."""
    count, expected = 0, sorted(found.items())
    try:
        for reply in stream:
            for record in reply.records:
                need((record.position, record.data.decode()) == expected[count], f"record {count} of a slow subscriber")
                count += 1
            if reply.next > expected[-1][0]:
                break
    except grpc.RpcError as error:
        reason = dict(error.trailing_metadata() or ()).get("atoll-reason")
        # Its node may have been killed.
        need(reason in ("busy", None), f"a slow subscriber got {reason}: {error.details()}")
    stream.cancel()
    return count


def create(cluster):
    """The log: three shards, one more than an aggregator takes; helpers on nodes of their own."""
    places = {
        "storage": STORAGE, "aggregator": HELPERS[:1], "orderer": HELPERS[1:], "ordering/server": HELPERS, "ordering/sequencer": HELPERS[2:],
    }
    words = [word for role, nodes in places.items() for word in ("--place", f"{role}={','.join(map(str, nodes))}")]
    options = [word for option in ("shards=3", "replicas=2", "fan_in=2") for word in ("--option", option)]
    cluster.atoll("log", "create", "--log", LOG, "--loglet", "scalog", *words, *options)
    duties = cluster.active(LOG)["duties"]
    need({"storage", "aggregator", "orderer"} <= {duty["role"] for duty in duties}, f"the roles of the log are {duties}")


def actions(cluster):
    """What the nodes did last because the shards are full, as each of them says."""
    return [cluster.log_info(LOG, connect=node.grpc)["last_action"] for node in cluster.nodes()]


def fill(drill):
    """Shards get full, and nodes add others; the seconds that each took."""
    took = []
    with Cluster(drill.binary, drill.folder / "full", "--nodes", 3) as cluster:
        cluster.configure(f"[logs]\nfull_shard_records = {FULL}")
        cluster.atoll("log", "create", "--log", LOG, "--loglet", "scalog", "--option", "shards=1", "--option", "replicas=1")
        for count in (1, 2, 3):
            newest = live(shards(cluster))[-1]["number"]
            log = Scalog(LOG, [node.grpc for node in cluster.nodes()])
            for turn in range(FULL):
                log.append_to_shard(newest, f"{count}.{turn}".encode())
            log.close()
            began = time.monotonic()
            if count < 3:
                poll("the log gets another shard", 90, lambda: len(live(shards(cluster))) > count, every=0.2)
                took.append(time.monotonic() - began)
                words = f"added shard {newest + 1}: each of the {count} shards that take records has at least {FULL}: "
                need(any(action.startswith(words) for action in actions(cluster)), f"the nodes say {actions(cluster)}, and none '{words}'")
                need(any("added a shard" in node.log.read_text() for node in cluster.nodes()), "no node has logged that it added a shard")
        poll("a node says that no node is free", 90, lambda: any("no shard could be added" in action for action in actions(cluster)), every=1)
        need(len(live(shards(cluster))) == 3, f"on three nodes, the log has the shards {shards(cluster)}")
    return took


def body(drill):
    filled = fill(drill)
    say(f"a log whose shards were full got another one after {', '.join(f'{s:.0f}' for s in filled)} s, until no node was free")
    drill.result.update(filled_s=[round(s) for s in filled])
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", len(STORAGE) + len(HELPERS)) as cluster:
        create(cluster)
        bad_input(cluster)
        follower = Follower(cluster)
        follower.start()
        lazy = Scalog(LOG, [cluster.node(HELPERS[2]).grpc])
        unread = lazy.stubs[0].Subscribe(messages.SubscribeRequest(log=LOG))
        clients = [Client(cluster, n) for n in range(drill.args.clients)]
        for client in clients:
            client.start()
        more(clients)
        gaps = [gap for _ in range(drill.args.changes) for gap in change(cluster, clients)]
        last_shard(cluster)
        more(clients)
        failed = [(c.number, c.refused, c.open) for c in clients if c.refused or c.open]
        need(not failed, f"appends failed only because shards ended: {failed[:3]}")
        rows = []
        for _ in range(drill.args.rounds):
            for roles in (("storage",), ("aggregator",), ("orderer",), ("storage", "aggregator")):
                rows.append((" and ".join(roles), f"{lose(cluster, clients, roles):.1f}"))
                gaps += change(cluster, clients)
        for client in clients:
            client.finish()
        records, found = check(cluster, clients, follower)
        slow = not_read(unread, found)
        lazy.close()
        say()
        table(rows, ("whose node is killed", "seconds until every client has three more records"))
        unknown, denied = sum(len(c.open) for c in clients), sum(len(c.refused) for c in clients)
        say(f"{records} acknowledged records, {unknown} of unknown outcome, {denied} refused; a subscriber that did not read got {slow}")
        say(f"shards ended and added: median of the longest waits {1e3 * quantile(gaps, 0.5):.0f} ms, the longest {1e3 * max(gaps):.0f} ms")
        drill.result.update(
            records=records, unknown=unknown, refused=denied, changes=len(gaps) // len(clients), median_wait_ms=round(1e3 * quantile(gaps, 0.5)),
            worst_wait_ms=round(1e3 * max(gaps)), waits_s=[float(seconds) for _, seconds in rows],
        )


if __name__ == "__main__":
    Drill(
        "scalog", __doc__,
        clients=(8, 4, "clients that append one record after the other"),
        changes=(10, 2, "how often a shard is ended and added before nodes are killed"),
        rounds=(5, 1, "how often the nodes of each role are killed"),
    ).run(body)
