//! Read-only mode (`readonlymode.enabled`). A node that has lost the log continues to serve reads of its state to clients that
//! asked for this mode. The reads may be stale, and nothing is written. As soon as the log is back, these clients are disconnected,
//! so that they reconnect for normal service.

use std::sync::atomic::Ordering;

use atoll_core::Ticket;
use atoll_db::{Applied, LogPos};
use ring::rand::SecureRandom;

use super::Shared;
use super::handshake::{Ended, Password};
use super::pending::Pending;
use crate::command::{AnswerHead, PASSWORD_BYTES, SessionAnswer, is_write};
use crate::jute::Jute;
use crate::jute::codes::OpCode;
use crate::jute::records::ConnectRequest;
use crate::session::secret::Secret;
use crate::tree::read;
use crate::watch::outbox::End;

/// Returns whether a request can be served without the log.
pub(crate) fn serves(op: OpCode) -> bool {
    !is_write(op) && !matches!(op, OpCode::Sync | OpCode::Check | OpCode::Reconfig | OpCode::DeleteContainer)
}

/// Returns the answer to a CloseSession in read-only mode. Nothing is changed: either only this node knows the session, or the
/// session stays open.
pub(crate) fn closed(xid: i32, zxid: i64) -> Pending {
    let reply = Ok(AnswerHead { zxid, err: 0 }.to_vec().into());
    let applied = Applied { position: LogPos::ZERO, index: 0, time_ms: 0, reply };
    Pending::Close { xid, proposed: Ticket::ready(Ok(applied)) }
}

impl Shared {
    /// Returns whether this node serves reads without the log.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Disconnects the clients because the log is out of reach. In read-only mode, those that asked for this mode may reconnect.
    pub(crate) fn out_of_touch(&self) {
        if !self.options.read_only_mode {
            tracing::warn!("the log is unreachable; ZooKeeper clients must use other nodes");
            self.sessions.end_all(End::OutOfTouch);
        } else if !self.read_only.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "the log is unreachable; ZooKeeper clients that allow read-only mode may read this replica"
            );
            self.sessions.end_all(End::OutOfTouch);
        }
    }

    /// Disconnects the clients that are served without the log, because the log is back or the state here must not be read.
    pub(crate) fn end_read_only(&self) {
        if self.read_only.swap(false, Ordering::AcqRel) {
            tracing::info!("read-only mode for ZooKeeper clients has ended");
            self.watches.end_all(End::Closed);
        }
    }
}

/// Returns a session for a client that may be served without the log: its own if this node knows it, or a new one that only this
/// node knows. If this node holds the session, the caller must bind its connection to it. Otherwise this node might judge the
/// client silent once the log is back.
///
/// # Errors
/// The client did not ask for this mode, it has seen more than is here, or this node does not know its session. Another node may.
pub(crate) async fn admit(
    shared: &Shared,
    asked: &ConnectRequest<'_>,
) -> Result<(SessionAnswer, Password), Ended> {
    if asked.read_only != Some(true) {
        return Err(Ended::Here(End::OutOfTouch));
    }
    let view = shared.engine.view();
    let newest = shared.read(view.clone(), read::counters).await?.zxid;
    if asked.last_zxid_seen > newest {
        return Err(Ended::Ahead { seen: asked.last_zxid_seen, newest });
    }
    if asked.session == 0 {
        let random = ring::rand::SystemRandom::new();
        let (mut password, mut number) = ([0; PASSWORD_BYTES], [0; 8]);
        let drawn = random.fill(&mut password).and_then(|()| random.fill(&mut number));
        drawn.map_err(|_| Ended::Log("the system has no random bytes".into()))?;
        // Sessions in the replicated state have positive numbers.
        let session = i64::from_be_bytes(number) | i64::MIN;
        let timeout_ms = shared.timeout_ms(asked);
        return Ok((SessionAnswer { session, moves: 0, timeout_ms }, password));
    }
    let session = asked.session;
    let given = asked.password.and_then(|given| Password::try_from(given).ok());
    let password = given.ok_or(Ended::Here(End::OutOfTouch))?;
    let known = shared.read(view, move |source| read::session(source, session)).await?;
    let known = known.filter(|s| s.secret.matches(Secret::Plain(password)));
    let known = known.ok_or(Ended::Here(End::OutOfTouch))?;
    let answer = SessionAnswer { session, moves: known.moves, timeout_ms: known.timeout_ms };
    Ok((answer, password))
}
