"""Processes of `atoll-experiments apps` for drills: started with their output in a file, killed, ended, and their histories judged."""

import atexit
import json
import os
import pathlib
import signal
import subprocess
import sys

from cluster import ROOT, Failed, end, need, poll, say

# A history that cannot be decided within so many seconds fails the drill.
JUDGED_WITHIN = 240


def find_program():
    """The program: from ATOLL_EXPERIMENTS, or as cargo builds it."""
    if given := os.environ.get("ATOLL_EXPERIMENTS"):
        return pathlib.Path(given).resolve()
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "atoll-experiments"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release/atoll-experiments"


class App:
    """One process. Its lines are in a file, so it never waits for a reader."""

    def __init__(self, program, folder, name, *args, connect, mutant=None):
        self.name = name
        self.output, self.errors = folder / f"{name}.jsonl", folder / f"{name}.err"
        env = dict(os.environ, ATOLL_CONNECT=connect)
        if mutant:
            env["ATOLL_MUTANT"] = mutant
        command = [str(program), "apps", *map(str, args)]
        with open(self.output, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        atexit.register(end, self.process)

    def lines(self):
        """What it has printed so far: whole lines only."""
        text = self.output.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def words(self):
        """What it said on stderr, the end of it."""
        return self.errors.read_text(errors="replace").strip()[-600:]

    def runs(self):
        """True; fails if the process has ended."""
        need(self.process.poll() is None, f"{self.name} ended with {self.process.poll()}: {self.words()}")
        return True

    def kill(self):
        """Ends it like a crash."""
        self.runs()
        self.process.kill()
        self.process.wait()

    def finish(self, within=60, tell=True):
        """Tells it to end, or waits for its end; its last line. It must not have found anything wrong."""
        if tell and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} has not ended after {within} s: {self.words()}") from None
        need(status == 0, f"{self.name} ended with {status}: {self.words()}")
        lines = self.lines()
        need(lines, f"{self.name} printed nothing: {self.words()}")
        return lines[-1]


class Apps:
    """Starts processes for one cluster's log."""

    def __init__(self, drill, program, connect, mutant=None):
        self.drill, self.program, self.connect, self.mutant = drill, program, connect, mutant
        self.count = 0

    def start(self, what, *args):
        """Starts one and continues."""
        self.count += 1
        return App(self.program, self.drill.folder, f"{what}-{self.mutant or 'app'}-{self.count}", what, *args, connect=self.connect, mutant=self.mutant)

    def run(self, what, *args, within=120):
        """Runs one to its end; its last line."""
        return self.start(what, *args).finish(within, tell=False)


def operations(history):
    """How many lines a history has so far."""
    return history.read_bytes().count(b"\n") if history.is_file() else 0


def more(apps, histories, count, within=90):
    """Waits until each of these histories has so many more lines; their processes must run."""
    goals = [operations(history) + count for history in histories]

    def there():
        return all(app.runs() for app in apps) and all(operations(h) >= goal for h, goal in zip(histories, goals))

    poll(f"{count} more operations", within, there, every=0.05)


def judge(cluster, histories, merged):
    """Whether `atoll check` finds one order for all operations of these histories, which agrees with real time; and how many there are."""
    lines = []
    for history in histories:
        text = history.read_text()
        lines += text[: text.rfind("\n") + 1].splitlines()[1:]
    merged.write_text("\n".join(['{"type": "table", "initial": "empty"}', *lines, ""]))
    done = cluster.atoll("check", "linearizable", "--history", merged, "--json", "--within", JUDGED_WITHIN, check=False, timeout=JUDGED_WITHIN + 60)
    need(done.returncode in (0, 1), f"`atoll check` cannot decide {merged}: {done.stderr.decode(errors='replace')[-400:]}")
    if done.returncode:
        print(done.stdout.decode(errors="replace")[-1500:], file=sys.stderr)
    return done.returncode == 0, len(lines)


def kill_each(drill, cluster, apps, histories):
    """Kills nodes, one after the other; operations go on while each is down and when it is back. How many were killed."""
    count = drill.args.operations
    for number in cluster.ids():
        pids, _ = cluster.signal([number])
        need(pids, f"node {number} was not there to be killed")
        more(apps, histories, count)
        cluster.wait_back(pids)
        more(apps, histories, count)
    return len(cluster.ids())


def hashes(*replicas):
    """The hashes that replicas told, by index. Each index has one hash, whoever tells it."""
    found = {}
    for replica in replicas:
        for line in replica.lines():
            at, told = line["applied"], line["hash"]
            need(found.setdefault(at, told) == told, f"at index {at}, {replica.name} has hash {told}; another one has {found[at]}")
    return found


def load_twice(drill, apps, what, log, mutant="", options=()):
    """Starts two processes of clients with histories."""
    histories = [drill.folder / f"{what}{mutant}-{n}.history" for n in range(2)]
    started = [
        apps.start(what, "--log", log, "--clients", 3, "--first-client", 100 * n, "--seconds", 3600, "--history", history, *options)
        for n, history in enumerate(histories)
    ]
    return started, histories


def find_mutants(drill, cluster, mutants):
    """Known bugs must be found by what judges the right program. `mutants` have the bug, the program of clients that has it, and perhaps what
    starts the servers that they need: called with the `Apps` and the log, it returns further options."""
    program = pathlib.Path(drill.args.mutant_bin).resolve()
    for name, what, *servers in mutants:
        log, apps = f"mutant-{name}", Apps(drill, program, cluster.connect(), mutant=name)
        options = servers[0](apps, log) if servers else ()
        started, histories = load_twice(drill, apps, what, log, name, options)
        more(started, histories, 10 * drill.args.operations)
        found = None
        for app in started:
            app.process.terminate()
            if app.process.wait(60):
                found = app.words().splitlines()[-1]
            elif app.lines()[-1].get("foreign"):
                found = "readers read entries of other streams"
        if not found and not judge(cluster, histories, drill.folder / f"{log}.jsonl")[0]:
            found = "no order explains the history"
        need(found, f"{name}: nothing noticed")
        say(f"  {name}: {found}")
