//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// A unit still serves the epoch before the one that it was sealed to.
    CORFU_C1 = "CorfuC1", caught by ["corfu"];
    /// A writer that finds its own write on a later unit takes it for another's, and appends the entry again.
    CORFU_C2 = "CorfuC2", caught by ["corfu"];
    /// The sequencer counts before it gives out a position, so position 0 stays a hole.
    CORFU_C4 = "CorfuC4", caught by ["corfu"];
    /// A reader takes what the head alone has. Reads of a log only ask for positions below a tail, which are complete; those of single
    /// positions ask for others, too.
    CORFU_C6 = "CorfuC6", caught by ["corfu-positions"];
    /// A writer that loses its answer in the middle of a chain takes another position.
    CORFU_C7 = "CorfuC7", caught by ["corfu"];
    /// The tail is what was written somewhere, whether all below it is complete or not.
    CORFU_C12 = "CorfuC12", caught by ["corfu"];
    /// The unit counts only data as written when it says how far it was written. Holes at the end that were filled then become entries.
    CORFU_C14 = "CorfuC14", caught by ["corfu-positions"];
    /// The epoch of a unit is not on its disk.
    CORFU_C16 = "CorfuC16", caught by ["corfu"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("corfu: a writer finds its own write", &["corfu.append.mine"]),
    listed("corfu: a retry finds the positions of the first attempt", &["corfu.append.retry"]),
    listed("corfu: a check fills holes", &["corfu.check.fills"]),
    listed("corfu: a seal copies what only some units have", &["corfu.seal.copies"]),
    listed("corfu: readers pass junk", &["corfu.read.junk"]),
    listed("corfu: a unit that was away fetches what it lacks", &["corfu.back_fill"]),
];
