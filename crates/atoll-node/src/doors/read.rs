//! The streaming read.

use std::sync::Arc;
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::proto::{ReadReply, ReadRequest, Record};
use atoll_log::LogPos;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::backend::{LogBackend, ReadRecords, Refusal};

/// Payload bytes of one reply, but for a longer single record.
const REPLY_BYTES: usize = 512 * 1024;
/// Replies read ahead of the client.
const REPLIES_AHEAD: usize = 2;
/// The pause after a wait for the tail that brought nothing: such waits are hints and may end early.
const NOTHING_NEW: Duration = Duration::from_millis(1);

/// Records of a log as asked for. The reading is a task that ends when the stream is dropped.
pub(super) fn stream(
    log: Arc<dyn LogBackend>,
    request: ReadRequest,
    mut stopping: watch::Receiver<bool>,
) -> impl Stream<Item = Result<ReadReply, Status>> + Send {
    let (to_client, replies) = mpsc::channel(REPLIES_AHEAD);
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = run(&*log, request, &to_client) => outcome,
            () = to_client.closed() => return,
            _ = stopping.wait_for(|stop| *stop) => Err(Refusal::stopping()),
        };
        if let Err(refusal) = outcome {
            // A client that went away does not want to know.
            let _ = to_client.send(Err(refusal.into())).await;
        }
    });
    ReceiverStream::new(replies)
}

async fn run(
    log: &dyn LogBackend,
    request: ReadRequest,
    to_client: &mpsc::Sender<Result<ReadReply, Status>>,
) -> Result<(), Refusal> {
    let mut tail = log.check_tail().await?;
    let mut at = request.from.map_or_else(|| log.trim_point().min(tail), LogPos);
    check_bounds(&request, at, tail)?;
    let by_limit = match request.limit {
        0 => u64::MAX,
        limit => at.0.saturating_add(limit),
    };
    let without_follow = if request.follow { u64::MAX } else { tail.0 };
    let end = LogPos(request.to.unwrap_or(u64::MAX).min(by_limit).min(without_follow));
    while at < end {
        if at >= tail {
            let newer = log.wait_tail(at).await?;
            if newer <= at {
                tokio::time::sleep(NOTHING_NEW).await;
            }
            tail = tail.max(newer);
            continue;
        }
        let got = log.read(at..end.min(tail), REPLY_BYTES, request.local_only).await?;
        at = got.first.plus(got.entries.len() as u64);
        if to_client.send(Ok(reply(got))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn check_bounds(request: &ReadRequest, at: LogPos, tail: LogPos) -> Result<(), Refusal> {
    let beyond = |what, position| {
        Err(Refusal::no(
            Reason::BeyondTail,
            format!("{what} {position} is beyond the tail, which is {tail}"),
            "read up to the tail, or follow the log",
        ))
    };
    match request.to {
        Some(to) if to < at.0 => {
            let message = format!("the range from {at} to {to} ends before it starts");
            return Err(Refusal::no(Reason::Invalid, message, ""));
        }
        Some(to) if to > tail.0 && !request.follow => return beyond("position", LogPos(to)),
        _ => {}
    }
    if at > tail && !request.follow { beyond("position", at) } else { Ok(()) }
}

fn reply(got: ReadRecords) -> ReadReply {
    let records = got.entries.into_iter().map(|entry| Record {
        payload: entry.payload,
        client: entry.op.client.0,
        seq: entry.op.seq,
    });
    ReadReply { first: got.first.0, records: records.collect(), remote: got.remote }
}
