//! Scenarios in which the applying thread publishes and halts, while other threads propose and wait for positions.

use std::task::Poll;

use atoll_contract::{ClientId, LogPos, OpId};
use atoll_core::Bounds;
use shuttle::future::block_on;
use shuttle::thread;

use super::crowd_piece::{Crowd, Shown, Waiting, Waits};
use super::ticket::{Completer, Ticket, ticket};
use crate::sync::Arc;

struct View(LogPos);

impl Shown for View {
    fn below(&self) -> LogPos {
        self.0
    }
}

struct Reached(Completer<Result<LogPos, u8>>);

impl Waits for Reached {
    fn is_abandoned(&self) -> bool {
        self.0.is_abandoned()
    }
}

type People = Crowd<View, Completer<bool>, Reached, u8>;

/// Returns a crowd with room for two commands.
fn people() -> Arc<People> {
    let bounds = Bounds { items: 2, bytes: 2 };
    Arc::new(Crowd::new(Arc::new(View(LogPos(0))), bounds))
}

fn publish(people: &People, below: u64) {
    for done in people.publish(Arc::new(View(LogPos(below)))) {
        done.0.complete(Ok(LogPos(below)));
    }
}

fn wait_for(people: &People, below: u64) -> Ticket<Result<LogPos, u8>> {
    let (done, wait) = ticket();
    if let Err((who, outcome)) = people.when_applied(LogPos(below), vec![Reached(done)]) {
        who.into_iter().for_each(|one| one.0.complete(outcome));
    }
    wait
}

/// A waiter is answered once its position is visible, and not before.
pub(crate) fn waits_for_positions() {
    let people = people();
    let shows = people.clone();
    let applying = thread::spawn(move || (1..=3).for_each(|below| publish(&shows, below)));
    let waits = people.clone();
    let other = thread::spawn(move || {
        // A waiter that has gone away leaves nothing behind.
        drop(wait_for(&waits, 2));
        block_on(wait_for(&waits, 2))
    });
    let got = block_on(wait_for(&people, 3));
    assert!(matches!(got, Ok(Ok(LogPos(3)))));
    assert_eq!(people.below(), LogPos(3), "answered before it is visible");
    assert!(matches!(other.join(), Ok(Ok(Ok(below))) if below >= LogPos(2)));
    assert!(applying.join().is_ok());
}

/// The replica applies one entry and halts before the next, while the node proposes two entries and waits for both. The caller of
/// each entry is answered once, and all room is released.
pub(crate) fn halts() {
    let people = people();
    let op = |seq| OpId { client: ClientId(1), seq };
    let shows = people.clone();
    let applying = thread::spawn(move || {
        if let Some(waiting) = shows.take(op(1)) {
            publish(&shows, 1);
            waiting.callers.into_iter().for_each(|caller| caller.complete(true));
        }
        let (entries, positions) = shows.halt(&9);
        entries.into_iter().flat_map(|w| w.callers).for_each(|caller| caller.complete(false));
        positions.for_each(|one| one.0.complete(Err(9)));
    });
    let answers = [1, 2].map(|seq| {
        assert_eq!(people.reserve(1), Ok(()), "room for two");
        let (caller, wait) = ticket();
        if let Err((waiting, halt)) = people.expect(Waiting { op: op(seq), callers: vec![caller], bytes: 1 })
        {
            assert_eq!(halt, 9);
            waiting.callers.into_iter().for_each(|caller| caller.complete(false));
        }
        wait
    });
    let reached = wait_for(&people, 2);
    let [first, second] = answers.map(block_on);
    assert!(first.is_ok() && second == Ok(false), "{first:?}, {second:?}");
    assert!(matches!(block_on(reached), Ok(Err(9))));
    assert!(applying.join().is_ok());
    assert_eq!((people.commands(), people.halted()), (0, Some(9)));
}

/// Waits for room for a command of one byte, and takes it.
async fn takes_room(people: &People) {
    while people.reserve(1).is_err() {
        let mut place = people.place(1);
        std::future::poll_fn(|cx| {
            place.wait(cx);
            if people.has_room(1) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        place.leave();
        people.admit();
    }
}

/// Four callers share room for two. Each of them eventually finds room and releases it. Three of them do so twice, so that some
/// callers are woken but another one takes the room first.
pub(crate) fn finds_room() {
    let people = people();
    let callers = [0; 3].map(|_| {
        let people = people.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                block_on(takes_room(&people));
                people.release(1, 1);
            }
        })
    });
    block_on(takes_room(&people));
    people.release(1, 1);
    for caller in callers {
        assert!(caller.join().is_ok());
    }
    assert_eq!(people.commands(), 0);
}
