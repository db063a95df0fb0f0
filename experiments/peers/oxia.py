"""Oxia as a peer: three servers on loopback that keep three copies and sync their logs, a coordinator, and a load of puts.

ATOLL_OXIA names a folder with the source of github.com/oxia-db/oxia. What is built of it, which needs Go, stays in target/. A client of
Oxia gathers puts into batches, and how fast it is depends on how long it waits for them: one client that waits for 1 ms did more puts with
64 in flight than 16 clients, and than waits of 0 and 5 ms (`oxia/main.go` has the flags).
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rig

HERE = Path(__file__).resolve().parent
BUILT = rig.ROOT / "target" / "experiments-oxia"
MODULES = ("cmd", "common", "oxia", "oxiad")
COPIES, SHARDS = 3, 1
STARTS_WITHIN_S = 60
LEADER = re.compile(r"^ *leader:\n *name: .*\n *public: (\S+)$", re.MULTILINE)
# Below those of outgoing connections. Each server has a port for clients, one for the others, and one for metrics.
PORT = 24_480


def source():
    """The folder with the source, or None."""
    return os.environ.get("ATOLL_OXIA")


def build():
    """The server and the load, built from the source."""
    BUILT.mkdir(parents=True, exist_ok=True)
    folders = [str(Path(source(), module).resolve()) for module in MODULES] + [str(HERE / "oxia")]
    (BUILT / "go.work").write_text("go 1.26\n\nuse (\n" + "".join(f"\t{folder}\n" for folder in folders) + ")\n")
    shutil.copy(Path(source(), "go.work.sum"), BUILT / "go.work.sum")
    env = dict(os.environ, GOWORK=str(BUILT / "go.work"))
    for program, package in (("oxia", "github.com/oxia-db/oxia/cmd"), ("load", "atoll/experiments/peers/oxia")):
        subprocess.run(["go", "build", "-buildvcs=false", "-tags", "disable_trap", "-o", str(BUILT / program), package], env=env, cwd=BUILT,
                       check=True, stdout=sys.stderr)


def leaders(status):
    """The address of the server that leads each shard, as far as the coordinator has written it to its file, which is YAML."""
    with contextlib.suppress(OSError):
        return LEADER.findall(status.read_text())
    return []


class Cluster:
    """Servers that are up."""

    def __init__(self, data, processes, addresses):
        self.data, self.processes, self.addresses = data, processes, addresses
        self.pids = [process.pid for process in processes]

    def leader_pid(self):
        """The process of the server that leads the first shard."""
        return self.pids[self.addresses.index(leaders(self.data / "status")[0])]

    def bench(self, keys, depth, payload, seconds, warm, fill=False):
        """One run of the load: its row, or None if it failed."""
        words = ["-keys", str(keys), "-depth", str(depth), "-payload", str(payload), "-seconds", f"{seconds}s", "-warmup", f"{warm}s",
                 f"-fill={str(fill).lower()}"]
        out = subprocess.run([str(BUILT / "load"), "-address", self.addresses[-1], *words], capture_output=True, text=True)
        if out.returncode:
            print(f"-- oxia: the load ended with {out.returncode}: {out.stderr[-500:]}", file=sys.stderr)
            return None
        return dict(json.loads(out.stdout.splitlines()[-1]), system="oxia", shards=SHARDS, load_1m=round(os.getloadavg()[0], 2))


@contextlib.contextmanager
def cluster(folder):
    """A fresh cluster. It ends with the block."""
    data = Path(tempfile.mkdtemp(prefix="atoll-oxia-", dir=folder))
    processes = []
    address = lambda number, door: f"127.0.0.1:{PORT + 10 * number + door}"

    def start(name, *words):
        with open(data / f"{name}.log", "wb") as log:
            processes.append(subprocess.Popen([str(BUILT / "oxia"), *words], cwd=data, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    try:
        servers = range(1, COPIES + 1)
        for n in servers:
            start(f"server{n}", "server", "--public-addr", address(n, 0), "--internal-addr", address(n, 1), "--metrics-addr", address(n, 2),
                  "--wal-dir", f"wal{n}", "--data-dir", f"db{n}", "--wal-sync-data=true")
        named = "".join(f"  - public: {address(n, 0)}\n    internal: {address(n, 1)}\n" for n in servers)
        (data / "cluster.yaml").write_text(f"namespaces:\n  - name: default\n    initialShardCount: {SHARDS}\n"
                                           f"    replicationFactor: {COPIES}\nservers:\n{named}")
        start("coordinator", "coordinator", "--public-addr", address(0, 0), "--internal-addr", address(0, 1),
              "--metrics-addr", address(0, 2), "--metadata", "file", "--file-clusters-status-path", str(data / "status"), "--cconfig", str(data / "cluster.yaml"))
        until = time.monotonic() + STARTS_WITHIN_S
        while len(leaders(data / "status")) < SHARDS:
            if time.monotonic() > until or any(process.poll() is not None for process in processes):
                logs = "\n".join(file.read_text()[-500:] for file in sorted(data.glob("*.log")))
                sys.exit(f"Oxia did not start: {logs}")
            time.sleep(0.2)
        yield Cluster(data, processes[:COPIES], [address(n, 0) for n in servers])
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(data, ignore_errors=True)
