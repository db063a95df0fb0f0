#!/usr/bin/env python3
"""Moves of logs, chains and backups to places that cannot be used: each is refused with an error that names the cause, and nothing changes.

A node has a log with a sealed segment. The drill tries to move its active segment, its sealed one, its chain, and the backup of the database

- to servers of another kind: to ones that say nothing, close the connection, or speak NATS, HTTP, HTTP/2 (as etcd does) or noise, in the place
  of a ZooKeeper ensemble, a log service and etcd
- to a store that speaks S3 and says that the credentials have expired, and to one for which the environment has none
- to a directory on a full disk, and on one that is read-only

After each, the log has the same chain, is appended to, and is read as it was appended. Once the disk has room again, the same move is done. A
restore from a store without valid credentials, and one to a full disk, are refused and leave nothing; the backup is as it was. Needs root, ext4
and loop mounts.
"""

import contextlib
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import Cluster, Drill, need, poll, say, table
from faulty_disks import Disks
from recover import config_of, print_of
from strangers import Stranger

LOG = "stays"
SECRET = "a-secret-that-must-not-show"
S3_URL = "s3://bucket/reef"
SPEAK = ("silent", "closes", "nats", "http", "http2", "noise")
# What a client of each kind takes its server for; the option with the address; what the refusal must say.
KINDS = {"zookeeper-loglet": ("connect", "no server of ZooKeeper answers"), "log-service": ("servers", "log service")}
REGISTERS = {"zookeeper": "zookeeper://{}/drill", "etcd": "etcd://{}/drill"}
# A command that is refused has answered by then.
ANSWERS_S = 40


def words_of(done):
    """What a command said."""
    return (done.stdout + done.stderr).decode(errors="replace")


class Places:
    """The log that stays where it is, and what was said to each command."""

    def __init__(self, cluster):
        self.cluster, self.lines, self.rows = cluster, [], []
        cluster.create_log(LOG)
        self.append()
        cluster.atoll("chain", "extend", "--log", LOG, "--loglet", "native")
        self.append()
        self.version = self.chain()["version"]

    def chain(self):
        """Its chain."""
        return self.cluster.chain(LOG)

    def append(self):
        """Appends a line."""
        line = f"line {len(self.lines)} {'x' * 40}"
        self.cluster.atoll("log", "append", "--log", LOG, line)
        self.lines.append(line)

    def untouched(self, what):
        """Nothing of the log has changed, and it goes on."""
        need(self.chain()["version"] == self.version, f"{what} has changed the chain")
        self.append()
        read = self.cluster.atoll("log", "read", "--raw", "--log", LOG).stdout.decode().splitlines()
        need(read == self.lines, f"after {what}, the log has {len(read)} of {len(self.lines)} lines")

    def refused(self, what, words, *args, env=None):
        """A command that must be refused with these words."""
        began = time.monotonic()
        done = self.cluster.atoll(*args, "--json", check=False, timeout=ANSWERS_S) if env is None else subprocess.run(
            [self.cluster.binary, *map(str, args), "--json"], env=env, capture_output=True, timeout=ANSWERS_S, stdin=subprocess.DEVNULL
        )
        said = words_of(done)
        need(done.returncode in (1, 2) and words in said, f"{what}: {words!r} was due, and it ended with {done.returncode}: {said}")
        need(SECRET not in said and "panicked" not in said, f"{what} was answered with {said!r}")
        self.rows.append((what, f"{time.monotonic() - began:.1f}"))

    def moves(self, what, words, *options):
        """Both moves of segments to this place."""
        spec = [word for option in options for word in option]
        self.refused(f"extend to {what}", words, "chain", "extend", "--log", LOG, *spec)
        self.refused(f"modify to {what}", words, "chain", "modify", "--log", LOG, "--segment", 0, *spec)


def strangers(places, speakers):
    """Servers of another kind."""
    cases = []
    for kind, (option, words) in KINDS.items():
        for speaks, server in speakers.items():
            if kind == "log-service" and speaks == "nats":
                # It greets as one does, and does not answer what it is asked.
                words = "log service"
            spec = ("chain", "extend", "--log", LOG, "--loglet", kind, "--option", f"{option}={server.address}")
            cases.append((f"{kind} at {speaks}", words, spec))
    for scheme in REGISTERS:
        for speaks in speakers:
            cases.append((f"{scheme} registers at {speaks}", f"{scheme}-{speaks}", ("chain", "move", "--log", LOG, "--to", f"{scheme}-{speaks}")))
    # Each waits for its server, so they wait together.
    with ThreadPoolExecutor(len(cases)) as all_:
        for done in [all_.submit(places.refused, what, words, *spec) for what, words, spec in cases]:
            done.result()
    need(all(server.clients for server in speakers.values()), "a server was not asked by anybody")
    places.untouched("a move to a server of another kind")


def credentials(places, drill, backup, nodes):
    """Credentials that have expired, and none."""
    to = (("--loglet", "object"), ("--option", f"url={S3_URL}"))
    places.moves("a store with expired credentials", "credentials", *to)
    places.refused("backup to a store with expired credentials", "credentials", "backup", "start", "--to", S3_URL)
    places.untouched("a move without valid credentials")
    config = config_of(nodes[0], drill.folder, "from-s3")
    restore = ("restore", "--from", S3_URL, "--backup-of", "dev", "--to", "latest", "--config", config)
    places.refused("restore with expired credentials", "credentials", *restore, env=dict(os.environ))
    without = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # Where nobody gives out credentials for the machine.
    without.update(AWS_METADATA_ENDPOINT="http://127.0.0.1:1", AWS_REGION="us-east-1")
    places.refused("restore without credentials", "credentials", *restore, env=without)
    need(not (drill.folder / "from-s3").exists(), "a refused restore has left something")


def full(places, drill, disk, backup, nodes):
    """A full disk."""
    place = disk.place / "store"
    to = (("--loglet", "object"), ("--option", f"url=file://{place}"))
    disk.fill()
    places.moves("a full disk", "is full", *to)
    places.refused("backup to a full disk", "no room", "backup", "start", "--to", f"file://{disk.place / 'backup'}")
    places.untouched("a move to a full disk")
    before = print_of(backup)
    config = config_of(nodes[0], drill.folder, "full")
    data = disk.place / "new"
    restore = ("restore", "--from", f"file://{backup}", "--backup-of", "dev", "--to", "latest", "--config", config, "--data", data)
    places.refused("restore to a full disk", "No space left", *restore, env=dict(os.environ))
    need(not data.exists(), "a refused restore has left something")
    need(print_of(backup) == before, "a refused restore has changed the backup")
    disk.empty()
    disk.read_only(True)
    places.moves("a disk that is read-only", "forbids it", *to)
    places.refused("backup to a disk that is read-only", "is read-only", "backup", "start", "--to", f"file://{disk.place / 'backup'}")
    places.untouched("a move to a disk that is read-only")
    disk.read_only(False)
    spec = [word for option in to for word in option]
    places.cluster.atoll("chain", "modify", "--log", LOG, "--segment", 0, *spec)
    chain = places.chain()
    need(chain["segments"][0]["kind"] == "object", f"with room, the segment did not move: {chain}")
    places.version = chain["version"]
    places.untouched("a move to a disk that has room again")


def backed_up(cluster, folder):
    """A backup of the database, which then ends."""
    cluster.atoll("backup", "start", "--to", f"file://{folder}", "--every", "200ms")
    there = lambda: cluster.json("backup", "list")["snapshots"]
    poll("the backup has a snapshot", 60, there, every=0.2)
    cluster.atoll("backup", "stop")
    poll("no node ships any more", 60, lambda: not cluster.json("backup", "status")["ships"], every=0.3)


def body(drill):
    with contextlib.ExitStack() as until:
        disks = until.enter_context(Disks(drill.folder / "disks", [1], lambda _: drill.folder / "full-disk"))
        expired = until.enter_context(Stranger("expired"))
        os.environ.update(
            AWS_ENDPOINT=f"http://{expired.address}", AWS_ALLOW_HTTP="true", AWS_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="drill", AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN="old",
        )  # fmt: skip
        speakers = {speaks: until.enter_context(Stranger(speaks)) for speaks in SPEAK}
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 1))
        urls = {f"{scheme}-{speaks}": url.format(server.address) for scheme, url in REGISTERS.items() for speaks, server in speakers.items()}
        cluster.configure("\n".join(f'[[registers]]\nname = "{name}"\nurl = "{url}"\n' for name, url in urls.items()))
        places, nodes, backup = Places(cluster), cluster.nodes(), drill.folder / "backup"
        backed_up(cluster, backup)
        strangers(places, speakers)
        credentials(places, drill, backup, nodes)
        full(places, drill, disks[1], backup, nodes)
        table(places.rows, ("refused", "in s"))
        drill.result["refused"] = len(places.rows)
        say(f"{len(places.rows)} commands were refused by name; the log is as it was")


if __name__ == "__main__":
    Drill("bad-places", __doc__).run(body)
