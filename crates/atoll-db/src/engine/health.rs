//! What a replica reports of itself: its progress, its condition, and what was found to be wrong.

use std::fmt;

use atoll_contract::LogPos;
use atoll_core::NodeId;

use super::ClockAhead;
use super::check::Checked;
use crate::replica::Halt;
use crate::store::StoreError;
use crate::transfer::{Rot, Scrubbed};

/// The progress and condition of a replica. Each position is exclusive: it is the first one that is *not* covered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Entries below are applied and visible.
    pub applied_below: LogPos,
    /// Entries below are committed to the local store.
    pub committed_below: LogPos,
    /// Entries below survive a power cut in the local store.
    pub durable_below: LogPos,
    /// The highest tail that this node knows of without a tail check.
    pub known_tail: LogPos,
    /// Commands of this node that have no answer yet.
    pub waiting_commands: u64,
    /// Approximate memory, in bytes, of the changes that are applied but not committed.
    pub overlay_bytes: u64,
    /// Approximate size of the local store, in bytes.
    pub store_bytes: u64,
    /// Entries of the log that were skipped because they do not belong to the database.
    pub foreign_entries: u64,
    /// Commands applied in this life.
    pub commands: u64,
    /// Commands applied in this life that their application rejected.
    pub rejected: u64,
    /// How often the replica was refilled from a peer in this life.
    pub refills: u64,
    /// The refill that is under way, if any.
    pub refilling: Option<Refilling>,
    /// Set if the state of another replica differed at the last comparison.
    pub divergence: Option<Divergence>,
    /// The result of the last scrub of the store.
    pub scrubbed: Option<Scrubbed>,
    /// Why this replica accepts no reads or proposals until it is refilled from a peer. None if it is not withheld.
    pub withheld: Option<Finding>,
    /// The outcome of the start check; None while it is under way.
    pub checked: Option<Checked>,
    /// The most recent findings of this life. They are kept after the problem is resolved.
    pub found: Vec<Finding>,
    /// The total number of findings in this life.
    pub found_total: u64,
    /// The last problem that kept the replica from reading the log.
    pub trouble: Option<String>,
    /// The resource that the store is currently short of. The failed operation is being retried.
    pub store_trouble: Option<StoreError>,
    /// Why the replica has halted, if it has.
    pub halted: Option<Halt>,
    /// Why the replica is out of service, if it is.
    pub out_of_service: Option<OutOfService>,
}

/// Why a replica serves nobody although its node is up. Except where a variant says otherwise, other nodes take over its sessions
/// and do not wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutOfService {
    /// It has halted and applies nothing until its node is restarted.
    Halted(Halt),
    /// It has entries to apply but makes no progress.
    Stalled {
        /// The first entry that is not applied.
        at: LogPos,
        /// The error that its store reported. None if the store reported nothing, for example because its disk hangs.
        error: Option<StoreError>,
    },
    /// It was found to be wrong and has not been refilled yet.
    Withheld,
    /// It is in its start check: its state is being compared with that of a peer. It applies the proposals of other nodes, and they
    /// wait for it.
    Checking,
    /// Its node's clock is far ahead and therefore refused. It applies the proposals of other nodes, and the log's trim waits for
    /// it.
    ClockAhead(ClockAhead),
}

impl fmt::Display for OutOfService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutOfService::Halted(halt) => write!(f, "{halt}"),
            OutOfService::Stalled { at, error: None } => {
                write!(f, "no progress before log position {at}")
            }
            OutOfService::Stalled { at, error: Some(error) } => {
                write!(f, "no progress before log position {at}: {error}")
            }
            OutOfService::ClockAhead(ahead) => write!(f, "{ahead}"),
            OutOfService::Checking => {
                write!(f, "it has just started and is comparing its state with a peer's")
            }
            OutOfService::Withheld => write!(f, "it is wrong and is being refilled by a peer"),
        }
    }
}

/// The refill that is under way, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refilling {
    /// The peer that sends its state.
    pub from: NodeId,
    /// Entries of the log below are included in the state that is fetched.
    pub below: LogPos,
    /// Keys received so far.
    pub keys: u64,
    /// Bytes received so far, as counted on the wire.
    pub bytes: u64,
}

/// Two replicas have different states at the same position. This must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The position: both hashes cover all entries below it.
    pub below: LogPos,
    /// The hash of this replica.
    pub mine: u128,
    /// The other replica's node.
    pub peer: NodeId,
    /// The hash of the other replica.
    pub theirs: u128,
}

/// Evidence that a replica's state is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The states of two replicas differ.
    Differs(Divergence),
    /// The store of this replica does not contain what was written to it.
    Rot(Rot),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Differs(Divergence { below, mine, peer, theirs }) => write!(
                f,
                "the hash of entries below {below} is {mine:032x} at this replica, {theirs:032x} at that of node {peer}"
            ),
            Finding::Rot(rot) => write!(f, "the store does not hold what was written to it: {rot}"),
        }
    }
}
