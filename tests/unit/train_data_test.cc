// Data: IDX files, texts, the order of samples; what is wrong with a file is said with sample, value and range.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "mlrunner/data/idx.h"
#include "mlrunner/data/images.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/data/text.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using testing::ValuesOf;

std::string Idx(std::vector<std::uint32_t> dims, const std::string& bytes) {
  std::string file = {0, 0, 8, static_cast<char>(dims.size())};
  for (std::uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(dim >> shift);
  }
  return file + bytes;
}
void Write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
void WriteGzip(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

TEST(Data, IdxFilesPlainAndCompressed) {
  testing::TempFolder folder;
  std::string file = Idx({2, 3}, "abcdef");
  Write(folder.path() + "/a", file);
  WriteGzip(folder.path() + "/a.gz", file);
  for (const char* name : {"/a", "/a.gz"}) {
    auto idx = ReadIdx(folder.path() + name);
    ASSERT_TRUE(idx.ok()) << idx.status().ToString();
    EXPECT_EQ(idx->dims, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(idx->bytes, "abcdef");
  }
}

TEST(Data, EveryTruncationOfAnIdxFileIsRefused) {
  testing::TempFolder folder;
  std::string file = Idx({2, 3}, "abcdef");
  for (std::size_t length = 0; length < file.size(); ++length) {
    Write(folder.path() + "/a", file.substr(0, length));
    auto idx = ReadIdx(folder.path() + "/a");
    ASSERT_FALSE(idx.ok()) << length;
    EXPECT_EQ(idx.status().tag(), "DATA01") << length;
  }
  for (const std::string& bad : {file + "x", std::string("\0\0\x0d\1\0\0\0\1x", 9), Idx({0xffffffff, 0xffffffff, 0xffffffff}, "")}) {
    Write(folder.path() + "/a", bad);
    EXPECT_EQ(ReadIdx(folder.path() + "/a").status().tag(), "DATA01");
  }
  EXPECT_EQ(ReadIdx(folder.path() + "/none").status().code(), Code::kNotFound);
  EXPECT_EQ(ReadIdx(folder.path()).status().code(), Code::kUserError);
}

TEST(Data, AWrongLabelNamesSampleValueAndRange) {
  testing::TempFolder folder;
  Write(folder.path() + "/images", Idx({4, 2, 2}, std::string(16, '\x7f')));
  Write(folder.path() + "/labels", Idx({4}, std::string("\x00\x09\x0a\x01", 4)));
  auto bad = LoadImages(folder.path() + "/images", folder.path() + "/labels", 10, 0, 1);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().tag(), "DATA03");
  EXPECT_EQ(bad.status().code(), Code::kUserError);
  EXPECT_NE(bad.status().what().find("sample 2 of \"" + folder.path() + "/labels\" has the label 10"), std::string::npos)
      << bad.status().ToString();
  EXPECT_NE(bad.status().why().find("[0, 10)"), std::string::npos);
  auto good = LoadImages(folder.path() + "/images", folder.path() + "/labels", 11, .5, .25);
  ASSERT_TRUE(good.ok()) << good.status().ToString();
  EXPECT_EQ((*good)->count(), 4);
  EXPECT_EQ(ValuesOf<std::int32_t>(**good, "label", {2, 0}), (std::vector<std::int32_t>{10, 0}));
  const std::vector<float> pixels = ValuesOf<float>(**good, "image", {2, 0});
  ASSERT_EQ(pixels.size(), 8u);
  EXPECT_FLOAT_EQ(pixels[0], (127 / 255.0 - .5) / .25);
  EXPECT_EQ(ValuesOf<double>(**good, "image", {2})[0], (127 / 255.0 - .5) / .25);
  // Dimensions of which one is nothing, and the others are as large as they can be said.
  for (const std::string& none : {Idx({0, 0xffffffff, 0xffffffff}, ""), Idx({0xffffffff, 0, 0xffffffff}, ""), Idx({4}, "abcd")}) {
    Write(folder.path() + "/none", none);
    const Status status = LoadImages(folder.path() + "/none", folder.path() + "/labels", 10, 0, 1).status();
    EXPECT_EQ(status.tag(), "DATA01");
    EXPECT_NE(status.what().find("holds no images"), std::string::npos) << status.ToString();
  }
  Write(folder.path() + "/labels", Idx({3}, std::string(3, 0)));
  EXPECT_EQ(LoadImages(folder.path() + "/images", folder.path() + "/labels", 10, 0, 1).status().tag(), "DATA01");
}

TEST(Data, AMissingPartOfTheDataSetIsNamed) {
  testing::TempFolder folder;
  auto data = LoadFashionMnist(folder.path());
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.status().tag(), "DATA02");
  EXPECT_NE(data.status().what().find("train-images-idx3-ubyte"), std::string::npos);
  EXPECT_EQ(data.status().why(), "it is one of the four files of the data set");
  EXPECT_NE(data.status().fix().find("data.path"), std::string::npos);
  // Somebody who mistook the path is told that, and not that a file is missing.
  EXPECT_EQ(LoadFashionMnist(folder.path() + "/none").status().why(), "there is no such folder on this machine");
  Write(folder.path() + "/file", "");
  EXPECT_EQ(LoadFashionMnist(folder.path() + "/file").status().why(), "there is no such folder on this machine");
}

// A download that was cut off, and one that is something else.
TEST(Data, ADamagedGzipFileIsNamedWithItsPlace) {
  testing::TempFolder folder;
  std::string noise(5000, 0);
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * i >> 3);
  WriteGzip(folder.path() + "/a.gz", Idx({5000}, noise));
  std::filesystem::resize_file(folder.path() + "/a.gz", std::filesystem::file_size(folder.path() + "/a.gz") / 2);
  Write(folder.path() + "/b.gz", "hello");
  for (const char* name : {"/a.gz", "/b.gz"}) {
    Status status = ReadIdx(folder.path() + name).status();
    EXPECT_EQ(status.tag(), "IO03") << status.ToString();
    EXPECT_EQ(status.code(), Code::kUserError) << status.ToString();
    EXPECT_NE(status.what().find(folder.path() + name + "\" at byte "), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.why().empty() || status.fix().empty()) << status.ToString();
  }
}

// As many characters, but others: the ids are the same, and stand for other symbols.
TEST(Data, TextsOfOtherCharactersHaveAnotherVocabulary) {
  testing::TempFolder folder;
  std::vector<std::uint64_t> hashes, contents;
  for (const char* text : {"abcabcabcabcab", "abdabdabdabdab", "aabbccaabbccab"}) {
    Write(folder.path() + "/t", text);
    auto data = LoadText(folder.path() + "/t", 3, .4);
    ASSERT_TRUE(data.ok()) << data.status().ToString();
    EXPECT_EQ(data->training->vocabulary_hash(), data->held_out->vocabulary_hash());
    hashes.push_back(data->training->vocabulary_hash());
    contents.push_back(data->training->content_hash());
  }
  EXPECT_NE(hashes[0], hashes[1]);
  EXPECT_NE(contents[0], contents[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
  EXPECT_NE(contents[0], contents[2]);
}

// The real set: 60,000 and 10,000, each class as often, pixels of mean 0 and deviation 1.
TEST(Data, FashionMnist) {
  auto data = LoadFashionMnist(kFashionMnistFolder);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->training->count(), 60'000);
  EXPECT_EQ(data->held_out->count(), 10'000);
  EXPECT_EQ(data->training->fields(), (std::vector<Field>{{"image", Dtype::kF32, {1, 28, 28}}, {"label", Dtype::kI32, {}, 10}}));
  std::vector<std::int64_t> ids(10'000);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<std::int32_t> labels = ValuesOf<std::int32_t>(*data->held_out, "label", ids);
  for (std::int32_t label = 0; label < 10; ++label) EXPECT_EQ(std::count(labels.begin(), labels.end(), label), 1'000);
  const std::vector<float> pixels = ValuesOf<float>(*data->training, "image", ids);
  double sum = 0, squares = 0;
  for (float pixel : pixels) sum += pixel, squares += static_cast<double>(pixel) * pixel;
  double mean = sum / static_cast<double>(pixels.size());
  EXPECT_NEAR(mean, 0, .02);
  EXPECT_NEAR(squares / static_cast<double>(pixels.size()) - mean * mean, 1, .03);
  EXPECT_NE(data->training->content_hash(), data->held_out->content_hash());
}

TEST(Data, TextsAreStretchesOfCharacters) {
  testing::TempFolder folder;
  Write(folder.path() + "/t", "abcabcabcab" + std::string("cabba"));
  auto data = LoadText(folder.path() + "/t", 3, .32);  // the last 5 are held out
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->training->fields(), (std::vector<Field>{{"tokens", Dtype::kI32, {3}, 3}, {"next", Dtype::kI32, {3}, 3}}));
  EXPECT_EQ(data->training->count(), 3);
  EXPECT_EQ(data->held_out->count(), 1);
  EXPECT_EQ(ValuesOf<std::int32_t>(*data->training, "tokens", {1}), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(ValuesOf<std::int32_t>(*data->training, "next", {1}), (std::vector<std::int32_t>{1, 2, 0}));
  const std::int64_t two[] = {0, 2};
  EXPECT_EQ(data->training->NumLabels(two), 6);
  auto shorter = LoadText(folder.path() + "/t", 8, .32);
  ASSERT_FALSE(shorter.ok());
  EXPECT_EQ(shorter.status().tag(), "DATA04");
}

TEST(Sampler, EachSampleOnceInAnEpochInAnotherOrderEachTime) {
  Sampler sampler(7, 103);
  SamplePosition at;
  std::vector<std::vector<std::int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> taken;
    while (taken.size() < 103) {
      auto ids = sampler.Next(&at, 10);
      EXPECT_EQ(ids.size(), std::min<std::size_t>(10, 103 - taken.size()));
      taken.insert(taken.end(), ids.begin(), ids.end());
      EXPECT_EQ(at.epoch, epoch);
    }
    EXPECT_EQ(std::set<std::int64_t>(taken.begin(), taken.end()).size(), 103u);
    epochs.push_back(taken);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  SamplePosition anew;
  Sampler other(8, 103);
  auto ids = other.Next(&anew, 103);
  EXPECT_NE(std::vector<std::int64_t>(ids.begin(), ids.end()), epochs[0]);
}

// Going on in the middle of an epoch, with another batch or at once with another sampler, gives exactly the samples that are left.
TEST(Sampler, GoesOnWhereAPositionStands) {
  Sampler first(3, 50);
  SamplePosition at;
  for (int i = 0; i < 7; ++i) first.Next(&at, 9);
  SamplePosition kept = at;
  std::vector<std::int64_t> rest, again;
  while (rest.size() < 60) {
    auto ids = first.Next(&at, 9);
    rest.insert(rest.end(), ids.begin(), ids.end());
  }
  for (int time = 0; time < 2; ++time) {
    Sampler second(3, 50);
    SamplePosition from = kept;
    again.clear();
    while (again.size() < 60) {
      auto ids = second.Next(&from, 4);
      again.insert(again.end(), ids.begin(), ids.end());
    }
    again.resize(60);
    EXPECT_EQ(again, (std::vector<std::int64_t>(rest.begin(), rest.begin() + 60)));
  }
}

TEST(Sampler, SharesCoverTheBatch) {
  for (std::int64_t count : {0, 1, 6, 33, 128}) {
    for (std::int32_t ranks : {1, 2, 3, 4, 7}) {
      std::int64_t next = 0;
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        Share share = ShareOf(count, rank, ranks);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.count, ShareOf(count, 0, ranks).count);
        EXPECT_GE(share.count, ShareOf(count, 0, ranks).count - 1);
        next += share.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
