// A folder of run files that belongs to one living process. Its owner holds a lock on a file inside; the next process that opens the same
// parent removes the folders whose owner is gone, so that a kill -9 leaks no disk; or it takes over the run files in them.
//
// Thread rule: any thread after Open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/home_process.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace ropewalk::blocks {

// The job that the owner made a run file for, from its name NAME.j-005.run; 0: the name says none.
JobId JobOfRunFile(const std::string& path);

class SpillDir {
 public:
  // Creates `parent` (0700) and an own folder in it, and sweeps dead owners' folders. With `leftovers`, their run files are moved into the
  // own folder first, and named there; and this folder is left for the next owner to sweep.
  static Result<std::unique_ptr<SpillDir>> Open(const std::string& parent, std::vector<std::string>* leftovers = nullptr);
  ~SpillDir();  // removes the folder and all in it, unless it was opened with `leftovers`, or by the process that forked this one
  const std::string& path() const { return path_; }

 private:
  SpillDir(std::string path, UniqueFd lock, bool keep) : path_(std::move(path)), lock_(std::move(lock)), keep_(keep) {}
  std::string path_;
  UniqueFd lock_;
  bool keep_;
  HomeProcess home_;
};

}  // namespace ropewalk::blocks
