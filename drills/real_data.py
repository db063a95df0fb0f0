#!/usr/bin/env python3
"""Real data under real kills: what is appended is read back, byte by byte, through every node and from every node's own disk.

At least a million lines of the Debian package index are appended with 64 in flight. The index is the one that `apt-get update` left on this
machine; without one, the drill makes up lines and says so. Meanwhile nodes are killed with `kill -9` at random moments: single nodes, among
them the sequencer's, two at once, and all at the same instant. The bytes that are read back through each node's door equal the input. Once
every server has filled its gaps, so do those from the disk of each node that has a copy, read alone. `--nodes 1` does the same with one
node. `--swap striped,native,local` moves the log to the next kind of Loglet again and again meanwhile.

A Loglet that several nodes order, such as a striped one, does not keep the order of a client that has several appends in flight. There the
input is restored from what each record says of its client and its number, and no record may lie more than the appends in flight away from
its place: an append that was acknowledged before another one began has the lower position.
"""

import contextlib
import hashlib
import json
import pathlib
import subprocess
import threading
import time

from cluster import ORDERED, Cluster, Drill, Failed, end, file_system, flushes_per_second, need, poll, say, table

LOG = "packages"
INDEXES = "/var/lib/apt/lists"
DEPTH = 64
# Seconds between two moves of the log.
SWAP_EVERY = 1


def index_lines():
    """The lines of the package index of this machine, or made-up ones; and where they are from."""
    for path in sorted(pathlib.Path(INDEXES).glob("*_Packages*"), key=lambda p: -p.stat().st_size):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            # By its name: a compressed index has whole stretches of the text in it, too.
            data = path.read_bytes() if path.name.endswith("_Packages") else uncompressed(path)
            if data.count(b"\nPackage: ") > 100:
                return data.rstrip(b"\n").split(b"\n"), f"the Debian package index ({path.name.rpartition('_dists_')[2]})"
    lines = []
    for n in range(20_000):
        name = hashlib.sha256(b"%d" % n).hexdigest()
        lines += [b"Package: lib%s" % name[:12].encode(), b"Version: %d.%d-1" % (n % 17, n % 7), b"Architecture: all"]
        lines += [b"Description: %s" % (b"word " * (n % 23)).strip(), b"SHA256: " + name.encode(), b""]
    return lines, f"made up in the shape of a package index: {INDEXES} has none"


def uncompressed(path):
    """What apt itself makes of a compressed index."""
    done = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], check=True, capture_output=True, timeout=120)
    return done.stdout


def write_input(path, lines, wanted):
    """Writes the lines, over and over up to the number wanted; the number and the sum of the bytes."""
    digest, count = hashlib.sha256(), 0
    block = b"".join(line + b"\n" for line in lines)
    with open(path, "wb") as file:
        while count < wanted:
            part, taken = (block, len(lines)) if wanted - count >= len(lines) else (
                b"".join(line + b"\n" for line in lines[: wanted - count]), wanted - count)
            file.write(part)
            digest.update(part)
            count += taken
    return count, digest.hexdigest()


class Restored:
    """The input, from records in the order of their positions: each client's by their numbers, the clients one after the other."""

    def __init__(self):
        self.digest, self.bytes = hashlib.sha256(), 0
        self.client, self.next = None, 1
        # What comes after a record that is not there yet, by number.
        self.waiting = {}
        self.furthest = 0

    def add(self, record):
        """The next record, as `atoll log read --json` prints it."""
        number, position = record["seq"], record["position"]
        if record["client"] != self.client:
            self.end()
            self.client, self.next = record["client"], 1
        need(number >= self.next and number not in self.waiting, f"record {number} is at position {position}, and once before")
        # Whoever appends the record of this number has an answer for all but the last ones before it.
        self.furthest = max(self.furthest, number - self.next)
        need(self.furthest < DEPTH, f"record {number} is at position {position}, and record {self.next}, acknowledged long before, is not")
        payload = record["payload"].encode() if "payload" in record else bytes.fromhex(record["payload_hex"])
        self.waiting[number] = payload
        while self.next in self.waiting:
            payload = self.waiting.pop(self.next)
            self.digest.update(payload + b"\n")
            self.bytes += len(payload) + 1
            self.next += 1

    def end(self):
        """No more records of this client follow."""
        need(not self.waiting, f"record {self.next} of client {self.client} is missing, and {len(self.waiting)} later ones are there")


class Killer:
    """Kills by a plan that holds every kind, at random moments, each once the last one's nodes are back."""

    def __init__(self, drill, cluster):
        self.cluster = cluster
        self.random = drill.random
        self.ids = cluster.ids()
        self.loglet = drill.args.loglet
        self.kinds = self.plan(drill.args.kills, drill.args.at_once)
        self.pause = (0.2, 1.5) if drill.args.quick else (0.3, 2.5)
        self.done = []
        self.killed = 0
        self.trouble = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def plan(self, kills, at_once):
        """So many of each kind, in any order."""
        if len(self.ids) == 1:
            return ["all"] * kills
        kinds = ["all"] * at_once + ["two"] * at_once
        single = max(2, kills - 2 * at_once)
        kinds += ["sequencer"] * (single // 2) + ["one"] * (single - single // 2)
        self.random.shuffle(kinds)
        return kinds

    def kill(self, kind):
        """Kills once; whom, as id: pid."""
        if kind == "sequencer":
            loss = self.cluster.lose_sequencer(LOG)
            if self.loglet != "local":
                self.cluster.wait_moved(LOG, loss)
            return loss.pids
        count = {"all": len(self.ids), "two": 2, "one": 1}[kind]
        pids, _ = self.cluster.signal(self.random.sample(self.ids, count))
        need(len(pids) == count, f"of {count} nodes that were to be killed {sorted(pids)} ran")
        return pids

    def run(self):
        """Until the plan is done."""
        try:
            for kind in self.kinds:
                if self.stop.wait(self.random.uniform(*self.pause)):
                    return
                pids = self.kill(kind)
                self.done.append(kind)
                self.killed += len(pids)
                self.cluster.wait_back(pids)
        except Exception as trouble:  # told by the drill, on its own thread
            self.trouble = trouble

    def finished(self):
        """Whether the plan is done; fails with the thread's trouble."""
        if self.trouble:
            raise Failed(f"the killer could not continue: {self.trouble}")
        return not self.thread.is_alive()


class Swapper:
    """Moves the log to the next kind of Loglet, again and again, until it is stopped. While nodes are down, a move may fail; it is tried again."""

    def __init__(self, drill, cluster):
        self.cluster = cluster
        self.kinds = drill.kinds
        self.moves, self.refused = 0, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        """Until it is stopped."""
        while not self.stop.wait(SWAP_EVERY):
            kind = self.kinds[self.moves % len(self.kinds)]
            with contextlib.suppress(Failed, subprocess.SubprocessError):
                before = self.cluster.active(LOG)
                done = self.cluster.atoll("chain", "extend", "--log", LOG, "--loglet", kind, check=False)
                if done.returncode == 0 and self.cluster.active(LOG)["loglet"] != before["loglet"]:
                    self.moves += 1
                    continue
            self.refused += 1


def append_rounds(drill, cluster, path, lines):
    """Appends the whole file, again and again until the plan of kills is done: (rounds, seconds)."""
    killer, swapper = Killer(drill, cluster), Swapper(drill, cluster)
    rounds, began = 0, time.monotonic()
    while rounds == 0 or not killer.finished():
        args = ["log", "append", "--log", LOG, "--lines", path, "--depth", DEPTH, "--json"]
        errors = drill.folder / "append.err"
        with open(errors, "wb") as err:
            appender = cluster.spawn(*args, stdout=subprocess.PIPE, stderr=err)
        if rounds == 0:
            # Not before there is something to lose.
            poll("the log is there", 30, lambda: appender.poll() is not None or cluster.log_info(LOG))
            killer.thread.start()
            if swapper.kinds:
                swapper.thread.start()
        try:
            appender.communicate(timeout=drill.args.round_seconds)
        except subprocess.TimeoutExpired:
            end(appender)
            raise Failed(f"appending {lines} lines took more than {drill.args.round_seconds} s") from None
        need(appender.returncode == 0, f"appending failed: {errors.read_text(errors='replace')[-1000:]}")
        rounds += 1
    seconds = time.monotonic() - began
    if swapper.kinds:
        swapper.stop.set()
        swapper.thread.join()
        say(f"\nmoved {swapper.moves} times among {', '.join(swapper.kinds)}; {swapper.refused} moves failed, with nodes down")
        need(swapper.moves > len(swapper.kinds), f"the log was moved {swapper.moves} times only")
        drill.result.update(moves=swapper.moves, failed_moves=swapper.refused)
    kinds = ("sequencer", "one", "two", "all")
    rows = [(kind, killer.done.count(kind)) for kind in kinds]
    say()
    table([row for row in rows if row[1]] + [("together", len(killer.done)), ("processes killed", killer.killed)], ("kill -9 of", "times"))
    need(len(killer.done) == len(killer.kinds), "the plan of kills was not done")
    drill.result.update(kills=len(killer.done), processes_killed=killer.killed, two_at_once=rows[2][1], all_at_once=rows[3][1])
    return rounds, seconds


def raw(reader):
    """The sum of the payloads that a reader prints, and how many bytes they are."""
    digest, count = hashlib.sha256(), 0
    while chunk := reader.stdout.read1(1 << 20):
        digest.update(chunk)
        count += len(chunk)
    return digest.hexdigest(), count, ""


def restored(reader):
    """The same, from records in any order."""
    found = Restored()
    for line in reader.stdout:
        found.add(json.loads(line))
    found.end()
    return found.digest.hexdigest(), found.bytes, f"restored; a record preceded one up to {found.furthest} numbers before it"


def read_back(cluster, number, expected, size, local_only, keeps_order):
    """Reads the whole log through one node and compares: (seconds, what it said about other servers or about the order)."""
    form = "--raw" if keeps_order else "--json"
    args = ["log", "read", form, "--log", LOG, "--node", number, *(["--local-only"] if local_only else [])]
    began = time.monotonic()
    where = f"node {number}{' from its own disk alone' if local_only else ''}"
    with open(cluster.folder / f"read-{number}.err", "w+b") as errors:
        reader = cluster.spawn(*args, stdout=subprocess.PIPE, stderr=errors)
        digest, count, order = (raw if keeps_order else restored)(reader)
        failed = reader.wait() != 0
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    need(not failed, f"reading through {where} failed: {words[-1000:]}")
    need(digest == expected, f"what {where} gives is not the input: {count} bytes, {size} were appended")
    return time.monotonic() - began, order or (words.splitlines()[-1] if words else "")


def repeated(path, rounds):
    """The sum of a file that many times over."""
    digest = hashlib.sha256()
    for _ in range(rounds):
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def with_all_of_it(drill, cluster):
    """The nodes that have a copy of every record. Of native and striped Loglets, every node has one; of others, those that hold something of
    every part of every segment, if there is such a node."""
    if {drill.args.loglet, *drill.kinds} <= {"native", "striped"}:
        return cluster.ids()
    nodes, start = set(cluster.ids()), 0
    while start is not None:
        page = cluster.json("chain", "show", "--log", LOG, "--from", start)
        for segment in page["segments"]:
            for part in {duty["part"] for duty in segment["duties"]}:
                held = {d["node"] for d in segment["duties"] if d["part"] == part and d["binding"] == "holds"}
                nodes &= held or nodes
        start = page["next"]
    return sorted(nodes)


def body(drill):
    lines, origin = index_lines()
    path = drill.folder / "input"
    count, _ = write_input(path, lines, drill.args.lines)
    say(f"input: {count} lines, {path.stat().st_size} bytes, {origin}")
    say(f"durable overwrites of 4 KiB, one by one: {flushes_per_second(drill.folder):.0f}/s on {file_system(drill.folder)}")
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", drill.args.nodes) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        rounds, seconds = append_rounds(drill, cluster, path, count)
        total = rounds * count
        size = rounds * path.stat().st_size
        say(f"\n{total} lines appended in {seconds:.1f} s, kills included: {total / seconds:.0f} lines/s, {size / seconds / 1e6:.1f} MB/s")
        drill.result.update(nodes=drill.args.nodes, lines=total, bytes=size, lines_s=round(total / seconds), input=origin)
        expected = repeated(path, rounds)
        keeps_order = all(kind in ORDERED for kind in (drill.args.loglet, *drill.kinds))
        rows = []
        for number in cluster.ids():
            took, words = read_back(cluster, number, expected, size, False, keeps_order)
            rows.append((number, "any", f"{took:.1f}", "same", words))
        cluster.wait_nothing_lacks(LOG)
        for number in with_all_of_it(drill, cluster):
            took, words = read_back(cluster, number, expected, size, True, keeps_order)
            rows.append((number, "own disk", f"{took:.1f}", "same", words))
        say()
        table(rows, ("node", "from", "seconds", "sha256", "said"))
        say(f"sha256 {expected}")
        drill.result["sha256"] = expected


if __name__ == "__main__":
    Drill(
        "real_data",
        __doc__,
        refuses={},
        nodes=(3, 3, "how many nodes"),
        lines=(1_000_000, 60_000, "least lines of the input"),
        kills=(36, 6, "how many kills, of whatever kind"),
        swap=("", "", "kinds of Loglet among which the log moves meanwhile, comma-separated"),
        at_once=(4, 1, "how many of them take two nodes, and how many all"),
        round_seconds=(1800, 240, "most time for appending the file once"),
    ).run(body)
