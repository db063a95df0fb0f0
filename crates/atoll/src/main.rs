//! The Atoll binary.
fn main() {}
