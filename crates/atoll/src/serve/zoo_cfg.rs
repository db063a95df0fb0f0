//! `--zoo-cfg FILE`: reads the configuration of a ZooKeeper server, as far as it has a meaning here. It is translated, line by line, into
//! the text of an Atoll configuration, so that the same checks and limits apply. Faults are reported with the line and the name in the
//! original. Lines without a meaning here are reported and ignored; a malformed line is a fault.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::config::{Config, MAX_FILE_BYTES, Overrules, good_address};
use super::properties::{Line, properties};
use super::reader::{ConfigFault, ConfigFaults, shown};
use super::zoo_cfg_names::{
    BEYOND, BOTH_INTERVALS, BY_HAND, DEMANDS, DYNAMIC_FILE, KNOWN, Kind, PROVIDERS, WITHOUT_MEANING,
};

/// The folder of the node below `dataDir`. ZooKeeper's own files there are left alone.
const FOLDER: &str = "atoll";
/// The prefix of settings that only Atoll has.
const OURS: &str = "atoll.";
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
    let mut lines = properties(text, &mut writer.faults);
    lines.extend(dynamic_lines(file, &lines, &mut writer));
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
    write_required_schemes(&get, &mut writer);
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

/// Returns the lines of the file with the servers. They count as being where the file is named.
fn dynamic_lines(file: &Path, lines: &[Line], writer: &mut Writer) -> Vec<Line> {
    let Some(named) = lines.iter().find(|line| line.key == DYNAMIC_FILE) else { return Vec::new() };
    let path = file.parent().unwrap_or(Path::new("")).join(&named.value);
    let fault = |what: String| format!("`{DYNAMIC_FILE}`: {}: {what}", path.display());
    let size = std::fs::metadata(&path).map(|of| of.len());
    let text = match size {
        Ok(bytes) if bytes > MAX_FILE_BYTES => {
            Err(format!("it has {bytes} bytes; at most {MAX_FILE_BYTES} are allowed"))
        }
        Ok(_) => std::fs::read_to_string(&path).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let mut faults = Vec::new();
    let mut found = match text {
        Ok(text) => properties(&text, &mut faults),
        Err(error) => {
            writer.fault(named.number, fault(error));
            return Vec::new();
        }
    };
    for ConfigFault { line, what } in faults {
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        writer.fault(named.number, fault(format!("{line}{what}")));
    }
    // ZooKeeper writes down which version of the servers it is.
    found.retain(|line| line.key != "version");
    for line in found.iter_mut() {
        if !line.key.starts_with("server.") {
            let (number, key) = (line.number, shown(&line.key));
            writer
                .fault(named.number, fault(format!("line {number}: `{key}`; allowed: server.N and version")));
        }
        line.number = named.number;
    }
    found.retain(|line| line.key.starts_with("server."));
    found
}

/// Returns whether a value is true; notes a fault if it is neither true nor false.
fn flag(line: &Line, writer: &mut Writer) -> bool {
    match line.value.to_ascii_lowercase().as_str() {
        "true" => return true,
        "false" => {}
        _ => {
            let what = format!("`{}` is {:?}; allowed: true or false", line.key, shown(&line.value));
            writer.fault(line.number, what);
        }
    }
    false
}

/// Writes which identities clients must prove. A file that demands one is never served to anonymous clients.
fn write_required_schemes(get: &Get<'_>, writer: &mut Writer) {
    let named = |name: &str| get(name).or_else(|| get(&format!("zookeeper.{name}")));
    let mut required: Vec<String> = Vec::new();
    let mut at = None;
    if let Some(line) = named("sessionRequireClientSASLAuth")
        && flag(line, writer)
    {
        (required, at) = (vec!["sasl".to_owned()], Some(line));
    }
    if let Some(line) = named("requireClientAuthScheme") {
        (required, at) = (vec![line.value.clone()], Some(line));
    }
    if let Some(line) = named("enforce.auth.enabled")
        && flag(line, writer)
    {
        let Some(schemes) = named("enforce.auth.schemes") else {
            let what = "`enforce.auth.enabled` needs `enforce.auth.schemes`; allowed: digest, sasl and x509";
            return writer.fault(line.number, what.to_owned());
        };
        required = schemes.value.split(',').map(|scheme| scheme.trim().to_owned()).collect();
        at = Some(schemes);
    }
    if let Some(line) = at {
        let items: Vec<String> = required.iter().map(|scheme| quoted(scheme)).collect();
        let value = format!("[{}]", items.join(", "));
        writer.set("zookeeper", "required_schemes", value, line.number, &line.key);
    }
}

/// Reports that a line is ignored. One that demands what is not done here is a fault.
fn write_ignored(Line { number, key, value }: &Line, plain: &str, writer: &mut Writer) {
    let is = |name: &str| plain == name || (name.ends_with('.') && plain.starts_with(name));
    if let Some((_, harmless, instead)) = DEMANDS.iter().find(|(name, ..)| *name == plain) {
        if !value.eq_ignore_ascii_case(harmless) {
            writer.fault(*number, format!("`{}` cannot be done: {instead}", shown(key)));
        }
        return;
    }
    if plain.starts_with("authProvider") {
        let class = value.rsplit('.').next().unwrap_or_default();
        if !PROVIDERS.contains(&class) {
            let what =
                format!("`{}` is a class of Java; allowed: those that ZooKeeper brings along", shown(key));
            writer.fault(*number, what);
        }
        return;
    }
    let reason = match WITHOUT_MEANING.iter().find(|(name, _)| is(name)) {
        Some((_, reason)) => format!("it has no meaning here: {reason}"),
        None => "it is not known as a setting of ZooKeeper".to_owned(),
    };
    writer.note(*number, format!("`{}` is ignored: {reason}", shown(key)));
}

/// Writes any other setting, as listed in [`KNOWN`], or reports that it is ignored.
fn write_other(line: &Line, writer: &mut Writer) {
    let Line { number, key, value } = line;
    let plain = key.strip_prefix("zookeeper.").unwrap_or(key);
    let by_hand = BY_HAND.contains(&key.as_str()) || BY_HAND.contains(&plain);
    if by_hand && key != BEYOND || key.starts_with("server.") {
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
    let Some((_, table, name, kind)) = KNOWN.iter().find(|(theirs, ..)| *theirs == plain) else {
        return write_ignored(line, plain, writer);
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
