#!/usr/bin/env python3
"""The program of etcd, built from its Go module, once, and a server of it for drills. Prints the path of the program, for the tests of
registers in etcd: `docs/internals.md`. Needs go."""

import atexit
import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

from cluster import NotRun, end, need, poll
from ports import free_ports
from zookeeper_venv import cache, fetching, making

VERSION = "3.6.16"
MODULE = "go.etcd.io/etcd/server/v3"
START_WITHIN = 30


def program():
    """The path of the program. Builds it if it is not there."""
    if not shutil.which("go"):
        raise NotRun("there is no Go on this machine, which builds etcd")
    folder = cache() / f"etcd-{VERSION}"
    built = folder / "etcd"
    with making("etcd"):
        if not built.is_file():
            source = folder / "source"
            source.mkdir(parents=True, exist_ok=True)
            # Within a module of our own: `go install` refuses etcd's, which has lines that replace others.
            pathlib.Path(source / "go.mod").write_text("module etcd\n", encoding="utf-8")
            environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
            fetching(["go", "get", f"{MODULE}@v{VERSION}"], env=environment, cwd=source)
            fetching(["go", "build", "-o", str(built), MODULE], env=environment, cwd=source)
    return built


class Server:
    """One server over a directory, without TLS. Use as a context."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.port, self.peer_port = free_ports(2)
        self.process = None

    def __enter__(self):
        self.folder.mkdir(parents=True)
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def address(self):
        """Where clients reach it."""
        return f"127.0.0.1:{self.port}"

    def start(self):
        """Starts it, and waits until it answers."""
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        command = [program(), "--name", "e", "--data-dir", self.folder / "data", "--log-level", "warn"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)
        poll("etcd answers", START_WITHIN, self._answers, every=0.05)

    def kill(self):
        """Ends it with `kill -9`."""
        end(self.process)

    def _answers(self):
        need(self.process.poll() is None, f"etcd ended: {(self.folder / 'etcd.log').read_text(errors='replace')[-1000:]}")
        with contextlib.suppress(OSError, urllib.error.URLError):
            return self.keys("/") is not None
        return False

    def keys(self, prefix):
        """The keys that begin like this."""
        word = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731, used twice, here
        asked = {"key": word(prefix), "range_end": word(prefix[:-1] + chr(ord(prefix[-1]) + 1)), "keys_only": True}
        request = urllib.request.Request(f"http://{self.address}/v3/kv/range", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            return [base64.b64decode(kv["key"]).decode() for kv in json.load(answer).get("kvs", [])]


if __name__ == "__main__":
    try:
        print(program())
    except NotRun as words:
        sys.exit(str(words))
