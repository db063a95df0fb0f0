//! A connection to one of the servers. The client connects again by itself. A server that confirms nothing, although its connection holds,
//! is left for another one: it may be parted from the others.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Real time: this is about a real network. The simulator never comes here.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ReconnectToServer, Server};
use atoll_core::sync::lock;
use tokio::sync::Mutex;

use super::requests;
use crate::service::{Answer, Fault, Request, Stream};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A server that does not answer two of these is left.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to connect again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// A server is left after so many writes in a row that it did not confirm, and after this time. A stream without a leader has another one
/// within ten seconds, and no server serves it before; others may append first for a while.
const UNSERVED: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(3);
/// What the environment of a node may hold, for all log services.
const USER: &str = "ATOLL_LOG_SERVICE_USER";
const PASSWORD: &str = "ATOLL_LOG_SERVICE_PASSWORD";
const TOKEN: &str = "ATOLL_LOG_SERVICE_TOKEN";
/// Files: the certificate of the authority that signed the servers' certificates, and the certificate and the key of this node.
const CA: &str = "ATOLL_LOG_SERVICE_CA";
const CERTIFICATE: &str = "ATOLL_LOG_SERVICE_CERTIFICATE";
const KEY: &str = "ATOLL_LOG_SERVICE_KEY";

/// A connection, which is opened by the first request.
pub(super) struct Connection {
    servers: String,
    client: Mutex<Option<Client>>,
    writes: std::sync::Mutex<Writes>,
}

/// The writes in a row that the server did not confirm.
#[derive(Debug, Default)]
struct Writes {
    failed: u32,
    /// When the first of them failed.
    since: Option<Instant>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.servers)
    }
}

impl Connection {
    pub(super) fn new(servers: &str) -> Self {
        Connection {
            servers: servers.to_owned(),
            client: Mutex::default(),
            writes: std::sync::Mutex::default(),
        }
    }

    /// Returns a client with a connection.
    async fn client(&self) -> Result<Client, Fault> {
        let mut client = self.client.lock().await;
        let open = match &*client {
            Some(open) => open.clone(),
            None => {
                let open = connect(&self.servers).await?;
                client.insert(open).clone()
            }
        };
        match open.connection_state() {
            State::Connected => Ok(open),
            State::Pending | State::Disconnected => Err(Fault::NotReached),
        }
    }

    pub(super) async fn ask(
        &self,
        stream: &Stream,
        request: Request,
        timeout: Duration,
    ) -> Result<Answer, Fault> {
        let (client, is_read) = (self.client().await?, request.is_read());
        let asked = requests::ask(&client, stream, request, timeout);
        let answer = tokio::time::timeout(timeout, asked).await.unwrap_or(Err(Fault::NoAnswer));
        if !is_read && self.is_to_be_left(answer.is_ok()) {
            tracing::info!(
                servers = self.servers,
                "a server of the log service does not serve; trying another one"
            );
            // An error says that the client is closed, which shows in the next request.
            let _ = client.force_reconnect().await;
        }
        answer
    }

    /// Returns whether to leave the server, after a write that it confirmed, or did not. Reads prove nothing: a server that is parted from
    /// the others answers them. Nor does a refusal.
    fn is_to_be_left(&self, is_confirmed: bool) -> bool {
        let mut writes = lock(&self.writes);
        if is_confirmed {
            *writes = Writes::default();
            return false;
        }
        writes.failed += 1;
        let since = *writes.since.get_or_insert_with(Instant::now);
        let leave = writes.failed >= UNSERVED && since.elapsed() > PATIENCE;
        if leave {
            *writes = Writes::default();
        }
        leave
    }

    /// Waits until there may be a message of the log above a sequence.
    pub(super) async fn news(&self, stream: &Stream, above: u64) -> Result<(), Fault> {
        requests::news(&self.client().await?, stream, above).await
    }
}

/// Returns the server to connect to in a turn. The client would take one with the fewest failed attempts: again the one that was just left,
/// if it accepts connections and the others were down once. None before the first connection, for which the client tries all of them.
fn next_server(servers: &[Server], turn: usize) -> Option<ReconnectToServer> {
    let is_first = !servers.iter().any(|server| server.did_connect);
    let next = servers.get(turn.checked_rem(servers.len())?).filter(|_| !is_first)?;
    Some(ReconnectToServer { addr: next.addr.clone(), delay: None })
}

/// Connects with the credentials in the environment.
async fn connect(servers: &str) -> Result<Client, Fault> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let turn = AtomicUsize::new(0);
    let mut options = ConnectOptions::new()
        .name("atoll")
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING_EVERY)
        .reconnect_delay_callback(|attempts| {
            RECONNECT_PAUSE
                .min(Duration::from_millis(20) * u32::try_from(attempts).unwrap_or(u32::MAX).min(64))
        })
        .reconnect_to_server_callback(move |servers, _| {
            let next = next_server(&servers, turn.fetch_add(1, Ordering::Relaxed));
            async move { next }
        })
        .event_callback(|event| async move { tracing::debug!(%event, "log service") });
    if let (Some(user), Some(password)) = (set(USER), set(PASSWORD)) {
        options = options.user_and_password(user, password);
    }
    if let Some(token) = set(TOKEN) {
        options = options.token(token);
    }
    // The client's TLS takes the provider of the process. An error says that the process has one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let Some(ca) = set(CA) {
        options = options.require_tls(true).add_root_certificates(ca.into());
    }
    if let (Some(certificate), Some(key)) = (set(CERTIFICATE), set(KEY)) {
        options = options.add_client_certificate(certificate.into(), key.into());
    }
    let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
    options.connect(servers).await.map_err(|error| match error.kind() {
        ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::Tls => Fault::Credentials,
        _ => Fault::NotReached,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_its_turn_whatever_it_did_before() {
        let server = |host: &str, failed_attempts: usize, did_connect: bool| Server {
            addr: host.parse().unwrap(),
            failed_attempts,
            did_connect,
            is_discovered: false,
            last_error: None,
        };
        let known = [server("a:1", 7, false), server("b:1", 0, true), server("c:1", 2, false)];
        let hosts: Vec<String> =
            (0..4).map(|turn| next_server(&known, turn).unwrap().addr.host().to_owned()).collect();
        assert_eq!(hosts, ["a", "b", "c", "a"]);
        let new = [server("a:1", 0, false), server("b:1", 0, false)];
        assert!(next_server(&new, 0).is_none() && next_server(&[], 0).is_none());
    }

    #[test]
    fn a_server_is_left_after_some_time_without_a_confirmed_write() {
        let connection = Connection::new("host:1");
        assert!(!(0..100).any(|_| connection.is_to_be_left(false)), "it may only be without a leader");
        lock(&connection.writes).since = Instant::now().checked_sub(PATIENCE * 2);
        assert!(connection.is_to_be_left(false));
        assert!(!connection.is_to_be_left(false), "the next one has its time, too");
        lock(&connection.writes).since = Instant::now().checked_sub(PATIENCE * 2);
        assert!(
            !connection.is_to_be_left(true) && !connection.is_to_be_left(false),
            "a confirmed write counts"
        );
    }
}
