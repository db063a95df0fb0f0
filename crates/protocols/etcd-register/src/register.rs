//! Registers in etcd: each is a key (`atoll-register-store`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Listed, Register, RegisterError, Registers};
use atoll_core::testing::mutant;
use atoll_core::{BoxFuture, Env};
use atoll_register_store::{Cell, CellRegisters, Cells, Fault, Listing, Options};
use bytes::Bytes;

use crate::client::Client;
use crate::etcd::Etcd;
use crate::mutants;
use crate::proto::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op};

/// How many keys one page of a listing has.
const PAGE: usize = 512;
/// The most registers below one prefix.
const MAX_REGISTERS: usize = 1 << 20;
/// The longest list of servers, in bytes.
const MAX_SERVERS_BYTES: usize = 1024;
/// The longest prefix, in bytes.
const MAX_PREFIX_BYTES: usize = 256;

/// Timeouts.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// How long an operation tries before it gives up.
    pub op_timeout: Duration,
    /// How long one request waits for its answer. Too small: a slow etcd never answers. Too large: a server that was stopped keeps
    /// operations from the others.
    pub request_timeout: Duration,
    /// How long about an operation waits before it tries again.
    pub retry: Duration,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        EtcdOptions {
            op_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            retry: Duration::from_millis(20),
        }
    }
}

/// Why registers cannot be where they were told to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The servers cannot be contacted as they are written.
    #[error("give the servers of etcd as HOST:PORT,HOST:PORT, without a scheme or a path")]
    Servers,
    /// No keys can begin like this.
    #[error("give a prefix such as /atoll, of names of letters, digits, '-', '_' and '.'")]
    Prefix,
}

/// Registers below one prefix of an etcd cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EtcdRegisters(CellRegisters<Keys>);

impl EtcdRegisters {
    /// Opens the registers below a prefix, such as `/atoll`, for the node of `env`. Two clusters of Atoll need different ones. Nothing is
    /// contacted yet.
    pub fn new(
        env: Env,
        etcd: Arc<dyn Etcd>,
        prefix: &str,
        options: &EtcdOptions,
    ) -> Result<Self, PlaceError> {
        if !is_prefix(prefix) {
            return Err(PlaceError::Prefix);
        }
        Ok(Self::below(env, etcd, prefix, options))
    }

    /// Opens the registers below a prefix that was checked.
    pub(crate) fn below(env: Env, etcd: Arc<dyn Etcd>, prefix: &str, options: &EtcdOptions) -> Self {
        let patience = Options { op_timeout: options.op_timeout, retry: options.retry };
        let keys = Keys { etcd, folder: format!("{prefix}/registers/") };
        EtcdRegisters(CellRegisters::new(env, keys, patience))
    }

    /// Opens the registers below a prefix of the cluster with these servers, which are given as `HOST:PORT,HOST:PORT`.
    pub fn connect(env: Env, servers: &str, prefix: &str, options: &EtcdOptions) -> Result<Self, PlaceError> {
        if !are_servers(servers) {
            return Err(PlaceError::Servers);
        }
        let client = Client::new(servers, options.request_timeout).ok_or(PlaceError::Servers)?;
        Self::new(env, Arc::new(client), prefix, options)
    }
}

/// Checks the servers and the prefix of a place.
pub(crate) fn check_place(servers: &str, prefix: &str) -> Result<(), PlaceError> {
    match (are_servers(servers), is_prefix(prefix)) {
        (false, _) => Err(PlaceError::Servers),
        (true, false) => Err(PlaceError::Prefix),
        (true, true) => Ok(()),
    }
}

fn are_servers(servers: &str) -> bool {
    let is_server = |server: &str| {
        let usable = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        let port = server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        server.chars().all(usable) && port.is_some_and(|(host, port)| !host.is_empty() && port > 0)
    };
    servers.len() <= MAX_SERVERS_BYTES && servers.split(',').all(is_server)
}

fn is_prefix(prefix: &str) -> bool {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = |name: &str| !["", ".", ".."].contains(&name) && name.chars().all(usable);
    let Some(names) = prefix.strip_prefix('/') else { return false };
    prefix.len() <= MAX_PREFIX_BYTES && names.split('/').all(is_name)
}

impl Registers for EtcdRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        self.0.register(name)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        self.0.list(prefix)
    }
}

/// The keys of registers, as cells. Their tag is the revision of their last change.
struct Keys {
    etcd: Arc<dyn Etcd>,
    /// What comes before the name of a cell.
    folder: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.folder, self.etcd)
    }
}

/// Returns the first key behind all that begin with the folder, which ends with '/': no other key is between them.
fn end_of(folder: &str) -> Bytes {
    let without = folder.strip_suffix('/').unwrap_or(folder);
    // '0' follows '/' in ASCII.
    Bytes::from(format!("{without}0"))
}

impl Keys {
    fn key(&self, name: &str) -> Bytes {
        Bytes::from(format!("{}{name}", self.folder))
    }

    async fn list_all(&self) -> Result<Listing, Fault> {
        let (mut listed, mut from) = (Vec::new(), self.key(""));
        loop {
            let page = self.etcd.range(RangeRequest {
                key: from,
                range_end: end_of(&self.folder),
                limit: PAGE as i64,
                keys_only: true,
                ..RangeRequest::default()
            });
            let page = page.await?;
            let Some(last) = page.kvs.last() else { return Ok(listed) };
            // The smallest key behind the last one.
            from = [&last.key[..], &[0]].concat().into();
            listed.extend(page.kvs.iter().filter_map(|kv| {
                // Keys of somebody else are no registers.
                let name = std::str::from_utf8(&kv.key).ok()?.strip_prefix(&self.folder)?;
                Some((name.to_owned(), u64::try_from(kv.mod_revision).ok().map(u128::from)))
            }));
            if !page.more {
                return Ok(listed);
            }
            if listed.len() > MAX_REGISTERS {
                return Err(Fault::Refused(format!("there are more than {MAX_REGISTERS} registers")));
            }
        }
    }
}

impl Cells for Keys {
    type Tag = i64;

    fn read(&self, name: &str) -> BoxFuture<'_, Result<Option<Cell<i64>>, Fault>> {
        let serializable = mutant(mutants::ETCD_STALE_READ);
        let range = RangeRequest { key: self.key(name), serializable, ..RangeRequest::default() };
        Box::pin(async move {
            let found = self.etcd.range(range).await?.kvs.pop();
            Ok(found.map(|kv| Cell { bytes: kv.value, tag: kv.mod_revision }))
        })
    }

    fn replace(&self, name: &str, expected: Option<i64>, bytes: Bytes) -> BoxFuture<'_, Result<bool, Fault>> {
        let key = self.key(name);
        let unchanged = Compare {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(compare::TargetUnion::ModRevision(expected.unwrap_or(0))),
        };
        let put = request_op::Request::RequestPut(PutRequest { key, value: bytes });
        let unchecked = expected.is_none() && mutant(mutants::ETCD_CREATES_UNCHECKED);
        let txn = TxnRequest {
            compare: if unchecked { Vec::new() } else { vec![unchanged] },
            success: vec![RequestOp { request: Some(put) }],
        };
        Box::pin(async move { Ok(self.etcd.txn(txn).await?.succeeded) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, Fault>> {
        Box::pin(self.list_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked_before_anything_is_contacted() {
        for servers in ["a:2379", "a:1,10.0.0.7:2,[::1]:3"] {
            assert!(are_servers(servers), "{servers:?}");
        }
        for servers in
            ["", "a", "a:", ":1", "a:0", "a:70000", "a:1,", "http://a:1", "a:1/atoll", "u@a:1", "a:1 b:2"]
        {
            assert!(!are_servers(servers), "{servers:?}");
        }
        assert!(is_prefix("/atoll") && is_prefix("/a/b.c-d_e"));
        for prefix in ["", "/", "atoll", "/atoll/", "/a//b", "/a/../b", "/a b"] {
            assert!(!is_prefix(prefix), "{prefix:?}");
        }
    }

    #[test]
    fn the_range_of_a_folder_has_its_keys_alone() {
        let (folder, end) = ("/atoll/registers/", end_of("/atoll/registers/"));
        let inside = |key: &str| (folder..).contains(&key) && key.as_bytes() < &end[..];
        assert!(inside("/atoll/registers/a") && inside("/atoll/registers/~"));
        assert!(!inside("/atoll/registers") && !inside("/atoll/registers0") && !inside("/atoll/registers."));
    }
}
