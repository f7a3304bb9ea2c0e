// Mixed precision as a rewrite (Micikevicius et al. 2018): products of 16 bits, everything that adds up in f32.
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/passes/rewriter.h"

namespace ropewalk::mlrunner {
namespace {

// How an op takes part. What is in none of the lists stays as it is, in f32: norms and other statistics, softmax and losses, reductions,
// exponentials, recurrences, tables, sums over ranks, updates.
enum class Part : std::uint8_t {
  kStays,
  kProduct,  // takes numbers of 16 bits, sums in f32
  kFollows,  // elementwise: computes in f32 and rounds its result, where what it takes was of 16 bits already
  kMoves     // changes no number: takes and gives what there is
};

constexpr std::array kProducts = {&kMatMul, &kConv2D, &kConv2DInputGrad, &kConv2DWeightGrad};
constexpr std::array kFollowers = {&kAdd,  &kSub,     &kMul,  &kDiv,  &kMaximum,  &kMinimum, &kSelect,     &kNeg,
                                   &kTanh, &kSigmoid, &kRelu, &kGelu, &kGeluGrad, &kGeluErf, &kGeluErfGrad};
constexpr std::array kMovers = {&kReshape, &kTranspose, &kBroadcastTo,   &kSlice,    &kPad,
                                &kConcat,  &kMaxPool2D, &kMaxPool2DGrad, &kIdentity, &kStopGradient};

Part PartOf(const Op& op) {
  auto is_in = [&](const auto& list) { return std::find(list.begin(), list.end(), op.def) != list.end(); };
  if (op.half != Half::kWhole) return Part::kStays;
  return is_in(kProducts) ? Part::kProduct : is_in(kFollowers) ? Part::kFollows : is_in(kMovers) ? Part::kMoves : Part::kStays;
}

class Autocaster {
 public:
  Autocaster(const Graph& graph, Dtype low) : graph_(graph), low_(low), rewriter_(graph), lows_(graph.values.size()) {
    FindCandidates();
    FindRounded();
  }

  Graph Run() {
    for (std::uint32_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (!candidate_[i]) {
        Put(op);
      } else if (PartOf(op) == Part::kFollows) {
        Put(op);
        if (rounded_[i]) Round(op.outputs[0], op);
      } else {
        PutNarrow(i);
      }
    }
    // What is seen from outside keeps its type.
    for (const auto* list : {&graph_.outputs, &graph_.taps}) {
      for (const NamedValue& named : *list) Widen(named.value);
    }
    for (const AliasGroup& group : graph_.alias_groups) {
      for (ValueId value : group.values) Widen(value);
    }
    return rewriter_.Finish();
  }

 private:
  bool IsF32(ValueId value) const { return graph_.value(value).type.dtype == Dtype::kF32; }
  const Op& Maker(ValueId value) const { return graph_.op(graph_.value(value).producer); }
  bool IsCandidate(ValueId value) const { return candidate_[graph_.value(value).producer.value]; }
  // 0 and 1, which every type has.
  bool IsFlags(ValueId value) const {
    const Op& maker = Maker(value);
    return maker.def == &kCast && graph_.value(maker.inputs[0]).type.dtype == Dtype::kBool;
  }

  // Products, and what computes from their results alone: numbers, biases and whatever else is repeated along the result apart.
  void FindCandidates() {
    candidate_.assign(graph_.ops.size(), false);
    for (std::uint32_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      const Part part = PartOf(op);
      if (part == Part::kStays || !IsF32(op.outputs[0])) continue;
      const Shape& shape = graph_.value(op.outputs[0]).type.shape;
      bool any = false, all = true;
      for (ValueId in : op.inputs) {
        if (!IsF32(in)) continue;
        any = any || IsCandidate(in);
        const bool is_whole = part != Part::kFollows || graph_.value(in).type.shape == shape;
        all = all && (IsCandidate(in) || !is_whole || IsFlags(in));
      }
      candidate_[i] = part == Part::kProduct || (any && all);
    }
  }

  // Of these, what some product takes, at once or behind others: only that is worth rounding. All else is written in f32.
  void FindRounded() {
    rounded_.assign(graph_.ops.size(), false);
    const std::vector<std::vector<OpId>> users = graph_.Users();
    for (std::size_t i = graph_.ops.size(); i-- > 0;) {
      if (!candidate_[i]) continue;
      for (OpId user : users[graph_.ops[i].outputs[0].value])
        rounded_[i] = rounded_[i] || PartOf(graph_.op(user)) == Part::kProduct || rounded_[user.value];
    }
  }

  // A value like `like`, of `type`.
  ValueId Add(Op op, const TensorType& type, ValueId like) {
    const OpId id = rewriter_.Add(std::move(op), {type});
    const ValueId made = rewriter_.graph().op(id).outputs[0];
    const ValueInfo& from = graph_.value(like);
    ValueInfo& info = rewriter_.graph().value(made);
    info.logical = from.logical;
    info.sharding = from.sharding;
    info.name = from.name;
    return made;
  }
  ValueId Cast(ValueId from, Dtype to, ValueId like, RegionId region, const Provenance& provenance) {
    Op cast;
    cast.def = &kCast;
    cast.inputs = {from};
    cast.attrs = {{Attr::kDtype, static_cast<std::int64_t>(to)}};
    cast.region = region;
    cast.provenance = provenance;
    return Add(std::move(cast), {to, graph_.value(like).type.shape}, like);
  }

  // The value as f32, for `user`. A chain of elementwise ops is one op in the end, so there each user has a cast of its own, which costs no
  // memory; others of one region share one. Not those of two regions: it would be kept from forward to backward, and the narrow one is.
  ValueId Wide(ValueId value, const Op& user) {
    const ValueId low = lows_[value.value];
    if (!IsF32(value) || !low.valid() || !IsRounded(value)) return rewriter_.At(value);
    if (user.def->traits.elementwise) return Cast(low, Dtype::kF32, value, user.region, user.provenance);
    ValueId& wide = wides_[{value, user.region}];
    if (!wide.valid()) wide = Cast(low, Dtype::kF32, value, user.region, user.provenance);
    return wide;
  }
  bool IsRounded(ValueId value) const { return rounded_[graph_.value(value).producer.value]; }

  // The value of 16 bits, for `user`: of each value one.
  ValueId Narrow(ValueId value, const Op& user) {
    ValueId& low = lows_[value.value];
    if (low.valid()) return low;
    const Op& maker = Maker(value);
    if (maker.def == &kRead && IsFirstVersionOfParameter(maker)) return low = NarrowParameter(value, maker);
    // Where it is made, so that backward finds it too.
    const bool together = maker.region == user.region;
    return low = Cast(rewriter_.At(value), low_, value, maker.region, together ? user.provenance : maker.provenance);
  }

  bool IsFirstVersionOfParameter(const Op& read) const {
    const StateId state = graph_.value(read.inputs[0]).state;
    return state.valid() && graph_.state(state).kind == StateKind::kParameter && graph_.state(state).first == read.inputs[0];
  }
  // In a region that is run once a step, however many micro-batches there are.
  ValueId NarrowParameter(ValueId value, const Op& read) {
    const std::int32_t stage = graph_.region(read.region).stage;
    if (!once_.contains(stage)) once_[stage] = rewriter_.graph().RegionOf(RegionKind::kForward, stage, graph_.value(read.inputs[0]).state);
    Op again = read;
    again.inputs[0] = rewriter_.At(read.inputs[0]);
    again.region = once_[stage];
    const Provenance provenance = again.provenance;
    return Cast(Add(std::move(again), graph_.value(value).type, value), low_, value, once_[stage], provenance);
  }

  // The op as it is, on f32 numbers.
  void Put(const Op& op) {
    Op copy = op;
    for (ValueId& in : copy.inputs) in = Wide(in, op);
    rewriter_.Put(std::move(copy), op);
  }
  void Round(ValueId value, const Op& op) { lows_[value.value] = Cast(rewriter_.At(value), low_, value, op.region, op.provenance); }

  // A product, or an op that moves numbers, on those of 16 bits.
  void PutNarrow(std::uint32_t i) {
    const Op& op = graph_.ops[i];
    const bool is_product = PartOf(op) == Part::kProduct, rounds = rounded_[i];
    if (!is_product && !rounds) return Put(op);
    Op copy = op;
    for (ValueId& in : copy.inputs) in = IsF32(in) ? Narrow(in, op) : rewriter_.At(in);
    const Dtype dtype = rounds ? low_ : Dtype::kF32;
    if (is_product) copy.attrs.Set(Attr::kDtype, static_cast<std::int64_t>(dtype));
    const ValueId value = op.outputs[0], made = Add(std::move(copy), {dtype, graph_.value(value).type.shape}, value);
    if (rounds) {
      lows_[value.value] = made;
    } else {
      rewriter_.Map(value, made);
    }
  }

  // What Finish() asks for.
  void Widen(ValueId value) {
    if (!rewriter_.At(value).valid() || IsRounded(value)) rewriter_.Map(value, Wide(value, Maker(value)));
  }

  const Graph& graph_;
  const Dtype low_;
  Rewriter rewriter_;
  std::vector<bool> candidate_, rounded_;                  // by op
  std::vector<ValueId> lows_;                              // by value: the one of 16 bits, in the new graph
  std::map<std::pair<ValueId, RegionId>, ValueId> wides_;  // widened again
  std::map<std::int32_t, RegionId> once_;                  // by stage
};

}  // namespace

Graph Autocast(const Graph& graph, Dtype low) { return Autocaster(graph, low).Run(); }

}  // namespace ropewalk::mlrunner
