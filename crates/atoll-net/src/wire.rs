//! The frame codec: a header of 24 bytes, the lengths of the payloads, the head, the payloads.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | length of everything after the header |
//! | 4..6 | kind of the message |
//! | 6 | target role |
//! | 7 | exchange: 0 post, 1 request, 2 reply, 3 ping, 4 pong |
//! | 8..16 | request number, below 2^48; 0 in posts |
//! | 16..20 | length of the head |
//! | 20..22 | number of payloads |
//! | 22..24 | zero |
//! | 24.. | the length of each payload (4 bytes each), the head, the payloads |
//!
//! All numbers are little endian. Frames carry no checksum: TCP and TLS have their own, and the journal adds checksums to what a node
//! stores. The limits are checked on the header, before memory is allocated for the rest.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use atoll_core::frame::{MAX_HEAD_BYTES, MAX_PAYLOAD_BYTES, MAX_PAYLOADS};
use atoll_core::{Envelope, Exchange, Frame, RoleKind};
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::bodies::{Bodies, Body};

/// Length of the header.
pub const HEADER_BYTES: usize = 24;
/// Request numbers on the wire are below 2 to the power of this. The receiver uses the bits above to mark its connection.
pub const REQUEST_BITS: u32 = 48;

/// Bodies up to this size stay in the read buffer until they are complete. Larger ones are read into their own allocation.
const SMALL_BODY_BYTES: usize = 4 * 1024;
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Heads up to this size are copied behind the headers. Longer ones are written to the socket from where they are.
const SMALL_HEAD_BYTES: usize = 4 * 1024;

/// How many requests of one connection may wait for their replies (contracts X12). If it is too small, requests for many logs on few nodes
/// are refused as not sent. If it is too large, a peer with many requests costs much memory.
pub const MAX_REQUESTS_IN_FLIGHT: u32 = 65_536;

/// Limits of a frame and of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest head, in bytes.
    pub head_bytes: u32,
    /// The most bytes in all payloads of a frame together.
    pub payload_bytes: u32,
    /// The most payloads in a frame.
    pub payloads: u16,
    /// The most requests without a reply on one connection.
    pub requests: u32,
}

impl Limits {
    /// The limits of this version.
    pub const OURS: Limits = Limits {
        head_bytes: MAX_HEAD_BYTES as u32,
        payload_bytes: MAX_PAYLOAD_BYTES as u32,
        payloads: MAX_PAYLOADS as u16,
        requests: MAX_REQUESTS_IN_FLIGHT,
    };

    /// Returns the limits that satisfy both sides.
    #[must_use]
    pub fn both(self, other: Limits) -> Limits {
        Limits {
            head_bytes: self.head_bytes.min(other.head_bytes),
            payload_bytes: self.payload_bytes.min(other.payload_bytes),
            payloads: self.payloads.min(other.payloads),
            requests: self.requests.min(other.requests),
        }
    }

    /// Returns whether a frame is within the limits.
    pub fn allow(&self, frame: &Frame) -> bool {
        let payload_bytes: usize = frame.payloads.iter().map(Bytes::len).sum();
        frame.head.len() <= self.head_bytes as usize
            && frame.payloads.len() <= usize::from(self.payloads)
            && payload_bytes <= self.payload_bytes as usize
    }
}

/// Bytes that are not a valid frame within the limits. The connection is closed, because the start of the next frame is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// An unknown exchange.
    #[error("exchange {0} is not known (0 to 4)")]
    Exchange(u8),
    /// A request number in a post, or one that is too large.
    #[error("request number {number} does not fit exchange {exchange}")]
    Number {
        /// The exchange.
        exchange: u8,
        /// The number.
        number: u64,
    },
    /// A head that is longer than the limit.
    #[error("a head of {got} bytes; at most {limit} are allowed")]
    Head {
        /// The claimed length.
        got: u32,
        /// The limit.
        limit: u32,
    },
    /// Too many payloads.
    #[error("{got} payloads in a frame; at most {limit} are allowed")]
    Payloads {
        /// The claimed number.
        got: u16,
        /// The limit.
        limit: u16,
    },
    /// More payload bytes than the limit.
    #[error("{got} payload bytes in a frame; at most {limit} are allowed")]
    PayloadBytes {
        /// The claimed number of bytes.
        got: u64,
        /// The limit.
        limit: u32,
    },
    /// Lengths that contradict each other.
    #[error("the lengths in a frame do not add up to its {body} bytes")]
    Lengths {
        /// The length of the body according to the header.
        body: u32,
    },
    /// The reserved bytes are not zero.
    #[error("reserved bytes are {0:#06x}, not zero")]
    Reserved(u16),
    /// A ping or pong with a message in it.
    #[error("a ping or pong carries a message")]
    PingBody,
}

/// The contents of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A message for the core.
    Envelope(Envelope),
    /// Asks whether the peer is alive. The connection itself answers.
    Ping(u64),
    /// The answer to a ping.
    Pong(u64),
}

impl Wire {
    /// Returns the length of the frame on the wire.
    pub fn encoded_bytes(&self) -> usize {
        match self {
            Wire::Envelope(e) => HEADER_BYTES + 4 * e.frame.payloads.len() + e.frame.size_bytes(),
            Wire::Ping(_) | Wire::Pong(_) => HEADER_BYTES,
        }
    }
}

/// The header, checked against the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    body_bytes: u32,
    kind: u16,
    target: u8,
    exchange: u8,
    number: u64,
    head_bytes: u32,
    payloads: u16,
}

impl Header {
    fn decode(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> Result<Header, WireError> {
        let u16_at = |i: usize| u16::from_le_bytes([bytes[i], bytes[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let header = Header {
            body_bytes: u32_at(0),
            kind: u16_at(4),
            target: bytes[6],
            exchange: bytes[7],
            number: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            head_bytes: u32_at(16),
            payloads: u16_at(20),
        };
        header.check(u16_at(22), limits)?;
        Ok(header)
    }

    fn check(&self, reserved: u16, limits: &Limits) -> Result<(), WireError> {
        let Header { exchange, number, body_bytes: body, .. } = *self;
        if exchange > 4 {
            return Err(WireError::Exchange(exchange));
        }
        if reserved != 0 {
            return Err(WireError::Reserved(reserved));
        }
        if number >= 1 << REQUEST_BITS || (exchange == 0 && number != 0) {
            return Err(WireError::Number { exchange, number });
        }
        if exchange >= 3 && (body != 0 || self.kind != 0 || self.target != 0) {
            return Err(WireError::PingBody);
        }
        if self.head_bytes > limits.head_bytes {
            return Err(WireError::Head { got: self.head_bytes, limit: limits.head_bytes });
        }
        if self.payloads > limits.payloads {
            return Err(WireError::Payloads { got: self.payloads, limit: limits.payloads });
        }
        let before_payloads = u64::from(self.payloads) * 4 + u64::from(self.head_bytes);
        let Some(got) = u64::from(body).checked_sub(before_payloads) else {
            return Err(WireError::Lengths { body });
        };
        if got > u64::from(limits.payload_bytes) {
            return Err(WireError::PayloadBytes { got, limit: limits.payload_bytes });
        }
        if self.payloads == 0 && got != 0 {
            return Err(WireError::Lengths { body });
        }
        Ok(())
    }

    /// Returns the frame. Its parts share `body`, which must have exactly the length that the header says.
    fn open(self, mut body: Bytes) -> Result<Wire, WireError> {
        let wrong = WireError::Lengths { body: self.body_bytes };
        match self.exchange {
            3 => return Ok(Wire::Ping(self.number)),
            4 => return Ok(Wire::Pong(self.number)),
            _ => {}
        }
        let lengths = body.split_to(usize::from(self.payloads) * 4);
        let head = body.split_to(self.head_bytes as usize);
        let mut payloads = Vec::with_capacity(usize::from(self.payloads));
        for four in lengths.chunks_exact(4) {
            let n = u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize;
            if n > body.len() {
                return Err(wrong);
            }
            payloads.push(body.split_to(n));
        }
        if !body.is_empty() {
            return Err(wrong);
        }
        let exchange = match self.exchange {
            0 => Exchange::Post,
            1 => Exchange::Request(self.number),
            _ => Exchange::Reply(self.number),
        };
        let frame = Frame { kind: self.kind, target: RoleKind(self.target), head, payloads };
        Ok(Wire::Envelope(Envelope { exchange, frame }))
    }
}

/// Assembles frames from a stream of bytes.
///
/// Each frame gets memory of its own, so a payload that the node keeps holds no other memory (contracts X13): an allocation of exactly
/// its length if it is short, otherwise memory that earlier frames had. After the socket, a payload is copied at most once: out of the
/// read buffer, if it is small or came together with other frames. A larger payload is read directly into its place.
#[derive(Debug)]
pub struct Assembler {
    limits: Limits,
    bodies: Arc<Bodies>,
    buffer: Box<[u8]>,
    filled: Range<usize>,
    /// A large frame whose body is not complete.
    partial: Option<(Header, Body)>,
}

impl Assembler {
    /// Creates an empty assembler, which takes memory for long bodies from `bodies`.
    pub fn new(limits: Limits, bodies: Arc<Bodies>) -> Self {
        Assembler {
            limits,
            bodies,
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
            filled: 0..0,
            partial: None,
        }
    }

    /// Returns true if no part of an unfinished frame is held, so the stream may end here.
    pub fn is_empty(&self) -> bool {
        self.partial.is_none() && self.filled.is_empty()
    }

    /// Takes as many of the bytes as fit and returns how many, for tests without a socket.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.make_room();
        let n = bytes.len().min(self.buffer.len() - self.filled.end);
        self.buffer[self.filled.end..self.filled.end + n].copy_from_slice(&bytes[..n]);
        self.filled.end += n;
        n
    }

    /// Reads once from the socket and returns the number of bytes; 0 is the end of the stream. Cancelling it loses nothing.
    pub async fn read<R: AsyncRead + Unpin>(&mut self, from: &mut R) -> std::io::Result<usize> {
        if let Some((_, body)) = &mut self.partial {
            return from.read_buf(&mut body.rest()).await;
        }
        self.make_room();
        let n = from.read(&mut self.buffer[self.filled.end..]).await?;
        self.filled.end += n;
        Ok(n)
    }

    fn make_room(&mut self) {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.buffer.len() - self.filled.end < SMALL_BODY_BYTES + HEADER_BYTES {
            let n = self.filled.len();
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..n;
        }
    }

    /// Returns the next whole frame, or None if more bytes are needed. After an error the assembler must not be used any more.
    #[allow(clippy::should_implement_trait)] // It is no iterator: None is not the end.
    pub fn next(&mut self) -> Result<Option<Wire>, WireError> {
        if let Some((header, mut body)) = self.partial.take() {
            self.filled.start += body.extend(&self.buffer[self.filled.clone()]);
            if body.missing() > 0 {
                self.partial = Some((header, body));
                return Ok(None);
            }
            return header.open(body.freeze()).map(Some);
        }
        let here = &self.buffer[self.filled.clone()];
        let Some(header) = here.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(header, &self.limits)?;
        let need = header.body_bytes as usize;
        let have = &here[HEADER_BYTES..];
        if need > SMALL_BODY_BYTES {
            let mut body = self.bodies.with_room(need);
            self.filled.start += HEADER_BYTES + body.extend(have);
            if body.missing() == 0 {
                return header.open(body.freeze()).map(Some);
            }
            self.partial = Some((header, body));
        } else if have.len() >= need {
            let body = Bytes::copy_from_slice(&have[..need]);
            self.filled.start += HEADER_BYTES + need;
            return header.open(body).map(Some);
        }
        Ok(None)
    }
}

enum Piece {
    Gathered(Range<usize>),
    Shared(Bytes),
}

/// Frames that wait for one `writev`. Headers and small heads are copied together; payloads stay where they are.
#[derive(Default)]
pub struct WriteBatch {
    gathered: BytesMut,
    pieces: Vec<Piece>,
    /// The first piece that is not completely written, and how much of it is written.
    next: usize,
    offset: usize,
    bytes: usize,
}

impl WriteBatch {
    /// Removes all frames but keeps the buffers.
    pub fn clear(&mut self) {
        self.gathered.clear();
        self.pieces.clear();
        (self.next, self.offset, self.bytes) = (0, 0, 0);
    }

    /// Returns the bytes pushed since the last clear.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame at the end. Its number and lengths must be within the limits, which is checked when it is queued.
    pub fn push(&mut self, wire: Wire) {
        let start = self.gathered.len();
        self.bytes += wire.encoded_bytes();
        let envelope = match wire {
            Wire::Envelope(e) => e,
            Wire::Ping(n) => return self.put_header(start, [0, 3], n, None),
            Wire::Pong(n) => return self.put_header(start, [0, 4], n, None),
        };
        let Envelope { exchange, frame } = envelope;
        let (tag, number) = match exchange {
            Exchange::Post => (0, 0),
            Exchange::Request(n) => (1, n),
            Exchange::Reply(n) => (2, n),
        };
        self.put_header(start, [frame.target.0, tag], number, Some(&frame));
        if frame.head.len() > SMALL_HEAD_BYTES {
            self.pieces.push(Piece::Shared(frame.head));
        }
        self.pieces.extend(frame.payloads.into_iter().filter(|p| !p.is_empty()).map(Piece::Shared));
    }

    fn put_header(&mut self, start: usize, role_and_tag: [u8; 2], number: u64, frame: Option<&Frame>) {
        let out = &mut self.gathered;
        let (kind, head_bytes, payloads, body) = match frame {
            Some(f) => (f.kind, f.head.len(), f.payloads.len(), f.size_bytes() + 4 * f.payloads.len()),
            None => (0, 0, 0, 0),
        };
        // The casts lose nothing, because the limits were checked.
        out.put_u32_le(body as u32);
        out.put_u16_le(kind);
        out.put_slice(&role_and_tag);
        out.put_u64_le(number);
        out.put_u32_le(head_bytes as u32);
        out.put_u16_le(payloads as u16);
        out.put_u16_le(0);
        if let Some(f) = frame {
            for payload in &f.payloads {
                out.put_u32_le(payload.len() as u32);
            }
            if f.head.len() <= SMALL_HEAD_BYTES {
                out.put_slice(&f.head);
            }
        }
        let end = out.len();
        match self.pieces.last_mut() {
            Some(Piece::Gathered(range)) if range.end == start => range.end = end,
            _ => self.pieces.push(Piece::Gathered(start..end)),
        }
    }

    /// Fills `slices` with what remains to be written. Returns how many are in use; 0 if everything is written.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.offset;
        let mut used = 0;
        for (piece, slot) in self.pieces[self.next..].iter().zip(slices) {
            let bytes = match piece {
                Piece::Gathered(range) => &self.gathered[range.clone()],
                Piece::Shared(bytes) => &bytes[..],
            };
            *slot = IoSlice::new(&bytes[skip..]);
            skip = 0;
            used += 1;
        }
        used
    }

    /// Notes that the socket accepted `n` more bytes.
    pub fn advance(&mut self, n: usize) {
        self.offset += n;
        while let Some(piece) = self.pieces.get(self.next) {
            let len = match piece {
                Piece::Gathered(range) => range.len(),
                Piece::Shared(bytes) => bytes.len(),
            };
            if self.offset < len {
                return;
            }
            self.offset -= len;
            self.next += 1;
        }
    }

    /// Returns what remains to be written as one buffer, for tests.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); self.pieces.len()];
        let n = self.slices(&mut slices);
        slices[..n].iter().flat_map(|s| s.iter().copied()).collect()
    }
}
