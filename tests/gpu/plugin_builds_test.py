#!/usr/bin/env python3
"""The GPU plugin builds with CMake and CUDA alone, gives one symbol, needs nothing of ours, and its tests run or say why not.

usage: plugin_builds_test.py SOURCE_ROOT BUILD_FOLDER      exit 77: there is no nvcc

The build folder is kept, so that the next run compiles what has changed; a warning fails, or only the first run would see it.
"""

import os
import re
import shutil
import subprocess
import sys


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, build = sys.argv[1:]
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.access(nvcc, os.X_OK):
        print("SKIPPED gpu_plugin_builds: there is no nvcc")
        return 77
    # The flags of the tree around it must not get in.
    alone = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAFLAGS")}
    print(run("cmake", "-S", os.path.join(root, "mlrunner", "gpu"), "-B", build, f"-DCMAKE_CUDA_COMPILER={nvcc}",
              "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", env=alone))
    print(run("cmake", "--build", build, env=alone))
    plugin = os.path.join(build, "plugin", "ropewalk_gpu.so")
    symbols = run("nm", "-D", "--defined-only", plugin).splitlines()
    strong = [line.split()[-1] for line in symbols if " T " in line or " D " in line or " B " in line]
    if strong != ["ropewalk_gpu_api"]:
        sys.exit(f"the plugin gives {strong}, and should give ropewalk_gpu_api only")
    needed = re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", plugin))
    strange = [lib for lib in needed if not re.match(r"lib(cublasLt|nccl|stdc\+\+|gcc_s|c|m|dl|rt|pthread)\.so|ld-linux", lib)]
    if strange:
        sys.exit(f"the plugin needs {strange}, which a machine with CUDA alone may lack")
    tests = run("ctest", "--test-dir", build, "-L", "gpu", "--no-tests=error", "--verbose", env=alone)
    print("\n".join(line for line in tests.splitlines() if re.search(r"Test +#|FAILED|passed", line)))
    for line in sorted(set(re.findall(r"SKIPPED gpu_\w+: .*", tests))):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
