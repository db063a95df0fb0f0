//! Registers in memory.

use std::sync::Arc;

use bytes::Bytes;

use atoll_core::BoxFuture;

use super::At;
use atoll_contract::register::Unavailability;
use atoll_contract::register::{
    Listed, MAX_VALUE_BYTES, Nonce, Register, RegisterError, Registers, Version, Versioned, Written,
};
use atoll_core::sync::lock;

/// Creates registers in memory.
#[derive(Debug)]
pub struct MemoryRegisters(pub(super) At);

#[derive(Debug)]
struct MemoryRegister {
    at: At,
    name: String,
}

impl Registers for MemoryRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(MemoryRegister { at: self.0.clone(), name: name.to_owned() })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            self.0.step().await;
            let s = lock(&self.0.servers.state);
            let written =
                s.cells.iter().filter(|(n, c)| c.now.version > Version(0) && n.starts_with(&prefix));
            Ok(written.map(|(n, c)| Listed { name: n.clone(), mark: Some(c.now.nonce.0) }).collect())
        })
    }
}

impl Register for MemoryRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(async move {
            self.at.step().await;
            if self.at.is_cut_off() || self.at.chance(|f| f.register_down) {
                return Err(RegisterError::NotWritten(Unavailability::NoQuorum));
            }
            let now = lock(&self.at.servers.state).cells.entry(self.name.clone()).or_default().now.clone();
            self.at.step().await;
            Ok(now)
        })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(async move {
            if value.len() > MAX_VALUE_BYTES {
                return Err(RegisterError::TooLarge(value.len()));
            }
            self.at.step().await;
            if self.at.is_cut_off() || self.at.chance(|f| f.register_down) {
                return Err(RegisterError::NotWritten(Unavailability::NoQuorum));
            }
            let lost = self.at.chance(|f| f.register_unknown);
            if lost && self.at.env.random().is_multiple_of(2) {
                return Err(RegisterError::Unknown(Unavailability::NoQuorum));
            }
            let done = {
                let mut s = lock(&self.at.servers.state);
                let is_full = s.faults.registers_full;
                let cell = s.cells.entry(self.name.clone()).or_default();
                if is_full && cell.now.version == Version(0) {
                    return Err(RegisterError::NotWritten(Unavailability::DiskFull));
                }
                // Old nonces are not remembered. A writer that asks later finds its nonce in the chains that followed.
                let remembered = |v: &&Version| v.0 + 1 >= cell.now.version.0;
                if let Some(version) = cell.written.get(&nonce.0).filter(remembered) {
                    Written::Yes(*version)
                } else if cell.now.version == expected {
                    let version = Version(expected.0 + 1);
                    cell.now = Versioned { version, value, nonce };
                    cell.written.insert(nonce.0, version);
                    Written::Yes(version)
                } else {
                    Written::Conflict(cell.now.clone())
                }
            };
            self.at.step().await;
            if lost { Err(RegisterError::Unknown(Unavailability::NoQuorum)) } else { Ok(done) }
        })
    }
}
