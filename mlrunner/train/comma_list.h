// Values of keys that are lists of names.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace ropewalk::mlrunner {

// "id, first name" in parts: without the spaces around them, and without empty ones.
inline std::vector<std::string> CommaList(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::size_t first = at, last = end;
    while (first < last && text[first] == ' ') ++first;
    while (last > first && text[last - 1] == ' ') --last;
    if (first < last) parts.push_back(text.substr(first, last - first));
    at = end + 1;
  }
  return parts;
}

}  // namespace ropewalk::mlrunner
