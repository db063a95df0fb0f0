//! A simulator that runs whole clusters of the product's own code in one thread on virtual time, with faults of network, disk, clock and
//! process, and with oracles outside of the product. A seed always replays to the same trace.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `world/` | hosts, network, disks, clocks, clients; the event loop |
//! | `oracle/` | the oracles: what must hold |
//! | `workload/` | what clients and operators do |
//! | `scenario/` | combinations of cluster, load and faults; a run is one scenario with one seed |

pub mod coverage;
pub mod mutants;
pub mod oracle;
pub mod rng;
pub mod runner;
pub mod scenario;
pub mod seeds;
pub mod workload;
pub mod world;
