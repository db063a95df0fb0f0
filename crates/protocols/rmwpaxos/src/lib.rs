//! RMWPaxos: consensus registers in place. The MetaStore of the virtual log, and a register for whoever needs one.
//!
//! Source: Skrzypczak and Schintke, "Towards Log-Less, Fine-Granular RegisterState Machine Replication" (2020, §4.2), and the protocol
//! file `rmwpaxos` (§ and T numbers below are its). Each register is a group's *state*, not a log of commands: an acceptor keeps
//! one promise and one vote per register and overwrites them in place. A proposer reads the state of a majority, applies a
//! command, and has the result voted on. No leader, no log, no snapshot; registers do not wait for each other.
//!
//! Why not a Paxos instance per version, as the paper on Delos has it: `docs/decisions/0002-rmwpaxos-for-the-metastore.md`.
//!
//! | the paper's word | ours |
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
//! | §10 | listing | `list.rs` |
//! | §11 | invariants | `invariants.rs`; the rest in the oracles of the tests |
//!
//! # Departures
//!
//! - *Exactly once* (rmw-T2) by nonce, not by client and sequence number: a state remembers the nonces of its last
//!   [`REMEMBERED_WRITES`] writes. Versions bar a second application anyway; the nonces make the answer to a retry right. A
//!   retry that comes later still is told "unknown", never something wrong.
//! - A prepare carries no hint of a ballot; the request number serves rmw-T15 only, since calls and answers are matched below (rmw-T14).
//! - A move (§9a) does not write an unchosen vote through before it builds on it, for the fence bars that. What it builds is chosen
//!   together with that vote or not at all: safe for the same reason as rmw-W4, and nobody is answered from a final state.
//! - Registers are not deleted: there is no such operation, so nothing of rmw-T11 can go wrong. Only a hand-over drops them, from
//!   acceptors whose group is over for ever (rmw-H6) and that answer "moved": a laggard's older vote counts in no later group.
//! - Durability is always by fsync; there is no volatile flavour.
//!
//! # Hand-over of a group (§9a): the argument
//!
//! Group `e`, its successor `e + 1`. Steps of a mover; each is idempotent, and any number of movers may do them at once:
//!
//! - **rmw-H0** Ask the members of `e + 1` whether they are there, under the identities that it names; one that lost its disk ends the
//!   attempt. Only a courtesy to liveness: what rmw-H1 has chosen cannot be taken back.
//! - **rmw-H1** Choose `Moved{next}` in the reserved root register of `e`. A register chooses one final value, so `e` has one
//!   successor, whatever the movers want.
//! - **rmw-H2** Fence a majority of `e`, durably. From then on such an acceptor takes part in a register only if its last vote for it
//!   was not final, or if the value voted on is; it answers no other prepare, write or read of it, and no listing.
//! - **rmw-H3** Names := union of the names voted for at a fenced majority.
//! - **rmw-H4** For each name choose the final value `Moved{next, state}` through the register itself, in `e`.
//! - **rmw-H5** Install each state in `e + 1` at ballot `(1, genesis)`, durably on a majority. These acceptors serve nothing yet.
//! - **rmw-H6** Tell all that `e + 1` is open, durably on a majority of it. Acceptors then drop what they have of `e`, and answer
//!   "moved to `e + 1`" for ever. A proposer takes `e + 1` only from somebody who says that it is open, or has opened it.
//!
//! *No chosen value is missed.* Let X be a register that no acceptor of the fenced majority F of rmw-H3 had voted for at its fence.
//! The first vote of such an acceptor after that is a final one, by the rule of rmw-H2, and so is every later one: with a final
//! last vote only final values pass. So no non-final value of X was voted for in F, before or after, and none is ever chosen
//! in `e`; nor will a majority ever answer a reader that X is empty, since F will not. Turned round: whatever was chosen in
//! `e` is in the names. (It is not enough to shut out what was never voted for: a rival mover's final vote at one acceptor of F
//! would let an older proposal pass there, and the majority would be complete with acceptors outside of F.)
//!
//! *No value is chosen after the copy.* For X in the names a final value is chosen before it is installed. By rmw-I3 all that is
//! chosen later has it in, and proposers write nothing on top of it; a reader's majority meets its voters, so no majority agrees
//! on an older vote. Whoever finds a final value, chosen or not, is answered by the next group only. So nobody reads or
//! writes X in `e` once `e + 1` is open, and what was acknowledged in `e` is in the copy.
//!
//! *The copy is the same whoever makes it.* What is installed was chosen, and one value is chosen; ballot and content are
//! equal at all acceptors that installed it.
//!
//! *A register created in `e + 1` cannot hide its copy.* Nothing is served in `e + 1` before rmw-H6, and rmw-H6 comes after rmw-H5 for
//! every name: each copy is the vote of a majority then, and every quorum meets it. That an acceptor outside of that majority
//! opens without the copy makes it a laggard, no more.
//!
//! *Movers with different names.* Movers see different fenced majorities F1 and F2, so X may be in the names of the second only.
//! Then X has no chosen value in `e` (above, from F1), so nothing of it was acknowledged or read. The second mover may choose a
//! final value with a vote that never counted, and install it at some acceptors that are not open yet: in `e + 1` that is a
//! vote of a minority, at the lowest ballot, of a write whose caller was not answered; it may take effect later or never, as
//! any such write. An acceptor that is open takes no copies.
//!
//! *A mover that dies* leaves a group that serves (before rmw-H2), or one where somebody soon meets a final value or a fence. Who
//! does waits a little ([`Options::roll_forward_after`]) and then does rmw-H2–rmw-H6 himself; the root register says where to. Who meets
//! an acceptor that does not know yet that its group is open tells it so.
//!
//! *Chains of hand-overs.* The root register of `e + 1` is served as any other of its registers: after rmw-H6. So the next hand-over
//! begins when this one is complete, and an acceptor has two groups at most.

mod acceptor;
mod ballot;
mod checkpoint;
mod group;
mod hand_over;
mod invariants;
mod list;
mod membership;
pub mod message;
pub mod mutants;
mod proposer;
mod read;
mod registers;
pub mod roles;
mod round;
mod state;
mod write;

pub use acceptor::{Acceptor, DEFAULT_CAPACITY_BYTES};
pub use ballot::{Ballot, ProposerId};
pub use group::{GroupConfig, InvalidGroup, KnownGroup, MAX_MEMBERS, Member};
pub use hand_over::HandOverError;
pub use registers::{MAX_OPEN_REGISTERS, Options, RmwRegisters};
pub use state::{REMEMBERED_WRITES, RegisterState};
