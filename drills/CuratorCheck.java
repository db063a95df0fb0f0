import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.BoundedExponentialBackoffRetry;
import org.apache.curator.retry.RetryNTimes;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;

/** Curator's recipes: `CuratorCheck HOSTS [SECONDS]`. With SECONDS they run again and again for so long, while somebody kills nodes. */
public class CuratorCheck {
    /** An answer, an event or a turn comes within this time: long enough for the loss of a node in between. */
    static final int WITHIN_S = 60;
    static final ExecutorService threads = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });
    static String hosts;

    /** Clients of one round, and a folder of their own. */
    static class Bench implements AutoCloseable {
        final List<CuratorFramework> clients = new ArrayList<>();
        final AtomicInteger suspended = new AtomicInteger();
        final AtomicInteger lost = new AtomicInteger();
        final String root = "/curator-" + Long.toHexString(System.nanoTime());

        CuratorFramework client() throws Exception {
            CuratorFramework client = CuratorFrameworkFactory.builder().connectString(hosts).sessionTimeoutMs(10_000).connectionTimeoutMs(5_000)
                .retryPolicy(new BoundedExponentialBackoffRetry(50, 1_000, 29)).build();
            client.getConnectionStateListenable().addListener((c, state) -> {
                suspended.addAndGet(state == ConnectionState.SUSPENDED ? 1 : 0);
                lost.addAndGet(state == ConnectionState.LOST ? 1 : 0);
            });
            clients.add(client);
            client.start();
            need(client.blockUntilConnected(WITHIN_S, TimeUnit.SECONDS), "connected");
            return client;
        }

        List<CuratorFramework> clients(int count) throws Exception {
            List<CuratorFramework> made = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                made.add(client());
            }
            return made;
        }

        public void close() {
            clients.forEach(CuratorFramework::close);
        }
    }

    static void need(boolean holds, String words) {
        if (!holds) {
            throw new AssertionError("does not hold: " + words);
        }
    }

    static void equal(Object got, Object wanted, String words) {
        need(got == null ? wanted == null : got.equals(wanted), words + ": got " + got + ", wanted " + wanted);
    }

    static void soon(String words, Callable<Boolean> ask) throws Exception {
        long until = System.currentTimeMillis() + WITHIN_S * 1000L;
        while (!ask.call()) {
            need(System.currentTimeMillis() < until, words + " within " + WITHIN_S + " s");
            Thread.sleep(20);
        }
    }

    interface Work {
        void run(CuratorFramework client) throws Exception;
    }

    /** Every client side by side. */
    static void together(List<CuratorFramework> clients, Work work) throws Exception {
        List<Future<?>> running = new ArrayList<>();
        for (CuratorFramework client : clients) {
            running.add(threads.submit(() -> {
                work.run(client);
                return null;
            }));
        }
        for (Future<?> one : running) {
            one.get(2 * WITHIN_S, TimeUnit.SECONDS);
        }
    }

    /** Returns once the client's server has all that was done before. */
    static void synced(CuratorFramework client, String path) throws Exception {
        CompletableFuture<Integer> code = new CompletableFuture<>();
        client.sync().inBackground((c, event) -> code.complete(event.getResultCode())).forPath(path);
        equal(code.get(WITHIN_S, TimeUnit.SECONDS), KeeperException.Code.OK.intValue(), "a sync");
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] data) {
        return new String(data, StandardCharsets.UTF_8);
    }

    /** One of those who want to leads; when it gives up, another does; in the end everybody has. */
    static void leaderLatch(Bench bench) throws Exception {
        List<LeaderLatch> latches = new ArrayList<>();
        for (CuratorFramework client : bench.clients(3)) {
            LeaderLatch latch = new LeaderLatch(client, bench.root + "/latch", "n" + latches.size());
            latch.start();
            latches.add(latch);
        }
        while (!latches.isEmpty()) {
            soon("somebody leads", () -> latches.stream().anyMatch(LeaderLatch::hasLeadership));
            need(latches.stream().filter(LeaderLatch::hasLeadership).count() <= 1, "one leads");
            soon("the leader is known to all", () -> latches.stream().map(latch -> leader(latch)).distinct().count() == 1);
            LeaderLatch leading = latches.stream().filter(LeaderLatch::hasLeadership).findFirst().orElse(latches.get(0));
            leading.close();
            latches.remove(leading);
        }
    }

    static String leader(LeaderLatch latch) {
        try {
            return latch.getLeader().getId();
        } catch (Exception error) {
            return error.toString();
        }
    }

    /** Everybody leads in turn, one at a time. */
    static void leaderSelector(Bench bench) throws Exception {
        AtomicInteger leading = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        List<CuratorFramework> clients = bench.clients(3);
        List<AtomicInteger> led = List.of(new AtomicInteger(), new AtomicInteger(), new AtomicInteger());
        List<LeaderSelector> selectors = new ArrayList<>();
        for (int i = 0; i < clients.size(); i++) {
            AtomicInteger mine = led.get(i);
            LeaderSelector selector = new LeaderSelector(clients.get(i), bench.root + "/selector", new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) throws Exception {
                    most.accumulateAndGet(leading.incrementAndGet(), Math::max);
                    try {
                        Thread.sleep(20);
                        mine.incrementAndGet();
                    } finally {
                        leading.decrementAndGet();
                    }
                }
            });
            selector.autoRequeue();
            selector.start();
            selectors.add(selector);
        }
        soon("everybody has led twice", () -> led.stream().allMatch(count -> count.get() >= 2));
        selectors.forEach(LeaderSelector::close);
        equal(most.get(), 1, "leaders at once");
    }

    /** One at a time, again within itself: no increment of a counter that is read and then written is lost. */
    static void mutex(Bench bench) throws Exception {
        bench.client().create().creatingParentsIfNeeded().forPath(bench.root + "/counted", bytes("0"));
        together(bench.clients(4), client -> {
            InterProcessMutex mutex = new InterProcessMutex(client, bench.root + "/mutex");
            for (int i = 0; i < 10; i++) {
                need(mutex.acquire(WITHIN_S, TimeUnit.SECONDS) && mutex.acquire(WITHIN_S, TimeUnit.SECONDS), "a turn");
                int value = Integer.parseInt(text(client.getData().forPath(bench.root + "/counted")));
                client.setData().forPath(bench.root + "/counted", bytes("" + (value + 1)));
                mutex.release();
                mutex.release();
            }
        });
        equal(text(bench.client().getData().forPath(bench.root + "/counted")), "40", "counted under a mutex");
    }

    /** Readers together, a writer alone; so many leases and no more. */
    static void locksAndLeases(Bench bench) throws Exception {
        List<CuratorFramework> c = bench.clients(3);
        List<InterProcessReadWriteLock> locks = c.stream().map(client -> new InterProcessReadWriteLock(client, bench.root + "/rw")).toList();
        need(locks.get(0).readLock().acquire(WITHIN_S, TimeUnit.SECONDS) && locks.get(1).readLock().acquire(WITHIN_S, TimeUnit.SECONDS), "two readers");
        need(!locks.get(2).writeLock().acquire(200, TimeUnit.MILLISECONDS), "a writer beside readers");
        locks.get(0).readLock().release();
        locks.get(1).readLock().release();
        need(locks.get(2).writeLock().acquire(WITHIN_S, TimeUnit.SECONDS), "a writer alone");
        locks.get(2).writeLock().release();
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        together(c, client -> {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, bench.root + "/semaphore", 2);
            for (int i = 0; i < 5; i++) {
                Lease lease = semaphore.acquire(WITHIN_S, TimeUnit.SECONDS);
                need(lease != null, "a lease");
                most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                Thread.sleep(5);
                inside.decrementAndGet();
                semaphore.returnLease(lease);
            }
        });
        need(most.get() <= 2, most.get() + " of 2 leases at once");
    }

    /** Nobody passes before it is taken away; nobody enters or leaves alone. */
    static void barriers(Bench bench) throws Exception {
        List<CuratorFramework> clients = bench.clients(3);
        DistributedBarrier barrier = new DistributedBarrier(clients.get(0), bench.root + "/barrier");
        barrier.setBarrier();
        // Another client's: its server may not have it yet.
        synced(clients.get(1), bench.root);
        need(!new DistributedBarrier(clients.get(1), bench.root + "/barrier").waitOnBarrier(100, TimeUnit.MILLISECONDS), "a barrier that stands");
        barrier.removeBarrier();
        need(new DistributedBarrier(clients.get(1), bench.root + "/barrier").waitOnBarrier(WITHIN_S, TimeUnit.SECONDS), "a barrier that is gone");
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger outside = new AtomicInteger();
        together(clients, client -> {
            DistributedDoubleBarrier both = new DistributedDoubleBarrier(client, bench.root + "/double", 3);
            inside.incrementAndGet();
            need(both.enter(WITHIN_S, TimeUnit.SECONDS), "all come in");
            equal(inside.get(), 3, "inside");
            outside.incrementAndGet();
            need(both.leave(WITHIN_S, TimeUnit.SECONDS), "all go out");
            equal(outside.get(), 3, "outside");
        });
    }

    /** Increments are counted once; where a connection was lost, Curator may have done one again. */
    static void counters(Bench bench) throws Exception {
        List<CuratorFramework> clients = bench.clients(3);
        AtomicInteger done = new AtomicInteger();
        AtomicInteger unknown = new AtomicInteger();
        together(clients, client -> {
            DistributedAtomicLong number = new DistributedAtomicLong(client, bench.root + "/long", new RetryNTimes(1_000, 5));
            for (int i = 0; i < 30; i++) {
                try {
                    AtomicValue<Long> value = number.increment();
                    (value.succeeded() ? done : unknown).incrementAndGet();
                } catch (KeeperException.ConnectionLossException error) {
                    unknown.incrementAndGet();
                }
            }
        });
        // The last increment may be another client's: a read sees it for certain only behind a sync.
        synced(clients.get(0), bench.root);
        long value = new DistributedAtomicLong(clients.get(0), bench.root + "/long", new RetryNTimes(1_000, 5)).get().postValue();
        int more = unknown.get() + bench.suspended.get();
        need(value >= done.get() && value <= done.get() + more, value + " counted, " + done.get() + " done, up to " + more + " more");
        SharedCount one = new SharedCount(clients.get(0), bench.root + "/shared", 5);
        SharedCount other = new SharedCount(clients.get(1), bench.root + "/shared", 5);
        one.start();
        other.start();
        one.setCount(7);
        soon("a shared count is told", () -> other.getCount() == 7);
        one.close();
        other.close();
    }

    /** Caches of all kinds end with what is there; the newest kind lives on one persistent recursive watch. */
    static void caches(Bench bench) throws Exception {
        CuratorFramework writer = bench.client();
        String top = bench.root + "/cached";
        writer.create().creatingParentsIfNeeded().forPath(top, bytes("top"));
        try (CuratorCache cache = CuratorCache.build(bench.client(), top);
                PathChildrenCache children = new PathChildrenCache(bench.client(), top, true);
                TreeCache tree = new TreeCache(bench.client(), top)) {
            ConcurrentLinkedQueue<String> told = new ConcurrentLinkedQueue<>();
            CountDownLatch filled = new CountDownLatch(1);
            cache.listenable().addListener((type, before, after) -> told.add(type + " " + (after == null ? before : after).getPath()));
            cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(filled::countDown).build());
            cache.start();
            need(filled.await(WITHIN_S, TimeUnit.SECONDS), "a cache is filled");
            children.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
            tree.start();
            Map<String, String> wanted = new TreeMap<>(Map.of(top, "top"));
            for (int i = 0; i < 20; i++) {
                writer.create().orSetData().creatingParentsIfNeeded().forPath(top + "/a" + i + "/b", bytes("one"));
                writer.setData().forPath(top + "/a" + i + "/b", bytes("two" + i));
                writer.setData().forPath(top + "/a" + i, bytes("" + i));
                if (i % 3 == 0) {
                    writer.delete().guaranteed().deletingChildrenIfNeeded().forPath(top + "/a" + i);
                } else {
                    wanted.put(top + "/a" + i, "" + i);
                    wanted.put(top + "/a" + i + "/b", "two" + i);
                }
            }
            try {
                soon("the cache holds what is there", () -> held(cache.stream().toList()).equals(wanted));
            } catch (AssertionError error) {
                throw new AssertionError(error.getMessage() + ": " + held(cache.stream().toList()) + " of " + wanted);
            }
            wanted.keySet().removeIf(path -> path.equals(top) || path.endsWith("/b"));
            soon("the cache of children holds them", () -> held(children.getCurrentData()).equals(wanted));
            soon("the cache of a tree holds it", () -> tree.getCurrentChildren(top) != null && tree.getCurrentChildren(top).size() == wanted.size());
            need(told.stream().anyMatch(event -> event.equals("NODE_DELETED " + top + "/a0")) || bench.suspended.get() > 0, "a deletion is told");
        }
    }

    static Map<String, String> held(Iterable<ChildData> of) {
        Map<String, String> out = new TreeMap<>();
        of.forEach(data -> out.put(data.getPath(), text(data.getData())));
        return out;
    }

    /** Services come, are found, and go. */
    static void services(Bench bench) throws Exception {
        List<ServiceDiscovery<String>> all = new ArrayList<>();
        for (CuratorFramework client : bench.clients(3)) {
            ServiceInstance<String> here = ServiceInstance.<String>builder().name("web").id("n" + all.size()).address("10.0.0." + all.size()).port(80).payload("p").build();
            ServiceDiscovery<String> discovery = ServiceDiscoveryBuilder.builder(String.class).client(client).basePath(bench.root + "/services").thisInstance(here).build();
            discovery.start();
            all.add(discovery);
        }
        soon("all services are found", () -> names(all.get(2)).equals("[n0, n1, n2]"));
        all.get(1).close();
        soon("a service that went is not found", () -> names(all.get(2)).equals("[n0, n2]"));
        all.get(0).close();
        all.get(2).close();
    }

    static String names(ServiceDiscovery<String> discovery) throws Exception {
        TreeSet<String> names = new TreeSet<>();
        discovery.queryForInstances("web").forEach(one -> names.add(one.getId()));
        return names.toString();
    }

    /** Nodes that are kept up while somebody wants them, and then go. */
    static void keptNodes(Bench bench) throws Exception {
        CuratorFramework client = bench.client();
        CuratorFramework other = bench.client();
        PersistentTtlNode lasting = new PersistentTtlNode(client, bench.root + "/ttl", 2_000, bytes("x"));
        lasting.start();
        need(lasting.waitForInitialCreate(WITHIN_S, TimeUnit.SECONDS), "a node with a time to live");
        PersistentNode ephemeral = new PersistentNode(client, CreateMode.EPHEMERAL, false, bench.root + "/kept", bytes("y"));
        ephemeral.start();
        need(ephemeral.waitForInitialCreate(WITHIN_S, TimeUnit.SECONDS), "a node that is kept");
        other.delete().quietly().forPath(bench.root + "/kept");
        soon("a node that is kept is back", () -> other.checkExists().forPath(bench.root + "/kept") != null);
        Thread.sleep(4_000);
        need(other.checkExists().forPath(bench.root + "/ttl") != null, "a node that is touched outlives its time");
        GroupMember one = new GroupMember(client, bench.root + "/group", "one");
        GroupMember two = new GroupMember(other, bench.root + "/group", "two");
        one.start();
        two.start();
        soon("both are in the group", () -> one.getCurrentMembers().size() == 2 && two.getCurrentMembers().size() == 2);
        two.close();
        soon("one is left", () -> one.getCurrentMembers().size() == 1);
        one.close();
        ephemeral.close();
        lasting.close();
        soon("a node that nobody keeps goes", () -> other.checkExists().forPath(bench.root + "/kept") == null);
        soon("a node past its time goes", () -> other.checkExists().forPath(bench.root + "/ttl") == null);
    }

    /** All or nothing; and creates that find their own node again after a lost connection. */
    static void transactions(Bench bench) throws Exception {
        CuratorFramework client = bench.client();
        client.create().creatingParentContainersIfNeeded().forPath(bench.root + "/t", bytes("0"));
        try {
            List<CuratorTransactionResult> results = client.transaction().forOperations(
                client.transactionOp().check().withVersion(0).forPath(bench.root + "/t"),
                client.transactionOp().create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(bench.root + "/t/s-", bytes("1")),
                client.transactionOp().setData().withVersion(0).forPath(bench.root + "/t", bytes("1")));
            equal(results.size(), 3, "results");
            equal(results.get(1).getResultPath(), bench.root + "/t/s-0000000000", "the name of a numbered node");
        } catch (KeeperException.BadVersionException error) {
            need(bench.suspended.get() > 0, "nobody else writes");
        }
        equal(text(client.getData().forPath(bench.root + "/t")), "1", "written by a transaction");
        try {
            client.transaction().forOperations(client.transactionOp().delete().forPath(bench.root + "/t/s-0000000000"),
                client.transactionOp().check().withVersion(77).forPath(bench.root + "/t"));
            throw new AssertionError("BADVERSION was due");
        } catch (KeeperException.BadVersionException error) {
            equal(error.getResults().size(), 2, "results of a transaction that failed");
        }
        equal(client.getChildren().forPath(bench.root + "/t"), List.of("s-0000000000"), "nothing of a transaction that failed");
        for (int i = 0; i < 20; i++) {
            client.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(bench.root + "/t/p-");
        }
        equal(client.getChildren().forPath(bench.root + "/t").size(), 21, "protected creates, each once");
    }

    interface Check {
        void run(Bench bench) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        hosts = args[0];
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("leader latch", CuratorCheck::leaderLatch);
        checks.put("leader selector", CuratorCheck::leaderSelector);
        checks.put("mutex", CuratorCheck::mutex);
        checks.put("read and write locks, semaphore", CuratorCheck::locksAndLeases);
        checks.put("barriers", CuratorCheck::barriers);
        checks.put("atomic long, shared count", CuratorCheck::counters);
        checks.put("caches", CuratorCheck::caches);
        checks.put("service discovery", CuratorCheck::services);
        checks.put("persistent, TTL, group nodes", CuratorCheck::keptNodes);
        checks.put("transactions, protected creates", CuratorCheck::transactions);
        long until = System.currentTimeMillis() + (args.length > 1 ? Integer.parseInt(args[1]) * 1000L : 0);
        Map<String, Double> took = new TreeMap<>();
        int rounds = 0;
        int suspended = 0;
        try (Bench watched = new Bench()) {
            CuratorFramework main = watched.client();
            System.out.println("session " + Long.toHexString(main.getZookeeperClient().getZooKeeper().getSessionId()));
            do {
                for (Map.Entry<String, Check> check : checks.entrySet()) {
                    long began = System.nanoTime();
                    try (Bench bench = new Bench()) {
                        check.getValue().run(bench);
                        equal(bench.lost.get(), 0, "sessions lost");
                        suspended += bench.suspended.get();
                        main.delete().deletingChildrenIfNeeded().forPath(bench.root);
                    } catch (Throwable error) {
                        throw new AssertionError(check.getKey() + ": " + error, error);
                    }
                    took.merge(check.getKey(), (System.nanoTime() - began) / 1e9, Math::max);
                }
                rounds++;
            } while (System.currentTimeMillis() < until);
            equal(watched.lost.get(), 0, "sessions lost");
        }
        String longest = took.entrySet().stream().max(Map.Entry.comparingByValue()).map(one -> String.format("%s %.1f s", one.getKey(), one.getValue())).get();
        System.err.println(took);
        System.out.println(rounds + " rounds of " + checks.size() + " checks, " + suspended + " connections lost, no session; the longest: " + longest);
        System.exit(0);
    }
}
