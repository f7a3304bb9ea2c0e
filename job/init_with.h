// Init() for programs of ours that have read their arguments before it, and tell the job by words that they have made of these.
//
// Thread rule: once, by main.
#pragma once

#include <string>
#include <vector>

#include "job/ropewalk.h"

namespace ropewalk::job {

// words[0] is the program.
inline Job InitWith(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  return Init(argc, argv.data());
}

}  // namespace ropewalk::job
