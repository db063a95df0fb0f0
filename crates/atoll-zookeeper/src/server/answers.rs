//! The answers of a connection, in the order of its requests, and the view that they are read from.

use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::testing::mutant;
use atoll_db::View;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::{Connection, MAX_UNSENT_BYTES};
use super::figures::Refusal;
use super::frame;
use super::handshake::Ended;
use super::pending::{Pending, Ready, Settled};
use super::room;
use super::walk::Listed;
use crate::jute::Jute;
use crate::jute::codes::ErrorCode;
use crate::jute::reply::PathReply;
use crate::mutants;
use crate::watch::NotYet;
use crate::watch::outbox::End;

/// The client must read a large reply within this time, because others wait for its place.
const LARGE_WITHIN: Duration = Duration::from_secs(60);

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Refuses a request. The error reply is sent in its turn.
    pub(crate) fn refuse(&mut self, xid: i32, code: ErrorCode) {
        self.shared.figures.refuse(Refusal::Request);
        self.reply_in_turn(|out, zxid| frame::error(out, xid, zxid, code));
    }

    /// Sends a reply after the replies to all earlier requests.
    pub(crate) fn reply_in_turn(&mut self, write: impl FnOnce(&mut Vec<u8>, i64)) {
        if self.pending.is_empty() {
            self.drain_events();
            self.replied();
            write(&mut self.out, self.zxid);
        } else {
            let mut reply = Vec::new();
            // Its zxid is set when its turn comes.
            write(&mut reply, 0);
            self.pending.push(self.asked, Pending::Reply(reply));
        }
    }

    /// Counts the answer to the current request, which was added to the output.
    pub(crate) fn replied(&mut self) {
        self.count_sent(1);
        self.answered = Some(self.asked);
    }

    /// Counts answers and events that were added to the output.
    pub(crate) fn count_sent(&mut self, n: u64) {
        self.shared.figures.sent.add(n);
        self.figures.sent.add(n);
    }

    /// Answers requests in order, as long as the first one is ready.
    pub(super) fn answer_ready(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while self.out.len() < MAX_UNSENT_BYTES && !self.turn.is_over() {
            self.release_held();
            let Poll::Ready(Some((asked, ready))) = self.pending.poll_first(cx) else { break };
            self.asked = asked;
            let had = self.out.len();
            match ready? {
                Ready::Answer { xid, answer, proposed } => {
                    let err = frame::head(&answer).err;
                    if err == ErrorCode::SessionMoved.number() || err == ErrorCode::SessionExpired.number() {
                        return Err(Ended::Here(End::SessionMoved));
                    }
                    if let Some(settled) = proposed {
                        self.settled(settled);
                    }
                    self.after_write();
                    self.zxid = self.zxid.max(frame::head(&answer).zxid);
                    frame::answer(&mut self.out, xid, self.zxid, &answer);
                    self.replied();
                }
                Ready::Closed { xid, answer } => {
                    self.after_write();
                    self.zxid = self.zxid.max(frame::head(&answer).zxid);
                    frame::answer(&mut self.out, xid, self.zxid, &answer);
                    self.replied();
                    self.said = Some(Ok(()));
                    return Ok(());
                }
                Ready::Synced { xid, path } => {
                    let newest = self.shared.zxid();
                    self.after_write();
                    self.told_up_to(newest);
                    frame::reply(&mut self.out, xid, self.zxid, |out| PathReply { path: &path }.write(out));
                    self.replied();
                }
                Ready::Serve(bytes) => self.serve(&bytes)?,
                Ready::LookedUp(bytes, times) => self.serve_looked_up(&bytes, times)?,
                Ready::Watches(again) => self.watch_again(again)?,
                Ready::Listed(Listed { mut reply, refused, place }, watch) => {
                    self.settle(watch, refused);
                    frame::set_zxid(&mut reply, self.zxid);
                    // Do not hold a large reply in memory twice.
                    if self.out.is_empty() {
                        self.out = reply;
                    } else {
                        self.out.extend_from_slice(&reply);
                    }
                    let late = || Box::pin(tokio::time::sleep(LARGE_WITHIN));
                    self.large = place.map(|place| (place, late())).or(self.large.take());
                    self.replied();
                }
                Ready::Reply(reply) => {
                    self.drain_events();
                    let at = self.out.len();
                    self.out.extend_from_slice(&reply);
                    frame::set_zxid(&mut self.out[at..], self.zxid);
                    self.replied();
                }
                Ready::Unknown { xid, op } => {
                    self.shared.figures.refuse(Refusal::Request);
                    // ZooKeeper's zxid for an answer that no change precedes.
                    frame::error(&mut self.out, xid, -1, ErrorCode::Unimplemented);
                    self.replied();
                    self.said = Some(Err(Ended::Unknown(op)));
                    return Ok(());
                }
            }
            self.turn.did(self.out.len().saturating_sub(had));
        }
        Ok(())
    }

    /// Releases what the writes held that were applied behind a request that cannot be answered yet.
    pub(super) fn settle_writes(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while let Some(settled) = self.pending.settle_writes(cx) {
            self.settled(settled?);
        }
        // A write for which this connection has room, but which it may not take before the client has read more.
        if self.out.len() >= MAX_UNSENT_BYTES {
            self.room = None;
        }
        Ok(())
    }

    /// Counts a write that was applied or refused, and releases the room of a large one.
    fn settled(&mut self, settled: Settled) {
        if settled.above_quota {
            self.shared.figures.refuse(Refusal::Quota);
        }
        let took = settled.at.elapsed();
        self.shared.window.answered(took);
        if let Some(room) = settled.room {
            room::rest(room, took.max(self.shared.cluster.longest_apply_delay()));
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.shared.figures.write_us.add(us);
        self.figures.latency.add_many(us, 1);
    }

    /// Call this after a write was applied. Its events go out before its reply, and later reads of this session see it
    /// (read-your-writes).
    fn after_write(&mut self) {
        self.forget_view();
        self.drain_events_first();
    }

    /// Drops the view, so that the next read takes a newer one.
    pub(crate) fn forget_view(&mut self) {
        if !mutant(mutants::ZK_SERVES_BEHIND_SESSION) {
            self.view = None;
        }
    }

    /// Returns the view of this turn, from which reads are answered. A read waits for the earlier requests of its session, and
    /// until the view shows all that the client has seen. The events of changes that the view shows, and no others, go out before
    /// any answer that is read from it (contracts X19). Returns None if the request was put off, because the client knows of a
    /// change that the newest view does not show yet.
    pub(crate) fn view(&mut self, bytes: &[u8]) -> Option<View> {
        if self.view.is_none() {
            let newest = self.shared.zxid();
            let view = self.shared.engine.view();
            let drained = match mutant(mutants::ZK_EVENTS_AFTER_REPLIES) {
                true => Ok(0),
                false => self.outbox.drain_for(view.below(), &mut self.out),
            };
            match drained {
                Ok(events) => self.show(view, events, newest),
                Err(below) => self.put_off(bytes, NotYet(below)),
            }
        }
        self.view.clone()
    }

    /// Sets the view of this turn, after `events` events of changes that it shows were added to the output. `newest` is a zxid that
    /// was read before they were taken from the outbox.
    pub(crate) fn show(&mut self, view: View, events: u64, newest: i64) {
        self.view = Some(view);
        self.told_up_to(newest);
        self.count_sent(events);
    }

    /// Raises the zxid that replies report to `newest`. All events of changes up to `newest` must be in the output: it was read
    /// before the outbox was drained.
    pub(crate) fn told_up_to(&mut self, newest: i64) {
        // An outbox that has ended may have dropped events.
        if self.outbox.ended().is_none() {
            self.zxid = self.zxid.max(newest);
        }
    }

    /// Adds the waiting events to the output, before a reply.
    pub(crate) fn drain_events_first(&mut self) {
        if !mutant(mutants::ZK_EVENTS_AFTER_REPLIES) {
            self.drain_events();
        }
    }

    /// Adds all waiting events to the output, including those of changes that the view of this turn does not show.
    pub(super) fn drain_events(&mut self) {
        // Read it before draining: the outbox then has the events of all changes up to it.
        let newest = self.shared.zxid();
        let events = self.outbox.drain(&mut self.out);
        if events > 0 {
            // Without events the zxid stays, so that a write's reply carries the write's own zxid, as some clients expect.
            self.told_up_to(newest);
            self.forget_view();
            self.count_sent(events);
        }
    }
}
