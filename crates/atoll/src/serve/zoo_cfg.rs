//! `--zoo-cfg FILE`: reads the configuration of a ZooKeeper server, as far as it has a meaning here. It is translated, line by line, into
//! the text of an Atoll configuration, so that the same checks and limits apply. Faults are reported with the line and the name in the
//! original. Lines without a meaning here are reported and ignored; a malformed line is a fault.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::config::{Config, MAX_FILE_BYTES, Overrules, good_address};
use super::reader::{ConfigFault, ConfigFaults, shown};

/// The folder of the node below `dataDir`. ZooKeeper's own files there are left alone.
const FOLDER: &str = "atoll";
/// The prefix of settings that only Atoll has.
const OURS: &str = "atoll.";
/// The setting that permits listeners without TLS that other machines can reach.
const BEYOND: &str = "atoll.listen.listen_beyond_loopback_without_tls";

/// The setting for how often snapshots and restores may be requested.
const BOTH_INTERVALS: &str = "admin.rateLimiterIntervalInMS";

/// How a value is written in Atoll's configuration.
#[derive(Clone, Copy)]
enum Kind {
    Number,
    /// A number; -1 means the default.
    NumberOrDefault,
    Text,
    /// true or false.
    Flag,
    /// Texts separated by commas.
    List,
}

/// ZooKeeper's name, without the prefix `zookeeper.` that system properties have, then Atoll's table and name.
const KNOWN: &[(&str, &str, &str, Kind)] = &[
    ("tickTime", "zookeeper", "tick_ms", Kind::Number),
    ("minSessionTimeout", "zookeeper", "min_session_timeout_ms", Kind::NumberOrDefault),
    ("maxSessionTimeout", "zookeeper", "max_session_timeout_ms", Kind::NumberOrDefault),
    ("jute.maxbuffer", "zookeeper", "max_frame_bytes", Kind::Number),
    ("maxClientCnxns", "zookeeper", "max_connections_of_address", Kind::Number),
    ("maxCnxns", "zookeeper", "max_connections", Kind::Number),
    ("globalOutstandingLimit", "zookeeper", "max_outstanding", Kind::Number),
    ("connection_throttle_tokens", "zookeeper", "connection_tokens", Kind::Number),
    ("connection_throttle_fill_time", "zookeeper", "connection_fill_every_ms", Kind::Number),
    ("connection_throttle_fill_count", "zookeeper", "connection_fill_count", Kind::Number),
    ("4lw.commands.whitelist", "zookeeper", "words", Kind::List),
    ("DigestAuthenticationProvider.superDigest", "zookeeper", "super_digest", Kind::Text),
    ("X509AuthenticationProvider.superUser", "zookeeper", "x509_super", Kind::Text),
    ("superUser", "zookeeper", "sasl_super", Kind::Text),
    ("ssl.clientAuth", "zookeeper", "tls_client_certificates", Kind::Text),
    ("enforceQuota", "zookeeper", "enforce_quota", Kind::Flag),
    ("readonlymode.enabled", "zookeeper", "read_only_mode", Kind::Flag),
    ("admin.snapshot.enabled", "zookeeper", "admin_snapshot", Kind::Flag),
    ("admin.snapshot.intervalInMS", "zookeeper", "admin_snapshot_every_ms", Kind::Number),
    ("admin.restore.enabled", "zookeeper", "admin_restore", Kind::Flag),
    ("admin.restore.intervalInMS", "zookeeper", "admin_restore_every_ms", Kind::Number),
    ("znode.container.checkIntervalMs", "zookeeper", "container_check_every_ms", Kind::Number),
];

/// Settings that other code than [`KNOWN`] translates.
const BY_HAND: [&str; 15] = [
    "dataDir",
    "clientPort",
    "clientPortAddress",
    "admin.enableServer",
    "admin.serverAddress",
    "admin.serverPort",
    BOTH_INTERVALS,
    "secureClientPort",
    "secureClientPortAddress",
    "ssl.keyStore.location",
    "ssl.trustStore.location",
    "metricsProvider.httpPort",
    "metricsProvider.httpHost",
    "metricsProvider.className",
    BEYOND,
];

/// Settings of ZooKeeper that have no meaning here, with the reason.
const WITHOUT_MEANING: [(&str, &str); 12] = [
    ("dataLogDir", "there is one folder, below dataDir"),
    ("initLimit", "a node that joins late fetches the state, however long that takes"),
    ("syncLimit", "see the table [timings]"),
    ("electionAlg", "there is no election"),
    ("electionPortBindRetry", "there is no election"),
    ("leaderServes", "every node serves"),
    ("cnxTimeout", "see the table [timings]"),
    ("standaloneEnabled", "a file without servers is one node"),
    ("snapCount", "the log is trimmed by itself"),
    ("preAllocSize", "the journal has segments of a fixed size"),
    ("autopurge.snapRetainCount", "the log is trimmed by itself"),
    ("autopurge.purgeInterval", "the log is trimmed by itself"),
];

/// One property.
#[derive(Debug)]
struct Line {
    /// Counted from 1.
    number: usize,
    key: String,
    value: String,
}

/// A file, translated to Atoll's configuration.
#[derive(Debug)]
pub struct Translated {
    /// The configuration.
    pub config: Config,
    /// Notes for the operator, each with the file and the line.
    pub notes: Vec<String>,
}

/// Reads and checks a file.
///
/// # Errors
/// Returns every fault of the file. Nothing was started.
pub fn load(file: &Path, over: &Overrules) -> Result<Translated, ConfigFaults> {
    let fault = |what| ConfigFaults { file: file.to_owned(), faults: vec![ConfigFault { line: None, what }] };
    let size = std::fs::metadata(file).map_err(|e| fault(format!("cannot be read: {e}")))?.len();
    if size > MAX_FILE_BYTES {
        return Err(fault(format!("has {size} bytes; a configuration has {MAX_FILE_BYTES} at most")));
    }
    let text = std::fs::read_to_string(file).map_err(|e| fault(format!("cannot be read: {e}")))?;
    translate(file, &text, over)
}

/// Translates the text of a file. Relative paths in it start at the file's folder.
///
/// # Errors
/// Returns every fault of the text.
pub fn translate(file: &Path, text: &str, over: &Overrules) -> Result<Translated, ConfigFaults> {
    let mut writer = Writer::default();
    let lines = properties(text, &mut writer.faults);
    let mut seen = BTreeMap::new();
    for line in &lines {
        if let Some(before) = seen.insert(line.key.as_str(), line) {
            let (key, before) = (shown(&line.key), before.number);
            writer.fault(line.number, format!("`{key}` is given a second time, first in line {before}"));
        }
    }
    let get = |key: &str| lines.iter().find(|l| l.key == key);
    let members = servers(&lines, &mut writer);
    write_node(file, over, &get, &members, &mut writer);
    write_doors(&get, &members, &mut writer);
    write_admin(&get, &mut writer);
    for line in &lines {
        write_other(line, &mut writer);
    }
    writer.finish(file, over)
}

/// A configuration under construction.
#[derive(Debug, Default)]
struct Writer {
    /// The tables and their settings: each value as Atoll's file has it, and its line and name in the original.
    tables: BTreeMap<String, Vec<(String, String, usize, String)>>,
    peers: Vec<(usize, String, String)>,
    notes: Vec<(usize, String)>,
    faults: Vec<ConfigFault>,
}

impl Writer {
    fn fault(&mut self, line: usize, what: String) {
        self.faults.push(ConfigFault { line: Some(line), what });
    }

    fn note(&mut self, line: usize, what: String) {
        self.notes.push((line, what));
    }

    fn set(&mut self, table: &str, key: &str, value: String, line: usize, original: &str) {
        let rows = self.tables.entry(table.to_owned()).or_default();
        rows.push((key.to_owned(), value, line, original.to_owned()));
    }

    fn set_text(&mut self, table: &str, key: &str, value: &str, line: usize, original: &str) {
        self.set(table, key, quoted(value), line, original);
    }

    fn finish(self, file: &Path, over: &Overrules) -> Result<Translated, ConfigFaults> {
        let Writer { tables, peers, mut notes, mut faults } = self;
        // For each line that is written here, the line and the name in the original.
        let (mut text, mut origins) = (String::new(), Vec::new());
        let mut write = |line: String, origin: Option<(usize, String)>| {
            let _ = writeln!(text, "{line}");
            origins.push(origin);
        };
        for (table, rows) in tables {
            write(format!("[{table}]"), None);
            for (key, value, line, original) in rows {
                write(format!("{key} = {value}"), Some((line, original)));
            }
        }
        for (line, id, address) in peers {
            let origin = || Some((line, format!("server.{id}")));
            write("[[peer]]".to_owned(), origin());
            write(format!("id = {id}"), origin());
            write(format!("address = {}", quoted(&address)), origin());
        }
        let parsed = Config::parse(file, &text, over);
        let parsed = match parsed {
            Ok(config) if faults.is_empty() => Ok(config),
            Ok(_) => Err(Vec::new()),
            Err(wrong) => Err(wrong.faults),
        };
        match parsed {
            Ok(config) => {
                notes.sort();
                let told = |(line, note): (usize, String)| format!("{}:{line}: {note}", file.display());
                Ok(Translated { config, notes: notes.into_iter().map(told).collect() })
            }
            Err(more) => {
                faults.extend(more.into_iter().map(|fault| {
                    let origin = fault.line.and_then(|l| origins.get(l - 1)?.clone());
                    match origin {
                        Some((line, name)) => {
                            ConfigFault { line: Some(line), what: format!("`{name}`: {}", fault.what) }
                        }
                        None => ConfigFault { line: None, what: fault.what },
                    }
                }));
                faults.sort_by_key(|f| f.line.unwrap_or(usize::MAX));
                Err(ConfigFaults { file: file.to_owned(), faults })
            }
        }
    }
}

/// Returns the text as a basic string of TOML.
fn quoted(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns the lines of a Java properties file.
fn properties(text: &str, faults: &mut Vec<ConfigFault>) -> Vec<Line> {
    let mut out = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start();
        if line.trim_end().is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.to_owned();
        // With an odd number of backslashes at its end, a line continues on the next one.
        while whole.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
            whole.pop();
            let Some((_, next)) = lines.next() else { break };
            whole.push_str(next.trim_start());
        }
        match property(&whole) {
            Ok((key, value)) => out.push(Line { number, key, value: value.trim_end().to_owned() }),
            Err(what) => {
                faults.push(ConfigFault { line: Some(number), what: format!("{}: {what}", shown(&whole)) })
            }
        }
    }
    out
}

/// Returns the key and the value of a line.
fn property(line: &str) -> Result<(String, String), &'static str> {
    let (mut key, mut rest) = (String::new(), line);
    while let Some(c) = rest.chars().next() {
        if c == '=' || c == ':' || c.is_whitespace() {
            break;
        }
        let (plain, more) = unescaped(rest)?;
        key.push(plain);
        rest = more;
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    if key.is_empty() {
        return Err("this line has no name; allowed: NAME=VALUE");
    }
    let (mut value, mut rest) = (String::new(), rest);
    while !rest.is_empty() {
        let (plain, more) = unescaped(rest)?;
        value.push(plain);
        rest = more;
    }
    if value.trim().is_empty() {
        return Err("this line has no value; allowed: NAME=VALUE");
    }
    Ok((key, value))
}

/// Returns the first character, and the text after it.
fn unescaped(text: &str) -> Result<(char, &str), &'static str> {
    const BAD: &str = "a backslash is followed by u and four digits, or by another character";
    let mut chars = text.chars();
    let first = chars.next().ok_or(BAD)?;
    if first != '\\' {
        return Ok((first, chars.as_str()));
    }
    let plain = match chars.next().ok_or(BAD)? {
        't' => '\t',
        'n' => '\n',
        'r' => '\r',
        'f' => '\u{c}',
        'u' => {
            let digits = chars.as_str().get(..4).ok_or(BAD)?;
            let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).ok_or(BAD)?;
            chars = chars.as_str()[4..].chars();
            code
        }
        other => other,
    };
    Ok((plain, chars.as_str()))
}

/// A line `server.N=HOST:PEER:ELECTION[:ROLE][;[HOST:]CLIENT]`.
#[derive(Debug)]
struct Server {
    line: usize,
    id: String,
    /// The address for other nodes.
    address: String,
    /// The address for its clients, if configured.
    client: Option<String>,
}

fn servers(lines: &[Line], writer: &mut Writer) -> Vec<Server> {
    const ALLOWED: &str =
        "allowed: HOST:PORT:PORT, then `:participant` or nothing, then `;PORT`, `;HOST:PORT` or nothing";
    let mut out = Vec::new();
    for line in lines {
        let Some(id) = line.key.strip_prefix("server.") else { continue };
        match server(&line.value) {
            Ok((address, client)) => {
                out.push(Server { line: line.number, id: id.to_owned(), address, client });
            }
            Err(what) => {
                let (key, value) = (shown(&line.key), shown(&line.value));
                writer.fault(line.number, format!("`{key}` is {value:?}{what}; {ALLOWED}"));
            }
        }
    }
    out
}

fn server(value: &str) -> Result<(String, Option<String>), &'static str> {
    if value.contains('|') {
        return Err(", which has several addresses");
    }
    let (nodes, client) = match value.split_once(';') {
        Some((nodes, client)) => (nodes.trim(), Some(client.trim())),
        None => (value.trim(), None),
    };
    let nodes = match nodes.rsplit_once(':') {
        Some((nodes, "participant")) => nodes,
        Some((_, "observer")) => return Err(", which is an observer"),
        _ => nodes,
    };
    let (address, election) = nodes.rsplit_once(':').ok_or("")?;
    if election.parse::<u16>().is_err() || !good_address(address, 1) {
        return Err("");
    }
    let client = match client {
        None => None,
        Some(port) if port.parse::<u16>().is_ok() => Some(port.to_owned()),
        Some(at) if good_address(at, 1) => Some(at.to_owned()),
        Some(_) => return Err(""),
    };
    Ok((address.to_owned(), client))
}

type Get<'a> = dyn Fn(&str) -> Option<&'a Line> + 'a;

/// Writes the identity of the node. If there are servers, the file `myid` contains its id.
fn write_node(file: &Path, over: &Overrules, get: &Get<'_>, members: &[Server], writer: &mut Writer) {
    let Some(data) = get("dataDir") else {
        if over.data.is_none() {
            let what = "`dataDir` is missing; allowed: the path of a folder, or `--data DIR`".to_owned();
            writer.faults.push(ConfigFault { line: None, what });
        }
        if let Some(first) = members.first() {
            writer.fault(
                first.line,
                "servers need a `dataDir` with the file `myid`, which says which of them this is".into(),
            );
        }
        return;
    };
    let folder = Path::new(&data.value);
    writer.set_text("node", "data", &folder.join(FOLDER).to_string_lossy(), data.number, "dataDir");
    let folder = file.parent().unwrap_or(Path::new("")).join(folder);
    if folder.join("version-2").is_dir() {
        writer.note(
            data.number,
            format!("ZooKeeper's own data below {} is left alone and not read", folder.display()),
        );
    }
    if members.is_empty() {
        return;
    }
    let myid = folder.join("myid");
    let id = std::fs::read_to_string(&myid).map_err(|e| e.to_string());
    let id = id.map(|id| id.trim().to_owned());
    match id {
        Ok(id) if members.iter().any(|m| m.id == id) => {
            writer.set("node", "id", id, data.number, "dataDir");
        }
        Ok(id) => {
            let (myid, id) = (myid.display(), shown(&id));
            writer.fault(data.number, format!("{myid} says {id:?}, but there is no line `server.{id}`"));
        }
        Err(error) => {
            let myid = myid.display();
            writer
                .fault(data.number, format!("{myid} says which server this is, and cannot be read: {error}"));
        }
    }
    for m in members {
        writer.peers.push((m.line, m.id.clone(), m.address.clone()));
    }
}

/// Writes the listeners. Without an address, ZooKeeper listens on all interfaces; here that needs the operator's explicit permission.
fn write_doors(get: &Get<'_>, members: &[Server], writer: &mut Writer) {
    let id =
        writer.tables.get("node").and_then(|rows| rows.iter().find(|r| r.0 == "id").map(|r| r.1.clone()));
    let me = members.iter().find(|m| Some(&m.id) == id.as_ref());
    if let Some(me) = me {
        writer.set_text("listen", "peer", &me.address, me.line, &format!("server.{}", me.id));
    }
    let beyond = get(BEYOND).is_some_and(|l| l.value == "true");
    let mut door = |key: &str, port: &Line, host: Option<&Line>| {
        let any = if beyond { "0.0.0.0" } else { "127.0.0.1" };
        if host.is_none() && !beyond {
            writer.note(
                port.number,
                format!(
                    "`{}` listens on loopback only, unless there is an address, or `{BEYOND}=true`",
                    port.key
                ),
            );
        }
        let host = host.map_or(any, |h| h.value.as_str());
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
        writer.set_text("listen", key, &format!("{host}:{}", port.value), port.number, &port.key);
    };
    let mut no_door = false;
    if let Some(port) = get("clientPort") {
        door("zookeeper", port, get("clientPortAddress"));
    } else if let Some((me, client)) = me.and_then(|me| Some((me, me.client.as_ref()?))) {
        let port = Line { number: me.line, key: format!("server.{}", me.id), value: client.clone() };
        match client.rsplit_once(':') {
            None => door("zookeeper", &port, None),
            Some((host, client)) => {
                let host = Line { number: me.line, key: port.key.clone(), value: host.to_owned() };
                door("zookeeper", &Line { value: client.to_owned(), ..port }, Some(&host));
            }
        }
    } else {
        no_door = true;
    }
    if let Some(port) = get("secureClientPort") {
        door("zookeeper_tls", port, get("secureClientPortAddress"));
    }
    if let Some(port) = get("metricsProvider.httpPort") {
        door("metrics", port, get("metricsProvider.httpHost"));
    }
    // A PEM file of ZooKeeper contains both the certificate and the key.
    for (name, keys) in
        [("ssl.keyStore.location", &["tls_cert", "tls_key"][..]), ("ssl.trustStore.location", &["tls_ca"])]
    {
        let Some(line) = get(name) else { continue };
        if !line.value.ends_with(".pem") {
            let what =
                format!("`{name}` is {:?}; allowed: a PEM file, whose name ends in .pem", shown(&line.value));
            writer.fault(line.number, what);
            continue;
        }
        keys.iter().for_each(|key| writer.set_text("zookeeper", key, &line.value, line.number, name));
    }
    if no_door {
        writer.set_text("listen", "zookeeper", "", 0, "clientPort");
    }
}

/// Writes the admin server. Without an address it listens on loopback, whatever the other doors do, because anyone who reaches it can see
/// all clients.
fn write_admin(get: &Get<'_>, writer: &mut Writer) {
    let enabled = match get("admin.enableServer") {
        Some(line) if !matches!(line.value.as_str(), "true" | "false") => {
            let what = format!("`{}` is {:?}; allowed: true or false", line.key, shown(&line.value));
            return writer.fault(line.number, what);
        }
        line => line.is_none_or(|line| line.value == "true"),
    };
    if let Some(port) = get("admin.serverPort").filter(|_| enabled) {
        let host = get("admin.serverAddress").map_or("127.0.0.1", |line| line.value.as_str());
        let bare = host.contains(':') && !host.starts_with('[');
        let host = if bare { format!("[{host}]") } else { host.to_owned() };
        let address = format!("{host}:{}", port.value);
        writer.set_text("listen", "zookeeper_admin", &address, port.number, &port.key);
    }
    let Some(both) = get(BOTH_INTERVALS) else { return };
    // Set each one that has no line of its own.
    for (name, key) in [("snapshot", "admin_snapshot_every_ms"), ("restore", "admin_restore_every_ms")] {
        let own = format!("admin.{name}.intervalInMS");
        if get(&own).or_else(|| get(&format!("zookeeper.{own}"))).is_some() {
            continue;
        }
        match number_of(&both.value) {
            Some(n) => writer.set("zookeeper", key, n.to_string(), both.number, &both.key),
            None => {
                let what = format!("`{BOTH_INTERVALS}` is {:?}; allowed: an integer", shown(&both.value));
                return writer.fault(both.number, what);
            }
        }
    }
}

/// Writes any other setting, as listed in [`KNOWN`], or reports that it is ignored.
fn write_other(line: &Line, writer: &mut Writer) {
    let Line { number, key, value } = line;
    let plain = key.strip_prefix("zookeeper.").unwrap_or(key);
    if BY_HAND.contains(&key.as_str()) && key != BEYOND || key.starts_with("server.") {
        return;
    }
    if let Some(ours) = key.strip_prefix(OURS) {
        match ours.rsplit_once('.') {
            Some((table, name)) if !ours.contains(char::is_whitespace) => {
                writer.set(table, name, value.clone(), *number, key);
            }
            _ => {
                writer.fault(*number, format!("`{}` is not a setting; allowed: atoll.TABLE.NAME", shown(key)))
            }
        }
        return;
    }
    if key == "dynamicConfigFile" {
        writer.fault(*number, "`dynamicConfigFile`: the lines `server.N` must be in this file".to_owned());
        return;
    }
    let Some((_, table, name, kind)) = KNOWN.iter().find(|(theirs, ..)| *theirs == plain) else {
        let reason = WITHOUT_MEANING.iter().find(|(name, _)| *name == plain).map(|(_, reason)| *reason);
        let reason = reason.unwrap_or("it has no meaning here, or is not known");
        writer.note(*number, format!("`{}` is ignored: {reason}", shown(key)));
        return;
    };
    match kind {
        Kind::Text => writer.set_text(table, name, value, *number, key),
        Kind::List => {
            let items: Vec<String> = value.split(',').map(|w| quoted(w.trim())).collect();
            writer.set(table, name, format!("[{}]", items.join(", ")), *number, key);
        }
        // In Java, any value that is not true is false. Here such a value is a fault.
        Kind::Flag => match value.to_ascii_lowercase().as_str() {
            flag @ ("true" | "false") => writer.set(table, name, flag.to_owned(), *number, key),
            _ => writer
                .fault(*number, format!("`{}` is {:?}; allowed: true or false", shown(key), shown(value))),
        },
        Kind::NumberOrDefault if value == "-1" => {}
        Kind::Number | Kind::NumberOrDefault => match number_of(value) {
            Some(n) => writer.set(table, name, n.to_string(), *number, key),
            None => {
                let (key, value) = (shown(key), shown(value));
                writer.fault(*number, format!("`{key}` is {value:?}; allowed: an integer"));
            }
        },
    }
}

/// Parses a decimal number, or a hexadecimal one, which system properties allow.
fn number_of(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
