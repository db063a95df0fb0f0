//! Known bugs of the ground that all protocols stand on, for tests to put in, each with the scenarios of the simulator in which an
//! oracle must find it.

crate::mutants! {
    X1 = "X1", caught by ["crashes", "registers", "native", "local"];
    /// Nodes take in a data directory that was put back from an older copy.
    WITNESS_FORGETS = "WitnessForgets", caught by ["put-back"];
    LEVELS_WRITE_WHAT_THEY_READ = "LevelsWriteWhatTheyRead", caught by ["upgrade"];
}
