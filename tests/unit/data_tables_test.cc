// Tables: the quirks of CSV, labels and features from it and from records; what is wrong with which line, column, byte.
#include "mlrunner/data/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "mlrunner/data/csv.h"
#include "mlrunner/data/hold_out.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using testing::ValuesOf;
using Records = std::vector<std::vector<std::string>>;

std::uint64_t Seed(std::uint64_t number) { return ::testing::UnitTest::GetInstance()->random_seed() + number; }

Result<Records> Read(std::string_view text, char separator = ',') {
  CsvReader reader(text, "t.csv", separator);
  Records records;
  std::vector<std::string> fields;
  for (;;) {
    auto more = reader.Next(&fields);
    if (!more.ok()) return more.status();
    if (!*more) return records;
    records.push_back(fields);
  }
}

TEST(Csv, ReadsWhatSpreadsheetsWrite) {
  struct Case {
    std::string text;
    Records expected;
  };
  const Case cases[] = {
      {"", {}},
      {"\n\r\n\r", {}},
      {"a,b\n1,2\n", {{"a", "b"}, {"1", "2"}}},
      {"a,b\r\n1,2", {{"a", "b"}, {"1", "2"}}},
      {"a,b\r1,2\r", {{"a", "b"}, {"1", "2"}}},
      {"\xef\xbb\xbf"
       "a,b\n",
       {{"a", "b"}}},
      {",\n,,\n", {{"", ""}, {"", "", ""}}},
      {"a,", {{"a", ""}}},
      {"\"a,b\",c\n", {{"a,b", "c"}}},
      {"\"a\"\"b\",\"\"\"\"\n", {{"a\"b", "\""}}},
      {"\"\",\"\"\n", {{"", ""}}},
      {"\"two\nlines\",x\n\"and\r\nthree\",y\n", {{"two\nlines", "x"}, {"and\r\nthree", "y"}}},
      {"5\" pipe,a\"b\"\n", {{"5\" pipe", "a\"b\""}}},
      {" a , \"b\"\n", {{" a ", " \"b\""}}},
      {"a\n\n\nb\n", {{"a"}, {"b"}}},
      {std::string("a\0b,c\n", 6), {{std::string("a\0b", 3), "c"}}},
  };
  for (const Case& c : cases) {
    auto records = Read(c.text);
    ASSERT_TRUE(records.ok()) << records.status().ToString();
    EXPECT_EQ(*records, c.expected) << c.text;
  }
  EXPECT_EQ(*Read("a;b,c\n", ';'), (Records{{"a", "b,c"}}));
  EXPECT_EQ(*Read("a\tb", '\t'), (Records{{"a", "b"}}));
}

TEST(Csv, AQuoteThatIsWrongIsNamedWithItsLine) {
  const Status open = Read("a,b\n\"1\n2\",3\n4,\"5\n6\n7").status();
  EXPECT_EQ(open.tag(), "DATA16");
  EXPECT_EQ(open.what(), "line 4 of \"t.csv\" is no record");
  EXPECT_EQ(open.why(), "a quote is opened in it and not closed");
  const Status behind = Read("a\n\"b\" c\n").status();
  EXPECT_EQ(behind.what(), "line 2 of \"t.csv\" is no record");
  EXPECT_EQ(behind.why(), "\" \" comes behind a closing quote");
  EXPECT_EQ(Read("\"").status().tag(), "DATA16");
  EXPECT_EQ(Read(std::string(CsvReader::kFieldsMax + 1, ',')).status().tag(), "DATA16");
}

// Whatever fields hold, written as the RFC says they are read as they were.
TEST(Csv, WhatIsWrittenIsRead) {
  const std::uint64_t seed = Seed(41);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 500; ++round) {
    Records records(random.Between(1, 5));
    std::string text;
    const std::uint64_t width = random.Between(2, 4);
    const char* end = random.OneIn(2) ? "\n" : "\r\n";
    for (auto& record : records) {
      for (std::uint64_t i = 0; i < width; ++i) {
        std::string field;
        while (!random.OneIn(4)) field += "ab\",;\r\n \xc3"[random.Below(9)];
        const bool quoted = field.find_first_of("\",\r\n") != field.npos || random.OneIn(3);
        std::string written;
        for (char c : field) written += c == '"' ? "\"\"" : std::string(1, c);
        text += (i == 0 ? "" : ",") + (quoted ? "\"" + written + "\"" : written);
        record.push_back(field);
      }
      text += end;
    }
    auto read = Read(text);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ASSERT_EQ(*read, records) << text;
  }
}

class Tables : public ::testing::Test {
 protected:
  std::string Write(const std::string& text, const std::string& name = "t.csv") {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  Result<DataSet> Csv(const std::string& text, CsvOptions options = {}) {
    if (options.table.held_out == .1) options.table = {options.table.classes, 0, false};
    return LoadCsv(Write(text), options);
  }
  testing::TempFolder folder_;
};

std::vector<std::int64_t> All(const Samples& samples) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(samples.count()));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
std::vector<float> Features(const Samples& samples) { return ValuesOf<float>(samples, "features", All(samples)); }
std::vector<std::int32_t> Labels(const Samples& samples) { return ValuesOf<std::int32_t>(samples, "label", All(samples)); }

TEST_F(Tables, RowsAreSamples) {
  auto data = Csv("x, y,species\n1,-2.5e1,2\n+.5, 7 ,0\n");
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->held_out, nullptr);
  const Samples& samples = *data->training;
  EXPECT_EQ(samples.fields(), (std::vector<Field>{{"features", Dtype::kF32, {2}}, {"label", Dtype::kI32, {}, 3}}));
  EXPECT_EQ(Features(samples), (std::vector<float>{1, -25, .5, 7}));
  EXPECT_EQ(Labels(samples), (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(ValuesOf<double>(samples, "features", {1, 0}), (std::vector<double>{.5, 7, 1, -25}));
  // A label of another column, columns left out by name and by number, names as labels: classes in their order.
  auto named = Csv("id,class,a,b\n7,tar,1,2\n8,rope,3,4\n9,tar,5,6\n", {.label = "class", .left_out = {"1", "b"}});
  ASSERT_TRUE(named.ok()) << named.status().ToString();
  EXPECT_EQ(Features(*named->training), (std::vector<float>{1, 3, 5}));
  EXPECT_EQ(Labels(*named->training), (std::vector<std::int32_t>{1, 0, 1}));
  EXPECT_EQ(named->training->fields()[1].classes, 2);
  auto renamed = Csv("id,class,a,b\n7,tar,1,2\n8,reap,3,4\n9,tar,5,6\n", {.label = "2", .left_out = {"1", "b"}});
  EXPECT_NE(renamed->training->content_hash(), named->training->content_hash()) << "the same numbers that stand for others";
  auto bare = Csv("1;0\n2;1\n", {.separator = ';', .header = false});
  EXPECT_EQ(Features(*bare->training), (std::vector<float>{1, 2}));
  EXPECT_EQ(Labels(*Csv("x,y\n1,-1\n2,1\n")->training), (std::vector<std::int32_t>{0, 1})) << "what is no class number is a name";
}

TEST_F(Tables, WhatIsMissingIsRefusedOrTheMean) {
  for (const char* missing : {"", "NA", " ? ", "NaN", "null"}) {
    const std::string text = std::string("a,b,y\n1,2,0\n") + missing + ",4,1\n3,6,0\n";
    auto refused = Csv(text);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().tag(), "DATA07");
    EXPECT_EQ(refused.status().what(), "line 3 of \"" + folder_.path() + "/t.csv\": its column 1 (\"a\") is missing");
    auto filled = Csv(text, {.fill_missing = true});
    ASSERT_TRUE(filled.ok()) << filled.status().ToString();
    EXPECT_EQ(Features(*filled->training), (std::vector<float>{1, 2, 2, 4, 3, 6}));
  }
  EXPECT_EQ(Csv("a,y\n1,\n", {.fill_missing = true}).status().tag(), "DATA06") << "a label is never made up";
}

TEST_F(Tables, ScaledByWhatIsTrainedOn) {
  std::string text = "a,b,c,y\n";
  Random random(7);
  for (int i = 0; i < 200; ++i)
    text += std::to_string(1e6 + random.Unit()) + "," + std::to_string(i * i) + ",5," + std::to_string(i % 3) + "\n";
  auto data = Csv(text, {.table = {.classes = 0, .held_out = .25, .scale = true}});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->training->count(), 150);
  EXPECT_EQ(data->held_out->count(), 50);
  const std::vector<float> features = Features(*data->training);
  for (std::size_t column = 0; column < 3; ++column) {
    double sum = 0, squares = 0;
    for (std::size_t i = column; i < features.size(); i += 3) sum += features[i], squares += static_cast<double>(features[i]) * features[i];
    EXPECT_NEAR(sum / 150, 0, 1e-4) << column;
    EXPECT_NEAR(squares / 150, column == 2 ? 0 : 1, .05) << "32 bits hold a tenth of a column that is 1000000 and little more";
  }
  EXPECT_NE(Features(*data->held_out), features);
  // Drawn alike every time, each row on one side.
  EXPECT_EQ(Csv(text, {.table = {.held_out = .25}})->training->content_hash(), data->training->content_hash());
  const HoldOut drawn = DrawHoldOut(1000, .3);
  EXPECT_EQ(drawn.held_out.size(), 300u);
  std::vector<std::int64_t> both = drawn.training;
  both.insert(both.end(), drawn.held_out.begin(), drawn.held_out.end());
  std::sort(both.begin(), both.end());
  std::vector<std::int64_t> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(both, expected);
  EXPECT_LT(drawn.held_out.front(), 50) << "from all over the file";
  EXPECT_GT(drawn.held_out.back(), 950);
}

TEST_F(Tables, WhatIsWrongIsNamedWithItsPlace) {
  struct Case {
    std::string text;
    CsvOptions options;
    const char *tag, *what, *why;
  };
  const Case cases[] = {
      {"a,y\n1,0\n1,2,3\n", {}, "DATA05", "line 3 of ", "the first record has 2"},
      {"a,y\n1\n", {}, "DATA05", "t.csv\" has 1 fields", "the first record has 2"},
      {"y\n1\n", {}, "DATA05", "has no features", "of its 1 columns one is the label"},
      {"a,b,y\n1,2,0\n", {.left_out = {"a", "b"}}, "DATA05", "has no features", "of its 3 columns"},
      {"a,y\n1,0\nred,1\n", {}, "DATA07", "line 3 of", "finite"},
      {"a,y\n1,0\nred,1\n", {}, "DATA07", "its column 1 (\"a\") is \"red\"", "finite"},
      {"a,y\n1e99,0\n", {}, "DATA07", "is \"1e99\"", "finite in 32 bits"},
      {"a,y\ninf,0\n", {}, "DATA07", "is \"inf\"", "finite"},
      {"a,y\n1x,0\n", {}, "DATA07", "is \"1x\"", "numbers"},
      {"a,y\n1,9\n2,10\n", {.table = {.classes = 10}}, "DATA06", "line 3 of \"", "there are 10 classes: labels lie in [0, 10)"},
      {"a,y\n1,9\n2,10\n", {.table = {.classes = 10}}, "DATA06", "t.csv\" has the label \"10\"", "labels lie in [0, 10)"},
      {"a,y\n1,9\n2,x\n", {.table = {.classes = 10}}, "DATA06", "t.csv\" has the label \"x\"", "labels lie in [0, 10)"},
      {"a,y\n1,u\n2,v\n3,w\n", {.table = {.classes = 2}}, "DATA06", "has 3 different labels", "there are 2 classes"},
      {"a,y\n1,9999999\n", {}, "DATA06", "has the label \"9999999\"", "labels lie in [0, 1048576)"},
      {"a,y\n", {}, "DATA08", "has no rows to learn from", "it has 0 in all"},
      {"", {}, "DATA08", "has no rows to learn from", "it has 0 in all"},
      {"a,y\n1,0\n", {.label = "z"}, "DATA18", "has no column \"z\"", "it has 2 columns: a, y"},
      {"a,y\n1,0\n", {.label = "3"}, "DATA18", "has no column \"3\"", "it has 2 columns"},
      {"1,0\n", {.header = false, .left_out = {"0"}}, "DATA18", "has no column \"0\"", "it has 2 columns"},
      {"a,y\n\"1,0\n", {}, "DATA16", "line 2 of \"", "not closed"},
      {"a,y\n+-1,0\n", {}, "DATA07", "is \"+-1\"", "numbers"},
      {"a,y\n0x10,0\n", {}, "DATA07", "is \"0x10\"", "numbers"},
      {"a,y\n\"1,5\",0\n", {}, "DATA07", "is \"1,5\"", "numbers"},
      {"a,y\r\n1,0\r\n-nan,1\r\n", {}, "DATA07", "line 3 of \"", "finite"},
      {std::string("\xff\xfe") + "a", {}, "DATA16", "line 1 of \"", "UTF-16"},
      {"b,y,b\n1,0,1\n", {.label = "y", .left_out = {"b"}}, "DATA18", "has two columns \"b\"", "they are columns 1 and 3"},
      {"b,y,b\n1,0,1\n", {.label = "b"}, "DATA18", "has two columns \"b\"", "they are columns 1 and 3"},
  };
  for (const Case& c : cases) {
    const Status status = Csv(c.text, c.options).status();
    EXPECT_EQ(status.tag(), c.tag) << status.ToString();
    EXPECT_EQ(status.code(), Code::kUserError) << status.ToString();
    EXPECT_NE(status.what().find(c.what), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(c.why), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
  }
  EXPECT_EQ(LoadCsv(folder_.path() + "/none", {}).status().code(), Code::kNotFound);
}

TEST_F(Tables, DamagedFilesAreRefusedOrTables) {
  const std::uint64_t seed = Seed(42);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  std::string good = "a,b,y\n";
  for (int i = 0; i < 20; ++i) good += std::to_string(i) + ",\"" + std::to_string(i * .5) + "\"," + std::to_string(i % 2) + "\n";
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = good;
    if (random.OneIn(3)) text.resize(random.Below(text.size()));
    for (std::uint64_t i = 0; !text.empty() && i < random.Below(4); ++i)
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    auto data = Csv(text, {.fill_missing = random.OneIn(2)});
    if (!data.ok()) {
      ++refused;
      ASSERT_TRUE(data.status().tag().starts_with("DATA")) << data.status().ToString();
      continue;
    }
    for (float feature : Features(*data->training)) ASSERT_TRUE(std::isfinite(feature));
    const std::int64_t classes = data->training->fields()[1].classes;
    for (std::int32_t label : Labels(*data->training)) ASSERT_TRUE(label >= 0 && label < classes);
  }
  EXPECT_GT(refused, 300);
}

std::string RecordOf(std::int32_t label, const std::vector<float>& features) {
  std::string record(sizeof label + features.size() * sizeof(float), '\0');
  std::memcpy(record.data(), &label, sizeof label);
  std::memcpy(record.data() + sizeof label, features.data(), features.size() * sizeof(float));
  return record;
}

TEST_F(Tables, RecordsOfABatchJobAreSamples) {
  std::filesystem::create_directory(folder_.path() + "/out");
  Write(RecordOf(1, {1, 2, 3}) + RecordOf(0, {4, 5, 6}), "out/part-00000");
  Write(RecordOf(4, {7, 8, 9}), "out/part-00001");
  Write("", "out/part-00002");
  Write("x", "out/_about");
  auto data = LoadRecords(folder_.path() + "/out", 3, {.held_out = 0, .scale = false});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(Features(*data->training), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(Labels(*data->training), (std::vector<std::int32_t>{1, 0, 4}));
  EXPECT_EQ(data->training->fields()[1].classes, 5);
  const Status label = LoadRecords(folder_.path() + "/out", 3, {.classes = 4}).status();
  EXPECT_EQ(label.tag(), "DATA06");
  EXPECT_EQ(label.what(), "the record at byte 0 of \"" + folder_.path() + "/out/part-00001\" has the label 4");
  EXPECT_EQ(label.why(), "labels lie in [0, 4)");
  Write(RecordOf(1, {1, 2, 3}) + RecordOf(1, {1, std::numeric_limits<float>::infinity(), 3}), "out/part-00000");
  const Status feature = LoadRecords(folder_.path() + "/out", 3, {}).status();
  EXPECT_EQ(feature.tag(), "DATA07");
  EXPECT_EQ(feature.what(), "the record at byte 16 of \"" + folder_.path() + "/out/part-00000\": its feature 1 is inf");
  EXPECT_EQ(LoadRecords(folder_.path() + "/out", 4, {}).status().tag(), "IO04") << "16 bytes are no records of 20";
  EXPECT_EQ(LoadRecords(folder_.path() + "/none", 4, {}).status().code(), Code::kNotFound);
  EXPECT_EQ(LoadRecords(Write("", "empty"), 4, {}).status().tag(), "DATA08");
}

}  // namespace
}  // namespace ropewalk::mlrunner
