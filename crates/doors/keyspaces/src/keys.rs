//! Streams the keys of a keyspace, page by page.

use std::sync::Arc;
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::keyspace_proto as proto;
use atoll_contract::keyspace::ListFrom;
use atoll_door::Refusal;
use atoll_door::backend::KeyspaceBackend;
use atoll_door::grpc::Shared;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The maximum number of keys in one message. They are at most 1 KiB long, and clients take messages of 4 MiB.
const PAGE_KEYS: usize = 2048;
/// How many messages are read ahead of the client.
const PAGES_AHEAD: usize = 2;
/// The stream of a client that takes no message for this long ends.
const IDLE_AT_MOST: Duration = Duration::from_secs(60);
/// A stream ends after this long in any case.
const TAKES_AT_MOST: Duration = Duration::from_secs(600);

/// Streams the requested keys. A task reads them, and ends when the stream is dropped. An error of the first page is the error of the call.
pub(crate) async fn stream(
    keyspaces: Arc<dyn KeyspaceBackend>,
    shared: &Shared,
    permit: OwnedSemaphorePermit,
    request: proto::KeysRequest,
) -> Result<impl Stream<Item = Result<proto::KeysReply, Status>> + Send + use<>, Refusal> {
    let mut listing = Listing::new(keyspaces, request);
    let first = listing.next().await?;
    // One place more than the pages ahead is reserved for an error. Without it, a slow client could mistake an error for the end.
    let (to_client, pages) = mpsc::channel(PAGES_AHEAD + 1);
    let last_word = to_client.clone().reserve_owned().await.map_err(|_| Refusal::stopping())?;
    let mut stopping = shared.stopping.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(TAKES_AT_MOST, run(listing, first, &to_client)) => {
                outcome.unwrap_or_else(|_| Err(too_slow("the listing took longer than ten minutes")))
            }
            () = to_client.closed() => return,
            _ = stopping.wait_for(|stop| *stop) => Err(Refusal::stopping()),
        };
        if let Err(refusal) = outcome {
            last_word.send(Err(refusal.into()));
        }
    });
    Ok(ReceiverStream::new(pages))
}

fn too_slow(words: &str) -> Refusal {
    Refusal::no(Reason::Refused, words, "continue after the last key that you received, with a limit")
}

async fn run(
    mut listing: Listing,
    first: Option<proto::KeysReply>,
    to_client: &mpsc::Sender<Result<proto::KeysReply, Status>>,
) -> Result<(), Refusal> {
    let mut next = first;
    while let Some(page) = next {
        match tokio::time::timeout(IDLE_AT_MOST, to_client.send(Ok(page))).await {
            Ok(Ok(())) => {}
            // The client disconnected.
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(too_slow("the client took no keys for a minute")),
        }
        next = listing.next().await?;
    }
    Ok(())
}

/// A listing in progress.
struct Listing {
    keyspaces: Arc<dyn KeyspaceBackend>,
    keyspace: String,
    prefix: Bytes,
    after: Option<Bytes>,
    left: u64,
    ended: bool,
}

impl Listing {
    fn new(keyspaces: Arc<dyn KeyspaceBackend>, request: proto::KeysRequest) -> Self {
        Listing {
            keyspaces,
            keyspace: request.keyspace,
            prefix: request.prefix,
            after: Some(request.after).filter(|after| !after.is_empty()),
            left: if request.limit == 0 { u64::MAX } else { request.limit },
            ended: false,
        }
    }

    /// Reads the next page that has keys. None at the end.
    async fn next(&mut self) -> Result<Option<proto::KeysReply>, Refusal> {
        while !self.ended && self.left > 0 {
            let limit = usize::try_from(self.left).unwrap_or(usize::MAX).min(PAGE_KEYS);
            let from = ListFrom { prefix: self.prefix.clone(), after: self.after.clone(), limit };
            let page = self.keyspaces.page(self.keyspace.clone(), from).await?;
            // A page that does not advance would be read forever.
            self.ended = !page.more || page.upto.is_none() || page.upto <= self.after;
            self.after = page.upto;
            self.left = self.left.saturating_sub(page.keys.len() as u64);
            if !page.keys.is_empty() {
                let key = |(key, version): (Bytes, atoll_contract::keyspace::KeyVersion)| {
                    proto::keys_reply::Key { key, version: version.0 }
                };
                return Ok(Some(proto::KeysReply { keys: page.keys.into_iter().map(key).collect() }));
            }
        }
        Ok(None)
    }
}
