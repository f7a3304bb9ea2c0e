// Where the ranks of a job's gangs ran, and which lines of the job's logs are theirs. A rank is a thread of an executor, and what it prints
// is its executor's output: ranks of one machine share it. The event log says which executor runs which rank, in every forming.
//
//   event log        gang_formed, task_started {task 3, executor 5}       rank 3 ─▶ executor 5
//   executor.log     [5] warning: ...                                     its lines
//   stderr           all of it, if executor 5 was the driver
//
// Thread rule: a value.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace ropewalk::cli {

class RankLog {
 public:
  explicit RankLog(std::uint32_t rank) : rank_(rank) {}

  // More of the event log; lines may come in pieces.
  void AddEvents(std::string_view bytes);

  // Of more of the executors' log: the lines of executors that the rank ran in. A line is given back when it is whole.
  std::string Filter(std::string_view bytes);

  bool found() const { return !executors_.empty(); }
  bool was_driver() const;  // one of its executors: then its lines are in the job's stderr, too
  // "rank 3 ran in executor 5 on w1.2 (forming 0), with ranks 0 to 2; ..."; a line for each place.
  std::string Places() const;

 private:
  struct Place {
    std::uint64_t worker = 0;
    std::uint64_t forming = 0;           // the last one
    std::set<std::uint64_t> neighbours;  // other ranks in it
  };
  void Event(std::string_view line);
  const std::uint32_t rank_;
  std::string event_, line_;                                            // begun, not ended
  std::map<std::uint64_t, std::uint64_t> gangs_;                        // stage -> forming
  std::map<std::uint64_t, std::map<std::uint64_t, std::uint64_t>> at_;  // stage -> rank -> executor, of the last forming
  std::map<std::uint64_t, Place> executors_;                            // of this rank
  std::set<std::uint64_t> drivers_;
};

}  // namespace ropewalk::cli
