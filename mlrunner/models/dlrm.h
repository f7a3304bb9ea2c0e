// DLRM: a recommendation model (Naumov et al. 2019): dense features go through a bottom perceptron, categories through tables of vectors,
// the products of all pairs of those vectors through a top perceptron to one logit.
//
// The tables lie one after the other in one parameter, so that one op reads them all and one update touches the rows that were read; an id
// is of its own table, and refused where that does not have it. Its loss is BinaryCrossEntropy.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <vector>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct DlrmShape {
  std::vector<std::int64_t> tables = std::vector<std::int64_t>(26, 10000);  // rows of each
  std::int64_t width = 16;                                                  // of the vectors
  std::vector<std::int64_t> bottom = {512, 256, 64};                        // before its last layer, which gives a vector
  std::vector<std::int64_t> top = {512, 256};                               // before the logit
};

// dense (B, features), ids (B, tables) or bags of K (B, tables, K), which are added up -> logits (B)
Model Dlrm(Builder& b, const DlrmShape& shape, const Value& dense, const Value& ids);

}  // namespace ropewalk::mlrunner
