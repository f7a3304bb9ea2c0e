// A text as characters or as byte pairs: each sample is a stretch of it, and the label of each place is the token that comes next.
//
// Thread rule: functions on files.
#pragma once

#include <cstdint>
#include <string>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

// The vocabulary are the bytes that occur in the text, in their order. Samples are stretches of `length` characters, side by side; the last
// `held_out` of the text (0 to 1) is held out. Plain or compressed files. kUserError DATA04: too short for one sample on each side.
Result<DataSet> LoadText(const std::string& path, std::int64_t length, double held_out);

struct BytePairOptions {
  // A folder with GPT-2's files (Bpe::LoadFolder); empty: a vocabulary is learnt from what is not held out of the text, `tokens` of them at
  // most.
  std::string vocabulary;
  std::int64_t tokens = 5000;
  // Where SaveVocabulary() has put one that was learnt before: it is taken again, if it is there, whole, and has no more than `tokens`.
  std::string kept;
};

// The same in byte pairs (bpe.h). What is spelt as a special token of the vocabulary is that token. The text is cut between characters.
// DATA04; DATA02, DATA10: what is wrong with the vocabulary.
Result<DataSet> LoadBytePairs(const std::string& path, std::int64_t length, double held_out, const BytePairOptions& options);

}  // namespace ropewalk::mlrunner
