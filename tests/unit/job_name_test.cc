#include "base/job_name.h"

#include <gtest/gtest.h>

namespace ropewalk {
namespace {

TEST(JobName, RoundTripsAndRefusesTheRest) {
  for (std::uint64_t value : {1ull, 0x7f3ull, 0x12345ull, ~0ull}) EXPECT_EQ(ParseJobName(JobName(JobId{value})), JobId{value});
  EXPECT_EQ(JobName(JobId{0x7f3}), "j-7f3");
  EXPECT_EQ(JobName(JobId{1}), "j-001");
  EXPECT_EQ(ParseJobName("7f3"), JobId{0x7f3});
  for (const char* bad : {"", "j-", "j-0", "j-x", "j-1 ", "j-1ffffffffffffffff", "-1"}) EXPECT_EQ(ParseJobName(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace ropewalk
