import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** What the Java client may expect of an ensemble: `ZooKeeperCheck HOSTS [SECONDS]`. With SECONDS it works on for so long, while somebody kills nodes. */
public class ZooKeeperCheck {
    static final int TIMEOUT_MS = 10_000;
    static String hosts;
    static String root;

    /** A client that keeps what its watches are told. */
    static class Client implements Watcher, AutoCloseable {
        final BlockingQueue<WatchedEvent> events = new LinkedBlockingQueue<>();
        final CountDownLatch connected = new CountDownLatch(1);
        final ZooKeeper zk;

        Client(String chroot) throws Exception {
            zk = new ZooKeeper(hosts + chroot, TIMEOUT_MS, this);
            need(connected.await(60, TimeUnit.SECONDS), "connected");
        }

        public void process(WatchedEvent event) {
            if (event.getType() != EventType.None) {
                events.add(event);
            } else if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        }

        void told(EventType type, String path) throws Exception {
            WatchedEvent event = events.poll(60, TimeUnit.SECONDS);
            need(event != null, type + " " + path + " is told");
            equal(event.getType() + " " + event.getPath(), type + " " + path);
        }

        public void close() throws InterruptedException {
            zk.close();
        }
    }

    static void need(boolean holds, String words) {
        if (!holds) {
            throw new AssertionError("does not hold: " + words);
        }
    }

    static void equal(Object got, Object wanted) {
        need(got == null ? wanted == null : got.equals(wanted), "got " + got + ", wanted " + wanted);
    }

    interface Call {
        void run() throws Exception;
    }

    static void refused(KeeperException.Code code, Call call) throws Exception {
        try {
            call.run();
        } catch (KeeperException e) {
            equal(e.code(), code);
            return;
        }
        throw new AssertionError(code + " was due");
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void nodes(Client c) throws Exception {
        ZooKeeper zk = c.zk;
        Stat stat = new Stat();
        equal(zk.create("/a", bytes("one"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, stat), "/a");
        equal(new String(zk.getData("/a", false, null), StandardCharsets.UTF_8), "one");
        need(stat.getCzxid() > 0 && stat.getCzxid() == stat.getMzxid(), "zxids of a new node");
        equal(zk.create("/null", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT), "/null");
        equal(zk.getData("/null", false, null), null);
        equal(zk.create("/a/s-", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL), "/a/s-0000000000");
        equal(zk.create("/a/s-", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL), "/a/s-0000000001");
        equal(zk.create("/a/e", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL), "/a/e");
        equal(zk.create("/c", null, Ids.OPEN_ACL_UNSAFE, CreateMode.CONTAINER), "/c");
        zk.create("/ttl", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, stat, 500);
        equal(zk.create("/ttl-", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, stat, 500), "/ttl-0000000004");
        List<String> ephemerals = zk.getEphemerals();
        Collections.sort(ephemerals);
        // The client does not take its chroot off these.
        equal(ephemerals, List.of(root + "/a/e", root + "/a/s-0000000001"));
        equal(zk.getAllChildrenNumber("/a"), 3);
        refused(KeeperException.Code.NOTEMPTY, () -> zk.delete("/a", -1));
        refused(KeeperException.Code.NOCHILDRENFOREPHEMERALS, () -> zk.create("/a/e/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        zk.create("/c/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        zk.delete("/c/x", 0);
        need(zk.whoAmI().stream().anyMatch(u -> u.getAuthScheme().equals("ip")), "whoAmI tells the address");
        long until = System.currentTimeMillis() + 120_000;
        while (zk.exists("/c", false) != null || zk.exists("/ttl", false) != null || zk.exists("/ttl-0000000004", false) != null) {
            need(System.currentTimeMillis() < until, "an empty container and nodes past their time go by themselves");
            Thread.sleep(200);
        }
    }

    static void transactions(Client c) throws Exception {
        List<OpResult> results = c.zk.multi(List.of(
            Op.create("/m", bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT), Op.setData("/m", bytes("y"), 0),
            Op.check("/m", 1), Op.create("/m/n", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT), Op.delete("/m/n", 0)));
        equal(results.size(), 5);
        equal(((OpResult.SetDataResult) results.get(1)).getStat().getVersion(), 1);
        try {
            c.zk.multi(List.of(Op.setData("/m", null, -1), Op.delete("/none", -1), Op.delete("/m", -1)));
            throw new AssertionError("NONODE was due");
        } catch (KeeperException e) {
            equal(e.code(), KeeperException.Code.NONODE);
            equal(((OpResult.ErrorResult) e.getResults().get(0)).getErr(), 0);
            equal(((OpResult.ErrorResult) e.getResults().get(1)).getErr(), KeeperException.Code.NONODE.intValue());
            equal(((OpResult.ErrorResult) e.getResults().get(2)).getErr(), KeeperException.Code.RUNTIMEINCONSISTENCY.intValue());
        }
        List<OpResult> reads = c.zk.multi(List.of(Op.getData("/m"), Op.getChildren("/m"), Op.getData("/none")));
        equal(new String(((OpResult.GetDataResult) reads.get(0)).getData(), StandardCharsets.UTF_8), "y");
        equal(((OpResult.GetChildrenResult) reads.get(1)).getChildren(), List.of());
        equal(((OpResult.ErrorResult) reads.get(2)).getErr(), KeeperException.Code.NONODE.intValue());
    }

    static void watches(Client c, Client other) throws Exception {
        c.zk.create("/w", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        c.zk.addWatch("/w", AddWatchMode.PERSISTENT);
        other.zk.setData("/w", bytes("1"), -1);
        other.zk.create("/w/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        other.zk.setData("/w", bytes("2"), -1);
        c.told(EventType.NodeDataChanged, "/w");
        c.told(EventType.NodeChildrenChanged, "/w");
        c.told(EventType.NodeDataChanged, "/w");
        c.zk.removeWatches("/w", c, Watcher.WatcherType.Any, false);
        c.told(EventType.PersistentWatchRemoved, "/w");
        refused(KeeperException.Code.NOWATCHER, () -> c.zk.removeWatches("/w", c, Watcher.WatcherType.Any, false));
        c.zk.addWatch("/w", AddWatchMode.PERSISTENT_RECURSIVE);
        other.zk.create("/w/x/y", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        other.zk.setData("/w/x/y", null, -1);
        other.zk.delete("/w/x/y", -1);
        c.told(EventType.NodeCreated, "/w/x/y");
        c.told(EventType.NodeDataChanged, "/w/x/y");
        c.told(EventType.NodeDeleted, "/w/x/y");
        c.zk.removeAllWatches("/w", Watcher.WatcherType.Any, false);
        c.told(EventType.PersistentWatchRemoved, "/w");
        c.zk.exists("/later", true);
        other.zk.create("/later", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        c.told(EventType.NodeCreated, "/later");
        c.zk.getChildren("/w", true);
        other.zk.create("/w/z", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        c.told(EventType.NodeChildrenChanged, "/w");
        need(c.events.isEmpty(), "nothing else is told: " + c.events);
    }

    static void access(Client c) throws Exception {
        try (Client ann = new Client(root)) {
            ann.zk.addAuthInfo("digest", bytes("ann:secret"));
            ann.zk.create("/p", bytes("private"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            // Another client's server may be behind.
            c.zk.sync("/p", (code, path, context) -> { }, null);
            refused(KeeperException.Code.NOAUTH, () -> c.zk.getData("/p", false, null));
            ann.zk.setACL("/p", Ids.READ_ACL_UNSAFE, 0);
            c.zk.sync("/p", (code, path, context) -> { }, null);
            equal(new String(c.zk.getData("/p", false, null), StandardCharsets.UTF_8), "private");
            equal(c.zk.getACL("/p", null).get(0).getPerms(), ZooDefs.Perms.READ);
        }
        refused(KeeperException.Code.INVALIDACL, () -> c.zk.create("/q", null, Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT));
    }

    static void throughput(Client c) throws Exception {
        c.zk.create("/pipe", bytes("0"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        int count = 2_000;
        CountDownLatch done = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            c.zk.setData("/pipe", bytes("" + i), i, (rc, path, ctx, stat) -> {
                if (rc != 0) {
                    failed.incrementAndGet();
                }
                done.countDown();
            }, null);
        }
        need(done.await(60, TimeUnit.SECONDS), "all are answered");
        equal(failed.get(), 0);
        equal(new String(c.zk.getData("/pipe", false, null), StandardCharsets.UTF_8), "" + (count - 1));
    }

    /** Creates a node that nobody else creates. After a lost connection it may be there already. */
    static void createUnderKills(ZooKeeper zk, String path, byte[] data, CreateMode mode) throws Exception {
        boolean unknown = false;
        while (true) {
            try {
                zk.create(path, data, Ids.OPEN_ACL_UNSAFE, mode);
                return;
            } catch (KeeperException.ConnectionLossException e) {
                unknown = true;
                Thread.sleep(20);
            } catch (KeeperException.NodeExistsException e) {
                need(unknown, "nobody else creates " + path);
                return;
            }
        }
    }

    /** Counts under kills: every increment that was acknowledged is in the counter, and the session and its ephemeral survive. */
    static void workOn(Client c, int seconds) throws Exception {
        createUnderKills(c.zk, "/count", bytes("0"), CreateMode.PERSISTENT);
        createUnderKills(c.zk, "/alive", null, CreateMode.EPHEMERAL);
        long session = c.zk.getSessionId();
        System.out.println("session " + Long.toHexString(session));
        long until = System.currentTimeMillis() + seconds * 1000L;
        int acknowledged = 0;
        int unknown = 0;
        long newest = 0;
        while (System.currentTimeMillis() < until) {
            try {
                Stat stat = new Stat();
                int value = Integer.parseInt(new String(c.zk.getData("/count", false, stat), StandardCharsets.UTF_8));
                need(stat.getMzxid() >= newest, "a client never reads an older state than it has seen");
                newest = stat.getMzxid();
                Stat after = c.zk.setData("/count", bytes("" + (value + 1)), stat.getVersion());
                newest = after.getMzxid();
                acknowledged++;
            } catch (KeeperException.ConnectionLossException e) {
                unknown++;
                Thread.sleep(20);
            } catch (KeeperException.BadVersionException e) {
                // An increment of unknown outcome had happened.
                need(unknown > 0, "nobody else writes");
            }
        }
        int value = 0;
        while (true) {
            try {
                value = Integer.parseInt(new String(c.zk.getData("/count", false, null), StandardCharsets.UTF_8));
                need(c.zk.exists("/alive", false).getEphemeralOwner() == session, "the ephemeral is still there");
                break;
            } catch (KeeperException.ConnectionLossException e) {
                Thread.sleep(100);
            }
        }
        need(value >= acknowledged && value <= acknowledged + unknown, value + " increments, " + acknowledged + " acknowledged, " + unknown + " unknown");
        equal(c.zk.getSessionId(), session);
        System.out.println("counted to " + value + " with " + unknown + " unknown outcomes, session kept");
    }

    public static void main(String[] args) throws Exception {
        hosts = args[0];
        root = "/java-" + Long.toHexString(System.nanoTime());
        try (Client plain = new Client("")) {
            createUnderKills(plain.zk, root, null, CreateMode.PERSISTENT);
        }
        List<String> done = new ArrayList<>();
        try (Client c = new Client(root); Client other = new Client(root)) {
            if (args.length > 1) {
                workOn(c, Integer.parseInt(args[1]));
                return;
            }
            nodes(c);
            transactions(c);
            watches(c, other);
            access(c);
            throughput(c);
        }
        System.out.println("all of Java's checks hold");
    }
}
