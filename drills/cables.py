"""A cable between two clusters that can be cut: a forwarder of connections on loopback. Standard library only.

While it is cut, nothing gets through in either direction, and no connection ends for it: as if every packet were lost. What was under way
gets through once it is healed, as what TCP sends again does.
"""

import contextlib
import socket
import threading

PIECE_BYTES = 1 << 16


class Cable:
    """Forwards connections to these addresses (`HOST:PORT,...`), each from a port of its own. Use as a context."""

    def __init__(self, addresses):
        self.whole = threading.Event()
        self.whole.set()
        self.ends = []
        self.listeners = []
        for address in addresses.split(","):
            host, _, port = address.rpartition(":")
            listener = socket.create_server(("127.0.0.1", 0))
            self.listeners.append(listener)
            threading.Thread(target=self._accept, args=(listener, (host, int(port))), daemon=True).start()
        self.connect = ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in self.listeners)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.heal()
        for one in [*self.listeners, *self.ends]:
            with contextlib.suppress(OSError):
                one.close()

    def cut(self):
        """Nothing gets through any more."""
        self.whole.clear()

    def heal(self):
        """Everything gets through again."""
        self.whole.set()

    def _accept(self, listener, address):
        # The listener is closed at the end.
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                self.ends.append(near)
                threading.Thread(target=self._connect, args=(near, address), daemon=True).start()

    def _connect(self, near, address):
        self.whole.wait()
        try:
            far = socket.create_connection(address)
        except OSError:
            near.close()
            return
        self.ends.append(far)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for a, b in ((near, far), (far, near)):
            threading.Thread(target=self._forward, args=(a, b), daemon=True).start()

    def _forward(self, source, target):
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self.whole.wait()
                target.sendall(piece)
        self.whole.wait()
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
