//! Which nodes a run has. All of them know this from the start.

use std::fmt;
use std::net::TcpListener;
use std::path::Path;
use std::str::FromStr;

use atoll_core::NodeId;
use atoll_node::NodeConfig;
use atoll_node::config::{Founder, Roles};

use super::{Error, failed};

/// Ports are taken from here: below those that systems give to outgoing connections, which could take one while its node is down.
const FREE_PORTS: std::ops::Range<u16> = 10_000..30_000;
/// So many nodes hold the registers, if as many serve.
const REGISTER_NODES: u32 = 3;

/// The ports of the nodes 1, 2, … The first ones serve; the others are clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    ports: Vec<u16>,
    /// How many nodes serve.
    pub servers: u32,
}

impl Layout {
    /// Chooses free ports.
    pub fn choose(servers: u32, clients: u32) -> Result<Self, Error> {
        let count = (servers + clients) as usize;
        // Runs that start at the same time begin at different places.
        let span = u32::from(FREE_PORTS.end - FREE_PORTS.start);
        let from = std::process::id().wrapping_mul(64) % span;
        let port = |n: u32| FREE_PORTS.start + ((from + n) % span) as u16;
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let ports: Vec<u16> = (0..span).map(port).filter(is_free).take(count).collect();
        if ports.len() < count {
            return Err(failed("there are too few free ports"));
        }
        Ok(Layout { ports, servers })
    }

    /// Returns all nodes.
    pub fn all(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.ports.len() as u32
    }

    fn peer(&self, node: u32) -> String {
        let port = self.ports.get(node as usize - 1).copied().unwrap_or(0);
        format!("127.0.0.1:{port}")
    }

    fn roles(&self, node: u32) -> Roles {
        let serves = node <= self.servers;
        let registers = if self.servers < REGISTER_NODES { 1 } else { REGISTER_NODES };
        Roles { log: serves, sequencer: serves, meta: node <= registers }
    }

    /// Returns the configuration of a node.
    pub fn config(&self, node: u32, data: &Path) -> NodeConfig {
        let founder = |n: u32| (NodeId(n), Founder { peer: self.peer(n), grpc: None, roles: self.roles(n) });
        NodeConfig {
            node: NodeId(node),
            cluster: "figures".to_owned(),
            roles: self.roles(node),
            peer: self.peer(node),
            founders: self.all().map(founder).collect(),
            replica: false,
            ..NodeConfig::alone(data)
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        write!(f, "{}:{}", self.servers, ports.join(","))
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no layout: expected SERVERS:PORT,...");
        let (servers, ports) = text.split_once(':').ok_or_else(wrong)?;
        let ports: Result<Vec<u16>, _> = ports.split(',').map(str::parse).collect();
        Ok(Layout { servers: servers.parse().map_err(|_| wrong())?, ports: ports.map_err(|_| wrong())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_survives_the_command_line() {
        let layout = Layout { ports: vec![10_001, 10_003, 10_007, 10_009], servers: 3 };
        assert_eq!(layout.to_string().parse(), Ok(layout.clone()));
        assert!("3:".parse::<Layout>().is_err() && "x:1".parse::<Layout>().is_err());
        let roles: Vec<_> = layout.all().map(|n| (layout.roles(n).log, layout.roles(n).meta)).collect();
        assert_eq!(roles, [(true, true), (true, true), (true, true), (false, false)]);
    }
}
