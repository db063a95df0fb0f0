"""An interpreter with the packages that a drill needs beyond the standard library. It is created once, in the folder
`ATOLL_DRILL_CACHE`."""

import contextlib
import fcntl
import importlib.util
import os
import pathlib
import subprocess
import sys
import time
import venv

from cluster import Failed

KAZOO = "2.11.0"
# What kazoo speaks SASL with.
PURE_SASL = "0.6.2"


def cache():
    """Where fetched and built things are kept between drills."""
    return pathlib.Path(os.environ.get("ATOLL_DRILL_CACHE") or pathlib.Path.home() / ".cache" / "atoll-drills")


@contextlib.contextmanager
def making(name):
    """Waits for another drill that makes the same thing in the cache: drills run beside each other."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetching(command, **kwargs):
    """Runs what fetches from a registry, up to three times: a machine that starts cold has its bad moments, too."""
    for left in (2, 1, 0):
        done = subprocess.run(command, capture_output=True, text=True, **kwargs)
        if done.returncode == 0:
            return
        if left:
            time.sleep(5)
    raise Failed(f"{' '.join(map(str, command))}: {(done.stdout + done.stderr)[-600:]}")


def this_or_again(module, name, *packages):
    """Continues if a module can be imported; else starts the program anew in an interpreter that has these packages."""
    if importlib.util.find_spec(module):
        return
    folder = cache() / name
    python = folder / "bin" / "python3"
    done = folder / "installed"
    with making(name):
        if not done.is_file():
            venv.create(folder, with_pip=True, clear=True)
            fetching([python, "-m", "pip", "install", "--quiet", *packages])
            done.touch()
    os.execv(python, [str(python), *sys.argv])


def kazoo_or_again():
    """The same for kazoo."""
    this_or_again("kazoo", f"kazoo-{KAZOO}", f"kazoo=={KAZOO}")


def kazoo_with_sasl_or_again():
    """The same for kazoo with SASL."""
    this_or_again("puresasl", f"kazoo-{KAZOO}-sasl-{PURE_SASL}", f"kazoo=={KAZOO}", f"pure-sasl=={PURE_SASL}")
