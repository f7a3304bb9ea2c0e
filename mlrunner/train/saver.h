// Saves beside the steps: the step thread copies what is to be written, a thread of the saver's own writes the copy.
//
//   step thread   ... 99 ─ Begin(100) ─ 100 ─ 101 ─ 102 ─ Take: 100 is safe ─ 103 ... 199 ─ Take, Begin(200) ─ 200 ...
//                            └ copies its slices
//   its thread                └─ writes, syncs, [all ranks: exchanges], commits, rotates ─┘
//
// One save is under way at most: whoever wants to begin the next waits for the one before, so that a disk slower than the steps slows them
// down and is not overtaken by them. What is under way holds one copy of what this rank writes.
//
// Owner: the trainer; it waits for what is under way when it is destroyed, so what an exchange waits for must have been freed before.
// Thread rule: methods on the step thread; `exchange` is called on the saver's, and nobody else may exchange meanwhile.
#pragma once

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/checkpoint_parts.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

class Saver {
 public:
  struct Options {
    storage::FileSystem* files = nullptr;  // outlives the saver
    std::string folder;
    std::int64_t keep = 1;
    std::int64_t stands_on = -1;  // as SaveOptions has it, of the first save
    std::uint32_t forming = 0;
    std::int32_t rank = 0;
    ExchangeBytes exchange;  // where all ranks write together; empty: this one writes alone
  };
  struct Outcome {
    std::int64_t step = 0;
    SavedCheckpoint saved;  // of rank 0
  };

  explicit Saver(Options options) : options_(std::move(options)) {}

  // Nothing may be under way. `about` has no tensors; `mine` are what this rank writes, or why it cannot: then none does.
  void Begin(Checkpoint about, Result<std::vector<StateSlice>> mine);
  bool IsUnderWay() const { return under_way_.valid(); }
  bool HasEnded() const;  // what is under way
  // What became of it: waits for it. CKPT01 and what SaveTogether says: it is not safe.
  Result<Outcome> Take();

 private:
  Options options_;
  std::future<Result<Outcome>> under_way_;  // waits for its thread when it goes
};

}  // namespace ropewalk::mlrunner
