#!/usr/bin/env python3
"""Measures what the chooser of algorithms loses (its regret), and how far predicted times are off, on this machine.

usage: regret.py [--build build] [--ranks 2,3,4] [--wires shared,tcp] [--repetitions 1] [--seconds .02] [--sizes BYTES,...]
                 [--json FILE]

For each number of ranks and each wire ranks calibrate, as a communicator does that chooses by costs, and end. Others, who read what was
kept, run an allreduce of each size by every candidate, in blocks that alternate: one paired run. Of several repetitions, each of which
calibrates anew, the medians are said at the end. Regret is the time of the chosen candidate over that of the best one, minus 1. Whoever
takes the least of many noisy numbers takes the luckiest; so the best candidate is found in one half of the rounds and compared in the
other, and the other way round, and the mean of both ratios counts. That the chosen one was luckier gives less than 0.

Bars: regret of at most 10% in the geometric mean and 25% at most, mean absolute error of predictions (MAPE) of at most 20%. They are of the
medians of rounds. Beside them the same is said of the least of the rounds: what other work on the machine has added is not in that; and of
the link model alone, without what was measured beside it: of what it would have chosen, and of its predictions. With several repetitions
also of who takes what was the best in another one: how much the machine itself changes, which no calibration can know.
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
KINDS = (("median", statistics.median, "predicted_us"), ("least", min, "predicted_us"), ("model", statistics.median, "model_us"))


def lines_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"error[BENCH02] {' '.join(command)} exited {done.returncode}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_once(binary, ranks, wire, seconds, sizes):
    """(the costs, as they were measured, the lines of all candidates)"""
    with tempfile.TemporaryDirectory(prefix="ropewalk-regret-") as folder:
        measured, = lines_of(binary, str(ranks), wire, str(seconds), folder)
        kept, *lines = lines_of(binary, str(ranks), wire, str(seconds), folder, ",".join(map(str, sizes)))
    if measured["kept"] or not kept["kept"]:
        sys.exit(f"error[BENCH05] costs of {ranks} ranks over {wire} were not measured in the first run and read in the second one")
    return measured, lines


def name_of(line):
    return f"{line['algorithm']}/{line['segment_bytes'] // KIB}K/{line['channels']}"


def ratio_of(chosen, lines, figure, find, compare):
    """Of the rounds `compare`, against who is the best in the rounds `find`."""
    best = min(lines, key=lambda line: figure(line["rounds_us"][find]))
    return figure(chosen["rounds_us"][compare]) / figure(best["rounds_us"][compare])


def chosen_of(lines):
    chosen = [line for line in lines if line["chosen"]]
    if len(chosen) != 1:
        sys.exit(f"error[BENCH05] of {lines[0]['bytes']} bytes {len(chosen)} candidates are the chosen one")
    return chosen[0]


def judge(chosen, lines, figure, prediction="predicted_us"):
    """(best, ratio of both halves, mean error) of one size, by the median or the least of rounds"""
    halves = (slice(0, None, 2), slice(1, None, 2))
    ratio = (ratio_of(chosen, lines, figure, *halves) + ratio_of(chosen, lines, figure, *reversed(halves))) / 2
    best = min(lines, key=lambda line: figure(line["rounds_us"]))
    errors = [abs(line[prediction] / figure(line["rounds_us"]) - 1) for line in lines]
    return best, ratio, statistics.mean(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--wires", default="shared,tcp")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each candidate at each size")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    parser.add_argument("--json")
    args = parser.parse_args()
    binary = os.path.join(args.build, "bin", "bench_regret")
    sizes = [int(size) for size in args.sizes.split(",")]

    results = []
    for repetition in range(args.repetitions):
        for wire in args.wires.split(","):
            for ranks in map(int, args.ranks.split(",")):
                results.append(measure(binary, ranks, wire, args.seconds, sizes))
                if args.json:
                    with open(args.json, "w", encoding="utf-8") as file:
                        json.dump(results, file, indent=1)
    if args.repetitions > 1:
        say_medians(results)
    return 0


def measure(binary, ranks, wire, seconds, sizes):
    costs, lines = run_once(binary, ranks, wire, seconds, sizes)
    print(f"\n{wire}, P = {ranks}: calibrated in {costs['connect_ms']:.0f} ms, table of choices in {costs['table_ms']:.0f} ms")
    print(f"  {'bytes':>9} {'chosen':>34} {'us':>10} {'predicted':>10} {'best':>34} {'us':>10} {'regret':>7} {'error':>6}")
    result = {"wire": wire, "ranks": ranks, "costs": costs, "lines": lines}
    for name, figure, prediction in KINDS:
        ratios, errors = [], []
        for size in sizes:
            of_size = [line for line in lines if line["bytes"] == size]
            chosen = min(of_size, key=lambda line: line["model_us"]) if name == "model" else chosen_of(of_size)
            best, ratio, error = judge(chosen, of_size, figure, prediction)
            ratios.append(ratio)
            errors.append(error)
            if name == "median":
                print(f"  {size:9} {name_of(chosen):>34} {figure(chosen['rounds_us']):10.1f} {chosen['predicted_us']:10.1f} "
                      f"{name_of(best):>34} {figure(best['rounds_us']):10.1f} {ratio - 1:7.1%} {error:6.0%}")
        result[name] = {"mean": math.exp(statistics.mean(map(math.log, ratios))) - 1, "most": max(ratios) - 1,
                        "mape": statistics.mean(errors)}
    say(*(result[name] for name, _, _ in KINDS))
    sys.stdout.flush()
    return result


def say(median, least, model):
    for what, key, bar in (("regret, geometric mean", "mean", MEAN_BAR - 1), ("regret, at most", "most", MOST_BAR - 1),
                           ("error of predictions, mean", "mape", ERROR_BAR)):
        print(f"  {what} {median[key]:.1%}   bar {bar:.0%}   {'holds' if median[key] <= bar else 'MISSED'}"
              f"   (of the least rounds {least[key]:.1%}; of the model alone {model[key]:.1%})")


def say_medians(results):
    for wire, ranks in dict.fromkeys((result["wire"], result["ranks"]) for result in results):
        mine = [result for result in results if (result["wire"], result["ranks"]) == (wire, ranks)]
        print(f"\n{wire}, P = {ranks}: medians of {len(mine)} repetitions")
        say(*({key: statistics.median(result[name][key] for result in mine) for key in ("mean", "most", "mape")}
              for name, _, _ in KINDS))
        floors = [floor_of(one, other) for one in mine for other in mine if one is not other]
        mean, most, error = (statistics.median(floor[i] for floor in floors) for i in range(3))
        print(f"  who takes what was the best in another repetition, and its times for predictions: {mean:.1%}, {most:.1%}, {error:.1%}")


def way_of(line):
    """Segments that are longer than a vector make no difference."""
    cut = line["segment_bytes"] < line["bytes"]
    return line["algorithm"], line["segment_bytes"] if cut else 0, line["channels"]


def floor_of(known, judged):
    """What the machine itself changes from run to run: (regret in the mean, at most, mean error) of who knows all of another run."""
    ratios, errors = [], []
    for size in sorted({line["bytes"] for line in judged["lines"]}):
        before = {way_of(line): statistics.median(line["rounds_us"]) for line in known["lines"] if line["bytes"] == size}
        lines = [line | {"before_us": before[way_of(line)]} for line in judged["lines"]
                 if line["bytes"] == size and way_of(line) in before]
        _, ratio, error = judge(min(lines, key=lambda line: line["before_us"]), lines, statistics.median, "before_us")
        ratios.append(ratio)
        errors.append(error)
    return math.exp(statistics.mean(map(math.log, ratios))) - 1, max(ratios) - 1, statistics.mean(errors)


if __name__ == "__main__":
    sys.exit(main())
