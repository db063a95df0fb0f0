//! Who may do what: the decision, the table of what each call needs, and the replicated grants and tokens (decision 0028).
//!
//! The decision is a pure function of a [`Policy`], which is the state as a value. So a node decides without a read of its store.
//!
//! | file | what it is |
//! | --- | --- |
//! | `names.rs` | who, which right, on what; how they are written |
//! | `policy.rs` | the grants and tokens, and the decision |
//! | `methods.rs` | every gRPC method, and the right that it needs |
//! | `token.rs` | hashes of tokens |
//! | `command.rs` | the commands in the log |
//! | `application.rs` | applies them |
//! | `read.rs` | reads the grants and tokens from a view |

mod application;
pub mod command;
mod layout;
mod methods;
mod names;
mod policy;
mod read;
mod token;

pub use application::Auth;
pub use methods::{METHODS, Method, Needs, method};
pub use names::{Kind, NameError, Pattern, Resource, Right, Who};
pub use policy::{Asking, Grant, Policy, Token};
pub use read::policy;
pub use token::{TokenHash, hash_of};

/// The maximum number of grants.
pub const MAX_GRANTS: usize = 2048;
/// The maximum number of tokens.
pub const MAX_TOKENS: usize = 1024;
/// The maximum length of a name in a grant, and of the name of a token, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
