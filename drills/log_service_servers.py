"""Servers of NATS with JetStream, each in a network of its own, and a small client for their operators' requests. Standard library only."""

import atexit
import base64
import contextlib
import json
import secrets
import signal
import socket
import subprocess
import time

from cluster import Failed, end, need, poll
from go_programs import go_program

VERSION = "2.15.3"
USER, PASSWORD = "drill", "a-secret-that-must-not-show"
CLIENTS, ROUTES = 4222, 6222
START_WITHIN = 60
# The code of the error that there is no such message.
NO_MESSAGE = 10037


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
        self.command = [*networks.within(number), binary, "-c", folder / "nats.conf"]
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

    def stop(self):
        """Lets it do nothing, and forget nothing, until it goes on. Its connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """Lets it go on. What has arrived meanwhile it reads now."""
        self.process.send_signal(signal.SIGCONT)

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

    def at_some(self, what):
        """What a client of some server gets, of one that answers."""
        for server in self.servers:
            with contextlib.suppress(OSError):
                return what(Client(server))
        raise Failed("no server of the log service answers")

    def ask(self, request, document=None):
        """Makes a request to JetStream."""
        return self.at_some(lambda client: client.ask(request, document))

    def message(self, stream, **wanted):
        """A message of a stream: its sequence, subject and bytes; None if there is none."""
        return self.at_some(lambda client: client.message(stream, **wanted))

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
    """A connection to a server."""

    def __init__(self, server):
        self.socket = socket.create_connection((server.host, server.port), timeout=2)
        self.read = self.socket.makefile("rb")
        self.inbox = f"answer.{secrets.token_hex(8)}".encode()
        need(self.read.readline().startswith(b"INFO "), "this is no server of NATS")
        login = json.dumps({"user": USER, "pass": PASSWORD, "verbose": False, "lang": "drill", "version": "1", "no_responders": True, "headers": True})
        self.socket.sendall(b"CONNECT %s\r\nSUB %s 1\r\n" % (login.encode(), self.inbox))

    def answers(self, within_s):
        """The documents that come in as answers, one after the other, until there is none for so long. None where nobody serves."""
        self.socket.settimeout(within_s)
        with contextlib.suppress(TimeoutError):
            while line := self.read.readline():
                if line.startswith((b"MSG ", b"HMSG ")):
                    document = self.read.read(int(line.split()[-1]))
                    yield json.loads(document) if line.startswith(b"MSG ") else None
                elif line.startswith(b"-ERR"):
                    return

    def ask(self, request, document=None):
        """The answer of JetStream's API. The connection ends."""
        with self.socket:
            body = b"" if document is None else json.dumps(document).encode()
            self.socket.sendall(b"PUB $JS.API.%s %s %d\r\n%s\r\n" % (request.encode(), self.inbox, len(body), body))
            answer = next(self.answers(5), None)
            if answer is None:
                raise OSError(f"{request} was not answered")
            return answer

    def message(self, stream, **wanted):
        """A message of a stream, according to this server's idea of who leads the stream: its sequence, subject and bytes; None if there is
        none. The connection ends."""
        answer = self.ask(f"STREAM.MSG.GET.{stream}", wanted)
        found = answer.get("message")
        if not found and answer["error"].get("err_code") != NO_MESSAGE:
            raise OSError(f"{wanted} of {stream} was answered with {answer}")
        return found and (found["seq"], found["subject"], base64.b64decode(found.get("data", "")))

    def publish(self, subject, expected, data):
        """Publishes a message that expects the newest one of its subject, and awaits no answer."""
        head = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % expected
        words = b"HPUB %s %s %d %d\r\n" % (subject.encode(), self.inbox, len(head), len(head) + len(data))
        self.socket.sendall(words + head + data + b"\r\n")


def log_of(stream):
    """The subject of a stream's messages of the log."""
    return f"{stream[:-33]}.{stream[-32:]}.log"
