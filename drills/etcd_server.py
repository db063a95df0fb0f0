#!/usr/bin/env python3
"""The program of etcd, built from its Go module, once. Prints its path, for the tests of registers in etcd: `docs/internals.md`. Needs go."""

import os
import pathlib
import shutil
import sys

from zookeeper_venv import cache, fetching, making

VERSION = "3.6.16"
MODULE = "go.etcd.io/etcd/server/v3"


def program():
    """The path of the program. Builds it if it is not there."""
    if not shutil.which("go"):
        sys.exit("there is no Go on this machine, which builds etcd")
    folder = cache() / f"etcd-{VERSION}"
    built = folder / "etcd"
    with making("etcd"):
        if not built.is_file():
            source = folder / "source"
            source.mkdir(parents=True, exist_ok=True)
            # Within a module of our own: `go install` refuses etcd's, which has lines that replace others.
            pathlib.Path(source / "go.mod").write_text("module etcd\n", encoding="utf-8")
            environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
            fetching(["go", "get", f"{MODULE}@v{VERSION}"], env=environment, cwd=source)
            fetching(["go", "build", "-o", str(built), MODULE], env=environment, cwd=source)
    return built


if __name__ == "__main__":
    print(program())
