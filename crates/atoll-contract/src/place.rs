//! Places for registers outside of the cluster: stores that others run. A place has a URL, and the protocol that serves the scheme of the
//! URL opens the registers there. The node knows no scheme.

use std::fmt;
use std::sync::Arc;

use atoll_core::Env;

use crate::plugin::Protocols;
use crate::register::Registers;

/// The longest URL of a place.
pub const MAX_URL_BYTES: usize = 2048;

/// A scheme that a protocol serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// What stands before `://`.
    pub name: &'static str,
    /// What its URLs look like.
    pub form: &'static str,
}

/// A place whose URL was read.
pub trait Place: Send + Sync + fmt::Debug {
    /// Opens the registers there, for the node of `env`. Nothing is contacted yet.
    fn open(&self, env: &Env) -> Arc<dyn Registers>;
}

/// Why registers cannot be at a URL. The text does not repeat it, because a refused URL may contain a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No protocol serves the scheme.
    #[error("registers cannot be at a URL with this scheme; allowed: {0}")]
    Scheme(String),
    /// The protocol that serves the scheme refuses the rest.
    #[error("{0}")]
    Url(String),
}

impl Protocols {
    /// Returns the schemes of URLs at which registers can be.
    pub fn schemes(&self) -> impl Iterator<Item = Scheme> {
        self.iter().flat_map(|protocol| protocol.schemes()).copied()
    }

    /// Reads the URL of a place. Contacts nothing.
    ///
    /// # Errors
    /// Registers cannot be there.
    pub fn place(&self, url: &str) -> Result<Box<dyn Place>, PlaceError> {
        let serves = |scheme: &str| {
            self.iter().find(|protocol| protocol.schemes().iter().any(|served| served.name == scheme))
        };
        let known = url.split_once("://").and_then(|(scheme, rest)| Some((serves(scheme)?, scheme, rest)));
        let Some((protocol, scheme, rest)) = known else {
            let forms: Vec<&str> = self.schemes().map(|scheme| scheme.form).collect();
            return Err(PlaceError::Scheme(forms.join("; ")));
        };
        if url.len() > MAX_URL_BYTES {
            return Err(PlaceError::Url(format!("a URL has {MAX_URL_BYTES} bytes at most")));
        }
        protocol.place(scheme, rest)
    }
}
