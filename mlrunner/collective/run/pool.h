// Pieces of registered memory: first fit over what was added, neighbours joined again when they are free.
//
// Owner: a transport. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "base/huge_pages.h"

namespace ropewalk::collective {

class Pool {
 public:
  // Of this memory only.
  Pool(char* memory, std::size_t bytes);
  // Takes memory of its process as it needs it.
  Pool() : grows_(true) {}

  // 64-byte aligned; null when there is no room.
  char* Allocate(std::size_t bytes);
  // What Allocate() gave; null is fine.
  void Free(char* memory);

 private:
  char* Take(std::size_t bytes);  // mutex held
  void GiveBack(char* memory, std::size_t bytes);

  const bool grows_ = false;
  std::mutex mutex_;
  std::map<char*, std::size_t> free_, used_;
  std::vector<HugeBuffer> owned_;
};

}  // namespace ropewalk::collective
