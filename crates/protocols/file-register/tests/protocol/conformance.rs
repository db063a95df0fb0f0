//! Runs the conformance suite of registers on file registers.

use std::sync::Arc;

use atoll_contract::Registers;
use atoll_contract::conformance::{Driver, RegisterHarness, register};
use atoll_core::NodeId;
use atoll_file_register::{FileCell, FileRegisters};

struct InFile {
    driver: Driver,
    registers: Arc<FileRegisters>,
}

impl RegisterHarness for InFile {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }

    fn registers(&mut self, _client: NodeId) -> Arc<dyn Registers> {
        self.registers.clone()
    }
}

#[test]
fn registers_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let registers = FileRegisters::open(Box::new(FileCell::new(dir.path().join("registers")))).unwrap();
    let mut driver = Driver::new(1);
    driver.add_node(NodeId(1), |_| {});
    register::all(&mut InFile { driver, registers: Arc::new(registers) }, 0..5);
}
