"""What the experiments with Scalog share: logs on Scalog and on CORFU over the same nodes, clients of `atoll-experiments scalog load`, and
changes of a log over a connection that stays open, so that no process starts meanwhile."""

import atexit
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "drills"))

from cluster import Cluster, Failed, end, find_binary, need, poll
from http2 import Closed, Http2, fields, number, text
from load import Acks

SERVERS_PER_SHARD = 2
# Many processes of a program without optimizations need long to come up on few processors.
START_WITHIN_S = 300
BACK_WITHIN_S = 60


def tell(line):
    """Prints a line."""
    print(json.dumps(line), flush=True)


def say(words):
    """Says how far an experiment is."""
    print(words, file=sys.stderr, flush=True)


def load_1m():
    """The load of the machine."""
    return round(os.getloadavg()[0], 2)


def longest_gap_ms(moments, begin, finish):
    """The longest time without a moment, of all times that touch [begin, finish), in milliseconds."""
    return round(1e3 * Acks([(int(at * 1e6), 1) for at in moments]).longest_gap(begin, finish), 1)


@contextlib.contextmanager
def cluster_of(args, folder, nodes):
    """A cluster of so many nodes."""
    cluster = Cluster(find_binary(args.bin), folder / "cluster", "--nodes", nodes)
    say(f"{nodes} nodes are started")
    try:
        cluster.start(START_WITHIN_S)
        yield cluster
    finally:
        cluster.stop()


def servers_of(shards):
    """The nodes of so many shards, or chains."""
    return list(range(1, shards * SERVERS_PER_SHARD + 1))


def place(**nodes):
    """The words that put roles on nodes."""
    return [word for role, ids in nodes.items() for word in ("--place", f"{role.replace('__', '/')}={','.join(map(str, ids))}")]


def scalog_words(shards, places, *more):
    """The words that make a log one in so many shards of two servers, with these roles on these nodes."""
    sizes = ("--option", f"shards={shards}", "--option", f"replicas={SERVERS_PER_SHARD}")
    return ["--loglet", "scalog", *place(storage=servers_of(shards), **places), *sizes, *more]


def create_scalog(cluster, log, words):
    """A log on Scalog."""
    cluster.atoll("log", "create", "--log", log, *words, timeout=120)


def create_corfu(cluster, log, chains, orders):
    """A log in so many chains of two units."""
    words = place(unit=servers_of(chains), sequencer=[orders])
    cluster.atoll("log", "create", "--log", log, "--loglet", "corfu", *words, "--option", f"chains={chains}", timeout=120)


class Clients:
    """Clients of a log, in a process of their own, which note when they were answered."""

    def __init__(self, args, folder, log, interface, connect, seconds, **options):
        self.timeline = folder / f"{log}-{time.monotonic_ns()}.timeline"
        self.seconds = seconds
        words = {"log": log, "interface": interface, "seconds": seconds, "timeline": self.timeline, **options}
        command = [str(args.program), "scalog", "load"]
        command += [str(word) for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
        env = dict(os.environ, ATOLL_CONNECT=connect)
        self.errors = self.timeline.with_suffix(".err")
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
        atexit.register(end, self.process)

    def words(self):
        """What they said on stderr."""
        return self.errors.read_text(errors="replace").strip()[-1000:]

    def begin(self, within=60):
        """Waits until they are at work."""
        def at_work():
            need(self.process.poll() is None or self.words(), "clients ended early")
            return "at work" in self.words()

        poll("clients are at work", within, at_work)
        return self

    def finish(self):
        """Waits for their end; their line."""
        try:
            out, _ = self.process.communicate(timeout=self.seconds + 120)
        except subprocess.TimeoutExpired:
            raise Failed(f"clients have not ended {self.seconds + 120} s after their start") from None
        finally:
            end(self.process)
        need(self.process.returncode == 0 and out, f"clients ended with {self.process.returncode}: {self.words()}")
        return json.loads(out.splitlines()[-1])

    def answers(self):
        """(seconds since 1970, client, shard) of each operation that was answered, in order."""
        rows = (line.split() for line in self.timeline.read_text().splitlines())
        return [(int(at) / 1e6, int(client), int(shard)) for at, client, shard in rows]


class Door:
    """A connection to the door of a node, for changes of a log."""

    def __init__(self, address, service, log):
        self.address, self.service, self.log = address, service, log
        self.connection = None

    def open(self):
        """Begins a new connection. A node closes one on which nobody answers its pings, and nobody reads one between two loads."""
        if self.connection:
            self.connection.close()
        self.connection = Http2(self.address, timeout=20)

    def call(self, verb, *rest):
        """The fields of the answer. Fails if there is none."""
        try:
            got = self.connection.call(f"/{self.service}/{verb}", text(1, self.log) + b"".join(rest))
        except (Closed, OSError) as error:
            raise Failed(f"{self.log}: {verb}: the connection to {self.address} is lost: {error}") from None
        need(got, f"{self.log}: {verb} was refused")
        return dict(fields(got[0]))


class ScalogDoor(Door):
    """Shards of a log."""

    def __init__(self, address, log):
        super().__init__(address, "atoll.scalog.v1.ScalogService", log)

    def look(self):
        """Asks for the shards, and changes nothing."""
        self.call("Shards")

    def add(self, nodes):
        """Adds a shard on these nodes; its number."""
        return self.call("AddShard", *(number(3, node) for node in nodes)).get(1, 0)

    def finalize(self, shard, after):
        """Ends a shard after so many further cuts."""
        self.call("FinalizeShard", number(2, shard), number(3, after))


class CorfuDoor(Door):
    """The projection of a log."""

    def __init__(self, address, log):
        super().__init__(address, "atoll.corfu.v1.CorfuService", log)

    def look(self):
        """Asks for the projection, and changes nothing."""
        self.call("Show")

    def replace(self, old, new):
        """Gives the place of a unit to another node."""
        self.call("Replace", text(2, number(1, old) + number(2, new)))


def wait_healthy(cluster, log):
    """Waits until all nodes are up and the log is healthy."""
    def whole():
        status = cluster.status()
        rows = [row for row in status["logs"] if row["name"] == log]
        return all(node["state"] == "up" for node in status["nodes"]) and rows and rows[0]["healthy"]

    poll(f"all nodes are up, and {log} is healthy", 2 * BACK_WITHIN_S, whole, every=0.2)


def options(parser):
    """The options that all experiments have."""
    parser.add_argument("--bin", help="the program of the nodes [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--folder", default="target", help="where the data goes, in a temporary folder [default: target]")
    parser.add_argument("--quick", action="store_true", help="a short form, which shows that it works")
    parser.add_argument("--payload", type=int, default=4096, help="bytes of a record [default: 4096, as in the paper]")
    parser.add_argument("--clients", type=int, default=48, help="clients, each with one operation under way [default: 48]")
