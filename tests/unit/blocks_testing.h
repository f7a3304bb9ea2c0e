// What the tests of blocks share: temporary folders, random segments with their model, and draining of streams.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "base/bytes.h"
#include "dag/task.h"
#include "worker/blocks/block_store.h"
#include "worker/blocks/segment_format.h"

namespace ropewalk::blocks::testing {

class TempDir {
 public:
  TempDir() {
    path_ = (std::filesystem::temp_directory_path() / "ropewalk-blocks-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    EXPECT_FALSE(error) << path_ << ": " << error.message();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::uint64_t Seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("ROPEWALK_TEST_SEED");
    std::uint64_t s = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("ROPEWALK_TEST_SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

// Runs `in_child` in a forked child after `in_parent` has run here; the child's answer is true.
template <class InChild, class InParent>
void InAForkedChild(InChild in_child, InParent in_parent) {
  int held[2];
  ASSERT_EQ(::pipe(held), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::close(held[1]);
    char byte;
    (void)!::read(held[0], &byte, 1);
    ::_exit(in_child() ? 0 : 1);
  }
  in_parent();
  ::close(held[0]);
  ::close(held[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

using Model = std::map<std::uint32_t, std::vector<std::pair<std::string, std::uint64_t>>>;  // part -> extents (bytes, records)

inline std::string RandomBytes(std::mt19937_64& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, size - at));
  }
  return bytes;
}

inline std::size_t RandomSize(std::mt19937_64& random, std::size_t largest) {
  switch (random() % 6) {
    case 0:
      return 0;
    case 1:
      return std::min<std::size_t>(largest, 1);
    case 2:
      return std::min<std::size_t>(largest, random() % 100);
    case 3:
      return std::min<std::size_t>(largest, random() % 5000);
    case 4:
      return std::min<std::size_t>(largest, 1 + random() % (256u << 10));
    default:
      return random() % (largest + 1);
  }
}

// Fills `writer` with random extents, some of them built in its own memory, and returns what was put in.
inline Model Fill(dag::SegmentWriter& writer, std::mt19937_64& random, std::uint32_t parts, std::size_t extents, std::size_t largest) {
  Model model;
  for (std::size_t i = 0; i < extents && parts > 0; ++i) {
    auto part = static_cast<std::uint32_t>(random() % parts);
    std::string bytes = RandomBytes(random, RandomSize(random, largest));
    std::uint64_t records = random() % 1000;
    // Room may be asked for and not used, or used in part.
    char* room = random() % 2 == 0 ? writer.Room(bytes.size() + random() % 1000) : nullptr;
    if (random() % 8 == 0) room = nullptr;
    if (room != nullptr) std::memcpy(room, bytes.data(), bytes.size());
    Status status = writer.Append(part, room != nullptr ? AsBytes({room, bytes.size()}) : AsBytes(bytes), records);
    EXPECT_TRUE(status.ok()) << status.ToString();
    model[part].emplace_back(std::move(bytes), records);
  }
  return model;
}

// Compares what comes of parts [first, first + count) with the model: all of it, or what came before the error that is returned.
inline Status Compare(dag::BlockReader& reader, const dag::SegmentRef& ref, std::uint32_t first, std::uint32_t count, const Model& model) {
  ASSIGN_OR_RETURN(auto stream, reader.Open(ref, first, count));
  for (auto at = model.lower_bound(first); at != model.end() && at->first < first + count; ++at) {
    for (const auto& [bytes, records] : at->second) {
      ASSIGN_OR_RETURN(auto extent, stream->Next());
      EXPECT_TRUE(extent.has_value()) << "part " << at->first << " ends early";
      if (!extent) return {};
      EXPECT_EQ(extent->part, at->first);
      EXPECT_EQ(extent->records, records);
      EXPECT_TRUE(AsView(extent->bytes) == bytes) << "part " << at->first;
    }
  }
  ASSIGN_OR_RETURN(auto end, stream->Next());
  EXPECT_FALSE(end.has_value());
  return {};
}

inline void ExpectSame(dag::BlockReader& reader, const dag::SegmentRef& ref, std::uint32_t first, std::uint32_t count, const Model& model) {
  Status status = Compare(reader, ref, first, count, model);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

// Reads all of a segment; the first error if there is one.
inline Status Drain(dag::BlockReader& reader, const dag::SegmentRef& ref, std::uint32_t parts, std::uint64_t* bytes = nullptr) {
  ASSIGN_OR_RETURN(auto stream, reader.Open(ref, 0, parts));
  while (true) {
    ASSIGN_OR_RETURN(auto extent, stream->Next());
    if (!extent) return {};
    if (bytes != nullptr) *bytes += extent->bytes.size();
  }
}

// A whole segment as bytes, built by hand so that tests can damage it.
inline std::string SegmentBytes(TaskAttempt producer, JobId job, std::uint32_t parts,
                                const std::vector<std::pair<std::uint32_t, std::string>>& extents) {
  IndexBuilder index(producer, job, parts);
  std::string bytes;
  for (const auto& [part, data] : extents) {
    EXPECT_TRUE(index.Add(part, AsBytes(data), 1).ok());
    bytes += data;
  }
  return bytes + std::move(index).Finish().Tail();
}

inline int SealedMemfd(std::string_view bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) {
  int fd = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(::pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

}  // namespace ropewalk::blocks::testing
