// Pictures in folders: classes and numbers, what is decoded when, what is drawn anew each epoch, what is wrong with which file.
#include "mlrunner/data/image_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "mlrunner/data/picture.h"
#include "tests/unit/data_picture_files.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using testing::ValuesOf;

class ImageFolder : public ::testing::Test {
 protected:
  // A picture of its own for each `phase`.
  void Put(const std::string& name, int phase, int width = 8, int height = 6) {
    const std::string path = folder_.path() + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const std::vector<std::string> rows = testing::SmoothRows(width, height, phase);
    const bool is_png = name.ends_with("png") || name.ends_with("PNG");
    std::ofstream(path, std::ios::binary) << (is_png ? testing::PngOf(width, height, {}, rows) : testing::JpegOf(width, height, {}, rows));
  }
  ImageFolderOptions Options(ImageFolderOptions options = {}) {
    options.path = folder_.path() + "/set";
    if (options.held_out_path.empty()) options.held_out = 0;
    options.height = 6;
    options.width = 8;
    options.mean = {0};
    options.deviation = {1};
    return options;
  }
  std::unique_ptr<Samples> Training(const ImageFolderOptions& options) {
    auto data = LoadImageFolder(options);
    EXPECT_TRUE(data.ok()) << data.status().ToString();
    if (!data.ok()) std::abort();
    return std::move(data->training);
  }
  testing::TempFolder folder_;
};

// As 8-bit pixels: mean 0 and deviation 1.
std::vector<int> Pixels(Samples& samples, const std::vector<std::int64_t>& ids, std::int64_t epoch = 0) {
  const Status status = samples.Fetch(ids);
  EXPECT_TRUE(status.ok()) << status.ToString();
  std::vector<int> pixels;
  for (float value : ValuesOf<float>(samples, "image", ids, epoch)) pixels.push_back(static_cast<int>(std::lround(255 * value)));
  return pixels;
}
std::vector<int> Drawn(int phase) {
  const std::vector<std::string> rows = testing::SmoothRows(8, 6, phase);
  std::vector<int> pixels;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (const std::string& row : rows)
      for (std::size_t x = 0; x < 8; ++x) pixels.push_back(static_cast<std::uint8_t>(row[3 * x + channel]));
  }
  return pixels;
}

TEST_F(ImageFolder, EachFolderIsAClassInTheOrderOfTheNames) {
  // In the order of the paths "set/a-b/..." comes before "set/a/...", in that of the classes behind.
  Put("set/a-b/1.png", 1);
  Put("set/a/2.png", 2);
  Put("set/a/deep/3.PNG", 3);
  Put("set/a/4.jpg", 4);
  Put("set/_hidden/5.png", 5);
  std::ofstream(folder_.path() + "/set/a/notes.txt") << "no picture";
  std::filesystem::create_directories(folder_.path() + "/set/empty");
  auto samples = Training(Options());
  EXPECT_EQ(samples->count(), 4);
  EXPECT_EQ(samples->fields(), (std::vector<Field>{{"image", Dtype::kF32, {3, 6, 8}}, {"label", Dtype::kI32, {}, 2}}));
  std::map<int, int> labels;  // by phase
  for (std::int64_t id = 0; id < 4; ++id) {
    const std::vector<int> pixels = Pixels(*samples, {id});
    for (int phase : {1, 2, 3}) {
      if (pixels == Drawn(phase)) labels[phase] = ValuesOf<std::int32_t>(*samples, "label", {id})[0];
    }
  }
  EXPECT_EQ(labels, (std::map<int, int>{{1, 1}, {2, 0}, {3, 0}}));
  const std::uint64_t hash = samples->content_hash();
  EXPECT_EQ(Training(Options())->content_hash(), hash);
  Put("set/b/1.png", 1);
  EXPECT_NE(Training(Options())->content_hash(), hash);
}

TEST_F(ImageFolder, OfAnySizeColourAndScale) {
  Put("set/a/1.png", 1, 40, 30);
  Put("set/b/2.png", 2, 3, 50);
  auto samples = Training(Options());
  EXPECT_EQ(Pixels(*samples, {0, 1}).size(), 2u * 3 * 6 * 8);
  ImageFolderOptions options = Options();
  options.grey = true;
  auto grey = Training(options);
  EXPECT_EQ(grey->fields()[0].dims, (std::vector<std::int64_t>{1, 6, 8}));
  EXPECT_EQ(Pixels(*grey, {1}).size(), 48u);
  Put("set/a/1.png", 1);
  options = Options();
  options.mean = {.1, .2, .3};
  options.deviation = {.5, 1, 2};
  auto scaled = Training(options);
  ASSERT_TRUE(scaled->Fetch(std::vector<std::int64_t>{0}).ok());
  const std::vector<double> values = ValuesOf<double>(*scaled, "image", {0});
  const std::vector<int> pixels = Drawn(1);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], (pixels[i] / 255.0 - options.mean[i / 48]) / options.deviation[i / 48], 1e-12);
}

// Of the decoded pictures as many are kept as memory is given for; all give the same pixels, however the batches are cut.
TEST_F(ImageFolder, MemoryIsBoundedAndChangesNothing) {
  for (int i = 0; i < 6; ++i) Put("set/a/" + std::to_string(i) + ".png", i);
  for (std::uint64_t pictures : {0, 2, 100}) {
    ImageFolderOptions options = Options();
    options.kept_bytes_max = pictures * 3 * 6 * 8 + 1;
    auto samples = Training(options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (std::int64_t id = 0; id < 6; id += 2) {
        std::vector<int> expected = Drawn(static_cast<int>(id)), second = Drawn(static_cast<int>(id) + 1);
        expected.insert(expected.end(), second.begin(), second.end());
        EXPECT_EQ(Pixels(*samples, {id, id + 1}, epoch), expected);
      }
    }
    // What was kept is there without its file, what was not is read each time.
    std::filesystem::rename(folder_.path() + "/set/a", folder_.path() + "/gone");
    std::int64_t there = 0;
    for (std::int64_t id = 0; id < 6; ++id) {
      const Status status = samples->Fetch(std::vector<std::int64_t>{id});
      there += status.ok();
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::kNotFound) << status.ToString();
      EXPECT_NE(status.what().find("/set/a/" + std::to_string(id) + ".png"), std::string::npos) << status.ToString();
    }
    EXPECT_EQ(there, static_cast<std::int64_t>(std::min<std::uint64_t>(6, pictures)));
    std::filesystem::rename(folder_.path() + "/gone", folder_.path() + "/set/a");
  }
}

TEST_F(ImageFolder, IsDrawnAnewEachEpochFromTheSeedAlone) {
  for (int i = 0; i < 8; ++i) Put("set/a/" + std::to_string(i) + ".png", i);
  ImageFolderOptions options = Options();
  options.augmentation = {.padding = 2, .mirror = true};
  options.seed = 9;
  auto samples = Training(options), again = Training(options);
  std::set<std::vector<int>> seen;
  for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
    const std::vector<int> pixels = Pixels(*samples, {3}, epoch);
    EXPECT_EQ(Pixels(*again, {5, 3}, epoch), [&] {
      std::vector<int> both = Pixels(*samples, {5}, epoch);
      both.insert(both.end(), pixels.begin(), pixels.end());
      return both;
    }()) << "whichever samples it is asked for with";
    seen.insert(pixels);
  }
  EXPECT_GT(seen.size(), 5u);
  options.seed = 10;
  EXPECT_NE(Pixels(*Training(options), {0, 1, 2}, 1), Pixels(*samples, {0, 1, 2}, 1));
  // What is held out is looked at as it is.
  std::filesystem::copy(folder_.path() + "/set", folder_.path() + "/test", std::filesystem::copy_options::recursive);
  options.held_out_path = folder_.path() + "/test";
  auto data = LoadImageFolder(options);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  for (std::int64_t epoch : {0, 1}) EXPECT_EQ(Pixels(*data->held_out, {3}, epoch), Drawn(3));
}

TEST_F(ImageFolder, APartIsHeldOutOrAnotherFolder) {
  for (int i = 0; i < 30; ++i) Put("set/" + std::string(i % 2 == 0 ? "a" : "b") + "/" + std::to_string(i) + ".png", i);
  ImageFolderOptions options = Options();
  options.held_out = .2;
  auto data = LoadImageFolder(options);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->training->count(), 24);
  EXPECT_EQ(data->held_out->count(), 6);
  EXPECT_EQ(data->training->fields(), data->held_out->fields());
  Put("other/b/x.png", 1);
  options.held_out_path = folder_.path() + "/other/";
  data = LoadImageFolder(options);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->training->count(), 30);
  EXPECT_EQ(data->held_out->count(), 1);
  EXPECT_EQ(ValuesOf<std::int32_t>(*data->held_out, "label", {0})[0], 1) << "b, though it is the only class there";
  Put("other/c/y.png", 1);
  const Status other = LoadImageFolder(options).status();
  EXPECT_EQ(other.tag(), "DATA17");
  EXPECT_NE(other.what().find("/other/c/y.png\" is of the class \"c\""), std::string::npos) << other.ToString();
}

TEST_F(ImageFolder, WhatIsWrongIsNamed) {
  EXPECT_EQ(LoadImageFolder(Options()).status().tag(), "DATA02");
  std::filesystem::create_directories(folder_.path() + "/set/a");
  EXPECT_EQ(LoadImageFolder(Options()).status().tag(), "DATA08") << LoadImageFolder(Options()).status().ToString();
  std::ofstream(folder_.path() + "/set/a/x.gif") << "GIF89a";
  EXPECT_EQ(LoadImageFolder(Options()).status().tag(), "DATA08");
  Put("set/x.png", 1);
  const Status nowhere = LoadImageFolder(Options()).status();
  EXPECT_EQ(nowhere.tag(), "DATA17");
  EXPECT_NE(nowhere.what().find("/set/x.png\" is of no class"), std::string::npos) << nowhere.ToString();
  std::filesystem::remove(folder_.path() + "/set/x.png");
  Put("set/a/0.png", 0);
  Put("set/a/1.jpg", 1);
  std::filesystem::resize_file(folder_.path() + "/set/a/1.jpg", 300);
  auto samples = Training(Options());
  EXPECT_TRUE(samples->Fetch(std::vector<std::int64_t>{0}).ok());
  const Status damaged = samples->Fetch(std::vector<std::int64_t>{0, 1});
  EXPECT_EQ(damaged.tag(), "DATA13");
  EXPECT_EQ(damaged.what().substr(0, 10), "sample 1: ") << damaged.ToString();
  EXPECT_NE(damaged.what().find("/set/a/1.jpg\" is a damaged JPEG"), std::string::npos) << damaged.ToString();
}

}  // namespace
}  // namespace ropewalk::mlrunner
