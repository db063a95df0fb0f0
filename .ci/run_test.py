#!/usr/bin/env python3
"""Tests of run: each check that it makes can fail.

Each test runs a copy of `run` in a small repository of its own, in which `cargo` and the drills are short scripts. A file in `faults/`
plants a fault in one of them.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = pathlib.Path(__file__).resolve().parent

# A name for each command that `run` gives cargo, by the first pattern that its arguments match. A fault of that name makes it fail.
CARGO = r"""
#!/usr/bin/env bash
echo "$*" >>"$ROOT/cargo.log"
case "$*" in
    fmt\ --version | clippy\ --version) name=version ;;
    fmt*) name=fmt ;;
    deny*) exit 101 ;;
    tree*) [[ ! -e $ROOT/faults/tree ]] || echo 'atoll-core feature "testing"'; exit 0 ;;
    test*-p\ atoll-threads*--no-run*) name=threads_build lints=lints_of_threads ;;
    test*-p\ atoll-threads*) name=threads ;;
    test*--doc*) [[ -z ${RUSTDOC:-} ]] && name=examples || name=docs lints=lints_of_docs ;;
    test*) name=test ;;
    build*--tests*--examples*) name=build lints=clippy ;;
    *) name=other ;;
esac
[[ -z ${lints:-} || ! -e $ROOT/faults/$lints ]] || echo "warning: planted in $lints" >&2
if [[ -e $ROOT/faults/$name ]]; then
    echo "planted in $name"
    exit 1
fi
"""

SIMULATOR = r"""
#!/usr/bin/env bash
echo "$*" >>"$ROOT/simulator.log"
case "$*" in
    mutants) name=mutants ;;
    *) name=sim ;;
esac
if [[ -e $ROOT/faults/$name ]]; then
    echo "planted in $name"
    exit 1
fi
"""

DRILL = r"""
#!/usr/bin/env bash
name=$(basename "$0" .py)
echo "$name $*" >>"$ROOT/drills.log"
[[ ! -e $ROOT/faults/skips_$name ]] || echo "java: not run, there is none"
[[ ! -e $ROOT/faults/$name ]] || { echo "planted in $name"; exit 1; }
"""

NOTHING = "#!/usr/bin/env bash\n"

DF = r"""
#!/usr/bin/env bash
echo Avail
[[ ! -e $ROOT/faults/df ]] && echo 99999 || echo 20479
"""

# What would let the steps wait for other programs of this machine.
AT_IDLE = ("chrt", "renice")

# Programs whose presence decides whether a drill may say that it did not run.
TOOLS = ("java", "javac", "mvn", "go", "openssl", "ip", "nft", "mkfs.ext4", "losetup", "mount", "umount", "rustup")

STEPS = ("checks", "fmt", "licences", "build", "clippy", "test", "sim", "mutants", "threads", "docs", "examples", "drills")


def called(drill, end="", folder=""):
    """How a drill of the lists, with its options, is run."""
    name, _, options = drill.partition(" ")
    return f"{folder}{name}{end} --quick {options}".rstrip()


class CompilerTest(unittest.TestCase):
    def given(self, *arguments):
        """What `compiler` gives clippy's compiler."""
        with tempfile.TemporaryDirectory() as folder:
            stand_in = pathlib.Path(folder) / "clippy-driver"
            stand_in.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
            stand_in.chmod(0o755)
            path = f"{folder}:{os.environ['PATH']}"
            run = [HERE / "compiler", "rustc", *arguments]
            return subprocess.run(run, env=os.environ | {"PATH": path}, text=True, check=True, capture_output=True).stdout.split()

    def test_only_programs_of_tests_are_not_optimised(self):
        library = ["--crate-name", "atoll_node", "-C", "opt-level=1"]
        self.assertEqual(self.given(*library), ["rustc", *library])
        of_tests = [*library, "--test"]
        self.assertEqual(self.given(*of_tests), ["rustc", *of_tests, "-C", "opt-level=0"])

    def test_tests_that_compute_for_long_are_optimised(self):
        for name in ("atoll_serialla", "atoll_threads", "exhaustive"):
            of_tests = ["--crate-name", name, "-C", "opt-level=2", "--test"]
            self.assertEqual(self.given(*of_tests), ["rustc", *of_tests])


class Repository:
    """A repository in which `run` finishes within a second or two."""

    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        self.path = self.root / "path"
        for sub in (".ci", "drills", "faults", "path", "target/debug"):
            (self.root / sub).mkdir(parents=True)
        shutil.copy(HERE / "run", self.root / ".ci" / "run")
        for name in ("run_test.py", "drills_test.py", "evidence_test.py", "evidence.py", "licences.py"):
            self.script(f".ci/{name}", f'#!/usr/bin/env bash\n[[ ! -e $ROOT/faults/{name} ]]\n')
        self.script("path/cargo", CARGO)
        self.script("target/debug/atoll-sim", SIMULATOR)
        for tool in (*TOOLS, *AT_IDLE):
            self.script(f"path/{tool}", NOTHING)
        self.script("path/df", DF)
        text = (HERE / "run").read_text()
        listed = {name: self.words(text, name) for name in ("always", "by_turns", "against_time")}
        self.always, self.by_turns, self.against_time = listed["always"], listed["by_turns"], listed["against_time"]
        for name in (*self.always, *self.by_turns):
            self.script(f"drills/{name.split()[0]}.py", DRILL)
        self.commit("first")

    @staticmethod
    def words(text, name):
        """The words of an array of the script."""
        return shlex.split(re.search(rf"^{name}=\((.*?)\)", text, re.MULTILINE | re.DOTALL)[1])

    def script(self, name, text):
        file = self.root / name
        file.write_text(textwrap.dedent(text).lstrip())
        file.chmod(0o755)

    def commit(self, words):
        git = ["git", "-C", self.root, "-c", "user.name=a", "-c", "user.email=a@b"]
        if not (self.root / ".git").exists():
            subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", words], check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        return int(done.stdout[:6], 16)

    def plant(self, name):
        (self.root / "faults" / name).touch()

    def run(self, *steps, **env):
        """Runs it, and returns its exit status and output."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("ATOLL_", "CARGO_"))}
        env = {**base, "ROOT": str(self.root), "PATH": f"{self.path}:{os.environ['PATH']}", **env}
        done = subprocess.run([self.root / ".ci" / "run", *steps], env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def log(self, name):
        file = self.root / f"{name}.log"
        return file.read_text().splitlines() if file.exists() else []


class Test(unittest.TestCase):
    """See the module's docstring."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ci-run-")
        self.addCleanup(folder.cleanup)
        self.repo = Repository(folder.name)

    def fails(self, said, *steps, **env):
        status, output = self.repo.run(*steps, **env)
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"FAILED after \d+ s: ")
        self.assertIn(said, output.rpartition("FAILED after")[2], output)
        return output

    def passes(self, *steps, **env):
        status, output = self.repo.run(*steps, **env)
        self.assertEqual(status, 0, output)
        self.assertIn("all green", output)
        return output

    def test_a_disk_with_little_room_ends_a_whole_run_at_once(self):
        self.repo.plant("df")
        status, said = self.repo.run()
        self.assertEqual(status, 2, said)
        self.assertIn("19 GB are free", said)
        self.assertEqual(self.repo.log("cargo"), [])
        status, said = self.repo.run("fmt")
        self.assertEqual(status, 0, said)

    def test_a_run_without_faults_is_green_and_keeps_the_time_of_each_step(self):
        output = self.passes(ATOLL_CI_DRILLS="all")
        kept = (self.repo.root / "target" / "ci-times").read_text()
        for step in STEPS:
            self.assertRegex(kept, rf"(?m)^ *{step} +\d+ s", step)
        for name in (*self.repo.always, *self.repo.by_turns):
            self.assertEqual(self.repo.log("drills").count(called(name)), 1, name)
            self.assertIn(f"--> {called(name, '.py', 'drills/')}\n", output)

    def test_each_step_can_fail(self):
        faults = {
            "run_test.py": "checks", "drills_test.py": "checks", "tree": "checks", "evidence_test.py": "docs", "evidence.py": "docs",
            "licences.py": "licences", "threads_build": "threads", "lints_of_threads": "threads", "lints_of_docs": "docs",
        }
        for fault in (*faults, "fmt", "clippy", "docs", "build", "test", "sim", "mutants", "threads", "examples"):
            step = faults.get(fault, fault)
            with self.subTest(fault):
                self.repo.plant(fault)
                self.fails(step)
                self.fails(step, step)
                (self.repo.root / "faults" / fault).unlink()

    def test_a_drill_that_fails_is_not_tried_again(self):
        for name in (self.repo.always[0], "hostile"):
            with self.subTest(name):
                self.repo.plant(name)
                output = self.fails("drills", "drills")
                self.assertEqual(self.repo.log("drills").count(called(name)), 1)
                self.assertIn(f"drills/{name}.py --quick failed; its last lines:\nplanted in {name}", output)
                (self.repo.root / "faults" / name).unlink()
                (self.repo.root / "drills.log").unlink()

    def test_what_did_not_run_counts_and_fails_where_the_tools_are(self):
        self.repo.plant("skips_readme")
        if pathlib.Path("/dev/net/tun").exists():
            output = self.fails("drills", "drills")
            self.assertIn("this machine has all that they want", output)
        (self.repo.path / "mount").write_text(NOTHING + "exit 1\n")
        output = self.passes("drills")
        self.assertIn("not run, or not all of it: readme", output)

    def test_unknown_steps_are_refused(self):
        status, output = self.repo.run("fmt", "tests")
        self.assertEqual(status, 2, output)
        self.assertIn("there is no step tests; there are: " + " ".join(STEPS), output)
        self.assertEqual(self.repo.log("cargo"), [])

    def test_half_of_the_seeds_derive_from_the_commit(self):
        for words in ("second", "third"):
            own = self.repo.commit(words) + 1000
            self.passes("sim")
            ran = self.repo.log("simulator")
            asked = f"--scenario all,database,zookeeper,tables --seeds 0..50,{own}..{own + 50}"
            self.assertTrue(any(line.endswith(asked) for line in ran), (asked, ran))
            (self.repo.root / "simulator.log").unlink()

    def test_commits_take_turns_with_the_drills(self):
        turns = {}
        for number in range(40):
            turn = self.repo.commit(f"commit {number}") % 3
            if turn not in turns:
                self.passes("drills")
                turns[turn] = set(self.repo.log("drills")) - {called(name) for name in self.repo.always}
                (self.repo.root / "drills.log").unlink()
        self.assertEqual(set(turns), {0, 1, 2})
        for name in self.repo.by_turns:
            self.assertEqual(sum(called(name) in of_turn for of_turn in turns.values()), 1, name)

    def test_the_lists_name_drills_that_exist(self):
        names = [*self.repo.always, *self.repo.by_turns]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertTrue((HERE.parent / "drills" / f"{name.split()[0]}.py").exists(), name)
        self.assertLessEqual(set(self.repo.against_time), set(names))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *[a for a in sys.argv[1:] if a != "--quiet"]], verbosity=0 if "--quiet" in sys.argv else 1)
