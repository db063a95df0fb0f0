"""Load in which every record is known: numbered lines through `atoll log append`, with the time of each acknowledgement."""

import bisect
import subprocess
import threading

from cluster import ORDERED, Failed, end, need, poll

# Lines that the feeder hands over at once.
CHUNK_LINES = 64
READ_BYTES = 1 << 20


class Load:
    """One client that keeps `depth` records in flight until it is told to end."""

    def __init__(self, cluster, folder, log="main", name="a", connect=None, depth=64, line_bytes=128, every_s=0.0, extra=()):
        """`every_s`: one line so often, or as many as are taken."""
        self.cluster = cluster
        self.log = log
        self.name = name
        self.connect = connect or cluster.connect()
        self.depth = depth
        self.filler = b"." * max(0, line_bytes - len(name) - 15)
        self.timeline = folder / f"timeline-{log}-{name}"
        self.errors = folder / f"load-{log}-{name}.err"
        self.every_s = every_s
        self.extra = [str(e) for e in extra]
        self.sent = 0
        self.process = None
        self._ending = threading.Event()

    def line(self, number):
        """The line of this number, counted from 0."""
        return b"%s %012d %s\n" % (self.name.encode(), number, self.filler)

    def start(self, first_within=20):
        """Starts it, and waits for the first acknowledgement."""
        args = ["log", "append", "--log", self.log, "--lines", "-", "--depth", self.depth, "--json"]
        args += ["--timeline", self.timeline, *self.extra]
        with open(self.errors, "wb") as errors:
            self.process = self.cluster.spawn(
                *args, connect=self.connect, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()
        poll(f"load {self.name} is acknowledged", first_within, lambda: self._alive() and self.acknowledged() > 0)
        return self

    def _alive(self):
        need(self.process.poll() is None, f"load {self.name} ended early: {self.words()}")
        return True

    def _feed(self):
        try:
            while not self._ending.is_set():
                first, count = self.sent, 1 if self.every_s else CHUNK_LINES
                self.process.stdin.write(b"".join(self.line(n) for n in range(first, first + count)))
                self.process.stdin.flush()
                self.sent = first + count
                self._ending.wait(self.every_s)
            self.process.stdin.close()
        except (BrokenPipeError, ValueError):
            pass

    def words(self):
        """What it said on stderr."""
        return self.errors.read_text(errors="replace").strip()[-1000:]

    def acknowledged(self):
        """How many were acknowledged so far, by the timeline."""
        if not self.timeline.is_file():
            return 0
        return sum(count for _, count in read_timeline(self.timeline))

    def finish(self, within=60):
        """No more lines; every one that was handed over must be acknowledged."""
        self._ending.set()
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f"load {self.name}: appends hang for {within} s after the end of its input") from None
        finally:
            end(self.process)
        self._feeder.join(5)
        need(self.process.returncode == 0, f"load {self.name}: an append failed: {self.words()}")
        done = self.acknowledged()
        need(done == self.sent, f"load {self.name}: {self.sent} lines handed over, {done} acknowledged")
        return done

    def abandon(self):
        """Ends it at once, whatever is in flight."""
        self._ending.set()
        end(self.process)

    def acks(self):
        """When acknowledgements came, in seconds since 1970, in order."""
        return Acks(read_timeline(self.timeline))


def read_timeline(path):
    """(microseconds since 1970, how many records) per acknowledgement; a last line that is not whole is left out."""
    rows = []
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and line[:1].isdigit():
                at, count = line.split()[:2]
                rows.append((int(at), int(count)))
    return rows


class Acks:
    """Moments of acknowledgements."""

    def __init__(self, rows):
        self.at = [us / 1e6 for us, _ in rows]
        self.counts = [count for _, count in rows]
        self.total = sum(self.counts)

    def upto(self, moment):
        """How many records were acknowledged by then."""
        return sum(self.counts[: bisect.bisect_right(self.at, moment)])

    def first_after(self, moment):
        """The first acknowledgement after a moment; None if there is none."""
        place = bisect.bisect_right(self.at, moment)
        return self.at[place] if place < len(self.at) else None

    def longest_gap(self, begin, finish):
        """The longest time without an acknowledgement, in seconds, of all that touch [begin, finish)."""
        return self.longest_gap_and_end(begin, finish)[0]

    def longest_gap_and_end(self, begin, finish):
        """The same, and when it ended."""
        first = max(1, bisect.bisect_right(self.at, begin))
        last = bisect.bisect_left(self.at, finish)
        gaps = ((self.at[i] - self.at[i - 1], self.at[i]) for i in range(first, min(last + 1, len(self.at))))
        return max(gaps, default=(float("inf"), float("inf")))

    def rate(self):
        """Records per second over the whole time."""
        return self.total / max(1e-9, self.at[-1] - self.at[0]) if len(self.at) > 1 else 0.0


def keeps_order(cluster, log, connect=None):
    """Whether all Loglets of a log keep the order of a client that has several appends in flight."""
    return all(segment["kind"] in ORDERED for segment in cluster.chain(log, connect=connect)["segments"])


def how_many_are_there(cluster, load, log, acknowledged):
    """Of the records of the only load of a log, the number of those that are there: as many from the first on, where Loglets keep the order."""
    tail = cluster.json("log", "check-tail", "--log", log)["tail"]
    in_order = keeps_order(cluster, log)
    upto = min(tail, acknowledged) if in_order else tail
    if upto == 0:
        return 0
    lines = cluster.atoll("log", "read", "--raw", "--log", log, "--to", upto, timeout=300).stdout.splitlines(keepends=True)
    if not in_order:
        found = set(lines)
        return sum(load.line(number) in found for number in range(acknowledged))
    return next((number for number, line in enumerate(lines) if line != load.line(number)), len(lines))


def verify(cluster, loads, log="main", since=0, extra=(), connect=None):
    """Reads the log: the lines of each load in order, none lost, none twice; gives back how many. After a Loglet of a kind that does not
    keep the order of a client, a line may precede others of its load.

    `since` is the first position that is still there; what lies before is not compared. With one load, position and
    number are the same thing, so that the start is checked as well.
    """
    begin = ["--from", since] if since else []
    args = ["log", "read", "--raw", "--log", log, *begin, *extra]
    reader = cluster.spawn(*args, connect=connect, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    by_name = {load.name.encode(): load for load in loads}
    following = {load.name.encode(): since if len(loads) == 1 else None if since else 0 for load in loads}
    in_order = keeps_order(cluster, log, connect)
    early = {name: set() for name in by_name}
    count, rest = 0, b""
    while chunk := reader.stdout.read1(READ_BYTES):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            name, number = line.split(b" ", 2)[:2]
            number = int(number)
            expected = following[name]
            if expected is None:
                expected = number
            is_early = number > expected and number not in early[name] and not in_order
            if not (number == expected or is_early) or line + b"\n" != by_name[name].line(number):
                end(reader)
                raise Failed(f"{log}: line {number} of load {name.decode()} stands where {expected} is due")
            early[name].add(number)
            while expected in early[name]:
                early[name].remove(expected)
                expected += 1
            following[name] = expected
            count += 1
    words = reader.stderr.read().decode(errors="replace").strip()
    need(reader.wait() == 0 and not rest, f"{log} could not be read to its end: {words[-1000:]}")
    for name, load in by_name.items():
        need(not early[name], f"{log}: line {following[name]} of load {name.decode()} is missing, and later ones are there")
        if load.sent:
            need(following[name] == load.sent, f"{log}: load {name.decode()} handed over {load.sent}, there are {following[name]}")
    return count
