#include "mlrunner/graph/grad.h"

#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

Gradient Sum(const Gradient& a, const Gradient& b) {
  if (!a.IsRows() || !b.IsRows()) return a.Dense() + b.Dense();
  return IndexedRows{Concat({a.rows().indices, b.rows().indices}, 0), Concat({a.rows().rows, b.rows().rows}, 0), a.rows().num_rows};
}

class Backward {
 public:
  Backward(Builder& b, const std::vector<Value>& with) : b_(b), depends_(b.graph().values.size()), adjoints_(b.graph().values.size()) {
    for (const Value& value : with) {
      if (value.builder == &b_) depends_[value.id.value] = true;
    }
    for (const Op& op : b_.graph().ops) {
      bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId in) { return depends_[in.value]; });
      for (ValueId out : op.outputs) depends_[out.value] = depends_[out.value] || any;
    }
  }

  void Seed(const Value& value, Gradient gradient) { Give(value.id, std::move(gradient)); }

  void Run() {
    for (std::size_t i = b_.graph().ops.size(); i-- > 0;) {
      if (!b_.status().ok()) return;
      Step(OpId{static_cast<std::uint32_t>(i)});
    }
  }

  Gradient Of(const Value& value) {
    Gradient gradient = Total(value.id);
    if (gradient.valid()) return gradient;
    return Fill(b_, 0, value.dtype(), value.shape());
  }

 private:
  void Give(ValueId value, Gradient gradient) {
    if (depends_[value.value]) adjoints_[value.value].push_back(std::move(gradient));
  }

  // The uses' gradients, summed once.
  Gradient Total(ValueId value) {
    std::vector<Gradient>& parts = adjoints_[value.value];
    if (parts.empty()) return {};
    Gradient sum = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) sum = Sum(sum, parts[i]);
    parts = {sum};
    return sum;
  }

  void Step(OpId id) {
    const Op op = b_.graph().op(id);  // a copy: rules add ops
    bool wanted = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId in) { return depends_[in.value]; });
    bool given = std::any_of(op.outputs.begin(), op.outputs.end(),
                             [&](ValueId out) { return out.value < adjoints_.size() && !adjoints_[out.value].empty(); });
    if (!wanted || !given) return;
    Scope scope = BackwardScope(b_, b_.graph().region(op.region).stage);
    scope.module = op.provenance.module;
    scope.layer = op.provenance.layer;
    auto guard = b_.With(scope);

    GradientContext context{b_, op, {}, {}, {}};
    for (ValueId in : op.inputs) context.in.push_back({&b_, in});
    for (ValueId out : op.outputs) {
      context.out.push_back({&b_, out});
      context.grads.push_back(out.value < adjoints_.size() ? Total(out) : Gradient());
    }
    std::vector<Gradient> gradients = Rule(context);
    if (!b_.status().ok()) return;
    for (std::size_t i = 0; i < op.inputs.size() && i < gradients.size(); ++i) {
      if (!gradients[i].valid() || !IsFloat(context.in[i].dtype())) continue;
      Check(op, context.in[i], gradients[i]);
      Give(op.inputs[i], std::move(gradients[i]));
    }
  }

  std::vector<Gradient> Rule(const GradientContext& c) {
    // A fused op's rule knows the gradients of its results; what else it keeps for that gradient (means, sums) is only differentiated
    // through when somebody asks for second derivatives, and then by the primitive form.
    bool beyond_known = std::any_of(c.grads.begin() + std::min<std::ptrdiff_t>(c.op.def->traits.rule_outputs, std::ssize(c.grads)),
                                    c.grads.end(), [](const Gradient& g) { return g.valid(); });
    bool by_rule = c.op.def->gradient != nullptr && (c.op.def->expand == nullptr || !beyond_known);
    if (by_rule) return c.op.def->gradient(c);
    if (c.op.def->expand != nullptr) {
      // The inputs as leaves of their own: one input may be a function of another (a kept sum of the logits), and that way is the outer
      // walk's.
      std::vector<Value> leaves;
      for (const Value& in : c.in) leaves.push_back(Identity(b_, in));
      std::vector<Value> primitive = c.op.def->expand(b_, c.op, leaves), of;
      std::vector<Gradient> seeds;
      for (std::size_t i = 0; i < primitive.size(); ++i) {
        if (!c.grads[i].valid()) continue;
        of.push_back(primitive[i]);
        seeds.push_back(c.grads[i]);
      }
      return Grad(of, seeds, leaves);
    }
    b_.Fail(Status(Code::kInvalid, "GRAPH06",
                   fmt::format("{}:{}: {} has no gradient", c.op.provenance.where.file, c.op.provenance.where.line, c.op.def->name),
                   "the loss depends on it", "use StopGradient, or say its gradient with CustomGradient"));
    return {};
  }

  void Check(const Op& op, const Value& in, const Gradient& gradient) {
    Shape shape = gradient.IsRows() ? gradient.rows().rows.shape() : gradient.Dense().shape();
    if (gradient.IsRows()) shape[0] = gradient.rows().num_rows;
    if (shape == in.shape()) return;
    b_.Fail(
        Status(Code::kInvalid, "GRAPH06",
               fmt::format("{}:{}: {}: its gradient rule gives {} for an input of {}", op.provenance.where.file, op.provenance.where.line,
                           op.def->name, ToString(shape, b_.graph().symbols), ToString(in.shape(), b_.graph().symbols)),
               "a gradient has the shape of what it is of", "sum over what was broadcast in the rule, or Reshape what it returns"));
  }

  Builder& b_;
  std::vector<bool> depends_;
  std::vector<std::vector<Gradient>> adjoints_;
};

}  // namespace

Scope BackwardScope(Builder& b, std::int32_t stage) {
  Scope scope = b.scope();
  scope.phase = Phase::kBackward;
  scope.role = Role::kGradient;
  scope.region = RegionKind::kBackward;
  scope.stage = stage;
  return scope;
}

std::vector<Gradient> Grad(const std::vector<Value>& of, const std::vector<Gradient>& seeds, const std::vector<Value>& with) {
  std::vector<Gradient> none(with.size());
  if (with.empty()) return none;
  Builder* b = nullptr;
  for (const auto* list : {&of, &with}) {
    for (const Value& value : *list) {
      if (!value.valid()) return none;
      Builder& its = value.builder->Living();
      if (b == nullptr || its.depth() > b->depth()) b = &its;
    }
  }
  Backward backward(*b, with);
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (!seeds[i].valid()) return none;
    if (of[i].builder == b) backward.Seed(of[i], seeds[i]);
  }
  backward.Run();
  if (!b->status().ok()) return none;
  Scope scope = BackwardScope(*b, b->scope().stage);
  std::vector<Gradient> gradients;
  for (const Value& value : with) {
    // A value that several ops used: its gradients are summed where it was made.
    if (value.builder == b) scope.stage = b->graph().StageOf(value.id);
    auto guard = b->With(scope);
    gradients.push_back(value.builder == b ? backward.Of(value) : Gradient(Fill(*b, 0, value.dtype(), value.shape())));
  }
  return gradients;
}

std::vector<Gradient> Grad(const Value& loss, const std::vector<Value>& with, Location where) {
  if (!loss.valid()) return std::vector<Gradient>(with.size());
  Builder& b = *loss.builder;
  if (!loss.shape().empty() || !IsFloat(loss.dtype())) {
    b.Fail(Status(Code::kInvalid, "GRAPH06",
                  fmt::format("{}:{}: the gradient of {} {} is asked for", where.file, where.line,
                              ToString(loss.shape(), b.graph().symbols), Name(loss.dtype())),
                  "a loss is one floating-point number", "take its Mean, or give seeds"));
    return std::vector<Gradient>(with.size());
  }
  Gradient seed;
  {
    auto guard = b.With(BackwardScope(b, b.graph().StageOf(loss.id)));
    seed = b.Number(1, loss.dtype());
  }
  return Grad(std::vector<Value>{loss}, {seed}, with);
}

}  // namespace ropewalk::mlrunner
