#include "mlrunner/train/buckets.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

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

std::int64_t Ranks(const Builder& b, const std::string& group) {
  for (const Mesh::Axis& axis : b.graph().mesh.axes)
    if (axis.name == group) return axis.size;
  return 1;
}

// Rows of a table against the whole of it: what a rank gets of the others, but for the common factor (ranks - 1) / ranks.
struct Weighed {
  std::int64_t rows_bytes = 0, table_bytes = 0;
  bool KeepsRows() const { return rows_bytes < table_bytes; }
  std::string ToString(const std::string& name) const {
    return KeepsRows() ? fmt::format("ranks, rows of {}: {} bytes, not {}", name, rows_bytes, table_bytes)
                       : fmt::format("ranks, all of {}: {} bytes, its rows {}", name, table_bytes, rows_bytes);
  }
};
Weighed Weigh(const IndexedRows& g, const Parameter& table, std::int64_t ranks, const Bindings& bindings) {
  auto bytes = [&](const Value& value) {
    return NumElements(Evaluate(value.shape(), bindings)) * static_cast<std::int64_t>(SizeOf(value.dtype()));
  };
  return {.rows_bytes = ranks * (bytes(g.indices) + bytes(g.rows)), .table_bytes = 2 * bytes(table)};
}

}  // namespace

std::vector<Gradient> SumOverRanks(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                   std::vector<Value>* beside, const BucketOptions& options) {
  const Scope sum_in = options.sum_in.value_or(Backward());
  std::vector<Gradient> sums(gradients.size());
  // Scalars first: they are there before any gradient.
  const std::size_t scalars = beside->size();
  std::vector<Value> values(*beside);
  std::vector<std::size_t> dense;  // of which parameters the values behind the scalars are
  for (std::size_t i = 0; i < gradients.size() && b.status().ok(); ++i) {
    Scope scope = sum_in;
    if (gradients[i].IsRows() && !options.bindings.empty()) {
      const std::string name = b.graph().state(parameters[i].state).name;
      const Weighed weighed = Weigh(gradients[i].rows(), parameters[i], Ranks(b, options.group), options.bindings);
      scope.module = weighed.ToString(name);
      if (weighed.KeepsRows()) {
        auto guard = b.With(scope);
        const IndexedRows& g = gradients[i].rows();
        sums[i] = IndexedRows{AllGather(g.indices, b.NewChannel(name + "/indices"), options.group, 0),
                              AllGather(g.rows, b.NewChannel(name + "/rows"), options.group, 0), g.num_rows};
        continue;
      }
    }
    auto guard = b.With(scope);
    values.push_back(gradients[i].Dense());
    dense.push_back(i);
  }
  if (!b.status().ok()) return gradients;
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin() + static_cast<std::ptrdiff_t>(scalars), order.end(), [&](std::size_t x, std::size_t y) {
    return b.graph().value(values[x].id).producer.value < b.graph().value(values[y].id).producer.value;
  });

  std::vector<Value> summed(values.size());
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
      const std::size_t reader = std::max(i, std::min(scalars, at - 1));
      const Parameter& parameter = reader < scalars ? parameters.front() : parameters[dense[order[reader] - scalars]];
      auto scope = b.With(options.read_in.value_or(UpdateScope(b, parameter)));
      const Value& member = values[order[i]];
      Dim end = offset + NumElements(member.shape());
      summed[order[i]] = Reshape(SliceAxis(sum, 0, offset, end), member.shape());
      offset = end;
    }
  }
  std::copy(summed.begin(), summed.begin() + static_cast<std::ptrdiff_t>(scalars), beside->begin());
  for (std::size_t i = 0; i < dense.size(); ++i) sums[dense[i]] = summed[scalars + i];
  return sums;
}

}  // namespace ropewalk::mlrunner
