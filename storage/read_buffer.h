// A growable buffer in huge pages, kept by its thread. First touch of ordinary pages costs more than reading the data (0.3 against 13
// GB/s), so a thread that reads splits one after another must touch its buffer once. Internal to storage/.
//
// Thread rule: one thread; a nested reader of the same thread gets a buffer of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace ropewalk::storage {

class ReadBuffer {
 public:
  static constexpr std::size_t kBytes = 2 << 20;         // one huge page
  static constexpr std::size_t kKeptBytesMax = 8 << 20;  // what a thread keeps after a long line

  ReadBuffer();
  ~ReadBuffer();
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;

  char* data() const { return data_; }  // null when there is no memory
  std::size_t capacity() const { return capacity_; }
  // At least doubles it, keeping the content; the address changes. False: no memory.
  bool Grow();

  // Reused with the buffer for the same reason.
  std::vector<std::string_view> lines;
  std::vector<std::uint64_t> offsets;

  struct Return {
    void operator()(ReadBuffer* buffer) const;  // gives it back to the thread, or frees it
  };
  using Lease = std::unique_ptr<ReadBuffer, Return>;
  static Lease Take();

 private:
  char* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace ropewalk::storage
