//! What the tests of a whole cluster need of this protocol: its oracle. Only available with the feature `testing`.
//!
//! | file | what it is |
//! | --- | --- |
//! | `oracle.rs` | checks the invariants on the wire and on disks |
//! | `ghost.rs` | one Loglet, as far as it shows outside |
//! | `gaps.rs` | what servers lack, native-N7 |

mod gaps;
mod ghost;
mod oracle;

use atoll_contract::testing::Oracle;

/// Returns an oracle that has seen nothing yet.
pub(crate) fn oracle() -> Box<dyn Oracle> {
    Box::new(oracle::NativeOracle::default())
}
