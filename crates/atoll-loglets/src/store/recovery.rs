//! Checkpoint and restart.

use bytes::Bytes;

use atoll_core::{Decode, DecodeError, Encode, Loc, RecordKind, Stored};
use atoll_log::{LogletId, Offset};

use super::facts::*;
use super::keeper::{Keeper, Kept, Protocol, Sealing};
use super::runs::{Place, Run};

fn check_format(what: &'static str, got: u8, known: u8) -> Result<(), DecodeError> {
    if got == known {
        return Ok(());
    }
    Err(DecodeError::Invalid { what, value: got.into(), allowed: "1" })
}

impl<P: Protocol> Keeper<P> {
    /// All facts; nothing in it rests on an entry that is only staged (see [`atoll_core::Role::checkpoint`]).
    pub fn checkpoint(&self) -> Bytes {
        let kept = self.loglets.iter().map(|(loglet, k)| KeptState {
            loglet: *loglet,
            config: k.config_bytes.clone(),
            sealed: k.seal != Sealing::Open,
            local_tail: k.local_tail,
            known_tail: k.known_tail,
            trim: k.trim,
            settled: k.settled,
        });
        let state = CheckpointState {
            format: CHECKPOINT_FORMAT,
            kept: kept.collect(),
            tombstones: self.tombstones.iter().copied().collect(),
        };
        state.to_bytes()
    }

    /// Takes a checkpoint back.
    pub fn restore(&mut self, bytes: Bytes) -> Result<(), DecodeError> {
        let state = CheckpointState::from_bytes(bytes)?;
        check_format("version of a checkpoint of loglets", state.format, CHECKPOINT_FORMAT)?;
        self.tombstones = state.tombstones.into_iter().collect();
        for saved in state.kept {
            let kept = self.revive(saved.loglet, saved.config)?;
            kept.seal = if saved.sealed { Sealing::Sealed } else { Sealing::Open };
            kept.restore_tail(saved.local_tail);
            kept.known_tail = saved.known_tail;
            kept.trim = saved.trim;
            kept.settled = saved.settled;
        }
        Ok(())
    }

    fn revive(&mut self, loglet: LogletId, config: Bytes) -> Result<&mut Kept<P>, DecodeError> {
        let own = P::from_config(&config)?;
        Ok(self.loglets.entry(loglet).or_insert_with(|| Kept::new(own, Bytes::copy_from_slice(&config))))
    }

    /// Takes a record back; entries that are new are handed on, for what else the protocol keeps of them.
    pub fn recover(&mut self, stored: Stored) -> Result<Option<(LogletId, Offset, Bytes)>, DecodeError> {
        match stored.record.kind {
            RecordKind::Fact => {
                self.recover_fact(Fact::from_bytes(stored.record.head)?)?;
                Ok(None)
            }
            RecordKind::Entry => {
                let head = EntryHead::from_bytes(stored.record.head)?;
                check_format("version of an entry record", head.format, ENTRY_FORMAT)?;
                let (loglet, first) = (head.loglet, head.first);
                let new = self.recover_entry(head, stored.loc, stored.record.payload.len() as u32)?;
                Ok(new.then_some((loglet, first, stored.record.payload)))
            }
        }
    }

    fn recover_fact(&mut self, fact: Fact) -> Result<(), DecodeError> {
        match fact {
            Fact::Create { loglet, config } => {
                if !self.is_gone(loglet) {
                    self.revive(loglet, config)?;
                }
            }
            Fact::Seal { loglet } => {
                if let Some(kept) = self.loglets.get_mut(&loglet) {
                    kept.seal = Sealing::Sealed;
                }
            }
            Fact::Trim { loglet, to, local_tail } => {
                if let Some(kept) = self.loglets.get_mut(&loglet) {
                    kept.trim = kept.trim.max(to);
                    kept.restore_tail(local_tail);
                }
            }
            Fact::Tombstone { loglet } => {
                self.tombstones.insert(loglet);
                if let Some(mut kept) = self.loglets.remove(&loglet) {
                    self.dead_places.extend(kept.runs.sweep(Offset(u64::MAX), usize::MAX));
                }
            }
            Fact::Known { loglet, known_tail } => {
                if let Some(kept) = self.loglets.get_mut(&loglet) {
                    kept.known_tail = kept.known_tail.max(known_tail);
                    kept.settled = true;
                }
            }
        }
        Ok(())
    }

    fn recover_entry(&mut self, head: EntryHead, loc: Loc, len_bytes: u32) -> Result<bool, DecodeError> {
        let Some(kept) = self.loglets.get_mut(&head.loglet) else {
            if self.tombstones.contains(&head.loglet) {
                self.dead_places.push(loc);
                return Ok(false);
            }
            return Err(DecodeError::Invalid {
                what: "loglet of an entry (upper half)",
                value: (head.loglet.0 >> 64) as u64,
                allowed: "loglets whose creation is in the journal or its checkpoint",
            });
        };
        let end = head.first.plus(head.count.into());
        kept.known_tail = kept.known_tail.max(head.known_tail);
        if !head.filled {
            kept.staged_tail = kept.staged_tail.max(end);
            kept.local_tail = kept.staged_tail;
        }
        if let Some(run) = kept.runs.get_mut(head.first) {
            // Moved by compaction, and the old place is not recycled yet: the later record counts.
            if let Place::At(old) = std::mem::replace(&mut run.place, Place::At(loc)) {
                self.dead_places.push(old);
            }
            return Ok(false);
        }
        let (place, count, filled) = (Place::At(loc), head.count, head.filled);
        kept.runs.insert(head.first, Run { count, len_bytes, place, cached: None, filled });
        Ok(true)
    }

    /// The last record was taken back: places that nobody needs.
    pub fn recovered(&mut self) -> Vec<Loc> {
        let mut dead = std::mem::take(&mut self.dead_places);
        for kept in self.loglets.values_mut() {
            kept.runs.give_up_below(kept.trim);
            dead.extend(kept.runs.sweep(kept.trim, usize::MAX));
        }
        dead
    }
}
