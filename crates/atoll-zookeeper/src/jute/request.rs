//! All requests of clients, without their headers.

use super::codes::OpCode;
use super::records::Acl;
use super::transaction::{MultiReadRequest, MultiRequest};
use super::{Jute, JuteError, Reader, record};

record! {
    /// create, create2 and createContainer.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CreateRequest<'a> {
        /// The path. A number is appended if the mode is sequential; the reply contains the result.
        path: &'a str,
        /// Its data.
        data: Option<&'a [u8]>,
        /// The ACL of the new node.
        acl: Vec<Acl<'a>>,
        /// A [`CreateMode`](super::codes::CreateMode).
        flags: i32,
    }
}

record! {
    /// createTTL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CreateTtlRequest<'a> {
        /// The path.
        path: &'a str,
        /// Its data.
        data: Option<&'a [u8]>,
        /// The ACL of the new node.
        acl: Vec<Acl<'a>>,
        /// A [`CreateMode`](super::codes::CreateMode).
        flags: i32,
        /// Its time to live in milliseconds.
        ttl_ms: i64,
    }
}

record! {
    /// delete and check, alone or in a transaction.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    VersionRequest<'a> {
        /// The path.
        path: &'a str,
        /// The version that the node must have; -1 for any.
        version: i32,
    }
}

record! {
    /// setData.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SetDataRequest<'a> {
        /// The path.
        path: &'a str,
        /// The new data.
        data: Option<&'a [u8]>,
        /// The version that the node must have; -1 for any.
        version: i32,
    }
}

record! {
    /// setACL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetAclRequest<'a> {
        /// The path.
        path: &'a str,
        /// The new ACL.
        acl: Vec<Acl<'a>>,
        /// The version that the ACL must have; -1 for any.
        version: i32,
    }
}

record! {
    /// exists, getData, getChildren and getChildren2.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    WatchedRequest<'a> {
        /// The path.
        path: &'a str,
        /// Whether to register a watch.
        watch: bool,
    }
}

record! {
    /// sync, getACL, getEphemerals, getAllChildrenNumber and deleteContainer, which have only a path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PathRequest<'a> {
        /// The path.
        path: &'a str,
    }
}

record! {
    /// checkWatches and removeWatches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    WatcherRequest<'a> {
        /// The path of the watch.
        path: &'a str,
        /// A number of [`watcher_type`](super::codes::watcher_type).
        kind: i32,
    }
}

record! {
    /// addWatch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AddWatchRequest<'a> {
        /// The path.
        path: &'a str,
        /// A number of [`watch_mode`](super::codes::watch_mode).
        mode: i32,
    }
}

record! {
    /// setWatches: the watches that a client had when it lost its connection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetWatchesRequest<'a> {
        /// The zxid of the newest change that the client has seen. Later changes are reported at once.
        relative_zxid: i64,
        /// Watches set by getData, and by exists on nodes that existed.
        data: Vec<&'a str>,
        /// Watches set by exists on nodes that did not exist.
        exist: Vec<&'a str>,
        /// Watches set by getChildren.
        child: Vec<&'a str>,
    }
}

record! {
    /// setWatches2: setWatches with persistent watches.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetWatches2Request<'a> {
        /// The one-time watches, as in setWatches.
        one_time: SetWatchesRequest<'a>,
        /// Persistent watches.
        persistent: Vec<&'a str>,
        /// Persistent recursive watches.
        recursive: Vec<&'a str>,
    }
}

record! {
    /// auth.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AuthRequest<'a> {
        /// Always 0.
        kind: i32,
        /// The scheme.
        scheme: &'a str,
        /// The credentials: `user:password` for `digest`.
        auth: Option<&'a [u8]>,
    }
}

record! {
    /// reconfig.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ReconfigRequest<'a> {
        /// Servers that join.
        joining: &'a str,
        /// Servers that leave.
        leaving: &'a str,
        /// All servers after the change.
        new_members: &'a str,
        /// The version of the configuration that the change must follow.
        config: i64,
    }
}

record! {
    /// sasl.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SaslRequest<'a> {
        /// The next message of the SASL mechanism.
        token: Option<&'a [u8]>,
    }
}

record! {
    /// A znode of another ensemble, in an import.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ImportNode<'a> {
        /// The path.
        path: &'a str,
        /// Its data.
        data: Option<&'a [u8]>,
        /// Its ACL as it was stored there, so without `auth`.
        acl: Vec<Acl<'a>>,
        /// The zxid of its creation.
        czxid: i64,
        /// The zxid of the last change of its data.
        mzxid: i64,
        /// The zxid of the last change of its children.
        pzxid: i64,
        /// The time of its creation.
        ctime: i64,
        /// The time of the last change of its data.
        mtime: i64,
        /// The number of changes of its data.
        version: i32,
        /// The number of children ever created.
        created: i32,
        /// The number of changes of its ACL.
        aversion: i32,
        /// 0, or the [`Lifetime::owner`](crate::tree::node::Lifetime::owner) of a container or of a node with a time to live.
        owner: i64,
        /// Whether its parent is imported as well, with a `created` that counts this node.
        counted: bool,
    }
}

record! {
    /// An import of znodes of another ensemble, parents first.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ImportRequest<'a> {
        /// The zxid of the newest change in that ensemble when the import began. Later changes here have higher zxids.
        newest: i64,
        /// Whether to replace nodes that exist and differ. Otherwise they are an error.
        replace: bool,
        /// The nodes.
        nodes: Vec<ImportNode<'a>>,
    }
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are ZooKeeper's.
pub enum Request<'a> {
    Create(CreateRequest<'a>),
    Create2(CreateRequest<'a>),
    CreateContainer(CreateRequest<'a>),
    CreateTtl(CreateTtlRequest<'a>),
    Delete(VersionRequest<'a>),
    DeleteContainer(PathRequest<'a>),
    Check(VersionRequest<'a>),
    SetData(SetDataRequest<'a>),
    SetAcl(SetAclRequest<'a>),
    Multi(MultiRequest<'a>),
    MultiRead(MultiReadRequest<'a>),
    Exists(WatchedRequest<'a>),
    GetData(WatchedRequest<'a>),
    GetChildren(WatchedRequest<'a>),
    GetChildren2(WatchedRequest<'a>),
    GetAcl(PathRequest<'a>),
    GetEphemerals(PathRequest<'a>),
    GetAllChildrenNumber(PathRequest<'a>),
    Sync(PathRequest<'a>),
    CheckWatches(WatcherRequest<'a>),
    RemoveWatches(WatcherRequest<'a>),
    AddWatch(AddWatchRequest<'a>),
    SetWatches(SetWatchesRequest<'a>),
    SetWatches2(SetWatches2Request<'a>),
    Auth(AuthRequest<'a>),
    Sasl(SaslRequest<'a>),
    Reconfig(ReconfigRequest<'a>),
    Import(ImportRequest<'a>),
    WhoAmI,
    Ping,
    CloseSession,
}

impl<'a> Request<'a> {
    /// Decodes the body of a request. Returns None for an operation that no client may request.
    ///
    /// # Errors
    /// The bytes are not such a request.
    pub fn read(op: OpCode, from: &mut Reader<'a>) -> Result<Option<Request<'a>>, JuteError> {
        Ok(Some(match op {
            OpCode::Create => Request::Create(Jute::read(from)?),
            OpCode::Create2 => Request::Create2(Jute::read(from)?),
            OpCode::CreateContainer => Request::CreateContainer(Jute::read(from)?),
            OpCode::CreateTtl => Request::CreateTtl(Jute::read(from)?),
            OpCode::Delete => Request::Delete(Jute::read(from)?),
            OpCode::DeleteContainer => Request::DeleteContainer(Jute::read(from)?),
            OpCode::Check => Request::Check(Jute::read(from)?),
            OpCode::SetData => Request::SetData(Jute::read(from)?),
            OpCode::SetAcl => Request::SetAcl(Jute::read(from)?),
            OpCode::Multi => Request::Multi(Jute::read(from)?),
            OpCode::MultiRead => Request::MultiRead(Jute::read(from)?),
            OpCode::Exists => Request::Exists(Jute::read(from)?),
            OpCode::GetData => Request::GetData(Jute::read(from)?),
            OpCode::GetChildren => Request::GetChildren(Jute::read(from)?),
            OpCode::GetChildren2 => Request::GetChildren2(Jute::read(from)?),
            OpCode::GetAcl => Request::GetAcl(Jute::read(from)?),
            OpCode::GetEphemerals => Request::GetEphemerals(Jute::read(from)?),
            OpCode::GetAllChildrenNumber => Request::GetAllChildrenNumber(Jute::read(from)?),
            OpCode::Sync => Request::Sync(Jute::read(from)?),
            OpCode::CheckWatches => Request::CheckWatches(Jute::read(from)?),
            OpCode::RemoveWatches => Request::RemoveWatches(Jute::read(from)?),
            OpCode::AddWatch => Request::AddWatch(Jute::read(from)?),
            OpCode::SetWatches => Request::SetWatches(Jute::read(from)?),
            OpCode::SetWatches2 => Request::SetWatches2(Jute::read(from)?),
            OpCode::Auth => Request::Auth(Jute::read(from)?),
            OpCode::Sasl => Request::Sasl(Jute::read(from)?),
            OpCode::Reconfig => Request::Reconfig(Jute::read(from)?),
            OpCode::Import => Request::Import(Jute::read(from)?),
            OpCode::WhoAmI => Request::WhoAmI,
            OpCode::Ping => Request::Ping,
            OpCode::CloseSession => Request::CloseSession,
            OpCode::Notification | OpCode::CreateSession => return Ok(None),
        }))
    }

    /// Returns the code of the operation.
    pub fn op(&self) -> OpCode {
        match self {
            Request::Create(_) => OpCode::Create,
            Request::Create2(_) => OpCode::Create2,
            Request::CreateContainer(_) => OpCode::CreateContainer,
            Request::CreateTtl(_) => OpCode::CreateTtl,
            Request::Delete(_) => OpCode::Delete,
            Request::DeleteContainer(_) => OpCode::DeleteContainer,
            Request::Check(_) => OpCode::Check,
            Request::SetData(_) => OpCode::SetData,
            Request::SetAcl(_) => OpCode::SetAcl,
            Request::Multi(_) => OpCode::Multi,
            Request::MultiRead(_) => OpCode::MultiRead,
            Request::Exists(_) => OpCode::Exists,
            Request::GetData(_) => OpCode::GetData,
            Request::GetChildren(_) => OpCode::GetChildren,
            Request::GetChildren2(_) => OpCode::GetChildren2,
            Request::GetAcl(_) => OpCode::GetAcl,
            Request::GetEphemerals(_) => OpCode::GetEphemerals,
            Request::GetAllChildrenNumber(_) => OpCode::GetAllChildrenNumber,
            Request::Sync(_) => OpCode::Sync,
            Request::CheckWatches(_) => OpCode::CheckWatches,
            Request::RemoveWatches(_) => OpCode::RemoveWatches,
            Request::AddWatch(_) => OpCode::AddWatch,
            Request::SetWatches(_) => OpCode::SetWatches,
            Request::SetWatches2(_) => OpCode::SetWatches2,
            Request::Auth(_) => OpCode::Auth,
            Request::Sasl(_) => OpCode::Sasl,
            Request::Reconfig(_) => OpCode::Reconfig,
            Request::Import(_) => OpCode::Import,
            Request::WhoAmI => OpCode::WhoAmI,
            Request::Ping => OpCode::Ping,
            Request::CloseSession => OpCode::CloseSession,
        }
    }

    /// Appends the encoded body, without a header.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Request::Create(r) | Request::Create2(r) | Request::CreateContainer(r) => r.write(out),
            Request::CreateTtl(r) => r.write(out),
            Request::Delete(r) | Request::Check(r) => r.write(out),
            Request::DeleteContainer(r)
            | Request::GetAcl(r)
            | Request::GetEphemerals(r)
            | Request::GetAllChildrenNumber(r)
            | Request::Sync(r) => r.write(out),
            Request::SetData(r) => r.write(out),
            Request::SetAcl(r) => r.write(out),
            Request::Multi(r) => r.write(out),
            Request::MultiRead(r) => r.write(out),
            Request::Exists(r) | Request::GetData(r) | Request::GetChildren(r) | Request::GetChildren2(r) => {
                r.write(out)
            }
            Request::CheckWatches(r) | Request::RemoveWatches(r) => r.write(out),
            Request::AddWatch(r) => r.write(out),
            Request::SetWatches(r) => r.write(out),
            Request::SetWatches2(r) => r.write(out),
            Request::Auth(r) => r.write(out),
            Request::Sasl(r) => r.write(out),
            Request::Reconfig(r) => r.write(out),
            Request::Import(r) => r.write(out),
            Request::WhoAmI | Request::Ping | Request::CloseSession => {}
        }
    }
}
