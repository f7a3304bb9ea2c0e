#!/usr/bin/env python3
"""Every error says what, why and how to mend it: no Status is made without all three.

usage: errors.py [FOLDER...]      (default: the folders of our code below the current one)

A Status is made by `Status(code, tag, what, why, fix)`, by the same in braces, or by `Status name(code, ...)`. The code may be one of
Code, an expression that chooses one (`mine ? Code::kUserError : Code::kUnavailable`), or a variable; the tag a literal or a variable.
Each such call must give `why` and `fix`, and neither as an empty literal. What a helper hands on to one (`Status Bad(..., std::string why,
std::string fix)`, or a lambda) is asked of its callers, in its file and in those that include its header: a `why` or `fix` of theirs is no
empty literal either, and has none as its default. Not seen: a code in braces whose variable is not called so. Exits with 1 and a line for
each that is wrong.

A few codes say all there is to say of the recovery that they have (base/status.h), and job/report.cc completes them by it: our own bugs,
messages that are dropped, blocks and peers that are gone, what somebody cancelled. Only these may leave a part out; a code from a variable
may be any.
"""
import functools
import re
import sys
from pathlib import Path

COMPLETED = ("kInternal", "kStale", "kDataLoss", "kUnavailable", "kCancelled")
FOLDERS = ("base", "bench", "cli", "dag", "examples", "job", "master", "mlrunner", "rpc", "storage", "worker")
CALL = re.compile(r"\bStatus(?:\s+[a-z]\w*)?\s*[({]|\breturn\s*\{|(?<=[(,=])\s*\{")
CODE = re.compile(r"\bCode::(k\w+)")
# A first argument that is a code: one of Code's, or an expression that names it ("code", "status.code()", "static_cast<Code>(c)").
A_CODE = re.compile(r"\bCode::k\w|\b[Cc]ode\b|\w_code\b")
DECLARATION = re.compile(r"^(?:const\s+)?[\w:]+(?:<.*>)?\s*(?:[&*]+\s*\w*|\s\w+)(?:\s*=.*)?$", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')
EMPTY = ('""', "{}", "std::string()")
# A function that makes errors of what it is given: `Status Bad(...) {`, `Status Bad(...) const {`, `auto bad = [&](...) {`.
HELPER = re.compile(r"\bStatus\s+(?:\w+::)*([A-Z]\w*)\(|\bauto\s+(\w+)\s*=\s*\[[^\]]*\]\(")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
PART = re.compile(r"\bstd::string(?:_view)?\b[\s&]+(why|fix)\b(?:\s*=\s*(.*))?$", re.DOTALL)


def arguments(text, at):
    """The arguments, split at commas of their own level, of the call whose bracket is before `at`."""
    return arguments_and_end(text, at)[0]


def arguments_and_end(text, at):
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
            return found + [text[begin:at].strip()], at + 1
        elif c in ")]}":
            level -= 1
        elif c == "," and level == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    return found, at


def errors_made(text):
    """Where each Status is made, and with which arguments."""
    for call in CALL.finditer(text):
        parts = arguments(text, call.end())
        # A call within the first argument is no code but has one: it is found by itself.
        if len(parts) < 2 or "," in parts[0] or not A_CODE.search(parts[0]):
            continue
        if '"' not in parts[0] and not DECLARATION.match(parts[0]):
            yield call.start(), parts


def is_completed(code):
    named, chosen = set(CODE.findall(code)), CODE.sub("", code.rpartition("?")[2])
    return bool(named) and named <= {"kOk", *COMPLETED} and not A_CODE.search(chosen)


def helpers(text):
    """(name, where it stands, places of `why` and `fix` among its parameters, which of them are empty by default, the Status it makes)"""
    for match in HELPER.finditer(text):
        parameters, end = arguments_and_end(text, match.end())
        places, defaults = {}, []
        for index, parameter in enumerate(parameters):
            part = PART.search(parameter)
            if part:
                places[part[1]] = index
                if part[2] in EMPTY:
                    defaults.append(part[1])
        if not places:
            continue
        body = text[end : text.find("\n}", end)] if match[1] else text[end : text.find(";\n", end)]
        made = next(errors_made(body), None) if re.match(r"\s*(?:const\s*)?(?:->\s*\w+\s*)?\{", text[end:]) else None
        yield match[1] or match[2], match.start(), places, defaults, made


@functools.lru_cache(maxsize=None)
def helpers_of(header):
    return list(helpers(Path(header).read_text())) if Path(header).is_file() else []


def complaints(path, text):
    def at(start):
        return f"{path}:{text.count(chr(10), 0, start) + 1}"

    for start, parts in errors_made(text):
        if len(parts) < 3 or is_completed(parts[0]):
            continue  # not a Status, or one that is completed whichever code it gets
        lacks = [name for name, index in (("why", 3), ("fix", 4)) if len(parts) <= index or parts[index] in EMPTY]
        if lacks:
            yield f"{at(start)}: error {parts[1]} lacks {' and '.join(lacks)}"
    own = [helper for helper in helpers(text) if helper[-1] is None or not is_completed(helper[-1][1][0])]
    for name, start, _, defaults, _ in own:
        for part in defaults:
            yield f"{at(start)}: {name} makes errors without {part} where its callers say none"
    mine = {name for name, *_ in helpers(text)}
    declared = [helper for header in INCLUDE.findall(text) for helper in helpers_of(header) if helper[0] not in mine]
    for name, _, places, _, _ in own + declared:
        for call in re.finditer(rf"\b{name}\(", text):
            given = arguments(text, call.end())
            for part, index in places.items():
                if index < len(given) and given[index] in EMPTY:
                    yield f"{at(call.start())}: {name} is given no {part}"


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
