// Mixture of experts: beside plain loops, what is over capacity, the auxiliary loss, gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "mlrunner/models/moe.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kTokens = 6, kWidth = 3, kExperts = 4, kHidden = 5;

struct Case {
  std::int64_t each = 2;
  double factor = 1.25;
};
struct Ran {
  Graph graph;
  std::map<std::string, RefTensor> states;
  RefTensor x;
  std::vector<RefTensor> outputs;  // y, auxiliary loss, dropped
};
void RunBlock(const Case& test, std::uint64_t seed, Ran* ran) {
  Builder b;
  Layers m(b);
  Value x = b.Input("x", Dtype::kF32, {2, kTokens / 2, kWidth});
  MoeResult r =
      MoeBlock(b, m, "moe", x, {.experts = kExperts, .each = test.each, .hidden = kHidden, .capacity_factor = test.factor, .sharding = {}});
  b.Output("y", r.y);
  b.Output("auxiliary", r.auxiliary_loss);
  b.Output("dropped", r.dropped);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  ASSERT_TRUE(wide.ok()) << wide.status().ToString();
  ran->graph = *wide;
  Random random(seed);
  ran->x = {{2, kTokens / 2, kWidth}, {}};
  for (std::int64_t i = 0; i < kTokens * kWidth; ++i) ran->x.data.push_back(random.Unit() * 2 - 1);
  ASSERT_TRUE(Evaluate(ran->graph, {}, {ran->x}, ran->states).ok());
  for (auto& [name, tensor] : ran->states) {
    for (double& value : tensor.data) value = random.Unit() * 2 - 1;
  }
  auto result = Evaluate(ran->graph, {}, {ran->x}, ran->states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ran->outputs = result->outputs;
}

double Gelu(double x) { return .5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + .044715 * x * x * x))); }
// Token by token and expert by expert, choices in the order of their rank.
void Plain(const Case& test, const Ran& ran, std::vector<double>* y, double* auxiliary, double* dropped) {
  auto at = [&](const char* name) -> const std::vector<double>& { return ran.states.at(std::string("moe/") + name).data; };
  const auto capacity =
      static_cast<std::int64_t>(std::ceil(test.factor * static_cast<double>(test.each * kTokens) / static_cast<double>(kExperts)));
  std::vector<std::vector<double>> p(kTokens, std::vector<double>(kExperts));
  std::vector<std::vector<std::int64_t>> order(kTokens, std::vector<std::int64_t>(kExperts));
  std::vector<double> chosen(kExperts), mean(kExperts);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double sum = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      double logit = 0;
      for (std::int64_t k = 0; k < kWidth; ++k) logit += ran.x.data[t * kWidth + k] * at("router")[k * kExperts + e];
      sum += p[t][e] = std::exp(logit);
    }
    for (std::int64_t e = 0; e < kExperts; ++e) mean[e] += (p[t][e] /= sum) / kTokens;
    std::iota(order[t].begin(), order[t].end(), 0);
    std::sort(order[t].begin(), order[t].end(), [&](std::int64_t a, std::int64_t b) { return p[t][a] > p[t][b]; });
  }
  *y = ran.x.data;
  *dropped = 0;
  std::vector<std::int64_t> taken(kExperts);
  for (std::int64_t rank = 0; rank < test.each; ++rank) {
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t e = order[t][rank];
      chosen[e] += 1.0 / static_cast<double>(test.each * kTokens);
      if (taken[e]++ >= capacity) {
        ++*dropped;
        continue;
      }
      double sum = 0;
      for (std::int64_t k = 0; k < test.each; ++k) sum += p[t][order[t][k]];
      const double weight = p[t][e] / (test.each > 1 ? sum : 1);
      std::vector<double> hidden(kHidden);
      for (std::int64_t h = 0; h < kHidden; ++h) {
        double z = at("experts/up/b")[e * kHidden + h];
        for (std::int64_t k = 0; k < kWidth; ++k) z += ran.x.data[t * kWidth + k] * at("experts/up/w")[(e * kWidth + k) * kHidden + h];
        hidden[h] = Gelu(z);
      }
      for (std::int64_t k = 0; k < kWidth; ++k) {
        double z = at("experts/down/b")[e * kWidth + k];
        for (std::int64_t h = 0; h < kHidden; ++h) z += hidden[h] * at("experts/down/w")[(e * kHidden + h) * kWidth + k];
        (*y)[t * kWidth + k] += weight * z;
      }
    }
  }
  *auxiliary = 0;
  for (std::int64_t e = 0; e < kExperts; ++e) *auxiliary += .01 * kExperts * chosen[e] * mean[e];
}

TEST(Moe, IsWhatPlainLoopsGive) {
  double all_dropped = 0;
  for (const Case& test : {Case{1, 1.0}, Case{2, 1.25}, Case{2, .5}, Case{3, 8.0}, Case{4, .25}}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE("k " + std::to_string(test.each) + ", cf " + std::to_string(test.factor) + ", seed " + std::to_string(seed));
      Ran ran;
      ASSERT_NO_FATAL_FAILURE(RunBlock(test, seed, &ran));
      std::vector<double> y;
      double auxiliary = 0, dropped = 0;
      Plain(test, ran, &y, &auxiliary, &dropped);
      for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(ran.outputs[0].data[i], y[i], 1e-12) << i;
      EXPECT_NEAR(ran.outputs[1].data[0], auxiliary, 1e-14);
      EXPECT_EQ(ran.outputs[2].data[0], dropped);
      if (test.factor >= 8) {
        EXPECT_EQ(dropped, 0);
      }
      all_dropped += dropped;
    }
  }
  EXPECT_GT(all_dropped, 0);
}

// With a capacity of one place an expert takes one token; the others' rows are x, bit for bit.
TEST(Moe, TokensOverCapacityPassByTheResidual) {
  Ran ran;
  ASSERT_NO_FATAL_FAILURE(RunBlock({1, .25}, 3, &ran));  // ceil(.25 * 6 / 4) = 1
  std::int64_t same = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    same += std::equal(ran.x.data.begin() + t * kWidth, ran.x.data.begin() + (t + 1) * kWidth, ran.outputs[0].data.begin() + t * kWidth);
  }
  EXPECT_EQ(static_cast<double>(same), ran.outputs[2].data[0]);
  EXPECT_GE(same, kTokens - kExperts);
}

TEST(Moe, GradientsAreThoseOfTheLoss) {
  for (const Case& test : {Case{1, 1.0}, Case{2, .5}}) {
    Builder b;
    Layers m(b);
    Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B"), 4, kWidth}), labels = b.Input("labels", Dtype::kI32, {x.dim(0), 4});
    // So that the loss is no function of x alone where a token passes by, and x has no gradient of its own here.
    MoeResult r = MoeBlock(b, m, "moe", x,
                           {.experts = kExperts, .each = test.each, .hidden = kHidden, .capacity_factor = test.factor, .sharding = {}});
    Value logits = m.Linear("head", r.y, kWidth, FanIn(x, 1));
    GradientsAreDifferences(FinishWithLoss(b, {logits, m.parameters()}, Mean(CrossEntropy(logits, labels)) + r.auxiliary_loss), kWidth);
  }
}

// A group that is alone is what it is in a batch: experts' rooms are its own.
TEST(Moe, GroupsAreEachOnTheirOwn) {
  constexpr std::int64_t kGroups = 5;
  auto build = [](std::int64_t groups) {
    Builder b;
    Layers m(b);
    Value x = b.Input("x", Dtype::kF32, {groups == 1 ? Dim(1) : b.NewSymbol("B"), kTokens, kWidth});
    MoeResult r = MoeBlock(
        b, m, "moe", x, {.experts = kExperts, .each = 2, .hidden = kHidden, .capacity_factor = .7, .grouped = groups > 1, .sharding = {}});
    b.Output("y", r.y);
    b.Output("auxiliary", r.auxiliary_loss);
    b.Output("dropped", r.dropped);
    auto graph = b.Finish();
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
    return *ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  };
  const Graph together = build(kGroups), alone = build(1);
  Random random(9);
  RefTensor x{{kGroups, kTokens, kWidth}, {}};
  for (std::int64_t i = 0; i < kGroups * kTokens * kWidth; ++i) x.data.push_back(random.Unit() * 2 - 1);
  std::map<std::string, RefTensor> states;
  ASSERT_TRUE(Evaluate(together, {kGroups}, {x}, states).ok());
  for (auto& [name, tensor] : states)
    for (double& value : tensor.data) value = random.Unit() * 4 - 2;
  auto all = Evaluate(together, {kGroups}, {x}, states);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  double dropped = 0;
  for (std::int64_t g = 0; g < kGroups; ++g) {
    const auto first = x.data.begin() + g * kTokens * kWidth;
    auto one = Evaluate(alone, {}, {{{1, kTokens, kWidth}, {first, first + kTokens * kWidth}}}, states);
    ASSERT_TRUE(one.ok()) << one.status().ToString();
    for (std::int64_t i = 0; i < kTokens * kWidth; ++i)
      EXPECT_EQ(all->outputs[0].data[g * kTokens * kWidth + i], one->outputs[0].data[i]) << g << " at " << i;
    EXPECT_NEAR(all->outputs[1].data[g], one->outputs[1].data[0], 1e-15) << g;
    EXPECT_EQ(all->outputs[2].data[g], one->outputs[2].data[0]) << g;
    dropped += one->outputs[2].data[0];
  }
  EXPECT_GT(dropped, 0);
}

TEST(Moe, CapacitiesOfNumbersAndSymbols) {
  std::vector<SymbolInfo> symbols{{"B", 1, 0}};
  const Dim b = Symbol{0};
  auto capacity = [&](const Dim& tokens, std::int64_t experts, std::int64_t each, double factor) {
    auto result = Capacity(tokens, {.experts = experts, .each = each, .capacity_factor = factor, .sharding = {}}, symbols);
    return result.ok() ? result->ToString(symbols) : std::string(result.status().tag());
  };
  EXPECT_EQ(capacity(100, 8, 2, 1.25), "32");  // 31.25
  EXPECT_EQ(capacity(100, 10, 1, 1.1), "11");  // no rounding above
  EXPECT_EQ(capacity(100, 10, 1, 1.11), "12");
  EXPECT_EQ(capacity(Dim(8) * b, 4, 1, 1.5), "3*B");
  EXPECT_EQ(capacity(b, 4, 1, 1.5), "GRAPH09");
}

}  // namespace
}  // namespace ropewalk::mlrunner
