//! The names of a Loglet's objects. Numbers have a fixed width, so that tools list objects in their order.
//!
//! | name, below `URL/loglets/ID/` | what it is | written | deleted |
//! | --- | --- | --- | --- |
//! | `log/INDEX` | entries, or the seal | once, with a condition | with its block, behind a trim |
//! | `mark/BLOCK` | the mark of a block of indexes: somebody wants to seal, or the block is deleted | with a condition; *deleted* replaces | never |
//! | `trim/NUMBER` | the trims, in their order | once, with a condition | with the Loglet |
//! | `gone` | the Loglet is deleted | once, with a condition | never |

use atoll_contract::LogletId;

/// The names of the objects of one Loglet.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    below: String,
}

pub(crate) use atoll_object_store::join;

/// Returns the name of the object that shows that a node sees the right store.
pub(crate) fn token(prefix: &str, token: u64) -> String {
    join(prefix, &format!("stores/{token:016x}"))
}

impl Names {
    pub(crate) fn new(prefix: &str, loglet: LogletId) -> Self {
        Names { below: join(prefix, &format!("loglets/{loglet}")) }
    }

    pub(crate) fn log(&self, index: u64) -> String {
        format!("{}/log/{index:016x}", self.below)
    }

    pub(crate) fn mark(&self, block: u64) -> String {
        format!("{}/mark/{block:016x}", self.below)
    }

    pub(crate) fn trim(&self, number: u64) -> String {
        format!("{}/trim/{number:016x}", self.below)
    }

    pub(crate) fn gone(&self) -> String {
        format!("{}/gone", self.below)
    }
}
