//! The configuration of one node. Every field is checked, and faults are explained.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use atoll_doors::zookeeper::ClientCertificates;

use super::reader::{ConfigFault, ConfigFaults, Source, Table, Tables, integer, text, texts, within};

/// Largest configuration file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of `[[peer]]` tables.
pub const MAX_PEERS: usize = 64;
const MAX_CLUSTER_BYTES: usize = 64;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Whether it stores entries.
    pub log: bool,
    /// Whether it stores registers.
    pub meta: bool,
    /// Whether it orders appends.
    pub sequencer: bool,
}

impl Roles {
    /// All roles.
    pub const ALL: Roles = Roles { log: true, meta: true, sequencer: true };

    /// Returns the names of the roles.
    pub fn names(self) -> Vec<&'static str> {
        let all = [(self.log, "log"), (self.meta, "meta"), (self.sequencer, "sequencer")];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }
}

/// A founder of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address for other nodes.
    pub address: String,
    /// The address for clients, if configured.
    pub grpc: Option<String>,
    /// Its roles.
    pub roles: Roles,
}

/// The three files of TLS, and the name to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities.
    pub ca: PathBuf,
    /// This node's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Lists of revoked certificates.
    pub revoked: Option<PathBuf>,
    /// The name in every peer's certificate. None: the host of its address.
    pub server_name: Option<String>,
}

/// See `settings.rs`: each field is the setting of its name, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The table of settings documents them.
pub struct Timings {
    pub heartbeat_every_ms: u64,
    pub silent_after_ms: u64,
    pub link_down_for_ms: u64,
    pub replace_server_after_ms: u64,
    pub disk_hangs_after_ms: u64,
    pub rank_delay_ms: u64,
    pub patrol_every_ms: u64,
    pub drain_at_most_ms: u64,
}

/// Everything that a node is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its id.
    pub id: u32,
    /// The cluster's name.
    pub cluster: String,
    /// Its data directory.
    pub data: PathBuf,
    /// What it does.
    pub roles: Roles,
    /// The gRPC door.
    pub grpc: String,
    /// The door of the other nodes.
    pub peer: String,
    /// The door of the metrics, if there is one.
    pub metrics: Option<String>,
    /// The door of ZooKeeper's clients, if there is one.
    pub zookeeper: Option<String>,
    /// The door of ZooKeeper's clients with TLS, if there is one, and its files.
    pub zookeeper_tls: Option<(String, atoll_doors::zookeeper::TlsFiles)>,
    /// The door for the commands of ZooKeeper's AdminServer, if they are served.
    pub zookeeper_admin: Option<String>,
    /// The options of ZooKeeper's doors.
    pub zookeeper_options: atoll_doors::zookeeper::Options,
    /// Maximum number of bytes that the cache of a state on disk keeps in memory.
    pub cache_bytes: u64,
    /// With fewer free bytes on the disk than this, the data of the database must not grow.
    pub least_free_bytes: u64,
    /// How far the clock of this node may be ahead of the others'.
    pub clock_ahead_at_most: Duration,
    /// Number of entries that a trim of the database's log keeps.
    pub keep_entries: u64,
    /// Number of logs from which on clients cannot create more.
    pub most_logs: u64,
    /// Number of unused logs that stay open.
    pub idle_logs: u64,
    /// Number of records with which a shard is full; 0: none is.
    pub full_shard_records: u64,
    /// The stores outside of the cluster where chains can be, as URLs by name.
    pub registers: BTreeMap<String, String>,
    /// Number of threads of the doors; 0: they run on the thread of the node.
    pub door_threads: u64,
    /// Whether the operator allows other machines to connect without TLS.
    pub plaintext_beyond_loopback: bool,
    /// Whether calls need grants, and who needs none.
    pub authorisation: atoll_door::Authorisation,
    /// The founders by id, with or without this node; empty for a standalone node.
    pub peers: BTreeMap<u32, Peer>,
    /// TLS, if it is configured.
    pub tls: Option<Tls>,
    /// When a node counts as gone.
    pub timings: Timings,
    /// Whether the state of the database is in memory instead of on disk.
    pub state_in_memory: bool,
    /// Whether syncs are omitted, for tests.
    pub syncs_off: bool,
}

/// Settings of the command line. They override those of the file, and suffice without a file.
#[derive(Clone, Debug, Default)]
pub struct Overrules {
    /// `--data`.
    pub data: Option<PathBuf>,
    /// `--grpc`.
    pub grpc: Option<String>,
    /// `--peer`.
    pub peer: Option<String>,
    /// `--metrics`.
    pub metrics: Option<String>,
    /// `--zookeeper`.
    pub zookeeper: Option<String>,
    /// `--state`: whether the state is in memory.
    pub state_in_memory: Option<bool>,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Returns every fault of the file. Nothing was started.
    pub fn load(file: &Path, over: &Overrules) -> Result<Config, ConfigFaults> {
        let fault =
            |what| ConfigFaults { file: file.to_owned(), faults: vec![ConfigFault { line: None, what }] };
        let size = std::fs::metadata(file).map_err(|e| fault(format!("cannot be read: {e}")))?.len();
        if size > MAX_FILE_BYTES {
            return Err(fault(format!("has {size} bytes; a configuration has {MAX_FILE_BYTES} at most")));
        }
        let text = std::fs::read_to_string(file).map_err(|e| fault(format!("cannot be read: {e}")))?;
        Config::parse(file, &text, over)
    }

    /// Returns the configuration without a file, for a standalone node.
    ///
    /// # Errors
    /// Returns every fault.
    pub fn without_file(over: &Overrules) -> Result<Config, ConfigFaults> {
        Config::parse(Path::new("command line"), "", over)
    }

    /// Checks the text of a file. Relative paths in it start at the file's folder.
    ///
    /// # Errors
    /// Returns every fault of the text.
    pub fn parse(file: &Path, text: &str, over: &Overrules) -> Result<Config, ConfigFaults> {
        let mut source = Source::new(text);
        let config = source.tables().and_then(|tables| read(&mut source, file, &tables, over));
        match config {
            Some(config) => source.finish(file, config),
            None => Err(source.finish(file, ()).err().unwrap_or_else(|| ConfigFaults {
                file: file.to_owned(),
                faults: vec![ConfigFault { line: None, what: "cannot be used".into() }],
            })),
        }
    }
}

fn read(source: &mut Source<'_>, file: &Path, tables: &Tables<'_>, over: &Overrules) -> Option<Config> {
    // Every part is read before the first `?`, so that all faults are found.
    let node = tables.get("node");
    let id = node.read(source, "id", node_id);
    let cluster = node.read(source, "cluster", |v| text(v).filter(|n| good_cluster(n)));
    let roles = node.read(source, "roles", roles);
    let data = match &over.data {
        Some(data) => Some(data.clone()),
        None => node.need(source, "data", |v| path(file, v)),
    };
    let plaintext = tables.get("listen").read(source, "listen_beyond_loopback_without_tls", |v| v.as_bool());
    let tls = read_tls(source, file, &tables.get("tls"));
    let authorisation = read_authorisation(source, &tables.get("auth"));
    let zookeeper_files = super::zookeeper::read_tls(source, file, &tables.get("zookeeper"), tls.as_ref());
    let known = zookeeper_files.as_ref().is_some_and(super::zookeeper::clients_are_known);
    let doors =
        read_doors(source, &tables.get("listen"), over, [tls.is_some(), known], plaintext == Some(true));
    let peers = read_peers(source, tables);
    let zookeeper_options = super::zookeeper::read(source, file, &tables.get("zookeeper"));
    let cache_mb = tables.get("database").read(source, "cache_mb", within(1, 1_000_000));
    let least_free_mb = tables.get("database").read(source, "least_free_mb", within(0, 1_000_000_000));
    let clock_ahead_s = tables.get("database").read(source, "clock_ahead_at_most_s", within(1, 31_536_000));
    let keep_entries = tables.get("database").read(source, "keep_entries", within(100, 1_000_000_000));
    let most_logs = tables.get("logs").read(source, "most", within(1, 1_000_000));
    let idle_logs = tables.get("logs").read(source, "idle", within(1, 1_000_000));
    let full_shard_records =
        tables.get("logs").read(source, "full_shard_records", within(0, 1_000_000_000_000));
    let registers = super::places::read(source, tables);
    let door_threads = tables.get("doors").read(source, "threads", within(0, 256));
    let timings = read_timings(source, &tables.get("timings"));
    let state_in_memory = match over.state_in_memory {
        Some(given) => Some(given),
        None => tables.get("database").read(source, "state", |v| match v.as_str() {
            Some("disk") => Some(false),
            Some("memory") => Some(true),
            _ => None,
        }),
    };
    let syncs = tables.get("testing").read(source, "syncs", |v| match v.as_str() {
        Some("real") => Some(false),
        Some("off") => Some(true),
        _ => None,
    });
    let (id, peers) = (id?, peers?);
    check_membership(source, tables, id, roles?, &peers);
    let [grpc, peer, metrics, zookeeper, zookeeper_tls, zookeeper_admin] = doors;
    let zookeeper_tls = zookeeper_tls.filter(|z| !z.is_empty());
    if zookeeper_tls.is_some() && zookeeper_files.is_none() {
        source.fault(
            tables.get("listen").place("zookeeper_tls"),
            "`listen.zookeeper_tls` needs a certificate; allowed: `tls_cert`, `tls_key` and, unless no client has one, \
             `tls_ca` in [zookeeper], or the files of [tls]"
                .into(),
        );
    }
    check_schemes(
        source,
        tables,
        zookeeper_options.as_ref(),
        zookeeper_files.as_ref(),
        zookeeper_tls.is_some(),
    );
    Some(Config {
        id,
        cluster: cluster?,
        data: data?,
        roles: roles?,
        grpc: grpc?,
        peer: peer?,
        metrics: metrics.filter(|m| !m.is_empty()),
        zookeeper: zookeeper.filter(|z| !z.is_empty()),
        zookeeper_tls: zookeeper_tls.zip(zookeeper_files),
        zookeeper_admin: zookeeper_admin.filter(|a| !a.is_empty()),
        zookeeper_options: zookeeper_options?,
        cache_bytes: cache_mb? << 20,
        least_free_bytes: least_free_mb? << 20,
        clock_ahead_at_most: Duration::from_secs(clock_ahead_s?),
        keep_entries: keep_entries?,
        most_logs: most_logs?,
        idle_logs: idle_logs?,
        full_shard_records: full_shard_records?,
        registers: registers?,
        door_threads: door_threads?,
        plaintext_beyond_loopback: plaintext?,
        authorisation: authorisation?,
        peers,
        tls,
        timings: timings?,
        state_in_memory: state_in_memory?,
        syncs_off: syncs?,
    })
}

/// Refuses to require certificates of ZooKeeper's clients where none can be shown.
fn check_schemes(
    source: &mut Source<'_>,
    tables: &Tables<'_>,
    options: Option<&atoll_doors::zookeeper::Options>,
    files: Option<&atoll_doors::zookeeper::TlsFiles>,
    has_tls: bool,
) {
    let required = options.map_or(&[][..], |options| &options.required_schemes);
    let wants_certificates = required.iter().any(|scheme| scheme == "x509");
    let are_asked = files.is_none_or(|files| files.clients != ClientCertificates::None);
    if wants_certificates && (!has_tls || !are_asked) {
        let missing = if are_asked {
            "there is no `listen.zookeeper_tls`"
        } else {
            "no client is asked for a certificate"
        };
        source.fault(
            tables.get("zookeeper").place("required_schemes"),
            format!(
                "`zookeeper.required_schemes` has x509, and {missing}; allowed: with that listener, and with \
                 `zookeeper.tls_client_certificates` need or want"
            ),
        );
    }
}

fn node_id(value: &DeValue<'_>) -> Option<u32> {
    integer(value).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok())
}

fn good_cluster(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= MAX_CLUSTER_BYTES && name.bytes().all(fine)
}

pub fn path(file: &Path, value: &DeValue<'_>) -> Option<PathBuf> {
    let given = value.as_str().filter(|p| !p.is_empty() && !p.contains(char::is_control))?;
    Some(file.parent().unwrap_or(Path::new("")).join(given))
}

fn roles(value: &DeValue<'_>) -> Option<Roles> {
    let mut out = Roles { log: false, meta: false, sequencer: false };
    for name in texts(value)? {
        let role = match name.as_str() {
            "log" => &mut out.log,
            "meta" => &mut out.meta,
            "sequencer" => &mut out.sequencer,
            _ => return None,
        };
        if std::mem::replace(role, true) {
            return None;
        }
    }
    Some(out)
}

/// Returns whether this is `HOST:PORT` or `[IPv6]:PORT`. The host is not looked up, because a peer's name may not be known yet.
pub fn good_address(address: &str, least_port: u16) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let good_host = match bare {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            (1..=253).contains(&host.len()) && host.bytes().all(fine)
        }
    };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    good_host && digits && port.parse::<u16>().is_ok_and(|p| p >= least_port)
}

fn address(value: &DeValue<'_>) -> Option<String> {
    text(value).filter(|a| good_address(a, 1))
}

/// Reads the doors. With neither TLS nor the setting that allows plaintext, no door may be reachable from other machines. The doors of
/// metrics and of ZooKeeper have no TLS at all.
fn read_doors(
    source: &mut Source<'_>,
    listen: &Table<'_>,
    over: &Overrules,
    [tls, zookeeper_tls]: [bool; 2],
    plaintext: bool,
) -> [Option<String>; 6] {
    let rows = [
        ("grpc", &over.grpc, tls),
        ("peer", &over.peer, tls),
        ("metrics", &over.metrics, false),
        ("zookeeper", &over.zookeeper, false),
        ("zookeeper_tls", &None, zookeeper_tls),
        ("zookeeper_admin", &None, false),
    ];
    let may_lack = |key| matches!(key, "metrics" | "zookeeper" | "zookeeper_tls" | "zookeeper_admin");
    rows.map(|(key, over, tls)| {
        let allowed = |a: &String| good_address(a, 0) || (may_lack(key) && a.is_empty());
        let door = match over {
            Some(given) if allowed(given) => Some(given.clone()),
            Some(given) => {
                source.fault(None, format!("`--{key}` is {given:?}; allowed: HOST:PORT"));
                None
            }
            None => listen.read(source, key, |v| text(v).filter(|a| allowed(a))),
        }?;
        if let (false, false, Some(beyond)) = (tls, plaintext, beyond_loopback(&door)) {
            let place = if over.is_some() { None } else { listen.place(key) };
            source.fault(
                place,
                format!(
                    "`listen.{key}` is {door:?}, which is {beyond}: other machines could reach it without TLS; allowed: \
                     a loopback address{}, or `listen_beyond_loopback_without_tls = true` in [listen]",
                    if may_lack(key) { "" } else { ", the files of [tls]" },
                ),
            );
        }
        Some(door)
    })
}

/// Returns the first address of a listener that is not on loopback. None if the name cannot be looked up now; the listener then reports
/// that.
fn beyond_loopback(door: &str) -> Option<SocketAddr> {
    door.to_socket_addrs().ok()?.find(|a| !a.ip().to_canonical().is_loopback())
}

fn read_tls(source: &mut Source<'_>, file: &Path, table: &Table<'_>) -> Option<Tls> {
    if table.is_empty() {
        return None;
    }
    let [ca, cert, key] =
        ["ca", "cert", "key"].map(|name| table.need(source, name, |v| path(file, v).filter(|p| p.is_file())));
    let server_name =
        table.read(source, "server_name", |v| text(v).filter(|n| good_address(&format!("{n}:1"), 1)));
    let revoked = table.read(source, "revoked", |v| path(file, v).filter(|p| p.is_file()));
    Some(Tls { ca: ca?, cert: cert?, key: key?, revoked, server_name })
}

/// The maximum number of operators in the file, and the longest name of one.
const MAX_OPERATORS: usize = 16;
const MAX_OPERATOR_BYTES: usize = 200;

fn read_authorisation(source: &mut Source<'_>, table: &Table<'_>) -> Option<atoll_door::Authorisation> {
    let required = match table.place("required") {
        Some(_) => table.read(source, "required", |v| v.as_bool()).map(Some),
        None => Some(None),
    };
    // As in a grant.
    let name = |text: &String| text.strip_prefix("cert:").map(str::to_owned);
    let is_good =
        |name: &String| (1..=MAX_OPERATOR_BYTES).contains(&name.len()) && !name.contains(char::is_control);
    let operators = table.read(source, "operators", |v| {
        let names: Option<Vec<String>> = texts(v)?.iter().map(name).collect();
        names.filter(|names| names.len() <= MAX_OPERATORS && names.iter().all(is_good))
    });
    let certificates_optional = table.read(source, "client_certificates", |v| match v.as_str() {
        Some("need") => Some(false),
        Some("optional") => Some(true),
        _ => None,
    });
    let operators = operators?.into_iter().collect();
    let certificates_optional = certificates_optional?;
    Some(atoll_door::Authorisation { required: required?, operators, certificates_optional })
}

fn read_peers(source: &mut Source<'_>, tables: &Tables<'_>) -> Option<BTreeMap<u32, Peer>> {
    let mut out = BTreeMap::new();
    let mut complete = true;
    for table in tables.all("peer") {
        let id = table.need(source, "id", node_id);
        let address = table.need(source, "address", address);
        let grpc = table.read(source, "grpc", self::address);
        let roles = table.read(source, "roles", roles);
        let (Some(id), Some(address), Some(roles)) = (id, address, roles) else {
            complete = false;
            continue;
        };
        if out.insert(id, Peer { address, grpc, roles }).is_some() {
            source
                .fault(table.place("id"), format!("`peer.id` is {id} a second time; allowed: each id once"));
        }
        if out.len() > MAX_PEERS {
            source.fault(
                table.place("id"),
                format!("more than {MAX_PEERS} [[peer]] tables; allowed: {MAX_PEERS}"),
            );
            return None;
        }
    }
    complete.then_some(out)
}

/// Checks what depends on several settings: that the node agrees with its own `[[peer]]` table, and that the cluster has registers.
fn check_membership(
    source: &mut Source<'_>,
    tables: &Tables<'_>,
    id: u32,
    roles: Roles,
    peers: &BTreeMap<u32, Peer>,
) {
    let at = |id: u32| {
        let of = |t: &&Table<'_>| t.read(&mut Source::new(""), "id", node_id) == Some(id);
        tables.all("peer").find(of).and_then(|t| t.place("id"))
    };
    if let Some(me) = peers.get(&id).filter(|me| me.roles != roles) {
        source.fault(
            at(id),
            format!(
                "`peer.roles` of peer {id} is {:?}, and `node.roles` of this node {:?}; allowed: the same",
                me.roles.names(),
                roles.names()
            ),
        );
    }
    let members = || peers.iter().filter(|(p, _)| **p != id).map(|(_, p)| p.roles).chain([roles]);
    if !members().any(|r| r.meta) {
        source.fault(
            tables.get("node").place("roles"),
            "no member has the role \"meta\"; allowed: one member at least, because somebody must keep the registers"
                .into(),
        );
    }
}

fn read_timings(source: &mut Source<'_>, table: &Table<'_>) -> Option<Timings> {
    let mut ms = |key, least, most| table.read(source, key, within(least, most));
    let heartbeat = ms("heartbeat_every_ms", 5, 5_000);
    let silent = ms("silent_after_ms", 50, 60_000);
    let link_down = ms("link_down_for_ms", 1, 60_000);
    let replace = ms("replace_server_after_ms", 100, 86_400_000);
    let hangs = ms("disk_hangs_after_ms", 100, 600_000);
    let rank = ms("rank_delay_ms", 1, 5_000);
    let patrol = ms("patrol_every_ms", 50, 600_000);
    let drain = ms("drain_at_most_ms", 0, 600_000);
    let (heartbeat, silent) = (heartbeat?, silent?);
    if heartbeat * 3 > silent {
        let place = table.place("heartbeat_every_ms").or(table.place("silent_after_ms"));
        source.fault(
            place,
            format!(
                "`timings.heartbeat_every_ms` is {heartbeat} and `timings.silent_after_ms` {silent}; allowed: the first \
                 is a third of the second at most, or one late heartbeat looks like a death"
            ),
        );
    }
    Some(Timings {
        heartbeat_every_ms: heartbeat,
        silent_after_ms: silent,
        link_down_for_ms: link_down?,
        replace_server_after_ms: replace?,
        disk_hangs_after_ms: hangs?,
        rank_delay_ms: rank?,
        patrol_every_ms: patrol?,
        drain_at_most_ms: drain?,
    })
}
