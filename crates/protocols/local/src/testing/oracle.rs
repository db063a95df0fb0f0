//! Checks LocalLoglets from outside of the node, using only frames and synced journal records: what is on the disk, what the store reports,
//! and what is acknowledged. Of the protocol, the oracle uses only the messages, the configuration and the number of the store's role.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | native-N1 | all synced copies of an offset, and all copies that are served, have the same digest |
//! | native-N2 | an answer shows at least what the store had reported before the request was sent |
//! | native-N3 | acknowledged offsets are below every sealed tail that is returned and every stop that is installed |
//! | native-N4, vlog-L1 | whatever is acknowledged, or below a tail that is returned, is on the disk |
//! | native-T4 | a seal that is reported is on the disk |
//! | native-T8 | entries are stored only in the data directory that the configuration names |
//! | vlog-VL10 | after a tombstone, the disk stores nothing more of that loglet |

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_contract::testing::{OnWire, Oracle, Violations, Who, digest};
use atoll_contract::{Batch, Entry, LogletId, Offset};
use atoll_core::{Decode, Exchange, Frame, Lsn, Message, NodeId, Reader, Record, RecordKind, RoleKind};
use atoll_loglet_store::message::{
    Answer, Appended, Delete, Entries, Info, Ordered, Read, Repair, Seal, ServerState, Trim, Verdict, Wait,
};

use crate::config::LocalConfig;
use crate::message::LocalAppend;
use crate::roles::LOCAL_STORE;

/// Offsets from here on are ignored. No run gets near it.
const MAX_OFFSETS: u64 = 1 << 22;

/// What the store has reported about a loglet.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    local_tail: u64,
    sealed: bool,
}

/// One loglet, as far as it shows outside.
#[derive(Debug, Default)]
struct Ghost {
    config: Option<LocalConfig>,
    /// The digest of each offset on the disk.
    content: Vec<Option<u64>>,
    /// Every offset below is on the disk.
    durable: u64,
    /// Whether the seal bit is on the disk.
    sealed: bool,
    tombstone: bool,
    /// A node has asked the store to delete the loglet. From then on, reports about it are ignored.
    deleting: bool,
    /// Above every acknowledged offset.
    acked: u64,
    open_tail: u64,
    /// The lowest sealed tail that was returned or installed as a stop.
    sealed_tail: Option<u64>,
    said: Said,
}

/// A request in flight: sender, its life, receiver, number.
type Request = (NodeId, u64, NodeId, u64);

/// All local loglets of a run.
#[derive(Debug, Default)]
pub(super) struct LocalOracle {
    loglets: BTreeMap<LogletId, Ghost>,
    asked: BTreeMap<Request, (LogletId, Said)>,
}

impl Oracle for LocalOracle {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        match wire.envelope.exchange {
            Exchange::Request(number) if wire.frame().target == LOCAL_STORE => {
                let Some(loglet) = loglet_of(wire.frame()) else { return };
                let ghost = self.loglets.entry(loglet).or_default();
                ghost.deleting |= wire.frame().kind == Delete::KIND;
                self.asked.insert((wire.from.node, wire.from.life, wire.to, number), (loglet, ghost.said));
            }
            Exchange::Reply(number) => {
                let key = (wire.to, wire.to_life.unwrap_or(0), wire.from.node, number);
                if let Some((loglet, said)) = self.asked.remove(&key) {
                    self.loglets.entry(loglet).or_default().reply(loglet, said, wire.frame(), verdict);
                }
            }
            Exchange::Request(_) | Exchange::Post => {}
        }
    }

    fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, r)| r.owner == LOCAL_STORE) {
            let read = match record.kind {
                RecordKind::Entry => self.synced_entries(who, record, verdict),
                RecordKind::Fact => self.synced_fact(record, verdict),
            };
            if read.is_none() {
                verdict.fail("HARNESS: a record of the local store does not decode as the oracle knows it");
            }
        }
    }

    fn found(&mut self, _: &Who, role: RoleKind, state: &Bytes, verdict: &mut Violations) {
        if role == LOCAL_STORE && !state.is_empty() && self.found_facts(state).is_none() {
            verdict.fail("HARNESS: a local store's checkpoint does not decode as the oracle knows it");
        }
    }

    fn tail_reported(&mut self, loglet: LogletId, at: Offset, sealed: bool, verdict: &mut Violations) {
        let ghost = self.loglets.entry(loglet).or_default();
        ghost.is_durable(loglet, at.0, "a tail that a client was told", verdict);
        match (sealed, ghost.sealed_tail) {
            (true, _) => ghost.ends(loglet, at.0, verdict),
            (false, Some(tail)) if at.0 > tail => verdict.fail(format!(
                "native-N4 open above a sealed tail: loglet {loglet}: open tail {at}, sealed tail {tail} was told"
            )),
            (false, _) => ghost.open_tail = ghost.open_tail.max(at.0),
        }
    }

    fn installed(&mut self, loglet: LogletId, stop: Offset, verdict: &mut Violations) {
        let ghost = self.loglets.entry(loglet).or_default();
        if !ghost.sealed {
            verdict.fail(format!(
                "vlog-VL1 installed without seal: loglet {loglet}: a stop at {stop} is in the chain"
            ));
        }
        ghost.is_durable(loglet, stop.0, "a stop", verdict);
        if stop.0 < ghost.acked {
            let acked = ghost.acked;
            verdict.fail(format!(
                "VL6/N3 stop below an ack: loglet {loglet}: stop {stop}, acknowledged below {acked}"
            ));
        }
    }
}

impl LocalOracle {
    fn synced_entries(&mut self, who: &Who, record: &Record, verdict: &mut Violations) -> Option<()> {
        let mut head = Reader::new(record.head.clone());
        let _format = u8::decode(&mut head).ok()?;
        let loglet = LogletId::decode(&mut head).ok()?;
        let first = Offset::decode(&mut head).ok()?;
        let ghost = self.loglets.entry(loglet).or_default();
        if ghost.config.is_some_and(|c| (c.node, c.storage) != (who.node, who.storage)) {
            verdict.fail(format!(
                "native-T8 foreign disk: node {} keeps entries of loglet {loglet} in a data directory that it does not name",
                who.node
            ));
        }
        if ghost.tombstone {
            verdict.fail(format!("vlog-VL10 revived: loglet {loglet} was deleted and stores again"));
        }
        for (at, bytes) in entries(first, &record.payload)? {
            ghost.holds(loglet, at, bytes, verdict);
        }
        Some(())
    }

    fn synced_fact(&mut self, record: &Record, verdict: &mut Violations) -> Option<()> {
        let mut head = Reader::new(record.head.clone());
        let tag = u8::decode(&mut head).ok()?;
        let loglet = LogletId::decode(&mut head).ok()?;
        let ghost = self.loglets.entry(loglet).or_default();
        match tag {
            0 if ghost.tombstone => {
                verdict.fail(format!("vlog-VL10 revived: loglet {loglet} was deleted and is made again"));
            }
            0 => ghost.config = LocalConfig::from_bytes(Bytes::decode(&mut head).ok()?).ok(),
            1 => ghost.sealed = true,
            3 => ghost.tombstone = true,
            _ => {}
        }
        Some(())
    }

    fn found_facts(&mut self, state: &Bytes) -> Option<()> {
        let mut from = Reader::new(state.clone());
        let _format = u8::decode(&mut from).ok()?;
        for _ in 0..u32::decode(&mut from).ok()? {
            let loglet = LogletId::decode(&mut from).ok()?;
            let config = Bytes::decode(&mut from).ok()?;
            let ghost = self.loglets.entry(loglet).or_default();
            ghost.config = LocalConfig::from_bytes(config).ok();
            ghost.sealed |= bool::decode(&mut from).ok()?;
            for _ in 0..3 {
                Offset::decode(&mut from).ok()?;
            }
            let _settled = bool::decode(&mut from).ok()?;
        }
        for loglet in Vec::<LogletId>::decode(&mut from).ok()? {
            self.loglets.entry(loglet).or_default().tombstone = true;
        }
        from.finish("checkpoint").ok()
    }
}

impl Ghost {
    /// Notes a copy on the disk.
    fn holds(&mut self, loglet: LogletId, at: u64, bytes: u64, verdict: &mut Violations) {
        if at >= MAX_OFFSETS {
            return;
        }
        let index = at as usize;
        if self.content.len() <= index {
            self.content.resize(index + 1, None);
        }
        if self.content[index].is_some_and(|other| other != bytes) {
            verdict.fail(format!("native-N1 two values: loglet {loglet} offset {at}"));
        }
        self.content[index] = Some(bytes);
        while self.content.get(self.durable as usize).is_some_and(Option::is_some) {
            self.durable += 1;
        }
    }

    fn is_durable(&self, loglet: LogletId, end: u64, what: &str, verdict: &mut Violations) {
        if end > self.durable {
            verdict.fail(format!(
                "native-N4 not on the disk: loglet {loglet}: {what} is {end}, and the disk has {}",
                self.durable
            ));
        }
    }

    /// A sealed tail was returned.
    fn ends(&mut self, loglet: LogletId, at: u64, verdict: &mut Violations) {
        if at < self.acked.max(self.open_tail) {
            verdict.fail(format!(
                "native-N3 sealed too low: loglet {loglet}: sealed tail {at}, acknowledged below {}, open tail {}",
                self.acked, self.open_tail
            ));
        }
        self.sealed_tail = Some(self.sealed_tail.map_or(at, |tail| tail.min(at)));
    }

    fn reply(&mut self, loglet: LogletId, said: Said, frame: &Frame, verdict: &mut Violations) {
        match frame.kind {
            Appended::KIND => {
                let Ok(m) = Appended::from_frame(frame.clone()) else { return };
                let Ordered::Committed { runs } = m.outcome else { return };
                for (first, count) in runs {
                    let end = first.0 + u64::from(count);
                    self.is_durable(loglet, end, "the end of an acknowledged append", verdict);
                    self.acked = self.acked.max(end);
                }
                if let Some(tail) = self.sealed_tail.filter(|tail| *tail < self.acked) {
                    verdict.fail(format!(
                        "native-N3 acknowledged beyond a sealed tail: loglet {loglet}: below {}, sealed tail {tail}",
                        self.acked
                    ));
                }
            }
            Answer::KIND => {
                let Ok(m) = Answer::from_frame(frame.clone()) else { return };
                self.state(loglet, said, &m.verdict, &m.state, verdict);
            }
            Entries::KIND => {
                let Ok(m) = Entries::from_frame(frame.clone()) else { return };
                self.state(loglet, said, &m.verdict, &m.state, verdict);
                let mut first = m.first;
                for (batch, count) in m.batches.iter().zip(&m.counts) {
                    for (at, bytes) in entries(first, batch).unwrap_or_default() {
                        if self.content.get(at as usize) != Some(&Some(bytes)) && at < MAX_OFFSETS {
                            verdict.fail(format!(
                                "native-N1 served what is not on the disk: loglet {loglet} offset {at}"
                            ));
                        }
                    }
                    first = first.plus(u64::from(*count));
                }
            }
            _ => {}
        }
    }

    fn state(
        &mut self,
        loglet: LogletId,
        said: Said,
        what: &Verdict,
        state: &ServerState,
        verdict: &mut Violations,
    ) {
        let stands_for_nothing = matches!(
            what,
            Verdict::Unconfigured {}
                | Verdict::Gone {}
                | Verdict::WrongIdentity {}
                | Verdict::Busy {}
                | Verdict::StorageFailed {}
        );
        if stands_for_nothing || self.deleting {
            return;
        }
        self.is_durable(loglet, state.local_tail.0, "the tail in an answer", verdict);
        if state.sealed && !self.sealed {
            verdict.fail(format!(
                "native-T4 seal not on the disk: loglet {loglet} is reported as sealed, and the disk has no seal"
            ));
        }
        if state.local_tail.0 < said.local_tail || (said.sealed && !state.sealed) {
            verdict.fail(format!(
                "native-N2 state goes back: loglet {loglet}: tail {} (sealed: {}), had said {} (sealed: {})",
                state.local_tail, state.sealed, said.local_tail, said.sealed
            ));
        }
        self.said.local_tail = self.said.local_tail.max(state.local_tail.0);
        self.said.sealed |= state.sealed;
    }
}

/// Returns the loglet that a request is about.
fn loglet_of(frame: &Frame) -> Option<LogletId> {
    let frame = frame.clone();
    match frame.kind {
        LocalAppend::KIND => LocalAppend::from_frame(frame).ok().map(|m| m.loglet),
        Seal::KIND => Seal::from_frame(frame).ok().map(|m| m.loglet),
        Info::KIND => Info::from_frame(frame).ok().map(|m| m.loglet),
        Wait::KIND => Wait::from_frame(frame).ok().map(|m| m.loglet),
        Read::KIND => Read::from_frame(frame).ok().map(|m| m.loglet),
        Repair::KIND => Repair::from_frame(frame).ok().map(|m| m.loglet),
        Trim::KIND => Trim::from_frame(frame).ok().map(|m| m.loglet),
        Delete::KIND => Delete::from_frame(frame).ok().map(|m| m.loglet),
        _ => None,
    }
}

/// Returns offset and digest of each entry of a batch. None if it does not decode.
fn entries(first: Offset, batch: &Bytes) -> Option<Vec<(u64, u64)>> {
    let batch = Batch::parse(batch.clone()).ok()?;
    let of = |e: Entry| digest(&e.payload) ^ e.op.client.0.rotate_left(17) ^ e.op.seq.rotate_left(41);
    Some(batch.entries().enumerate().map(|(i, e)| (first.0 + i as u64, of(e))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, OpId};
    use atoll_core::{Encode, Envelope, StorageId};

    const LOGLET: LogletId = LogletId(5);
    const WHO: Who = Who { node: NodeId(1), life: 1, storage: StorageId(1) };

    /// An oracle, and the violations that it has found.
    #[derive(Default)]
    struct Run(LocalOracle, Violations);

    impl Run {
        fn synced(&mut self, kind: RecordKind, head: impl Encode, payload: Bytes) {
            let record = Record { owner: LOCAL_STORE, kind, head: head.to_bytes(), payload };
            self.0.synced(&WHO, &[(Lsn(1), record)], &mut self.1);
        }

        fn create(mut self) -> Self {
            let config = LocalConfig { node: WHO.node, storage: WHO.storage }.to_bytes();
            self.synced(RecordKind::Fact, (0u8, (LOGLET, config)), Bytes::new());
            self
        }

        /// The disk has an entry at this offset.
        fn entry(mut self, at: u64, payload: &'static [u8]) -> Self {
            let op = OpId { client: ClientId(1), seq: at + 1 };
            let batch = Batch::of([Entry { op, payload: Bytes::from_static(payload) }]).bytes().clone();
            self.synced(RecordKind::Entry, (1u8, (LOGLET, Offset(at))), batch);
            self
        }

        fn fact(mut self, tag: u8) -> Self {
            self.synced(RecordKind::Fact, (tag, LOGLET), Bytes::new());
            self
        }

        /// The store answers a request of node 2.
        fn answer(mut self, reply: impl Message) -> Self {
            let ask = Info { loglet: LOGLET, config: Bytes::new() }.into_frame(LOCAL_STORE);
            let asker = Who { node: NodeId(2), life: 1, storage: StorageId(2) };
            let envelope = Envelope { exchange: Exchange::Request(1), frame: ask };
            let wire = OnWire { from: asker, to: WHO.node, to_life: None, envelope: &envelope };
            self.0.sent(wire, &mut self.1);
            let frame = reply.into_frame(atoll_core::roles::NONE);
            let envelope = Envelope { exchange: Exchange::Reply(1), frame };
            let wire = OnWire { from: WHO, to: asker.node, to_life: Some(1), envelope: &envelope };
            self.0.sent(wire, &mut self.1);
            self
        }

        fn says(self, sealed: bool, tail: u64) -> Self {
            let local_tail = Offset(tail);
            let state = ServerState { sealed, local_tail, known_tail: local_tail, trim: Offset(0) };
            self.answer(Answer { verdict: Verdict::Done {}, state })
        }

        fn acks(self, upto: u32) -> Self {
            let outcome = Ordered::Committed { runs: vec![(Offset(0), upto)] };
            self.answer(Appended { outcome, known_tail: Offset(0) })
        }

        fn tail(mut self, at: u64, sealed: bool) -> Self {
            self.0.tail_reported(LOGLET, Offset(at), sealed, &mut self.1);
            self
        }

        fn stop(mut self, at: u64) -> Self {
            self.0.installed(LOGLET, Offset(at), &mut self.1);
            self
        }

        fn found(self) -> String {
            self.1.failures.join("; ")
        }
    }

    fn two() -> Run {
        Run::default().create().entry(0, b"a").entry(1, b"b")
    }

    #[test]
    fn a_store_that_keeps_the_rules_passes() {
        let run = two().acks(2).says(false, 2).tail(2, false).fact(1).says(true, 2).tail(2, true).stop(2);
        assert_eq!(run.fact(3).found(), "");
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let cases = [
            (two().acks(3), "native-N4 not on the disk"),
            (two().says(false, 3), "native-N4 not on the disk"),
            (two().tail(3, false), "native-N4 not on the disk"),
            (two().says(true, 2), "native-T4 seal not on the disk"),
            (two().stop(2), "vlog-VL1 installed without seal"),
            (two().acks(2).fact(1).stop(1), "VL6/N3 stop below an ack"),
            (two().acks(2).tail(1, true), "native-N3 sealed too low"),
            (two().tail(1, true).acks(2), "native-N3 acknowledged beyond a sealed tail"),
            (two().tail(1, true).tail(2, false), "native-N4 open above a sealed tail"),
            (two().entry(1, b"other"), "native-N1 two values"),
            (two().says(false, 2).says(false, 1), "native-N2 state goes back"),
            (two().fact(3).entry(2, b"c"), "vlog-VL10 revived"),
            (two().fact(3).create(), "vlog-VL10 revived"),
        ];
        for (run, expected) in cases {
            let found = run.found();
            assert!(found.starts_with(expected), "{expected}: {found:?}");
        }
    }
}
