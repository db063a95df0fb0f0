"""File systems, each loop-mounted from a file, that lose unsynced data when the power goes. Needs root and ext4.

A copy of the file contains what was synced, but not what the kernel held only in memory. Standard library only.
"""

import os
import shutil
import subprocess
import time

from cluster import Failed, NotRun


def run(*command, refused=Failed):
    """Runs a program of the system; its words are in the exception."""
    done = subprocess.run([str(c) for c in command], capture_output=True, timeout=300)
    if done.returncode != 0:
        raise refused(f"`{' '.join(map(str, command))}`: {done.stderr.decode(errors='replace').strip()}")


def check_machine():
    """`NotRun` for who may not mount."""
    if os.geteuid() != 0:
        raise NotRun("loop mounts need root")


class Disks:
    """A file system for each of `places`, which are name=folder, in IMAGES/NAME.img. Use as a context."""

    def __init__(self, images, places, options=""):
        self.images, self.places = images, dict(places)
        self.options = f"loop,{options}".rstrip(",")
        self.mounted = []
        # A machine that refuses the first mount cannot run the drill; later on something is wrong.
        self.refused = NotRun

    @staticmethod
    def make(images, places, megabytes, options=""):
        """New, empty ones."""
        images.mkdir(parents=True)
        for name in places:
            image = images / f"{name}.img"
            with open(image, "wb") as file:
                file.truncate(megabytes << 20)
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image, refused=NotRun)
        return Disks(images, places, options)

    def __enter__(self):
        try:
            for name, place in self.places.items():
                place.mkdir(parents=True, exist_ok=True)
                run("mount", "-o", self.options, self.images / f"{name}.img", place, refused=self.refused)
                self.mounted.append(place)
        except BaseException:
            self.__exit__()
            raise
        self.refused = Failed
        return self

    def __exit__(self, *_):
        # What is mounted inside of another one goes first.
        for place in reversed(self.mounted):
            # A process may take a moment to go; a mount must not stay.
            for attempt in range(50):
                if subprocess.run(["umount", place], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                subprocess.run(["umount", "-l", place], capture_output=True)
        self.mounted = []

    def sync(self):
        """What is there now is on the disks."""
        for place in self.mounted:
            run("sync", "-f", place)

    def copy(self, to, names=None):
        """The files as they are, or some of them, without what their file systems have only in memory. Nobody may write meanwhile."""
        to.mkdir(parents=True)
        for name in names or self.places:
            run("cp", "--sparse=always", self.images / f"{name}.img", to / f"{name}.img")

    def put_back(self, copies):
        """Mounts these copies instead; they are used up. Nobody may have a file open."""
        self.__exit__()
        for copy in copies.glob("*.img"):
            os.replace(copy, self.images / copy.name)
        shutil.rmtree(copies)
        self.__enter__()
