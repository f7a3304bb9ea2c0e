#!/usr/bin/env python3
"""Holds the floors of the house: includes go only downward, in no circle, and heavy libraries stay where they belong.

usage: floors.py [ROOT]        exit 0: all is well; 1: each offence is printed with its file and line

  FLOOR01  an include that climbs, or crosses to a neighbour on the same floor
  FLOOR02  a circle of includes, between files or between libraries
  FLOOR03  a header that users include (base/, dag/, job/) brings in Asio, RocksDB or protobuf
  FLOOR04  a library's header outside the few files that may include it
  FLOOR05  master/scheduler includes something that has a clock, a thread, a random device or I/O
  FLOOR06  a quoted include that does not exist, or is not written from the root of the project
  FLOOR07  the GPU plugin reaches a file outside mlrunner/gpu: it builds where there is CMake and CUDA and nothing else
"""

import os
import re
import sys

from report import report

FLOOR = {
    "base": 0,
    "proto": 1,
    "rpc": 1,
    "storage": 2,
    "dag": 3,
    "master": 4,
    "worker": 4,
    "job": 5,
    "mlrunner": 5,
    "cli": 6,
    "examples": 6,
    "bench": 6,
    "deploy": 6,
    "tests": 7,
}
# Sideways steps that the architecture allows: includer -> included.
NEIGHBOURS = {("rpc", "proto"), ("mlrunner", "job")}
# Libraries of their own within a floor's folder: daemons and cores know each other only as far as it says here.
LIBRARIES = ["base/sim", "master/scheduler", "master/daemon", "worker/task", "worker/blocks", "worker/daemon"]
# The rooms of mlrunner, lowest first: a room includes those before it only.
ROOMS = ["mlrunner/types", "mlrunner/graph", "mlrunner/kernels", "mlrunner/executor", "mlrunner/tensors", "mlrunner/onnx"]
ROOMS += ["mlrunner/models", "mlrunner/data"]
LIBRARIES += [*ROOMS, "mlrunner/collective", "mlrunner/launch", "mlrunner/train", "mlrunner/gpu", "mlrunner/measure"]
PUBLIC = ("base", "dag", "job")
PLUGIN = "mlrunner/gpu/plugin"
HEAVY = re.compile(r"^(boost/(asio|beast)|rocksdb/|google/protobuf/)|\.pb\.h$")
IMPURE = re.compile(
    r"^(atomic|barrier|chrono|condition_variable|ctime|time\.h|filesystem|fstream|future|iostream|latch|mutex|random|"
    r"semaphore|shared_mutex|stop_token|thread|unistd\.h|fcntl\.h|poll\.h|pthread\.h|sys/.*|boost/asio.*|rocksdb/.*)$"
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)
SOURCE = (".h", ".cc", ".cu", ".cuh")


def read_tree(root):
    """path -> [(line, is_quoted, included)] of every source file below the floors' folders."""
    tree = {}
    for top in FLOOR:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if f != "build" and not f.startswith((".", "build-")))
            for name in sorted(names):
                if not name.endswith(SOURCE):
                    continue
                full = os.path.join(folder, name)
                with open(full, encoding="utf-8", errors="replace") as file:
                    text = file.read()
                found = [(text.count("\n", 0, m.start()) + 1, m[1] == '"', m[2]) for m in INCLUDE.finditer(text)]
                tree[os.path.relpath(full, root)] = found
    return tree


def top_of(path):
    return path.split("/", 1)[0]


def library_of(path):
    return next((lib for lib in LIBRARIES if path.startswith(lib + "/")), top_of(path))


def may_include(source, target):
    """Empty when `source` may include `target`, else why not."""
    a, b = top_of(source), top_of(target)
    lib_a, lib_b = library_of(source), library_of(target)
    if a == "job" and lib_b in ("master/daemon", "worker/daemon"):
        return "job/ may include master/scheduler and worker/task, but no daemon"
    if a == b:
        if lib_a == lib_b:
            return ""
        if lib_a in ROOMS and (lib_b not in ROOMS or ROOMS.index(lib_b) > ROOMS.index(lib_a)):
            return f"{lib_b} does not lie below {lib_a}"
        if lib_b.endswith("/daemon"):
            return f"{lib_b} is on top of its floor: nothing beside it includes it"
        if lib_a == "base" or (lib_a, lib_b) == ("worker/blocks", "worker/task"):
            return f"{lib_a} lies below {lib_b}"
        return ""
    if FLOOR[b] < FLOOR[a] or (a, b) in NEIGHBOURS:
        return ""
    if FLOOR[a] == FLOOR[b]:
        return f"{a}/ and {b}/ are on the same floor ({FLOOR[a]}) and know each other only by messages"
    return f"{a}/ is floor {FLOOR[a]}, {b}/ is floor {FLOOR[b]}: includes go only downward"


def heavy_allowed(path, included):
    """Empty when `path` may include this header of a heavy library, else why not."""
    top, lib = top_of(path), library_of(path)
    if included.startswith("rocksdb/") and not (top in ("storage", "tests") and path.endswith(".cc")):
        return "RocksDB headers are included by .cc files of storage/ only"
    if included.startswith(("boost/asio", "boost/beast")) and not (
        top == "rpc" or lib in ("master/daemon", "worker/daemon") or (top == "tests" and path.endswith(".cc"))
    ):
        return "Asio and Beast are included by rpc/ and by the daemons only"
    if re.match(r"dnnl|oneapi/dnnl", included) and not (lib == "mlrunner/kernels" and path.endswith(".cc")):
        return "oneDNN headers are included by .cc files of mlrunner/kernels only"
    if re.match(r"(cuda|cublas|cudnn|nccl)\w*\.h$", included) and not path.startswith(PLUGIN + "/"):
        return f"CUDA's and NCCL's headers are included by {PLUGIN} only: everything else runs without them"
    if included.endswith(".pb.h") and not path.endswith(".cc") and top != "tests":
        return "generated message headers are included by .cc files only"
    return ""


def circles(edges):
    """The strongly connected components with more than one node, or a node with an edge to itself (Tarjan, iterative)."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []
    for start in sorted(edges):
        if start in index:
            continue
        work = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in edges:
                    continue
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    ring = []
                    while not ring or ring[-1] != node:
                        ring.append(stack.pop())
                        on_stack.discard(ring[-1])
                    if len(ring) > 1 or node in edges[node]:
                        found.append(sorted(ring))
    return found


def check(root):
    tree = read_tree(root)
    offences = []

    def offend(rule, path, line, what):
        offences.append(f"error[{rule}] {path}:{line}: {what}")

    file_edges = {path: set() for path in tree}
    library_edges, cli_users = {}, []
    for path, includes in tree.items():
        library_edges.setdefault(library_of(path), set())
        for line, quoted, included in includes:
            if why := heavy_allowed(path, included):
                offend("FLOOR04", path, line, f"includes {included}: {why}")
            if included.startswith("CLI/"):
                cli_users.append((path, line))
            if library_of(path) == "master/scheduler" and (IMPURE.match(included) or top_of(included) in ("rpc", "storage") and quoted):
                offend("FLOOR05", path, line, f"includes {included}: the scheduler core is pure")
            if not quoted:
                if top_of(included) in FLOOR and included in tree:
                    offend("FLOOR06", path, line, f"includes <{included}>: our own headers are quoted")
                continue
            if included.endswith(".pb.h") and os.path.exists(os.path.join(root, included[: -len(".pb.h")] + ".proto")):
                target = included
            elif included in tree:
                target = included
                file_edges[path].add(included)
            else:
                offend("FLOOR06", path, line, f'includes "{included}", which is no file of the project (paths start at its root)')
                continue
            if why := may_include(path, target):
                offend("FLOOR01", path, line, f"includes {target}: {why}")
            if library_of(path) != library_of(target):
                library_edges[library_of(path)].add(library_of(target))
    for path, line in sorted(cli_users)[1:]:
        offend("FLOOR04", path, line, f"includes CLI11, which compiles slowly: {sorted(cli_users)[0][0]} is its one file")

    for ring in circles(file_edges):
        offend("FLOOR02", ring[0], 1, "a circle of includes: " + ", ".join(ring))
    for ring in circles(library_edges):
        offend("FLOOR02", ring[0], 1, "a circle of libraries: " + ", ".join(ring))

    # What a user's translation unit would pull in, header by header, with the way that leads there; and what the plugin would need.
    for path in sorted(tree):
        plugin = path.startswith(PLUGIN + "/")
        if not plugin and (top_of(path) not in PUBLIC or not path.endswith(".h")):
            continue
        way, todo = {path: path}, [path]
        while todo:
            at = todo.pop()
            for line, _, included in tree[at]:
                if plugin and included in tree and not included.startswith("mlrunner/gpu/"):
                    offend("FLOOR07", path, 1, f"the plugin would need {included} (by {way[at]})")
                elif not plugin and HEAVY.search(included):
                    offend("FLOOR03", path, 1, f"users would include {included} (by {way[at]})")
                elif included in tree and included not in way:
                    way[included] = f"{way[at]} > {included}"
                    todo.append(included)
    return offences, len(tree)


if __name__ == "__main__":
    sys.exit(report(check, __doc__, "error[FLOOR00] {root} holds no source file below the floors' folders"))
