//! The handshake: the first message on every connection, in both directions.
//!
//! The preamble never changes, so that nodes of different versions can refuse each other with a readable reason. It consists of the magic
//! (8 bytes), the protocol version (2), the kind of message that follows (1: 0 hello, 1 refusal), in a hello the highest feature level that
//! the sender can read (1; 0 counts as 1, because programs from before feature levels send it), and the length of what follows (4). The
//! dialer sends a hello that names the node that it wants. The other side answers with its own hello or with a refusal.

use std::fmt;

use atoll_core::{Class, Decode, DecodeError, Encode, Incarnation, Level, Lsn, NodeId, Reader, StorageId};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::wire::Limits;

/// The version of frames between nodes. Nodes of different versions refuse each other, so no rolling upgrade can change it. New messages,
/// and new fields after the existing ones, come with a feature level instead ([`atoll_core::level`]).
pub const PROTOCOL_VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"ATOLLnet";
const PREAMBLE_BYTES: usize = 16;
/// The longest hello or refusal, in bytes.
const MAX_BODY_BYTES: usize = 1024;
/// The longest name of a cluster, in bytes.
pub(crate) const MAX_CLUSTER_BYTES: usize = 128;
/// The longest text of a refusal that is sent, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// One life of a node on one data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The life.
    pub incarnation: Incarnation,
    /// The data directory.
    pub storage: StorageId,
}

/// What each side tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cluster: String,
    pub(crate) node: NodeId,
    /// The node that the dialer wants; in the answer, the dialer.
    pub(crate) to: NodeId,
    pub(crate) identity: Identity,
    pub(crate) class: Class,
    pub(crate) limits: Limits,
    /// The highest feature level that it can read.
    pub(crate) highest: Level,
    /// The last record of its journal that is durable. It is sent only from a certain feature level on, because programs of the first level
    /// refuse a longer hello.
    pub(crate) durable: Option<Lsn>,
}

/// Why a node refuses another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// It has another protocol version.
    Version,
    /// It belongs to another cluster.
    Cluster,
    /// It dialed the wrong address: it wanted another node.
    WrongNode,
    /// This node does not know it as a member, but may learn of it later.
    UnknownNode,
    /// A node with this id is connected and alive.
    Duplicate,
    /// Its hello cannot be read.
    Malformed,
    /// Its TLS certificate was issued for another node.
    Certificate,
    /// Its program cannot read the feature level of the cluster.
    Level,
    /// Its data directory was put back from an older copy.
    PutBack,
}

const CODES: [(RefusalCode, u16); 9] = [
    (RefusalCode::Version, 1),
    (RefusalCode::Cluster, 2),
    (RefusalCode::WrongNode, 3),
    (RefusalCode::UnknownNode, 4),
    (RefusalCode::Duplicate, 5),
    (RefusalCode::Malformed, 6),
    (RefusalCode::Certificate, 7),
    (RefusalCode::Level, 8),
    (RefusalCode::PutBack, 9),
];

/// A refusal, with a reason for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of refusal.
    pub code: RefusalCode,
    /// The reason, for an operator.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("not an Atoll node: it begins with {0:02x?}")]
    Garbage([u8; 8]),
    #[error("speaks protocol version {theirs}, this node speaks {PROTOCOL_VERSION}")]
    Version { theirs: u16 },
    #[error("its hello is not readable: {0}")]
    Decode(#[from] DecodeError),
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error("begins with a refusal instead of a hello: {0}")]
    NoHello(Refusal),
}

fn class_tag(class: Class) -> u8 {
    match class {
        Class::Control => 0,
        Class::Data => 1,
    }
}

impl Hello {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.cluster.encode(&mut out);
        self.node.encode(&mut out);
        self.to.encode(&mut out);
        self.identity.incarnation.encode(&mut out);
        self.identity.storage.encode(&mut out);
        class_tag(self.class).encode(&mut out);
        self.limits.head_bytes.encode(&mut out);
        self.limits.payload_bytes.encode(&mut out);
        self.limits.payloads.encode(&mut out);
        self.limits.requests.encode(&mut out);
        if let Some(durable) = self.durable {
            durable.encode(&mut out);
        }
        out.freeze()
    }

    pub(crate) fn decode(body: Bytes, highest: u8) -> Result<Hello, DecodeError> {
        let from = &mut Reader::new(body);
        let hello = Hello {
            cluster: String::decode(from)?,
            node: NodeId::decode(from)?,
            to: NodeId::decode(from)?,
            identity: Identity { incarnation: Incarnation::decode(from)?, storage: StorageId::decode(from)? },
            class: match u8::decode(from)? {
                0 => Class::Control,
                1 => Class::Data,
                n => {
                    let allowed = "0 control, 1 data";
                    return Err(DecodeError::Invalid { what: "class", value: n.into(), allowed });
                }
            },
            limits: Limits {
                head_bytes: u32::decode(from)?,
                payload_bytes: u32::decode(from)?,
                payloads: u16::decode(from)?,
                requests: u32::decode(from)?,
            },
            highest: Level(highest.into()).max(Level::FIRST),
            durable: if from.left() == 0 { None } else { Some(Lsn::decode(from)?) },
        };
        // Bytes after these fields belong to a later version and are ignored.
        if hello.cluster.len() > MAX_CLUSTER_BYTES {
            let value = hello.cluster.len() as u64;
            return Err(DecodeError::Invalid { what: "cluster name", value, allowed: "128 bytes" });
        }
        Ok(hello)
    }
}

impl Refusal {
    fn encode(&self) -> Bytes {
        let code = CODES.iter().find(|(c, _)| *c == self.code).map_or(0, |(_, n)| *n);
        let mut reason = self.reason.clone();
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        let mut out = BytesMut::new();
        code.encode(&mut out);
        reason.encode(&mut out);
        out.freeze()
    }

    fn decode(body: Bytes) -> Result<Refusal, DecodeError> {
        let from = &mut Reader::new(body);
        let n = u16::decode(from)?;
        // A newer version may have reasons that this one does not know. The text is still useful.
        let code = CODES.iter().find(|(_, known)| *known == n).map_or(RefusalCode::Malformed, |(c, _)| *c);
        // The text may come from a stranger and goes into logs, so control characters are removed.
        let reason = String::decode(from)?.chars().filter(|c| !c.is_control()).collect();
        Ok(Refusal { code, reason })
    }
}

async fn write<W: AsyncWrite + Unpin>(to: &mut W, what: u8, level: u8, body: &[u8]) -> std::io::Result<()> {
    let mut out = BytesMut::with_capacity(PREAMBLE_BYTES + body.len());
    out.extend_from_slice(&MAGIC);
    PROTOCOL_VERSION.encode(&mut out);
    what.encode(&mut out);
    level.encode(&mut out);
    (body.len() as u32).encode(&mut out);
    out.extend_from_slice(body);
    to.write_all(&out).await?;
    to.flush().await
}

/// Sends a hello.
pub(crate) async fn write_hello<W: AsyncWrite + Unpin>(to: &mut W, hello: &Hello) -> std::io::Result<()> {
    let level = u8::try_from(hello.highest.0).unwrap_or(u8::MAX);
    write(to, 0, level, &hello.encode()).await
}

/// Sends a refusal and shuts down the sending side.
pub(crate) async fn write_refusal<W: AsyncWrite + Unpin>(
    to: &mut W,
    refusal: &Refusal,
) -> std::io::Result<()> {
    write(to, 1, 0, &refusal.encode()).await?;
    to.shutdown().await
}

/// Reads the first message of the other side, which is a hello or a refusal, and no byte beyond it.
pub(crate) async fn read_hello<R: AsyncRead + Unpin>(from: &mut R) -> Result<Hello, HandshakeError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    from.read_exact(&mut preamble[..8]).await?;
    let [magic, _] = [0, 8].map(|i| <[u8; 8]>::try_from(&preamble[i..i + 8]).unwrap_or_default());
    if magic != MAGIC {
        return Err(HandshakeError::Garbage(magic));
    }
    from.read_exact(&mut preamble[8..]).await?;
    let theirs = u16::from_le_bytes([preamble[8], preamble[9]]);
    let what = preamble[10];
    let len = u32::from_le_bytes([preamble[12], preamble[13], preamble[14], preamble[15]]) as usize;
    // A refusal is readable in any version, a hello only in this one.
    if theirs != PROTOCOL_VERSION && what != 1 {
        return Err(HandshakeError::Version { theirs });
    }
    if len > MAX_BODY_BYTES {
        let allowed = "1024 bytes";
        return Err(DecodeError::Invalid { what: "length of a hello", value: len as u64, allowed }.into());
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body).await?;
    match what {
        0 => Ok(Hello::decode(body.into(), preamble[11])?),
        1 => Err(HandshakeError::Refused(Refusal::decode(body.into())?)),
        n => {
            let allowed = "0 hello, 1 refusal";
            Err(DecodeError::Invalid { what: "handshake", value: n.into(), allowed }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hello() -> Hello {
        Hello {
            cluster: "reef".into(),
            node: NodeId(1),
            to: NodeId(2),
            identity: Identity { incarnation: Incarnation(7), storage: StorageId(9) },
            class: Class::Data,
            limits: Limits::OURS,
            highest: Level(2),
            durable: Some(Lsn(77)),
        }
    }

    async fn written(hello: &Hello) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_hello(&mut bytes, hello).await.unwrap();
        bytes
    }

    #[tokio::test]
    async fn round_trip_and_every_truncation_is_refused() {
        let bytes = written(&hello()).await;
        assert_eq!(read_hello(&mut &bytes[..]).await.unwrap(), hello());
        for n in 0..bytes.len() {
            assert!(read_hello(&mut &bytes[..n]).await.is_err(), "truncated at {n}");
        }
    }

    #[tokio::test]
    async fn a_hello_without_a_level_is_of_the_first_one() {
        let mut bytes = written(&hello()).await;
        assert_eq!(bytes[11], 2);
        bytes[11] = 0;
        assert_eq!(read_hello(&mut &bytes[..]).await.unwrap().highest, Level::FIRST);
    }

    #[tokio::test]
    async fn strangers_are_told_apart() {
        let bytes = written(&hello()).await;
        let with = |i: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[i] = value;
            changed
        };
        assert!(matches!(read_hello(&mut &with(0, b'G')[..]).await, Err(HandshakeError::Garbage(_))));
        assert!(matches!(read_hello(&mut &with(8, 9)[..]).await, Err(HandshakeError::Version { theirs: 9 })));
        assert!(matches!(read_hello(&mut &with(10, 9)[..]).await, Err(HandshakeError::Decode(_))));
        assert!(
            matches!(read_hello(&mut &with(14, 9)[..]).await, Err(HandshakeError::Decode(_))),
            "64 KiB and more"
        );
    }

    #[tokio::test]
    async fn a_refusal_of_another_version_is_read() {
        let refusal = Refusal { code: RefusalCode::Version, reason: "speaks 1, not 9".into() };
        let mut bytes = Vec::new();
        write_refusal(&mut bytes, &refusal).await.unwrap();
        bytes[8] = 9;
        match read_hello(&mut &bytes[..]).await {
            Err(HandshakeError::Refused(got)) => assert_eq!(got, refusal),
            other => panic!("{other:?}"),
        }
    }
}
