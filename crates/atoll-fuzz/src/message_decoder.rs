//! Fuzzes every message kind of native, of RMWPaxos and of the core, and the values that their roles store in the journal and in the chain.
//! What is decoded must be encoded as it was read.

use std::fmt::Debug;

use atoll_core::{Decode, Encode, Frame, Identify, Identity, Message, RoleKind};
use atoll_native::{NativeConfig, message as native};
use atoll_rmwpaxos::{GroupConfig, RegisterState, message as rmw};
use bytes::Bytes;

/// A decoder that reads a frame and checks the result. Returns true if the frame was accepted.
type Decoder = fn(Frame) -> bool;

fn message<M: Message + Clone + PartialEq + Debug>(mut frame: Frame) -> bool {
    frame.kind = M::KIND;
    let Ok(message) = M::from_frame(frame.clone()) else { return false };
    let written = message.clone().into_frame(frame.target);
    // Bytes after the fields belong to a later version and are dropped.
    let whole = frame.head.len() == written.head.len();
    frame.head.truncate(written.head.len());
    assert_eq!(written, frame, "{} is written otherwise than it was read", M::NAME);
    assert_eq!(M::from_frame(written).as_ref(), Ok(&message));
    // A frame of another kind must be refused before anything is read.
    frame.kind = M::KIND.wrapping_add(1);
    assert!(M::from_frame(frame).is_err());
    whole
}

fn stored<T: Encode + Decode + PartialEq + Debug>(frame: Frame) -> bool {
    let Ok(value) = T::from_bytes(frame.head.clone()) else { return false };
    assert_eq!(value.to_bytes(), frame.head, "{} is written otherwise", std::any::type_name::<T>());
    true
}

/// The state of a register has limits beyond its format, and a short format of its own.
fn state(frame: Frame) -> bool {
    let Ok(state) = RegisterState::read(&frame.head) else { return false };
    assert_eq!(RegisterState::read(&state.written()).as_ref(), Ok(&state));
    let newest = state.nonces.last().copied();
    assert!(
        newest.is_none_or(|n| state.made_by(n) == Some(state.version)),
        "the last write has another version"
    );
    assert!(state.made_by(0).is_none_or(|v| v <= state.version));
    assert_eq!(state.versioned().version.0, state.version);
    true
}

const DECODERS: &[Decoder] = &[
    message::<Identify>,
    message::<Identity>,
    message::<atoll_core::env::Refused>,
    message::<native::Append>,
    message::<native::Appended>,
    message::<native::StoredUpTo>,
    message::<native::SealEnded>,
    message::<native::Store>,
    message::<native::Advance>,
    message::<native::Seal>,
    message::<native::Info>,
    message::<native::Wait>,
    message::<native::Answer>,
    message::<native::Repair>,
    message::<native::Read>,
    message::<native::Entries>,
    message::<native::Trim>,
    message::<native::Delete>,
    message::<native::BackFill>,
    message::<native::Fill>,
    message::<native::FillEnded>,
    message::<native::Status>,
    message::<native::StatusOf>,
    message::<native::StatusPage>,
    message::<rmw::Prep>,
    message::<rmw::PrepReply>,
    message::<rmw::Write>,
    message::<rmw::WriteReply>,
    message::<rmw::Fence>,
    message::<rmw::DoneReply>,
    message::<rmw::List>,
    message::<rmw::ListReply>,
    message::<rmw::Install>,
    message::<rmw::Open>,
    message::<rmw::Status>,
    message::<rmw::StatusReply>,
    stored::<NativeConfig>,
    stored::<GroupConfig>,
    stored::<rmw::Fact>,
    stored::<rmw::AcceptorImage>,
    state,
];

/// The input has the decoder, the number of payloads, the length of the head (two bytes, little endian), then the head, and payloads of
/// equal length.
pub fn run(input: &[u8]) {
    let [which, payloads, low, high, rest @ ..] = input else { return };
    let (head, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
    let payloads = usize::from(*payloads % 4);
    let share = rest.len() / payloads.max(1);
    let payloads = (0..payloads).map(|i| Bytes::copy_from_slice(&rest[i * share..(i + 1) * share])).collect();
    let frame = Frame { kind: 0, target: RoleKind(1), head: Bytes::copy_from_slice(head), payloads };
    DECODERS[usize::from(*which) % DECODERS.len()](frame);
}

/// Returns an input that is accepted, for every decoder that accepts a head of zeros, perhaps with another first byte. Such heads stand for
/// empty lists and for the variants of a choice.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (which, decoder) in DECODERS.iter().enumerate() {
        for payloads in 0..2u8 {
            let taken = |head: &[u8]| {
                let payloads = (0..payloads).map(|_| Bytes::from_static(b"abc")).collect();
                decoder(Frame { kind: 0, target: RoleKind(1), head: Bytes::copy_from_slice(head), payloads })
            };
            let found = |head: &[u8]| {
                let length = (head.len() as u16).to_le_bytes();
                let tail: &[u8] = if payloads == 0 { b"" } else { b"abc" };
                [&[which as u8, payloads], length.as_slice(), head, tail].concat()
            };
            let mut first = 0;
            for n in 0..128 {
                let mut head = vec![0; n];
                if taken(&head) {
                    seeds.push(found(&head));
                }
                // Try the other variants of messages that begin with a choice.
                for tag in 1..14u8 {
                    if let Some(byte) = head.first_mut() {
                        *byte = tag;
                        if first < 4 && taken(&head) {
                            first += 1;
                            seeds.push(found(&head));
                        }
                    }
                }
            }
        }
    }
    let which = DECODERS.len() as u8 - 5;
    let servers = (1..=3).map(|n| (atoll_core::NodeId(n), atoll_core::StorageId(u128::from(n)))).collect();
    let sequencer = (atoll_core::NodeId(1), atoll_core::Incarnation(9));
    let config = NativeConfig { servers, sequencer }.to_bytes();
    seeds.push([&[which, 0, config.len() as u8, 0], &config[..]].concat());
    seeds
}
