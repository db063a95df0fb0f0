"""One node under `atoll serve --data DIR`, without a supervisor: what single-node drills share. Standard library only."""

import atexit
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

from cluster import START_WITHIN, Failed, end, poll
from ports import free_ports


def memory(pid):
    """Resident memory of a process in bytes, without the pages that belong to files: (now, at most so far, both with files)."""
    words = pathlib.Path(f"/proc/{pid}/status").read_text()
    kilobytes = {name: int(value) for name, value in re.findall(r"(?m)^(\w+):\s+(\d+) kB$", words)}
    return kilobytes["RssAnon"] * 1024, kilobytes["VmHWM"] * 1024


def folder_bytes(path):
    """What a folder takes on disk, each file once, whatever names it has; files that go meanwhile count nothing."""
    files = {}
    for root, _, names in os.walk(path):
        for name in names:
            try:
                stat = os.stat(os.path.join(root, name))
                files[stat.st_ino] = stat.st_blocks * 512
            except FileNotFoundError:
                pass
    return sum(files.values())


class Alone:
    """A node with a data folder. Use as a context."""

    def __init__(self, binary, data):
        self.binary = binary
        self.data = pathlib.Path(data)
        self.output = self.data.parent / f"{self.data.name}.out"
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def spawn(self):
        """Starts it, and waits for nothing."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.grpc, peer, metrics, self.client_port = (f"127.0.0.1:{port}" for port in free_ports(4))
        command = [self.binary, "serve", "--data", self.data, "--grpc", self.grpc, "--peer", peer, "--metrics", metrics]
        with open(self.output, "ab") as out:
            self.process = subprocess.Popen([*command, "--zookeeper", self.client_port], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)

    def start(self):
        """Starts it, and waits until it serves tables."""
        self.spawn()

        def up():
            if self.process.poll() is not None:
                raise Failed(f"`atoll serve` ended: {self.output.read_text()[-2000:]}")
            return self.atoll("table", "list", check=False, timeout=20).returncode == 0

        poll("the node answers", START_WITHIN, up, every=0.1)

    @property
    def pid(self):
        """Of the process that runs."""
        return self.process.pid

    def zookeeper(self):
        """Its address for clients of ZooKeeper."""
        return self.client_port

    def atoll(self, *args, timeout=60, check=True, **kwargs):
        """Runs a verb of the command line at this node."""
        command = [str(self.binary), *[str(a) for a in args]]
        env = dict(os.environ, ATOLL_CONNECT=self.grpc)
        try:
            done = subprocess.run(command, env=env, timeout=timeout, capture_output=True, **kwargs)
        except subprocess.TimeoutExpired:
            raise Failed(f"`atoll {' '.join(command[1:])}` has not ended after {timeout} s") from None
        if check and done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise Failed(f"`atoll {' '.join(command[1:])}` ended with {done.returncode}: {words}")
        return done

    def json(self, *args, **kwargs):
        """Runs a verb with --json and reads its answer."""
        return json.loads(self.atoll(*args, "--json", **kwargs).stdout)

    def kill(self):
        """`kill -9`."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Ends it in good order, if it runs."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                end(self.process)
                raise Failed("`atoll serve` did not end within 30 s of SIGTERM") from None

    def remove(self):
        """Stops it and frees its disk."""
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)


@contextlib.contextmanager
def configured(binary, folder, listen, settings, grpc=None):
    """A node under `atoll serve --config`, ready, with these lines for `[listen]` and these sections; its folder is that of the file."""
    *own, peer, metrics = free_ports(2 if grpc else 3)
    grpc = grpc or own[0]
    config, output = folder / "node.toml", folder / "node.out"
    ports = f'grpc = "127.0.0.1:{grpc}"\npeer = "127.0.0.1:{peer}"\nmetrics = "127.0.0.1:{metrics}"\n'
    config.write_text(f'[node]\ndata = "data"\n[listen]\n{ports}{listen}{settings}')
    with open(output, "wb") as out:
        node = subprocess.Popen([binary, "serve", "--config", config], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    atexit.register(end, node)
    try:

        def ready():
            if node.poll() is not None:
                raise Failed(f"`atoll serve` ended: {output.read_text()[-2000:]}")
            return b"ready" in output.read_bytes()

        poll("the node is ready", START_WITHIN, ready)
        yield
    finally:
        node.terminate()
        node.wait(timeout=60)
