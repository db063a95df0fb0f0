//! Settings of a client.

use std::time::Duration;

/// How a client behaves. The defaults suit a cluster within one data centre.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call may take in all, over all addresses and attempts; 1 ms to 1 day. Too small: errors during a
    /// failover that would have been waited out. Too large: a cluster that is down for good is reported late.
    pub operation_timeout: Duration,
    /// How long one attempt of a short call (check tail, trim, show, status) may take, and how long a node may acknowledge
    /// no append at all before another is tried; 10 ms to 1 hour. Too small: calls wander between nodes that are only busy.
    /// Too large: a node that is cut off from the others costs the whole operation.
    pub attempt_timeout: Duration,
    /// How long a connection may take to come up; 1 ms to 1 minute.
    pub connect_timeout: Duration,
    /// A client that never reached any node gives up after this; at most `operation_timeout`. Too small: a cluster that is
    /// just starting is not waited for. Too large: a wrong address is reported late.
    pub first_contact: Duration,
    /// With appends unanswered and nothing heard for this long, the node counts as dead; 150 ms to 1 minute (it says
    /// something every 50 ms). With much unanswered it has longer, as for a connection of 2 MB/s. Too small: appends are sent
    /// again for nothing. Too large: a stopped node is noticed late.
    pub silence: Duration,
    /// Wait after all addresses failed in a row: from `backoff_min`, doubled each time, up to `backoff_max`.
    pub backoff_min: Duration,
    /// See `backoff_min`; at most 10 s.
    pub backoff_max: Duration,
    /// Most payload bytes that wait for acknowledgement per log; 1 MiB to 1 GiB. More appends wait for room.
    pub unsettled_bytes: usize,
    /// TLS, if the servers want it.
    pub tls: Option<Tls>,
}

/// TLS towards the servers, in PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Certificates of the authorities that signed the servers' certificates.
    pub ca: Vec<u8>,
    /// The client's certificate and key, if the servers ask for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the servers' certificates, where it is not the host of the address.
    pub domain: Option<String>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
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
            tls: None,
        }
    }
}

impl Options {
    /// The same with every value moved into its bounds.
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
        self.unsettled_bytes = self.unsettled_bytes.clamp(1 << 20, 1 << 30);
        self
    }

    /// The wait before round `round` (from 0) through all addresses.
    pub(crate) fn backoff(&self, round: u32) -> Duration {
        self.backoff_min.saturating_mul(1 << round.min(16)).min(self.backoff_max)
    }
}
