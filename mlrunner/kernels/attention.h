// What the reference and the fast kernels of attention share: how its tensors lie, and which random numbers it draws.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "mlrunner/graph/graph.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {

// Of heads that lie one after the other, each q (places, width), k (keys, width) or (width, keys), v (keys, out_width).
struct AttentionForm {
  std::int64_t heads = 1, places = 0, keys = 0, width = 0, out_width = 0;
  bool transposed_keys = true;  // k is (keys, width)
  bool causal = false;
  double scale = 1;
  // Of dropout.
  double rate = 0;
  std::uint64_t draws = 0;             // whose numbers
  std::int64_t heads_of_a_sample = 1;  // dimension 0 of the weights counts samples
  // Of the mask, where there is one: where each head's begins, and how far its rows lie apart.
  std::vector<std::int64_t> mask_of_head;
  std::int64_t mask_row = 0;

  bool HasMask() const { return !mask_of_head.empty(); }
  // Keys that place t may look at are the first ones.
  std::int64_t KeysOf(std::int64_t place) const { return causal ? place + 1 : keys; }
  // The random numbers of a row of weights: of (key, sample), so many elements from the first one on.
  struct Draws {
    std::uint64_t key = 0, sample = 0, first = 0;
  };
  Draws DrawsOf(const RunContext& run, std::int64_t head, std::int64_t place) const;
};

// `mask`: null where there is none.
AttentionForm AttentionFormOf(const Op& op, const Dims& q, const Dims& v, const Dims* mask);

}  // namespace ropewalk::mlrunner
