//! The sending half of an append stream. The HTTP/2 connection polls it whenever it can send.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;
use tokio_stream::Stream;

use super::Shared;
use crate::proto::AppendStreamRequest;
use crate::proto::append_stream_request::{Open, What};

/// The requests of one stream: first the opening, then the waiting records each time the connection polls.
pub(super) struct Outbox {
    shared: Arc<Shared>,
    generation: u64,
    opened: bool,
}

impl Outbox {
    pub(super) fn new(shared: Arc<Shared>, generation: u64) -> Self {
        Outbox { shared, generation, opened: false }
    }
}

impl Stream for Outbox {
    type Item = AppendStreamRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.opened {
            self.opened = true;
            let known_tail = self.shared.update(|queue| queue.known_tail());
            let open = Open { log: self.shared.log.clone(), client: self.shared.client, known_tail };
            return Poll::Ready(Some(AppendStreamRequest { what: Some(What::Open(open)) }));
        }
        let generation = self.generation;
        match self.shared.update(|queue| queue.next_message(generation, Instant::now(), cx.waker())) {
            Ok(Some(records)) => {
                Poll::Ready(Some(AppendStreamRequest { what: Some(What::Records(records)) }))
            }
            Ok(None) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        }
    }
}
