//! Jute, the encoding of ZooKeeper's wire protocol: big-endian integers; strings, buffers and lists preceded by their lengths. The
//! encoding does not describe itself.
//!
//! Decoded values borrow from the frame. Lengths are checked against the rest of the frame before anything is allocated, and
//! `jute.maxbuffer` limits a frame before it is read (`server/connection.rs`).
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | primitives, lists, the `record!` macro |
//! | `codes.rs` | codes of operations, errors, events, create modes |
//! | `records.rs` | Stat, ACL, headers, the handshake |
//! | `request.rs` | all requests |
//! | `transaction.rs` | multi and multiRead |
//! | `reply.rs` | bodies of replies |

pub mod codes;
pub mod records;
pub mod reply;
pub mod request;
pub mod transaction;

/// The bytes are not a value of the type. Nothing was done with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JuteError {
    /// The bytes end within the value.
    #[error("{what}: needs {needed} bytes, {left} are left")]
    Short {
        /// The type that was decoded.
        what: &'static str,
        /// The bytes that it needs, at least.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// A length below -1. The length -1 means null.
    #[error("{what}: a length of {length}; allowed: -1 or more")]
    Length {
        /// The type that was decoded.
        what: &'static str,
        /// The length.
        length: i32,
    },
    /// A string is not UTF-8.
    #[error("a string that is not UTF-8")]
    NotUtf8,
    /// A number has no meaning.
    #[error("{what}: {value} is not defined")]
    Unknown {
        /// The type that was decoded.
        what: &'static str,
        /// The number.
        value: i32,
    },
    /// A transaction has too many operations.
    #[error("a transaction of more than {allowed} operations")]
    TooMany {
        /// The limit.
        allowed: usize,
    },
}

/// Decodes values from the front of a frame.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader for all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Returns the bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the next `n` bytes.
    ///
    /// # Errors
    /// There are fewer bytes.
    pub fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], JuteError> {
        let Some((head, rest)) = self.rest.split_at_checked(n) else {
            return Err(JuteError::Short { what, needed: n, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], JuteError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(JuteError::Short { what, needed: N, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(*head)
    }

    /// Reads a length. Returns None for null.
    fn length(&mut self, what: &'static str) -> Result<Option<usize>, JuteError> {
        match i32::read(self)? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| JuteError::Length { what, length }),
        }
    }
}

/// Initial capacity for encoding a value. Most values take less. A buffer that starts empty would be allocated three times.
pub(crate) const USUAL_BYTES: usize = 128;

/// A type with an encoding in Jute.
pub trait Jute<'a>: Sized {
    /// The fewest bytes that a value takes. With it, the length of a list is checked before its elements are read.
    const LEAST_BYTES: usize;

    /// Decodes one value.
    ///
    /// # Errors
    /// The bytes are not a value of this type.
    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError>;

    /// Appends the encoded value.
    fn write(&self, out: &mut Vec<u8>);

    /// Decodes a value from the beginning of `bytes`. The rest is ignored, because later versions of clients may send more.
    ///
    /// # Errors
    /// The bytes are not a value of this type.
    fn parse(bytes: &'a [u8]) -> Result<Self, JuteError> {
        Self::read(&mut Reader::new(bytes))
    }

    /// Returns the encoded value.
    fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(USUAL_BYTES);
        self.write(&mut out);
        out
    }
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Jute<'_> for $type {
            const LEAST_BYTES: usize = size_of::<$type>();
            fn read(from: &mut Reader<'_>) -> Result<Self, JuteError> {
                from.array(stringify!($type)).map(<$type>::from_be_bytes)
            }
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integer!(i32, i64, u64);

impl Jute<'_> for bool {
    const LEAST_BYTES: usize = 1;

    fn read(from: &mut Reader<'_>) -> Result<Self, JuteError> {
        from.array::<1>("boolean").map(|[b]| b != 0)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

/// Appends a length. It cannot exceed `i32::MAX`, because `jute.maxbuffer` limits the input and `max_reply_bytes` the output.
fn write_length(n: usize, out: &mut Vec<u8>) {
    i32::try_from(n).expect("lengths are bounded far below 2 GiB").write(out);
}

/// A string. Null is read as the empty string, which is no valid path, scheme or name.
impl<'a> Jute<'a> for &'a str {
    const LEAST_BYTES: usize = 4;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        let length = from.length("string")?.unwrap_or(0);
        std::str::from_utf8(from.take(length, "string")?).map_err(|_| JuteError::NotUtf8)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_length(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
}

/// A buffer. None is null, as for znodes without data.
impl<'a> Jute<'a> for Option<&'a [u8]> {
    const LEAST_BYTES: usize = 4;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        from.length("buffer")?.map(|n| from.take(n, "buffer")).transpose()
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            None => (-1_i32).write(out),
            Some(bytes) => {
                write_length(bytes.len(), out);
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// A list. Null is read as the empty list.
impl<'a, T: Jute<'a>> Jute<'a> for Vec<T> {
    const LEAST_BYTES: usize = 4;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        let count = from.length("list")?.unwrap_or(0);
        let needed = count.saturating_mul(T::LEAST_BYTES.max(1));
        if needed > from.rest.len() {
            return Err(JuteError::Short { what: "list", needed, left: from.rest.len() });
        }
        (0..count).map(|_| T::read(from)).collect()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_length(self.len(), out);
        self.iter().for_each(|item| item.write(out));
    }
}

/// Defines a record and its encoding: its fields one after the other.
macro_rules! record {
    ($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        pub struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }
        impl<'a> $crate::jute::Jute<'a> for $name $(<$life>)? {
            const LEAST_BYTES: usize = 0 $(+ <$type as $crate::jute::Jute<'a>>::LEAST_BYTES)*;
            fn read(_from: &mut $crate::jute::Reader<'a>) -> Result<Self, $crate::jute::JuteError> {
                Ok($name { $($field: <$type as $crate::jute::Jute<'a>>::read(_from)?,)* })
            }
            fn write(&self, _out: &mut Vec<u8>) {
                $($crate::jute::Jute::write(&self.$field, _out);)*
            }
        }
    };
}
pub(crate) use record;
