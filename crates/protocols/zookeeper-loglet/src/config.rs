//! The configuration of a loglet: where the ensemble is, and under which znode it keeps the loglet.

use bytes::{Bytes, BytesMut};

use atoll_contract::PlanError;
use atoll_core::{Decode, DecodeError, Encode, Reader};

/// Version of the byte form.
const FORMAT: u8 = 2;
/// The one before it, which has no token.
const WITHOUT_TOKEN: u8 = 1;
/// The longest list of servers, in bytes.
const MAX_CONNECT_BYTES: usize = 1024;
/// The longest path of the root, in bytes.
const MAX_ROOT_BYTES: usize = 256;

/// Where a loglet is. It holds no secrets: it is in the chain, and `atoll chain show` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperConfig {
    /// The servers of the ensemble, as `host:port,host:port`, without a path.
    pub connect: String,
    /// The znode under which everything is, such as `/atoll`. Two clusters of Atoll need different ones.
    pub root: String,
    /// Names a znode that was created there when the loglet was planned. An ensemble without it is another one, or has lost its data, and
    /// must not get an empty loglet in the place of this one. None in chains of programs before there were tokens.
    pub token: Option<u64>,
}

impl ZooKeeperConfig {
    /// Returns a configuration without a token, or why there can be none.
    pub fn new(connect: &str, root: &str) -> Result<Self, PlanError> {
        if !are_servers(connect) {
            let allowed = "give the servers of the ensemble as host:port,host:port, without a path (see option \"root\")";
            return Err(PlanError::Invalid { what: "option \"connect\"", allowed });
        }
        if !is_root(root) {
            let allowed = "give a path such as /atoll, of names of letters, digits, '-', '_' and '.', other than /zookeeper";
            return Err(PlanError::Invalid { what: "option \"root\"", allowed });
        }
        Ok(ZooKeeperConfig { connect: connect.to_owned(), root: root.to_owned(), token: None })
    }
}

fn are_servers(connect: &str) -> bool {
    let is_server = |server: &str| {
        let usable = |c: char| c.is_ascii_alphanumeric() || "-._[]:%".contains(c);
        let port = server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        server.chars().all(usable) && port.is_some_and(|(host, port)| !host.is_empty() && port > 0)
    };
    connect.len() <= MAX_CONNECT_BYTES && connect.split(',').all(is_server)
}

fn is_root(root: &str) -> bool {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = |name: &str| !["", ".", ".."].contains(&name) && name.chars().all(usable);
    let Some(names) = root.strip_prefix('/') else { return false };
    root.len() <= MAX_ROOT_BYTES && names.split('/').all(is_name) && !names.split('/').eq(["zookeeper"])
}

impl Encode for ZooKeeperConfig {
    fn encode(&self, out: &mut BytesMut) {
        self.token.map_or(WITHOUT_TOKEN, |_| FORMAT).encode(out);
        self.connect.encode(out);
        self.root.encode(out);
        if let Some(token) = self.token {
            token.encode(out);
        }
    }
}

impl Decode for ZooKeeperConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            format @ (WITHOUT_TOKEN | FORMAT) => {
                let (connect, root) = (String::decode(from)?, String::decode(from)?);
                let token = if format == FORMAT { Some(u64::decode(from)?) } else { None };
                let config = ZooKeeperConfig { connect, root, token };
                if are_servers(&config.connect) && is_root(&config.root) {
                    return Ok(config);
                }
                let (what, allowed) = ("place of a loglet in ZooKeeper", "servers, and a root");
                Err(DecodeError::Invalid { what, value: 0, allowed })
            }
            n => Err(DecodeError::Invalid {
                what: "version of the configuration of a loglet in ZooKeeper",
                value: n.into(),
                allowed: "1 and 2",
            }),
        }
    }
}

pub(crate) fn parse(config: &Bytes) -> Result<ZooKeeperConfig, DecodeError> {
    ZooKeeperConfig::from_bytes(config.clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked_before_anything_is_sealed() {
        for (connect, root) in [("a:2181", "/atoll"), ("a:1,10.0.0.7:2,[::1]:3", "/a/b.c")] {
            let config = ZooKeeperConfig::new(connect, root).unwrap();
            let with_token = ZooKeeperConfig { token: Some(7), ..config.clone() };
            assert_eq!(parse(&with_token.to_bytes()), Ok(with_token));
            // As programs before there were tokens wrote it.
            let bytes = config.to_bytes();
            assert_eq!((bytes[0], parse(&bytes)), (1, Ok(config)));
        }
        for connect in ["", "a", "a:", ":1", "a:0", "a:70000", "a:1,", "a:1/atoll", "user@a:1", "a:1 b:2"] {
            assert!(ZooKeeperConfig::new(connect, "/atoll").is_err(), "{connect:?}");
        }
        for root in ["", "/", "atoll", "/atoll/", "/a//b", "/a/../b", "/zookeeper", "/a b"] {
            assert!(ZooKeeperConfig::new("a:1", root).is_err(), "{root:?}");
        }
        let planted = ZooKeeperConfig { connect: "a:1".into(), root: "/a/../b".into(), token: None };
        assert!(parse(&planted.to_bytes()).is_err(), "what is decoded is checked, too");
    }
}
