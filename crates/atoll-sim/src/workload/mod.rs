//! What clients and operators do: procedures outside of the nodes, which report to the oracles what they asked and got.

pub mod again;
pub mod database;
pub mod delete;
pub mod late;
pub mod log;
pub mod membership;
pub mod native;
pub mod register;
pub mod tables;
pub mod zookeeper;
