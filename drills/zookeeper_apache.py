"""An Apache ZooKeeper server from Maven Central, for drills that compare Atoll with it."""

import atexit
import contextlib
import pathlib
import socket
import subprocess

from cluster import end, poll
from ports import free_ports
from zookeeper_java import library


class Apache:
    """One server alone, on loopback. Use as a context."""

    def __init__(self, folder, flags=(), **settings):
        self.folder, self.flags = pathlib.Path(folder), flags
        self.host = f"127.0.0.1:{free_ports(1)[0]}"
        self.settings = settings
        self.process = None

    def __enter__(self):
        (self.folder / "data").mkdir(parents=True)
        port = self.host.rsplit(":", 1)[1]
        lines = {
            "tickTime": 2000,
            "dataDir": self.folder / "data",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "extendedTypesEnabled": "true",
            "maxClientCnxns": 0,
            "forceSync": "no",
            **self.settings,
        }
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        command = ["java", "-Xmx512m", *self.flags, "-cp", library(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config]
        with open(self.folder / "server.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        atexit.register(end, self.process)
        poll("the ZooKeeper server answers", 60, self.answers, every=0.1)
        return self

    def answers(self):
        """Whether it takes connections."""
        host, port = self.host.rsplit(":", 1)
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as client:
            client.sendall(b"srvr")
            return b"Mode:" in client.recv(4096)
        return False

    def __exit__(self, *_):
        end(self.process)
