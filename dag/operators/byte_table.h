// The hash table of all operators: encoded keys to small payloads, in the order of insertion.
//
//   slots:   [low 32 bits of the hash | entry offset / 8]     8 bytes each, open addressing, at most 5/8 full
//   arena:   {high 32 bits of the hash, key length, payload, key bytes, zeros up to a multiple of 8} ...
//
// Entries are packed in the order in which keys were first seen. Frequent keys are seen early, so they lie together at the front and stay
// in the cache; and a walk over the arena gives an order that is a function of the input alone.
//
// Keys are staged: KeyBatch holds the bytes of up to 64 of them, so that slots and entries can be fetched from memory for all before the
// first is compared. Staged and stored keys are padded with zeros to whole words, so that comparing them needs no tail.
//
// Thread rule: one task.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "base/huge_pages.h"
#include "dag/codec.h"

namespace ropewalk::dag {

inline std::size_t PadTo8(std::size_t n) { return (n + 7) & ~std::size_t(7); }

template <class Payload>
class ByteTable {
 public:
  static_assert(alignof(Payload) <= 8);
  struct Entry {
    std::uint32_t hash_high;
    std::uint32_t key_bytes;
    alignas(8) Payload payload;

    std::string_view key() const { return {reinterpret_cast<const char*>(this + 1), key_bytes}; }
    std::size_t bytes() const { return sizeof(Entry) + PadTo8(key_bytes); }
  };

  explicit ByteTable(HugePages* pages) : pages_(pages), arena_(*pages) { Clear(); }

  std::size_t count() const { return count_; }
  // What the table needs for its content; a function of the keys only, never of the room it happens to have.
  std::size_t bytes() const { return arena_.used() + count_ * 16; }

  void Clear() {
    count_ = 0;
    arena_.Clear();
    arena_.Allocate(8);  // offset 0 means "empty slot"
    if (slots_.bytes() == 0) slots_ = pages_->Take(kSlotsMin * sizeof(std::uint64_t));
    mask_ = kSlotsMin - 1;
    std::memset(slots_.data(), 0, kSlotsMin * sizeof(std::uint64_t));
  }
  // Gives all memory back; the table is empty but usable afterwards.
  void Release() {
    arena_.Release();
    slots_ = HugeBuffer();
    Clear();
  }

  // Makes room for `keys` more entries with `key_bytes` bytes of keys in all: until then no entry moves.
  void Reserve(std::size_t keys, std::size_t key_bytes) {
    while ((count_ + keys) * 8 > (mask_ + 1) * 5) GrowSlots();
    arena_.Reserve(keys * (sizeof(Entry) + 8) + key_bytes);
  }

  void PrefetchSlot(std::uint64_t hash) const { __builtin_prefetch(slots() + (static_cast<std::uint32_t>(hash) & mask_)); }
  // The first slot that `hash` may be in; its entry is fetched. Valid until slots move: FindOrInsert() begins there.
  std::size_t Locate(std::uint64_t hash) const {
    const auto low = static_cast<std::uint32_t>(hash);
    std::size_t i = low & mask_;
    std::uint64_t slot;
    while ((slot = slots()[i]) != 0 && static_cast<std::uint32_t>(slot) != low) i = (i + 1) & mask_;
    const char* entry = arena_.data() + (slot >> 32) * 8;
    __builtin_prefetch(entry);
    __builtin_prefetch(entry + sizeof(Entry));
    return i;
  }

  Entry* FindOrInsert(std::uint64_t hash, const char* key, std::uint32_t key_bytes, bool* inserted) {
    return FindOrInsert(static_cast<std::uint32_t>(hash) & mask_, hash, key, key_bytes, inserted);
  }
  // The entry of `key`, which is padded with zeros to whole words. A new one has an unset payload. Reserve() must have been called.
  Entry* FindOrInsert(std::size_t i, std::uint64_t hash, const char* key, std::uint32_t key_bytes, bool* inserted) {
    const auto low = static_cast<std::uint32_t>(hash);
    std::uint64_t* slots = this->slots();
    for (std::uint64_t slot; (slot = slots[i]) != 0; i = (i + 1) & mask_) {
      if (static_cast<std::uint32_t>(slot) != low) continue;
      Entry* entry = At(slot >> 32);
      if (entry->key_bytes == key_bytes && EqualWords(reinterpret_cast<const char*>(entry + 1), key, key_bytes)) {
        *inserted = false;
        return entry;
      }
    }
    std::size_t padded = PadTo8(key_bytes);
    char* at = arena_.Allocate(sizeof(Entry) + padded);
    slots[i] = std::uint64_t(arena_.OffsetOf(at) / 8) << 32 | low;
    ++count_;
    Entry* entry = reinterpret_cast<Entry*>(at);
    entry->hash_high = static_cast<std::uint32_t>(hash >> 32);
    entry->key_bytes = key_bytes;
    if (padded <= 32) {  // whole words: the source is padded as well
      for (std::size_t w = 0; w < padded; w += 8) __builtin_memcpy(at + sizeof(Entry) + w, key + w, 8);
    } else {
      std::memcpy(at + sizeof(Entry), key, padded);
    }
    *inserted = true;
    return entry;
  }

  // The entry of `key` or nullptr.
  Entry* Find(std::uint64_t hash, const char* key, std::uint32_t key_bytes) {
    const auto low = static_cast<std::uint32_t>(hash);
    std::size_t i = low & mask_;
    for (std::uint64_t slot; (slot = slots()[i]) != 0; i = (i + 1) & mask_) {
      if (static_cast<std::uint32_t>(slot) != low) continue;
      Entry* entry = At(slot >> 32);
      if (entry->key_bytes == key_bytes && std::memcmp(entry + 1, key, key_bytes) == 0) return entry;
    }
    return nullptr;
  }

  // In the order of insertion.
  template <class F>
  void ForEach(F f) {
    for (std::size_t at = 8; at < arena_.used();) {
      Entry* entry = At(at / 8);
      at += entry->bytes();
      f(*entry);
    }
  }
  // A walk that can pause: offset 0 begins it, nullptr ends it.
  Entry* Next(std::size_t* offset) {
    if (*offset == 0) *offset = 8;
    if (*offset >= arena_.used()) return nullptr;
    Entry* entry = At(*offset / 8);
    *offset += entry->bytes();
    return entry;
  }

 private:
  static constexpr std::size_t kSlotsMin = 4096;

  std::uint64_t* slots() const { return reinterpret_cast<std::uint64_t*>(slots_.data()); }
  Entry* At(std::uint64_t word) const { return reinterpret_cast<Entry*>(arena_.data() + word * 8); }

  static bool EqualWords(const char* a, const char* b, std::size_t n) {
    for (std::size_t w = 0; w < n; w += 8) {
      std::uint64_t x, y;
      __builtin_memcpy(&x, a + w, 8);
      __builtin_memcpy(&y, b + w, 8);
      if (x != y) return false;
    }
    return true;
  }

  void GrowSlots() {
    std::size_t old_slots = mask_ + 1, new_slots = old_slots * (old_slots < (1u << 18) ? 4 : 2);
    HugeBuffer bigger = pages_->Take(new_slots * sizeof(std::uint64_t));
    auto* to = reinterpret_cast<std::uint64_t*>(bigger.data());
    std::memset(to, 0, new_slots * sizeof(std::uint64_t));
    std::size_t mask = new_slots - 1;
    for (std::size_t k = 0; k < old_slots; ++k) {
      std::uint64_t slot = slots()[k];
      if (slot == 0) continue;
      std::size_t i = static_cast<std::uint32_t>(slot) & mask;
      while (to[i] != 0) i = (i + 1) & mask;
      to[i] = slot;
    }
    slots_ = std::move(bigger);
    mask_ = mask;
  }

  HugePages* pages_;
  Arena arena_;
  HugeBuffer slots_;
  std::size_t mask_ = 0, count_ = 0;
};

// Encoded keys of a batch. Short ones have a cache line each.
class KeyBatch {
 public:
  static constexpr std::size_t kKeys = 64, kKeyBytesMax = 56;

  std::size_t count() const { return count_; }
  bool full() const { return count_ == kKeys; }
  void Clear() { count_ = 0; }
  const char* key(std::size_t i) const { return bytes_ + i * kStride; }
  std::uint32_t key_bytes(std::size_t i) const { return key_bytes_[i]; }
  std::uint64_t hash(std::size_t i) const { return hashes_[i]; }

  // Stages a key of at most kKeyBytesMax bytes that `write` writes at the address it gets; returns its hash.
  template <class Write>
  std::uint64_t Push(std::size_t n, Write write) {
    char* at = bytes_ + count_ * kStride;
    if (n > 0) std::memset(at + ((n - 1) & ~std::size_t(7)), 0, 8);
    write(at);
    key_bytes_[count_] = static_cast<std::uint32_t>(n);
    return hashes_[count_++] = KeyHash64({at, n});
  }

 private:
  static constexpr std::size_t kStride = 64;
  alignas(64) char bytes_[kKeys * kStride];
  std::uint64_t hashes_[kKeys];
  std::uint32_t key_bytes_[kKeys];
  std::size_t count_ = 0;
};

// One key that is too long for a batch: padded, on its own.
class LongKey {
 public:
  explicit LongKey(HugePages* pages) : pages_(pages) {}
  template <class Write>
  std::uint64_t Set(std::size_t n, Write write) {
    if (buffer_.bytes() < n + 8) buffer_ = pages_->Take(n + 8);
    std::memset(buffer_.data() + (n & ~std::size_t(7)), 0, 8);
    write(buffer_.data());
    return KeyHash64({buffer_.data(), n});
  }
  const char* data() const { return buffer_.data(); }

 private:
  HugePages* pages_;
  HugeBuffer buffer_;
};

}  // namespace ropewalk::dag
