//! Records that several messages share, headers, and the handshake of a connection.

use super::{Jute, JuteError, Reader, record};

record! {
    /// ZooKeeper's description of a znode. Times are in milliseconds since the Unix epoch.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Stat {
        /// The zxid of its creation.
        czxid: i64,
        /// The zxid of the last setData, or of its creation.
        mzxid: i64,
        /// The time of its creation.
        ctime: i64,
        /// The time of the last setData, or of its creation.
        mtime: i64,
        /// The number of setData calls.
        version: i32,
        /// The number of creations and deletions of children.
        cversion: i32,
        /// The number of setACL calls.
        aversion: i32,
        /// The session of an ephemeral, or 0.
        ephemeral_owner: i64,
        /// The length of its data, in bytes.
        data_length: i32,
        /// The number of its children.
        num_children: i32,
        /// The zxid of the last creation or deletion of a child, or of its own creation.
        pzxid: i64,
    }
}

record! {
    /// An id: a scheme, and an id within that scheme.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    Id<'a> {
        /// `world`, `auth`, `digest`, `ip`, `x509`, `sasl` or `super`.
        scheme: &'a str,
        /// The id within the scheme.
        id: &'a str,
    }
}

record! {
    /// An entry of an ACL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    Acl<'a> {
        /// A combination of [`perms`](super::codes::perms).
        perms: i32,
        /// The id that has these permissions.
        id: Id<'a>,
    }
}

record! {
    /// The header of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    RequestHeader {
        /// The number that the client assigned to the request. Its reply has the same number.
        xid: i32,
        /// An [`OpCode`](super::codes::OpCode).
        op: i32,
    }
}

record! {
    /// The header of a reply or notification.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ReplyHeader {
        /// The xid of the request.
        xid: i32,
        /// The zxid of the newest change that the client has seen with this reply.
        zxid: i64,
        /// 0, or an [`ErrorCode`](super::codes::ErrorCode). A reply with an error has no body.
        err: i32,
    }
}

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest<'a> {
    /// Always 0.
    pub protocol_version: i32,
    /// The zxid of the newest change that the client has seen. A server with an older state must not serve the client.
    pub last_zxid_seen: i64,
    /// The requested session timeout, in milliseconds.
    pub timeout_ms: i32,
    /// The client's session, or 0 to open a new one.
    pub session: i64,
    /// The password of the session.
    pub password: Option<&'a [u8]>,
    /// Whether the client accepts a server that cannot write. None if the client is older than 3.4 and does not send the byte.
    pub read_only: Option<bool>,
}

impl ConnectRequest<'static> {
    /// Returns the request of a client that has no session and has seen no change.
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

/// The answer to a [`ConnectRequest`]. A timeout of 0 means that the session is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse<'a> {
    /// Always 0.
    pub protocol_version: i32,
    /// The granted session timeout, in milliseconds.
    pub timeout_ms: i32,
    /// The session.
    pub session: i64,
    /// The password of the session, 16 bytes.
    pub password: Option<&'a [u8]>,
    /// Whether this server cannot write. Sent only to clients that sent this byte themselves.
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
