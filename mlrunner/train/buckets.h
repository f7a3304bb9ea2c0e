// Gradients of data-parallel ranks, summed in buckets: some gradients side by side in one vector that one allreduce adds up over the ranks
// (Li et al. 2020). A bucket can go as soon as the last of its gradients is computed, while backward goes on.
//
// Thread rule: as the builder's.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

struct BucketOptions {
  std::string group = "data";         // the mesh axis to sum over
  std::size_t bytes = 1 << 20;        // a bucket is full when it holds that much
  std::size_t first_bytes = 1 << 18;  // the first one is sent sooner
  // Where buckets are filled and summed, if not in backward; where parts of the sums are taken, if not in the updates that need them.
  std::optional<Scope> sum_in, read_in;
  // What the symbols of the graph will be, to know how many rows of a table a step reads. Empty: tables are summed whole.
  Bindings bindings{};
};

// The sums over the ranks of the gradients of `parameters`, in their order. `beside` are scalars of the same element type that travel in
// the first bucket (the loss): they are replaced by their sums. Buckets are filled in the order in which backward makes the gradients. Each
// has a channel of its own, "bucket0", "bucket1", ...: several may be on their way at once. A parameter's part of the sum is taken in its
// update region: what is waited for there holds up no other update.
//
// What is rows of a table stays rows, where those of all ranks are fewer bytes than a sum of the whole table moves (the table twice): ranks
// gather each other's indices and rows, in the order of the ranks, and nothing is added up before the update. Where they are more the table
// is summed whole. The modules of the ops say which it is, with both numbers (ExplainText). All other gradients are dense.
std::vector<Gradient> SumOverRanks(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                   std::vector<Value>* beside, const BucketOptions& options);

}  // namespace ropewalk::mlrunner
