"""A separate network (Linux namespace) for each node, on one bridge. Its cables can be cut in one direction or both, or lose packets. Needs
root, `ip` and `nft`. The drill itself moves into the bridge's namespace, so nothing of this is visible outside. Standard library only."""

import atexit
import contextlib
import ctypes
import json
import os
import shutil
import subprocess

from cluster import Failed, need

CLONE_NEWNET = 0x40000000
# The network's addresses: node N has N, the drill has 254. It exists inside the namespaces only.
SUBNET = "10.77.0"
DRILL = 254
# Parts of the packets that are lost are counted in thousandths.
OF = 1000


def run(*words, within=None, check=True, **kwargs):
    """Runs a program, in a namespace."""
    command = [*(["ip", "netns", "exec", within] if within else []), *words]
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if check and done.returncode:
        raise Failed(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done


def check_machine():
    """Fails with clear words if this machine or user cannot make namespaces and filters."""
    missing = [name for name in ("ip", "nft") if not shutil.which(name)]
    need(not missing, f"{' and '.join(missing)} not found: install the packages iproute2 and nftables")
    need(os.geteuid() == 0, "network namespaces need root: run this drill as root")


def can_cut():
    """Whether this machine and user have what cuts need."""
    return all(shutil.which(name) for name in ("ip", "nft")) and os.geteuid() == 0


def enter(namespace):
    """Moves this thread, and what it starts from now on, to a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            raise Failed(f"cannot enter the namespace {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


class Loopback:
    """Stands in for networks where nothing is to be parted: each number is an address of the loopback interface."""

    @staticmethod
    def host(number):
        return f"127.0.0.{number}"

    @staticmethod
    def within(_number):
        return []


class Networks:
    """A bridge, and a cable to each of `count` nodes. Use as a context, before the first thread is started."""

    def __init__(self, count):
        self.count = count
        self.bridge = f"atoll-{os.getpid()}-bridge"
        self.home = None

    def name(self, number):
        """The namespace of a node, or of the drill."""
        return self.bridge if number == DRILL else f"atoll-{os.getpid()}-{number}"

    def within(self, number):
        """The words in front of a command that put it into a network."""
        return [] if number == DRILL else ["ip", "netns", "exec", self.name(number)]

    def all(self):
        """The nodes, and the drill."""
        return [*range(1, self.count + 1), DRILL]

    @staticmethod
    def host(number):
        """The address of a node, or of the drill."""
        return f"{SUBNET}.{number}"

    def __enter__(self):
        check_machine()
        atexit.register(self._remove)
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
        run("ip", "netns", "add", self.bridge)
        ip = lambda *words: run("ip", "-n", self.bridge, *words)
        ip("link", "add", "bridge", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip("link", "set", "bridge", "up")
        ip("link", "set", "lo", "up")
        ip("addr", "add", f"{self.host(DRILL)}/24", "dev", "bridge")
        for number in range(1, self.count + 1):
            space = self.name(number)
            run("ip", "netns", "add", space)
            ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", f"port{number}", "master", "bridge", "up")
            node = lambda *words: run("ip", "-n", space, *words)
            node("addr", "add", f"{self.host(number)}/24", "dev", "eth0")
            node("link", "set", "eth0", "up")
            node("link", "set", "lo", "up")
        for number in self.all():
            self._nft(
                number,
                "add table ip cut\n"
                "add set ip cut from { type ipv4_addr; }\n"
                "add chain ip cut in { type filter hook input priority 0; }\n"
                "add rule ip cut in ip saddr @from drop\n"
                "add chain ip cut lossy { type filter hook input priority 1; }\n",
            )
        enter(self.bridge)
        return self

    def __exit__(self, *_):
        libc = ctypes.CDLL(None)
        libc.setns(self.home, CLONE_NEWNET)
        self._remove()

    def _remove(self):
        for space in map(self.name, self.all()):
            with contextlib.suppress(OSError):
                run("ip", "netns", "del", space, check=False)

    def _nft(self, number, words):
        run("nft", "-f", "-", within=self.name(number), input=words)

    def cut(self, directions):
        """Nothing gets through from `a` to `b` any more, for each (a, b); not even what belongs to a connection that `b` opened."""
        for b in sorted({b for _, b in directions}):
            hosts = ", ".join(self.host(a) for a, to in directions if to == b)
            self._nft(b, f"add element ip cut from {{ {hosts} }}\n")

    def lose(self, directions, share):
        """This share of the packets from `a` to `b`, drawn one by one, does not get through any more, for each (a, b)."""
        for b in sorted({b for _, b in directions}):
            hosts = ", ".join(self.host(a) for a, to in directions if to == b)
            self._nft(b, f"add rule ip cut lossy ip saddr {{ {hosts} }} numgen random mod {OF} < {round(OF * share)} counter drop\n")

    def lost(self):
        """How many packets `lose` has taken since the last `heal`."""
        total = 0
        for number in self.all():
            told = json.loads(run("nft", "-j", "list", "chain", "ip", "cut", "lossy", within=self.name(number)).stdout)
            parts = [part for row in told["nftables"] if "rule" in row for part in row["rule"]["expr"]]
            total += sum(part["counter"]["packets"] for part in parts if "counter" in part)
        return total

    def heal(self):
        """Everything gets through again."""
        for number in self.all():
            self._nft(number, "flush set ip cut from\nflush chain ip cut lossy\n")
