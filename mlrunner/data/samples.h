// Samples: what a model learns from, by number, whatever they are read from.
//
// Owner: whoever loaded them. Thread rule: Prepare() belongs to one thread; between its calls any number of threads may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t count() const = 0;
  virtual std::vector<std::int64_t> input_dims() const = 0;  // of one sample: {784}; {T}
  virtual std::vector<std::int64_t> label_dims() const = 0;  // {}; {T}
  virtual std::int64_t classes() const = 0;                  // labels lie in [0, classes)
  virtual bool inputs_are_ids() const = 0;                   // of a vocabulary of `classes` symbols; else they are real numbers

  // Which samples will be asked for until the next call: what does not lie in memory as a whole fetches them now.
  virtual Status Prepare(std::span<const std::int64_t>) { return {}; }
  // Inputs of the samples `ids`, one after the other. `dtype`: kI32 for ids, else kF32 or kF64.
  virtual void Inputs(std::span<const std::int64_t> ids, Dtype dtype, void* rows) const = 0;
  virtual void Labels(std::span<const std::int64_t> ids, std::int32_t* rows) const = 0;
  // Of what they hold: two ranks that read different files find out by it.
  virtual std::uint64_t content_hash() const = 0;
  // Of the symbols that its ids stand for: a model that has learnt others takes each id for another symbol. 0: there are no ids.
  virtual std::uint64_t vocabulary_hash() const { return 0; }
};

struct DataSet {
  std::unique_ptr<Samples> training, held_out;
};

}  // namespace ropewalk::mlrunner
