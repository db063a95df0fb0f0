//! The oracle of the protocol. Only available with the feature `testing`.

pub mod oracle;

use atoll_contract::testing::Oracle;

/// Returns the oracle.
pub fn oracle() -> Box<dyn Oracle> {
    Box::new(oracle::ScalogOracle::default())
}
