//! Oracles: what must hold, checked from outside of the product. They see what clients asked and got, frames on the wire and
//! records on disks, and share no code with what they judge but the message and record types.

pub mod log;
pub mod register;
