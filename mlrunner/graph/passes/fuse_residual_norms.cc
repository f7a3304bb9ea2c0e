// Sums before norms, and what is added to the gradients of norms.
#include <algorithm>
#include <map>
#include <set>

#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/chains.h"
#include "mlrunner/graph/passes/fuse_ops.h"
#include "mlrunner/graph/passes/rewriter.h"
#include "mlrunner/graph/residual_norm.h"

namespace ropewalk::mlrunner {
namespace {

// An op that stands where another one stood, for several; outputs[i] is in the place of `replaces[i]`.
struct Fused {
  const OpDef* def = nullptr;
  std::vector<ValueId> inputs, replaces;
  const Op* norm = nullptr;  // whose attributes and origin it has
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), chains_(graph) {}

  void Find() {
    for (const Op& op : graph_.ops) {
      if (op.half != Half::kWhole) continue;
      if (op.def == &kLayerNorm || op.def == &kRmsNorm) Forward(op);
      if (op.def == &kLayerNormGrad || op.def == &kRmsNormGrad) Backward(op);
    }
  }

  std::map<const Op*, Fused> at;  // where it goes
  std::set<const Op*> gone;

 private:
  // An Add of two tensors of the result's type.
  const Op* SumAt(ValueId value) const {
    const Op* add = chains_.Maker(value, kAdd);
    const bool alike = add != nullptr && chains_.TypeOf(add->inputs[0]) == chains_.TypeOf(value) &&
                       chains_.TypeOf(add->inputs[1]) == chains_.TypeOf(value) && graph_.value(value).layout.IsRowMajor();
    return alike && add->inputs[0] != add->inputs[1] && !gone.contains(add) && !at.contains(add) ? add : nullptr;
  }
  bool IsUsedBefore(ValueId value, const Op& op) const {
    const std::vector<const Op*> users = chains_.Users(value);
    return std::any_of(users.begin(), users.end(), [&](const Op* user) { return user < &op; });  // they lie in one vector
  }

  void Forward(const Op& norm) {
    const ValueId s = norm.inputs[0];
    const Op* sum = SumAt(s);
    // The sum comes into being where the norm stands.
    if (sum == nullptr || !Chains::AreTogether(*sum, norm) || IsUsedBefore(s, norm)) return;
    const bool rms = norm.def == &kRmsNorm;
    Fused fused{rms ? &kAddRmsNorm : &kAddLayerNorm, {sum->inputs[0], sum->inputs[1]}, {norm.outputs[0], s}, &norm};
    fused.inputs.insert(fused.inputs.end(), norm.inputs.begin() + 1, norm.inputs.end());
    fused.replaces.insert(fused.replaces.end(), norm.outputs.begin() + 1, norm.outputs.end());
    // A bias of what is added comes along: alone it would be a pass over memory of its own.
    if (const Op* biased = chains_.Maker(sum->inputs[1], kAdd);
        biased != nullptr && Chains::AreTogether(*biased, norm) && chains_.Users(sum->inputs[1]).size() == 1 &&
        !chains_.IsVisible(sum->inputs[1]) && chains_.TypeOf(biased->inputs[0]) == chains_.TypeOf(s) &&
        chains_.TypeOf(biased->inputs[1]) == chains_.TypeOf(norm.inputs[1])) {
      fused.inputs[1] = biased->inputs[0];
      fused.inputs.push_back(biased->inputs[1]);
      gone.insert(biased);
    }
    gone.insert(sum);
    at[&norm] = std::move(fused);
  }

  void Backward(const Op& norm) {
    const ValueId ds = norm.outputs[0];
    const std::vector<const Op*> users = chains_.Users(ds);
    if (users.size() != 1 || chains_.IsVisible(ds)) return;
    const Op* sum = SumAt(users[0]->outputs[0]);
    if (sum != users[0] || !Chains::AreTogether(*sum, norm)) return;
    // The op goes where what is added is there: the other gradients come into being there, too.
    for (std::size_t i = 1; i < norm.outputs.size(); ++i) {
      if (IsUsedBefore(norm.outputs[i], *sum)) return;
    }
    Fused fused{norm.def == &kRmsNormGrad ? &kAddRmsNormGrad : &kAddLayerNormGrad, norm.inputs, {sum->outputs[0]}, &norm};
    fused.inputs.push_back(sum->inputs[sum->inputs[0] == ds ? 1 : 0]);
    fused.replaces.insert(fused.replaces.end(), norm.outputs.begin() + 1, norm.outputs.end());
    gone.insert(&norm);
    at[sum] = std::move(fused);
  }

  const Graph& graph_;
  Chains chains_;
};

}  // namespace

Graph FuseResidualNorms(const Graph& graph) {
  Finder finder(graph);
  finder.Find();
  if (finder.at.empty()) return graph;
  Rewriter rewriter(graph);
  for (const Op& op : graph.ops) {
    auto found = finder.at.find(&op);
    if (found == finder.at.end()) {
      if (!finder.gone.contains(&op)) rewriter.Copy(op);
      continue;
    }
    const Fused& fused = found->second;
    Op made = *fused.norm, like = *fused.norm;
    made.def = fused.def;
    made.inputs.clear();
    for (ValueId in : fused.inputs) made.inputs.push_back(rewriter.At(in));
    like.outputs = fused.replaces;
    rewriter.Put(std::move(made), like);
  }
  return rewriter.Finish();
}

}  // namespace ropewalk::mlrunner
