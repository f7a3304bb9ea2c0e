#!/usr/bin/env python3
"""The judge of skipped tests must say no to a skip that is not listed. It is fed a report that ctest itself wrote."""

import os
import subprocess
import sys
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_skipped.py")
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(Tiny LANGUAGES NONE)
enable_testing()
add_test(NAME ran COMMAND echo "[       OK ] A.B (1 ms)")
add_test(NAME binary COMMAND printf "[  SKIPPED ] Gpu.Kernel (0 ms)\\nSKIPPED unreadable_file: root reads everything\\n")
add_test(NAME whole_binary COMMAND sh -c "exit 77")
set_tests_properties(whole_binary PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME never_started COMMAND echo)
set_tests_properties(never_started PROPERTIES DISABLED TRUE)
"""
LISTED = ["Gpu.Kernel no nvcc", "unreadable_file runs as root", "whole_binary why not", "never_started no such device"]


class CheckSkipped(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        with open(os.path.join(cls.folder.name, "CMakeLists.txt"), "w") as file:
            file.write(PROJECT)
        for command in (["cmake", "-S", ".", "-B", "b"], ["ctest", "--test-dir", "b", "--output-junit", "r.xml"]):
            subprocess.run(command, cwd=cls.folder.name, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def judge(self, *lines):
        names = os.path.join(self.folder.name, "skipped.txt")
        with open(names, "w") as file:
            file.write("# comment\n" + "".join(line + "\n" for line in lines))
        report = os.path.join(self.folder.name, "b", "r.xml")
        done = subprocess.run([sys.executable, TOOL, report, names], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_all_listed(self):
        rc, said = self.judge(*LISTED)
        self.assertEqual(rc, 0, said)
        self.assertIn("skipped tests: 4", said)

    def test_each_unlisted_skip_is_named(self):
        for line in LISTED:
            name = line.split()[0]
            rc, said = self.judge(*(other for other in LISTED if other != line))
            self.assertEqual(rc, 1, name)
            self.assertIn(f"{name} was skipped", said)

    def test_a_name_without_a_reason_is_refused(self):
        rc, said = self.judge("Gpu.Kernel")
        self.assertEqual(rc, 1)
        self.assertIn("has no reason", said)


if __name__ == "__main__":
    unittest.main()
