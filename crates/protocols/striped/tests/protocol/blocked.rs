//! Appends that wait for other stripes, over stripes whose answers the test chooses.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::{
    AppendError, Batch, ClientId, Entry, Loglet, LogletError, Offset, OpId, Placement, ReadBatch, ReadError,
    ReadFrom, SealedConfig, Tail, Unavailability,
};
use atoll_core::*;
use atoll_striped::{Layout, StripedLoglet, StripedOptions};
use bytes::Bytes;

/// How a stripe answers an append.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    /// It stores the entries and says so.
    Stored,
    /// It stores them, and the answer is lost.
    StoredInSilence,
    /// It does not store them, and the answer is lost.
    Lost,
    /// It refuses them.
    Busy,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    sealed: bool,
    answers: VecDeque<Answer>,
    appends: usize,
    /// It does not hear for which offsets pads are, because not all members know that claim.
    hears_no_claims: bool,
}

type Appended = Result<Placement, AppendError>;

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an answer")
    }
}

/// A stripe in memory. Without another instruction, it stores what it gets.
#[derive(Clone, Debug, Default)]
struct Stripe(Arc<Mutex<State>>);

impl Stripe {
    fn will(&self, answers: impl IntoIterator<Item = Answer>) {
        self.0.lock().unwrap().answers.extend(answers);
    }

    fn seal_now(&self) {
        self.0.lock().unwrap().sealed = true;
    }

    fn pads(&self) -> usize {
        self.0.lock().unwrap().entries.iter().filter(|e| e.is_pad()).count()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().entries.len()
    }

    fn appends(&self) -> usize {
        self.0.lock().unwrap().appends
    }

    /// Appends entries, those that are pads only at the offsets from `pads_from` on that are not taken.
    fn take(&self, batch: &Batch, pads_from: Offset) -> Ticket<Appended> {
        let mut state = self.0.lock().unwrap();
        state.appends += 1;
        if state.sealed {
            return Ticket::ready(Err(AppendError::Sealed));
        }
        let answer = state.answers.pop_front().unwrap_or(Answer::Stored);
        let mut runs = Vec::new();
        for (wanted, entry) in (pads_from.0..).zip(batch.entries()) {
            let next = state.entries.len() as u64;
            let is_taken = entry.is_pad() && wanted < next && !state.hears_no_claims;
            runs.push((Offset(if is_taken { wanted } else { next }), 1));
            if !is_taken && matches!(answer, Answer::Stored | Answer::StoredInSilence) {
                state.entries.push(entry);
            }
        }
        Ticket::ready(match answer {
            Answer::Stored => Ok(Placement { runs }),
            Answer::Busy => Err(AppendError::NotAppended(Unavailability::Busy)),
            _ => Err(AppendError::Unknown(Unavailability::NoSequencer)),
        })
    }

    fn tail(&self) -> Tail {
        let state = self.0.lock().unwrap();
        let sealed = state.sealed.then(SealedConfig::new);
        Tail { at: Offset(state.entries.len() as u64), sealed }
    }
}

impl Loglet for Stripe {
    fn append(&self, batch: Batch) -> Ticket<Appended> {
        self.take(&batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Appended> {
        self.take(&batch, not_below)
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn fills_once(&self) -> bool {
        !self.0.lock().unwrap().hears_no_claims
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(std::future::ready(Ok(self.tail())))
    }

    fn wait_tail(&self, _above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.check_tail()
    }

    fn known_tail(&self) -> Offset {
        Offset::ZERO
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        _from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        let state = self.0.lock().unwrap();
        let entries = state.entries[range.start.0 as usize..range.end.0 as usize].iter();
        let mut left = max_bytes;
        let mut read: Vec<Entry> = Vec::new();
        for entry in entries {
            if !read.is_empty() && entry.payload.len() > left {
                break;
            }
            left = left.saturating_sub(entry.payload.len());
            read.push(entry.clone());
        }
        Box::pin(std::future::ready(Ok(ReadBatch { entries: read, remote: 0 })))
    }

    fn prefix_trim(&self, _to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        self.seal_now();
        Box::pin(std::future::ready(Ok(())))
    }
}

const NODE: NodeId = NodeId(1);

/// A striped Loglet over stripes in memory.
struct Bench {
    driver: Driver,
    stripes: Vec<Stripe>,
    loglet: Arc<StripedLoglet>,
    layout: Layout,
}

impl Bench {
    fn new(stripes: usize) -> Self {
        let mut driver = Driver::new(5);
        let env = driver.add_node(NODE, |_| {});
        let stripes: Vec<Stripe> = (0..stripes).map(|_| Stripe::default()).collect();
        let parts = stripes.iter().map(|s| Arc::new(s.clone()) as Arc<dyn Loglet>).collect();
        let loglet = Arc::new(StripedLoglet::new(env, parts, Arc::new(StripedOptions::default())));
        let layout = Layout::new(stripes.len());
        Bench { driver, stripes, loglet, layout }
    }

    /// Returns a record that belongs to a stripe.
    fn record_of(&self, stripe: usize, client: u64) -> Entry {
        let op = |seq| OpId { client: ClientId(client), seq };
        let seq = (1..).find(|seq| self.layout.stripe_of(op(*seq)) == stripe).unwrap();
        Entry { op: op(seq), payload: Bytes::from_static(b"record") }
    }

    fn append(&mut self, entries: Vec<Entry>) -> Result<Vec<Offset>, AppendError> {
        let loglet = self.loglet.clone();
        let placed =
            self.driver.block_on(NODE, async move { loglet.append(Batch::of(entries)).await.unwrap() });
        placed.map(|p| p.offsets().collect())
    }

    fn tail(&mut self) -> Tail {
        let loglet = self.loglet.clone();
        self.driver.block_on(NODE, async move { loglet.check_tail().await.unwrap() })
    }
}

#[test]
fn a_client_that_appends_alone_needs_no_pads() {
    let mut bench = Bench::new(3);
    // From a record of the first stripe on.
    let first = bench.record_of(0, 7).op.seq;
    for i in 0..9 {
        let op = OpId { client: ClientId(7), seq: first + i };
        let placed = bench.append(vec![Entry { op, payload: Bytes::new() }]);
        assert_eq!(placed, Ok(vec![Offset(i)]));
    }
    assert!(bench.stripes.iter().all(|stripe| stripe.pads() == 0 && stripe.len() == 3));
}

#[test]
fn a_blocked_append_pads_at_once_and_is_acknowledged_after_that() {
    let mut bench = Bench::new(3);
    let record = bench.record_of(2, 7);
    let before = bench.driver.now();
    assert_eq!(bench.append(vec![record]), Ok(vec![Offset(2)]));
    assert_eq!(bench.driver.now(), before, "no timer");
    assert_eq!(bench.stripes.iter().map(Stripe::pads).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(bench.tail(), Tail { at: Offset(3), sealed: None });
}

/// Lets twenty handles append to the last of three stripes, one after the other.
fn append_with_twenty_handles(bench: &mut Bench) {
    let parts = || bench.stripes.iter().map(|s| Arc::new(s.clone()) as Arc<dyn Loglet>).collect();
    let env = bench.driver.env(NODE);
    let handles: Vec<StripedLoglet> = (0..20)
        .map(|_| StripedLoglet::new(env.clone(), parts(), Arc::new(StripedOptions::default())))
        .collect();
    for (client, handle) in (1..).zip(handles) {
        bench.loglet = Arc::new(handle);
        let record = bench.record_of(2, client);
        assert_eq!(bench.append(vec![record]), Ok(vec![Offset(3 * client - 1)]));
    }
    assert_eq!(bench.stripes.iter().map(Stripe::pads).collect::<Vec<_>>(), [20, 20, 0]);
}

#[test]
fn handles_that_know_nothing_of_each_other_fill_each_offset_once() {
    let mut bench = Bench::new(3);
    append_with_twenty_handles(&mut bench);
    assert_eq!(bench.stripes[0].appends(), 20, "one request of each");
}

#[test]
fn handles_that_cannot_say_which_offsets_they_fill_ask_for_the_tail_first() {
    let mut bench = Bench::new(3);
    bench.stripes.iter().for_each(|stripe| stripe.0.lock().unwrap().hears_no_claims = true);
    append_with_twenty_handles(&mut bench);
}

#[test]
fn pads_whose_answers_are_lost_do_not_block_an_append_forever() {
    for lost in [Answer::StoredInSilence, Answer::Lost, Answer::Busy] {
        let mut bench = Bench::new(2);
        let record = bench.record_of(1, 7);
        bench.stripes[0].will([lost; 3]);
        let before = bench.driver.now();
        assert_eq!(bench.append(vec![record]), Ok(vec![Offset(1)]));
        let took = Duration::from_nanos(bench.driver.now().0 - before.0);
        assert!(took < StripedOptions::default().append_timeout, "took {took:?}");
        let wasted = bench.stripes[0].pads() - 1;
        assert_eq!(wasted, 0, "a check of the tail finds pads that are there");
    }
}

#[test]
fn an_append_behind_a_sealed_idle_stripe_is_answered_sealed() {
    let mut bench = Bench::new(2);
    let record = bench.record_of(1, 7);
    bench.stripes[0].seal_now();
    assert_eq!(bench.append(vec![record.clone()]), Err(AppendError::Sealed));
    assert_eq!(bench.stripes[1].len(), 1, "it is in its stripe, but above the end");
    let appends = bench.stripes[1].appends();
    assert_eq!(bench.append(vec![record]), Err(AppendError::Sealed));
    assert_eq!(bench.stripes[1].appends(), appends, "the handle remembers");
    // A check completes the seal. The longer stripe ends above the end of the whole.
    assert_eq!(bench.tail(), Tail { at: Offset(0), sealed: Some(SealedConfig::new()) });
    assert!(bench.stripes[1].tail().sealed.is_some());
}

#[test]
fn a_batch_that_is_partly_stored_is_not_called_not_appended() {
    let mut bench = Bench::new(2);
    let (one, two) = (bench.record_of(0, 7), bench.record_of(1, 8));
    bench.stripes[1].will([Answer::Busy]);
    let got = bench.append(vec![one.clone(), two.clone()]);
    assert_eq!(got, Err(AppendError::Unknown(Unavailability::Busy)));
    bench.stripes[1].will([Answer::Busy]);
    assert_eq!(bench.append(vec![two]), Err(AppendError::NotAppended(Unavailability::Busy)));
}

#[test]
fn reads_interleave_the_stripes_and_show_pads() {
    let mut bench = Bench::new(3);
    for client in [7, 8] {
        let record = bench.record_of(1, client);
        bench.append(vec![record]).unwrap();
    }
    // A0 pad, B0 record, B1 record; the second append padded A1 and C0.
    for max_bytes in [1, 12, 1_000] {
        let loglet = bench.loglet.clone();
        let kinds = bench.driver.block_on(NODE, async move {
            let (mut at, mut kinds) = (Offset(0), Vec::new());
            while at < Offset(5) {
                let read = loglet.read(at..Offset(5), max_bytes, ReadFrom::Anywhere).await.unwrap();
                assert!(!read.entries.is_empty());
                kinds.extend(read.entries.iter().map(Entry::is_pad));
                at = at.plus(read.entries.len() as u64);
            }
            kinds
        });
        assert_eq!(kinds, [true, false, true, true, false], "at most {max_bytes} bytes");
    }
}
