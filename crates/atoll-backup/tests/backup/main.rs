//! Tests of backups over a store in memory, which may fail, and a log and a state that are made up.
#![allow(clippy::unwrap_used)]

mod faults;
mod lag;
mod read_back;
mod retention;
mod toy;
