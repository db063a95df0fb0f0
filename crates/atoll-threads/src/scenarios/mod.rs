//! Threads as the product has them, around one piece each. Compiled once for the product and once for each bug: what is `super` here
//! has the pieces.

use super::{crowd as crowd_piece, inlet, key_range, port, queue, ready, ticket, versions, wake};

pub(crate) mod applier;
pub(crate) mod crowd;
pub(crate) mod host;
pub(crate) mod journal;
pub(crate) mod readers;
pub(crate) mod tickets;
pub(crate) mod views;
