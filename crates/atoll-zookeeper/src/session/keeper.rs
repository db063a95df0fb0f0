//! The sessions that this node holds: when each client was heard of last. Only their holder judges that a client is gone, and the
//! judgement counts only if the session has not moved since (contracts X22).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::{Incarnation, NodeId};
use atoll_db::{Direction, KeyRange, Proposer, View};
use tokio::time::Instant;

use crate::event::Event;
use crate::tree::key;
use crate::tree::read::ReadError;
use crate::watch::ConnectionId;
use crate::watch::outbox::{End, Outbox};

/// How often sessions are judged.
pub const JUDGED_EVERY: Duration = Duration::from_millis(200);
/// A judgement so late means that the node itself was away: clients could not be heard, so all timers start again.
const PAUSED_AFTER: Duration = Duration::from_millis(1000);

/// When a client was heard of last; shared with its connection.
#[derive(Debug)]
pub struct Heard {
    start: Instant,
    after_ms: AtomicU64,
}

impl Heard {
    fn new() -> Arc<Heard> {
        Arc::new(Heard { start: Instant::now(), after_ms: AtomicU64::new(0) })
    }

    /// Now.
    pub fn touch(&self) {
        let after = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.after_ms.store(after, Ordering::Relaxed);
    }

    fn silent_for(&self, now: Instant) -> Duration {
        let heard = self.start + Duration::from_millis(self.after_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(heard)
    }
}

#[derive(Debug)]
struct Held {
    moves: i64,
    timeout: Duration,
    heard: Arc<Heard>,
    connection: Option<(ConnectionId, Arc<Outbox>)>,
    /// Its expiry is on its way to the log.
    expiring: bool,
}

/// A session that is to be expired, and by which move it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Which.
    pub session: i64,
    /// As it was judged.
    pub moves: i64,
}

/// The sessions that a node holds.
#[derive(Debug)]
pub struct Sessions {
    me: Proposer,
    held: Mutex<BTreeMap<i64, Held>>,
    judged: Mutex<Instant>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// None yet.
    pub fn new(me: Proposer) -> Sessions {
        Sessions { me, held: Mutex::default(), judged: Mutex::new(Instant::now()) }
    }

    /// Follows the log.
    pub fn tell(&self, event: &Event) {
        match event {
            Event::Node { .. } => {}
            Event::SessionHeld { session, by, moves, timeout_ms, .. } if *by == self.me => {
                let timeout = Duration::from_millis(u64::try_from(*timeout_ms).unwrap_or(0));
                let (moves, heard) = (*moves, Heard::new());
                let held = Held { moves, timeout, heard, connection: None, expiring: false };
                let before = lock(&self.held).insert(*session, held);
                // Its client came back by another connection.
                end(before, End::SessionMoved);
            }
            Event::SessionHeld { session, .. } => end(lock(&self.held).remove(session), End::SessionMoved),
            Event::SessionGone { session, .. } => end(lock(&self.held).remove(session), End::SessionGone),
        }
    }

    /// A connection serves the session, if it is still held by that move. With when its client was heard of.
    pub fn bind(
        &self,
        session: i64,
        moves: i64,
        id: ConnectionId,
        outbox: &Arc<Outbox>,
    ) -> Option<Arc<Heard>> {
        let mut held = lock(&self.held);
        let held = held.get_mut(&session).filter(|h| h.moves == moves)?;
        held.heard.touch();
        held.connection = Some((id, outbox.clone()));
        Some(held.heard.clone())
    }

    /// The connection serves it no more; its client may come back until the timeout.
    pub fn unbind(&self, session: i64, id: ConnectionId) {
        if let Some(held) = lock(&self.held).get_mut(&session)
            && held.connection.as_ref().is_some_and(|(bound, _)| *bound == id)
        {
            held.connection = None;
        }
    }

    /// The sessions whose clients were silent for their timeout. Each is told once, until [`Sessions::spare`].
    pub fn judge(&self, now: Instant) -> Vec<Silent> {
        let since = std::mem::replace(&mut *lock(&self.judged), now);
        let paused = now.saturating_duration_since(since) > JUDGED_EVERY + PAUSED_AFTER;
        let mut held = lock(&self.held);
        if paused {
            held.values().for_each(|h| h.heard.touch());
            return Vec::new();
        }
        let silent = |h: &Held| !h.expiring && h.heard.silent_for(now) > h.timeout;
        let due = held.iter_mut().filter(|(_, h)| silent(h));
        due.map(|(session, h)| {
            h.expiring = true;
            Silent { session: *session, moves: h.moves }
        })
        .collect()
    }

    /// The expiry did not happen: it may be judged again.
    pub fn spare(&self, silent: Silent) {
        if let Some(held) = lock(&self.held).get_mut(&silent.session).filter(|h| h.moves == silent.moves) {
            held.expiring = false;
        }
    }

    /// Sessions that are held here.
    pub fn ids(&self) -> Vec<(i64, Duration)> {
        lock(&self.held).iter().map(|(session, held)| (*session, held.timeout)).collect()
    }

    /// Ends every connection: what they were promised cannot be kept.
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

/// Everybody who holds sessions.
///
/// # Errors
/// The store cannot be read.
pub fn holders(view: &View) -> Result<Vec<Proposer>, ReadError> {
    let mut found = Vec::new();
    let mut range = KeyRange::prefix(b"h");
    // One step per holder, whatever many sessions it has.
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
