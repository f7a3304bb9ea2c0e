// Tokens of which some are hidden, as BERT learns from them (Devlin et al. 2019, 3.1): of the places of a sample a part is asked for, and
// of these 80% hold the mask, 10% a token that is drawn from all, 10% what was there.
//
//   the rope is tarred  ▸  tokens: the [MASK] is tarred    mask: 0 1 0 0    original: the rope is tarred
//
// Which places, and what stands there, is drawn anew each epoch from (seed, epoch, sample), whatever the ranks. So many places are asked
// for in every sample as the part gives, rounded, and one at least: every sample counts alike.
//
// Thread rule: as that of samples.
#pragma once

#include <cstdint>
#include <memory>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

struct MaskOptions {
  double part = .15;  // of the places, above 0
  std::uint64_t seed = 0;
  bool is_held_out = false;  // masked in its own way, the same one each time
};

// kMaskedTokens of `tokens`, which are kTokens. There is one token more than theirs, the last one: the mask.
std::unique_ptr<Samples> MaskTokens(std::unique_ptr<Samples> tokens, const MaskOptions& options);
// The same of both parts.
DataSet MaskTokens(DataSet tokens, MaskOptions options);

}  // namespace ropewalk::mlrunner
