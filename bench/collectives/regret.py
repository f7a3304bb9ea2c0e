#!/usr/bin/env python3
"""Measures what the chooser of algorithms loses (its regret), and how far predicted times are off, on this machine.

usage: regret.py [--build build] [--ranks 2,3,4] [--wires shared,tcp] [--seconds .02] [--sizes BYTES,...] [--json FILE]

For each number of ranks and each wire the ranks calibrate, as a communicator does that chooses by measured costs, and then run an allreduce
of each size by every candidate, in blocks that alternate: one paired run. Regret is the time of the chosen candidate over that of the best
one, minus 1. Whoever takes the least of many noisy numbers takes the luckiest; so the best candidate is found in one half of the rounds and
compared in the other, and the other way round, and the mean of both ratios counts. That the chosen one was luckier gives less than 0.

Bars: regret of at most 10% in the geometric mean and 25% at most, mean absolute error of predictions (MAPE) of at most 20%.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

KIB, MIB = 1 << 10, 1 << 20
SIZES = [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 32 * MIB]
MEAN_BAR, MOST_BAR, ERROR_BAR = 1.10, 1.25, 0.20


def run_once(binary, ranks, wire, seconds, sizes):
    """(the costs, the lines of all candidates)"""
    with tempfile.TemporaryDirectory(prefix="ropewalk-regret-") as folder:
        command = [binary, str(ranks), wire, str(seconds), ",".join(map(str, sizes)), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"error[BENCH02] {' '.join(command)} exited {done.returncode}\n{done.stderr[-2000:]}")
    costs, *lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return costs, lines


def name_of(line):
    return f"{line['algorithm']}/{line['segment_bytes'] // KIB}K/{line['channels']}"


def ratio_of(chosen, lines, find, compare):
    """Of the rounds `compare`, against who is the best in the rounds `find`."""
    def median(line, rounds):
        return statistics.median(line["rounds_us"][rounds])
    best = min(lines, key=lambda line: median(line, find))
    return median(chosen, compare) / median(best, compare)


def judge(lines):
    """(size, chosen, best, ratio of both halves, mean error) of one size"""
    chosen = [line for line in lines if line["chosen"]]
    if len(chosen) != 1:
        sys.exit(f"error[BENCH05] of {lines[0]['bytes']} bytes {len(chosen)} candidates are the chosen one")
    halves = (slice(0, None, 2), slice(1, None, 2))
    ratio = (ratio_of(chosen[0], lines, *halves) + ratio_of(chosen[0], lines, *reversed(halves))) / 2
    best = min(lines, key=lambda line: statistics.median(line["rounds_us"]))
    errors = [abs(line["predicted_us"] / statistics.median(line["rounds_us"]) - 1) for line in lines]
    return chosen[0], best, ratio, statistics.mean(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--wires", default="shared,tcp")
    parser.add_argument("--seconds", type=float, default=0.02, help="of each candidate at each size")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    parser.add_argument("--json")
    args = parser.parse_args()
    binary = os.path.join(args.build, "bin", "bench_regret")
    sizes = [int(size) for size in args.sizes.split(",")]

    results = []
    for wire in args.wires.split(","):
        for ranks in map(int, args.ranks.split(",")):
            costs, lines = run_once(binary, ranks, wire, args.seconds, sizes)
            print(f"\n{wire}, P = {ranks}: calibrated in {costs['connect_ms']:.0f} ms, table of choices in {costs['table_ms']:.0f} ms")
            print(f"  {'bytes':>9} {'chosen':>34} {'us':>10} {'predicted':>10} {'best':>34} {'us':>10} {'regret':>7} {'error':>6}")
            ratios, errors = [], []
            for size in sizes:
                of_size = [line for line in lines if line["bytes"] == size]
                chosen, best, ratio, error = judge(of_size)
                ratios.append(ratio)
                errors.append(error)
                us, best_us = statistics.median(chosen["rounds_us"]), statistics.median(best["rounds_us"])
                print(f"  {size:9} {name_of(chosen):>34} {us:10.1f} {chosen['predicted_us']:10.1f} {name_of(best):>34} {best_us:10.1f} "
                      f"{ratio - 1:7.1%} {error:6.0%}")
            mean, most, error = math.exp(statistics.mean(map(math.log, ratios))), max(ratios), statistics.mean(errors)
            for what, value, bar in (("regret, geometric mean", mean - 1, MEAN_BAR - 1), ("regret, at most", most - 1, MOST_BAR - 1),
                                     ("error of predictions, mean", error, ERROR_BAR)):
                print(f"  {what} {value:.1%}   bar {bar:.0%}   {'holds' if value <= bar else 'MISSED'}")
            results.append({"wire": wire, "ranks": ranks, "costs": costs, "mean": mean, "most": most, "mape": error, "lines": lines})
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
