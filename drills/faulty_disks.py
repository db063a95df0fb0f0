"""A separate file system, stored in a file, for each node's data. It can be made to fail and to work again. Needs root, ext4 and loop
mounts."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from cluster import Failed, NotRun, need

MEGABYTES = 1024
TOOLS = ("losetup", "mkfs.ext4", "e2fsck", "mount", "umount", "fsfreeze")
# Memory as a disk: its syncs are quick, however busy the machine's own disk is.
MEMORY = pathlib.Path("/dev/shm")
# This node's is on the drill's own file system: a node writes to a slow disk from another thread than to a quick one.
SLOW = 4
# Room that is left to a filled disk: less than anybody can use.
CRUMBS_BYTES = 64 << 10


def run(*command, refused=Failed):
    """Runs a program of the system; its words are in the exception."""
    done = subprocess.run([str(c) for c in command], capture_output=True, timeout=120)
    if done.returncode != 0:
        raise refused(f"`{' '.join(map(str, command))}`: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace").strip()


class Disk:
    """One file system."""

    def __init__(self, image, place):
        self.image, self.place = image, place
        self.device = None
        self.mounted = self.frozen = False

    def make(self):
        """A new, empty one."""
        with open(self.image, "wb") as file:
            file.truncate(MEGABYTES << 20)
        options = "lazy_itable_init=0,lazy_journal_init=0"
        self.device = run("losetup", "--find", "--show", self.image, refused=NotRun)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", options, self.device, refused=NotRun)
        self.place.mkdir(parents=True)
        self.mount(NotRun)
        (self.place / "lost+found").rmdir()

    def mount(self, refused=Failed):
        """Mounts it. After an error nothing more is written to it."""
        run("mount", "-o", "errors=remount-ro", self.device, self.place, refused=refused)
        self.mounted = True

    def freeze(self):
        """From now on it answers no write and no sync, with no error either."""
        run("fsfreeze", "--freeze", self.place)
        self.frozen = True

    def thaw(self):
        """It continues where it was."""
        if self.frozen:
            run("fsfreeze", "--unfreeze", self.place)
            self.frozen = False

    def fail(self):
        """Every write and sync fails from now on, until `repair`."""
        pathlib.Path(f"/sys/fs/ext4/{pathlib.Path(self.device).name}/trigger_fs_error").write_text("1\n")

    def repair(self):
        """What an operator does, once nobody has it open."""
        run("umount", self.place)
        self.mounted = False
        done = subprocess.run(["e2fsck", "-f", "-y", self.device], capture_output=True, timeout=120)
        # 1: it has repaired something.
        need(done.returncode in (0, 1), f"e2fsck: {done.stderr.decode(errors='replace')}")
        self.mount()
        need(os.access(self.place, os.W_OK), f"{self.place} is mounted again, and takes no writes")

    def fill(self):
        """Takes all room there is, now."""
        filler = os.open(self.place / "filler", os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            size = os.fstat(filler).st_size
            step = MEGABYTES << 19
            while step >= CRUMBS_BYTES:
                try:
                    os.posix_fallocate(filler, size, step)
                    size += step
                except OSError:
                    step //= 2
                size = max(size, os.fstat(filler).st_size)
        finally:
            os.close(filler)

    def empty(self):
        """Gives the room back."""
        (self.place / "filler").unlink(missing_ok=True)

    def read_only(self, is_so):
        """Lets nobody write to it, or everybody again."""
        run("mount", "-o", f"remount,{'ro' if is_so else 'rw'}", self.place)

    def remove(self):
        """Takes it away."""
        self.thaw()
        for _ in range(50):
            # A process may take a moment to go; a mount must not stay.
            if not self.mounted or subprocess.run(["umount", self.place], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "-l", self.place], capture_output=True)
        if self.device:
            subprocess.run(["losetup", "--detach", self.device], capture_output=True)


class Disks:
    """One for each node, at `place(number)`. Use as a context. They are in memory but for one, if this machine has a file system there."""

    def __init__(self, folder, numbers, place):
        self.folder, self.numbers, self.place = folder, list(numbers), place
        self.memory = None
        self.disks = {}

    def __enter__(self):
        if os.geteuid() != 0:
            raise NotRun("loop mounts need root")
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing:
            raise NotRun(f"{', '.join(missing)} is not there")
        self.folder.mkdir(parents=True)
        try:
            if MEMORY.is_dir():
                self.memory = pathlib.Path(tempfile.mkdtemp(prefix="atoll-disks-", dir=MEMORY))
            for number in self.numbers:
                images = self.memory if self.memory and number != SLOW else self.folder
                disk = self.disks[number] = Disk(images / f"{number}.img", self.place(number))
                disk.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __getitem__(self, number):
        return self.disks[number]

    def thaw(self):
        """Nobody can end a process that waits for a frozen disk."""
        for disk in self.disks.values():
            disk.thaw()

    def __exit__(self, *_):
        for disk in self.disks.values():
            disk.remove()
        if self.memory:
            shutil.rmtree(self.memory, ignore_errors=True)
