#!/usr/bin/env python3
"""Every test that docs/promises.md names exists.

usage: promises.py [ROOT]      tests are named in backticks: `Suite.Name` of GoogleTest, or a file below tests/
"""
import glob
import os
import re
import sys


def check(root):
    with open(os.path.join(root, "docs/promises.md"), encoding="utf-8") as file:
        named = re.findall(r"`([A-Z]\w+\.[A-Z]\w+|tests/[\w./-]+)`", file.read())
    known = set()
    for path in glob.glob(os.path.join(root, "tests/**/*.cc"), recursive=True):
        with open(path, encoding="utf-8", errors="replace") as file:
            known.update(f"{m[1]}.{m[2]}" for m in re.finditer(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)", file.read(), re.M))
    missing = [n for n in named if not (os.path.exists(os.path.join(root, n)) if n.startswith("tests/") else n in known)]
    return missing, len(named)


def main():
    root = sys.argv[1] if len(sys.argv) == 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    missing, named = check(root)
    for name in missing:
        print(f"error[STYLE09] docs/promises.md names {name}, which does not exist")
    print(f"docs/promises.md names {named} tests, {len(missing)} of them missing")
    return 1 if missing or named < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
