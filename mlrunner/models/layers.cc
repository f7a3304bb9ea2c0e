#include "mlrunner/models/layers.h"

#include <cmath>
#include <utility>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

Parameter Layers::New(std::string name, Shape shape, Initializer init) {
  return parameters_.emplace_back(b_.NewParameter(std::move(name), std::move(shape), init));
}

Value Layers::Linear(const std::string& name, const Value& x, std::int64_t out, Initializer init) {
  Parameter w = New(name + "/w", {x.dim(-1), out}, init), c = New(name + "/b", {out}, Initializer::Zeros());
  return MatMul(x, w) + c;
}

Value Layers::Norm(const std::string& name, const Value& x) {
  Parameter gain = New(name + "/gain", {x.dim(-1)}, Initializer::Ones()), bias = New(name + "/bias", {x.dim(-1)}, Initializer::Zeros());
  return LayerNorm(x, gain, bias);
}

Initializer FanIn(const Value& x, double gain) {
  return Initializer::Normal(std::sqrt(gain / static_cast<double>(x.dim(-1).Constant().value_or(1))));
}

}  // namespace ropewalk::mlrunner
