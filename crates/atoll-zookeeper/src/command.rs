//! The commands that doors put into the log, and their answers.

use crate::jute::codes::OpCode;
use crate::jute::records::Id;
use crate::jute::{Jute, JuteError, Reader, USUAL_BYTES, record};

/// The length of a session's password, in bytes.
pub const PASSWORD_BYTES: usize = 16;
/// The length of the hash of a password, in bytes.
pub const HASH_BYTES: usize = 32;

record! {
    /// The head of a client's write. The body of the request follows, as the client sent it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    WriteHead<'a> {
        /// The client's session. The proposer must be its holder.
        session: i64,
        /// The move count at which the proposer must hold the session. Requests that are left over from an earlier connection have
        /// no effect once the client has returned on another one, on any node (contracts X22).
        moves: i64,
        /// The client's ids.
        ids: Vec<Id<'a>>,
        /// The [`OpCode`] of a write.
        op: i32,
        /// Whether a hard quota refuses the write. The proposing door's configuration decides this; as part of the command it is
        /// the same on every replica.
        enforce_quota: bool,
    }
}

record! {
    /// Opens a session, held by the proposer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    OpenSession<'a> {
        /// The hash of the [`PASSWORD_BYTES`] random bytes that the client gets; see [`crate::session::secret::Secret`].
        password: Option<&'a [u8]>,
        /// Its timeout, in milliseconds.
        timeout_ms: i32,
    }
}

record! {
    /// Attaches a client to its session. The proposer becomes the holder, and the session gets a full timeout.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AttachSession<'a> {
        /// The session.
        session: i64,
        /// The hash of the password that the client presented, likewise.
        password: Option<&'a [u8]>,
        /// The session's new timeout, in milliseconds.
        timeout_ms: i32,
    }
}

record! {
    /// Expires a session whose client was silent for its timeout. Guarded (contracts X22): the proposer must still hold the
    /// session, at this move count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ExpireSession {
        /// The session.
        session: i64,
        /// The move count when the client was found silent.
        moves: i64,
    }
}

record! {
    /// Takes over the sessions of a holder that is gone. The proposer becomes their holder, and each gets a full timeout.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    TakeOver {
        /// The node that held the sessions.
        node: i64,
        /// The incarnation of that node.
        incarnation: u64,
    }
}

record! {
    /// Deletes containers without children and nodes whose time to live has passed, as far as they still are due.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Reap<'a> {
        /// The paths of the nodes.
        paths: Vec<&'a str>,
    }
}

record! {
    /// Closes a session at its client's request. The proposer must hold it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CloseSession {
        /// The session.
        session: i64,
        /// The move count at which the client's connection holds it.
        moves: i64,
    }
}

record! {
    /// Ends a session because its client closed it, or was silent for its timeout. Guarded like [`ExpireSession`]. If the session
    /// has more than `at_most` ephemerals, or very much data in them, only some are deleted, and the session is then
    /// [ending](crate::session::state::Session::is_ending). The proposer repeats the command until the session is gone, so no
    /// single command delays others for long.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    EndSession {
        /// The session.
        session: i64,
        /// The move count at which the proposer holds it.
        moves: i64,
        /// Most ephemerals that this command deletes, at least 1.
        at_most: i32,
        /// Whether its client closed it. This has no effect; it is for readers of the log.
        closed: bool,
    }
}

record! {
    /// Adds a piece to the upload of a tree snapshot that will be restored. Piece 0 begins a new upload, and the pieces of any
    /// other are dropped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Stage<'a> {
        /// The upload's number, which its node has drawn.
        upload: i64,
        /// The number of the piece, from 0.
        piece: i32,
        /// The bytes of the piece.
        data: Option<&'a [u8]>,
    }
}

record! {
    /// Replaces the tree with an uploaded snapshot.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Restore<'a> {
        /// The upload's number.
        upload: i64,
        /// The number of its pieces.
        pieces: i32,
        /// The hash at the end of the snapshot.
        hash: Option<&'a [u8]>,
    }
}

record! {
    /// Records that a node serves ZooKeeper clients, or that its addresses have changed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Announce<'a> {
        /// The node.
        node: i64,
        /// The address for other nodes, as host:port.
        peer: &'a str,
        /// The address for clients, as host:port.
        client: &'a str,
    }
}

record! {
    /// Discards an upload, if it still has this number of pieces.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Discard {
        /// The upload's number.
        upload: i64,
        /// The number of pieces that it had when it was found to be stalled.
        pieces: i32,
    }
}

record! {
    /// Removes nodes that are no longer members from `/zookeeper/config`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Forget {
        /// The nodes.
        nodes: Vec<i64>,
    }
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // See the records.
pub enum Command<'a> {
    Write(WriteHead<'a>, &'a [u8]),
    Open(OpenSession<'a>),
    Attach(AttachSession<'a>),
    Close(CloseSession),
    Expire(ExpireSession),
    TakeOver(TakeOver),
    Reap(Reap<'a>),
    /// Begins a new zxid epoch (contracts X23). Doors do not propose it: a restore and an import raise the epoch themselves.
    RaiseEpoch,
    Announce(Announce<'a>),
    Forget(Forget),
    Stage(Stage<'a>),
    Restore(Restore<'a>),
    Discard(Discard),
    /// From version 2 of the commands. Earlier versions use [`Command::Close`] and [`Command::Expire`].
    End(EndSession),
}

impl<'a> Command<'a> {
    /// Decodes a command.
    ///
    /// # Errors
    /// The bytes are not a command of this version. A version that adds commands must report a higher `Application::version_at`.
    pub fn read(bytes: &'a [u8]) -> Result<Command<'a>, JuteError> {
        let mut from = Reader::new(bytes);
        let kind = from.take(1, "command")?[0];
        Ok(match kind {
            1 => Command::Write(Jute::read(&mut from)?, from.rest()),
            2 => Command::Open(Jute::read(&mut from)?),
            3 => Command::Attach(Jute::read(&mut from)?),
            4 => Command::Close(Jute::read(&mut from)?),
            5 => Command::Expire(Jute::read(&mut from)?),
            6 => Command::TakeOver(Jute::read(&mut from)?),
            7 => Command::Reap(Jute::read(&mut from)?),
            8 => Command::RaiseEpoch,
            9 => Command::Announce(Jute::read(&mut from)?),
            10 => Command::Forget(Jute::read(&mut from)?),
            11 => Command::Stage(Jute::read(&mut from)?),
            12 => Command::Restore(Jute::read(&mut from)?),
            13 => Command::Discard(Jute::read(&mut from)?),
            14 => Command::End(Jute::read(&mut from)?),
            _ => return Err(JuteError::Unknown { what: "kind of a command", value: kind.into() }),
        })
    }

    /// Encodes the command.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(USUAL_BYTES);
        let mut put = |kind: u8, write: &dyn Fn(&mut Vec<u8>)| {
            out.push(kind);
            write(&mut out);
        };
        match self {
            Command::Write(head, body) => put(1, &|out| {
                head.write(out);
                out.extend_from_slice(body);
            }),
            Command::Open(c) => put(2, &|out| c.write(out)),
            Command::Attach(c) => put(3, &|out| c.write(out)),
            Command::Close(c) => put(4, &|out| c.write(out)),
            Command::Expire(c) => put(5, &|out| c.write(out)),
            Command::TakeOver(c) => put(6, &|out| c.write(out)),
            Command::Reap(c) => put(7, &|out| c.write(out)),
            Command::RaiseEpoch => put(8, &|_| {}),
            Command::Announce(c) => put(9, &|out| c.write(out)),
            Command::Forget(c) => put(10, &|out| c.write(out)),
            Command::Stage(c) => put(11, &|out| c.write(out)),
            Command::Restore(c) => put(12, &|out| c.write(out)),
            Command::Discard(c) => put(13, &|out| c.write(out)),
            Command::End(c) => put(14, &|out| c.write(out)),
        }
        out
    }
}

/// Returns whether an operation goes through the log as a [`Command::Write`].
pub fn is_write(op: OpCode) -> bool {
    matches!(
        op,
        OpCode::Create
            | OpCode::Create2
            | OpCode::CreateContainer
            | OpCode::CreateTtl
            | OpCode::Delete
            | OpCode::SetData
            | OpCode::SetAcl
            | OpCode::Multi
            | OpCode::Import
    )
}

record! {
    /// The head of a command's answer. It has the form of a reply header after the xid. A body follows if `err` is 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AnswerHead {
        /// The zxid of the change, or the newest one if nothing changed.
        zxid: i64,
        /// 0, or an [`ErrorCode`](crate::jute::codes::ErrorCode).
        err: i32,
    }
}

record! {
    /// The body of the answer to [`Command::Open`] and [`Command::Attach`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SessionAnswer {
        /// The session.
        session: i64,
        /// The session's move count.
        moves: i64,
        /// The session's timeout, in milliseconds.
        timeout_ms: i32,
    }
}
