//! The door and the tree. One test program: each further one would build much of the server again.
#![allow(clippy::unwrap_used)]

mod door;
mod tree;
