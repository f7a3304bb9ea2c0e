// What `ropewalk bench collective` measures: one collective, by several algorithms, sizes and wires.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/collective/communicator.h"

namespace ropewalk::measure {

// Sizes are of the longest vector that a rank gives or gets, as nccl-tests count them: of an allgather what each rank has at its end, of a
// reduce-scatter what each has at its beginning.
inline constexpr std::int64_t kBytesMax = std::int64_t{16} << 30;
inline constexpr std::size_t kSizesMax = 100;
inline constexpr std::int64_t kIterationsMax = 10'000;

struct BenchJob {
  collective::Collective collective = collective::Collective::kAllreduce;
  std::int32_t ranks = 2;
  std::vector<std::int64_t> sizes;      // bytes
  std::vector<std::string> algorithms;  // "": the one that a communicator chooses
  std::vector<std::string> left_out;    // of the table's: names with the reason, for people
  collective::Dtype dtype = collective::Dtype::kF32;
  collective::ReduceOp op = collective::ReduceOp::kSum;
  std::vector<collective::Wire> wires = {collective::Wire::kByMachine};
  std::int32_t warmup = 3;
  std::int64_t iterations = 0;  // of each size and algorithm; 0: as many as fit into `seconds`
  double seconds = .1;
  collective::ChooseBy choose_by = collective::ChooseBy::kFixedSizes;
  bool check = true;
  std::string json, plot;  // files; empty: none
};

// The collective's name. "allreduce of f32, sum, 4 ranks".
std::string Title(const BenchJob& job);

}  // namespace ropewalk::measure
