//! The messages of the protocol (corfu §2). All messages to a unit carry the epoch, including deletions (corfu-C5).
//!
//! `config` is the projection, or empty: only a message that carries it may create a log on its receiver. Deletions and questions about
//! status are those that all servers of Loglets answer (`atoll_loglet_store::message`).

use bytes::{Bytes, BytesMut};

use atoll_contract::LogletId;
use atoll_core::{Decode, DecodeError, Encode, Format, Message, Reader, message, rpc};

use crate::loglet::sealed::SealedAt;
use crate::projection::Projection;
use crate::roles::{SEQUENCER, UNIT};
use crate::unit::facts::{CellHead, Fact, Saved};

atoll_core::record! {
    /// The name of one append, by which its writer recognises its own write (corfu-C2, corfu-C17).
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Token {
        /// The appending client in one life; drawn at random.
        pub client: u64,
        /// The number of the append at its client.
        pub number: u64,
    }
}

atoll_core::choice! {
    /// What a unit has done with a request.
    pub enum Verdict {
        /// It is done, and durable if it had to be.
        0 = Done {},
        /// The unit is in a higher epoch; nothing happened.
        1 = Sealed {},
        /// The unit is in a lower epoch: seal it to the installed one first (corfu-C1).
        2 = Ahead {},
        /// The address was written before; nothing happened.
        3 = Written {
            /// By whom; None for junk.
            by: Option<Token>
        },
        /// The address was deleted.
        4 = Deleted {},
        /// The address was never written.
        5 = Unwritten {},
        /// The log is not known here: send the projection with the request.
        6 = Unconfigured {},
        /// The log was deleted permanently.
        7 = Gone {},
        /// The projection does not name this node with this data directory.
        8 = WrongIdentity {},
        /// The disk is full.
        9 = DiskFull {},
        /// The journal is closed permanently.
        10 = StorageFailed {},
        /// Too many requests are under way.
        11 = Busy {},
        /// The stored copy cannot be read back.
        12 = Damaged {
            /// The file, the offset and the reason.
            reason: String
        },
        /// The request exceeds a limit.
        13 = Invalid {},
        /// The address held data and was deleted alone. Its writer is done.
        14 = Erased {},
    }
}

message! {
    /// Writes consecutive addresses, all of them or none.
    pub struct Write = 640 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// The first address.
        pub first: u64,
        /// The number of addresses; at least one.
        pub count: u32,
        /// The append.
        pub token: Token,
    }
    + payload
    /// The content.
    data
}

message! {
    /// Writes junk to the addresses of a range that were not written yet.
    pub struct Fill = 641 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// The first address.
        pub first: u64,
        /// The number of addresses.
        pub count: u32,
    }
}

message! {
    /// Deletes addresses that hold data. Junk stays: it takes no space, and so a writer whose address was deleted knows that it was done.
    pub struct Erase = 642 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// The first address.
        pub first: u64,
        /// The number of addresses.
        pub count: u32,
        /// Whether an address that was not written may be deleted. Only a rebuild copies deletions this way.
        pub unwritten_too: bool,
    }
}

message! {
    /// Deletes all addresses below one.
    pub struct TrimTo = 643 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// The first address that stays.
        pub to: u64,
    }
}

message! {
    /// Makes an epoch the current one, in which alone the unit serves from then on (corfu-C1).
    pub struct SealTo = 644 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The new epoch.
        pub epoch: u64,
    }
}

message! {
    /// Asks for the state of a unit.
    pub struct Probe = 645 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// Where the search for the first unwritten address begins.
        pub from: u64,
    }
}

message! {
    /// Asks for an answer once an address was written, the log is sealed, or the time is up.
    pub struct Await = 646 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// The address.
        pub addr: u64,
        /// How long to wait at most, in milliseconds.
        pub patience_ms: u32,
    }
}

message! {
    /// The answer of a unit to every request but reads.
    pub struct UnitAnswer = 647 {
        /// What the unit has done.
        pub verdict: Verdict,
        /// Its epoch.
        pub epoch: u64,
        /// The address above the highest one ever written, junk and deleted ones included (corfu-C14).
        pub next: u64,
        /// The first address that was never written, from the requested one on.
        pub missing: u64,
    }
}

message! {
    /// Asks for what is at these addresses.
    pub struct Look = 648 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// The first address.
        pub from: u64,
        /// The end of the range, exclusive.
        pub to: u64,
        /// The approximate limit of the answer in bytes. With 0, the answer has no contents, only states.
        pub max_bytes: u32,
    }
}

atoll_core::choice! {
    /// What is at consecutive addresses.
    pub enum Piece {
        /// One write. The first address may be below the requested range, and the last one above it.
        0 = Data {
            /// The first address.
            first: u64,
            /// The number of addresses.
            count: u32,
            /// The append.
            token: Token
        },
        /// Junk.
        1 = Junk {
            /// The first address.
            first: u64,
            /// The end, exclusive.
            end: u64
        },
        /// Never written.
        2 = Unwritten {
            /// The first address.
            first: u64,
            /// The end, exclusive.
            end: u64
        },
        /// Below a trim of all lower addresses.
        3 = Deleted {
            /// The first address.
            first: u64,
            /// The end, exclusive.
            end: u64
        },
        /// Deleted alone.
        4 = Erased {
            /// The first address.
            first: u64,
            /// The end, exclusive.
            end: u64
        },
    }
}

impl Piece {
    /// Returns the first address and the end.
    pub fn span(&self) -> (u64, u64) {
        match self {
            Piece::Data { first, count, .. } => (*first, first.saturating_add(u64::from(*count))),
            Piece::Junk { first, end }
            | Piece::Unwritten { first, end }
            | Piece::Deleted { first, end }
            | Piece::Erased { first, end } => (*first, *end),
        }
    }
}

/// The answer to [`Look`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Done, or the reason why there are no pieces.
    pub verdict: Verdict,
    /// The epoch of the unit.
    pub epoch: u64,
    /// The address above the highest one ever written.
    pub next: u64,
    /// The pieces in order, without gaps from the first requested address on. The part of a write that was deleted alone follows the
    /// write as a piece of its own.
    pub pieces: Vec<Piece>,
    /// The contents of the writes among the pieces, in order; empty if none were requested.
    pub contents: Vec<Bytes>,
}

impl Encode for Seen {
    fn encode(&self, out: &mut BytesMut) {
        self.verdict.encode(out);
        self.epoch.encode(out);
        self.next.encode(out);
        self.pieces.encode(out);
    }
}

impl Decode for Seen {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Seen {
            verdict: Verdict::decode(from)?,
            epoch: u64::decode(from)?,
            next: u64::decode(from)?,
            pieces: Vec::decode(from)?,
            contents: Vec::new(),
        })
    }
}

impl Message for Seen {
    const KIND: u16 = 649;
    const NAME: &'static str = "Seen";

    fn take_payloads(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.contents)
    }

    fn put_payloads(&mut self, payloads: Vec<Bytes>) -> Result<(), DecodeError> {
        let writes = self.pieces.iter().filter(|piece| matches!(piece, Piece::Data { .. })).count();
        if !payloads.is_empty() && payloads.len() != writes {
            let value = payloads.len() as u64;
            return Err(DecodeError::Invalid {
                what: "contents in Seen",
                value,
                allowed: "one per write, or none",
            });
        }
        self.contents = payloads;
        Ok(())
    }
}

atoll_core::record! {
    /// Consecutive positions for some entries of an append.
    #[derive(Copy)]
    pub struct Granted {
        /// The first position.
        pub first: u64,
        /// The number of entries.
        pub count: u32,
        /// Whether the positions are new. Otherwise, an earlier attempt of the same entries got them, and may have written there.
        pub new: bool,
    }
}

atoll_core::choice! {
    /// What a sequencer answers.
    pub enum Grant {
        /// These positions, in the order of the entries.
        0 = Granted {
            /// The positions.
            runs: Vec<Granted>
        },
        /// The sequencer is sealed to a higher epoch.
        1 = Sealed {},
        /// The receiver is not the sequencer of this epoch, or is another life of it (corfu-C11).
        2 = NotSequencer {},
        /// An earlier attempt of an entry may have got a position, too long ago to be remembered.
        3 = Forgotten {},
        /// The log is not known here: send the projection with the request.
        4 = Unconfigured {},
        /// The request is malformed.
        5 = Invalid {},
    }
}

message! {
    /// Asks for positions, one or a batch of consecutive ones.
    pub struct Take = 650 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// How many; 0 only asks for the next position.
        pub count: u32,
    }
}

message! {
    /// Asks for positions for named entries. The sequencer remembers which position an entry got.
    pub struct TakeNamed = 651 {
        /// The log.
        pub log: LogletId,
        /// The projection, or empty.
        pub config: Bytes,
        /// The epoch.
        pub epoch: u64,
        /// None of the entries is below this position.
        pub not_below: u64,
        /// Positions that the sender knows not to hold the entries that got them: the first one and the end of each range.
        pub lost: Vec<(u64, u64)>,
    }
    + payload
    /// A batch of the entries without their contents.
    names
}

message! {
    /// Starts the sequencer of an epoch, which was just installed.
    pub struct Start = 652 {
        /// The log.
        pub log: LogletId,
        /// The projection.
        pub config: Bytes,
        /// The first position to give out.
        pub next: u64,
    }
}

message! {
    /// Ends the service of a sequencer in all epochs below this one.
    pub struct StopTo = 653 {
        /// The log.
        pub log: LogletId,
        /// The epoch.
        pub epoch: u64,
    }
}

message! {
    /// The answer of a sequencer.
    pub struct Grants = 654 {
        /// What it grants.
        pub grant: Grant,
        /// Its epoch.
        pub epoch: u64,
        /// The next position that it will give out: an upper bound of the tail (corfu-C12).
        pub next: u64,
    }
}

rpc!(Take => Grants, SEQUENCER, Data);
rpc!(TakeNamed => Grants, SEQUENCER, Data);
rpc!(Start => Grants, SEQUENCER, Control);
rpc!(StopTo => Grants, SEQUENCER, Control);

rpc!(Write => UnitAnswer, UNIT, Data);
rpc!(Fill => UnitAnswer, UNIT, Data);
rpc!(Erase => UnitAnswer, UNIT, Control);
rpc!(TrimTo => UnitAnswer, UNIT, Control);
rpc!(SealTo => UnitAnswer, UNIT, Control);
rpc!(Probe => UnitAnswer, UNIT, Control);
rpc!(Await => UnitAnswer, UNIT, Control);
rpc!(Look => Seen, UNIT, Data);

/// A request to a unit. It is first sent without the projection, which is long, and with it if the unit does not know the log.
pub trait ToUnit: atoll_core::ForRole + Clone {
    /// Returns the same request with the projection.
    #[must_use]
    fn with_config(self, config: Bytes) -> Self;
    /// Returns the verdict of an answer.
    fn verdict(answer: &Self::Reply) -> &Verdict;
}

macro_rules! to_unit {
    ($($request:ty),*) => {$(
        impl ToUnit for $request {
            fn with_config(mut self, config: Bytes) -> Self {
                self.config = config;
                self
            }
            fn verdict(answer: &Self::Reply) -> &Verdict {
                &answer.verdict
            }
        }
    )*};
}

to_unit!(Write, Fill, Erase, TrimTo, SealTo, Probe, Await, Look);

/// The messages that only this protocol has, what it writes into the chain, and its records on disk.
pub const FORMATS: &[Format] = &[
    Format::message::<Write>(),
    Format::message::<Fill>(),
    Format::message::<Erase>(),
    Format::message::<TrimTo>(),
    Format::message::<SealTo>(),
    Format::message::<Probe>(),
    Format::message::<Await>(),
    Format::message::<UnitAnswer>(),
    Format::message::<Look>(),
    Format::message::<Seen>(),
    Format::message::<Take>(),
    Format::message::<TakeNamed>(),
    Format::message::<Start>(),
    Format::message::<StopTo>(),
    Format::message::<Grants>(),
    Format::stored::<Projection>("Projection"),
    Format::stored::<SealedAt>("SealedAt"),
    Format::stored::<Fact>("UnitFact"),
    Format::stored::<Saved>("UnitState"),
    Format::stored::<CellHead>("CellHead"),
];
