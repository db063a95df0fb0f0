//! Bodies of replies, and notifications. Replies without a body are a header alone.

use super::record;
use super::records::{Acl, Id, Stat};

record! {
    /// create, sync: the path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PathReply<'a> {
        /// The node that was made.
        path: &'a str,
    }
}

record! {
    /// create2, createContainer, createTTL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Create2Reply<'a> {
        /// The node that was made.
        path: &'a str,
        /// Its Stat.
        stat: Stat,
    }
}

record! {
    /// exists, setData, setACL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    StatReply {
        /// The node's Stat.
        stat: Stat,
    }
}

record! {
    /// getData.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GetDataReply<'a> {
        /// Its data.
        data: Option<&'a [u8]>,
        /// Its Stat.
        stat: Stat,
    }
}

record! {
    /// getACL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetAclReply<'a> {
        /// Its list.
        acl: Vec<Acl<'a>>,
        /// Its Stat.
        stat: Stat,
    }
}

record! {
    /// getChildren, getEphemerals.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NamesReply<'a> {
        /// Names of children, or paths.
        names: Vec<&'a str>,
    }
}

record! {
    /// getChildren2.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetChildren2Reply<'a> {
        /// Names of children.
        names: Vec<&'a str>,
        /// The parent's Stat.
        stat: Stat,
    }
}

record! {
    /// getAllChildrenNumber.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CountReply {
        /// How many nodes lie below.
        total: i32,
    }
}

record! {
    /// whoAmI.
    #[derive(Clone, Debug, PartialEq, Eq)]
    WhoAmIReply<'a> {
        /// Scheme and user name of each authentication.
        clients: Vec<Id<'a>>,
    }
}

record! {
    /// What became of znodes that were imported.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    ImportReply {
        /// Those that were not there.
        made: i32,
        /// Those that were there, and differed.
        replaced: i32,
        /// Those that were there already as they should be.
        same: i32,
    }
}

record! {
    /// A watch fired: behind a header with the xid of notifications.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    WatcherEvent<'a> {
        /// An [`EventType`](super::codes::EventType).
        kind: i32,
        /// 3: connected.
        state: i32,
        /// Where.
        path: &'a str,
    }
}
