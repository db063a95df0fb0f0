//! Frames of replies, written where they are sent from.

use crate::command::AnswerHead;
use crate::jute::Jute;
use crate::jute::codes::ErrorCode;
use crate::jute::records::ReplyHeader;

/// Appends a frame: its length, and what `body` appends.
pub fn write(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    0_i32.write(out);
    body(out);
    // Data and lists are bounded far below 2 GiB.
    let length = i32::try_from(out.len() - at - 4).unwrap_or(i32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a reply that succeeded.
pub fn reply(out: &mut Vec<u8>, xid: i32, zxid: i64, body: impl FnOnce(&mut Vec<u8>)) {
    write(out, |out| {
        ReplyHeader { xid, zxid, err: 0 }.write(out);
        body(out);
    });
}

/// Appends a reply that failed.
pub fn error(out: &mut Vec<u8>, xid: i32, zxid: i64, code: ErrorCode) {
    write(out, |out| ReplyHeader { xid, zxid, err: code.number() }.write(out));
}

/// Appends the reply that a command has answered, with the newest change that the client has seen with it.
pub fn answer(out: &mut Vec<u8>, xid: i32, zxid: i64, answer: &[u8]) {
    let at = out.len();
    write(out, |out| {
        xid.write(out);
        out.extend_from_slice(answer);
    });
    set_zxid(&mut out[at..], zxid);
}

/// Sets the zxid in the header of a reply that is whole.
pub fn set_zxid(reply: &mut [u8], zxid: i64) {
    // Behind its length and its xid.
    if let Some(place) = reply.get_mut(8..16) {
        place.copy_from_slice(&zxid.to_be_bytes());
    }
}

/// The head of a command's answer. Nothing else than [`AnswerHead`] begins one.
pub fn head(answer: &[u8]) -> AnswerHead {
    AnswerHead::parse(answer).unwrap_or(AnswerHead { zxid: 0, err: ErrorCode::SystemError.number() })
}

/// Sets the length of a frame that began with room for it.
pub fn set_length(frame: &mut [u8]) {
    // Replies are bounded far below 2 GiB.
    let length = i32::try_from(frame.len().saturating_sub(4)).unwrap_or(i32::MAX);
    if let Some(place) = frame.first_chunk_mut::<4>() {
        *place = length.to_be_bytes();
    }
}

/// A list whose length is known at its end.
pub struct List {
    at: usize,
    count: i32,
}

impl List {
    /// An empty one.
    pub fn begin(out: &mut Vec<u8>) -> List {
        let at = out.len();
        0_i32.write(out);
        List { at, count: 0 }
    }

    /// One more.
    pub fn push(&mut self, out: &mut Vec<u8>, item: &str) {
        item.write(out);
        self.count += 1;
    }

    /// Its length goes in front.
    pub fn end(&self, out: &mut [u8]) {
        out[self.at..self.at + 4].copy_from_slice(&self.count.to_be_bytes());
    }
}
