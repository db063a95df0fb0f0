#!/usr/bin/env python3
"""The sealed segments of a log move into an object store, one after the other, while the log is written and read.

Three nodes hold a log of `--mb` megabytes in `--segments` sealed segments. `atoll chain modify` copies each into the store; a command that
fails is given again until the segment is there. Meanwhile a client appends, and readers go through the whole log at every node. With
`--store s3` the store is a real server that speaks S3 behind a proxy that loses requests and answers, refuses some as too many, delays
others, and for `--outage-s` seconds lets none through. No append fails or waits for long, since the active segment stays on the nodes, and
what is read is what was appended. In the end no sealed segment is on the nodes any more. Then all nodes are killed with `kill -9`, and the
whole log is read again at each of them.
"""

import contextlib
import threading
import time

import object_stores
from cluster import Cluster, Drill, Failed, need, poll, say
from load import Load, verify

LOG = "cold"
LINE_BYTES = 1000
# The longest time between two acknowledgements of the client that appends meanwhile, in seconds.
MOST_GAP_S = 1.0
# How long one attempt to move a segment may take, and all attempts for one segment, in seconds.
ATTEMPT_S, SEGMENT_S = 600, 1800


class Reader(threading.Thread):
    """Reads the first part of the log again and again, each time at another node, and compares."""

    def __init__(self, cluster, load, upto):
        super().__init__(daemon=True)
        self.cluster, self.load, self.upto = cluster, load, upto
        self.over = threading.Event()
        self.times, self.trouble = 0, None

    def run(self):
        ids = self.cluster.ids()
        try:
            while not self.over.is_set():
                connect = self.cluster.connect(ids[self.times % len(ids)])
                done = self.cluster.atoll("log", "read", "--raw", "--log", LOG, "--to", self.upto, connect=connect, timeout=ATTEMPT_S)
                lines = done.stdout.splitlines(keepends=True)
                need(len(lines) == self.upto, f"{len(lines)} of {self.upto} records were read")
                wrong = next((n for n, line in enumerate(lines) if line != self.load.line(n)), None)
                need(wrong is None, f"record {wrong} is not what was appended")
                self.times += 1
        except Exception as trouble:  # noqa: BLE001, told by the drill on its own thread
            self.trouble = trouble

    def finish(self):
        """Ends it; how often it read everything."""
        self.over.set()
        self.join(ATTEMPT_S)
        need(not self.trouble, f"a reader could not continue: {self.trouble}")
        need(self.times, "nothing was read meanwhile")
        return self.times


def grow(cluster, load, lines, segments):
    """Lets the load write so many lines, and seals so many segments on the way."""
    for number in range(segments):
        enough = lines * (number + 1) // segments
        poll(f"{enough} lines are there", 600, lambda: load.acknowledged() >= enough, every=0.2)
        cluster.extend(LOG)


def sealed(cluster):
    """The sealed segments with something in them."""
    return [segment for segment in cluster.chain(LOG)["segments"] if segment["stop"] not in (None, segment["start"])]


def move(cluster, store, segment):
    """Moves a segment into the store; how many attempts that took."""
    attempts, until = 0, time.monotonic() + SEGMENT_S
    while True:
        attempts += 1
        words = ("--id", segment["loglet"], "--loglet", "object", "--option", f"url={store.url}")
        done = cluster.atoll("chain", "modify", "--log", LOG, *words, "--timeout", ATTEMPT_S, check=False, timeout=ATTEMPT_S + 30)
        now = [one for one in sealed(cluster) if one["start"] == segment["start"]]
        need(len(now) == 1 and now[0]["stop"] == segment["stop"], f"the segment {segment} became {now}")
        if now[0]["kind"] == "object":
            return attempts
        need(b"--help" not in done.stderr, f"`atoll chain modify` was not understood: {done.stderr!r}")
        need(time.monotonic() < until, f"the segment did not get into the store: {done.stderr[-1000:]!r}")
        time.sleep(0.2)


def read_everywhere(cluster, loads):
    """Each node gives all records, and only those."""
    for number in cluster.ids():
        verify(cluster, loads, LOG, connect=cluster.connect(number))


def body(drill):
    args = drill.args
    with contextlib.ExitStack() as until:
        store = object_stores.make(drill, until)
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3))
        cluster.create_log(LOG)
        lines = args.mb * 1_000_000 // LINE_BYTES
        first = Load(cluster, drill.folder, LOG, name="a", line_bytes=LINE_BYTES).start()
        grow(cluster, first, lines, args.segments)
        there = first.finish()
        cluster.extend(LOG)
        segments = sealed(cluster)
        need(len(segments) >= args.segments, f"the chain has {len(segments)} sealed segments")
        second = Load(cluster, drill.folder, LOG, name="b", every_s=0.005).start()
        reader = Reader(cluster, first, there)
        reader.start()
        began, attempts = time.time(), []
        with object_stores.failing(drill, store.proxy) as still:
            attempts = [move(cluster, store, segment) for segment in segments]
            took = time.time() - began
            # Until the outage was there, too, and something was read after the moves.
            seen = reader.times
            poll("the outage ends, and the log is read again", args.outage_s + ATTEMPT_S, lambda: reader.trouble or (not still() and reader.times > seen + 1))
        ended = time.time()
        read, more = reader.finish(), second.finish()
        gap = second.acks().longest_gap(began, ended)
        kept = [one for one in sealed(cluster) if one["start"] <= segments[-1]["start"] and one["kind"] != "object"]
        need(not kept, f"these segments are still on the nodes: {kept}")
        read_everywhere(cluster, [first, second])
        pids, _ = cluster.signal(cluster.ids())
        cluster.wait_back(pids)
        poll("the log is served again", 60, lambda: served(cluster))
        read_everywhere(cluster, [first, second])
    drill.result.update(records=there + more, megabytes=args.mb, segments=len(segments), attempts=sum(attempts), moved_s=round(took, 1))
    drill.result.update(reads_meanwhile=read, longest_gap_ms=round(1e3 * gap, 1))
    say(f"{len(segments)} segments, {args.mb} MB, moved in {took:.1f} s with {sum(attempts)} commands; the log was read {read} times meanwhile")
    say(f"the longest time without an acknowledgement was {1e3 * gap:.0f} ms; {there + more} records are the same at every node, before and after the kill")
    bound = drill.within(MOST_GAP_S)
    drill.promise(gap <= bound, f"an append waited {gap:.2f} s; at most {bound} s are promised")


def served(cluster):
    """Whether the log gives its tail."""
    with contextlib.suppress(Failed):
        return cluster.json("log", "check-tail", "--log", LOG)["tail"] > 0
    return False


if __name__ == "__main__":
    Drill(
        "cold",
        __doc__,
        store=("s3", "s3", "file: a directory; s3: a server that speaks S3"),
        mb=(2000, 40, "megabytes of the log"),
        segments=(20, 4, "how many sealed segments it has"),
        outage_s=(600, 3, "how long the server cannot be reached, with s3"),
    ).run(body)
