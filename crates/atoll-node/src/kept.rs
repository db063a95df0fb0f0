//! A record that an operator or a node keeps in a register of the cluster: every node finds it, and it survives restarts.

use atoll_client::Reason;
use atoll_contract::{Nonce, Register, RegisterError, Versioned, Written};
use atoll_core::Env;
use atoll_door::backend::Refusal;
use bytes::Bytes;

/// So many writers may be faster before a change is given up.
const ATTEMPTS: usize = 8;

/// A record with a byte form.
pub(crate) trait Kept: Clone + PartialEq {
    /// Reads the value of the register. None: there is no record.
    fn read_from(value: Bytes) -> Result<Option<Self>, String>;

    /// Returns the value for the register.
    fn value(&self) -> Bytes;
}

/// Why a record was not read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeptError {
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("{0}")]
    Unreadable(String),
    #[error("others change it at the same time")]
    Contended,
}

impl KeptError {
    /// Returns the error message for an operator.
    pub(crate) fn refusal(&self) -> Refusal {
        let words = self.to_string();
        match self {
            KeptError::Register(RegisterError::Unknown(_)) => {
                Refusal::unknown(Reason::Unavailable, words, "ask again; the request may be repeated")
            }
            KeptError::Register(_) | KeptError::Contended => {
                Refusal::no(Reason::Unavailable, words, "try again when a majority of nodes is up")
            }
            KeptError::Unreadable(_) => {
                Refusal::no(Reason::Refused, words, "was it written by a newer version of this program?")
            }
        }
    }
}

/// Reads a record.
pub(crate) async fn read<T: Kept>(register: &dyn Register) -> Result<Option<T>, KeptError> {
    let Versioned { value, .. } = register.read().await?;
    T::read_from(value).map_err(KeptError::Unreadable)
}

/// Changes a record. `change` gets the one that is there, again if another writer was faster. If it returns the same one, nothing is
/// written. None: there is no record any more.
pub(crate) async fn change<T: Kept>(
    env: &Env,
    register: &dyn Register,
    mut change: impl FnMut(Option<T>) -> Option<T>,
) -> Result<Option<T>, KeptError> {
    let mut found = register.read().await?;
    for _ in 0..ATTEMPTS {
        let old = T::read_from(found.value).map_err(KeptError::Unreadable)?;
        let next = change(old.clone());
        if old == next {
            return Ok(next);
        }
        let value = next.as_ref().map(T::value).unwrap_or_default();
        let nonce = Nonce(u128::from(env.random()) << 64 | u128::from(env.random()));
        match register.write_if(found.version, value, nonce).await? {
            Written::Yes(_) => return Ok(next),
            Written::Conflict(other) if other.nonce == nonce => return Ok(next),
            Written::Conflict(other) => found = other,
        }
    }
    Err(KeptError::Contended)
}
