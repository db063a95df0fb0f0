//! Transactions of several keys: what goes in and out, and their limits.

use bytes::Bytes;

use super::{Change, Changed, Floor, Guard, Held, KeyspaceError, Limits};

/// One key of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnPart {
    /// The key. A transaction names each key once.
    pub key: Bytes,
    /// What must hold for the whole transaction.
    pub guard: Guard,
    /// What the transaction does with the key. None: it only reads and checks it.
    pub change: Option<Change>,
    /// For a repeat: a floor of this key from before the first attempt, as of [`super::Keyspace::floor`].
    pub floor: Floor,
}

impl TxnPart {
    /// Returns a part without a floor.
    pub fn new(key: Bytes, guard: Guard, change: Option<Change>) -> Self {
        TxnPart { key, guard, change, floor: Floor(0) }
    }
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transacted {
    /// All conditions held, and everything was done, at one moment. Contains the outcome of each key, in the order of the request: its new
    /// version, or, as [`Changed::Not`], what it held at that moment if it was only read.
    Done(Vec<Changed>),
    /// Nothing has changed: a condition does not hold, or there is nothing to delete. Contains what each key held, each at some moment
    /// during the call.
    Not(Vec<Option<Held>>),
}

/// The limits of transactions of a keyspace, in addition to those of its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnLimits {
    /// The most keys.
    pub keys: usize,
    /// The most bytes of all keys, values, and values in conditions together.
    pub bytes: usize,
}

impl TxnLimits {
    /// Checks a transaction, before anything of it is done.
    pub fn check(&self, each: &Limits, parts: &[TxnPart]) -> Result<(), KeyspaceError> {
        if parts.is_empty() {
            return Err(KeyspaceError::NoKeys);
        }
        if parts.len() > self.keys {
            return Err(KeyspaceError::TooManyKeys { keys: parts.len(), most: self.keys });
        }
        let mut bytes = 0;
        for TxnPart { key, guard, change, .. } in parts {
            each.check_write(key, guard, change.as_ref().unwrap_or(&Change::Delete))?;
            let compared = if let Guard::Value(value) = guard { value.len() } else { 0 };
            let written = if let Some(Change::Put(value)) = change { value.len() } else { 0 };
            bytes += key.len() + compared + written;
        }
        if bytes > self.bytes {
            return Err(KeyspaceError::TooManyBytes { bytes, most: self.bytes });
        }
        let mut keys: Vec<&Bytes> = parts.iter().map(|part| &part.key).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(KeyspaceError::KeyTwice { key: pair[0].clone() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_count_keys_and_bytes() {
        let each = Limits { key_bytes: 4, value_bytes: 8, keys: 1, page_keys: 1 };
        let limits = TxnLimits { keys: 2, bytes: 20 };
        let part = |key: &'static str, guard, change| {
            TxnPart::new(Bytes::from_static(key.as_bytes()), guard, change)
        };
        let put = |n: usize| Some(Change::Put(Bytes::from(vec![0; n])));
        let check = |parts: &[TxnPart]| limits.check(&each, parts);
        assert_eq!(check(&[]), Err(KeyspaceError::NoKeys));
        assert_eq!(check(&[part("a", Guard::Always, put(8)), part("b", Guard::Always, put(8))]), Ok(()));
        let three = ["a", "b", "c"].map(|key| part(key, Guard::Present, None));
        assert_eq!(check(&three), Err(KeyspaceError::TooManyKeys { keys: 3, most: 2 }));
        let compared = Guard::Value(Bytes::from(vec![0; 3]));
        let long = [part("a", compared, put(8)), part("b", Guard::Always, put(8))];
        assert_eq!(check(&long), Err(KeyspaceError::TooManyBytes { bytes: 21, most: 20 }));
        let twice = [part("a", Guard::Always, None), part("a", Guard::Always, put(1))];
        assert_eq!(check(&twice), Err(KeyspaceError::KeyTwice { key: Bytes::from_static(b"a") }));
        let value = [part("a", Guard::Always, put(9))];
        assert_eq!(check(&value), Err(KeyspaceError::ValueTooLong { bytes: 9, most: 8 }));
        assert_eq!(
            check(&[part("", Guard::Always, None)]),
            Err(KeyspaceError::InvalidKey { bytes: 0, most: 4 })
        );
    }
}
