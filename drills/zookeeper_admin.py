#!/usr/bin/env python3
"""ZooKeeper's admin commands: all of them answer at every node; a snapshot file of the tree is restored on all nodes at once.

kazoo writes and reads. A snapshot is taken at one node, everything is changed, and the snapshot is restored at another node while clients
write. A node is killed, and every node shows the tree of the snapshot. The first run installs kazoo (`ATOLL_DRILL_CACHE`).
"""

import json
import threading
import urllib.error
import urllib.request

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from cluster import Cluster, Drill, Failed, need, poll, say

# A client is connected within this time, in seconds.
WITHIN = 30
JOE = "digest joe:secret"


def ask(node, command, auth=None, body=None, within=60):
    """Status, headers and body of a command."""
    request = urllib.request.Request(f"http://{node.admin}/commands/{command}", data=body)
    if auth:
        request.add_header("Authorization", auth)
    try:
        with urllib.request.urlopen(request, timeout=within) as told:
            return told.status, told.headers, told.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers, refused.read()


def connected(hosts):
    """A client that has a session."""
    client = KazooClient(hosts, timeout=10)
    client.start(timeout=WITHIN)
    return client


def tree(client, path="/"):
    """Paths, data and Stat of all nodes but ZooKeeper's own."""
    client.sync(path)
    found = {}

    def walk(at):
        data, stat = client.get(at)
        found[at] = (data, stat)
        for name in sorted(client.get_children(at)):
            if (below := f"{at.rstrip('/')}/{name}") != "/zookeeper":
                walk(below)

    walk(path)
    return found


def all_commands_answer(cluster):
    """Each command at each node."""
    count = 0
    for node in cluster.nodes():
        listed = ask(node, "")[2].decode()
        names = [row.split('"')[0] for row in listed.split("/commands/")[1:]]
        need(len(names) == 28, f"28 commands are listed: {names}")
        for name in names:
            if name in ("snapshot", "restore"):
                need(ask(node, name, body=b"x" if name == "restore" else None)[0] == 401, f"{name} wants to know who asks")
                continue
            status, _, body = ask(node, name)
            need(status == 200 and json.loads(body)["command"] == name, f"{name} at node {node.id}: {status} {body[:200]}")
            count += 1
    return count


def refused_at(node, status, words, **how):
    """A restore that is refused."""
    got, _, body = ask(node, "restore", **how)
    need(got == status and words in json.loads(body)["error"], f"expected {status} and {words!r}: {got} {body[:300]}")


class Writing:
    """A client that writes numbers, one after the other, and never sees a zxid go back."""

    def __init__(self, hosts):
        self.client, self.done, self.failure, self.written = connected(hosts), threading.Event(), None, 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        last = 0
        while not self.done.is_set():
            try:
                zxid = self.client.set("/counter", b"%d" % self.written).mzxid
                if zxid <= last:
                    self.failure = f"mzxid {zxid:#x} after {last:#x}"
                    return
                last, self.written = zxid, self.written + 1
            except (zk.ConnectionLoss, zk.SessionExpiredError, zk.ConnectionClosedError, zk.OperationTimeoutError):
                # Cut off by the restore, or by the kill: it comes again by itself.
                self.done.wait(0.1)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                return

    def stop(self):
        self.done.set()
        self.thread.join()
        self.client.stop()
        self.client.close()
        need(self.failure is None, f"the client that writes: {self.failure}")
        need(self.written > 0, "it wrote something")


def fill(client, count, random):
    """Many small nodes, a few large ones, an ephemeral, a container."""
    client.create("/many")
    for start in range(0, count, 500):
        transaction = client.transaction()
        for n in range(start, min(start + 500, count)):
            transaction.create(f"/many/{n:06}", b"data %d" % n)
        transaction.commit()
    client.create("/large")
    for n in range(3):
        # Nothing that a compression makes small.
        client.create(f"/large/{n}", random.randbytes(400_000))
    client.create("/kept", b"as it was", acl=[make_digest_acl("joe", "secret", all=True)])
    client.create("/mine", b"", ephemeral=True)


def check_everywhere(cluster, before):
    """Every node shows the tree of the snapshot."""
    for node in cluster.nodes():
        client = connected(node.zookeeper)
        client.add_auth("digest", "joe:secret")
        found = tree(client)
        found.pop("/counter")
        want = {path: row for path, row in before.items() if path != "/counter"}
        need(found.keys() == want.keys(), f"node {node.id}: other nodes: {sorted(found.keys() ^ want.keys())[:5]}")
        for path, row in want.items():
            need(found[path] == row, f"node {node.id}: {path} is {found[path]} and was {row}")
        client.stop()
        client.close()


def body(drill):
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        cluster.set_zookeeper_super("joe", "secret")
        drill.result["commands"] = all_commands_answer(cluster)
        say("  all commands answer at all nodes")
        first, second, third = cluster.nodes()
        client = connected(cluster.zookeeper())
        client.add_auth("digest", "joe:secret")
        client.create("/counter", b"0")
        fill(client, drill.args.nodes, drill.random)
        client.set_acls("/", [make_digest_acl("joe", "secret", all=True)])
        before = tree(client)
        # The first session of the drill continues to the end: its ephemeral is in the snapshot, and stays.
        for auth, status in [(None, 401), ("digest joe:wrong", 403), ("digest eve:secret", 403), ("nonsense", 401)]:
            got = ask(first, "snapshot", auth)[0]
            need(got == status, f"a snapshot for {auth}: {got}, expected {status}")
        status, headers, snapshot = ask(first, "snapshot", JOE)
        need(status == 200 and int(headers["snapshot_size"]) == len(snapshot), f"a snapshot: {status} {headers}")
        taken = int(headers["last_zxid"], 16)
        need(ask(first, "snapshot", JOE)[0] == 429, "one snapshot in five minutes")
        say(f"  a snapshot of {len(before)} nodes has {len(snapshot)} bytes")

        client.delete("/many", recursive=True)
        client.create("/later", b"")
        newest = client.set("/large/0", b"small").mzxid
        damaged = bytearray(snapshot)
        damaged[len(damaged) // 2] ^= 1
        refused_at(second, 400, "not restored", auth=JOE, body=bytes(damaged))
        refused_at(second, 400, "cut off", auth=JOE, body=snapshot[:-5])
        refused_at(second, 400, "not a snapshot", auth=JOE, body=b"garbage")
        refused_at(second, 403, "Not authorized", auth="digest joe:wrong", body=snapshot)
        need(client.exists("/later") and not client.exists("/many"), "what was refused changed nothing")

        writing = Writing(cluster.zookeeper())
        status, _, told = ask(second, "restore", JOE, snapshot)
        need(status == 200, f"the restore: {status} {told[:300]}")
        zxid = json.loads(told)["last_zxid"]
        need(zxid >> 32 > newest >> 32 and zxid >> 32 > taken >> 32, f"a new epoch: {zxid:#x} after {newest:#x}")
        refused_at(second, 429, "rate limited", auth=JOE, body=snapshot)
        before_kill = writing.written
        cluster.wait_back(cluster.signal([third.id])[0])
        poll("clients write on", 60, lambda: writing.failure or writing.written > before_kill)
        writing.stop()

        poll("the client is back in its session", 60, lambda: client.connected)
        check_everywhere(cluster, before)
        need(client.create("/next", b"", include_data=True)[1].czxid > zxid, "later changes are newer")
        client.stop()
        client.close()

        def hashes():
            rows = [json.loads(ask(node, "hash")[2])["digests"] for node in cluster.nodes()]
            by_node = [{row["position"]: row["digest"] for row in digests} for digests in rows]
            common = set.intersection(*(set(digests) for digests in by_node))
            if any(len({digests[at] for digests in by_node}) > 1 for at in common):
                raise Failed(f"replicas differ: {by_node}")
            return common

        poll("hashes of all replicas at one position", 60, hashes)
        drill.result.update(bytes=len(snapshot), nodes=len(before), written=writing.written)


if __name__ == "__main__":
    Drill("zookeeper-admin", __doc__, nodes=(50_000, 2_000, "how many nodes the tree has")).run(body)
