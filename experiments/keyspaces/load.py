"""What the figures of keyspaces share: a keyspace of a fresh cluster under `atoll bench kv`, and a peer of the rig that is left running."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))

import oxia  # noqa: E402 (found in the folder that is named above)
import rig as peers  # noqa: E402 (the same)


def flags(**values):
    """The command line of a dict: {"depth": 64} is --depth 64, and {"fill": True} is --fill."""
    words = []
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words


class Cluster:
    """A cluster of Atoll that is up."""

    def __init__(self, program, nodes, data):
        self.program, self.nodes, self.data = program, nodes, data
        self.pids = [node["pid"] for node in nodes]

    def run(self, *words):
        """Runs a verb; what it prints."""
        connect = ",".join(node["grpc"] for node in self.nodes)
        done = subprocess.run([self.program, *map(str, words), "--json", "--connect", connect], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"`atoll {' '.join(map(str, words))}` ended with {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])

    def create(self, name, **settings):
        """Creates a keyspace; its description."""
        return self.run("kv", "create", name, *flags(**settings))

    def metrics(self):
        """The metrics of each node, by its id: numbers by names with labels."""
        found = {}
        for node in self.nodes:
            with urllib.request.urlopen(f"http://{node['metrics']}/metrics", timeout=5) as reply:
                lines = [line.rpartition(" ") for line in reply.read().decode().splitlines() if not line.startswith("#")]
            found[node["id"]] = {name: float(value) for name, _, value in lines}
        return found

    def led(self):
        """How many shards of keyspaces each node leads, by its id."""
        return {node: int(of["atoll_bizur_led_shards"]) for node, of in self.metrics().items()}

    def bench(self, **settings):
        """Loads a keyspace or a table; the result, with the processor time of the nodes."""
        before, flushed = peers.cpu_s(self.pids), peers.flushes()
        row = self.run("bench", "kv", *flags(**settings))
        used = peers.cpu_s(self.pids) - before
        # The keys that were written first, and the warm-up, count as operations here.
        whole = row["seconds"] + row["warmup_seconds"] + row.get("fill_seconds", 0)
        row["server_cores"] = round(used / whole, 2)
        row["load_1m"] = round(os.getloadavg()[0], 2)
        if flushed is not None:
            row["flushes_s"] = round((peers.flushes() - flushed) / whole)
        return row


@contextlib.contextmanager
def cluster(args, *words, nodes=3):
    """A fresh cluster of Atoll. It ends with the block."""
    with peers.cluster(args.bin, args.folder, *words, nodes=nodes) as (rows, data):
        yield Cluster(args.bin, rows, data)


class OfRig:
    """A peer of the rig that is up."""

    def __init__(self, rig, name, addresses):
        self.rig, self.name, self.addresses = rig, name, addresses

    def bench(self, keys, depth, payload, seconds, warm, fill=False):
        """One run of the rig's generator: its row, or None if it failed."""
        words = ("-w", "w1", "-keys", str(keys), "-depth", str(depth), "-value", str(payload), "-secs", f"{seconds}s", "-warm", f"{warm}s",
                 "-preload", "auto" if fill else "no")
        return next(iter(peers.load(self.rig, self.name, self.name, self.addresses, *words)), None)


def others(args):
    """The peers that can be measured."""
    return [*(("etcd", "zookeeper") if args.rig else ()), *(("oxia",) if oxia.source() else ())]


@contextlib.contextmanager
def peer(args, name):
    """A peer that is up. It ends with the block."""
    if name == "oxia":
        oxia.build()
        with oxia.cluster(args.folder) as cluster:
            yield cluster
        return
    up = subprocess.Popen([f"{args.rig}/run.sh", name, "up"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    try:
        found = (line.partition("addresses:")[2].split() for line in up.stdout)
        told = next((words for words in found if words), None)
        if told is None:
            sys.exit(f"{name} did not start")
        yield OfRig(args.rig, name, told[0])
    finally:
        up.communicate("\n", timeout=60)


def tell(row, number):
    """Prints a row of a figure."""
    print(json.dumps(dict(row, round=number), sort_keys=True), flush=True)


def arguments(parser):
    """The arguments that all figures of keyspaces have."""
    parser.add_argument("--bin", default=peers.program(), help="the program [default: ATOLL_BIN, or target/dist/atoll]")
    parser.add_argument("--rounds", type=int, default=1, help="how often each point is measured [default: 1]")
    parser.add_argument("--seconds", type=int, default=4, help="of each measurement [default: 4]")
    parser.add_argument("--warm", type=int, default=1, help="seconds of load before each measurement [default: 1]")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the data goes: a disk, not memory")
    parser.add_argument("--quick", action="store_true", help="only try it: a second for each measurement, of the first and the last point")


def parsed(parser):
    """The arguments of the command line."""
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.warm, args.rounds = 1, 1, 1
    return args


def some(args, points, few=None):
    """The points of a figure that are measured: all, or `few` of them to try it."""
    return (few or (points[0], points[-1])) if args.quick else points
