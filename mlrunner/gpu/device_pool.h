// Device memory by the piece: a device's own allocation waits for everything that runs on it, so what was given back is kept for the next.
//
// Pieces have the sizes of classes (eight to each power of two, 512 bytes at least), so that what was given back fits what is asked for
// next; a piece is never cut. When the device or the limit refuses, everything that is kept goes back to the device, and it is asked
// once more. All work is on one stream: a piece that is handed out again is not touched before the work that used it has ended.
//
// Owner: the context; its source must outlive it. What was not given back is given back at the end. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

namespace ropewalk::gpu {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* Take(std::size_t bytes) = 0;  // null: there is no more
  virtual void GiveBack(void* memory) = 0;
};

class DevicePool {
 public:
  DevicePool(DeviceMemory* source, std::size_t bytes_max) : source_(source), bytes_max_(bytes_max) {}
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // Null: not within the limit, or the device has no more. Zero bytes are a piece, too.
  void* Allocate(std::size_t bytes);
  // False: it is none of the pool's pieces, or was given back already.
  bool Release(void* memory);
  // What is kept goes back to the device.
  void Trim();

  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t cached_bytes() const { return cached_bytes_; }
  std::size_t peak_bytes() const { return peak_bytes_; }

  // The size of the piece for `bytes`; 0: no piece is that large.
  static std::size_t ClassOf(std::size_t bytes);

 private:
  DeviceMemory* source_;
  std::size_t bytes_max_;
  std::size_t used_bytes_ = 0, cached_bytes_ = 0, peak_bytes_ = 0;
  std::map<std::size_t, std::vector<void*>> cached_;  // by class
  std::unordered_map<void*, std::size_t> used_;       // with their classes
};

}  // namespace ropewalk::gpu
