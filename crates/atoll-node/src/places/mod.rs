//! Places for the chains of logs outside of the cluster: stores that others run, which the configuration of every node names. A chain moves
//! between them and its home, the registers of the cluster, while its log is used (`atoll-register-store`, `movable.rs`).
//!
//! Only chains move. Index pages stay at home: there may be many of them, they are written once, and whoever looks for a chain begins at
//! home anyway.
//!
//! All nodes must give the same name to the same place. Otherwise some would complete a move to a store that the others do not see, and
//! the log would have two chains. So the cluster draws a token for each place. It notes the token at home, and then at the place, in the
//! register [`TOKEN`], on the condition that nobody has done so. A move begins only if every member that is up finds this token at the
//! place with this name, and has the same URL for it. Two clusters never share a place, because each has its own token.

mod message;
pub(crate) mod role;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::place::PlaceError;
use atoll_contract::plugin::Protocols;
use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, Register, RegisterError, Registers, Version, Written};
use atoll_core::level::since;
use atoll_core::{CallError, Env, Level, NodeId};
use atoll_log::virtual_log::CHAIN_PREFIX;
use atoll_register_store::{HOME, MovableRegisters, MoveError, Whereabouts};
use bytes::Bytes;
use message::{AskPlace, PlaceSeen};

use crate::members::Members;

/// How people call the registers of the cluster.
pub const HOME_NAME: &str = "home";
/// The longest name of a place.
pub const MAX_NAME_BYTES: usize = 64;
/// Maximum number of places.
pub const MAX_PLACES: usize = 16;
/// The prefix of the registers at home that hold the tokens of the places.
const TOKENS: &str = "cluster/place/";
/// The register of a place that holds the token of the cluster that uses it.
pub const TOKEN: &str = "cluster/token";
/// How long the members that are up may take to look at a place.
const LOOKED_WITHIN: Duration = Duration::from_secs(8);
/// How often a token is tried to be written.
const ATTEMPTS: usize = 4;

/// A configured place that cannot be one. Nothing was contacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfiguredPlaceError {
    /// No place can have this name.
    #[error(
        "the place {0:?} of registers: a name has 1 to {MAX_NAME_BYTES} letters, digits, \".\", \"_\" and \"-\", and is not {HOME_NAME:?}"
    )]
    Name(String),
    /// Registers cannot be at its URL.
    #[error("the place {name:?} of registers: {error}")]
    Url {
        /// Its name.
        name: String,
        /// Why not.
        error: PlaceError,
    },
    /// There are too many.
    #[error("there are {0} places of registers; {MAX_PLACES} are allowed")]
    TooMany(usize),
}

/// Whether a place can have this name.
pub fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(fits) && name != HOME_NAME
}

/// Checks the URL of a place. Contacts nothing.
///
/// # Errors
/// Registers cannot be there.
pub fn check_url(url: &str) -> Result<(), PlaceError> {
    atoll_protocols::all().place(url).map(drop)
}

/// Returns what the URLs of places look like.
pub fn forms() -> impl Iterator<Item = &'static str> {
    atoll_protocols::all().schemes().map(|scheme| scheme.form).collect::<Vec<_>>().into_iter()
}

/// Why a chain did not move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainMoveError {
    /// Some members cannot follow a chain that moves.
    #[error("chains of logs move only from feature level {since} on, and the cluster is at level {active}")]
    Level {
        /// The level from which they move.
        since: Level,
        /// The active level.
        active: Level,
    },
    /// This node's configuration has no such place.
    #[error("the configuration of node {node} has no registers {name:?}; it has {}", in_words(.known))]
    Unknown {
        /// This node.
        node: NodeId,
        /// The name.
        name: String,
        /// The names that it has.
        known: Vec<String>,
    },
    /// The place does not answer, or home does not. Nothing happened.
    #[error("the registers {name:?} cannot be used: {error}")]
    NotReached {
        /// The place.
        name: String,
        /// Why not.
        error: RegisterError,
    },
    /// Another cluster keeps registers there.
    #[error(
        "the registers {name:?} belong to another cluster, or to this one before it was rescued or its registers were lost"
    )]
    OfOthers {
        /// The place.
        name: String,
    },
    /// Some members that are up would not find the chain there. Nothing happened.
    #[error("not all nodes can use the registers {name:?}: {}", .nodes.iter().map(|(node, why)| format!("node {node} {why}")).collect::<Vec<_>>().join("; "))]
    NotEverywhere {
        /// The place.
        name: String,
        /// Those members, and why not.
        nodes: Vec<(NodeId, String)>,
    },
    /// See [`MoveError`].
    #[error(transparent)]
    Move(#[from] MoveError),
}

fn in_words(names: &[String]) -> String {
    let all = std::iter::once(HOME_NAME).chain(names.iter().map(String::as_str));
    all.collect::<Vec<_>>().join(", ")
}

/// The places of the registers of chains, as this node knows them. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Places {
    env: Env,
    members: Members,
    registers: MovableRegisters,
    urls: Arc<BTreeMap<String, String>>,
}

impl Places {
    /// Opens places, given as URLs by name. `home` holds the registers of the cluster. Nothing is contacted yet.
    ///
    /// # Errors
    /// A place is no place.
    pub(crate) fn new(
        env: Env,
        members: Members,
        home: Arc<dyn Registers>,
        protocols: &Protocols,
        urls: &BTreeMap<String, String>,
    ) -> Result<Self, ConfiguredPlaceError> {
        if urls.len() > MAX_PLACES {
            return Err(ConfiguredPlaceError::TooMany(urls.len()));
        }
        let mut open = BTreeMap::new();
        for (name, url) in urls {
            let named = |error| ConfiguredPlaceError::Url { name: name.clone(), error };
            open.insert(name.clone(), protocols.place(url).map_err(named)?.open(&env));
        }
        let wrong = || urls.keys().find(|name| !is_name(name)).cloned().unwrap_or_default();
        let registers = Some(()).filter(|()| urls.keys().all(|name| is_name(name)));
        let registers = registers.and_then(|()| MovableRegisters::new(env.clone(), home, open));
        let registers = registers.ok_or_else(|| ConfiguredPlaceError::Name(wrong()))?;
        Ok(Places { env, members, registers, urls: Arc::new(urls.clone()) })
    }

    /// Returns the registers in which logs find their chains, wherever these are.
    pub fn registers(&self) -> Arc<dyn Registers> {
        Arc::new(self.registers.clone())
    }

    /// Returns the environment of this node.
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns where the chain of a log is, as far as this node has seen it without asking. None: at home.
    pub fn of(&self, log: &str) -> Option<Whereabouts> {
        self.registers.whereabouts(&format!("{CHAIN_PREFIX}{log}"))
    }

    /// Says why the chain of a log cannot be read or changed now, if that is due to the place where it is.
    pub fn trouble(&self, log: &str) -> Option<String> {
        let Whereabouts { place, known, trouble } = self.of(log)?;
        let why = match trouble {
            _ if !known => {
                "which the configuration of this node does not have; add them, and restart it".to_owned()
            }
            Some(Unavailability::NoQuorum) => "which do not answer".to_owned(),
            Some(why) => format!("which fail: {why}"),
            None => return None,
        };
        Some(format!("its chain is in the registers {place:?}, {why}"))
    }

    /// Moves the chain of a log to a place, or home. Does nothing if it is there already.
    ///
    /// # Errors
    /// See [`ChainMoveError`]. Only after [`MoveError::Unknown`], the chain may have moved, or be on its way.
    pub async fn move_chain(&self, log: &str, to: &str) -> Result<(), ChainMoveError> {
        let since = since::REGISTER_PLACES;
        if !self.env.allows_soon(since).await {
            return Err(ChainMoveError::Level { since, active: self.env.levels().active() });
        }
        let place = if to == HOME_NAME { HOME } else { to };
        if place != HOME {
            let token = self.claim(place).await?;
            self.check_members(place, token).await?;
        }
        Ok(self.registers.move_to(&format!("{CHAIN_PREFIX}{log}"), place).await?)
    }

    /// Notes the token of this cluster at a place, unless it is there already. Returns it.
    async fn claim(&self, name: &str) -> Result<u128, ChainMoveError> {
        let failed = |error| ChainMoveError::NotReached { name: name.to_owned(), error };
        let Some(there) = self.registers.at(name, TOKEN) else {
            let (node, known) = (self.env.node(), self.urls.keys().cloned().collect());
            return Err(ChainMoveError::Unknown { node, name: name.to_owned(), known });
        };
        let at_home = self.registers.at(HOME, &format!("{TOKENS}{name}"));
        let Some(at_home) = at_home else { return Err(failed(unreadable())) };
        let ours = self.written_once(&*at_home, self.draw()).await.map_err(failed)?;
        let theirs = self.written_once(&*there, ours).await.map_err(failed)?;
        if theirs == ours { Ok(ours) } else { Err(ChainMoveError::OfOthers { name: name.to_owned() }) }
    }

    fn draw(&self) -> u128 {
        u128::from(self.env.random()) << 64 | u128::from(self.env.random())
    }

    /// Returns the token in a register; writes this one if there is none.
    async fn written_once(&self, register: &dyn Register, token: u128) -> Result<u128, RegisterError> {
        let mut last = RegisterError::NotWritten(Unavailability::Busy);
        for _ in 0..ATTEMPTS {
            let seen = register.read().await?;
            if seen.version != Version(0) {
                return to_token(&seen.value);
            }
            let value = Bytes::copy_from_slice(&token.to_le_bytes());
            match register.write_if(Version(0), value, Nonce(self.draw())).await {
                Ok(Written::Yes(_)) => return Ok(token),
                // The next look tells whose it is.
                Ok(Written::Conflict(_)) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks every other member that is up what it finds at a place.
    async fn check_members(&self, name: &str, token: u128) -> Result<(), ChainMoveError> {
        let up = |node: &NodeId| self.members.is_alive(*node);
        let peers: Vec<NodeId> = self.members.peers().into_iter().filter(up).collect();
        let until = self.env.now().after(LOOKED_WITHIN);
        let replies = self.env.gather(&peers, AskPlace { name: name.to_owned() }, until, |_| false).await;
        let mut nodes: BTreeMap<NodeId, String> =
            peers.iter().map(|node| (*node, "does not answer".to_owned())).collect();
        let refused = replies.errors().filter(|(_, error)| matches!(error, CallError::Refused { .. }));
        nodes.extend(refused.map(|(node, error)| (node, format!("refuses to look: {error}"))));
        let url = self.urls.get(name).map_or("", String::as_str);
        for (node, seen) in replies.into_ok() {
            match lacks(&seen, url, token) {
                Some(why) => nodes.insert(node, why),
                None => nodes.remove(&node),
            };
        }
        if nodes.is_empty() {
            return Ok(());
        }
        Err(ChainMoveError::NotEverywhere { name: name.to_owned(), nodes: nodes.into_iter().collect() })
    }

    /// Looks at a place for another node.
    async fn look(&self, name: &str) -> PlaceSeen {
        let Some(url) = self.urls.get(name).cloned() else { return PlaceSeen::default() };
        let token = match self.registers.at(name, TOKEN) {
            None => Err(unreadable()),
            Some(register) => match register.read().await {
                Ok(seen) if seen.version == Version(0) => Ok(None),
                Ok(seen) => to_token(&seen.value).map(Some),
                Err(error) => Err(error),
            },
        };
        match token {
            Ok(token) => PlaceSeen { url, token, failed: None },
            Err(error) => PlaceSeen { url, token: None, failed: Some(error.to_string()) },
        }
    }
}

fn unreadable() -> RegisterError {
    RegisterError::NotWritten(Unavailability::StorageFailed)
}

fn to_token(value: &Bytes) -> Result<u128, RegisterError> {
    let bytes = <[u8; 16]>::try_from(&value[..]).map_err(|_| unreadable())?;
    Ok(u128::from_le_bytes(bytes))
}

/// Returns why a member that has seen this could not follow a chain to the place. URLs have no secrets.
fn lacks(seen: &PlaceSeen, url: &str, token: u128) -> Option<String> {
    let PlaceSeen { url: theirs, token: found, failed } = seen;
    match (failed, found) {
        _ if theirs.is_empty() => Some("has none with this name in its configuration".to_owned()),
        _ if theirs != url => Some(format!("has {theirs} there, and this node {url}")),
        (Some(why), _) => Some(format!("does not reach them: {why}")),
        (None, Some(found)) if *found == token => None,
        (None, _) => Some(format!("sees another store at {url}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_would_not_find_a_chain_is_named_with_the_reason() {
        let seen = |url: &str, token, failed: Option<&str>| PlaceSeen {
            url: url.to_owned(),
            token,
            failed: failed.map(str::to_owned),
        };
        let words = |seen: PlaceSeen| lacks(&seen, "etcd://a:1/x", 7).unwrap_or_default();
        assert_eq!(words(seen("etcd://a:1/x", Some(7), None)), "");
        for (seen, part) in [
            (seen("", None, None), "none with this name"),
            (seen("etcd://b:1/x", Some(7), None), "has etcd://b:1/x there"),
            (seen("etcd://a:1/x", None, Some("not done")), "does not reach them: not done"),
            (seen("etcd://a:1/x", Some(8), None), "another store"),
            (seen("etcd://a:1/x", None, None), "another store"),
        ] {
            assert!(words(seen.clone()).contains(part), "{seen:?}");
        }
    }

    #[test]
    fn names_of_places_are_plain_and_not_that_of_home() {
        assert!(is_name("etcd") && is_name("s3.eu-1_a") && is_name(&"a".repeat(MAX_NAME_BYTES)));
        for name in ["", "home", "a b", "a/b", "ä", &"a".repeat(MAX_NAME_BYTES + 1)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
