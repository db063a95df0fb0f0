//! Scenarios: threads that use one piece each, as the product does. This module is compiled once for the product and once for each
//! bug; `super` contains the pieces.

use super::{
    crowd as crowd_piece, inlet, parking as parking_piece, port, queue, ready, ticket, versions, wake,
};

pub(crate) mod applier;
pub(crate) mod crowd;
pub(crate) mod host;
pub(crate) mod journal;
pub(crate) mod parking;
pub(crate) mod readers;
pub(crate) mod tickets;
pub(crate) mod views;
