import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.PreferredLeaderNotAvailableException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own clients behind lines of standard input: `KafkaCheck BOOTSTRAP FILE`. A command is words with tabs between them; its answer is one line, JSON or `error WORDS`. */
public class KafkaCheck {
    /** Lines a second that the producer sends at most. */
    static final int RATE = 2_000;

    final String bootstrap;
    final List<String> lines;
    final Admin admin;
    volatile Thread sender;
    volatile boolean over;
    final AtomicInteger acknowledged = new AtomicInteger();
    final AtomicInteger failed = new AtomicInteger();
    volatile int sent;
    volatile String why = "";

    KafkaCheck(String bootstrap, Path file) throws Exception {
        this.bootstrap = bootstrap;
        lines = Files.readAllLines(file, StandardCharsets.ISO_8859_1);
        admin = Admin.create(properties());
    }

    Properties properties() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("request.timeout.ms", "15000");
        p.put("default.api.timeout.ms", "90000");
        p.put("key.serializer", StringSerializer.class.getName());
        p.put("value.serializer", StringSerializer.class.getName());
        p.put("key.deserializer", StringDeserializer.class.getName());
        p.put("value.deserializer", StringDeserializer.class.getName());
        p.put("metadata.max.age.ms", "2000");
        return p;
    }

    String line(int number) {
        return lines.get(number % lines.size());
    }

    /** Line n under the key n, acknowledged by all replicas in sync, without doubles, until `stop`. */
    void send(String topic) {
        Properties p = properties();
        p.put("acks", "all");
        p.put("enable.idempotence", "true");
        p.put("delivery.timeout.ms", "180000");
        p.put("linger.ms", "5");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            long began = System.nanoTime();
            while (!over) {
                int n = sent++;
                producer.send(new ProducerRecord<>(topic, Integer.toString(n), line(n)), (at, error) -> {
                    if (error == null) {
                        acknowledged.incrementAndGet();
                    } else {
                        failed.incrementAndGet();
                        why = error.toString();
                    }
                });
                long early = began + n * 1_000_000_000L / RATE - System.nanoTime();
                if (early > 1_000_000) {
                    Thread.sleep(early / 1_000_000);
                }
            }
            producer.flush();
        } catch (Exception error) {
            why = error.toString();
        }
    }

    /** Reads all of a topic as a member of a group: how many records, doubles, and numbers below `wanted` that lack or are not as they were sent. */
    String consume(String topic, String group, int wanted, String isolation) {
        Properties p = properties();
        p.put("group.id", group);
        p.put("auto.offset.reset", "earliest");
        p.put("isolation.level", isolation);
        int records = 0;
        int doubles = 0;
        int wrong = 0;
        BitSet seen = new BitSet();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p)) {
            consumer.subscribe(List.of(topic));
            long until = System.currentTimeMillis() + 60_000;
            while (seen.cardinality() < wanted && System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    int n = Integer.parseInt(record.key());
                    records++;
                    doubles += seen.get(n) ? 1 : 0;
                    wrong += record.value().equals(line(n)) ? 0 : 1;
                    seen.set(n);
                    until = System.currentTimeMillis() + 60_000;
                }
            }
            consumer.commitSync();
        }
        int missing = wanted - seen.get(0, wanted).cardinality();
        return String.format("{\"records\": %d, \"doubles\": %d, \"wrong\": %d, \"missing\": %d}", records, doubles, wrong, missing);
    }

    /** Lines 0 up to `count` in one transaction. */
    String transaction(String topic, int count) {
        Properties p = properties();
        p.put("transactional.id", "drill-" + topic);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int n = 0; n < count; n++) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(n), line(n)));
            }
            producer.commitTransaction();
        }
        return "{}";
    }

    static String ids(List<Node> nodes) {
        return nodes.stream().map(node -> Integer.toString(node.id())).collect(Collectors.joining(", ", "[", "]"));
    }

    String topics() throws Exception {
        return new TreeSet<>(admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get()).stream()
            .map(name -> '"' + name + '"').collect(Collectors.joining(", ", "[", "]"));
    }

    String describe(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().stream()
            .map(p -> String.format("{\"partition\": %d, \"leader\": %d, \"replicas\": %s, \"isr\": %s}", p.partition(),
                p.leader() == null ? -1 : p.leader().id(), ids(p.replicas()), ids(p.isr())))
            .collect(Collectors.joining(", ", "[", "]"));
    }

    String cluster() throws Exception {
        var described = admin.describeCluster();
        List<Node> nodes = new ArrayList<>(described.nodes().get());
        nodes.sort((a, b) -> a.id() - b.id());
        Node controller = described.controller().get();
        return String.format("{\"id\": \"%s\", \"controller\": %d, \"brokers\": %s}", described.clusterId().get(),
            controller == null ? -1 : controller.id(), ids(nodes));
    }

    /** What was set for a topic, or for all brokers, and not the defaults. */
    String configured(ConfigResource of) throws Exception {
        Map<String, String> set = new TreeMap<>();
        ConfigEntry.ConfigSource source = of.type() == ConfigResource.Type.TOPIC
            ? ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG : ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG;
        for (ConfigEntry entry : admin.describeConfigs(List.of(of)).all().get().get(of).entries()) {
            if (entry.source() == source) {
                set.put(entry.name(), entry.value());
            }
        }
        return set.entrySet().stream().map(e -> String.format("\"%s\": \"%s\"", e.getKey(), e.getValue())).collect(Collectors.joining(", ", "{", "}"));
    }

    static AclBinding access(String topic, String user) {
        return new AclBinding(new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL),
            new AccessControlEntry("User:" + user, "*", AclOperation.READ, AclPermissionType.ALLOW));
    }

    static ConfigResource resource(String kind, String name) {
        return new ConfigResource(kind.equals("topic") ? ConfigResource.Type.TOPIC : ConfigResource.Type.BROKER, name);
    }

    String run(String[] w) throws Exception {
        switch (w[0]) {
            case "create":
                try {
                    admin.createTopics(List.of(new NewTopic(w[1], Integer.parseInt(w[2]), Short.parseShort(w[3])))).all().get();
                } catch (ExecutionException e) {
                    // An attempt that nobody answered had happened.
                    ignore(e, TopicExistsException.class);
                }
                return "{}";
            case "partitions":
                try {
                    admin.createPartitions(Map.of(w[1], NewPartitions.increaseTo(Integer.parseInt(w[2])))).all().get();
                } catch (ExecutionException e) {
                    ignore(e, InvalidPartitionsException.class);
                }
                return "{}";
            case "delete":
                try {
                    admin.deleteTopics(List.of(w[1])).all().get();
                } catch (ExecutionException e) {
                    ignore(e, UnknownTopicOrPartitionException.class);
                }
                return "{}";
            case "config": {
                AlterConfigOp op = new AlterConfigOp(new ConfigEntry(w[3], w[4]), AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(resource(w[1], w[2]), List.of(op))).all().get();
                return "{}";
            }
            case "configured":
                return configured(resource(w[1], w[2]));
            case "allow":
                admin.createAcls(List.of(access(w[1], w[2]))).all().get();
                return "{}";
            case "disallow":
                admin.deleteAcls(List.of(access(w[1], w[2]).toFilter())).all().get();
                return "{}";
            case "allowed":
                return admin.describeAcls(AclBindingFilter.ANY).values().get().stream()
                    .map(a -> String.format("\"%s %s\"", a.pattern().name(), a.entry().principal())).sorted().collect(Collectors.joining(", ", "[", "]"));
            case "quota": {
                ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, w[1]));
                admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
                    List.of(new ClientQuotaAlteration.Op("producer_byte_rate", Double.valueOf(w[2])))))).all().get();
                return "{}";
            }
            case "user":
                admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(w[1], new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), w[2]))).all().get();
                return "{}";
            case "users":
                return admin.describeUserScramCredentials().users().get().stream().map(u -> '"' + u + '"').collect(Collectors.joining(", ", "[", "]"));
            case "reassign":
                admin.alterPartitionReassignments(Map.of(new TopicPartition(w[1], Integer.parseInt(w[2])), Optional.of(new NewPartitionReassignment(
                    Arrays.stream(w[3].split(",")).map(Integer::valueOf).collect(Collectors.toList()))))).all().get();
                return "{}";
            case "reassigning":
                return Integer.toString(admin.listPartitionReassignments().reassignments().get().size());
            case "elect":
                try {
                    admin.electLeaders(ElectionType.PREFERRED, null).all().get();
                } catch (ExecutionException e) {
                    // A broker that is not back in sync cannot lead yet.
                    ignore(e, ElectionNotNeededException.class, PreferredLeaderNotAvailableException.class);
                }
                return "{}";
            case "topics":
                return topics();
            case "describe":
                return describe(w[1]);
            case "cluster":
                return cluster();
            case "produce":
                sender = new Thread(() -> send(w[1]));
                sender.start();
                return "{}";
            case "stop":
                over = true;
                sender.join();
                // Fall through: what it has come to.
            case "produced":
                return String.format("{\"sent\": %d, \"acknowledged\": %d, \"failed\": %d, \"why\": \"%s\"}", sent, acknowledged.get(), failed.get(), why.replace('"', '\''));
            case "consume":
                return consume(w[1], w[2], Integer.parseInt(w[3]), w[4]);
            case "transaction":
                return transaction(w[1], Integer.parseInt(w[2]));
            default:
                throw new IllegalArgumentException(w[0]);
        }
    }

    static void ignore(ExecutionException error, Class<?>... known) throws ExecutionException {
        if (Arrays.stream(known).noneMatch(one -> one.isInstance(error.getCause()))) {
            throw error;
        }
    }

    public static void main(String[] args) throws Exception {
        KafkaCheck check = new KafkaCheck(args[0], Path.of(args[1]));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = check.run(line.split("\t", -1));
            } catch (Exception error) {
                answer = "error " + error.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
        System.exit(0);
    }
}
