// Records of one size: what WriteRecords writes, ReadRecords reads back, for every byte value and every kind of record.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

namespace fs = std::filesystem;

struct Point {  // floats have no unique representation, but no padding either
  float x, y;
  std::int64_t id;
  friend bool operator==(const Point&, const Point&) = default;
};
struct Padded {
  std::uint8_t small;
  std::uint64_t large;
};
struct Viewing {
  std::string_view text;
};
enum class Colour : std::uint16_t { kRed = 1 };

static_assert(kPlainBytes<std::uint64_t> && kPlainBytes<char> && kPlainBytes<double> && kPlainBytes<Colour> && kPlainBytes<Point>);
static_assert(kPlainBytes<std::array<char, 100>> && kPlainBytes<std::array<Point, 3>>);
static_assert(!kPlainBytes<Padded> && !kPlainBytes<std::array<Padded, 2>> && !kPlainBytes<long double> && !kPlainBytes<std::string>);
static_assert(!kPlainBytes<Viewing> && !kPlainBytes<std::pair<int, int>> && !kPlainBytes<std::vector<char>> && !kPlainBytes<int*>);

class Records : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("dag_records_" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "in");
    backend_.options.work_dir = dir_;
  }
  void TearDown() override { fs::remove_all(dir_); }
  void Put(const std::string& name, const std::string& bytes) { std::ofstream(dir_ / "in" / name, std::ios::binary) << bytes; }
  // The bytes of all parts in order.
  std::string Output(const std::string& name) {
    std::vector<fs::path> parts;
    for (const auto& part : fs::directory_iterator(dir_ / name))
      if (part.path().filename().string().starts_with("part-")) parts.push_back(part.path());
    std::sort(parts.begin(), parts.end());
    std::string all;
    for (const fs::path& part : parts) {
      std::ifstream in(part, std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
  }
  std::string Random(std::size_t bytes) {
    std::string all(bytes, '\0');
    for (char& c : all) c = static_cast<char>(random_());
    return all;
  }

  fs::path dir_;
  LocalBackend backend_{3};
  std::mt19937_64 random_{11};
};

TEST_F(Records, ComeBackAsTheyWere) {
  std::string bytes = Random(100 * 3000);
  Put("a", bytes.substr(0, 100 * 1234));
  Put("b", bytes.substr(100 * 1234));
  backend_.options.split_bytes_max = 7000;
  Session job = backend_.NewSession();
  job.ReadRecords<std::array<char, 100>>("in").WriteRecords("arrays");
  EXPECT_TRUE(Output("arrays") == bytes);
  const Written written = job.ReadRecords("in", {.bytes = 100}).WriteRecords("views");
  EXPECT_EQ(written.records, 3000u);
  EXPECT_EQ(written.bytes, bytes.size());
  EXPECT_TRUE(Output("views") == bytes);
  job.ReadRecords("in", {.bytes = 100}).Cache().Map([](std::string_view r) { return std::string(r); }).WriteRecords("strings");
  EXPECT_TRUE(Output("strings") == bytes);
  EXPECT_EQ(job.ReadRecords("in", {.bytes = 50}).Count(), 6000u);
  job.ReadRecords<std::uint32_t>("in").Map([](std::uint32_t n) { return ~n; }).WriteRecords("numbers");
  std::string inverse = bytes;
  for (char& c : inverse) c = static_cast<char>(~c);
  EXPECT_TRUE(Output("numbers") == inverse);
  std::ifstream manifest(dir_ / "views" / "_SUCCESS");
  std::string head(std::istreambuf_iterator<char>(manifest), {});
  EXPECT_NE(head.find("\"records\": 3000"), std::string::npos) << head;
}

TEST_F(Records, SortedByAKeyOfAnyBytes) {
  std::string bytes = Random(20 * 5000);
  Put("a", bytes);
  using Record = std::array<char, 20>;
  std::vector<Record> model(5000);
  std::memcpy(model.data(), bytes.data(), bytes.size());
  // One byte decides, so that most records have equals.
  std::stable_sort(model.begin(), model.end(),
                   [](const Record& a, const Record& b) { return static_cast<unsigned char>(a[3]) < static_cast<unsigned char>(b[3]); });
  std::string sorted(reinterpret_cast<const char*>(model.data()), bytes.size());
  backend_.options.split_bytes_max = 9000;
  Session job = backend_.NewSession();
  job.ReadRecords("in", {.bytes = 20}).SortBy([](std::string_view r) { return r.substr(3, 1); }).WriteRecords("out");
  EXPECT_TRUE(Output("out") == sorted);
  job.ReadRecords<Record>("in").SortBy([](const Record& r) { return static_cast<unsigned char>(r[3]); }).WriteRecords("typed");
  EXPECT_TRUE(Output("typed") == sorted);
}

TEST_F(Records, StructsAndStringsOfAnyLength) {
  Session job = backend_.NewSession();
  std::vector<Point> points = {{1.5f, -0.0f, 7}, {0, 2, -1}, {3, 3, 3}};
  job.FromVector(points).WriteRecords("points");
  EXPECT_EQ(Output("points").size(), 3 * sizeof(Point));
  EXPECT_EQ(job.ReadRecords<Point>("points").Collect(), points);
  job.FromVector(std::vector<std::string>{"a", "", std::string("\0\n", 2), "bcd"}).WriteRecords("text");
  EXPECT_EQ(Output("text"), std::string("a\0\nbcd", 6));
  job.FromVector(std::vector<bool>{true, false}).WriteRecords("flags");
  EXPECT_EQ(Output("flags"), std::string("\1\0", 2));
  job.FromVector(std::vector<std::uint64_t>()).WriteRecords("none");
  EXPECT_EQ(Output("none"), "");
  EXPECT_EQ(job.ReadRecords<std::uint64_t>("none").Count(), 0u);
}

TEST_F(Records, AnIncompleteOneFailsBeforeAnyWork) {
  Put("a", Random(200));
  Put("b", Random(250));
  Session job = backend_.NewSession();
  try {
    job.ReadRecords("in", {.bytes = 100}).Count();
    FAIL() << "accepted";
  } catch (const ActionFailed& e) {
    EXPECT_EQ(e.status.code(), Code::kUserError);
    EXPECT_EQ(e.status.tag(), "IO04");
    EXPECT_NE(e.status.what().find("/in/b"), std::string::npos) << e.status.what();
    EXPECT_NE(e.status.what().find("at byte 200"), std::string::npos) << e.status.what();
  }
  EXPECT_EQ(backend_.tasks_run, 0u);
  using HundredBytes = std::array<char, 100>;
  EXPECT_THROW(job.ReadRecords<HundredBytes>("in"), ActionFailed);
  EXPECT_THROW(job.ReadRecords("in", {}), ActionFailed);
  EXPECT_THROW(job.ReadRecords("in", {.bytes = (1u << 30) + 1}), ActionFailed);
}

}  // namespace
}  // namespace ropewalk::dag
