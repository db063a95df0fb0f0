#!/usr/bin/env python3
"""The way back when a majority is lost for good: two of three disks are gone, and `atoll recover` makes a new cluster from the third.

Three nodes take appends to a log, which is reconfigured meanwhile, and writes of a ZooKeeper client. One node is held up for a moment, so
that the others acknowledge entries that it never gets. Then all are killed with `kill -9`, and the disks of the other two are taken away.
The command is refused without confirmation, for the name of the lost cluster, on the folder of a node that runs, and on damaged data, which
it names. It is killed at random moments: the survivor's folder stays as it was, and the new one is not there. Then it says what it will keep
and what may be lost, and does it. The node starts from the new folder. Every acknowledged record below the positions that the command has
named is there, at its position; the ZooKeeper tree is what the kept entries make of it; the session of the client goes on, with zxids above
all that it has seen. The lost disks come back: their nodes are refused, by the survivor and by their own folders. The new cluster grows to
three nodes, and serves everything without the survivor.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
import time

from cluster import START_WITHIN, Cluster, Drill, Failed, alive, end, need, poll, say
from jute import CREATE, EXISTS, Wire, create, watched
from long_chain import Writer

LOG, DB = "main", "db"
SURVIVOR, LOST = 1, (2, 3)
NEW_NAME = "dev-again"
REASON = "two disks are gone"
NO_NODE = -101
CLIENT = 7001
# Times out later than the survivor comes back.
SESSION_MS = 40_000


class Appender(threading.Thread):
    """Appends to the log until its node dies."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.writer = Writer(node, CLIENT, LOG)

    def run(self):
        with contextlib.suppress(Failed, OSError, struct.error):
            while True:
                self.writer.append()

    def count(self):
        return len(self.writer.positions)


class Creator(threading.Thread):
    """Creates ZooKeeper nodes, one after the other, until its node dies."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.wire, self.made, self.zxid = Wire(host, timeout_ms=SESSION_MS), 0, 0

    def path(self, number):
        return f"/load-{number:06}"

    def run(self):
        with contextlib.suppress(OSError, struct.error):
            while True:
                zxid, error, _ = self.wire.call(CREATE, create(self.path(self.made), b"x" * 100))
                if error:
                    return
                self.made, self.zxid = self.made + 1, zxid


class Serve:
    """One node under `atoll serve`."""

    def __init__(self, binary, config):
        self.binary, self.config = binary, config
        text = config.read_text()
        at = {name: re.search(rf'(?m)^{name} = "([^"]+)"', text).group(1) for name in ("grpc", "peer", "zookeeper")}
        self.grpc, self.peer, self.zookeeper = at["grpc"], at["peer"], at["zookeeper"]
        self.output = config.with_suffix(".out")
        self.process = None

    def spawn(self):
        with open(self.output, "ab") as out:
            command = [self.binary, "serve", "--config", self.config]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def words(self):
        return self.output.read_text(errors="replace")

    def ends_with(self, words):
        """It must end by itself, and say so."""
        self.spawn()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failed(f"a node of the lost cluster runs on: {self.words()[-1000:]}") from None
        finally:
            end(self.process)
        need(status != 0 and words in self.words(), f"it ended with {status}: {self.words()[-1000:]}")


def config_of(old, folder, name, peers=()):
    """The configuration of a node in the new cluster, from that in the lost one."""
    text = old.config.read_text().split("\n[[peer]]")[0]
    text = text.replace('cluster = "dev"', f'cluster = "{NEW_NAME}"').replace('data = "data"', f'data = "{folder / name}"')
    for number, address in peers:
        text += f'\n[[peer]]\nid = {number}\naddress = "{address}"\n'
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def load(drill, cluster, nodes):
    """What was acknowledged, and the processes of the nodes are gone."""
    cluster.create_log(LOG)
    appender, creator = Appender(nodes[2]), Creator(nodes[2].zookeeper)
    appender.start()
    creator.start()
    for sequencer in (2, 1, 2):
        time.sleep(drill.args.segment_seconds)
        cluster.extend(LOG, "--sequencer", sequencer)
    cluster.extend(DB, "--sequencer", 2)
    time.sleep(drill.args.segment_seconds)
    refused_while_it_runs(drill, cluster, nodes)
    # The others go on without it, and then everything ends.
    cluster.signal([SURVIVOR], signal.SIGSTOP)
    before = appender.count(), creator.made
    more = drill.args.lost
    poll("others acknowledge what the survivor does not get", 60, lambda: appender.count() >= before[0] + more and creator.made >= before[1] + more)
    cluster.process.send_signal(signal.SIGSTOP)
    cluster.signal(cluster.ids())
    cluster.process.kill()
    cluster.process.wait()
    poll("no node runs", 10, lambda: not any(alive(node.pid) for node in nodes.values()))
    for thread in (appender, creator):
        thread.join(60)
    say(f"  {appender.count()} records and {creator.made} ZooKeeper nodes are acknowledged, the last {more} of each without node {SURVIVOR}")
    return appender, creator


def recover(drill, config, *args, survivor, reason=REASON, check=False):
    """Runs the command."""
    command = [drill.binary, "recover", "--config", config, "--from", survivor, "--reason", reason, "--operator", "the drill", *args]
    done = subprocess.run(command, capture_output=True, timeout=600, stdin=subprocess.DEVNULL)
    need(not check or done.returncode == 0, f"`atoll recover` ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done


def refused(drill, config, status, words, *args, **kwargs):
    """The command must be refused."""
    done = recover(drill, config, *args, **kwargs)
    error = done.stderr.decode(errors="replace")
    need(done.returncode == status and words in error and "panicked" not in error, f"{args}: {done.returncode}: {error}")


def refused_while_it_runs(drill, cluster, nodes):
    """On the folder of a node that runs."""
    config = config_of(nodes[SURVIVOR], drill.folder, "too-early")
    refused(drill, config, 1, "lock", "--yes", survivor=nodes[SURVIVOR].data)
    need(not (drill.folder / "too-early").exists(), "a refused command has made a folder")


def print_of(folder):
    """A hash of everything in a folder but the lock."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "lock":
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def damaged(drill, config, survivor):
    """Data that is damaged is named."""
    rotten = drill.folder / "rotten"
    shutil.copytree(survivor, rotten)
    for file in sorted((rotten / "journal").glob("*.seg")):
        at = file.read_bytes().find(b"%d %012d" % (CLIENT, 0))
        if at >= 0:
            break
    need(at >= 0, "no journal has the first record")
    with open(file, "r+b") as handle:
        handle.seek(at)
        handle.write(b"!")
    refused(drill, config, 1, file.name, "--yes", survivor=rotten)
    shutil.rmtree(rotten)


def refusals(drill, config, survivor, data):
    """What must not be done. Nothing changes."""
    refused(drill, config, 2, "confirm it with --yes", survivor=survivor)
    refused(drill, config, 2, "the reason", "--yes", survivor=survivor, reason=" ")
    refused(drill, config, 1, "no marker", "--yes", survivor=drill.folder)
    same = drill.folder / "same.toml"
    same.write_text(config.read_text().replace(NEW_NAME, "dev"))
    refused(drill, same, 1, "another name than `dev`", "--yes", survivor=survivor)
    damaged(drill, config, survivor)
    data.mkdir()
    (data / "something").write_text("of somebody")
    refused(drill, config, 1, "is not empty", "--yes", survivor=survivor)
    shutil.rmtree(data)


def killed(drill, config, survivor, data):
    """The command dies at random moments; how often."""
    began = time.monotonic()
    plan = json.loads(recover(drill, config, "--dry-run", "--json", survivor=survivor, check=True).stdout)["plan"]
    took = time.monotonic() - began
    need(not data.exists(), "a dry run has made a folder")
    before, times, whole = print_of(survivor), 0, None
    for _ in range(drill.args.kills):
        command = [drill.binary, "recover", "--config", config, "--reason", REASON, "--from", survivor, "--yes"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        time.sleep(drill.random.uniform(0, 1.5 * took))
        process.kill()
        done = process.wait() == 0
        need(print_of(survivor) == before, "the survivor's folder has changed")
        need(data.exists() or not done, "the command has ended, and made no folder")
        if data.exists():
            # It gives the folder its name once it is whole, and may be killed while it removes its copies.
            names = sorted(entry.name for entry in data.iterdir())
            whole = whole or names
            need(names == whole, f"a killed command has left a folder that looks whole: {names}, elsewhere {whole}")
            shutil.rmtree(data)
        times += not done
    return plan, times


def raw(drill, connect, log, start, to):
    """The records of a log, each with a line end."""
    command = [drill.binary, "log", "read", "--log", log, "--from", str(start), "--to", str(to), "--raw"]
    out = subprocess.run(command, env=dict(os.environ, ATOLL_CONNECT=connect), capture_output=True, timeout=300)
    need(out.returncode == 0, f"reading {log}: {out.stderr.decode(errors='replace')}")
    return out.stdout


def verify_log(drill, appender, kept, connect):
    """Every acknowledged record below the end is at its position; how many there are, and how many are lost."""
    need(kept["from"] == 0 and kept["cut_at"] is None, f"the plan of {LOG}: {kept}")
    found = raw(drill, connect, LOG, 0, kept["to"]).splitlines()
    need(len(found) == kept["to"], f"{len(found)} records below {kept['to']}")
    below = [(number, at) for number, at in enumerate(appender.writer.positions) if at < kept["to"]]
    for number, at in below:
        need(found[at] == appender.writer.payload(number), f"position {at} has {found[at][:30]}, and record {number} was acknowledged there")
    return len(below), appender.count() - len(below)


def made(creator, host):
    """The numbers of the client's ZooKeeper nodes that are there."""
    wire, there = Wire(host), set()
    for number in range(creator.made + 1):
        error = wire.call(EXISTS, watched(creator.path(number)))[1]
        need(error in (0, NO_NODE), f"exists: {error}")
        if error == 0:
            there.add(number)
    wire.close()
    return there


def verify_tree(drill, creator, kept, node):
    """The tree is what the kept entries make of it; how many of the client's nodes are there."""
    there = made(creator, node.zookeeper)
    need(there == set(range(len(there))), "the client's nodes are no prefix of what it has created")
    entries = raw(drill, node.grpc, DB, kept["from"], kept["to"])
    named = {int(number) for number in re.findall(rb"/load-(\d{6})", entries)}
    need(there == named, f"{len(there)} nodes are there, and {len(named)} are in the kept entries")
    return len(there)


def verify_session(creator, node):
    """The client's session goes on, and no zxid comes twice."""
    wire = Wire(node.zookeeper, session=creator.wire.session, password=creator.wire.password, seen=creator.zxid)
    need(wire.session == creator.wire.session, "the session is gone")
    zxid, error, _ = wire.call(CREATE, create("/after"))
    need(error == 0 and zxid > creator.zxid and zxid >> 32 > creator.zxid >> 32, f"zxid {zxid:x} after {creator.zxid:x}, error {error}")
    wire.close()


def grow(drill, cluster, nodes, first):
    """The new cluster gets its lost nodes back, with empty disks, and everything is on all of them; the other two."""
    others = []
    for number in LOST:
        config = config_of(nodes[number], drill.folder, f"again-{number}", [(SURVIVOR, first.peer)])
        other = Serve(drill.binary, config)
        cluster.atoll("node", "add", number, other.peer, connect=first.grpc)
        other.spawn()
        others.append(other)

    def up():
        rows = cluster.status(connect=first.grpc)["nodes"]
        return sum(row["state"] == "up" for row in rows) == len(nodes)

    poll("three nodes are up", START_WITHIN, up, every=0.5)
    servers = ",".join(map(str, nodes))
    for log in (LOG, DB):
        cluster.atoll("chain", "extend", "--log", log, "--loglet", "native", "--servers", servers, "--sequencer", 2, connect=first.grpc)
        sealed = cluster.chain(log, connect=first.grpc)["segments"][:-1]
        for index, segment in enumerate(sealed):
            if segment["stop"] > segment["start"]:
                cluster.atoll("chain", "modify", "--log", log, "--segment", index, "--loglet", "native", "--servers", servers, connect=first.grpc)
    return others


def body(drill):
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", 3) as cluster:
        nodes = {node.id: node for node in cluster.nodes()}
        appender, creator = load(drill, cluster, nodes)
        away = {number: drill.folder / f"lost-{number}" for number in LOST}
        for number, place in away.items():
            nodes[number].data.rename(place)
        survivor, data = nodes[SURVIVOR].data, drill.folder / "again-1"
        config = config_of(nodes[SURVIVOR], drill.folder, data.name)
        refusals(drill, config, survivor, data)
        plan, times = killed(drill, config, survivor, data)
        say(f"  refused what must not be done, and killed {times} times: the survivor's folder is as it was")

        say(recover(drill, config, "--dry-run", survivor=survivor, check=True).stdout.decode())
        began = time.monotonic()
        done = json.loads(recover(drill, config, "--yes", "--json", survivor=survivor, check=True).stdout)
        drill.result["recover_s"] = round(time.monotonic() - began, 1)
        need(done["result"] == "recovered" and done["plan"] == plan, f"another plan was carried out: {done}, and before: {plan}")
        kept = {log["name"]: log for log in plan["logs"]}
        first = Serve(drill.binary, config)
        with contextlib.ExitStack() as running:
            running.callback(lambda: end(first.process))
            first.spawn()
            poll("the new cluster answers", START_WITHIN, lambda: cluster.atoll("log", "list", connect=first.grpc, check=False).returncode == 0, every=0.2)
            there, lost = verify_log(drill, appender, kept[LOG], first.grpc)
            need(lost >= drill.args.lost, f"{lost} records are lost, and the survivor never got {drill.args.lost}")
            tree = verify_tree(drill, creator, kept[DB], first)
            need(tree <= creator.made - drill.args.lost + 1, "the survivor has what it never got")
            verify_session(creator, first)
            say(f"  {there} records are at their positions and {lost} are lost, as the command said; {tree} of {creator.made} ZooKeeper nodes are there")

            for number, place in away.items():
                place.rename(nodes[number].data)
            Serve(drill.binary, nodes[2].config).ends_with("was rescued as")
            stranger = config_of(nodes[3], drill.folder, "stranger", [(SURVIVOR, first.peer)])
            stranger.write_text(stranger.read_text().replace(str(drill.folder / "stranger"), str(nodes[3].data)))
            Serve(drill.binary, stranger).ends_with("belongs to node 3 of cluster `dev`")
            say("  the lost nodes are refused, by name")

            others = grow(drill, cluster, nodes, first)
            for other in others:
                running.callback(end, other.process)
            first.process.kill()
            first.process.wait()
            connect = ",".join(other.grpc for other in others)
            poll("the log takes appends without the survivor", 60, lambda: cluster.atoll("log", "append", "--log", LOG, "after", connect=connect, check=False).returncode == 0, every=0.5)
            verify_log(drill, appender, kept[LOG], connect)
            for other in others:
                need(len(made(creator, other.zookeeper)) == tree, "a new replica has another tree")
        say("  grown to three nodes, everything is there without the survivor")
        drill.result.update(records=there, records_lost=lost, znodes=tree, znodes_lost=creator.made - tree, kills=times)


if __name__ == "__main__":
    Drill(
        "recover", __doc__,
        segment_seconds=(5.0, 0.7, "load before each new segment"),
        lost=(200, 20, "records that the survivor must not get"),
        kills=(20, 3, "of the command"),
    ).run(body)
