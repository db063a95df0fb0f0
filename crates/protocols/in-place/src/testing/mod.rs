//! What the tests of a whole cluster need of this protocol: its oracle, which checks the invariants on the wire. Only available with the
//! feature `testing`.

mod oracle;

use atoll_contract::testing::Oracle;

/// Returns an oracle that has seen nothing yet.
pub(crate) fn oracle() -> Box<dyn Oracle> {
    Box::new(oracle::InPlaceOracle::default())
}
