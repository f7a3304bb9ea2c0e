#include "base/status.h"

#include <gtest/gtest.h>

namespace ropewalk {
namespace {

TEST(Status, OkIsEmptyAndExitsZero) {
  Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ExitCode(ok.code()), 0);
  EXPECT_EQ(ok.ToString(), "ok");
}

TEST(Status, PrintsThreePartsAndLeavesOutEmptyOnes) {
  Status status(Code::kUserError, "IO03", "a.gz: damaged at byte 17", "crc mismatch", "fetch the file again");
  EXPECT_EQ(status.ToString(), "error[IO03] a.gz: damaged at byte 17\n  why: crc mismatch   fix: fetch the file again");
  EXPECT_EQ(Status(Code::kUserError, "IO03", "a.gz").ToString(), "error[IO03] a.gz");
}

TEST(Status, ContextIsPutInFrontAndCopiesAreIndependent) {
  Status inner(Code::kUnavailable, "NET01", "m1:7077");
  Status outer = inner.WithContext("submitting");
  EXPECT_EQ(outer.what(), "submitting: m1:7077");
  EXPECT_EQ(inner.what(), "m1:7077");
  EXPECT_EQ(outer.code(), Code::kUnavailable);
}

TEST(Status, CodesFromTheWireThatThisBinaryDoesNotKnowNeverMeanSuccess) {
  EXPECT_EQ(ExitCode(static_cast<Code>(200)), 70);
  EXPECT_EQ(CodeName(static_cast<Code>(200)), "internal");
}

Result<int> Half(int n) {
  if (n % 2) return Status(Code::kInvalid, "T01", "odd");
  return n / 2;
}
Status Quarter(int n, int* out) {
  ASSIGN_OR_RETURN(int half, Half(n));
  ASSIGN_OR_RETURN(*out, Half(half));
  return {};
}

TEST(Result, MacrosPassErrorsUp) {
  int out = 0;
  EXPECT_TRUE(Quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  EXPECT_EQ(Quarter(6, &out).tag(), "T01");
}

}  // namespace
}  // namespace ropewalk
