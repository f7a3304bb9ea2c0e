// How people see and type a job id: "j-" and at least three decimal digits. The same in the command, logs, pages and error messages.
// A worker is called by its name there, which it keeps when it joins again; its id stands beside it where it joins and in lists.
//
// Thread rule: pure functions.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace ropewalk {

inline std::string JobName(JobId job) {
  char text[24];
  std::snprintf(text, sizeof text, "j-%03llu", static_cast<unsigned long long>(job.value));
  return text;
}

// Counts within the master's life (its epoch, in the high half): w3.1 is the first that joined the third.
inline std::string WorkerName(WorkerId worker) {
  const std::string low = std::to_string(worker.value & 0xffffffffu);
  return worker.value >> 32 == 0 ? "w" + low : "w" + std::to_string(worker.value >> 32) + "." + low;
}

// The id behind "j-713" (or "713"); nullopt for anything else.
inline std::optional<JobId> ParseJobName(std::string_view name) {
  if (name.starts_with("j-")) name.remove_prefix(2);
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc() || end != name.data() + name.size() || value == 0) return std::nullopt;
  return JobId{value};
}

}  // namespace ropewalk
