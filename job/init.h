// The first statement of main:
//
//   #include <ropewalk/ropewalk.h>
//   int main(int argc, char** argv) {
//     ropewalk::Job job = ropewalk::Init(argc, argv);
//     job.ReadLines(argv[1]).FlatMap(ropewalk::Words).CountByKey().WriteText("counts");
//   }
//
// Init decides what this process is:
//   an executor   started by a worker (ROPEWALK_EXECUTOR_FD): main is replayed and serves tasks at its actions
//   a client      --master or ROPEWALK_MASTER: the process submits itself, follows the job and exits as it ended; Init does not return
//   embedded      else: main runs here, on all cores
//
// It takes our flags (options.h) out of argc and argv. A failed action prints its error and ends the process with the exit code of
// docs/cli.md; no partial output stays.
//
// Thread rule: once a process, from main's thread. The Job lives in main.
#pragma once

#include <cstdint>

#include "dag/run_gang.h"
#include "dag/session.h"

namespace ropewalk {

using Job = dag::Session;
using dag::GangContext;
using dag::GangOptions;
using dag::RunGang;

namespace job {

// N of x86-64-vN that this translation unit is compiled for: what a worker's processor must have at least.
inline constexpr std::uint32_t kCpuLevelOfBuild =
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    4;
#elif defined(__AVX2__) && defined(__BMI2__) && defined(__FMA__)
    3;
#elif defined(__SSE4_2__) && defined(__POPCNT__)
    2;
#else
    1;
#endif

Job InitProcess(int& argc, char** argv, std::uint32_t cpu_level);

}  // namespace job

inline Job Init(int& argc, char** argv) { return job::InitProcess(argc, argv, job::kCpuLevelOfBuild); }

}  // namespace ropewalk
