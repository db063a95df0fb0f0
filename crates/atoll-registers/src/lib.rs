//! Registers: versioned values with conditional write, behind the traits of `atoll_contract::register`.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `rmwpaxos/` | consensus registers in place, on the nodes themselves: the MetaStore |
//! | `file/` | registers of a single node in one file |
//! | `mutants.rs` | known bugs and coverage marks, for tests |

pub mod file;
pub mod mutants;
pub mod rmwpaxos;
