#!/usr/bin/env python3
"""Compares the tests that were skipped in a ctest run with the committed list of those that may be.

usage: check_skipped.py CTEST_JUNIT_XML LIST

A test is skipped when ctest did not run it, or when its output has a line "[  SKIPPED ] NAME" (GoogleTest) or "SKIPPED NAME: REASON"
(our scripts). LIST has one line for each: NAME, white space, REASON. A skipped test that is not in the list fails the run: a lane that is
missing on a machine is reported by its name, never passed silently.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

SKIPPED = re.compile(r"^\s*\[  SKIPPED \] ([\w./-]+)(?: \(\d+ ms\))?\s*$|^SKIPPED ([\w./-]+):", re.M)


def read_list(path):
    allowed = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, _, reason = line.partition(" ")
            if not reason.strip():
                sys.exit(f"error[SKIP02] {path}:{number}: {name} has no reason\n  fix: write why it may be skipped behind its name")
            allowed[name] = reason.strip()
    return allowed


def skipped_tests(path):
    found = set()
    for case in ElementTree.parse(path).iter("testcase"):
        if case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None:
            found.add(case.get("name"))
        output = case.findtext("system-out") or ""
        found.update(a or b for a, b in SKIPPED.findall(output))
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    allowed, skipped = read_list(sys.argv[2]), skipped_tests(sys.argv[1])
    for name in sorted(skipped & allowed.keys()):
        print(f"skipped (listed): {name}: {allowed[name]}")
    unlisted = sorted(skipped - allowed.keys())
    for name in unlisted:
        print(f"error[SKIP01] {name} was skipped, and {sys.argv[2]} does not list it", file=sys.stderr)
    if unlisted:
        print("  why: a skipped test proves nothing   fix: make it run here, or list it with its reason", file=sys.stderr)
        return 1
    print(f"skipped tests: {len(skipped)}, all listed in {sys.argv[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
