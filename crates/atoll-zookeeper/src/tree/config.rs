//! `/zookeeper/config`: the members in ZooKeeper's format, so that clients that follow it (`config -w`, `updateServerList`) find
//! the nodes that serve them.
//!
//! The set of nodes is known only outside of this state. Each node's door announces its node with a command, and the doors remove
//! nodes that are no longer members. All replicas therefore have the same text with the same version, and its watches fire
//! everywhere.

use std::fmt::Write as _;

use bytes::Bytes;

use super::key;
use super::state::{Keys, TreeState, length};
use crate::command::{Announce, Forget};
use crate::event::{Change, Event};
use crate::jute::codes::ErrorCode;
use crate::jute::{Jute, JuteError, record};
use crate::path;

/// Most nodes in the list. A cluster never has this many members.
const MAX_SERVERS: usize = 255;
/// Longest address (host name and port), in bytes.
const MAX_ADDRESS_BYTES: usize = 300;

record! {
    /// A node that serves ZooKeeper clients, as it is stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Server<'a> {
        /// The address for other nodes, as host:port.
        peer: &'a str,
        /// The address for clients, as host:port.
        client: &'a str,
    }
}

/// Returns whether a text is host:port, without characters that would begin a new line or field.
fn is_address(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_graphic() && !matches!(c, ';' | '=' | ',' | '|');
    text.len() <= MAX_ADDRESS_BYTES
        && text.chars().all(fine)
        && text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Writes a line of the text. There is one port between nodes, where ZooKeeper has two.
fn write_line(id: u32, server: &Server<'_>, out: &mut String) {
    let port = server.peer.rsplit_once(':').map_or("", |(_, port)| port);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "server.{id}={}:{port}:participant;{}", server.peer, server.client);
}

impl<K: Keys> TreeState<'_, K> {
    /// Records the addresses at which a node serves clients.
    ///
    /// # Errors
    /// NodeExists: these addresses are already recorded. BadArguments: an address is invalid, or there are too many nodes.
    pub fn announce(&mut self, asked: Announce<'_>) -> Result<(), ErrorCode> {
        let id = u32::try_from(asked.node).map_err(|_| ErrorCode::BadArguments)?;
        if !is_address(asked.peer) || !is_address(asked.client) {
            return Err(ErrorCode::BadArguments);
        }
        let (key, value) = (key::server(id), Server { peer: asked.peer, client: asked.client }.to_vec());
        match self.keys.get(&key) {
            Some(before) if before == value => return Err(ErrorCode::NodeExists),
            None if self.keys.first(&key::servers(), MAX_SERVERS).len() == MAX_SERVERS => {
                return Err(ErrorCode::BadArguments);
            }
            _ => {}
        }
        self.keys.put(&key, value);
        self.write_config()
    }

    /// Removes nodes that are no longer members.
    ///
    /// # Errors
    /// NoNode: none of them is listed.
    pub fn forget(&mut self, asked: &Forget) -> Result<(), ErrorCode> {
        let mut any = false;
        for id in asked.nodes.iter().filter_map(|id| u32::try_from(*id).ok()) {
            let key = key::server(id);
            any |= self.keys.get(&key).is_some();
            self.keys.delete(&key);
        }
        if any { self.write_config() } else { Err(ErrorCode::NoNode) }
    }

    fn write_config(&mut self) -> Result<(), ErrorCode> {
        let mut text = String::new();
        for (key, value) in self.keys.first(&key::servers(), MAX_SERVERS) {
            let (id, server) = listed(&key, &value).unwrap_or_else(|e| panic!("a server: {e}"));
            write_line(id, &server, &mut text);
        }
        let _ = write!(text, "version={:x}", self.zxid);
        let mut node = self.need(path::CONFIG)?;
        let before = length(node.data.length());
        node.data = self.place(path::CONFIG, &node.data, Some(text.as_bytes()));
        self.counters.bytes += length(node.data.length()) - before;
        node.version = node.version.wrapping_add(1);
        (node.mzxid, node.mtime) = (self.zxid, self.time_ms);
        self.put_node(path::CONFIG, &node);
        self.keys.emit(Event::Node {
            change: Change::DataSet,
            path: path::CONFIG.to_owned(),
            zxid: self.zxid,
            acl: node.acl,
            parent_acl: Bytes::new(),
        });
        Ok(())
    }
}

/// Decodes an entry of [`key::servers`].
///
/// # Errors
/// The entry cannot be decoded.
pub fn listed<'v>(key: &[u8], value: &'v [u8]) -> Result<(u32, Server<'v>), JuteError> {
    let id = key.last_chunk::<4>().ok_or(JuteError::Short { what: "server", needed: 5, left: key.len() })?;
    Ok((u32::from_be_bytes(*id), Server::parse(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["127.0.0.1:2181", "node-1.example.org:1", "[::1]:2181"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "host", ":1", "host:", "host:70000", "a b:1", "a\n:1", "a;b:1", "a=b:1"] {
            assert!(!is_address(bad), "{bad:?}");
        }
    }
}
