#!/usr/bin/env python3
"""A log moves from three nodes into a log service and back, again and again, while it is written.

The service is three servers of NATS with JetStream, each with a network of its own, which sync every message. Two clients on different
nodes keep records in flight. While the log is in the service, the server that leads its stream is killed and comes back, or is parted from
the other servers, while all nodes still reach it: then it is an old leader, which answers reads. No append fails, and none is lost or
doubled. Each pause is the longest gap between two acknowledgements from the start of a command to 1 s after its return.

The log also moves back, and so its stream is sealed, just after its leader was parted from the others, or was stopped. Somebody who does
not know of the seal appends through that server, before and after the seal. None of this is confirmed, also not once the server is back,
and no message but a seal follows the seal.

Servers that do not answer, that have no JetStream or other credentials, and options that are none are refused by name, before anything is
sealed. When a segment leaves the chain, its stream is deleted. A stream whose messages somebody purged is refused by name, too, and nothing
is given in the place of what is missing. Needs root, go, iproute2 and nftables.
"""

import itertools
import os
import time

from cluster import Cluster, Drill, need, poll, say
from load import Load
from log_service_servers import PASSWORD, USER, Client, Server, Service, log_of, program, serves
from networks import DRILL, Networks
from outside import STAY_S, finish, move, refused, report

LOG = "moves"
KIND = "log-service"
# A stream that has lost its leader elects another one within 10 s, and appends wait for it.
PATIENT_S = 60.0
# An old appender expects so many sequences below the seal, one after the other: others append until the server becomes an old leader.
EXPECTED = 100
# A server that is back answers what has arrived meanwhile within this time.
ANSWERS_S = 3.0
# Of a message (`protocols/log-service/src/layout.rs`): the bytes of its head, which kind it is of, and the kind that is a seal.
HEAD_BYTES, KIND_AT, SEAL = 72, 5, 2


def stream_of(cluster):
    """The stream of the active segment."""
    return cluster.active(LOG)["config"]["stream"]


def lose_leader(cluster, service, stay_s):
    """Kills the server that leads the stream, and starts it again."""
    server = service.servers[service.leader(stream_of(cluster)) - 1]
    server.kill()
    time.sleep(stay_s)
    server.start()
    poll(f"server {server.number} serves again", PATIENT_S, lambda: serves(server), every=0.2)


def part(networks, leader):
    """Parts a server from the others. The nodes reach all of them."""
    others = [n for n in (1, 2, 3) if n != leader]
    networks.cut([*itertools.product([leader], others), *itertools.product(others, [leader])])


def part_leader(cluster, service, networks, stay_s):
    """Parts the server that leads the stream from the others for a while."""
    part(networks, service.leader(stream_of(cluster)))
    time.sleep(stay_s)
    networks.heal()
    service.wait_up()


def newest_seal(service, stream):
    """The sequence of the newest message of a log, which is a seal. An old leader may answer, but what follows a seal stays."""
    def sealed():
        seq, _, data = service.message(stream, last_by_subj=log_of(stream))
        return data[KIND_AT] == SEAL and seq

    return poll("the newest message of the log is a seal", PATIENT_S, sealed, every=0.5)


def seal_past_leader(cluster, service, networks, is_stopped, back):
    """Moves the log away from a stream whose leader is parted from the others, or is stopped, while somebody appends through it."""
    stream = stream_of(cluster)
    log, server = log_of(stream), service.servers[service.leader(stream) - 1]
    appender = Client(server)
    if not is_stopped:
        part(networks, server.number)
    newest, _, data = Client(server).message(stream, last_by_subj=log)
    if is_stopped:
        server.stop()
    appender.publish(log, newest, data[:HEAD_BYTES])
    back()
    seal = newest_seal(service, stream)
    # Whoever knows of no seal expects a message below it.
    for expected in range(max(newest, seal - EXPECTED), seal):
        appender.publish(log, expected, data[:HEAD_BYTES])
    if is_stopped:
        server.go_on()
    else:
        networks.heal()
    confirmed = [answer for answer in appender.answers(ANSWERS_S) if answer and "error" not in answer]
    need(not confirmed, f"an old leader has confirmed appends to a sealed log: {confirmed[:3]}")
    service.wait_up()
    # A node may have sealed twice.
    for seq in range(seal, newest_seal(service, stream)):
        found = service.message(stream, seq=seq)
        need(not found or found[1] != log or found[2][KIND_AT] == SEAL, f"message {seq} follows the seal {seal}")


def bad_input(drill, cluster, binary, networks, service):
    """Services that cannot be used are refused by what is wrong with them."""
    plain = Server(binary, drill.folder / "plain", networks, DRILL, port=4301, jetstream=False)
    other = Server(binary, drill.folder / "other", networks, DRILL, port=4302, password="another")
    cases = (
        ("answers", ["servers=127.0.0.1:1"]),
        ("host:port", ["servers=nowhere"]),
        ("host:port", [f"servers=nats://{USER}:{PASSWORD}@{service.servers[0].address}"]),
        ("prefix", [f"servers={service.addresses()}", "prefix=a.b"]),
        ("replicas", [f"servers={service.addresses()}", "replicas=9"]),
        ("servers", [f"servers={service.addresses()}", "replicas=5"]),
        ("JetStream", [f"servers={plain.address}"]),
        ("credentials", [f"servers={other.address}"]),
    )
    for server in (plain, other):
        server.start()
    poll("the other server serves", 20, lambda: "Server is ready" in plain.words() and "Server is ready" in other.words(), every=0.1)
    said = refused(cluster, LOG, KIND, [options for _, options in cases])
    for (word, options), words in zip(cases, said):
        need(word in words, f"{options} was answered with {words!r}")
        need(PASSWORD not in words, f"an answer repeats a secret: {words!r}")
    for server in (plain, other):
        server.kill()
    need(not service.streams(), f"refused plans have left {service.streams()}")


def altered(cluster, service):
    """Somebody purges a stream: no node gives anything in the place of what it held."""
    move(cluster, LOG, KIND, f"servers={service.addresses()}")
    cluster.atoll("log", "append", "--log", LOG, "the record that goes")
    stream = stream_of(cluster)
    move(cluster, LOG, "native")
    done = service.ask(f"STREAM.PURGE.{stream}")
    need(done.get("success"), f"the stream could not be purged: {done}")
    # A node that has appended or read the record has it in memory.
    pids, _ = cluster.signal(cluster.ids())
    cluster.wait_back(pids)
    for number in cluster.ids():
        done = cluster.atoll("log", "read", "--raw", "--log", LOG, "--node", number, "--timeout", 10, check=False, timeout=120)
        need(done.returncode != 0, f"node {number} has read over a record that is missing")
        need(b"the record that goes" not in done.stdout, "what was purged is there")


def body(drill):
    args, binary = drill.args, program()
    os.environ.update(ATOLL_LOG_SERVICE_USER=USER, ATOLL_LOG_SERVICE_PASSWORD=PASSWORD)
    with (
        Networks(3) as networks,
        Service(binary, drill.folder / "service", networks) as service,
        Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster,
    ):
        cluster.create_log(LOG)
        bad_input(drill, cluster, binary, networks, service)
        grpc = [node.grpc for node in cluster.nodes()]
        loads = [Load(cluster, drill.folder, LOG, name=name, depth=16, connect=grpc[at]).start() for at, name in enumerate("ab")]
        time.sleep(STAY_S)
        windows = {KIND: [], "native": []}
        back = lambda: move(cluster, LOG, "native", patient_s=PATIENT_S)
        for number in range(args.moves):
            options = [f"servers={service.addresses()}", f"prefix=drill-{number % 2}"]
            windows[KIND].append(move(cluster, LOG, KIND, *options, patient_s=PATIENT_S))
            match number % 5:
                case 1:
                    lose_leader(cluster, service, args.away_s)
                case 2:
                    part_leader(cluster, service, networks, args.away_s)
                case 3 | 4 as how:
                    # What moves away from an old leader is not a pause of a healthy service.
                    seal_past_leader(cluster, service, networks, how == 4, back)
                    continue
            windows["native"].append(back())
        acks, records = finish(cluster, loads, LOG, {KIND, "native"})
        report(drill, windows, acks)
        need(PASSWORD not in str(cluster.chain(LOG)), "the chain repeats a secret")
        altered(cluster, service)
        tail = cluster.json("log", "check-tail", "--log", LOG)["tail"]
        cluster.atoll("log", "trim", "--log", LOG, tail)
        poll("the streams of trimmed segments are deleted", PATIENT_S, lambda: not service.streams(), every=0.5)
    drill.result["records"] = records
    say(f"{records} records acknowledged; none failed, lost or doubled")


if __name__ == "__main__":
    Drill(
        "log-service",
        __doc__,
        moves=(20, 5, "how often the log moves into the service and back"),
        away_s=(20.0, 12.0, "how long a server is away"),
    ).run(body)
