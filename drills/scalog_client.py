#!/usr/bin/env python3
"""A client of Scalog's own interface (atoll.scalog.v1), in Python, generated from the protobuf definition.

It is an example, and the client of drills/scalog.py. With a log on Scalog (`atoll log create --log reef --loglet scalog`):

    drills/scalog_client.py 127.0.0.1:4501 reef append hello --policy round-robin
    drills/scalog_client.py 127.0.0.1:4501 reef append hello --shard 0
    drills/scalog_client.py 127.0.0.1:4501 reef read 0
    drills/scalog_client.py 127.0.0.1:4501 reef subscribe 0
    drills/scalog_client.py 127.0.0.1:4501 reef shards
"""

import argparse
import random
import sys
import time

from grpc_venv import grpc_or_again, scalog_service

grpc_or_again()

import grpc  # noqa: E402, the line before finds an interpreter that has it

messages, services = scalog_service()

POLICIES = {"hash": messages.POLICY_HASH, "nearest": messages.POLICY_NEAREST, "round-robin": messages.POLICY_ROUND_ROBIN}
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
# How long one attempt may take, in seconds: the node itself tries for 10 s.
PATIENCE_S = 12
# How long a client tries to find out what became of an append.
WITHIN_S = 60
# Another attempt, at another node, may succeed after these.
FOR_NOW = {None, "busy", "unavailable", "storage-failed", "stopping", "abandoned"}


class Refused(Exception):
    """It did not happen, and trying again is of no use; the reason is one word."""

    def __init__(self, reason, words):
        super().__init__(f"{reason}: {words}")
        self.reason = reason


class Unknown(Exception):
    """Nobody could say whether it happened."""


class Scalog:
    """One log, through some nodes."""

    def __init__(self, log, addresses, at=0):
        """`at` is the node that is used first."""
        self.log, self.at = log, at
        self.channels = [grpc.insecure_channel(address, options=CHANNEL) for address in addresses]
        self.stubs = [services.ScalogServiceStub(channel) for channel in self.channels]
        self.policy, self.choose = "hash", None
        self.turn, self.tail = 0, 0
        self.random = random.SystemRandom()

    def close(self):
        """Closes the connections."""
        for channel in self.channels:
            channel.close()

    def set_shard_policy(self, policy):
        """Where later appends go: the name of a policy, or a function that chooses one of a list of shards."""
        if callable(policy):
            self.policy, self.choose = None, policy
        elif policy in POLICIES:
            self.policy, self.choose = policy, None
        else:
            raise ValueError(f"{policy!r} is no policy: use {', '.join(POLICIES)}, or a function")

    def append(self, data):
        """Appends a record to the shard that the policy chooses. Its position, and its shard if a policy chose one."""
        if self.policy == "hash":
            reply = self._append("Append", messages.AppendRequest, data, {"policy": POLICIES["hash"]})
            return reply.position, None
        while True:
            shard = self._chosen()
            try:
                return self.append_to_shard(shard, data), shard
            except Refused as refused:
                # It is not there, and will not be: the shard has ended, so another one takes it.
                if refused.reason != "conflict":
                    raise

    def append_to_shard(self, shard, data):
        """Appends a record to a shard. Its position."""
        return self._append("AppendToShard", messages.AppendToShardRequest, data, {"shard": shard}).position

    def read_record(self, position, shard=None):
        """What is at a position, as (word, record): data, elsewhere, trimmed or pad."""
        reply = self._call("ReadRecord", messages.ReadRecordRequest(log=self.log, position=position, shard=shard))
        what = reply.WhichOneof("what")
        return what, reply.data if what == "data" else None

    def subscribe(self, start=0):
        """Records from a position on, as (position, record), as they are appended. Continues at another node if one fails."""
        upto, last = start, time.monotonic()
        while True:
            try:
                for reply in self.stubs[self.at].Subscribe(messages.SubscribeRequest(**{"log": self.log, "from": upto})):
                    last = time.monotonic()
                    for record in reply.records:
                        yield record.position, record.data
                    upto = max(upto, reply.next)
            except grpc.RpcError as error:
                happened, reason, words = told(error)
                if reason not in FOR_NOW or time.monotonic() > last + WITHIN_S:
                    raise Refused(reason, words) from error
                self._next_node()

    def trim(self, below):
        """Gives up all records below a position."""
        self._call("Trim", messages.TrimRequest(log=self.log, below=below))

    def shards(self):
        """The shards of the active segment."""
        reply = self._call("Shards", messages.ShardsRequest(log=self.log))
        self.tail = max(self.tail, reply.tail)
        return reply

    def _chosen(self):
        """The shard that the policy chooses."""
        reply = self.shards()
        live = [shard for shard in reply.shards if not shard.HasField("ended")]
        self.turn += 1
        if self.choose:
            return self.choose(live)
        near = [shard.number for shard in live if reply.node in shard.nodes]
        if self.policy == "nearest" and near:
            return near[0]
        return live[self.turn % len(live)].number

    def _append(self, method, kind, data, where):
        """Sends an append until its outcome is known. It is named, and says from where on an earlier attempt may be in the log."""
        floor = self.tail or self.shards().tail
        request = kind(log=self.log, data=data, client=self.random.randrange(1, 1 << 64), **where)
        reply = self._call(method, request, floor)
        self.tail = max(self.tail, reply.position + 1)
        return reply

    def _call(self, method, request, floor=None):
        until, lost = time.monotonic() + WITHIN_S, False
        while True:
            try:
                return getattr(self.stubs[self.at], method)(request, timeout=PATIENCE_S)
            except grpc.RpcError as error:
                happened, reason, words = told(error)
                lost = lost or happened != "no"
                # "conflict" speaks for all attempts: the record is not in the log, and will not be.
                if reason == "conflict" or (happened == "no" and not lost and reason not in FOR_NOW):
                    raise Refused(reason, words) from error
                if time.monotonic() > until:
                    raise (Unknown(words) if lost else Refused(reason, words)) from error
                if floor is not None:
                    request.floor = floor
                self._next_node()

    def _next_node(self):
        self.at = (self.at + 1) % len(self.stubs)
        time.sleep(0.02)


def told(error):
    """Whether a call that failed happened, why it failed in one word, and in more."""
    trailers = dict(error.trailing_metadata() or ())
    return trailers.get("atoll-happened"), trailers.get("atoll-reason"), error.details()


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("connect", help="where nodes listen for gRPC clients, comma-separated")
    parser.add_argument("log")
    verbs = parser.add_subparsers(dest="verb", required=True)
    append = verbs.add_parser("append")
    append.add_argument("record")
    where = append.add_mutually_exclusive_group()
    where.add_argument("--policy", choices=POLICIES, default="hash")
    where.add_argument("--shard", type=int)
    verbs.add_parser("read").add_argument("position", type=int)
    verbs.add_parser("subscribe").add_argument("start", type=int)
    verbs.add_parser("shards")
    args = parser.parse_args()
    log = Scalog(args.log, args.connect.split(","))
    if args.verb == "append" and args.shard is not None:
        print(log.append_to_shard(args.shard, args.record.encode()))
    elif args.verb == "append":
        log.set_shard_policy(args.policy)
        print(log.append(args.record.encode())[0])
    elif args.verb == "read":
        print(*log.read_record(args.position))
    elif args.verb == "subscribe":
        for position, record in log.subscribe(args.start):
            print(position, record.decode(errors="replace"), flush=True)
    else:
        print(log.shards())


if __name__ == "__main__":
    try:
        main()
    except (Refused, Unknown) as error:
        sys.exit(str(error))
