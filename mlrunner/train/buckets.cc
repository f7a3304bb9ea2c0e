#include "mlrunner/train/buckets.h"

#include <algorithm>
#include <numeric>

#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"

namespace ropewalk::mlrunner {
namespace {

Scope Backward() {
  Scope scope;
  scope.module = "ranks";
  scope.role = Role::kCommunication;
  scope.phase = Phase::kBackward;
  scope.region = RegionKind::kBackward;
  return scope;
}

std::size_t BytesOf(const Value& value) {
  return static_cast<std::size_t>(NumElements(value.shape()).Constant().value_or(0)) * SizeOf(value.dtype());
}

}  // namespace

std::vector<Gradient> SumOverRanks(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                   std::vector<Value>* beside, const BucketOptions& options) {
  // Scalars first: they are there before any gradient.
  const std::size_t scalars = beside->size();
  const Scope sum_in = options.sum_in.value_or(Backward());
  std::vector<Value> values(*beside);
  {
    auto scope = b.With(sum_in);
    for (const Gradient& gradient : gradients) values.push_back(gradient.Dense());
  }
  if (!b.status().ok()) return gradients;
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin() + static_cast<std::ptrdiff_t>(scalars), order.end(), [&](std::size_t x, std::size_t y) {
    return b.graph().value(values[x].id).producer.value < b.graph().value(values[y].id).producer.value;
  });

  std::vector<Value> sums(values.size());
  std::size_t at = 0;
  for (int index = 0; at < order.size() && b.status().ok(); ++index) {
    const std::size_t limit = index == 0 ? std::min(options.first_bytes, options.bytes) : options.bytes;
    const std::size_t first = at;
    std::vector<Value> members;
    std::size_t bytes = 0;
    // At least one gradient, however small a bucket shall be.
    while (at < order.size() && (bytes < limit || at == scalars) && values[order[at]].dtype() == values[order[first]].dtype()) {
      members.push_back(values[order[at]]);
      bytes += BytesOf(members.back());
      ++at;
    }
    std::string name = "bucket" + std::to_string(index);
    Value sum;
    {
      auto scope = b.With(sum_in);
      Value bucket = b.EmitOne(kBucket, members);
      if (!bucket.valid()) break;
      b.mutable_graph().alias_groups.push_back({name, {bucket.id}, {}, true});
      sum = AllReduce(bucket, b.NewChannel(name), options.group);
    }
    Dim offset = 0;
    for (std::size_t i = first; i < at; ++i) {
      // Scalars are read where the first gradient beside them is.
      const Parameter& parameter = parameters[order[std::max(i, std::min(scalars, at - 1))] - scalars];
      auto scope = b.With(options.read_in.value_or(UpdateScope(b, parameter)));
      const Value& member = values[order[i]];
      Dim end = offset + NumElements(member.shape());
      sums[order[i]] = Reshape(SliceAxis(sum, 0, offset, end), member.shape());
      offset = end;
    }
  }
  std::copy(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(scalars), beside->begin());
  return {sums.begin() + static_cast<std::ptrdiff_t>(scalars), sums.end()};
}

}  // namespace ropewalk::mlrunner
