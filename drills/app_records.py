"""Reads what Scalog's applications have in their logs, without any of the product's code but `atoll log read`: what drills compare with."""

import collections
import json
import struct

from cluster import need

KINDS = ("views", "carts", "purchases", "searches")

Event = collections.namedtuple("Event", "user session kind item price_cents time_ms")


class Fields:
    """The fields of an encoded record, one after the other: little endian, with lengths of 32 bits."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        """The next bytes."""
        need(self.at + count <= len(self.data), f"a record of {len(self.data)} bytes ends within a field")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, width=8):
        """A number of so many bytes."""
        return int.from_bytes(self.take(width), "little")

    def data_of(self):
        """Bytes with their length in front."""
        return self.take(self.number(4))

    def text(self):
        """A text."""
        return self.data_of().decode()

    def end(self):
        """Nothing is left."""
        need(self.at == len(self.data), f"{len(self.data) - self.at} bytes of a record are left over")


def entries(cluster, log):
    """The records of a log, as (position, bytes)."""
    for line in cluster.atoll("log", "read", "--log", log, "--json").stdout.splitlines():
        value = json.loads(line)
        data = bytes.fromhex(value["payload_hex"]) if "payload_hex" in value else value["payload"].encode()
        entry = Fields(data)
        need(struct.unpack("BB", entry.take(2)) == (1, 1), f"position {value['position']} holds no record of format 1")
        body = entry.data_of()
        entry.end()
        yield value["position"], Fields(body)


def streams(cluster, log):
    """The entries of each stream, as positions; and the newest checkpoint of each, as (position, index)."""
    found, saved = collections.defaultdict(list), {}
    for position, body in entries(cluster, log):
        if body.number(1) == 1:
            body.take(16)
            for _ in range(body.number(4)):
                found[body.text()].append(position)
                body.data_of()
        else:
            stream, index = body.text(), body.number()
            if index > saved.get(stream, (0, -1))[1]:
                saved[stream] = (position, index)
            body.data_of()
        body.end()
    return found, saved


def events(cluster, log):
    """The events of a market."""
    for _, body in entries(cluster, log):
        user, session, kind, item = body.text(), body.text(), KINDS[body.number(1)], body.text()
        event = Event(user, session, kind, item, body.number(), body.number())
        body.end()
        yield event


def count(all_events):
    """How often what was done with each item, and what was paid for it."""
    items = collections.defaultdict(lambda: dict.fromkeys((*KINDS, "revenue_cents"), 0))
    for event in all_events:
        items[event.item][event.kind] += 1
        if event.kind == "purchases":
            items[event.item]["revenue_cents"] += event.price_cents
    return dict(items)
