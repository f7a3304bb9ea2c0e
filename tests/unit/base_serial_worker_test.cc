#include "base/serial_worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

namespace ropewalk {
namespace {

// Posts, while the worker is busy, what `posts` says: 'L' may be long, 's' is short. In which order they are done.
std::string OrderOf(const std::string& posts) {
  std::atomic<bool> go{false}, begun{false};
  std::atomic<std::size_t> done{0};
  std::string order;
  SerialWorker worker(1000);
  EXPECT_TRUE(worker.Post([&] {
    begun = true;
    begun.notify_one();
    go.wait(false);
  }));
  begun.wait(false);
  for (char c : posts)
    EXPECT_TRUE(worker.Post(
        [&, c] {
          order += c;
          ++done;
          done.notify_one();
        },
        c == 's' ? SerialWorker::Length::kShort : SerialWorker::Length::kAny));
  go = true;
  go.notify_one();
  for (std::size_t n = done; n < posts.size(); n = done) done.wait(n);
  return order;
}

TEST(SerialWorker, ShortWorkPassesLongWorkAndDoesNotStarveIt) {
  EXPECT_EQ(OrderOf("LLL"), "LLL");
  EXPECT_EQ(OrderOf("LLLs"), "sLLL");
  EXPECT_EQ(OrderOf("LsLs"), "ssLL");
  EXPECT_EQ(OrderOf(std::string("LL") + std::string(20, 's')), std::string(8, 's') + "L" + std::string(8, 's') + "L" + std::string(4, 's'));
}

TEST(SerialWorker, BothTogetherAreBounded) {
  std::atomic<bool> go{false}, begun{false};
  SerialWorker worker(2);
  ASSERT_TRUE(worker.Post([&] {
    begun = true;
    begun.notify_one();
    go.wait(false);
  }));
  begun.wait(false);
  EXPECT_TRUE(worker.Post([] {}));
  EXPECT_TRUE(worker.Post([] {}, SerialWorker::Length::kShort));
  EXPECT_FALSE(worker.Post([] {}));
  EXPECT_FALSE(worker.Post([] {}, SerialWorker::Length::kShort));
  go = true;
  go.notify_one();
}

}  // namespace
}  // namespace ropewalk
