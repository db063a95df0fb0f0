"""Clients of ZooKeeper's door for histories, over the bare wire: their sessions move between nodes and return after kills."""

import dataclasses
import random
import struct
import time
import typing

import jute
from histories_record import APART, Lost, NotDone, Recorder, ok, refused
from jute import Wire

# Long enough that no session of a history expires by itself.
SESSION_MS = 15_000
# How long a reply may take, in seconds.
PATIENCE_S = 1.5
WHY = {-101: "absent", -103: "version", -110: "exists"}
# The last two may be ephemerals, and are not there at first.
KEYS = ["a", "b", "c", "d", "e", "f"]
FIRST = 4
# What a client does, and how often.
TURNS = {"set": 22, "create": 8, "delete": 6, "multi": 20, "get": 25, "list": 4, "plain": 22, "end": 1, "move": 2}
READS = ("get", "list")
LOST = (OSError, struct.error)


def whole(session):
    """A session's id without a sign."""
    return session & 0xFFFF_FFFF_FFFF_FFFF


@dataclasses.dataclass
class Asked:
    """An operation: its steps, its requests (operation, body), and what the reply to the last of them means (zxid, error, reply)."""

    steps: list
    requests: list
    understand: typing.Callable
    plain: bool = False


class Zoo:
    """One client: a session, on one connection after the other. With `apart`, a session of its own at another node for what must be the newest."""

    def __init__(self, recorder, number, hosts, apart=False, synced=True):
        self.recorder, self.number, self.hosts, self.synced = recorder, number, hosts, synced
        self.random = random.Random(f"{recorder.seed}/{number}")
        self.at = number % len(hosts)
        self.wire = None
        self.session, self.password, self.seen = 0, b"\0" * 16, 0
        self.known = {}
        self.reader = Zoo(recorder, number, hosts, synced=synced) if apart else None
        if self.reader:
            self.reader.at, self.reader.known = (self.at + 1) % len(hosts), self.known

    def path(self, key):
        return f"{self.recorder.top}/{KEYS[key]}"

    def connect(self, until):
        """Reaches a node, and the session on it; false if none could be reached in time."""
        while time.monotonic() < until:
            try:
                host = self.hosts[self.at]
                wire = Wire(host, SESSION_MS, self.session, self.password, self.seen, patience_s=PATIENCE_S)
                if wire.session == 0:
                    wire.close()
                    raise NotDone(f"session {self.session:#x} is gone")
                self.wire, self.session, self.password = wire, wire.session, wire.password
                return True
            except LOST:
                self.at = (self.at + 1) % len(self.hosts)
                time.sleep(0.02)
        return False

    def lose(self):
        """Gives the connection up."""
        if self.wire:
            self.wire.close()
        self.wire = None
        self.at = (self.at + 1) % len(self.hosts)

    def ready(self):
        """There is a connection."""
        while self.wire is None:
            before = self.session
            try:
                if not self.connect(self.recorder.until):
                    return False
            except NotDone as gone:
                self.recorder.odd.append(f"{self.recorder.name}: {gone}")
                self.recorder.vanished(self.number, whole(before))
                self.session = 0
        return True

    def run(self):
        while self.recorder.working(self.random):
            kind = self.random.choices(list(TURNS), list(TURNS.values()))[0]
            who = self.reader if self.reader and kind in READS else self
            if not who.ready():
                break
            if not who.turn(kind):
                who.lose()

    def close(self):
        """Ends the session, outside of the history."""
        if self.reader:
            self.reader.close()
        try:
            if self.wire or self.connect(time.monotonic() + PATIENCE_S):
                self.wire.call(jute.CLOSE)
                self.wire.close()
        except (*LOST, NotDone):
            pass

    def send(self, asked):
        """Sends the requests of an operation; their xids."""
        try:
            return [self.wire.ask(op, body) for op, body in asked.requests]
        except LOST as lost:
            raise Lost from lost

    def receive(self, asked, xids):
        """What an operation came to, and the zxid in front of the last reply."""
        try:
            for xid in xids:
                zxid, error, reply = self.wire.answer(xid)
                if zxid > 0:
                    self.seen = max(self.seen, zxid)
                if error != 0 and error not in WHY:
                    self.recorder.odd.append(f"{self.recorder.name}: error {error}")
                    raise Lost
        except LOST as lost:
            raise Lost from lost
        return asked.understand(zxid, error, reply), zxid

    def do(self, *operations):
        """Does operations, all sent before the first is answered; false if the connection is of no use any more."""
        ways = [(one.steps, lambda one=one: self.send(one), lambda xids, one=one: self.receive(one, xids), one.plain) for one in operations]
        return self.recorder.do_all(self.number, whole(self.session), ways)

    def turn(self, kind):
        """One turn of the client; false if it has to go to another node."""
        if kind == "move":
            return False
        if kind == "end":
            return self.end()
        return self.do(getattr(self, kind)())

    def end(self):
        """Ends the session; the next operation opens another."""
        self.do(Asked([{"close": whole(self.session)}], [(jute.CLOSE, b"")], lambda zxid, error, reply: ok([None])))
        self.session, self.password = 0, b"\0" * 16
        return False

    def version(self, key):
        """What the client would expect of a key: mostly the version that it knows."""
        known = self.known.get(key)
        if known is None or self.random.random() < 0.15:
            return -1
        return known

    @staticmethod
    def expect(version):
        return "present" if version < 0 else {"version": version}

    def put(self, key):
        """A setData: a step, and (operation, body)."""
        version, value = self.version(key), self.recorder.value()
        return {"put": [key, value, self.expect(version), None]}, (jute.SET, jute.written(self.path(key), b"%d" % value, version))

    def made(self, key):
        """A create: a step, and (operation, body)."""
        ephemeral = key >= FIRST and self.random.random() < 0.7
        value = self.recorder.value()
        body = jute.create(self.path(key), b"%d" % value, 1 if ephemeral else 0)
        return {"put": [key, value, "absent", whole(self.session) if ephemeral else None]}, (jute.CREATE, body)

    def removed(self, key):
        """A delete: a step, and (operation, body)."""
        version = self.version(key)
        return {"delete": [key, self.expect(version)]}, (jute.DELETE, jute.versioned(self.path(key), version))

    def checked(self, key):
        """A check: a step, and (operation, body)."""
        version = self.version(key)
        return {"check": [key, self.expect(version)]}, (jute.CHECK, jute.versioned(self.path(key), version))

    def set(self):
        key = self.random.randrange(len(KEYS))
        step, request = self.put(key)

        def understand(zxid, error, reply):
            if error:
                self.known.pop(key, None)
                return refused(0, WHY[error])
            self.known[key] = reply.stat()[4]
            return ok([{"version": self.known[key]}], zxid)

        return Asked([step], [request], understand)

    @staticmethod
    def simple(step, request):
        """A write whose answer has no body of interest."""
        return Asked([step], [request], lambda zxid, error, reply: refused(0, WHY[error]) if error else ok([None], zxid))

    def create(self):
        return self.simple(*self.made(self.random.randrange(2, len(KEYS))))

    def delete(self):
        return self.simple(*self.removed(self.random.randrange(2, len(KEYS))))

    def multi(self):
        keys = self.random.sample(range(len(KEYS)), self.random.choice((2, 2, 3)))
        parts = []
        for key in keys:
            kinds = [self.put, self.put, self.checked] + ([self.made, self.removed] if key >= 2 else [])
            parts.append(self.random.choice(kinds)(key))

        def understand(zxid, _, reply):
            outs, errors = results(reply)
            if errors:
                at = next(n for n, error in enumerate(errors) if error != 0)
                return refused(at, WHY[errors[at]])
            return ok(outs, zxid if any("check" not in step for step, _ in parts) else None)

        return Asked([step for step, _ in parts], [(jute.MULTI, jute.multi([request for _, request in parts]))], understand)

    def read(self, plain):
        key = self.random.randrange(len(KEYS))
        requests = [(jute.GET, jute.watched(self.path(key)))]
        if not plain and self.synced:
            requests.insert(0, (jute.SYNC, jute.string(self.recorder.top)))

        def understand(_, error, reply):
            if error:
                self.known.pop(key, None)
                return ok([None])
            data, stat = reply.buffer(), reply.stat()
            self.known[key] = stat[4]
            return ok([{"row": [int(data), stat[4], stat[1]]}])

        return Asked([{"get": key}], requests, understand, plain)

    def get(self):
        return self.read(False)

    def plain(self):
        return self.read(True)

    def list(self):
        """All keys that are there."""
        requests = [(jute.SYNC, jute.string(self.recorder.top)), (jute.CHILDREN, jute.watched(self.recorder.top))]
        return Asked(["list"], requests, lambda zxid, error, reply: ok([{"keys": sorted(map(KEYS.index, reply.strings()))}]))


def results(reply):
    """The results of a multi: outs, or errors."""
    outs, errors = [], []
    while True:
        kind, over, _ = reply.take("i?i")
        if over:
            return outs, errors
        outs.append({"version": reply.stat()[4]} if kind == jute.SET else None)
        if kind == jute.CREATE:
            reply.string()
        if kind == -1:
            errors.append(reply.take("i"))


def prepare(cluster, name, seed, seconds):
    """A recorder whose keys are there."""
    recorder = Recorder("zookeeper", name, KEYS, seed, seconds)
    recorder.top = f"/{name}"
    client = Zoo(recorder, 0, cluster.zookeeper().split(","))
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if client.wire or client.connect(until):
                make_keys(recorder, client)
                client.close()
                return recorder
        except Lost:
            client.lose()
            recorder.top += "-again"
    raise NotDone("the keys of a history could not be made")


def make_keys(recorder, client):
    """Makes the keys that are there at first."""
    for key, path in enumerate([recorder.top, *map(client.path, range(FIRST))], -1):
        value = recorder.value()
        asked = Asked([], [(jute.CREATE, jute.create(path, b"%d" % value))], lambda zxid, error, reply: error)
        error, zxid = client.receive(asked, client.send(asked))
        if error:
            raise Lost
        if key >= 0:
            recorder.initial[key] = [value, 0, zxid]


def clients(recorder, cluster, count, apart=APART, synced=True):
    """Clients of a history. With `synced` false they leave out the sync of what must be the newest."""
    hosts = cluster.zookeeper().split(",")
    return [Zoo(recorder, number, hosts, recorder.random.random() < apart, synced) for number in range(count)]
