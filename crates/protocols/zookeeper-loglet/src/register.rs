//! Registers in an ensemble: the MetaStore of Delos on ZooKeeper (virtuallog §8). Each is a znode (`atoll-register-store`).

use std::fmt;
use std::sync::Arc;

use atoll_contract::register::Unavailability;
use atoll_contract::{Listed, Register, RegisterError, Registers};
use atoll_core::{BoxFuture, Env};
use atoll_register_store::{Cell, CellRegisters, Cells, Fault as CellFault, Listing, Options};
use bytes::Bytes;

use crate::ensemble::{Answer, Ensemble, Fault, Node, Op, Refusal, Request};
use crate::layout::prefixes;
use crate::loglet::ZooKeeperOptions;

/// What is in the znode above the registers. Reading it checks that it exists and is what it should be.
const FORMAT: &[u8] = b"atoll registers 1";
/// How many znodes a listing reads at once.
const LIST_AT_ONCE: usize = 64;

/// Registers under one znode of an ensemble. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ZooKeeperRegisters(CellRegisters<Znodes>);

impl ZooKeeperRegisters {
    /// Opens the registers under `root` of an ensemble, for the node of `env`. Nothing is contacted yet.
    pub fn new(env: Env, ensemble: Arc<dyn Ensemble>, root: &str, options: ZooKeeperOptions) -> Self {
        let of_registers = Options { op_timeout: options.op_timeout, retry: options.retry };
        let znodes = Znodes { env: env.clone(), ensemble, folder: format!("{root}/registers"), options };
        ZooKeeperRegisters(CellRegisters::new(env, znodes, of_registers))
    }

    /// Opens the registers under `root` of the ensemble with these servers.
    pub fn connect(env: Env, connect: &str, root: &str, options: ZooKeeperOptions) -> Self {
        let ensemble = crate::session::Ensembles::default().ensemble(connect, options.session_timeout);
        Self::new(env, ensemble, root, options)
    }
}

impl Registers for ZooKeeperRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        self.0.register(name)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        self.0.list(prefix)
    }
}

/// The znodes of registers, as cells. Their tag is the version of their data.
struct Znodes {
    env: Env,
    ensemble: Arc<dyn Ensemble>,
    /// The znode above the registers.
    folder: String,
    options: ZooKeeperOptions,
}

impl fmt::Debug for Znodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.folder, self.ensemble)
    }
}

fn to_cell_fault(fault: Fault) -> CellFault {
    match fault {
        Fault::Busy | Fault::Refused(_) => CellFault::Passing(Unavailability::Busy),
        Fault::NotConnected => CellFault::Passing(Unavailability::NoQuorum),
        Fault::Lost => CellFault::NoAnswer,
        Fault::Denied(why) => CellFault::Refused(why),
    }
}

impl Znodes {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
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

    async fn read_one(&self, path: String) -> Result<Option<Node>, Fault> {
        match self.ask_fresh(Request::Get(path)).await? {
            Answer::Node(node) => Ok(node),
            Answer::Written | Answer::Children(_) => Err(Fault::Lost),
        }
    }

    async fn replace_one(&self, path: String, expected: Option<i32>, data: Bytes) -> Result<bool, Fault> {
        let op = match expected {
            Some(version) => Op::Set { path, data, version: Some(version) },
            None => Op::Create { path, data },
        };
        match self.ask(vec![Request::Write(vec![op])]).await.pop() {
            Some(Ok(_)) => Ok(true),
            Some(Err(Fault::Refused(_))) => Ok(false),
            Some(Err(fault)) => Err(fault),
            None => Err(Fault::Lost),
        }
    }

    async fn list_all(&self) -> Result<Listing, Fault> {
        let Answer::Children(Some(names)) = self.ask_fresh(Request::Children(self.folder.clone())).await?
        else {
            return Err(Fault::Lost);
        };
        let mut listed = Vec::with_capacity(names.len());
        for some in names.chunks(LIST_AT_ONCE) {
            let requests = some.iter().map(|name| Request::Get(self.path(name))).collect();
            for (name, answer) in some.iter().zip(self.ask(requests).await) {
                let Answer::Node(Some(node)) = answer? else { continue };
                listed.push((name.clone(), u64::try_from(node.mzxid).ok().map(u128::from)));
            }
        }
        Ok(listed)
    }
}

impl Cells for Znodes {
    type Tag = i32;

    fn read(&self, name: &str) -> BoxFuture<'_, Result<Option<Cell<i32>>, CellFault>> {
        let path = self.path(name);
        Box::pin(async move {
            let node = self.read_one(path).await.map_err(to_cell_fault)?;
            Ok(node.map(|node| Cell { bytes: node.data, tag: node.version }))
        })
    }

    fn replace(
        &self,
        name: &str,
        expected: Option<i32>,
        bytes: Bytes,
    ) -> BoxFuture<'_, Result<bool, CellFault>> {
        let path = self.path(name);
        Box::pin(async move { self.replace_one(path, expected, bytes).await.map_err(to_cell_fault) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, CellFault>> {
        Box::pin(async move { self.list_all().await.map_err(to_cell_fault) })
    }
}
