//! Checks small configurations of protocols exhaustively, with the model checker stateright (decision 0020).
//!
//! The simulator plays random schedules of the product. Here, a model of one configuration is small enough for every schedule. Another
//! test compares the model's server with the real role, for every short sequence of requests, so that the model stays true.
//!
//! | file | what it is |
//! | --- | --- |
//! | `tests/exhaustive/corfu/unit.rs` | a storage unit of CORFU for one position, in the model |
//! | `tests/exhaustive/corfu/model.rs` | one append against two fillers and a reconfiguration, and what must hold |
//! | `tests/exhaustive/corfu/mod.rs` | explores the model, finds its planted bugs, compares the unit with the real one |
//! | `tests/exhaustive/scalog/log.rs` | Scalog's ordering log, with the product's own state machine |
//! | `tests/exhaustive/scalog/server.rs` | a storage server of Scalog, in the model |
//! | `tests/exhaustive/scalog/model.rs` | one append to a shard that ends, while another orderer takes over |
//! | `tests/exhaustive/scalog/properties.rs` | what must hold, and what must be reached |
//! | `tests/exhaustive/scalog/real.rs`, `mod.rs` | the real server; explores the model, finds its planted bugs, compares the server with the real one |
