// Reading extents of a segment by pread into pooled buffers, each verified. Serves run files of this process and descriptors that the
// worker daemon passed to an executor; neither is ever mapped, because a truncated file would kill the reader.
//
// Thread rule: one stream, one thread.
#pragma once

#include <memory>
#include <vector>

#include "dag/task.h"
#include "worker/blocks/buffer_pool.h"
#include "worker/blocks/segment_format.h"

namespace ropewalk::blocks {

struct FileExtentOptions {
  // Neighbouring small extents are read together up to this size; it also bounds what a reader of many segments at once holds for each.
  std::uint64_t window_bytes = 256u << 10;
};

// `holder` keeps `fd` open; `entries` are copied. Extents keep their buffer, not the holder: a lease ends with its stream.
std::unique_ptr<dag::ExtentStream> NewFileExtentStream(int fd, std::shared_ptr<const void> holder, std::span<const ExtentEntry> entries,
                                                       TaskAttempt producer, BufferPool pool, FileExtentOptions options = {});

// The entries that one read may take starting at `at`: neighbours in the file up to `window_bytes` in all, at least one. 0 at the end.
std::size_t WindowLength(std::span<const ExtentEntry> entries, std::size_t at, std::uint64_t window_bytes);

}  // namespace ropewalk::blocks
