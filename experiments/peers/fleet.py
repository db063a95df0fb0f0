#!/usr/bin/env python3
"""A large fleet of clients of ZooKeeper: Atoll beside Apache ZooKeeper, on this machine, in one run.

Three processes each, fsync on. `atoll-experiments fleet` is the clients of both. It measures

    lone      writes of a lone client, and the same beside all idle sessions
    sessions  how fast they open, and the memory of each
    idle      the processor time that idle sessions cost
    watches   how fast they are set, and the memory of each
    notify    the time from one change to its last event, with as many watchers as sessions
    children  a parent with very many children: created, listed, deleted, listed again
    move      the sessions of a killed server come back to the others with their watches, while clients of these write; the first server
              is killed, whether it leads or not

Each round takes fresh servers of both. Prints one JSON line for each measurement, then a table of the medians and a JSON line. Its exit
status is 1 if a line is worse than ZooKeeper's, if Atoll takes more than a quarter of ZooKeeper's memory, or if a bound is missed. The
memory is that of the three servers when all sessions and watches are there. Needs a JDK and mvn.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from statistics import median

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "drills")]

from apps import find_program
from cluster import Cluster, NotRun, find_binary
from zookeeper_ensemble import Apache
from zookeeper_java import library

# What is used in a form: the options of the program.
WHOLE = {"sessions": 20_000, "watches": 100, "moving": 10_000, "children": 1_000_000, "seconds": 10}
QUICK = {"sessions": 300, "watches": 10, "moving": 150, "children": 2_000, "seconds": 2}
# As the server's own script starts it on such a machine, with a heap that none of this fills.
JAVA = ("-Xmx6g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
# Sessions and watches are there within this, and the p99 of other clients' writes meanwhile is below that.
MOVED_WITHIN_MS = 5_000
WRITES_WITHIN_MS = 100
# A lone client beside idle sessions may do this much less than without: what rounds of the same differ by.
LEAST_BESIDE_IDLE = 0.97
MEMORY_SHARE = 0.25
# Lines of the table: a name, the part and the figure that it is of, and whether less is better. Lists count by their median.
LINES = (
    ("writes of a lone client per second", "lone", "writes_s", False),
    ("the same beside idle sessions", "lone_beside_idle", "writes_s", False),
    ("sessions opened per second", "sessions", "sessions_s", False),
    ("bytes of a session", "sessions", "bytes_of_session", True),
    ("idle sessions, % of a processor", "idle", "percent_of_a_processor", True),
    ("watches set per second", "watches", "watches_s", False),
    ("bytes of a watch", "watches", "bytes_of_watch", True),
    ("memory with all watches, MB", "watches", "resident_mb", True),
    ("from a change to the last event, ms", "notify", "last_ms", True),
    ("children created, s", "children", "create_s", True),
    ("children listed, ms", "children", "list_ms", True),
    ("p99 of a write beside, ms", "children", "beside_list.p99_ms", True),
    ("children deleted, s", "children", "delete_s", True),
    ("the empty parent listed, ms", "children", "list_empty_ms", True),
    ("the last session moved, ms", "move", "last_ms", True),
    ("p99 of others' writes, ms", "move", "others.p99_ms", True),
    ("sessions lost", "move", "lost", True),
)


@contextlib.contextmanager
def atoll(folder):
    """Three nodes: their addresses and processes."""
    with Cluster(find_binary(None), pathlib.Path(folder) / "atoll", "--no-restart") as cluster:
        # All clients are on this machine.
        cluster.configure("[zookeeper]\nmax_connections_of_address = 0")
        yield [(node.zookeeper, node.pid) for node in cluster.nodes()]


@contextlib.contextmanager
def zookeeper(folder):
    """Three servers of ZooKeeper: the same."""
    with Apache(library(), pathlib.Path(folder) / "zookeeper", JAVA) as ensemble:
        yield [(server.zookeeper, server.pid) for server in ensemble.nodes()]


def measured(program, name, servers, options, only):
    """The lines of one run of the load."""
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    if only:
        words += ["--only", only]
    addresses, pids = ",".join(a for a, _ in servers), ",".join(str(p) for _, p in servers)
    load = subprocess.Popen([program, "fleet", "--system", name, "--addresses", addresses, "--pids", pids, *words],
                            stdout=subprocess.PIPE, text=True)
    for line in load.stdout:
        yield json.loads(line)
    if load.wait():
        print(json.dumps({"system": name, "part": "failed"}), flush=True)


def figure(rows, system, part, name):
    """The median of a figure over the rounds; None where it was not measured."""
    found = []
    for row in rows:
        if row["system"] == system and row["part"] == part:
            value = row
            for word in name.split("."):
                value = value.get(word)
            found.append(median(value) if isinstance(value, list) else value)
    return median(found) if found and None not in found else None


def judged(rows):
    """The table, and what is missed."""
    missed = []
    print(f"\n{'':44}{'Atoll':>14}{'ZooKeeper':>14}")
    for words, part, name, less in LINES:
        ours, theirs = (figure(rows, system, part, name) for system in ("atoll", "zookeeper"))
        cells = "".join(f"{'-' if value is None else f'{value:,.2f}':>14}" for value in (ours, theirs))
        worse = None not in (ours, theirs) and (ours > theirs if less else ours < theirs)
        if worse:
            missed.append(words)
        print(f"{words:44}{cells}{'  worse' if worse else ''}")
    memory = [figure(rows, system, "watches", "resident_mb") for system in ("atoll", "zookeeper")]
    if None not in memory and memory[0] > MEMORY_SHARE * memory[1]:
        missed.append(f"{memory[0]:,.0f} MB of memory; {MEMORY_SHARE * memory[1]:,.0f} is a quarter of ZooKeeper's")
    for words, part, name, most in (
        ("the last session moved", "move", "last_ms", MOVED_WITHIN_MS),
        ("p99 of others' writes", "move", "others.p99_ms", WRITES_WITHIN_MS),
    ):
        ours = figure(rows, "atoll", part, name)
        if ours is not None and ours > most:
            missed.append(f"{words}: {ours:,.0f} ms; {most} is promised")
    alone, beside = (figure(rows, "atoll", part, "writes_s") for part in ("lone", "lone_beside_idle"))
    if None not in (alone, beside) and beside < LEAST_BESIDE_IDLE * alone:
        missed.append(f"a lone client beside idle sessions does {beside / alone:.2f} of its writes alone")
    missed += [f"{row['system']} did not finish" for row in rows if row["part"] == "failed"]
    return missed


def main():
    """See the module's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works; nothing is compared")
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--systems", default="atoll,zookeeper", help="[default: both]")
    parser.add_argument("--only", help="some parts, with commas")
    parser.add_argument("--folder", help="where the data goes [default: a temporary folder]")
    for option, value in WHOLE.items():
        parser.add_argument(f"--{option}", type=int, help=f"[default: {value}]")
    args = parser.parse_args()
    defaults = QUICK if args.quick else WHOLE
    options = {name: value if getattr(args, name) is None else getattr(args, name) for name, value in defaults.items()}
    # A server has all sessions that move, and the load has them twice for a moment.
    files, most = options["moving"] + options["sessions"] // 2 + 1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files > most:
        sys.exit(f"{files:,} files must be open at once, and {most:,} may be; raise that (ulimit -Hn), or use --sessions and --moving")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    program = find_program()
    rows = []
    for number in range(1 if args.quick else args.rounds):
        for name in args.systems.split(","):
            with tempfile.TemporaryDirectory(prefix="atoll-fleet-", dir=args.folder) as folder:
                with {"atoll": atoll, "zookeeper": zookeeper}[name](folder) as servers:
                    for row in measured(program, name, servers, options, args.only):
                        row |= {"round": number + 1, "load_1m": round(os.getloadavg()[0], 2)}
                        rows.append(row)
                        print(json.dumps(row, sort_keys=True), flush=True)
    missed = judged(rows)
    if args.quick:
        missed = [words for words in missed if "did not finish" in words]
    print(json.dumps({"fleet": options, "quick": args.quick, "missed": missed}))
    sys.exit(bool(missed))


if __name__ == "__main__":
    try:
        main()
    except NotRun as why:
        sys.exit(f"not run: {why}")
