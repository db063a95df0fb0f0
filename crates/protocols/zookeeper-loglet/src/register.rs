//! Registers in an ensemble: the MetaStore of Delos on ZooKeeper (virtuallog §8).
//!
//! Each register is a znode with the state of RMWPaxos: version, value, and the nonces of the last writes. A write reads the znode, applies
//! the rules of RMWPaxos to the state, and replaces it if the znode is still at the version that was read. If the answer is lost, the next
//! read shows the nonce if the write was done. The version of the register is in the state, because only it starts at 0 for a register that
//! was never written.

use std::fmt;
use std::sync::Arc;

use atoll_contract::register::{MAX_NAME_BYTES, MAX_VALUE_BYTES, Unavailability};
use atoll_contract::{Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Encode, Env, Tick};
use atoll_rmwpaxos::RegisterState;
use bytes::{BufMut, Bytes, BytesMut};

use crate::ensemble::{Answer, Ensemble, Fault, Node, Op, Refusal, Request};
use crate::layout::prefixes;
use crate::loglet::ZooKeeperOptions;
use crate::mutants;

/// What is in the znode above the registers. Reading it checks that it exists and is what it should be.
const FORMAT: &[u8] = b"atoll registers 1";
/// Version of the format of a register.
const REGISTER_FORMAT: u8 = 1;
/// Bytes before the state: the version of the format, and a checksum.
const HEADER_BYTES: usize = 1 + 4;
/// How many znodes a listing reads at once.
const LIST_AT_ONCE: usize = 64;

/// Registers under one znode of an ensemble. Cheap to clone.
#[derive(Clone)]
pub struct ZooKeeperRegisters(Arc<Inner>);

struct Inner {
    env: Env,
    ensemble: Arc<dyn Ensemble>,
    /// The znode above the registers.
    folder: String,
    options: ZooKeeperOptions,
}

impl fmt::Debug for ZooKeeperRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeperRegisters({} in {:?})", self.0.folder, self.0.ensemble)
    }
}

/// Why a step failed.
enum Trouble {
    Fault(Fault),
    /// A znode does not hold a register, or holds one of a later version.
    Damaged(String),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Fault(fault)
    }
}

impl Trouble {
    fn unavailability(&self) -> Unavailability {
        match self {
            Trouble::Fault(Fault::Busy | Fault::Refused(_)) => Unavailability::Busy,
            Trouble::Fault(Fault::NotConnected | Fault::Lost) => Unavailability::NoQuorum,
            Trouble::Fault(Fault::Denied(_)) | Trouble::Damaged(_) => Unavailability::StorageFailed,
        }
    }

    /// Whether another attempt may succeed.
    fn may_pass(&self) -> bool {
        !matches!(self, Trouble::Fault(Fault::Denied(_)) | Trouble::Damaged(_))
    }
}

impl ZooKeeperRegisters {
    /// Opens the registers under `root` of an ensemble, for the node of `env`. Nothing is contacted yet.
    pub fn new(env: Env, ensemble: Arc<dyn Ensemble>, root: &str, options: ZooKeeperOptions) -> Self {
        ZooKeeperRegisters(Arc::new(Inner { env, ensemble, folder: format!("{root}/registers"), options }))
    }

    /// Opens the registers under `root` of the ensemble with these servers.
    pub fn connect(env: Env, connect: &str, root: &str, options: ZooKeeperOptions) -> Self {
        let ensemble = crate::session::Ensembles::default().ensemble(connect, options.session_timeout);
        Self::new(env, ensemble, root, options)
    }
}

/// Returns the name of a znode for the name of a register: everything but letters, digits, '-' and '_' is written as its bytes in
/// hexadecimal. Names that differ stay different.
fn to_child(name: &str) -> String {
    let mut child = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => child.push(byte.into()),
            _ => child.push_str(&format!(".{byte:02x}")),
        }
    }
    child
}

/// Returns the name of a register for the name of a znode. None for a znode that is no register.
fn to_name(child: &str) -> Option<String> {
    let mut name = Vec::with_capacity(child.len());
    let mut rest = child.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'.' {
            name.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        name.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    let name = String::from_utf8(name).ok()?;
    (to_child(&name) == child).then_some(name)
}

fn to_data(state: &RegisterState) -> Bytes {
    let state = state.to_bytes();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + state.len());
    out.put_u8(REGISTER_FORMAT);
    out.put_u32_le(crc32c::crc32c(&state));
    out.put_slice(&state);
    out.freeze()
}

fn to_state(node: &Node) -> Result<RegisterState, Trouble> {
    let damaged = |why: &str| Trouble::Damaged(why.to_owned());
    let Some((head, _)) = node.data.split_at_checked(HEADER_BYTES) else {
        return Err(damaged("a register is shorter than its header"));
    };
    if head[0] != REGISTER_FORMAT {
        return Err(damaged("a register has a format that this version does not read"));
    }
    let state = node.data.slice(HEADER_BYTES..);
    if head[1..] != crc32c::crc32c(&state).to_le_bytes() {
        return Err(damaged("the checksum of a register does not hold"));
    }
    RegisterState::read(&state).map_err(|error| Trouble::Damaged(error.to_string()))
}

impl Inner {
    fn path(&self, name: &str) -> String {
        format!("{}/{}", self.folder, to_child(name))
    }

    fn deadline(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }

    async fn ask(&self, requests: Vec<Request>) -> Vec<Result<Answer, Fault>> {
        let count = requests.len();
        let answers = self.env.within(self.options.round_timeout, self.ensemble.send(requests)).await;
        match answers {
            Ok(Ok(answers)) => answers,
            _ => vec![Err(Fault::Lost); count],
        }
    }

    /// Sends a request behind a write that checks the folder, so that its answer is not older than the call. Creates the folder if it does
    /// not exist.
    async fn ask_fresh(&self, request: Request) -> Result<Answer, Fault> {
        let exists = Op::Check { path: self.folder.clone(), version: 0 };
        let answers = self.ask(vec![Request::Write(vec![exists]), request]).await;
        let Ok([checked, answer]) = <[_; 2]>::try_from(answers) else { return Err(Fault::Lost) };
        match checked {
            Ok(_) => answer,
            Err(Fault::Refused(Refusal::Missing)) => {
                let mut folders = prefixes(&self.folder);
                folders.pop();
                let create = |path: String, data| Request::Write(vec![Op::Create { path, data }]);
                let mut requests: Vec<Request> =
                    folders.into_iter().map(|f| create(f, Bytes::new())).collect();
                requests.push(create(self.folder.clone(), Bytes::from_static(FORMAT)));
                match self.ask(requests).await.pop() {
                    // The caller tries again.
                    Some(Ok(_) | Err(Fault::Refused(Refusal::Exists))) => Err(Fault::Busy),
                    Some(Err(fault)) => Err(fault),
                    None => Err(Fault::Lost),
                }
            }
            Err(fault) => Err(fault),
        }
    }

    /// Reads a register, and the version of its znode; None if there is no znode.
    async fn look(&self, name: &str) -> Result<(RegisterState, Option<i32>), Trouble> {
        match self.ask_fresh(Request::Get(self.path(name))).await? {
            Answer::Node(None) => Ok((RegisterState::empty(), None)),
            Answer::Node(Some(node)) => Ok((to_state(&node)?, Some(node.version))),
            Answer::Written | Answer::Children(_) => Err(Fault::Lost.into()),
        }
    }

    /// Waits before another attempt. Returns false if there is none.
    async fn again(&self, until: Tick, trouble: &Trouble) -> bool {
        if let Trouble::Damaged(why) = trouble {
            tracing::error!(folder = self.folder, why, "a register is damaged");
        }
        if !trouble.may_pass() || self.env.now() >= until {
            return false;
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        true
    }

    async fn read(&self, name: &str) -> Result<Versioned, RegisterError> {
        check_name(name)?;
        let until = self.deadline();
        loop {
            match self.look(name).await {
                Ok((state, _)) => return Ok(state.versioned()),
                Err(trouble) => {
                    if !self.again(until, &trouble).await {
                        return Err(RegisterError::NotWritten(trouble.unavailability()));
                    }
                }
            }
        }
    }

    async fn write_if(
        &self,
        name: &str,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> Result<Written, RegisterError> {
        check_name(name)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(RegisterError::TooLarge(value.len()));
        }
        let until = self.deadline();
        // Whether the answer to an attempt was lost, so that it may be done or may still be done.
        let mut unknown = false;
        loop {
            let forgets = unknown && mutant(mutants::ZOOKEEPER_REGISTER_FORGETS);
            let nonce = if forgets { Nonce(self.env.random().into()) } else { nonce };
            let trouble = match self.attempt(name, expected, &value, nonce).await {
                Ok(written) => return written,
                Err((trouble, lost)) => {
                    unknown |= lost;
                    trouble
                }
            };
            if !self.again(until, &trouble).await {
                let why = trouble.unavailability();
                return Err(if unknown {
                    RegisterError::Unknown(why)
                } else {
                    RegisterError::NotWritten(why)
                });
            }
        }
    }

    /// Tries a write once. The error says whether the attempt may be done nevertheless.
    async fn attempt(
        &self,
        name: &str,
        expected: Version,
        value: &Bytes,
        nonce: Nonce,
    ) -> Result<Result<Written, RegisterError>, (Trouble, bool)> {
        let (base, version) = self.look(name).await.map_err(|trouble| (trouble, false))?;
        let (state, written) = match base.write_if(expected, value, nonce) {
            (state, Some(written)) => (state, written),
            // As in RMWPaxos: after too many later writes, the outcome is unknown.
            (_, None) => return Ok(Err(RegisterError::Unknown(Unavailability::Busy))),
        };
        let Some(state) = state else { return Ok(Ok(written)) };
        let (path, data) = (self.path(name), to_data(&state));
        let op = match version {
            Some(_) => Op::Set { path, data, version },
            None => Op::Create { path, data },
        };
        match self.ask(vec![Request::Write(vec![op])]).await.pop() {
            Some(Ok(_)) => Ok(Ok(written)),
            Some(Err(fault)) => {
                hit("zookeeper.register_again");
                let lost = fault == Fault::Lost;
                Err((fault.into(), lost))
            }
            None => Err((Fault::Lost.into(), true)),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RegisterError> {
        let until = self.deadline();
        loop {
            match self.list_once(prefix).await {
                Ok(listed) => return Ok(listed),
                Err(trouble) => {
                    if !self.again(until, &trouble).await {
                        return Err(RegisterError::NotWritten(trouble.unavailability()));
                    }
                }
            }
        }
    }

    async fn list_once(&self, prefix: &str) -> Result<Vec<Listed>, Trouble> {
        let Answer::Children(Some(children)) = self.ask_fresh(Request::Children(self.folder.clone())).await?
        else {
            return Err(Fault::Lost.into());
        };
        let mut names: Vec<String> = children.iter().filter_map(|child| to_name(child)).collect();
        names.retain(|name| name.starts_with(prefix));
        names.sort_unstable();
        let mut listed = Vec::with_capacity(names.len());
        for some in names.chunks(LIST_AT_ONCE) {
            let requests = some.iter().map(|name| Request::Get(self.path(name))).collect();
            for (name, answer) in some.iter().zip(self.ask(requests).await) {
                let Answer::Node(Some(node)) = answer? else { continue };
                listed.push(Listed {
                    name: name.clone(),
                    mark: u64::try_from(node.mzxid).ok().map(u128::from),
                });
            }
        }
        Ok(listed)
    }
}

fn check_name(name: &str) -> Result<(), RegisterError> {
    let usable = (1..=MAX_NAME_BYTES).contains(&name.len());
    if usable { Ok(()) } else { Err(RegisterError::InvalidName(name.len())) }
}

impl Registers for ZooKeeperRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(ZooKeeperRegister { registers: self.clone(), name: name.to_owned() })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.0.list(&prefix).await })
    }
}

#[derive(Debug)]
struct ZooKeeperRegister {
    registers: ZooKeeperRegisters,
    name: String,
}

impl Register for ZooKeeperRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(self.registers.0.read(&self.name))
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(self.registers.0.write_if(&self.name, expected, value, nonce))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_znode_of_its_own() {
        for name in ["log", "a/b", "a.2fb", ".", "..", "ü", "%/ \u{1}", "zookeeper"] {
            let child = to_child(name);
            assert_eq!(to_name(&child).as_deref(), Some(name), "{child}");
            assert!(child != "." && child != ".." && !child.contains('/') && child.is_ascii());
        }
        for child in [".", ".2", ".zz", ".2F", ".61", "a b"] {
            assert_eq!(to_name(child), None, "{child:?} is the znode of no register");
        }
    }

    #[test]
    fn an_altered_register_is_refused() {
        let state = RegisterState { version: 1, value: "chain".into(), nonces: vec![7], moved: None };
        let data = to_data(&state);
        let node = |data: Bytes| Node { data, version: 0, mzxid: 1 };
        assert!(to_state(&node(data.clone())).is_ok_and(|read| read == state));
        for at in 0..data.len() {
            let mut altered = data.to_vec();
            altered[at] ^= 0x20;
            assert!(to_state(&node(altered.into())).is_err(), "byte {at}");
            assert!(to_state(&node(data.slice(..at))).is_err(), "the first {at} bytes");
        }
    }
}
