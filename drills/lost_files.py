#!/usr/bin/env python3
"""Lost files of a data directory: deleted, truncated, put back from an older copy, or taken from another node, one at a time.

Each case starts from the same three directories of a stopped cluster. One file or folder of node 2 is changed, and nodes are started: all
of them; node 2 with one other; or node 2 with the node that was down while the last records were written, so that only node 2 holds them.
In the last case, the whole directory of node 2 is put back while the others run on. Node 2 must either refuse to start, with an error that
names what is wrong, or rebuild what was lost. Then all nodes are started, a refusing one with an empty directory, and every acknowledged
record and row is read again.
"""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
from collections import Counter

from cluster import ORDERED, Cluster, Drill, Failed, Node, end, need, poll, say

LOG = "lost"
VICTIM, HOLDER, LATE = 2, 1, 3
# Time for a node to refuse, or to answer.
SETTLE_SECONDS = 20
DAMAGES = ("deleted", "cut", "older", "another's")
STATES = ("all", "one down", "holder down")


class Serving:
    """The nodes of a cluster that `atoll dev` has made, each as a process of its own."""

    def __init__(self, binary, rows, folder):
        self.binary = binary
        self.rows = {row.id: row for row in rows}
        self.folder = folder
        self.running = {}

    def output(self, number):
        return self.folder / f"node-{number}.out"

    def start(self, number):
        """Starts a node; what it said before goes."""
        with open(self.output(number), "wb") as out:
            command = [str(self.binary), "serve", "--config", str(self.rows[number].config)]
            self.running[number] = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def words(self, number):
        return self.output(number).read_text(errors="replace")

    def atoll(self, *args, nodes=None, timeout=30, within=60):
        """Runs a verb; None if it does not succeed."""
        connect = ",".join(self.rows[n].grpc for n in (nodes or self.running))
        command = [str(self.binary), *map(str, args), "--connect", connect, "--timeout", str(timeout)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=within)
        except subprocess.TimeoutExpired:
            return None
        self.last_words = done.stderr.decode(errors="replace").strip()
        return done.stdout if done.returncode == 0 else None

    def outcome(self, number):
        """Waits until a node answers (True) or has ended (False)."""
        def ask():
            if self.running[number].poll() is not None:
                return "ended"
            out = self.atoll("node", "list", "--json", nodes=[number], timeout=2, within=10)
            return "up" if out is not None else None

        return poll(f"node {number} answers or ends", SETTLE_SECONDS, ask, every=0.1) == "up"

    def stop(self):
        """Ends all nodes in good order, and at last without it."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            end(process)
        self.running = {}

    def kill(self):
        """Kills all nodes. In good order, a node first waits up to 10 s for others to take over its logs, which these cases leave to few."""
        for process in self.running.values():
            end(process)
        self.running = {}


def lines(first, count):
    return b"".join(b"record %06d %s\n" % (n, b"." * 200) for n in range(first, first + count))


def append(serving, first, count):
    """Appends records; every one of them is acknowledged."""
    for n in range(first, first + count, 50):
        text = lines(n, min(50, first + count - n))
        connect = ",".join(serving.rows[i].grpc for i in serving.running)
        command = [str(serving.binary), "log", "append", "--log", LOG, "--lines", "-", "--connect", connect]
        done = subprocess.run(command, input=text, capture_output=True, timeout=60)
        need(done.returncode == 0, f"an append failed: {done.stderr.decode(errors='replace')}")
    return first + count


def put_rows(serving, first, count):
    for n in range(first, first + count):
        row = json.dumps({"id": n, "text": f"row {n}"})
        need(serving.atoll("table", "put", "things", row) is not None, f"a row was not taken: {serving.last_words}")
    return first + count


def copy(source, target):
    """Copies a data directory, with holes for zeros."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def parts(data):
    """Every file of a data directory, and the folders."""
    files = sorted(p.relative_to(data) for p in data.rglob("*") if p.is_file() and not p.is_symlink())
    folders = [pathlib.Path(name) for name in ("journal", "database") if (data / name).is_dir()]
    return folders + files


def put_back(source, target):
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if source.is_dir():
        copy(source, target)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def damage(how, part, data, older, other):
    """Does it; False if this case says nothing: the copy is not there, or the same."""
    target = data / part
    if how == "deleted":
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    elif how == "cut":
        if target.is_dir():
            return False
        size = target.stat().st_size
        if size == 0:
            return False
        with open(target, "r+b") as file:
            file.truncate(size // 2)
    else:
        source = (older if how == "older" else other) / part
        if not source.exists() or (source.is_file() and target.is_file() and source.read_bytes() == target.read_bytes()):
            return False
        put_back(source, target)
    return True


class Case:
    """One damage in one state of the others."""

    def __init__(self, drill, serving, now, older):
        self.drill, self.serving, self.now, self.older = drill, serving, now, older

    def data(self, number):
        return self.serving.rows[number].data

    def run(self, part, how, state, records, rows):
        serving = self.serving
        for number in serving.rows:
            copy(self.now / str(number), self.data(number))
        other = self.now / str(HOLDER)
        if not damage(how, part, self.data(VICTIM), self.older / str(VICTIM), other):
            return None
        company = {"all": (HOLDER, LATE), "one down": (HOLDER,), "holder down": (LATE,)}[state]
        for number in company:
            serving.start(number)
        serving.start(VICTIM)
        came_up = serving.outcome(VICTIM)
        said = "" if came_up else self.refusal(part)
        # Whoever is up may be written to: what is acknowledged now must stay, too.
        # One node alone must acknowledge nothing, however long it is asked.
        majority = len(company) + came_up >= 2
        new = serving.atoll("log", "append", "--log", LOG, "a new record", timeout=3 if majority else 1, within=10 if majority else 2)
        need(majority or new is None, f"one node of three acknowledged a record while node {VICTIM} was down")
        for number in set(serving.rows) - {VICTIM, *company}:
            serving.start(number)
        if not came_up:
            shutil.move(self.data(VICTIM), self.drill.folder / "refused")
            shutil.rmtree(self.drill.folder / "refused")
            serving.start(VICTIM)
        self.verify(records, rows, new is not None)
        serving.kill()
        return "starts, nothing lost" if came_up else f"refuses: {said}"

    def put_back_whole(self, records, rows):
        """An older copy of the whole directory, which is sound in itself: the others have seen it further on."""
        serving = self.serving
        for number in serving.rows:
            copy(self.now / str(number), self.data(number))
            serving.start(number)
        for number in serving.rows:
            need(serving.outcome(number), f"node {number} does not start: {serving.words(number)[-1500:]}")
        need(serving.atoll("log", "append", "--log", LOG, "a new record") is not None, f"an append failed: {serving.last_words}")
        end(serving.running[VICTIM])
        copy(self.older / str(VICTIM), self.data(VICTIM))
        serving.start(VICTIM)
        ended = lambda: serving.running[VICTIM].poll() is not None or None
        poll(f"node {VICTIM} refuses a directory that was put back", SETTLE_SECONDS, ended, every=0.1)
        said = self.refusal(pathlib.Path("data directory"))
        need("put back from an older copy" in serving.words(VICTIM), f"node {VICTIM} ended in other words: {said}")
        shutil.rmtree(self.data(VICTIM))
        serving.start(VICTIM)
        self.verify(records, rows, True)
        return f"refuses: {said}"

    def refusal(self, part):
        """What node 2 said; it must name what is wrong and what to do."""
        words = self.serving.words(VICTIM)
        names = {part.name, str(part), part.parts[0]}
        need(any(name in words for name in names), f"node {VICTIM} ended without naming {part}: {words[-1500:]}")
        need("panicked" not in words, f"node {VICTIM} panicked: {words[-1500:]}")
        found = re.findall(r"(?m)^.*(?:refus|missing|older copy|damage|belongs|at byte|failed|longer).*$", words)
        return (found[-1] if found else words.strip().splitlines()[-1]).strip()[:110]

    def verify(self, records, rows, has_new):
        """Every acknowledged record and row is there, and none that was not written."""
        expected = lines(0, records) + (b"a new record\n" if has_new else b"")

        def whole():
            got = self.serving.atoll("log", "read", "--raw", "--log", LOG, nodes=[HOLDER], timeout=5, within=15)
            if got is None:
                return False
            need(len(got) <= len(expected) + len(b"a new record\n"), "the log holds records that nobody wrote")
            if self.drill.args.loglet in ORDERED:
                need(expected.startswith(got) or got.startswith(expected), "acknowledged records are lost or changed")
                return got.startswith(expected)
            found, wanted = Counter(got.splitlines()), Counter(expected.splitlines())
            need(not found - wanted - Counter([b"a new record"]), "records are changed, or are there twice")
            return not wanted - found

        poll("every acknowledged record is readable", 60, whole, every=0.3)

        def all_rows():
            got = self.serving.atoll("table", "export", "things", nodes=[HOLDER], timeout=5, within=15)
            return got is not None and {int(json.loads(r)["id"]) for r in got.splitlines()} == set(range(rows))

        poll("every acknowledged row is readable", 60, all_rows, every=0.3)


def prepare(drill):
    """The directories that every case begins with, and older ones of the same nodes; how many records and rows were acknowledged."""
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        cluster.create_log(LOG, drill.args.loglet)
        made = [Node(dict(row)) for row in json.loads((cluster.folder / "dev.json").read_text())["nodes"]]
        cluster.atoll("table", "create", "things", "--column", "id:int64", "--column", "text:text", "--key", "id")
    serving = Serving(drill.binary, made, drill.folder)

    def started(*numbers):
        for number in numbers:
            serving.start(number)
        for number in numbers:
            need(serving.outcome(number), f"node {number} does not start: {serving.words(number)[-1500:]}")

    def kept(name):
        serving.stop()
        for number, row in serving.rows.items():
            copy(row.data, drill.folder / name / str(number))
        return drill.folder / name

    (drill.folder / "older").mkdir()
    (drill.folder / "now").mkdir()
    started(1, 2, 3)
    records, rows = append(serving, 0, 300), put_rows(serving, 0, 5)
    older = kept("older")
    started(1, 2, 3)
    records = append(serving, records, 300)
    serving.stop()
    # The last records are on nodes 1 and 2 alone.
    started(HOLDER, VICTIM)
    records, rows = append(serving, records, 200), put_rows(serving, rows, 3)
    return serving, kept("now"), older, records, rows


def body(drill):
    serving, now, older, records, rows = prepare(drill)
    say(f"{records} records and {rows} rows are acknowledged, the last of them by nodes {HOLDER} and {VICTIM}")
    everything = parts(now / str(VICTIM))
    cases = [(part, how, state) for part in everything for how in DAMAGES for state in STATES]
    # The first of each kind of file is in every short run.
    if drill.args.cases:
        kinds, firsts = set(), []
        for part in everything:
            kind = str(part.parent if part.parts[0] == "database" and len(part.parts) > 1 else re.sub("[0-9a-f]{16}", "N", str(part)))
            if kind not in kinds:
                kinds.add(kind)
                firsts.append(part)
        whole = (pathlib.Path("journal"), "deleted", "holder down")
        essential = [(p, "deleted", "holder down") for p in everything if p.name.endswith(".seg")]
        rest = [c for c in cases if c[0] in firsts and c not in [whole, *essential]]
        drill.random.shuffle(essential)
        drill.random.shuffle(rest)
        cases = ([whole] + essential[: drill.args.cases // 2] + rest)[: drill.args.cases]
    case, results, failed = Case(drill, serving, now, older), [], []
    runs = [(f"{part} {how}, {state}", lambda c=(part, how, state): case.run(*c, records, rows)) for part, how, state in cases]
    runs.append(("the whole directory older, the others running", lambda: case.put_back_whole(records, rows)))
    for what, run in runs:
        try:
            said = run()
        except Failed as words:
            said = f"FAILS: {words}"
            failed.append(f"{what}: {words}")
        finally:
            serving.kill()
        if said:
            say(f"{what}: {said}")
            results.append(said)
    need(results, "no case was run")
    refused = sum(said.startswith("refuses") for said in results)
    drill.result.update(cases=len(results), refused=refused, started=len(results) - refused - len(failed), failed=len(failed))
    say(f"{len(results)} cases: {refused} refused by name, {len(results) - refused - len(failed)} started with nothing lost")
    need(not failed, f"{len(failed)} cases: {'; '.join(failed)[:2000]}")


if __name__ == "__main__":
    Drill("lost_files", __doc__, refuses={"local": "its one copy would be gone with the disk"}, cases=(0, 10, "how many cases, drawn; 0: all")).run(body)
