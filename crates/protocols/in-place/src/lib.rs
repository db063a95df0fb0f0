//! In-place replicated state machines: a keyspace in which each key is a consensus register of its own, without a leader and without a log.
//!
//! Sources: Skrzypczak and Schintke, "Towards Log-Less, Fine-Granular State Machine Replication" (2020), and the protocol notes `rmwpaxos`
//! (§ and T numbers below refer to them). The acceptors of a key agree on the sequence of its *states*, and overwrite the former one in
//! place. A command is a value: it reads or changes a register, a counter, a set, a lock, a lease, a barrier, an election or a map. Any
//! node executes a command: its proposer reads the state of a majority, applies the command, and has the result voted on.
//!
//! | the paper's term | our term |
//! | --- | --- |
//! | in-place RSM | key: its [`KeyState`], its acceptors, its [`Command`]s |
//! | replica | acceptor ([`Acceptor`]) of a group, which holds the keys of one shard |
//! | consensus module, proposer | proposer: one for each key on each node that uses it |
//! | round | [`Ballot`]: number and proposer |
//! | consistent quorum | a majority whose votes have one ballot |
//! | write-through | the same |
//!
//! | § | what | code |
//! | --- | --- | --- |
//! | §2 | ballots, state, messages | `ballot.rs`, `state.rs`, `content.rs`, `message.rs` |
//! | §3 | acceptor | `acceptor/serve.rs`; its cells, §8, in `acceptor/cells.rs` |
//! | §4 rmw-R1–rmw-R4 | read | `read.rs` |
//! | §4 rmw-P1–rmw-W9 | write | `write.rs`; queue and token in `proposer.rs`, one round in `round.rs` |
//! | §4 rmw-W5, §10 | what commands do | `command.rs` |
//! | §7 rmw-T11 | deleted keys | `forget.rs` (proposer), `acceptor/serve.rs` |
//! | §10 | batches: for each key one proposal, for each destination one message | `proposer.rs`, `courier.rs` |
//! | §10 | listing | `list.rs` |
//! | §10 | watches | `acceptor/watch.rs`, `watch.rs` |
//! | paper §5 | keys on nodes | `placement.rs`, `provider.rs` |
//! | §9a | hand-over of groups | `mover.rs`, `groups.rs`, `acceptor/seal.rs` |
//! | §12 | transactions of several keys | `txn.rs`; locks in `command.rs` and `state.rs` |
//! | §11 | invariants | `invariants.rs`; the rest from outside of the nodes, `testing/oracle.rs` |
//!
//! [`InPlaceSpace`] is the keyspace on a node, with `space.rs` for commands and `keyspace.rs` for the contract of keyspaces.
//!
//! # When an answer is no
//!
//! A command that was proposed may be chosen until something else is chosen in a higher ballot, whatever its caller was told meanwhile. So
//! a refusal after an earlier attempt is *recorded*: the state that says that the command was refused is itself voted on (`command.rs`).
//! Every later attempt, on whichever node, finds the record. A command without an earlier attempt is refused like a read (rmw-T8). If a
//! node gives up in between, the outcome is unknown, and a repeat with the same name finds out.
//!
//! # Departures
//!
//! - *Exactly once* (rmw-T2) without registered clients: a state remembers the outcomes of its last [`REMEMBERED`] commands by name. Its
//!   clock counts recorded commands, and a repeat carries a floor: a clock that the key had before the first attempt. If a command above
//!   the floor may be forgotten, the outcome is unknown, and nothing is done again. A first attempt has no floor of its caller. So a state
//!   also remembers its last [`REMEMBERED_REPEATS`] repeats: an attempt that was held up finds that its repeat was done. A proposer that
//!   was overtaken must not depend on the floor: the others may record many commands before it looks. So a state also names the last
//!   proposal of each node that it contains ([`KeyState::proposals`]), and a proposal that a later chosen state lacks is over
//!   (`Queued::settle` in `proposer.rs`).
//! - A group of acceptors holds all keys of one shard, of up to 1,024. Consistent hashing places the shards; the shard of a key never
//!   changes.
//! - Acceptors read the states that they vote for, and refuse what no proposer writes. They keep no data type of their own.
//! - Deleted keys are forgotten, as rmw-T11 allows it. The floor belongs to the group, not to the key, so it costs nothing for each key. It
//!   makes a repeat for an absent key unknown more often than a floor for each key would.
//! - A lease expires only when a contender says that it has watched it for long enough (§10). Nobody watches on its behalf.
//! - After a pause for a rival, a prepare is incremental again. By rmw-P1 and rmw-T13 it would name its ballot from the first disagreement
//!   on. But a rival with a token uses one ballot for each round trip, so a ballot that is named after a pause would be below them, time
//!   after time.
//! - The pause also grows while a rival gets nothing done (`overtakes` in `proposer.rs`). Otherwise proposers that are near the acceptors
//!   would starve one that is far away. But a proposer that got nothing done for two reply timeouts pauses as after its first failure.
//! - A prepare of a large state writes its cell again. States are small, and a proposer with a token prepares seldom.
//!
//! # Not offered yet
//!
//! - A first attempt has no floor of its own. One that is held up until a repeat elsewhere was done, and more than [`REMEMBERED`] commands
//!   followed, is done again (seed 9084253 of the scenario `in-place-moves`). The state would have to remember clients for longer.
//! - The command [`Command::Lease`] is not used by doors: leases of keyspaces are conditional writes, whichever the engine.
//! - Commands are not passed on to one node for a hot key. Each key has a preferred proposer, and the others give way to it under
//!   contention (`space.rs`). To pass them on, a state would have to remember the clients of commands for longer.

mod acceptor;
mod ballot;
mod command;
mod content;
mod courier;
mod forget;
mod groups;
mod invariants;
mod keyspace;
mod list;
pub mod message;
mod mover;
pub mod mutants;
mod placement;
mod plugin;
mod proposer;
mod provider;
mod read;
pub mod roles;
mod round;
mod space;
mod state;
#[cfg(feature = "testing")]
mod testing;
mod txn;
mod watch;
mod write;

pub use acceptor::{Acceptor, AcceptorOptions, SLOT_BYTES, key_of_cell};
pub use ballot::{Ballot, MAX_ROUND, ProposerId};
pub use command::{Command, InvalidCommand, MAX_LEASE_MS, Named, Outcome, Refusal, Reply, WireGuard};
pub use content::{
    Content, Kind, MAX_CONTENT_BYTES, MAX_KEY_BYTES, MAX_MEMBERS, MAX_NAME_BYTES, MAX_TXN_KEYS,
    MAX_VALUE_BYTES, Stage,
};
pub use keyspace::ENGINE;
pub use placement::{InvalidRule, Ring, Rule};
pub use plugin::InPlacePlugin;
pub use provider::InPlaceProvider;
pub use space::{CommandError, InPlaceSpace, Options};
pub use state::{
    Done, Intent, KeyState, MAX_PROPOSERS, MAX_STATE_BYTES, REMEMBERED, REMEMBERED_REPEATS, TxnId, TxnLock,
};
