//! Scenarios with a completer in one thread and its ticket in another.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use shuttle::future::block_on;
use shuttle::thread;

use super::ticket::{Abandoned, ticket};
use crate::sync::Arc;

/// Polls a ticket with another waker first. Only the waker of the last poll has to be woken.
fn polled_before<F: Future + Unpin>(wait: &mut F) -> Poll<F::Output> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn completed() {
    let (done, mut wait) = ticket();
    let other = thread::spawn(move || done.complete(7));
    let got = match polled_before(&mut wait) {
        Poll::Ready(got) => got,
        Poll::Pending => block_on(wait),
    };
    assert_eq!(got, Ok(7), "completed, and read as abandoned");
    assert!(other.join().is_ok());
}

pub(crate) fn abandoned() {
    let (done, wait) = ticket::<u32>();
    let other = thread::spawn(move || drop(done));
    assert_eq!(block_on(wait), Err(Abandoned));
    assert!(other.join().is_ok());
}

/// The ticket may be dropped at any moment. The value is then dropped, too, and the completer may notice.
pub(crate) fn dropped() {
    let value = Arc::new(());
    let (done, mut wait) = ticket();
    let given = value.clone();
    let other = thread::spawn(move || {
        let seen = done.is_abandoned();
        done.complete(given);
        seen
    });
    let early = polled_before(&mut wait).is_ready();
    drop(wait);
    let seen = other.join();
    assert!(seen.is_ok_and(|seen| !(seen && early)), "abandoned, and read");
    assert_eq!(Arc::strong_count(&value), 1, "the value is left over");
}
