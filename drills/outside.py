"""Moves of a log to Loglets outside of the cluster and back, under load, and what is measured of them."""

import time

from cluster import need, quantile, say
from load import verify

# How long a log stays where it is between two moves, in seconds.
STAY_S = 1.0


def options_of(options):
    """They, as words of a command."""
    return [word for option in options for word in ("--option", option)]


def move(cluster, log, kind, *options, patient_s=0.0):
    """Extends the log to a kind of Loglet, again and again for so long; (start, return + 1 s) in seconds since 1970."""
    began = time.time()
    while True:
        last = time.time() - began >= patient_s
        done = cluster.atoll("chain", "extend", "--log", log, "--loglet", kind, *options_of(options), check=last, timeout=120)
        if done.returncode == 0:
            break
        time.sleep(0.5)
    now = cluster.active(log)["kind"]
    need(now == kind, f"after the extend to {kind} the active segment is {now}")
    end = time.time() + STAY_S
    time.sleep(STAY_S)
    return began, end


def refused(cluster, log, kind, cases):
    """Plans that cannot work change nothing; what was said to each."""
    before, said = cluster.chain(log), []
    for options in cases:
        tried = cluster.atoll("chain", "extend", "--log", log, "--loglet", kind, *options_of(options), check=False)
        need(tried.returncode != 0, f"{options} was not refused")
        said.append((tried.stdout + tried.stderr).decode(errors="replace"))
    need(cluster.chain(log)["version"] == before["version"], "a refused plan has changed the chain")
    return said


def finish(cluster, loads, log, kinds):
    """Ends the loads and reads the log: all that was acknowledged, once each; the acknowledgements, and how many records there are."""
    done = [load.finish() for load in loads]
    acks = [load.acks() for load in loads]
    count = verify(cluster, loads, log)
    need(count == sum(done), f"{sum(done)} acknowledged, {count} read")
    found = {segment["kind"] for segment in cluster.chain(log)["segments"]}
    need(found <= kinds, f"the chain has {sorted(found)}")
    return acks, count


def report(drill, windows, acks):
    """The longest gap between two acknowledgements in each window, by kind."""
    for kind, all_of_kind in windows.items():
        pauses = [1e3 * max(one.longest_gap(*window) for one in acks) for window in all_of_kind]
        drill.result[kind] = {"moves": len(pauses), "p50_ms": round(quantile(pauses, 0.5), 1), "max_ms": round(max(pauses), 1)}
        say(f"to {kind}: {len(pauses)} moves, pause p50 {quantile(pauses, 0.5):.1f} ms, most {max(pauses):.1f} ms")
