//! What the state and the log keep of a session's password: its SHA-256 hash. The password itself is 128 random bits, so nobody finds it
//! from the hash, and whoever reads the log or the state cannot attach to the session.

use std::fmt;

use crate::command::{HASH_BYTES, PASSWORD_BYTES};

/// A session's password, as commands carry it and records keep it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// The password itself. Programs wrote it so before [`atoll_core::level::since::HASHED_PASSWORDS`].
    Plain([u8; PASSWORD_BYTES]),
    /// Its hash.
    Hash([u8; HASH_BYTES]),
}

impl Secret {
    /// Reads a secret. Its length says what it is. Returns None if it is neither.
    pub fn of(bytes: &[u8]) -> Option<Secret> {
        match bytes.len() {
            PASSWORD_BYTES => bytes.try_into().ok().map(Secret::Plain),
            HASH_BYTES => bytes.try_into().ok().map(Secret::Hash),
            _ => None,
        }
    }

    /// Returns the hash of a password.
    pub fn hash_of(password: &[u8; PASSWORD_BYTES]) -> Secret {
        let digest = ring::digest::digest(&ring::digest::SHA256, password);
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(digest.as_ref());
        Secret::Hash(hash)
    }

    /// Returns the same secret without the password itself.
    #[must_use]
    pub fn hashed(self) -> Secret {
        match self {
            Secret::Plain(password) => Secret::hash_of(&password),
            Secret::Hash(_) => self,
        }
    }

    /// Returns whether both are of the same password.
    pub fn matches(self, other: Secret) -> bool {
        self.hashed() == other.hashed()
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Secret::Plain(password) => password,
            Secret::Hash(hash) => hash,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A password must not appear in messages.
        f.write_str(match self {
            Secret::Plain(_) => "Plain",
            Secret::Hash(_) => "Hash",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_its_password_only() {
        let (plain, other) =
            (Secret::of(&[7; PASSWORD_BYTES]).unwrap(), Secret::of(&[8; PASSWORD_BYTES]).unwrap());
        for same in [plain, plain.hashed(), plain.hashed().hashed()] {
            assert!(same.matches(plain) && plain.matches(same) && !same.matches(other));
            assert_eq!(Secret::of(same.bytes()), Some(same));
        }
        assert_ne!(plain.hashed().bytes(), plain.bytes());
        assert_eq!(Secret::of(&[7; 15]), None);
        // SHA-256 of 16 zero bytes.
        let zero = "374708fff7719dd5979ec875d56cd2286f6d3cf7ec317a3b25632aab28ec37bb";
        let hash: String = Secret::hash_of(&[0; 16]).bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hash, zero);
    }
}
