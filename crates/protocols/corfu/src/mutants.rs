//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach. A bug without a scenario is found by a test of this crate.

use atoll_core::testing::Listed;

atoll_core::mutants! {
    /// A unit still serves the epoch before the one that it was sealed to.
    CORFU_C1 = "CorfuC1", caught by [];
    /// A writer that finds its own write on a later unit takes it for another's, and appends the entry again.
    CORFU_C2 = "CorfuC2", caught by [];
    /// The sequencer counts before it gives out a position, so position 0 stays a hole.
    CORFU_C4 = "CorfuC4", caught by [];
    /// A reader takes what the head alone has.
    CORFU_C6 = "CorfuC6", caught by [];
    /// A writer that loses its answer in the middle of a chain takes another position.
    CORFU_C7 = "CorfuC7", caught by [];
    /// The tail is what was written somewhere, whether all below it is complete or not.
    CORFU_C12 = "CorfuC12", caught by [];
    /// The unit counts only data as written when it says how far it was written.
    CORFU_C14 = "CorfuC14", caught by [];
    /// The epoch of a unit is not on its disk.
    CORFU_C16 = "CorfuC16", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[];
