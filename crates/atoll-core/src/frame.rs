//! The messages between nodes: frames with a small head, and payloads that are never copied into it.

use bytes::Bytes;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::ids::{NodeId, RoleKind};

/// The longest head of a frame, in bytes. Heads hold positions, configurations and the values of registers.
pub const MAX_HEAD_BYTES: usize = 1024 * 1024;
/// The most payload bytes in one frame, all payloads together (contracts X11).
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024 + 64 * 1024;
/// The most payloads in one frame.
pub const MAX_PAYLOADS: usize = 1024;

/// The connection to a peer that a message takes. There are two, so that seals, probes, gossip and register traffic never queue behind
/// entries (X11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Small, urgent messages.
    Control,
    /// Entries.
    Data,
}

/// One message, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message type, see [`Message::KIND`].
    pub kind: u16,
    /// The role that receives it; [`crate::ids::roles::NONE`] in replies.
    pub target: RoleKind,
    /// The encoded fields.
    pub head: Bytes,
    /// Byte strings that are passed on unchanged.
    pub payloads: Vec<Bytes>,
}

impl Frame {
    /// Returns the length of head and payloads in bytes.
    pub fn size_bytes(&self) -> usize {
        self.head.len() + self.payloads.iter().map(Bytes::len).sum::<usize>()
    }
}

/// How a message is to be answered, and which side started the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Expects no answer.
    Post,
    /// Expects one reply with this number, which the sender has chosen.
    Request(u64),
    /// Answers the receiver's request with this number.
    Reply(u64),
}

/// A frame with its exchange. The host delivers envelopes in order per peer and class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Whether it is a post, a request or a reply.
    pub exchange: Exchange,
    /// The message.
    pub frame: Frame,
}

/// An envelope and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The receiver; never the sending node itself.
    pub to: NodeId,
    /// The connection that it takes.
    pub class: Class,
    /// The message.
    pub envelope: Envelope,
}

/// A message type with its number and its encoding.
///
/// Kinds are unique across the whole program: 1–99 belong to the core and the members, and each protocol has its own range.
pub trait Message: Encode + Decode + Send + 'static {
    /// The number of this message type on the wire.
    const KIND: u16;
    /// Its name in errors.
    const NAME: &'static str;

    /// Moves the payloads out of the message, so that they travel beside the head. Called once, before encoding.
    fn take_payloads(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    /// Puts back what [`Message::take_payloads`] took. The default accepts no payloads.
    fn put_payloads(&mut self, payloads: Vec<Bytes>) -> Result<(), DecodeError> {
        match payloads.len() {
            0 => Ok(()),
            n => Err(DecodeError::Invalid { what: Self::NAME, value: n as u64, allowed: "no payloads" }),
        }
    }

    /// Encodes this message as a frame for a role.
    fn into_frame(mut self, target: RoleKind) -> Frame {
        let payloads = self.take_payloads();
        Frame { kind: Self::KIND, target, head: self.to_bytes(), payloads }
    }

    /// Decodes a frame of this kind. Bytes after its fields belong to fields of a later version and are ignored (X28).
    fn from_frame(frame: Frame) -> Result<Self, DecodeError> {
        if frame.kind != Self::KIND {
            return Err(DecodeError::WrongKind { expected: Self::NAME, got: frame.kind });
        }
        let mut message = Self::decode(&mut Reader::new(frame.head))?;
        message.put_payloads(frame.payloads)?;
        Ok(message)
    }
}

/// A request with one reply type.
pub trait Rpc: Message {
    /// The answer.
    type Reply: Message + std::fmt::Debug;
    /// Which connection it takes.
    const CLASS: Class;
}

/// A request that one role of a node answers.
pub trait ForRole: Rpc {
    /// The role that answers it.
    const ROLE: RoleKind;
}

/// Declares a message: a [`crate::record!`] with a kind. With `+ payload field`, that `Bytes` field travels beside the head.
///
/// `message! { /// doc  pub struct Seal = 103 { /// doc  pub loglet: u128, } }`
#[macro_export]
macro_rules! message {
    ($(#[$doc:meta])* pub struct $name:ident = $kind:literal { $($(#[$fdoc:meta])* pub $field:ident: $type:ty),* $(,)? }) => {
        $crate::record! { $(#[$doc])* pub struct $name { $($(#[$fdoc])* pub $field: $type),* } }
        impl $crate::frame::Message for $name {
            const KIND: u16 = $kind;
            const NAME: &'static str = stringify!($name);
        }
    };
    ($(#[$doc:meta])* pub struct $name:ident = $kind:literal { $($(#[$fdoc:meta])* pub $field:ident: $type:ty),* $(,)? }
     + payload $(#[$pdoc:meta])* $payload:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type,)*
            $(#[$pdoc])*
            pub $payload: ::bytes::Bytes,
        }
        impl $crate::codec::Encode for $name {
            #[allow(unused_variables)]
            fn encode(&self, out: &mut ::bytes::BytesMut) {
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }
        }
        impl $crate::codec::Decode for $name {
            #[allow(unused_variables)]
            fn decode(from: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::codec::Decode::decode(from)?,)* $payload: ::bytes::Bytes::new() })
            }
        }
        impl $crate::frame::Message for $name {
            const KIND: u16 = $kind;
            const NAME: &'static str = stringify!($name);
            fn take_payloads(&mut self) -> Vec<::bytes::Bytes> {
                vec![std::mem::take(&mut self.$payload)]
            }
            fn put_payloads(&mut self, mut payloads: Vec<::bytes::Bytes>) -> Result<(), $crate::codec::DecodeError> {
                match (payloads.len(), payloads.pop()) {
                    (1, Some(payload)) => { self.$payload = payload; Ok(()) }
                    (n, _) => Err($crate::codec::DecodeError::Invalid {
                        what: stringify!($name), value: n as u64, allowed: "one payload",
                    }),
                }
            }
        }
    };
}

/// Declares the reply of a request, its connection, and the role that answers it if there is only one: `rpc!(Seal => SealOk, SERVER,
/// Control);`
#[macro_export]
macro_rules! rpc {
    ($request:ty => $reply:ty, $class:ident) => {
        impl $crate::frame::Rpc for $request {
            type Reply = $reply;
            const CLASS: $crate::frame::Class = $crate::frame::Class::$class;
        }
    };
    ($request:ty => $reply:ty, $role:path, $class:ident) => {
        $crate::rpc!($request => $reply, $class);
        impl $crate::frame::ForRole for $request {
            const ROLE: $crate::ids::RoleKind = $role;
        }
    };
}
