#![allow(clippy::unwrap_used)]

use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot::Receiver;

use super::*;
use crate::proto::Reason;
use crate::proto::Run;

const BOUNDS: Bounds = Bounds { items: usize::MAX, bytes: usize::MAX };

/// A queue, the outcomes of its records, and its current stream.
struct Bench {
    queue: Queue,
    outcomes: Vec<Receiver<Settled>>,
    now: Instant,
    generation: u64,
}

impl Bench {
    /// Returns a queue with `n` records and a stream that was opened at this tail.
    fn with(n: usize, tail: u64) -> Self {
        let now = Instant::now();
        let mut bench = Bench { queue: Queue::new(BOUNDS), outcomes: Vec::new(), now, generation: 0 };
        for _ in 0..n {
            bench.push(10);
        }
        bench.open(tail);
        bench
    }

    fn push(&mut self, bytes: usize) {
        let (to, outcome) = oneshot::channel();
        let deadline = self.now + Duration::from_secs(self.outcomes.len() as u64 + 1);
        self.queue.push(Bytes::from(vec![0; bytes]), 1, deadline, to);
        self.outcomes.push(outcome);
    }

    fn open(&mut self, tail: u64) {
        self.generation = self.queue.begin_stream(self.now);
        self.queue.opened(tail);
    }

    fn message(&mut self) -> Option<Records> {
        self.queue.next_message(self.generation, self.now, Waker::noop()).unwrap()
    }

    fn settle(&mut self, first: u64, count: u32) -> Settlement {
        let outcome = Outcome { runs: vec![Run { first, count }], failed: None };
        let verdict = self.queue.settle(outcome, self.now);
        self.tell();
        verdict
    }

    fn fail(&mut self, happened: Happened, reason: Reason) -> Settlement {
        let (message, next) = ("why".to_owned(), "what".to_owned());
        let failed = Failed { happened: happened.into(), reason: reason.into(), message, next };
        let verdict = self.queue.settle(Outcome { runs: vec![], failed: Some(failed) }, self.now);
        self.tell();
        verdict
    }

    /// Notifies the callers, as [`super::super::Shared::update`] does. Returns the released room.
    fn tell(&mut self) -> usize {
        let after = self.queue.take_aftermath();
        for (to, outcome) in after.told {
            let _ = to.send(outcome);
        }
        after.settled.items
    }

    fn outcome(&mut self, i: usize) -> Option<Settled> {
        self.outcomes[i].try_recv().ok()
    }
}

fn failure() -> Failure {
    Failure::new(Reason::Unavailable, "late", "")
}

#[test]
fn what_waits_goes_out_at_once_and_is_settled_in_order() {
    let mut b = Bench::with(3, 100);
    let message = b.message().unwrap();
    assert_eq!((message.first_seq, message.payloads.len(), message.floor), (1, 3, None));
    assert_eq!(b.message(), None);
    b.push(10);
    assert_eq!(b.message().unwrap().first_seq, 4);
    assert_eq!(b.settle(100, 3), Settlement::Fine);
    assert_eq!([0, 1, 2].map(|i| b.outcome(i)), [100, 101, 102].map(|p| Some(Ok(p))));
    assert_eq!(b.outcome(3), None);
    assert!(b.queue.busy_since().is_some());
    assert_eq!(b.settle(103, 1), Settlement::Fine);
    assert!(b.queue.busy_since().is_none() && b.queue.is_idle());
}

#[test]
fn nothing_is_sent_before_a_tail_is_known() {
    let mut b = Bench::with(0, 0);
    b.queue = Queue::new(BOUNDS);
    b.push(10);
    b.generation = b.queue.begin_stream(b.now);
    assert_eq!(b.message(), None);
    assert!(b.queue.busy_since().is_some(), "the node owes the opening");
    b.queue.opened(7);
    assert!(b.queue.busy_since().is_none());
    assert!(b.message().is_some());
}

/// A record that came with the opening could lie in a node that stops. The client sends it through another node, where it is appended. The
/// first node continues, takes a newer tail for one that is below the record, does not search, and appends it again (X16).
#[test]
fn nothing_is_sent_before_the_node_has_opened_the_stream() {
    let mut b = Bench::with(1, 100);
    b.message();
    b.settle(100, 1);
    b.queue.end_stream(true);
    b.push(10);
    b.generation = b.queue.begin_stream(b.now);
    assert_eq!(b.message(), None, "a tail is known, but the node has not opened the stream");
    b.queue.opened(180);
    assert_eq!(b.message().map(|sent| (sent.first_seq, sent.floor)), Some((2, None)));
    b.queue.end_stream(false);
    b.open(500);
    assert_eq!(
        b.message().unwrap().floor,
        Some(180),
        "a retry is looked for from the tail before its first attempt"
    );
}

#[test]
fn a_lost_stream_repeats_in_order_with_names_and_floor() {
    let mut b = Bench::with(2, 100);
    b.message();
    b.push(10);
    b.settle(100, 2);
    b.message(); // 3, with floor 102
    b.push(10);
    b.message(); // 4
    b.push(10); // 5 was not sent
    b.queue.end_stream(false);
    b.open(500);
    let again = b.message().unwrap();
    assert_eq!((again.first_seq, again.payloads.len(), again.floor), (3, 2, Some(102)));
    let fresh = b.message().unwrap();
    assert_eq!((fresh.first_seq, fresh.payloads.len(), fresh.floor), (5, 1, None), "5 is not looked for");
    b.queue.end_stream(false);
    b.open(900);
    let again = b.message().unwrap();
    assert_eq!((again.first_seq, again.payloads.len()), (3, 3));
    assert_eq!(again.floor, Some(102), "the floor is that of the first attempt, not of the last");
    b.settle(600, 3);
    assert_eq!(b.outcome(4), Some(Ok(602)));
}

#[test]
fn what_a_stopping_node_did_not_take_is_as_if_never_sent() {
    let mut b = Bench::with(2, 100);
    b.message();
    b.queue.end_stream(true);
    b.open(100);
    let again = b.message().unwrap();
    assert_eq!((again.first_seq, again.floor), (1, None));
    b.queue.end_stream(false);
    b.queue.end_stream(true);
    b.open(100);
    assert_eq!(b.message().unwrap().floor, Some(100), "doubt stays");
}

#[test]
fn what_a_node_certainly_did_not_append_gets_a_newer_floor() {
    let mut b = Bench::with(1, 100);
    b.message();
    // The floor of 100 may be trimmed by now, and the log could not be searched from there.
    assert!(matches!(b.fail(Happened::No, Reason::Unavailable), Settlement::GoElsewhere(_)));
    b.queue.end_stream(false);
    b.open(500);
    let again = b.message().unwrap();
    assert_eq!((again.first_seq, again.floor), (1, None));
    b.fail(Happened::Unknown, Reason::Unavailable);
    b.queue.end_stream(false);
    b.open(900);
    assert_eq!(b.message().unwrap().floor, Some(500));
}

#[test]
fn an_old_stream_takes_nothing_more() {
    let mut b = Bench::with(1, 0);
    let old = b.generation;
    b.queue.end_stream(false);
    assert_eq!(b.queue.next_message(old, b.now, Waker::noop()), Err(StreamOver));
    b.open(0);
    assert_eq!(b.queue.next_message(old, b.now, Waker::noop()), Err(StreamOver));
    assert!(b.message().is_some());
}

#[test]
fn only_an_idle_stream_ends_for_being_idle_and_what_is_known_of_the_tail_stays() {
    let mut b = Bench::with(1, 100);
    assert!(!b.queue.end_idle_stream(), "a record waits");
    b.message();
    assert!(!b.queue.end_idle_stream(), "a record is unanswered");
    b.settle(100, 1);
    let old = b.generation;
    assert!(b.queue.end_idle_stream());
    let (to, _outcome) = oneshot::channel();
    let wakes_driver = b.queue.push(Bytes::new(), 1, b.now + Duration::from_secs(9), to);
    assert!(wakes_driver, "a later record must not wait for the stream that has ended");
    assert_eq!(b.queue.next_message(old, b.now, Waker::noop()), Err(StreamOver));
    // The driver ends the stream a second time, as it does whenever a stream ends.
    b.queue.end_stream(false);
    assert_eq!(b.queue.known_tail(), Some(101));
    b.open(40);
    let next = b.message().unwrap();
    assert_eq!((next.first_seq, next.floor), (2, None), "the record was never sent");
    b.queue.end_stream(false);
    b.open(40);
    assert_eq!(b.message().unwrap().floor, Some(101), "the node knew an older tail");
}

#[test]
fn passing_trouble_sends_everything_behind_it_again_in_order() {
    let mut b = Bench::with(1, 0);
    b.message();
    b.push(10);
    b.message();
    b.push(10);
    assert!(matches!(b.fail(Happened::No, Reason::Stopping), Settlement::GoElsewhere(_)));
    b.queue.end_stream(false);
    b.open(0);
    let mut seqs = Vec::new();
    while let Some(message) = b.message() {
        seqs.extend((message.first_seq..).take(message.payloads.len()));
    }
    assert_eq!(seqs, [1, 2, 3]);
    // The first record certainly did not happen. The outcome of the second one is unknown.
    b.queue.end_stream(true);
    let all = b.now + Duration::from_secs(60);
    b.queue.expire(all, &failure());
    b.tell();
    assert!(matches!(b.outcome(0), Some(Err(Error::DidNotHappen(_)))));
    assert!(matches!(b.outcome(1), Some(Err(Error::Unknown(_)))));
    assert!(matches!(b.outcome(2), Some(Err(Error::DidNotHappen(_)))));
}

#[test]
fn final_failures_are_told_with_the_doubt_of_earlier_attempts() {
    let mut b = Bench::with(1, 0);
    b.message();
    assert_eq!(b.fail(Happened::No, Reason::DiskFull), Settlement::Fine);
    assert!(matches!(b.outcome(0), Some(Err(Error::DidNotHappen(f))) if f.reason == Reason::DiskFull));
    b.push(10);
    b.message();
    b.queue.end_stream(false);
    b.open(0);
    b.message();
    b.fail(Happened::No, Reason::DiskFull);
    assert!(matches!(b.outcome(1), Some(Err(Error::Unknown(_)))), "the first attempt may have worked");
}

#[test]
fn deadlines_end_calls_and_late_outcomes_do_no_harm() {
    let mut b = Bench::with(2, 0);
    b.message();
    b.push(10);
    b.queue.expire(b.now + Duration::from_secs(1), &failure());
    assert_eq!(b.tell(), 1);
    assert!(matches!(b.outcome(0), Some(Err(Error::Unknown(_)))));
    assert_eq!(b.outcome(1), None, "its time is not over");
    assert_eq!(b.settle(0, 2), Settlement::Fine);
    assert_eq!(b.outcome(1), Some(Ok(1)));
    b.queue.expire(b.now + Duration::from_secs(9), &failure());
    b.tell();
    assert!(matches!(b.outcome(2), Some(Err(Error::DidNotHappen(_)))), "never sent");
    assert!(b.queue.is_idle());
}

#[test]
fn callers_who_went_away_are_served_once_and_not_again() {
    let mut b = Bench::with(3, 0);
    b.outcomes.remove(1);
    assert_eq!(b.message().unwrap().payloads.len(), 3, "put in line is put in line");
    b.queue.end_stream(false);
    assert_eq!(b.tell(), 1, "its room comes back");
    b.open(0);
    let (first, second) = (b.message().unwrap(), b.message().unwrap());
    assert_eq!((first.first_seq, first.payloads.len()), (1, 1));
    assert_eq!((second.first_seq, second.payloads.len()), (3, 1), "names in a message are consecutive");
}

#[test]
fn messages_are_bounded_and_a_long_record_goes_alone() {
    let mut b = Bench::with(MESSAGE_RECORDS + 1, 0);
    assert_eq!(b.message().unwrap().payloads.len(), MESSAGE_RECORDS);
    assert_eq!(b.message().unwrap().payloads.len(), 1);
    for bytes in [10, 1_000_000, 10, MESSAGE_BYTES - 10, 1] {
        b.push(bytes);
    }
    let sizes: Vec<usize> = std::iter::from_fn(|| b.message().map(|m| m.payloads.len())).collect();
    assert_eq!(sizes, [1, 1, 2, 1]);
}

#[test]
fn a_stream_has_few_messages_unanswered() {
    let mut b = Bench::with(0, 0);
    for _ in 0..MESSAGES_UNANSWERED {
        b.push(10);
        assert!(b.message().is_some());
    }
    b.push(10);
    b.push(10);
    assert_eq!(b.message(), None);
    b.settle(0, 1);
    assert_eq!(b.message().unwrap().payloads.len(), 2, "batches form behind a full stream");
}

#[test]
fn servers_that_break_the_protocol_are_left() {
    let mut b = Bench::with(2, 0);
    assert!(matches!(b.settle(0, 1), Settlement::Nonsense(_)), "for no message");
    b.message();
    assert!(matches!(b.settle(0, 1), Settlement::Nonsense(_)), "too few positions");
    b.queue.end_stream(false);
    b.open(0);
    assert_eq!(b.message().unwrap().payloads.len(), 2, "nothing got lost over it");
}
