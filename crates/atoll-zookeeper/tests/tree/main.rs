//! The tree: its records, and what replicas make of them. One test program: each further one would build much of the server again.
#![allow(clippy::unwrap_used)]

mod config;
mod import;
mod jute;
mod quota;
mod replicas;
mod restore;
mod sessions;
mod support;
mod tree;
mod weight;
