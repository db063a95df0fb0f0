//! Nodes in one process, over real sockets and files. One test program: each further one would build much of the node again.
#![allow(clippy::unwrap_used)]

mod backup;
mod cluster;
mod collect;
mod common;
mod database;
mod failed_start;
mod handles;
mod host;
mod keyspaces;
mod leaving;
mod moving;
mod own_log;
mod places;
mod plug_in;
mod policies;
mod rescue;
mod restored_grants;
