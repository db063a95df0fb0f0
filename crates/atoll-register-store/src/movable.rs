//! Registers that move from one store to another while they are used: the sealed hand-over (RMWPaxos §9a) between stores.
//!
//! A register begins in the registers of its *home*. A move writes a last value there, on the condition that nothing else was written
//! since: it holds the state, and says where the register continues, in which *turn*. Nobody writes there any more. The first one who comes
//! to the new place copies the state, on the condition that this turn has not begun there, and then notes at the old place that it has
//! arrived. Whoever is in the middle may die: the next reader does the rest.
//!
//! So there is one place for each turn, a turn begins with the state with which the one before it ended, and a register that is found at
//! a place is there at that moment.
//!
//! | case | what happens |
//! | --- | --- |
//! | a write meets a move | one of them finds another version: the move begins again, or the writer follows the register |
//! | two moves at the same time | the second one follows the register, and moves it from there |
//! | a write at the old place arrives late | it names a version before the last value, so it is not done |
//! | a copy arrives late | it names the version of the new place before the turn began there, so it is not done |
//! | the register comes back | its turn is higher than that of the last value here, which the copy replaces |
//! | a write is repeated after a move | the state has the nonce of its last write. Whether an earlier one happened is unknown, as after too many writes |
//! | the new place does not answer | nothing is moved. If it fails after the last value was written, the register waits until it is back |
//! | a place does not answer | operations on its registers fail, soon without waiting (`store.rs`); those of registers elsewhere go on |
//! | the new place has lost a register that has arrived | reads and writes fail; the state from before the move is not taken for it |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::register::{MAX_MOVABLE_BYTES, MAX_VALUE_BYTES, Unavailability};
use atoll_contract::{Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Env};
use bytes::Bytes;

use crate::mutants;
use crate::placed::{MAX_PLACE_BYTES, Placed};
use crate::store::Store;

/// The name of the place where all registers begin.
pub const HOME: &str = "";
/// How many steps somebody follows a register before it counts as busy.
const MAX_STEPS: usize = 16;
/// How often a write or a move begins again because somebody else was first.
const MAX_ATTEMPTS: usize = 16;

/// Why a register did not move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// This node knows no such place. Nothing happened.
    #[error("there is no place {0:?} for registers")]
    UnknownPlace(String),
    /// There is nothing to move. Nothing happened.
    #[error("the register was never written")]
    NeverWritten,
    /// The value has no room beside what a move adds. Nothing happened.
    #[error("the value has {0} bytes; at most {MAX_MOVABLE_BYTES} can be moved")]
    TooLarge(usize),
    /// The place where the register is, or the one where it is to go, does not answer. Nothing happened.
    #[error("not moved: {0}")]
    NotMoved(Unavailability),
    /// It may have moved, or be on its way. The same move again finds out, and does the rest; so does whoever uses the register next.
    #[error("the outcome of the move is unknown: {0}")]
    Unknown(Unavailability),
}

/// Registers of which each is in one of several places. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MovableRegisters(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    places: BTreeMap<String, Store>,
    /// Where the registers were last seen that have ever moved, as far as this process has seen that. Bounded by their number.
    seen: Mutex<BTreeMap<String, Turn>>,
}

/// A turn of a register, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    number: u64,
    place: String,
}

/// Where a register was last seen that is not at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// The place.
    pub place: String,
    /// Whether this process knows the place.
    pub known: bool,
    /// Why the last operation there failed; None if it succeeded.
    pub trouble: Option<Unavailability>,
}

/// A register that is here.
struct Found {
    place: String,
    /// What is in the register of this place.
    seen: Versioned,
    now: Placed,
}

impl Found {
    fn remembering(self, at: &Mutex<String>) -> Self {
        lock(at).clone_from(&self.place);
        self
    }
}

impl MovableRegisters {
    /// Opens registers that begin at `home` and may move to the other places, by name. All nodes must give the same names to the same
    /// places. None if a name is empty or longer than 256 bytes.
    pub fn new(
        env: Env,
        home: Arc<dyn Registers>,
        elsewhere: BTreeMap<String, Arc<dyn Registers>>,
    ) -> Option<Self> {
        let is_name = |name: &String| (1..=MAX_PLACE_BYTES).contains(&name.len());
        if !elsewhere.keys().all(is_name) {
            return None;
        }
        let stores = elsewhere.into_iter();
        let mut places: BTreeMap<String, Store> =
            stores.map(|(name, registers)| (name, Store::elsewhere(env.clone(), registers))).collect();
        places.insert(HOME.to_owned(), Store::home(env.clone(), home));
        Some(MovableRegisters(Arc::new(Inner { env, places, seen: Mutex::default() })))
    }

    /// Returns a register of a place itself. It does not move. None if there is no such place.
    pub fn at(&self, place: &str, name: &str) -> Option<Arc<dyn Register>> {
        Some(self.0.places.get(place)?.register(name))
    }

    /// Returns where a register is, as far as this process has seen it without asking. None if it was not seen anywhere but at home.
    pub fn whereabouts(&self, name: &str) -> Option<Whereabouts> {
        let place =
            lock(&self.0.seen).get(name).map(|turn| turn.place.clone()).filter(|place| place != HOME)?;
        let store = self.0.places.get(&place);
        Some(Whereabouts { known: store.is_some(), trouble: store.and_then(Store::trouble), place })
    }

    /// Moves a register to a place, [`HOME`] or another one. Does nothing if it is there already. Readers and writers notice nothing but a
    /// little more time for the next operation.
    pub async fn move_to(&self, name: &str, to: &str) -> Result<(), MoveError> {
        self.0.move_to(name, to).await
    }

    /// Returns at which place a register is now.
    pub async fn place_of(&self, name: &str) -> Result<String, RegisterError> {
        Ok(self.0.find(name, HOME).await?.place)
    }
}

impl Inner {
    fn at(&self, place: &str, name: &str) -> Result<Arc<dyn Register>, RegisterError> {
        let store = self.places.get(place).ok_or_else(|| {
            tracing::error!(name, place, "a register is at a place that this node does not know");
            RegisterError::NotWritten(Unavailability::StorageFailed)
        })?;
        Ok(store.register(name))
    }

    /// Remembers in which turn a register is, and where. A turn has one place, and a higher one begins later.
    fn saw(&self, name: &str, number: u64, place: &str) {
        let mut seen = lock(&self.seen);
        let known = seen.get(name).map_or(0, |turn| turn.number);
        if number > known {
            seen.insert(name.to_owned(), Turn { number, place: place.to_owned() });
        }
    }

    fn fresh_nonce(&self) -> Nonce {
        Nonce(u128::from(self.env.random()) << 64 | u128::from(self.env.random()))
    }

    async fn read_at(&self, place: &str, name: &str) -> Result<(Versioned, Option<Placed>), RegisterError> {
        let seen = self.at(place, name)?.read().await?;
        match Placed::read(&seen) {
            Ok(None) if place == HOME => Ok((seen.clone(), Some(Placed::plain(&seen)))),
            Ok(placed) => Ok((seen, placed)),
            Err(why) => {
                tracing::error!(name, place, why, "a register is damaged");
                Err(RegisterError::NotWritten(Unavailability::StorageFailed))
            }
        }
    }

    /// Follows a register from a place to where it is. Completes moves on the way.
    async fn find(&self, name: &str, from: &str) -> Result<Found, RegisterError> {
        let mut place = from.to_owned();
        // The last value at another place that led here.
        let mut came: Option<(String, Versioned, Placed)> = None;
        for _ in 0..MAX_STEPS {
            let (mut seen, mut now) = self.read_at(&place, name).await?;
            if let Some((left, last, moved)) = &came {
                let again = mutant(mutants::REGISTER_ARRIVES_AGAIN) && !moved.arrived;
                if again || now.as_ref().is_none_or(|now| now.turn < moved.turn) {
                    let Some(begun) = self.begin_turn(&place, name, seen, moved).await? else { continue };
                    (seen, now) = (begun.0, Some(begun.1));
                }
                if !moved.arrived {
                    self.note_arrival(left, name, last, moved).await?;
                }
            }
            came = None;
            match now {
                // The caller remembers a place at which it never was.
                None => place = HOME.to_owned(),
                Some(moved) => match moved.to.clone() {
                    None => {
                        self.saw(name, moved.turn, &place);
                        return Ok(Found { place, seen, now: moved });
                    }
                    Some(to) => {
                        self.saw(name, moved.turn, &to);
                        came = Some((std::mem::replace(&mut place, to), seen, moved));
                    }
                },
            }
        }
        Err(RegisterError::NotWritten(Unavailability::Busy))
    }

    /// Copies the state to the place where a turn begins. None if it is not known to be there yet.
    async fn begin_turn(
        &self,
        place: &str,
        name: &str,
        before: Versioned,
        moved: &Placed,
    ) -> Result<Option<(Versioned, Placed)>, RegisterError> {
        if moved.arrived {
            tracing::error!(name, place, "a store has lost a register");
            return Err(RegisterError::NotWritten(Unavailability::StorageFailed));
        }
        let since = Version(before.version.0 + 1);
        let forgets = mutant(mutants::REGISTER_MOVES_WITHOUT_NONCE);
        let nonce = if forgets { 0 } else { moved.nonce };
        let here = Placed { since: since.0, to: None, nonce, ..moved.clone() };
        let (value, nonce) = (here.written(), self.fresh_nonce());
        match self.at(place, name)?.write_if(before.version, value.clone(), nonce).await {
            Ok(Written::Yes(version)) if version == since => {
                hit("registers.arrived");
                Ok(Some((Versioned { version, value, nonce }, here)))
            }
            // Somebody else was first, or it is not known. The next look tells.
            Ok(_) | Err(RegisterError::Unknown(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes at the place that a register has left that it is at the next one.
    async fn note_arrival(
        &self,
        left: &str,
        name: &str,
        last: &Versioned,
        moved: &Placed,
    ) -> Result<(), RegisterError> {
        let noted = Placed { arrived: true, ..moved.clone() };
        let register = self.at(left, name)?;
        if register.write_if(last.version, noted.written(), self.fresh_nonce()).await.is_err() {
            // Whoever comes this way next notes it. The register is usable.
            hit("registers.arrival_not_noted");
        }
        Ok(())
    }

    async fn read(&self, name: &str, at: &Mutex<String>) -> Result<Versioned, RegisterError> {
        let from = lock(at).clone();
        Ok(self.find(name, &from).await?.remembering(at).now.versioned())
    }

    async fn write_if(
        &self,
        name: &str,
        at: &Mutex<String>,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> Result<Written, RegisterError> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(RegisterError::TooLarge(value.len()));
        }
        for _ in 0..MAX_ATTEMPTS {
            let from = lock(at).clone();
            let Found { place, seen, now } = self.find(name, &from).await?.remembering(at);
            if value.len() > Placed::most_bytes(now.turn, &value) {
                return Err(RegisterError::TooLarge(value.len()));
            }
            let Some(back) = now.version.checked_sub(expected.0) else {
                return Ok(Written::Conflict(now.versioned()));
            };
            if back > seen.version.0 - now.since {
                // The version that the write expects was at an earlier place.
                return match (back, now.nonce == nonce.0) {
                    (1, true) => Ok(Written::Yes(Version(now.version))),
                    (1, false) => Ok(Written::Conflict(now.versioned())),
                    _ => Err(RegisterError::Unknown(Unavailability::Busy)),
                };
            }
            let version = expected.0 + 1;
            let next = Placed { version, nonce: nonce.0, value: value.clone(), ..now.clone() };
            let (register, base) = (self.at(&place, name)?, Version(seen.version.0 - back));
            let later = match register.write_if(base, next.written(), nonce).await {
                Ok(Written::Yes(_)) => return Ok(Written::Yes(Version(version))),
                Ok(Written::Conflict(later)) => later,
                Err(RegisterError::TooLarge(_)) => return Err(RegisterError::TooLarge(value.len())),
                Err(error) => return Err(error),
            };
            match Placed::read(&later) {
                Ok(Some(other)) if other.turn == now.turn && other.to.is_none() => {
                    return Ok(Written::Conflict(other.versioned()));
                }
                // It has moved on. Nothing was written.
                _ => hit("registers.write_meets_move"),
            }
        }
        Err(RegisterError::NotWritten(Unavailability::Busy))
    }

    async fn move_to(&self, name: &str, to: &str) -> Result<(), MoveError> {
        let unknown = || MoveError::UnknownPlace(to.to_owned());
        let target = self.places.get(to).ok_or_else(unknown)?.register(name);
        for _ in 0..MAX_ATTEMPTS {
            let Found { place, seen, now } = self.find(name, HOME).await.map_err(not_moved)?;
            if place == to {
                return Ok(());
            }
            if now.version == 0 {
                return Err(MoveError::NeverWritten);
            }
            if now.value.len() > MAX_MOVABLE_BYTES {
                return Err(MoveError::TooLarge(now.value.len()));
            }
            // Nothing goes to a place that does not answer.
            target.read().await.map_err(not_moved)?;
            let (turn, to) = (now.turn + 1, Some(to.to_owned()));
            let last = Placed { turn, to, arrived: false, ..now };
            let left = self.at(&place, name).map_err(not_moved)?;
            match left.write_if(seen.version, last.written(), self.fresh_nonce()).await {
                Ok(Written::Yes(_)) => {}
                Ok(Written::Conflict(_)) => continue,
                Err(error) => return Err(not_moved(error)),
            }
            // Copies the state.
            return match self.find(name, &place).await {
                Ok(_) => Ok(()),
                Err(error) => Err(MoveError::Unknown(why(&error))),
            };
        }
        Err(MoveError::NotMoved(Unavailability::Busy))
    }

    /// All names are at home. So are the marks of the registers that are there: when one leaves, its mark at home changes, and whoever
    /// reads it afterwards sees where it is. Those that were seen elsewhere have no mark, so that nobody waits for another store here.
    async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RegisterError> {
        let mut listed = self.home().registers().list(prefix).await?;
        let seen = lock(&self.seen);
        for one in &mut listed {
            if seen.get(&one.name).is_some_and(|turn| turn.place != HOME) {
                one.mark = None;
            }
        }
        Ok(listed)
    }

    fn home(&self) -> &Store {
        &self.places[HOME]
    }
}

fn why(error: &RegisterError) -> Unavailability {
    match error {
        RegisterError::NotWritten(why) | RegisterError::Unknown(why) => *why,
        RegisterError::TooLarge(_) | RegisterError::InvalidName(_) => Unavailability::StorageFailed,
    }
}

fn not_moved(error: RegisterError) -> MoveError {
    match error {
        RegisterError::Unknown(why) => MoveError::Unknown(why),
        other => MoveError::NotMoved(why(&other)),
    }
}

impl Registers for MovableRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(Movable { all: self.clone(), name: name.to_owned(), at: Mutex::new(HOME.to_owned()) })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.0.list(&prefix).await })
    }

    fn sweep(&self) {
        self.0.places.values().for_each(|place| place.registers().sweep());
    }
}

#[derive(Debug)]
struct Movable {
    all: MovableRegisters,
    name: String,
    /// Where it was found last.
    at: Mutex<String>,
}

impl Register for Movable {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(self.all.0.read(&self.name, &self.at))
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(self.all.0.write_if(&self.name, &self.at, expected, value, nonce))
    }
}
