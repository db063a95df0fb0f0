//! Ensures that each entry is applied exactly once: keeps the last applied entry of each proposer (contracts X15).
//!
//! A proposer is identified here by its client id and numbers its entries from 1, without gaps. An entry whose number was already
//! applied is a second copy and changes nothing. Every replica refuses an entry that leaves a gap: the missing entry may still
//! arrive, and applying it then would reverse their order. So it does after an excised entry, too: nothing that was proposed behind it
//! may be applied without it.

use std::collections::BTreeMap;

use atoll_contract::{ClientId, LogPos, OpId};
use atoll_core::record;

/// The number of proposers that are remembered. Each life of a node is a proposer, and it becomes a new one whenever it loses an
/// entry.
const MOST: usize = 1024;

record! {
    /// A proposer.
    pub struct Row {
        /// Its client id, drawn at random.
        pub client: u64,
        /// The number of its last applied entry.
        pub last_seq: u64,
        /// The position of that entry.
        pub last_at: LogPos,
    }
}

record! {
    /// The proposers, as the store and state snapshots keep them.
    pub struct ProposersRecord {
        /// The remembered proposers.
        pub rows: Vec<Row>,
        /// A position above the last entry of every forgotten proposer.
        pub forgotten_below: LogPos,
    }
}

/// The decision about an entry, based on its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// It is its proposer's next entry and must be applied.
    Next,
    /// It is a second copy.
    Copy,
    /// It is refused: an earlier entry of its proposer is missing, or its proposer may have been forgotten.
    Refused,
}

/// The number of a proposer's last entry once one of its entries was excised or refused. No entry has it.
const ENDED: u64 = u64::MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proposers {
    rows: BTreeMap<ClientId, (u64, LogPos)>,
    forgotten_below: LogPos,
}

impl Proposers {
    /// Decides what to do with an entry. `since`: no entry of its proposer is below this position.
    pub(crate) fn judge(&self, op: OpId, since: LogPos) -> Judged {
        match self.rows.get(&op.client) {
            Some((ENDED, _)) => Judged::Refused,
            Some((last, _)) if op.seq <= *last => Judged::Copy,
            Some((last, _)) if op.seq == last + 1 => Judged::Next,
            Some(_) => Judged::Refused,
            // A forgotten proposer had entries below `forgotten_below`, so its `since` is below, too, and copies of its entries are
            // refused.
            None if op.seq == 1 && since >= self.forgotten_below => Judged::Next,
            None => Judged::Refused,
        }
    }

    /// Records that an entry that was decided to be [`Judged::Next`] has been applied.
    pub(crate) fn applied(&mut self, op: OpId, at: LogPos) {
        self.rows.insert(op.client, (op.seq, at));
        if self.rows.len() <= MOST {
            return;
        }
        let oldest = self.rows.iter().min_by_key(|(_, (_, at))| *at).map(|(client, (_, at))| (*client, *at));
        if let Some((client, at)) = oldest {
            self.rows.remove(&client);
            self.forgotten_below = self.forgotten_below.max(at.plus(1));
        }
    }

    /// Records that an entry was excised, or that its part of a command is not the next one: no later entry of its proposer is applied,
    /// and no copy of it either. Does nothing for a copy of an entry that was applied.
    pub(crate) fn ended(&mut self, op: OpId, at: LogPos) {
        if self.rows.get(&op.client).is_none_or(|(last, _)| op.seq > *last) {
            self.applied(OpId { seq: ENDED, ..op }, at);
        }
    }

    pub(crate) fn record(&self) -> ProposersRecord {
        let row = |(client, (last_seq, last_at)): (&ClientId, &(u64, LogPos))| Row {
            client: client.0,
            last_seq: *last_seq,
            last_at: *last_at,
        };
        ProposersRecord { rows: self.rows.iter().map(row).collect(), forgotten_below: self.forgotten_below }
    }

    pub(crate) fn of(record: ProposersRecord) -> Self {
        let rows = record.rows.into_iter().map(|r| (ClientId(r.client), (r.last_seq, r.last_at))).collect();
        Proposers { rows, forgotten_below: record.forgotten_below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(client: u64, seq: u64) -> OpId {
        OpId { client: ClientId(client), seq }
    }

    #[test]
    fn only_the_next_number_is_taken() {
        let mut p = Proposers::default();
        assert_eq!(p.judge(op(1, 2), LogPos(0)), Judged::Refused);
        assert_eq!(p.judge(op(1, 1), LogPos(0)), Judged::Next);
        p.applied(op(1, 1), LogPos(5));
        assert_eq!(p.judge(op(1, 1), LogPos(0)), Judged::Copy);
        assert_eq!(p.judge(op(1, 3), LogPos(0)), Judged::Refused);
        assert_eq!(p.judge(op(1, 2), LogPos(0)), Judged::Next);
        assert_eq!(Proposers::of(p.record()), p);
    }

    #[test]
    fn a_copy_of_a_forgotten_proposers_entry_is_refused() {
        let mut p = Proposers::default();
        for n in 0..=MOST as u64 {
            assert_eq!(p.judge(op(n + 1, 1), LogPos(n)), Judged::Next);
            p.applied(op(n + 1, 1), LogPos(n));
        }
        assert_eq!(p.judge(op(1, 1), LogPos(0)), Judged::Refused, "forgotten, and began below the line");
        assert_eq!(p.judge(op(2, 1), LogPos(0)), Judged::Copy, "still remembered");
        assert_eq!(
            p.judge(op(5000, 1), LogPos(1)),
            Judged::Next,
            "a new one that knows of what was forgotten"
        );
    }

    #[test]
    fn nothing_of_a_proposer_follows_its_excised_entry() {
        let mut p = Proposers::default();
        p.applied(op(1, 1), LogPos(5));
        // A copy of what was applied is excised: that changes nothing.
        p.ended(op(1, 1), LogPos(6));
        assert_eq!(p.judge(op(1, 2), LogPos(0)), Judged::Next);
        p.ended(op(1, 2), LogPos(7));
        p.ended(op(2, 1), LogPos(8));
        for (client, seq) in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)] {
            assert_eq!(p.judge(op(client, seq), LogPos(0)), Judged::Refused, "{client}, {seq}");
        }
        assert_eq!(Proposers::of(p.record()), p);
    }

    /// Returns which of a proposer's entries are applied, if the log has them in this order.
    fn taken(log: &[u64]) -> Vec<u64> {
        let mut p = Proposers::default();
        let mut taken = Vec::new();
        for (at, seq) in (0..).zip(log) {
            if p.judge(op(1, *seq), LogPos(0)) == Judged::Next {
                p.applied(op(1, *seq), LogPos(at));
                taken.push(*seq);
            }
        }
        taken
    }

    #[test]
    fn order_holds_whatever_the_log_has_twice_or_late() {
        assert_eq!(taken(&[1, 2, 1, 2, 4, 3, 4, 3, 5]), [1, 2, 3, 4, 5]);
        assert_eq!(taken(&[2, 3, 1, 3, 2]), [1, 2]);
    }
}
