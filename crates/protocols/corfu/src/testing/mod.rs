//! The oracle of the protocol. Only available with the feature `testing`.

mod oracle;

use atoll_contract::testing::Oracle;

/// Returns the oracle.
pub fn oracle() -> Box<dyn Oracle> {
    Box::new(oracle::CorfuOracle::default())
}
