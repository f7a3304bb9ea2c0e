#!/usr/bin/env python3
"""Every error says what, why and how to mend it: no Status is made without all three.

usage: errors.py [FOLDER...]      (default: the folders of our code below the current one)

A Status is made by `Status(Code::k..., "TAG", what, why, fix)`, by the same in braces, or by `Status name(Code::...)`. Each such call whose
tag is a literal must give `why` and `fix`, and neither as an empty literal. Exits with 1 and a line for each that does not.

A few codes say all there is to say of the recovery that they have (base/status.h), and job/report.cc completes them by it: our own bugs,
messages that are dropped, blocks and peers that are gone, what somebody cancelled. Only these may leave a part out. mlrunner/ is not looked
at yet (docs/plan.md).
"""
import re
import sys
from pathlib import Path

COMPLETED = ("kInternal", "kStale", "kDataLoss", "kUnavailable", "kCancelled")
FOLDERS = ("base", "bench", "cli", "dag", "examples", "job", "master", "rpc", "storage", "worker")
CALL = re.compile(r"(?:\bStatus(?:\s+\w+)?\s*[({]|\breturn\s*\{|(?<=[(,=])\s*\{)\s*(?=(?:ropewalk::)?Code::k\w+\s*,)")
STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')


def arguments(text, at):
    """The arguments, split at commas of their own level, of the call whose bracket is before `at`."""
    found, level, begin = [], 0, at
    while at < len(text):
        literal = STRING.match(text, at)
        if literal:
            at = literal.end()
            continue
        if text.startswith("//", at):
            at = text.find("\n", at)
            continue
        c = text[at]
        if c in "([{":
            level += 1
        elif c in ")]}" and level == 0:
            return found + [text[begin:at].strip()]
        elif c in ")]}":
            level -= 1
        elif c == "," and level == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    return found


def complaints(path, text):
    for call in CALL.finditer(text):
        parts = arguments(text, call.end())
        if len(parts) < 3 or not parts[1].startswith('"') or parts[0].endswith(("kOk", *COMPLETED)):
            continue  # not a Status, one that hands a tag on, or one that is completed
        lacks = [name for name, index in (("why", 3), ("fix", 4)) if len(parts) <= index or parts[index] in ('""', "{}", "std::string()")]
        if lacks:
            yield f"{path}:{text.count(chr(10), 0, call.start()) + 1}: error {parts[1]} lacks {' and '.join(lacks)}"


def main(folders):
    found, calls = [], 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix not in (".cc", ".h", ".cu"):
                continue
            text = path.read_text()
            calls += len(CALL.findall(text))
            found += complaints(path, text)
    print("\n".join(found + [f"{calls} errors are made, {len(found)} of them lack a part"]))
    return 1 if found or calls == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [folder for folder in FOLDERS if Path(folder).is_dir()]))
