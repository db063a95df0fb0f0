//! Checkpoint and restart of a LogServer.

use bytes::Bytes;

use atoll_core::testing::{Mutant, mutant};
use atoll_core::{Decode, DecodeError, Encode, Loc, RecordKind, Stored, Tick};
use atoll_log::LogletId;

use super::LogServer;
use super::facts::*;
use super::replica::{Replica, Sealing};
use crate::native::config;
use crate::store::{Place, Run};

fn check_format(what: &'static str, got: u8, known: u8) -> Result<(), DecodeError> {
    if got == known {
        return Ok(());
    }
    Err(DecodeError::Invalid { what, value: got.into(), allowed: "1" })
}

impl LogServer {
    pub(super) fn write_checkpoint(&self) -> Bytes {
        let replicas = self.loglets.iter().map(|(loglet, r)| ReplicaState {
            loglet: *loglet,
            config: r.config_bytes.clone(),
            sealed: r.seal != Sealing::Open,
            local_tail: r.local_tail,
            known_tail: r.known_tail,
            trim: r.trim,
        });
        let state = CheckpointState {
            format: CHECKPOINT_FORMAT,
            replicas: replicas.collect(),
            tombstones: self.tombstones.iter().copied().collect(),
        };
        state.to_bytes()
    }

    pub(super) fn read_checkpoint(&mut self, bytes: Bytes) -> Result<(), DecodeError> {
        let state = CheckpointState::from_bytes(bytes)?;
        check_format("version of a LogServer's checkpoint", state.format, CHECKPOINT_FORMAT)?;
        self.tombstones = state.tombstones.into_iter().collect();
        for saved in state.replicas {
            let replica = self.revive(saved.loglet, saved.config)?;
            replica.seal = if saved.sealed { Sealing::Sealed } else { Sealing::Open };
            replica.restore_tail(saved.local_tail);
            replica.known_tail = saved.known_tail;
            replica.trim = saved.trim;
        }
        Ok(())
    }

    fn revive(&mut self, loglet: LogletId, config: Bytes) -> Result<&mut Replica, DecodeError> {
        let parsed = config::parse(&config)?;
        Ok(self
            .loglets
            .entry(loglet)
            .or_insert_with(|| Replica::new(parsed, Bytes::copy_from_slice(&config))))
    }

    pub(super) fn recover_record(&mut self, stored: Stored) -> Result<(), DecodeError> {
        match stored.record.kind {
            RecordKind::Fact => self.recover_fact(Fact::from_bytes(stored.record.head)?),
            RecordKind::Entry => {
                let head = EntryHead::from_bytes(stored.record.head)?;
                check_format("version of an entry record", head.format, ENTRY_FORMAT)?;
                self.recover_entry(head, stored.loc, stored.record.payload.len() as u32)
            }
        }
    }

    fn recover_fact(&mut self, fact: Fact) -> Result<(), DecodeError> {
        match fact {
            Fact::Create { loglet, config } => {
                if !self.tombstones.contains(&loglet) || mutant(Mutant::NativeT10) {
                    self.revive(loglet, config)?;
                }
            }
            Fact::Seal { loglet } => {
                if let Some(replica) = self.loglets.get_mut(&loglet) {
                    replica.seal = Sealing::Sealed;
                }
            }
            Fact::Trim { loglet, to, local_tail } => {
                if let Some(replica) = self.loglets.get_mut(&loglet) {
                    replica.trim = replica.trim.max(to);
                    replica.restore_tail(local_tail);
                }
            }
            Fact::Tombstone { loglet } => {
                self.tombstones.insert(loglet);
                if let Some(replica) = self.loglets.remove(&loglet) {
                    self.dead_places.extend(replica.runs.iter().filter_map(|(_, run)| match run.place {
                        Place::At(loc) => Some(loc),
                        Place::Staged(_) => None,
                    }));
                }
            }
            Fact::Known { loglet, known_tail } => {
                if let Some(replica) = self.loglets.get_mut(&loglet) {
                    replica.known_tail = replica.known_tail.max(known_tail);
                }
            }
        }
        Ok(())
    }

    fn recover_entry(&mut self, head: EntryHead, loc: Loc, len_bytes: u32) -> Result<(), DecodeError> {
        let Some(replica) = self.loglets.get_mut(&head.loglet) else {
            if self.tombstones.contains(&head.loglet) {
                self.dead_places.push(loc);
                return Ok(());
            }
            return Err(DecodeError::Invalid {
                what: "loglet of an entry (upper half)",
                value: (head.loglet.0 >> 64) as u64,
                allowed: "loglets whose creation is in the journal or its checkpoint",
            });
        };
        let end = head.first.plus(head.count.into());
        replica.known_tail = replica.known_tail.max(head.known_tail);
        if !head.filled {
            replica.staged_tail = replica.staged_tail.max(end);
            replica.local_tail = replica.staged_tail;
        }
        match replica.runs.get_mut(head.first) {
            // Moved by compaction, and the old place is not recycled yet: the later record counts.
            Some(run) => {
                if let Place::At(old) = std::mem::replace(&mut run.place, Place::At(loc)) {
                    self.dead_places.push(old);
                }
            }
            None => {
                let place = Place::At(loc);
                let (count, filled) = (head.count, head.filled);
                replica.runs.insert(head.first, Run { count, len_bytes, place, cached: None, filled });
            }
        }
        Ok(())
    }

    pub(super) fn finish_recovery(&mut self) -> Vec<Loc> {
        let mut dead = std::mem::take(&mut self.dead_places);
        for (loglet, replica) in &mut self.loglets {
            dead.extend(replica.runs.trim(replica.trim));
            replica.told_tail = replica.local_tail;
            if replica.lags() {
                self.lagging.insert(*loglet, replica.known_tail);
            }
        }
        if !self.lagging.is_empty() {
            self.next_look = Some(Tick(0));
        }
        dead
    }
}
