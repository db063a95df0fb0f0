//! The parts of which the stages of an append are made: a bounded window, the callers that wait for room in it, and the groups in flight.
//!
//! An append passes several stages on its way to the disks. Each of them admits items in order, bounds what it holds, sends groups of
//! items to the next stage, and gets their results back. These parts do no I/O and know no clock, and this crate has no dependencies, so
//! that the client of a log uses the same parts as a node.
//!
//! | file | what it is |
//! | --- | --- |
//! | `pipeline.rs` | items that wait and groups in flight, in order; what is in doubt goes back to the front |
//! | `gate.rs` | the wait of the first item for room in the next stage |
//! | `load.rs` | what a window holds, and its bounds |
//! | `wait_list.rs` | callers that wait for room in a bounded window, in the order in which they came |
//! | `budget.rs` | a limit on the bytes that all users on a node hold together |
//! | `sync.rs` | the synchronization primitives for state that threads share |
//!
//! | stage | what it uses |
//! | --- | --- |
//! | the client's lane, `atoll-client/src/lane` | `Pipeline`, `Load`, `WaitList`; what is in doubt is sent again under the same names |
//! | the gRPC stream, `doors/log/src/append_stream.rs` | `Pipeline`, `Gate`, `Load` |
//! | the engine of the database, `atoll-db/src/engine/propose.rs`, `crowd.rs` | `Pipeline`, `Gate`, `Load`, `WaitList` |
//! | the lane of the virtual log, `atoll-log/src/virtual_log/lane` | `Pipeline`, `Load`, `WaitList`, `Budget`; what is in doubt is sent again under the same names |
//! | the orderer of a native Loglet, `protocols/native/src/sequencer` | `Load`, `Budget`. It is no `Pipeline`: each server is a cursor into one window, and an append is answered by offset, not by arrival |
//! | the store of a local Loglet, `protocols/local/src/appends.rs` | `Budget`; what is durable leaves its window |

pub mod budget;
pub mod gate;
pub mod load;
pub mod pipeline;
pub mod sync;
pub mod wait_list;

pub use budget::Budget;
pub use gate::Gate;
pub use load::{Bounds, Load};
pub use pipeline::{Cut, Pipeline};
pub use wait_list::{Place, WaitList};
