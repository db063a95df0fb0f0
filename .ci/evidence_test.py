#!/usr/bin/env python3
"""Tests of evidence.py, each in a small repository of its own."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

# The tests leave nothing beside the program.
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import evidence

CLAIMS = """
[depends]
product = ["Cargo.toml", "crates/**/src/**", "!crates/sim/**", "!crates/**/*_test.rs"]
simulator = ["product", "crates/sim/src/**"]

[[claim]]
id = "kills"
group = "The log"
claim = "nothing is lost | ever"
commands = ["drills/kills.py"]

[[claim]]
id = "seeds"
group = "The simulator"
claim = "no seed fails"
commands = ["sim --seeds 0..9"]
depends = "simulator"

[[claim]]
id = "all"
group = "The simulator"
claim = "all is green"
commands = ["run"]

[[claim]]
id = "part"
group = "The simulator"
claim = "a part is green"
commands = ["run part"]
part_of = "all"

[[claim]]
id = "elsewhere"
group = "The simulator"
claim = "told elsewhere"
commands = ["tell"]
see = "other.md#here"
"""


class Evidence(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        # What git's hooks set would lead to another repository.
        kept = {key: value for key, value in os.environ.items() if key.startswith("GIT_")}
        for key in kept:
            del os.environ[key]
        self.addCleanup(os.environ.update, kept)
        self.write("docs/evidence/claims.toml", CLAIMS)
        self.write("docs/other.md", "# Other\n")
        self.write("Cargo.toml", "[workspace]\n")
        self.write("crates/log/src/lib.rs", "fn one() {}\n")
        self.write("crates/protocols/native/src/deep/append.rs", "fn two() {}\n")
        self.write("crates/log/src/lib_test.rs", "fn test() {}\n")
        self.write("crates/sim/src/lib.rs", "fn sim() {}\n")
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@example.org")
        self.git("config", "commit.gpgsign", "false")
        self.first = self.commit("First")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def git(self, *args):
        return subprocess.run(["git", *args], cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, subject):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "--short=7", "HEAD")

    def call(self, *argv):
        """Exit status, and what was said on both outputs."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = evidence.main(list(argv), self.root)
            except SystemExit as end:
                status = end.code
        return status, said.getvalue()

    def good(self, *argv):
        status, said = self.call(*argv)
        self.assertEqual(status, 0, said)
        return said

    def bad(self, *argv):
        status, said = self.call(*argv)
        self.assertNotEqual(status, 0, said)
        return said

    def state(self, text):
        """The state and the last result in the row of the claim with this text, on a page just written."""
        self.good("render")
        page = (self.root / evidence.PAGE).read_text(encoding="utf-8")
        row = next(line for line in page.splitlines() if line.startswith(f"| {text} |"))
        cells = row.strip("|").split(" | ")
        return cells[-1].strip(), cells[-4].strip()

    def kills(self, *argv):
        self.good("record", "kills", "--words", "none lost", *argv)

    def lines(self):
        return (self.root / evidence.RESULTS).read_text(encoding="utf-8").splitlines()

    KILLS = r"nothing is lost \| ever"


class Staleness(Evidence):
    def test_a_claim_without_results_never_ran(self):
        self.assertEqual(self.state(self.KILLS), ("never run", "none"))
        self.assertEqual(self.state("told elsewhere"), ("see there", "[other.md](other.md#here)"))

    def test_a_result_is_current_until_the_product_changes(self):
        self.kills("--outcome", "holds")
        self.assertEqual(self.state(self.KILLS), ("current", "none lost"))
        # The commit that has the page, and changes of what is no product, leave it as it is.
        self.commit("Record a run")
        self.write("crates/log/src/lib_test.rs", "fn other_test() {}\n")
        self.write("crates/sim/src/lib.rs", "fn other_sim() {}\n")
        self.write("README.md", "# Read\n")
        self.good("check")
        self.commit("Change what is no product")
        self.good("check")
        self.write("crates/protocols/native/src/deep/append.rs", "fn three() {}\n")
        said = self.bad("check")
        self.assertIn("kills: its row: current before, stale now", said)
        self.assertIn("run: .ci/evidence.py render", said)
        self.assertEqual(self.state(self.KILLS)[0], "stale")
        self.commit("Change the product")
        self.good("check")
        # As it was, it is current again: what counts is the code, not the commit.
        self.git("checkout", "-q", self.first, "--", "crates")
        self.assertEqual(self.state(self.KILLS)[0], "current")

    def test_new_and_deleted_files_count_before_they_are_committed(self):
        self.kills("--outcome", "holds")
        self.write("crates/log/src/new.rs", "fn new() {}\n")
        self.assertEqual(self.state(self.KILLS)[0], "stale")
        (self.root / "crates/log/src/new.rs").unlink()
        self.assertEqual(self.state(self.KILLS)[0], "current")
        (self.root / "crates/log/src/lib.rs").unlink()
        self.assertEqual(self.state(self.KILLS)[0], "stale")

    def test_a_claim_depends_on_what_its_set_names(self):
        self.kills("--outcome", "holds")
        self.good("record", "seeds", "--outcome", "holds", "--words", "9 passed")
        self.write("crates/sim/src/lib.rs", "fn other_sim() {}\n")
        self.assertEqual(self.state("no seed fails")[0], "stale")
        self.assertEqual(self.state(self.KILLS)[0], "current")

    def test_neither_history_nor_git_is_needed(self):
        self.kills("--outcome", "holds")
        self.write("crates/log/src/lib.rs", "fn changed() {}\n")
        self.commit("Change the product")
        self.good("record", "seeds", "--outcome", "holds", "--words", "9 passed")
        self.good("render")
        self.commit("Record")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "-q", "--depth", "1", self.root.as_uri(), folder], check=True)
            shallow = pathlib.Path(folder)
            self.assertIsNone(evidence.Tree(shallow).resolve(self.first))
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(evidence.main(["check"], shallow), 0)
                shutil.rmtree(shallow / ".git")
                self.assertEqual(evidence.main(["check"], shallow), 0)

    def test_an_unknown_program_is_stale(self):
        said = self.good("record", "kills", "--outcome", "holds", "--words", "none lost", "--commit", "0123456789")
        self.assertIn("does not have 0123456789", said)
        self.assertEqual(self.state(self.KILLS)[0], "stale")


class Rows(Evidence):
    def test_the_newest_whole_run_stands_in_the_row(self):
        self.kills("--outcome", "holds", "--date", "2026-11-01")
        self.good("record", "kills", "--outcome", "missed", "--words", "slow", "--date", "2026-11-03")
        self.good("record", "kills", "--outcome", "ended", "--words", "no time", "--date", "2026-11-04")
        self.good("record", "kills", "--outcome", "not-run", "--words", "no root", "--date", "2026-11-05")
        self.assertEqual(self.state(self.KILLS), ("**missed**", "slow"))
        self.good("record", "kills", "--outcome", "holds", "--words", "short", "--form", "quick", "--date", "2026-11-06")
        self.assertEqual(self.state(self.KILLS), ("**missed**", "slow"))
        self.good("record", "kills", "--outcome", "failed", "--words", "one lost", "--form", "quick", "--date", "2026-11-07")
        self.assertEqual(self.state(self.KILLS), ("**failed**, short form", "one lost"))
        page = (self.root / evidence.PAGE).read_text(encoding="utf-8")
        self.assertIn('<details id="kills"><summary>kills: 6 runs</summary>', page)
        told = [line for line in page.splitlines() if line.startswith("- 2026-11-")]
        self.assertEqual([line[2:12] for line in told], sorted((line[2:12] for line in told), reverse=True))

    def test_of_one_day_the_later_line_counts(self):
        self.kills("--outcome", "failed", "--date", "2026-11-01")
        self.good("record", "kills", "--outcome", "holds", "--words", "mended", "--date", "2026-11-01")
        self.assertEqual(self.state(self.KILLS), ("current", "mended"))

    def test_only_ended_or_only_short(self):
        self.good("record", "kills", "--outcome", "ended", "--words", "no time")
        self.assertEqual(self.state(self.KILLS), ("**ended**", "no time"))
        self.good("record", "kills", "--outcome", "holds", "--words", "short", "--form", "quick")
        self.assertEqual(self.state(self.KILLS), ("current, short form", "short"))

    def test_a_part_holds_with_its_whole(self):
        self.good("record", "all", "--outcome", "holds", "--words", "green", "--date", "2026-11-01")
        self.good("record", "all", "--outcome", "failed", "--words", "red", "--date", "2026-11-02")
        self.assertEqual(self.state("all is green"), ("**failed**", "red"))
        self.assertEqual(self.state("a part is green"), ("current", "holds as a part of `run`"))
        self.good("record", "part", "--outcome", "failed", "--words", "itself", "--date", "2026-11-03")
        self.assertEqual(self.state("a part is green"), ("**failed**", "itself"))

    def test_a_long_result_is_cut_in_its_row_only(self):
        words = " ".join(["word"] * 100)
        self.good("record", "kills", "--outcome", "holds", "--words", words)
        self.assertTrue(self.state(self.KILLS)[1].endswith("word …"))
        self.assertIn(words, (self.root / evidence.PAGE).read_text(encoding="utf-8"))


class Records(Evidence):
    def test_what_is_recorded_comes_back(self):
        self.kills("--outcome", "missed", "--date", "2026-11-02", "--form", "quick", "--command", "drills/kills.py --quick",
                   "--conditions", "alone", "--seconds", "61", "--details", "Twice.")
        result = json.loads(self.lines()[0])
        product = evidence.fingerprint(evidence.Tree(self.root).of_commit("HEAD"), evidence.read_claims(self.root)["kills"].patterns)
        self.assertEqual(
            result,
            {"claim": "kills", "date": "2026-11-02", "commit": self.first, "product": product, "outcome": "missed", "form": "quick",
             "command": "drills/kills.py --quick", "conditions": "alone", "seconds": 61.0, "words": "none lost", "details": "Twice."},
        )
        self.assertEqual(evidence.as_line(result).strip(), self.lines()[0])
        self.good("render")
        page = (self.root / evidence.PAGE).read_text(encoding="utf-8")
        self.assertIn(f"- 2026-11-02, program {self.first}, `drills/kills.py --quick`, alone, 61 s. **missed**: none lost. Twice.", page)
        self.assertEqual(page.count("\n# ") + page.startswith("# "), 1)

    def output(self, *lines):
        self.write("output", "\n".join(lines) + "\n\n")
        return ("--output", str(self.root / "output"))

    def drill(self, **fields):
        return self.output("told", json.dumps({"drill": "kills", "quick": False, "seed": 7, **fields}))

    def test_the_last_line_of_a_drill(self):
        for fields, status, outcome, form in (
            ({"outcome": "holds"}, 0, "holds", "whole"),
            ({"outcome": "holds", "quick": True}, 0, "holds", "quick"),
            ({"outcome": "holds", "quick": True, "missed": ["1 s"]}, 0, "missed", "quick"),
            ({"outcome": "FAILS", "why": "1 s; 2 s", "missed": ["1 s", "2 s"]}, 1, "missed", "whole"),
            ({"outcome": "FAILS", "why": "lost", "missed": ["1 s"]}, 1, "failed", "whole"),
            ({"outcome": "FAILS", "why": "lost"}, 1, "failed", "whole"),
            ({"outcome": "not run", "why": "no root"}, 0, "not-run", "whole"),
        ):
            with self.subTest(fields):
                self.good("record", "kills", *self.drill(**fields), "--status", str(status))
                result = json.loads(self.lines()[-1])
                self.assertEqual((result["outcome"], result["form"]), (outcome, form))
                self.assertEqual(result["printed"]["seed"], 7)

    def test_a_drill_is_told_in_words(self):
        self.good("record", "kills", *self.drill(outcome="holds", records=12345, pause={"p50_ms": 1.5}, both=[1, 2], seconds=61.2))
        self.assertEqual(self.state(self.KILLS), ("current", "records 12,345, pause (p50_ms 1.5), both 1, 2"))
        page = (self.root / evidence.PAGE).read_text(encoding="utf-8")
        self.assertIn("61 s. **holds**: records 12,345, pause (p50_ms 1.5), both 1, 2; seed 7.", page)

    def test_the_last_line_of_another_program(self):
        self.good("record", "seeds", *self.output("one", "9 passed, 0 failed"), "--status", "0", "--command", "sim --seeds 0..9")
        self.good("record", "seeds", *self.output("one", "8 passed, 1 failed"), "--status", "101", "--command", "sim --seeds 0..8")
        first, second = map(json.loads, self.lines())
        self.assertEqual((first["outcome"], first["words"]), ("holds", "9 passed, 0 failed"))
        self.assertEqual((second["outcome"], second["words"]), ("failed", "8 passed, 1 failed"))
        # What the claim names is not said again.
        self.assertNotIn("command", first)
        self.assertEqual(second["command"], "sim --seeds 0..8")

    def test_bad_records_are_refused_and_leave_nothing(self):
        for argv, words in (
            (("kils", "--outcome", "holds", "--words", "x"), "unknown claim kils; is it kills?"),
            (("kills", "--words", "x"), "--outcome is wanted"),
            (("kills", "--outcome", "good", "--words", "x"), "invalid choice: 'good'"),
            (("kills", "--outcome", "holds"), "neither words nor"),
            (("kills", "--outcome", "holds", "--words", " "), "words is empty"),
            (("kills", "--outcome", "holds", "--words", "x", "--date", "2026-13-01"), "date is '2026-13-01'"),
            (("kills", "--outcome", "holds", "--words", "x", "--commit", "nowhere"), "commit is 'nowhere'"),
            (("kills", "--outcome", "holds", "--words", "x", "--status", "0"), "--status goes with --output"),
            (("kills", "--output", "missing-file"), "--output:"),
        ):
            with self.subTest(argv):
                self.assertIn(words, self.bad("record", *argv))
        self.assertFalse((self.root / evidence.RESULTS).exists())

    def test_one_result_is_recorded_once(self):
        self.kills("--outcome", "holds")
        self.assertIn("has this result", self.bad("record", "kills", "--words", "none lost", "--outcome", "holds"))

    def test_a_program_is_that_of_a_commit_only_without_changes(self):
        self.assertEqual(self.good("program").strip(), self.first)
        self.write("README.md", "# Read\n")
        self.good("program")
        self.write("crates/sim/src/lib.rs", "fn other_sim() {}\n")
        self.assertIn(f"the tree is not that of {self.first}: crates/sim/src/lib.rs", self.bad("program"))
        self.assertEqual(self.good("program", "--commit", self.git("rev-parse", "HEAD")).strip(), self.first)
        self.assertIn("no such commit", self.bad("program", "--commit", "0123456789"))


class Checks(Evidence):
    def test_a_planted_change_of_the_page_is_named(self):
        self.kills("--outcome", "holds")
        self.good("render")
        path = self.root / evidence.PAGE
        good = path.read_text(encoding="utf-8")
        for change, words in (
            (lambda t: t.replace("| none lost |", "| all is well |"), "kills: its row"),
            (lambda t: t.replace("**holds**: none lost", "**holds**: well"), "kills: its list of results"),
            (lambda t: t.replace("Each claim,", "Every claim,"), "too much: Every claim,"),
            (lambda t: t + "More.\n", "too much: More."),
            (lambda t: t + "\n", "order of its lines"),
        ):
            path.write_text(change(good), encoding="utf-8")
            with self.subTest(words):
                self.assertIn(words, self.bad("check"))
        path.unlink()
        self.assertIn("kills: its row", self.bad("check"))
        self.good("render")
        self.assertEqual(path.read_text(encoding="utf-8"), good)
        self.good("check")

    def test_a_new_result_wants_the_page_anew(self):
        self.kills("--outcome", "holds")
        self.good("render")
        self.kills("--outcome", "failed")
        self.assertIn("kills: its row: current before, failed now", self.bad("check"))

    def test_malformed_lines_are_named(self):
        self.kills("--outcome", "holds")
        line = self.lines()[0]
        right = json.loads(line)
        cases = [
            ("{", "no JSON"),
            ("", "no JSON"),
            ("[]", "is no object"),
            (json.dumps(right | {"claim": "kils"}), "unknown claim kils; is it kills?"),
            (json.dumps(right | {"outcome": "ok"}), "outcome is 'ok'"),
            (json.dumps(right | {"form": "half"}), "form is 'half'"),
            (json.dumps(right | {"date": "22 November"}), "date is '22 November'"),
            (json.dumps(right | {"date": "20261122"}), "date is '20261122'"),
            (json.dumps(right | {"commit": "HEAD"}), "commit is 'HEAD'"),
            (json.dumps(right | {"product": "1"}), "product is '1'"),
            (json.dumps(right | {"seconds": "61"}), "seconds is '61'"),
            (json.dumps(right | {"words": "two\nlines"}), "more than one line"),
            (json.dumps(right | {"by": "me"}), "unknown field by"),
            (json.dumps({k: v for k, v in right.items() if k != "date"}), "has no date"),
            (json.dumps({k: v for k, v in right.items() if k != "words"}), "neither words nor"),
            (json.dumps({k: v for k, v in right.items() if k != "commit"}), "a fingerprint without a commit"),
            (line, "the same as line 1"),
        ]
        self.write(evidence.RESULTS, line + "\n" + "".join(f"{wrong}\n" for wrong, _ in cases))
        said = self.bad("check").splitlines()
        for at, (_, words) in enumerate(cases, 2):
            with self.subTest(words):
                self.assertTrue(any(f"{evidence.RESULTS}:{at}: " in told and words in told for told in said), said)
        self.assertFalse(any(f"{evidence.RESULTS}:1:" in told for told in said))
        self.assertIn("no JSON", self.bad("render"))

    def test_a_fingerprint_of_other_files_is_found_and_mended(self):
        self.kills("--outcome", "holds")
        self.good("render")
        right = self.lines()[0]
        self.write(evidence.RESULTS, json.dumps(json.loads(right) | {"product": "0" * 16}) + "\n")
        self.good("render")
        self.assertIn("at their commit: 1;", self.bad("check"))
        self.good("refresh")
        self.assertEqual(self.lines(), [right])
        # What a claim depends on is another now.
        self.write("docs/evidence/claims.toml", CLAIMS.replace('"Cargo.toml", ', ""))
        self.assertIn("run: .ci/evidence.py refresh", self.bad("check"))
        self.good("refresh")
        self.assertEqual(self.state(self.KILLS)[0], "current")

    def test_comments_of_rust_do_not_count(self):
        path = "crates/log/src/said.rs"
        self.write(path, "//! Words.\nfn f() {} // the same\n")
        self.commit("Say something")
        self.kills("--outcome", "holds")
        self.assertEqual(self.state(self.KILLS)[0], "current")
        self.write(path, "//! Other words.\n\t// and more\nfn f() {} // the same\n    /// At the end")
        self.assertEqual(self.state(self.KILLS)[0], "current")
        self.write(path, "//! Other words.\nfn f() {} // another\n")
        self.assertEqual(self.state(self.KILLS)[0], "stale")

    def test_malformed_claims_are_named(self):
        more = '[[claim]]\nid = "new"\ngroup = "G"\nclaim = "c"\ncommands = ["x"]\n'
        for text, words in (
            ("[[claim]", "claims.toml: "),
            (CLAIMS.replace("product =", "goods =").replace('"product"', '"goods"'), "depends.product is missing"),
            (CLAIMS + more.replace('"new"', '"kills"'), "two claims have the id kills"),
            (CLAIMS + more.replace('"new"', '"New one"'), "without an id of small letters"),
            (CLAIMS + more + 'command = "x"\n', "claim new: unknown keys: command"),
            (CLAIMS + more.replace('["x"]', '"x"'), "claim new: commands is a list"),
            (CLAIMS + more.replace('group = "G"\n', ""), "claim new: has no group"),
            (CLAIMS + more + 'depends = "moon"\n', "claim new: depends on 'moon'"),
            (CLAIMS + more + 'part_of = "part"\n', "claim new: part_of names 'part'"),
            (CLAIMS + more + 'see = "nowhere.md"\n', "claim new: see names nowhere.md"),
        ):
            self.write("docs/evidence/claims.toml", text)
            with self.subTest(words):
                self.assertIn(words, self.bad("check"))

    def test_help_names_every_verb(self):
        said = self.good("--help")
        for verb in ("render", "check", "record", "program", "refresh"):
            self.assertIn(verb, said)
            self.good(verb, "--help")


class Patterns(unittest.TestCase):
    def test_the_last_pattern_that_fits_decides(self):
        fits = evidence.matcher(["Cargo.toml", "crates/**/src/**", "!crates/sim/**", "crates/sim/src/*.rs"])
        for path, right in (
            ("Cargo.toml", True),
            ("sub/Cargo.toml", False),
            ("crates/log/src/a/b.rs", True),
            ("crates/protocols/native/src/b.rs", True),
            ("crates/src/b.rs", True),
            ("crates/log/tests/b.rs", False),
            ("crates/sim/src/b.rs", True),
            ("crates/sim/src/a/b.rs", False),
            ("crates/log/src.rs", False),
        ):
            with self.subTest(path):
                self.assertEqual(fits(path), right)

    def test_a_fingerprint_is_of_paths_and_contents(self):
        one = evidence.fingerprint({"a": "1", "b": "2"}, ["*"])
        self.assertEqual(one, evidence.fingerprint({"b": "2", "a": "1"}, ["*"]))
        self.assertEqual(one, evidence.fingerprint({"b": "2", "a": "1", "c/d": "3"}, ["*"]))
        self.assertNotEqual(one, evidence.fingerprint({"a": "2", "b": "1"}, ["*"]))
        self.assertNotEqual(one, evidence.fingerprint({"a": "1", "c": "2"}, ["*"]))


if __name__ == "__main__":
    unittest.main()
