//! Registers in a store that others run, such as a ZooKeeper ensemble, etcd or an object store: the MetaStore of Delos elsewhere
//! (virtuallog §8).
//!
//! Such a store has *cells*: values by name, of which one is replaced on the condition that it is still the one that was read. Each
//! register is a cell with the state of RMWPaxos: version, value, and the nonces of the last writes. A write reads the cell, applies the
//! rules of RMWPaxos to the state, and replaces the cell. If the answer is lost, the next read shows the nonce if the write was done. The
//! version of the register is in the state, because the store counts in its own way.
//!
//! | file | what it is |
//! | --- | --- |
//! | `cells.rs` | what a store has to offer |
//! | `registers.rs` | registers over it |
//! | `format.rs` | the bytes of a cell, and its name |
//! | `movable.rs` | registers that move from one store to another while they are used |
//! | `store.rs` | one of these stores, and what is known of whether it answers |
//! | `placed.rs` | what is in the register of one store: a value, and where the register continues |
//! | `mutants.rs` | known bugs, for tests |

mod cells;
mod format;
mod movable;
pub mod mutants;
mod placed;
mod registers;
mod store;

pub use cells::{Cell, Cells, Fault, Listing};
pub use format::register_of;
pub use movable::{HOME, MovableRegisters, MoveError, Whereabouts};
pub use placed::Left;
pub use registers::{CellRegisters, Options};
