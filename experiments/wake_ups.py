#!/usr/bin/env python3
"""What one append of a lone client costs in wake-ups and system calls, in each process of a cluster of three.

A voluntary context switch is a thread that goes to sleep; each has a wake-up. On a virtual machine a wake-up can take longer than all other
work of an append, so the table also shows the time of one byte to another process and back (`atoll bench ping-pong`). System calls are
counted by strace in a run of their own, because it slows the processes down. Needs strace for that part. How long the disk takes for a
write and a sync, and how often a thread sleeps in them, is measured before and after. On a slow disk, the timers of an idle cluster are a
large part of the switches per append, so the table is followed by the figure without them. The column `direct` says how many of a node's syncs
were writes that no thread waited for. The last line is JSON.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "drills"))

from cluster import Cluster, find_binary, table

# The client's own warm-up, seconds.
WARM = 1


def switches(pid):
    """How often threads of a process went to sleep so far."""
    total = 0
    for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        total += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)[1])
    return total


def sync_cost(folder, seconds=1.0):
    """One write of 4 KiB and its sync, to a file that was written before: milliseconds, and how often the thread sleeps."""
    path = pathlib.Path(folder) / "sync-probe"
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.pwrite(handle, bytes(1 << 20), 0)
        os.fsync(handle)
        count, began = 0, time.monotonic()
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        while time.monotonic() - began < seconds:
            os.pwrite(handle, os.urandom(4096), 4096 * (count % 256))
            os.fdatasync(handle)
            count += 1
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - slept
        return (time.monotonic() - began) * 1e3 / count, slept / count
    finally:
        os.close(handle)
        path.unlink()


def journal(node):
    """The syncs of a node's journal so far, and how many of them no thread waited for."""
    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = [re.search(rf"^atoll_journal_{name}_total\S* (\S+)$", text, re.MULTILINE) for name in ("syncs", "direct")]
    return [float(f[1]) if f else 0.0 for f in found]


def idle_switches(nodes, seconds=2.0):
    """How often the threads of all nodes go to sleep per second when there is no load: heartbeats and timers, which a slow disk does not stop."""
    before, began = sum(switches(n.pid) for n in nodes), time.monotonic()
    time.sleep(seconds)
    return (sum(switches(n.pid) for n in nodes) - before) / (time.monotonic() - began)


def load(cluster, args):
    """One run of a lone client: its report."""
    flags = ["--depth", "1", "--payload", args.payload, "--seconds", args.seconds, "--warmup", WARM]
    return cluster.json("bench", "log", *flags, timeout=args.seconds + 60)


def counted_switches(cluster, args):
    """A run without strace: the report, the switches of each node per append, with those of the warm-up, and the direct part of its syncs."""
    nodes = cluster.nodes()
    tail = int(cluster.atoll("log", "check-tail").stdout)
    synced = {n.id: journal(n) for n in nodes}
    before = {n.id: switches(n.pid) for n in nodes}
    began = time.monotonic()
    report = load(cluster, args)
    report["took_s"] = time.monotonic() - began
    slept = {n.id: switches(n.pid) - before[n.id] for n in nodes}
    appends = int(cluster.atoll("log", "check-tail").stdout) - tail
    report["appends"] = appends
    direct = {}
    for node in nodes:
        syncs, of_them = (now - then for now, then in zip(journal(node), synced[node.id]))
        direct[node.id] = of_them / max(syncs, 1)
    return report, {node: count / appends for node, count in slept.items()}, direct


def counted_calls(cluster, args):
    """A run under strace: the system calls of each node per append, by name."""
    nodes = cluster.nodes()
    tail = int(cluster.atoll("log", "check-tail").stdout)
    watchers = {}
    for node in nodes:
        command = ["strace", "-f", "-c", "-S", "calls", "-p", str(node.pid)]
        watchers[node.id] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    load(cluster, args)
    appends = int(cluster.atoll("log", "check-tail").stdout) - tail
    calls = {}
    for node, watcher in watchers.items():
        watcher.send_signal(signal.SIGINT)
        _, told = watcher.communicate(timeout=30)
        # Columns: % time, seconds, usecs/call, calls, errors (may be empty), name.
        rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", told, re.MULTILINE)
        calls[node] = {name: int(count) / appends for count, name in rows if name != "total"}
    return calls


def main():
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="the program [default: as cargo builds it]")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--payload", type=int, default=1024, help="bytes of a record")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the data goes: a disk, not memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, Cluster(find_binary(args.bin), pathlib.Path(folder) / "cluster") as cluster:
        cluster.atoll("log", "append", "first")
        sequencer = cluster.json("chain", "show")["segments"][-1]["config"].get("sequencer")
        disk = [sync_cost(folder)]
        report, slept, direct = counted_switches(cluster, args)
        disk.append(sync_cost(folder))
        idle = idle_switches(cluster.nodes())
        calls = counted_calls(cluster, args) if shutil.which("strace") else {}
    names = sorted({name for of_node in calls.values() for name in of_node}, key=lambda n: -sum(c.get(n, 0) for c in calls.values()))[:8]
    rows = []
    for node in sorted(slept):
        of_node = calls.get(node, {})
        role = "sequencer" if str(node) == str(sequencer) else ""
        rows.append((node, role, f"{slept[node]:.1f}", f"{direct[node]:.2f}", f"{sum(of_node.values()):.1f}", *(f"{of_node.get(n, 0):.1f}" for n in names)))
    total = sum(slept.values())
    every = sum(sum(of_node.values()) for of_node in calls.values())
    rows.append(("all", "", f"{total:.1f}", "", f"{every:.1f}", *("" for _ in names)))
    table(rows, ("node", "role", "switches", "direct", "calls", *names))
    without_idle = total - idle * report["took_s"] / report["appends"]
    print(f"without what an idle cluster does in that time ({idle:.0f} switches per second): {without_idle:.1f} switches per append")
    result = {
        "experiment": "wake_ups", "payload_bytes": args.payload, "switches_op": round(total, 2), "idle_switches_s": round(idle, 1),
        "switches_op_without_idle": round(without_idle, 2), "calls_op": round(every, 2) if calls else None,
        "p50_ms": report["p50_ms"], "ping_pong_p50_us": report.get("ping_pong_p50_us"), "ops": report["ops"],
        "sync_ms": [round(ms, 2) for ms, _ in disk], "sync_sleeps": [round(sleeps, 2) for _, sleeps in disk],
        "direct": round(sum(direct.values()) / len(direct), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
