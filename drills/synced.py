#!/usr/bin/env python3
"""Syncs are real: the power goes, and what was acknowledged is on the disks.

Each node's folder is a file system of its own, loop-mounted from a file. At a random moment of the load all nodes are
stopped (SIGSTOP) and the files copied: a copy holds what was synced, and not what the kernel had only in memory. The
cluster is started from the copies: everything acknowledged before the stop must be there. The same with syncs switched
off must lose records, or the drill could not fail. Needs root for the mounts; where they are refused it counts as not run.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time

from cluster import START_WITHIN, Cluster, Drill, Failed, NotRun, file_system, flushes_per_second, need, say, table
from load import Load

LOG = "synced"


def run(*command):
    """Runs a program of the system; its words are in the exception."""
    done = subprocess.run([str(c) for c in command], capture_output=True, timeout=300)
    if done.returncode != 0:
        raise NotRun(f"`{' '.join(map(str, command))}`: {done.stderr.decode(errors='replace').strip()}")


class Disks:
    """A file system per node, each in a file, mounted at FOLDER/node-i."""

    def __init__(self, folder, images):
        self.folder = folder
        self.images = images
        self.mounted = []

    @staticmethod
    def make(folder, images, nodes, megabytes):
        """New, empty ones."""
        images.mkdir(parents=True)
        for number in range(1, nodes + 1):
            image = images / f"{number}.img"
            with open(image, "wb") as file:
                file.truncate(megabytes << 20)
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
        return Disks(folder, images)

    def __enter__(self):
        try:
            for image in sorted(self.images.glob("*.img")):
                place = self.folder / f"node-{image.stem}"
                place.mkdir(parents=True, exist_ok=True)
                run("mount", "-o", "loop", image, place)
                self.mounted.append(place)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for place in self.mounted:
            # A process may take a moment to go; a mount must not stay.
            for attempt in range(50):
                if subprocess.run(["umount", place], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                subprocess.run(["umount", "-l", place], capture_output=True)
        self.mounted = []

    def sync(self):
        """What is there now is on the disks."""
        for place in self.mounted:
            run("sync", "-f", place)

    def copy(self, to):
        """The files as they are, without what their file systems have only in memory."""
        to.mkdir(parents=True)
        for image in self.images.glob("*.img"):
            run("cp", "--sparse=always", image, to / image.name)


def one_round(drill, number, syncs_off):
    """One loss of power: (acknowledged, how many of them are there afterwards, after how many seconds of load)."""
    args = drill.args
    word = "off" if syncs_off else "real"
    base = drill.folder / f"{word}-{number}"
    options = ["--nodes", args.nodes, "--no-restart", *(["--syncs-off"] if syncs_off else [])]
    moment = drill.random.uniform(0.5, args.load_seconds)
    with Disks.make(base / "before", base / "images", args.nodes, args.megabytes) as disks:
        cluster = Cluster(drill.binary, disks.folder, *options)
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
    with Disks(base / "after", base / "copies") as disks:
        cluster = Cluster(drill.binary, disks.folder, *options)
        try:
            there = read_prefix(cluster, load, acknowledged, 20 if syncs_off else START_WITHIN)
        except Failed as words:
            if not syncs_off:
                raise
            say(f"  {str(words)[:200]}")
            there = 0
        finally:
            cluster.stop()
    shutil.rmtree(base, ignore_errors=True)
    return acknowledged, there, moment


def read_prefix(cluster, load, acknowledged, within):
    """Starts the cluster from the copies; how many of the acknowledged records are there, from the first on."""
    cluster.start(within)
    tail = cluster.json("log", "check-tail", "--log", LOG)["tail"]
    upto = min(tail, acknowledged)
    if upto == 0:
        return 0
    out = cluster.atoll("log", "read", "--raw", "--log", LOG, "--to", upto, timeout=300).stdout
    there = 0
    for line in out.splitlines(keepends=True):
        if line != load.line(there):
            break
        there += 1
    return there


def body(drill):
    if os.geteuid() != 0:
        raise NotRun("loop mounts need root")
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
