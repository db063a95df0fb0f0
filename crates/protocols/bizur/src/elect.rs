//! Elections and versions (§2): totally ordered, and unique by construction.

use std::fmt;

use atoll_contract::keyspace::Replica;
use atoll_core::{Decode, DecodeError, Encode, NodeId, Reader};
use bytes::BytesMut;

/// The highest round of an election. Rounds rise by one with each election, so a shard never gets there; a higher one is a damaged message.
pub const MAX_ROUND: u64 = 1 << 60;

/// One election. It names its candidate, so no two servers can ever win the same one (bizur-B3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElectId {
    /// Counts the elections of a shard; 0 is before the first one.
    pub round: u64,
    /// The candidate, under its identity.
    pub server: Replica,
}

impl ElectId {
    /// Before the first election.
    pub const ZERO: ElectId = ElectId { round: 0, server: Replica { node: NodeId(0), identity: 0 } };
}

impl Default for ElectId {
    fn default() -> Self {
        ElectId::ZERO
    }
}

impl fmt::Display for ElectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.round, self.server.node)
    }
}

impl Encode for ElectId {
    fn encode(&self, out: &mut BytesMut) {
        self.round.encode(out);
        self.server.encode(out);
    }
}

impl Decode for ElectId {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (round, server) = (u64::decode(from)?, Replica::decode(from)?);
        if round > MAX_ROUND {
            let what = "round of an election";
            return Err(DecodeError::Invalid { what, value: round, allowed: "at most 2^60" });
        }
        Ok(ElectId { round, server })
    }
}

/// The version of a bucket: the election of the leader that wrote it, and a counter that the leader never uses twice for the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ver {
    /// The election.
    pub elect: ElectId,
    /// The counter; 0 if the bucket was never written.
    pub ctr: u64,
}

impl fmt::Display for Ver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.elect, self.ctr)
    }
}

impl Encode for Ver {
    fn encode(&self, out: &mut BytesMut) {
        self.elect.encode(out);
        self.ctr.encode(out);
    }
}

impl Decode for Ver {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Ver { elect: ElectId::decode(from)?, ctr: u64::decode(from)? })
    }
}
