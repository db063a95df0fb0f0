//! The table `[zookeeper]`: options of the door for ZooKeeper's clients.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use atoll_doors::zookeeper::{
    AdminOptions, ClientCertificates, ConnectionThrottle, KNOWN_WORDS, Options, TlsFiles, Users,
};
use toml::de::DeValue;

use super::config::{Tls, path};
use super::jaas;
use super::reader::{Source, Table, text, texts, within};

/// Default session timeouts in ticks, as in ZooKeeper.
const LEAST_TICKS: u64 = 2;
const MOST_TICKS: u64 = 20;

/// Reads the table. Returns None after a fault.
pub fn read(source: &mut Source<'_>, file: &Path, table: &Table<'_>) -> Option<Options> {
    // Every setting is read before the first `?`, so that all faults are found.
    let mut count = |key, least, most| table.read(source, key, within(least, most));
    let of_address = count("max_connections_of_address", 0, 1_000_000);
    let connections = count("max_connections", 0, 1_000_000);
    let frame = count("max_frame_bytes", 1_024, 16 << 20);
    let reply = count("max_reply_bytes", 1 << 20, 1 << 30);
    let watches_of_connection = count("max_watch_bytes_of_connection", 64 << 10, 1 << 32);
    let watches = count("max_watch_bytes", 1 << 20, 1 << 36);
    let of_connection = count("max_outstanding_of_connection", 1, 100_000);
    let outstanding = count("max_outstanding", 0, 10_000_000);
    let tokens = count("connection_tokens", 0, 1_000_000);
    let fill_every = count("connection_fill_every_ms", 1, 60_000);
    let fill_count = count("connection_fill_count", 1, 1_000_000);
    let reap_every = count("container_check_every_ms", 1, 3_600_000);
    let snapshot_every = count("admin_snapshot_every_ms", 0, 86_400_000);
    let restore_every = count("admin_restore_every_ms", 0, 86_400_000);
    let snapshot = table.read(source, "admin_snapshot", |v| v.as_bool());
    let restore = table.read(source, "admin_restore", |v| v.as_bool());
    let words = table.read(source, "words", words);
    let read_only_mode = table.read(source, "read_only_mode", |v| v.as_bool());
    let enforce_quota = table.read(source, "enforce_quota", |v| v.as_bool());
    let super_digest = maybe(source, table, "super_digest", digest);
    let x509_super = maybe(source, table, "x509_super", words_of_a_name);
    let sasl_super = maybe(source, table, "sasl_super", words_of_a_name);
    let sasl_users = read_users(source, file, table);
    let required_schemes = table.read(source, "required_schemes", schemes);
    if let (Some(required), Some(users)) = (&required_schemes, &sasl_users)
        && users.is_empty()
        && required.iter().any(|scheme| scheme == "sasl")
    {
        let what = "`zookeeper.required_schemes` has sasl, and `zookeeper.sasl_users` names nobody, nor does `zookeeper.jaas`; allowed: with users";
        source.fault(table.place("required_schemes"), what.to_owned());
    }
    let timeouts = read_timeouts(source, table);
    let (tick_ms, min_session_timeout_ms, max_session_timeout_ms) = timeouts?;
    let tokens = tokens?;
    let fill_every = Duration::from_millis(fill_every?);
    let throttle = ConnectionThrottle { tokens, fill_every, fill_count: fill_count? };
    let count = |n: u64| usize::try_from(n).ok();
    Some(Options {
        tick_ms,
        min_session_timeout_ms,
        max_session_timeout_ms,
        max_buffer_bytes: count(frame?)?,
        max_reply_bytes: count(reply?)?,
        max_watch_bytes_of_connection: count(watches_of_connection?)?,
        max_watch_bytes: count(watches?)?,
        max_connections_of_address: count(of_address?)?,
        max_connections: count(connections?)?,
        max_outstanding: count(of_connection?)?,
        max_outstanding_of_all: count(outstanding?)?,
        connection_throttle: (tokens > 0).then_some(throttle),
        super_digest: super_digest?,
        enforce_quota: enforce_quota?,
        x509_super: x509_super?,
        sasl_users: sasl_users?,
        sasl_super: sasl_super?,
        required_schemes: required_schemes?,
        read_only_mode: read_only_mode?,
        words: words?,
        reap_every: Duration::from_millis(reap_every?),
        ephemerals_at_once: Options::default().ephemerals_at_once,
        // The host adds it.
        data_folder: None,
        admin: AdminOptions {
            snapshot: snapshot?,
            restore: restore?,
            snapshot_every: Duration::from_millis(snapshot_every?),
            restore_every: Duration::from_millis(restore_every?),
        },
    })
}

/// Reads an optional setting. Returns Some(None) if it is missing, None after a fault.
fn maybe<T>(
    source: &mut Source<'_>,
    table: &Table<'_>,
    key: &'static str,
    read: impl Fn(&DeValue<'_>) -> Option<T>,
) -> Option<Option<T>> {
    if table.place(key).is_none() { Some(None) } else { table.read(source, key, read).map(Some) }
}

fn words_of_a_name(value: &DeValue<'_>) -> Option<String> {
    text(value).filter(|name| !name.is_empty() && !name.contains(char::is_control))
}

/// Reads the users of SASL from the settings and from the JAAS file. None after a fault.
fn read_users(source: &mut Source<'_>, file: &Path, table: &Table<'_>) -> Option<Users> {
    let listed = table.read(source, "sasl_users", users);
    let section = table.read(source, "jaas_section", words_of_a_name);
    let named = maybe(source, table, "jaas", |v| path(file, v));
    let (mut all, section) = (listed?, section?);
    if let Some(jaas) = named? {
        let more = jaas::users(&jaas, &section).and_then(|more| {
            let twice = more.keys().any(|name| all.contains_key(name));
            if twice { Err(jaas::JaasError::Listed) } else { Ok(more) }
        });
        match more {
            Ok(more) => all.extend(more),
            Err(error) => {
                source.fault(table.place("jaas"), format!("`zookeeper.jaas`: {}: {error}", jaas.display()));
                return None;
            }
        }
    }
    Some(Users::new(all))
}

/// Parses a list of strings `NAME:PASSWORD`, with each name at most once.
fn users(value: &DeValue<'_>) -> Option<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for user in texts(value)? {
        let (name, password) = user.split_once(':')?;
        let fine = !name.is_empty() && !password.is_empty() && !user.contains(char::is_control);
        if !fine || out.insert(name.to_owned(), password.to_owned()).is_some() {
            return None;
        }
    }
    Some(out)
}

/// Returns the TLS files of the door: its own, or those of `[tls]`. None if there are none, or after a fault.
pub fn read_tls(
    source: &mut Source<'_>,
    file: &Path,
    table: &Table<'_>,
    nodes: Option<&Tls>,
) -> Option<TlsFiles> {
    let mut pem = |key| {
        let own = maybe(source, table, key, |v| path(file, v).filter(|p| p.is_file()));
        own.flatten()
    };
    let [cert, key, ca, revoked] = ["tls_cert", "tls_key", "tls_ca", "tls_revoked"].map(&mut pem);
    let clients = table.read(source, "tls_client_certificates", |v| match v.as_str()? {
        "need" => Some(ClientCertificates::Need),
        "want" => Some(ClientCertificates::Want),
        "none" => Some(ClientCertificates::None),
        _ => None,
    })?;
    let (cert, key) = match (cert, key) {
        (None, None) => (nodes?.cert.clone(), nodes?.key.clone()),
        (cert, key) => (cert?, key?),
    };
    // The lists are those of an authority.
    let revoked = if ca.is_some() { revoked } else { revoked.or_else(|| nodes?.revoked.clone()) };
    let ca = ca.or_else(|| nodes.map(|tls| tls.ca.clone()));
    let ca = if clients == ClientCertificates::None { ca.unwrap_or_default() } else { ca? };
    Some(TlsFiles { cert, key, ca, revoked, clients })
}

/// Returns whether every client that connects must show a certificate.
pub fn clients_are_known(files: &TlsFiles) -> bool {
    files.clients == ClientCertificates::Need
}

/// Reads the tick and the shortest and longest session timeout, in milliseconds.
fn read_timeouts(source: &mut Source<'_>, table: &Table<'_>) -> Option<(i32, i32, i32)> {
    let or_none = |most| move |v: &DeValue<'_>| within(1_000, most)(v).or_else(|| within(0, 0)(v));
    let tick = table.read(source, "tick_ms", within(100, 60_000));
    let least = table.read(source, "min_session_timeout_ms", or_none(3_600_000));
    let most = table.read(source, "max_session_timeout_ms", or_none(86_400_000));
    let tick = tick?;
    let given = |ms: u64, ticks: u64| if ms == 0 { tick * ticks } else { ms };
    // The default of two short ticks must not be below the lowest value that may be configured.
    let (least, most) = (given(least?, LEAST_TICKS).max(1_000), given(most?, MOST_TICKS));
    if least > most {
        let place = table.place("max_session_timeout_ms").or(table.place("min_session_timeout_ms"));
        source.fault(
            place,
            format!(
                "`zookeeper.min_session_timeout_ms` comes to {least} and `zookeeper.max_session_timeout_ms` to {most}; \
                 allowed: the first is not above the second"
            ),
        );
        return None;
    }
    let ms = |n: u64| i32::try_from(n).ok();
    Some((ms(tick)?, ms(least)?, ms(most)?))
}

/// Parses a list of schemes, each at most once.
fn schemes(value: &DeValue<'_>) -> Option<Vec<String>> {
    let given = texts(value)?;
    let is_known = |scheme: &String| matches!(scheme.as_str(), "digest" | "sasl" | "x509");
    let is_new = |at: usize| !given[..at].contains(&given[at]);
    (given.iter().all(is_known) && (0..given.len()).all(is_new)).then_some(given)
}

fn words(value: &DeValue<'_>) -> Option<Vec<String>> {
    if value.as_str() == Some("*") {
        return Some(vec!["*".to_owned()]);
    }
    texts(value).filter(|words| words.iter().all(|w| w == "*" || KNOWN_WORDS.contains(&w.as_str())))
}

/// Parses `USER:` followed by the base64 form of 20 bytes.
fn digest(value: &DeValue<'_>) -> Option<String> {
    let given = text(value)?;
    let (user, hash) = given.split_once(':')?;
    let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let (hash, padded) = (hash.strip_suffix('=')?, hash.len() == 28);
    (!user.is_empty() && !user.contains(char::is_control) && padded && hash.bytes().all(letters))
        .then(|| given.clone())
}
