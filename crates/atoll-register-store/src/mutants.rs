//! Known bugs of registers in stores that others run; tests inject them. The simulator has no such registers, so the tests of the crates that
//! use them must catch these.

atoll_core::mutants! {
    /// A write to a register whose answer was lost is tried again under another nonce.
    REGISTER_FORGETS = "RegisterForgets", caught by [];
}
