#!/usr/bin/env python3
"""Measures steps of training: Ropewalk against PyTorch in paired runs, against a roofline, and by resident memory.

usage: run.py [--build build] [--python PYTHON,...] [--works mlp,gpt,lstm,dlrm,resnet,drawn] [--shapes 1x2,2x1] [--repetitions 5]
              [--steps 30] [--json FILE]

Works: the MLP 784-512-512-10 with batches of 128, SGD; the GPT of 4 blocks, width 256, 4 heads, 128 places, 5000 symbols, batches of 8,
AdamW; the LSTM of 2 layers of 256, 64 places, 1000 symbols, batches of 32, SGD; the DLRM of 26 tables of 10,000 x 16, 13 dense features,
batches of 2048, SGD; ResNet-8 on images of 32 x 32, batches of 64, SGD; and one size more of each, drawn from the commit's hash, so that
nobody can tune for it. Both sides begin with the same parameters and see the same batches, and their losses must agree over the first 20
steps. (Of several ranks ours normalises by the moments of the whole batch, PyTorch on CPUs by each rank's own: losses agree roughly.)

--python: interpreters that can import torch (several versions: several interpreters), by default $ROPEWALK_TORCH_PYTHON or python3. PyTorch
is no dependency: `python3 -m venv DIR && DIR/bin/pip install torch numpy` (several GB), or Debian's python3-torch. Each interpreter's
settings (eager or compiled, products or its fused attention, order of channels) are tried once, and the fastest meets us. For both sides
OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are unset, threads are set by hand, and malloc has huge pages.

A ratio is PyTorch / Ropewalk of one repetition, by median times of a step; the one that begins changes. What counts is the lower
bound of the median ratio with 95% confidence. The roofline of a step: flops of products over the best rate of oneDNN's, and for all
else bytes over the rate of copies larger than the caches, both in the same repetition.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from paired import lower_bound

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MLP = {"features": 784, "hidden": 512, "hidden_layers": 2, "classes": 10, "batch": 128}
GPT = {"vocabulary": 5000, "length": 128, "width": 256, "heads": 4, "layers": 4, "batch": 8}
LSTM = {"vocabulary": 1000, "length": 64, "width": 256, "cells": 256, "layers": 2, "batch": 32}
DLRM = {"features": 13, "tables": 26, "rows": 10000, "vector": 16, "batch": 2048}
RESNET = {"depth": 8, "size": 32, "classes": 10, "batch": 64}
WORKS = {"mlp": MLP, "gpt": GPT, "lstm": LSTM, "dlrm": DLRM, "resnet": RESNET}
VARIANTS = {"gpt": ("plain", "fused"), "resnet": ("plain", "channels_last"), "dlrm": ("stacked_sparse", "stacked_dense", "tables_sparse")}
LOSS_TOLERANCE = 1e-3  # relative, at each of the first 20 steps
OWN_MOMENTS_TOLERANCE = .2  # where the moments of batch norms are of other samples


def drawn_works():
    """One size of each, by the hash of the commit."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    bits = list(hashlib.sha256(commit.encode()).digest())

    def pick(*choices):
        return choices[bits.pop() % len(choices)]

    mlp = {"features": pick(256, 512, 1024), "hidden": pick(256, 384, 768, 1024), "hidden_layers": pick(1, 2, 3), "classes": pick(10, 100),
           "batch": pick(32, 64, 256)}
    gpt = {"vocabulary": pick(256, 1000, 8000), "length": pick(64, 128, 256), "width": pick(128, 192, 384), "heads": pick(2, 4, 6),
           "layers": pick(2, 3, 6), "batch": pick(4, 8)}
    gpt["width"] -= gpt["width"] % gpt["heads"]
    lstm = {"vocabulary": pick(100, 1000, 5000), "length": pick(32, 64, 100), "width": pick(128, 256, 300),
            "cells": pick(128, 200, 384, 512), "layers": pick(1, 2, 3), "batch": pick(8, 16, 64)}
    dlrm = {"features": pick(4, 13, 32), "tables": pick(8, 26, 40), "rows": pick(1000, 20000), "vector": pick(16, 32, 64),
            "batch": pick(256, 1024, 4096)}
    resnet = {"depth": pick(8, 14, 20), "size": pick(24, 32, 40), "classes": pick(10, 100), "batch": pick(32, 64, 128)}
    return {"mlp drawn": ("mlp", mlp), "gpt drawn": ("gpt", gpt), "lstm drawn": ("lstm", lstm), "dlrm drawn": ("dlrm", dlrm),
            "resnet drawn": ("resnet", resnet)}


def environment():
    own = {key: value for key, value in os.environ.items() if key not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS")}
    return own | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def lines_of(name, command):
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {' '.join(command)} exited {done.returncode}\n{done.stderr[-1500:]}")
    return sorted((json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")), key=lambda line: line["rank"])


def step_ms(run):
    return max(line["median_ms"] for line in run)


def check_losses(name, ours, theirs):
    tolerance = OWN_MOMENTS_TOLERANCE if name.startswith("resnet") and len(ours) > 1 else LOSS_TOLERANCE
    for step, (a, b) in enumerate(zip(ours[0]["losses"], theirs[0]["losses"])):
        if not abs(a - b) <= tolerance * abs(b):
            sys.exit(f"error[BENCH06] {name}: the loss of step {step} is {a}, PyTorch has {b}")


def ideal_us(op, roof):
    return 1e6 * max(op["flops"] / roof["flops_per_s"], op["bytes"] / roof["bytes_per_s"])


def by_op(ours, roof):
    """(name, count, us, ideal us) of rank 0, the slowest gap first."""
    rows = [(name, op["count"], op["us"], ideal_us(op, roof)) for name, op in ours[0]["ops"].items()]
    return sorted(rows, key=lambda row: row[3] - row[2])


def report(name, runs, peers, roofs, shown):
    ours = runs["ropewalk"]
    result = {"name": name, "ropewalk_ms": statistics.median(map(step_ms, ours)),
              "ropewalk_processor_ms": statistics.median(sum(line["processor_ms"] for line in run) for run in ours)}
    print(f"  ropewalk {result['ropewalk_ms']:.3f} ms a step, {result['ropewalk_processor_ms']:.3f} ms of processors"
          f"; loss {ours[0][0]['losses'][0]:.4f} to {ours[0][0]['losses'][-1]:.4f}"
          f"; ops without a fast kernel: {ours[0][0]['fallback_ops']}")
    for peer in peers:
        theirs = runs[peer]
        check_losses(f"{name}, {peer}", ours[0], theirs[0])
        ratios = [step_ms(b) / step_ms(a) for a, b in zip(ours, theirs)]
        work = [sum(x["processor_ms"] for x in b) / sum(x["processor_ms"] for x in a) for a, b in zip(ours, theirs)]
        bound = lower_bound(ratios)
        memory = [statistics.median(sum(x["peak_kib"] - x["resting_kib"] for x in run) / 1024 for run in side)
                  for side in (ours, theirs)]
        result[peer] = {"ratio": statistics.median(ratios), "bound": bound, "ratios": ratios, "processor_ratio": statistics.median(work),
                        "memory_mib": memory[1], "ropewalk_memory_mib": memory[0]}
        verdict = "too few runs" if bound is None else "holds" if bound >= 1 else "MISSED"
        print(f"  {peer}: {statistics.median(map(step_ms, theirs)):.3f} ms; ratio {statistics.median(ratios):.2f}"
              + (f" (> {bound:.2f})" if bound else "") + f", bar 1.00: {verdict}"
              + f"; of processor time {statistics.median(work):.2f}; peak above rest {memory[0]:.1f} against {memory[1]:.1f} MiB: "
              + ("holds" if memory[0] <= memory[1] else "MISSED"))
    shares = [sum(row[3] for row in by_op(run, roof[0])) / 1e3 / step_ms(run) for run, roof in zip(ours, roofs)]
    result["roofline"] = statistics.median(shares)
    reached = statistics.median(shares)
    print(f"  roofline {reached:.2f} of a step (bar .85: {'holds' if reached >= .85 else 'MISSED'})"
          f", at {roofs[0][0]['flops_per_s'] * 1e-9:.1f} GFLOP/s and {roofs[0][0]['bytes_per_s'] * 1e-9:.1f} GB/s a rank")
    rows = by_op(ours[0], roofs[0][0])
    whole = sum(row[2] for row in rows)
    print("    op and phase                             count       us   share    ideal      gap")
    for op, count, us, ideal in rows[:shown]:
        print(f"    {op:40} {count:5} {us:8.1f}  {100 * us / whole:5.1f}% {ideal:8.1f} {us - ideal:8.1f}")
    result["ops"] = rows
    return result


def best_setting(python, model, folder, keys, ranks):
    """The fastest setting of one interpreter, as (name, command); None where it has no torch."""
    found = {}
    for how in ("eager", "compiled"):
        for variant in VARIANTS.get(model, ("plain",)):
            command = [python, os.path.join(HERE, "torch_peer.py"), model, how, variant, folder, *keys]
            try:
                run = lines_of("PyTorch", command)
            except RuntimeError as error:
                print(f"  left out: {how} {variant}: {str(error).splitlines()[-1]}")
                continue
            if len(run) == ranks:
                found[step_ms(run)] = (f"torch {run[0]['version']} {how} {variant}", command)
                print(f"  tried: torch {run[0]['version']} {how} {variant}: {step_ms(run):.3f} ms")
    return found[min(found)] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--python", default=os.environ.get("ROPEWALK_TORCH_PYTHON", "python3"),
                        help="interpreters with torch; none: no peer")
    parser.add_argument("--works", default="mlp,gpt,lstm,dlrm,resnet,drawn")
    parser.add_argument("--shapes", default="1x2,2x1", help="ranks x threads")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="measured in one run")
    parser.add_argument("--ops", type=int, default=14, help="rows of the table by op")
    parser.add_argument("--json")
    args = parser.parse_args()
    cache = os.path.abspath(os.environ.get("ROPEWALK_BENCH_DIR") or os.path.expanduser("~/.cache/ropewalk-bench"))
    binary = os.path.join(args.build, "bin", "bench_training")
    works = {}
    for work in args.works.split(","):
        works |= drawn_works() if work == "drawn" else {work: (work, WORKS[work])}
    results = []
    for work, (model, sizes) in works.items():
        folder = os.path.join(cache, "training_" + work.replace(" ", "_"))
        os.makedirs(folder, exist_ok=True)
        keys = [f"{key}={value}" for key, value in sizes.items()]
        subprocess.run([binary, "prepare", model, f"folder={folder}", *keys], check=True)
        for shape in args.shapes.split(","):
            ranks, threads = map(int, shape.split("x"))
            name = f"{work}, {ranks} ranks x {threads} threads"
            print(f"\n{name}: {' '.join(keys)}", flush=True)
            run_keys = [f"ranks={ranks}", f"threads={threads}", f"steps={args.steps}", *keys]
            contestants = {"ropewalk": [binary, "train", model, *run_keys]}
            for python in args.python.split(",") if args.python != "none" else []:
                best = best_setting(python, model, folder, run_keys, ranks)
                if best:
                    contestants[best[0]] = best[1]
                else:
                    print(f"  without {python}: it has no torch that runs")
            runs, roofs = {contestant: [] for contestant in contestants}, []
            for repetition in range(args.repetitions):
                turn = repetition % len(contestants)
                for contestant in list(contestants)[turn:] + list(contestants)[:turn]:
                    try:
                        runs[contestant].append(lines_of(contestant, contestants[contestant]))
                    except RuntimeError as error:
                        sys.exit(f"error[BENCH02] {error}")
                roofs.append(lines_of("roofline", [binary, "roofline", model, f"ranks={ranks}", f"threads={threads}"]))
            results.append(report(name, runs, [c for c in contestants if c != "ropewalk"], roofs, args.ops))
            sys.stdout.flush()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
