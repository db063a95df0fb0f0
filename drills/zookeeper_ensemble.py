"""Three Apache ZooKeeper servers with the interface that a drill expects of a `Cluster`: the control for what a drill claims about
Atoll."""

import atexit
import contextlib
import os
import pathlib
import signal
import subprocess
import time

from cluster import Failed, end, poll
from ports import free_ports
from zookeeper_disturb import word
from zookeeper_maven import command

START_WITHIN = 60


class Server:
    """One server."""

    def __init__(self, number, folder, port):
        self.id, self.folder, self.zookeeper = number, folder, f"127.0.0.1:{port}"
        self.log = folder / "server.log"
        self.process = None

    @property
    def pid(self):
        """Its process, or None."""
        return self.process.pid if self.process and self.process.poll() is None else None


class Apache:
    """An ensemble. Use as a context."""

    def __init__(self, path, folder, flags=()):
        self.path, self.folder, self.flags = path, pathlib.Path(folder), flags
        clients, peers = free_ports(3), free_ports(6)
        self.servers = [Server(i + 1, self.folder / str(i + 1), clients[i]) for i in range(3)]
        self.members = [f"server.{i + 1}=127.0.0.1:{peers[2 * i]}:{peers[2 * i + 1]}" for i in range(3)]

    def __enter__(self):
        for server in self.servers:
            server.folder.mkdir(parents=True)
            (server.folder / "myid").write_text(str(server.id))
            host, port = server.zookeeper.split(":")
            lines = [
                "tickTime=2000", "initLimit=10", "syncLimit=5", f"dataDir={server.folder}", f"clientPort={port}",
                f"clientPortAddress={host}", "maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=*",
                *self.members,
            ]
            (server.folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
            self._run(server)
        poll("the ensemble answers", START_WITHIN, lambda: all(self._mode(s) for s in self.servers), every=0.2)
        return self

    def __exit__(self, *_):
        for server in self.servers:
            end(server.process)

    def _run(self, server):
        # Containers and nodes with a time to live are looked at as often as Atoll does.
        flags = ["-Dzookeeper.extendedTypesEnabled=true", "-Dznode.container.checkIntervalMs=10000", *self.flags]
        with open(server.log, "ab") as out:
            line = command(self.path, "org.apache.zookeeper.server.quorum.QuorumPeerMain", server.folder / "zoo.cfg", flags=flags)
            server.process = subprocess.Popen(line, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=server.folder)
        atexit.register(end, server.process)

    @staticmethod
    def _mode(server):
        with contextlib.suppress(OSError):
            for line in word(server.zookeeper, "srvr").splitlines():
                if line.startswith("Mode: "):
                    return line[6:]
        return None

    def nodes(self):
        """The servers."""
        return self.servers

    def node(self, number):
        """One server."""
        return self.servers[number - 1]

    def ids(self):
        """Their numbers."""
        return [server.id for server in self.servers]

    def zookeeper(self):
        """Their addresses."""
        return ",".join(server.zookeeper for server in self.servers)

    def sequencer(self, _log):
        """The leader, once there is one."""
        return poll("the ensemble has a leader", START_WITHIN, lambda: next((s.id for s in self.servers if self._mode(s) == "leader"), None), every=0.1)

    def signal(self, numbers, which=signal.SIGKILL):
        """Sends a signal to servers; gives back the pids of those that ran, and the time."""
        pids, at = {number: self.node(number).pid for number in numbers if self.node(number).pid}, time.time()
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        return pids, at

    def wait_back(self, pids, within=START_WITHIN):
        """Starts killed servers again, and waits until they serve."""
        for number in pids:
            server = self.node(number)
            try:
                server.process.wait(10)
            except subprocess.TimeoutExpired:
                raise Failed(f"server {number} was not killed") from None
            self._run(server)
        poll(f"servers {sorted(pids)} serve again", within, lambda: all(self._mode(self.node(n)) for n in pids), every=0.1)
