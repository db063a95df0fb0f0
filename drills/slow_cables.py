#!/usr/bin/env python3
"""Cables that delay each packet, between the networks of networks.py. Standard library only.

Not every kernel has netem. Packets that cross a slow cable are therefore routed to a TUN device. Behind it a program, which is this file
run as a separate process, holds each packet for its delay and hands it to the other node's device. Packets of one direction never overtake
each other. Other cables are unaffected. Needs root, `ip` and /dev/net/tun.
"""

import fcntl
import heapq
import itertools
import json
import os
import pathlib
import random
import select
import socket
import struct
import subprocess
import sys
import time

from cluster import Failed, NotRun, end, need
from networks import enter, run

TUN = pathlib.Path("/dev/net/tun")
DEVICE = "slow"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Packets that are held at most; more are lost, as where a queue is full.
HELD = 20_000
PACKET = 65_536
# How long the process may take to open its devices, and to answer, in seconds.
ANSWERS_WITHIN = 20


def check_machine():
    """`NotRun` where there are no such devices."""
    if not TUN.exists():
        raise NotRun(f"{TUN} is not there: slow cables need it")


class SlowCables:
    """Cables of `networks` that can be made slow. Use as a context, inside that of the networks and before the first thread is started."""

    def __init__(self, networks):
        self.networks = networks
        self.process = None
        self.routes = set()

    def __enter__(self):
        words = [f"{self.networks.name(n)}={self.networks.host(n)}" for n in self.networks.all()]
        self.process = subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._answer()
            for number in self.networks.all():
                space = self.networks.name(number)
                run("ip", "-n", space, "link", "set", DEVICE, "up")
                # A packet may come in by another device than the answer goes out.
                for device in ("all", DEVICE):
                    run("sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/{device}/rp_filter", within=space)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process)

    def _answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWERS_WITHIN)
        line = self.process.stdout.readline() if ready else ""
        need(line, "the process that holds packets does not answer")
        return json.loads(line)

    def _ask(self, **words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def slow(self, directions, delay_ms, jitter_ms):
        """From now on a packet from `a` to `b` takes so long, give or take the jitter, for each (a, b)."""
        self.carried_before = self._ask(delay_ms=delay_ms, jitter_ms=jitter_ms)["carried"]
        for a, b in directions:
            space, host = self.networks.name(a), self.networks.host(b)
            run("ip", "-n", space, "route", "replace", f"{host}/32", "dev", DEVICE, "src", self.networks.host(a))
            self.routes.add((space, host))

    def carried(self):
        """How many packets were held since the last `slow`."""
        return self._ask()["carried"] - self.carried_before

    def heal(self):
        """All cables are quick again. What is held still comes."""
        while self.routes:
            space, host = self.routes.pop()
            run("ip", "-n", space, "route", "del", f"{host}/32", "dev", DEVICE)


def opened(space):
    """A device in a namespace; what the kernel sends out through it is read from this handle."""
    enter(space)
    handle = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return handle


class Held:
    """Packets on their way, in the order of the moments at which they are due."""

    def __init__(self):
        self.queue, self.order, self.last = [], itertools.count(), {}
        self.delay = self.jitter = 0.0

    def add(self, packet, now):
        """Takes a packet of IPv4; anything else is no node's."""
        if len(packet) < 20 or packet[0] >> 4 != 4 or len(self.queue) >= HELD:
            return
        way = packet[12:20]
        due = max(now + random.uniform(self.delay - self.jitter, self.delay + self.jitter), self.last.get(way, 0.0))
        self.last[way] = due
        heapq.heappush(self.queue, (due, next(self.order), packet))

    def wait(self, now):
        """Seconds until the next is due; None if there is none."""
        return max(0.0, self.queue[0][0] - now) if self.queue else None

    def due(self, now):
        """The packets that are due."""
        while self.queue and self.queue[0][0] <= now:
            yield heapq.heappop(self.queue)[2]


def taken(handle):
    """The packets that wait at a device."""
    while True:
        try:
            yield os.read(handle, PACKET)
        except BlockingIOError:
            return


def carry(spaces):
    """Carries packets between the devices until standard input ends; each line there is an order, and gets an answer."""
    devices = {socket.inet_aton(host): opened(space) for space, host in spaces}
    poller, held, carried = select.epoll(), Held(), 0
    for handle in (0, *devices.values()):
        poller.register(handle, select.EPOLLIN)
    print(json.dumps({"carried": 0}), flush=True)
    while True:
        for handle, _ in poller.poll(held.wait(time.monotonic())):
            if handle != 0:
                for packet in taken(handle):
                    held.add(packet, time.monotonic())
                continue
            line = os.read(0, PACKET)
            if not line:
                return
            order = json.loads(line)
            held.delay = order.get("delay_ms", 1e3 * held.delay) / 1e3
            held.jitter = order.get("jitter_ms", 1e3 * held.jitter) / 1e3
            print(json.dumps({"carried": carried}), flush=True)
        for packet in held.due(time.monotonic()):
            to = devices.get(packet[16:20])
            if to is not None:
                os.write(to, packet)
                carried += 1


if __name__ == "__main__":
    try:
        carry([word.split("=") for word in sys.argv[1:]])
    except Failed as words:
        sys.exit(str(words))
