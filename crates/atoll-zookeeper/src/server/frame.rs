//! Frames of replies, written directly into the output buffer.

use crate::command::AnswerHead;
use crate::jute::Jute;
use crate::jute::codes::ErrorCode;
use crate::jute::records::ReplyHeader;

/// Appends a frame: its length, then what `body` appends.
pub fn write(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    0_i32.write(out);
    body(out);
    // Data and lists are bounded far below 2 GiB.
    let length = i32::try_from(out.len() - at - 4).unwrap_or(i32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a successful reply.
pub fn reply(out: &mut Vec<u8>, xid: i32, zxid: i64, body: impl FnOnce(&mut Vec<u8>)) {
    write(out, |out| {
        ReplyHeader { xid, zxid, err: 0 }.write(out);
        body(out);
    });
}

/// Appends an error reply.
pub fn error(out: &mut Vec<u8>, xid: i32, zxid: i64, code: ErrorCode) {
    write(out, |out| ReplyHeader { xid, zxid, err: code.number() }.write(out));
}

/// Appends a reply that carries the answer of a command. `zxid` replaces the zxid in the answer.
pub fn answer(out: &mut Vec<u8>, xid: i32, zxid: i64, answer: &[u8]) {
    let at = out.len();
    write(out, |out| {
        xid.write(out);
        out.extend_from_slice(answer);
    });
    set_zxid(&mut out[at..], zxid);
}

/// Sets the zxid in the header of a complete reply.
pub fn set_zxid(reply: &mut [u8], zxid: i64) {
    // The zxid follows the length and the xid.
    if let Some(place) = reply.get_mut(8..16) {
        place.copy_from_slice(&zxid.to_be_bytes());
    }
}

/// Returns the head of a command's answer. Every answer begins with an [`AnswerHead`].
pub fn head(answer: &[u8]) -> AnswerHead {
    AnswerHead::parse(answer).unwrap_or(AnswerHead { zxid: 0, err: ErrorCode::SystemError.number() })
}

/// Sets the length of a frame that begins with space for it.
pub fn set_length(frame: &mut [u8]) {
    // Replies are bounded far below 2 GiB.
    let length = i32::try_from(frame.len().saturating_sub(4)).unwrap_or(i32::MAX);
    if let Some(place) = frame.first_chunk_mut::<4>() {
        *place = length.to_be_bytes();
    }
}

/// A list whose length is known only at its end.
pub struct List {
    at: usize,
    count: i32,
}

impl List {
    /// Begins an empty list.
    pub fn begin(out: &mut Vec<u8>) -> List {
        let at = out.len();
        0_i32.write(out);
        List { at, count: 0 }
    }

    /// Appends an item.
    pub fn push(&mut self, out: &mut Vec<u8>, item: &str) {
        item.write(out);
        self.count += 1;
    }

    /// Ends the list by writing its length in front of it.
    pub fn end(&self, out: &mut [u8]) {
        out[self.at..self.at + 4].copy_from_slice(&self.count.to_be_bytes());
    }
}
