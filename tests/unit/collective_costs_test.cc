// Costs of messages on file: found again by the same ranks on the same machines only, never believed when damaged, the same on all ranks.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "mlrunner/collective/run/link_costs.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

class CostsOnFile : public ::testing::Test {
 protected:
  CostsOnFile() {
    std::string path = ::testing::TempDir() + "ropewalk-costs-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    top_ = path;
    folder_ = path + "/of/links";  // made when it is needed
  }
  ~CostsOnFile() override { std::filesystem::remove_all(top_); }

  static LinkModel SomeModel(double call_ns = 1'500) {
    LinkModel model;
    model.call_ns = call_ns;
    model.latency_ns = 20'000;
    model.ns_per_byte = .5;
    model.beyond = {{1 << 20, .6, .1, .2}, {4 << 20, .7, .2, .3}};
    model.across_ns_per_byte = 8;
    model.from_first = {{}, {21'000, .25}};
    return model;
  }
  static Costs SomeCosts(double call_ns = 1'500) {
    Costs costs{.model = SomeModel(call_ns), .measured_at_s = 1'796'000'000};
    for (const std::int64_t bytes : {768, 3'072}) costs.corrections.Add({.algorithm = "direct", .segment_bytes = 64 << 10}, bytes, 1.25);
    costs.corrections.Add({.algorithm = "recursive_doubling", .segment_bytes = 64 << 10}, 768, .8);
    return costs;
  }
  static std::string BytesOf(const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  }
  static void Put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }

  std::string top_, folder_;
  const std::string key_ = CostsKey(true, {"here", "here"}, {0, 0});
};

TEST_F(CostsOnFile, AreFoundAgainAndBelongToTheirOwner) {
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL34");
  EXPECT_EQ(ReadCosts(folder_, key_).status().code(), Code::kNotFound);
  ASSERT_TRUE(WriteCosts(folder_, key_, SomeCosts()).ok());
  auto found = ReadCosts(folder_, key_);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(Encode(*found), Encode(SomeCosts()));
  EXPECT_EQ(found->from, CostsFrom::kNowhere) << "who asked for it knows";
  EXPECT_EQ(found->measured_at_s, SomeCosts().measured_at_s);
  struct stat info = {};
  ASSERT_EQ(stat(CostsFile(folder_, key_).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_TRUE(WriteCosts(folder_, key_, SomeCosts(7)).ok());
  EXPECT_EQ(ReadCosts(folder_, key_)->model.call_ns, 7);
  // Nothing is left beside it.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(CostsOnFile, OfOtherRanksWiresOrMachinesAreOthers) {
  ASSERT_TRUE(WriteCosts(folder_, key_, SomeCosts()).ok());
  for (const std::string& other :
       {CostsKey(false, {"here", "here"}, {0, 0}), CostsKey(true, {"here", "here", "here"}, {0, 0, 0}), CostsKey(true, {"here"}, {0}),
        CostsKey(true, {"there", "there"}, {0, 0}), CostsKey(false, {"here", "there"}, {0, 1}), CostsKey(false, {"there", "here"}, {0, 1}),
        CostsKey(false, {"hereth", "ere"}, {0, 1}), CostsKey(true, {"here", "here"}, {0, 1})}) {
    EXPECT_EQ(ReadCosts(folder_, other).status().tag(), "COLL34");
    // With the same hash, too.
    std::filesystem::copy_file(CostsFile(folder_, key_), CostsFile(folder_, other));
    EXPECT_EQ(ReadCosts(folder_, other).status().tag(), "COLL35");
  }
  EXPECT_NE(CostsKey(false, {"here", "there"}, {0, 1}), CostsKey(false, {"hereth", "ere"}, {0, 1}));
}

TEST_F(CostsOnFile, ThatAreDamagedAreNotBelieved) {
  ASSERT_TRUE(WriteCosts(folder_, key_, SomeCosts()).ok());
  const std::string path = CostsFile(folder_, key_), whole = BytesOf(path);
  ASSERT_GT(whole.size(), 100u);
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const char flipped : {1, 64}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flipped);
      Put(path, damaged);
      EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35") << at;
    }
  for (std::size_t length = 0; length < whole.size(); ++length) {
    Put(path, whole.substr(0, length));
    EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35") << length;
  }
  Put(path, whole + "x");
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35");
  Put(path, std::string(3 << 20, 'x'));
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35");
  // The control, and what is no file of ours.
  Put(path, whole);
  EXPECT_TRUE(ReadCosts(folder_, key_).ok());
  std::filesystem::rename(path, path + ".elsewhere");
  std::filesystem::create_symlink(path + ".elsewhere", path);
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35");
}

// A checksum can be right and the numbers wrong.
TEST_F(CostsOnFile, NumbersThatNoMeasurementGivesAreNotBelieved) {
  for (const double number : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    LinkModel model = SomeModel();
    model.ns_per_byte = number;
    ASSERT_TRUE(WriteCosts(folder_, key_, {.model = model}).ok());
    EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35") << number;
    model = SomeModel();
    model.beyond[1].copy_ns_per_byte = number;
    EXPECT_EQ(DecodeLinkModel(Encode(model)).status().tag(), "COLL35");
    model = SomeModel();
    model.from_first[1].ns = number;
    EXPECT_EQ(DecodeLinkModel(Encode(model)).status().tag(), "COLL35");
  }
  LinkModel disordered = SomeModel();
  std::swap(disordered.beyond[0].bytes, disordered.beyond[1].bytes);
  EXPECT_EQ(DecodeLinkModel(Encode(disordered)).status().tag(), "COLL35");
  EXPECT_TRUE(DecodeLinkModel(Encode(SomeModel())).ok());
  std::string neither = Encode(SomeModel());
  neither[0] = 2;  // what is read in place is or is not
  EXPECT_EQ(DecodeLinkModel(neither).status().tag(), "COLL35");
}

// An earlier version's, which has no corrections, has another form in its key: it is not found, nor believed where it lies in the way.
TEST_F(CostsOnFile, OfAnotherFormAreMeasuredAgain) {
  std::string older = key_;
  const std::size_t version = older.find("ropewalk-links-2");
  ASSERT_NE(version, std::string::npos);
  older[version + 15] = '1';
  EXPECT_NE(CostsFile(folder_, older), CostsFile(folder_, key_));
  ASSERT_TRUE(WriteCosts(folder_, older, SomeCosts()).ok());
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL34");
  std::filesystem::rename(CostsFile(folder_, older), CostsFile(folder_, key_));
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35");
  // Of this form, with a model alone where costs should be.
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Sized(key_);
  writer.Sized(Encode(SomeModel()));
  writer.Fixed(Checksum64(bytes));
  Put(CostsFile(folder_, key_), bytes);
  EXPECT_EQ(ReadCosts(folder_, key_).status().tag(), "COLL35");
}

TEST_F(CostsOnFile, WhoReadsWhileOthersWriteHasOneOrTheOther) {
  ASSERT_TRUE(WriteCosts(folder_, key_, SomeCosts(0)).ok());
  std::atomic<bool> is_over{false};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 3; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(WriteCosts(folder_, key_, SomeCosts(writer)).ok());
    });
  std::thread reader([&] {
    while (!is_over) {
      auto found = ReadCosts(folder_, key_);
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_LE(found->model.call_ns, 2);
    }
  });
  for (std::thread& thread : writers) thread.join();
  is_over = true;
  reader.join();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(CostsOnFile, ThatCannotBeWrittenSayWhy) {
  Put(top_ + "/of", "a file where a folder should be");
  const Status status = WriteCosts(folder_, key_, SomeCosts());
  EXPECT_EQ(status.tag(), "COLL34");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_FALSE(status.why().empty());
}

// ---- communicators ----------------------------------------------------------------------------------------------------------------------

// Where the costs of `ranks` ranks came from, on all of them, and how many different ones they have.
struct Learned {
  std::set<CostsFrom> from;
  std::set<std::string> models, not_kept;
};
Learned Learn(std::int32_t ranks, CommunicatorOptions options) {
  Learned learned;
  std::mutex mutex;
  WithRanks(ranks, options, [&](Communicator& all, Meeting&) {
    ASSERT_NE(all.chooser(), nullptr);
    const Costs& costs = all.chooser()->costs();
    // What is chosen runs, and is right.
    for (const std::int64_t count : {3, 40'000}) {
      std::vector<float> vector(static_cast<std::size_t>(count), static_cast<float>(all.rank() + 1));
      ASSERT_TRUE(all.AllReduce({.in = vector.data(), .out = vector.data(), .count = count, .name = "x"}).ok());
      const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
      EXPECT_EQ(std::count(vector.begin(), vector.end(), sum), count);
    }
    std::lock_guard lock(mutex);
    learned.from.insert(costs.from);
    EXPECT_EQ(costs.corrections.empty(), costs.from == CostsFrom::kNowhere);
    learned.models.insert(Encode(costs));
    if (all.rank() == 0) learned.not_kept.insert(costs.not_kept);
  });
  return learned;
}

TEST_F(CostsOnFile, AreMeasuredOnceAndThenReadByAllRanks) {
  CommunicatorOptions options = Over(Wire::kShared);
  EXPECT_EQ(Learn(2, options).from, std::set{CostsFrom::kNowhere}) << "nobody has asked for it";
  options.choose_by = ChooseBy::kKeptCosts;
  options.costs_folder = folder_;
  const Learned first = Learn(2, options);
  EXPECT_EQ(first.from, std::set{CostsFrom::kMeasured});
  EXPECT_EQ(first.models.size(), 1u);
  EXPECT_EQ(first.not_kept, std::set<std::string>{""});
  const Learned second = Learn(2, options);
  EXPECT_EQ(second.from, std::set{CostsFrom::kFile});
  EXPECT_EQ(second.models, first.models);
  // Damaged: measured again, and whole again.
  const std::string path = CostsFile(folder_, key_);
  std::string bytes = BytesOf(path);
  ASSERT_FALSE(bytes.empty()) << "no file of these ranks";
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  Put(path, bytes);
  EXPECT_EQ(Learn(2, options).from, std::set{CostsFrom::kMeasured});
  EXPECT_EQ(Learn(2, options).from, std::set{CostsFrom::kFile});
}

TEST_F(CostsOnFile, ThatAreNotKeptAreMeasuredAndServe) {
  Put(top_ + "/of", "a file where a folder should be");
  CommunicatorOptions options = Over(Wire::kTcp);
  options.choose_by = ChooseBy::kMeasuredCosts;
  options.costs_folder = folder_;
  const Learned learned = Learn(3, options);
  EXPECT_EQ(learned.from, std::set{CostsFrom::kMeasured});
  EXPECT_EQ(learned.models.size(), 1u);
  ASSERT_EQ(learned.not_kept.size(), 1u);
  EXPECT_NE(learned.not_kept.begin()->find("costs of messages are not kept"), std::string::npos);
}

// Other links than those that were measured.
TEST_F(CostsOnFile, AreNotThoseOfGroups) {
  ASSERT_TRUE(WriteCosts(folder_, CostsKey(true, {"here", "here", "here"}, {0, 0, 0}), SomeCosts()).ok());
  CommunicatorOptions options = Over(Wire::kShared);
  options.choose_by = ChooseBy::kKeptCosts;
  options.costs_folder = folder_;
  WithRanks(3, options, [&](Communicator& all, Meeting&) {
    EXPECT_EQ(all.chooser()->costs().from, CostsFrom::kFile);
    auto pair = all.Split({.color = all.rank() == 1 ? kNoGroup : 0});
    ASSERT_TRUE(pair.ok()) << pair.status().ToString();
    if (*pair != nullptr) {
      EXPECT_EQ((*pair)->chooser()->costs().from, CostsFrom::kNowhere);
    }
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
