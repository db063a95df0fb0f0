#!/usr/bin/env python3
"""Very many logs are created, written, listed, moved when a node dies, and deleted; afterwards nothing of them is left.

The cluster has three nodes. The node that orders the most logs is killed (`kill -9`) and returns: each log that it ordered is moved, no log
more than three times, and a sample of the logs accepts appends again. After all logs are deleted, the servers hold none of their Loglets,
and the nodes' memory is what it was at first, plus at most 96 MiB and 16 KiB for each deleted name. Then the drill asks for as many names
that no log has; a node keeps nothing of them.
"""

import concurrent.futures
import time
import urllib.request

from cluster import Cluster, Drill, Failed, need, poll, say, table
from long_chain import memory_bytes

# Commands at a time.
WORKERS = 8
# Reconfigurations of one log for one death of a node.
MOVES = 3
# Handles that a node may have open: `logs.idle` and an eighth, and what is used at the moment.
HANDLES = 512 + 512 // 8 + 64
# Memory of a node for each deleted name, in bytes: its register, and what the node knows of it.
BYTES_PER_NAME = 16 * 1024
# Memory that a node may take besides: caches fill, and the allocator keeps some.
MEMORY_BYTES = 96 * 1024 * 1024
# Disk that a node may take besides: journal segments that were made meanwhile are kept for reuse.
DISK_BYTES = 256 * 1024 * 1024
# Loglets that may be there besides: the database's log moves, too, when a node dies.
LOGLETS = 4
# Loglets without a log are collected after so many seconds, at most, and so many a second: a server that was away collects them slowly.
COLLECTED_WITHIN = 180
COLLECTED_PER_SECOND = 8


def figures(node):
    """The metrics of a node without labels, by name."""
    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=20) as answer:
        rows = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows if "{" not in name}


def disk_bytes(node):
    """What a node's data takes on its disk."""
    return sum(f.stat().st_blocks * 512 for f in node.data.rglob("*") if f.is_file())


def measure(cluster):
    """The largest of each figure over the nodes."""
    nodes = cluster.nodes()
    found = [figures(node) for node in nodes]
    names = ("log_handles", "register_handles", "native_loglets", "native_entry_bytes")
    return {
        "memory_mb": round(max(memory_bytes(n.pid) for n in nodes) / 1e6, 1),
        "disk_mb": round(max(disk_bytes(n) for n in nodes) / 1e6, 1),
        **{name: int(max(f.get(f"atoll_{name}", 0) for f in found)) for name in names},
    }


def each(work, names):
    """Does something with every name, some at a time; how many a second."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(work, names):
            pass
    return round(len(names) / (time.monotonic() - began), 1)


def rows_of(cluster, names):
    """The rows of these logs in the status."""
    wanted = set(names)
    return {row["name"]: row for row in cluster.status(within=120)["logs"] if row["name"] in wanted}


def kill_the_busiest(drill, cluster, names, sample):
    """Kills the node that orders most; how often each log was moved."""
    before = rows_of(cluster, names)
    need(len(before) == len(names), f"the status has {len(before)} of {len(names)} logs")
    orders = [row["sequencer"] for row in before.values()]
    victim = max(set(orders), key=orders.count)
    say(f"node {victim} orders {orders.count(victim)} of {len(names)} logs")
    began = time.monotonic()
    pids, _ = cluster.signal([victim])
    need(pids, f"node {victim} ended before it was killed")
    each(lambda name: cluster.atoll("log", "append", "--log", name, "after the kill", timeout=120), sample)
    writable = time.monotonic() - began
    cluster.wait_back(pids)
    versions = {}

    def is_settled():
        rows = rows_of(cluster, names)
        now = {name: row["chain_version"] for name, row in rows.items()}
        # A healthy log that has not changed since the last look.
        settled = now == versions and len(now) == len(names) and all(row["healthy"] for row in rows.values())
        versions.clear()
        versions.update(now)
        return settled

    poll("all logs are moved", 60 + len(names) / 10, is_settled, every=3)
    moves = [versions[name] - before[name]["chain_version"] for name in names]
    stayed = [name for name in names if before[name]["sequencer"] == victim and versions[name] == before[name]["chain_version"]]
    need(not stayed, f"of {orders.count(victim)} logs that node {victim} ordered, {len(stayed)} were not moved: {stayed[:5]}")
    failed = int(sum(figures(n).get("atoll_reconfigurations_failed_total", 0) for n in cluster.nodes()))
    drill.result.update(
        ordered_by_victim=orders.count(victim),
        sample_writable_after_s=round(writable, 2),
        settled_after_s=round(time.monotonic() - began, 1),
        reconfigurations=sum(moves),
        most_of_one_log=max(moves),
        failed_reconfigurations=failed,
    )
    say(f"{sum(moves)} reconfigurations, {max(moves)} of one log at most, {failed} failed; the sample was writable after {writable:.1f} s")
    need(max(moves) <= MOVES, f"one log was moved {max(moves)} times for one death")
    need(failed <= len(names), f"{failed} attempts to move a log failed")


def delete_all(drill, cluster, names):
    """Deletes all logs, and looks for what is left of them."""
    drill.result["deletes_per_s"] = each(lambda name: cluster.atoll("log", "delete", name, "--yes"), names)
    left = cluster.json("log", "list")["logs"]
    need(not set(left) & set(names), f"the list still has {len(set(left) & set(names))} of them")
    gone = cluster.atoll("log", "append", "--log", names[0], "too late", check=False)
    words = gone.stderr.decode()
    need(gone.returncode != 0 and "was deleted" in words, f"an append to a deleted log was answered with: {words}")
    again = cluster.json("log", "delete", names[0], "--yes")
    need(again["deleted"] is False, "a second deletion says that it deleted something")


def read_unknown(cluster, count):
    """Asks for names that no log has; the most handles of a node meanwhile."""
    most = 0

    def ask(number):
        done = cluster.atoll("log", "check-tail", "--log", f"unknown-{number}", check=False)
        need(b"no log with this name" in done.stderr, f"unexpected: {done.stderr.decode()}")

    for start in range(0, count, 1000):
        each(ask, range(start, min(count, start + 1000)))
        most = max(most, measure(cluster)["log_handles"])
    return most


def body(drill):
    names = [f"many-{n:05}" for n in range(drill.args.logs)]
    with Cluster(drill.binary, drill.folder / "data", "--nodes", 3) as cluster:
        # What the first log brings with it is part of the beginning.
        for name in ("first", "second"):
            cluster.atoll("log", "append", "--log", name, "one record")
        # A new cluster takes a moment to reach the feature level that deletions need.
        poll("a log can be deleted", 30, lambda: cluster.atoll("log", "delete", "first", "--yes", check=False).returncode == 0, every=0.2)
        cluster.atoll("log", "delete", "second", "--yes")
        poll("the first logs are gone", COLLECTED_WITHIN, lambda: measure(cluster)["native_loglets"] <= 1, every=1)
        first = measure(cluster)
        drill.result["creates_per_s"] = each(lambda name: cluster.create_log(name, drill.args.loglet), names)
        sample = drill.random.sample(names, min(len(names), drill.args.sample))
        each(lambda name: cluster.atoll("log", "append", "--log", name, "one record"), sample)
        began = time.monotonic()
        listed = set(cluster.json("log", "list")["logs"])
        need(listed.issuperset(names), f"the list lacks {len(set(names) - listed)} logs")
        need(len(rows_of(cluster, names)) == len(names), "the status lacks logs")
        drill.result["status_s"] = round(time.monotonic() - began, 2)
        created = measure(cluster)
        kill_the_busiest(drill, cluster, names, sample)
        delete_all(drill, cluster, names)
        began = time.monotonic()
        left = [measure(cluster)["native_loglets"]]

        def are_collected():
            left.append(measure(cluster)["native_loglets"])
            return left[-1] <= first["native_loglets"] + LOGLETS

        try:
            poll("the Loglets are deleted", COLLECTED_WITHIN + len(names) / COLLECTED_PER_SECOND, are_collected, every=1)
        except Failed as words:
            raise Failed(f"{words}: {left[-1]} are left of {left[0]}") from None
        drill.result["collected_after_s"] = round(time.monotonic() - began, 1)
        deleted = measure(cluster)
        handles = read_unknown(cluster, drill.args.unknown)
        # Names that no log has are given up at the next patrol.
        time.sleep(3)
        last = measure(cluster)
        table([(k, first[k], created[k], deleted[k], last[k]) for k in first], ("", "first", "created", "deleted", "unknown read"))
        drill.result.update(logs=len(names), first=first, created=created, deleted=deleted, last=last, handles_at_most=handles)
        need(deleted["native_entry_bytes"] <= first["native_entry_bytes"] + 4096, "entries of deleted logs are still there")
        for when, now in (("created", created), ("deleted", deleted), ("last", last)):
            need(now["log_handles"] <= HANDLES, f"{when}: {now['log_handles']} handles")
        need(handles <= HANDLES, f"{handles} handles while unknown names were read")
        for what in ("log_handles", "register_handles"):
            need(last[what] <= deleted[what] + WORKERS, f"{last[what]} {what} after unknown names were read")
        limit = first["memory_mb"] + (MEMORY_BYTES + BYTES_PER_NAME * len(names)) / 1e6
        drill.promise(last["memory_mb"] <= limit, f"{last['memory_mb']} MB of memory at the end, {limit:.0f} are allowed")
        limit = first["disk_mb"] + DISK_BYTES / 1e6
        drill.promise(last["disk_mb"] <= limit, f"{last['disk_mb']} MB of disk at the end, {limit:.0f} are allowed")


if __name__ == "__main__":
    Drill(
        "many_logs",
        __doc__,
        refuses={"local": "its log waits for the one node that has it, and nobody takes over"},
        logs=(10000, 300, "how many logs"),
        sample=(200, 30, "logs that are appended to"),
        unknown=(10000, 1000, "names without a log that are read"),
    ).run(body)
