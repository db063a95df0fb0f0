//! multi and multiRead: a sequence of operations, each preceded by a header, and a header that ends the sequence.

use super::codes::{ErrorCode, OpCode};
use super::records::Stat;
use super::request::{CreateRequest, CreateTtlRequest, SetDataRequest, VersionRequest, WatchedRequest};
use super::{Jute, JuteError, Reader, record};

/// Most operations in a transaction. ZooKeeper has no such limit, but a frame of `jute.maxbuffer` holds about as many.
pub const MAX_OPERATIONS: usize = 32 * 1024;
/// The type of a result that is an error.
const ERROR_TYPE: i32 = -1;

record! {
    /// The header of each operation and each result.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    MultiHeader {
        /// The operation; -1 for an error and for the end.
        op: i32,
        /// Whether this header ends the sequence.
        done: bool,
        /// In a result, 0 or an error code; in a request, -1.
        err: i32,
    }
}

impl MultiHeader {
    const END: MultiHeader = MultiHeader { op: -1, done: true, err: -1 };
}

/// One operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are ZooKeeper's.
pub enum MultiOp<'a> {
    Create(CreateRequest<'a>),
    Create2(CreateRequest<'a>),
    CreateContainer(CreateRequest<'a>),
    CreateTtl(CreateTtlRequest<'a>),
    Delete(VersionRequest<'a>),
    SetData(SetDataRequest<'a>),
    Check(VersionRequest<'a>),
}

impl MultiOp<'_> {
    /// Returns the code of the operation.
    pub fn op(&self) -> OpCode {
        match self {
            MultiOp::Create(_) => OpCode::Create,
            MultiOp::Create2(_) => OpCode::Create2,
            MultiOp::CreateContainer(_) => OpCode::CreateContainer,
            MultiOp::CreateTtl(_) => OpCode::CreateTtl,
            MultiOp::Delete(_) => OpCode::Delete,
            MultiOp::SetData(_) => OpCode::SetData,
            MultiOp::Check(_) => OpCode::Check,
        }
    }
}

/// A transaction: all of its operations happen, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultiRequest<'a> {
    /// The operations, in order.
    pub ops: Vec<MultiOp<'a>>,
}

/// Reads a sequence up to the header that ends it.
fn read_all<'a, T>(
    from: &mut Reader<'a>,
    mut one: impl FnMut(i32, &mut Reader<'a>) -> Result<T, JuteError>,
) -> Result<Vec<T>, JuteError> {
    let mut out = Vec::new();
    loop {
        let header = MultiHeader::read(from)?;
        if header.done {
            return Ok(out);
        }
        if out.len() == MAX_OPERATIONS {
            return Err(JuteError::TooMany { allowed: MAX_OPERATIONS });
        }
        out.push(one(header.op, from)?);
    }
}

impl<'a> Jute<'a> for MultiRequest<'a> {
    const LEAST_BYTES: usize = MultiHeader::LEAST_BYTES;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        let ops = read_all(from, |op, from| {
            Ok(match OpCode::of(op) {
                Some(OpCode::Create) => MultiOp::Create(Jute::read(from)?),
                Some(OpCode::Create2) => MultiOp::Create2(Jute::read(from)?),
                Some(OpCode::CreateContainer) => MultiOp::CreateContainer(Jute::read(from)?),
                Some(OpCode::CreateTtl) => MultiOp::CreateTtl(Jute::read(from)?),
                Some(OpCode::Delete) => MultiOp::Delete(Jute::read(from)?),
                Some(OpCode::SetData) => MultiOp::SetData(Jute::read(from)?),
                Some(OpCode::Check) => MultiOp::Check(Jute::read(from)?),
                _ => return Err(JuteError::Unknown { what: "operation of a transaction", value: op }),
            })
        })?;
        Ok(MultiRequest { ops })
    }

    fn write(&self, out: &mut Vec<u8>) {
        for op in &self.ops {
            MultiHeader { op: op.op().number(), done: false, err: -1 }.write(out);
            match op {
                MultiOp::Create(r) | MultiOp::Create2(r) | MultiOp::CreateContainer(r) => r.write(out),
                MultiOp::CreateTtl(r) => r.write(out),
                MultiOp::Delete(r) | MultiOp::Check(r) => r.write(out),
                MultiOp::SetData(r) => r.write(out),
            }
        }
        MultiHeader::END.write(out);
    }
}

/// An operation of a multiRead. Its watch flag is ignored, as in ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are ZooKeeper's.
pub enum MultiReadOp<'a> {
    GetData(WatchedRequest<'a>),
    GetChildren(WatchedRequest<'a>),
}

/// Several reads of the same state, each with its own result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultiReadRequest<'a> {
    /// The operations, in order.
    pub ops: Vec<MultiReadOp<'a>>,
}

impl<'a> Jute<'a> for MultiReadRequest<'a> {
    const LEAST_BYTES: usize = MultiHeader::LEAST_BYTES;

    fn read(from: &mut Reader<'a>) -> Result<Self, JuteError> {
        let ops = read_all(from, |op, from| {
            Ok(match OpCode::of(op) {
                Some(OpCode::GetData) => MultiReadOp::GetData(Jute::read(from)?),
                Some(OpCode::GetChildren) => MultiReadOp::GetChildren(Jute::read(from)?),
                _ => return Err(JuteError::Unknown { what: "operation of a multiRead", value: op }),
            })
        })?;
        Ok(MultiReadRequest { ops })
    }

    fn write(&self, out: &mut Vec<u8>) {
        for op in &self.ops {
            let (op, request) = match op {
                MultiReadOp::GetData(r) => (OpCode::GetData, r),
                MultiReadOp::GetChildren(r) => (OpCode::GetChildren, r),
            };
            MultiHeader { op: op.number(), done: false, err: -1 }.write(out);
            request.write(out);
        }
        MultiHeader::END.write(out);
    }
}

/// One result of a multi or multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are ZooKeeper's.
pub enum MultiResult<'a> {
    Create(&'a str),
    Create2(&'a str, Stat),
    Delete,
    SetData(Stat),
    Check,
    GetData(Option<&'a [u8]>, Stat),
    GetChildren(Vec<&'a str>),
    /// The error code. None for an operation that only failed to happen because another one failed.
    Error(Option<ErrorCode>),
}

impl<'a> MultiResult<'a> {
    /// Appends the encoded result.
    pub fn write(&self, out: &mut Vec<u8>) {
        let head =
            |op: OpCode, out: &mut Vec<u8>| MultiHeader { op: op.number(), done: false, err: 0 }.write(out);
        match self {
            MultiResult::Create(path) => {
                head(OpCode::Create, out);
                path.write(out);
            }
            MultiResult::Create2(path, stat) => {
                head(OpCode::Create2, out);
                path.write(out);
                stat.write(out);
            }
            MultiResult::Delete => head(OpCode::Delete, out),
            MultiResult::SetData(stat) => {
                head(OpCode::SetData, out);
                stat.write(out);
            }
            MultiResult::Check => head(OpCode::Check, out),
            MultiResult::GetData(data, stat) => {
                head(OpCode::GetData, out);
                data.write(out);
                stat.write(out);
            }
            MultiResult::GetChildren(names) => {
                head(OpCode::GetChildren, out);
                names.write(out);
            }
            MultiResult::Error(error) => {
                let err = error.map_or(0, ErrorCode::number);
                MultiHeader { op: ERROR_TYPE, done: false, err }.write(out);
                err.write(out);
            }
        }
    }

    /// Appends the header that ends a sequence of results.
    pub fn write_end(out: &mut Vec<u8>) {
        MultiHeader::END.write(out);
    }

    /// Decodes a sequence of results.
    ///
    /// # Errors
    /// The bytes are not a sequence of results.
    pub fn read_row(from: &mut Reader<'a>) -> Result<Vec<MultiResult<'a>>, JuteError> {
        read_all(from, |op, from| {
            if op == ERROR_TYPE {
                let value = i32::read(from)?;
                let unknown = JuteError::Unknown { what: "error of a transaction", value };
                let error = if value == 0 { None } else { Some(ErrorCode::of(value).ok_or(unknown)?) };
                return Ok(MultiResult::Error(error));
            }
            Ok(match OpCode::of(op) {
                Some(OpCode::Create) => MultiResult::Create(Jute::read(from)?),
                Some(OpCode::Create2) => MultiResult::Create2(Jute::read(from)?, Jute::read(from)?),
                Some(OpCode::Delete) => MultiResult::Delete,
                Some(OpCode::SetData) => MultiResult::SetData(Jute::read(from)?),
                Some(OpCode::Check) => MultiResult::Check,
                Some(OpCode::GetData) => MultiResult::GetData(Jute::read(from)?, Jute::read(from)?),
                Some(OpCode::GetChildren) => MultiResult::GetChildren(Jute::read(from)?),
                _ => return Err(JuteError::Unknown { what: "result of a transaction", value: op }),
            })
        })
    }
}
