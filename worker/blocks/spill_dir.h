// A folder of run files that belongs to one living process. Its owner holds a lock on a file inside; the next process that opens the same
// parent removes the folders whose owner is gone, so that a kill -9 leaks no disk.
//
// Thread rule: any thread after Open.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "worker/blocks/unique_fd.h"

namespace ropewalk::blocks {

class SpillDir {
 public:
  // Creates `parent` (0700) and an own folder in it, and sweeps dead owners' folders.
  static Result<std::unique_ptr<SpillDir>> Open(const std::string& parent);
  ~SpillDir();  // removes the folder and all in it
  const std::string& path() const { return path_; }

 private:
  SpillDir(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

}  // namespace ropewalk::blocks
