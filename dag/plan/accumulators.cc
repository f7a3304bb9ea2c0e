#include "dag/plan/accumulators.h"

namespace ropewalk::dag {

Status TextSink::Flush() {
  if (!buffer_.empty() && status_.ok()) status_ = out_->Append(AsBytes(buffer_));
  if (context_->progress != nullptr) {
    context_->progress->bytes_out.fetch_add(buffer_.size(), std::memory_order_relaxed);
    context_->progress->records_out.fetch_add(records_ - reported_, std::memory_order_relaxed);
  }
  reported_ = records_;
  buffer_.clear();
  return status_;
}

}  // namespace ropewalk::dag
