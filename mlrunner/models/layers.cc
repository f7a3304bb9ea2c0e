#include "mlrunner/models/layers.h"

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
