//! Checks histories of concurrent clients. Is there an order of all operations that agrees with their answers and with real time
//! (linearizability)? Did no session see an older state after a newer one? The crate knows nothing about the product. The drill
//! `histories.py` uses it next to porcupine.

pub mod history;
pub mod model;
pub mod search;
pub mod session;
pub mod verdict;
