#include "mlrunner/train/recompute.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"

namespace ropewalk::mlrunner {
namespace {

bool IsForward(const Graph& graph, const Op& op) { return graph.region(op.region).kind == RegionKind::kForward; }

// Ops whose results leave their stretch of layers: these are kept, and all between them is made again.
std::set<const Op*> AtTheEnds(const Graph& graph, std::int32_t layers_a_stretch) {
  auto stretch = [&](const Op& op) { return op.provenance.layer < 0 ? -1 : op.provenance.layer / layers_a_stretch; };
  std::set<const Op*> ends;
  for (const Op& op : graph.ops) {
    if (!IsForward(graph, op)) continue;
    for (ValueId in : op.inputs) {
      const Op& maker = graph.op(graph.value(in).producer);
      if (stretch(maker) != stretch(op)) ends.insert(&maker);
    }
  }
  for (const NamedValue& output : graph.outputs) ends.insert(&graph.op(graph.value(output.value).producer));
  return ends;
}

// What costs much to make again, and what is small to keep: flags, which masks are.
bool IsWorthKeeping(const Graph& graph, const Op& op) {
  constexpr const OpDef* kCostly[] = {&kMatMul, &kConv2D, &kConv2DInputGrad, &kConv2DWeightGrad, &kAttention, &kCausalAttention, &kLstm,
                                      &kWhile,  &kCond};
  if (op.def->traits.random || std::find(std::begin(kCostly), std::end(kCostly), op.def) != std::end(kCostly)) return true;
  return std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId out) { return graph.value(out).type.dtype == Dtype::kBool; });
}

}  // namespace

Result<Graph> RecomputeAs(const Graph& graph, RecomputeMarks marks) {
  if (marks == RecomputeMarks::kNone) return graph;
  std::int32_t layers = 0;
  for (const Op& op : graph.ops) {
    if (IsForward(graph, op)) layers = std::max(layers, op.provenance.layer + 1);
  }
  const bool by_blocks = marks != RecomputeMarks::kSelective;
  if (by_blocks && layers == 0)
    return Status(Code::kUserError, "TRAIN08", "the model has no blocks to compute again", "its ops lie in no layers",
                  "train.recompute = \"selective\", or \"none\"");
  // With L layers in stretches of sqrt(L) as many ends are kept as layers of one stretch are alive at once.
  const auto root = static_cast<std::int32_t>(std::lround(std::sqrt(static_cast<double>(layers))));
  const std::set<const Op*> ends = AtTheEnds(graph, marks == RecomputeMarks::kRoots ? std::max(root, 1) : 1);
  return Recompute(graph, [&](const Op& op) {
    if (ends.contains(&op)) return false;
    return by_blocks ? op.provenance.layer >= 0 : !IsWorthKeeping(graph, op);
  });
}

}  // namespace ropewalk::mlrunner
