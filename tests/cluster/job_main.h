// The main of a test that is also the job that it submits: `TEST job ARGUMENT...` runs the job.
//
// Thread rule: the main thread.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace ropewalk::cluster {

// `arguments`: without so many behind it, "job" is none.
inline int TestOrJob(int argc, char** argv, int (*run_job)(int, char**), int arguments = 0) {
  if (argc > 1 + arguments && std::string(argv[1]) == "job") return run_job(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace ropewalk::cluster
