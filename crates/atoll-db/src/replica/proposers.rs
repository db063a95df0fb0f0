//! Exactly once: which entry of each proposer was the last one applied (contracts X15).
//!
//! A proposer numbers its entries from 1, without gaps. A number that was already applied is a second copy and changes nothing.
//! Every replica refuses a number that leaves one out: the missing entry may still arrive, and taking it then would reverse their
//! order.

use std::collections::BTreeMap;

use atoll_contract::{ClientId, LogPos, OpId};
use atoll_core::record;

/// Proposers that are remembered. One is a life of a node, or a new beginning after entries were lost.
const MOST: usize = 1024;

record! {
    /// One proposer.
    pub struct Row {
        /// Its number, drawn at random.
        pub client: u64,
        /// Its last entry that was applied.
        pub last_seq: u64,
        /// Where that is.
        pub last_at: LogPos,
    }
}

record! {
    /// What is kept of the proposers, in the state and in snapshots.
    pub struct ProposersRecord {
        /// The remembered ones.
        pub rows: Vec<Row>,
        /// Above the last entry of every forgotten one.
        pub forgotten_below: LogPos,
    }
}

/// What an entry is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The next of its proposer: to be applied.
    Next,
    /// A second copy.
    Copy,
    /// One or more before it are missing, or its proposer may have been forgotten: refused.
    Refused,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proposers {
    rows: BTreeMap<ClientId, (u64, LogPos)>,
    forgotten_below: LogPos,
}

impl Proposers {
    /// `since`: below it there is no entry of this proposer.
    pub(crate) fn judge(&self, op: OpId, since: LogPos) -> Judged {
        match self.rows.get(&op.client) {
            Some((last, _)) if op.seq <= *last => Judged::Copy,
            Some((last, _)) if op.seq == last + 1 => Judged::Next,
            Some(_) => Judged::Refused,
            // A forgotten proposer had entries below that line: its copies began there, too.
            None if op.seq == 1 && since >= self.forgotten_below => Judged::Next,
            None => Judged::Refused,
        }
    }

    /// An entry that was judged to be the next was applied.
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

    /// What becomes of the entries of a proposer as the log has them.
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
