#include "mlrunner/models/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

Parameter Layers::New(std::string name, Shape shape, Initializer init, ShardingSpec sharding) {
  return parameters_.emplace_back(b_.NewParameter(std::move(name), std::move(shape), init, Dtype::kF32, std::move(sharding)));
}

Value Layers::Linear(const std::string& name, const Value& x, std::int64_t out, Initializer init) {
  Parameter w = New(name + "/w", {x.dim(-1), out}, init), c = New(name + "/b", {out}, Initializer::Zeros());
  return MatMul(x, w) + c;
}

Value Layers::Conv(const std::string& name, const Value& x, std::int64_t out, ConvLayer layer) {
  const std::int64_t channels = x.dim(1).Constant().value_or(0) / std::max<std::int64_t>(1, layer.groups);
  const double fan_in = static_cast<double>(channels * layer.kernel * layer.kernel);
  Parameter w = New(name + "/w", {out, channels, layer.kernel, layer.kernel}, Initializer::Normal(std::sqrt(2 / std::max(fan_in, 1.0))));
  Conv2DOptions options{.stride = {layer.stride, layer.stride}, .padding = {layer.padding, layer.padding}, .groups = layer.groups};
  if (layer.bias) options.bias = New(name + "/b", {out}, Initializer::Zeros());
  return Conv2D(x, w, options);
}

std::string Layers::InModule(const std::string& name) const {
  const std::string& module = b_.scope().module;
  return module.empty() ? name : module + "/" + name;
}

StateId Layers::Statistic(const std::string& name, const Parameter& of, Initializer init) {
  return b_.NewState(InModule(name), StateKind::kStatistic, of.type(), init, of.state);
}

Value Layers::Counted(Dtype dtype) { return options_.weights.valid() ? Cast(Greater(options_.weights, 0), dtype) : Value(); }

Value Layers::BatchNorm(const std::string& name, const Value& x, BatchNormLayer layer) {
  Parameter gain = New(name + "/gain", {x.dim(1)}, Initializer::Ones()), bias = New(name + "/bias", {x.dim(1)}, Initializer::Zeros());
  StateId of_mean = Statistic(name + "/running_mean", gain, Initializer::Zeros());
  StateId of_variance = Statistic(name + "/running_variance", gain, Initializer::Ones());
  Value mean = b_.Read(of_mean), variance = b_.Read(of_variance);
  if (!trains()) return BatchNormInference(x, gain, bias, mean, variance, layer.epsilon, layer.relu);
  Moments m = MomentsOf(x, Counted(x.dtype()));
  BatchNormOptions options{.epsilon = layer.epsilon, .relu = layer.relu};
  bool several = false;
  for (const Mesh::Axis& axis : b_.graph().mesh.axes) several = several || (axis.name == options_.ranks && axis.size > 1);
  if (several) {
    options.channel = b_.NewChannel(InModule(name) + "/sums");
    options.ranks = options_.ranks;
    m = MomentsOfRanks(m, mean, options.channel, options.ranks);
  }
  if (!m.mean.valid()) return {};
  // A batch of which nothing counts has no moments.
  Value share = Minimum(m.count, 1) * layer.momentum, unbiased = m.variance * (m.count / Maximum(m.count - 1, 1));
  b_.Assign(of_mean, mean + (m.mean - mean) * share);
  b_.Assign(of_variance, variance + (unbiased - variance) * share);
  return mlrunner::BatchNorm(x, gain, bias, m, options);
}

Value Layers::Norm(const std::string& name, const Value& x, double epsilon) {
  Parameter gain = New(name + "/gain", {x.dim(-1)}, Initializer::Ones()), bias = New(name + "/bias", {x.dim(-1)}, Initializer::Zeros());
  return LayerNorm(x, gain, bias, epsilon);
}

Initializer FanIn(const Value& x, double gain) {
  return Initializer::Normal(std::sqrt(gain / static_cast<double>(x.dim(-1).Constant().value_or(1))));
}

namespace {

double Number(const Dim& dim) { return static_cast<double>(dim.Constant().value_or(1)); }
// Of that deviation.
Initializer Uniform(double deviation) { return Initializer::Uniform(-std::sqrt(3.0) * deviation, std::sqrt(3.0) * deviation); }

}  // namespace

Initializer XavierUniform(const Dim& in, const Dim& out, double gain) { return Uniform(gain * std::sqrt(2 / (Number(in) + Number(out)))); }
Initializer XavierNormal(const Dim& in, const Dim& out, double gain) {
  return Initializer::Normal(gain * std::sqrt(2 / (Number(in) + Number(out))));
}
Initializer KaimingUniform(const Dim& in, double gain) { return Uniform(gain / std::sqrt(Number(in))); }
Initializer KaimingNormal(const Dim& in, double gain) { return Initializer::Normal(gain / std::sqrt(Number(in))); }

}  // namespace ropewalk::mlrunner
