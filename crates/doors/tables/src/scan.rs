//! Scans: streams a range of rows page by page. All pages show the same state, which is kept while the stream exists.

use std::sync::Arc;
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::proto::{ScanReply, ScanRequest};
use atoll_db::View;
use atoll_door::backend::Refusal;
use atoll_door::grpc::Shared;
use atoll_tables::{Page, Scan, read};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::convert;
use crate::handle::{TablesHandle, aside};

/// The maximum numbers of rows and bytes in one message. A single longer row still fits.
const PAGE_ROWS: usize = 512;
const PAGE_BYTES: usize = 256 * 1024;
/// How many messages are read ahead of the client.
const PAGES_AHEAD: usize = 2;
/// The stream of a client that takes no message for this long ends, because the state that it reads is kept in memory or on disk meanwhile.
const IDLE_AT_MOST: Duration = Duration::from_secs(60);
/// A stream ends after this long in any case.
const TAKES_AT_MOST: Duration = Duration::from_secs(600);

/// Streams the requested rows. A task reads them, and ends when the stream is dropped.
pub(crate) async fn stream(
    tables: &TablesHandle,
    shared: &Shared,
    view: View,
    request: ScanRequest,
) -> Result<impl Stream<Item = Result<ScanReply, Status>> + Send + use<>, Refusal> {
    let too_many =
        |_| Refusal::no(Reason::Busy, "too many ranges are being read from this node", "try again later");
    let (reads, mut stopping) = (tables.reads.clone(), shared.stopping.clone());
    let permit = tables.scans.clone().try_acquire_owned().map_err(too_many)?;
    let (scan, version) = {
        let (table, query) = (request.table.clone(), convert::query(&request));
        aside(&reads, move || {
            let refused = |e| convert::read_refusal(&e);
            let schema = read::schema(&view, &table).map_err(refused)?;
            let version = read::version(&view).map_err(refused)?;
            Ok((Scan::new(&view, schema, &query).map_err(refused)?, version))
        })
        .await?
    };
    let (to_client, last_word, replies) = queue().await.ok_or_else(Refusal::stopping)?;
    tokio::spawn(async move {
        let _permit = permit;
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(TAKES_AT_MOST, run(&reads, scan, version, &request, &to_client)) => {
                outcome.unwrap_or_else(|_| Err(too_slow("the range took longer than ten minutes")))
            }
            () = to_client.closed() => return,
            _ = stopping.wait_for(|stop| *stop) => Err(Refusal::stopping()),
        };
        if let Err(refusal) = outcome {
            last_word.send(Err(refusal.into()));
        }
    });
    Ok(ReceiverStream::new(replies))
}

/// What waits for the client: a page of rows, or the error that ends the stream.
type Item = Result<ScanReply, Status>;

/// Returns a queue for a client. It has room for the pages that are read ahead, and one place more that is reserved for an error. Without
/// that place, a client that is slow to take its rows could mistake an error for the end.
async fn queue() -> Option<(mpsc::Sender<Item>, mpsc::OwnedPermit<Item>, mpsc::Receiver<Item>)> {
    let (to_client, replies) = mpsc::channel(PAGES_AHEAD + 1);
    let last_word = to_client.clone().reserve_owned().await.ok()?;
    Some((to_client, last_word, replies))
}

fn too_slow(words: &str) -> Refusal {
    Refusal::no(Reason::Refused, words, "continue after the last row that you received, with a limit")
}

async fn run(
    reads: &Arc<Semaphore>,
    mut scan: Scan,
    version: u64,
    request: &ScanRequest,
    to_client: &mpsc::Sender<Result<ScanReply, Status>>,
) -> Result<(), Refusal> {
    let unlimited = |limit: u64| if limit == 0 { u64::MAX } else { limit };
    let (mut rows_left, mut bytes_left) = (unlimited(request.limit_rows), unlimited(request.limit_bytes));
    let mut table = Some(convert::table(scan.schema()));
    loop {
        let rows = usize::try_from(rows_left).unwrap_or(usize::MAX).min(PAGE_ROWS);
        let bytes = usize::try_from(bytes_left).unwrap_or(usize::MAX).min(PAGE_BYTES);
        let (back, page) = aside(reads, move || {
            let page = scan.page(rows, bytes).map_err(|e| convert::read_refusal(&e))?;
            Ok((scan, page))
        })
        .await?;
        scan = back;
        let Page { rows, bytes, ended } = page;
        rows_left = rows_left.saturating_sub(rows.len() as u64);
        bytes_left = bytes_left.saturating_sub(bytes as u64);
        let last = ended || rows_left == 0 || bytes_left == 0;
        let rows = rows.into_iter().map(convert::row).collect();
        let reply = ScanReply { table: table.take(), version, rows, ended };
        match tokio::time::timeout(IDLE_AT_MOST, to_client.send(Ok(reply))).await {
            Ok(Ok(())) if last => return Ok(()),
            Ok(Ok(())) => {}
            // The client disconnected.
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(too_slow("the client took no rows for a minute")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_finds_room_behind_the_pages_that_wait() {
        let (to_client, last_word, mut replies) = queue().await.unwrap();
        let mut pages = 0;
        while to_client.try_send(Ok(ScanReply::default())).is_ok() {
            pages += 1;
        }
        assert_eq!(pages, PAGES_AHEAD);
        drop(to_client);
        last_word.send(Err(Refusal::stopping().into()));
        for _ in 0..pages {
            assert!(replies.recv().await.unwrap().is_ok());
        }
        assert!(replies.recv().await.unwrap().is_err());
        assert!(replies.recv().await.is_none());
    }
}
