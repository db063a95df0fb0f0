#!/usr/bin/env python3
"""The znodes of a live ZooKeeper server are imported; an independent client sees the same on both sides.

The records of the Debian package index (without one, the drill makes them up and says so) become znodes of Apache ZooKeeper 3.9.5. Some
have access lists, some were set again, some were deleted; there are sequential nodes, ephemerals of a live session, containers, and nodes
with a time to live. `atoll zookeeper import` copies them. Then kazoo reads both sides and compares every node: data, access list, children,
and every field of Stat. The import reports ephemerals with their owners and names the nodes that it may not read. A second import is
refused with an error that names `--overwrite`. A changed node is found and repaired. The long form also writes the same records to three
Atoll nodes through kazoo, and reads them back from each.
"""

import collections
import json
import struct
import time

from zookeeper_venv import kazoo_or_again

kazoo_or_again()

import jute
from cluster import Cluster, Drill, need, say, table
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_digest_acl
from tables import packages
from zookeeper_apache import Apache

# Who may read what has a list.
USER = ("user", "secret")
AUTH = ["--auth", f"digest:{USER[0]}:{USER[1]}"]
# The superuser of Atoll, who alone imports; nobody to ZooKeeper.
ROOT = ["--auth", "digest:root:atoll"]
# Requests of kazoo in flight.
WINDOW = 256
# Stat, as it must be on both sides.
FIELDS = "czxid mzxid pzxid ctime mtime version cversion aversion ephemeralOwner dataLength numChildren".split()


def client(hosts, **options):
    """A kazoo client that may read everything."""
    kazoo = KazooClient(hosts, timeout=20.0, auth_data=[("digest", ":".join(USER))], **options)
    kazoo.start(timeout=30)
    return kazoo


def at_once(asked):
    """The results of asynchronous calls, at most WINDOW of them in flight, in their order."""
    waiting = collections.deque()
    for one in asked:
        waiting.append(one())
        if len(waiting) >= WINDOW:
            yield waiting.popleft().get(timeout=60)
    while waiting:
        yield waiting.popleft().get(timeout=60)


def znodes(rows):
    """(path, data) of records, parents first: /packages/section/name/version."""
    seen, out = set(), []
    for row in rows:
        parts = ["packages", *((row["section"] or "none").split("/")), row["package"], row["version"]]
        data = json.dumps(row).encode()
        for depth in range(1, len(parts) + 1):
            path = "".join("/" + part for part in parts[:depth])
            if path not in seen:
                seen.add(path)
                out.append((path, data if depth == len(parts) else b""))
    return out


def create_all(kazoo, nodes):
    """Makes nodes, level by level, so that all of a level can be in flight at once."""
    levels = collections.defaultdict(list)
    for path, data in nodes:
        levels[path.count("/")].append((path, data))
    for depth in sorted(levels):
        for _ in at_once([lambda p=path, d=data: kazoo.create_async(p, d) for path, data in levels[depth]]):
            pass


def fill(host, nodes, random):
    """What the ZooKeeper server holds; the session whose ephemerals are there, and what they are."""
    kazoo = client(host)
    create_all(kazoo, nodes)
    leaves = [path for path, data in nodes if data]
    acl = [make_digest_acl(*USER, all=True)]
    for _ in at_once([lambda p=path: kazoo.set_acls_async(p, acl) for path in leaves[::20]]):
        pass
    for path in random.sample(leaves, len(leaves) // 10):
        kazoo.set(path, f"again {path}".encode())
    for path in random.sample(leaves, len(leaves) // 50):
        kazoo.delete(path)
    kazoo.create("/queue")
    for n in range(20):
        kazoo.create("/queue/n-", b"%d" % n, sequence=True)
    for path in kazoo.get_children("/queue")[:7]:
        kazoo.delete("/queue/" + path)
    kazoo.create("/live")
    kazoo.create("/empty", b"")
    kazoo.create("/large", bytes(random.randrange(256) for _ in range(300_000)))
    owners = [kazoo.create("/live/e-", b"here", ephemeral=True, sequence=True) for _ in range(5)]
    bare = jute.Wire(host)
    for op, body in (
        (jute.CREATE_CONTAINER, jute.create("/container", b"c", 4)),
        (jute.CREATE, jute.create("/container/child", b"x")),
        (jute.CREATE_TTL, jute.create("/ttl", b"t", 5, ttl=10_000_000)),
        (jute.CREATE, jute.create("/null", None)),
        (jute.CREATE, jute.create("/zookeeper/quota/packages")),
        (jute.CREATE, jute.create("/zookeeper/quota/packages/zookeeper_limits", b"count=5,bytes=-1=;byteHardLimit=-1;countHardLimit=-1")),
        (jute.CREATE, jute.create("/zookeeper/quota/packages/zookeeper_stats", b"count=-1,bytes=-1")),
        # Nobody may read it but the owner of a password that the import is not given.
        (jute.CREATE, jute.create("/hidden", b"h")),
        (jute.CREATE, jute.create("/hidden/below", b"h")),
        (jute.SET_ACL, jute.listed("/hidden/below", [(31, "digest", "other:bm90aGluZw==")], -1)),
    ):
        _, error, _ = bare.call(op, body)
        need(error == 0, f"the ZooKeeper server answers {error} to {op}")
    bare.call(jute.CLOSE)
    return kazoo, owners


def read_all(kazoo, top="/"):
    """Every node at and below `top` as (data, list, Stat, children), but for the system's own."""
    found, level = {}, [top]
    while level:
        asked = []
        for path in level:
            asked += [lambda p=path: kazoo.get_async(p), lambda p=path: kazoo.get_acls_async(p), lambda p=path: kazoo.get_children_async(p)]
        answers, below = at_once(asked), []
        for path in level:
            (data, stat), (acl, _), children = next(answers), next(answers), next(answers)
            children = sorted(name for name in children if (path, name) != ("/", "zookeeper"))
            found[path] = (data, sorted((a.perms, a.id.scheme, a.id.id) for a in acl), stat, children)
            below += [f"{path.rstrip('/')}/{name}" for name in children]
        level = below
    return found


def same(there, here, gone):
    """Compares what two readers saw; `gone` are ephemerals, whose parents have lost a child here."""
    lost = collections.Counter(path.rsplit("/", 1)[0] for path in gone)
    need(set(there) - set(gone) == set(here), f"nodes on one side only: {sorted(set(there) - set(gone) ^ set(here))[:10]}")
    for path, (data, acl, stat, children) in here.items():
        expected = there[path]
        need(data == expected[0], f"{path}: {len(data or b'')} bytes that are not the {len(expected[0] or b'')} of ZooKeeper")
        need(acl == expected[1], f"{path}: the list {acl}, and {expected[1]} at ZooKeeper")
        for field in FIELDS:
            want = getattr(expected[2], field)
            want += lost[path] * {"cversion": 1, "numChildren": -1}.get(field, 0)
            need(getattr(stat, field) == want, f"{path}: {field} is {getattr(stat, field)}, and {want} at ZooKeeper")
        need(children == [c for c in expected[3] if f"{path.rstrip('/')}/{c}" not in gone], f"{path}: other children")
    return len(here)


def imported(cluster, apache, *more, status=0):
    """Runs the verb; what it tells."""
    args = ["zookeeper", "import", "--from", apache.host, "--to", cluster.zookeeper(), *ROOT, *more, "--json"]
    done = cluster.atoll(*args, timeout=900, check=False)
    words = done.stderr.decode()
    need(done.returncode == status, f"the import ended with {done.returncode}: {done.stdout.decode()[-600:]} {words}")
    return json.loads(done.stdout) if done.stdout else None, words


def whole(drill, cluster, apache, owners, session):
    """The whole tree, but for what nobody may read."""
    told, words = imported(cluster, apache, *AUTH, status=1)
    need([row["path"] for row in told["left_out"]] == ["/hidden/below"] and "left out" in words, f"left out: {told['left_out']} {words}")
    bare = jute.Wire(apache.host)
    bare.call(jute.AUTH, struct.pack(">i", 0) + jute.string("digest") + jute.buffer(b"super:drill"), -4)
    _, error, _ = bare.call(jute.DELETE, jute.versioned("/hidden/below"))
    need(error == 0, f"the superuser of ZooKeeper gets {error}")
    bare.call(jute.CLOSE)
    began = time.monotonic()
    told, _ = imported(cluster, apache, *AUTH, "--overwrite")
    need(told["differences"] == [] and told["compared"] == told["nodes"] == told["same"] + told["replaced"], f"the second time: {told}")
    need(sorted(row["path"] for row in told["ephemerals"]) == sorted(owners), f"ephemerals: {told['ephemerals']}")
    need({row["owner"] for row in told["ephemerals"]} == {hex(session)}, f"owners: {told['ephemerals']}")
    say(f"  again, with --overwrite: {told['same']} were there, {told['replaced']} replaced, {time.monotonic() - began:.1f} s")


def wrong_uses(cluster, apache):
    """What must be refused or found."""
    _, words = imported(cluster, apache, *AUTH, status=1)
    need("is here already" in words and "--overwrite" in words, f"an import over another one: {words}")
    _, words = imported(cluster, apache, "--chroot", "/none", status=1)
    need("no node /none" in words, f"a chroot that is not there: {words}")
    _, words = imported(cluster, apache, "--chroot", "/queue", "--under", "/not/there", status=1)
    need("the parent does not exist" in words, f"a place without a parent: {words}")
    here = client(cluster.zookeeper())
    here.set("/empty", b"changed here")
    here.create("/empty/more")
    told, _ = imported(cluster, apache, *AUTH, "--compare-only", status=1)
    differences = {row["path"]: row["how"] for row in told["differences"]}
    need(set(differences) == {"/empty", "/empty/more"} and "data" in differences["/empty"], f"a changed node: {differences}")
    here.delete("/empty/more")
    imported(cluster, apache, *AUTH, "--overwrite")
    number = here.create("/queue/n-", sequence=True)
    need(number == "/queue/n-0000000020", f"numbers continue: {number}")
    here.delete(number)
    imported(cluster, apache, *AUTH, "--overwrite")
    told, _ = imported(cluster, apache, "--chroot", "/queue", "--under", "/copy")
    need(told["made"] == 14, f"a part elsewhere: {told}")
    here.delete("/copy", recursive=True)
    imported(cluster, apache, *AUTH, "--overwrite", "--no-compare")
    here.stop()


def import_drill(drill, nodes):
    """Fills a ZooKeeper server, imports it, compares."""
    digest = jute_digest("super:drill")
    with Apache(drill.folder / "apache", **{"DigestAuthenticationProvider.superDigest": digest}) as apache:
        began = time.monotonic()
        there, owners = fill(apache.host, nodes, drill.random)
        filled = time.monotonic() - began
        say(f"a ZooKeeper server was filled in {filled:.1f} s")
        with Cluster(drill.binary, drill.folder / "cluster", "--nodes", drill.args.nodes) as cluster:
            cluster.set_zookeeper_super("root", "atoll")
            session = there.client_id[0]
            whole(drill, cluster, apache, owners, session)
            wrong_uses(cluster, apache)
        with Cluster(drill.binary, drill.folder / "again", "--nodes", drill.args.nodes) as cluster:
            cluster.set_zookeeper_super("root", "atoll")
            told, _ = imported(cluster, apache, *AUTH)
            need(told["differences"] == [] and told["left_out"] == [], f"the import found {told['differences'][:5]}")
            here = client(cluster.zookeeper())
            began = time.monotonic()
            count = same(read_all(there), read_all(here), owners)
            need(count == told["made"] + told["replaced"], f"{count} nodes are here, and {told} was told")
            stats = [side.get("/zookeeper/quota/packages/zookeeper_stats")[0] for side in (there, here)]
            need(told["quotas"] == 1 and stats[0] == stats[1] and b"count=-" not in stats[0], f"what the quota counts: {stats}")
            # A client of the old ensemble is not ahead of the new one.
            seen = there.last_zxid
            need(jute.Wire(cluster.zookeeper().split(",")[0], seen=seen).session != 0, "a client that was served there is refused")
            rows = [
                ("imported", told["nodes"], f"{told['seconds']:.2f}", round(told["nodes"] / told["seconds"])),
                ("compared by the verb", told["compared"], f"{told['compare_seconds']:.2f}", round(told["compared"] / told["compare_seconds"])),
                ("compared through kazoo", count, f"{time.monotonic() - began:.2f}", "-"),
            ]
            say()
            table(rows, ("what", "nodes", "seconds", "nodes/s"))
            drill.result.update(znodes=count, import_s=round(told["seconds"], 2), nodes_s=rows[0][3], compare_s=round(told["compare_seconds"], 2))
            here.stop()
        there.stop()


def jute_digest(secret):
    """What ZooKeeper keeps of a password."""
    return make_digest_acl(*secret.split(":"), all=True).id.id


def straight(drill, nodes):
    """The same records through kazoo, without another ensemble."""
    with Cluster(drill.binary, drill.folder / "straight", "--nodes", 3) as cluster:
        kazoo = client(cluster.zookeeper())
        began = time.monotonic()
        create_all(kazoo, nodes)
        wrote = time.monotonic() - began
        kazoo.stop()
        expected = dict(nodes)
        rows = [("written through kazoo", len(nodes), f"{wrote:.1f}", round(len(nodes) / wrote))]
        for node in cluster.nodes():
            one = client(node.zookeeper)
            one.sync("/")
            began = time.monotonic()
            got = {path: data for path, (data, _, _, _) in read_all(one, "/packages").items()}
            need(got == expected, f"node {node.id} gives {len(got)} nodes that are not the {len(expected)} of the input")
            rows.append((f"read from node {node.id}, the same", len(got), f"{time.monotonic() - began:.1f}", "-"))
            one.stop()
        say()
        table(rows, ("what", "nodes", "seconds", "nodes/s"))
        drill.result.update(straight=len(nodes), straight_nodes_s=rows[0][3])


def body(drill):
    rows, origin = packages(drill.args.records)
    nodes = znodes(rows)
    say(f"input: {len(rows)} packages, {len(nodes)} znodes, {origin}")
    drill.result.update(records=len(rows), input=origin)
    import_drill(drill, nodes)
    if not drill.args.quick:
        straight(drill, nodes)


if __name__ == "__main__":
    Drill(
        "zookeeper-import",
        __doc__,
        nodes=(3, 3, "how many nodes"),
        records=(60_000, 2_000, "how many records of the index"),
    ).run(body)
