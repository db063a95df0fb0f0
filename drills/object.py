#!/usr/bin/env python3
"""A log moves into an object store and back while it is written, and what was appended is read back through every node.

Three real nodes share a directory as their object store (`file://`). A file is appended, line by line, to a log that is in the store at
first. Meanwhile the log moves to another ObjectLoglet, to one with other sizes, and to native, over and over, and nodes are killed with
`kill -9`. The bytes that each node then gives equal the input, in the input's order. The objects are where they should be, and no object
is readable as text, because all are compressed.

With `--store s3` the objects are in a real server that speaks S3. A proxy in front of it loses requests and answers, refuses some as too
many, delays others, and for some seconds lets none through. Wrong credentials are refused by name.

Then a segment in the store is damaged by one bit: every node refuses to give it, and says so. A URL with a password, a place that cannot be
written, and a missing URL are refused by name, before anything is sealed.
"""

import contextlib
import hashlib
import json
import threading
import time

import object_server
import object_stores
from cluster import Cluster, Drill, Failed, end, need, poll, say, table

LOG = "shelf"
DEPTH = 64
OBJECT = "object"


def write_input(path, count):
    """Lines that can be told apart; their sum."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for n in range(count):
            line = b"line %d %s\n" % (n, hashlib.sha256(b"%d" % n).hexdigest()[: n % 61].encode())
            file.write(line)
            digest.update(line)
    return digest.hexdigest()


def extend(cluster, *args, check=True):
    """Moves the log; the seconds that it took, or None if it did not move."""
    before, began = cluster.active(LOG)["loglet"], time.monotonic()
    done = cluster.atoll("chain", "extend", "--log", LOG, *args, check=check)
    moved = done.returncode == 0 and cluster.active(LOG)["loglet"] != before
    need(moved or not check, f"the log did not move with {args}")
    return time.monotonic() - began if moved else None


class Killer(threading.Thread):
    """Kills one node after the other, each once the last one is back."""

    def __init__(self, drill, cluster):
        super().__init__(daemon=True)
        self.drill, self.cluster = drill, cluster
        self.done, self.trouble = 0, None

    def run(self):
        try:
            while self.done < self.drill.args.kills:
                time.sleep(self.drill.random.uniform(0.2, 1.0))
                pids, _ = self.cluster.signal([self.drill.random.choice(self.cluster.ids())])
                self.done += len(pids)
                self.cluster.wait_back(pids)
        except Exception as trouble:  # noqa: BLE001, told by the drill on its own thread
            self.trouble = trouble


def credentials(cluster, store):
    """The server takes other credentials: a move is refused, and names them. Once they are right again, it is done."""
    before = cluster.active(LOG)["loglet"]
    to = ("--log", LOG, "--loglet", OBJECT, "--option", f"url={store.url}")
    store.server.restart(secret="another")
    done = cluster.atoll("chain", "extend", *to, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace")
    need(done.returncode != 0 and "credentials" in said, f"wrong credentials were answered with {said!r}")
    need(object_server.SECRET not in said, f"an answer repeats a secret: {said!r}")
    need(cluster.active(LOG)["loglet"] == before, "a refused move has moved the log")
    store.server.restart()
    extend(cluster, *to[2:])
    extend(cluster, "--loglet", "native")


def moves(drill, cluster, path, url, still):
    """Appends the file while the log moves, and goes on moving while `still()`; how long each move took, by its kind."""
    errors = drill.folder / "append.err"
    # The first lines go to the store, however soon the last one is written.
    cluster.create_log(LOG)
    extend(cluster, "--loglet", OBJECT, "--option", f"url={url}")
    with open(errors, "wb") as err:
        appender = cluster.spawn("log", "append", "--log", LOG, "--lines", path, "--depth", DEPTH, "--json", stdout=err, stderr=err)
    killer = Killer(drill, cluster)
    killer.start()
    ways = {
        "to the store": ("--loglet", OBJECT, "--option", f"url={url}"),
        "in the store": ("--loglet", OBJECT, "--option", "interval_ms=5", "--option", "batch_bytes=65536"),
        "back": ("--loglet", "native"),
    }
    took, failed = {way: [] for way in ways}, 0
    try:
        until = time.monotonic() + drill.args.seconds
        while appender.poll() is None or killer.is_alive() or still() or not all(took.values()):
            need(time.monotonic() < until, f"appending and moving took more than {drill.args.seconds} s: {took}")
            for way, args in ways.items():
                try:
                    seconds = extend(cluster, *args, check=False)
                except Failed:  # A node that is down may not answer for the chain.
                    seconds = None
                if seconds is None:
                    failed += 1
                else:
                    took[way].append(seconds)
                time.sleep(0.3)
        killer.join()
        need(not killer.trouble, f"the killer could not continue: {killer.trouble}")
        need(appender.wait(60) == 0, f"appending failed: {errors.read_text(errors='replace')[-1000:]}")
    finally:
        end(appender)
    drill.result.update(moves=sum(map(len, took.values())), failed_moves=failed, kills=killer.done)
    return took


def read_back(cluster, number, sha256):
    """Reads the log through one node."""
    done = cluster.atoll("log", "read", "--raw", "--log", LOG, "--node", number, timeout=300)
    found = hashlib.sha256(done.stdout).hexdigest()
    need(found == sha256, f"what node {number} gives is not the input: {len(done.stdout)} bytes")


def objects(store):
    """The objects of logs, newest last."""
    return sorted((p for p in store.rglob("log/*") if p.is_file()), key=lambda p: p.stat().st_mtime)


def bad_input(cluster, folder):
    """Wrong places are refused before anything is sealed."""
    before = cluster.active(LOG)["loglet"]
    locked = folder / "locked"
    locked.write_text("a file, not a directory")
    for words, url in (
        ("s3://BUCKET/PREFIX", "s3://key:secret@bucket/x"),
        ("s3://BUCKET/PREFIX", "ftp://bucket/x"),
        ("object store", f"file://{locked}/x"),
    ):
        done = cluster.atoll("chain", "extend", "--log", LOG, "--loglet", OBJECT, "--option", f"url={url}", "--json", check=False)
        said = (done.stdout + done.stderr).decode(errors="replace")
        need(done.returncode != 0 and words in said, f"the URL {url} was answered with {said!r}")
        need("secret" not in said, f"an answer repeats a secret: {said!r}")
    need(cluster.active(LOG)["loglet"] == before, "a refused move has moved the log")


def damaged(cluster, store):
    """One changed bit in an object: no node gives its entries."""
    extend(cluster, "--loglet", OBJECT, "--option", f"url={store.url}")
    cluster.atoll("log", "append", "--log", LOG, "the record that rots")
    hit = objects(store.objects)[-1]
    extend(cluster, "--loglet", "native")
    data = bytearray(hit.read_bytes())
    data[-1] ^= 1
    hit.write_bytes(data)
    said = []
    for number in cluster.ids():
        done = cluster.atoll("log", "read", "--raw", "--log", LOG, "--node", number, check=False, timeout=120)
        # A node that has appended or read the object has it in memory.
        if done.returncode != 0:
            need(b"damaged" in done.stderr, f"node {number} said {done.stderr!r} of a damaged object")
            said.append(number)
    need(said, "no node has noticed a damaged object")
    return said


def body(drill):
    path = drill.folder / "input"
    sha256 = write_input(path, drill.args.lines)
    with contextlib.ExitStack() as until:
        store = object_stores.make(drill, until)
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3))
        in_store(drill, cluster, store, path, sha256)


def in_store(drill, cluster, store, path, sha256):
    """The drill, over one store."""
    cluster.create_log(LOG)
    with object_stores.failing(drill, store.proxy) as still:
        took = moves(drill, cluster, path, store.url, still)
    say()
    table([(way, len(all_), f"{min(all_):.3f}", f"{max(all_):.3f}") for way, all_ in took.items()], ("moved", "times", "shortest s", "longest s"))
    for number in cluster.ids():
        read_back(cluster, number, sha256)
    found = objects(store.objects)
    need(found, "there are no objects")
    need(all(b"line 1" not in p.read_bytes() for p in found), "an object is readable as text")
    size = sum(p.stat().st_size for p in found)
    say(f"{drill.args.lines} lines are the same through every node; {len(found)} objects, {size} bytes")
    drill.result.update(lines=drill.args.lines, objects=len(found), object_bytes=size, input_bytes=path.stat().st_size)
    bad_input(cluster, drill.folder)
    if store.proxy:
        credentials(cluster, store)
    chain = json.dumps(cluster.chain(LOG))
    need("secret" not in chain and OBJECT in chain, f"the chain is {chain}")
    say(f"a damaged object was refused by nodes {damaged(cluster, store)}")


if __name__ == "__main__":
    Drill(
        "object",
        __doc__,
        store=("file", "file", "file: a directory; s3: a server that speaks S3"),
        lines=(300_000, 20_000, "lines of the input"),
        kills=(8, 2, "how many nodes are killed"),
        seconds=(900, 240, "most time for appending and moving"),
        outage_s=(30, 3, "how long the server cannot be reached, with s3"),
    ).run(body)
