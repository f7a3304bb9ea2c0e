#include "worker/task/tracking_reader.h"

namespace ropewalk::task {
namespace {

using Failure = TrackingReader::Failure;

void Note(std::optional<Failure>* failure, const dag::SegmentRef& segment, const Status& status) {
  bool of_the_segment = status.code() == Code::kDataLoss || status.code() == Code::kUnavailable;
  if (of_the_segment && !failure->has_value()) *failure = Failure{segment, status};
}

class TrackingStream final : public dag::ExtentStream {
 public:
  TrackingStream(std::unique_ptr<dag::ExtentStream> inner, dag::SegmentRef segment, std::shared_ptr<std::optional<Failure>> failure)
      : inner_(std::move(inner)), segment_(std::move(segment)), failure_(std::move(failure)) {}

  Result<std::optional<dag::Extent>> Next() override {
    Result<std::optional<dag::Extent>> extent = inner_->Next();
    if (!extent.ok()) Note(failure_.get(), segment_, extent.status());
    return extent;
  }

 private:
  std::unique_ptr<dag::ExtentStream> inner_;
  dag::SegmentRef segment_;
  std::shared_ptr<std::optional<Failure>> failure_;
};

}  // namespace

Result<std::unique_ptr<dag::ExtentStream>> TrackingReader::Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) {
  Result<std::unique_ptr<dag::ExtentStream>> stream = inner_->Open(segment, first, count);
  if (!stream.ok()) {
    Note(failure_.get(), segment, stream.status());
    return stream;
  }
  return std::unique_ptr<dag::ExtentStream>(std::make_unique<TrackingStream>(*std::move(stream), segment, failure_));
}

}  // namespace ropewalk::task
