#!/usr/bin/env python3
"""The bench of collectives measures the interpreter: at each size as many steps as sums of that size have, by whatever algorithm, and a
line that says otherwise ends it. The barriers between two sums go through the interpreter, too, and count for nothing."""

import importlib.util
import json
import os
import subprocess
import sys
import unittest

BENCH = sys.argv.pop(1)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZES = [4 << 10, 16 << 10, 64 << 10]
SECONDS = "0.001"


def driver():
    spec = importlib.util.spec_from_file_location("collectives_run", os.path.join(ROOT, "bench", "collectives", "run.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(ranks, wire, *algorithm):
    done = subprocess.run([BENCH, str(ranks), wire, SECONDS, *algorithm], env=os.environ | {"SWEEP_BYTES_MAX": str(SIZES[-1])},
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class CollectivesBench(unittest.TestCase):
    def check(self, lines):
        self.assertEqual([line["bytes"] for line in lines], SIZES)
        for line in lines:
            self.assertGreater(line["us"], 0)
            self.assertGreaterEqual(line["iterations"], 8)
            self.assertGreater(line["steps_of_one"], 0)
            self.assertEqual(line["steps"], line["iterations"] * line["steps_of_one"])

    def test_takes_the_steps_of_what_is_chosen(self):
        for wire in ("shared", "tcp"):
            for ranks in (2, 3):
                self.check(run(ranks, wire))

    def test_takes_the_steps_of_each_algorithm(self):
        of_rank_0 = {}
        for algorithm in ("direct", "ring", "recursive_doubling", "chain"):
            lines = run(3, "shared", algorithm)
            self.check(lines)
            of_rank_0[algorithm] = lines[0]["steps_of_one"]
        # They are different programs, not one that goes by four names (two of them happen to be of one length).
        self.assertGreaterEqual(len(set(of_rank_0.values())), 3, of_rank_0)

    def test_a_sum_beside_the_interpreter_is_refused(self):
        check_steps = driver().check_steps
        check_steps({"bytes": 4096, "us": 3.0, "iterations": 8, "steps": 40, "steps_of_one": 5})
        for steps, of_one in ((0, 5), (41, 5), (39, 5), (0, 0)):
            with self.assertRaises(SystemExit) as refused:
                check_steps({"bytes": 4096, "us": 3.0, "iterations": 8, "steps": steps, "steps_of_one": of_one})
            self.assertIn("BENCH04", str(refused.exception))
        with self.assertRaises(SystemExit):
            check_steps({"bytes": 4096, "us": 3.0, "iterations": 8})


if __name__ == "__main__":
    unittest.main()
