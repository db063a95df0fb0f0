//! Tests of loglets in a log service: over memory, with and without faults, and over a real server.
#![allow(clippy::unwrap_used)]
// Real servers, threads and time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod conformance;
mod damage;
mod harness;
mod known_bugs;
mod server;
