"""Servers of NATS with JetStream, each in a network of its own, and a small client for their operators' requests. Standard library only."""

import atexit
import contextlib
import json
import signal
import socket
import subprocess
import time

from cluster import Failed, end, need, poll
from go_programs import go_program
from networks import DRILL

VERSION = "2.15.3"
USER, PASSWORD = "drill", "a-secret-that-must-not-show"
CLIENTS, ROUTES = 4222, 6222
START_WITHIN = 60


def program():
    """The server. Build it before a drill enters a network of its own."""
    return go_program("github.com/nats-io/nats-server/v2", VERSION)


class Server:
    """One server. `routes` are the addresses of the others of its cluster."""

    def __init__(self, binary, folder, networks, number, port=CLIENTS, routes=(), password=PASSWORD, jetstream=True):
        self.number, self.folder, self.log = number, folder, folder / "server.log"
        self.host, self.port = networks.host(number), port
        folder.mkdir(parents=True)
        lines = [f'server_name: "s{number}"', f'listen: "{self.host}:{port}"', f'authorization {{ user: "{USER}", password: "{password}" }}']
        if jetstream:
            # A message is on the disk when it is confirmed.
            lines.append(f'jetstream {{ store_dir: "{folder}/store", sync_interval: always, max_file_store: 4GB }}')
        if routes:
            urls = ", ".join(f'"nats://{host}:{ROUTES}"' for host in routes)
            lines.append(f'cluster {{ name: "drill", listen: "{self.host}:{ROUTES}", routes: [{urls}] }}')
        (folder / "nats.conf").write_text("\n".join(lines) + "\n")
        within = [] if number == DRILL else ["ip", "netns", "exec", networks.name(number)]
        self.command = [*within, binary, "-c", folder / "nats.conf"]
        self.process = None

    def start(self):
        """Starts it, or starts it again."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)

    def kill(self):
        """Ends it at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def address(self):
        """Where clients reach it."""
        return f"{self.host}:{self.port}"

    def words(self):
        """The last it said."""
        return self.log.read_text(errors="replace")[-1000:]


class Service:
    """Three servers. Use as a context, within networks of three."""

    def __init__(self, binary, folder, networks):
        hosts = [networks.host(number) for number in (1, 2, 3)]
        self.servers = [Server(binary, folder / str(n), networks, n, routes=hosts) for n in (1, 2, 3)]

    def __enter__(self):
        for server in self.servers:
            server.start()
        self.wait_up()
        return self

    def __exit__(self, *_):
        for server in self.servers:
            end(server.process)

    def addresses(self):
        """Of all of them."""
        return ",".join(server.address for server in self.servers)

    def wait_up(self):
        """Waits until each server gets answers from the cluster."""
        for server in self.servers:
            poll(f"server {server.number} serves", START_WITHIN, lambda s=server: serves(s), every=0.2)

    def leader(self, stream):
        """The number of the server that leads a stream."""
        ask = lambda: self.ask(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader")
        return int(poll(f"{stream} has a leader", START_WITHIN, ask, every=0.2)[1:])

    def ask(self, request, document=None):
        """Makes a request to JetStream at some server that answers."""
        for server in self.servers:
            with contextlib.suppress(OSError):
                return Client(server).ask(request, document)
        raise Failed("no server of the log service answers")

    def streams(self):
        """The names of all streams."""
        return self.ask("STREAM.NAMES").get("streams") or []


def serves(server):
    """Whether a server gets answers from JetStream."""
    need(server.process.poll() is None, f"a server of the log service ended: {server.words()}")
    with contextlib.suppress(OSError):
        return "error" not in Client(server).ask("STREAM.NAMES")
    return False


class Client:
    """A connection to a server, for one request."""

    def __init__(self, server):
        self.socket = socket.create_connection((server.host, server.port), timeout=2)
        self.read = self.socket.makefile("rb")

    def ask(self, request, document=None):
        """The answer of JetStream's API."""
        with self.socket:
            self.socket.settimeout(5)
            need(self.read.readline().startswith(b"INFO "), "this is no server of NATS")
            login = json.dumps({"user": USER, "pass": PASSWORD, "verbose": False, "lang": "drill", "version": "1", "no_responders": True, "headers": True})
            body = b"" if document is None else json.dumps(document).encode()
            words = b"CONNECT %s\r\nSUB answer 1\r\nPUB $JS.API.%s answer %d\r\n%s\r\n" % (login.encode(), request.encode(), len(body), body)
            self.socket.sendall(words)
            until = time.monotonic() + 5
            while time.monotonic() < until:
                line = self.read.readline()
                if line.startswith(b"MSG "):
                    return json.loads(self.read.read(int(line.split()[-1])))
                if not line or line.startswith((b"-ERR", b"HMSG")):
                    break
            raise OSError(f"{request} was not answered")
