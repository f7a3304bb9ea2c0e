#include "dag/operators/group.h"

namespace ropewalk::dag {

bool GroupTable::Add(std::string_view key, std::string_view value) {
  auto write = [&](char* at) { codec_internal::CopyShort(at, key.data(), key.size()); };
  if (key.size() > KeyBatch::kKeyBytesMax) {
    Flush();  // values are kept in their order
    std::uint64_t hash = long_key_.Set(key.size(), write);
    table_.Reserve(1, PadTo8(key.size()));
    bool inserted;
    Entry* entry = table_.FindOrInsert(hash, long_key_.data(), static_cast<std::uint32_t>(key.size()), &inserted);
    if (inserted) entry->payload = {};
    chains_.Append(entry->payload, value);
    return true;
  }
  staged_[batch_.count()] = value;
  table_.PrefetchSlot(batch_.Push(key.size(), write));
  if (!batch_.full()) return false;
  Flush();
  return true;
}

void GroupTable::Flush() {
  const std::size_t n = batch_.count();
  if (n == 0) return;
  table_.Reserve(n, n * KeyBatch::kKeyBytesMax);
  std::size_t slots[KeyBatch::kKeys];
  for (std::size_t i = 0; i < n; ++i) slots[i] = table_.Locate(batch_.hash(i));
  for (std::size_t i = 0; i < n; ++i) {
    bool inserted;
    Entry* entry = table_.FindOrInsert(slots[i], batch_.hash(i), batch_.key(i), batch_.key_bytes(i), &inserted);
    if (inserted) entry->payload = {};
    chains_.Append(entry->payload, staged_[i]);
  }
  batch_.Clear();
}

void GroupTable::Clear() {
  table_.Clear();
  chains_.Clear();
  batch_.Clear();
}

void GroupTable::Release() {
  table_.Release();
  chains_.Release();
  batch_.Clear();
}

}  // namespace ropewalk::dag
