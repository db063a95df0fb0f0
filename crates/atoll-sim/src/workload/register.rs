//! Clients of registers: reads and conditional writes through any node. After an unknown outcome, a client retries at another node with the
//! same nonce.

use std::time::Duration;

use atoll_contract::{Nonce, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::NodeId;
use atoll_rmwpaxos::{Member, RmwRegisters};
use bytes::Bytes;

use crate::scenario::parts::Handles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;

/// The handles of a node that include registers.
pub trait HasRegisters: Clone + Send + 'static {
    /// The kind of registers.
    type Registers: Registers;

    /// Returns the registers.
    fn registers(&self) -> &Self::Registers;
}

impl HasRegisters for Handles {
    type Registers = RmwRegisters;

    fn registers(&self) -> &RmwRegisters {
        &self.registers
    }
}

/// The result of an attempt.
enum Attempt<T> {
    Answer(T),
    No,
    Unknown,
}

async fn read<H: HasRegisters>(life: &Life<H>, name: &str) -> Attempt<Versioned> {
    let register = life.handles.registers().register(name);
    match life.env.launch("client.read", async move { register.read().await }).await {
        Ok(Ok(got)) => Attempt::Answer(got),
        _ => Attempt::No,
    }
}

async fn write<H: HasRegisters>(
    life: &Life<H>,
    name: &str,
    expected: Version,
    value: Bytes,
    nonce: Nonce,
) -> Attempt<Written> {
    let register = life.handles.registers().register(name);
    let write =
        life.env.launch("client.write", async move { register.write_if(expected, value, nonce).await });
    match write.await {
        Ok(Ok(got)) => Attempt::Answer(got),
        Ok(Err(
            RegisterError::NotWritten(_) | RegisterError::TooLarge(_) | RegisterError::InvalidName(_),
        )) => Attempt::No,
        Ok(Err(RegisterError::Unknown(_))) | Err(_) => Attempt::Unknown,
    }
}

/// Reads and writes the registers `names` until the load is over.
pub async fn client<H: HasRegisters>(stage: Stage<H>, names: Vec<String>, think: Duration) {
    let mut at = stage.below(64) as usize;
    let mut seen: Vec<u64> = vec![0; names.len()];
    while !stage.over.is_up() {
        stage.pause(think).await;
        if stage.below(8) == 0 {
            at = stage.below(64) as usize;
        }
        let which = stage.below(names.len() as u64) as usize;
        if stage.below(3) == 0 {
            read_once(&stage, at, &names[which], &mut seen[which]).await;
        } else {
            write_once(&stage, &mut at, &names[which], &mut seen[which]).await;
        }
        stage.report();
    }
}

/// Reads once. Returns true if there was an answer.
pub async fn read_once<H: HasRegisters>(stage: &Stage<H>, at: usize, name: &str, seen: &mut u64) -> bool {
    let hosts = stage.cluster.hosts();
    let Some(life) = stage.cluster.any_from(at % hosts) else { return false };
    let asked = stage.oracles.register.read_begins(name);
    match read(&life, name).await {
        Attempt::Answer(got) => {
            *seen = got.version.0;
            stage.oracles.register.read_done(name, asked, &got);
            true
        }
        _ => false,
    }
}

/// Writes on the condition that the version last seen is still current. Retries an unknown outcome at another node. Returns true if it was
/// written.
pub async fn write_once<H: HasRegisters>(
    stage: &Stage<H>,
    at: &mut usize,
    name: &str,
    seen: &mut u64,
) -> bool {
    let hosts = stage.cluster.hosts();
    let nonce = Nonce(u128::from(stage.env.random()) << 64 | u128::from(stage.env.random()));
    let expected = Version(*seen);
    // There are only two values, so that a bug that compares values instead of ballots shows.
    let value = Bytes::from(vec![b'a' + stage.below(2) as u8; 8]);
    for attempt in 0..4 {
        let Some(life) = stage.cluster.any_from(*at % hosts) else { return false };
        let oracle = &stage.oracles.register;
        let asked = oracle.write_begins(name, nonce, expected, &value);
        match write(&life, name, expected, value.clone(), nonce).await {
            Attempt::Answer(got) => {
                *seen = match &got {
                    Written::Yes(version) => version.0,
                    Written::Conflict(other) => other.version.0,
                };
                oracle.write_done(name, asked, nonce, &got);
                return matches!(got, Written::Yes(_));
            }
            Attempt::No => {
                // A refusal tells the outcome of all attempts only if it answers the first one.
                if attempt == 0 {
                    oracle.write_refused(name, nonce);
                }
                return false;
            }
            Attempt::Unknown => *at = stage.below(64) as usize,
        }
        stage.pause(Duration::from_millis(20)).await;
    }
    false
}

/// Demands progress after everything was healed, once the group names no lost disk.
pub async fn demand(stage: Stage<Handles>, names: Vec<String>) {
    replace_lost(&stage).await;
    progress(stage, names).await;
}

/// Demands a write and a read of every register through every node.
pub async fn progress<H: HasRegisters>(stage: Stage<H>, names: Vec<String>) {
    for host in 0..stage.cluster.hosts() {
        for name in &names {
            stage.waits_for(format!("a write and a read of {name} through host {host}"));
            let mut seen = 0;
            let mut at = host;
            while !write_once(&stage, &mut at, name, &mut seen).await {
                read_once(&stage, host, name, &mut seen).await;
                at = host;
                stage.pause(Duration::from_millis(20)).await;
                stage.report();
            }
            while !read_once(&stage, host, name, &mut seen).await {
                stage.pause(Duration::from_millis(20)).await;
            }
            stage.report();
        }
    }
}

/// Hands over to a group without lost disks, if the current group names one.
async fn replace_lost(stage: &Stage<Handles>) {
    loop {
        let next = {
            let wire = stage.oracles.wire.lock();
            let Some(group) = wire.plugins.newest_group() else { return };
            let now = |node: NodeId| stage.cluster.storage(node.0 as usize - 1);
            let fine = group.members.iter().all(|m| now(m.node) == Some(m.storage));
            if fine && !wire.plugins.is_handing_over() {
                return;
            }
            let members = group.members.iter().map(|m| m.node);
            members.filter_map(|node| now(node).map(|storage| Member { node, storage })).collect::<Vec<_>>()
        };
        stage.waits_for("a group without lost disks".to_owned());
        if let Some(life) = stage.cluster.any_from(stage.below(64) as usize % stage.cluster.hosts()) {
            let _ = stage.cluster.ask(&life, life.handles.registers.hand_over(next)).await;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}
