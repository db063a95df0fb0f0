//! Positions in a virtual log and offsets in a Loglet. They are different types: one cannot be converted to the other without its segment.

use std::fmt;

macro_rules! position {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The first place.
            pub const ZERO: $name = $name(0);

            /// The place `n` further on. Panics on overflow of u64, which no log reaches.
            #[must_use]
            pub fn plus(self, n: u64) -> Self {
                $name(self.0.checked_add(n).expect(concat!($what, " below 2^64")))
            }

            /// How many places lie in `[earlier, self)`; 0 if `earlier` is not earlier.
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
    /// A place in the virtual log: dense, from 0, and stable whichever Loglets come and go below it.
    LogPos,
    "log positions"
);
position!(
    /// A place in one Loglet: dense, from 0.
    Offset,
    "loglet offsets"
);
