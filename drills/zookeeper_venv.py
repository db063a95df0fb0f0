"""An interpreter that has kazoo: made once, in the folder `ATOLL_DRILL_CACHE`."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import venv

KAZOO = "2.11.0"


def kazoo_or_again():
    """Goes on if kazoo can be imported; else starts the program anew in an interpreter that has it."""
    if importlib.util.find_spec("kazoo"):
        return
    cache = pathlib.Path(os.environ.get("ATOLL_DRILL_CACHE") or pathlib.Path.home() / ".cache" / "atoll-drills")
    folder = cache / f"kazoo-{KAZOO}"
    python = folder / "bin" / "python3"
    done = folder / "installed"
    if not done.is_file():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"kazoo=={KAZOO}"], check=True)
        done.touch()
    os.execv(python, [str(python), *sys.argv])
