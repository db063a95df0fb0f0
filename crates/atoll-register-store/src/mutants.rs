//! Known bugs of registers in stores that others run, and of moves between them; tests inject them. The simulator has no such registers,
//! so the tests of the crates that use them must catch these.

atoll_core::mutants! {
    /// A write to a register whose answer was lost is tried again under another nonce.
    REGISTER_FORGETS = "RegisterForgets", caught by [];
    /// The state of a register that moves is copied to its new place once more, over what was written there since.
    REGISTER_ARRIVES_AGAIN = "RegisterArrivesAgain", caught by [];
    /// A register that has moved does not know who wrote its value.
    REGISTER_MOVES_WITHOUT_NONCE = "RegisterMovesWithoutNonce", caught by [];
}
