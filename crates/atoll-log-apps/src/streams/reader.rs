//! The reader of one object: it plays the object's stream, and reads no other entry of the log.

use std::sync::Arc;

use bytes::Bytes;

use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Decode};

use super::client::StreamError;
use super::index::{Answer, Ask, IndexServer, Saved};
use super::record::StreamRecord;
use crate::entry::AppEntry;
use crate::gather;
use crate::history::Index;
use crate::mutants;
use crate::player::Machine;
use crate::shared_log::{SharedLog, Slot};

/// How many positions one answer of a server may have.
const MAX_POSITIONS: usize = 1024;
/// How many entries are read at once.
const READS: usize = 16;
/// How often a read asks again, because the log was trimmed or a checkpoint was written meanwhile.
const ATTEMPTS: usize = 16;

/// What a reader has read from the log so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Entries of its stream that the object was told.
    pub delivered: u64,
    /// Checkpoints of its stream that it began with.
    pub loaded: u64,
    /// Entries that do not list its stream.
    pub foreign: u64,
}

/// A reader, with the object as it is at an index.
#[derive(Debug)]
pub struct ObjectReader<M> {
    log: Arc<dyn SharedLog>,
    /// The servers, one for each share of the positions.
    shares: Vec<Arc<dyn IndexServer>>,
    stream: Bytes,
    object: M,
    index: Index,
    played: Played,
    max: usize,
}

impl<M: Machine> ObjectReader<M> {
    /// Returns a reader of a stream that has read nothing yet. `object` is the empty object, `shares` has a server for each share.
    pub fn new(log: Arc<dyn SharedLog>, shares: Vec<Arc<dyn IndexServer>>, stream: Bytes, object: M) -> Self {
        let played = Played::default();
        ObjectReader { log, shares, stream, object, index: 0, played, max: MAX_POSITIONS }
    }

    /// Asks for at most so many positions at once, at least 1.
    #[must_use]
    pub fn in_pages_of(mut self, max: usize) -> Self {
        self.max = max.max(1);
        self
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Bytes {
        &self.stream
    }

    /// Returns the object, and its index: it was told all entries of its stream below.
    pub fn object(&self) -> (&M, Index) {
        (&self.object, self.index)
    }

    /// Returns what it has read from the log so far.
    pub fn played(&self) -> Played {
        self.played
    }

    /// Plays the stream up to the tail. Returns the index: the object has everything that was acknowledged before the call.
    pub async fn sync(&mut self) -> Result<Index, StreamError> {
        for _ in 0..ATTEMPTS {
            let tail = self.log.tail().await?;
            match self.sync_to(tail).await {
                Err(StreamError::Overtaken(_)) => {}
                done => return done.map(|()| self.index),
            }
        }
        Err(StreamError::Refused("checkpoints are written faster than they can be read"))
    }

    /// Plays the stream until the object has exactly the entries below `index`, which is not above the tail, unless it has more already.
    pub async fn sync_to(&mut self, index: Index) -> Result<(), StreamError> {
        let mut again = 0;
        while self.index < index {
            let (saved, positions, complete_below) = self.ask(index).await?;
            if let Some(saved) = saved {
                if saved.index > index {
                    return Err(StreamError::Overtaken(index));
                }
                again += 1;
                if again > ATTEMPTS || !self.load(saved).await? {
                    hit("log_apps.streams.trimmed");
                }
                if again > ATTEMPTS {
                    return Err(StreamError::Refused("the log is trimmed faster than it can be read"));
                }
                continue;
            }
            let end = complete_below.min(index);
            if end <= self.index {
                return Err(StreamError::Behind { applied: end, wanted: index });
            }
            let wanted = positions.into_iter().filter(|position| *position < end).collect();
            if self.play(wanted).await? {
                self.index = end;
            } else {
                again += 1;
                if again > ATTEMPTS {
                    return Err(StreamError::Refused("the log is trimmed faster than it can be read"));
                }
            }
        }
        Ok(())
    }

    /// Asks the servers of all shares. Returns the newest checkpoint above where the object is; the entries from there on; and below which
    /// position there are no others in any share.
    async fn ask(&self, at_least: Index) -> Result<(Option<Saved>, Vec<u64>, u64), StreamError> {
        let ask = Ask { stream: self.stream.clone(), from: self.index, at_least, max: self.max };
        let asked: Vec<BoxFuture<'_, _>> = self.shares.iter().map(|share| share.ask(ask.clone())).collect();
        let answers: Vec<Answer> = gather::all(asked).await.into_iter().collect::<Result<_, _>>()?;
        let saved = answers.iter().filter_map(|answer| answer.saved).max_by_key(|saved| saved.index);
        let ends = answers.iter().map(|answer| answer.complete_below);
        let end = if mutant(mutants::APPS_V6) { ends.max() } else { ends.min() };
        let mut positions: Vec<u64> = answers.into_iter().flat_map(|answer| answer.positions).collect();
        positions.sort_unstable();
        Ok((saved, positions, end.unwrap_or(0)))
    }

    /// Begins with a checkpoint. Returns false if it was trimmed: then there is a newer one.
    async fn load(&mut self, saved: Saved) -> Result<bool, StreamError> {
        let data = match self.log.read(saved.position).await? {
            Slot::Data(data) => data,
            Slot::Trimmed => return Ok(false),
            Slot::Junk | Slot::Unwritten => return Err(StreamError::Damaged(saved.position)),
        };
        match record(data, saved.position)? {
            StreamRecord::Checkpoint { stream, index, state }
                if stream == self.stream && index == saved.index =>
            {
                self.object.load(state).map_err(|error| StreamError::Unreadable(saved.position, error))?;
                self.index = if mutant(mutants::APPS_V2) { saved.position } else { index };
                self.played.loaded += 1;
                Ok(true)
            }
            _ => Err(StreamError::Damaged(saved.position)),
        }
    }

    /// Reads entries, in order, and tells the object. Returns false if one was trimmed meanwhile: then a checkpoint replaces it.
    async fn play(&mut self, positions: Vec<u64>) -> Result<bool, StreamError> {
        for some in positions.chunks(READS) {
            let reads: Vec<BoxFuture<'_, _>> = some.iter().map(|position| self.log.read(*position)).collect();
            let slots = gather::all(reads).await;
            for (position, slot) in some.iter().zip(slots) {
                match slot? {
                    Slot::Data(data) => self.tell(*position, data)?,
                    Slot::Trimmed => return Ok(false),
                    Slot::Junk | Slot::Unwritten => return Err(StreamError::Damaged(*position)),
                }
            }
        }
        Ok(true)
    }

    fn tell(&mut self, position: u64, data: Bytes) -> Result<(), StreamError> {
        let StreamRecord::Update { parts, .. } = record(data, position)? else {
            self.played.foreign += 1;
            return Ok(());
        };
        let Some((_, body)) = parts.into_iter().find(|(stream, _)| *stream == self.stream) else {
            self.played.foreign += 1;
            return Ok(());
        };
        self.object.apply(position, body).map_err(|error| StreamError::Unreadable(position, error))?;
        self.played.delivered += 1;
        // What comes after it may fail. It is not to be told again.
        self.index = position + 1;
        Ok(())
    }
}

/// Plays several objects to one index, at or above everything that was acknowledged before the call: what they hold was true at one time.
pub async fn read_together<M: Machine>(readers: &mut [&mut ObjectReader<M>]) -> Result<Index, StreamError> {
    let Some(first) = readers.first() else { return Err(StreamError::Refused("no object is named")) };
    let log = first.log.clone();
    'again: for _ in 0..ATTEMPTS {
        let tail = log.tail().await?;
        for reader in readers.iter_mut() {
            match reader.sync_to(tail).await {
                Ok(()) if reader.index == tail => {}
                // Another read took it further, or a checkpoint did.
                Ok(()) | Err(StreamError::Overtaken(_)) => continue 'again,
                Err(error) => return Err(error),
            }
        }
        return Ok(tail);
    }
    Err(StreamError::Refused("checkpoints are written faster than they can be read"))
}

fn record(data: Bytes, position: u64) -> Result<StreamRecord, StreamError> {
    let unreadable = |error| StreamError::Unreadable(position, error);
    match AppEntry::open(data).map_err(unreadable)? {
        AppEntry::Record { body } => StreamRecord::from_bytes(body).map_err(unreadable),
        AppEntry::Part { .. } => Err(StreamError::Damaged(position)),
    }
}
