"""What the drills share: a cluster under `atoll dev`, load on it, kills, and measurements. Standard library only.

Everything listens on loopback, lives in one temporary folder, and ends with the drill, however the drill ends.
"""

import argparse
import atexit
import base64
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Time for a cluster to answer after its start, in seconds.
START_WITHIN = 60
# Time for a killed node to be started again by the supervisor, in seconds.
BACK_WITHIN = 30
# The short form of a drill has few samples and runs beside other work: it allows this many times the whole form's bounds on time.
QUICK_TIMES = 5
# Of a drill that failed, so many ends of nodes are told.
LAST_ENDS = 6
# The kinds of Loglet that a drill of the log can be run with.
LOGLETS = ("native", "local", "striped", "corfu", "scalog")
# Those that keep the order of a client that has several appends in flight.
ORDERED = ("native", "local", "zookeeper-loglet", "log-service")


class Failed(Exception):
    """What the drill shows does not hold, or the drill itself could not continue."""


class NotRun(Exception):
    """This machine cannot run the drill. It is not a failure, and not a success."""


def need(condition, words):
    """Fails the drill with these words unless the condition holds."""
    if not condition:
        raise Failed(words)


def say(*words):
    """Tells how far the drill is; the result line is alone on the last line of stdout."""
    print(*words, flush=True)


def table(rows, head):
    """Prints rows under a head, aligned."""
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[c]) for row in rows) for c in range(len(head))]
    for row in rows:
        say("  ".join(cell.rjust(w) if cell[:1].isdigit() else cell.ljust(w) for cell, w in zip(row, widths)).rstrip())


def quantile(values, q):
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(q * len(ordered) + 0.999999) - 1))] if ordered else 0.0


def poll(what, seconds, ask, every=0.02):
    """Asks until the answer is true, and gives it back; fails after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(every)


def alive(pid):
    """Whether a process runs, and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def find_binary(given):
    """The program under test: as given, from ATOLL_BIN, or as cargo built it."""
    candidates = [given, os.environ.get("ATOLL_BIN"), ROOT / "target/release/atoll"]
    for path in (pathlib.Path(c) for c in candidates if c):
        if path.is_file():
            return path.resolve()
        if path == candidates[0]:
            raise Failed(f"{path} is not there")
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    return ROOT / "target/release/atoll"


def file_system(path):
    """The file system that holds a path, as `ext4 on /dev/vda`."""
    best = ("", "unknown")
    resolved = str(pathlib.Path(path).resolve())
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
            device, where, kind = line.split()[:3]
            inside = resolved == where or resolved.startswith(where.rstrip("/") + "/")
            if inside and len(where) >= len(best[0]):
                best = (where, f"{kind} on {device}")
    return best[1]


def flushes_per_second(folder, seconds=1.0):
    """How often this disk takes a durable overwrite of 4 KiB, one after the other: what one synced append costs at least."""
    path = pathlib.Path(folder) / "flush-probe"
    block = os.urandom(4096)
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.pwrite(handle, block * 256, 0)
        os.fsync(handle)
        count, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            os.pwrite(handle, block, 4096 * (count % 256))
            os.fdatasync(handle)
            count += 1
        return count / (time.monotonic() - began)
    finally:
        os.close(handle)
        path.unlink()


class Node:
    """One row of dev.json."""

    def __init__(self, row):
        self.id = row["id"]
        self.pid = row["pid"]
        self.data = pathlib.Path(row["data"])
        self.grpc = row["grpc"]
        self.peer = row["peer"]
        self.metrics = row["metrics"]
        self.zookeeper = row["zookeeper"]
        self.admin = row.get("zookeeper_admin")
        self.log = pathlib.Path(row["log"])
        self.config = pathlib.Path(row["config"])


# The node that ordered a log's appends is lost: which, the loglet that was active, its process as (id: pid), and when.
Loss = collections.namedtuple("Loss", "node loglet pids at")


class Cluster:
    """A cluster under `atoll dev`. Use as a context."""

    def __init__(self, binary, folder, *args):
        self.binary = binary
        self.folder = pathlib.Path(folder)
        self.args = [str(a) for a in args]
        self.process = None
        self.output = self.folder.parent / f"{self.folder.name}.out"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, within=START_WITHIN):
        """Starts the nodes and waits until they answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.output, "ab") as out:
            command = [self.binary, "dev", "--data", self.folder, "--base-port", "0", *self.args]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        atexit.register(self._kill)
        state = self.folder / "dev.json"

        def up():
            if self.process.poll() is not None:
                raise Failed(f"`atoll dev` ended: {self.output.read_text()[-2000:]}")
            # The file of a supervisor that was killed may still be there: the new one is named in it.
            return state.is_file() and json.loads(state.read_text())["pid"] == self.process.pid and all(n.pid for n in self.nodes())

        poll("the cluster answers", within, up)

    def set_zookeeper_super(self, user, password):
        """Makes a user the superuser of ZooKeeper's clients, from a start of all nodes on."""
        digest = base64.b64encode(hashlib.sha1(f"{user}:{password}".encode()).digest()).decode()
        self.configure(f'[zookeeper]\nsuper_digest = "{user}:{digest}"')

    def configure(self, section):
        """Adds a section to the configuration of every node, from a start of all nodes on."""
        files = [n.config for n in self.nodes()]
        self.stop()
        for file in files:
            file.write_text(f"{file.read_text()}\n{section}\n")
        self.start()

    def nodes(self):
        """The nodes as they are now."""
        rows = json.loads((self.folder / "dev.json").read_text())["nodes"]
        return [Node(row) for row in rows]

    def node(self, number):
        """One node as it is now."""
        return next(n for n in self.nodes() if n.id == number)

    def ids(self):
        """The ids of the nodes."""
        return [n.id for n in self.nodes()]

    def connect(self, *only):
        """The addresses of all nodes, or of some, for `--connect`."""
        return ",".join(n.grpc for n in self.nodes() if not only or n.id in only)

    def zookeeper(self):
        """The addresses of all nodes for clients of ZooKeeper."""
        return ",".join(n.zookeeper for n in self.nodes() if n.zookeeper)

    def lose_sequencer(self, log, which=signal.SIGKILL):
        """Sends a signal to the node that orders a log's appends, which is asked right before; a `Loss`."""
        number, loglet = self._ordered(log)
        pids, at = self.signal([number], which)
        need(pids, f"node {number} ended before its signal")
        return Loss(number, loglet, pids, at)

    def signal(self, numbers, which=signal.SIGKILL):
        """Sends a signal to nodes, as close together as can be; gives back the pids of those that got it, and the time of the first."""
        pids, reached = {n.id: n.pid for n in self.nodes() if n.id in numbers and n.pid}, {}
        at = time.time()
        for number, pid in pids.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
                reached[number] = pid
        return reached, at

    def wait_back(self, pids, within=BACK_WITHIN):
        """Waits until these nodes run under new pids."""
        def back():
            now = {n.id: n.pid for n in self.nodes()}
            return all(now.get(i) and now[i] != pid for i, pid in pids.items())

        poll(f"nodes {sorted(pids)} are started again", within, back, every=0.005)

    def atoll(self, *args, connect=None, timeout=60, check=True, **kwargs):
        """Runs a verb of the command line."""
        env = dict(os.environ, ATOLL_CONNECT=connect or self.connect())
        command = [str(self.binary), *[str(a) for a in args]]
        try:
            done = subprocess.run(command, env=env, timeout=timeout, capture_output=True, **kwargs)
        except subprocess.TimeoutExpired:
            raise Failed(f"`atoll {' '.join(command[1:])}` has not ended after {timeout} s") from None
        if check and done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise Failed(f"`atoll {' '.join(command[1:])}` ended with {done.returncode}: {words}")
        return done

    def json(self, *args, **kwargs):
        """Runs a verb with --json and reads its answer."""
        out = self.atoll(*args, "--json", **kwargs).stdout
        return json.loads(out.splitlines()[-1]) if out.count(b"\n{") else json.loads(out)

    def spawn(self, *args, connect=None, **kwargs):
        """Starts a verb and continues."""
        env = dict(os.environ, ATOLL_CONNECT=connect or self.connect())
        process = subprocess.Popen([str(self.binary), *[str(a) for a in args]], env=env, **kwargs)
        atexit.register(end, process)
        return process

    def status(self, within=30, connect=None):
        """`atoll status`, once somebody answers."""
        def ask():
            done = self.atoll("status", "--json", check=False, timeout=20, connect=connect)
            return json.loads(done.stdout) if done.returncode == 0 else None

        return poll("`atoll status` answers", within, ask, every=0.1)

    def log_info(self, log, **kwargs):
        """A log's row of the status."""
        rows = [row for row in self.status(**kwargs)["logs"] if row["name"] == log]
        return rows[0] if rows else None

    def create_log(self, log, loglet="native"):
        """Creates a log over a Loglet of this kind."""
        self.atoll("log", "create", "--log", log, "--loglet", loglet)

    def chain(self, log, **kwargs):
        """The chain of a log."""
        return self.json("chain", "show", "--log", log, **kwargs)

    def active(self, log, **kwargs):
        """The active segment of a log."""
        return self.chain(log, **kwargs)["segments"][-1]

    def sequencer(self, log, within=30):
        """The node that orders a log's appends now: the status finds the log healthy, the chain names this node, and its process runs. Of a
        kind without a sequencer it is the one node that has the log."""
        return self._ordered(log, within)[0]

    def _ordered(self, log, within=30):
        def ask():
            with contextlib.suppress(Failed):
                row, segment = self.log_info(log), self.active(log)
                number = orderer(segment)
                agreed = row and row["healthy"] and row.get("sequencer") in (None, number) and alive(self.node(number).pid)
                return (number, segment["loglet"]) if agreed else None

        return poll(f"{log} has a sequencer that runs", within, ask, every=0.05)

    def wait_moved(self, log, loss, within=30):
        """Waits until the log continues in another segment than the one whose sequencer was lost: that it was the right node shows here."""
        def ask():
            with contextlib.suppress(Failed):
                return self.active(log)["loglet"] != loss.loglet

        poll(f"{log} leaves the sequencer on node {loss.node}, which was lost", within, ask, every=0.05)

    def extend(self, log, *args, check=True, connect=None, timeout=60):
        """Extends a log's chain. Whether that was done: the verb succeeded, and the active segment is another one, with the sequencer that
        was asked for. Not done is a failure unless `check` is False."""
        words = [str(a) for a in args]
        try:
            active = self.active(log, connect=connect, timeout=timeout)
            before, placed = active["loglet"], list(words)
            if active["kind"] == "scalog" and "--sequencer" in placed:
                # Its sequencer is that of the ordering log.
                at = placed.index("--sequencer")
                placed[at : at + 2] = ["--place", f"ordering/sequencer={placed[at + 1]}"]
            after = self.json("chain", "extend", "--log", log, *placed, connect=connect, timeout=timeout)["segments"][-1]
        except Failed:
            if check:
                raise
            return False
        wanted = int(words[words.index("--sequencer") + 1]) if "--sequencer" in words else orderer(after)
        done = after["loglet"] != before and orderer(after) == wanted
        need(done or not check, f"{log} was extended with {words}, and its active segment is {after}; before it was {before}")
        return done

    def wait_nothing_lacks(self, log, within=120):
        """Waits until every server of a log has all of it on its own disk."""
        until = time.monotonic() + within
        while True:
            info = self.log_info(log)
            if info and info["servers"] and all(s["lacks"] == 0 and s["has_up_to"] is not None for s in info["servers"]):
                return
            if time.monotonic() > until:
                raise Failed(f"not every server of {log} has all of it after {within} s: {json.dumps(info)}")
            time.sleep(0.25)

    def stop(self):
        """Ends the cluster in good order; nothing of it is left."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self._kill()
                raise Failed("`atoll dev` did not end within 20 s of SIGTERM") from None

    def _kill(self):
        # Stopped nodes first: they cannot see that their supervisor goes.
        with contextlib.suppress(Failed, OSError, ValueError):
            if self.process.poll() is None:
                self.signal(self.ids(), signal.SIGCONT)
        end(self.process)


def orderer(segment):
    """The node that orders the appends of a segment, as `atoll chain show` has it: of several, that of the first part. Of a kind without one,
    the first node that stores entries."""
    duties = segment["duties"]
    return next(duty["node"] for binding in ("orders", "holds") for duty in duties if duty["binding"] == binding)


def holders(segment):
    """The nodes that store the entries of a segment, as `atoll chain show` has it."""
    return sorted({duty["node"] for duty in segment["duties"] if duty["binding"] == "holds"})


def end(process):
    """Ends one process for good, if it still runs."""
    if process and process.poll() is None:
        process.kill()
        process.wait()


class Drill:
    """The frame of a drill: options, a folder of its own, the result line, the exit status."""

    def __init__(self, name, words, refuses=None, **options):
        """`options` are name=(default, quick, help). A drill of the log takes the kind of Loglet, too: `refuses` has the kinds with which
        it makes no sense, each with the reason."""
        self.name = name
        parser = argparse.ArgumentParser(description=words)
        parser.add_argument("--quick", action="store_true", help="a short form for every change; fewer repetitions")
        parser.add_argument("--bin", help="the program [default: ATOLL_BIN, or as cargo builds it]")
        parser.add_argument("--folder", help="where the data goes [default: a temporary folder, which goes]")
        parser.add_argument("--keep", action="store_true", help="leave the data")
        parser.add_argument("--seed", type=int, help="of the random moments [default: drawn, and printed]")
        if refuses is not None:
            parser.add_argument("--loglet", choices=LOGLETS, default="native", help="the kind of Loglet under the log [default: native]")
        for option, (default, _, text) in options.items():
            parser.add_argument(f"--{option.replace('_', '-')}", type=type(default), help=f"{text} [default: {default}]")
        self.args = parser.parse_args()
        if refuses and self.args.loglet in refuses:
            parser.error(f"{name} makes no sense with --loglet {self.args.loglet}: {refuses[self.args.loglet]}")
        self.defaults = {option: default for option, (default, _, _) in options.items()}
        for option, (default, quick, _) in options.items():
            if getattr(self.args, option) is None:
                setattr(self.args, option, quick if self.args.quick else default)
        # The kinds among which a log moves, of drills that have an option `swap`.
        self.kinds = [kind for kind in getattr(self.args, "swap", "").split(",") if kind]
        if not set(self.kinds) <= set(LOGLETS):
            parser.error(f"--swap takes kinds of Loglets, comma-separated: {', '.join(LOGLETS)}")
        self.seed = self.args.seed if self.args.seed is not None else random.SystemRandom().randrange(1 << 32)
        self.random = random.Random(self.seed)
        self.result = {"drill": name, "quick": self.args.quick, "seed": self.seed}
        if refuses is not None:
            self.result["loglet"] = self.args.loglet
        self.missed = []
        self.began = time.monotonic()

    def within(self, bound):
        """The bound of this form on a time, or on a ratio of times; `bound` is that of the whole form."""
        return QUICK_TIMES * bound if self.args.quick else bound

    def scaled(self, bound, option, fixed=0):
        """The bound of this form on a size that grows with an option. `bound` is that of the whole form, and `fixed` the part of it that
        does not grow."""
        return fixed + (bound - fixed) * getattr(self.args, option) / self.defaults[option]

    def promise(self, kept, words):
        """Judges a promise about a time, a size or a number, in both forms. A missed one fails the drill at its end."""
        if not kept:
            say(f"missed: {words}")
            self.missed.append(words)

    def say_what_nodes_did(self):
        """Says which nodes ended and were started again, as each supervisor reports it: a kill that the drill did not ask for, such as one
        for want of memory, explains a failure that is not the program's."""
        for output in sorted(self.folder.glob("*.out")):
            words = [line for line in output.read_text(errors="replace").splitlines() if line.startswith("node ") and ("killed" in line or "ended" in line)]
            for line in words[-LAST_ENDS:]:
                say(f"{output.name}: {line}")

    def run(self, body):
        """Runs `body(drill)`, prints the result line, exits 0, 1 (does not hold) or 0 with `not run`."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        base = self.args.folder or os.environ.get("ATOLL_DRILL_FOLDER") or None
        if base:
            os.makedirs(base, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"atoll-{self.name}-", dir=base))
        status = 0
        try:
            self.binary = find_binary(self.args.bin)
            say(f"{self.name}: seed {self.seed}, data in {self.folder} ({file_system(self.folder)})")
            body(self)
            need(not self.missed, "; ".join(self.missed))
            self.result["outcome"] = "holds"
        except NotRun as words:
            self.result.update(outcome="not run", why=str(words))
        except (Failed, subprocess.SubprocessError, OSError) as words:
            self.result.update(outcome="FAILS", why=str(words))
            status = 1
        finally:
            keep = self.args.keep or status
            if self.missed:
                self.result["missed"] = self.missed
            self.result["seconds"] = round(time.monotonic() - self.began, 1)
            if status:
                self.say_what_nodes_did()
            if keep:
                say(f"data is left in {self.folder}")
            else:
                shutil.rmtree(self.folder, ignore_errors=True)
        if status or "why" in self.result:
            say(f"{self.result['outcome']}: {self.result['why']}")
        say(json.dumps(self.result))
        sys.exit(status)
