// States that are cut over ranks, and checkpoints of them that all ranks have written, one after the other on one thread.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/checkpoint_parts.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner::testing {

// Bytes that tell tensors, places and steps apart.
inline Tensor RandomTensor(Random& random, Dtype dtype, const Dims& dims) {
  Tensor tensor{dtype, dims, std::vector<std::byte>(static_cast<std::size_t>(NumElements(dims)) * SizeOf(dtype))};
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
  return tensor;
}

// A slice, element by element: the plain model of CopySlice.
inline Tensor Cut(const Tensor& whole, const Slice& slice) {
  const std::size_t element = SizeOf(whole.dtype);
  Tensor tensor{whole.dtype, LengthsOf(slice), {}};
  const std::int64_t elements = NumElements(slice);
  for (std::int64_t i = 0; i < elements; ++i) {
    std::int64_t rest = i, from = 0, stride = 1;
    for (std::size_t d = slice.begin.size(); d-- > 0;) {
      const std::int64_t length = slice.end[d] - slice.begin[d];
      from += (slice.begin[d] + rest % length) * stride;
      rest /= length;
      stride *= whole.dims[d];
    }
    const auto at = whole.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(from) * element);
    tensor.bytes.insert(tensor.bytes.end(), at, at + static_cast<std::ptrdiff_t>(element));
  }
  return tensor;
}

// States, whole, and how they are cut over the ranks of a mesh.
struct CutStates {
  Mesh mesh;
  std::vector<LogicalState> states;
  std::map<std::string, Tensor> whole;

  void Add(std::string name, ShardingSpec sharding, Tensor tensor) {
    states.push_back({name, tensor.dtype, tensor.dims, std::move(sharding)});
    whole.emplace(std::move(name), std::move(tensor));
  }
  // What each rank writes.
  std::vector<std::vector<StateSlice>> Written(std::int32_t ranks, std::uint64_t spread_bytes = 0) const {
    auto writers = WritersOf(states, mesh, ranks, spread_bytes);
    EXPECT_TRUE(writers.ok()) << writers.status().ToString();
    std::vector<std::vector<StateSlice>> slices(static_cast<std::size_t>(ranks));
    if (!writers.ok()) return slices;
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
      for (const WrittenSlice& written : (*writers)[rank]) {
        const LogicalState& state = states[written.state];
        slices[rank].push_back({state.name, state.dims, written.slice, Cut(whole.at(state.name), written.slice)});
      }
    }
    return slices;
  }
};

// As SaveTogether does, one rank after the other.
inline Status SaveSlices(storage::FileSystem& files, const std::string& folder, const Checkpoint& about,
                         const std::vector<std::vector<StateSlice>>& slices, SaveOptions options) {
  for (std::size_t rank = 0; rank < slices.size(); ++rank) {
    const CheckpointWriter writer{.run = about.run, .forming = options.forming, .rank = static_cast<std::int32_t>(rank)};
    ASSIGN_OR_RETURN(CheckpointPart part, WriteCheckpointPart(files, folder, about.step, writer, slices[rank]));
    if (!part.file.empty()) options.parts.push_back(std::move(part));
  }
  return SaveCheckpoint(files, folder, about, options).status();
}

// The seed of a random test, which is in what it reports; given back by ROPEWALK_SEED.
inline std::uint64_t SeedOfTest() {
  const char* given = std::getenv("ROPEWALK_SEED");
  return given == nullptr ? std::uint64_t{20261130} : std::strtoull(given, nullptr, 10);
}

}  // namespace ropewalk::mlrunner::testing
