#!/usr/bin/env python3
"""Every error says what, why and how to mend it: no Status is made without all three.

usage: errors.py [FOLDER...]      (default: the folders of our code below the current one)

A Status is made by `Status(Code::k..., "TAG", what, why, fix)`, by the same in braces, or by `Status name(Code::...)`; the code may be an
expression that chooses one (`mine ? Code::kUserError : Code::kUnavailable`). Each such call whose tag is a literal must give `why` and
`fix`, and neither as an empty literal. Exits with 1 and a line for each that does not.

A few codes say all there is to say of the recovery that they have (base/status.h), and job/report.cc completes them by it: our own bugs,
messages that are dropped, blocks and peers that are gone, what somebody cancelled. Only these may leave a part out. mlrunner/ is not looked
at yet (docs/plan.md).
"""
import re
import sys
from pathlib import Path

COMPLETED = ("kInternal", "kStale", "kDataLoss", "kUnavailable", "kCancelled")
FOLDERS = ("base", "bench", "cli", "dag", "examples", "job", "master", "rpc", "storage", "worker")
CALL = re.compile(r"(?:\bStatus(?:\s+\w+)?\s*[({]|\breturn\s*\{|(?<=[(,=])\s*\{)\s*(?=[^,;{}\"]*\bCode::k\w)")
CODE = re.compile(r"\bCode::(k\w+)")
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


def errors_made(text):
    """Where each Status is made whose code can be read, and with which arguments."""
    for call in CALL.finditer(text):
        parts = arguments(text, call.end())
        # A call within the first argument is no code but has one: it is found by itself.
        if len(parts) >= 2 and "," not in parts[0]:
            yield call.start(), parts


def complaints(path, text):
    for start, parts in errors_made(text):
        if len(parts) < 3 or not parts[1].startswith('"') or set(CODE.findall(parts[0])) <= {"kOk", *COMPLETED}:
            continue  # not a Status, one that hands a tag on, or one that is completed whichever code it gets
        lacks = [name for name, index in (("why", 3), ("fix", 4)) if len(parts) <= index or parts[index] in ('""', "{}", "std::string()")]
        if lacks:
            yield f"{path}:{text.count(chr(10), 0, start) + 1}: error {parts[1]} lacks {' and '.join(lacks)}"


def main(folders):
    found, calls = [], 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix not in (".cc", ".h", ".cu"):
                continue
            text = path.read_text()
            calls += sum(1 for _ in errors_made(text))
            found += complaints(path, text)
    print("\n".join(found + [f"{calls} errors are made, {len(found)} of them lack a part"]))
    return 1 if found or calls == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [folder for folder in FOLDERS if Path(folder).is_dir()]))
