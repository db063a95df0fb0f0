#!/usr/bin/env python3
"""The README, command by command: each command works and prints what the README shows.

The drill runs each `$` command of the README's `console` blocks, in order, in a folder that has what they touch: README.md, and the program
at `target/release/atoll`. `atoll dev` gets a separate terminal, as the README says, and is ended as by Ctrl-C. All other commands share one
shell, so that variables and aliases persist. Every command must exit with status 0. Where the README shows output, the command must print
it: `…` stands for anything within a line, a line `…` stands for any lines, and runs of white space count as one. Where the README shows no
output, the command may print anything. Standard error of commands in the second terminal is not compared: kazoo prints a warning there if
the node that it happens to try first is the one that was killed.

Three things differ from typing the commands. `cargo run --release --` runs the program under test (ATOLL_BIN, or as cargo builds it).
`cargo test` is left out, because it is a separate step of .ci/run. `pip install` installs what was fetched once into `ATOLL_DRILL_CACHE`.

The README uses the ports of an `atoll dev` without `--base-port`. They must be free.
"""

import atexit
import contextlib
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import venv

from cluster import ROOT, START_WITHIN, Drill, Failed, end, need, poll, say
from zookeeper_venv import KAZOO, cache, fetching

# Files of the tree that commands of the README read.
READ = ("README.md",)
PROGRAM = "target/release/atoll"
BY_CARGO = "cargo run --release --"
LEFT_OUT = ("cargo test",)
# What `atoll dev` listens on: of each of its three nodes five ports, and one for clients of ZooKeeper.
PORTS = [*(7400 + 10 * node + door for node in (1, 2, 3) for door in (1, 2, 3, 5)), 2181, 2182, 2183]
# Longest time for one command, in seconds. The longest one measures for ten.
COMMAND_WITHIN = 120
STOP_WITHIN = 30
# The end of a command's output in the shell, with its status.
MARK = "readme-drill-status"
ANYTHING = "…"


class Command:
    """A command of the README, and the output that it shows."""

    def __init__(self, line, text):
        self.line = line
        self.text = text
        self.shown = []

    def __str__(self):
        return f"README.md:{self.line}: $ {self.text}"


def commands(text):
    """The commands of all `console` blocks, in order."""
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside and line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Command(number, line[2:]))
        elif inside:
            need(found and not line.startswith("$"), f"README.md:{number}: no command, and no output of one: {line}")
            found[-1].shown.append(line)
    return found


def plain(line):
    """A line with white space counted once."""
    return " ".join(line.split())


def pattern(shown):
    """What matches the output that the README shows."""
    parts = []
    for line in shown:
        if line.strip() == ANYTHING:
            parts.append(r"(?:[^\n]*\n)*")
        else:
            parts.append("[^\n]*".join(re.escape(part) for part in plain(line).split(ANYTHING)) + r"\n")
    return re.compile("".join(parts))


def check(command, printed):
    """Compares what was printed with what the README shows."""
    if command.shown:
        lines = "".join(plain(line) + "\n" for line in printed.rstrip().splitlines())
        shown = "\n".join(command.shown)
        need(pattern(command.shown).fullmatch(lines), f"{command}\nshows\n{shown}\nand prints\n{printed}")


class Shell:
    """The second terminal: one shell for all commands."""

    def __init__(self, folder, env, errors):
        """`errors` is the file that takes what the commands write to their standard error."""
        self.errors = errors
        with open(errors, "wb") as stderr:
            self.process = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        atexit.register(end, self.process)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._write("shopt -s expand_aliases")

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _write(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def run(self, text, within):
        """Runs a command; its status and its output. It reads nothing from the terminal."""
        self._write(f"{{ {text}\n}} </dev/null\nprintf '\\n{MARK} %s\\n' $?")
        printed, until = [], time.monotonic() + within
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise Failed(f"`{text}` has not ended after {within} s: {''.join(printed)[-1000:]}{self.warned()}") from None
            if line is None:
                raise Failed(f"`{text}` ended the shell: {''.join(printed)[-1000:]}{self.warned()}")
            if line.startswith(MARK):
                return int(line.split()[1]), "".join(printed).removesuffix("\n")
            printed.append(line)

    def warned(self):
        """The last words of all commands on their standard error."""
        return f"\non standard error: {self.errors.read_text(errors='replace')[-2000:]}"

    def close(self):
        """Ends it."""
        end(self.process)


class Dev:
    """The first terminal: `atoll dev`, until Ctrl-C."""

    def __init__(self, command, text, folder, env):
        self.command = command
        self.output = folder / "dev.out"
        with open(self.output, "wb") as out:
            run = ["bash", "--norc", "--noprofile", "-c", f"exec {text}"]
            self.process = subprocess.Popen(run, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        atexit.register(end, self.process)

        def ready():
            need(self.process.poll() is None, f"{command} ended: {self.printed()[-2000:]}")
            return "Ready." in self.printed()

        poll("the cluster answers", START_WITHIN, ready)
        check(command, self.printed())

    def printed(self):
        """What it has said so far."""
        return self.output.read_text(errors="replace")

    def interrupt(self):
        """Ctrl-C. It ends the nodes, too, which outlive a killed `atoll dev` and keep their ports."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_WITHIN)

    def has_ended_well(self):
        """After Ctrl-C."""
        need(self.process.poll() == 0, f"{self.command}: Ctrl-C ended it with {self.process.poll()}: {self.printed()[-1000:]}")


def wheels():
    """The folder from which `pip` installs kazoo: fetched once."""
    folder = cache() / f"wheels-kazoo-{KAZOO}"
    done = folder / "fetched"
    if not done.is_file():
        venv.create(folder / "venv", with_pip=True, clear=True)
        pip = [folder / "venv" / "bin" / "python3", "-m", "pip"]
        fetching([*pip, "download", "--quiet", "--dest", folder, f"kazoo=={KAZOO}"])
        done.touch()
    return folder


def tree(drill):
    """A folder with what the commands touch, as if the tree had been built there."""
    folder = drill.folder / "tree"
    (folder / PROGRAM).parent.mkdir(parents=True)
    (folder / PROGRAM).symlink_to(drill.binary)
    for name in READ:
        shutil.copy(ROOT / name, folder / name)
    return folder


def environment():
    """Ours, without settings of Atoll's, and with `pip` kept from the network."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    return dict(env, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels()), PIP_DISABLE_PIP_VERSION_CHECK="1")


def ports_are_free():
    """The README's commands reach the nodes at the ports where `atoll dev` has them."""
    for port in PORTS:
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(("127.0.0.1", port))
            except OSError as error:
                raise Failed(f"port {port} of `atoll dev`: {error}; is another cluster running here?") from None


def body(drill):
    ports_are_free()
    every = commands((ROOT / "README.md").read_text())
    need(every, "the README has no commands")
    folder, env = tree(drill), environment()
    shell, dev, compared, left_out = Shell(folder, env, drill.folder / "shell.err"), None, 0, []
    try:
        for command in every:
            if command.text.startswith(LEFT_OUT):
                left_out.append(command.text.split("#")[0].strip())
                continue
            text = command.text.replace(BY_CARGO, PROGRAM)
            began = time.monotonic()
            if text.startswith(f"{PROGRAM} dev"):
                need(dev is None, f"{command}: `atoll dev` runs already")
                dev = Dev(command, text, folder, env)
            else:
                status, printed = shell.run(text, COMMAND_WITHIN)
                need(status == 0, f"{command}\nended with {status}: {printed[-2000:]}{shell.warned()}")
                check(command, printed)
            compared += bool(command.shown)
            say(f"  {time.monotonic() - began:5.1f} s  {command}")
        if dev:
            dev.interrupt()
            dev.has_ended_well()
    finally:
        shell.close()
        if dev:
            dev.interrupt()
            end(dev.process)
    need(dev, "no command of the README starts `atoll dev`")
    drill.result.update(commands=len(every) - len(left_out), outputs_compared=compared, left_out=left_out)


if __name__ == "__main__":
    Drill("readme", __doc__).run(body)
