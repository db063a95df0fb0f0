//! Sessions in the replicated state.

use atoll_core::testing::mutant;
use atoll_core::{Incarnation, NodeId};
use atoll_db::Proposer;

use crate::command::{
    AttachSession, CloseSession, EndSession, ExpireSession, OpenSession, SessionAnswer, TakeOver,
};
use crate::event::Event;
use crate::jute::codes::ErrorCode;
use crate::jute::{Jute, JuteError, Reader, record};
use crate::mutants;
use crate::path;
use crate::session::secret::Secret;
use crate::tree::key;
use crate::tree::state::{Keys, TreeState};

/// Most sessions that one command takes over, so that it does not delay other commands for long. The proposer repeats the command.
pub const TAKEN_AT_ONCE: usize = 1000;
/// Ephemerals to look up at once.
const PAGE: usize = 1000;
/// The stored timeout of a session that is ending.
const ENDING_MS: i32 = -1;

record! {
    /// A session as it is stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Kept<'a> {
        /// See [`Session::secret`].
        password: Option<&'a [u8]>,
        /// See [`Session`].
        timeout_ms: i32,
        /// The holder's node.
        node: i64,
        /// The holder's incarnation.
        incarnation: u64,
        /// See [`Session`].
        moves: i64,
    }
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// What is kept of the password, which a client must present to attach to the session.
    pub secret: Secret,
    /// The session expires after this many milliseconds without a message from its client.
    pub timeout_ms: i32,
    /// The node, in one life, to which the client is connected. Only this node may expire the session or write for it.
    pub holder: Proposer,
    /// How often the session was given a holder again. It serves as a fencing token.
    pub moves: i64,
}

impl Session {
    /// Decodes a stored session.
    ///
    /// # Errors
    /// The bytes are not a session.
    pub fn of_bytes(bytes: &[u8]) -> Result<Session, JuteError> {
        let kept = Kept::read(&mut Reader::new(bytes))?;
        let unknown = |what| JuteError::Unknown { what, value: 0 };
        let secret = Secret::of(kept.password.unwrap_or_default());
        Ok(Session {
            secret: secret.ok_or_else(|| unknown("password of a session"))?,
            timeout_ms: kept.timeout_ms,
            holder: Proposer {
                node: NodeId(u32::try_from(kept.node).map_err(|_| unknown("holder of a session"))?),
                incarnation: Incarnation(kept.incarnation),
            },
            moves: kept.moves,
        })
    }

    /// Returns whether the session has ended, except that ephemerals must still be deleted. Its client can neither write nor
    /// attach. The holder continues the deletion at once, because this timeout is always exceeded.
    pub fn is_ending(&self) -> bool {
        self.timeout_ms == ENDING_MS && !mutant(mutants::ZK_ENDING_LIVES)
    }

    fn to_bytes(self) -> Vec<u8> {
        Kept {
            password: Some(self.secret.bytes()),
            timeout_ms: self.timeout_ms,
            node: self.holder.node.0.into(),
            incarnation: self.holder.incarnation.0,
            moves: self.moves,
        }
        .to_vec()
    }
}

impl<K: Keys> TreeState<'_, K> {
    /// Returns a session, if it exists. Panics if its record cannot be decoded.
    pub fn session(&mut self, id: i64) -> Option<Session> {
        let bytes = self.keys.get(&key::session(id))?;
        // As for znodes, a replica that cannot read what it has applied must stop.
        Some(Session::of_bytes(&bytes).unwrap_or_else(|e| panic!("session {id:#x}: {e}")))
    }

    /// Returns the session if the proposer holds it.
    fn held_session(&mut self, id: i64, by: Proposer) -> Result<Session, ErrorCode> {
        let session = self.session(id).ok_or(ErrorCode::SessionExpired)?;
        if session.holder == by { Ok(session) } else { Err(ErrorCode::SessionMoved) }
    }

    /// Returns the session if the proposer holds it at this move count. Once a client has moved to another connection, on any node,
    /// nothing that arrives from its previous connection may take effect (contracts X22).
    ///
    /// # Errors
    /// The session is gone (SessionExpired) or has moved since (SessionMoved).
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

    /// Opens a new session, held by the proposer.
    ///
    /// # Errors
    /// The command is malformed.
    pub fn open_session(&mut self, new: OpenSession<'_>, by: Proposer) -> Result<SessionAnswer, ErrorCode> {
        let secret = Secret::of(new.password.unwrap_or_default()).ok_or(ErrorCode::BadArguments)?;
        self.counters.sessions += 1;
        // After a restore, a counter value may recur that a client still knows. The epoch makes the ids differ.
        let id = (self.counters.epoch() << 40) | self.counters.sessions;
        let session = Session { secret, timeout_ms: new.timeout_ms, holder: by, moves: 0 };
        self.hold(id, session, true);
        Ok(SessionAnswer { session: id, moves: 0, timeout_ms: new.timeout_ms })
    }

    /// Attaches a client to its session. The proposer becomes the holder, with a new move count.
    ///
    /// # Errors
    /// SessionExpired: the session is gone, or the password is wrong. Clients are not told which.
    pub fn attach_session(
        &mut self,
        asked: AttachSession<'_>,
        by: Proposer,
    ) -> Result<SessionAnswer, ErrorCode> {
        let given = asked.password.and_then(Secret::of);
        let known =
            self.session(asked.session).filter(|s| given.is_some_and(|given| given.matches(s.secret)));
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
        // What older programs have kept is replaced as soon as the session gets another holder.
        let secret = if self.hides_passwords { session.secret.hashed() } else { session.secret };
        self.keys.put(&key::session(id), Session { secret, ..session }.to_bytes());
        self.keys.put(&key::held(by, id), Vec::new());
        self.keys.emit(Event::SessionHeld { session: id, by, moves, timeout_ms, by_client, zxid: self.zxid });
    }

    /// Closes a session at its client's request.
    ///
    /// # Errors
    /// The session is gone, or the proposer does not hold it at this move count.
    pub fn close_session(&mut self, asked: CloseSession, by: Proposer) -> Result<(), ErrorCode> {
        let session = self.served_session(asked.session, asked.moves, by)?;
        self.end_session(asked.session, session);
        Ok(())
    }

    /// Expires a session, if it still has the holder and the move count of the time when its client was found silent.
    ///
    /// # Errors
    /// The session is gone, or has another holder or move count. Nothing changes.
    pub fn expire_session(&mut self, asked: ExpireSession, by: Proposer) -> Result<(), ErrorCode> {
        let session = self.judged_session(asked.session, asked.moves, by)?;
        self.end_session(asked.session, session);
        Ok(())
    }

    /// Returns the session if the proposer still holds it at the move count with which its end was requested (contracts X22).
    fn judged_session(&mut self, id: i64, moves: i64, by: Proposer) -> Result<Session, ErrorCode> {
        let unguarded = mutant(mutants::ZK_EXPIRY_UNGUARDED);
        match self.session(id).filter(|_| unguarded).map_or_else(|| self.held_session(id, by), Ok)? {
            session if session.moves == moves || unguarded => Ok(session),
            _ => Err(ErrorCode::SessionMoved),
        }
    }

    /// Ends a session, or performs one step of that: deletes at most `at_most` ephemerals, fewer if they are heavy, and then the
    /// session if none is left.
    ///
    /// # Errors
    /// The session is gone, has another holder or another move count, or `at_most` is not positive.
    pub fn end_session_in_steps(&mut self, asked: EndSession, by: Proposer) -> Result<(), ErrorCode> {
        let at_most =
            usize::try_from(asked.at_most).ok().filter(|n| *n > 0).ok_or(ErrorCode::BadArguments)?;
        let session = self.judged_session(asked.session, asked.moves, by)?;
        self.weight.expect(at_most);
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

    /// Deletes at most `at_most` ephemerals of a session, or fewer if they are heavy; returns whether it knows that none is left.
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
            // Start the next page after this key. Otherwise it would have to skip all the deleted keys again.
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
                if self.has_done_a_step() {
                    return false;
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

    /// Makes the proposer the holder of up to [`TAKEN_AT_ONCE`] sessions of a proposer that is gone; returns their number.
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
