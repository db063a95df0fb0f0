#!/usr/bin/env python3
"""Read-only mode: a node that is cut off from the others serves reads, but only to clients that asked for read-only mode.

Two of three nodes are stopped. The third answers `ro` to `isro`. kazoo with `read_only=True` connects to it with its existing session,
reads what it wrote, is refused every write, and keeps its session when the others continue. Clients that did not ask are refused in the
meantime. Without the setting, the node serves no client.
"""

import contextlib
import json
import signal
import socket
import time
import urllib.request

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from cluster import Cluster, Drill, need, poll, say
from kazoo.client import KazooClient
from kazoo.exceptions import NotReadOnlyCallError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState


def word(host, asked):
    """What a server answers to four letters."""
    name, port = host.rsplit(":", 1)
    with contextlib.suppress(OSError), socket.create_connection((name, int(port)), timeout=5) as wire:
        wire.sendall(asked)
        return wire.recv(4096).decode()
    return ""


def told_by_admin(node):
    """Whether a node says over HTTP that it is read-only: the answers to two commands."""
    answers = []
    for command in ("is_read_only", "server_stats"):
        with urllib.request.urlopen(f"http://{node.admin}/commands/{command}", timeout=10) as answer:
            answers.append(json.load(answer)["read_only"])
    return answers


def configure(cluster):
    """Switches the mode on, on all nodes, one after the other."""
    for node in cluster.nodes():
        with open(node.config, "a", encoding="utf-8") as file:
            file.write("\n[zookeeper]\nread_only_mode = true\n")
        pids, _ = cluster.signal([node.id])
        cluster.wait_back(pids)
        poll(f"node {node.id} serves", 30, lambda: word(cluster.node(node.id).zookeeper, b"isro") == "rw", every=0.1)


def refused(host):
    """Whether a client that did not ask for it is not served."""
    client = KazooClient(host, timeout=10.0)
    try:
        client.start(timeout=3)
        return False
    except KazooTimeoutError:
        return True
    finally:
        client.stop()
        client.close()


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        for on in (False, True):
            if on:
                configure(cluster)
            first = cluster.nodes()[0]
            here = first.zookeeper
            others = cluster.ids()[1:]
            reader = KazooClient(here, timeout=40.0, read_only=True)
            reader.start(timeout=30)
            reader.ensure_path("/read-only")
            reader.set("/read-only", b"before")
            session = reader.client_id
            cluster.signal(others, signal.SIGSTOP)
            began = time.monotonic()
            if not on:
                poll("clients are sent away", 30, lambda: not reader.connected, every=0.1)
                need("Mode: " in word(here, b"srvr") and refused(here), "a node without the mode serves without the log")
                need("not in the whitelist" in word(here, b"isro"), "isro is answered without the mode")
            else:
                poll("the node says that it is read-only", 30, lambda: word(here, b"isro") == "ro", every=0.1)
                poll("the client is served", 30, lambda: reader.client_state == KeeperState.CONNECTED_RO, every=0.1)
                drill.result["read_only_after_s"] = round(time.monotonic() - began, 1)
                need(reader.get("/read-only")[0] == b"before" and "read-only" in reader.get_children("/"), "what was written is not read")
                for write in (lambda: reader.set("/read-only", b"x"), lambda: reader.create("/x"), lambda: reader.delete("/read-only"), lambda: reader.sync("/")):
                    try:
                        write()
                        need(False, "a write was taken without the log")
                    except NotReadOnlyCallError:
                        pass
                need(told_by_admin(first) == [True, True], "the admin commands do not say that the node is read-only")
                need("Mode: read-only" in word(here, b"srvr") and refused(here), "a client that did not ask for it was served")
                new = KazooClient(here, timeout=10.0, read_only=True)
                new.start(timeout=10)
                need(new.get("/read-only")[0] == b"before", "a new client reads something else")
                new.stop()
            cluster.signal(others, signal.SIGCONT)
            poll("the node may write again", 30, lambda: told_by_admin(first) == [False, False], every=0.1)
            need(not on or word(here, b"isro") == "rw", "the node says that it is read-only")
            poll("the client may write again", 60, lambda: reader.client_state == KeeperState.CONNECTED, every=0.1)
            need(reader.client_id == session, "the session was lost")
            reader.set("/read-only", b"after")
            need(reader.get("/read-only")[0] == b"after", "a write is not read")
            reader.stop()
            say(f"  {'with' if on else 'without'} read_only_mode: as it should be")


if __name__ == "__main__":
    Drill("zookeeper-read-only", __doc__).run(body)
