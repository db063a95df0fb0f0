//! The invariants of a loglet in a log service. They rest on one property of the service: of all publishes that expect the same newest
//! message of the log, at most one succeeds.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | service-S1 a message of entries follows the message that its writer knew as the newest, and begins where the entries below end | the condition of the publish (`append.rs`); checked wherever the log is followed (`known.rs`) |
//! | service-S2 no entries follow a seal | S1: whoever knows a seal appends nothing (`append.rs`) |
//! | service-S3 a tail counts only if everything below a message is known that was published after the question | `tail.rs` |
//! | service-S4 a publish without an answer is over once another message follows the one that it expects | `append.rs` |
//! | service-S5 the newest message of entries is never purged | `trim.rs` |
//! | service-S6 a stream is created by one request, which was answered before a chain names it | `provider.rs` |
//! | service-S7 an operation has one offset | an appender knows the operations from its floor up to the message that its publish expects |

use atoll_contract::Offset;
use atoll_core::invariant;

/// Checks that what is known only grows.
pub(crate) fn grows(before: Offset, after: Offset) {
    invariant!(before <= after, "the tail fell from {before} to {after} (service-S1)");
}
