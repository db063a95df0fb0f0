#!/usr/bin/env python3
"""Histories of concurrent clients of ZooKeeper's door and of the tables, judged by porcupine and by our own judge, which must agree.

Each history is a few seconds of five clients on a handful of keys. The ZooKeeper clients use setData with a version, create, delete, multi,
ephemerals, sync followed by getData, and plain getData, which is judged for the order of its session; their sessions move between nodes.
The table clients use get, put, conditional put, and transactions that read, check and write; half of the writes are resent until they are
answered. Several histories run side by side. In each of them, a node is killed with SIGKILL, nodes are stopped with SIGSTOP, and the log's
Loglet is replaced (`atoll chain extend`). An operation without an answer may take effect at any time after its call, or never.

Each run also tests the judges, with bundled histories that are wrong and with clients that leave out the sync. `--mutant-bin` is a program
built with the feature `testing`; the judges must then detect a barrier that does not wait.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import threading
import time

from grpc_venv import grpc_or_again

grpc_or_again()

import histories_tables as tables
import histories_zookeeper as zookeeper
from cluster import Cluster, Drill, Failed, need, say, table
from histories_judges import QUESTIONS, Judges

LOG = "db"
CLIENTS = 5
# Histories of each kind side by side.
SIDE_BY_SIDE = 3
# Histories before the cluster is made anew.
OF_A_CLUSTER = 252
# Rounds in which what is known to be wrong must be found.
MUTANT_ROUNDS = 4


class Disturbance:
    """What happens to the cluster during one round."""

    def __init__(self, cluster, random, seconds, calm=False, must_move=False):
        self.cluster, self.kills, self.pids, self.moves, self.failed = cluster, [], {}, [], []
        self.stops = 0
        self.plan = []
        if calm:
            # Many short stops: what is not synced is stale.
            self.plan += [(at / 8 * seconds, self.stop, random.choice(cluster.ids()), 0.12) for at in range(1, 7)]
        else:
            self.plan.append((random.uniform(0.2, 0.6) * seconds, self.kill, random.choice(cluster.ids())))
            if random.random() < 0.15:
                self.plan.append((random.uniform(0.2, 0.8) * seconds, self.kill, random.choice(cluster.ids())))
            if random.random() < 0.5:
                self.plan.append((random.uniform(0.1, 0.6) * seconds, self.stop, random.choice(cluster.ids()), random.uniform(0.1, 0.9)))
            if random.random() < 0.6 or must_move:
                more = ["--sequencer", str(random.choice(cluster.ids()))] if random.random() < 0.5 else []
                self.plan.append((random.uniform(0.1, 0.9) * seconds, self.move, *more))
            if random.random() < 0.2:
                self.plan.append((random.uniform(0.1, 0.9) * seconds, self.truncate))
        self.threads = [threading.Thread(target=self.at, args=one, daemon=True) for one in self.plan]

    def at(self, seconds, what, *args):
        try:
            time.sleep(seconds)
            what(*args)
        except (OSError, Failed) as error:
            self.failed.append(f"{what.__name__}: {error}")

    def kill(self, node):
        at = time.monotonic()
        pids, _ = self.cluster.signal([node])
        if pids.get(node):
            self.pids[node] = pids[node]
            self.kills.append(at)

    def stop(self, node, seconds):
        pids, _ = self.cluster.signal([node], signal.SIGSTOP)
        self.stops += len(pids)
        time.sleep(seconds)
        for pid in pids.values():
            # The same process, if it is still there.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def move(self, *more):
        # It may be that too few nodes are up for it.
        self.moves.append(self.cluster.extend(LOG, *more, check=False))

    def truncate(self):
        self.cluster.atoll("chain", "truncate", "--log", LOG, check=False, timeout=60)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self.threads:
            thread.join()
        self.cluster.wait_back(self.pids)


@dataclasses.dataclass
class Sum:
    """What is told of one kind of history."""

    histories: int = 0
    killed: int = 0
    operations: int = 0
    unknown: int = 0
    porcupine: int = 0
    ours: int = 0
    undecided: int = 0
    disagreements: int = 0


class Run:
    """All histories of one drill."""

    def __init__(self, drill, judges):
        self.drill, self.judges = drill, judges
        self.sums = {"zookeeper": Sum(), "table": Sum()}
        self.kills = self.stops = self.asked = self.swaps = 0
        self.wrong, self.odd = [], []
        self.number = 0
        self.kept = drill.folder / "wrong"
        self.kept.mkdir(exist_ok=True)

    def round(self, cluster, connections, calm=False, **ways):
        """Some histories of each kind, side by side; and what happened meanwhile."""
        random, seconds = self.drill.random, self.drill.args.seconds
        recorders, groups = [], []
        for _ in range(SIDE_BY_SIDE):
            self.number += 2
            name = f"h{self.number:05}"
            zoo = zookeeper.prepare(cluster, name, random.randrange(1 << 32), seconds)
            rows = tables.prepare(connections, name, random.randrange(1 << 32), seconds)
            apart = {"apart": ways["apart"]} if ways else {}
            groups += [(zoo, zookeeper.clients(zoo, cluster, CLIENTS, **ways)), (rows, tables.clients(rows, connections, CLIENTS, **apart))]
            recorders += [zoo, rows]
        with Disturbance(cluster, random, seconds, calm, must_move=not self.swaps) as disturbance:
            threads = [threading.Thread(target=recorder.run, args=(clients,), daemon=True) for recorder, clients in groups]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        need(not disturbance.failed, f"the disturbance: {disturbance.failed}")
        return recorders, disturbance

    def files(self, recorders):
        """Writes the histories."""
        folder = self.drill.folder / "histories"
        folder.mkdir(exist_ok=True)
        paths = []
        for recorder in recorders:
            paths.append(folder / f"{recorder.name}-{recorder.kind}.jsonl")
            recorder.write(paths[-1])
        return paths

    def count(self, recorders, disturbance):
        """Judges a round, and counts it."""
        self.kills += len(disturbance.kills)
        self.stops += disturbance.stops
        self.asked += len(disturbance.moves)
        self.swaps += sum(disturbance.moves)
        files = self.files(recorders)
        for recorder, file, (mine, porcupine) in zip(recorders, files, self.judges.judge(files, self.kept)):
            total = self.sums[recorder.kind]
            total.histories += 1
            total.killed += any(recorder.began <= at <= recorder.ended for at in disturbance.kills)
            total.operations += len(recorder.lines)
            total.unknown += recorder.unknown()
            self.odd += recorder.odd
            verdicts = [v for v in (mine, porcupine) if v]
            holds = [all(v[q] == "ok" for q in QUESTIONS) for v in verdicts]
            total.ours += holds[0]
            total.porcupine += holds[-1] if porcupine else 0
            total.undecided += any(v[q] == "undecided" for v in verdicts for q in QUESTIONS)
            total.disagreements += any(mine[q] != porcupine[q] for q in QUESTIONS) if porcupine else 0
            if all(holds):
                file.unlink()
            else:
                kept = shutil.move(file, self.kept / file.name)
                picture = porcupine.get("picture") if porcupine else None
                self.wrong.append(f"{kept} (seed {recorder.seed}): {mine['why']}; picture: {picture}")
                say("  WRONG", self.wrong[-1])

    def histories(self):
        """How many were judged."""
        return sum(total.histories for total in self.sums.values())

    def main(self):
        """As many histories as were asked for."""
        wanted = self.drill.args.histories
        while self.histories() < wanted:
            folder = self.drill.folder / f"cluster-{self.number}"
            with Cluster(self.drill.binary, folder, "--nodes", 3) as cluster:
                connections = opened(cluster)
                until = min(wanted, self.histories() + OF_A_CLUSTER)
                while self.histories() < until:
                    self.count(*self.round(cluster, connections))
                    say(f"  {self.histories()} histories, {self.kills} kills, {self.stops} stops, {self.swaps} swaps")
                connections.close()
            shutil.rmtree(folder, ignore_errors=True)

    def mutant(self, binary, name, synced):
        """Something is known to be wrong: both judges find that, and agree on everything. All clients read at other nodes than they write."""
        folder = self.drill.folder / f"mutant-{synced}"
        found = 0
        with Cluster(binary, folder, "--nodes", 3) as cluster:
            connections = opened(cluster)
            for _ in range(MUTANT_ROUNDS):
                files = self.files(self.round(cluster, connections, calm=True, apart=1, synced=synced)[0])
                for mine, porcupine in self.judges.judge(files, folder):
                    agree = not porcupine or all(mine[q] == porcupine[q] for q in QUESTIONS)
                    need(agree, f"the judges do not agree on a history of {name}: {mine}, {porcupine}")
                    found += mine["linearizable"] == "illegal"
                if found:
                    break
            connections.close()
        shutil.rmtree(folder, ignore_errors=True)
        need(found, f"{name}: no judge noticed")
        say(f"  {name}: found in {found} histories")


def opened(cluster):
    """Clients of the tables, once the table is there."""
    tables.make_table(cluster)
    return tables.Connections([node.grpc for node in cluster.nodes()])


def body(drill):
    judges = Judges(drill.args.judge)
    run = Run(drill, judges)
    if judges.why_not:
        say(f"porcupine: not run: {judges.why_not}")
    say(f"  {judges.check(run.kept)} bundled histories, right and wrong, are judged as they are")
    run.mutant(drill.binary, "reads without their sync", False)
    if drill.args.mutant_bin:
        os.environ["ATOLL_MUTANT"] = "DbBarrierWithoutCheck"
        run.mutant(pathlib.Path(drill.args.mutant_bin).resolve(), "a barrier that does not wait", True)
        del os.environ["ATOLL_MUTANT"]
    run.main()
    head = [field.name for field in dataclasses.fields(Sum)]
    table([[kind, *dataclasses.astuple(total)] for kind, total in run.sums.items()], ["kind", *head])
    total = {name: sum(getattr(one, name) for one in run.sums.values()) for name in head}
    drill.result.update(total, kills=run.kills, stops=run.stops, swaps=run.swaps, porcupine=total["porcupine"] if judges.porcupine else "not run")
    for words in run.odd[:10]:
        say("  odd:", words)
    need(not run.odd, f"{len(run.odd)} clients were answered what they should not be, the first: {run.odd[:1]}")
    need(not run.wrong, f"{len(run.wrong)} histories do not hold, the first: {run.wrong[:1]}")
    need(total["disagreements"] == 0 and total["undecided"] == 0, "the judges do not agree, or are not sure")
    need(run.swaps and 2 * run.swaps >= run.asked, f"the Loglet was swapped {run.swaps} of {run.asked} times")
    need(total["killed"] == total["histories"], "not every history had a kill in it")


if __name__ == "__main__":
    Drill(
        "histories",
        __doc__,
        histories=(1_000, 20, "at least so many histories"),
        seconds=(2.5, 2.5, "how long a history is"),
        mutant_bin=("", "", "a program with mutants, to be found wrong"),
        judge=("", "", "our judge, atoll-judge, as it was built"),
    ).run(body)
