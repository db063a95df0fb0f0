//! Registers of a single node, all in one small file that is replaced as a whole, for `atoll serve` without a cluster, for tests, and for
//! tools.
//!
//! This is the simplest correct design: every write replaces the content of a [`Cell`] durably and then answers. There is no log, and
//! recovery just reads the file. The content is kept in memory, so reads cost nothing. Each write costs one replacement, so this suits a
//! few registers (one per log) that change rarely. A node that will ever be part of a cluster should start with an RMWPaxos group of one
//! member instead, which can grow.
//!
//! The I/O is blocking and happens where the returned future is polled.
//!
//! | contract (`atoll-contract`, `register.rs`) | here |
//! | --- | --- |
//! | read → (version, value) | `Inner::read`, from memory |
//! | write_if → done, conflict or unknown | `Inner::write_if`: the rules of RMWPaxos for one register, then a replacement of the cell |
//! | a list of the registers | `FileRegisters::list` |
//! | (atomic and durable replacement) | `cell.rs` |
//! | (the content, its version and checksum) | `content.rs` |

mod cell;
mod content;
pub mod mutants;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_contract::register::MAX_VALUE_BYTES;
use atoll_contract::register::{MAX_NAME_BYTES, Unavailability};
use atoll_contract::{Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::testing::mutant;
use atoll_core::{BoxFuture, DecodeError};
use bytes::Bytes;

pub use cell::{Cell, CellError, FileCell};

use atoll_rmwpaxos::RegisterState;

/// Maximum number of bytes of all registers together.
pub const MAX_CONTENT_BYTES: usize = 64 * 1024 * 1024;

/// Why the registers cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The cell cannot be read.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// The content is not what was written: the disk is damaged, or this is a different file.
    #[error("the registers' content is damaged: {0}")]
    Damaged(&'static str),
    /// Another version of the program wrote the content.
    #[error("the registers' content has format {found}; this version reads format {known}")]
    Format {
        /// The format version found.
        found: u16,
        /// The newest format version that this program knows.
        known: u16,
    },
    /// The checksum is correct, but the content does not decode.
    #[error("the registers' content is not readable: {0}; it was written by another version")]
    Unreadable(#[from] DecodeError),
}

struct Inner {
    cell: Box<dyn Cell>,
    states: BTreeMap<String, RegisterState>,
    /// Whether a replacement failed, so that the content on disk is unknown. No request is then answered until the registers are opened
    /// again.
    failed: bool,
}

/// See the module documentation. Cheap to clone.
#[derive(Clone)]
pub struct FileRegisters(Arc<Mutex<Inner>>);

impl fmt::Debug for FileRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileRegisters")
    }
}

impl FileRegisters {
    /// Opens the registers in this cell. There are none if it was never written.
    pub fn open(cell: Box<dyn Cell>) -> Result<Self, OpenError> {
        let states = match cell.load()? {
            Some(bytes) => content::decode(bytes)?,
            None => BTreeMap::new(),
        };
        Ok(FileRegisters(Arc::new(Mutex::new(Inner { cell, states, failed: false }))))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn usable(&self) -> Result<(), RegisterError> {
        if self.failed { Err(RegisterError::NotWritten(Unavailability::StorageFailed)) } else { Ok(()) }
    }

    fn read(&self, name: &str) -> Result<Versioned, RegisterError> {
        self.usable()?;
        Ok(self.states.get(name).map(RegisterState::versioned).unwrap_or_default())
    }

    fn write_if(
        &mut self,
        name: &str,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> Result<Written, RegisterError> {
        self.usable()?;
        let empty = RegisterState::empty();
        let base = self.states.get(name).unwrap_or(&empty);
        let (state, written) = match base.write_if(expected, &value, nonce) {
            (state, Some(written)) => (state, written),
            // As in RMWPaxos: after too many later writes, the outcome is unknown.
            (_, None) => return Err(RegisterError::Unknown(Unavailability::Busy)),
        };
        let Some(state) = state else { return Ok(written) };
        let before = self.states.insert(name.to_owned(), state);
        let bytes = content::encode(&self.states);
        if bytes.len() > MAX_CONTENT_BYTES {
            match before {
                Some(before) => self.states.insert(name.to_owned(), before),
                None => self.states.remove(name),
            };
            return Err(RegisterError::NotWritten(Unavailability::DiskFull));
        }
        if self.cell.replace(&bytes).is_err() {
            // Either the old or the new content may be on disk, so no caller may get either one as an answer (native-T22).
            self.failed = !mutant(mutants::FILE_ANSWERS_AFTER_FAILURE);
            return Err(RegisterError::Unknown(Unavailability::StorageFailed));
        }
        Ok(written)
    }
}

impl Registers for FileRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(FileRegister { registers: self.clone(), name: name.to_owned() })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let inner = self.inner();
        let names = inner.usable().map(|()| {
            let from = (Bound::Included(prefix.to_owned()), Bound::Unbounded);
            let all = inner.states.range(from).take_while(|(n, _)| n.starts_with(prefix));
            all.map(|(n, s)| Listed { name: n.clone(), mark: s.nonces.last().copied() }).collect()
        });
        Box::pin(std::future::ready(names))
    }
}

#[derive(Debug)]
struct FileRegister {
    registers: FileRegisters,
    name: String,
}

impl FileRegister {
    fn check_name(&self) -> Result<(), RegisterError> {
        let usable = (1..=MAX_NAME_BYTES).contains(&self.name.len());
        if usable { Ok(()) } else { Err(RegisterError::InvalidName(self.name.len())) }
    }
}

impl Register for FileRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(async move {
            self.check_name()?;
            self.registers.inner().read(&self.name)
        })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(async move {
            self.check_name()?;
            if value.len() > MAX_VALUE_BYTES {
                return Err(RegisterError::TooLarge(value.len()));
            }
            self.registers.inner().write_if(&self.name, expected, value, nonce)
        })
    }
}
