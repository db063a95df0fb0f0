//! Read-only mode (`readonlymode.enabled`): a node that has lost the log continues to serve reads of its state, to clients that
//! asked for this mode. Their reads may be stale, and nothing is written; as soon as the log is back they are disconnected, so that
//! they reconnect as usual.

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
use crate::tree::read;
use crate::watch::outbox::End;

/// Whether a request can be served without the log.
pub(crate) fn serves(op: OpCode) -> bool {
    !is_write(op) && !matches!(op, OpCode::Sync | OpCode::Check | OpCode::Reconfig | OpCode::DeleteContainer)
}

/// The end of a session that only this node knows, or that stays as it is.
pub(crate) fn closed(xid: i32, zxid: i64) -> Pending {
    let reply = Ok(AnswerHead { zxid, err: 0 }.to_vec().into());
    let applied = Applied { position: LogPos::ZERO, index: 0, time_ms: 0, reply };
    Pending::Close { xid, proposed: Ticket::ready(Ok(applied)) }
}

impl Shared {
    /// Whether this node serves reads alone.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// The log is out of reach: clients are disconnected; those that reconnect and may be served in this mode are.
    pub(crate) fn out_of_touch(&self) {
        if !self.options.read_only_mode {
            tracing::warn!("the log is out of reach: ZooKeeper's clients are sent elsewhere");
            self.sessions.end_all(End::OutOfTouch);
        } else if !self.read_only.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "the log is out of reach: ZooKeeper's clients that asked for it may read what is here"
            );
            self.sessions.end_all(End::OutOfTouch);
        }
    }

    /// The log is back, or the state here must not be read: clients that were served without the log must reconnect.
    pub(crate) fn end_read_only(&self) {
        if self.read_only.swap(false, Ordering::AcqRel) {
            tracing::info!("ZooKeeper's clients are no longer served without the log");
            self.watches.end_all(End::Closed);
        }
    }
}

/// A session for a client that may be served without the log: its own if it is known here, or one that only this node knows. If the
/// session is held here, its connection must be bound to it, because this node must not judge its client silent once the log is
/// back.
///
/// # Errors
/// The client did not ask for this mode, it has seen more than is here, or its session is unknown here: it may be known elsewhere.
pub(crate) fn admit(shared: &Shared, asked: &ConnectRequest<'_>) -> Result<(SessionAnswer, Password), Ended> {
    if asked.read_only != Some(true) {
        return Err(Ended::Here(End::OutOfTouch));
    }
    let view = shared.engine.view();
    let newest = read::counters(&view)?.zxid;
    if asked.last_zxid_seen > newest {
        return Err(Ended::Ahead { seen: asked.last_zxid_seen, newest });
    }
    if asked.session == 0 {
        let random = ring::rand::SystemRandom::new();
        let (mut password, mut number) = ([0; PASSWORD_BYTES], [0; 8]);
        let drawn = random.fill(&mut password).and_then(|()| random.fill(&mut number));
        drawn.map_err(|_| Ended::Log("the system has no random bytes".into()))?;
        // Sessions in the state have positive numbers.
        let session = i64::from_be_bytes(number) | i64::MIN;
        let timeout_ms = shared.timeout_ms(asked);
        return Ok((SessionAnswer { session, moves: 0, timeout_ms }, password));
    }
    let known = read::session(&view, asked.session)?.filter(|s| asked.password == Some(&s.password[..]));
    let known = known.ok_or(Ended::Here(End::OutOfTouch))?;
    let answer = SessionAnswer { session: asked.session, moves: known.moves, timeout_ms: known.timeout_ms };
    Ok((answer, known.password))
}
