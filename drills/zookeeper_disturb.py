"""Faults and changes of a cluster while ZooKeeper clients use it."""

import contextlib
import socket
import threading

from cluster import Cluster, need

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


def holder(cluster, session):
    """The node that the client with this session is connected to now, or None."""
    wanted = f"sid={session & (1 << 64) - 1:#x}"
    for node in cluster.nodes():
        with contextlib.suppress(OSError):
            if any(f"{wanted}{end}" in word(node.zookeeper, "cons") for end in ",)"):
                return node.id
    return None


class Disturber:
    """Kills a node, waits until it is back, moves the log, and again.

    With `session`, a function that gives a client's session (or None), it is this client's node that is killed, but for every
    third time, when it is any; `hits` says how often it was. Only moves that were made count, and at least every second one must be.
    """

    def __init__(self, cluster, random, session=lambda: None):
        self.cluster, self.random, self.session = cluster, random, session
        self.kills = self.moves = self.hits = self.asked = 0
        self.over = threading.Event()
        self.failed = None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def victim(self):
        """Whom to kill now."""
        session = self.session()
        if session is not None and self.kills % 3 != 2:
            number = holder(self.cluster, session)
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
                    self.moves += self.cluster.extend(LOG, check=False)
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
            need(2 * self.moves >= self.asked, f"the log was moved {self.moves} of {self.asked} times")
