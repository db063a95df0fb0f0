//! native-N7 from outside: whatever a LogServer lacks below its local tail is committed, and another node had told it so.
//!
//! A server may only skip offsets that it knows to be committed, and it learns that only from the senders of Store, Advance, Repair
//! and BackFill. So three things are checked, each without asking the server:
//!
//! - a record on its disk that skips offsets was written when a known tail covered them;
//! - no record claims a known tail above all that was ever sent to its node (whether those are true is native-N9, in `native.rs`);
//! - below a local tail that the server reports, every offset is on its disk, or below such a known tail, or trimmed.

use std::collections::BTreeMap;

use atoll_contract::{LogletId, Offset};
use atoll_core::{Decode, NodeId, Record, StorageId};
use atoll_core::{DecodeError, Reader};

use crate::oracle::native::MAX_OFFSETS;
use crate::world::observer::{Violations, Who};

/// The head of an entry record, read by ourselves.
pub(super) struct Head {
    pub(super) loglet: LogletId,
    pub(super) first: Offset,
    count: u32,
    /// By back-fill: raises no tail.
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

/// One Loglet on one disk.
#[derive(Debug, Default)]
struct Disk {
    /// By offset: it is there.
    has: Vec<bool>,
    /// Above every offset that came by Store or Repair.
    tail: u64,
    /// Below this, every offset is there or may be missing. Neither ever ends, so no offset is checked twice.
    judged: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    disks: BTreeMap<(LogletId, StorageId), Disk>,
    /// Everything below is committed, as somebody told the node.
    told: BTreeMap<(LogletId, NodeId), u64>,
}

impl Gaps {
    /// Notes that a message to a server says that everything below is committed, or given up.
    pub(super) fn told(&mut self, loglet: LogletId, node: NodeId, at: Offset) {
        let told = self.told.entry((loglet, node)).or_default();
        *told = at.0.max(*told);
    }

    /// Entries have become durable.
    pub(super) fn on_disk(&mut self, who: &Who, head: &Head, verdict: &mut Violations) {
        let (loglet, node, first) = (head.loglet, who.node, head.first.0);
        let end = (first + u64::from(head.count)).min(MAX_OFFSETS);
        let told = self.told.get(&(loglet, node)).copied().unwrap_or_default();
        if head.known_tail.0 > told {
            verdict.fail(format!(
                "native-N7 known tail from nowhere: loglet {loglet}: node {node} writes down {}, it was told {told} at most",
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

    /// A server tells its local tail.
    pub(super) fn says(&mut self, who: &Who, loglet: LogletId, tail: Offset, verdict: &mut Violations) {
        let told = self.told.get(&(loglet, who.node)).copied().unwrap_or_default();
        let disk = self.disks.entry((loglet, who.storage)).or_default();
        while disk.judged < tail.0.min(MAX_OFFSETS) {
            let at = disk.judged;
            if at >= told && !disk.has.get(at as usize).copied().unwrap_or_default() {
                return verdict.fail(format!(
                    "native-N7 missing and not committed: loglet {loglet}: node {} tells a tail of {tail} and lacks {at}; it was told {told}",
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
    use atoll_core::Incarnation;

    const LOGLET: LogletId = LogletId(7);

    fn who() -> Who {
        Who { host: 0, node: NodeId(1), life: 1, incarnation: Incarnation(1), storage: StorageId(1) }
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
            gaps.told(LOGLET, NodeId(1), Offset(6));
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
            gaps.told(LOGLET, NodeId(1), Offset(3));
            gaps.on_disk(&who(), &entry(4, false, 3), verdict);
        });
        assert!(skips.contains("skipped what is not committed"), "{skips}");
        let invents = failure_of(|gaps, verdict| {
            gaps.told(LOGLET, NodeId(2), Offset(4));
            gaps.on_disk(&who(), &entry(4, false, 4), verdict);
        });
        assert!(invents.contains("from nowhere"), "{invents}");
        let lacks = failure_of(|gaps, verdict| {
            gaps.on_disk(&who(), &entry(0, false, 0), verdict);
            // By back-fill: it is no evidence that 2 and 3 were given up.
            gaps.told(LOGLET, NodeId(1), Offset(3));
            gaps.on_disk(&who(), &entry(4, true, 0), verdict);
            gaps.says(&who(), LOGLET, Offset(6), verdict);
        });
        assert!(lacks.contains("lacks 3"), "{lacks}");
    }
}
