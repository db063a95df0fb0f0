#!/usr/bin/env python3
"""Tests of what all drills share (drills/cluster.py): a drill that misses a promise, breaks or cannot run says so by its exit status."""

import contextlib
import io
import json
import pathlib
import sys
import unittest

# The tests leave nothing beside the program.
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "drills"))

import cluster

OPTIONS = {"records": (1000, 100, "how many")}


def run(body, *args):
    """Runs a drill of that body: its exit status and its result line."""
    argv, sys.argv = sys.argv, ["drill", "--bin", sys.executable, *args]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            drill = cluster.Drill("drill", "words", **OPTIONS)
            drill.run(body)
    except SystemExit as ended:
        return ended.code, json.loads(output.getvalue().splitlines()[-1])
    finally:
        sys.argv = argv
    raise AssertionError("a drill ends the process")


class Test(unittest.TestCase):
    """See the module's docstring."""

    def test_a_drill_that_keeps_its_promises_holds(self):
        status, result = run(lambda drill: drill.promise(True, "kept"))
        self.assertEqual((status, result["outcome"]), (0, "holds"))

    def test_a_missed_promise_fails_the_drill_in_both_forms(self):
        for form in ((), ("--quick",)):
            status, result = run(lambda drill: drill.promise(False, "p99 below 5 ms"), *form)
            self.assertEqual((status, result["outcome"], result["missed"]), (1, "FAILS", ["p99 below 5 ms"]))

    def test_whatever_breaks_fails_the_drill(self):
        def lost(drill):
            cluster.need(False, "a record is lost")

        def gone(drill):
            raise FileNotFoundError("the program")

        for body in (lost, gone):
            status, result = run(body)
            self.assertEqual((status, result["outcome"]), (1, "FAILS"))

    def test_what_cannot_run_says_so(self):
        def no_java(drill):
            raise cluster.NotRun("there is no java")

        status, result = run(no_java)
        self.assertEqual((status, result["outcome"], result["why"]), (0, "not run", "there is no java"))

    def test_the_short_form_has_five_times_the_time_and_sizes_to_scale(self):
        bounds = {}

        def note(drill):
            bounds[drill.args.quick] = (drill.within(2), drill.scaled(500, "records", fixed=100))

        for form in ((), ("--quick",)):
            run(note, *form)
        self.assertEqual(bounds, {False: (2, 500), True: (10, 140)})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *[a for a in sys.argv[1:] if a != "--quiet"]], verbosity=0 if "--quiet" in sys.argv else 1)
