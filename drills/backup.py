#!/usr/bin/env python3
"""The database is backed up into an object store while it works, and restored from there alone, as it was at random seconds.

Three nodes take writes of ZooKeeper clients, and are killed with `kill -9`, one after the other. `atoll backup start` ships entries every
second and a snapshot every few seconds. The store is a real server that speaks S3, behind a proxy that loses requests and answers, refuses
some as too many, delays others, and for `--outage-s` seconds lets none through: no write fails for it, the status shows how far behind the
backup is, and the backlog follows afterwards.

Then the database is restored to random seconds, and to positions at which the replicas have told their hashes. Each time the command has
compared the hash of the state with those in the backup; at a told position, its hash is that of the replicas. Of the clients' nodes, every
one that was acknowledged before the second is there, and none that was begun after it. A restored node serves a client that has seen the
last zxid of the old cluster, with higher ones. What must not be done is refused: a moment that is not in the backup, a target that is not
empty, a cluster that has no backup there, the name of the old cluster, an object that is damaged, and one that is missing. The backup is only
read. A restore with a known bug in it, which ends one entry early, has another hash. Old snapshots go when they may.
"""

import contextlib
import json
import os
import pathlib
import struct
import subprocess
import threading
import time

import object_stores
from cluster import START_WITHIN, Cluster, Drill, Failed, end, need, poll, say, table
from jute import CREATE, EXISTS, Wire, create, watched
from recover import NEW_NAME, Serve, config_of, made, print_of

NODE_EXISTS = -110
OLD_NAME = "dev"
EVERY, SNAPSHOT_EVERY = "1s", "4s"


class Load(threading.Thread):
    """Creates ZooKeeper nodes, one after the other, at whichever node answers; when each was begun and acknowledged."""

    def __init__(self, cluster, name, pause_s):
        super().__init__(daemon=True)
        self.cluster, self.name_of, self.pause_s = cluster, name, pause_s
        self.acks, self.zxid, self.seen = [], 0, None
        self.over = threading.Event()
        self.trouble = None

    @property
    def made(self):
        return len(self.acks)

    def path(self, number):
        return f"/{self.name_of}-{number:06}"

    def run(self):
        turn, began = 0, None
        while not self.over.is_set():
            turn += 1
            try:
                nodes = [node for node in self.cluster.nodes() if node.pid]
                wire = Wire(nodes[turn % len(nodes)].zookeeper, timeout_ms=20_000, seen=self.zxid, patience_s=10)
                while not self.over.is_set():
                    # An attempt without an answer may have happened, at its time.
                    began = began or time.time()
                    zxid, error, _ = wire.call(CREATE, create(self.path(self.made), b"x" * 100))
                    if error not in (0, NODE_EXISTS):
                        self.trouble = f"create {self.path(self.made)}: {error}"
                        return
                    self.zxid = max(self.zxid, zxid)
                    self.acks.append((began, time.time()))
                    began = None
                    time.sleep(self.pause_s)
            except (OSError, struct.error, IndexError, AssertionError):
                time.sleep(0.05)

    def finish(self):
        """Ends it."""
        self.over.set()
        self.join(60)
        need(not self.trouble, f"the load could not continue: {self.trouble}")


class Hashes(threading.Thread):
    """Collects the hashes that the replicas tell."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.over, self.told = cluster, threading.Event(), {}
        self.differ = None

    def run(self):
        while not self.over.wait(1):
            for node in self.cluster.nodes():
                with contextlib.suppress(Failed, ValueError):
                    done = self.cluster.atoll("database", "status", "--json", connect=node.grpc, check=False, timeout=20)
                    for row in json.loads(done.stdout or "{}").get("hashes", []):
                        if self.told.setdefault(row["below"], row["hash"]) != row["hash"]:
                            self.differ = row["below"]

    def finish(self):
        """Ends it; the hashes by their positions."""
        self.over.set()
        self.join(30)
        need(self.differ is None, f"replicas have different hashes below {self.differ}")
        return self.told


def backup(cluster, *args, **kwargs):
    """A verb of `atoll backup`, as JSON. The status of a backup that is late is a failed check, and has its answer, too."""
    done = cluster.atoll("backup", *args, "--json", check=False, **kwargs)
    need(done.stdout, f"`atoll backup {args}` ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout.splitlines()[0])


def status(cluster):
    """The status, once a node gives it. A node that was started again while the store is away does not know how far the backup is: then
    that of another one."""
    def ask():
        known = []
        for node in cluster.nodes():
            with contextlib.suppress(Failed):
                known.append(backup(cluster, "status", connect=node.grpc))
            if known and known[-1]["behind_ms"] is not None:
                return known[-1]
        return known[-1] if known and not known[-1]["trouble"] else None

    return poll("the backup has a status", 60, ask, every=0.1)


def follows(cluster, node):
    """Whether a node knows how far the backup is."""
    return backup(cluster, "status", connect=node.grpc)["shipped_below"] is not None


def whole(cluster):
    """Waits until everything is shipped."""
    def ask():
        now = status(cluster)
        return now if now["behind_ms"] == 0 and now["shipped_below"] == now["known_tail"] else None

    return poll("everything is shipped", 120, ask, every=0.3)


def outage(drill, cluster, store, loads):
    """The store is away: nothing stops, the status shows it, the backlog follows."""
    if not store.proxy:
        return
    before, began = sum(load.made for load in loads), time.monotonic()
    store.proxy.faults.down = True
    most, last = 0, None
    while time.monotonic() - began < drill.args.outage_s:
        last = status(cluster)
        most = max(most, last["behind_ms"] or 0)
        time.sleep(0.5)
    more = sum(load.made for load in loads) - before
    store.proxy.faults.down = False
    need(more > 10, f"{more} writes were acknowledged while the store was away")
    need(most >= 500 * drill.args.outage_s, f"the status has shown {most} ms of an outage of {drill.args.outage_s} s; the last one was {last}")
    poll("the backlog follows", 120, lambda: (status(cluster)["behind_ms"] or 0) < 5000, every=0.3)
    say(f"  the store was away for {drill.args.outage_s} s: {more} writes meanwhile, up to {most / 1000:.1f} s behind, and the backlog followed")
    drill.result["most_behind_s"] = round(most / 1000, 1)


def disturb(drill, cluster):
    """Kills nodes, one after the other."""
    for _ in range(drill.args.kills):
        time.sleep(drill.random.uniform(0.5, 2.0))
        pids, _ = cluster.signal([drill.random.choice(cluster.ids())])
        cluster.wait_back(pids)


def command(drill, store, moment, config, *args, cluster=OLD_NAME, mutant=None):
    """Runs `atoll restore`."""
    words = ["restore", "--from", store.url, "--backup-of", cluster, "--to", moment, "--config", config, *args]
    env = dict(os.environ, **({"ATOLL_MUTANT": mutant} if mutant else {}))
    return subprocess.run([drill.binary, *words], capture_output=True, timeout=600, stdin=subprocess.DEVNULL, env=env)


def refused(drill, store, words, moment, config, **kwargs):
    """The command must be refused, and leave nothing."""
    done = command(drill, store, moment, config, **kwargs)
    error = done.stderr.decode(errors="replace")
    need(done.returncode == 1 and words in error and "panicked" not in error, f"{words!r} was due: {done.returncode}: {error}")


def restore(drill, store, moment, config, **kwargs):
    """Restores, and gives what the command says."""
    done = command(drill, store, moment, config, "--json", **kwargs)
    need(done.returncode == 0, f"`atoll restore --to {moment}` ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout)


def utc(at):
    """A time for the command."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z"


def serve(drill, config):
    """Starts a restored node, with nobody else."""
    first = Serve(drill.binary, config)
    first.spawn()
    poll("the restored node answers", START_WITHIN, lambda: answers(first), every=0.2)
    return first


def answers(node):
    """Whether a node serves clients of ZooKeeper: at first, it still opens its state."""
    with contextlib.suppress(OSError, struct.error, AssertionError):
        wire = Wire(node.zookeeper)
        error = wire.call(EXISTS, watched("/"))[1]
        wire.close()
        return error == 0
    return False


def check_tree(loads, node, at):
    """Every node that was acknowledged before the second is there, none that was begun after it; how many are there."""
    count = 0
    for load in loads:
        creator = NumberOf(load)
        there = made(creator, node.zookeeper)
        need(there == set(range(len(there))), "the client's nodes are no prefix of what it has created")
        if at is not None:
            least = sum(acked <= at for _, acked in load.acks)
            most = sum(began <= at for began, _ in load.acks)
            need(least <= len(there) <= most + 1, f"{len(there)} nodes are there; {least} to {most} were written up to {at}")
        count += len(there)
    return count


class NumberOf:
    """What `made` needs of a load."""

    def __init__(self, load):
        self.made, self.path = load.made, load.path


def check_zxid(loads, node):
    """A client that has seen the old cluster's last zxid is served, with higher ones."""
    seen = max(load.zxid for load in loads)
    wire = Wire(node.zookeeper, seen=seen)
    zxid, error, _ = wire.call(CREATE, create("/after"))
    need(error == 0 and zxid > seen and zxid >> 32 > seen >> 32, f"zxid {zxid:x} after {seen:x}, error {error}")
    wire.close()


def times(drill, cluster, store, loads, nodes):
    """Restores to random seconds; what each took."""
    listed = backup(cluster, "list")
    # The first snapshot may have no entry, and so no time.
    begun = min(began for load in loads for began, _ in load.acks)
    first, last = max(begun, listed["snapshots"][0]["time_ms"] / 1000), listed["shipped_time_ms"] / 1000
    need(last > first, f"the backup lasts from {first} to {last}")
    rows = []
    for number in range(drill.args.restores):
        at = drill.random.uniform(first, last)
        config, began = config_of(nodes[0], drill.folder, f"second-{number}"), time.monotonic()
        said = restore(drill, store, utc(at), config)
        took = time.monotonic() - began
        need(said["proven"], f"the state was not compared to its end: {said}")
        need(said["time_ms"] <= int(at * 1000), f"the state is of {said['time_ms']}, after {at}")
        rows.append((config, at, said, took))
    return rows


def positions(drill, store, nodes, told, listed):
    """Restores to positions at which the replicas have told their hashes."""
    first, last = listed["snapshots"][0]["below"], listed["shipped_below"]
    inside = sorted(below for below in told if first <= below <= last)
    need(inside, f"no replica has told a hash between {first} and {last}")
    chosen = drill.random.sample(inside, min(len(inside), drill.args.restores))
    for number, below in enumerate(chosen):
        said = restore(drill, store, str(below), config_of(nodes[0], drill.folder, f"position-{number}"))
        need(said["below"] == below and said["proven"], f"the state at {below}: {said}")
        need(said["hash"] == told[below], f"the state at {below} has hash {said['hash']}, and the replicas had {told[below]}")
    return chosen


def mutant(drill, store, nodes, below, told):
    """A restore that ends one entry early is noticed by its hash."""
    said = restore(drill, store, str(below), config_of(nodes[0], drill.folder, "early"), mutant="RestoreEndsEarly")
    need(said["below"] != below and said["hash"] != told, f"nothing shows that the restore ended early: {said}")


def refusals(drill, cluster, store, nodes, listed):
    """What must not be done. Nothing is left of it, and the backup is as it was."""
    before = print_of(store.objects)
    config = config_of(nodes[0], drill.folder, "refused")
    refused(drill, store, "the backup ends below", str(listed["shipped_below"] + 1), config)
    refused(drill, store, "the backup ends below", utc(time.time() + 3600), config)
    if listed["snapshots"][0]["below"] > 0:
        refused(drill, store, "the backup begins", "0", config)
    refused(drill, store, "there is no backup", "latest", config, cluster="another")
    same = drill.folder / "same.toml"
    same.write_text(config.read_text().replace(NEW_NAME, OLD_NAME))
    refused(drill, store, f"another name than `{OLD_NAME}`", "latest", same)
    data = drill.folder / "refused"
    data.mkdir()
    (data / "something").write_text("of somebody")
    refused(drill, store, "is not empty", "latest", config)
    (data / "something").unlink()
    data.rmdir()
    # What a restore to right behind the first snapshot reads: the first run, and any snapshot of that state, by whichever attempt.
    early = listed["snapshots"][0]["below"] + 1
    usable = [snapshot["number"] for snapshot in listed["snapshots"] if snapshot["below"] <= early]
    for patterns in ([f"entries/{0:016x}"], [f"snapshots/{number:016x}/*-{0:08x}" for number in usable]):
        kept = {path: path.read_bytes() for pattern in patterns for path in store.objects.rglob(pattern)}
        last = patterns[0][-8:]
        for wrong in (lambda old: old[:-1] + bytes([old[-1] ^ 1]), lambda old: old[: len(old) // 2]):
            for path, old in kept.items():
                path.write_bytes(wrong(old))
            refused(drill, store, f"{last} is damaged", str(early), config)
        for path in kept:
            path.rename(path.with_name(f"aside-{path.name}"))
        refused(drill, store, f"{last} is missing", str(early), config)
        for path, old in kept.items():
            path.with_name(f"aside-{path.name}").rename(path)
            path.write_bytes(old)
    need(print_of(store.objects) == before, "the backup has changed")
    need(not data.exists() and not pathlib.Path(f"{data}.rescue").exists(), "a refused restore has left something")
    bad = cluster.atoll("backup", "start", "--to", "s3://key:secret@bucket/x", "--json", check=False)
    need(bad.returncode == 2 and b"secret" not in bad.stderr, f"a URL with a secret was answered with {bad.stderr!r}")


def retention(cluster, store):
    """Snapshots that are too old go, with what belongs to them."""
    before, runs = backup(cluster, "list")["snapshots"], len(list(store.objects.rglob("entries/*")))
    oldest = before[0]["number"]
    backup(cluster, "start", "--keep", "1s")
    poll("old snapshots go", 120, lambda: backup(cluster, "list")["snapshots"][0]["number"] > oldest, every=0.5)
    kept = backup(cluster, "list")["snapshots"]
    say(f"  retention: snapshots {oldest} to {before[-1]['number']} became {kept[0]['number']} to {kept[-1]['number']}, and {runs} runs {len(list(store.objects.rglob('entries/*')))}")
    need(not list(store.objects.rglob(f"snapshots/{oldest:016x}/head")), "the head of a snapshot that is given up is left")


def body(drill):
    with contextlib.ExitStack() as until:
        store = object_stores.make(drill, until)
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3))
        nodes = cluster.nodes()
        # Each node of a client is read again from each restored one: the short form does not write more than it can read.
        pause_s = 0.004 if drill.args.quick else 0
        loads = [Load(cluster, f"load-{number}", pause_s) for number in range(drill.args.clients)]
        hashes = Hashes(cluster)
        for thread in (*loads, hashes):
            thread.start()
        time.sleep(1)
        backup(cluster, "start", "--to", store.url, "--every", EVERY, "--snapshot-every", SNAPSHOT_EVERY, "--keep", "forever")
        poll("every node follows the backup", 60, lambda: all(follows(cluster, node) for node in nodes), every=0.2)
        faults = until.enter_context(contextlib.ExitStack())
        if store.proxy:
            store.proxy.faults.begin(**object_stores.FAULTS)
            faults.callback(store.proxy.faults.heal)
        disturb(drill, cluster)
        outage(drill, cluster, store, loads)
        disturb(drill, cluster)
        time.sleep(drill.args.seconds)
        for load in loads:
            load.finish()
        told = hashes.finish()
        whole(cluster)
        faults.close()
        backup(cluster, "stop")
        poll("no node ships any more", 60, lambda: not any(backup(cluster, "status", connect=node.grpc)["ships"] for node in nodes), every=0.5)
        listed = backup(cluster, "list")
        alone = json.loads(cluster.atoll("backup", "list", "--from", store.url, "--backup-of", OLD_NAME, "--json").stdout)
        need(alone == listed, f"the list without a cluster is {alone}, and with it {listed}")
        say(f"  {sum(load.made for load in loads)} writes; {len(listed['snapshots'])} snapshots, entries below {listed['shipped_below']}")
        rows = times(drill, cluster, store, loads, nodes)
        chosen = positions(drill, store, nodes, told, listed)
        mutant(drill, store, nodes, chosen[0], told[chosen[0]])
        refusals(drill, cluster, store, nodes, listed)
        retention(cluster, store)
        cluster.stop()
        checked = []
        for config, at, said, took in rows[: drill.args.served]:
            node = serve(drill, config)
            try:
                count = check_tree(loads, node, at)
                check_zxid(loads, node)
            finally:
                end(node.process)
            checked.append((utc(at), said["below"], count, f"{took:.1f}"))
        table(checked, ("second", "entries below", "client's nodes", "restored in s"))
        say(f"  {len(rows)} seconds and {len(chosen)} positions were restored; at each position the hash is that of the replicas")
        drill.result.update(writes=sum(load.made for load in loads), snapshots=len(listed["snapshots"]), restored=len(rows) + len(chosen))


if __name__ == "__main__":
    Drill(
        "backup",
        __doc__,
        store=("s3", "s3", "file: a directory; s3: a server that speaks S3"),
        clients=(4, 2, "ZooKeeper clients that write"),
        kills=(10, 1, "nodes that are killed, before and after the outage"),
        seconds=(20.0, 3.0, "load after that"),
        outage_s=(600, 6, "how long the store cannot be reached, with s3"),
        restores=(10, 2, "restores to seconds, and to positions"),
        served=(10, 1, "of those to seconds, that are started and compared"),
    ).run(body)
