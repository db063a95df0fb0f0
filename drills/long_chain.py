#!/usr/bin/env python3
"""A log is reconfigured again and again while it is written; its length must not make a reconfiguration slower.

On three nodes, one log is extended many times over one gRPC connection, with one record in each segment. A writer at another node appends
at the same time as every eighth extend, and a third node reads. After a warm-up, and then after each tenth of the extends, the drill
measures an extend, the first append after it, and a cold read of an old position: one in an index page that the reader's handle does not
hold. It also records the nodes' memory and data and the size of the chain. The same extend and append of a short log, at the same time,
distinguish a slow machine from a slow log: relative to them, the last measurements are at most 1.5 times the first. The chain takes at most
64 KiB. In the end the whole log is read and compared with what was acknowledged. Each sealed segment may take 2 KiB of a node's memory. It
takes about a kilobyte on every server that holds it, including its record and its place in an index page; a trim leaves about 20 bytes of
it.
"""

import array
import collections
import itertools
import shutil
import threading
import time

import http2
from cluster import Cluster, Drill, Failed, need, quantile, say, table

LOG = "long"
# A short log, changed only where the other is measured: what that costs says how fast the machine is at the moment.
CONTROL = "control"
# Extends, appends and reads that one measurement is the median of.
SAMPLES = 200
# The last measurement may be so much slower than the first, each divided by the control's: a machine has other work, too.
SLOWER = 1.5
# By what each is divided.
CONTROLS = {"extend_ms": "control_extend_ms", "append_ms": "control_append_ms", "read_ms": "control_append_ms"}
# A chain may take so much of its register, of which there are 256 KiB.
CHAIN_BYTES = 64 * 1024
# Memory per segment at one node.
NODE_BYTES_PER_SEGMENT = 2048
# Segments in an index page, and pages that a handle may hold: reads keep away from those of so many reads before.
PAGE_SEGMENTS, HELD_PAGES = 32, 40
# Changes before the first measurement: from then on there are more old pages than a handle holds.
WARM_UP = 4096
# The writer appends at the same time as one of so many changes.
BESIDE_EVERY = 8
# A connection without a call for so long is given up, in seconds.
UNUSED_S = 4
# Changes may be refused for so long, in seconds.
REFUSED_S = 10
# Records of one read when all are compared.
READ_RECORDS = 4096
# The file system of the data may get so full.
FREE_BYTES = 1 << 30


class Api:
    """One connection to one node; another one after a while without a call, since nobody answers the node's pings meanwhile."""

    def __init__(self, node):
        self.address, self.link, self.used = node.grpc, None, 0

    def call(self, method, *fields, log=LOG):
        """One request; the messages of its answer, none if it was refused."""
        try:
            if time.monotonic() > self.used + UNUSED_S:
                if self.link:
                    self.link.close()
                self.link = http2.Http2(self.address, window=1 << 20, timeout=60)
            answer = self.link.call(f"/atoll.v1.{method}", b"".join([http2.text(1, log), *fields]))
        except http2.Closed as words:
            raise Failed(f"{method}: the node closed the connection: {words}") from None
        self.used = time.monotonic()
        return answer

    def extend(self, log=LOG):
        """Changes the log's configuration; how often it was refused before."""
        began = time.monotonic()
        for refused in itertools.count():
            if self.call("ChainService/Extend", log=log):
                return refused
            # A node that a busy machine holds up for some hundred milliseconds is left out; without a majority nothing is changed.
            need(time.monotonic() < began + REFUSED_S, f"changes have been refused for {REFUSED_S} s")
            time.sleep(0.05)

    def read(self, at, to):
        """The payloads of these positions, as far as one answer has them."""
        payloads = []
        for reply in self.call("LogService/Read", http2.number(2, at), http2.number(3, to)):
            for name, record in http2.fields(reply):
                if name == 2:
                    payloads.append(dict(http2.fields(record)).get(1, b""))
        return payloads


class Writer:
    """Appends numbered records, and knows where each was acknowledged."""

    def __init__(self, node, client, log=LOG):
        self.api, self.client, self.log = Api(node), client, log
        self.positions = array.array("Q")

    def payload(self, number):
        """The record of this number, counted from 0."""
        return b"%d %012d %s" % (self.client, number, b"." * 85)

    def append(self):
        """The next one."""
        number = len(self.positions)
        records = http2.text(3, http2.number(1, number + 1) + http2.text(2, self.payload(number)))
        answer = self.api.call("LogService/Append", http2.fixed(2, self.client), records, log=self.log)
        need(answer, "an append was refused")
        run = dict(http2.fields(answer[0]))[1]
        # A field that is 0 is not sent.
        self.positions.append(dict(http2.fields(run)).get(1, 0))


class Beside(threading.Thread):
    """A writer in a thread of its own, which appends when it is told to."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.writer, self.due, self.ending, self.trouble = Writer(node, 7001), threading.Semaphore(0), False, None

    def run(self):
        try:
            while self.due.acquire() and not self.ending:
                self.writer.append()
        except (Failed, OSError) as words:
            self.trouble = words

    def finish(self):
        """Ends it."""
        self.ending = True
        self.due.release()
        self.join(60)
        need(not self.trouble, f"an append failed: {self.trouble}")


def timed(into, work):
    """Does it, and notes how many milliseconds it took."""
    began = time.monotonic()
    work()
    into.append(1e3 * (time.monotonic() - began))


def memory_bytes(pid):
    """Resident memory of a process."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise Failed(f"process {pid} has no memory")


def data_bytes(node):
    """What a node's data takes on the disk."""
    return sum(512 * f.stat().st_blocks for f in node.data.rglob("*") if f.is_file())


class Chain:
    """The log under change."""

    def __init__(self, drill, cluster):
        self.drill, self.cluster = drill, cluster
        self.nodes = cluster.nodes()
        self.changer, self.reader = Api(self.nodes[0]), Api(self.nodes[2])
        self.filler, self.sampler = Writer(self.nodes[0], 7000), Writer(self.nodes[1], 7002)
        self.control = Writer(self.nodes[1], 7003, CONTROL)
        self.beside = Beside(self.nodes[1])
        self.filler.append()
        self.beside.start()
        self.extends = self.refused = 0
        self.took = array.array("f")
        self.read_pages = collections.deque(maxlen=HELD_PAGES)

    def extend(self):
        """One record and one change: a segment without a record would leave no trace."""
        self.filler.append()
        if self.extends % BESIDE_EVERY == 0:
            self.beside.due.release()
        timed(self.took, self.change)
        self.extends += 1
        need(not self.beside.trouble, f"an append failed: {self.beside.trouble}")

    def change(self):
        """A change alone."""
        self.refused += self.changer.extend()

    def records(self):
        """How many were acknowledged."""
        return sum(len(writer.positions) for writer in self.writers())

    def writers(self):
        """All who append."""
        return self.filler, self.sampler, self.beside.writer

    def cold_position(self):
        """A position of the older half, in an index page that was not read lately."""
        while True:
            at = self.drill.random.randrange(self.records() // 2)
            page = at // PAGE_SEGMENTS
            if page not in self.read_pages:
                self.read_pages.append(page)
                return at

    def measure(self):
        """What a change, an append and a cold read cost now, and what the log takes."""
        extends, appends, reads, control_extends, control_appends = [], [], [], [], []
        for _ in range(SAMPLES):
            timed(extends, self.change)
            timed(appends, self.sampler.append)
            timed(control_extends, lambda: self.changer.extend(CONTROL))
            timed(control_appends, self.control.append)
            at = self.cold_position()
            timed(reads, lambda: need(len(self.reader.read(at, at + 1)) == 1, f"position {at} cannot be read"))
        info = self.cluster.log_info(LOG)
        since, self.took = self.took, array.array("f")
        return {
            "extends": self.extends,
            "extend_ms": round(quantile(extends, 0.5), 3),
            "append_ms": round(quantile(appends, 0.5), 3),
            "read_ms": round(quantile(reads, 0.5), 3),
            "control_extend_ms": round(quantile(control_extends, 0.5), 3),
            "control_append_ms": round(quantile(control_appends, 0.5), 3),
            "extend_p99_ms": round(quantile(since, 0.99), 2),
            "extend_max_ms": round(max(since), 1),
            "segments": info["segments"],
            "chain_bytes": info.get("chain_bytes", 0),
            "memory_mb": round(max(memory_bytes(n.pid) for n in self.nodes) / 1e6, 1),
            "data_mb": round(max(data_bytes(n) for n in self.nodes) / 1e6),
        }

    def compare(self):
        """Reads all of the log: every acknowledged record is where it was acknowledged, and there is none besides."""
        expected = {at: (w, n) for w in self.writers() for n, at in enumerate(w.positions)}
        need(len(expected) == self.records(), "two records were acknowledged at one position")
        at = 0
        while at < len(expected):
            payloads = self.reader.read(at, min(at + READ_RECORDS, len(expected)))
            need(payloads, f"position {at} cannot be read")
            for payload in payloads:
                writer, number = expected[at]
                need(payload == writer.payload(number), f"position {at} has {payload[:20]!r}")
                at += 1
        return at


def go(drill, chain):
    """All changes; the measurements."""
    samples, began, told = [chain.measure()], time.monotonic(), time.monotonic()
    first = chain.extends
    tenths = [first + drill.args.extends * n // 10 for n in range(1, 11)]
    table([samples[0].values()], samples[0].keys())
    while tenths:
        chain.extend()
        done, now = chain.extends - first, time.monotonic()
        if now >= told + 10:
            told, rate = now, done / (now - began)
            say(f"{done} extends, {rate:.0f} per second, {(drill.args.extends - done) / rate:.0f} s to go")
        if chain.extends >= tenths[0]:
            tenths.pop(0)
            samples.append(chain.measure())
            table([samples[-1].values()], samples[-1].keys())
            need(shutil.disk_usage(drill.folder).free > FREE_BYTES, "the file system of the data is nearly full")
    return samples, drill.args.extends / (time.monotonic() - began)


def body(drill):
    with Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        cluster.create_log(CONTROL, drill.args.loglet)
        chain = Chain(drill, cluster)
        for _ in range(WARM_UP):
            chain.extend()
        samples, rate = go(drill, chain)
        chain.beside.finish()
        first, last = samples[0], samples[-1]
        segments = last["segments"] - first["segments"]
        need(segments >= drill.args.extends, f"only {segments} segments came to be")
        say(f"{chain.compare()} records read and compared")
        slower = {k: last[k] / first[k] for k in {*CONTROLS, *CONTROLS.values()}}
        per_segment = (last["memory_mb"] - first["memory_mb"]) * 1e6 / segments
        drill.result.update(
            extends=drill.args.extends,
            records=chain.records(),
            extends_per_s=round(rate),
            refused=chain.refused,
            samples=samples,
            ratios={k: round(ratio, 2) for k, ratio in slower.items()},
            node_bytes_per_segment=round(per_segment),
        )
        need(last["chain_bytes"] <= CHAIN_BYTES, f"the chain takes {last['chain_bytes']} bytes")
        drill.promise(per_segment <= NODE_BYTES_PER_SEGMENT, f"{per_segment:.0f} bytes of memory per segment")
        for what, control in CONTROLS.items():
            words = f"{what}: {first[what]} at first, {last[what]} at last, the control {first[control]} and {last[control]}"
            drill.promise(slower[what] <= drill.within(SLOWER) * slower[control], words)


if __name__ == "__main__":
    Drill("long_chain", __doc__, refuses={}, extends=(1_000_000, 8_000, "how often the log is extended")).run(body)
