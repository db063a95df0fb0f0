//! ZooKeeper clients against the doors of simulated nodes.
//!
//! | file | what it is |
//! | --- | --- |
//! | `host.rs` | the product's door, run on virtual time |
//! | `socket.rs` | connections to it |
//! | `client.rs` | a client: its session, its connections, how it handles replies and events |
//! | `asks.rs` | the requests of clients |

mod asks;
pub mod client;
pub mod host;
pub mod socket;
