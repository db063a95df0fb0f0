//! Writes that no thread waits for, through io_uring. Each goes to a file that is opened `O_DIRECT | O_DSYNC`: it bypasses the page cache,
//! and it is durable when it ends. One write is under way at most.
//!
//! This module holds all unsafe code of the crate. The kernel reads the buffer of a write until the write has ended, so the ring owns the
//! buffer, and frees it only when nothing is under way.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use crate::disk::{DIRECT_BLOCK_BYTES, DIRECT_BYTES};

/// An io_uring instance and the buffer of its only write.
pub(crate) struct Ring {
    uring: IoUring,
    buffer: Buffer,
    /// The length of the write that is under way, in bytes.
    under_way: Option<usize>,
    /// Whether the kernel refused a call. It is then unknown whether a write is under way, so the ring is never used again.
    broken: bool,
}

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        // A write and its end take one entry each.
        Ok(Ring { uring: IoUring::new(2)?, buffer: Buffer::new(), under_way: None, broken: false })
    }

    /// Returns a descriptor that becomes readable when a write ends.
    pub(crate) fn signal(&self) -> io::Result<OwnedFd> {
        // SAFETY: `self.uring` keeps the descriptor open, and outlives this borrow of it.
        let fd = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        fd.try_clone_to_owned()
    }

    /// Starts a write. See [`crate::disk::DirectFile::begin`].
    pub(crate) fn begin(&mut self, file: &fs::File, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = from.iter().map(|slice| slice.len()).sum();
        let block = DIRECT_BLOCK_BYTES;
        if self.broken || self.under_way.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if len == 0
            || len > DIRECT_BYTES
            || !len.is_multiple_of(block)
            || !offset.is_multiple_of(block as u64)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.buffer.fill(from);
        let fd = types::Fd(file.as_raw_fd());
        let write = opcode::Write::new(fd, self.buffer.start.as_ptr(), len as u32).offset(offset).build();
        // SAFETY: The buffer has `DIRECT_BYTES` bytes, which is at least `len`. It stays where it is, and nobody changes or frees it until
        // the write has ended: `fill` runs only when nothing is under way, and `drop` waits, or leaks it. The kernel holds the file open
        // from the submission on, which happens below while `file` is borrowed; if it fails, the ring is not entered again.
        let pushed = unsafe { self.uring.submission().push(&write) };
        if pushed.is_err() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        loop {
            match self.uring.submit() {
                Ok(1) => break,
                // Nothing was submitted, and the entry is still in the queue.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => {
                    self.broken = true;
                    return Err(other.err().unwrap_or(io::ErrorKind::Other.into()));
                }
            }
        }
        self.under_way = Some(len);
        Ok(())
    }

    /// Returns the result of the write, if it has ended.
    pub(crate) fn poll(&mut self) -> Option<io::Result<()>> {
        let len = self.under_way?;
        let result = self.uring.completion().next()?.result();
        self.under_way = None;
        Some(match usize::try_from(result) {
            Ok(n) if n == len => Ok(()),
            // What is missing may be in the middle: nothing of it counts.
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        })
    }

    /// Waits for the end of the write for about `patience` at most, and returns its result if it has ended.
    pub(crate) fn wait_at_most(&mut self, patience: Duration) -> Option<io::Result<()>> {
        let ended = self.poll();
        if ended.is_some()
            || self.under_way.is_none()
            || self.broken
            || !self.uring.params().is_feature_ext_arg()
        {
            return ended;
        }
        let until = types::Timespec::from(patience);
        // However this ends, the write has ended or it has not: a signal or the end of the patience only say that it is time to look.
        let _ = self.uring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&until));
        self.poll()
    }

    /// Waits for the end of the write, and returns its result.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        loop {
            if let Some(result) = self.poll() {
                return result;
            }
            if self.under_way.is_none() || self.broken {
                return Err(io::ErrorKind::NotFound.into());
            }
            match self.uring.submitter().submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.broken = true;
                    return Err(e);
                }
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel still reads the buffer.
        if self.under_way.is_some() && !self.broken {
            let _ = self.wait();
        }
        if self.broken {
            self.buffer.leak();
        }
    }
}

/// Memory that a device can read directly.
struct Buffer {
    start: NonNull<u8>,
    leaked: bool,
}

// SAFETY: the memory belongs to this value alone, and is not bound to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    const LAYOUT: Layout = match Layout::from_size_align(DIRECT_BYTES, DIRECT_BLOCK_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("the alignment is a power of two"),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(Self::LAYOUT) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(Self::LAYOUT) };
        Buffer { start, leaked: false }
    }

    /// Copies the slices, one after the other, to the start. They have at most [`DIRECT_BYTES`] bytes.
    fn fill(&mut self, from: &[IoSlice<'_>]) {
        // SAFETY: The memory has `DIRECT_BYTES` bytes, which were zeroed at the start. The borrow of `self` makes this the only access of
        // the program, and the callers fill only when no write is under way.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), DIRECT_BYTES) };
        let mut at = 0;
        for slice in from {
            all[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
    }

    fn leak(&mut self) {
        self.leaked = true;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: the memory is from `alloc_zeroed` with this layout, and nobody has freed it.
            unsafe { dealloc(self.start.as_ptr(), Self::LAYOUT) }
        }
    }
}
