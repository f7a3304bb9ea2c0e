// GRU, RNN and LSTM of ONNX against the equations of their definition, written as plain loops; gradients against differences.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/random.h"
#include "tests/unit/onnx_models.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using testing::Distance;
using Attributes = std::map<std::string, Attribute>;

constexpr std::int64_t kSteps = 4, kBatch = 2, kIn = 3, kWidth = 2;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Numbers {
  RefTensor x, w, r, bias, h;
};
Numbers Drawn(std::int64_t gates, std::int64_t ways, std::uint64_t seed) {
  Random random(seed);
  auto draw = [&](Dims dims) {
    RefTensor tensor{dims, {}};
    for (std::int64_t i = 0; i < NumElements(dims); ++i) tensor.data.push_back(2 * random.Unit() - 1);
    return tensor;
  };
  return {draw({kSteps, kBatch, kIn}), draw({ways, gates * kWidth, kIn}), draw({ways, gates * kWidth, kWidth}),
          draw({ways, 2 * gates * kWidth}), draw({ways, kBatch, kWidth})};
}

// Row `row` of all gates' maps: w x + bias, and r h + bias.
struct Row {
  const Numbers& n;
  std::int64_t gates, way;
  double OfX(std::int64_t t, std::int64_t b, std::int64_t row) const {
    double sum = n.bias.data[static_cast<std::size_t>(way * 2 * gates * kWidth + row)];
    for (std::int64_t i = 0; i < kIn; ++i)
      sum += n.w.data[static_cast<std::size_t>((way * gates * kWidth + row) * kIn + i)] *
             n.x.data[static_cast<std::size_t>((t * kBatch + b) * kIn + i)];
    return sum;
  }
  double Bias(std::int64_t row) const { return n.bias.data[static_cast<std::size_t>((way * 2 + 1) * gates * kWidth + row)]; }
  double OfH(const std::vector<double>& h, std::int64_t row) const {  // without the bias
    double sum = 0;
    for (std::int64_t i = 0; i < kWidth; ++i)
      sum += n.r.data[static_cast<std::size_t>((way * gates * kWidth + row) * kWidth + i)] * h[static_cast<std::size_t>(i)];
    return sum;
  }
};

// The hidden state behind a step: from the state before, for one sample.
using Step = std::function<std::vector<double>(const Row& row, std::int64_t t, std::int64_t b, const std::vector<double>& h)>;

std::vector<double> Gru(bool maps_first, const Row& row, std::int64_t t, std::int64_t b, const std::vector<double>& h) {
  std::vector<double> z, r, reset, next;
  for (std::int64_t i = 0; i < kWidth; ++i) {
    z.push_back(Sigmoid(row.OfX(t, b, i) + row.OfH(h, i) + row.Bias(i)));
    r.push_back(Sigmoid(row.OfX(t, b, kWidth + i) + row.OfH(h, kWidth + i) + row.Bias(kWidth + i)));
    reset.push_back(r.back() * h[static_cast<std::size_t>(i)]);
  }
  for (std::int64_t i = 0; i < kWidth; ++i) {
    const std::int64_t at = 2 * kWidth + i;
    const auto j = static_cast<std::size_t>(i);
    const double from_h = maps_first ? r[j] * (row.OfH(h, at) + row.Bias(at)) : row.OfH(reset, at) + row.Bias(at);
    next.push_back((1 - z[j]) * std::tanh(row.OfX(t, b, at) + from_h) + z[j] * h[j]);
  }
  return next;
}
std::vector<double> Rnn(double (*f)(double), const Row& row, std::int64_t t, std::int64_t b, const std::vector<double>& h) {
  std::vector<double> next;
  for (std::int64_t i = 0; i < kWidth; ++i) next.push_back(f(row.OfX(t, b, i) + row.OfH(h, i) + row.Bias(i)));
  return next;
}

struct Case {
  const char* name;
  const char* op;
  std::int64_t gates, ways;
  Attributes attributes;
  Step step;
};
std::vector<Case> Cases() {
  auto gru = [](bool maps_first) {
    return [=](const Row& r, std::int64_t t, std::int64_t b, const std::vector<double>& h) { return Gru(maps_first, r, t, b, h); };
  };
  auto rnn = [](double (*f)(double)) {
    return [=](const Row& r, std::int64_t t, std::int64_t b, const std::vector<double>& h) { return Rnn(f, r, t, b, h); };
  };
  auto relu = +[](double x) { return std::max(x, 0.0); };
  auto tanh = +[](double x) { return std::tanh(x); };
  const Attribute both = std::string("bidirectional"), back = std::string("reverse"), one = std::int64_t{1};
  return {
      {"GRU as PyTorch has it", "GRU", 3, 1, {{"linear_before_reset", one}}, gru(true)},
      {"GRU that resets first", "GRU", 3, 1, {}, gru(false)},
      {"GRU of both ways", "GRU", 3, 2, {{"linear_before_reset", one}, {"direction", both}}, gru(true)},
      {"GRU that says its activations", "GRU", 3, 1, {{"activations", std::vector<std::string>{"Sigmoid", "Tanh"}}}, gru(false)},
      {"RNN", "RNN", 1, 1, {}, rnn(tanh)},
      {"RNN backwards", "RNN", 1, 1, {{"direction", back}}, rnn(tanh)},
      {"RNN of both ways", "RNN", 1, 2, {{"direction", both}, {"activations", std::vector<std::string>{"Relu", "Relu"}}}, rnn(relu)},
  };
}

// Y (T, ways, B, H), and Y_h behind it, flat.
std::vector<double> Expected(const Case& c, const Numbers& n) {
  std::vector<double> all(static_cast<std::size_t>(kSteps * c.ways * kBatch * kWidth)), last;
  for (std::int64_t way = 0; way < c.ways; ++way) {
    const auto direction = c.attributes.find("direction");
    const bool backwards = way == 1 || (direction != c.attributes.end() && std::get<std::string>(direction->second) == "reverse");
    const Row row{n, c.gates, way};
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const auto begin = n.h.data.begin() + (way * kBatch + b) * kWidth;
      std::vector<double> h(begin, begin + kWidth);
      for (std::int64_t i = 0; i < kSteps; ++i) {
        const std::int64_t t = backwards ? kSteps - 1 - i : i;
        h = c.step(row, t, b, h);
        for (std::int64_t j = 0; j < kWidth; ++j)
          all[static_cast<std::size_t>(((t * c.ways + way) * kBatch + b) * kWidth + j)] = h[static_cast<std::size_t>(j)];
      }
      last.insert(last.end(), h.begin(), h.end());
    }
  }
  all.insert(all.end(), last.begin(), last.end());
  return all;
}

ModelDef ModelOf(const std::string& op, const Numbers& n, const Attributes& attributes) {
  ModelDef model{17, "test", {}};
  model.graph.nodes = {{"layer", op, "", {"x", "w", "r", "bias", "", "h"}, {"y", "last"}, attributes}};
  const std::pair<const char*, const RefTensor*> inputs[] = {{"x", &n.x}, {"w", &n.w}, {"r", &n.r}, {"bias", &n.bias}, {"h", &n.h}};
  for (const auto& [name, tensor] : inputs) {
    ValueDef input{name, Dtype::kF64, true, {}};
    for (std::int64_t dim : tensor->dims) input.dims.push_back({dim, ""});
    model.graph.inputs.push_back(std::move(input));
  }
  model.graph.outputs = {{"y", Dtype::kF64, false, {}}, {"last", Dtype::kF64, false, {}}};
  return model;
}

TEST(OnnxRecurrent, LayersAreTheirEquations) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Numbers n = Drawn(c.gates, c.ways, 11);
    Builder b;
    auto made = ImportModel(b, ModelOf(c.op, n, c.attributes), "model.onnx");
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    std::vector<Value> inputs;
    Value loss = b.Number(0, Dtype::kF64);
    for (const NamedResult& output : made->outputs) {
      b.Output(output.name, output.value);
      loss = loss + ReduceSum(Sin(output.value));
    }
    for (const NamedResult& input : made->inputs) inputs.push_back(input.value);
    for (const Gradient& gradient : Grad(loss, inputs)) b.Output("gradient", gradient);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    std::map<std::string, RefTensor> states;
    auto got = Evaluate(*graph, {}, {n.x, n.w, n.r, n.bias, n.h}, states);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    const std::vector<double> expected = Expected(c, n);
    std::vector<double> all = got->outputs[0].data;
    EXPECT_EQ(got->outputs[0].dims, (Dims{kSteps, c.ways, kBatch, kWidth}));
    EXPECT_EQ(got->outputs[1].dims, (Dims{c.ways, kBatch, kWidth}));
    all.insert(all.end(), got->outputs[1].data.begin(), got->outputs[1].data.end());
    ASSERT_EQ(all.size(), expected.size());
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(all[i], expected[i], 1e-12) << i;

    // One number of each input, a little more and less.
    const auto loss_of = [&](const Numbers& numbers) {
      double sum = 0;
      for (double value : Expected(c, numbers)) sum += std::sin(value);
      return sum;
    };
    constexpr RefTensor Numbers::* kParts[] = {&Numbers::x, &Numbers::w, &Numbers::r, &Numbers::bias, &Numbers::h};
    for (std::size_t part = 0; part < 5; ++part) {
      for (std::size_t at : {std::size_t{0}, (n.*kParts[part]).data.size() - 1}) {
        Numbers more = n, less = n;
        constexpr double kStep = 1e-5;
        (more.*kParts[part]).data[at] += kStep;
        (less.*kParts[part]).data[at] -= kStep;
        EXPECT_NEAR(got->outputs[2 + part].data[at], (loss_of(more) - loss_of(less)) / (2 * kStep), 1e-7)
            << "input " << part << " at " << at;
      }
    }
  }
}

TEST(OnnxRecurrent, OtherLayersAreRefused) {
  const auto refused = [](const char* op, std::int64_t gates, Attributes attributes) {
    Builder b;
    return ImportModel(b, ModelOf(op, Drawn(gates, 1, 3), attributes), "model.onnx").status();
  };
  const Attribute affine = std::vector<std::string>{"Affine", "Affine", "Affine"};
  EXPECT_TRUE(refused("LSTM", 4, {{"activations", std::vector<std::string>{"Sigmoid", "Tanh", "Tanh"}}}).ok());
  EXPECT_EQ(refused("LSTM", 4, {{"activations", affine}}).tag(), "ONNX05");
  EXPECT_EQ(refused("GRU", 3, {{"activations", affine}}).tag(), "ONNX05");
  EXPECT_EQ(refused("RNN", 1, {{"activations", affine}}).tag(), "ONNX05");
  EXPECT_EQ(refused("RNN", 1, {{"activations", std::vector<std::string>{}}}).tag(), "ONNX05");
  EXPECT_EQ(refused("GRU", 3, {{"clip", 1.0}}).tag(), "ONNX05");
  EXPECT_EQ(refused("GRU", 3, {{"layout", std::int64_t{1}}}).tag(), "ONNX05");
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
