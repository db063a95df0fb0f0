#!/usr/bin/env python3
"""The nodes do with a log what its policy declares: they seal, move to an object store, trim, and switch between the nodes and the store.

Three nodes hold a log to which a client appends all the time. What contradicts itself is refused, and nothing is declared. A dry run says
what a policy would do, and does nothing. Then the policy is declared. The nodes seal segments by size, move the oldest ones to the store,
and trim what is beyond the limit; what stays is never less than declared. A node is stopped, so too few replicas of the database live: the
log moves to the store, and comes back to the nodes once the node continues. With `--store s3`, the store is a real server behind a proxy
that loses requests and answers, delays and refuses some, and lets none through for `--outage-s` seconds. No append fails. All nodes are
killed with `kill -9`: the policy is still there, and is carried out. In the end, the actions of the policy name their reasons, and what
was not trimmed is read and compared.
"""

import contextlib
import signal

import object_stores
from cluster import Cluster, Drill, Failed, need, poll, say
from load import Load, verify

LOG = "kept"
LINE_BYTES = 1000
# What the policy declares, in bytes.
SEGMENT, HOT, KEEP = 200_000, 500_000, 1_500_000
# The sizes of segments are estimated by a node.
ESTIMATE = 0.8
# How long the nodes may take for one thing, in seconds.
WITHIN = 120
# Policies that are refused, and what the refusal names.
CONTRADICTIONS = (
    ((), "declares nothing"),
    (("--keep-size", "1"), "allowed: 1000"),
    (("--cold-loglet", "object", "--cold-option", "url=STORE"), "which segments are cold"),
    (("--cold-loglet", "object", "--cold-option", "url=ftp://x", "--cold-age", "1h"), "url"),
    (("--cold-loglet", "object", "--cold-option", "url=STORE", "--cold-age", "2h", "--keep-age", "1h"), "at most the age of what is kept"),
    (("--keep-size", "1MB", "--segment-size", "2MB"), "at most the least size"),
    (("--converged", "--least-replicas", "4", "--else-loglet", "object", "--else-option", "url=STORE"), "at most 3"),
    (("--converged", "object"), "one role that holds entries"),
    (("--converged", "--least-replicas", "3", "--else-loglet", "native", "--else-place", "server=7"), "not a member"),
)


def policy(cluster, *words, check=True):
    """Runs `atoll policy`."""
    return cluster.atoll("policy", *words, "--log", LOG, check=check)


def shown(cluster):
    """The policy, and what was done because of it; None while nobody answers."""
    with contextlib.suppress(Failed):
        return cluster.json("policy", "show", "--log", LOG)
    return None


def done(cluster, kind):
    """How many actions of a kind the nodes remember as done."""
    reply = shown(cluster)
    return reply and sum(1 for action in reply["actions"] if action["kind"] == kind and action["outcome"] == "done")


def refusals(cluster, store):
    """What contradicts itself is refused, with what is allowed, and declares nothing."""
    for words, because in CONTRADICTIONS:
        words = [word.replace("STORE", store.url) for word in words]
        for verb in ("set", "dry-run") if words else ("set",):
            tried = policy(cluster, verb, *words, check=False)
            told = tried.stderr.decode(errors="replace")
            need(tried.returncode in (1, 2) and because in told, f"`policy {verb} {' '.join(words)}` ended with {tried.returncode}: {told}")
    need(shown(cluster)["policy"] is None, "a policy that was refused is declared")
    tried = cluster.atoll("policy", "set", "--log", "db", "--keep-age", "1h", check=False)
    need(tried.returncode == 2 and b"trims its own log" in tried.stderr, f"the log of the database got a limit: {tried.stderr!r}")


def kept(cluster):
    """How many bytes of records are above the trim position, at least."""
    # First the trim position: the log may be trimmed meanwhile, but not below what stays then.
    trim = cluster.chain(LOG)["trim"]
    return trim, (cluster.json("log", "check-tail", "--log", LOG)["tail"] - trim) * LINE_BYTES


def active_kind(cluster):
    """The kind of the active segment; None while nobody answers."""
    with contextlib.suppress(Failed):
        return cluster.active(LOG)["kind"]
    return None


def identity(action):
    """What tells an action from all others."""
    return action["at_ms"], action["node"], action["what"]


def fresh(cluster, known):
    """Whether something is done that is not among these."""
    reply = shown(cluster)
    return reply and any(action["outcome"] == "done" and identity(action) not in known for action in reply["actions"])


def is_quiet(cluster):
    """Whether the policy has nothing to do, and nothing is under way."""
    with contextlib.suppress(Failed):
        tried = cluster.json("policy", "dry-run", "--log", LOG)
        return not tried["steps"] and not tried["waits"] and all(action["outcome"] != "begun" for action in shown(cluster)["actions"][-4:])
    return False


def settle(cluster, goals):
    """Waits until the actions of each kind are done so often, and looks all the time at what stays."""
    least = None

    def look():
        nonlocal least
        trim, stays = kept(cluster)
        if trim:
            least = stays if least is None else min(least, stays)
            need(stays >= ESTIMATE * KEEP, f"{stays} bytes stay above {trim}; {KEEP} must")
        return all((done(cluster, kind) or 0) >= count for kind, count in goals.items())

    poll(f"the nodes have done {goals}", WITHIN, look, every=0.3)
    return least


def switch(cluster):
    """A node stops, and the log leaves; the node continues, and the log comes back."""
    began, stopped = active_kind(cluster), cluster.ids()[-1]
    need(began == "native", f"the log begins on {began}")
    cluster.signal([stopped], signal.SIGSTOP)
    try:
        poll("the log leaves the nodes", WITHIN, lambda: active_kind(cluster) == "object", every=0.2)
    finally:
        cluster.signal([stopped], signal.SIGCONT)
    poll("the log comes back to the nodes", WITHIN, lambda: active_kind(cluster) == "native", every=0.2)


def body(drill):
    with contextlib.ExitStack() as until:
        store = object_stores.make(drill, until)
        cluster = until.enter_context(Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3))
        cluster.create_log(LOG)
        refusals(cluster, store)
        load = Load(cluster, drill.folder, LOG, line_bytes=LINE_BYTES, every_s=drill.args.every_ms / 1000).start()
        limits = ["--cold-loglet", "object", "--cold-option", f"url={store.url}", "--hot-size", HOT, "--keep-size", KEEP, "--segment-size", SEGMENT]
        placement = ["--converged", "--least-replicas", 3, "--else-loglet", "object", "--else-option", f"url={store.url}"]
        waits = ["--settle", "1s", "--return-after", "2s", "--rest", "3s"]
        poll("there is enough for a segment", WITHIN, lambda: load.acknowledged() * LINE_BYTES > 1.5 * SEGMENT)
        tried = cluster.json("policy", "dry-run", "--log", LOG, *limits)
        need([step["kind"] for step in tried["steps"]] == ["seal"], f"a dry run says {tried}")
        need(shown(cluster)["policy"] is None and len(cluster.chain(LOG)["segments"]) == 1, "a dry run has done something")
        policy(cluster, "set", *limits, *placement, *waits)
        with object_stores.failing(drill, store.proxy) as still:
            least = settle(cluster, {"seal": 4, "cool": 1, "trim": 1})
            poll("the outage ends", drill.args.outage_s + WITHIN, lambda: not still())
        for _ in range(drill.args.switches):
            switch(cluster)
        kinds = {segment["kind"] for segment in cluster.chain(LOG)["segments"] if segment["stop"] is not None}
        need("object" in kinds, f"no sealed segment is in the store: {kinds}")
        row = poll("the status tells what the policy did", WITHIN, lambda: (cluster.log_info(LOG) or {}).get("last_action"))
        need("policy" in row, f"the status says {row!r}")
        lines = load.finish()
        known = {identity(action) for action in shown(cluster)["actions"]}
        pids, _ = cluster.signal(cluster.ids())
        cluster.wait_back(pids)
        poll("the policy is still there", WITHIN, lambda: (shown(cluster) or {}).get("policy"))
        more = Load(cluster, drill.folder, LOG, name="b", line_bytes=LINE_BYTES, every_s=0.02).start()
        poll("the policy is carried out again", WITHIN, lambda: fresh(cluster, known), every=0.3)
        lines += more.finish()
        poll("nothing is left to do", WITHIN, lambda: is_quiet(cluster), every=0.5)
        actions = shown(cluster)["actions"]
        need(all(action["reason"] for action in actions), f"an action has no reason: {actions}")
        policy(cluster, "clear")
        need(shown(cluster)["policy"] is None, "a policy that was cleared is still there")
        trim = cluster.chain(LOG)["trim"]
        read = verify(cluster, [load, more], LOG, since=trim)
    drill.result.update(records=lines, read=read, trimmed_below=trim, actions=len(actions), least_kept=least)
    say(f"{lines} records were appended; {trim} were trimmed because of the policy, and {read} were read and compared")
    need(trim > 0 and read == lines - trim, f"{lines} records, {trim} trimmed, {read} read")


if __name__ == "__main__":
    Drill(
        "policy",
        __doc__,
        store=("s3", "file", "file: a directory; s3: a server that speaks S3"),
        every_ms=(4, 4, "an append so often"),
        switches=(3, 1, "how often the log leaves the nodes and comes back"),
        outage_s=(60, 0, "how long the server cannot be reached, with s3"),
    ).run(body)
