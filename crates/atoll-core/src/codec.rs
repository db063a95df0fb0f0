//! Encodes values for messages and for the journal: little endian, fields in a fixed order, not self-describing.
//!
//! Every decoder checks lengths against the available bytes before it allocates, and names the field that is wrong.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A message or record that cannot be decoded. Nothing of it was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a value.
    #[error("{what}: needs {needed} more bytes, {left} are left")]
    Short {
        /// The type being read.
        what: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A tag or value is outside the allowed range.
    #[error("{what}: {value} is not allowed ({allowed})")]
    Invalid {
        /// The type being read.
        what: &'static str,
        /// What was read.
        value: u64,
        /// What would have been accepted.
        allowed: &'static str,
    },
    /// Bytes are left over after a complete value.
    #[error("{what}: {left} bytes left over")]
    Trailing {
        /// The type that was read.
        what: &'static str,
        /// The number of bytes after it.
        left: usize,
    },
    /// The frame holds another kind of message than was expected.
    #[error("expected {expected}, got kind {got}")]
    WrongKind {
        /// The message type wanted.
        expected: &'static str,
        /// The kind in the frame.
        got: u16,
    },
    /// The data was written at a feature level that this program does not read.
    #[error(transparent)]
    Level(#[from] crate::level::LevelError),
}

/// Reads values from the front of a byte buffer, without copying payloads.
#[derive(Clone, Debug)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Returns a reader over all of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes that are not read yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Takes the next `n` bytes, which share the buffer.
    pub fn take(&mut self, n: usize, what: &'static str) -> Result<Bytes, DecodeError> {
        if n > self.rest.len() {
            return Err(DecodeError::Short { what, needed: n, left: self.rest.len() });
        }
        Ok(self.rest.split_to(n))
    }

    fn need(&self, n: usize, what: &'static str) -> Result<(), DecodeError> {
        if self.rest.len() < n {
            return Err(DecodeError::Short { what, needed: n, left: self.rest.len() });
        }
        Ok(())
    }

    /// Checks that everything was read. The error says how much is left over.
    pub fn finish(&self, what: &'static str) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { what, left }),
        }
    }
}

/// Initial capacity of an encoding buffer. Most heads are smaller, and a buffer that grows from empty is allocated three times.
const USUAL_BYTES: usize = 128;

/// A value that can be encoded as bytes.
pub trait Encode {
    /// Appends the encoded value to `out`.
    fn encode(&self, out: &mut BytesMut);

    /// Returns the encoded value.
    fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(USUAL_BYTES);
        self.encode(&mut out);
        out.freeze()
    }
}

/// A value that can be decoded.
pub trait Decode: Sized {
    /// Reads one value and leaves the reader right after it.
    fn decode(from: &mut Reader) -> Result<Self, DecodeError>;

    /// Reads one value that must take up all of `bytes`.
    fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        let value = Self::decode(&mut from)?;
        from.finish(std::any::type_name::<Self>())?;
        Ok(value)
    }
}

macro_rules! integer {
    ($($type:ty, $put:ident, $get:ident);*) => {$(
        impl Encode for $type {
            fn encode(&self, out: &mut BytesMut) { out.$put(*self); }
        }
        impl Decode for $type {
            fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
                from.need(size_of::<$type>(), stringify!($type))?;
                Ok(from.rest.$get())
            }
        }
    )*};
}
integer!(u8, put_u8, get_u8; u16, put_u16_le, get_u16_le; u32, put_u32_le, get_u32_le;
         u64, put_u64_le, get_u64_le; u128, put_u128_le, get_u128_le);

impl Encode for bool {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(DecodeError::Invalid { what: "bool", value: n.into(), allowed: "0 or 1" }),
        }
    }
}

/// Writes the length prefix of bytes and lists. Lengths are u32: no control-plane value is 4 GiB long, and frames are bounded far below
/// that.
pub fn put_len(n: usize, out: &mut BytesMut) {
    out.put_u32_le(u32::try_from(n).expect("lengths are checked against frame limits before encoding"));
}

impl Encode for Bytes {
    fn encode(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        out.extend_from_slice(self);
    }
}

impl Decode for Bytes {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let n = u32::decode(from)? as usize;
        from.take(n, "bytes")
    }
}

impl Encode for String {
    fn encode(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
}

impl Decode for String {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let bytes = Bytes::decode(from)?;
        String::from_utf8(bytes.to_vec()).map_err(|e| DecodeError::Invalid {
            what: "string",
            value: e.utf8_error().valid_up_to() as u64,
            allowed: "UTF-8; the value is where it stops being so",
        })
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut BytesMut) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if bool::decode(from)? { Some(T::decode(from)?) } else { None })
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        for item in self {
            item.encode(out);
        }
    }
}

/// A list that is encoded item by item, with the same bytes as a [`Vec`] of the items. Their number is filled in at the end.
#[derive(Debug)]
pub struct OpenList {
    at: usize,
    count: usize,
}

impl OpenList {
    /// Begins a list at the end of `out`.
    pub fn begin(out: &mut BytesMut) -> Self {
        let at = out.len();
        put_len(0, out);
        OpenList { at, count: 0 }
    }

    /// Appends one item.
    pub fn push(&mut self, item: &impl Encode, out: &mut BytesMut) {
        item.encode(out);
        self.count_one();
    }

    /// Counts an item whose bytes are already in `out`.
    pub fn count_one(&mut self) {
        self.count += 1;
    }

    /// Ends the list and fills in its length.
    pub fn end(self, out: &mut BytesMut) {
        let mut count = BytesMut::with_capacity(4);
        put_len(self.count, &mut count);
        out[self.at..self.at + 4].copy_from_slice(&count);
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let n = u32::decode(from)? as usize;
        // Every item takes at least one byte, so a wrong length cannot make this node allocate more than it received.
        from.need(n, "list")?;
        let mut items = Vec::with_capacity(n.min(1024));
        for _ in 0..n {
            items.push(T::decode(from)?);
        }
        Ok(items)
    }
}

impl<K: Encode, V: Encode> Encode for std::collections::BTreeMap<K, V> {
    fn encode(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        for (k, v) in self {
            k.encode(out);
            v.encode(out);
        }
    }
}

impl<K: Decode + Ord, V: Decode> Decode for std::collections::BTreeMap<K, V> {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Vec::<(K, V)>::decode(from)?.into_iter().collect())
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut BytesMut) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

/// Declares a struct that is encoded as its fields in order.
///
/// `record! { /// doc  pub struct Name { /// doc  pub field: Type, } }`
#[macro_export]
macro_rules! record {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$fdoc:meta])* pub $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type),* }

        impl $crate::codec::Encode for $name {
            #[allow(unused_variables)]
            fn encode(&self, out: &mut ::bytes::BytesMut) {
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }
        }

        impl $crate::codec::Decode for $name {
            #[allow(unused_variables)]
            fn decode(from: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::codec::Decode::decode(from)?),* })
            }
        }
    };
}

/// Declares an enum that is encoded as a tag byte, followed by the fields of the variant.
///
/// `choice! { /// doc  pub enum Name { /// doc  0 = A {}, /// doc  1 = B { x: u64 }, } }`
#[macro_export]
macro_rules! choice {
    ($(#[$doc:meta])* pub enum $name:ident {
        $($(#[$vdoc:meta])* $tag:literal = $variant:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? }),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // The documentation of a variant covers its fields.
        pub enum $name { $($(#[$vdoc])* $variant { $($(#[$fdoc])* $field: $type),* }),* }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut ::bytes::BytesMut) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        $crate::codec::Encode::encode(&($tag as u8), out);
                        $($crate::codec::Encode::encode($field, out);)*
                    })*
                }
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(from: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Decode>::decode(from)? {
                    $($tag => Ok(Self::$variant { $($field: $crate::codec::Decode::decode(from)?),* }),)*
                    n => Err($crate::codec::DecodeError::Invalid {
                        what: stringify!($name),
                        value: n.into(),
                        allowed: concat!("tags ", $(stringify!($tag), " "),*),
                    }),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    record! {
        /// A test record.
        pub struct Sample {
            /// Number.
            pub n: u64,
            /// Maybe.
            pub maybe: Option<String>,
            /// Blob.
            pub blob: Bytes,
            /// List.
            pub list: Vec<u16>,
        }
    }

    choice! {
        /// A test choice.
        pub enum Pick {
            /// Nothing.
            0 = None {},
            /// Something.
            7 = Some { what: u32 },
        }
    }

    #[test]
    fn round_trip_and_every_truncation_is_refused() {
        let value = Sample {
            n: 7,
            maybe: Some("reef".into()),
            blob: Bytes::from_static(b"abc"),
            list: vec![1, 2, 3],
        };
        let bytes = value.to_bytes();
        assert_eq!(Sample::from_bytes(bytes.clone()), Ok(value));
        for n in 0..bytes.len() {
            assert!(Sample::from_bytes(bytes.slice(..n)).is_err(), "truncated at {n}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(matches!(Sample::from_bytes(longer.into()), Err(DecodeError::Trailing { left: 1, .. })));
    }

    #[test]
    fn lying_lengths_and_tags_are_refused() {
        assert!(Vec::<u64>::from_bytes(Bytes::from_static(&[255, 255, 255, 255, 0])).is_err());
        assert!(Bytes::from_bytes(Bytes::from_static(&[255, 255, 255, 255])).is_err());
        assert!(bool::from_bytes(Bytes::from_static(&[2])).is_err());
        assert_eq!(Pick::from_bytes(Pick::Some { what: 3 }.to_bytes()), Ok(Pick::Some { what: 3 }));
        assert!(matches!(
            Pick::from_bytes(Bytes::from_static(&[1])),
            Err(DecodeError::Invalid { value: 1, .. })
        ));
    }
}
