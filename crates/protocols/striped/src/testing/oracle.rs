//! Checks striped Loglets from outside of the nodes. It sees which entries of the stripes are synced on some disk, what clients were told,
//! and the stops in chains. Of the protocol, it uses only the configuration and the numbers of parts in ids. The stripes' own oracles check
//! that what counts as stored is on enough disks.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | striped-I1 | when an append is acknowledged, every earlier position is on some disk, and the record is at its position |
//! | striped-I3, vlog-VL6 | acknowledged positions are below every sealed tail that is returned and every stop that is installed |
//! | vlog-L4 | everything below a tail is on some disk; no open tail is above a sealed one |
//! | striped-I7 | a pad is below a record that some stripe had before: nobody waits for what is above |
//! | native-N1 | a position never has two values, on any disk |

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_contract::testing::{Oracle, Violations, Who, digest};
use atoll_contract::{Batch, Entry, LogletId, Offset, OpId};
use atoll_core::testing::hit;
use atoll_core::{Decode, DecodeError, Lsn, Reader, Record, RecordKind};

use crate::config::{self, Mode};

/// What is at an offset of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    op: OpId,
    digest: u64,
}

/// One stripe.
#[derive(Debug, Default)]
struct Stripe {
    contents: BTreeMap<u64, Content>,
    /// Everything below is on some disk.
    filled: u64,
    /// The end of the records, without pads, that are on some disk.
    records_end: u64,
}

/// One striped Loglet.
#[derive(Debug, Default)]
struct Ghost {
    /// The number of stripes. 0 until a chain has named the Loglet.
    count: u64,
    /// By number, from 0 on.
    stripes: BTreeMap<u64, Stripe>,
    /// Every acknowledged position is below.
    acked: u64,
    open_tail: u64,
    sealed_tail: Option<u64>,
    /// Offsets that were found to have two values before a chain named the Loglet. Parts of other kinds need not have the same entries on
    /// all disks, and a copy is made before a chain names it.
    suspected: Option<String>,
}

/// All striped Loglets of a run.
#[derive(Debug, Default)]
pub(super) struct StripedOracle {
    loglets: BTreeMap<LogletId, Ghost>,
}

/// Reads which entries a record holds. The oracle knows the form of records from the format on disk, not from the code of the stripes.
fn head_of(record: &Record) -> Result<(LogletId, Offset), DecodeError> {
    let mut from = Reader::new(record.head.clone());
    u8::decode(&mut from)?;
    Ok((LogletId::decode(&mut from)?, Offset::decode(&mut from)?))
}

impl Ghost {
    /// Returns the first position that is on no disk.
    fn first_unfilled(&self) -> u64 {
        let filled = |stripe: u64| self.stripes.get(&stripe).map_or(0, |s| s.filled);
        (0..self.count).map(|stripe| filled(stripe) * self.count + stripe).min().unwrap_or(0)
    }

    /// Checks that a new pad is below some record: a blocked append. Only a chain tells how many stripes there are, and so which positions
    /// they have.
    fn is_needed(&self, loglet: LogletId, stripe: u64, at: u64, entry: &Entry, verdict: &mut Violations) {
        let is_known = self.stripes.get(&stripe).is_some_and(|s| s.contents.contains_key(&at));
        if self.count == 0 || !entry.is_pad() || is_known {
            return;
        }
        let last = |(number, stripe): (&u64, &Stripe)| {
            stripe.records_end.checked_sub(1).map(|last| last * self.count + number)
        };
        let (position, record) = (at * self.count + stripe, self.stripes.iter().filter_map(last).max());
        if record.is_none_or(|record| record < position) {
            verdict.fail(format!(
                "striped-I7 pads pile up: stripe {loglet}: a pad at position {position}, and the last record is at {record:?}"
            ));
        }
    }

    fn at(&self, position: u64) -> Option<Content> {
        let stripe = self.stripes.get(&(position % self.count))?;
        stripe.contents.get(&(position / self.count)).copied()
    }
}

impl Oracle for StripedOracle {
    fn synced(&mut self, _who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, record)| record.kind == RecordKind::Entry) {
            let Ok((loglet, first)) = head_of(record) else { continue };
            let Some(number) = loglet.number().checked_sub(1) else { continue };
            let Ok(batch) = Batch::parse(record.payload.clone()) else { continue };
            let ghost = self.loglets.entry(loglet.whole()).or_default();
            for (at, entry) in (first.0..).zip(batch.entries()) {
                ghost.is_needed(loglet, u64::from(number), at, &entry, verdict);
                let stripe = ghost.stripes.entry(number.into()).or_default();
                match stripe.holds(loglet, at, &entry) {
                    Some(words) if ghost.count > 0 => verdict.fail(words),
                    Some(words) => ghost.suspected = ghost.suspected.take().or(Some(words)),
                    None => {}
                }
            }
        }
    }

    fn chained(&mut self, loglet: LogletId, config: &Bytes) {
        let Ok(config) = config::parse(config) else { return };
        let ghost = self.loglets.entry(loglet.whole()).or_default();
        if ghost.count == 0 {
            hit(match config.mode {
                Mode::Rotating => "sim.striped.rotating",
                Mode::Sharded => "sim.striped.sharded",
            });
        }
        ghost.count = config.stripes.len() as u64;
    }

    fn acknowledged(&mut self, loglet: LogletId, at: Offset, op: OpId, verdict: &mut Violations) {
        let Some(ghost) = self.loglets.get_mut(&loglet.whole()).filter(|ghost| ghost.count > 0) else {
            return;
        };
        let unfilled = ghost.first_unfilled();
        if unfilled <= at.0 {
            verdict.fail(format!(
                "striped-I1 acknowledged early: loglet {loglet}: {op:?} at {at}, {unfilled} is on no disk"
            ));
        }
        if ghost.at(at.0).is_some_and(|there| there.op != op) {
            verdict.fail(format!("striped-I1 elsewhere: loglet {loglet}: {op:?} is not at {at}"));
        }
        if let Some(tail) = ghost.sealed_tail.filter(|tail| *tail <= at.0) {
            verdict.fail(format!(
                "striped-I3 acknowledged above the end: loglet {loglet}: {at}, sealed at {tail}"
            ));
        }
        ghost.acked = ghost.acked.max(at.0 + 1);
    }

    fn tail_reported(&mut self, loglet: LogletId, at: Offset, sealed: bool, verdict: &mut Violations) {
        let Some(ghost) = self.loglets.get_mut(&loglet.whole()).filter(|ghost| ghost.count > 0) else {
            return;
        };
        let (at, unfilled) = (at.0, ghost.first_unfilled());
        if at > unfilled {
            verdict.fail(format!(
                "vlog-L4 tail above a gap: loglet {loglet}: a tail of {at} (sealed: {sealed}), {unfilled} is on no disk"
            ));
        }
        if sealed {
            ghost.ends_at(loglet, at, "sealed tail", verdict);
        } else {
            if let Some(tail) = ghost.sealed_tail.filter(|tail| *tail < at) {
                verdict.fail(format!(
                    "vlog-L4 open above a sealed tail: loglet {loglet}: {at}, sealed at {tail}"
                ));
            }
            ghost.open_tail = ghost.open_tail.max(at);
        }
    }

    fn installed(&mut self, loglet: LogletId, stop: Offset, verdict: &mut Violations) {
        let Some(ghost) = self.loglets.get_mut(&loglet.whole()).filter(|ghost| ghost.count > 0) else {
            return;
        };
        let unfilled = ghost.first_unfilled();
        if stop.0 > unfilled {
            verdict.fail(format!(
                "striped-I3 stop above a gap: loglet {loglet}: {stop}, {unfilled} is on no disk"
            ));
        }
        ghost.ends_at(loglet, stop.0, "stop", verdict);
    }

    fn finished(&mut self, verdict: &mut Violations) {
        let striped = self.loglets.values_mut().filter(|ghost| ghost.count > 0);
        striped.filter_map(|ghost| ghost.suspected.take()).for_each(|words| verdict.fail(words));
    }
}

impl Ghost {
    fn ends_at(&mut self, loglet: LogletId, at: u64, what: &str, verdict: &mut Violations) {
        if at < self.acked {
            let acked = self.acked;
            verdict.fail(format!(
                "striped-I3 end below an ack: loglet {loglet}: {what} {at}, acknowledged below {acked}"
            ));
        }
        if at < self.open_tail && what == "sealed tail" {
            let open = self.open_tail;
            verdict
                .fail(format!("vlog-L4 sealed below an open tail: loglet {loglet}: {at}, open tail {open}"));
        }
        self.sealed_tail = Some(self.sealed_tail.map_or(at, |tail| tail.min(at)));
    }
}

impl Stripe {
    /// Notes an entry that is on some disk. Returns what is wrong with it, if there was another one.
    fn holds(&mut self, loglet: LogletId, at: u64, entry: &Entry) -> Option<String> {
        let content = Content { op: entry.op, digest: digest(&entry.payload) };
        if !entry.is_pad() {
            self.records_end = self.records_end.max(at + 1);
        }
        let before = self.contents.insert(at, content).filter(|before| *before != content);
        while self.contents.contains_key(&self.filled) {
            self.filled += 1;
        }
        before.map(|before| {
            format!("native-N1 two values: stripe {loglet}: {before:?} and {content:?} at {at}")
        })
    }
}
