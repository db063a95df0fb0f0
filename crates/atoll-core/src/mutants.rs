//! Known bugs of the foundation that all protocols share; tests inject them. Each names the scenarios of the simulator in which an oracle
//! must find it.

crate::mutants! {
    X1 = "X1", caught by ["crashes", "registers", "native", "local"];
    /// Nodes accept a data directory that was replaced by an older copy.
    WITNESS_FORGETS = "WitnessForgets", caught by ["put-back"];
    /// Of each node, only the data directory that was heard of last is remembered.
    WITNESS_ONE_DIRECTORY = "WitnessOneDirectory", caught by ["put-back"];
    LEVELS_WRITE_WHAT_THEY_READ = "LevelsWriteWhatTheyRead", caught by ["upgrade"];
}
