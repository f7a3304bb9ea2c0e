// Finds attention as models compose it, and its gradient as Grad makes it:
//
//   scores = MatMul(q, k) [* number] [+ mask]      p = Softmax(scores)      w = p, or its Dropout      mixed = MatMul(w, v)
//   dv = MatMul(w', g)      dw = MatMul(g, v')     dscores = SoftmaxGrad(p, dw through dropout)   [* number]   dq, dk = two products
#include <cmath>
#include <map>
#include <set>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/chains.h"
#include "mlrunner/graph/passes/fuse_ops.h"
#include "mlrunner/graph/passes/rewriter.h"

namespace ropewalk::mlrunner {
namespace {

constexpr double kFarBelow = -1e4;  // what is added to a score whose weight shall be 0

struct Found {
  ValueId q, k, v, mask;
  bool causal = false, transposed_keys = false;
  double scale = 1, rate = 0;
  std::uint64_t draws = 0;
  const Op *softmax = nullptr, *mixed = nullptr;
  std::set<const Op*> parts;  // all ops that go
  // Backward, where there is one: the first of its ops, the gradient of what is mixed, and those that come out.
  const Op* back = nullptr;
  ValueId g, dq, dk, dv;
};

bool Transposes(const Op& product, bool a, bool b) {
  return (product.attrs.Int(Attr::kTransposeA) != 0) == a && (product.attrs.Int(Attr::kTransposeB) != 0) == b;
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), chains_(graph) {}

  // What the softmax is the middle of; nothing where it is not that of an attention.
  std::optional<Found> At(const Op& softmax) {
    found_ = {};
    found_.softmax = &softmax;
    weights_ = softmax.outputs[0];
    if (chains_.IsVisible(weights_) || !IsWhole(weights_)) return std::nullopt;
    found_.parts.insert(&softmax);
    if (!Scores(softmax.inputs[0]) || !Mixed() || !HeadsFit()) return std::nullopt;
    std::set<const Op*> backward;
    for (ValueId value : {weights_, kept_}) {
      for (const Op* user : chains_.Users(value)) {
        if (!found_.parts.contains(user)) backward.insert(user);
      }
    }
    if (!backward.empty() && !Backward(backward)) return std::nullopt;
    return found_;
  }

 private:
  bool IsWhole(ValueId value) const {
    const ValueInfo& info = graph_.value(value);
    return info.sharding.IsReplicated() && info.logical == info.type.shape && info.layout.IsRowMajor();
  }
  // The only user of a value that nobody else sees.
  const Op* OnlyUser(ValueId value) const {
    const std::vector<const Op*> users = chains_.Users(value);
    return users.size() == 1 && !chains_.IsVisible(value) ? users[0] : nullptr;
  }
  // Of "x * number", "number * x" and "x / number" with an x of the result's type: which input is x, and the factor.
  struct Scaling {
    ValueId x;
    double factor = 1;
  };
  std::optional<Scaling> ScalingAt(const Op& op) const {
    const bool divides = op.def == &kDiv;
    if (op.half != Half::kWhole || (op.def != &kMul && !divides)) return std::nullopt;
    for (std::size_t i : {0, 1}) {
      if (divides && i == 1) break;
      const auto number = chains_.NumberOf(op.inputs[1 - i]);
      if (!number || chains_.TypeOf(op.inputs[i]) != chains_.TypeOf(op.outputs[0])) continue;
      return Scaling{op.inputs[i], divides ? 1 / *number : *number};
    }
    return std::nullopt;
  }

  bool Scores(ValueId value) {
    bool scaled = false;
    for (;;) {
      if (OnlyUser(value) == nullptr) return false;
      const Op& op = graph_.op(graph_.value(value).producer);
      if (!Chains::AreTogether(op, *found_.softmax)) return false;
      if (const Op* product = chains_.Maker(value, kMatMul)) {
        found_.parts.insert(product);
        found_.q = product->inputs[0];
        found_.k = product->inputs[1];
        found_.transposed_keys = Transposes(*product, false, true);
        return found_.transposed_keys || Transposes(*product, false, false);
      }
      if (const auto scaling = ScalingAt(op)) {
        found_.scale *= scaling->factor;
        scaled = true;
        value = scaling->x;
      } else if (op.def == &kAdd && op.half == Half::kWhole && !scaled && !found_.mask.valid() && !found_.causal) {
        const bool second = IsMask(op.inputs[0], value) && !IsMask(op.inputs[1], value);
        if (!second && !IsMask(op.inputs[1], value)) return false;
        const ValueId mask = op.inputs[second ? 0 : 1];
        found_.causal = IsCausalMask(mask);
        if (!found_.causal) found_.mask = mask;
        value = op.inputs[second ? 1 : 0];
      } else {
        return false;
      }
      found_.parts.insert(&op);
    }
  }
  // Whether `mask` may be one beside what else is added up to `sum`: not made by the product, or by what scales it.
  bool IsMask(ValueId mask, ValueId sum) const {
    const Op& op = graph_.op(graph_.value(mask).producer);
    const Shape &shape = chains_.TypeOf(mask).shape, &whole = chains_.TypeOf(sum).shape;
    return op.def != &kMatMul && !ScalingAt(op) && !shape.empty() && shape.back() == whole.back();
  }
  // Select(Less(place of the query, place of the key), far below zero, 0), for as many of both.
  bool IsCausalMask(ValueId mask) const {
    const Op* select = chains_.Maker(mask, kSelect);
    const Op* less = select == nullptr ? nullptr : chains_.Maker(select->inputs[0], kLess);
    if (less == nullptr) return false;
    const auto below = chains_.NumberOf(select->inputs[1]), none = chains_.NumberOf(select->inputs[2]);
    if (!below || *below > kFarBelow || !none || *none != 0) return false;
    const Shape& weights = chains_.TypeOf(weights_).shape;
    const Dim length = weights.back();
    if (weights[weights.size() - 2] != length || chains_.TypeOf(mask).shape != Shape{length, length}) return false;
    const Op *column = chains_.Maker(less->inputs[0], kReshape), *to = chains_.Maker(less->inputs[1], kIota);
    const Op* from = column == nullptr ? nullptr : chains_.Maker(column->inputs[0], kIota);
    return from != nullptr && to != nullptr && chains_.TypeOf(column->outputs[0]).shape == Shape{length, 1};
  }

  // From the weights to what is mixed by them.
  bool Mixed() {
    kept_ = weights_;
    for (const Op* user : chains_.Users(weights_)) {
      if (Chains::AreTogether(*user, *found_.softmax) && ScalingAt(*user) && !Dropped(*user)) return false;
    }
    if (!IsWhole(kept_) || chains_.IsVisible(kept_)) return false;
    for (const Op* user : chains_.Users(kept_)) {
      if (user->def != &kMatMul || user->half != Half::kWhole || !Chains::AreTogether(*user, *found_.softmax)) continue;
      if (found_.mixed != nullptr || user->inputs[0] != kept_ || !Transposes(*user, false, false)) return false;
      found_.mixed = user;
      found_.v = user->inputs[1];
      found_.parts.insert(user);
    }
    return found_.mixed != nullptr && IsWhole(found_.mixed->outputs[0]);
  }
  // Select(Less(random numbers, rate), 0, weights / (1 - rate))
  bool Dropped(const Op& scaling) {
    const Op* select = OnlyUser(scaling.outputs[0]);
    if (select == nullptr || select->def != &kSelect || select->half != Half::kWhole || select->inputs[2] != scaling.outputs[0])
      return false;
    const Op* less = chains_.Maker(select->inputs[0], kLess);
    const Op* drawn = less == nullptr ? nullptr : chains_.Maker(less->inputs[0], kRandomUniform);
    const auto rate = less == nullptr ? std::nullopt : chains_.NumberOf(less->inputs[1]);
    if (drawn == nullptr || !rate || !(*rate > 0 && *rate < 1) || chains_.NumberOf(select->inputs[1]) != 0.0) return false;
    const bool fits = drawn->inputs.empty() && drawn->attrs.Int(Attr::kSampleDim) == 0 && IsWhole(drawn->outputs[0]) &&
                      chains_.TypeOf(drawn->outputs[0]).shape == chains_.TypeOf(weights_).shape &&
                      chains_.TypeOf(weights_).shape.size() > 2;
    if (!fits || std::fabs(ScalingAt(scaling)->factor * (1 - *rate) - 1) > 1e-6) return false;
    found_.rate = *rate;
    found_.draws = drawn->stable_id;
    dropping_ = select->inputs[0];
    kept_ = select->outputs[0];
    found_.parts.insert({&scaling, select});
    return true;
  }

  // One head's q, k and v for each of the weights', none of them broadcast.
  bool HeadsFit() const {
    const Shape& weights = chains_.TypeOf(weights_).shape;
    for (ValueId value : {found_.q, found_.k, found_.v}) {
      const Shape& shape = chains_.TypeOf(value).shape;
      if (shape.size() != weights.size() || !std::equal(weights.begin(), weights.end() - 2, shape.begin())) return false;
    }
    return true;
  }

  // `users` of the weights, beside forward: all of the backward, and nothing else.
  bool Backward(const std::set<const Op*>& users) {
    const Op *by_values = nullptr, *by_scores = nullptr;
    for (const Op* user : users) {
      if (user->half != Half::kWhole) return false;
      if (user->def == &kSoftmaxGrad && user->inputs[0] == weights_ && user->inputs[1] != weights_) by_scores = user;
      if (user->def == &kMatMul && user->inputs[0] == kept_ && user->inputs[1] != kept_ && Transposes(*user, true, false)) by_values = user;
    }
    if (users.size() != 2 || by_values == nullptr || by_scores == nullptr) return false;
    found_.g = by_values->inputs[1];
    found_.dv = by_values->outputs[0];
    std::set<const Op*> parts{by_values, by_scores};
    // Up to the product of the gradient and the values.
    ValueId value = by_scores->inputs[1];
    if (found_.rate != 0) {
      const Op& scaling = graph_.op(graph_.value(value).producer);
      const auto scaled = ScalingAt(scaling);
      const Op* select = scaled ? chains_.Maker(scaled->x, kSelect) : nullptr;
      if (select == nullptr || OnlyUser(value) == nullptr || OnlyUser(scaled->x) == nullptr || select->inputs[0] != dropping_ ||
          chains_.NumberOf(select->inputs[1]) != 0.0 || std::fabs(scaled->factor * (1 - found_.rate) - 1) > 1e-6)
        return false;
      parts.insert({&scaling, select});
      value = select->inputs[2];
    }
    const Op* product = chains_.Maker(value, kMatMul);
    if (product == nullptr || OnlyUser(value) == nullptr || product->inputs[0] != found_.g || product->inputs[1] != found_.v ||
        !Transposes(*product, false, true))
      return false;
    parts.insert(product);
    // Down to the products that give the gradients of q and k.
    value = by_scores->outputs[0];
    double scale = 1;
    for (const Op* user = OnlyUser(value); user != nullptr && ScalingAt(*user); user = OnlyUser(value)) {
      scale *= ScalingAt(*user)->factor;
      parts.insert(user);
      value = user->outputs[0];
    }
    if (chains_.IsVisible(value) || std::fabs(scale - found_.scale) > 1e-6 * std::fabs(found_.scale)) return false;
    const std::vector<const Op*> last = chains_.Users(value);
    for (const Op* user : last) {
      if (user->def != &kMatMul || user->half != Half::kWhole) return false;
      if (user->inputs[0] == value && user->inputs[1] == found_.k && Transposes(*user, false, !found_.transposed_keys)) {
        found_.dq = user->outputs[0];
      } else if (user->inputs[found_.transposed_keys ? 0 : 1] == value && user->inputs[found_.transposed_keys ? 1 : 0] == found_.q &&
                 Transposes(*user, true, false)) {
        found_.dk = user->outputs[0];
      }
      parts.insert(user);
    }
    if (last.size() != 2 || !found_.dq.valid() || !found_.dk.valid()) return false;
    found_.back = product;
    for (const Op* part : parts) {
      if (!Chains::AreTogether(*part, *product)) return false;
      if (part < found_.back) found_.back = part;  // they lie in one vector
    }
    found_.parts.insert(parts.begin(), parts.end());
    return true;
  }

  const Graph& graph_;
  Chains chains_;
  Found found_;
  ValueId weights_, kept_, dropping_;  // of the softmax, behind dropout, and the flags of what is left out
};

}  // namespace

Graph FuseAttention(const Graph& graph) {
  std::vector<Found> all;
  std::map<const Op*, std::size_t> forward, backward;  // where the fused ops go
  std::set<const Op*> parts;
  Finder finder(graph);
  for (const Op& op : graph.ops) {
    if (op.def != &kSoftmax || op.half != Half::kWhole) continue;
    if (auto found = finder.At(op)) {
      forward[found->mixed] = all.size();
      if (found->back != nullptr) backward[found->back] = all.size();
      parts.insert(found->parts.begin(), found->parts.end());
      all.push_back(*std::move(found));
    }
  }
  if (all.empty()) return graph;

  Rewriter rewriter(graph);
  std::vector<ValueId> log_sums(all.size());  // of the new graph
  auto at = [&](ValueId old) { return rewriter.At(old); };
  // The op in the place of `like`; `inputs` are of the new graph.
  auto fused = [&](const Op& like, const OpDef& def, const Found& of, std::vector<ValueId> inputs) {
    if (of.mask.valid()) inputs.push_back(at(of.mask));
    Op op = like;
    op.def = &def;
    op.inputs = std::move(inputs);
    op.attrs = {{Attr::kValue, of.scale}, {Attr::kTransposeB, std::int64_t{of.transposed_keys}}};
    if (of.rate != 0) {
      op.attrs.Set(Attr::kLow, of.rate);
      op.attrs.Set(Attr::kKey, static_cast<std::int64_t>(of.draws));
    }
    return op;
  };
  for (const Op& op : graph.ops) {
    if (auto found = forward.find(&op); found != forward.end()) {
      const Found& of = all[found->second];
      const ValueInfo& mixed = graph.value(op.outputs[0]);
      TensorType rows = graph.value(of.softmax->outputs[0]).type;
      rows.shape.pop_back();
      const OpId id =
          rewriter.Add(fused(op, of.causal ? kCausalAttention : kAttention, of, {at(of.q), at(of.k), at(of.v)}), {mixed.type, rows});
      const std::vector<ValueId> made = rewriter.graph().op(id).outputs;
      ValueInfo& info = rewriter.graph().value(made[0]);
      info = mixed;
      info.producer = id;
      info.output = 0;
      rewriter.Map(op.outputs[0], made[0]);
      log_sums[found->second] = made[1];
    } else if (auto behind = backward.find(&op); behind != backward.end()) {
      const Found& of = all[behind->second];
      Op like = op;
      like.outputs = {of.dq, of.dk, of.dv};
      rewriter.Put(fused(op, of.causal ? kCausalAttentionGrad : kAttentionGrad, of,
                         {at(of.q), at(of.k), at(of.v), at(of.mixed->outputs[0]), log_sums[behind->second], at(of.g)}),
                   like);
    } else if (!parts.contains(&op)) {
      rewriter.Copy(op);
    }
  }
  return rewriter.Finish();
}

}  // namespace ropewalk::mlrunner
