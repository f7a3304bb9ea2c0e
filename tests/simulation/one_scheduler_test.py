#!/usr/bin/env python3
"""The daemon, the embedded backend of a user's program and the simulator run the same object files of the scheduler core.

usage: one_scheduler_test.py BUILD_FOLDER PROGRAM...

Each source of master/scheduler is compiled once in the whole build, and each PROGRAM (a target of the build) links the one archive that
holds the results. A copy of the core that is compiled into another library fails it, and so does a program that does not link the archive.
"""

import collections
import json
import re
import subprocess
import sys

ARCHIVE = "libropewalk_scheduler.a"
WITHOUT = "collective_check_test"


def ninja(build, *args):
    return subprocess.run(["ninja", "-C", build, "-t", *args], check=True, capture_output=True, text=True).stdout


def archives_of(build, program):
    link = ninja(build, "commands", program).strip().splitlines()[-1]
    return set(re.findall(r"\S*" + re.escape(ARCHIVE), link))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    build, programs = sys.argv[1], sys.argv[2:]
    objects = collections.defaultdict(set)
    for entry in json.loads(ninja(build, "compdb")):
        source = re.search(r"master/scheduler/[^/]+\.cc$", entry["file"])
        if source and entry["output"].endswith(".o"):
            objects[source.group()].add(entry["output"])
    failures = [f"{source} is compiled {len(made)} times: {', '.join(sorted(made))}" for source, made in objects.items() if len(made) != 1]
    if "master/scheduler/step.cc" not in objects:
        failures.append(f"master/scheduler/step.cc is not compiled here: is {build} a build folder of Ninja?")
    steps = set()
    for program in programs:
        archives = archives_of(build, program)
        if len(archives) != 1:
            failures.append(f"{program} links {sorted(archives) or 'no'} {ARCHIVE}")
        steps |= archives
    if len(steps) > 1:
        failures.append(f"the programs link different archives: {sorted(steps)}")
    # The control: a program without a scheduler is told apart.
    if archives_of(build, WITHOUT):
        failures.append(f"{WITHOUT} seems to link the scheduler: this check is blind")
    for failure in failures:
        print(f"error[ONE01] {failure}", file=sys.stderr)
    if failures:
        return 1
    print(f"{len(objects)} sources of the core, each compiled once into {steps.pop()}, which {', '.join(programs)} link")
    return 0


if __name__ == "__main__":
    sys.exit(main())
