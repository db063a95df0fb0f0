//! A known bug of file registers that tests can inject, with the scenario of the simulator in which an oracle must find it.

atoll_core::mutants! {
    /// File registers continue after a replacement with an unknown outcome.
    FILE_ANSWERS_AFTER_FAILURE = "FileAnswersAfterFailure", caught by ["file-registers"];
}
