//! Bodies of replies and notifications. A reply without a body consists of a header only.

use super::record;
use super::records::{Acl, Id, Stat};

record! {
    /// The reply to create and sync.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PathReply<'a> {
        /// The path of the node. For create, it includes the number of a sequential node.
        path: &'a str,
    }
}

record! {
    /// The reply to create2, createContainer and createTTL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Create2Reply<'a> {
        /// The path of the new node.
        path: &'a str,
        /// Its Stat.
        stat: Stat,
    }
}

record! {
    /// The reply to exists, setData and setACL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    StatReply {
        /// The node's Stat.
        stat: Stat,
    }
}

record! {
    /// The reply to getData.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GetDataReply<'a> {
        /// The node's data.
        data: Option<&'a [u8]>,
        /// The node's Stat.
        stat: Stat,
    }
}

record! {
    /// The reply to getACL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetAclReply<'a> {
        /// The node's ACL.
        acl: Vec<Acl<'a>>,
        /// The node's Stat.
        stat: Stat,
    }
}

record! {
    /// The reply to getChildren and getEphemerals.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NamesReply<'a> {
        /// Names of children for getChildren, paths for getEphemerals.
        names: Vec<&'a str>,
    }
}

record! {
    /// The reply to getChildren2.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetChildren2Reply<'a> {
        /// The names of the children.
        names: Vec<&'a str>,
        /// The parent's Stat.
        stat: Stat,
    }
}

record! {
    /// The reply to getAllChildrenNumber.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CountReply {
        /// The number of nodes below the given one.
        total: i32,
    }
}

record! {
    /// The reply to whoAmI.
    #[derive(Clone, Debug, PartialEq, Eq)]
    WhoAmIReply<'a> {
        /// The scheme and user name of each of the client's ids.
        clients: Vec<Id<'a>>,
    }
}

record! {
    /// The reply to an import: the numbers of znodes with each outcome.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    ImportReply {
        /// Nodes that did not exist.
        made: i32,
        /// Nodes that existed and differed.
        replaced: i32,
        /// Nodes that already existed with the same contents.
        same: i32,
    }
}

record! {
    /// A notification that a watch fired. Its header has the xid of notifications.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    WatcherEvent<'a> {
        /// An [`EventType`](super::codes::EventType).
        kind: i32,
        /// The state of the session. 3 means connected.
        state: i32,
        /// The path of the node.
        path: &'a str,
    }
}
