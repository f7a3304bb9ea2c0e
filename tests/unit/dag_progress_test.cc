// How far a task is counts what its code has been through, not what was read ahead for it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dag/plan/sources.h"

namespace ropewalk::dag {
namespace {

constexpr std::size_t kLineBytes = 10;

class Progress : public testing::Test {
 protected:
  Progress() {
    path_ = (std::filesystem::temp_directory_path() / ("ropewalk_progress." + std::to_string(getpid()))).string();
    context_.settings = &settings_;
    context_.progress = &progress_;
    context_.cancelled = &cancelled_;
  }
  ~Progress() override { std::filesystem::remove(path_); }
  // One partition of `lines` lines of ten bytes.
  std::shared_ptr<const FilePartitions> File(std::size_t lines) {
    std::ofstream file(path_);
    for (std::size_t i = 0; i < lines; ++i) file << 100'000'000 + i << '\n';
    file.close();
    storage::InputListing listing;
    listing.files.push_back({.path = path_, .bytes = lines * kLineBytes});
    struct stat info{};
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    listing.files[0].mtime_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
    auto files = std::make_shared<FilePartitions>();
    files->splits = {{{.file = 0, .begin = 0, .end = lines * kLineBytes}}};
    files->bytes = {lines * kLineBytes};
    files->listing = std::move(listing);
    return files;
  }
  // Runs `work` for each batch of whichever source, and expects that just what came before it counts.
  template <class Work>
  Status Through(bool records, std::size_t lines, Work work) {
    progress_.bytes_in = progress_.records_in = 0;
    seen_ = 0;
    batches_.clear();
    const auto step = [&](std::size_t number) {
      EXPECT_EQ(progress_.records_in.load(), seen_);
      EXPECT_EQ(progress_.bytes_in.load(), seen_ * kLineBytes);
      batches_.push_back(number);
      work(number);
      seen_ += number;
      return Status();
    };
    if (records)
      return StreamFixed(*File(lines), context_, 0, kLineBytes,
                         [&](std::span<const std::byte> bytes) { return step(bytes.size() / kLineBytes); });
    return LinesOf(File(lines))->Run(context_, 0, [&](std::span<const std::string_view> batch) { return step(batch.size()); });
  }

  std::string path_;
  Settings settings_;
  TaskProgress progress_;
  std::atomic<bool> cancelled_{false};
  TaskContext context_;
  std::size_t seen_ = 0;
  std::vector<std::size_t> batches_;
};

TEST_F(Progress, CountsWhatWasHandedOnAndCameBack) {
  for (bool records : {false, true}) {
    ASSERT_TRUE(Through(records, 100'000, [](std::size_t) {}).ok());
    EXPECT_EQ(seen_, 100'000u);
    EXPECT_EQ(progress_.records_in.load(), 100'000u);
    EXPECT_EQ(progress_.bytes_in.load(), 100'000 * kLineBytes);
    EXPECT_LT(batches_.size(), 100u) << "batches of fast code are whole";
  }
}

TEST_F(Progress, SlowCodeGetsFewRecordsAtATimeAndHearsThatItIsCancelled) {
  for (bool records : {false, true}) {
    cancelled_ = false;
    const auto begin = std::chrono::steady_clock::now();
    const Status status = Through(records, 4'000, [&](std::size_t number) {
      std::this_thread::sleep_for(std::chrono::milliseconds(8) * number);
      if (batches_.size() == 4) cancelled_ = true;
    });
    EXPECT_EQ(status.code(), Code::kCancelled) << status.ToString();
    EXPECT_LT(seen_, 200u);
    EXPECT_LT(batches_.back(), batches_.front());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "all of it takes 32 s and more";
  }
}

}  // namespace
}  // namespace ropewalk::dag
