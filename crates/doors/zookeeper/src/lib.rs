//! The door for ZooKeeper clients (`atoll-zookeeper`), on the database of the node.
//!
//! | file | what it is |
//! | --- | --- |
//! | `lib.rs` | the settings, and the listeners |
//! | `living.rs` | tells the server what it needs to know about the cluster |

mod living;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::testing::Mutant;
use atoll_core::{BoxFuture, Measure};
use atoll_db::{Applications, Database, Slot};
use atoll_door::{Clients, Door, DoorError, DoorUp, Figures, Serving, nothing};
use atoll_zookeeper::command::Command;
use atoll_zookeeper::{Door as Server, Listening, ZooKeeper, exposition};

pub use atoll_zookeeper::{
    AdminOptions, ClientCertificates, ConnectionThrottle, KNOWN_WORDS, Options, TlsError, TlsFiles, Users,
};

use living::Living;

/// The maximum number of connections, even if the process may open more files.
const MAX_CONNECTIONS: usize = 1_000_000;
/// After a restore from a backup, at least so many epochs of zxids begin, and one more for each [`EPOCH_AGE`], up to [`MOST_EPOCHS`].
const LEAST_EPOCHS: u64 = 256;
/// Nobody imports or restores trees more often than this for long.
const EPOCH_AGE: Duration = Duration::from_secs(600);
/// There are eight million epochs.
const MOST_EPOCHS: u64 = 8192;
/// The names of the listeners in error messages.
const PLAIN: &str = "ZooKeeper";
const CERTIFIED: &str = "ZooKeeper with TLS";
const ADMIN: &str = "ZooKeeper admin";

/// Where and how ZooKeeper clients are served.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The address without TLS, as host:port, if there is one.
    pub address: Option<String>,
    /// The address with TLS and its TLS files, if there is one.
    pub tls: Option<(String, TlsFiles)>,
    /// The address where the commands of ZooKeeper's AdminServer are served, if they are.
    pub admin: Option<String>,
    /// The options of the server.
    pub options: Options,
}

/// Returns how many epochs of zxids begin after a restore of a state that is so old.
fn epochs_after(age: Duration) -> u64 {
    (LEAST_EPOCHS + age.as_secs() / EPOCH_AGE.as_secs()).min(MOST_EPOCHS)
}

/// The server, once it is open. Clones share the same state.
#[derive(Clone, Default)]
struct ServerCell(Arc<OnceLock<Server>>);

impl Figures for ServerCell {
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }

    /// Returns the metrics under the names that ZooKeeper gives them.
    fn under_other_names(&self) -> String {
        self.0.get().map(|server| exposition(&server.metrics())).unwrap_or_default()
    }
}

/// Serves ZooKeeper clients at the configured addresses. If there are none, the node still keeps ZooKeeper's state, because all replicas of
/// a database have the same applications.
#[derive(Default)]
pub struct ZooKeeperDoor {
    settings: Settings,
    slot: Option<Slot<ZooKeeper>>,
    server: ServerCell,
}

impl ZooKeeperDoor {
    /// Creates it with these settings.
    pub fn new(settings: Settings) -> Self {
        ZooKeeperDoor { settings, ..Self::default() }
    }
}

impl Door for ZooKeeperDoor {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn mutants(&self) -> &'static [Mutant] {
        atoll_zookeeper::mutants::ALL
    }

    fn has_listeners(&self) -> bool {
        true
    }

    fn figures(&self) -> Option<Arc<dyn Figures>> {
        Some(Arc::new(self.server.clone()))
    }

    fn applications(&mut self, apps: &mut Applications) {
        self.slot = Some(apps.add(ZooKeeper));
    }

    /// Begins a new epoch of zxids: clients may have seen zxids above that of the rescued state (contracts X23).
    fn after_rescue(&self, database: &Database) -> BoxFuture<'static, Result<(), String>> {
        let proposed = self.slot.as_ref().map(|slot| {
            database.engine(slot).propose(Command::RaiseEpoch.to_bytes().into()).map_err(|e| e.to_string())
        });
        Box::pin(async move {
            let Some(proposed) = proposed else { return Ok(()) };
            let applied = match proposed?.await {
                Ok(applied) => applied.map_err(|e| e.to_string())?,
                Err(_) => return Err("the database was closed".to_owned()),
            };
            applied.reply.map(drop).map_err(|e| format!("no new epoch of zxids: {e:?}"))
        })
    }

    /// Begins an epoch that no client has seen: for `age`, the old cluster may have begun epochs of its own, by imports and restores, and
    /// other clusters may have been restored from the same backup (contracts X23).
    fn after_restore(&self, database: &Database, age: Duration) -> BoxFuture<'static, Result<(), String>> {
        let Some(slot) = &self.slot else { return Box::pin(async { Ok(()) }) };
        let engine = database.engine(slot);
        let epochs = epochs_after(age);
        Box::pin(async move {
            let words = |e: &dyn std::fmt::Display| e.to_string();
            let mut last = None;
            for _ in 0..epochs {
                let raise = || engine.propose(Command::RaiseEpoch.to_bytes().into());
                let proposed = match raise() {
                    Ok(proposed) => proposed,
                    Err(busy) => {
                        engine.room(&busy).await;
                        raise().map_err(|e| words(&e))?
                    }
                };
                last = Some(proposed);
            }
            let Some(last) = last else { return Ok(()) };
            let applied = last.await.map_err(|_| "the database was closed".to_owned())?;
            let applied = applied.map_err(|e| words(&e))?;
            applied.reply.map(drop).map_err(|e| format!("no new epoch of zxids: {e:?}"))
        })
    }

    fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        Box::pin(async move {
            let (Some(slot), Some(database)) = (&self.slot, &up.database) else { return Ok(nothing()) };
            let places = self.settings.listen(&up).await?;
            if places.is_empty() {
                return Ok(nothing());
            }
            let client = places.first().and_then(|place| place.listener.local_addr().ok());
            let cluster = Arc::new(Living::new(up.node.clone(), client));
            let options = self.settings.options_for(up.connections);
            let server = Server::open(database.engine(slot), cluster, options)
                .map_err(own("the state of ZooKeeper's clients"))?;
            // The cell is empty, because this is the only call.
            let _ = self.server.0.set(server.clone());
            let admin = match &self.settings.admin {
                Some(address) => Some(up.listeners.open(ADMIN, address, Clients::Anybody).await?),
                None => None,
            };
            let commands = {
                let (server, stop) = (server.clone(), up.stopped());
                async move {
                    if let Some(listener) = admin {
                        server.serve_admin(listener, stop).await;
                    }
                }
            };
            let serving = server.serve_all(places, up.stopped());
            Ok(Box::pin(async move {
                tokio::join!(serving, commands);
            }) as Serving)
        })
    }
}

impl Settings {
    /// Opens the listeners for clients.
    async fn listen(&self, up: &DoorUp) -> Result<Vec<Listening>, DoorError> {
        let mut places = Vec::new();
        if let Some(address) = &self.address {
            let listener = up.listeners.open(PLAIN, address, Clients::Anybody).await?;
            places.push(Listening { listener, tls: None });
        }
        if let Some((address, files)) = &self.tls {
            let tls =
                atoll_zookeeper::server::tls::acceptor(files).map_err(own("TLS of the ZooKeeper door"))?;
            // If clients need no certificate, anybody can connect, so the door is as open as one without TLS.
            let (name, clients) = match files.clients {
                ClientCertificates::Need => (CERTIFIED, Clients::Certified),
                _ => (PLAIN, Clients::Anybody),
            };
            let listener = up.listeners.open(name, address, clients).await?;
            places.push(Listening { listener, tls: Some(tls) });
        }
        Ok(places)
    }

    /// Returns the options, with no more connections than are available. A configured limit of 0 means no limit.
    fn options_for(&self, available: usize) -> Options {
        let available = available.min(MAX_CONNECTIONS);
        let max_connections = match self.options.max_connections {
            0 => available,
            some => some.min(available),
        };
        Options { max_connections, ..self.options.clone() }
    }
}

/// Returns a function that converts an error to one of this door.
fn own<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> DoorError {
    move |error| DoorError::Own { what, error: Box::new(error) }
}

/// Checks that these TLS files can be used.
///
/// # Errors
/// The files cannot be read or used.
pub fn check_tls(files: &TlsFiles) -> Result<(), TlsError> {
    atoll_zookeeper::server::tls::acceptor_now(files).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_those_that_are_configured_or_available() {
        let most = |configured, available| {
            let options = Options { max_connections: configured, ..Options::default() };
            Settings { options, ..Settings::default() }.options_for(available).max_connections
        };
        assert_eq!((most(0, 9), most(5, 9), most(50, 9)), (9, 5, 9));
        assert_eq!(most(0, usize::MAX), MAX_CONNECTIONS);
    }
}
