// LSTM: layers beside PyTorch's numbers and beside a plain loop, models' parameters and gradients, and what the layer refuses.
#include <gtest/gtest.h>

#include <functional>

#include "mlrunner/models/lstm.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kLength = 4, kSymbols = 7;

std::vector<double> Sines(std::size_t count, double start) {
  std::vector<double> values(count);
  for (std::size_t k = 0; k < count; ++k) values[k] = std::sin(start + .7 * static_cast<double>(k));
  return values;
}
void ExpectNear(const std::vector<double>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-14) << what << " " << k;
}

// nn.LSTM(3, 2, 2) of PyTorch 2.15 in float64, steps 3, batch 2: each tensor begins as sin(start + .7 k), the parameters of its
// named_parameters() with starts 1 to 8, x 20, h0 30, c0 40; loss = sum(sin(y)) + 2 sum(c_n) + sum(h_n^2).
TEST(Lstm, IsPyTorchs) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {3, 2, 3}), h = b.Input("h", Dtype::kF64, {2, 2, 2}), c = b.Input("c", Dtype::kF64, {2, 2, 2});
  auto layer = [](const Value& all, std::int64_t k) { return Reshape(SliceAxis(all, 0, k, k + 1), {2, 2}); };
  // Parameters are f32 in a layer; here their twins in f64, by the passes.
  Value x32 = Cast(x, Dtype::kF32), h32 = Cast(h, Dtype::kF32), c32 = Cast(c, Dtype::kF32);
  Layers m(b);
  LstmResult r = LstmLayers(b, m, "net", x32,
                            {.hidden = 2,
                             .layers = 2,
                             .dropout = 0,
                             .hidden_first = {layer(h32, 0), layer(h32, 1)},
                             .cell_first = {layer(c32, 0), layer(c32, 1)}});
  Value loss = ReduceSum(Sin(r.y));
  for (int k = 0; k < 2; ++k) loss = loss + ReduceSum(r.cell[k]) * 2.0 + ReduceSum(Square(r.hidden[k]));
  for (const Value& value : {r.y, Concat(r.hidden, 0), Concat(r.cell, 0)}) b.Output("states", value);
  std::vector<Value> with(m.parameters().begin(), m.parameters().end());
  ASSERT_EQ(with.size(), 8u);
  const auto grads = Grad(loss, {with[0], with[1], with[3], with[5], x32, h32, c32});
  for (const Gradient& g : grads) b.Output("gradient", g);
  std::vector<std::string> names;
  for (const Parameter& p : m.parameters()) names.push_back(b.graph().state(p.state).name);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  ASSERT_TRUE(wide.ok()) << wide.status().ToString();
  std::map<std::string, RefTensor> states;
  for (std::size_t k = 0; k < names.size(); ++k) {
    Dims dims = Evaluate(wide->states[k].logical, {});
    states[names[k]] = {dims, Sines(static_cast<std::size_t>(NumElements(dims)), 1 + static_cast<double>(k))};
  }
  auto result = Evaluate(*wide, {}, {{{3, 2, 3}, Sines(18, 20)}, {{2, 2, 2}, Sines(8, 30)}, {{2, 2, 2}, Sines(8, 40)}}, states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  const std::vector<std::pair<const char*, std::vector<double>>> want = {
      {"y",
       {-0.4318022136157412, -0.07683246685399306, -0.13748857588068447, -0.21830604146249505, -0.12785044082353145, -0.3053623971856533,
        -0.09401538425696948, -0.2786199590910506, -0.2094453910603396, -0.4282348100957211, -0.13614018325845478, -0.3626171282397868}},
      {"h_n",
       {0.022414715210535553, 0.34486134166386195, -0.2746011558036793, 0.126850015597739, -0.2094453910603396, -0.4282348100957211,
        -0.13614018325845478, -0.3626171282397868}},
      {"c_n",
       {0.03909833287503941, 0.3777062568259179, -0.3498971177527193, 0.155689128197568, -1.9245602691055632, -1.238167912423774,
        -1.2741991685753358, -1.2195511679599367}},
      {"weight_ih_l0", {0.19650365297858305,  0.12372591890485139,   -0.007242048100642906, -0.08292098173954694,  -0.24143203316592857,
                        -0.2863938269147921,  -0.028074781493352623, -0.03573616183326782,  -0.026590266870065472, -0.03524794350643298,
                        -0.0657861373550951,  -0.06538408286890449,  -0.15657680945927097,  -0.17451181057150464,  -0.11037118034970117,
                        -0.08447643781737692, -0.24562533267517644,  -0.29125279557414624,  -0.0875284739008664,   -0.007281282682539595,
                        0.07639040955456601,  0.007646236423343546,  -0.019667453361429388, -0.03773123251788631}},
      {"weight_hh_l0",
       {-0.16978362670730449, -0.09892338871851837, -0.1209953662648757, -0.0035308645321560014, 0.13761058997048153, 0.04847344742251221,
        -0.008436001010355838, 0.03398769075077974, -0.018017317703246764, -0.01321556188661357, -0.04390708485807443, 0.010873771982938412,
        -0.05952071179122091, 0.008565242908138888, 0.020397017537272504, -0.009249366260975242}},
      {"bias_hh_l0",
       {0.2892241456319237, 0.3631012373045012, -0.2050730167666565, 0.06340815185562859, -0.11186093362263275, 0.2296484087084337,
        0.13216390765008068, -0.08292404138364583}},
      {"weight_hh_l1",
       {-0.015452558049657478, 0.14087198188044261, 0.1295621521851962, 0.26020501926360873, 0.222550582122575, 0.22076997412874538,
        0.19578621401784826, 0.22344353635077488, -0.39299213142651046, -0.4542632824982711, 0.5841974474431125, 0.44208256439030563,
        0.03846526185356877, 0.07249271770379176, 0.01905678901933361, 0.05595283853693239}},
      {"x",
       {0.24205593033936415, 0.21152487266264627, 0.08151036220537841, 0.08613589264635196, 0.11389611841384607, 0.08808922001536634,
        0.019992182494911685, 0.1868165555818486, 0.26577818348943877, 0.04763472580990296, 0.16215819501623263, 0.20041613131473687,
        -0.12323971590867948, -0.23829283250914315, -0.24127310655233922, 0.1300622693939311, -0.06106623992889742, -0.22347434242684547}},
      {"h_0",
       {0.22332533242620195, 0.13040751072794393, -0.019869246299383393, 0.11331218889205168, 0.18384721684549932, 0.6191404134715468,
        -0.22225341404252902, -0.24356704685234454}},
      {"c_0",
       {-0.15355136083327312, -0.14126950731218677, -0.00787052660683981, -0.050497675766030904, 0.7140555071446124, 0.09142342101274893,
        0.6741341942220734, 0.38866935072988945}},
  };
  ASSERT_EQ(result->outputs.size(), want.size());
  for (std::size_t k = 0; k < want.size(); ++k) ExpectNear(result->outputs[k].data, want[k].second, want[k].first);
}

Built BuildLanguage(const LstmShape& shape) {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {b.NewSymbol("B"), kLength}), labels = b.Input("labels", Dtype::kI32, ids.shape());
  return Finish(b, LstmLanguage(b, shape, ids), labels);
}
Built BuildClassifier(const LstmShape& shape, std::int64_t classes) {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {b.NewSymbol("B"), kLength}), labels = b.Input("labels", Dtype::kI32, {ids.dim(0)});
  return Finish(b, LstmClassifier(b, shape, classes, ids), labels);
}
constexpr LstmShape kSmall{.symbols = kSymbols, .width = 3, .hidden = 4, .layers = 2};

TEST(Lstm, ModelsShapesAndSizes) {
  Built language = BuildLanguage({.symbols = 1000, .width = 128, .hidden = 256, .layers = 2});
  EXPECT_EQ(language.logits, "(B, 4, 1000)");
  // As nn.LSTM(128, 256, 2) has them, a table and a linear map.
  const std::int64_t first = 1024 * 128 + 1024 * 256 + 2 * 1024, second = 2 * 1024 * 256 + 2 * 1024;
  EXPECT_EQ(language.numbers, 1000 * 128 + first + second + 256 * 1000 + 1000);
  EXPECT_EQ(language.parameters,
            (std::vector<std::string>{"tokens", "lstm/layer0/w_ih", "lstm/layer0/w_hh", "lstm/layer0/b_ih", "lstm/layer0/b_hh",
                                      "lstm/layer1/w_ih", "lstm/layer1/w_hh", "lstm/layer1/b_ih", "lstm/layer1/b_hh", "head/w", "head/b"}));
  EXPECT_EQ(BuildClassifier(kSmall, 5).logits, "(B, 5)");
}

TEST(Lstm, GradientsAreThoseOfTheLoss) {
  GradientsAreDifferences(BuildLanguage(kSmall), kSymbols);
  GradientsAreDifferences(BuildClassifier(kSmall, kSymbols), kSymbols);
}

// nn.LSTM(3, 2, bidirectional=True) of PyTorch 2.15 in float64, in the same way: parameters with starts 1 to 8 (forwards, then backwards),
// x 20, h0 30, c0 40 of (2, 2, 2).
TEST(Lstm, BothDirectionsArePyTorchs) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {3, 2, 3}), h = b.Input("h", Dtype::kF32, {2, 2, 2}), c = b.Input("c", Dtype::kF32, {2, 2, 2});
  auto state = [](const Value& all, std::int64_t k) { return Reshape(SliceAxis(all, 0, k, k + 1), {2, 2}); };
  Layers m(b);
  LstmResult r = LstmLayers(b, m, "net", x,
                            {.hidden = 2,
                             .layers = 1,
                             .bidirectional = true,
                             .hidden_first = {state(h, 0), state(h, 1)},
                             .cell_first = {state(c, 0), state(c, 1)}});
  EXPECT_EQ(r.y.shape(), Shape({3, 2, 4}));
  Value loss = ReduceSum(Sin(r.y));
  for (int k = 0; k < 2; ++k) loss = loss + ReduceSum(r.cell[k]) * 2.0 + ReduceSum(Square(r.hidden[k]));
  for (const Value& value : {r.y, Concat(r.hidden, 0), Concat(r.cell, 0)}) b.Output("states", value);
  std::vector<std::string> names;
  for (const Parameter& p : m.parameters()) names.push_back(b.graph().state(p.state).name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"net/layer0/w_ih", "net/layer0/w_hh", "net/layer0/b_ih", "net/layer0/b_hh", "net/layer0/reverse/w_ih",
                                      "net/layer0/reverse/w_hh", "net/layer0/reverse/b_ih", "net/layer0/reverse/b_hh"}));
  ASSERT_EQ(names.size(), 8u);
  for (const Gradient& g : Grad(loss, {x, m.parameters()[4]})) b.Output("gradient", g);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  ASSERT_TRUE(wide.ok()) << wide.status().ToString();
  std::map<std::string, RefTensor> states;
  for (std::size_t k = 0; k < names.size(); ++k) {
    Dims dims = Evaluate(wide->states[k].logical, {});
    states[names[k]] = {dims, Sines(static_cast<std::size_t>(NumElements(dims)), 1 + static_cast<double>(k))};
  }
  auto result = Evaluate(*wide, {}, {{{3, 2, 3}, Sines(18, 20)}, {{2, 2, 2}, Sines(8, 30)}, {{2, 2, 2}, Sines(8, 40)}}, states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  const std::vector<std::pair<const char*, std::vector<double>>> want = {
      {"y", {-0.3831472855944797,  0.06570762801057525,  -0.01972666058097522, -0.6728710186800865,  0.030739644594867017,
             0.1607588963470541,   -0.13176394658896606, -0.14708720546404339, -0.19708230640998708, 0.11912642254574353,
             -0.26550359376841814, -0.10699976989727518, -0.5166093477058586,  0.07897595589132246,  0.0034546600666236905,
             -0.6611477964720447,  0.02241471521053555,  0.344861341663862,    -0.5779791592464212,  0.02769170842424641,
             -0.2746011558036793,  0.126850015597739,    -0.27409767983424876, -0.08218535779151256}},
      {"h_n",
       {0.02241471521053555, 0.344861341663862, -0.2746011558036793, 0.126850015597739, -0.01972666058097522, -0.6728710186800865,
        -0.13176394658896606, -0.14708720546404339}},
      {"c_n",
       {0.0390983328750394, 0.37770625682591796, -0.3498971177527193, 0.155689128197568, -0.4150356367885063, -1.0314133414299453,
        -0.785216285353098, -0.9606316149213481}},
      {"x",
       {-0.63820759815307, 0.2709899808090803, 1.052736737461468, 0.1844185679152721, -0.5763891946708521, -1.066112112673671,
        -0.1314414234938739, -0.09976334671057474, -0.02116500912399899, -0.2680415491768699, -0.31497142949637547, -0.21376532495938882,
        0.062281567987848396, -0.3710301958613083, -0.629840661090159, 0.05284367982335436, -0.5843638499715864, -0.94673593018786}},
      {"weight_ih_l0_reverse",
       {0.7964376411895692,   0.9430261565856608,  0.646094735349354,   0.1595982846118316,   0.1997613678994873,  0.14597355850653873,
        -0.8109732511861333,  -1.0794675802006375, -0.8402714391005683, -0.25068389118808343, 0.15755472487464922, 0.4916928919683488,
        0.6947563974875267,   0.8887041772831077,  0.6646804961166227,  -0.03919483276592659, -0.3643977436187563, -0.5182187017758764,
        0.024524196695189654, 0.08952607193120188, 0.11242243665450807, 0.07949170362668367,  0.03623452630899993, -0.024064314911898126}},
  };
  ASSERT_EQ(result->outputs.size(), want.size());
  for (std::size_t k = 0; k < want.size(); ++k) ExpectNear(result->outputs[k].data, want[k].second, want[k].first);
}

TEST(Lstm, AClassifierOfBothDirections) {
  Built both = BuildClassifier({.symbols = kSymbols, .width = 3, .hidden = 4, .layers = 2, .bidirectional = true}, 5);
  EXPECT_EQ(both.logits, "(B, 5)");
  // As nn.LSTM(3, 4, 2, bidirectional=True) has them, a table and a map of both states.
  const std::int64_t first = 16 * 3 + 16 * 4 + 32, second = 16 * 8 + 16 * 4 + 32;
  EXPECT_EQ(both.numbers, kSymbols * 3 + 2 * (first + second) + 8 * 5 + 5);
  GradientsAreDifferences(both, 5);
  Builder b;
  LstmLanguage(b, {.symbols = 3, .width = 2, .hidden = 2, .layers = 1, .bidirectional = true}, b.Input("ids", Dtype::kI32, {2, 4}));
  EXPECT_EQ(b.status().tag(), "GRAPH09");
  EXPECT_NE(b.status().why().find("backwards it would see"), std::string::npos) << b.status().ToString();
}

TEST(Lstm, ALanguageModelLooksBackOnly) { LooksBackOnly(BuildLanguage(kSmall), kLength, kSymbols); }

// Dropout lies between layers: one layer has none, and of two only the second one's input is changed.
TEST(Lstm, DropoutLiesBetweenLayers) {
  auto ops = [](std::int64_t layers) {
    LstmShape shape = kSmall;
    shape.layers = layers;
    shape.dropout = .5;
    std::size_t count = 0;
    for (const Op& op : BuildLanguage(shape).graph.ops) count += op.def->name == "RandomUniform";
    return count;
  };
  EXPECT_EQ(ops(1), 0u);
  EXPECT_EQ(ops(3), 2u);
}

TEST(Lstm, WhatDoesNotFitIsRefused) {
  auto refusal = [](const std::function<void(Builder&)>& write) {
    Builder b;
    write(b);
    auto graph = b.Finish();
    EXPECT_FALSE(graph.ok());
    EXPECT_EQ(graph.status().tag(), "GRAPH01");
    return graph.status().ToString();
  };
  auto input = [](Builder& b, const char* name, Shape shape) { return b.Input(name, Dtype::kF32, std::move(shape)); };
  EXPECT_NE(refusal([&](Builder& b) {
              Value h = input(b, "h", {2, 3});
              Lstm(input(b, "x", {5, 2, 12}), input(b, "bias", {12}), input(b, "w", {3, 12}), h, h);  // transposed
            }).find("(4 H, H)"),
            std::string::npos);
  EXPECT_NE(refusal([&](Builder& b) {
              Value h = input(b, "h", {2, 3});
              Lstm(input(b, "x", {b.NewSymbol("T"), 2, 12}), input(b, "bias", {12}), input(b, "w", {12, 3}), h, h);
            }).find("number of steps is T"),
            std::string::npos);
  EXPECT_NE(refusal([&](Builder& b) {
              Layers m(b);
              LstmLayers(b, m, "lstm", input(b, "x", {5, 2, 12}), {.hidden = 3, .layers = 1, .hidden_first = {input(b, "h", {2, 4})}});
            }).find("(2, 4)"),
            std::string::npos);
}

}  // namespace
}  // namespace ropewalk::mlrunner
