//! An aggregator: merges the reports of several servers, so that the orderers get fewer messages (scalog.md §1). All of its state is soft.
//!
//! It forwards what each server reported, and never a minimum: it may have heard of some servers of a shard only, above all after a restart
//! (scalog-S6). A node may be several aggregators of one tree; each message says for which one it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::LogletId;
use atoll_core::testing::hit;
use atoll_core::{
    Caller, Class, DecodeError, Effects, Env, Frame, Loc, Lsn, Measure, Message, Refused, Role, Tick,
};

use crate::config::ScalogConfig;
use crate::message::{Report, Reports};
use crate::roles::{AGGREGATOR, ORDERER};

/// The most reports of one message.
const MAX_REPORTS: usize = 4096;
/// The most aggregators of trees that this node remembers. The one that was idle for the longest time is forgotten.
const MAX_KNOWN: usize = 1024;

/// One aggregator of one tree.
#[derive(Debug)]
struct Merged {
    config: ScalogConfig,
    config_bytes: Bytes,
    /// The highest counts that each server has reported: the maximum over time of one replica (scalog-S5).
    known: BTreeMap<(u32, u32), Vec<u64>>,
    /// The servers that reported since the last message to the parent.
    fresh: BTreeSet<(u32, u32)>,
    /// Whether the next message carries the configuration: the sender of a report does not trust the way.
    introduce: bool,
    sent_at: Tick,
}

type Place = (LogletId, u32);

/// See the module documentation.
pub struct Aggregator {
    env: Env,
    merged: BTreeMap<Place, Merged>,
    due: BTreeMap<Place, Tick>,
}

impl Aggregator {
    /// Creates the aggregator of the node of `env`.
    pub fn new(env: Env) -> Self {
        Aggregator { env, merged: BTreeMap::new(), due: BTreeMap::new() }
    }

    fn on_reports(&mut self, now: Tick, m: Reports) {
        let Some(at) = m.at else { return };
        let place = (m.loglet, at);
        if !self.merged.contains_key(&place) && !self.know(now, place, &m.config) {
            // The servers send the configuration when their reports have no effect.
            hit("scalog.aggregator.unconfigured");
            return;
        }
        let Some(merged) = self.merged.get_mut(&place) else { return };
        merged.introduce |= !m.config.is_empty();
        for report in m.reports {
            let key = (report.shard, report.replica);
            merge(merged.known.entry(key).or_default(), &report.counts);
            merged.fresh.insert(key);
        }
        let interval = Duration::from_micros(merged.config.interval_us.into());
        let at = now.max(merged.sent_at.after(interval));
        self.due.entry(place).or_insert(at);
    }

    fn know(&mut self, now: Tick, place: Place, config: &Bytes) -> bool {
        let Ok(read) = ScalogConfig::parse(config) else { return false };
        if read.aggregators.get(place.1 as usize).is_none_or(|a| a.node != self.env.node()) {
            return false;
        }
        if self.merged.len() >= MAX_KNOWN
            && let Some(idle) = self.merged.iter().min_by_key(|(_, m)| m.sent_at).map(|(place, _)| *place)
        {
            self.merged.remove(&idle);
            self.due.remove(&idle);
        }
        let (known, fresh) = (BTreeMap::new(), BTreeSet::new());
        let config_bytes = Bytes::copy_from_slice(config);
        self.merged.insert(
            place,
            Merged { config: read, config_bytes, known, fresh, introduce: true, sent_at: now },
        );
        true
    }

    /// Sends to the parent what is fresh.
    fn forward(&mut self, now: Tick, place: Place, out: &mut Effects) {
        let Some(merged) = self.merged.get_mut(&place) else { return };
        let (loglet, at) = place;
        let parent = merged.config.aggregators[at as usize].parent;
        let target = match parent {
            Some(parent) => (merged.config.aggregators[parent as usize].node, AGGREGATOR),
            None => (merged.config.orderers[0], ORDERER),
        };
        merged.sent_at = now;
        let fresh: Vec<(u32, u32)> = std::mem::take(&mut merged.fresh).into_iter().collect();
        let config =
            if std::mem::take(&mut merged.introduce) { merged.config_bytes.clone() } else { Bytes::new() };
        for some in fresh.chunks(MAX_REPORTS) {
            let report = |key: &(u32, u32)| {
                let counts = merged.known.get(key).cloned().unwrap_or_default();
                Report { shard: key.0, replica: key.1, counts }
            };
            let reports = some.iter().map(report).collect();
            let message = Reports { loglet, config: config.clone(), at: parent, reports };
            out.post(target.0, Class::Control, target.1, message, Lsn::NONE);
        }
    }
}

/// Raises each count to the reported one.
pub(crate) fn merge(known: &mut Vec<u64>, counts: &[u64]) {
    if known.len() < counts.len() {
        known.resize(counts.len(), 0);
    }
    for (known, count) in known.iter_mut().zip(counts) {
        *known = (*known).max(*count);
    }
}

impl Role for Aggregator {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        let read = match frame.kind {
            Reports::KIND => Reports::from_frame(frame),
            got => Err(DecodeError::WrongKind { expected: "a message for an aggregator of scalog", got }),
        };
        match read {
            Ok(reports) => self.on_reports(now, reports),
            Err(error) => out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE),
        }
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}

    fn deadline(&self) -> Option<Tick> {
        self.due.values().copied().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        let due: Vec<Place> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(place, _)| *place).collect();
        for place in due {
            self.due.remove(&place);
            self.forward(now, place, out);
        }
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let known: usize = self.merged.values().map(|merged| merged.known.len()).sum();
        out.push(Measure { name: "scalog_aggregator_servers", label: None, value: known as f64 });
    }
}
