//! Waits for a change of a key (§10): acceptors say that they have voted, and a read confirms it. Since reads are linearizable, what is
//! returned never goes back, and a watcher that reads again at the end of its time misses no last version.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::keyspace::{Held, KeyVersion, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Call, Tick};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use crate::ballot::Ballot;
use crate::message::Watch;
use crate::read;
use crate::space::{InPlaceSpace, Shared};

/// The longest time between two reads.
const LONGEST: Duration = Duration::from_secs(5);
/// The shortest and the longest pause after a read that shows nothing new, although an acceptor has voted: the vote is not chosen yet.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Waits until the version of a key is not `seen`, which is 0 for a key that is not there, or until the time is over. Returns what the key
/// holds.
pub(crate) async fn wait(
    space: &InPlaceSpace,
    key: &Bytes,
    seen: KeyVersion,
    until: Tick,
) -> Result<Option<Held>, Unavailability> {
    let shared: &Arc<Shared> = &space.0;
    let mut pause = PAUSES.0;
    loop {
        let (reply, chosen) = read::read_vote(shared, key).await?;
        if let Some(lock) = reply.lock {
            space.resolve(key, lock.txn).await?;
            continue;
        }
        let version = reply.held.as_ref().map_or(KeyVersion(0), |held| held.version);
        let now = shared.env.now();
        if version != seen || now >= until {
            return Ok(reply.held);
        }
        let end = until.min(now.after(LONGEST));
        match chosen {
            Some(chosen) if sleep_until_voted(shared, key, chosen, end).await => {
                hit("in-place.watch.notified");
                shared.env.sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            Some(_) => pause = PAUSES.0,
            None => shared.env.sleep(pause).await,
        }
    }
}

/// Waits until an acceptor has voted for a key in a higher ballot than this. Returns false if none has until `end`.
async fn sleep_until_voted(shared: &Shared, key: &Bytes, seen: Ballot, end: Tick) -> bool {
    let env = &shared.env;
    let group = shared.group(shared.layout.place(key).shard);
    let for_ms = end.since(env.now()).as_millis() as u32;
    let watch = |identity| Watch { group: group.key, identity, key: key.clone(), seen, for_ms };
    let mut calls: Vec<Option<Call<Watch>>> =
        group.replicas.iter().map(|r| Some(env.call(r.node, watch(r.identity)))).collect();
    let mut sleep = env.sleep_until(end);
    std::future::poll_fn(move |cx| {
        for slot in &mut calls {
            if let Some(call) = slot
                && let Poll::Ready(answer) = Pin::new(call).poll(cx)
            {
                *slot = None;
                if answer.is_ok_and(|watched| watched.changed) {
                    return Poll::Ready(true);
                }
            }
        }
        Pin::new(&mut sleep).poll(cx).map(|()| false)
    })
    .await
}
