#!/usr/bin/env python3
"""The bench of overlap runs, and what it says of a step is so by structure, not by speed: which bytes travel in which buckets, that all but
the last are handed over before backward ends, and the last one when it has ended. The bench itself compares what was summed."""

import json
import subprocess
import sys
import unittest

BENCH = sys.argv.pop(1)
RANKS, LAYERS, WIDTH, BACKWARD_MS = 4, 3, 48, 30
WEIGHT, BIAS, LOSS = 4 * WIDTH * WIDTH, 4 * WIDTH, 4


def run(**keys):
    keys = {"ranks": RANKS, "layers": LAYERS, "width": WIDTH, "backward_ms": BACKWARD_MS, "steps": 3} | keys
    done = subprocess.run([BENCH, "step", *(f"{key}={value}" for key, value in keys.items())], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda line: line["rank"])
    assert [line["rank"] for line in lines] == list(range(RANKS))
    return lines


class OverlapBench(unittest.TestCase):
    def check_bytes(self, lines, bucket_bytes):
        for line in lines:
            buckets = line["bucket_bytes"]
            self.assertEqual(sum(buckets), (LAYERS + 1) * (WEIGHT + BIAS) + LOSS)
            self.assertEqual(buckets, lines[0]["bucket_bytes"])
            # A bucket is closed by the gradient that fills it: it is short of full by less than it holds, but for the last.
            for filled in buckets[:-1]:
                self.assertGreaterEqual(filled, bucket_bytes)
                self.assertLess(filled, bucket_bytes + WEIGHT)
            self.assertEqual(len(line["submits_ms"]), len(buckets))
            self.assertEqual(line["submits_ms"], sorted(line["submits_ms"]))

    def test_a_bucket_for_each_layer(self):
        lines = run(bucket_bytes=WEIGHT)
        self.check_bytes(lines, WEIGHT)
        for line in lines:
            self.assertEqual(len(line["bucket_bytes"]), LAYERS + 1)
            # All but the last are on their way while backward goes on; none is waited for before its end.
            self.assertTrue(all(at < line["backward_end_ms"] for at in line["submits_ms"][:-1]), line)
            self.assertGreaterEqual(line["submits_ms"][-1], line["backward_end_ms"])
            self.assertGreaterEqual(line["first_wait_ms"], line["backward_end_ms"])
            # The products did sleep, in all steps of both trainings.
            self.assertGreaterEqual(min(line["backward_ms"] + line["compute_ms"] + line["step_ms"]), BACKWARD_MS)

    def test_the_last_micro_batch_hides_the_sums_of_all(self):
        lines = run(bucket_bytes=WEIGHT, micro_batches=3)
        self.check_bytes(lines, WEIGHT)
        for line in lines:
            self.assertGreater(line["last_part_begin_ms"], line["backward_begin_ms"] + 2 * BACKWARD_MS)
            self.assertTrue(all(line["last_part_begin_ms"] < at < line["backward_end_ms"] for at in line["submits_ms"][:-1]), line)
            self.assertGreaterEqual(line["submits_ms"][-1], line["backward_end_ms"])
            self.assertGreaterEqual(line["first_wait_ms"], line["backward_end_ms"])

    def test_one_bucket_overlaps_nothing(self):
        # The control: where all gradients lie in one bucket, nothing goes before the last product.
        lines = run(bucket_bytes=1 << 20, layers=0)
        for line in lines:
            self.assertEqual(line["bucket_bytes"], [WEIGHT + BIAS + LOSS])
            self.assertGreaterEqual(line["submits_ms"][0], line["backward_end_ms"])

    def test_without_a_verb_it_says_how_to_call_it(self):
        done = subprocess.run([BENCH], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: bench_overlap", done.stderr)


if __name__ == "__main__":
    unittest.main()
