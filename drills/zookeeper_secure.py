#!/usr/bin/env python3
"""kazoo and the Java client against a node that authenticates its clients: a port with TLS and certificates, and SASL DIGEST-MD5.

Each client tries right and wrong certificates and passwords. Then thousands of connections begin a TLS handshake at the same moment, and the
longest wait of a client on the port without TLS is held against a bound. `--control 1` runs the same against an Apache ZooKeeper server. The program
`openssl` makes the certificates. The first run installs kazoo into a separate folder (`ATOLL_DRILL_CACHE`) and fetches ZooKeeper's jars
from Maven Central. Without a JDK and mvn the Java client is left out, and the result says so.
"""

import contextlib
import logging
import socket
import ssl
import time

from zookeeper_venv import kazoo_with_sasl_or_again

kazoo_with_sasl_or_again()

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.security import make_acl

import jute
from alone import configured, free_ports
from certificates import certificates
from cluster import Drill, Failed, NotRun, need, say
from zookeeper_apache import Apache
from zookeeper_java import library
from zookeeper_maven import compiled, java

# It tells of every lost connection otherwise.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)
# A client is connected, or refused, within this time, in seconds.
WITHIN = 20
# How long a client looks what it waits while many handshakes are under way, and its longest wait, in seconds.
CROWD_S, CROWD_WAIT_S = 5.0, 0.05


def connected(port, **how):
    """A client that has a session."""
    client = KazooClient(f"127.0.0.1:{port}", timeout=10, **how)
    client.start(timeout=WITHIN)
    return client


def refused(port, words, **how):
    """A client that gets none."""
    client = KazooClient(f"127.0.0.1:{port}", timeout=10, connection_retry={"max_tries": 0}, **how)
    try:
        client.start(timeout=3)
        # kazoo has a session before it has proved who it is.
        client.exists_async("/").get(timeout=3)
    except Exception as error:  # Which one depends on how far it came.
        say(f"  refused: {words} ({type(error).__name__})")
    else:
        raise Failed(f"{words} was let in")
    finally:
        client.stop()
        client.close()


def denied(client, path, words):
    """A client that may not read a node."""
    try:
        client.get(path)
    except zk.NoAuthError:
        return
    raise Failed(words)


def run_checks(plain, tls, folder):
    """What kazoo finds; how many clients were refused."""
    pem = {"use_ssl": True, "ca": str(folder / "ca.pem")}
    mine = {**pem, "certfile": str(folder / "client.pem"), "keyfile": str(folder / "client.key")}
    subject = "CN=client,O=Reef\\, Inc,C=UN"

    known, anybody = connected(tls, **mine), connected(plain)
    known.create("/tls", b"1", acl=[make_acl("x509", subject, all=True)])
    need(known.get("/tls")[0] == b"1", "who has the certificate reads what it wrote")
    denied(anybody, "/tls", "a client without the certificate read what only its holder may")
    large = bytes(900_000)
    known.set("/tls", large)
    need(known.get("/tls")[0] == large, "large data comes back over TLS")
    say("  a certificate is who a client is, over TLS")
    refused(tls, "a client without a certificate", **pem)
    refused(tls, "a certificate of another authority", **pem, certfile=str(folder / "stranger.pem"), keyfile=str(folder / "stranger.key"))

    def sasl(password):
        return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": "bob", "password": password}}

    bob = connected(plain, **sasl("se:cret"))
    bob.create("/sasl", b"1", acl=[make_acl("sasl", "bob", all=True)])
    need(bob.get("/sasl")[0] == b"1", "bob reads what only bob may")
    denied(anybody, "/sasl", "a client without a password read what only bob may")
    say("  a password is who a client is, by SASL DIGEST-MD5")
    refused(plain, "a wrong password", **sasl("secret"))
    admin = connected(tls, **mine, **sasl("se:cret"))
    need(admin.get("/sasl")[0] == b"1" and admin.get("/tls")[0] == large, "a client may be both")
    for client in [known, anybody, bob, admin]:
        client.stop()
        client.close()
    return 3


def users(drill):
    """The JAAS file with the user of SASL, which both sides take."""
    jaas = drill.folder / "jaas.conf"
    jaas.write_text('Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_bob="se:cret"; };\n')
    return jaas


def one_node(drill, plain, tls):
    """A node of Atoll."""
    listen = f'zookeeper = "127.0.0.1:{plain}"\nzookeeper_tls = "127.0.0.1:{tls}"\n'
    settings = f'[zookeeper]\ntls_cert = "node.pem"\ntls_key = "node.key"\ntls_ca = "ca.pem"\njaas = "{users(drill)}"\nmax_connections_of_address = 0\n'
    return configured(drill.binary, drill.folder, listen, settings)


def apache(drill, plain, tls):
    """The same of Apache ZooKeeper."""
    stores = {"keyStore": "node-both.pem", "trustStore": "ca.pem"}
    ssl = {f"ssl.{store}.{what}": value for store, name in stores.items() for what, value in (("location", drill.folder / name), ("type", "PEM"))}
    settings = {"clientPort": plain, "secureClientPort": tls, "secureClientPortAddress": "127.0.0.1",
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider", **ssl}
    server = Apache(drill.folder / "control", flags=[f"-Djava.security.auth.login.config={users(drill)}"], **settings)
    server.host = f"127.0.0.1:{plain}"
    return server


def java_checks(drill, path, plain, tls):
    """What the Java client finds."""
    done = java(path, "SecureCheck", f"127.0.0.1:{plain}", f"127.0.0.1:{tls}", drill.folder)
    need(done.returncode == 0, f"the Java client: {done.stdout[-500:]} {done.stderr[-2500:]}")
    for line in done.stdout.splitlines():
        say(f"  java: {line}")
    return sum(line.startswith("refused: ") for line in done.stdout.splitlines())


def hello():
    """The first message of a TLS client. A server that gets it computes most of the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent).do_handshake()
    return sent.read()


def crowd(drill, plain, tls):
    """Many handshakes begin at once; the longest wait of a client that is there already."""
    message = hello()
    with contextlib.ExitStack() as sockets:
        clients = [sockets.enter_context(socket.create_connection(("127.0.0.1", tls))) for _ in range(drill.args.crowd)]
        # After the others: so many connections take a while.
        wire = jute.Wire(f"127.0.0.1:{plain}")
        for client in clients:
            client.sendall(message)
        longest, began = 0.0, time.monotonic()
        while time.monotonic() - began < CROWD_S:
            asked = time.monotonic()
            _, error, _ = wire.call(jute.GET, jute.watched("/"))
            need(error == 0, f"a read failed: {error}")
            longest = max(longest, time.monotonic() - asked)
    bound = drill.within(CROWD_WAIT_S)
    say(f"  {len(clients)} handshakes began at once: the longest wait of another client was {1e3 * longest:.0f} ms")
    drill.promise(longest <= bound, f"a client waited for {longest:.2f} s while handshakes were under way; at most {bound:.2f} s is promised")
    drill.result.update(handshakes=len(clients), longest_wait_ms=round(1e3 * longest, 1))


def body(drill):
    certificates(drill.folder)
    try:
        path = compiled(drill, library(), "SecureCheck.java")
    except NotRun as words:
        if drill.args.control:
            raise
        path = None
        say(f"  without the Java client: {words}")
    plain, tls = free_ports(2)
    with (apache if drill.args.control else one_node)(drill, plain, tls):
        drill.result["refused"] = run_checks(plain, tls, drill.folder)
        drill.result["refused_java"] = java_checks(drill, path, plain, tls) if path else "not run"
        crowd(drill, plain, tls)


if __name__ == "__main__":
    Drill(
        "zookeeper-secure",
        __doc__,
        control=(0, 0, "1: a server of Apache ZooKeeper instead of Atoll"),
        crowd=(10_000, 2_000, "handshakes that begin at once"),
    ).run(body)
