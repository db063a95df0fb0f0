#!/usr/bin/env python3
"""`/zookeeper/config` follows the members.

It lists every node that serves ZooKeeper clients, with the address at which it serves them, and reads the same on all nodes. When a node is
drained and removed, the text changes under a higher version, and the watches on this znode fire, whichever node the clients are connected
to.
"""

import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from cluster import Cluster, Drill, need, poll, say, table
from kazoo.client import KazooClient

CONFIG = "/zookeeper/config"


def parsed(raw):
    """The addresses for clients by node, and the version."""
    lines = raw.decode().split("\n")
    need(lines[-1].startswith("version="), f"the text ends with {lines[-1]!r}")
    servers = {}
    for line in lines[:-1]:
        name, _, rest = line.partition("=")
        need(name.startswith("server.") and rest.count(":") == 4 and ":participant;" in rest, f"a line of the text: {line!r}")
        servers[int(name[7:])] = rest.partition(";")[2]
    return servers, int(lines[-1][8:], 16)


class Watcher:
    """A client of one node that follows the text, leaving a watch with each look."""

    def __init__(self, node):
        self.id, self.fired = node.id, 0
        self.kazoo = KazooClient(node.zookeeper, timeout=20.0)
        self.kazoo.start(timeout=30)
        self.look()

    def look(self, event=None):
        """Reads, and leaves the next watch."""
        self.fired += event is not None
        self.raw, self.stat = self.kazoo.get(CONFIG, watch=self.look)


def agreed(watchers, members):
    """Waits until every watcher has been told of exactly these members; what they were told, and how long that took."""
    began = time.monotonic()
    expected = {node.id: node.zookeeper for node in members}
    poll(f"all watchers are told of {sorted(expected)}", 30, lambda: all(parsed(w.raw)[0] == expected for w in watchers))
    need(len({w.raw for w in watchers}) == 1, f"the nodes do not agree: {[w.raw for w in watchers]}")
    version = parsed(watchers[0].raw)[1]
    need(all(w.stat.mzxid == version for w in watchers), "the version is not the change's zxid")
    return version, time.monotonic() - began


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 4) as cluster:
        nodes = cluster.nodes()
        first = KazooClient(nodes[0].zookeeper, timeout=20.0)
        first.start(timeout=30)
        poll("all nodes have announced themselves", 30, lambda: len(parsed(first.get(CONFIG)[0])[0]) == 4 if first.get(CONFIG)[0] else False, every=0.1)
        first.stop()
        watchers = [Watcher(node) for node in nodes[:3]]
        rows = []
        before, _ = agreed(watchers, nodes)
        rows.append(("at first", 4, f"{before:#x}", "-", "-"))
        cluster.atoll("node", "drain", 4, timeout=120)
        cluster.atoll("node", "remove", 4, timeout=120)
        for what, members in (("node 4 removed", nodes[:3]),):
            version, seconds = agreed(watchers, members)
            need(version > before, f"{what}: the version goes from {before:#x} to {version:#x}")
            need(all(w.fired > 0 for w in watchers), f"{what}: watches fired {[w.fired for w in watchers]}")
            rows.append((what, len(members), f"{version:#x}", min(w.fired for w in watchers), f"{seconds:.2f}"))
            before = version
        refused = watchers[0].kazoo.get_acls(CONFIG)[0]
        need([(a.perms, a.id.scheme, a.id.id) for a in refused] == [(1, "world", "anyone")], f"its list: {refused}")
        say()
        table(rows, ("when", "servers", "version", "watches fired", "seconds"))
        drill.result["seconds_to_tell"] = rows[-1][-1]
        for watcher in watchers:
            watcher.kazoo.stop()


if __name__ == "__main__":
    Drill("zookeeper-members", __doc__).run(body)
