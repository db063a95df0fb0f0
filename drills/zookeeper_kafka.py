#!/usr/bin/env python3
"""Apache Kafka, an application that keeps its state in ZooKeeper, on three Atoll nodes that are killed under it.

Three brokers of Kafka 3.9, the last release line that works with ZooKeeper, run unmodified from Maven Central. Throughout the drill a
producer writes lines of the Debian package index with acks=all. In each round, the Atoll node that the controller is connected to is
killed, then a node that some other broker is connected to, then the node that orders the log `db`, which is also moved. Right after each
kill, the drill asks Kafka to change something. A node is stopped for twice a session's timeout. Then the controller itself is killed, and
another broker must take over. In the end every acknowledged line is consumed, once; the znodes agree with what Kafka's clients and tools
report; and only the killed brokers have lost their sessions. `--control 1` does the same with three Apache ZooKeeper servers. Needs a JDK
and mvn.
"""

import contextlib
import itertools
import json
import logging
import queue
import re
import signal
import subprocess
import threading
import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

from cluster import Cluster, Drill, Failed, atexit, end, need, poll, say, table
from ports import free_ports
from tables import index_lines
from zookeeper_ensemble import Apache
from zookeeper_disturb import LOG, holder
from zookeeper_maven import command, compiled, jars, java

VERSION = "3.9.1"
LIBRARIES = [
    f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}", "ch.qos.reload4j:reload4j:1.2.25", "org.slf4j:slf4j-reload4j:1.7.36",
]
# What a broker's session lasts, in milliseconds.
SESSION_MS = 6_000
# A broker that starts, or comes back into sync, or takes over, on a machine that has other work, in seconds.
WITHIN = 120
TOPIC = "packages"
# It tells of every lost connection otherwise.
logging.getLogger("kazoo").setLevel(logging.ERROR)
LOGGING = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n
"""
PROPERTIES = """broker.id={number}
listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect={zookeeper}/kafka
zookeeper.session.timeout.ms={session}
zookeeper.connection.timeout.ms=60000
log.dirs={folder}/data
authorizer.class.name=kafka.security.authorizer.AclAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
auto.create.topics.enable=false
min.insync.replicas=2
default.replication.factor=3
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=1
replica.lag.time.max.ms=10000
leader.imbalance.check.interval.seconds=5
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.enable=false
"""
# What the log of a broker whose session has ended says.
ENDED = ("Session expired", "session expired", "Expired; ", "has expired")


class Broker:
    """A broker: its process, and its ephemeral as it was registered."""

    def __init__(self, kafka, number, port):
        self.kafka, self.number, self.port = kafka, number, port
        self.folder = kafka.folder / f"broker-{number}"
        self.log = self.folder / "server.log"
        self.process = None
        self.registered = None

    def start(self):
        """Starts it."""
        self.folder.mkdir(exist_ok=True)
        where = dict(number=self.number, port=self.port, zookeeper=self.kafka.hosts, session=SESSION_MS, folder=self.folder)
        (self.folder / "server.properties").write_text(PROPERTIES.format(**where))
        flags = [f"-Dlog4j.configuration=file:{self.kafka.folder}/log4j.properties", "-Dzookeeper.jute.maxbuffer=1048575"]
        with open(self.log, "ab") as out:
            line = command(self.kafka.path, "kafka.Kafka", self.folder / "server.properties", flags=flags)
            self.process = subprocess.Popen(line, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)

    def wait_registered(self):
        """Until its ephemeral is there."""
        def up():
            need(self.process.poll() is None, f"broker {self.number} has ended: {self.log.read_text()[-2000:]}")
            return self.kafka.zk.retry(self.kafka.zk.exists, f"/brokers/ids/{self.number}")

        self.registered = poll(f"broker {self.number} is registered", WITHIN, up, every=0.1)

    def session(self):
        """Its session."""
        return self.registered.ephemeralOwner


class Kafka:
    """Three brokers on an ensemble, and Kafka's own clients."""

    def __init__(self, drill, ensemble, path, file):
        self.folder, self.path = drill.folder, path
        (self.folder / "log4j.properties").write_text(LOGGING)
        self.brokers = {number: Broker(self, number, port) for number, port in enumerate(free_ports(3), 1)}
        self.enter(ensemble.zookeeper())
        self.bootstrap = ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())
        flags = ["-Dlog4j.rootLogger=OFF", f"-Dlog4j.configuration=file:{self.folder}/log4j.properties"]
        errors = open(self.folder / "clients.log", "ab")
        line = command(path, "KafkaCheck", self.bootstrap, file, flags=flags)
        self.clients = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        atexit.register(end, self.clients)
        self.answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def enter(self, hosts):
        """Starts the brokers on an ensemble."""
        self.hosts = hosts
        retry = KazooRetry(max_tries=-1, deadline=WITHIN, max_delay=1.0, ignore_expire=True)
        self.plain = KazooClient(self.hosts, connection_retry=retry, command_retry=retry)
        self.plain.start(timeout=60)
        self.plain.retry(self.plain.ensure_path, "/kafka")
        self.zk = KazooClient(f"{self.hosts}/kafka", connection_retry=retry, command_retry=retry)
        self.zk.start(timeout=60)
        for broker in self.brokers.values():
            broker.start()
        for broker in self.brokers.values():
            broker.wait_registered()

    def leave(self):
        """Stops the brokers in good order, so that they can go to another ensemble. Kafka's own clients stay."""
        for broker in self.brokers.values():
            broker.process.terminate()
        for broker in self.brokers.values():
            broker.process.wait(WITHIN)
        poll("the ephemerals of brokers that have stopped go", WITHIN, lambda: not self.children("/brokers/ids"), every=0.1)
        self.close_clients()

    def close_clients(self):
        """Ends what looks at the ensemble."""
        for client in (self.zk, self.plain):
            client.stop()
            client.close()

    def _read(self):
        # What is logged goes to the same place: answers are the lines that begin as such.
        for line in self.clients.stdout:
            if line[:1] in "{[" or line[:1].isdigit() and " " not in line or line.startswith("error "):
                self.answers.put(line)
            else:
                with open(self.folder / "clients.log", "a") as file:
                    file.write(line)

    def run(self, *words):
        """A command of KafkaCheck."""
        self.clients.stdin.write("\t".join(str(word) for word in words) + "\n")
        self.clients.stdin.flush()
        try:
            answer = self.answers.get(timeout=3 * WITHIN)
        except queue.Empty:
            raise Failed(f"Kafka's client does not answer to {words}") from None
        need(not answer.startswith("error "), f"{' '.join(map(str, words))}: {answer}")
        return json.loads(answer)

    def data(self, path):
        """What a znode holds, as JSON; None if it is not there."""
        with contextlib.suppress(NoNodeError):
            return json.loads(self.zk.retry(self.zk.get, path)[0] or b"null")
        return None

    def children(self, path):
        """The children of a znode, in order; none if it is not there."""
        with contextlib.suppress(NoNodeError):
            return sorted(self.zk.retry(self.zk.get_children, path))
        return []

    def controller(self):
        """The broker that holds /controller, or None."""
        held = self.data("/controller")
        return held and held["brokerid"]

    def in_sync(self):
        """All replicas of all partitions are in sync, as Kafka says, and the brokers agree on who the controller is."""
        for topic in self.run("topics"):
            if any(sorted(p["isr"]) != sorted(p["replicas"]) or p["leader"] < 0 for p in self.run("describe", topic)):
                return False
        return True

    def stop(self):
        """Ends all of it: one broker in good order, whose ephemeral goes with its session."""
        self.run("cluster")
        first = self.brokers[1]
        first.process.terminate()
        poll("the ephemeral of a broker that stops goes", WITHIN, lambda: "1" not in self.children("/brokers/ids"), every=0.1)
        self.close()

    def close(self):
        """Ends the processes."""
        end(self.clients)
        for broker in self.brokers.values():
            end(broker.process)
        self.close_clients()


def changes(kafka):
    """What an operator changes, one after the other, forever: (words, call)."""
    for n in itertools.count(1):
        yield "create topic", lambda n=n: kafka.run("create", f"short-{n}", 3, 3)
        yield "alter topic's config", lambda n=n: kafka.run("config", "topic", TOPIC, "retention.ms", 86_400_000 + n)
        yield "delete topic", lambda n=n: kafka.run("delete", f"short-{n}")
        yield "add a partition", lambda n=n: kafka.run("partitions", TOPIC, 3 + n)
        yield "allow a user", lambda n=n: kafka.run("allow", TOPIC, f"user-{n}")
        yield "alter brokers' config", lambda n=n: kafka.run("config", "broker", "", "log.retention.ms", 172_800_000 + n)
        yield "move a replica", lambda n=n: kafka.run("reassign", TOPIC, 0, ["2,3,1", "3,1,2", "1,2,3"][n % 3])
        yield "set a quota", lambda n=n: kafka.run("quota", f"client-{n}", 1_000_000 + n)
        yield "set a user's password", lambda n=n: kafka.run("user", f"user-{n}", f"secret-{n}")
        yield "disallow a user", lambda n=n: kafka.run("disallow", TOPIC, f"user-{n}")
        yield "elect preferred leaders", lambda: kafka.run("elect")


class Operator:
    """Kills and changes, and keeps what was done for the table."""

    def __init__(self, drill, ensemble, kafka):
        self.drill, self.ensemble, self.kafka = drill, ensemble, kafka
        self.changes = changes(kafka)
        self.rows = []
        self.done = self.asked = self.moves = 0

    def tell(self, what, which, asked, took):
        """A row of the table."""
        self.rows.append((what, which, "; ".join(asked), f"{took:.1f} s", self.kafka.run("produced")["acknowledged"]))
        say(" ", ", ".join(map(str, self.rows[-1])))

    def change(self, count):
        """Asks Kafka for the next changes; which they were."""
        asked = []
        for what, change in itertools.islice(self.changes, count):
            change()
            asked.append(what)
        self.done += count
        return asked

    def node_of(self, broker):
        """The node that a broker is connected to, once it is connected: it may be on its way from the node killed before."""
        session = self.kafka.brokers[broker].session()
        return poll(f"broker {broker} is connected", WITHIN, lambda: holder(self.ensemble, session), every=0.05)

    def kill_node(self, words, number, move):
        """Kills a node of the ensemble; changes things meanwhile."""
        pids, _ = self.ensemble.signal([number])
        need(pids, f"{words}: node {number} was down when it was to be killed")
        began = time.monotonic()
        if move and isinstance(self.ensemble, Cluster):
            self.asked += 1
            self.moves += self.ensemble.extend(LOG, check=False)
        asked = self.change(self.drill.args.changes)
        took = time.monotonic() - began
        self.ensemble.wait_back(pids)
        self.tell(f"kill -9 {words}", f"node {number}", asked, took)

    def stop_node(self):
        """Stops the controller's node for twice the session's timeout; changes things meanwhile."""
        number = self.node_of(self.kafka.controller())
        self.ensemble.signal([number], signal.SIGSTOP)
        began = time.monotonic()
        asked = self.change(self.drill.args.changes)
        took = time.monotonic() - began
        time.sleep(max(0.0, 2 * SESSION_MS / 1000 - took))
        self.ensemble.signal([number], signal.SIGCONT)
        self.tell(f"SIGSTOP the controller's node for {2 * SESSION_MS // 1000} s", f"node {number}", asked, took)

    def round(self):
        """Every kind of node once."""
        kafka = self.kafka
        controller = kafka.controller()
        self.kill_node("the controller's node", self.node_of(controller), move=False)
        other = self.drill.random.choice([number for number in kafka.brokers if number != controller])
        self.kill_node("a broker's node, move the log", self.node_of(other), move=True)
        self.kill_node("the sequencer's node, move the log", self.ensemble.sequencer(LOG), move=True)

    def kill_controller(self):
        """Kills the broker that is the controller: another takes over, and it comes back."""
        kafka = self.kafka
        was, epoch = kafka.controller(), int(kafka.zk.retry(kafka.zk.get, "/controller_epoch")[0])
        end(kafka.brokers[was].process)
        began = time.monotonic()
        poll("another controller", WITHIN, lambda: kafka.controller() not in (None, was), every=0.05)
        took = time.monotonic() - began
        now = int(kafka.zk.retry(kafka.zk.get, "/controller_epoch")[0])
        need(now > epoch, f"the controller's epoch is {now}, and was {epoch}")
        need(took > SESSION_MS / 1000 / 2, f"a controller whose session was alive has lost its place after {took:.1f} s")
        poll("its ephemeral goes", WITHIN, lambda: str(was) not in kafka.children("/brokers/ids"), every=0.1)
        # Not any change: two brokers cannot do all that three can.
        kafka.run("config", "topic", TOPIC, "segment.ms", 604_800_000 + now)
        self.done += 1
        kafka.brokers[was].start()
        kafka.brokers[was].wait_registered()
        self.tell("kill -9 the controller", f"broker {was}", [f"broker {kafka.controller()} elected", "alter topic's config"], took)


def sessions(kafka):
    """No session has ended but those of killed brokers: all ephemerals are as they were registered, and no log tells of an expiry."""
    for number, broker in kafka.brokers.items():
        now = kafka.zk.retry(kafka.zk.exists, f"/brokers/ids/{number}")
        need(now and now.czxid == broker.registered.czxid and now.ephemeralOwner == broker.session(), f"the ephemeral of broker {number} was away")
        told = broker.log.read_text(errors="replace")
        need(not any(words in told for words in ENDED), f"broker {number} tells of an expired session: see {broker.log}")


def compare(kafka):
    """The znodes against what Kafka's clients say; how many facts were compared."""
    facts = 0

    def same(what, znode, said):
        nonlocal facts
        need(znode == said, f"{what}: the znodes say {znode}, Kafka says {said}")
        facts += 1

    cluster = kafka.run("cluster")
    same("brokers", sorted(int(n) for n in kafka.children("/brokers/ids")), cluster["brokers"])
    same("controller", kafka.controller(), cluster["controller"])
    same("cluster id", kafka.data("/cluster/id")["id"], cluster["id"])
    for number, broker in kafka.brokers.items():
        same(f"address of broker {number}", kafka.data(f"/brokers/ids/{number}")["endpoints"], [f"PLAINTEXT://127.0.0.1:{broker.port}"])
    topics = kafka.run("topics")
    same("topics", kafka.children("/brokers/topics"), topics)
    for topic in topics:
        described = kafka.run("describe", topic)
        assigned = kafka.data(f"/brokers/topics/{topic}")["partitions"]
        same(f"replicas of {topic}", {int(p): replicas for p, replicas in assigned.items()}, {p["partition"]: p["replicas"] for p in described})
        for partition in described:
            state = kafka.data(f"/brokers/topics/{topic}/partitions/{partition['partition']}/state")
            same(f"leader of {topic}-{partition['partition']}", state["leader"], partition["leader"])
            same(f"ISR of {topic}-{partition['partition']}", sorted(state["isr"]), sorted(partition["isr"]))
        same(f"config of {topic}", kafka.data(f"/config/topics/{topic}")["config"], kafka.run("configured", "topic", topic))
    same("config of brokers", (kafka.data("/config/brokers/<default>") or {}).get("config", {}), kafka.run("configured", "broker", ""))
    allowed = [f"{topic} {entry['principal']}" for topic in kafka.children("/kafka-acl/Topic") for entry in kafka.data(f"/kafka-acl/Topic/{topic}")["acls"]]
    same("access", sorted(allowed), kafka.run("allowed"))
    same("users", [u for u in kafka.children("/config/users") if "SCRAM-SHA-256" in kafka.data(f"/config/users/{u}")["config"]], sorted(kafka.run("users")))
    same("topics to be deleted", kafka.children("/admin/delete_topics"), [])
    same("reassignments", (kafka.data("/admin/reassign_partitions"), kafka.run("reassigning")), (None, 0))
    done = java(kafka.path, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap, "--describe", "--topic", TOPIC)
    found = re.findall(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\S+)\s+Isr: (\S+)", done.stdout)
    state = kafka.data(f"/brokers/topics/{TOPIC}")["partitions"]
    same("kafka-topics", {p: [int(r) for r in replicas.split(",")] for p, _, replicas, _ in found}, state)
    return facts


def fill(kafka):
    """What is there before the first kill."""
    kafka.run("create", TOPIC, 3, 3)
    kafka.run("produce", TOPIC)
    poll("the producer is acknowledged", WITHIN, lambda: kafka.run("produced")["acknowledged"] > 0, every=0.1)
    kafka.run("create", "exact", 1, 3)
    kafka.run("transaction", "exact", 200)


def work(drill, ensemble, kafka):
    fill(kafka)
    operator = Operator(drill, ensemble, kafka)
    for number in range(drill.args.rounds):
        operator.round()
        if number < drill.args.stops:
            operator.stop_node()
        if number == drill.args.rounds - 1 or number % 2 == 1:
            operator.kill_controller()
    need(2 * operator.moves >= operator.asked, f"the log was moved {operator.moves} of {operator.asked} times")
    produced = kafka.run("stop")
    need(produced["failed"] == 0 and produced["acknowledged"] == produced["sent"], f"the producer: {produced}")
    consumed = kafka.run("consume", TOPIC, "readers", produced["acknowledged"], "read_committed")
    need(consumed["records"] == produced["acknowledged"] and not any(consumed[k] for k in ("doubles", "wrong", "missing")), f"of {produced} came {consumed}")
    exact = kafka.run("consume", "exact", "readers", 200, "read_committed")
    need(exact == {"records": 200, "doubles": 0, "wrong": 0, "missing": 0}, f"of a transaction of 200 came {exact}")
    poll("all replicas are in sync", WITHIN, kafka.in_sync, every=0.5)
    poll("what was to be deleted is gone, what was to be moved is there", WITHIN, lambda: not kafka.children("/admin/delete_topics") and kafka.run("reassigning") == 0)
    sessions(kafka)
    facts = compare(kafka)
    say()
    table(operator.rows, ("what", "which", "meanwhile", "until all was done", "acknowledged"))
    say(f"{produced['acknowledged']} lines acknowledged and consumed once; {facts} facts in the znodes as Kafka says them; no session lost but the killed brokers'")
    kafka.stop()
    drill.result.update(acknowledged=produced["acknowledged"], kills=len(operator.rows) - min(drill.args.stops, drill.args.rounds), stops=min(drill.args.stops, drill.args.rounds), moves=operator.moves, changes=operator.done, facts=facts)


def body(drill):
    path = compiled(drill, jars(f"kafka-{VERSION}", *LIBRARIES), "KafkaCheck.java")
    lines, origin = index_lines()
    file = drill.folder / "lines"
    file.write_bytes(b"\n".join(lines[:200_000]) + b"\n")
    say(f"input: {min(len(lines), 200_000)} lines of {origin}")
    drill.result.update(kafka=VERSION, ensemble="Apache ZooKeeper" if drill.args.control else "Atoll", input=origin)
    if drill.args.control:
        ensemble = Apache(path, drill.folder / "control")
    else:
        ensemble = Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3)
    with ensemble:
        kafka = Kafka(drill, ensemble, path, file)
        try:
            work(drill, ensemble, kafka)
        finally:
            kafka.close()


if __name__ == "__main__":
    Drill(
        "zookeeper-kafka",
        __doc__,
        control=(0, 0, "1: three servers of Apache ZooKeeper instead of Atoll"),
        rounds=(6, 1, "how often each kind of node is killed"),
        changes=(3, 2, "how many things are changed after each kill"),
        stops=(2, 0, "how often the controller's node is stopped for twice the timeout of a session"),
    ).run(body)
