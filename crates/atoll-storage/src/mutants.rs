//! Known bugs of the journal that tests can switch on. Each names the scenarios of the simulator in which an oracle must find it. Also
//! lists the coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    JOURNAL_LOSS_UNSEEN = "JournalLossUnseen", caught by ["lost-files"];
    NATIVE_T9 = "NativeT9", caught by ["crashes", "disks"];
}

/// The marks that a long run of the simulator must reach. A run that does not reach them does not test what it should.
pub const COVERAGE: &[Listed] =
    &[listed("journal: lost files are missed", &["sim.fault.lost_files", "journal.recover.missing"])];
