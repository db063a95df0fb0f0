#!/usr/bin/env python3
"""Hostile but well-formed requests at a node's gRPC door and at its bare sockets, beside a healthy client.

One node runs under `atoll serve --data`. A seed selects the attacks: silent connections at every port, incomplete greetings, streams that
nobody reads, partial messages, lists and names of every length, thousands of requests at once, requests that are cancelled immediately,
endless streams of records, and reads of unknown names. They come from other loopback addresses than the healthy client, which appends a
record every few milliseconds. None of its appends takes longer than half a second, the node's memory grows by at most 1 GB, its files can
be opened throughout, and in the end every acknowledged record is there, once and in order.
"""

import contextlib
import multiprocessing
import pathlib
import random
import struct
import threading
import time

import http2
from alone import Alone, memory
from cluster import Drill, Failed, need, say, table
from http2 import Closed, Http2, fixed, message, number, text

LOG = "healthy"
# The longest write of the healthy client, and how much more memory than before any of it the node may take.
WRITE_WITHIN = 0.5
# The longest write so far is reported as it happens if it took longer: seconds.
SLOW = 0.25
MORE_BYTES = 1_000_000_000
# So long all attackers do the same, or each what it likes.
TURN_SECONDS = 4
# What a hostile client waits for an answer.
PATIENCE = 5
SERVICE = "/atoll.v1."


class Writer:
    """Appends numbered records, one at a time, each under its own name."""

    def __init__(self, address, log):
        self.log = log
        self.acknowledged, self.longest, self.at_longest = 0, 0.0, 0.0
        self.began = time.monotonic()
        self.connection = Http2(address, timeout=60)
        self.write()
        self.longest = 0.0

    def write(self):
        record = b"record %d" % self.acknowledged
        body = text(1, self.log) + fixed(2, 77) + text(3, number(1, self.acknowledged + 1) + text(2, record))
        began = time.monotonic()
        got = self.connection.call(SERVICE + "LogService/Append", body)
        need(got, f"append {self.acknowledged} of the healthy client was refused")
        took = time.monotonic() - began
        if took > self.longest:
            self.longest, self.at_longest = took, began - self.began
        self.acknowledged += 1


def write_until_told(address, log, told):
    """The process of the healthy client: it says that it has begun and which write is the longest so far, writes until something comes, and tells what it saw."""
    trouble, writer, reported = None, None, SLOW
    try:
        writer = Writer(address, log)
        told.send("begun")
        while not told.poll(0.005):
            writer.write()
            if writer.longest > reported:
                reported = writer.longest
                told.send(f"an append took {reported * 1e3:.0f} ms, {writer.at_longest:.1f} s after the beginning")
    except (OSError, Closed, Failed) as error:
        trouble = repr(error)
    told.send((trouble, *((writer.acknowledged, writer.longest, writer.at_longest) if writer else (0, 0.0, 0.0))))


class Healthy:
    """A healthy client in a process of its own: beside the attackers it would measure how long they keep the interpreter."""

    def __init__(self, address, log=LOG):
        self.address, self.log = address, log
        self.acknowledged, self.longest, self.at_longest = 0, 0.0, 0.0
        # What the process says at its end, once it has.
        self.last = None
        context = multiprocessing.get_context("spawn")
        self.told, other = context.Pipe()
        self.process = context.Process(target=write_until_told, args=(address, log, other), daemon=True)
        self.process.start()
        other.close()
        need(self.hear() == "begun", "the healthy client cannot begin")

    def hear(self):
        """What the process says next, within a minute and a half: a call of its ends after one."""
        need(self.told.poll(90), "the healthy client says nothing")
        try:
            return self.told.recv()
        except EOFError:
            raise Failed("the healthy client's process ended") from None

    def has_ended(self):
        """It writes no more, though nobody told it to end. Reports the longest write so far."""
        while self.last is None and self.told.poll(0):
            heard = self.hear()
            if isinstance(heard, str):
                say(f"  {heard}")
            else:
                self.last = heard
        return self.last is not None or not self.process.is_alive()

    def finish(self):
        """Ends it, and compares the log with what was acknowledged."""
        if not self.has_ended():
            self.told.send("end")
        while self.last is None:
            heard = self.hear()
            self.last = None if isinstance(heard, str) else heard
        trouble, self.acknowledged, self.longest, self.at_longest = self.last
        self.process.join(10)
        need(not trouble, f"the healthy client: {trouble}")
        reader = Http2(self.address, timeout=60)
        records = []
        for reply in reader.call(SERVICE + "LogService/Read", text(1, self.log)):
            for field, value in http2.fields(reply):
                if field == 2:
                    records += [inner for n, inner in http2.fields(value) if n == 1]
        need(records == [b"record %d" % n for n in range(self.acknowledged)], f"{self.acknowledged} acknowledged, {len(records)} read, or others")


class Watch(threading.Thread):
    """The most memory and descriptors that the node takes."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid = pid
        self.before = self.most = memory(pid)[0]
        self.files = 0
        self.over = threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.05):
            with contextlib.suppress(OSError, KeyError):
                self.most = max(self.most, memory(self.pid)[0])
                self.files = max(self.files, len(list(pathlib.Path(f"/proc/{self.pid}/fd").iterdir())))


class Hostile:
    """Who attacks: one generator of requests per thread, its source address and its chances."""

    def __init__(self, grpc, others, seed, sources):
        self.grpc, self.others, self.sources = grpc, others, sources
        self.random = random.Random(seed)
        self.held = []

    def source(self):
        """An address of this machine, one of those that are not the healthy client's."""
        return self.random.choice(self.sources)

    def http(self, **options):
        """A connection that speaks HTTP/2."""
        return Http2(self.grpc, self.source(), timeout=PATIENCE, **options)

    def keep(self, connection):
        """Leaves a connection open for a while."""
        self.held.append(connection)
        while len(self.held) > 700:
            self.held.pop(self.random.randrange(len(self.held))).close()

    def let_go(self):
        """Closes all that is open."""
        while self.held:
            self.held.pop().close()

    def name(self):
        """The name of a log: mostly one that is not there, sometimes one that cannot be."""
        kind = self.random.randrange(10)
        if kind == 0:
            return "x" * self.random.choice((0, 200, 201, 60_000, 1_000_000))
        if kind == 1:
            return "ü/\0 " * self.random.randrange(1, 50)
        return LOG if kind == 2 else f"none-{self.random.randrange(1 << 40)}"

    def count(self):
        """How many of something."""
        return self.random.choice((0, 1, 2, 63, 64, 65, 1_000, 10_000, 400_000))

    def ids(self, field, count):
        """A list of ids of nodes, packed, mostly of nodes that are not there."""
        return text(field, b"".join(http2.varint(self.random.randrange(1, 1 << 20)) for _ in range(count)))

    def spec(self):
        """What a Loglet should be like."""
        out = self.ids(2, self.count()) + self.ids(4, self.count())
        return out + (text(1, self.random.choice(("native", "local", "k" * 100_000))) if self.random.random() < 0.3 else b"")

    def silent(self):
        """Connections that say nothing, at any port."""
        for _ in range(self.random.randrange(1, 120)):
            with contextlib.suppress(OSError):
                self.keep(http2.connect(self.random.choice([self.grpc, self.grpc, *self.others]), self.source(), 5))

    def half_greetings(self):
        """A part of the greeting of HTTP/2, or of TLS, and no more."""
        for _ in range(self.random.randrange(1, 60)):
            with contextlib.suppress(OSError):
                one = http2.connect(self.grpc, self.source(), 5)
                one.sendall(self.random.choice((http2.PREFACE[: self.random.randrange(24)], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n")))
                self.keep(one)

    def unread(self):
        """Streams of records that nobody reads: the windows are wide, and the socket is left alone."""
        wide = self.random.random() < 0.5
        one = self.http(window=0x7FFF_FFFF if wide else 65_535, open_all=wide)
        path = self.random.choice(("LogService/Read", "LogService/Read", "TableService/Scan"))
        for _ in range(self.random.choice((1, 10, 100, 250))):
            stream = one.begin(SERVICE + path)
            one.body(stream, message(text(1, "large" if path.endswith("Read") else "t")))
        self.keep(one.socket)

    def unread_answers(self):
        """Large answers, each to one call, that nobody reads."""
        one = self.http()
        rows = b"".join(text(2, text(1, number(2, n * 2))) for n in range(50))
        for _ in range(self.random.choice((1, 20, 250))):
            stream = one.begin(SERVICE + "TableService/Get")
            one.body(stream, message(text(1, "t") + rows))
        self.keep(one.socket)

    def lists(self):
        """Lists of any length where lists may be."""
        calls = (
            ("ChainService/Extend", lambda: text(1, LOG) + text(2, self.spec())),
            ("ChainService/Modify", lambda: text(1, LOG) + text(2, "0" * self.random.choice((32, 1_000_000))) + text(3, self.spec())),
            ("LogService/CreateLog", lambda: text(1, self.name()) + text(2, self.spec())),
            ("ClusterService/NodeAdd", lambda: number(1, 9) + text(2, "h" * self.count() + ":1") + text(3, "log") * self.count()),
            ("TableService/Get", lambda: text(1, "t") + text(2, b"") * self.count()),
            ("TableService/Transact", lambda: text(2, b"") * self.count()),
            ("TableService/CreateTable", lambda: text(2, text(1, "c" * self.count()) + text(3, b"") * self.count())),
            ("TableService/Scan", lambda: text(1, "t") + text(3, text(1, b"") * self.count())),
            ("LogService/Append", lambda: text(1, LOG + "-2") + text(3, number(1, 1) + text(2, b"") * self.count())),
        )
        for _ in range(self.random.randrange(1, 4)):
            path, body = self.random.choice(calls)
            one = self.http()
            try:
                if "Extend" in path or "Modify" in path:
                    body_bytes = body()
                    # What is allowed is not hostile: it would move the log of the healthy client.
                    if len(body_bytes) < 200:
                        continue
                    one.call(SERVICE + path, body_bytes)
                else:
                    one.call(SERVICE + path, body())
            finally:
                one.close()

    def pipeline(self):
        """Very many small requests in one go, answers unread or read."""
        one = self.http()
        empty = ("ClusterService/Status", "LogService/ListLogs", "ClusterService/NodeList", "TableService/ListTables", "DatabaseService/Status")
        named = ("LogService/CheckTail", "ChainService/Show", "LogService/Read", "LogService/Trim", "ChainService/Truncate")
        path = self.random.choice(empty + named * 2)
        streams = []
        for _ in range(self.random.choice((1, 100, 256))):
            stream = one.begin(SERVICE + path)
            one.body(stream, message(b"" if path in empty else text(1, f"none-{self.random.randrange(1 << 40)}")))
            streams.append(stream)
        if self.random.random() < 0.5:
            self.keep(one.socket)
            return
        for stream in streams:
            one.answer(stream, limit=1)
        one.close()

    def unknown_names(self):
        """Reads of names that are none, one after the other."""
        one = self.http()
        for _ in range(self.random.choice((10, 500))):
            path = self.random.choice(("LogService/CheckTail", "ChainService/Show", "LogService/Read"))
            one.call(SERVICE + path, text(1, f"none-{self.random.randrange(1 << 40)}"))
        one.close()

    def half_messages(self):
        """Messages that begin and do not end: a prefix of four megabytes, and a part of them."""
        one = self.http()
        for _ in range(self.random.choice((1, 20, 200))):
            stream = one.begin(SERVICE + self.random.choice(("LogService/Append", "LogService/AppendStream", "TableService/Transact")))
            part = b"\0" + struct.pack(">I", 4_000_000) + b"\x0a" * self.random.choice((0, 100, 60_000))
            room = min(one.window, one.stream_windows[stream])
            one.body(stream, part[: max(1, room)], end=False)
            if one.window <= 0:
                break
        self.keep(one.socket)

    def append_streams(self):
        """Streams of appends that are never opened, or opened and left, or full of records."""
        one = self.http()
        for _ in range(self.random.choice((1, 50, 250))):
            stream = one.begin(SERVICE + "LogService/AppendStream")
            kind = self.random.randrange(3)
            if kind:
                one.body(stream, message(text(1, text(1, f"hostile-{self.random.randrange(8)}") + fixed(2, self.random.randrange(1, 1 << 60)))), end=False)
            if kind == 2:
                for n in range(self.random.randrange(1, 20)):
                    record = text(2, bytes(self.random.choice((0, 100, 10_000))))
                    room = one.stream_windows[stream]
                    body = message(text(2, number(1, n * 10 + 1) + record))
                    if min(room, one.window) > len(body):
                        one.body(stream, body, end=False)
        self.keep(one.socket)

    def called_off(self):
        """Requests that are begun and called off at once."""
        one = self.http()
        for _ in range(self.random.choice((100, 2_000))):
            stream = one.begin(SERVICE + "LogService/CheckTail")
            one.body(stream, message(text(1, LOG)))
            one.send(http2.frame(http2.RST_STREAM, 0, stream, struct.pack(">I", 8)))
            one.stream_windows.pop(stream, None)
        one.close()

    def frames(self):
        """Frames that cost the server an answer each: settings and pings, unread."""
        one = self.http()
        ping, settings = http2.frame(http2.PING, 0, 0, bytes(8)), http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535))
        one.socket.settimeout(2)
        for _ in range(self.random.choice((10, 200))):
            one.send(self.random.choice((ping, settings)) * 50)
        self.keep(one.socket)

    def heads(self):
        """Long heads."""
        one = self.http()
        for _ in range(20):
            one.begin(SERVICE + "LogService/CheckTail", [("x" * 50, "y" * self.random.choice((10, 4_000, 15_000)))])
        self.keep(one.socket)

    KINDS = (silent, half_greetings, unread, unread_answers, lists, pipeline, unknown_names, half_messages, append_streams, called_off, frames, heads)

    def attack(self, until, counts, choose):
        """Attacks until a time, in an order of chance."""
        while time.monotonic() < until:
            kind = choose() or self.random.choice(self.KINDS)
            counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
            # Whatever the door does to such a client is right: it may close, refuse, or let it wait.
            with contextlib.suppress(OSError, Closed, struct.error):
                kind(self)
            if self.random.random() < 0.05:
                self.let_go()
        self.let_go()


def in_turns(seed):
    """Of every two periods about one is for a single kind of attack, by all attackers: mixed with others, none gets far. None stands for any."""
    began = time.monotonic()

    def choose():
        chance = random.Random(f"{seed}-{int((time.monotonic() - began) / TURN_SECONDS)}")
        return chance.choice(Hostile.KINDS) if chance.random() < 0.5 else None

    return choose


def prepare(address):
    """A log and a table with something to read: 24 MB of records of 64 KiB."""
    one = Http2(address, timeout=60)
    record = text(2, bytes(64 * 1024))
    for n in range(6):
        need(one.call(SERVICE + "LogService/Append", text(1, "large") + fixed(2, 5) + text(3, number(1, n * 60 + 1) + record * 60)), "the large log is refused")
    columns = text(3, text(1, "k") + number(2, 2)) + text(3, text(1, "v") + number(2, 5))
    need(one.call(SERVICE + "TableService/CreateTable", text(2, text(1, "t") + columns + text(4, "k"))), "the table is refused")
    for n in range(50):
        cells = text(1, text(1, "k") + text(2, number(2, n * 2))) + text(1, text(1, "v") + text(2, text(5, bytes(100_000))))
        need(one.call(SERVICE + "TableService/Transact", text(2, text(1, "t") + text(4, cells))), "a row is refused")
    one.close()


def storm(grpc, others, pid, seed, seconds, threads=4):
    """Attacks a node for a while beside a healthy client; what came of it. For drills that attack other doors as well."""
    prepare(grpc)
    healthy, watch = Healthy(grpc), Watch(pid)
    until = time.monotonic() + seconds
    counts = {}
    sources = [f"127.0.{n}.{m}" for n in (1, 2) for m in range(1, 5)]
    attackers = [Hostile(grpc, others, f"{seed}-{n}", sources) for n in range(threads)]
    choose = in_turns(seed)
    running = [threading.Thread(target=one.attack, args=(until, counts, choose), daemon=True) for one in attackers]
    for one in running:
        one.start()
    while any(one.is_alive() for one in running):
        time.sleep(0.2)
        if healthy.has_ended():
            healthy.finish()
            raise Failed("the healthy client ended by itself")
        need(time.monotonic() < until + 120, "the attackers do not end")
    watch.over.set()
    healthy.finish()
    return {
        "attacks": sum(counts.values()),
        "by_kind": counts,
        "writes": healthy.acknowledged,
        "longest_write_ms": round(healthy.longest * 1e3),
        "longest_write_at_s": round(healthy.at_longest, 1),
        "more_memory_mb": round((watch.most - watch.before) / 1e6),
        "most_descriptors": watch.files,
    }


def body(drill):
    with Alone(drill.binary, drill.folder / "data") as node:
        others = [node.client_port, *peers_of(node)]
        result = storm(node.grpc, others, node.pid, drill.seed, drill.args.seconds)
        drill.result.update(result)
        table(sorted(result["by_kind"].items()), ("attack", "times"))
        need(node.process.poll() is None, "the node ended")
        status = node.json("status")
        need(status["healthy"], f"the node is not healthy: {status}")
        say(f"{result['writes']} writes, the longest {result['longest_write_ms']} ms; {result['more_memory_mb']} MB more memory")
        need(result["more_memory_mb"] * 1e6 <= MORE_BYTES, f"{result['more_memory_mb']} MB more memory; at most {MORE_BYTES / 1e6:.0f} are promised")
        bound_ms = drill.within(WRITE_WITHIN) * 1e3
        drill.promise(result["longest_write_ms"] <= bound_ms, f"the longest write took {result['longest_write_ms']} ms; at most {bound_ms:.0f} are promised")


def peers_of(node):
    """The node's other ports: for nodes, and for metrics."""
    command = [str(word) for word in node.process.args]
    return [command[command.index(flag) + 1] for flag in ("--peer", "--metrics")]


if __name__ == "__main__":
    Drill("hostile_grpc", __doc__, seconds=(3600, 60, "how long the attack takes")).run(body)
