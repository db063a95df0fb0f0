//! Room for large writes. The log is applied in order: a write waits for all writes in front of it, from any client. So of the
//! large writes of all clients of a node, which take long to apply or to store, only a few are under way at a time, and they take
//! turns. Small writes, bounded by their number (`max_outstanding`), do not wait for large ones that have no room yet.
//!
//! A large write that took long gives its room back after a rest. This node has applied it by then, but another replica, which gets
//! less of its machine's time, may still have many of them to apply, and a small write there waits for all of these.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::jute::codes::OpCode;

/// A write up to this length is small.
const SMALL_BYTES: usize = 1024;
/// Bytes of a transaction that count one: one of its operations, about.
const BYTES_OF_ONE: usize = 64;
/// Bytes of data that count one.
const BYTES_OF_DATA: usize = 2048;
/// What may be under way at once, in these units: 64 KiB of transactions, or 2 MiB of data. A larger write goes alone. More: small
/// writes wait longer behind it; with three nodes, behind three times as much. Less: fewer large writes are under way, with less
/// throughput.
const ROOM: u32 = 1024;

/// A large write that was applied within this time gives its room back at once: the replicas have time to spare.
const QUICK: Duration = Duration::from_millis(50);
/// A rest takes this many times as long as the write took, which leaves most of the replicas' time to other work.
const RESTS_FOR: u32 = 2;
/// The longest rest.
const RESTS_AT_MOST: Duration = Duration::from_millis(500);

/// Gives back the room of a write, which was applied this long after it was put into the log.
pub(crate) fn rest(room: Option<OwnedSemaphorePermit>, took: Duration) {
    let Some(room) = room.filter(|_| took > QUICK) else { return };
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

/// What a write takes; 0 for a small one.
fn weight(op: OpCode, bytes: usize) -> u32 {
    let one = if matches!(op, OpCode::Multi | OpCode::Import) { BYTES_OF_ONE } else { BYTES_OF_DATA };
    let weight = if bytes <= SMALL_BYTES { 0 } else { bytes.div_ceil(one) };
    u32::try_from(weight).unwrap_or(ROOM).min(ROOM)
}

impl Room {
    /// Takes room for a write of this many bytes: none is needed for a small write, and a large one takes all room if large writes
    /// are to go alone. `have`: the room that was waited for.
    ///
    /// # Errors
    /// There is none: wait for it, behind those that came before.
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
            // It is never closed.
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
        rest(one, QUICK);
        let one = all().unwrap_or_else(|_| panic!("one that was quick does not rest"));
        let took = QUICK + Duration::from_millis(10);
        rest(one, took);
        let began = tokio::time::Instant::now();
        let Err(wait) = all() else { panic!("it rests") };
        let one = wait.await;
        assert!(began.elapsed() >= took * RESTS_FOR, "{:?}", began.elapsed());
        rest(one, Duration::from_secs(30));
        let Err(wait) = all() else { panic!("it rests") };
        drop(wait.await);
        assert!(began.elapsed() < took * RESTS_FOR + RESTS_AT_MOST * 2, "{:?}", began.elapsed());
        // A small write holds no room, and has none to give back.
        rest(None, Duration::from_secs(30));
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
        // What was waited for is used, if it is enough.
        let data = room.take(OpCode::SetData, 1 << 20, false, data).unwrap_or_else(|_| panic!("it is there"));
        // Not if it is to go alone now.
        assert!(
            room.take(OpCode::SetData, 1 << 20, true, data)
                .is_ok_and(|all| all.unwrap().num_permits() == ROOM as usize)
        );
    }
}
