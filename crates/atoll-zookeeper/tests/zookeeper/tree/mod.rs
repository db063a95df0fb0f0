//! The tree: its records, and what replicas make of them.

mod config;
mod import;
mod jute;
mod quota;
mod replicas;
mod restore;
mod sessions;
mod support;
mod weight;
mod znodes;
