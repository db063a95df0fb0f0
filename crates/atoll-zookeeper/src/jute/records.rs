//! Records that several messages share, the headers, and the handshake of a connection.

use super::{Jute, JuteError, Reader, record};

record! {
    /// What ZooKeeper tells about a znode. Times are milliseconds since 1970.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Stat {
        /// zxid of its creation.
        czxid: i64,
        /// zxid of the last setData, or of its creation.
        mzxid: i64,
        /// Time of its creation.
        ctime: i64,
        /// Time of the last setData, or of its creation.
        mtime: i64,
        /// How often its data was set.
        version: i32,
        /// How often a child was created or deleted.
        cversion: i32,
        /// How often its ACL was set.
        aversion: i32,
        /// The session of an ephemeral, or 0.
        ephemeral_owner: i64,
        /// Bytes of data.
        data_length: i32,
        /// Children.
        num_children: i32,
        /// zxid of the last creation or deletion of a child, or of its own creation.
        pzxid: i64,
    }
}

record! {
    /// Who: a scheme, and an id in it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Id<'a> {
        /// `world`, `auth`, `digest`, `ip`, `x509`, `sasl` or `super`.
        scheme: &'a str,
        /// The id.
        id: &'a str,
    }
}

record! {
    /// One entry of an access control list.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Acl<'a> {
        /// Bits of [`perms`](super::codes::perms).
        perms: i32,
        /// Who has them.
        id: Id<'a>,
    }
}

record! {
    /// Before every request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    RequestHeader {
        /// The client's count; its reply carries it.
        xid: i32,
        /// An [`OpCode`](super::codes::OpCode).
        op: i32,
    }
}

record! {
    /// Before every reply and notification.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ReplyHeader {
        /// The request's.
        xid: i32,
        /// The newest change that the client has seen with this reply.
        zxid: i64,
        /// 0, or an [`ErrorCode`](super::codes::ErrorCode); with an error there is no body.
        err: i32,
    }
}

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest<'a> {
    /// 0.
    pub protocol_version: i32,
    /// The newest change that the client has seen: a server that is behind it must not serve the client.
    pub last_zxid_seen: i64,
    /// The session timeout that it would like, in milliseconds.
    pub timeout_ms: i32,
    /// Its session; 0 for a new one.
    pub session: i64,
    /// Its session's password.
    pub password: Option<&'a [u8]>,
    /// Whether a server that cannot write would do; None from clients before 3.4, which do not send the byte.
    pub read_only: Option<bool>,
}

impl ConnectRequest<'static> {
    /// Of a client that has no session and has seen nothing.
    pub const fn first(timeout_ms: i32) -> Self {
        ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms,
            session: 0,
            password: Some(&[0; 16]),
            read_only: Some(false),
        }
    }
}

impl<'a> Jute<'a> for ConnectRequest<'a> {
    const LEAST_BYTES: usize = 28;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        Ok(ConnectRequest {
            protocol_version: i32::read(from)?,
            last_zxid_seen: i64::read(from)?,
            timeout_ms: i32::read(from)?,
            session: i64::read(from)?,
            password: Option::read(from)?,
            read_only: if from.rest().is_empty() { None } else { Some(bool::read(from)?) },
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.protocol_version.write(out);
        self.last_zxid_seen.write(out);
        self.timeout_ms.write(out);
        self.session.write(out);
        self.password.write(out);
        self.read_only.iter().for_each(|b| b.write(out));
    }
}

/// The answer to it. A timeout of 0 says that the session is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse<'a> {
    /// 0.
    pub protocol_version: i32,
    /// The timeout that was agreed on, in milliseconds.
    pub timeout_ms: i32,
    /// The session.
    pub session: i64,
    /// 16 bytes.
    pub password: Option<&'a [u8]>,
    /// Whether this server cannot write; sent only to clients that sent theirs.
    pub read_only: Option<bool>,
}

impl<'a> Jute<'a> for ConnectResponse<'a> {
    const LEAST_BYTES: usize = 20;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        Ok(ConnectResponse {
            protocol_version: i32::read(from)?,
            timeout_ms: i32::read(from)?,
            session: i64::read(from)?,
            password: Option::read(from)?,
            read_only: if from.rest().is_empty() { None } else { Some(bool::read(from)?) },
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.protocol_version.write(out);
        self.timeout_ms.write(out);
        self.session.write(out);
        self.password.write(out);
        self.read_only.iter().for_each(|b| b.write(out));
    }
}
