// BERT: an encoder of post-norm blocks, after Devlin et al. 2019: tables of symbols, places and segments, attention in both directions,
// GELU in its erf form, and a map of the first place for the whole sequence (the pooler).
//
// Attention is written in primitives, as in gpt.h.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

// The members begin as BERT-base has them.
struct BertShape {
  std::int64_t vocabulary = 30522;
  std::int64_t places = 512;  // that sequences may have
  std::int64_t segments = 2;
  std::int64_t width = 768;  // C: a multiple of heads
  std::int64_t heads = 12;
  std::int64_t layers = 12;
  std::int64_t inner = 3072;
  double dropout = 0;  // of embeddings, attention weights, and what each half of a block adds; .1 in the paper
};
// Sequences (B, T), T a number of at most `places`.
struct BertInputs {
  Value ids;       // i32 or i64
  Value segments;  // the same; not valid(): all are of segment 0
  Value mask;      // f32: 1 where a place may be looked at, 0 where it only fills a sequence up; not valid(): all may
};
struct BertResult {
  Value hidden;  // (B, T, C)
  Value pooled;  // (B, C)
};
BertResult BertEncoder(Builder& b, Layers& m, const BertShape& shape, const BertInputs& in);

// -> logits (B, classes) of whole sequences
Model BertClassifier(Builder& b, const BertShape& shape, std::int64_t classes, const BertInputs& in);
// -> logits (B, T, vocabulary): of the symbol that was at each place before it was masked; the last map is the table of symbols
Model BertMaskedLanguage(Builder& b, const BertShape& shape, const BertInputs& in);

}  // namespace ropewalk::mlrunner
