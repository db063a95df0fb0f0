//! The sessions that this node holds, and when each client was last heard. Only the holder of a session decides that its client is
//! gone. The decision takes effect only if the session has not moved since (contracts X22).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::testing::mutant;
use atoll_core::{Incarnation, NodeId};
use atoll_db::{Direction, KeyRange, Proposer, View};
use tokio::time::Instant;

use crate::event::Event;
use crate::mutants;
use crate::session::held::{Held, LastSeen, Table};
use crate::session::state::Session;
use crate::tree::key;
use crate::tree::read::{self, ReadError};
use crate::watch::ConnectionId;
use crate::watch::outbox::{End, Outbox};

/// How often the sessions are checked for expiry.
pub const JUDGED_EVERY: Duration = Duration::from_millis(200);
/// If a check is late by more than this, the node itself was paused and could not hear its clients. All timers then start again.
const PAUSED_AFTER: Duration = Duration::from_millis(1000);

/// A session that must be expired, with the move count at which this node holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The id of the session.
    pub session: i64,
    /// The move count when its client was found silent.
    pub moves: i64,
    /// Whether the session has already expired, except that ephemerals are left.
    pub is_ending: bool,
}

/// The sessions that a node holds.
#[derive(Debug)]
pub struct Sessions {
    me: Proposer,
    held: Mutex<Table>,
    judged: Mutex<Instant>,
    out_of_touch: AtomicBool,
}

impl Sessions {
    /// Creates an empty set of sessions for the node's current life.
    pub fn new(me: Proposer) -> Sessions {
        let judged = Mutex::new(Instant::now());
        Sessions { me, held: Mutex::default(), judged, out_of_touch: AtomicBool::new(false) }
    }

    /// Applies an event of the log.
    pub fn apply(&self, event: &Event) {
        match event {
            Event::Node { .. } | Event::Counted { .. } | Event::OverQuota { .. } => {}
            // The clients reconnect to the restored tree. Events for those of its sessions that are held here follow.
            Event::Restored { .. } => self.replace(BTreeMap::new()),
            Event::SessionHeld { session, by, moves, timeout_ms, by_client, .. } if *by == self.me => {
                let at_once = mutant(mutants::ZK_TAKE_OVER_WITHOUT_TIMEOUT) && !by_client;
                let timeout_ms = if at_once { 0 } else { *timeout_ms };
                let before = lock(&self.held).insert(*session, *moves, timeout_ms);
                // Either the client came back on another connection, or its session has ended and the rest of it must be deleted.
                end(before, if timeout_ms < 0 { End::SessionGone } else { End::SessionMoved });
            }
            Event::SessionHeld { session, .. } => end(lock(&self.held).remove(*session), End::SessionMoved),
            Event::SessionGone { session, .. } => end(lock(&self.held).remove(*session), End::SessionGone),
        }
    }

    /// Binds a connection to the session that it serves, if this node holds the session at that move count. Returns the record of
    /// when the client was last heard, or None if it does not.
    pub fn bind(
        &self,
        session: i64,
        moves: i64,
        id: ConnectionId,
        outbox: &Arc<Outbox>,
    ) -> Option<Arc<LastSeen>> {
        let mut held = lock(&self.held);
        let held = held.get_mut(session).filter(|h| h.moves == moves)?;
        held.heard.touch();
        held.connection = Some((id, outbox.clone()));
        Some(held.heard.clone())
    }

    /// Unbinds a connection. The client may come back until its timeout.
    pub fn unbind(&self, session: i64, id: ConnectionId) {
        if let Some(held) = lock(&self.held).get_mut(session)
            && held.connection.as_ref().is_some_and(|(bound, _)| *bound == id)
        {
            held.connection = None;
            held.heard.set_waits(false);
        }
    }

    /// Sets whether this node has lost the log. Its clients are then disconnected and cannot come back, so their silence does not
    /// count. Each gets a full timeout once the log is back.
    pub fn set_out_of_touch(&self, out_of_touch: bool) {
        self.out_of_touch.store(out_of_touch, Ordering::Relaxed);
    }

    /// Returns the sessions that must expire, because their clients were silent for the timeout. Only here is that decided. Each
    /// session is returned once, and not again before [`Sessions::spare`].
    pub fn take_expired(&self, now: Instant) -> Vec<Expired> {
        let since = std::mem::replace(&mut *lock(&self.judged), now);
        let paused = now.saturating_duration_since(since) > JUDGED_EVERY + PAUSED_AFTER;
        let mut held = lock(&self.held);
        if paused || self.out_of_touch.load(Ordering::Relaxed) {
            held.values().for_each(|h| h.heard.touch());
            return Vec::new();
        }
        held.take_silent(now)
    }

    /// Allows a session to be returned by [`Sessions::take_expired`] again, because its expiry had no effect or was one step of several.
    pub fn spare(&self, silent: Expired) {
        lock(&self.held).judge_again(silent.session, silent.moves);
    }

    /// Adopts a state that was replaced as a whole: this node now holds the sessions that the view assigns to it. The timers of
    /// sessions that it held before continue.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn refill(&self, view: &View) -> Result<(), ReadError> {
        let mut found = BTreeMap::new();
        for key in view.scan(&key::held_by(self.me), Direction::Forward) {
            let (key, _) = key?;
            let Some(id) = key::session_at_end(&key) else { continue };
            let Some(session) = read::session(view, id)? else { continue };
            found.insert(id, session);
        }
        self.replace(found);
        Ok(())
    }

    /// Replaces the sessions that are held here. The connections of all others end, because no event announces the end of these
    /// sessions.
    fn replace(&self, by: BTreeMap<i64, Session>) {
        let mut held = lock(&self.held);
        let is_other =
            |id: i64, before: &Held| by.get(&id).is_none_or(|session| session.moves != before.moves);
        held.remove_all(is_other).into_iter().for_each(|before| end(Some(before), End::Closed));
        for (id, session) in by {
            if held.get_mut(id).is_none() {
                held.insert(id, session.moves, session.timeout_ms);
            }
        }
    }

    /// Returns the sessions that are held here, with their timeouts.
    pub fn ids(&self) -> Vec<(i64, Duration)> {
        lock(&self.held).iter().map(|(session, held)| (session, held.timeout)).collect()
    }

    /// Returns the number of sessions that are held here.
    pub fn count(&self) -> usize {
        lock(&self.held).len()
    }

    /// Ends the connections of all sessions that are held here.
    pub fn end_all(&self, why: End) {
        for held in lock(&self.held).values() {
            held.connection.iter().for_each(|(_, outbox)| outbox.end(why));
        }
    }
}

fn end(held: Option<Held>, why: End) {
    if let Some((_, outbox)) = held.and_then(|h| h.connection) {
        outbox.end(why);
    }
}

/// Returns all holders of sessions.
///
/// # Errors
/// The store cannot be read.
pub fn holders(view: &View) -> Result<Vec<Proposer>, ReadError> {
    let mut found = Vec::new();
    let mut range = KeyRange::prefix(b"h");
    // One step per holder, however many sessions it has.
    while let Some(next) = view.scan(&range, Direction::Forward).next() {
        let (key, _) = next?;
        let parts =
            key.get(1..5).and_then(|n| n.try_into().ok()).zip(key.get(5..13).and_then(|i| i.try_into().ok()));
        let Some((node, incarnation)) = parts else { break };
        let holder = Proposer {
            node: NodeId(u32::from_be_bytes(node)),
            incarnation: Incarnation(u64::from_be_bytes(incarnation)),
        };
        found.push(holder);
        let Some(end) = key::held_by(holder).end else { break };
        range.start = end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::session::secret::Secret;

    const ME: Proposer = Proposer { node: NodeId(1), incarnation: Incarnation(1) };
    const OTHER: Proposer = Proposer { node: NodeId(2), incarnation: Incarnation(2) };

    fn held(session: i64, by: Proposer, moves: i64) -> Event {
        Event::SessionHeld { session, by, moves, timeout_ms: 1_000, by_client: true, zxid: 1 }
    }

    /// Judges every 200 ms, from `from_ms` to `to_ms` after `start`.
    fn expired(sessions: &Sessions, start: Instant, from_ms: u64, to_ms: u64) -> Vec<Expired> {
        let times = (from_ms..=to_ms).step_by(200);
        times.flat_map(|ms| sessions.take_expired(start + Duration::from_millis(ms))).collect()
    }

    #[test]
    fn a_silent_client_is_told_once_and_again_if_it_was_spared() {
        let (sessions, start) = (Sessions::new(ME), Instant::now());
        sessions.apply(&held(7, ME, 3));
        assert_eq!(expired(&sessions, start, 0, 800), []);
        let silent = Expired { session: 7, moves: 3, is_ending: false };
        assert_eq!(expired(&sessions, start, 1_000, 3_000), [silent]);
        sessions.spare(silent);
        assert_eq!(expired(&sessions, start, 3_200, 3_200), [silent]);
        sessions.apply(&Event::SessionGone { session: 7, zxid: 2 });
        assert_eq!(expired(&sessions, start, 3_400, 9_000), []);
    }

    #[test]
    fn a_client_that_waits_for_answers_is_not_silent() {
        let (sessions, start) = (Sessions::new(ME), Instant::now());
        sessions.apply(&held(7, ME, 0));
        let heard = sessions.bind(7, 0, 1, &Arc::new(Outbox::default())).unwrap();
        heard.set_waits(true);
        heard.set_after_ms(0);
        assert_eq!(expired(&sessions, start, 0, 900), []);
        // Its connection goes away: from here on the client is silent.
        sessions.unbind(7, 1);
        assert_eq!(
            expired(&sessions, start, 1_100, 3_000),
            [Expired { session: 7, moves: 0, is_ending: false }]
        );
    }

    #[test]
    fn a_session_that_went_elsewhere_is_not_judged_here() {
        let (sessions, start) = (Sessions::new(ME), Instant::now());
        let outbox = Arc::new(Outbox::default());
        sessions.apply(&held(7, ME, 0));
        assert!(sessions.bind(7, 1, 5, &outbox).is_none(), "not by another move");
        assert!(sessions.bind(7, 0, 5, &outbox).is_some());
        sessions.apply(&held(7, OTHER, 1));
        assert_eq!(outbox.ended(), Some(End::SessionMoved));
        assert_eq!(expired(&sessions, start, 0, 5_000), []);
        assert!(sessions.bind(7, 0, 6, &outbox).is_none());
    }

    /// The session disappears from a state that was replaced as a whole, so no event announces its end.
    #[test]
    fn a_session_that_is_not_held_here_any_more_loses_its_connection() {
        let sessions = Sessions::new(ME);
        let session =
            |moves| Session { secret: Secret::hash_of(&[0; 16]), timeout_ms: 1_000, holder: ME, moves };
        let outboxes = [1, 2, 3].map(|id| {
            let outbox = Arc::new(Outbox::default());
            sessions.apply(&held(id, ME, 0));
            sessions.bind(id, 0, 5, &outbox).unwrap();
            outbox
        });
        // Session 2 is gone. The client of session 3 came back.
        sessions.replace(BTreeMap::from([(1, session(0)), (3, session(2))]));
        assert_eq!(outboxes.map(|outbox| outbox.ended()), [None, Some(End::Closed), Some(End::Closed)]);
        assert_eq!(sessions.ids().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [1, 3]);
        assert!(sessions.bind(1, 0, 6, &Arc::default()).is_some());
        assert!(sessions.bind(3, 2, 6, &Arc::default()).is_some());
    }

    #[test]
    fn without_the_log_nobody_is_judged_silent() {
        let (sessions, start) = (Sessions::new(ME), Instant::now());
        sessions.apply(&held(7, ME, 0));
        assert_eq!(expired(&sessions, start, 0, 400), []);
        sessions.set_out_of_touch(true);
        assert_eq!(expired(&sessions, start, 600, 60_000), [], "it was sent away");
        sessions.set_out_of_touch(false);
        let heard = sessions.bind(7, 0, 1, &Arc::default()).unwrap();
        assert!(heard.after_ms() < 10_000, "by the clock of this test");
    }

    #[test]
    fn a_node_that_was_away_starts_its_timers_anew() {
        let (sessions, start) = (Sessions::new(ME), Instant::now());
        sessions.apply(&held(7, ME, 0));
        assert_eq!(expired(&sessions, start, 0, 400), []);
        // The node was paused for a minute, in which it could not hear the client.
        assert_eq!(expired(&sessions, start, 60_000, 60_000), []);
        let heard = sessions.bind(7, 0, 1, &Arc::new(Outbox::default())).unwrap();
        assert!(heard.after_ms() < 10_000, "by the clock of this test");
    }
}
