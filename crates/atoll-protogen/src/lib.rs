//! The generator of the folders `src/generated`, above all of that of `crates/atoll-client`. It is the test of this crate:
//! `tests/generated.rs`. It is not a test of `atoll-client`, because it must also work while that crate does not compile, after a merge for
//! example.
