//! ZooKeeper clients against the doors of simulated nodes.
//!
//! | file | what it is |
//! | --- | --- |
//! | `host.rs` | the product's door, run on virtual time |
//! | `socket.rs` | connections to it |
//! | `client.rs` | a client: its session, its connections, what it does with replies and events |
//! | `asks.rs` | what clients ask for |

mod asks;
pub mod client;
pub mod host;
pub mod socket;
