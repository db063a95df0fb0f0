"""What drills share that must find known bugs in a test build of the program."""

import contextlib
import os
import pathlib
import shutil
import subprocess

from cluster import Cluster, Failed, need, say


class Wrong(Failed):
    """What the program must not do, as a client sees it."""


def right(condition, words):
    """Fails the drill, because of what the program did, unless the condition holds."""
    if not condition:
        raise Wrong(words)


@contextlib.contextmanager
def environment(**variables):
    """Sets variables for what is started in this block."""
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def test_build(path):
    """A program that honours ATOLL_MUTANT."""
    binary = pathlib.Path(path).resolve()
    asked = subprocess.run([binary, "--version"], env=dict(os.environ, ATOLL_MUTANT="no such bug"), capture_output=True)
    need(asked.returncode == 2, f"{path} ignores ATOLL_MUTANT: build it with `cargo build -p atoll --features testing`")
    return binary


def find(drill, bugs, nodes):
    """Each of these bugs must be found by what clients see, in a cluster of its own with so many nodes. `bugs` has a function for each, which
    takes the drill and the cluster, and raises `Wrong`. Without --mutant-bin, it looks for none."""
    if not drill.args.mutant_bin:
        return
    binary = test_build(drill.args.mutant_bin)
    for bug, hunt in bugs.items():
        folder = drill.folder / bug
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                # The nodes have it from the supervisor. The clients are healthy.
                with environment(ATOLL_MUTANT=bug):
                    cluster = stack.enter_context(Cluster(binary, folder, "--nodes", nodes))
                hunt(drill, cluster)
        except Wrong as words:
            say(f"  {bug} is found: {str(words)[:300]}")
        else:
            raise Failed(f"{bug} is not found")
    drill.result["found"] = len(bugs)
