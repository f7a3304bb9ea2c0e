#!/usr/bin/env python3
"""Word count and sort of a large text equal their oracles: Python's Counter over bytes.split(), and GNU sort with LC_ALL=C.

usage: big_text.py --bin ROPEWALK_JOBS --generate BENCH_GENERATE [--mib 1024] [--cluster ROPEWALK]
"""

import argparse
import collections
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster as dev_cluster  # noqa: E402


def chunks_at_newlines(path, size=64 << 20):
    rest = b""
    with open(path, "rb") as file:
        while block := file.read(size):
            cut = block.rfind(b"\n") + 1
            yield rest + block[:cut]
            rest = block[cut:]
    yield rest


def parts(folder):
    assert os.path.exists(os.path.join(folder, "_SUCCESS")), f"{folder}: no _SUCCESS"
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.startswith("part-"))


def check_wordcount(text, output):
    want = collections.Counter()
    for chunk in chunks_at_newlines(text):
        want.update(chunk.split())
    got, lines = {}, 0
    for part in parts(output):
        with open(part, "rb") as file:
            for line in file:
                word, count = line.rstrip(b"\n").split(b"\t")
                got[word] = int(count)
                lines += 1
    assert lines == len(got), f"{lines - len(got)} words stand in the output twice"
    assert got == want, f"{len(got)} words, expected {len(want)}; the first that differs: " + repr(
        next((w for w in want if got.get(w) != want[w]), next((w for w in got if w not in want), None))
    )
    return sum(want.values())


def check_sort(text, output, work):
    env = os.environ | {"LC_ALL": "C"}
    sort = subprocess.Popen(["sort", "-S", "1G", "-T", work, text], env=env, stdout=subprocess.PIPE)
    cat = subprocess.Popen(["cat", *parts(output)], stdout=subprocess.PIPE)
    while True:
        want, got = sort.stdout.read(16 << 20), cat.stdout.read(16 << 20)
        assert want == got, "the sorted output differs from GNU sort's"
        if not want:
            break
    assert sort.wait() == 0 and cat.wait() == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--generate", required=True)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--cluster")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="ropewalk-big-")
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROPEWALK_")}
    master = dev_cluster.DevCluster(args.cluster, os.path.join(work, "cluster")) if args.cluster else None
    try:
        env |= master.environment() if master else {}
        text, output = os.path.join(work, "text"), os.path.join(work, "out")
        subprocess.run([args.generate, "text", str(args.mib << 20), "1000000", text], check=True)
        for job in ("wordcount", "sort"):
            subprocess.run([args.bin, job, text, "-o", output, "--overwrite"], env=env, check=True, stdin=subprocess.DEVNULL)
            if job == "wordcount":
                print(f"wordcount of {args.mib} MiB: {check_wordcount(text, output)} words as counted by Python")
            else:
                check_sort(text, output, work)
                print(f"sort of {args.mib} MiB: as GNU sort's")
    finally:
        if master:
            master.stop()
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    dev_cluster.exit_on_sigterm()
    sys.exit(main())
