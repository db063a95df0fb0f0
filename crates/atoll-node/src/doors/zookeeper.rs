//! The door for ZooKeeper clients (`atoll-zookeeper`), as a door of the node's database.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::{BoxFuture, NodeId};
use atoll_db::{Applications, Slot};
use atoll_zookeeper::{Addresses, Cluster, Door, Listening, ZooKeeper};

pub use atoll_zookeeper::{
    AdminOptions, ClientCertificates, ConnectionThrottle, KNOWN_WORDS, Options, TlsError, TlsFiles, Users,
};

use crate::assembly::NodeParts;
use crate::database::{DatabaseDoor, DatabaseUp, LOG, Serving, is_in_service};
use crate::members::Members;
use crate::policy::Guardian;
use crate::space::Space;
use crate::start::{StartError, ZOOKEEPER_TLS, listen, stopped};

/// For this long after the start, a node that has not been heard from yet counts as alive, because it may not have had time to report.
const UNHEARD_FOR: Duration = Duration::from_secs(10);

/// Serves ZooKeeper clients at the configured addresses. If there are none, the node still keeps ZooKeeper's state, because all replicas of
/// a database have the same applications.
#[derive(Debug, Default)]
pub struct ZooKeeperDoor {
    slot: Option<Slot<ZooKeeper>>,
}

impl DatabaseDoor for ZooKeeperDoor {
    fn add(&mut self, apps: &mut Applications) {
        self.slot = Some(apps.add(ZooKeeper));
    }

    fn open(self: Box<Self>, up: DatabaseUp) -> BoxFuture<'static, Result<Serving, StartError>> {
        Box::pin(async move {
            let Some(slot) = &self.slot else { return Ok(Box::pin(async {}) as Serving) };
            let mut places = Vec::new();
            if let Some(address) = &up.config.zookeeper {
                let listener = listen(&up.config, "ZooKeeper", address).await?;
                places.push(Listening { listener, tls: None });
            }
            if let Some((address, files)) = &up.config.zookeeper_tls {
                let tls = atoll_zookeeper::server::tls::acceptor(files)?;
                // If clients need no certificate, anybody can connect, so the door is as open as one without TLS.
                let known = files.clients == ClientCertificates::Need;
                let name = if known { ZOOKEEPER_TLS } else { "ZooKeeper" };
                let listener = listen(&up.config, name, address).await?;
                places.push(Listening { listener, tls: Some(tls) });
            }
            if places.is_empty() {
                return Ok(Box::pin(async {}) as Serving);
            }
            let client = places.first().and_then(|place| place.listener.local_addr().ok());
            let cluster = Arc::new(Living::new(&up.parts, up.config.peer.clone(), client));
            let options = up.config.zookeeper_options.clone();
            let door = Door::open(up.database.engine(slot), cluster, options)?;
            // The cell is empty, because this is the only call.
            let _ = up.parts.zookeeper.set(door.clone());
            let admin = match &up.config.zookeeper_admin {
                Some(address) => Some(listen(&up.config, "ZooKeeper admin", address).await?),
                None => None,
            };
            let commands = {
                let (door, stop) = (door.clone(), stopped(up.stopping.clone()));
                async move {
                    if let Some(listener) = admin {
                        door.serve_admin(listener, stop).await;
                    }
                }
            };
            let serving = door.serve_all(places, stopped(up.stopping));
            Ok(Box::pin(async move {
                tokio::join!(serving, commands);
            }) as Serving)
        })
    }
}

/// Checks that these TLS files can be used.
///
/// # Errors
/// The files cannot be read or used.
pub fn check_tls(files: &TlsFiles) -> Result<(), TlsError> {
    atoll_zookeeper::server::tls::acceptor(files).map(drop)
}

/// Reports to the door which nodes are alive, and what it needs to know about the cluster.
struct Living {
    members: Members,
    guardian: Guardian,
    space: Space,
    started: Instant,
    /// The configured address at which other nodes reach this one, and the address at which its door listens.
    peer: String,
    client: Option<SocketAddr>,
}

impl Living {
    fn new(parts: &NodeParts, peer: String, client: Option<SocketAddr>) -> Living {
        let (members, guardian) = (parts.members.clone(), parts.guardian.clone());
        let space = parts.database.space.clone();
        Living { members, guardian, space, started: Instant::now(), peer, client }
    }
}

impl Cluster for Living {
    fn living(&self) -> Vec<NodeId> {
        let unheard = self.started.elapsed() < UNHEARD_FOR;
        let alive = |node: &NodeId| match self.members.liveness(*node) {
            None => unheard,
            Some(life) if life.incarnation.is_none() && unheard => true,
            // A node that only this node has lost still serves its clients.
            Some(_) => self.members.is_up(*node) && is_in_service(&self.members, *node),
        };
        let others = self.members.peers().into_iter().filter(alive);
        others.chain([self.members.identity().node]).collect()
    }

    fn members(&self) -> usize {
        self.members.peers().len() + 1
    }

    fn leads(&self) -> bool {
        self.guardian.sequenced_by(self.members.identity().node).iter().any(|log| log == LOG)
    }

    fn is_short_of_space(&self) -> bool {
        self.space.is_short()
    }

    fn member_ids(&self) -> Vec<NodeId> {
        self.members.table().nodes.keys().copied().collect()
    }

    fn addresses(&self) -> Option<Addresses> {
        let (me, client) = (self.members.identity().node, self.client?);
        let listed = self.members.table().nodes.get(&me).map(|member| member.peer.clone());
        let peer = listed.filter(|peer| !peer.is_empty()).unwrap_or_else(|| self.peer.clone());
        // Clients cannot connect to a wildcard address.
        let host = peer.rsplit_once(':').map(|(host, _)| host).filter(|_| client.ip().is_unspecified());
        let client = host.map_or_else(|| client.to_string(), |host| format!("{host}:{}", client.port()));
        Some(Addresses { peer, client })
    }
}
