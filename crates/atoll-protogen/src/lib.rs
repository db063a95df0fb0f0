//! The generator of `crates/atoll-client/src/generated`, which is the test of this crate: `tests/generated.rs`. It is not a test of
//! `atoll-client`, because it must also work while that crate does not compile, after a merge for example.
