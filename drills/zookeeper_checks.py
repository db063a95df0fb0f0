"""What a ZooKeeper client may expect, as checks that run against any ensemble: each takes a `Bench` and raises `Failed` if it does not
hold.

zookeeper_kazoo.py runs them. Apache ZooKeeper 3.9 was checked as well, and must pass them too.
"""

import collections
import contextlib
import datetime
import itertools
import subprocess
import sys
import threading
import time
import uuid

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState
from kazoo.recipe.barrier import Barrier, DoubleBarrier
from kazoo.recipe.cache import TreeCache
from kazoo.recipe.lease import MultiNonBlockingLease, NonBlockingLease
from kazoo.recipe.lock import Lock, ReadLock, Semaphore, WriteLock
from kazoo.recipe.partitioner import SetPartitioner
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl, make_digest_acl

import jute
from cluster import Failed, need, poll
from jute import Wire

# An answer, an event or a turn comes within this time, in seconds: long enough for the loss of a node in between.
WITHIN = 60


class Bench:
    """Clients of one ensemble, in a folder of their own."""

    def __init__(self, hosts, timeout=10.0):
        self.hosts = hosts
        self.timeout = timeout
        self.clients = []
        self.root = f"/check-{uuid.uuid4().hex[:12]}"
        self.plain = self.client(chroot=False)
        made(self.plain, self.root)
        self.main = self.client()

    def client(self, chroot=True, hosts=None, **kwargs):
        """Another client, connected."""
        retry = KazooRetry(max_tries=-1, deadline=WITHIN, max_delay=1.0, ignore_expire=False)
        where = (hosts or self.hosts) + (self.root if chroot else "")
        client = KazooClient(where, timeout=self.timeout, connection_retry=retry, command_retry=retry, **kwargs)
        self.clients.append(client)
        client.start(timeout=WITHIN)
        return client

    def close(self):
        """Ends all clients."""
        for client in self.clients:
            try:
                client.stop()
                client.close()
            except Exception:  # A client whose ensemble is gone has nothing left to close.
                pass


def made(client, path, data=b"", **how):
    """Creates a node. If the answer is lost it is done again, and may find itself."""
    with contextlib.suppress(zk.NodeExistsError):
        client.retry(client.create, path, data, **how)


def gets(error, call, *args, **kwargs):
    """The call must fail so."""
    try:
        got = call(*args, **kwargs)
    except error:
        return
    raise Failed(f"{call.__name__}{args} gave {got!r}; {error.__name__} was due")


def equal(got, wanted, words=""):
    """Both must be equal."""
    need(got == wanted, f"{words}: got {got!r}, wanted {wanted!r}")


def soon(words, ask):
    """Until the answer is true."""
    return poll(words, WITHIN, ask)


class Heard:
    """A watch function that keeps what it is told."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append((event.type, event.path))

    def wait(self, *events):
        """Until these came, and nothing else did."""
        soon(f"{events} are told; so far {self.events}", lambda: len(self.events) >= len(events))
        equal(self.events, list(events), "events")
        self.events = []


# --- nodes ---


def nodes(bench):
    """create, get, set, exists, delete, children, and what they refuse."""
    c = bench.main
    equal(c.create("/a", b"one"), "/a")
    equal(c.get("/a")[0], b"one")
    gets(zk.NodeExistsError, c.create, "/a", b"two")
    gets(zk.NoNodeError, c.create, "/b/c", b"")
    gets(zk.NoNodeError, c.get, "/b")
    gets(zk.NoNodeError, c.set, "/b", b"")
    gets(zk.NoNodeError, c.delete, "/b")
    gets(zk.NoNodeError, c.get_children, "/b")
    equal(c.exists("/b"), None)
    stat = c.set("/a", b"second", version=0)
    equal((stat.version, stat.dataLength, stat.numChildren), (1, 6, 0), "Stat of set")
    gets(zk.BadVersionError, c.set, "/a", b"x", version=0)
    gets(zk.BadVersionError, c.delete, "/a", version=0)
    for name in ("z", "x", "y"):
        c.create(f"/a/{name}", b"")
    equal(sorted(c.get_children("/a")), ["x", "y", "z"], "children")
    gets(zk.NotEmptyError, c.delete, "/a")
    names, stat = c.get_children("/a", include_data=True)
    equal((sorted(names), stat.numChildren, stat.cversion), (["x", "y", "z"], 3, 3), "children and Stat")
    c.delete("/a/x")
    stat = c.exists("/a")
    equal((stat.numChildren, stat.cversion, stat.version), (2, 4, 1), "Stat after a deletion")
    c.delete("/a", recursive=True)
    equal(c.exists("/a"), None)
    c.create("/deep/er/and/deeper", b"x", makepath=True)
    c.ensure_path("/deep/er/and/deeper/still")
    equal(c.get_children("/deep/er/and/deeper"), ["still"])
    c.create("/empty", b"")
    equal(c.get("/empty")[0], b"")
    c.create("/ünï", "ä".encode())
    equal(c.get("/ünï")[0].decode(), "ä")
    large = bytes(range(256)) * 3900
    c.create("/large", large)
    equal(c.get("/large")[0], large, "998,400 bytes")
    c.create("/large/child", b"")
    equal(c.get("/large")[0], large, "the same after a child was made")
    c.set("/large", b"small")
    equal(c.get("/large")[0], b"small")


def stats(bench):
    """Every field of Stat, and zxids that only rise."""
    c = bench.main
    _, made = c.create("/s", b"abc", include_data=True)
    equal((made.version, made.cversion, made.aversion, made.ephemeralOwner), (0, 0, 0, 0), "counts of a new node")
    need(made.czxid == made.mzxid == made.pzxid > 0, f"zxids of a new node: {made}")
    need(made.ctime == made.mtime and abs(made.ctime / 1000 - time.time()) < 3600, f"times of a new node: {made}")
    was = c.set("/s", b"abcd")
    need(was.mzxid > made.czxid == was.czxid == was.pzxid and was.mtime >= was.ctime, f"after set: {was}")
    c.create("/s/child", b"")
    parent, child = c.exists("/s"), c.exists("/s/child")
    need(parent.pzxid == child.czxid > parent.mzxid == was.mzxid, f"after a child: {parent}, {child}")
    c.set("/s/child", b"x")
    equal(c.exists("/s").pzxid, parent.pzxid, "pzxid after a child's data was set")
    c.set_acls("/s", OPEN_ACL_UNSAFE)
    after = c.exists("/s")
    equal((after.aversion, after.version, after.mzxid), (1, 1, was.mzxid), "after setACL")
    c.create("/s/e", b"", ephemeral=True)
    equal(c.exists("/s/e").ephemeralOwner, c.client_id[0], "owner of an ephemeral")
    c.delete("/s/e")
    need(c.exists("/s").pzxid > parent.pzxid, "pzxid after a deletion")


def names(bench):
    """Sequential nodes: ten digits, counted by the parent, over deletions."""
    c = bench.main
    c.create("/q", b"")
    equal([c.create("/q/n-", b"", sequence=True) for _ in range(3)], [f"/q/n-000000000{i}" for i in range(3)])
    c.create("/q/other", b"")
    equal(c.create("/q/", b"", sequence=True), "/q/0000000004")
    c.delete("/q/0000000004")
    equal(c.create("/q/n-", b"", sequence=True, ephemeral=True), "/q/n-0000000005")
    gets(zk.NoChildrenForEphemeralsError, c.create, "/q/n-0000000005/x", b"")


def transactions(bench):
    """All or nothing, with a result for each operation."""
    c = bench.main
    c.create("/t", b"0")
    t = c.transaction()
    t.create("/t/a", b"1")
    t.set_data("/t", b"2", version=0)
    t.check("/t", 1)
    t.create("/t/s-", b"", sequence=True)
    t.delete("/t/a", version=0)
    results = t.commit()
    equal(results[0], "/t/a")
    equal((results[1].version, results[2], results[3], results[4]), (1, True, "/t/s-0000000001", True), "results")
    equal(c.get_children("/t"), ["s-0000000001"])
    t = c.transaction()
    t.create("/t/b", b"")
    t.check("/t", 77)
    t.create("/t/c", b"")
    results = t.commit()
    equal([type(r) for r in results], [zk.RolledBackError, zk.BadVersionError, zk.RuntimeInconsistency], "errors")
    equal(c.exists("/t/b"), None, "nothing of a failed transaction")
    t = c.transaction()
    t.create("/t/b", b"")
    t.create("/t/b", b"")
    equal([type(r) for r in t.commit()], [zk.RolledBackError, zk.NodeExistsError])
    equal(c.transaction().commit(), [], "an empty transaction")


def access(bench):
    """Lists of access, digest authentication, what they refuse."""
    c = bench.main
    ann = bench.client(auth_data=[("digest", "ann:secret")])
    ann.create("/p", b"private", acl=CREATOR_ALL_ACL)
    # The node of this client may be behind the other's.
    c.sync("/p")
    gets(zk.NoAuthError, c.get, "/p")
    gets(zk.NoAuthError, c.set, "/p", b"")
    gets(zk.NoAuthError, c.create, "/p/x", b"")
    gets(zk.NoAuthError, c.get_children, "/p")
    gets(zk.NoAuthError, c.set_acls, "/p", OPEN_ACL_UNSAFE)
    gets(zk.NoAuthError, c.exists, "/p")
    equal(ann.get("/p")[0], b"private")
    acls, _ = ann.get_acls("/p")
    equal([a.id.id for a in acls], [make_digest_acl("ann", "secret", all=True).id.id], "the list")
    ann.create("/p/x", b"")
    gets(zk.NoAuthError, c.delete, "/p/x")
    ann.set_acls("/p", [make_digest_acl("ann", "secret", all=True), make_acl("world", "anyone", read=True)])
    c.sync("/p")
    equal(c.get("/p")[0], b"private")
    acls, _ = c.get_acls("/p")
    need(all(a.id.id in ("ann:x", "anyone") for a in acls), f"hashes are hidden from who may only read: {acls}")
    gets(zk.BadVersionError, ann.set_acls, "/p", OPEN_ACL_UNSAFE, version=7)
    bob = bench.client()
    bob.add_auth("digest", "ann:secret")
    bob.sync("/p")
    equal(bob.get("/p")[0], b"private", "with authentication added later")
    gets(zk.InvalidACLError, c.create, "/bad", b"", acl=CREATOR_ALL_ACL)
    gets(zk.InvalidACLError, c.create, "/bad", b"", acl=[make_acl("guess", "x", read=True)])
    c.create("/here", b"", acl=[make_acl("ip", "127.0.0.1", all=True), make_acl("ip", "::1", all=True)])
    c.set("/here", b"x")
    c.create("/there", b"", acl=[make_acl("ip", "10.0.0.0/8", all=True)])
    gets(zk.NoAuthError, c.get, "/there")
    c.create("/ro", b"", acl=READ_ACL_UNSAFE)
    gets(zk.NoAuthError, c.set, "/ro", b"x")


def chroots(bench):
    """A client below a path sees nothing but what is below it."""
    c = bench.main
    c.create("/below", b"")
    inner = bench.client(hosts=None)
    equal(bench.plain.exists(f"{bench.root}/below") is not None, True)
    heard = Heard()
    inner.get("/below", watch=heard)
    bench.plain.set(f"{bench.root}/below", b"x")
    heard.wait((EventType.CHANGED, "/below"))
    need("zookeeper" in bench.plain.get_children("/"), "the root has /zookeeper")
    gets(zk.BadArgumentsError, bench.plain.delete, "/zookeeper")


# --- watches ---


def watches(bench):
    """Once each, for what they were left for, by other clients and by one's own."""
    c, other = bench.main, bench.client()
    heard = Heard()
    equal(c.exists("/w", watch=heard), None)
    other.create("/w", b"")
    heard.wait((EventType.CREATED, "/w"))
    c.get("/w", watch=heard)
    other.set("/w", b"1")
    heard.wait((EventType.CHANGED, "/w"))
    other.set("/w", b"2")
    c.get_children("/w", watch=heard)
    other.set("/w", b"3")
    other.create("/w/c", b"")
    heard.wait((EventType.CHILD, "/w"))
    c.get_children("/w", watch=heard)
    c.delete("/w/c")
    heard.wait((EventType.CHILD, "/w"))
    data, child = Heard(), Heard()
    c.get("/w", watch=data)
    c.get_children("/w", watch=child)
    other.delete("/w")
    data.wait((EventType.DELETED, "/w"))
    child.wait((EventType.DELETED, "/w"))
    gets(zk.NoNodeError, c.get, "/w", watch=heard)
    other.create("/w", b"")
    c.sync("/w")
    equal(heard.events, [], "no watch is left by a get that fails")


def watch_before_data(bench):
    """A client hears of a change before it reads it."""
    c, other = bench.main, bench.client()
    c.create("/wd", b"0")
    for number in range(1, 101):
        heard = Heard()
        c.get("/wd", watch=heard)
        pending = other.set_async("/wd", b"%d" % number)
        while c.get("/wd")[0] != b"%d" % number:
            pass
        # kazoo calls watch functions on another thread, in the order of the wire: the next one it calls comes later.
        soon("the event is told", lambda: heard.events)
        pending.get(timeout=WITHIN)


def own_writes(bench):
    """A client reads its own writes, also when it does not wait for them."""
    c = bench.main
    c.create("/o", b"")
    for number in range(200):
        c.set_async("/o", b"%d" % number)
        equal(c.get("/o")[0], b"%d" % number, "a read behind a write")


def watchers(bench):
    """kazoo's own watchers: they register again and again."""
    c, other = bench.main, bench.client()
    made(c, "/ww", b"0")
    seen, children = [], []
    c.DataWatch("/ww", lambda data, stat: seen.append(data))
    c.ChildrenWatch("/ww", lambda names: children.append(sorted(names)))
    for number in range(1, 21):
        other.retry(other.set, "/ww", b"%d" % number)
        made(other, f"/ww/{number:02}")
    soon("the last value", lambda: seen[-1] == b"20")
    soon("all children", lambda: len(children[-1]) == 20)


# --- sessions ---


def ephemerals(bench):
    """They go with their session, and only with it."""
    c, other = bench.main, bench.client()
    other.create("/e", b"", ephemeral=True)
    other.create("/e-", b"", ephemeral=True, sequence=True)
    heard = Heard()
    c.exists("/e", watch=heard)
    other.stop()
    heard.wait((EventType.DELETED, "/e"))
    soon("all ephemerals are gone", lambda: not [n for n in c.get_children("/") if n.startswith("e")])


def reattach(bench):
    """A session continues at every node, and its ephemerals with it; the one that it left serves it no more."""
    path = f"{bench.root}/r"
    hosts = bench.hosts.split(",")
    first = Wire(hosts[0])
    equal(first.call(jute.CREATE, jute.create(path, flags=1))[1], 0, "an ephemeral")
    before = first
    for host in hosts[1:] + hosts[:1]:
        again = Wire(host, session=first.session, password=first.password)
        equal(again.session, first.session, "the session")
        zxid, error, reply = again.call(jute.EXISTS, jute.watched(path))
        equal((error, reply.stat()[7]), (0, first.session), "the owner of the ephemeral")
        equal(again.call(jute.SET, jute.written(path, b"still here"))[1], 0, "a write elsewhere")
        try:
            before.call(jute.SET, jute.written(path, b"late"))
            raise Failed("a connection that the session has left still writes")
        except ConnectionError:
            pass
        before = again
    equal(bench.plain.get(path)[0], b"still here", "what was written")
    equal(before.call(jute.CLOSE)[1], 0, "its end")
    soon("the ephemeral is gone", lambda: bench.plain.exists(path) is None)
    equal(Wire(hosts[0], session=first.session, password=first.password).session, 0, "a session that has ended")
    other = Wire(hosts[0])
    equal(Wire(hosts[0], session=other.session, password=b"x" * 16).session, 0, "with a wrong password")


# A client that makes an ephemeral, says so, and never says another word.
MUTE = """
import sys, time
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1], timeout=float(sys.argv[2]))
client.start()
client.create(sys.argv[3], b"", ephemeral=True)
print(client._session_timeout, flush=True)
time.sleep(600)
"""


def expiry(bench):
    """A client that is killed takes its ephemerals along after its timeout, not before."""
    c = bench.main
    command = [sys.executable, "-c", MUTE, bench.hosts + bench.root, str(bench.timeout), "/x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as mute:
        timeout = float(mute.stdout.readline()) / 1000
        mute.kill()
    began = time.monotonic()
    poll("the session expires", WITHIN + timeout, lambda: c.exists("/x") is None)
    took = time.monotonic() - began
    # The client's last ping may be a third of the timeout old.
    need(took > timeout * 0.6, f"the session expired after {took:.1f} s; its timeout is {timeout:.1f} s")


# --- recipes ---


def in_threads(*calls, within=WITHIN * 2):
    """Runs calls side by side; fails if one does, or hangs. Fails as the first one did, if that lost an answer."""
    failed = []

    def run(call):
        try:
            call()
        except BaseException as error:  # Told below, with all others.
            failed.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within)
        need(not thread.is_alive(), "a recipe hangs")
    if failed and isinstance(failed[0], zk.ConnectionLoss):
        raise failed[0]
    need(not failed, "; ".join(map(repr, failed)))


def locks(bench):
    """One at a time."""
    inside, most, total = [], [0], [0]

    def work(client):
        lock = Lock(client, "/lock")
        for _ in range(5):
            with lock:
                inside.append(1)
                most[0] = max(most[0], len(inside))
                total[0] += 1
                inside.pop()

    in_threads(*[lambda c=bench.client(): work(c) for _ in range(4)])
    equal((most[0], total[0]), (1, 20), "holders at once, and in all")
    a, b = bench.client(), bench.client()
    held = Lock(a, "/lock2", "a")
    held.acquire()
    need(not Lock(b, "/lock2", "b").acquire(blocking=False), "a lock that is held")
    equal(Lock(b, "/lock2").contenders(), ["a"])
    held.release()


def read_write_locks(bench):
    """Readers together, a writer alone."""
    a, b, c = bench.client(), bench.client(), bench.client()
    one, two, three = ReadLock(a, "/rw"), ReadLock(b, "/rw"), WriteLock(c, "/rw")
    need(one.acquire(timeout=WITHIN) and two.acquire(timeout=WITHIN), "two readers")
    need(not three.acquire(blocking=False), "a writer beside readers")
    one.release()
    two.release()
    need(three.acquire(timeout=WITHIN), "a writer alone")
    need(not one.acquire(blocking=False), "a reader beside a writer")
    three.release()


def semaphores(bench):
    """So many at a time."""
    a, b, c = bench.client(), bench.client(), bench.client()
    one, two, three = (Semaphore(x, "/sem", max_leases=2) for x in (a, b, c))
    need(one.acquire(timeout=WITHIN) and two.acquire(timeout=WITHIN), "two leases")
    need(not three.acquire(blocking=False), "a third lease of two")
    one.release()
    need(three.acquire(timeout=WITHIN), "a lease that was given back")
    equal(len(two.lease_holders()), 2)
    two.release()
    three.release()


def elections(bench):
    """Everybody leads once, one after the other."""
    led = []

    def run(client, name):
        client.Election("/elect", name).run(lambda: led.append(name))

    in_threads(*[lambda c=bench.client(), n=f"n{i}": run(c, n) for i in range(4)])
    equal(sorted(led), ["n0", "n1", "n2", "n3"], "leaders")


def undisturbed(bench, count, recipe):
    """Runs `recipe(client, attempt)`, which a lost connection may end, or keep waiting for a watch without end.

    kazoo forgets its watches where a connection is lost: then all begin anew.
    """
    until = time.monotonic() + WITHIN * 4
    for attempt in itertools.count():
        clients, lost = [bench.client() for _ in range(count)], []
        for client in clients:
            client.add_listener(lost.append)
        try:
            return in_threads(*[lambda c=client: recipe(c, attempt) for client in clients], within=WITHIN / 4)
        except (Failed, zk.ConnectionLoss):
            if not lost or KazooState.LOST in lost or time.monotonic() > until:
                raise
        for client in clients:
            client.stop()


def barriers(bench):
    """Nobody passes before it is taken away; nobody enters or leaves alone."""
    a, b = bench.client(), bench.client()
    barrier = Barrier(a, "/barrier")
    barrier.create()
    # Its node may be behind the other's.
    b.sync("/barrier")
    need(not Barrier(b, "/barrier").wait(0.3), "a barrier that stands")
    threading.Timer(0.3, barrier.remove).start()
    # In pieces: its watch is forgotten where a connection is lost.
    need(any(Barrier(b, "/barrier").wait(WITHIN / 20) for _ in range(20)), "a barrier that is gone")
    inside, entered = [], collections.defaultdict(lambda: threading.Barrier(3, timeout=WITHIN / 4))

    def all_of_them(client, attempt):
        double = DoubleBarrier(client, f"/double-{attempt}", 3)
        double.enter()
        inside.append(attempt)
        # kazoo's recipe hangs if one has left before another one, which is about to enter, looks whether all are there.
        try:
            entered[attempt].wait()
        except threading.BrokenBarrierError:
            raise Failed("not all have entered") from None
        double.leave()

    undisturbed(bench, 3, all_of_them)
    equal(inside.count(max(inside)), 3, "clients that were inside")


def queues(bench):
    """First in, first out; by priority; taken once."""
    c = bench.main
    queue = c.Queue("/queue")
    for number in range(5):
        queue.put(b"%d" % number)
    queue.put(b"first", priority=1)
    equal([queue.get() for _ in range(7)], [b"first", b"0", b"1", b"2", b"3", b"4", None], "a queue")
    for number in range(20):
        c.LockingQueue("/locking").put(b"%02d" % number)
    got = []

    def take(client):
        locking = client.LockingQueue("/locking")
        while True:
            item = locking.get(timeout=2)
            if item is None:
                return
            got.append(item)
            need(locking.consume(), "an item that is held is consumed")

    in_threads(*[lambda x=bench.client(): take(x) for _ in range(3)])
    equal(sorted(got), [b"%02d" % n for n in range(20)], "each item once")


def counters(bench):
    """No increment is lost."""
    def count(client):
        counter = client.Counter("/counter")
        for _ in range(20):
            counter += 1

    in_threads(*[lambda c=bench.client(): count(c) for _ in range(4)])
    # The node of this client may be behind the others.
    bench.main.sync("/counter")
    equal(bench.main.Counter("/counter").value, 80, "the counter")


def parties(bench):
    """Who is there."""
    a, b = bench.client(), bench.client()
    for kind in ("Party", "ShallowParty"):
        one, two = getattr(a, kind)(f"/{kind}", "one"), getattr(b, kind)(f"/{kind}", "two")
        one.join()
        two.join()
        equal(sorted(two), ["one", "two"], kind)
        # The other client may be at a node that hears of it later, as with any ZooKeeper.
        soon("the other sees both", lambda one=one: len(one) == 2)
        two.leave()
        soon("one is left", lambda one=one: list(one) == ["one"])
        one.leave()


def partitioners(bench):
    """A set divided among those who are there."""
    parts = {}

    def settle(client, attempt):
        mine = SetPartitioner(client, f"/parts-{attempt}", set(range(6)), identifier=f"m{client.client_id[0]}", time_boundary=0.5)
        parts.setdefault(attempt, []).append(mine)
        until = time.monotonic() + WITHIN
        while not (mine.acquired and len(list(mine)) == 3):
            need(time.monotonic() < until and not mine.failed, f"a partitioner is {mine.state} and has {list(mine)}")
            if mine.release:
                mine.release_set()
            elif mine.allocating:
                mine.wait_for_acquire(1)
            time.sleep(0.05)

    undisturbed(bench, 2, settle)
    settled = parts[max(parts)]
    equal(sorted(itertools.chain(*settled)), list(range(6)), "all parts, each once")
    for part in settled:
        part.finish()


def leases(bench):
    """Held by one until it ends."""
    a, b = bench.client(), bench.client()
    minute = datetime.timedelta(minutes=1)
    need(bool(NonBlockingLease(a, "/lease", minute, "a")), "a lease")
    need(not NonBlockingLease(b, "/lease", minute, "b"), "a lease that somebody has")
    got = [bool(MultiNonBlockingLease(bench.client(), 2, "/leases", minute, f"m{i}")) for i in range(3)]
    equal(got, [True, True, False], "two of two leases")


def caches(bench):
    """A tree, followed."""
    c, other = bench.main, bench.client()
    made(c, "/tree")
    cache = TreeCache(c, "/tree")
    cache.start()
    made(other, "/tree/a/b", b"1", makepath=True)
    soon("the cache has it", lambda: cache.get_data("/tree/a/b") and cache.get_data("/tree/a/b").data == b"1")
    other.retry(other.set, "/tree/a/b", b"2")
    soon("the cache has the change", lambda: cache.get_data("/tree/a/b").data == b"2")
    other.retry(other.delete, "/tree/a", recursive=True)
    soon("the cache has lost it", lambda: cache.get_children("/tree") == frozenset())
    cache.close()


CHECKS = [
    nodes, stats, names, transactions, access, chroots, watches, watch_before_data, own_writes, watchers, ephemerals,
    reattach, expiry, locks, read_write_locks, semaphores, elections, barriers, queues, counters, parties, partitioners,
    leases, caches,
]
# While nodes are killed: what a client retries by itself, or what waits for others.
RECIPES = [watchers, locks, elections, barriers, queues, parties, partitioners, caches]
