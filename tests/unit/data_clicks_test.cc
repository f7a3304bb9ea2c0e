// Click logs: the rows that categories hash to, which column is what, records, and what is wrong with which line, column and byte.
#include "mlrunner/data/clicks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>

#include "base/hash.h"
#include "base/random.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using testing::ValuesOf;

class ClickLogs : public ::testing::Test {
 protected:
  std::string Write(const std::string& text, const std::string& name = "t.csv") {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << text;
    return folder_.path() + "/" + name;
  }
  Result<DataSet> Csv(const std::string& text, CsvClickOptions options) { return LoadCsvClicks(Write(text), options); }
  testing::TempFolder folder_;
};

std::vector<std::int64_t> All(const Samples& samples) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(samples.count()));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
std::vector<float> Dense(const Samples& s) { return ValuesOf<float>(s, "dense", All(s)); }
std::vector<std::int32_t> Ids(const Samples& s) { return ValuesOf<std::int32_t>(s, "ids", All(s)); }
std::vector<float> Clicked(const Samples& s) { return ValuesOf<float>(s, "click", All(s)); }

constexpr ClickOptions kAsTheyAre{.rows = 100, .held_out = 0, .scale = false};

// The hash is part of what a model has learnt: these numbers never change.
TEST(RowOf, IsFixedForEver) {
  EXPECT_EQ(RowOf("ann", 1000), 1 + static_cast<std::int32_t>(((KeyHash64("ann") >> 32) * 999) >> 32));
  EXPECT_EQ(RowOf("ann", 1000), 557);
  EXPECT_EQ(RowOf("68fd1e64", 10000), 9847);
  for (const char* missing : {"", "NA", "?", "null"}) EXPECT_EQ(RowOf(missing, 1000), 0);
  std::set<std::int32_t> seen;
  for (int i = 0; i < 20'000; ++i) {
    const std::int32_t row = RowOf(std::to_string(i), 100);
    ASSERT_TRUE(row >= 1 && row < 100) << i;
    seen.insert(row);
    ASSERT_EQ(RowOf(std::to_string(i), 2), 1) << "one row for all that is not missing";
  }
  EXPECT_EQ(seen.size(), 99u);
  EXPECT_LT(RowOf("x", 1 << 24), 1 << 24);
}

TEST_F(ClickLogs, RowsAreSamples) {
  auto data =
      Csv("price, user ,item,click\n1.5,ann,rope,1\n-2, bob ,,0\n", {.categories = {"item", "user"}, .left_out = {}, .clicks = kAsTheyAre});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->held_out, nullptr);
  const Samples& s = *data->training;
  EXPECT_EQ(s.fields(), (std::vector<Field>{{"dense", Dtype::kF32, {1}}, {"ids", Dtype::kI32, {2}, 100}, {"click", Dtype::kF32, {}}}));
  EXPECT_EQ(s.labels_are(), "clicks");
  EXPECT_EQ(Dense(s), (std::vector<float>{1.5, -2}));
  EXPECT_EQ(Ids(s), (std::vector<std::int32_t>{RowOf("rope", 100), RowOf("ann", 100), 0, RowOf("bob", 100)}));
  EXPECT_EQ(Clicked(s), (std::vector<float>{1, 0}));
  EXPECT_EQ(ValuesOf<double>(s, "click", {1, 0}), (std::vector<double>{0, 1}));
  EXPECT_EQ(ValuesOf<double>(s, "dense", {1}), (std::vector<double>{-2}));
  // Another table, and other contents, are other samples.
  auto other = Csv("price, user ,item,click\n1.5,ann,rope,1\n-2,bob,tar,0\n",
                   {.categories = {"item", "user"}, .left_out = {}, .clicks = kAsTheyAre});
  EXPECT_NE(other->training->content_hash(), s.content_hash());
}

// As the files of Criteo's have it: no header, tabs, the click first, then numbers of which some are missing, then categories.
TEST_F(ClickLogs, ColumnsByNumberAndRange) {
  auto data = Csv("1\t3\t\tx\ty\r\n0\t\t8\tx\t\r\n0\t5\t4\tz\ty\r\n", {.label = "1",
                                                                       .categories = {"4-5"},
                                                                       .left_out = {},
                                                                       .separator = '\t',
                                                                       .header = false,
                                                                       .fill_missing = true,
                                                                       .clicks = kAsTheyAre});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  const Samples& s = *data->training;
  EXPECT_EQ(Dense(s), (std::vector<float>{3, 6, 4, 8, 5, 4})) << "what is missing is the mean of its column";
  const std::int32_t x = RowOf("x", 100), y = RowOf("y", 100), z = RowOf("z", 100);
  EXPECT_EQ(Ids(s), (std::vector<std::int32_t>{x, y, x, 0, z, y}));
  EXPECT_EQ(Clicked(s), (std::vector<float>{1, 0, 0}));
}

TEST_F(ClickLogs, WithoutDenseFeaturesOneIsOne) {
  auto data = Csv("u,i,c\na,b,1\nc,d,0\n", {.categories = {"1-2"}, .left_out = {}, .clicks = {.rows = 9, .held_out = 0}});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(Dense(*data->training), (std::vector<float>{1, 1}));
}

TEST_F(ClickLogs, APartIsHeldOutAndScaledByTheRest) {
  std::string text = "x,u,c\n";
  for (int i = 0; i < 400; ++i) text += std::to_string(i) + ",u" + std::to_string(i) + "," + std::to_string(i % 2) + "\n";
  auto plain = Csv(text, {.categories = {"u"}, .left_out = {}, .clicks = {.rows = 1000, .held_out = .25, .scale = false}});
  auto scaled = Csv(text, {.categories = {"u"}, .left_out = {}, .clicks = {.rows = 1000, .held_out = .25}});
  ASSERT_TRUE(plain.ok() && scaled.ok()) << plain.status().ToString();
  ASSERT_EQ(plain->training->count(), 300);
  ASSERT_EQ(plain->held_out->count(), 100);
  const std::vector<float> dense = Dense(*scaled->training);
  EXPECT_NEAR(std::accumulate(dense.begin(), dense.end(), 0.0) / 300, 0, 1e-6);
  EXPECT_NEAR(std::inner_product(dense.begin(), dense.end(), dense.begin(), 0.0) / 300, 1, 1e-5);
  // The fields of a row stay together, and each row is on one side.
  std::set<int> seen;
  for (const Samples* part : {plain->training.get(), plain->held_out.get()}) {
    const std::vector<float> numbers = Dense(*part), clicks = Clicked(*part);
    const std::vector<std::int32_t> ids = Ids(*part);
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      const int row = static_cast<int>(numbers[k]);
      EXPECT_EQ(ids[k], RowOf("u" + std::to_string(row), 1000));
      EXPECT_EQ(clicks[k], static_cast<float>(row % 2));
      EXPECT_TRUE(seen.insert(row).second) << row;
    }
  }
  EXPECT_EQ(seen.size(), 400u);
}

TEST_F(ClickLogs, WhatIsWrongIsNamedWithItsPlace) {
  struct Case {
    std::string text;
    CsvClickOptions options;
    const char *tag, *what, *why;
  };
  const CsvClickOptions u{.categories = {"u"}, .left_out = {}, .clicks = kAsTheyAre};
  const Case cases[] = {
      {"x,u,c\n1,a,1\n1,a,2\n", u, "DATA06", "line 3 of \"", "a click is 1, and none is 0"},
      {"x,u,c\n1,a,yes\n", u, "DATA06", "its column 3 (\"c\") is \"yes\"", "a click is 1"},
      {"x,u,c\n1,a,\n", u, "DATA06", "its column 3 (\"c\") is \"\"", "a click is 1"},
      {"x,u,c\n1,a,.5\n", u, "DATA06", "is \".5\"", "a click is 1"},
      {"x,u,c\n1,a,nan\n", u, "DATA06", "is \"nan\"", "a click is 1"},
      {"x,u,c\n,a,1\n", u, "DATA07", "line 2 of \"", "numbers"},
      {"x,u,c\nred,a,1\n", u, "DATA07", "its column 1 (\"x\") is \"red\"", "finite in 32 bits"},
      {"x,u,c\n1e39,a,1\n", u, "DATA07", "is \"1e39\"", "finite in 32 bits"},
      {"x,u,c\n1,a\n", u, "DATA05", "line 2 of \"", "the first record has 3"},
      {"x,u,c\n1,a,1\n", {.categories = {}, .left_out = {}}, "DATA05", "has no categories", "none of its columns"},
      {"x,u,c\n1,a,1\n", {.categories = {"v"}, .left_out = {}}, "DATA18", "has no column \"v\"", "it has 3 columns: x, u, c"},
      {"x,u,c\n1,a,1\n", {.categories = {"2-4"}, .left_out = {}}, "DATA18", "has no column \"2-4\"", "it has 3 columns"},
      {"x,u,c\n1,a,1\n", {.categories = {"2-1"}, .left_out = {}}, "DATA18", "has no column \"2-1\"", "it has 3 columns"},
      {"x,u,c\n1,a,1\n", {.categories = {"u", "c"}, .left_out = {}}, "DATA18", "column 3 (\"c\") of ", "a column is one of these"},
      {"x,u,c\n1,a,1\n", {.categories = {"u", "2"}, .left_out = {}}, "DATA18", "is a category and a category", "a column is one of these"},
      {"x,u,c\n1,a,1\n", {.categories = {"u"}, .left_out = {"u"}}, "DATA18", "is a category and left out", "a column is one of these"},
      {"x,u,c\n", u, "DATA08", "has no rows to learn from", "it has 0 in all"},
      {"", u, "DATA08", "has no rows to learn from", "it has 0 in all"},
      {"x,u,c\n1,\"a,1\n", u, "DATA16", "line 2 of \"", "not closed"},
  };
  for (const Case& c : cases) {
    const Status status = Csv(c.text, c.options).status();
    EXPECT_EQ(status.tag(), c.tag) << status.ToString();
    EXPECT_EQ(status.code(), Code::kUserError) << status.ToString();
    EXPECT_NE(status.what().find(c.what), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(c.why), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
  }
}

// A column whose name has a dash is that column.
TEST_F(ClickLogs, ANameWinsOverARange) {
  auto data = Csv("1-2,u,c\n7,a,1\n", {.categories = {"u"}, .left_out = {"1-2"}, .clicks = kAsTheyAre});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(Dense(*data->training), (std::vector<float>{1}));
}

TEST_F(ClickLogs, DamagedFilesAreRefusedOrClicks) {
  const std::uint64_t seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) + 17;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  std::string good = "a,u,c\n";
  for (int i = 0; i < 20; ++i) good += std::to_string(i) + ",\"u" + std::to_string(i) + "\"," + std::to_string(i % 2) + "\n";
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string text = good;
    if (random.OneIn(3)) text.resize(random.Below(text.size()));
    for (std::uint64_t i = 0; !text.empty() && i < random.Below(4); ++i)
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    auto data = Csv(text, {.categories = {"2"}, .left_out = {}, .fill_missing = random.OneIn(2), .clicks = {.rows = 50, .held_out = 0}});
    if (!data.ok()) {
      ++refused;
      ASSERT_TRUE(data.status().tag().starts_with("DATA")) << data.status().ToString();
      continue;
    }
    for (float feature : Dense(*data->training)) ASSERT_TRUE(std::isfinite(feature));
    for (std::int32_t id : Ids(*data->training)) ASSERT_TRUE(id >= 0 && id < 50);
    for (float click : Clicked(*data->training)) ASSERT_TRUE(click == 0 || click == 1);
  }
  EXPECT_GT(refused, 200);
}

std::string RecordOf(std::int32_t click, const std::vector<float>& dense, const std::vector<std::int32_t>& ids) {
  std::string record(reinterpret_cast<const char*>(&click), sizeof click);
  record.append(reinterpret_cast<const char*>(dense.data()), dense.size() * sizeof(float));
  return record.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t));
}

TEST_F(ClickLogs, RecordsOfABatchJob) {
  const std::string good = RecordOf(1, {.5, 2}, {7, 0, 99}) + RecordOf(0, {1, 3}, {1, 2, 3});
  auto data = LoadClickRecords(Write(good, "r"), 2, 3, kAsTheyAre);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(Dense(*data->training), (std::vector<float>{.5, 2, 1, 3}));
  EXPECT_EQ(Ids(*data->training), (std::vector<std::int32_t>{7, 0, 99, 1, 2, 3}));
  EXPECT_EQ(Clicked(*data->training), (std::vector<float>{1, 0}));
  auto bare = LoadClickRecords(Write(RecordOf(1, {}, {4}), "bare"), 0, 1, kAsTheyAre);
  ASSERT_TRUE(bare.ok()) << bare.status().ToString();
  EXPECT_EQ(Dense(*bare->training), (std::vector<float>{1}));
  struct Case {
    std::string record;
    const char *tag, *what, *why;
  };
  for (const Case& c : {Case{RecordOf(2, {1, 1}, {1, 1, 1}), "DATA06", "its click is 2", "a click is 1"},
                        Case{RecordOf(1, {1, NAN}, {1, 1, 1}), "DATA07", "its feature 1 is nan", "no number"},
                        Case{RecordOf(1, {1, 1}, {1, 100, 1}), "DATA06", "its id 1 is 100", "ids lie in [0, 100)"},
                        Case{RecordOf(1, {1, 1}, {1, 1, -1}), "DATA06", "its id 2 is -1", "ids lie in [0, 100)"}}) {
    const Status status = LoadClickRecords(Write(good + c.record, "r"), 2, 3, kAsTheyAre).status();
    EXPECT_EQ(status.tag(), c.tag) << status.ToString();
    EXPECT_NE(status.what().find("the record at byte 48 of \"" + folder_.path() + "/r\""), std::string::npos) << status.ToString();
    EXPECT_NE(status.what().find(c.what), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(c.why), std::string::npos) << status.ToString();
  }
  EXPECT_EQ(LoadClickRecords(Write(good + "x", "r"), 2, 3, kAsTheyAre).status().tag(), "IO04");
  EXPECT_EQ(LoadClickRecords(Write("", "r"), 2, 3, kAsTheyAre).status().tag(), "DATA08");
}

}  // namespace
}  // namespace ropewalk::mlrunner
