#!/usr/bin/env python3
"""Bad input to the database's doors: every mistake gets a clear error, memory stays bounded, and other clients notice nothing.

The target is a single node under `atoll serve --data`. ZooKeeper's door gets malformed, oversized and out-of-order frames, requests before
a session, wrong passwords, floods of connections, clients that never read or send byte by byte, and paths and access lists that are not
allowed. The tables get schema and type errors, bad rows, and files with a broken line. A healthy client writes throughout: its session
survives, and every write is answered.
"""

import contextlib
import json
import socket
import struct
import threading
import time

import jute
from alone import Alone, memory
from cluster import Drill, Failed, need, poll, say, table

# ZooKeeper's codes.
UNIMPLEMENTED, BAD_ARGUMENTS, NO_NODE, NO_AUTH, INVALID_ACL = -6, -8, -101, -102, -114
# `jute.maxbuffer` as it is by default, and the most connections of one address.
MAX_FRAME, MAX_CONNECTIONS = 0xF_FFFF, 60
# A connection without a session is closed within this time.
SILENT_S = 10
# More memory than before any of it, at most.
MORE_BYTES = 200_000_000


class Healthy(threading.Thread):
    """Writes one znode again and again; any trouble is the drill's failure."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.wire = jute.Wire(host, timeout_ms=6_000)
        _, error, _ = self.wire.call(jute.CREATE, jute.create("/healthy", b"0"))
        need(error == 0, f"the healthy client cannot create: {error}")
        self.writes, self.longest, self.trouble = 0, 0.0, None
        self.over = threading.Event()
        self.start()

    def run(self):
        try:
            while not self.over.wait(0.01):
                began = time.monotonic()
                _, error, reply = self.wire.call(jute.SET, jute.written("/healthy", b"%d" % self.writes, self.writes))
                need(error == 0, f"write {self.writes} of the healthy client: error {error}")
                self.writes += 1
                need(reply.stat()[4] == self.writes, "somebody else wrote the healthy client's znode")
                self.longest = max(self.longest, time.monotonic() - began)
        except (OSError, AssertionError, Failed) as error:
            self.trouble = repr(error)

    def check(self, words):
        """It continues."""
        reached = self.writes
        poll(f"{words}: the healthy client continues", 20, lambda: self.trouble or self.writes > reached + 3)
        need(not self.trouble, f"{words}: the healthy client: {self.trouble}")


class Watch(threading.Thread):
    """The most memory that the node takes."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.before = pid, memory(pid)[0]
        self.most = self.before
        self.over = threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.05):
            with contextlib.suppress(OSError, KeyError):
                self.most = max(self.most, memory(self.pid)[0])


class Bench:
    """The node under test."""

    def __init__(self, drill, node):
        self.drill, self.node, self.host = drill, node, node.zookeeper()
        self.random = drill.random

    def wire(self, **options):
        """A client with a session; one of many that may be refused for a moment."""
        def ask():
            with contextlib.suppress(OSError):
                wire = jute.Wire(self.host, **options)
                wire.socket.settimeout(20)
                return wire

        return poll("a new client gets a session", 30, ask, every=0.1)

    def raw(self):
        """A bare connection."""
        name, port = self.host.rsplit(":", 1)
        return socket.create_connection((name, int(port)), timeout=20)

    def closed(self, connection, words, within=20):
        """The other side closes; what it said before."""
        got = b""
        connection.settimeout(within)
        try:
            while more := connection.recv(1 << 16):
                got += more
        except TimeoutError:
            raise Failed(f"{words}: the connection is not closed within {within} s") from None
        except OSError:
            pass
        connection.close()
        return got

    def says(self, words):
        """The node's log holds these words."""
        poll(f"the node's log says {words!r}", 5, lambda: words in self.node.output.read_text(errors="replace"))


def frames(bench):
    """Frames that are none, on connections with a session."""
    count = 0
    for length, body in ((-1, b""), (MAX_FRAME + 1, b"x" * 100), (0x7FFF_FFFF, b""), (-0x8000_0000, b"x")):
        wire = bench.wire()
        wire.socket.sendall(struct.pack(">i", length) + body)
        bench.closed(wire.socket, f"a frame of {length} bytes")
        count += 1
    bench.says(f"a frame of {MAX_FRAME + 1} bytes; allowed: 0 to {MAX_FRAME}")
    for body in (b"", b"\0", b"\0" * 7):
        wire = bench.wire()
        wire.send(body)
        bench.closed(wire.socket, f"a request of {len(body)} bytes")
        count += 1
    # Every operation with bodies that are none: an error, or the end, and the node continues.
    rounds = bench.drill.args.rounds
    wire = bench.wire()
    for op in [*range(-12, 30), *range(99, 112), 1_000_000]:
        for _ in range(rounds):
            body = bench.random.randbytes(bench.random.randrange(80))
            if bench.random.random() < 0.5:
                body = struct.pack(">i", bench.random.choice((-2, -1, 0, 0x7FFF_FFFF, 1 << 20))) + body
            try:
                wire.send(struct.pack(">ii", 1, op) + body)
                wire.receive()
            except OSError:
                wire.close()
                wire = bench.wire()
            count += 1
    _, error, _ = (wire := bench.wire()).call(1_000_000)
    need(error == UNIMPLEMENTED, f"an unknown operation gets {error}")
    # Half a frame, then the end; and a client that says hello twice.
    wire.socket.sendall(struct.pack(">i", 1000) + b"half")
    wire.close()
    wire = bench.wire()
    wire.send(struct.pack(">iqiq", 0, 0, 10_000, 0) + jute.buffer(b"\0" * 16))
    with contextlib.suppress(OSError):
        wire.receive()
    wire.close()
    return f"{count + 2} frames"


def order(bench):
    """Numbers of requests that do not rise: each is answered with its own, in the order of the requests."""
    wire = bench.wire()
    xids = [7, 7, 3, 0x7FFF_FFFF, 0, -3, 5]
    for xid in xids:
        wire.ask(jute.EXISTS, jute.watched("/healthy"), xid=xid)
    for xid in xids:
        _, error, _ = wire.answer(xid)
        need(error == 0, f"request {xid}: error {error}")
    # Behind the end of the session nothing is taken.
    wire.ask(jute.CLOSE, xid=9)
    wire.ask(jute.CREATE, jute.create("/too-late"), xid=10)
    wire.answer(9)
    bench.closed(wire.socket, "after closeSession")
    _, error, _ = bench.wire().call(jute.EXISTS, jute.watched("/too-late"))
    need(error == NO_NODE, f"a request behind closeSession was done: {error}")
    return f"{len(xids) + 2} requests"


def before_a_session(bench):
    """First messages that open no session; none of them touches anybody else's."""
    victim = bench.wire()
    hello = lambda session=0, password=b"\0" * 16, seen=0, timeout=10_000: struct.pack(">iqiq", 0, seen, timeout, session) + jute.buffer(password)
    request = struct.pack(">ii", 1, jute.CREATE) + jute.create("/before")
    for words, frame in (
        ("a request before a session", request),
        ("a first message of 1 byte", b"\0"),
        ("a first message of 100,000 bytes", b"\0" * 100_000),
        ("half a password", struct.pack(">iqiq", 0, 0, 10_000, victim.session) + struct.pack(">i", 16) + b"\0" * 8),
        ("a password of negative length", struct.pack(">iqiqi", 0, 0, 10_000, victim.session, -5)),
        ("a state that nobody has seen", hello(seen=1 << 60)),
    ):
        connection = bench.raw()
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        got = bench.closed(connection, words)
        # A session of 0 is none.
        need(len(got) < 20 or struct.unpack_from(">q", got, 12)[0] == 0, f"{words} opened a session")
    for password in (b"", b"\0" * 16, b"\0" * 15, bench.random.randbytes(16), bench.random.randbytes(700)):
        connection = bench.raw()
        frame = hello(session=victim.session, password=password)
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        got = bench.closed(connection, "a wrong password")
        need(len(got) >= 20 and struct.unpack_from(">q", got, 12)[0] == 0, f"a password of {len(password)} bytes that is wrong gets {got!r}")
    for timeout in (-1, 0, 1, 0x7FFF_FFFF):
        wire = bench.wire(timeout_ms=timeout)
        need(4_000 <= wire.timeout_ms <= 40_000, f"a session timeout of {timeout} ms becomes {wire.timeout_ms}")
        wire.call(jute.CLOSE)
        wire.close()
    for path in ("/before", "/healthy"):
        _, error, _ = victim.call(jute.EXISTS, jute.watched(path))
        need((error == 0) == (path == "/healthy"), f"{path}: error {error}")
    victim.close()
    return "15 first messages; the session that was tried continues"


def flood(bench):
    """More connections than one address may have; some say nothing, some ask four letters."""
    held, refused = [], 0
    for _ in range(bench.drill.args.connections):
        connection = bench.raw()
        connection.setblocking(False)
        held.append(connection)
    time.sleep(0.5)
    for connection in held:
        with contextlib.suppress(BlockingIOError):
            try:
                refused += connection.recv(1) == b""
            except ConnectionError:
                refused += 1
    need(refused >= len(held) - MAX_CONNECTIONS, f"of {len(held)} connections of one address {refused} were refused")
    for connection in held[: len(held) // 2]:
        connection.close()
    # Those that say nothing are closed by the node.
    rest = [c for c in held[len(held) // 2:] if c.fileno() >= 0]
    began = time.monotonic()
    for connection in rest:
        connection.setblocking(True)
        bench.closed(connection, "a silent connection", within=SILENT_S + 10)
    need(time.monotonic() - began < SILENT_S + 10, "silent connections stay")
    answered = 0
    for _ in range(bench.drill.args.connections):
        with contextlib.suppress(OSError), bench.raw() as connection:
            connection.sendall(b"srvr")
            answered += connection.recv(1 << 16).startswith(b"Zookeeper version")
    need(answered > 0, "srvr is not answered")
    bench.wire().close()
    return f"{len(held)} connections, {refused} refused; {answered} times srvr"


def never_reads(bench):
    """Clients that ask for much, or watch all, and never read."""
    writer = bench.wire()
    writer.call(jute.CREATE, jute.create("/big", b"b" * 900_000))
    writer.call(jute.CREATE, jute.create("/many"))
    greedy, watching = [], []
    for _ in range(10):
        wire = bench.wire()
        wire.socket.setblocking(False)
        request = struct.pack(">ii", 1, jute.GET) + jute.watched("/big")
        with contextlib.suppress(BlockingIOError):
            for _ in range(100_000):
                wire.socket.send(struct.pack(">i", len(request)) + request)
        greedy.append(wire)
        wire = bench.wire(timeout_ms=40_000)
        _, error, _ = wire.call(jute.ADD_WATCH, jute.string("/") + struct.pack(">i", 1))
        need(error == 0, f"addWatch: error {error}")
        watching.append(wire)
    until = time.monotonic() + bench.drill.args.unread_seconds
    name, changes = "n" * 200, 0
    while time.monotonic() < until:
        for _ in range(200):
            changes += 1
            path = f"/many/{name}{changes % 50}"
            writer.ask(jute.CREATE if changes // 50 % 2 == 0 else jute.DELETE,
                       jute.create(path) if changes // 50 % 2 == 0 else jute.versioned(path))
        for _ in range(200):
            writer.answer(writer.xid - 199 + _)
    for wire in greedy + watching:
        wire.close()
    writer.close()
    return f"10 clients with 900 KB to read again and again, 10 with {changes} events"


def byte_by_byte(bench):
    """A client that never comes to the end of its hello, and one that sends its requests slowly."""
    slow = bench.raw()
    frame = struct.pack(">iqiq", 0, 0, 10_000, 0) + jute.buffer(b"\0" * 16)
    began = time.monotonic()
    with contextlib.suppress(OSError):
        for byte in struct.pack(">i", len(frame)) + frame[:-1]:
            slow.sendall(bytes([byte]))
            time.sleep(0.4)
            if time.monotonic() - began > SILENT_S + 5:
                break
    bench.closed(slow, "a hello byte by byte", within=SILENT_S)
    wire = bench.wire()
    request = struct.pack(">ii", 1, jute.EXISTS) + jute.watched("/healthy")
    for byte in struct.pack(">i", len(request)) + request:
        wire.socket.sendall(bytes([byte]))
        time.sleep(0.02)
    _, error, _ = wire.answer(1)
    need(error == 0, f"a request that came slowly gets {error}")
    wire.close()
    return f"a hello of {len(frame)} bytes refused, a slow request answered"


def paths_and_acls(bench):
    """What may not be written is not written."""
    wire, count = bench.wire(), 0

    def gets(expected, words, op, body):
        nonlocal count
        _, error, _ = wire.call(op, body)
        need(error in expected, f"{words}: error {error}, expected {expected}")
        count += 1

    for path in ("", "a", "a/b", "//", "/a/", "/a//b", "/.", "/..", "/a/./b", "/a/../b", "/a\0b", "/\x01", "/a\x1f", "/\x7f", "/\x9f", "/\ufff0", "/\uf8ff", "/\ue000"):
        for op, body in ((jute.CREATE, jute.create(path)), (jute.CREATE2, jute.create(path)), (jute.MULTI, jute.multi([(jute.CREATE, jute.create(path))]))):
            if op == jute.MULTI:
                _, _, reply = wire.call(op, body)
                need(reply.take("i?i")[2] in (BAD_ARGUMENTS, NO_NODE), f"{path!r} in a multi")
                count += 1
            else:
                # A parent that is not there is noticed first.
                gets((BAD_ARGUMENTS, NO_NODE), f"create {path!r}", op, body)
    gets((BAD_ARGUMENTS, NO_NODE), "delete of the root", jute.DELETE, jute.versioned("/"))
    gets((BAD_ARGUMENTS,), "flags that there are not", jute.CREATE, jute.create("/flags", flags=77))
    gets((BAD_ARGUMENTS, UNIMPLEMENTED), "a negative time to live", jute.CREATE_TTL, jute.create("/ttl", flags=5, ttl=-1))
    for entries in ([], [(31, "nobody", "x")], [(31, "ip", "not an address")], [(31, "ip", "10.0.0.0/99")], [(31, "digest", "nocolon")], [(31, "world", "everyone")], [(31, "auth", "")]):
        gets((INVALID_ACL,), f"the list {entries}", jute.CREATE, jute.create("/listed", entries=entries))
        gets((INVALID_ACL,), f"setACL {entries}", jute.SET_ACL, jute.listed("/healthy", entries))
    gets((0,), "a list that lets nobody in", jute.CREATE, jute.create("/closed", entries=[(31, "digest", "a:b")]))
    gets((NO_AUTH,), "a read that is not allowed", jute.GET, jute.watched("/closed"))
    gets((NO_AUTH,), "a write that is not allowed", jute.SET, jute.written("/closed", b""))
    gets((NO_AUTH,), "a child that is not allowed", jute.CREATE, jute.create("/closed/child"))
    wire.close()
    return f"{count} refused by their code"


def tables(bench):
    """Schema and type errors, and bad rows: named, and nothing is written."""
    node, count = bench.node, 0

    def refused(parts, *args, statuses=(1, 2)):
        nonlocal count
        done = node.atoll("table", *args, check=False)
        words = done.stderr.decode(errors="replace")
        need(done.returncode in statuses, f"{args} ends with {done.returncode}: {words}")
        missing = [part for part in parts if part.lower() not in words.lower()]
        need(not missing and "panicked" not in words, f"{args}: the error does not say {missing}: {words}")
        count += 1

    create = ("create", "bad", "--column", "id:int64", "--column", "name:text?")
    refused(["int65"], "create", "bad", "--column", "id:int65", "--key", "id")
    refused(["id"], "create", "bad", "--column", "id:int64", "--column", "id:text", "--key", "id")
    refused(["nothing"], *create, "--key", "nothing")
    refused(["name"], *create, "--key", "name")
    refused(["nothing"], *create, "--key", "id", "--index", "by=nothing")
    refused(["9bad"], "create", "9bad", "--column", "id:int64", "--key", "id")
    refused(["nobody"], "get", "nobody", "1")
    node.atoll("table", "create", "good", "--column", "id:int64", "--column", "name:text?", "--column", "size:int64", "--key", "id", "--unique", "by_name=name")
    refused(["good"], "create", "good", "--column", "id:int64", "--key", "id")
    good = {"id": 1, "name": "one", "size": 1}
    for row, parts in (
        ("{", ["json"]), ("[1]", []), ('{"id": "one", "size": 1}', ["id"]), ('{"name": "x", "size": 1}', ["id"]), ('{"id": 1, "size": null}', ["size"]),
        ('{"id": 1, "size": 1, "colour": 3}', ["colour"]), ('{"id": 1, "size": 99999999999999999999}', ["size"]), ('{"id": 1, "name": 3, "size": 1}', ["name"]),
        (json.dumps({"id": 1, "name": "x" * 300_000, "size": 1}), ["262"]),
    ):
        if len(row) < 100_000:
            refused(parts, "put", "good", row)
        else:
            file = bench.drill.folder / "long.jsonl"
            file.write_text(row + "\n")
            refused([], "import", "good", file)
    node.atoll("table", "put", "good", json.dumps(good))
    refused(["by_name"], "put", "good", json.dumps(dict(good, id=2)))
    refused(["1"], "put", "good", json.dumps(good), "--if-absent")
    refused([], "put", "good", json.dumps(good), "--if-version", 999_999)
    refused(["operation 2"], "txn", json.dumps([{"put": "good", "row": dict(good, id=5, name="five")}, {"put": "good", "row": {"id": "six"}}]))
    refused(["1001"], "txn", json.dumps([{"delete": "good", "key": [n]} for n in range(1001)]))
    refused(["id"], "drop-column", "good", "id")
    refused(["by_size"], "drop-index", "good", "by_size")
    rows = [json.loads(line) for line in node.atoll("table", "scan", "good", "--json").stdout.splitlines()]
    need(rows == [good], f"what was refused is there: {rows}")
    return f"{count} refused in words"


def broken_file(bench):
    """A file with broken lines: refused as a whole, or the rest imported, as asked; each broken line by its number."""
    node, path = bench.node, bench.drill.folder / "broken.csv"
    node.atoll("table", "create", "lines", "--column", "id:int64", "--column", "name:text", "--key", "id")
    lines = [f"{n},name {n}" for n in range(1, 2001)]
    lines[500], lines[1500] = "many,name", "1501,name,more"
    path.write_text("id,name\n" + "\n".join(lines) + "\n")
    done = node.atoll("table", "import", "lines", path, check=False)
    words = done.stderr.decode()
    need(done.returncode == 2 and "line 502" in words and "nothing was imported" in words, f"a file with a broken line: {done.returncode}: {words}")
    need(not node.atoll("table", "scan", "lines", "--json").stdout, "rows of a refused file are there")
    done = node.atoll("table", "import", "lines", path, "--skip-bad-lines", "--json")
    words = done.stderr.decode()
    need(json.loads(done.stdout)["rows"] == 1998 and "line 502" in words and "line 1502" in words, f"with --skip-bad-lines: {done.stdout} {words}")
    count = len(node.atoll("table", "scan", "lines", "--json").stdout.splitlines())
    need(count == 1998, f"{count} rows were imported")
    for name, text in (("binary.jsonl", "\udcff\udcfe{\n"), ("head.csv", "id,colour\n1,red\n")):
        other = bench.drill.folder / name
        other.write_bytes(text.encode(errors="surrogateescape"))
        done = node.atoll("table", "import", "lines", other, check=False)
        need(done.returncode in (1, 2) and b"panicked" not in done.stderr, f"{name}: {done.returncode}: {done.stderr}")
    return "2,000 lines, 2 of them broken: all refused, or 1,998 imported, as asked"


def body(drill):
    cases = [frames, order, before_a_session, flood, never_reads, byte_by_byte, paths_and_acls, tables, broken_file]
    shown, broken = [], []
    with Alone(drill.binary, drill.folder / "node" / "data") as node:
        pid = node.pid
        healthy, watch = Healthy(node.zookeeper()), Watch(pid)
        for case in cases:
            name, longest = case.__name__.replace("_", " "), healthy.longest
            healthy.longest = 0.0
            watch.most = memory(pid)[0]
            try:
                said = case(Bench(drill, node))
                healthy.check(name)
                verdict = "holds"
            except (Failed, OSError, AssertionError) as words:
                said, verdict = repr(words), "FAILS"
                broken.append(name)
            say(f"{name}: {verdict}")
            more = (watch.most - watch.before) / 1e6
            shown.append((name, verdict, f"{healthy.longest * 1e3:.0f}", f"{more:.0f}", said[:140]))
            healthy.longest = max(longest, healthy.longest)
            if watch.most - watch.before > MORE_BYTES:
                broken.append(f"{name}: {more:.0f} MB more than before")
        healthy.over.set()
        need(node.process.poll() is None, "the node went down")
        need("panicked" not in node.output.read_text(errors="replace"), "the node panicked")
    say()
    table(shown, ("case", "", "longest write of the healthy client, ms", "MB more than before", "what was done"))
    drill.result.update(cases={name: verdict for name, verdict, *_ in shown}, healthy_writes=healthy.writes, before_mb=round(watch.before / 1e6))
    need(not broken, "; ".join(f"{n}: {w}" for n, v, _, _, w in shown if v == "FAILS") or "; ".join(broken))


if __name__ == "__main__":
    Drill(
        "bad_input_database",
        __doc__,
        rounds=(200, 10, "bodies that are none, of every operation"),
        connections=(1_000, 200, "of a flood"),
        unread_seconds=(25, 4, "how long events are made for clients that do not read"),
    ).run(body)
