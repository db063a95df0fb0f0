//! Sessions in the replicated state.

use atoll_core::testing::mutant;
use atoll_core::{Incarnation, NodeId};
use atoll_db::Proposer;

use crate::command::{
    AttachSession, CloseSession, EndSession, ExpireSession, OpenSession, PASSWORD_BYTES, SessionAnswer,
    TakeOver,
};
use crate::event::Event;
use crate::jute::codes::ErrorCode;
use crate::jute::{Jute, JuteError, Reader, record};
use crate::mutants;
use crate::path;
use crate::tree::key;
use crate::tree::state::{Keys, TreeState};

/// Most sessions that one command takes over, so that it does not delay the others for long. The proposer repeats the command.
pub const TAKEN_AT_ONCE: usize = 1000;
/// Ephemerals that are looked up at once.
const PAGE: usize = 1000;
/// The timeout of a session that is ending.
const ENDING_MS: i32 = -1;

record! {
    /// A session, as it is kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Kept<'a> {
        /// See [`Session`].
        password: Option<&'a [u8]>,
        /// See [`Session`].
        timeout_ms: i32,
        /// Of its holder.
        node: i64,
        /// Of its holder.
        incarnation: u64,
        /// See [`Session`].
        moves: i64,
    }
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// A client that has it may attach.
    pub password: [u8; PASSWORD_BYTES],
    /// The session expires after this long without a message from its client.
    pub timeout_ms: i32,
    /// The only one that may expire it, and through which it writes.
    pub holder: Proposer,
    /// A fencing token: how often the session has got a holder.
    pub moves: i64,
}

impl Session {
    /// What is kept in `bytes`.
    ///
    /// # Errors
    /// They are no session.
    pub fn of_bytes(bytes: &[u8]) -> Result<Session, JuteError> {
        let kept = Kept::read(&mut Reader::new(bytes))?;
        let unknown = |what| JuteError::Unknown { what, value: 0 };
        let password = kept.password.unwrap_or_default();
        Ok(Session {
            password: password.try_into().map_err(|_| unknown("password of a session"))?,
            timeout_ms: kept.timeout_ms,
            holder: Proposer {
                node: NodeId(u32::try_from(kept.node).map_err(|_| unknown("holder of a session"))?),
                incarnation: Incarnation(kept.incarnation),
            },
            moves: kept.moves,
        })
    }

    /// Whether it has ended except for ephemerals that are still to be deleted. Its client has lost it: it can neither write nor
    /// come back. The holder continues to delete at once, because the timeout is over.
    pub fn is_ending(&self) -> bool {
        self.timeout_ms == ENDING_MS && !mutant(mutants::ZK_ENDING_LIVES)
    }

    fn to_bytes(self) -> Vec<u8> {
        Kept {
            password: Some(&self.password),
            timeout_ms: self.timeout_ms,
            node: self.holder.node.0.into(),
            incarnation: self.holder.incarnation.0,
            moves: self.moves,
        }
        .to_vec()
    }
}

impl<K: Keys> TreeState<'_, K> {
    /// A session, if there is one.
    pub fn session(&mut self, id: i64) -> Option<Session> {
        let bytes = self.keys.get(&key::session(id))?;
        // As for znodes: a replica that cannot read what it has applied must stop.
        Some(Session::of_bytes(&bytes).unwrap_or_else(|e| panic!("session {id:#x}: {e}")))
    }

    /// The session, if the proposer holds it.
    fn held_session(&mut self, id: i64, by: Proposer) -> Result<Session, ErrorCode> {
        let session = self.session(id).ok_or(ErrorCode::SessionExpired)?;
        if session.holder == by { Ok(session) } else { Err(ErrorCode::SessionMoved) }
    }

    /// The session, if it is served by that move of the proposer: once a client has moved to another connection, here or elsewhere,
    /// nothing that arrives from the previous one counts (contracts X22).
    ///
    /// # Errors
    /// It is gone, or was moved since.
    pub fn served_session(&mut self, id: i64, moves: i64, by: Proposer) -> Result<Session, ErrorCode> {
        if mutant(mutants::ZK_WRITE_AFTER_MOVE) {
            return self.session(id).ok_or(ErrorCode::SessionExpired);
        }
        match self.held_session(id, by)? {
            session if session.is_ending() => Err(ErrorCode::SessionExpired),
            session if session.moves == moves => Ok(session),
            _ => Err(ErrorCode::SessionMoved),
        }
    }

    /// A new session.
    ///
    /// # Errors
    /// The command is malformed.
    pub fn open_session(&mut self, new: OpenSession<'_>, by: Proposer) -> Result<SessionAnswer, ErrorCode> {
        let password = new.password.unwrap_or_default().try_into().map_err(|_| ErrorCode::BadArguments)?;
        self.counters.sessions += 1;
        // After a restore, a number may recur that a client still knows: the epoch tells them apart.
        let id = (self.counters.epoch() << 40) | self.counters.sessions;
        let session = Session { password, timeout_ms: new.timeout_ms, holder: by, moves: 0 };
        self.hold(id, session, true);
        Ok(SessionAnswer { session: id, moves: 0, timeout_ms: new.timeout_ms })
    }

    /// A client comes back to its session: the proposer holds it from here on.
    ///
    /// # Errors
    /// The session is gone, or the password is not its own: clients are told the same.
    pub fn attach_session(
        &mut self,
        asked: AttachSession<'_>,
        by: Proposer,
    ) -> Result<SessionAnswer, ErrorCode> {
        let known = self.session(asked.session).filter(|s| asked.password == Some(&s.password[..]));
        let known = known.filter(|session| !session.is_ending());
        let session = known.ok_or(ErrorCode::SessionExpired)?;
        self.keys.delete(&key::held(session.holder, asked.session));
        let moves = session.moves + 1;
        self.hold(
            asked.session,
            Session { timeout_ms: asked.timeout_ms, holder: by, moves, ..session },
            true,
        );
        Ok(SessionAnswer { session: asked.session, moves, timeout_ms: asked.timeout_ms })
    }

    pub(crate) fn hold(&mut self, id: i64, session: Session, by_client: bool) {
        let Session { timeout_ms, holder: by, moves, .. } = session;
        self.keys.put(&key::session(id), session.to_bytes());
        self.keys.put(&key::held(by, id), Vec::new());
        self.keys.emit(Event::SessionHeld { session: id, by, moves, timeout_ms, by_client, zxid: self.zxid });
    }

    /// A client closes its session.
    ///
    /// # Errors
    /// The proposer does not hold it.
    pub fn close_session(&mut self, asked: CloseSession, by: Proposer) -> Result<(), ErrorCode> {
        let session = self.served_session(asked.session, asked.moves, by)?;
        self.end_session(asked.session, session);
        Ok(())
    }

    /// Expires a session, if it is held as it was when it was judged.
    ///
    /// # Errors
    /// It is not: it lives on.
    pub fn expire_session(&mut self, asked: ExpireSession, by: Proposer) -> Result<(), ErrorCode> {
        let session = self.judged_session(asked.session, asked.moves, by)?;
        self.end_session(asked.session, session);
        Ok(())
    }

    /// The session, if it is held as it was when its end was asked for, by whoever asked (contracts X22).
    fn judged_session(&mut self, id: i64, moves: i64, by: Proposer) -> Result<Session, ErrorCode> {
        let unguarded = mutant(mutants::ZK_EXPIRY_UNGUARDED);
        match self.session(id).filter(|_| unguarded).map_or_else(|| self.held_session(id, by), Ok)? {
            session if session.moves == moves || unguarded => Ok(session),
            _ => Err(ErrorCode::SessionMoved),
        }
    }

    /// Ends a session, or does a step of it.
    ///
    /// # Errors
    /// It is held by another proposer or another move, or is gone; `at_most` is not positive.
    pub fn end_session_in_steps(&mut self, asked: EndSession, by: Proposer) -> Result<(), ErrorCode> {
        let at_most =
            usize::try_from(asked.at_most).ok().filter(|n| *n > 0).ok_or(ErrorCode::BadArguments)?;
        let session = self.judged_session(asked.session, asked.moves, by)?;
        if self.delete_ephemerals(asked.session, at_most) {
            self.forget_session(asked.session, session);
        } else if !session.is_ending() {
            self.hold(asked.session, Session { timeout_ms: ENDING_MS, ..session }, false);
        }
        Ok(())
    }

    fn end_session(&mut self, id: i64, session: Session) {
        self.delete_ephemerals(id, usize::MAX);
        self.forget_session(id, session);
    }

    /// Deletes ephemerals of a session, `at_most` so many; whether none is left.
    fn delete_ephemerals(&mut self, id: i64, at_most: usize) -> bool {
        let mut ephemerals = key::ephemerals(id);
        let mut left = at_most;
        while !mutant(mutants::ZK_EPHEMERAL_STAYS) {
            let page = self.keys.first(&ephemerals, PAGE.min(left.max(1)));
            if page.is_empty() {
                break;
            }
            if left == 0 {
                return false;
            }
            left -= page.len();
            // The next page begins behind this key: otherwise deleted keys would be passed over again.
            if let Some((last, _)) = page.last() {
                ephemerals = ephemerals.above(last);
            }
            for (found, _) in page {
                self.keys.delete(&found);
                let Some(path) = key::path_behind(&found, key::EPHEMERAL_HEAD) else { continue };
                let Some((parent_path, _)) = path::split(path) else { continue };
                if let (Some(node), Some(parent)) = (self.node(path), self.node(parent_path)) {
                    self.remove(path, node, parent_path, parent);
                }
            }
        }
        true
    }

    fn forget_session(&mut self, id: i64, session: Session) {
        self.keys.delete(&key::held(session.holder, id));
        self.keys.delete(&key::session(id));
        self.keys.emit(Event::SessionGone { session: id, zxid: self.zxid });
    }

    /// The proposer holds some of the sessions of somebody who is gone; how many.
    pub fn take_over(&mut self, asked: TakeOver, by: Proposer) -> usize {
        let Ok(node) = u32::try_from(asked.node) else { return 0 };
        let from = Proposer { node: NodeId(node), incarnation: Incarnation(asked.incarnation) };
        if from == by {
            return 0;
        }
        let found = self.keys.first(&key::held_by(from), TAKEN_AT_ONCE);
        for (held, _) in &found {
            self.keys.delete(held);
            let Some(id) = key::session_at_end(held) else { continue };
            if let Some(session) = self.session(id) {
                self.hold(id, Session { holder: by, moves: session.moves + 1, ..session }, false);
            }
        }
        found.len()
    }
}
