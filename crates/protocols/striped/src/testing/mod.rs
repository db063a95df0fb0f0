//! What the tests of a whole cluster need of this protocol: its oracle. Only available with the feature `testing`.

mod oracle;

use atoll_contract::testing::Oracle;

/// Returns an oracle that has seen nothing yet.
pub(crate) fn oracle() -> Box<dyn Oracle> {
    Box::new(oracle::StripedOracle::default())
}
