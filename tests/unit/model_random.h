// Random model graphs for tests: `num_ops` ops over a few parameters and inputs, whose values stay of moderate size, ending in a scalar.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

struct RandomGraph {
  std::vector<Value> parameters;  // differentiable leaves (Input ops)
  Value loss;
};

inline std::vector<int> ShapeNumbers(const Value& v) {
  std::vector<int> dims;
  for (const Dim& d : v.shape()) dims.push_back(static_cast<int>(*d.Constant()));
  return dims;
}

// A matrix op between values of the pool, or a shape change; every result is squashed where it could grow.
inline Value RandomStep(Builder& b, Random& random, const std::vector<Value>& pool) {
  Value x = pool[random.Below(pool.size())], y = pool[random.Below(pool.size())];
  int last = static_cast<int>(x.rank()) - 1;
  // Something that broadcasts with x: y where it does, else x's mean over its last axis.
  Value z = Broadcast(x.shape(), y.shape()) ? y : Mean(x, {last}, true);
  Shape rows(x.shape().begin(), x.shape().end() - 1);
  switch (random.Below(32)) {
    case 0:
      return x + z;
    case 1:
      return x - z * .5;
    case 2:
      return Tanh(x * z);
    case 3:
      return x / (Square(z) + 2.0);
    case 4:
      return Maximum(x, z);
    case 5:
      return Minimum(x, z);
    case 6:
      return Tanh(x);
    case 7:
      return Sigmoid(x);
    case 8:
      return Exp(-Square(x));
    case 9:
      return Relu(x);
    case 10:
      return Gelu(x);
    case 11:
      return Sin(x * 2.0);
    case 12:
      return Cos(x);
    case 13:
      return Erf(x);
    case 14:
      return Log(Square(x) + 1.5);
    case 15:
      return Sqrt(Square(x) + 1.0);
    case 16:
      return Rsqrt(Square(x) + 1.0);
    case 17:
      return Pow(Square(x) + 1.2, z * .5);
    case 18:
      return Abs(x);
    case 19:
      return Softmax(x);
    case 20:
      return LogSoftmax(x) * .3;
    case 21: {
      Dim n = x.shape().back();
      Value gain = Reshape(Mean(x, {}), {1}), bias = Mean(z, {});
      return LayerNorm(x, BroadcastTo(gain, {n}) + 1.0, BroadcastTo(Reshape(bias, {1}), {n}), .1);
    }
    case 22:
      return x.rank() >= 2 ? Tanh(MatMul(x, x, false, true)) : Tanh(x);
    case 23:
      return x.rank() >= 2 ? Tanh(MatMul(x, x, true, false) * .3) : Cos(x);
    case 24:
      return x.rank() >= 2 ? Tanh(MatMul(x, Transpose(x))) : Sin(x);
    case 25:
      return x.rank() >= 2 ? Transpose(x) : Reshape(x, {1, x.shape()[0]});
    case 26:
      return ReduceMax(x, {last}, true) * .5;
    case 27:
      return ReduceSum(x, {0}, true) * .3;
    case 28:
      return PadAxis(SliceAxis(x, last, 0, 1), last, 1, x.shape().back() - 2);
    case 29:
      return Concat({SliceAxis(x, 0, 0, 1), Mean(x, {0}, true)}, 0);
    case 30:
      return Select(Greater(x, z), x, Square(z));
    default: {
      std::vector<std::int32_t> picks;
      for (int i = 0; i < 3; ++i)
        picks.push_back(static_cast<std::int32_t>(random.Below(static_cast<std::uint64_t>(*x.shape()[0].Constant()))));
      return Gather(x, Constant(b, Literal::Of(Dtype::kI32, {3}, picks)));
    }
  }
}

inline RandomGraph MakeRandomGraph(Builder& b, std::uint64_t seed, int num_ops, Dtype dtype = Dtype::kF64) {
  Random random(seed);
  RandomGraph made;
  const std::vector<Shape> shapes = {{3, 4}, {4}, {2, 3, 4}, {1, 4}};
  std::vector<Value> pool;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    made.parameters.push_back(b.Input("p" + std::to_string(i), dtype, shapes[i]));
    pool.push_back(made.parameters.back());
  }
  for (int i = 0; i < num_ops; ++i) {
    Value next = RandomStep(b, random, pool);
    // Keep shapes small, and last dimensions at least 2 so that slices exist.
    if (!next.valid() || *NumElements(next.shape()).Constant() > 64 || next.rank() == 0 || !next.shape().back().Constant() ||
        *next.shape().back().Constant() < 2) {
      if (!next.valid()) break;
      next = Tanh(pool[random.Below(pool.size())] * 1.1);
    }
    pool.push_back(next);
  }
  Value loss;
  for (const Value& value : pool) {
    Value part = Mean(Sin(value));
    loss = loss.valid() ? loss + part : part;
  }
  made.loss = loss;
  return made;
}

}  // namespace ropewalk::mlrunner
