//! What the tests of a whole cluster need of this protocol: its oracle, which checks the invariants on the wire and on disks.
//! Only available with the feature `testing`.

mod oracle;

use atoll_contract::keyspace::{Layout, Replica};
use atoll_contract::testing::Oracle;

use crate::groups;

/// Returns an oracle that has seen nothing yet.
pub(crate) fn oracle() -> Box<dyn Oracle> {
    Box::new(oracle::BizurOracle::default())
}

/// Returns the groups of replicas of a keyspace of each of which a majority is needed: those that serve, and those from which they still
/// copy.
pub fn groups_of(layout: &Layout) -> Vec<Vec<Replica>> {
    let instances = groups::instances(layout).into_iter();
    instances.flat_map(|i| [Some(i.config), i.former]).flatten().map(|config| config.replicas).collect()
}
