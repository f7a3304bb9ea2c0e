// A BlockReader that remembers which segment failed, so that a failed read is blamed on its producer whatever the operator made of the
// error on the way up.
//
// Owner: one attempt. Thread rule: the attempt's thread.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "dag/task.h"

namespace ropewalk::task {

class TrackingReader final : public dag::BlockReader {
 public:
  struct Failure {
    dag::SegmentRef segment;
    Status status;
  };

  explicit TrackingReader(dag::BlockReader* inner) : inner_(inner), failure_(std::make_shared<std::optional<Failure>>()) {}

  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) override;

  // The first read that failed for the segment's own fault (kDataLoss, kUnavailable); nullopt when none did.
  const std::optional<Failure>& failure() const { return *failure_; }

 private:
  dag::BlockReader* inner_;
  std::shared_ptr<std::optional<Failure>> failure_;  // shared with the streams: an operator may keep one longer than it should
};

}  // namespace ropewalk::task
