//! Lets a refused command wait for room among the commands that await an answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_core::Place;

use super::core::Core;

/// Completes when there is room for a command of this size, or when it would be refused for another reason; see
/// [`super::Engine::room`].
pub struct Room {
    core: Arc<Core>,
    bytes: usize,
    place: Place,
}

impl Room {
    pub(super) fn new(core: Arc<Core>, bytes: usize) -> Self {
        let place = core.crowd.place(bytes);
        Room { core, bytes, place }
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "room for {} bytes", self.bytes)
    }
}

impl Future for Room {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.place.wait(cx);
        match self.core.crowd.has_room(self.bytes) || self.core.refuses() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Lets the next waiter try, whether or not this one has used the room.
impl Drop for Room {
    fn drop(&mut self) {
        self.place.leave();
        self.core.crowd.admit();
    }
}
