//! Positions in a virtual log and offsets in a Loglet. They are different types, because one cannot be converted to the other without its
//! segment.

use std::fmt;

macro_rules! position {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The first one.
            pub const ZERO: $name = $name(0);

            /// Returns this one plus `n`. Panics on overflow of u64, which no log reaches.
            #[must_use]
            pub fn plus(self, n: u64) -> Self {
                $name(self.0.checked_add(n).expect(concat!($what, " below 2^64")))
            }

            /// Returns the length of `[earlier, self)`; 0 if `earlier` is not earlier.
            #[must_use]
            pub fn since(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl atoll_core::Encode for $name {
            fn encode(&self, out: &mut bytes::BytesMut) {
                self.0.encode(out);
            }
        }

        impl atoll_core::Decode for $name {
            fn decode(from: &mut atoll_core::Reader) -> Result<Self, atoll_core::DecodeError> {
                Ok($name(u64::decode(from)?))
            }
        }
    };
}

position!(
    /// A position in a virtual log. Positions are counted from 0 without gaps, and do not change when Loglets below the log come and go.
    LogPos,
    "log positions"
);
position!(
    /// An offset in one Loglet, counted from 0 without gaps.
    Offset,
    "loglet offsets"
);
