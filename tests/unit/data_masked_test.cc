// Masked tokens: how many places, what stands there, and of what it is a function.
#include "mlrunner/data/masked.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <numeric>

#include "mlrunner/data/text.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using testing::ValuesOf;

constexpr std::int64_t kLength = 20;

class MaskedTokens : public ::testing::Test {
 protected:
  DataSet Load(MaskOptions options) {
    std::string text;
    for (int i = 0; i < 40'000; ++i) text += static_cast<char>('a' + i * 7 % 26);
    const std::string path = folder_.path() + "/text";
    std::ofstream(path) << text;
    auto data = LoadText(path, kLength, .1), plain = LoadText(path, kLength, .1);
    EXPECT_TRUE(data.ok() && plain.ok()) << data.status().ToString();
    plain_ = *std::move(plain);
    return MaskTokens(*std::move(data), options);
  }
  static std::vector<std::int64_t> All(const Samples& samples) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(samples.count()));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  testing::TempFolder folder_;
  DataSet plain_;
};

TEST_F(MaskedTokens, EightTenthsAreTheMaskATenthIsDrawnATenthIsWhatItWas) {
  const DataSet data = Load({.part = .15, .seed = 5});
  const Samples& s = *data.training;
  EXPECT_EQ(s.fields(),
            (std::vector<Field>{
                {"tokens", Dtype::kI32, {kLength}, 27}, {"mask", Dtype::kF32, {kLength}}, {"original", Dtype::kI32, {kLength}, 27}}));
  EXPECT_EQ(s.labels_are(), "masked characters");
  EXPECT_EQ(s.NumLabels(All(s)), 3 * s.count());
  const auto tokens = ValuesOf<std::int32_t>(s, "tokens", All(s)), original = ValuesOf<std::int32_t>(s, "original", All(s));
  const auto mask = ValuesOf<float>(s, "mask", All(s));
  EXPECT_EQ(original, ValuesOf<std::int32_t>(*plain_.training, "tokens", All(s)));
  std::map<int, double> places;
  double hidden = 0, same = 0, other = 0;
  for (std::size_t at = 0; at < tokens.size(); at += kLength) {
    double here = 0;
    for (std::size_t t = at; t < at + kLength; ++t) {
      here += mask[t];
      if (mask[t] == 0) {
        ASSERT_EQ(tokens[t], original[t]) << "only what is asked for is changed";
        continue;
      }
      ASSERT_EQ(mask[t], 1);
      ++places[static_cast<int>(t % kLength)];
      (tokens[t] == 26 ? hidden : tokens[t] == original[t] ? same : other) += 1;
    }
    ASSERT_EQ(here, 3) << "round(.15 * 20) places in each";
  }
  const double all = hidden + same + other;
  EXPECT_NEAR(hidden / all, .8, .02);
  EXPECT_NEAR(other / all, .1 * 25 / 26, .015) << "one of 26 that are drawn is what was there";
  EXPECT_NEAR(same / all, .1 + .1 / 26, .015);
  for (int place = 0; place < kLength; ++place) EXPECT_NEAR(places[place] / all, 1.0 / kLength, .01) << place;
}

TEST_F(MaskedTokens, AreAFunctionOfSeedEpochAndSample) {
  const DataSet data = Load({.part = .3, .seed = 5}), again = Load({.part = .3, .seed = 5}), other = Load({.part = .3, .seed = 6});
  const std::vector<std::int64_t> some = {3, 0, 99};
  auto tokens = [&](const Samples& s, const std::vector<std::int64_t>& ids, std::int64_t epoch) {
    return ValuesOf<std::int32_t>(s, "tokens", ids, epoch);
  };
  const Samples& s = *data.training;
  EXPECT_EQ(tokens(s, some, 4), tokens(*again.training, some, 4));
  // Whatever else is in the batch: each rank makes its own part.
  const auto three = tokens(s, some, 4), one = tokens(s, {99}, 4);
  EXPECT_EQ(std::vector<std::int32_t>(three.end() - kLength, three.end()), one);
  EXPECT_NE(tokens(s, some, 4), tokens(s, some, 5));
  EXPECT_NE(tokens(s, some, 4), tokens(*other.training, some, 4));
  EXPECT_NE(ValuesOf<float>(s, "mask", {0}, 4), ValuesOf<float>(s, "mask", {1}, 4));
  EXPECT_EQ(ValuesOf<float>(s, "mask", some, 4), [&] {
    std::vector<float> narrow;
    for (double value : ValuesOf<double>(s, "mask", some, 4)) narrow.push_back(static_cast<float>(value));
    return narrow;
  }());
  // What is held out is asked the same each time, and not what the training is.
  EXPECT_EQ(tokens(*data.held_out, some, 0), tokens(*data.held_out, some, 7));
  EXPECT_NE(ValuesOf<float>(*data.held_out, "mask", {0}), ValuesOf<float>(s, "mask", {0}));
}

TEST_F(MaskedTokens, OnePlaceAtLeast) {
  const DataSet few = Load({.part = 0, .seed = 1}), many = Load({.part = .999, .seed = 1});
  EXPECT_EQ(few.training->NumLabels(std::vector<std::int64_t>{0, 1}), 2);
  EXPECT_EQ(many.training->NumLabels(std::vector<std::int64_t>{0}), kLength);
  EXPECT_NE(few.training->content_hash(), many.training->content_hash());
  EXPECT_EQ(few.training->vocabulary_hash(), plain_.training->vocabulary_hash());
}

}  // namespace
}  // namespace ropewalk::mlrunner
