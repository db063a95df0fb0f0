"""What happens to a cluster while ZooKeeper's clients work on it."""

import threading

# The log that the database is on.
LOG = "db"


class Disturber:
    """Kills a node, waits until it is back, moves the log, and again."""

    def __init__(self, cluster, random):
        self.cluster, self.random = cluster, random
        self.kills = self.moves = 0
        self.over = threading.Event()
        self.failed = None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        try:
            while not self.over.wait(self.random.uniform(1.0, 3.0)):
                victim = self.random.choice(self.cluster.ids())
                pids, _ = self.cluster.signal([victim])
                self.kills += 1
                self.over.wait(0.5)
                self.cluster.atoll("chain", "extend", "--log", LOG, check=False)
                self.moves += 1
                self.cluster.wait_back(pids)
                self.over.wait(3.0)
        except Exception as error:  # Told at the end, on the drill's own thread.
            self.failed = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.failed:
            raise self.failed
