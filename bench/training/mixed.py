#!/usr/bin/env python3
"""What mixed precision and recomputation cost in time and bring in planned memory: each beside f32 that keeps everything, in turns.

usage: mixed.py BENCH_TRAINING [ROUNDS]
"""
import json
import statistics
import subprocess
import sys

WORKS = {
    "gpt": "batch=8 vocabulary=512 length=128 width=256 heads=4 layers=8 ranks=1 threads=2 steps=6".split(),
    "resnet": "batch=16 depth=20 size=32 classes=10 ranks=1 threads=2 steps=6".split(),
    "mlp": "batch=256 features=784 hidden=1024 hidden_layers=3 classes=10 ranks=1 threads=2 steps=10".split(),
}
WAYS = [["precision=bf16"], ["precision=f16"], ["recompute=selective"], ["recompute=blocks"], ["recompute=sqrt"],
        ["precision=bf16", "recompute=blocks"]]


def run(program, work, keys):
    out = subprocess.run([program, "train", work, *WORKS[work], *keys], check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[0])


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    for work in WORKS:
        for keys in WAYS:
            if work == "mlp" and ("recompute=blocks" in keys or "recompute=sqrt" in keys):
                continue  # it has no blocks
            times, memory = [], 1.0
            for _ in range(rounds):
                plain, other = run(program, work, []), run(program, work, keys)
                times.append(other["median_ms"] / plain["median_ms"])
                memory = other["arena_bytes"] / plain["arena_bytes"]
            print(f"{work} {' '.join(keys)}: time x {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}), "
                  f"planned bytes x {memory:.3f} of {plain['arena_bytes']}", flush=True)


main()
