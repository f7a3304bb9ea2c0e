// A record on which the job's code fails every time is named, whatever the code and wherever records come from: not the one that happened
// to be read last.
#include <gtest/gtest.h>

#include <unistd.h>
#include <zlib.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

namespace fs = std::filesystem;

constexpr int kRecords = 6000, kPoison = 4321, kInFile = kRecords / 2;  // two files

// Records of eight bytes: their number.
std::string Record(int n) {
  std::string digits = std::to_string(n);
  return std::string(8 - digits.size(), '0') + digits;
}
int NumberOf(std::string_view record) {
  int n = 0;
  std::from_chars(record.data(), record.data() + record.size(), n);
  return n;
}
int Digest(int n) {
  if (n == kPoison) throw std::runtime_error("poison");
  return n;
}
struct Touchy {  // cannot be compared when it is poison
  int n;
  friend bool operator<(const Touchy& a, const Touchy& b) { return Digest(a.n) < Digest(b.n); }
};

struct Source {
  std::string name;
  std::function<Dataset<std::string>(Session&)> open;
  std::uint64_t offset;  // of the poison
  std::string place;     // how the cursor's source ends
};

class Places : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("dag_places_" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    for (const char* folder : {"lines", "gz", "records"}) fs::create_directories(dir_ / folder);
    for (int file : {0, 1}) {
      std::string lines, records;
      for (int n = file * kInFile; n < (file + 1) * kInFile; ++n) records += Record(n), lines += Record(n) + "\n";
      const std::string name(1, static_cast<char>('a' + file));
      std::ofstream(dir_ / "lines" / name) << lines;
      std::ofstream(dir_ / "records" / name) << records;
      gzFile gz = gzopen((dir_ / "gz" / (name + ".gz")).c_str(), "wb");
      EXPECT_EQ(gzwrite(gz, lines.data(), static_cast<unsigned>(lines.size())), static_cast<int>(lines.size()));
      gzclose(gz);
    }
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::vector<Source> Sources() {
    std::vector<std::string> all;
    for (int n = 0; n < kRecords; ++n) all.push_back(Record(n));
    constexpr std::uint64_t in_file = kPoison - kInFile;
    return {
        {"lines", [](Session& job) { return Dataset<std::string>(job.ReadLines("lines")); }, in_file * 9, "/lines/b"},
        {"gz", [](Session& job) { return Dataset<std::string>(job.ReadLines("gz")); }, in_file * 9, "/gz/b.gz"},
        {"records", [](Session& job) { return Dataset<std::string>(job.ReadRecords("records", {.bytes = 8})); }, in_file * 8, "/records/b"},
        {"vector", [all](Session& job) { return job.FromVector(all, {.partitions = 3}); }, kPoison, "the vector"}};
  }

  // Runs `action`, which must fail, on each source; `place` and `offset`: where the cursor must stand, when not at the poison itself.
  void FailsAt(const std::string& name, const std::function<void(const Dataset<std::string>&)>& action, const std::string& place = "",
               std::uint64_t offset = 0) {
    for (const Source& source : Sources()) {
      for (std::uint64_t memory : {std::uint64_t{256} << 20, std::uint64_t{16} << 10}) {  // the small one flushes and spills
        SCOPED_TRACE(name + " of " + source.name + ", memory " + std::to_string(memory));
        LocalBackend backend(2);
        backend.options.work_dir = dir_;
        backend.options.split_bytes_max = 4096;
        backend.options.operator_bytes = memory;
        Session job = backend.NewSession();
        try {
          action(source.open(job));
          ADD_FAILURE() << "it did not fail";
        } catch (const ActionFailed& failed) {
          EXPECT_NE(failed.status.what().find("poison"), std::string::npos) << failed.status.ToString();
        }
        const std::string at = backend.cursor.source;
        EXPECT_TRUE(at.ends_with(place.empty() ? source.place : place)) << at;
        if (backend.spill.bytes > 0 && place == "the shuffled records") {
          EXPECT_GT(backend.cursor.offset.load(), offset) << "those that a spill has held are counted again";
        } else if (place.empty() || offset != 0) {
          EXPECT_EQ(backend.cursor.offset.load(), place.empty() ? source.offset : offset);
        }
      }
    }
  }

  fs::path dir_;
};

auto KeyedBy(int keys) {
  return [keys](const std::string& r) { return std::pair(NumberOf(r) % keys, NumberOf(r)); };
}

TEST_F(Places, OfFunctionsOnOneRecord) {
  FailsAt("Map", [](const Dataset<std::string>& in) { in.Map([](const std::string& r) { return Digest(NumberOf(r)); }).Sum(); });
  FailsAt("Filter before a shuffle", [](const Dataset<std::string>& in) {
    in.Filter([](const std::string& r) { return Digest(NumberOf(r)) >= 0; }).CountByKey().Count();
  });
}

TEST_F(Places, OfCombinersOnTheMapSide) {
  FailsAt("ReduceByKey of numbers",
          [](const Dataset<std::string>& in) { in.Map(KeyedBy(7)).ReduceByKey([](int a, int b) { return a + Digest(b) * 0; }).Count(); });
  FailsAt("ReduceByKey of what owns memory", [](const Dataset<std::string>& in) {
    in.Map([](const std::string& r) { return std::pair(NumberOf(r) % 7, std::vector<std::string>{r}); })
        .ReduceByKey([](std::vector<std::string>& a, const std::vector<std::string>& b) { a[0] = Record(Digest(NumberOf(b[0]))); })
        .Count();
  });
  FailsAt("CombineGroups", [](const Dataset<std::string>& in) {
    in.Map(KeyedBy(7))
        .CombineGroups([](int a, int b) { return a + Digest(b) * 0; }, [](const int& key, Values<int>&) { return key; })
        .Count();
  });
}

TEST_F(Places, OfComparisons) {
  FailsAt("SortBy", [](const Dataset<std::string>& in) { in.SortBy([](const std::string& r) { return Touchy{NumberOf(r)}; }).Count(); });
  FailsAt("Top", [](const Dataset<std::string>& in) { in.Top(3, [](const std::string& r) { return Touchy{NumberOf(r)}; }); });
}

// Behind a shuffle it is not the input's record that is named, but the one of what the shuffle brought: with one partition and different
// keys these come in the order of the input.
TEST_F(Places, OfCombinersAndGroupFunctionsBehindAShuffle) {
  // The first record and the last one have one key, and lie in different map tasks.
  FailsAt(
      "ReduceByKey",
      [](const Dataset<std::string>& in) {
        in.Map([](const std::string& r) { return std::pair(NumberOf(r) % (kRecords - 1), NumberOf(r)); })
            .ReduceByKey([](int a, int b) { return a + Digest(b == kRecords - 1 ? kPoison : b); }, {.partitions = 1})
            .Count();
      },
      "the shuffled records", kRecords - 1);
  FailsAt(
      "ReduceGroups",
      [](const Dataset<std::string>& in) {
        in.Map(KeyedBy(kRecords))
            .ReduceGroups([](const int& key, Values<int>& values) { return key + Digest(*values.Next()); }, {.partitions = 1})
            .Count();
      },
      "the groups");
  FailsAt(
      "Map of groups",
      [](const Dataset<std::string>& in) {
        in.Map(KeyedBy(kRecords)).GroupByKey({.partitions = 1}).Map([](const auto& group) { return Digest(group.first); }).Count();
      },
      "the groups");
  FailsAt(
      "Map of what is sorted",
      [](const Dataset<std::string>& in) {
        in.Sort({.partitions = 1}).Map([](const std::string& r) { return Digest(NumberOf(r)); }).Count();
      },
      "the sorted records", kPoison);
  FailsAt(
      "Map of what was combined",
      [](const Dataset<std::string>& in) {
        in.Map(KeyedBy(kRecords)).ReduceByKey(std::plus<>()).Map([](const auto& p) { return Digest(p.first); }).Count();
      },
      "the combined keys");
  FailsAt(
      "Map of what was joined",
      [](const Dataset<std::string>& in) {
        auto keyed = in.Map(KeyedBy(kRecords));
        keyed.Join(keyed).Map([](const auto& p) { return Digest(p.first); }).Count();
      },
      "the joined pairs");
}

}  // namespace
}  // namespace ropewalk::dag
