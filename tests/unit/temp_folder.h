// A folder for one test.
//
// Thread rule: one thread.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "storage/file_system.h"

namespace ropewalk::mlrunner::testing {

// A folder that goes when the test ends.
class TempFolder {
 public:
  TempFolder() {
    // In memory where possible: thousands of syncs to a disk take minutes and prove nothing more here.
    path_ = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/ropewalk-train-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempFolder() {
    storage::LocalFileSystem files;
    (void)storage::RemoveTree(files, path_);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ropewalk::mlrunner::testing
