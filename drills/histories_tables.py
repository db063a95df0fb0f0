"""Clients of the table service for histories: conditional puts, transactions, and writes that are resent until they are answered."""

import random
import re
import time

import grpc

from grpc_venv import table_service
from histories_record import APART, Lost, NotDone, Recorder, ok, refused

messages, services = table_service()

TABLE = "histories"
KEYS = ["a", "b", "c", "d", "e"]
FIRST = 3
# How long an answer may take, in seconds.
PATIENCE_S = 1.5
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


class Connections:
    """A client of each node, shared by all clients of the drill. A drill's cluster keeps its addresses over kills."""

    def __init__(self, addresses):
        self.channels = [grpc.insecure_channel(address, options=CHANNEL) for address in addresses]
        self.stubs = [services.TableServiceStub(channel) for channel in self.channels]

    def close(self):
        """Closes them."""
        for channel in self.channels:
            channel.close()


def cell(value):
    """A value of a column."""
    kind = "text_value" if isinstance(value, str) else "int64_value"
    return messages.Cell(**{kind: value})


class Tabler:
    """One client. With `apart`, it reads at another node than it writes."""

    def __init__(self, recorder, number, connections, apart=False):
        self.apart = apart
        self.recorder, self.number, self.connections = recorder, number, connections
        self.random = random.Random(f"{recorder.seed}/{number}")
        self.at = number % len(connections.stubs)
        self.id, self.seq = self.random.randrange(1, 1 << 64), 0
        self.known = {}

    def run(self):
        while self.recorder.working(self.random):
            kind = self.random.choices(["get", "put", "transaction"], [35, 30, 35])[0]
            if not getattr(self, kind)():
                self.at = (self.at + 1) % len(self.connections.stubs)

    def close(self):
        """Nothing is left of it."""

    def call(self, method, request, again):
        """An answer: (reply, None), or (None, error) if it was refused for what the data are. With `again` it is sent until it is answered."""
        lost = False
        elsewhere = int(self.apart and method == "Get")
        while True:
            try:
                stub = self.connections.stubs[(self.at + elsewhere) % len(self.connections.stubs)]
                return getattr(stub, method)(request, timeout=PATIENCE_S), None
            except grpc.RpcError as error:
                told = dict(error.trailing_metadata() or ())
                happened, reason = told.get("atoll-happened"), told.get("atoll-reason")
                if happened == "yes":
                    return None, None
                # What an earlier attempt does may still come: a no to this one does not speak for it.
                if happened == "no" and not lost:
                    if reason == "conflict":
                        return None, error.details()
                    if reason not in ("unavailable", "busy", "stopping"):
                        self.recorder.odd.append(f"{self.recorder.name}: {reason}: {error.details()}")
                    raise NotDone from error
                lost = lost or happened != "no"
                if not again or time.monotonic() > self.recorder.until:
                    raise Lost from error
                self.at = (self.at + 1) % len(self.connections.stubs)
                time.sleep(0.02)

    def key(self, key):
        return messages.RowKey(cells=[cell(f"{self.recorder.name}/{KEYS[key]}")])

    @staticmethod
    def row(found):
        """A row as the history has it; None if there was none."""
        if not found.HasField("row"):
            return None
        return {"row": [found.row.cells[1].int64_value, found.row.version, 0]}

    def note(self, key, out):
        if out:
            self.known[key] = out["row"][1]
        else:
            self.known.pop(key, None)

    def get(self):
        keys = self.random.sample(range(len(KEYS)), self.random.choice((1, 1, 2, 3)))

        def ask():
            reply, _ = self.call("Get", messages.GetRequest(table=TABLE, keys=[self.key(key) for key in keys]), False)
            outs = [self.row(found) for found in reply.found]
            for key, out in zip(keys, outs):
                self.note(key, out)
            return ok(outs), None

        return self.recorder.do(self.number, self.number, [{"get": key} for key in keys], ask)

    def expect(self, key):
        """What the client would expect: mostly the version that it knows."""
        luck = self.random.random()
        if luck < 0.15:
            return "any"
        if luck < 0.2:
            return "present"
        return {"version": self.known[key]} if key in self.known else "absent"

    @staticmethod
    def expected(expect):
        """The same as a message."""
        if expect == "any":
            return messages.Expect()
        if isinstance(expect, str):
            return messages.Expect(**{expect: True})
        return messages.Expect(version=expect["version"])

    def put_of(self, key):
        """A put: a step, and the operation."""
        expect, value = self.expect(key), self.recorder.value()
        cells = [messages.NamedCell(column="k", value=self.key(key).cells[0]), messages.NamedCell(column="v", value=cell(value))]
        action = messages.Operation.Put(cells=cells, expect=self.expected(expect))
        return {"put": [key, value, expect, None]}, messages.Operation(table=TABLE, put=action)

    def check_of(self, key):
        expect = self.expect(key)
        action = messages.Operation.Check(key=self.key(key), expect=self.expected(expect))
        return {"check": [key, expect]}, messages.Operation(table=TABLE, check=action)

    def delete_of(self, key):
        expect = self.expect(key)
        action = messages.Operation.Delete(key=self.key(key), expect=self.expected(expect))
        return {"delete": [key, expect]}, messages.Operation(table=TABLE, delete=action)

    def read_of(self, key):
        return {"get": key}, messages.Operation(table=TABLE, read=messages.Operation.Read(key=self.key(key)))

    def transact(self, parts):
        """A transaction of some steps; half of them have a name, and are sent again until they are answered."""
        named = self.random.random() < 0.5
        request = messages.TransactRequest(operations=[operation for _, operation in parts])
        if named:
            self.seq += 1
            request.write.CopyFrom(messages.WriteName(client=self.id, seq=self.seq))
        steps = [step for step, _ in parts]

        def ask():
            reply, error = self.call("Transact", request, named)
            if error:
                at = re.search(r"operation (\d+):", error)
                for step in steps:
                    self.known.pop(next(iter(step.values()))[0] if "get" not in step else step["get"], None)
                return refused(int(at[1]) - 1 if at else None, None), None
            if reply is None:
                return ok(None), None
            outs = [self.row(found) if "get" in step else None for step, found in zip(steps, reply.read)]
            writes = any("put" in step or "delete" in step for step in steps)
            for step in steps:
                if "put" in step:
                    self.known[step["put"][0]] = reply.version
            return ok(outs, reply.version if writes else None), None

        return self.recorder.do(self.number, self.number, steps, ask)

    def put(self):
        return self.transact([self.put_of(self.random.randrange(len(KEYS)))])

    def transaction(self):
        keys = self.random.sample(range(len(KEYS)), self.random.choice((2, 2, 3)))
        kinds = [self.put_of, self.put_of, self.put_of, self.check_of, self.read_of, self.delete_of]
        return self.transact([self.random.choice(kinds)(key) for key in keys])


def make_table(cluster):
    """The table that all histories share."""
    cluster.atoll("table", "create", TABLE, "--column", "k:text", "--column", "v:int64", "--key", "k")


def prepare(connections, name, seed, seconds):
    """A recorder whose first keys are there."""
    recorder = Recorder("table", name, KEYS, seed, seconds)
    recorder.until = time.monotonic() + 30
    # Its writes have names of their own, beside those of the clients to come.
    client = Tabler(recorder, -1, connections)
    for key in range(FIRST):
        _, operation = client.put_of(key)
        operation.put.expect.CopyFrom(messages.Expect())
        client.seq += 1
        write = messages.WriteName(client=client.id, seq=client.seq)
        reply, error = client.call("Transact", messages.TransactRequest(write=write, operations=[operation]), True)
        if reply is None:
            raise NotDone(f"the keys of a history could not be made: {error}")
        recorder.initial[key] = [operation.put.cells[1].value.int64_value, reply.version, 0]
    return recorder


def clients(recorder, connections, count, apart=APART):
    """Clients of a history."""
    return [Tabler(recorder, number, connections, recorder.random.random() < apart) for number in range(count)]
