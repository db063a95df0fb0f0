//! RMWPaxos: consensus registers in place. They are the MetaStore of the virtual log, and registers for any other use.
//!
//! Source: Skrzypczak and Schintke, "Towards Log-Less, Fine-Granular State Machine Replication" (2020, §4.2), and the protocol notes
//! `rmwpaxos` (§ and T numbers below refer to them). Each register is a group's *state*, not a log of commands: an acceptor keeps one
//! promise and one vote per register and overwrites them in place. A proposer reads the state of a majority, applies a command, and has
//! the result voted on. There is no leader, no log and no snapshot, and registers do not wait for each other.
//!
//! For why this is not a Paxos instance per version, as in the paper on Delos, see `docs/decisions/0002-rmwpaxos-for-the-metastore.md`.
//!
//! | the paper's term | our term |
//! | --- | --- |
//! | replica | acceptor ([`Acceptor`]), one per node and data directory |
//! | client, proposer | proposer: one per register and [`RmwRegisters`] |
//! | round, round id | [`Ballot`]: number and proposer |
//! | consistent quorum | a majority whose votes have one ballot |
//! | write-through | the same |
//! | update command | `write_if` of the [`Register`](atoll_contract::Register) trait |
//!
//! | § | what | code |
//! | --- | --- | --- |
//! | §2 | ballots, state, messages | `ballot.rs`, `state.rs`, `message.rs` |
//! | §3 | acceptor | `acceptor.rs` |
//! | §4 rmw-R1–rmw-R4 | read | `read.rs` |
//! | §4 rmw-P1–rmw-W9 | write | `write.rs`; queue and token in `proposer.rs`, one round of messages in `round.rs` |
//! | §8 | durability, recovery | `acceptor.rs` (facts before answers), `membership.rs` (recovery), `checkpoint.rs` |
//! | §9a | hand-over | `hand_over.rs` (mover), `membership.rs` (acceptor) |
//! | §9a | who is in the group: the first one, and changes when the members change | `find_group.rs`, `keep_group.rs` |
//! | §10 | listing | `list.rs` |
//! | | what one acceptor alone knows, for a rescue | `remains.rs` |
//! | §11 | invariants | `invariants.rs`; the rest from outside of the nodes, `testing/oracle.rs` |
//!
//! # Departures
//!
//! - *Exactly once* (rmw-T2) by nonce, not by client and sequence number: a state remembers the nonces of its last [`REMEMBERED_WRITES`]
//!   writes. Versions already rule out a second application; the nonces make sure that a retry gets the right answer. A retry that comes
//!   after that many later writes gets the answer "unknown", never a wrong one.
//! - A prepare carries no hint of a ballot. Its request number serves only rmw-T15, because the layer below already matches answers to
//!   calls (rmw-T14).
//! - A move (§9a) does not write an unchosen vote through before it builds on it, because the fence rules that out. The state that it
//!   builds is chosen together with that vote or not at all. This is safe for the same reason as rmw-W4, and no operation is answered from
//!   a final state.
//! - Registers are not deleted: there is no such operation, so rmw-T11 cannot be violated. Only a hand-over drops them, from acceptors
//!   whose group has ended (rmw-H6) and that answer "moved" from then on. So an older vote of a lagging acceptor counts in no later group.
//! - Durability is always by fsync; there is no volatile variant.
//!
//! # Hand-over of a group (§9a): the argument
//!
//! Let `e` be a group and `e + 1` its successor. A mover runs these steps. Each is idempotent, and any number of movers may run them at
//! once:
//!
//! - **rmw-H0** Ask the members of `e + 1` whether they are there, under the identities that it names; a member that lost its disk ends
//!   the attempt, and one whose journal is closed counts as absent. This only helps liveness: what rmw-H1 has chosen cannot be withdrawn.
//! - **rmw-H1** Choose `Moved{next}` in the reserved root register of `e`. A register chooses one final value, so `e` has one successor,
//!   whichever groups the movers request.
//! - **rmw-H2** Fence a majority of `e`, durably. From then on, such an acceptor takes part in a register only if its last vote for the
//!   register was not final, or if the value voted on is final. It answers no other prepare, write or read of the register, and no
//!   listing.
//! - **rmw-H3** The names are the union of the names that the acceptors of a fenced majority have voted for.
//! - **rmw-H4** For each name, choose the final value `Moved{next, state}` through the register itself, in `e`.
//! - **rmw-H5** Install each state in `e + 1` at ballot `(1, genesis)`, durably on a majority. These acceptors do not serve yet.
//! - **rmw-H6** Tell all members that `e + 1` is open, durably on a majority of it. Acceptors then drop their state of `e`, and answer
//!   "moved to `e + 1`" from then on. A proposer accepts `e + 1` only from a node that reports it as open, or that has opened it.
//!
//! *No chosen value is missed.* Let X be a register that no acceptor of the fenced majority F of rmw-H3 had voted for at its fence. By the
//! rule of rmw-H2, the first vote of such an acceptor after that is final, and so is every later one, because after a final vote only
//! final values pass. So no non-final value of X was voted for in F, before or after, and none is ever chosen in `e`. Nor will a majority
//! ever answer a reader that X is empty, because F will not. In other words, the names contain whatever was chosen in `e`. (It is not
//! enough to shut out registers that were never voted for: a rival mover's final vote at one acceptor of F would let an older proposal
//! pass there, and acceptors outside of F would complete its majority.)
//!
//! *No value is chosen after the copy.* For each X in the names, a final value is chosen before it is installed. By rmw-I3, everything
//! that is chosen later includes it, and proposers write nothing on top of it. A reader's majority meets its voters, so no majority agrees
//! on an older vote. An operation that finds a final value, chosen or not, gets its answer only from the next group. So no client reads or
//! writes X in `e` once `e + 1` is open, and the copy contains everything acknowledged in `e`.
//!
//! *The copy is the same whichever mover makes it.* Only a chosen value is installed, and only one value is chosen. Ballot
//! and content are equal at all acceptors that installed it.
//!
//! *A register created in `e + 1` cannot hide its copy.* Nothing is served in `e + 1` before rmw-H6, and rmw-H6 comes after rmw-H5 for
//! every name. So each copy is then the vote of a majority, and every quorum meets it. An acceptor outside of that majority that opens
//! without the copy merely lags behind.
//!
//! *Movers with different names.* Movers see different fenced majorities F1 and F2, so X may be in the names of the second only. Then X
//! has no chosen value in `e` (as shown above, from F1), so no write to it was acknowledged, and nothing of it was read. The second mover
//! may choose a final value with a vote that never counted, and install it at some acceptors that are not open yet. In `e + 1`, this is a
//! vote of a minority at the lowest ballot, for a write whose caller got no answer. Like any such write, it may take effect later or
//! never. An open acceptor accepts no copies.
//!
//! *A mover that dies* leaves either a group that serves (before rmw-H2), or a group in which some node soon finds a final value or a
//! fence. That node waits for [`Options::roll_forward_after`] and then performs rmw-H2–rmw-H6 itself; the root register names the next
//! group. A node that finds an acceptor that does not know yet that its group is open notifies it.
//!
//! *A mover that gives up* remembers up to which name it came, and a later attempt on its node continues there. Take a name up to that
//! one. If the fenced majority of its page did not list it, then nothing is chosen for it in `e`, now or later. If the page listed it, its
//! final value is chosen, and its copy is durable on a majority of `e + 1` (or it was never written). Neither can change, whatever rival
//! movers do, and a register that is created after the fence is not in `e` at all. For the same reason, a mover may list each page from
//! another fenced majority, and at any time.
//!
//! *Chains of hand-overs.* Like every register of `e + 1`, its root register is served only after rmw-H6. So the next hand-over begins
//! only when this one is complete, and an acceptor has at most two groups.

mod acceptor;
mod ballot;
mod checkpoint;
mod find_group;
mod group;
mod hand_over;
mod invariants;
mod keep_group;
mod late;
mod list;
mod membership;
pub mod message;
pub mod mutants;
mod plugin;
mod proposer;
mod read;
mod registers;
mod remains;
pub mod roles;
mod round;
mod state;
#[cfg(feature = "testing")]
mod testing;
mod write;

pub use acceptor::{Acceptor, DEFAULT_CAPACITY_BYTES};
pub use ballot::{Ballot, ProposerId};
pub use group::{GroupConfig, InvalidGroup, KnownGroup, MAX_MEMBERS, Member};
pub use hand_over::HandOverError;
pub use keep_group::MOST_ACCEPTORS;
pub use plugin::RmwPlugin;
pub use registers::{MAX_OPEN_REGISTERS, Options, RmwRegisters};
pub use state::{REMEMBERED_WRITES, RegisterState};
