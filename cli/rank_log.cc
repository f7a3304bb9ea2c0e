#include "cli/rank_log.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/job_name.h"

namespace ropewalk::cli {
namespace {

// Of a line of the event log, which is ours: {"event":"task_started","t_ms":12,"stage":3,...}. In texts quotes are escaped.
std::optional<std::uint64_t> NumberIn(std::string_view line, const std::string& key) {
  const std::string name = "\"" + key + "\":";
  const std::size_t at = line.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const char* begin = line.data() + at + name.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), number);
  return error == std::errc() && end != begin ? std::optional(number) : std::nullopt;
}

bool Is(std::string_view line, const std::string& event) { return line.starts_with("{\"event\":\"" + event + "\","); }

// Calls `take` with each whole line; what is left waits in `begun`.
template <class Take>
void EachLine(std::string* begun, std::string_view bytes, Take take) {
  begun->append(bytes);
  std::size_t at = 0;
  for (std::size_t end = begun->find('\n'); end != std::string::npos; at = end + 1, end = begun->find('\n', at))
    take(std::string_view(*begun).substr(at, end - at));
  begun->erase(0, at);
}

}  // namespace

void RankLog::AddEvents(std::string_view bytes) {
  EachLine(&event_, bytes, [this](std::string_view line) { Event(line); });
}

void RankLog::Event(std::string_view line) {
  const auto stage = NumberIn(line, "stage"), executor = NumberIn(line, "executor");
  if (Is(line, "driver_named") && executor) drivers_.insert(*executor);
  if (Is(line, "gang_formed") && stage) {
    gangs_[*stage] = NumberIn(line, "epoch").value_or(0);
    at_[*stage].clear();
  }
  const auto rank = NumberIn(line, "task");
  if (!Is(line, "task_started") || !stage || !executor || !rank || !gangs_.contains(*stage)) return;
  at_[*stage][*rank] = *executor;
  if (*rank == rank_) {
    Place& place = executors_[*executor];
    place.worker = NumberIn(line, "worker").value_or(0);
    place.forming = gangs_[*stage];
    place.neighbours.clear();
  }
  const auto mine = at_[*stage].find(rank_);
  if (mine == at_[*stage].end()) return;
  for (const auto& [other, of_other] : at_[*stage])
    if (other != rank_ && of_other == mine->second) executors_[mine->second].neighbours.insert(other);
}

std::string RankLog::Filter(std::string_view bytes) {
  std::string kept;
  EachLine(&line_, bytes, [&](std::string_view line) {
    std::uint64_t executor = 0;
    if (!line.starts_with('[')) return;
    const auto [end, error] = std::from_chars(line.data() + 1, line.data() + line.size(), executor);
    if (error != std::errc() || !executors_.contains(executor)) return;
    kept += std::string(line) + "\n";
  });
  return kept;
}

bool RankLog::was_driver() const {
  return std::any_of(executors_.begin(), executors_.end(), [this](const auto& entry) { return drivers_.contains(entry.first); });
}

std::string RankLog::Places() const {
  std::string text;
  for (const auto& [executor, place] : executors_) {
    text +=
        fmt::format("rank {} ran in executor {} on {} (forming {})", rank_, executor, WorkerName(WorkerId{place.worker}), place.forming);
    if (!place.neighbours.empty()) text += fmt::format(", whose log it shares with rank {}", fmt::join(place.neighbours, ", "));
    if (drivers_.contains(executor)) text += "; that was the driver, whose log is the job's stderr";
    text += "\n";
  }
  return text;
}

}  // namespace ropewalk::cli
