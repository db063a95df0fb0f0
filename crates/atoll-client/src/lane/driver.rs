//! The driver of a lane: opens streams, receives outcomes, detects nodes that are silent, and switches to the next node.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tonic::Streaming;

use super::Shared;
use super::outbox::Outbox;
use super::queue::{Queue, Settlement};
use crate::HEARTBEAT;
use crate::connections::Connections;
use crate::error::{Failure, Outcome, is_worth_retrying, parse};
use crate::options::Options;
use crate::proto::log_service_client::LogServiceClient;
use crate::proto::{AppendStreamReply, Reason};

/// If the client's own timer was this late, the client itself was paused, and the node is not suspected (contracts X21).
const TIMER_LATE: Duration = Duration::from_millis(100);

/// A node whose connection is slower than this may count as dead, in bytes per second.
const SLOWEST_CONNECTION: f64 = 2e6;

/// How a stream ended.
enum End {
    /// The lane is closed and empty.
    Finished,
    /// The lane was idle for a while. Its connection is worth more to others: a node grants only so many to one address.
    Idle,
    /// This node cannot serve the lane now. The outcome says whether the unanswered records may have happened.
    Failed(Outcome, Failure),
    /// No node accepts this lane.
    Refused(Outcome, Failure),
}

impl Shared {
    /// Returns the time that it may take to send the unanswered messages.
    fn time_to_send(&self) -> Duration {
        let bytes = self.update(|queue| queue.unanswered_bytes());
        Duration::from_secs_f64(bytes as f64 / SLOWEST_CONNECTION)
    }
}

/// Runs a lane until it is closed and empty.
pub(super) async fn drive(shared: Arc<Shared>, connections: Arc<Connections>) {
    let mut failures = 0usize;
    loop {
        while shared.update(|queue| queue.is_idle()) {
            if shared.update(|queue| queue.is_finished()) {
                return;
            }
            shared.bell.notified().await;
        }
        let at = connections.current();
        let mut progress = false;
        let end = stream(&shared, &connections, at, &mut progress).await;
        let not_taken = matches!(end, End::Failed(Outcome::No, _) | End::Refused(Outcome::No, _));
        shared.update(|queue| queue.end_stream(not_taken));
        if progress {
            failures = 0;
        }
        match end {
            End::Finished => return,
            End::Idle => {
                tracing::debug!(log = shared.log, node = connections.text(at), "closing the idle stream");
                failures = 0;
            }
            End::Refused(happened, failure) => {
                shared.update(|queue| queue.refuse(happened, &failure));
                failures = 0;
            }
            End::Failed(_, failure) => {
                tracing::debug!(log = shared.log, node = connections.text(at), %failure, "trying the next node");
                connections.failed(at, &failure);
                failures += 1;
                shared.update(|queue| match connections.is_hopeless() {
                    true => queue.refuse(Outcome::No, &failure),
                    false => queue.expire(Instant::now(), &failure),
                });
                if failures.is_multiple_of(connections.len()) {
                    let round = u32::try_from(failures / connections.len() - 1).unwrap_or(u32::MAX);
                    sleep(connections.options.backoff(round)).await;
                }
            }
        }
    }
}

/// Runs one stream to the node at address `at` until it ends. Sets `progress` if any outcome arrives.
async fn stream(shared: &Arc<Shared>, connections: &Connections, at: usize, progress: &mut bool) -> End {
    let silence = connections.options.silence;
    let channel = match connections.connect(at).await {
        Ok(channel) => channel,
        Err(failure) => return End::Failed(Outcome::No, failure),
    };
    tracing::debug!(log = shared.log, node = connections.text(at), "connected");
    let generation = shared.update(|queue| queue.begin_stream(Instant::now()));
    let outbox = Outbox::new(shared.clone(), generation);
    let mut client = LogServiceClient::new(channel);
    let replies = match timeout(silence, client.append_stream(outbox)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return from_status(connections.parsed(at, &status).await, connections.text(at)),
        Err(_) => return End::Failed(Outcome::Unknown, silent(connections.text(at), silence)),
    };
    connections.note_answer();
    listen(shared, replies, &connections.options, connections.text(at), progress).await
}

async fn listen(
    shared: &Shared,
    mut replies: Streaming<AppendStreamReply>,
    options: &Options,
    address: &str,
    progress: &mut bool,
) -> End {
    let mut ticks = interval(HEARTBEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    let (mut last_tick, mut last_used) = (heard, heard);
    loop {
        tokio::select! {
            biased;
            reply = replies.message() => {
                heard = Instant::now();
                match reply {
                    Ok(Some(reply)) => {
                        if !reply.outcomes.is_empty() {
                            *progress = true;
                            last_used = heard;
                        }
                        if let Some(end) = take(shared, reply, heard) {
                            return end;
                        }
                    }
                    Ok(None) => return End::Failed(Outcome::Unknown, Failure::new(
                        Reason::Unavailable,
                        format!("{address}: the node ended the stream"),
                        "",
                    )),
                    Err(status) => return from_status(parse(&status), address),
                }
                if shared.update(|queue| queue.is_finished()) {
                    return End::Finished;
                }
            }
            _ = ticks.tick() => {
                let now = Instant::now();
                if now.duration_since(last_tick) > HEARTBEAT + TIMER_LATE {
                    heard = now;
                }
                last_tick = now;
                let (owed_since, idle) = shared.update(|queue| {
                    queue.expire(now, &silent_cluster());
                    (queue.busy_since(), queue.is_idle())
                });
                if !idle {
                    last_used = now;
                }
                let owed_since = owed_since.unwrap_or(now);
                let quiet = now.duration_since(owed_since.max(heard));
                if quiet > options.silence && quiet > options.silence + shared.time_to_send() {
                    return End::Failed(Outcome::Unknown, silent(address, quiet));
                }
                // The node is alive, but may be cut off from the others.
                if now.duration_since(owed_since) > options.attempt_timeout {
                    return End::Failed(Outcome::Unknown, stuck(address, options.attempt_timeout));
                }
                if shared.update(|queue| queue.is_finished()) {
                    return End::Finished;
                }
                // The queue decides, under its lock, so that no record is given to a stream that ends.
                if now.duration_since(last_used) >= options.append_idle
                    && shared.update(Queue::end_idle_stream)
                {
                    return End::Idle;
                }
            }
        }
    }
}

/// Handles a reply. Returns an end if the stream cannot continue.
fn take(shared: &Shared, reply: AppendStreamReply, now: Instant) -> Option<End> {
    shared.update(|queue| {
        if let Some(opened) = reply.opened {
            tracing::debug!(log = shared.log, node = opened.node, tail = opened.known_tail, "stream open");
            queue.opened(opened.known_tail);
        }
        for outcome in reply.outcomes {
            match queue.settle(outcome, now) {
                Settlement::Fine => {}
                Settlement::GoElsewhere(failure) => return Some(End::Failed(Outcome::Unknown, failure)),
                Settlement::Nonsense(what) => {
                    let message = format!("the node broke the protocol: {what}");
                    let next = "are the versions of client and server compatible?";
                    return Some(End::Failed(
                        Outcome::Unknown,
                        Failure::new(Reason::Unavailable, message, next),
                    ));
                }
            }
        }
        None
    })
}

fn from_status((happened, mut failure): (Outcome, Failure), address: &str) -> End {
    if is_worth_retrying(failure.reason) {
        if !failure.message.starts_with(address) {
            failure.message = format!("{address}: {}", failure.message);
        }
        return End::Failed(happened, failure);
    }
    End::Refused(happened, failure)
}

fn silent(address: &str, silence: Duration) -> Failure {
    Failure::new(
        Reason::Unavailable,
        format!("{address}: no sign of life for {} ms", silence.as_millis()),
        "`atoll status` through another address shows which nodes are up",
    )
}

fn stuck(address: &str, for_long: Duration) -> Failure {
    Failure::new(
        Reason::Unavailable,
        format!("{address}: no append was acknowledged for {} ms", for_long.as_millis()),
        "`atoll status` shows whether enough servers are up",
    )
}

fn silent_cluster() -> Failure {
    Failure::new(
        Reason::Unavailable,
        "not acknowledged before the deadline",
        "`atoll status` shows whether enough servers are up",
    )
}
