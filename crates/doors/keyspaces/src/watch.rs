//! Streams the changes of a key.

use std::sync::Arc;
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::keyspace_proto as proto;
use atoll_contract::keyspace::{Held, KeyVersion};
use atoll_door::Refusal;
use atoll_door::backend::KeyspaceBackend;
use atoll_door::grpc::Shared;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::convert;

/// How many states are read ahead of the client.
const STATES_AHEAD: usize = 1;
/// The stream of a client that does not take a state for this long ends.
const IDLE_AT_MOST: Duration = Duration::from_secs(60);

/// Streams the states of a key. A task reads them, and ends when the stream is dropped. An error of the first read is that of the call.
pub(crate) async fn stream(
    keyspaces: Arc<dyn KeyspaceBackend>,
    shared: &Shared,
    permit: OwnedSemaphorePermit,
    request: proto::WatchRequest,
) -> Result<impl Stream<Item = Result<proto::WatchReply, Status>> + Send + use<>, Refusal> {
    let mut watch =
        Watch { keyspaces, keyspace: request.keyspace, key: request.key, seen: request.seen.map(KeyVersion) };
    // A client that has seen nothing gets an answer at once.
    let first = if watch.seen.is_none() { Some(watch.first().await?) } else { None };
    // One place more than the states ahead is reserved for an error. Without it, a slow client could mistake an error for the end.
    let (to_client, states) = mpsc::channel(STATES_AHEAD + 1);
    let last_word = to_client.clone().reserve_owned().await.map_err(|_| Refusal::stopping())?;
    let mut stopping = shared.stopping.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let outcome = tokio::select! {
            outcome = run(watch, first, &to_client) => outcome,
            () = to_client.closed() => return,
            _ = stopping.wait_for(|stop| *stop) => Err(Refusal::stopping()),
        };
        if let Err(refusal) = outcome {
            last_word.send(Err(refusal.into()));
        }
    });
    Ok(ReceiverStream::new(states))
}

async fn run(
    mut watch: Watch,
    first: Option<Option<Held>>,
    to_client: &mpsc::Sender<Result<proto::WatchReply, Status>>,
) -> Result<(), Refusal> {
    let mut next = first;
    loop {
        if let Some(held) = next {
            let reply = proto::WatchReply { held: held.map(convert::held) };
            match tokio::time::timeout(IDLE_AT_MOST, to_client.send(Ok(reply))).await {
                Ok(Ok(())) => {}
                // The client disconnected.
                Ok(Err(_)) => return Ok(()),
                Err(_) => {
                    let words = "the client took no state of the key for a minute";
                    return Err(Refusal::no(Reason::Refused, words, "watch it again after the last version"));
                }
            }
        }
        next = watch.changed().await?;
    }
}

/// A watch in progress.
struct Watch {
    keyspaces: Arc<dyn KeyspaceBackend>,
    keyspace: String,
    key: Bytes,
    seen: Option<KeyVersion>,
}

fn version_of(held: Option<&Held>) -> KeyVersion {
    held.map_or(KeyVersion(0), |held| held.version)
}

impl Watch {
    /// Reads the present state.
    async fn first(&mut self) -> Result<Option<Held>, Refusal> {
        // No key has this version, so the wait ends at once.
        let none = KeyVersion(u64::MAX);
        let held = self.keyspaces.wait_change(self.keyspace.clone(), self.key.clone(), none).await?;
        self.seen = Some(version_of(held.as_ref()));
        Ok(held)
    }

    /// Waits for a while for a change. None if there was none.
    async fn changed(&mut self) -> Result<Option<Option<Held>>, Refusal> {
        let seen = self.seen.unwrap_or_default();
        let held = self.keyspaces.wait_change(self.keyspace.clone(), self.key.clone(), seen).await?;
        let version = version_of(held.as_ref());
        if version == seen {
            return Ok(None);
        }
        self.seen = Some(version);
        Ok(Some(held))
    }
}
