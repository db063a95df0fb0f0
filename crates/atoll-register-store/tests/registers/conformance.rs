//! Runs the conformance suite on registers over cells, and on registers that move between three stores while they are used.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use atoll_contract::Registers;
use atoll_contract::conformance::{Driver, RegisterHarness, register};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_register_store::{HOME, MovableRegisters, mutants};

use crate::cells::Memory;

const NODES: u32 = 3;

struct Harness {
    driver: Driver,
    stores: [Memory; 3],
    registers: BTreeMap<NodeId, Arc<dyn Registers>>,
    /// As a node sees them, if they move.
    movable: BTreeMap<NodeId, MovableRegisters>,
    faulty: bool,
}

impl Harness {
    fn new(moves: bool, faulty: bool) -> Self {
        let mut driver = Driver::new(5);
        let stores = [Memory::default(), Memory::default(), Memory::default()];
        let (mut registers, mut movable) = (BTreeMap::new(), BTreeMap::new());
        for node in (1..=NODES).map(NodeId) {
            let env = driver.add_node(node, |_| {});
            let [home, a, b] = [0, 1, 2].map(|at| Arc::new(stores[at].of(&env)) as Arc<dyn Registers>);
            if moves {
                let elsewhere = [("a".to_owned(), a), ("b".to_owned(), b)].into();
                let all = MovableRegisters::new(env, home, elsewhere).unwrap();
                movable.insert(node, all.clone());
                registers.insert(node, Arc::new(all) as Arc<dyn Registers>);
            } else {
                registers.insert(node, home);
            }
        }
        Harness { driver, stores, registers, movable, faulty }
    }
}

impl RegisterHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        self.registers[&client].clone()
    }

    fn disturb(&mut self, random: u64) {
        if self.faulty {
            let (late, unanswered) = if random.is_multiple_of(2) { (4, 8) } else { (0, 0) };
            self.stores.iter().for_each(|store| store.set_faults(late, unanswered));
        }
        let node = NodeId(1 + (random / 2 % u64::from(NODES)) as u32);
        let Some(all) = self.movable.get(&node).filter(|_| (random / 8).is_multiple_of(3)).cloned() else {
            return;
        };
        let to = [HOME, "a", "b"][(random / 32 % 3) as usize];
        let move_all = async move {
            for listed in all.list("random/").await.unwrap_or_default() {
                // Whether it moves is a matter of chance, with these faults.
                let _ = all.move_to(&listed.name, to).await;
            }
        };
        drop(self.driver.env(node).launch("move", move_all));
    }

    fn heal(&mut self) {
        self.stores.iter().for_each(|store| store.set_faults(0, 0));
    }
}

#[test]
fn registers_over_cells() {
    register::all(&mut Harness::new(false, false), 0..30);
}

#[test]
fn registers_over_cells_with_all_faults() {
    register::all(&mut Harness::new(false, true), 0..40);
}

/// A harness for each seed, so that what moves is the register of that seed.
fn moving(faulty: bool) {
    (0..60).for_each(|seed| register::random(&mut Harness::new(true, faulty), seed));
}

#[test]
fn registers_that_move() {
    register::all(&mut Harness::new(true, false), 0..3);
    moving(false);
}

#[test]
fn registers_that_move_with_all_faults() {
    moving(true);
}

/// Returns whether a check fails under a mutant. The mutant is that of this thread only.
fn caught(mutant: Mutant, check: impl FnOnce()) -> bool {
    set_mutant(mutant);
    let outcome = catch_unwind(AssertUnwindSafe(check));
    set_mutant(Mutant::NONE);
    outcome.is_err()
}

#[test]
fn a_register_that_forgets_its_first_attempt_is_caught() {
    let check = || (0..40).for_each(|seed| register::random(&mut Harness::new(false, true), seed));
    assert!(caught(mutants::REGISTER_FORGETS, check));
}

#[test]
fn a_register_that_arrives_again_is_caught() {
    assert!(caught(mutants::REGISTER_ARRIVES_AGAIN, || moving(true)));
}

#[test]
fn a_move_that_forgets_the_nonce_is_caught() {
    assert!(caught(mutants::REGISTER_MOVES_WITHOUT_NONCE, || moving(true)));
}
