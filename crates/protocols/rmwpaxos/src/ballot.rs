//! Ballots: the order of proposals (rmwpaxos §2). They are always compared by number first, then by proposer (rmw-T6).

use std::fmt;

use atoll_core::{Decode, DecodeError, Encode, Incarnation, NodeId, Reader};
use bytes::BytesMut;

/// Highest round number that an acceptor accepts from a request: counting further up never overflows.
pub const MAX_ROUND: u64 = u64::MAX / 2;

/// One life of one proposer. It is never reused after it ends: two lives with one id could write two values in one ballot (rmw-T5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposerId {
    /// Its node.
    pub node: NodeId,
    /// Its life, which is drawn at random.
    pub life: Incarnation,
}

impl ProposerId {
    /// No proposer: used for the ballot of a register without a vote, and for copies into a new group (§9a).
    pub const NOBODY: ProposerId = ProposerId { node: NodeId(0), life: Incarnation(0) };
}

/// A ballot. The order of the fields is the order of ballots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Round number.
    pub n: u64,
    /// Its proposer.
    pub pid: ProposerId,
}

impl Ballot {
    /// Below all others: nothing was promised, nothing voted.
    pub const ZERO: Ballot = Ballot { n: 0, pid: ProposerId::NOBODY };
    /// The vote that a register starts with in a new group (§9a); it is below every ballot of a proposer.
    pub const GENESIS: Ballot = Ballot { n: 1, pid: ProposerId::NOBODY };

    /// Returns the ballot that a vote for this one implicitly promises (§3).
    #[must_use]
    pub fn next(self) -> Ballot {
        Ballot { n: self.n.saturating_add(1), pid: self.pid }
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}/{})", self.n, self.pid.node, self.pid.life)
    }
}

impl Encode for ProposerId {
    fn encode(&self, out: &mut BytesMut) {
        self.node.encode(out);
        self.life.encode(out);
    }
}

impl Decode for ProposerId {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(ProposerId { node: NodeId::decode(from)?, life: Incarnation::decode(from)? })
    }
}

impl Encode for Ballot {
    fn encode(&self, out: &mut BytesMut) {
        self.n.encode(out);
        self.pid.encode(out);
    }
}

impl Decode for Ballot {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Ballot { n: u64::decode(from)?, pid: ProposerId::decode(from)? })
    }
}
