"""Ports for what a drill starts by itself, without `atoll dev`. Standard library only."""

import itertools
import os
import socket

from cluster import Failed

# Above those of `atoll dev --base-port 0`, and below those that systems give to outgoing connections: drills run beside each other, and the
# connections of one could take a port of the other before its program listens.
PORTS = range(30_000, 32_700)
# Programs begin at different places, and draw no port twice.
_drawn = itertools.count(os.getpid() * 97)


def free_ports(count):
    """So many ports of loopback that nobody has now."""
    found = []
    for _ in PORTS:
        port = PORTS[next(_drawn) % len(PORTS)]
        with socket.socket() as one:
            # As the programs do: what lingers of an earlier connection does not count.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise Failed(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
