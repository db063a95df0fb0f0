//! A register for tests that need no group of registers.

use std::sync::Mutex;

use atoll_contract::register::*;
use atoll_core::BoxFuture;
use bytes::Bytes;

/// A register in the memory of the test.
#[derive(Debug, Default)]
pub struct Shelf(pub Mutex<Versioned>);

impl Register for Shelf {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        let now = self.0.lock().unwrap().clone();
        Box::pin(async move { Ok(now) })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        let mut now = self.0.lock().unwrap();
        let written = if now.version == expected {
            *now = Versioned { version: Version(expected.0 + 1), value, nonce };
            Written::Yes(now.version)
        } else {
            Written::Conflict(now.clone())
        };
        Box::pin(async move { Ok(written) })
    }
}
