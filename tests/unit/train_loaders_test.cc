// Trainings on each kind of data that lies in files: what a job file says reaches it, it is learnt, and ranks change nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "mlrunner/data/bpe.h"
#include "mlrunner/data/text.h"
#include "mlrunner/train/family.h"
#include "tests/unit/data_picture_files.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

class Loaders : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  static TrainJob Mlp(std::vector<std::string> more) {
    std::vector<std::string> settings = {"model.hidden=16", "train.threads=1", "train.batch=10", "train.dtype=f64",
                                         "optimizer.learning_rate=0.1"};
    settings.insert(settings.end(), more.begin(), more.end());
    return JobOf(settings);
  }
  // One rank and three learn the same, and more than half of the errors that chance makes are gone.
  static void ExpectLearnt(const TrainJob& job, double part_right) {
    auto one = TrainOnThreads(job, 1), three = TrainOnThreads(job, 3);
    ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
    ASSERT_TRUE(three[0].status.ok()) << three[0].status.ToString();
    EXPECT_GE(static_cast<double>(one[0].summary.held_out_hits), part_right * static_cast<double>(one[0].summary.held_out_labels));
    ASSERT_EQ(one[0].losses.size(), three[0].losses.size());
    for (std::size_t i = 0; i < one[0].losses.size(); ++i)
      EXPECT_NEAR(one[0].losses[i], three[0].losses[i], 1e-9 * (1 + one[0].losses[i])) << i;
  }
  testing::TempFolder folder_;
};

TEST_F(Loaders, Csv) {
  Random random(3);
  std::string text = "id,x,y,side\n";
  for (int i = 0; i < 200; ++i) {
    const double x = 100 * random.Unit(), y = random.Unit();
    text += std::to_string(i) + "," + std::to_string(x) + "," + std::to_string(y) + (x / 100 > y ? ",right\n" : ",\"left\"\n");
  }
  ExpectLearnt(Mlp({"data.kind=csv", "data.path=" + Write("t.csv", text), "data.leave_out=id", "train.epochs=15"}), .9);
}

TEST_F(Loaders, RecordsAndALabelThatIsNoClass) {
  std::string records;
  Random random(4);
  for (int i = 0; i < 200; ++i) {
    const std::int32_t label = static_cast<std::int32_t>(random.Below(10));
    const float features[2] = {static_cast<float>(label) + static_cast<float>(random.Unit()) * .1f, 7};
    records.append(reinterpret_cast<const char*>(&label), sizeof label).append(reinterpret_cast<const char*>(features), sizeof features);
  }
  std::filesystem::create_directory(Path("out"));
  Write("out/part-0", records);
  const std::vector<std::string> settings = {"data.kind=records", "data.path=" + Path("out"), "data.features=2",
                                             "data.classes=10",   "train.epochs=30",          "model.hidden=32"};
  ExpectLearnt(Mlp(settings), .7);
  records[0] = 10;
  Write("out/part-0", records);
  auto result = TrainOnThreads(Mlp(settings), 2);
  for (const auto& rank : result) {
    EXPECT_EQ(rank.status.tag(), "DATA06");
    EXPECT_NE(rank.status.what().find("the record at byte 0 of \"" + Path("out") + "/part-0\" has the label 10"), std::string::npos);
    EXPECT_EQ(rank.status.why(), "labels lie in [0, 10)");
    EXPECT_TRUE(rank.losses.empty());
  }
}

TEST_F(Loaders, PicturesAndADamagedOneAtItsStep) {
  for (int i = 0; i < 40; ++i) {
    const std::string name = std::string("set/") + (i % 2 == 0 ? "dark" : "light") + "/" + std::to_string(i) + ".png";
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    Write(name, testing::PngOf(6, 6, {PNG_COLOR_TYPE_GRAY, 8},
                               std::vector<std::string>(6, std::string(6, static_cast<char>(i % 2 == 0 ? i : 200 + i)))));
  }
  const std::vector<std::string> settings = {"data.kind=image-folder", "data.path=" + Path("set"), "data.size=8, 8",
                                             "data.mirror=true",       "data.crop_padding=1",      "data.held_out=0.25",
                                             "train.epochs=10",        "data.mean=0.4, 0.5, 0.6"};
  ExpectLearnt(Mlp(settings), .9);
  std::filesystem::resize_file(Path("set/light/39.png"), 60);
  for (int ahead : {0, 3}) {
    auto more = settings;
    more.push_back("train.prefetch=" + std::to_string(ahead));
    more.push_back("data.held_out=0");
    auto result = TrainOnThreads(Mlp(more), 1);
    EXPECT_EQ(result[0].status.tag(), "DATA13");
    EXPECT_EQ(result[0].status.what().substr(0, 5), "step ") << result[0].status.ToString();
    EXPECT_EQ(result[0].status.what().substr(5, 1), std::to_string(result[0].losses.size())) << result[0].status.ToString();
    EXPECT_NE(result[0].status.what().find("/set/light/39.png\" is a damaged PNG"), std::string::npos) << result[0].status.ToString();
  }
}

std::string Verses() {
  std::string text;
  Random random(5);
  for (int i = 0; i < 300; ++i) text += random.OneIn(2) ? "the rope is tarred. " : "a walker walks the walk!\n";
  return text;
}

TEST_F(Loaders, BytePairsOfATextAndOfAVocabularyInFiles) {
  const std::string path = Write("text", Verses());
  const std::vector<std::string> learnt = {"data.tokenizer=bpe", "data.vocabulary_size=300", "train.dtype=f64", "train.batch=8"};
  auto one = TrainOnThreads(JobOf(testing::TinyGpt(path, 10, {learnt})), 1),
       three = TrainOnThreads(JobOf(testing::TinyGpt(path, 10, {learnt})), 3);
  ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(one[0].losses[i], three[0].losses[i], 1e-9);
  // The same vocabulary from files gives the same samples, and so the same training.
  auto bpe = Bpe::Train(Verses().substr(0, Verses().size() - static_cast<std::size_t>(.1 * static_cast<double>(Verses().size()))), 300);
  ASSERT_TRUE(bpe.ok());
  storage::LocalFileSystem files;
  ASSERT_TRUE(bpe->Save(files, Path("vocabulary")).ok());
  auto read =
      TrainOnThreads(JobOf(testing::TinyGpt(
                         path, 10, {{"data.tokenizer=bpe", "data.vocabulary=" + Path("vocabulary"), "train.dtype=f64", "train.batch=8"}})),
                     1);
  ASSERT_TRUE(read[0].status.ok()) << read[0].status.ToString();
  EXPECT_EQ(read[0].losses, one[0].losses);
  // A checkpoint of other tokens is one of another training.
  const std::string checkpoints = "checkpoint.folder=" + Path("checkpoints");
  TrainOnThreads(JobOf(testing::TinyGpt(path, 5, {learnt, {checkpoints}})), 1);
  auto other = TrainOnThreads(JobOf(testing::TinyGpt(path, 9, {learnt, {checkpoints, "data.held_out=0.3"}})), 1);
  EXPECT_EQ(other[0].status.tag(), "CKPT03") << other[0].status.ToString();
  auto none = TrainOnThreads(JobOf(testing::TinyGpt(path, 5, {{"data.tokenizer=bpe", "data.vocabulary=" + Path("nowhere")}})), 1);
  EXPECT_EQ(none[0].status.tag(), "DATA02");
}

TEST_F(Loaders, TheVocabularyThatWasLearntLiesBesideTheCheckpoint) {
  const std::string path = Write("text", Verses()), folder = Path("checkpoints");
  auto job = [&](int steps, const std::string& into) {
    return JobOf(testing::TinyGpt(
        path, steps, {{"data.tokenizer=bpe", "data.vocabulary_size=300", "train.batch=8", "train.seed=3", "checkpoint.folder=" + into}}));
  };
  auto whole = TrainOnThreads(job(8, Path("other")), 1), first = TrainOnThreads(job(5, folder), 2);
  ASSERT_TRUE(whole[0].status.ok() && first[0].status.ok()) << first[0].status.ToString();
  auto kept = Bpe::LoadFolder(folder + "/vocabulary");
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(kept->hash(), Bpe::LoadFolder(Path("other") + "/vocabulary")->hash());
  auto rest = TrainOnThreads(job(8, folder), 2);
  ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
  EXPECT_EQ(rest[0].losses.size(), 3u);
  EXPECT_NEAR(rest[0].losses.back(), whole[0].losses.back(), 1e-4);
  // It is what the next part reads: another one in its place is noticed, a damaged one is learnt again.
  storage::LocalFileSystem files;
  auto fewer = Bpe::Train(Verses(), 280);
  ASSERT_TRUE(fewer.ok() && fewer->Save(files, folder + "/vocabulary").ok());
  EXPECT_EQ(TrainOnThreads(job(9, folder), 1)[0].status.tag(), "CKPT03");
  std::filesystem::resize_file(folder + "/vocabulary/vocab.json", 100);
  auto again = TrainOnThreads(job(9, folder), 1);
  ASSERT_TRUE(again[0].status.ok()) << again[0].status.ToString();
  EXPECT_EQ(Bpe::LoadFolder(folder + "/vocabulary")->hash(), kept->hash());
  // A training that begins anew learns its own.
  ASSERT_TRUE(fewer->Save(files, folder + "/vocabulary").ok());
  TrainJob anew = job(2, folder);
  anew.checkpoint.resume = false;
  ASSERT_TRUE(TrainOnThreads(anew, 1)[0].status.ok());
  EXPECT_EQ(Bpe::LoadFolder(folder + "/vocabulary")->hash(), kept->hash());
}

// A word's letters tell which one is hidden. One rank and three learn the same, also with dropout, and only masked places count.
TEST_F(Loaders, MaskedTokensOfAText) {
  std::vector<std::string> settings = {"model.kind=bert",     "model.layers=1",    "model.width=16",
                                       "model.heads=2",       "model.inner=32",    "model.length=12",
                                       "data.kind=text",      "data.held_out=0.2", "data.path=" + Write("text", Verses()),
                                       "optimizer.kind=adam", "train.threads=1",   "optimizer.learning_rate=0.01",
                                       "train.batch=32",      "train.steps=600"};
  auto one = TrainOnThreads(JobOf(settings), 1);
  ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
  EXPECT_EQ(one[0].summary.labels_are, "masked characters");
  const std::int64_t samples = (static_cast<std::int64_t>(.2 * static_cast<double>(Verses().size())) - 1) / 12;
  EXPECT_EQ(one[0].summary.held_out_labels, 2 * samples) << "round(.15 * 12) of each";
  EXPECT_GT(one[0].losses.front(), 2.5);
  EXPECT_LT(one[0].summary.held_out_loss, 1.2) << "the letters' frequencies alone give 2.5";
  settings.insert(settings.end(), {"train.steps=4", "model.dropout=0.1", "train.dtype=f64"});
  auto single = TrainOnThreads(JobOf(settings), 1), three = TrainOnThreads(JobOf(settings), 3);
  ASSERT_TRUE(three[0].status.ok()) << three[0].status.ToString();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(single[0].losses[i], three[0].losses[i], 1e-9) << i;
  EXPECT_EQ(single[0].summary.held_out_hits, three[0].summary.held_out_hits);
}

TEST_F(Loaders, BytePairsAreStretchesOfTokens) {
  const std::string text = Verses() + "\u043a\u0430\u043d\u0430\u0442";
  for (std::int64_t tokens : {260, 400}) {
    auto data = LoadBytePairs(Write("text", text), 7, .2, {.tokens = tokens});
    ASSERT_TRUE(data.ok()) << data.status().ToString();
    EXPECT_EQ(data->training->labels_are(), "tokens");
    EXPECT_LE(data->training->fields()[0].classes, tokens);
    EXPECT_EQ(data->training->vocabulary_hash(), data->held_out->vocabulary_hash());
    const std::vector<std::int32_t> inputs = testing::ValuesOf<std::int32_t>(*data->training, "tokens", {0, 1});
    const std::vector<std::int32_t> next = testing::ValuesOf<std::int32_t>(*data->training, "next", {0, 1});
    for (std::size_t i = 0; i + 1 < inputs.size(); ++i) EXPECT_EQ(next[i], inputs[i + 1]);
  }
  EXPECT_EQ(LoadBytePairs(Write("text", "short"), 7, .2, {}).status().tag(), "DATA04");
  EXPECT_EQ(LoadBytePairs(Write("text", ""), 7, .2, {}).status().tag(), "DATA04");
}

TEST_F(Loaders, KeysThatDoNotFitAreNamed) {
  struct Case {
    std::vector<std::string> settings;
    const char *key, *why;
  };
  const std::vector<std::string> text = {"model.kind=gpt", "data.kind=text", "data.path=/t"}, csv = {"data.kind=csv", "data.path=/t"},
                                 images = {"data.kind=image-folder", "data.path=/t"};
  const Case cases[] = {
      {{"data.tokenizer=words"}, "data.tokenizer", "characters, bpe"},
      {{"data.vocabulary=/v"}, "data.vocabulary", "characters have none"},
      {{"data.vocabulary_size=300"}, "data.vocabulary_size", "as many characters"},
      {{"data.tokenizer=bpe", "data.vocabulary=/v", "data.vocabulary_size=300"}, "data.vocabulary_size", "data.vocabulary says"},
      {{"data.separator=ab"}, "data.separator", "one character, or tab"},
      {{"data.missing=ignore"}, "data.missing", "refuse, mean"},
      {{"data.size=3"}, "data.size", "a height and a width"},
      {{"data.mean=1, 2"}, "data.mean", "one for each channel"},
      {{"data.mean=red"}, "data.mean", "one for each channel"},
      {{"data.deviation=0"}, "data.deviation", "above 0"},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    Config config(TrainKeys());
    std::vector<std::string> settings = i < 4 ? text : i < 6 ? csv : images;
    settings.insert(settings.end(), cases[i].settings.begin(), cases[i].settings.end());
    for (const std::string& setting : settings) ASSERT_TRUE(ApplySetting(&config, setting).ok()) << setting;
    const Status status = ReadTrainJob(config).status();
    EXPECT_EQ(status.tag(), "SPEC02") << cases[i].key;
    EXPECT_NE(status.what().find(cases[i].key), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(cases[i].why), std::string::npos) << status.ToString();
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
