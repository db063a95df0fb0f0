//! Every setting of the configuration file: its name, what is allowed, its default and what it does. The reader rejects settings that are
//! not in this table, and `atoll serve --print-config` prints it.

use std::fmt::Write as _;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The table of the file that contains it; those in [`LISTS`] may occur many times.
    pub section: &'static str,
    /// Its name in that table.
    pub key: &'static str,
    /// Its default, as written in the file; None if it has none.
    pub default: Option<&'static str>,
    /// A value to show if there is no default.
    pub example: &'static str,
    /// The allowed values, in words.
    pub allowed: &'static str,
    /// What it does.
    pub doc: &'static str,
}

impl Setting {
    /// Returns `section.key`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }
}

const fn with_default(
    section: &'static str,
    key: &'static str,
    default: &'static str,
    allowed: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { section, key, default: Some(default), example: default, allowed, doc }
}

const fn without_default(
    section: &'static str,
    key: &'static str,
    example: &'static str,
    allowed: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { section, key, default: None, example, allowed, doc }
}

/// Sections in the order of the printed file, with their descriptions. Those in [`LISTS`] are arrays of tables.
pub const SECTIONS: [(&str, &str); 12] = [
    ("node", "This node and its roles."),
    ("listen", "Its doors."),
    (
        "peer",
        "One table for each founding member of the cluster, the same in every node's file; none for a standalone node.\nA node that is added later needs a table for any one living member, and none for itself.\nLater changes are made with `atoll node add|drain|remove`.",
    ),
    (
        "tls",
        "Mutual TLS between nodes, and TLS of the gRPC door. Either the first three files are set, or none.",
    ),
    (
        "auth",
        "Who may do what at the gRPC door: `atoll auth` grants rights, and this section says who needs none.",
    ),
    (
        "zookeeper",
        "The door for ZooKeeper clients. Each setting names its counterpart in ZooKeeper. Nodes may differ, except in the\nsession timeouts: a session keeps its timeout when its client moves to another node.",
    ),
    (
        "timings",
        "When a node counts as gone, and what happens then. Nodes may differ, and a restart may change them.",
    ),
    ("doors", "Where the doors run."),
    ("logs", "How many logs there may be, and how many stay open on this node."),
    (
        "registers",
        "Stores that others run, one table for each, to which `atoll chain move` moves the chains of logs. The same in every\nnode's file. Credentials come from the environment of each node.",
    ),
    ("database", "The state that tables and ZooKeeper clients share."),
    ("testing", "Switches for tests. Leave them alone."),
];

/// The sections that are arrays of tables.
pub const LISTS: [&str; 2] = ["peer", "registers"];

const ADDRESS: &str = "\"HOST:PORT\"";
const LISTEN: &str = "\"HOST:PORT\", HOST an IP address or a name of this machine; port 0 picks a free one";
const FILE: &str = "the path of a PEM file; a relative path starts at this file's folder";
const ROLES: &str = "a list of \"log\", \"meta\" and \"sequencer\", each at most once";

/// All settings.
pub const SETTINGS: &[Setting] = &[
    with_default(
        "node",
        "id",
        "1",
        "an integer, 1 to 4294967295",
        "The node's id. No two members have the same id, and it never changes.",
    ),
    with_default(
        "node",
        "cluster",
        "\"atoll\"",
        "1 to 64 letters, digits, \".\", \"_\" and \"-\"",
        "The name of the cluster. Nodes of other clusters are refused. The data directory records the name.",
    ),
    without_default(
        "node",
        "data",
        "\"/var/lib/atoll\"",
        "the path of a folder, without control characters; it is created if it does not exist; a relative path starts at this file's folder",
        "The data directory. It belongs to this node alone, and only its user can read a new one. `--data` overrides this.",
    ),
    with_default(
        "node",
        "roles",
        "[\"log\", \"meta\", \"sequencer\"]",
        ROLES,
        "log: stores entries. meta: holds the registers with each log's chain. sequencer: orders appends.\nA node without roles only serves clients and forwards their requests.",
    ),
    with_default(
        "listen",
        "grpc",
        "\"127.0.0.1:7411\"",
        LISTEN,
        "The public gRPC door: logs, chains, cluster, database, tables, reflection.",
    ),
    with_default("listen", "peer", "\"127.0.0.1:7412\"", LISTEN, "The door for other nodes."),
    with_default(
        "listen",
        "metrics",
        "\"127.0.0.1:7413\"",
        "\"HOST:PORT\" as above, or \"\" for none",
        "Prometheus metrics over HTTP, at /metrics. Always without TLS.",
    ),
    with_default(
        "listen",
        "zookeeper",
        "\"127.0.0.1:2181\"",
        "\"HOST:PORT\" as above, or \"\" for none",
        "Clients of Apache ZooKeeper, without TLS.",
    ),
    with_default(
        "listen",
        "zookeeper_tls",
        "\"\"",
        "\"HOST:PORT\" as above, or \"\" for none",
        "Clients of Apache ZooKeeper, with TLS: `secureClientPort`. The certificate is in [zookeeper] or [tls].",
    ),
    with_default(
        "listen",
        "zookeeper_admin",
        "\"\"",
        "\"HOST:PORT\" as above, or \"\" for none",
        "The commands of ZooKeeper's AdminServer over HTTP, at /commands: `admin.serverPort`. Always without TLS.",
    ),
    with_default(
        "listen",
        "listen_beyond_loopback_without_tls",
        "false",
        "true or false",
        "Unless this is true, a listener that other machines can reach is refused if it has no TLS. Whoever reaches such a\nlistener can read and write everything.",
    ),
    without_default("peer", "id", "2", "an integer, 1 to 4294967295, once only", "The member's id."),
    without_default(
        "peer",
        "address",
        "\"10.0.0.2:7412\"",
        ADDRESS,
        "Where the other nodes reach it: its `listen.peer` as they see it.",
    ),
    without_default(
        "peer",
        "grpc",
        "\"10.0.0.2:7411\"",
        ADDRESS,
        "Where clients reach it: its `listen.grpc` as they see it. Optional; `atoll status` shows it.",
    ),
    with_default(
        "peer",
        "roles",
        "[\"log\", \"meta\", \"sequencer\"]",
        ROLES,
        "Its roles, as in its own file.",
    ),
    without_default(
        "tls",
        "ca",
        "\"ca.pem\"",
        FILE,
        "The authorities that must have signed the certificates of peers and clients.",
    ),
    without_default(
        "tls",
        "cert",
        "\"node.pem\"",
        FILE,
        "This node's certificate, with the DNS name node-ID (node-2 for node 2), followed by intermediates.",
    ),
    without_default("tls", "key", "\"node.key\"", FILE, "Its private key."),
    without_default(
        "tls",
        "revoked",
        "\"revoked.pem\"",
        FILE,
        "Lists of revoked certificates. With them, a certificate is refused unless every authority between it and `ca` has a list.",
    ),
    without_default(
        "tls",
        "server_name",
        "\"atoll.example\"",
        "a DNS name or an IP address",
        "The name that the certificates of all peers must have. If not set: the host of the peer's address.",
    ),
    without_default(
        "auth",
        "required",
        "true",
        "true or false",
        "Whether calls need grants. If not set: yes, if there is a [tls] section, or if other machines reach the door and\n`listen.listen_beyond_loopback_without_tls` is not set. With false, whoever reaches the door may do everything.",
    ),
    with_default(
        "auth",
        "operators",
        "[]",
        "a list of up to 16 \"cert:NAME\"",
        "Whose certificates have these names (the common name, or else the first DNS name), may do everything on this node,\nwithout a grant. They make the first grants.",
    ),
    with_default(
        "auth",
        "client_certificates",
        "\"need\"",
        "\"need\" or \"optional\"",
        "With \"optional\", clients may come over TLS without a certificate. Where grants are required, they then need a token.",
    ),
    with_default(
        "zookeeper",
        "tick_ms",
        "2000",
        "an integer, 100 to 60000",
        "`tickTime`. The limits of session timeouts are multiples of it where they are 0 below.\nToo small: sessions expire while a client collects garbage. Too large: locks of dead clients are held for longer.",
    ),
    with_default(
        "zookeeper",
        "min_session_timeout_ms",
        "0",
        "0 for two ticks, or an integer, 1000 to 3600000, and not above the longest",
        "`minSessionTimeout`: a client that asks for less gets this.\nToo small: a short pause of a client costs its ephemerals, and a node that loses the log must disconnect its clients\nsooner. Too large: dead clients are noticed late.",
    ),
    with_default(
        "zookeeper",
        "max_session_timeout_ms",
        "0",
        "0 for 20 ticks, or an integer, 1000 to 86400000",
        "`maxSessionTimeout`: a client that asks for more gets this.\nToo small: clients that expect long pauses lose their sessions. Too large: dead clients may hold their locks for that long.",
    ),
    with_default(
        "zookeeper",
        "max_frame_bytes",
        "1048575",
        "an integer, 1024 to 16777216",
        "`jute.maxbuffer`: a client that sends a longer frame is disconnected. Writes may be as long as frames.\nToo small: the setWatches of a returning client may not fit. Too large: memory, this much for each connection; a write of 16 MiB delays\nthe other writes of its node.",
    ),
    with_default(
        "zookeeper",
        "max_reply_bytes",
        "33554432",
        "an integer, 1048576 to 1073741824",
        "The longest reply. A read with a longer one ends with MarshallingError. ZooKeeper leaves this limit to `jute.maxbuffer` of its\nclients. Too small: long lists of children cannot be read. Too large: memory, for four such replies at once.",
    ),
    with_default(
        "zookeeper",
        "max_watch_bytes_of_connection",
        "67108864",
        "an integer, 65536 to 4294967296",
        "The memory for the watches of one connection: each takes its path and 400 bytes. Beyond this, a read with a watch ends with\nSystemError. Too small: clients with very many watches are refused. Too large: one client takes this much memory of a node.",
    ),
    with_default(
        "zookeeper",
        "max_watch_bytes",
        "536870912",
        "an integer, 1048576 to 68719476736",
        "The same for all connections of a node together.\nToo small: clients are refused watches because others have many. Too large: memory.",
    ),
    with_default(
        "zookeeper",
        "max_connections_of_address",
        "60",
        "0 for no limit, or an integer to 1000000",
        "`maxClientCnxns`: connections from one address; further ones are closed at once.\nToo small: clients behind one address lock each other out. Too large: one of them may take all file descriptors.",
    ),
    with_default(
        "zookeeper",
        "max_connections",
        "0",
        "0 for no limit, or an integer to 1000000",
        "`maxCnxns`: connections in total; further ones are closed at once.\nToo small: clients that move here from another node find no room. Too large: memory and file descriptors run out first.",
    ),
    with_default(
        "zookeeper",
        "max_outstanding_of_connection",
        "1000",
        "an integer, 1 to 100000",
        "Unanswered requests of one connection; further ones wait in the socket. ZooKeeper has no such setting.\nToo small: a client that does not wait for its answers is slowed down. Too large: memory for one connection.",
    ),
    with_default(
        "zookeeper",
        "max_outstanding",
        "20000",
        "0 for no limit, or an integer to 10000000",
        "`globalOutstandingLimit`: unanswered requests of all connections. Beyond this, a connection that already has one leaves\nthe next in the socket. Too small: throughput. Too large: latency and memory while the log is slow.",
    ),
    with_default(
        "zookeeper",
        "connection_tokens",
        "0",
        "0 for no limit, or an integer to 1000000",
        "`connection_throttle_tokens`: each new connection takes a token, and is closed at once if there is none.\nToo small: clients return slowly after the loss of a node. Too large: each connection of a flood costs a log entry.",
    ),
    with_default(
        "zookeeper",
        "connection_fill_every_ms",
        "1",
        "an integer, 1 to 60000",
        "`connection_throttle_fill_time`: how often tokens are added.",
    ),
    with_default(
        "zookeeper",
        "connection_fill_count",
        "1",
        "an integer, 1 to 1000000",
        "`connection_throttle_fill_count`: how many tokens are added each time.",
    ),
    with_default(
        "zookeeper",
        "words",
        "[\"srvr\"]",
        "a list of four-letter words as docs/zookeeper.md has them, or \"*\" for all",
        "`4lw.commands.whitelist`: the words that are answered. With `read_only_mode`, isro is, too. wchc and wchp show the paths of all\nclients and walk over all watches.",
    ),
    without_default(
        "zookeeper",
        "super_digest",
        "\"super:xQJmxLMiHGwaqBvst5y6rkB6HQs=\"",
        "\"USER:HASH\", HASH the base64 of the SHA-1 of \"USER:PASSWORD\"",
        "`DigestAuthenticationProvider.superDigest`: a client that adds this digest may do everything. If not set: no client.",
    ),
    without_default(
        "zookeeper",
        "x509_super",
        "\"CN=admin,O=Reef\"",
        "the subject of a certificate as RFC 2253 writes it",
        "`X509AuthenticationProvider.superUser`: a client with this certificate may do everything. If not set: no client.",
    ),
    with_default(
        "zookeeper",
        "sasl_users",
        "[]",
        "a list of \"NAME:PASSWORD\", each name once",
        "The users for SASL's DIGEST-MD5, besides those of `jaas`. If there are none, SASL is off.\nWhoever can read this file can log in as any of them.",
    ),
    without_default(
        "zookeeper",
        "jaas",
        "\"jaas.conf\"",
        "the path of a JAAS file; a relative one starts at the file's folder",
        "The file with ZooKeeper's users for SASL (`java.security.auth.login.config`), in addition to `sasl_users`. If not set: none.",
    ),
    with_default(
        "zookeeper",
        "jaas_section",
        "\"Server\"",
        "the name of a section of zookeeper.jaas",
        "`sasl.serverconfig`: the section of the JAAS file that has the users.",
    ),
    without_default(
        "zookeeper",
        "sasl_super",
        "\"admin\"",
        "a user of SASL",
        "`superUser`: this user of SASL may do everything. If not set: no user.",
    ),
    with_default(
        "zookeeper",
        "required_schemes",
        "[]",
        "a list of \"digest\", \"sasl\" and \"x509\"; sasl needs users, and x509 a listener with TLS",
        "`enforce.auth.schemes`: a client proves an identity of one of these schemes before any other request, or its\nconnection ends. If there are none, clients may stay anonymous. Any name and password are an identity of digest.",
    ),
    without_default(
        "zookeeper",
        "tls_cert",
        "\"zookeeper.pem\"",
        FILE,
        "The certificate of `listen.zookeeper_tls`, followed by intermediates. If not set: the one of [tls].",
    ),
    without_default("zookeeper", "tls_key", "\"zookeeper.key\"", FILE, "Its private key."),
    without_default(
        "zookeeper",
        "tls_ca",
        "\"clients-ca.pem\"",
        FILE,
        "`ssl.trustStore.location`: the authorities that must have signed the certificates of clients. If not set: those of [tls].",
    ),
    without_default(
        "zookeeper",
        "tls_revoked",
        "\"clients-revoked.pem\"",
        FILE,
        "Lists of revoked certificates, as in [tls]. If not set, and `tls_ca` is not set: those of [tls].",
    ),
    with_default(
        "zookeeper",
        "tls_client_certificates",
        "\"need\"",
        "\"need\", \"want\" or \"none\"",
        "`ssl.clientAuth`: whether a client must have a certificate, may have one, or is not asked for one.\nThe subject of the certificate is the client's id in the scheme x509.",
    ),
    with_default(
        "zookeeper",
        "enforce_quota",
        "false",
        "true or false",
        "`enforceQuota`: whether writes through this node that exceed a hard quota are refused. Set it alike on all nodes.",
    ),
    with_default(
        "zookeeper",
        "admin_snapshot",
        "true",
        "true or false",
        "`admin.snapshot.enabled`: whether `listen.zookeeper_admin` lets the superuser download the whole tree.",
    ),
    with_default(
        "zookeeper",
        "admin_snapshot_every_ms",
        "300000",
        "0 for no limit, or an integer to 86400000",
        "`admin.snapshot.intervalInMS`: at most one snapshot in this time. Too small: each one walks over the tree twice.",
    ),
    with_default(
        "zookeeper",
        "admin_restore",
        "true",
        "true or false",
        "`admin.restore.enabled`: whether `listen.zookeeper_admin` lets the superuser replace the tree by a snapshot.",
    ),
    with_default(
        "zookeeper",
        "admin_restore_every_ms",
        "300000",
        "0 for no limit, or an integer to 86400000",
        "`admin.restore.intervalInMS`: at most one restore in this time. Each one disconnects all clients.",
    ),
    with_default(
        "zookeeper",
        "read_only_mode",
        "false",
        "true or false",
        "`readonlymode.enabled`: whether a node that has lost the log serves reads, possibly old ones, to clients that ask for that.",
    ),
    with_default(
        "zookeeper",
        "container_check_every_ms",
        "10000",
        "an integer, 1 to 3600000",
        "`znode.container.checkIntervalMs`: how often the node looks for empty containers and for nodes whose time to live is over.\nToo small: unnecessary work. Too large: such nodes stay for longer.",
    ),
    with_default(
        "timings",
        "heartbeat_every_ms",
        "50",
        "an integer, 5 to 5000, and a third of timings.silent_after_ms at most",
        "How often a node sends a sign of life to every peer.\nToo small: unnecessary wake-ups. Too large: failures are noticed late.",
    ),
    with_default(
        "timings",
        "silent_after_ms",
        "450",
        "an integer, 50 to 60000",
        "A peer that has not been heard from for this long is suspected.\nToo small: a busy machine is taken for a dead one, and logs are reconfigured for nothing (each time costs a seal and a\nregister write, never a record). Too large: a stopped sequencer blocks appends for longer.",
    ),
    with_default(
        "timings",
        "link_down_for_ms",
        "40",
        "an integer, 1 to 60000",
        "A peer whose connection broke and was not restored within this time is suspected.\nToo small: a broken connection is taken for a dead process. Too large: appends wait this much longer after a\n`kill -9` of the sequencer.",
    ),
    with_default(
        "timings",
        "replace_server_after_ms",
        "5000",
        "an integer, 100 to 86400000",
        "A suspected LogServer is replaced by a spare node after this time.\nToo small: a restart moves data around. Too large: the log has one copy fewer for longer.",
    ),
    with_default(
        "timings",
        "disk_hangs_after_ms",
        "1000",
        "an integer, 100 to 600000",
        "A disk that has not finished a sync within this time counts as hanging.\nToo small: a busy disk is taken for a broken one, and sequencers move. Too large: a broken one is noticed late.",
    ),
    with_default(
        "timings",
        "rank_delay_ms",
        "20",
        "an integer, 1 to 5000",
        "Nodes that could extend a log wait this long, times their rank, before they start.\nToo small: several nodes do the same work at once (harmless). Too large: if the first in line is dead too, the next\nstarts late.",
    ),
    with_default(
        "timings",
        "patrol_every_ms",
        "1000",
        "an integer, 50 to 600000",
        "How often a node looks at its logs without a notification.\nToo small: unnecessary work. Too large: whatever no event announces, such as a rebuild that failed, waits for longer.",
    ),
    with_default(
        "timings",
        "drain_at_most_ms",
        "10000",
        "an integer, 0 to 600000",
        "After SIGTERM, how long a node may take to move its sequencers to other nodes before it stops anyway. 0 means at once.\nToo small: appends pause as after a kill. Too large: a node without successors takes this long to stop.",
    ),
    with_default(
        "doors",
        "threads",
        "0",
        "an integer, 0 to 256",
        "On how many threads of their own the doors run; 0: on the thread of the node.\nToo few: on a machine with many cores, clients wait for each other's requests. Too many: each request that needs the node wakes\none more thread.",
    ),
    with_default(
        "logs",
        "most",
        "10000",
        "an integer, 1 to 1000000",
        "Once the cluster has this many logs, clients of this node cannot create more. Each log needs a register, a few kilobytes on\nevery node, and work on every node when a node dies. Each node counts for itself, so the cluster may get a few more.",
    ),
    with_default(
        "logs",
        "idle",
        "512",
        "an integer, 1 to 1000000",
        "How many unused logs stay open on this node, most recently used first. Too small: the next use of a log first reads its\nchain. Too large: memory, a few kilobytes for each.",
    ),
    with_default(
        "logs",
        "full_shard_records",
        "0",
        "an integer, 0 to 1000000000000",
        "A shard of a log on Scalog is full once it has got this many records. If all shards of a log that take records are full, a node\nadds one, on nodes that keep no other: one at a time, and none within 15 s of any other change of the log. 0: never.\nToo small: nodes are used up. Too large: shards grow beyond what a node can keep. Set it on all nodes.",
    ),
    with_default(
        "database",
        "state",
        "\"disk\"",
        "\"disk\" or \"memory\"",
        "memory: the state must fit into it, and every start replays the log or fetches the state from a peer. This node then does\nnot trim the log. Nodes may differ, and a restart may change it.",
    ),
    with_default(
        "database",
        "cache_mb",
        "128",
        "an integer, 1 to 1000000",
        "The size of the read cache for a state on disk, in MiB, in addition to the kernel's page cache.\nFifteen sixteenths are for values of single keys, the rest is for blocks of files.\nToo small: reads go to another thread, and find and decode blocks of files every time. Too large: the memory is missing elsewhere.",
    ),
    with_default(
        "database",
        "least_free_mb",
        "256",
        "an integer, 0 to 1000000000",
        "If the disk of the data directory has less free space than this, in MiB, the node refuses requests that make its data grow.\nDeletes still work. At four times as much, it warns. 0 turns this off. Too small: the store cannot be written, and the node\napplies no more commands.",
    ),
    with_default(
        "database",
        "clock_ahead_at_most_s",
        "600",
        "an integer, 1 to 31536000",
        "A node accepts no writes while its clock is further ahead than this, in seconds, of the clocks of more than half of the other\nnodes. Too small: a slightly wrong clock stops a node's writes. Too large: a wrong clock deletes nodes with a time to live\nthat much too early, and timestamps stand still for as long.",
    ),
    with_default(
        "database",
        "keep_entries",
        "20000",
        "an integer, 100 to 1000000000",
        "How many entries of the database's log are kept below what the stores of all replicas hold.\nToo small: a node that was away for a short time fetches the whole state from a peer. Too large: disk space.",
    ),
    without_default(
        "registers",
        "name",
        "\"etcd\"",
        "1 to 64 letters, digits, \".\", \"_\" and \"-\", once only, and not \"home\"",
        "What commands call them. Never give the name of one store to another while chains are there.",
    ),
    without_default(
        "registers",
        "url",
        "\"etcd://10.0.0.9:2379/atoll\"",
        "\"etcd://HOST:PORT,HOST:PORT/PREFIX\", \"s3://BUCKET/PREFIX\" or \"zookeeper://HOST:PORT,HOST:PORT/ROOT\", without user and password",
        "Where they are. Each cluster needs a prefix of its own. Connections to etcd and to ZooKeeper are not encrypted.",
    ),
    with_default(
        "testing",
        "syncs",
        "\"real\"",
        "\"real\" or \"off\"",
        "off: nothing is synced to the disk. A power failure loses acknowledged records. It shows that a drill can fail.",
    ),
];

/// Returns the settings of a section, in order.
pub fn of_section(section: &str) -> impl Iterator<Item = &'static Setting> + '_ {
    SETTINGS.iter().filter(move |s| s.section == section)
}

/// Returns a whole configuration file: every setting at its default, or commented out if it has none, with what it does.
pub fn print() -> String {
    let mut out = String::from(
        "# Configuration of one Atoll node for `atoll serve --config FILE`. Each setting has its default here; a setting without\n\
         # a default is commented out. `atoll serve --config FILE --check` checks a file.\n",
    );
    for (section, doc) in SECTIONS {
        out.push('\n');
        comment(&mut out, doc);
        let is_list = LISTS.contains(&section);
        let optional = is_list || section == "tls";
        let head = if is_list { format!("[[{section}]]") } else { format!("[{section}]") };
        line(&mut out, &head, optional);
        for setting in of_section(section) {
            comment(&mut out, setting.doc);
            comment(&mut out, &format!("Allowed: {}.", setting.allowed));
            let pair = format!("{} = {}", setting.key, setting.default.unwrap_or(setting.example));
            line(&mut out, &pair, optional || setting.default.is_none());
        }
    }
    out
}

fn comment(out: &mut String, text: &str) {
    for l in text.lines() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "# {l}");
    }
}

/// Writes a setting. If it is off, it has `#` without a space before it, so that an editor can distinguish it from prose.
fn line(out: &mut String, text: &str, off: bool) {
    let _ = writeln!(out, "{}{text}", if off { "#" } else { "" });
}
