//! Known bugs of registers in stores that others run, and of moves between them; tests inject them. The tests of this crate catch them all.

atoll_core::mutants! {
    /// A write to a register whose answer was lost is tried again under another nonce.
    REGISTER_FORGETS = "RegisterForgets", caught by [];
    /// The state of a register that moves is copied to its new place once more, over what was written there since.
    REGISTER_ARRIVES_AGAIN = "RegisterArrivesAgain", caught by ["chains"];
    /// A register that has moved does not know who wrote its value.
    REGISTER_MOVES_WITHOUT_NONCE = "RegisterMovesWithoutNonce", caught by [];
}
