"""Servers that are not what a client takes them for: each says something else, or nothing."""

import contextlib
import socket
import threading

# What NATS says to every client, and what a server of HTTP/2, such as etcd, does.
NATS = b'INFO {"server_id":"NDRILL","version":"2.12.0","proto":1,"headers":true,"max_payload":1048576,"jetstream":true}\r\n'
HTTP2 = b"\0\0\0\4\0\0\0\0\0"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def http(status, body=b""):
    """An answer of a server of HTTP."""
    return b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


# Of each: what it says at once, and what to every request before it closes the connection; None: nothing, and it stays.
KINDS = {
    "silent": (b"", None),
    "closes": (b"", b""),
    "nats": (NATS, b"-ERR 'Unknown Protocol Operation'\r\n"),
    "http": (b"", http(b"400 Bad Request")),
    "http2": (HTTP2, b""),
    "noise": (b"\xff" * 4096, b"\xff" * 4096),
    # A store that speaks S3 and does not take these credentials any more.
    "expired": (b"", http(b"400 Bad Request", EXPIRED)),
}


class Stranger:
    """One of them. Use as a context."""

    def __init__(self, kind):
        self.greeting, self.answer = KINDS[kind]
        self.socket = None
        self.clients = 0

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.close()

    @property
    def address(self):
        """Where it is."""
        return "127.0.0.1:%d" % self.socket.getsockname()[1]

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                self.clients += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), client:
            client.settimeout(60)
            client.sendall(self.greeting)
            while client.recv(1 << 16):
                if self.answer is not None:
                    client.sendall(self.answer)
                    return
