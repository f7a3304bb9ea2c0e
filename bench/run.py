#!/usr/bin/env python3
"""Measures Ropewalk against hand-written floors and other tools, in paired runs on this machine.

usage: run.py [--build build] [--size smoke|small|full] [--only NAME,...] [--repetitions N] [--peers all|none] [--json FILE]

Each repetition runs every contestant of a work once, one after the other, the first one changing from repetition to repetition; a ratio is
the median of the repetitions' own ratios. Inputs are warm in the page cache. Every output is compared with the floor's by hash.
User programs are compiled outside the tree by find_package(Ropewalk) against `cmake --install`. Inputs, prefix and build lie below
$ROPEWALK_BENCH_DIR (default: ~/.cache/ropewalk-bench); nothing is written into the repository.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/batch"))
import cluster as dev_cluster  # noqa: E402

SIZES = {  # text bytes, bigram text bytes, lines, visits
    "smoke": (8 << 20, 2 << 20, 60_000, 200_000),
    "small": (128 << 20, 32 << 20, 1_000_000, 4_000_000),
    "full": (1 << 30, 256 << 20, 10_000_000, 40_000_000),
}
WORD_AWK = '{for(i=1;i<=NF;i++)c[$i]++}END{for(k in c)print k"\\t"c[k]}'


class Contestant:
    """One way to do the work. `command` gets {input}, {output}; `folder`: the output is a folder of parts."""

    def __init__(self, name, command, folder=False, environment=None, stdout=False, peer=False):
        self.name, self.command, self.folder, self.stdout, self.peer = name, command, folder, stdout, peer
        self.environment = environment or {}


class Work:
    def __init__(self, name, source, ordered, contestants, bars):
        self.name, self.source, self.ordered, self.contestants, self.bars = name, source, ordered, contestants, bars


def quiet(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"error[BENCH01] {' '.join(map(str, command))} exited {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


PROGRAM_OF = {"wordcount": "word_count", "sort": "sort", "bigrams": "bigrams", "word_lengths": "word_lengths", "visits": "visits"}


def build_outside(build, cache, only):
    """Installs the product and compiles the user's project against it; gives the folders of the product's and of the user's binaries."""
    prefix, outside = os.path.join(cache, "prefix"), os.path.join(cache, "outside")
    quiet(["cmake", "--install", build, "--prefix", prefix])
    # Fresh: the folder may have been made from another checkout.
    quiet(["cmake", "--fresh", "-S", os.path.join(HERE, "outside"), "-B", outside, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"])
    programs = [program for work, program in PROGRAM_OF.items() if not only or work in only]
    targets = ["generate", "machine"] + [kind + program for program in programs for kind in ("user_", "floor_")]
    quiet(["cmake", "--build", outside, "--target", *targets, *(["user_empty"] if not only or "empty" in only else [])])
    return os.path.join(prefix, "bin"), outside


def make_input(tools, cache, name, *arguments):
    path = os.path.join(cache, "inputs", "-".join([name, *map(str, arguments)]))
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        quiet([os.path.join(tools, "generate"), name, *map(str, arguments), path + ".new"])
        os.rename(path + ".new", path)
    with open(path, "rb") as file:  # warm for everybody
        while file.read(16 << 20):
            pass
    return path


def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.remove(path)


def digest(path, folder, ordered):
    """SHA-256 of the output's bytes; of its sorted lines where the order is free."""
    files = sorted(os.path.join(path, n) for n in os.listdir(path) if n.startswith("part-")) if folder else [path]
    sha = hashlib.sha256()
    if ordered:
        for file in files:
            with open(file, "rb") as data:
                while block := data.read(16 << 20):
                    sha.update(block)
    else:
        lines = []
        for file in files:
            with open(file, "rb") as data:
                lines += data.readlines()
        for line in sorted(lines):
            sha.update(line)
    return sha.hexdigest()


def run_once(contestant, source, output, threads):
    remove(output)
    # Not str.format: awk programs are full of braces.
    command = [part.replace("{input}", source).replace("{output}", output) for part in contestant.command]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROPEWALK_")} | {"ROPEWALK_THREADS": str(threads), "LC_ALL": "C"}
    env |= contestant.environment
    stdout = open(output, "wb") if contestant.stdout else subprocess.PIPE
    start = time.perf_counter()
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE)
    seconds = time.perf_counter() - start
    if contestant.stdout:
        stdout.close()
    if done.returncode != 0:
        sys.exit(
            f"error[BENCH02] {contestant.name}: {' '.join(command)} exited {done.returncode}\n"
            f"{done.stderr.decode(errors='replace')[-3000:]}"
        )
    return seconds


def run_work(work, scratch, repetitions, threads):
    """name -> seconds of each repetition; outputs are compared in the first and in the last one."""
    times = {c.name: [] for c in work.contestants}
    output = os.path.join(scratch, "output")
    for repetition in range(repetitions):
        wanted = None
        turn = repetition % len(work.contestants)
        for contestant in work.contestants[turn:] + work.contestants[:turn]:
            times[contestant.name].append(run_once(contestant, work.source, output, threads))
            if repetition in (0, repetitions - 1):
                got = digest(output, contestant.folder, work.ordered)
                wanted = wanted or (got, contestant.name)
                if got != wanted[0]:
                    sys.exit(
                        f"error[BENCH03] {work.name}: the outputs of {contestant.name} and {wanted[1]} differ\n"
                        f"  why: one of them is wrong   fix: compare {output} with a run by hand"
                    )
            remove(output)
    return times


def ratio(times, over, under):
    return statistics.median(a / b for a, b in zip(times[over], times[under]))


def report(work, times, results):
    print(f"\n{work.name}: {os.path.basename(work.source)}, {os.path.getsize(work.source) / 2**20:.0f} MiB")
    for name, seconds in times.items():
        print(f"  {name:24} median {statistics.median(seconds):8.3f} s   min {min(seconds):8.3f} s   ({len(seconds)} runs)")
    for label, over, under, sense, bar in work.bars:
        over = fastest(times, over)
        if over not in times or under not in times:
            continue
        value = ratio(times, over, under)
        good = value <= bar if sense == "<=" else value >= bar
        print(f"  {label:44} {over} / {under} = {value:.2f}   bar {sense} {bar}   {'holds' if good else 'MISSED'}")
        results.append({"work": work.name, "ratio": label, "value": round(value, 3), "bar": f"{sense} {bar}", "holds": good})


def fastest(times, names):
    """`names`: one name, or several of which the fastest counts."""
    if isinstance(names, str):
        return names
    there = [n for n in names if n in times]
    return min(there, key=lambda n: statistics.median(times[n])) if there else names[0]


def works(bins, outside, inputs, only, peers, cluster):
    text, bigrams, lines, visits = inputs
    jobs = os.path.join(bins, "ropewalk-jobs")
    huge = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # the best setting of glibc's programs here
    sort_memory = f"{min(70, int(4e11 / (os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))) + 40)}%"

    def engine(name):
        return [Contestant("built-in", [jobs, name, "{input}", "-o", "{output}"], folder=True)] if name else []

    def four(name, user, peer_list=()):
        list_of = engine(name)
        list_of.append(Contestant("user program", [os.path.join(outside, f"user_{user}"), "{input}", "{output}"], folder=True))
        list_of.append(Contestant("floor", [os.path.join(outside, f"floor_{user}"), "{input}", "{output}"]))
        if name == "sort":  # the one work whose output is as large as its input
            list_of.append(Contestant("floor, synced", [os.path.join(outside, f"floor_{user}"), "{input}", "{output}", "sync"]))
        if cluster and name:
            list_of.append(
                Contestant("cluster 2x1", [jobs, name, "{input}", "-o", "{output}"], folder=True, environment=cluster.environment())
            )
        return list_of + [p for p in peer_list if peers != "none" and shutil.which(p.command[0])]

    same = ("user program beside built-in", "user program", "built-in")
    all_works = [
        Work(
            "wordcount",
            text,
            False,
            four(
                "wordcount",
                "word_count",
                [
                    Contestant("mawk", ["mawk", WORD_AWK, "{input}"], stdout=True, environment=huge, peer=True),
                    Contestant("gawk", ["gawk", WORD_AWK, "{input}"], stdout=True, environment=huge, peer=True),
                ],
            ),
            [
                ("beside the floor", "built-in", "floor", "<=", 2.5),
                ("beside the fastest awk", ("mawk", "gawk"), "built-in", ">=", 3),
                (*same, "<=", 1.1),
                (*same, ">=", 0.9),
                ("cluster beside embedded", "cluster 2x1", "built-in", "<=", 1.6),
            ],
        ),
        Work(
            "sort",
            lines,
            True,
            four(
                "sort",
                "sort",
                [
                    Contestant(
                        "GNU sort", ["sort", "--parallel=2", "-S", sort_memory, "{input}", "-o", "{output}"], environment=huge, peer=True
                    )
                ],
            ),
            [
                ("beside the floor", "built-in", "floor", "<=", 1.6),
                ("beside the floor that syncs as we do", "built-in", "floor, synced", "<=", 1.6),
                ("GNU sort beside it", "GNU sort", "built-in", ">=", 2),
                (*same, "<=", 1.1),
                (*same, ">=", 0.9),
                ("cluster beside embedded", "cluster 2x1", "built-in", "<=", 1.6),
            ],
        ),
        Work("bigrams", bigrams, False, four(None, "bigrams"), [("beside the floor", "user program", "floor", "<=", 3)]),
        Work("word_lengths", text, False, four(None, "word_lengths"), [("beside the floor", "user program", "floor", "<=", 3)]),
        Work("visits", visits, False, four(None, "visits"), [("beside the floor", "user program", "floor", "<=", 3)]),
    ]
    return [w for w in all_works if not only or w.name in only]


def empty_job(outside, cluster, repetitions):
    env = os.environ | cluster.environment()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        subprocess.run([os.path.join(outside, "user_empty")], env=env, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000, max(seconds) * 1000


def machine(outside, threads):
    facts = json.loads(quiet([os.path.join(outside, "machine"), str(threads)]))
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        facts["cpu"] = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    facts["cores"] = os.cpu_count()
    facts["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    facts["kernel"] = os.uname().release
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--only", default="", help="names of works, and `empty`, separated by commas")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peers", choices=("all", "none"), default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-cluster", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    cache = os.path.abspath(os.environ.get("ROPEWALK_BENCH_DIR") or os.path.expanduser("~/.cache/ropewalk-bench"))
    only = [n for n in args.only.split(",") if n]
    scratch = os.path.join(cache, "scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)

    bins, outside = build_outside(args.build, cache, only)
    facts = machine(outside, args.threads)
    print("machine: " + ", ".join(f"{k} {v}" for k, v in facts.items()))
    text_bytes, bigram_bytes, line_count, visit_count = SIZES[args.size]

    def input_of(names, *arguments):  # none that nobody reads: they take gigabytes and minutes
        return make_input(outside, cache, *arguments) if not only or set(names) & set(only) else ""

    inputs = (
        input_of(("wordcount", "word_lengths"), "text", text_bytes, 1_000_000),
        input_of(("bigrams",), "text", bigram_bytes, 20_000),
        input_of(("sort",), "lines", line_count),
        input_of(("visits",), "visits", visit_count, 1_000_000),
    )

    results, all_times = [], {}
    cluster = (
        None
        if args.no_cluster
        else dev_cluster.DevCluster(os.path.join(bins, "ropewalk"), os.path.join(scratch, "cluster"), workers=2, slots=1)
    )
    try:
        for work in works(bins, outside, inputs, only, args.peers, cluster):
            all_times[work.name] = run_work(work, scratch, args.repetitions, args.threads)
            report(work, all_times[work.name], results)
        if cluster and (not only or "empty" in only):
            median_ms, max_ms = empty_job(outside, cluster, max(21, args.repetitions))
            good = median_ms < 50
            print(
                f"\nempty job on the running cluster, from start to exit: median {median_ms:.1f} ms, max {max_ms:.1f} ms"
                f"   bar < 50 ms   {'holds' if good else 'MISSED'}"
            )
            results.append({"work": "empty", "ratio": "median ms", "value": round(median_ms, 1), "bar": "< 50", "holds": good})
    finally:
        if cluster:
            cluster.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": facts, "size": args.size, "seconds": all_times, "ratios": results}, file, indent=1)
    missed = [r for r in results if not r["holds"]]
    print(f"\n{len(results) - len(missed)} of {len(results)} bars hold")
    return 0


if __name__ == "__main__":
    dev_cluster.exit_on_sigterm()
    sys.exit(main())
