// Records to the partitions of a segment by the hash of their key, without combining: the map side of GroupByKey and Join.
//
// Thread rule: one task.
#pragma once

#include <string>
#include <utility>

#include "base/hash.h"
#include "dag/codec.h"
#include "dag/operators/extents.h"

namespace ropewalk::dag {

template <class K, class V>
class ShuffleWriter {
 public:
  // `out` has options.partitions parts, is not owned, and is sealed by the caller after Finish().
  ShuffleWriter(const ShuffleOptions& options, SegmentWriter* out)
      : partitions_(options.partitions),
        buffers_(out, options.partitions, options.memory_bytes_max, options.extent_bytes_max, options.pages) {}

  // Key: K or View<K>; value: V or View<V>. Both are copied. An error is kept: see status().
  template <class X, class Y>
  void Add(const X& key, const Y& value) {
    // The key is encoded apart, because its hash says where the record goes.
    std::size_t key_bytes = Codec<K>::Size(key);
    char* at = short_key_;
    if (key_bytes > sizeof(short_key_)) {
      long_key_.resize(key_bytes);
      at = long_key_.data();
    }
    Codec<K>::WriteKey(key, at);
    std::uint32_t part = PartitionOf(KeyHash64({at, key_bytes}), partitions_);
    buffers_.Put(part, key_bytes + Codec<V>::Size(value), [&](char* to) {
      codec_internal::CopyShort(to, at, key_bytes);
      Codec<V>::Write(value, to + key_bytes);
    });
  }
  const Status& status() const { return buffers_.status(); }
  // Writes what is left. Nothing may be added afterwards.
  Status Finish() { return buffers_.Flush(); }
  std::uint64_t records_out() const { return buffers_.records(); }
  std::uint64_t bytes_out() const { return buffers_.bytes(); }

 private:
  std::uint32_t partitions_;
  PartitionBuffers buffers_;
  char short_key_[256];
  std::string long_key_;
};

}  // namespace ropewalk::dag
