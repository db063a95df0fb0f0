#!/usr/bin/env python3
"""Bad input: every mistake gets a clear error, the rest of the cluster continues, and no acknowledged record is lost.

The drill sends garbage, oversized frames and frames of the wrong version to every port, and tries a configuration with each setting wrong.
It flips a bit in the journal, leaves a torn tail, and fills a disk and frees it again. It starts two nodes with one id, a node with another
node's data folder, and a listener beyond loopback without TLS.
"""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import time

from cluster import Cluster, Drill, Failed, end, need, poll, say, table
from load import Load, verify

LOG = "bad"
# Longest time for one refusal, in seconds.
REFUSED_WITHIN = 20
# The version of the messages between nodes (`atoll-net/src/handshake.rs`).
PROTOCOL = 2


def serve(drill, *args, seconds=REFUSED_WITHIN):
    """Runs `atoll serve` that is expected to refuse: (status, its words)."""
    command = [str(drill.binary), "serve", *[str(a) for a in args]]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        words, _ = process.communicate(timeout=seconds)
        return process.returncode, words.decode(errors="replace")
    except subprocess.TimeoutExpired:
        end(process)
        words, _ = process.communicate()
        return None, words.decode(errors="replace")


def refused(drill, what, parts, *args):
    """`atoll serve` ends with an error that holds all these parts."""
    status, words = serve(drill, *args)
    need(status not in (None, 0), f"{what}: not refused: {words[-500:]}")
    missing = [p for p in parts if p.lower() not in words.lower()]
    need(not missing, f"{what}: the error does not say {missing}: {words[-800:]}")
    need("panicked" not in words, f"{what}: a panic: {words[-800:]}")
    return words.strip().splitlines()[-1]


def frames(rng):
    """What is sent to every port: (name, bytes)."""
    preamble = b"ATOLLnet"
    http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "nothing", b""
    yield "garbage", rng.randbytes(4096)
    yield "zeros", bytes(65_536)
    yield "ones", b"\xff" * 65_536
    yield "another version", preamble + struct.pack("<HBBI", 999, 0, 0, 64) + rng.randbytes(64)
    yield "oversized hello", preamble + struct.pack("<HBBI", PROTOCOL, 0, 0, 0xFFFF_FFFF) + rng.randbytes(64)
    yield "garbage hello", preamble + struct.pack("<HBBI", PROTOCOL, 0, 0, 128) + rng.randbytes(128)
    yield "half a hello", preamble + struct.pack("<HBBI", PROTOCOL, 0, 0, 128) + rng.randbytes(5)
    yield "HTTP/1 garbage", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"
    yield "HTTP/2 garbage", http2 + rng.randbytes(4096)
    yield "oversized HTTP/2 frame", http2 + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100_000)
    yield "TLS to a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(512)


def throw(address, data):
    """Sends bytes and takes whatever comes; the other side may close at any moment."""
    host, port = address.rsplit(":", 1)
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.settimeout(0.3)
        connection.sendall(data)
        connection.recv(4096)


def on_every_port(drill):
    """Garbage on the ports of a cluster under load."""
    with Cluster(drill.binary, drill.folder / "ports", "--nodes", 3) as cluster:
        cluster.atoll("log", "create", "--log", LOG)
        load = Load(cluster, drill.folder, LOG, name="ports", depth=16).start()
        before = {n.id: n.pid for n in cluster.nodes()}
        held, thrown = [], 0
        for _ in range(drill.args.garbage_rounds):
            for node in cluster.nodes():
                for address in (node.grpc, node.peer, node.metrics):
                    for _, data in frames(drill.random):
                        throw(address, data)
                        thrown += 1
                    # Connections that say nothing, and stay.
                    host, port = address.rsplit(":", 1)
                    for _ in range(30):
                        with contextlib.suppress(OSError):
                            held.append(socket.create_connection((host, int(port)), timeout=2))
        reached = load.acknowledged()
        poll("appends continue", 10, lambda: load._alive() and load.acknowledged() > reached)
        for connection in held:
            connection.close()
        cluster.atoll("log", "append", "--log", "x" * 201, "no", check=False)
        done = load.finish()
        verify(cluster, [load], LOG)
        now = {n.id: n.pid for n in cluster.nodes()}
        need(now == before, f"a node went down: pids {before} before, {now} after")
        panics = [n.id for n in cluster.nodes() if "panicked" in n.log.read_text(errors="replace")]
        need(not panics, f"panics on nodes {panics}")
    return f"{thrown} times garbage, {len(held)} silent connections, {done} records unharmed"


def configuration(drill):
    """Every setting of the printed configuration, wrong in some way."""
    printed = subprocess.run([drill.binary, "serve", "--print-config"], check=True, capture_output=True, text=True).stdout
    section, count = None, 0
    for line in printed.splitlines():
        head = re.match(r"#?\[\[?(\w+)\]\]?$", line)
        pair = re.match(r"#?(\w+) = ", line)
        if head:
            section = head[1]
        elif pair and not line.startswith("# "):
            file = drill.folder / "wrong.toml"
            for wrong in ("-1", '"\\u0001"', "[[2]]", "1979-05-27"):
                bracket = f"[[{section}]]" if section in ("peer", "registers") else f"[{section}]"
                file.write_text(f"\n{bracket}\n{pair[1]} = {wrong}\n")
                refused(drill, f"{section}.{pair[1]} = {wrong}", [f"{file}:3", f"{section}.{pair[1]}", "allowed"], "--config", file)
                count += 1
    file.write_text("[node]\nidentity = 3\n")
    refused(drill, "an unknown setting", [f"{file}:2", "unknown setting", "node.identity"], "--config", file)
    refused(drill, "a file that is not there", ["cannot be read"], "--config", drill.folder / "none.toml")
    need(count > 20, f"only {count} wrong settings were tried")
    return f"{count} wrong settings refused, each by name, file and line"


def beyond_loopback(drill):
    """A door for everybody, without TLS."""
    data = drill.folder / "exposed"
    said = refused(drill, "a door beyond loopback", ["0.0.0.0:0", "TLS", "listen_beyond_loopback_without_tls"], "--data", data, "--grpc", "0.0.0.0:0")
    need(not data.exists(), "a refused configuration made a data folder")
    return said


def last_segment(data):
    """The journal's segment that was written last."""
    return max((data / "journal").glob("[0-9a-f]*.seg"), key=lambda p: p.stat().st_mtime_ns)


def end_of_data(path):
    """The offset behind the last byte that is not zero, but for the footer at a closed segment's end."""
    data = path.read_bytes()
    gap = data.find(bytes(1 << 16))
    return len(data[:gap if gap >= 0 else None].rstrip(b"\0"))


def journal(drill):
    """A torn tail is cut, a flipped bit refused, and the cluster continues without that node."""
    said = []
    with Cluster(drill.binary, drill.folder / "journal", "--nodes", 3, "--no-restart") as cluster:
        cluster.atoll("log", "create", "--log", LOG)
        load = Load(cluster, drill.folder, LOG, name="journal", depth=64, line_bytes=500).start()
        poll("some records are there", 60, lambda: load.acknowledged() > 5_000)
        victim = cluster.node(3)
        cluster.signal([3])
        poll("node 3 is gone", 10, lambda: cluster.node(3).pid is None)
        torn = last_segment(victim.data)
        at = end_of_data(torn)
        block = (at + 4095) // 4096 * 4096
        with open(torn, "r+b") as file:
            # As a write that the power cut short: a batch that begins well and does not end.
            file.seek(at // 4096 * 4096)
            first = file.read(4096)
            file.seek(block)
            file.write(first[:700] + drill.random.randbytes(300))
        # The supervisor leaves it dead: it is started by hand, with the ports that it had.
        again = subprocess.Popen([str(drill.binary), "serve", "--config", str(victim.config)], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=open(drill.folder / "torn.err", "wb"))
        try:
            up = lambda: again.poll() is None and any(n["id"] == 3 and n["state"] == "up" for n in cluster.status()["nodes"])
            poll("the node with the torn tail is up", 30, up, every=0.2)
            cluster.wait_nothing_lacks(LOG)
            said.append("a torn tail was cut")
        finally:
            again.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                again.wait(20)
            end(again)
        # A bit well below the end of what was synced.
        damaged = min((victim.data / "journal").glob("[0-9a-f]*.seg"), key=lambda p: p.name)
        offset = end_of_data(damaged) // 2 // 4096 * 4096 + 100
        flip(damaged, offset)
        words = refused(drill, "a flipped bit in the journal", [damaged.name], "--config", victim.config)
        need(re.search(r"\d{3,}", words.replace(damaged.name, "")), f"the error names no offset: {words}")
        said.append(words)
        flip(damaged, offset)
        done = load.finish()
        verify(cluster, [load], LOG, connect=cluster.connect(1, 2))
    return f"{'; '.join(said)}; {done} records unharmed"


def flip(path, offset):
    """Turns one bit over."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())


def wrong_identity(drill):
    """Two nodes with one id, and a node with another's data."""
    said = []
    with Cluster(drill.binary, drill.folder / "twins", "--nodes", 3) as cluster:
        cluster.atoll("log", "create", "--log", LOG)
        load = Load(cluster, drill.folder, LOG, name="twins", depth=8).start()
        original = cluster.node(2)
        # As node 2, with ports and data of its own; first with the living node's data.
        file = drill.folder / "twin.toml"
        text = original.config.read_text()
        text = re.sub(r"(?m)^(grpc|peer|metrics|zookeeper|zookeeper_admin) = \"127\.0\.0\.1:\d+\"$", r'\1 = "127.0.0.1:0"', text.split("[[peer]]")[0]) \
            + "".join("[[peer]]" + p for p in text.split("[[peer]]")[1:])
        file.write_text(text.replace('data = "data"', f'data = "{original.data}"'))
        said.append(refused(drill, "a data folder in use", [str(original.data)], "--config", file))
        file.write_text(text.replace('data = "data"', f'data = "{drill.folder / "twin"}"'))
        said.append(refused(drill, "a second node 2", ["two nodes have one id", "its own id"], "--config", file))
        reached = load.acknowledged()
        poll("appends continue", 10, lambda: load._alive() and load.acknowledged() > reached)
        load.finish()
        verify(cluster, [load], LOG)
        one, two = cluster.node(1), cluster.node(2)
    file.write_text(one.config.read_text().replace('data = "data"', f'data = "{two.data}"'))
    said.append(refused(drill, "another node's data", ["node", "2"], "--config", file))
    return "; ".join(said)


def full_disk(drill):
    """A small file system that fills up, and space that comes back."""
    folder = drill.folder / "full"
    folder.mkdir()
    place = folder / "node-1"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={drill.args.tmpfs_megabytes}m", "none", place], capture_output=True)
    if mount.returncode != 0:
        return f"not run: {mount.stderr.decode(errors='replace').strip()}"
    try:
        with Cluster(drill.binary, folder, "--nodes", 1) as cluster:
            cluster.atoll("log", "create", "--log", LOG)
            lines = drill.folder / "full.lines"
            count = drill.args.tmpfs_megabytes * 2_000_000 // 10_000
            with open(lines, "wb") as file:
                for n in range(count):
                    file.write(b"%012d " % n + b"." * 9_986 + b"\n")
            done = cluster.atoll("log", "append", "--log", LOG, "--lines", lines, "--depth", 16, check=False, timeout=300)
            words = done.stderr.decode(errors="replace")
            need(done.returncode != 0, "twice the size of the disk went into it")
            need("full" in words.lower() or "space" in words.lower(), f"the error does not say that the disk is full: {words[-500:]}")
            pid = cluster.node(1).pid
            tail = cluster.json("log", "check-tail", "--log", LOG)["tail"]
            need(0 < tail < count, f"the tail is {tail} after the disk was full")
            # Reading continues, and a trim makes room.
            out = cluster.atoll("log", "read", "--raw", "--log", LOG, timeout=300).stdout
            with open(lines, "rb") as file:
                need(out == file.read(len(out)) and len(out) == tail * 10_000, "what was acknowledged is not all there")
            cluster.atoll("log", "trim", "--log", LOG, tail - 10)

            def appends():
                return cluster.atoll("log", "append", "--log", LOG, "room again", check=False, timeout=30).returncode == 0

            poll("appends succeed once there is room", 60, appends, every=0.5)
            need(cluster.node(1).pid == pid, "the node died of a full disk")
        said = words.strip().splitlines()[-1]
    finally:
        for _ in range(50):
            if subprocess.run(["umount", place], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
    return f"{tail} records kept; said: {said[:160]}"


def body(drill):
    cases = [on_every_port, configuration, beyond_loopback, journal, wrong_identity, full_disk]
    rows, broken = [], []
    for case in cases:
        name = case.__name__.replace("_", " ")
        try:
            rows.append((name, "holds", case(drill)))
        except Failed as words:
            rows.append((name, "FAILS", str(words)))
            broken.append(name)
        say(f"{name}: {rows[-1][1]}")
    say()
    table([(n, v, w[:200]) for n, v, w in rows], ("case", "", "what was seen"))
    drill.result["cases"] = {name: verdict for name, verdict, _ in rows}
    need(not broken, f"{', '.join(broken)}: {'; '.join(w for _, v, w in rows if v == 'FAILS')}")


if __name__ == "__main__":
    Drill(
        "bad_input",
        __doc__,
        garbage_rounds=(20, 1, "how often every port gets everything"),
        tmpfs_megabytes=(600, 400, "size of the disk that fills up"),
    ).run(body)
