//! A minimal client of the wire protocol, over a real socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use atoll_zookeeper::jute::codes::{CreateMode, OpCode, xid};
use atoll_zookeeper::jute::records::{Acl, ConnectRequest, ConnectResponse, Id, ReplyHeader, RequestHeader};
use atoll_zookeeper::jute::reply::WatcherEvent;
use atoll_zookeeper::jute::request::{CreateRequest, Request};
use atoll_zookeeper::jute::{Jute, Reader};

/// A client. It collects the events that it receives.
pub struct Client {
    stream: TcpStream,
    xid: i32,
    pub session: i64,
    pub password: Vec<u8>,
    pub events: Vec<(i32, String)>,
    /// The zxid of the newest event.
    pub newest_event: i64,
    /// The newest zxid that a reply has reported.
    pub newest: i64,
}

impl Client {
    /// Opens a connection without the handshake.
    pub fn socket(door: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(door).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Opens a new session.
    pub fn connect(door: SocketAddr) -> Client {
        Client::attach(door, 0, &[0; 16])
    }

    /// Attaches to a session. In the result, a session id of 0 means that the session does not exist.
    pub fn attach(door: SocketAddr, session: i64, password: &[u8]) -> Client {
        let mut stream = Client::socket(door);
        let first = ConnectRequest { session, password: Some(password), ..ConnectRequest::first(10_000) };
        send(&mut stream, &first.to_vec());
        let answer = receive(&mut stream).unwrap();
        let answer = ConnectResponse::parse(&answer).unwrap();
        let (session, password) = (answer.session, answer.password.unwrap().to_vec());
        Client { stream, xid: 0, session, password, events: Vec::new(), newest_event: 0, newest: 0 }
    }

    /// Reads until the door closes the connection; returns the number of frames.
    pub fn frames_until_the_end(&mut self) -> usize {
        std::iter::from_fn(|| receive(&mut self.stream)).count()
    }

    /// Sends a request without waiting for its reply; returns its xid.
    pub fn ask(&mut self, request: &Request<'_>) -> i32 {
        self.xid += 1;
        self.send_as(self.xid, request);
        self.xid
    }

    /// Sends a request with this xid, without waiting for its reply.
    pub fn send_as(&mut self, xid: i32, request: &Request<'_>) {
        let mut frame = RequestHeader { xid, op: request.op().number() }.to_vec();
        request.write(&mut frame);
        send(&mut self.stream, &frame);
    }

    /// Sends a request that ends the connection, perhaps before all of it is sent.
    pub fn ask_too_much(&mut self, request: &Request<'_>) {
        let mut frame = RequestHeader { xid: 1, op: request.op().number() }.to_vec();
        request.write(&mut frame);
        let length = i32::try_from(frame.len()).unwrap().to_be_bytes();
        let _ = self.stream.write_all(&[&length[..], &frame].concat());
    }

    /// Reads the next reply, which must be that to this request; returns its error code and body. Collects the events before it.
    pub fn answer(&mut self, xid: i32) -> (i32, Vec<u8>) {
        loop {
            let (header, rest) = self.next();
            if header.xid != xid::NOTIFICATION {
                assert_eq!(header.xid, xid, "replies come in the order of their requests");
                return (header.err, rest);
            }
        }
    }

    /// Waits until there is an event. No reply may arrive before it.
    pub fn wait_event(&mut self) {
        while self.events.is_empty() {
            assert_eq!(self.next().0.xid, xid::NOTIFICATION);
        }
    }

    /// Reads the next frame. Collects it if it is an event.
    fn next(&mut self) -> (ReplyHeader, Vec<u8>) {
        let frame = receive(&mut self.stream).unwrap();
        let mut from = Reader::new(&frame);
        let header = ReplyHeader::read(&mut from).unwrap();
        let rest = from.rest().to_vec();
        if header.xid == xid::NOTIFICATION {
            let event = WatcherEvent::parse(&rest).unwrap();
            self.events.push((event.kind, event.path.to_owned()));
            self.newest_event = header.zxid;
        } else {
            self.newest = self.newest.max(header.zxid);
        }
        (header, rest)
    }

    /// Sends a request; returns the error code and body of its reply.
    pub fn call(&mut self, request: &Request<'_>) -> (i32, Vec<u8>) {
        let xid = self.ask(request);
        self.answer(xid)
    }

    /// Creates a node; returns the error code.
    pub fn create(&mut self, path: &str, data: &[u8]) -> i32 {
        self.call(&create(path, data)).0
    }

    /// Returns and clears the events that arrive before the reply to a ping.
    pub fn told(&mut self) -> Vec<(i32, String)> {
        let frame = RequestHeader { xid: -2, op: OpCode::Ping.number() }.to_vec();
        send(&mut self.stream, &frame);
        self.answer(-2);
        std::mem::take(&mut self.events)
    }

    /// Waits for the next frame; returns true if the server has closed the connection instead.
    pub fn is_ended(&mut self) -> bool {
        receive(&mut self.stream).is_none()
    }
}

/// Returns a create request that gives everyone all permissions.
pub fn create<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    Request::Create(CreateRequest { path, data: Some(data), acl, flags: CreateMode::Persistent.number() })
}

/// Sends a frame.
pub fn send(stream: &mut TcpStream, frame: &[u8]) {
    let length = i32::try_from(frame.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], frame].concat()).unwrap();
}

/// Receives a frame. Returns None if the connection has ended.
pub fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    fill(stream, &mut length)?;
    let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
    fill(stream, &mut frame)?;
    Some(frame)
}

/// Fills the buffer. Returns None if the server has closed the connection. Panics if the server sends nothing for too long.
fn fill(stream: &mut TcpStream, buffer: &mut [u8]) -> Option<()> {
    match stream.read_exact(buffer) {
        Ok(()) => Some(()),
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
        Err(error) => panic!("{error}"),
    }
}
