//! Writes checkpoints, and restores the store at a restart.

use std::ops::Bound;

use bytes::{Bytes, BytesMut};

use atoll_contract::{LogletId, Offset};
use atoll_core::codec::OpenList;
use atoll_core::testing::hit;
use atoll_core::{Decode, DecodeError, Encode, Loc, RecordKind, Stored};

use super::facts::*;
use super::loglet_store::{LogletState, LogletStore, Protocol, Sealing};
use super::runs::{Place, Run};

/// The usual size in bytes of a [`KeptState`] of three servers; the buffer grows if needed.
const USUAL_STATE_BYTES: usize = 160;

fn check_format(what: &'static str, got: u8, known: u8) -> Result<(), DecodeError> {
    if got == known {
        return Ok(());
    }
    Err(DecodeError::Invalid { what, value: got.into(), allowed: "1" })
}

/// A [`CheckpointState`] under construction. It is built in steps, because encoding a million Loglets takes a while. It is encoded
/// directly, so that the list of their states is not in memory in addition to the bytes.
#[derive(Debug)]
pub(super) struct Walk {
    out: BytesMut,
    list: OpenList,
    /// The last Loglet in the list.
    after: Option<LogletId>,
    in_tombstones: bool,
}

impl Walk {
    fn begin(loglets: usize, tombstones: usize) -> Self {
        let mut out = BytesMut::with_capacity(USUAL_STATE_BYTES * loglets + 16 * tombstones + 9);
        STATE_FORMAT.encode(&mut out);
        let list = OpenList::begin(&mut out);
        Walk { out, list, after: None, in_tombstones: false }
    }

    /// Returns the range of Loglets that are not in the list yet.
    fn rest(&self) -> (Bound<LogletId>, Bound<LogletId>) {
        (self.after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }

    fn push(&mut self, loglet: LogletId, item: &impl Encode) {
        self.list.push(item, &mut self.out);
        self.after = Some(loglet);
    }

    fn begin_tombstones(&mut self) {
        let list = OpenList::begin(&mut self.out);
        std::mem::replace(&mut self.list, list).end(&mut self.out);
        (self.after, self.in_tombstones) = (None, true);
    }

    fn end(mut self) -> Bytes {
        self.list.end(&mut self.out);
        self.out.freeze()
    }
}

impl<P: Protocol> LogletStore<P> {
    /// Encodes all facts, about `max_bytes` more in each call; returns None until all are included. Nothing in the result depends on an
    /// entry that is only staged (see [`atoll_core::Role::checkpoint`]).
    pub fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        let begun = self.walk.take();
        let mut walk = begun.unwrap_or_else(|| Walk::begin(self.loglets.len(), self.tombstones.len()));
        let end = walk.out.len().saturating_add(max_bytes.max(1));
        if !walk.in_tombstones {
            for (loglet, k) in self.loglets.range(walk.rest()) {
                if walk.out.len() >= end {
                    hit("store.checkpoint.step");
                    self.walk = Some(walk);
                    return None;
                }
                let state = KeptState {
                    loglet: *loglet,
                    config: k.config_bytes.clone(),
                    sealed: k.seal != Sealing::Open,
                    local_tail: k.local_tail,
                    known_tail: k.known_tail,
                    trim: k.trim,
                    settled: k.settled,
                };
                walk.push(*loglet, &state);
            }
            walk.begin_tombstones();
        }
        for loglet in self.tombstones.range(walk.rest()) {
            if walk.out.len() >= end {
                self.walk = Some(walk);
                return None;
            }
            walk.push(*loglet, loglet);
        }
        Some(walk.end())
    }

    /// Restores a checkpoint.
    pub fn restore(&mut self, bytes: Bytes) -> Result<(), DecodeError> {
        let state = CheckpointState::from_bytes(bytes)?;
        check_format("version of a checkpoint of loglets", state.format, STATE_FORMAT)?;
        self.tombstones = state.tombstones.into_iter().collect();
        for saved in state.kept {
            // A Loglet that was deleted between two steps of the checkpoint is in both lists.
            if self.tombstones.contains(&saved.loglet) {
                continue;
            }
            let kept = self.revive(saved.loglet, saved.config)?;
            kept.seal = if saved.sealed { Sealing::Sealed } else { Sealing::Open };
            kept.restore_tail(saved.local_tail);
            kept.known_tail = saved.known_tail;
            kept.trim = saved.trim;
            kept.settled = saved.settled;
        }
        Ok(())
    }

    fn revive(&mut self, loglet: LogletId, config: Bytes) -> Result<&mut LogletState<P>, DecodeError> {
        let (bytes, read) = self.config(&config)?;
        Ok(self.loglets.entry(loglet).or_insert_with(|| Box::new(LogletState::new(P::new(read), bytes))))
    }

    /// Replays a record. Returns the entries if they are new, so that the protocol can recover what else it keeps about them.
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
                    self.entry_bytes -= kept.runs.len_bytes();
                    let dead = kept.runs.sweep(Offset(u64::MAX), usize::MAX);
                    self.occupied.remove(loglet, &dead);
                    self.dead_places.extend(dead);
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
            // Compaction has moved the run, and the old location is not recycled yet: the later record counts.
            if let Place::At(old) = std::mem::replace(&mut run.place, Place::At(loc)) {
                self.occupied.remove(head.loglet, &[old]);
                self.dead_places.push(old);
            }
            self.occupied.add(head.loglet, loc);
            return Ok(false);
        }
        let (place, count, filled) = (Place::At(loc), head.count, head.filled);
        kept.runs.insert(head.first, Run { count, len_bytes, place, cached: None, filled });
        self.occupied.add(head.loglet, loc);
        self.entry_bytes += u64::from(len_bytes);
        Ok(true)
    }

    /// Ends recovery after the last record. Returns the locations that are no longer needed.
    pub fn recovered(&mut self) -> Vec<Loc> {
        let mut dead = std::mem::take(&mut self.dead_places);
        for (id, kept) in &mut self.loglets {
            kept.runs.give_up_below(kept.trim);
            let before = kept.runs.len_bytes();
            let below = kept.runs.sweep(kept.trim, usize::MAX);
            self.occupied.remove(*id, &below);
            dead.extend(below);
            self.entry_bytes -= before - kept.runs.len_bytes();
        }
        dead
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::loglet_store::LogletStoreOptions;
    use super::*;
    use atoll_core::{Effects, Lsn, NodeId, RoleKind};

    struct Plain;

    impl Protocol for Plain {
        type Config = ();

        fn read_config(_: &Bytes) -> Result<(), DecodeError> {
            Ok(())
        }

        fn new((): ()) -> Self {
            Plain
        }
    }

    #[test]
    fn a_checkpoint_has_the_bytes_of_its_record() {
        let mut keeper = LogletStore::<Plain>::new(LogletStoreOptions::default());
        let mut out = Effects::detached(NodeId(1), RoleKind(1), Lsn::NONE);
        for id in 1..=5u128 {
            let config = Bytes::from(vec![7; id as usize]);
            let config = keeper.config(&config).unwrap();
            keeper.create(LogletId(id), config, &mut out);
        }
        keeper.stage_seal(LogletId(2), &mut out);
        keeper.stage_delete(LogletId(4), &mut out);
        let bytes = keeper.checkpoint(usize::MAX).unwrap();
        let state = CheckpointState::from_bytes(bytes.clone()).unwrap();
        assert_eq!(state.kept.len(), 4);
        assert!(state.kept[1].sealed && state.tombstones == [LogletId(4)]);
        assert_eq!(state.to_bytes(), bytes);
        let mut again = LogletStore::<Plain>::new(LogletStoreOptions::default());
        again.restore(bytes.clone()).unwrap();
        assert_eq!(again.checkpoint(usize::MAX).unwrap(), bytes);
    }

    /// A Loglet that is deleted between two steps is gone, whether or not the checkpoint had already passed it. A Loglet created meanwhile
    /// is in the checkpoint or in the journal.
    #[test]
    fn a_checkpoint_in_steps_shows_no_deleted_loglet() {
        for deleted in 1..=20u128 {
            let mut keeper = LogletStore::<Plain>::new(LogletStoreOptions::default());
            let mut out = Effects::detached(NodeId(1), RoleKind(1), Lsn::NONE);
            let config = Bytes::from_static(b"config");
            for id in 1..=20u128 {
                let config = keeper.config(&config).unwrap();
                keeper.create(LogletId(id), config, &mut out);
            }
            keeper.stage_seal(LogletId(7), &mut out);
            let whole = keeper.checkpoint(usize::MAX).unwrap();
            let mut steps = 0;
            while keeper.walk.as_ref().is_none_or(|walk| walk.after < Some(LogletId(10))) {
                assert!(keeper.checkpoint(KEPT).is_none());
                steps += 1;
            }
            assert!(steps > 3, "{steps}");
            keeper.stage_delete(LogletId(deleted), &mut out);
            let stepped = std::iter::from_fn(|| Some(keeper.checkpoint(KEPT))).flatten().next().unwrap();
            let mut again = LogletStore::<Plain>::new(LogletStoreOptions::default());
            again.restore(stepped).unwrap();
            let mut same = LogletStore::<Plain>::new(LogletStoreOptions::default());
            same.restore(whole).unwrap();
            same.stage_delete(LogletId(deleted), &mut out);
            assert_eq!(again.checkpoint(usize::MAX), same.checkpoint(usize::MAX), "{deleted}");
        }
    }

    /// The bytes of a step that covers one or two Loglets.
    const KEPT: usize = 60;
}
