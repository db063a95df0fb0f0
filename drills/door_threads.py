#!/usr/bin/env python3
"""Slow reads of a disk under one client's cold reads change nothing for the writes of other clients.

Three nodes run with their doors on the node's own thread, and then on eight threads, more than this machine has cores. Thousands of nodes
are written and all nodes restarted, so that no data is in their caches. A client writes a small node again and again: first alone, then
while other clients read cold nodes at the same server, and each read of the store's files for a client takes 200 ms (a library that is
loaded before the others delays `pread64`). The 99th percentile of the writes is the same in both. Needs a C compiler.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import threading
import time

import jute
from cluster import Cluster, Drill, NotRun, need, poll, say, table
from jute import Wire

SLOW_US = 200_000
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

/* Reads of a store's files take long while the file that the environment names exists: on the thread of the node, on those of the doors, and
   on those that read for them. Whoever applies commands, or compacts the store, is not slowed down: that would slow down every write. */
static int reads_for_clients(void) {
    char name[16] = {0};
    prctl(PR_GET_NAME, name);
    return !strncmp(name, "node", 4) || !strncmp(name, "door", 4) || !strncmp(name, "tokio", 5);
}

ssize_t pread64(int fd, void *buffer, size_t size, off64_t at) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pread64");
    const char *flag = getenv("ATOLL_SLOW_READS");
    if (flag && reads_for_clients() && access(flag, F_OK) == 0) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length > 0) {
            path[length] = 0;
            if (strstr(path, "/database/")) usleep(SLOW_US);
        }
    }
    return real(fd, buffer, size, at);
}
"""
# What is written before: more than the store keeps in memory, and more than the readers read.
NODES_BEFORE, BYTES = 20_000, 8_000
# In one transaction.
AT_ONCE = 50
# At once.
READERS = 4
# The writes with slow reads beside them take at most so many times as long as alone, at the 99th percentile, or so much longer: seconds.
TIMES, LONGER = 1.5, 0.005


def build_shim(folder):
    """The library that makes reads slow."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise NotRun("there is no C compiler")
    source, library = folder / "slow_reads.c", folder / "slow_reads.so"
    source.write_text(SHIM)
    done = subprocess.run([compiler, "-shared", "-fPIC", "-O2", f"-DSLOW_US={SLOW_US}", "-o", library, source, "-ldl"], capture_output=True, text=True)
    need(done.returncode == 0, f"the compiler says: {done.stderr}")
    return library


def path_of(number):
    return f"/cold/{number:06d}"


def fill(host):
    """Writes the nodes that are cold later on."""
    wire = Wire(host, patience_s=60)
    need(wire.call(jute.CREATE, jute.create("/cold", b""))[1] == 0, "/cold cannot be created")
    need(wire.call(jute.CREATE, jute.create("/hot", b"0"))[1] == 0, "/hot cannot be created")
    for first in range(0, NODES_BEFORE, AT_ONCE):
        numbers = range(first, first + AT_ONCE)
        error = wire.call(jute.MULTI, jute.multi([(jute.CREATE, jute.create(path_of(n), os.urandom(BYTES))) for n in numbers]))[1]
        need(error == 0, f"the transaction from {path_of(first)} on ends with {error}")
    wire.close()


def serves(host):
    """Whether a client gets a session."""
    with contextlib.suppress(OSError):
        Wire(host).close()
        return True
    return False


def writes(host, seconds):
    """How long each write of a small node takes, one after the other."""
    wire = Wire(host, patience_s=60)
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        error = wire.call(jute.SET, jute.written("/hot", b"1"))[1]
        took.append(time.monotonic() - began)
        need(error == 0, f"a write ends with {error}")
        time.sleep(0.002)
    wire.close()
    return sorted(took)


class Reader(threading.Thread):
    """Reads nodes that nobody has read since the start."""

    def __init__(self, host, numbers, over):
        super().__init__(daemon=True)
        self.host, self.numbers, self.over = host, numbers, over
        self.took, self.trouble = [], None
        self.start()

    def run(self):
        wire = Wire(self.host, patience_s=60)
        for number in self.numbers:
            if self.over.is_set():
                break
            began = time.monotonic()
            error = wire.call(jute.GET, jute.watched(path_of(number)))[1]
            self.took.append(time.monotonic() - began)
            if error != 0:
                self.trouble = f"a read of {path_of(number)} ends with {error}"
                break
        wire.close()


def measured(drill, cluster, flag):
    """The writes alone, and beside slow reads; how long those took."""
    host = cluster.nodes()[0].zookeeper
    alone = writes(host, drill.args.seconds)
    over = threading.Event()
    flag.touch()
    try:
        # Neighbours would come with the block of the first one.
        readers = [Reader(host, range(at * 97, NODES_BEFORE, 101 * READERS), over) for at in range(READERS)]
        beside = writes(host, drill.args.seconds)
    finally:
        flag.unlink()
        over.set()
    for reader in readers:
        reader.join(60)
        need(not reader.trouble, reader.trouble)
    slow = sorted(took for reader in readers for took in reader.took)
    need(slow and slow[len(slow) // 2] >= SLOW_US / 1e6, "the reads were not slow, so nothing was tested")
    return alone, beside, slow


def body(drill):
    flag = drill.folder / "slow"
    os.environ["LD_PRELOAD"] = str(build_shim(drill.folder))
    os.environ["ATOLL_SLOW_READS"] = str(flag)
    rows = []
    for threads in (0, 8):
        with Cluster(drill.binary, drill.folder / f"cluster-{threads}", "--nodes", 3) as cluster:
            files = [pathlib.Path(n.config) for n in cluster.nodes()]
            fill(cluster.nodes()[0].zookeeper)
            cluster.stop()
            for file in files:
                file.write_text(file.read_text() + f"\n[doors]\nthreads = {threads}\n\n[database]\ncache_mb = 1\n")
            cluster.start()
            poll("the door serves clients again", 30, lambda: serves(cluster.nodes()[0].zookeeper), every=0.1)
            alone, beside, slow = measured(drill, cluster, flag)
        p99 = [took[len(took) * 99 // 100] for took in (alone, beside)]
        rows.append((threads, len(alone), f"{p99[0] * 1e3:.1f}", len(beside), f"{p99[1] * 1e3:.1f}", len(slow), f"{slow[len(slow) // 2] * 1e3:.0f}"))
        drill.result[f"p99_ms_{threads}_threads"] = [round(p * 1e3, 2) for p in p99]
        bound = max(drill.within(TIMES) * p99[0], p99[0] + LONGER)
        drill.promise(p99[1] <= bound, f"with {threads} door threads, writes beside slow reads take {p99[1] * 1e3:.1f} ms at p99, {p99[0] * 1e3:.1f} alone")
    table(rows, ("door threads", "writes alone", "p99 ms", "beside", "p99 ms", "cold reads", "median ms"))
    say("the writes of other clients take as long as alone")


if __name__ == "__main__":
    Drill("door_threads", __doc__, seconds=(20, 5, "for how long each")).run(body)
