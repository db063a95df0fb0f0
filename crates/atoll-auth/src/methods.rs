//! Every gRPC method of every door, and the right that it needs. A test compares the table with the descriptors of the API, and another one
//! tries it row by row.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::names::{Kind, Right};

/// What a caller needs for a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A certificate or a token, and no right: the answer says nothing of the cluster, or only what concerns the caller.
    Known,
    /// The same. The answer names only what the caller may read.
    Listed(Kind),
    /// A right on the cluster.
    Cluster(Right),
    /// A right on what the request names. On the database's log, the same right on the cluster.
    Named(Kind, Right),
    /// The right to read a log whose records the answer has. The records of the database's log are all data of the database, whatever
    /// ZooKeeper's access lists and other grants say, so they need the right to operate on the cluster.
    Records,
    /// A right on what each operation of the request names: to read for operations that read, to write for the others.
    Each(Kind),
}

impl Needs {
    /// Returns the right that it takes at least, if it takes one.
    pub fn right(self) -> Option<Right> {
        match self {
            Needs::Known | Needs::Listed(_) => None,
            Needs::Cluster(right) | Needs::Named(_, right) => Some(right),
            Needs::Records | Needs::Each(_) => Some(Right::Read),
        }
    }

    /// Returns the kind of what a request names, if it names anything.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Needs::Known | Needs::Listed(_) | Needs::Cluster(_) => None,
            Needs::Named(kind, _) | Needs::Each(kind) => Some(kind),
            Needs::Records => Some(Kind::Log),
        }
    }
}

/// A method of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// `package.Service/Method`.
    pub path: &'static str,
    /// What a caller needs for it.
    pub needs: Needs,
}

impl Method {
    /// Returns whether every use of it is an operation, which the audit log records.
    pub fn is_operation(&self) -> bool {
        self.needs.right() == Some(Right::Operate)
    }
}

const fn row(path: &'static str, needs: Needs) -> Method {
    Method { path, needs }
}

const READ: Needs = Needs::Cluster(Right::Read);
const OPERATE: Needs = Needs::Cluster(Right::Operate);
const LOG_READ: Needs = Needs::Named(Kind::Log, Right::Read);
const LOG_WRITE: Needs = Needs::Named(Kind::Log, Right::Write);
const LOG_OPERATE: Needs = Needs::Named(Kind::Log, Right::Operate);
const TABLE_READ: Needs = Needs::Named(Kind::Table, Right::Read);
const TABLE_OPERATE: Needs = Needs::Named(Kind::Table, Right::Operate);
const KEYSPACE_READ: Needs = Needs::Named(Kind::Keyspace, Right::Read);
const KEYSPACE_WRITE: Needs = Needs::Named(Kind::Keyspace, Right::Write);
const KEYSPACE_OPERATE: Needs = Needs::Named(Kind::Keyspace, Right::Operate);

/// All methods.
pub const METHODS: &[Method] = &[
    row("atoll.v1.LogService/CreateLog", LOG_OPERATE),
    row("atoll.v1.LogService/ListLogs", Needs::Listed(Kind::Log)),
    row("atoll.v1.LogService/DeleteLog", LOG_OPERATE),
    row("atoll.v1.LogService/Append", LOG_WRITE),
    row("atoll.v1.LogService/AppendStream", LOG_WRITE),
    row("atoll.v1.LogService/Read", Needs::Records),
    row("atoll.v1.LogService/CheckTail", LOG_READ),
    row("atoll.v1.LogService/Trim", LOG_OPERATE),
    row("atoll.v1.ChainService/Show", LOG_READ),
    row("atoll.v1.ChainService/Extend", LOG_OPERATE),
    row("atoll.v1.ChainService/Truncate", LOG_OPERATE),
    row("atoll.v1.ChainService/Modify", LOG_OPERATE),
    row("atoll.v1.ChainService/MoveChain", LOG_OPERATE),
    row("atoll.v1.ChainService/Operate", LOG_OPERATE),
    row("atoll.v1.PolicyService/Set", LOG_OPERATE),
    row("atoll.v1.PolicyService/Clear", LOG_OPERATE),
    row("atoll.v1.PolicyService/Show", LOG_READ),
    row("atoll.v1.PolicyService/DryRun", LOG_READ),
    row("atoll.v1.ClusterService/Status", READ),
    row("atoll.v1.ClusterService/NodeList", READ),
    row("atoll.v1.ClusterService/NodeAdd", OPERATE),
    row("atoll.v1.ClusterService/NodeDrain", OPERATE),
    row("atoll.v1.ClusterService/NodeRemove", OPERATE),
    row("atoll.v1.ClusterService/Levels", READ),
    row("atoll.v1.ClusterService/Upgrade", OPERATE),
    row("atoll.v1.DatabaseService/Status", READ),
    row("atoll.v1.DatabaseService/Scrub", OPERATE),
    row("atoll.v1.BackupService/Start", OPERATE),
    row("atoll.v1.BackupService/Stop", OPERATE),
    row("atoll.v1.BackupService/Status", READ),
    row("atoll.v1.BackupService/List", READ),
    row("atoll.v1.AuthService/Grant", OPERATE),
    row("atoll.v1.AuthService/Revoke", OPERATE),
    row("atoll.v1.AuthService/List", OPERATE),
    row("atoll.v1.AuthService/Check", Needs::Known),
    row("atoll.v1.AuthService/CreateToken", OPERATE),
    row("atoll.v1.AuthService/RevokeToken", OPERATE),
    row("atoll.v1.TableService/CreateTable", TABLE_OPERATE),
    row("atoll.v1.TableService/DropTable", TABLE_OPERATE),
    row("atoll.v1.TableService/ChangeTable", TABLE_OPERATE),
    row("atoll.v1.TableService/DescribeTable", TABLE_READ),
    row("atoll.v1.TableService/ListTables", Needs::Listed(Kind::Table)),
    row("atoll.v1.TableService/Get", TABLE_READ),
    row("atoll.v1.TableService/Transact", Needs::Each(Kind::Table)),
    row("atoll.v1.TableService/Scan", TABLE_READ),
    row("atoll.keyspace.v1.KeyspaceService/CreateKeyspace", KEYSPACE_OPERATE),
    row("atoll.keyspace.v1.KeyspaceService/ListKeyspaces", Needs::Listed(Kind::Keyspace)),
    row("atoll.keyspace.v1.KeyspaceService/DescribeKeyspace", KEYSPACE_READ),
    row("atoll.keyspace.v1.KeyspaceService/MoveKeyspace", KEYSPACE_OPERATE),
    row("atoll.keyspace.v1.KeyspaceService/DeleteKeyspace", KEYSPACE_OPERATE),
    row("atoll.keyspace.v1.KeyspaceService/Get", KEYSPACE_READ),
    row("atoll.keyspace.v1.KeyspaceService/Put", KEYSPACE_WRITE),
    row("atoll.keyspace.v1.KeyspaceService/Delete", KEYSPACE_WRITE),
    row("atoll.keyspace.v1.KeyspaceService/Operate", Needs::Each(Kind::Keyspace)),
    row("atoll.keyspace.v1.KeyspaceService/Transact", Needs::Each(Kind::Keyspace)),
    row("atoll.keyspace.v1.KeyspaceService/Keys", KEYSPACE_READ),
    row("atoll.keyspace.v1.KeyspaceService/Watch", KEYSPACE_READ),
    row("atoll.keyspace.v1.KeyspaceService/AcquireLease", KEYSPACE_WRITE),
    row("atoll.keyspace.v1.KeyspaceService/RenewLease", KEYSPACE_WRITE),
    row("atoll.keyspace.v1.KeyspaceService/ReleaseLease", KEYSPACE_WRITE),
    row("atoll.keyspace.v1.KeyspaceService/LeaseHolder", KEYSPACE_READ),
    row("atoll.corfu.v1.CorfuService/Append", LOG_WRITE),
    row("atoll.corfu.v1.CorfuService/Read", Needs::Records),
    row("atoll.corfu.v1.CorfuService/Fill", LOG_WRITE),
    row("atoll.corfu.v1.CorfuService/Trim", LOG_OPERATE),
    row("atoll.corfu.v1.CorfuService/Show", LOG_READ),
    row("atoll.corfu.v1.CorfuService/Replace", LOG_OPERATE),
    row("atoll.scalog.v1.ScalogService/Append", LOG_WRITE),
    row("atoll.scalog.v1.ScalogService/AppendToShard", LOG_WRITE),
    row("atoll.scalog.v1.ScalogService/ReadRecord", Needs::Records),
    row("atoll.scalog.v1.ScalogService/Subscribe", Needs::Records),
    row("atoll.scalog.v1.ScalogService/Trim", LOG_OPERATE),
    row("atoll.scalog.v1.ScalogService/Shards", LOG_READ),
    row("atoll.scalog.v1.ScalogService/AddShard", LOG_OPERATE),
    row("atoll.scalog.v1.ScalogService/FinalizeShard", LOG_OPERATE),
    row("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Needs::Known),
];

/// Returns the method with this path, if there is one.
pub fn method(path: &str) -> Option<&'static Method> {
    static BY_PATH: OnceLock<BTreeMap<&'static str, &'static Method>> = OnceLock::new();
    BY_PATH.get_or_init(|| METHODS.iter().map(|method| (method.path, method)).collect()).get(path).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_its_path_once() {
        for known in METHODS {
            assert_eq!(method(known.path), Some(known));
        }
        assert_eq!(method("atoll.v1.LogService/Nothing"), None);
    }
}
