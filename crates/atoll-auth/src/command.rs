//! Commands in the log, and the replies of replicas, in the format of version 1 of [`crate::Auth`].

use atoll_core::{choice, record};
use bytes::Bytes;

choice! {
    /// A command. Who and on what are as they are written, see [`crate::Who`] and [`crate::Pattern`].
    pub enum Command {
        /// Grants a right, instead of the one that `who` had on exactly this.
        0 = Grant { who: String, right: String, on: String },
        /// Takes back what `who` has on exactly this.
        1 = Revoke { who: String, on: String },
        /// Adds a token. Its hash alone is in the log.
        2 = AddToken { name: String, hash: Bytes },
        /// Removes a token, and what was granted to its bearer: a later token with this name begins without.
        3 = RemoveToken { name: String },
    }
}

record! {
    /// The outcome of a command that was applied.
    pub struct Done {
        /// Whether it changed anything.
        pub changed: bool,
    }
}

choice! {
    /// Why a command was rejected.
    pub enum Rejection {
        /// It makes no sense.
        0 = Invalid { words: String },
        /// There are too many grants or tokens.
        1 = TooMany { words: String },
        /// There is a token with this name.
        2 = Exists { words: String },
    }
}

impl Rejection {
    /// Returns the reason as a sentence.
    pub fn words(&self) -> &str {
        match self {
            Rejection::Invalid { words } | Rejection::TooMany { words } | Rejection::Exists { words } => {
                words
            }
        }
    }
}
