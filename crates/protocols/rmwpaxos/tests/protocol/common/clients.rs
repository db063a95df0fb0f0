//! Clients: procedures on the nodes that read and write registers, and record the results.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::{Nonce, RegisterError, Registers, Version, Written};
use atoll_core::Env;
use atoll_rmwpaxos::RmwRegisters;
use bytes::Bytes;

use super::oracle::{Ask, History, Returned};

pub type Shared = Arc<Mutex<History>>;

/// Reads a register and records the result.
pub async fn read(registers: RmwRegisters, history: Shared, name: String) -> Option<u64> {
    let op = history.lock().unwrap().call(&name, Ask::Read);
    let result = registers.register(&name).read().await;
    history.lock().unwrap().returned(op, Returned::Read(result.clone()));
    result.ok().map(|v| v.version.0)
}

/// Writes a register and records the result.
pub async fn write(
    registers: RmwRegisters,
    history: Shared,
    name: String,
    expected: u64,
    value: Bytes,
    nonce: u128,
) -> Result<Written, RegisterError> {
    let ask = Ask::Write { expected, value: value.clone(), nonce };
    let op = history.lock().unwrap().call(&name, ask);
    let result = registers.register(&name).write_if(Version(expected), value, Nonce(nonce)).await;
    history.lock().unwrap().returned(op, Returned::Written(result.clone()));
    result
}

/// What a client remembers when its node dies. The client is outside of the node, and continues when the node is back.
#[derive(Debug, Default)]
pub struct Memory {
    versions: Vec<u64>,
    /// The register that the client was writing.
    writing: Option<usize>,
}

/// Runs a client that performs random operations on a few registers until its node dies, and continues from its memory when the node is
/// back.
pub async fn busy(
    env: Env,
    registers: RmwRegisters,
    history: Shared,
    memory: Arc<Mutex<Memory>>,
    names: Vec<String>,
    pause: Duration,
) {
    memory.lock().unwrap().versions.resize(names.len(), 0);
    let mut unfinished = memory.lock().unwrap().writing.take();
    loop {
        let again = unfinished.take();
        let i = again.unwrap_or((env.random() % names.len() as u64) as usize);
        let name = names[i].clone();
        if again.is_none() && env.random().is_multiple_of(3) {
            if let Some(v) = read(registers.clone(), history.clone(), name).await {
                memory.lock().unwrap().versions[i] = v;
            }
        } else {
            let expected = memory.lock().unwrap().versions[i];
            memory.lock().unwrap().writing = Some(i);
            // Few values, so that equal ones occur at different versions (rmw-T1).
            let value = Bytes::from(vec![b'a' + (env.random() % 2) as u8]);
            let nonce = u128::from(env.random()) << 64 | u128::from(env.random());
            for _ in 0..2 {
                let (r, h) = (registers.clone(), history.clone());
                match write(r, h, name.clone(), expected, value.clone(), nonce).await {
                    Ok(Written::Yes(v)) => memory.lock().unwrap().versions[i] = v.0,
                    Ok(Written::Conflict(v)) => memory.lock().unwrap().versions[i] = v.version.0,
                    // Repeat the same write: its answer must match the first attempt.
                    Err(RegisterError::Unknown(_)) => continue,
                    Err(_) => {}
                }
                break;
            }
            memory.lock().unwrap().writing = None;
        }
        env.sleep(env.jitter(pause)).await;
    }
}
