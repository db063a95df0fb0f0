#!/usr/bin/env python3
"""Applications leave Apache ZooKeeper for Atoll, whose log then moves through an object store, and are restored elsewhere at the end.

Kafka, with three brokers, Curator and kazoo begin on three servers of Apache ZooKeeper. Then, in this order:

1. `atoll zookeeper import` copies the ensemble into three nodes, and finds no difference. The brokers, stopped for the copy, start there.
2. `atoll backup start` ships what happens from now on to an object store: a real server that speaks S3, behind a proxy that makes it fail.
3. While Kafka's producer, a client of kazoo and Curator's recipes work, the database's log moves from native Loglets into the object store
   and back.
4. The nodes are killed with `kill -9`, all at once, and never started again. `atoll restore --to latest` makes a new node from the backup.
   The brokers start there, and Curator's recipes pass.

The verdict: no acknowledged line of the producer is lost or doubled, kazoo sees every node as it wrote it, on each station and after the
restore, and what the znodes say of Kafka is what Kafka says. Needs a JDK and mvn, and `go` or a server that was built before.
"""

import contextlib
import threading
import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

import object_stores
import zookeeper_curator
import zookeeper_kafka
from backup import backup, command, serve, whole
from cluster import Cluster, Drill, end, need, poll, say
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry
from recover import config_of
from tables import index_lines
from zookeeper_ensemble import Apache
from zookeeper_import import AUTH, read_all, same
from zookeeper_maven import compiled, jars

LOG, ROOT = "db", ["--auth", "digest:root:atoll"]
# What the journey's own client of kazoo writes.
TOP = "/journey"


class Writer(threading.Thread):
    """A client of kazoo that makes nodes, one after the other, and remembers them."""

    def __init__(self, hosts, number):
        super().__init__(daemon=True, name=f"writer {number}")
        self.number, self.made, self.trouble = number, {}, None
        self.over = threading.Event()
        retry = KazooRetry(max_tries=-1, deadline=60, max_delay=0.5)
        self.kazoo = KazooClient(hosts, timeout=20.0, connection_retry=retry)
        self.kazoo.start(timeout=30)
        self.kazoo.ensure_path(TOP)

    def run(self):
        try:
            while not self.over.is_set():
                path, data = f"{TOP}/{self.number}-{len(self.made):06}", b"%d" % time.time_ns()
                self.kazoo.create(path, data)
                self.made[path] = data
                time.sleep(0.002)
        except Exception as trouble:
            self.trouble = trouble

    def finish(self):
        """Ends it; what it has made."""
        self.over.set()
        self.join(60)
        need(self.trouble is None, f"{self.name}: {self.trouble!r}")
        self.kazoo.stop()
        self.kazoo.close()
        return self.made


def written(hosts, seconds, number, meanwhile=lambda: None):
    """A writer's nodes, of at least so many seconds and as long as something else takes."""
    writer = Writer(hosts, number)
    writer.start()
    until = time.monotonic() + seconds
    try:
        meanwhile()
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        made = writer.finish()
    need(made, f"the writer at {hosts} made nothing")
    return made


def check_made(hosts, made, station):
    """Every node of the writers is there as it was written, and no other one."""
    kazoo = KazooClient(hosts, timeout=20.0)
    kazoo.start(timeout=30)
    kazoo.sync("/")
    there = {path: data for path, (data, *_) in read_all(kazoo, TOP).items() if path != TOP}
    kazoo.stop()
    need(there == made, f"{station}: {len(there)} nodes of the writers are there, and {len(made)} were made")


def whole_tree(hosts):
    """All nodes as a client sees them."""
    kazoo = KazooClient(hosts, timeout=20.0, auth_data=[("digest", "user:secret")])
    kazoo.start(timeout=30)
    kazoo.sync("/")
    tree = read_all(kazoo)
    kazoo.stop()
    return tree


def check_kafka(kafka, station):
    """Kafka works, and the znodes say of it what it says itself."""
    known = lambda: kafka.run("cluster")["brokers"] == sorted(kafka.brokers) and kafka.in_sync()
    poll(f"{station}: all brokers know each other, and all replicas are in sync", zookeeper_kafka.WITHIN, known, every=0.5)
    facts = zookeeper_kafka.compare(kafka)
    say(f"  {station}: {facts} facts in the znodes as Kafka says them")
    return facts


def moves(drill, cluster, store):
    """The database's log goes into the object store and back."""
    for number in range(drill.args.moves):
        for kind, words in (("object", ("--option", f"url={store.url}-log-{number}")), ("native", ("--servers", "1,2,3"))):
            cluster.atoll("chain", "extend", "--log", LOG, "--loglet", kind, *words, timeout=120)
            need(cluster.json("chain", "show", "--log", LOG)["segments"][-1]["kind"] == kind, f"the log is not on {kind}")
            time.sleep(drill.args.stay)


def to_atoll(drill, ensemble, cluster, kafka, made):
    """Everything leaves the ensemble for the nodes."""
    kafka.leave()
    there = whole_tree(ensemble.zookeeper())
    hosts = cluster.zookeeper()
    begin = time.monotonic()
    told = cluster.json("zookeeper", "import", "--from", ensemble.zookeeper(), "--to", hosts, *ROOT, *AUTH, timeout=600)
    need(told["differences"] == [] and told["left_out"] == [], f"the import found {told}")
    count = same(there, whole_tree(hosts), [row["path"] for row in told["ephemerals"]])
    say(f"  imported {told['nodes']} nodes in {time.monotonic() - begin:.1f} s; kazoo sees the same {count} on both sides")
    check_made(hosts, made, "imported")
    kafka.enter(hosts)
    return check_kafka(kafka, "on Atoll")


def through_the_store(drill, cluster, kafka, store, curator, made):
    """The log moves while all applications work."""
    hosts = cluster.zookeeper()
    moved = lambda: moves(drill, cluster, store)
    mover = threading.Thread(target=lambda: zookeeper_curator.check(curator, hosts, "Curator while the log moves"))
    mover.start()
    try:
        made.update(written(hosts, drill.args.seconds, 1, moved))
    finally:
        mover.join()
    check_made(hosts, made, "after the moves")
    return check_kafka(kafka, "after the moves")


def kill_all(cluster):
    """Kills all nodes, and what would start them again."""
    cluster.process.kill()
    cluster.process.wait()
    cluster.signal(cluster.ids())


def elsewhere(drill, cluster, kafka, store, curator, made, until):
    """A node that is made from the backup alone takes the place of the nodes."""
    kafka.leave()
    whole(cluster)
    before = whole_tree(cluster.zookeeper())
    whole(cluster)
    config = config_of(cluster.nodes()[0], drill.folder, "restored")
    kill_all(cluster)
    done = command(drill, store, "latest", config)
    need(done.returncode == 0, f"the restore ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    node = serve(drill, config)
    until.callback(end, node.process)
    after = whole_tree(node.zookeeper)
    need({path: row[0] for path, row in after.items()} == {path: row[0] for path, row in before.items()}, "the restored tree has other nodes or data")
    check_made(node.zookeeper, made, "restored")
    kafka.enter(node.zookeeper)
    facts = check_kafka(kafka, "restored elsewhere")
    zookeeper_curator.check(curator, node.zookeeper, "Curator on the restored node")
    return facts


def body(drill):
    kafka_path = compiled(drill, jars(f"kafka-{zookeeper_kafka.VERSION}", *zookeeper_kafka.LIBRARIES), "KafkaCheck.java")
    curator = compiled(drill, jars(f"curator-{zookeeper_curator.VERSION}", *zookeeper_curator.LIBRARIES), "CuratorCheck.java")
    lines, _ = index_lines()
    file = drill.folder / "lines"
    file.write_bytes(b"\n".join(lines[:100_000]) + b"\n")
    facts = 0
    with contextlib.ExitStack() as until:
        store = object_stores.make(drill, until)
        ensemble = until.enter_context(Apache(kafka_path, drill.folder / "apache"))
        kafka = zookeeper_kafka.Kafka(drill, ensemble, kafka_path, file)
        until.callback(kafka.close)
        zookeeper_kafka.fill(kafka)
        zookeeper_curator.check(curator, ensemble.zookeeper(), "Curator on Apache ZooKeeper")
        made = written(ensemble.zookeeper(), drill.args.seconds, 0)
        facts += check_kafka(kafka, "on Apache ZooKeeper")
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3))
        cluster.set_zookeeper_super("root", "atoll")
        facts += to_atoll(drill, ensemble, cluster, kafka, made)
        backup(cluster, "start", "--to", store.url, "--every", "1s", "--snapshot-every", "10s", "--keep", "forever")
        store.proxy.faults.begin(**object_stores.FAULTS)
        facts += through_the_store(drill, cluster, kafka, store, curator, made)
        store.proxy.faults.heal()
        facts += elsewhere(drill, cluster, kafka, store, curator, made, until)
        produced = kafka.run("stop")
        need(produced["failed"] == 0 and produced["acknowledged"] == produced["sent"], f"the producer: {produced}")
        consumed = kafka.run("consume", zookeeper_kafka.TOPIC, "readers", produced["acknowledged"], "read_committed")
        need(consumed["records"] == produced["acknowledged"] and not any(consumed[k] for k in ("doubles", "wrong", "missing")), f"of {produced} came {consumed}")
    say(f"{len(made)} nodes of kazoo and {produced['acknowledged']} lines of Kafka went all the way; {facts} facts were compared")
    drill.result.update(znodes=len(made), lines=produced["acknowledged"], facts=facts, moves=2 * drill.args.moves)


if __name__ == "__main__":
    Drill(
        "journey",
        __doc__,
        store=("s3", "s3", "s3: a server that speaks S3"),
        seconds=(20.0, 3.0, "for which kazoo writes at each station"),
        moves=(5, 1, "how often the log goes into the object store and back"),
        stay=(3.0, 1.0, "seconds that the log stays at each place"),
    ).run(body)
