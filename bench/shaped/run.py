#!/usr/bin/env python3
"""Measures sums over 4 ranks on links of known rates: how near they come to what the links allow, and whether plans leave slow ones alone.

usage: run.py [--build build] [--cases equal,slow_link,slow_rank,two_nodes] [--repetitions 5] [--sizes-mib 8,16,64] [--rate-mbit 1000]
              [--slow-mbit 100] [--uplink-mbit 250] [--congestion cubic] [--link shaped|none] [--smoke] [--json FILE]

Each rank is a process in a network namespace of its own (bench/namespaces.py), joined to a router by a link of --rate-mbit each way. That
needs root, ip and tc; nothing outside of the namespaces is changed, and they go when the bench ends. A sum took as long as its slowest
rank; the median of the repetitions is printed.

  equal      all links alike. Bound: each rank has to send 2N(P - 1)/P bytes, at the link's nominal rate with all frames' headers counted
             against us, no latency, and less what the bucket of tokens gives for nothing. Bar: bound / measured >= .95 by the ring, in the
             lower bound of the median with 95% confidence, from 8 MiB up.
  slow_link  what ranks 0 and 1 say to each other goes at --slow-mbit
  slow_rank  all that rank 2 says and hears goes at --slow-mbit
  two_nodes  ranks 0 and 2 on one router, 1 and 3 on another, and --uplink-mbit between the two

In the last three each algorithm is run by a communicator that knows nothing of the links, and by one that has measured them
(CommunicatorOptions::measures_links). Bar: the fastest plan of the second is faster than the fastest of the first, in the lower bound of
paired repetitions.

On a machine that others use, too, `chrt -f 2 bench/shaped/run.py` keeps them from what little it computes.

--smoke: small, one repetition, not judged; says SKIPPED (and exits with 77) where links cannot be shaped. --link none: over loopback.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from namespaces import BURST_BYTES, CannotShape, Network, check_link
from paired import lower_bound

RANKS = 4
BAR = 0.95
CASES = ("equal", "slow_link", "slow_rank", "two_nodes")
SEGMENT_BYTES = 128 << 10  # where links are uneven: chains and trees are pipelines, which long segments fill late
VERDICTS = {None: "", True: "   holds", False: "   MISSED"}
ALGORITHMS = "ring,chain,direct,tree,hierarchical_direct_direct,hierarchical_ring_ring"


def run_once(args, network, verb, **keys):
    place = {"namespaces": network.name} if network else {}
    command = [os.path.join(args.build, "bin", "bench_shaped"), verb,
               *(f"{key}={value}" for key, value in ({"ranks": RANKS} | keys | place).items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"error[BENCH02] {' '.join(command)} exited {done.returncode}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def shown(order):
    return " ".join(map(str, order)) if order else "of the ranks"


def beyond(lower, digits):
    return f" (> {lower:.{digits}f})" if lower is not None else ""


def leaves_alone(case, found):
    """Whether what a communicator has found out about the links goes round the slow ones."""
    ring, chain = found["ring"], found["chain"]
    if case == "slow_rank":
        return chain and 2 in (chain[0], chain[-1])
    if case == "two_nodes":
        return found["nodes"] == [0, 1, 0, 1]
    return ring and chain and abs(ring.index(0) - ring.index(1)) == 2 and abs(chain.index(0) - chain.index(1)) > 1


def equal(args, network, _case):
    """Fractions of what the links allow."""
    check_link(lambda: sorted(run_once(args, network, "link"), key=lambda line: line["rank"]), args.rate_mbit if network else None)
    lines = run_once(args, network, "sums", algorithms="ring,chosen,halving_doubling", repetitions=args.repetitions,
                     bytes=",".join(str(size) for size in args.sizes))
    results = []
    for line in lines[1:]:
        sent = 2 * line["bytes"] * (RANKS - 1) / RANKS - BURST_BYTES
        bound_ms = sent * 8e-3 / args.rate_mbit
        fractions = [bound_ms / ms for ms in line["ms"]]
        lower = lower_bound(fractions)
        is_judged = network and line["asked"] == "ring" and lower is not None
        holds = lower >= BAR if is_judged else None
        by = line["asked"] if line["asked"] == line["algorithm"] else f"{line['asked']} ({line['algorithm']})"
        print(f"  {line['bytes'] / 2**20:4.0f} MiB by {by}: {statistics.median(line['ms']):.1f} ms, {statistics.median(fractions):.3f} of "
              f"the bound{beyond(lower, 3)}{VERDICTS[holds]}")
        results.append(line | {"bound_ms": bound_ms, "fractions": fractions, "lower": lower, "holds": holds})
    return results


def uneven(args, network, case):
    """What ranks do who know the links, beside others who do not."""
    keys = {"algorithms": ALGORITHMS, "bytes": args.sizes[0], "repetitions": args.repetitions, "segment_bytes": SEGMENT_BYTES, "apart": 1}
    blind, seeing = (run_once(args, network, "sums", measures=measures, **keys) for measures in (0, 1))
    found = seeing[0]
    print(f"  links measured in {found['connect_ms'] - blind[0]['connect_ms']:.0f} ms: rings in the order {shown(found['ring'])}, chains "
          f"{shown(found['chain'])}, nodes by rank {shown(found['nodes'])}")
    if network and not leaves_alone(case, found):
        sys.exit("error[BENCH12] what was measured does not show which links are slow\n"
                 "  why: the order or the nodes go over them   fix: look at CalibratePairs and at OrdersFor, or let nothing else run")
    for before, after in zip(blind[1:], seeing[1:]):
        print(f"    {before['algorithm']:27s} {statistics.median(before['ms']):8.1f} ms, with the links measured "
              f"{statistics.median(after['ms']):8.1f} ms" + (f", order {shown(after['order'])}" if after["order"] else ""))
    best = {who: min(lines[1:], key=lambda line: statistics.median(line["ms"])) for who, lines in (("blind", blind), ("seeing", seeing))}
    ratios = [before / after for before, after in zip(best["blind"]["ms"], best["seeing"]["ms"])]
    lower = lower_bound(ratios)
    holds = lower > 1 if network and lower is not None else None
    print(f"    fastest: {best['blind']['algorithm']} without, {best['seeing']['algorithm']} in the order {shown(best['seeing']['order'])} "
          f"with; ratio {statistics.median(ratios):.2f}{beyond(lower, 2)}{VERDICTS[holds]}")
    return {"blind": blind, "seeing": seeing, "ratios": ratios, "lower": lower, "holds": holds}


def network_of(case, args):
    shape = {"equal": {}, "slow_link": {"slow": {(0, 1): args.slow_mbit}}, "slow_rank": {"rates": {2: args.slow_mbit}},
             "two_nodes": {"nodes": [0, 1, 0, 1], "uplink_mbit": args.uplink_mbit}}[case]
    return Network("shaped", RANKS, args.rate_mbit, args.congestion, **shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sizes-mib", default="8,16,64", help="of sums on equal links; the first one's on others")
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--slow-mbit", type=int, default=100)
    parser.add_argument("--uplink-mbit", type=int, default=250)
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--link", choices=("shaped", "none"), default="shaped")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.sizes = [int(float(size) * 2**20) for size in args.sizes_mib.split(",")]
    if args.smoke:
        args.sizes, args.repetitions = [1 << 20], 1
    results = {}
    for case in args.cases.split(","):
        if case not in CASES:
            sys.exit(f"error[BENCH11] there is no case \"{case}\"\n  fix: name some of {', '.join(CASES)}")
        measure = equal if case == "equal" else uneven
        print(f"{case}:")
        if args.link == "none":
            results[case] = measure(args, None, case)
            continue
        try:
            with network_of(case, args) as network:
                results[case] = measure(args, network, case)
        except CannotShape as error:
            if args.smoke:
                print("SKIPPED bench_shaped_smoke: makes network namespaces, which needs root")
                return 77
            sys.exit(str(error))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
