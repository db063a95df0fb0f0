//! Ballots: the order of proposals (rmwpaxos §2). They are always compared by number first, then by proposer (rmw-T6).

use std::fmt;

use atoll_core::{Decode, DecodeError, Encode, NodeId, Reader};
use bytes::BytesMut;

/// The highest number of a ballot that an acceptor takes from a request: counting up from it never overflows.
pub const MAX_ROUND: u64 = u64::MAX / 2;

/// One life of the proposer of one key. It is never used again: two lives with one id could write two states in one ballot (rmw-T5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposerId {
    /// Its node.
    pub node: NodeId,
    /// Its life, drawn at random when the proposer is made.
    pub life: u64,
}

/// A ballot. The order of the fields is the order of ballots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Its number.
    pub n: u64,
    /// Its proposer.
    pub pid: ProposerId,
}

impl Ballot {
    /// Below all others: nothing was promised, and nothing was voted for.
    pub const ZERO: Ballot = Ballot { n: 0, pid: ProposerId { node: NodeId(0), life: 0 } };

    /// The ballot of the states with which keys begin in a group that has taken over a shard (§9a). No proposer has it.
    pub const GENESIS: Ballot = Ballot { n: 1, pid: ProposerId { node: NodeId(0), life: 0 } };

    /// Returns the ballot that a vote for this one promises at the same time (§3).
    #[must_use]
    pub fn next(self) -> Ballot {
        Ballot { n: self.n.saturating_add(1), pid: self.pid }
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{:x}", self.n, self.pid.node, self.pid.life)
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
        Ok(ProposerId { node: NodeId::decode(from)?, life: u64::decode(from)? })
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
