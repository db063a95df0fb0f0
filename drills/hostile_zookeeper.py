"""Hostile but well-formed requests at ZooKeeper's door: extreme counts, depths, sizes and pipelines of every operation. hostile.py runs it
as a separate process: `hostile_zookeeper.py ADDRESSES ADMIN SEED SECONDS SCALE`. It prints a line of JSON when a case begins and when it
ends. Standard library only."""

import contextlib
import json
import random
import socket
import struct
import sys
import threading
import time
import urllib.request

import jute
from jute import Wire

MIB = 1 << 20
# Below jute.maxbuffer, which bounds a frame.
FRAME_BYTES = 1_000_000
INVALID_ACL, BAD_ARGUMENTS = -114, -8
WORDS = ("conf cons crst dirs dump envi gtmk isro mntr ruok srst srvr stat stmk wchc wchp wchs").split()
COMMANDS = (
    "configuration connections dirs dump environment get_trace_mask hash initial_configuration is_read_only last_snapshot leader monitor "
    "observers ruok server_stats set_trace_mask stats system_properties voting_view watches watches_by_path watch_summary zabstate snapshot"
).split()
# Atoll's own.
IMPORT = 0x4154_4F4C


def frame(xid, op, body):
    """A request with its length."""
    return struct.pack(">iii", len(body) + 8, xid, op) + body


class Attack:
    """What cases share."""

    def __init__(self, hosts, admin, rng, scale):
        self.hosts, self.admin, self.random, self.scale = hosts, admin, rng, scale

    def wire(self, **options):
        """A new connection, at any node."""
        return Wire(self.random.choice(self.hosts), patience_s=20, **options)

    def count(self, most):
        """Up to so many, of any magnitude."""
        return max(1, int(most * self.scale * 10 ** -self.random.uniform(0, 2)))

    def setup(self):
        """What the cases need: large data, many children, many that went, a deep path, a quota."""
        with contextlib.closing(self.wire()) as wire:
            for path in ("/h", "/h/many", "/h/gone", "/h/s", "/h/hot", "/zookeeper/quota/h"):
                wire.call(jute.CREATE, jute.create(path))
            wire.call(jute.CREATE, jute.create("/h/large", b"x" * 900_000))
            for first in range(0, int(50_000 * self.scale), 500):
                wire.call(jute.MULTI, jute.multi([(jute.CREATE, jute.create(f"/h/many/{n:06}")) for n in range(first, first + 500)]))
            for first in range(0, int(50_000 * self.scale), 500):
                names = [f"/h/gone/{n:06}" for n in range(first, first + 500)]
                wire.call(jute.MULTI, jute.multi([(jute.CREATE, jute.create(n)) for n in names]))
                wire.call(jute.MULTI, jute.multi([(jute.DELETE, jute.versioned(n)) for n in names]))
            for n in range(10):
                wire.call(jute.CREATE, jute.create(f"/h/gone/x{n}"))
            wire.call(jute.CREATE, jute.create("/zookeeper/quota/h/zookeeper_limits", b"count=100000000,bytes=-1"))

    def flood(self, op, body, times, read=True, wire=None, patience_s=10):
        """One request so many times without waiting, then its answers, as far as they come in time."""
        wire = wire or self.wire()
        wire.socket.settimeout(patience_s)
        chunk = frame(1, op, body)
        until = time.monotonic() + patience_s

        def send():
            with contextlib.suppress(OSError):
                for _ in range(times):
                    wire.socket.sendall(chunk)
                    if time.monotonic() > until:
                        return

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        got = 0
        with contextlib.suppress(OSError, ConnectionError):
            while read and time.monotonic() < until and (more := wire.socket.recv(MIB)):
                got += len(more)
                if not sender.is_alive():
                    wire.socket.settimeout(1)
        sender.join(patience_s)
        wire.close()

    def at_once(self, *calls):
        """Several at the same time."""
        threads = [threading.Thread(target=self.quietly, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    def quietly(self, call):
        """Whatever becomes of the connection."""
        with contextlib.suppress(OSError, ConnectionError, AssertionError, struct.error):
            call()

    # Reads.

    def multi_read_large(self):
        """20,000 getData of 900 kB in one frame."""
        reads = jute.multi([(jute.GET, jute.watched("/h/large"))] * self.count(20_000))
        self.flood(jute.MULTI_READ, reads, self.random.choice((1, 1, 5)), read=self.random.random() < 0.7)

    def multi_read_lists(self):
        """Lists of many children, many times in one frame."""
        path = self.random.choice(("/h/many", "/h/gone"))
        self.flood(jute.MULTI_READ, jute.multi([(jute.CHILDREN, jute.watched(path))] * self.count(20_000)), 1)

    def large_reads(self):
        """getData of 900 kB, by several clients, some of which never read."""
        times = self.count(500)
        self.at_once(*[lambda n=n: self.flood(jute.GET, jute.watched("/h/large"), times, read=n % 2 == 0) for n in range(6)])

    def lists(self):
        """Lists of 50,000 children, of 10 beside 50,000 that went, and counts of all nodes, pipelined."""
        asked = [
            (jute.CHILDREN, jute.watched("/h/many")), (jute.CHILDREN2, jute.watched("/h/gone")), (jute.COUNT, jute.string("/")),
        ]
        times = self.count(300)
        self.at_once(*[lambda a=a: self.flood(*a, times) for a in asked])

    def ephemerals(self):
        """getEphemerals of a session with very many, pipelined; then the session ends."""
        wire = self.wire()
        for first in range(0, self.count(50_000), 500):
            ops = [(jute.CREATE, jute.create(f"/h/s/{wire.session:x}-{n}", flags=1)) for n in range(first, first + 500)]
            wire.call(jute.MULTI, jute.multi(ops))
        for _ in range(30):
            wire.ask(jute.EPHEMERALS, jute.string("/"))
        wire.ask(jute.CLOSE)
        with contextlib.suppress(OSError, ConnectionError):
            while wire.receive():
                pass

    def expiries(self):
        """Sessions with very many ephemerals whose clients go without a word, all at the same moment."""
        wires = [self.wire(timeout_ms=4_000) for _ in range(6)]
        # Only many of them keep the replicas busy for so long that one may fall behind the others.
        count = self.random.choice((int(20_000 * self.scale), self.count(20_000)))

        def fill(wire):
            for first in range(0, count, 500):
                names = [f"/h/s/{wire.session:x}-{n}" for n in range(first, min(first + 500, count))]
                wire.call(jute.MULTI, jute.multi([(jute.CREATE, jute.create(name, flags=1)) for name in names]))

        self.at_once(*[lambda wire=wire: fill(wire) for wire in wires])
        for wire in wires:
            wire.close()
        # They expire after their timeout, and a node looks for that every 200 ms.
        time.sleep(6)

    def long_paths(self):
        """Reads with the longest and deepest paths, with watches."""
        path = self.random.choice(("/" + "p" * 16_000, "/d" * 8_000, "/" + "p" * 900_000))
        op = self.random.choice((jute.EXISTS, jute.GET, jute.CHILDREN, jute.GET_ACL, jute.COUNT, jute.SYNC, jute.EPHEMERALS))
        body = jute.string(path) if op in (jute.GET_ACL, jute.COUNT, jute.SYNC, jute.EPHEMERALS) else jute.watched(path, True)
        self.flood(op, body, self.count(2_000))

    def idle_readers(self):
        """Clients that read once and are idle, while a node is written that they read."""
        with contextlib.closing(self.wire()) as writer, contextlib.ExitStack() as stack:
            for n in range(40):
                reader = stack.enter_context(contextlib.closing(self.wire()))
                reader.call(jute.GET, jute.watched("/h/hot"))
                writer.call(jute.SET, jute.written("/h/hot", b"%d" % n))
            self.flood(jute.SET, jute.written("/h/hot", b"again"), self.count(20_000))

    # Watches.

    def set_watches(self):
        """As many watches as a frame holds, brought along; persistent ones; at all levels of a deep path."""
        count = self.count(80_000)
        paths = [jute.string(f"/h/w{n}") for n in range(count)]
        lists = [paths[k * count // 5:(k + 1) * count // 5] for k in range(5)]
        body = struct.pack(">q", 0) + b"".join(struct.pack(">i", len(one)) + b"".join(one) for one in lists)
        self.flood(jute.SET_WATCHES2, body[:FRAME_BYTES], self.random.choice((1, 1, 3)))

    def watch_floods(self):
        """addWatch, checkWatches and removeWatches, pipelined."""
        wire, other = self.wire(), self.wire()
        deep = "/d" * 250
        for end in range(2, len(deep) + 1, 2):
            wire.ask(jute.ADD_WATCH, jute.string(deep[:end]) + struct.pack(">i", 1))
        op = self.random.choice((jute.ADD_WATCH, jute.CHECK_WATCHES, jute.REMOVE_WATCHES))
        self.flood(op, jute.string("/h/nothing") + struct.pack(">i", 1), self.count(50_000), wire=wire)
        other.close()

    # Writes.

    def multi_writes(self):
        """The largest transactions, pipelined, from several clients; some fail at their end."""
        kind = self.random.choice(("check", "set", "create", "same"))
        if kind == "check":
            ops = [(jute.CHECK, jute.versioned("/h"))] * 32_000
        elif kind == "set":
            ops = [(jute.SET, jute.written("/h/hot", b"1"))] * 25_000
        elif kind == "create":
            top = f"/h/m{self.random.random()}"
            ops = [(jute.CREATE, jute.create(top))] + [(jute.CREATE, jute.create(f"{top}/{n}")) for n in range(8_000)]
        else:
            ops = [(jute.CREATE, jute.create("/h/again")), (jute.DELETE, jute.versioned("/h/again"))] * 6_000
        if self.random.random() < 0.5:
            ops.append((jute.CHECK, jute.versioned("/h/none", 7)))
        body = jute.multi(ops[:max(2, self.count(len(ops)))])
        times = self.random.choice((1, 5, 20))
        self.at_once(*[lambda: self.flood(jute.MULTI, body, times) for _ in range(self.random.choice((1, 4)))])

    def deep_writes(self):
        """A path with as many levels as are taken, below a quota and watched at each level, and transactions on it."""
        top = "/h"
        with contextlib.closing(self.wire()) as wire:
            levels = 250 if self.random.random() < 0.5 else 4_000
            for first in range(0, levels, 100):
                ops = []
                for _ in range(100):
                    top += "/d"
                    ops.append((jute.CREATE, jute.create(top)))
                for op, body in ops:
                    wire.ask(op, body)
                errors = [wire.answer(wire.xid - 99 + n)[1] for n in range(100)]
                if errors[-1] not in (0, -110):
                    top = top[:2 + 2 * (first + sum(e in (0, -110) for e in errors))]
                    break
            for end in range(2, min(len(top), 2_000), 2):
                wire.call(jute.ADD_WATCH, jute.string(top[:end]) + struct.pack(">i", 1))
            body = jute.multi([(jute.SET, jute.written(top, b"1"))] * min(self.count(2_000), FRAME_BYTES // (len(top) + 30)))
            self.flood(jute.MULTI, body, 10, wire=wire)

    def quotas(self):
        """Quotas at every level, transactions on the deepest node, and the counts of a large subtree again and again."""
        with contextlib.closing(self.wire()) as wire:
            top, node = "/zookeeper/quota/h", "/h"
            for _ in range(self.random.choice((1, 60, 250))):
                top, node = top + "/d", node + "/d"
                wire.call(jute.CREATE, jute.create(node))
                wire.call(jute.CREATE, jute.create(top))
                wire.call(jute.CREATE, jute.create(top + "/zookeeper_limits", b"count=1000000,bytes=-1"))
                wire.call(jute.CREATE, jute.create(top + "/zookeeper_stats", b""))
            # Each operation changes the length, so the usage is counted each time.
            sets = [(jute.SET, jute.written(node, b"1" * (1 + n % 2))) for n in range(FRAME_BYTES // (len(node) + 32))]
            self.flood(jute.MULTI, jute.multi(sets[:max(2, self.count(len(sets)))]), self.random.choice((1, 5)))
            stats = "/zookeeper/quota/h/zookeeper_stats"
            ops = [(jute.DELETE, jute.versioned(stats)), (jute.CREATE, jute.create(stats, b""))] * self.count(50)
            wire.call(jute.CREATE, jute.create(stats, b""))
            wire.call(jute.MULTI, jute.multi(ops))

    def large_writes(self):
        """setData of 900 kB, pipelined, from several clients."""
        body, times = jute.written("/h/large", b"y" * 900_000), self.count(40)
        self.at_once(*[lambda: self.flood(jute.SET, body, times) for _ in range(4)])

    def small_writes(self):
        """Small writes of every kind, far more than are taken at once, from many clients."""
        asked = [
            (jute.SET, jute.written("/h/hot", b"1")), (jute.CREATE, jute.create("/h/q-", flags=2)), (jute.CREATE2, jute.create("/h/q-", flags=3)),
            (jute.CREATE_CONTAINER, jute.create("/h/c-", flags=4)), (jute.CREATE_TTL, jute.create("/h/t-", flags=6, ttl=1)),
            (jute.DELETE, jute.versioned("/h/none")), (jute.SET_ACL, jute.listed("/h/hot", jute.OPEN_ACL)), (jute.SYNC, jute.string("/")),
        ]
        times = self.count(20_000)
        self.at_once(*[lambda a=self.random.choice(asked): self.flood(*a, times) for _ in range(8)])

    def access_lists(self):
        """The longest lists of access and names, on a parent of many, and reads and writes that judge them."""
        wire = self.wire()
        for n in range(64):
            name = b"u" * self.random.choice((1, 1_000, 100_000)) + b"%d:p" % n
            wire.call(jute.AUTH, struct.pack(">i", 0) + jute.string("digest") + jute.buffer(name), xid=-4)
        # As many entries as are accepted, up to 16 KiB. They differ in bits that mean nothing. None is for the client except for the last.
        name = self.random.choice((":", "v" * 10 + ":x", "v" * 900 + ":x"))
        count = min(1_023, (16 * 1024 - len(jute.acl(jute.OPEN_ACL))) // (18 + len(name)))
        entries = [(n << 5 | 31, "digest", name) for n in range(count)] + jute.OPEN_ACL
        if wire.call(jute.SET_ACL, jute.listed("/h/s", entries))[1] == INVALID_ACL:
            raise ValueError(f"a list of {count} entries is refused, so this case tests nothing")
        reads = jute.multi([(jute.GET, jute.watched("/h/s"))] * self.count(20_000))
        writes = jute.multi([(jute.CREATE, jute.create("/h/s/x-", flags=2))] * self.count(5_000))
        checks = jute.multi([(jute.CHECK, jute.versioned("/h/s"))] * self.count(32_000))
        # If there are several, two writes in a row are judged by different ACLs.
        listed = [f"/h/s/l-{n}" for n in range(self.random.choice((1, 2, 100)))]
        for n, path in enumerate(listed):
            wire.call(jute.CREATE, jute.create(path))
            wire.call(jute.SET_ACL, jute.listed(path, [(n + 2_000 << 5 | 31, "digest", name), *entries[1:]]))
        sets = jute.multi([(jute.SET, jute.written(path, b"1")) for path in listed] * max(1, self.count(20_000) // len(listed)))
        watchers = [self.wire() for _ in range(20)]
        for watcher in watchers:
            watcher.call(jute.ADD_WATCH, jute.string("/h/s") + struct.pack(">i", 1))
        # Each of these entries stands for all ids of the client.
        auths = [(n, "auth", "") for n in range(1, self.random.choice((2, 400, 1_025)))]
        owned = jute.multi([(jute.CREATE, jute.create("/h/s/y-", flags=2, entries=auths))] * self.random.choice((1, 50)))
        body, times = self.random.choice(((writes, 3), (checks, 3), (sets, 1), (owned, 20)))
        self.at_once(
            lambda: self.flood(jute.MULTI, body, times, wire=wire), lambda: self.flood(jute.MULTI_READ, reads, 3),
            lambda: self.flood(jute.GET_ACL, jute.string("/h/s"), 2_000))
        for watcher in watchers:
            watcher.close()
        with contextlib.closing(self.wire()) as wire:
            wire.call(jute.SET_ACL, jute.listed("/h/s", jute.OPEN_ACL))

    def created(self, wire, requests):
        """Sends creates, some ahead of their answers; all must succeed."""
        for first in range(0, len(requests), 50):
            some = requests[first:first + 50]
            for body in some:
                wire.ask(jute.CREATE, body)
            errors = {wire.answer(wire.xid - len(some) + 1 + n)[1] for n in range(len(some))}
            if errors - {0}:
                raise ValueError(f"creates failed with {errors}, so this case tests nothing")

    def transaction(self, wire, ops, error):
        """One transaction, whose first error must be this one, or 0 if it must succeed."""
        results = wire.call(jute.MULTI, jute.multi(ops))[2]
        kind, done, first = results.take("i?i")
        while kind == -1 and not done and not first:
            results.take("i")
            kind, done, first = results.take("i?i")
        if first != error:
            raise ValueError(f"a transaction ended with {first} instead of {error}, so this case tests nothing")

    def heavy_transactions(self):
        """Transactions on very many nodes with long lists of access, or with much data, some of them just small enough."""
        with contextlib.closing(self.wire()) as wire, contextlib.closing(self.wire()) as watcher:
            watcher.call(jute.ADD_WATCH, jute.string("/h/s") + struct.pack(">i", 1))
            top = f"/h/s/v{self.random.random()}"
            wire.call(jute.CREATE, jute.create(top))
            if self.random.random() < 0.5:
                fit, count = 1_700, self.random.choice((1_700, 4_000))
                entries = [(n << 5 | 31, "digest", ":") for n in range(850)] + jute.OPEN_ACL
                bodies = [jute.create(f"{top}/{n}", entries=[(n + 2_000 << 5 | 31, "digest", ":"), *entries]) for n in range(count)]
            else:
                fit, count = 36, self.random.choice((36, 100))
                bodies = [jute.create(f"{top}/{n}", b"y" * 900_000) for n in range(count)]
            self.created(wire, bodies)
            sets = [(jute.SET, jute.written(f"{top}/{n}", b"1")) for n in range(count)]
            # Many operations, so that records are weighed.
            more = [(jute.CHECK, jute.versioned(top))] * 1_000
            too_heavy = BAD_ARGUMENTS if count > fit else 0
            self.transaction(wire, more + sets, too_heavy)
            for first in range(0, count, fit):
                self.transaction(wire, [(jute.DELETE, jute.versioned(f"{top}/{n}")) for n in range(first, min(first + fit, count))], 0)

    def watched_transactions(self):
        """As many clients as one address may have, each of which is notified of every operation of the largest transactions."""
        with contextlib.ExitStack() as stack:
            # Other connections of this drill come from another address.
            for _ in range(self.random.choice((20, 150))):
                watcher = stack.enter_context(contextlib.closing(self.wire(source="127.0.3.1")))
                watcher.call(jute.ADD_WATCH, jute.string("/h/s") + struct.pack(">i", 1))
            wire = stack.enter_context(contextlib.closing(self.wire()))
            if wire.call(jute.EXISTS, jute.watched("/h/s/q"))[1]:
                wire.call(jute.CREATE, jute.create("/h/s/q"))
            self.transaction(wire, [(jute.SET, jute.written("/h/s/q", b"1"))] * 20_000, 0)

    def judged_reads(self):
        """Reads of many nodes that each have their own long list of access, by many clients."""
        with contextlib.closing(self.wire()) as wire:
            top, entries = f"/h/s/r{self.random.random()}", [(n << 5 | 31, "digest", ":") for n in range(850)] + jute.OPEN_ACL
            wire.call(jute.CREATE, jute.create(top))
            paths = [f"{top}/{n}" for n in range(1_000)]
            self.created(wire, [jute.create(path, entries=[(n + 2_000 << 5 | 31, "digest", ":"), *entries]) for n, path in enumerate(paths)])
            reads = jute.multi([(jute.GET, jute.watched(path)) for path in paths])
            asked = self.random.choice(((jute.MULTI_READ, reads, 20), (jute.EXISTS, jute.watched(paths[0]), 20_000), (jute.GET_ACL, jute.string(paths[0]), 2_000)))
            self.at_once(*[lambda: self.flood(*asked) for _ in range(self.random.choice((4, 50)))])
            self.transaction(wire, [(jute.DELETE, jute.versioned(path)) for path in paths], 0)

    def heavy_ends(self):
        """A session with much data in its ephemerals, which ends."""
        with contextlib.closing(self.wire()) as wire:
            self.created(wire, [jute.create(f"/h/s/{wire.session:x}-{n}", b"z" * 900_000, flags=1) for n in range(self.count(100))])
            wire.ask(jute.CLOSE)
            with contextlib.suppress(OSError, ConnectionError):
                while wire.receive():
                    pass

    def imports(self):
        """Imports past all lists, of the highest zxid."""
        node = jute.string("/h/hot") + jute.buffer(b"mine") + jute.acl(jute.OPEN_ACL) + struct.pack(">qqqqqiiiq?", 1, 1, 1, 1, 1, 1, 1, 1, 0, True)
        body = struct.pack(">q?i", self.random.choice((1, 1 << 40, (1 << 63) - 1)), True, 1) + node
        with contextlib.closing(self.wire()) as wire:
            for _ in range(self.count(100)):
                wire.ask(IMPORT, body)
            wire.ask(jute.PING, xid=-2)
            with contextlib.suppress(OSError, ConnectionError):
                while struct.unpack_from(">i", wire.receive())[0] != -2:
                    pass

    # Everything else.

    def odd_requests(self):
        """SASL, reconfig, whoAmI, unknown operations, pipelined, with bodies of all sizes."""
        op = self.random.choice((102, jute.RECONFIG, jute.WHO_AM_I, 20, 9_999, -10, 0, jute.PING))
        self.flood(op, jute.buffer(b"z" * self.count(900_000)), self.count(2_000))

    def sessions(self):
        """Sessions that come and go, and connections that say nothing or half of it."""
        with contextlib.ExitStack() as stack:
            for n in range(min(50, self.count(100))):
                with contextlib.suppress(OSError, ConnectionError):
                    host, port = self.random.choice(self.hosts).rsplit(":", 1)
                    half = stack.enter_context(contextlib.closing(socket.create_connection((host, int(port)), timeout=5)))
                    half.sendall(self.random.choice((b"", b"\0", struct.pack(">i", 900_000), b"mnt")))
            for _ in range(self.count(100)):
                with contextlib.suppress(OSError, ConnectionError), contextlib.closing(self.wire()) as wire:
                    wire.call(jute.CREATE, jute.create("/h/e-", flags=3))
                    if self.random.random() < 0.5:
                        wire.ask(jute.CLOSE)

    def half_frames(self):
        """Frames of a megabyte that never end."""
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                with contextlib.suppress(OSError, ConnectionError):
                    wire = stack.enter_context(contextlib.closing(self.wire()))
                    wire.socket.sendall(struct.pack(">i", FRAME_BYTES) + b"\0" * self.random.choice((0, 10, 900_000)))
            time.sleep(0.2)

    def words(self):
        """All four-letter words and admin commands, at the same time."""
        def word(text):
            host, port = self.random.choice(self.hosts).rsplit(":", 1)
            with contextlib.closing(socket.create_connection((host, int(port)), timeout=10)) as one:
                one.sendall(text.encode())
                while one.recv(MIB):
                    pass

        def command(name):
            with urllib.request.urlopen(f"http://{self.random.choice(self.admin)}/commands/{name}", timeout=10) as told:
                told.read()

        asked = [self.random.choice(WORDS) for _ in range(self.count(100))]
        named = [self.random.choice(COMMANDS) for _ in range(self.count(100))]
        self.at_once(lambda: [self.quietly(lambda w=w: word(w)) for w in asked], lambda: [self.quietly(lambda n=n: command(n)) for n in named])


CASES = [name for name, value in vars(Attack).items() if callable(value) and value.__doc__ and name not in
         ("__init__", "wire", "count", "setup", "flood", "at_once", "quietly", "created", "transaction")]


def main():
    hosts, admin, seed, seconds, scale = sys.argv[1].split(","), sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
    rng = random.Random(seed)
    attack = Attack(hosts, admin, rng, scale)
    only = sys.argv[6:] or CASES

    def tell(what, case):
        print(json.dumps({"at": time.monotonic(), "what": what, "case": case}), flush=True)

    tell("begin", "setup")
    attack.setup()
    tell("end", "setup")
    until, order = time.monotonic() + seconds, []
    # Every case once, then by chance.
    while time.monotonic() < until or len(order) < len(only):
        if len(order) < len(only) and time.monotonic() < until * 10:
            case = only[len(order)]
        else:
            case = rng.choice(only)
        order.append(case)
        tell("begin", case)
        attack.quietly(getattr(attack, case))
        tell("end", case)


if __name__ == "__main__":
    main()
