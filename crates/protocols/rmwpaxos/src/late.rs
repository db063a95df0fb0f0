//! Registers that can be handed out before the node knows which group of acceptors holds them.

use std::sync::{Arc, Mutex, PoisonError};

use atoll_contract::register::Unavailability;
use atoll_contract::{
    ClusterRegisters, Holders, Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written,
};
use atoll_core::BoxFuture;
use bytes::Bytes;

use crate::RmwRegisters;

/// Registers whose group may not be known yet. Until [`LateRegisters::settle`], every operation fails and is certain not to have happened.
/// Clones are cheap and share the same state.
#[derive(Clone, Debug, Default)]
pub(super) struct LateRegisters(Arc<Mutex<Option<RmwRegisters>>>);

impl LateRegisters {
    /// Provides the registers once the group is known. Only the first call has an effect.
    pub(super) fn settle(&self, registers: RmwRegisters) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(registers);
    }

    /// Returns the registers, or None if the group is not known yet.
    pub(super) fn get(&self) -> Option<RmwRegisters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClusterRegisters for LateRegisters {
    fn holders(&self) -> Option<Holders> {
        let group = self.get()?.group();
        Some(Holders { epoch: group.epoch, nodes: group.members.iter().map(|m| m.node).collect() })
    }

    fn open_registers(&self) -> usize {
        self.get().map_or(0, |registers| registers.open_registers())
    }
}

impl Registers for LateRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(LateRegister { all: self.clone(), name: name.to_owned(), found: Mutex::default() })
    }

    fn sweep(&self) {
        if let Some(registers) = self.get() {
            registers.sweep();
        }
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            match self.get() {
                Some(registers) => registers.list(&prefix).await,
                None => Err(RegisterError::NotWritten(Unavailability::NoQuorum)),
            }
        })
    }
}

#[derive(Debug)]
struct LateRegister {
    all: LateRegisters,
    name: String,
    found: Mutex<Option<Arc<dyn Register>>>,
}

impl LateRegister {
    fn get(&self) -> Option<Arc<dyn Register>> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() {
            *found = self.all.get().map(|all| all.register(&self.name));
        }
        found.clone()
    }
}

impl Register for LateRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(async move {
            match self.get() {
                Some(register) => register.read().await,
                None => Err(RegisterError::NotWritten(Unavailability::NoQuorum)),
            }
        })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(async move {
            match self.get() {
                Some(register) => register.write_if(expected, value, nonce).await,
                None => Err(RegisterError::NotWritten(Unavailability::NoQuorum)),
            }
        })
    }
}
