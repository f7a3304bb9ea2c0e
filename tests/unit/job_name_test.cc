#include "base/job_name.h"

#include <gtest/gtest.h>

namespace ropewalk {
namespace {

TEST(JobName, RoundTripsAndRefusesTheRest) {
  for (std::uint64_t value : {1ull, 10ull, 713ull, 12345ull, ~0ull}) EXPECT_EQ(ParseJobName(JobName(JobId{value})), JobId{value});
  EXPECT_EQ(JobName(JobId{713}), "j-713");
  EXPECT_EQ(JobName(JobId{1}), "j-001");
  EXPECT_EQ(JobName(JobId{10}), "j-010") << "people count the tenth so";
  EXPECT_EQ(JobName(JobId{1000}), "j-1000");
  EXPECT_EQ(ParseJobName("713"), JobId{713});
  for (const char* bad : {"", "j-", "j-0", "j-x", "j-1 ", "j-7f3", "j-18446744073709551616", "-1"})
    EXPECT_EQ(ParseJobName(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace ropewalk
