"""A cluster of `atoll serve` processes without a supervisor, for drills in which a stopped node stays down, or in which each node has its
own network. Standard library only."""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import jute
from cluster import START_WITHIN, Cluster, Failed, end, need, poll
from ports import free_ports


class Served:
    """One node: its addresses, its folder, and its process while it runs."""

    def __init__(self, number, folder, host, ports, within=()):
        self.id = number
        self.folder = folder
        self.host = host
        self.grpc, self.peer, self.metrics, self.zookeeper = (f"{host}:{port}" for port in ports)
        self.log = folder / "log"
        self.config = folder / "config.toml"
        # The words in front of the command: what puts it into a network.
        self.within = list(within)
        self.process = None

    @property
    def pid(self):
        """Of its process, or None."""
        return self.process.pid if self.process and self.process.poll() is None else None

    def start(self, binary):
        """Starts it, and waits for nothing."""
        with open(self.log, "ab") as out:
            command = [*self.within, str(binary), "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)

    def listens(self):
        """Whether its process takes connections of the others."""
        if self.pid is None:
            raise Failed(f"node {self.id} ended: {self.log.read_text(errors='replace')[-2000:]}")
        host, port = self.peer.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
        except OSError:
            return False


class Serving(Cluster):
    """Nodes with every role. Use as a context. A node that dies stays dead until it is started."""

    def __init__(self, binary, folder, count, place=None):
        """`place(number)` gives a node's host, its four ports, and the words in front of its command; else all are on loopback."""
        super().__init__(binary, folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(4 * count)
        loopback = lambda number: ("127.0.0.1", ports[4 * number - 4 : 4 * number], ())
        self.all = []
        for number in range(1, count + 1):
            folder = self.folder / f"node-{number}"
            folder.mkdir()
            self.all.append(Served(number, folder, *(place or loopback)(number)))
        peers = "".join(f'\n[[peer]]\nid = {n.id}\naddress = "{n.peer}"\ngrpc = "{n.grpc}"\n' for n in self.all)
        for n in self.all:
            n.config.write_text(
                f'[node]\nid = {n.id}\ncluster = "drill"\ndata = "data"\n\n[listen]\ngrpc = "{n.grpc}"\npeer = "{n.peer}"\n'
                f'metrics = "{n.metrics}"\nzookeeper = "{n.zookeeper}"\nlisten_beyond_loopback_without_tls = true\n{peers}'
            )

    def start(self, within=START_WITHIN):
        """Starts all nodes, and waits until they are up and the database has a log."""
        for n in self.all:
            n.start(self.binary)
        self.wait_up(within=within)

    def wait_up(self, within=START_WITHIN):
        """Waits until every node is up, and every log has a sequencer that lives."""
        def up():
            status = self.status(within=within)
            logs = status["logs"]
            return (
                len(status["nodes"]) == len(self.all)
                and all(n["state"] == "up" for n in status["nodes"])
                and any(row["name"] == "db" for row in logs)
                and all(row["healthy"] and row.get("sequencer") for row in logs)
            )

        poll("all nodes are up and all logs are healthy", within, up, every=0.1)

    def nodes(self):
        return self.all

    def node(self, number):
        return self.all[number - 1]

    def kill(self, numbers):
        """`kill -9`, as close together as can be."""
        pids = [n.pid for n in self.all if n.id in numbers and n.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for n in self.all:
            if n.id in numbers:
                n.process.wait()

    def boot(self, numbers, within=START_WITHIN):
        """Starts nodes again; the moment at which the last of them took connections."""
        for number in numbers:
            self.node(number).start(self.binary)
        for number in numbers:
            poll(f"node {number} listens", within, self.node(number).listens, every=0.002)
        return time.time()

    def stop(self):
        for n in self.all:
            if n.pid:
                n.process.send_signal(signal.SIGTERM)
        for n in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if n.process:
                    n.process.wait(20)
            end(n.process)


class Fresh:
    """What comes to a load's timeline from now on, without reading all of it again."""

    def __init__(self, load):
        self.path, self.rest, self.at = load.timeline, b"", []
        self.offset = self.path.stat().st_size

    def read(self):
        """Moments of the acknowledgements since then, in seconds since 1970."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            more = file.read()
        self.offset += len(more)
        lines = (self.rest + more).split(b"\n")
        self.rest = lines.pop()
        self.at += [int(line.split()[0]) / 1e6 for line in lines if line[:1].isdigit()]
        return self.at


class Counter:
    """A ZooKeeper client at some doors that writes the numbers 1, 2, 3 ... into one znode, each as the write of that version: what was
    acknowledged and is lost, or was done twice, shows in the znode's version."""

    # What a connection may end with; a write that was under way may have been done.
    TROUBLE = (OSError, ValueError)

    def __init__(self, doors, path, every_s=0.0, leaves_on=()):
        """With an error in `leaves_on` a door refuses a write that another may take."""
        self.doors, self.path, self.every_s, self.leaves_on = list(doors), path, every_s, leaves_on
        self.done = 0
        # Seconds since 1970, one for each acknowledged write.
        self.at = []
        self.unknown = 0
        self.turn = 0
        self.wire = None
        self.failed = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self):
        """Creates the znode, and begins."""
        poll(f"{self.path} is created", 30, self._made)
        self.thread.start()
        return self

    def _connect(self):
        if self.wire is None:
            self.turn += 1
            self.wire = jute.Wire(self.doors[self.turn % len(self.doors)], patience_s=2, read_only=None)

    def _drop(self):
        with contextlib.suppress(OSError, AttributeError):
            self.wire.close()
        self.wire = None
        time.sleep(0.01)

    def _made(self):
        try:
            self._connect()
            return self._create()
        except self.TROUBLE:
            self._drop()
            return False

    def _create(self):
        """Makes the znode; whether it is there."""
        _, error, _ = self.wire.call(jute.CREATE, jute.create(self.path, b"0"))
        return error in (0, -110)

    def _write(self, number):
        """One write; whether it was done, and not only refused for now."""
        _, error, _ = self.wire.call(jute.SET, jute.written(self.path, b"%d" % number, number - 1))
        need(error in (0, -4, *self.leaves_on), f"{self.path}: write {number} was refused with error {error}")
        if error in self.leaves_on:
            self._drop()
        return error == 0

    def _settle(self):
        """After a write without an answer: whether it was done."""
        self._connect()
        self.wire.call(jute.SYNC, jute.string(self.path))
        _, error, reply = self.wire.call(jute.GET, jute.watched(self.path))
        need(error == 0, f"{self.path} cannot be read: error {error}")
        data, version = int(reply.buffer()), reply.stat()[4]
        need(data == version and version in (self.done, self.done + 1), f"{self.path}: {self.done} acknowledged, version {version} with {data}")
        return version > self.done

    def _work(self):
        doubt = False
        try:
            while not self.over.is_set():
                try:
                    if doubt:
                        self.done += self._settle()
                        doubt = False
                    self._connect()
                    doubt = True
                    wrote = self._write(self.done + 1)
                    doubt = False
                    if wrote:
                        self.done += 1
                        self.at.append(time.time())
                        self.over.wait(self.every_s)
                except self.TROUBLE:
                    self.unknown += doubt
                    self._drop()
        except Exception as error:  # Told at the end, on the drill's own thread.
            self.failed = error

    def finish(self):
        """No more writes; the znode must have the last number, and one version for each."""
        self.over.set()
        self.thread.join(30)
        if self.failed:
            raise self.failed
        need(not self.thread.is_alive(), f"{self.path}: a write hangs")

        def same():
            try:
                self.done += self._settle()
                return True
            except self.TROUBLE:
                self._drop()
                return False

        poll(f"{self.path} is read", 30, same)
        self._drop()
        return self.done
