//! The load: clients and operators outside of the nodes, which report their requests and the answers to the oracles.

pub mod again;
pub mod backup;
pub mod crowd;
pub mod database;
pub mod delete;
pub mod elsewhere;
pub mod keyspace;
pub mod late;
pub mod leases;
pub mod log;
pub mod membership;
pub mod moves;
pub mod native;
pub mod positions;
pub mod register;
pub mod relapses;
pub mod shards;
pub mod striped;
pub mod surgery;
pub mod tables;
pub mod transfer_moves;
pub mod transfers;
pub mod zookeeper;
