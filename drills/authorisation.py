#!/usr/bin/env python3
"""Who may do what, on a cluster whose clients have certificates and tokens.

Three nodes with TLS require grants. The configuration names one certificate as operator. Clients with other certificates may do nothing until
it grants them a right, and then exactly that: on a log, on logs whose names begin so, not on others, and not trim, drain or grant. Neither
they nor the bearer of a token reads the log of the database, with which the session of a ZooKeeper client could be taken over; and in that log,
its password is not. Grants hold on all nodes, after `kill -9` of a node and its restart, and when they are revoked, they end on all nodes.
Each node's audit log has its operations and refusals, and no token.
"""

import hashlib
import json
import os
import pathlib

import jute
from certificates import certificates
from cluster import Drill, need, poll, say
from secure import presenting, secured
from served import Serving

# A grant and its end hold on all nodes within so many seconds.
KNOWN_WITHIN = 5


class Client:
    """Commands that show a certificate, and a token if there is one."""

    def __init__(self, cluster, folder, name, token=None):
        self.cluster, self.folder, self.name, self.token = cluster, folder, name, token

    def run(self, *command, check=True, connect=None, input=None):
        with presenting(self.folder, "ca", self.name):
            if self.token:
                os.environ["ATOLL_TOKEN_FILE"] = str(self.token)
            return self.cluster.atoll(*command, check=check, connect=connect, **({} if input is None else {"input": input}))

    def text(self, *command, **kwargs):
        return self.run(*command, **kwargs).stdout.decode().strip()

    def lacks(self, right, *command, connect=None):
        """The command is refused because this right is missing."""
        done = self.run(*command, check=False, connect=connect)
        said = done.stderr.decode(errors="replace").strip()
        who = f"token:{self.token.stem}" if self.token else f"cert:{self.name}"
        need(done.returncode != 0, f"{who}: `atoll {' '.join(command)}` was not refused")
        need(f"{who} lacks the right to {right}" in said and "atoll auth grant" in said, f"`atoll {' '.join(command)}` says: {said}")

    def may(self, *command, connect=None):
        """Whether the command is not refused for want of a right."""
        done = self.run(*command, check=False, connect=connect)
        need(done.returncode == 0 or b"lacks the right" in done.stderr, f"`atoll {' '.join(command)}`: {done.stderr.decode()}")
        return done.returncode == 0


def by_default_nothing(operator, alice):
    """Without a grant, a good certificate is of no use."""
    need(alice.text("auth", "check") == "cert:alice", "the cluster does not know alice")
    alice.lacks("read cluster", "status")
    alice.lacks("write log:", "log", "append", "--log", "orders/eu", "x")
    alice.lacks("read log:", "log", "read", "--log", "orders/eu")
    alice.lacks("operate cluster", "auth", "grant", "cert:alice", "operate", "*")
    need(operator.text("log", "append", "--log", "orders/eu", "first") == "0", "the operator cannot append")
    say("  a certificate without a grant may do nothing")


def what_is_granted(operator, alice):
    """A grant allows what it says."""
    operator.run("auth", "grant", "cert:alice", "write", "log:orders/*")
    operator.run("auth", "grant", "any", "read", "cluster")
    poll("the grant holds", KNOWN_WITHIN, lambda: alice.may("log", "append", "--log", "orders/eu", "second"))
    need(alice.text("log", "read", "--log", "orders/eu", "--raw") == "first\nsecond", "alice does not read what she may")
    operator.run("log", "append", "--log", "wages", "secret")
    # The log of the database is part of the cluster, which everybody may read.
    need(alice.text("log", "list").split() == ["db", "orders/eu"], "alice sees other logs than she may read")
    alice.run("status")
    alice.lacks("operate log:", "log", "trim", "--log", "orders/eu", "1")
    alice.lacks("operate log:", "chain", "extend", "--log", "orders/eu")
    alice.lacks("write log:wages", "log", "append", "--log", "wages", "x")
    alice.lacks("operate cluster", "node", "drain", "3")
    alice.lacks("operate cluster", "auth", "list")
    say("  a grant allows what it says, and nothing else")


def nothing_to_hijack(cluster, operator, alice):
    """The log of the database is closed, and has no password."""
    wire = jute.Wire(cluster.node(1).zookeeper)
    operator.run("auth", "grant", "cert:alice", "operate", "log:*")
    poll("the grant holds", KNOWN_WITHIN, lambda: alice.may("log", "append", "--log", "wages", "x"))
    alice.lacks("operate cluster", "log", "read", "--log", "db", "--raw")
    operator.run("auth", "revoke", "cert:alice", "log:*")
    raw = operator.run("log", "read", "--log", "db", "--raw").stdout
    need(hashlib.sha256(wire.password).digest() in raw, "the log of the database has no trace of the session")
    need(wire.password not in raw, "the log of the database has the password of the session")
    say("  the log of the database is closed to others, and has no password of a session")


def on_all_nodes(cluster, operator, alice):
    """Grants outlive a node, and their end reaches every node."""
    cluster.kill([1])
    poll("the others serve alice", 30, lambda: alice.may("log", "append", "--log", "orders/eu", "x", connect=cluster.connect(2, 3)))
    cluster.boot([1])
    with presenting(operator.folder, "ca", operator.name):
        cluster.wait_up()
    each = [cluster.connect(node.id) for node in cluster.nodes()]
    asks = lambda to: alice.may("log", "check-tail", "--log", "orders/eu", connect=to)
    for to in each:
        poll("a node knows the grant", 30, lambda: asks(to))
    operator.run("auth", "revoke", "cert:alice", "log:orders/*")
    for to in each:
        poll("a node knows that the grant is gone", KNOWN_WITHIN, lambda: not asks(to))
        alice.lacks("write log:", "log", "append", "--log", "orders/eu", "x", connect=to)
    say("  grants hold on all nodes, through a death and a restart, and end on all nodes")


def tokens(drill, cluster, operator):
    """A token may do what is granted to its bearer, whoever that is, until it is revoked."""
    file = drill.folder / "ci"
    secret = operator.text("auth", "token", "create", "ci")
    file.write_text(secret + "\n")
    bob = Client(cluster, drill.folder, "bob", file)
    bob.lacks("write log:", "log", "append", "--log", "builds", "x")
    operator.run("auth", "grant", "token:ci", "write", "log:builds")
    poll("the grant holds", KNOWN_WITHIN, lambda: bob.may("log", "append", "--log", "builds", "x"))
    need(bob.text("auth", "check") == "token:ci", "the token is not known by its name")
    operator.run("auth", "token", "revoke", "ci")

    def useless():
        done = bob.run("log", "append", "--log", "builds", "x", check=False)
        return done.returncode != 0 and b"no such token" in done.stderr

    poll("the token is of no use any more", KNOWN_WITHIN, useless)
    need(secret not in operator.text("auth", "list", "--json"), "the list shows a token")
    say("  a token does what is granted to its bearer, until it is revoked")
    return secret


def audited(cluster, secret):
    """The lines of the audit logs of all nodes."""
    text = "".join((pathlib.Path(node.folder) / "data" / "audit.log").read_text() for node in cluster.nodes())
    need(secret not in text, "an audit log has a token")
    lines = [json.loads(line) for line in text.splitlines()]
    for event, who, method in [
        ("operation", "cert:operator", "AuthService/Grant"),
        ("operation", "cert:operator", "AuthService/RevokeToken"),
        ("refused", "cert:alice", "ClusterService/NodeDrain"),
        ("refused", "cert:alice", "LogService/Read"),
    ]:
        found = [line for line in lines if line["event"] == event and line["who"] == who and method in line["method"]]
        need(found, f"no {event} of {method} by {who} in the audit logs")
    say(f"  {len(lines)} lines in the audit logs")
    return len(lines)


def body(drill):
    nodes = [(f"node-{number}", "ca") for number in (1, 2, 3)]
    certificates(drill.folder, [*nodes, *((name, "ca") for name in ("operator", "alice", "bob"))])
    cluster = Serving(drill.binary, drill.folder / "cluster", 3)
    for node in cluster.nodes():
        secured(drill.folder, node, ["cert:operator"])
    operator, alice = (Client(cluster, drill.folder, name) for name in ("operator", "alice"))
    try:
        with presenting(drill.folder, "ca", "operator"):
            cluster.start()
        by_default_nothing(operator, alice)
        what_is_granted(operator, alice)
        nothing_to_hijack(cluster, operator, alice)
        on_all_nodes(cluster, operator, alice)
        drill.result["lines"] = audited(cluster, tokens(drill, cluster, operator))
    finally:
        cluster.stop()


if __name__ == "__main__":
    Drill("authorisation", __doc__).run(body)
