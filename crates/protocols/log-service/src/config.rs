//! The configuration of a loglet: where the service is, and which stream is the loglet's.

use bytes::{Bytes, BytesMut};

use atoll_contract::PlanError;
use atoll_core::{Decode, DecodeError, Encode, Reader};

use crate::service::Stream;

/// Version of the byte form.
const FORMAT: u8 = 1;
/// The longest list of servers, in bytes.
const MAX_SERVERS_BYTES: usize = 1024;
/// The longest prefix, in bytes.
const MAX_PREFIX_BYTES: usize = 64;
/// The most replicas of a stream.
pub const MAX_REPLICAS: u8 = 5;
/// What stands for the memory of this process, in tests.
pub(crate) const MEMORY: &str = "memory:1";

/// Where a loglet is. It never contains a secret: credentials come from the environment of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogServiceConfig {
    /// Servers of the service, as `host:port,host:port`. The others are found from there.
    pub servers: String,
    /// What the names of streams and subjects begin with. Two clusters of Atoll may have the same one.
    pub prefix: String,
    /// Names the stream of this loglet, and no other, ever.
    pub token: u128,
    /// How many servers keep the stream.
    pub replicas: u8,
}

impl LogServiceConfig {
    /// Returns the stream.
    pub fn stream(&self) -> Stream {
        Stream {
            name: format!("{}-{:032x}", self.prefix, self.token),
            subject: format!("{}.{:032x}", self.prefix, self.token),
        }
    }
}

/// Refuses servers or a prefix that cannot be any.
pub(crate) fn check(servers: &str, prefix: &str) -> Result<(), PlanError> {
    if !are_servers(servers) {
        let allowed =
            "give servers as host:port,host:port; credentials come from the environment of each node";
        return Err(PlanError::Invalid { what: "option \"servers\"", allowed });
    }
    if !is_prefix(prefix) {
        let allowed = "give 1 to 64 letters, digits, '-' and '_'";
        return Err(PlanError::Invalid { what: "option \"prefix\"", allowed });
    }
    Ok(())
}

fn are_servers(servers: &str) -> bool {
    let is_server = |server: &str| {
        let usable = |c: char| c.is_ascii_alphanumeric() || "-._[]:%".contains(c);
        let port = server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        server.chars().all(usable) && port.is_some_and(|(host, port)| !host.is_empty() && port > 0)
    };
    servers.len() <= MAX_SERVERS_BYTES && servers.split(',').all(is_server)
}

fn is_prefix(prefix: &str) -> bool {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    (1..=MAX_PREFIX_BYTES).contains(&prefix.len()) && prefix.chars().all(usable)
}

impl Encode for LogServiceConfig {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.servers.encode(out);
        self.prefix.encode(out);
        self.token.encode(out);
        self.replicas.encode(out);
    }
}

impl Decode for LogServiceConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            FORMAT => {}
            n => {
                let what = "version of the configuration of a loglet in a log service";
                return Err(DecodeError::Invalid { what, value: n.into(), allowed: "1" });
            }
        }
        let (servers, prefix) = (String::decode(from)?, String::decode(from)?);
        let (token, replicas) = (u128::decode(from)?, u8::decode(from)?);
        let invalid =
            |what, value, allowed| -> Result<Self, _> { Err(DecodeError::Invalid { what, value, allowed }) };
        if !are_servers(&servers) || !is_prefix(&prefix) {
            return invalid("place of a loglet in a log service", 0, "servers, and a prefix");
        }
        if !(1..=MAX_REPLICAS).contains(&replicas) {
            return invalid("replicas of a stream", replicas.into(), "1 to 5");
        }
        Ok(LogServiceConfig { servers, prefix, token, replicas })
    }
}

pub(crate) fn parse(config: &Bytes) -> Result<LogServiceConfig, DecodeError> {
    LogServiceConfig::from_bytes(config.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked_before_anything_is_sealed() {
        let config = |servers: &str, prefix: &str| LogServiceConfig {
            servers: servers.to_owned(),
            prefix: prefix.to_owned(),
            token: 0xab,
            replicas: 3,
        };
        for (servers, prefix) in [("a:4222", "atoll"), ("a:1,10.0.0.7:2,[::1]:3", "Reef-1_b"), (MEMORY, "a")]
        {
            assert_eq!(check(servers, prefix), Ok(()));
            let config = config(servers, prefix);
            assert_eq!(parse(&config.to_bytes()), Ok(config));
        }
        for servers in
            ["", "a", "a:", ":1", "a:0", "a:70000", "a:1,", "nats://a:1", "user:secret@a:1", "a:1 b:2"]
        {
            assert!(check(servers, "atoll").is_err(), "{servers:?}");
        }
        for prefix in ["", "a.b", "a*", "a>", "a b", "$JS", &"a".repeat(65)] {
            assert!(check("a:1", prefix).is_err(), "{prefix:?}");
            assert!(parse(&config("a:1", prefix).to_bytes()).is_err(), "what is decoded is checked, too");
        }
        let stream = config("a:1", "reef").stream();
        assert_eq!(stream.name, "reef-000000000000000000000000000000ab");
        assert_eq!(stream.subject, "reef.000000000000000000000000000000ab");
    }
}
