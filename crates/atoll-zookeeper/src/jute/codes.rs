//! The codes of the protocol, for operations, errors, events and create modes, as in ZooKeeper 3.9.

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$v:meta])* $variant:ident = $number:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        pub enum $name { $($(#[$v])* $variant = $number,)* }
        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The number on the wire.
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// What a number stands for, if anything.
            pub const fn of(number: i32) -> Option<$name> {
                match number { $($number => Some($name::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// The operation of a request.
    #[allow(missing_docs)] // The names are ZooKeeper's.
    OpCode {
        Notification = 0,
        Create = 1,
        Delete = 2,
        Exists = 3,
        GetData = 4,
        SetData = 5,
        GetAcl = 6,
        SetAcl = 7,
        GetChildren = 8,
        Sync = 9,
        Ping = 11,
        GetChildren2 = 12,
        Check = 13,
        Multi = 14,
        Create2 = 15,
        Reconfig = 16,
        CheckWatches = 17,
        RemoveWatches = 18,
        CreateContainer = 19,
        DeleteContainer = 20,
        CreateTtl = 21,
        MultiRead = 22,
        Auth = 100,
        SetWatches = 101,
        Sasl = 102,
        GetEphemerals = 103,
        GetAllChildrenNumber = 104,
        SetWatches2 = 105,
        AddWatch = 106,
        WhoAmI = 107,
        /// Not in ZooKeeper: imports znodes of another ensemble with their Stat (`atoll zookeeper import`).
        Import = 0x4154_4f4c,
        CreateSession = -10,
        CloseSession = -11,
    }
}

impl OpCode {
    /// Returns the name that ZooKeeper's `cons` gives the operation.
    pub const fn short_name(self) -> &'static str {
        match self {
            OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => "CREA",
            OpCode::Delete | OpCode::DeleteContainer => "DELE",
            OpCode::Exists => "EXIS",
            OpCode::GetData => "GETD",
            OpCode::SetData => "SETD",
            OpCode::GetAcl => "GETA",
            OpCode::SetAcl => "SETA",
            OpCode::GetChildren | OpCode::GetChildren2 => "GETC",
            OpCode::Sync => "SYNC",
            OpCode::Ping => "PING",
            OpCode::Check => "CHEC",
            OpCode::Multi => "MULT",
            OpCode::Reconfig => "RECO",
            OpCode::CheckWatches => "CHKW",
            OpCode::RemoveWatches => "REMW",
            OpCode::MultiRead => "MLTR",
            OpCode::SetWatches => "SETW",
            OpCode::GetEphemerals => "GETE",
            OpCode::GetAllChildrenNumber => "GETACN",
            OpCode::SetWatches2 => "STW2",
            OpCode::AddWatch => "ADDW",
            OpCode::WhoAmI => "HOMI",
            OpCode::CreateSession => "SESS",
            OpCode::CloseSession => "CLOS",
            OpCode::Notification | OpCode::Auth | OpCode::Sasl | OpCode::Import => "NA",
        }
    }
}

codes! {
    /// The reason why a request was refused. A request with any of these codes did not happen.
    #[allow(missing_docs)] // The names are ZooKeeper's.
    ErrorCode {
        SystemError = -1,
        RuntimeInconsistency = -2,
        DataInconsistency = -3,
        ConnectionLoss = -4,
        MarshallingError = -5,
        Unimplemented = -6,
        OperationTimeout = -7,
        BadArguments = -8,
        UnknownSession = -12,
        ReconfigInProgress = -14,
        NoNode = -101,
        NoAuth = -102,
        BadVersion = -103,
        NoChildrenForEphemerals = -108,
        NodeExists = -110,
        NotEmpty = -111,
        SessionExpired = -112,
        InvalidCallback = -113,
        InvalidAcl = -114,
        AuthFailed = -115,
        SessionMoved = -118,
        NotReadOnly = -119,
        NoWatcher = -121,
        RequestTimeout = -122,
        ReconfigDisabled = -123,
        SessionClosedRequireSaslAuth = -124,
        QuotaExceeded = -125,
        ThrottledOp = -127,
    }
}

codes! {
    /// The kind of change that a notification reports.
    #[allow(missing_docs)] // The names are ZooKeeper's.
    EventType {
        NodeCreated = 1,
        NodeDeleted = 2,
        NodeDataChanged = 3,
        NodeChildrenChanged = 4,
    }
}

codes! {
    /// The seven kinds of znodes, as the flags of a create request state them.
    #[allow(missing_docs)] // The names are ZooKeeper's.
    CreateMode {
        Persistent = 0,
        Ephemeral = 1,
        PersistentSequential = 2,
        EphemeralSequential = 3,
        Container = 4,
        PersistentWithTtl = 5,
        PersistentSequentialWithTtl = 6,
    }
}

impl CreateMode {
    /// Returns whether the server appends a number to the name.
    pub const fn is_sequential(self) -> bool {
        matches!(
            self,
            CreateMode::PersistentSequential
                | CreateMode::EphemeralSequential
                | CreateMode::PersistentSequentialWithTtl
        )
    }

    /// Returns whether the node is deleted when its session ends.
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    /// Returns whether the node has a time to live. It is deleted once it has no children and has not changed for that long.
    pub const fn has_ttl(self) -> bool {
        matches!(self, CreateMode::PersistentWithTtl | CreateMode::PersistentSequentialWithTtl)
    }
}

/// The kinds of watches in `checkWatches` and `removeWatches`.
pub mod watcher_type {
    /// Watches set by getChildren.
    pub const CHILDREN: i32 = 1;
    /// Watches set by getData and exists.
    pub const DATA: i32 = 2;
    /// All watches.
    pub const ANY: i32 = 3;
    /// Persistent watches.
    pub const PERSISTENT: i32 = 4;
    /// Persistent recursive watches.
    pub const PERSISTENT_RECURSIVE: i32 = 5;
}

/// The modes of `addWatch`.
pub mod watch_mode {
    /// Persistent: reports changes of the node and its children.
    pub const PERSISTENT: i32 = 0;
    /// Persistent: reports changes of the node and everything below it.
    pub const PERSISTENT_RECURSIVE: i32 = 1;
}

/// Special `xid`s. All others are numbers that clients assign to their requests.
pub mod xid {
    /// A notification that a watch fired.
    pub const NOTIFICATION: i32 = -1;
    /// A ping.
    pub const PING: i32 = -2;
    /// A request that adds an authentication.
    pub const AUTH: i32 = -4;
    /// A request that registers the client's watches again.
    pub const SET_WATCHES: i32 = -8;
}

/// The permissions of an ACL.
pub mod perms {
    /// Read data and list children.
    pub const READ: i32 = 1;
    /// Set data.
    pub const WRITE: i32 = 2;
    /// Create children.
    pub const CREATE: i32 = 4;
    /// Delete children.
    pub const DELETE: i32 = 8;
    /// Set the ACL.
    pub const ADMIN: i32 = 16;
    /// All of them.
    pub const ALL: i32 = 31;
}
