#!/usr/bin/env python3
"""Sessions survive nodes that are stopped and continued (SIGSTOP, SIGCONT), and kills.

kazoo clients with one ephemeral each know all three nodes. A node is stopped for twice their session timeout, again and again. Every client
reaches another node in time, so no session may expire and no ephemeral may disappear, not even when the stopped node continues and still
believes that it holds the sessions. Then a node is killed, with the same requirement. Finally a client is killed: its ephemeral disappears
after its timeout, and not before.
"""

import signal
import threading
import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from cluster import Cluster, Drill, need, say
from zookeeper_checks import Bench, expiry

# Session timeout of the clients, in seconds.
TIMEOUT_S = 6.0


class Watched:
    """A client with an ephemeral, and what became of its session."""

    def __init__(self, bench, number):
        self.path = f"/client-{number}"
        self.client = bench.client()
        self.lost = []
        self.client.add_listener(lambda state: self.lost.append(time.time()) if state == "LOST" else None)
        self.client.create(self.path, b"", ephemeral=True)
        self.session = self.client.client_id[0]
        self.created = self.client.exists(self.path).czxid

    def check(self, words):
        """The session is the same, and the ephemeral was never away."""
        stat = self.client.retry(self.client.exists, self.path)
        need(not self.lost, f"{words}: {self.path} has lost its session")
        need(self.client.client_id[0] == self.session, f"{words}: {self.path} has another session")
        need(stat and stat.czxid == self.created, f"{words}: the ephemeral {self.path} was away")


def check_all(clients, words):
    """Every client, side by side: some of them may have to find another node first."""
    failed = []

    def one(client):
        try:
            client.check(words)
        except Exception as error:  # Told below, on the drill's own thread.
            failed.append(repr(error))

    threads = [threading.Thread(target=one, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not failed, "; ".join(failed[:3]))


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        bench = Bench(cluster.zookeeper(), timeout=TIMEOUT_S)
        try:
            clients = [Watched(bench, number) for number in range(drill.args.clients)]
            for number in range(drill.args.stops):
                victim = cluster.ids()[number % 3]
                cluster.signal([victim], signal.SIGSTOP)
                time.sleep(2 * TIMEOUT_S)
                check_all(clients, f"node {victim} is stopped")
                cluster.signal([victim], signal.SIGCONT)
                # Long enough for a wrong judgement of the node that was away to take effect.
                time.sleep(TIMEOUT_S)
                check_all(clients, f"node {victim} is back")
                say(f"  node {victim} was away for {2 * TIMEOUT_S:.0f} s: {len(clients)} sessions live on")
            for number in range(drill.args.kills):
                victim = cluster.ids()[number % 3]
                pids, _ = cluster.signal([victim])
                cluster.wait_back(pids)
                time.sleep(2 * TIMEOUT_S)
                check_all(clients, f"node {victim} was killed")
                say(f"  node {victim} was killed: {len(clients)} sessions live on")
            expiry(bench)
            say("  a client that was killed has lost its ephemeral, after its timeout")
        finally:
            bench.close()
    drill.result.update(clients=drill.args.clients, stops=drill.args.stops, kills=drill.args.kills)


if __name__ == "__main__":
    Drill(
        "zookeeper-sessions",
        __doc__,
        clients=(60, 12, "how many clients"),
        stops=(6, 1, "how often a node is stopped"),
        kills=(3, 1, "how often a node is killed"),
    ).run(body)
