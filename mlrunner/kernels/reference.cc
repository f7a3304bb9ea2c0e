#include "mlrunner/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/bound_lengths.h"
#include "mlrunner/kernels/philox.h"
#include "mlrunner/types/half.h"
#include "mlrunner/types/saturate.h"

namespace ropewalk::mlrunner {
namespace {

bool Holds(const RefTensor& tensor, const Dims& dims) {
  return tensor.dims == dims && tensor.data.size() == static_cast<std::size_t>(NumElements(dims));
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const Bindings& bindings, std::map<std::string, RefTensor>* states, const RunContext& run,
              const RefOptions& options)
      : graph_(graph), bindings_(bindings), states_(states), run_(run), options_(options), values_(graph.values.size()) {}

  Status Run(const std::vector<RefTensor>& inputs) {
    if (inputs.size() != graph_.inputs.size()) {
      return Status(Code::kInvalid, "RUN01", fmt::format("{} inputs for a graph that takes {}", inputs.size(), graph_.inputs.size()),
                    "every Input of the builder takes a tensor", "give one for each, in the order in which they were made");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ValueInfo& info = graph_.value(graph_.inputs[i]);
      Dims dims = Dims(mlrunner::Evaluate(info.type.shape, bindings_));
      if (!Holds(inputs[i], dims)) {
        return Status(Code::kInvalid, "RUN01",
                      fmt::format("input {} is {}, and {} of {} numbers is given", info.name, ToString(dims), ToString(inputs[i].dims),
                                  inputs[i].data.size()),
                      "the bindings give it that shape", "give such a tensor, or bind the symbols as this one has them");
      }
      values_[graph_.inputs[i].value] = inputs[i];
    }
    for (const StateInfo& state : graph_.states) {
      auto given = states_->find(state.name);
      if (given == states_->end() || SizeOf(state.type.dtype) == 0) continue;
      Dims dims = mlrunner::Evaluate(state.type.shape, bindings_);
      if (!Holds(given->second, dims)) {
        return Status(Code::kInvalid, "RUN07",
                      fmt::format("state {} is {} of {} numbers", state.name, ToString(given->second.dims), given->second.data.size()),
                      fmt::format("the graph has it as {}", ToString(dims)),
                      "run the graph on the states of the same model and bindings, or on none: then they begin anew");
      }
    }
    for (const Op& op : graph_.ops) {
      if (Status status = Step(op); !status.ok()) return status.WithContext(op.def->name);
    }
    return {};
  }

  const RefTensor& At(ValueId id) const { return *values_[id.value]; }

 private:
  RefTensor Empty(ValueId id) const {
    RefTensor tensor{mlrunner::Evaluate(graph_.value(id).type.shape, bindings_), {}};
    tensor.data.resize(NumElements(tensor.dims));
    return tensor;
  }

  Status Step(const Op& op) {
    if (op.def == &kInput || op.def == &kFirstVersion) return {};
    if (op.half == Half::kStart) {  // all of the work here; the done half hands it out
      started_[op.outputs[0].value] = &op;
      return {};
    }
    if (op.half == Half::kDone) {
      Op whole = *started_.at(op.inputs[0].value);
      whole.half = Half::kWhole;
      whole.outputs = op.outputs;
      return Step(whole);
    }
    if (op.def == &kRead) {
      values_[op.outputs[0].value] = State(graph_.value(op.inputs[0]).state);
      return {};
    }
    if (op.def == &kAssign) {
      State(graph_.value(op.inputs[0]).state) = At(op.inputs[1]);
      return {};
    }
    if (op.def == &kWhile) return While(op);
    if (op.def == &kCond) return Cond(op);
    if (op.def == &kMap) {
      std::vector<RefTensor> inputs;
      for (ValueId in : op.inputs) inputs.push_back(At(in));
      return Body(*op.bodies[0], inputs, op.outputs);
    }
    auto kernel = options_.table->find(op.def);
    if (kernel == options_.table->end()) {
      return Status(Code::kInvalid, "RUN02", "there is no reference kernel", "the op is new, or needs ranks", "add one to the table");
    }
    RefCall call{graph_, op, bindings_, run_, {}, {}};
    static const RefTensor kToken{{}, {0}};
    for (ValueId in : op.inputs) call.in.push_back(graph_.value(in).type.dtype == Dtype::kToken ? &kToken : &At(in));
    for (ValueId out : op.outputs) call.out.push_back(Empty(out));
    RETURN_IF_ERROR(kernel->second(call));
    for (std::size_t i = 0; i < op.outputs.size(); ++i) Set(op.outputs[i], std::move(call.out[i]));
    return {};
  }

  void Set(ValueId id, RefTensor tensor) {
    if (options_.round) {
      for (double& value : tensor.data) value = RoundTo(graph_.value(id).type.dtype, value);
    }
    values_[id.value] = std::move(tensor);
  }

  RefTensor& State(StateId id) {
    const StateInfo& info = graph_.state(id);
    auto found = states_->find(info.name);
    if (found == states_->end()) found = states_->emplace(info.name, Initial(graph_, info, bindings_, run_)).first;
    return found->second;
  }

  Status Body(const Graph& body, const std::vector<RefTensor>& inputs, const std::vector<ValueId>& outputs) {
    Interpreter inner(body, bindings_, states_, run_, options_);
    RETURN_IF_ERROR(inner.Run(inputs));
    for (std::size_t i = 0; i < outputs.size(); ++i) values_[outputs[i].value] = inner.At(body.outputs[i].value);
    return {};
  }

  Status While(const Op& op) {
    auto n = static_cast<std::size_t>(op.attrs.Int(Attr::kCount)), c = static_cast<std::size_t>(op.attrs.Int(Attr::kCaptures));
    std::vector<RefTensor> vars, test, after;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) (i < n ? vars : i < n + c ? test : after).push_back(At(op.inputs[i]));
    std::vector<std::int64_t> stacked = op.attrs.Ints(Attr::kStacked);
    std::vector<RefTensor> stacks;
    for (std::size_t k = 0; k < stacked.size(); ++k) stacks.push_back(Empty(op.outputs[n + 1 + k]));
    std::int64_t rounds = 0;
    for (;; ++rounds) {
      std::vector<RefTensor> arguments = vars;
      arguments.insert(arguments.end(), test.begin(), test.end());
      Interpreter condition(*op.bodies[0], bindings_, states_, run_, options_);
      RETURN_IF_ERROR(condition.Run(arguments));
      if (condition.At(op.bodies[0]->outputs[0].value).data[0] == 0) break;
      if (rounds == op.attrs.Int(Attr::kBound)) {
        return Status(Code::kUserError, "RUN03", fmt::format("a while goes on after {} rounds", rounds),
                      "that is the bound that it was given", "give a larger bound");
      }
      for (std::size_t k = 0; k < stacked.size(); ++k) {
        const std::vector<double>& row = vars[stacked[k]].data;
        std::copy(row.begin(), row.end(), stacks[k].data.begin() + static_cast<std::ptrdiff_t>(row.size()) * rounds);
      }
      arguments = vars;
      arguments.insert(arguments.end(), after.begin(), after.end());
      Interpreter body(*op.bodies[1], bindings_, states_, run_, options_);
      RETURN_IF_ERROR(body.Run(arguments));
      for (std::size_t i = 0; i < n; ++i) vars[i] = body.At(op.bodies[1]->outputs[i].value);
    }
    for (std::size_t i = 0; i < n; ++i) values_[op.outputs[i].value] = vars[i];
    values_[op.outputs[n].value] = RefTensor::Scalar(static_cast<double>(rounds));
    for (std::size_t k = 0; k < stacked.size(); ++k) values_[op.outputs[n + 1 + k].value] = stacks[k];
    return {};
  }

  Status Cond(const Op& op) {
    auto first = static_cast<std::size_t>(op.attrs.Int(Attr::kCaptures));
    bool yes = At(op.inputs[0]).data[0] != 0;
    std::vector<RefTensor> arguments;
    for (std::size_t i = 1; i < op.inputs.size(); ++i) {
      if ((i - 1 < first) == yes) arguments.push_back(At(op.inputs[i]));
    }
    return Body(*op.bodies[yes ? 0 : 1], arguments, op.outputs);
  }

  const Graph& graph_;
  const Bindings& bindings_;
  std::map<std::string, RefTensor>* states_;
  const RunContext& run_;
  const RefOptions& options_;
  std::vector<std::optional<RefTensor>> values_;
  std::map<std::uint32_t, const Op*> started_;
};

}  // namespace

double RoundTo(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::kF32:
      return static_cast<float>(value);
    case Dtype::kF16:
    case Dtype::kBF16:
      return HalfToFloat(dtype, FloatToHalf(dtype, static_cast<float>(value)));
    case Dtype::kI32:
      return Saturate<std::int32_t>(value);
    case Dtype::kI64:
      return static_cast<double>(Saturate<std::int64_t>(value));
    case Dtype::kU8:
      return Saturate<std::uint8_t>(value);
    case Dtype::kBool:
      return value != 0 ? 1 : 0;
    default:
      return value;
  }
}

namespace {

// Box and Muller, from the two numbers of an element with these sample indices. The order of the products is a part of what a seed means:
// another one moves the last bits of parameters in f64.
double NormalAt(double deviation, std::uint64_t key, std::uint64_t sample, std::uint64_t element) {
  const double u = UniformAt(key, sample, element);
  return deviation * std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * M_PI * UniformAt(key, sample + 1, element));
}

double DrawElement(const Initializer& init, std::uint64_t key, std::uint64_t element) {
  switch (init.kind) {
    case Initializer::Kind::kUniform:
      return init.a + (init.b - init.a) * UniformAt(key, 0, element);
    case Initializer::Kind::kNormal:
      return NormalAt(init.a, key, 0, element);
    case Initializer::Kind::kTruncatedNormal: {
      constexpr std::uint64_t kTriesMax = 1000;  // of a cut at a hundredth of a deviation one in 125 lies inside
      for (std::uint64_t k = 0; k < kTriesMax; ++k) {
        if (const double x = NormalAt(1, key, 2 * k, element); std::fabs(x) <= init.b) return init.a * x;
      }
      return 0;
    }
    default:
      return init.a;
  }
}

// Normal numbers made orthogonal, row by row (or column by column), twice each: once leaves what rounding adds (Gram and Schmidt).
std::vector<double> DrawOrthogonal(double gain, std::uint64_t key, const Dims& dims) {
  const auto all = static_cast<std::size_t>(NumElements(dims));
  const std::size_t rows = dims.empty() || dims[0] == 0 ? 1 : static_cast<std::size_t>(dims[0]), columns = all / rows;
  const bool by_rows = rows <= columns;
  const std::size_t count = by_rows ? rows : columns, length = by_rows ? columns : rows;
  std::vector<double> vectors(all), values(all);
  for (std::size_t i = 0; i < count; ++i) {
    double* own = &vectors[i * length];
    for (std::size_t k = 0; k < length; ++k) own[k] = NormalAt(1, key, 0, by_rows ? i * length + k : k * columns + i);
    for (int twice = 0; twice < 2; ++twice) {
      for (std::size_t j = 0; j < i; ++j) {
        const double* other = &vectors[j * length];
        double dot = 0;
        for (std::size_t k = 0; k < length; ++k) dot += own[k] * other[k];
        for (std::size_t k = 0; k < length; ++k) own[k] -= dot * other[k];
      }
    }
    double squares = 0;
    for (std::size_t k = 0; k < length; ++k) squares += own[k] * own[k];
    for (std::size_t k = 0; k < length; ++k) own[k] /= std::sqrt(squares);
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < length; ++k) values[by_rows ? i * length + k : k * columns + i] = gain * vectors[i * length + k];
  }
  return values;
}

}  // namespace

void DrawInitial(const Graph& graph, const StateInfo& state, const Bindings& bindings, const RunContext& run,
                 const std::function<void(std::span<const double>)>& take) {
  constexpr std::int64_t kElementsAtOnce = 8192;
  const Dims logical = Evaluate(state.logical, bindings);
  const Slice slice = SliceOf(logical, state.sharding, graph.mesh, run.rank);
  const std::uint64_t key = RandomKey(run.seed, 0, Checksum64(state.name), 0);
  const std::int64_t count = NumElements(Evaluate(state.type.shape, bindings));
  std::vector<double> values, whole;
  if (state.init.kind == Initializer::Kind::kOrthogonal) whole = DrawOrthogonal(state.init.a, key, logical);
  Dims index = slice.begin;
  for (std::int64_t done = 0; done < count; done += static_cast<std::int64_t>(values.size())) {
    values.resize(static_cast<std::size_t>(std::min(count - done, kElementsAtOnce)));
    for (double& value : values) {
      std::uint64_t element = 0;
      for (std::size_t d = 0; d < logical.size(); ++d) element = element * logical[d] + index[d];
      value = whole.empty() ? DrawElement(state.init, key, element) : whole[element];
      value = RoundTo(state.type.dtype, value);
      for (std::size_t d = logical.size(); d-- > 0;) {
        if (++index[d] < slice.end[d]) break;
        index[d] = slice.begin[d];
      }
    }
    take(values);
  }
}

RefTensor Initial(const Graph& graph, const StateInfo& state, const Bindings& bindings, const RunContext& run) {
  RefTensor tensor{Evaluate(state.type.shape, bindings), {}};
  DrawInitial(graph, state, bindings, run,
              [&](std::span<const double> values) { tensor.data.insert(tensor.data.end(), values.begin(), values.end()); });
  return tensor;
}

Result<RefResult> Evaluate(const Graph& graph, const Bindings& bindings, const std::vector<RefTensor>& inputs,
                           std::map<std::string, RefTensor>& states, const RunContext& run, const RefOptions& options) {
  RETURN_IF_ERROR(CheckLengths(graph, bindings));
  Interpreter interpreter(graph, bindings, &states, run, options);
  RETURN_IF_ERROR(interpreter.Run(inputs));
  RefResult result;
  for (const NamedValue& output : graph.outputs) result.outputs.push_back(interpreter.At(output.value));
  for (const NamedValue& tap : graph.taps) result.taps[tap.name] = interpreter.At(tap.value);
  return result;
}

}  // namespace ropewalk::mlrunner
