"""A real server that speaks S3, the Versity gateway over a directory, and a proxy in front of it that loses, delays and refuses requests.
The gateway is built from its Go module, once. Needs go."""

import atexit
import contextlib
import http.client
import http.server
import pathlib
import random
import subprocess
import sys
import threading
import time

from cluster import end, need, poll
from go_programs import go_program
from ports import free_ports

VERSION = "1.8.0"
BUCKET = "atoll-drill"
REGION = "us-east-1"
ACCESS, SECRET = "drill", "a-secret-that-must-not-show"
START_WITHIN = 30
# What belongs to one connection is not passed on (RFC 9110 section 7.6.1).
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade"}


def gateway():
    """The program."""
    return go_program("github.com/versity/versitygw/cmd/versitygw", VERSION)


class Server:
    """The gateway over a directory, with one bucket. Use as a context."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.port = free_ports(1)[0]
        self.process = None

    def __enter__(self):
        (self.folder / "data" / BUCKET).mkdir(parents=True)
        self.restart()
        return self

    def restart(self, secret=SECRET):
        """Starts it, or starts it anew, with this secret."""
        if self.process:
            end(self.process)
        command = [gateway(), "--access", ACCESS, "--secret", secret, "--region", REGION, "--port", f"127.0.0.1:{self.port}"]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen([*command, "posix", self.folder / "data"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)
        poll("the S3 server answers", START_WITHIN, self._answers, every=0.05)

    def __exit__(self, *_):
        end(self.process)

    def _answers(self):
        need(self.process.poll() is None, f"the S3 server ended: {(self.folder / 'server.log').read_text(errors='replace')[-1000:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        return False

    @property
    def bucket(self):
        """The directory with the objects, each a file."""
        return self.folder / "data" / BUCKET


class Faults:
    """What the proxy does to requests: how many of each fifty are lost on their way, carried out and not answered, refused as too many, or
    slow; and whether none gets through."""

    KINDS = ("lost", "unanswered", "refused", "slow")
    HAND = 50

    def __init__(self, seed):
        self.of_hand = dict.fromkeys(self.KINDS, 0)
        self.slow_s = 0.0
        self.down = False
        self.counts = dict.fromkeys(("passed", *self.KINDS, "down"), 0)
        self._random = random.Random(seed)
        self._hand = []
        self._lock = threading.Lock()

    def begin(self, slow_s, **of_hand):
        """Starts them."""
        with self._lock:
            self.of_hand.update(of_hand)
            self.slow_s, self._hand = slow_s, []

    def heal(self):
        """Ends them."""
        self.begin(0.0, **dict.fromkeys(self.KINDS, 0))
        self.down = False

    def draw(self):
        """The fate of the next request; None is none. Drawn without putting back, so that each fault happens in each fifty requests."""
        with self._lock:
            if not self._hand:
                self._hand = [kind for kind, count in self.of_hand.items() for _ in range(count)]
                self._hand += [None] * (self.HAND - len(self._hand))
                self._random.shuffle(self._hand)
            return "down" if self.down else self._hand.pop()

    def count(self, what):
        """Counts a request."""
        with self._lock:
            self.counts[what] += 1


class _Listener(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        # A node that is killed leaves its connections like that.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Proxy:
    """A proxy on loopback. Use as a context."""

    def __init__(self, server, seed):
        self.faults = Faults(seed)
        self.port = free_ports(1)[0]
        self._http = _Listener(("127.0.0.1", self.port), _handler(self, server.port))
        self._http.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()

    def environment(self):
        """What the nodes need in their environment."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


def _handler(proxy, port):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # A small answer must not wait for the acknowledgement of its head.
        disable_nagle_algorithm = True

        def _drop(self, what):
            proxy.faults.count(what)
            self.close_connection = True

        def _pass(self):
            faults = proxy.faults
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fate = faults.draw()
            if fate in ("down", "lost"):
                return self._drop(fate)
            if fate == "refused":
                faults.count(fate)
                return self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            if fate == "slow":
                faults.count(fate)
                time.sleep(faults.slow_s)
            # The signature covers the header Host, so it is passed on as it came.
            head = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request(self.command, self.path, body=body or None, headers=head)
                answer = connection.getresponse()
                said = answer.read()
            except OSError:
                return self._drop("down")
            finally:
                connection.close()
            if fate == "unanswered":
                return self._drop(fate)
            faults.count("passed")
            self._answer(answer.status, answer.getheaders(), said)

        def _answer(self, status, head, body):
            self.send_response_only(status)
            for name, value in head:
                if name.lower() not in HOP_BY_HOP | {"content-length"}:
                    self.send_header(name, value)
            length = dict((name.lower(), value) for name, value in head).get("content-length", len(body))
            self.send_header("Content-Length", length if self.command == "HEAD" else len(body))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        def log_message(self, *_):
            pass

    return Handler
