#!/usr/bin/env python3
"""The style checkers must say no: each small tree below breaks one rule and has to be refused for exactly that rule and file."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import errors  # noqa: E402
import floors  # noqa: E402
import naming  # noqa: E402
import promises  # noqa: E402

CHECKERS = {"floors": floors.check, "naming": naming.check}
HEADER = "// Purpose.\n#pragma once\n"
GOOD = {
    "base/status.h": HEADER,
    "proto/a.proto": "",
    "rpc/server.cc": '#include <boost/asio.hpp>\n#include "proto/a.pb.h"\n#include "base/status.h"\n',
    "storage/journal.cc": "#include <rocksdb/db.h>\n",
    "dag/dataset.h": HEADER + '#include "base/status.h"\n#include <boost/pfr.hpp>\n',
    "master/scheduler/scheduler.cc": '#include "dag/dataset.h"\n#include <map>\n',
    "worker/task/runner.h": HEADER + '#include "dag/dataset.h"\n',
    "job/ropewalk.h": HEADER + '#include "dag/dataset.h"\n#include "worker/task/runner.h"\n',
    "cli/main.cc": "#include <CLI/CLI.hpp>\n",
}
# name: (checker, rule, file that is named, files that are added to the good tree)
BAD = {
    "climbs": ("floors", "FLOOR01", "base/x.h", {"base/x.h": HEADER + '#include "dag/dataset.h"\n'}),
    "climbs_one_floor": ("floors", "FLOOR01", "storage/x.cc", {"storage/x.cc": '#include "dag/dataset.h"\n'}),
    "neighbour": ("floors", "FLOOR01", "master/daemon/x.cc", {"master/daemon/x.cc": '#include "worker/task/runner.h"\n'}),
    "job_includes_a_daemon": ("floors", "FLOOR01", "job/x.cc", {"job/x.cc": '#include "worker/daemon/d.h"\n', "worker/daemon/d.h": HEADER}),
    "reverse_of_an_allowed_step": (
        "floors",
        "FLOOR01",
        "job/x.cc",
        {"job/x.cc": '#include "mlrunner/train.h"\n', "mlrunner/train.h": HEADER},
    ),
    "task_includes_its_daemon": (
        "floors",
        "FLOOR01",
        "worker/task/x.cc",
        {"worker/task/x.cc": '#include "worker/daemon/d.h"\n', "worker/daemon/d.h": HEADER},
    ),
    "base_includes_sim": ("floors", "FLOOR01", "base/x.cc", {"base/x.cc": '#include "base/sim/q.h"\n', "base/sim/q.h": HEADER}),
    "circle_of_three_files": (
        "floors",
        "FLOOR02",
        "dag/a.h",
        {
            "dag/a.h": HEADER + '#include "dag/b.h"\n',
            "dag/b.h": HEADER + '#include "dag/c.h"\n',
            "dag/c.h": HEADER + '#include "dag/a.h"\n',
        },
    ),
    "includes_itself": ("floors", "FLOOR02", "dag/a.h", {"dag/a.h": HEADER + '#include "dag/a.h"\n'}),
    "circle_of_libraries": (
        "floors",
        "FLOOR02",
        "worker/blocks",
        {
            "worker/task/a.h": HEADER + '#include "worker/blocks/b.h"\n',
            "worker/blocks/b.h": HEADER,
            "worker/blocks/c.h": HEADER + '#include "worker/task/runner.h"\n',
        },
    ),
    "public_header_with_protobuf": ("floors", "FLOOR03", "dag/x.h", {"dag/x.h": HEADER + "#include <google/protobuf/message.h>\n"}),
    "public_header_with_asio_three_steps_away": (
        "floors",
        "FLOOR03",
        "job/x.h",
        {
            "job/x.h": HEADER + '#include "dag/y.h"\n',
            "dag/y.h": HEADER + '#include "rpc/z.h"\n',
            "rpc/z.h": HEADER + "#include <boost/asio/ip/tcp.hpp>\n",
        },
    ),
    "rocksdb_in_a_header": ("floors", "FLOOR04", "storage/x.h", {"storage/x.h": HEADER + "#include <rocksdb/db.h>\n"}),
    "rocksdb_elsewhere": ("floors", "FLOOR04", "master/daemon/x.cc", {"master/daemon/x.cc": "#include <rocksdb/db.h>\n"}),
    "asio_in_storage": ("floors", "FLOOR04", "storage/x.cc", {"storage/x.cc": "#  include <boost/asio.hpp>\n"}),
    "graph_includes_kernels": (
        "floors",
        "FLOOR01",
        "mlrunner/graph/x.cc",
        {"mlrunner/graph/x.cc": '#include "mlrunner/kernels/k.h"\n', "mlrunner/kernels/k.h": HEADER},
    ),
    "dnnl_in_the_graph": ("floors", "FLOOR04", "mlrunner/graph/x.cc", {"mlrunner/graph/x.cc": "#include <dnnl.hpp>\n"}),
    "dnnl_in_a_header": ("floors", "FLOOR04", "mlrunner/kernels/x.h", {"mlrunner/kernels/x.h": HEADER + "#include <dnnl.hpp>\n"}),
    "cuda_in_the_host": ("floors", "FLOOR04", "mlrunner/gpu/x.cc", {"mlrunner/gpu/x.cc": "#include <cuda_runtime.h>\n"}),
    "nccl_in_collectives": ("floors", "FLOOR04", "mlrunner/collective/x.cc", {"mlrunner/collective/x.cc": "#include <nccl.h>\n"}),
    "plugin_needs_base": (
        "floors",
        "FLOOR07",
        "mlrunner/gpu/plugin/k.cu",
        {
            "mlrunner/gpu/plugin/k.cu": '#include "mlrunner/gpu/a.h"\n',
            "mlrunner/gpu/a.h": HEADER + '#include "base/status.h"\n',
        },
    ),
    "messages_in_a_header": ("floors", "FLOOR04", "rpc/x.h", {"rpc/x.h": HEADER + '#include "proto/a.pb.h"\n'}),
    "cli11_twice": ("floors", "FLOOR04", "cli/other.cc", {"cli/other.cc": "#include <CLI/App.hpp>\n"}),
    "clock_in_the_core": ("floors", "FLOOR05", "master/scheduler/x.cc", {"master/scheduler/x.cc": "#include <chrono>\n"}),
    "storage_in_the_core": (
        "floors",
        "FLOOR05",
        "master/scheduler/x.cc",
        {"master/scheduler/x.cc": '#include "storage/s.h"\n', "storage/s.h": HEADER},
    ),
    "no_such_file": ("floors", "FLOOR06", "dag/x.cc", {"dag/x.cc": '#include "dag/gone.h"\n'}),
    "relative_path": ("floors", "FLOOR06", "dag/x.cc", {"dag/x.cc": '#include "dataset.h"\n'}),
    "own_header_in_angles": ("floors", "FLOOR06", "dag/x.cc", {"dag/x.cc": "#include <dag/dataset.h>\n"}),
    "long_line": ("naming", "STYLE01", "dag/x.cc:2", {"dag/x.cc": "\n// " + "x" * 140 + "\n"}),
    "trailing_space": ("naming", "STYLE01", "dag/x.cc:1", {"dag/x.cc": "int a; \n"}),
    "camel_file": ("naming", "STYLE02", "dag/DataSet.cc", {"dag/DataSet.cc": "\n"}),
    "no_pragma": ("naming", "STYLE03", "dag/x.h", {"dag/x.h": "// Purpose.\n"}),
    "no_purpose": ("naming", "STYLE03", "dag/x.h", {"dag/x.h": "#pragma once\n"}),
    "using_namespace": ("naming", "STYLE04", "dag/x.h:3", {"dag/x.h": HEADER + "using namespace std;\n"}),
    "std_format": ("naming", "STYLE05", "dag/x.cc:1", {"dag/x.cc": 'auto s = std::format("{}", 1);\n'}),
    "endl": ("naming", "STYLE06", "dag/x.cc:1", {"dag/x.cc": "out << std::endl;\n"}),
    "rand": ("naming", "STYLE06", "dag/x.cc:1", {"dag/x.cc": "int r = rand();\n"}),
}
# Looks alike, but is allowed.
FINE = {
    "commented_include": {"base/x.h": HEADER + '// #include "dag/dataset.h"\n'},
    "tests_go_everywhere": {"tests/unit/x_test.cc": '#include "dag/dataset.h"\n#include "base/status.h"\n#include <rocksdb/db.h>\n'},
    "plugin_by_itself": {
        "mlrunner/gpu/plugin/k.cu": '#include <cublasLt.h>\n#include <nccl.h>\n#include "mlrunner/gpu/a.h"\n',
        "mlrunner/gpu/a.h": HEADER,
        "mlrunner/gpu/b.cc": '#include "mlrunner/gpu/a.h"\n#include "base/status.h"\n',
    },
    "words_in_strings": {"dag/x.cc": 'const char* s = "std::format and rand() // ";  // std::endl\n'},
    "brand_is_not_rand": {"dag/x.cc": "int r = brand(); x.rand();\n"},
    "executor_speaks_messages": {"job/x.cc": '#include "proto/a.pb.h"\n#include "master/scheduler/s.h"\n', "master/scheduler/s.h": HEADER},
}


def judge(checker, files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w") as file:
                file.write(text)
        offences, found = CHECKERS[checker](root)
        return (1 if offences else 0 if found else 2), "\n".join(offences)


class BadTrees(unittest.TestCase):
    def test_the_good_tree_passes(self):
        for checker in ("floors", "naming"):
            rc, said = judge(checker, GOOD)
            self.assertEqual(rc, 0, said)

    def test_each_bad_tree_is_refused_for_its_reason(self):
        for name, (checker, rule, where, files) in BAD.items():
            with self.subTest(name):
                rc, said = judge(checker, GOOD | files)
                self.assertEqual(rc, 1, said)
                self.assertIn(f"error[{rule}] {where}", said)

    def test_what_only_looks_bad_passes(self):
        for name, files in FINE.items():
            for checker in ("floors", "naming"):
                with self.subTest(name):
                    rc, said = judge(checker, GOOD | files)
                    self.assertEqual(rc, 0, said)

    def test_a_promise_whose_test_is_gone_is_named(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "docs"))
            os.makedirs(os.path.join(root, "tests", "unit"))
            with open(os.path.join(root, "docs", "promises.md"), "w") as file:
                file.write("| 1 | x | `Suite.Kept`, `Suite.Gone`, `tests/unit/gone.py` |")
            with open(os.path.join(root, "tests", "unit", "a_test.cc"), "w") as file:
                file.write("TEST_F(Suite, Kept) {}\n// TEST(Suite, Gone)\n")
            self.assertEqual(promises.check(root), (["Suite.Gone", "tests/unit/gone.py"], 3))

    def test_an_error_without_why_or_fix_is_named(self):
        whole = 'return Status(Code::kInvalid, "A1", "what, (it)", "why", fix(a, {b}));\n'
        bad = {
            'Status(Code::kInvalid, "A1", "what");': "why and fix",
            'Status(Code::kUserError, "A1", Text(a, b), "why");': "fix",
            'Status bad(Code::kNotFound, "A1", "what", "", "fix");': "why",
            'f({Code::kResourceExhausted, "A1",\n   "what", "why, and (more", ""});': "fix",
            'return {Code::kInvalid, "A1", "what", "why"};': "fix",
            'Status(mine ? Code::kUserError : Code::kUnavailable, "A1", "what", "", "fix");': "why",
            'Status((x.ok() ? Code::kStale : Code::kInvalid), "A1", "what", "why");': "fix",
            'Status(Code::kInvalid, "A1", what);': "why and fix",
            'Status(code, "A1", "what", "why");': "fix",
            'Status made(last.code(), "A1", last.what(), "", last.fix());': "why",
            'return {static_cast<Code>(r.code), "A1", r.what, r.why};': "fix",
            'Status(is_mine ? Code::kInternal : code, "A1", "what");': "why and fix",
        }
        fine = [
            whole,
            'Status(Code::kInternal, "A1", "our bug");',
            'Status(Code::kInternal, tag, what);',
            'Status(code, tag, what, why, fix);',
            'Status Make(Code code, std::string tag, std::string what);',
            'std::function<Status(Code code, const std::string& tag, int what)> make;',
            'Status(lost ? Code::kDataLoss : Code::kUnavailable, "A1", "what");',
            'return {Failed(Code::kInvalid, tag), "no Status", x};',
            'const char* text = "Status(Code, a)";',
        ]
        for text, lacks in bad.items():
            said = list(errors.complaints("x.cc", whole + text))
            self.assertEqual(said, [f'x.cc:2: error "A1" lacks {lacks}'], text)
        for text in fine:
            self.assertEqual(list(errors.complaints("x.cc", text)), [], text)
        for tag in ("tag", "last.tag()", 'mine ? "A1" : "A2"'):
            said = list(errors.complaints("x.cc", f'Status(Code::kInvalid, {tag}, "what", "why");'))
            self.assertEqual(said, [f"x.cc:1: error {tag} lacks fix"], tag)
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(errors.main([root]), 1, "no error found is no success")

    def test_a_helper_that_is_given_no_why_or_fix_is_named(self):
        body = ' {\n  return Status(Code::kInvalid, "A1", what, why, fix);\n}\n'
        bad = "Status Bad(std::string what, const std::string& why, std::string fix)" + body
        lazy = 'Status Bad(std::string what, std::string why, std::string fix = "")' + body
        ours = bad.replace("kInvalid", "kInternal")
        inner = 'void F() {\n  auto bad = [&](std::string why) { return Status(Code::kInvalid, "A1", "what", why, "fix"); };\n'
        for text, said in {
            bad + 'return Bad("it is (so, so)", "", "mend it");': ["x.cc:4: Bad is given no why"],
            bad + 'return Bad("what", "why", "");': ["x.cc:4: Bad is given no fix"],
            bad + 'return Bad("what", "why", "fix");': [],
            lazy: ["x.cc:1: Bad makes errors without fix where its callers say none"],
            "Status Bad(int a, std::string fix = {});": ["x.cc:1: Bad makes errors without fix where its callers say none"],
            inner + '  return bad("");\n}\n': ["x.cc:3: bad is given no why"],
            inner + '  return bad("why");\n}\n': [],
            ours + 'return Bad("what", "", "");': [],
        }.items():
            self.assertEqual(list(errors.complaints("x.cc", text)), said, text)
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "bad.h"), "w") as file:
                file.write("Status Misfit(const Op& op, std::string why, std::string fix);\n")
            text = f'#include "{root}/bad.h"\nreturn Misfit(op, "why", CALL);\n'
            self.assertEqual(list(errors.complaints("x.cc", text.replace("CALL", '""'))), ["x.cc:2: Misfit is given no fix"])
            self.assertEqual(list(errors.complaints("x.cc", text.replace("CALL", '"fix"'))), [])

    def test_an_empty_tree_is_no_success(self):
        for checker in ("floors", "naming"):
            self.assertNotEqual(judge(checker, {})[0], 0)


if __name__ == "__main__":
    unittest.main()
