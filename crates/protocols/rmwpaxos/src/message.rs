//! Messages between proposers and acceptors (kinds 200–299), and the acceptor's facts in the journal.
//!
//! A register's state is sent and stored as opaque bytes beside the head: an acceptor never decodes it.
#![allow(missing_docs)] // The documentation of a variant covers its fields, too.

use atoll_core::{Format, Frame, Mismatch, StorageId};
use bytes::Bytes;

use super::ballot::{Ballot, ProposerId};
use super::group::GroupConfig;
use super::state::RegisterState;
use crate::roles::ACCEPTOR;

atoll_core::record! {
    /// The receiver of a request. An acceptor answers only under its own identity (rmw-T9), and for groups that it serves (§9a).
    pub struct Address {
        /// Epoch of the group.
        pub epoch: u64,
        /// [`GroupConfig::mark`] of the group.
        pub mark: u64,
        /// The data directory that the group names for this node.
        pub storage: StorageId,
    }
}

atoll_core::choice! {
    /// Why an acceptor rejected a request. Nothing was promised or voted.
    pub enum Reject {
        /// It has another data directory than the group names, because its disk was lost (rmw-T9).
        0 = WrongIdentity { mine: StorageId },
        /// It does not know this group. Contains the newest serving group that it knows.
        1 = WrongEpoch { known: Option<GroupConfig> },
        /// The group has handed over. Contains the group that serves now.
        2 = Moved { to: GroupConfig },
        /// The group is handing over to this one, and the register may have to be created there.
        3 = Fenced { next: GroupConfig },
        /// The group is not complete yet.
        4 = NotOpen {},
        /// No room for more registers.
        5 = Full {},
        /// Its journal is closed.
        6 = StorageFailed {},
        /// A name or round number is out of bounds, or there is a mover's request to an acceptor that is not fenced.
        7 = Invalid {},
    }
}

atoll_core::choice! {
    /// What a prepare requests.
    pub enum Mode {
        /// A ballot above all that the acceptor has seen.
        0 = Incremental {},
        /// This ballot.
        1 = Explicit { ballot: Ballot },
        /// No promise, only the vote.
        2 = ReadOnly {},
    }
}

atoll_core::message! {
    /// Phase 1, or a read (§3).
    pub struct Prep = 200 {
        /// The acceptor and group addressed.
        pub to: Address,
        /// The register.
        pub name: String,
        /// Distinguishes the prepares of one proposer, to recognise duplicates (rmw-T15).
        pub request: u64,
        /// The proposer that asks.
        pub pid: ProposerId,
        /// The ballot that is requested.
        pub mode: Mode,
        /// Whether a hand-over sent this, so that it passes the fence (§9a).
        pub moving: bool,
    }
}

atoll_core::choice! {
    /// The answer to a [`Prep`].
    pub enum PrepAnswer {
        /// The promised ballot (None for a read) and the ballot of the vote. The state is the payload.
        0 = Ack { ballot: Option<Ballot>, voted: Ballot },
        /// A higher promise was given.
        1 = Nack { promised: Ballot },
        /// The request was rejected.
        2 = Rejected { why: Reject },
    }
}

atoll_core::message! {
    /// Answers [`Prep`].
    pub struct PrepReply = 201 {
        /// The answer.
        pub answer: PrepAnswer,
    } + payload
    /// The state voted for, empty if none.
    state
}

atoll_core::message! {
    /// Phase 2, the accept of Paxos: vote for this state (§3).
    pub struct Write = 202 {
        /// The acceptor and group addressed.
        pub to: Address,
        /// The register.
        pub name: String,
        /// The ballot that a majority promised (rmw-T6).
        pub ballot: Ballot,
        /// Whether an older vote is written again unchanged (rmw-W4).
        pub through: bool,
        /// Whether the state is the last one of this register in this group (§9a), so that it passes the fence.
        pub last: bool,
    } + payload
    /// The whole state, never a delta (rmw-T10).
    state
}

atoll_core::choice! {
    /// The answer to a [`Write`].
    pub enum WriteAnswer {
        /// Voted; the next ballot of the same proposer is also promised.
        0 = Ack { next: Ballot },
        /// A higher promise was given.
        1 = Nack { promised: Ballot, voted: Ballot },
        /// The request was rejected.
        2 = Rejected { why: Reject },
    }
}

atoll_core::message! {
    /// Answers [`Write`].
    pub struct WriteReply = 203 {
        /// The answer.
        pub answer: WriteAnswer,
    }
}

atoll_core::message! {
    /// Hand-over (§9a, rmw-H2): from now on, accept no register that you never voted for, except final values.
    pub struct Fence = 204 {
        /// The acceptor and the old group addressed.
        pub to: Address,
        /// The group chosen in the root register.
        pub next: GroupConfig,
    }
}

atoll_core::choice! {
    /// The answer to requests that are either done or rejected.
    pub enum DoneAnswer {
        /// Done, durably.
        0 = Done {},
        /// The request was rejected.
        1 = Rejected { why: Reject },
    }
}

atoll_core::message! {
    /// Answers [`Fence`], [`Install`] and [`Open`].
    pub struct DoneReply = 205 {
        /// The answer.
        pub answer: DoneAnswer,
    }
}

atoll_core::message! {
    /// Requests one page of the registers that this acceptor has voted for.
    pub struct List = 206 {
        /// The acceptor and group addressed.
        pub to: Address,
        /// Prefix of the names.
        pub prefix: String,
        /// Only names after this one, if any.
        pub after: Option<String>,
        /// Whether a hand-over sent this. Then only a fenced acceptor answers, and it does not refer to the next group (§9a, rmw-H3).
        pub moving: bool,
    }
}

atoll_core::choice! {
    /// The answer to a [`List`].
    pub enum ListAnswer {
        /// Names in order, each with the ballot of its vote, and whether more follow after the last.
        0 = Names { names: Vec<(String, Ballot)>, more: bool },
        /// The request was rejected.
        1 = Rejected { why: Reject },
    }
}

atoll_core::message! {
    /// Answers [`List`].
    pub struct ListReply = 207 {
        /// The answer.
        pub answer: ListAnswer,
    }
}

atoll_core::message! {
    /// Hand-over (§9a, rmw-H5): a register starts with this state in the new group, voted at [`Ballot::GENESIS`].
    pub struct Install = 208 {
        /// The receiver's data directory in the new group (rmw-T9).
        pub storage: StorageId,
        /// The new group.
        pub group: GroupConfig,
        /// The register.
        pub name: String,
    } + payload
    /// Its state.
    state
}

atoll_core::message! {
    /// Hand-over (§9a, rmw-H6): this group is complete. It serves, and all earlier groups have ended.
    pub struct Open = 210 {
        /// The receiver's data directory, in this group or an earlier one (rmw-T9).
        pub storage: StorageId,
        /// The group.
        pub group: GroupConfig,
    }
}

atoll_core::message! {
    /// Requests the serving group.
    pub struct Status = 212 {}
}

atoll_core::message! {
    /// Answers [`Status`].
    pub struct StatusReply = 213 {
        /// The newest serving group that this acceptor knows.
        pub serving: Option<GroupConfig>,
    }
}

atoll_core::rpc!(Prep => PrepReply, ACCEPTOR, Control);
atoll_core::rpc!(Write => WriteReply, ACCEPTOR, Control);
atoll_core::rpc!(Fence => DoneReply, ACCEPTOR, Control);
atoll_core::rpc!(List => ListReply, ACCEPTOR, Control);
atoll_core::rpc!(Install => DoneReply, ACCEPTOR, Control);
atoll_core::rpc!(Open => DoneReply, ACCEPTOR, Control);
atoll_core::rpc!(Status => StatusReply, ACCEPTOR, Control);

impl PrepReply {
    pub(super) fn reject(why: Reject) -> Self {
        PrepReply { answer: PrepAnswer::Rejected { why }, state: Bytes::new() }
    }
}

/// A reply that may be a rejection.
pub(super) trait MayReject {
    /// Returns the reason if this reply is a rejection.
    fn rejection(&self) -> Option<&Reject>;
}

macro_rules! may_reject {
    ($($reply:ty, $answer:ident);*) => {$(
        impl MayReject for $reply {
            fn rejection(&self) -> Option<&Reject> {
                match &self.answer { $answer::Rejected { why } => Some(why), _ => None }
            }
        }
    )*};
}
may_reject!(PrepReply, PrepAnswer; WriteReply, WriteAnswer; DoneReply, DoneAnswer; ListReply, ListAnswer);

atoll_core::choice! {
    /// A fact that an acceptor journals. Replaying one twice, or over a newer checkpoint, changes nothing.
    pub enum Fact {
        /// The first group, from the node's configuration.
        0 = First { group: GroupConfig },
        /// A promise.
        1 = Promised { epoch: u64, name: String, ballot: Ballot },
        /// A vote and the promise that goes with it; the state is the record's payload.
        2 = Voted { epoch: u64, name: String, ballot: Ballot, last: bool },
        /// The group is handing over.
        3 = Fenced { epoch: u64, next: GroupConfig },
        /// A register of a group that is being filled; the state is the record's payload.
        4 = Installed { group: GroupConfig, name: String },
        /// The group serves, and all earlier groups have ended.
        5 = Opened { group: GroupConfig },
    }
}

atoll_core::record! {
    /// A register in a checkpoint.
    pub struct SlotImage {
        /// Its name.
        pub name: String,
        /// The promise.
        pub promised: Ballot,
        /// The ballot of the vote.
        pub voted: Ballot,
        /// Whether the vote is final (§9a).
        pub last: bool,
        /// The state voted for.
        pub state: Bytes,
    }
}

atoll_core::record! {
    /// A group in a checkpoint.
    pub struct GroupImage {
        /// The group's epoch and members.
        pub group: GroupConfig,
        /// Whether the group serves.
        pub open: bool,
        /// The group that it is handing over to, if any.
        pub fenced: Option<GroupConfig>,
        /// Its registers.
        pub slots: Vec<SlotImage>,
    }
}

atoll_core::record! {
    /// A checkpoint of an acceptor.
    pub struct AcceptorImage {
        /// Format of this image.
        pub format: u16,
        /// The newest serving group.
        pub serving: Option<GroupConfig>,
        /// Groups that have not ended.
        pub groups: Vec<GroupImage>,
    }
}

/// Every message between proposers and acceptors, and what acceptors store.
pub const FORMATS: &[Format] = &[
    Format::message::<Prep>(),
    Format::message::<PrepReply>(),
    Format::message::<Write>(),
    Format::message::<WriteReply>(),
    Format::message::<Fence>(),
    Format::message::<DoneReply>(),
    Format::message::<List>(),
    Format::message::<ListReply>(),
    Format::message::<Install>(),
    Format::message::<Open>(),
    Format::message::<Status>(),
    Format::message::<StatusReply>(),
    Format::stored::<GroupConfig>("GroupConfig"),
    Format::stored::<Fact>("Fact"),
    Format::stored::<AcceptorImage>("AcceptorImage"),
    Format::other("RegisterState", check_state),
];

/// The state of a register has limits beyond its format, and a short format of its own.
fn check_state(frame: Frame) -> Result<bool, Mismatch> {
    let wrong = |what: String| Err(Mismatch { format: "RegisterState", what });
    let Ok(state) = RegisterState::read(&frame.head) else { return Ok(false) };
    let again = RegisterState::read(&state.written());
    if again.as_ref() != Ok(&state) {
        return wrong(format!("{state:?} becomes {again:?}"));
    }
    let newest = state.nonces.last().copied();
    if newest.is_some_and(|nonce| state.made_by(nonce) != Some(state.version)) {
        return wrong(format!("the last write of {state:?} has another version"));
    }
    if state.made_by(0).is_some_and(|version| version > state.version)
        || state.versioned().version.0 != state.version
    {
        return wrong(format!("{state:?} contradicts its version"));
    }
    Ok(true)
}
