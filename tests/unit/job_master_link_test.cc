// The client's link to the master: whose loss it outlasts, and for how long.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "job/client/master_link.h"
#include "proto/client.pb.h"
#include "tests/unit/played_master.h"

namespace ropewalk::job {
namespace {

// A long poll is often the first call of a link. Once a master has taken it, patience is that with a known one, however long it was silent.
TEST(MasterLink, AMasterThatIsLostInTheFirstCallIsWaitedFor) {
  auto first = std::make_unique<rpc::PlayedMaster>("127.0.0.1:0", true);
  const std::string address = first->address();
  std::unique_ptr<rpc::PlayedMaster> second;
  std::thread restart([&] {
    EXPECT_TRUE(rpc::Eventually([&] { return first->requests > 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // longer than a first connection is waited for
    first.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // so that it is missed
    second = std::make_unique<rpc::PlayedMaster>(address);
  });
  MasterLink link({.address = address, .token = rpc::kTestToken, .first_connect_ms = 200, .reconnect_ms = 60'000, .answer_ms = 60'000});
  wire::ClientRequest request;
  auto answer = link.Call(&request, 60'000);
  restart.join();
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(link.connections(), 2);
  EXPECT_GE(second->requests, 1);
}

TEST(MasterLink, OneThatDoesNotComeBackIsGivenUp) {
  auto master = std::make_unique<rpc::PlayedMaster>();
  std::vector<int> said;
  MasterLinkOptions options{.address = master->address(), .token = rpc::kTestToken, .first_connect_ms = 60'000, .reconnect_ms = 1'500};
  options.on_waiting = [&](int patience_ms) { said.push_back(patience_ms); };
  MasterLink link(options);
  wire::ClientRequest request;
  ASSERT_TRUE(link.Call(&request).ok());
  const std::string address = master->address();
  EXPECT_TRUE(said.empty());
  master.reset();
  auto answer = link.Call(&request);
  EXPECT_EQ(said, std::vector<int>{1'500}) << "once, however often it tries";
  EXPECT_EQ(answer.status().tag(), "NET02") << answer.status().ToString();
  EXPECT_NE(answer.status().fix().find("start it again"), std::string::npos) << answer.status().ToString();
  MasterLink stranger({.address = address, .token = rpc::kTestToken, .first_connect_ms = 200, .reconnect_ms = 60'000});
  answer = stranger.Call(&request);
  EXPECT_EQ(answer.status().tag(), "NET02") << answer.status().ToString();
  EXPECT_EQ(stranger.connections(), 0);
}

}  // namespace
}  // namespace ropewalk::job
