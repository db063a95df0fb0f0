"""What the clients of a history share: the record of their requests and answers, in the format of crates/atoll-judge/src/history.rs."""

import json
import random
import threading
import time

# The mean time between two operations of a client, in seconds.
THINKS_S = 0.012
# The share of clients that read at another node than they write.
APART = 0.3


class Lost(Exception):
    """No answer: what was asked may have been done, or be done yet."""


class NotDone(Exception):
    """It was not done, for a reason that is not of the data."""


class Recorder:
    """A history in the making."""

    def __init__(self, kind, name, keys, seed, seconds):
        self.kind, self.name, self.keys, self.seed = kind, name, keys, seed
        self.random = random.Random(seed)
        self.seconds = seconds
        self.initial = [None] * len(keys)
        self.lines = []
        self.lock = threading.Lock()
        self.values = 0
        self.began = self.ended = None
        self.odd = []

    def value(self):
        """A value that nobody else writes."""
        with self.lock:
            self.values += 1
            return self.values

    def line(self, client, session, steps, plain=False):
        """An operation that is called now."""
        line = {"client": client, "session": session, "call": time.monotonic_ns(), "return": None, "do": steps, "result": None, "zxid": None}
        return line | {"plain": True} if plain else line

    def do(self, client, session, steps, ask):
        """Asks, and records what came of it: `ask` gives (outcome, zxid). True if it was answered."""
        line = self.line(client, session, steps)
        try:
            line["result"], line["zxid"] = ask()
            line["return"] = time.monotonic_ns()
        except Lost:
            pass
        except NotDone:
            return False
        with self.lock:
            self.lines.append(line)
        return line["result"] is not None

    def do_all(self, client, session, asked):
        """The same for requests that are sent at once: (steps, send, receive, plain) of each. True if all were answered."""
        lines = []
        try:
            waiting = []
            for steps, send, receive, plain in asked:
                lines.append(self.line(client, session, steps, plain))
                waiting.append((lines[-1], receive, send()))
            for line, receive, sent in waiting:
                line["result"], line["zxid"] = receive(sent)
                line["return"] = time.monotonic_ns()
        except Lost:
            pass
        with self.lock:
            self.lines += lines
        return all(line["result"] is not None for line in lines)

    def vanished(self, client, session):
        """A session is gone by itself; what it owned went with it, nobody knows when."""
        with self.lock:
            self.lines.append(self.line(client, session, [{"close": session}]) | {"call": 0})

    def run(self, clients):
        """All clients side by side, to their end."""
        self.began = time.monotonic()
        self.until = self.began + self.seconds
        threads = [threading.Thread(target=self.one, args=(client,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.ended = time.monotonic()
        # Not before the others are done: a session takes its ephemerals along.
        for client in clients:
            client.close()

    def one(self, client):
        try:
            client.run()
        except Exception as error:  # Told by the drill: a client that ends early makes a history say less.
            self.odd.append(f"{self.name}: {type(error).__name__}: {error}")

    def working(self, rng):
        """Thinks; whether there is time for more."""
        time.sleep(rng.expovariate(1 / THINKS_S))
        return time.monotonic() < self.until

    def write(self, path):
        """Writes the history."""
        head = {"kind": self.kind, "keys": self.keys, "initial": self.initial, "name": self.name, "seed": self.seed}
        with open(path, "w") as out:
            for line in [head, *sorted(self.lines, key=lambda line: line["call"])]:
                out.write(json.dumps(line) + "\n")

    def unknown(self):
        """How many writes have no answer."""
        return sum(1 for line in self.lines if line["result"] is None and any("get" not in step and step != "list" for step in line["do"]))


def ok(outs, stamp=None):
    """The outcome of what was done."""
    return {"ok": {"outs": outs, "stamp": stamp}}


def refused(at, why):
    """The outcome of what was refused."""
    return {"refused": {"at": at, "why": why}}
