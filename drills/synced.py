#!/usr/bin/env python3
"""Syncs are real: after a power loss, everything that was acknowledged is on the disks.

Each node's folder is a separate file system, loop-mounted from a file. At a random moment of the load, all nodes are stopped (SIGSTOP) and
the files are copied: a copy contains what was synced, but not what the kernel held only in memory. The cluster is started from the copies,
and everything that was acknowledged before the stop must be there. As a control, the drill does the same with syncs switched off, and must
find lost records. Needs root for the mounts; where they are refused, the drill counts as not run.
"""

import contextlib
import shutil
import signal
import time

from cluster import START_WITHIN, Cluster, Drill, Failed, file_system, flushes_per_second, need, say, table
from load import Load, how_many_are_there
from unsynced_disks import Disks, check_machine

LOG = "synced"


def places(folder, nodes):
    """Where the data of each node is, by the name of its disk."""
    return {str(number): folder / f"node-{number}" for number in range(1, nodes + 1)}


def one_round(drill, number, syncs_off):
    """One loss of power: (acknowledged, how many of them are there afterwards, after how many seconds of load)."""
    args = drill.args
    word = "off" if syncs_off else "real"
    base = drill.folder / f"{word}-{number}"
    options = ["--nodes", args.nodes, "--no-restart", *(["--syncs-off"] if syncs_off else [])]
    moment = drill.random.uniform(0.5, args.load_seconds)
    with Disks.make(base / "images", places(base / "before", args.nodes), args.megabytes) as disks:
        cluster = Cluster(drill.binary, base / "before", *options)
        try:
            cluster.start()
            cluster.create_log(LOG, args.loglet)
            disks.sync()
            load = Load(cluster, drill.folder, LOG, name=f"{word}{number}", depth=64, line_bytes=300).start()
            time.sleep(moment)
            cluster.signal(cluster.ids(), signal.SIGSTOP)
            # Answers that were on their way still come in: they were given before the stop.
            time.sleep(0.3)
            load.abandon()
            acknowledged = load.acknowledged()
            disks.copy(base / "copies")
            cluster.signal(cluster.ids(), signal.SIGKILL)
        finally:
            cluster.stop()
    with Disks(base / "copies", places(base / "after", args.nodes)):
        cluster = Cluster(drill.binary, base / "after", *options)
        try:
            cluster.start(20 if syncs_off else START_WITHIN)
            there = how_many_are_there(cluster, load, LOG, acknowledged)
        except Failed as words:
            if not syncs_off:
                raise
            say(f"  {str(words)[:200]}")
            there = 0
        finally:
            cluster.stop()
    shutil.rmtree(base, ignore_errors=True)
    return acknowledged, there, moment


def body(drill):
    check_machine()
    say(f"durable overwrites of 4 KiB, one by one: {flushes_per_second(drill.folder):.0f}/s on {file_system(drill.folder)}")
    rows = []
    for number in range(drill.args.rounds):
        acknowledged, there, moment = one_round(drill, number, syncs_off=False)
        rows.append(("real", f"{moment:.2f}", acknowledged, there, acknowledged - there))
        need(there == acknowledged, f"{acknowledged} were acknowledged, {there} are there after the power went")
    lost = 0
    for number in range(drill.args.rounds_off):
        acknowledged, there, moment = one_round(drill, number, syncs_off=True)
        rows.append(("off", f"{moment:.2f}", acknowledged, there, acknowledged - there))
        lost += acknowledged - there
        if lost:
            break
    table(rows, ("syncs", "stopped after s", "acknowledged", "there", "lost"))
    drill.result.update(
        rounds=drill.args.rounds,
        acknowledged=sum(r[2] for r in rows if r[0] == "real"),
        lost=0,
        lost_with_syncs_off=lost,
    )
    need(lost > 0, "nothing was lost with syncs off: this drill cannot tell the difference here")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Drill(
            "synced",
            __doc__,
            refuses={},
            nodes=(3, 3, "how many nodes"),
            rounds=(10, 1, "how often the power goes"),
            rounds_off=(5, 2, "how often at most with syncs off"),
            load_seconds=(6.0, 3.0, "longest load before the power goes"),
            megabytes=(1024, 1024, "size of each node's file system"),
        ).run(body)
