#include "mlrunner/kernels/bound_lengths.h"

#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/op_def.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kBytesMax = std::int64_t{1} << 47;  // what a process can address

// The padding of blocked layouts (a few bits) and sums over the values of a graph stay far below 2^63, since 2^47 does.
bool HasAddresses(const Dims& dims, Dtype dtype) {
  auto bytes = static_cast<std::int64_t>(SizeOf(dtype));
  for (std::int64_t dim : dims) {
    // Lengths of 0 count as 1: strides are products of the others.
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(dim, 1), &bytes) || bytes > kBytesMax) return false;
  }
  return true;
}

}  // namespace

Status CheckLengths(const Graph& graph, ValueId value, const Bindings& bindings) {
  const ValueInfo& info = graph.value(value);
  Dims dims = Evaluate(info.type.shape, bindings);
  const bool below = std::any_of(dims.begin(), dims.end(), [](std::int64_t dim) { return dim < 0; });
  if (!below && HasAddresses(dims, info.type.dtype)) return {};
  const Op& op = graph.op(info.producer);
  const Location& where = op.provenance.where;
  return Status(Code::kUserError, "RUN04",
                fmt::format("{}{} makes a tensor of {} {}", where.line > 0 ? fmt::format("{}:{}: ", where.file, where.line) : "",
                            op.def->name, ToString(dims), Name(info.type.dtype)),
                fmt::format("its shape {} has {} with the numbers that are bound", ToString(info.type.shape, graph.symbols),
                            below ? "a length below 0" : "more bytes than memory has addresses"),
                "bind others, or write lengths that are possible for all that the symbols may be");
}

Status CheckLengths(const Graph& graph, const Bindings& bindings) {
  for (const Op& op : graph.ops) {
    for (ValueId out : op.outputs) RETURN_IF_ERROR(CheckLengths(graph, out, bindings));
    for (const auto& body : op.bodies) RETURN_IF_ERROR(CheckLengths(*body, bindings));
  }
  return {};
}

}  // namespace ropewalk::mlrunner
