//! Commands that are longer than an entry of the log, part by part (`part.rs`).
//!
//! The parts are keys of the state: they count in its hash, a commit writes them, and a refill transfers them. A replica may therefore
//! stop and start between two parts like between any two entries. The parts of a command are in consecutive entries of its proposer,
//! whose numbers have no gaps, so no part is missing or doubled unless an operator has replaced an entry. Then the command is refused, and
//! so is everything that its proposer proposed behind it.
//!
//! There is at most one unfinished command of each node. Anything else that the node proposes ends it: its proposer has died, or has lost
//! an entry. Of a node that proposes nothing any more, it is deleted after a while.

use std::collections::BTreeMap;

use atoll_contract::ClientId;
use atoll_contract::application::{Direction, KeyRange, WriteState, full_key};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, Encode, NodeId, record};
use bytes::{Bytes, BytesMut};

use super::working::Working;
use crate::mutants;
use crate::part::{PARTS, Part};
use crate::store::{StoreError, StoreSnapshot, may_continue};

/// What is left of a command is deleted if its node has proposed nothing for this long, by the time of the log.
const ABANDONED_AFTER_MS: u64 = 600_000;
/// The number of records that are read from the store at a time.
const PAGE_ENTRIES: usize = 64;
const RECORD: u8 = b'n';
const DATA: u8 = b'p';

record! {
    /// A command whose last part is not there yet.
    pub struct Begun {
        /// The client id of its proposer.
        pub client: u64,
        /// The application and the version of the command.
        pub app: u8,
        pub version: u8,
        /// The number of its parts.
        pub of: u32,
        /// Its length in bytes.
        pub bytes: u32,
        /// The number of parts that are there.
        pub parts: u32,
        /// The length of these parts in bytes.
        pub so_far: u32,
        /// The time of the entry with the last of them.
        pub time_ms: u64,
    }
}

impl Copy for Begun {}

/// What came of a part.
pub(super) enum Added {
    /// It was kept.
    Kept,
    /// It was the last one: this is the command.
    Whole(Bytes),
    /// It does not follow the parts that are there. They are deleted.
    Refused,
}

/// The unfinished commands, by node. See the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts(BTreeMap<NodeId, Begun>);

fn record_key(node: NodeId) -> Bytes {
    full_key(PARTS, &[&[RECORD], &node.0.to_be_bytes()[..]].concat())
}

fn data_key(node: NodeId, number: u32) -> Bytes {
    full_key(PARTS, &[&[DATA], &node.0.to_be_bytes()[..], &number.to_be_bytes()[..]].concat())
}

impl Parts {
    /// Reads the unfinished commands of a store.
    pub(super) fn read(from: &dyn StoreSnapshot) -> Result<Parts, StoreError> {
        let mut found = BTreeMap::new();
        if mutant(mutants::DB_PARTS_IN_MEMORY) {
            return Ok(Parts(found));
        }
        let failed = |reason: String| StoreError::lasting("read the parts of commands", reason);
        let mut left = KeyRange::prefix(&full_key(PARTS, &[RECORD]));
        loop {
            let page = from.page(&left, Direction::Forward, PAGE_ENTRIES)?;
            for (key, value) in &page {
                let node = key.last_chunk::<4>().map(|id| NodeId(u32::from_be_bytes(*id)));
                let node = node.ok_or_else(|| failed("a key without a node".to_owned()))?;
                found.insert(node, Begun::from_bytes(value.clone()).map_err(|e| failed(e.to_string()))?);
            }
            match page.last() {
                Some((last, _)) if may_continue(&page, PAGE_ENTRIES) => left = left.above(last),
                _ => return Ok(Parts(found)),
            }
        }
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Deletes what cannot be finished any more when a node proposes something that is no part of a command.
    pub(super) fn passed(&mut self, working: &mut Working, by: NodeId, time_ms: u64) {
        if mutant(mutants::DB_PARTS_UNCHECKED) {
            return;
        }
        let late = |begun: &Begun| time_ms.saturating_sub(begun.time_ms) > ABANDONED_AFTER_MS;
        let gone = self.0.iter().filter(|(node, begun)| **node == by || late(begun)).map(|(node, _)| *node);
        for node in gone.collect::<Vec<_>>() {
            hit("db.parts.abandoned");
            self.delete(working, node);
        }
    }

    fn delete(&mut self, working: &mut Working, node: NodeId) {
        let Some(begun) = self.0.remove(&node) else { return };
        (0..begun.parts).for_each(|number| working.write(&data_key(node, number), None));
        working.write(&record_key(node), None);
    }

    /// Adds a part from an entry of a client id of a node.
    pub(super) fn add(
        &mut self,
        working: &mut Working,
        (node, client): (NodeId, ClientId),
        time_ms: u64,
        part: &Part,
    ) -> Added {
        if part.number == 0 {
            self.passed(working, node, time_ms);
        }
        let Some(begun) = self.before(node, client, part) else {
            hit("db.parts.refused");
            self.delete(working, node);
            return Added::Refused;
        };
        if !part.is_last() {
            hit("db.parts.kept");
            working.write(&data_key(node, begun.parts), Some(part.data.clone()));
            let so_far = begun.so_far + part.data.len() as u32;
            let begun = Begun { parts: begun.parts + 1, so_far, time_ms, ..begun };
            working.write(&record_key(node), Some(begun.to_bytes()));
            self.0.insert(node, begun);
            return Added::Kept;
        }
        let mut whole = BytesMut::with_capacity(begun.bytes as usize);
        for number in 0..begun.parts {
            whole.extend_from_slice(&working.get(&data_key(node, number)).unwrap_or_default());
        }
        whole.extend_from_slice(&part.data);
        self.delete(working, node);
        if whole.len() != begun.bytes as usize && !mutant(mutants::DB_PARTS_UNCHECKED) {
            return Added::Refused;
        }
        hit("db.parts.whole");
        Added::Whole(whole.freeze())
    }

    /// Returns what is there of the command that a part belongs to. None if the part is not the next one.
    fn before(&self, node: NodeId, client: ClientId, part: &Part) -> Option<Begun> {
        let begun = Begun {
            client: client.0,
            app: part.app.0,
            version: part.version,
            of: part.of,
            bytes: part.bytes,
            parts: 0,
            so_far: 0,
            time_ms: 0,
        };
        let known = self.0.get(&node).copied();
        if mutant(mutants::DB_PARTS_UNCHECKED) {
            return Some(known.unwrap_or(begun));
        }
        if part.number == 0 {
            return Some(begun);
        }
        let Begun { parts, so_far, time_ms, .. } = known?;
        let is_next = parts == part.number && known == Some(Begun { parts, so_far, time_ms, ..begun });
        let fits = so_far as usize + part.data.len() <= part.bytes as usize;
        known.filter(|_| is_next && fits)
    }
}
