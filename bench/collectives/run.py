#!/usr/bin/env python3
"""Measures Ropewalk's allreduce against Open MPI, gloo and the bare exchange, in paired runs on this machine.

usage: run.py [--build build] [--ranks 2,4] [--wires shared,tcp] [--repetitions 9] [--seconds .2] [--algorithm NAME] [--json FILE]

Each repetition runs every contestant once over all sizes (4 KiB to 64 MiB), one after the other, the first one changing from repetition to
repetition. A figure of a size is the median of its iterations, each as long as its slowest rank; a ratio is peer / Ropewalk of one
repetition. What counts is the lower bound of the median ratio with 95% confidence (order statistics: no assumption about the noise),
which needs five repetitions at least. Results are verified by every contestant at every size.

Peers: Debian's openmpi-bin and libopenmpi-dev, libgloo-dev; one that is not installed is left out, and said. They get their best setting:
huge pages in malloc, gloo the faster of its two algorithms at each size. Built into $ROPEWALK_BENCH_DIR (default: ~/.cache/ropewalk-bench).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from paired import lower_bound

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
MIB = 1 << 20


def compile_one(cache, name, compiler, *libraries):
    """A contestant's binary, or None when its compiler or library is not installed."""
    if not shutil.which(compiler):
        return None
    binary = os.path.join(cache, f"allreduce_{name}")
    source = os.path.join(HERE, name + ".cc")
    command = [compiler, "-std=c++20", "-O3", "-march=native", "-I", ROOT, source, "-o", binary, *libraries]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name} is left out: {done.stderr.strip().splitlines()[0] if done.stderr else 'it does not compile'}")
        return None
    return binary


def contestants(args, cache, ranks, wire):
    """name -> (command, environment). Ropewalk and the floor are always there."""
    seconds = str(args.seconds)
    ours = [os.path.join(args.build, "bin", "bench_allreduce"), str(ranks), wire, seconds] + ([args.algorithm] if args.algorithm else [])
    found = {"ropewalk": (ours, {}), "floor": ([args.binaries["floor"], str(ranks), wire, seconds], {})}
    if args.binaries["open_mpi"]:
        transport = ("--mca btl self,vader" if wire == "shared" else "--mca btl self,tcp --mca btl_tcp_if_include lo").split()
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), *transport, args.binaries["open_mpi"], seconds]
        found["open_mpi"] = (mpirun, HUGE)
    if args.binaries["gloo"] and wire == "tcp":
        for algorithm in ("ring", "bcube"):
            found[f"gloo_{algorithm}"] = ([args.binaries["gloo"], str(ranks), algorithm, seconds], HUGE)
    return found


def check_steps(line):
    """Of a line of Ropewalk's: it took the steps of its programs, no more and no fewer. So nothing beside the interpreter was measured."""
    steps, of_one = line.get("steps", 0), line.get("steps_of_one", 0)
    if of_one <= 0 or steps != line["iterations"] * of_one:
        sys.exit(f"error[BENCH04] {line['iterations']} sums of {line['bytes']} bytes took {steps} steps of the interpreter\n"
                 f"  why: their programs have {of_one} each   fix: let Ropewalk's sums go through its communicator")


def run_once(name, command, environment):
    """bytes -> microseconds"""
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"error[BENCH02] {name}: {' '.join(command)} exited {done.returncode}\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if name == "ropewalk":
        for line in lines:
            check_steps(line)
    return {line["bytes"]: line["us"] for line in lines if "us" in line}


def bars_of(wire, ranks, peer):
    """(at each size in bytes: at least, or None; in the median over sizes: at least, or None)"""
    if wire == "shared":
        if ranks == 2:
            return (lambda size: 1.5 if size == 4096 else 2.0 if size >= MIB else 0.97), None
        return None, 1.5
    return (lambda size: 0.97), (1.3 if peer == "gloo" else 1.1)


def report(wire, ranks, runs, results):
    names, sizes = list(runs), sorted(runs["ropewalk"][0])
    print(f"\n{wire}, P = {ranks}: median microseconds over {len(runs['ropewalk'])} repetitions")
    print("      bytes " + "".join(f"{name:>13}" for name in names))
    for size in sizes:
        print(f"{size:11} " + "".join(f"{statistics.median(run[size] for run in runs[name]):13.1f}" for name in names))
    peers = {"floor": lambda i, size: runs["floor"][i][size]}
    if "open_mpi" in runs:
        peers["open_mpi"] = lambda i, size: runs["open_mpi"][i][size]
    if "gloo_ring" in runs:
        peers["gloo"] = lambda i, size: min(runs["gloo_ring"][i][size], runs["gloo_bcube"][i][size])
    for peer, time_of in peers.items():
        ratios = {s: [time_of(i, s) / run[s] for i, run in enumerate(runs["ropewalk"])] for s in sizes}
        bounds = {size: lower_bound(of_size) for size, of_size in ratios.items()}
        middles = {size: statistics.median(of_size) for size, of_size in ratios.items()}
        print(f"  {peer} / ropewalk: " + ", ".join(
            f"{size}: {middles[size]:.2f}" + (f" (> {bounds[size]:.2f})" if bounds[size] else "") for size in sizes))
        if peer == "floor" or None in bounds.values():
            continue
        at_each, in_median = bars_of(wire, ranks, peer)
        missed = [size for size in sizes if at_each and bounds[size] < at_each(size)]
        if at_each:
            print(f"    at each size: {'holds' if not missed else 'MISSED at ' + ', '.join(map(str, missed))}")
        over_sizes = lower_bound([statistics.median(ratios[s][i] for s in sizes) for i in range(len(runs["ropewalk"]))])
        if in_median:
            print(f"    median over sizes > {over_sizes:.2f}   bar {in_median}   {'holds' if over_sizes >= in_median else 'MISSED'}")
        results.append({"wire": wire, "ranks": ranks, "peer": peer, "bounds": bounds, "medians": middles, "median_bound": over_sizes,
                        "missed_sizes": missed, "median_bar": in_median})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--wires", default="shared,tcp")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each size")
    parser.add_argument("--algorithm", default="", help="Ropewalk's, instead of the chosen one")
    parser.add_argument("--bytes-max", type=int, default=64 * MIB, help="the largest size")
    parser.add_argument("--peers", choices=("all", "none"), default="all")
    parser.add_argument("--json")
    args = parser.parse_args()
    cache = os.path.abspath(os.environ.get("ROPEWALK_BENCH_DIR") or os.path.expanduser("~/.cache/ropewalk-bench"))
    os.makedirs(cache, exist_ok=True)
    os.environ["SWEEP_BYTES_MAX"] = str(args.bytes_max)
    args.binaries = {"floor": compile_one(cache, "floor", "g++"), "open_mpi": None, "gloo": None}
    if not args.binaries["floor"]:
        sys.exit("error[BENCH01] the floor does not compile")
    if args.peers == "all":
        args.binaries["open_mpi"] = compile_one(cache, "open_mpi", "mpicxx")
        args.binaries["gloo"] = compile_one(cache, "gloo", "g++", "-lgloo", "-lpthread")
        for peer in ("open_mpi", "gloo"):
            if not args.binaries[peer]:
                print(f"without {peer}: it is not installed")

    results, times = [], {}
    for wire in args.wires.split(","):
        for ranks in map(int, args.ranks.split(",")):
            found = contestants(args, cache, ranks, wire)
            runs = {name: [] for name in found}
            for repetition in range(args.repetitions):
                turn = repetition % len(found)
                for name in list(found)[turn:] + list(found)[:turn]:
                    runs[name].append(run_once(name, *found[name]))
            report(wire, ranks, runs, results)
            times[f"{wire} {ranks}"] = runs
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"results": results, "us": times}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
