#!/usr/bin/env python3
"""Measures how much of the sums over ranks a training's backward hides on a slow link: 4 ranks, 1 Gb/s, computing that sleeps.

usage: run.py [--build build] [--ratios .5,1,2] [--repetitions 5] [--steps 20] [--layers 8] [--width 512] [--micro-batches 1]
              [--link shaped|none] [--rate-mbit 1000] [--congestion cubic] [--json FILE]

The trainer itself runs (bench/overlap/ours.cc) on an MLP whose products sleep, so that 4 ranks on few cores compute at the same time. Each
rank is a process in a network namespace of its own, whose veth pair to a router in the middle carries --rate-mbit in each direction (tc
tbf), with --congestion as TCP's control. A lone TCP stream must reach that rate within 5%, or the bench stops. That needs root, ip and tc;
nothing outside of the namespaces is changed, and they go when the bench ends. --link none: over loopback, which says only that it runs.
On a machine that others use, too, `chrt -f 2 bench/overlap/run.py` keeps them from what little it computes.

For each ratio of communication to backward the sleeps are set once, from a first measurement. Each repetition then takes, on the slowest
rank and as the median over its steps: a step; the same step without the sums; all sums alone, begun at once; the last one alone. From
them:   exposed = step - step without sums     allowed = 1.15 max(0, communication - backward) + last bucket
The bar is allowed / exposed >= 1 for the lower bound of the median with 95% confidence, which needs five repetitions.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from namespaces import Network, check_link
from paired import lower_bound

RANKS = 4
FACTOR = 1.15  # on what no overlap could hide


def run_once(args, verb, **keys):
    """The ranks' lines, by rank."""
    words = [f"{key}={value}" for key, value in ({"ranks": RANKS} | keys | args.place).items()]
    command = [os.path.join(args.build, "bin", "bench_overlap"), verb, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"error[BENCH02] {' '.join(command)} exited {done.returncode}\n{done.stderr[-2000:]}")
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda line: line["rank"])


def slowest(lines, key):
    """The median over repetitions of what the slowest rank took."""
    return statistics.median(map(max, zip(*(line[key] for line in lines))))


def measure(args, backward_ms):
    lines = run_once(args, "step", layers=args.layers, width=args.width, steps=args.steps, micro_batches=args.micro_batches,
                     bucket_bytes=args.bucket_bytes, backward_ms=f"{backward_ms:.3f}")
    one = {key: slowest(lines, key + "_ms") for key in ("step", "compute", "backward", "communication", "last_bucket")}
    one["exposed"] = one["step"] - one["compute"]
    one["allowed"] = FACTOR * max(0, one["communication"] - one["backward"]) + one["last_bucket"]
    return one, lines


def measure_all(args):
    check_link(lambda: run_once(args, "link"), args.rate_mbit if args.place else None)
    first, lines = measure(args, 1)
    sums = lines[0]["bucket_bytes"]
    moved = 2 * sum(sums) * (RANKS - 1) / RANKS
    print(f"P = {RANKS}, {len(sums)} buckets, {sum(sums) / 2**20:.2f} MiB of gradients, {args.micro_batches} micro-batches; all sums alone "
          f"{first['communication']:.1f} ms: {moved * 8e-6 / first['communication']:.3f} Gb/s in each direction of each rank")
    results = []
    for ratio in map(float, args.ratios.split(",")):
        repetitions = [measure(args, first["communication"] / ratio)[0] for _ in range(args.repetitions)]
        middle = {key: statistics.median(each[key] for each in repetitions) for key in repetitions[0]}
        # A step that is as fast with the sums as without them exposes nothing.
        ratios = [each["allowed"] / max(each["exposed"], 1e-3) for each in repetitions]
        bound = lower_bound(ratios)
        print(f"communication / backward = {ratio}: " + ", ".join(f"{key} {value:.1f}" for key, value in middle.items()) + " ms")
        holds = None if bound is None or not args.place else bound >= 1
        print(f"  allowed / exposed {statistics.median(ratios):.2f}" + (f" (> {bound:.2f})" if bound else "") + "   bar 1   " +
              {None: "not judged", True: "holds", False: "MISSED"}[holds])
        results.append({"ratio": ratio, "medians_ms": middle, "allowed_over_exposed": ratios, "bound": bound, "holds": holds,
                        "repetitions": repetitions})
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"results": results, "bucket_bytes": sums}, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ratios", default=".5,1,2", help="of communication to backward")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--bucket-bytes", type=int, default=1 << 20)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--link", choices=("shaped", "none"), default="shaped")
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.place = {}
    if args.link == "none":
        measure_all(args)
        return 0
    with Network("overlap", RANKS, args.rate_mbit, args.congestion) as network:
        args.place = {"namespaces": network.name}
        measure_all(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
