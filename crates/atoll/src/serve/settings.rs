//! Every setting of the configuration file: its name, what is allowed, its default and what it does. The reader rejects settings that are
//! not in this table, and `atoll serve --print-config` prints it.

use std::fmt::Write as _;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The table of the file that contains it; `peer` may occur many times.
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

/// Sections in the order of the printed file, with their descriptions. `peer` is an array of tables.
pub const SECTIONS: [(&str, &str); 9] = [
    ("node", "Who this node is, and what it does."),
    ("listen", "Its doors."),
    (
        "peer",
        "One table for each member of the cluster at its birth, the same in every node's file; none for a node\nthat stands alone. A node that is added later needs a table for any one living member, and none for itself.\nLater changes go through `atoll node add|drain|remove`.",
    ),
    ("tls", "Mutual TLS between nodes, and TLS of the gRPC door. All of the three files, or none."),
    (
        "zookeeper",
        "The door of ZooKeeper's clients. ZooKeeper's own name of each setting is told. Nodes may differ, but for\nthe session timeouts: a session keeps its timeout when its client changes nodes.",
    ),
    (
        "timings",
        "When a node counts as gone, and what follows. They may differ between nodes and change at a restart.",
    ),
    ("logs", "How many logs there may be, and how many stay open at this node."),
    ("database", "The state that tables and ZooKeeper's clients share."),
    ("testing", "Switches for tests. Leave them alone."),
];

const ADDRESS: &str = "\"HOST:PORT\"";
const LISTEN: &str = "\"HOST:PORT\", HOST an IP address or a name of this machine; port 0 takes a free one";
const FILE: &str = "the path of a PEM file; a relative one starts at this file's folder";
const ROLES: &str = "a list of \"log\", \"meta\" and \"sequencer\", each once at most";

/// All settings.
pub const SETTINGS: &[Setting] = &[
    with_default(
        "node",
        "id",
        "1",
        "an integer, 1 to 4294967295",
        "The node's id. No two members have the same; it never changes.",
    ),
    with_default(
        "node",
        "cluster",
        "\"atoll\"",
        "1 to 64 letters, digits, \".\", \"_\" and \"-\"",
        "The cluster's name. Nodes of another cluster are refused; the data directory remembers it.",
    ),
    without_default(
        "node",
        "data",
        "\"/var/lib/atoll\"",
        "the path of a folder without control characters, which is made if it is not there; a relative one starts at this file's folder",
        "Where its data is. It belongs to this node alone. `--data` overrules it.",
    ),
    with_default(
        "node",
        "roles",
        "[\"log\", \"meta\", \"sequencer\"]",
        ROLES,
        "log: keeps entries. meta: keeps the registers that hold each log's chain. sequencer: orders appends.\nA node without any is a door to the others.",
    ),
    with_default(
        "listen",
        "grpc",
        "\"127.0.0.1:7411\"",
        LISTEN,
        "The public gRPC door: logs, chains, cluster, reflection.",
    ),
    with_default("listen", "peer", "\"127.0.0.1:7412\"", LISTEN, "Where the other nodes come in."),
    with_default(
        "listen",
        "metrics",
        "\"127.0.0.1:7413\"",
        "\"HOST:PORT\" as above, or \"\" for none",
        "Prometheus metrics over HTTP, at /metrics. Never with TLS.",
    ),
    with_default(
        "listen",
        "zookeeper",
        "\"127.0.0.1:2181\"",
        "\"HOST:PORT\" as above, or \"\" for none",
        "Clients of Apache ZooKeeper. Never with TLS.",
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
        "The commands of ZooKeeper's AdminServer over HTTP, at /commands: `admin.serverPort`. Never with TLS.",
    ),
    with_default(
        "listen",
        "listen_beyond_loopback_without_tls",
        "false",
        "true or false",
        "Without these words, a listener that other machines could reach is refused unless it has TLS: whoever reaches\nit may read and write everything.",
    ),
    without_default("peer", "id", "2", "an integer, 1 to 4294967295, once only", "The member's id."),
    without_default(
        "peer",
        "address",
        "\"10.0.0.2:7412\"",
        ADDRESS,
        "Where the others reach it: its `listen.peer` as they see it.",
    ),
    without_default(
        "peer",
        "grpc",
        "\"10.0.0.2:7411\"",
        ADDRESS,
        "Where clients reach it: its `listen.grpc` as they see it. Shown by `atoll status`; not needed.",
    ),
    with_default(
        "peer",
        "roles",
        "[\"log\", \"meta\", \"sequencer\"]",
        ROLES,
        "Its roles, as its own file says.",
    ),
    without_default(
        "tls",
        "ca",
        "\"ca.pem\"",
        FILE,
        "The authorities that peers' and clients' certificates must come from.",
    ),
    without_default(
        "tls",
        "cert",
        "\"node.pem\"",
        FILE,
        "This node's certificate, which carries the DNS name node-ID (node-2 for node 2), then intermediates.",
    ),
    without_default("tls", "key", "\"node.key\"", FILE, "Its private key."),
    without_default(
        "tls",
        "server_name",
        "\"atoll.example\"",
        "a DNS name or an IP address",
        "The name that every peer's certificate must carry. Not set: the host of the peer's address.",
    ),
    with_default(
        "zookeeper",
        "tick_ms",
        "2000",
        "an integer, 100 to 60000",
        "`tickTime`. The bounds of session timeouts come from it where they are 0 below.\nToo small: sessions expire while a client collects its garbage. Too large: what dead clients held is held for longer.",
    ),
    with_default(
        "zookeeper",
        "min_session_timeout_ms",
        "0",
        "0 for two ticks, or an integer, 1000 to 3600000, and not above the longest",
        "`minSessionTimeout`: a client that asks for less gets this.\nToo small: a short pause of a client costs its ephemerals, and a node that loses the log must send its clients away\nsooner. Too large: dead clients are noticed late.",
    ),
    with_default(
        "zookeeper",
        "max_session_timeout_ms",
        "0",
        "0 for 20 ticks, or an integer, 1000 to 86400000",
        "`maxSessionTimeout`: a client that asks for more gets this.\nToo small: clients that know that they pause cannot say so. Too large: dead clients may hold their locks that long.",
    ),
    with_default(
        "zookeeper",
        "max_frame_bytes",
        "1048575",
        "an integer, 1024 to 16777216",
        "`jute.maxbuffer`: a client that sends a longer frame is cut off. What is written is 999,900 bytes at most all the same.\nToo small: setWatches of a client that comes back may not fit. Too large: so much memory for one connection.",
    ),
    with_default(
        "zookeeper",
        "max_reply_bytes",
        "33554432",
        "an integer, 1048576 to 1073741824",
        "Longest reply: a read that has more to tell ends with MarshallingError. ZooKeeper leaves that to `jute.maxbuffer` of its clients.\nToo small: long lists of children cannot be read. Too large: memory, of four such replies at once.",
    ),
    with_default(
        "zookeeper",
        "max_watch_bytes_of_connection",
        "67108864",
        "an integer, 65536 to 4294967296",
        "What the watches of one connection may take, each with its path and 128 bytes; beyond it a read with a watch ends with SystemError.\nToo small: clients that watch very much are refused. Too large: one client takes so much memory of a node.",
    ),
    with_default(
        "zookeeper",
        "max_watch_bytes",
        "536870912",
        "an integer, 1048576 to 68719476736",
        "The same of all connections of a node.\nToo small: clients are refused watches since others have many. Too large: memory.",
    ),
    with_default(
        "zookeeper",
        "max_connections_of_address",
        "60",
        "0 for no limit, or an integer to 1000000",
        "`maxClientCnxns`: connections of one address; more are closed at once.\nToo small: clients behind one address lock each other out. Too large: one of them may take all file descriptors.",
    ),
    with_default(
        "zookeeper",
        "max_connections",
        "0",
        "0 for no limit, or an integer to 1000000",
        "`maxCnxns`: connections of everybody; more are closed at once.\nToo small: clients that come over from another node find no room. Too large: memory and file descriptors run out first.",
    ),
    with_default(
        "zookeeper",
        "max_outstanding_of_connection",
        "1000",
        "an integer, 1 to 100000",
        "Requests of one connection without an answer; more wait in the socket. ZooKeeper has no name for it.\nToo small: a client that does not wait for its answers is slowed down. Too large: memory of one connection.",
    ),
    with_default(
        "zookeeper",
        "max_outstanding",
        "20000",
        "0 for no limit, or an integer to 10000000",
        "`globalOutstandingLimit`: requests of all connections without an answer. Beyond it a connection that has one leaves the\nnext in the socket. Too small: throughput. Too large: latency and memory when the log is slow.",
    ),
    with_default(
        "zookeeper",
        "connection_tokens",
        "0",
        "0 for no limit, or an integer to 1000000",
        "`connection_throttle_tokens`: each new connection takes a token, and is closed at once if there is none.\nToo small: clients come back slowly after a node was lost. Too large: a flood of connections costs a log entry each.",
    ),
    with_default(
        "zookeeper",
        "connection_fill_every_ms",
        "1",
        "an integer, 1 to 60000",
        "`connection_throttle_fill_time`: how often tokens come back.",
    ),
    with_default(
        "zookeeper",
        "connection_fill_count",
        "1",
        "an integer, 1 to 1000000",
        "`connection_throttle_fill_count`: how many come back then.",
    ),
    with_default(
        "zookeeper",
        "words",
        "[\"conf\", \"cons\", \"crst\", \"dirs\", \"dump\", \"envi\", \"gtmk\", \"isro\", \"mntr\", \"ruok\", \"srst\", \"srvr\", \"stat\", \"wchs\"]",
        "a list of four-letter words as docs/zookeeper.md has them, or \"*\" for all",
        "`4lw.commands.whitelist`: the words that are answered. wchc and wchp show every client's paths and cost a walk over\nall watches.",
    ),
    without_default(
        "zookeeper",
        "super_digest",
        "\"super:xQJmxLMiHGwaqBvst5y6rkB6HQs=\"",
        "\"USER:HASH\", HASH the base64 of the SHA-1 of \"USER:PASSWORD\"",
        "`DigestAuthenticationProvider.superDigest`: who adds this digest may everything. Not set: nobody.",
    ),
    without_default(
        "zookeeper",
        "x509_super",
        "\"CN=admin,O=Reef\"",
        "the subject of a certificate as RFC 2253 writes it",
        "`X509AuthenticationProvider.superUser`: who shows this certificate may everything. Not set: nobody.",
    ),
    with_default(
        "zookeeper",
        "sasl_users",
        "[]",
        "a list of \"NAME:PASSWORD\", each name once",
        "Users of SASL's DIGEST-MD5; ZooKeeper has them in its JAAS file. None: SASL is not there.\nWho reads this file can be any of them.",
    ),
    without_default(
        "zookeeper",
        "sasl_super",
        "\"admin\"",
        "a name in zookeeper.sasl_users",
        "`superUser`: this user of SASL may everything. Not set: nobody.",
    ),
    without_default(
        "zookeeper",
        "tls_cert",
        "\"zookeeper.pem\"",
        FILE,
        "The certificate of `listen.zookeeper_tls`, then intermediates. Not set: that of [tls].",
    ),
    without_default("zookeeper", "tls_key", "\"zookeeper.key\"", FILE, "Its private key."),
    without_default(
        "zookeeper",
        "tls_ca",
        "\"clients-ca.pem\"",
        FILE,
        "`ssl.trustStore.location`: the authorities that clients' certificates must come from. Not set: those of [tls].",
    ),
    with_default(
        "zookeeper",
        "tls_client_certificates",
        "\"need\"",
        "\"need\", \"want\" or \"none\"",
        "`ssl.clientAuth`: whether a client must have a certificate, may have one, or is not asked.\nIts subject is the client's id in the scheme x509.",
    ),
    with_default(
        "zookeeper",
        "enforce_quota",
        "false",
        "true or false",
        "`enforceQuota`: whether writes that come through this node are refused above a hard quota. Set it alike on all nodes.",
    ),
    with_default(
        "zookeeper",
        "admin_snapshot",
        "true",
        "true or false",
        "`admin.snapshot.enabled`: whether `listen.zookeeper_admin` gives the whole tree to the superuser.",
    ),
    with_default(
        "zookeeper",
        "admin_snapshot_every_ms",
        "300000",
        "0 for no limit, or an integer to 86400000",
        "`admin.snapshot.intervalInMS`: one snapshot in that time. Too small: each costs two walks over the tree.",
    ),
    with_default(
        "zookeeper",
        "admin_restore",
        "true",
        "true or false",
        "`admin.restore.enabled`: whether `listen.zookeeper_admin` takes a snapshot in the place of the tree.",
    ),
    with_default(
        "zookeeper",
        "admin_restore_every_ms",
        "300000",
        "0 for no limit, or an integer to 86400000",
        "`admin.restore.intervalInMS`: one restore in that time. Each cuts off all clients.",
    ),
    with_default(
        "zookeeper",
        "read_only_mode",
        "false",
        "true or false",
        "`readonlymode.enabled`: whether a node that has lost the log serves reads, maybe old ones, to clients that ask for that.",
    ),
    with_default(
        "zookeeper",
        "container_check_every_ms",
        "10000",
        "an integer, 100 to 3600000",
        "`znode.container.checkIntervalMs`: how often it is looked for empty containers and nodes whose time to live is over.\nToo small: work for nothing. Too large: they stay for longer.",
    ),
    with_default(
        "timings",
        "heartbeat_every_ms",
        "50",
        "an integer, 5 to 5000, and a third of timings.silent_after_ms at most",
        "How often a node tells every peer that it lives.\nToo small: wake-ups for nothing. Too large: failures are noticed late.",
    ),
    with_default(
        "timings",
        "silent_after_ms",
        "450",
        "an integer, 50 to 60000",
        "A peer that said nothing for so long is suspected.\nToo small: a busy machine is taken for a dead one, and segments are changed for nothing (each costs a seal and a\nregister write, never a record). Too large: a stopped sequencer holds appends up for longer.",
    ),
    with_default(
        "timings",
        "link_down_for_ms",
        "40",
        "an integer, 1 to 60000",
        "A peer whose connection broke and was not restored within this is suspected.\nToo small: a broken connection is taken for a dead process. Too large: appends wait that much longer after a\n`kill -9` of the sequencer.",
    ),
    with_default(
        "timings",
        "replace_server_after_ms",
        "5000",
        "an integer, 100 to 86400000",
        "A suspected LogServer is replaced by a spare one after this.\nToo small: a restart moves data about. Too large: the log runs with one copy fewer for longer.",
    ),
    with_default(
        "timings",
        "disk_hangs_after_ms",
        "1000",
        "an integer, 100 to 600000",
        "A disk that has not synced within this what it was given counts as one that hangs.\nToo small: a busy disk is taken for a broken one, and sequencers move. Too large: a broken one goes unnoticed for longer.",
    ),
    with_default(
        "timings",
        "rank_delay_ms",
        "20",
        "an integer, 1 to 5000",
        "Nodes that could repair a log wait their rank times this before they start.\nToo small: several do the same work at once (harmless). Too large: if the first in line is dead too, the next\ncomes late.",
    ),
    with_default(
        "timings",
        "patrol_every_ms",
        "1000",
        "an integer, 50 to 600000",
        "How often a node looks at its logs without being told to.\nToo small: work for nothing. Too large: what no event announces (a rebuild that failed, a log made elsewhere) waits.",
    ),
    with_default(
        "timings",
        "drain_at_most_ms",
        "10000",
        "an integer, 0 to 600000",
        "After SIGTERM, how long a node may take to hand its sequencers to others before it stops all the same.\nToo small: appends pause as after a kill. Too large: a node without successors takes that long to stop. 0: at once.",
    ),
    with_default(
        "logs",
        "most",
        "10000",
        "an integer, 1 to 1000000",
        "With so many logs in the cluster, clients of this node can create no more. Each takes a register, some kilobytes at every\nnode, and a look from every node when a node dies. The nodes count by themselves, so a few more may come to be.",
    ),
    with_default(
        "logs",
        "idle",
        "512",
        "an integer, 1 to 1000000",
        "So many logs stay open here that nobody uses, those used last. Too small: the next use of a log reads its chain\nfirst. Too large: memory, some kilobytes for each.",
    ),
    with_default(
        "database",
        "state",
        "\"disk\"",
        "\"disk\" or \"memory\"",
        "memory: all of it must fit there, and a start replays the log, or fetches the state from a peer. This node does not\ntrim the log then. May differ between nodes, and change at a restart.",
    ),
    with_default(
        "database",
        "cache_mb",
        "112",
        "an integer, 1 to 1000000",
        "Of what was read from a state on disk, so many MiB stay in memory, besides what the kernel keeps of its files.\nToo small: reads find blocks in files and take them apart each time. Too large: the memory is missing elsewhere.",
    ),
    with_default(
        "database",
        "least_free_mb",
        "256",
        "an integer, 0 to 1000000000",
        "With less room on the disk of the data directory, in MiB, this node refuses what makes the data grow; deletes go on. At four\ntimes as much it warns. 0 for never. Too small: the store cannot be written, and the node applies no more.",
    ),
    with_default(
        "database",
        "clock_ahead_at_most_s",
        "600",
        "an integer, 1 to 31536000",
        "A node whose clock is further ahead than this, in seconds, of more than half of the other nodes' clocks takes no writes until it is set right.\nToo small: a clock that is only somewhat wrong costs a node its writes. Too large: a wrong clock has nodes with a time to live\ndeleted so much early, and timestamps stand still for as long.",
    ),
    with_default(
        "database",
        "keep_entries",
        "20000",
        "an integer, 100 to 1000000000",
        "So many entries of the database's log are kept behind what the stores of all replicas hold.\nToo small: a node that was away for a short time fetches the whole state from a peer. Too large: disk.",
    ),
    with_default(
        "testing",
        "syncs",
        "\"real\"",
        "\"real\" or \"off\"",
        "off: no sync reaches the disk. What was acknowledged is lost with the power. It shows that a drill can fail.",
    ),
];

/// Returns the settings of a section, in order.
pub fn of_section(section: &str) -> impl Iterator<Item = &'static Setting> + '_ {
    SETTINGS.iter().filter(move |s| s.section == section)
}

/// Returns a whole configuration file: every setting at its default, or commented out if it has none, with what it does.
pub fn print() -> String {
    let mut out = String::from(
        "# Configuration of one Atoll node, as `atoll serve --config FILE` reads it. Everything here is the default, or\n\
         # in a comment where there is none. `atoll serve --config FILE --check` validates a file.\n",
    );
    for (section, doc) in SECTIONS {
        out.push('\n');
        comment(&mut out, doc);
        let optional = matches!(section, "peer" | "tls");
        let head = if section == "peer" { format!("[[{section}]]") } else { format!("[{section}]") };
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
