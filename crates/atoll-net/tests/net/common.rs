//! Helpers for tests with several networks in one process, over real sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use atoll_core::{
    Class, Envelope, Exchange, Frame, Incarnation, Link, NodeId, Outgoing, RoleKind, StorageId,
};
use atoll_net::{Net, NetEvent, NetEvents, NetOptions};
use bytes::Bytes;

/// Long enough for a busy machine. A test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Node {
    pub id: NodeId,
    pub net: Net,
    pub events: NetEvents,
}

pub fn options(id: u32, life: u64) -> NetOptions {
    NetOptions::new(NodeId(id), Incarnation(life), StorageId(life.into()), "reef", "127.0.0.1:0")
}

pub async fn start(options: NetOptions) -> Node {
    let id = options.node;
    let (net, events) = Net::start(options).await.unwrap();
    Node { id, net, events }
}

pub fn frame(kind: u16, head: impl Into<Bytes>, payloads: Vec<Bytes>) -> Frame {
    Frame { kind, target: RoleKind(9), head: head.into(), payloads }
}

pub fn outgoing(to: u32, class: Class, exchange: Exchange, frame: Frame) -> Outgoing {
    Outgoing { to: NodeId(to), class, envelope: Envelope { exchange, frame } }
}

pub fn book(nodes: &[(u32, SocketAddr)]) -> BTreeMap<NodeId, String> {
    nodes.iter().map(|(id, at)| (NodeId(*id), at.to_string())).collect()
}

impl Node {
    pub fn at(&self) -> (u32, SocketAddr) {
        (self.id.0, self.net.local_addr())
    }

    pub async fn next(&mut self) -> NetEvent {
        let next = tokio::time::timeout(PATIENCE, self.events.next());
        next.await.expect("an event in time").expect("the network runs")
    }

    /// Waits for the next event that `pick` accepts and skips the others.
    pub async fn until<T>(&mut self, mut pick: impl FnMut(NetEvent) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(self.next().await) {
                return found;
            }
        }
    }

    pub async fn until_link(&mut self, to: u32, of: Class, state: Link) {
        let wanted = NetEvent::Link { peer: NodeId(to), class: of, link: state };
        self.until(|e| (e == wanted).then_some(())).await;
    }

    pub async fn until_frame(&mut self) -> (NodeId, Class, Envelope) {
        self.until(|e| match e {
            NetEvent::Frame { from, class, envelope } => Some((from, class, envelope)),
            _ => None,
        })
        .await
    }
}

/// Returns two nodes that know each other, with all four links up.
pub async fn pair() -> (Node, Node) {
    pair_of(options(1, 11), options(2, 22)).await
}

pub async fn pair_of(one: NetOptions, two: NetOptions) -> (Node, Node) {
    let (mut a, mut b) = (start(one).await, start(two).await);
    let peers = book(&[a.at(), b.at()]);
    a.net.set_peers(peers.clone());
    b.net.set_peers(peers);
    for class in [Class::Control, Class::Data] {
        a.until_link(b.id.0, class, Link::Up).await;
    }
    for class in [Class::Control, Class::Data] {
        b.until_link(a.id.0, class, Link::Up).await;
    }
    (a, b)
}

/// The limit of requests in flight in the hello below.
pub const REQUESTS: u32 = 3;

/// Returns the bytes of a hello of node `node`, in the form that `handshake.rs` describes.
pub fn hello(version: u16, cluster: &str, node: u32, to: u32, life: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend((cluster.len() as u32).to_le_bytes());
    body.extend(cluster.as_bytes());
    body.extend(node.to_le_bytes());
    body.extend(to.to_le_bytes());
    body.extend(life.to_le_bytes());
    body.extend(u128::from(life).to_le_bytes());
    body.push(0);
    body.extend((1u32 << 20).to_le_bytes());
    body.extend((1u32 << 20).to_le_bytes());
    body.extend(1024u16.to_le_bytes());
    body.extend(REQUESTS.to_le_bytes());
    let mut all = b"ATOLLnet".to_vec();
    all.extend(version.to_le_bytes());
    all.extend([0, 0]);
    all.extend((body.len() as u32).to_le_bytes());
    all.extend(body);
    all
}
