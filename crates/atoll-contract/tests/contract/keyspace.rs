//! The reference implementation of a keyspace passes the conformance suite.

use std::sync::Arc;

use atoll_contract::Keyspace;
use atoll_contract::conformance::{Driver, KeyspaceHarness, keyspace};
use atoll_contract::keyspace::MemoryKeyspace;
use atoll_core::NodeId;

struct Reference {
    driver: Driver,
    keyspace: MemoryKeyspace,
}

impl KeyspaceHarness for Reference {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        vec![NodeId(1), NodeId(2)]
    }

    fn keyspace(&mut self, _client: NodeId) -> Arc<dyn Keyspace> {
        Arc::new(self.keyspace.clone())
    }
}

#[test]
fn the_reference_passes_the_suite() {
    let mut driver = Driver::new(1);
    for node in [NodeId(1), NodeId(2)] {
        driver.add_node(node, |_| {});
    }
    keyspace::all(&mut Reference { driver, keyspace: MemoryKeyspace::new() }, 0..20);
}
