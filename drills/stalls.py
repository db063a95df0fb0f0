"""When the machine itself stood still, so that a drill does not blame the program for it.

A virtual machine sometimes does not run for a while, and its disk sometimes completes nothing for a while. Neither is a matter of load: a
loaded machine gets its turns late by a few milliseconds, and a loaded disk completes one request after another.
"""

import os
import pathlib
import threading
import time

# How often to look, seconds.
EVERY = 0.005
# Shorter stalls do not count, seconds.
LEAST = 0.05


class Stalls(threading.Thread):
    """Spans of time in which something stood still."""

    def __init__(self):
        super().__init__(daemon=True)
        # (begin, end)
        self.spans = []
        self.start()

    def within(self, begin, end):
        """For how long, between two moments."""
        return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in self.spans)

    def longest(self):
        return max((last - first for first, last in self.spans), default=0.0)

    def note(self, first, last):
        if last - first > LEAST:
            self.spans.append((first, last))


class Processor(Stalls):
    """When this process was kept from running although it wanted to."""

    def run(self):
        while True:
            before = time.monotonic()
            time.sleep(EVERY)
            self.note(before + EVERY, time.monotonic())


class Disk(Stalls):
    """When the disk of a folder had requests and completed none of them. Without statistics of the disk, as in memory, it never stands still."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        self.path = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        super().__init__()

    def counts(self):
        """How many requests were completed so far, and how many are under way. See the kernel's Documentation/block/stat.rst."""
        fields = [int(word) for word in self.path.read_text().split()]
        reads, writes, under_way = fields[0], fields[4], fields[8]
        return reads + writes + sum(fields[11:12]) + sum(fields[15:16]), under_way

    def run(self):
        if not self.path.exists():
            return
        (completed, under_way), since = self.counts(), time.monotonic()
        while True:
            time.sleep(EVERY)
            before, was_under_way = completed, under_way
            (completed, under_way), now = self.counts(), time.monotonic()
            if completed != before or not was_under_way:
                self.note(since, now if was_under_way else since)
                since = now


class Machine:
    """Both."""

    def __init__(self, folder):
        self.processor, self.disk = Processor(), Disk(folder)

    def stalled(self, begin, end):
        """For how long one of them stood still between two moments. Where both did, only the longer one counts."""
        return max(self.processor.within(begin, end), self.disk.within(begin, end))
