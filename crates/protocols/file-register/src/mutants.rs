//! A known bug of registers in a file, for tests to inject, with the scenario of the simulator in which an oracle must find it.

atoll_core::mutants! {
    /// Registers in a file continue after a replacement with an unknown outcome.
    FILE_ANSWERS_AFTER_FAILURE = "FileAnswersAfterFailure", caught by ["file-registers"];
}
