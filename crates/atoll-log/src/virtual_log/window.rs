//! Waiting for room in the window of a lane, and in the budget that all lanes of a node share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_core::Place;

use super::Shared;
use super::append::ITEM_BYTES;

/// Completes when there is room for a submission of this size; see [`super::VirtualLog::room`].
///
/// Callers of one log wait in its lane's list. Only the first of them also waits for the node's budget, so that budget returned by one log
/// wakes one caller of each other log, not all of them.
#[derive(Debug)]
pub struct Room {
    shared: Arc<Shared>,
    bytes: usize,
    place: Place,
    /// The place in the budget's list.
    outer: Option<Place>,
}

impl Room {
    pub(super) fn new(shared: Arc<Shared>, records: usize, payload_bytes: usize) -> Self {
        let bytes = payload_bytes.saturating_add(records.saturating_mul(ITEM_BYTES));
        let place = shared.lane.place(bytes);
        Room { shared, bytes, place, outer: None }
    }
}

impl Future for Room {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let me = &mut *self;
        me.place.wait(cx);
        if !me.shared.lane.has_room(me.bytes) {
            return Poll::Pending;
        }
        let budget = &me.shared.budget;
        if me.place.is_first() {
            me.outer.get_or_insert_with(|| budget.place()).wait(cx);
        }
        match budget.has_room(me.shared.lane.held_bytes(), me.bytes) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// A caller that leaves, whether it used the room or not, wakes the next one.
impl Drop for Room {
    fn drop(&mut self) {
        self.place.leave();
        self.shared.lane.admit();
    }
}
