// Samples: what a model learns from, by number, whatever they are read from. A sample is some named fields, each a small tensor:
//
//   kFeatures      features (F) real                        label () of classes
//   kImages        image (C, H, W) real                     label () of classes
//   kTokens        tokens (T) ids                           next (T) ids: the token that comes next at each place
//   kClicks        dense (D) real, ids (S) ids              click () real: 0 or 1
//   kMaskedTokens  tokens (T) ids, mask (T) real: 0 or 1    original (T) ids: the token that was there; it counts where the mask is 1
//   kNodes         what a family of graph models and its data agree on
//
// A model is of a family that learns from some of these kinds, data is of one that gives some (train/family.h).
//
// Owner: whoever loaded them. Thread rule: one thread at a time calls Prepare(), Fetch(), and Fill() behind it; a training calls the first
// on the rank's thread and the others on the one that makes its batches (train/batches.h). What needs no Fetch() may be read by any number
// of threads between two calls of Prepare().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::storage {
class FileSystem;
}

namespace ropewalk::mlrunner {

enum class SampleKind : std::uint8_t { kFeatures, kImages, kTokens, kClicks, kMaskedTokens, kNodes };

struct Field {
  std::string name;
  Dtype dtype = Dtype::kF32;       // kF32: real numbers, which come as kF64 where a job computes with these; kI32: whole numbers
  std::vector<std::int64_t> dims;  // of one sample
  std::int64_t classes = 0;        // kI32: they lie in [0, classes)
  friend bool operator==(const Field&, const Field&) = default;
};

// What is asked of a field: the values of the samples `ids`, one after the other.
struct FillCall {
  std::size_t field = 0;  // its place in fields()
  std::span<const std::int64_t> ids;
  std::int64_t epoch = 0;  // in which they are asked for: what is drawn anew each time (crops, masks) is a function of seed, epoch and id
  Dtype dtype = Dtype::kF32;  // the field's, or kF64 for real numbers
  void* rows = nullptr;
};

class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t count() const = 0;
  virtual const std::vector<Field>& fields() const = 0;  // the last one is what is learnt: its values are the labels

  // Which samples will be asked for until the next call: what does not lie in memory as a whole fetches them now.
  virtual Status Prepare(std::span<const std::int64_t>) { return {}; }
  // Which of them are filled in next, those of one batch: what is too much to be held for all of them (pictures) is read and decoded now,
  // and held until the next call. Errors name what is wrong with which file and sample.
  virtual Status Fetch(std::span<const std::int64_t>) { return {}; }
  virtual void Fill(const FillCall& call) const = 0;
  // How many labels the samples `ids` have together, also of samples that other ranks have prepared: what a step's loss is the mean of.
  virtual std::int64_t NumLabels(std::span<const std::int64_t> ids) const {
    std::int64_t labels = static_cast<std::int64_t>(ids.size());
    for (std::int64_t length : fields().back().dims) labels *= length;
    return labels;
  }
  // In words: "87.90% of 10000 labels right".
  virtual std::string_view labels_are() const { return "labels"; }
  // Of what they hold: two ranks that read different files find out by it.
  virtual std::uint64_t content_hash() const = 0;
  // Of the symbols that its ids stand for: a model that has learnt others takes each id for another symbol. 0: there are no ids.
  virtual std::uint64_t vocabulary_hash() const { return 0; }
  // Writes the vocabulary that was learnt as they were loaded into `folder`, which is made where it is not there; where none was learnt,
  // nothing. DATA11: it cannot be written.
  virtual Status SaveVocabulary(storage::FileSystem&, const std::string& /*folder*/) const { return {}; }
};

// Its place; -1: there is no such field.
inline std::ptrdiff_t FindField(const Samples& samples, std::string_view name) {
  const std::vector<Field>& fields = samples.fields();
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (fields[i].name == name) return static_cast<std::ptrdiff_t>(i);
  return -1;
}

struct DataSet {
  std::unique_ptr<Samples> training, held_out;
};

}  // namespace ropewalk::mlrunner
