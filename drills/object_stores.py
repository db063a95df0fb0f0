"""The object stores of drills: a directory, or a real server that speaks S3 behind a proxy that makes it fail."""

import contextlib
import os
import pathlib
import threading

import object_server
from cluster import need, say

# Of fifty requests to the server, through the proxy, and how long a slow one takes.
FAULTS = {"lost": 1, "unanswered": 1, "refused": 1, "slow": 1, "slow_s": 0.3}


class Files:
    """A directory as the store."""

    proxy = None

    def __init__(self, folder):
        self.objects, self.url = folder / "store", f"file://{folder / 'store'}"


class S3:
    """A bucket as the store, with a proxy in front of it."""

    def __init__(self, folder, seed, until):
        self.server = until.enter_context(object_server.Server(folder / "s3"))
        self.proxy = until.enter_context(object_server.Proxy(self.server, seed))
        self.objects, self.url = self.server.bucket, f"s3://{object_server.BUCKET}/logs"
        os.environ.update(self.proxy.environment())


def make(drill, until):
    """The store that `--store` names; `until` ends it."""
    need(drill.args.store in ("file", "s3"), f"--store is {drill.args.store}; allowed are file and s3")
    folder = pathlib.Path(drill.folder)
    return Files(folder) if drill.args.store == "file" else S3(folder, drill.seed, until)


def outage(drill, proxy, stop):
    """Lets no request through for some seconds, and until one was tried; then again."""
    if not stop.wait(1):
        proxy.faults.down = True
        while not stop.wait(drill.args.outage_s) and not proxy.faults.counts["down"]:
            pass
        proxy.faults.down = False


@contextlib.contextmanager
def failing(drill, proxy):
    """While the block runs, the server fails. Gives what tells whether it has not been out of reach yet."""
    if not proxy:
        yield lambda: False
        return
    proxy.faults.begin(**FAULTS)
    stop = threading.Event()
    thread = threading.Thread(target=outage, args=(drill, proxy, stop), daemon=True)
    thread.start()
    try:
        yield thread.is_alive
    finally:
        stop.set()
        thread.join()
        proxy.faults.heal()
    counts = proxy.faults.counts
    say(f"requests to the server: {', '.join(f'{count} {what}' for what, count in counts.items())}")
    need(all(counts.values()), f"a fault never happened: {counts}")
    drill.result["requests"] = counts
