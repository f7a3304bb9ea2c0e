// What the hand-written floors share: a mapped input, threads, a hash table that points into the input, an output file.
//
// A floor is what a careful programmer would write for exactly one job on one machine: no framework, no fault tolerance, no spill, the
// number of threads fixed. An engine is measured against it.
//
// Thread rule: Input is read-only after its constructor; a CountTable belongs to one thread.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace floors {

[[noreturn]] inline void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

// Threads: the environment's ROPEWALK_THREADS as for the engine, else 2.
inline int ThreadCount() {
  const char* text = std::getenv("ROPEWALK_THREADS");
  return text != nullptr && std::atoi(text) > 0 ? std::atoi(text) : 2;
}

// Calls work(0) ... work(threads - 1), each in a thread of its own.
template <class Work>
void Parallel(int threads, Work work) {
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
}

class Input {
 public:
  explicit Input(const char* path) {
    int fd = open(path, O_RDONLY);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) Die(path);
    size_ = static_cast<std::size_t>(info.st_size);
    if (size_ > 0) {
      void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
      if (mapped == MAP_FAILED) Die(path);
      data_ = static_cast<const char*>(mapped);
    }
    close(fd);
  }
  const char* data() const { return data_; }
  std::size_t size() const { return size_; }

  // The i-th of n pieces, cut behind line ends.
  std::string_view Piece(int i, int n) const {
    std::size_t begin = Border(i, n), end = Border(i + 1, n);
    return {data_ + begin, end - begin};
  }

 private:
  std::size_t Border(int i, int n) const {
    std::size_t at = size_ / static_cast<std::size_t>(n) * static_cast<std::size_t>(i);
    if (i <= 0 || at == 0) return 0;
    if (i >= n) return size_;
    const void* newline = std::memchr(data_ + at - 1, '\n', size_ - at + 1);
    return newline == nullptr ? size_ : static_cast<std::size_t>(static_cast<const char*>(newline) - data_) + 1;
  }
  const char* data_ = "";
  std::size_t size_ = 0;
};

// Zeroed memory in huge pages: a first touch by small pages costs more than all the counting.
template <class T>
T* HugeArray(std::size_t count) {
  std::size_t bytes = (count * sizeof(T) + (std::size_t{2} << 20) - 1) >> 21 << 21;
  void* memory = mmap(nullptr, bytes + (std::size_t{2} << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Die("mmap");
  auto aligned = (reinterpret_cast<std::uintptr_t>(memory) + (std::size_t{2} << 20) - 1) >> 21 << 21;
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<T*>(aligned);
}

// The six white-space bytes of ASCII: the engine's definition of a word, on both sides.
inline bool IsSpace(char c) { return c == ' ' || static_cast<unsigned char>(c - '\t') < 5; }

inline std::uint64_t Spread(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

// Bytes that stay where they are until the process ends.
class Arena {
 public:
  std::string_view Copy(std::string_view bytes) {
    if (bytes.size() > left_) {
      left_ = bytes.size() > kBlock ? bytes.size() : kBlock;
      at_ = HugeArray<char>(left_);
    }
    char* copy = at_;
    std::memcpy(copy, bytes.data(), bytes.size());
    at_ += bytes.size();
    left_ -= bytes.size();
    return {copy, bytes.size()};
  }

 private:
  static constexpr std::size_t kBlock = 8 << 20;
  char* at_ = nullptr;
  std::size_t left_ = 0;
};

// How a table keeps a key. Words are copied: comparing with the text itself would miss the cache and the TLB.
inline std::string_view Keep(std::string_view key, Arena* arena) { return arena->Copy(key); }
inline std::uint64_t Keep(std::uint64_t key, Arena*) { return key; }

// Counts by key; linear probing; doubles at half load. Key has `==` and a Keep().
template <class Key>
class CountTable {
 public:
  struct Slot {
    std::uint64_t hash;
    Key key;
    std::uint64_t count;  // 0: free
  };
  explicit CountTable(std::size_t slots = 1 << 16) : slots_(HugeArray<Slot>(slots)), mask_(slots - 1) {}

  void Prefetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_], 1); }
  void Add(std::uint64_t hash, const Key& key, std::uint64_t count) {
    std::size_t at = hash & mask_;
    while (slots_[at].count != 0 && !(slots_[at].hash == hash && slots_[at].key == key)) at = (at + 1) & mask_;
    Slot& slot = slots_[at];
    if (slot.count == 0) {
      slot.hash = hash;
      slot.key = Keep(key, &arena_);
      if (++used_ * 2 > mask_) {
        slot.count = count;
        Grow();
        return;
      }
    }
    slot.count += count;
  }
  template <class Visit>
  void ForEach(Visit visit) const {
    for (std::size_t i = 0; i <= mask_; ++i)
      if (slots_[i].count != 0) visit(slots_[i]);
  }

 private:
  void Grow() {
    Slot* old = slots_;
    std::size_t old_slots = mask_ + 1;
    slots_ = HugeArray<Slot>(old_slots * 2);
    mask_ = old_slots * 2 - 1;
    for (std::size_t i = 0; i < old_slots; ++i) {
      if (old[i].count == 0) continue;
      std::size_t at = old[i].hash & mask_;
      while (slots_[at].count != 0) at = (at + 1) & mask_;
      slots_[at] = old[i];
    }
    munmap(old, old_slots * sizeof(Slot) >> 21 << 21);
  }
  Slot* slots_;
  std::size_t mask_;
  std::size_t used_ = 0;
  Arena arena_;
};

// Adds in groups, so that the cache misses of a group overlap.
template <class Key>
class BatchedCounter {
 public:
  explicit BatchedCounter(CountTable<Key>* table) : table_(table) {}
  ~BatchedCounter() { Flush(); }
  void Add(std::uint64_t hash, const Key& key) {
    table_->Prefetch(hash);
    waiting_[size_++] = {hash, key};
    if (size_ == kGroup) Flush();
  }

 private:
  static constexpr int kGroup = 64;
  void Flush() {
    for (int i = 0; i < size_; ++i) table_->Add(waiting_[i].hash, waiting_[i].key, 1);
    size_ = 0;
  }
  struct Waiting {
    std::uint64_t hash;
    Key key;
  };
  CountTable<Key>* table_;
  Waiting waiting_[kGroup];
  int size_ = 0;
};

inline void AppendCount(std::uint64_t count, std::string* out) {
  char text[24] = "\t";
  char* end = std::to_chars(text + 1, text + sizeof text, count).ptr;
  *end++ = '\n';
  out->append(text, static_cast<std::size_t>(end - text));
}

// Merges the threads' tables by ranges of the hash and writes what `print(slot, &text)` gives for each key.
template <class Key, class Print>
void MergeAndWrite(const std::vector<CountTable<Key>>& tables, const char* path, Print print) {
  int threads = static_cast<int>(tables.size());
  std::vector<std::string> texts(tables.size());
  Parallel(threads, [&](int t) {
    CountTable<Key> merged;
    for (const CountTable<Key>& table : tables)
      table.ForEach([&](const auto& slot) {
        if (static_cast<int>((slot.hash >> 40) % static_cast<unsigned>(threads)) == t) merged.Add(slot.hash, slot.key, slot.count);
      });
    merged.ForEach([&](const auto& slot) { print(slot, &texts[static_cast<std::size_t>(t)]); });
  });
  FILE* out = std::fopen(path, "wb");
  if (out == nullptr) Die(path);
  for (const std::string& text : texts) std::fwrite(text.data(), 1, text.size(), out);
  if (std::fclose(out) != 0) Die(path);
}

}  // namespace floors
