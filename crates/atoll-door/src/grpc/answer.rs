//! Limits the memory of large replies. A reply that its client requests but does not receive stays in memory as long as the connection
//! exists.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_client::Reason;
use tokio::sync::oneshot;

use super::budget::Share;
use super::connections::Connection;
use super::limits::Limits;
use crate::backend::Refusal;

/// Replies up to this size do not count against the budget. Most replies are that small, and the number of requests is limited anyway.
const SMALL_BYTES: usize = 16 * 1024;
/// In addition to [`Limits::unread_at_most`], a client has as much time as it takes to send the reply at this rate.
const LEAST_BYTES_PER_S: usize = 64 * 1024;

/// The memory for the reply to one request. Clones share the same state. The memory is released when the reply was sent or the connection
/// has ended.
#[derive(Clone)]
pub struct AnswerRoom(Arc<Inner>);

struct Inner {
    limits: Arc<Limits>,
    connection: Arc<Connection>,
    taken: Mutex<Option<Taken>>,
}

struct Taken {
    _share: Share,
    /// Dropped together with the share. This ends the task that waits for it.
    _gone: oneshot::Sender<()>,
}

impl AnswerRoom {
    pub(super) fn new(limits: Arc<Limits>, connection: Arc<Connection>) -> Self {
        AnswerRoom(Arc::new(Inner { limits, connection, taken: Mutex::default() }))
    }

    /// Reserves memory for a reply of `bytes`. May be called once. If the client does not receive the reply in time, its connection is
    /// closed, because only that releases the memory.
    ///
    /// # Errors
    /// Busy: replies that clients have not received yet use up all of the memory, or all of this address's part.
    pub fn take(&self, bytes: usize) -> Result<(), Refusal> {
        if bytes <= SMALL_BYTES {
            return Ok(());
        }
        let Inner { limits, connection, taken } = &*self.0;
        let share = limits.read_bytes.take(connection.address, bytes).ok_or_else(|| {
            let words =
                "unread replies to clients of this node, or to this address, fill the memory reserved for them";
            Refusal::no(Reason::Busy, words, "read the replies, request less at once, or try again later")
        })?;
        let (gone, is_gone) = oneshot::channel();
        let rate = Duration::from_secs((bytes / LEAST_BYTES_PER_S) as u64);
        let (within, connection) = (limits.unread_at_most + rate, connection.clone());
        tokio::spawn(async move {
            if tokio::time::timeout(within, is_gone).await.is_err() {
                tracing::warn!(of = %connection.address, bytes, ?within, "disconnecting a gRPC client that does not read its reply");
                connection.close();
            }
        });
        *taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(Taken { _share: share, _gone: gone });
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::connections::Connections;
    use super::*;

    const LARGE: usize = 8 << 20;

    #[tokio::test]
    async fn answers_that_nobody_takes_are_bounded_and_end_their_connection() {
        let limits = Arc::new(Limits { unread_at_most: Duration::ZERO, ..Limits::default() });
        let connections = Connections::new(2, 2);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let place = connections.admit(address).unwrap();
        let room = || AnswerRoom::new(limits.clone(), place.connection.clone());
        room().take(SMALL_BYTES).unwrap();
        assert_eq!(limits.read_bytes.held(), 0);
        let mut held = Vec::new();
        let refused = loop {
            let one = room();
            match one.take(LARGE) {
                Ok(()) => held.push(one),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refused.failure.reason, Reason::Busy);
        assert_eq!(held.len(), 6, "the part of one address");
        held.pop();
        assert_eq!(limits.read_bytes.held(), 5 * LARGE);
        // Large replies have the time that they take at the lowest rate. This one has no time.
        let late = room();
        late.take(SMALL_BYTES + 1).unwrap();
        tokio::time::timeout(Duration::from_secs(60), place.connection.ended()).await.unwrap();
    }
}
