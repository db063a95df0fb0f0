//! A register in the memory of one process: for clients of a log that nobody reconfigures.

use std::sync::{Arc, Mutex};

use atoll_contract::register::{Nonce, Register, RegisterError, Version, Versioned, Written};
use atoll_core::{BoxFuture, Env};
use atoll_corfu::log::{CorfuLog, id_of};
use atoll_corfu::{ClientOptions, Projection};
use bytes::Bytes;

use super::Error;
use crate::load::locked;

/// See the module documentation.
#[derive(Debug, Default)]
struct Shelf(Mutex<Versioned>);

impl Register for Shelf {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        let now = locked(&self.0).clone();
        Box::pin(std::future::ready(Ok(now)))
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        let mut now = locked(&self.0);
        let written = if now.version == expected {
            *now = Versioned { version: Version(expected.0 + 1), value, nonce };
            Written::Yes(now.version)
        } else {
            Written::Conflict(now.clone())
        };
        Box::pin(std::future::ready(Ok(written)))
    }
}

/// Returns a client of a log of its own. All clients of a log, in all processes, give it the same projection, of epoch 1.
pub async fn corfu_log(env: &Env, name: &str, projection: Projection) -> Result<CorfuLog, Error> {
    let register: Arc<dyn Register> = Arc::new(Shelf::default());
    let log = CorfuLog::new(env.clone(), id_of(name), register, ClientOptions::default());
    log.create(projection).await?;
    Ok(log)
}
