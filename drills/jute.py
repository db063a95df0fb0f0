"""A bare client of ZooKeeper's wire protocol, for what kazoo does not support and for requests that no client should send. Standard library
only."""

import socket
import struct

CREATE, DELETE, EXISTS, GET, SET, GET_ACL, SET_ACL, CHILDREN, SYNC, PING, CHILDREN2, CHECK, MULTI, CREATE2 = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15)
RECONFIG, CHECK_WATCHES, REMOVE_WATCHES, CREATE_CONTAINER, CREATE_TTL, MULTI_READ = 16, 17, 18, 19, 21, 22
AUTH, SET_WATCHES, EPHEMERALS, COUNT, SET_WATCHES2, ADD_WATCH, WHO_AM_I, CLOSE = 100, 101, 103, 104, 105, 106, 107, -11
OPEN_ACL = [(31, "world", "anyone")]


def string(text):
    """A string."""
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw


def buffer(raw):
    """A buffer; None is null."""
    return struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw


def acl(entries):
    """A list of access: (permissions, scheme, id)."""
    return struct.pack(">i", len(entries)) + b"".join(struct.pack(">i", p) + string(s) + string(i) for p, s, i in entries)


class Reader:
    """Reads values from the start of a reply."""

    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def take(self, form):
        """Numbers by a form of struct."""
        values = struct.unpack_from(">" + form, self.raw, self.at)
        self.at += struct.calcsize(">" + form)
        return values if len(values) > 1 else values[0]

    def buffer(self):
        """A buffer."""
        length = self.take("i")
        if length < 0:
            return None
        self.at += length
        return self.raw[self.at - length:self.at]

    def string(self):
        """A string."""
        return (self.buffer() or b"").decode()

    def strings(self):
        """A list of strings."""
        return [self.string() for _ in range(self.take("i"))]

    def stat(self):
        """A Stat: czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, length, children, pzxid."""
        return self.take("qqqqiiiqiiq")


class Wire:
    """One connection. Replies are (zxid, error, reader); events that come in between are kept. `read_only`: whether reads without the log will
    do; None is a client that does not know of that mode."""

    def __init__(self, host, timeout_ms=10_000, session=0, password=b"\0" * 16, seen=0, read_only=False, patience_s=30, source=None):
        name, port = host.rsplit(":", 1)
        self.socket = socket.create_connection((name, int(port)), timeout=patience_s, source_address=source and (source, 0))
        self.events = []
        self.xid = 0
        hello = struct.pack(">iqiq", 0, seen, timeout_ms, session) + buffer(password)
        self.send(hello + (b"" if read_only is None else struct.pack(">?", read_only)))
        reply = Reader(self.receive())
        self.version, self.timeout_ms, self.session = reply.take("iiq")
        self.password = reply.buffer()
        self.rest = reply.raw[reply.at:]

    def send(self, frame):
        """One frame."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def exactly(self, length):
        """So many bytes, or ConnectionError."""
        got = bytearray()
        while len(got) < length:
            more = self.socket.recv(min(1 << 20, length - len(got)))
            if not more:
                raise ConnectionError("closed by the server")
            got += more
        return bytes(got)

    def receive(self):
        """One frame."""
        return self.exactly(struct.unpack(">i", self.exactly(4))[0])

    def ask(self, op, body=b"", xid=None):
        """Sends a request; its xid."""
        if xid is None:
            self.xid += 1
            xid = self.xid
        self.send(struct.pack(">ii", xid, op) + body)
        return xid

    def answer(self, xid):
        """The next reply, which must be this request's."""
        while True:
            reply = Reader(self.receive())
            got, zxid, error = reply.take("iqi")
            if got == -1:
                self.events.append((*reply.take("ii"), reply.string()))
                continue
            assert got == xid, f"reply {got} where {xid} was due"
            return zxid, error, reply

    def call(self, op, body=b"", xid=None):
        """A request and its reply."""
        return self.answer(self.ask(op, body, xid))

    def close(self):
        """Closes the socket, not the session."""
        self.socket.close()


def create(path, data=b"", flags=0, entries=OPEN_ACL, ttl=None):
    """The body of a create."""
    return string(path) + buffer(data) + acl(entries) + struct.pack(">i", flags) + (b"" if ttl is None else struct.pack(">q", ttl))


def versioned(path, version=-1):
    """The body of a delete or check."""
    return string(path) + struct.pack(">i", version)


def written(path, data, version=-1):
    """The body of a setData."""
    return string(path) + buffer(data) + struct.pack(">i", version)


def watched(path, watch=False):
    """The body of a read."""
    return string(path) + (b"\1" if watch else b"\0")


def listed(path, entries, version=-1):
    """The body of a setACL."""
    return string(path) + acl(entries) + struct.pack(">i", version)


def multi(ops):
    """The body of a multi or multiRead: (operation, body)."""
    return b"".join(struct.pack(">i?i", op, False, -1) + body for op, body in ops) + struct.pack(">i?i", -1, True, -1)
