//! The simulator: whole clusters of the product's own code in one thread on virtual time, with faults of network, disk, clock and
//! process, and oracles outside of the product. One seed is one run: it replays to the same trace.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `world/` | hosts, network, disks, clocks, clients; the event loop |
//! | `oracle/` | what must hold |
//! | `workload/` | what clients and operators do |
//! | `scenario/` | clusters, loads and faults put together; one run of one seed |

pub mod coverage;
pub mod mutants;
pub mod oracle;
pub mod rng;
pub mod runner;
pub mod scenario;
pub mod workload;
pub mod world;
