//! The journal and the cells, on disks in memory and in real directories. One test program: each further one would build much of the
//! same code again.
#![allow(clippy::unwrap_used)]

mod cells;
mod common;
mod direct;
mod forged;
mod format;
mod full;
mod lost;
mod model;
mod real;
mod rot;
mod space;
