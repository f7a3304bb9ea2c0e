#!/usr/bin/env python3
"""Runs word count and sort over awkward inputs and compares every byte, exit code and message with what must come.

usage: run_cases.py --bin ROPEWALK_JOBS [--cluster ROPEWALK] [--kind KIND] [--only TEXT]
                    [--large | --count32 | --corpus DIR] [--list] [--keep]

--cluster starts `ROPEWALK start dev` with a folder of its own on loopback, submits every case there and stops it in the end.
"""

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases_compressed  # noqa: E402
import cases_files  # noqa: E402
import cases_records  # noqa: E402
import cases_text  # noqa: E402
import cluster  # noqa: E402
import oracle  # noqa: E402
from case import Case, Refusal  # noqa: E402

NOBODY = 65534
FIRST_LINE = re.compile(r"^error\[[A-Z]+\d+\] \S", re.M)


class Failed(Exception):
    pass


def read_output(folder):
    """The bytes of part-* in order of their names; asserts that the folder is a complete output."""
    names = sorted(os.listdir(folder))
    if b"_SUCCESS" not in names:
        raise Failed(f"no _SUCCESS in the output, only {names}")
    odd = [n for n in names if n != b"_SUCCESS" and not re.fullmatch(rb"part-\d{5}", n)]
    if odd:
        raise Failed(f"unexpected files in the output: {odd}")
    parts = []
    for name in names:
        if name.startswith(b"part-"):
            with open(os.path.join(folder, name), "rb") as file:
                parts.append(file.read())
    return b"".join(parts)


def first_difference(got, want):
    for i, (a, b) in enumerate(zip(got, want)):
        if a != b:
            return f"line {i}: got {a[:80]!r}, expected {b[:80]!r}"
    return f"got {len(got)} lines, expected {len(want)}; the first extra one: {(got + want)[min(len(got), len(want))][:80]!r}"


def check_result(job, case, output):
    data = read_output(output)
    if case.records:
        want = oracle.sort_records(case.texts(), case.records)
        if data != want:
            at = next((i for i, (a, b) in enumerate(zip(data, want)) if a != b), min(len(data), len(want)))
            raise Failed(f"wrong result: {len(data)} bytes, expected {len(want)}; the first that differs is byte {at}")
        return
    got = data.splitlines(keepends=True) if not re.search(rb"[\r\v\f\x1c-\x1e\x85]", data) else [l + b"\n" for l in oracle.lines(data)]
    if data and not data.endswith(b"\n"):
        raise Failed("the output's last line has no end")
    want = getattr(case, "expected_lines", None) or oracle.expected(job, case.texts())
    if job == "wordcount":  # in any order
        got.sort()
        want = sorted(want)
    if got != want:
        raise Failed("wrong result: " + first_difference(got, want))


def check_refusal(refusal, rc, message):
    if rc not in refusal.codes:
        raise Failed(f"exit code {rc}, expected {' or '.join(map(str, refusal.codes))}")
    if not FIRST_LINE.search(message):
        raise Failed("the message has no line error[TAG] WHAT")
    if "why:" not in message or "fix:" not in message:
        raise Failed("the message lacks its why or its fix")
    for name in refusal.names:
        if name not in message:
            raise Failed(f"the message does not name {name}")
    if refusal.offset:
        first_line = next(line for line in message.splitlines() if FIRST_LINE.match(line))
        offsets = [int(n) for n in re.findall(r" at byte (\d+) \(as stored\)", first_line)]
        first, last = refusal.offset
        if len(offsets) != 1 or not first <= offsets[0] <= last:
            raise Failed(f"the first line names the bytes {offsets} as stored, expected one from {first} to {last}")


def left_behind(folder):
    return [n for n in os.listdir(folder) if n.startswith(b".") and b"ropewalk" in n]


@functools.cache
def has_capability(name):
    if name == "zstd":
        return bool(shutil.which("zstd"))
    # "mount": root in a container may not.
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], stderr=subprocess.DEVNULL).returncode != 0:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


class Runner:
    def __init__(self, binary, master, work):
        self.binary, self.master, self.work = os.fsencode(os.path.abspath(binary)), master, work
        self.passed, self.failed, self.skipped = 0, [], {}

    def environment(self, case):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ROPEWALK_")}
        if self.master:
            env |= self.master.environment()
        env |= case.environment
        return env

    def run(self, case):
        missing = [n for n in case.needs if not has_capability(n)]
        if missing:
            self.skipped[case.name] = f"needs {', '.join(missing)}"
            return
        if self.master and (case.embedded_only or case.as_nobody):
            return
        for job in case.jobs:
            folder = os.path.join(self.work, os.fsencode(f"{case.name}.{job}"))
            try:
                os.makedirs(folder)
                case.write(folder)
                try:
                    self.run_job(case, job, folder)
                finally:
                    if case.cleanup:
                        case.cleanup(folder)
                self.passed += 1
            except (Failed, AssertionError, OSError) as error:
                self.failed.append(f"{case.name}/{job}")
                print(f"FAILED {case.name}/{job}: {error}", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def run_job(self, case, job, folder):
        output = case.output.replace(b"{folder}", folder)
        inputs = [name.replace(b"{folder}", folder) for name in case.inputs]
        flags = case.flags + (case.records.flags() if case.records else ())
        command = [self.binary, *(case.exact_command or (job.encode(), *inputs, b"-o", output, *(f.encode() for f in flags)))]
        as_user = {}
        if case.as_nobody and os.geteuid() == 0:
            for path in (folder, os.path.join(folder, b"input")):
                os.chmod(path, 0o777)
            as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=self.environment(case),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=case.timeout_s,
                **as_user,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"still running after {case.timeout_s} s") from None
        message = done.stderr.decode("utf-8", "backslashreplace")
        final = os.path.join(folder, output.rstrip(b"/"))
        try:
            if case.refusal and (done.returncode != 0 or not case.or_refusal):
                check_refusal(case.refusal, done.returncode, message)
                if not case.keep_output and os.path.lexists(final):
                    raise Failed("refused, but something stands under the final name")
            else:
                if done.returncode != 0:
                    raise Failed(f"exit code {done.returncode}")
                check_result(job, case, final)
            hidden = left_behind(os.path.dirname(final)) if os.path.isdir(os.path.dirname(final)) else []
            # On a cluster workers remove it when the last executor is gone, which the client does not wait for.
            deadline = time.monotonic() + 20
            while hidden and self.master and time.monotonic() < deadline:
                time.sleep(0.05)
                hidden = left_behind(os.path.dirname(final))
            if hidden:
                raise Failed(f"left behind: {hidden}")
            if case.verify:
                case.verify(folder)
        except (Failed, AssertionError) as error:
            typed = b" ".join(command).decode("utf-8", "backslashreplace")
            raise Failed(f"{error}\n    command: {typed[:600]}\n    stderr: {message.strip()[:1500]}") from None


def corpus_cases(root):
    """Cases of another generator: CASE/input and either `wordcount` and `sort` or `error`."""
    for name in sorted(os.listdir(root)):
        source = os.path.join(root, name)

        def prepare(folder, source=source):
            shutil.rmtree(os.path.join(folder, b"input"))
            shutil.copytree(os.fsencode(os.path.join(source, "input")), os.path.join(folder, b"input"))

        case = Case(name, prepare=prepare, timeout_s=600)
        if os.path.exists(os.path.join(source, "error")):
            words = open(os.path.join(source, "error"), encoding="utf-8").read().split()
            case.refusal = Refusal(codes=(1,), names=tuple(words))
            yield case
            continue
        for job in case.jobs:
            with open(os.path.join(source, job), "rb") as file:
                one = Case(name, prepare=prepare, jobs=(job,), timeout_s=600)
                one.expected_lines = [l + b"\n" for l in oracle.lines(file.read())]
                # An empty list would look like "ask the oracle", which is right too: the case has no texts.
                yield one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--cluster")
    parser.add_argument("--kind", choices=("text", "compressed", "files", "records"))
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1, help="only each N-th case")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--count32", action="store_true")
    parser.add_argument("--corpus")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--work", help="where cases are written (default: a new folder below the system's temporary one)")
    args = parser.parse_args()
    if args.large:
        cases = cases_text.large_cases()
    elif args.count32:
        cases = [cases_text.count_above_32_bits()]
    elif args.corpus:
        cases = corpus_cases(args.corpus)
    else:
        kinds = {"text": cases_text, "compressed": cases_compressed, "files": cases_files, "records": cases_records}
        cases = (c for name, kind in kinds.items() if args.kind in (None, name) for c in kind.all_cases())
    cases = (c for i, c in enumerate(c for c in cases if args.only in c.name) if i % args.every == 0)
    if args.list:
        print(*(c.name for c in cases), sep="\n")
        return 0
    work = tempfile.mkdtemp(prefix="ropewalk-cases-", dir=args.work)
    os.chmod(work, 0o755)
    master = cluster.DevCluster(args.cluster, os.path.join(work, "cluster")) if args.cluster else None
    started = time.monotonic()
    try:
        # A copy, so that another user can run it wherever the build folder lies.
        binary = shutil.copy(args.bin, os.path.join(work, "ropewalk-jobs"))
        os.chmod(binary, 0o755)
        runner = Runner(binary, master, os.fsencode(work))
        for case in cases:
            runner.run(case)
    finally:
        if master:
            master.stop()
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    for name, why in sorted(runner.skipped.items()):
        print(f"SKIPPED batch_{name}: {why}")
    print(
        f"{runner.passed} passed, {len(runner.failed)} failed, {len(runner.skipped)} skipped in {time.monotonic() - started:.1f} s"
        f" ({'cluster' if master else 'embedded'})" + (f"; the folders are kept in {work}" if args.keep else "")
    )
    if runner.passed + len(runner.failed) == 0:
        print("error[CASE01] no case ran\n  why: none has the name   fix: --list shows them")
        return 2
    return 1 if runner.failed else 0


if __name__ == "__main__":
    cluster.exit_on_sigterm()
    sys.exit(main())
