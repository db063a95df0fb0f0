//! Real processes of this program. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod authorisation;
mod dev_cluster;
mod old_data;
mod one_node;
#[cfg(target_os = "linux")] // For /dev/full, to which every write fails.
mod outcomes;
mod support;
