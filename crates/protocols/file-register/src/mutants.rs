//! A known bug of registers in a file, for tests to put in, with the scenario of the simulator in which an oracle must find it.

atoll_core::mutants! {
    /// Registers in a file go on after a replacement whose outcome nobody knows.
    FILE_ANSWERS_AFTER_FAILURE = "FileAnswersAfterFailure", caught by ["file-registers"];
}
