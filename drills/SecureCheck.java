import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;
import org.apache.zookeeper.ClientCnxnSocketNetty;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.common.X509Util;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.server.auth.DigestLoginModule;

/**
 * The Java client where it must say who it is: `SecureCheck PLAIN TLS FOLDER`, two ports of a server with the user bob and his password
 * se:cret, and a folder with `ca.pem`, `other.pem`, and a certificate and key each in `client-both.pem` and `stranger-both.pem`.
 */
public class SecureCheck {
    static final int TIMEOUT_MS = 10_000;
    /** A client is let in, or told that it is not, within this time. */
    static final int WITHIN_S = 30;
    /** A client that nobody lets in tries again and again: so long is it watched. */
    static final int IN_VAIN_S = 3;
    static final String SUBJECT = "CN=client,O=Reef\\, Inc,C=UN";
    static String plain;
    static String tls;
    static Path folder;

    /** A client, and what its session came to. */
    static class Client implements Watcher, AutoCloseable {
        final CountDownLatch connected = new CountDownLatch(1);
        final CountDownLatch refused = new CountDownLatch(1);
        final CountDownLatch changed = new CountDownLatch(1);
        final ZooKeeper zk;

        Client(String host, ZKClientConfig how) throws Exception {
            zk = new ZooKeeper(host, TIMEOUT_MS, this, how);
        }

        public void process(WatchedEvent event) {
            if (event.getState() == KeeperState.AuthFailed) {
                refused.countDown();
            } else if (event.getType() == EventType.NodeDataChanged) {
                changed.countDown();
            } else if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        }

        Client letIn() throws Exception {
            need(connected.await(WITHIN_S, TimeUnit.SECONDS), "connected");
            return this;
        }

        boolean is(String scheme, String id) throws Exception {
            return zk.whoAmI().stream().anyMatch(one -> one.getAuthScheme().equals(scheme) && one.getUser().equals(id));
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

    static ZKClientConfig open() {
        ZKClientConfig how = new ZKClientConfig();
        how.setProperty(ZKClientConfig.ENABLE_CLIENT_SASL_KEY, "false");
        return how;
    }

    /** TLS with a certificate, or with none where it is null, that trusts an authority. */
    static ZKClientConfig tls(ZKClientConfig how, String certificate, String authority) {
        how.setProperty(ZKClientConfig.SECURE_CLIENT, "true");
        how.setProperty(ZKClientConfig.ZOOKEEPER_CLIENT_CNXN_SOCKET, ClientCnxnSocketNetty.class.getName());
        if (certificate != null) {
            how.setProperty("zookeeper.ssl.keyStore.location", folder.resolve(certificate).toString());
            how.setProperty("zookeeper.ssl.keyStore.type", "PEM");
        }
        how.setProperty("zookeeper.ssl.trustStore.location", folder.resolve(authority).toString());
        how.setProperty("zookeeper.ssl.trustStore.type", "PEM");
        return how;
    }

    /** SASL as the section of this name says. */
    static ZKClientConfig sasl(ZKClientConfig how, String section) {
        how.setProperty(ZKClientConfig.ENABLE_CLIENT_SASL_KEY, "true");
        how.setProperty(ZKClientConfig.LOGIN_CONTEXT_NAME_KEY, section);
        // The client's default leaves DIGEST-MD5 out.
        how.setProperty(X509Util.FIPS_MODE_PROPERTY, "false");
        return how;
    }

    /** What stands in a file of JAAS otherwise: a user and a password for each section. */
    static class Users extends Configuration {
        static final Map<String, List<String>> SECTIONS = Map.of("Bob", List.of("bob", "se:cret"), "Wrong", List.of("bob", "secret"), "Nobody", List.of("eve", "se:cret"));

        @Override
        public AppConfigurationEntry[] getAppConfigurationEntry(String section) {
            List<String> user = SECTIONS.get(section);
            if (user == null) {
                return null;
            }
            Map<String, String> options = Map.of("username", user.get(0), "password", user.get(1));
            return new AppConfigurationEntry[] {
                new AppConfigurationEntry(DigestLoginModule.class.getName(), AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, options)};
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void create(Client client, String path, String scheme, String id) throws Exception {
        client.zk.create(path, bytes("1"), Collections.singletonList(new ACL(Perms.ALL, new Id(scheme, id))), CreateMode.PERSISTENT);
        need(new String(client.zk.getData(path, false, null), StandardCharsets.UTF_8).equals("1"), "its owner reads " + path);
    }

    static void noAccess(Client client, String path) throws Exception {
        try {
            client.zk.getData(path, false, null);
        } catch (KeeperException.NoAuthException error) {
            return;
        }
        throw new AssertionError(path + " was read by somebody else than its owner");
    }

    /** Clients that get no session, side by side. */
    static void outside(Map<String, Client> clients) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(IN_VAIN_S);
        for (Map.Entry<String, Client> one : clients.entrySet()) {
            boolean in = one.getValue().connected.await(until - System.nanoTime(), TimeUnit.NANOSECONDS);
            need(!in, one.getKey() + " is refused");
            System.out.println("refused: " + one.getKey());
        }
        for (Client client : clients.values()) {
            client.close();
        }
    }

    /** A client that is told that it is not who it says. */
    static void notAuthenticated(String words, String host, ZKClientConfig how) throws Exception {
        try (Client client = new Client(host, how)) {
            need(client.refused.await(WITHIN_S, TimeUnit.SECONDS), words + " is told to be refused");
            try {
                client.zk.exists("/", false);
            } catch (KeeperException.AuthFailedException | KeeperException.SessionExpiredException | KeeperException.ConnectionLossException error) {
                System.out.println("refused: " + words + " (" + error.code() + ")");
                return;
            }
            throw new AssertionError(words + " is served");
        }
    }

    static void certificates(Client anybody) throws Exception {
        try (Client known = new Client(tls, tls(open(), "client-both.pem", "ca.pem")).letIn();
                Client again = new Client(tls, tls(open(), "client-both.pem", "ca.pem")).letIn()) {
            need(known.is("x509", SUBJECT), "a client is its certificate's subject: " + known.zk.whoAmI());
            create(known, "/java-tls", "x509", SUBJECT);
            noAccess(anybody, "/java-tls");
            byte[] large = new byte[900_000];
            large[899_999] = 7;
            again.zk.getData("/java-tls", again, null);
            known.zk.multi(List.of(Op.check("/java-tls", 0), Op.setData("/java-tls", large, 0)));
            need(again.changed.await(WITHIN_S, TimeUnit.SECONDS), "a watch is told over TLS");
            need(Arrays.equals(again.zk.getData("/java-tls", false, null), large), "large data comes back over TLS");
        }
        System.out.println("a certificate is who a client is, over TLS");
        outside(Map.of(
            "a client without a certificate", new Client(tls, tls(open(), null, "ca.pem")),
            "a certificate of another authority", new Client(tls, tls(open(), "stranger-both.pem", "ca.pem")),
            "a server of another authority", new Client(tls, tls(open(), "client-both.pem", "other.pem")),
            "a client without TLS at the port with TLS", new Client(tls, open()),
            "a client with TLS at the port without", new Client(plain, tls(open(), "client-both.pem", "ca.pem"))));
    }

    static void passwords(Client anybody) throws Exception {
        try (Client bob = new Client(plain, sasl(open(), "Bob")).letIn()) {
            need(bob.is("sasl", "bob"), "a client is the user whose password it has: " + bob.zk.whoAmI());
            create(bob, "/java-sasl", "sasl", "bob");
            noAccess(anybody, "/java-sasl");
        }
        System.out.println("a password is who a client is, by SASL DIGEST-MD5");
        notAuthenticated("a wrong password", plain, sasl(open(), "Wrong"));
        notAuthenticated("a user that is not known", plain, sasl(open(), "Nobody"));
        try (Client both = new Client(tls, sasl(tls(open(), "client-both.pem", "ca.pem"), "Bob")).letIn()) {
            need(both.is("x509", SUBJECT) && both.is("sasl", "bob"), "a client may be both: " + both.zk.whoAmI());
            both.zk.getData("/java-tls", false, null);
            both.zk.getData("/java-sasl", false, null);
        }
        notAuthenticated("a wrong password over TLS", tls, sasl(tls(open(), "client-both.pem", "ca.pem"), "Wrong"));
    }

    public static void main(String[] args) throws Exception {
        plain = args[0];
        tls = args[1];
        folder = Path.of(args[2]);
        Configuration.setConfiguration(new Users());
        try (Client anybody = new Client(plain, open()).letIn()) {
            certificates(anybody);
            passwords(anybody);
        }
        System.out.println("all of Java's checks hold");
        System.exit(0);
    }
}
