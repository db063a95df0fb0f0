//! Limits on large writes. The log is applied in order, so a write waits for all writes before it, from any client. Large writes
//! take long to apply or to store, so only a few of them, from all clients of a node, are in the log at a time, and the others wait
//! their turn. Small writes are limited in number (`max_outstanding`) and do not wait for large writes that have no room yet.
//!
//! A large write that took long, here or at another replica, releases its room after a pause. By then this node has applied it. But
//! a replica that gets less of its machine's time may still have to apply many large writes, and a small write there waits for all
//! of them. So the heartbeats of each node report for how long entries wait at its replica, and the slowest one sets the pace.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::jute::codes::OpCode;

/// A write of at most this many bytes is small.
const SMALL_BYTES: usize = 1024;
/// Bytes of a transaction per unit of room: about one operation.
const BYTES_OF_ONE: usize = 64;
/// Bytes of data per unit of room.
const BYTES_OF_DATA: usize = 2048;
/// Units of room in total: 64 KiB of transactions, or 2 MiB of data. A larger write goes alone. A higher value makes small writes
/// wait longer behind large ones, and with three nodes, behind three times as much. A lower value reduces the throughput of large
/// writes.
const ROOM: u32 = 1024;

/// A large write that was applied within this time releases its room at once, because the replicas have time to spare.
const QUICK: Duration = Duration::from_millis(50);
/// The pause is this many times as long as the write took, which leaves most of the replicas' time to other work.
const RESTS_FOR: u32 = 2;
/// The longest pause.
const RESTS_AT_MOST: Duration = Duration::from_millis(500);

/// Releases the room of a write, after a pause if it was slow: `took` is the time from its proposal until it was applied here, or the
/// time that entries wait at the slowest replica, whichever is longer.
pub(crate) fn rest(room: OwnedSemaphorePermit, took: Duration) {
    if took <= QUICK {
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep((took * RESTS_FOR).min(RESTS_AT_MOST)).await;
        drop(room);
    });
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Room(Arc::new(Semaphore::new(ROOM as usize)))
    }
}

/// Returns the units of room that a write takes, 0 for a small one.
fn weight(op: OpCode, bytes: usize) -> u32 {
    let one = if matches!(op, OpCode::Multi | OpCode::Import) { BYTES_OF_ONE } else { BYTES_OF_DATA };
    let weight = if bytes <= SMALL_BYTES { 0 } else { bytes.div_ceil(one) };
    u32::try_from(weight).unwrap_or(ROOM).min(ROOM)
}

impl Room {
    /// Takes room for a write of this many bytes. A small write needs none. If `go_alone` is set, a large one takes all of it.
    /// `have` is room that the write has already waited for.
    ///
    /// # Errors
    /// There is not enough room. Await the returned future, which queues behind earlier ones.
    pub(crate) fn take(
        &self,
        op: OpCode,
        bytes: usize,
        go_alone: bool,
        have: Option<OwnedSemaphorePermit>,
    ) -> Result<Option<OwnedSemaphorePermit>, impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<>>
    {
        let weight = match weight(op, bytes) {
            0 => return Ok(None),
            _ if go_alone => ROOM,
            weight => weight,
        };
        if let Some(have) = have.filter(|have| have.num_permits() >= weight as usize) {
            return Ok(Some(have));
        }
        let room = self.0.clone();
        match room.clone().try_acquire_many_owned(weight) {
            Ok(taken) => Ok(Some(taken)),
            // The semaphore is never closed.
            Err(_) => Err(async move { room.acquire_many_owned(weight).await.ok() }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_large_write_that_took_long_rests() {
        let room = Room::default();
        let all = || room.take(OpCode::Multi, 1 << 20, false, None);
        let one = all().unwrap_or_else(|_| panic!("all is free"));
        rest(one.unwrap(), QUICK);
        let one = all().unwrap_or_else(|_| panic!("one that was quick does not rest"));
        let took = QUICK + Duration::from_millis(10);
        rest(one.unwrap(), took);
        let began = tokio::time::Instant::now();
        let Err(wait) = all() else { panic!("it rests") };
        let one = wait.await;
        assert!(began.elapsed() >= took * RESTS_FOR, "{:?}", began.elapsed());
        rest(one.unwrap(), Duration::from_secs(30));
        let Err(wait) = all() else { panic!("it rests") };
        drop(wait.await);
        assert!(began.elapsed() < took * RESTS_FOR + RESTS_AT_MOST * 2, "{:?}", began.elapsed());
    }

    #[test]
    fn large_writes_wait_for_each_other_and_small_ones_for_none() {
        let room = Room::default();
        let whole = room.take(OpCode::Multi, 1 << 20, false, None).unwrap_or_else(|_| panic!("all is free"));
        assert_eq!(whole.as_ref().unwrap().num_permits(), ROOM as usize);
        assert!(room.take(OpCode::Multi, 2_000, false, None).is_err());
        assert!(
            room.take(OpCode::SetData, SMALL_BYTES, true, None).unwrap_or_else(|_| panic!("small")).is_none()
        );
        assert!(
            room.take(OpCode::SetData, SMALL_BYTES + 1, false, None).is_err(),
            "the smallest large one needs room, too"
        );
        drop(whole);
        let data = room.take(OpCode::SetData, 1 << 20, false, None).unwrap_or_else(|_| panic!("free again"));
        assert_eq!(data.as_ref().unwrap().num_permits(), 512);
        // Room that was waited for is used if it is enough.
        let data = room.take(OpCode::SetData, 1 << 20, false, data).unwrap_or_else(|_| panic!("it is there"));
        // It is not enough if the write must go alone by now.
        assert!(
            room.take(OpCode::SetData, 1 << 20, true, data)
                .is_ok_and(|all| all.unwrap().num_permits() == ROOM as usize)
        );
    }
}
