#!/usr/bin/env python3
"""Same answers as Apache ZooKeeper: one random history of requests goes to both, and every answer must be the same.

Two sessions send requests of all kinds, valid and invalid, with watches, transactions and access lists. The drill compares errors, results,
every field of Stat except the times, zxids by the change that they stand for, and events with their place among the replies. `--seed`
repeats a history. Then both get writes as long as `jute.maxbuffer` allows, and longer ones, with its default and with 16 MiB. The ZooKeeper server comes from Maven Central. Needs a JDK and mvn.
"""

import contextlib
import random
import struct

import jute
from alone import configured, free_ports
from cluster import Drill, Failed, need, say
from jute import Wire
from zookeeper_apache import Apache

PARTS = ["a", "b", "c"]
BAD = ["", "x", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\x1f", "/zookeeper", "/", "/zookeeper/quota"]
LISTS = [jute.OPEN_ACL] * 12 + [
    [(1, "world", "anyone")], [(31, "auth", "")], [(31, "ip", "127.0.0.1")], [(31, "ip", "10.0.0.0/8")], [],
    [(31, "digest", "u:x")], [(31, "digest", "nocolon")], [(31, "guess", "x")], [(1, "world", "somebody")],
    [(31, "world", "anyone"), (31, "world", "anyone")], [(3, "world", "anyone"), (12, "auth", "")],
]


class History:
    """Draws requests: (session, operation, body, how to read the reply)."""

    def __init__(self, seed, top):
        self.random = random.Random(seed)
        self.top = top
        self.data = 0

    def path(self):
        r = self.random
        if r.random() < 0.03:
            return r.choice(BAD)
        return self.top + "".join("/" + r.choice(PARTS) for _ in range(r.choice((0, 1, 1, 1, 2, 2, 3))))

    def version(self):
        return self.random.choice((-1, -1, -1, 0, 1, 2, 5))

    def bytes(self):
        self.data += 1
        return self.random.choice((b"%d" % self.data, b"", None, b"x" * self.random.choice((10, 1024, 1025, 5000))))

    def list(self):
        return self.random.choice(LISTS)

    def write(self):
        """(operation, body) of a write that a multi may hold, too."""
        r = self.random
        kind = r.choice(("create",) * 6 + ("delete",) * 4 + ("set",) * 4 + ("check",))
        if kind == "delete":
            return jute.DELETE, jute.versioned(self.path(), self.version())
        if kind == "set":
            return jute.SET, jute.written(self.path(), self.bytes(), self.version())
        if kind == "check":
            return jute.CHECK, jute.versioned(self.path(), self.version())
        op = r.choice((jute.CREATE, jute.CREATE, jute.CREATE2, jute.CREATE_CONTAINER, jute.CREATE_TTL))
        path = self.path() + (r.choice(("", "", "-", "/")) if r.random() < 0.2 else "")
        if op == jute.CREATE_CONTAINER:
            return op, jute.create(path, self.bytes(), 4, self.list())
        if op == jute.CREATE_TTL:
            # Not with other modes: a ZooKeeper server ends its process at one of those.
            return op, jute.create(path, self.bytes(), r.choice((5, 6)), self.list(), r.choice((-1, 0, 1 << 30, 1 << 41)))
        return op, jute.create(path, self.bytes(), r.choice((0, 0, 0, 1, 2, 3, 9)), self.list())

    def step(self):
        """The next request."""
        r = self.random
        who = r.choice((0, 0, 1))
        kind = r.random()
        if kind < 0.40:
            op, body = self.write()
            while op == jute.CHECK:  # Within transactions alone.
                op, body = self.write()
            return who, op, body
        if kind < 0.48:
            return who, jute.MULTI, jute.multi([self.write() for _ in range(r.choice((0, 1, 2, 3)))])
        if kind < 0.52:
            return who, jute.SET_ACL, jute.listed(self.path(), self.list(), self.version())
        if kind < 0.80:
            op = r.choice((jute.GET, jute.GET, jute.EXISTS, jute.EXISTS, jute.CHILDREN, jute.CHILDREN2))
            return who, op, jute.watched(self.path(), r.random() < 0.5)
        if kind < 0.84:
            reads = [(r.choice((jute.GET, jute.CHILDREN)), jute.watched(self.path())) for _ in range(r.choice((0, 1, 2, 3)))]
            return who, jute.MULTI_READ, jute.multi(reads)
        if kind < 0.87:
            op, path = r.choice((jute.GET_ACL, jute.COUNT, jute.EPHEMERALS, jute.SYNC)), self.path()
            # Below the empty path ZooKeeper counts the root, too, which it has under two names.
            return who, op, jute.string(path or "/" if op == jute.COUNT else path)
        if kind < 0.91:
            return who, jute.ADD_WATCH, jute.string(self.path()) + struct.pack(">i", r.choice((0, 1, 0, 1, 2)))
        if kind < 0.96:
            op = r.choice((jute.CHECK_WATCHES, jute.REMOVE_WATCHES))
            return who, op, jute.string(self.path()) + struct.pack(">i", 3)
        if kind < 0.97:
            return who, jute.AUTH, struct.pack(">i", 0) + jute.string("digest") + jute.buffer(b"u%d:p" % who)
        if kind < 0.98:
            return who, jute.WHO_AM_I, b""
        return who, jute.PING, b""


class Side:
    """One server, and how its answers read without what may differ."""

    def __init__(self, host, top):
        self.wires = [Wire(host), Wire(host)]
        zxid, error, _ = self.wires[0].call(jute.CREATE, jute.create(top))
        assert error == 0, error
        self.changes = {zxid: "top"}

    def owner(self, owner):
        for number, wire in enumerate(self.wires):
            if owner == wire.session:
                return f"session {number}"
        return owner

    def change(self, zxid):
        return self.changes.get(zxid, "older")

    def stat(self, reply):
        czxid, mzxid, _, _, version, cversion, aversion, owner, length, children, pzxid = reply.stat()
        return [self.change(czxid), self.change(mzxid), self.change(pzxid), version, cversion, aversion, self.owner(owner), length, children]

    def results(self, reply):
        out = []
        while True:
            op, done, error = reply.take("i?i")
            if done:
                return out
            out.append((op, error, self.body(op, reply) if op != -1 else reply.take("i")))

    def body(self, op, reply):
        if op in (jute.CREATE, jute.SYNC):
            return reply.string()
        if op in (jute.CREATE2, jute.CREATE_CONTAINER, jute.CREATE_TTL):
            return reply.string(), self.stat(reply)
        if op in (jute.EXISTS, jute.SET, jute.SET_ACL):
            return self.stat(reply)
        if op == jute.GET:
            return reply.buffer(), self.stat(reply)
        if op == jute.CHILDREN:
            return sorted(reply.strings())
        if op == jute.CHILDREN2:
            return sorted(reply.strings()), self.stat(reply)
        if op == jute.EPHEMERALS:
            return sorted(reply.strings())
        if op == jute.COUNT:
            return reply.take("i")
        if op == jute.GET_ACL:
            return [(reply.take("i"), reply.string(), reply.string()) for _ in range(reply.take("i"))], self.stat(reply)
        if op in (jute.MULTI, jute.MULTI_READ):
            return self.results(reply)
        if op == jute.WHO_AM_I:
            return sorted((reply.string(), reply.string()) for _ in range(reply.take("i")))
        return None

    def step(self, number, who, op, body):
        """The answer, and the events in front of it."""
        wire = self.wires[who]
        xid = {jute.PING: -2, jute.AUTH: -4}.get(op)
        zxid, error, reply = wire.call(op, body, xid)
        changed = error == 0 and op in (jute.CREATE, jute.CREATE2, jute.CREATE_CONTAINER, jute.CREATE_TTL, jute.DELETE, jute.SET, jute.SET_ACL, jute.MULTI)
        if changed:
            # A transaction that failed answers without an error of its own.
            self.changes.setdefault(zxid, number)
        answer = (error, self.body(op, reply) if error == 0 else None)
        # A ping of the other session brings its events forward: those that were due by now.
        self.wires[1 - who].call(jute.PING, b"", -2)
        events = [wire.events, self.wires[1 - who].events]
        for wire in self.wires:
            wire.events = []
        return answer, events


def run_history(drill, apache, atoll):
    """One history against both sides; how many requests were refused alike."""
    top = f"/same-{random.SystemRandom().randrange(1 << 32):08x}"
    history = History(drill.seed, top)
    one, other = Side(apache, top), Side(atoll, top)
    refused, found = 0, {}
    for number in range(drill.args.steps):
        who, op, body = history.step()
        try:
            a = one.step(number, who, op, body)
            b = other.step(number, who, op, body)
        except ConnectionError as error:
            raise Failed(f"step {number}, operation {op} of session {who}, body {body!r}: {error}") from None
        refused += a[0][0] != 0
        kind = (op, a[0][0], b[0][0], a[1] == b[1])
        if a != b and kind not in found:
            found[kind] = number
            say(f"step {number}, operation {op} of session {who}, body {body!r}:\n  ZooKeeper {a}\n  Atoll     {b}")
        if len(found) > drill.args.differences:
            break
    need(not found, f"{len(found)} kinds of differences; the first one, at step {min(found.values(), default=0)}, may have made the others")
    return refused


USUAL_FRAME, LARGEST_FRAME = 0xFFFFF, 16 << 20
# What a setData of `/long` takes in its frame beside the data.
AROUND = 8 + 9 + 4 + 4


def long_writes(host, frame_bytes, rng):
    """What becomes of long writes at a server with this `jute.maxbuffer`, and of what is sent behind them."""
    wire, out = Wire(host), []
    most = frame_bytes - AROUND
    wire.call(jute.CREATE, jute.create("/long"))

    def outcome(answer):
        _, error, reply = answer
        # Of the Stat, the version and the length of the data.
        return error, error or (lambda stat: (stat[4], stat[8]))(reply.stat())

    for size in (999_900, 1_048_540, most // 3, most):
        out.append(outcome(wire.call(jute.SET, jute.written("/long", rng.randbytes(size)))))
    # Pipelined: a long write, a read, a short write, and a read.
    long = rng.randbytes(most)
    asked = [(jute.SET, jute.written("/long", long)), (jute.GET, jute.watched("/long")), (jute.SET, jute.written("/long", b"short"))]
    asked.append(asked[1])
    xids = [wire.ask(*one) for one in asked]
    for xid, (op, _) in zip(xids, asked):
        answer = wire.answer(xid)
        data = answer[2].buffer() if op == jute.GET else None
        out.append((data in (None, long, b"short"), data and len(data), outcome(answer)))
    # Transactions of many writes, with a failing one at the end, and without.
    each = most // 100 - 200
    creates = [(jute.CREATE, jute.create(f"/long/{n:04}", rng.randbytes(each))) for n in range(99)]
    for ops in ([*creates, (jute.CHECK, jute.versioned("/none"))], creates):
        _, error, reply = wire.call(jute.MULTI, jute.multi(ops))
        out.append((error, len(reply.raw)))
        _, error, reply = wire.call(jute.CHILDREN, jute.watched("/long"))
        out.append((error, len(reply.strings())))
    with contextlib.suppress(OSError, ConnectionError):
        wire.call(jute.SET, jute.written("/long", rng.randbytes(most + 1)))
        out.append("answered")
    wire.close()
    # The session goes on.
    again = Wire(host, session=wire.session, password=wire.password)
    out.append((again.session == wire.session, outcome(again.call(jute.EXISTS, jute.watched("/long")))))
    return out


def compare_long_writes(drill, apache, atoll, frame_bytes):
    """The same long writes at both."""
    one, other = (long_writes(host, frame_bytes, random.Random(drill.seed)) for host in (apache, atoll))
    need(one == other, f"long writes with frames of {frame_bytes} bytes: ZooKeeper {one}, Atoll {other}")
    need(all(error == 0 for error, _ in one[:4]), f"not written: {one[:4]}")
    return len(one)


def body(drill):
    # When an empty container goes is nobody's promise: not within the drill.
    never_ms = 3_600_000
    with contextlib.ExitStack() as both:
        apache, atoll = drill.args.apache, drill.args.atoll
        if not apache:
            apache = both.enter_context(Apache(drill.folder / "apache", [f"-Dznode.container.checkIntervalMs={never_ms}"])).host
        if not atoll:
            atoll = f"127.0.0.1:{free_ports(1)[0]}"
            both.enter_context(configured(drill.binary, drill.folder, f'zookeeper = "{atoll}"\n', f"[zookeeper]\ncontainer_check_every_ms = {never_ms}\n"))
        drill.result.update(same=drill.args.steps, refused_alike=run_history(drill, apache, atoll))
        drill.result["long_writes"] = compare_long_writes(drill, apache, atoll, USUAL_FRAME)
    if drill.args.apache or drill.args.atoll:
        return
    (drill.folder / "wide").mkdir()
    with Apache(drill.folder / "wide" / "apache", [f"-Djute.maxbuffer={LARGEST_FRAME}"]) as apache:
        atoll = f"127.0.0.1:{free_ports(1)[0]}"
        settings = f"[zookeeper]\nmax_frame_bytes = {LARGEST_FRAME}\n"
        with configured(drill.binary, drill.folder / "wide", f'zookeeper = "{atoll}"\n', settings):
            drill.result["long_writes"] += compare_long_writes(drill, apache.host, atoll, LARGEST_FRAME)


if __name__ == "__main__":
    Drill(
        "zookeeper-same",
        __doc__,
        apache=("", "", "HOST:PORT of a ZooKeeper server, with extended types enabled, instead of one of our own"),
        atoll=("", "", "HOST:PORT of Atoll, instead of a node of our own"),
        steps=(40_000, 5_000, "how many requests"),
        differences=(0, 0, "continue after so many kinds of differences"),
    ).run(body)
