//! The settings of a client.

use std::time::Duration;

/// The settings of a client. The defaults suit a cluster within one data centre.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time limit of a whole call, over all addresses and attempts; 1 ms to 1 day. Calls that reconfigure a log or copy data
    /// have longer limits. Too small: errors during a failover that the client could have waited for. Too large: a cluster that is
    /// permanently down is reported late.
    pub operation_timeout: Duration,
    /// The time limit of one attempt of a short call (check tail, trim, show, status). Also how long a node may acknowledge no
    /// append at all before another one is tried; 10 ms to 1 hour. Too small: calls move between nodes that are only busy. Too
    /// large: a node that is cut off from the others uses up the time of the whole operation.
    pub attempt_timeout: Duration,
    /// The time limit for establishing a connection; 1 ms to 1 minute.
    pub connect_timeout: Duration,
    /// A client that has never reached any node gives up after this time; at most `operation_timeout`. Too small: it does not wait
    /// for a cluster that is just starting. Too large: a wrong address is reported late.
    pub first_contact: Duration,
    /// A node counts as dead if appends are unanswered and nothing was received from it for this long; 150 ms to 1 minute. A live
    /// node sends a reply at least every 50 ms. The more bytes are unanswered, the longer the limit, as for a connection of 2 MB/s.
    /// Too small: appends are resent unnecessarily. Too large: a stopped node is noticed late.
    pub silence: Duration,
    /// The pause after all addresses have failed in a row: at first `backoff_min`, doubled each time, up to `backoff_max`. At least
    /// 1 ms.
    pub backoff_min: Duration,
    /// See `backoff_min`; at most 10 s.
    pub backoff_max: Duration,
    /// The maximum number of unacknowledged payload bytes per log; 1 MiB to 1 GiB. Further appends wait for room.
    pub unsettled_bytes: usize,
    /// How long the connection for the appends to a log may be idle before it is closed; 50 ms to 1 hour. The next append opens another
    /// one. Too small: appends that come now and then wait for a connection. Too large: a client that appends to many logs in turn uses
    /// up the connections that a node grants to its address, 128 at most, and its other calls fail.
    pub append_idle: Duration,
    /// TLS, if the servers require it.
    pub tls: Option<Tls>,
    /// A token, if grants are to its bearer.
    pub token: Option<Token>,
}

/// A token. Whoever has it may do what is granted to its bearer.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Creates it from its text, with or without white space around it.
    pub fn new(text: &str) -> Self {
        Token(text.trim().to_owned())
    }

    /// Returns its text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It must not appear in logs.
        f.write_str("Token")
    }
}

/// TLS for connections to the servers, in PEM format.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificates of the authorities that signed the servers' certificates.
    pub ca: Vec<u8>,
    /// The client's certificate and key, if the servers require them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the servers' certificates, if it is not the host in the address.
    pub domain: Option<String>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not appear in logs.
        f.debug_struct("Tls").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            operation_timeout: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            first_contact: Duration::from_secs(5),
            silence: Duration::from_millis(300),
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_millis(200),
            unsettled_bytes: 64 * 1024 * 1024,
            append_idle: Duration::from_secs(2),
            tls: None,
            token: None,
        }
    }
}

impl Options {
    /// Returns the settings with every value moved into its bounds.
    pub(crate) fn bounded(mut self) -> Self {
        let ms = Duration::from_millis;
        self.operation_timeout = self.operation_timeout.clamp(ms(1), Duration::from_secs(86_400));
        self.attempt_timeout =
            self.attempt_timeout.clamp(ms(10), Duration::from_secs(3600)).min(self.operation_timeout);
        self.first_contact = self.first_contact.min(self.operation_timeout);
        self.connect_timeout = self.connect_timeout.clamp(ms(1), Duration::from_secs(60));
        self.silence = self.silence.clamp(ms(150), Duration::from_secs(60));
        self.backoff_max = self.backoff_max.clamp(ms(1), Duration::from_secs(10));
        self.backoff_min = self.backoff_min.clamp(ms(1), self.backoff_max);
        self.append_idle = self.append_idle.clamp(ms(50), Duration::from_secs(3600));
        self.unsettled_bytes = self.unsettled_bytes.clamp(1 << 20, 1 << 30);
        self
    }

    /// Returns the pause before round `round` (from 0) through all addresses.
    pub(crate) fn backoff(&self, round: u32) -> Duration {
        self.backoff_min.saturating_mul(1 << round.min(16)).min(self.backoff_max)
    }
}
