"""The two judges of histories: porcupine, run by the program in `drills/histories/`, and our own `atoll-judge`. Also the bundled histories
on which neither may err."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess

from cluster import ROOT, need
from zookeeper_venv import cache

HERE = ROOT / "drills/histories"
QUESTIONS = ("linearizable", "session")


def porcupine():
    """The judge with porcupine, built once for each state of its sources; or None, and why there is none."""
    if not shutil.which("go"):
        return None, "there is no Go on this machine"
    sources = sorted([*HERE.glob("*.go"), HERE / "go.mod", HERE / "go.sum"])
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = cache() / f"porcupine-{state}"
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(["go", "build", "-o", program, "."], cwd=HERE, capture_output=True, text=True)
        if built.returncode != 0:
            return None, f"it was not built: {built.stderr.strip()[-500:]}"
    return program, None


def ours(given):
    """Our judge: as given, from ATOLL_JUDGE, or as cargo builds it."""
    if given := given or os.environ.get("ATOLL_JUDGE"):
        return pathlib.Path(given)
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "atoll-judge"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release/atoll-judge"


class Judges:
    """Both, or ours alone."""

    def __init__(self, given):
        self.ours = ours(given)
        self.porcupine, self.why_not = porcupine()

    @staticmethod
    def ask(command, files):
        """The verdicts of one judge."""
        done = subprocess.run([*map(str, command), *map(str, files)], capture_output=True, text=True, timeout=600)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        need(len(told) == len(files), f"{command[0]} judged {len(told)} of {len(files)} histories: {done.stderr[-500:]}")
        for line in told:
            need("error" not in line, f"{line['file']} is no history: {line.get('error')}")
        return told

    def judge(self, files, pictures):
        """Of each file: (our verdicts, porcupine's or None). What porcupine finds not linearizable is drawn in a folder."""
        mine = self.ask([self.ours], files)
        if not self.porcupine:
            return [(line, None) for line in mine]
        return list(zip(mine, self.ask([self.porcupine, "-pictures", pictures], files)))

    def check(self, folder):
        """The bundled histories: each must be judged as its first line says."""
        files = sorted([*HERE.glob("good/*.jsonl"), *HERE.glob("bad/*.jsonl")])
        need(len(files) >= 10, "the bundled histories are not there")
        for file, verdicts in zip(files, self.judge(files, folder)):
            expected = json.loads(file.open().readline())["expected"]
            for verdict in filter(None, verdicts):
                got = {question: verdict[question] for question in QUESTIONS}
                need(got == expected, f"{file.name} is judged {got}, and is {expected}: {verdict}")
        return len(files)
