//! Jute, the encoding of ZooKeeper's wire: big-endian integers, lengths before strings, buffers and lists, no self-description.
//!
//! Values borrow from the frame that they are read from. Lengths are checked against what is left of the frame before anything is
//! allocated, and a frame itself is bounded by `jute.maxbuffer` before it is read (`server/connection.rs`).
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | primitives, lists, the `record!` macro |
//! | `codes.rs` | kinds of operations, errors, events, create modes |
//! | `records.rs` | Stat, ACL, headers, the handshake |
//! | `request.rs` | every request |
//! | `transaction.rs` | multi and multiRead |
//! | `reply.rs` | bodies of replies |

pub mod codes;
pub mod records;
pub mod reply;
pub mod request;
pub mod transaction;

/// Bytes that are no value of the type. Nothing was done with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JuteError {
    /// They end inside of it.
    #[error("{what}: needs {needed} bytes, {left} are left")]
    Short {
        /// What was read.
        what: &'static str,
        /// Bytes that it needs, at least.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A length below -1, which is null.
    #[error("{what}: a length of {length}; allowed: -1 and up")]
    Length {
        /// What was read.
        what: &'static str,
        /// Its length.
        length: i32,
    },
    /// A string that is no UTF-8.
    #[error("a string that is not UTF-8")]
    NotUtf8,
    /// A number that stands for nothing.
    #[error("{what}: {value} stands for nothing")]
    Unknown {
        /// What was read.
        what: &'static str,
        /// The number.
        value: i32,
    },
    /// More operations in one transaction than are taken.
    #[error("a transaction of more than {allowed} operations")]
    TooMany {
        /// The limit.
        allowed: usize,
    },
}

/// Reads values off the front of a frame.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader over all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// They are not there.
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

    /// A length: None stands for null.
    fn length(&mut self, what: &'static str) -> Result<Option<usize>, JuteError> {
        match i32::read(self)? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| JuteError::Length { what, length }),
        }
    }
}

/// Room that a value is written into at first: most take less, and a buffer that grows from nothing is allocated three times.
pub(crate) const USUAL_BYTES: usize = 128;

/// A value with a form in Jute.
pub trait Jute<'a>: Sized {
    /// Fewest bytes that a value takes: bounds the elements of a list before they are read.
    const LEAST_BYTES: usize;

    /// Reads one value.
    ///
    /// # Errors
    /// The bytes are none.
    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError>;

    /// Appends the value.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads a value at the beginning of `bytes`. Anything behind it is ignored: clients of later versions may send more.
    ///
    /// # Errors
    /// The bytes are none.
    fn parse(bytes: &'a [u8]) -> Result<Self, JuteError> {
        Self::read(&mut Reader::new(bytes))
    }

    /// The bytes of the value.
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

/// Longer values are refused long before they could be written: `jute.maxbuffer` bounds the input, pages bound the output.
fn write_length(n: usize, out: &mut Vec<u8>) {
    i32::try_from(n).expect("lengths are bounded far below 2 GiB").write(out);
}

/// A string. Null is read as the empty one, which no path, scheme or name is.
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

/// A buffer; None is null, which a znode's data may be.
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

/// A list. Null is read as the empty one.
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

/// A record: its fields one after the other.
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
