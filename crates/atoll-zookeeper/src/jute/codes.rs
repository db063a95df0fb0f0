//! The numbers of the protocol: operations, errors, events and create modes, as ZooKeeper 3.9 has them.

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
    /// What a request asks for.
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
        /// Not ZooKeeper's: znodes of another ensemble, with their Stat (`atoll zookeeper import`).
        Import = 0x4154_4f4c,
        CreateSession = -10,
        CloseSession = -11,
    }
}

codes! {
    /// Why a request was not done. None of them leaves it unknown whether it was: nothing happened.
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
    /// What a watch tells.
    #[allow(missing_docs)] // The names are ZooKeeper's.
    EventType {
        NodeCreated = 1,
        NodeDeleted = 2,
        NodeDataChanged = 3,
        NodeChildrenChanged = 4,
    }
}

codes! {
    /// The seven kinds of znodes that create makes, by the flags of its request.
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
    /// The server appends a number to the name.
    pub const fn is_sequential(self) -> bool {
        matches!(
            self,
            CreateMode::PersistentSequential
                | CreateMode::EphemeralSequential
                | CreateMode::PersistentSequentialWithTtl
        )
    }

    /// It goes with its session.
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    /// It goes when it was not changed for its time to live and has no children.
    pub const fn has_ttl(self) -> bool {
        matches!(self, CreateMode::PersistentWithTtl | CreateMode::PersistentSequentialWithTtl)
    }
}

/// Kinds of watches in `checkWatches` and `removeWatches`.
pub mod watcher_type {
    /// Those of getChildren.
    pub const CHILDREN: i32 = 1;
    /// Those of getData and exists.
    pub const DATA: i32 = 2;
    /// All.
    pub const ANY: i32 = 3;
    /// Persistent ones.
    pub const PERSISTENT: i32 = 4;
    /// Persistent ones of a whole subtree.
    pub const PERSISTENT_RECURSIVE: i32 = 5;
}

/// Modes of `addWatch`.
pub mod watch_mode {
    /// Persistent: reports changes of the node and its children.
    pub const PERSISTENT: i32 = 0;
    /// Persistent: reports changes of the node and everything below it.
    pub const PERSISTENT_RECURSIVE: i32 = 1;
}

/// `xid`s that stand for something else than a request of the client's count.
pub mod xid {
    /// A watch fired.
    pub const NOTIFICATION: i32 = -1;
    /// A ping.
    pub const PING: i32 = -2;
    /// An addition of authentication.
    pub const AUTH: i32 = -4;
    /// A client registers its watches again.
    pub const SET_WATCHES: i32 = -8;
}

/// Permissions of an ACL.
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
