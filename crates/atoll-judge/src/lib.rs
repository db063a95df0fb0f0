//! Judges histories of concurrent clients: is there an order of all operations that agrees with their answers and with real time
//! (linearizability), and did no session ever go back? Knows nothing of the product. The drill `histories.py` asks it beside porcupine.

pub mod history;
pub mod model;
pub mod search;
pub mod session;
pub mod verdict;
