//! Checks native-N7 from outside the nodes: every offset that a LogServer lacks below its local tail is committed, and another node told
//! the server so.
//!
//! A server may skip only offsets that it knows to be committed. It learns that only from messages: Store, Advance, Repair and BackFill.
//! The oracle therefore checks three things without asking the server:
//!
//! - a record on its disk that skips offsets has a known tail that covers them;
//! - no record has a known tail above those that were sent to the node (native-N9, in `oracle.rs`, checks that those are true);
//! - below a local tail that the server reports, every offset is on its disk, or below a known tail or trim that was sent to it.

use std::collections::BTreeMap;

use atoll_contract::testing::{Violations, Who};
use atoll_contract::{LogletId, Offset};
use atoll_core::{Decode, DecodeError, NodeId, Reader, Record, StorageId};

use super::ghost::MAX_OFFSETS;

/// The head of an entry record, parsed by the oracle itself.
pub(super) struct Head {
    pub(super) loglet: LogletId,
    pub(super) first: Offset,
    count: u32,
    /// Whether it came by back-fill, which raises no tail.
    filled: bool,
    known_tail: Offset,
}

impl Head {
    pub(super) fn read(record: &Record) -> Result<Self, DecodeError> {
        let mut from = Reader::new(record.head.clone());
        u8::decode(&mut from)?;
        Ok(Head {
            loglet: LogletId::decode(&mut from)?,
            first: Offset::decode(&mut from)?,
            count: u32::decode(&mut from)?,
            filled: bool::decode(&mut from)?,
            known_tail: Offset::decode(&mut from)?,
        })
    }
}

/// The copy of one Loglet on one disk.
#[derive(Debug, Default)]
struct Disk {
    /// For each offset, whether the disk has it.
    has: Vec<bool>,
    /// The offset above every entry that came by Store or Repair.
    tail: u64,
    /// Everything below this was checked: each offset is present or may be missing. That never changes, so no offset is checked twice.
    judged: u64,
}

/// The copies of all Loglets on all disks.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    disks: BTreeMap<(LogletId, StorageId), Disk>,
    /// The highest offset below which a message told the node that everything is committed or trimmed.
    notified: BTreeMap<(LogletId, NodeId), u64>,
}

impl Gaps {
    /// Notes that a message told a server that everything below `at` is committed or trimmed.
    pub(super) fn notified(&mut self, loglet: LogletId, node: NodeId, at: Offset) {
        let notified = self.notified.entry((loglet, node)).or_default();
        *notified = at.0.max(*notified);
    }

    /// Checks and notes entries that became durable.
    pub(super) fn on_disk(&mut self, who: &Who, head: &Head, verdict: &mut Violations) {
        let (loglet, node, first) = (head.loglet, who.node, head.first.0);
        let end = (first + u64::from(head.count)).min(MAX_OFFSETS);
        let notified = self.notified.get(&(loglet, node)).copied().unwrap_or_default();
        if head.known_tail.0 > notified {
            verdict.fail(format!(
                "native-N7 known tail from nowhere: loglet {loglet}: node {node} writes down {}, it was told {notified} at most",
                head.known_tail
            ));
        }
        let disk = self.disks.entry((loglet, who.storage)).or_default();
        if !head.filled && first > disk.tail && first > head.known_tail.0 {
            verdict.fail(format!(
                "native-N7 skipped what is not committed: loglet {loglet}: node {node} keeps {first} behind {}, its known tail is {}",
                disk.tail, head.known_tail
            ));
        }
        disk.has.resize(disk.has.len().max(end as usize), false);
        disk.has[first.min(end) as usize..end as usize].fill(true);
        if !head.filled {
            disk.tail = disk.tail.max(end);
        }
    }

    /// Checks a local tail that a server reports.
    pub(super) fn says(&mut self, who: &Who, loglet: LogletId, tail: Offset, verdict: &mut Violations) {
        let notified = self.notified.get(&(loglet, who.node)).copied().unwrap_or_default();
        let disk = self.disks.entry((loglet, who.storage)).or_default();
        while disk.judged < tail.0.min(MAX_OFFSETS) {
            let at = disk.judged;
            if at >= notified && !disk.has.get(at as usize).copied().unwrap_or_default() {
                return verdict.fail(format!(
                    "native-N7 missing and not committed: loglet {loglet}: node {} tells a tail of {tail} and lacks {at}; it was told {notified}",
                    who.node
                ));
            }
            disk.judged += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGLET: LogletId = LogletId(7);

    fn who() -> Who {
        Who { node: NodeId(1), life: 1, storage: StorageId(1) }
    }

    fn entry(first: u64, filled: bool, known_tail: u64) -> Head {
        Head { loglet: LOGLET, first: Offset(first), count: 2, filled, known_tail: Offset(known_tail) }
    }

    fn failure_of(f: impl FnOnce(&mut Gaps, &mut Violations)) -> String {
        let (mut gaps, mut verdict) = (Gaps::default(), Violations::default());
        f(&mut gaps, &mut verdict);
        verdict.failures.join("; ")
    }

    #[test]
    fn what_is_committed_may_be_missing() {
        let why = failure_of(|gaps, verdict| {
            gaps.on_disk(&who(), &entry(0, false, 0), verdict);
            gaps.notified(LOGLET, NodeId(1), Offset(6));
            gaps.on_disk(&who(), &entry(6, false, 6), verdict);
            gaps.says(&who(), LOGLET, Offset(8), verdict);
            gaps.on_disk(&who(), &entry(2, true, 6), verdict);
            gaps.says(&who(), LOGLET, Offset(8), verdict);
        });
        assert_eq!(why, "");
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let skips = failure_of(|gaps, verdict| {
            gaps.notified(LOGLET, NodeId(1), Offset(3));
            gaps.on_disk(&who(), &entry(4, false, 3), verdict);
        });
        assert!(skips.contains("skipped what is not committed"), "{skips}");
        let invents = failure_of(|gaps, verdict| {
            gaps.notified(LOGLET, NodeId(2), Offset(4));
            gaps.on_disk(&who(), &entry(4, false, 4), verdict);
        });
        assert!(invents.contains("from nowhere"), "{invents}");
        let lacks = failure_of(|gaps, verdict| {
            gaps.on_disk(&who(), &entry(0, false, 0), verdict);
            // This record came by back-fill, so it is no evidence that 2 and 3 are committed.
            gaps.notified(LOGLET, NodeId(1), Offset(3));
            gaps.on_disk(&who(), &entry(4, true, 0), verdict);
            gaps.says(&who(), LOGLET, Offset(6), verdict);
        });
        assert!(lacks.contains("lacks 3"), "{lacks}");
    }
}
