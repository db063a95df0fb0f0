#!/usr/bin/env python3
"""The database survives an emptied node, an altered disk, a crash with much log to replay, and more data than memory.

A node of a loaded cluster of three is emptied. It rejoins under a new identity and gets the state as a snapshot while znodes and rows are
written. A value in the store of a stopped node is altered so that it still decodes: the node names the range of keys and serves nobody
until it has the state of a peer. A single node is killed with much log beyond the last commit of its store, and recovers. A single node
holds much more data than its memory may hold; `atoll bench db` measures it at a fixed rate.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time

from alone import Alone, folder_bytes, memory
from cluster import ROOT, Cluster, Drill, alive, need, poll, say, table
from database_load import Busy, Rows, Znodes, check_rows, check_znodes
from lost_disk import lose_disk

# The log that the database is on.
LOG = "db"
# In the store: the application of tables, and its rows.
ROW_PREFIX = "0303"
PAYLOAD = 1000
# What is promised of a single node.
SERVING_WITHIN_S = 5.0
# Of the memory, this much does not depend on how much data there is: caches, and what waits for a commit.
RESIDENT_BYTES, RESIDENT_FIXED_BYTES = 600_000_000, 350_000_000
PUT_P99_TIMES, GET_P99_TIMES = 1.5, 3.0
# No file of the store has come or gone for so many seconds.
MERGED_AFTER = 5.0


def replica(cluster, node):
    """`atoll database status` of a node; None if it does not answer."""
    done = cluster.atoll("database", "status", "--node", node, "--json", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def equal_hashes(cluster, since, within=120):
    """Waits until all replicas have told the hash of one state that is not older than `since`; they must be equal, there and before."""
    def ask():
        told = [replica(cluster, node) for node in cluster.ids()]
        if not all(told):
            return None
        hashes = [{h["below"]: h["hash"] for h in one["hashes"]} for one in told]
        common = set.intersection(*(set(h) for h in hashes))
        return (hashes, common) if common and max(common) >= since else None

    hashes, common = poll(f"all replicas tell the hash of a state above {since}", within, ask, every=0.3)
    for below in sorted(common):
        need(len({h[below] for h in hashes}) == 1, f"hashes below {below} differ: {[h[below] for h in hashes]}")
    return max(common), len(common)


def trim(cluster, filled_below):
    """Trims the log behind all stores, once what was filled in is in them: an emptied node cannot have the state from it."""
    holds = lambda n: (s := replica(cluster, n)) and s["durable_below"] > filled_below and s
    told = [poll(f"node {n} has all in its store", 60, lambda n=n: holds(n), every=0.2) for n in cluster.ids()]
    to = min(one["durable_below"] for one in told)
    cluster.atoll("log", "trim", "--log", LOG, to)
    return to


def emptied_node(drill, cluster, znodes, rows):
    """Node 3 loses everything, and is a member again."""
    trimmed = trim(cluster, drill.cold_below)
    began = time.monotonic()
    before, after = lose_disk(cluster, 3)
    refilled = lambda: (s := replica(cluster, 3)) and s["refills"] > 0 and s["refilling_from"] is None and s
    told = poll("node 3 has the state from a peer", 180, refilled, every=0.1)
    seconds = time.monotonic() - began
    znodes.goes_on()
    rows.goes_on()
    cluster.wait_nothing_lacks(LOG, 180)
    servers = {s["node"] for s in cluster.log_info(LOG)["servers"]}
    below, compared = equal_hashes(cluster, told["applied_below"])
    say(f"node 3, emptied: {before[:8]} is {after[:8]} now; the state from a peer after {seconds:.1f} s; hashes below {below} are equal")
    drill.result["rejoined_seconds"] = round(seconds, 1)
    return ("emptied node", f"log trimmed below {trimmed}, state from a peer after {seconds:.1f} s", f"{compared} hashes equal, servers of the log {sorted(servers)}")


def program_that_alters(drill):
    """The example of crates/atoll-db that changes one value in a store."""
    place = drill.binary.parent / "examples" / "alter"
    if not place.is_file():
        subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "atoll-db", "--example", "alter"], cwd=ROOT, check=True)
        place = ROOT / "target/release/examples/alter"
    return place


def bytes_of(escaped):
    """What `escape_ascii` made text of."""
    return escaped.encode("latin1").decode("unicode_escape").encode("latin1")


def row_at(cluster, number, node):
    """A row, as one node has it."""
    done = cluster.atoll("table", "get", "cold", "--node", node, "--json", "--", number, check=False)
    return done.stdout if done.returncode == 0 else None


def altered_disk(drill, cluster, znodes, rows):
    """A value in node 2's store is altered while it is down."""
    victim, program = cluster.node(2), program_that_alters(drill)
    # What is applied has to be in the store, or the log has the value still.
    poll("node 2 has all in its store", 60, lambda: (s := replica(cluster, 2)) and s["durable_below"] > drill.cold_below, every=0.3)
    cluster.process.send_signal(signal.SIGSTOP)
    try:
        cluster.signal([2])
        poll("node 2 is gone", 10, lambda: not alive(victim.pid))
        command = [program, victim.data / "database", ROW_PREFIX, str(drill.args.cold_rows // 3)]
        key = bytes.fromhex(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    finally:
        cluster.process.send_signal(signal.SIGCONT)
    began = time.monotonic()
    cluster.wait_back({2: victim.pid})
    number = int.from_bytes(key[-8:], "big") - (1 << 63)
    right = poll("node 1 reads the row", 30, lambda: row_at(cluster, number, 1))
    first = poll("node 2 reads the row", 30, lambda: row_at(cluster, number, 2), every=0.01)
    # It reads a small store before it serves, and a large one in the background afterwards.
    need(first == right or not drill.args.quick, "node 2 shows the altered row although its store is small")
    found = poll("node 2 finds it", 300, lambda: (s := replica(cluster, 2)) and s["found"], every=0.1)
    seconds = time.monotonic() - began
    bounds = re.search(r'keys from "(.*?)" (?:to "(.*?)" \(not in it\)|on), entries below (\d+): the hash of what was written is (\w{32}), of what is read (\w{32})', found[0])
    need(bounds, f"what was found names no range of keys, or no hashes: {found[0]}")
    start, end, below, written, read = bounds.groups()
    need(bytes_of(start) <= key and end is not None and key < bytes_of(end) and written != read, f"{key.hex()} is not in: {found[0]}")
    well = lambda: (s := replica(cluster, 2)) and s["refills"] == 1 and not s["withheld"] and s["refilling_from"] is None and s
    told = poll("node 2 has the state from a peer", 300, well, every=0.1)
    need(poll("node 2 reads the row again", 30, lambda: row_at(cluster, number, 2)) == right, "after the refill the row is wrong still")
    # A node looks once in a while what there is to tell.
    poll("node 2's log tells it", 30, lambda: "of another one is wrong" in victim.log.read_text(errors="replace"), every=0.1)
    znodes.goes_on()
    rows.goes_on()
    _, compared = equal_hashes(cluster, told["applied_below"])
    shown = "never shown" if first == right else "shown before"
    say(f"node 2, a value altered: found {seconds:.1f} s after its start, {shown}: {found[0]}")
    return ("altered disk", f"found after {seconds:.1f} s, {shown}, keys {bytes_of(start).hex()}–{bytes_of(end).hex()}", f"refilled, {compared} hashes equal")


def of_three(drill):
    """The two cases of a cluster."""
    with Cluster(drill.binary, drill.folder / "three", "--nodes", 3) as cluster:
        fill = ["--payload", PAYLOAD, "--fill-from", 0, "--rate", 1, "--seconds", 0.01]
        cluster.atoll("bench", "db", "--table", "cold", "--rows", drill.args.cold_rows, *fill, timeout=600)
        cluster.atoll("bench", "db", "--rows", 1_000, *fill, timeout=600)
        drill.cold_below = replica(cluster, 1)["applied_below"]
        znodes = Znodes(lambda: [n.zookeeper for n in cluster.nodes() if n.pid]).begin()
        rows = Rows(cluster).begin()
        busy = Busy(cluster, 1_000, drill.args.load_rate)
        busy.start()
        shown = [emptied_node(drill, cluster, znodes, rows), altered_disk(drill, cluster, znodes, rows)]
        written = znodes.finish(), rows.finish(), busy.finish()
        for node in cluster.nodes():
            check_znodes(node.zookeeper, znodes)
            check_rows(cluster, node.id, rows)
        shown.append(("written meanwhile", f"{written[0]} znodes, {written[1]} rows, {written[2]} operations of the load", "all there, at each node"))
        drill.result.update(znodes=written[0], rows=written[1], load_operations=written[2])
    return shown


def much_log(drill):
    """The store of a single node is that of before much was written: as after a crash that it was not synced before."""
    rows = drill.args.log_megabytes * 1_000_000 // PAYLOAD
    node = Alone(drill.binary, drill.folder / "log" / "data")
    with node:
        fill = ["bench", "db", "--payload", PAYLOAD, "--rate", 1, "--seconds", 0.01]
        node.atoll(*fill, "--rows", 1000, "--fill-from", 0)
        node.stop()
        shutil.copytree(node.data / "database", node.data.parent / "aside")
        node.start()
        node.atoll(*fill, "--rows", rows, "--fill-from", 1000, timeout=1800)
        node.kill()
        shutil.rmtree(node.data / "database")
        (node.data.parent / "aside").rename(node.data / "database")
        journal = folder_bytes(node.data / "journal")
        last = (rows - 1) * 0x9E3779B97F4A7C15 % (1 << 64)
        began = time.monotonic()
        node.spawn()
        get = ["table", "get", "bench", "--json", "--", last - (1 << 64) if last >> 63 else last]
        poll("the last row is read", 600, lambda: node.atoll(*get, check=False, timeout=120).returncode == 0, every=0.05)
        seconds = time.monotonic() - began
        node.remove()
    say(f"kill -9 with {drill.args.log_megabytes} MB of log beyond the last commit: the last row is read {seconds:.2f} s after the start")
    drill.result.update(serving_seconds=round(seconds, 2), log_megabytes=drill.args.log_megabytes)
    bound = drill.within(SERVING_WITHIN_S)
    drill.promise(seconds <= bound, f"serving after {seconds:.2f} s; promised: {bound} s")
    return ("much log", f"{drill.args.log_megabytes} MB beyond the last commit, journal {journal / 1e6:.0f} MB", f"serving after {seconds:.2f} s")


def measure(drill, node, rows):
    """Latencies at the fixed rate; the memory after it."""
    told = node.json("bench", "db", "--rows", rows, "--payload", PAYLOAD, "--rate", drill.args.rate, "--warmup", drill.args.measure_seconds / 5,
                     "--seconds", drill.args.measure_seconds, timeout=600)
    need(told["errors"] == 0, f"{told['errors']} operations failed: {told.get('last_error')}")
    anonymous, _ = memory(node.pid)
    return told, anonymous


def merged(node):
    """Waits until the store has merged the files that a filling left: a lot of data at once is not the load that is measured."""
    seen = {"files": None, "since": 0.0}

    def quiet():
        files = {str(path) for path in (node.data / "database").rglob("*") if path.is_file()}
        if files != seen["files"]:
            seen.update(files=files, since=time.monotonic())
        return time.monotonic() - seen["since"] >= MERGED_AFTER

    began = time.monotonic()
    poll("the store has merged its files", 300, quiet, every=0.5)
    return time.monotonic() - began - MERGED_AFTER


def much_data(drill):
    """A single node with more than its memory may hold."""
    small, large = (megabytes * 1_000_000 // PAYLOAD for megabytes in (drill.args.small_megabytes, drill.args.large_megabytes))
    shown, seen, most = [], {}, 0
    with Alone(drill.binary, drill.folder / "data" / "data") as node:
        first = 0
        for name, rows in (("small", small), ("large", large)):
            while first < rows:
                upto = min(rows, first + 200_000)
                node.atoll("bench", "db", "--rows", upto, "--payload", PAYLOAD, "--fill-from", first, "--rate", 1, "--seconds", 0.01, timeout=1800)
                first, most = upto, max(most, memory(node.pid)[0])
            merging = merged(node)
            told, anonymous = measure(drill, node, rows)
            most = max(most, anonymous)
            seen[name] = told
            shown.append((f"{rows * PAYLOAD / 1e6:.0f} MB", f"{told['put_p50_ms']:.2f}", f"{told['put_p99_ms']:.2f}", f"{told['get_p50_ms']:.2f}",
                          f"{told['get_p99_ms']:.2f}", f"{anonymous / 1e6:.0f}", f"{folder_bytes(node.data) / 1e6:.0f}"))
        node.remove()
    say()
    table(shown, ("data", "put p50 ms", "p99", "get p50 ms", "p99", "resident MB", "on disk MB"))
    put, get = (seen["large"][f"{kind}_p99_ms"] / seen["small"][f"{kind}_p99_ms"] for kind in ("put", "get"))
    drill.result.update(resident_at_most=most, merging_s=round(merging, 1), put_p99_times=round(put, 2), get_p99_times=round(get, 2))
    bound = round(drill.scaled(RESIDENT_BYTES, "large_megabytes", RESIDENT_FIXED_BYTES))
    need(most <= bound, f"{most} bytes resident; promised: {bound}")
    kept = put <= drill.within(PUT_P99_TIMES) and get <= drill.within(GET_P99_TIMES)
    drill.promise(kept, f"with the large data the p99 of put is {put:.2f} times that with the small, of get {get:.2f} times")
    return ("much data", f"{drill.args.large_megabytes} MB, at most {most / 1e6:.0f} MB resident", f"p99 of put {put:.2f} times, of get {get:.2f} times")


def body(drill):
    cases = drill.args.only.split(",") if drill.args.only else ["three", "log", "data"]
    shown = of_three(drill) if "three" in cases else []
    shown += [much_log(drill)] if "log" in cases else []
    shown += [much_data(drill)] if "data" in cases else []
    say()
    table(shown, ("case", "what", "seen"))


if __name__ == "__main__":
    os.chdir(ROOT)
    Drill(
        "database_faults",
        __doc__,
        only=("", "", "some of three, log, data"),
        cold_rows=(300_000, 15_000, "rows of a table that is not written any more"),
        load_rate=(1_000, 300, "operations per second of the load on the cluster"),
        log_megabytes=(1_000, 50, "log beyond the last commit"),
        small_megabytes=(100, 50, "data to compare with"),
        large_megabytes=(5_000, 200, "data of a single node"),
        rate=(2_000, 500, "operations per second"),
        measure_seconds=(30, 5, "how long to measure"),
    ).run(body)
