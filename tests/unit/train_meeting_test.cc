// Ranks meet before they train together: who would train something else than rank 0 is named, and each knows who is on its machine.
#include "mlrunner/train/meeting.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

// What each rank finds, on these machines.
std::vector<Result<Meeting>> MeetOn(const std::vector<std::string>& machines, const std::vector<Hello>& hellos) {
  const auto ranks = static_cast<std::int32_t>(machines.size());
  testing::Hall hall(ranks);
  std::vector<std::optional<Result<Meeting>>> found(machines.size());
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      testing::ThreadGang gang(rank, ranks, 0, &hall, machines[at]);
      found[at] = Meet(gang, hellos[at]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Result<Meeting>> all;
  for (auto& each : found) all.push_back(*std::move(each));
  return all;
}

TEST(Meeting, RankZeroSaysFromWhereAndNeighboursAreCounted) {
  const auto all = MeetOn({"a", "b", "a"}, {{.model = 1, .data = 2, .resume_from = 7}, {.model = 1, .data = 2}, {.model = 1, .data = 2}});
  for (const auto& each : all) {
    ASSERT_TRUE(each.ok()) << each.status().ToString();
    EXPECT_EQ(each->resume_from, 7);
    EXPECT_EQ(each->machines, (std::vector<std::string>{"a", "b", "a"}));
  }
  EXPECT_EQ(all[0]->neighbours, 2);
  EXPECT_EQ(all[0]->place, 0);
  EXPECT_EQ(all[1]->neighbours, 1);
  EXPECT_EQ(all[1]->place, 0);
  EXPECT_EQ(all[2]->neighbours, 2);
  EXPECT_EQ(all[2]->place, 1);
}

TEST(Meeting, AnotherModelAndOtherDataAreNamed) {
  for (const auto& each : MeetOn({"a", "b"}, {{.model = 1, .data = 2}, {.model = 3, .data = 2}})) {
    EXPECT_EQ(each.status().tag(), "TRAIN02");
    EXPECT_EQ(each.status().what(), "rank 1 on b has another model than rank 0 on a");
  }
  for (const auto& each : MeetOn({"a", "b"}, {{.model = 1, .data = 2}, {.model = 1, .data = 4}})) {
    EXPECT_EQ(each.status().tag(), "TRAIN02");
    EXPECT_EQ(each.status().what(), "rank 1 on b has another data than rank 0 on a");
  }
}

// Samples of two features whose classes and contents a rank may have otherwise.
class Rows final : public Samples {
 public:
  Rows(std::int64_t classes, std::uint64_t hash)
      : fields_{{"features", Dtype::kF32, {2}}, {"label", Dtype::kI32, {}, classes}}, hash_(hash) {}
  std::int64_t count() const override { return 24; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      if (call.field == 1) {
        static_cast<std::int32_t*>(call.rows)[i] = static_cast<std::int32_t>(call.ids[i] % 2);
      } else {
        static_cast<float*>(call.rows)[2 * i] = static_cast<float*>(call.rows)[2 * i + 1] = static_cast<float>(call.ids[i]);
      }
    }
  }
  std::uint64_t content_hash() const override { return hash_; }

 private:
  std::vector<Field> fields_;
  std::uint64_t hash_;
};

// The trainer asks, and with one and the same it goes on.
TEST(Meeting, ATrainingOfUnlikeRanksDoesNotBegin) {
  auto train = [](std::int64_t classes, std::uint64_t hash) {
    testing::RunOptions options;
    options.load = [=](testing::ThreadGang& gang) -> Result<DataSet> {
      const bool is_last = gang.rank() == 2;
      return DataSet{std::make_unique<Rows>(is_last ? classes : 2, is_last ? hash : 5), nullptr};
    };
    return testing::TrainOnThreads(testing::JobOf({"model.hidden=4", "train.batch=12", "train.steps=2", "train.threads=1"}), 3, options);
  };
  EXPECT_TRUE(train(2, 5)[0].status.ok());
  for (const auto& rank : train(3, 5)) EXPECT_EQ(rank.status.what(), "rank 2 on here has another model than rank 0 on here");
  for (const auto& rank : train(2, 6)) EXPECT_EQ(rank.status.what(), "rank 2 on here has another data than rank 0 on here");
}

}  // namespace
}  // namespace ropewalk::mlrunner
