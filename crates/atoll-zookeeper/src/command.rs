//! Commands: what the doors put into the log, and the answers.

use crate::jute::codes::OpCode;
use crate::jute::records::Id;
use crate::jute::{Jute, JuteError, Reader, USUAL_BYTES, record};

/// Bytes of a session's password.
pub const PASSWORD_BYTES: usize = 16;

record! {
    /// A client writes: the head of the command; the body of its request follows, its lists made whole.
    #[derive(Clone, Debug, PartialEq, Eq)]
    WriteHead<'a> {
        /// Its session, which the proposer must hold.
        session: i64,
        /// The move by which it must hold the session. Requests that a connection left behind are not done once the client is back
        /// through another connection, at whichever node (contracts X22).
        moves: i64,
        /// Who the client is.
        ids: Vec<Id<'a>>,
        /// An [`OpCode`] that writes.
        op: i32,
        /// Whether hard quotas refuse it, as the proposing door is configured; this makes it the same on every replica.
        enforce_quota: bool,
    }
}

record! {
    /// A new session, held by the proposer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    OpenSession<'a> {
        /// [`PASSWORD_BYTES`] that the proposer drew.
        password: Option<&'a [u8]>,
        /// Its timeout.
        timeout_ms: i32,
    }
}

record! {
    /// A client comes back to its session: the proposer holds it from here on, with a full timeout.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AttachSession<'a> {
        /// Its session.
        session: i64,
        /// Its password.
        password: Option<&'a [u8]>,
        /// Its timeout from here on.
        timeout_ms: i32,
    }
}

record! {
    /// A client was not heard of for its timeout. Guarded (contracts X22): the proposer must hold it, by the same move.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ExpireSession {
        /// The session.
        session: i64,
        /// How often it had moved when it was judged.
        moves: i64,
    }
}

record! {
    /// Whoever held these sessions is gone: the proposer holds them, and each gets a full timeout.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    TakeOver {
        /// The node that held them.
        node: i64,
        /// Its life.
        incarnation: u64,
    }
}

record! {
    /// Containers without children and nodes past their time to live: deleted if they still are that.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Reap<'a> {
        /// Which.
        paths: Vec<&'a str>,
    }
}

record! {
    /// A client closes its session, which the proposer must hold.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CloseSession {
        /// The session.
        session: i64,
        /// The move by which its connection holds it.
        moves: i64,
    }
}

record! {
    /// A session ends: its client closed it, or was silent for its timeout. Guarded as [`ExpireSession`] is. If the session has
    /// more ephemerals than `at_most`, only that many are deleted and the session is
    /// [ending](crate::session::state::Session::is_ending): the command is repeated until the session is gone, so that no single
    /// command delays the others for long.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    EndSession {
        /// The session.
        session: i64,
        /// The move by which the proposer holds it.
        moves: i64,
        /// Most ephemerals that this command deletes, at least 1.
        at_most: i32,
        /// Its client closed it. No replica depends on this; it is for readers of the log.
        closed: bool,
    }
}

record! {
    /// A piece of a snapshot that is to be restored. The first piece starts over: the pieces of any other upload are dropped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Stage<'a> {
        /// Which upload: a number that its node drew.
        upload: i64,
        /// Which piece, from 0.
        piece: i32,
        /// Its bytes.
        data: Option<&'a [u8]>,
    }
}

record! {
    /// What an upload has brought takes the place of the tree.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Restore<'a> {
        /// Which.
        upload: i64,
        /// How many pieces it has.
        pieces: i32,
        /// The hash at the end of the snapshot.
        hash: Option<&'a [u8]>,
    }
}

record! {
    /// A node serves ZooKeeper's clients, or does so at other addresses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Announce<'a> {
        /// Which.
        node: i64,
        /// Where the other nodes reach it: host:port.
        peer: &'a str,
        /// Where clients reach it: host:port.
        client: &'a str,
    }
}

record! {
    /// An upload is given up, if it is no further than that.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Discard {
        /// Which.
        upload: i64,
        /// How many pieces it had when it was judged.
        pieces: i32,
    }
}

record! {
    /// Nodes are members no more.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Forget {
        /// Which.
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
    /// The next zxid begins a new epoch (contracts X23): after a restore.
    RaiseEpoch,
    Announce(Announce<'a>),
    Forget(Forget),
    Stage(Stage<'a>),
    Restore(Restore<'a>),
    Discard(Discard),
    /// From version 2 of the commands on; before it, [`Command::Close`] and [`Command::Expire`].
    End(EndSession),
}

impl<'a> Command<'a> {
    /// Reads a command.
    ///
    /// # Errors
    /// The bytes are none. They were written by this module: a later one says a higher `Application::version_at`.
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

    /// Its bytes.
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

/// Whether an operation goes through the log as [`Command::Write`].
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
    /// What comes back of a command: the rest of a reply behind its xid. A body follows if `err` is 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AnswerHead {
        /// The zxid of the change, or the newest one if nothing was changed.
        zxid: i64,
        /// 0, or an [`ErrorCode`](crate::jute::codes::ErrorCode).
        err: i32,
    }
}

record! {
    /// Behind the answer to [`Command::Open`] and [`Command::Attach`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SessionAnswer {
        /// The session.
        session: i64,
        /// How often it has moved.
        moves: i64,
        /// Its timeout.
        timeout_ms: i32,
    }
}
