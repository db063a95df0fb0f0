"""HTTP/2 and gRPC as bytes, for a drill that needs what no library does: silence, windows that never open, partial messages.

It does not read headers: an answer with a message counts as success, and an answer without one counts as a refusal. Standard library only.
"""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW, MAX_FRAME = 0x4, 16_384


class Closed(Exception):
    """The other side has closed the connection."""


def frame(kind, flags, stream, payload=b""):
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path, more=()):
    """The head of a gRPC request, each line in full: no table, no compression."""
    lines = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
    out = bytearray()
    for name, value in [*lines, ("content-type", "application/grpc"), *more]:
        out.append(0x10)
        for text in (name.encode(), value.encode()):
            if len(text) < 127:
                out.append(len(text))
            else:
                out.append(127)
                rest = len(text) - 127
                while rest >= 128:
                    out.append(rest % 128 + 128)
                    rest //= 128
                out.append(rest)
            out += text
    return bytes(out)


def message(body):
    """A gRPC message with its prefix."""
    return b"\0" + struct.pack(">I", len(body)) + body


def varint(value):
    """A number of protobuf."""
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out) + bytes([value])


def number(field, value):
    """A field that is a number."""
    return varint(field << 3) + varint(value)


def fixed(field, value):
    """A field of eight bytes."""
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def text(field, value):
    """A field that is a text, bytes or a message."""
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def fields(body):
    """The fields of a message: (number, value), with bytes for what has a length."""
    at = 0

    def take():
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(body):
        key = take()
        if key & 7 == 0:
            yield key >> 3, take()
        elif key & 7 == 1:
            yield key >> 3, struct.unpack_from("<Q", body, at)[0]
            at += 8
        else:
            length = take()
            yield key >> 3, body[at : at + length]
            at += length


def connect(address, source=None, timeout=20):
    """A bare connection, from an address of this machine if one is named."""
    name, port = address.rsplit(":", 1)
    return socket.create_connection((name, int(port)), timeout=timeout, source_address=(source, 0) if source else None)


class Http2:
    """A connection. `window` is what the server may send on each stream, and on the connection beyond the first 65,535 bytes."""

    def __init__(self, address, source=None, window=65_535, open_all=False, timeout=20):
        self.socket = connect(address, source, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.next = 1
        self.window, self.stream_window = 65_535, 65_535
        self.stream_windows = {}
        self.over = set()
        settings = struct.pack(">HI", INITIAL_WINDOW, window)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings))
        if open_all:
            self.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7FFF_0000)))

    def send(self, data):
        """Bytes, as they are."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, BrokenPipeError) as error:
            raise Closed(str(error)) from None

    def close(self):
        """At once."""
        self.socket.close()

    def begin(self, path, more=()):
        """The head of a request; its stream."""
        stream = self.next
        self.next += 2
        self.stream_windows[stream] = self.stream_window
        self.send(frame(HEADERS, END_HEADERS, stream, headers(path, more)))
        return stream

    def body(self, stream, data, end=True):
        """Bytes of a body, as fast as the server's windows let them. Stops if the server has answered already."""
        at = 0
        while at < len(data) or (end and at == 0):
            if stream in self.over:
                return
            room = min(self.window, self.stream_windows[stream], MAX_FRAME, len(data) - at)
            if room <= 0 and len(data) > 0:
                self.read()
                continue
            last = at + room >= len(data)
            self.send(frame(DATA, END_STREAM if end and last else 0, stream, data[at : at + room]))
            self.window -= room
            self.stream_windows[stream] -= room
            at += room
            if last:
                return

    def read(self):
        """The next frame: (kind, flags, stream, payload). Answers settings and pings, and keeps the windows."""
        while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionError as error:
                raise Closed(str(error)) from None
            if not more:
                raise Closed("end")
            self.buffer += more
        length = int.from_bytes(self.buffer[:3], "big")
        kind, flags = self.buffer[3], self.buffer[4]
        stream = int.from_bytes(self.buffer[5:9], "big")
        payload = bytes(self.buffer[9 : 9 + length])
        del self.buffer[: 9 + length]
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == INITIAL_WINDOW:
                    for one in self.stream_windows:
                        self.stream_windows[one] += value - self.stream_window
                    self.stream_window = value
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream == 0:
                self.window += more
            elif stream in self.stream_windows:
                self.stream_windows[stream] += more
        elif kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.over.add(stream)
        return kind, flags, stream, payload

    def give(self, stream, payload):
        """Lets the server send as much again."""
        if payload:
            more = struct.pack(">I", len(payload))
            self.send(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, stream, more))

    def answer(self, stream, limit=None):
        """All messages of an answer, or its first `limit`; none: it was refused."""
        got, messages = bytearray(), []
        while stream not in self.over:
            kind, _, of, payload = self.read()
            if kind == GOAWAY:
                raise Closed("go away")
            if kind != DATA or of != stream:
                continue
            got += payload
            if stream not in self.over:
                self.give(stream, payload)
            while len(got) >= 5 and len(got) >= 5 + int.from_bytes(got[1:5], "big"):
                end = 5 + int.from_bytes(got[1:5], "big")
                messages.append(bytes(got[5:end]))
                del got[:end]
                if limit and len(messages) >= limit:
                    return messages
        self.stream_windows.pop(stream, None)
        self.over.discard(stream)
        return messages

    def call(self, path, body):
        """One request and the messages of its answer."""
        stream = self.begin(path)
        self.body(stream, message(body))
        return self.answer(stream)
