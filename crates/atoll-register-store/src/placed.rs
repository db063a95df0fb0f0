//! What is in the register of one place: the value that users see, and where the register continues.

use atoll_contract::register::{MAX_MOVABLE_BYTES, MAX_VALUE_BYTES};
use atoll_contract::{Nonce, Version, Versioned};
use atoll_core::{Decode, Encode};
use bytes::{BufMut, Bytes, BytesMut};

/// Values that begin like this are records. Every other one is the value itself, of a register that has never moved.
const MARK: &[u8] = b"\0atoll-placed-1";
/// Bytes before the record: the mark, and a checksum.
const HEADER_BYTES: usize = MARK.len() + 4;
/// The longest name of a place, in bytes.
pub(crate) const MAX_PLACE_BYTES: usize = 256;

atoll_core::record! {
    /// See the module documentation.
    pub struct Placed {
        /// Counts the moves of this register. There is one place for each turn.
        pub turn: u64,
        /// The version of the register of this place that began the turn here.
        pub since: u64,
        /// The version that users see.
        pub version: u64,
        /// The nonce of the write that made that version.
        pub nonce: u128,
        /// The value that users see.
        pub value: Bytes,
        /// The place at which the register continues, in this turn. Nothing else is written here until it comes back. None if it is here.
        pub to: Option<String>,
        /// Whether it has got there.
        pub arrived: bool,
    }
}

impl Placed {
    /// Reads the value of the register of a place. None if it was never written. The error says what is wrong with it.
    pub(crate) fn read(seen: &Versioned) -> Result<Option<Self>, String> {
        if seen.version == Version(0) {
            return Ok(None);
        }
        if !seen.value.starts_with(MARK) {
            return Ok(Some(Self::plain(seen)));
        }
        let Some((head, _)) = seen.value.split_at_checked(HEADER_BYTES) else {
            return Err("the record of a register that moves is cut off".to_owned());
        };
        let rest = seen.value.slice(HEADER_BYTES..);
        if head[MARK.len()..] != crc32c::crc32c(&rest).to_le_bytes() {
            return Err("the record of a register that moves does not fit its checksum".to_owned());
        }
        let placed = Self::from_bytes(rest).map_err(|error| error.to_string())?;
        if placed.since > seen.version.0 {
            return Err("the record of a register that moves begins after itself".to_owned());
        }
        Ok(Some(placed))
    }

    /// Returns what a register is that has never moved.
    pub(crate) fn plain(seen: &Versioned) -> Self {
        let Versioned { version, value, nonce } = seen.clone();
        Placed { turn: 0, since: 0, version: version.0, nonce: nonce.0, value, to: None, arrived: false }
    }

    /// Returns the value for the register of a place.
    pub(crate) fn written(&self) -> Bytes {
        if self.turn == 0 && !self.value.starts_with(MARK) {
            return self.value.clone();
        }
        let record = self.to_bytes();
        let mut out = BytesMut::with_capacity(HEADER_BYTES + record.len());
        out.put_slice(MARK);
        out.put_u32_le(crc32c::crc32c(&record));
        out.put_slice(&record);
        out.freeze()
    }

    /// Returns the longest value that fits beside the other fields.
    pub(crate) fn most_bytes(turn: u64, value: &Bytes) -> usize {
        if turn == 0 && !value.starts_with(MARK) { MAX_VALUE_BYTES } else { MAX_MOVABLE_BYTES }
    }

    /// Returns what users see.
    pub(crate) fn versioned(&self) -> Versioned {
        Versioned { version: Version(self.version), value: self.value.clone(), nonce: Nonce(self.nonce) }
    }
}

/// What the register of one place says about a register that moves, for those who have only the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// What users saw there last.
    pub value: Versioned,
    /// Counts the moves.
    pub turn: u64,
    /// The place where it continues; None if it is here.
    pub to: Option<String>,
    /// Whether it has got there.
    pub arrived: bool,
}

impl Left {
    /// Reads the value of the register of a place. None if it was never written.
    ///
    /// # Errors
    /// It is damaged; the error says how.
    pub fn read(seen: &Versioned) -> Result<Option<Self>, String> {
        let left = |placed: Placed| Left {
            value: placed.versioned(),
            turn: placed.turn,
            to: placed.to,
            arrived: placed.arrived,
        };
        Ok(Placed::read(seen)?.map(left))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn seen(version: u64, value: Bytes) -> Versioned {
        Versioned { version: Version(version), value, nonce: Nonce(7) }
    }

    fn moved() -> Placed {
        Placed {
            turn: 3,
            since: 2,
            version: 9,
            nonce: 8,
            value: Bytes::from_static(b"chain"),
            to: Some("b".repeat(MAX_PLACE_BYTES)),
            arrived: true,
        }
    }

    #[test]
    fn a_value_that_never_moved_is_kept_as_it_is() {
        let plain = seen(4, Bytes::from_static(b"chain"));
        let placed = Placed::read(&plain).unwrap().unwrap();
        assert_eq!((placed.written(), placed.versioned()), (plain.value.clone(), plain));
        assert_eq!(Placed::read(&Versioned::default()), Ok(None));
        let left = Left::read(&seen(2, moved().written())).unwrap().unwrap();
        assert_eq!((left.value, left.turn, left.to), (moved().versioned(), 3, moved().to));
    }

    #[test]
    fn a_value_that_looks_like_a_record_is_none() {
        let sly = Placed::plain(&seen(4, moved().written()));
        assert_eq!(Placed::read(&seen(4, sly.written())), Ok(Some(sly)));
    }

    #[test]
    fn an_altered_record_is_refused() {
        let bytes = moved().written();
        assert_eq!(Placed::read(&seen(2, bytes.clone())), Ok(Some(moved())));
        assert!(Placed::read(&seen(1, bytes.clone())).is_err(), "it began at version 2");
        for at in MARK.len()..bytes.len() {
            let mut altered = bytes.to_vec();
            altered[at] ^= 0x20;
            assert!(Placed::read(&seen(2, altered.into())).is_err(), "byte {at}");
            assert!(Placed::read(&seen(2, bytes.slice(..at))).is_err(), "the first {at} bytes");
        }
    }

    #[test]
    fn the_longest_value_fits() {
        let longest = Placed { value: vec![0; MAX_MOVABLE_BYTES].into(), ..moved() };
        assert!(longest.written().len() <= MAX_VALUE_BYTES);
    }
}
