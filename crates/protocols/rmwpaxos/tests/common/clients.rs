//! Clients: procedures on the nodes that read and write registers, and write down what they see.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::{Nonce, RegisterError, Registers, Version, Written};
use atoll_core::Env;
use atoll_rmwpaxos::RmwRegisters;
use bytes::Bytes;

use super::oracle::{Ask, History, Told};

pub type Shared = Arc<Mutex<History>>;

/// Reads and records it.
pub async fn read(registers: RmwRegisters, history: Shared, name: String) -> Option<u64> {
    let op = history.lock().unwrap().call(&name, Ask::Read);
    let result = registers.register(&name).read().await;
    history.lock().unwrap().returned(op, Told::Read(result.clone()));
    result.ok().map(|v| v.version.0)
}

/// Writes and records it.
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
    history.lock().unwrap().returned(op, Told::Written(result.clone()));
    result
}

/// What a client keeps when its node dies: it is somebody outside, who goes on when the node is back.
#[derive(Debug, Default)]
pub struct Memory {
    versions: Vec<u64>,
    /// The register that it was writing.
    writing: Option<usize>,
}

/// A client that does random things to a few registers until its node dies, and goes on where it was when that is back.
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
            // Few values, so that equal ones stand at different versions (rmw-T1).
            let value = Bytes::from(vec![b'a' + (env.random() % 2) as u8]);
            let nonce = u128::from(env.random()) << 64 | u128::from(env.random());
            for _ in 0..2 {
                let (r, h) = (registers.clone(), history.clone());
                match write(r, h, name.clone(), expected, value.clone(), nonce).await {
                    Ok(Written::Yes(v)) => memory.lock().unwrap().versions[i] = v.0,
                    Ok(Written::Conflict(v)) => memory.lock().unwrap().versions[i] = v.version.0,
                    // The same again: it must be answered as the first time.
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
