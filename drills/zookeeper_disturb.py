"""Faults and changes of a cluster while ZooKeeper clients use it."""

import contextlib
import json
import socket
import threading
import urllib.request

from cluster import Cluster, need, say

# The log that the database is on.
LOG = "db"


def word(address, letters):
    """A server's answer to a word of four letters."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(letters.encode())
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
    return answer.decode()


def takes_writes(address):
    """Whether a server serves, and not only reads."""
    with contextlib.suppress(OSError):
        answer = word(address, "srvr")
        return "Mode: " in answer and "Mode: read-only" not in answer
    return False


def serves(node, session):
    """Whether a client with this session is connected to a node."""
    if not getattr(node, "admin", None):
        wanted = f"sid={session & (1 << 64) - 1:#x}"
        answer = word(node.zookeeper, "cons")
        return any(f"{wanted}{end}" in answer for end in ",)")
    with urllib.request.urlopen(f"http://{node.admin}/commands/connections", timeout=5) as answer:
        told = json.load(answer)
    mine = [row["session_id"] for row in told["connections"] + told["secure_connections"]]
    return session & (1 << 64) - 1 in [one & (1 << 64) - 1 for one in mine]


def holder(cluster, session):
    """The node that the client with this session is connected to now, or None."""
    for node in cluster.nodes():
        with contextlib.suppress(OSError):
            if serves(node, session):
                return node.id
    return None


class Disturber:
    """Kills a node, waits until it is back, moves the log, and repeats this.

    `sessions` is a list to which clients add their sessions. Two of three times, the node is killed that one of these clients is connected
    to, and `hits` counts these kills; otherwise it is any node. `moves` counts only moves that succeeded, and at least half must. Each goes to
    the next of `kinds` of Loglets, if there are any.
    """

    def __init__(self, cluster, random, sessions=(), kinds=()):
        self.cluster, self.random, self.sessions, self.kinds = cluster, random, sessions, kinds
        self.kills = self.moves = self.hits = self.asked = 0
        self.over = threading.Event()
        self.failed = None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def victim(self):
        """The node to kill now."""
        if self.sessions and self.kills % 3 != 2:
            number = holder(self.cluster, self.random.choice(self.sessions))
            if number:
                self.hits += 1
                return number
        return self.random.choice(self.cluster.ids())

    def work(self):
        try:
            while not self.over.wait(self.random.uniform(1.0, 3.0)):
                pids, _ = self.cluster.signal([self.victim()])
                self.kills += len(pids)
                self.over.wait(0.5)
                # Only Atoll's log can be moved, and with a node away it may have too few servers.
                if isinstance(self.cluster, Cluster):
                    self.asked += 1
                    kind = ["--loglet", self.kinds[self.moves % len(self.kinds)]] if self.kinds else []
                    self.moves += self.cluster.extend(LOG, *kind, check=False)
                self.cluster.wait_back(pids)
                self.over.wait(3.0)
        except Exception as error:  # Told at the end, on the drill's own thread.
            self.failed = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.thread.join()
        if self.failed:
            raise self.failed
        if kind is None:
            need(self.kills > 0, "no node was killed")
            need(self.hits > 0 or not self.sessions, "the node of a client was never killed")
            need(2 * self.moves >= self.asked, f"the log was moved {self.moves} of {self.asked} times")

    def report(self, drill):
        """Prints what was done to the cluster, and adds it to the drill's result."""
        say(f"  {self.kills} kills, {self.hits} of them of a client's node, {self.moves} of {self.asked} moves of the log")
        drill.result.update(kills=self.kills, hits=self.hits, moves=self.moves)
