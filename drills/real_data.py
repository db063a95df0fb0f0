#!/usr/bin/env python3
"""Real data under real kills: what is appended is read back, byte by byte, through every node and from every node's own disk.

At least a million lines of the Debian package index are appended with 64 in flight. The index is the one that `apt-get update` left on this
machine; without one, the drill makes up lines and says so. Meanwhile nodes are killed with `kill -9` at random moments: single nodes, among
them the sequencer's, two at once, and all at the same instant. The bytes that are read back through each node's door equal the input. Once
every server has filled its gaps, so do those from the disk of each node that has a copy, read alone. `--nodes 1` does the same with one
node.
"""

import contextlib
import hashlib
import pathlib
import subprocess
import threading
import time

from cluster import Cluster, Drill, Failed, end, file_system, flushes_per_second, need, poll, say, table

LOG = "packages"
INDEXES = "/var/lib/apt/lists"


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


def append_rounds(drill, cluster, path, lines):
    """Appends the whole file, again and again until the plan of kills is done: (rounds, seconds)."""
    killer = Killer(drill, cluster)
    rounds, began = 0, time.monotonic()
    while rounds == 0 or not killer.finished():
        args = ["log", "append", "--log", LOG, "--lines", path, "--depth", 64, "--json"]
        errors = drill.folder / "append.err"
        with open(errors, "wb") as err:
            appender = cluster.spawn(*args, stdout=subprocess.PIPE, stderr=err)
        if rounds == 0:
            # Not before there is something to lose.
            poll("the log is there", 30, lambda: appender.poll() is not None or cluster.log_info(LOG))
            killer.thread.start()
        try:
            appender.communicate(timeout=drill.args.round_seconds)
        except subprocess.TimeoutExpired:
            end(appender)
            raise Failed(f"appending {lines} lines took more than {drill.args.round_seconds} s") from None
        need(appender.returncode == 0, f"appending failed: {errors.read_text(errors='replace')[-1000:]}")
        rounds += 1
    seconds = time.monotonic() - began
    kinds = ("sequencer", "one", "two", "all")
    rows = [(kind, killer.done.count(kind)) for kind in kinds]
    say()
    table([row for row in rows if row[1]] + [("together", len(killer.done)), ("processes killed", killer.killed)], ("kill -9 of", "times"))
    need(len(killer.done) == len(killer.kinds), "the plan of kills was not done")
    drill.result.update(kills=len(killer.done), processes_killed=killer.killed, two_at_once=rows[2][1], all_at_once=rows[3][1])
    return rounds, seconds


def read_back(cluster, number, expected, size, local_only):
    """Reads the whole log through one node and compares: (seconds, what it said about other servers)."""
    args = ["log", "read", "--raw", "--log", LOG, "--node", number, *(["--local-only"] if local_only else [])]
    began = time.monotonic()
    reader = cluster.spawn(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    digest, count = hashlib.sha256(), 0
    while chunk := reader.stdout.read1(1 << 20):
        digest.update(chunk)
        count += len(chunk)
    words = reader.stderr.read().decode(errors="replace").strip()
    where = f"node {number}{' from its own disk alone' if local_only else ''}"
    need(reader.wait() == 0, f"reading through {where} failed: {words[-1000:]}")
    need(digest.hexdigest() == expected, f"what {where} gives is not the input: {count} bytes, {size} were appended")
    return time.monotonic() - began, words.splitlines()[-1] if words else ""


def repeated(path, rounds):
    """The sum of a file that many times over."""
    digest = hashlib.sha256()
    for _ in range(rounds):
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


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
        rows = []
        for number in cluster.ids():
            took, words = read_back(cluster, number, expected, size, False)
            rows.append((number, "any", f"{took:.1f}", "same", words))
        cluster.wait_nothing_lacks(LOG)
        for number in [cluster.sequencer(LOG)] if drill.args.loglet == "local" else cluster.ids():
            took, words = read_back(cluster, number, expected, size, True)
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
        at_once=(4, 1, "how many of them take two nodes, and how many all"),
        round_seconds=(1800, 240, "most time for appending the file once"),
    ).run(body)
