// The end of WriteText: lines of every length, formatted and not, arrive in the part file byte by byte, and a full disk is told.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "dag/plan/accumulators.h"
#include "storage/file_system.h"
#include "tests/unit/fake_blocks.h"

namespace ropewalk::dag {
namespace {

class TextSinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = (std::filesystem::temp_directory_path() / "ropewalk-sink-XXXXXX").string();
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
    spec_.folder = root_ + "/out";
    spec_.key = "k";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // The bytes of the part that `fill(sink)` makes.
  template <class Fill>
  std::string Written(Fill fill) {
    auto part = storage::PartWriter::Open(spec_, 0, 1);
    EXPECT_TRUE(part.ok());
    TextSink sink(part->get(), &task_.context);
    std::uint64_t records = fill(sink);
    EXPECT_TRUE(sink.Flush().ok());
    EXPECT_EQ(sink.records(), records);
    auto winner = (*part)->Finish(records);
    EXPECT_TRUE(winner.ok());
    EXPECT_TRUE(storage::CommitOutput(spec_, std::vector<std::string>{*winner}).ok());
    std::ifstream in(spec_.folder + "/part-00000", std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(task_.progress.bytes_out.load(), text.str().size());
    EXPECT_EQ(task_.progress.records_out.load(), records);
    return text.str();
  }

  std::string root_;
  storage::OutputSpec spec_;
  testing::FakeTask task_;
};

TEST_F(TextSinkTest, LinesOfEveryLength) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<std::size_t> sizes = {0, 1, 0, (256 << 10) - 2, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 0, 3 << 20, 5};
  for (int i = 0; i < 20'000; ++i) sizes.push_back(random() % (i % 100 == 0 ? 100'000 : 300));
  std::string expected;
  std::string got = Written([&](TextSink& sink) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::string line(sizes[i], static_cast<char>('a' + i % 26));
      expected += line + "\n";
      i % 2 == 0 ? sink(line) : sink(std::string_view(line));
    }
    return sizes.size();
  });
  EXPECT_TRUE(got == expected);
}

TEST_F(TextSinkTest, RecordsThatAreFormatted) {
  std::string expected;
  std::string got = Written([&](TextSink& sink) {
    for (std::uint64_t i = 0; i < 100'000; ++i) {
      sink(std::pair<std::string_view, std::uint64_t>("key", i));
      expected += "key\t" + std::to_string(i) + "\n";
    }
    return 100'000;
  });
  EXPECT_TRUE(got == expected);
}

TEST_F(TextSinkTest, AnErrorOfTheFileIsKept) {
  class FullDisk final : public storage::FileSystem {
   public:
    int Create(const std::string&, std::unique_ptr<storage::WritableFile>* file) override {
      class File final : public storage::WritableFile {
        int Append(std::span<const std::byte>) override { return ENOSPC; }
        int Sync() override { return 0; }
        int Close() override { return 0; }
      };
      *file = std::make_unique<File>();
      return 0;
    }
    int ReadSmall(const std::string&, std::size_t, std::string*) override { return ENOENT; }
    int ReadAt(const std::string&, std::uint64_t, std::span<std::byte>, std::size_t*) override { return ENOENT; }
    int MakeFolder(const std::string&) override { return 0; }
    int SyncFolder(const std::string&) override { return 0; }
    int Look(const std::string&, storage::FileFacts*) override { return ENOENT; }
    int List(const std::string&, std::vector<std::string>*) override { return ENOENT; }
    int Rename(const std::string&, const std::string&, storage::RenameMode) override { return ENOENT; }
    int RemoveFile(const std::string&) override { return 0; }
    int RemoveFolder(const std::string&) override { return 0; }
  };
  FullDisk disk;
  spec_.files = &disk;
  for (std::size_t size : {std::size_t{100}, std::size_t{1} << 20}) {
    auto part = storage::PartWriter::Open(spec_, 0, 1);
    ASSERT_TRUE(part.ok());
    TextSink sink(part->get(), &task_.context);
    for (int i = 0; i < 20'000 && sink.status().ok(); ++i) sink(std::string(size, 'x'));
    for (int i = 0; i < 100; ++i) sink(std::string_view("more"));  // up to the end of a batch
    EXPECT_EQ(sink.status().tag(), "OUT05") << size;
    EXPECT_EQ(sink.Flush().tag(), "OUT05");
  }
  spec_.files = nullptr;
}

}  // namespace
}  // namespace ropewalk::dag
