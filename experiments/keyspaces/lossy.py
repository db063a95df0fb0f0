"""A network that loses packets: a network namespace in which a cluster and its load run, all on its loopback. Needs root, `ip` and `nft`.

No packet carries more than an Ethernet's, and each is drawn on its own, whoever sends it: a client, or a node. Nothing of it is visible
outside, and other programs lose nothing.
"""

import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "drills"))

import networks  # noqa: E402 (found in the folder that is named above)

# Parts of the packets that are lost are counted in thousandths.
OF = 1000
MTU = 1500
# Segments that TCP sent again, those of them that it saw lost again, the timeouts after which it did, and the probes that spared it one.
COUNTED = {"Tcp": ("OutSegs", "RetransSegs"), "TcpExt": ("TCPLostRetransmit", "TCPTimeouts", "TCPLossProbes")}
OURS = re.compile(r"atoll-(\d+)-lossy")


def told():
    """The counters of the kernel for this namespace, by group and name."""
    found = {}
    for file in ("snmp", "netstat"):
        lines = pathlib.Path("/proc/thread-self/net", file).read_text().splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            group = names.partition(":")[0]
            found[group] = dict(zip(names.split()[1:], map(int, values.split()[1:])))
    return found


class Network:
    """The namespace. Use as a context, before the first thread is started: this thread, and what it starts from then on, is inside."""

    def __init__(self):
        self.name = f"atoll-{os.getpid()}-lossy"
        self.home = None

    def __enter__(self):
        networks.check_machine()
        self._remove_left()
        atexit.register(self._remove)
        # What ends an experiment must not leave its namespace behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        networks.run("ip", "netns", "add", self.name)
        # Without these bounds, loopback carries up to 64 KiB as one packet, which would be lost as one.
        networks.run("ip", "-n", self.name, "link", "set", "lo", "mtu", str(MTU), "gso_max_segs", "1", "up")
        self._nft("add table ip lossy\nadd chain ip lossy in { type filter hook input priority 0; }\n")
        networks.enter(self.name)
        return self

    def __exit__(self, *_):
        ctypes.CDLL(None).setns(self.home, networks.CLONE_NEWNET)
        os.close(self.home)
        self._remove()

    def _remove(self):
        with contextlib.suppress(OSError):
            networks.run("ip", "netns", "del", self.name, check=False)

    @staticmethod
    def _remove_left():
        """Removes what an experiment has left that was killed before it could."""
        for name in networks.run("ip", "netns", "list").stdout.split():
            left = OURS.fullmatch(name)
            if left and not pathlib.Path("/proc", left[1]).exists():
                networks.run("ip", "netns", "del", name, check=False)

    def _nft(self, words):
        networks.run("nft", "-f", "-", within=self.name, input=words)

    def lose(self, percent):
        """From now on, this share of the packets is lost."""
        self._nft("flush chain ip lossy in\nadd rule ip lossy in meta l4proto tcp counter\n"
                  f"add rule ip lossy in meta l4proto tcp numgen random mod {OF} < {round(OF * percent / 100)} counter drop\n")
        self.before = told()

    def seen(self):
        """What became of the packets since the last `lose`."""
        out = json.loads(networks.run("nft", "-j", "list", "chain", "ip", "lossy", "in", within=self.name).stdout)
        parts = [part["counter"]["packets"] for row in out["nftables"] for part in row.get("rule", {}).get("expr", ()) if "counter" in part]
        now = told()
        seen = {name: now[group][name] - self.before[group][name] for group, names in COUNTED.items() for name in names}
        return {"packets": parts[0], "packets_lost": parts[1], "segments": seen["OutSegs"], "sent_again": seen["RetransSegs"],
                "lost_again": seen["TCPLostRetransmit"], "timeouts": seen["TCPTimeouts"], "loss_probes": seen["TCPLossProbes"]}
