#!/usr/bin/env python3
"""A cluster whose nodes and clients have certificates: TLS between nodes, and for gRPC.

Three nodes speak TLS with each other and with clients. Who has a certificate of the authority appends, reads and reconfigures a log; one
node is killed with `kill -9` and comes back. Everybody else is refused, at once and with words that say what to do: a client without TLS,
one without a certificate, one whose certificate is of another authority, one that does not trust the nodes' authority, and a client with
TLS at a node without it. A node with a certificate of another authority gets no connection to its peers. While the nodes run, a client's
certificate is revoked, and then all nodes get certificates of another authority; nobody restarts them. The program `openssl` makes the certificates.
"""

import contextlib
import json
import os
import time

from alone import configured, free_ports
from certificates import certificates, revocation_list
from cluster import Drill, need, poll, say
from served import Serving

LOG, RECORDS = "main", 200
# A refusal takes at most so long, in seconds. A client that takes it for a failure that passes tries for five seconds or more.
REFUSED_WITHIN = 2.5
# Those of the first authority, and of the second, to which the nodes change.
OPERATORS = ("cert:client", "cert:leaver", "cert:stranger")
VARIABLES = {"ca": "ATOLL_TLS_CA", "cert": "ATOLL_TLS_CERT", "key": "ATOLL_TLS_KEY"}


@contextlib.contextmanager
def presenting(folder, authority=None, name=None):
    """Commands that start in here trust an authority and have a certificate, or no TLS at all."""
    files = {}
    if authority:
        files["ca"] = f"{authority}.pem"
    if name:
        files.update(cert=f"{name}.pem", key=f"{name}.key")
    before = dict(os.environ)
    os.environ.update({VARIABLES[what]: str(folder / file) for what, file in files.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def secured(folder, node, operators=("cert:client",), lists=None):
    """Gives a node the files of its certificate, and of revocation lists, and names the clients that may do everything."""
    name = f"node-{node.id}"
    config = node.config.read_text().replace("listen_beyond_loopback_without_tls = true\n", "")
    of_tls = [("ca", "ca.pem"), ("cert", f"{name}.pem"), ("key", f"{name}.key"), ("revoked", lists)]
    files = "".join(f'{what} = "{folder / file}"\n' for what, file in of_tls if file)
    node.config.write_text(config.replace("\n[[peer]]", f"\n[tls]\n{files}\n[auth]\noperators = {json.dumps(operators)}\n\n[[peer]]", 1))


def refused(drill, cluster, what, words, connect=None):
    """A command fails soon, and says these words."""
    for command in [("status",), ("log", "append", "--log", LOG, "x"), ("log", "read", "--log", LOG), ("chain", "extend", "--log", LOG)]:
        began = time.monotonic()
        done = cluster.atoll(*command, check=False, connect=connect)
        took = time.monotonic() - began
        said = done.stderr.decode(errors="replace").strip()
        need(done.returncode != 0, f"{what}: `atoll {' '.join(command)}` was not refused")
        missing = [word for word in words if word not in said]
        need(not missing, f"{what}: `atoll {' '.join(command)}` does not say {missing}: {said}")
        drill.promise(took <= drill.within(REFUSED_WITHIN), f"{what}: `atoll {' '.join(command)}` took {took:.1f} s")
    say(f"  refused: {what}: {said}")
    return 1


def works(cluster, first):
    """Appends records, and reads them."""
    lines = [f"record {n}" for n in range(first, first + RECORDS)]
    cluster.atoll("log", "append", "--log", LOG, "--lines", "-", input="".join(f"{line}\n" for line in lines).encode())
    read = cluster.atoll("log", "read", "--log", LOG, "--raw").stdout.decode().splitlines()
    need(read[-RECORDS:] == lines, f"read {len(read)} records that are not those appended")


def served_with_certificates(drill, folder, cluster):
    """What clients with a certificate do, and what the others are told."""
    with presenting(folder, "ca", "client"):
        cluster.start()
        works(cluster, 0)
        cluster.extend(LOG)
        works(cluster, RECORDS)
        cluster.kill([1])
        works(cluster, 2 * RECORDS)
        cluster.boot([1])
        cluster.wait_up()
        works(cluster, 3 * RECORDS)
        say("  with certificates, a log is written, read and reconfigured, and a node dies and comes back")
    count = refused(drill, cluster, "a client without TLS", ["--tls-ca"])
    with presenting(folder, "ca"):
        count += refused(drill, cluster, "a client without a certificate", ["TLS", "--tls-cert"])
    with presenting(folder, "ca", "stranger"):
        count += refused(drill, cluster, "a certificate of another authority", ["TLS", "--tls-cert"])
    with presenting(folder, "other", "client"):
        count += refused(drill, cluster, "a client that does not know the authority of the nodes", ["TLS", "--tls-ca"])
    return count


def without_tls(drill, folder, cluster):
    """A client with TLS at a node that has none."""
    [grpc] = free_ports(1)
    alone = folder / "alone"
    alone.mkdir()
    with configured(drill.binary, alone, "", "", grpc=grpc), presenting(folder, "ca", "client"):
        return refused(drill, cluster, "a client with TLS at a node without it", ["TLS", "do the nodes have TLS?"], f"127.0.0.1:{grpc}")


def strange_peer(folder, cluster):
    """A node whose certificate is of another authority is down for the others, until it has a right one."""
    with presenting(folder, "ca", "client"):
        cluster.kill([3])
        right = cluster.node(3).config.read_text()
        cluster.node(3).config.write_text(right.replace("/node-3.", "/false-node-3."))
        cluster.boot([3])
        refusals = lambda: cluster.node(1).log.read_text(errors="replace").count("certificate")
        before = refusals()
        others = cluster.connect(1, 2)
        state = lambda: {n["id"]: n["state"] for n in cluster.status(connect=others)["nodes"]}[3]
        poll("a peer with a strange certificate is refused", 60, lambda: refusals() > before and state() != "up", every=0.1)
        works(cluster, 4 * RECORDS)
        need(state() != "up", "a peer with a strange certificate is up")
        cluster.kill([3])
        cluster.node(3).config.write_text(right)
        cluster.boot([3])
        cluster.wait_up()
        say("  refused: a peer whose certificate is of another authority")


def put(folder, name, content):
    """Puts a file in the place of another one."""
    (folder / "new").write_text(content)
    os.replace(folder / "new", folder / name)


def admits(folder, cluster, authority, name):
    """Whether the nodes serve a client."""
    with presenting(folder, authority, name):
        return cluster.atoll("log", "append", "--log", LOG, "admitted", check=False).returncode == 0


def lists(folder, revoked=()):
    """The lists of both authorities, once these certificates of the first one are revoked, too."""
    return revocation_list(folder, "ca", revoked) + revocation_list(folder, "other")


def revoked(folder, cluster):
    """The certificate of a client is revoked while the nodes run. A file that is damaged changes nothing."""
    need(admits(folder, cluster, "ca", "leaver"), "a client is refused before its certificate is revoked")
    put(folder, "revoked.pem", "damaged")
    said = lambda: all("cannot be used" in node.log.read_text(errors="replace") for node in cluster.nodes())
    poll("the nodes say that the list is damaged", 30, said, every=0.1)
    need(admits(folder, cluster, "ca", "leaver"), "a damaged list is in force")
    put(folder, "revoked.pem", lists(folder, ["leaver"]))
    poll("a client whose certificate is revoked is refused", 30, lambda: not admits(folder, cluster, "ca", "leaver"), every=0.1)
    need(admits(folder, cluster, "ca", "client"), "a client whose certificate is not revoked is refused")
    say("  a certificate was revoked while the nodes ran: its client is refused, the others are not")


def renewed(folder, cluster):
    """The nodes change to another authority while they run, in the order in which operators do that: trust both, renew, trust the new one."""
    text = lambda name: (folder / name).read_text()
    put(folder, "ca.pem", text("ca.pem") + text("other.pem"))
    poll("clients of the second authority are admitted", 30, lambda: admits(folder, cluster, "ca", "stranger"), every=0.1)
    for node in cluster.nodes():
        for part in ("pem", "key"):
            put(folder, f"node-{node.id}.{part}", text(f"false-node-{node.id}.{part}"))
    poll("the nodes have certificates of the second authority", 30, lambda: admits(folder, cluster, "other", "stranger"), every=0.1)
    put(folder, "ca.pem", text("other.pem"))
    poll("clients of the first authority are refused", 30, lambda: not admits(folder, cluster, "other", "client"), every=0.1)
    with presenting(folder, "other", "stranger"):
        works(cluster, 5 * RECORDS)
        cluster.kill([2])
        works(cluster, 6 * RECORDS)
        cluster.boot([2])
        cluster.wait_up()
        works(cluster, 7 * RECORDS)
    say("  the nodes changed to another authority while they ran, and one that was started again found the others")


def body(drill):
    nodes = [(f"{false}node-{number}", authority) for number in (1, 2, 3) for false, authority in (("", "ca"), ("false-", "other"))]
    certificates(drill.folder, [*nodes, ("client", "ca"), ("leaver", "ca"), ("stranger", "other")])
    put(drill.folder, "revoked.pem", lists(drill.folder))
    cluster = Serving(drill.binary, drill.folder / "cluster", 3)
    for node in cluster.nodes():
        secured(drill.folder, node, OPERATORS, "revoked.pem")
    try:
        drill.result["refused"] = served_with_certificates(drill, drill.folder, cluster) + without_tls(drill, drill.folder, cluster)
        strange_peer(drill.folder, cluster)
        revoked(drill.folder, cluster)
        renewed(drill.folder, cluster)
    finally:
        cluster.stop()


if __name__ == "__main__":
    Drill("secure", __doc__).run(body)
