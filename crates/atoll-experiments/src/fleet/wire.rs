//! The part of ZooKeeper's wire protocol that the load needs. All numbers are big-endian; strings and byte strings have their length in
//! front of them.

use std::time::Duration;

/// The number of an event in its reply.
pub const EVENT: i32 = -1;
/// The number of a ping.
pub const PING: i32 = -2;
/// The number of `setWatches`.
pub const SET_WATCHES: i32 = -8;

/// The longest reply that is read, in bytes: the names of some millions of children.
const MOST_BYTES: usize = 256 << 20;

/// Which request a message is.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
enum Kind {
    Create = 1,
    Delete = 2,
    GetData = 4,
    SetData = 5,
    GetChildren = 8,
    Ping = 11,
    SetWatches = 101,
    Close = -11,
}

/// A request without its number.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Creates a lasting node that everybody may use.
    Create(&'a str, &'a [u8]),
    /// Deletes a node of any version.
    Delete(&'a str),
    /// Reads a node, and leaves a watch if the flag is set.
    GetData(&'a str, bool),
    /// Writes a node of any version.
    SetData(&'a str, &'a [u8]),
    /// Lists the children of a node.
    GetChildren(&'a str),
    /// Keeps the session alive.
    Ping,
    /// Ends the session.
    Close,
    /// Sets watches of data again, for changes after this zxid.
    SetWatches(i64, &'a [String]),
}

/// A session, as a client needs it to come back.
#[derive(Clone, Debug, Default)]
pub struct Ticket {
    /// Its number; 0 asks for a new one.
    pub id: i64,
    /// Its password.
    pub password: Vec<u8>,
}

/// An answer to a request, or an event.
#[derive(Debug)]
pub struct Reply {
    /// The number of its request, or [`EVENT`].
    pub xid: i32,
    /// The last change that the server had applied; -1 in an event.
    pub zxid: i64,
    /// 0, or the error.
    pub error: i32,
    /// What follows.
    pub body: Vec<u8>,
}

/// A message under construction. Its length is put in front of it at the end.
struct Message(Vec<u8>);

impl Message {
    fn new() -> Self {
        Message(vec![0; 4])
    }

    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn flag(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(value.len() as i32);
        self.0.extend_from_slice(value);
        self
    }

    fn end(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// Returns the first message of a connection.
pub fn connect(ticket: &Ticket, last_zxid: i64, timeout: Duration) -> Vec<u8> {
    let mut message = Message::new();
    let password = if ticket.password.is_empty() { &[0; 16][..] } else { &ticket.password };
    message
        .int(0)
        .long(last_zxid)
        .int(timeout.as_millis() as i32)
        .long(ticket.id)
        .bytes(password)
        .flag(false);
    message.end()
}

/// Reads the answer to [`connect`]: the session, whose number is 0 if it has expired, and its timeout. None if it cannot be read.
pub fn connected(body: &[u8]) -> Option<(Ticket, Duration)> {
    let timeout = i32::from_be_bytes(body.get(4..8)?.try_into().ok()?);
    let id = i64::from_be_bytes(body.get(8..16)?.try_into().ok()?);
    let length = i32::from_be_bytes(body.get(16..20)?.try_into().ok()?);
    let password = body.get(20..20 + usize::try_from(length).ok()?)?.to_vec();
    Some((Ticket { id, password }, Duration::from_millis(u64::try_from(timeout).ok()?)))
}

/// Returns a request under this number.
pub fn request(xid: i32, request: Request<'_>) -> Vec<u8> {
    let mut message = Message::new();
    let mut begin = |kind: Kind| {
        message.int(xid).int(kind as i32);
    };
    match request {
        Request::Create(path, data) => {
            begin(Kind::Create);
            message.bytes(path.as_bytes()).bytes(data);
            // One entry of an access list: everybody may do everything.
            message.int(1).int(31).bytes(b"world").bytes(b"anyone").int(0);
        }
        Request::Delete(path) => {
            begin(Kind::Delete);
            message.bytes(path.as_bytes()).int(-1);
        }
        Request::GetData(path, watch) => {
            begin(Kind::GetData);
            message.bytes(path.as_bytes()).flag(watch);
        }
        Request::SetData(path, data) => {
            begin(Kind::SetData);
            message.bytes(path.as_bytes()).bytes(data).int(-1);
        }
        Request::GetChildren(path) => {
            begin(Kind::GetChildren);
            message.bytes(path.as_bytes()).flag(false);
        }
        Request::Ping => begin(Kind::Ping),
        Request::Close => begin(Kind::Close),
        Request::SetWatches(zxid, paths) => {
            begin(Kind::SetWatches);
            message.long(zxid).int(paths.len() as i32);
            for path in paths {
                message.bytes(path.as_bytes());
            }
            message.int(0).int(0);
        }
    }
    message.end()
}

/// Reads an answer. None if it is too short.
pub fn reply(body: &[u8]) -> Option<Reply> {
    let xid = i32::from_be_bytes(body.get(..4)?.try_into().ok()?);
    let zxid = i64::from_be_bytes(body.get(4..12)?.try_into().ok()?);
    let error = i32::from_be_bytes(body.get(12..16)?.try_into().ok()?);
    Some(Reply { xid, zxid, error, body: body.get(16..)?.to_vec() })
}

/// Reads the length of a message. None if nobody sends such a one.
pub fn length(prefix: [u8; 4]) -> Option<usize> {
    let length = usize::try_from(u32::from_be_bytes(prefix)).ok()?;
    (length <= MOST_BYTES).then_some(length)
}

impl Reply {
    /// Returns how many children an answer to [`Request::GetChildren`] lists. None if it is not one.
    pub fn children(&self) -> Option<u64> {
        let count = i32::from_be_bytes(self.body.get(..4)?.try_into().ok()?);
        u64::try_from(count).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_form_of_the_protocol() {
        let ping = request(PING, Request::Ping);
        assert_eq!(ping, [0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11]);
        let read = request(7, Request::GetData("/a", true));
        assert_eq!(read, [0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 1]);
        let opening = connect(&Ticket::default(), 3, Duration::from_secs(30));
        assert_eq!(opening.len(), 4 + 45);
        assert_eq!(opening[..4], [0, 0, 0, 45]);
    }

    #[test]
    fn answers_that_are_cut_short_are_no_answers() {
        let whole =
            [[0; 4].as_slice(), &30_000_i32.to_be_bytes(), &9_i64.to_be_bytes(), &2_i32.to_be_bytes(), b"pw"]
                .concat();
        let (ticket, timeout) = connected(&whole).expect("it is whole");
        assert_eq!(
            (ticket.id, ticket.password.as_slice(), timeout),
            (9, &b"pw"[..], Duration::from_secs(30))
        );
        assert!((0..whole.len()).all(|cut| connected(&whole[..cut]).is_none()));
        assert!((0..16).all(|cut| reply(&whole[..cut]).is_none()));
        assert_eq!(length([0xff; 4]), None);
    }
}
