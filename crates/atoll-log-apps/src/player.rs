//! A replica of an application: it plays the log in order, and its state is a function of the log below its index.

use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use atoll_contract::OpId;
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode};

use crate::entry::{self, AppEntry, Parts};
use crate::mutants;
use crate::shared_log::{LogError, Place, SharedLog, Slot};

/// A deterministic state machine that is driven by a log.
pub trait Machine: Send + fmt::Debug {
    /// Applies the record at a position. An error means that the record cannot be read; the state is unchanged, and no replica can pass.
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError>;

    /// Applies the record at a place. Only a machine that keeps places needs the shard.
    fn apply_at(&mut self, place: Place, body: Bytes) -> Result<(), DecodeError> {
        self.apply(place.position, body)
    }

    /// Returns whether the state needs nothing of what was trimmed. Otherwise a replica that meets a trimmed position needs a checkpoint.
    fn skips_trimmed(&self) -> bool {
        false
    }

    /// Returns the state in a form that is equal on all replicas at equal indices.
    fn save(&self) -> Bytes;

    /// Replaces the state by a saved one. An error leaves the state unchanged.
    fn load(&mut self, state: Bytes) -> Result<(), DecodeError>;
}

/// Why a replica cannot play the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlayError {
    /// The log failed. Playing may be tried again.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The position was trimmed, and the log above it has no complete checkpoint. This replica cannot be restored from this log.
    #[error("position {0} was trimmed and no checkpoint above it is complete")]
    Lost(u64),
    /// The position stayed undecided although it was filled; the log breaks its promise, or is reconfigured again and again.
    #[error("position {0} cannot be decided")]
    Undecided(u64),
    /// What a replica saved beside the log was changed, or is cut off.
    #[error("what was saved cannot be used: {0}")]
    Damaged(&'static str),
    /// The record at the position cannot be read: it is damaged, or of a newer format. All replicas stop here.
    #[error("the record at position {0} cannot be read: {1}")]
    Unreadable(u64, DecodeError),
}

/// Limits of one replica. They may differ between replicas.
#[derive(Clone, Copy, Debug)]
pub struct PlayOptions {
    /// How many positions are read at once.
    pub read_ahead: usize,
    /// How often an undecided position is filled and read again.
    pub fill_attempts: usize,
    /// The largest state that is loaded from a checkpoint.
    pub max_checkpoint_bytes: usize,
}

impl Default for PlayOptions {
    fn default() -> Self {
        PlayOptions { read_ahead: 16, fill_attempts: 16, max_checkpoint_bytes: 1 << 30 }
    }
}

#[derive(Debug)]
struct State<M> {
    machine: M,
    applied: u64,
}

/// A replica. It may be shared; its callers help each other to play. It holds no lock while it waits for the log.
#[derive(Debug)]
pub struct Player<M> {
    log: Arc<dyn SharedLog>,
    options: PlayOptions,
    state: Mutex<State<M>>,
}

impl<M: Machine> Player<M> {
    /// Returns a replica that has applied nothing yet. A lost replica is replaced by a new one: the log, or a checkpoint in it, has all.
    pub fn new(log: Arc<dyn SharedLog>, machine: M, options: PlayOptions) -> Self {
        Player { log, options, state: Mutex::new(State { machine, applied: 0 }) }
    }

    /// Returns a replica that continues from what another one saved. `machine` is in its first state.
    pub fn resume(
        log: Arc<dyn SharedLog>,
        mut machine: M,
        options: PlayOptions,
        saved: Bytes,
    ) -> Result<Self, PlayError> {
        let cut_off = |_| PlayError::Damaged("it cannot be read");
        let ((applied, hash), state) = <((u64, u64), Bytes)>::from_bytes(saved).map_err(cut_off)?;
        if hash != hash_saved(applied, &state) {
            return Err(PlayError::Damaged("its hash is wrong"));
        }
        machine.load(state).map_err(cut_off)?;
        Ok(Player { log, options, state: Mutex::new(State { machine, applied }) })
    }

    /// Returns the state and its index in one piece. Whoever keeps it as a whole, and continues with it, has applied every record once.
    pub fn saved(&self) -> Bytes {
        let (applied, state) = self.view(|machine, applied| (applied, machine.save()));
        let applied = if mutant(mutants::APPS_K1) { applied.saturating_sub(1) } else { applied };
        let hash = hash_saved(applied, &state);
        ((applied, hash), state).to_bytes()
    }

    /// Returns the log that it plays.
    pub fn log(&self) -> &Arc<dyn SharedLog> {
        &self.log
    }

    /// Returns its index: the position below which everything is applied.
    pub fn applied(&self) -> u64 {
        lock(&self.state).applied
    }

    /// Returns its index, and the hash of its state there. Equal at equal indices on all replicas (apps-AP3).
    pub fn hash(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.applied, entry::hash(&state.machine.save()))
    }

    /// Looks at the state and its index, which do not change meanwhile.
    pub fn view<T>(&self, look: impl FnOnce(&M, u64) -> T) -> T {
        let state = lock(&self.state);
        look(&state.machine, state.applied)
    }

    /// Changes the state beside the log. For mutants.
    pub(crate) fn meddle<T>(&self, change: impl FnOnce(&mut M, u64) -> T) -> T {
        let mut state = lock(&self.state);
        let at = state.applied;
        change(&mut state.machine, at)
    }

    /// Plays to the tail as it is now, and returns the tail: everything that was acknowledged before the call is applied on return.
    pub async fn play(&self) -> Result<u64, PlayError> {
        let tail = self.log.tail().await?;
        self.play_to(tail).await?;
        Ok(tail)
    }

    /// Plays until the index is at least `target`, which is not above the log's tail. Holes below it are filled first: a replica never
    /// passes a position that is not decided (corfu-K8).
    pub async fn play_to(&self, target: u64) -> Result<(), PlayError> {
        loop {
            let at = self.applied();
            if at >= target {
                return Ok(());
            }
            let end = target.min(at.saturating_add(self.options.read_ahead.max(1) as u64));
            let slots = self.log.read_places(at, end).await?;
            for (position, found) in (at..end).zip(slots) {
                let (slot, shard) = match found {
                    (Slot::Unwritten, _) => self.decided(position).await?,
                    found => found,
                };
                match slot {
                    Slot::Data(data) => self.apply(Place { position, shard }, data)?,
                    Slot::Trimmed if self.view(|machine, _| machine.skips_trimmed()) => {
                        self.advance(position)
                    }
                    Slot::Trimmed => {
                        if self.applied() <= position {
                            self.recover(position).await?;
                        }
                        break;
                    }
                    Slot::Junk | Slot::Unwritten => self.advance(position),
                }
            }
        }
    }

    async fn decided(&self, position: u64) -> Result<(Slot, u32), PlayError> {
        for _ in 0..self.options.fill_attempts.max(1) {
            match self.log.read_places(position, position.saturating_add(1)).await?.pop() {
                Some((Slot::Unwritten, _)) | None => {
                    hit("log_apps.player.fills");
                    self.log.fill(position).await?;
                }
                Some(found) => return Ok(found),
            }
        }
        Err(PlayError::Undecided(position))
    }

    /// Applies an entry, unless another caller has done so meanwhile.
    fn apply(&self, place: Place, data: Bytes) -> Result<(), PlayError> {
        let mut state = lock(&self.state);
        if state.applied != place.position {
            return Ok(());
        }
        let unreadable = |error| PlayError::Unreadable(place.position, error);
        if let AppEntry::Record { body } = AppEntry::open(data).map_err(unreadable)? {
            state.machine.apply_at(place, body).map_err(unreadable)?;
        }
        state.applied = place.position + 1;
        Ok(())
    }

    fn advance(&self, position: u64) {
        let mut state = lock(&self.state);
        if state.applied == position {
            state.applied = position + 1;
        }
    }

    /// Loads the first complete checkpoint above a trimmed position whose index is above it. If positions above that index are trimmed,
    /// too, the next one is found in the same way.
    async fn recover(&self, trimmed: u64) -> Result<(), PlayError> {
        hit("log_apps.player.recovers");
        let tail = self.log.tail().await?;
        let mut parts = Parts::new(self.options.max_checkpoint_bytes);
        let mut at = trimmed + 1;
        while at < tail {
            let end = tail.min(at.saturating_add(self.options.read_ahead.max(1) as u64));
            for slot in self.log.read_range(at, end).await? {
                let position = at;
                at += 1;
                let Slot::Data(data) = slot else { continue };
                let entry = AppEntry::open(data).map_err(|error| PlayError::Unreadable(position, error))?;
                let Some((index, saved)) = parts.take(&entry).filter(|(index, _)| *index > trimmed) else {
                    continue;
                };
                let mut state = lock(&self.state);
                if state.applied < index {
                    state.machine.load(saved).map_err(|error| PlayError::Unreadable(position, error))?;
                    state.applied = index;
                }
                return Ok(());
            }
        }
        Err(PlayError::Lost(trimmed))
    }

    /// Appends a checkpoint of the state as it is now, in parts. Returns its index once all parts are durable. The log may then be trimmed
    /// below that index.
    pub async fn checkpoint(&self, id: OpId) -> Result<u64, PlayError> {
        let (index, saved) = self.view(|machine, applied| (applied, machine.save()));
        for part in entry::checkpoint(id, index, &saved) {
            self.append_surely(part).await?;
        }
        Ok(index)
    }

    /// Appends an entry that may be in the log more than once. Returns the position of the copy that is known to be there.
    pub(crate) async fn append_surely(&self, data: Bytes) -> Result<u64, LogError> {
        let mut last = LogError::Unknown(None);
        for _ in 0..self.options.fill_attempts.max(1) {
            match self.log.append(data.clone()).await {
                Err(LogError::Unknown(position)) => last = LogError::Unknown(position),
                done => return done,
            }
        }
        Err(last)
    }

    /// Appends an entry whose record has a name, so that only one of its copies takes effect (apps-A3). Repeats it while the outcome is
    /// unknown, `attempts` times in all. None if the outcome stays unknown.
    pub(crate) async fn append_named(&self, data: Bytes, attempts: usize) -> Result<Option<Place>, LogError> {
        let mut is_in_doubt = false;
        for _ in 0..attempts.max(1) {
            match self.log.append_to_shard(data.clone()).await {
                Ok(place) => return Ok(Some(place)),
                Err(LogError::Unknown(_)) => is_in_doubt = true,
                Err(error) if !is_in_doubt => return Err(error),
                Err(_) => {}
            }
            hit("log_apps.player.in_doubt");
        }
        Ok(None)
    }
}

fn hash_saved(applied: u64, state: &Bytes) -> u64 {
    entry::hash(&[&applied.to_le_bytes()[..], state].concat())
}
