//! Known bugs of the journal and of the cells that tests can switch on. Each names the scenarios of the simulator in which an oracle must
//! find it. Also lists the coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// A write of a cell overwrites both of its versions.
    CELLS_BOTH_VERSIONS = "CellsBothVersions", caught by ["cells"];
    /// Cells count as durable before their files are synced.
    CELLS_UNSYNCED = "CellsUnsynced", caught by ["cells"];
    /// Recovery takes lost, older and damaged cells as they are.
    CELL_LOSS_UNSEEN = "CellLossUnseen", caught by ["cells"];
    JOURNAL_LOSS_UNSEEN = "JournalLossUnseen", caught by ["lost-files"];
    NATIVE_T9 = "NativeT9", caught by ["crashes", "disks"];
}

/// The marks that a long run of the simulator must reach. A run that does not reach them does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("cells: lost files are missed", &["sim.fault.lost_files", "cells.recover.missing"]),
    listed("cells: a torn write is found", &["cells.recover.torn"]),
    listed("journal: lost files are missed", &["sim.fault.lost_files", "journal.recover.missing"]),
];
