//! The virtual log. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod chain;
mod changes;
mod common;
mod conformance;
mod delete;
mod full_registers;
mod long_chain;
mod pages;
mod scenario;
mod searches;
mod surgery;
mod unordered;
mod virtual_log;
