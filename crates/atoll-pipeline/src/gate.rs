//! The wait of a stage for room in the next one. It holds back the first item, and so everything after it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Open, or closed until there is room in the next stage. `R` is the wait for room.
#[derive(Debug)]
pub struct Gate<R> {
    room: Option<R>,
    /// Whether the wait has ended.
    has_room: bool,
}

impl<R> Default for Gate<R> {
    fn default() -> Self {
        Gate { room: None, has_room: true }
    }
}

impl<R: Future<Output = ()> + Unpin> Gate<R> {
    /// Closes the gate, because the next stage refused the first item.
    pub fn close(&mut self, room: R) {
        *self = Gate { room: Some(room), has_room: false };
    }

    /// Ready if the first item may be sent. Otherwise the task is woken when there may be room. Somebody else may take that room, so the
    /// item may be refused again: call [`Gate::open`] if it was sent, [`Gate::close`] if it was refused.
    pub fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.has_room
            && let Some(room) = &mut self.room
        {
            ready!(Pin::new(room).poll(cx));
            self.has_room = true;
        }
        Poll::Ready(())
    }

    /// Opens the gate. The wait is dropped only now: dropping it wakes the next caller that waits for room, who would look in vain before
    /// the item has taken its room.
    pub fn open(&mut self) {
        *self = Gate::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn a_gate_is_closed_until_there_is_room() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut gate = Gate::default();
        assert!(gate.poll_open(cx).is_ready());
        let mut looks = 0;
        gate.close(std::future::poll_fn(|_| {
            looks += 1;
            assert!(looks <= 2, "polled after its end");
            if looks < 2 { Poll::Pending } else { Poll::Ready(()) }
        }));
        assert!(gate.poll_open(cx).is_pending());
        assert!(gate.poll_open(cx).is_ready());
        assert!(gate.poll_open(cx).is_ready(), "the wait is over, and is not polled again");
    }
}
