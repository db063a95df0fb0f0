"""Servers that are built from Go modules, once, and kept between drills. Needs go."""

import os
import shutil

from cluster import NotRun
from zookeeper_venv import cache, fetching, making


def go_program(package, version):
    """The program of a package, at this version."""
    if not shutil.which("go"):
        raise NotRun("there is no Go on this machine, which builds the server")
    # The last part of a path may only say which major version it is.
    name = next(part for part in reversed(package.split("/")) if not part.lstrip("v").isdigit())
    folder = cache() / f"{name}-{version}"
    program = folder / name
    with making(name):
        if not program.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            fetching(
                ["go", "install", f"{package}@v{version}"],
                env=dict(os.environ, GOBIN=str(folder), GOFLAGS="-mod=mod", CGO_ENABLED="0"),
                cwd=folder,
            )
    return program
