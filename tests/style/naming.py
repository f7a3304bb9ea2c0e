#!/usr/bin/env python3
"""Holds the parts of the written style that a machine can see.

usage: naming.py [ROOT]        exit 0: all is well; 1: each offence is printed with its file and line

  STYLE01  a line that is too long, white space at its end, or a tab
  STYLE02  a file name that is not lower_snake_case
  STYLE03  a header without `#pragma once`, or that does not open with a comment that says its purpose
  STYLE04  `using namespace` in a header
  STYLE05  what clang 14 or GCC 12 cannot read: std::format, std::views, std::ranges::views, std::source_location, std::expected
  STYLE06  std::hash of a key, rand(), or std::endl in the product (they differ between builds, are unseeded, or flush)
"""

import os
import re
import sys

from report import report

FOLDERS = ("base", "proto", "rpc", "storage", "dag", "master", "worker", "job", "mlrunner", "cli", "examples", "bench", "deploy", "tests")
COLUMNS_MAX = 140
NAME = re.compile(r"^[a-z0-9_]+(\.[a-z0-9]+)+$|^CMakeLists\.txt$|^README\.md$|^[a-z0-9-]+\.(sh|service|toml)$|^[A-Za-z]+Config\.cmake\.in$")
TOO_NEW = re.compile(r"\bstd::(format|views|ranges::views|source_location|expected)\b|#\s*include\s*<(format|source_location|expected)>")
UNWANTED = re.compile(r"(?<![\w.:>])(?:std::)?s?rand\(|\bstd::endl\b|\bstd::random_device\b")


def code_of(line):
    """The line without its comment and string contents, roughly: enough to look for words."""
    return re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//", 1)[0]


def check_file(root, path, offend):
    name = os.path.basename(path)
    if not NAME.match(name):
        offend("STYLE02", path, 1, f"{name}: file names are lower_snake_case")
    if not path.endswith((".h", ".cc", ".py", ".cu", ".sh")):
        return
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    product = not path.startswith(("tests/", "bench/", "examples/"))
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            offend("STYLE01", path, number, f"{len(line)} columns, at most {COLUMNS_MAX}")
        if line != line.rstrip() or "\t" in line and not path.endswith(".sh"):
            offend("STYLE01", path, number, "white space at the end, or a tab")
        if path.endswith((".h", ".cc")):
            code = code_of(line)
            if TOO_NEW.search(code):
                offend("STYLE05", path, number, f"{TOO_NEW.search(code)[0]}: use fmt, loops, __builtin_FILE/LINE, Result")
            if product and UNWANTED.search(code):
                offend("STYLE06", path, number, f"{UNWANTED.search(code)[0]} has no place here")
            if path.endswith(".h") and re.match(r"using namespace\b", code):
                offend("STYLE04", path, number, "using namespace in a header")
    if path.endswith(".h"):
        if "#pragma once" not in lines:
            offend("STYLE03", path, 1, "no #pragma once")
        if not lines[0].startswith("//"):
            offend("STYLE03", path, 1, "a header opens with a comment: purpose, owner, thread rule")


def check(root):
    offences, files = [], 0

    def offend(rule, path, line, what):
        offences.append(f"error[{rule}] {path}:{line}: {what}")

    for top in FOLDERS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
            for name in sorted(names):
                files += 1
                check_file(root, os.path.relpath(os.path.join(folder, name), root), offend)
    return offences, files


if __name__ == "__main__":
    sys.exit(report(check, __doc__, "error[STYLE00] {root} holds no file in the folders of the project"))
