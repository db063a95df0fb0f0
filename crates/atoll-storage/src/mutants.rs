//! Known bugs of the journal, for tests to put in, each with the scenarios of the simulator in which an oracle
//! must find it, and the coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    JOURNAL_LOSS_UNSEEN = "JournalLossUnseen", caught by ["lost-files"];
    NATIVE_T9 = "NativeT9", caught by ["crashes", "disks"];
}

/// What a long run of the simulator must have reached: a run that never gets there does not test what it is meant to.
pub const COVERAGE: &[Listed] =
    &[listed("journal: lost files are missed", &["sim.fault.lost_files", "journal.recover.missing"])];
