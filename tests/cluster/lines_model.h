// What word count, sort and grep must make of files, computed in the test without a look at the engine, and what they have written.
//
// A line ends at '\n', a last one without it is a line; a word is a maximal run of bytes that are no white space of the "C" locale.
//
// Thread rule: pure, but for reading files.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/cluster/process.h"

namespace ropewalk::cluster {

inline std::vector<std::string> LinesOfText(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

inline std::string Joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

// The lines word<TAB>count in byte order.
inline std::string ModelOfWordCount(const std::vector<std::string>& texts) {
  constexpr std::string_view kWhite(" \t\n\v\f\r");
  std::unordered_map<std::string_view, std::uint64_t> counts;
  for (const std::string& text : texts)
    for (std::size_t at = 0; (at = text.find_first_not_of(kWhite, at)) != std::string::npos;) {
      const std::size_t end = std::min(text.find_first_of(kWhite, at), text.size());
      ++counts[std::string_view(text).substr(at, end - at)];
      at = end;
    }
  std::vector<std::string> lines;
  for (const auto& [word, count] : counts) lines.push_back(std::string(word) + "\t" + std::to_string(count));
  std::sort(lines.begin(), lines.end());
  return Joined(lines);
}

inline std::string ModelOfSort(const std::vector<std::string>& texts) {
  std::vector<std::string> lines;
  for (const std::string& text : texts)
    for (std::string& line : LinesOfText(text)) lines.push_back(std::move(line));
  std::sort(lines.begin(), lines.end());
  return Joined(lines);
}

// The lines that hold `pattern`, file by file.
inline std::string ModelOfGrep(const std::vector<std::string>& texts, const std::string& pattern) {
  std::vector<std::string> kept;
  for (const std::string& text : texts)
    for (std::string& line : LinesOfText(text))
      if (line.find(pattern) != std::string::npos) kept.push_back(std::move(line));
  return Joined(kept);
}

// The parts of an output folder, one after another in the order of their names.
inline std::string PartsInOrder(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("part-")) parts.push_back(entry.path());
  std::sort(parts.begin(), parts.end());
  std::string all;
  for (const fs::path& part : parts) all += ReadFile(part);
  return all;
}

// The same with its lines in byte order: for jobs that spread them by hash.
inline std::string SortedLines(const fs::path& folder) { return ModelOfSort({PartsInOrder(folder)}); }

}  // namespace ropewalk::cluster
