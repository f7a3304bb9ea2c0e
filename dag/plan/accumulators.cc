#include "dag/plan/accumulators.h"

namespace ropewalk::dag {

Status TextSink::Flush() {
  std::size_t bytes = buffer_.size() + static_cast<std::size_t>(at_ - begin_);
  if (at_ != begin_ && status_.ok()) status_ = out_->Commit(static_cast<std::size_t>(at_ - begin_));
  if (!buffer_.empty() && status_.ok()) status_ = out_->Append(AsBytes(buffer_));
  begin_ = at_ = end_ = nullptr;
  if (context_->progress != nullptr) {
    context_->progress->bytes_out.fetch_add(bytes, std::memory_order_relaxed);
    context_->progress->records_out.fetch_add(records_ - reported_, std::memory_order_relaxed);
  }
  reported_ = records_;
  buffer_.clear();
  return status_;
}

bool TextSink::NewRoom(std::string_view line) {
  if (!Flush().ok()) return false;
  if (line.size() >= kBufferBytes) {
    // The batch that it came in lives on, so it needs no copy of ours.
    status_ = out_->Append(AsBytes(line));
    if (status_.ok()) status_ = out_->Append(AsBytes("\n"));
    if (context_->progress != nullptr) context_->progress->bytes_out.fetch_add(line.size() + 1, std::memory_order_relaxed);
    return false;
  }
  Result<std::span<char>> room = out_->Room(kBufferBytes);
  if (!room.ok()) {
    status_ = room.status();
    return false;
  }
  begin_ = at_ = room->data();
  end_ = begin_ + kBufferBytes;
  return true;
}

}  // namespace ropewalk::dag
